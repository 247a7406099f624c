//! Graphs of programs for 64-bit Arm against what they do: qemu writes down every instruction.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::callgrind::{Executed, TITLE, compare};
use super::compilers::SOURCE;
use super::program::Program;

/// Where Debian's cross compiler has libraries for Arm.
const ROOT: &str = "/usr/aarch64-linux-gnu";
/// Most instructions that a program is followed for: half a minute.
const INSTRUCTIONS_MAX: usize = 3_000_000;

/// What a program executed, in the process's addresses: with `-singlestep` every instruction is a
/// block of qemu's own, and it reports each: `Trace 0: HOST [CS_BASE/PC/FLAGS/CFLAGS]` (qemu 7.2,
/// `accel/tcg/cpu-exec.c`).
fn executed(root: &str, program: &Path, arguments: &[&str]) -> Executed {
    let mut command = Command::new("qemu-aarch64");
    // Else each stub jumps to the one that looks its procedure up, once.
    command
        .args(["-E", "LD_BIND_NOW=1", "-L", root, "-singlestep", "-d", "exec,nochain"])
        .arg(program)
        .args(arguments);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("qemu-aarch64");
    let mut executed = Executed::default();
    let mut before = None;
    for line in BufReader::new(child.stderr.take().unwrap()).split(b'\n').take(INSTRUCTIONS_MAX) {
        let line = line.unwrap();
        let line = String::from_utf8_lossy(&line);
        let Some(at) = line.strip_prefix("Trace ").and_then(|line| line.split('/').nth(1)) else {
            continue;
        };
        let at = u64::from_str_radix(at, 16).unwrap();
        executed.instructions.insert(at, 1);
        if let Some(before) = before.replace(at).filter(|before| before + 4 != at) {
            executed.jumps.insert((before, at), 1);
        }
    }
    // It may have more to tell than is heard.
    let _ = child.kill();
    child.wait().unwrap();
    executed
}

/// Whether a word jumps, and neither calls nor returns (DDI 0487, C4.1.93: `bl`, `blr` and `ret` in
/// all forms). `br x17` ends the stub of a call of another image, which of graphs ends the flow if
/// that does not return.
fn jumps(word: u32) -> bool {
    let calls =
        word >> 26 == 0b10_0101 || word & 0xfedf_f000 == 0xd61f_0000 && word & 0x0020_0000 != 0;
    let returns = word & 0xffff_f000 == 0xd65f_0000;
    let supervises = word >> 24 == 0xd4;
    !calls && !returns && !supervises && word != 0xd61f_0220
}

fn hold(
    root: &str,
    name: &str,
    program: &Path,
    arguments: &[&str],
    wrong: &mut Vec<String>,
) -> usize {
    let all = executed(root, program, arguments);
    let libraries =
        ["lib/aarch64-linux-gnu/libc.so.6", "lib/libc.so.6", "lib/ld-linux-aarch64.so.1"];
    let objects = libraries
        .iter()
        .map(|library| PathBuf::from(root).join(library))
        .chain([program.to_owned()]);
    let mut jumps_held = 0;
    for path in objects {
        let Some(image) = Program::open(&path) else { continue };
        let is_jump = |at: u64| {
            let part = image
                .text()
                .into_iter()
                .find(|part| at.wrapping_sub(part.begin.0) < part.bytes.len() as u64);
            let bytes =
                part.and_then(|part| part.bytes.get((at - part.begin.0) as usize..)?.first_chunk());
            bytes.is_some_and(|bytes| jumps(u32::from_le_bytes(*bytes)))
        };
        let Some(found) = compare(&image, &all, is_jump) else { continue };
        let object = path.file_name().unwrap().to_str().unwrap();
        found.print(name, object);
        jumps_held += found.jumps;
        // A second entry that begins with `nop`, where branch targets are not marked, and that has
        // no symbol, is taken for padding.
        let found = found.wrong.iter().filter(|text| !text.ends_with("is padding"));
        wrong.extend(found.map(|text| format!("{name}, {object}: {text}")));
    }
    jumps_held
}

#[test]
#[ignore = "needs a compiler and an emulator for Arm: cargo xtask bench cfg"]
fn every_jump_that_is_executed_on_arm_is_an_edge() {
    let folder = tempfile::tempdir().unwrap();
    let (mut wrong, mut held) = (Vec::new(), 0);
    println!("{TITLE}");
    let set = include_str!("../walks/programs/set.c");
    let ways: [(&str, &str, &[&str]); 4] = [
        ("set -O2", set, &["-O2"]),
        ("set -O0", set, &["-O0"]),
        ("jumps -O2", SOURCE, &["-O2", "--param=case-values-threshold=4"]),
        (
            "jumps bti",
            SOURCE,
            &["-O1", "--param=case-values-threshold=4", "-mbranch-protection=standard"],
        ),
    ];
    for (name, source, options) in ways {
        let (file, program) = (folder.path().join("source.c"), folder.path().join("program"));
        std::fs::write(&file, source).unwrap();
        let mut compiler = Command::new("aarch64-linux-gnu-gcc");
        let status = compiler
            .args(options)
            .arg("-o")
            .arg(&program)
            .arg(&file)
            .status()
            .expect("aarch64-linux-gnu-gcc");
        assert!(status.success(), "{compiler:?}");
        held += hold(ROOT, name, &program, &[], &mut wrong);
    }
    // More, of a Debian for Arm in a folder, if there is one: GRAPHS_ARM_ROOT.
    if let Ok(root) = std::env::var("GRAPHS_ARM_ROOT") {
        let programs: [(&str, &[&str]); 7] = [
            (
                "bin/bash",
                &[
                    "-c",
                    "for ((i=0;i<300;i++)); do case $i in 1*) a+=x;; *2) b=${a/x/y};; esac; done; echo $a | read c; printf '%d %s\n' 3 $b",
                ],
            ),
            ("bin/gzip", &["-c", "/etc/services"]),
            ("bin/bzip2", &["-c", "/etc/services"]),
            ("usr/bin/xz", &["-c", "/etc/services"]),
            (
                "usr/bin/perl",
                &[
                    "-e",
                    "my %h; for (1..400) { $h{$_ % 7} .= \"$_,\" if /[13]/ } print join '|', map { sprintf '%s', $h{$_} } sort keys %h",
                ],
            ),
            ("usr/bin/sort", &["-R", "/etc/services"]),
            (
                "usr/bin/python3.11",
                &[
                    "-S",
                    "-c",
                    "print(sum(i * i % 7 for i in range(300)), sorted('hello world'.split()))",
                ],
            ),
        ];
        for (program, arguments) in programs {
            held += hold(&root, program, &Path::new(&root).join(program), arguments, &mut wrong);
        }
    }
    assert!(held > 2000, "{held}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

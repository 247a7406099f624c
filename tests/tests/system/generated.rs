//! Code that is in no file, with the real daemon on the real kernel: registered by clients, told of
//! in files that anybody may write, loaded by the kernel. A recording shows what names and samples
//! such code gets (`daemon/dcpid/tests/attribution.rs`). These tests need root, as privileged.rs
//! does.

use crate::stacks;
use std::path::Path;
use std::process::Command;
use tests::daemon::{Place, assert_closes, start_by_time};
use tests::report::{Prof, Row, prof};
use tests::workload::{Left, Running, Truth, Workload, wait_for_code};
use tests::{refuse, require_root, succeed};

/// Address of the code of the workload `jit`.
const CODE: u64 = 0x2_0000_0000;

fn everything(place: &Place) -> Prof {
    prof(&place.db(), &["--idle"])
}

fn jit(workload: &Workload, arguments: &[&str]) -> Running {
    Running::start(Command::new(workload.program()).args(arguments))
}

fn assert_about(what: &str, seconds: f64, expected: f64) {
    eprintln!("{what}: {seconds:.3} s in samples, {expected:.3} s by its own clock");
    assert!(
        (0.8 * expected..=1.2 * expected).contains(&seconds),
        "{what}: {seconds:.3} s, not {expected:.3} s"
    );
}

/// Samples of the procedures that `is` says, and of no other image than the workload's own of
/// generated code.
fn made(prof: &Prof, truth: &Truth, is: impl Fn(&str) -> bool) -> f64 {
    let pid = format!(" {}", truth.number("pid"));
    let own = |row: &&Row| row.image.starts_with("[jit] ") && row.image.ends_with(&pid);
    let rows = prof.rows.iter().filter(own).filter(|row| row.procedure.as_deref().is_some_and(&is));
    prof.seconds(rows.map(Row::samples).sum())
}

/// The daemon takes up regions that lie in the process's code, and refuses others in one line.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn regions_are_registered_and_refused_by_name() {
    require_root();
    let place = Place::default();
    let workload = Workload::build(place.path(), "jit", &[]);
    let daemon = start_by_time(&place);
    let running = jit(&workload, &["20"]); // killed at the end
    wait_for_code(running.pid(), CODE);
    let (pid, start) = (running.pid().to_string(), format!("{CODE:#x}"));
    let second = format!("{:#x}", CODE + 2048);
    let register = |arguments: &[&str]| place.dcpictl(&[&["register"], arguments].concat());
    let said = succeed(&mut register(&[&pid, &start, "64", "first of mine"]));
    assert!(said.contains("1 registered"), "{said}");
    let said =
        succeed(&mut register(&[&pid, &second, "0x40", "second_of_mine", "--image", "an image"]));
    assert!(said.contains("2 registered"), "{said}");
    for (arguments, words) in [
        (["4194000", &start, "64", "x"], "no process"),
        ([&pid, "0x1000", "64", "x"], "no executable mapping"),
        ([&pid, &start, "8192", "x"], "no executable mapping"),
        ([&pid, &start, "0", "x"], "no region"),
        ([&pid, "nonsense", "64", "x"], "must be a number"),
    ] {
        let line = refuse(&mut register(&arguments));
        assert!(line.contains(words), "{line}");
    }
    let text = succeed(&mut place.dcpictl(&["status"]));
    assert!(text.contains("2 registered regions of "), "{text}");
    let said = succeed(&mut place.dcpictl(&["unregister", &pid, &second]));
    assert!(said.contains("1 "), "{said}");
    let line = refuse(&mut place.dcpictl(&["unregister", &pid, "0x5"]));
    assert!(line.contains("no region"), "{line}");
    assert_closes(&daemon.status().samples);
}

/// The samples of a 32-bit program in its vdso were counted in that of 64-bit programs, and its
/// stacks had the innermost frame alone.
#[cfg(target_arch = "x86_64")]
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn the_vdso_of_32_bit_programs_is_another() {
    require_root();
    let place = Place::default();
    let flags = [
        "-m32",
        "-nostdlib",
        "-static",
        "-ffreestanding",
        "-no-pie",
        "-fno-pie",
        "-fno-stack-protector",
        "-fcf-protection=none",
    ];
    let workload = Workload::build(place.path(), "vdso32", &flags);
    let daemon = stacks::start(&place, "400");
    // Rules of the frames are learnt in the first half second, or later beside other tests.
    let cpu = workload.run(8).number("cpu_s");
    daemon.flush();
    let prof = everything(&place);
    let own = prof.seconds(prof.samples_of_image("vdso32"));
    assert_about("[vdso32]", prof.seconds(prof.samples_of_image("[vdso32]")) + own, cpu);
    assert!(own < 0.5 * cpu, "it is nearly always in the vdso: {own} s of {cpu} s are its own");
    let named = prof
        .of_image("[vdso32]")
        .any(|row| row.procedure.as_deref().is_some_and(|name| name.contains("clock_gettime")));
    assert!(named, "{prof:#?}");
    let all = stacks::folded(&place, "cpu-clock", "vdso32");
    let sum = |is_counted: &dyn Fn(&[String]) -> bool| -> f64 {
        all.iter().filter(|(frames, _)| is_counted(frames)).map(|(_, count)| count).sum()
    };
    let asked = sum(&|frames| frames.iter().any(|frame| frame == "ask"));
    let whole = sum(&|frames| stacks::has_chain(frames, &["vdso32", "_start", "run", "ask"]));
    assert!(asked > 0.9 * sum(&|_| true) && whole > 0.98 * asked, "{all:?}");
}

/// They want the whole machine: `tests/system/main.rs`.
mod alone {
    use super::*;

    /// Malicious files in /tmp under the name of a perf map: a FIFO without a writer, a link, a
    /// link to a device, another user's file, an endless file, garbage. The daemon hung at the
    /// FIFO, or gave one user's names to another's code. The valid map and jitdump of a compiler
    /// are read meanwhile.
    #[test]
    #[ignore = "needs root: run by cargo xtask test"]
    fn files_of_compilers_are_read_and_what_strangers_leave_in_tmp_fools_nobody() {
        require_root();
        let lie = format!("{CODE:x} 1000 a_lie\n");
        let garbage =
            [&[0xff, 0, b'\n', b' '][..], lie.as_bytes(), b"-1 -1 x\nffffffffffffffff 9 x\n"];
        type Trap<'a> = (&'a str, &'a dyn Fn(&Path), &'a [&'a str]);
        let refused: &[&str] = &["[unresolved: jit map refused]"];
        // It is refused once as much of it was read as may be.
        let nobodys = ["[unresolved: anonymous memory]", refused[0]];
        let traps: [Trap; 6] = [
            ("fifo", &|path| drop(succeed(Command::new("mkfifo").arg(path))), refused),
            ("link", &|path| std::os::unix::fs::symlink("/etc/passwd", path).unwrap(), refused),
            ("device", &|path| std::os::unix::fs::symlink("/dev/zero", path).unwrap(), refused),
            (
                "another",
                &|path| {
                    std::fs::write(path, &lie).unwrap();
                    std::os::unix::fs::chown(path, Some(65534), None).unwrap();
                },
                refused,
            ),
            (
                "endless",
                &|path| std::fs::File::create(path).unwrap().set_len(10 << 30).unwrap(),
                &nobodys,
            ),
            // Its owner's own file: the line between the garbage counts.
            ("garbage", &|path| std::fs::write(path, garbage.concat().repeat(9)).unwrap(), &[]),
        ];
        let place = Place::default();
        let workload = Workload::build(place.path(), "jit", &[]);
        let programs = traps.map(|(story, ..)| workload.copy(story));
        let daemon = start_by_time(&place);
        let running = traps.iter().zip(&programs).map(|((_, lay, _), program)| {
            let running = jit(program, &["1"]);
            let left = Left::map_of(running.pid());
            lay(left.path());
            (running, left)
        });
        let running: Vec<(Running, Left)> = running.collect();
        let truths: Vec<Truth> =
            running.into_iter().map(|(running, _left)| running.wait()).collect();
        // V8 writes the rest of its dump at its exit: samples were drained without a name before.
        let [map, dump, late] = [("map", "1"), ("dump", "1"), ("late", "4")].map(|(mode, s)| {
            let running = jit(&workload, &[s, mode, place.path().to_str().unwrap()]);
            let _left = Left::map_of(running.pid());
            (mode, running.wait())
        });
        daemon.flush();
        let prof = everything(&place);
        for (mode, truth) in [map, dump, late] {
            for (name, key) in [("made first", "first_s"), ("made_second", "second_s")] {
                let seconds = made(&prof, &truth, |row| row == name);
                assert_about(&format!("{mode}: {name}"), seconds, truth.number(key));
            }
        }
        for ((story, _, reasons), truth) in traps.iter().zip(&truths) {
            let expected = truth.number("first_s") + truth.number("second_s");
            if reasons.is_empty() {
                assert_about(story, made(&prof, truth, |row| row == "a_lie"), expected);
                continue;
            }
            let told = |row: &&Row| reasons.iter().any(|why| row.procedure.as_deref() == Some(why));
            let samples = prof.of_image(story).filter(told).map(Row::samples).sum();
            prof.of_image(story).for_each(|row| {
                eprintln!("{story}: {} samples of {:?}", row.samples(), row.procedure);
            });
            assert_about(story, prof.seconds(samples), expected);
            assert!(made(&prof, truth, |_| true) == 0.0, "{story}: {prof:#?}");
        }
        assert_closes(&daemon.status().samples);
    }

    /// A BPF program that was loaded a moment ago had no name until the symbols were read again, up
    /// to 10 s later.
    #[test]
    #[ignore = "needs root: run by cargo xtask test"]
    fn a_bpf_program_has_its_name_at_once() {
        require_root();
        let place = Place::default();
        let workload = Workload::build(place.path(), "bpf_runner", &[]);
        let daemon = start_by_time(&place);
        let ran = workload.run(3).number("ran_s");
        daemon.flush();
        let prof = everything(&place);
        let of_program = |row: &&Row| {
            row.image.starts_with("[bpf_prog_") && row.image.ends_with("_dcpi_test_hot]")
        };
        let samples = prof.rows.iter().filter(of_program).map(Row::samples).sum();
        assert_about("dcpi_test_hot", prof.seconds(samples), ran);
    }
}

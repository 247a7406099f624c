//! Code that is in no file, with the real daemon on the real kernel: made at run time, registered,
//! loaded by the kernel. As `privileged.rs`, these need root and run one at a time.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tests::daemon::{Place, assert_closes, start_by_time};
use tests::report::{Prof, Row, prof};
use tests::workload::{Running, Truth, Workload, script};
use tests::{refuse, require_root, succeed};

/// Where the workload `jit` puts its code.
const CODE: u64 = 0x2_0000_0000;

fn everything(place: &Place) -> Prof {
    prof(&place.db(), &["--idle"])
}

fn jit(workload: &Workload, arguments: &[&str]) -> Running {
    Running::start(Command::new(workload.program()).args(arguments))
}

/// A file in /tmp for the time of a test.
struct Left(PathBuf);

impl Left {
    fn map_of(pid: u32) -> Self {
        Self(PathBuf::from(format!("/tmp/perf-{pid}.map")))
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0); // not every workload leaves one
    }
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

/// Every way in which compilers tell of their code: in a map, in a map of code that lies in a
/// memory file, in a dump.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn code_made_at_run_time_has_its_names_and_its_time() {
    require_root();
    for mode in ["map", "memfd", "dump"] {
        let place = Place::default();
        let workload = Workload::build(place.path(), "jit", &[]);
        let daemon = start_by_time(&place);
        let running = jit(&workload, &["4", mode, place.path().to_str().unwrap()]);
        let _left = Left::map_of(running.pid());
        let truth = running.wait();
        daemon.flush();
        let prof = everything(&place);
        for (name, key) in [("made first", "first_s"), ("made_second", "second_s")] {
            assert_about(
                &format!("{mode}: {name}"),
                made(&prof, &truth, |row| row == name),
                truth.number(key),
            );
        }
        let unnamed: u64 = prof
            .unresolved
            .iter()
            .filter(|(why, _)| why.starts_with("jit") || *why == "anonymous_memory")
            .map(|(_, n)| n)
            .sum();
        assert!(prof.seconds(unnamed) < 0.05, "{mode}: {:?}", prof.unresolved);
        assert_closes(&daemon.status().samples);
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn what_node_compiles_has_its_names_and_its_time() {
    require_root();
    let place = Place::default();
    let daemon = start_by_time(&place);
    let mut node = Command::new("node");
    node.arg("--perf-basic-prof").arg(script("jit.js")).arg("5").current_dir(place.path());
    let running = Running::start(&mut node);
    let _left = Left::map_of(running.pid());
    let truth = running.wait();
    daemon.flush();
    let prof = everything(&place);
    let [first, second] =
        ["firstOfTwo", "secondOfTwo"].map(|name| made(&prof, &truth, |row| row.contains(name)));
    eprintln!("{:?}", prof.unresolved);
    assert_about("firstOfTwo", first, truth.number("first_s"));
    assert_about("secondOfTwo", second, truth.number("second_s"));
}

/// Without the option the compiler tells nobody, and the report says what to do.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_compiler_that_tells_nothing_is_named_with_what_to_do() {
    require_root();
    let place = Place::default();
    let daemon = start_by_time(&place);
    let truth = Running::start(Command::new("node").arg(script("jit.js")).arg("3")).wait();
    daemon.flush();
    let prof = everything(&place);
    let silent = prof.seconds(prof.unresolved.get("jit_without_map").copied().unwrap_or(0));
    assert_about("jit_without_map", silent, truth.number("first_s") + truth.number("second_s"));
    let text = succeed(&mut tests::report::dcpi(&place.db(), "prof", &[]));
    assert!(text.contains("--perf-basic-prof"), "{text}");
    let text = succeed(&mut place.dcpictl(&["status"]));
    assert!(text.contains("--perf-basic-prof"), "{text}");
}

/// Waits until the workload has its code where it puts it.
fn wait_for_code(pid: u32) {
    let begin = Instant::now();
    let maps = || std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    while !maps().contains(&format!("{CODE:x}-")) {
        assert!(begin.elapsed() < Duration::from_secs(20), "{}", maps());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_registered_region_has_its_name_from_then_on() {
    require_root();
    let place = Place::default();
    let workload = Workload::build(place.path(), "jit", &[]);
    let daemon = start_by_time(&place);
    let running = jit(&workload, &["5"]);
    wait_for_code(running.pid());
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
    let truth = running.wait();
    daemon.flush();
    let prof = everything(&place);
    // Up to the registration its samples are nobody's.
    let before = prof.seconds(prof.unresolved.get("anonymous_memory").copied().unwrap_or(0));
    let first = made(&prof, &truth, |row| row == "first of mine");
    let second = prof.seconds(prof.row("an image", "second_of_mine").samples());
    eprintln!("{before:.3} s before the registration");
    assert_about(
        "both and before",
        first + second + before,
        truth.number("first_s") + truth.number("second_s"),
    );
    assert!(
        (0.7..0.8).contains(&(first / (first + second))),
        "three quarters: {first} s of {first} and {second} s"
    );
    let line = refuse(&mut place.dcpictl(&["unregister", &pid, "0x5"]));
    assert!(line.contains("no region"), "{line}");
    assert_closes(&daemon.status().samples);
}

/// A copy of a program's code in memory of no file, as loaders make for huge pages: its samples are
/// the program's.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_region_that_is_a_copy_of_a_file_counts_as_the_file() {
    require_root();
    let place = Place::default();
    let workload = Workload::build(place.path(), "jit", &[]);
    let library =
        Workload::build_with_library(place.path()).program().with_file_name("liblibrary.so");
    let daemon = start_by_time(&place);
    let running = jit(&workload, &["3"]);
    wait_for_code(running.pid());
    let (pid, start) = (running.pid().to_string(), format!("{CODE:#x}"));
    let mut register = place.dcpictl(&["register", &pid, &start, "4096", "copied", "--file"]);
    let _ = succeed(register.arg(&library).args(["--offset", "0x100000"]));
    let _ = running.wait();
    daemon.flush();
    let prof = everything(&place);
    assert!(prof.seconds(prof.samples_of_image("liblibrary.so")) > 1.5, "{prof:#?}");
    assert_closes(&daemon.status().samples);
}

/// What strangers may leave in /tmp under the name of a map: a FIFO that nobody writes, a link, a
/// device's link, another user's file, a file without end, garbage. The daemon stood still at the
/// FIFO, or gave one user's names to another's code.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn what_strangers_leave_in_tmp_neither_stops_nor_fools_the_daemon() {
    require_root();
    let lie = format!("{CODE:x} 1000 a_lie\n");
    type Trap<'a> = (&'a str, &'a dyn Fn(&Path), &'a str);
    let traps: [Trap; 6] = [
        ("fifo", &|path| drop(succeed(Command::new("mkfifo").arg(path))), "jit_map_refused"),
        (
            "link",
            &|path| std::os::unix::fs::symlink("/etc/passwd", path).unwrap(),
            "jit_map_refused",
        ),
        (
            "device",
            &|path| std::os::unix::fs::symlink("/dev/zero", path).unwrap(),
            "jit_map_refused",
        ),
        (
            "another user's",
            &|path| {
                std::fs::write(path, &lie).unwrap();
                std::os::unix::fs::chown(path, Some(65534), None).unwrap();
            },
            "jit_map_refused",
        ),
        (
            "10 GB",
            &|path| std::fs::File::create(path).unwrap().set_len(10 << 30).unwrap(),
            "anonymous_memory",
        ),
        (
            "garbage",
            &|path| {
                std::fs::write(
                    path,
                    [
                        &[0xff, 0, b'\n', b' '][..],
                        lie.as_bytes(),
                        b"-1 -1 x\nffffffffffffffff 9 x\n",
                    ]
                    .concat()
                    .repeat(9),
                )
                .unwrap()
            },
            "",
        ),
    ];
    for (story, lay, reason) in traps {
        let place = Place::default();
        let workload = Workload::build(place.path(), "jit", &[]);
        let daemon = start_by_time(&place);
        let running = jit(&workload, &["3"]);
        let left = Left::map_of(running.pid());
        lay(&left.0);
        let truth = running.wait();
        daemon.flush();
        let prof = everything(&place);
        let expected = truth.number("first_s") + truth.number("second_s");
        if reason.is_empty() {
            // Its owner's own file: the line between the garbage counts.
            assert_about(story, made(&prof, &truth, |row| row == "a_lie"), expected);
        } else {
            let unresolved = prof.unresolved.get(reason).copied().unwrap_or(0);
            assert_about(story, prof.seconds(unresolved), expected);
            assert!(
                prof.rows.iter().all(|row| !row.image.starts_with("[jit]")),
                "{story}: {prof:#?}"
            );
        }
        assert_closes(&daemon.status().samples);
    }
}

/// A BPF program that was loaded a moment ago had no name until the symbols were read again, up to
/// 10 s later.
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
    let of_program =
        |row: &&Row| row.image.starts_with("[bpf_prog_") && row.image.ends_with("_dcpi_test_hot]");
    let samples = prof.rows.iter().filter(of_program).map(Row::samples).sum();
    assert_about("dcpi_test_hot", prof.seconds(samples), ran);
}

/// The samples of a 32-bit program in its vdso were counted in that of 64-bit programs.
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
    let daemon = start_by_time(&place);
    let cpu = workload.run(3).number("cpu_s");
    daemon.flush();
    let prof = everything(&place);
    let own = prof.seconds(prof.samples_of_image("vdso32"));
    assert_about("[vdso32]", prof.seconds(prof.samples_of_image("[vdso32]")) + own, cpu);
    assert!(own < 0.5 * cpu, "it is nearly always in the vdso: {own} s of {cpu} s are its own");
    let named = prof
        .of_image("[vdso32]")
        .any(|row| row.procedure.as_deref().is_some_and(|name| name.contains("clock_gettime")));
    assert!(named, "{prof:#?}");
}

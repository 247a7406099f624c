//! Attacks on the numbers of code that is counted once for all processes: an ordinary user who
//! obtains the number of others' code would have its samples attributed to his own file, or to
//! none.
//!
//! Each attack succeeded against a dcpid whose sampler computed numbers from inode, size and time
//! of change alone, and whose daemon trusted the last process that reported a number.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tests::daemon::{Place, assert_closes, start_by_time};
use tests::report::{Share, prof};
use tests::workload::{Running, Workload};
use tests::{Setting, require_root};

/// A user without rights and files.
const NOBODYS: u32 = 12345;

/// The attacked image, a library of the honest program `three_in_library`.
const LIBRARY: &str = "libc-rebuilt.so";

/// Seconds of CPU time that the honest program works for.
const SECONDS: u32 = 6;

/// Offset and size of a library's code in its file, in hexadecimal and in whole pages: the segment
/// with the flags `R E` in the output of `readelf -lW`.
fn code_of(library: &Path) -> [String; 2] {
    let text = tests::succeed(Command::new("readelf").arg("-lW").arg(library));
    let segment = text.lines().find(|line| line.contains("LOAD") && line.contains("R E")).unwrap();
    let number = |column: usize| {
        let word = segment.split_whitespace().nth(column).unwrap();
        u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap()
    };
    [number(1), number(4).next_multiple_of(4096)].map(|number| format!("{number:x}"))
}

/// The honest program and its library.
fn honest(place: &Place) -> (Workload, PathBuf) {
    let flags = ["-DSEED=1442695040888963411u", "-DPADDED", "-fno-toplevel-reorder"];
    let (_, [library, _]) = Workload::build_with_libraries(place.path(), [&flags, &flags]);
    let linked = library.to_str().unwrap().to_owned();
    let rpath = format!("-Wl,-rpath,{}", place.path().display());
    (Workload::build(place.path(), "three_in_library", &[&linked, &rpath]), library)
}

/// Runs the honest program beside `enemies`. The share of its library, among its library and
/// itself, is that by its own clock, and none of its samples is nobody's.
fn is_counted_beside(place: &Place, program: &Workload, enemies: Vec<Command>) {
    let daemon = start_by_time(place);
    let shares = |enemies: Vec<Command>| -> (Share, u64) {
        let running: Vec<Running> =
            enemies.into_iter().map(|mut enemy| Running::start(&mut enemy)).collect();
        std::thread::sleep(Duration::from_millis(500)); // the enemies have begun
        let truth = program.run(SECONDS);
        drop(running);
        daemon.flush();
        let report =
            prof(&place.db(), &["-i", LIBRARY, "three_in_library", "--confidence", "99.9"]);
        let row = report.of_image(LIBRARY).next().expect("samples of the library");
        let (share, samples) = (row.share(), row.samples());
        let expected = truth.number("library");
        let unresolved = prof(&place.db(), &["-i", "--idle"]).unresolved;
        eprintln!("{share:?}, {expected:.4} by its own clock, {samples} samples; {unresolved:?}");
        assert!(
            (share.low - 0.015..=share.high + 0.015).contains(&expected),
            "{share:?} of the samples, {expected:.4} by its own clock"
        );
        for reason in ["ambiguous_mapping", "no_mapping"] {
            let lost = unresolved.get(reason).copied().unwrap_or(0);
            assert!(lost * 50 < samples, "{lost} samples are {reason}, {samples} are counted");
        }
        (share, samples)
    };
    let (alone, samples_alone) = shares(Vec::new());
    let (beside, samples) = shares(enemies);
    assert!(
        alone.low - 0.015 <= beside.high && beside.low <= alone.high + 0.015,
        "{alone:?} alone, {beside:?} beside the enemy"
    );
    let beside = samples - samples_alone;
    assert!(beside as f64 > 0.9 * samples_alone as f64, "{samples_alone} alone, {beside} beside");
    assert_closes(&daemon.status().samples);
    assert!(daemon.terminate().success());
}

/// A thief as an ordinary user. It says nothing, so it must be ended.
fn thief(program: &Workload, arguments: &[&str]) -> Command {
    let mut command = Command::new(program.program());
    command.args(arguments).uid(NOBODYS).gid(NOBODYS);
    command
}

fn build_thief(place: &Place) -> Workload {
    Workload::build(place.path(), "number_thief", &["-static", "-no-pie"])
}

/// One page of the C library's code, mapped four times a second by a static program: everybody's
/// samples in that library were of ambiguous mappings, or of none.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_page_of_a_library_is_not_the_library() {
    require_root();
    let place = Place::default();
    let (program, library) = honest(&place);
    let thieves = build_thief(&place);
    let [offset, len] = code_of(&library);
    assert_eq!(len, "11000", "the page has nothing of the work in it");
    let library = library.to_str().unwrap();
    let enemy = || thief(&thieves, &["page", library, &offset, "1000", "100"]);
    is_counted_beside(&place, &program, vec![enemy(), enemy(), enemy()]);
}

/// A part cut off a mapping is told of and has no record: the next one was taken for its own, and
/// was a file of the enemy's choice under the library's number.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn the_record_of_another_mapping_is_not_the_librarys() {
    require_root();
    let place = Place::default();
    let (program, library) = honest(&place);
    let thieves = build_thief(&place);
    let [offset, len] = code_of(&library);
    let library = library.to_str().unwrap();
    let evil = thieves.copy("evil");
    let evil = evil.program().to_str().unwrap();
    let enemy = || thief(&thieves, &["forge", library, &offset, &len, "100", evil]);
    is_counted_beside(&place, &program, vec![enemy(), enemy()]);
    // The attacker's file is never executed, so it must have no samples.
    let report = prof(&place.db(), &["-i", "--idle"]);
    assert_eq!(report.samples_of_image("evil"), 0);
}

/// Counts down from a million and returns, as in `strange_maps.c`.
#[cfg(target_arch = "x86_64")]
const CODE: [u8; 11] = [0xb8, 0x40, 0x42, 0x0f, 0x00, 0x83, 0xe8, 0x01, 0x7f, 0xfb, 0xc3];
#[cfg(not(target_arch = "x86_64"))]
const CODE: [u32; 5] = [0x5288_4800, 0x72a0_01e0, 0x7100_0400, 0x54ff_ffec, 0xd65f_03c0];

/// Two processes whose numbers are 32,768 apart have one slot in the sampler, and wrote it at the
/// same time on two CPUs: each could find the other's library in it.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn processes_with_one_slot_keep_their_own_samples() {
    require_root();
    let place = Place::default();
    let thieves = build_thief(&place);
    let (_, [library, _]) = Workload::build_with_libraries(place.path(), [&[], &[]]);
    let code = place.path().join("code");
    let bytes: Vec<u8> = CODE.iter().flat_map(|word| word.to_le_bytes()).collect();
    std::fs::write(&code, bytes).unwrap();
    for path in [&code, &library] {
        std::fs::File::options().append(true).open(path).unwrap().set_len(1 << 20).unwrap();
    }
    let pid_max = Setting::set("/proc/sys/kernel/pid_max", "131072");
    let daemon = start_by_time(&place);
    let victim =
        Running::start(Command::new(thieves.program()).arg("victim").arg(&code).arg("3000"));
    let pid = victim.pid().to_string();
    let enemy = || {
        let library = library.to_str().unwrap();
        Running::start(&mut thief(&thieves, &["twin", library, &pid, "15"]))
    };
    let enemies = [enemy(), enemy()];
    let cpu_s = victim.wait().number("cpu_s");
    enemies.into_iter().for_each(|enemy| enemy.ended());
    drop(pid_max);
    daemon.flush();
    let report = prof(&place.db(), &["-i", "--idle"]);
    eprintln!("{cpu_s:.3} s; {:?}", report.unresolved);
    assert_eq!(report.samples_of_image(LIBRARY), 0, "nobody executes it: {report:#?}");
    let code = report.unresolved.get("not_elf").copied().unwrap_or(0);
    assert!(code > 500, "the victim is sampled: {:?}", report.unresolved);
    assert!(daemon.terminate().success());
}

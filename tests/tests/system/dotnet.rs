//! Methods of .NET in call stacks, from a real daemon to the database. Needs root, and the runtime
//! that `cargo xtask test` fetches.

use super::stacks::{folded, start};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tests::daemon::{Daemon, Place};
use tests::report::dcpi;
use tests::workload::{Running, Workload, script};
use tests::{require_root, succeed};

/// The kinds of calls of the workload: the method that is called for each.
const KINDS: [&str; 8] =
    ["Recursion", "Shapes", "Generic", "Caught", "Lambda", "Sort", "Thrice", "Once"];
/// Methods that may follow each other, from the caller on. Better code of a caller has small
/// methods, and the delegate that it calls, inlined.
const CALLS: [(&str, &[&str]); 17] = [
    (
        "Main",
        &[
            "Call",
            "CpuSeconds",
            "Recursion",
            "Shapes",
            "Generic",
            "Caught",
            "Lambda",
            "Sort",
            "Thrice",
            "Once",
        ],
    ),
    ("Call", &KINDS),
    ("Recursion", &["Recursion", "Leaf"]),
    ("Shapes", &["Square.Area", "Circle.Area"]),
    ("Square.Area", &["Leaf"]),
    ("Circle.Area", &["Leaf"]),
    ("Generic", &["Box`1.Put"]),
    ("Box`1.Put", &["Leaf"]),
    // A handler is called by the runtime, which its method has called.
    ("Caught", &["Caught", "Leaf"]),
    ("Lambda", &["closure", "Added", "Leaf"]),
    ("closure", &["Added", "Leaf"]),
    ("Added", &["Leaf"]),
    ("Sort", &["Compare"]),
    ("Compare", &["Leaf"]),
    ("Thrice", &["Leaf"]),
    ("Once", &["Leaf"]),
    ("CpuSeconds", &[]),
];
/// Part of the stacks with methods that may be cut: 0.2 to 1.3 % on a quiet machine, most of it
/// before the sampler knows the code, and more on a busy one.
const CUT_MAX: f64 = 0.05;

/// The method of a frame, without the class of the workload: `Work.Square.Area` is `Square.Area`.
fn of_workload(frame: &str) -> Option<&str> {
    let name = frame.strip_prefix("Work.")?;
    // Of a process that has ended since, only its code has names, with the assembly's behind.
    let name = name.strip_suffix(" Functions.exe").unwrap_or(name);
    if name.contains('<') {
        return Some("closure");
    }
    Some(name.strip_prefix("Functions.").unwrap_or(name))
}

/// The folder with the runtime, in `target/dotnet` or in `$DCPI_DOTNET`.
fn runtime() -> PathBuf {
    let folder = std::env::var_os("DCPI_DOTNET").map(PathBuf::from).unwrap_or_else(|| {
        let test = std::env::current_exe().expect("the path of this test");
        test.ancestors().nth(3).expect("a test lies in target/PROFILE/deps").join("dotnet")
    });
    let is_there = folder.join("libcoreclr.so").is_file();
    assert!(is_there, "{} has no .NET; run cargo xtask test, which fetches it", folder.display());
    folder
}

/// The program, for so many seconds.
fn program(place: &Place, seconds: &str) -> Command {
    let (host, assembly) =
        (Workload::build(place.path(), "dotnet_host", &["-ldl"]), "Functions.exe");
    let assembly = place.path().join(assembly);
    let mut compiler = Command::new("mcs");
    compiler.arg("-optimize+").arg("-r:System.dll").arg(format!("-out:{}", assembly.display()));
    let _ = succeed(compiler.arg(script("Functions.cs")));
    let mut program = Command::new(host.program());
    program.arg(runtime()).arg(assembly).arg(seconds);
    program
}

/// Checks each stack with methods, and the seconds of each kind against those of CPU time that the
/// program has measured. Programs of other tests are sampled, too; they do the same.
fn check(place: &Place, daemon: &Daemon<'_>, truth: &tests::workload::Truth) {
    daemon.flush();
    let mut times = [0.0; KINDS.len()];
    let (mut all, mut cut) = (0.0, 0.0);
    for (frames, time) in folded(place, "cpu-clock", "dotnet_host") {
        let frames: Vec<&str> = frames.iter().map(String::as_str).collect();
        let methods: Vec<&str> = frames.iter().filter_map(|frame| of_workload(frame)).collect();
        if methods.is_empty() {
            continue; // The runtime begins, and compiles.
        }
        all += time;
        let is_cut = frames.get(1).is_some_and(|first| first.starts_with('['));
        cut += if is_cut { time } else { 0.0 };
        for pair in methods.windows(2) {
            let known = CALLS.iter().find(|(name, _)| *name == pair[0]);
            let (_, may_follow) = known.unwrap_or_else(|| panic!("calls nobody: {frames:?}"));
            assert!(may_follow.contains(&pair[1]), "no such call: {frames:?}");
        }
        let is_main = |method: &&str| ["Main", "Call"].contains(method);
        assert!(is_cut || is_main(&methods[0]), "begins elsewhere: {frames:?}");
        let kind = methods.iter().find(|method| !is_main(method));
        if let Some(kind) = kind.and_then(|it| KINDS.iter().position(|kind| kind == it)) {
            times[kind] += time;
        }
    }
    assert!(cut <= CUT_MAX * all, "{cut} of {all} are cut");
    let (known, measured): (f64, f64) =
        (times.iter().sum(), KINDS.iter().map(|kind| truth.number(kind)).sum());
    assert!(known > 300.0 && known >= 0.9 * all, "{known} of {all} are of a kind");
    for (name, time) in KINDS.iter().zip(times) {
        let (share, known) = (truth.number(name) / measured, time / known);
        // Four standard deviations of as many stacks as were taken at least.
        let allowed = 4.0 * (share * (1.0 - share) / 300.0).sqrt();
        assert!((known - share).abs() < allowed, "{name}: {known}, but it is {share}");
    }
}

/// Methods stand between the native frames in the order in which they called each other, whoever
/// has compiled them, and divide the CPU time as the program itself measures it.
#[test]
#[ignore = "needs root"]
fn methods_of_dotnet_are_frames_in_their_order() {
    require_root();
    let place = Place::default();
    let mut program = program(&place, "8");
    let daemon = start(&place, "200");
    let truth = Running::start(&mut program).wait();
    check(&place, &daemon, &truth);
}

/// The same of a program that runs already, by a daemon without options; reports name methods with
/// their assemblies, and no method that the program does not have.
#[test]
#[ignore = "needs root"]
fn a_daemon_that_comes_later_names_methods_of_dotnet() {
    require_root();
    let place = Place::default();
    let running = Running::start(&mut program(&place, "20"));
    std::thread::sleep(Duration::from_secs(2));
    let daemon = place.start();
    let truth = running.wait();
    check(&place, &daemon, &truth);
    let arguments = ["--inclusive", "--all", "--format", "json"];
    let report = succeed(&mut dcpi(&place.db(), "prof", &arguments));
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    let of = |image: &str| -> BTreeSet<&str> {
        let rows = rows.iter().filter(|row| row["image"] == image);
        rows.filter_map(|row| row["procedure"].as_str()).collect()
    };
    let methods = of("Functions.exe");
    let is_known = |name: &&str| {
        let known = of_workload(name);
        known.is_some_and(|known| known == "Leaf" || CALLS.iter().any(|(name, _)| *name == known))
    };
    assert!(methods.iter().all(is_known), "{methods:?}");
    for name in ["Work.Functions.Leaf", "Work.Functions.Main", "Work.Box`1.Put"] {
        assert!(methods.contains(name), "{methods:?}");
    }
    let sorted = "System.Collections.Generic.ArraySortHelper`1.IntroSort";
    assert!(of("System.Private.CoreLib.dll").contains(sorted), "compiled ahead");
}

//! Walks of user stacks in the kernel, by rules that the daemon has learnt. Needs root.

use std::path::Path;
use std::process::Command;

use tests::daemon::{Daemon, Place};
use tests::workload::Workload;
use tests::{require_root, succeed};
use wire::{ProgramStacksStatus, StacksStatus};

use crate::stacks::{folded, has_chain};

fn stacks_status(daemon: &Daemon<'_>) -> StacksStatus {
    daemon.flush();
    daemon.status().stacks.expect("stacks are on")
}

fn of_program(stacks: &StacksStatus, name: &str) -> (u64, u64) {
    let found = stacks.programs.iter().find(|program| program.program == name);
    let ProgramStacksStatus { whole, cut, .. } = found.cloned().unwrap_or_default();
    (whole, cut.values().sum())
}

/// Of frames of 20 KiB a copy of 64 KiB holds three: all stacks were `[truncated]`.
#[test]
#[ignore = "needs root"]
fn stacks_of_any_size_are_walked_in_the_kernel() {
    require_root();
    let place = Place::default();
    let program = Workload::build(place.path(), "deep", &["-O2"]);
    let mut dcpid = place.dcpid();
    dcpid.args(["--stacks", "400", "--overhead-budget", "off"]);
    let daemon = place.start_as(dcpid);
    let run = |seconds: &str| {
        let _ = succeed(Command::new(program.program()).arg(seconds));
    };
    run("3");
    let before = stacks_status(&daemon);
    run("4");
    let after = stacks_status(&daemon);
    let ((whole, cut), (whole_before, cut_before)) =
        (of_program(&after, "deep"), of_program(&before, "deep"));
    let (whole, cut) = (whole - whole_before, cut - cut_before);
    assert!(whole > 300 && cut * 50 <= whole, "{whole} whole, {cut} cut: {after:?}");
    let by_sampler = after.by_sampler - before.by_sampler;
    assert!(by_sampler * 10 >= whole * 9, "{by_sampler} of {whole}: {after:?}");
    let all = folded(&place, "cpu-clock", "deep");
    let large: Vec<&str> = std::iter::repeat_n("large", 7).collect();
    let chain = ["main", &large.join(" "), "huge", "aligned", "small"].join(" ");
    let chain: Vec<&str> = chain.split(' ').collect();
    let small = |frames: &[String]| frames.iter().filter(|frame| *frame == "small").count();
    let has_all = |frames: &[String]| has_chain(frames, &chain[..9]) && small(frames) == 601;
    let with_all: f64 =
        all.iter().filter(|(frames, _)| has_all(frames)).map(|(_, count)| count).sum();
    let total: f64 = all.iter().map(|(_, count)| count).sum();
    assert!(with_all >= 0.2 * total, "{with_all} of {total}: {:?}", all.first());
}

/// Each stack is walked both in the kernel and by the unwind tables.
#[test]
#[ignore = "needs root"]
fn walks_in_the_kernel_find_the_frames_that_the_tables_tell() {
    require_root();
    let place = Place::default();
    let called = ["-O2", "-fomit-frame-pointer", "-pthread"];
    let programs = [
        Workload::build(place.path(), "called", &called),
        Workload::build(place.path(), "deep", &["-O1"]),
    ];
    let mut dcpid = place.dcpid();
    dcpid.args(["--stacks", "400", "--overhead-budget", "off", "--log", "debug"]);
    dcpid.env("DCPID_COMPARE_WALKS", "1");
    let daemon = place.start_as(dcpid);
    for program in &programs {
        let _ = succeed(Command::new(program.program()).arg("3"));
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads/called.c");
    for _ in 0..20 {
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-c", "-o"]).arg(place.path().join("out.o")).arg(&source);
        let _ = succeed(&mut gcc);
    }
    let script = "my %n; for my $i (1..3e6) { $n{$i % 1000} += sqrt($i) } print scalar keys %n";
    let _ = succeed(Command::new("perl").args(["-e", script]));
    let stacks = stacks_status(&daemon);
    assert!(stacks.by_sampler > 500, "{stacks:?}");
    assert_eq!(stacks.differing, 0, "{stacks:?}");
}

//! Programs of one known cause each, from samples of real time to `dcpi why`. Needs root.

use serde_json::Value;
use std::process::Command;
use tests::daemon::Place;
use tests::report::dcpi;
use tests::workload::Workload;
use tests::{require_root, succeed};

/// Programs of `caused.c` whose cause takes the time on every processor: 4 KiB aliasing, denormal
/// numbers and traps cost nothing on some.
const CAUSED: [&str; 20] = [
    "chase_first",
    "chase_second",
    "chase_third",
    "chase_memory",
    "chase_pages",
    "gather",
    "stream_in",
    "scatter",
    "forward",
    "contend",
    "lock_alone",
    "branch",
    "divide",
    "chain_of_products",
    "multiply",
    "fence",
    "fault",
    "call_kernel",
    "copy_in",
    "allocate",
];

/// The class of a mechanism of [`CAUSED`].
fn class(mechanism: &str) -> &'static str {
    match mechanism {
        "branch_mispredict" => "speculation",
        "divider"
        | "dependency_chain"
        | "throughput"
        | "locked_instruction"
        | "serialising_instruction" => "core",
        "page_fault" | "system_call" | "kernel_copy" => "kernel",
        "allocator" => "runtime",
        _ => "memory",
    }
}

/// What takes the time is named first, and nothing that is not so is said to be certain.
#[test]
#[ignore = "needs root"]
fn the_cause_is_named_first() {
    require_root();
    let build = Place::default();
    let workload = Workload::build(build.path(), "caused", &["-lm", "-pthread"]);
    let program = workload.program();
    let machine = build.path().join("machine");
    let _ = succeed(Command::new(tests::binary("dcpi")).args(["machine", "-o"]).arg(&machine));
    let truth = succeed(&mut Command::new(program));
    let truth: Vec<(&str, &str)> =
        truth.lines().map(|line| line.split_once(' ').unwrap()).collect();
    let (mut right, mut told) = (0, String::new());
    for name in CAUSED {
        let (_, mechanism) = truth.iter().find(|(known, _)| *known == name).unwrap();
        // The database keeps evidence by image, not by label, and all programs are one image: each
        // has a database of its own.
        let place = Place::default();
        let mut command = place.dcpid();
        command.args(["--event", "cpu-clock@2000", "--edges", "500", "--machine"]).arg(&machine);
        let daemon = place.start_as(command);
        // Large memory takes a while to fill.
        let is_large = ["chase_memory", "gather", "stream_in", "scatter"].contains(&name);
        let seconds = if is_large { "5" } else { "2" };
        let _ = succeed(place.dcpilabel(name).arg(program).args([name, seconds]));
        daemon.flush();
        let label = format!("--label={name}");
        let words = ["--format", "json", &label];
        let report: Value =
            serde_json::from_str(&succeed(&mut dcpi(&place.db(), "why", &words))).unwrap();
        let first = &report["findings"][0];
        let is_right = first["mechanism"] == *mechanism;
        right += usize::from(is_right);
        told +=
            &format!("{name}: {mechanism}, told {} {}\n", first["mechanism"], first["certainty"]);
        // Which level of memory a working set comes from differs between machines.
        let is_class = class(mechanism) == first["class"];
        assert!(is_class || first["certainty"] != "certain", "{name}: {report:#}");
        for share in ["share", "gain"].map(|name| &first[name]) {
            let of = |name: &str| share[name].as_f64().unwrap();
            assert!(0.0 <= of("low") && of("low") <= of("value") && of("value") <= of("high"));
            assert!(of("high") <= 1.0, "{name}: {first:#}");
        }
    }
    assert!(right >= CAUSED.len() * 7 / 10, "{right}\n{told}");
}

/// Programs of `caused.c` that models of caches, TLB and predictor decide, with words of the
/// evidence.
const MODELLED: [(&str, &str, &str); 4] = [
    ("chase_second", "memory", "loads from the second level a round in the model"),
    ("chase_pages", "memory", "page walks of loads a round in the model"),
    ("branch", "speculation", "mispredicted branches a round in the model"),
    ("dispatch", "speculation", "mispredicted indirect branches a round in the model"),
];

/// Bursts of a command go through the models, whose numbers are the evidence.
#[test]
#[ignore = "needs root"]
fn models_of_the_processor_decide_for_a_command() {
    require_root();
    let build = Place::default();
    let workload = Workload::build(build.path(), "caused", &["-lm", "-pthread"]);
    let (mut right, mut told) = (0, String::new());
    for (name, class, words) in MODELLED {
        let mut why = Command::new(tests::binary("dcpi"));
        why.args(["why", "--format", "json", "--"]).arg(workload.program()).args([name, "1"]);
        let output = why.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {said}");
        let report: Value = serde_json::from_str(&said[said.find('{').unwrap()..]).unwrap();
        let first = &report["findings"][0];
        let evidence = first["evidence"].to_string();
        right += usize::from(first["class"] == class && evidence.contains(words));
        told += &format!("{name}: {first:#}\n");
        assert!(first["class"] == class || first["certainty"] != "certain", "{name}: {first:#}");
    }
    assert!(right >= MODELLED.len() - 1, "{told}");
}

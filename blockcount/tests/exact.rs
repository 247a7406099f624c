//! Programs whose executions are known at every instruction.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod harness;

use harness::Case;

#[test]
fn a_loop_is_counted_at_every_instruction() {
    for link in ["-static", "-no-pie", "-pie"] {
        let case = Case::compile("loop.c", &[link]);
        case.run(&[]);
        if link == "-pie" {
            case.check_marks(1);
        }
        case.check_flow(1);
    }
}

#[test]
fn signals_at_any_instruction_change_no_count() {
    let case = Case::compile("loop.c", &["-pie"]);
    let output = case.run(&["signals"]);
    let times: u64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    assert!(times > 10, "only {times} signals came");
    case.check_marks(1);
    let handled = case.symbols()["handled"];
    assert_eq!(case.executions()[&handled], times);
    case.check_flow(1);
}

#[test]
fn threads_lose_no_count() {
    let case = Case::compile("threads.c", &["-pie"]);
    case.run(&[]);
    case.check_marks(8);
    case.check_flow(1);
}

#[test]
fn threads_that_get_signals_lose_no_count() {
    let case = Case::compile("threads.c", &["-pie"]);
    case.run(&["signals"]);
    case.check_marks(8);
    case.check_flow(1);
}

#[test]
fn each_process_of_a_tree_counts_for_itself() {
    let case = Case::compile("tree.c", &["-pie"]);
    case.run(&[]);
    assert_eq!(case.counted().len(), 100);
    case.check_marks(100);
    case.check_flow(1);
}

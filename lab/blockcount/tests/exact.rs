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

#[test]
fn execs_are_followed_and_their_errors_answered() {
    let case = Case::compile("exec.c", &[]);
    case.run(&[]);
    case.check_marks(4);
    case.check_flow(1);
}

#[test]
fn jumps_out_of_handlers_change_no_count() {
    let case = Case::compile("jumps.c", &[]);
    case.run(&[]);
    case.check_marks(1);
    case.check_flow(1);
}

/// Bursts execute code of their own, in which each block counts, and take branches in the engine.
#[test]
fn bursts_change_no_count_and_record_what_is_executed() {
    for (source, times) in [("loop.c", 1), ("threads.c", 8)] {
        for arguments in [&[][..], &["signals"]] {
            let case = Case::compile(source, &["-pie"]);
            let command = case.command(arguments);
            let mut words: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
            words.insert(2, "--bursts".into());
            let mut again = std::process::Command::new(harness::engine());
            let status = again.args(words).current_dir(case.folder.path()).output().unwrap().status;
            assert!(status.success());
            case.check_marks(times);
            case.check_flow(1);
        }
    }
}

/// A signal may come between a jump and its count.
#[test]
fn indirect_jumps_are_counted_by_target() {
    let case = Case::compile("switch.c", &["-pie"]);
    for signals in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = std::process::Command::new(harness::engine());
        command.arg("--area").arg(folder.path()).arg("--jumps").arg("--").arg(&case.program);
        assert!(command.args(signals.then_some("signals")).status().unwrap().success());
        let area = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        let counted = blockcount::area::reader::Counted::open(&area).unwrap();
        harness::check_flow(&counted, 1);
        let files = counted.files();
        let own = files.iter().position(|file| file.path.ends_with(b"program")).unwrap();
        // A jump that a signal interrupts is translated once more.
        let mut cases = std::collections::BTreeMap::new();
        for jump in counted.jumps().iter().filter(|jump| jump.from.file == own) {
            *cases.entry((jump.from, jump.to)).or_insert(0) += jump.count;
        }
        assert_eq!(cases.values().filter(|count| **count == 5000).count(), 100, "{cases:?}");
    }
}

#[test]
fn exceptions_are_thrown_and_counted() {
    let case = Case::compile("exceptions.cc", &[]);
    case.run(&[]);
    case.check_marks(1);
    case.check_flow(1);
}

#[test]
fn generated_code_is_seen_when_it_changes() {
    let case = Case::compile("generated.c", &[]);
    let output = case.run(&[]);
    let text = String::from_utf8(output.stdout).unwrap();
    let mut addresses = text.split_whitespace();
    let mut address = || u64::from_str_radix(addresses.next().unwrap(), 16).unwrap();
    let (both, own) = (address(), address());
    let counted = case.counted();
    let files: Vec<_> = counted.iter().flat_map(|counted| counted.files()).collect();
    let executions = |at: u64| {
        files
            .iter()
            .filter(|file| file.inode == 0)
            .filter_map(|file| file.instructions.get(&at))
            .map(|(_, count)| count)
            .sum::<u64>()
    };
    // Old and new code are both counted: 100 versions, 3 times each.
    assert_eq!((executions(both), executions(both + 5)), (300, 300));
    assert_eq!((executions(own), executions(own + 6), executions(own + 11)), (50, 50, 50));
    case.check_flow(1);
}

#[test]
fn code_that_changes_without_a_write_to_its_pages_is_seen() {
    let case = Case::compile("rewritten.c", &[]);
    let output = case.run(&[]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "rewritten\n");
    // Two files, each called before the file is opened for writing and 20 times after.
    assert_eq!(case.executions()[&case.symbols()["own"]], 2 * 21);
    case.check_flow(1);
}

#[test]
fn libraries_come_and_go() {
    let case = Case::compile("libraries.c", &["-ldl"]);
    case.run(&[]);
    case.check_flow(1);
}

#[test]
fn signals_mean_what_they_mean_without_the_engine() {
    let case = Case::compile("signals.c", &[]);
    let output = case.run(&[]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    case.check_flow(1);
}

#[test]
fn what_was_counted_until_the_end_is_there() {
    use std::io::Read as _;
    use std::os::unix::process::ExitStatusExt as _;
    for (how, signal) in [
        ("thread", None),
        ("main first", None),
        ("signal", Some(15)),
        ("fault", Some(11)),
        ("abort", Some(6)),
        ("kill", Some(9)),
    ] {
        let case = Case::compile("ends.c", &[]);
        let mut child = case.command(&[how]).stdout(std::process::Stdio::piped()).spawn().unwrap();
        if how == "kill" {
            let mut done = [0; 5];
            child.stdout.take().unwrap().read_exact(&mut done).unwrap();
            child.kill().unwrap();
        }
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), signal, "{how}: {status}");
        assert!(signal.is_some() || status.success(), "{how}: {status}");
        case.check_marks(1);
        case.check_flow(3);
    }
}

#[test]
fn the_kernels_own_code_is_counted_and_sandboxes_hold() {
    let case = Case::compile("clock.c", &[]);
    let output = case.run(&[]);
    assert_eq!(output.stdout, b"confined\n");
    let counted = case.counted();
    let files: Vec<_> = counted.iter().flat_map(|counted| counted.files()).collect();
    let kernels = files.iter().find(|file| file.path == b"[vdso]").unwrap();
    let most = kernels.instructions.values().map(|(_, count)| *count).max();
    assert!(most >= Some(10_001), "{most:?}");
    case.check_flow(0);
}

/// Java's compiler threads write into pages that other threads execute: a jump that was written in
/// two stores led one of them anywhere, and of two threads that wrote one page at once, one was
/// told of a fault.
#[test]
fn threads_write_and_execute_one_page_at_once() {
    let case = Case::compile("patched.c", &[]);
    let output = case.run(&[]);
    let text = String::from_utf8(output.stdout).unwrap();
    let (address, times) = text.trim().split_once(' ').unwrap();
    let address = u64::from_str_radix(address, 16).unwrap();
    let counted = case.counted();
    let files: Vec<_> = counted.iter().flat_map(|counted| counted.files()).collect();
    let own = files.iter().find(|file| file.inode == 0 && file.path.is_empty()).unwrap();
    let times: u64 = times.parse().unwrap();
    for offset in [0, 5] {
        assert_eq!(own.instructions[&(address + offset)].1, times);
    }
    case.check_flow(0);
}

#[test]
fn traps_and_wild_jumps_are_seen_as_without_the_engine() {
    let case = Case::compile("traps.c", &[]);
    case.run(&[]);
    // Each is tried once and then jumped over.
    let (symbols, executions) = (case.symbols(), case.executions());
    for (name, times) in [("breakpoint", 3), ("undefined", 0), ("halt", 0)] {
        let at = symbols[name];
        assert_eq!(executions.get(&at).copied().unwrap_or(0), times, "{name}");
    }
    case.check_flow(0);
}

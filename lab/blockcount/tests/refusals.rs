//! Instructions that the engine does not count are named, and never miscounted.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests panic to fail")]

mod harness;

use harness::{Case, engine};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

#[test]
fn instructions_that_are_not_executed_are_named() {
    for (which, name) in [
        ("int", "system calls of 32 bits"),
        ("gs", "memory by %gs"),
        ("arch_prctl", "its own %gs"),
        ("far", "a far return"),
    ] {
        let case = Case::compile("refused.c", &[]);
        let output = case.command(&[which]).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{which}");
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.starts_with("dcpi-blockcount: refused: "), "{errors}");
        assert!(errors.contains(name) && errors.lines().count() == 1, "{errors}");
        let [counted] = &case.counted()[..] else { unreachable!("one process") };
        assert!(counted.notes[0].contains(name), "{:?}", counted.notes);
        // The counts up to then are available.
        let main = case.symbols()["main"];
        assert_eq!(case.executions()[&main], 1);
    }
}

#[test]
fn programs_that_cannot_be_counted_are_named() {
    let case = Case::compile("refused.c", &[]);
    let run = |path: &str| {
        let mut command = Command::new(engine());
        command.arg("--area").arg(case.areas()).args(["--", path]);
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    std::fs::write(
        case.folder.path().join("old"),
        b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x03\0",
    )
    .unwrap();
    let old = case.folder.path().join("old");
    std::fs::set_permissions(&old, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (code, errors) = run(old.to_str().unwrap());
    assert_eq!(code, Some(125));
    assert!(errors.contains("refused: a program of 32 bits"), "{errors}");
    let stack = Case::compile("refused.c", &["-z", "execstack"]);
    let (code, errors) = run(stack.program.to_str().unwrap());
    assert_eq!(code, Some(125));
    assert!(errors.contains("a program with an executable stack"), "{errors}");
    let (code, errors) = run("/no/such/program");
    assert_eq!(code, Some(125));
    assert!(errors.contains("/no/such/program: cannot be executed"), "{errors}");
    let output = Command::new(engine()).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(String::from_utf8(output.stderr).unwrap().contains("usage: "));
}

#[test]
fn children_without_a_file_of_counts_are_named() {
    let case = Case::of("/bin/sh");
    let areas = case.areas();
    let gone = areas.with_extension("gone");
    // A folder that goes away while the program runs.
    let script =
        format!("mv {} {}; (exit 3); echo $?; /bin/echo ran", areas.display(), gone.display());
    let output = case.run(&["-c", &script]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "3\nran\n");
    std::fs::rename(&gone, &areas).unwrap();
    let counted = case.counted();
    let notes: Vec<&String> = counted.iter().flat_map(|counted| &counted.notes).collect();
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[0].starts_with("not counted: child process "), "{notes:?}");
    assert!(notes[0].ends_with("error 2"), "{notes:?}");
    // The shell executes its last command without a child.
    assert_eq!(notes[1], "not counted: the folder of counts is out of reach: /bin/echo");
}

/// A program that limits the size of its files ended by SIGXFSZ at its next fork or exec.
#[test]
fn programs_beneath_a_limit_of_file_sizes_run_uncounted() {
    let case = Case::of("/bin/sh");
    let output = case.run(&["-c", "ulimit -f 1; (exit 3); echo $?; exec /bin/echo ran"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "3\nran\n");
    let counted = case.counted();
    let notes: Vec<&String> = counted.iter().flat_map(|counted| &counted.notes).collect();
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[0].starts_with("not counted: child process "), "{notes:?}");
    assert!(notes[0].ends_with("error 27"), "{notes:?}");
    let why = "not counted: the limit of file sizes leaves no room for counts: /bin/echo";
    assert!(notes[1].starts_with(why), "{notes:?}");
}

#[test]
fn set_user_id_programs_run_uncounted() {
    let case = Case::of("/bin/sh");
    let copy = case.folder.path().join("copy");
    std::fs::copy("/usr/bin/true", &copy).unwrap();
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o4755)).unwrap();
    case.run(&["-c", "./copy && echo done"]);
    let counted = case.counted();
    let notes: Vec<&String> = counted.iter().flat_map(|counted| &counted.notes).collect();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].starts_with("not counted: a set-user-ID program: "), "{notes:?}");
    assert!(notes[0].contains("/copy") || notes[0].contains("./copy"), "{notes:?}");
}

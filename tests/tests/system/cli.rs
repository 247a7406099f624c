//! The command lines, as scripts rely on them. Needs no privilege.

use std::process::{Command, Stdio};
use tests::daemon::Place;
use tests::report::dcpi;
use tests::{binary, refuse, succeed};

const PROGRAMS: [&str; 4] = ["dcpid", "dcpictl", "dcpilabel", "dcpi"];

#[test]
fn help_and_version_are_output_and_no_error() {
    for program in PROGRAMS {
        let help = succeed(Command::new(binary(program)).arg("--help"));
        assert!(help.contains("Usage:") && help.contains(program), "{help}");
        let version = succeed(Command::new(binary(program)).arg("--version"));
        assert_eq!(version, format!("{program} {}\n", env!("CARGO_PKG_VERSION")));
    }
    for subcommand in ["prof", "epochs", "export"] {
        let help = succeed(Command::new(binary("dcpi")).args([subcommand, "--help"]));
        assert!(help.contains("--db"), "{help}");
    }
}

#[test]
fn unknown_flags_exit_with_2() {
    for (program, arguments) in [
        ("dcpid", &["--no-such-flag"][..]),
        ("dcpictl", &["status", "--no-such-flag"]),
        ("dcpilabel", &["--no-such-flag", "label", "true"]),
        ("dcpi", &["prof", "--no-such-flag"]),
    ] {
        let line = refuse(Command::new(binary(program)).args(arguments));
        assert!(line.contains("--no-such-flag") && line.contains("help"), "{line}");
    }
}

#[test]
fn dcpictl_without_a_daemon_says_so() {
    let place = Place::default();
    for command in ["status", "flush", "epoch", "quit"] {
        let line = refuse(&mut place.dcpictl(&[command]));
        assert!(
            line.contains(place.control().to_str().unwrap()) && line.contains("start it"),
            "{line}"
        );
    }
}

#[test]
fn dcpilabel_without_a_daemon_runs_nothing() {
    let place = Place::default();
    let witness = place.path().join("witness");
    let line = refuse(place.dcpilabel("run").arg("touch").arg(&witness));
    assert!(
        line.contains(place.control().to_str().unwrap()) && line.contains("start it"),
        "{line}"
    );
    assert!(!witness.exists());
    let line = refuse(&mut place.dcpilabel("run"));
    assert!(line.contains("<COMMAND>"), "{line}");
}

#[test]
fn dcpi_without_a_database_says_so() {
    let place = Place::default();
    for subcommand in ["prof", "epochs"] {
        let line = refuse(&mut dcpi(&place.db(), subcommand, &[]));
        assert!(line.contains(place.db().to_str().unwrap()) && line.contains("--db"), "{line}");
    }
    // A directory, but of something else.
    let line = refuse(&mut dcpi(place.path(), "prof", &["--format", "json"]));
    assert!(line.contains(place.path().to_str().unwrap()), "{line}");
}

/// `dcpi ... | head` is no failure of ours.
#[test]
fn output_that_nobody_reads_is_no_error() {
    for program in PROGRAMS {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(binary(program));
        let child = command
            .arg("--help")
            .stdin(Stdio::null())
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(command); // it holds the pipe, too
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{program}: {error}");
        assert!(error.is_empty(), "{program}: {error}");
    }
}

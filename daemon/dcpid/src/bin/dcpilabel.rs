//! Runs a command under a label. It asks dcpid to label this very process and becomes the command
//! once that is done, so that process number, terminal, standard input, signals and exit code are
//! the command's own, and no instruction of it runs without the label. Exit codes: the command's; 2
//! not labelled; 126 the command cannot be run, 127 there is none (as env(1) has it).
#![allow(clippy::print_stderr, reason = "a main program prints")]

use settings::args::{DcpilabelArgs, parse};
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use wire::{Client, Request};

fn main() -> ExitCode {
    let args: DcpilabelArgs = parse("dcpilabel");
    let program = args.command.first().map_or(OsStr::new(""), |program| program);
    if let Err(error) = label(&args) {
        eprintln!("dcpilabel: {}", dcpid::daemon::one_line(&error));
        return ExitCode::from(2);
    }
    // Signals that the caller blocks are unblocked, and SIGPIPE is as at login: std does that.
    let error = Command::new(program).args(args.command.iter().skip(1)).exec();
    eprintln!("dcpilabel: running {}: {error}; see where it is: command -v", program.display());
    ExitCode::from(if error.kind() == ErrorKind::NotFound { 127 } else { 126 })
}

fn label(args: &DcpilabelArgs) -> anyhow::Result<()> {
    let itself = Request::Label { pid: None, start_time: None, label: args.label.clone() };
    Ok(Client::new(&args.control).ask(&itself).map(drop)?)
}

//! The daemon. Exit codes: 0 told to end and everything is on disk; 1 told to end and the last
//! samples are lost; 2 could not start; 75 (EX_TEMPFAIL of sysexits.h) could not start for a reason
//! that may pass, such as a full disk.
#![allow(clippy::print_stderr, reason = "a main program prints")]

use dcpid::log::Limited;
use pipeline::main_loop::LastSamplesLost;
use settings::args::{DcpidArgs, parse};
use std::io::IsTerminal as _;
use std::process::ExitCode;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

fn main() -> ExitCode {
    let args: DcpidArgs = parse("dcpid");
    // journald stamps its own time.
    let under_journald = std::env::var_os("JOURNAL_STREAM").is_some();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    let log = tracing_subscriber::registry()
        .with(LevelFilter::from_level(args.log))
        .with(Limited::default());
    if under_journald {
        log.with(lines.without_time()).init()
    } else {
        log.with(lines).init()
    }
    match dcpid::daemon::run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dcpid: {}", dcpid::daemon::one_line(&error));
            // The service manager starts the daemon again unless the code is 2.
            ExitCode::from(match () {
                () if error.is::<LastSamplesLost>() => 1,
                () if dcpid::daemon::may_pass(&error) => 75,
                () => 2,
            })
        }
    }
}

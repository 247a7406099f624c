//! `dcpi`: reads profiles and says where the time went. Exit codes: 0 done; 1 done, with problems
//! shown; 2 could not. A reader of our output that goes away is no failure.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use analysis::args::{self, Invocation};
use analysis::commands::{self, Outcome};
use analysis::{AnalysisError, report};

fn main() -> ExitCode {
    match run(std::env::args_os()) {
        Ok(outcome) => {
            outcome.aside.iter().for_each(|line| say(line));
            ExitCode::from(outcome.code.unwrap_or(u8::from(!outcome.sound)))
        }
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            say(&error.to_string());
            ExitCode::from(2)
        }
    }
}

fn run(arguments: impl IntoIterator<Item = OsString>) -> Result<Outcome, AnalysisError> {
    let mut out = BufWriter::new(io::stdout().lock());
    let outcome = match args::parse(arguments)? {
        Invocation::Run(command) => commands::run(&command, &mut out)?,
        Invocation::Show(text) => {
            out.write_all(text.as_bytes())?;
            Outcome::default()
        }
    };
    out.flush()?;
    Ok(outcome)
}

/// One line on standard error. If it cannot be written, the exit code is all that is left to say.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "dcpi: {}", report::escape(line));
}

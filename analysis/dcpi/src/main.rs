//! `dcpi`: reads profiles and says where the time went. Exit codes: 0 done; 1 done, with problems
//! shown; 2 could not. A reader of our output that goes away is no failure.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use dcpi::command_line::{self, Command, Invocation};
use dcpi::terminal::Paged;
use dcpi::{Outcome, completions, suggestion};
use query::{AnalysisError, progress};

fn main() -> ExitCode {
    completions::answer();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let db = suggestion::typed_db(&arguments);
    let say = |line: &str| match &db {
        Some(db) => say(&suggestion::with_db(line, db)),
        None => say(line),
    };
    match run(arguments) {
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
    let invocation = command_line::parse(arguments)?;
    // These write on the terminal themselves, for as long as they run.
    if !matches!(
        &invocation,
        Invocation::Run(command)
            if matches!(
                **command,
                Command::Record(_)
                    | Command::Top(_)
                    | Command::Ideal(_)
                    | Command::Mcp(_)
                    | Command::Serve(_)
            )
    ) {
        progress::begin();
    }
    if matches!(
        &invocation,
        Invocation::Run(command)
            if matches!(**command, Command::Prof(_) | Command::List(_))
    ) {
        let mut out = BufWriter::new(Paged::default());
        let outcome = write(invocation, &mut out);
        // Also when the reader went away: the terminal is the pager's until it ends.
        out.into_parts().0.finish()?;
        return outcome;
    }
    // Not locked: `dcpi mcp` writes from another thread.
    write(invocation, &mut BufWriter::new(io::stdout()))
}

fn write(invocation: Invocation, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let outcome = match invocation {
        Invocation::Run(command) => command.run(out)?,
        Invocation::Show(text) => {
            out.write_all(text.as_bytes())?;
            Outcome::default()
        }
        Invocation::Nothing(text) => {
            // If it cannot be written, the exit code is all that is left to say.
            let _ = writeln!(io::stderr(), "{text}");
            Outcome { code: Some(2), ..Outcome::default() }
        }
    };
    out.flush()?;
    Ok(outcome)
}

/// One line on standard error. If it cannot be written, the exit code is all that is left to say.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "dcpi: {}", report::escape(line));
}

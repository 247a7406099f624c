//! Output features for terminals, not for files and pipes: the terminal's width, colour, and a
//! pager for output longer than the screen.

use std::io::{self, IsTerminal as _, Write};
use std::process::{Child, Command, Stdio};

use report::Style;

/// Shows what fits the screen at once, keeps colours, and leaves the text there when it ends;
/// unless the user has chosen other options.
const LESS_OPTIONS: &str = "FRX";

/// Characters in a line of a file or pipe, which have no width: fits every terminal and mail.
const COLUMNS: usize = 80;
/// Lines are not made for narrower terminals: numbers alone take so much.
const MIN_COLUMNS: usize = 40;

/// How texts on the standard output look.
pub fn style(full_names: bool, verbose: bool) -> Style {
    let asked = std::env::var("COLUMNS").ok();
    let size =
        || rustix::termios::tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col));
    Style {
        columns: columns(asked.as_deref(), size),
        full_names,
        wrap: io::stdout().is_terminal() || !verbose,
        colour: has_colour(),
        verbose,
    }
}

/// Characters in a line: what `$COLUMNS` says, else what the terminal has, else [`COLUMNS`].
fn columns(asked: Option<&str>, terminal: impl FnOnce() -> Option<usize>) -> usize {
    let asked = asked.and_then(|asked| asked.parse().ok()).filter(|columns| *columns > 0);
    let columns = asked.or_else(|| terminal().filter(|columns| *columns > 0));
    columns.unwrap_or(COLUMNS).max(MIN_COLUMNS)
}

/// Whether to colour the standard output: a terminal, and the user has not said no (no-color.org).
fn has_colour() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    io::stdout().is_terminal() && !refused && !dumb
}

/// The standard output; on a terminal through a pager, which starts when there is something to
/// show.
#[derive(Debug, Default)]
pub struct Paged {
    /// None: nothing was written yet. Within: no pager.
    pager: Option<Option<Child>>,
}

impl Paged {
    /// Waits until the reader has seen enough.
    pub fn finish(self) -> io::Result<()> {
        let Some(mut pager) = self.pager.flatten() else {
            return Ok(());
        };
        // The end of its input.
        drop(pager.stdin.take());
        pager.wait().map(drop)
    }

    fn out<T>(&mut self, to: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> io::Result<T> {
        match self.pager.get_or_insert_with(start).as_mut().map(|pager| pager.stdin.as_mut()) {
            None => to(&mut io::stdout().lock()),
            Some(Some(stdin)) => to(stdin),
            Some(None) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl Write for Paged {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out(|out| out.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out(|out| out.flush())
    }
}

/// Starts `$PAGER`, else `less`, if the standard output is a terminal. None as well when there is
/// no such program, or when `$PAGER` is empty or `cat`.
fn start() -> Option<Child> {
    if !io::stdout().is_terminal() {
        return None;
    }
    let pager = std::env::var("PAGER").unwrap_or_else(|_| "less".to_owned());
    let mut words = pager.split_whitespace();
    let program = words.next().filter(|program| *program != "cat")?;
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::piped());
    if std::env::var_os("LESS").is_none() {
        command.env("LESS", LESS_OPTIONS);
    }
    command.spawn().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_as_wide_as_the_terminal() {
        for (asked, terminal, expected) in [
            (None, None, COLUMNS),
            (None, Some(80), 80),
            (None, Some(0), COLUMNS),
            (Some("200"), Some(80), 200),
            (Some("0"), Some(80), 80),
            (Some("wide"), None, COLUMNS),
            (Some("3"), None, MIN_COLUMNS),
        ] {
            assert_eq!(columns(asked, || terminal), expected, "{asked:?} {terminal:?}");
        }
    }
}

//! Progress of a command that takes long: one line on standard error, as git and cargo have it.
//!
//! The line is there only where standard error is a terminal, only after two seconds, and is erased
//! before the report is written. Commands announce their work with [`stage`] wherever they process
//! many images, epochs or procedures; this module decides what to draw, and when.

use std::io::{self, IsTerminal as _, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time before a command has a progress line: a line of a shorter command would only flicker.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time between two updates of the line.
const TICK: Duration = Duration::from_millis(200);
/// Moves to the start of the line and erases it (ECMA-48: CR, EL).
const ERASE: &str = "\r\x1b[K";

static LINE: Mutex<Line> = Mutex::new(Line { stage: None, drawn: false });

/// The progress line and its content.
#[derive(Debug)]
struct Line {
    stage: Option<Told>,
    /// Whether it is on the terminal.
    drawn: bool,
}

/// A stage of the work.
#[derive(Debug)]
struct Told {
    what: &'static str,
    done: u64,
    of: u64,
}

/// A stage of the work, which ends when this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Stage {
    /// None within another stage, which is the one that is shown.
    line: Option<&'static Mutex<Line>>,
}

/// Begins to draw, if standard error is a terminal that understands it. Until then stages are not
/// shown.
pub fn begin() {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    if dumb || !io::stderr().is_terminal() {
        return;
    }
    let begun = Instant::now();
    // A thread of its own: the work has no moments at which it could look at the clock. It ends
    // with the process. Without a thread there is no line.
    let draw = move || loop {
        std::thread::sleep(TICK);
        let _ = locked(&LINE).draw(begun.elapsed(), &mut io::stderr()); // nowhere left to say it
    };
    let _ = std::thread::Builder::new().name("progress".to_owned()).spawn(draw);
}

/// Begins a stage that does `what` (`reading epochs`) in this many parts of any size; 0: the number
/// is not known. A stage within another stage is not shown.
pub fn stage(what: &'static str, of: u64) -> Stage {
    Stage::on(&LINE, what, of)
}

impl Stage {
    fn on(line: &'static Mutex<Line>, what: &'static str, of: u64) -> Self {
        let mut locked = locked(line);
        let outermost = locked.stage.is_none();
        if outermost {
            locked.stage = Some(Told { what, done: 0, of });
        }
        Self { line: outermost.then_some(line) }
    }

    /// Notes that this many more parts are done.
    pub fn advance(&self, parts: u64) {
        if let Some(line) = self.line
            && let Some(stage) = &mut locked(line).stage
        {
            stage.done = stage.done.saturating_add(parts);
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(line) = self.line {
            let _ = locked(line).end(&mut io::stderr()); // nowhere left to say it
        }
    }
}

fn locked(line: &'static Mutex<Line>) -> MutexGuard<'static, Line> {
    line.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Line {
    /// Draws the line, at this time after the start of the command.
    fn draw(&mut self, elapsed: Duration, out: &mut dyn Write) -> io::Result<()> {
        let Some(Told { what, done, of }) = self.stage.as_ref().filter(|_| elapsed >= PATIENCE)
        else {
            return Ok(());
        };
        let percent = (u128::from(*done) * 100).checked_div(u128::from(*of));
        let percent =
            percent.map_or_else(String::new, |percent| format!("{} %, ", percent.min(100)));
        self.drawn = true;
        write!(out, "{ERASE}dcpi: {what}: {percent}{} s", elapsed.as_secs())?;
        out.flush()
    }

    /// Ends the stage, and erases the line.
    fn end(&mut self, out: &mut dyn Write) -> io::Result<()> {
        self.stage = None;
        if std::mem::take(&mut self.drawn) {
            out.write_all(ERASE.as_bytes())?;
            out.flush()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `dcpi whatcg` and `dcpi topstalls` worked for 48 seconds without a word.
    #[test]
    fn work_that_lasts_has_a_line_that_goes_with_it() {
        let mut line =
            Line { stage: Some(Told { what: "explaining", done: 1, of: 3 }), drawn: false };
        let drawn = |line: &mut Line, ms| {
            let mut out = Vec::new();
            line.draw(Duration::from_millis(ms), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let ended = |line: &mut Line| {
            let mut out = Vec::new();
            line.end(&mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(drawn(&mut line, 1999), "");
        assert_eq!(drawn(&mut line, 2000), "\r\x1b[Kdcpi: explaining: 33 %, 2 s");
        line.stage.as_mut().unwrap().done = 4;
        assert_eq!(
            drawn(&mut line, 61_000),
            "\r\x1b[Kdcpi: explaining: 100 %, 61 s",
            "an estimate of the parts may be short"
        );
        assert_eq!(ended(&mut line), "\r\x1b[K");
        assert_eq!((drawn(&mut line, 62_000), ended(&mut line)), (String::new(), String::new()));
        line.stage = Some(Told { what: "quick", done: 0, of: 0 });
        assert_eq!(ended(&mut line), "", "what was never drawn is not erased");
        line.stage = Some(Told { what: "of one part", done: 0, of: 0 });
        assert_eq!(drawn(&mut line, 2999), "\r\x1b[Kdcpi: of one part: 2 s");
    }

    #[test]
    fn the_outermost_stage_is_told() {
        static LINE: Mutex<Line> = Mutex::new(Line { stage: None, drawn: false });
        let told = || locked(&LINE).stage.as_ref().map(|stage| (stage.what, stage.done));
        let outer = Stage::on(&LINE, "outer", 2);
        {
            let inner = Stage::on(&LINE, "inner", 1);
            inner.advance(1);
            assert_eq!(told(), Some(("outer", 0)));
        }
        outer.advance(1);
        assert_eq!(told(), Some(("outer", 1)));
        drop(outer);
        assert_eq!(told(), None);
    }
}

//! Limits the log: a line that is repeated too often is left out for a while, and the number of
//! lines left out is logged.

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Most lines of one kind in a [`TERM`]. More let a failing disk fill the journal, fewer hide the
/// first failures of several kinds of files.
const LINES_MAX: u32 = 20;
/// Time after which the lines of a kind are counted again.
const TERM: Duration = Duration::from_secs(60);

/// Leaves out lines that come too often. The kind of a line is its place in the source, so the
/// number of kinds is bounded.
#[derive(Default)]
pub struct Limited {
    kinds: Mutex<HashMap<Identifier, Kind>>,
}

struct Kind {
    began: Instant,
    lines: u32,
    left_out: u64,
}

impl Kind {
    /// Whether another line may come, and the number of lines before it that were left out.
    fn admit(&mut self, now: Instant) -> (bool, u64) {
        let mut left_out = 0;
        if now.saturating_duration_since(self.began) >= TERM {
            left_out = self.left_out;
            *self = Self { began: now, lines: 0, left_out: 0 };
        }
        self.lines = self.lines.saturating_add(1);
        self.left_out += u64::from(self.lines > LINES_MAX);
        (self.lines <= LINES_MAX, left_out)
    }
}

impl<S: Subscriber> Layer<S> for Limited {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO {
            return true; // whoever asks for these wants them all
        }
        let now = Instant::now();
        // No code panics while it holds the lock.
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let kind =
            kinds.entry(metadata.callsite()).or_insert(Kind { began: now, lines: 0, left_out: 0 });
        let (admitted, left_out) = kind.admit(now);
        if left_out > 0 {
            // Nowhere left to say it.
            let _ = writeln!(std::io::stderr(), "{left_out} lines like the next were left out");
        }
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_come_again_and_again_are_counted() {
        let start = Instant::now();
        let mut kind = Kind { began: start, lines: 0, left_out: 0 };
        let admitted = (0..1000).filter(|_| kind.admit(start + TERM / 2).0).count();
        assert_eq!(admitted, 20);
        assert_eq!(kind.admit(start + TERM), (true, 980));
        assert_eq!(kind.admit(start + TERM), (true, 0), "said once");
        assert_eq!(kind.admit(start + TERM * 3), (true, 0));
    }
}

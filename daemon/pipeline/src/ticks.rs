//! Times of the loop's periodic actions.

use std::time::Instant;

/// Periodic actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tick {
    /// Read the records.
    Records,
    /// Drain the tables.
    Drain,
    /// Write the database.
    Merge,
    /// Pass over all threads.
    Pass,
    /// Notify the service manager's watchdog.
    Watchdog,
}

/// The next time of each action.
#[derive(Debug)]
pub struct Ticks {
    /// Next time to read the records.
    pub records: Instant,
    /// Next time to drain.
    pub drain: Instant,
    /// Next time to merge.
    pub merge: Instant,
    /// Next time to pass over all threads; None: there are no passes.
    pub pass: Option<Instant>,
    /// Next time to notify the watchdog; None: there is none.
    pub watchdog: Option<Instant>,
}

impl Ticks {
    /// The action whose time is first, and that time.
    pub fn first(&self) -> (Tick, Instant) {
        let some = [(Tick::Pass, self.pass), (Tick::Watchdog, self.watchdog)];
        let some = some.into_iter().filter_map(|(tick, at)| Some((tick, at?)));
        let rest = [(Tick::Drain, self.drain), (Tick::Merge, self.merge)].into_iter().chain(some);
        rest.fold(
            (Tick::Records, self.records),
            |first, other| if other.1 < first.1 { other } else { first },
        )
    }

    /// Sets the next time of an action.
    pub fn set(&mut self, tick: Tick, at: Instant) {
        match tick {
            Tick::Records => self.records = at,
            Tick::Drain => self.drain = at,
            Tick::Merge => self.merge = at,
            Tick::Pass => self.pass = Some(at),
            Tick::Watchdog => self.watchdog = Some(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_comes_first() {
        let now = Instant::now();
        let second = std::time::Duration::from_secs(1);
        let mut ticks = Ticks {
            records: now + second / 2,
            drain: now + second,
            merge: now + 3 * second,
            pass: None,
            watchdog: None,
        };
        assert_eq!(ticks.first(), (Tick::Records, now + second / 2));
        ticks.set(Tick::Records, now + 2 * second);
        assert_eq!(ticks.first(), (Tick::Drain, now + second));
        ticks.set(Tick::Drain, now + 4 * second);
        ticks.set(Tick::Records, now + 4 * second);
        assert_eq!(ticks.first(), (Tick::Merge, now + 3 * second));
        ticks.set(Tick::Watchdog, now);
        assert_eq!(ticks.first(), (Tick::Watchdog, now));
    }
}

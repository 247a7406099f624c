//! When the loop does again what it does again and again.

use std::time::Instant;

/// What is done again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tick {
    /// Records are read.
    Records,
    /// The tables are drained.
    Drain,
    /// The database is written.
    Merge,
    /// The service manager is told that the loop turns.
    Watchdog,
}

/// When each is done next.
#[derive(Debug)]
pub struct Ticks {
    /// Of records.
    pub records: Instant,
    /// Of drains.
    pub drain: Instant,
    /// Of merges.
    pub merge: Instant,
    /// Of the service manager, if it wants to be told.
    pub watchdog: Option<Instant>,
}

impl Ticks {
    /// The first one, and its time.
    #[must_use]
    pub fn first(&self) -> (Tick, Instant) {
        let watchdog = self.watchdog.map(|at| (Tick::Watchdog, at));
        let rest =
            [(Tick::Drain, self.drain), (Tick::Merge, self.merge)].into_iter().chain(watchdog);
        rest.fold(
            (Tick::Records, self.records),
            |first, other| if other.1 < first.1 { other } else { first },
        )
    }

    /// This one at that time.
    pub fn set(&mut self, tick: Tick, at: Instant) {
        match tick {
            Tick::Records => self.records = at,
            Tick::Drain => self.drain = at,
            Tick::Merge => self.merge = at,
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

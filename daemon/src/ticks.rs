//! When the loop does again what it does again and again.

use std::time::{Duration, Instant};

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
pub struct Ticks([(Tick, Option<Instant>); 4]);

impl Ticks {
    /// Each after its time from now; none of those without one.
    #[must_use]
    pub fn new(now: Instant, periods: [(Tick, Option<Duration>); 4]) -> Self {
        Self(periods.map(|(tick, period)| (tick, period.map(|period| now + period))))
    }

    /// This one again at that time.
    pub fn set(&mut self, tick: Tick, at: Instant) {
        self.0.iter_mut().filter(|(other, _)| *other == tick).for_each(|(_, next)| *next = Some(at));
    }

    /// The first one, and its time. None when there is none at all.
    #[must_use]
    pub fn first(&self) -> Option<(Tick, Instant)> {
        self.0.iter().filter_map(|(tick, at)| Some((*tick, (*at)?))).min_by_key(|(_, at)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_comes_first() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let mut ticks = Ticks::new(
            now,
            [
                (Tick::Records, Some(second / 2)),
                (Tick::Drain, Some(second)),
                (Tick::Merge, Some(3 * second)),
                (Tick::Watchdog, None),
            ],
        );
        assert_eq!(ticks.first(), Some((Tick::Records, now + second / 2)));
        ticks.set(Tick::Records, now + 2 * second);
        assert_eq!(ticks.first(), Some((Tick::Drain, now + second)));
        ticks.set(Tick::Drain, now + 4 * second);
        ticks.set(Tick::Records, now + 4 * second);
        assert_eq!(ticks.first(), Some((Tick::Merge, now + 3 * second)));
    }
}

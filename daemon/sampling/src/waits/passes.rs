//! The times of passes over all threads: one at a random moment of each period. Passes at regular
//! moments would always, or never, find a thread waiting that wakes up as regularly. A sample of a
//! waiting thread stands for the period.

use std::time::{Duration, Instant};

/// Waiting threads that a pass is to sample.
pub const SAMPLES: u32 = 64;
/// Shortest and longest period.
pub(super) const PERIOD_MIN: Duration = Duration::from_millis(100);
const PERIOD_MAX: Duration = Duration::from_secs(10);
/// Shortest period while switches are traced: the threads that passes then sample wait for long.
pub(super) const PERIOD_OF_REST: Duration = Duration::from_secs(1);
/// Part of the budget of waits that those passes may take.
pub(super) const REST_PART: f64 = 0.1;
/// First period, as the cost of a pass is not known yet.
const PERIOD_FIRST: Duration = Duration::from_secs(1);
/// Weight of the last pass in the moving average of the cost of passes.
const RECENT: f64 = 0.2;

/// The current period, and the cost of passes.
#[derive(Debug)]
pub struct Passes {
    /// End of the last period.
    since: Instant,
    /// Length of the current one.
    period: Duration,
    /// When the pass of this period is due.
    at: Instant,
    /// Mean CPU time of a pass and of counting its samples, ns.
    cost_ns: f64,
}

impl Passes {
    /// The first period begins now.
    pub fn new(now: Instant) -> Self {
        let mut passes = Self { since: now, period: PERIOD_FIRST, at: now, cost_ns: 0.0 };
        passes.choose();
        passes
    }

    fn choose(&mut self) {
        self.at = self.since + self.period.mul_f64(fastrand::f64());
    }

    /// When the next pass is due.
    pub fn at(&self) -> Instant {
        self.at
    }

    /// Length of the current period.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// The time that the samples of a pass at `now` stand for: the period, or where the pass is
    /// late, the whole time since the last period ended.
    pub fn covers(&self, now: Instant) -> Duration {
        self.period.max(now.saturating_duration_since(self.since))
    }

    /// Begins the next period after a pass that stood for `covered` and took `cost` of CPU time.
    /// Passes may take `ns_per_s`, in ns of CPU time a second; the period is at least `least`.
    pub fn passed(&mut self, covered: Duration, cost: Duration, ns_per_s: f64, least: Duration) {
        let cost_ns = cost.as_nanos() as f64;
        let before = if self.cost_ns > 0.0 { self.cost_ns } else { cost_ns };
        self.cost_ns = before + RECENT * (cost_ns - before);
        self.since += covered;
        let seconds = (self.cost_ns / ns_per_s.max(1.0)).min(PERIOD_MAX.as_secs_f64());
        self.period = Duration::from_secs_f64(seconds).max(least);
        self.choose();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the regular waits of a thread: each moment of all time is in one period.
    #[test]
    fn passes_cover_all_time_and_cost_what_they_may() {
        let begin = Instant::now();
        let (mut passes, mut covered) = (Passes::new(begin), Duration::ZERO);
        for pass in 0..1000 {
            let late = Duration::from_secs(if pass == 500 { 30 } else { 0 });
            let now = passes.at() + late;
            assert!(now >= begin + covered);
            let covers = passes.covers(now);
            covered += covers;
            assert!(now <= begin + covered);
            passes.passed(covers, Duration::from_millis(1), 2e6, PERIOD_MIN);
        }
        assert_eq!(passes.period(), Duration::from_millis(500), "1 ms of 2 ms a second");
        let (low, high) = (Duration::from_secs(520), Duration::from_secs(535));
        assert!((low..high).contains(&covered), "{covered:?}");
        passes.passed(Duration::ZERO, Duration::ZERO, f64::INFINITY, PERIOD_MIN);
        assert_eq!(passes.period(), PERIOD_MIN);
    }

    #[test]
    fn waits_are_met_in_proportion_to_their_time() {
        // Of each 100 ms, as a period, a thread waits for the first 30.
        let begin = Instant::now();
        let mut passes = Passes::new(begin);
        let (mut met, mut all) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..4000 {
            let now = passes.at();
            let covers = passes.covers(now);
            if now.duration_since(begin).as_millis() % 100 < 30 {
                met += covers;
            }
            all += covers;
            passes.passed(covers, Duration::from_millis(1), 1e7, PERIOD_MIN);
        }
        let share = met.as_secs_f64() / all.as_secs_f64();
        assert!((share - 0.3).abs() < 0.03, "{share}");
    }
}

//! The time of merges. Within an epoch it never goes back: a slice of time ends after the one
//! before it, whatever becomes of the clock. A clock that is set, by NTP or when a virtual machine
//! is restored, is told in the epoch; where it is set back, its distance from the time of merges is
//! kept until the next epoch. How long an epoch lasts goes by a clock that nobody can set.

use kernel::clock;
use model::{ClockStep, ClockSteps};
use std::time::Duration;

/// Least distance by which a clock counts as set, not as slewed: chrony and systemd-timesyncd slew
/// what is less, by 0.5 ms a second.
const STEP: Duration = Duration::from_secs(1);
/// Most steps that an epoch tells; the oldest are dropped. More make the description larger.
const STEPS_MAX: usize = 16;

/// Least distance by which a clock that is set forward is told: less leaves no hole in a report.
const TOLD_FORWARD: Duration = Duration::from_secs(60);

/// Readings of the clock on the wall and of CLOCK_BOOTTIME, in ns.
pub type Reading = (u64, u64);

/// The clock of the open epoch.
#[derive(Debug)]
pub struct EpochClock {
    read: fn() -> Reading,
    last: Reading,
    /// How far the time of merges is ahead of the clock on the wall.
    ahead: Duration,
    /// The time of the last merge, in seconds since 1970 UTC.
    merged_unix_s: u64,
    /// CLOCK_BOOTTIME when the epoch began, in ns, as far as can be known: it may have begun before
    /// the machine did.
    began_ns: i128,
    steps: ClockSteps,
}

impl EpochClock {
    /// The clock of an epoch that began, and was last merged to, at these times, in seconds since
    /// 1970 UTC, and which has these steps.
    pub fn new(began_unix_s: u64, merged_unix_s: u64, steps: ClockSteps) -> Self {
        let mut clock = Self::reading(clock::both_ns, merged_unix_s, steps);
        let (wall, since_boot) = clock.last;
        let age = Duration::from_nanos(wall).saturating_sub(Duration::from_secs(began_unix_s));
        clock.began_ns = i128::from(since_boot) - age.as_nanos() as i128;
        clock
    }

    /// The same by other clocks.
    pub fn reading(read: fn() -> Reading, merged_unix_s: u64, steps: ClockSteps) -> Self {
        let last = read();
        let began_ns = i128::from(last.1);
        let mut clock = Self { read, last, ahead: Duration::ZERO, merged_unix_s, began_ns, steps };
        // The clock may have been set while no daemon ran.
        let back = Duration::from_secs(merged_unix_s).saturating_sub(Duration::from_nanos(last.0));
        if back >= STEP {
            clock.set_back(back);
        }
        clock
    }

    /// The time, in ns since 1970 UTC: that of the wall, or later.
    fn now_ns(&mut self) -> u64 {
        let (wall, since_boot) = (self.read)();
        let (last_wall, last_since_boot) = self.last;
        self.last = (wall, since_boot);
        let expected = last_wall.saturating_add(since_boot.saturating_sub(last_since_boot));
        let back = Duration::from_nanos(expected.saturating_sub(wall));
        let forward = Duration::from_nanos(wall.saturating_sub(expected));
        if back >= STEP {
            self.set_back(back);
        } else if forward >= STEP {
            let ahead = self.ahead;
            self.ahead = ahead.saturating_sub(forward);
            self.set_forward(forward.saturating_sub(ahead));
        }
        wall.saturating_add(u64::try_from(self.ahead.as_nanos()).unwrap_or(u64::MAX))
    }

    fn set_back(&mut self, by: Duration) {
        self.ahead = self.ahead.saturating_add(by);
        tracing::warn!(
            seconds = by.as_secs(),
            "the clock was set back; the epoch goes on with times that are {} s ahead of it. dcpictl \
             epoch begins an epoch with the clock's times",
            self.ahead.as_secs()
        );
        self.note(ClockStep { back_s: by.as_secs(), ..ClockStep::default() });
    }

    fn set_forward(&mut self, by: Duration) {
        if by < TOLD_FORWARD {
            return;
        }
        tracing::warn!(
            seconds = by.as_secs(),
            "the clock was set forward; epochs are removed by the time that has really passed, until \
             the clock has stayed so for a day"
        );
        self.note(ClockStep { forward_s: by.as_secs(), ..ClockStep::default() });
    }

    fn note(&mut self, step: ClockStep) {
        let step = ClockStep { at_unix_s: self.merged_unix_s, ..step };
        let ClockSteps(steps) = &mut self.steps;
        steps.push(step);
        steps.drain(..steps.len().saturating_sub(STEPS_MAX));
    }

    /// The time of a merge now, in seconds since 1970 UTC.
    pub fn merge_unix_s(&mut self) -> u64 {
        let now = Duration::from_nanos(self.now_ns()).as_secs();
        self.merged_unix_s = self.merged_unix_s.max(now);
        self.merged_unix_s
    }

    /// How long the epoch has lasted, whatever became of the clock on the wall.
    pub fn age(&self) -> Duration {
        let (_, since_boot) = (self.read)();
        let age = i128::from(since_boot) - self.began_ns;
        Duration::from_nanos(u64::try_from(age).unwrap_or(0))
    }

    /// The time until the next multiple of an interval, a little later than that, so that a merge
    /// then has the time of the multiple. At least a quarter of the interval.
    pub fn until_next(&mut self, interval: Duration) -> Duration {
        let length = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX).max(1);
        let now = self.now_ns();
        let left = length - now % length;
        let left = if left < length / 4 { left.saturating_add(length) } else { left };
        Duration::from_nanos(left) + LATE.min(interval / 100)
    }

    /// The steps of the epoch, where there are some.
    pub fn fact(&self) -> Option<&ClockSteps> {
        Some(&self.steps).filter(|ClockSteps(steps)| !steps.is_empty())
    }

    /// Another epoch has begun, by the clock on the wall.
    pub fn begin_epoch(&mut self) {
        *self = Self::reading(self.read, 0, ClockSteps::default());
    }
}

/// A merge begins this long after the clock's ten seconds, say, are over, where the interval has
/// room for it: the clock may be slewed meanwhile.
const LATE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const SECOND: u64 = 1_000_000_000;

    thread_local! {
        static NOW: Cell<Reading> = const { Cell::new((0, 0)) };
    }

    /// Lets seconds pass, and sets the clock on the wall by others.
    fn pass(seconds: u64, set_s: i64) {
        let (wall, monotonic) = NOW.get();
        let wall = wall.strict_add(seconds * SECOND);
        NOW.set((wall.strict_add_signed(set_s * SECOND as i64), monotonic + seconds * SECOND));
    }

    fn clock(merged_unix_s: u64) -> EpochClock {
        NOW.set((1000 * SECOND, 7 * SECOND));
        EpochClock::reading(|| NOW.get(), merged_unix_s, ClockSteps::default())
    }

    /// When it was set, and how far: less than 0 for back.
    fn told(clock: &EpochClock) -> Vec<(u64, i64)> {
        let steps = clock.fact().map(|ClockSteps(steps)| steps.clone()).unwrap_or_default();
        let far = |step: &ClockStep| step.forward_s as i64 - step.back_s as i64;
        steps.iter().map(|step| (step.at_unix_s, far(step))).collect()
    }

    /// Samples of 30 s had no time of their own after NTP had set the clock back by as much.
    #[test]
    fn a_clock_that_is_set_back_takes_no_time_from_the_epoch() {
        let mut clock = clock(990);
        let mut merges = Vec::new();
        for set_s in [0, 0, -30, 0, 0, 0, 0] {
            pass(10, set_s);
            merges.push(clock.merge_unix_s());
        }
        assert_eq!(merges, [1010, 1020, 1030, 1040, 1050, 1060, 1070]);
        assert_eq!(told(&clock), [(1020, -30)]);
        // The next epoch has the clock's own times.
        clock.begin_epoch();
        pass(10, 0);
        assert_eq!((clock.merge_unix_s(), told(&clock)), (1050, vec![]));
    }

    #[test]
    fn a_clock_that_is_set_right_again_is_believed() {
        let mut clock = clock(990);
        pass(10, -600);
        assert_eq!(clock.merge_unix_s(), 1010);
        pass(10, 600);
        assert_eq!(clock.merge_unix_s(), 1020);
        assert_eq!(told(&clock), [(990, -600)], "the epoch's time has no hole");
        pass(10, 500);
        assert_eq!((clock.merge_unix_s(), told(&clock)[1]), (1530, (1020, 500)));
        pass(10, -5);
        assert_eq!((clock.merge_unix_s(), told(&clock)[2]), (1540, (1530, -5)));
        pass(10, 59);
        assert_eq!((clock.merge_unix_s(), told(&clock).len()), (1604, 3), "hardly a hole");
    }

    /// A clock that went ten days ahead, and back: the epoch did not end for ten days.
    #[test]
    fn an_epoch_is_as_old_as_the_time_that_has_passed() {
        let mut clock = clock(990);
        for set_s in [0, 864_000, -864_000, -30] {
            pass(10, set_s);
            clock.merge_unix_s();
        }
        assert_eq!(clock.age(), Duration::from_secs(40));
        clock.begin_epoch();
        assert_eq!(clock.age(), Duration::ZERO);
        let now = kernel::clock::unix_s();
        let begun = EpochClock::new(now - 500, now - 5, ClockSteps::default());
        assert!((499..=502).contains(&begun.age().as_secs()), "{:?}", begun.age());
        let in_future = EpochClock::new(now + 500, now + 500, ClockSteps::default());
        assert!(in_future.age().as_secs() <= 1, "{:?}", in_future.age());
    }

    #[test]
    fn a_clock_that_was_set_back_while_no_daemon_ran_is_told() {
        let mut later = clock(1200);
        assert_eq!(told(&later), [(1200, -200)]);
        pass(10, 0);
        assert_eq!(later.merge_unix_s(), 1210);
        // Less than a second is the rounding of times.
        assert_eq!(told(&clock(1000)), []);
    }

    #[test]
    fn merges_begin_when_the_clocks_intervals_are_over() {
        let mut clock = clock(990);
        let second = Duration::from_secs(1);
        pass(3, 0);
        assert_eq!(clock.until_next(10 * second), 7 * second + LATE);
        pass(5, 0);
        assert_eq!(clock.until_next(10 * second), 12 * second + LATE, "the next but one");
        assert_eq!(clock.until_next(600 * second), 192 * second + LATE);
        assert_eq!(clock.until_next(second), second + second / 100);
        pass(10, -30);
        assert_eq!(clock.until_next(10 * second), 12 * second + LATE, "as the epoch counts");
    }
}

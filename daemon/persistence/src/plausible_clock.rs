//! The time by which epochs grow old. A clock that is set forward by mistake, and back a minute
//! later, must not remove the epochs of a week: how far it was set forward is believed only once it
//! has stayed so for a day. A clock that is set back is believed at once, since then less is old.

use kernel::clock;

/// Time for which a clock must have stayed forward, in ns.
const BELIEVED_AFTER_NS: u64 = 86_400 * 1_000_000_000;

/// The clock on the wall, as far as it is plausible.
#[derive(Debug)]
pub struct PlausibleClock {
    read: fn() -> (u64, u64),
    /// The clock on the wall less CLOCK_BOOTTIME, in ns, which is believed.
    offset: i128,
    /// Since when, by CLOCK_BOOTTIME, that difference has been larger, and the least that it was.
    larger: Option<(u64, i128)>,
}

impl PlausibleClock {
    /// The clock on the wall, which is believed now.
    pub fn new() -> Self {
        Self::reading(clock::both_ns)
    }

    fn reading(read: fn() -> (u64, u64)) -> Self {
        let (wall, since_boot) = read();
        Self { read, offset: i128::from(wall) - i128::from(since_boot), larger: None }
    }

    /// The time, in seconds since 1970 UTC: that of the clock on the wall, or earlier.
    pub fn unix_s(&mut self) -> u64 {
        let (wall, since_boot) = (self.read)();
        let offset = i128::from(wall) - i128::from(since_boot);
        if offset <= self.offset {
            (self.offset, self.larger) = (offset, None);
        } else {
            let (since, least) = self.larger.unwrap_or((since_boot, offset));
            let least = least.min(offset);
            self.larger = Some((since, least));
            if since_boot.saturating_sub(since) >= BELIEVED_AFTER_NS {
                (self.offset, self.larger) = (least, None);
            }
        }
        u64::try_from((self.offset + i128::from(since_boot)) / 1_000_000_000).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const DAY_S: u64 = 86_400;

    thread_local! {
        static NOW: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    }

    /// Lets seconds pass, and sets the clock on the wall by others.
    fn pass(seconds: u64, set_s: i64) {
        let (wall, since_boot) = NOW.get();
        let wall = wall.strict_add(seconds * 1_000_000_000);
        NOW.set((
            wall.strict_add_signed(set_s * 1_000_000_000),
            since_boot + seconds * 1_000_000_000,
        ));
    }

    fn clock() -> PlausibleClock {
        NOW.set((1000 * DAY_S * 1_000_000_000, 7 * 1_000_000_000));
        PlausibleClock::reading(|| NOW.get())
    }

    /// A step of ten days removed five epochs.
    #[test]
    fn a_step_forward_is_believed_after_a_day() {
        let mut clock = clock();
        let begin = clock.unix_s();
        pass(60, 10 * DAY_S as i64);
        assert_eq!(clock.unix_s(), begin + 60);
        pass(DAY_S - 1, 0);
        assert_eq!(clock.unix_s(), begin + 59 + DAY_S);
        pass(1, 0);
        assert_eq!(clock.unix_s(), begin + 60 + 11 * DAY_S);
    }

    #[test]
    fn a_step_that_is_taken_back_is_forgotten() {
        let mut clock = clock();
        let begin = clock.unix_s();
        for set_s in [10 * DAY_S as i64, -10 * (DAY_S as i64), -30, 30] {
            pass(DAY_S / 2, set_s);
            clock.unix_s();
        }
        assert_eq!(clock.unix_s(), begin + 2 * DAY_S - 30, "half a day after the last step");
        pass(DAY_S, 0);
        assert_eq!(clock.unix_s(), begin + 3 * DAY_S);
    }

    /// What the clock gains in steps of a second is believed a day later, too.
    #[test]
    fn small_steps_add_up() {
        let mut clock = clock();
        let begin = clock.unix_s();
        for _ in 0..2 * 24 * 60 {
            pass(60, 1);
            let (now, real) = (clock.unix_s(), NOW.get().1 / 1_000_000_000 - 7 + begin);
            assert!((real..=real + 24 * 60 + 1).contains(&now), "{now} of {real}");
        }
        assert!(clock.unix_s() > begin + 2 * DAY_S, "the first day's steps");
    }
}

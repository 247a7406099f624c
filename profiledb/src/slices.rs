//! Slices of an epoch's time: which segments may be folded together, and which are of a stretch of
//! time.
//!
//! A segment has the merges of a stretch of time, from the segment before it to its own last merge.
//! Folding keeps to slices, so that a reader can tell what happened when: short ones for what is
//! recent, longer ones for what is old. Slices begin with their epoch, as its merges do.

/// Ages in seconds from which a slice has a given length in seconds, the youngest first. Each
/// length is a multiple of the one before. Ten minutes are the daemon's own interval of merges: a
/// day has 144 slices, a week twice as many, and a year 388.
const LENGTHS: [(u64, u64); 4] =
    [(0, 600), (86_400, 3600), (7 * 86_400, 86_400), (63 * 86_400, 7 * 86_400)];

/// A slice of an epoch's time: length in seconds, and number from the start of the epoch.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    length_s: u64,
    number: u64,
    /// Whether the slice is over, so that no merge comes that belongs to it.
    pub(crate) is_over: bool,
}

impl Slice {
    /// The slice of a segment from a time to a time, in an epoch that began at a time, all in
    /// seconds since 1970 UTC. A segment belongs to the slice that has its middle: merges are a
    /// little late or early.
    fn of(began_s: u64, (from_s, to_s): (u64, u64), now_s: u64) -> Self {
        let middle = from_s.midpoint(to_s).saturating_sub(began_s);
        let slice = |length_s: u64| {
            let number = middle / length_s;
            let end = began_s.saturating_add(number.saturating_add(1).saturating_mul(length_s));
            (number, end)
        };
        let is_old =
            |(age_s, length_s): &&(u64, u64)| now_s >= slice(*length_s).1.saturating_add(*age_s);
        let [(_, shortest), ..] = LENGTHS;
        let length_s =
            LENGTHS.iter().rev().find(is_old).map_or(shortest, |(_, length_s)| *length_s);
        let (number, end) = slice(length_s);
        Self { length_s, number, is_over: now_s >= end }
    }
}

/// The slice of each segment of an epoch. Segments are identified by the times of their last
/// merges.
pub(crate) fn slices(began_s: u64, ends_s: &[u64], now_s: u64) -> Vec<Slice> {
    // A segment without time of its own begins an epoch or ends it, or has the rest of a merge.
    let first_s = ends_s.iter().copied().find(|to_s| *to_s > began_s).unwrap_or(began_s);
    let mut slice = Slice::of(began_s, (began_s, first_s), now_s);
    let mut from_s = began_s;
    let of = |to_s: &u64| {
        if *to_s > from_s {
            slice = Slice::of(began_s, (from_s, *to_s), now_s);
            from_s = *to_s;
        }
        slice
    };
    ends_s.iter().map(of).collect()
}

/// A stretch of time, in seconds since 1970 UTC.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stretch {
    /// Begin.
    pub since_unix_s: u64,
    /// First second after the stretch.
    pub until_unix_s: u64,
}

impl Stretch {
    /// Whether both have some time in common. A moment, which has no length, is within what has it.
    pub const fn overlaps(self, other: Self) -> bool {
        self.since_unix_s < other.until_unix_s && other.since_unix_s < self.until_unix_s
    }
}

/// The segments that overlap the stretch of time that a reader requested.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Covered {
    /// The stretch that these cover.
    pub stretch: Stretch,
    /// Length of the longest of them, in seconds.
    pub slice_s: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;

    /// The number of slices after this many days of merges every ten minutes.
    fn count(days: u64) -> usize {
        let began = 1_763_697_753;
        // Merges come some seconds late.
        let ends: Vec<u64> =
            (1..=days * 144).map(|merge| began + merge * 600 + merge % 7).collect();
        let mut slices = slices(began, &ends, began + days * DAY);
        slices.dedup();
        slices.len()
    }

    #[test]
    fn what_is_older_has_longer_slices() {
        let at = |ends: &[u64], now: u64| {
            let slices = slices(1000, ends, now.saturating_add(1000));
            slices.iter().map(|s| (s.length_s, s.number, s.is_over)).collect::<Vec<_>>()
        };
        // Two merges of one slice, one of the next, and the end of the epoch.
        let ends = [1000, 1300, 1605, 2190, 2190];
        let now =
            [(600, 0, true), (600, 0, true), (600, 0, true), (600, 1, false), (600, 1, false)];
        assert_eq!(at(&ends, 1195), now);
        assert_eq!(at(&ends, 1200)[3], (600, 1, true));
        assert_eq!(at(&ends, DAY + 3599)[0], (600, 0, true));
        assert_eq!(at(&ends, DAY + 3600), [(3600, 0, true); 5]);
        assert_eq!(at(&ends, 8 * DAY), [(DAY, 0, true); 5]);
        assert_eq!(at(&ends, u64::MAX), [(7 * DAY, 0, true); 5]);
        // Absurd clocks neither overflow nor make slices without end.
        assert_eq!(at(&[u64::MAX, u64::MAX], 0)[0].0, 600);
        assert_eq!(at(&[0, 0, 0], 0), [(600, 0, false); 3]);
    }

    #[test]
    fn a_year_has_a_few_hundred_slices() {
        assert_eq!((count(1), count(8), count(70), count(365)), (144, 289, 345, 388));
    }

    #[test]
    fn stretches_that_only_touch_do_not_overlap() {
        let stretch = |since_unix_s, until_unix_s| Stretch { since_unix_s, until_unix_s };
        for (other, overlaps) in [
            ((0, 10), false),
            ((0, 11), true),
            ((19, 30), true),
            ((20, 30), false),
            ((12, 12), true),
        ] {
            assert_eq!(stretch(10, 20).overlaps(stretch(other.0, other.1)), overlaps, "{other:?}");
        }
    }
}

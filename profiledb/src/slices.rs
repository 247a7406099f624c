//! Slices of an epoch's time: which segments may be folded together, how finely a segment keeps
//! its counts apart by time, and which of them are of a stretch of time.
//!
//! A segment has the merges of a stretch of time, from the segment before it to its own last merge.
//! Folding makes one segment of those of a *group*, ten minutes or longer, and leaves counts apart
//! by *slices* within it, so that a reader can tell what happened when. Slices are short where they
//! are recent and longer where they are old. Both are aligned to the clock: slices of several hosts
//! and epochs are of the same time.

use model::Ledgers;
use serde::{Deserialize, Serialize};

/// Ages in seconds from which groups, and the slices within them, have given lengths in seconds,
/// the youngest first. Each length is a multiple of the one before. A day has 144 groups, a week
/// twice as many, and a year 388.
const LENGTHS: [Lengths; 4] = [
    Lengths { age_s: 0, group_s: 600, slice_s: 10 },
    Lengths { age_s: 86_400, group_s: 3600, slice_s: 60 },
    Lengths { age_s: 7 * 86_400, group_s: 86_400, slice_s: 600 },
    Lengths { age_s: 63 * 86_400, group_s: 7 * 86_400, slice_s: 86_400 },
];

/// Lengths of slices in seconds, the shortest first: where slices of one take too many bytes those
/// of the next are tried. Each divides the groups that are as long or longer.
const SLICES_S: [u64; 11] = [10, 20, 30, 60, 120, 300, 600, 1800, 3600, 21_600, 86_400];

/// Most bytes that keeping slices apart may take in an hour of an epoch's time. With fewer, busy
/// hosts have longer slices; with more, a week of them fills disks.
const SLICES_BYTES_PER_HOUR: u64 = 1_000_000;

struct Lengths {
    age_s: u64,
    group_s: u64,
    slice_s: u64,
}

/// A group of slices, which become one segment: length in seconds, and number since 1970.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    length_s: u64,
    number: u64,
    /// Length of the slices within it, in seconds.
    pub(crate) slice_s: u64,
    /// Whether the group is over, so that no merge comes that belongs to it.
    pub(crate) is_over: bool,
}

impl Group {
    /// The group of a segment from a time to a time, in seconds since 1970 UTC. A segment belongs
    /// to the group that has its middle: merges are a little late or early.
    fn of((from_s, to_s): (u64, u64), now_s: u64) -> Self {
        let middle = from_s.midpoint(to_s);
        let group = |length_s: u64| {
            let number = middle / length_s;
            (number, number.saturating_add(1).saturating_mul(length_s))
        };
        let is_old =
            |lengths: &&Lengths| now_s >= group(lengths.group_s).1.saturating_add(lengths.age_s);
        let [youngest, ..] = &LENGTHS;
        let Lengths { group_s, slice_s, .. } =
            LENGTHS.iter().rev().find(is_old).unwrap_or(youngest);
        let (number, end) = group(*group_s);
        Self { length_s: *group_s, number, slice_s: *slice_s, is_over: now_s >= end }
    }

    /// The shortest slices of at least this many seconds that the group may have; None where all of
    /// it is one.
    pub(crate) fn slices_of(self, least_s: u64) -> Option<u64> {
        SLICES_S.into_iter().find(|length_s| *length_s >= least_s && *length_s < self.length_s)
    }
}

/// Most bytes that keeping the slices of a segment of this time apart may take. A short one has as
/// many as ten minutes have.
pub(crate) fn slices_bytes_max(time_s: u64) -> u64 {
    let [youngest, ..] = &LENGTHS;
    time_s.max(youngest.group_s).saturating_mul(SLICES_BYTES_PER_HOUR) / 3600
}

/// The group of each segment of an epoch that began at a time. Segments are identified by the times
/// of their last merges.
pub(crate) fn groups(began_s: u64, ends_s: &[u64], now_s: u64) -> Vec<Group> {
    // A segment without time of its own begins an epoch or ends it, or has the rest of a merge.
    let first_s = ends_s.iter().copied().find(|to_s| *to_s > began_s).unwrap_or(began_s);
    let mut group = Group::of((began_s, first_s), now_s);
    let mut from_s = began_s;
    let of = |to_s: &u64| {
        if *to_s > from_s {
            group = Group::of((from_s, *to_s), now_s);
            from_s = *to_s;
        }
        group
    };
    ends_s.iter().map(of).collect()
}

/// A slice of a segment: what came after the slice before it, or the segment before. In each
/// segment that has several they are a section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Slice {
    /// Time of its last merge, in seconds since 1970 UTC.
    pub(crate) until_unix_s: u64,
    /// The ledgers of the epoch as of that merge.
    #[serde(default)]
    pub(crate) ledgers: Ledgers,
    /// Whether it has counts.
    #[serde(default)]
    pub(crate) counts: bool,
}

/// The slices of a segment that is made of others, and which of them each slice of the others
/// becomes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) slices: Vec<Slice>,
    /// For each source the number of the slice that each of its slices becomes.
    pub(crate) of: Vec<Vec<usize>>,
}

impl Plan {
    /// Slices of about this length of sources that follow one another from a time on. Those whose
    /// middle is in the same stretch of the clock become one.
    pub(crate) fn following(sources: &[Vec<Slice>], since_unix_s: u64, slice_s: u64) -> Self {
        let mut plan = Self::default();
        let (mut since, mut number) = (since_unix_s, None);
        for source in sources {
            let mut of = Vec::with_capacity(source.len());
            for slice in source {
                let until = slice.until_unix_s.max(since);
                let own = Some(since.midpoint(until) / slice_s.max(1));
                // One without time is the rest of a merge, or begins or ends an epoch.
                let is_same = until == since || number.is_none() || number == own;
                match plan.slices.last_mut().filter(|_| is_same) {
                    Some(last) => last.absorb(slice),
                    None => plan.slices.push(slice.clone()),
                }
                number = if until == since { number } else { own };
                since = until;
                of.push(plan.slices.len() - 1);
            }
            plan.of.push(of);
        }
        plan
    }

    /// All in one.
    pub(crate) fn whole(sources: &[Vec<Slice>]) -> Self {
        Self::following(sources, 0, u64::MAX)
    }

    /// Joins each slice of two with the next.
    pub(crate) fn halve(&mut self) {
        let mut half: Vec<Slice> = Vec::with_capacity(self.slices.len().div_ceil(2));
        for (at, slice) in std::mem::take(&mut self.slices).into_iter().enumerate() {
            match half.last_mut().filter(|_| at % 2 == 1) {
                Some(last) => {
                    last.until_unix_s = slice.until_unix_s;
                    last.ledgers.add(&slice.ledgers);
                    last.counts |= slice.counts;
                }
                None => half.push(slice),
            }
        }
        self.slices = half;
        self.of.iter_mut().flatten().for_each(|slice| *slice /= 2);
    }

    /// Whether there is anything to keep apart.
    pub(crate) const fn is_apart(&self) -> bool {
        self.slices.len() > 1
    }
}

impl Slice {
    /// Adds what the next one has.
    fn absorb(&mut self, other: &Self) {
        self.until_unix_s = self.until_unix_s.max(other.until_unix_s);
        self.ledgers.clone_from(&other.ledgers);
        self.counts |= other.counts;
    }
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
    /// Whether both have some time in common. A moment, which has no length, is within what begins
    /// with it, and not within what ends with it.
    pub const fn overlaps(self, other: Self) -> bool {
        self.since_unix_s < other.end_unix_s() && other.since_unix_s < self.end_unix_s()
    }

    /// The end, of a moment the second after it.
    const fn end_unix_s(self) -> u64 {
        if self.until_unix_s > self.since_unix_s {
            self.until_unix_s
        } else {
            self.since_unix_s + 1
        }
    }
}

/// A slice, by its segment and its number there; also the place between two slices that is before
/// this one.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) segment: usize,
    pub(crate) slice: usize,
}

/// A slice of the epoch, with the stretch of time that it has.
#[derive(Clone, Debug)]
pub(crate) struct TimedSlice {
    pub(crate) place: Place,
    pub(crate) stretch: Stretch,
    /// None where its segment's description is damaged.
    pub(crate) slice: Option<Slice>,
}

/// The slices that overlap the stretch of time that a reader requested.
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
    /// The begin of a week of the clock.
    const BEGAN: u64 = 1_763_596_800 / (7 * DAY) * (7 * DAY);

    /// The number of groups after this many days of merges every ten minutes.
    fn count(days: u64) -> usize {
        // Merges come some seconds late.
        let ends: Vec<u64> =
            (1..=days * 144).map(|merge| BEGAN + merge * 600 + merge % 7).collect();
        let mut groups = groups(BEGAN, &ends, BEGAN + days * DAY);
        groups.dedup();
        groups.len()
    }

    #[test]
    fn what_is_older_has_longer_slices() {
        let at = |ends: &[u64], now: u64| {
            let ends: Vec<u64> = ends.iter().map(|end| end.saturating_add(BEGAN)).collect();
            let groups = groups(BEGAN, &ends, now.saturating_add(BEGAN));
            let first = |length_s: u64| BEGAN / length_s;
            let of = |group: &Group| {
                (group.length_s, group.slice_s, group.number - first(group.length_s), group.is_over)
            };
            groups.iter().map(of).collect::<Vec<_>>()
        };
        // Two merges of one group, one of the next, and the end of the epoch.
        let ends = [0, 300, 605, 1190, 1190];
        let now = [
            (600, 10, 0, true),
            (600, 10, 0, true),
            (600, 10, 0, true),
            (600, 10, 1, false),
            (600, 10, 1, false),
        ];
        assert_eq!(at(&ends, 1195), now);
        assert_eq!(at(&ends, 1200)[3], (600, 10, 1, true));
        assert_eq!(at(&ends, DAY + 3599)[0], (600, 10, 0, true));
        assert_eq!(at(&ends, DAY + 3600), [(3600, 60, 0, true); 5]);
        assert_eq!(at(&ends, 8 * DAY), [(DAY, 600, 0, true); 5]);
        assert_eq!(at(&ends, u64::MAX), [(7 * DAY, DAY, 0, true); 5]);
        // Absurd clocks neither overflow nor make groups without end.
        assert_eq!(at(&[u64::MAX, u64::MAX], 0)[0].0, 600);
        assert_eq!(at(&[0, 0, 0], 0), [(600, 10, 0, false); 3]);
    }

    #[test]
    fn a_year_has_a_few_hundred_groups() {
        assert_eq!((count(1), count(8), count(70), count(365)), (144, 289, 345, 388));
    }

    fn slice(until_unix_s: u64) -> Slice {
        let mut ledgers = Ledgers::default();
        ledgers.entry("cycles", 7).taken = until_unix_s;
        Slice { until_unix_s, ledgers, counts: until_unix_s.is_multiple_of(2) }
    }

    #[test]
    fn slices_of_one_stretch_of_the_clock_become_one() {
        // The first merge begins the epoch; the clock's ten seconds are over at 110, 120 and so on.
        let sources = [
            vec![slice(103)],
            vec![slice(111), slice(111), slice(120)],
            vec![slice(131), slice(135), slice(139)],
        ];
        let ends = |plan: &Plan| plan.slices.iter().map(|one| one.until_unix_s).collect::<Vec<_>>();
        let ten = Plan::following(&sources, 103, 10);
        assert_eq!(ends(&ten), [111, 120, 131, 139]);
        assert_eq!(ten.of, [vec![0], vec![0, 0, 1], vec![2, 3, 3]]);
        let minute = Plan::following(&sources, 103, 60);
        assert_eq!(ends(&minute), [120, 139]);
        assert_eq!(minute.slices[0].ledgers.sum("cycles").taken, 120);
        let whole = Plan::whole(&sources);
        assert_eq!((ends(&whole), whole.is_apart()), (vec![139], false));
        assert_eq!(whole.of, [vec![0], vec![0; 3], vec![0; 3]]);
        assert!(whole.slices[0].counts && !ten.slices[3].counts);
        let early = Plan::following(&[vec![slice(90)], vec![slice(95)]], 100, 10);
        assert_eq!((early.of, early.slices.len()), (vec![vec![0], vec![0]], 1), "a clock set back");
    }

    #[test]
    fn lengths_of_slices_divide_their_groups() {
        for Lengths { group_s, slice_s, .. } in &LENGTHS {
            let group = Group { length_s: *group_s, number: 0, slice_s: *slice_s, is_over: true };
            let mut next = group.slices_of(*slice_s);
            assert_eq!(next, Some(*slice_s));
            while let Some(length_s) = next {
                assert_eq!(group_s % length_s, 0, "{length_s} of {group_s}");
                next = group.slices_of(length_s + 1);
            }
        }
        assert_eq!(slices_bytes_max(0), 166_666);
        assert_eq!(slices_bytes_max(3600), SLICES_BYTES_PER_HOUR);
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
            ((10, 10), true),
            ((20, 20), false),
        ] {
            assert_eq!(stretch(10, 20).overlaps(stretch(other.0, other.1)), overlaps, "{other:?}");
        }
    }
}

//! Samples that need not stand for the same: an event's period changes with the sampling budget and
//! from host to host, and an event that takes turns with others counts for a part of the time only.
//!
//! Each sample has a *weight*: the occurrences of the event that it stands for, its period by the
//! share of the time in which the event counted. Sums, shares and rankings are of weights; how sure
//! they are follows from the sum of their squares.

use std::collections::BTreeMap;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Range};

use image::ImageOffset;
use model::Profile;

/// Samples, and what they stand for.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Samples taken.
    pub samples: u64,
    /// Sum of their weights: occurrences, in the event's unit (ns, cycles, events).
    pub occurrences: f64,
    /// Sum of the squares of their weights: the variance of `occurrences`, where samples are
    /// Poisson.
    pub squares: f64,
    /// The largest weight that a sample of these may have had, whether one was seen or not.
    pub heaviest: f64,
    /// Variance that `occurrences` have beyond that of the samples, where these are a part of
    /// others' that was estimated ([`Weighed::take`]).
    pub divided: f64,
    /// Of `occurrences`, those that may be others' ([`Doubt::less`]).
    pub less: f64,
    /// Occurrences of others' that may be of these ([`Doubt::more`]).
    pub more: f64,
}

/// What is not sure of samples that are a part of others'.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Doubt {
    /// Variance of their occurrences.
    pub variance: f64,
    /// Occurrences that may be too many, whatever chance adds: of what is not told apart.
    pub less: f64,
    /// Occurrences that may be missing, likewise.
    pub more: f64,
}

impl AddAssign for Doubt {
    fn add_assign(&mut self, other: Self) {
        self.variance += other.variance;
        self.less += other.less;
        self.more += other.more;
    }
}

/// Standard deviations from the mean within which 95 % of a normal distribution lie.
const DEVIATIONS_95: f64 = 1.96;

/// The variance of a share of something, estimated from call stacks: binomial. The share is taken
/// for that of one more stack, of which half is the part's: one stack of a function is no proof
/// that there is no other function.
pub fn share_variance(share: f64, stacks: f64) -> f64 {
    let share = (share * stacks + 0.5) / (stacks + 1.0);
    share * (1.0 - share) / (stacks + 1.0)
}

impl Tally {
    /// A number of samples of one weight.
    pub fn of(samples: u64, weight: f64) -> Self {
        let occurrences = samples as f64 * weight;
        Self {
            samples,
            occurrences,
            squares: occurrences * weight,
            heaviest: if samples > 0 { weight } else { 0.0 },
            ..Self::default()
        }
    }

    /// The weight of which `occurrences^2 / squares` samples would be as unsure as these: the
    /// weight itself where all have one; 0 of nothing.
    pub fn weight(self) -> f64 {
        if self.occurrences > 0.0 { self.squares / self.occurrences } else { 0.0 }
    }

    /// The same, less sure: as if its samples had come `times` at once. For shares that vary more
    /// than samples by chance do ([`dispersions`](crate::dispersions)).
    #[must_use]
    pub fn dispersed(self, times: f64) -> Self {
        Self { squares: self.squares * times, ..self }
    }

    /// The tally without `part`, which must be contained in it.
    #[must_use]
    pub fn without(self, part: Self) -> Self {
        Self {
            samples: self.samples.saturating_sub(part.samples),
            occurrences: (self.occurrences - part.occurrences).max(0.0),
            squares: (self.squares - part.squares).max(0.0),
            heaviest: self.heaviest,
            divided: (self.divided - part.divided).max(0.0),
            less: (self.less - part.less).max(0.0),
            more: (self.more - part.more).max(0.0),
        }
    }

    /// The variance beyond that of the samples, with as much for what is not told apart as makes
    /// an interval of 95 % hold it: for comparisons, which know nothing but variances.
    pub fn doubtful(self) -> f64 {
        self.divided + (self.less.max(self.more) / DEVIATIONS_95).powi(2)
    }

    /// True when no sample is in it.
    pub fn is_empty(self) -> bool {
        self.samples == 0
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.samples = self.samples.saturating_add(other.samples);
        self.occurrences += other.occurrences;
        self.squares += other.squares;
        self.heaviest = self.heaviest.max(other.heaviest);
        self.divided += other.divided;
        self.less += other.less;
        self.more += other.more;
    }
}

impl Add for Tally {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |mut sum, one| {
            sum += one;
            sum
        })
    }
}

/// Adds each of `counts` to that of its place.
pub fn add_all(sums: &mut [Tally], counts: &[Tally]) {
    sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += *count);
}

/// Samples of these.
pub fn samples(tallies: &[Tally]) -> Vec<u64> {
    tallies.iter().map(|tally| tally.samples).collect()
}

/// Samples by place, those of each weight apart.
#[derive(Clone, Debug, Default)]
pub struct Weighed {
    /// Each weight once, in the order in which they were met.
    parts: Vec<(f64, Profile)>,
    /// The result of [`Weighed::equal`] where the profile has several parts.
    equal: Option<Profile>,
    /// What is not sure of places.
    doubts: BTreeMap<ImageOffset, Doubt>,
}

/// Numbers of samples that were taken away from a profile, each with their weight.
pub type Taken = Vec<(f64, u64)>;

impl Weighed {
    /// Adds a profile whose samples have this weight.
    pub fn add(&mut self, weight: f64, profile: Profile) {
        match self.parts.iter_mut().find(|(known, _)| *known == weight) {
            Some((_, sum)) => sum.merge(&profile),
            // Most are the only ones of their image, with millions of entries: not copied.
            None if !profile.is_empty() => self.parts.push((weight, profile)),
            None => {}
        }
    }

    /// Adds those of another.
    pub fn merge(&mut self, other: &Self) {
        other.parts.iter().for_each(|(weight, profile)| self.add(*weight, profile.clone()));
        other.doubts.iter().for_each(|(at, doubt)| self.doubt(*at, *doubt));
    }

    /// Makes the samples of a place less sure.
    pub fn doubt(&mut self, at: ImageOffset, doubt: Doubt) {
        *self.doubts.entry(at).or_default() += doubt;
    }

    /// Takes samples away: `of` gives the group of a place, and the share (0 to 1) of its samples
    /// to take; None leaves the place as it is. Returns what was taken from each of `groups`
    /// groups. What is rounded off at one place of a group counts at its next.
    pub fn take(
        &mut self,
        groups: usize,
        of: impl Fn(ImageOffset) -> Option<(usize, f64)>,
    ) -> Vec<Taken> {
        let mut all = vec![Taken::new(); groups];
        for (weight, profile) in &mut self.parts {
            let mut rests = vec![0.0; groups];
            let mut taken = vec![0_u64; groups];
            let left = profile.iter().map(|(offset, samples)| {
                let Some((group, share)) = of(offset) else { return (offset, samples) };
                let (Some(rest), Some(sum)) = (rests.get_mut(group), taken.get_mut(group)) else {
                    return (offset, samples);
                };
                *rest += samples as f64 * share;
                let due = (rest.round() as u64).min(samples);
                *rest -= due as f64;
                *sum += due;
                (offset, samples - due)
            });
            let left: Vec<(ImageOffset, u64)> = left.filter(|(_, samples)| *samples > 0).collect();
            *profile = Profile::from_counts(left);
            let some = all.iter_mut().zip(taken).filter(|(_, samples)| *samples > 0);
            some.for_each(|(all, samples)| all.push((*weight, samples)));
        }
        self.parts.retain(|(_, profile)| !profile.is_empty());
        all
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// All of them together.
    pub fn total(&self) -> Tally {
        let of = |(weight, profile): &(f64, Profile)| Tally::of(profile.total(), *weight);
        // What may be another place's may be of these all the same.
        let divided = self.doubts.values().map(|doubt| doubt.variance).sum();
        self.parts.iter().map(of).sum::<Tally>() + Tally { divided, ..Tally::default() }
    }

    /// Makes [`Weighed::equal`] of samples that stand for `weight` occurrences each.
    pub fn equalize(&mut self, weight: f64) {
        self.equal = None;
        if self.parts.iter().all(|(known, _)| *known == weight) {
            return;
        }
        // What is rounded off at one place counts at the next: the sum over any range of places is
        // off by less than a sample.
        let mut rest = 0.0;
        let places: Vec<(ImageOffset, Tally)> = self.iter().collect();
        let equal = places.into_iter().map(|(offset, tally)| {
            let due = rest + tally.occurrences / weight;
            let samples = due.round();
            rest = due - samples;
            (offset, samples as u64)
        });
        self.equal = Some(Profile::from_counts(equal.filter(|(_, samples)| *samples > 0)));
    }

    /// As many samples at each place as stand for its occurrences if all have the weight that was
    /// given to [`Weighed::equalize`]: for what knows one weight only, as estimates of executions
    /// do. Where all have that weight these are the samples themselves.
    pub fn equal(&self) -> &Profile {
        const NONE: &Profile = &Profile::new();
        let only = || self.parts.first().map(|(_, only)| only);
        self.equal.as_ref().or_else(only).unwrap_or(NONE)
    }

    /// Each place with its samples, in order.
    pub fn iter(&self) -> Box<dyn Iterator<Item = (ImageOffset, Tally)> + '_> {
        self.places(|profile| profile.iter())
    }

    /// The places in a range with their samples, in order.
    pub fn within(
        &self,
        range: Range<ImageOffset>,
    ) -> Box<dyn Iterator<Item = (ImageOffset, Tally)> + '_> {
        self.places(move |profile| profile.within(range.clone()))
    }

    fn places<'a, Places>(
        &'a self,
        of: impl Fn(&'a Profile) -> Places,
    ) -> Box<dyn Iterator<Item = (ImageOffset, Tally)> + 'a>
    where
        Places: Iterator<Item = (ImageOffset, u64)> + 'a,
    {
        if let [(weight, profile)] = self.parts.as_slice()
            && self.doubts.is_empty()
        {
            let weight = *weight;
            return Box::new(
                of(profile).map(move |(offset, samples)| (offset, Tally::of(samples, weight))),
            );
        }
        let mut sums: BTreeMap<ImageOffset, Tally> = BTreeMap::new();
        for (weight, profile) in &self.parts {
            for (offset, samples) in of(profile) {
                *sums.entry(offset).or_default() += Tally::of(samples, *weight);
            }
        }
        for (offset, sum) in &mut sums {
            let Doubt { variance, less, more } =
                self.doubts.get(offset).copied().unwrap_or_default();
            (sum.divided, sum.less, sum.more) = (variance, less, more);
        }
        Box::new(sums.into_iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_two_weights_are_added_up_by_place() {
        let profile = |counts: &[(u64, u64)]| {
            Profile::from_counts(
                counts.iter().map(|(offset, samples)| (ImageOffset(*offset), *samples)),
            )
        };
        let mut weighed = Weighed::default();
        weighed.add(10.0, profile(&[(1, 4), (5, 2)]));
        weighed.add(30.0, profile(&[(5, 1), (9, 1)]));
        weighed.add(10.0, profile(&[(1, 1)]));
        weighed.add(70.0, profile(&[]));
        let places: Vec<_> = weighed
            .iter()
            .map(|(offset, tally)| (offset.0, tally.samples, tally.occurrences))
            .collect();
        assert_eq!(places, [(1, 5, 50.0), (5, 3, 50.0), (9, 1, 30.0)]);
        let total = weighed.total();
        assert_eq!((total.samples, total.occurrences, total.squares), (9, 130.0, 2500.0));
        assert_eq!(weighed.within(ImageOffset(2)..ImageOffset(9)).count(), 1);
        weighed.equalize(20.0);
        let equal: Vec<_> =
            weighed.equal().iter().map(|(offset, samples)| (offset.0, samples)).collect();
        assert_eq!(
            equal,
            [(1, 3), (5, 2), (9, 2)],
            "130 / 20, each to within one of all before it"
        );
        let mut twice = weighed.clone();
        twice.merge(&weighed);
        assert_eq!((twice.total().samples, twice.parts.len()), (18, 2));
        assert_eq!(total.without(Tally::of(7, 10.0)), Tally::of(2, 30.0));
        assert!(
            (Tally::of(7, 10.0).weight() - 10.0).abs() < 1e-12 && Tally::default().weight() == 0.0
        );
    }

    /// A half of one place is given away, which is 3.5 of 7 and 0.5 of 1: 4 in all.
    #[test]
    fn shares_of_samples_are_taken_and_none_is_lost() {
        let mut weighed = Weighed::default();
        let counts = [(1, 7), (2, 1), (9, 5)].map(|(offset, n)| (ImageOffset(offset), n));
        weighed.add(10.0, Profile::from_counts(counts));
        weighed.add(20.0, Profile::from_counts([(ImageOffset(2), 3)]));
        let of = |at: ImageOffset| match at.0 {
            1 | 2 => Some((0, 0.5)),
            _ => None,
        };
        let taken = weighed.take(2, of);
        assert_eq!(taken, [vec![(10.0, 4), (20.0, 2)], vec![]]);
        assert_eq!(weighed.total().samples, 7 + 1 + 5 + 3 - 6);
        weighed.doubt(ImageOffset(9), Doubt { variance: 25.0, less: 3.0, more: 1.0 });
        assert_eq!((weighed.total().divided, weighed.total().samples), (25.0, 10));
        let at_9 = weighed.within(ImageOffset(9)..ImageOffset(10)).next().unwrap().1;
        assert_eq!((at_9.divided, at_9.samples), (25.0, 5));
        assert_eq!((at_9.less, at_9.more, at_9.doubtful() > 26.0), (3.0, 1.0, true));
        let everything = weighed.take(1, |_| Some((0, 1.0)));
        assert_eq!(everything.iter().flatten().map(|(_, samples)| samples).sum::<u64>(), 10);
        assert!(weighed.is_empty());
    }

    /// Nine samples at 30/s beside others at 5000/s were nine of 230 in exports, 130 times too
    /// many.
    #[test]
    fn samples_that_stand_for_less_than_one_of_the_others_are_none() {
        let mut weighed = Weighed::default();
        weighed.add(1.0, Profile::from_counts([(ImageOffset(1), 9)]));
        weighed.equalize(166.0);
        assert!(weighed.equal().is_empty(), "{:?}", weighed.equal());
        weighed.equalize(1.0);
        assert_eq!(weighed.equal().total(), 9);
    }
}

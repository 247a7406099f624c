//! Trip counts of loops, from samples of how many tests were left.
//!
//! A sample is equally likely in each round of a loop. So the number of samples with r tests left
//! is in proportion to the entries that make r tests or more: the density of r falls, and its value
//! at the start is the probability that a test ends the loop (the density of a renewal process's
//! remaining life; Cox, Renewal Theory, 1962). The observed density is made to fall by taking the
//! least concave majorant of its sum (Grenander 1956). The density is read from two tests on: that
//! one test is left is also observed in samples before the loop.
//!
//! Where the density is constant up to its largest r, all entries make the same number of rounds.
//! Then all samples decide, and not only those of the fewest rounds, whose steepest slope is too
//! steep by chance.
//!
//! Short entries beside long ones have few samples: half of the entries may make 4 rounds while 99
//! of 100 samples are in those of 400. So the interval of the mean reaches further down than up:
//! to the mean that the fewest rounds would have if chance had withheld samples of them. Entries so
//! short that all of them together have fewer than `UNSEEN_SAMPLES` are not seen.

use std::collections::HashMap;

use code::cfg::{Cfg, Edge, EdgeKind, Loops, To};
use image::Vaddr;

use crate::flow_graph::ExitEstimate;
use crate::samples::{ProcedureSamples, RemainingRounds, target};

/// The trip count of a loop, as far as it follows from one of its tests.
#[derive(Clone, Debug, PartialEq)]
pub struct TripCount {
    /// Index of the loop.
    pub loop_number: usize,
    /// Index of the edge that leaves the loop at the test.
    pub exit_edge: usize,
    /// The test: a conditional branch.
    pub test: Vaddr,
    /// Samples with a known number of tests left.
    pub samples: u64,
    /// Probability that a test ends the loop: 1 / mean trip count.
    pub exit_probability: f64,
    /// The interval of 95 % confidence of the mean trip count, which is 1 / `exit_probability`: by
    /// chance and by the bias of samples of time.
    pub interval: (f64, f64),
    /// Trip counts that 10, 50 and 90 % of the entries do not exceed. Each is the fewest and the
    /// most rounds of the class that the database counts it in.
    pub quantiles: [(u64, u64); 3],
    /// Whether all entries make the same number of rounds, as far as samples show.
    pub constant: bool,
    /// Whether there are entries that make one test only. These are not part of the trip count,
    /// which is that of entries that come to the test again.
    pub single_test_entries: bool,
    /// Whether the loop has no other exit. With other exits, the trip count is an upper limit.
    pub only_exit: bool,
    /// Whether the trip count decides how often the loop is left: where the test is the only exit,
    /// or where observed branches imply more rounds than the test allows.
    pub decides: bool,
}

impl TripCount {
    /// Standard deviation of the logarithm of the mean trip count, by the width of its interval.
    pub fn spread(&self) -> f64 {
        (self.interval.1 / self.interval.0).ln() / (2.0 * SDS_95)
    }

    pub(crate) fn exit(&self) -> ExitEstimate {
        let (low, high) = self.interval;
        ExitEstimate {
            value: self.exit_probability,
            log_sd: (high / self.mean()).ln() / SDS_95,
            log_sd_above: (self.mean() / low).ln() / SDS_95,
        }
    }

    /// Mean number of tests per entry.
    pub fn mean(&self) -> f64 {
        1.0 / self.exit_probability
    }

    /// The logarithm of the factor between `rounds`, the trip count that observed branches imply,
    /// and this one; 0 where the two agree. A loop with other exits may make fewer rounds without a
    /// contradiction.
    pub fn contradiction(&self, rounds: f64) -> f64 {
        let excess = (rounds * self.exit_probability).ln();
        let two_sided = self.only_exit && !self.single_test_entries;
        let log_factor = if two_sided { excess.abs() } else { excess };
        if log_factor > CONTRADICTION_SDS * self.exit().log_sd { log_factor } else { 0.0 }
    }
}

/// An upper limit (95 % confidence) of how often each branch changes its direction from one
/// execution to the next, per execution. `first` is the observed count of a branch as the first
/// after a sample. Branches for which too few of those samples have a known run of equal directions
/// are left out (`CONCLUSIVE_SHARE_MIN`).
pub fn direction_changes(
    remaining_rounds: &[RemainingRounds],
    first: impl Fn(Vaddr) -> u64,
) -> HashMap<Vaddr, f64> {
    let mut counts: HashMap<Vaddr, (f64, f64)> = HashMap::new();
    for class in remaining_rounds {
        let (all, changes) = counts.entry(class.branch).or_default();
        *all += class.count as f64;
        *changes += if class.rounds == 1 { class.count as f64 } else { 0.0 };
    }
    let suffices = |(branch, (all, _)): &(Vaddr, (f64, f64))| {
        *all >= SAMPLES_MIN.max(CONCLUSIVE_SHARE_MIN * first(*branch) as f64)
    };
    // Two standard deviations, and the rule of three for a count of 0.
    let limit = |(branch, (all, changes)): (Vaddr, (f64, f64))| {
        (branch, ((changes + 2.0 * changes.sqrt() + 3.0) / all).min(1.0))
    };
    counts.into_iter().filter(suffices).map(limit).collect()
}

/// Entries of each loop from outside, per execution of the procedure's entry. `edges` has the
/// executions of each edge.
pub fn entries(graph: &Cfg, loops: &Loops, edges: &[f64]) -> Vec<f64> {
    let of_loop = |(number, this): (usize, &code::cfg::Loop)| {
        let into = graph.into_of(this.header).iter();
        let outside = into.filter(|edge| {
            graph.edges().get(**edge).is_some_and(|edge| !loops.contains(number, edge.from))
        });
        let called = if graph.entry() == Some(this.header) { 1.0 } else { 0.0 };
        called + outside.filter_map(|edge| edges.get(*edge)).sum::<f64>()
    };
    loops.loops().iter().enumerate().map(of_loop).collect()
}

/// Fewest samples of a test that yield a trip count. The experiment's number: with fewer, chance
/// alone is more than 14 %. A larger number drops loops, a smaller one lists trip counts that mean
/// little.
const SAMPLES_MIN: f64 = 50.0;
/// Fewest samples of a window of fewest rounds that may give the exit probability. Set by hand:
/// with fewer, chance decides the slope; with more, entries that end within the window are not
/// seen.
const WINDOW_SAMPLES: f64 = 25.0;
/// Fewest samples of a window that may give the lower end of the interval, and no fewer than the
/// root of all. Set by hand: with fewer the interval reaches down to less than half of any
/// estimate; with more, it does not hold the mean where short entries have few samples.
const UNSEEN_SAMPLES: f64 = 8.0;
/// Standard deviations by which the slope of a window must exceed that of a larger one to be
/// preferred. Set by hand: of many windows some are steep by chance.
const WINDOW_SDS: f64 = 2.0;
/// Smallest share of the samples in a loop that must have a known number of tests left. Set by
/// hand: short runs are known more often than long ones, so with a smaller share trip counts come
/// out too small.
const CONCLUSIVE_SHARE_MIN: f64 = 0.8;
/// Standard deviation of the logarithm of a trip count that remains with any number of samples:
/// samples are taken where time is spent, and rounds differ in time. The experiment's
/// 5 %; a smaller value calls biased loops `High`.
const TRIPS_LOG_SD_MIN: f64 = 0.05;
/// The same where all entries make the same number of rounds: whichever round takes longer, the
/// density stays constant. The experiment's 2 %.
const CONSTANT_TRIPS_LOG_SD_MIN: f64 = 0.02;
/// Distance, in standard deviations of the trip count, at which observed branches contradict it.
/// Set by hand. A smaller value takes chance for a contradiction, a larger one reports a trip
/// count beside executions that deny it.
const CONTRADICTION_SDS: f64 = 4.0;
/// Largest distance, in units of 1 / sqrt(samples), of the observed distribution from that of a
/// constant trip count. By Kolmogorov's distribution, chance alone exceeds it in a quarter of the
/// cases. A larger distance takes mixtures of trip counts for a constant one.
const CONSTANT_DISTANCE_MAX: f64 = 1.02;
/// Most standard deviations by which the fewest rounds may be observed more often than a constant
/// trip count allows: short entries beside long ones are in few samples. Set by hand; a larger
/// value overlooks such entries.
const SHORT_EXCESS_SDS_MAX: f64 = 3.0;
/// Standard deviations on either side that hold 95 % of a normal distribution.
const SDS_95: f64 = 1.96;
/// Most steps from a loop to the one around it, over all edges of a graph. Bounds the time of
/// hostile graphs, whose loops are nested thousands deep; real ones need a few steps per edge.
const NESTING_STEPS_MAX: usize = 1 << 22;

/// Trip counts of the loops of a graph, in their order. The test with the largest exit probability
/// decides for its loop.
pub fn trip_counts(graph: &Cfg, loops: &Loops, sampled: &ProcedureSamples<'_>) -> Vec<TripCount> {
    if sampled.remaining_rounds.is_empty() {
        return Vec::new();
    }
    let tests = Tests::of(graph, loops, sampled);
    let Some(exits) = exits(graph, loops) else { return Vec::new() };
    let of_loop = |(number, exits): (usize, &Exits)| {
        let counts = exits.own.iter().filter_map(|exit| tests.trip_count(number, *exit, exits.all));
        counts.max_by(|a, b| a.exit_probability.total_cmp(&b.exit_probability))
    };
    exits.iter().enumerate().filter_map(of_loop).collect()
}

/// The samples of a procedure by branches.
struct Tests<'a> {
    graph: &'a Cfg,
    loops: &'a Loops,
    /// By branch and direction.
    remaining_rounds: HashMap<(Vaddr, bool), Vec<RemainingRounds>>,
    /// Observed counts as the first branch after a sample, by the branch and the next instruction.
    first: HashMap<(Vaddr, Vaddr), u64>,
}

impl<'a> Tests<'a> {
    fn of(graph: &'a Cfg, loops: &'a Loops, sampled: &ProcedureSamples<'_>) -> Self {
        let mut remaining_rounds: HashMap<(Vaddr, bool), Vec<RemainingRounds>> = HashMap::new();
        for class in sampled.remaining_rounds {
            remaining_rounds.entry((class.branch, class.jumps)).or_default().push(*class);
        }
        let mut first: HashMap<(Vaddr, Vaddr), u64> = HashMap::new();
        for branch in sampled.branches {
            first.insert((branch.from, branch.to), branch.first);
        }
        Self { graph, loops, remaining_rounds, first }
    }

    /// The trip count of a loop by the test at the edge `exit_edge`, one of `exits` edges that
    /// leave the loop. `None` where samples do not suffice.
    fn trip_count(&self, number: usize, exit_edge: usize, exits: usize) -> Option<TripCount> {
        let graph = self.graph;
        let edge = graph.edges().get(exit_edge)?;
        let block = graph.blocks().get(edge.from)?;
        // The loop goes on in the direction that does not leave it.
        let jumps = match edge.kind {
            EdgeKind::NotTaken => true,
            EdgeKind::Taken => false,
            _ => return None,
        };
        let goes_on =
            |edge: &Edge| matches!(edge.to, To::Block(to) if self.loops.contains(number, to));
        let stays =
            graph.out_of(edge.from).find(|other| graph.edges().get(*other).is_some_and(goes_on))?;
        let observed = |edge: usize| {
            let to = graph.edges().get(edge).and_then(|edge| target(graph, edge));
            to.and_then(|to| self.first.get(&(block.last, to))).map_or(0, |count| *count)
        };
        let (ended, stayed) = (observed(exit_edge) as f64, observed(stays) as f64);
        let classes = self.remaining_rounds.get(&(block.last, jumps))?;
        let mut counts: Vec<(u64, u64, f64)> =
            classes.iter().map(|class| (class.rounds, class.width, class.count as f64)).collect();
        counts.sort_unstable_by_key(|(rounds, ..)| *rounds);
        let Fitted { mean, interval, quantiles, constant } = fit(&counts, stayed)?;
        let exit_probability = 1.0 / mean;
        // Entries that make one test are observed as ends of the loop beyond those that the trip
        // count implies. Samples before the loop show such ends too.
        let implied = exit_probability * (ended + stayed) * 2.0;
        let single_test_entries = ended > implied + 3.0 * implied.max(1.0).sqrt();
        let samples = classes.iter().fold(0_u64, |sum, class| sum.saturating_add(class.count));
        Some(TripCount {
            loop_number: number,
            exit_edge,
            test: block.last,
            samples,
            exit_probability,
            interval,
            quantiles,
            constant,
            single_test_entries,
            only_exit: exits == 1,
            decides: exits == 1 && !single_test_entries,
        })
    }
}

/// The edges that leave a loop.
#[derive(Clone, Default)]
struct Exits {
    /// Number of edges that leave the loop.
    all: usize,
    /// Indices of the edges from blocks that are in no inner loop.
    own: Vec<usize>,
}

/// The exits of each loop. `None` where that takes more than [`NESTING_STEPS_MAX`] steps.
fn exits(graph: &Cfg, loops: &Loops) -> Option<Vec<Exits>> {
    let mut exits = vec![Exits::default(); loops.loops().len()];
    let mut steps = 0;
    let parent = |number: usize| loops.loops().get(number).and_then(|inner| inner.parent);
    for (number, edge) in graph.edges().iter().enumerate() {
        let innermost = loops.innermost(edge.from);
        let mut within = innermost;
        let mut target = if let To::Block(to) = edge.to { loops.innermost(to) } else { None };
        // Walk outwards from both ends to the first common loop. Outer loops have smaller numbers.
        while within != target {
            steps += 1;
            if steps > NESTING_STEPS_MAX {
                return None;
            }
            if within > target {
                if let Some(left) = within.and_then(|left| exits.get_mut(left)) {
                    left.all += 1;
                    if within == innermost {
                        left.own.push(number);
                    }
                }
                within = within.and_then(parent);
            } else {
                target = target.and_then(parent);
            }
        }
    }
    Some(exits)
}

/// A trip count, as fitted to the samples of one test. The fields are those of [`TripCount`].
struct Fitted {
    mean: f64,
    interval: (f64, f64),
    quantiles: [(u64, u64); 3],
    constant: bool,
}

/// Fits a trip count to the classes of remaining rounds (fewest rounds, width, samples; in
/// ascending order) of a test that was observed to go on `stayed` times.
fn fit(counts: &[(u64, u64, f64)], stayed: f64) -> Option<Fitted> {
    let sum: f64 = counts.iter().map(|(.., count)| count).sum();
    if sum < SAMPLES_MIN || sum < CONCLUSIVE_SHARE_MIN * stayed {
        return None;
    }
    // The distribution: pairs of a number of tests, counting the one that ends the loop, and of the
    // samples with fewer tests left, but more than one.
    let mut points = vec![(1.0, 0.0)];
    let mut below = 0.0;
    for (rounds, width, count) in counts {
        below += count;
        points.push((rounds.saturating_add(*width) as f64, below));
    }
    let windows = |fewest: f64| points.iter().skip(1).filter(move |(_, of)| *of >= fewest.min(sum));
    // The mean if chance had withheld samples of the fewest rounds: the limit of 95 % of a Poisson
    // count, with the rule of three for small ones.
    let most = |samples: f64| samples + 2.0 * samples.sqrt() + 3.0;
    let at_least = windows(sum.sqrt().max(UNSEEN_SAMPLES))
        .map(|(tests, samples)| 1.0 + sum * (tests - 1.0) / most(*samples))
        .fold(f64::INFINITY, f64::min);
    let interval = |mean: f64, log_sd: f64| {
        let factor = (SDS_95 * log_sd).exp();
        ((mean / factor).min(at_least).max(1.0), mean * factor)
    };
    if let Some((tests, samples)) = constant(counts, &points) {
        let mean = 1.0 + (tests - 1.0) * sum / samples;
        let log_sd = CONSTANT_TRIPS_LOG_SD_MIN.hypot(1.0 / samples.sqrt());
        let interval = interval(mean, log_sd);
        // An interval of whole numbers; small trip counts have room for one only.
        let (low, high) =
            (interval.0.ceil().min(mean.round()), interval.1.floor().max(mean.round()));
        let quantiles = [(low as u64, high as u64); 3];
        return Some(Fitted { mean, interval, quantiles, constant: true });
    }
    let slope = |(tests, samples): &(f64, f64)| samples / (tests - 1.0);
    let sure_slope = |point: &(f64, f64)| slope(point) * (1.0 - WINDOW_SDS / point.1.sqrt());
    let window = windows(WINDOW_SAMPLES).max_by(|a, b| sure_slope(a).total_cmp(&sure_slope(b)))?;
    let (density, chance) = (slope(window), 1.0 / window.1.sqrt());
    let majorant = majorant(&points);
    // The slope of the majorant at r, beside the first, is the share of entries with r tests or
    // more.
    let quantile = |share: f64| {
        let reached = majorant.windows(2).filter_map(|pair| {
            let [from, to] = pair else { return None };
            let slope = (to.1 - from.1) / (to.0 - from.0);
            (slope >= density * (1.0 - share) * (1.0 - 1.5 * chance)).then_some(to.0)
        });
        let most = reached.fold(2.0, f64::max) as u64;
        let class = counts.iter().find(|(rounds, width, _)| rounds.saturating_add(*width) == most);
        (class.map_or(most, |(rounds, ..)| rounds.saturating_add(1)), most)
    };
    let mean = 1.0 + sum / density;
    Some(Fitted {
        mean,
        interval: interval(mean, TRIPS_LOG_SD_MIN.hypot(chance)),
        quantiles: [0.1, 0.5, 0.9].map(quantile),
        constant: false,
    })
}

/// Whether all entries make the same number of rounds: the number of tests up to which the density
/// is constant, and the samples up to there. The last class is left out, since the trip count may
/// not fill it.
fn constant(counts: &[(u64, u64, f64)], points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let (_, width, _) = counts.last()?;
    let filled = points.get(..points.len() - usize::from(*width > 1))?;
    let &(tests, samples) = filled.last().filter(|(_, samples)| *samples >= SAMPLES_MIN)?;
    let fits = |(at, below): &(f64, f64)| {
        let excess = below - samples * (at - 1.0) / (tests - 1.0);
        let chance = (below - excess).max(1.0).sqrt();
        excess.abs() <= CONSTANT_DISTANCE_MAX * samples.sqrt()
            && excess <= SHORT_EXCESS_SDS_MAX * chance
    };
    filled.iter().all(fits).then_some((tests, samples))
}

/// The corners of the least concave function that is nowhere below `points`, which are in ascending
/// order.
fn majorant(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut corners: Vec<(f64, f64)> = Vec::with_capacity(points.len());
    for &point in points {
        while let [.., before, last] = corners.as_slice() {
            let turn = (last.0 - before.0) * (point.1 - before.1)
                - (last.1 - before.1) * (point.0 - before.0);
            if turn < 0.0 {
                break;
            }
            corners.pop();
        }
        corners.push(point);
    }
    corners
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples at random in a loop whose entries make as many tests as `entry` says, in classes as
    /// the database has them.
    fn sampled(samples: usize, entry: impl FnMut(&mut fastrand::Rng) -> u64) -> Fitted {
        seeded(3, samples, entry)
    }

    fn seeded(
        seed: u64,
        samples: usize,
        mut entry: impl FnMut(&mut fastrand::Rng) -> u64,
    ) -> Fitted {
        let mut random = fastrand::Rng::with_seed(seed);
        // A sample is in a long entry more often than in a short one.
        let entries: Vec<u64> = (0..4000).map(|_| entry(&mut random)).collect();
        let mut begins = vec![0];
        entries.iter().for_each(|tests| begins.push(begins.last().unwrap() + tests));
        let (mut counts, mut ended) = (std::collections::BTreeMap::new(), 0.0);
        for _ in 0..samples {
            let at = random.u64(0..*begins.last().unwrap());
            let end = begins[begins.partition_point(|begin| *begin <= at)];
            let rounds = end - at - 1;
            if rounds == 0 {
                ended += 1.0;
            } else {
                let width = 1 << (u64::BITS - rounds.leading_zeros()).saturating_sub(4);
                *counts.entry((rounds & !(width - 1), width)).or_insert(0.0) += 1.0;
            }
        }
        let counts: Vec<_> =
            counts.into_iter().map(|((rounds, width), count)| (rounds, width, count)).collect();
        fit(&counts, samples as f64 - ended).unwrap()
    }

    fn near(fitted: f64, truth: f64, part: f64) {
        assert!((fitted / truth).ln().abs() < part, "{fitted} instead of {truth}");
    }

    #[test]
    fn a_constant_trip_count_is_found() {
        for rounds in [3, 40, 1000, 1 << 20] {
            let fitted = sampled(3000, |_| rounds);
            near(fitted.mean, rounds as f64, 0.25);
            fitted.quantiles.iter().for_each(|(_, most)| near(*most as f64, rounds as f64, 0.25));
        }
        // Trip counts are right in the mean, rather than too small.
        let mean = (0..100)
            .map(|seed| (seeded(seed, 1000, |_| 100).mean / 100.0).ln() / 100.0)
            .sum::<f64>();
        assert!(mean.abs() < 0.03, "{mean}");
    }

    #[test]
    fn a_constant_trip_count_is_seldom_far_off() {
        let (mut few, mut missed) = (0, 0);
        for seed in 0..200 {
            let fitted = seeded(seed, 800, |_| 1000);
            few += u32::from(fitted.quantiles[0].1 < 600);
            let (low, high) = fitted.interval;
            missed += u32::from(!(low..high).contains(&1000.0));
        }
        assert!(few <= 12, "{few} of 200 have short entries");
        assert!(missed <= 10, "{missed} of 200 intervals");
    }

    #[test]
    fn short_entries_are_found_though_long_ones_are_sampled_more_often() {
        // Half of the entries make 4 rounds, half 400: 202 in the mean, and 99 of 100 samples are
        // in the long ones.
        let fitted = sampled(20_000, |random| if random.bool() { 4 } else { 400 });
        near(fitted.mean, 202.0, 0.35);
        near(fitted.quantiles[0].1 as f64, 4.0, 0.4);
        near(fitted.quantiles[2].1 as f64, 400.0, 0.2);
        // A constant trip count of 400 is hardly ever fitted.
        let long = |seed: &u64| {
            seeded(*seed, 4000, |random| if random.bool() { 4 } else { 400 }).mean > 370.0
        };
        let long = (0..100).filter(long).count();
        assert!(long <= 8, "{long} of 100");
    }

    #[test]
    fn intervals_hold_the_mean() {
        type Entry = fn(&mut fastrand::Rng) -> u64;
        let entries: [(f64, Entry); 5] = [
            (1000.0, |_| 1000),
            (10_000.0, |random| if random.bool() { 1000 } else { 19_000 }),
            (100.0, |random| random.u64(1..=199)),
            (64.0, |random| 1 << random.u32(1..=8)), // 2 to 256
            (50.0, |random| 1 + (random.f64().ln() / (1.0_f64 - 1.0 / 50.0).ln()) as u64),
        ];
        for samples in [120, 250, 1000, 5000] {
            for (number, (mean, entry)) in entries.into_iter().enumerate() {
                let holds = |seed: &u64| {
                    let (low, high) = seeded(*seed, samples, entry).interval;
                    (low..high).contains(&mean)
                };
                let held = (0..200).filter(holds).count();
                assert!(held >= 180, "{held} of 200, entries {number}, {samples} samples");
            }
        }
    }

    #[test]
    fn entries_of_any_length_have_their_quantiles() {
        // Trip counts are uniform from 1 to 200: the mean is 100.
        let fitted = sampled(20_000, |random| random.u64(1..=200));
        near(fitted.mean, 100.0, 0.2);
        for (quantile, truth) in fitted.quantiles.into_iter().zip([20.0, 100.0, 180.0]) {
            near(quantile.1 as f64, truth, 0.6);
        }
    }

    #[test]
    fn few_samples_and_a_small_conclusive_share_yield_nothing() {
        assert!(fit(&[(5, 1, 49.0)], 0.0).is_none());
        assert!(fit(&[(5, 1, 70.0)], 100.0).is_none());
        assert!(fit(&[(5, 1, 90.0)], 100.0).is_some());
        assert!(fit(&[], 0.0).is_none());
    }
}

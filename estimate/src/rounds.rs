//! How many rounds loops make, from samples of how many were left.
//!
//! A sample is in any of a loop's rounds alike, so that r tests are left is seen as often as there
//! were entries that made r tests or more: how often each number is seen falls, and what it begins
//! with is the part of tests that end the loop (the density of a renewal process's remaining life;
//! Cox, Renewal Theory, 1962). What is seen is made to fall by its least concave majorant
//! (Grenander 1956). That one test is left is also seen of samples before the loop, so it begins
//! with two. Where all numbers up to the largest are seen alike, all entries make as many: then all
//! samples tell, and not only those of the fewest rounds, whose largest slope is too large by
//! chance.

use std::collections::HashMap;

use code::cfg::{Cfg, Edge, EdgeKind, Loops, To};
use image::Vaddr;

use crate::sampled::{Sampled, Turned, target};

/// How many rounds a loop makes for one entry, as far as one of its tests tells.
#[derive(Clone, Debug, PartialEq)]
pub struct Trips {
    /// The loop, by its number.
    pub number: usize,
    /// The edge that leaves it, by its number.
    pub leaves: usize,
    /// The branch that tests.
    pub test: Vaddr,
    /// Samples that tell.
    pub samples: u64,
    /// What part of the tests end the loop: one of as many as there are rounds in the mean.
    pub ends: f64,
    /// Standard deviation of the logarithm of that, for chance and what samples of time are off.
    pub spread: f64,
    /// Rounds that a tenth, half, and nine tenths of the entries do not exceed: each the fewest and
    /// the most of the class that they are counted in.
    pub quantiles: [(u64, u64); 3],
    /// Whether all entries make as many rounds, as far as samples tell.
    pub alike: bool,
    /// Whether entries are seen that make one test only. They are not counted: this is of those
    /// that come to it again.
    pub once: bool,
    /// Whether nothing else leaves the loop. Else it ends so at the latest.
    pub only: bool,
    /// Whether the test decides how often the loop is left: where nothing else leaves it, or
    /// branches that were seen say more rounds than the test allows.
    pub decides: bool,
}

impl Trips {
    /// Tests for one entry, in the mean.
    #[must_use]
    pub fn rounds(&self) -> f64 {
        1.0 / self.ends
    }

    /// The interval of 95 % confidence of [`Trips::rounds`].
    #[must_use]
    pub fn range(&self) -> (f64, f64) {
        range(self.ends, self.spread)
    }

    /// The logarithm of the factor between `rounds`, which branches say of the loop, and what the
    /// test says of it; 0 where the two agree. A loop that is left elsewhere, too, may make fewer
    /// rounds.
    #[must_use]
    pub fn contradicts(&self, rounds: f64) -> f64 {
        let over = (rounds * self.ends).ln();
        let apart = if self.only && !self.once { over.abs() } else { over };
        if apart > CONTRADICTS * self.spread { apart } else { 0.0 }
    }
}

/// The interval of 95 % confidence of rounds that end with this probability.
fn range(ends: f64, spread: f64) -> (f64, f64) {
    let wide = (1.96 * spread).exp();
    ((1.0 / ends / wide).max(1.0), wide / ends)
}

/// Of branches that samples tell of: at most how often, beside their executions, they go another
/// way than the time before (95 % confidence). `first` is how often a branch was the first after a
/// sample: where less than `TELLING` of these tell what comes next, those that do are not like the
/// others.
pub fn changes(turned: &[Turned], first: impl Fn(Vaddr) -> u64) -> HashMap<Vaddr, f64> {
    let mut counts: HashMap<Vaddr, (f64, f64)> = HashMap::new();
    for one in turned {
        let (all, changes) = counts.entry(one.branch).or_default();
        *all += one.count as f64;
        *changes += if one.rounds == 1 { one.count as f64 } else { 0.0 };
    }
    let tells = |(branch, (all, _)): &(Vaddr, (f64, f64))| {
        *all >= SAMPLES_MIN.max(TELLING * first(*branch) as f64)
    };
    let most = |(branch, (all, changes)): (Vaddr, (f64, f64))| {
        (branch, ((changes + 2.0 * changes.sqrt() + 3.0) / all).min(1.0))
    };
    counts.into_iter().filter(tells).map(most).collect()
}

/// How often each loop is entered from outside, beside one entry of the procedure; `edges` has the
/// executions of each edge.
#[must_use]
pub fn entries(graph: &Cfg, loops: &Loops, edges: &[f64]) -> Vec<f64> {
    let of_loop = |(number, one): (usize, &code::cfg::Loop)| {
        let into = graph.into_of(one.header).iter();
        let outside = into.filter(|edge| {
            graph.edges().get(**edge).is_some_and(|edge| !loops.contains(number, edge.from))
        });
        let called = if graph.entry() == Some(one.header) { 1.0 } else { 0.0 };
        called + outside.filter_map(|edge| edges.get(*edge)).sum::<f64>()
    };
    loops.loops().iter().enumerate().map(of_loop).collect()
}

/// Fewer samples than this tell nothing.
const SAMPLES_MIN: f64 = 50.0;
/// So many samples of the fewest rounds tell how many there are of one: fewer are chance, more have
/// not seen the loops that end before.
const FEWEST: f64 = 100.0;
const FEWEST_PART: f64 = 0.02;
/// What part of the samples in a loop must tell: else those that are short do so more often.
const TELLING: f64 = 0.8;
/// Standard deviation of the logarithm that remains: samples are where time is spent, which not
/// every round takes alike.
const BIAS: f64 = 0.05;
/// What branches and a loop's test say of its rounds contradict each other where they are more of
/// the test's standard deviations apart than this. Smaller values call chance a contradiction.
const CONTRADICTS: f64 = 4.0;
/// What is seen alike is so but for chance if it is nowhere farther off than this part of a
/// sample's chance (Kolmogorov's distribution: a quarter of what is alike is farther off).
const ALIKE: f64 = 1.02;
/// And if the fewest rounds are not seen oftener by more standard deviations than this: short
/// entries beside long ones are in few samples.
const FEW_MORE: f64 = 3.0;
/// The same of the logarithm where all entries make as many rounds: whichever round takes longer,
/// that is seen alike.
const BIAS_ALIKE: f64 = 0.02;
/// Steps out of loops, edge by edge.
const STEPS_MAX: usize = 1 << 22;

/// What is told of the loops of a graph, in their order; of each by the test that ends most.
#[must_use]
pub fn trips(graph: &Cfg, loops: &Loops, sampled: &Sampled<'_>) -> Vec<Trips> {
    if sampled.rounds.is_empty() {
        return Vec::new();
    }
    let mut turned: HashMap<(Vaddr, bool), Vec<Turned>> = HashMap::new();
    for one in sampled.rounds {
        turned.entry((one.branch, one.jumps)).or_default().push(*one);
    }
    let mut first: HashMap<(Vaddr, Vaddr), u64> = HashMap::new();
    for branch in sampled.branches {
        first.insert((branch.from, branch.to), branch.first);
    }
    let Some(exits) = exits(graph, loops) else { return Vec::new() };
    let told = |(number, exits): (usize, &Exits)| {
        let tests = exits.own.iter().filter_map(|&leaves| {
            let edge = graph.edges().get(leaves)?;
            let block = graph.blocks().get(edge.from)?;
            // The test goes on as the other edge does.
            let jumps = match edge.kind {
                EdgeKind::NotTaken => true,
                EdgeKind::Taken => false,
                _ => return None,
            };
            let goes_on =
                |edge: &Edge| matches!(edge.to, To::Block(to) if loops.contains(number, to));
            let stays = graph
                .out_of(edge.from)
                .find(|other| graph.edges().get(*other).is_some_and(goes_on))?;
            let address = |edge: usize| target(graph, graph.edges().get(edge)?);
            let seen = |edge: usize| {
                address(edge).and_then(|to| first.get(&(block.last, to))).map_or(0, |seen| *seen)
            };
            let (ended, stayed) = (seen(leaves) as f64, seen(stays) as f64);
            let turned = turned.get(&(block.last, jumps))?;
            let mut counts: Vec<(u64, u64, f64)> =
                turned.iter().map(|one| (one.rounds, one.width, one.count as f64)).collect();
            counts.sort_unstable_by_key(|(rounds, ..)| *rounds);
            let Told { ends, spread, quantiles, alike } = tell(&counts, stayed)?;
            // Entries that make one test are seen where none of them is left only; so are those
            // that are yet to begin.
            let some = ends * (ended + stayed) * 2.0;
            let once = ended > some + 3.0 * some.max(1.0).sqrt();
            let samples = turned.iter().fold(0_u64, |sum, one| sum.saturating_add(one.count));
            Some(Trips {
                number,
                leaves,
                test: block.last,
                samples,
                ends,
                spread,
                quantiles,
                alike,
                once,
                only: exits.all == 1,
                decides: exits.all == 1 && !once,
            })
        });
        tests.max_by(|a, b| a.ends.total_cmp(&b.ends))
    };
    exits.iter().enumerate().filter_map(told).collect()
}

/// The edges that leave a loop.
#[derive(Clone, Default)]
struct Exits {
    all: usize,
    /// Those from blocks that are in no loop in it.
    own: Vec<usize>,
}

/// None where that takes more than [`STEPS_MAX`] steps: loops are in each other thousands deep.
fn exits(graph: &Cfg, loops: &Loops) -> Option<Vec<Exits>> {
    let mut exits = vec![Exits::default(); loops.loops().len()];
    let mut steps = 0;
    let parent = |number: usize| loops.loops().get(number).and_then(|inner| inner.parent);
    for (number, edge) in graph.edges().iter().enumerate() {
        let innermost = loops.innermost(edge.from);
        let mut within = innermost;
        let mut target = if let To::Block(to) = edge.to { loops.innermost(to) } else { None };
        // The loops that both are in are the same from some on; those around a loop have smaller
        // numbers.
        while within != target {
            steps += 1;
            if steps > STEPS_MAX {
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

struct Told {
    ends: f64,
    spread: f64,
    quantiles: [(u64, u64); 3],
    alike: bool,
}

/// From counts of rounds that were left (fewest, width of the class, samples; in ascending order),
/// of a test that was seen to go on so often.
fn tell(counts: &[(u64, u64, f64)], stayed: f64) -> Option<Told> {
    let sum: f64 = counts.iter().map(|(.., count)| count).sum();
    if sum < SAMPLES_MIN || sum < TELLING * stayed {
        return None;
    }
    // Tests that are left, the one that ends the loop too, and how many samples have at most so
    // many, but one.
    let mut points = vec![(1.0, 0.0)];
    let mut before = 0.0;
    for (rounds, width, count) in counts {
        before += count;
        points.push((rounds.saturating_add(*width) as f64, before));
    }
    if let Some((tests, samples)) = alike(counts, &points) {
        let rounds = 1.0 + (tests - 1.0) * sum / samples;
        let spread = BIAS_ALIKE.hypot(1.0 / samples.sqrt());
        let ends = 1.0 / rounds;
        // Whole numbers: of a few rounds one is left.
        let (low, high) = range(ends, spread);
        let (low, high) = (low.ceil().min(rounds.round()), high.floor().max(rounds.round()));
        return Some(Told { ends, spread, quantiles: [(low as u64, high as u64); 3], alike: true });
    }
    let fewest = (sum / 10.0).clamp(SAMPLES_MIN, FEWEST).max(sum * FEWEST_PART).min(sum);
    let steep = |(tests, samples): &(f64, f64)| samples / (tests - 1.0);
    // As long as it does not fall, more of it tells the same with more samples. Where chance can
    // explain a slope, it is not taken for one.
    let surely = |point: &(f64, f64)| steep(point) * (1.0 - 1.0 / point.1.sqrt());
    let enough = points.iter().skip(1).filter(|(_, samples)| *samples >= fewest);
    let window = enough.max_by(|a, b| surely(a).total_cmp(&surely(b)))?;
    let (density, chance) = (steep(window), 1.0 / window.1.sqrt());
    let majorant = majorant(&points);
    // At least so many tests are made by the part of entries that the slope there is of the first.
    let quantile = |part: f64| {
        let reached = majorant.windows(2).filter_map(|pair| {
            let [from, to] = pair else { return None };
            let slope = (to.1 - from.1) / (to.0 - from.0);
            (slope >= density * (1.0 - part) * (1.0 - 1.5 * chance)).then_some(to.0)
        });
        let most = reached.fold(2.0, f64::max) as u64;
        let class = counts.iter().find(|(rounds, width, _)| rounds.saturating_add(*width) == most);
        (class.map_or(most, |(rounds, ..)| rounds.saturating_add(1)), most)
    };
    let rounds = 1.0 + sum / density;
    Some(Told {
        ends: 1.0 / rounds,
        spread: BIAS.hypot(chance),
        quantiles: [0.1, 0.5, 0.9].map(quantile),
        alike: false,
    })
}

/// Up to how many tests, and of how many samples, all numbers are seen alike: all of them, but for
/// the last class, which the largest number may not fill. None where they are not.
fn alike(counts: &[(u64, u64, f64)], points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let (_, width, _) = counts.last()?;
    let filled = points.get(..points.len() - usize::from(*width > 1))?;
    let &(tests, samples) = filled.last().filter(|(_, samples)| *samples >= SAMPLES_MIN)?;
    let is_alike = |(at, below): &(f64, f64)| {
        let more = below - samples * (at - 1.0) / (tests - 1.0);
        let chance = (below - more).max(1.0).sqrt();
        more.abs() <= ALIKE * samples.sqrt() && more <= FEW_MORE * chance
    };
    filled.iter().all(is_alike).then_some((tests, samples))
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
    fn sampled(samples: usize, entry: impl FnMut(&mut fastrand::Rng) -> u64) -> Told {
        seeded(3, samples, entry)
    }

    fn seeded(seed: u64, samples: usize, mut entry: impl FnMut(&mut fastrand::Rng) -> u64) -> Told {
        let mut random = fastrand::Rng::with_seed(seed);
        // Who is sampled is in a long entry more often.
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
        tell(&counts, samples as f64 - ended).unwrap()
    }

    fn near(told: f64, truth: f64, part: f64) {
        assert!((told / truth).ln().abs() < part, "{told} instead of {truth}");
    }

    #[test]
    fn a_loop_of_always_the_same_rounds_is_told_so() {
        for rounds in [3, 40, 1000, 1 << 20] {
            let told = sampled(3000, |_| rounds);
            near(1.0 / told.ends, rounds as f64, 0.25);
            told.quantiles.iter().for_each(|(_, most)| near(*most as f64, rounds as f64, 0.25));
        }
        // In the mean they are right, rather than too few.
        let mean = (0..100)
            .map(|seed| (1.0 / seeded(seed, 1000, |_| 100).ends / 100.0).ln() / 100.0)
            .sum::<f64>();
        assert!(mean.abs() < 0.03, "{mean}");
    }

    #[test]
    fn what_is_told_of_always_the_same_rounds_is_seldom_far_off() {
        let (mut few, mut squares) = (0, 0.0);
        for seed in 0..200 {
            let told = seeded(seed, 800, |_| 1000);
            few += u32::from(told.quantiles[0].1 < 600);
            squares += ((1.0 / told.ends / 1000.0).ln() / told.spread).powi(2) / 200.0;
        }
        assert!(few <= 12, "{few} of 200 tell of short entries");
        assert!(squares < 2.0, "{squares}: the spread is too small");
    }

    #[test]
    fn short_entries_are_told_of_though_long_ones_are_sampled_more_often() {
        // Half make 4 rounds, half 400: 202 in the mean, and 99 of 100 samples are in the long
        // ones.
        let told = sampled(20_000, |random| if random.bool() { 4 } else { 400 });
        near(1.0 / told.ends, 202.0, 0.35);
        near(told.quantiles[0].1 as f64, 4.0, 0.4);
        near(told.quantiles[2].1 as f64, 400.0, 0.2);
        // That all make 400 is hardly ever told.
        let long = |seed: &u64| {
            seeded(*seed, 4000, |random| if random.bool() { 4 } else { 400 }).ends < 1.0 / 370.0
        };
        let long = (0..100).filter(long).count();
        assert!(long <= 8, "{long} of 100");
    }

    #[test]
    fn entries_of_any_length_have_their_quantiles() {
        // Alike from 1 to 200: the mean is 100.
        let told = sampled(20_000, |random| random.u64(1..=200));
        near(1.0 / told.ends, 100.0, 0.2);
        for (quantile, truth) in told.quantiles.into_iter().zip([20.0, 100.0, 180.0]) {
            near(quantile.1 as f64, truth, 0.6);
        }
    }

    #[test]
    fn few_samples_and_those_of_which_many_tell_nothing_say_nothing() {
        assert!(tell(&[(5, 1, 49.0)], 0.0).is_none());
        assert!(tell(&[(5, 1, 70.0)], 100.0).is_none());
        assert!(tell(&[(5, 1, 90.0)], 100.0).is_some());
        assert!(tell(&[], 0.0).is_none());
    }
}

//! Execution frequencies on a processor that issues instructions in order, from samples and best
//! cases: the paper's S/M (SOSP 1997, section 6.1.3).
//!
//! An issue point is an instruction that is at the head of the issue queue for M > 0 cycles in its
//! best case. If it is never stalled, its samples S are in proportion to M times its executions;
//! stalls add samples. So among the issue points of a class of blocks that are executed equally
//! often, those with the smallest ratios S/M give the class's frequency, provided that enough of
//! them agree. The ratio of each class and its standard deviation go to the solver (`solve.rs`),
//! which reconciles the classes by conservation of flow (the paper's local propagation, section
//! 6.1.4).
//!
//! The constants of this file were set by hand on the simulated Cortex-A53, Cortex-A55 and
//! Cortex-A510 of `analysis/stalls/tests/in_order`, unless their docs name another source.

use code::cfg::{Cfg, Classes};

/// An instruction with its samples and its best case.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct IssuePoint {
    /// Samples of the time that the instruction took.
    pub samples: f64,
    /// Cycles at the head of the issue queue in the best case; 0 for an instruction that is issued
    /// together with the one before it.
    pub best_cycles: f64,
    /// Distance, in instructions, back to the instruction that this one waits for in the best case;
    /// `None` if it waits for nothing.
    pub producer_distance: Option<usize>,
}

/// The estimate that the issue points of a class give for one of its blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct IssueRate {
    /// S/M: samples per cycle at the head of the issue queue, in proportion to executions with the
    /// same factor for all blocks.
    pub(crate) rate: f64,
    /// Standard deviation of the logarithm of `rate` where it is too low; infinite for a class
    /// without issue points.
    pub(crate) log_sd_below: f64,
    /// Mean of the logarithm of the factor by which stalls make `rate` too high.
    pub(crate) log_mean_above: f64,
}

impl IssueRate {
    /// The estimate for a class without issue points: none.
    const UNKNOWN: Self =
        Self { rate: 1.0, log_sd_below: f64::INFINITY, log_mean_above: f64::INFINITY };

    /// Standard deviation of the normal distribution that stands in for this one in the next step
    /// of the solver: it has the same density and slope where the logarithm of `rate` is `excess`
    /// above that of the flow.
    pub(crate) fn log_sd(&self, excess: f64) -> f64 {
        let stalled = if excess > 0.0 { self.log_mean_above * excess.max(EXCESS_MIN) } else { 0.0 };
        (self.log_sd_below * self.log_sd_below + stalled).sqrt()
    }
}

/// The factor from cycles to samples, on the scale on which executions are estimated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Samples per cycle of one execution.
    pub samples_per_cycle: f64,
    /// Standard deviation of the logarithm of `samples_per_cycle`.
    pub log_sd: f64,
}

/// Largest factor between two ratios S/M of one cluster: the paper's 1.5. A larger factor lets
/// stalled issue points into the cluster; a smaller one leaves it too few points.
const CLUSTER_RATIO_MAX: f64 = 1.5;
/// Smallest share of the best-case cycles of its class that a cluster must have. Instructions that
/// are executed less often than their class have low ratios and form clusters of their own: a
/// smaller share takes such a cluster for its class. A larger share drops the right cluster where
/// most issue points are stalled.
const CLUSTER_SHARE_MIN: f64 = 0.25;
/// Samples of an instruction that is issued with the one before it, as a share of those of the
/// issue point after it, above which that instruction was stalled. A larger share misses stalls; a
/// smaller one takes chance for a stall and merges points for nothing.
const STALLED_SHARE_MIN: f64 = 0.25;
/// Largest difference, in cycles, of a best case from a whole number. A best case farther off is
/// the mean of executions in which the instruction was issued alone and of others in which it was
/// issued with the one before it. Larger than the rounding of a mean, smaller than 1/32.
const WHOLE_CYCLE_TOLERANCE: f64 = 0.03;
/// Fewest samples per issue point of a class with which its smallest ratios are looked for. With
/// fewer, the smallest ratio is small by chance, so the sum over all points decides. A larger
/// number lets stalls decide more classes.
const SAMPLES_PER_POINT_MIN: f64 = 12.0;
/// Mean of the logarithm of the factor by which the ratio of a single issue point is too high: the
/// point may always be stalled. A smaller mean trusts single points too much.
const STALL_LOG_MEAN: f64 = 1.0;
/// The mean excess of a cluster of n points is [`STALL_LOG_MEAN`] / n to this power, because all of
/// them would have to be stalled alike. A smaller power makes clusters say too little.
const STALL_LOG_MEAN_EXPONENT: f64 = 1.25;
/// Smallest excess, as a logarithm, at which a rate that is too high is weighed: a point that seems
/// to be stalled by less may be stalled by this much. With 0, the solver would take whatever fits
/// exactly for exact.
const EXCESS_MIN: f64 = 0.1;
/// Relative error of the model's best-case cycles of one issue point, as a standard deviation.
/// Larger values let noisy points decide less.
const BEST_CASE_ERROR: f64 = 0.06;
/// Samples added to each sum before its logarithm is taken, so that a sum without samples has one.
/// From the time model of the first experiments.
const PSEUDO_SAMPLES: f64 = 0.3;

/// The estimates that the classes of the graph give for each block.
pub(crate) fn rates_of_blocks(graph: &Cfg, issue_points: &[Vec<IssuePoint>]) -> Vec<IssueRate> {
    let classes = Classes::of(graph);
    let mut of_class: Vec<Vec<(f64, f64)>> = vec![Vec::new(); classes.count()];
    let mut blocks = vec![0.0; classes.count()];
    for (block, points) in issue_points.iter().enumerate() {
        let Some(class) = classes.of_block(block) else { continue };
        of_class.get_mut(class).into_iter().for_each(|all| all.extend(ratios(points)));
        blocks.get_mut(class).into_iter().for_each(|count| *count += 1.0);
    }
    let rates: Vec<IssueRate> = of_class.into_iter().map(|points| rate_of_class(&points)).collect();
    let of_block = |block| {
        let class = classes.of_block(block)?;
        let rate = rates.get(class)?;
        // The rate of a class is one observation, however many blocks repeat it to the solver.
        let root = blocks.get(class).map_or(1.0, |count: &f64| count.sqrt());
        Some(IssueRate {
            log_sd_below: rate.log_sd_below * root,
            log_mean_above: rate.log_mean_above * root * root,
            ..*rate
        })
    };
    (0..graph.blocks().len()).map(|block| of_block(block).unwrap_or(IssueRate::UNKNOWN)).collect()
}

/// Samples and best-case cycles of the issue points of a block. Neighbours are merged into one
/// point where their samples cannot be told apart:
///
/// * an instruction that waits for another is merged with all from its producer on, since a stall
///   of these makes its own wait shorter;
/// * instructions that are issued with the one before them in some executions only are merged with
///   their neighbours: how often each is issued alone depends on stalls before them;
/// * an instruction that is issued with the one before it and was stalled is merged with the next,
///   which may be issued with it then.
fn ratios(points: &[IssuePoint]) -> Vec<(f64, f64)> {
    let mut merged = Vec::new();
    let (mut begin, mut divided) = (0, false);
    for (index, point) in points.iter().enumerate() {
        let is_divided =
            (point.best_cycles - point.best_cycles.round()).abs() > WHOLE_CYCLE_TOLERANCE;
        if !divided && !is_divided {
            let back = point.producer_distance.map_or(0, |distance| distance.saturating_sub(1));
            begin = index.saturating_sub(back);
            let stalled = |before: &IssuePoint| {
                before.best_cycles <= WHOLE_CYCLE_TOLERANCE
                    && before.samples > STALLED_SHARE_MIN * point.samples
            };
            while begin.checked_sub(1).and_then(|before| points.get(before)).is_some_and(stalled) {
                begin -= 1;
            }
        } else if !divided {
            begin = index;
        }
        divided |= is_divided;
        // An instruction that is always the first of its cycle ends the merge; so does the block.
        let ends = point.best_cycles >= 1.0 - WHOLE_CYCLE_TOLERANCE && !is_divided
            || index + 1 == points.len();
        if ends {
            let all = points.get(begin..=index).unwrap_or_default();
            let sum = all
                .iter()
                .fold((0.0, 0.0), |sum, point| (sum.0 + point.samples, sum.1 + point.best_cycles));
            if sum.1 > 0.0 && (divided || point.best_cycles > 0.0) {
                merged.push(sum);
            }
            divided = false;
        }
    }
    merged
}

/// The estimate from the issue points of a class: `points` has the samples and best-case cycles of
/// each.
fn rate_of_class(points: &[(f64, f64)]) -> IssueRate {
    let sum = |points: &[(f64, f64)]| {
        points.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1))
    };
    let (samples, cycles) = sum(points);
    if cycles <= 0.0 {
        return IssueRate::UNKNOWN;
    }
    let mut sorted = points.to_vec();
    sorted.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
    let few = samples < SAMPLES_PER_POINT_MIN * points.len() as f64;
    let cluster = if few {
        Some(sorted.as_slice())
    } else {
        (0..sorted.len()).find_map(|from| cluster(&sorted, from, cycles))
    };
    let cluster = cluster.unwrap_or(&sorted);
    let (samples, cycles) = sum(cluster);
    let rate = (samples + PSEUDO_SAMPLES) / cycles;
    let count = cluster.len() as f64;
    let scatter = cluster
        .iter()
        .map(|(samples, cycles)| ((samples + PSEUDO_SAMPLES) / cycles / rate).ln().powi(2))
        .sum::<f64>()
        / count;
    let by_chance = 1.0 / (samples + 0.5);
    let variance = by_chance
        + BEST_CASE_ERROR * BEST_CASE_ERROR / count
        + if few { 0.0 } else { scatter / count };
    let log_mean_above =
        if few { STALL_LOG_MEAN } else { STALL_LOG_MEAN / count.powf(STALL_LOG_MEAN_EXPONENT) };
    IssueRate { rate, log_sd_below: variance.sqrt(), log_mean_above }
}

/// The points from index `from` on whose ratios are at most [`CLUSTER_RATIO_MAX`] times that of
/// the first of them, if they have enough of the `all` best-case cycles of the class.
fn cluster(sorted: &[(f64, f64)], from: usize, all: f64) -> Option<&[(f64, f64)]> {
    let rest = sorted.get(from..)?;
    let (samples, cycles) = rest.first()?;
    let most = CLUSTER_RATIO_MAX * samples / cycles;
    let count = rest.iter().take_while(|(samples, cycles)| samples / cycles <= most).count();
    let cluster = rest.get(..count)?;
    let enough = cluster.iter().map(|(_, cycles)| cycles).sum::<f64>() >= CLUSTER_SHARE_MIN * all;
    enough.then_some(cluster)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(all: &[(f64, f64)]) -> Vec<IssuePoint> {
        all.iter()
            .map(|&(samples, best)| IssuePoint {
                samples,
                best_cycles: best,
                producer_distance: None,
            })
            .collect()
    }

    #[test]
    fn the_copy_loop_of_the_paper() {
        // Figure 7: S and M of 13 instructions; the loop was executed 1575.1 times for each
        // sample's period, and the paper said 1527.
        let loop_ = [
            (3126.0, 1.0),
            (0.0, 0.0),
            (1636.0, 1.0),
            (390.0, 0.0),
            (1482.0, 1.0),
            (0.0, 0.0),
            (27766.0, 1.0),
            (0.0, 0.0),
            (1493.0, 1.0),
            (174_727.0, 1.0),
            (1548.0, 1.0),
            (0.0, 0.0),
            (1586.0, 1.0),
        ];
        let rate = rate_of_class(&ratios(&points(&loop_)));
        assert!((rate.rate / 1575.1 - 1.0).abs() < 0.05, "{rate:?}");
        assert!(rate.log_sd(0.0) < 0.1 && rate.log_sd(1e-9) < 0.15, "{rate:?}");
    }

    #[test]
    fn an_instruction_that_waits_is_merged_with_its_producer() {
        // The second waits 3 cycles for the first in the best case. A stall of the first for 300
        // cycles leaves the second no wait.
        let waits = [
            IssuePoint { samples: 400.0, best_cycles: 1.0, producer_distance: None },
            IssuePoint { samples: 0.0, best_cycles: 3.0, producer_distance: Some(1) },
        ];
        assert_eq!(ratios(&waits), [(400.0, 1.0), (0.0, 3.0)]);
        let waits = [
            waits[0],
            IssuePoint { samples: 300.0, best_cycles: 1.0, producer_distance: None },
            IssuePoint { producer_distance: Some(2), ..waits[1] },
        ];
        assert_eq!(ratios(&waits)[2], (300.0, 4.0));
        // A producer before the block.
        assert_eq!(
            ratios(&[IssuePoint { samples: 5.0, best_cycles: 1.0, producer_distance: Some(9) }]),
            [(5.0, 1.0)]
        );
    }

    #[test]
    fn few_points_and_few_samples_have_wide_deviations() {
        let one = rate_of_class(&[(1000.0, 1.0)]);
        assert!(
            (one.rate - 1000.3).abs() < 1e-6 && one.log_sd(0.1) > 0.3 && one.log_sd_below < 0.1,
            "{one:?}"
        );
        let few = rate_of_class(&[(3.0, 1.0), (0.0, 1.0), (2.0, 1.0), (1.0, 1.0)]);
        assert!((few.rate - 6.3 / 4.0).abs() < 1e-9 && few.log_sd(0.1) > 0.5, "{few:?}");
        assert_eq!(rate_of_class(&[]), IssueRate::UNKNOWN);
        // One of many points is too low to be true, so the cluster of the others counts.
        let low = rate_of_class(&[
            (10.0, 1.0),
            (1000.0, 1.0),
            (1010.0, 1.0),
            (1020.0, 1.0),
            (990.0, 1.0),
            (1500.0, 1.0),
        ]);
        assert!((low.rate / 1000.0 - 1.0).abs() < 0.15, "{low:?}");
    }
}

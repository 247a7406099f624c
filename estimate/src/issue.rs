//! How often what is executed on a processor that issues instructions in order, from samples and
//! best cases: the paper's S/M (SOSP 1997, section 6.1.3).
//!
//! An instruction that is at the head of the issue queue for M cycles at best (an issue point, if M
//! is more than 0) and never stalled has samples in proportion to M times its executions; stalls
//! add to them. So of the points of a class of blocks that are executed equally often, those with
//! the smallest ratios of samples S to M tell how often, if they are enough that agree. That is
//! done class by class; what each block's class says, and how sure, goes to the solver
//! (`solve.rs`), which makes a flow of it (the paper's local propagation, section 6.1.4).

use code::cfg::{Cfg, Classes};

/// An instruction of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// Samples of the time that it took.
    pub samples: f64,
    /// Cycles that it is at the head of the queue at best, 0 where it is issued with the one
    /// before.
    pub best: f64,
    /// How many instructions before it the one is that keeps it waiting in the best case, if any
    /// does.
    pub after: Option<usize>,
}

/// What the points of a class say of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Told {
    /// Samples for each cycle that one execution has it at the head: in proportion to executions,
    /// and the same for all blocks.
    pub(crate) rate: f64,
    /// Standard deviation of the logarithm of that, if it is less than it should be; infinite where
    /// there is no point.
    pub(crate) below: f64,
    /// Mean of the logarithm of how much more it is, if stalls make it so.
    pub(crate) above: f64,
}

impl Told {
    /// The standard deviation of a normal distribution that is as probable, and as steep, where the
    /// logarithm is so much above what it should be.
    pub(crate) fn spread(&self, over: f64) -> f64 {
        let stalled = if over > 0.0 { self.above * over.max(ALWAYS) } else { 0.0 };
        (self.below * self.below + stalled).sqrt()
    }
}

/// Samples for each cycle of one execution, beside which executions are given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// So many.
    pub told: f64,
    /// Standard deviation of the logarithm of that.
    pub spread: f64,
}

/// Ratios of a cluster differ by this factor at most (the paper's).
const WIDTH: f64 = 1.5;
/// A cluster has this part of all best cases of its class, or is dropped: what is executed less
/// often than it is thought to be has low ratios.
const PART: f64 = 0.25;
/// One that takes no time at best has taken this part of what the next has, or it was not stalled.
const PARTNER: f64 = 0.25;
/// A best case that is further from a whole number than this is that of an instruction that is
/// issued with the one before now and then.
const DIVIDED: f64 = 0.03;
/// Fewer samples for each point of a class than this are summed up, all of them: the smallest would
/// be so by chance.
const FEW: f64 = 12.0;
/// Mean of the logarithm of what one point says too much: it may always be stalled. That of several
/// falls with this power of how many they are, for they would have to be stalled alike.
const ONE: f64 = 1.0;
const FALLS: f64 = 1.25;
/// Who seems to be stalled by less than this may be by so much.
const ALWAYS: f64 = 0.1;
/// Best cases are not exact: by so much may that of a point be off.
const INEXACT: f64 = 0.06;
/// What is told where there is no point.
const UNKNOWN: Told = Told { rate: 1.0, below: f64::INFINITY, above: f64::INFINITY };

/// What is told of each block.
pub(crate) fn tell(graph: &Cfg, points: &[Vec<Point>]) -> Vec<Told> {
    let classes = Classes::of(graph);
    let mut of_class: Vec<Vec<(f64, f64)>> = vec![Vec::new(); classes.count()];
    let mut blocks = vec![0.0; classes.count()];
    for (block, points) in points.iter().enumerate() {
        let Some(class) = classes.of_block(block) else { continue };
        of_class.get_mut(class).into_iter().for_each(|all| all.extend(ratios(points)));
        blocks.get_mut(class).into_iter().for_each(|count| *count += 1.0);
    }
    let told: Vec<Told> = of_class.into_iter().map(|points| rate(&points)).collect();
    let of_block = |block| {
        let class = classes.of_block(block)?;
        let told = told.get(class)?;
        // What a class says counts once, however many blocks it has.
        let once = blocks.get(class).map_or(1.0, |count: &f64| count.sqrt());
        Some(Told { below: told.below * once, above: told.above * once * once, ..*told })
    };
    (0..graph.blocks().len()).map(|block| of_block(block).unwrap_or(UNKNOWN)).collect()
}

/// Samples and best cases of the issue points of a block. Where one waits for another before it, of
/// all from there on, for whatever stalls those makes its own wait shorter. And where some are
/// issued with the one before them now and then only, of all of them together: how often each is
/// depends on what came before the block, and on stalls there. So it is where one that is issued
/// with the one before it was stalled: the next may be issued with it then.
fn ratios(points: &[Point]) -> Vec<(f64, f64)> {
    let mut found = Vec::new();
    let (mut begin, mut divided) = (0, false);
    for (index, point) in points.iter().enumerate() {
        let is_divided = (point.best - point.best.round()).abs() > DIVIDED;
        if !divided && !is_divided {
            begin = index.saturating_sub(point.after.map_or(0, |after| after.saturating_sub(1)));
            let stalled =
                |before: &Point| before.best <= DIVIDED && before.samples > PARTNER * point.samples;
            while begin.checked_sub(1).and_then(|before| points.get(before)).is_some_and(stalled) {
                begin -= 1;
            }
        } else if !divided {
            begin = index;
        }
        divided |= is_divided;
        // One that is always the first of its cycle ends them, and so does the block.
        let ends = point.best >= 1.0 - DIVIDED && !is_divided || index + 1 == points.len();
        if ends {
            let all = points.get(begin..=index).unwrap_or_default();
            let sum = all
                .iter()
                .fold((0.0, 0.0), |sum, point| (sum.0 + point.samples, sum.1 + point.best));
            if sum.1 > 0.0 && (divided || point.best > 0.0) {
                found.push(sum);
            }
            divided = false;
        }
    }
    found
}

/// What points that are executed equally often say: samples and best cases of each.
fn rate(points: &[(f64, f64)]) -> Told {
    let sum = |points: &[(f64, f64)]| {
        points.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1))
    };
    let (samples, best) = sum(points);
    if best <= 0.0 {
        return UNKNOWN;
    }
    let mut sorted = points.to_vec();
    sorted.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
    let few = samples < FEW * points.len() as f64;
    let cluster = if few {
        Some(sorted.as_slice())
    } else {
        (0..sorted.len()).find_map(|from| cluster(&sorted, from, best))
    };
    let cluster = cluster.unwrap_or(&sorted);
    let (samples, best) = sum(cluster);
    let rate = (samples + 0.3) / best;
    let mean = cluster.len() as f64;
    let differ = cluster
        .iter()
        .map(|(samples, best)| ((samples + 0.3) / best / rate).ln().powi(2))
        .sum::<f64>()
        / mean;
    let by_chance = 1.0 / (samples + 0.5);
    let below = by_chance + INEXACT * INEXACT / mean + if few { 0.0 } else { differ / mean };
    Told { rate, below: below.sqrt(), above: if few { ONE } else { ONE / mean.powf(FALLS) } }
}

/// Those from one on whose ratios are nearly its own, if they are enough.
fn cluster(sorted: &[(f64, f64)], from: usize, all: f64) -> Option<&[(f64, f64)]> {
    let rest = sorted.get(from..)?;
    let (samples, best) = rest.first()?;
    let most = WIDTH * samples / best;
    let count = rest.iter().take_while(|(samples, best)| samples / best <= most).count();
    let cluster = rest.get(..count)?;
    (cluster.iter().map(|(_, best)| best).sum::<f64>() >= PART * all).then_some(cluster)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(all: &[(f64, f64)]) -> Vec<Point> {
        all.iter().map(|&(samples, best)| Point { samples, best, after: None }).collect()
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
        let told = rate(&ratios(&points(&loop_)));
        assert!((told.rate / 1575.1 - 1.0).abs() < 0.05, "{told:?}");
        assert!(told.spread(0.0) < 0.1 && told.spread(1e-9) < 0.15, "{told:?}");
    }

    #[test]
    fn what_waits_for_another_is_looked_at_with_it() {
        // The second waits 3 cycles for the first, which was stalled for 300: it waits no more
        // itself.
        let waits = [
            Point { samples: 400.0, best: 1.0, after: None },
            Point { samples: 0.0, best: 3.0, after: Some(1) },
        ];
        assert_eq!(ratios(&waits), [(400.0, 1.0), (0.0, 3.0)]);
        let waits = [
            waits[0],
            Point { samples: 300.0, best: 1.0, after: None },
            Point { after: Some(2), ..waits[1] },
        ];
        assert_eq!(ratios(&waits)[2], (300.0, 4.0));
        // More than there are before it.
        assert_eq!(ratios(&[Point { samples: 5.0, best: 1.0, after: Some(9) }]), [(5.0, 1.0)]);
    }

    #[test]
    fn few_points_and_few_samples_are_not_sure() {
        let one = rate(&[(1000.0, 1.0)]);
        assert!(
            (one.rate - 1000.3).abs() < 1e-6 && one.spread(0.1) > 0.3 && one.below < 0.1,
            "{one:?}"
        );
        let few = rate(&[(3.0, 1.0), (0.0, 1.0), (2.0, 1.0), (1.0, 1.0)]);
        assert!((few.rate - 6.3 / 4.0).abs() < 1e-9 && few.spread(0.1) > 0.5, "{few:?}");
        assert_eq!(rate(&[]), UNKNOWN);
        // One of many is lower than it can be: what the others say counts.
        let low = rate(&[
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

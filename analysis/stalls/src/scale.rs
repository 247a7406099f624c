//! The scale of a procedure: samples per cycle of one execution.
//!
//! Samples tell only of time, so how often a procedure was executed is unknown. But no instruction
//! is faster than its best case, and most code is slower than its best case by a similar factor,
//! whatever it does. Against exact counts (`dcpi truth`), 290 procedures of eight programs took 3
//! times the mean of best cases that `Scale::from_blocks` takes, with a standard deviation of 0.56
//! in the logarithm.
//!
//! The paper takes the instructions nearest to their best case for unstalled (section 6.1.3). On a
//! processor that executes out of order hardly any instruction is unstalled, and those that seem to
//! be are executed less often than estimated. Where a processor issues in order, the paper's method
//! is used: [`estimate::issue`].

use estimate::Pace;

/// Samples and cycles of a block.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct BlockTime {
    /// Samples of time in the block.
    pub samples: f64,
    /// Best-case cycles of all executions of the block, on the scale of the procedure's estimate.
    pub best_cycles: f64,
    /// Cycles of all executions with every suspected stall at its most.
    pub worst_cycles: f64,
    /// Standard deviation of the logarithm of the block's executions.
    pub log_sd: f64,
}

/// Samples per cycle of an execution, on the scale of the procedure's estimate, with limits.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Scale {
    /// The likeliest value. Where [`ScaleBasis::Unknown`], the lowest.
    pub samples_per_cycle: f64,
    /// Upper limit for 19 of 20 procedures.
    pub upper: f64,
    /// Lower limit for 19 of 20 procedures.
    pub lower: f64,
    /// Lower limit for all procedures: that of a block with every suspected stall at its most.
    pub lower_if_stalled: f64,
    /// The evidence for the scale.
    pub basis: ScaleBasis,
}

/// The evidence for a scale.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ScaleBasis {
    /// The typical factor between code and its best case.
    TypicalStalls,
    /// Issue points that seem not to have been stalled, on a processor that issues in order.
    IssuePoints,
    /// Samples of retired instructions.
    RetiredInstructions,
    /// Exact counts of one of the runs that were sampled.
    ExactCounts,
    /// Rounds per second of a loop, from registers at pairs of samples.
    Rounds,
    /// None: most of the time is in instructions that may have waited for memory, for any time up
    /// to its latency, and the others have too few samples to tell; or it was not measured on this
    /// processor how much slower than its best case code typically is.
    Unknown,
}

/// The part of a procedure in instructions that do not wait for memory, as shares from 0 to 1.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct MemoryFreeShare {
    /// Share of the procedure's samples.
    pub samples: f64,
    /// Share of the procedure's best-case cycles.
    pub best_cycles: f64,
}

/// Smallest share of a procedure's best-case cycles with which instructions that do not wait for
/// memory give its scale, unless they have half of its samples. Set by hand on a pointer chase. A
/// smaller share lets single instructions decide; a larger one calls more procedures unknown.
const MEMORY_FREE_SHARE_MIN: f64 = 0.1;

/// Factor between the time of a procedure and the weighted geometric mean of its best cases; see
/// above. Measured on a Zen 3 processor with `dcpi truth`. A larger value reports more cycles per
/// execution.
const TYPICAL_SLOWDOWN: f64 = 3.0;
/// Factor by which the scales of 19 of 20 procedures are off at most. Measured with `dcpi truth`
/// over all 428 procedures, also those with few samples. A smaller value makes ranges that fail
/// more often.
const SLOWDOWN_FACTOR_95: f64 = 4.0;
/// Standard deviation of the logarithm of a block's executions at which the block has half the
/// weight of one that is known exactly. Set by hand. A larger value lets blocks count that are
/// executed less often than estimated.
const HALF_WEIGHT_LOG_SD: f64 = 0.15;
/// Samples, distributed as those of the whole procedure, that are added to each block's. Set by
/// hand: with fewer, a block without samples rules the geometric mean.
const PSEUDO_SAMPLES: f64 = 4.0;

impl Scale {
    /// The scale where executions are known. None unless it is a positive number.
    pub fn measured(scale: f64, basis: ScaleBasis) -> Option<Self> {
        (scale.is_finite() && scale > 0.0).then_some(Self {
            samples_per_cycle: scale,
            upper: scale,
            lower: scale,
            lower_if_stalled: scale,
            basis,
        })
    }

    /// Whether the scale is from known executions, so that it has no range.
    pub fn is_measured(&self) -> bool {
        matches!(self.basis, ScaleBasis::RetiredInstructions | ScaleBasis::ExactCounts)
    }

    /// The scale by issue points; `None` if these do not determine it.
    pub fn from_pace(pace: Pace, blocks: &[BlockTime]) -> Option<Self> {
        let factor = (2.0 * pace.log_sd).exp();
        let (samples_per_cycle, upper, lower) = (
            pace.samples_per_cycle,
            pace.samples_per_cycle * factor,
            pace.samples_per_cycle / factor,
        );
        // All issue points may have been stalled; then executions are fewer.
        let known = samples_per_cycle > 0.0 && lower > 0.0 && upper.is_finite();
        known.then_some(Self {
            samples_per_cycle,
            upper,
            lower,
            lower_if_stalled: lower_if_stalled(blocks).min(lower),
            basis: ScaleBasis::IssuePoints,
        })
    }

    /// The scale by the typical factor between code and its best case. `None` without samples.
    pub fn from_blocks(blocks: &[BlockTime]) -> Option<Self> {
        let sum = |of: fn(&BlockTime) -> f64| blocks.iter().map(of).sum::<f64>();
        let (samples, best) = (sum(|block| block.samples), sum(|block| block.best_cycles));
        if samples <= 0.0 || best <= 0.0 {
            return None;
        }
        let fastest = samples / best;
        // The geometric mean over blocks, since stalled blocks have many samples, and blocks that
        // are executed less often than estimated have few.
        let (mut weights, mut logs) = (0.0, 0.0);
        for block in blocks {
            let weight = block.best_cycles / (1.0 + (block.log_sd / HALF_WEIGHT_LOG_SD).powi(2));
            weights += weight;
            logs += weight
                * ((block.samples + PSEUDO_SAMPLES)
                    / (block.best_cycles + PSEUDO_SAMPLES / fastest))
                    .ln();
        }
        let typical = if weights > 0.0 { (logs / weights).exp() } else { fastest };
        let samples_per_cycle = (typical / TYPICAL_SLOWDOWN).min(fastest);
        let lower = samples_per_cycle / SLOWDOWN_FACTOR_95;
        Some(Self {
            samples_per_cycle,
            upper: (samples_per_cycle * SLOWDOWN_FACTOR_95).min(fastest),
            lower,
            lower_if_stalled: lower_if_stalled(blocks).min(lower),
            basis: ScaleBasis::TypicalStalls,
        })
    }
}

impl Scale {
    /// This scale, or an unknown one if instructions that do not wait for memory, slower than their
    /// best case by the typical factor, imply a scale below the lower limit of this one.
    pub fn unless_memory_bound(self, memory_free: MemoryFreeShare, blocks: &[BlockTime]) -> Self {
        let sum = |of: fn(&BlockTime) -> f64| blocks.iter().map(of).sum::<f64>();
        let fastest = sum(|block| block.samples) / sum(|block| block.best_cycles);
        let by_memory_free = fastest * memory_free.samples
            / memory_free.best_cycles.max(f64::MIN_POSITIVE)
            / TYPICAL_SLOWDOWN;
        let suffices =
            memory_free.best_cycles >= MEMORY_FREE_SHARE_MIN || memory_free.samples >= 0.5;
        if suffices && by_memory_free >= self.lower {
            return self;
        }
        self.unknown(blocks)
    }

    /// This scale where there is no evidence for it: only limits that hold for any code.
    pub fn unknown(self, blocks: &[BlockTime]) -> Self {
        let sum = |of: fn(&BlockTime) -> f64| blocks.iter().map(of).sum::<f64>();
        let samples_per_cycle =
            if self.lower_if_stalled > 0.0 { self.lower_if_stalled } else { self.lower };
        Self {
            samples_per_cycle,
            upper: sum(|block| block.samples) / sum(|block| block.best_cycles),
            lower: self.lower_if_stalled,
            basis: ScaleBasis::Unknown,
            ..self
        }
    }

    /// Whether something was measured or counted that tells it: no assumption about typical code.
    pub fn is_from_evidence(&self) -> bool {
        self.is_measured() || matches!(self.basis, ScaleBasis::Rounds | ScaleBasis::IssuePoints)
    }

    /// Whether there is evidence for the scale. If not, only its limits hold.
    pub fn is_known(&self) -> bool {
        self.basis != ScaleBasis::Unknown
    }
}

/// Lower limit of the scale, in samples per cycle: no block has more samples than it would have
/// with every suspected stall at its most.
fn lower_if_stalled(blocks: &[BlockTime]) -> f64 {
    // Two standard deviations below the samples, which chance may have raised.
    let ratios = blocks
        .iter()
        .map(|block| (block.samples - 2.0 * block.samples.sqrt()) / block.worst_cycles);
    ratios.filter(|ratio| ratio.is_finite()).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pointer chase through memory was reported with 15 cycles per execution, at most 60: 3
    /// times its best case. The truth was 570.
    #[test]
    fn the_scale_is_unknown_where_memory_may_have_taken_all_the_time() {
        let chase =
            BlockTime { samples: 48_000.0, best_cycles: 5.0, worst_cycles: 3605.0, log_sd: 0.0 };
        let scale = Scale::from_blocks(&[chase]).unwrap();
        assert!((scale.samples_per_cycle * 15.0 / 48_000.0 - 1.0).abs() < 0.01, "{scale:?}");
        let all_waits = scale
            .unless_memory_bound(MemoryFreeShare { samples: 0.001, best_cycles: 0.05 }, &[chase]);
        assert!(all_waits.basis == ScaleBasis::Unknown && !all_waits.is_known());
        let cycles = |samples: f64| 48_000.0 / samples;
        assert!(
            (cycles(all_waits.upper) - 5.0).abs() < 0.01 && cycles(all_waits.lower) > 3605.0,
            "{all_waits:?}"
        );
        // Instructions that do not wait for memory have hardly a sample, though they are a third of
        // the best case.
        let others = scale
            .unless_memory_bound(MemoryFreeShare { samples: 0.02, best_cycles: 0.3 }, &[chase]);
        assert!(!others.is_known());
        // A third of the samples in a third of the best case is typical.
        assert_eq!(
            scale.unless_memory_bound(MemoryFreeShare { samples: 0.3, best_cycles: 0.3 }, &[chase]),
            scale
        );
        // A stall without a limit: there is a lower limit of cycles, and no upper one.
        let endless = BlockTime { worst_cycles: f64::INFINITY, ..chase };
        let scale = Scale::from_blocks(&[endless])
            .unwrap()
            .unless_memory_bound(MemoryFreeShare { samples: 0.0, best_cycles: 0.0 }, &[endless]);
        assert!(
            scale.lower == 0.0 && scale.samples_per_cycle > 0.0 && !scale.is_known(),
            "{scale:?}"
        );
    }

    #[test]
    fn typical_code_sets_the_scale() {
        let plain =
            BlockTime { samples: 600.0, best_cycles: 20.0, worst_cycles: 300.0, log_sd: 0.0 };
        let stalled =
            BlockTime { samples: 40_000.0, best_cycles: 10.0, worst_cycles: 50_000.0, log_sd: 0.0 };
        let scale = Scale::from_blocks(&[plain]).unwrap();
        assert!(
            (scale.samples_per_cycle - 10.0).abs() < 0.01 && (scale.upper - 30.0).abs() < 0.01,
            "never faster than at best_cycles: {scale:?}"
        );
        assert!(
            (scale.lower - 2.5).abs() < 0.01 && (1.8..1.9).contains(&scale.lower_if_stalled),
            "{scale:?}"
        );
        // A block that is stalled for long leaves the others to decide. Alone, it is reported with
        // too few cycles.
        let with = Scale::from_blocks(&[plain, stalled]).unwrap();
        assert!(
            (1.0..10.0).contains(&(with.samples_per_cycle / scale.samples_per_cycle)),
            "{with:?}"
        );
        let alone = Scale::from_blocks(&[stalled]).unwrap();
        assert!(alone.samples_per_cycle > 1000.0 && alone.lower_if_stalled < 1.0, "{alone:?}");
        // A block with uncertain executions has less weight.
        let unsure = BlockTime { samples: 10.0, log_sd: 1.0, ..plain };
        let with = Scale::from_blocks(&[plain, unsure]).unwrap();
        assert!(
            (0.4..1.0).contains(&(with.samples_per_cycle / scale.samples_per_cycle)),
            "{with:?}"
        );
        assert_eq!(Scale::from_blocks(&[BlockTime { samples: 0.0, ..plain }]), None);
        // Many short blocks, of which hardly any has a sample, count as one.
        let few: Vec<BlockTime> = (0..1000)
            .map(|number| BlockTime {
                samples: f64::from(number % 10 / 9),
                best_cycles: 1.0,
                worst_cycles: 100.0,
                log_sd: 0.0,
            })
            .collect();
        let scale = Scale::from_blocks(&few).unwrap();
        assert!((0.02..0.05).contains(&scale.samples_per_cycle), "{scale:?}");
    }
}

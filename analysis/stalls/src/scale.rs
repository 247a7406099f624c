//! The scale of a procedure: samples per cycle of one execution.
//!
//! Samples tell only of time, so how often a procedure was executed is unknown without evidence of
//! another kind: retired instructions, exact counts, rounds between two samples, or, where a
//! processor issues in order, instructions that seem not to have been stalled (the paper's method,
//! section 6.1.3: [`estimate::issue`]). Without any there are limits only. A usual factor between
//! code and its best case tells nothing: fitted on a Zen 3 processor, its range held for 1 to 98 %
//! of a program's samples on Sapphire Rapids.

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
    /// Issue points that seem not to have been stalled, on a processor that issues in order.
    IssuePoints,
    /// Samples of retired instructions.
    RetiredInstructions,
    /// Exact counts of one of the runs that were sampled.
    ExactCounts,
    /// Rounds per second of a loop, from registers at pairs of samples.
    Rounds,
    /// None: only the limits hold.
    Unknown,
}

/// Times their best case that blocks take at most where a suspected stall has no limit, which the
/// scale needs to be a number at all.
const UNLIMITED: f64 = 1e4;

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

    /// The limits that hold for any code. `None` without samples.
    pub fn unknown(blocks: &[BlockTime]) -> Option<Self> {
        let sum = |of: fn(&BlockTime) -> f64| blocks.iter().map(of).sum::<f64>();
        let (samples, best) = (sum(|block| block.samples), sum(|block| block.best_cycles));
        if samples <= 0.0 || best <= 0.0 {
            return None;
        }
        let fastest = samples / best;
        let lower = lower_if_stalled(blocks).min(fastest);
        Some(Self {
            samples_per_cycle: if lower > 0.0 { lower } else { fastest / UNLIMITED },
            upper: fastest,
            lower,
            lower_if_stalled: lower,
            basis: ScaleBasis::Unknown,
        })
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

    #[test]
    fn without_evidence_a_scale_has_the_limits_of_any_code() {
        let chase = BlockTime { samples: 48_000.0, best_cycles: 5.0, worst_cycles: 3605.0 };
        let scale = Scale::unknown(&[chase]).unwrap();
        let cycles = |samples: f64| 48_000.0 / samples;
        assert!(!scale.is_known() && (cycles(scale.upper) - 5.0).abs() < 0.01, "{scale:?}");
        assert!((3605.0..3700.0).contains(&cycles(scale.lower)), "{scale:?}");
        // A stall without a limit: there is a lower limit of cycles, and no upper one.
        let endless = BlockTime { worst_cycles: f64::INFINITY, ..chase };
        let scale = Scale::unknown(&[endless]).unwrap();
        assert!(scale.lower == 0.0 && scale.samples_per_cycle > 0.0, "{scale:?}");
        assert_eq!(Scale::unknown(&[BlockTime { samples: 0.0, ..chase }]), None);
    }
}

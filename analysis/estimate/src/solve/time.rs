//! The executions of a block, as its samples suggest.

use crate::flow_graph::Node;

/// Standard deviation of the logarithm of cycles per instruction among the blocks of one procedure.
/// Set by hand with `bench truth`, from the prototype's 0.8: outliers, which it had to cover, are
/// treated apart since (`OUTLIER_SDS`). A larger value lets time decide less where branches were
/// observed.
const CPI_LOG_SD: f64 = 0.4;
/// Distance from the flow, in standard deviations, at which the variance of a block's rate is
/// doubled. Of 3831 blocks of eight programs (`bench truth`), a twentieth took six times as long
/// per instruction as the median block of their procedure. Of a normal distribution as wide in its
/// middle, that would be a two-hundredth. A larger distance lets blocks that are stalled for long
/// pull the flow.
const OUTLIER_SDS: f64 = 3.0;
/// Cost of a mispredicted branch, in instructions that could have been executed meanwhile, charged
/// to the block where the right direction begins. Fitted to the same 3831 blocks: 6 to 8, and
/// values of 5 to 20 score nearly the same. The number of mispredictions is that of a predictor
/// that knows only the probability of each direction.
const MISPREDICT_INSTRUCTIONS: f64 = 10.0;
/// Samples added to a block's before its rate is taken: the logarithm of 0 is infinite. The
/// prototype's value.
const PSEUDO_SAMPLES: f64 = 0.3;

/// A block's rate, which is in proportion to its executions: samples per instruction, or its issue
/// rate. Never 0.
pub(super) fn rate(node: &Node) -> f64 {
    // A class of blocks without issue points has an unknown issue rate.
    let issue = node.issue.filter(|issue| issue.log_sd_below.is_finite());
    issue.map_or((node.samples + PSEUDO_SAMPLES) / node.instructions.max(1.0), |issue| issue.rate)
}

/// Standard deviation of the logarithm of samples per instruction.
pub(crate) fn log_sd(node: &Node) -> f64 {
    (CPI_LOG_SD * CPI_LOG_SD + 1.0 / (node.samples + 0.5)).sqrt()
}

/// A block's rate without the time of `mispredicted` mispredictions per execution.
pub(super) fn rate_after_mispredicts(node: &Node, mispredicted: f64) -> f64 {
    rate(node) / (1.0 + mispredicted * MISPREDICT_INSTRUCTIONS / node.instructions.max(1.0))
}

/// [`log_sd`] of a block whose rate is `excess` above the flow, as a logarithm: the farther off the
/// rate is, the less it weighs (a Cauchy-like weight).
pub(super) fn outlier_log_sd(node: &Node, excess: f64) -> f64 {
    log_sd(node).hypot(excess / OUTLIER_SDS)
}

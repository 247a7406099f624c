//! The cost of walks from sampled registers: of interpreting snapshots, and of walking call stacks.
//!
//! The instruments measure the cost, and the pipeline sets the rates of snapshots and stacks by it.

/// Cost of walks so far, which determines the rates of snapshots and stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkCost {
    /// Snapshots interpreted, or call stacks walked.
    pub walked: u64,
    /// CPU time of that, ns.
    pub cpu_ns: u64,
    /// Time in which the sampler took them, ns: an estimate.
    pub sampler_ns: u64,
}

//! The problem that the solver is given: a flow graph with the observations of its nodes and
//! transitions.

use crate::issue::IssueRate;

/// Bias of an observed branch probability p that no number of observations removes, as a standard
/// deviation in units of sqrt(p (1 - p)): samples are taken where time is spent, which correlates
/// with where branches go. The value of the experiments before the solver (2 * 0.006). A larger
/// value lets samples of time overrule branches that were observed often.
const BRANCH_BIAS: f64 = 0.012;
/// Factor on the prior of a transition that was never observed, though its node's branch was: if
/// the probabilities of rare transitions are log-uniform between 1e-6 and 1/2, the mean probability
/// of one not observed in n times is 0.1 / n. An interpreter has hundreds of such transitions: a
/// larger factor makes its loop end too early.
const UNOBSERVED_PRIOR_FACTOR: f64 = 0.1;

/// The probability that a test ends its loop, as its trip count has it. Its error is log-normal on
/// either side: short entries, which make it larger, have few samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExitEstimate {
    /// The median.
    pub value: f64,
    /// Standard deviation of the logarithm of `value` where the truth is below it.
    pub log_sd: f64,
    /// The same where the truth is above it.
    pub log_sd_above: f64,
}

/// A flow graph with its observations.
#[derive(Clone, Debug, Default)]
pub struct FlowGraph {
    /// The blocks of the procedure in their order, then one node per shared jump table.
    pub nodes: Vec<Node>,
    /// Transitions between nodes, sorted by the node that they leave.
    pub transitions: Vec<Transition>,
    /// The node of the procedure's entry.
    pub entry: usize,
    /// Indices of the transitions from a guard into its loop that have no observation: only their
    /// prior decides how often the loop is entered.
    pub guards: Vec<usize>,
}

/// A block or a shared jump table, with its samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Node {
    /// Samples of time in the block.
    pub samples: f64,
    /// Instructions of the block; 0 for a jump table, which takes no time.
    pub instructions: f64,
    /// Whether the block is entered from outside the procedure, other than at its entry: from a
    /// landing pad or through a pointer.
    pub side_entry: bool,
    /// What the block's issue points say; `None` without a model of a processor that issues in
    /// order.
    pub(crate) issue: Option<IssueRate>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transition {
    /// The edge of the procedure's graph. `None` for the artificial end of a loop without an end,
    /// and for transitions to and from a shared jump table.
    pub edge: Option<usize>,
    /// The node that the transition leaves.
    pub from: usize,
    /// The node that it leads to; `None`: out of the procedure.
    pub to: Option<usize>,
    /// Observed count: how often samples of branches show the transition.
    pub observed: f64,
    /// Bias of the observed share p of its node's transitions, which no number of observations
    /// removes, as a standard deviation in units of sqrt(p (1 - p)).
    pub bias: f64,
    /// Prior branch probability. The priors of a node's transitions add up to 1.
    pub prior: f64,
    /// Branch probability from the trip count of a loop, where that decides.
    pub by_trips: Option<ExitEstimate>,
}

/// An edge that is two transitions: to the node of a shared jump table, and from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitEdge {
    /// The edge of the procedure's graph.
    pub edge: usize,
    /// Index of the transition from the block to the jump table.
    pub to_table: usize,
    /// Index of the transition from the jump table to the edge's target.
    pub from_table: usize,
}

/// For each transition, the logarithm of its observed branch probability and the weight of that
/// observation: 1 / standard deviation of the logarithm. The weight is 0 where a node has only one
/// transition.
pub(super) fn log_probabilities(flow_graph: &FlowGraph) -> Vec<(f64, f64)> {
    let mut targets = Vec::with_capacity(flow_graph.transitions.len());
    for transitions in flow_graph.transitions.chunk_by(|a, b| a.from == b.from) {
        let all: f64 = transitions.iter().map(|transition| transition.observed).sum();
        targets.extend(transitions.iter().map(|transition| {
            let known = transition.by_trips.filter(|_| transitions.len() > 1);
            if let Some(ExitEstimate { value, log_sd, .. }) = known {
                return (value.max(1e-300).ln(), 1.0 / log_sd.max(1e-3));
            }
            let prior = if all > 0.0 && transition.observed == 0.0 {
                transition.prior * UNOBSERVED_PRIOR_FACTOR
            } else {
                transition.prior
            };
            let probability = (transition.observed + prior) / (all + 1.0);
            // The variance has a stronger prior, so that no observed count makes it 0.
            let smoothed = (transition.observed + 2.0 * transition.prior) / (all + 2.0);
            // Hostile counts reach 2^64, where the smoothed probability rounds to 1.
            let variance = ((1.0 - smoothed) / smoothed
                * (1.0 / (all + 1.0) + BRANCH_BIAS * BRANCH_BIAS))
                .max(1e-12);
            let weight = if transitions.len() > 1 { 1.0 / variance.sqrt() } else { 0.0 };
            (probability.ln(), weight)
        }));
    }
    targets
}

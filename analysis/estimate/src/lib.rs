//! How often each block of a procedure ran, estimated from samples of time and of branches.
//!
//! ```text
//! Cfg + ProcedureSamples -> observe (flow graph) -> solve (least squares) -> Estimate
//! ```
//!
//! Share of the samples (for edges: of the executions) whose estimate is within 5, 10 and 15 % of
//! callgrind's exact counts, as the mean over gzip, bzip2, xz, sqlite3, python3, perl, a C and a
//! Rust program, each with 550,000 samples, on an AMD EPYC guest (`cargo xtask bench truth`):
//!
//! | | 5 % | 10 % | 15 % |
//! |---|---|---|---|
//! | blocks | 70 % | 76 % | 79 % |
//! | edges | 60 % | 70 % | 76 % |
//! | blocks, DCPI | 73 % | 87 % | 92 % |
//! | edges, DCPI | | 58 % | |
//!
//! DCPI's processor issued instructions in order, and DCPI knew its latencies (SOSP 1997, section
//! 6.2).
//!
//! Executions are relative: the blocks of one procedure to each other. Samples of time alone do not
//! say how many cycles an execution took. On a processor that issues in order, the best cases of
//! its instructions do (`issue.rs`).
#![forbid(unsafe_code)]

mod flow_graph;
pub mod issue;
mod markov;
pub mod observe;
pub mod rounds;
mod samples;
mod sequence;
pub mod solve;
pub mod times;
pub mod truth;
mod vectors;

use code::cfg::{Cfg, Loops};

pub use flow_graph::ExitEstimate;
pub use issue::{IssuePoint, Pace};
pub use markov::{EliminationOrder, MarkovChain};
pub use rounds::TripCount;
pub use samples::{Branch, BranchBias, ProcedureSamples, RemainingRounds};
pub use sequence::{Outcomes, Sequence, Steady, independent};

use flow_graph::FlowGraph;

/// How sure an estimate is: classes of the standard deviation of its logarithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Confidence {
    /// The estimate may be wrong by any factor.
    #[default]
    Low,
    /// The estimate is probably right within 15 %.
    Medium,
    /// The estimate is probably right within 10 %.
    High,
}

impl Confidence {
    /// The class of an estimate whose logarithm has this standard deviation. The limits are set so
    /// that `bench truth` finds as large a part of the blocks of class `Medium` within 15 % as of
    /// class `High` within 10 %.
    pub fn of(log_sd: f64) -> Self {
        match log_sd {
            log_sd if log_sd < 0.05 => Self::High,
            log_sd if log_sd < 0.08 => Self::Medium,
            _ => Self::Low,
        }
    }
}

/// Estimated executions of one procedure.
#[derive(Clone, Debug, Default)]
pub struct Estimate {
    /// One entry per block of the graph.
    pub blocks: Vec<BlockEstimate>,
    /// Executions of each edge of the graph, on the scale of the blocks' executions.
    pub edges: Vec<f64>,
    /// Trip counts of the loops whose tests were sampled.
    pub trips: Vec<TripCount>,
    /// Samples per cycle of one execution, on processors that issue in order; otherwise `None`.
    pub pace: Option<Pace>,
}

/// Estimated executions of one block.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockEstimate {
    /// Samples of time in the block.
    pub samples: f64,
    /// Executions, relative to those of the procedure's other blocks.
    pub executions: f64,
    /// Standard deviation of the logarithm of `executions`.
    pub log_sd: f64,
    /// The class of `log_sd`.
    pub confidence: Confidence,
}

/// Most blocks of a graph that is solved. The largest procedures of a compiler have a tenth of
/// this. A larger limit lets one hostile file take minutes; a smaller one refuses real procedures.
const BLOCKS_MAX: usize = 1 << 16;
/// Most edges of a graph that is solved: four per block of [`BLOCKS_MAX`], because the edges of
/// jump tables multiply (Python's interpreter loop has 46,103 edges for 2,857 blocks).
const EDGES_MAX: usize = 1 << 18;
/// Most instructions of a graph that is solved. `stalls` needs close to 1 KiB of memory for each
/// instruction that it explains, so this limit is one of memory: 2 GiB.
const INSTRUCTIONS_MAX: usize = 1 << 21;
/// Most blocks of a graph whose estimate gets a standard deviation. Set by hand to bound the time
/// of the extra solution; the blocks of larger graphs all have confidence `Low`.
const CONFIDENCE_BLOCKS_MAX: usize = 1 << 13;
/// Fewest observations (samples of time plus observed branches) of a procedure whose estimate gets
/// a standard deviation. Set by hand. The standard deviation is of first order, which does not hold
/// for fewer observations; a larger limit calls more procedures `Low`.
const CONFIDENCE_OBSERVATIONS_MIN: f64 = 100.0;
/// Standard deviation of the logarithm of an unknown number: a factor of e^10 up or down. Any value
/// far above the limits of [`Confidence::of`] means the same.
const LOG_SD_UNKNOWN: f64 = 10.0;
/// Random replicas of the observations in the parametric bootstrap that yields the standard
/// deviations. Eight leave a relative error of 1/4 in each standard deviation. The time of the
/// bootstrap grows in proportion.
const BOOTSTRAP_REPLICAS: usize = 8;
/// Samples added to each block's before a replica is drawn and subtracted afterwards (Haldane's
/// half): a block without samples could have had one. With 0, blocks without samples never vary.
const PSEUDO_SAMPLES: f64 = 0.5;
/// Standard deviation of the logarithm of the probability that a guard without observations lets
/// its loop be entered: a factor of four up or down, 19 times of 20. Set by hand. Any value above
/// 0.08 makes the loop `Low` relative to the blocks before its guard.
const GUARD_LOG_SD: f64 = 0.7;
/// Factor from the first-order standard deviation to that of full solutions of the replicas, which
/// curvature makes larger. Set by hand when the first-order solution replaced eight full ones, so
/// that the scores of `bench truth` stayed. A smaller factor calls too many blocks `High`.
const CURVATURE_FACTOR: f64 = 1.15;

/// Estimates how often the blocks of `graph` were executed. `None` for a graph without an entry,
/// and for one that is too large or too dense.
pub fn estimate(graph: &Cfg, loops: &Loops, sampled: &ProcedureSamples<'_>) -> Option<Estimate> {
    let instructions: usize = graph.blocks().iter().map(|block| block.instructions).sum();
    if graph.blocks().len() > BLOCKS_MAX
        || graph.edges().len() > EDGES_MAX
        || instructions > INSTRUCTIONS_MAX
    {
        return None;
    }
    let mut trips = rounds::trip_counts(graph, loops, sampled);
    let first = solve_once(graph, loops, sampled, &trips)?;
    let contradictions = contradictions(graph, loops, &first, &trips);
    let mut repeat = false;
    let contradicted = trips
        .iter_mut()
        .zip(&contradictions)
        .filter(|(trips, log_factor)| **log_factor > 0.0 && !trips.decides);
    for (trips, _) in contradicted {
        (trips.decides, repeat) = (true, true);
    }
    let mut estimate = if repeat { solve_once(graph, loops, sampled, &trips)? } else { first };
    for (number, block) in estimate.blocks.iter_mut().enumerate() {
        let around = trips
            .iter()
            .zip(&contradictions)
            .filter(|(trips, _)| loops.contains(trips.loop_number, number));
        block.log_sd = around
            .fold(block.log_sd, |log_sd, (_, log_factor)| log_sd.hypot(*log_factor))
            .min(LOG_SD_UNKNOWN);
        block.confidence = Confidence::of(block.log_sd);
    }
    Some(Estimate { trips, ..estimate })
}

/// The logarithm of the factor between each of `trips` and the trip count that the branches of
/// `estimate` imply; 0 where the two agree ([`TripCount::contradiction`]).
fn contradictions(
    graph: &Cfg,
    loops: &Loops,
    estimate: &Estimate,
    trips: &[TripCount],
) -> Vec<f64> {
    if trips.is_empty() {
        return Vec::new();
    }
    let entries = rounds::entries(graph, loops, &estimate.edges);
    let contradiction = |trips: &TripCount| {
        let header = loops.loops().get(trips.loop_number)?.header;
        let rounds = estimate.blocks.get(header)?.executions / entries.get(trips.loop_number)?;
        (rounds.is_finite() && rounds > 0.0).then(|| trips.contradiction(rounds))
    };
    trips.iter().map(|trips| contradiction(trips).unwrap_or(0.0)).collect()
}

/// Solves the graph once, with the trip counts that decide how often their loops are left.
fn solve_once(
    graph: &Cfg,
    loops: &Loops,
    sampled: &ProcedureSamples<'_>,
    trips: &[TripCount],
) -> Option<Estimate> {
    let (flow_graph, split) = observe::observe(graph, loops, sampled, trips)?;
    let order = solve::order(&flow_graph)?;
    let flow = solve::solve(&flow_graph, &order)?;
    let observations: f64 = flow_graph.nodes.iter().map(|node| node.samples).sum::<f64>()
        + flow_graph.transitions.iter().map(|transition| transition.observed).sum::<f64>();
    let suffice = observations >= CONFIDENCE_OBSERVATIONS_MIN
        && flow_graph.nodes.len() <= CONFIDENCE_BLOCKS_MAX;
    let log_sds = if suffice {
        bootstrap(&flow_graph, &flow)
    } else {
        vec![LOG_SD_UNKNOWN; flow_graph.nodes.len()]
    };
    let nodes = flow_graph.nodes.iter().zip(flow.visits()).zip(log_sds);
    let blocks =
        nodes.take(graph.blocks().len()).map(|((node, executions), log_sd)| BlockEstimate {
            samples: node.samples,
            executions: *executions,
            log_sd,
            confidence: Confidence::of(log_sd),
        });
    let mut edges = vec![0.0; graph.edges().len()];
    for (transition, flow) in flow_graph.transitions.iter().zip(&flow.transitions) {
        let edge = transition.edge.and_then(|edge| edges.get_mut(edge));
        edge.into_iter().for_each(|edge| *edge = *flow);
    }
    for (edge, executions) in flow.split_edges(&split) {
        edges.get_mut(edge).into_iter().for_each(|edge| *edge += executions);
    }
    let pace = sampled.issue_points.map(|_| flow.pace());
    Some(Estimate { blocks: blocks.collect(), edges, trips: Vec::new(), pace })
}

/// Standard deviation of the logarithm of each node's visits, relative to the sample-weighted mean
/// of the procedure, by a parametric bootstrap: replicas of the observations are drawn, and each is
/// solved to first order.
fn bootstrap(flow_graph: &FlowGraph, flow: &solve::Flow<'_>) -> Vec<f64> {
    let mut random = fastrand::Rng::with_seed(0x5eed);
    let mut observed = vec![0.0; flow_graph.nodes.len()];
    for transition in &flow_graph.transitions {
        let sum = observed.get_mut(transition.from);
        sum.into_iter().for_each(|sum| *sum += transition.observed);
    }
    let replicas: [FlowGraph; BOOTSTRAP_REPLICAS] =
        std::array::from_fn(|_| replica(flow_graph, flow, &observed, &mut random));
    let differences = flow.differences(&replicas);
    let weights: f64 = flow_graph.nodes.iter().map(|node| node.samples).sum::<f64>().max(1e-9);
    let mut means = [0.0; BOOTSTRAP_REPLICAS];
    for (differences, node) in differences.iter().zip(&flow_graph.nodes) {
        means
            .iter_mut()
            .zip(differences)
            .for_each(|(mean, difference)| *mean += difference * node.samples / weights);
    }
    let variance = |differences: &[f64; BOOTSTRAP_REPLICAS]| {
        differences
            .iter()
            .zip(means)
            .map(|(difference, mean)| (difference - mean).powi(2))
            .sum::<f64>()
            / BOOTSTRAP_REPLICAS as f64
    };
    // Nothing is known of a node that the solution never reaches.
    let log_sd = |(differences, visits): (_, &f64)| {
        let log_sd = CURVATURE_FACTOR * variance(differences).sqrt();
        if log_sd.is_finite() && *visits > 0.0 {
            log_sd.min(LOG_SD_UNKNOWN)
        } else {
            LOG_SD_UNKNOWN
        }
    };
    differences.iter().zip(flow.visits()).map(log_sd).collect()
}

/// One replica of the observations. `observed` has the observed branches of each node.
fn replica(
    flow_graph: &FlowGraph,
    flow: &solve::Flow<'_>,
    observed: &[f64],
    random: &mut fastrand::Rng,
) -> FlowGraph {
    let mut drawn = flow_graph.clone();
    for transition in &mut drawn.transitions {
        let all = observed.get(transition.from).copied().unwrap_or(0.0);
        let bias = if transition.observed < all {
            transition.bias * transition.bias * transition.observed * all
        } else {
            0.0
        };
        // The prior is part of the variance: a transition without observations may have been
        // missed.
        let variance = transition.observed + transition.prior + bias;
        transition.observed = (transition.observed + variance.sqrt() * normal(random)).max(0.0);
        transition.by_trips.iter_mut().for_each(|known| {
            let drawn = normal(random);
            let log_sd = if drawn > 0.0 { known.log_sd_above } else { known.log_sd };
            known.value = (known.value * (log_sd * drawn).exp()).min(1.0)
        });
    }
    for guard in &flow_graph.guards {
        let transition = drawn.transitions.get_mut(*guard);
        transition.into_iter().for_each(|transition| {
            let value = transition.prior * (GUARD_LOG_SD * normal(random)).exp();
            transition.by_trips = Some(ExitEstimate { value, log_sd: 1.0, log_sd_above: 1.0 });
        });
    }
    for (number, node) in drawn.nodes.iter_mut().enumerate() {
        let factor = (solve::log_sd_of_time(node) * normal(random)).exp();
        node.samples = ((node.samples + PSEUDO_SAMPLES) * factor - PSEUDO_SAMPLES).max(0.0);
        if let Some((issue, log_sd)) = node.issue.as_mut().zip(flow.issue_log_sd(number)) {
            issue.rate *= (log_sd * normal(random)).exp();
        }
    }
    drawn
}

/// A normally distributed number of mean 0 and standard deviation 1 (Box and Muller).
fn normal(random: &mut fastrand::Rng) -> f64 {
    let (a, b) = (random.f64().max(f64::MIN_POSITIVE), random.f64());
    (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
}

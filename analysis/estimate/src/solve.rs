//! The most likely flow through a flow graph, from samples of time, which cover every block but say
//! little of each, and from observed branches, which say much of a few blocks.
//!
//! The unknowns are branch probabilities, so flow is conserved exactly; visits of the nodes follow
//! from them (`markov.rs`). The solution minimises a sum of squared residuals, all of them
//! differences of logarithms in standard deviations:
//!
//! * **branches**: the probability of each transition agrees with its observed count
//!   (`log_probabilities` in `flow_graph.rs`), but no better than the bias of observed branches
//!   allows: samples are taken where time is spent, and that correlates with where branches go;
//! * **time**: the visits of a block agree with its samples per instruction, but only to a factor
//!   of e^±0.4 (`time.rs`), since blocks differ by that much in cycles per instruction. On a
//!   processor that issues in order, the issue points of the block replace this residual, with a
//!   standard deviation of their own;
//! * **side entries**: how often the procedure is entered other than at its entry, which hardly
//!   anything tells.
//!
//! Residuals of time are reweighted a few times at the solution (iteratively reweighted least
//! squares), because their errors are not normal: some blocks are stalled for long. Each least
//! squares problem is solved by damped Gauss-Newton steps (`gauss_newton.rs`), and each step by
//! conjugate gradients (`linear.rs`), which need no matrix. `problem.rs` has the problem's
//! statement.

use crate::flow_graph::{FlowGraph, Node, SplitEdge, log_probabilities};
use crate::issue::Pace;
use crate::markov::EliminationOrder;
use crate::vectors::at;
use problem::{Iterate, Problem, Residuals, VISITS_MIN};
pub(crate) use time::log_sd as log_sd_of_time;
use time::rate;

mod gauss_newton;
mod linear;
mod problem;
mod time;

/// Convergence tolerance of the last minimisation: Gauss-Newton steps end when one lowers the sum
/// of squares by less than this part. Raised from 1e-5 by hand to save steps. A larger value stops
/// before the probabilities of rare exits, and so long loops, are settled.
const COST_TOLERANCE: f64 = 3e-4;
/// The same where issue points take part: these are more exact than samples per instruction, so
/// early stops show in the scores of `analysis/stalls/tests/in_order`.
const COST_TOLERANCE_ISSUE: f64 = 1e-5;
/// The same for the minimisations before a reweighting, which need not be exact: the weights of the
/// next differ. A smaller value only costs time.
const COST_TOLERANCE_BEFORE_REWEIGHTING: f64 = 1e-2;
/// Conjugate-gradient tolerance for the solutions of the bootstrap's replicas: iterations stop when
/// the squared residual falls below this fraction of its initial value. Set by hand; the replicas
/// are random, so a smaller value gains nothing.
const CG_TOLERANCE_REPLICAS: f64 = 0.01;
/// How often residuals of time are reweighted. Set by hand with `bench truth`: further reweightings
/// still change weights, but improve no score.
const REWEIGHTINGS: usize = 2;
/// The same where issue points take part: their weights differ more between one solution and the
/// next. Set by hand with `analysis/stalls/tests/in_order`.
const REWEIGHTINGS_ISSUE: usize = 6;

/// The most likely flow.
#[derive(Debug)]
pub struct Flow<'a> {
    /// Executions of each transition, per execution of the procedure's entry.
    pub transitions: Vec<f64>,
    problem: Problem<'a>,
    iterate: Iterate,
}

/// Finds the flow. `None` for a graph without nodes, and if visits overflow.
pub fn solve<'a>(flow_graph: &'a FlowGraph, order: &'a EliminationOrder) -> Option<Flow<'a>> {
    let mut problem = Problem::of(flow_graph, order)?;
    let mut unknowns = problem.initial();
    let (reweightings, tolerance_before, tolerance) = if problem.has_issue_points() {
        (REWEIGHTINGS_ISSUE, COST_TOLERANCE_ISSUE, COST_TOLERANCE_ISSUE)
    } else {
        (REWEIGHTINGS, COST_TOLERANCE_BEFORE_REWEIGHTING, COST_TOLERANCE)
    };
    let mut iterate = problem.minimise(&mut unknowns, tolerance_before);
    for reweighting in 1..=reweightings {
        problem.reweight(&iterate);
        let tolerance = if reweighting < reweightings { tolerance_before } else { tolerance };
        iterate = problem.minimise(&mut unknowns, tolerance);
    }
    if !iterate.cost.is_finite() || !iterate.visits.iter().all(|visits| visits.is_finite()) {
        return None;
    }
    let transitions = flow_graph
        .transitions
        .iter()
        .zip(&iterate.probabilities)
        .map(|(transition, probability)| at(&iterate.visits, transition.from) * probability)
        .collect();
    Some(Flow { transitions, problem, iterate })
}

impl Flow<'_> {
    /// Executions of each node, per execution of the procedure's entry; 0 for a node that no path
    /// reaches.
    pub fn visits(&self) -> &[f64] {
        &self.iterate.visits
    }

    /// Standard deviation of the logarithm of a block's issue rate, as the last reweighting left
    /// it; `None` for a block without issue points.
    pub(crate) fn issue_log_sd(&self, block: usize) -> Option<f64> {
        let _ = self.problem.flow_graph.nodes.get(block)?.issue?;
        self.problem
            .time
            .get(block)
            .filter(|(_, weight)| *weight > 0.0)
            .map(|(_, weight)| 1.0 / weight)
    }

    /// Samples per cycle of an execution, by issue points.
    pub(crate) fn pace(&self) -> Pace {
        let (problem, iterate) = (&self.problem, &self.iterate);
        let nodes = problem.flow_graph.nodes.iter().zip(&iterate.visits).zip(&problem.time);
        let weight = |((node, visits), (rate, weight)): ((&Node, &f64), &(f64, f64))| {
            let issue = node.issue.filter(|_| *weight > 0.0)?;
            // A rate that fits exactly may be that of a stalled block all the same.
            let excess = iterate.excess(*rate, *visits).max(f64::MIN_POSITIVE);
            Some(issue.log_sd(excess).powi(2).recip())
        };
        let weights: f64 = nodes.filter_map(weight).sum();
        Pace {
            samples_per_cycle: (-iterate.log_scale).exp(),
            log_sd: if weights > 0.0 { weights.sqrt().recip() } else { f64::INFINITY },
        }
    }

    /// Executions of the edges that are two transitions each.
    pub fn split_edges<'b>(
        &'b self,
        split: &'b [SplitEdge],
    ) -> impl Iterator<Item = (usize, f64)> + 'b {
        split.iter().map(|split| {
            let executions = at(&self.transitions, split.to_table)
                * at(&self.iterate.probabilities, split.from_table);
            (split.edge, executions)
        })
    }

    /// For each node, the difference of the logarithm of its visits, to first order, between each
    /// of the `replicas` and this solution. The replicas have other observations of the same graph.
    pub fn differences<const N: usize>(&self, replicas: &[FlowGraph; N]) -> Vec<[f64; N]> {
        let (problem, iterate) = (&self.problem, &self.iterate);
        let targets = replicas.each_ref().map(log_probabilities);
        let choices = problem.choices.iter().map(|choice| {
            let drawn = targets.each_ref().map(|targets| {
                targets.get(choice.transition).map_or(choice.target, |(target, _)| *target)
            });
            drawn.map(|drawn| (choice.target - drawn) * choice.weight)
        });
        let time = problem.flow_graph.nodes.iter().zip(&problem.time).enumerate().map(
            |(number, (node, (_, weight)))| {
                let solved = rate(node);
                let drawn = replicas
                    .each_ref()
                    .map(|replica| replica.nodes.get(number).map_or(solved, rate));
                drawn.map(|drawn| (solved / drawn).ln() * weight)
            },
        );
        let rest = std::iter::repeat_n([0.0; N], problem.side_entries.len() + 1);
        let mut along = Residuals {
            unknowns: choices.chain(rest).collect(),
            time: time.collect(),
            groups: problem.zeros_of_groups(),
        };
        along.unknowns = problem.solve_linear(iterate, 0.0, &mut along, CG_TOLERANCE_REPLICAS);
        problem.visit_changes(iterate, &mut along);
        let relative = |(change, visits): (&[f64; N], &f64)| {
            change.map(|change| change / visits.max(VISITS_MIN))
        };
        along.time.iter().zip(&iterate.visits).map(relative).collect()
    }
}

/// The elimination order for a graph: [`EliminationOrder::of`].
pub fn order(flow_graph: &FlowGraph) -> Option<EliminationOrder> {
    EliminationOrder::of(
        flow_graph.nodes.len(),
        flow_graph
            .transitions
            .iter()
            .filter_map(|transition| Some((transition.from, transition.to?))),
    )
}

#[cfg(test)]
mod tests;

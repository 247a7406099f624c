//! The statement of the least squares problem: its unknowns, its residuals, and where a set of
//! unknowns leads.

use std::ops::Range;

use super::time::{log_sd, outlier_log_sd, rate, rate_after_mispredicts};
use crate::flow_graph::{FlowGraph, Node, log_probabilities};
use crate::markov::{EliminationOrder, MarkovChain};
use crate::vectors::{add, at};

/// Standard deviation of the logarithm of how often a block is entered from outside the procedure,
/// beside what its samples suggest. Set by hand. A smaller value forces flow through blocks that
/// only look like entries; a larger one lets entries explain away any imbalance.
pub(super) const SIDE_ENTRY_LOG_SD: f64 = 2.0;
/// Smallest logarithm of the initial frequency of a side entry, beside the procedure's fastest
/// block: where a block without samples begins.
const SIDE_ENTRY_LOG_MIN: f64 = -9.0;
/// Excess of a block's issue rate, as a logarithm, that its first weight assumes, before the flow
/// is known. Set by hand on `analysis/stalls/tests/in_order`; reweighting replaces it.
const INITIAL_EXCESS: f64 = 0.5;
/// Smallest number of visits or probability of which a logarithm is taken: no code runs as seldom,
/// and the logarithm of 0 is infinite.
pub(super) const VISITS_MIN: f64 = 1e-300;
/// The node that a transition out of the procedure leads to: none.
const NO_NODE: u32 = u32::MAX;

/// A transition from a node that has several.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    /// Index among all transitions.
    pub(super) transition: usize,
    from: usize,
    /// The node that the transition leads to; [`NO_NODE`] out of the procedure.
    to: u32,
    /// Logarithm of the observed branch probability.
    pub(super) target: f64,
    /// 1 / standard deviation of `target`.
    pub(super) weight: f64,
}

/// The least squares problem. Its unknowns, in this order: a logit for each choice, the logarithm
/// of the frequency of each side entry, and the logarithm of the scale, in executions per sample
/// per instruction (by issue points: per sample per cycle).
#[derive(Debug)]
pub(super) struct Problem<'a> {
    pub(super) flow_graph: &'a FlowGraph,
    order: &'a EliminationOrder,
    /// In the order of their transitions.
    pub(super) choices: Vec<Choice>,
    /// The number of choices of each node that has several transitions.
    groups: Vec<usize>,
    /// For each node, the logarithm of its rate (`time.rs`), and 1 / standard deviation of that;
    /// the weight is 0 for a node that no path reaches or that takes no time.
    pub(super) time: Vec<(f64, f64)>,
    /// Nodes with a side entry, each with the logarithm of its frequency as its samples suggest.
    pub(super) side_entries: Vec<(usize, f64)>,
}

/// A choice, at one set of unknowns.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChoiceFlow {
    pub(super) probability: f64,
    /// Executions of the transition.
    pub(super) flow: f64,
    pub(super) weight: f64,
    pub(super) to: u32,
    /// Index of the choice's node in [`Problem::groups`].
    pub(super) group: u32,
}

/// A node with the weight of its time, at one set of unknowns.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeTime {
    /// At least [`VISITS_MIN`].
    pub(super) visits: f64,
    pub(super) weight: f64,
}

/// Where a set of unknowns leads.
#[derive(Debug)]
pub(super) struct Iterate {
    /// Branch probabilities of all transitions.
    pub(super) probabilities: Vec<f64>,
    /// In the order of [`Problem::choices`].
    pub(super) choices: Vec<ChoiceFlow>,
    /// In the order of the nodes.
    pub(super) times: Vec<NodeTime>,
    /// Frequency of each side entry.
    pub(super) side_entries: Vec<f64>,
    pub(super) chain: MarkovChain,
    pub(super) visits: Vec<f64>,
    pub(super) residuals: Residuals<1>,
    /// The last unknown.
    pub(super) log_scale: f64,
    /// The sum of squared residuals.
    pub(super) cost: f64,
}

impl Iterate {
    /// The logarithm of a block's rate, on the scale of visits, less that of its visits.
    pub(super) fn excess(&self, log_rate: f64, visits: f64) -> f64 {
        log_rate + self.log_scale - visits.max(VISITS_MIN).ln()
    }
}

/// Residuals in standard deviations, or directions of the unknowns; N of them side by side.
#[derive(Clone, Debug)]
pub(super) struct Residuals<const N: usize> {
    /// Residuals of choices and of side entries, or a direction of these unknowns. The last element
    /// belongs to the scale, which has no residual.
    pub(super) unknowns: Vec<[f64; N]>,
    /// Residuals of time, by nodes.
    pub(super) time: Vec<[f64; N]>,
    /// Scratch space with an element per [`Problem::groups`].
    pub(super) groups: Vec<[f64; N]>,
}

impl<'a> Problem<'a> {
    /// The problem of a flow graph. `None` if its entry is no node.
    pub(super) fn of(flow_graph: &'a FlowGraph, order: &'a EliminationOrder) -> Option<Self> {
        flow_graph.nodes.get(flow_graph.entry)?;
        let (mut choices, mut groups) = (Vec::new(), Vec::new());
        let mut from_nodes = vec![0..0; flow_graph.nodes.len()];
        let mut begin = 0;
        let targets = log_probabilities(flow_graph);
        for transitions in flow_graph.transitions.chunk_by(|a, b| a.from == b.from) {
            let range = begin..begin + transitions.len();
            *from_nodes.get_mut(transitions.first()?.from)? = range.clone();
            begin = range.end;
            if transitions.len() > 1 {
                groups.push(transitions.len());
                let numbered = transitions.iter().zip(range.clone());
                choices.extend(numbered.zip(targets.get(range)?).map(
                    |((transition, number), &(target, weight))| Choice {
                        transition: number,
                        from: transition.from,
                        to: transition.to.and_then(|to| u32::try_from(to).ok()).unwrap_or(NO_NODE),
                        target,
                        weight,
                    },
                ));
            }
        }
        let side_entries = side_entries(flow_graph);
        let reached = reached(flow_graph, &from_nodes, &side_entries);
        let time = flow_graph.nodes.iter().zip(reached).map(|(node, reached)| {
            let log_sd =
                node.issue.map_or_else(|| log_sd(node), |issue| issue.log_sd(INITIAL_EXCESS));
            let weight = if reached && takes_time(node) { 1.0 / log_sd } else { 0.0 };
            (rate(node).ln(), weight)
        });
        let time = time.collect();
        Some(Self { flow_graph, order, choices, groups, time, side_entries })
    }

    /// Whether any block has issue points.
    pub(super) fn has_issue_points(&self) -> bool {
        self.flow_graph.nodes.iter().any(|node| node.issue.is_some())
    }

    /// Sets the weights of time by the distance of each rate from the flow. An issue rate below the
    /// flow is hardly wrong; one above it was raised by stalls, the more surely the farther it is.
    /// Samples per instruction are wrong in both directions, and outliers have reasons of their
    /// own.
    pub(super) fn reweight(&mut self, iterate: &Iterate) {
        let mut mispredicted = vec![0.0; self.flow_graph.nodes.len()];
        for choice in &iterate.choices {
            let flow = choice.flow * (1.0 - choice.probability);
            add(&mut mispredicted, choice.to as usize, flow);
        }
        let nodes = self.flow_graph.nodes.iter().zip(&iterate.times).zip(mispredicted);
        for (((node, at), mispredicted), (log_rate, weight)) in
            nodes.zip(&mut self.time).filter(|(_, time)| time.1 > 0.0)
        {
            let visits = at.visits;
            if let Some(issue) = node.issue {
                *weight = 1.0 / issue.log_sd(iterate.excess(*log_rate, visits));
            } else {
                *log_rate = rate_after_mispredicts(node, mispredicted / visits).ln();
                *weight = 1.0 / outlier_log_sd(node, iterate.excess(*log_rate, visits));
            }
        }
    }

    /// The unknowns that the minimisation begins with: observed probabilities, and the scale that
    /// fits them best.
    pub(super) fn initial(&self) -> Vec<f64> {
        let logits = self.choices.iter().map(|choice| choice.target);
        let side_entries = self.side_entries.iter().map(|(_, log)| *log);
        let mut unknowns: Vec<f64> = logits.chain(side_entries).chain([0.0]).collect();
        let iterate = self.at(&unknowns);
        let (mut sum, mut weights) = (0.0, 0.0);
        for ([residual], (_, weight)) in iterate.residuals.time.iter().zip(&self.time) {
            sum += residual * weight;
            weights += weight * weight;
        }
        unknowns
            .last_mut()
            .into_iter()
            .for_each(|scale| *scale = if weights > 0.0 { sum / weights } else { 0.0 });
        unknowns
    }

    /// Where `unknowns` lead.
    pub(super) fn at(&self, unknowns: &[f64]) -> Iterate {
        let (logits, rest) = unknowns.split_at(self.choices.len().min(unknowns.len()));
        let (log_entries, scale) = rest.split_at(self.side_entries.len().min(rest.len()));
        let log_scale = at(scale, 0);
        let of_choices = self.softmax(logits);
        let mut probabilities = vec![1.0; self.flow_graph.transitions.len()];
        for (choice, probability) in self.choices.iter().zip(&of_choices) {
            let place = probabilities.get_mut(choice.transition);
            place.into_iter().for_each(|place| *place = *probability);
        }
        let side_entries: Vec<f64> = log_entries.iter().map(|log| log.exp()).collect();
        let mut visits = vec![0.0; self.flow_graph.nodes.len()];
        add(&mut visits, self.flow_graph.entry, 1.0);
        self.side_entries
            .iter()
            .zip(&side_entries)
            .for_each(|((node, _), entries)| add(&mut visits, *node, *entries));
        let chain = self.chain(&probabilities);
        chain.visits(visits.as_chunks_mut::<1>().0);
        let residuals = self.residuals(&of_choices, &visits, log_entries, log_scale);
        let (branches, entries) =
            residuals.unknowns.split_at_checked(self.choices.len()).unwrap_or_default();
        // In this order, on which the rounding of the sum depends.
        let all = branches.iter().chain(&residuals.time).chain(entries);
        let cost = all.map(|[residual]| residual * residual).sum();
        let group =
            (0..).zip(&self.groups).flat_map(|(number, len)| std::iter::repeat_n(number, *len));
        let choices =
            self.choices.iter().zip(of_choices).zip(group).map(|((choice, probability), group)| {
                ChoiceFlow {
                    probability,
                    flow: at(&visits, choice.from) * probability,
                    weight: choice.weight,
                    to: choice.to,
                    group,
                }
            });
        let times = visits.iter().zip(&self.time);
        let times = times.map(|(visits, (_, weight))| NodeTime {
            visits: visits.max(VISITS_MIN),
            weight: *weight,
        });
        let (choices, times) = (choices.collect(), times.collect());
        Iterate {
            probabilities,
            choices,
            times,
            side_entries,
            chain,
            visits,
            residuals,
            log_scale,
            cost,
        }
    }

    /// Branch probabilities of the choices from their logits, which are shifted so that no
    /// exponential overflows.
    fn softmax(&self, mut logits: &[f64]) -> Vec<f64> {
        let mut probabilities: Vec<f64> = Vec::with_capacity(logits.len());
        for group in &self.groups {
            let Some((own, rest)) = logits.split_at_checked(*group) else { break };
            logits = rest;
            let largest = own.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let first = probabilities.len();
            probabilities.extend(own.iter().map(|logit| (logit - largest).exp()));
            let own = probabilities.get_mut(first..).unwrap_or_default();
            let sum: f64 = own.iter().sum();
            own.iter_mut().for_each(|probability| *probability /= sum);
        }
        probabilities
    }

    /// The residuals, from the probabilities of choices, visits of nodes, logarithms of side
    /// entries and of the scale.
    fn residuals(
        &self,
        of_choices: &[f64],
        visits: &[f64],
        log_entries: &[f64],
        log_scale: f64,
    ) -> Residuals<1> {
        let branches = self.choices.iter().zip(of_choices).map(|(choice, probability)| {
            [(probability.max(VISITS_MIN).ln() - choice.target) * choice.weight]
        });
        let time = self.time.iter().zip(visits).map(|((log_rate, weight), visits)| {
            [(visits.max(VISITS_MIN).ln() - log_rate - log_scale) * weight]
        });
        let entries = self
            .side_entries
            .iter()
            .zip(log_entries)
            .map(|((_, target), log)| [(log - target) / SIDE_ENTRY_LOG_SD]);
        Residuals {
            unknowns: branches.chain(entries).chain([[0.0]]).collect(),
            time: time.collect(),
            groups: self.zeros_of_groups(),
        }
    }

    /// Space for [`Residuals::groups`].
    pub(super) fn zeros_of_groups<const N: usize>(&self) -> Vec<[f64; N]> {
        vec![[0.0; N]; self.groups.len()]
    }

    fn chain(&self, probabilities: &[f64]) -> MarkovChain {
        // A node without transitions ends the procedure.
        let mut ends = vec![1.0; self.flow_graph.nodes.len()];
        self.flow_graph.transitions.iter().for_each(|transition| {
            ends.get_mut(transition.from).into_iter().for_each(|end| *end = 0.0)
        });
        let transitions = self.flow_graph.transitions.iter().zip(probabilities);
        transitions
            .clone()
            .filter(|(transition, _)| transition.to.is_none())
            .for_each(|(transition, probability)| add(&mut ends, transition.from, *probability));
        let inner =
            transitions.filter_map(|(transition, probability)| transition.to.map(|_| *probability));
        MarkovChain::eliminate(self.order, inner, &ends)
    }
}

fn takes_time(node: &Node) -> bool {
    node.instructions > 0.0
}

/// The nodes with side entries, other than the procedure's entry, each with the logarithm of its
/// initial frequency: its rate beside that of the fastest block.
fn side_entries(flow_graph: &FlowGraph) -> Vec<(usize, f64)> {
    let fastest =
        flow_graph.nodes.iter().filter(|node| takes_time(node)).map(rate).fold(0.0, f64::max);
    let numbered = flow_graph.nodes.iter().enumerate();
    let entered = numbered.filter(|(number, node)| node.side_entry && *number != flow_graph.entry);
    let frequency = |(number, node): (usize, &Node)| {
        let relative = if node.samples > 0.0 && fastest > 0.0 { rate(node) / fastest } else { 0.0 };
        (number, f64::max(relative.ln(), SIDE_ENTRY_LOG_MIN))
    };
    entered.map(frequency).collect()
}

/// For each node, whether a path leads to it from the entry or a side entry. `from_nodes` has the
/// range of each node's transitions.
fn reached(
    flow_graph: &FlowGraph,
    from_nodes: &[Range<usize>],
    side_entries: &[(usize, f64)],
) -> Vec<bool> {
    let mut reached = vec![false; flow_graph.nodes.len()];
    let mut pending: Vec<usize> =
        side_entries.iter().map(|(node, _)| *node).chain([flow_graph.entry]).collect();
    while let Some(node) = pending.pop() {
        let Some(is_reached) = reached.get_mut(node).filter(|is_reached| !**is_reached) else {
            continue;
        };
        *is_reached = true;
        let transitions = from_nodes
            .get(node)
            .and_then(|range| flow_graph.transitions.get(range.clone()))
            .unwrap_or_default();
        pending.extend(transitions.iter().filter_map(|transition| transition.to));
    }
    reached
}

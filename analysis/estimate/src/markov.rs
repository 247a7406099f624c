//! An absorbing Markov chain: how often each state is visited, and what visits are worth.
//!
//! States are eliminated one after the other by the algorithm of Grassmann, Taksar and Heyman
//! (Operations Research 33, 1985), which never subtracts: a loop that is left once in a million
//! rounds is as exact as any other. States with few neighbours are eliminated first, which keeps
//! the graphs of procedures nearly as sparse as they are.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::vectors::{add, add_each, at, at_each};

/// Most transitions that elimination may create (fill-in). Set by hand to bound memory and time for
/// hostile graphs, in which every state leads to every other. A smaller limit refuses procedures
/// with large jump tables.
const TRANSITIONS_MAX: usize = 1 << 22;
/// Least probability of leaving a state. A state that is never left would be visited infinitely
/// often; this is far below the exit probability of any loop that ends.
const LEAVE_MIN: f64 = 1e-15;

/// The order in which states are eliminated, and the transitions that elimination creates. Both
/// depend on which transitions there are, not on their probabilities, so they are found once for
/// all probabilities.
#[derive(Clone, Debug)]
pub struct EliminationOrder {
    states: usize,
    steps: Vec<Step>,
    /// For each transition of each step, the state at its other end.
    others: Vec<u32>,
    /// For each transition that the order was made for, its index in `others`; [`NONE`] for a
    /// transition from a state to itself.
    places: Vec<u32>,
    /// For each step, for each transition to its state, for each transition from it: the index in
    /// `others` of the transition that elimination adds the product of the two to.
    added: Vec<u32>,
}

/// The elimination of a state. `to` and `from` are the ranges in [`EliminationOrder::others`] of
/// the transitions from the state and to it, as far as their other ends are not yet eliminated.
#[derive(Clone, Debug)]
struct Step {
    state: usize,
    to: Range<usize>,
    from: Range<usize>,
    added: Range<usize>,
}

/// The index of nothing.
const NONE: u32 = u32::MAX;

/// The chain, with all states eliminated: a factorisation that answers any number of questions.
#[derive(Debug)]
pub struct MarkovChain {
    /// Coefficients of the transitions from the state of each step, and of those to it, when the
    /// step came; in the order of the steps, those of one step in reverse. Each step has at least
    /// one of each.
    to: Vec<Coefficient>,
    from: Vec<Coefficient>,
}

/// A coefficient of the factorisation: a transition of a step.
#[derive(Clone, Copy, Debug)]
struct Coefficient {
    /// The state of the step.
    state: u32,
    /// The state at the other end.
    other: u32,
    probability: f64,
    /// Consecutive visits of the step's state: 1 / probability of leaving it.
    stays: f64,
    /// `stays` for the first coefficient of the step, 1 for others: back substitution multiplies by
    /// it once per step.
    stays_once: f64,
}

impl EliminationOrder {
    /// An elimination order for `states` states with these transitions (from, to). `None` if
    /// elimination would create more than `TRANSITIONS_MAX` transitions.
    pub fn of(
        states: usize,
        transitions: impl Iterator<Item = (usize, usize)> + Clone,
    ) -> Option<Self> {
        let mut to = vec![BTreeSet::new(); states];
        let mut from = vec![BTreeSet::new(); states];
        for (a, b) in transitions.clone().filter(|(a, b)| a != b) {
            to.get_mut(a)?.insert(b);
            from.get_mut(b)?.insert(a);
        }
        // Most transitions that the elimination of a state can create.
        let fill = |to: &[BTreeSet<usize>], from: &[BTreeSet<usize>], state: usize| {
            to.get(state).map_or(0, BTreeSet::len) * from.get(state).map_or(0, BTreeSet::len)
        };
        let mut queue: BTreeSet<(usize, usize)> =
            (0..states).map(|state| (fill(&to, &from, state), state)).collect();
        let mut this = Self {
            states,
            steps: Vec::new(),
            others: Vec::new(),
            places: Vec::new(),
            added: Vec::new(),
        };
        let mut created = 0;
        while let Some((cost, state)) = queue.pop_first() {
            created += cost;
            if created > TRANSITIONS_MAX {
                return None;
            }
            let (next, before) =
                (std::mem::take(to.get_mut(state)?), std::mem::take(from.get_mut(state)?));
            let touched: BTreeSet<usize> = next.union(&before).copied().collect();
            for &other in &touched {
                queue.remove(&(fill(&to, &from, other), other));
            }
            for &a in &before {
                let row = to.get_mut(a)?;
                row.remove(&state);
                row.extend(next.iter().filter(|&&b| b != a));
            }
            for &b in &next {
                let column = from.get_mut(b)?;
                column.remove(&state);
                column.extend(before.iter().filter(|&&a| a != b));
            }
            queue.extend(touched.iter().map(|&other| (fill(&to, &from, other), other)));
            let begin = this.others.len();
            this.others
                .extend(next.iter().chain(&before).filter_map(|other| u32::try_from(*other).ok()));
            let (middle, end) = (begin + next.len(), this.others.len());
            this.steps.push(Step { state, to: begin..middle, from: middle..end, added: 0..0 });
        }
        this.place(transitions)?;
        Some(this)
    }

    /// Fills `places` and `added`.
    fn place(&mut self, transitions: impl Iterator<Item = (usize, usize)>) -> Option<()> {
        // For each state, its transitions: their targets, and their indices in `others`.
        let mut rows: Vec<Vec<(u32, u32)>> = vec![Vec::new(); self.states];
        for step in &self.steps {
            for (place, other) in step.to.clone().zip(self.others.get(step.to.clone())?) {
                rows.get_mut(step.state)?.push((*other, u32::try_from(place).ok()?));
            }
            for (place, other) in step.from.clone().zip(self.others.get(step.from.clone())?) {
                let state = u32::try_from(step.state).ok()?;
                rows.get_mut(*other as usize)?.push((state, u32::try_from(place).ok()?));
            }
        }
        rows.iter_mut().for_each(|row| row.sort_unstable());
        let place = |a: usize, b: u32| {
            let row = rows.get(a)?;
            row.get(row.binary_search_by_key(&b, |(b, _)| *b).ok()?).map(|(_, place)| *place)
        };
        self.places = transitions
            .map(|(a, b)| place(a, u32::try_from(b).ok()?).or(Some(NONE)))
            .collect::<Option<_>>()?;
        for step in &mut self.steps {
            let begin = self.added.len();
            for a in self.others.get(step.from.clone())? {
                let to = self.others.get(step.to.clone())?.iter();
                self.added.extend(to.map(|b| place(*a as usize, *b).unwrap_or(NONE)));
            }
            step.added = begin..self.added.len();
        }
        Some(())
    }
}

impl MarkovChain {
    /// The chain with these probabilities: of the transitions that the order was made for, in their
    /// order, and of ending in each state.
    pub fn eliminate(
        order: &EliminationOrder,
        transitions: impl Iterator<Item = f64>,
        ends: &[f64],
    ) -> Self {
        let mut probabilities = vec![0.0; order.others.len()];
        // A transition from a state to itself has no index: it is the rest to 1.
        for (place, probability) in order.places.iter().zip(transitions) {
            add(&mut probabilities, *place as usize, probability);
        }
        let mut ends = ends.to_vec();
        let mut this = Self {
            to: Vec::with_capacity(order.others.len() / 2 + order.steps.len()),
            from: Vec::with_capacity(order.others.len() / 2 + order.steps.len()),
        };
        let mut to = Vec::new();
        for step in &order.steps {
            to.clear();
            to.extend_from_slice(probabilities.get(step.to.clone()).unwrap_or_default());
            let end = at(&ends, step.state);
            let leaves = (to.iter().sum::<f64>() + end).max(LEAVE_MIN);
            let others = |range: &Range<usize>| order.others.get(range.clone()).unwrap_or_default();
            let from = probabilities.get(step.from.clone()).unwrap_or_default();
            push(&mut this.to, step.state, 1.0 / leaves, others(&step.to).iter().zip(&to));
            push(&mut this.from, step.state, 1.0 / leaves, others(&step.from).iter().zip(from));
            let added = order.added.get(step.added.clone()).unwrap_or_default();
            let mut added = added.chunks_exact(to.len().max(1));
            for (place, from) in step.from.clone().zip(others(&step.from)) {
                let share = at(&probabilities, place) / leaves;
                for (place, probability) in added.next().unwrap_or_default().iter().zip(&to) {
                    add(&mut probabilities, *place as usize, share * probability);
                }
                add(&mut ends, *from as usize, share * end);
            }
        }
        this
    }

    /// Turns how often the chain begins in each state into how often each state is visited, for
    /// several vectors at once.
    pub fn visits<const N: usize>(&self, begins: &mut [[f64; N]]) {
        solve(begins, &self.to, &self.from);
    }

    /// Turns the worth of one visit of each state into the expected sum of worths from each state
    /// on: the transpose of [`MarkovChain::visits`].
    pub fn values<const N: usize>(&self, worth: &mut [[f64; N]]) {
        solve(worth, &self.from, &self.to);
    }
}

/// Adds the coefficients of a step, in reverse.
fn push<'a>(
    all: &mut Vec<Coefficient>,
    state: usize,
    stays: f64,
    step: impl DoubleEndedIterator<Item = (&'a u32, &'a f64)>,
) {
    let (first, state) = (all.len(), u32::try_from(state).unwrap_or(NONE));
    let coefficient =
        |other, probability| Coefficient { state, other, probability, stays, stays_once: 1.0 };
    all.extend(step.rev().map(|(other, probability)| coefficient(*other, *probability)));
    if all.len() == first {
        all.push(coefficient(state, 0.0));
    }
    all.get_mut(first).into_iter().for_each(|first| first.stays_once = stays);
}

/// Forward and back substitution.
fn solve<const N: usize>(values: &mut [[f64; N]], forward: &[Coefficient], back: &[Coefficient]) {
    for Coefficient { state, other, probability, stays, .. } in forward {
        let share = at_each(values, *state as usize).map(|comes| comes * stays);
        add_each(values, *other as usize, share, *probability);
    }
    // The sum of what begins in a state, or came through states eliminated before it, and of what
    // comes from states eliminated after it.
    for Coefficient { state, other, probability, stays_once, .. } in back.iter().rev() {
        let other = at_each(values, *other as usize);
        if let Some(solved) = values.get_mut(*state as usize) {
            solved
                .iter_mut()
                .zip(other)
                .for_each(|(inner, other)| *inner = (*inner + other * probability) * stays_once);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(states: usize, transitions: &[(usize, usize, f64)]) -> EliminationOrder {
        EliminationOrder::of(states, transitions.iter().map(|&(a, b, _)| (a, b))).unwrap()
    }

    fn chain(order: &EliminationOrder, transitions: &[(usize, usize, f64)]) -> MarkovChain {
        let mut ends = vec![1.0; order.states];
        transitions.iter().for_each(|&(a, _, probability)| ends[a] -= probability);
        MarkovChain::eliminate(
            order,
            transitions.iter().map(|(.., probability)| *probability),
            &ends,
        )
    }

    fn visits<const N: usize>(chain: &MarkovChain, begins: &[[f64; N]]) -> Vec<[f64; N]> {
        let mut visits = begins.to_vec();
        chain.visits(&mut visits);
        visits
    }

    #[test]
    fn a_loop_is_executed_as_often_as_it_takes_to_leave_it() {
        // 0 -> 1, 1 -> 1 nine times of ten, 1 -> 2.
        let transitions = [(0, 1, 1.0), (1, 1, 0.9), (1, 2, 0.1)];
        let visits = visits(&chain(&order(3, &transitions), &transitions), &[[1.0], [0.0], [0.0]]);
        for ([visits], wanted) in visits.iter().zip([1.0, 10.0, 1.0]) {
            assert!((visits - wanted).abs() < 1e-12, "{visits} {wanted}");
        }
    }

    #[test]
    fn rare_exits_are_exact() {
        // Two nested loops, each left once in a million rounds.
        let p = 1e-6;
        let transitions =
            [(0, 1, 1.0), (1, 2, 1.0), (2, 2, 1.0 - p), (2, 1, p * (1.0 - p)), (2, 3, p * p)];
        let order = order(4, &transitions);
        let probabilities = transitions.iter().map(|(.., probability)| *probability);
        let chain = MarkovChain::eliminate(&order, probabilities, &[0.0, 0.0, 0.0, 1.0]);
        let visits = visits(&chain, &[[1.0], [0.0], [0.0], [0.0]]).into_flattened();
        let wanted = [1.0, 1.0 / p, 1.0 / (p * p), 1.0];
        for (visits, wanted) in visits.iter().zip(wanted) {
            assert!((visits / wanted - 1.0).abs() < 1e-9, "{visits} {wanted}");
        }
    }

    #[test]
    fn visits_are_conserved_and_values_are_their_transpose() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..300 {
            let states = random.usize(1..40);
            let mut transitions = Vec::new();
            for a in 0..states {
                let targets = random.usize(0..4);
                let mut rest = 0.98;
                for b in std::iter::repeat_with(|| random.usize(0..states))
                    .take(targets)
                    .collect::<BTreeSet<_>>()
                {
                    let probability = rest * random.f64();
                    rest -= probability;
                    transitions.push((a, b, probability));
                }
            }
            let order = order(states, &transitions);
            let chain = chain(&order, &transitions);
            let begins: Vec<[f64; 3]> =
                (0..states).map(|_| [random.f64(), random.f64(), 0.0]).collect();
            let worth: Vec<f64> = (0..states).map(|_| random.f64()).collect();
            let mut values = worth.clone();
            chain.values(values.as_chunks_mut::<1>().0);
            let all = visits(&chain, &begins);
            // Vectors side by side do not mix.
            let one: Vec<[f64; 1]> = begins.iter().map(|begins| [begins[1]]).collect();
            assert!(
                visits(&chain, &one)
                    .iter()
                    .zip(&all)
                    .all(|(one, all)| one[0] == all[1] && all[2] == 0.0)
            );
            let [begins, visits] =
                [&begins, &all].map(|all| all.iter().map(|one| one[0]).collect::<Vec<f64>>());
            let mut comes = begins.clone();
            transitions.iter().for_each(|&(a, b, probability)| comes[b] += visits[a] * probability);
            for (visits, comes) in visits.iter().zip(&comes) {
                assert!((visits - comes).abs() <= 1e-9 * visits.abs().max(1.0), "{visits} {comes}");
            }
            let sum = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let (by_visits, by_values) = (sum(&visits, &worth), sum(&begins, &values));
            assert!((by_visits / by_values - 1.0).abs() < 1e-9, "{by_visits} {by_values}");
        }
    }

    #[test]
    fn a_state_that_is_never_left_costs_no_infinity() {
        let transitions = [(0, 1, 1.0), (1, 1, 1.0)];
        let visits =
            visits(&chain(&order(2, &transitions), &transitions), &[[1.0], [0.0]]).into_flattened();
        assert!(visits.iter().all(|visits| visits.is_finite()) && visits[1] > 1e6, "{visits:?}");
    }

    #[test]
    fn what_is_too_dense_is_refused() {
        let states = 400;
        let all = (0..states).flat_map(|a| (0..states).map(move |b| (a, b)));
        assert!(EliminationOrder::of(states, all).is_none());
    }
}

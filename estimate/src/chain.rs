//! A Markov chain that ends: how often each state is visited, and what visits are worth.
//!
//! States are eliminated one after the other, as Grassmann, Taksar and Heyman do (Operations
//! Research 33, 1985): nothing is ever subtracted, so a loop that is left once in a million rounds
//! is as exact as any other. States with few neighbours go first, which keeps the graphs of
//! procedures nearly as sparse as they are.

use std::collections::BTreeSet;
use std::ops::Range;

/// Most transitions that elimination may have made, together: a graph in which everything leads
/// everywhere is not a procedure.
const TRANSITIONS_MAX: usize = 1 << 22;
/// The least probability of leaving a state for good or for another: a state that is never left is
/// left so seldom.
const LEAVE_MIN: f64 = 1e-15;

/// In which order states are eliminated, and what that does to the transitions between them: that
/// depends on which there are, not on how probable they are, and is found once for all
/// probabilities.
#[derive(Clone, Debug)]
pub struct Order {
    states: usize,
    steps: Vec<Step>,
    /// The state at the other end of each transition that a step has.
    others: Vec<u32>,
    /// Where each transition that the order was made for is among those; [`NONE`] where it leads to
    /// where it comes from.
    places: Vec<u32>,
    /// For each step, for each transition to its state, for each transition from it: where the one
    /// is that elimination adds to.
    added: Vec<u32>,
}

/// A state that is eliminated: transitions to and from those that are still there.
#[derive(Clone, Debug)]
struct Step {
    state: usize,
    to: Range<usize>,
    from: Range<usize>,
    added: Range<usize>,
}

/// No place.
const NONE: u32 = u32::MAX;

/// The chain, with all states eliminated.
#[derive(Debug)]
pub struct Chain {
    /// Transitions from the state of each step, when it came, and those to it; in the order of the
    /// steps, those of one in reverse. Each step has one of each at least.
    to: Vec<Transition>,
    from: Vec<Transition>,
}

/// A transition of a step.
#[derive(Clone, Copy, Debug)]
struct Transition {
    /// The state of the step, and the one at the other end.
    state: u32,
    other: u32,
    probability: f64,
    /// How often the state of the step is visited on end: 1 by how probable it is to leave it, for
    /// good or for another.
    stays: f64,
    /// The same, of the step's first here; 1 of others.
    stays_once: f64,
}

impl Order {
    /// An order for `states` states between which there are these transitions. None when the graph
    /// would become too dense.
    #[must_use]
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
        // What eliminating a state may add.
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
        let mut made = 0;
        while let Some((cost, state)) = queue.pop_first() {
            made += cost;
            if made > TRANSITIONS_MAX {
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

    /// Finds where transitions are.
    fn place(&mut self, transitions: impl Iterator<Item = (usize, usize)>) -> Option<()> {
        // Of each state, where the transitions from it are, by where they lead to.
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

impl Chain {
    /// The chain with these probabilities of the transitions that the order was made for, in their
    /// order, and of ending.
    #[must_use]
    pub fn eliminate(order: &Order, transitions: impl Iterator<Item = f64>, ends: &[f64]) -> Self {
        let mut probabilities = vec![0.0; order.others.len()];
        // To itself is not kept: what stays does not leave.
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

    /// Makes of how often the chain begins in each state how often each is visited: of several such
    /// questions at once.
    pub fn visits<const N: usize>(&self, begins: &mut [[f64; N]]) {
        solve(begins, &self.to, &self.from);
    }

    /// Makes of what a visit of each state is worth what is gained from each on: the transpose of
    /// [`Chain::visits`].
    pub fn values<const N: usize>(&self, worth: &mut [[f64; N]]) {
        solve(worth, &self.from, &self.to);
    }
}

/// Adds the transitions of a step.
fn push<'a>(
    all: &mut Vec<Transition>,
    state: usize,
    stays: f64,
    step: impl DoubleEndedIterator<Item = (&'a u32, &'a f64)>,
) {
    let (first, state) = (all.len(), u32::try_from(state).unwrap_or(NONE));
    let one = |other, probability| Transition { state, other, probability, stays, stays_once: 1.0 };
    all.extend(step.rev().map(|(other, probability)| one(*other, *probability)));
    if all.len() == first {
        all.push(one(state, 0.0));
    }
    all.get_mut(first).into_iter().for_each(|first| first.stays_once = stays);
}

fn solve<const N: usize>(values: &mut [[f64; N]], forth: &[Transition], back: &[Transition]) {
    for Transition { state, other, probability, stays, .. } in forth {
        let share = at_each(values, *state as usize).map(|comes| comes * stays);
        add_each(values, *other as usize, share, *probability);
    }
    // What begins in a state, or came through states that are gone, and what comes from those that
    // were still there.
    for Transition { state, other, probability, stays_once, .. } in back.iter().rev() {
        let other = at_each(values, *other as usize);
        if let Some(solved) = values.get_mut(*state as usize) {
            solved
                .iter_mut()
                .zip(other)
                .for_each(|(inner, other)| *inner = (*inner + other * probability) * stays_once);
        }
    }
}

/// The numbers at a place; 0 where there are none.
pub(super) fn at_each<const N: usize>(values: &[[f64; N]], place: usize) -> [f64; N] {
    values.get(place).copied().unwrap_or([0.0; N])
}

/// Adds so many times `more` to the numbers at a place.
pub(super) fn add_each<const N: usize>(
    values: &mut [[f64; N]],
    place: usize,
    more: [f64; N],
    times: f64,
) {
    if let Some(values) = values.get_mut(place) {
        values.iter_mut().zip(more).for_each(|(value, more)| *value += times * more);
    }
}

/// What becomes of each number and its partner.
pub(super) fn each<const N: usize>(
    mut a: [f64; N],
    b: [f64; N],
    of: impl Fn(f64, f64) -> f64,
) -> [f64; N] {
    a.iter_mut().zip(b).for_each(|(a, b)| *a = of(*a, b));
    a
}

/// The inner product of each two.
pub(super) fn products<const N: usize>(a: &[[f64; N]], b: &[[f64; N]]) -> [f64; N] {
    a.iter()
        .zip(b)
        .fold([0.0; N], |sum, (a, b)| each(sum, each(*a, *b, |a, b| a * b), |sum, one| sum + one))
}

/// The number at a place; 0 where there is none.
pub(super) fn at(values: &[f64], place: usize) -> f64 {
    values.get(place).copied().unwrap_or(0.0)
}

/// Adds to the number at a place.
pub(super) fn add(values: &mut [f64], place: usize, more: f64) {
    values.get_mut(place).into_iter().for_each(|value| *value += more);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(states: usize, transitions: &[(usize, usize, f64)]) -> Order {
        Order::of(states, transitions.iter().map(|&(a, b, _)| (a, b))).unwrap()
    }

    fn chain(order: &Order, transitions: &[(usize, usize, f64)]) -> Chain {
        let mut ends = vec![1.0; order.states];
        transitions.iter().for_each(|&(a, _, probability)| ends[a] -= probability);
        Chain::eliminate(order, transitions.iter().map(|(.., probability)| *probability), &ends)
    }

    fn visits<const N: usize>(chain: &Chain, begins: &[[f64; N]]) -> Vec<[f64; N]> {
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
        let chain = Chain::eliminate(&order, probabilities, &[0.0, 0.0, 0.0, 1.0]);
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
            // Each of the questions has its own answer.
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
        assert!(Order::of(states, all).is_none());
    }
}

//! A Markov chain that ends: how often each state is visited, and what visits are worth.
//!
//! States are eliminated one after the other, as Grassmann, Taksar and Heyman do (Operations Research 33, 1985): nothing is ever
//! subtracted, so a loop that is left once in a million rounds is as exact as any other. States with few neighbours go first, which keeps the
//! graphs of procedures nearly as sparse as they are.

use std::collections::BTreeSet;

/// Most transitions that elimination may have made, together: a graph in which everything leads everywhere is not a procedure.
const TRANSITIONS_MAX: usize = 1 << 22;
/// The least probability of leaving a state for good or for another: a state that is never left is left so seldom.
const LEAVE_MIN: f64 = 1e-15;

/// In which order states are eliminated; it depends on which transitions there are, not on how probable they are.
#[derive(Clone, Debug)]
pub struct Order(Vec<usize>);

/// The chain, with all states eliminated.
#[derive(Debug)]
pub struct Chain {
    states: usize,
    eliminated: Vec<Eliminated>,
}

/// A state as it was when it was eliminated: transitions to and from those that were still there.
#[derive(Debug)]
struct Eliminated {
    state: usize,
    leave: f64,
    from: Vec<(usize, f64)>,
    to: Vec<(usize, f64)>,
}

impl Order {
    /// An order for `states` states between which there are these transitions. None when the graph would become too dense.
    #[must_use]
    pub fn of(states: usize, transitions: impl Iterator<Item = (usize, usize)>) -> Option<Self> {
        let mut to = vec![BTreeSet::new(); states];
        let mut from = vec![BTreeSet::new(); states];
        for (a, b) in transitions.filter(|(a, b)| a != b) {
            to.get_mut(a)?.insert(b);
            from.get_mut(b)?.insert(a);
        }
        // What eliminating a state may add.
        let fill = |to: &[BTreeSet<usize>], from: &[BTreeSet<usize>], state: usize| {
            to.get(state).map_or(0, BTreeSet::len) * from.get(state).map_or(0, BTreeSet::len)
        };
        let mut queue: BTreeSet<(usize, usize)> = (0..states).map(|state| (fill(&to, &from, state), state)).collect();
        let mut order = Vec::with_capacity(states);
        let mut made = 0;
        while let Some((cost, state)) = queue.pop_first() {
            order.push(state);
            made += cost;
            if made > TRANSITIONS_MAX {
                return None;
            }
            let (next, before) = (std::mem::take(to.get_mut(state)?), std::mem::take(from.get_mut(state)?));
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
        }
        Some(Self(order))
    }
}

impl Chain {
    /// The chain with these transitions (from, to, probability) and probabilities of ending, in an order made for them.
    #[must_use]
    pub fn eliminate(order: &Order, transitions: impl Iterator<Item = (usize, usize, f64)>, ends: &[f64]) -> Self {
        let states = order.0.len();
        let mut rows: Vec<Vec<(usize, f64)>> = vec![Vec::new(); states];
        let mut columns: Vec<Vec<usize>> = vec![Vec::new(); states];
        for (a, b, probability) in transitions.filter(|(a, b, _)| a != b) {
            merge(&mut rows, &mut columns, a, &[(b, probability)], 1.0);
        }
        let mut ends = ends.to_vec();
        let mut eliminated = Vec::with_capacity(states);
        for &state in &order.0 {
            let to = rows.get_mut(state).map(std::mem::take).unwrap_or_default();
            let before = columns.get_mut(state).map(std::mem::take).unwrap_or_default();
            let end = at(&ends, state);
            let leave = (to.iter().map(|(_, probability)| probability).sum::<f64>() + end).max(LEAVE_MIN);
            let mut from = Vec::with_capacity(before.len());
            for a in before {
                // Of states that are gone the rows are empty.
                let Some(row) = rows.get_mut(a) else { continue };
                let Ok(place) = row.binary_search_by_key(&state, |(b, _)| *b) else { continue };
                let (_, probability) = row.remove(place);
                from.push((a, probability));
                let share = probability / leave;
                merge(&mut rows, &mut columns, a, &to, share);
                add(&mut ends, a, share * end);
            }
            eliminated.push(Eliminated { state, leave, from, to });
        }
        Self { states, eliminated }
    }

    /// How often each state is visited, when the chain begins so often in each.
    #[must_use]
    pub fn visits(&self, begins: &[f64]) -> Vec<f64> {
        let mut comes = begins.to_vec();
        comes.resize(self.states, 0.0);
        for step in &self.eliminated {
            let share = at(&comes, step.state) / step.leave;
            step.to.iter().for_each(|(to, probability)| add(&mut comes, *to, share * probability));
        }
        let mut visits = vec![0.0; self.states];
        for step in self.eliminated.iter().rev() {
            let inner: f64 = step.from.iter().map(|(from, probability)| at(&visits, *from) * probability).sum();
            // What begins here, or came through states that are gone, and what comes from those that were still there.
            add(&mut visits, step.state, (at(&comes, step.state) + inner) / step.leave);
        }
        visits
    }

    /// What is gained from each state on, if a visit of each is worth so much: the transpose of [`Chain::visits`].
    #[must_use]
    pub fn values(&self, worth: &[f64]) -> Vec<f64> {
        let mut gains = worth.to_vec();
        gains.resize(self.states, 0.0);
        for step in &self.eliminated {
            let share = at(&gains, step.state) / step.leave;
            step.from.iter().for_each(|(from, probability)| add(&mut gains, *from, share * probability));
        }
        let mut values = vec![0.0; self.states];
        for step in self.eliminated.iter().rev() {
            let inner: f64 = step.to.iter().map(|(to, probability)| at(&values, *to) * probability).sum();
            add(&mut values, step.state, (at(&gains, step.state) + inner) / step.leave);
        }
        values
    }
}

/// Adds `factor` times the transitions `to`, in order, to those of state `a`.
fn merge(rows: &mut [Vec<(usize, f64)>], columns: &mut [Vec<usize>], a: usize, to: &[(usize, f64)], factor: f64) {
    let Some(row) = rows.get_mut(a) else { return };
    // To itself is not kept: what stays does not leave.
    for &(b, probability) in to.iter().filter(|(b, _)| *b != a) {
        match row.binary_search_by_key(&b, |(b, _)| *b) {
            Ok(place) => row.get_mut(place).into_iter().for_each(|(_, sum)| *sum += factor * probability),
            Err(place) => {
                row.insert(place, (b, factor * probability));
                columns.get_mut(b).into_iter().for_each(|column| column.push(a));
            }
        }
    }
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

    fn chain(states: usize, transitions: &[(usize, usize, f64)]) -> Chain {
        let order = Order::of(states, transitions.iter().map(|&(a, b, _)| (a, b))).unwrap();
        let mut ends = vec![1.0; states];
        transitions.iter().for_each(|&(a, _, probability)| ends[a] -= probability);
        Chain::eliminate(&order, transitions.iter().copied(), &ends)
    }

    #[test]
    fn a_loop_is_executed_as_often_as_it_takes_to_leave_it() {
        // 0 -> 1, 1 -> 1 nine times of ten, 1 -> 2.
        let chain = chain(3, &[(0, 1, 1.0), (1, 1, 0.9), (1, 2, 0.1)]);
        let visits = chain.visits(&[1.0, 0.0, 0.0]);
        for (visits, wanted) in visits.iter().zip([1.0, 10.0, 1.0]) {
            assert!((visits - wanted).abs() < 1e-12, "{visits} {wanted}");
        }
    }

    #[test]
    fn rare_exits_are_exact() {
        // Two nested loops, each left once in a million rounds.
        let p = 1e-6;
        let order = Order::of(4, [(0, 1), (1, 2), (2, 2), (2, 1), (2, 3)].into_iter()).unwrap();
        let transitions = [(0, 1, 1.0), (1, 2, 1.0), (2, 2, 1.0 - p), (2, 1, p * (1.0 - p)), (2, 3, p * p)];
        let visits = Chain::eliminate(&order, transitions.into_iter(), &[0.0, 0.0, 0.0, 1.0]).visits(&[1.0]);
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
                for b in std::iter::repeat_with(|| random.usize(0..states)).take(targets).collect::<BTreeSet<_>>() {
                    let probability = rest * random.f64();
                    rest -= probability;
                    transitions.push((a, b, probability));
                }
            }
            let chain = chain(states, &transitions);
            let begins: Vec<f64> = (0..states).map(|_| random.f64()).collect();
            let worth: Vec<f64> = (0..states).map(|_| random.f64()).collect();
            let (visits, values) = (chain.visits(&begins), chain.values(&worth));
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
        let visits = chain(2, &[(0, 1, 1.0), (1, 1, 1.0)]).visits(&[1.0, 0.0]);
        assert!(visits.iter().all(|visits| visits.is_finite()) && visits[1] > 1e6, "{visits:?}");
    }

    #[test]
    fn what_is_too_dense_is_refused() {
        let states = 400;
        let all = (0..states).flat_map(|a| (0..states).map(move |b| (a, b)));
        assert!(Order::of(states, all).is_none());
    }
}

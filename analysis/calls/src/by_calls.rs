//! Time of procedures with all that they called, where every call was counted: the time of a
//! procedure is divided among its callers in proportion to their calls (S. Graham, P. Kessler,
//! M. McKusick, "gprof: a call graph execution profiler", SIGPLAN 1982, section 4).

use std::collections::HashMap;

use stats::Share;

use crate::contexts::{Contexts, SubjectId};
use crate::neighbours::Neighbour;
use crate::timed::Estimate;

/// Numbers of calls between subjects.
#[derive(Debug, Default)]
struct Graph {
    /// For each subject: its callees, and the number of calls.
    callees: Vec<Vec<(usize, f64)>>,
    /// For each subject: its direct recursive calls.
    recursive: Vec<f64>,
}

impl Graph {
    fn of(contexts: &Contexts, subjects: usize) -> Self {
        let mut arcs: HashMap<(SubjectId, SubjectId), u64> = HashMap::new();
        for entry in contexts.entries() {
            let callee = contexts.subject(entry.node);
            let caller = contexts.parent(entry.node).and_then(|parent| contexts.subject(parent));
            if let Some(arc) = caller.zip(callee) {
                let calls = arcs.entry(arc).or_default();
                *calls = calls.saturating_add(entry.value.weight);
            }
        }
        let (mut callees, mut recursive) = (vec![Vec::new(); subjects], vec![0.0; subjects]);
        for ((caller, callee), calls) in arcs {
            if caller == callee {
                if let Some(own) = recursive.get_mut(callee as usize) {
                    *own = calls as f64;
                }
            } else if let Some(callees) = callees.get_mut(caller as usize) {
                callees.push((callee as usize, calls as f64));
            }
        }
        // Sums of floats depend on their order.
        callees.iter_mut().for_each(|callees| callees.sort_unstable_by_key(|(callee, _)| *callee));
        Self { callees, recursive }
    }

    /// Circles of subjects that call each other, those that are called before their callers: of
    /// each subject the number of its circle, and how many circles there are. Most have one
    /// subject. (R. Tarjan, "Depth-first search and linear graph algorithms", 1972, without
    /// recursion: a stranger's database may have a chain of a million calls.)
    fn circles(&self) -> (Vec<usize>, usize) {
        const NEW: usize = usize::MAX;
        let subjects = self.callees.len();
        let (mut circle, mut index, mut low) =
            (vec![NEW; subjects], vec![NEW; subjects], vec![NEW; subjects]);
        let (mut open, mut path): (Vec<usize>, Vec<(usize, usize)>) = (Vec::new(), Vec::new());
        let (mut seen, mut circles) = (0, 0);
        let at = |of: &[usize], subject: usize| of.get(subject).copied().unwrap_or(NEW);
        let set = |of: &mut [usize], subject: usize, value: usize| {
            if let Some(place) = of.get_mut(subject) {
                *place = value;
            }
        };
        for root in 0..subjects {
            if at(&index, root) == NEW {
                path.push((root, 0));
            }
            while let Some((subject, next)) = path.pop() {
                if next == 0 {
                    set(&mut index, subject, seen);
                    set(&mut low, subject, seen);
                    seen += 1;
                    open.push(subject);
                }
                let callees = self.callees.get(subject).map(Vec::as_slice).unwrap_or_default();
                if let Some((callee, _)) = callees.get(next) {
                    path.push((subject, next + 1));
                    if at(&index, *callee) == NEW {
                        path.push((*callee, 0));
                    }
                    continue;
                }
                let reached = callees.iter().filter(|(callee, _)| at(&circle, *callee) == NEW);
                let least = reached.map(|(callee, _)| at(&low, *callee)).min();
                let least = least.map_or(at(&low, subject), |least| least.min(at(&low, subject)));
                set(&mut low, subject, least);
                if least == at(&index, subject) {
                    while let Some(member) = open.pop() {
                        set(&mut circle, member, circles);
                        if member == subject {
                            break;
                        }
                    }
                    circles += 1;
                }
            }
        }
        (circle, circles)
    }
}

/// Times of subjects with all that they called, by numbers of calls.
///
/// A moment in a procedure is taken to have each of the procedure's callers as caller with the
/// probability that is the caller's part of the calls, and so on up to a procedure that nothing
/// called: a walk. The time of a subject with all that it called is that of the moments whose walks
/// meet the subject, however often: recursion counts once. Subjects that call each other in a
/// circle need a system of equations. Where a circle has more than 1024 subjects each of
/// them has the time of all.
#[derive(Debug)]
pub struct ByCalls {
    graph: Graph,
    /// One entry per subject.
    circle: Vec<usize>,
    of_subject: Vec<OfSubject>,
    /// Whether a circle was too large for its system.
    is_joined: Vec<bool>,
    whole: f64,
}

/// Sums of a subject.
#[derive(Clone, Copy, Debug, Default)]
struct OfSubject {
    /// Its own time.
    own: f64,
    called: f64,
    /// Its time with all that it called.
    inclusive: f64,
    /// The same, where each walk counts as often as it meets the subject.
    visited: f64,
    /// Time that a call stands for to the caller.
    per_call: f64,
}

/// Most subjects of a circle whose system is solved: a matrix of 8 MiB and some seconds.
const CIRCLE_MAX: usize = 1024;
/// Part of the walks that end at each step in a circle: one that nothing outside calls would have
/// no end.
const LEAK: f64 = 1e-9;

impl ByCalls {
    /// Divides times among callers. `own` has the times of the subjects themselves; contexts are a
    /// caller and what it called.
    pub fn of(contexts: &Contexts, own: &[f64]) -> Self {
        let graph = Graph::of(contexts, own.len());
        let (circle, circles) = graph.circles();
        let of_own = |own: &f64| OfSubject { own: *own, ..OfSubject::default() };
        let of_subject = own.iter().map(of_own).collect();
        let (is_joined, whole) = (vec![false; circles], own.iter().sum());
        let mut all = Self { graph, circle, of_subject, is_joined, whole };
        all.divide();
        all
    }

    fn get(&self, subject: usize) -> OfSubject {
        self.of_subject.get(subject).copied().unwrap_or_default()
    }

    fn circle(&self, subject: usize) -> usize {
        self.circle.get(subject).copied().unwrap_or(usize::MAX)
    }

    fn callees_of(&self, subject: usize) -> &[(usize, f64)] {
        self.graph.callees.get(subject).map(Vec::as_slice).unwrap_or_default()
    }

    fn divide(&mut self) {
        for (callee, calls) in self.graph.callees.iter().flatten() {
            if let Some(of) = self.of_subject.get_mut(*callee) {
                of.called += calls;
            }
        }
        let mut members: Vec<Vec<usize>> = vec![Vec::new(); self.is_joined.len()];
        for (subject, circle) in self.circle.iter().enumerate() {
            if let Some(members) = members.get_mut(*circle) {
                members.push(subject);
            }
        }
        // A cycle comes after all procedures that it calls.
        for (number, members) in members.iter().enumerate() {
            let outside = |subject: &usize| {
                let callees = self.callees_of(*subject).iter();
                let callees = callees.filter(|(callee, _)| self.circle(*callee) != number);
                let below: f64 =
                    callees.map(|(callee, calls)| self.get(*callee).per_call * calls).sum();
                self.get(*subject).own + below
            };
            let begin: Vec<f64> = members.iter().map(outside).collect();
            let found: Vec<(f64, f64)> = match members.len() {
                0 | 1 => begin.iter().map(|time| (*time, *time)).collect(),
                2..=CIRCLE_MAX => self.solve(members, &begin),
                _ => {
                    self.join(number, members, begin.iter().sum());
                    continue;
                }
            };
            for (subject, (visited, inclusive)) in members.iter().zip(found) {
                if let Some(of) = self.of_subject.get_mut(*subject) {
                    let per_call = if of.called > 0.0 { visited / of.called } else { 0.0 };
                    *of = OfSubject { visited, inclusive, per_call, ..*of };
                }
            }
        }
    }

    /// Visits and times of the members of a circle, where the time of `begin` walks from each.
    ///
    /// With `Q` the probabilities of steps within the circle and `G` the inverse of `I - Q`, visits
    /// are `begin G`, and a walk from a member meets it `G[i][i]` times in all (J. Kemeny and
    /// J. Snell, "Finite Markov Chains", 1960, section 3.2). Rows of `I - Q` are dominated by their
    /// diagonal, so that elimination needs no pivots.
    fn solve(&self, members: &[usize], begin: &[f64]) -> Vec<(f64, f64)> {
        let places: HashMap<usize, usize> =
            members.iter().enumerate().map(|(place, subject)| (*subject, place)).collect();
        let mut system = Matrix::identity(members.len());
        for (caller, subject) in members.iter().enumerate() {
            for (callee, calls) in self.callees_of(*subject) {
                if let Some(callee_at) = places.get(callee) {
                    let part = calls / self.get(*callee).called;
                    system.add(*callee_at, caller, -(1.0 - LEAK) * part);
                }
            }
        }
        system.eliminate();
        let visits = system.solve_transposed(begin);
        let met = |place: usize| system.inverse_at(place);
        let visits = visits.into_iter().enumerate();
        visits.map(|(place, visited)| (visited, visited / met(place).max(1.0))).collect()
    }

    /// Gives each member of a circle the time of all.
    fn join(&mut self, number: usize, members: &[usize], time: f64) {
        let within = members.iter().flat_map(|subject| self.callees_of(*subject));
        let within = within.filter(|(callee, _)| self.circle(*callee) == number);
        let within: f64 = within.map(|(_, calls)| calls).sum();
        let called: f64 = members.iter().map(|subject| self.get(*subject).called).sum();
        let into = called - within;
        for subject in members {
            if let Some(of) = self.of_subject.get_mut(*subject) {
                let per_call = if into > 0.0 { time / into } else { 0.0 };
                *of = OfSubject { visited: time, inclusive: time, per_call, ..*of };
            }
        }
        if let Some(is_joined) = self.is_joined.get_mut(number) {
            *is_joined = true;
        }
    }

    /// The time of each subject with all that it called, in the order of their numbers.
    pub fn inclusive(&self) -> Vec<Estimate> {
        let estimate = |of: &OfSubject| exactly(of.inclusive, self.whole, of.called);
        self.of_subject.iter().map(estimate).collect()
    }

    /// Calls of a subject by itself, as a caller or callee of itself: they have no time.
    fn recursive(&self, subject: usize) -> Option<Neighbour> {
        let calls = self.graph.recursive.get(subject).copied().filter(|calls| *calls > 0.0)?;
        let estimate = exactly(0.0, self.get(subject).inclusive, calls);
        Some(Neighbour { subject: Some(subject as SubjectId), estimate })
    }

    /// The callers of a subject, those with the most time first: each has the part of the
    /// subject's time that its part of the calls is. Shares sum up to 1.
    pub fn callers(&self, subject: SubjectId) -> Vec<Neighbour> {
        let subject = subject as usize;
        let OfSubject { inclusive, called, .. } = self.get(subject);
        let mut found: Vec<Neighbour> = Vec::new();
        for (caller, callees) in self.graph.callees.iter().enumerate() {
            let calls = callees.iter().filter(|(callee, _)| *callee == subject);
            let calls: f64 = calls.map(|(_, calls)| calls).sum();
            if calls > 0.0 {
                let estimate = exactly(inclusive * calls / called, inclusive, calls);
                found.push(Neighbour { subject: Some(caller as SubjectId), estimate });
            }
        }
        if found.is_empty() {
            found.push(Neighbour { subject: None, estimate: exactly(inclusive, inclusive, 0.0) });
        }
        found.extend(self.recursive(subject));
        in_order(found)
    }

    /// The callees of a subject, those with the most time first, among them none: its own time.
    /// Shares sum up to 1, except for calls within a circle whose subjects have the time of all:
    /// these have no time.
    pub fn callees(&self, subject: SubjectId) -> Vec<Neighbour> {
        let subject = subject as usize;
        let OfSubject { own, called, inclusive, visited, .. } = self.get(subject);
        let part = |time: f64| if visited > 0.0 { time / visited * inclusive } else { 0.0 };
        let itself = Neighbour { subject: None, estimate: exactly(part(own), inclusive, called) };
        let neighbour = |(callee, calls): &(usize, f64)| {
            let circle = self.circle(*callee);
            let is_joined = self.is_joined.get(circle).is_some_and(|is_joined| *is_joined);
            let is_within = is_joined && circle == self.circle(subject);
            let time = if is_within { 0.0 } else { self.get(*callee).per_call * calls };
            let estimate = exactly(part(time), inclusive, *calls);
            Neighbour { subject: Some(*callee as SubjectId), estimate }
        };
        let callees = self.callees_of(subject).iter().map(neighbour);
        in_order(callees.chain([itself]).chain(self.recursive(subject)).collect())
    }

    /// Number of calls, those of procedures by themselves included.
    pub fn calls(&self) -> u64 {
        let called = self.of_subject.iter().map(|of| of.called);
        called.chain(self.graph.recursive.iter().copied()).sum::<f64>() as u64
    }
}

/// A square matrix; after [`Matrix::eliminate`] its factors, of which the lower has ones on its
/// diagonal.
struct Matrix {
    size: usize,
    rows: Vec<Vec<f64>>,
}

impl Matrix {
    fn identity(size: usize) -> Self {
        let mut all = Self { size, rows: vec![vec![0.0; size]; size] };
        (0..size).for_each(|at| all.add(at, at, 1.0));
        all
    }

    fn add(&mut self, row: usize, column: usize, value: f64) {
        if let Some(place) = self.rows.get_mut(row).and_then(|row| row.get_mut(column)) {
            *place += value;
        }
    }

    fn at(&self, row: usize, column: usize) -> f64 {
        self.rows.get(row).and_then(|row| row.get(column)).copied().unwrap_or_default()
    }

    fn eliminate(&mut self) {
        for pivot in 0..self.size {
            let (above, below) = self.rows.split_at_mut(pivot + 1);
            let Some(of_pivot) = above.last() else { return };
            let diagonal = of_pivot.get(pivot).copied().unwrap_or(1.0);
            for row in below {
                let Some(place) = row.get_mut(pivot).filter(|value| **value != 0.0) else {
                    continue;
                };
                let factor = *place / diagonal;
                *place = factor;
                let behind = row.iter_mut().zip(of_pivot).skip(pivot + 1);
                behind.for_each(|(value, of_pivot)| *value -= factor * of_pivot);
            }
        }
    }

    /// The `x` with `x A = b`.
    fn solve_transposed(&self, b: &[f64]) -> Vec<f64> {
        let mut x = b.to_vec();
        // y U = b, then x L = y.
        for row in 0..self.size {
            let value = x.get(row).copied().unwrap_or_default() / self.at(row, row);
            self.subtract(&mut x, row, value, row + 1..self.size);
            if let Some(place) = x.get_mut(row) {
                *place = value;
            }
        }
        for row in (0..self.size).rev() {
            let value = x.get(row).copied().unwrap_or_default();
            self.subtract(&mut x, row, value, 0..row);
        }
        x
    }

    /// Subtracts `value` times these columns of a row.
    fn subtract(&self, x: &mut [f64], row: usize, value: f64, columns: std::ops::Range<usize>) {
        let row = self.rows.get(row).and_then(|row| row.get(columns.clone())).unwrap_or_default();
        let places = x.get_mut(columns).unwrap_or_default();
        places.iter_mut().zip(row).for_each(|(place, of_row)| *place -= value * of_row);
    }

    /// An element of the diagonal of the inverse.
    fn inverse_at(&self, at: usize) -> f64 {
        let mut unit = vec![0.0; self.size];
        if let Some(place) = unit.get_mut(at) {
            *place = 1.0;
        }
        self.solve_transposed(&unit).get(at).copied().unwrap_or(1.0)
    }
}

/// A time that nothing is left to chance of.
fn exactly(time: f64, whole: f64, calls: f64) -> Estimate {
    let value = if whole > 0.0 { (time / whole).min(1.0) } else { 0.0 };
    Estimate { time, share: Share { value, low: value, high: value }, stacks: calls as u64 }
}

fn in_order(mut found: Vec<Neighbour>) -> Vec<Neighbour> {
    let key = |of: &Neighbour| (of.estimate.time, of.estimate.stacks);
    found.sort_by(|a, b| {
        let ((time_a, calls_a), (time_b, calls_b)) = (key(a), key(b));
        time_b.total_cmp(&time_a).then(calls_b.cmp(&calls_a)).then(a.subject.cmp(&b.subject))
    });
    found
}

#[cfg(test)]
mod tests {
    use model::Value;

    use super::*;
    use crate::contexts::Entry;

    /// Inclusive times of calls `(caller, callee, times)`.
    fn times(calls: &[(SubjectId, SubjectId, u64)], own: &[f64]) -> Vec<f64> {
        let mut contexts = Contexts::default();
        for (caller, callee, times) in calls {
            let caller = contexts.node(None, *caller);
            let node = contexts.node(Some(caller), *callee);
            let value = Value { stacks: *times, weight: *times, squares: 0 };
            contexts.add(Entry { node, thread: 0, value });
        }
        ByCalls::of(&contexts, own).inclusive().iter().map(|of| of.time).collect()
    }

    #[test]
    fn time_goes_to_callers_by_their_calls_and_recursion_counts_once() {
        // main (0) calls a (1) once and b (2) once; both call work (3); a calls itself.
        let calls = [(0, 1, 1), (0, 2, 1), (1, 3, 30), (2, 3, 10), (1, 1, 7)];
        assert_eq!(times(&calls, &[1.0, 2.0, 3.0, 40.0]), [46.0, 32.0, 13.0, 40.0]);
    }

    /// 0 calls 1; 1 and 2 call each other: of the calls of 1 one in five is from 0, of those of 2
    /// all are from 1. A walk from 1 goes on to 2 four times in five, from 2 always to 1: each
    /// meets 1, and of those that begin at 1, four in five meet 2.
    #[test]
    fn of_procedures_in_a_circle_each_has_the_walks_that_meet_it() {
        let calls = [(0, 1, 1), (1, 2, 5), (2, 1, 4), (2, 3, 6), (4, 3, 6)];
        let found = times(&calls, &[1.0, 10.0, 20.0, 8.0, 0.5]);
        let expected = [35.0, 34.0, 24.0 + 0.8 * 10.0, 8.0, 4.5];
        for (found, expected) in found.iter().zip(expected) {
            assert!((found / expected - 1.0).abs() < 1e-6, "{found} is not {expected}");
        }
    }

    /// Random graphs, against the walks themselves.
    #[test]
    fn times_are_those_of_walks() {
        let mut state = 7_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let mut calls: Vec<(SubjectId, SubjectId, u64)> = Vec::new();
        for callee in 1..12 {
            calls.push((0, callee, 1 + random(9)));
            for _ in 0..3 {
                let caller = 1 + random(11) as SubjectId;
                let is_new = calls.iter().all(|(from, to, _)| (*from, *to) != (caller, callee));
                if caller != callee && is_new {
                    calls.push((caller, callee, 1 + random(9)));
                }
            }
        }
        let own: Vec<f64> = (0..12).map(|_| 1.0 + random(9) as f64).collect();
        let found = times(&calls, &own);
        const WALKS: u64 = 20_000;
        let mut met = [0.0; 12];
        for (begin, own) in own.iter().enumerate() {
            for _ in 0..WALKS {
                let (mut at, mut seen) = (begin as SubjectId, [false; 12]);
                loop {
                    seen[at as usize] = true;
                    let callers: Vec<_> = calls.iter().filter(|(_, to, _)| *to == at).collect();
                    if callers.is_empty() {
                        break;
                    }
                    let all: u64 = callers.iter().map(|(.., times)| times).sum();
                    let mut chosen = random(all);
                    let of = callers.iter().find(|(.., times)| {
                        let is_here = chosen < *times;
                        chosen = chosen.wrapping_sub(*times);
                        is_here
                    });
                    at = of.unwrap().0;
                }
                let here = seen.iter().zip(&mut met).filter(|(seen, _)| **seen);
                here.for_each(|(_, met)| *met += own / WALKS as f64);
            }
        }
        for (found, met) in found.iter().zip(met) {
            assert!((found / met - 1.0).abs() < 0.02, "{found} is not {met}");
        }
    }

    /// More subjects than a system is solved for.
    #[test]
    fn a_circle_that_is_too_large_has_the_time_of_all_its_members() {
        let many = CIRCLE_MAX as SubjectId + 1;
        let mut calls: Vec<_> = (0..many).map(|at| (at, (at + 1) % many, 3)).collect();
        calls.push((many, 0, 2));
        let found = times(&calls, &vec![1.0; many as usize + 1]);
        assert_eq!((found[0], found[9]), (f64::from(many), f64::from(many)));
        assert_eq!(found[many as usize], f64::from(many) + 1.0, "who called it");
    }

    /// A procedure without callers, and a chain so long that recursion would overflow the stack.
    #[test]
    fn long_chains_and_roots_are_followed() {
        let many = 200_000;
        let calls: Vec<_> = (0..many).map(|at| (at, at + 1, 2)).collect();
        let own = vec![1.0; many as usize + 2];
        let found = times(&calls, &own);
        assert_eq!(found.first(), Some(&200_001.0));
        assert_eq!(found.last(), Some(&1.0), "without calls");
    }
}

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
    /// Of each subject: what it called, and how often.
    callees: Vec<Vec<(usize, f64)>>,
}

impl Graph {
    fn of(contexts: &Contexts, subjects: usize) -> Self {
        let mut arcs: HashMap<(SubjectId, SubjectId), u64> = HashMap::new();
        for entry in contexts.entries() {
            let callee = contexts.subject(entry.node);
            let caller = contexts.parent(entry.node).and_then(|parent| contexts.subject(parent));
            if let Some(arc) = caller.zip(callee).filter(|(caller, callee)| caller != callee) {
                let calls = arcs.entry(arc).or_default();
                *calls = calls.saturating_add(entry.value.weight);
            }
        }
        let mut callees = vec![Vec::new(); subjects];
        for ((caller, callee), calls) in arcs {
            if let Some(callees) = callees.get_mut(caller as usize) {
                callees.push((callee as usize, calls as f64));
            }
        }
        // Sums of floats depend on their order.
        callees.iter_mut().for_each(|callees| callees.sort_unstable_by_key(|(callee, _)| *callee));
        Self { callees }
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

/// Times of subjects with all that they called, by numbers of calls. Subjects that call each other
/// in a circle are one: each has the time of all.
#[derive(Debug)]
pub struct ByCalls {
    graph: Graph,
    /// Of each subject: its own time, its circle, and calls of it.
    own: Vec<f64>,
    circle: Vec<usize>,
    called: Vec<f64>,
    /// Of each circle: its time with all that it called, and calls of it from elsewhere.
    times: Vec<f64>,
    calls_into: Vec<f64>,
    whole: f64,
}

impl ByCalls {
    /// Divides times among callers. `own` has the times of the subjects themselves; contexts are a
    /// caller and what it called.
    #[must_use]
    pub fn of(contexts: &Contexts, own: Vec<f64>) -> Self {
        let graph = Graph::of(contexts, own.len());
        let (circle, circles) = graph.circles();
        let whole = own.iter().sum();
        let called = vec![0.0_f64; own.len()];
        let (times, calls_into) = (vec![0.0_f64; circles], vec![0.0_f64; circles]);
        let mut all = Self { graph, own, circle, called, times, calls_into, whole };
        all.divide();
        all
    }

    fn divide(&mut self) {
        let Self { graph, own, circle, called, times, calls_into, .. } = self;
        let of = |subject: usize| circle.get(subject).copied().unwrap_or(usize::MAX);
        let mut members: Vec<Vec<usize>> = vec![Vec::new(); times.len()];
        for (subject, time) in own.iter().enumerate() {
            let circle = of(subject);
            if let Some((sum, members)) = times.get_mut(circle).zip(members.get_mut(circle)) {
                *sum += time;
                members.push(subject);
            }
        }
        for (caller, callees) in graph.callees.iter().enumerate() {
            for (callee, calls) in callees {
                if let Some(sum) = called.get_mut(*callee) {
                    *sum += calls;
                }
                if of(caller) != of(*callee)
                    && let Some(sum) = calls_into.get_mut(of(*callee))
                {
                    *sum += calls;
                }
            }
        }
        // A circle comes behind all that it calls.
        for (number, members) in members.iter().enumerate() {
            let callees = members.iter().filter_map(|subject| graph.callees.get(*subject));
            let outside = callees.flatten().filter(|(callee, _)| of(*callee) != number);
            let part = |(callee, calls): &(usize, f64)| {
                let (time, all) = times.get(of(*callee)).zip(calls_into.get(of(*callee)))?;
                (*all > 0.0).then(|| time * calls / all)
            };
            let below: f64 = outside.filter_map(part).sum();
            if let Some(time) = times.get_mut(number) {
                *time += below;
            }
        }
    }

    fn circle(&self, subject: usize) -> usize {
        self.circle.get(subject).copied().unwrap_or(usize::MAX)
    }

    /// The time of a subject with all that it called.
    fn time(&self, subject: usize) -> f64 {
        self.times.get(self.circle(subject)).copied().unwrap_or_default()
    }

    /// The time of each subject with all that it called, in the order of their numbers.
    #[must_use]
    pub fn inclusive(&self) -> Vec<Estimate> {
        let estimate = |subject: usize| {
            let calls = self.called.get(subject).copied().unwrap_or_default();
            exactly(self.time(subject), self.whole, calls)
        };
        (0..self.own.len()).map(estimate).collect()
    }

    /// The callers of a subject, those with the most time first: each has the part of the
    /// subject's time that its part of the calls is. Shares sum up to 1.
    #[must_use]
    pub fn callers(&self, subject: SubjectId) -> Vec<Neighbour> {
        let subject = subject as usize;
        let (time, all) = (self.time(subject), self.called.get(subject).copied());
        let mut found: Vec<Neighbour> = Vec::new();
        for (caller, callees) in self.graph.callees.iter().enumerate() {
            let calls = callees.iter().filter(|(callee, _)| *callee == subject);
            let calls: f64 = calls.map(|(_, calls)| calls).sum();
            if let Some(all) = all.filter(|all| calls > 0.0 && *all > 0.0) {
                let estimate = exactly(time * calls / all, time, calls);
                found.push(Neighbour { subject: Some(caller as SubjectId), estimate });
            }
        }
        if found.is_empty() {
            found.push(Neighbour { subject: None, estimate: exactly(time, time, 0.0) });
        }
        in_order(found)
    }

    /// The callees of a subject, those with the most time first, among them none: its own time.
    /// Calls within its circle have no time.
    #[must_use]
    pub fn callees(&self, subject: SubjectId) -> Vec<Neighbour> {
        let subject = subject as usize;
        let whole = self.time(subject);
        let own = self.own.get(subject).copied().unwrap_or_default();
        let calls = self.called.get(subject).copied().unwrap_or_default();
        let itself = Neighbour { subject: None, estimate: exactly(own, whole, calls) };
        let callees = self.graph.callees.get(subject).into_iter().flatten();
        let neighbour = |(callee, calls): &(usize, f64)| {
            let all = self.calls_into.get(self.circle(*callee)).copied().unwrap_or_default();
            let is_outside = self.circle(*callee) != self.circle(subject) && all > 0.0;
            let time = if is_outside { self.time(*callee) * calls / all } else { 0.0 };
            let estimate = exactly(time, whole, *calls);
            Neighbour { subject: Some(*callee as SubjectId), estimate }
        };
        in_order(callees.map(neighbour).chain([itself]).collect())
    }

    /// Number of calls between two subjects.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.called.iter().sum::<f64>() as u64
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
        ByCalls::of(&contexts, own.to_vec()).inclusive().iter().map(|of| of.time).collect()
    }

    #[test]
    fn time_goes_to_callers_by_their_calls_and_recursion_counts_once() {
        // main (0) calls a (1) once and b (2) once; both call work (3); a calls itself.
        let calls = [(0, 1, 1), (0, 2, 1), (1, 3, 30), (2, 3, 10), (1, 1, 7)];
        assert_eq!(times(&calls, &[1.0, 2.0, 3.0, 40.0]), [46.0, 32.0, 13.0, 40.0]);
    }

    #[test]
    fn a_circle_has_the_time_of_all_its_members() {
        // 0 calls 1; 1 and 2 call each other; 2 calls 3; 4 calls 3 as often.
        let calls = [(0, 1, 1), (1, 2, 5), (2, 1, 4), (2, 3, 6), (4, 3, 6)];
        let found = times(&calls, &[1.0, 10.0, 20.0, 8.0, 0.5]);
        assert_eq!(found, [35.0, 34.0, 34.0, 8.0, 4.5]);
    }

    /// What is called by nobody, and a chain that recursion would overflow the stack for.
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

//! Call stacks of an answer by process: own and inclusive time of each row, and who called it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wire::StackCounts;

use super::names::Label;

/// Command and number of a process; 0 for processes that have none of their own.
pub(super) type Process = (String, u32);

/// Frames of a stack that are looked at, from the innermost on: as many as dcpid takes.
const DEPTH_MAX: usize = 4096;

/// Call stacks of an event, by process.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    pub(super) processes: BTreeMap<Process, BTreeMap<Arc<Label>, Times>>,
    /// Weight of stacks by process, procedure and its caller.
    pub(super) callers: BTreeMap<(Process, Arc<Label>, Arc<Label>), u64>,
    /// What ran in procedures that interpret or were compiled from scripts.
    pub(super) loops: BTreeMap<Arc<Label>, Ran>,
}

/// The stacks that end in a procedure that runs script functions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ran {
    /// All of them.
    pub(super) all: Times,
    /// Weight of those that end there for a script function, by the function.
    pub(super) functions: BTreeMap<Arc<Label>, u64>,
}

/// Time in call stacks, in the event's unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    /// Number of stacks in which the procedure is the innermost.
    pub(super) stacks: u64,
    /// Their weight.
    pub(super) own: u64,
    /// Weight of the stacks that the procedure is in.
    pub(super) inclusive: u64,
}

impl Times {
    pub(super) fn add(&mut self, other: Self) {
        self.stacks = self.stacks.saturating_add(other.stacks);
        self.own = self.own.saturating_add(other.own);
        self.inclusive = self.inclusive.saturating_add(other.inclusive);
    }
}

impl Ran {
    fn add<'a>(&mut self, all: Times, functions: impl IntoIterator<Item = (&'a Arc<Label>, u64)>) {
        self.all.add(all);
        for (function, weight) in functions {
            let sum = self.functions.entry(Arc::clone(function)).or_default();
            *sum = sum.saturating_add(weight);
        }
    }
}

impl Calls {
    /// The calls of stacks whose frames `label` names by the number of their image and the offset.
    pub(super) fn of(stacks: &StackCounts, label: impl FnMut((u32, u64)) -> Arc<Label>) -> Self {
        let mut calls = Self::default();
        let mut label = label;
        let frames: Vec<Arc<Label>> =
            stacks.frames.iter().map(|(_, image, offset)| label((*image, *offset))).collect();
        let loops: BTreeSet<u32> = stacks.loops.iter().copied().collect();
        let of_loops: BTreeSet<&Arc<Label>> =
            loops.iter().filter_map(|node| frames.get(*node as usize)).collect();
        for (node, process, number, weight) in &stacks.times {
            let Some(process) = stacks.processes.get(*process as usize) else { continue };
            let mut path: Vec<&Arc<Label>> = Vec::new();
            let mut at = Some(*node);
            while let Some(node) = at
                && path.len() < DEPTH_MAX
            {
                path.extend(frames.get(node as usize));
                let caller = stacks.frames.get(node as usize).map_or(0, |(caller, ..)| *caller);
                // A caller has a smaller number, so that no answer leads in a circle.
                at = caller.checked_sub(1).filter(|caller| *caller < node);
            }
            let own = Times { stacks: *number, own: *weight, inclusive: *weight };
            if let (true, [in_loop, function, ..]) = (loops.contains(node), path.as_slice()) {
                let ran = calls.loops.entry(Arc::clone(in_loop)).or_default();
                ran.add(own, [(*function, *weight)]);
                path.remove(0);
            } else if let Some(in_loop) = path.first().filter(|first| of_loops.contains(*first)) {
                calls.loops.entry(Arc::clone(in_loop)).or_default().add(own, []);
            }
            calls.add_stack(process, &path, *number, *weight);
        }
        calls
    }

    /// Adds stacks, innermost procedure first. A procedure that calls itself counts once.
    fn add_stack(&mut self, process: &Process, path: &[&Arc<Label>], number: u64, weight: u64) {
        let of = self.processes.entry(process.clone()).or_default();
        let mut seen: BTreeSet<&Arc<Label>> = BTreeSet::new();
        for (depth, label) in path.iter().enumerate() {
            if !seen.insert(label) {
                continue;
            }
            let (stacks, own) = if depth == 0 { (number, weight) } else { (0, 0) };
            of.entry((*label).clone()).or_default().add(Times { stacks, own, inclusive: weight });
            // The caller of the outermost of the calls to itself.
            let last = path.iter().rposition(|of| of == label).unwrap_or(depth);
            if let Some(caller) = path.get(last + 1) {
                let key = (process.clone(), (*label).clone(), (*caller).clone());
                let sum = self.callers.entry(key).or_default();
                *sum = sum.saturating_add(weight);
            }
        }
    }

    /// Adds other calls; processes beyond `most` are left out.
    pub(super) fn add(&mut self, other: &Self, most: usize) {
        for (process, rows) in &other.processes {
            if self.processes.len() >= most && !self.processes.contains_key(process) {
                continue;
            }
            let mine = self.processes.entry(process.clone()).or_default();
            for (label, times) in rows {
                mine.entry(label.clone()).or_default().add(*times);
            }
        }
        for (in_loop, ran) in &other.loops {
            if self.loops.len() < most || self.loops.contains_key(in_loop) {
                let functions = ran.functions.iter().map(|(of, weight)| (of, *weight));
                self.loops.entry(Arc::clone(in_loop)).or_default().add(ran.all, functions);
            }
        }
        for (key, weight) in &other.callers {
            if self.callers.len() < most || self.callers.contains_key(key) {
                let sum = self.callers.entry(key.clone()).or_default();
                *sum = sum.saturating_add(*weight);
            }
        }
    }

    /// The times of all processes that `wanted` accepts, by row.
    pub(super) fn rows(&self, wanted: impl Fn(&Process) -> bool) -> BTreeMap<&Arc<Label>, Times> {
        let mut rows: BTreeMap<&Arc<Label>, Times> = BTreeMap::new();
        let chosen = self.processes.iter().filter(|(process, _)| wanted(process));
        for (label, times) in chosen.flat_map(|(_, rows)| rows) {
            rows.entry(label).or_default().add(*times);
        }
        rows
    }

    /// The callers of a procedure in the processes that `wanted` accepts, with the weight of each,
    /// the heaviest first.
    pub(super) fn callers(
        &self,
        wanted: impl Fn(&Process) -> bool,
        is_it: impl Fn(&Label) -> bool,
    ) -> Vec<(String, u64)> {
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        for ((process, callee, caller), weight) in &self.callers {
            if wanted(process) && is_it(callee) {
                let sum = sums.entry(caller.procedure.as_str()).or_default();
                *sum = sum.saturating_add(*weight);
            }
        }
        let mut callers: Vec<(String, u64)> =
            sums.into_iter().map(|(name, weight)| (name.to_owned(), weight)).collect();
        callers.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        callers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stacks() -> StackCounts {
        StackCounts {
            images: vec!["a".to_owned()],
            // main calls f, which calls itself and g; a frame that names a later one as its caller.
            frames: vec![(0, 0, 0), (1, 0, 1), (2, 0, 1), (3, 0, 2), (9, 0, 3)],
            processes: vec![("app".to_owned(), 7)],
            times: vec![(3, 0, 2, 20), (2, 0, 1, 10), (4, 0, 1, 5), (99, 0, 1, 1), (0, 9, 1, 1)],
            loops: Vec::new(),
        }
    }

    fn label((_, offset): (u32, u64)) -> Arc<Label> {
        let procedure = ["main", "f", "g", "lost"][offset as usize].to_owned();
        Arc::new(Label { image: "a".to_owned(), procedure, idle: false })
    }

    /// `g` is a loop where `f` calls it, and a procedure elsewhere.
    #[test]
    fn the_time_of_a_loop_is_the_script_functions() {
        let calls = Calls::of(&StackCounts { loops: vec![3], ..stacks() }, label);
        let rows = calls.rows(|_| true);
        let of = |name: &str| rows.iter().find(|(label, _)| label.procedure == name);
        assert_eq!(of("f").map(|(_, times)| (times.own, times.stacks)), Some((30, 3)));
        assert!(of("g").is_none(), "{rows:?}");
        let (in_loop, ran) = calls.loops.first_key_value().unwrap();
        assert_eq!((in_loop.procedure.as_str(), ran.all.own, ran.all.stacks), ("g", 20, 2));
        assert_eq!(ran.functions.values().copied().collect::<Vec<_>>(), [20]);
    }

    #[test]
    fn own_and_inclusive_times_are_by_process_and_recursion_counts_once() {
        let calls = Calls::of(&stacks(), label);
        let rows: Vec<_> = calls
            .rows(|(command, pid)| (command.as_str(), *pid) == ("app", 7))
            .into_iter()
            .map(|(label, times)| (label.procedure.clone(), times.own, times.inclusive))
            .collect();
        let expected = [("f", 10, 30), ("g", 20, 20), ("lost", 5, 5), ("main", 0, 30)];
        assert_eq!(rows, expected.map(|(name, own, all)| (name.to_owned(), own, all)));
        assert!(calls.rows(|(command, _)| command == "other").is_empty());
        let callers = |name: &str| calls.callers(|_| true, |of| of.procedure == name);
        assert_eq!(callers("f"), [("main".to_owned(), 30)]);
        assert_eq!(callers("g"), [("f".to_owned(), 20)]);
        assert_eq!(calls.loops.len(), 0);
        let mut twice = calls.clone();
        twice.add(&calls, 1);
        assert_eq!(twice.callers(|_| true, |of| of.procedure == "g"), [("f".to_owned(), 40)]);
    }
}

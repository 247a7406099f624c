//! A tree of procedures: the tree of frames, with frames of one procedure below one caller joined.

use std::collections::HashMap;
use std::sync::Arc;

use model::{Frame, Stacks, Thread, Value};

use crate::timed::SQUARES_UNIT;

/// The number of a subject: a procedure, or what stands in the place of one.
pub type SubjectId = u32;
/// The number of a node; a parent has a smaller number than its children.
pub type NodeId = u32;

/// Nodes beyond which a tree that is made of paths gets no more callers: a database may have a
/// million stacks of a thousand frames each. Some 50 bytes a node.
const NODES_MAX: usize = 1 << 22;

/// Fewest waits with a stack that tell what a thread's waits without a stack were.
const LENDERS_MIN: f64 = 4.0;

/// Number of whole stacks through a procedure, all with the same callers, from which on a truncated
/// stack that ends in this procedure is taken to have these callers too.
const REJOINED_MIN: u64 = 10;

/// The parent of roots.
const NONE: NodeId = NodeId::MAX;

/// The stacks of one node and thread: the node is the innermost procedure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The innermost procedure, with its callers.
    pub node: NodeId,
    /// Number of the thread.
    pub thread: u32,
    /// Its stacks.
    pub value: Value,
}

/// The place of a node in another tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    /// The end of its path.
    pub(crate) end: NodeId,
    /// The innermost procedure, whose own time the stacks are.
    pub(crate) own: Option<NodeId>,
}

/// Stacks by procedures.
#[derive(Clone, Debug, Default)]
pub struct Contexts {
    /// Parent and subject.
    nodes: Vec<(NodeId, SubjectId)>,
    children: HashMap<(NodeId, SubjectId), NodeId>,
    entries: Vec<Entry>,
    threads: Vec<Thread>,
    /// Whether each subject is a function that is inlined into what is above it.
    inlined: Arc<[bool]>,
}

impl Contexts {
    /// The stacks with the subjects of each frame: the procedure, and the functions inlined there,
    /// the outermost first. `inlined` says of each subject whether it is such a function; it may
    /// be cut short.
    pub fn of<Path: AsRef<[SubjectId]>>(
        stacks: &Stacks,
        inlined: Arc<[bool]>,
        path: impl Fn(&Frame) -> Path,
    ) -> Self {
        let mut contexts = Self { inlined, ..Self::default() };
        let mut paths: HashMap<Frame, Path> = HashMap::new();
        let mut new: Vec<NodeId> = Vec::with_capacity(stacks.len());
        for (parent, frame) in stacks.nodes() {
            let parent = parent.and_then(|parent| new.get(parent as usize).copied());
            let path = paths.entry(frame).or_insert_with(|| path(&frame));
            let node =
                path.as_ref().iter().fold(parent, |above, of| Some(contexts.node(above, *of)));
            // A frame has a subject at least.
            new.extend(node);
        }
        let mut threads: HashMap<&Thread, u32> = HashMap::new();
        let mut sums: HashMap<(NodeId, u32), Value> = HashMap::new();
        for (node, thread, value) in stacks.values() {
            let next = contexts.threads.len() as u32;
            let number = *threads.entry(thread).or_insert_with(|| {
                contexts.threads.push(thread.clone());
                next
            });
            if let Some(node) = new.get(node as usize) {
                sums.entry((*node, number)).or_default().add(value);
            }
        }
        contexts.entries =
            sums.into_iter().map(|((node, thread), value)| Entry { node, thread, value }).collect();
        contexts.entries.sort_unstable_by_key(|entry| (entry.node, entry.thread));
        contexts
    }

    /// Gives callers to stacks of which the sampler copied too few bytes: the daemon learns from a
    /// thread's first stacks how many to copy. If the outermost procedure of such a stack has the
    /// same callers in all whole stacks, at least [`REJOINED_MIN`], it gets these callers; else
    /// the stack stays as it is. `cut` is the subject in the place of the missing callers, and
    /// `is_cut` recognises every subject that stands for missing callers.
    pub(crate) fn rejoin(&mut self, cut: SubjectId, is_cut: impl Fn(SubjectId) -> bool) {
        let Some(root) = self.children.get(&(NONE, cut)).copied() else { return };
        let mut stacks = vec![0_u64; self.nodes.len()];
        for entry in &self.entries {
            for (node, _) in self.path(entry.node) {
                stacks.iter_mut().skip(node as usize).take(1).for_each(|of_node| {
                    *of_node = of_node.saturating_add(entry.value.stacks);
                });
            }
        }
        // By procedure: its only caller in whole stacks, and their number; None: it has several.
        let mut callers: HashMap<SubjectId, Option<(NodeId, u64)>> = HashMap::new();
        let mut is_whole = Vec::with_capacity(self.nodes.len());
        for (node, (parent, subject)) in self.nodes.iter().enumerate() {
            let above = is_whole.get(*parent as usize).copied();
            is_whole.push(above.unwrap_or_else(|| !is_cut(*subject)));
            let stacks = stacks.get(node).copied().unwrap_or(0);
            if above == Some(true) && stacks > 0 {
                let caller = callers.entry(*subject).or_insert(Some((*parent, 0)));
                *caller = caller
                    .filter(|(known, _)| known == parent)
                    .map(|(known, before)| (known, before.saturating_add(stacks)));
            }
        }
        let entries = std::mem::take(&mut self.entries);
        let mut sums: HashMap<(NodeId, u32), Value> = HashMap::new();
        for entry in entries {
            let path: Vec<(NodeId, SubjectId)> = self.path(entry.node).collect();
            let below = path.split_last().filter(|((last, _), _)| *last == root);
            let outermost = below.and_then(|(_, below)| below.last());
            let caller = outermost.and_then(|(_, subject)| callers.get(subject).copied().flatten());
            let caller = caller.filter(|(_, stacks)| *stacks >= REJOINED_MIN);
            let node = match (below, caller) {
                (Some((_, below)), Some((caller, _))) => {
                    below.iter().rev().fold(caller, |above, (_, of)| self.node(Some(above), *of))
                }
                _ => entry.node,
            };
            sums.entry((node, entry.thread)).or_default().add(entry.value);
        }
        self.entries =
            sums.into_iter().map(|((node, thread), value)| Entry { node, thread, value }).collect();
        self.entries.sort_unstable_by_key(|entry| (entry.node, entry.thread));
    }

    /// No stacks, with the numbers of threads of another.
    pub(crate) fn with_threads_of(other: &Self) -> Self {
        let (threads, inlined) = (other.threads.clone(), other.inlined.clone());
        Self { threads, inlined, ..Self::default() }
    }

    /// The node of a subject below a caller; without caller: a root.
    pub fn node(&mut self, parent: Option<NodeId>, subject: SubjectId) -> NodeId {
        let key = (parent.unwrap_or(NONE), subject);
        let next = self.nodes.len() as NodeId;
        let node = *self.children.entry(key).or_insert(next);
        if node == next {
            self.nodes.push(key);
        }
        node
    }

    /// Adds stacks to a node.
    pub fn add(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    /// Nodes in the order of their numbers: parent and subject.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = (Option<NodeId>, SubjectId)> + '_ {
        self.nodes.iter().map(|(parent, subject)| ((*parent != NONE).then_some(*parent), *subject))
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// True when there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The stacks, by node.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// For each number of a thread that of the same one with any attributes.
    pub(crate) fn owners(&self) -> Vec<u32> {
        let mut first: HashMap<(&str, u32, &str, u32), u32> = HashMap::new();
        let mut owners = Vec::with_capacity(self.threads.len());
        for (number, Thread { command, pid, name, tid, .. }) in (0..).zip(&self.threads) {
            owners.push(*first.entry((command, *pid, name, *tid)).or_insert(number));
        }
        owners
    }

    /// The threads, by number.
    pub fn threads(&self) -> &[Thread] {
        &self.threads
    }

    /// The subject of a node.
    pub fn subject(&self, node: NodeId) -> Option<SubjectId> {
        self.nodes.get(node as usize).map(|(_, subject)| *subject)
    }

    /// The caller of a node.
    pub fn parent(&self, node: NodeId) -> Option<NodeId> {
        self.nodes.get(node as usize).map(|(parent, _)| *parent).filter(|parent| *parent != NONE)
    }

    /// The node of the procedure whose code a node is: the node itself, or the one that it is
    /// inlined into.
    pub(crate) fn procedure(&self, node: NodeId) -> NodeId {
        let is_inlined = |subject| self.inlined.get(subject as usize).copied().unwrap_or(false);
        let mut at = node;
        while self.subject(at).is_some_and(is_inlined)
            && let Some(above) = self.parent(at)
        {
            at = above;
        }
        at
    }

    /// Whether any subject is inlined.
    pub(crate) fn has_inlined(&self) -> bool {
        self.inlined.contains(&true)
    }

    /// The innermost procedure of stacks.
    pub(crate) fn leaf(&self, entry: &Entry) -> SubjectId {
        self.subject(self.procedure(entry.node)).unwrap_or(SubjectId::MAX)
    }

    /// The stacks, whose weights may be changed.
    pub(crate) fn entries_mut(&mut self) -> &mut [Entry] {
        &mut self.entries
    }

    /// Leaves out stacks without weight.
    pub(crate) fn forget_weightless(&mut self) {
        self.entries.retain(|entry| entry.value.weight > 0);
    }

    /// A node and its callers, innermost first.
    pub fn path(&self, node: NodeId) -> impl Iterator<Item = (NodeId, SubjectId)> + '_ {
        let mut at = node;
        std::iter::from_fn(move || {
            let (parent, subject) = *self.nodes.get(at as usize)?;
            let this = at;
            at = parent;
            Some((this, subject))
        })
    }

    /// The same stacks below a root for each thread, whose subject `subject` gives. Where that
    /// makes too many nodes, callers of the lightest stacks are left out.
    pub fn by_thread(&self, subject: impl FnMut(&Thread) -> SubjectId) -> Self {
        self.by_thread_within(NODES_MAX, subject)
    }

    fn by_thread_within(
        &self,
        nodes_max: usize,
        mut subject: impl FnMut(&Thread) -> SubjectId,
    ) -> Self {
        let mut apart = Self::with_threads_of(self);
        let roots: Vec<SubjectId> = self.threads.iter().map(&mut subject).collect();
        let mut path = Vec::new();
        for entry in self.heaviest() {
            path.clear();
            // The innermost procedure says what the stack's time is.
            let callers = if apart.len() < nodes_max { usize::MAX } else { 1 };
            path.extend(self.path(entry.node).map(|(_, subject)| subject).take(callers));
            let mut at = roots.get(entry.thread as usize).map(|root| apart.node(None, *root));
            for subject in path.iter().rev() {
                at = Some(apart.node(at, *subject));
            }
            if let Some(node) = at {
                apart.add(Entry { node, ..*entry });
            }
        }
        apart.entries.sort_unstable_by_key(|entry| (entry.node, entry.thread));
        apart
    }

    /// Gives the time of each thread's long waits without a stack, whose innermost subject is
    /// `unexpected`, to its waits with a stack that are at least half as long on average, in
    /// proportion to their time, if the thread waits regularly: if these are four at least, and
    /// twice as many. Which of them it was is as sure as their number makes it (a share of n stacks
    /// with Jeffreys' prior). Returns the time of the others, by thread as [`Self::owners`] has it:
    /// nobody knows what a program had set for a thread whose wait has no stack.
    pub(crate) fn lend_waits(&mut self, unexpected: SubjectId) -> HashMap<u32, f64> {
        let is_unexpected = |entry: &Entry| self.subject(entry.node) == Some(unexpected);
        let (surprises, mut kept): (Vec<Entry>, Vec<Entry>) =
            self.entries.iter().partition(|entry| is_unexpected(entry));
        let mut unknown: HashMap<u32, f64> = HashMap::new();
        let length = |value: Value| value.weight as f64 / value.stacks.max(1) as f64;
        let mut of_thread: HashMap<u32, Vec<Entry>> = HashMap::new();
        let owners = self.owners();
        let owner = |entry: &Entry| owners.get(entry.thread as usize).copied().unwrap_or_default();
        for entry in kept.iter().filter(|entry| entry.value.stacks > 0) {
            of_thread.entry(owner(entry)).or_default().push(*entry);
        }
        for surprise in surprises {
            let of_thread = of_thread.get(&owner(&surprise)).map_or(&[][..], Vec::as_slice);
            let is_alike = |of: &&Entry| length(of.value) >= length(surprise.value) / 2.0;
            let alike: Vec<&Entry> = of_thread.iter().filter(is_alike).collect();
            let weight: f64 = alike.iter().map(|entry| entry.value.weight as f64).sum();
            let stacks: f64 = alike.iter().map(|entry| entry.value.stacks as f64).sum();
            // One wait that was seen does not say what others were that were not.
            let is_regular = stacks >= LENDERS_MIN.max(2.0 * surprise.value.stacks as f64);
            if weight <= 0.0 || !is_regular {
                *unknown.entry(owner(&surprise)).or_default() += surprise.value.weight as f64;
                kept.push(surprise);
                continue;
            }
            for entry in alike {
                let part = entry.value.weight as f64 / weight;
                let time = surprise.value.weight as f64;
                let p = (part * stacks + 0.5) / (stacks + 1.0);
                let squares = (time / SQUARES_UNIT).powi(2) * p * (1.0 - p);
                let weight = (time * part).round() as u64;
                let value = Value { stacks: 0, weight, squares: squares.round() as u64 };
                kept.push(Entry { value, ..*entry });
            }
        }
        kept.sort_by_key(|entry| (entry.node, entry.thread));
        self.entries = kept;
        unknown
    }

    /// The entries, those of the greatest weight first.
    fn heaviest(&self) -> Vec<&Entry> {
        let mut entries: Vec<&Entry> = self.entries.iter().collect();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.value.weight));
        entries
    }

    /// The tree that `place` makes of the path of each node that has stacks, innermost first, by
    /// putting the path in the order of the new tree, and where each node is in it: the path's end,
    /// and the node of the innermost procedure, if that is in the tree. Where that makes too many
    /// nodes, the paths of the lightest stacks are cut short.
    pub(crate) fn placed(
        &self,
        place: impl Fn(&mut Vec<SubjectId>) -> Option<usize>,
    ) -> (Self, HashMap<NodeId, Placed>) {
        let mut made = Self::default();
        let mut places = HashMap::new();
        let mut path = Vec::new();
        for entry in self.heaviest() {
            if places.contains_key(&entry.node) {
                continue;
            }
            path.clear();
            path.extend(self.path(entry.node).map(|(_, subject)| subject));
            let own = place(&mut path);
            let most = if made.len() < NODES_MAX { usize::MAX } else { 1 };
            let (mut at, mut own_node) = (None, None);
            for (depth, subject) in path.iter().enumerate().take(most) {
                let node = made.node(at, *subject);
                at = Some(node);
                own_node = if own == Some(depth) { at } else { own_node };
            }
            places.extend(at.map(|end| (entry.node, Placed { end, own: own_node })));
        }
        (made, places)
    }

    /// The same without stacks whose innermost subject is one of these.
    pub fn without(mut self, is_left_out: impl Fn(SubjectId) -> bool) -> Self {
        let mut entries = std::mem::take(&mut self.entries);
        entries.retain(|entry| !self.subject(entry.node).is_some_and(&is_left_out));
        Self { entries, ..self }
    }

    /// The stacks of both, which have the same subjects.
    pub fn merged(&self, other: &Self) -> Self {
        let mut merged = self.clone();
        let base = merged.threads.len() as u32;
        merged.threads.extend(other.threads.iter().cloned());
        let mut new: Vec<NodeId> = Vec::with_capacity(other.len());
        for (parent, subject) in other.nodes() {
            let parent = parent.and_then(|parent| new.get(parent as usize).copied());
            new.push(merged.node(parent, subject));
        }
        for entry in &other.entries {
            if let Some(node) = new.get(entry.node as usize) {
                let thread = base.saturating_add(entry.thread);
                merged.entries.push(Entry { node: *node, thread, value: entry.value });
            }
        }
        merged
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::{ImageId, ImageOffset};

    fn frame(offset: u64) -> Frame {
        Frame::Code(ImageId::from_name("a", ""), ImageOffset(offset))
    }

    fn subject(frame: &Frame) -> SubjectId {
        match frame {
            Frame::Code(_, offset) => (offset.0 / 16) as SubjectId,
            _ => 99,
        }
    }

    /// `main` had 96.5 % (94 to 98) where 100 % is true: the first stacks were cut off.
    #[test]
    fn stacks_that_were_cut_off_have_the_callers_of_whole_ones() {
        let thread = Thread::default();
        let cut = Frame::Cut(model::Cut::Truncated);
        let shown = |whole: &[u64], callers: u64| {
            let mut stacks = Stacks::new();
            for number in 0..whole.len() as u64 * 10 {
                let caller = frame(16 * (number % callers));
                let stack = [caller, frame(48), frame(64 + number % 16)];
                stacks.add_stack(stack, &thread, Value::of_one(1));
            }
            stacks.add_stack([cut, frame(50), frame(80)], &thread, Value::of_one(1));
            let mut contexts = Contexts::of(&stacks, [].into(), |frame| [subject(frame)]);
            contexts.rejoin(99, |of| of == 99);
            let paths = contexts.entries().iter().map(|entry| {
                contexts.path(entry.node).map(|(_, subject)| subject).collect::<Vec<_>>()
            });
            paths.filter(|path| path.contains(&5)).collect::<Vec<_>>()
        };
        assert_eq!(shown(&[0], 1), [[5, 3, 0]]);
        assert_eq!(shown(&[], 1), [[5, 3, 99]], "no whole stacks");
        assert_eq!(shown(&[0], 2), [[5, 3, 99]], "either may have called it");
    }

    /// Two calls of one procedure are one caller.
    #[test]
    fn frames_of_one_procedure_are_joined() {
        let mut stacks = Stacks::new();
        let thread = |name: &str| Thread { command: name.into(), ..Thread::default() };
        stacks.add_stack([frame(0), frame(17)], &thread("a"), Value::of_one(1024));
        stacks.add_stack([frame(4), frame(18)], &thread("a"), Value::of_one(2048));
        stacks.add_stack([frame(4), frame(18), frame(1)], &thread("b"), Value::of_one(4096));
        let contexts = Contexts::of(&stacks, [].into(), |frame| [subject(frame)]);
        let nodes: Vec<_> = contexts.nodes().collect();
        assert_eq!(nodes, [(None, 0), (Some(0), 1), (Some(1), 0)]);
        let weights: Vec<_> =
            contexts.entries().iter().map(|entry| (entry.node, entry.value.weight)).collect();
        assert_eq!(weights, [(1, 3072), (2, 4096)]);
        let apart = contexts.by_thread(|thread| if thread.command == "a" { 70 } else { 71 });
        let roots: Vec<_> = apart
            .entries()
            .iter()
            .map(|entry| apart.path(entry.node).map(|(_, subject)| subject).collect::<Vec<_>>())
            .collect();
        assert_eq!(roots, [vec![0, 1, 0, 71], vec![1, 0, 70]]);
        // With no room, what took the time stays, and loses its callers.
        let bounded = contexts.by_thread_within(0, |_| 70);
        let nodes: Vec<_> = bounded.nodes().collect();
        assert_eq!(nodes, [(None, 70), (Some(0), 0), (Some(0), 1)]);
        assert_eq!(bounded.entries().iter().map(|entry| entry.value.weight).sum::<u64>(), 7168);
        let twice = contexts.merged(&contexts);
        assert_eq!((twice.len(), twice.entries().len()), (3, 4));
    }
}

//! Call stacks: a tree of frames, and how much time each of its contexts has.
//!
//! A *context* is a node of the tree: a frame with all of its callers, from the thread's first
//! frame down. Frames are images and offsets, so names are looked up when a profile is read, and
//! stacks of several hosts and builds add up. Threads stand beside the tree, not in it: workers
//! that run the same code share its nodes.

use std::collections::BTreeMap;

use foldhash::fast::RandomState;
use image::{ImageId, ImageOffset};

use crate::attributes::Attributes;
use crate::reasons::{Cut, Wait};

/// Each node that is read is looked up, so reading a week's stacks is mostly hashing.
type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;

/// One frame of a call stack.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Frame {
    /// Code of an image. In the innermost frame the offset of the next instruction; in callers the
    /// offset of the last byte of the call, within the instruction that the caller executes.
    Code(ImageId, ImageOffset),
    /// In the place of frames that are not known, and why: of the thread's first frames as a root,
    /// or of the innermost ones ([`Cut::Deeper`]) as a leaf.
    Cut(Cut),
    /// In the place of the innermost frame: why the thread did not run. Always a leaf.
    Wait(Wait),
}

/// The thread that a stack is of, as its program had described it then. Processes that live shortly
/// are joined by command and have no numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Thread {
    /// Name of the process's first thread, 15 bytes at most (`comm` of proc(5)).
    pub command: String,
    /// Process number; 0 for all processes of the command that have none of their own.
    pub pid: u32,
    /// Name of the thread.
    pub name: String,
    /// Thread number; 0 for all threads of the name that have none of their own.
    pub tid: u32,
    /// What the program had set for the thread.
    pub attributes: Attributes,
}

/// Name of the event of stacks of threads that were blocked; its unit is ns.
pub const OFF_CPU: &str = "off-cpu";

/// Name of the event of stacks of threads that were awake without CPU; its unit is ns.
pub const RUNNABLE: &str = "runnable";

/// The stacks of one context and thread.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Value {
    /// Number of stacks.
    pub stacks: u64,
    /// Sum of their weights: of each the events that it stands for, in the event's unit. ns for
    /// clocks and waits.
    pub weight: u64,
    /// Sum of the squares of the weights, each weight in units of 1024: the variance of `weight`
    /// when stacks are drawn at random.
    pub squares: u64,
}

impl Value {
    /// The value of one stack.
    pub const fn of_one(weight: u64) -> Self {
        let part = weight >> 10;
        Self { stacks: 1, weight, squares: part.saturating_mul(part) }
    }

    /// Adds another value, saturating.
    pub const fn add(&mut self, other: Self) {
        self.stacks = self.stacks.saturating_add(other.stacks);
        self.weight = self.weight.saturating_add(other.weight);
        self.squares = self.squares.saturating_add(other.squares);
    }
}

/// A node of the tree: its place in the order in which nodes came. A parent has a smaller number
/// than its children.
pub type Node = u32;

/// The parent of roots.
const NONE: Node = u32::MAX;

/// Most nodes and threads of one tree, so that numbers fit in 32 bits with room.
const NUMBERS_MAX: usize = 1 << 30;

/// Stacks of one event: a tree of frames, with values by context and thread.
///
/// Two are combined by adding the values of each context and thread, in any order. They are equal
/// when each context and thread has the same value, however the trees were built.
#[derive(Clone, Debug, Default)]
pub struct Stacks {
    frames: Interned<Frame>,
    threads: Interned<Thread>,
    /// Parent and number of the frame.
    nodes: Vec<(Node, u32)>,
    children: HashMap<(Node, u32), Node>,
    values: BTreeMap<(Node, u32), Value>,
}

/// Values by number, each once.
#[derive(Clone, Debug)]
struct Interned<T> {
    all: Vec<T>,
    numbers: HashMap<T, u32>,
}

impl<T> Default for Interned<T> {
    fn default() -> Self {
        Self { all: Vec::new(), numbers: HashMap::default() }
    }
}

impl<T: Clone + Eq + std::hash::Hash> Interned<T> {
    fn number(&mut self, value: &T) -> Option<u32> {
        if let Some(number) = self.numbers.get(value) {
            return Some(*number);
        }
        let number = u32::try_from(self.all.len()).ok().filter(|_| self.all.len() < NUMBERS_MAX)?;
        self.all.push(value.clone());
        self.numbers.insert(value.clone(), number);
        Some(number)
    }

    fn get(&self, number: u32) -> Option<&T> {
        self.all.get(number as usize)
    }
}

impl Stacks {
    /// No stacks.
    pub fn new() -> Self {
        Self::default()
    }

    /// The node of `frame` below `parent`, which is made if it is new; `None` as parent: a root.
    /// Returns None for a parent that is no node, and when the tree has 2^30 nodes.
    pub fn node(&mut self, parent: Option<Node>, frame: Frame) -> Option<Node> {
        if parent.is_some_and(|parent| parent as usize >= self.nodes.len()) {
            return None;
        }
        let frame = self.frames.number(&frame)?;
        self.child((parent.unwrap_or(NONE), frame))
    }

    /// The node of a parent, or [`NONE`], and the number of a frame.
    fn child(&mut self, key: (Node, u32)) -> Option<Node> {
        if let Some(node) = self.children.get(&key) {
            return Some(*node);
        }
        let node = u32::try_from(self.nodes.len()).ok().filter(|_| self.len() < NUMBERS_MAX)?;
        self.nodes.push(key);
        self.children.insert(key, node);
        Some(node)
    }

    /// Adds a value to the context `node` of `thread`. Does nothing for a node that is none.
    pub fn add(&mut self, node: Node, thread: &Thread, value: Value) {
        if node as usize >= self.nodes.len() || value == Value::default() {
            return;
        }
        if let Some(thread) = self.threads.number(thread) {
            self.values.entry((node, thread)).or_default().add(value);
        }
    }

    /// Adds one stack, frames from the thread's first to the innermost.
    pub fn add_stack(
        &mut self,
        frames: impl IntoIterator<Item = Frame>,
        thread: &Thread,
        value: Value,
    ) {
        let mut at = None;
        for frame in frames {
            match self.node(at, frame) {
                Some(node) => at = Some(node),
                None => return,
            }
        }
        if let Some(node) = at {
            self.add(node, thread, value);
        }
    }

    /// Adds all stacks of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.merge_threads(other, Thread::clone);
    }

    /// Adds all stacks of `other`, each as one of the thread that `as_thread` makes of its own.
    pub fn merge_threads(&mut self, other: &Self, as_thread: impl Fn(&Thread) -> Thread) {
        let number = |frame| self.frames.number(frame);
        let frames: Vec<Option<u32>> = other.frames.all.iter().map(number).collect();
        let mut mine: Vec<Option<Node>> = Vec::with_capacity(other.nodes.len());
        for (parent, frame) in &other.nodes {
            let parent = match *parent {
                NONE => Some(NONE),
                parent => mine.get(parent as usize).copied().flatten(),
            };
            let frame = frames.get(*frame as usize).copied().flatten();
            mine.push(parent.zip(frame).and_then(|key| self.child(key)));
        }
        let mut threads: Vec<Option<u32>> = vec![None; other.threads.all.len()];
        for ((node, thread), value) in &other.values {
            let node = mine.get(*node as usize).copied().flatten();
            let Some(number) = threads.get_mut(*thread as usize) else { continue };
            if number.is_none() {
                let thread = other.threads.get(*thread).map(&as_thread);
                *number = thread.and_then(|thread| self.threads.number(&thread));
            }
            if let Some(key) = node.zip(*number) {
                self.values.entry(key).or_default().add(*value);
            }
        }
    }

    /// Removes the values of all threads but those that `keep` holds of.
    pub fn retain_threads(&mut self, keep: impl Fn(&Thread) -> bool) {
        let kept: Vec<bool> = self.threads.all.iter().map(keep).collect();
        self.values.retain(|(_, thread), _| kept.get(*thread as usize) == Some(&true));
    }

    /// The same, without the innermost frames that `is_left_out` holds of: it is given the
    /// innermost frame and its caller. Their values are the callers'.
    pub fn without_innermost(&self, is_left_out: impl Fn(Frame, Frame) -> bool) -> Self {
        let frame = |node: Node| {
            let (parent, frame) = *self.nodes.get(node as usize)?;
            Some((parent, *self.frames.get(frame)?))
        };
        let left_to = |node: Node| {
            let (parent, innermost) = frame(node)?;
            let (_, caller) = frame(parent)?;
            is_left_out(innermost, caller).then_some(parent)
        };
        let mut values: BTreeMap<(Node, u32), Value> = BTreeMap::new();
        for ((node, thread), value) in &self.values {
            values.entry((left_to(*node).unwrap_or(*node), *thread)).or_default().add(*value);
        }
        Self { values, ..self.clone() }.canonical()
    }

    /// Multiplies all weights, so that the stacks stand for as many times more or less. Numbers of
    /// stacks stay.
    pub fn scale(&mut self, factor: f64) {
        // The casts saturate, and make 0 of what is not a number.
        for value in self.values.values_mut() {
            value.weight = (value.weight as f64 * factor).round() as u64;
            value.squares = (value.squares as f64 * factor * factor).round() as u64;
        }
    }

    /// The stacks without those of `other`; a value is 0 at least.
    pub fn without(&self, other: &Self) -> Self {
        let mut left = self.clone();
        // In a copy, each node of `other` has a number; those that are new here have no value.
        let mut mine: Vec<Option<Node>> = Vec::with_capacity(other.nodes.len());
        for (parent, frame) in other.nodes() {
            let parent = parent.and_then(|parent| mine.get(parent as usize).copied().flatten());
            mine.push(left.node(parent, frame));
        }
        for (node, thread, value) in other.values() {
            let node = mine.get(node as usize).copied().flatten();
            let thread = left.threads.numbers.get(thread).copied();
            let Some(key) = node.zip(thread) else { continue };
            if let Some(has) = left.values.get_mut(&key) {
                has.stacks = has.stacks.saturating_sub(value.stacks);
                has.weight = has.weight.saturating_sub(value.weight);
                has.squares = has.squares.saturating_sub(value.squares);
            }
        }
        left.values.retain(|_, value| value.weight > 0);
        left.canonical()
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Number of nodes, threads and values: what the memory is proportional to.
    pub fn size(&self) -> usize {
        self.nodes.len() + self.threads.all.len() + self.values.len()
    }

    /// True when there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The sum of all values.
    pub fn total(&self) -> Value {
        let mut total = Value::default();
        self.values.values().for_each(|value| total.add(*value));
        total
    }

    /// All nodes in the order of their numbers, parents before their children: parent and frame.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = (Option<Node>, Frame)> + '_ {
        // A node's frame is always there: the fallback only has no reader.
        let frame = |number: u32| self.frames.get(number).copied();
        self.nodes.iter().map(move |(parent, number)| {
            let frame = frame(*number).unwrap_or(Frame::Cut(Cut::Unreadable));
            ((*parent != NONE).then_some(*parent), frame)
        })
    }

    /// The frames of a context, innermost first.
    pub fn frames(&self, node: Node) -> impl Iterator<Item = Frame> + '_ {
        let mut at = node;
        std::iter::from_fn(move || {
            let (parent, frame) = *self.nodes.get(at as usize)?;
            at = parent;
            self.frames.get(frame).copied()
        })
    }

    /// Values by context and thread, in ascending order of nodes.
    pub fn values(&self) -> impl Iterator<Item = (Node, &Thread, Value)> + '_ {
        self.values
            .iter()
            .filter_map(|((node, thread), value)| Some((*node, self.threads.get(*thread)?, *value)))
    }

    /// The distinct frames, in no order.
    pub fn distinct_frames(&self) -> &[Frame] {
        &self.frames.all
    }

    /// The same stacks in the one order that does not depend on how the tree was built: nodes
    /// depth first, siblings by frame; nodes without values beneath them are left out.
    pub fn canonical(&self) -> Self {
        let mut has_value = vec![false; self.nodes.len()];
        for (node, _) in self.values.keys() {
            let mut at = *node;
            while let Some(mark) = has_value.get_mut(at as usize).filter(|mark| !**mark) {
                *mark = true;
                at = self.nodes.get(at as usize).map_or(NONE, |(parent, _)| *parent);
            }
        }
        // Children of one parent lie side by side: in a tree that is mostly chains, a list for each
        // parent would be several times the tree.
        let mut order: Vec<(Node, u32, Node)> = (0..)
            .zip(&self.nodes)
            .filter(|(node, _)| has_value.get(*node as usize) == Some(&true))
            .map(|(node, (parent, frame))| (*parent, *frame, node))
            .collect();
        order.sort_unstable_by(|(above_a, a, _), (above_b, b, _)| {
            let frames = || self.frames.get(*a).cmp(&self.frames.get(*b));
            above_a.cmp(above_b).then_with(frames)
        });
        let mut sorted = Self::new();
        let mut threads: Vec<&Thread> = self.threads.all.iter().collect();
        threads.sort_unstable();
        let used: std::collections::BTreeSet<u32> =
            self.values.keys().map(|(_, thread)| *thread).collect();
        for thread in threads {
            if self.threads.numbers.get(thread).is_some_and(|number| used.contains(number)) {
                let _ = sorted.threads.number(thread);
            }
        }
        let mut todo: Vec<(Option<Node>, u32, Node)> = Vec::new();
        // In descending order, since the last is taken first.
        let push = |todo: &mut Vec<_>, parent, of: Node| {
            let (_, from) = order.split_at(order.partition_point(|(above, ..)| *above < of));
            let (below, _) = from.split_at(from.partition_point(|(above, ..)| *above == of));
            todo.extend(below.iter().rev().map(|(_, frame, node)| (parent, *frame, *node)));
        };
        push(&mut todo, None, NONE);
        while let Some((parent, frame, old)) = todo.pop() {
            let Some(frame) = self.frames.get(frame).copied() else { continue };
            let Some(node) = sorted.node(parent, frame) else { continue };
            for ((_, thread), value) in self.values.range((old, 0)..=(old, u32::MAX)) {
                if let Some(thread) = self.threads.get(*thread) {
                    sorted.add(node, thread, *value);
                }
            }
            push(&mut todo, Some(node), old);
        }
        sorted
    }

    /// The same stacks in at most `nodes_max` nodes: the values of the lightest contexts go to a
    /// frame [`Cut::Deeper`] below a caller that is left, so all sums of callers stay right.
    #[must_use]
    pub fn bounded(self, nodes_max: usize) -> Self {
        if self.len() <= nodes_max {
            return self;
        }
        let mut inclusive = vec![0_u64; self.nodes.len()];
        for ((node, _), value) in &self.values {
            if let Some(sum) = inclusive.get_mut(*node as usize) {
                *sum = sum.saturating_add(value.weight);
            }
        }
        for (node, (parent, _)) in self.nodes.iter().enumerate().rev() {
            let weight = inclusive.get(node).copied().unwrap_or(0);
            if let Some(sum) = inclusive.get_mut(*parent as usize) {
                *sum = sum.saturating_add(weight);
            }
        }
        // Half of the nodes stay as they are: each of them may get one frame for what was deeper.
        let kept = (nodes_max / 2).max(1);
        let mut heaviest: Vec<(u64, std::cmp::Reverse<Node>)> = inclusive
            .iter()
            .zip(0..)
            .map(|(weight, node)| (*weight, std::cmp::Reverse(node)))
            .collect();
        heaviest.sort_unstable_by(|a, b| b.cmp(a));
        heaviest.truncate(kept);
        let heaviest: std::collections::HashSet<Node> =
            heaviest.into_iter().map(|(_, node)| node.0).collect();
        let mut bounded = Self::new();
        // A parent is at least as heavy as its child and comes first, so it is kept if the child
        // is.
        let mut new: Vec<Option<Node>> = Vec::with_capacity(self.nodes.len());
        for (node, (parent, frame)) in (0..).zip(self.nodes()) {
            let above = parent.and_then(|parent| new.get(parent as usize).copied().flatten());
            let is_kept = heaviest.contains(&node) && (parent.is_none() || above.is_some());
            new.push(if is_kept { bounded.node(above, frame) } else { None });
        }
        for (node, thread, value) in self.values() {
            let mut at = node;
            let target = loop {
                if let Some(kept) = new.get(at as usize).copied().flatten() {
                    let is_itself = at == node;
                    break if is_itself {
                        Some(kept)
                    } else {
                        bounded.node(Some(kept), Frame::Cut(Cut::Deeper))
                    };
                }
                match self.nodes.get(at as usize) {
                    Some((parent, _)) if *parent != NONE => at = *parent,
                    _ => break bounded.node(None, Frame::Cut(Cut::Deeper)),
                }
            };
            if let Some(target) = target {
                bounded.add(target, thread, value);
            }
        }
        bounded
    }
}

impl PartialEq for Stacks {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (self.canonical(), other.canonical());
        a.nodes().eq(b.nodes()) && a.values().eq(b.values())
    }
}

impl Eq for Stacks {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn image(number: u8) -> ImageId {
        ImageId::from_build_id(&[number + 1]).unwrap()
    }

    fn code(number: u8) -> Frame {
        Frame::Code(image(number % 3), ImageOffset(u64::from(number) * 16))
    }

    fn thread(number: u8) -> Thread {
        Thread { command: format!("c{number}"), pid: number.into(), ..Thread::default() }
    }

    fn stacks() -> impl Strategy<Value = Stacks> {
        let one = (proptest::collection::vec(0_u8..4, 1..6), 0_u8..3, 0_u64..1 << 40);
        proptest::collection::vec(one, 0..20).prop_map(|all| {
            let mut stacks = Stacks::new();
            for (frames, number, weight) in all {
                let frames = frames.into_iter().map(code);
                stacks.add_stack(frames, &thread(number), super::Value::of_one(weight));
            }
            stacks
        })
    }

    fn sum(a: &Stacks, b: &Stacks) -> Stacks {
        let mut sum = a.clone();
        sum.merge(b);
        sum
    }

    proptest! {
        #[test]
        fn the_law_of_stacks_is_a_sum(a in stacks(), b in stacks(), c in stacks()) {
            prop_assert_eq!(sum(&a, &b), sum(&b, &a));
            prop_assert_eq!(sum(&sum(&a, &b), &c), sum(&a, &sum(&b, &c)));
            prop_assert_eq!(sum(&a, &Stacks::new()), a.clone());
            let mut total = a.total();
            total.add(b.total());
            prop_assert_eq!(sum(&a, &b).total(), total);
        }

        #[test]
        fn the_order_of_stacks_does_not_show(a in stacks(), b in stacks()) {
            let (ab, ba) = (sum(&a, &b).canonical(), sum(&b, &a).canonical());
            prop_assert!(ab.nodes().eq(ba.nodes()));
            prop_assert!(ab.values().eq(ba.values()));
        }

        #[test]
        fn what_a_bound_leaves_out_stays_with_its_callers(a in stacks(), most in 2_usize..30) {
            let bounded = a.clone().bounded(most);
            prop_assert!(bounded.len() <= most.max(a.len().min(most)) + 1);
            prop_assert_eq!(bounded.total(), a.total());
            let roots = |stacks: &Stacks| {
                let mut sums = BTreeMap::new();
                for (node, _, value) in stacks.values() {
                    let root = stacks.frames(node).last().unwrap();
                    *sums.entry(root).or_insert(0) += value.weight;
                }
                sums
            };
            for (root, sum) in roots(&bounded) {
                let all = roots(&a);
                prop_assert!(root == Frame::Cut(Cut::Deeper) || all.get(&root) == Some(&sum));
            }
        }
    }

    #[test]
    fn a_context_has_its_callers() {
        let mut stacks = Stacks::new();
        stacks.add_stack([code(1), code(2), code(1)], &thread(0), super::Value::of_one(2048));
        stacks.add_stack([code(1), code(2)], &thread(1), super::Value::of_one(1024));
        assert_eq!(stacks.len(), 3);
        let all: Vec<_> = stacks.values().collect();
        let [(inner, _, first), (outer, of, _)] = all[..] else { panic!("{all:?}") };
        let (inner, outer, of) = (inner.max(outer), inner.min(outer), of.clone());
        assert_eq!(stacks.frames(inner).collect::<Vec<_>>(), [code(1), code(2), code(1)]);
        assert_eq!(stacks.frames(outer).collect::<Vec<_>>(), [code(2), code(1)]);
        assert!(first.stacks == 1 && of.command.starts_with('c'));
        assert_eq!(stacks.total(), super::Value { stacks: 2, weight: 3072, squares: 5 });
        assert_eq!(stacks.node(Some(99), code(0)), None);
    }

    #[test]
    fn stacks_that_are_taken_away_leave_the_others() {
        let thread = |tid| Thread { tid, ..Thread::default() };
        let (mut first, mut second) = (Stacks::new(), Stacks::new());
        first.add_stack([code(1), code(2)], &thread(7), Value::of_one(1024));
        first.add_stack([code(1), code(2)], &thread(8), Value::of_one(1024));
        second.add_stack([code(5)], &thread(9), Value::of_one(2048));
        second.add_stack([code(1), code(2)], &thread(7), Value::of_one(4096));
        let mut sum = second.clone();
        sum.merge(&first);
        assert_eq!(sum.without(&first), second);
        assert_eq!(sum.without(&second), first);
        assert!(sum.without(&sum).is_empty());
    }

    #[test]
    fn the_stacks_of_a_thread_are_those_of_its_values() {
        let mut stacks = Stacks::new();
        let thread = |tid| Thread { pid: 7, tid, ..Thread::default() };
        stacks.add_stack([code(1), code(2)], &thread(7), Value::of_one(1024));
        stacks.add_stack([code(1), code(3)], &thread(8), Value::of_one(4096));
        let mut one = Stacks::new();
        one.add_stack([code(1), code(3)], &thread(8), Value::of_one(4096));
        let of = |tid: u32| {
            let mut left = stacks.clone();
            left.retain_threads(|thread| thread.tid == tid);
            left
        };
        assert_eq!(of(8), one);
        assert_eq!(of(9).total(), Value::default());
    }
}

//! Stacks of an epoch: their identity, and what bounds them.

use model::{Attributes, Cut, Frame, Node, Stacks, Thread};

use crate::scope::Scope;
use crate::shapes::DEPTH_MAX;

/// Most nodes of the stacks of one event and scope in a segment. Beyond, the rarest frames become
/// `[deeper]`. A fold has three trees of this size in dcpid's memory, about 100 bytes a node; with
/// fewer, an hour of a busy host loses rare contexts.
pub(crate) const NODES_MAX: usize = 262_144;
/// Most values, by context and thread, of the stacks of one event and scope in a segment. Beyond,
/// threads lose their attributes, are then joined by command, and then all threads are one. A value
/// takes about 60 bytes of memory.
pub(crate) const CONTEXTS_MAX: usize = 524_288;

/// Identity of stacks in an epoch: those of one event, of the processes of a scope.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StacksKey {
    /// The event; also `off-cpu` and `runnable`, which no profile has.
    pub event: String,
    /// The scope; empty where the user did not ask to keep processes apart.
    pub scope: Scope,
}

/// The same stacks, within the limits of a segment. Their sum stays the same.
pub(crate) fn fitting(stacks: Stacks) -> Stacks {
    let stacks = shallow(stacks).bounded(NODES_MAX - 1);
    let joins: [fn(&Thread) -> Thread; 3] = [
        |thread| Thread { attributes: Attributes::default(), ..thread.clone() },
        |thread| Thread { command: thread.command.clone(), ..Thread::default() },
        |_| Thread::default(),
    ];
    joins.into_iter().fold(stacks, |stacks, join| {
        if stacks.values().take(CONTEXTS_MAX + 1).count() <= CONTEXTS_MAX {
            return stacks;
        }
        let mut joined = Stacks::new();
        joined.merge_threads(&stacks, join);
        joined
    })
}

/// The same stacks, cut where they are deeper than a reader follows.
fn shallow(stacks: Stacks) -> Stacks {
    let mut depths: Vec<usize> = Vec::with_capacity(stacks.len());
    for (parent, _) in stacks.nodes() {
        let above = parent.and_then(|parent| depths.get(parent as usize)).copied();
        depths.push(above.unwrap_or(0) + 1);
    }
    if depths.iter().all(|depth| *depth <= DEPTH_MAX) {
        return stacks;
    }
    let mut cut = Stacks::new();
    let mut new: Vec<Option<Node>> = Vec::with_capacity(stacks.len());
    for ((parent, frame), depth) in stacks.nodes().zip(&depths) {
        let above = parent.and_then(|parent| new.get(parent as usize).copied().flatten());
        new.push(match depth.cmp(&DEPTH_MAX) {
            std::cmp::Ordering::Less => cut.node(above, frame),
            std::cmp::Ordering::Equal => cut.node(above, Frame::Cut(Cut::Deeper)),
            std::cmp::Ordering::Greater => above,
        });
    }
    for (node, thread, value) in stacks.values() {
        if let Some(node) = new.get(node as usize).copied().flatten() {
            cut.add(node, thread, value);
        }
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::{ImageId, ImageOffset};
    use model::Value;

    fn code(offset: u64) -> Frame {
        Frame::Code(ImageId::from_build_id(&[1]).unwrap(), ImageOffset(offset))
    }

    #[test]
    fn stacks_that_are_too_deep_are_cut_and_stay_whole_in_sum() {
        let mut stacks = Stacks::new();
        for depth in [3, DEPTH_MAX as u64, 3000] {
            let thread = Thread::default();
            stacks.add_stack((0..depth).map(code), &thread, Value::of_one(5000));
        }
        let cut = fitting(stacks.clone());
        assert_eq!((cut.len(), cut.total()), (DEPTH_MAX, stacks.total()));
        assert!(cut.distinct_frames().contains(&Frame::Cut(Cut::Deeper)));
        assert_eq!(fitting(cut.clone()), cut);
    }

    #[test]
    fn too_many_values_join_threads_by_command_and_then_all() {
        for (commands, left) in [(3_u32, 3), (CONTEXTS_MAX as u32 + 1, 1)] {
            let mut stacks = Stacks::new();
            for number in 0..=CONTEXTS_MAX as u32 {
                let command = format!("c{}", number % commands);
                let thread = Thread { command, pid: number, ..Thread::default() };
                stacks.add_stack([code(1)], &thread, Value::of_one(1024));
            }
            let fitting = fitting(stacks.clone());
            assert_eq!((fitting.values().count(), fitting.total()), (left, stacks.total()));
        }
    }
}

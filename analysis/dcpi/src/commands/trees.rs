//! Trees of calls: what `tree`, `flame` and `html` draw.

use calls::{
    Direction, EventCalls, Roots, Shape, Subject, SubjectId, Subjects, Timed, Tree, TreeNode,
};
use model::Thread;
use query::error::AnalysisError;
use report::{TreeRow, TreeThread};
use stats::Confidence;

use super::stacks::{Loaded, callee};
use crate::options::OfCalls;

/// A tree of calls: its shape, and the smallest share of a call.
pub(super) struct TreeOf<'a> {
    pub(super) direction: Direction,
    pub(super) part: &'a OfCalls,
    pub(super) roots: Roots<'a>,
    pub(super) min: f64,
    pub(super) confidence: Confidence,
}

/// The roots that options ask for.
pub(super) fn roots(by_thread: bool, by_attribute: Option<&str>) -> Roots<'_> {
    match by_attribute {
        Some(key) => Roots::Attribute(key),
        None if by_thread => Roots::Threads,
        None => Roots::Procedures,
    }
}

impl Loaded {
    /// The tree of an event, and the times that its shares are of.
    ///
    /// # Errors
    /// Returns the errors of [`Loaded::procedure`]; [`nobody_has`] where no stack has the
    /// procedure.
    pub(super) fn tree(
        &mut self,
        event: &EventCalls,
        of: &TreeOf<'_>,
    ) -> Result<(Tree, Timed, Option<SubjectId>), AnalysisError> {
        let from = match of.part.from.as_slice() {
            [] => None,
            words => Some(self.procedure(words, event)?),
        };
        let timed = self.calls.timed(event, of.roots);
        let timed = from.map_or_else(|| timed.clone(), |from| timed.through(from));
        let calls = &self.calls;
        let is_kernel = |subject| Some(subject) != from && calls.is_kernel(subject);
        let shape = Shape {
            direction: of.direction,
            from,
            depth_max: of.part.depth.map_or(usize::MAX, |depth| depth as usize),
            without: of.part.no_kernel.then_some(&is_kernel),
        };
        let tree = Tree::of(&timed, shape, of.min, of.confidence);
        Ok((tree, timed, from))
    }
}

/// The rows of a tree whose shares are of `total`.
pub(super) fn tree_rows(tree: &Tree, subjects: &Subjects, total: f64) -> Vec<TreeRow> {
    let row = |node: &TreeNode| TreeRow {
        procedure: callee(subjects, node.subject),
        depth: node.depth,
        parent: node.parent,
        time: node.estimate.time,
        share: node.estimate.share,
        own: node.own / total.max(f64::MIN_POSITIVE),
        thread: match subjects.get(node.subject) {
            Some(Subject::Thread(thread)) => Some(tree_thread(thread)),
            _ => None,
        },
    };
    tree.nodes.iter().map(row).collect()
}

fn tree_thread(thread: &Thread) -> TreeThread {
    let number = |number: u32| (number > 0).then_some(number);
    TreeThread {
        command: thread.command.clone(),
        pid: number(thread.pid),
        name: thread.name.clone(),
        tid: number(thread.tid),
    }
}

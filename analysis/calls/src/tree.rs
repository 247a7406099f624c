//! The whole tree of calls: from the threads' first procedures to what they called, or from the
//! procedures that took the time to their callers.

use std::collections::HashMap;

use stats::Confidence;

use crate::contexts::{Contexts, Entry, NodeId, Placed, SubjectId};
use crate::timed::{Estimate, Timed};

/// Where a tree begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// At the threads' first procedures; below a procedure are its callees.
    TopDown,
    /// At the procedures that took the time; below a procedure are its callers.
    BottomUp,
}

/// A tree of calls, in the order of reading: each node before those below it, siblings by time.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// The nodes.
    pub nodes: Vec<TreeNode>,
    /// Time of nodes that were left out, of all their calls.
    pub left_out: f64,
    /// Number of nodes that were left out.
    pub left_out_nodes: usize,
}

/// A node of a tree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TreeNode {
    /// The procedure.
    pub subject: SubjectId,
    /// Number of nodes above it.
    pub depth: usize,
    /// Index of the node above it.
    pub parent: Option<usize>,
    /// Its time with that of all nodes below it.
    pub estimate: Estimate,
    /// Its own time: that of the stacks in which it is the innermost procedure.
    pub own: f64,
}

/// The shape of a tree.
#[derive(Clone, Copy)]
pub struct Shape<'a> {
    /// Where the tree begins.
    pub direction: Direction,
    /// The procedure that is the tree's only root: of a stack that has it several times the
    /// outermost call counts. Stacks without it are left out.
    pub from: Option<SubjectId>,
    /// Most calls above each other, 1 at least.
    pub depth_max: usize,
    /// Frames that are left out: their time is that of their callers. A stack that has no others
    /// keeps them.
    pub without: Option<&'a dyn Fn(SubjectId) -> bool>,
}

impl Shape<'_> {
    /// All calls in one direction.
    pub const fn of(direction: Direction) -> Self {
        Self { direction, from: None, depth_max: usize::MAX, without: None }
    }

    fn is_whole(&self) -> bool {
        self.from.is_none() && self.depth_max == usize::MAX && self.without.is_none()
    }

    /// Puts a path, innermost first, in the order of the tree, and gives the place of the
    /// innermost procedure in it.
    fn place(&self, path: &mut Vec<SubjectId>) -> Option<usize> {
        if let Some(without) = self.without {
            keep_others(path, without);
        }
        let begin = self.from.and_then(|from| path.iter().rposition(|of| *of == from));
        let own = match self.direction {
            Direction::TopDown => {
                path.truncate(begin.map_or(usize::MAX, |begin| begin + 1));
                path.reverse();
                path.len().checked_sub(1)
            }
            Direction::BottomUp => {
                path.drain(..begin.unwrap_or(0));
                (begin.unwrap_or(0) == 0).then_some(0)
            }
        };
        path.truncate(self.depth_max.max(1));
        own
    }
}

/// Removes the subjects that `without` holds of, unless there are no others.
pub(crate) fn keep_others(path: &mut Vec<SubjectId>, without: &dyn Fn(SubjectId) -> bool) {
    if !path.iter().all(|subject| without(*subject)) {
        path.retain(|subject| !without(*subject));
    }
}

impl Tree {
    /// The tree of all stacks, without nodes below the share `min` of all time.
    pub fn of(timed: &Timed, of: Shape<'_>, min: f64, confidence: Confidence) -> Self {
        let placed;
        let is_from = |path: &[SubjectId]| of.from.is_some_and(|from| path.contains(&from));
        let borrows = |entry: &Entry| timed.unseen_above(entry.node).is_some();
        let is_as_it_is = of.is_whole()
            && of.direction == Direction::TopDown
            && !timed.contexts().entries().iter().any(borrows);
        let (shape, places) = if is_as_it_is {
            (timed.contexts(), None)
        } else {
            placed = timed.contexts().placed(|path| {
                // A procedure without a stack, with what is inlined into it, is drawn neither below
                // callers that were lent to it nor with them.
                let unseen = path.iter().position(|above| timed.is_unseen(*above));
                if let Some(unseen) = unseen {
                    let is_asked = is_from(path.get(..unseen).unwrap_or_default());
                    match of.direction {
                        Direction::TopDown if is_asked => {}
                        Direction::TopDown => drop(path.drain(..unseen)),
                        Direction::BottomUp if of.from.is_none() || is_asked => {
                            path.truncate(unseen + 1);
                        }
                        Direction::BottomUp => {}
                    }
                }
                of.place(path)
            });
            (&placed.0, Some(&placed.1))
        };
        let at = |node: NodeId| match places {
            None => Some(Placed { end: node, own: Some(node) }),
            Some(places) => places.get(&node).copied(),
        };
        // Lent callers are where those that borrow them are, unless these are what is asked about.
        let mut lent: HashMap<NodeId, Placed> = HashMap::new();
        for entry in timed.contexts().entries() {
            let Some(above) = timed.unseen_above(entry.node) else { continue };
            let below: Vec<SubjectId> = timed
                .contexts()
                .path(entry.node)
                .take_while(|(node, _)| *node != above)
                .map(|(_, subject)| subject)
                .collect();
            let is_below = match of.direction {
                Direction::TopDown => !is_from(&below),
                Direction::BottomUp => of.from.is_some() && !is_from(&below),
            };
            if is_below {
                lent.extend(at(entry.node).map(|at| (above, at)));
            }
        }
        let keys_of = |node: NodeId, keys: &mut Vec<u32>| {
            if let Some(at) = at(node).or_else(|| lent.get(&node).copied()) {
                keys.extend(shape.path(at.end).map(|(node, _)| node));
            }
        };
        let estimates = if of.direction == Direction::BottomUp && of.from.is_none() {
            timed.estimates_of_leaves(shape.len(), confidence, keys_of)
        } else {
            timed.estimates(shape.len(), confidence, keys_of)
        };
        let mut own = vec![0.0; shape.len()];
        for (entry, time) in timed.entries() {
            let node = at(entry.node).and_then(|at| at.own);
            if let Some(own) = node.and_then(|node| own.get_mut(node as usize)) {
                *own += time;
            }
        }
        let least = min * timed.whole().occurrences;
        arranged(shape, &estimates, &own, least)
    }
}

/// The nodes in the order of reading.
fn arranged(shape: &Contexts, estimates: &[Estimate], own: &[f64], least: f64) -> Tree {
    let time = |node: NodeId| estimates.get(node as usize).map_or(0.0, |estimate| estimate.time);
    let mut tree = Tree::default();
    let mut children: HashMap<Option<NodeId>, Vec<(NodeId, SubjectId)>> = HashMap::new();
    for ((parent, subject), node) in shape.nodes().zip(0..) {
        if time(node) > 0.0 && time(node) >= least {
            children.entry(parent).or_default().push((node, subject));
        } else if time(node) > 0.0 {
            tree.left_out_nodes += 1;
            // The descendants of a left-out node are left out with it.
            let is_top = parent.is_none_or(|parent| time(parent) >= least);
            tree.left_out += if is_top { time(node) } else { 0.0 };
        }
    }
    // The lightest first: a stack of nodes gives the heaviest first.
    for siblings in children.values_mut() {
        siblings.sort_by(|(a, first), (b, second)| {
            time(*a).total_cmp(&time(*b)).then(second.cmp(first))
        });
    }
    let mut todo: Vec<(NodeId, SubjectId, usize, Option<usize>)> = Vec::new();
    let roots = children.remove(&None).unwrap_or_default();
    todo.extend(roots.into_iter().map(|(node, subject)| (node, subject, 0, None)));
    while let Some((node, subject, depth, parent)) = todo.pop() {
        let this = tree.nodes.len();
        tree.nodes.push(TreeNode {
            subject,
            depth,
            parent,
            estimate: estimates.get(node as usize).copied().unwrap_or_default(),
            own: own.get(node as usize).copied().unwrap_or(0.0),
        });
        let below = children.remove(&Some(node)).unwrap_or_default();
        todo.extend(
            below.into_iter().map(|(node, subject)| (node, subject, depth + 1, Some(this))),
        );
    }
    tree
}

//! The callers and the callees of a procedure, and its time with all that it called.

use std::collections::HashMap;

use stats::Confidence;

use crate::contexts::{NodeId, SubjectId};
use crate::timed::{Estimate, Timed};
use crate::tree::keep_others;

/// A caller or a callee.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Neighbour {
    /// The procedure; none: the procedure asked about was the thread's first, or called nothing.
    pub subject: Option<SubjectId>,
    /// The time of the procedure asked about that is this neighbour's.
    pub estimate: Estimate,
}

impl Timed {
    /// The time of each subject with all that it called, in the order of their numbers. A stack
    /// that has a procedure several times counts once for it.
    pub fn inclusive(&self, subjects: usize, confidence: Confidence) -> Vec<Estimate> {
        let contexts = self.contexts();
        let mut seen = vec![NodeId::MAX; subjects];
        let mut all = self.estimates(subjects, confidence, |node, keys| {
            for (_, subject) in contexts.path(node) {
                match seen.get_mut(subject as usize) {
                    Some(seen) if *seen != node => {
                        *seen = node;
                        keys.push(subject);
                    }
                    _ => {}
                }
            }
        });
        // Whatever it called, its own time is in it.
        for (estimate, own) in all.iter_mut().zip(self.own(confidence)) {
            estimate.share.low = estimate.share.low.max(own.low).min(estimate.share.value);
        }
        all
    }

    /// The stacks that have the subject.
    pub fn through(&self, subject: SubjectId) -> Self {
        let contexts = self.contexts();
        self.narrowed(|node| contexts.path(node).any(|(_, of)| of == subject))
    }
}

/// The callers of a subject, those with the most time first. If a stack contains the subject
/// several times, the outermost call counts. Shares are of the subject's time with all that it
/// called, and sum up to 1. Frames that `without` holds of are left out.
pub fn callers(
    timed: &Timed,
    subject: SubjectId,
    without: &dyn Fn(SubjectId) -> bool,
    confidence: Confidence,
) -> Vec<Neighbour> {
    neighbours(timed, subject, without, confidence, |path| {
        let outermost = path.iter().rposition(|of| *of == subject)?;
        path.get(outermost + 1).copied()
    })
}

/// The callees of a subject, those with the most time first. If a stack contains the subject
/// several times, the innermost call counts. Shares are as those of [`callers`]; a neighbour that
/// is none is the subject itself.
pub fn callees(
    timed: &Timed,
    subject: SubjectId,
    without: &dyn Fn(SubjectId) -> bool,
    confidence: Confidence,
) -> Vec<Neighbour> {
    neighbours(timed, subject, without, confidence, |path| {
        let innermost = path.iter().position(|of| *of == subject)?;
        path.get(innermost.checked_sub(1)?).copied()
    })
}

/// `neighbour` finds the neighbour in a path, innermost first.
fn neighbours(
    timed: &Timed,
    subject: SubjectId,
    without: &dyn Fn(SubjectId) -> bool,
    confidence: Confidence,
    neighbour: impl Fn(&[SubjectId]) -> Option<SubjectId>,
) -> Vec<Neighbour> {
    let through = timed.through(subject);
    let contexts = through.contexts();
    let mut keys: HashMap<Option<SubjectId>, u32> = HashMap::new();
    let mut of_key: Vec<Option<SubjectId>> = Vec::new();
    let mut of_node: HashMap<NodeId, u32> = HashMap::new();
    let mut path = Vec::new();
    let nodes = contexts.entries().iter().flat_map(|entry| {
        [Some(entry.node), through.unseen_above(entry.node)].into_iter().flatten()
    });
    for node in nodes {
        path.clear();
        path.extend(contexts.path(node).map(|(_, subject)| subject));
        // The callers lent to a procedure have its time; the procedure is not among them.
        if of_node.contains_key(&node) || !path.contains(&subject) {
            continue;
        }
        // The subject itself is asked about, whatever it is.
        keep_others(&mut path, &|of| of != subject && without(of));
        let found = neighbour(&path);
        let key = *keys.entry(found).or_insert_with(|| {
            of_key.push(found);
            of_key.len() as u32 - 1
        });
        of_node.insert(node, key);
    }
    let estimates =
        through.estimates(of_key.len(), confidence, |node, keys| keys.extend(of_node.get(&node)));
    let mut found: Vec<Neighbour> = of_key
        .into_iter()
        .zip(estimates)
        .map(|(subject, estimate)| Neighbour { subject, estimate })
        .collect();
    found.sort_by(|a, b| {
        b.estimate.time.total_cmp(&a.estimate.time).then(a.subject.cmp(&b.subject))
    });
    found
}

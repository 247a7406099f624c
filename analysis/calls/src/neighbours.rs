//! The callers and the callees of a procedure, and its time with all that it called.

use std::collections::HashMap;

use stats::Confidence;

use crate::contexts::{Contexts, NodeId, SubjectId};
use crate::timed::{Estimate, Timed};

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
    #[must_use]
    pub fn inclusive(&self, subjects: usize, confidence: Confidence) -> Vec<Estimate> {
        let contexts = self.contexts();
        let mut seen = vec![NodeId::MAX; subjects];
        self.estimates(subjects, confidence, |node, keys| {
            for (_, subject) in contexts.path(node) {
                match seen.get_mut(subject as usize) {
                    Some(seen) if *seen != node => {
                        *seen = node;
                        keys.push(subject);
                    }
                    _ => {}
                }
            }
        })
    }

    /// The stacks that have the subject.
    #[must_use]
    pub fn through(&self, subject: SubjectId) -> Self {
        let contexts = self.contexts();
        self.narrowed(|node| contexts.path(node).any(|(_, of)| of == subject))
    }
}

/// The callers of a subject, those with the most time first. Of a stack that has the subject
/// several times the outermost call counts. Shares are of the subject's time with all that it
/// called, and sum up to 1.
#[must_use]
pub fn callers(timed: &Timed, subject: SubjectId, confidence: Confidence) -> Vec<Neighbour> {
    neighbours(timed, subject, confidence, |contexts, node| {
        let outermost = contexts.path(node).filter(|(_, of)| *of == subject).last();
        let caller = outermost.and_then(|(node, _)| contexts.parent(node));
        caller.and_then(|caller| contexts.subject(caller))
    })
}

/// The callees of a subject, those with the most time first. Of a stack that has the subject
/// several times the innermost call counts. Shares are as those of [`callers`]; a neighbour that is
/// none is the subject itself.
#[must_use]
pub fn callees(timed: &Timed, subject: SubjectId, confidence: Confidence) -> Vec<Neighbour> {
    neighbours(timed, subject, confidence, |contexts, node| {
        let mut callee = None;
        for (_, of) in contexts.path(node) {
            if of == subject {
                break;
            }
            callee = Some(of);
        }
        callee
    })
}

fn neighbours(
    timed: &Timed,
    subject: SubjectId,
    confidence: Confidence,
    neighbour: impl Fn(&Contexts, NodeId) -> Option<SubjectId>,
) -> Vec<Neighbour> {
    let through = timed.through(subject);
    let contexts = through.contexts();
    let mut keys: HashMap<Option<SubjectId>, u32> = HashMap::new();
    let mut of_key: Vec<Option<SubjectId>> = Vec::new();
    let mut of_node: HashMap<NodeId, u32> = HashMap::new();
    for entry in contexts.entries() {
        let found = neighbour(contexts, entry.node);
        let key = *keys.entry(found).or_insert_with(|| {
            of_key.push(found);
            of_key.len() as u32 - 1
        });
        of_node.insert(entry.node, key);
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

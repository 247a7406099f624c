//! Callers of procedures that have samples and no stack: those of others, which lend them.

use std::collections::BTreeMap;

use crate::contexts::{Contexts, Entry, NodeId, SubjectId};
use crate::timed::Leaf;

/// Stacks that lend their callers to procedures that have none.
pub(super) struct Lenders {
    /// By group: the stacks of procedures that have exactly one, and those of all.
    of_group: BTreeMap<u32, [Vec<Entry>; 2]>,
    /// The same of all groups, where all stacks are of one process.
    of_process: Option<[Vec<Entry>; 2]>,
}

impl Lenders {
    pub(super) fn of(contexts: &Contexts, groups: &[u32]) -> Self {
        let mut stacks = vec![0_u64; groups.len()];
        let subject = |entry: &Entry| contexts.subject(entry.node).unwrap_or(SubjectId::MAX);
        for entry in contexts.entries() {
            if let Some(stacks) = stacks.get_mut(subject(entry) as usize) {
                *stacks = stacks.saturating_add(entry.value.stacks);
            }
        }
        let mut of_group: BTreeMap<u32, [Vec<Entry>; 2]> = BTreeMap::new();
        let mut of_all: [Vec<Entry>; 2] = Default::default();
        for entry in contexts.entries().iter().filter(|entry| entry.value.weight > 0) {
            let at = subject(entry) as usize;
            let Some((stacks, group)) = stacks.get(at).zip(groups.get(at)) else { continue };
            let [once, all] = of_group.entry(*group).or_default();
            let [once_of_all, all_of_all] = &mut of_all;
            if *stacks == 1 {
                once.push(*entry);
                once_of_all.push(*entry);
            }
            all.push(*entry);
            all_of_all.push(*entry);
        }
        let mut processes =
            contexts.threads().iter().map(|thread| (thread.pid, thread.command.as_str()));
        let first = processes.next();
        let is_one = first.is_some() && processes.all(|process| Some(process) == first);
        Self { of_group, of_process: is_one.then_some(of_all) }
    }

    pub(super) fn of_group(&self, group: u32) -> Vec<Entry> {
        let lenders = self.of_group.get(&group).or(self.of_process.as_ref());
        lenders.map_or_else(
            Vec::new,
            |[once, all]| {
                if once.is_empty() { all.clone() } else { once.clone() }
            },
        )
    }
}

/// Puts the procedures `subjects` below the callers of the stacks `lenders`, each stack's part of
/// their time being as its weight; gives the time and the stacks of all together.
///
/// The procedures' times are laid end to end, and so are the stacks' parts of them: there are no
/// more new entries than procedures and stacks.
pub(super) fn lent_to(
    contexts: &mut Contexts,
    leaves: &mut [Leaf],
    lenders: &[Entry],
    subjects: &[SubjectId],
    unseen: SubjectId,
) -> Leaf {
    let mut sum = Leaf { squares: f64::INFINITY, ..Leaf::default() };
    for subject in subjects {
        let leaf = leaves.get(*subject as usize).copied().unwrap_or_default();
        sum.time += leaf.time;
        sum.sample_squares += leaf.sample_squares;
    }
    sum.weight = sum.time;
    if !lenders.is_empty() {
        sum.weight = lenders.iter().map(|lender| lender.value.weight as f64).sum();
        sum.squares = lenders.iter().map(|lender| (lender.value.weight as f64).powi(2)).sum();
    }
    let mut parts: Vec<(Option<NodeId>, f64)> = lenders
        .iter()
        .map(|lender| {
            let time = sum.time * lender.value.weight as f64 / sum.weight;
            (contexts.parent(lender.node), time)
        })
        .collect();
    if parts.is_empty() {
        parts.push((None, sum.time));
    }
    let (mut at, last) = (0, parts.len() - 1);
    for subject in subjects {
        let Some(leaf) = leaves.get_mut(*subject as usize) else { continue };
        let mut left = leaf.time;
        leaf.weight = 0.0;
        while let Some((caller, part)) = parts.get_mut(at).filter(|_| left > 0.0) {
            // The last part takes what rounding leaves.
            let time = if at == last { left } else { left.min(*part) };
            let weight = time.round().max(1.0);
            // Of a procedure among the callers lent to it, the callers of its outermost call.
            let of_path = caller.iter().flat_map(|caller| contexts.path(*caller));
            let outermost = of_path.filter(|(_, of)| of == subject).last();
            let caller = outermost.map_or(*caller, |(node, _)| contexts.parent(node));
            let above = contexts.node(caller, unseen);
            let node = contexts.node(Some(above), *subject);
            let value = model::Value { stacks: 0, weight: weight as u64, squares: 0 };
            contexts.add(Entry { node, thread: u32::MAX, value });
            leaf.weight += weight;
            left -= time;
            *part -= time;
            at += usize::from(at < last && left > 0.0);
        }
    }
    sum
}

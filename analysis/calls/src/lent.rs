//! Callers of procedures that have samples and no stack: those of others, which lend them.

use std::collections::BTreeMap;

use crate::contexts::{Contexts, Entry, NodeId, SubjectId};
use crate::timed::Leaf;

/// An image, whose procedures lend callers to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    /// Its number; 0 for what is no code.
    pub number: u32,
    /// Whether it is code of the kernel. The kernel calls no user code, so its stacks lend no
    /// callers to user code.
    pub is_kernel: bool,
}

/// Stacks that lend their callers to procedures that have none.
pub(super) struct Lenders {
    /// By group: the stacks of procedures that have exactly one, and those of all.
    of_group: BTreeMap<u32, [Vec<Entry>; 2]>,
    /// Where all stacks are of one process: the same two lists, of all images except the kernel's.
    of_process: Option<[Vec<Entry>; 2]>,
}

impl Lenders {
    pub(super) fn of(contexts: &Contexts, groups: &[Group]) -> Self {
        let mut stacks = vec![0_u64; groups.len()];
        for entry in contexts.entries() {
            if let Some(stacks) = stacks.get_mut(contexts.leaf(entry) as usize) {
                *stacks = stacks.saturating_add(entry.value.stacks);
            }
        }
        let mut of_group: BTreeMap<u32, [Vec<Entry>; 2]> = BTreeMap::new();
        let mut of_all: [Vec<Entry>; 2] = Default::default();
        for entry in contexts.entries().iter().filter(|entry| entry.value.weight > 0) {
            let at = contexts.leaf(entry) as usize;
            let Some((stacks, group)) = stacks.get(at).zip(groups.get(at)) else { continue };
            let [once, all] = of_group.entry(group.number).or_default();
            let [once_of_all, all_of_all] = &mut of_all;
            if *stacks == 1 {
                once.push(*entry);
            }
            all.push(*entry);
            if !group.is_kernel {
                if *stacks == 1 {
                    once_of_all.push(*entry);
                }
                all_of_all.push(*entry);
            }
        }
        let mut processes =
            contexts.threads().iter().map(|thread| (thread.pid, thread.command.as_str()));
        let first = processes.next();
        let is_one = first.is_some() && processes.all(|process| Some(process) == first);
        Self { of_group, of_process: is_one.then_some(of_all) }
    }

    pub(super) fn of_group(&self, group: Group) -> Vec<Entry> {
        let of_process = self.of_process.as_ref().filter(|_| !group.is_kernel);
        let lenders = self.of_group.get(&group.number).or(of_process);
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
    let mut callers: Vec<Option<NodeId>> =
        lenders.iter().map(|lender| contexts.parent(contexts.procedure(lender.node))).collect();
    let mut parts: Vec<f64> =
        lenders.iter().map(|lender| sum.time * lender.value.weight as f64 / sum.weight).collect();
    if parts.is_empty() {
        (callers, parts) = (vec![None], vec![sum.time]);
    }
    let mut times = Vec::with_capacity(subjects.len());
    for subject in subjects {
        let leaf = leaves.get_mut(*subject as usize);
        times.push(leaf.map_or(0.0, |leaf| {
            leaf.weight = 0.0;
            leaf.time
        }));
    }
    for (at, lender, time) in end_to_end(&times, &parts) {
        let (Some(subject), Some(caller)) = (subjects.get(at), callers.get(lender)) else {
            continue;
        };
        let weight = time.round().max(1.0);
        let caller = outside(contexts, *caller, std::slice::from_ref(subject));
        let above = contexts.node(caller, unseen);
        let node = contexts.node(Some(above), *subject);
        let value = model::Value { stacks: 0, weight: weight as u64, squares: 0 };
        contexts.add(Entry { node, thread: u32::MAX, value });
        leaves.iter_mut().skip(*subject as usize).take(1).for_each(|leaf| leaf.weight += weight);
    }
    sum
}

/// The callers that are lent to one of these: where these are among the callers, the callers of the
/// outermost call.
pub(super) fn outside(
    contexts: &Contexts,
    caller: Option<NodeId>,
    of: &[SubjectId],
) -> Option<NodeId> {
    let path = caller.iter().flat_map(|caller| contexts.path(*caller));
    let outermost = path.filter(|(_, subject)| of.contains(subject)).last();
    outermost.map_or(caller, |(node, _)| contexts.parent(node))
}

/// Divides each of `times` among parts, which add up to the same: both are laid end to end, and
/// each stretch that one time and one part have in common is given with their indices.
pub(super) fn end_to_end(times: &[f64], parts: &[f64]) -> Vec<(usize, usize, f64)> {
    let mut stretches = Vec::with_capacity(times.len() + parts.len());
    let (mut at, last) = (0, parts.len().saturating_sub(1));
    let mut room = parts.first().copied().unwrap_or_default();
    for (number, time) in times.iter().enumerate() {
        let mut left = *time;
        while left > 0.0 && !parts.is_empty() {
            // The last part takes what rounding leaves.
            let taken = if at == last { left } else { left.min(room) };
            stretches.push((number, at, taken));
            left -= taken;
            room -= taken;
            if at < last && left > 0.0 {
                at += 1;
                room = parts.get(at).copied().unwrap_or_default();
            }
        }
    }
    stretches
}

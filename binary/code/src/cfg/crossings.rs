//! Calls and jumps between the procedures of an image, and procedures that do not return.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;

use foldhash::fast::RandomState;
use image::Vaddr;

use super::Part;
use crate::isa::Isa;
use crate::isa::flow::Flow;

pub(super) type Set<T> = HashSet<T, RandomState>;
pub(super) type Map<K, V> = HashMap<K, V, RandomState>;

/// Most instructions of one procedure that are searched for a return; a longer procedure is taken
/// to return. A smaller number misses procedures that do not return, a larger one costs time in
/// generated code.
const INSTRUCTIONS_MAX: usize = 1 << 16;

/// An image's code and procedures.
pub(super) struct Image<'a> {
    pub(super) isa: Isa,
    pub(super) text: &'a [Part<'a>],
    pub(super) procedures: &'a [Range<u64>],
    pub(super) never: BTreeSet<Vaddr>,
}

/// Calls and jumps from one procedure to another.
#[derive(Default)]
pub(super) struct Crossings {
    /// Addresses that are called, each with a procedure that calls it.
    pub(super) called: Map<u64, usize>,
    /// Number of jumps from one procedure into the middle of another, and how many of these are
    /// conditional.
    pub(super) joined: BTreeMap<(usize, usize), (usize, usize)>,
    /// Jumps to the start of a procedure: the procedure, the one that jumps, whether the jump is
    /// conditional.
    pub(super) begun: Vec<(usize, usize, bool)>,
}

/// The effect of an instruction inside its procedure, for the question whether the procedure
/// returns.
enum Outcome {
    Returns,
    On(Option<u64>),
    Either(u64, u64),
}

impl<'a> Image<'a> {
    pub(super) fn new(
        isa: Isa,
        text: &'a [Part<'a>],
        procedures: &'a [Range<u64>],
        known: impl IntoIterator<Item = Vaddr>,
    ) -> Self {
        Self { isa, text, procedures, never: known.into_iter().collect() }
    }

    /// Finds out which of these addresses, and of the addresses that the answers depend on, belong
    /// to procedures that do not return. Returns all addresses that were examined.
    ///
    /// The order in which addresses are examined does not matter: the set of procedures that do not
    /// return only grows, and an address is examined again when one that it relied on joins the
    /// set.
    pub(super) fn find_no_return(&mut self, asked: Set<u64>) -> Set<u64> {
        // Addresses that wait for the answer of a call's target, which was taken to return.
        let mut waiting: Map<u64, Vec<u64>> = Map::default();
        let mut pending: Vec<u64> = asked.iter().copied().collect();
        pending.sort_unstable();
        // The pending addresses, so that each is queued once.
        let mut queued = asked.clone();
        let mut known = asked;
        while let Some(entry) = pending.pop() {
            queued.remove(&entry);
            if self.never.contains(&Vaddr(entry)) {
                continue;
            }
            match self.walk(entry) {
                Some(called) => {
                    for target in called {
                        waiting.entry(target).or_default().push(entry);
                        if known.insert(target) && queued.insert(target) {
                            pending.push(target);
                        }
                    }
                }
                None => {
                    self.never.insert(Vaddr(entry));
                    let again = waiting.remove(&entry).unwrap_or_default();
                    pending.extend(again.into_iter().filter(|entry| queued.insert(*entry)));
                }
            }
        }
        known
    }

    pub(super) fn crossings(&self) -> Crossings {
        let mut found = Crossings::default();
        (0..self.procedures.len()).for_each(|number| self.cross_from(number, &mut found));
        found
    }

    /// Finds the calls and jumps from the procedure with this number to others.
    pub(super) fn cross_from(&self, number: usize, found: &mut Crossings) {
        let Some(procedure) = self.procedures.get(number) else { return };
        let mut at = procedure.start;
        let mut bytes = self.bytes(at);
        while at < procedure.end && !bytes.is_empty() {
            let ordered = self.isa.order(bytes, at);
            match ordered.map(|ordered| ordered.flow) {
                Some(Flow::Call { target: Some(target), .. }) => {
                    found.called.insert(target, number);
                }
                Some(flow @ (Flow::Jump { target } | Flow::Conditional { target }))
                    if !procedure.contains(&target) =>
                {
                    let conditional = matches!(flow, Flow::Conditional { .. });
                    self.cross(number, target, conditional, found);
                }
                _ => {}
            }
            let len = ordered.map_or(self.isa.step(), |ordered| usize::from(ordered.len));
            let Some(next) = at.checked_add(len as u64) else { break };
            at = next;
            bytes = bytes.get(len..).unwrap_or_default();
        }
    }

    /// Addresses that a procedure may call, whichever of its bytes are instructions.
    pub(super) fn may_call(&self, procedure: &Range<u64>) -> Vec<u64> {
        let len = usize::try_from(procedure.end - procedure.start).unwrap_or(usize::MAX);
        let bytes = self.bytes(procedure.start);
        let mut called = Vec::new();
        self.isa.leads(
            bytes.get(..len).unwrap_or(bytes),
            procedure.start,
            &(0..u64::MAX),
            &mut |lead| {
                called.extend(
                    Some(lead.target)
                        .filter(|target| lead.calls && self.number_of(*target).is_some()),
                );
            },
        );
        called
    }

    /// Notes a jump of the procedure with this number to `target`, in another procedure.
    pub(super) fn cross(
        &self,
        number: usize,
        target: u64,
        conditional: bool,
        found: &mut Crossings,
    ) {
        let Some(other) = self.number_of(target).filter(|_| !self.is_stub(target)) else { return };
        if self.procedures.get(other).is_some_and(|other| other.start == target) {
            found.begun.push((other, number, conditional));
        } else {
            let count = found.joined.entry((number, other)).or_default();
            *count = (count.0 + 1, count.1 + usize::from(conditional));
        }
    }

    /// Whether the code at the address is only a jump through a word. All stubs of a file are one
    /// procedure by its symbols, so they are told apart by their code.
    pub(super) fn is_stub(&self, address: u64) -> bool {
        let Some(first) = self.isa.order(self.bytes(address), address) else { return false };
        let next = address.wrapping_add(u64::from(first.len));
        let second = self.isa.order(self.bytes(next), next).filter(|_| first.flow == Flow::Next);
        let stub = |at: u64| self.isa.stub(self.bytes(at), at).is_some();
        [Some(first), second]
            .into_iter()
            .flatten()
            .any(|it| matches!(it.flow, Flow::Indirect { through: Some(_) }))
            || stub(address)
            || second.is_some() && stub(next)
    }

    pub(super) fn number_of(&self, address: u64) -> Option<usize> {
        let number = self
            .procedures
            .partition_point(|procedure| procedure.start <= address)
            .checked_sub(1)?;
        self.procedures.get(number)?.contains(&address).then_some(number)
    }

    pub(super) fn bytes(&self, address: u64) -> &'a [u8] {
        let after = self.text.partition_point(|part| part.begin.0 <= address);
        let Some(part) = after.checked_sub(1).and_then(|index| self.text.get(index)) else {
            return &[];
        };
        let into = usize::try_from(address - part.begin.0).unwrap_or(usize::MAX);
        part.bytes.get(into..).unwrap_or_default()
    }

    /// Walks from `entry` to a return. Returns the addresses, called or jumped to outside, that
    /// were taken to return on that path; None when no return is reached. The walk goes past calls
    /// of other procedures only where no other path is left, because an answer that depends on
    /// fewer procedures needs fewer others examined.
    pub(super) fn walk(&self, entry: u64) -> Option<BTreeSet<u64>> {
        let mut called = BTreeSet::new();
        let Some(procedure) = self.number_of(entry).and_then(|number| self.procedures.get(number))
        else {
            return Some(called);
        };
        let mut seen: Set<u64> = Set::default();
        let mut pending = vec![entry];
        let mut through = Vec::new();
        loop {
            while let Some(mut at) = pending.pop() {
                while procedure.contains(&at) && seen.insert(at) {
                    if seen.len() > INSTRUCTIONS_MAX {
                        return Some(called);
                    }
                    match self.outcome(at, procedure, &mut through) {
                        Outcome::Returns => return Some(called),
                        Outcome::On(Some(next)) => at = next,
                        Outcome::Either(next, other) => {
                            pending.push(other);
                            at = next;
                        }
                        Outcome::On(None) => break,
                    }
                }
            }
            // No path is left: the procedure does not return.
            let (target, next) = through.pop()?;
            called.insert(target);
            match next {
                Some(next) => pending.push(next),
                None => return Some(called),
            }
        }
    }

    /// The effect of the instruction at `at`. Calls, and jumps to the outside, are added to
    /// `through`, with the address where execution goes on when they return: none where that is a
    /// return too.
    fn outcome(
        &self,
        at: u64,
        procedure: &Range<u64>,
        through: &mut Vec<(u64, Option<u64>)>,
    ) -> Outcome {
        let never = |address: u64| self.never.contains(&Vaddr(address));
        let Some(ordered) = self.isa.order(self.bytes(at), at) else { return Outcome::On(None) };
        let next = at.wrapping_add(u64::from(ordered.len));
        let mut leave = |target: u64, next: Option<u64>| {
            through.extend(Some((target, next)).filter(|_| !never(target)))
        };
        let stub =
            if ordered.flow == Flow::Next { self.isa.stub(self.bytes(at), at) } else { None };
        match ordered.flow {
            _ if stub.is_some_and(|stub| never(stub.through)) => return Outcome::On(None),
            // After a procedure's last instruction, either its call did not return or another
            // procedure follows.
            Flow::Call { .. } if !procedure.contains(&next) => return Outcome::On(None),
            Flow::Next if !procedure.contains(&next) => leave(next, None),
            Flow::Next => return Outcome::On(Some(next)),
            Flow::Conditional { target } if !procedure.contains(&target) => {
                leave(target, None);
                return Outcome::On(Some(next));
            }
            Flow::Conditional { target } => return Outcome::Either(next, target),
            Flow::Jump { target } if procedure.contains(&target) => {
                return Outcome::On(Some(target));
            }
            Flow::Jump { target } => leave(target, None),
            Flow::Indirect { through } if through.is_some_and(never) => return Outcome::On(None),
            Flow::Indirect { .. } | Flow::Return => return Outcome::Returns,
            Flow::Call { through: Some(word), .. } if never(word) => return Outcome::On(None),
            Flow::Call { target: Some(target), .. } if !procedure.contains(&target) => {
                leave(target, Some(next))
            }
            Flow::Call { target, .. } => {
                return Outcome::On(Some(next).filter(|_| !target.is_some_and(never)));
            }
            Flow::Trap | Flow::NoReturn { .. } => {}
        }
        Outcome::On(None)
    }
}

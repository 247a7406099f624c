//! From instructions to blocks and edges.

use std::collections::BTreeMap;

use image::Vaddr;

use super::discover::Code;
use super::{EdgeKind, Ending};
use crate::isa::flow::Flow;

/// A block, as places in [`Code`].
#[derive(Debug)]
pub(super) struct Raw {
    pub(super) place: usize,
    /// The place after its last byte.
    pub(super) end: usize,
    /// Its last instruction.
    pub(super) last: usize,
    pub(super) instructions: usize,
    /// Effect of the last instruction on the order of execution.
    pub(super) flow: Flow,
    /// Whether the linker or compiler may have filled a gap with the block.
    pub(super) filler: bool,
}

/// The goal of an edge.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Goal {
    Place(usize),
    Outside(Vaddr),
    Elsewhere,
    Caller,
    Nowhere,
    Unknown,
}

/// An edge from a block.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) goal: Goal,
    pub(super) kind: EdgeKind,
    pub(super) cases: u32,
}

/// The targets of an indirect jump, in order, each with the number of table entries that name it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Targets(pub(super) Vec<(Goal, u32)>);

impl Targets {
    /// The targets that the entries of a table name.
    pub(super) fn of(entries: impl IntoIterator<Item = Goal>) -> Self {
        let mut counts: BTreeMap<Goal, u32> = BTreeMap::new();
        for goal in entries {
            let count = counts.entry(goal).or_default();
            *count = count.saturating_add(1);
        }
        Self(counts.into_iter().collect())
    }

    /// The targets of one jump, reached by two edges with a table each.
    pub(super) fn and(&self, other: &Self) -> Self {
        let mut counts: BTreeMap<Goal, u32> = self.0.iter().copied().collect();
        for &(goal, cases) in &other.0 {
            let count = counts.entry(goal).or_default();
            *count = count.saturating_add(cases);
        }
        Self(counts.into_iter().collect())
    }
}

/// Targets of a procedure's indirect jumps, by the jump's place.
#[derive(Debug, Default)]
pub(super) struct Jumps {
    pub(super) resolved: BTreeMap<usize, std::rc::Rc<Targets>>,
    /// Jumps that were observed, with their targets.
    pub(super) observed: BTreeMap<usize, Vec<Goal>>,
}

/// All blocks, in the order of their first bytes.
pub(super) fn form(code: &Code<'_>) -> Vec<Raw> {
    let leads = |&place: &usize| code.is_leader(place) && code.len_at(place) != 0;
    (0..code.places()).filter(leads).map(|place| block(code, place)).collect()
}

fn block(code: &Code<'_>, begin: usize) -> Raw {
    let filler = code.is_filler(begin);
    let mut this =
        Raw { place: begin, end: begin, last: begin, instructions: 0, flow: Flow::Next, filler };
    loop {
        this.last = this.end;
        this.end += code.len_at(this.end);
        this.instructions += 1;
        let goes_on = code.len_at(this.end) != 0 && !code.is_leader(this.end);
        if filler {
            if goes_on && code.is_filler(this.end) {
                continue;
            }
            return this;
        }
        let ends = code.ends(this.last);
        if ends {
            this.flow = code.order(this.last).map_or(Flow::Trap, |ordered| ordered.flow);
        }
        if ends || !goes_on {
            return this;
        }
    }
}

impl Raw {
    pub(super) fn ending(&self, code: &Code<'_>) -> Ending {
        let no_code = code.len_at(self.end) == 0 && !code.bytes(self.end).0.is_empty();
        match self.flow {
            Flow::Next | Flow::Call { .. } if no_code => Ending::NoInstruction,
            Flow::Next | Flow::Call { .. } => Ending::Next,
            Flow::Conditional { .. } => Ending::Conditional,
            Flow::Jump { .. } => Ending::Jump,
            Flow::Indirect { .. } => Ending::Indirect,
            Flow::Return => Ending::Return,
            Flow::NoReturn { .. } => Ending::NoReturn,
            Flow::Trap => Ending::Trap,
        }
    }

    /// The edges from this block.
    pub(super) fn ways(&self, code: &Code<'_>, jumps: &Jumps) -> Vec<Way> {
        let way = |goal, kind| Way { goal, kind, cases: 1 };
        let to = |address: u64| {
            code.place(Vaddr(address)).map_or(Goal::Outside(Vaddr(address)), Goal::Place)
        };
        let next = |kind| {
            if code.len_at(self.end) != 0 {
                way(Goal::Place(self.end), kind)
            } else if code.bytes(self.end).0.is_empty() {
                way(Goal::Outside(code.address(self.end)), kind)
            } else {
                way(Goal::Nowhere, EdgeKind::End)
            }
        };
        match self.flow {
            Flow::Next | Flow::Call { .. } => vec![next(EdgeKind::Next)],
            Flow::Conditional { target } => {
                vec![next(EdgeKind::NotTaken), way(decoded(code, to(target)), EdgeKind::Taken)]
            }
            Flow::Jump { target } => vec![way(decoded(code, to(target)), EdgeKind::Jump)],
            Flow::Return => vec![way(Goal::Caller, EdgeKind::Return)],
            Flow::Trap | Flow::NoReturn { .. } => vec![way(Goal::Nowhere, EdgeKind::End)],
            Flow::Indirect { .. } => self.indirect(code, jumps),
        }
    }

    fn indirect(&self, code: &Code<'_>, jumps: &Jumps) -> Vec<Way> {
        let resolved = jumps.resolved.get(&self.last);
        let mut ways = Vec::new();
        for &(goal, cases) in resolved.map_or(&[][..], |targets| &targets.0) {
            let kind = if matches!(goal, Goal::Nowhere) { EdgeKind::End } else { EdgeKind::Case };
            let kind = if matches!(goal, Goal::Elsewhere | Goal::Unknown) {
                EdgeKind::Indirect
            } else {
                kind
            };
            ways.push(Way { goal: decoded(code, goal), kind, cases });
        }
        for &goal in jumps.observed.get(&self.last).map_or(&[][..], Vec::as_slice) {
            if ways.iter().all(|way| way.goal != goal) {
                ways.push(Way { goal: decoded(code, goal), kind: EdgeKind::Observed, cases: 1 });
            }
        }
        if resolved.is_none() {
            ways.push(Way { goal: Goal::Unknown, kind: EdgeKind::Indirect, cases: 1 });
        }
        ways
    }
}

/// The goal, or nowhere where its bytes are no instruction.
fn decoded(code: &Code<'_>, goal: Goal) -> Goal {
    match goal {
        Goal::Place(place) if code.len_at(place) == 0 => Goal::Nowhere,
        goal => goal,
    }
}

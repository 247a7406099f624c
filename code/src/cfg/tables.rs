//! Where indirect jumps go.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use image::Vaddr;

use super::blocks::{Goal, Jumps, Raw, Targets};
use super::discover::Code;
use super::values::{Decision, Entry, State, Value};
use super::{EDGES_MAX, EdgeKind, Finding, FindingKind, Knowledge, ReadOnly, TABLE_ENTRIES_MAX};
use crate::isa::flow::{Flow, Tracker};

/// Blocks of procedures whose values are followed: 64 thousand states take 80 MB.
const BLOCKS_MAX: usize = 1 << 16;
/// How often a block's state may change before its bounds are given up, and before it is left as it is.
const VISITS_WITH_BOUNDS: u32 = 16;
const VISITS_MAX: u32 = 256;

/// What an indirect jump goes by, and how far the stack pointer is from where it was at the entry.
#[derive(Copy, Clone, Debug)]
pub(super) struct Reached {
    target: Option<Value>,
    stack: Option<i64>,
}

/// Follows values from the `roots`, each with whether it is the procedure's entry, along the ways that are known. Returns what each
/// indirect jump that is reached goes by, by its place.
pub(super) fn follow_values(
    code: &Code<'_>,
    raws: &[Raw],
    jumps: &Jumps,
    roots: &[(usize, bool)],
    tracker: &mut Tracker,
    memory: &mut impl ReadOnly,
) -> BTreeMap<usize, Reached> {
    let mut reached = BTreeMap::new();
    if raws.len() > BLOCKS_MAX {
        return reached;
    }
    let number = |place: usize| raws.binary_search_by_key(&place, |raw| raw.place).ok();
    let mut states: Vec<Option<(State, u32)>> = (0..raws.len()).map(|_| None).collect();
    let mut pending = BTreeSet::new();
    let stack = tracker.stack();
    for &(place, entry) in roots {
        if let Some(number) = number(place) {
            let state = State::at_entry(place as u64, entry.then_some(stack));
            arrive(&mut states, &mut pending, number, place, &state);
        }
    }
    while let Some(current) = pending.pop_first() {
        let (Some(raw), Some(Some((state, _)))) = (raws.get(current), states.get(current)) else { continue };
        let mut state = state.clone();
        let decision = execute(code, raw, &mut state, tracker, memory);
        if matches!(raw.flow, Flow::Indirect { .. }) {
            let target = if let Decision::To(value) = decision { Some(value) } else { None };
            let stack = if let Value::Stack(at) = state.get(stack) { Some(at) } else { None };
            reached.insert(raw.last, Reached { target, stack });
        }
        for way in raw.ways(code, jumps) {
            let Goal::Place(place) = way.goal else { continue };
            let Some(next) = number(place) else { continue };
            match (decision, way.kind) {
                (Decision::By(taken, not), EdgeKind::Taken | EdgeKind::NotTaken) => {
                    let mut learnt = state.clone();
                    learnt.learn(if way.kind == EdgeKind::Taken { taken } else { not });
                    arrive(&mut states, &mut pending, next, place, &learnt);
                }
                _ => arrive(&mut states, &mut pending, next, place, &state),
            }
        }
    }
    reached
}

fn arrive(
    states: &mut [Option<(State, u32)>],
    pending: &mut BTreeSet<usize>,
    number: usize,
    place: usize,
    state: &State,
) {
    let Some(at) = states.get_mut(number) else { return };
    match at {
        None => {
            *at = Some((state.clone(), 0));
            pending.insert(number);
        }
        Some((known, visits)) => {
            if *visits < VISITS_MAX && known.join(state, place as u64) {
                *visits += 1;
                if *visits > VISITS_WITH_BOUNDS {
                    known.forget_bounds();
                }
                pending.insert(number);
            }
        }
    }
}

fn execute(
    code: &Code<'_>,
    raw: &Raw,
    state: &mut State,
    tracker: &mut Tracker,
    memory: &mut impl ReadOnly,
) -> Decision {
    let mut place = raw.place;
    let mut decision = Decision::None;
    let (mut bytes, mut at) = code.bytes(place);
    while place < raw.end {
        let len = code.len_at(place);
        decision = tracker.step(bytes, at, state, memory);
        bytes = bytes.get(len..).unwrap_or_default();
        at += len as u64;
        place += len;
    }
    decision
}

/// Reads tables.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// What was read at a table's address, bytes of an entry, index of the last and what is added.
    known: BTreeMap<(u64, u8, Option<u64>, u64), Option<Rc<Targets>>>,
    /// Edges so far.
    edges: usize,
    pub(super) findings: Vec<Finding>,
}

impl Reader {
    /// Finds out where the jumps that were `reached` go. Returns whether one was resolved that was not.
    pub(super) fn resolve(
        &mut self,
        code: &mut Code<'_>,
        reached: &BTreeMap<usize, Reached>,
        jumps: &mut Jumps,
        knowledge: &Knowledge<'_>,
        memory: &mut impl ReadOnly,
    ) -> bool {
        let mut changed = false;
        let tables: BTreeSet<u64> = reached.values().filter_map(|reached| Some(reached.entry()?.table)).collect();
        for (&place, reached) in reached {
            if jumps.resolved.contains_key(&place) {
                continue;
            }
            let seen = jumps.observed.contains_key(&place);
            let Some(targets) = self.targets(code, place, reached, seen, &tables, knowledge, memory) else { continue };
            self.edges += targets.0.len();
            if self.edges > EDGES_MAX {
                self.findings.push(Finding { kind: FindingKind::TooLarge, address: code.address(place) });
                return changed;
            }
            for &(goal, _) in &targets.0 {
                if let Goal::Place(target) = goal {
                    code.lead(target);
                }
            }
            jumps.resolved.insert(place, targets);
            changed = true;
        }
        changed
    }

    #[expect(clippy::too_many_arguments, reason = "the state of one resolution, nowhere else together")]
    fn targets(
        &mut self,
        code: &Code<'_>,
        place: usize,
        reached: &Reached,
        seen: bool,
        tables: &BTreeSet<u64>,
        knowledge: &Knowledge<'_>,
        memory: &mut impl ReadOnly,
    ) -> Option<Rc<Targets>> {
        let one = |goal| Some(Rc::new(Targets(vec![(goal, 1)])));
        if let Some(Flow::Indirect { through: Some(word) }) = code.order(place).map(|ordered| ordered.flow)
            && !matches!(reached.target, Some(Value::Const(_)))
        {
            // Through the global offset table, to another image.
            let never = knowledge.no_return.is_some_and(|all| all.contains(&Vaddr(word)));
            return one(if never { Goal::Nowhere } else { Goal::Elsewhere });
        }
        match reached.target? {
            Value::Const(address) => {
                let goal = code.place(Vaddr(address)).map_or(Goal::Outside(Vaddr(address)), Goal::Place);
                one(goal)
            }
            Value::Entry(entry) => {
                let key = (entry.table, entry.width, entry.last.filter(|_| entry.compared), entry.plus);
                if let Some(known) = self.known.get(&key) {
                    return known.clone();
                }
                let read = self.read(code, place, &entry, tables, memory).map(Rc::new);
                self.known.insert(key, read.clone());
                read.or_else(|| {
                    (reached.stack == Some(0) && !seen).then(|| Rc::new(Targets(vec![(Goal::Elsewhere, 1)])))
                })
            }
            // The frame is gone, so the procedure is left: a call through a pointer in the place of a return.
            _ if reached.stack == Some(0) && !seen => one(Goal::Elsewhere),
            _ => None,
        }
    }

    /// The targets in a table. None if it is none.
    fn read(
        &mut self,
        code: &Code<'_>,
        place: usize,
        entry: &Entry,
        tables: &BTreeSet<u64>,
        memory: &mut impl ReadOnly,
    ) -> Option<Targets> {
        let address = code.address(place);
        let bounded = entry.compared && entry.last.is_some_and(|last| last < TABLE_ENTRIES_MAX);
        let count = entry.last.map_or(TABLE_ENTRIES_MAX, |last| last.saturating_add(1).min(TABLE_ENTRIES_MAX));
        let mut goals: BTreeMap<Goal, u32> = BTreeMap::new();
        let (mut odd, mut all) = (false, true);
        for index in 0..count {
            let at = entry.table.wrapping_add(index * u64::from(entry.stride));
            if !bounded && index > 0 && tables.contains(&at) {
                all = false;
                break;
            }
            let goal = memory.constant(Vaddr(at), entry.width).map(|word| {
                let target = Vaddr(entry.plus.wrapping_add(entry.extended(word)));
                code.place(target).map_or(Goal::Outside(target), Goal::Place)
            });
            let fits = match goal {
                Some(Goal::Place(target)) => code.may_begin(target),
                Some(Goal::Outside(_)) => bounded,
                _ => false,
            };
            match goal {
                Some(goal) if fits => *goals.entry(goal).or_default() += 1,
                _ if bounded => odd = true,
                _ => {
                    all = false;
                    break;
                }
            }
        }
        let inside = goals.keys().any(|goal| matches!(goal, Goal::Place(target) if *target != 0));
        if !inside {
            return None;
        }
        if odd {
            self.findings.push(Finding { kind: FindingKind::OddEntry, address });
        }
        if !bounded && !(all && entry.last.is_some()) {
            self.findings.push(Finding { kind: FindingKind::UnboundedTable, address });
        }
        Some(Targets(goals.into_iter().collect()))
    }
}

impl Reached {
    fn entry(&self) -> Option<Entry> {
        if let Some(Value::Entry(entry)) = self.target { Some(entry) } else { None }
    }
}

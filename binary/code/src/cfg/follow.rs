//! Follows values through the blocks to indirect jumps.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::blocks::{Goal, Jumps, Raw};
use super::discover::Code;
use super::{EdgeKind, ReadOnly};
use crate::isa::flow::{Flow, Tracker};
use crate::values::{Decision, State, Value};

/// Most blocks of a procedure whose values are followed: 64 thousand states take 80 MB. Jumps of
/// larger procedures stay unresolved.
const BLOCKS_MAX: usize = 1 << 16;
/// Times that a node's state may change before its bounds are given up. Fewer lose tables whose
/// bound settles late; more cost time in large loops.
const VISITS_WITH_BOUNDS: u32 = 16;
/// Times that a node's state may change before it is left as it is, so that following values ends.
const VISITS_MAX: u32 = 256;
/// Most different targets that come together before a jump; with more, the jump stays unresolved.
const WAYS_MAX: usize = 16;

/// The values that decide an indirect jump.
#[derive(Clone, Debug)]
pub(super) struct Reached {
    /// The target: one value, or one for each edge to the jump's block.
    pub(super) targets: Vec<Value>,
    /// Distance of the stack pointer from its value at the procedure's entry.
    pub(super) stack: Option<i64>,
}

impl Reached {
    /// Addresses of the tables that the jump reads.
    pub(super) fn tables(&self) -> impl Iterator<Item = u64> {
        self.targets.iter().filter_map(|target| {
            if let Value::Entry(entry) = target { Some(entry.table) } else { None }
        })
    }

    /// Whether the jump reads a table whose length no comparison tells.
    pub(super) fn has_unbounded_table(&self) -> bool {
        self.targets.iter().any(|target| matches!(target, Value::Entry(entry) if !entry.compared))
    }

    /// Whether the target is a symbol that several known values may have been joined to.
    fn is_mixed(&self) -> bool {
        self.stack != Some(0) && matches!(self.targets[..], [Value::Number { .. }])
    }
}

/// The nodes that values are followed through: the blocks, and one more for each table, which all
/// jumps through the table lead to and which leads to its targets. So a loop of an interpreter with
/// hundreds of jumps through a table of hundreds of entries has a number of edges that is their
/// sum, not their product.
struct Nodes {
    next: Vec<Vec<(usize, EdgeKind)>>,
    /// Number of edges to each node.
    into: Vec<u32>,
}

impl Nodes {
    fn of(code: &Code<'_>, raws: &[Raw], jumps: &Jumps) -> Self {
        let number = |goal: Goal| match goal {
            Goal::Place(place) => raws.binary_search_by_key(&place, |raw| raw.place).ok(),
            _ => None,
        };
        let mut next: Vec<Vec<(usize, EdgeKind)>> = Vec::with_capacity(raws.len());
        let mut tables = Vec::new();
        let mut known: BTreeMap<*const (), usize> = BTreeMap::new();
        for raw in raws {
            let Some(targets) =
                jumps.resolved.get(&raw.last).filter(|_| matches!(raw.flow, Flow::Indirect { .. }))
            else {
                let ways = raw.ways(code, jumps);
                next.push(
                    ways.iter().filter_map(|way| Some((number(way.goal)?, way.kind))).collect(),
                );
                continue;
            };
            let node = *known.entry(Rc::as_ptr(targets).cast()).or_insert_with(|| {
                tables.push(
                    targets
                        .0
                        .iter()
                        .filter_map(|&(goal, _)| Some((number(goal)?, EdgeKind::Case)))
                        .collect(),
                );
                raws.len() + tables.len() - 1
            });
            let seen = jumps.observed.get(&raw.last).map_or(&[][..], Vec::as_slice);
            let seen = seen.iter().filter_map(|&goal| Some((number(goal)?, EdgeKind::Observed)));
            next.push(seen.chain([(node, EdgeKind::Case)]).collect());
        }
        next.append(&mut tables);
        let mut into = vec![0; next.len()];
        for &(to, _) in next.iter().flatten() {
            into.get_mut(to).into_iter().for_each(|into| *into += 1);
        }
        Self { next, into }
    }

    fn next(&self, node: usize) -> &[(usize, EdgeKind)] {
        self.next.get(node).map_or(&[], Vec::as_slice)
    }
}

/// States at the start of nodes.
struct States {
    states: Vec<Option<(State, u32)>>,
    pending: BTreeSet<usize>,
}

impl States {
    /// Joins `state` into that of a node; `alone`: no other edge leads to the node.
    fn arrive(&mut self, node: usize, alone: bool, state: &State) {
        let Some(at) = self.states.get_mut(node) else { return };
        let Some((known, visits)) = at else {
            *at = Some((state.clone(), 0));
            self.pending.insert(node);
            return;
        };
        let changed = *visits < VISITS_MAX
            && if alone {
                let changed = known != state;
                known.clone_from(state);
                changed
            } else {
                known.join(state, node as u64)
            };
        if changed {
            *visits += 1;
            if *visits > VISITS_WITH_BOUNDS {
                known.forget_bounds();
            }
            self.pending.insert(node);
        }
    }
}

/// Follows values from the `roots`, each with whether it is the procedure's entry, along the known
/// edges. Returns the values that decide each indirect jump that is reached, by the jump's place.
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
    let mut nodes = Nodes::of(code, raws, jumps);
    let mut all = States { states: vec![None; nodes.next.len()], pending: BTreeSet::new() };
    let stack = tracker.stack();
    for &(place, entry) in roots {
        if let Ok(number) = raws.binary_search_by_key(&place, |raw| raw.place) {
            nodes.into.get_mut(number).into_iter().for_each(|into| *into += 1);
            all.arrive(
                number,
                false,
                &State::at_entry(place as u64, tracker.registers(), entry.then_some(stack)),
            );
        }
    }
    while let Some(node) = all.pending.pop_first() {
        let Some(Some((state, _))) = all.states.get(node) else { continue };
        let mut state = state.clone();
        let mut decision = Decision::None;
        if let Some(raw) = raws.get(node) {
            decision = execute(code, raw, &mut state, tracker, memory);
            if matches!(raw.flow, Flow::Indirect { .. }) {
                let targets =
                    if let Decision::To(value) = decision { vec![value] } else { Vec::new() };
                let stack = if let Value::Stack(at) = state.get(stack) { Some(at) } else { None };
                reached.insert(raw.last, Reached { targets, stack });
            }
        }
        for &(next, kind) in nodes.next(node) {
            let learnt = learnt(&state, decision, kind);
            all.arrive(next, nodes.into.get(next) == Some(&1), learnt.as_ref().unwrap_or(&state));
        }
    }
    let mixed = |(place, reached): (&usize, &Reached)| {
        reached.is_mixed() && !jumps.resolved.contains_key(place)
    };
    if reached.iter().any(mixed) {
        split(code, raws, &nodes, &all, &mut reached, tracker, memory);
    }
    reached
}

/// The state after a conditional jump that went this way, if that is more than the state before.
fn learnt(state: &State, decision: Decision, kind: EdgeKind) -> Option<State> {
    let order = match (decision, kind) {
        (Decision::By(taken, _), EdgeKind::Taken) => taken,
        (Decision::By(_, not), EdgeKind::NotTaken) => not,
        _ => return None,
    };
    let mut state = state.clone();
    state.learn(order);
    Some(state)
}

/// Examines jumps before which edges with different targets come together: each edge by itself.
fn split(
    code: &Code<'_>,
    raws: &[Raw],
    nodes: &Nodes,
    all: &States,
    reached: &mut BTreeMap<usize, Reached>,
    tracker: &mut Tracker,
    memory: &mut impl ReadOnly,
) {
    let mut found: BTreeMap<usize, Vec<Value>> = BTreeMap::new();
    for (node, state) in all.states.iter().enumerate() {
        for &(to, kind) in nodes.next(node) {
            let (Some((state, _)), Some(next)) = (state, raws.get(to)) else { continue };
            if !reached.get(&next.last).is_some_and(Reached::is_mixed) {
                continue;
            }
            let mut state = state.clone();
            let decision =
                raws.get(node).map(|raw| execute(code, raw, &mut state, tracker, memory));
            let mut state =
                decision.and_then(|decision| learnt(&state, decision, kind)).unwrap_or(state);
            if let Decision::To(value) = execute(code, next, &mut state, tracker, memory) {
                let values = found.entry(next.last).or_default();
                if values.len() < WAYS_MAX && !values.contains(&value) {
                    values.push(value);
                }
            }
        }
    }
    let is_known = |value: &Value| matches!(value, Value::Const(_) | Value::Entry(_));
    for (place, values) in found {
        let known = values.len() < WAYS_MAX && values.iter().all(is_known);
        if let Some(reached) = reached.get_mut(&place).filter(|_| known) {
            reached.targets = values;
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

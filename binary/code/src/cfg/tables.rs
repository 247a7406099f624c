//! Resolves indirect jumps by reading their tables.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use image::Vaddr;

use super::blocks::{Goal, Jumps, Targets};
use super::discover::Code;
use super::follow::Reached;
use super::{EDGES_MAX, Finding, FindingKind, Knowledge, ReadOnly, TABLE_ENTRIES_MAX};
use crate::values::{Entry, Value};

/// Most successive entries of an unbounded table that may lead out of the procedure. Longer runs
/// are other data: a larger number takes them for targets, a smaller one cuts tables with many tail
/// calls.
const OUTSIDE_MAX: usize = 8;

/// Reads tables.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// Tables that were read, by their entry of index 0.
    known: BTreeMap<Entry, Option<Rc<Targets>>>,
    /// Number of edges so far.
    edges: usize,
    pub(super) findings: Vec<Finding>,
}

impl Reader {
    /// Resolves the jumps that were `reached`. `named` has the addresses of data that the code
    /// names, where an unbounded table ends. Returns whether a further jump was resolved.
    pub(super) fn resolve(
        &mut self,
        code: &mut Code<'_>,
        reached: &BTreeMap<usize, Reached>,
        jumps: &mut Jumps,
        knowledge: &Knowledge<'_>,
        named: &BTreeSet<u64>,
        memory: &mut impl ReadOnly,
    ) -> bool {
        let mut changed = false;
        if reached.values().any(Reached::has_unbounded_table) {
            code.walk_in_row();
        }
        let tables: BTreeSet<u64> = reached.values().flat_map(Reached::tables).collect();
        for (&place, reached) in reached {
            if jumps.resolved.contains_key(&place) {
                continue;
            }
            let seen = jumps.observed.contains_key(&place);
            let targets = self.targets(code, place, reached, (&tables, named), memory);
            let Some(targets) = targets.or_else(|| leaves(code, place, reached, seen, knowledge))
            else {
                continue;
            };
            self.edges += targets.0.len();
            if self.edges > EDGES_MAX {
                self.findings
                    .push(Finding { kind: FindingKind::TooLarge, address: code.address(place) });
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

    /// The targets of a jump; None unless all of them are known.
    fn targets(
        &mut self,
        code: &Code<'_>,
        place: usize,
        reached: &Reached,
        ends: (&BTreeSet<u64>, &BTreeSet<u64>),
        memory: &mut impl ReadOnly,
    ) -> Option<Rc<Targets>> {
        let one = |goal| Some(Rc::new(Targets(vec![(goal, 1)])));
        let mut all: Option<Rc<Targets>> = None;
        for target in &reached.targets {
            let these = match target {
                Value::Const(address) => one(code
                    .place(Vaddr(*address))
                    .map_or(Goal::Outside(Vaddr(*address)), Goal::Place)),
                Value::Entry(entry) => {
                    let key = entry.of_any_index();
                    match self.known.get(&key) {
                        Some(known) => known.clone(),
                        None => {
                            let read = self.read(code, place, entry, ends, memory).map(Rc::new);
                            self.known.insert(key, read.clone());
                            read
                        }
                    }
                }
                _ => None,
            }?;
            all = Some(match all {
                None => these,
                Some(all) => Rc::new(all.and(&these)),
            });
        }
        all
    }

    /// The targets in a table; None if it is not a table. An unbounded table ends before the next
    /// table, before the next address that the code names, and before the first entry that is not
    /// the start of an instruction.
    fn read(
        &mut self,
        code: &Code<'_>,
        place: usize,
        entry: &Entry,
        (tables, named): (&BTreeSet<u64>, &BTreeSet<u64>),
        memory: &mut impl ReadOnly,
    ) -> Option<Targets> {
        let address = code.address(place);
        let bounded = entry.compared && entry.last.is_some_and(|last| last < TABLE_ENTRIES_MAX);
        let count = entry
            .last
            .map_or(TABLE_ENTRIES_MAX, |last| last.saturating_add(1).min(TABLE_ENTRIES_MAX));
        let mut goals = Vec::new();
        let (mut odd, mut all) = (false, true);
        // An unbounded table ends at its last entry that leads into the procedure.
        let mut certain = 0;
        for index in 0..count {
            let at = entry.table.wrapping_add(index * u64::from(entry.stride));
            let other = !bounded && index > 0 && (tables.contains(&at) || named.contains(&at));
            let goal = memory.constant(Vaddr(at), entry.width).filter(|_| !other).map(|word| {
                let target = Vaddr(entry.target(word));
                code.place(target).map_or(Goal::Outside(target), Goal::Place)
            });
            let fits = match goal {
                Some(Goal::Place(target)) => {
                    code.may_begin(target) && (bounded || code.is_in_row(target))
                }
                // Words of 8 bytes are addresses; shorter words may be any data.
                Some(Goal::Outside(target)) => {
                    let near = entry.width == 8 && goals.len() < certain + OUTSIDE_MAX;
                    bounded || near && memory.constant(target, 1).is_some()
                }
                _ => false,
            };
            match goal {
                Some(goal) if fits => goals.push(goal),
                _ if bounded => odd = true,
                _ => {
                    all = false;
                    break;
                }
            }
            if matches!(goal, Some(Goal::Place(_))) {
                certain = goals.len();
            }
        }
        let whole = bounded || all && entry.last.is_some();
        if !whole {
            goals.truncate(certain);
        }
        if !goals.iter().any(|goal| matches!(goal, Goal::Place(target) if *target != 0)) {
            return None;
        }
        if odd {
            self.findings.push(Finding { kind: FindingKind::OddEntry, address });
        }
        if !whole {
            self.findings.push(Finding { kind: FindingKind::UnboundedTable, address });
        }
        Some(Targets::of(goals))
    }
}

/// The target of a jump that leaves the procedure, as far as is known.
fn leaves(
    code: &Code<'_>,
    place: usize,
    reached: &Reached,
    seen: bool,
    knowledge: &Knowledge<'_>,
) -> Option<Rc<Targets>> {
    let goal = match code.through(place) {
        // Through the global offset table, to another image.
        Some(word) if knowledge.no_return.is_some_and(|all| all.contains(&Vaddr(word))) => {
            Goal::Nowhere
        }
        Some(_) if !seen => Goal::Elsewhere,
        // The frame is gone: the jump is a call through a pointer in the place of a return.
        _ if reached.stack == Some(0) && !seen => Goal::Elsewhere,
        _ => return None,
    };
    Some(Rc::new(Targets(vec![(goal, 1)])))
}

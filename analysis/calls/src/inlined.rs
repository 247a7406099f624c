//! Functions that are inlined into a procedure: its samples say how its own time is divided among
//! them, and its stacks who called it meanwhile.
//!
//! A procedure's own time is a sum over spots: the places where the same functions are inlined. The
//! stacks of a spot get weights that add up to the spot's part of the procedure's samples
//! (post-stratification: Cochran, "Sampling Techniques", 1977, section 5A.9), so that all reports
//! agree on a function's own time. The procedure's sum stays.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use stats::tally::Tally;

use crate::contexts::{Contexts, Entry, NodeId, SubjectId};
use crate::lent::{end_to_end, outside};

/// The samples of a spot: the procedure, then the functions inlined there, the outermost first.
pub type Spot<'a> = (&'a [SubjectId], Tally);

/// Least weight of a procedure's stacks, to which those of a few occurrences are scaled up: weights
/// are whole numbers.
const WEIGHT_MIN: f64 = (1_u64 << 32) as f64;

/// Sums over the stacks of a spot.
#[derive(Default)]
struct OfSpot {
    weight: f64,
    time: f64,
}

/// Changes the weights of stacks, and adds stacks for the spots that have none. `unseen` stands
/// between a procedure without a stack and the callers lent to it.
pub(super) fn fit(contexts: &mut Contexts, spots: &[Spot<'_>], unseen: SubjectId) {
    let mut of_procedure: BTreeMap<SubjectId, Vec<Spot<'_>>> = BTreeMap::new();
    for (path, samples) in spots.iter().filter(|(_, samples)| samples.occurrences > 0.0) {
        let procedure = path.first().copied().unwrap_or(SubjectId::MAX);
        of_procedure.entry(procedure).or_default().push((path, *samples));
    }
    let mut with_inlined: BTreeSet<SubjectId> = BTreeSet::new();
    for (procedure, spots) in &of_procedure {
        if spots.iter().any(|(path, _)| path.len() > 1) {
            with_inlined.insert(*procedure);
        }
    }
    let mut stacks: BTreeMap<SubjectId, Vec<usize>> = BTreeMap::new();
    for (at, entry) in contexts.entries().iter().enumerate() {
        let procedure = contexts.leaf(entry);
        stacks.entry(procedure).or_default().push(at);
        if contexts.procedure(entry.node) != entry.node {
            with_inlined.insert(procedure);
        }
    }
    for procedure in with_inlined {
        let stacks = stacks.remove(&procedure).unwrap_or_default();
        if let Some(spots) = of_procedure.get(&procedure) {
            fit_procedure(contexts, spots, &stacks, unseen);
        }
    }
    contexts.forget_weightless();
}

/// The same for the stacks of one procedure, by their indices.
fn fit_procedure(contexts: &mut Contexts, spots: &[Spot<'_>], stacks: &[usize], unseen: SubjectId) {
    let of_stacks: Vec<Entry> =
        stacks.iter().filter_map(|at| contexts.entries().get(*at)).copied().collect();
    let paths: Vec<Vec<SubjectId>> =
        of_stacks.iter().map(|entry| path_of(contexts, entry.node)).collect();
    let mut sums: HashMap<&[SubjectId], OfSpot> = HashMap::new();
    let (mut weight, mut time) = (0.0, 0.0);
    for (path, entry) in paths.iter().zip(&of_stacks) {
        sums.entry(path).or_default().weight += entry.value.weight as f64;
        weight += entry.value.weight as f64;
    }
    let mut without = Vec::new();
    for (path, samples) in spots {
        time += samples.occurrences;
        match sums.get_mut(path) {
            Some(of) if of.weight > 0.0 => of.time += samples.occurrences,
            _ => without.push((*path, samples.occurrences)),
        }
    }
    let seen: f64 = sums.values().map(|of| of.time).sum();
    if weight <= 0.0 || time <= 0.0 {
        return;
    }
    let scale = (WEIGHT_MIN / weight).max(1.0);
    for (at, path) in stacks.iter().zip(&paths) {
        let Some(of) = sums.get(path.as_slice()).filter(|of| of.weight > 0.0) else { continue };
        let part = of.time / of.weight;
        if let Some(Entry { value, .. }) = contexts.entries_mut().get_mut(*at) {
            value.weight = (value.weight as f64 * part * weight / time * scale).round() as u64;
            // As unsure as the stacks of this spot are.
            let factor = part * weight / seen.max(f64::MIN_POSITIVE) * scale;
            value.squares = (value.squares as f64 * factor * factor).round() as u64;
        }
    }
    // A spot without a stack has the callers of the procedure's stacks.
    let times: Vec<f64> = without.iter().map(|(_, samples)| samples * weight / time).collect();
    let all: f64 = times.iter().sum();
    let parts = of_stacks.iter().map(|entry| all * entry.value.weight as f64 / weight);
    let parts: Vec<f64> = parts.collect();
    for (spot, stack, weight) in end_to_end(&times, &parts) {
        if let Some(((path, _), lender)) = without.get(spot).zip(of_stacks.get(stack)) {
            add(contexts, lender, path, (weight, scale), unseen);
        }
    }
}

/// Adds a stack of the path below the callers of another, with a weight: no more is known of its
/// callers than the part of the other stack that it takes.
fn add(
    contexts: &mut Contexts,
    lender: &Entry,
    path: &[SubjectId],
    (weight, scale): (f64, f64),
    unseen: SubjectId,
) {
    let mut node = contexts.parent(contexts.procedure(lender.node));
    if let Some(above) = node.filter(|above| contexts.subject(*above) == Some(unseen)) {
        let caller = outside(contexts, contexts.parent(above), path);
        node = Some(contexts.node(caller, unseen));
    }
    for subject in path {
        node = Some(contexts.node(node, *subject));
    }
    let Some(node) = node else { return };
    let part = weight / (lender.value.weight as f64).max(1.0);
    let value = model::Value {
        stacks: 0,
        weight: (weight * scale).round().max(1.0) as u64,
        squares: (lender.value.squares as f64 * part * scale * scale).round() as u64,
    };
    contexts.add(Entry { node, value, ..*lender });
}

/// The path of a node from its procedure on.
fn path_of(contexts: &Contexts, node: NodeId) -> Vec<SubjectId> {
    let procedure = contexts.procedure(node);
    let mut path = Vec::new();
    for (at, subject) in contexts.path(node) {
        path.push(subject);
        if at == procedure {
            break;
        }
    }
    path.reverse();
    path
}

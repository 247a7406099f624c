//! The procedures of an image whose code suffices to explain some of them as the whole image would.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use image::Vaddr;

use super::Part;
use super::crossings::{Crossings, Image, Set};
use crate::isa::Isa;

/// The procedures whose code decides what [`Survey::of`](super::Survey::of) and
/// [`Survey::around`](super::Survey::around) say of the procedures with the numbers `of`, and their
/// graphs: these procedures, their parts, one caller of each procedure that could be such a part,
/// the procedures whose instructions say whether a call returns, and stubs. If the code of all
/// others is zero, both functions say the same of these procedures. Arguments as in
/// [`Survey::of`](super::Survey::of); takes as long.
pub fn needed(
    isa: Isa,
    text: &[Part<'_>],
    procedures: &[Range<u64>],
    known: impl IntoIterator<Item = Vaddr>,
    of: &BTreeSet<usize>,
) -> BTreeSet<usize> {
    let mut image = Image::new(isa, text, procedures, known);
    let crossings = image.crossings();
    let joined = joined(&image, &crossings, of);
    // A procedure that is called is no part of another. For each procedure that one of these jumps
    // to, one caller proves that it is called.
    let begun = crossings
        .begun
        .iter()
        .filter(|(_, from, _)| joined.contains(from))
        .map(|(begun, ..)| *begun);
    let starts = joined.iter().copied().chain(begun).filter_map(|number| procedures.get(number));
    let callers: Vec<usize> =
        starts.filter_map(|procedure| crossings.called.get(&procedure.start).copied()).collect();
    let ranges = joined.iter().filter_map(|number| procedures.get(*number));
    let asked: Set<u64> = ranges.flat_map(|procedure| image.may_call(procedure)).collect();
    let walked = image.find_no_return(asked);
    let walked: BTreeSet<usize> =
        walked.into_iter().filter_map(|entry| image.number_of(entry)).collect();
    let stubs = (0..procedures.len()).filter(|number| {
        procedures.get(*number).is_some_and(|procedure| image.is_stub(procedure.start))
    });
    of.iter().copied().chain(stubs).chain(joined).chain(callers).chain(walked).collect()
}

/// The procedures `of`, and all that can be parts of them, or of which they can be parts, as
/// `Survey` joins procedures.
fn joined(image: &Image<'_>, crossings: &Crossings, of: &BTreeSet<usize>) -> BTreeSet<usize> {
    let mut beside: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let mut join = |a: usize, b: usize| {
        beside.entry(a).or_default().push(b);
        beside.entry(b).or_default().push(a);
    };
    crossings.joined.keys().for_each(|&(a, b)| join(a, b));
    let is_called = |number: usize| {
        image
            .procedures
            .get(number)
            .is_some_and(|procedure| crossings.called.contains_key(&procedure.start))
    };
    let begun = || crossings.begun.iter().filter(|(begun, ..)| !is_called(*begun));
    let conditionally: BTreeSet<usize> =
        begun().filter(|(.., is)| *is).map(|(begun, ..)| *begun).collect();
    begun()
        .filter(|(begun, ..)| conditionally.contains(begun))
        .for_each(|&(begun, from, _)| join(begun, from));
    let mut joined = BTreeSet::new();
    let mut pending: Vec<usize> = of.iter().copied().collect();
    while let Some(number) = pending.pop() {
        if joined.insert(number) {
            pending.extend(beside.get(&number).into_iter().flatten());
        }
    }
    joined
}

//! The edges from and to those procedures that decide which parts one procedure has, found without
//! looking at all other procedures of the image.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::crossings::{Crossings, Image};
use crate::isa::leads::{BEFORE_MAX, Lead};

/// Times that procedures joined with those already found are looked for. Compilers' code needs two
/// or three; a larger number would let hand-written code that joins everything cost as much as the
/// whole image.
const ROUNDS_MAX: usize = 8;
/// Bytes between two ranges below which one search covers both: decoding a smaller gap costs less
/// than another search.
const APART: u64 = 1 << 16;
/// Most ranges that are searched; with more, one search covers them all.
const RANGES_MAX: usize = 16;

/// Some procedures of an image, and the edges from and to them.
struct Around<'a> {
    image: &'a Image<'a>,
    crossings: Crossings,
    /// Procedures whose instructions were looked at.
    read: BTreeSet<usize>,
    /// Procedures for which the jumps to them, as far as they may matter, and whether they are
    /// called, are known.
    known: BTreeSet<usize>,
}

/// The edges from and to the procedure with this number, and from and to all procedures that can be
/// a part of it, or of which it can be a part. None where these are joined with many others.
pub(super) fn crossings(image: &Image<'_>, number: usize) -> Option<Crossings> {
    let mut this = Around {
        image,
        crossings: Crossings::default(),
        read: BTreeSet::new(),
        known: BTreeSet::new(),
    };
    for _ in 0..ROUNDS_MAX {
        let joined = this.joined(number);
        let new: BTreeSet<usize> = joined.difference(&this.known).copied().collect();
        if new.is_empty() {
            let mut crossings = this.crossings;
            crossings.joined.retain(|(a, b), _| joined.contains(a) && joined.contains(b));
            crossings.begun.retain(|(begun, ..)| joined.contains(begun));
            return Some(crossings);
        }
        this.look(&new);
    }
    None
}

impl Around<'_> {
    fn is_called(&self, number: usize) -> bool {
        self.image
            .procedures
            .get(number)
            .is_some_and(|procedure| self.crossings.called.contains_key(&procedure.start))
    }

    /// The procedures that the edges found so far join, or may join, with one, as `Survey` joins
    /// them. Procedures of which less is known are among them.
    fn joined(&self, number: usize) -> BTreeSet<usize> {
        let mut beside: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let mut join = |a: usize, b: usize| {
            beside.entry(a).or_default().push(b);
            beside.entry(b).or_default().push(a);
        };
        self.crossings.joined.keys().for_each(|&(a, b)| join(a, b));
        let begun = || self.crossings.begun.iter().filter(|(begun, ..)| !self.is_called(*begun));
        let conditionally: BTreeSet<usize> =
            begun().filter(|(.., is)| *is).map(|(begun, ..)| *begun).collect();
        begun()
            .filter(|(begun, ..)| conditionally.contains(begun))
            .for_each(|&(begun, from, _)| join(begun, from));
        let mut joined = BTreeSet::new();
        let mut pending = vec![number];
        while let Some(number) = pending.pop() {
            if joined.insert(number) && self.known.contains(&number) {
                pending.extend(beside.get(&number).into_iter().flatten());
            }
        }
        joined
    }

    fn read(&mut self, number: usize) {
        if self.read.insert(number) {
            self.image.cross_from(number, &mut self.crossings);
        }
    }

    /// Decodes the procedure that has the address in an instruction.
    fn read_at(&mut self, at: u64) {
        let numbers = [at.saturating_sub(BEFORE_MAX), at].map(|at| self.image.number_of(at));
        numbers.into_iter().flatten().for_each(|number| self.read(number));
    }

    /// Finds the edges from and to these procedures.
    fn look(&mut self, new: &BTreeSet<usize>) {
        new.iter().for_each(|number| self.read(*number));
        let (mut calls, mut jumps) = (Vec::new(), Vec::new());
        let mut found = |Lead { at, target, calls: is_call }: Lead| {
            let Some(number) = self.image.number_of(target).filter(|number| new.contains(number))
            else {
                return;
            };
            let to_begin = self
                .image
                .procedures
                .get(number)
                .is_some_and(|procedure| procedure.start == target);
            match is_call {
                true if to_begin => calls.push((at, number)),
                true => {}
                false => jumps.push((at, to_begin.then_some(number))),
            }
        };
        let ranges = new.iter().filter_map(|number| self.image.procedures.get(*number));
        for range in together(ranges) {
            for part in self.image.text {
                self.image.isa.leads(part.bytes, part.begin.0, &range, &mut found);
            }
        }
        for (at, number) in calls {
            // One call suffices to know that the procedure is called.
            if !self.is_called(number) {
                self.read_at(at);
            }
        }
        for (at, begun) in jumps {
            // A jump to the start of a procedure that is called joins nothing.
            if !begun.is_some_and(|number| self.is_called(number)) {
                self.read_at(at);
            }
        }
        self.known.extend(new);
    }
}

/// Few ranges that cover all of these, which are in order.
fn together<'a>(ranges: impl Iterator<Item = &'a Range<u64>>) -> Vec<Range<u64>> {
    let mut together: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match together.last_mut() {
            Some(last) if range.start.saturating_sub(last.end) < APART => {
                last.end = last.end.max(range.end)
            }
            _ => together.push(range.clone()),
        }
    }
    match together.as_slice() {
        [first, .., last] if together.len() > RANGES_MAX => {
            std::iter::once(first.start..last.end).collect()
        }
        _ => together,
    }
}

//! The procedure that a name or an address on the command line refers to.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use image::{ImageKind, ImageOffset, Procedure, without_suffix};

use crate::inlined;
use crate::procedures::Known;
use crate::shorten::is_shown_as;
use query::error::AnalysisError;
use query::load::{ImageSamples, sum};
use query::problem::INLINED;
use stats::tally::Weighed;

/// An image that a PROCEDURE argument may refer to.
#[derive(Debug)]
pub struct Candidate<'a> {
    /// Its samples.
    pub image: &'a ImageSamples,
    /// Its procedures.
    pub known: Known,
    /// Directories of separate debug files.
    pub debug_roots: Vec<PathBuf>,
}

/// Quality of a name's match, the best first.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// The text is the name.
    Whole,
    /// The text is the name without its namespaces and parameters: `fold` of `<Map<I> as
    /// Iterator>::fold(int)`.
    Last,
    /// The text is a word of the name.
    Word,
    /// The text is a part of the name.
    Part,
}

impl Fit {
    const fn is_partial(self) -> bool {
        matches!(self, Self::Word | Self::Part)
    }
}

/// Quality of a procedure's match: whether it has samples, and the match of its name.
type Fits<'a> = dyn Fn(&ImageSamples, &Procedure) -> Option<Fit> + 'a;

/// A procedure whose name matches.
struct Found<'a> {
    at: usize,
    procedure: &'a Procedure,
    fit: Fit,
    samples: u64,
}

/// The procedure that an argument means.
#[derive(Clone, Copy, Debug)]
pub struct Meant<'a> {
    /// Index of its candidate.
    pub at: usize,
    /// The procedure.
    pub procedure: &'a Procedure,
    /// Whether the argument is only a part of its name.
    pub is_partial: bool,
}

/// Finds a procedure by its address, its mangled name, an alias, its demangled name, the form in
/// which reports show that name (`sort<…>(…)`), or a part of it. Procedures with samples come
/// before others.
pub fn find<'a>(candidates: &'a [Candidate<'_>], asked: &str) -> Result<Meant<'a>, AnalysisError> {
    let mut found = match address(asked) {
        Some(address) => by_address(candidates, address),
        None => by_name(candidates, asked),
    };
    let best = found.iter().map(|found| (found.samples == 0, found.fit)).min();
    found.retain(|found| best == Some((found.samples == 0, found.fit)));
    // A just-in-time compiler compiles a procedure several times: the one with most samples is
    // meant.
    let generated = |found: &Found<'_>| {
        candidates.get(found.at).is_some_and(|c| c.image.record.kind == ImageKind::Jit)
    };
    let one_name = found
        .windows(2)
        .all(|pair| matches!(pair, [a, b] if a.procedure.raw_name() == b.procedure.raw_name()));
    if one_name && found.iter().all(generated) {
        found.sort_by_key(|found| std::cmp::Reverse(found.samples));
        found.truncate(1);
    }
    match found.as_slice() {
        [one] => {
            let is_partial = one.fit.is_partial();
            Ok(Meant { at: one.at, procedure: one.procedure, is_partial })
        }
        [] => Err(AnalysisError::NoProcedure {
            asked: asked.to_owned(),
            image: candidates
                .first()
                .map_or_else(String::new, |candidate| candidate.image.record.name.clone()),
            why: String::new(),
        }),
        several => {
            let known = several.iter().map(|found| shown(candidates, found)).collect();
            let next = "name one in full, or by its address";
            Err(AnalysisError::AmbiguousProcedure { asked: asked.to_owned(), known, next })
        }
    }
}

/// A procedure into which functions are inlined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlinedInto {
    /// Its image.
    pub image: String,
    /// Its name.
    pub procedure: String,
    /// Samples of the first event where the functions are inlined.
    pub samples: u64,
    /// Samples of the first event in all of the procedure.
    pub all: u64,
}

/// The procedures into which the functions of this name are inlined, as far as there are samples
/// of them: those with the most first.
pub fn inlined_into(candidates: &[Candidate<'_>], asked: &str) -> Vec<InlinedInto> {
    let asked = asked.strip_suffix(INLINED).unwrap_or(asked);
    let mut found = Vec::new();
    for Candidate { image, known, debug_roots } in candidates {
        let offsets = image.offsets();
        let without_lines = (offsets.as_slice(), false);
        let inside = inlined::inside((image, known), without_lines, debug_roots, &mut Vec::new());
        let mut is_asked: HashMap<Arc<str>, bool> = HashMap::new();
        let mut of_procedure: BTreeMap<ImageOffset, u64> = BTreeMap::new();
        for (offset, inside) in offsets.iter().zip(inside) {
            let is_here = inside.inlined.into_iter().any(|name| {
                let fits = |name: &Arc<str>| fit(name, asked).is_some_and(|fit| !fit.is_partial());
                *is_asked.entry(name).or_insert_with_key(fits)
            });
            if let Some(procedure) = known.procedures.find(*offset).filter(|_| is_here) {
                let sum = of_procedure.entry(procedure.start).or_default();
                *sum = sum.saturating_add(first_samples(image, *offset..ImageOffset(offset.0 + 1)));
            }
        }
        found.extend(of_procedure.into_iter().filter_map(|(start, samples)| {
            let procedure = known.procedures.find(start)?;
            let all = first_samples(image, procedure.start..procedure.end);
            let (image, procedure) = (image.record.name.clone(), procedure.name().to_owned());
            Some(InlinedInto { image, procedure, samples, all })
        }));
    }
    found.sort_by_key(|into| std::cmp::Reverse(into.samples));
    found
}

/// Samples of the first event at the offsets of a range, as a count.
fn first_samples(image: &ImageSamples, range: Range<ImageOffset>) -> u64 {
    let counts = image.profiles.first().map(Weighed::equal);
    counts.map_or(0, |counts| sum(counts.within(range).map(|(_, samples)| samples)))
}

/// A number with `0x` before it.
pub fn address(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// `parse [0x1040 of app]`.
fn shown(candidates: &[Candidate<'_>], found: &Found<'_>) -> String {
    let candidate = candidates.get(found.at);
    let address = candidate.map_or(found.procedure.start.0, |candidate| {
        candidate.known.address(found.procedure.start)
    });
    let of = match candidates {
        [_] | [] => String::new(),
        _ => candidate
            .map(|c| format!(" of {} {}", c.image.record.name, c.image.record.id))
            .unwrap_or_default(),
    };
    format!("{} [{address:#x}{of}]", found.procedure.name())
}

fn by_address<'a>(candidates: &'a [Candidate<'_>], address: u64) -> Vec<Found<'a>> {
    let procedure = |(at, candidate): (usize, &'a Candidate<'_>)| {
        let procedure = candidate.known.procedures.find(candidate.known.offset(address)?)?;
        Some(Found { at, procedure, fit: Fit::Whole, samples: samples(candidate.image, procedure) })
    };
    candidates.iter().enumerate().filter_map(procedure).collect()
}

fn by_name<'a>(candidates: &'a [Candidate<'_>], asked: &str) -> Vec<Found<'a>> {
    // Mangled names, and those that need no demangling, cost nothing to compare; to demangle a
    // hundred thousand takes a while.
    let raw = |image: &ImageSamples, procedure: &Procedure| {
        let name = procedure.raw_name();
        // Reports leave out what a compiler appended.
        let shown = || without_suffix(name) == asked && is_sampled(image, procedure);
        if name == asked { Some(Fit::Whole) } else { shown().then_some(Fit::Last) }
    };
    let sampled = |image: &ImageSamples, procedure: &Procedure| {
        if is_sampled(image, procedure) { fit(procedure.name(), asked) } else { None }
    };
    let any = |_: &ImageSamples, procedure: &Procedure| fit(procedure.name(), asked);
    let tries: [Option<&Fits<'_>>; 4] = [Some(&raw), None, Some(&sampled), Some(&any)];
    for fits in tries {
        let Some(fits) = fits else {
            let found = by_alias(candidates, asked);
            if found.is_empty() {
                continue;
            }
            return found;
        };
        let mut found = Vec::new();
        for (at, Candidate { image, known, .. }) in candidates.iter().enumerate() {
            for procedure in &known.procedures {
                if let Some(fit) = fits(image, procedure) {
                    found.push(Found { at, procedure, fit, samples: samples(image, procedure) });
                }
            }
        }
        if !found.is_empty() {
            return found;
        }
    }
    Vec::new()
}

/// Procedures that have this name as an alias: a C library has one procedure for `memcpy` and
/// `memmove`.
fn by_alias<'a>(candidates: &'a [Candidate<'_>], asked: &str) -> Vec<Found<'a>> {
    let mut found = Vec::new();
    for (at, Candidate { image, known, debug_roots }) in candidates.iter().enumerate() {
        let places = known
            .binary
            .as_ref()
            .and_then(|binary| binary.symbols(debug_roots, |_, name| name == asked).ok());
        for (place, _) in places.unwrap_or_default() {
            if let Some(procedure) = known.procedures.find(place) {
                found.push(Found {
                    at,
                    procedure,
                    fit: Fit::Whole,
                    samples: samples(image, procedure),
                });
            }
        }
    }
    found.dedup_by_key(|found| (found.at, found.procedure.start));
    found
}

/// Whether there are samples of any event in a procedure.
fn is_sampled(image: &ImageSamples, procedure: &Procedure) -> bool {
    image
        .profiles
        .iter()
        .any(|profile| profile.equal().within(procedure.start..procedure.end).next().is_some())
}

/// Samples of all events in a procedure.
pub fn samples(image: &ImageSamples, procedure: &Procedure) -> u64 {
    let of_profile = |profile: &Weighed| {
        sum(profile.equal().within(procedure.start..procedure.end).map(|(_, samples)| samples))
    };
    sum(image.profiles.iter().map(of_profile))
}

/// The names that a text means best: indices of `names`, and whether the text is only a part of
/// these.
pub fn best<'a>(names: impl IntoIterator<Item = &'a str>, asked: &str) -> (Vec<usize>, bool) {
    let fits = names.into_iter().enumerate().filter_map(|(at, name)| Some((fit(name, asked)?, at)));
    let fits: Vec<(Fit, usize)> = fits.collect();
    let best = fits.iter().map(|(fit, _)| *fit).min();
    let found = fits.into_iter().filter(|(fit, _)| Some(*fit) == best).map(|(_, at)| at);
    (found.collect(), best.is_some_and(Fit::is_partial))
}

fn fit(name: &str, asked: &str) -> Option<Fit> {
    if name == asked {
        return Some(Fit::Whole);
    }
    if asked.is_empty() {
        return None;
    }
    // What is no code has its name in brackets.
    let in_brackets = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    if in_brackets == Some(asked) || is_shown_as(name, asked) {
        return Some(Fit::Last);
    }
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut best = None;
    for (at, _) in name.match_indices(asked) {
        let (before, after) = (name.get(..at)?, name.get(at + asked.len()..)?);
        let begins = !before.ends_with(is_word) || !asked.starts_with(is_word);
        let ends = !after.starts_with(is_word) || !asked.ends_with(is_word);
        let fit = match (begins, ends) {
            (true, true)
                if (after.is_empty() || after.starts_with('(')) && !before.contains('(') =>
            {
                Fit::Last
            }
            (true, true) => Fit::Word,
            _ => Fit::Part,
        };
        best = best.min(Some(fit)).or(Some(fit));
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_names_are_meant() {
        let names = ["remain", "a::main(int)", "main", "b::main(char)"];
        assert_eq!(best(names, "main"), (vec![2], false));
        assert_eq!(best(names[..2].iter().copied(), "main"), (vec![1], false));
        assert_eq!(best(["a::f(int)", "b::f(int)"], "f"), (vec![0, 1], false));
        assert_eq!(best(names, "rem"), (vec![0], true));
        assert_eq!(best(names, "x"), (vec![], false));
    }

    #[test]
    fn names_fit_more_or_less() {
        for (name, asked, expected) in [
            ("main", "main", Some(Fit::Whole)),
            ("_ZN3foo3barEi", "foo::bar(int)", Some(Fit::Whole)),
            ("_ZN3foo3barEi", "bar", Some(Fit::Last)),
            ("_ZN3foo3barEi", "foo::bar", Some(Fit::Last)),
            ("_ZN3foo3barEi", "foo", Some(Fit::Word)),
            ("_ZN3foo3barEi", "ar", Some(Fit::Part)),
            ("_ZN3foo3barEi", "int", Some(Fit::Word)),
            ("remain_in_main", "main", Some(Fit::Part)),
            ("a_main.main", "main", Some(Fit::Last)),
            ("main", "", None),
            ("[futex]", "futex", Some(Fit::Last)),
            ("[futex]", "fut", Some(Fit::Part)),
            ("main", "bar", None),
            ("_ZN3foo3barEi", "foo::bar(…)", Some(Fit::Last)),
            ("_ZN3foo3barEi.cold", "foo::bar(int)", Some(Fit::Last)),
            ("_ZN3foo3barEi", "foo::baz(…)", None),
        ] {
            let procedure = Procedure::new(ImageOffset(0), ImageOffset(1), name);
            assert_eq!(fit(procedure.name(), asked), expected, "{name} {asked}");
        }
    }
}

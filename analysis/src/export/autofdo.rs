//! Sample profiles of LLVM in text (clang's manual, "Sample Profile Text Format"; llvm/ProfileData/SampleProfReader.h), for
//! `clang -fprofile-sample-use=`, `rustc -Zprofile-sample-use=` and `llvm-profdata merge --sample`.
//!
//! ```text
//! function:total:head
//!  line[.discriminator]: samples [callee:samples]...
//!  line[.discriminator]: inlined_function:total
//!   line[.discriminator]: samples
//! ```
//!
//! Lines are counted from the function's own. One event. A line has the samples of the instruction of it that has the most, which is what
//! `create_llvm_prof` and `llvm-profgen` do: a block is executed as often as each of its instructions, whatever their number; totals are of
//! all samples. `head` is the samples of the procedure's first instruction. Of `cycles` all that is time and not how often a line was
//! executed: `instructions`, where it was sampled, comes nearer. Which procedures a line calls, and in which shares, is computed from
//! registers at samples ([`branches`]): the callees' samples are the line's, divided up. Programs only: what the kernel's build would need is its debug
//! information, which is not at hand.

use std::collections::BTreeMap;
use std::io::{self, Write};

use image::Site;

use super::branches::{self, Branch};
use super::{Carried, Image, Place, Resolved};
use crate::report::escape;

/// Why samples are left out that are at no known line.
pub const NO_LINE: &str = "without source line";

/// A place in a function: line from the function's, discriminator.
type Line = (u32, u32);

/// A function, or a call that was inlined.
#[derive(Default)]
struct Function {
    head: u64,
    /// Of its own instructions, without those of calls.
    samples: u64,
    /// Of the instruction with the most.
    lines: BTreeMap<Line, u64>,
    calls: BTreeMap<Line, BTreeMap<String, Function>>,
    /// Called and not inlined.
    callees: BTreeMap<Line, BTreeMap<String, u64>>,
}

/// Writes the samples of an event in all images.
///
/// # Errors
/// Those of `out`.
pub fn write(resolved: &Resolved, event: usize, out: &mut dyn Write) -> io::Result<Carried> {
    let mut functions: BTreeMap<String, Function> = BTreeMap::new();
    let (mut carried, mut kernel, mut no_lines) = (0_u64, 0_u64, 0_u64);
    for image in &resolved.images {
        for place in &image.places {
            let samples = place.samples(event);
            let left_out = if image.is_kernel() { &mut kernel } else { &mut no_lines };
            if add(&mut functions, place, samples, is_first(image.procedure(place), place)) {
                carried = carried.saturating_add(samples);
            } else {
                *left_out = left_out.saturating_add(samples);
            }
        }
    }
    // Samples first: callees have parts of them.
    let mut has_callees = false;
    for image in &resolved.images {
        has_callees |= add_callees(&mut functions, image);
    }
    for comment in resolved.comments().iter().map(String::as_str).chain(has_callees.then_some(branches::FIDELITY)) {
        writeln!(out, "# {}", escape(comment))?;
    }
    let mut by_total: Vec<(u64, &String, &Function)> =
        functions.iter().map(|(name, function)| (function.total(), name, function)).collect();
    by_total.sort_by_key(|(total, name, _)| (std::cmp::Reverse(*total), *name));
    for (total, name, function) in by_total {
        writeln!(out, "{name}:{total}:{}", function.head)?;
        function.write(1, out)?;
    }
    let unknown = resolved.events.get(event).map_or(0, super::Event::unknown);
    let reasons = [("of the kernel", kernel), (NO_LINE, no_lines), ("of unknown code", unknown)];
    let left_out = reasons.into_iter().filter(|(_, samples)| *samples > 0);
    let samples = (0..resolved.events.len()).map(|at| if at == event { carried } else { 0 }).collect();
    Ok(Carried {
        samples,
        left_out: left_out.map(|(reason, samples)| (reason.to_owned(), samples)).collect(),
        notes: has_callees.then(|| branches::FIDELITY.to_owned()).into_iter().collect(),
    })
}

/// Divides the samples of lines with calls among those who were called. False where there are none.
fn add_callees(functions: &mut BTreeMap<String, Function>, image: &Image) -> bool {
    let mut some = false;
    for of_call in image.branches.chunk_by(|a, b| a.from == b.from) {
        let all: u64 = of_call.iter().fold(0, |sum, branch| sum.saturating_add(branch.times));
        for Branch { sites, callee, times, .. } in of_call {
            let Some(callee) = callee.as_ref().filter(|callee| is_name(callee)) else { continue };
            let Some((function, line)) = function_of(functions, sites) else { continue };
            let Some(samples) = function.lines.get(&line) else { continue };
            let part = u64::try_from(u128::from(*samples) * u128::from(*times) / u128::from(all.max(1)));
            let Some(part) = part.ok().filter(|part| *part > 0) else { continue };
            let sum = function.callees.entry(line).or_default().entry(callee.clone()).or_default();
            *sum = sum.saturating_add(part);
            some = true;
        }
    }
    some
}

/// The function that has samples at these sites, if there is one, and the line in it.
fn function_of<'a>(functions: &'a mut BTreeMap<String, Function>, sites: &[Site]) -> Option<(&'a mut Function, Line)> {
    let (last, calls) = sites.split_last()?;
    let mut among = functions;
    for call in calls {
        among = among.get_mut(&call.function)?.calls.get_mut(&(call.line, call.discriminator))?;
    }
    Some((among.get_mut(&last.function)?, (last.line, last.discriminator)))
}

fn is_first(procedure: Option<&super::Procedure>, place: &Place) -> bool {
    procedure.is_some_and(|procedure| procedure.address == place.address)
}

/// Adds a place's samples. False where its lines are not known, or a name would break the format.
fn add(functions: &mut BTreeMap<String, Function>, place: &Place, samples: u64, first: bool) -> bool {
    let (Some((last, calls)), true) = (place.sites.split_last(), place.sites.iter().all(is_writable)) else {
        return false;
    };
    if samples == 0 {
        return true;
    }
    let mut among = functions;
    for call in calls {
        let function = among.entry(call.function.clone()).or_default();
        among = function.calls.entry((call.line, call.discriminator)).or_default();
    }
    let function = among.entry(last.function.clone()).or_default();
    function.samples = function.samples.saturating_add(samples);
    let most = function.lines.entry((last.line, last.discriminator)).or_default();
    *most = (*most).max(samples.saturating_mul(u64::from(last.copies)));
    if first && calls.is_empty() {
        function.head = function.head.saturating_add(samples);
    }
    true
}

/// A line that begins with a blank, a digit behind a colon, or a hash is something else to the reader.
fn is_writable(site: &Site) -> bool {
    is_name(&site.function)
}

fn is_name(name: &str) -> bool {
    let plain = |c: char| !c.is_whitespace() && !c.is_control();
    name.starts_with(|c: char| !c.is_ascii_digit() && c != '#' && c != '!') && name.chars().all(plain)
}

impl Function {
    fn total(&self) -> u64 {
        let inlined = self.calls.values().flat_map(BTreeMap::values).map(Self::total);
        inlined.fold(self.samples, u64::saturating_add)
    }

    fn write(&self, depth: usize, out: &mut dyn Write) -> io::Result<()> {
        let indent = " ".repeat(depth);
        for (line, samples) in &self.lines {
            write!(out, "{indent}{}: {samples}", shown(*line))?;
            for (callee, samples) in self.callees.get(line).into_iter().flatten() {
                write!(out, " {callee}:{samples}")?;
            }
            writeln!(out)?;
        }
        for (line, calls) in &self.calls {
            for (name, function) in calls {
                writeln!(out, "{indent}{}: {name}:{}", shown(*line), function.total())?;
                function.write(depth + 1, out)?;
            }
        }
        Ok(())
    }
}

fn shown((line, discriminator): Line) -> String {
    if discriminator == 0 { line.to_string() } else { format!("{line}.{discriminator}") }
}

#[cfg(test)]
mod tests {
    use super::super::sample::{resolved, with_lines, written};
    use super::*;

    #[test]
    fn inlined_calls_nest_and_totals_hold_them() {
        let (text, carried) = written(|out| write(&with_lines(), 0, out));
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(lines, ["_ZN2ns1fEi:42:40", " 1: 40", " 2.1: _Z3inlv:2", "  2: 2"]);
        assert_eq!(carried.samples, [42, 0]);
        let left_out = [("of the kernel", 20), ("without source line", 8), ("of unknown code", 5)];
        assert_eq!(carried.left_out, left_out.map(|(reason, samples)| (reason.to_owned(), samples)));
    }

    #[test]
    fn a_line_has_the_samples_of_its_busiest_instruction() {
        let mut resolved = with_lines();
        let places = &mut resolved.images[0].places;
        places[1].sites = places[0].sites.clone();
        let lines = |resolved: &Resolved| {
            let (text, _) = written(|out| write(resolved, 0, out));
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(lines(&resolved), ["_ZN2ns1fEi:42:40", " 1: 40"]);
        // 2 samples of an instruction that does the work of 32.
        resolved.images[0].places[1].sites[0].copies = 32;
        assert_eq!(lines(&resolved), ["_ZN2ns1fEi:42:40", " 1: 64"]);
    }

    #[test]
    fn calls_divide_the_samples_of_their_line() {
        let mut resolved = with_lines();
        let image = &mut resolved.images[0];
        let call = |sites: &[Site], to, callee: &str, times| Branch {
            from: 0x40_1014,
            to,
            falls_through: false,
            run_end: to,
            callee: Some(callee.into()),
            sites: sites.to_vec(),
            times,
        };
        let inlined = image.places[1].sites.clone();
        let own = image.places[0].sites.clone();
        image.branches = vec![call(&own, 1, "_Z1av", 3), call(&own, 2, "_Z1bv", 1), call(&own, 3, "no name", 4)];
        image.branches.push(Branch { from: 0x40_1018, ..call(&inlined, 1, "_Z1av", 9) });
        image.branches.push(Branch { from: 0x40_1020, ..call(&[], 1, "_Z1av", 9) });
        let (text, carried) = written(|out| write(&resolved, 0, out));
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = ["_ZN2ns1fEi:42:40", " 1: 40 _Z1av:15 _Z1bv:5", " 2.1: _Z3inlv:2", "  2: 2 _Z1av:2"];
        assert_eq!(lines, expected);
        assert_eq!(carried.notes.len(), 1);
    }

    #[test]
    fn names_that_would_break_the_format_are_left_out() {
        let mut resolved = with_lines();
        for name in ["a b", "1st", "#x", "", "x\ny", "!x"] {
            resolved.images[0].places[0].sites[0].function = name.into();
            let (text, carried) = written(|out| write(&resolved, 0, out));
            assert!(text.lines().filter(|line| !line.starts_with('#')).count() == 3, "{text}");
            assert_eq!(carried.samples, [2, 0]);
        }
        let (text, carried) = written(|out| write(&self::resolved(), 0, out));
        assert!(text.lines().all(|line| line.starts_with('#')), "{text}");
        assert_eq!(carried.samples, [0, 0]);
    }
}

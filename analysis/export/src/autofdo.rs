//! Sample profiles of LLVM in text (clang's manual, "Sample Profile Text Format";
//! llvm/ProfileData/SampleProfReader.h), for `clang -fprofile-sample-use=`, `rustc
//! -Zprofile-sample-use=` and `llvm-profdata merge --sample`.
//!
//! ```text
//! function:total:head
//!  line[.discriminator]: samples [callee:samples]...
//!  line[.discriminator]: inlined_function:total
//!   line[.discriminator]: samples
//! ```
//!
//! Lines are counted from the function's own. One event. Where it counts time, counts are
//! executions as estimated ([`executed`]): a line has those of the instruction of it that has the
//! most, as of `llvm-profgen`, 0 too where nothing of it was executed; totals are sums of lines;
//! `head` is how often the procedure was entered; which procedures a line calls follows its count.
//! Other events, and code without estimate: a line has the samples of the instruction that has the
//! most, which is what `create_llvm_prof` does, totals are of all samples, and `head` is the
//! samples of the procedure's first instruction. Programs only: what the kernel's build would need
//! is its debug information, which is not at hand.

use std::collections::BTreeMap;
use std::io::{self, Write};

use image::Site;

use super::executed::{self, Executed};
use super::{Carried, Place, Resolved};
use report::escape;

/// The reason why samples are left out that are at no known line.
pub const NO_LINE: &str = "without source line";

/// A place in a function: line from the function's, discriminator.
type Line = (u32, u32);

/// A function, or a call that was inlined.
#[derive(Default)]
struct Function {
    head: u64,
    /// Executions of its own instructions, without those of callees.
    samples: u64,
    /// Its lines' executions, where these are known.
    executed: u64,
    /// Executions of the most executed instruction.
    lines: BTreeMap<Line, u64>,
    calls: BTreeMap<Line, BTreeMap<String, Function>>,
    /// Called and not inlined.
    callees: BTreeMap<Line, BTreeMap<String, u64>>,
}

/// Writes the samples of an event in all images.
pub fn write(resolved: &Resolved, event: usize, out: &mut dyn Write) -> io::Result<Carried> {
    let mut functions: BTreeMap<String, Function> = BTreeMap::new();
    let (mut carried, mut kernel, mut no_lines, mut no_estimate) = (0_u64, 0_u64, 0_u64, 0_u64);
    let executed = || resolved.images.iter().find_map(|image| image.executed.as_ref());
    let fidelity = executed().map(Executed::fidelity);
    // Counts of both kinds are of one size.
    let unit = if executed().is_some_and(|executed| !executed.exact) { executed::UNIT } else { 1 };
    for image in &resolved.images {
        for place in &image.places {
            let samples = place.samples(event);
            let first = is_first(image.procedure(place), place);
            let counted = if !place.sites.iter().all(is_writable) || place.sites.is_empty() {
                if image.is_kernel() { &mut kernel } else { &mut no_lines }
            } else if let Some(executed) = &image.executed {
                if executed.step(place.address).is_some() { &mut carried } else { &mut no_estimate }
            } else {
                add(&mut functions, place, samples.saturating_mul(unit), first);
                &mut carried
            };
            *counted = counted.saturating_add(samples);
        }
        image.executed.iter().for_each(|executed| add_executed(&mut functions, executed));
    }
    for comment in resolved.comments().iter().map(String::as_str).chain(fidelity) {
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
    let reasons = [
        ("of the kernel", kernel),
        (NO_LINE, no_lines),
        (executed::LEFT_OUT, no_estimate),
        ("of unknown code", unknown),
    ];
    let left_out = reasons.into_iter().filter(|(_, samples)| *samples > 0);
    let samples =
        (0..resolved.events.len()).map(|at| if at == event { carried } else { 0 }).collect();
    Ok(Carried {
        samples,
        left_out: left_out.map(|(reason, samples)| (reason.to_owned(), samples)).collect(),
        notes: fidelity.map(ToOwned::to_owned).into_iter().collect(),
    })
}

/// Adds the executions of an image's instructions, and of the calls among them.
fn add_executed(functions: &mut BTreeMap<String, Function>, executed: &Executed) {
    let mut edges = executed.edges.as_slice();
    for step in executed.steps.iter().filter(|step| step.sites.iter().all(is_writable)) {
        let (_, rest) = edges.split_at(edges.partition_point(|edge| edge.from < step.address));
        let (here, rest) = rest.split_at(rest.partition_point(|edge| edge.from == step.address));
        edges = rest;
        let Some((function, line, copies)) = function_of(functions, &step.sites) else { continue };
        let most = function.lines.entry(line).or_default();
        let more = step.times.saturating_mul(copies).saturating_sub(*most);
        *most = most.saturating_add(more);
        function.executed = function.executed.saturating_add(more);
        if step.sites.len() == 1 {
            function.head = function.head.saturating_add(step.entries);
        }
        for edge in here {
            let Some(callee) = edge.callee.as_ref().filter(|callee| is_name(callee)) else {
                continue;
            };
            let sum = function.callees.entry(line).or_default().entry(callee.clone()).or_default();
            *sum = sum.saturating_add(edge.times.saturating_mul(copies));
        }
    }
}

/// The function of these sites, the line in it, and how many times the work of that is there.
fn function_of<'a>(
    functions: &'a mut BTreeMap<String, Function>,
    sites: &[Site],
) -> Option<(&'a mut Function, Line, u64)> {
    let (last, calls) = sites.split_last()?;
    let mut among = functions;
    for call in calls {
        let function = among.entry(call.function.clone()).or_default();
        among = function.calls.entry((call.line, call.discriminator)).or_default();
    }
    let function = among.entry(last.function.clone()).or_default();
    Some((function, (last.line, last.discriminator), u64::from(last.copies)))
}

fn is_first(procedure: Option<&super::Procedure>, place: &Place) -> bool {
    procedure.is_some_and(|procedure| procedure.address == place.address)
}

/// Adds a place's samples.
fn add(functions: &mut BTreeMap<String, Function>, place: &Place, samples: u64, first: bool) {
    if samples == 0 {
        return;
    }
    let Some((function, line, copies)) = function_of(functions, &place.sites) else { return };
    function.samples = function.samples.saturating_add(samples);
    let most = function.lines.entry(line).or_default();
    *most = (*most).max(samples.saturating_mul(copies));
    if first && place.sites.len() == 1 {
        function.head = function.head.saturating_add(samples);
    }
}

/// A line that begins with a blank, a digit behind a colon, or a hash is something else to the
/// reader.
fn is_writable(site: &Site) -> bool {
    is_name(&site.function)
}

fn is_name(name: &str) -> bool {
    let plain = |c: char| !c.is_whitespace() && !c.is_control();
    name.starts_with(|c: char| !c.is_ascii_digit() && c != '#' && c != '!')
        && name.chars().all(plain)
}

impl Function {
    fn total(&self) -> u64 {
        let inlined = self.calls.values().flat_map(BTreeMap::values).map(Self::total);
        let own = self.samples.saturating_add(self.executed);
        inlined.fold(own, u64::saturating_add)
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
            for (name, function) in calls.iter().filter(|(_, function)| function.total() > 0) {
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
    use super::super::executed::{ExecutedEdge, Step};
    use super::super::test_profile::{resolved, with_lines, written};
    use super::*;

    #[test]
    fn inlined_calls_nest_and_totals_hold_them() {
        let (text, carried) = written(|out| write(&with_lines(), 0, out));
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(lines, ["_ZN2ns1fEi:42:40", " 1: 40", " 2.1: _Z3inlv:2", "  2: 2"]);
        assert_eq!(carried.samples, [42, 0]);
        let left_out = [("of the kernel", 20), ("without source line", 8), ("of unknown code", 5)];
        assert_eq!(
            carried.left_out,
            left_out.map(|(reason, samples)| (reason.to_owned(), samples))
        );
    }

    #[test]
    fn a_line_has_the_samples_of_its_busiest_instruction() {
        let mut resolved = with_lines();
        let places = &mut resolved.images[0].places;
        places[1].sites = places[0].sites.clone();
        let lines = |resolved: &Resolved| {
            let (text, _) = written(|out| write(resolved, 0, out));
            text.lines()
                .filter(|line| !line.starts_with('#'))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(lines(&resolved), ["_ZN2ns1fEi:42:40", " 1: 40"]);
        // 2 samples of an instruction that does the work of 32.
        resolved.images[0].places[1].sites[0].copies = 32;
        assert_eq!(lines(&resolved), ["_ZN2ns1fEi:42:40", " 1: 64"]);
    }

    #[test]
    fn executions_where_they_are_known() {
        let mut resolved = with_lines();
        let image = &mut resolved.images[0];
        let (own, inlined) = (image.places[0].sites.clone(), image.places[1].sites.clone());
        let step = |address, times, sites: &[Site]| Step {
            address,
            times,
            entries: 0,
            sites: sites.to_vec(),
        };
        let line = |line| vec![Site { line, ..own[0].clone() }];
        let steps = vec![
            Step { entries: 5, ..step(0x40_1010, 7, &own) },
            step(0x40_1012, 5, &own),
            step(0x40_1014, 3, &inlined),
            step(0x40_1016, 0, &line(9)),
            step(0x40_1018, 6, &[]),
            step(0x40_101a, 0, &[line(10)[0].clone(), inlined[1].clone()]),
        ];
        let edge = |from, callee: Option<&str>, times| ExecutedEdge {
            from,
            to: 1,
            falls_through: false,
            callee: callee.map(str::to_owned),
            times,
        };
        let edges = vec![
            edge(0x40_1000, Some("_Z1av"), 8),
            edge(0x40_1010, None, 1),
            edge(0x40_1012, Some("_Z1av"), 2),
            edge(0x40_1012, Some("_Z1bv"), 3),
            edge(0x40_1012, Some("no name"), 4),
            edge(0x40_1018, Some("_Z1bv"), 6),
        ];
        image.executed = Some(Executed { steps, edges, exact: false });
        let (text, carried) = written(|out| write(&resolved, 0, out));
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            lines,
            ["_ZN2ns1fEi:10:5", " 1: 7 _Z1av:2 _Z1bv:3", " 9: 0", " 2.1: _Z3inlv:3", "  2: 3"]
        );
        assert_eq!((carried.samples, carried.notes.len()), (vec![42, 0], 1));
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

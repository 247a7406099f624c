//! Coverage in lcov's format (geninfo(1), "TRACEFILE FORMAT"): lines and branches with their
//! executions, those that were never executed among them.
//!
//! A line has the executions of its instruction that has the most. Calls that were inlined in
//! several places have the sum. A branch is a conditional jump: 0 is the jump taken, 1 the next
//! instruction. Which of them the source's condition means is not told.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use annotate::graphs::{Graph, Surveyed};
use code::cfg::EdgeKind;
use code::skid::Skid;
use image::{Frame, Lines, Procedure, Vaddr};
use names::procedures::{self, Known, Needed};
use query::error::AnalysisError;
use query::load::{ImageSamples, Samples};
use report::counted;

use super::database::Written;
use crate::commands::costs::OnMachine;
use crate::options::{self, Chosen};

/// A file that coverage will be written to.
pub(super) struct Coverage {
    path: PathBuf,
    file: File,
}

fn refused(path: &Path, why: &dyn std::fmt::Display) -> AnalysisError {
    AnalysisError::Refused(format!("cannot write coverage to {}: {why}", path.display()))
}

impl Coverage {
    /// Makes the file, before the command has run for nothing.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`] where it cannot be written.
    pub(super) fn begin(path: &Path) -> Result<Self, AnalysisError> {
        let file = File::create(path).map_err(|error| refused(path, &error))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Writes the coverage of an epoch's images with debug information; returns remarks.
    ///
    /// # Errors
    /// [`AnalysisError`] where the epoch cannot be read or the file not be written.
    pub(super) fn write(
        mut self,
        db: &Path,
        written: &Written,
        on: &OnMachine,
    ) -> Result<String, AnalysisError> {
        let words = ["--host", &written.host, "--epoch", &written.epoch, "--all"];
        let words = words.into_iter().map(OsString::from);
        let words = ["--db".into(), db.into()].into_iter().chain(words);
        let chosen: Chosen = options::typed(words).map_err(|error| refused(&self.path, &error))?;
        let samples = chosen.question(&[])?.samples()?;
        let (covered, without) = covered(&samples, on);
        let (text, told) = shown(&covered);
        self.file.write_all(text.as_bytes()).map_err(|error| refused(&self.path, &error))?;
        let without = match without.len() {
            0 => String::new(),
            _ => format!("; without debug information: {}", without.join(", ")),
        };
        Ok(format!("coverage: {told}{without}"))
    }
}

#[derive(Debug, Default, PartialEq)]
struct Source {
    lines: BTreeMap<u32, u64>,
    /// Line and entries of each procedure, by its mangled name.
    procedures: BTreeMap<String, (u32, u64)>,
    /// Executions of branches, by line, column and number among those of one inlined call:
    /// taken, and all.
    branches: BTreeMap<(u32, u32, usize), (u64, u64)>,
}

type Sources = BTreeMap<String, Source>;

/// The sources of all images, and names of images without.
fn covered(samples: &Samples, on: &OnMachine) -> (Sources, Vec<String>) {
    let places = on.places();
    let mut problems = Vec::new(); // the report that follows has them
    let (mut sources, mut without) = (Sources::new(), Vec::new());
    let Some(event) = samples.executed() else { return (sources, without) };
    for image in &samples.images {
        let known = procedures::known(samples, image, &places, Needed::All, &mut problems);
        let read = known.ok().and_then(|known| {
            let info = known.debug_info(image, &places, &mut problems)?;
            let lines = info.lines().ok()?;
            let surveyed = Surveyed::of(samples, image, &known, &mut problems)?;
            let counted = Counted { image, event, known: &known, lines: &lines };
            counted.add(&surveyed, &mut sources);
            Some(())
        });
        if read.is_none() {
            without.push(image.record.name.clone());
        }
    }
    (sources, without)
}

/// An image whose executions are given to its source lines.
struct Counted<'a> {
    image: &'a ImageSamples,
    event: usize,
    known: &'a Known,
    lines: &'a Lines<'a>,
}

/// A line in a call that was inlined: file and line, and the places of the calls around it.
type Placed = (String, u32, Vec<(u32, u32)>);

impl Counted<'_> {
    fn add(&self, surveyed: &Surveyed<'_>, sources: &mut Sources) {
        for procedure in &self.known.procedures {
            let whole = surveyed.at(procedure.start);
            if whole.is_none_or(|whole| whole.start != procedure.start) {
                continue; // a part of another
            }
            let of = (self.event, Skid::default());
            if let Some(graph) = surveyed.graph(self.image, self.known, procedure, None, of, None) {
                self.add_procedure(procedure, &graph, sources);
            }
        }
    }

    fn executions(&self, at: Vaddr) -> u64 {
        let executed = self.known.offset(at.0).zip(self.image.equal(self.event));
        executed.map_or(0, |(offset, executed)| executed.get(offset))
    }

    fn add_procedure(&self, procedure: &Procedure, graph: &Graph, sources: &mut Sources) {
        let entry = Vaddr(self.known.address(procedure.start));
        let frames = self.lines.frames(entry);
        let outermost = frames.last().and_then(|last| placed(std::slice::from_ref(last)));
        if let Some(((file, line, _), _)) = outermost {
            let of = sources.entry(file).or_default().procedures.entry(procedure.raw_name().into());
            let known = of.or_insert((line, 0));
            known.1 = known.1.saturating_add(self.executions(entry));
        }
        let mut most: HashMap<Placed, u64> = HashMap::new();
        let mut jumps: HashMap<(Placed, u32), usize> = HashMap::new();
        for (number, block) in graph.graph.blocks().iter().enumerate() {
            for at in graph.graph.instructions(number) {
                let Some((place, column)) = placed(&self.lines.frames(at)) else {
                    continue;
                };
                let executions = self.executions(at);
                if at == block.last
                    && let Some(taken) = taken(graph, number)
                {
                    let ordinal = jumps.entry((place.clone(), column)).or_default();
                    let branches = &mut sources.entry(place.0.clone()).or_default().branches;
                    let sum = branches.entry((place.1, column, *ordinal)).or_default();
                    sum.0 = sum.0.saturating_add(taken.min(executions));
                    sum.1 = sum.1.saturating_add(executions);
                    *ordinal += 1;
                }
                let most = most.entry(place).or_default();
                *most = (*most).max(executions);
            }
        }
        for ((file, line, _), executions) in most {
            let sum = sources.entry(file).or_default().lines.entry(line).or_default();
            *sum = sum.saturating_add(executions);
        }
    }
}

/// The line of the innermost of some frames, and its column.
fn placed(frames: &[Frame]) -> Option<(Placed, u32)> {
    let (first, around) = frames.split_first()?;
    let place = |frame: &Frame| (frame.line.unwrap_or(0), frame.column.unwrap_or(0));
    let (file, line) = first.file.clone().zip(first.line)?;
    // A line break would be a line of its own.
    let is_name = !file.contains(['\n', '\r']);
    is_name.then(|| ((file, line, around.iter().map(place).collect()), place(first).1))
}

/// How often the conditional jump at the end of a block was taken; None without one.
fn taken(graph: &Graph, block: usize) -> Option<u64> {
    let out = graph.graph.out_of(block);
    let edges = graph.graph.edges().get(out.clone())?;
    let at = edges.iter().position(|edge| edge.kind == EdgeKind::Taken)?;
    let exact = graph.estimate.as_ref().filter(|_| graph.is_exact);
    let executions = exact.and_then(|exact| exact.edges.get(out.start + at));
    Some(executions.map_or(0, |executions| executions.round() as u64))
}

/// The file, and the remarks about it.
fn shown(sources: &Sources) -> (String, String) {
    let mut text = String::new();
    let (mut lines, mut branches) = ([0; 2], [0; 2]);
    let with_lines = || sources.iter().filter(|(_, source)| !source.lines.is_empty());
    for (path, source) in with_lines() {
        let _ = writeln!(text, "TN:\nSF:{path}");
        for (name, (line, _)) in &source.procedures {
            let _ = writeln!(text, "FN:{line},{name}");
        }
        let mut entered = 0;
        for (name, (_, entries)) in &source.procedures {
            let _ = writeln!(text, "FNDA:{entries},{name}");
            entered += usize::from(*entries > 0);
        }
        let _ = writeln!(text, "FNF:{}\nFNH:{entered}", source.procedures.len());
        let hit = show_branches(source, &mut text);
        let found = 2 * source.branches.len();
        branches = [branches[0] + hit, branches[1] + found];
        let _ = writeln!(text, "BRF:{found}\nBRH:{hit}");
        let mut hit = 0;
        for (line, executions) in &source.lines {
            let _ = writeln!(text, "DA:{line},{executions}");
            hit += usize::from(*executions > 0);
        }
        lines = [lines[0] + hit, lines[1] + source.lines.len()];
        let _ = writeln!(text, "LF:{}\nLH:{hit}\nend_of_record", source.lines.len());
    }
    let ([hit, all], [went, ways]) = (lines, branches);
    let files = counted(with_lines().count() as u64, "source file");
    let told = format!("{hit} of {all} lines, {went} of {ways} ways of branches, in {files}");
    (text, told)
}

/// Writes a file's branches; returns how many ways were gone.
fn show_branches(source: &Source, text: &mut String) -> usize {
    let mut hit = 0;
    let mut number = (0, 0);
    for ((line, _, _), (taken, all)) in &source.branches {
        number = if number.0 == *line { (*line, number.1 + 1) } else { (*line, 0) };
        for (way, times) in [(0, *taken), (1, all - taken)] {
            let times = if *all > 0 { times.to_string() } else { "-".to_owned() };
            hit += usize::from(!matches!(times.as_str(), "0" | "-"));
            let _ = writeln!(text, "BRDA:{line},{},{way},{times}", number.1);
        }
    }
    hit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_its_procedures_branches_and_lines() {
        let source = Source {
            lines: [(3, 7), (4, 0)].into(),
            procedures: [("f".to_owned(), (2, 7)), ("g".to_owned(), (9, 0))].into(),
            branches: [((3, 5, 0), (2, 7)), ((3, 5, 1), (7, 7)), ((4, 0, 0), (0, 0))].into(),
        };
        let (text, told) = shown(&[("/x.c".to_owned(), source)].into());
        let expected = "TN:\nSF:/x.c\nFN:2,f\nFN:9,g\nFNDA:7,f\nFNDA:0,g\nFNF:2\nFNH:1\n\
            BRDA:3,0,0,2\nBRDA:3,0,1,5\nBRDA:3,1,0,7\nBRDA:3,1,1,0\nBRDA:4,0,0,-\nBRDA:4,0,1,-\n\
            BRF:6\nBRH:3\nDA:3,7\nDA:4,0\nLF:2\nLH:1\nend_of_record\n";
        assert_eq!(text, expected);
        assert_eq!(told, "1 of 2 lines, 3 of 6 ways of branches, in 1 source file");
    }
}

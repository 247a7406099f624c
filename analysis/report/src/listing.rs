//! `dcpi list` as plain data, as JSON and as CSV.

use std::io::{self, Write};

use code::skid::Skid;
use image::Frame;
use serde::Serialize;
use stalls::Scale;

use super::costs::{COLUMNS, Cost, digits};
use super::csv::{count_cells, record};
use super::json::{self, InOrder, OfProcedure, ProblemEntry};
use super::{Costs, EventColumn, ImageName, Report, Selection, Style, listing_text};
use annotate::listing::{ListedInstruction, Listing, SourceLine};
use names::sources::Sources;
use query::problem::Problem;
use query::scope::ScopeChoice;
use stats::{Confidence, Share, exact, wilson};

/// Views of a procedure.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum View {
    /// Source lines, by function and file.
    Source,
    /// Instructions.
    Instructions,
    /// Instructions with their source lines between them.
    Both,
}

/// `dcpi list`.
#[derive(Debug)]
pub struct ListReport {
    /// Database, epochs and hosts that were read.
    pub selection: Selection,
    /// The events, in order of columns; shares are of the procedure's samples.
    pub events: Vec<EventColumn>,
    /// The confidence of all intervals.
    pub confidence: Confidence,
    /// Label, unit or process whose samples these are; all, if none is chosen.
    pub whose: ScopeChoice,
    /// The procedure's image.
    pub image: ImageName,
    /// Other names of the procedure in the symbol table.
    pub aliases: Vec<String>,
    /// The procedure.
    pub listing: Listing,
    /// Each instruction's share of the procedure's samples, by event.
    pub shares: Vec<Vec<Share>>,
    /// The event whose samples are moved back to the instruction that took the time, and its skid;
    /// none: all samples are where the processor reported them.
    pub skid: Option<(String, Skid)>,
    /// Executions, cycles and stalls, or why these are not known; none without `--why`.
    pub costs: Option<Result<Costs, String>>,
    /// Whether source lines, instructions or both are shown.
    pub view: View,
    /// The file that source lines come from.
    pub debug_file: Option<String>,
    /// The text of source files.
    pub sources: Sources,
    /// Missing or doubtful data: the notes of the report.
    pub problems: Vec<Problem>,
}

impl ListReport {
    /// The source lines of the procedure.
    #[must_use]
    pub fn lines(&self) -> Vec<SourceLine> {
        self.listing.by_line()
    }

    /// Shares of the procedure's samples, by event.
    #[must_use]
    pub fn shares_of(&self, counts: &[u64]) -> Vec<Share> {
        let share = |(count, column): (&u64, &EventColumn)| match column.event.is_exact() {
            true => exact(*count, column.equal()),
            false => wilson(*count, column.equal(), self.confidence),
        };
        counts.iter().zip(&self.events).map(share).collect()
    }

    /// Whether all events are counted exactly: then there are no samples.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.events.iter().all(|column| column.event.is_exact())
    }

    /// The text of a source line, if its file is found.
    #[must_use]
    pub fn text_of(&self, place: &Frame) -> Option<String> {
        self.sources.line(place.file.as_deref()?, place.line?)
    }

    /// Executions, cycles and stalls, if these are known.
    #[must_use]
    pub fn known_costs(&self) -> Option<&Costs> {
        self.costs.as_ref()?.as_ref().ok()
    }

    /// Looks for the source files, and adds one problem for the missing ones.
    pub fn look_at_sources(&mut self) {
        if self.view != View::Instructions {
            self.lines().iter().for_each(|line| drop(self.text_of(&line.place)));
            let files = self.sources.missing();
            if !files.is_empty() {
                self.problems.push(Problem::SourceMissing { files });
            }
            let files = self.sources.withheld();
            if !files.is_empty() {
                self.problems.push(Problem::SourceWithheld { files });
            }
        }
    }

    fn by_event<T>(&self, values: impl IntoIterator<Item = T>) -> InOrder<&str, T> {
        InOrder(self.events.iter().map(|column| column.event.name.as_str()).zip(values).collect())
    }
}

impl Report for ListReport {
    const NAME: &'static str = "list";

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        listing_text::list(self, style, out)
    }

    fn json(&self) -> impl Serialize + '_ {
        list(self)
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        match self.view {
            View::Source => source_rows(self, out),
            View::Instructions | View::Both => instruction_rows(self, out),
        }
    }

    fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

#[derive(Serialize)]
struct List<'a> {
    #[serde(flatten)]
    of: OfProcedure<'a>,
    address: String,
    end: String,
    isa: Option<String>,
    debug_file: Option<&'a str>,
    /// Instructions by which samples of the event were moved back; null: they were not moved.
    skid: Option<SkidOf<'a>>,
    #[serde(flatten)]
    why: Option<Why<'a>>,
    counts: InOrder<&'a str, u64>,
    instructions: Vec<Instruction<'a>>,
    lines: Vec<Line<'a>>,
    problems: Vec<ProblemEntry<'a>>,
}

/// The basis of the estimated cycles.
#[derive(Serialize)]
struct Why<'a> {
    machine: Option<&'static str>,
    /// Largest factor between the true and the estimated cycles; null where nothing limits it.
    cycles_factor_least: Option<f64>,
    cycles_factor: Option<f64>,
    cycles_measured: bool,
    cycles_known: bool,
    /// Null where executions are known.
    why_not: Option<&'a str>,
}

#[derive(Serialize)]
struct SkidOf<'a> {
    event: &'a str,
    instructions: u8,
    samples_kept: u64,
}

#[derive(Serialize)]
struct Instruction<'a> {
    address: String,
    offset: String,
    len: u64,
    /// Null when it could not be read.
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<Place<'a>>,
    /// Where the innermost function is inlined, from the inside to the outside; the last is the
    /// procedure itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    inlined_at: Vec<Place<'a>>,
    counts: InOrder<&'a str, u64>,
    share: InOrder<&'a str, json::Share>,
    #[serde(flatten)]
    cost: Option<Cost>,
}

#[derive(Serialize)]
struct Place<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<u32>,
}

#[derive(Serialize)]
struct Line<'a> {
    function: Option<String>,
    file: Option<String>,
    line: Option<u32>,
    inlined: bool,
    text: Option<String>,
    counts: InOrder<&'a str, u64>,
    share: InOrder<&'a str, json::Share>,
}

fn place(frame: &Frame) -> Place<'_> {
    let Frame { function, file, line, column } = frame;
    Place { function: function.as_deref(), file: file.as_deref(), line: *line, column: *column }
}

fn list(report: &ListReport) -> impl Serialize + '_ {
    let listing = &report.listing;
    let instructions = listing.instructions.iter().zip(&report.shares);
    List {
        of: OfProcedure::of(
            &report.selection,
            (&report.events, report.confidence, &report.whose),
            (&report.image, &listing.procedure, &report.aliases),
        ),
        address: format!("{:#x}", listing.addresses.start),
        end: format!("{:#x}", listing.addresses.end),
        isa: listing.isa.map(|isa| isa.to_string()),
        debug_file: report.debug_file.as_deref(),
        skid: report.skid.as_ref().map(|(event, skid)| SkidOf {
            event,
            instructions: skid.instructions(),
            samples_kept: listing.kept,
        }),
        why: report.costs.as_ref().map(why),
        counts: report.by_event(listing.counts.iter().copied()),
        instructions: instructions
            .map(|(instruction, shares)| self::instruction(report, instruction, shares))
            .collect(),
        lines: report
            .lines()
            .into_iter()
            .filter(|line| line.place != Frame::default())
            .map(|l| line(report, l))
            .collect(),
        problems: json::problems(&report.problems),
    }
}

fn instruction<'a>(
    report: &'a ListReport,
    listed: &'a ListedInstruction,
    shares: &[Share],
) -> Instruction<'a> {
    Instruction {
        address: format!("{:#x}", listed.address),
        offset: listed.offset.to_string(),
        len: listed.len,
        text: (listed.len > 0).then_some(listed.text.as_str()),
        target: listed.target.map(|target| format!("{target:#x}")),
        target_name: listed.target_name.as_deref(),
        source: listed.frames.first().map(place),
        inlined_at: listed.frames.iter().skip(1).map(place).collect(),
        counts: report.by_event(listed.counts.iter().copied()),
        share: report.by_event(shares.iter().map(json::Share::of)),
        cost: report.known_costs().and_then(|costs| costs.json(listed.address)),
    }
}

fn why(costs: &Result<Costs, String>) -> Why<'_> {
    let known = costs.as_ref().ok();
    let scale = known.and_then(|costs| costs.scale).filter(Scale::is_known);
    Why {
        machine: known.map(|costs| costs.machine.name),
        cycles_factor_least: scale.map(|scale| digits(scale.samples_per_cycle / scale.upper)),
        cycles_factor: scale
            .map(|scale| digits(scale.samples_per_cycle / scale.lower))
            .filter(|factor| factor.is_finite()),
        cycles_known: scale.is_some(),
        cycles_measured: scale.is_some_and(|scale| scale.is_measured()),
        why_not: costs.as_ref().err().map(String::as_str),
    }
}

fn line(report: &ListReport, line: SourceLine) -> Line<'_> {
    let share = report.shares_of(&line.counts);
    Line {
        text: report.text_of(&line.place),
        function: line.place.function,
        file: line.place.file,
        line: line.place.line,
        inlined: line.inlined,
        counts: report.by_event(line.counts),
        share: report.by_event(share.iter().map(json::Share::of)),
    }
}

/// The columns of each event.
fn event_titles(report: &ListReport) -> impl Iterator<Item = String> + '_ {
    let names = report.events.iter().map(|column| &column.event.name);
    names.flat_map(|name| {
        [name.clone(), format!("{name}_share"), format!("{name}_low"), format!("{name}_high")]
    })
}

fn instruction_rows(report: &ListReport, out: &mut dyn Write) -> io::Result<()> {
    let mut titles = ["address", "instruction", "target", "function", "file", "line"]
        .map(str::to_owned)
        .to_vec();
    titles.extend(event_titles(report));
    titles.extend(report.known_costs().into_iter().flat_map(|_| COLUMNS.map(str::to_owned)));
    record(out, &titles)?;
    for (instruction, shares) in report.listing.instructions.iter().zip(&report.shares) {
        let target = instruction
            .target_name
            .clone()
            .or_else(|| instruction.target.map(|target| format!("{target:#x}")));
        let mut cells = vec![
            format!("{:#x}", instruction.address),
            instruction.text.clone(),
            target.unwrap_or_default(),
        ];
        cells.extend(place_cells(instruction.frames.first().unwrap_or(&Frame::default())));
        cells.extend(
            instruction
                .counts
                .iter()
                .zip(shares)
                .flat_map(|(count, share)| count_cells(*count, share)),
        );
        cells.extend(
            report.known_costs().into_iter().flat_map(|costs| costs.columns(instruction.address)),
        );
        record(out, &cells)?;
    }
    Ok(())
}

fn source_rows(report: &ListReport, out: &mut dyn Write) -> io::Result<()> {
    let mut titles = ["function", "file", "line", "text"].map(str::to_owned).to_vec();
    titles.extend(event_titles(report));
    record(out, &titles)?;
    for line in report.lines() {
        let mut cells = place_cells(&line.place).to_vec();
        cells.push(report.text_of(&line.place).unwrap_or_default());
        let shares = report.shares_of(&line.counts);
        cells.extend(
            line.counts.iter().zip(&shares).flat_map(|(count, share)| count_cells(*count, share)),
        );
        record(out, &cells)?;
    }
    Ok(())
}

fn place_cells(place: &Frame) -> [String; 3] {
    let line = place.line.map(|line| line.to_string());
    [place.function.clone(), place.file.clone(), line].map(Option::unwrap_or_default)
}

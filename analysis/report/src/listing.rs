//! `dcpi list` as plain data, as JSON and as CSV.

use std::io::{self, Write};

use code::skid::Skid;
use image::Frame;
use serde::Serializer;

use super::calc::CyclesBasis;
use super::costs::{COLUMNS, Cost};
use super::fields::{Address, Cells, InOrder, Shape, Shaped, Shares, Shown};
use super::json::{self, EVENT_TITLES, OfProcedure, ProblemEntry, by_event};
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
    /// Whether only the blocks with most of the time are listed.
    pub is_hot: bool,
    /// Of a source file that an interpreter ran: the call stacks by which its lines got their
    /// samples; none: code.
    pub stacks: Option<u64>,
    /// The file that source lines come from.
    pub debug_file: Option<String>,
    /// The text of source files.
    pub sources: Sources,
    /// Missing or doubtful data: the notes of the report.
    pub problems: Vec<Problem>,
}

impl ListReport {
    /// The source lines of the procedure.
    pub fn lines(&self) -> Vec<SourceLine> {
        self.listing.by_line()
    }

    /// Shares of the procedure's samples, by event.
    pub fn shares_of(&self, counts: &[u64]) -> Vec<Share> {
        let share = |(count, column): (&u64, &EventColumn)| match column.event.is_exact() {
            true => exact(*count, column.equal()),
            false => match self.stacks {
                Some(stacks) => of_stacks(*count, column.equal(), stacks, self.confidence),
                None => wilson(*count, column.equal(), self.confidence),
            },
        };
        counts.iter().zip(&self.events).map(share).collect()
    }

    /// Whether all events are counted exactly: then there are no samples.
    pub fn is_exact(&self) -> bool {
        self.events.iter().all(|column| column.event.is_exact())
    }

    /// The text of a source line, if its file is found.
    pub fn text_of(&self, place: &Frame) -> Option<String> {
        self.sources.line(place.file.as_deref()?, place.line?)
    }

    /// Executions, cycles and stalls, if these are known.
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
            let files = self.sources.newer();
            if !files.is_empty() {
                self.problems.push(Problem::SourceNewer { files });
            }
            let files = self.sources.withheld();
            if !files.is_empty() {
                self.problems.push(Problem::SourceWithheld { files });
            }
        }
    }
}

/// The share of samples that were divided by call stacks, with the interval of as many stacks.
fn of_stacks(count: u64, all: u64, stacks: u64, confidence: Confidence) -> Share {
    let value = if all > 0 { count as f64 / all as f64 } else { 0.0 };
    let share = wilson((value * stacks as f64).round() as u64, stacks, confidence);
    Share { value, low: share.low.min(value), high: share.high.max(value) }
}

impl Report for ListReport {
    const NAME: &'static str = "list";
    type Fields<'a> = List<'a>;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        listing_text::list(self, style, out)
    }

    fn json(&self) -> List<'_> {
        list(self)
    }

    fn list_of_rows(&self) -> &'static str {
        match self.view {
            View::Source => "lines",
            View::Instructions | View::Both => "instructions",
        }
    }

    fn columns(&self) -> Option<Vec<&'static str>> {
        let mut titles = match self.view {
            View::Source => vec!["function", "file", "line", "text"],
            View::Instructions | View::Both => {
                vec!["address", "instruction", "target", "function", "file", "line"]
            }
        };
        titles.extend(EVENT_TITLES);
        if self.view != View::Source && self.known_costs().is_some() {
            titles.extend(COLUMNS);
        }
        Some(titles)
    }

    fn keys(&self, _: &str) -> Vec<String> {
        json::event_keys(&self.events)
    }

    fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

crate::fields! {
    /// Shares are of the procedure's samples. CSV has a row per instruction; with `--source` a row
    /// per source line. The columns from `runs` on, and the fields of `frequency` and cycles, come
    /// with `--why`.
    #[derive(Debug)]
    pub struct List<'a> {
        of (flat): OfProcedure<'a>;
        /// the procedure's begin
        address: Address;
        /// the address after the procedure's last byte
        end: Address;
        /// instruction set; `null`: the code is not available
        isa: Option<String>;
        /// file that source lines come from; `null`: there are no lines
        debug_file: Option<&'a str>;
        /// `null` where no samples were moved back to the instructions that took the time
        skid: Option<SkidOf<'a>>;
        why (flat): Option<Why<'a>>;
        /// samples in the procedure
        counts: InOrder<&'a str, u64>, "samples";
        /// of a source file that an interpreter ran, which has no instructions: the call stacks by
        /// which the interpreter's samples were divided; absent: code
        stacks (maybe): Option<u64>;
        instructions (rows): Vec<Instruction<'a>>;
        lines (rows): Lines<'a>;
        problems: Vec<ProblemEntry<'a>>;
    }

    /// The basis of the estimated cycles.
    #[derive(Debug)]
    pub struct Why<'a> {
        /// the processor of the best cases, as LLVM names it
        machine: Option<&'static str>;
        basis (flat): CyclesBasis;
        /// the reason why executions are not known; `null`: they are known
        why_not: Option<&'a str>;
    }

    /// A skid.
    #[derive(Debug)]
    pub struct SkidOf<'a> {
        /// the event whose samples were moved back to the instructions that took the time
        event: &'a str;
        /// distance from those instructions to where samples land
        instructions: u8, "instructions";
        /// samples left where they landed, because the instruction that took the time is not known
        samples_kept: u64, "samples";
    }

    /// An instruction.
    #[derive(Debug)]
    pub struct Instruction<'a> {
        address: Address => "address";
        offset: String, "offset";
        /// length; 0: the instruction could not be read
        len: u64, "bytes";
        /// mnemonic and operands; `null`: the instruction could not be read
        text: Option<&'a str>;
        /// mnemonic and operands, or why there are none
        listed (csv): &'a str => "instruction";
        /// target of the jump or call
        target (maybe): Option<Address>;
        /// name of the target
        target_name (maybe): Option<&'a str>;
        /// name of the target, or its address where it has no name
        target_shown (csv): Option<String> => "target";
        /// the innermost function that is inlined at the instruction
        source (maybe): Option<Place<'a>> => "function" | "file" | "line";
        /// functions that it is inlined into, from the inside to the outside
        inlined_at (maybe): Vec<Place<'a>>;
        counts: InOrder<&'a str, u64>, "samples" => "EVENT";
        share: Shares<'a>, "share" => "EVENT_share" | "EVENT_low" | "EVENT_high";
        cost (flat): Option<Cost>;
    }

    /// A place in the source.
    #[derive(Debug)]
    pub struct Place<'a> {
        /// function
        function (maybe): Option<&'a str>;
        /// source file of that function
        file (maybe): Option<&'a str>;
        /// source line
        line (maybe): Option<u32>;
        /// source column
        column (maybe): Option<u32>;
    }

    /// A source line.
    #[derive(Debug)]
    pub struct Line<'a> {
        function: Option<String> => "function";
        file: Option<String> => "file";
        /// `null`: code of no line in particular
        line: Option<u32> => "line";
        /// true: the function is inlined in the procedure
        inlined: bool;
        /// the line's text; `null`: the file was not found
        text: Option<String> => "text";
        counts: InOrder<&'a str, u64>, "samples" => "EVENT";
        share: Shares<'a>, "share" => "EVENT_share" | "EVENT_low" | "EVENT_high";
    }
}

/// Source lines. CSV also has the row of instructions of which no place in the source is known.
#[derive(Debug)]
pub struct Lines<'a>(Vec<Line<'a>>);

impl<'a> Lines<'a> {
    fn iter(&self) -> impl Iterator<Item = &Line<'a>> {
        self.0.iter()
    }
}

impl Shaped for Lines<'_> {
    fn shape() -> Shape {
        Vec::<Line<'_>>::shape()
    }

    fn json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let is_known = |line: &&Line<'_>| {
            line.function.is_some() || line.file.is_some() || line.line.is_some()
        };
        to.collect_seq(self.0.iter().filter(is_known))
    }

    fn cells(&self, _: &[&'static str], _: Option<&str>, _: &mut Cells) {}
}

impl<'a> Shown<&'a Frame> for Place<'a> {
    fn shown(frame: &'a Frame) -> Self {
        let Frame { function, file, line, column } = frame;
        Self { function: function.as_deref(), file: file.as_deref(), line: *line, column: *column }
    }
}

fn list(report: &ListReport) -> List<'_> {
    let listing = &report.listing;
    let instructions = listing.instructions.iter().zip(&report.shares);
    List {
        of: OfProcedure::of(
            &report.selection,
            (&report.events, report.confidence, &report.whose),
            (&report.image, &listing.procedure, &report.aliases),
        ),
        address: Address(listing.addresses.start),
        end: Address(listing.addresses.end),
        isa: listing.isa.map(|isa| isa.to_string()),
        debug_file: report.debug_file.as_deref(),
        skid: report.skid.as_ref().map(|(event, skid)| SkidOf {
            event,
            instructions: skid.instructions(),
            samples_kept: listing.kept,
        }),
        why: report.costs.as_ref().map(|costs| Why {
            machine: costs.as_ref().ok().map(|costs| costs.machine.name),
            basis: CyclesBasis::of(costs.as_ref().ok().and_then(|costs| costs.scale)),
            why_not: costs.as_ref().err().map(String::as_str),
        }),
        counts: by_event(&report.events, listing.counts.iter().copied()),
        stacks: report.stacks,
        instructions: instructions
            .filter(|_| report.stacks.is_none())
            .map(|(instruction, shares)| self::instruction(report, instruction, shares))
            .collect(),
        lines: Lines(report.lines().into_iter().map(|of| line(report, of)).collect()),
        problems: json::problems(&report.problems),
    }
}

fn instruction<'a>(
    report: &'a ListReport,
    listed: &'a ListedInstruction,
    shares: &'a [Share],
) -> Instruction<'a> {
    let target = listed.target.map(Address);
    let shown = || target.map(|target| format!("{:#x}", target.0));
    Instruction {
        address: Address(listed.address),
        offset: listed.offset.to_string(),
        len: listed.len,
        text: (listed.len > 0).then_some(listed.text.as_str()),
        listed: &listed.text,
        target,
        target_name: listed.target_name.as_deref(),
        target_shown: listed.target_name.clone().or_else(shown),
        source: listed.frames.first().map(Place::shown),
        inlined_at: listed.frames.iter().skip(1).map(Place::shown).collect(),
        counts: by_event(&report.events, listed.counts.iter().copied()),
        share: by_event(&report.events, shares.iter().copied()),
        cost: report.known_costs().and_then(|costs| costs.json(listed.address)),
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
        counts: by_event(&report.events, line.counts),
        share: by_event(&report.events, share),
    }
}

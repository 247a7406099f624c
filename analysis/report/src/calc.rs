//! `dcpi calc` as plain data, as text, JSON and CSV.

use std::io::{self, Write};
use std::ops::Range;

use code::skid::Skid;
use serde::Serialize;
use stalls::{Explanation, Scale, TimeBreakdown, Wait};

use super::costs::{
    self, Cost, Frequency, ROUGHLY, Stall, UNKNOWN, cycle, digits, is_known, number, told, word,
};
use super::csv::record;
use super::json::{self, InOrder, OfProcedure, ProblemEntry};
use super::loops::{self, LoopRow};
use super::quantity::{self, moment, percent, period, plain, thousands};
use super::table::width;
use super::text::{self, head, note, problem_lines, selection};
use super::{
    EventColumn, ImageName, Report, Selection, Style, escape, hottest, listing_text, out_edges,
};
use query::problem::Problem;
use query::scope::ScopeChoice;
use stats::Confidence;

/// `dcpi calc`.
#[derive(Debug)]
pub struct CalcReport {
    /// Database, epochs and hosts that were read.
    pub selection: Selection,
    /// The events, with the procedure's samples of each.
    pub events: Vec<EventColumn>,
    /// Index of the event that counts time.
    pub time: usize,
    /// The confidence of all intervals.
    pub confidence: Confidence,
    /// Label, unit or process whose samples these are; all, if none is chosen.
    pub whose: ScopeChoice,
    /// The procedure's image.
    pub image: ImageName,
    /// The procedure.
    pub procedure: String,
    /// Other names of the procedure in the symbol table.
    pub aliases: Vec<String>,
    /// Names and addresses of its parts, as `objdump` shows them; the first has the procedure's
    /// name.
    pub parts: Vec<(String, Range<u64>)>,
    /// Skid of the samples of time.
    pub skid: Skid,
    /// Samples that were not moved back by the skid.
    pub kept: u64,
    /// Observed executions of its branches.
    pub branches: u64,
    /// Whether executions are exact counts.
    pub is_exact: bool,
    /// Whether the procedure may have edges that are not in the graph.
    pub missing_edges: bool,
    /// Addresses of code whose edges are not known, with the reason.
    pub findings: Vec<(u64, String)>,
    /// The model of the processor that gives the best cases.
    pub machine: Model,
    /// Samples per cycle, and the basis of this estimate; none without samples.
    pub scale: Option<Scale>,
    /// The procedure's time by cause.
    pub sums: TimeBreakdown,
    /// Its loops, those with most samples first.
    pub loops: Vec<LoopRow>,
    /// Its blocks, by address.
    pub blocks: Vec<BlockRow>,
    /// Its edges, by the block that they leave.
    pub edges: Vec<EdgeRow>,
    /// Missing or doubtful data: the notes of the report.
    pub problems: Vec<Problem>,
}

/// A model of a processor.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// LLVM's name.
    pub name: &'static str,
    /// Whether the sampled processor is not known, so that the model is the usual one.
    pub assumed: bool,
    /// Time of the measurement that the latencies of caches, memory and TLBs are of, in seconds
    /// since 1970 UTC; none where they are generic.
    pub measured_unix_s: Option<u64>,
    /// Instructions by which samples may miss the one that took the time; 0 where that was measured
    /// on this kind of processor.
    pub scatter: usize,
}

impl Model {
    /// The name, that it is assumed, and whose latencies it has.
    pub(super) fn shown(self) -> String {
        let Self { name, assumed, scatter, .. } = self;
        let latencies = match self.measured_on() {
            Some(day) => format!("latencies measured on {day}"),
            None => "generic latencies".to_owned(),
        };
        let assumed = if assumed {
            ", assumed: the database does not name the processor (--machine does)"
        } else {
            ""
        };
        let scattered = match scatter {
            0 => String::new(),
            scatter => {
                format!("; its samples may land {scatter} instructions off, ranges allow for it")
            }
        };
        format!("{name}, {latencies}{assumed}{scattered}")
    }

    /// The day of the measurement, such as 2026-11-25.
    pub(super) fn measured_on(self) -> Option<String> {
        let moment = moment(self.measured_unix_s?);
        moment.split(' ').next().map(str::to_owned)
    }
}

/// Executions of a block or edge for one entry of the procedure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Runs {
    /// The estimate.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Confidence in the estimate.
    pub confidence: estimate::Confidence,
}

/// A block.
#[derive(Clone, Debug)]
pub struct BlockRow {
    /// Its first byte.
    pub start: u64,
    /// The address after its last byte.
    pub end: u64,
    /// Samples of time.
    pub samples: f64,
    /// Its executions.
    pub runs: Runs,
    /// Best-case cycles of one execution; none for a block that never ran.
    pub best: Option<f64>,
    /// Estimated cycles of one execution (by [`Scale::samples_per_cycle`]).
    pub cycles: Option<f64>,
    /// Upper bound of the cycles of one execution.
    pub cycles_most: Option<f64>,
    /// Its instructions.
    pub instructions: Vec<InstructionCost>,
}

/// An instruction of a block.
#[derive(Clone, Debug)]
pub struct InstructionCost {
    /// Its first byte.
    pub address: u64,
    /// Mnemonic and operands.
    pub text: String,
    /// Samples by event.
    pub counts: Vec<u64>,
    /// Of these, samples of time.
    pub samples: u64,
    /// Cycles and causes of stalls of one execution.
    pub why: Explanation,
}

/// An edge.
#[derive(Clone, Debug)]
pub struct EdgeRow {
    /// The block that it leaves.
    pub from: u64,
    /// The address that it leads to; none where it leaves the procedure or is not known.
    pub to: Option<u64>,
    /// The kind of the edge, in words.
    pub kind: &'static str,
    /// Its executions.
    pub runs: Runs,
    /// Branch probability: its part of the block's executions, from 0 to 1.
    pub share: f64,
    /// Observed executions.
    pub observed: u64,
}

/// Characters before the column beside an instruction's samples and cycles.
const MARGIN: usize = 24;
/// Further indentation, on a terminal, of the second and later lines of a text in that column.
const NEXT: usize = 2;

impl Report for CalcReport {
    const NAME: &'static str = "calc";

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        self.text_head(style, out)?;
        loops::write(&self.loops, self.blocks.iter().map(|block| block.samples).sum(), style, out)?;
        hottest::text(self, style, out)?;
        for block in &self.blocks {
            writeln!(out)?;
            self.text_block(block, style, out)?;
        }
        if !self.problems.is_empty() {
            writeln!(out)?;
        }
        problem_lines(&self.problems).iter().try_for_each(|line| note(style, out, line))
    }

    fn json(&self) -> impl Serialize + '_ {
        calc(self)
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let titles = [
            "block",
            "end",
            "samples",
            "runs",
            "low",
            "high",
            "confidence",
            "instructions",
            "best",
            "cycles",
            "cycles_most",
        ];
        record(out, &titles.map(str::to_owned))?;
        for block in &self.blocks {
            let number = |value: f64| format!("{value:.6}");
            let cells = [
                format!("{:#x}", block.start),
                format!("{:#x}", block.end),
                number(block.samples),
                number(block.runs.value),
                number(block.runs.low),
                number(block.runs.high),
                word(block.runs.confidence).to_owned(),
                block.instructions.len().to_string(),
                block.best.map(number).unwrap_or_default(),
                block.cycles.map(number).unwrap_or_default(),
                block.cycles_most.filter(|most| most.is_finite()).map(number).unwrap_or_default(),
            ];
            record(out, &cells)?;
        }
        Ok(())
    }

    fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl CalcReport {
    fn text_head(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        selection(&self.selection, style, out)?;
        let parts =
            self.parts.iter().map(|(name, at)| listing_text::of_procedure(name, at.clone(), style));
        head(style, out, "procedure", &parts.collect::<Vec<String>>().join(" and "))?;
        listing_text::also(&self.aliases, style, out)?;
        let path = if self.image.path.is_empty() { &self.image.name } else { &self.image.path };
        head(style, out, "image", &format!("{path}, {}", self.image.id))?;
        if !self.whose.is_all() {
            head(style, out, "only", &format!("samples {}", self.whose.shown()))?;
        }
        if let Some(column @ EventColumn { event, .. }) = self.events.get(self.time) {
            let here = quantity::counted(column.equal(), event.noun());
            let how = match event.is_exact() {
                true => "counted exactly".to_owned(),
                false => format!("one every {}", period(event.period, &event.unit)),
            };
            head(style, out, "event", &format!("{}: {here} here, {how}", event.name))?;
            if !event.is_exact() {
                let skid = Some((event.name.as_str(), self.skid));
                head(style, out, "samples", &listing_text::landed(skid, self.kept))?;
            }
        }
        let branches = match self.is_exact {
            true => "counted, as all executions: dcpi ideal".to_owned(),
            false => {
                let seen = thousands(self.branches);
                format!("{seen} executions observed, from registers at samples")
            }
        };
        head(style, out, "branches", &branches)?;
        let sure = plain(self.confidence.percent());
        head(
            style,
            out,
            "runs",
            &format!(
                "executions for one entry of the procedure, with their interval of {sure} % confidence; (high, medium, low): confidence in the number"
            ),
        )?;
        self.text_scale(style, out)?;
        if self.missing_edges {
            head(
                style,
                out,
                "missing",
                "the procedure has jumps whose targets are not all known: executions of the blocks behind them are understated",
            )?;
        }
        self.findings
            .iter()
            .try_for_each(|(at, what)| head(style, out, "found", &format!("{what} at {at:#x}")))
    }

    fn text_block(&self, block: &BlockRow, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        let all = self.events.get(self.time).map_or(0, EventColumn::equal).max(1) as f64;
        let runs = &block.runs;
        let (start, end) = (block.start, block.end);
        let known = runs.low > 0.0 && runs.high / runs.low < UNKNOWN;
        let range = if known {
            format!("{}–{}", number(runs.low), number(runs.high))
        } else {
            "without bounds".to_owned()
        };
        let runs = format!("runs {}, {range} ({})", number(runs.value), word(runs.confidence));
        let share = percent(block.samples / all);
        text::line(
            style,
            out,
            MARGIN,
            &format!("{start:#x}..{end:#x}  {runs}, {share} % of samples"),
        )?;
        if let Some(cycles) = block.cycles {
            let count = block.instructions.len().max(1) as f64;
            let most =
                block.cycles_most.filter(|most| most.is_finite() && *most > cycles * ROUGHLY);
            let most = most.map(|most| format!(", at most {}", cycle(most))).unwrap_or_default();
            let shown =
                |cycles: f64| format!("{} cy ({} CPI)", cycle(cycles), cycle(cycles / count));
            let best =
                block.best.map(|best| format!("best case {}, ", shown(best))).unwrap_or_default();
            text::line(
                style,
                out,
                MARGIN,
                &format!("{:>21}  {best}took {}{most}", "", shown(cycles)),
            )?;
        } else if let Some(best) = block.best {
            let most = block.cycles_most.filter(|most| most.is_finite() && *most > best);
            let most = most.map_or_else(String::new, |most| format!(", at most {}", cycle(most)));
            let best = cycle(best);
            text::line(
                style,
                out,
                MARGIN,
                &format!("{:>21}  best case {best} cy, cycles not known{most}", ""),
            )?;
        }
        for line in &block.instructions {
            self.text_stall(line, style, out)?;
            let taken = (line.samples > 0 && is_known(self.scale))
                .then(|| format!("{} cy", cycle(line.why.cycles)));
            let samples = if line.samples > 0 { thousands(line.samples) } else { String::new() };
            let taken = taken.unwrap_or_default();
            let at = format!("{samples:>12} {taken:>9}  {:#x}  ", line.address);
            text::line(style, out, width(&at), &format!("{at}{}", escape(&line.text)))?;
        }
        let begin = self.edges.partition_point(|edge| edge.from < block.start);
        let end = self.edges.partition_point(|edge| edge.from <= block.start);
        let edges = out_edges::text(self.edges.get(begin..end).unwrap_or_default());
        edges.lines().try_for_each(|line| text::line(style, out, MARGIN + NEXT, line))
    }
}

impl CalcReport {
    /// The lines `machine`, `cycles` and `spent on` of the head.
    fn text_scale(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        head(style, out, "machine", &self.machine.shown())?;
        head(style, out, "cycles", &costs::cycles(self.scale))?;
        if self.scale.is_none() {
            return Ok(());
        }
        super::stalls::text(&self.sums, style, out)
    }

    /// The line before an instruction with its stall and possible causes: a bubble.
    fn text_stall(
        &self,
        line: &InstructionCost,
        style: &Style,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let stall = line.stall(self.scale, self.sums.samples);
        let Some(Stall { least, most, letters }) = stall else { return Ok(()) };
        let why = &line.why;
        if why.best.wait != Wait::Nothing && why.best.cycles >= 1.0 {
            let what = super::stalls::wait(why.best.wait);
            let best = format!("{} cy", cycle(why.best.cycles));
            text::line(
                style,
                out,
                MARGIN + NEXT,
                &format!("{:>12} {best:>9}  best case: waits for {what}", ""),
            )?;
        }
        let causes: Vec<String> = told(&why.culprits)
            .map(|culprit| {
                let at = if culprit.at == line.address {
                    String::new()
                } else {
                    format!(" at {:#x}", culprit.at)
                };
                format!("{}{at}", culprit.cause)
            })
            .collect();
        let stalled = if !is_known(self.scale) {
            String::new()
        } else if most > least * ROUGHLY {
            format!("{}–{} cy", cycle(least), cycle(most))
        } else {
            format!("{} cy", cycle(least))
        };
        let causes = if causes.is_empty() {
            "no cause explains it".to_owned()
        } else {
            causes.join(", or ")
        };
        text::line(
            style,
            out,
            MARGIN + NEXT,
            &format!("{letters:>12} {stalled:>9}  stalled: {causes}"),
        )
    }
}

#[derive(Serialize)]
struct Calc<'a> {
    #[serde(flatten)]
    of: OfProcedure<'a>,
    skid: u8,
    samples_kept: u64,
    branches: u64,
    missing_edges: bool,
    findings: Vec<Found<'a>>,
    /// The processor, as LLVM names it.
    machine: &'static str,
    machine_assumed: bool,
    latencies_measured: Option<String>,
    /// Least factor between the true and the estimated cycles of one execution.
    cycles_factor_least: Option<f64>,
    /// Largest such factor; null where nothing limits it.
    cycles_factor: Option<f64>,
    cycles_measured: bool,
    /// False where cycles have bounds only.
    cycles_known: bool,
    #[serde(flatten)]
    spent: super::stalls::Spent,
    loops: Vec<loops::Loop>,
    blocks: Vec<Block<'a>>,
    edges: Vec<Edge>,
    problems: Vec<ProblemEntry<'a>>,
}

#[derive(Serialize)]
struct Found<'a> {
    address: String,
    kind: &'a str,
}

#[derive(Serialize)]
struct Block<'a> {
    start: String,
    end: String,
    samples: f64,
    frequency: Frequency,
    /// Cycles per instruction; null where it never ran.
    best_cpi: Option<f64>,
    cpi: Option<f64>,
    instructions: Vec<Instruction<'a>>,
}

#[derive(Serialize)]
struct Instruction<'a> {
    address: String,
    text: &'a str,
    counts: InOrder<&'a str, u64>,
    samples: u64,
    #[serde(flatten)]
    cost: Cost,
}

#[derive(Serialize)]
struct Edge {
    from: String,
    to: Option<String>,
    kind: &'static str,
    frequency: Frequency,
    share: f64,
    observed: u64,
}

fn calc(report: &CalcReport) -> impl Serialize + '_ {
    let known = report.scale.filter(Scale::is_known);
    Calc {
        of: OfProcedure::of(
            &report.selection,
            (&report.events, report.confidence, &report.whose),
            (&report.image, &report.procedure, &report.aliases),
        ),
        skid: report.skid.instructions(),
        samples_kept: report.kept,
        branches: report.branches,
        missing_edges: report.missing_edges,
        findings: report
            .findings
            .iter()
            .map(|(at, kind)| Found { address: format!("{at:#x}"), kind })
            .collect(),
        machine: report.machine.name,
        machine_assumed: report.machine.assumed,
        latencies_measured: report.machine.measured_on(),
        cycles_factor_least: known.map(|scale| digits(scale.samples_per_cycle / scale.upper)),
        cycles_factor: known
            .map(|scale| digits(scale.samples_per_cycle / scale.lower))
            .filter(|factor| factor.is_finite()),
        cycles_known: known.is_some(),
        cycles_measured: report.scale.is_some_and(|scale| scale.is_measured()),
        spent: super::stalls::spent(&report.sums),
        loops: report.loops.iter().map(loops::json).collect(),
        blocks: report.blocks.iter().map(|row| block(report, row)).collect(),
        edges: report
            .edges
            .iter()
            .map(|edge| Edge {
                from: format!("{:#x}", edge.from),
                to: edge.to.map(|to| format!("{to:#x}")),
                kind: edge.kind,
                frequency: Frequency::of(&edge.runs),
                share: json::rounded(edge.share),
                observed: edge.observed,
            })
            .collect(),
        problems: json::problems(&report.problems),
    }
}

fn block<'a>(report: &'a CalcReport, row: &'a BlockRow) -> Block<'a> {
    let cpi = |cycles: f64| digits(cycles / row.instructions.len().max(1) as f64);
    Block {
        start: format!("{:#x}", row.start),
        end: format!("{:#x}", row.end),
        samples: digits(row.samples),
        frequency: Frequency::of(&row.runs),
        best_cpi: row.best.map(cpi),
        cpi: row.cycles.map(cpi),
        instructions: row
            .instructions
            .iter()
            .map(|line| instruction(report, row.runs, line))
            .collect(),
    }
}

fn instruction<'a>(
    report: &'a CalcReport,
    runs: Runs,
    line: &'a InstructionCost,
) -> Instruction<'a> {
    let names = report.events.iter().map(|column| column.event.name.as_str());
    let cost = Cost::of(runs, &line.why, report.scale);
    Instruction {
        address: format!("{:#x}", line.address),
        text: &line.text,
        counts: InOrder(names.zip(line.counts.iter().copied()).collect()),
        samples: line.samples,
        cost,
    }
}

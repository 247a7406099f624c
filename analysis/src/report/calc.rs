//! `dcpi calc` as plain data, as text, JSON and CSV.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::Range;

use code::skid::Skid;
use profiledb::EpochId;
use serde::Serialize;
use serde_json::Value;

use super::csv::record;
use super::json::{self, Event, ProblemEntry};
use super::quantity::{percent, period, plain, thousands};
use super::text::{head, problem_line, selection};
use super::{EventColumn, ImageName, Report, Selection, escape, listing_text};
use crate::problem::Problem;
use crate::scope::ScopeChoice;
use crate::stats::Confidence;

/// `dcpi calc`.
#[derive(Debug)]
pub struct CalcReport {
    /// What was read.
    pub selection: Selection,
    /// The event that counts time.
    pub event: Option<EventColumn>,
    /// The confidence of all intervals.
    pub confidence: Confidence,
    /// Whose samples these are.
    pub whose: ScopeChoice,
    /// The procedure's image.
    pub image: ImageName,
    /// The procedure.
    pub procedure: String,
    /// Where its parts are, as `objdump` shows them.
    pub parts: Vec<Range<u64>>,
    /// How far behind what took the time samples landed.
    pub skid: Skid,
    /// Branches that were seen in it.
    pub branches: u64,
    /// Whether it may go where its edges do not say.
    pub missing_edges: bool,
    /// What was odd in its code, and where.
    pub findings: Vec<(u64, String)>,
    /// Its blocks, by address.
    pub blocks: Vec<BlockRow>,
    /// Its edges, by the block that they leave.
    pub edges: Vec<EdgeRow>,
    /// What the reader must know.
    pub problems: Vec<Problem>,
}

/// A block.
#[derive(Clone, Debug)]
pub struct BlockRow {
    /// Its first byte.
    pub start: u64,
    /// The address after its last byte.
    pub end: u64,
    /// Samples that it took.
    pub samples: f64,
    /// Executions for one of the procedure, and the interval that they are in.
    pub runs: f64,
    /// The least.
    pub low: f64,
    /// The most.
    pub high: f64,
    /// How sure it is beside the other blocks.
    pub confidence: estimate::Confidence,
    /// Time of an execution per instruction, beside the procedure's mean of 1; none where it never ran.
    pub cost: Option<f64>,
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
    /// Samples that it took.
    pub samples: u64,
    /// Time of an execution, beside the mean of the procedure's instructions.
    pub cost: Option<f64>,
}

/// An edge.
#[derive(Clone, Debug)]
pub struct EdgeRow {
    /// The block that it leaves.
    pub from: u64,
    /// Where it goes, if that is a place.
    pub to: Option<u64>,
    /// Why.
    pub kind: &'static str,
    /// Executions for one of the procedure.
    pub runs: f64,
    /// Of its block's executions.
    pub share: f64,
    /// How often it was seen.
    pub observed: u64,
}

/// An interval whose ends are farther apart than by this factor says nothing.
const UNKNOWN: f64 = 100.0;

impl Report for CalcReport {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        self.text_head(out)?;
        for block in &self.blocks {
            writeln!(out)?;
            self.text_block(block, out)?;
        }
        if !self.problems.is_empty() {
            writeln!(out)?;
        }
        self.problems.iter().try_for_each(|problem| writeln!(out, "{}", escape(&problem_line(problem))))
    }

    fn json(&self) -> impl Serialize + '_ {
        calc(self)
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let titles = ["block", "end", "samples", "runs", "low", "high", "confidence", "cost"];
        record(out, &titles.map(str::to_owned))?;
        for block in &self.blocks {
            let number = |value: f64| format!("{value:.6}");
            let cells = [
                format!("{:#x}", block.start),
                format!("{:#x}", block.end),
                number(block.samples),
                number(block.runs),
                number(block.low),
                number(block.high),
                word(block.confidence).to_owned(),
                block.cost.map(number).unwrap_or_default(),
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
    fn text_head(&self, out: &mut dyn Write) -> io::Result<()> {
        selection(&self.selection, out)?;
        let parts: Vec<String> =
            self.parts.iter().map(|part| format!("[{:#x}..{:#x}]", part.start, part.end)).collect();
        head(out, "procedure", &format!("{} {}", self.procedure, parts.join(" and ")))?;
        let path = if self.image.path.is_empty() { &self.image.name } else { &self.image.path };
        head(out, "image", &format!("{path}, {}", self.image.id))?;
        if !self.whose.is_all() {
            head(out, "only", &format!("samples {}", self.whose.shown()))?;
        }
        if let Some(EventColumn { event, counted, .. }) = &self.event {
            let every = period(event.period, &event.unit);
            head(out, "event", &format!("{}: {} samples here, one every {every}", event.name, thousands(*counted)))?;
            let landed = listing_text::landed(Some((event.name.as_str(), self.skid)));
            head(out, "samples", &landed)?;
        }
        head(out, "branches", &format!("{} seen from registers at samples", thousands(self.branches)))?;
        let sure = plain(self.confidence.percent());
        head(
            out,
            "runs",
            &format!(
                "for one entry of the procedure; from–to of {sure} % confidence; (high, medium, low): beside its other blocks"
            ),
        )?;
        head(out, "cost", "time of an execution per instruction, beside the procedure's mean of 1")?;
        if self.missing_edges {
            head(out, "missing", "it has jumps whose targets are not all known: what is behind them is understated")?;
        }
        self.findings.iter().try_for_each(|(at, what)| head(out, "found", &format!("{what} at {at:#x}")))
    }

    fn text_block(&self, block: &BlockRow, out: &mut dyn Write) -> io::Result<()> {
        let all = self.event.as_ref().map_or(0, |event| event.counted).max(1) as f64;
        let (start, end) = (block.start, block.end);
        let known = block.low > 0.0 && block.high / block.low < UNKNOWN;
        let range =
            if known { format!("{}–{}", number(block.low), number(block.high)) } else { "by any factor".to_owned() };
        let runs = format!("runs {}, {range} ({})", number(block.runs), word(block.confidence));
        let cost = block.cost.map(|cost| format!(", cost {}", number(cost))).unwrap_or_default();
        writeln!(out, "{start:#x}..{end:#x}  {runs}, {} % of samples{cost}", percent(block.samples / all))?;
        for line in &block.instructions {
            let cost = line.cost.filter(|_| line.samples > 0).map(number).unwrap_or_default();
            let samples = if line.samples > 0 { thousands(line.samples) } else { String::new() };
            writeln!(out, "{samples:>12} {cost:>8}  {:#x}  {}", line.address, escape(&line.text))?;
        }
        let begin = self.edges.partition_point(|edge| edge.from < block.start);
        let edges = || self.edges.iter().skip(begin).take_while(|edge| edge.from == block.start);
        let guessed = edges().count() > 1 && edges().all(|edge| edge.observed == 0);
        for edge in edges() {
            let to = edge.to.map(|to| format!(" {to:#x}")).unwrap_or_default();
            let seen = match edge.observed {
                0 if guessed => ", estimated: none was seen".to_owned(),
                0 => String::new(),
                times => format!(", seen {}", thousands(times)),
            };
            writeln!(out, "{:>21}  ->{to}  {} % {}{seen}", "", percent(edge.share), edge.kind)?;
        }
        Ok(())
    }
}

/// A number in three or four digits.
fn number(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value if !(1e-3..1e6).contains(&value) => format!("{value:.2e}"),
        value if value >= 100.0 => thousands(value.round() as u64),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.3}"),
    }
}

fn word(confidence: estimate::Confidence) -> &'static str {
    match confidence {
        estimate::Confidence::Low => "low",
        estimate::Confidence::Medium => "medium",
        estimate::Confidence::High => "high",
    }
}

#[derive(Serialize)]
struct Calc<'a> {
    db: &'a str,
    epochs: Vec<&'a EpochId>,
    hosts: Vec<&'a str>,
    events: Vec<Event<'a>>,
    confidence: f64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    only: BTreeMap<&'static str, Value>,
    image: &'a str,
    image_id: String,
    path: &'a str,
    procedure: &'a str,
    skid: u8,
    branches: u64,
    missing_edges: bool,
    findings: Vec<Found<'a>>,
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
struct Frequency {
    value: f64,
    low: f64,
    high: f64,
    confidence: &'static str,
}

#[derive(Serialize)]
struct Block<'a> {
    start: String,
    end: String,
    samples: f64,
    frequency: Frequency,
    /// Null where it never ran.
    cost: Option<f64>,
    instructions: Vec<Instruction<'a>>,
}

#[derive(Serialize)]
struct Instruction<'a> {
    address: String,
    text: &'a str,
    samples: u64,
    frequency: f64,
    cost: Option<f64>,
}

#[derive(Serialize)]
struct Edge {
    from: String,
    to: Option<String>,
    kind: &'static str,
    frequency: f64,
    share: f64,
    observed: u64,
}

fn calc(report: &CalcReport) -> impl Serialize + '_ {
    Calc {
        db: &report.selection.db,
        epochs: report.selection.epoch_ids(),
        hosts: report.selection.hosts(),
        events: report.event.iter().map(json::event).collect(),
        confidence: report.confidence.percent(),
        only: report.whose.parts().iter().map(json::part).collect(),
        image: &report.image.name,
        image_id: report.image.id.to_string(),
        path: &report.image.path,
        procedure: &report.procedure,
        skid: report.skid.instructions(),
        branches: report.branches,
        missing_edges: report.missing_edges,
        findings: report.findings.iter().map(|(at, kind)| Found { address: format!("{at:#x}"), kind }).collect(),
        blocks: report.blocks.iter().map(block).collect(),
        edges: report
            .edges
            .iter()
            .map(|edge| Edge {
                from: format!("{:#x}", edge.from),
                to: edge.to.map(|to| format!("{to:#x}")),
                kind: edge.kind,
                frequency: edge.runs,
                share: edge.share,
                observed: edge.observed,
            })
            .collect(),
        problems: json::problems(&report.problems),
    }
}

fn block(row: &BlockRow) -> Block<'_> {
    Block {
        start: format!("{:#x}", row.start),
        end: format!("{:#x}", row.end),
        samples: row.samples,
        frequency: Frequency { value: row.runs, low: row.low, high: row.high, confidence: word(row.confidence) },
        cost: row.cost,
        instructions: row.instructions.iter().map(|line| instruction_of(line, row.runs)).collect(),
    }
}

fn instruction_of(line: &InstructionCost, frequency: f64) -> Instruction<'_> {
    let InstructionCost { address, text, samples, cost } = line;
    Instruction { address: format!("{address:#x}"), text, samples: *samples, frequency, cost: *cost }
}

//! `dcpi calc` as plain data, as text, JSON and CSV.

use std::io::{self, Write};
use std::ops::Range;

use code::skid::Skid;
use stalls::{Explanation, Scale, TimeBreakdown, Wait};

use super::costs::{self, Cost, Frequency, ROUGHLY, Stall, UNKNOWN, cycle, is_known, number, word};
use super::fields::{Address, Approximate, Fraction, InOrder, Shown};
use super::json::{self, OfProcedure, ProblemEntry};
use super::landed::landed;
use super::loops::{self, LoopRow};
use super::quantity::{self, moment, percent, period, plain, thousands};
use super::table::width;
use super::text::{self, detail, head, machine, note, problem_lines, selection};
use super::{
    EventColumn, ImageName, Report, Selection, Style, escape, heads, hottest, listing_text,
    out_edges,
};
use query::problem::Problem;
use query::scope::ScopeChoice;
use stats::Confidence;

crate::fields! {
    /// Shares are of the procedure's samples of time. CSV has a row per block.
    #[derive(Debug)]
    pub struct CalcReport {
        pub selection (text): Selection;
        /// with the procedure's samples of each
        pub events (text): Vec<EventColumn>;
        /// index of the event that counts time
        pub time (text): usize;
        pub confidence (text): Confidence;
        /// scope of the samples
        pub whose (text): ScopeChoice;
        pub image (text): ImageName;
        pub procedure (text): String;
        /// other names of the procedure in the symbol table
        pub aliases (text): Vec<String>;
        /// names and addresses of its parts, as `objdump` shows them; the first has the
        /// procedure's name
        pub parts (text): Vec<(String, Range<u64>)>;
        of (flat): OfProcedure<'_> = |it| OfProcedure::of(
            &it.selection,
            (&it.events, it.confidence, &it.whose),
            (&it.image, &it.procedure, &it.aliases),
        );
        /// skid of the samples of time
        pub landing (text): Skid;
        /// distance from the instruction that took the time to where samples land
        skid: u8 = |it| it.landing.instructions(), "instructions";
        /// samples left where they landed, because the instruction that took the time is not known
        pub samples_kept: u64, "samples";
        /// branches with observed edges
        pub branches: u64;
        /// whether executions are exact counts
        pub is_exact (text): bool;
        /// true: the graph may lack edges
        pub missing_edges: bool;
        pub findings: Vec<Found>;
        pub machine (flat): Model as ModelJson;
        /// samples per cycle, and the basis of this estimate; none without samples
        pub scale (text): Option<Scale>;
        basis (flat): CyclesBasis = |it| CyclesBasis::of(it.scale);
        /// the procedure's time by cause
        pub sums (text): TimeBreakdown;
        spent (flat): super::stalls::Spent = |it| super::stalls::spent(&it.sums);
        pub loops: Vec<LoopRow>;
        /// blocks that `--hot` left out, and their samples of time
        pub omitted (text): (usize, f64);
        /// by address
        pub blocks (text): Vec<BlockRow>;
        blocks (rows): Vec<Block<'_>>
            = |it| it.blocks.iter().map(|row| block(it, row)).collect();
        pub edges: Vec<EdgeRow>;
        pub problems: Vec<Problem> as Vec<ProblemEntry<'_>>;
    }

    /// A model of a processor.
    #[derive(Debug)]
    pub struct ModelJson {
        /// the processor of the best cases, as LLVM names it
        machine: &'static str;
        /// true: the nearest processor that is known, or the usual one
        machine_assumed: bool;
        /// day of the measurement of its latencies (`dcpi machine`); `null`: they are generic
        latencies_measured: Option<String>;
    }

    /// The basis of the estimated cycles.
    #[derive(Debug)]
    pub struct CyclesBasis {
        /// lower end of the range of true cycles, as a factor of the estimate; `null`: not known
        cycles_factor_least: Option<Approximate>;
        /// upper end of that range; `null`: without bound, or not known
        cycles_factor: Option<Approximate>;
        /// true: cycles are measured, by samples of executed instructions
        cycles_measured: bool;
        /// true: samples tell the cycles of an execution
        cycles_known: bool;
    }

    /// A part of the code that is not known.
    #[derive(Debug)]
    pub struct Found {
        /// address of code whose edges are not known
        pub address: u64 as Address;
        /// the reason
        pub kind: String;
    }

    /// A block.
    #[derive(Debug)]
    pub struct Block<'a> {
        start: Address => "block";
        /// the address after the block's last byte
        end: Address => "end";
        /// samples of time
        samples: Approximate, "samples" => "samples";
        frequency: Frequency => "runs" | "low" | "high" | "confidence";
        /// cycles per instruction, at best; `null`: the block never ran
        best_cpi: Option<Approximate>, "cycles";
        /// estimated cycles per instruction
        cpi: Option<Approximate>, "cycles";
        instructions: Vec<Instruction<'a>>;
        /// instructions of the block
        count (csv): usize, "instructions" => "instructions";
        /// cycles of the block, at best
        best (csv): Option<Approximate>, "cycles" => "best";
        /// estimated cycles of the block
        cycles (csv): Option<Approximate>, "cycles" => "cycles";
        /// cycles of the block, at most
        cycles_most (csv): Option<Approximate>, "cycles" => "cycles_most";
    }

    /// An instruction.
    #[derive(Debug)]
    pub struct Instruction<'a> {
        address: Address;
        /// mnemonic and operands
        text: &'a str;
        counts: InOrder<&'a str, u64>, "samples";
        /// samples of time
        samples: u64, "samples";
        cost (flat): Cost;
    }

    /// An edge, by the block that it leaves.
    #[derive(Clone, Debug)]
    pub struct EdgeRow {
        /// first address of the block that the edge leaves
        pub from: u64 as Address;
        /// target of the edge; `null`: outside of the procedure
        pub to: Option<u64> as Option<Address>;
        /// kind of the edge
        pub kind: &'static str;
        pub runs (text): Runs;
        frequency: Frequency = |it| Frequency::shown(&it.runs);
        /// share of the block's executions that take the edge
        pub share: f64 as Fraction;
        /// number of observations
        pub observed: u64;
        /// of a conditional branch: at most so much of its outcomes, in any direction, follows from
        /// none of the four before (95 %); `null`: not known
        pub untold: Option<f64> as Option<Fraction>;
    }
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
    /// The model's name, a remark if it is assumed, and the source of its latencies.
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
    /// Samples of time among these.
    pub samples: u64,
    /// Cycles and causes of stalls of one execution.
    pub why: Explanation,
}

/// What a graph with unknown jumps means for the numbers.
const MISSING: &str = "the procedure has jumps whose targets are not all known: executions of the blocks behind them are understated";

/// Characters before the column beside an instruction's samples and cycles.
const MARGIN: usize = 24;
/// Further indentation, on a terminal, of the second and later lines of a text in that column.
const NEXT: usize = 2;

impl Report for CalcReport {
    const NAME: &'static str = "calc";
    type Fields<'a> = &'a Self;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        match style.verbose {
            true => self.text_head(style, out)?,
            false => self.brief(style, out)?,
        }
        let samples = self.blocks.iter().map(|block| block.samples).sum::<f64>() + self.omitted.1;
        loops::write(&self.loops, samples, style, out)?;
        if self.scale.is_some() {
            writeln!(out)?;
            super::stalls::write(&self.sums, style, out)?;
        }
        hottest::text(self, style, out)?;
        for block in &self.blocks {
            writeln!(out)?;
            self.text_block(block, style, out)?;
        }
        let mut notes = if style.verbose { Vec::new() } else { self.notes() };
        notes.extend(problem_lines(text::told(&self.problems, style)));
        if !notes.is_empty() {
            writeln!(out)?;
        }
        notes.iter().try_for_each(|line| note(style, out, line))
    }

    fn json(&self) -> &Self {
        self
    }

    fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl CalcReport {
    /// The head without `-v`: procedure and samples in a line, the recording in another.
    fn brief(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        let of = self.events.get(self.time).map_or_else(String::new, |column| {
            let here = quantity::counted(column.equal(), column.event.noun());
            format!("{here} of {}", column.event.name)
        });
        let parts = self.parts.iter();
        let parts =
            parts.map(|(name, at)| listing_text::of_procedure(name, at.clone(), width(&of), style));
        let parts = parts.collect::<Vec<String>>().join(" and ");
        heads::brief(&format!("{parts}: {of}"), &self.selection, &self.whose, style, out)
    }

    /// What a reader without `-v` must know of the numbers.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.omitted.0 > 0 {
            let blocks = quantity::counted(self.omitted.0 as u64, "block");
            notes.push(format!("{blocks} left out (without --hot there are all)"));
        }
        notes.extend(self.events.get(self.time).and_then(EventColumn::one_period));
        notes.extend(costs::not_known(self.scale).map(|why| format!("note: cycles are {why}")));
        if self.missing_edges {
            notes.push(format!("note: {MISSING}"));
        }
        if self.machine.assumed {
            notes.push(format!("note: processor: {}", self.machine.shown()));
        }
        notes
    }

    fn text_head(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        selection(&self.selection, style, out)?;
        let parts = self
            .parts
            .iter()
            .map(|(name, at)| listing_text::of_procedure(name, at.clone(), 0, style));
        head(style, out, "procedure", &parts.collect::<Vec<String>>().join(" and "))?;
        listing_text::also(&self.aliases, style, out)?;
        let path = if self.image.path.is_empty() { &self.image.name } else { &self.image.path };
        detail(style, out, "image", &format!("{path}, {}", self.image.id))?;
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
                let skid = Some((event.name.as_str(), self.landing));
                detail(style, out, "samples", &landed(skid, self.samples_kept))?;
            }
        }
        let branches = match self.is_exact {
            true => "counted, as all executions: dcpi ideal".to_owned(),
            false => {
                let seen = thousands(self.branches);
                format!("{seen} executions observed, from registers at samples")
            }
        };
        detail(style, out, "branches", &branches)?;
        let sure = plain(self.confidence.percent());
        detail(
            style,
            out,
            "times",
            &format!(
                "a block ran for one call of the procedure, with their interval of {sure} % confidence where that in the number is high or medium; low: it may be many times too large or too small"
            ),
        )?;
        self.text_scale(style, out)?;
        if self.missing_edges {
            head(style, out, "missing", MISSING)?;
        }
        self.findings.iter().try_for_each(|of| {
            head(style, out, "found", &format!("{} at {:#x}", of.kind, of.address))
        })
    }

    fn text_block(&self, block: &BlockRow, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        let all = self.events.get(self.time).map_or(0, EventColumn::equal).max(1) as f64;
        let runs = &block.runs;
        let (start, end) = (block.start, block.end);
        let is_low = runs.confidence == estimate::Confidence::Low;
        let known = !is_low && runs.low > 0.0 && runs.high / runs.low < UNKNOWN;
        let sure = word(runs.confidence);
        let range = match known {
            true => format!("{}–{}, {sure} confidence", number(runs.low), number(runs.high)),
            false => format!("{sure} confidence"),
        };
        let times = format!("{} times per call ({range})", number(runs.value));
        let share = percent(block.samples / all);
        let says = format!("{start:#x}..{end:#x}  {share} % of samples, {times}");
        text::line(style, out, MARGIN, &says)?;
        if let Some(cycles) = block.cycles {
            let count = block.instructions.len().max(1) as f64;
            let most =
                block.cycles_most.filter(|most| most.is_finite() && *most > cycles * ROUGHLY);
            let most = most.map(|most| format!(", worst {}", cycle(most))).unwrap_or_default();
            let shown =
                |cycles: f64| format!("{} cycles ({} CPI)", cycle(cycles), cycle(cycles / count));
            let best =
                block.best.map(|best| format!("best case {}, ", shown(best))).unwrap_or_default();
            text::line(
                style,
                out,
                MARGIN,
                &format!("{:>21}  {best}typical {}{most}", "", shown(cycles)),
            )?;
        } else if let Some(best) = block.best {
            let most = block.cycles_most.filter(|most| most.is_finite() && *most > best);
            let most = most.map_or_else(String::new, |most| format!(", worst {}", cycle(most)));
            let best = cycle(best);
            text::line(
                style,
                out,
                MARGIN,
                &format!("{:>21}  best case {best} cycles, typical not known{most}", ""),
            )?;
        }
        for line in &block.instructions {
            self.text_stall(line, style, out)?;
            let taken = (line.samples > 0 && is_known(self.scale)).then(|| cycle(line.why.cycles));
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
    /// The lines `machine` and `cycles` of the head.
    fn text_scale(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        machine(style, out, &self.machine)?;
        head(style, out, "cycles", &costs::cycles(self.scale))
    }

    /// The line before an instruction with its stall and possible causes: a bubble.
    fn text_stall(
        &self,
        line: &InstructionCost,
        style: &Style,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let stall = line.stall(self.scale, self.sums.samples);
        let Some(Stall { least, most, .. }) = stall else { return Ok(()) };
        let why = &line.why;
        if why.best.wait != Wait::Nothing && why.best.cycles >= 1.0 {
            let what = super::stalls::wait(why.best.wait);
            let best = cycle(why.best.cycles);
            text::line(
                style,
                out,
                MARGIN + NEXT,
                &format!("{:>12} {best:>9}  best case: waits for {what}", ""),
            )?;
        }
        let stalled = if !is_known(self.scale) {
            String::new()
        } else if most > least * ROUGHLY {
            format!("{}–{}", cycle(least), cycle(most))
        } else {
            cycle(least)
        };
        text::line(
            style,
            out,
            MARGIN + NEXT,
            &format!("{:>12} {stalled:>9}  stalled: {}", "", line.causes()),
        )
    }
}

impl Shown<&Model> for ModelJson {
    fn shown(of: &Model) -> Self {
        let (machine, machine_assumed) = (of.name, of.assumed);
        Self { machine, machine_assumed, latencies_measured: of.measured_on() }
    }
}

impl CyclesBasis {
    pub(super) fn of(scale: Option<Scale>) -> Self {
        let known = scale.filter(Scale::is_known);
        let factor = |of: fn(Scale) -> f64| {
            let factor = known.map(|scale| scale.samples_per_cycle / of(scale));
            factor.filter(|factor| factor.is_finite()).map(Approximate)
        };
        Self {
            cycles_factor_least: factor(|scale| scale.upper),
            cycles_factor: factor(|scale| scale.lower),
            cycles_measured: scale.is_some_and(|scale| scale.is_measured()),
            cycles_known: known.is_some(),
        }
    }
}

fn block<'a>(report: &'a CalcReport, row: &'a BlockRow) -> Block<'a> {
    let cpi = |cycles: f64| Approximate(cycles / row.instructions.len().max(1) as f64);
    let instructions = row.instructions.iter().map(|line| Instruction {
        address: Address(line.address),
        text: &line.text,
        counts: json::by_event(&report.events, line.counts.iter().copied()),
        samples: line.samples,
        cost: Cost::of(row.runs, &line.why, report.scale),
    });
    Block {
        start: Address(row.start),
        end: Address(row.end),
        samples: Approximate(row.samples),
        frequency: Frequency::shown(&row.runs),
        best_cpi: row.best.map(cpi),
        cpi: row.cycles.map(cpi),
        instructions: instructions.collect(),
        count: row.instructions.len(),
        best: row.best.map(Approximate),
        cycles: row.cycles.map(Approximate),
        cycles_most: row.cycles_most.map(Approximate),
    }
}

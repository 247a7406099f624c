//! `dcpi lost` as plain data, as text, JSON and CSV.

use std::collections::BTreeSet;
use std::io::{self, Write};

use image::ImageId;
use stalls::{Cause, Culprit};
use stats::{Confidence, Occurrences};

use super::costs::{CulpritEntry, cycle, digits, letters, meanings, told};
use super::fields::{Address, Cycles, Executions, Fraction, Interval, Shown as _};
use super::json::{self, Head, ProblemEntry};
use super::quantity::{counted, percent, thousands};
use super::table::{Cell, Colour, Table};
use super::text::{head, note, problem_lines, selection};
use super::{ImageName, ProcedureName, Report, Selection, Style, Suffixes};
use query::problem::Problem;
use query::scope::ScopeChoice;

/// `dcpi lost`. Cycles are of one run of the command.
#[derive(Debug)]
pub struct LostReport {
    /// Database, epochs and hosts that were read.
    pub selection: Selection,
    /// The command whose samples and counts these are.
    pub whose: ScopeChoice,
    /// Runs that were sampled for each that was counted.
    pub runs: f64,
    /// Cycles a second; none where the sampled event counts cycles.
    pub hertz: Option<f64>,
    /// The model of the processor that ideal cycles are of.
    pub machine: String,
    /// The confidence of all intervals.
    pub confidence: Confidence,
    /// Cycles of all code of a run.
    pub spent: Occurrences,
    /// Of these, those of code whose executions were not counted: the kernel, generated code.
    pub uncounted: Occurrences,
    /// Cycles of the counted executions, where nothing waits for memory or guesses wrong.
    pub ideal: f64,
    /// Whether rows are blocks.
    pub by_block: bool,
    /// Rows, those that lost the most first.
    pub rows: Vec<LostRow>,
    /// Rows beyond `-n`.
    pub omitted: usize,
    /// Missing or doubtful data: the notes of the report.
    pub problems: Vec<Problem>,
}

/// A procedure or a block, in one run.
#[derive(Debug)]
pub struct LostRow {
    /// Its image.
    pub image: ImageName,
    /// The procedure.
    pub procedure: ProcedureName,
    /// What a row of a block has beside.
    pub block: Option<LostBlock>,
    /// Samples of all runs.
    pub samples: u64,
    /// Cycles that it took.
    pub spent: Occurrences,
    /// Cycles where nothing waits for memory or guesses wrong.
    pub ideal: f64,
}

/// A block.
#[derive(Debug)]
pub struct LostBlock {
    /// Addresses of its first instruction and of the byte after its last.
    pub addresses: (u64, u64),
    /// Exact executions in a run.
    pub executions: f64,
    /// Possible causes of the longest stall among its instructions.
    pub culprits: Vec<Culprit>,
    /// Whether the causes leave a part of that stall unexplained.
    pub unexplained: bool,
}

impl LostRow {
    /// Cycles of a run beyond the ideal ones.
    pub fn lost(&self) -> Occurrences {
        let of = |spent: f64| spent - self.ideal;
        Occurrences {
            value: of(self.spent.value),
            low: of(self.spent.low),
            high: of(self.spent.high),
        }
    }

    /// Cycles by ideal cycles; none where nothing was executed.
    fn ratio(&self) -> Option<Occurrences> {
        let of = |spent: f64| spent / self.ideal;
        (self.ideal > 0.0).then(|| Occurrences {
            value: of(self.spent.value),
            low: of(self.spent.low),
            high: of(self.spent.high),
        })
    }
}

impl LostReport {
    fn share(&self, cycles: f64) -> f64 {
        cycles / self.spent.value.max(f64::MIN_POSITIVE)
    }

    /// Cycles of counted code beyond the ideal ones.
    fn lost(&self) -> f64 {
        self.spent.value - self.uncounted.value - self.ideal
    }

    /// Cycles as time, where the frequency is known.
    fn time(&self, cycles: f64) -> String {
        match self.hertz {
            Some(hertz) => format!("{} ms", digits(cycles / hertz * 1e3)),
            None => format!("{} million cycles", digits(cycles / 1e6)),
        }
    }

    fn table(&self, style: &Style) -> Table {
        let mut table = Table::default();
        table.number("lost %", "of the time");
        table.number("from–to", "of the time");
        table.number("time %", "of the time");
        table.number("times ideal", "");
        table.number("from–to", "times ideal");
        if self.by_block {
            table.number("executed", "");
            table.number("cycles", "");
            table.number("ideal", "cycles");
            table.words("may be");
            table.words("address");
        }
        table.procedures("procedure");
        table.names("image");
        let names = self.rows.iter();
        let names = names.map(|row| (row.image.name.as_str(), row.procedure.name.as_str()));
        let suffixes = Suffixes::of(names);
        for row in &self.rows {
            let lost = row.lost();
            let share = |cycles: f64| signed_percent(self.share(cycles));
            let ratio = row.ratio();
            let mut cells = vec![
                share(lost.value),
                format!("{}–{}", share(lost.low), share(lost.high)),
                percent(self.share(row.spent.value)),
                ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{:.2}", ratio.value)),
                ratio.map_or_else(String::new, |ratio| {
                    format!("{:.2}–{:.2}", ratio.low, ratio.high)
                }),
            ];
            if let Some(block) = &row.block {
                cells.extend([
                    thousands(block.executions as u64),
                    cycle(row.spent.value / block.executions),
                    cycle(row.ideal / block.executions),
                    letters(&block.culprits, block.unexplained),
                    format!("{:#x}", block.addresses.0),
                ]);
            }
            let mut cells: Vec<Cell> = cells.into_iter().map(Cell::from).collect();
            let (image, procedure) = (&row.image.name, &row.procedure.name);
            cells.push(Cell::name(suffixes.shown(image, procedure, style.full_names)));
            cells.push(Cell::name(image));
            table.coloured(cells, Colour::of_share(self.share(lost.value)));
        }
        table
    }
}

/// A share of 1 in percent; negative shares are allowed.
fn signed_percent(share: f64) -> String {
    if share < 0.0 { format!("-{}", percent(-share)) } else { percent(share) }
}

impl Report for LostReport {
    const NAME: &'static str = "lost";
    type Fields<'a> = LostJson<'a>;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        selection(&self.selection, style, out)?;
        let runs = format!("{} sampled for one counted, {}", digits(self.runs), self.whose.shown());
        head(style, out, "runs", &runs)?;
        if let Some(hertz) = self.hertz {
            head(style, out, "clock", &format!("{:.2} GHz", hertz / 1e9))?;
        }
        head(style, out, "machine", &self.machine)?;
        let part = |cycles: f64| format!("{} %", signed_percent(self.share(cycles)));
        let time = format!(
            "{} a run: {} ideal, {} lost, {} in code that was not counted (kernel, generated)",
            self.time(self.spent.value),
            part(self.ideal),
            part(self.lost()),
            part(self.uncounted.value),
        );
        head(style, out, "time", &time)?;
        writeln!(out)?;
        self.table(style).write(style, out)?;
        if self.omitted > 0 {
            let what = if self.by_block { "more block" } else { "more procedure" };
            writeln!(out, "{} (-n 0 shows all)", counted(self.omitted as u64, what))?;
        }
        writeln!(out)?;
        let confidence = format!(
            "from–to: {} % confidence; lost: cycles beyond those of the model, where all loads hit \
             the first cache and no branch is mispredicted",
            self.confidence.percent()
        );
        note(style, out, &confidence)?;
        let blocks = self.rows.iter().filter_map(|row| row.block.as_ref());
        let causes: BTreeSet<Cause> =
            blocks.flat_map(|block| told(&block.culprits)).map(|told| told.cause).collect();
        if !causes.is_empty() {
            let meanings = meanings(&causes.into_iter().collect::<Vec<_>>());
            note(style, out, &format!("may be: {meanings}? none of these"))?;
        }
        problem_lines(&self.problems).iter().try_for_each(|line| note(style, out, line))
    }

    fn json(&self) -> LostJson<'_> {
        LostJson {
            head: Head::shown(&self.selection),
            runs: self.runs,
            hertz: self.hertz,
            machine: &self.machine,
            confidence: self.confidence,
            spent: self.spent,
            uncounted: self.uncounted,
            ideal: Cycles(self.ideal),
            lost: Cycles(self.lost()),
            rows: self.rows.iter().map(entry).collect(),
            problems: json::problems(&self.problems),
        }
    }

    fn columns(&self) -> Option<Vec<&'static str>> {
        let mut titles = vec!["image", "procedure", "block", "samples"];
        titles.extend(["spent", "spent_low", "spent_high", "ideal", "executions"]);
        Some(titles)
    }

    fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

crate::fields! {
    /// Cycles are those of one run of the command.
    #[derive(Debug)]
    pub struct LostJson<'a> {
        head (flat): Head<'a>;
        /// runs that were sampled for each that was counted
        runs: f64;
        /// clock of the CPUs as measured; null where the event counts cycles
        hertz: Option<f64>, "1/s";
        /// the model that ideal cycles are of, as LLVM names it
        machine: &'a str;
        confidence: Confidence;
        /// all code, by samples
        spent: Occurrences as Interval<Cycles>, "cycles";
        /// of these, code whose executions were not counted
        uncounted: Occurrences as Interval<Cycles>, "cycles";
        /// the counted executions on the model of the processor
        ideal: Cycles;
        /// `spent` without `uncounted` and `ideal`
        lost: Cycles;
        rows (rows): Vec<RowJson<'a>>;
        problems: Vec<ProblemEntry<'a>>;
    }

    /// A procedure or a block.
    #[derive(Debug)]
    pub struct RowJson<'a> {
        /// name
        image: &'a str => "image";
        /// its id
        image_id: ImageId;
        /// name
        procedure: &'a str => "procedure";
        /// with `--by block`; null and empty for procedures
        block: Option<Block>;
        /// of all sampled runs
        samples: u64, "samples" => "samples";
        /// its time
        spent: Occurrences as Interval<Cycles>, "cycles" => "spent" | "spent_low" | "spent_high";
        /// its executions on the model
        ideal: Cycles => "ideal";
        /// `spent` without `ideal`, which may be below 0
        lost: Occurrences as Interval<Cycles>, "cycles";
        /// `spent` by `ideal`; no ratio where nothing was executed
        ratio: Option<Occurrences> as Option<Interval<Fraction>>;
    }

    /// A block.
    #[derive(Debug)]
    pub struct Block {
        /// first instruction
        start: Address => "block";
        /// behind its last instruction
        end: Address;
        /// executions of the block in a run
        executions: Executions => "executions";
        /// possible causes of the block's longest stall
        culprits: Vec<CulpritEntry>;
    }
}

fn entry(row: &LostRow) -> RowJson<'_> {
    RowJson {
        image: &row.image.name,
        image_id: row.image.id,
        procedure: &row.procedure.name,
        block: row.block.as_ref().map(|block| Block {
            start: Address(block.addresses.0),
            end: Address(block.addresses.1),
            executions: Executions(block.executions),
            culprits: CulpritEntry::all(told(&block.culprits), true),
        }),
        samples: row.samples,
        spent: row.spent,
        ideal: Cycles(row.ideal),
        lost: row.lost(),
        ratio: row.ratio(),
    }
}

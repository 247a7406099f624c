//! `dcpi lost` as plain data, as text, JSON and CSV.

use std::collections::BTreeSet;
use std::io::{self, Write};

use serde::Serialize;
use stalls::{Cause, Culprit};
use stats::{Confidence, Occurrences};

use super::costs::{CulpritEntry, cycle, digits, letters, meanings, told};
use super::csv::record;
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
    /// Addresses of its first instruction and behind its last.
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
    #[must_use]
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

/// A share of 1 in percent; of what is below 0, too.
fn signed_percent(share: f64) -> String {
    if share < 0.0 { format!("-{}", percent(-share)) } else { percent(share) }
}

impl Report for LostReport {
    const NAME: &'static str = "lost";

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        selection(&self.selection, style, out)?;
        let runs = format!("{} sampled for one counted, {}", digits(self.runs), self.whose.shown());
        head(style, out, "runs", &runs)?;
        if let Some(hertz) = self.hertz {
            head(style, out, "clock", &format!("{:.2} GHz", hertz / 1e9))?;
        }
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

    fn json(&self) -> impl Serialize + '_ {
        Json {
            head: Head::of(&self.selection),
            runs: self.runs,
            hertz: self.hertz,
            confidence: self.confidence.percent(),
            spent: Cycles::of(self.spent),
            uncounted: Cycles::of(self.uncounted),
            ideal: digits_of(self.ideal),
            lost: digits_of(self.lost()),
            rows: self.rows.iter().map(entry).collect(),
            problems: json::problems(&self.problems),
        }
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let titles = [
            "image",
            "procedure",
            "block",
            "samples",
            "spent",
            "spent_low",
            "spent_high",
            "ideal",
            "executions",
        ];
        record(out, &titles.map(str::to_owned))?;
        for row in &self.rows {
            let block = row.block.as_ref();
            let number = |cycles: f64| digits_of(cycles).to_string();
            let cells = [
                row.image.name.clone(),
                row.procedure.name.clone(),
                block.map(|block| format!("{:#x}", block.addresses.0)).unwrap_or_default(),
                row.samples.to_string(),
                number(row.spent.value),
                number(row.spent.low),
                number(row.spent.high),
                number(row.ideal),
                block.map(|block| format!("{:.0}", block.executions)).unwrap_or_default(),
            ];
            record(out, &cells)?;
        }
        Ok(())
    }

    fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

/// Cycles rounded to whole ones: more digits say nothing.
fn digits_of(cycles: f64) -> f64 {
    cycles.round()
}

#[derive(Serialize)]
struct Json<'a> {
    #[serde(flatten)]
    head: Head<'a>,
    runs: f64,
    hertz: Option<f64>,
    confidence: f64,
    /// Cycles of a run, as all below.
    spent: Cycles,
    uncounted: Cycles,
    ideal: f64,
    lost: f64,
    rows: Vec<Row<'a>>,
    problems: Vec<ProblemEntry<'a>>,
}

#[derive(Serialize)]
struct Cycles {
    value: f64,
    low: f64,
    high: f64,
}

impl Cycles {
    fn of(cycles: Occurrences) -> Self {
        let [value, low, high] = [cycles.value, cycles.low, cycles.high].map(digits_of);
        Self { value, low, high }
    }
}

#[derive(Serialize)]
struct Row<'a> {
    image: &'a str,
    image_id: String,
    procedure: &'a str,
    block: Option<Block>,
    samples: u64,
    spent: Cycles,
    ideal: f64,
    lost: Cycles,
    /// `spent` by `ideal`; null where nothing was executed.
    ratio: Option<json::Share>,
}

#[derive(Serialize)]
struct Block {
    start: String,
    end: String,
    executions: f64,
    culprits: Vec<CulpritEntry>,
}

fn entry(row: &LostRow) -> Row<'_> {
    let ratio = row.ratio().map(|Occurrences { value, low, high }| {
        json::Share::of(&stats::Share { value, low, high })
    });
    Row {
        image: &row.image.name,
        image_id: row.image.id.to_string(),
        procedure: &row.procedure.name,
        block: row.block.as_ref().map(|block| Block {
            start: format!("{:#x}", block.addresses.0),
            end: format!("{:#x}", block.addresses.1),
            executions: block.executions,
            culprits: told(&block.culprits)
                .map(|culprit| CulpritEntry::of(culprit, true))
                .collect(),
        }),
        samples: row.samples,
        spent: Cycles::of(row.spent),
        ideal: digits_of(row.ideal),
        lost: Cycles::of(row.lost()),
        ratio,
    }
}

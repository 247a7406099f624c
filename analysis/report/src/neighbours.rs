//! `dcpi callers` and `dcpi callees`.

use std::io::{self, Write};

use serde::Serialize;

use super::csv::{fraction, record};
use super::json::{self, ProblemEntry, Share};
use super::quantity::{counted, percent};
use super::stacks::{CalleeJson, HeadJson, amount, interval};
use super::table::{Cell, Colour, Table};
use super::text::{head, image_cell, note, problem_lines};
use super::{Callee, OfStacks, Report, Style, Suffixes};
use query::problem::Problem;

/// The callers or the callees of a procedure.
#[derive(Debug)]
pub struct Neighbours {
    /// What the report is of.
    pub of: OfStacks,
    /// The procedure.
    pub procedure: Callee,
    /// Its time with all that it called.
    pub time: f64,
    /// The share of all time that this is.
    pub inclusive: stats::Share,
    /// The callers or callees, those with the most time first.
    pub rows: Vec<NeighbourRow>,
    /// Number of rows beyond `-n`.
    pub omitted: usize,
    /// Missing or doubtful data: the notes of the report.
    pub problems: Vec<Problem>,
}

/// A caller or callee.
#[derive(Clone, Debug)]
pub struct NeighbourRow {
    /// The procedure.
    pub procedure: Callee,
    /// The part of the time.
    pub time: f64,
    /// Its share.
    pub share: stats::Share,
    /// Number of stacks that tell of it.
    pub stacks: u64,
}

/// `dcpi callers`, or else `dcpi callees`.
#[derive(Debug)]
pub struct NeighboursReport<const OF_CALLERS: bool>(Neighbours);

/// `dcpi callers`.
pub type CallersReport = NeighboursReport<true>;
/// `dcpi callees`.
pub type CalleesReport = NeighboursReport<false>;

impl<const OF_CALLERS: bool> NeighboursReport<OF_CALLERS> {
    /// The report.
    #[must_use]
    pub const fn new(neighbours: Neighbours) -> Self {
        Self(neighbours)
    }
}

impl Neighbours {
    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        self.of.head(style, out)?;
        let Callee { name, image, .. } = &self.procedure;
        let image = image.as_ref().map(|image| format!(" of {}", image.name)).unwrap_or_default();
        let (share, ends) = (percent(self.inclusive.value), interval(self.inclusive));
        let time = amount(self.time, &self.of.event.unit);
        let with = format!("{time} with all that it called, {share} % of all ({ends})");
        head(style, out, "procedure", &super::escape(&format!("{name}{image}: {with}")))?;
        self.of.shares("that time", style, out)?;
        writeln!(out)?;
        self.table(style).write(style, out)?;
        let mut notes = Vec::new();
        if self.omitted > 0 {
            let more = counted(self.omitted as u64, "more procedure");
            notes.push(format!("{more} (-n 0 shows all)"));
        }
        // Procedures without name have rows that say so.
        notes.extend(problem_lines(self.problems.iter().filter(|of| of.is_serious())));
        if !notes.is_empty() {
            writeln!(out)?;
        }
        notes.iter().try_for_each(|line| note(style, out, line))
    }

    fn table(&self, style: &Style) -> Table {
        let mut table = Table::default();
        table.number("%", "");
        table.number("low–high", "");
        table.number("time", "");
        table.number(if self.of.event.is_counted { "calls" } else { "stacks" }, "");
        table.spared();
        table.procedures("procedure");
        table.names("image");
        fn names(row: &NeighbourRow) -> (&str, &str) {
            let image = row.procedure.image.as_ref().map_or("", |image| image.name.as_str());
            (image, &row.procedure.name)
        }
        let suffixes = Suffixes::of(self.rows.iter().map(names));
        for row in &self.rows {
            let (image, name) = names(row);
            let at = row.procedure.address.map(|at| format!(" [{at:#x}]")).unwrap_or_default();
            let cells = vec![
                percent(row.share.value).into(),
                interval(row.share).into(),
                amount(row.time, &self.of.event.unit).into(),
                super::quantity::thousands(row.stacks).into(),
                Cell::name(suffixes.shown(image, name, style.full_names)).apart(at),
                row.procedure.image.as_ref().map(image_cell).unwrap_or_default(),
            ];
            table.coloured(cells, Colour::of_share(row.share.value));
        }
        table
    }

    fn json(&self) -> impl Serialize + '_ {
        NeighboursJson {
            head: self.of.json(),
            procedure: self.procedure.json(),
            inclusive: Inclusive {
                time: self.time.round() as u64,
                share: Share::of(&self.inclusive),
            },
            rows: self
                .rows
                .iter()
                .map(|row| RowJson {
                    procedure: row.procedure.json(),
                    share: Share::of(&row.share),
                    time: row.time.round() as u64,
                    stacks: row.stacks,
                })
                .collect(),
            omitted: Omitted { rows: self.omitted },
            problems: json::problems(&self.problems),
        }
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let titles = [
            "procedure",
            "image",
            "image_id",
            "address",
            "share",
            "share_low",
            "share_high",
            "time",
            "stacks",
        ];
        record(out, &titles.map(str::to_owned))?;
        for row in &self.rows {
            let mut cells = row.procedure.cells().to_vec();
            cells.extend([row.share.value, row.share.low, row.share.high].map(fraction));
            cells.extend([row.time.round().to_string(), row.stacks.to_string()]);
            record(out, &cells)?;
        }
        Ok(())
    }
}

#[derive(Serialize)]
struct NeighboursJson<'a> {
    #[serde(flatten)]
    head: HeadJson<'a>,
    #[serde(flatten)]
    procedure: CalleeJson<'a>,
    inclusive: Inclusive,
    rows: Vec<RowJson<'a>>,
    omitted: Omitted,
    problems: Vec<ProblemEntry<'a>>,
}

#[derive(Serialize)]
struct Inclusive {
    time: u64,
    #[serde(flatten)]
    share: Share,
}

#[derive(Serialize)]
struct Omitted {
    rows: usize,
}

#[derive(Serialize)]
struct RowJson<'a> {
    #[serde(flatten)]
    procedure: CalleeJson<'a>,
    share: Share,
    time: u64,
    stacks: u64,
}

impl<const OF_CALLERS: bool> Report for NeighboursReport<OF_CALLERS> {
    const NAME: &'static str = if OF_CALLERS { "callers" } else { "callees" };

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        self.0.text(style, out)
    }

    fn json(&self) -> impl Serialize + '_ {
        self.0.json()
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        self.0.csv(out)
    }

    fn problems(&self) -> &[Problem] {
        &self.0.problems
    }
}

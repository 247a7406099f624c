//! `dcpi tree`: the tree of calls.

use std::io::{self, Write};

use serde::Serialize;

use super::csv::{fraction, record};
use super::json::{self, ProblemEntry, Share, rounded};
use super::quantity::{counted, percent};
use super::stacks::{CalleeJson, HeadJson, amount, interval};
use super::table::{Cell, Colour, Table};
use super::text::{head, image_cell, note, problem_lines};
use super::{Callee, OfStacks, Report, Style};
use query::problem::Problem;

/// `dcpi tree`.
#[derive(Debug)]
pub struct TreeReport {
    /// What the report is of.
    pub of: OfStacks,
    /// The only root, where the tree is of the time of one procedure.
    pub from: Option<Callee>,
    /// Whether the tree begins at the procedures that took the time.
    pub is_bottom_up: bool,
    /// The nodes, each before those below it, siblings by time.
    pub rows: Vec<TreeRow>,
    /// Number of nodes that were left out, and their share of all time.
    pub omitted: (usize, f64),
    /// Missing or doubtful data: the notes of the report.
    pub problems: Vec<Problem>,
}

/// A node of the tree of calls.
#[derive(Clone, Debug)]
pub struct TreeRow {
    /// The procedure.
    pub procedure: Callee,
    /// Number of nodes above it.
    pub depth: usize,
    /// Index of the row above it in the tree.
    pub parent: Option<usize>,
    /// Its time with that of all nodes below it.
    pub time: f64,
    /// The share of all time that this is.
    pub share: stats::Share,
    /// Share of all time that is its own.
    pub own: f64,
}

/// Deepest indentation of a row: deeper ones only count their depth.
const INDENT_MAX: usize = 40;

impl TreeReport {
    fn table(&self, style: &Style) -> Table {
        let mut table = Table::default();
        table.number("%", "");
        table.number("low–high", "");
        table.number("own %", "");
        table.number("time", "");
        table.spared();
        table.number("depth", "");
        table.texts("procedure");
        table.names("image");
        for row in &self.rows {
            let indent = " ".repeat(row.depth.min(INDENT_MAX));
            let brief = match style.full_names {
                true => row.procedure.name.clone(),
                false => names::shorten::brief(image::without_suffix(&row.procedure.name)),
            };
            let cells = vec![
                percent(row.share.value).into(),
                interval(row.share).into(),
                percent(row.own).into(),
                amount(row.time, &self.of.event.unit).into(),
                row.depth.to_string().into(),
                Cell::name(&format!("{indent}{brief}")),
                row.procedure.image.as_ref().map(image_cell).unwrap_or_default(),
            ];
            table.coloured(cells, Colour::of_share(row.share.value));
        }
        table
    }
}

impl Report for TreeReport {
    const NAME: &'static str = "tree";

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        self.of.head(style, out)?;
        match &self.from {
            None => self.of.shares("all time", style, out)?,
            Some(Callee { name, image, .. }) => {
                let image = image.as_ref().map(|of| format!(" of {}", of.name)).unwrap_or_default();
                let from = format!("{name}{image}, with all that it called");
                head(style, out, "from", &super::escape(&from))?;
                self.of.shares("that time", style, out)?;
            }
        }
        writeln!(out)?;
        self.table(style).write(style, out)?;
        let mut notes = Vec::new();
        let (nodes, share) = self.omitted;
        if nodes > 0 {
            let calls = counted(nodes as u64, "more call");
            notes
                .push(format!("{calls} with {} % of the time (--min 0 shows all)", percent(share)));
        }
        // Procedures without name have rows that say so.
        notes.extend(problem_lines(self.problems.iter().filter(|of| of.is_serious())));
        if !notes.is_empty() {
            writeln!(out)?;
        }
        notes.iter().try_for_each(|line| note(style, out, line))
    }

    fn json(&self) -> impl Serialize + '_ {
        TreeJson {
            head: self.of.json(),
            from: self.from.as_ref().map(Callee::json),
            direction: if self.is_bottom_up { "bottom-up" } else { "top-down" },
            rows: self
                .rows
                .iter()
                .map(|row| RowJson {
                    depth: row.depth,
                    parent: row.parent,
                    procedure: row.procedure.json(),
                    share: Share::of(&row.share),
                    own: rounded(row.own),
                    time: row.time.round() as u64,
                })
                .collect(),
            omitted: Omitted { rows: self.omitted.0, share: rounded(self.omitted.1) },
            problems: json::problems(&self.problems),
        }
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let titles = [
            "depth",
            "procedure",
            "image",
            "image_id",
            "address",
            "share",
            "share_low",
            "share_high",
            "own",
            "time",
        ];
        record(out, &titles.map(str::to_owned))?;
        for row in &self.rows {
            let mut cells = vec![row.depth.to_string()];
            cells.extend(row.procedure.cells());
            cells.extend([row.share.value, row.share.low, row.share.high, row.own].map(fraction));
            cells.push(row.time.round().to_string());
            record(out, &cells)?;
        }
        Ok(())
    }

    fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

#[derive(Serialize)]
struct TreeJson<'a> {
    #[serde(flatten)]
    head: HeadJson<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<CalleeJson<'a>>,
    direction: &'static str,
    rows: Vec<RowJson<'a>>,
    omitted: Omitted,
    problems: Vec<ProblemEntry<'a>>,
}

#[derive(Serialize)]
struct Omitted {
    rows: usize,
    share: f64,
}

#[derive(Serialize)]
struct RowJson<'a> {
    depth: usize,
    /// Index of the row above it in the tree.
    parent: Option<usize>,
    #[serde(flatten)]
    procedure: CalleeJson<'a>,
    share: Share,
    own: f64,
    time: u64,
}

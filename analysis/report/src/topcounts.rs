//! `dcpi topcounts`.

use std::io::{self, Write};

use serde::Serialize;

use super::csv::{fraction, record};
use super::json::{self, Event, InOrder, ProblemEntry};
use super::quantity::{counted, percent, plain, thousands};
use super::table::{Cell, Colour, Table};
use super::text::{
    LANDED, event_head, head, image_cell, no_samples, note, problem_lines, selection,
};
use super::{EventColumn, ImageName, Report, Selection, Style, Suffixes};
use query::problem::Problem;
use query::scope::ScopeChoice;
use stats::tally::{self, Tally};
use stats::{Confidence, Share};

/// The key that sorts instructions, as indices of the events.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Sort {
    /// Samples of an event.
    Event(usize),
    /// Ratio of the occurrences of two events.
    Ratio(usize, usize),
}

/// `dcpi topcounts`.
#[derive(Debug)]
pub struct TopcountsReport {
    /// Database, epochs and hosts that were read.
    pub selection: Selection,
    /// The events, in order of columns.
    pub events: Vec<EventColumn>,
    /// The key that sorts rows.
    pub sort: Sort,
    /// The confidence of all intervals.
    pub confidence: Confidence,
    /// Label, unit or process whose samples these are; all, if none is chosen.
    pub whose: ScopeChoice,
    /// Whether rows and shares include the idle loop.
    pub with_idle: bool,
    /// The rows, in order.
    pub rows: Vec<InstructionRow>,
    /// Number of rows beyond `-n`.
    pub omitted: usize,
    /// Number of rows with too few samples.
    pub folded: usize,
    /// Fewest samples of a row that is shown.
    pub min_samples: u64,
    /// Missing or doubtful data: the notes of the report.
    pub problems: Vec<Problem>,
}

/// An instruction.
#[derive(Clone, Debug)]
pub struct InstructionRow {
    /// Its image.
    pub image: ImageName,
    /// The procedure of the instruction, if it is known.
    pub procedure: Option<String>,
    /// Bytes from the procedure's begin.
    pub into: u64,
    /// Its address: in a file as `objdump` shows it, else the offset in the image.
    pub address: u64,
    /// Offset in the image, as in the database.
    pub offset: u64,
    /// Samples by event.
    pub counts: Vec<Tally>,
    /// Share of [`EventColumn::counted`], by event.
    pub shares: Vec<Share>,
    /// The ratio that rows are sorted by; none where an event never had a counter.
    pub ratio: Option<Share>,
}

impl TopcountsReport {
    fn event(&self, at: usize) -> &str {
        self.events.get(at).map_or("", |column| &column.event.name)
    }

    fn sorted_by(&self) -> String {
        match self.sort {
            Sort::Event(event) => self.event(event).to_owned(),
            Sort::Ratio(top, bottom) => format!("{}/{}", self.event(top), self.event(bottom)),
        }
    }

    fn has_ratio(&self) -> bool {
        matches!(self.sort, Sort::Ratio(..))
    }

    fn table(&self, style: &Style) -> Table {
        let mut table = Table::default();
        let single = self.events.len() == 1;
        for column in &self.events {
            let group = if single { "" } else { &column.event.name };
            table.number("samples", group);
            table.number("%", group);
            table.number(if single { "low–high" } else { "±" }, group);
        }
        if self.has_ratio() {
            table.number("ratio", "ratio");
            table.number("low–high", "ratio");
        }
        table.number("address", "");
        table.procedures("instruction");
        table.names("image");
        fn names(row: &InstructionRow) -> (&str, &str) {
            (&row.image.name, row.procedure.as_deref().unwrap_or_default())
        }
        let suffixes = Suffixes::of(self.rows.iter().map(names));
        let by = match self.sort {
            Sort::Event(event) | Sort::Ratio(event, _) => event,
        };
        for row in &self.rows {
            let mut cells: Vec<Cell> = self.numbers(row).into_iter().map(Cell::from).collect();
            cells.push(match &row.procedure {
                Some(name) => Cell::name(suffixes.shown(&row.image.name, name, style.full_names))
                    .tail(format!("+{:#x}", row.into)),
                None => format!("[unknown] {:#x}", row.address).into(),
            });
            cells.push(image_cell(&row.image));
            table.coloured(
                cells,
                row.shares.get(by).and_then(|share| Colour::of_share(share.value)),
            );
        }
        table
    }

    fn numbers(&self, row: &InstructionRow) -> Vec<String> {
        let mut cells = Vec::new();
        for (count, share) in row.counts.iter().zip(&row.shares) {
            let interval = if self.events.len() == 1 {
                format!("{}–{}", percent(share.low), percent(share.high))
            } else {
                percent(share.reach())
            };
            cells.extend([thousands(count.samples), percent(share.value), interval]);
        }
        if self.has_ratio() {
            let unknown = || ["?".to_owned(), String::new()];
            let known = |ratio: Share| {
                [number(ratio.value), format!("{}–{}", number(ratio.low), number(ratio.high))]
            };
            cells.extend(row.ratio.map_or_else(unknown, known));
        }
        cells.push(format!("{:x}", row.address));
        cells
    }

    fn notes(&self) -> Vec<String> {
        let is_empty = self.rows.is_empty() && self.folded == 0;
        let mut notes = if is_empty { no_samples(&self.problems) } else { Vec::new() };
        if self.omitted > 0 {
            notes.push(format!(
                "{} (-n 0 shows all)",
                counted(self.omitted as u64, "more instruction")
            ));
        }
        if self.folded > 0 {
            let what = match self.sort {
                Sort::Event(event) => self.event(event).to_owned(),
                Sort::Ratio(top, bottom) => {
                    format!("{} and {} together", self.event(top), self.event(bottom))
                }
            };
            let folded = counted(self.folded as u64, "instruction");
            let few = counted(self.min_samples, "sample");
            notes.push(format!("{folded} with fewer than {few} of {what} left out"));
        }
        // Images without procedures have rows that say so.
        let more = problem_lines(&self.problems).into_iter().filter(|line| !notes.contains(line));
        let more: Vec<String> = more.collect();
        notes.extend(more);
        notes
    }
}

/// A ratio, with about three digits.
fn number(ratio: f64) -> String {
    if !ratio.is_finite() {
        return "∞".to_owned();
    }
    match ratio {
        0.0 => "0".to_owned(),
        small if small < 0.001 => format!("{small:.1e}"),
        small if small < 1.0 => format!("{small:.4}"),
        some if some < 100.0 => format!("{some:.2}"),
        many => thousands(many.round() as u64),
    }
}

#[derive(Serialize)]
struct TopcountsJson<'a> {
    db: &'a str,
    epochs: Vec<&'a profiledb::EpochId>,
    hosts: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<json::Time>,
    events: Vec<Event<'a>>,
    sorted_by: String,
    confidence: f64,
    rows: Vec<RowJson<'a>>,
    omitted: Rows,
    folded: Folded,
    problems: Vec<ProblemEntry<'a>>,
}

#[derive(Serialize)]
struct Rows {
    rows: usize,
}

#[derive(Serialize)]
struct Folded {
    rows: usize,
    min_samples: u64,
}

#[derive(Serialize)]
struct RowJson<'a> {
    image: &'a str,
    image_id: String,
    kind: &'static str,
    procedure: Option<&'a str>,
    /// Bytes from the procedure's begin.
    procedure_offset: Option<u64>,
    address: String,
    /// Offset in the image, as in the database.
    offset: u64,
    counts: InOrder<&'a str, u64>,
    share: InOrder<&'a str, json::Share>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<RatioJson>,
}

/// Null: infinite.
#[derive(Serialize)]
struct RatioJson {
    value: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
}

impl Report for TopcountsReport {
    const NAME: &'static str = "topcounts";

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        selection(&self.selection, style, out)?;
        self.events.iter().try_for_each(|column| event_head(column, self.with_idle, style, out))?;
        if !self.whose.is_all() {
            head(style, out, "only", &format!("samples {}", self.whose.shown()))?;
        }
        let sure = plain(self.confidence.percent());
        head(style, out, "samples", LANDED)?;
        head(
            style,
            out,
            "sorted by",
            &format!("{}; intervals of {sure} % confidence", self.sorted_by()),
        )?;
        writeln!(out)?;
        self.table(style).write(style, out)?;
        let notes = self.notes();
        if !notes.is_empty() {
            writeln!(out)?;
        }
        notes.iter().try_for_each(|line| note(style, out, line))
    }

    fn json(&self) -> impl Serialize + '_ {
        let row = |row: &InstructionRow| {
            let finite = |number: f64| number.is_finite().then(|| json::rounded(number));
            row.ratio.map(|it| RatioJson {
                value: finite(it.value),
                low: finite(it.low),
                high: finite(it.high),
            })
        };
        let names = || self.events.iter().map(|column| column.event.name.as_str());
        let rows = self.rows.iter().map(|shown| RowJson {
            image: &shown.image.name,
            image_id: shown.image.id.to_string(),
            kind: shown.image.kind.as_str(),
            procedure: shown.procedure.as_deref(),
            procedure_offset: shown.procedure.is_some().then_some(shown.into),
            address: format!("{:#x}", shown.address),
            offset: shown.offset,
            counts: InOrder(names().zip(tally::samples(&shown.counts)).collect()),
            share: InOrder(names().zip(shown.shares.iter().map(json::Share::of)).collect()),
            ratio: row(shown),
        });
        TopcountsJson {
            db: &self.selection.db,
            epochs: self.selection.epoch_ids(),
            hosts: self.selection.hosts(),
            time: json::time(&self.selection),
            events: self.events.iter().map(json::event).collect(),
            sorted_by: self.sorted_by(),
            confidence: self.confidence.percent(),
            rows: rows.collect(),
            omitted: Rows { rows: self.omitted },
            folded: Folded { rows: self.folded, min_samples: self.min_samples },
            problems: json::problems(&self.problems),
        }
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut titles: Vec<String> =
            ["image", "image_id", "procedure", "procedure_offset", "address"]
                .map(str::to_owned)
                .into();
        for column in &self.events {
            let name = &column.event.name;
            titles.extend([
                name.clone(),
                format!("{name}_share"),
                format!("{name}_low"),
                format!("{name}_high"),
            ]);
        }
        if self.has_ratio() {
            titles.extend(["ratio", "ratio_low", "ratio_high"].map(str::to_owned));
        }
        record(out, &titles)?;
        for row in &self.rows {
            let into = row.procedure.as_ref().map(|_| row.into.to_string()).unwrap_or_default();
            let mut cells = vec![row.image.name.clone(), row.image.id.to_string()];
            cells.extend([
                row.procedure.clone().unwrap_or_default(),
                into,
                format!("{:#x}", row.address),
            ]);
            for (count, share) in row.counts.iter().zip(&row.shares) {
                cells.extend([
                    count.samples.to_string(),
                    fraction(share.value),
                    fraction(share.low),
                    fraction(share.high),
                ]);
            }
            if self.has_ratio() {
                let ratio = row.ratio.map(|it| [it.value, it.low, it.high].map(fraction));
                cells.extend(ratio.unwrap_or_default());
            }
            record(out, &cells)?;
        }
        Ok(())
    }

    fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

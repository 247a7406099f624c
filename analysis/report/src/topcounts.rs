//! `dcpi topcounts`.

use std::io::{self, Write};

use image::ImageId;

use super::fields::{Address, Bound, InOrder, Interval, Shares};
use super::json::{self, Event, Head, OmittedRows, ProblemEntry};
use super::landed::LANDED;
use super::quantity::{counted, percent, plain, thousands};
use super::table::{Cell, Colour, Table};
use super::text::{
    self, brief, counts, detail, event_head, head, image_cell, no_samples, note, problem_lines,
    selection,
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

crate::fields! {
    /// Shares are of `events[].counted`. The ratio's columns come with `--sort EVENT/EVENT`.
    #[derive(Debug)]
    pub struct TopcountsReport {
        pub selection (flat): Selection as Head<'_>;
        pub events: Vec<EventColumn> as Vec<Event<'_>>;
        /// the key that sorts rows
        pub sort (text): Sort;
        /// event, or ratio of two events, that rows are sorted by
        sorted_by: String = Self::sorted_by;
        pub confidence: Confidence;
        /// scope of the samples
        pub whose (text): ScopeChoice;
        /// whether rows and shares include the idle loop
        pub with_idle (text): bool;
        pub found (text): Vec<InstructionRow>;
        rows (rows): Vec<RowJson<'_>> = Self::row_entries;
        pub omitted: OmittedRows;
        pub folded: FewSamples;
        pub problems: Vec<Problem> as Vec<ProblemEntry<'_>>;
    }

    /// Rows with too few samples.
    #[derive(Debug)]
    pub struct FewSamples {
        /// rows with too few samples for a ratio
        pub rows: usize;
        /// number of samples that a row needs
        pub min_samples: u64, "samples";
    }

    /// An instruction.
    #[derive(Debug)]
    pub struct RowJson<'a> {
        /// name
        image: &'a str => "image";
        /// id
        image_id: ImageId => "image_id";
        /// as of `dcpi prof`
        kind: &'static str;
        /// name; `null`: the instruction is in no procedure
        procedure: Option<&'a str> => "procedure";
        /// distance from the procedure's begin
        procedure_offset: Option<u64>, "bytes" => "procedure_offset";
        address: Address => "address";
        offset: u64, "offset";
        counts: InOrder<&'a str, u64>, "samples" => "EVENT";
        share: Shares<'a>, "share" => "EVENT_share" | "EVENT_low" | "EVENT_high";
        /// occurrences of the first event divided by those of the second; `null`: the second has
        /// none, or without bound
        ratio (maybe): &'a Option<Share> as Option<Interval<Bound>>
            => "ratio" | "ratio_low" | "ratio_high";
    }
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
    fn row_entries(&self) -> Vec<RowJson<'_>> {
        let rows = self.found.iter().map(|row| RowJson {
            image: &row.image.name,
            image_id: row.image.id,
            kind: row.image.kind.as_str(),
            procedure: row.procedure.as_deref(),
            procedure_offset: row.procedure.is_some().then_some(row.into),
            address: Address(row.address),
            offset: row.offset,
            counts: json::by_event(&self.events, tally::samples(&row.counts)),
            share: json::by_event(&self.events, row.shares.iter().copied()),
            ratio: &row.ratio,
        });
        rows.collect()
    }

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
        let suffixes = Suffixes::of(self.found.iter().map(names));
        let by = match self.sort {
            Sort::Event(event) | Sort::Ratio(event, _) => event,
        };
        for row in &self.found {
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

    fn notes(&self, style: &Style) -> Vec<String> {
        let is_empty = self.found.is_empty() && self.folded.rows == 0;
        let mut notes = if is_empty { no_samples(&self.problems) } else { Vec::new() };
        if self.omitted.rows > 0 {
            notes.push(format!(
                "{} (-n 0 shows all)",
                counted(self.omitted.rows as u64, "more instruction")
            ));
        }
        if self.folded.rows > 0 {
            let what = match self.sort {
                Sort::Event(event) => self.event(event).to_owned(),
                Sort::Ratio(top, bottom) => {
                    format!("{} and {} together", self.event(top), self.event(bottom))
                }
            };
            let folded = counted(self.folded.rows as u64, "instruction");
            let few = counted(self.folded.min_samples, "sample");
            notes.push(format!("{folded} with fewer than {few} of {what} left out"));
        }
        // Images without procedures have rows that say so.
        let more = problem_lines(text::told(&self.problems, style))
            .into_iter()
            .filter(|line| !notes.contains(line));
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

impl TopcountsReport {
    /// The table and its notes.
    fn body(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out)?;
        self.table(style).write(style, out)?;
        let notes = self.notes(style);
        if !notes.is_empty() {
            writeln!(out)?;
        }
        notes.iter().try_for_each(|line| note(style, out, line))
    }
}

impl Report for TopcountsReport {
    const NAME: &'static str = "topcounts";
    type Fields<'a> = &'a Self;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        if !style.verbose {
            let event = self.events.first().map(|column| column.event.name.as_str());
            let by = self.sorted_by();
            let by = if event == Some(&by) { String::new() } else { format!(", sorted by {by}") };
            let counts = format!("{}{by}", counts(&self.events, self.with_idle));
            brief(&counts, &self.selection, &self.whose, style, out)?;
            return self.body(style, out);
        }
        selection(&self.selection, style, out)?;
        self.events.iter().try_for_each(|column| event_head(column, self.with_idle, style, out))?;
        if !self.whose.is_all() {
            head(style, out, "only", &format!("samples {}", self.whose.shown()))?;
        }
        let sure = plain(self.confidence.percent());
        detail(style, out, "samples", LANDED)?;
        head(
            style,
            out,
            "sorted by",
            &format!("{}; intervals of {sure} % confidence", self.sorted_by()),
        )?;
        self.body(style, out)
    }

    fn json(&self) -> &Self {
        self
    }

    fn columns(&self) -> Option<Vec<&'static str>> {
        let mut titles = vec!["image", "image_id", "procedure", "procedure_offset", "address"];
        titles.extend(json::EVENT_TITLES);
        titles
            .extend(["ratio", "ratio_low", "ratio_high"].into_iter().filter(|_| self.has_ratio()));
        Some(titles)
    }

    fn keys(&self, _: &str) -> Vec<String> {
        json::event_keys(&self.events)
    }

    fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

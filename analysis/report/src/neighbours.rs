//! `dcpi callers` and `dcpi callees`.

use std::io::{self, Write};

use super::fields::{Fraction, Whole};
use super::json::{self, OmittedRows, ProblemEntry};
use super::quantity::{counted, percent};
use super::stacks::{CalleeJson, HeadJson, amount, interval};
use super::table::{Cell, Colour, Table};
use super::text::{head, image_cell, note, problem_lines};
use super::{Callee, OfStacks, Report, Style, Suffixes};
use query::problem::Problem;

/// The callers or the callees of a procedure.
#[derive(Debug)]
pub struct Neighbours {
    /// The subject of the report.
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

crate::fields! {
    /// A caller or callee.
    #[derive(Clone, Debug)]
    pub struct NeighbourRow {
        /// the procedure
        pub procedure (flat): Callee as CalleeJson<'_>;
        /// its share
        pub share: stats::Share, "share" => "share" | "share_low" | "share_high";
        /// the part of the time
        pub time: f64 as Whole, "event's unit" => "time";
        /// number of stacks that tell of the row
        pub stacks: u64 => "stacks";
    }

    /// Shares are of the time of the procedure with all that it called. A row is a caller, or a
    /// callee or the procedure itself.
    #[derive(Debug)]
    pub struct NeighboursJson<'a> {
        head (flat): &'a OfStacks as HeadJson<'_>;
        procedure (flat): &'a Callee as CalleeJson<'_>;
        inclusive: Inclusive;
        rows (rows): &'a Vec<NeighbourRow>;
        omitted: OmittedRows;
        problems: Vec<ProblemEntry<'a>>;
    }

    /// Time of the procedure with all that it called.
    #[derive(Debug)]
    pub struct Inclusive {
        /// of the procedure with all that it called
        time: f64 as Whole, "event's unit";
        /// that time, of all time
        value: f64 as Fraction, "share";
        /// lower end of its interval
        low: f64 as Fraction, "share";
        /// upper end of its interval
        high: f64 as Fraction, "share";
    }
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
        let ends = if self.of.event.counted { String::new() } else { format!(" ({ends})") };
        let with = format!("{time} with all that it called, {share} % of all{ends}");
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
        if !self.of.event.counted {
            table.number("low–high", "");
        }
        table.number("time", "");
        table.number(if self.of.event.counted { "calls" } else { "stacks" }, "");
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
            let mut cells: Vec<Cell> = vec![percent(row.share.value).into()];
            if !self.of.event.counted {
                cells.push(interval(row.share).into());
            }
            cells.extend([
                amount(row.time, &self.of.event.unit).into(),
                super::quantity::thousands(row.stacks).into(),
                Cell::name(suffixes.shown(image, name, style.full_names)).apart(at),
                row.procedure.image.as_ref().map(image_cell).unwrap_or_default(),
            ]);
            table.coloured(cells, Colour::of_share(row.share.value));
        }
        table
    }

    fn json(&self) -> NeighboursJson<'_> {
        let stats::Share { value, low, high } = self.inclusive;
        NeighboursJson {
            head: &self.of,
            procedure: &self.procedure,
            inclusive: Inclusive { time: self.time, value, low, high },
            rows: &self.rows,
            omitted: OmittedRows { rows: self.omitted },
            problems: json::problems(&self.problems),
        }
    }
}

impl<const OF_CALLERS: bool> Report for NeighboursReport<OF_CALLERS> {
    const NAME: &'static str = if OF_CALLERS { "callers" } else { "callees" };
    type Fields<'a> = NeighboursJson<'a>;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        self.0.text(style, out)
    }

    fn json(&self) -> NeighboursJson<'_> {
        self.0.json()
    }

    fn problems(&self) -> &[Problem] {
        &self.0.problems
    }
}

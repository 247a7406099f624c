//! `dcpi callers` and `dcpi callees`.

use std::io::{self, Write};

use super::fields::{Fraction, Whole};
use super::json::{OmittedRows, ProblemEntry};
use super::quantity::{counted, percent};
use super::stacks::{CalleeJson, HeadJson, amount, interval};
use super::table::{Cell, Colour, Table};
use super::text::{detail, image_cell, note, problem_lines};
use super::{Callee, OfStacks, Report, Style, Suffixes};
use query::problem::Problem;
use stats::Share;

crate::fields! {
    /// A caller or callee.
    #[derive(Clone, Debug)]
    pub struct NeighbourRow {
        /// the procedure
        pub procedure (flat): Callee as CalleeJson<'_>;
        /// its share
        pub share: Share, "share" => "share" | "share_low" | "share_high";
        /// the part of the time
        pub time: f64 as Whole, "event's unit" => "time";
        /// number of stacks that tell of the row
        pub stacks: u64 => "stacks";
    }

    /// Shares are of the time of the procedure with all that it called. A row is a caller, or a
    /// callee or the procedure itself.
    #[derive(Debug)]
    pub struct Neighbours {
        pub of (flat): OfStacks as HeadJson<'_>;
        pub procedure (flat): Callee as CalleeJson<'_>;
        pub inclusive: Inclusive;
        pub rows (rows): Vec<NeighbourRow>;
        pub omitted: OmittedRows;
        pub problems: Vec<Problem> as Vec<ProblemEntry<'_>>;
    }

    /// Time of the procedure with all that it called.
    #[derive(Debug)]
    pub struct Inclusive {
        /// of the procedure with all that it called
        pub time: f64 as Whole, "event's unit";
        pub share (text): Share;
        /// that time, of all time
        value: Fraction = |it| Fraction(it.share.value), "share";
        /// lower end of its interval
        low: Fraction = |it| Fraction(it.share.low), "share";
        /// upper end of its interval
        high: Fraction = |it| Fraction(it.share.high), "share";
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
        let (share, ends) = (percent(self.inclusive.share.value), interval(self.inclusive.share));
        let time = amount(self.inclusive.time, &self.of.event.unit);
        let ends = if self.of.event.counted { String::new() } else { format!(" ({ends})") };
        let with = format!("{time} with all that it called, {share} % of all{ends}");
        let subject = format!("{}: {with}", self.procedure.whole());
        self.of.head(Some(subject.clone()), style, out)?;
        detail(style, out, "procedure", &subject)?;
        self.of.shares("that time", style, out)?;
        writeln!(out)?;
        self.table(style).write(style, out)?;
        let mut notes = Vec::new();
        if self.omitted.rows > 0 {
            let more = counted(self.omitted.rows as u64, "more procedure");
            notes.push(format!("{more} (-n 0 shows all)"));
        }
        // Procedures without name have rows that say so.
        let told = self.problems.iter().filter(|of| of.is_serious() || of.is_of_name());
        notes.extend(problem_lines(told));
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
            (image, row.procedure.shown())
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
                Cell::name(suffixes.shown(image, name, style.full_names))
                    .tail(row.procedure.tail())
                    .apart(at),
                row.procedure.image.as_ref().map(image_cell).unwrap_or_default(),
            ]);
            table.coloured(cells, Colour::of_share(row.share.value));
        }
        table
    }
}

impl<const OF_CALLERS: bool> Report for NeighboursReport<OF_CALLERS> {
    const NAME: &'static str = if OF_CALLERS { "callers" } else { "callees" };
    type Fields<'a> = &'a Neighbours;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        self.0.text(style, out)
    }

    fn json(&self) -> &Neighbours {
        &self.0
    }

    fn problems(&self) -> &[Problem] {
        &self.0.problems
    }
}

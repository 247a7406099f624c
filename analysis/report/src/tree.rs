//! `dcpi tree`: the tree of calls.

use std::io::{self, Write};

use super::fields::{Fraction, Whole};
use super::json::ProblemEntry;
use super::quantity::{counted, percent};
use super::stacks::{CalleeJson, HeadJson, amount, interval};
use super::table::{Cell, Colour, Table};
use super::text::{head, image_cell, note, problem_lines};
use super::{Callee, OfStacks, Report, Style};
use query::problem::Problem;

crate::fields! {
    /// A node of the tree of calls.
    #[derive(Clone, Debug)]
    pub struct TreeRow {
        /// number of calls above
        pub depth: usize => "depth";
        /// index in `rows` of the call above; `null`: none
        pub parent: Option<usize>;
        /// the procedure
        pub procedure (flat): Callee as CalleeJson<'_>;
        /// of the call with all below it
        pub share: stats::Share, "share" => "share" | "share_low" | "share_high";
        /// of the procedure itself; with `bottom-up`, callers have none
        pub own: f64 as Fraction, "share" => "own";
        /// of the call with all below it
        pub time: f64 as Whole, "event's unit" => "time";
    }

    /// A row per call, each before the calls below it. Shares are of all time.
    #[derive(Debug)]
    pub struct TreeReport {
        pub of (flat): OfStacks as HeadJson<'_>;
        /// with `--from`: the procedure that the tree begins at; shares are of its time with all
        /// that it called
        pub from (maybe): Option<Callee> as Option<CalleeJson<'_>>;
        /// `top-down`, or `bottom-up`: below a procedure are its callers
        pub direction: &'static str;
        pub rows (rows): Vec<TreeRow>;
        pub omitted: OmittedCalls;
        pub problems: Vec<Problem> as Vec<ProblemEntry<'_>>;
    }

    /// Calls that were left out.
    #[derive(Debug)]
    pub struct OmittedCalls {
        /// calls below `--min`
        pub rows: usize;
        /// of these calls
        pub share: f64 as Fraction, "share";
    }
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
                Cell::name(&format!("{indent}{brief}")).tail(row.procedure.tail()),
                row.procedure.image.as_ref().map(image_cell).unwrap_or_default(),
            ];
            table.coloured(cells, Colour::of_share(row.share.value));
        }
        table
    }
}

impl Report for TreeReport {
    const NAME: &'static str = "tree";
    type Fields<'a> = &'a Self;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        self.of.head(style, out)?;
        match &self.from {
            None => self.of.shares("all time", style, out)?,
            Some(from) => {
                let from = format!("{}, with all that it called", from.whole());
                head(style, out, "from", &super::escape(&from))?;
                self.of.shares("that time", style, out)?;
            }
        }
        writeln!(out)?;
        self.table(style).write(style, out)?;
        let mut notes = Vec::new();
        let OmittedCalls { rows: nodes, share } = self.omitted;
        if nodes > 0 {
            let calls = counted(nodes as u64, "more call");
            notes
                .push(format!("{calls} with {} % of the time (--min 0 shows all)", percent(share)));
        }
        // Procedures without name have rows that say so.
        let told = self.problems.iter().filter(|of| of.is_serious() || of.is_of_name());
        notes.extend(problem_lines(told));
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

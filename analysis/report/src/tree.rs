//! `dcpi tree`: the tree of calls.

use std::io::{self, Write};

use super::fields::{Fraction, Whole};
use super::json::ProblemEntry;
use super::quantity::{counted, percent};
use super::stacks::{CalleeJson, HeadJson, amount, interval};
use super::table::{Cell, Colour, Table};
use super::text::{detail, image_cell, note, problem_lines};
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
        /// with `--by-thread`: the thread that a root stands for
        pub thread (maybe): Option<TreeThread>;
    }

    /// A thread, or several of one name.
    #[derive(Clone, Debug)]
    pub struct TreeThread {
        /// its process's command
        pub command: String;
        /// number of its process; `null`: of several
        pub pid: Option<u32>;
        /// its name
        pub name: String;
        /// its number; `null`: of several
        pub tid: Option<u32>;
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

/// A row of a text: a call, with those above it that only lead to it.
struct Folded<'a> {
    row: &'a TreeRow,
    /// Rows above it, of which each is indented less.
    depth: usize,
    /// The calls that have no row of their own, the outermost first.
    above: Vec<&'a TreeRow>,
}

/// The name of a row of a chain of calls: the first of those `above`, how many are in between, and
/// the last.
pub(super) fn chain(mut above: Vec<String>, last: String) -> String {
    if let [first, middle @ .., _] = above.as_slice()
        && !middle.is_empty()
    {
        let calls = counted(middle.len() as u64 + 1, "call");
        above = vec![first.clone(), format!("({calls})")];
    }
    above.push(last);
    above.join(" > ")
}

impl TreeReport {
    /// The rows of a text: with `-v` and in full all, else a chain of calls of which each has no
    /// time of its own and only one call below it is one row.
    fn folded(&self, style: &Style) -> Vec<Folded<'_>> {
        let is_whole = style.verbose || style.full_names;
        let mut below = vec![0_usize; self.rows.len()];
        for parent in self.rows.iter().filter_map(|row| row.parent) {
            below.iter_mut().skip(parent).take(1).for_each(|calls| *calls += 1);
        }
        let mut depths: Vec<usize> = Vec::new();
        let mut folded = Vec::new();
        let mut above: Vec<&TreeRow> = Vec::new();
        for (at, row) in self.rows.iter().enumerate() {
            let parent = row.parent.and_then(|parent| depths.get(parent)).copied();
            // A call of a chain counts as deep as the chain's row, the call below it as well.
            let depth = parent.map_or(0, |depth| depth + usize::from(above.is_empty()));
            depths.push(depth);
            let next = self.rows.get(at + 1).filter(|next| next.parent == Some(at));
            let leads = next.filter(|_| below.get(at) == Some(&1)).is_some_and(|next| {
                percent(next.share.value) == percent(row.share.value)
                    && row.procedure.image.is_some()
                    && percent(row.own) == percent(0.0)
            });
            if leads && !is_whole {
                above.push(row);
            } else {
                folded.push(Folded { row, depth, above: std::mem::take(&mut above) });
            }
        }
        folded
    }

    fn table(&self, style: &Style) -> Table {
        let mut table = Table::default();
        table.number("%", "");
        table.number("low–high", "");
        table.number("own %", "");
        table.number("time", "");
        table.spared();
        table.number("depth", "");
        table.spared();
        table.texts("procedure");
        // Beside source lines, whose files tell what code it is, names have the room of images.
        let of_lines = self.rows.iter().any(|row| row.procedure.line.is_some());
        if of_lines {
            table.of_lines();
        } else {
            table.names("image");
        }
        let brief = |callee: &Callee| match style.full_names {
            true => callee.shown().to_owned(),
            false => names::shorten::brief(image::without_suffix(callee.shown())),
        };
        for Folded { row, depth, above } in self.folded(style) {
            let indent = " ".repeat(depth.min(INDENT_MAX));
            let above = above.iter().map(|row| brief(&row.procedure)).collect();
            let brief = chain(above, brief(&row.procedure));
            let image = row.procedure.image.as_ref();
            let of_image = image.filter(|_| of_lines && row.procedure.line.is_none());
            let tail = of_image.map_or_else(
                || row.procedure.tail(),
                |image| format!("{} {}", row.procedure.tail(), image.name),
            );
            let mut cells = vec![
                percent(row.share.value).into(),
                interval(row.share).into(),
                percent(row.own).into(),
                amount(row.time, &self.of.event.unit).into(),
                row.depth.to_string().into(),
                Cell::name(&format!("{indent}{brief}")).tail(tail),
            ];
            cells.extend(image.filter(|_| !of_lines).map(image_cell));
            table.coloured(cells, Colour::of_share(row.share.value));
        }
        table
    }
}

impl Report for TreeReport {
    const NAME: &'static str = "tree";
    type Fields<'a> = &'a Self;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        let from = self.from.as_ref();
        let from = from.map(|from| format!("{}, with all that it called", from.whole()));
        self.of.head(from.clone().map(|from| format!("from {from}")), style, out)?;
        match &from {
            None => self.of.shares("all time", style, out)?,
            Some(from) => {
                detail(style, out, "from", from)?;
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

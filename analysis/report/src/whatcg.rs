//! `dcpi whatcg` as plain data, as text, JSON and CSV.

use std::io::{self, Write};

use stalls::TimeBreakdown;

use super::calc::ModelJson;
use super::fields::Part;
use super::json::{Event, Head, ProblemEntry};
use super::quantity::{counted, percent, thousands};
use super::text::{detail, head, machine, note, problem_lines, selection};
use super::{EventColumn, Model, Report, Selection, Style, stalls as spent};
use query::problem::Problem;

crate::fields! {
    /// Shares are of `explained`. CSV has a row per cause; rows whose names begin with `=` are
    /// sums.
    #[derive(Debug)]
    pub struct WhatcgReport {
        pub selection (flat): Selection as Head<'_>;
        pub events: Vec<EventColumn> as Vec<Event<'_>>;
        pub machine (flat): Model as ModelJson;
        /// procedures that were explained
        pub procedures: u64;
        /// samples of time in the report
        pub samples: u64, "samples";
        /// samples among these in procedures that were explained
        pub explained: u64, "samples";
        /// the time of these procedures by cause
        pub sums (text): TimeBreakdown;
        spent (flat): spent::Spent = |it| spent::spent(&it.sums);
        pub problems: Vec<Problem> as Vec<ProblemEntry<'_>>;
        parts (csvrows): Vec<PartRow> = |it| it.parts();
    }

    /// A part of the time.
    #[derive(Debug)]
    pub struct PartRow {
        /// a cause of stalls, or another part of the time
        name: String => "name";
        /// share of the time that the part took, at least
        low: Part => "low";
        /// share of the time that the part took, at most
        high: Part => "high";
    }
}

/// What the sums at the end rest on.
const SPLIT: &str = "into dynamic, static and execution: between the fewest and the most executions that 19 of 20 procedures have";

impl WhatcgReport {
    fn parts(&self) -> Vec<PartRow> {
        let part = |(name, low, high)| PartRow { name, low: Part(low), high: Part(high) };
        spent::rows(&self.sums).into_iter().map(part).collect()
    }
}

impl Report for WhatcgReport {
    const NAME: &'static str = "whatcg";
    type Fields<'a> = &'a Self;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        selection(&self.selection, style, out)?;
        machine(style, out, &self.machine)?;
        let part = percent(self.explained as f64 / self.samples.max(1) as f64);
        let (explained, all) = (thousands(self.explained), counted(self.samples, "sample"));
        let of = format!(
            "{} with {explained} of {all} ({part} %)",
            counted(self.procedures, "procedure")
        );
        head(style, out, "explained", &of)?;
        detail(style, out, "split", SPLIT)?;
        writeln!(out)?;
        spent::text(&self.sums, style, out)?;
        let sum = spent::total(&self.sums);
        head(style, out, "", &format!("{:<44} {:>18}", "total", format!("{} %", percent(sum))))?;
        problem_lines(&self.problems).iter().try_for_each(|line| note(style, out, line))
    }

    fn json(&self) -> &Self {
        self
    }

    fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

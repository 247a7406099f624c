//! `dcpi whatcg` as plain data, as text, JSON and CSV.

use std::io::{self, Write};

use stalls::TimeBreakdown;

use super::calc::ModelJson;
use super::fields::{Part, Shown as _};
use super::json::{self, Event, Head, ProblemEntry};
use super::quantity::{counted, percent, thousands};
use super::text::{head, note, problem_lines, selection};
use super::{EventColumn, Model, Report, Selection, Style, stalls as spent};
use query::problem::Problem;

/// `dcpi whatcg`.
#[derive(Debug)]
pub struct WhatcgReport {
    /// Database, epochs and hosts that were read.
    pub selection: Selection,
    /// The events, with the samples of the chosen images.
    pub events: Vec<EventColumn>,
    /// The model of the processor that gives the best cases.
    pub machine: Model,
    /// Number of procedures that were explained.
    pub procedures: u64,
    /// Samples of time of the chosen images.
    pub samples: u64,
    /// Samples of time of the procedures that were explained.
    pub explained: u64,
    /// The time of these procedures by cause.
    pub sums: TimeBreakdown,
    /// Missing or doubtful data: the notes of the report.
    pub problems: Vec<Problem>,
}

/// The assumption behind the sums at the end.
const SPLIT: &str = "into dynamic, static and execution: without samples of instructions, assuming typical stalls (3 times the best case)";

impl Report for WhatcgReport {
    const NAME: &'static str = "whatcg";
    type Fields<'a> = Whatcg<'a>;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        selection(&self.selection, style, out)?;
        head(style, out, "machine", &self.machine.shown())?;
        let part = percent(self.explained as f64 / self.samples.max(1) as f64);
        let (explained, all) = (thousands(self.explained), counted(self.samples, "sample"));
        let of = format!(
            "{} with {explained} of {all} ({part} %)",
            counted(self.procedures, "procedure")
        );
        head(style, out, "explained", &of)?;
        head(style, out, "split", SPLIT)?;
        writeln!(out)?;
        spent::text(&self.sums, style, out)?;
        let sum = spent::total(&self.sums);
        head(style, out, "", &format!("{:<44} {:>18}", "total", format!("{} %", percent(sum))))?;
        problem_lines(&self.problems).iter().try_for_each(|line| note(style, out, line))
    }

    fn json(&self) -> Whatcg<'_> {
        let part = |(name, low, high)| PartRow { name, low: Part(low), high: Part(high) };
        Whatcg {
            head: Head::shown(&self.selection),
            events: &self.events,
            model: &self.machine,
            procedures: self.procedures,
            samples: self.samples,
            explained: self.explained,
            spent: spent::spent(&self.sums),
            problems: json::problems(&self.problems),
            parts: spent::rows(&self.sums).into_iter().map(part).collect(),
        }
    }

    fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

crate::fields! {
    /// Shares are of `explained`. CSV has a row per cause; rows whose names begin with `=` are
    /// sums.
    #[derive(Debug)]
    pub struct Whatcg<'a> {
        head (flat): Head<'a>;
        events: &'a Vec<EventColumn> as Vec<Event<'_>>;
        model (flat): &'a Model as ModelJson;
        /// procedures that were explained
        procedures: u64;
        /// samples of time in the report
        samples: u64, "samples";
        /// samples among these in procedures that were explained
        explained: u64, "samples";
        spent (flat): spent::Spent;
        problems: Vec<ProblemEntry<'a>>;
        parts (csvrows): Vec<PartRow>;
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

//! `dcpi whatcg` as plain data, as text, JSON and CSV.

use std::io::{self, Write};

use serde::Serialize;
use stalls::TimeBreakdown;

use super::csv::record;
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

    fn json(&self) -> impl Serialize + '_ {
        Whatcg {
            head: Head::of(&self.selection),
            events: self.events.iter().map(json::event).collect(),
            machine: self.machine.name,
            machine_assumed: self.machine.assumed,
            latencies_measured: self.machine.measured_on(),
            procedures: self.procedures,
            samples: self.samples,
            explained: self.explained,
            spent: spent::spent(&self.sums),
            problems: json::problems(&self.problems),
        }
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        record(out, &["name", "low", "high"].map(str::to_owned))?;
        for (name, low, high) in spent::rows(&self.sums) {
            record(out, &[name, format!("{low:.6}"), format!("{high:.6}")])?;
        }
        Ok(())
    }

    fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

#[derive(Serialize)]
struct Whatcg<'a> {
    #[serde(flatten)]
    head: Head<'a>,
    events: Vec<Event<'a>>,
    machine: &'static str,
    machine_assumed: bool,
    latencies_measured: Option<String>,
    procedures: u64,
    samples: u64,
    explained: u64,
    #[serde(flatten)]
    spent: spent::Spent,
    problems: Vec<ProblemEntry<'a>>,
}

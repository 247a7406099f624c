//! `dcpi topstalls` as plain data, as text, JSON and CSV.

use std::collections::BTreeSet;
use std::io::{self, Write};

use estimate::Confidence;
use stalls::{Cause, Culprit};

use super::calc::ModelJson;
use super::costs::{CulpritEntry, cycle, letters, meanings, told, word};
use super::fields::{Address, Part, Thousandths};
use super::json::{Event, Head, ProblemEntry};
use super::quantity::{counted, percent};
use super::table::{Cell, Colour, Table};
use super::text::{head, machine, note, problem_lines, selection};
use super::{EventColumn, Model, Report, Selection, Style, Suffixes};
use query::problem::Problem;

crate::fields! {
    #[derive(Debug)]
    pub struct TopstallsReport {
        pub selection (flat): Selection as Head<'_>;
        pub events: Vec<EventColumn> as Vec<Event<'_>>;
        pub machine (flat): Model as ModelJson;
        /// samples of time in the report
        pub samples: u64, "samples";
        /// samples among these in procedures that were explained
        pub explained: u64, "samples";
        /// the longest stalls, in order
        pub stalls (text): Vec<StallRow>;
        rows (rows): Vec<RowJson<'_>>
            = |it| it.stalls.iter().map(|row| entry(row, it.samples)).collect();
        /// rows beyond `-n`
        pub omitted (text): usize;
        pub problems: Vec<Problem> as Vec<ProblemEntry<'_>>;
    }

    /// A stalled instruction.
    #[derive(Debug)]
    pub struct RowJson<'a> {
        /// time beyond the instruction's best case, as a share of `samples`
        stall: Part => "stall";
        /// that time, at most
        most: Part => "most";
        /// cycles beyond the best case
        cycles: Option<Thousandths>, "cycles" => "cycles";
        /// confidence of the executions: `high`, `medium`, `low`
        confidence: &'static str => "confidence";
        /// name
        image: &'a str => "image";
        /// name
        procedure: &'a str => "procedure";
        address: Address => "address";
        /// mnemonic and operands
        text: &'a str => "instruction";
        culprits: Vec<CulpritEntry>;
        /// letters of the largest causes
        letters (csv): String => "letters";
    }
}

/// A stalled instruction.
#[derive(Clone, Debug)]
pub struct StallRow {
    /// Samples beyond the best case.
    pub stall: f64,
    /// Samples beyond the best case, for the fewest executions that are possible.
    pub most: f64,
    /// Cycles of each execution beyond the best case, if they are known.
    pub cycles: Option<f64>,
    /// Confidence in the number of executions.
    pub confidence: Confidence,
    /// Possible causes of the stall.
    pub culprits: Vec<Culprit>,
    /// Whether the causes leave a part of the stall unexplained.
    pub unexplained: bool,
    /// Its image.
    pub image: String,
    /// Its procedure.
    pub procedure: String,
    /// Its first byte.
    pub address: u64,
    /// Mnemonic and operands.
    pub text: String,
}

impl Report for TopstallsReport {
    const NAME: &'static str = "topstalls";
    type Fields<'a> = &'a Self;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        selection(&self.selection, style, out)?;
        machine(style, out, &self.machine)?;
        let part = percent(self.explained as f64 / self.samples.max(1) as f64);
        head(
            style,
            out,
            "explained",
            &format!("{part} % of {} of time", counted(self.samples, "sample")),
        )?;
        writeln!(out)?;
        let mut table = Table::default();
        table.number("stall %", "");
        table.number("up to %", "");
        table.spared();
        table.number("cycles", "");
        table.words("sure");
        table.spared();
        table.words("may be");
        table.words("address");
        table.texts("instruction");
        table.procedures("procedure");
        table.names("image");
        let suffixes = Suffixes::of(
            self.stalls.iter().map(|row| (row.image.as_str(), row.procedure.as_str())),
        );
        let share = |samples: f64| percent(samples / self.samples.max(1) as f64);
        for row in &self.stalls {
            let numbers = [
                share(row.stall),
                share(row.most),
                row.cycles.map_or_else(|| "?".to_owned(), cycle),
                word(row.confidence).to_owned(),
                letters(&row.culprits, row.unexplained),
                format!("{:#x}", row.address),
            ];
            let procedure = suffixes.shown(&row.image, &row.procedure, style.full_names);
            let names = [row.text.as_str(), procedure, &row.image].map(Cell::name);
            table.coloured(
                numbers.map(Cell::from).into_iter().chain(names).collect::<Vec<_>>(),
                Colour::of_share(row.stall / self.samples.max(1) as f64),
            );
        }
        table.write(style, out)?;
        if self.omitted > 0 {
            writeln!(out, "{} (-n 0 shows all)", counted(self.omitted as u64, "more instruction"))?;
        }
        writeln!(out)?;
        let causes: BTreeSet<Cause> =
            self.stalls.iter().flat_map(|row| told(&row.culprits)).map(|told| told.cause).collect();
        if !causes.is_empty() {
            let meanings = meanings(&causes.into_iter().collect::<Vec<_>>());
            note(style, out, &format!("may be: {meanings}? none of these"))?;
        }
        problem_lines(&self.problems).iter().try_for_each(|line| note(style, out, line))
    }

    fn json(&self) -> &Self {
        self
    }

    fn columns(&self) -> Option<Vec<&'static str>> {
        let mut titles = vec!["stall", "most", "cycles", "confidence", "letters", "address"];
        titles.extend(["instruction", "procedure", "image"]);
        Some(titles)
    }

    fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

fn entry(row: &StallRow, samples: u64) -> RowJson<'_> {
    let share = |part: f64| Part(part / samples.max(1) as f64);
    RowJson {
        stall: share(row.stall),
        most: share(row.most),
        cycles: row.cycles.map(Thousandths),
        confidence: word(row.confidence),
        image: &row.image,
        procedure: &row.procedure,
        address: Address(row.address),
        text: &row.text,
        culprits: CulpritEntry::all(row.culprits.iter(), row.cycles.is_some()),
        letters: letters(&row.culprits, row.unexplained),
    }
}

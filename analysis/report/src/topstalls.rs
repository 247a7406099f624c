//! `dcpi topstalls` as plain data, as text, JSON and CSV.

use std::io::{self, Write};

use super::calc::ModelJson;
use super::fields::{Address, Fraction};
use super::json::{Event, Head, ProblemEntry};
use super::quantity::{counted, percent};
use super::table::{Cell, Colour, Table};
use super::text::{self, explained_head, note, problem_lines};
use super::why::{MechanismName, WhyFinding};
use super::{EventColumn, Model, Report, Selection, Style, Suffixes};
use query::problem::Problem;
use stats::Share;

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
        /// the pieces of code that could gain most, in order
        pub stalls (text): Vec<StallRow>;
        rows (rows): Vec<RowJson<'_>> = |it| it.stalls.iter().map(entry).collect();
        /// rows beyond `-n`
        pub omitted (text): usize;
        pub problems: Vec<Problem> as Vec<ProblemEntry<'_>>;
    }

    /// A piece of code, and the instruction that takes its time.
    #[derive(Debug)]
    pub struct RowJson<'a> {
        /// share of the time that the piece of code takes
        share: Share, "share" => "share" | "share_low" | "share_high";
        /// share of the time that would be gained without the mechanism
        stall: Share, "share" => "stall" | "stall_low" | "stall_high";
        /// what takes the time, as in `dcpi why`
        mechanism: MechanismName => "mechanism";
        /// `certain`, `likely`, `possible` or `unknown`, as in `dcpi why`
        certainty: &'static str => "certainty";
        /// of the mechanism
        probability: Fraction => "probability";
        /// name
        image: &'a str => "image";
        /// name
        procedure: &'a str => "procedure";
        address: Address => "address";
        /// mnemonic and operands
        text: &'a str => "instruction";
    }
}

/// A piece of code, and the instruction that takes its time.
#[derive(Clone, Debug)]
pub struct StallRow {
    /// The piece of code, with the address of the instruction.
    pub finding: WhyFinding,
    /// Mnemonic and operands.
    pub text: String,
}

impl StallRow {
    fn image(&self) -> &str {
        self.finding.image.as_deref().unwrap_or_default()
    }

    fn procedure(&self) -> &str {
        self.finding.procedure.as_deref().unwrap_or_default()
    }

    fn address(&self) -> u64 {
        self.finding.address.unwrap_or_default()
    }
}

impl Report for TopstallsReport {
    const NAME: &'static str = "topstalls";
    type Fields<'a> = &'a Self;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        let part = percent(self.explained as f64 / self.samples.max(1) as f64);
        let of = format!("{part} % of {} of time", counted(self.samples, "sample"));
        explained_head((&self.selection, &self.machine), &of, style, out)?;
        writeln!(out)?;
        let mut table = Table::default();
        table.number("lost %", "");
        table.number("at most %", "");
        table.spared();
        table.words("why");
        table.words("certainty");
        table.words("address");
        table.texts("instruction");
        table.procedures("procedure");
        table.names("image");
        let suffixes = Suffixes::of(self.stalls.iter().map(|row| (row.image(), row.procedure())));
        for row in &self.stalls {
            let WhyFinding { gain, mechanism, .. } = &row.finding;
            let numbers = [
                percent(gain.value),
                percent(gain.high),
                mechanism.name().replace('_', " "),
                row.finding.certainty().word().to_owned(),
                format!("{:#x}", row.address()),
            ];
            let procedure = suffixes.shown(row.image(), row.procedure(), style.full_names);
            let names = [row.text.as_str(), procedure, row.image()].map(Cell::name);
            table.coloured(
                numbers.map(Cell::from).into_iter().chain(names).collect(),
                Colour::of_share(gain.value),
            );
        }
        table.write(style, out)?;
        if self.omitted > 0 {
            writeln!(out, "{} (-n 0 shows all)", counted(self.omitted as u64, "more row"))?;
        }
        let notes = problem_lines(text::told(&self.problems, style));
        if !notes.is_empty() {
            writeln!(out)?;
        }
        notes.iter().try_for_each(|line| note(style, out, line))
    }

    fn json(&self) -> &Self {
        self
    }

    fn columns(&self) -> Option<Vec<&'static str>> {
        let mut titles = vec!["share", "share_low", "share_high"];
        titles.extend([
            "stall",
            "stall_low",
            "stall_high",
            "mechanism",
            "certainty",
            "probability",
        ]);
        titles.extend(["address", "instruction", "procedure", "image"]);
        Some(titles)
    }

    fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

fn entry(row: &StallRow) -> RowJson<'_> {
    RowJson {
        share: row.finding.share,
        stall: row.finding.gain,
        mechanism: MechanismName::of(row.finding.mechanism),
        certainty: row.finding.certainty().word(),
        probability: Fraction(row.finding.probability),
        image: row.image(),
        procedure: row.procedure(),
        address: Address(row.address()),
        text: &row.text,
    }
}

//! `dcpi truth` as plain data, as text, JSON and CSV.

use std::io::{self, Write};

use estimate::truth::{ProcedureScore, Score};
use serde::Serialize;

use super::csv::record;
use super::json::{self, Head, ProblemEntry};
use super::quantity::{counted, thousands};
use super::table::{Cell, Table};
use super::text::{head, note, problem_lines, selection};
use super::{Model, Report, Selection, Style, Suffixes};
use query::problem::Problem;

/// `dcpi truth`.
#[derive(Debug)]
pub struct TruthReport {
    /// Database, epochs and hosts that were read.
    pub selection: Selection,
    /// The file of exact counts.
    pub counts: String,
    /// The model of the processor that cycles are estimated with; none where they are not.
    pub model: Option<Model>,
    /// Samples of the images that were counted.
    pub samples: u64,
    /// Fewest samples of a procedure among the rows.
    pub least: u64,
    /// Procedures, those with the most samples first.
    pub rows: Vec<TruthRow>,
    /// Most rows that text shows.
    pub shown: usize,
    /// Missing or doubtful data: the notes of the report.
    pub problems: Vec<Problem>,
}

/// A procedure.
#[derive(Debug)]
pub struct TruthRow {
    /// Its image.
    pub image: String,
    /// Its name.
    pub procedure: String,
    /// Its samples.
    pub samples: u64,
    /// Its blocks.
    pub blocks: usize,
    /// The errors of its estimates.
    pub scored: ProcedureScore,
    /// Cycles of one execution: lower end of the range, estimate and upper end, each divided by the
    /// true cycles; none where those are not known.
    pub cycles: Option<[f64; 3]>,
}

/// The errors of the estimates of several procedures together.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    blocks: Score,
    edges: Score,
    rounds: Score,
    by_confidence: [Score; 3],
}

impl Sum {
    fn of<'a>(rows: impl Iterator<Item = &'a TruthRow>) -> Self {
        let mut sum = Self::default();
        for row in rows {
            sum.edges.merge(&row.scored.edges);
            sum.rounds.merge(&row.scored.rounds);
            for (mine, score) in sum.by_confidence.iter_mut().zip(&row.scored.blocks) {
                mine.merge(score);
                sum.blocks.merge(score);
            }
        }
        sum
    }
}

impl TruthReport {
    fn all(&self) -> Sum {
        Sum::of(self.rows.iter())
    }

    /// A table with a row for each procedure.
    fn table(&self, style: &Style) -> Table {
        let mut table = Table::default();
        table.number("samples", "");
        table.number("blocks", "");
        table.number("blocks 5/10/15 %", "within");
        table.number("edges 5/10/15 %", "within");
        let cycles = self.rows.iter().any(|row| row.cycles.is_some());
        if cycles {
            table.number("low–estimate–high", "cycles estimated/true");
        }
        table.procedures("procedure");
        table.names("image");
        let suffixes =
            Suffixes::of(self.rows.iter().map(|row| (row.image.as_str(), row.procedure.as_str())));
        for row in self.rows.iter().take(self.shown) {
            let here = Sum::of(std::iter::once(row));
            let told = row.cycles.map_or_else(
                || "-".to_owned(),
                |[least, told, most]| format!("{least:.2}–{told:.2}–{most:.2}"),
            );
            let mut cells = vec![
                thousands(row.samples),
                row.blocks.to_string(),
                shares(&here.blocks),
                shares(&here.edges),
            ];
            cells.extend(cycles.then_some(told));
            let mut cells: Vec<Cell> = cells.into_iter().map(Cell::from).collect();
            cells.push(Cell::name(suffixes.shown(&row.image, &row.procedure, style.full_names)));
            cells.push(Cell::name(&row.image));
            table.row(cells);
        }
        table
    }
}

impl Report for TruthReport {
    const NAME: &'static str = "truth";

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        selection(&self.selection, style, out)?;
        head(style, out, "counts", &self.counts)?;
        self.model.iter().try_for_each(|model| head(style, out, "machine", &model.shown()))?;
        let sum = self.all();
        let scored = self.rows.iter().fold(0, |sum: u64, row| sum.saturating_add(row.samples));
        let (samples, procedures) =
            (counted(self.samples, "sample"), counted(self.rows.len() as u64, "procedure"));
        let of = format!(
            "{procedures} with {} of {samples}; each procedure has at least {}",
            thousands(scored),
            self.least
        );
        head(style, out, "compared", &of)?;
        head(
            style,
            out,
            "blocks",
            &format!(
                "{} of samples are in blocks whose estimate is within 5 / 10 / 15 %",
                shares(&sum.blocks)
            ),
        )?;
        head(
            style,
            out,
            "edges",
            &format!(
                "{} of executions are of edges whose estimate is that near",
                shares(&sum.edges)
            ),
        )?;
        if sum.rounds.all > 0.0 {
            let of = format!(
                "{} of {} are in loops whose test gives the rounds that near",
                shares(&sum.rounds),
                counted(sum.rounds.all as u64, "sample")
            );
            head(style, out, "rounds", &of)?;
        }
        for (score, word) in sum.by_confidence.iter().zip(["low", "medium", "high"]).rev() {
            let part = score.all / sum.blocks.all.max(f64::MIN_POSITIVE) * 100.0;
            head(
                style,
                out,
                word,
                &format!("{part:.0} % of samples have this confidence, of which {}", shares(score)),
            )?;
        }
        if let Some(cycles) = Cycles::of(&self.rows) {
            let what = format!(
                "{:.0} % of samples are in procedures whose true cycles are in the estimated range; estimated / true cycles: {:.2}, range {:.2} to {:.2} (medians)",
                cycles.right * 100.0,
                cycles.told,
                cycles.least,
                cycles.most
            );
            head(style, out, "cycles", &what)?;
        }
        writeln!(out)?;
        self.table(style).write(style, out)?;
        if self.rows.len() > self.shown {
            writeln!(
                out,
                "{} (-n 0 shows all)",
                counted((self.rows.len() - self.shown) as u64, "more procedure")
            )?;
        }
        problem_lines(&self.problems).iter().try_for_each(|line| note(style, out, line))
    }

    fn json(&self) -> impl Serialize + '_ {
        let sum = self.all();
        let [low, medium, high] = sum.by_confidence.map(|score| Within::of(&score));
        Json {
            head: Head::of(&self.selection),
            machine: self.model.map(|model| model.name),
            machine_assumed: self.model.map(|model| model.assumed),
            latencies_measured: self.model.and_then(Model::measured_on),
            samples: self.samples,
            blocks: Within::of(&sum.blocks),
            edges: Within::of(&sum.edges),
            rounds: Within::of(&sum.rounds),
            confidence: ByConfidence { low, medium, high },
            cycles: Cycles::of(&self.rows),
            rows: self.rows.iter().map(row).collect(),
            problems: json::problems(&self.problems),
        }
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let titles =
            ["image", "procedure", "samples", "blocks", "blocks_within_10", "edges_within_10"];
        record(out, &titles.map(str::to_owned))?;
        for row in &self.rows {
            let here = Sum::of(std::iter::once(row));
            let ten = |score: &Score| format!("{:.4}", score.shares()[1]);
            let (samples, blocks) = (row.samples.to_string(), row.blocks.to_string());
            let cells = [
                row.image.clone(),
                row.procedure.clone(),
                samples,
                blocks,
                ten(&here.blocks),
                ten(&here.edges),
            ];
            record(out, &cells)?;
        }
        Ok(())
    }

    fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

fn shares(score: &Score) -> String {
    let [five, ten, fifteen] = score.shares().map(|share| share * 100.0);
    format!("{five:.0} / {ten:.0} / {fifteen:.0} %")
}

#[derive(Serialize)]
struct Json<'a> {
    #[serde(flatten)]
    head: Head<'a>,
    /// The model of the processor that cycles are estimated with; null where they are not.
    machine: Option<&'static str>,
    machine_assumed: Option<bool>,
    latencies_measured: Option<String>,
    samples: u64,
    blocks: Within,
    edges: Within,
    /// Rounds of loops with one exit, their test, weighted by the samples that tell the rounds.
    rounds: Within,
    confidence: ByConfidence,
    cycles: Option<Cycles>,
    rows: Vec<Row<'a>>,
    problems: Vec<ProblemEntry<'a>>,
}

#[derive(Serialize)]
struct ByConfidence {
    low: Within,
    medium: Within,
    high: Within,
}

/// Shares of 1.
#[derive(Serialize)]
struct Within {
    within_5: f64,
    within_10: f64,
    within_15: f64,
    /// Number of samples, or executions, that the shares are of.
    of: f64,
}

impl Within {
    fn of(score: &Score) -> Self {
        let [within_5, within_10, within_15] = score.shares().map(json::rounded);
        Self { within_5, within_10, within_15, of: score.all }
    }
}

#[derive(Serialize)]
struct Row<'a> {
    image: &'a str,
    procedure: &'a str,
    samples: u64,
    graph_blocks: usize,
    blocks: Within,
    edges: Within,
    /// Estimates divided by the true cycles.
    cycles: Option<[f64; 3]>,
}

fn row(row: &TruthRow) -> Row<'_> {
    let here = Sum::of(std::iter::once(row));
    Row {
        image: &row.image,
        procedure: &row.procedure,
        samples: row.samples,
        graph_blocks: row.blocks,
        blocks: Within::of(&here.blocks),
        edges: Within::of(&here.edges),
        cycles: row.cycles,
    }
}

/// Errors of the ranges of cycles of one execution.
#[derive(Clone, Copy, Debug, Serialize)]
struct Cycles {
    /// Part of the samples in procedures whose range holds the true cycles.
    right: f64,
    /// Lower end of the range, divided by the true cycles: median, weighted by samples.
    least: f64,
    /// Estimate, in the same unit.
    told: f64,
    /// Upper end of the range, in the same unit.
    most: f64,
}

impl Cycles {
    fn of(rows: &[TruthRow]) -> Option<Self> {
        let known = || rows.iter().filter_map(|row| Some((row.cycles?, row.samples as f64)));
        let all: f64 = known().map(|(_, samples)| samples).sum();
        let right = known()
            .filter(|([least, _, most], _)| *least <= 1.0 && 1.0 <= *most)
            .map(|(_, samples)| samples);
        let median = |end: fn([f64; 3]) -> f64| {
            let mut ends: Vec<(f64, f64)> =
                known().map(|(cycles, samples)| (end(cycles), samples)).collect();
            ends.sort_by(|a, b| a.0.total_cmp(&b.0));
            let mut sum = 0.0;
            let middle = ends.iter().find(|(_, samples)| {
                sum += samples;
                sum >= all / 2.0
            });
            middle.map(|(end, _)| *end)
        };
        let (least, told, most) = (
            median(|[least, _, _]| least)?,
            median(|[_, told, _]| told)?,
            median(|[_, _, most]| most)?,
        );
        Some(Self { right: right.fold(0.0, |sum, samples| sum + samples) / all, least, told, most })
    }
}

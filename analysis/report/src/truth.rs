//! `dcpi truth` as plain data, as text, JSON and CSV.

use std::io::{self, Write};

use estimate::truth::{ProcedureScore, Score};

use super::fields::{Shown as _, Within};
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
    /// Procedures, those with the the most samples first.
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
    type Fields<'a> = TruthJson<'a>;

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
        if let Some(cycles) = CyclesJson::of(&self.rows) {
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

    fn json(&self) -> TruthJson<'_> {
        let sum = self.all();
        let [low, medium, high] = sum.by_confidence.map(|score| WithinJson::of(&score));
        TruthJson {
            head: Head::shown(&self.selection),
            machine: self.model.map(|model| model.name),
            machine_assumed: self.model.map(|model| model.assumed),
            latencies_measured: self.model.and_then(Model::measured_on),
            samples: self.samples,
            blocks: WithinJson::of(&sum.blocks),
            edges: WithinJson::of(&sum.edges),
            rounds: WithinJson::of(&sum.rounds),
            confidence: ByConfidence { low, medium, high },
            cycles: CyclesJson::of(&self.rows),
            rows: self.rows.iter().map(row).collect(),
            problems: json::problems(&self.problems),
        }
    }

    fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

fn shares(score: &Score) -> String {
    let [five, ten, fifteen] = score.shares().map(|share| share * 100.0);
    format!("{five:.0} / {ten:.0} / {fifteen:.0} %")
}

crate::fields! {
    /// Shares are of samples in blocks, of executions of edges, and of samples that tell the rounds
    /// of loops. CSV has a row per procedure.
    #[derive(Debug)]
    pub struct TruthJson<'a> {
        head (flat): Head<'a>;
        /// the processor of the best cases; `null`: no cycles were estimated
        machine: Option<&'static str>;
        /// true: the nearest processor that is known
        machine_assumed: Option<bool>;
        /// day of the measurement of its latencies (`dcpi machine`); `null`: they are generic
        latencies_measured: Option<String>;
        /// samples in the report
        samples: u64, "samples";
        /// samples in blocks, by the error of the estimate
        blocks: WithinJson;
        /// executions of edges, by the error of the estimate
        edges: WithinJson;
        /// samples in loops whose test tells their rounds, likewise
        rounds: WithinJson;
        /// as `blocks`, by confidence
        confidence: ByConfidence;
        /// errors of cycles; `null` where no cycles were estimated
        cycles: Option<CyclesJson>;
        rows (rows): Vec<RowJson<'a>>;
        problems: Vec<ProblemEntry<'a>>;
    }

    /// Scores by confidence.
    #[derive(Debug)]
    pub struct ByConfidence {
        low: WithinJson;
        medium: WithinJson;
        high: WithinJson;
    }

    /// Shares by the error of the estimate.
    #[derive(Debug)]
    pub struct WithinJson {
        /// share whose estimate is within 5 % of the counts
        within_5: Within;
        /// within 10 %
        within_10: Within;
        /// within 15 %
        within_15: Within;
        /// number of samples, or of executions, that these shares are of
        of: f64;
    }

    /// A procedure.
    #[derive(Debug)]
    pub struct RowJson<'a> {
        /// name
        image: &'a str => "image";
        /// name
        procedure: &'a str => "procedure";
        samples: u64, "samples" => "samples";
        /// number of blocks of its graph
        graph_blocks: usize => "blocks";
        blocks: WithinJson => "" | "blocks_within_10";
        edges: WithinJson => "" | "edges_within_10";
        /// estimate, lower and upper end of the range, each divided by the true cycles; `null`: not
        /// known
        cycles: Option<[f64; 3]>;
    }

    /// Errors of the ranges of cycles of one execution.
    #[derive(Clone, Copy, Debug)]
    pub struct CyclesJson {
        /// share of samples in procedures whose range of cycles holds the true cycles
        right: f64, "share";
        /// lower end of the range divided by the true cycles: median over samples
        least: f64;
        /// estimate divided by the true cycles: median over samples
        told: f64;
        /// upper end of the range divided by the true cycles: median over samples
        most: f64;
    }
}

impl WithinJson {
    fn of(score: &Score) -> Self {
        let [within_5, within_10, within_15] = score.shares().map(Within);
        Self { within_5, within_10, within_15, of: score.all }
    }
}

fn row(row: &TruthRow) -> RowJson<'_> {
    let here = Sum::of(std::iter::once(row));
    RowJson {
        image: &row.image,
        procedure: &row.procedure,
        samples: row.samples,
        graph_blocks: row.blocks,
        blocks: WithinJson::of(&here.blocks),
        edges: WithinJson::of(&here.edges),
        cycles: row.cycles,
    }
}

impl CyclesJson {
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

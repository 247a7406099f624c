//! `dcpi truth` as plain data, as text, JSON and CSV.

use std::io::{self, Write};

use estimate::truth::{ProcedureScore, Score};

use super::fields::Within;
use super::json::{Head, ProblemEntry};
use super::quantity::{counted, thousands};
use super::table::{Cell, Table};
use super::text::{self, detail, head, machine, note, problem_lines, selection};
use super::{Model, Report, Selection, Style, Suffixes};
use query::problem::Problem;

crate::fields! {
    /// Shares are of samples in blocks, of executions of edges, and of samples that tell the rounds
    /// of loops. CSV has a row per procedure.
    #[derive(Debug)]
    pub struct TruthReport {
        pub selection (flat): Selection as Head<'_>;
        /// the file of exact counts
        pub counts (text): String;
        /// the model that cycles are estimated with; none where they are not
        pub model (text): Option<Model>;
        /// the processor of the best cases; `null`: no cycles were estimated
        machine: Option<&'static str> = |it| it.model.map(|model| model.name);
        /// true: the nearest processor that is known
        machine_assumed: Option<bool> = |it| it.model.map(|model| model.assumed);
        /// day of the measurement of its latencies (`dcpi machine`); `null`: they are generic
        latencies_measured: Option<String> = |it| it.model.and_then(Model::measured_on);
        /// samples in the report
        pub samples: u64, "samples";
        /// fewest samples of a procedure among the rows
        pub least (text): u64;
        /// samples in blocks, by the error of the estimate
        blocks: WithinJson = |it| WithinJson::of(&it.all().blocks);
        /// executions of edges, by the error of the estimate
        edges: WithinJson = |it| WithinJson::of(&it.all().edges);
        /// samples in loops whose test tells their rounds, likewise
        rounds: WithinJson = |it| WithinJson::of(&it.all().rounds);
        /// as `blocks`, by confidence
        confidence: ByConfidence = |it| ByConfidence::of(&it.all());
        /// errors of cycles; `null` where no cycles were estimated
        cycles: Option<CyclesJson> = |it| CyclesJson::of(&it.rows);
        pub rows (rows): Vec<TruthRow>;
        /// most rows that text shows
        pub shown (text): usize;
        pub problems: Vec<Problem> as Vec<ProblemEntry<'_>>;
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
    pub struct TruthRow {
        /// name
        pub image: String => "image";
        /// name
        pub procedure: String => "procedure";
        pub samples: u64, "samples" => "samples";
        /// number of blocks of its graph
        pub graph_blocks: usize => "blocks";
        /// the errors of its estimates
        pub scored (text): ProcedureScore;
        blocks: WithinJson = |it| WithinJson::of(&Sum::of([it]).blocks) => "" | "blocks_within_10";
        edges: WithinJson = |it| WithinJson::of(&it.scored.edges) => "" | "edges_within_10";
        /// estimate, lower and upper end of the range, each divided by the true cycles; `null`: not
        /// known
        pub cycles: Option<[f64; 3]>;
    }

    /// Errors of the ranges of cycles of one execution.
    #[derive(Clone, Copy, Debug)]
    pub struct CyclesJson {
        /// share of samples in procedures whose cycles are known, with a range
        known: f64, "share";
        /// of these samples, the share in procedures whose range holds the true cycles
        right: f64, "share";
        /// lower end of the range divided by the true cycles: median over samples
        least: f64;
        /// estimate divided by the true cycles: median over samples
        told: f64;
        /// upper end of the range divided by the true cycles: median over samples
        most: f64;
    }
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
    fn of<'a>(rows: impl IntoIterator<Item = &'a TruthRow>) -> Self {
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
        Sum::of(&self.rows)
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
            let here = Sum::of([row]);
            let told = row.cycles.map_or_else(
                || "-".to_owned(),
                |[least, told, most]| format!("{least:.2}–{told:.2}–{most:.2}"),
            );
            let mut cells = vec![
                thousands(row.samples),
                row.graph_blocks.to_string(),
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
    type Fields<'a> = &'a Self;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        if style.verbose {
            selection(&self.selection, style, out)?;
        }
        detail(style, out, "counts", &self.counts)?;
        self.model.iter().try_for_each(|model| machine(style, out, model))?;
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
        detail(
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
            detail(style, out, "rounds", &of)?;
        }
        for (score, word) in sum.by_confidence.iter().zip(["low", "medium", "high"]).rev() {
            let part = score.all / sum.blocks.all.max(f64::MIN_POSITIVE) * 100.0;
            detail(
                style,
                out,
                word,
                &format!("{part:.0} % of samples have this confidence, of which {}", shares(score)),
            )?;
        }
        if let Some(cycles) = CyclesJson::of(&self.rows) {
            let what = format!(
                "known for {:.0} % of samples, of which {:.0} % are in procedures whose true cycles are in the estimated range; estimated / true cycles: {:.2}, range {:.2} to {:.2} (medians)",
                cycles.known * 100.0,
                cycles.right * 100.0,
                cycles.told,
                cycles.least,
                cycles.most
            );
            detail(style, out, "cycles", &what)?;
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
        problem_lines(text::told(&self.problems, style))
            .iter()
            .try_for_each(|line| note(style, out, line))
    }

    fn json(&self) -> &Self {
        self
    }

    fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

fn shares(score: &Score) -> String {
    let [five, ten, fifteen] = score.shares().map(|share| share * 100.0);
    format!("{five:.0} / {ten:.0} / {fifteen:.0} %")
}

impl WithinJson {
    fn of(score: &Score) -> Self {
        let [within_5, within_10, within_15] = score.shares().map(Within);
        Self { within_5, within_10, within_15, of: score.all }
    }
}

impl ByConfidence {
    fn of(sum: &Sum) -> Self {
        let [low, medium, high] = sum.by_confidence.map(|score| WithinJson::of(&score));
        Self { low, medium, high }
    }
}

impl CyclesJson {
    fn of(rows: &[TruthRow]) -> Option<Self> {
        let known = || rows.iter().filter_map(|row| Some((row.cycles?, row.samples as f64)));
        let all: f64 = known().map(|(_, samples)| samples).sum();
        let samples: f64 = rows.iter().map(|row| row.samples as f64).sum();
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
        let right = right.fold(0.0, |sum, samples| sum + samples) / all;
        Some(Self { known: all / samples, right, least, told, most })
    }
}

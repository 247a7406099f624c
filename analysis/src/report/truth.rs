//! `dcpi truth` as plain data, as text, JSON and CSV.

use std::io::{self, Write};

use estimate::truth::{Score, Scored};
use serde::Serialize;

use super::csv::record;
use super::json::{self, Head, ProblemEntry};
use super::quantity::thousands;
use super::table::Table;
use super::text::{head, problem_line, selection};
use super::{Report, Selection, escape};
use crate::problem::Problem;

/// `dcpi truth`.
#[derive(Debug)]
pub struct TruthReport {
    /// What was read.
    pub selection: Selection,
    /// The file of exact counts.
    pub counts: String,
    /// Samples of the images that were counted.
    pub samples: u64,
    /// Samples that a procedure must have to be among the rows.
    pub least: u64,
    /// Procedures, those with the most samples first.
    pub rows: Vec<TruthRow>,
    /// How many of them text shows.
    pub shown: usize,
    /// What the reader must know.
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
    /// How far its estimate is off.
    pub scored: Scored,
}

/// How far all of several estimates are off.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    blocks: Score,
    edges: Score,
    by_confidence: [Score; 3],
}

impl Sum {
    fn of<'a>(rows: impl Iterator<Item = &'a TruthRow>) -> Self {
        let mut sum = Self::default();
        for row in rows {
            sum.edges.merge(&row.scored.edges);
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
}

impl Report for TruthReport {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        selection(&self.selection, out)?;
        head(out, "counts", &self.counts)?;
        let sum = self.all();
        let scored = self.rows.iter().fold(0, |sum: u64, row| sum.saturating_add(row.samples));
        let (samples, procedures) = (thousands(self.samples), self.rows.len());
        let of = format!(
            "{procedures} procedures with {} of {samples} samples, each at least {}",
            thousands(scored),
            self.least
        );
        head(out, "compared", &of)?;
        head(out, "blocks", &format!("{} of samples are within 5 / 10 / 15 %", shares(&sum.blocks)))?;
        head(out, "edges", &format!("{} of executions", shares(&sum.edges)))?;
        for (score, word) in sum.by_confidence.iter().zip(["low", "medium", "high"]).rev() {
            let part = score.all / sum.blocks.all.max(f64::MIN_POSITIVE) * 100.0;
            head(out, word, &format!("{part:.0} % of samples, of which {}", shares(score)))?;
        }
        writeln!(out)?;
        let mut table = Table::default();
        table.number("samples", "");
        table.number("blocks", "");
        table.number("blocks 5/10/15 %", "within");
        table.number("edges 5/10/15 %", "within");
        table.words("procedure");
        table.words("image");
        for row in self.rows.iter().take(self.shown) {
            let here = Sum::of(std::iter::once(row));
            table.row(vec![
                thousands(row.samples),
                row.blocks.to_string(),
                shares(&here.blocks),
                shares(&here.edges),
                escape(&super::shorten(&row.procedure, 60)).into_owned(),
                escape(&row.image).into_owned(),
            ]);
        }
        table.write(out)?;
        if self.rows.len() > self.shown {
            writeln!(out, "and {} more; -n 0 shows all", self.rows.len() - self.shown)?;
        }
        self.problems.iter().try_for_each(|problem| writeln!(out, "{}", escape(&problem_line(problem))))
    }

    fn json(&self) -> impl Serialize + '_ {
        let sum = self.all();
        let [low, medium, high] = sum.by_confidence.map(|score| Within::of(&score));
        Json {
            head: Head::of(&self.selection),
            samples: self.samples,
            blocks: Within::of(&sum.blocks),
            edges: Within::of(&sum.edges),
            confidence: ByConfidence { low, medium, high },
            rows: self.rows.iter().map(row).collect(),
            problems: json::problems(&self.problems),
        }
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let titles = ["image", "procedure", "samples", "blocks", "blocks_within_10", "edges_within_10"];
        record(out, &titles.map(str::to_owned))?;
        for row in &self.rows {
            let here = Sum::of(std::iter::once(row));
            let ten = |score: &Score| format!("{:.4}", score.shares()[1]);
            let (samples, blocks) = (row.samples.to_string(), row.blocks.to_string());
            let cells =
                [row.image.clone(), row.procedure.clone(), samples, blocks, ten(&here.blocks), ten(&here.edges)];
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
    samples: u64,
    blocks: Within,
    edges: Within,
    confidence: ByConfidence,
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
    /// Samples, or executions.
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
    }
}

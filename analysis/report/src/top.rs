//! `dcpi top --once`.

use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;

use super::json::rounded;
use super::quantity::{counted, percent, plain, thousands};
use super::table::{Cell, Colour, Table};
use super::{Report, Style, Suffixes, escape};
use query::problem::Problem;
use stats::{Confidence, Share};

/// Samples of the last seconds.
#[derive(Debug)]
pub struct TopReport {
    /// The event's name.
    pub event: String,
    /// The time in which the samples were taken.
    pub span: Duration,
    /// Samples taken and not lost.
    pub total: u64,
    /// Of these, the idle loop's.
    pub idle: u64,
    /// The samples that shares are of.
    pub counted: u64,
    /// Samples that are in no row, of all events.
    pub lost: u64,
    /// The confidence of all intervals.
    pub confidence: Confidence,
    /// Whether rows and shares include the idle loop.
    pub with_idle: bool,
    /// The rows, in order.
    pub rows: Vec<TopRow>,
    /// Missing or doubtful data: the notes of the report.
    pub problems: Vec<Problem>,
}

/// A procedure or image.
#[derive(Clone, Debug)]
pub struct TopRow {
    /// The image's name; empty for samples of unknown code.
    pub image: String,
    /// The procedure's; empty where a row is an image.
    pub procedure: String,
    /// Samples.
    pub samples: u64,
    /// Their share of [`TopReport::counted`].
    pub share: Share,
}

impl TopReport {
    /// Event, samples and time, in a line.
    #[must_use]
    pub fn head(&self) -> String {
        let whole = self.total.max(1) as f64;
        let idle = if self.with_idle {
            String::new()
        } else {
            format!(", {} % idle", percent(self.idle as f64 / whole))
        };
        let lost =
            if self.lost > 0 { format!(", {} lost", thousands(self.lost)) } else { String::new() };
        let (total, seconds) = (counted(self.total, "sample"), self.span.as_secs_f64());
        format!("{}: {total} in {seconds:.1} s{idle}{lost}", escape(&self.event))
    }

    /// The procedures whose names need the suffixes of compilers to be told apart.
    pub fn suffixes(&self) -> Suffixes<'_> {
        Suffixes::of(self.rows.iter().map(|row| (row.image.as_str(), row.procedure.as_str())))
    }

    /// The samples that shares are of, and the confidence, in a line.
    #[must_use]
    pub fn foot(&self) -> String {
        let sure = plain(self.confidence.percent());
        format!("shares of {}, intervals of {sure} % confidence", counted(self.counted, "sample"))
    }
}

impl TopRow {
    /// Samples, share, and the share's interval.
    #[must_use]
    pub fn numbers(&self) -> [String; 3] {
        let interval = format!("{}–{}", percent(self.share.low), percent(self.share.high));
        [thousands(self.samples), percent(self.share.value), interval]
    }
}

#[derive(Serialize)]
struct Top<'a> {
    event: &'a str,
    span_s: f64,
    total: u64,
    counted: u64,
    idle: u64,
    lost: u64,
    confidence: f64,
    rows: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    procedure: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    image: &'a str,
    samples: u64,
    share: Interval,
}

#[derive(Serialize)]
struct Interval {
    value: f64,
    low: f64,
    high: f64,
}

impl Report for TopReport {
    const NAME: &'static str = "top";

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}\n{}\n", self.head(), self.foot())?;
        let mut table = Table::default();
        ["samples", "%", "low–high"].into_iter().for_each(|title| table.number(title, ""));
        table.procedures("procedure");
        table.names("image");
        let suffixes = self.suffixes();
        for row in &self.rows {
            let mut cells: Vec<Cell> = row.numbers().into_iter().map(Cell::from).collect();
            cells.push(Cell::name(suffixes.shown(&row.image, &row.procedure, style.full_names)));
            cells.push(Cell::name(&row.image));
            table.coloured(cells, Colour::of_share(row.share.value));
        }
        table.write(style, out)
    }

    fn json(&self) -> impl Serialize + '_ {
        let row = |row: &'_ TopRow| {
            let Share { value, low, high } = row.share;
            Interval { value: rounded(value), low: rounded(low), high: rounded(high) }
        };
        Top {
            event: &self.event,
            span_s: self.span.as_secs_f64(),
            total: self.total,
            counted: self.counted,
            idle: self.idle,
            lost: self.lost,
            confidence: self.confidence.percent(),
            rows: self
                .rows
                .iter()
                .map(|of| Row {
                    procedure: &of.procedure,
                    image: &of.image,
                    samples: of.samples,
                    share: row(of),
                })
                .collect(),
        }
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        super::csv::top(self, out)
    }

    fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

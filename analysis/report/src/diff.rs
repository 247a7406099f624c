//! `dcpi diff`.

use std::collections::BTreeSet;
use std::io::{self, Write};

use image::ImageId;
use serde::Serialize;

use super::csv::{fraction, record};
use super::json::rounded;
use super::quantity::{percent, thousands};
use super::sets::{
    OmittedJson, SUBJECT_TITLES, SetsJson, SetsReport, SubjectJson, subject_cells, subject_json,
};
use super::table::{Colour, Table, width};
use super::text::note;
use super::{Report, Style, escape};
use compare::Subject;
use query::problem::Problem;
use stats::significance::{Judged, Measure};

/// Most characters of a set's name in a column's title, in lines of [`WIDE`] characters and in
/// narrower ones. With more, a line has no room for two titles and the name of a procedure. The
/// head has the whole name.
const MAX_TITLE: (usize, usize) = (18, 14);
/// Characters in a wide line.
const WIDE: usize = 100;

/// `dcpi diff`.
#[derive(Debug)]
pub struct DiffReport {
    /// The two sets.
    pub sets: SetsReport,
    /// The rows: those that changed, then the others, the largest change first.
    pub rows: Vec<DiffRow>,
}

/// A procedure or image in two sets.
#[derive(Clone, Debug)]
pub struct DiffRow {
    /// The procedure or image.
    pub subject: Subject,
    /// The builds of its image.
    pub builds: BTreeSet<ImageId>,
    /// Its samples before and after.
    pub samples: [u64; 2],
    /// Share or amount before.
    pub a: f64,
    /// Share or amount after.
    pub b: f64,
    /// The change, with its interval and significance.
    pub judged: Judged,
}

impl DiffRow {
    /// The change divided by the value before; none if that is 0.
    #[must_use]
    pub fn relative(&self) -> Option<f64> {
        (self.a > 0.0).then(|| self.judged.change.value / self.a)
    }
}

impl DiffReport {
    /// The sets, as typed.
    fn names(&self) -> [&str; 2] {
        [0, 1].map(|at| self.sets.sets.get(at).map_or("", |set| set.name.as_str()))
    }

    /// The names as titles of columns; two equal names are told apart by a number.
    fn titles(&self) -> [String; 2] {
        let [a, b] = self.names();
        if a == b { [format!("{a} (1)"), format!("{b} (2)")] } else { [a, b].map(str::to_owned) }
    }

    /// The titles with at most [`MAX_TITLE`] characters of names. Names that are longer lose the
    /// words that both begin with. Where that is not enough, the titles are the names that the
    /// head explains.
    fn short_titles(&self, columns: usize) -> [String; 2] {
        let most = if columns < WIDE { MAX_TITLE.1 } else { MAX_TITLE.0 };
        let fit = |titles: &[String; 2]| titles.iter().all(|name| width(name) <= most);
        let whole = self.titles().map(|name| escape(&name).into_owned());
        if fit(&whole) {
            return whole;
        }
        let [a, b] = &whole;
        let common = common_words(a, b);
        let rests = [a, b].map(|name| name.get(common..).unwrap_or_default().to_owned());
        let [first, second] = self.names();
        let is_told = first != second && rests.iter().all(|rest| !rest.is_empty());
        if is_told && fit(&rests) { rests } else { ["set 1", "set 2"].map(str::to_owned) }
    }

    fn shown(&self) -> &[DiffRow] {
        self.rows.get(..self.sets.most).unwrap_or(&self.rows)
    }
}

#[derive(Serialize)]
struct DiffJson<'a> {
    #[serde(flatten)]
    sets: SetsJson<'a>,
    names: Names<'a>,
    rows: Vec<DiffRowJson<'a>>,
    omitted: OmittedJson,
}

/// The sets that `a` and `b` are, as typed.
#[derive(Serialize)]
struct Names<'a> {
    a: &'a str,
    b: &'a str,
}

#[derive(Serialize)]
struct DiffRowJson<'a> {
    #[serde(flatten)]
    subject: SubjectJson<'a>,
    a: f64,
    b: f64,
    change: f64,
    /// Null where there is no bound, because a set has no samples at all.
    low: Option<f64>,
    high: Option<f64>,
    /// Null where the value before is 0.
    relative: Option<f64>,
    samples: [u64; 2],
    spread: f64,
    p: f64,
    p_corrected: f64,
    significant: bool,
}

impl Report for DiffReport {
    const NAME: &'static str = "diff";

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        self.sets.text_head(style, out)?;
        writeln!(out)?;
        let (measure, mut table) = (self.sets.measure, Table::default());
        let unit = if measure == Measure::Share { " %" } else { "" };
        for name in self.short_titles(style.columns) {
            table.number(&format!("{name}{unit}"), "");
        }
        let is_exact = self.sets.is_exact();
        table.number("change", "");
        if !is_exact {
            table.number("low–high", "");
        }
        table.number("by %", "");
        if !is_exact {
            table.words("");
        }
        let number = |value: f64| match measure {
            Measure::Share => percent(value),
            Measure::Amount => thousands(value.round() as u64),
        };
        let row = |row: &DiffRow| {
            let change = &row.judged.change;
            let interval = (!is_exact).then(|| {
                format!("{}–{}", signed(measure, change.low), signed(measure, change.high))
            });
            let relative =
                row.relative().map_or_else(|| "new".to_owned(), |by| format!("{:+.1}", by * 100.0));
            let mark =
                (!is_exact).then(|| if row.judged.significant { "*" } else { "" }.to_owned());
            let cells = [number(row.a), number(row.b), signed(measure, change.value)];
            cells.into_iter().chain(interval).chain([relative]).chain(mark).collect()
        };
        // What took more of the time is red, what took less is green, what may be chance is
        // neither.
        let colour = |row: &DiffRow| {
            let more = row.judged.change.value > 0.0;
            row.judged.significant.then_some(if more { Colour::Hot } else { Colour::Less })
        };
        let rows =
            self.shown().iter().map(|shown| (row(shown), colour(shown), &shown.subject)).collect();
        self.sets.write(table, rows, style, out)?;
        writeln!(out)?;
        let marked = self.rows.iter().filter(|row| row.judged.significant).count();
        let mut notes = self.sets.notes(self.rows.len(), marked);
        if !is_exact && self.sets.sets.iter().all(|set| set.parts.len() < 2) {
            notes.push(
                "each set is one epoch: how much runs differ without a change is not known; give each set several epochs"
                    .to_owned(),
            );
        }
        notes.iter().try_for_each(|line| note(style, out, line))
    }

    fn json(&self) -> impl Serialize + '_ {
        let finite = |number: f64| number.is_finite().then(|| rounded(number));
        let row = |row: &'_ DiffRow| {
            (
                row.relative().map(rounded),
                finite(row.judged.change.low),
                finite(row.judged.change.high),
            )
        };
        let rows = self.shown().iter().map(|shown| {
            let (relative, low, high) = row(shown);
            DiffRowJson {
                subject: subject_json(&shown.subject, &shown.builds),
                a: rounded(shown.a),
                b: rounded(shown.b),
                change: rounded(shown.judged.change.value),
                low,
                high,
                relative,
                samples: shown.samples,
                spread: rounded(shown.judged.spread.factor),
                p: rounded(shown.judged.change.p),
                p_corrected: rounded(shown.judged.p_corrected),
                significant: shown.judged.significant,
            }
        });
        let omitted = OmittedJson { rows: self.rows.len() - self.shown().len() };
        let [a, b] = self.names();
        DiffJson { rows: rows.collect(), sets: self.sets.json(), names: Names { a, b }, omitted }
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let [a, b] = self.titles();
        let [a_samples, b_samples] = [&a, &b].map(|name| format!("{name}_samples"));
        let change = [
            &a,
            &b,
            "change",
            "low",
            "high",
            &a_samples,
            &b_samples,
            "p",
            "p_corrected",
            "significant",
        ];
        record(
            out,
            &SUBJECT_TITLES.into_iter().chain(change).map(str::to_owned).collect::<Vec<_>>(),
        )?;
        for row in self.shown() {
            let mut cells = Vec::from(subject_cells(&row.subject));
            cells.extend(
                [
                    row.a,
                    row.b,
                    row.judged.change.value,
                    row.judged.change.low,
                    row.judged.change.high,
                ]
                .map(fraction),
            );
            cells.extend(row.samples.map(|samples| samples.to_string()));
            cells.extend([row.judged.change.p, row.judged.p_corrected].map(fraction));
            cells.push(row.judged.significant.to_string());
            record(out, &cells)?;
        }
        Ok(())
    }

    fn problems(&self) -> &[Problem] {
        &self.sets.problems
    }
}

/// Bytes of the words that both begin with, the separator behind the last one included.
fn common_words(a: &str, b: &str) -> usize {
    let same = a.char_indices().zip(b.chars()).take_while(|((_, a), b)| a == b);
    let ends = same.filter(|((_, c), _)| !c.is_alphanumeric() && *c != '_');
    ends.map(|((at, c), _)| at + c.len_utf8()).last().unwrap_or(0)
}

/// A change with its sign: of shares in points of percent.
fn signed(measure: Measure, change: f64) -> String {
    match measure {
        Measure::Share => format!("{:+.2}", change * 100.0),
        Measure::Amount if !change.is_finite() => "?".to_owned(),
        Measure::Amount => {
            let sign = if change < 0.0 { "-" } else { "+" };
            format!("{sign}{}", thousands(change.abs().round() as u64))
        }
    }
}

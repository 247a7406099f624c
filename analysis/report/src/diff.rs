//! `dcpi diff`.

use std::collections::BTreeSet;
use std::io::{self, Write};

use image::ImageId;

use super::fields::{Bound, Fraction};
use super::json::OmittedRows;
use super::quantity::{percent, thousands};
use super::sets::{SetsJson, SetsReport, SubjectJson, rate};
use super::table::{Colour, Table, width};
use super::text::{head, note};
use super::totals::{Totals, TotalsJson, are_runs, is_time};
use super::{Report, Style, escape};
use compare::{Renamed, Subject};
use query::problem::Problem;
use stats::significance::{Judged, Measure};

/// Most characters of a set's name in a column's title, in lines of [`WIDE`] characters and in
/// narrower ones. With more, a line has no room for two titles and the name of a procedure. The
/// head has the whole name.
const MAX_TITLE: (usize, usize) = (18, 14);
/// Titles of columns where there is no room for names, and the words of the head that explain them.
const SETS: [&str; 2] = ["set 1", "set 2"];
/// Characters in a wide line.
const WIDE: usize = 100;

/// `dcpi diff`.
#[derive(Debug)]
pub struct DiffReport {
    /// The two sets.
    pub sets: SetsReport,
    /// The totals of both.
    pub totals: Totals,
    /// Programs of different names that may be one.
    pub other_name: Option<Renamed>,
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
        if is_told && fit(&rests) { rests } else { SETS.map(str::to_owned) }
    }

    /// Says in the head what the columns of the sets are; gives the unit for their titles.
    fn columns_head(
        &self,
        titles: &[String; 2],
        is_cpu: bool,
        style: &Style,
        out: &mut dyn Write,
    ) -> io::Result<&'static str> {
        if *titles == SETS && !style.verbose {
            for (word, name) in SETS.into_iter().zip(self.names()) {
                head(style, out, word, &escape(name))?;
            }
        }
        let part = if are_runs(&self.sets) { "run" } else { "epoch" };
        let (unit, says) = match self.sets.measure {
            Measure::Share => (" %", format!("percent of the set's {}s", self.sets.noun())),
            Measure::Amount => ("", format!("{}s per {part}", self.sets.noun())),
            Measure::Rate if is_cpu => (" CPU %", "CPU time in percent of one CPU".to_owned()),
            Measure::Rate => (" /s", format!("{}s per second", self.sets.noun())),
        };
        head(style, out, "columns", &says)?;
        Ok(unit)
    }

    fn shown(&self) -> &[DiffRow] {
        self.rows.get(..self.sets.most).unwrap_or(&self.rows)
    }
}

crate::fields! {
    /// `a` is the set before, `b` the one after. Numbers of a row are what `measure` says: shares
    /// of each set's `counted`, samples for each epoch, or samples a second. In titles of CSV, `A`
    /// and `B` stand for the sets' names, as typed; two sets of one name get `(1)` and `(2)`
    /// appended.
    #[derive(Debug)]
    pub struct DiffJson<'a> {
        sets (flat): SetsJson<'a>;
        names: Names<'a>;
        totals: TotalsJson<'a>;
        rows (rows): Vec<RowJson<'a>>;
        omitted: OmittedRows;
    }

    /// The names of the sets.
    #[derive(Debug)]
    pub struct Names<'a> {
        /// the set before, as typed
        a: &'a str;
        /// the set after
        b: &'a str;
    }

    /// A procedure or image in two sets.
    #[derive(Debug)]
    pub struct RowJson<'a> {
        subject (flat): &'a Subject as SubjectJson<'_>;
        /// ids of all builds
        image_ids: &'a BTreeSet<ImageId>;
        /// before
        a: Fraction, "`measure`" => "A";
        /// after
        b: Fraction, "`measure`" => "B";
        /// `b` minus `a`
        change: Fraction, "`measure`" => "change";
        /// lower end of the change; `null`: without bound
        low: Bound, "`measure`" => "low";
        /// upper end of the change; `null`: without bound
        high: Bound, "`measure`" => "high";
        /// `change` divided by `a`; `null`: `a` is 0
        relative: Option<Fraction>;
        /// samples before and after
        samples: [u64; 2], "samples" => "A_samples" | "B_samples";
        /// variance that the test assumes, divided by the variance of sampling
        spread: Fraction;
        /// probability of at least this change if nothing differs
        p: Fraction => "p";
        /// that probability, corrected for the number of rows (Holm)
        p_corrected: Fraction => "p_corrected";
        /// true: the row is marked
        significant: bool => "significant";
    }
}

impl Report for DiffReport {
    const NAME: &'static str = "diff";
    type Fields<'a> = DiffJson<'a>;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        if style.verbose {
            self.sets.text_head(style, out)?;
        }
        for (word, says) in self.totals.lines(&self.sets) {
            head(style, out, word, &says)?;
        }
        let (measure, mut table) = (self.sets.measure, Table::default());
        let titles = self.short_titles(style.columns);
        let is_cpu = measure == Measure::Rate && is_time(&self.sets);
        let unit = self.columns_head(&titles, is_cpu, style, out)?;
        writeln!(out)?;
        for name in titles {
            table.number(&format!("{name}{unit}"), "");
        }
        // Samples in a second stand for so many percent of one CPU.
        let scale = if is_cpu { self.sets.weight / 1e7 } else { 1.0 };
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
            Measure::Rate if is_cpu => format!("{:.2}", value * scale),
            Measure::Rate => rate(value),
        };
        let signed = |value: f64| match is_cpu && value.is_finite() {
            true => format!("{:+.2}", value * scale),
            false => signed(measure, value),
        };
        let row = |row: &DiffRow| {
            let change = &row.judged.change;
            let interval =
                (!is_exact).then(|| format!("{}–{}", signed(change.low), signed(change.high)));
            let relative =
                row.relative().map_or_else(|| "new".to_owned(), |by| format!("{:+.1}", by * 100.0));
            let mark =
                (!is_exact).then(|| if row.judged.significant { "*" } else { "" }.to_owned());
            let cells = [number(row.a), number(row.b), signed(change.value)];
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
        let mut notes = self.sets.notes(self.rows.len(), marked, style.verbose);
        if let Some(Renamed { old, new }) = &self.other_name {
            notes.push(format!(
                "most of set 1 is {old}, most of set 2 is {new}: if they are builds of one program, --map {old}={new}"
            ));
        }
        if !is_exact && self.sets.sets.iter().all(|set| set.parts.len() < 2) {
            let is_timed = self.sets.sets.iter().all(|set| set.time().is_some());
            let (one, what, next) = match (is_timed, are_runs(&self.sets)) {
                (true, _) => {
                    ("stretch of time", "such stretches", "make one of them several times as long")
                }
                (_, true) => ("run", "runs", "give each set several recordings: db:DIR,db:DIR"),
                _ => ("epoch", "runs", "give each set several epochs"),
            };
            notes.push(format!(
                "each set is one {one}: how much {what} differ without a change is not known; {next}"
            ));
        }
        notes.iter().try_for_each(|line| note(style, out, line))
    }

    fn json(&self) -> DiffJson<'_> {
        let rows = self.shown().iter().map(|row| RowJson {
            subject: &row.subject,
            image_ids: &row.builds,
            a: Fraction(row.a),
            b: Fraction(row.b),
            change: Fraction(row.judged.change.value),
            low: Bound(row.judged.change.low),
            high: Bound(row.judged.change.high),
            relative: row.relative().map(Fraction),
            samples: row.samples,
            spread: Fraction(row.judged.spread.factor),
            p: Fraction(row.judged.change.p),
            p_corrected: Fraction(row.judged.p_corrected),
            significant: row.judged.significant,
        });
        let omitted = OmittedRows { rows: self.rows.len() - self.shown().len() };
        let [a, b] = self.names();
        let totals = self.totals.json(&self.sets);
        let names = Names { a, b };
        DiffJson { sets: self.sets.json(), names, totals, rows: rows.collect(), omitted }
    }

    fn title(&self, title: &'static str) -> String {
        let [a, b] = self.titles();
        match title {
            "A" => a,
            "B" => b,
            "A_samples" => format!("{a}_samples"),
            "B_samples" => format!("{b}_samples"),
            title => title.to_owned(),
        }
    }

    fn problems(&self) -> &[Problem] {
        &self.sets.problems
    }
}

/// Length in bytes of the words that both begin with, including the separator after the last one.
fn common_words(a: &str, b: &str) -> usize {
    let same = a.char_indices().zip(b.chars()).take_while(|((_, a), b)| a == b);
    let ends = same.filter(|((_, c), _)| !c.is_alphanumeric() && *c != '_');
    ends.map(|((at, c), _)| at + c.len_utf8()).last().unwrap_or(0)
}

/// A change with its sign: of shares in points of percent.
fn signed(measure: Measure, change: f64) -> String {
    match measure {
        Measure::Share => format!("{:+.2}", change * 100.0),
        Measure::Amount | Measure::Rate if !change.is_finite() => "?".to_owned(),
        Measure::Amount | Measure::Rate => {
            let sign = if change < 0.0 { "-" } else { "+" };
            let size = change.abs();
            let number = match measure {
                Measure::Rate => rate(size),
                _ => thousands(size.round() as u64),
            };
            format!("{sign}{number}")
        }
    }
}

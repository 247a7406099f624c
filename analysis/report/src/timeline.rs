//! `dcpi timeline`.

use std::io::{self, Write};

use image::ImageId;
use model::{OFF_CPU, RUNNABLE};
use profiledb::{Covered, Stretch};

use super::fields::{Fraction, Interval, Shown as _};
use super::json::{Head, ProblemEntry};
use super::quantity::{counted, duration, moment, percent};
use super::table::{Cell, Table};
use super::text::{
    self, brief, detail, head, image_cell, image_id, lines_by_kind, note, selection,
};
use super::{ImageName, Report, Selection, Style};
use query::problem::Problem;
use query::scope::ScopeChoice;
use query::times::rfc3339;
use stats::{Occurrences, Share};

/// Characters for columns with counts, the fewest first.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// A column for which the database has no counts at all.
const NOT_COVERED: char = '·';
/// Characters of a mark of the axis of time: `14:03`, or `11-24`.
const MARK: usize = 5;
/// Seconds of a day.
const DAY_S: u64 = 86_400;
/// Nanoseconds of a second.
pub(super) const SECOND_NS: f64 = 1e9;

/// A procedure, image, command or label over time.
#[derive(Clone, Debug)]
pub struct TimelineRow {
    /// Its name.
    pub key: String,
    /// The image, or that of a procedure.
    pub image: Option<ImageName>,
    /// The process number of a command that has one.
    pub pid: Option<u32>,
    /// Occurrences by column, in the event's unit.
    pub counts: Vec<f64>,
    /// Their sum, with its interval.
    pub total: Occurrences,
    /// Its share of all counts.
    pub share: Share,
}

crate::fields! {
    /// CSV has a row per row and slice.
    #[derive(Debug)]
    pub struct TimelineReport {
        pub selection (flat): Selection as Head<'_>;
        /// the event
        pub event: String;
        /// what the event counts; of `ns` quantities are in seconds
        pub unit: String;
        /// what a row is: `procedure`, `command`, `thread`, `image`, `label`
        pub by: &'static str;
        /// scope of the samples
        pub whose (text): ScopeChoice;
        /// the columns of time, in order
        pub columns (text): Vec<Stretch>;
        /// seconds of each column for which there are counts
        pub covered_s (text): Vec<u64>;
        /// most characters over time in a text: several columns are one then
        pub characters (text): usize;
        /// those with the most counts first
        pub subjects (text): Vec<TimelineRow>;
        /// counts of each column, of all rows
        pub counts (text): Vec<f64>;
        rows (rows): Vec<RowJson<'_>>
            = |it| it.subjects.iter().map(|row| it.row_json(row)).collect();
        /// rows that were left out
        pub omitted: usize;
        /// the slices of all rows together, also of those that were left out
        whole: Vec<SliceJson> = |it| it.slices(&it.counts);
        pub problems: Vec<Problem> as Vec<ProblemEntry<'_>>;
    }

    /// A procedure, image, command or label over time.
    #[derive(Debug)]
    pub struct RowJson<'a> {
        /// name; of a command with its process number, where it has one
        key: &'a str => "key";
        /// the image, or that of a procedure
        image (maybe): Option<&'a str> => "image";
        /// its build
        image_id (maybe): Option<ImageId> => "image_id";
        /// process number of a command or thread; absent: of several processes
        pid (maybe): Option<u32>;
        total: Quantity;
        /// share of all rows
        share: Share, "share";
        slices (rows): Vec<SliceJson>;
    }

    /// Seconds of an event whose unit is ns, else occurrences.
    #[derive(Debug)]
    pub struct Quantity {
        /// time in all slices; of an event that is no time there is `occurrences` instead
        seconds (maybe): Option<Interval<Fraction>>, "s";
        /// occurrences in all slices
        occurrences (maybe): Option<Interval<Fraction>>, "event's unit";
    }

    /// A column of time.
    #[derive(Debug)]
    pub struct SliceJson {
        /// begin of the slice (RFC 3339, UTC)
        start: String => "start";
        /// its end
        end: String => "end";
        /// seconds of it for which the database has samples; 0: no dcpid ran
        covered_s: u64, "s" => "covered_s";
        /// the row's time in the slice
        seconds (maybe): Option<Fraction>, "s" => "seconds";
        /// the same of an event that is no time
        occurrences (maybe): Option<Fraction>, "event's unit" => "occurrences";
    }
}

impl TimelineReport {
    fn is_time(&self) -> bool {
        self.unit == "ns"
    }

    /// A count as it is shown: in seconds, or as it is.
    fn shown(&self, count: f64) -> f64 {
        if self.is_time() { count / SECOND_NS } else { count }
    }

    /// A count by second, of a column of which so many seconds are covered.
    fn rate(&self, count: f64, covered_s: u64, longest_s: u64) -> f64 {
        // Begins and ends are whole seconds, so that a short slice may be a second longer.
        let spare = u64::from(is_short(covered_s, longest_s));
        self.shown(count) / (covered_s + spare).max(1) as f64
    }

    /// Columns that are one character together.
    fn joined(&self) -> usize {
        self.columns.len().div_ceil(self.characters.max(1)).max(1)
    }

    /// A character for each column, or several; the largest of the row is a whole one.
    fn sparkline(&self, row: &TimelineRow) -> String {
        let covered_s: Vec<u64> =
            self.covered_s.chunks(self.joined()).map(|columns| columns.iter().sum()).collect();
        let counts = row.counts.chunks(self.joined()).map(|columns| columns.iter().sum::<f64>());
        let longest_s = covered_s.iter().copied().max().unwrap_or(0);
        let rates: Vec<f64> = counts
            .zip(&covered_s)
            .map(|(count, covered_s)| self.rate(count, *covered_s, longest_s))
            .collect();
        let largest = rates.iter().copied().fold(0.0, f64::max);
        let level = |(rate, covered_s): (&f64, &u64)| match (*rate, *covered_s) {
            (_, 0) => NOT_COVERED,
            (rate, _) if rate <= 0.0 || largest <= 0.0 => ' ',
            // At most 8, and at least 0.
            (rate, _) => {
                let at = (rate / largest * LEVELS.len() as f64).ceil() as usize;
                LEVELS.get(at.saturating_sub(1)).copied().unwrap_or('█')
            }
        };
        rates.iter().zip(&covered_s).map(level).collect()
    }

    /// The title of the characters over time: when they begin and end (UTC), and what is between.
    fn axis(&self) -> String {
        let width = self.columns.len().div_ceil(self.joined());
        let (Some(first), Some(last)) = (self.columns.first(), self.columns.last()) else {
            return "over time".to_owned();
        };
        let (since, until) = (first.since_unix_s, last.until_unix_s);
        let is_of_days = until.saturating_sub(since) > DAY_S;
        let shown = |unix_s: u64| {
            let moment = moment(unix_s);
            let part = if is_of_days { moment.get(5..10) } else { moment.get(11..16) };
            part.unwrap_or_default().to_owned()
        };
        if width < 2 * MARK + 2 {
            return "over time".to_owned();
        }
        // Each mark stands above the column of its moment; the last one ends with the columns.
        let marks = ((width + MARK) / (3 * MARK)).max(2);
        let mut axis = String::new();
        for mark in 0..marks {
            let at = mark * (width - MARK) / (marks - 1);
            let column =
                if mark + 1 == marks { None } else { self.columns.get(at * self.joined()) };
            axis.extend(std::iter::repeat_n(' ', at - axis.chars().count()));
            axis.push_str(&shown(column.map_or(until, |column| column.since_unix_s)));
        }
        axis
    }

    /// The column with the most counts in a second, and how many; not a short one, whose rate is
    /// not known well.
    fn peak(&self, row: &TimelineRow) -> Option<(Stretch, f64)> {
        let longest_s = self.covered_s.iter().copied().max().unwrap_or(0);
        let columns = row.counts.iter().zip(&self.covered_s).zip(&self.columns);
        let rates = columns.filter(|((_, covered_s), _)| !is_short(**covered_s, longest_s)).map(
            |((count, covered_s), column)| (self.rate(*count, *covered_s, longest_s), *column),
        );
        // If there are several, the first.
        rates.rev().max_by(|a, b| a.0.total_cmp(&b.0)).map(|(rate, column)| (column, rate))
    }
}

/// Whether a column is much shorter than the longest one.
const fn is_short(covered_s: u64, longest_s: u64) -> bool {
    covered_s < longest_s.div_ceil(2)
}

/// The time that was read, where a part was asked for.
pub(super) fn covered(selection: &Selection) -> Option<String> {
    let Covered { stretch, slice_s } = selection.covered()?;
    let (since, until) = (moment(stretch.since_unix_s), moment(stretch.until_unix_s));
    Some(format!("{since} to {until} UTC, in slices of up to {}", duration(slice_s)))
}

impl TimelineReport {
    /// The table and its notes.
    fn body(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out)?;
        let mut table = Table::default();
        table.number(if self.is_time() { "seconds" } else { "count" }, "");
        table.number("%", "");
        table.words(&self.axis());
        // Time of waiting is that of threads.
        let is_wait = [OFF_CPU, RUNNABLE, "usertime"].contains(&self.event.as_str());
        let peak = match (self.is_time(), is_wait) {
            (true, true) => "peak threads",
            (true, false) => "peak CPUs",
            (false, _) => "peak per s",
        };
        table.number(peak, "");
        table.words("peak at");
        table.spared();
        if self.by == "procedure" {
            table.paths("procedure");
            table.paths("image");
        } else {
            table.paths(self.by);
        }
        for row in &self.subjects {
            let total = self.shown(row.total.value);
            let peak = self.peak(row);
            let rate = peak.map(|(_, rate)| format!("{rate:.2}")).unwrap_or_default();
            let at = peak.map(|(column, _)| moment(column.since_unix_s)).unwrap_or_default();
            let mut cells: Vec<Cell> = vec![
                format!("{total:.2}").into(),
                percent(row.share.value).into(),
                self.sparkline(row).into(),
                rate.into(),
                at.into(),
            ];
            let image = row.image.as_ref().map(image_cell);
            if self.by == "procedure" {
                cells.extend([Cell::name(&row.key), image.unwrap_or_default()]);
            } else {
                let tail = row.image.as_ref().map(image_id).unwrap_or_default();
                cells.push(Cell::name(&row.key).tail(tail));
            }
            table.row(cells);
        }
        table.write(style, out)?;
        if self.omitted > 0 {
            writeln!(out, "\n{} not shown; -n 0 shows all", counted(self.omitted as u64, "row"))?;
        }
        lines_by_kind(text::told(&self.problems, style))
            .iter()
            .try_for_each(|line| note(style, out, line))
    }
}

impl Report for TimelineReport {
    const NAME: &'static str = "timeline";
    type Fields<'a> = &'a Self;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        if !style.verbose {
            let subject = format!("{} over time, by {}", self.event, self.by);
            brief(&subject, &self.selection, &self.whose, style, out)?;
            return self.body(style, out);
        }
        selection(&self.selection, style, out)?;
        head(style, out, "event", &self.event)?;
        if !self.whose.is_all() {
            head(style, out, "only", &format!("samples {}", self.whose.shown()))?;
        }
        if let (Some(first), Some(last)) = (self.columns.first(), self.columns.last()) {
            let longest = |joined: usize| {
                let lengths = self.columns.chunks(joined).filter_map(|columns| {
                    let (first, last) = (columns.first()?, columns.last()?);
                    Some(last.until_unix_s.saturating_sub(first.since_unix_s))
                });
                duration(lengths.max().unwrap_or(0))
            };
            let (since, until) = (moment(first.since_unix_s), moment(last.until_unix_s));
            let joined = self.joined();
            let columns = counted(self.columns.len().div_ceil(joined) as u64, "column");
            let mut says =
                format!("{columns} of up to {}, {since} to {until} UTC", longest(joined));
            if joined > 1 {
                says.push_str(&format!("; peaks are of up to {}", longest(1)));
            }
            detail(style, out, "columns", &says)?;
        }
        self.body(style, out)
    }

    fn json(&self) -> &Self {
        self
    }

    fn columns(&self) -> Option<Vec<&'static str>> {
        let quantity = if self.is_time() { "seconds" } else { "occurrences" };
        Some(vec!["key", "image", "image_id", "start", "end", "covered_s", quantity])
    }

    fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl TimelineReport {
    fn row_json<'a>(&self, row: &'a TimelineRow) -> RowJson<'a> {
        let [value, low, high] =
            [row.total.value, row.total.low, row.total.high].map(|count| self.shown(count));
        let total = Interval::shown(&Occurrences { value, low, high });
        let is_time = self.is_time();
        let total = Quantity {
            seconds: is_time.then_some(total),
            occurrences: (!is_time).then_some(total),
        };
        RowJson {
            key: &row.key,
            image: row.image.as_ref().map(|image| image.name.as_str()),
            image_id: row.image.as_ref().map(|image| image.id),
            pid: row.pid,
            total,
            share: row.share,
            slices: self.slices(&row.counts),
        }
    }

    fn slices(&self, counts: &[f64]) -> Vec<SliceJson> {
        let is_time = self.is_time();
        let columns = self.columns.iter().zip(&self.covered_s).zip(counts);
        let slice = |((column, covered_s), count): ((&Stretch, &u64), &f64)| {
            let count = Fraction(self.shown(*count));
            SliceJson {
                start: rfc3339(column.since_unix_s),
                end: rfc3339(column.until_unix_s),
                covered_s: *covered_s,
                seconds: is_time.then_some(count),
                occurrences: (!is_time).then_some(count),
            }
        };
        columns.map(slice).collect()
    }
}

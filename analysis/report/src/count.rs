//! `dcpi count` as plain data, as text, JSON and CSV.

use std::io::{self, Write};

use stats::{Confidence, Occurrences};

use super::quantity::{counted, plain, thousands};
use super::table::{Cell, Table};
use super::text::{head, note};
use super::{Report, Style};
use query::problem::Problem;

/// `dcpi count`.
#[derive(Debug)]
pub struct CountReport {
    /// The command, as a shell takes it.
    pub command: String,
    /// Number of runs.
    pub runs: u32,
    /// Time of a run, s, with its interval where there are several runs.
    pub seconds: Occurrences,
    /// CPU time of a run by the kernel's accounting, s: of the program and its libraries, and of
    /// the kernel for it.
    pub cpu_s: Option<(f64, f64)>,
    /// The confidence of all intervals.
    pub confidence: Confidence,
    /// The events, in the order in which they were asked for.
    pub rows: Vec<CountRow>,
    /// Events that could not be counted, and other remarks, one sentence each.
    pub notes: Vec<String>,
}

/// An event.
#[derive(Debug)]
pub struct CountRow {
    /// Its name.
    pub event: String,
    /// Unit of its value: `ns`, or `count`.
    pub unit: &'static str,
    /// Occurrences in a run, with the interval of their mean over runs; None where the event never
    /// counted. A single value that nothing is left to chance of has itself as interval.
    pub value: Option<Occurrences>,
    /// The value of each run.
    pub runs: Vec<f64>,
    /// The part of the time in which the event counted: 0 to 1.
    pub enabled_share: f64,
    /// Whether an interval is reported: several runs, or a scaled count.
    pub varies: bool,
    /// Whether the value is exact: counted by `dcpi ideal`.
    pub is_exact: bool,
}

impl CountReport {
    fn cpu_seconds(&self) -> Option<f64> {
        let clock = self.rows.iter().find(|row| row.unit == "ns")?;
        Some(clock.value?.value / 1e9).filter(|seconds| *seconds > 0.0)
    }

    fn table(&self) -> Table {
        let mut table = Table::default();
        let varies = self.rows.iter().any(|row| row.varies);
        let scaled = self.rows.iter().any(|row| row.enabled_share < 1.0);
        table.number("value", "");
        if varies {
            table.number("from–to", "");
        }
        table.number("a CPU second", "");
        if scaled {
            table.number("counted %", "");
        }
        table.words("event");
        let cpu = self.cpu_seconds();
        for row in &self.rows {
            let told = |value: f64| amount(value, row.unit);
            let value = row.value.map_or_else(|| "not counted".to_owned(), |of| told(of.value));
            let mut cells = vec![value];
            if varies {
                let interval = row.value.filter(|_| row.varies);
                cells.push(
                    interval.map_or_else(String::new, |of| {
                        format!("{}–{}", told(of.low), told(of.high))
                    }),
                );
            }
            let rate = row.value.zip(cpu).filter(|_| row.unit != "ns");
            cells.push(rate.map_or_else(String::new, |(of, cpu)| short(of.value / cpu)));
            if scaled {
                cells.push(plain((row.enabled_share * 1000.0).round() / 10.0));
            }
            let exactly = if row.is_exact { " (by dcpi ideal)" } else { "" };
            cells.push(format!("{}{exactly}", row.event));
            table.row(cells.into_iter().map(Cell::from).collect());
        }
        table
    }
}

/// A time in ms, or a number.
fn amount(value: f64, unit: &str) -> String {
    match unit {
        "ns" => format!("{:.3} ms", value / 1e6),
        _ => thousands(value.round().max(0.0) as u64),
    }
}

/// A rate with a prefix: `3.21 G`.
fn short(rate: f64) -> String {
    let prefixes = [(1e9, " G"), (1e6, " M"), (1e3, " k")];
    let found = prefixes.into_iter().find(|(unit, _)| rate >= *unit);
    let (unit, prefix) = found.unwrap_or((1.0, ""));
    format!("{:.3}{prefix}", rate / unit)
}

impl Report for CountReport {
    const NAME: &'static str = "count";
    type Fields<'a> = CountJson<'a>;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        head(style, out, "command", &super::escape(&self.command))?;
        head(style, out, "runs", &counted(u64::from(self.runs), "run"))?;
        let Occurrences { value, low, high } = self.seconds;
        let interval =
            if self.runs > 1 { format!(" ({low:.4}–{high:.4})") } else { String::new() };
        head(style, out, "time", &format!("{value:.4} s a run{interval}"))?;
        if let Some((user, system)) = self.cpu_s {
            let cpu =
                format!("{user:.4} s user and {system:.4} s system, by the kernel's accounting");
            head(style, out, "CPU", &cpu)?;
        }
        writeln!(out)?;
        self.table().write(style, out)?;
        if self.rows.iter().any(|row| row.varies) {
            writeln!(out)?;
            let percent = plain(self.confidence.percent());
            let what = format!("from–to: the mean of a run, with {percent} % confidence");
            note(style, out, &what)?;
        }
        self.notes.iter().try_for_each(|line| note(style, out, line))
    }

    fn json(&self) -> CountJson<'_> {
        CountJson {
            command: &self.command,
            runs: self.runs,
            seconds: self.seconds,
            user_s: self.cpu_s.map(|(user, _)| user),
            system_s: self.cpu_s.map(|(_, system)| system),
            confidence: self.confidence,
            rows: self.rows.iter().map(entry).collect(),
            notes: &self.notes,
        }
    }

    fn problems(&self) -> &[Problem] {
        &[]
    }
}

crate::fields! {
    #[derive(Debug)]
    pub struct CountJson<'a> {
        /// as a shell takes it
        command: &'a str;
        /// number of runs
        runs: u32;
        /// time of a run, from start to end
        seconds: Occurrences, "s";
        /// CPU time of a run by the kernel's accounting
        user_s: Option<f64>, "s";
        /// the kernel's part
        system_s: Option<f64>, "s";
        confidence: Confidence;
        rows (rows): Vec<EntryJson<'a>>;
        /// what was not counted
        notes: &'a [String];
    }

    /// An event.
    #[derive(Debug)]
    pub struct EntryJson<'a> {
        /// name
        event: &'a str => "event";
        /// `ns` or `count`
        unit: &'static str => "unit";
        /// mean of a run; null where the event never counted
        value: Option<f64>, "unit" => "value";
        /// interval of the mean; `value` where nothing varies
        low: Option<f64>, "unit" => "low";
        /// upper end of its interval
        high: Option<f64>, "unit" => "high";
        /// part of the time in which the event counted
        enabled_share: f64, "share" => "enabled_share";
        /// true: counted by `dcpi ideal`
        exact: bool;
        /// value of each run
        runs: &'a [f64], "unit";
    }
}

fn entry(row: &CountRow) -> EntryJson<'_> {
    EntryJson {
        event: &row.event,
        unit: row.unit,
        value: row.value.map(|of| of.value),
        low: row.value.map(|of| of.low),
        high: row.value.map(|of| of.high),
        enabled_share: row.enabled_share,
        exact: row.is_exact,
        runs: &row.runs,
    }
}

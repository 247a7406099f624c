//! `dcpi count` as plain data, as text, JSON and CSV.

use std::io::{self, Write};

use measure::Interval;
use stats::{Confidence, Occurrences};

use super::quantity::{counted, plain, thousands};
use super::table::{Cell, Table};
use super::text::{detail, head, note};
use super::{Report, Style};

crate::fields! {
    #[derive(Debug)]
    pub struct CountReport {
        /// as a shell takes it
        pub command: String;
        /// number of runs
        pub runs: u32;
        /// time of a run, from start to end
        pub seconds: Occurrences, "s";
        /// CPU time of a run by the kernel's accounting
        pub user_s: Option<f64>, "s";
        /// the kernel's part
        pub system_s: Option<f64>, "s";
        pub confidence: Confidence;
        /// when the last run ended (RFC 3339, UTC)
        pub ended: String;
        /// model of the processor
        pub cpu: String;
        pub rows (rows): Vec<CountRow>;
        /// what was not counted
        pub notes: Vec<String>;
    }

    /// An event.
    #[derive(Debug)]
    pub struct CountRow {
        /// name
        pub event: String => "event";
        /// `ns` or `count`
        pub unit: &'static str => "unit";
        /// mean of a run; none where the event never counted
        pub of_run (text): Option<Occurrences>;
        /// whether the interval is reported: several runs, or a scaled count
        pub varies (text): bool;
        /// mean of a run; null where the event never counted
        value: Option<f64> = |it| it.of_run.map(|of| of.value), "unit" => "value";
        /// interval of the mean; `value` where nothing varies
        low: Option<f64> = |it| it.of_run.map(|of| of.low), "unit" => "low";
        /// upper end of its interval
        high: Option<f64> = |it| it.of_run.map(|of| of.high), "unit" => "high";
        /// part of the time in which the event counted
        pub enabled_share: f64, "share" => "enabled_share";
        /// true: counted by `dcpi ideal`
        pub exact: bool;
        /// change of the mean since `--baseline`, as a part of what it was, with an interval that
        /// holds for all events together; ends are null without one; absent: nothing to compare
        pub change (maybe): Option<Interval>, "share";
        /// value of each run
        pub runs: Vec<f64>, "unit";
    }
}

impl CountRow {
    /// Whether its change has an interval, or is exact.
    pub fn is_judged(&self) -> bool {
        let is_known = |change: Interval| self.exact || !(change.low == f64::NEG_INFINITY);
        self.change.is_some_and(is_known)
    }
}

impl CountReport {
    /// The first event whose count is surely larger than before by more than this part, in words.
    /// Times are left out: the machine may be slower, which `dcpi time` allows for.
    pub fn more_than(&self, effect: f64) -> Option<String> {
        let is_more = |row: &&CountRow| {
            row.unit != "ns" && row.change.is_some_and(|change| change.low > effect)
        };
        let row = self.rows.iter().find(is_more)?;
        let [value, between] = changed(row);
        let more = self.rows.iter().filter(is_more).count() - 1;
        let others = if more > 0 { format!(", and of {more} more") } else { String::new() };
        Some(format!("more {} than before: {value} % ({between}){others}", row.event))
    }

    fn cpu_seconds(&self) -> Option<f64> {
        let clock = self.rows.iter().find(|row| row.unit == "ns")?;
        Some(clock.of_run?.value / 1e9).filter(|seconds| *seconds > 0.0)
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
        let compares = self.rows.iter().any(|row| row.change.is_some());
        if compares {
            table.number("change %", "");
            table.number("low–high", "");
        }
        table.words("event");
        let cpu = self.cpu_seconds();
        for row in &self.rows {
            let told = |value: f64| amount(value, row.unit);
            let value = row.of_run.map_or_else(|| "not counted".to_owned(), |of| told(of.value));
            let mut cells = vec![value];
            if varies {
                let interval = row.of_run.filter(|_| row.varies);
                cells.push(
                    interval.map_or_else(String::new, |of| {
                        format!("{}–{}", told(of.low), told(of.high))
                    }),
                );
            }
            let rate = row.of_run.zip(cpu).filter(|_| row.unit != "ns");
            cells.push(rate.map_or_else(String::new, |(of, cpu)| short(of.value / cpu)));
            if scaled {
                cells.push(plain((row.enabled_share * 1000.0).round() / 10.0));
            }
            if compares {
                cells.extend(changed(row));
            }
            let exactly = if row.exact { " (by dcpi ideal)" } else { "" };
            cells.push(format!("{}{exactly}", row.event));
            table.row(cells.into_iter().map(Cell::from).collect());
        }
        table
    }
}

/// A change and its interval, in percent; empty where it is not known.
fn changed(CountRow { change, exact, .. }: &CountRow) -> [String; 2] {
    let percent = |share: f64| match share.is_finite() {
        true => format!("{:+.2}", 100.0 * share),
        false => "from 0".to_owned(),
    };
    let value = change.map_or_else(String::new, |of| percent(of.value));
    let between = match change {
        Some(_) if *exact => "exact".to_owned(),
        Some(of) if of.low != f64::NEG_INFINITY => {
            format!("{}–{}", percent(of.low), percent(of.high))
        }
        Some(_) => "needs -r 2".to_owned(),
        None => String::new(),
    };
    [value, between]
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
    type Fields<'a> = &'a Self;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        head(style, out, "command", &super::escape(&self.command))?;
        detail(style, out, "runs", &counted(u64::from(self.runs), "run"))?;
        let Occurrences { value, low, high } = self.seconds;
        let interval =
            if self.runs > 1 { format!(" ({low:.4}–{high:.4})") } else { String::new() };
        let runs = match style.verbose || self.runs == 1 {
            true => String::new(),
            false => format!(", of {} runs", self.runs),
        };
        head(style, out, "time", &format!("{value:.4} s a run{interval}{runs}"))?;
        if let Some((user, system)) = self.user_s.zip(self.system_s).filter(|_| style.verbose) {
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

    fn json(&self) -> &Self {
        self
    }
}

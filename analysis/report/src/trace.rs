//! `dcpi trace` as plain data, as text, JSON and CSV: what a trace adds up to.

use std::io::{self, Write};

use serde::Serialize;

use super::csv::record;
use super::quantity::{bytes, counted, percent, thousands};
use super::table::{Cell, Table};
use super::text::{head, note};
use super::{Report, Style};
use query::problem::Problem;

/// Rows of a text, unless others are asked for; JSON and CSV have all.
const ROWS_MAX: usize = 40;
/// Threads of a text, at most.
const THREADS_MAX: usize = 20;

/// `dcpi trace`: a trace that was captured or read.
#[derive(Debug, Default, Serialize)]
pub struct TraceReport {
    /// The file; null where the trace was only followed.
    pub file: Option<String>,
    /// The command, as a shell takes it; empty where it is not known.
    pub command: String,
    /// The host.
    pub host: String,
    /// The clock of the times.
    pub clock: String,
    /// Time from the first event to the last, s.
    pub seconds: f64,
    /// Events.
    pub events: u64,
    /// Bytes of the file; null where it is not our own format.
    pub bytes: Option<u64>,
    /// Bytes of the file for each event.
    pub bytes_an_event: Option<f64>,
    /// Threads.
    pub threads: u64,
    /// Processes.
    pub processes: u64,
    /// Calls kept of so many; null: all.
    pub sampled: Option<TraceSampled>,
    /// Calls and other events by name.
    pub rows: Vec<TraceRow>,
    /// How many of them are shown.
    #[serde(skip)]
    pub shown: ShownRows,
    /// Time off the CPU by thread; empty where switches were not traced.
    pub off_cpu: Vec<TraceThread>,
    /// Events that happened and are not there.
    pub lost: Vec<TraceLost>,
    /// Returns without an entry.
    pub unmatched: u64,
    /// Places that were probed and never reached.
    pub never: Vec<String>,
    /// Why the trace is not whole; null where it is.
    pub cut: Option<String>,
    /// Remarks, a sentence each.
    pub notes: Vec<String>,
}

/// How many rows are shown: by default all in JSON and CSV, and the first in text.
#[derive(Debug, Default, Clone, Copy)]
pub struct ShownRows {
    /// Whether text has all that are there.
    all_in_text: bool,
    /// Rows that were left out.
    left: usize,
}

impl ShownRows {
    /// Keeps as many rows as are asked for, 0: all.
    #[must_use]
    pub fn of<T>(rows: &mut Vec<T>, asked: Option<usize>) -> Self {
        let all = rows.len();
        if let Some(most) = asked.filter(|most| *most > 0) {
            rows.truncate(most);
        }
        Self { all_in_text: asked.is_some(), left: all - rows.len() }
    }

    /// Rows that a text shows of so many, and the sentence about those that it does not.
    pub(super) fn in_text(
        self,
        rows: usize,
        default: usize,
        what: &str,
    ) -> (usize, Option<String>) {
        let shown = if self.all_in_text { rows } else { rows.min(default) };
        let left = rows - shown + self.left;
        let more = (left > 0).then(|| {
            let verb = if left == 1 { "is" } else { "are" };
            format!("{} more {verb} not shown: -n 0 shows all", counted(left as u64, what))
        });
        (shown, more)
    }
}

/// A choice of calls.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct TraceSampled {
    /// Calls kept.
    pub keep: u64,
    /// Of so many.
    pub of: u64,
}

/// The events of one name.
#[derive(Debug, Serialize)]
pub struct TraceRow {
    /// The name.
    pub name: String,
    /// Kind of event, the opening one of calls.
    pub kind: &'static str,
    /// File with the code; null where there is none.
    pub image: Option<String>,
    /// Calls or events.
    pub count: u64,
    /// Calls whose end is there; times are of these.
    pub ended: u64,
    /// Time with all that was called, of recursive calls the outermost, ns; null where nothing
    /// ended.
    pub total_ns: Option<u64>,
    /// Time of a call in the mean, ns.
    pub mean_ns: Option<f64>,
    /// Shortest call, ns.
    pub min_ns: Option<u64>,
    /// Longest call, ns.
    pub max_ns: Option<u64>,
}

/// A thread's time off the CPU.
#[derive(Debug, Serialize)]
pub struct TraceThread {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Command.
    pub command: String,
    /// Times that the thread left its CPU.
    pub switches: u64,
    /// Time in which the thread waited, ns.
    pub blocked_ns: u64,
    /// Time in which the thread could run and had no CPU, ns.
    pub preempted_ns: u64,
}

/// Events that are not there.
#[derive(Debug, Serialize)]
pub struct TraceLost {
    /// What the events were of.
    pub name: String,
    /// Why.
    pub reason: String,
    /// Number.
    pub events: u64,
}

impl TraceReport {
    /// Events that are lost.
    #[must_use]
    pub fn lost_events(&self) -> u64 {
        self.lost.iter().fold(0, |sum, lost| sum.saturating_add(lost.events))
    }

    /// What a reader needs first: whether all is there.
    fn verdict(&self) -> String {
        let events = counted(self.events, "event");
        let (threads, seconds) = (counted(self.threads, "thread"), self.seconds);
        let what = format!("{events} of {threads} in {seconds:.3} s");
        if let Some(cut) = &self.cut {
            return format!("not whole: {cut}; {what}");
        }
        if self.lost_events() > 0 {
            let share =
                self.lost_events() as f64 / (self.lost_events().saturating_add(self.events)) as f64;
            return format!("{} % of the events are lost; {what} are there", percent(share));
        }
        format!("{what}, none lost")
    }

    fn table(&self, shown: usize) -> Table {
        let mut table = Table::default();
        for title in ["count", "total ms", "mean us", "shortest us", "longest us"] {
            table.number(title, "");
        }
        table.words("event");
        table.procedures("name");
        for row in self.rows.iter().take(shown) {
            let us = |ns: Option<f64>| ns.map_or_else(String::new, |ns| format!("{:.3}", ns / 1e3));
            let of = |ns: Option<u64>| ns.map(|ns| ns as f64);
            let cells = vec![
                thousands(row.count).into(),
                of(row.total_ns).map_or_else(String::new, |ns| format!("{:.3}", ns / 1e6)).into(),
                us(row.mean_ns).into(),
                us(of(row.min_ns)).into(),
                us(of(row.max_ns)).into(),
                kind_word(row.kind).to_owned().into(),
                Cell::name(&row.name),
            ];
            table.row(cells);
        }
        table
    }

    fn threads_table(&self) -> Table {
        let mut table = Table::default();
        for title in ["switches", "waits ms", "no CPU ms", "thread"] {
            table.number(title, "");
        }
        table.names("command");
        for thread in self.off_cpu.iter().take(THREADS_MAX) {
            let ms = |ns: u64| format!("{:.3}", ns as f64 / 1e6);
            table.row(vec![
                thousands(thread.switches).into(),
                ms(thread.blocked_ns).into(),
                ms(thread.preempted_ns).into(),
                thread.tid.to_string().into(),
                Cell::name(&thread.command),
            ]);
        }
        table
    }
}

/// The word for calls and events of a kind in a table.
fn kind_word(kind: &str) -> &str {
    match kind {
        "enter" => "call",
        "syscall_enter" => "system call",
        "lock_request" => "wait for lock",
        "barrier_arrive" => "wait at barrier",
        "await_begin" => "wait for advance",
        "thread_start" => "thread begins",
        "thread_end" => "thread ends",
        kind => kind,
    }
}

impl Report for TraceReport {
    const NAME: &'static str = "trace";

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        head(style, out, "trace", &self.verdict())?;
        if !self.command.is_empty() {
            head(style, out, "command", &self.command)?;
        }
        if let Some(file) = &self.file {
            let size =
                self.bytes.zip(self.bytes_an_event).map_or_else(String::new, |(all, one)| {
                    format!(", {} ({one:.2} bytes an event)", bytes(all))
                });
            head(style, out, "file", &format!("{file}{size}"))?;
        }
        if let Some(TraceSampled { keep, of }) = self.sampled {
            head(
                style,
                out,
                "sampled",
                &format!("{keep} of each {of} calls of a name and thread"),
            )?;
        }
        let (shown, more) = self.shown.in_text(self.rows.len(), ROWS_MAX, "name");
        if !self.rows.is_empty() {
            writeln!(out)?;
            self.table(shown).write(style, out)?;
        }
        if !self.off_cpu.is_empty() {
            writeln!(out)?;
            self.threads_table().write(style, out)?;
        }
        writeln!(out)?;
        more.iter().try_for_each(|more| note(style, out, more))?;
        for lost in &self.lost {
            let TraceLost { name, reason, events } = lost;
            let why = match reason.as_str() {
                "ring_full" => "the ring was full; a larger --ring, or fewer places, loses less",
                reason => reason,
            };
            note(style, out, &format!("lost: {} of {name}: {why}", counted(*events, "event")))?;
        }
        if !self.never.is_empty() {
            note(style, out, &format!("never reached: {}", self.never.join(", ")))?;
        }
        if self.unmatched > 0 {
            let returns = counted(self.unmatched, "return");
            note(
                style,
                out,
                &format!(
                    "{returns} without an entry: a call that had begun before, or in the thread that began this one"
                ),
            )?;
        }
        self.notes.iter().try_for_each(|line| note(style, out, line))
    }

    fn json(&self) -> impl Serialize + '_ {
        self
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let titles =
            ["name", "kind", "image", "count", "ended", "total_ns", "mean_ns", "min_ns", "max_ns"];
        record(out, &titles.map(str::to_owned))?;
        for row in &self.rows {
            let text = |number: Option<u64>| number.map_or_else(String::new, |of| of.to_string());
            let cells = [
                row.name.clone(),
                row.kind.to_owned(),
                row.image.clone().unwrap_or_default(),
                row.count.to_string(),
                row.ended.to_string(),
                text(row.total_ns),
                row.mean_ns.map_or_else(String::new, |mean| mean.to_string()),
                text(row.min_ns),
                text(row.max_ns),
            ];
            record(out, &cells)?;
        }
        Ok(())
    }

    fn problems(&self) -> &[Problem] {
        &[]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `dcpi trace FILE -n 5` showed 40 rows.
    #[test]
    fn as_many_rows_are_shown_as_are_asked_for() {
        let text = |asked: Option<usize>| {
            let row = |number: usize| TraceRow {
                name: format!("f{number}"),
                kind: "instant",
                image: None,
                count: 1,
                ended: 0,
                total_ns: None,
                mean_ns: None,
                min_ns: None,
                max_ns: None,
            };
            let mut rows = (0..50).map(row).collect();
            let shown = ShownRows::of(&mut rows, asked);
            let report = TraceReport { rows, shown, ..TraceReport::default() };
            let style = Style { columns: 100, full_names: false, wrap: false, colour: false };
            let (mut text, mut csv) = (Vec::new(), Vec::new());
            report.text(&style, &mut text).unwrap();
            report.csv(&mut csv).unwrap();
            let text = String::from_utf8(text).unwrap();
            (text.matches("instant").count(), csv.split(|byte| *byte == b'\n').count() - 2, text)
        };
        let (rows, csv, said) = text(Some(5));
        assert_eq!((rows, csv), (5, 5));
        assert!(said.contains("45 names more are not shown: -n 0 shows all"), "{said}");
        let (rows, csv, said) = text(None);
        assert_eq!((rows, csv), (40, 50));
        assert!(said.contains("10 names more"), "{said}");
        let (rows, csv, said) = text(Some(0));
        assert_eq!((rows, csv), (50, 50));
        assert!(!said.contains("more"), "{said}");
        assert!(text(Some(49)).2.contains("1 name more is not shown"));
    }
}

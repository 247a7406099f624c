//! `dcpi trace` as plain data, as text, JSON and CSV: what a trace adds up to.

use std::io::{self, Write};

use super::quantity::{bytes, counted, percent, thousands};
use super::table::{Cell, Table};
use super::text::{detail, head, note};
use super::{Report, Style};

/// Rows of a text, unless others are asked for; JSON and CSV have all.
const ROWS_MAX: usize = 40;
/// Threads of a text, at most.
const THREADS_MAX: usize = 20;

crate::fields! {
    /// The report of a trace, of a capture or of `dcpi trace FILE`. CSV has a row per name and
    /// kind.
    #[derive(Debug, Default)]
    pub struct TraceReport {
        /// the file; null where events were only followed
        pub file: Option<String>;
        /// as a shell takes it; empty where it is not known
        pub command: String;
        /// the host
        pub host: String;
        /// clock of all times, as Linux calls it, or another tool's word
        pub clock: String;
        /// from the first event to the last
        pub seconds: f64, "s";
        /// number of events
        pub events: u64;
        /// of the file; null unless it is of dcpi trace's format
        pub bytes: Option<u64>, "bytes";
        /// of the file for each event; null as `bytes`
        pub bytes_an_event: Option<f64>, "bytes";
        /// number of threads
        pub threads: u64;
        /// number of processes
        pub processes: u64;
        /// choice of calls; null: all were kept
        pub sampled: Option<TraceSampled>;
        /// calls and other events by name
        pub rows (rows): Vec<TraceRow>;
        /// how many of them are shown
        pub shown (text): ShownRows;
        /// time off the CPU by thread; empty where switches were not traced
        pub off_cpu: Vec<TraceThread>;
        /// events that happened and are not there
        pub lost: Vec<TraceLost>;
        /// returns without an entry
        pub unmatched: u64;
        /// places that were probed and never reached
        pub never: Vec<String>;
        /// why the trace is not whole; null where it is
        pub cut: Option<String>;
        /// remarks
        pub notes: Vec<String>;
    }

    /// A choice of calls.
    #[derive(Debug, Clone, Copy)]
    pub struct TraceSampled {
        /// calls kept of so many
        pub keep: u64;
        /// of each so many calls of a name and thread
        pub of: u64;
    }

    /// The events of one name.
    #[derive(Debug)]
    pub struct TraceRow {
        /// procedure, system call, line or other thing
        pub name: String => "name";
        /// kind of event, of calls that of the entry: `enter`, `syscall_enter`, `instant`, `wake`,
        /// ...
        pub kind: &'static str => "kind";
        /// file with the code; null where there is none
        pub image: Option<String> => "image";
        /// calls, or events
        pub count: u64 => "count";
        /// calls whose return is in the trace; times are of these
        pub ended: u64 => "ended";
        /// time with all that was called, of recursive calls the outermost; null where none ended
        pub total_ns: Option<u64>, "ns" => "total_ns";
        /// time of a call, inner ones of recursions too
        pub mean_ns: Option<f64>, "ns" => "mean_ns";
        /// shortest call
        pub min_ns: Option<u64>, "ns" => "min_ns";
        /// longest call
        pub max_ns: Option<u64>, "ns" => "max_ns";
    }

    /// A thread's time off the CPU.
    #[derive(Debug)]
    pub struct TraceThread {
        /// process of a thread that was off its CPU
        pub pid: u32;
        /// thread
        pub tid: u32;
        /// its command
        pub command: String;
        /// times that the thread left its CPU
        pub switches: u64;
        /// waited, with the time from the wake to the CPU
        pub blocked_ns: u64, "ns";
        /// could run and had no CPU
        pub preempted_ns: u64, "ns";
    }

    /// Events that are not there.
    #[derive(Debug)]
    pub struct TraceLost {
        /// what lost events were of
        pub name: String;
        /// `ring_full`, `too_many_threads`
        pub reason: String;
        /// number of events lost
        pub events: u64;
    }
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
    /// Keeps the requested number of rows, 0: all.
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

impl TraceReport {
    /// Events that are lost.
    pub fn lost_events(&self) -> u64 {
        self.lost.iter().fold(0, |sum, lost| sum.saturating_add(lost.events))
    }

    /// Whether the data is complete, which a reader needs to know first.
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
    type Fields<'a> = &'a Self;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        head(style, out, "trace", &self.verdict())?;
        if !self.command.is_empty() {
            detail(style, out, "command", &self.command)?;
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

    fn json(&self) -> &Self {
        self
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
            let style = Style {
                columns: 100,
                full_names: false,
                wrap: false,
                colour: false,
                verbose: true,
            };
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

//! Sums of a trace: calls and their time by name, time off the CPU by thread.

use std::collections::HashMap;

use crate::event::{Event, EventKind, NameId, ThreadId};
use crate::pairs::{Pairs, Slice};

/// Sums that are updated with each event, so that they serve during the capture too.
#[derive(Debug, Default)]
pub struct Summary {
    pairs: Pairs,
    ended: Vec<Slice>,
    rows: HashMap<(NameId, EventKind), Row>,
    threads: HashMap<ThreadId, OffCpu>,
    events: u64,
    begin_ns: Option<u64>,
    end_ns: u64,
}

/// The calls of one name, or its other events of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// The name.
    pub name: NameId,
    /// The kind of event: the opening one of a pair.
    pub kind: EventKind,
    /// Calls that began, or events.
    pub count: u64,
    /// Calls whose end is in the trace: times are of these.
    pub ended: u64,
    /// ns from entries to returns, with all that was called; of recursive calls only the outermost.
    pub total_ns: u64,
    /// Shortest call in ns; 0 without any.
    pub min_ns: u64,
    /// Longest call in ns.
    pub max_ns: u64,
    /// ns of all ended calls, inner ones of recursions too: [`Self::mean_ns`] is of these.
    sum_ns: u64,
}

impl Row {
    /// ns of a call, in the mean over all calls that ended.
    #[must_use]
    pub fn mean_ns(&self) -> f64 {
        self.sum_ns as f64 / self.ended.max(1) as f64
    }
}

/// Time off the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OffCpu {
    /// The thread.
    pub thread: ThreadId,
    /// ns in which the thread waited for something.
    pub blocked_ns: u64,
    /// ns in which the thread could have run and had no CPU: after a preemption, and from its start
    /// to its first CPU. The time from a wake to the CPU is part of `blocked_ns`.
    pub preempted_ns: u64,
    /// Times that the thread left its CPU.
    pub switches: u64,
    /// The switch out that has no switch in yet.
    out: Option<(u64, bool)>,
}

impl Summary {
    /// Takes the next event in the order of time; `time_ns` is its measured or corrected time.
    pub fn take(&mut self, event: &Event, time_ns: u64) {
        self.events += 1;
        self.begin_ns = Some(self.begin_ns.unwrap_or(time_ns).min(time_ns));
        self.end_ns = self.end_ns.max(time_ns);
        match event.kind {
            EventKind::SwitchOut => {
                let off = self.off(event.thread);
                off.switches += 1;
                off.out = Some((time_ns, event.argument != 0));
            }
            EventKind::ThreadStart => {
                // A new thread waits for a CPU until its first switch.
                self.off(event.thread).out = Some((time_ns, true));
                self.row(event.name, EventKind::ThreadStart).count += 1;
            }
            EventKind::SwitchIn => {
                let off = self.off(event.thread);
                if let Some((since, preempted)) = off.out.take() {
                    let time = time_ns.saturating_sub(since);
                    let sum = if preempted { &mut off.preempted_ns } else { &mut off.blocked_ns };
                    *sum = sum.saturating_add(time);
                }
            }
            kind if kind.closes().is_some() => {}
            kind => self.row(event.name, kind).count += 1,
        }
        self.pairs.take(event, time_ns, &mut self.ended);
        self.add_ended();
    }

    fn off(&mut self, thread: ThreadId) -> &mut OffCpu {
        self.threads.entry(thread).or_insert_with(|| OffCpu { thread, ..OffCpu::default() })
    }

    fn row(&mut self, name: NameId, kind: EventKind) -> &mut Row {
        self.rows.entry((name, kind)).or_insert_with(|| Row { name, kind, ..Row::default() })
    }

    fn add_ended(&mut self) {
        let ended = std::mem::take(&mut self.ended);
        for slice in ended.iter().filter(|slice| !slice.is_cut) {
            let time = slice.end_ns - slice.begin_ns;
            let row = self.row(slice.name, slice.kind);
            row.min_ns = if row.ended == 0 { time } else { row.min_ns.min(time) };
            row.max_ns = row.max_ns.max(time);
            row.ended += 1;
            row.sum_ns = row.sum_ns.saturating_add(time);
            if !slice.is_inner {
                row.total_ns = row.total_ns.saturating_add(time);
            }
        }
        self.ended = ended;
        self.ended.clear();
    }

    /// Sums by name, those with the most time first, then those with the most events.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = self.rows.values().copied().collect();
        rows.sort_by(|a, b| {
            (b.total_ns, b.count).cmp(&(a.total_ns, a.count)).then(a.name.cmp(&b.name))
        });
        rows
    }

    /// Time off the CPU of each thread that was off it, by thread.
    #[must_use]
    pub fn off_cpu(&self) -> Vec<OffCpu> {
        let was_off = |of: &&OffCpu| of.switches > 0 || of.preempted_ns > 0;
        let mut threads: Vec<OffCpu> = self.threads.values().filter(was_off).copied().collect();
        threads.sort_by_key(|off| off.thread);
        threads
    }

    /// Events taken.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }

    /// ns from the first event to the last.
    #[must_use]
    pub fn span_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.begin_ns.unwrap_or_default())
    }

    /// Returns without an entry.
    #[must_use]
    pub fn unmatched(&self) -> u64 {
        self.pairs.unmatched()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_recursion_count_once_and_means_are_of_all() {
        let mut summary = Summary::default();
        use EventKind::{Enter, Exit, Instant, SwitchIn, SwitchOut, ThreadStart};
        let events = [
            (0, Enter, 1, 0),
            (10, Enter, 1, 0),
            (20, SwitchOut, 0, 0),
            (50, SwitchIn, 0, 0),
            (60, SwitchOut, 0, 1),
            (65, SwitchIn, 0, 0),
            (70, Exit, 1, 0),
            (100, Exit, 1, 0),
            (101, ThreadStart, 3, 0),
            (103, SwitchIn, 0, 0),
            (110, Instant, 2, 0),
            (120, Enter, 1, 0),
        ];
        for (time_ns, kind, name, argument) in events {
            let event = Event { time_ns, kind, name: NameId(name), argument, ..Event::default() };
            summary.take(&event, time_ns);
        }
        let rows = summary.rows();
        let row = &rows[0];
        assert_eq!((row.count, row.ended, row.total_ns), (3, 2, 100));
        assert_eq!((row.min_ns, row.max_ns, row.mean_ns()), (60, 100, 80.0));
        assert_eq!((rows[1].kind, rows[1].count, rows.len()), (Instant, 1, 3));
        let off = summary.off_cpu()[0];
        assert_eq!((off.blocked_ns, off.preempted_ns, off.switches), (30, 7, 2));
        assert_eq!((summary.events(), summary.span_ns(), summary.unmatched()), (12, 120, 0));
    }
}

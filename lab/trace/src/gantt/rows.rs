//! The content of each thread's row in a drawing, in columns of pixels.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{SHAPES_MAX, THREADS_MAX, WAKES_MAX, time};
use crate::event::{EventKind, NameId, ThreadId, Trace};
use crate::pairs::{Pairs, Slice};

/// Rows, and the number of merged calls in them.
pub(super) struct Chart {
    begin_ns: u64,
    /// ns from the first event to the last, at least 1.
    pub(super) span_ns: u64,
    /// Pixels of a column.
    pub(super) column_px: f64,
    columns: usize,
    pub(super) rows: Vec<Row>,
    /// The first wakes, and the number of all.
    pub(super) wakes: Vec<Wake>,
    pub(super) wakes_all: usize,
    pub(super) has_states: bool,
    /// Calls narrower than a column, and their time.
    pub(super) merged_calls: u64,
    pub(super) merged_ns: u64,
    /// Calls deeper than the lanes of their rows.
    pub(super) flattened: u64,
    /// Threads without a row.
    pub(super) left_out: usize,
    /// Calls with a bar of their own.
    bars: usize,
}

/// A thread waking another.
pub(super) struct Wake {
    pub(super) time_ns: u64,
    /// Rows.
    pub(super) from: usize,
    pub(super) to: usize,
}

/// The row of a thread.
#[derive(Default)]
pub(super) struct Row {
    pub(super) label: String,
    pub(super) height: f64,
    pub(super) lane_height: f64,
    lanes: usize,
    /// Calls with a bar of their own, outer ones first.
    pub(super) slices: Vec<Bar>,
    /// First and last columns of calls that are drawn over the lowest lane.
    spans: HashSet<(usize, usize)>,
    /// Calls that are too narrow for a bar, by lane and column.
    columns: BTreeMap<(usize, usize), Column>,
    /// ns of each column in which the thread waited, and in which it was preempted; empty without
    /// switches in the trace.
    off: BTreeMap<usize, [u64; 2]>,
    /// First and last column of its life.
    alive: Option<(usize, usize)>,
    /// Time of its switch out, and whether it was preempted; None while it runs.
    off_since: Option<(u64, bool)>,
    column_ns: u64,
    has_states: bool,
}

/// A call.
pub(super) struct Bar {
    pub(super) begin_ns: u64,
    pub(super) end_ns: u64,
    pub(super) lane: usize,
    pub(super) name: NameId,
    pub(super) is_cut: bool,
    depth: u32,
}

/// Short calls of a column.
#[derive(Clone, Copy, Default)]
pub(super) struct Column {
    pub(super) calls: u64,
    pub(super) ns: u64,
    /// Name of the longest of these calls.
    pub(super) name: NameId,
}

/// Neighbouring columns of one name.
pub(super) struct Merged {
    pub(super) lane: usize,
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) sum: Column,
}

/// A thread's predominant state in a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Runs,
    Waits,
    Preempted,
}

impl Chart {
    /// The rows of a trace, with at most about `shapes_max` shapes, `width_px` wide.
    pub(super) fn of(trace: &Trace, shapes_max: usize, width_px: f64) -> Self {
        let times = || {
            let events = trace.events.iter().enumerate();
            events.map(|(index, event)| time(trace, index, event.time_ns))
        };
        let begin_ns = times().min().unwrap_or_default();
        let span_ns = (times().max().unwrap_or_default() - begin_ns).max(1);
        let (numbers, left_out) = drawn_threads(trace);
        let depths = depths(trace);
        let lanes_max = match numbers.len() {
            0..=4 => 12,
            5..=16 => 6,
            17..=48 => 3,
            _ => 1,
        };
        let lane_height = if numbers.len() > 48 { 9.0 } else { 15.0 };
        let has_states = trace.events.iter().any(|event| event.kind == EventKind::SwitchOut);
        let mut rows: Vec<Row> = Vec::new();
        let mut lanes_all = 0;
        for thread in &numbers {
            let depth = depths.get(thread).copied().unwrap_or(1) as usize;
            let lanes = depth.clamp(1, lanes_max);
            // The thread's state is a separate lane.
            lanes_all += lanes + usize::from(has_states);
            let height = lanes as f64 * lane_height + 8.0;
            let label = trace.threads.get(thread.0 as usize).map(|of| {
                let name = if of.command.is_empty() { "thread" } else { of.command.as_str() };
                format!("{name} {}", of.tid)
            });
            let label = label.unwrap_or_default();
            rows.push(Row { label, height, lane_height, lanes, ..Row::default() });
        }
        let most = lanes_all as f64 * width_px;
        let column_px = (most / shapes_max as f64).ceil().max(1.0);
        let columns = ((width_px / column_px).ceil() as usize).max(1);
        let mut chart = Self {
            begin_ns,
            span_ns,
            column_px,
            columns,
            rows,
            wakes: Vec::new(),
            wakes_all: 0,
            has_states,
            merged_calls: 0,
            merged_ns: 0,
            flattened: 0,
            left_out,
            bars: 0,
        };
        chart.fill(trace, &numbers);
        chart
    }

    /// Position of a time in the span of the trace, 0 to 1.
    pub(super) fn share(&self, ns: u64) -> f64 {
        ns.saturating_sub(self.begin_ns) as f64 / self.span_ns as f64
    }

    fn column(&self, ns: u64) -> usize {
        ((self.share(ns) * self.columns as f64) as usize).min(self.columns - 1)
    }

    fn column_ns(&self) -> u64 {
        (self.span_ns / self.columns as u64).max(1)
    }

    fn fill(&mut self, trace: &Trace, numbers: &[ThreadId]) {
        let row_of: HashMap<ThreadId, usize> =
            numbers.iter().enumerate().map(|(row, thread)| (*thread, row)).collect();
        let by_tid: HashMap<u64, usize> = (row_of.iter())
            .filter_map(|(id, row)| Some((trace.threads.get(id.0 as usize)?.tid.into(), *row)))
            .collect();
        let column_ns = self.column_ns();
        for row in &mut self.rows {
            (row.column_ns, row.has_states) = (column_ns, self.has_states);
        }
        let (mut pairs, mut ended) = (Pairs::default(), Vec::new());
        let mut last_ns = self.begin_ns;
        for (index, event) in trace.events.iter().enumerate() {
            let now = time(trace, index, event.time_ns);
            last_ns = last_ns.max(now);
            pairs.take(event, now, &mut ended);
            for slice in ended.drain(..) {
                self.add(&slice, &row_of);
            }
            let Some(row) = row_of.get(&event.thread).copied() else { continue };
            self.live(row, now);
            match event.kind {
                EventKind::SwitchOut => self.leave(row, now, event.argument != 0),
                // A new thread waits for a CPU until its first switch.
                EventKind::ThreadStart if self.has_states => self.leave(row, now, true),
                EventKind::SwitchIn => self.come_back(row, now),
                EventKind::Wake => {
                    let to = by_tid.get(&event.argument).copied();
                    let wake = to.map(|to| Wake { time_ns: now, from: row, to });
                    if let Some(wake) = wake.filter(|wake| wake.from != wake.to) {
                        self.wakes_all += 1;
                        self.wakes.extend(Some(wake).filter(|_| self.wakes_all <= WAKES_MAX));
                    }
                }
                _ => {}
            }
        }
        pairs.finish(last_ns, &mut ended);
        for slice in ended.drain(..) {
            self.add(&slice, &row_of);
        }
        for row in 0..self.rows.len() {
            // A thread that waits at the end of the trace waits until then.
            if self.rows.get(row).is_some_and(|row| row.off_since.is_some()) {
                self.live(row, last_ns);
                self.come_back(row, last_ns);
            }
        }
        for row in &mut self.rows {
            row.slices.sort_by_key(|bar| bar.depth);
        }
    }

    fn add(&mut self, slice: &Slice, row_of: &HashMap<ThreadId, usize>) {
        let (column, column_ns) = (self.column(slice.begin_ns), self.column_ns());
        let end_column = self.column(slice.end_ns);
        let row = row_of.get(&slice.thread).and_then(|row| self.rows.get_mut(*row));
        let Some(row) = row else { return };
        let lane = (slice.depth as usize).min(row.lanes - 1);
        if slice.depth as usize >= row.lanes {
            self.flattened += 1;
            // Of overlapping calls, the innermost is visible, because it comes first.
            if end_column > column && !row.spans.insert((column, end_column)) {
                return;
            }
        }
        let ns = slice.end_ns - slice.begin_ns;
        // Corrected times of calls may overlap: then there may be more than there are columns.
        if ns >= column_ns && self.bars < SHAPES_MAX {
            self.bars += 1;
            let Slice { begin_ns, end_ns, name, is_cut, depth, .. } = *slice;
            row.slices.push(Bar { begin_ns, end_ns, lane, name, is_cut, depth });
            return;
        }
        self.merged_calls += 1;
        self.merged_ns = self.merged_ns.saturating_add(ns);
        let of = row.columns.entry((lane, column)).or_default();
        if of.calls == 0 || ns > of.ns / of.calls {
            of.name = slice.name;
        }
        of.calls += 1;
        of.ns = of.ns.saturating_add(ns);
    }

    fn live(&mut self, row: usize, ns: u64) {
        let column = self.column(ns);
        let Some(row) = self.rows.get_mut(row) else { return };
        let (first, last) = row.alive.unwrap_or((column, column));
        row.alive = Some((first.min(column), last.max(column)));
    }

    fn leave(&mut self, row: usize, ns: u64, preempted: bool) {
        if let Some(row) = self.rows.get_mut(row) {
            row.off_since = Some((ns, preempted));
        }
    }

    fn come_back(&mut self, row: usize, ns: u64) {
        let since = self.rows.get_mut(row).and_then(|row| row.off_since.take());
        let Some((since, preempted)) = since else { return };
        let (first, last) = (self.column(since), self.column(ns));
        let edges: Vec<(usize, u64)> = (first..=last)
            .map(|column| {
                let begin = self.begin_ns + self.span_ns / self.columns as u64 * column as u64;
                let end = begin.saturating_add(self.column_ns());
                (column, ns.min(end).saturating_sub(since.max(begin)))
            })
            .collect();
        let Some(row) = self.rows.get_mut(row) else { return };
        for (column, time) in edges {
            let [waits, without_cpu] = row.off.entry(column).or_default();
            let sum = if preempted { without_cpu } else { waits };
            *sum = sum.saturating_add(time);
        }
    }
}

impl Row {
    /// Short calls, neighbouring columns of one name together.
    pub(super) fn merged(&self) -> Vec<Merged> {
        let mut merged: Vec<Merged> = Vec::new();
        for ((lane, column), sum) in &self.columns {
            match merged.last_mut() {
                Some(last)
                    if last.lane == *lane
                        && last.last + 1 == *column
                        && last.sum.name == sum.name =>
                {
                    last.last = *column;
                    last.sum.calls += sum.calls;
                    last.sum.ns = last.sum.ns.saturating_add(sum.ns);
                }
                _ => merged.push(Merged { lane: *lane, first: *column, last: *column, sum: *sum }),
            }
        }
        merged
    }

    /// The thread's states: first and last column of each stretch.
    pub(super) fn states(&self) -> Vec<(usize, usize, State)> {
        let Some((first, last)) = self.alive.filter(|_| self.has_states) else {
            return Vec::new();
        };
        let mut states: Vec<(usize, usize, State)> = Vec::new();
        for column in first..=last {
            let [waits, without_cpu] = self.off.get(&column).copied().unwrap_or_default();
            let state = match waits.saturating_add(without_cpu) {
                off if off * 2 < self.column_ns => State::Runs,
                _ if without_cpu > waits => State::Preempted,
                _ => State::Waits,
            };
            match states.last_mut() {
                Some(stretch) if stretch.2 == state => stretch.1 = column,
                _ => states.push((column, column, state)),
            }
        }
        states
    }
}

/// The threads that are drawn, in the order in which they began, and the number of others.
fn drawn_threads(trace: &Trace) -> (Vec<ThreadId>, usize) {
    let mut seen: HashMap<ThreadId, (usize, usize)> = HashMap::new();
    for (index, event) in trace.events.iter().enumerate() {
        seen.entry(event.thread).or_insert((index, 0)).1 += 1;
    }
    let mut threads: Vec<(ThreadId, (usize, usize))> = seen.into_iter().collect();
    threads.sort_by_key(|(_, (first, events))| (std::cmp::Reverse(*events), *first));
    let left_out = threads.len().saturating_sub(THREADS_MAX);
    threads.truncate(THREADS_MAX);
    threads.sort_by_key(|(_, (first, _))| *first);
    (threads.into_iter().map(|(thread, _)| thread).collect(), left_out)
}

/// The depth of each thread's calls.
fn depths(trace: &Trace) -> HashMap<ThreadId, u32> {
    let (mut pairs, mut ended) = (Pairs::default(), Vec::new());
    let mut depths = HashMap::new();
    let mut take = |ended: &mut Vec<Slice>| {
        for slice in ended.drain(..) {
            let depth: &mut u32 = depths.entry(slice.thread).or_default();
            *depth = (*depth).max(slice.depth + 1);
        }
    };
    for event in &trace.events {
        pairs.take(event, event.time_ns, &mut ended);
        take(&mut ended);
    }
    pairs.finish(0, &mut ended);
    take(&mut ended);
    depths
}

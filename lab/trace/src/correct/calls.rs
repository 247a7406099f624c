//! Sums over calls, by name.

use std::collections::HashMap;

use measure::models::alpha::Sum;
use measure::models::{Range, timed};

use super::costs::Costs;
use super::{Row, Times};
use crate::event::{Corrected, Event, EventKind, NameId, ThreadId, Trace};

/// Sums over calls.
#[derive(Default)]
pub(super) struct Calls {
    /// Cost of all events.
    pub(super) all: Sum,
    /// Events that have a cost.
    pub(super) costly: u64,
    rows: HashMap<(NameId, EventKind), Calling>,
}

/// The calls of one name.
#[derive(Clone, Copy, Default)]
struct Calling {
    calls: u64,
    /// From entries to returns, as measured and with corrected times, ns.
    measured: f64,
    corrected: f64,
    /// Time off CPUs between, ns.
    off: f64,
    costs: Sum,
    unknown: u64,
}

/// A thread whose calls are summed.
#[derive(Default)]
struct Running {
    /// Cost of its events so far.
    sum: Sum,
    stack: Vec<Open>,
    /// Open calls by kind and name.
    open: HashMap<(EventKind, NameId), u32>,
    /// Events of unknown cost so far.
    unknown: u64,
    /// Time off CPUs so far, ns. The next field is the time of its switch out, if it is off.
    off: u64,
    off_since: Option<u64>,
}

/// A call that has not ended.
struct Open {
    name: NameId,
    kind: EventKind,
    measured: u64,
    corrected: u64,
    /// Sums of the thread's events before it.
    before: Sum,
    unknown: u64,
    off: u64,
    is_inner: bool,
}

impl Running {
    /// Updates the time off CPUs, by the rules of `on_cpu`.
    fn pass(&mut self, event: &Event) {
        match event.kind {
            EventKind::ThreadStart => {}
            EventKind::SwitchOut => {
                self.off_since.get_or_insert(event.time_ns);
            }
            _ => {
                let since = self.off_since.take().unwrap_or(event.time_ns);
                self.off = self.off.saturating_add(event.time_ns.saturating_sub(since));
            }
        }
    }

    /// Closes the call that an event ends. Calls inside whose end is missing are dropped.
    fn close(&mut self, event: &Event) -> Option<Open> {
        let opener = event.kind.closes()?;
        self.open.get(&(opener, event.name)).filter(|open| **open > 0)?;
        loop {
            let open = self.stack.pop()?;
            if let Some(count) = self.open.get_mut(&(open.kind, open.name)) {
                *count = count.saturating_sub(1);
            }
            if open.kind == opener && open.name == event.name {
                return Some(open);
            }
        }
    }
}

impl Calls {
    pub(super) fn of(trace: &Trace, costs: &Costs) -> Self {
        let mut calls = Self::default();
        let mut threads: HashMap<ThreadId, Running> = HashMap::new();
        for (event, corrected) in trace.events.iter().zip(&trace.corrected) {
            let thread = threads.entry(event.thread).or_default();
            let unknown = thread.unknown;
            thread.unknown += u64::from(costs.is_unknown(event));
            thread.pass(event);
            if let Some(open) = thread.close(event).filter(|open| !open.is_inner) {
                calls.end(&open, event, corrected, thread);
            }
            if event.kind.opens() && thread.stack.len() < DEPTH_MAX {
                let same = thread.open.entry((event.kind, event.name)).or_default();
                let is_inner = *same > 0;
                *same += 1;
                thread.stack.push(Open {
                    name: event.name,
                    kind: event.kind,
                    measured: event.time_ns,
                    corrected: corrected.value_ns,
                    before: thread.sum,
                    unknown,
                    off: thread.off,
                    is_inner,
                });
            }
            if let Some(alpha) = costs.alpha(event) {
                thread.sum.add(alpha, 1.0);
                calls.all.add(alpha, 1.0);
                calls.costly += 1;
            }
        }
        calls
    }

    /// Mean cost of this many events, ns.
    pub(super) fn cost_of(&self, events: f64) -> f64 {
        events * self.all.mean / (self.costly as f64).max(1.0)
    }

    fn end(&mut self, open: &Open, event: &Event, corrected: &Corrected, thread: &Running) {
        let row = self.rows.entry((open.name, open.kind)).or_default();
        row.calls += 1;
        row.measured += event.time_ns.saturating_sub(open.measured) as f64;
        row.corrected += corrected.value_ns.saturating_sub(open.corrected) as f64;
        row.off += (thread.off - open.off) as f64;
        row.costs.add_sum(&thread.sum.since(&open.before));
        row.unknown += thread.unknown - open.unknown;
    }

    /// The rows: with CPU time, limited to that of the whole trace, where `on_cpu` is known; else
    /// with all time.
    pub(super) fn rows(self, on_cpu: Option<Times>) -> Vec<Row> {
        let row = |((name, kind), of): ((NameId, EventKind), Calling)| {
            let inclusive = match on_cpu {
                Some(whole) => of.on_cpu().within(whole),
                None => of.with_waits(),
            };
            let inclusive = inclusive.with_unknown(of.unknown);
            Row { name, kind, calls: of.calls, inclusive, unknown: of.unknown }
        };
        let mut rows: Vec<Row> = self.rows.into_iter().map(row).collect();
        rows.sort_by(|a, b| {
            let by = |row: &Row| row.inclusive.measured;
            by(b).total_cmp(&by(a)).then(a.name.cmp(&b.name))
        });
        rows
    }
}

impl Calling {
    fn on_cpu(&self) -> Times {
        let measured = (self.measured - self.off).max(0.0);
        Times { measured, corrected: timed::total(measured, &self.costs) }
    }

    fn with_waits(&self) -> Times {
        let (measured, value, reach) = (self.measured, self.corrected, self.costs.reach());
        let bounded = |time: f64| f64::clamp(time, 0.0, f64::max(measured, value));
        let corrected = Range { low: bounded(value - reach), value, high: bounded(value + reach) };
        Times { measured, corrected }
    }
}

/// Calls of a thread that are open at once, at most; deeper ones have no row.
const DEPTH_MAX: usize = 4096;

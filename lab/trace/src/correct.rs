//! Subtracts the cost of tracing from the times of a trace, by the models of `measure::models`. The
//! trace may come from any tool.
//!
//! Events cost what [`Facts::costs`](crate::Facts::costs) says. Locks, barriers, advances, the
//! start of threads, and waits that another thread of the trace ended (`wake`) are those of the
//! event-based model; all else is time-based.

mod calls;
mod costs;
mod graph;

use std::collections::{HashMap, HashSet};

use measure::models::alpha::{Sum, one_more_run};
use measure::models::waits::{self, Stuck};
use measure::models::{Range, relative_error, timed};

use crate::event::{Corrected, Cost, Event, EventKind, Facts, Interval, NameId, ThreadId, Trace};
use calls::Calls;
use costs::Costs;
pub use costs::cost;
use graph::Graph;

/// Most events of a trace that is corrected; each takes about 150 bytes of memory.
pub const EVENTS_MAX: usize = 1 << 23;
/// Largest plausible cost of an event, 1 s in ns, and largest plausible time of a run, 30 years in
/// ns. A trace with larger ones is refused.
const COST_MOST: f64 = 1e9;
const TIME_MOST: f64 = 1e18;
/// Most bytes of the text that describes how a cost was measured.
const HOW_MOST: usize = 200;
/// Upper bound of an unknown cost of an event, ns. The dearest event measured is a uprobe on an
/// instruction that the kernel executes out of line: 16 us on a virtual machine.
const UNKNOWN_MOST: f64 = 20_000.0;

/// Why a trace cannot be corrected.
#[derive(Debug, thiserror::Error)]
pub enum CorrectError {
    /// The trace has no costs of events.
    #[error(
        "the trace does not say what its events cost: of dcpi trace's only its own format does; for \
         another tool's, name its trace of the calibration program with --calibration"
    )]
    NoCosts,
    /// The trace has no event.
    #[error("the trace has no event; see what was lost with dcpi trace --to text")]
    NoEvents,
    /// Too many events.
    #[error("the trace has {0} events, and at most {EVENTS_MAX} can be corrected; trace less")]
    TooMany(usize),
    /// Costs, or times of runs without events, are not plausible.
    #[error(
        "the trace has costs of events, or times of runs without events, that are not possible; trace again"
    )]
    BadCosts,
    /// Events are missing.
    #[error("the trace cannot be corrected: {0}")]
    Stuck(#[from] Stuck),
}

/// A measured time, and the corrected one, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// As measured.
    pub measured: f64,
    /// Without the cost of tracing.
    pub corrected: Range,
}

/// The calls of one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The name.
    pub name: NameId,
    /// The kind of the event that begins it.
    pub kind: EventKind,
    /// Calls whose end is in the trace.
    pub calls: u64,
    /// Their time, with what they called; of recursive calls only the outermost. CPU time where
    /// the trace has switches, as [`Correction::on_cpu`], else with all waits. Summed over threads.
    pub inclusive: Times,
    /// Events in them of unknown cost, which is not subtracted; the interval covers its range.
    pub unknown: u64,
}

/// The cost of events in this program, from its runs without events.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InSitu {
    /// Cost of an event in this program over its cost in vitro, with a 95 % interval.
    pub factor: Range,
    /// Number of runs without events.
    pub runs: usize,
    /// Whether costs and total come from these runs.
    pub says: Says,
}

impl InSitu {
    /// The CPU time of a run without events, measured instead of computed from the trace. None
    /// where these runs did other work, or where `modelled` has a narrower interval and costs are
    /// those of other programs.
    fn total(self, trace: &Trace, modelled: Option<Times>) -> Option<Times> {
        let untraced = trace.facts.untraced.as_ref()?;
        let corrected = one_more_run(&untraced.cpu_ns)?;
        let reach = |of: Range| of.high - of.low;
        let is_narrower = modelled.is_none_or(|of| reach(corrected) < reach(of.corrected));
        let takes = match self.says {
            Says::Taken => true,
            Says::LessExact => is_narrower,
            Says::Contradict => false,
        };
        takes.then_some(Times { measured: untraced.traced_cpu_ns, corrected })
    }
}

/// The use that is made of runs without events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// Costs are in-vitro costs times the program's factor.
    Taken,
    /// The program's factor is less exact than the factor of other programs, which is taken.
    LessExact,
    /// The program's factor is not plausible: the runs did other work than the traced run. The
    /// factor of other programs is taken.
    Contradict,
}

/// The results of the correction.
#[derive(Clone, Debug, PartialEq)]
pub struct Correction {
    /// From the first event to the last one. Its interval includes what lost events may have cost.
    pub elapsed: Times,
    /// Time on CPUs, summed over all threads, where the trace has switches; else as `elapsed`.
    pub on_cpu: Option<Times>,
    /// Threads that have events.
    pub threads: usize,
    /// Number of events that have a cost.
    pub events: u64,
    /// Total cost of these events, ns.
    pub cost_ns: f64,
    /// The subtracted cost of an event with its 95 % interval, ns, for each cost of the trace's
    /// facts; None where no event has it.
    pub costs: Vec<Option<Range>>,
    /// Calls by name, the longest as traced first.
    pub rows: Vec<Row>,
    /// Measured over corrected time: of CPUs where it is known, else elapsed.
    pub slowdown: f64,
    /// Standard deviation of an event's cost between places, over its mean, of all events.
    pub relative_spread: f64,
    /// The program's own factor. None without runs without events, and where the traced run has
    /// lost events or events of unknown cost.
    pub in_situ: Option<InSitu>,
    /// Kinds of events with unknown costs; their costs are not subtracted, and the intervals cover
    /// the possible values.
    pub unknown: Vec<EventKind>,
    /// Number of events of these kinds.
    pub unknown_events: u64,
    /// Whether calls were left out of the trace, whose events cost time as well.
    pub is_sampled: bool,
}

impl Correction {
    /// Error of the corrected total by the rule of `measure::models`, as a standard deviation and
    /// part of the total.
    #[must_use]
    pub fn error(&self) -> f64 {
        relative_error(self.relative_spread, self.slowdown)
    }

    /// The total that counts: on CPUs where that is known, else elapsed.
    #[must_use]
    pub fn total(&self) -> Times {
        self.on_cpu.unwrap_or(self.elapsed)
    }
}

/// Fills [`Trace::corrected`], and returns the corrected totals and rows.
///
/// # Errors
/// [`CorrectError`].
pub fn correct(trace: &mut Trace) -> Result<Correction, CorrectError> {
    if trace.events.is_empty() {
        return Err(CorrectError::NoEvents);
    }
    if trace.events.len() > EVENTS_MAX {
        return Err(CorrectError::TooMany(trace.events.len()));
    }
    if !has_possible_costs(&trace.facts) {
        return Err(CorrectError::BadCosts);
    }
    let costs = Costs::of(trace);
    if costs.alphas.is_empty() {
        return Err(CorrectError::NoCosts);
    }
    trace.sort();
    let mut graph = Graph::of(trace, &costs);
    graph.find_forks(trace);
    graph.find_wakes(trace);
    let modelled = waits::modelled(&graph.threads, &graph.objects, &costs.alphas)?;
    let begin = trace.events.first().map_or(0, |event| event.time_ns);
    let absolute = |ns: f64| begin.saturating_add(ns.max(0.0).round() as u64);
    trace.corrected = graph
        .places
        .iter()
        .map(|(thread, at)| {
            let range = modelled.times.get(*thread).and_then(|times| times.get(*at));
            let Range { low, value, high } = range.copied().unwrap_or_default();
            Corrected { low_ns: absolute(low), value_ns: absolute(value), high_ns: absolute(high) }
        })
        .collect();
    let last = trace.events.last().map_or(begin, |event| event.time_ns);
    let elapsed = Times { measured: (last - begin) as f64, corrected: modelled.total() };
    let calls = Calls::of(trace, &costs);
    let lost_ns = calls.cost_of(trace.facts.lost.iter().map(|lost| lost.events as f64).sum());
    let unknown_events = trace.events.iter().filter(|event| costs.is_unknown(event)).count() as u64;
    let with_rest = |times: Times| times.with_unknown(unknown_events).lower(lost_ns);
    let elapsed = with_rest(elapsed);
    let on_cpu = on_cpu(trace, &calls.all).map(with_rest);
    let on_cpu = costs.in_situ.and_then(|of| of.total(trace, on_cpu)).or(on_cpu);
    let total = on_cpu.unwrap_or(elapsed);
    let unknown = costs.unknown.clone();
    Ok(Correction {
        elapsed,
        on_cpu,
        threads: graph.threads.len(),
        is_sampled: trace.facts.sampled.is_some(),
        events: calls.costly,
        cost_ns: calls.all.mean,
        rows: calls.rows(on_cpu),
        slowdown: total.measured / total.corrected.value.max(1.0),
        relative_spread: costs.relative_spread(trace),
        costs: costs.taken(),
        in_situ: costs.in_situ,
        unknown,
        unknown_events,
    })
}

impl Times {
    /// Whether the interval is too wide only because of this many events of unknown cost.
    #[must_use]
    pub fn is_wide_by_unknown(&self, events: u64) -> bool {
        let known = Range {
            low: self.corrected.value.min(self.corrected.low + events as f64 * UNKNOWN_MOST),
            ..self.corrected
        };
        known.is_narrow() && !self.corrected.is_narrow()
    }

    /// These times with the interval lowered by the largest cost of `events` events of unknown
    /// cost.
    fn with_unknown(self, events: u64) -> Self {
        self.lower(events as f64 * UNKNOWN_MOST)
    }

    /// These times, limited to those of a whole that they are a part of.
    fn within(self, whole: Self) -> Self {
        let Range { low, value, high } = self.corrected;
        let most = whole.corrected;
        let corrected = Range {
            low: low.min(most.low),
            value: value.min(most.value),
            high: high.min(most.high),
        };
        Self { corrected, ..self }
    }

    fn lower(self, ns: f64) -> Self {
        let low = (self.corrected.low - ns).max(0.0);
        Self { corrected: Range { low, ..self.corrected }, ..self }
    }
}

/// Whether costs and times are plausible measurements: a trace may come from an untrusted source.
fn has_possible_costs(facts: &Facts) -> bool {
    let is_cost = |cost: &Cost| {
        let Interval { low, value, high } = cost.alpha_ns;
        let spread = cost.spread_ns.unwrap_or_default();
        let ends = [0.0, low, value, high, COST_MOST];
        ends.is_sorted() && (0.0..=COST_MOST).contains(&spread) && cost.how.len() <= HOW_MOST
    };
    let is_time = |ns: &f64| *ns > 0.0 && *ns <= TIME_MOST;
    let times = facts.untraced.iter().flat_map(|of| of.cpu_ns.iter().chain([&of.traced_cpu_ns]));
    facts.costs.iter().all(is_cost) && times.into_iter().all(is_time)
}

/// Time on CPUs, measured, and without the cost of all events. None without switches.
fn on_cpu(trace: &Trace, all: &Sum) -> Option<Times> {
    let mut running: HashMap<ThreadId, u64> = HashMap::new();
    // A command on a machine with nothing else to do may run without a switch: that they were
    // looked for is enough.
    let is_switch = |kind| matches!(kind, EventKind::SwitchOut | EventKind::SwitchIn);
    let mut switches = trace.facts.costs.iter().any(|cost| is_switch(cost.kind));
    let mut measured = 0_u64;
    // perf reports the threads of other programs that they got the CPU of the traced one, and not
    // that they left it; and of the kernel's idle threads, which have the number 0.
    let is_own = |event: &Event| !matches!(event.kind, EventKind::SwitchIn | EventKind::Wake);
    let own: HashSet<ThreadId> =
        trace.events.iter().filter(|event| is_own(event)).map(|event| event.thread).collect();
    let counts = |event: &&Event| {
        own.contains(&event.thread) && trace.thread(event).is_none_or(|thread| thread.tid != 0)
    };
    for event in trace.events.iter().filter(counts) {
        switches |= is_switch(event.kind);
        match event.kind {
            EventKind::ThreadEnd | EventKind::SwitchOut => {
                if let Some(since) = running.remove(&event.thread) {
                    measured = measured.saturating_add(event.time_ns.saturating_sub(since));
                }
            }
            // The event is recorded by the creator; the thread runs from its first switch on.
            EventKind::ThreadStart => {}
            _ => {
                running.entry(event.thread).or_insert(event.time_ns);
            }
        }
    }
    let last = trace.events.last().map_or(0, |event| event.time_ns);
    let rest = running.values().fold(0_u64, |sum, since| sum.saturating_add(last - since));
    let measured = measured.saturating_add(rest) as f64;
    switches.then(|| Times { measured, corrected: timed::total(measured, all) })
}

#[cfg(test)]
mod tests {
    use super::costs::alpha;
    use super::*;
    use crate::event::{Name, NameKind, Thread, Untraced};
    use measure::models::alpha::Alpha;

    fn constant(kind: EventKind, value: f64) -> Cost {
        let alpha_ns = Interval { low: value, value, high: value };
        Cost {
            kind,
            alpha_ns,
            spread_ns: None,
            how: "exact".to_owned(),
            in_vitro: false,
            stepped: None,
            with_return: None,
        }
    }

    fn event(time_ns: u64, thread: u32, kind: EventKind, name: u32, argument: u64) -> Event {
        let (thread, name) = (ThreadId(thread), NameId(name));
        Event { time_ns, argument, thread, name, cpu: None, kind }
    }

    fn trace(costs: Vec<Cost>, events: Vec<Event>) -> Trace {
        let mut trace = Trace { events, ..Trace::default() };
        trace.facts.costs = costs;
        trace.names = ["f", "g"].map(|name| Name::new(NameKind::Procedure, name)).to_vec();
        let thread = |tid| Thread { pid: 10, tid, command: String::new() };
        trace.threads = vec![thread(10), thread(11)];
        trace
    }

    use EventKind::{Enter, Exit, LockAcquire, LockRelease, LockRequest, SwitchIn, SwitchOut};

    #[test]
    fn a_parents_time_is_without_its_childrens_events() {
        // f has work of 100 and calls g twice, of 20 each; entering costs 30 and returning 50.
        let events = vec![
            event(1000, 0, Enter, 0, 0),
            event(1000 + 30 + 50, 0, Enter, 1, 0),
            event(1080 + 30 + 20, 0, Exit, 1, 0),
            event(1130 + 50, 0, Enter, 1, 0),
            event(1180 + 30 + 20, 0, Exit, 1, 0),
            event(1230 + 50 + 50, 0, Exit, 0, 0),
        ];
        let mut trace = trace(vec![constant(Enter, 30.0), constant(Exit, 50.0)], events);
        let of = correct(&mut trace).unwrap();
        let times: Vec<u64> = trace.corrected.iter().map(|at| at.value_ns).collect();
        assert_eq!(times, [1000, 1050, 1070, 1070, 1090, 1140]);
        assert_eq!((of.elapsed.measured, of.elapsed.corrected.value), (330.0, 140.0));
        let rows: Vec<(u32, u64, f64, f64)> = of
            .rows
            .iter()
            .map(|row| {
                (row.name.0, row.calls, row.inclusive.measured, row.inclusive.corrected.value)
            })
            .collect();
        assert_eq!(rows, [(0, 1, 330.0, 140.0), (1, 2, 100.0, 40.0)]);
        assert!((of.slowdown - 330.0 / 140.0).abs() < 1e-9);
        assert_eq!((of.events, of.cost_ns, of.error()), (6, 240.0, 0.0));
        assert!(of.on_cpu.is_none() && of.unknown.is_empty());
    }

    #[test]
    fn costs_are_those_of_the_probed_instruction_and_of_what_is_probed() {
        let mut costs = vec![constant(Enter, 10.0), constant(Enter, 100.0), constant(Enter, 1.0)];
        costs[0].stepped = Some(false);
        costs[1].stepped = Some(true);
        costs[1].with_return = Some(false);
        let events = vec![
            event(0, 0, Enter, 0, 0),
            event(1000, 0, Enter, 1, 0),
            event(2000, 0, Enter, 2, 0),
            event(3000, 0, Exit, 2, 0),
        ];
        let mut trace = trace(costs, events);
        trace.names.push(Name::new(NameKind::Procedure, "h"));
        trace.names[0].stepped = Some(false);
        trace.names[1].stepped = Some(true);
        trace.names[2].stepped = Some(true);
        let of = correct(&mut trace).unwrap();
        assert_eq!(of.cost_ns, 10.0 + 100.0 + 1.0);
        assert_eq!(of.unknown, [Exit]);
    }

    #[test]
    fn a_lock_that_was_waited_for_is_handed_over_earlier() {
        // Thread 0 holds the lock with two events of 500 in it; thread 1 waits for it.
        let events = vec![
            event(0, 0, LockRequest, 0, 7),
            event(510, 0, LockAcquire, 0, 7),
            event(600, 1, LockRequest, 0, 7),
            event(1110, 0, Enter, 0, 0),
            event(1710, 0, LockRelease, 0, 7),
            event(2230, 1, LockAcquire, 0, 7),
        ];
        let kinds = [LockRequest, LockAcquire, LockRelease, Enter];
        let costs = kinds.map(|kind| constant(kind, 500.0)).to_vec();
        let mut trace = trace(costs, events);
        correct(&mut trace).unwrap();
        let times: Vec<u64> = trace.corrected.iter().map(|at| at.value_ns).collect();
        // Without events: taken at 10, 100 of work, 100 more, handed over in 20; thread 1 arrives
        // at 600, long after that, and takes it in 10.
        assert_eq!(times, [0, 10, 600, 110, 210, 610]);
    }

    /// A command on a machine with nothing else to do ran without a switch, and then the total was
    /// not of CPU time.
    #[test]
    fn without_a_switch_all_time_is_on_a_cpu() {
        let costs = [Enter, SwitchOut].map(|kind| constant(kind, 100.0)).to_vec();
        let mut trace = trace(costs, vec![event(0, 0, Enter, 0, 0), event(1000, 0, Enter, 0, 0)]);
        let on_cpu = correct(&mut trace).unwrap().on_cpu.unwrap();
        assert_eq!(on_cpu.measured, 1000.0);
    }

    #[test]
    fn a_woken_thread_goes_on_with_its_waker_and_time_off_the_cpu_is_no_work() {
        let events = vec![
            event(0, 0, Enter, 0, 0),
            event(100, 1, SwitchOut, 0, 0),
            event(2000, 0, Enter, 0, 0),
            event(4000, 0, EventKind::Wake, 0, 11),
            event(4100, 1, SwitchIn, 0, 0),
            event(4600, 1, SwitchOut, 0, 0),
            event(5000, 0, SwitchOut, 0, 1),
        ];
        let mut trace = trace(vec![constant(Enter, 1000.0)], events);
        let of = correct(&mut trace).unwrap();
        let times: Vec<u64> = trace.corrected.iter().map(|at| at.value_ns).collect();
        assert_eq!(times, [0, 100, 1000, 2000, 2100, 2600, 3000]);
        let on_cpu = of.on_cpu.unwrap();
        assert_eq!((on_cpu.measured, on_cpu.corrected.value), (5500.0, 3500.0));
        assert_eq!(of.unknown, [SwitchOut, SwitchIn]);
    }

    /// Procedures had wall time beside a total of CPU time, and events without a known cost held.
    #[test]
    fn rows_are_cpu_time_as_the_total_and_unknown_costs_are_counted() {
        let events = vec![
            event(0, 0, Enter, 0, 0),
            event(1000, 0, SwitchOut, 0, 0),
            event(9000, 0, SwitchIn, 0, 0),
            event(10_000, 0, Enter, 1, 0),
            event(11_000, 0, Exit, 1, 0),
            event(12_000, 0, Exit, 0, 0),
        ];
        let mut costs: Vec<Cost> =
            [Enter, Exit, SwitchOut].map(|kind| constant(kind, 100.0)).to_vec();
        let mut whole = trace(costs.clone(), events.clone());
        whole.facts.lost =
            vec![crate::Lost { name: "f".into(), reason: "ring_full".into(), events: 2 }];
        let of = correct(&mut whole).unwrap();
        let on_cpu = of.on_cpu.unwrap();
        assert_eq!((on_cpu.measured, on_cpu.corrected.value), (4000.0, 3500.0));
        // The switch back may have cost 20 us.
        assert_eq!((on_cpu.corrected.low, of.threads, of.unknown_events), (0.0, 1, 1));
        let rows: Vec<(u32, f64, f64, u64)> = of
            .rows
            .iter()
            .map(|row| {
                let Times { measured, corrected } = row.inclusive;
                (row.name.0, measured, corrected.value, row.unknown)
            })
            .collect();
        // Of f: its entry, the switch, entry and return of g; a switch back has no cost here. Of
        // the whole also f's return, behind the last time stamp: no part is longer.
        assert_eq!(rows, [(0, 4000.0, 3500.0, 1), (1, 1000.0, 900.0, 0)]);
        costs.push(constant(SwitchIn, 100.0));
        whole.facts.costs = costs.clone();
        let on_cpu = correct(&mut whole).unwrap().on_cpu.unwrap();
        let Range { low, value, .. } = on_cpu.corrected;
        assert_eq!((low, value), (3200.0, 3400.0), "lost events cost, too");
        costs.retain(|cost| ![Exit, SwitchIn].contains(&cost.kind));
        let of = correct(&mut trace(costs, events)).unwrap();
        assert!(of.rows.iter().all(|row| row.unknown > 0), "{of:?}");
        let total = of.on_cpu.unwrap();
        assert!(total.is_wide_by_unknown(of.unknown_events) && !total.is_wide_by_unknown(0));
        assert_eq!(of.unknown, [SwitchIn, Exit]);
    }

    /// A program whose events cost a quarter more than in vitro.
    #[test]
    fn runs_without_events_say_what_they_cost_in_this_program() {
        let costs: Vec<Cost> = [Enter, Exit]
            .map(|kind| Cost {
                alpha_ns: Interval { low: 0.9e6, value: 1e6, high: 1.1e6 },
                in_vitro: true,
                ..constant(kind, 0.0)
            })
            .to_vec();
        let calls = (0..100)
            .map(|call| call * 5_000_000)
            .flat_map(|at| [event(at, 0, Enter, 0, 0), event(at + 2_250_000, 0, Exit, 0, 0)]);
        let mut of = trace(costs, calls.collect());
        // 200 events of 1.25 ms in 500 ms, less half of what two threads take at most to begin.
        let untraced = |cpu_ms: [f64; 4]| {
            Some(Untraced { traced_cpu_ns: 5e8, cpu_ns: cpu_ms.map(|ms| ms * 1e6).to_vec() })
        };
        of.facts.untraced = untraced([250.0, 249.0, 251.0, 250.0]);
        let found = correct(&mut of).unwrap();
        let in_situ = found.in_situ.unwrap();
        assert_eq!((in_situ.says, in_situ.runs), (Says::Taken, 4), "{in_situ:?}");
        assert!((in_situ.factor.value - 1.245).abs() < 1e-9, "{in_situ:?}");
        let total = found.on_cpu.unwrap();
        assert_eq!((total.measured, total.corrected.value), (5e8, 2.5e8));
        let row = found.rows[0].inclusive;
        assert_eq!((row.measured, row.corrected.value.round()), (225e6, 100.5e6));
        assert!(row.corrected.is_narrow(), "{row:?}");

        of.facts.untraced = untraced([100.0, 400.0, 250.0, 250.0]);
        let wide = correct(&mut of).unwrap();
        assert_eq!(wide.in_situ.unwrap().says, Says::LessExact, "{wide:?}");
        let row = wide.rows[0].inclusive;
        assert_eq!(row.corrected.value.round(), 118e6, "as in other programs");
        assert_eq!(
            (wide.costs[0].map(|of| of.value), wide.on_cpu.map(|of| of.corrected.value)),
            (Some(1.07e6), Some(2.5e8))
        );
        of.facts.untraced = untraced([5.0, 5.1, 4.9, 5.0]);
        let wrong = correct(&mut of).unwrap();
        assert_eq!(wrong.in_situ.unwrap().says, Says::Contradict, "2.5 times the cost");
        assert_eq!((wrong.costs[0].map(|of| of.value), wrong.on_cpu), (Some(1.07e6), None));
        of.facts.lost = vec![crate::Lost { name: "f".into(), reason: "x".into(), events: 2 }];
        assert_eq!(correct(&mut of).unwrap().in_situ, None, "lost events cost, too");
        for cpu_ns in [[0.0; 4], [-1.0; 4], [1e30; 4]] {
            of.facts.untraced = untraced(cpu_ns);
            assert!(matches!(correct(&mut of), Err(CorrectError::BadCosts)), "{cpu_ns:?}");
        }
        of.facts.untraced = None;
        for (at, ns) in [(0, 1e300), (1, -1.0), (1, f64::NAN)] {
            let mut bad = of.clone();
            bad.facts.costs[at].alpha_ns.value = ns;
            assert!(matches!(correct(&mut bad), Err(CorrectError::BadCosts)), "{ns}");
        }
    }

    #[test]
    fn a_thread_begins_after_its_creator() {
        let events = vec![
            event(0, 0, Enter, 0, 0),
            event(1500, 0, Enter, 0, 0),
            event(1600, 1, EventKind::ThreadStart, 0, 10),
            event(3600, 1, Enter, 0, 0),
        ];
        let mut trace = trace(vec![constant(Enter, 1000.0)], events);
        correct(&mut trace).unwrap();
        let times: Vec<u64> = trace.corrected.iter().map(|at| at.value_ns).collect();
        // The creator's second event is at 500; the thread begins as long after it as measured, but
        // not earlier than at once.
        assert_eq!(times, [0, 500, 500, 2500]);
    }

    #[test]
    fn what_cannot_be_corrected_is_said() {
        let none = correct(&mut trace(vec![constant(Enter, 1.0)], Vec::new()));
        assert!(matches!(none, Err(CorrectError::NoEvents)));
        let events = vec![event(0, 0, Enter, 0, 0)];
        let said = correct(&mut trace(Vec::new(), events)).unwrap_err().to_string();
        assert!(said.contains("--calibration"), "{said}");
        let events = vec![event(0, 0, EventKind::AwaitEnd, 0, 3)];
        let said = correct(&mut trace(vec![constant(Enter, 1.0)], events)).unwrap_err().to_string();
        assert!(said.contains("waits for a release that is not there"), "{said}");
    }

    #[test]
    fn a_cost_is_an_alpha_and_back() {
        let of = Alpha { mean: 1000.0, between: 50.0, within: 30.0, places: 6 };
        let back = alpha(&cost(Enter, &of, "in vitro"));
        assert_eq!((back.mean, back.within), (1000.0, 30.0));
        let wide = Alpha { within: 0.0, ..of }.times(10).reach();
        let same = Alpha { within: 0.0, ..back }.times(10).reach();
        assert!((wide / same - 1.0).abs() < 1e-3, "{wide} {same}");
    }
}

//! The time-based models (the paper's sections IV-B and IV-C): each event costs alpha and delays
//! what comes after it in its thread; threads delay each other at the begin and end of concurrent
//! phases only. Where they wait for each other within a phase, [`super::waits`] is needed.

use super::Range;
use super::alpha::{Alpha, Sum, quantile};
use std::collections::HashMap;

/// The time of a program or thread without `costs`, which lay within `measured` ns:
/// Ta = Tm - DP. Never below 0, and never above what was measured, as an event does not give time.
#[must_use]
pub fn total(measured: f64, costs: &Sum) -> Range {
    let value = measured - costs.mean;
    let reach = costs.reach();
    let bounded = |time: f64| time.clamp(0.0, measured.max(0.0));
    Range { low: bounded(value - reach), value: bounded(value), high: bounded(value + reach) }
}

/// The time of a program with one concurrent phase: Ta = Tm - DPs - alpha Nmax. The critical path
/// is the thread that takes longest when its own events are taken off (section IV-B2).
///
/// `sequential` is the measured time outside of the phase, ns, and the cost of its events;
/// `threads` are the same for each thread of the phase. Returns the time and the critical thread;
/// None of the latter where there is no thread.
#[must_use]
pub fn concurrent_total(sequential: (f64, Sum), threads: &[(f64, Sum)]) -> (Range, Option<usize>) {
    let alone = total(sequential.0, &sequential.1);
    let times: Vec<Range> = threads.iter().map(|(time, costs)| total(*time, costs)).collect();
    let critical = times.iter().enumerate().max_by(|(_, a), (_, b)| a.value.total_cmp(&b.value));
    let Some((thread, longest)) = critical else { return (alone, None) };
    // Another thread may be the longest one at an end of its interval.
    let low = times.iter().map(|time| time.low).fold(longest.low, f64::max);
    let high = times.iter().map(|time| time.high).fold(longest.high, f64::max);
    let sum =
        Range { low: alone.low + low, value: alone.value + longest.value, high: alone.high + high };
    (sum, Some(thread))
}

/// One event of a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    /// Measured time, ns.
    pub time: f64,
    /// Which cost it has: an index of the costs that are given with the trace. An index beyond them
    /// costs nothing.
    pub cost: usize,
}

/// Times of a sequential trace: ta(e_i) = tm(e_i) - (i - 1) alpha (equation 7), with a cost of
/// each kind of event. The times never go back, because the order of events is known: where the
/// cost is greater than the time to the next event, both have the same time.
#[must_use]
pub fn sequential(events: &[Event], costs: &[Alpha]) -> Vec<Range> {
    let clock = Corrector::new(costs);
    let Some(first) = events.first() else { return Vec::new() };
    let basis = Basis { measured: first.time, corrected: Range::exact(first.time) };
    let mut sum = Sum::default();
    let mut last = basis.corrected;
    events
        .iter()
        .map(|event| {
            last = not_before(clock.at(event.time, &basis, &sum), last);
            add(&mut sum, costs, event.cost);
            last
        })
        .collect()
}

/// Where an event of a program with concurrent phases happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// In the part of the program that runs alone.
    Sequential,
    /// In this thread of a concurrent phase.
    Thread(u32),
}

/// Times of a trace with sequential parts and concurrent phases (section IV-C2). `events` are in
/// the order of their measured times.
///
/// The last sequential event is the time basis of the phase that follows it. The first sequential
/// event after a phase takes the concurrent event with the greatest corrected time as its basis.
/// Unlike in the paper, the cost of the basis itself is taken off as well, as equation 7 does with
/// every other event; else each phase would come out one event too long.
#[must_use]
pub fn concurrent(events: &[(Place, Event)], costs: &[Alpha]) -> Vec<Range> {
    let clock = Corrector::new(costs);
    let Some((_, first)) = events.first() else { return Vec::new() };
    let mut basis = Basis { measured: first.time, corrected: Range::exact(first.time) };
    // Costs since the basis: of the sequential part, which ends in the basis's own, and of threads.
    let mut since = Sum::default();
    let mut threads: HashMap<u32, (Sum, Range)> = HashMap::new();
    // The concurrent event with the greatest corrected time, and its cost.
    let mut latest: Option<(Basis, usize)> = None;
    let mut last_sequential = basis.corrected;
    let mut corrected = Vec::with_capacity(events.len());
    for (place, event) in events {
        let time = match place {
            Place::Sequential => {
                if let Some((concurrent, cost)) = latest.take() {
                    (basis, since) = (concurrent, Sum::default());
                    add(&mut since, costs, cost);
                    threads.clear();
                }
                let time = not_before(clock.at(event.time, &basis, &since), last_sequential);
                last_sequential = time;
                // The next phase begins at this event.
                (basis, since) = (Basis { measured: event.time, corrected: time }, Sum::default());
                add(&mut since, costs, event.cost);
                time
            }
            Place::Thread(thread) => {
                let (sum, last) = threads.entry(*thread).or_insert((since, basis.corrected));
                let time = not_before(clock.at(event.time, &basis, sum), *last);
                *last = time;
                add(sum, costs, event.cost);
                if latest.is_none_or(|(of, _)| time.value >= of.corrected.value) {
                    let of = Basis { measured: event.time, corrected: time };
                    latest = Some((of, event.cost));
                }
                time
            }
        };
        corrected.push(time);
    }
    corrected
}

fn add(sum: &mut Sum, costs: &[Alpha], cost: usize) {
    if let Some(alpha) = costs.get(cost) {
        sum.add(alpha, 1.0);
    }
}

/// An event from which the times of those after it are counted.
#[derive(Clone, Copy)]
struct Basis {
    measured: f64,
    corrected: Range,
}

/// Takes sums of costs off times.
struct Corrector {
    /// Student's t for the fewest places of the costs: computed once, as it takes longer than all
    /// the rest of an event.
    quantile: f64,
}

impl Corrector {
    fn new(costs: &[Alpha]) -> Self {
        let fewest = costs.iter().map(|alpha| alpha.places).filter(|places| *places > 1).min();
        let freedom = fewest.map_or(f64::INFINITY, |places| f64::from(places - 1));
        Self { quantile: quantile(freedom) }
    }

    /// A time that was measured after the basis, without what events since then cost. Not before
    /// the basis, and not later after it than measured.
    fn at(&self, measured: f64, basis: &Basis, since: &Sum) -> Range {
        let passed = (measured - basis.measured).max(0.0);
        let reach = self.quantile * since.deviation();
        let without = |off: f64| (passed - off).clamp(0.0, passed);
        Range {
            low: basis.corrected.low + without(since.mean + reach),
            value: basis.corrected.value + without(since.mean),
            high: basis.corrected.high + without(since.mean - reach),
        }
    }
}

/// Events of one thread keep their order.
fn not_before(time: Range, last: Range) -> Range {
    Range {
        low: time.low.max(last.low),
        value: time.value.max(last.value),
        high: time.high.max(last.high),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn constant(mean: f64) -> Alpha {
        Alpha { mean, between: 0.0, within: 0.0, places: 1000 }
    }

    #[test]
    fn the_papers_example() {
        // Footnote 6: e_11 at 854 with alpha 10.9 happened at 745.
        let events: Vec<Event> =
            (0..11).map(|i| Event { time: f64::from(i) * 85.4, cost: 0 }).collect();
        let times = sequential(&events, &[constant(10.9)]);
        assert!((times[10].value - 745.0).abs() < 1e-9, "{:?}", times[10]);
        assert_eq!(times[0].value, 0.0, "the first event is not delayed by itself");
    }

    #[test]
    fn kinds_of_events_cost_what_they_cost_and_order_is_kept() {
        let at = |time, cost| Event { time, cost };
        let events = [at(100.0, 0), at(130.0, 1), at(150.0, 0), at(160.0, 7)];
        let times = sequential(&events, &[constant(20.0), constant(10.0)]);
        let values: Vec<f64> = times.iter().map(|time| time.value).collect();
        // The third event's cost, 20, is more than the 10 to the fourth: one moment.
        assert_eq!(values, [100.0, 110.0, 120.0, 120.0]);
        assert!(sequential(&[], &[]).is_empty());
    }

    #[test]
    fn totals_stay_between_nothing_and_what_was_measured() {
        let wide = Alpha { mean: 10.0, between: 50.0, within: 0.0, places: 10 };
        let of = total(100.0, &wide.times(5));
        assert_eq!((of.low, of.value, of.high), (0.0, 50.0, 100.0));
    }

    #[test]
    fn the_critical_thread_is_the_longest_without_its_events() {
        let ten = constant(10.0);
        // The second thread took longest as measured, the first one without events.
        let threads = [(100.0, ten.times(1)), (150.0, ten.times(8))];
        let (time, thread) = concurrent_total((50.0, ten.times(2)), &threads);
        assert_eq!((time.value, thread), (120.0, Some(0)));
        assert_eq!(concurrent_total((50.0, ten.times(2)), &[]).1, None);
    }

    #[test]
    fn a_concurrent_phase_begins_and_ends_with_the_right_basis() {
        use Place::{Sequential, Thread};
        let at = |place, time| (place, Event { time, cost: 0 });
        // Without events of cost 10: fork at 100; threads of 30 and 40 each in two pieces; join.
        let events = [
            at(Sequential, 100.0),
            at(Thread(0), 125.0),  // 10 of the fork's event, 15
            at(Thread(1), 130.0),  // 10, 20
            at(Thread(0), 150.0),  // 10, 15
            at(Thread(1), 160.0),  // 10, 20
            at(Sequential, 175.0), // 10 of thread 1's last event, 5
            at(Sequential, 190.0), // 10, 5
        ];
        let times = concurrent(&events, &[constant(10.0)]);
        let values: Vec<f64> = times.iter().map(|time| time.value).collect();
        assert_eq!(values, [100.0, 115.0, 120.0, 130.0, 140.0, 145.0, 150.0]);
        assert!(concurrent(&[], &[]).is_empty());
    }

    /// A trace whose truth is known: work between events, and events whose cost at this place is
    /// drawn once, and varies from event to event.
    #[test]
    fn intervals_of_simulated_traces_hold_the_truth_in_95_of_100() {
        let mut random = fastrand::Rng::with_seed(11);
        let mut normal = || (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        let (cases, mut right, mut right_middle) = (1000, 0, 0);
        for _ in 0..cases {
            let known: Vec<f64> = (0..8).map(|_| 1000.0 + 60.0 * normal()).collect();
            let alpha = Alpha::of_means(&known, 80.0).unwrap();
            let here = 1000.0 + 60.0 * normal();
            let (mut raw, mut measured) = (0.0, 0.0);
            let (mut events, mut truth) = (Vec::new(), Vec::new());
            for step in 0..300 {
                events.push(Event { time: measured, cost: 0 });
                truth.push(raw);
                let work = 400.0 + f64::from(step % 7) * 100.0;
                raw += work;
                measured += work + here + 80.0 * normal();
            }
            let times = sequential(&events, &[alpha]);
            right += u32::from(times[299].holds(truth[299]));
            right_middle += u32::from(times[30].holds(truth[30]));
        }
        for right in [right, right_middle] {
            let share = f64::from(right) / f64::from(cases);
            assert!((0.93..=0.97).contains(&share), "{share}");
        }
    }
}

//! The event-based model: times without events where threads wait for each other. A time-based
//! model fails there (the paper's loops 3, 4 and 17), since a thread that waited for a traced
//! thread would have waited less for an untraced one, however few events it has itself.
//!
//! After A. D. Malony, "Event-Based Performance Perturbation: A Case Study", PPoPP 1991: the
//! measured order of acquisitions is kept, and a wait ends at the later of two times,
//! - the thread's own arrival + what the operation costs where nothing has to be waited for,
//! - the release by the other thread + what handing over costs.
//!
//! Both costs are taken from the trace itself: from the operations that met an earlier release, and
//! from those that met a later one.
//!
//! Events lie around the operations: [`Kind::Arrive`] before a wait and [`Kind::Depart`] after it,
//! [`Kind::Release`] before what lets others go on.

use super::Range;
use super::alpha::{Alpha, quantile};
use std::collections::HashMap;

/// The rule by which releases end waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// A lock: the k-th departure waits for the k-1-th release.
    Lock,
    /// A barrier of so many threads: a thread's k-th departure waits for all k-th arrivals. An
    /// arrival is a release; [`Kind::Release`] does nothing.
    Barrier(usize),
    /// Advance and await, a fork, a join: departures wait for the first release.
    Advance,
}

/// Something that threads wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// The rule of its waits.
    pub discipline: Discipline,
    /// Objects of one pool have the same costs: all values of one counter, all locks.
    pub pool: usize,
}

/// The role of an event in the model. Numbers are indices of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No part of a wait.
    Plain,
    /// Before a wait for the object.
    Arrive(usize),
    /// After a wait for the object. The thread's event before it is the arrival; a wait that is the
    /// thread's first event (a fork) has none.
    Depart(usize),
    /// Before the operation that ends others' waits.
    Release(usize),
}

/// One event of a thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    /// Measured time, ns.
    pub time: f64,
    /// Index of the event's cost; one beyond the costs costs nothing.
    pub cost: usize,
    /// The role of the event.
    pub kind: Kind,
}

/// Errors of a trace that cannot be modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stuck {
    /// An event names an object that does not exist: (thread, event).
    NoObject(usize, usize),
    /// A thread waits for something that never happens in the trace, so events are missing:
    /// (thread, event).
    Waits(usize, usize),
}

impl std::fmt::Display for Stuck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (thread, event, why) = match self {
            Self::NoObject(thread, event) => (thread, event, "names an unknown object"),
            Self::Waits(thread, event) => (thread, event, "waits for a release that is not there"),
        };
        write!(f, "event {event} of thread {thread} {why}; trace again without losing events")
    }
}

impl std::error::Error for Stuck {}

/// Costs of the operations of a pool, ns, as the trace shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WaitCosts {
    /// From arrival to departure where nothing had to be waited for.
    pub free: Range,
    /// From release to departure where the thread waited.
    pub hand_over: Range,
    /// Operations that `free` comes from.
    pub free_seen: usize,
    /// Operations that `hand_over` comes from.
    pub hand_overs_seen: usize,
}

/// A trace without its events.
#[derive(Clone, Debug, PartialEq)]
pub struct Modelled {
    /// Times of each thread's events, ns, in the order given.
    pub times: Vec<Vec<Range>>,
    /// Costs by pool.
    pub costs: Vec<WaitCosts>,
}

impl Modelled {
    /// From the first event to the last one of any thread, ns.
    #[must_use]
    pub fn total(&self) -> Range {
        let all = || self.times.iter().flatten();
        let first = all().map(|time| time.value).fold(f64::INFINITY, f64::min);
        let last = |of: fn(&Range) -> f64| all().map(of).fold(f64::NEG_INFINITY, f64::max) - first;
        if all().next().is_none() {
            return Range::default();
        }
        Range { low: last(|at| at.low), value: last(|at| at.value), high: last(|at| at.high) }
    }
}

/// The times of threads' events without the cost of events.
///
/// The interval's ends are the times with dear events and cheap waits, and with cheap events and
/// dear waits: later in one thread is never earlier in another here.
///
/// # Errors
/// [`Stuck`] where events are missing.
pub fn modelled(
    threads: &[Vec<Event>],
    objects: &[Object],
    alphas: &[Alpha],
) -> Result<Modelled, Stuck> {
    let causes = Causes::find(threads, objects)?;
    let within: Vec<f64> = alphas.iter().map(|alpha| alpha.within * alpha.within).collect();
    let with = |sign: f64, end: fn(&Range) -> f64| {
        // Spread between places moves all events of a kind together.
        let place = |alpha: &Alpha| Alpha { within: 0.0, ..*alpha }.times(1).reach();
        let cost = |alpha: &Alpha| (alpha.mean + sign * place(alpha)).max(0.0);
        let alphas: Vec<(f64, f64)> = alphas.iter().map(cost).zip(within.iter().copied()).collect();
        // Waits were measured with an event in them: dear events make cheap waits.
        let costs = causes.costs(threads, objects, &alphas);
        let waits = costs.iter().map(|of| (end(&of.free), end(&of.hand_over))).collect::<Vec<_>>();
        Ok((causes.replay(threads, objects, &alphas, &waits)?, costs))
    };
    let (low, _) = with(1.0, |cost| cost.low)?;
    let (value, costs) = with(0.0, |cost| cost.value)?;
    let (high, _) = with(-1.0, |cost| cost.high)?;
    // Spread within a place averages out on the way to an event.
    let normal = quantile(f64::INFINITY);
    let times = value.into_iter().zip(low).zip(high).map(|((value, low), high)| {
        let each = value.into_iter().zip(low).zip(high);
        let range = |(((value, variance), (low, _)), (high, _)): ((Timed, Timed), Timed)| {
            let reach = normal * variance.sqrt();
            let low = value - (value - low).max(0.0).hypot(reach);
            Range { low, value, high: value + (high - value).max(0.0).hypot(reach) }
        };
        each.map(range).collect()
    });
    Ok(Modelled { times: times.collect(), costs })
}

/// A time, ns, and its variance from spread of costs within a place, ns^2.
type Timed = (f64, f64);

/// The signals that departures wait for, and the events that give them.
#[derive(Default)]
struct Causes {
    /// Signal for which a departure waits, by (thread, event).
    waits_for: HashMap<(usize, usize), usize>,
    /// Signal given by an event, by (thread, event).
    gives: HashMap<(usize, usize), usize>,
    /// For each signal: events that give it together.
    givers: Vec<Vec<(usize, usize)>>,
}

/// Measured releases and departures of an object, to be matched.
#[derive(Default)]
struct Seen {
    releases: Vec<(f64, usize, usize)>,
    departures: Vec<(f64, usize, usize)>,
}

impl Causes {
    fn find(threads: &[Vec<Event>], objects: &[Object]) -> Result<Self, Stuck> {
        let mut causes = Self::default();
        let mut seen: Vec<Seen> = objects.iter().map(|_| Seen::default()).collect();
        for (thread, events) in threads.iter().enumerate() {
            for (at, event) in events.iter().enumerate() {
                let (object, departs) = match event.kind {
                    Kind::Plain => continue,
                    Kind::Depart(object) => (object, true),
                    Kind::Arrive(object) | Kind::Release(object) => (object, false),
                };
                let none = Stuck::NoObject(thread, at);
                let discipline = objects.get(object).ok_or(none)?.discipline;
                let seen = seen.get_mut(object).ok_or(none)?;
                let gives = match event.kind {
                    Kind::Arrive(_) => matches!(discipline, Discipline::Barrier(_)),
                    Kind::Release(_) => !matches!(discipline, Discipline::Barrier(_)),
                    _ => false,
                };
                if departs {
                    seen.departures.push((event.time, thread, at));
                } else if gives {
                    seen.releases.push((event.time, thread, at));
                }
            }
        }
        for (object, mut seen) in objects.iter().zip(seen) {
            // Stable: events of one thread and time keep their order.
            seen.releases.sort_by(|a, b| a.0.total_cmp(&b.0));
            seen.departures.sort_by(|a, b| a.0.total_cmp(&b.0));
            match object.discipline {
                Discipline::Lock => causes.lock(&seen),
                Discipline::Barrier(count) => causes.barrier(&seen, count, threads.len()),
                Discipline::Advance => causes.advance(&seen)?,
            }
        }
        Ok(causes)
    }

    fn signal(&mut self, givers: Vec<(usize, usize)>) -> usize {
        let signal = self.givers.len();
        for (thread, at) in &givers {
            self.gives.insert((*thread, *at), signal);
        }
        self.givers.push(givers);
        signal
    }

    fn lock(&mut self, seen: &Seen) {
        for (release, departure) in seen.releases.iter().zip(seen.departures.iter().skip(1)) {
            let signal = self.signal(vec![(release.1, release.2)]);
            self.waits_for.insert((departure.1, departure.2), signal);
        }
    }

    fn advance(&mut self, seen: &Seen) -> Result<(), Stuck> {
        let Some(release) = seen.releases.first() else {
            let first = seen.departures.first();
            return first.map_or(Ok(()), |(_, thread, at)| Err(Stuck::Waits(*thread, *at)));
        };
        let signal = self.signal(vec![(release.1, release.2)]);
        for (_, thread, at) in &seen.departures {
            self.waits_for.insert((*thread, *at), signal);
        }
        Ok(())
    }

    fn barrier(&mut self, seen: &Seen, count: usize, threads: usize) {
        let mut rounds: Vec<Vec<(usize, usize)>> = Vec::new();
        let mut arrived = vec![0_usize; threads];
        for (_, thread, at) in &seen.releases {
            let Some(round) = arrived.get_mut(*thread) else { continue };
            match rounds.get_mut(*round) {
                Some(givers) => givers.push((*thread, *at)),
                None => rounds.push(vec![(*thread, *at)]),
            }
            *round += 1;
        }
        // No thread leaves a round that is incomplete at the trace's end.
        let signals: Vec<Option<usize>> = rounds
            .into_iter()
            .map(|givers| (givers.len() >= count).then(|| self.signal(givers)))
            .collect();
        let mut departed = vec![0_usize; threads];
        for (_, thread, at) in &seen.departures {
            let Some(round) = departed.get_mut(*thread) else { continue };
            if let Some(signal) = signals.get(*round).copied().flatten() {
                self.waits_for.insert((*thread, *at), signal);
            }
            *round += 1;
        }
    }

    /// Costs of each pool, from the measured waits without the events in them (`alphas`).
    fn costs(
        &self,
        threads: &[Vec<Event>],
        objects: &[Object],
        alphas: &[(f64, f64)],
    ) -> Vec<WaitCosts> {
        let pools = objects.iter().map(|object| object.pool + 1).max().unwrap_or(0);
        // A pool's number is an index of ours; a caller has at most as many pools as objects.
        let pools = pools.min(objects.len());
        let (mut free, mut over) = (vec![Vec::new(); pools], vec![Vec::new(); pools]);
        let cost = |event: &Event| alphas.get(event.cost).map_or(0.0, |(mean, _)| *mean);
        for (thread, events) in threads.iter().enumerate() {
            for (at, event) in events.iter().enumerate() {
                let Kind::Depart(object) = event.kind else { continue };
                let Some(pool) = objects.get(object).map(|object| object.pool) else { continue };
                let arrival = at.checked_sub(1).and_then(|before| events.get(before));
                // The wait ends with the last event that gives the signal.
                let signal = self.waits_for.get(&(thread, at));
                let givers = signal.and_then(|signal| self.givers.get(*signal));
                let givers = givers.into_iter().flatten();
                let release = givers.filter_map(|(thread, at)| threads.get(*thread)?.get(*at));
                let release = release.max_by(|a, b| a.time.total_cmp(&b.time));
                let since = |from: &Event| (event.time - from.time - cost(from)).max(0.0);
                let waited = match (arrival, release) {
                    (Some(arrival), Some(release)) => release.time > arrival.time,
                    (None, Some(_)) => true,
                    (_, None) => false,
                };
                let (of, from) = if waited { (&mut over, release) } else { (&mut free, arrival) };
                if let (Some(values), Some(from)) = (of.get_mut(pool), from) {
                    values.push(since(from));
                }
            }
        }
        free.iter_mut()
            .zip(&mut over)
            .map(|(free, over)| WaitCosts {
                free: typical(free),
                hand_over: typical(over),
                free_seen: free.len(),
                hand_overs_seen: over.len(),
            })
            .collect()
    }

    /// Times with events of these costs, ns (and ns^2), taken off, and with these costs of each
    /// pool's waits.
    fn replay(
        &self,
        threads: &[Vec<Event>],
        objects: &[Object],
        alphas: &[(f64, f64)],
        waits: &[(f64, f64)],
    ) -> Result<Vec<Vec<Timed>>, Stuck> {
        let mut times: Vec<Vec<Timed>> =
            threads.iter().map(|events| Vec::with_capacity(events.len())).collect();
        let mut signals: Vec<Signal> = self
            .givers
            .iter()
            .map(|givers| Signal {
                missing: givers.len(),
                given: (f64::NEG_INFINITY, 0.0),
                waiting: Vec::new(),
            })
            .collect();
        let mut ready: Vec<usize> = (0..threads.len()).rev().collect();
        while let Some(thread) = ready.pop() {
            let (Some(events), Some(done)) = (threads.get(thread), times.get_mut(thread)) else {
                continue;
            };
            while let Some(event) = events.get(done.len()) {
                let at = done.len();
                let before = at.checked_sub(1).and_then(|before| {
                    let (event, time) = (events.get(before)?, done.get(before)?);
                    Some((event, *time, alphas.get(event.cost).copied().unwrap_or_default()))
                });
                let signal = self.waits_for.get(&(thread, at));
                let time = match (event.kind, signal.and_then(|of| signals.get_mut(*of))) {
                    (Kind::Depart(object), Some(signal)) => {
                        if signal.missing > 0 {
                            signal.waiting.push(thread);
                            break;
                        }
                        let pool = objects.get(object).map(|object| object.pool);
                        let costs = pool.and_then(|pool| waits.get(pool)).copied();
                        let (free, over) = costs.unwrap_or_default();
                        let own = before.map(|(_, time, _)| (time.0 + free, time.1));
                        let handed = (signal.given.0 + over, signal.given.1);
                        own.filter(|own| own.0 > handed.0).unwrap_or(handed)
                    }
                    _ => match before {
                        Some((of, time, cost)) => {
                            let passed = (event.time - of.time - cost.0).max(0.0);
                            (time.0 + passed, time.1 + cost.1)
                        }
                        None => (event.time, 0.0),
                    },
                };
                done.push(time);
                let given = self.gives.get(&(thread, at));
                let given = given.and_then(|of| signals.get_mut(*of));
                if let Some(signal) = given {
                    signal.missing = signal.missing.saturating_sub(1);
                    if time.0 > signal.given.0 {
                        signal.given = time;
                    }
                    if signal.missing == 0 {
                        ready.append(&mut signal.waiting);
                    }
                }
            }
        }
        let stuck = threads.iter().zip(&times).position(|(events, of)| of.len() < events.len());
        match stuck.and_then(|thread| Some((thread, times.get(thread)?.len()))) {
            Some((thread, at)) => Err(Stuck::Waits(thread, at)),
            None => Ok(times),
        }
    }
}

/// The state of a signal during a replay.
struct Signal {
    /// Events that are still to give it.
    missing: usize,
    /// The latest time of those that gave it.
    given: Timed,
    /// Threads that wait for it.
    waiting: Vec<usize>,
}

/// A cost this many times the median is a preemption, which has nothing to do with the wait.
const PREEMPTED: f64 = 10.0;

/// The mean with its standard error twice to each side: sums of waits are wanted, so means are,
/// without what is no wait at all.
fn typical(values: &mut Vec<f64>) -> Range {
    if values.is_empty() {
        return Range::default();
    }
    values.sort_by(f64::total_cmp);
    let median = values.get(values.len() / 2).copied().unwrap_or_default();
    if median > 0.0 {
        values.retain(|value| *value <= PREEMPTED * median);
    }
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let error = (squares / (n - 1.0).max(1.0) / n).sqrt();
    Range { low: (mean - 2.0 * error).max(0.0), value: mean, high: mean + 2.0 * error }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn constant(mean: f64) -> Alpha {
        Alpha { mean, between: 0.0, within: 0.0, places: 1000 }
    }

    fn at(time: f64, kind: Kind) -> Event {
        Event { time, cost: 0, kind }
    }

    const LOCK: Object = Object { discipline: Discipline::Lock, pool: 0 };

    /// Two threads that each do `work` without the lock and `inside` with it, `turns` times; the
    /// lock is handed over in `over`, taken in `free`. Returns what is seen with events of `alpha`,
    /// and the time at the end.
    fn locked(
        turns: usize,
        work: [f64; 2],
        inside: f64,
        (free, over): (f64, f64),
        alpha: f64,
    ) -> (Vec<Vec<Event>>, f64) {
        let mut threads = vec![vec![at(0.0, Kind::Plain)], vec![at(0.0, Kind::Plain)]];
        let mut clock = [alpha, alpha];
        let mut released = f64::NEG_INFINITY;
        for _ in 0..turns {
            // In turns, as the order is kept whatever events cost.
            for thread in 0..2 {
                let arrive = clock[thread] + work[thread];
                let depart = (arrive + alpha + free).max(released + alpha + over);
                let release = depart + alpha + inside;
                threads[thread].push(at(arrive, Kind::Arrive(0)));
                threads[thread].push(at(depart, Kind::Depart(0)));
                threads[thread].push(at(release, Kind::Release(0)));
                released = release;
                clock[thread] = release + alpha;
            }
        }
        for (thread, clock) in threads.iter_mut().zip(clock) {
            thread.push(at(clock, Kind::Plain));
        }
        let end = clock[0].max(clock[1]);
        (threads, end)
    }

    #[test]
    fn a_lock_is_told_right_where_the_time_based_model_fails() {
        // 60 % of the time of two threads needs the lock: they wait for each other.
        let (_, raw) = locked(50, [400.0, 300.0], 600.0, (20.0, 100.0), 0.0);
        let (traced, measured) = locked(50, [400.0, 300.0], 600.0, (20.0, 100.0), 500.0);
        assert!(measured > 1.6 * raw);
        let of = modelled(&traced, &[LOCK], &[constant(500.0)]).unwrap();
        let total = of.total().value;
        assert!((total / raw - 1.0).abs() < 0.01, "{total} {raw}");
        // Time-based: each thread without its own events, 152 of them.
        let time_based = measured - 152.0 * 500.0;
        assert!((time_based / raw - 1.0).abs() > 0.05, "{time_based} {raw}");
    }

    #[test]
    fn waits_that_tracing_made_go_away() {
        // Raw, thread 1 never waits: it arrives long after thread 0's release. Traced, thread 0's
        // statement events inside the lock make it wait.
        let alpha = 1000.0;
        let threads = vec![
            vec![
                at(0.0, Kind::Arrive(0)),
                at(1010.0, Kind::Depart(0)),
                at(2020.0, Kind::Plain),
                at(3030.0, Kind::Plain),
                at(4040.0, Kind::Release(0)),
                at(5050.0, Kind::Plain),
            ],
            vec![at(0.0, Kind::Plain), at(1200.0, Kind::Arrive(0)), at(5140.0, Kind::Depart(0))],
        ];
        let of = modelled(&threads, &[LOCK], &[constant(alpha)]).unwrap();
        // Raw: the lock is free at 40; the thread arrives at 200. What it costs then is known from
        // thread 0's wait for nothing: 10.
        assert!((of.times[1][2].value - 210.0).abs() < 1e-9, "{:?}", of.times);
        assert_eq!((of.costs[0].free_seen, of.costs[0].hand_overs_seen), (1, 1));
    }

    #[test]
    fn a_barrier_ends_with_its_last_arrival() {
        let barrier = Object { discipline: Discipline::Barrier(2), pool: 0 };
        // Thread 0 has work of 90 and 3 events of 50 in it, thread 1 has work of 200 and none.
        let threads = vec![
            vec![
                at(0.0, Kind::Plain),
                at(75.0, Kind::Plain),
                at(150.0, Kind::Plain),
                at(240.0, Kind::Arrive(0)),
                at(310.0, Kind::Depart(0)),
            ],
            vec![at(0.0, Kind::Plain), at(250.0, Kind::Arrive(0)), at(310.0, Kind::Depart(0))],
        ];
        let of = modelled(&threads, &[barrier], &[constant(50.0)]).unwrap();
        // The arrivals without events: 90 and 200; handing over takes 10.
        let departures = [of.times[0][4].value, of.times[1][2].value];
        assert_eq!(departures, [210.0, 210.0]);
    }

    #[test]
    fn a_pipeline_advances_when_the_other_thread_has_advanced() {
        // Thread 1 awaits what thread 0 advances to, ten times; events of 200 beside work of 100.
        let alpha = 200.0;
        let objects: Vec<Object> =
            (0..10).map(|_| Object { discipline: Discipline::Advance, pool: 0 }).collect();
        let mut threads = vec![vec![at(0.0, Kind::Plain)], vec![at(0.0, Kind::Plain)]];
        let (mut a, mut b, mut raw) = (alpha, alpha, 0.0_f64);
        for turn in 0..10 {
            a += 100.0;
            threads[0].push(at(a, Kind::Release(turn)));
            let released = a + alpha;
            a = released;
            threads[1].push(at(b, Kind::Arrive(turn)));
            b = (b + alpha + 5.0).max(released + 30.0);
            threads[1].push(at(b, Kind::Depart(turn)));
            b += alpha + 20.0;
            raw = (raw + 5.0).max(100.0 * (turn as f64 + 1.0) + 30.0) + 20.0;
        }
        threads[1].push(at(b, Kind::Plain));
        let of = modelled(&threads, &objects, &[constant(alpha)]).unwrap();
        assert!((of.total().value / raw - 1.0).abs() < 0.02, "{:?} {raw}", of.total());
    }

    #[test]
    fn forks_and_joins_are_advances() {
        let objects = [
            Object { discipline: Discipline::Advance, pool: 0 },
            Object { discipline: Discipline::Advance, pool: 1 },
        ];
        let threads = vec![
            vec![
                at(0.0, Kind::Plain),
                at(110.0, Kind::Release(0)),
                at(220.0, Kind::Arrive(1)),
                at(760.0, Kind::Depart(1)),
            ],
            // Begins 30 after the fork; has work of 50 and four events of 100.
            vec![
                at(240.0, Kind::Depart(0)),
                at(350.0, Kind::Plain),
                at(460.0, Kind::Plain),
                at(600.0, Kind::Release(1)),
            ],
        ];
        let of = modelled(&threads, &objects, &[constant(100.0)]).unwrap();
        let begin: Vec<f64> = of.times[1].iter().map(|time| time.value).collect();
        assert_eq!(begin, [40.0, 50.0, 60.0, 100.0]);
        assert_eq!(of.times[0][3].value, 160.0);
    }

    #[test]
    fn missing_events_are_said() {
        let advance = Object { discipline: Discipline::Advance, pool: 0 };
        let threads = vec![vec![at(0.0, Kind::Arrive(0)), at(5.0, Kind::Depart(0))]];
        assert_eq!(modelled(&threads, &[advance], &[]), Err(Stuck::Waits(0, 1)));
        assert_eq!(modelled(&threads, &[], &[]), Err(Stuck::NoObject(0, 0)));
        // Two threads that wait for each other's later release, as no run can have done.
        let circle = vec![
            vec![at(9.0, Kind::Depart(0)), at(10.0, Kind::Release(1))],
            vec![at(9.0, Kind::Depart(1)), at(10.0, Kind::Release(0))],
        ];
        let stuck = modelled(&circle, &[advance, advance], &[]).unwrap_err();
        assert!(stuck.to_string().starts_with("event 0 of thread 0 waits"), "{stuck}");
        let huge = Object { discipline: Discipline::Lock, pool: usize::MAX - 1 };
        assert!(modelled(&[vec![at(0.0, Kind::Depart(0))]], &[huge], &[]).is_ok());
    }

    #[test]
    fn intervals_of_simulated_locks_hold_the_truth_in_95_of_100() {
        let mut random = fastrand::Rng::with_seed(5);
        let mut normal = || (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        let (cases, mut right) = (400, 0);
        for _ in 0..cases {
            let work = [400.0 + 50.0 * normal(), 300.0 + 50.0 * normal()];
            let known: Vec<f64> = (0..8).map(|_| 500.0 + 25.0 * normal()).collect();
            let alpha = Alpha::of_means(&known, 0.0).unwrap();
            let here = 500.0 + 25.0 * normal();
            let (_, raw) = locked(30, work, 600.0, (20.0, 100.0), 0.0);
            let (traced, _) = locked(30, work, 600.0, (20.0, 100.0), here);
            let total = modelled(&traced, &[LOCK], &[alpha]).unwrap().total();
            right += u32::from(total.holds(raw));
        }
        assert!(right * 100 >= cases * 93, "{right} of {cases}");
    }
}

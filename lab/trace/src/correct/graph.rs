//! Converts the events of a trace to the input of the event-based model: events by thread, and the
//! event that each waits for.

use std::collections::HashMap;

use measure::models::waits::{self, Discipline, Kind, Object};

use super::costs::Costs;
use crate::event::{Event, EventKind, ThreadId, Trace};

/// Most events before a thread's start among which its creator's event is looked for.
const FORK_EVENTS: usize = 64;

/// Events by thread, and the events that they wait for.
pub(super) struct Graph {
    pub(super) threads: Vec<Vec<waits::Event>>,
    pub(super) objects: Vec<Object>,
    /// For each event of the trace: its thread, and its number within the thread.
    pub(super) places: Vec<(usize, usize)>,
    rows: HashMap<ThreadId, usize>,
    /// Pools of locks, barriers and advances, by discipline; each other wait has its own.
    pools: [Option<usize>; 3],
}

impl Graph {
    pub(super) fn of(trace: &Trace, costs: &Costs) -> Self {
        let begin = trace.events.first().map_or(0, |event| event.time_ns);
        let mut graph = Self {
            threads: Vec::new(),
            objects: Vec::new(),
            places: Vec::with_capacity(trace.events.len()),
            rows: HashMap::new(),
            pools: [None; 3],
        };
        let mut at_barrier: HashMap<u64, std::collections::HashSet<ThreadId>> = HashMap::new();
        for event in trace.events.iter().filter(|event| event.kind == EventKind::BarrierArrive) {
            at_barrier.entry(event.argument).or_default().insert(event.thread);
        }
        let mut locks: HashMap<u64, usize> = HashMap::new();
        let mut barriers: HashMap<u64, usize> = HashMap::new();
        let mut steps: HashMap<(u64, u64), usize> = HashMap::new();
        let mut counted: HashMap<(u64, bool, ThreadId), u64> = HashMap::new();
        for event in &trace.events {
            let key = event.argument;
            let kind = match event.kind {
                EventKind::LockRequest | EventKind::LockAcquire | EventKind::LockRelease => {
                    let object = *locks
                        .entry(key)
                        .or_insert_with(|| graph.object(Discipline::Lock, Some(0)));
                    match event.kind {
                        EventKind::LockRequest => Kind::Arrive(object),
                        EventKind::LockAcquire => Kind::Depart(object),
                        _ => Kind::Release(object),
                    }
                }
                EventKind::BarrierArrive | EventKind::BarrierLeave => {
                    let count = at_barrier.get(&key).map_or(1, |threads| threads.len());
                    let object = *barriers
                        .entry(key)
                        .or_insert_with(|| graph.object(Discipline::Barrier(count), Some(1)));
                    match event.kind {
                        EventKind::BarrierArrive => Kind::Arrive(object),
                        _ => Kind::Depart(object),
                    }
                }
                EventKind::Advance | EventKind::AwaitBegin | EventKind::AwaitEnd => {
                    let step = step(trace, event, &mut counted);
                    let object = *steps
                        .entry((key, step))
                        .or_insert_with(|| graph.object(Discipline::Advance, Some(2)));
                    match event.kind {
                        EventKind::Advance => Kind::Release(object),
                        EventKind::AwaitBegin => Kind::Arrive(object),
                        _ => Kind::Depart(object),
                    }
                }
                _ => Kind::Plain,
            };
            let time = event.time_ns.saturating_sub(begin) as f64;
            graph.add(event.thread, waits::Event { time, cost: costs.number(event), kind });
        }
        graph
    }

    fn add(&mut self, thread: ThreadId, event: waits::Event) {
        let row = *self.rows.entry(thread).or_insert_with(|| {
            self.threads.push(Vec::new());
            self.threads.len() - 1
        });
        if let Some(events) = self.threads.get_mut(row) {
            self.places.push((row, events.len()));
            events.push(event);
        }
    }

    /// A new object, in a pool of its discipline or of its own.
    fn object(&mut self, discipline: Discipline, shared: Option<usize>) -> usize {
        let number = self.objects.len();
        let pool = match shared.and_then(|at| self.pools.get_mut(at)) {
            Some(pool) => *pool.get_or_insert(number),
            None => number,
        };
        self.objects.push(Object { discipline, pool });
        number
    }

    fn event(&mut self, (thread, at): (usize, usize)) -> Option<&mut waits::Event> {
        self.threads.get_mut(thread)?.get_mut(at)
    }

    /// Connects two plain events, the second of which waited for the first.
    fn link(&mut self, release: (usize, usize), depart: (usize, usize)) -> bool {
        let is_plain =
            |event: Option<&mut waits::Event>| event.is_some_and(|event| event.kind == Kind::Plain);
        if release == depart || !is_plain(self.event(release)) || !is_plain(self.event(depart)) {
            return false;
        }
        let object = self.object(Discipline::Advance, None);
        for (place, kind) in [(release, Kind::Release(object)), (depart, Kind::Depart(object))] {
            if let Some(event) = self.event(place) {
                event.kind = kind;
            }
        }
        true
    }

    /// The start of a thread follows its creator's last event.
    pub(super) fn find_forks(&mut self, trace: &Trace) {
        for (number, event) in trace.events.iter().enumerate() {
            let Some(&depart) = self.places.get(number) else { continue };
            if depart.1 != 0 || event.kind != EventKind::ThreadStart {
                continue;
            }
            let before = trace.events.iter().enumerate().take(number).rev().take(FORK_EVENTS);
            let mut of_creator = before.filter(|(_, other)| {
                let thread = trace.thread(other);
                thread.is_some_and(|thread| u64::from(thread.tid) == event.argument)
            });
            let linked = of_creator.find_map(|(at, _)| {
                let release = *self.places.get(at)?;
                self.link(release, depart).then_some(())
            });
            if linked.is_none()
                && let Some(event) = self.event(depart)
            {
                event.kind = Kind::Plain;
            }
        }
    }

    /// A blocked thread goes on after the last wake by another thread of its process: an interrupt
    /// wakes in the name of whatever thread it interrupted.
    pub(super) fn find_wakes(&mut self, trace: &Trace) {
        let mut blocked: HashMap<u32, Option<usize>> = HashMap::new();
        for (number, event) in trace.events.iter().enumerate() {
            let Some(thread) = trace.thread(event) else { continue };
            match event.kind {
                EventKind::SwitchOut if event.argument == 0 => {
                    blocked.insert(thread.tid, None);
                }
                EventKind::Wake => {
                    let woken = u32::try_from(event.argument).unwrap_or_default();
                    if woken != thread.tid
                        && let Some(wake) = blocked.get_mut(&woken)
                    {
                        *wake = Some(number);
                    }
                }
                EventKind::SwitchIn => {
                    let wake = blocked.remove(&thread.tid).flatten();
                    let waker = wake.and_then(|at| trace.thread(trace.events.get(at)?));
                    let is_own = waker.is_some_and(|waker| waker.pid == thread.pid);
                    let places = wake.and_then(|at| self.places.get(at)).copied();
                    let here = self.places.get(number).copied();
                    if let (true, Some(release), Some(depart)) = (is_own, places, here) {
                        self.link(release, depart);
                    }
                }
                _ => {}
            }
        }
    }
}

/// The step of an advance or await: the name's number, or how many there were before.
fn step(trace: &Trace, event: &Event, counted: &mut HashMap<(u64, bool, ThreadId), u64>) -> u64 {
    if let Some(step) = trace.name(event).and_then(|name| name.number) {
        return step;
    }
    let is_advance = event.kind == EventKind::Advance;
    // Advances of a counter are counted over all threads, awaits within each.
    let thread = if is_advance { ThreadId(0) } else { event.thread };
    let count = counted.entry((event.argument, is_advance, thread)).or_default();
    let step = *count;
    // An await has two events, which are of the same step.
    *count += u64::from(event.kind != EventKind::AwaitBegin);
    step
}

//! The cost of a tool's event, from its trace of a program whose work is known: `CALIBRATION` in C,
//! to be built and traced like the program of interest.
//!
//! The program does the same work in two procedures, `dcpi_bare_N` and `dcpi_with_N`; the second
//! one calls the empty `dcpi_leaf` at each step. Their difference is the cost of the leaf's events
//! at that place, whatever the work itself takes.

use std::collections::HashMap;

use measure::models::alpha::Alpha;

use crate::correct::cost;
use crate::event::{Cost, EventKind, ThreadId, Trace};

/// The program's source.
pub const PROGRAM: &str = include_str!("calibration.c");
/// Fewest calls of the leaf at a place whose time counts; below, the time is noise.
const CALLS_MIN: u64 = 20;
/// Standard deviation of a normal distribution over its median absolute deviation.
const OF_MAD: f64 = 1.4826;

/// The reason why a trace gives no costs.
#[derive(Debug, thiserror::Error)]
#[error(
    "the trace is not one of the calibration program with entries and returns; build and trace what \
     dcpi trace --calibration-program writes"
)]
pub struct NotACalibration;

/// A place of the program: runs of work without or with calls.
#[derive(Clone, Debug, Default)]
struct Stretch {
    begun: Option<u64>,
    /// ns of each run.
    rounds: Vec<f64>,
    calls: u64,
}

/// Costs of entries and returns.
///
/// # Errors
/// [`NotACalibration`].
pub fn costs(trace: &Trace) -> Result<Vec<Cost>, NotACalibration> {
    let mut stretches: HashMap<(bool, String), Stretch> = HashMap::new();
    let (mut inside, mut entered): (Vec<f64>, HashMap<ThreadId, u64>) =
        (Vec::new(), HashMap::new());
    let mut current: Option<(bool, String)> = None;
    for event in &trace.events {
        let Some(name) = trace.name(event).map(|name| name.text.as_str()) else { continue };
        let is_entry = event.kind == EventKind::Enter;
        if !is_entry && event.kind != EventKind::Exit {
            continue;
        }
        if name == "dcpi_leaf" {
            if is_entry {
                entered.insert(event.thread, event.time_ns);
                let open = current.as_ref().and_then(|key| stretches.get_mut(key));
                if let Some(stretch) = open {
                    stretch.calls += 1;
                }
            } else if let Some(since) = entered.remove(&event.thread) {
                inside.push(event.time_ns.saturating_sub(since) as f64);
            }
            continue;
        }
        let place = |prefix: &str| name.strip_prefix(prefix).map(str::to_owned);
        let key = match (place("dcpi_bare_"), place("dcpi_with_")) {
            (Some(place), _) => (false, place),
            (_, Some(place)) => (true, place),
            _ => continue,
        };
        let stretch = stretches.entry(key.clone()).or_default();
        if is_entry {
            stretch.begun = Some(event.time_ns);
            current = Some(key);
        } else if let Some(begun) = stretch.begun.take() {
            stretch.rounds.push(event.time_ns.saturating_sub(begun) as f64);
            current = None;
        }
    }
    let mut places = Vec::new();
    for ((has_calls, place), with) in &stretches {
        let bare = stretches.get(&(false, place.clone()));
        let (true, Some(bare)) = (*has_calls && with.calls >= CALLS_MIN, bare) else { continue };
        // Runs without and with calls follow each other: what slows the machine slows both.
        let calls = with.calls as f64 / with.rounds.len().max(1) as f64;
        let each = with.rounds.iter().zip(&bare.rounds).map(|(with, bare)| (with - bare) / calls);
        places.extend(of_rounds(&mut each.collect::<Vec<f64>>()));
    }
    // In an order that does not depend on the map's, because sums of floats depend on the order.
    places.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (leaf, within) = median_and_spread(&mut inside).ok_or(NotACalibration)?;
    paired(&places, leaf, within, "in vitro, by the calibration program").ok_or(NotACalibration)
}

/// Costs of an entry and a return, from the costs of both together at several places, each a
/// median and its standard error, the median of the part between entry and return, and the standard
/// deviation of that, all in ns.
#[must_use]
pub fn paired(places: &[(f64, f64)], inside: f64, within: f64, how: &str) -> Option<Vec<Cost>> {
    let pair = Alpha::of_measured(places, 0.0)?;
    // The kernel takes an event's time stamp first. So the time from the stamp of an entry to that
    // of its return, in an empty procedure, is the entry's cost; what is left is the return's.
    let part = (inside / pair.mean).clamp(0.0, 1.0);
    let of = |part: f64| Alpha {
        mean: pair.mean * part,
        between: pair.between * part,
        within,
        places: pair.places,
    };
    let (enter, exit) = (of(part), of(1.0 - part));
    Some(vec![cost(EventKind::Enter, &enter, how), cost(EventKind::Exit, &exit, how)])
}

/// A cost at a place from that of several rounds: the median and its standard error, which is never
/// below the clock's nanosecond.
#[must_use]
pub fn of_rounds(rounds: &mut [f64]) -> Option<(f64, f64)> {
    let (median, spread) = median_and_spread(rounds)?;
    // The median of a normal distribution errs 1.25 times as much as the mean.
    Some((median, (1.25 * spread / (rounds.len() as f64).sqrt()).max(1.0)))
}

/// The median, and a standard deviation that outliers (preemptions) do not touch.
#[must_use]
pub fn median_and_spread(values: &mut [f64]) -> Option<(f64, f64)> {
    let median = |values: &mut [f64]| {
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    let middle = median(values)?;
    let mut distances: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    Some((middle, OF_MAD * median(&mut distances)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, Name, NameId, NameKind};

    /// Work of 40 and 90 a step, 30 steps; an entry costs 20 and a return 30 at the first place, 10
    /// more together at the second.
    fn traced() -> Trace {
        let mut trace = Trace::default();
        let names = ["dcpi_leaf", "dcpi_bare_0", "dcpi_with_0", "dcpi_bare_1", "dcpi_with_1"];
        trace.names = names.map(|name| Name::new(NameKind::Procedure, name)).to_vec();
        let mut time_ns = 1000;
        let mut add = |name: u32, kind, then: u64| {
            let event = Event { time_ns, name: NameId(name), kind, ..Event::default() };
            trace.events.push(event);
            time_ns += then;
        };
        use EventKind::{Enter, Exit};
        for (place, work, more) in [(0, 40, 0), (1, 90, 10)].repeat(3) {
            add(1 + 2 * place, Enter, 20 + 30 * work);
            add(1 + 2 * place, Exit, 500);
            add(2 + 2 * place, Enter, 20);
            for _ in 0..30 {
                add(0, Enter, 20);
                add(0, Exit, 30 + more + work);
            }
            add(2 + 2 * place, Exit, 500);
        }
        trace
    }

    #[test]
    fn the_work_is_taken_off() {
        let costs = costs(&traced()).unwrap();
        assert_eq!(costs[0].kind, EventKind::Enter);
        let [enter, exit] = [0, 1].map(|at: usize| costs[at].alpha_ns);
        // 50 and 60 a pair; 20 of it inside.
        assert!((enter.value + exit.value - 55.0).abs() < 1e-9, "{costs:?}");
        assert!((enter.value - 20.0).abs() < 1e-9, "{costs:?}");
        assert!(enter.low < 20.0 && exit.high > 35.0, "places differ: {costs:?}");
    }

    #[test]
    fn other_traces_are_refused() {
        assert!(costs(&Trace::default()).is_err());
        let mut trace = traced();
        trace.events.retain(|event| event.kind == EventKind::Enter);
        assert!(costs(&trace).is_err());
        let mut trace = traced();
        trace.events.retain(|event| event.name != NameId(1) && event.name != NameId(3));
        assert!(costs(&trace).is_err(), "nothing without calls");
    }
}

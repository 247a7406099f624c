//! Assigns to each event of a trace one of the trace's costs, in vitro or in situ.

use std::collections::HashMap;

use measure::models::Range;
use measure::models::alpha::{Alpha, Sum, in_situ};

use super::{InSitu, Says};
use crate::event::{Cost, Event, EventKind, Name, NameId, Trace};

/// Upper bound of the CPU time, ns, that the kernel needs to set up tracing of one thread: it
/// writes breakpoints into the program's pages and copies perf events to the thread. A program with
/// one probe that is never reached took 0 to 0.6 ms more than without (virtual machine, AMD EPYC,
/// Linux 6.18). A larger bound makes factors of short programs too wide to be of use; a smaller one
/// counts set-up as cost of events.
const BEGIN_MOST_NS: f64 = 1e6;
/// Plausible factors between the cost of an event in a program and in vitro: eight programs had
/// 0.95 to 1.2. A factor outside means that the runs without events did other work than the traced
/// run.
const POSSIBLE: std::ops::RangeInclusive<f64> = 0.5..=2.0;
/// Standard deviations to each side in a cost's interval.
const DEVIATIONS: f64 = 1.96;

/// The cost of events.
pub(super) struct Costs {
    pub(super) alphas: Vec<Alpha>,
    /// For each event kind and name the number of its alpha.
    numbers: HashMap<(EventKind, NameId), usize>,
    pub(super) unknown: Vec<EventKind>,
    pub(super) in_situ: Option<InSitu>,
}

/// Whether events of a kind cost the program nothing of their own: they are recorded while it does
/// not run, or as part of another event.
fn is_free(kind: EventKind) -> bool {
    matches!(kind, EventKind::ThreadStart | EventKind::ThreadEnd | EventKind::Wake)
}

impl Costs {
    pub(super) fn of(trace: &Trace) -> Self {
        let costs = &trace.facts.costs;
        let alphas = costs.iter().map(alpha).collect();
        let mut with_return: HashMap<NameId, bool> = HashMap::new();
        for event in &trace.events {
            *with_return.entry(event.name).or_default() |= event.kind == EventKind::Exit;
        }
        let mut numbers = HashMap::new();
        let mut unknown = Vec::new();
        for event in &trace.events {
            let key = (event.kind, event.name);
            if numbers.contains_key(&key) || is_free(event.kind) {
                continue;
            }
            let has_return = with_return.get(&event.name).copied().unwrap_or_default();
            let found =
                costs.iter().position(|cost| fits(cost, event, trace.name(event), has_return));
            match found {
                Some(number) => {
                    numbers.insert(key, number);
                }
                None if !unknown.contains(&event.kind) => unknown.push(event.kind),
                None => {}
            }
        }
        let mut costs = Self { alphas, numbers, unknown, in_situ: None };
        costs.in_situ = costs.look_in_situ(trace);
        for (alpha, cost) in costs.alphas.iter_mut().zip(&trace.facts.costs) {
            *alpha = match costs.in_situ.filter(|of| of.says == Says::Taken) {
                Some(InSitu { factor, .. }) => alpha.in_program(factor),
                None if cost.in_vitro => alpha.in_unknown_program(),
                None => *alpha,
            };
        }
        costs
    }

    /// The program's factor from its runs without events, while `alphas` are still in vitro. None
    /// without such runs, and where the traced run has lost events or events of unknown cost.
    fn look_in_situ(&self, trace: &Trace) -> Option<InSitu> {
        // The cost of lost and unknown events would be counted as cost of the known ones.
        let untraced = trace.facts.untraced.as_ref().filter(|_| trace.facts.lost.is_empty())?;
        if !self.unknown.is_empty() {
            return None;
        }
        let (mut known, mut expected) = (Sum::default(), Sum::default());
        for alpha in trace.events.iter().filter_map(|event| self.alpha(event)) {
            known.add(alpha, 1.0);
            expected.add(&alpha.in_unknown_program(), 1.0);
        }
        let begin_most = BEGIN_MOST_NS * trace.threads.len() as f64;
        let factor = in_situ(&untraced.cpu_ns, untraced.traced_cpu_ns, known.mean, begin_most)?;
        // An interval that contains the expected one adds no information.
        let (low, high) = (expected.mean - expected.reach(), expected.mean + expected.reach());
        let is_wide = factor.low * known.mean <= low && factor.high * known.mean >= high;
        let says = match (is_wide, POSSIBLE.contains(&factor.value)) {
            (true, _) => Says::LessExact,
            (false, true) => Says::Taken,
            (false, false) => Says::Contradict,
        };
        Some(InSitu { factor, runs: untraced.cpu_ns.len(), says })
    }

    /// The subtracted cost of an event with its 95 % interval, ns, for each cost of the trace's
    /// facts; None where no event has it.
    pub(super) fn taken(&self) -> Vec<Option<Range>> {
        let is_used = |number: usize| self.numbers.values().any(|used| *used == number);
        let alphas = self.alphas.iter().enumerate();
        alphas.map(|(number, alpha)| is_used(number).then(|| range(alpha))).collect()
    }

    pub(super) fn number(&self, event: &Event) -> usize {
        // An index beyond the costs stands for no cost.
        self.numbers.get(&(event.kind, event.name)).copied().unwrap_or(self.alphas.len())
    }

    pub(super) fn alpha(&self, event: &Event) -> Option<&Alpha> {
        self.alphas.get(self.number(event))
    }

    /// Whether the event has a cost, and the trace does not say which.
    pub(super) fn is_unknown(&self, event: &Event) -> bool {
        !is_free(event.kind) && self.alpha(event).is_none()
    }

    /// Spread over mean, each kind with its part of the whole cost.
    pub(super) fn relative_spread(&self, trace: &Trace) -> f64 {
        let (mut spread, mut mean) = (0.0, 0.0);
        for alpha in trace.events.iter().filter_map(|event| self.alpha(event)) {
            spread += alpha.between;
            mean += alpha.mean;
        }
        if mean > 0.0 { spread / mean } else { 0.0 }
    }
}

/// Whether a cost applies to an event.
fn fits(cost: &Cost, event: &Event, name: Option<&Name>, has_return: bool) -> bool {
    let agrees = |asked: Option<bool>, is: Option<bool>| asked.is_none() || asked == is;
    cost.kind == event.kind
        && agrees(cost.with_return, Some(has_return))
        && agrees(cost.stepped, name.and_then(|name| name.stepped))
}

/// The cost as the models take it. Its interval is for a place that was not measured.
pub(super) fn alpha(cost: &Cost) -> Alpha {
    let between = (cost.alpha_ns.high - cost.alpha_ns.low).max(0.0) / (2.0 * DEVIATIONS);
    Alpha {
        mean: cost.alpha_ns.value.max(0.0),
        between,
        within: cost.spread_ns.unwrap_or_default().max(0.0),
        places: u32::MAX,
    }
}

/// The mean cost of an event at a place that was not measured, ns, with its interval (95 %).
fn range(alpha: &Alpha) -> Range {
    let reach = Alpha { within: 0.0, ..*alpha }.times(1).reach();
    let low = (alpha.mean - reach).max(0.0);
    Range { low, value: alpha.mean, high: alpha.mean + reach }
}

/// An alpha in vitro as a fact of a trace.
#[must_use]
pub fn cost(kind: EventKind, alpha: &Alpha, how: &str) -> Cost {
    let Range { low, value, high } = range(alpha);
    let alpha_ns = crate::Interval { low, value, high };
    let spread_ns = (alpha.within > 0.0).then_some(alpha.within);
    let how = how.to_owned();
    Cost { kind, alpha_ns, spread_ns, how, in_vitro: true, stepped: None, with_return: None }
}

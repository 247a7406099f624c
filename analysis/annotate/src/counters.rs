//! Hardware events that were sampled beside time, as events of each cycle of a piece of code.

use query::load::{EventSamples, Samples};
use verdict::{Counted, Counter};

use crate::listing::ListedInstruction;

/// Fewest samples of an event that tell where there are none of it.
const SAMPLES_MIN: u64 = 200;
/// Samples beyond those that were seen that there may have been in 19 of 20 cases: of a Poisson
/// distribution, where none was seen 3.
const UNSEEN: f64 = 3.0;

/// The events of a database that tell what code waits for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    /// Index of the event that counts time.
    time: usize,
    /// What a sample of it stands for, and whether that is in ns.
    time_weight: (f64, bool),
    /// Index, kind, and events that a sample stands for.
    events: Vec<(usize, Counter, f64)>,
}

impl Counters {
    /// Those of a selection, whose event `time` counts time.
    pub(crate) fn of(samples: &Samples, time: usize) -> Self {
        let weight = |event: &EventSamples| (event.weight, event.unit == "ns");
        let events = samples.events.iter().enumerate();
        let known = events.filter(|(_, event)| event.taken.samples >= SAMPLES_MIN);
        let known = known.filter_map(|(number, event)| {
            let name = event.name.split(':').next().unwrap_or_default();
            Some((number, Counter::of_event(name)?, event.weight))
        });
        let time_weight = samples.events.get(time).map(weight).unwrap_or_default();
        Self { time, time_weight, events: known.collect() }
    }

    /// Events of each cycle of some instructions. Empty where the cycles are not known.
    pub(crate) fn per_cycle<'a>(
        &self,
        lines: impl Iterator<Item = &'a ListedInstruction> + Clone,
        ghz: Option<f64>,
    ) -> Vec<Counted> {
        let sum = |event: usize| -> f64 {
            let counts = lines.clone().filter_map(|line| line.counts.get(event));
            counts.map(|count| *count as f64).sum()
        };
        let (weight, is_ns) = self.time_weight;
        let cycles = sum(self.time) * weight * if is_ns { ghz.unwrap_or(0.0) } else { 1.0 };
        if cycles <= 0.0 {
            return Vec::new();
        }
        let counted = |&(event, counter, weight): &(usize, Counter, f64)| {
            let seen = sum(event);
            let of = |samples: f64| samples * weight / cycles;
            Counted {
                counter,
                per_cycle: of(seen),
                per_cycle_max: of(seen + UNSEEN),
                samples: seen,
            }
        };
        self.events.iter().map(counted).collect()
    }
}

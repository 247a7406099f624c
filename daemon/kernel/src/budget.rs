//! The budget: the part of all CPU time that sampling may cost, and the highest rate within it.
//!
//! The budget stands this low because the source of samples chooses its first rate by it, before
//! any sample is taken. The governor, in the crate `pipeline`, changes the rate later.

use events::PlannedEvent;
use std::collections::BTreeSet;

/// Rates in samples per second and CPU, highest first, each 1/sqrt(2) of the one before. Few
/// values, so that a restart, whose measurement differs a little, continues the epoch at the same
/// rate.
pub const RATES: [u64; 16] =
    [5200, 3700, 2600, 1850, 1300, 920, 650, 460, 325, 230, 160, 115, 80, 57, 40, 28];

/// Part of the budget that samples may cost, at first and at most: the rest is for the daemon's own
/// work. With a larger part, that work exceeds the budget in storms; a smaller one lowers the rate.
pub const SAMPLES_PART_MAX: f64 = 0.65;

/// The part of all CPU time that sampling may cost: 0.01 is 1 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget(pub f64);

/// The index in [`RATES`] of the highest rate at which samples cost at most `most`, a part of all
/// CPU time, when a sample of one of `events` events costs `ns_per_sample`; the lowest when none
/// does.
pub fn affordable(most: f64, ns_per_sample: f64, events: usize) -> usize {
    let share = |rate: u64| rate as f64 * events as f64 * ns_per_sample / 1e9;
    let fits = |rate: &u64| share(*rate) <= most;
    RATES.iter().position(fits).unwrap_or(RATES.len() - 1)
}

/// The index in [`RATES`] of the highest rate that the budget allows, where there is one, and that
/// the kernel takes: see [`kernel_step`].
pub fn highest(budget: Option<Budget>, ns_per_sample: f64, events: usize) -> usize {
    let most = |budget: Budget| budget.0 * SAMPLES_PART_MAX;
    let step = budget.map_or(0, |budget| affordable(most(budget), ns_per_sample, events));
    step.max(kernel_step())
}

/// The index in [`RATES`] of the highest rate at which the kernel does not throttle an event. It
/// stops one that takes `kernel.perf_event_max_sample_rate` / HZ samples between two ticks
/// (`perf_event_account_interrupt` in kernel/events/core.c, Linux 6.18), and lowers the setting by
/// itself where interrupts take long. Half of the setting leaves room for ticks that come late.
pub fn kernel_step() -> usize {
    let setting = std::fs::read_to_string("/proc/sys/kernel/perf_event_max_sample_rate");
    let most = setting.ok().and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(u64::MAX);
    RATES.iter().position(|rate| *rate <= most / 2).unwrap_or(RATES.len() - 1)
}

/// The number of events that count at once: of events that take turns, one of each group.
pub fn at_once(events: &[PlannedEvent]) -> usize {
    let groups: BTreeSet<usize> = events.iter().filter_map(|event| event.mux).collect();
    events.iter().filter(|event| event.mux.is_none()).count() + groups.len()
}

/// The largest part of `all` that anybody gets where it is shared equally and nobody gets more than
/// he needs (max-min fairness). Infinite where there is enough for all `needs`.
pub fn fair_part(needs: impl IntoIterator<Item = f64>, all: f64) -> f64 {
    let mut needs: Vec<f64> = needs.into_iter().collect();
    needs.sort_by(f64::total_cmp);
    let (mut left, mut sharers) = (all, needs.len());
    for need in needs {
        let part = left / sharers as f64;
        if need > part {
            return part;
        }
        (left, sharers) = (left - need, sharers - 1);
    }
    f64::INFINITY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_the_highest_that_fits() {
        let rate = |percent: f64, ns, events| {
            RATES[affordable(percent / 100.0 * SAMPLES_PART_MAX, ns, events)]
        };
        assert_eq!(rate(1.0, 1_000.0, 1), 5200, "real hardware: 0.52 %");
        assert_eq!(
            rate(1.0, 14_000.0, 1),
            460,
            "a virtual timer: 0.64 %, and 650/s would be 0.91 %"
        );
        assert_eq!(rate(1.0, 14_000.0, 2), 230);
        assert_eq!(rate(10.0, 14_000.0, 1), 3700);
        assert_eq!(rate(0.001, 14_000.0, 1), 28, "never nothing at all");
        assert!(RATES.windows(2).all(|pair| pair[0] > pair[1] && pair[0] < pair[1] * 3 / 2));
    }

    #[test]
    fn nobody_gets_more_than_he_needs_and_the_rest_is_shared() {
        assert!(fair_part([1.0, 2.0], 3.0).is_infinite());
        assert!((fair_part([1.0, 9.0, 7.0], 11.0) - 5.0).abs() < 1e-9);
        assert!(fair_part([], 0.0).is_infinite());
    }
}

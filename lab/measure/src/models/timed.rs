//! The time-based model (the paper's section IV-B1): the time of a program is its measured time
//! minus the cost of its events. Threads that wait for each other need [`super::waits`].

use super::Range;
use super::alpha::Sum;

/// The time of a program or thread without `costs`, which lay within `measured` ns:
/// Ta = Tm - DP. Never below 0, and never above what was measured, as an event does not give time.
#[must_use]
pub fn total(measured: f64, costs: &Sum) -> Range {
    let value = measured - costs.mean;
    let reach = costs.reach();
    let bounded = |time: f64| time.clamp(0.0, measured.max(0.0));
    Range { low: bounded(value - reach), value: bounded(value), high: bounded(value + reach) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::alpha::Alpha;

    #[test]
    fn totals_stay_between_nothing_and_what_was_measured() {
        let wide = Alpha { mean: 10.0, between: 50.0, within: 0.0, places: 10 };
        let of = total(100.0, &wide.times(5));
        assert_eq!((of.low, of.value, of.high), (0.0, 50.0, 100.0));
    }

    /// Traces of 300 events whose truth is known. The cost of events has a mean that is drawn once
    /// for each trace, and a spread from event to event.
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
            for step in 0..300 {
                let holds = || total(measured, &alpha.times(step)).holds(raw);
                right += u32::from(step == 299 && holds());
                right_middle += u32::from(step == 30 && holds());
                let work = 400.0 + f64::from(step as u32 % 7) * 100.0;
                raw += work;
                measured += work + here + 80.0 * normal();
            }
        }
        for right in [right, right_middle] {
            let share = f64::from(right) / f64::from(cases);
            assert!((0.93..=0.97).contains(&share), "{share}");
        }
    }
}

//! Models of what tracing did to the times of a program, after A. D. Malony, D. A. Reed and
//! H. A. G. Wijshoff, "Performance Measurement Intrusion and Perturbation Analysis", IEEE TPDS
//! 3(4), 1992 ("the paper" below; its sections are named).
//!
//! - [`alpha`]: what one event costs the program, with its spread
//! - [`timed`]: times without the events, where they delay only what comes after (time-based)
//! - [`waits`]: the same where threads wait for each other (event-based)
//!
//! All times are ns. An event's cost lies after its time stamp, as in the paper's equation 7: it
//! delays what follows, not itself.

pub mod alpha;
pub mod timed;
pub mod waits;

pub use crate::Interval as Range;

/// Upper over lower end of an interval, above which a corrected time does not hold. 1.3 is about
/// 15 % to each side, the accuracy that the paper reached for most of its loops (section VI).
pub const WIDTH_MAX: f64 = 1.3;

/// Standard deviation of a corrected time, as a part of the true time, that comes from events not
/// costing the same everywhere: (spread of alpha / alpha) x (traced / raw - 1).
///
/// `relative_spread` is the standard deviation of an event's cost between places over its mean;
/// `slowdown` is traced over raw time. At a spread of 5 % the error is 15 % at a slowdown of 4.
#[must_use]
pub fn relative_error(relative_spread: f64, slowdown: f64) -> f64 {
    relative_spread.abs() * (slowdown - 1.0).max(0.0)
}

/// The greatest slowdown at which a corrected time is good to `relative_error`; infinite where
/// events cost the same everywhere.
#[must_use]
pub fn slowdown_max(relative_spread: f64, relative_error: f64) -> f64 {
    if relative_spread > 0.0 { 1.0 + relative_error / relative_spread } else { f64::INFINITY }
}

/// The time of a program whose source was instrumented, which also changes the code that the
/// compiler makes (the paper's equation 6): the model's time of the instrumented program, times
/// the raw program's time, over the time of the instrumented program whose events were taken out of
/// the assembly (`without_events`).
///
/// None where `without_events` is not positive.
#[must_use]
pub fn source_level(modelled: Range, raw: f64, without_events: f64) -> Option<Range> {
    let factor = raw / without_events;
    (without_events > 0.0 && factor.is_finite()).then_some(Range {
        low: modelled.low * factor,
        value: modelled.value * factor,
        high: modelled.high * factor,
    })
}

/// The paper's metrics of a measured time (section IV-A), where the true one is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Errors {
    /// AE: measured minus true time, ns.
    pub absolute: f64,
    /// RE: AE over the true time.
    pub relative: f64,
    /// Traced over raw: RE + 1.
    pub slowdown: f64,
    /// Model over raw: the paper's RAE + 1.
    pub model_over_raw: f64,
}

impl Errors {
    /// The metrics; None where `raw` is not positive.
    #[must_use]
    pub fn of(raw: f64, traced: f64, modelled: f64) -> Option<Self> {
        (raw > 0.0).then(|| Self {
            absolute: traced - raw,
            relative: (traced - raw) / raw,
            slowdown: traced / raw,
            model_over_raw: modelled / raw,
        })
    }
}

/// Numbers of moments: events whose corrected times lie closer together than the clock resolves are
/// of one moment, because their order in time is not known (section IV-C1). `times` are corrected
/// times of one thread in the order of the events.
#[must_use]
pub fn moments(times: &[f64], resolution: f64) -> Vec<u32> {
    let (mut moment, mut begin) = (0_u32, f64::NEG_INFINITY);
    times
        .iter()
        .map(|&time| {
            if begin == f64::NEG_INFINITY {
                begin = time;
            } else if time - begin >= resolution && time > begin {
                (moment, begin) = (moment.saturating_add(1), time);
            }
            moment
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_is_that_of_the_design() {
        assert!((relative_error(0.05, 4.0) - 0.15).abs() < 1e-12);
        assert!((slowdown_max(0.05, 0.15) - 4.0).abs() < 1e-12);
        assert_eq!(relative_error(0.05, 0.9), 0.0, "a faster run is not a negative error");
        assert_eq!(slowdown_max(0.0, 0.15), f64::INFINITY);
    }

    #[test]
    fn changed_code_is_divided_out() {
        let modelled = Range { low: 90.0, value: 100.0, high: 110.0 };
        let of = source_level(modelled, 80.0, 100.0).unwrap();
        assert!((of.low - 72.0).abs() < 1e-9 && (of.value - 80.0).abs() < 1e-9);
        assert_eq!(source_level(modelled, 80.0, 0.0), None);
    }

    #[test]
    fn metrics_are_those_of_the_paper() {
        // Loop 4 of the paper's table III: full/raw 14.2, model/raw 0.73.
        let errors = Errors::of(10.0, 142.0, 7.3).unwrap();
        assert!((errors.relative - 13.2).abs() < 1e-9 && (errors.slowdown - 14.2).abs() < 1e-9);
        assert!((errors.model_over_raw - 0.73).abs() < 1e-9);
        assert_eq!(Errors::of(0.0, 1.0, 1.0), None);
    }

    #[test]
    fn events_within_the_clocks_resolution_are_of_one_moment() {
        // The paper's clock stepped in 10 us: what is closer has no order.
        assert_eq!(moments(&[0.0, 4.0, 9.0, 10.0, 12.0, 31.0], 10.0), [0, 0, 0, 1, 1, 2]);
        assert_eq!(moments(&[5.0, 3.0, 5.0], 0.0), [0, 0, 0], "times that go back are one moment");
        assert!(moments(&[], 10.0).is_empty());
    }

    #[test]
    fn widths_say_whether_to_decide() {
        assert!(Range { low: 90.0, value: 100.0, high: 110.0 }.is_narrow());
        assert!(!Range { low: 80.0, value: 100.0, high: 120.0 }.is_narrow());
        assert_eq!(Range { low: 0.0, value: 1.0, high: 2.0 }.width(), f64::INFINITY);
        assert_eq!(Range::exact(0.0).width(), 1.0);
    }
}

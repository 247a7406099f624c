//! Models that remove the effect of tracing from the times of a program, after A. D. Malony, D. A.
//! Reed and H. A. G. Wijshoff, "Performance Measurement Intrusion and Perturbation Analysis", IEEE
//! TPDS 3(4), 1992 ("the paper" below; its sections are named).
//!
//! - [`alpha`]: what one event costs the program, with its spread
//! - [`timed`]: the time of a program or thread whose events delay only itself (time-based)
//! - [`waits`]: times of threads that wait for each other (event-based)
//!
//! All times are ns. An event's cost lies after its time stamp, as in the paper's equation 7: it
//! delays what follows, not itself.

pub mod alpha;
pub mod timed;
pub mod waits;

pub use crate::Interval as Range;

/// Largest ratio of upper to lower end of an interval whose corrected time is usable. 1.3 is about
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_is_that_of_the_design() {
        assert!((relative_error(0.05, 4.0) - 0.15).abs() < 1e-12);
        assert_eq!(relative_error(0.05, 0.9), 0.0, "a faster run is not a negative error");
    }

    #[test]
    fn widths_say_whether_to_decide() {
        assert!(Range { low: 90.0, value: 100.0, high: 110.0 }.is_narrow());
        assert!(!Range { low: 80.0, value: 100.0, high: 120.0 }.is_narrow());
        assert_eq!(Range { low: 0.0, value: 1.0, high: 2.0 }.width(), f64::INFINITY);
        assert_eq!(Range::exact(0.0).width(), 1.0);
    }
}

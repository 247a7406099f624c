//! The spread of changes in unchanged procedures.
//!
//! Two things move all procedures of a group. One that grew makes the shares of all others fall:
//! the *median change* is subtracted. And each moves a little for reasons that all hosts share
//! (code at other addresses, the week's traffic and data), which no number of hosts averages out:
//! this *typical spread* is seen in how much the changes of procedures differ beyond their own
//! errors (the empirical null: B. Efron, "Large-scale simultaneous hypothesis testing", JASA 99,
//! 2004).
//! Both are medians, so that procedures that were really changed do not count.

use crate::chance::weighted_median;

/// Procedures from which a group's own median change and typical spread are believed: fewer might
/// all have been changed.
const ROWS_LEAST: usize = 20;
/// The median of chi-squared with one degree of freedom.
const MEDIAN_SQUARE: f64 = 0.454_936_423_119_573;
/// A spread beyond this (relative, as a standard deviation) is not looked for: all is unlike.
const SPREAD_MOST: f64 = 100.0;

/// A relative change and its error.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Measured {
    /// The relative change; 0.02: 2 % more.
    pub change: f64,
    /// Its standard deviation by the differences between hosts and by sampling, above 0.
    pub sd: f64,
}

/// The common change of a group's procedures.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Typical {
    /// The median relative change.
    pub change: f64,
    /// The standard deviation of the median change.
    pub change_sd: f64,
    /// The relative standard deviation of procedures' changes beyond their own errors.
    pub spread: f64,
}

impl Typical {
    /// The typical change and spread of procedures; None of fewer than twenty.
    #[must_use]
    pub fn of(rows: &[Measured]) -> Option<Self> {
        let usable = |row: &&Measured| row.change.is_finite() && row.sd.is_finite() && row.sd > 0.0;
        let rows: Vec<Measured> = rows.iter().filter(usable).copied().collect();
        if rows.len() < ROWS_LEAST {
            return None;
        }
        let change = weighted_median(rows.iter().map(|row| (row.change, 1.0 / row.sd)))?;
        let spread = Self::spread_of(&rows, change);
        // The variance of a median weighted by 1/sd, of normal variables.
        let precision: f64 = rows.iter().map(|row| 1.0 / (row.sd.powi(2) + spread * spread)).sum();
        let change_sd = (std::f64::consts::FRAC_PI_2 / precision).sqrt();
        Some(Self { change, change_sd, spread })
    }

    /// The spread that brings the median of the squared changes, each by its variance, to that of
    /// chi-squared.
    fn spread_of(rows: &[Measured], change: f64) -> f64 {
        let median = |spread: f64| {
            weighted_median(rows.iter().map(|row| {
                let variance = row.sd.powi(2) + spread * spread;
                ((row.change - change).powi(2) / variance, 1.0 / row.sd)
            }))
            .unwrap_or(0.0)
        };
        if median(0.0) <= MEDIAN_SQUARE {
            return 0.0;
        }
        let (mut low, mut high) = (0.0, SPREAD_MOST);
        for _ in 0..40 {
            let middle = f64::midpoint(low, high);
            if median(middle) > MEDIAN_SQUARE { low = middle } else { high = middle }
        }
        high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A standard normal number (Box and Muller).
    fn normal(random: &mut fastrand::Rng) -> f64 {
        (-2.0 * (1.0 - random.f64()).ln()).sqrt() * (std::f64::consts::TAU * random.f64()).cos()
    }

    #[test]
    fn spread_and_change_are_found_through_errors_of_all_sizes() {
        let mut random = fastrand::Rng::with_seed(1);
        for (change, spread) in [(0.0, 0.0), (-0.1, 0.01), (0.02, 0.05)] {
            let rows: Vec<Measured> = (0..2000)
                .map(|row| {
                    let sd = [0.002, 0.01, 0.05][row % 3];
                    // One in ten was really changed.
                    let real = if row % 10 == 0 { 0.3 } else { 0.0 };
                    let noise = spread * normal(&mut random) + sd * normal(&mut random);
                    Measured { change: change + real + noise, sd }
                })
                .collect();
            let typical = Typical::of(&rows).unwrap();
            // A tenth in the upper half moves the median by an eighth of a standard deviation.
            assert!((typical.change - change).abs() < 0.2 * spread + 0.001, "{typical:?}");
            assert!((typical.spread - spread).abs() < 0.2 * spread + 0.002, "{typical:?}");
        }
    }

    #[test]
    fn of_few_rows_and_nonsense_nothing_is_typical() {
        let row = |change, sd| Measured { change, sd };
        assert_eq!(Typical::of(&[]), None);
        assert_eq!(Typical::of(&vec![row(0.5, 0.1); 19]), None);
        for bad in [row(f64::NAN, 1.0), row(0.0, f64::NAN), row(0.0, 0.0), row(0.0, f64::INFINITY)]
        {
            assert_eq!(Typical::of(&vec![bad; 100]), None, "{bad:?}");
        }
        let same = Typical::of(&vec![row(0.5, 1e-300); 20]).unwrap();
        assert_eq!((same.change, same.spread), (0.5, 0.0));
    }
}

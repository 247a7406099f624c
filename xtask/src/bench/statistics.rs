//! Medians and spreads of a few repeated measurements.

use std::fmt;

use measure::humps::quantile;

/// Median and spread of some measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// First and third quartile.
    pub quartiles: (f64, f64),
    /// Number of values.
    pub count: usize,
}

impl Spread {
    /// The spread of all finite values; None without any.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        Some(Self {
            median: quantile(&values, 0.5)?,
            min: *values.first()?,
            max: *values.last()?,
            quartiles: (quantile(&values, 0.25)?, quantile(&values, 0.75)?),
            count: values.len(),
        })
    }
}

/// `MEDIAN [MIN..MAX]`, with as many decimals as asked for.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = f.precision().unwrap_or(1);
        write!(f, "{:.decimals$} [{:.decimals$}..{:.decimals$}]", self.median, self.min, self.max)
    }
}

/// Confidence interval of 95 % for the median: the ranks of the sign test, by the normal
/// approximation. None for fewer than 6 values.
pub fn interval_of_median(values: &[f64]) -> Option<(f64, f64)> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    let rank = (count / 2.0 - 0.98 * count.sqrt()).floor();
    let rank = if values.len() < 6 { return None } else { rank.max(0.0) as usize };
    Some((*values.get(rank)?, *values.get(values.len() - 1 - rank)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_quartiles_and_their_absence() {
        let spread = Spread::of([3.0, 1.0, f64::NAN, 2.0, 4.0]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max, spread.count), (2.5, 1.0, 4.0, 4));
        assert_eq!(spread.quartiles, (1.75, 3.25));
        assert_eq!(format!("{spread:.2}"), "2.50 [1.00..4.00]");
        assert_eq!(Spread::of([7.0]).unwrap().quartiles, (7.0, 7.0));
        assert_eq!(Spread::of([]), None);
        // Of 15, the 4th and the 12th: 2 * P(B(15, 1/2) <= 3) = 0.035.
        let values: Vec<f64> = (1..=15).map(f64::from).collect();
        assert_eq!(interval_of_median(&values), Some((4.0, 12.0)));
        assert_eq!(interval_of_median(&[1.0, 2.0]), None);
    }
}

//! An estimate and its interval.

use crate::models::WIDTH_MAX;

/// A value with its interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interval {
    /// The most likely value.
    pub value: f64,
    /// Lower end, in the unit of `value`.
    pub low: f64,
    /// Upper end, in the unit of `value`.
    pub high: f64,
}

impl Interval {
    /// A value that is known exactly.
    #[must_use]
    pub fn exact(value: f64) -> Self {
        Self { low: value, value, high: value }
    }

    /// Value and ends multiplied by a factor of 0 or more.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self { value: self.value * factor, low: self.low * factor, high: self.high * factor }
    }

    /// Value and ends less a number.
    #[must_use]
    pub fn less(self, number: f64) -> Self {
        Self { value: self.value - number, low: self.low - number, high: self.high - number }
    }

    /// Whether a value lies in the interval.
    #[must_use]
    pub fn holds(&self, truth: f64) -> bool {
        (self.low..=self.high).contains(&truth)
    }

    /// The upper end over the lower one: 1 where the value is exact, infinite where the lower end
    /// is 0.
    #[must_use]
    pub fn width(&self) -> f64 {
        if self.high <= self.low {
            1.0
        } else if self.low <= 0.0 {
            f64::INFINITY
        } else {
            self.high / self.low
        }
    }

    /// Whether the interval is narrow enough to decide something on it: see [`WIDTH_MAX`].
    #[must_use]
    pub fn is_narrow(&self) -> bool {
        self.width() <= WIDTH_MAX
    }
}

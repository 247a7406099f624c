//! K-best: the time of which K measurements agree (Bryant and O'Hallaron, "Computer Systems: A
//! Programmer's Perspective", chapter 9 of the first edition; the lecture, slide 37).
//!
//! Measurements go on until the fastest `k` of them lie within a factor of 1 + `epsilon`, or until
//! there are `most`. The method trusts the fastest, because a cycle counter never counts too
//! little. It fails where every measurement is disturbed.

/// Parameters of K-best.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// Measurements that must agree: 1 or more.
    pub k: usize,
    /// Largest distance between them, as a part of the fastest.
    pub epsilon: f64,
    /// Most measurements.
    pub most: usize,
}

/// The lecture's rule.
pub const LECTURE: Rule = Rule { k: 3, epsilon: 0.001, most: 20 };

/// The result of K-best.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Best {
    /// The fastest measurement.
    pub value: f64,
    /// Whether the fastest K agreed.
    pub converged: bool,
    /// Number of measurements used.
    pub measurements: usize,
}

impl Rule {
    /// Looks at measurements in the order in which they were made, as far as the rule needs; None
    /// of none. What is no number is passed over.
    #[must_use]
    pub fn of(&self, measured: impl IntoIterator<Item = f64>) -> Option<Best> {
        let k = self.k.max(1);
        let mut best: Vec<f64> = Vec::with_capacity(k + 1);
        let mut measurements = 0;
        let known = measured.into_iter().filter(|value| value.is_finite());
        for value in known.take(self.most.max(1)) {
            measurements += 1;
            let at = best.partition_point(|known| *known <= value);
            best.insert(at, value);
            best.truncate(k);
            if self.agree(&best) {
                break;
            }
        }
        let value = *best.first()?;
        Some(Best { value, converged: self.agree(&best), measurements })
    }

    fn agree(&self, best: &[f64]) -> bool {
        let ends = best.first().zip(best.get(self.k.max(1) - 1));
        ends.is_some_and(|(first, last)| *last <= first * (1.0 + self.epsilon))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stops_as_soon_as_k_agree() {
        let times = [2.0, 1.0, 3.0, 1.0005, 5.0, 1.0009, 0.1];
        let best = LECTURE.of(times).unwrap();
        assert_eq!(best, Best { value: 1.0, converged: true, measurements: 6 });
    }

    #[test]
    fn it_gives_up_after_the_most() {
        let times = (0..100).map(|at| 100.0 - f64::from(at));
        let best = LECTURE.of(times).unwrap();
        assert_eq!(best, Best { value: 81.0, converged: false, measurements: 20 });
        assert_eq!(LECTURE.of([]), None);
        assert_eq!(LECTURE.of([f64::NAN, 2.0]).unwrap().measurements, 1);
        assert!(Rule { k: 0, ..LECTURE }.of([7.0]).unwrap().converged);
    }
}

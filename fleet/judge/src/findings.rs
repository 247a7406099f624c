//! Findings: the expected and the actual saving of a change.

/// The measurements of the cores that a finding was to save.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Finding {
    /// Cores promised, above 0.
    pub promised: f64,
    /// Cores saved, by the comparison of builds.
    pub got: f64,
    /// Lower end of the interval of `got`.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// The outcome of a finding.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It saved something, and the promise is within the interval.
    Kept,
    /// It saved more than promised.
    More,
    /// It saved something, but less than promised.
    Less,
    /// The saving cannot be distinguished from chance, and is smaller than promised.
    Nothing,
    /// It costs cores.
    Worse,
    /// Both nothing and all that was promised are possible.
    Unknown,
}

impl Finding {
    /// A finding measured by the change of a procedure's or an image's share.
    ///
    /// `share_change` and `share_sd` are those of [`Judged`](crate::Judged), `cores` the service's
    /// cores now, `reach` the standard deviations of the interval (1.96 for 95 %).
    #[must_use]
    pub fn measured(
        promised: f64,
        share_change: f64,
        share_sd: f64,
        cores: f64,
        reach: f64,
    ) -> Self {
        let (got, reach) = (-share_change * cores, (reach * share_sd * cores).abs());
        Self { promised, got, low: got - reach, high: got + reach }
    }

    /// The outcome; [`Outcome::Unknown`] also if a value is not a number.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let Self { promised, low, high, .. } = *self;
        if promised.is_nan() || promised <= 0.0 || low.is_nan() || high.is_nan() || low > high {
            Outcome::Unknown
        } else if high < 0.0 {
            Outcome::Worse
        } else if low > promised {
            Outcome::More
        } else if low > 0.0 {
            if high < promised { Outcome::Less } else { Outcome::Kept }
        } else if high < promised {
            Outcome::Nothing
        } else {
            Outcome::Unknown
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_has_one_outcome() {
        let of = |low, high| Finding { promised: 10.0, got: 0.0, low, high }.outcome();
        assert_eq!(of(8.0, 12.0), Outcome::Kept);
        assert_eq!(of(11.0, 12.0), Outcome::More);
        assert_eq!(of(1.0, 9.0), Outcome::Less);
        assert_eq!(of(-1.0, 9.0), Outcome::Nothing);
        assert_eq!(of(-5.0, -1.0), Outcome::Worse);
        assert_eq!(of(-5.0, 20.0), Outcome::Unknown);
        for (low, high) in [(f64::NAN, 1.0), (1.0, f64::NAN), (f64::NEG_INFINITY, f64::INFINITY)] {
            assert_eq!(of(low, high), Outcome::Unknown);
        }
        for promised in [f64::NAN, 0.0, -3.0] {
            let finding = Finding { promised, got: 5.0, low: 4.0, high: 6.0 };
            assert_eq!(finding.outcome(), Outcome::Unknown);
        }
    }

    #[test]
    fn cores_follow_from_the_share() {
        // 2 points of 500 cores less, give or take a half.
        let finding = Finding::measured(10.0, -0.02, 0.005, 500.0, 2.0);
        assert!((finding.got - 10.0).abs() < 1e-12 && (finding.low - 5.0).abs() < 1e-12);
        assert_eq!(finding.outcome(), Outcome::Kept);
        let unknown = Finding::measured(10.0, 0.0, f64::INFINITY, 500.0, 2.0);
        assert_eq!(unknown.outcome(), Outcome::Unknown);
    }
}

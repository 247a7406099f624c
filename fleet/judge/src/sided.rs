//! Procedures that only one side of a comparison has: new, or gone.

use stats::tails;

/// A side of a comparison.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// The old build, or the week before: the procedure is gone.
    Old,
    /// The new build, or the week: the procedure is new.
    New,
}

/// A procedure with samples on one side only.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Sided {
    /// The side that has them.
    pub side: Side,
    /// Share of that side's time.
    pub share: f64,
    /// The probability that all hosts that had samples had them on that side, if both sides had the
    /// procedure alike; for [`discoveries`](crate::discoveries).
    pub p: f64,
}

/// The side that a procedure is on, and whether that is chance: of its samples, and of the whole
/// service's samples on each side (old, new), on hosts that ran both. None where both sides have
/// samples, or none has.
///
/// A host counts once, however many samples it had: a seldom procedure has its samples in one
/// burst. A burst that all hosts share (an event of a day) looks new all the same.
#[must_use]
pub fn one_sided(samples: [u64; 2], of: [u64; 2], hosts: u64) -> Option<Sided> {
    let (side, seen, of_side) = match (samples, of) {
        ([old, 0], [of_old, _]) if old > 0 => (Side::Old, old, of_old),
        ([0, new], [_, of_new]) if new > 0 => (Side::New, new, of_new),
        _ => return None,
    };
    let all = of.map(|of| of as f64).iter().sum::<f64>();
    let of_side = of_side as f64;
    let share = if of_side > 0.0 { (seen as f64 / of_side).min(1.0) } else { 0.0 };
    // No more hosts than samples, whatever was said.
    let hosts = hosts.min(seen) as f64;
    let on_side = if all > 0.0 { of_side / all } else { 1.0 };
    Some(Sided { side, share, p: tails::binomial_from(hosts, hosts, on_side).clamp(0.0, 1.0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_not_samples_tell() {
        let new = one_sided([0, 5000], [1_000_000, 1_000_000], 20).unwrap();
        assert_eq!(new.side, Side::New);
        assert!((new.p - 0.5_f64.powi(20)).abs() < 1e-12 && new.share == 0.005, "{new:?}");
        // A burst on one host is nothing; nor is a side that has nearly all the time.
        assert!(one_sided([0, 5000], [1_000_000, 1_000_000], 1).unwrap().p > 0.4);
        assert!(one_sided([0, 20], [1000, 1_000_000], 20).unwrap().p > 0.9);
        assert_eq!(one_sided([7, 0], [100, 100], 7).unwrap().side, Side::Old);
        assert_eq!(one_sided([1, 1], [100, 100], 2), None);
        assert_eq!(one_sided([0, 0], [100, 100], 2), None);
    }

    #[test]
    fn nothing_is_new_beside_no_samples() {
        for (of, hosts) in [([0, 0], 5), ([0, 100], 100), ([0, u64::MAX], u64::MAX), ([9, 9], 0)] {
            assert_eq!(one_sided([0, 50], of, hosts).unwrap().p, 1.0, "{of:?} {hosts}");
        }
        let huge = one_sided([0, u64::MAX], [u64::MAX, u64::MAX], u64::MAX).unwrap();
        assert!((0.0..=1.0).contains(&huge.p) && huge.share <= 1.0, "{huge:?}");
    }
}

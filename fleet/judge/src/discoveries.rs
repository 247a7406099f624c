//! Which of many probabilities are more than chance.

/// The share of marks that may be false, on average, in a weekly review. It is low because a week
/// has few true marks: beside a single true one the number of false ones is about twice the level
/// (at 0.05, one in ten weeks), and in a week without a change a false alarm has the level's own
/// probability. From 0.05 to 0.01 a change has to be a tenth larger to be found.
pub const LEVEL: f64 = 0.01;

/// The outcome of many tests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Discoveries {
    /// For each test, the smallest level at which it is marked, `0..=1`.
    pub q: Vec<f64>,
    /// Whether it is marked at the level asked for.
    pub marked: Vec<bool>,
}

/// Marks those of many tests whose probabilities `p` are more than chance: of the marks, at most
/// the share `level` is false on average (Y. Benjamini, Y. Hochberg, "Controlling the false
/// discovery rate", Journal of the Royal Statistical Society B 57, 1995).
///
/// All that is compared in a week is one family of tests: give all services' probabilities at
/// once. What is no probability counts as 1. Nothing is marked at a level that is not in `0..1`.
#[must_use]
pub fn discoveries(p: &[f64], level: f64) -> Discoveries {
    let clean = |p: f64| if (0.0..=1.0).contains(&p) { p } else { 1.0 };
    let mut order: Vec<(usize, f64)> = p.iter().map(|p| clean(*p)).enumerate().collect();
    order.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let count = order.len() as f64;
    let mut q = vec![1.0; p.len()];
    let mut least: f64 = 1.0;
    for (above, (at, p)) in order.into_iter().enumerate() {
        least = least.min(p * count / (count - above as f64));
        if let Some(slot) = q.get_mut(at) {
            *slot = least;
        }
    }
    let level = if level > 0.0 && level < 1.0 { level } else { -1.0 };
    let marked = q.iter().map(|q| *q <= level).collect();
    Discoveries { q, marked }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of Benjamini and Hochberg's paper, section 4.1: 4 of 15 are marked.
    #[test]
    fn the_papers_example() {
        let p = [
            0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262,
            0.5719, 0.6528, 0.7590, 1.000,
        ];
        let found = discoveries(&p, 0.05);
        assert_eq!(found.marked.iter().filter(|marked| **marked).count(), 4);
        assert!((found.q[3] - 0.035_625).abs() < 1e-9, "{found:?}");
        // The order of the tests is nothing to it.
        let mut back = p;
        back.reverse();
        let mut q = discoveries(&back, 0.05).q;
        q.reverse();
        assert_eq!(q, found.q);
    }

    #[test]
    fn nonsense_is_not_marked_and_ties_are_one() {
        let found = discoveries(&[f64::NAN, -1.0, 2.0, f64::INFINITY, 0.0, 0.0], 0.05);
        assert_eq!(found.marked, [false, false, false, false, true, true]);
        assert_eq!(found.q[4], found.q[5]);
        assert!(discoveries(&[], 0.05).q.is_empty());
        for level in [0.0, 1.0, -1.0, 7.0, f64::NAN] {
            assert_eq!(discoveries(&[0.0], level).marked, [false], "{level}");
        }
    }

    #[test]
    fn of_tables_without_a_change_one_in_twenty_has_a_mark() {
        let mut random = fastrand::Rng::with_seed(3);
        let alarms = (0..2000).filter(|_| {
            let p: Vec<f64> = (0..200).map(|_| random.f64()).collect();
            discoveries(&p, 0.05).marked.contains(&true)
        });
        let alarms = alarms.count();
        // 100 give or take 9.7.
        assert!((70..=130).contains(&alarms), "{alarms}");
    }
}

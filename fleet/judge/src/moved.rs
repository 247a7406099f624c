//! Cost that went from procedures to others of their image: a function that is inlined no longer,
//! or into one more place, makes one row fall and others grow by as much. That is no regression.
//!
//! The search knows shares only, so it names what fits by size: one procedure against one, and then
//! one against several. Whether the compiler did it, the code shows.

use stats::Confidence;

/// A marked change of a share (also that of a procedure that is new, or gone).
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Shift {
    /// Change of the share of the service's time.
    pub change: f64,
    /// Its standard deviation.
    pub sd: f64,
}

/// A set of procedures whose changes cancel.
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    /// The procedures whose share fell, as indices of the given list.
    pub from: Vec<usize>,
    /// The procedures whose share grew.
    pub to: Vec<usize>,
    /// Sum of all their changes, within its interval of 0.
    pub left: f64,
    /// The interval's reach on either side.
    pub reach: f64,
}

/// The most that the interval of a sum may be of the change that is said to have moved. Wider ones
/// cancel with anything: with a quarter, about one of four random pairs of like size would.
const REACH_MOST: f64 = 0.25;
/// Marked procedures of an image that are searched, those with the largest changes: more did not
/// move, the whole image changed.
const SHIFTS_MOST: usize = 64;

/// Sets of an image's marked changes that cancel, the largest first; a procedure is in one set at
/// most.
#[must_use]
pub fn moved(shifts: &[Shift], confidence: Confidence) -> Vec<Move> {
    let known = |shift: &Shift| {
        shift.change.is_finite() && shift.change != 0.0 && shift.sd.is_finite() && shift.sd >= 0.0
    };
    let mut left: Vec<(usize, Shift)> =
        shifts.iter().copied().enumerate().filter(|(_, shift)| known(shift)).collect();
    left.sort_by(|(_, a), (_, b)| b.change.abs().total_cmp(&a.change.abs()));
    left.truncate(SHIFTS_MOST);
    let mut found = Vec::new();
    while let Some(best) = best_pair(&left, confidence) {
        left.retain(|(at, _)| !best.from.contains(at) && !best.to.contains(at));
        found.push(best);
    }
    for (at, shift) in left.clone() {
        if left.iter().any(|(other, _)| *other == at)
            && let Some(set) = against_several((at, shift), &left, confidence)
        {
            left.retain(|(at, _)| !set.from.contains(at) && !set.to.contains(at));
            found.push(set);
        }
    }
    found
}

/// The pair whose changes cancel best.
fn best_pair(shifts: &[(usize, Shift)], confidence: Confidence) -> Option<Move> {
    let fell = shifts.iter().filter(|(_, shift)| shift.change < 0.0);
    let grew = |fell: &(usize, Shift)| {
        let fell = *fell;
        let grew = shifts.iter().filter(|(_, shift)| shift.change > 0.0);
        grew.filter_map(move |grew| cancel(&[fell], &[*grew], confidence)).collect::<Vec<_>>()
    };
    fell.flat_map(grew).min_by(|a, b| a.left.abs().total_cmp(&b.left.abs()))
}

/// One procedure against all those of the other direction that are smaller, largest first, until
/// they cancel it.
fn against_several(
    one: (usize, Shift),
    shifts: &[(usize, Shift)],
    confidence: Confidence,
) -> Option<Move> {
    let mut several = Vec::new();
    for other in shifts.iter().filter(|(_, other)| other.change * one.1.change < 0.0) {
        several.push(*other);
        let set = if one.1.change < 0.0 {
            cancel(&[one], &several, confidence)
        } else {
            cancel(&several, &[one], confidence)
        };
        if set.is_some() {
            return set;
        }
        if several.iter().map(|(_, shift)| shift.change.abs()).sum::<f64>() > one.1.change.abs() {
            several.pop();
        }
    }
    None
}

/// The set, if its changes cancel.
fn cancel(from: &[(usize, Shift)], to: &[(usize, Shift)], confidence: Confidence) -> Option<Move> {
    let all = || from.iter().chain(to).map(|(_, shift)| shift);
    let left: f64 = all().map(|shift| shift.change).sum();
    let reach = confidence.z() * all().map(|shift| shift.sd.powi(2)).sum::<f64>().sqrt();
    let sum = |side: &[(usize, Shift)]| side.iter().map(|(_, shift)| shift.change).sum::<f64>();
    let size = sum(from).abs().min(sum(to).abs());
    let numbers = |side: &[(usize, Shift)]| side.iter().map(|(at, _)| *at).collect();
    (left.abs() <= reach && reach <= REACH_MOST * size).then(|| Move {
        from: numbers(from),
        to: numbers(to),
        left,
        reach,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(changes: &[f64], sd: f64) -> Vec<Move> {
        let shifts: Vec<Shift> =
            changes.iter().map(|change| Shift { change: *change, sd }).collect();
        moved(&shifts, Confidence::default())
    }

    #[test]
    fn a_pair_and_a_set_are_named() {
        let found = of(&[0.010, -0.0101, 0.003], 0.0002);
        assert_eq!(found.len(), 1);
        assert_eq!((&found[0].from, &found[0].to), (&vec![1], &vec![0]));
        // One that was inlined into three callers; the regression beside it stays one.
        let found = of(&[-0.020, 0.009, 0.007, 0.0041, 0.05], 0.0002);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((&found[0].from, &found[0].to), (&vec![0], &vec![1, 2, 3]));
    }

    #[test]
    fn what_does_not_cancel_or_is_not_known_is_not_moved() {
        assert_eq!(of(&[0.010, -0.008], 0.0002), []);
        // Such wide intervals cancel with anything.
        assert_eq!(of(&[0.010, -0.008], 0.005), []);
        assert_eq!(of(&[], 1.0), []);
        for bad in [f64::NAN, f64::INFINITY, 0.0] {
            assert_eq!(of(&[bad, -bad], 0.1), [], "{bad}");
            assert_eq!(of(&[0.01, -0.01], f64::NAN), []);
        }
        // Many: it ends.
        let many: Vec<f64> = (0..5000).map(|at| f64::from(at % 71 - 35) / 1000.0).collect();
        assert!(of(&many, 1e-5).len() <= 64);
    }
}

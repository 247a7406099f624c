//! The cost of one sample, from many short measurements most of which may be disturbed.
//!
//! A disturbance (a task or a hypervisor that takes the CPU, a slower clock, a cold cache) makes a
//! window dearer, never cheaper. So the quiet windows are the cheap ones: as long as an eighth of
//! the windows is quiet, a low order statistic is one of them, and the median of all that are near
//! it is the cost. A median over all windows is wrong as soon as half are disturbed, which
//! on a busy host they are.

/// Factor by which a window's clock must be slower than the fastest one for the window to count as
/// disturbed: it ran at another frequency, or beside a busy sibling. A larger factor accepts slow
/// windows, a smaller one rejects ordinary ones.
const SLOWER_CLOCK: f64 = 1.25;
/// The window of this rank, as a part of all, is taken to be quiet. Smaller parts are at the mercy
/// of one window that measured too little, larger ones of disturbance: of 24 windows each quiet
/// with a probability of 0.4, fewer than 4 are in 0.4 % of measurements.
const QUIET_RANK: f64 = 0.125;
/// A window is quiet when it is within this factor of that window. Undisturbed windows differ by
/// some percent.
const QUIET_WITHIN: f64 = 1.25;
/// Fewest undisturbed windows; with fewer, all windows are used.
const UNDISTURBED_MIN: usize = 4;

/// One short measurement on one CPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Median time of an interruption, in ns; None: there were too few interruptions.
    pub ns: Option<f64>,
    /// Median time between two readings of the clock, ns: longer at a lower frequency.
    pub clock_ns: f64,
    /// Something else had the CPU for a part of the window.
    pub disturbed: bool,
}

/// The result of all windows together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Median over the quiet windows, ns.
    pub ns: f64,
    /// The cheapest quiet window, ns.
    pub low_ns: f64,
    /// The dearest quiet window, ns.
    pub high_ns: f64,
    /// Quiet windows.
    pub quiet: usize,
    /// All windows.
    pub windows: usize,
}

/// The cost that these windows show; None when no window has a cost.
pub fn of<'a>(windows: impl IntoIterator<Item = &'a Window>) -> Option<Measured> {
    let windows: Vec<Window> = windows.into_iter().copied().collect();
    let fastest = windows.iter().map(|window| window.clock_ns).fold(f64::INFINITY, f64::min);
    let is_undisturbed =
        |window: &&Window| !window.disturbed && window.clock_ns <= fastest * SLOWER_CLOCK;
    let mut costs: Vec<f64> =
        windows.iter().filter(is_undisturbed).filter_map(|window| window.ns).collect();
    if costs.len() < UNDISTURBED_MIN {
        costs = windows.iter().filter_map(|window| window.ns).collect();
    }
    costs.sort_by(f64::total_cmp);
    let rank = (costs.len() as f64 * QUIET_RANK).ceil() as usize;
    let near = *costs.get(rank.min(costs.len().checked_sub(1)?))?;
    costs.retain(|ns| (near / QUIET_WITHIN..=near * QUIET_WITHIN).contains(ns));
    let (low_ns, high_ns) = (*costs.first()?, *costs.last()?);
    Some(Measured {
        ns: *costs.get(costs.len() / 2)?,
        low_ns,
        high_ns,
        quiet: costs.len(),
        windows: windows.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::affordable;

    /// A window on a host where `contamination` of them are disturbed, and half of those without a
    /// sign of it.
    fn window(random: &mut fastrand::Rng, true_ns: f64, contamination: f64) -> Window {
        // The sum of uniform numbers: a standard deviation of about 4 %.
        let noise = 1.0 + (0..12).map(|_| random.f64() - 0.5).sum::<f64>() * 0.04;
        let is_disturbed = random.f64() < contamination;
        let factor = if is_disturbed { 1.3 + 8.7 * random.f64() } else { 1.0 };
        Window {
            ns: Some(true_ns * noise * factor),
            clock_ns: 25.0,
            disturbed: is_disturbed && random.bool(),
        }
    }

    /// On a busy host the cost came out between 2.4 and 32 us within minutes, and the rate with it:
    /// one window's median is that of what disturbed it.
    #[test]
    fn a_busy_host_does_not_change_the_cost_by_more_than_a_step_of_the_ladder() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut within = 0;
        for round in 0..1000 {
            let true_ns = 2_000.0 + 14_000.0 * random.f64();
            let contamination = 0.6 * f64::from(round) / 999.0;
            // The worst case: the disturbed windows cannot be recognised.
            let windows: Vec<Window> = (0..24)
                .map(|_| window(&mut random, true_ns, contamination))
                .map(|window| Window { disturbed: window.disturbed && round % 2 == 0, ..window })
                .collect();
            let measured = of(&windows).unwrap();
            let step = |ns| affordable(0.0065, ns, 1);
            within += usize::from(step(measured.ns).abs_diff(step(true_ns)) <= 1);
            assert!(
                measured.low_ns <= measured.ns
                    && measured.ns <= measured.high_ns
                    && measured.quiet > 0
            );
        }
        assert!(within >= 990, "{within} of 1000 are within a step");
    }

    #[test]
    fn what_is_known_to_be_disturbed_or_slow_is_left_out() {
        let quiet = Window { ns: Some(3_000.0), clock_ns: 20.0, disturbed: false };
        let slow = Window { ns: Some(3_200.0), clock_ns: 30.0, ..quiet };
        let disturbed = Window { ns: Some(2_900.0), disturbed: true, ..quiet };
        let silent = Window { ns: None, ..quiet };
        let measured = of(&[quiet, slow, disturbed, quiet, silent, quiet, slow, quiet]).unwrap();
        assert_eq!(
            (measured.low_ns, measured.high_ns, measured.quiet, measured.windows),
            (3_000.0, 3_000.0, 4, 8)
        );
        assert_eq!(of(&[disturbed]).unwrap().ns, 2_900.0, "better than nothing");
        assert_eq!((of(&[silent]), of(&[])), (None, None));
    }
}

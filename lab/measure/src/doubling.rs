//! Repetitions are doubled until a loop takes long enough to be timed (the lecture, slide 36).

/// Most repetitions: a loop of nothing ends here.
pub const MOST: u64 = 1 << 40;

/// Repetitions at which `loop_time` reaches `threshold`: a power of 2, times the work of one
/// measurement that disagreed with the next. Each call of `loop_time` runs that many repetitions
/// and returns the time, in the unit of `threshold`.
///
/// The count before an interrupted loop is not enough: only a loop whose second run reaches the
/// threshold, too, ends the search.
pub fn repetitions(threshold: f64, mut loop_time: impl FnMut(u64) -> f64) -> u64 {
    let mut count = 1;
    while count < MOST {
        if loop_time(count) >= threshold && loop_time(count) >= threshold {
            break;
        }
        count *= 2;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_until_the_threshold() {
        let mut ran = 0;
        let count = repetitions(100.0, |count| {
            ran += count;
            count as f64 * 3.0
        });
        assert_eq!(count, 64);
        assert_eq!(ran, 1 + 2 + 4 + 8 + 16 + 32 + 64 + 64);
    }

    /// An interrupt in a short loop must not pass for a long loop.
    #[test]
    fn one_interrupted_loop_does_not_end_it() {
        let mut interrupted = false;
        let count = repetitions(100.0, |count| {
            let extra = if count == 4 && !interrupted { 1000.0 } else { 0.0 };
            interrupted |= count == 4;
            count as f64 + extra
        });
        assert_eq!(count, 128);
        assert_eq!(repetitions(1.0, |_| 0.0), MOST);
    }
}

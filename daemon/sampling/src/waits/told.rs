//! Makes the waits that are told of a thread add up to its times, which the sampler counts exactly.
//!
//! The sampler draws some waits at random and weighs them, so their sum differs from the time for
//! which the thread was blocked: by some ten percent for the hundreds of waits of a minute. At each
//! drain the difference becomes due, and is added to the thread's next waits, or taken from them.

use super::{CountedWait, GOES_ON_NS};
use abi::{ThreadState, WaitLine};
use std::collections::HashMap;

/// Largest part of a wait's own time by which it makes up for others. A larger part would give one
/// short wait the time of many.
const DUE_PART: f64 = 0.5;

/// What was told of threads, by their numbers in the root namespace. Times are in ns.
#[derive(Default)]
pub struct AllTold(HashMap<u32, Told>);

#[derive(Clone, Copy, Default)]
struct Told {
    /// [`WaitLine::born_ns`] of the thread's line; 0: it was not seen yet.
    born_ns: u64,
    /// Time blocked that was told, since the line began.
    told_ns: u64,
    /// Time blocked that was not told yet; less than 0: what was told too much.
    due_ns: i64,
}

impl AllTold {
    /// A wait with what it makes up for.
    pub fn with_due<'a>(&mut self, wait: CountedWait<'a>) -> CountedWait<'a> {
        if wait.blocked_ns == 0 {
            return wait;
        }
        let told = self.0.entry(wait.stack.record.root_tid).or_default();
        let own_ns = wait.blocked_ns.saturating_mul(wait.weight);
        let most = (own_ns as f64 * DUE_PART) as i64;
        let due_ns = told.due_ns.clamp(-most, most);
        told.due_ns -= due_ns;
        let all_ns = own_ns.saturating_add(wait.owed_ns).saturating_add_signed(due_ns);
        told.told_ns = told.told_ns.saturating_add(all_ns);
        CountedWait { due_ns, ..wait }
    }

    /// Compares what was told with the times of threads, when all waits up to `now_ns` are told.
    pub fn compare(&mut self, lines: &[WaitLine], now_ns: u64) {
        let mut still = HashMap::with_capacity(self.0.len());
        for line in lines {
            let Some(mut told) = self.0.remove(&line.tid) else { continue };
            let waited_ns = now_ns.saturating_sub(line.since_ns);
            let goes_on = line.state == ThreadState::Blocked as u16
                && line.woken_ns == 0
                && waited_ns >= GOES_ON_NS;
            let blocked_ns = line.blocked_ns + if goes_on { waited_ns } else { 0 };
            if told.born_ns != 0 && told.born_ns != line.born_ns {
                told.told_ns = blocked_ns; // another thread, or a line that began anew
            }
            told.born_ns = line.born_ns;
            told.due_ns = blocked_ns.cast_signed().saturating_sub(told.told_ns.cast_signed());
            still.insert(line.tid, told);
        }
        self.0 = still;
    }
}

#[cfg(test)]
mod tests {
    use super::super::without_stack;
    use super::*;
    use abi::StackRecord;

    const DRAIN_NS: u64 = 10_000_000_000;

    /// A thread that waits for 5 ms, of which one of 40 waits was told, had 53 s of 60.
    #[test]
    fn the_waits_of_a_thread_add_up_to_its_times() {
        let mut random = fastrand::Rng::with_seed(3);
        let (mut all, mut sum_ns, mut blocked_ns) = (AllTold::default(), 0_u64, 0_u64);
        let stack = without_stack(StackRecord { root_tid: 7, ..StackRecord::EMPTY });
        for drain in 1..=20 {
            for _ in 0..1000 {
                let wait_ns = 4_000_000 + random.u64(..2_000_000);
                blocked_ns += wait_ns;
                if random.u32(..40) == 0 {
                    let blocked_ns = wait_ns;
                    let wait = CountedWait { weight: 40, blocked_ns, ..CountedWait::of(&stack) };
                    let wait = all.with_due(wait);
                    sum_ns += wait.value(wait.blocked_ns, 0, 0, wait.due_ns).weight;
                }
            }
            let line = WaitLine { tid: 7, born_ns: 1, blocked_ns, ..WaitLine::default() };
            all.compare(&[line], drain * DRAIN_NS);
        }
        let ratio = sum_ns as f64 / blocked_ns as f64;
        assert!((ratio - 1.0).abs() < 0.02, "{ratio}");
    }

    #[test]
    fn a_line_that_begins_anew_owes_nothing() {
        let mut all = AllTold::default();
        let stack = without_stack(StackRecord { root_tid: 7, ..StackRecord::EMPTY });
        let wait = |blocked_ns| CountedWait { blocked_ns, ..CountedWait::of(&stack) };
        let line =
            |born_ns, blocked_ns| WaitLine { tid: 7, born_ns, blocked_ns, ..WaitLine::default() };
        assert_eq!(all.with_due(wait(100)).due_ns, 0);
        all.compare(&[line(1, 1000)], DRAIN_NS);
        assert_eq!(all.with_due(wait(100)).due_ns, 50, "a part of the 900 that are due");
        all.compare(&[line(2, 10)], 2 * DRAIN_NS);
        assert_eq!(all.with_due(wait(100)).due_ns, 0);
        all.compare(&[], 3 * DRAIN_NS);
        assert!(all.0.is_empty(), "threads that are gone are forgotten");
    }
}

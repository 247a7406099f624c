//! Work on all processors, with results in the order of the tasks.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;

/// Most tasks that a processor takes at once: to hand over each by itself takes longer than many of
/// them do.
const TOGETHER_MAX: usize = 64;
/// A processor takes one more at once for so many tasks that were taken for each: the first are the
/// longest.
const TURNS: usize = 32;

/// Works on all `tasks`, one on each processor at a time, and hands over the results in the order
/// of the tasks. The total time is shortest if the longest tasks come first. A result that is ready
/// before its turn is kept in memory, so results should be small.
pub fn each<'a, T: Sync, R: Send>(
    tasks: &[&'a T],
    work: impl Fn(&'a T) -> R + Sync,
    hand_over: impl FnMut(R),
) {
    each_of(tasks, usize::MAX, work, hand_over);
}

/// As [`each`], with a limit on the number of tasks at a time, for tasks that hold much memory.
pub fn each_of<'a, T: Sync, R: Send>(
    tasks: &[&'a T],
    at_once: usize,
    work: impl Fn(&'a T) -> R + Sync,
    mut hand_over: impl FnMut(R),
) {
    let threads =
        std::thread::available_parallelism().map_or(1, NonZero::get).min(tasks.len()).min(at_once);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (made, results) = mpsc::sync_channel(threads);
        for _ in 0..threads {
            let (made, next, work) = (made.clone(), &next, &work);
            scope.spawn(move || {
                loop {
                    let together = (next.load(Relaxed) / (threads * TURNS)).clamp(1, TOGETHER_MAX);
                    let first = next.fetch_add(together, Relaxed);
                    let mine = tasks.iter().skip(first).take(together);
                    let results: Vec<R> = mine.map(|task| work(task)).collect();
                    if results.is_empty() || made.send((first, results)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(made);
        let mut early = BTreeMap::new();
        let mut turn = 0;
        for (first, some) in results {
            early.insert(first, some);
            while let Some(some) = early.remove(&turn) {
                turn += some.len();
                some.into_iter().for_each(&mut hand_over);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_comes_in_order() {
        let numbers: Vec<u64> = (0..1000).collect();
        let tasks: Vec<&u64> = numbers.iter().collect();
        let mut made = Vec::new();
        let work = |number: &u64| {
            // The first is made last.
            std::thread::sleep(std::time::Duration::from_micros(if *number == 0 {
                20_000
            } else {
                number % 7
            }));
            (*number, number * 2)
        };
        each(&tasks, work, |result| made.push(result));
        assert_eq!(made, numbers.iter().map(|number| (*number, number * 2)).collect::<Vec<_>>());
        each(&[], |number: &u64| *number, |_| panic!("nothing was asked for"));
    }

    #[test]
    #[should_panic(expected = "a scoped thread panicked")]
    fn who_panics_is_heard() {
        each(&[&1, &2], |number: &u64| assert_eq!(*number, 1), |()| {});
    }
}

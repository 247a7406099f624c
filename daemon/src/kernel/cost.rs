//! What one sample costs on this machine, measured.

use super::counters::Counters;
use crate::event::PlannedEvent;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// Samples per second while measuring: many more than clock ticks, and few enough that the kernel does not find perf too dear
/// (kernel.perf_cpu_time_max_percent, 25 % of a CPU, would be 50 us a sample).
const RATE: u64 = 5000;
const TIME: Duration = Duration::from_millis(150);
/// Fewer interruptions than this say nothing.
const GAPS_MIN: usize = 100;
/// A step of the clock longer than this is an interruption: reading the clock takes 20 to 60 ns, an interrupt 500 at least.
const GAP_NS: u128 = 300;

/// The time that one overflow of the event takes from the program it interrupts, in ns: interrupt, sampler and return. None when this CPU
/// was too busy to tell.
///
/// A thread reads the clock without pause while the event overflows there; the median of the gaps is the cost. The median, because
/// clock ticks and other tasks leave gaps too, but fewer.
pub fn ns_per_sample(plan: &PlannedEvent, units_per_second: u64, program: RawFd, cpu: usize) -> Option<f64> {
    let plan = PlannedEvent { period: (units_per_second / RATE).max(1), mux: None, ..plan.clone() };
    let measured = std::thread::Builder::new().name("calibrate".into()).spawn(move || {
        let mut here = nix::sched::CpuSet::new();
        here.set(cpu).ok()?;
        nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &here).ok()?;
        let events = [plan];
        let mut counters = Counters::open(&events, &[program], &[cpu]).ok()?;
        counters.start(&events).ok()?;
        let gaps = gaps();
        counters.stop();
        median(gaps)
    });
    measured.ok()?.join().ok()?
}

fn gaps() -> Vec<u128> {
    let mut gaps = Vec::with_capacity(4096);
    let begin = Instant::now();
    let mut last = begin;
    while last.duration_since(begin) < TIME {
        let now = Instant::now();
        let step = now.duration_since(last).as_nanos();
        if step > GAP_NS {
            gaps.push(step);
        }
        last = now;
    }
    gaps
}

fn median(mut gaps: Vec<u128>) -> Option<f64> {
    gaps.sort_unstable();
    gaps.get(gaps.len() / 2).filter(|_| gaps.len() >= GAPS_MIN).map(|gap| *gap as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_enough_gaps() {
        let mut gaps = vec![14_000; 150];
        gaps.extend([900_000; 60]);
        assert_eq!(median(gaps), Some(14_000.0));
        assert_eq!(median(vec![14_000; GAPS_MIN - 1]), None);
    }
}

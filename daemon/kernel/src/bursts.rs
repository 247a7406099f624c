//! Bursts of snapshots: a few interrupts shortly after each other on one CPU, so that registers of
//! one thread are known at two moments of one activation of a loop.
//!
//! The time between them is another in each burst. With one time, a loop that begins anew after
//! nearly as long would seem to go round slowly, as a wheel does under a stroboscope.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use perf_event::Counter;

use super::counters::{CPU_CLOCK, open_sampled, perf_event_ioc_period};

nix::ioctl_write_int_bad!(perf_event_ioc_refresh, nix::request_code_none!(b'$', 2));

/// Interrupts of a burst. More give more pairs of snapshots for each call of the kernel, but pairs
/// of one moment of the program.
const INTERRUPTS: i32 = 8;
/// Snapshots that a CPU takes with its samples for each burst: bursts are a quarter of all
/// snapshots.
const SNAPSHOTS_APART: u32 = 3 * INTERRUPTS as u32;
/// Shortest and longest time between two interrupts, in ns. After a shorter one the interrupt is a
/// large part of the time; after a longer one few loops are in the same activation.
const PERIOD: (f64, f64) = (50_000.0, 500_000.0);

/// The events of bursts, one for each CPU, which count only during bursts.
pub struct Bursts {
    cpus: BTreeMap<usize, OnCpu>,
    program: RawFd,
}

struct OnCpu {
    counter: Counter,
    /// Snapshots since the last burst.
    snapshots: u32,
}

impl Bursts {
    /// No CPU yet; `program` takes a snapshot.
    pub fn new(program: RawFd) -> Self {
        Self { cpus: BTreeMap::new(), program }
    }

    /// Opens the event of a CPU.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn add(&mut self, cpu: usize) -> io::Result<()> {
        let counter = open_sampled(CPU_CLOCK, cpu, PERIOD.1 as u64, self.program)?;
        self.cpus.insert(cpu, OnCpu { counter, snapshots: 0 });
        Ok(())
    }

    /// Closes the event of a CPU.
    pub fn remove(&mut self, cpu: usize) {
        self.cpus.remove(&cpu);
    }

    /// Notes so many snapshots of a CPU, and begins a burst there if there were enough.
    pub fn taken(&mut self, cpu: usize, snapshots: u32) {
        let Some(on) = self.cpus.get_mut(&cpu) else { return };
        on.snapshots = on.snapshots.saturating_add(snapshots);
        if on.snapshots >= SNAPSHOTS_APART {
            on.snapshots = 0;
            let descriptor = on.counter.as_raw_fd();
            let period = random_period();
            // SAFETY: the descriptor is an open perf event's, and the pointer is to a live u64 that
            // the kernel only reads. An event that has begun ends itself after its interrupts.
            let _ = unsafe {
                perf_event_ioc_period(descriptor, &raw const period)
                    .and_then(|_| perf_event_ioc_refresh(descriptor, INTERRUPTS))
            };
        }
    }
}

/// A random period: each octave is as likely as any other.
fn random_period() -> u64 {
    let (shortest, longest) = PERIOD;
    (shortest * (longest / shortest).powf(fastrand::f64())) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_of_all_lengths() {
        let periods: Vec<u64> = (0..10_000).map(|_| random_period()).collect();
        assert!(periods.iter().all(|period| (50_000..=500_000).contains(period)));
        let short = periods.iter().filter(|period| **period < 158_114).count();
        assert!((4_700..5_300).contains(&short), "{short}");
    }
}

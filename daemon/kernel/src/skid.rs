//! Measures the skid of samples: whether a sample lands on the instruction that keeps the processor
//! waiting, or on one after it.
//!
//! An interrupt is taken when an instruction has retired, so out-of-order processors without
//! precise sampling show the instruction after the oldest one that was not yet retired. The skid of
//! this machine decides which instruction the time is charged to.

use super::counters::Counters;
use abi::{Entry, Space};
use code::skid::Skid;
use events::PlannedEvent;
use std::arch::asm;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// Samples per second while measuring. Together with [`TIME`] about 300 samples, three times as
/// many as the result needs.
const RATE: u64 = 5000;
/// Duration of the measurement, which delays the start.
const TIME: Duration = Duration::from_millis(60);
/// Rounds of the loop between two readings of the clock: about a millisecond. More end the
/// measurement late, fewer let reading the clock take a share of the samples.
const ROUNDS: u64 = 100_000;

/// Skid of an event's samples on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventSkid {
    /// Number of the event.
    pub event: usize,
    /// Distance from the instruction that stalls.
    pub distance: Skid,
    /// Samples of the loop.
    pub samples: u64,
}

/// Runs a loop whose time goes to one instruction on `cpu` while the event is sampled there;
/// [`found`] reads the result from the sampler's tables. Returns the address of that instruction;
/// None where the thread could not run there.
pub fn run(plan: &PlannedEvent, units_per_second: u64, program: RawFd, cpu: usize) -> Option<u64> {
    let plan = PlannedEvent { period: (units_per_second / RATE).max(1), mux: None, ..plan.clone() };
    let ran = std::thread::Builder::new().name("skid".into()).spawn(move || {
        let mut here = nix::sched::CpuSet::new();
        here.set(cpu).ok()?;
        nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &here).ok()?;
        let events = [plan];
        let mut counters = Counters::open(&events, &[program], &[cpu]).ok()?;
        counters.start(&events).ok()?;
        let begin = Instant::now();
        let mut stalls = 0;
        while begin.elapsed() < TIME {
            stalls = divide(ROUNDS);
        }
        counters.stop();
        Some(stalls)
    });
    ran.ok()?.join().ok()?
}

/// The skid that the loop's samples show. The loop's divisions are at the address `stalls` of this
/// process.
pub fn found(event: usize, entries: &[Entry], stalls: u64) -> Option<EventSkid> {
    let pid = std::process::id();
    let mine =
        |entry: &&Entry| matches!(entry.whose(), Space::Process { pid: whose, .. } if whose == pid);
    let mut counts = [0; LOOP.len()];
    for entry in entries.iter().filter(mine) {
        let offset = entry.pc().wrapping_sub(stalls);
        let instruction = LOOP.iter().position(|begin| *begin == offset);
        if let Some(count) = instruction.and_then(|at| counts.get_mut(at)) {
            *count += u64::from(entry.count);
        }
    }
    Skid::measured(&counts, 0).map(|distance| EventSkid {
        event,
        distance,
        samples: counts.iter().sum(),
    })
}

/// Begins of the loop's instructions, in bytes from the division on: the division, three additions,
/// and the two instructions that end a round.
#[cfg(target_arch = "x86_64")]
const LOOP: [u64; 6] = [0, 3, 7, 11, 15, 18];
#[cfg(target_arch = "aarch64")]
const LOOP: [u64; 6] = [0, 4, 8, 12, 16, 20];

/// A loop of dependent divisions, each followed by work that takes a fraction of its time. Returns
/// the address of the division.
#[cfg(target_arch = "x86_64")]
fn divide(rounds: u64) -> u64 {
    let at: u64;
    // SAFETY: registers only. rdx:rax divided by 1 is rax, without remainder: neither changes, and
    // the quotient fits.
    unsafe {
        asm!(
            "lea {at}, [rip + 2f]",
            "2:",
            "div rcx",
            "lea r8, [r8 + 1]",
            "lea r8, [r8 + 1]",
            "lea r8, [r8 + 1]",
            "dec r9",
            "jnz 2b",
            at = out(reg) at,
            inout("r8") 0_u64 => _,
            inout("r9") rounds => _,
            inout("rax") 0xfedc_ba98_7654_3210_u64 => _,
            inout("rdx") 0_u64 => _,
            in("rcx") 1_u64,
            options(nomem, nostack),
        );
    }
    at
}

/// The loop of divisions for arm64, as for x86-64 above.
#[cfg(target_arch = "aarch64")]
fn divide(rounds: u64) -> u64 {
    let at: u64;
    // SAFETY: registers only.
    unsafe {
        asm!(
            "adr {at}, 2f",
            "2:",
            "udiv {value}, {value}, {one}",
            "add {work}, {work}, #1",
            "add {work}, {work}, #1",
            "add {work}, {work}, #1",
            "subs {rounds}, {rounds}, #1",
            "b.ne 2b",
            at = out(reg) at,
            value = inout(reg) 0xfedc_ba98_7654_3210_u64 => _,
            one = in(reg) 1_u64,
            work = inout(reg) 0_u64 => _,
            rounds = inout(reg) rounds => _,
            options(nomem, nostack),
        );
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_the_loop_tell_and_others_do_not() {
        let (at, pid) = (divide(10), std::process::id());
        let entries = |on_it: u32, behind: u32, later: u32| {
            [
                Entry::new(0, at, pid, on_it),
                Entry::new(0, at + LOOP[1], pid, behind),
                Entry::new(0, at + LOOP[3], pid, later),
                Entry::new(0, at + 4096, pid, 1000),
                Entry::new(0, at, pid + 1, 1000),
                Entry::new(0, at.wrapping_sub(1), pid, 1000),
            ]
        };
        let skid = |counts: (u32, u32, u32)| {
            found(0, &entries(counts.0, counts.1, counts.2), at)
                .map(|found| (found.distance.instructions(), found.samples))
        };
        assert_eq!(skid((10, 285, 5)), Some((1, 300)));
        assert_eq!(skid((280, 10, 10)), Some((0, 300)));
        assert_eq!(skid((100, 110, 90)), None, "all over the loop");
        assert_eq!(skid((0, 9, 0)), None, "too few");
        assert_eq!(found(0, &[], at), None);
    }
}

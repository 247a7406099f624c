//! Clocks. No other module asks for the time.

use nix::time::{ClockId, clock_gettime};
use std::time::{SystemTime, UNIX_EPOCH};

/// CLOCK_MONOTONIC in ns: the time base of the kernel's records.
pub fn monotonic_ns() -> u64 {
    nanoseconds(ClockId::CLOCK_MONOTONIC)
}

/// CPU time that this process has used, in ns, all threads together.
pub fn process_cpu_ns() -> u64 {
    nanoseconds(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time that the calling thread has used, in ns.
pub fn thread_cpu_ns() -> u64 {
    nanoseconds(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// CLOCK_MONOTONIC in ns at a time of CLOCK_REALTIME (seconds since 1970 and nanoseconds, as files
/// have them); 0 for a time before the machine started. Wrong by as much as the clock was set
/// meanwhile.
pub fn monotonic_of_real(seconds: i64, nanoseconds_of: i64) -> u64 {
    let now = nanoseconds(ClockId::CLOCK_REALTIME);
    let then = u64::try_from(seconds).unwrap_or(0).saturating_mul(1_000_000_000);
    let age = now.saturating_sub(then.saturating_add(u64::try_from(nanoseconds_of).unwrap_or(0)));
    monotonic_ns().saturating_sub(age)
}

/// Seconds since 1970, UTC.
pub fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// CLOCK_REALTIME and CLOCK_BOOTTIME in ns, as of one moment, or nearly so: of two readings with a
/// long time between them another one is taken. Nobody can set the second, and it goes on while the
/// machine is suspended.
pub fn both_ns() -> (u64, u64) {
    const TRIES: u32 = 4;
    const APART_NS: u64 = 10_000_000;
    let mut both = (0, 0);
    for _ in 0..TRIES {
        let before = nanoseconds(ClockId::CLOCK_BOOTTIME);
        both = (nanoseconds(ClockId::CLOCK_REALTIME), nanoseconds(ClockId::CLOCK_BOOTTIME));
        if both.1.saturating_sub(before) < APART_NS {
            break;
        }
    }
    both
}

fn nanoseconds(clock: ClockId) -> u64 {
    // These clocks exist on every kernel since 2.6.12; a result of 0 would only make every mapping
    // look old.
    clock_gettime(clock)
        .map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

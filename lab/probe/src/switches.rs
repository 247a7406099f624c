//! The kernel's counters of this thread, and its clocks.

use std::time::Duration;

/// The time of a clock of the kernel; zero where there is no such clock.
fn clock(id: libc::clockid_t) -> Duration {
    let mut at = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `at` is a timespec that the call may write.
    let failed = unsafe { libc::clock_gettime(id, &raw mut at) } != 0;
    if failed {
        return Duration::ZERO;
    }
    Duration::new(u64::try_from(at.tv_sec).unwrap_or(0), u32::try_from(at.tv_nsec).unwrap_or(0))
}

/// Time since boot, from a clock that is never adjusted.
#[must_use]
pub fn raw_time() -> Duration {
    clock(libc::CLOCK_MONOTONIC_RAW)
}

/// Time since boot, of the clock that programs use.
#[must_use]
pub fn monotonic_time() -> Duration {
    clock(libc::CLOCK_MONOTONIC)
}

/// CPU time of this thread.
#[must_use]
pub fn thread_time() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// A system call that does nothing: the number of the parent process.
pub fn system_call() {
    // SAFETY: getppid(2) takes nothing and changes nothing.
    unsafe { libc::syscall(libc::SYS_getppid) };
}

/// Number of involuntary context switches of this thread (`ru_nivcsw`, getrusage(2)).
#[must_use]
pub fn preemptions() -> i64 {
    // SAFETY: a structure of integers may be all zero.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is an rusage that the call may write.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_nivcsw
}

/// Binds this thread to the CPU it runs on, so that it does not lose its caches. Best effort: where
/// the kernel refuses, measurements are noisier.
pub fn stay() {
    // SAFETY: a CPU set is a structure of integers, may be all zero, and is written by CPU_SET
    // alone; the calls read it.
    unsafe {
        let cpu = libc::sched_getcpu();
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if let Ok(cpu) = usize::try_from(cpu)
            && cpu < libc::CPU_SETSIZE as usize
        {
            libc::CPU_SET(cpu, &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
        }
    }
}

//! The processor's own clock, read by one instruction: the time stamp counter on x86-64, the
//! virtual counter on arm64. It ticks at a constant rate (Intel 64 and IA-32 manual, volume 3,
//! 19.17.1; Arm ARM, D12.1), whatever the frequency of the core.

use std::arch::asm;

/// The counter. The read may be executed before earlier instructions are done, or after later ones
/// have begun.
#[must_use]
pub fn read() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: RDTSC only reads the counter; Linux leaves it to user code (CR4.TSD clear).
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(target_arch = "aarch64")]
    {
        let ticks: u64;
        // SAFETY: Linux leaves CNTVCT_EL0 to user code (or emulates the read).
        unsafe { asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
        ticks
    }
}

/// The counter, read when all earlier instructions are done and before any later one begins.
#[must_use]
pub fn read_fenced() -> u64 {
    fence();
    let ticks = read();
    fence();
    ticks
}

/// Waits until all earlier instructions are done. LFENCE does so on Intel's processors (manual,
/// volume 2), and on AMD's where Linux made it serialising (`X86_FEATURE_LFENCE_RDTSC`).
pub fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: LFENCE has no operands, and no effect but order.
    unsafe {
        asm!("lfence", options(nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: ISB has no operands, and no effect but order.
    unsafe {
        asm!("isb", options(nostack, preserves_flags));
    }
}

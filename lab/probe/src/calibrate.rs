//! Procedures whose first instruction is known, to calibrate uprobes.
//!
//! The kernel either emulates the instruction under a uprobe, or executes it out of line and traps
//! after it (`arch_uprobe_analyze_insn` in arch/x86/kernel/uprobes.c and
//! arch/arm64/kernel/probes/uprobes.c, Linux 6.18). On a virtual machine the trap costs several
//! times as much as all the rest of an event.

use std::arch::naked_asm;

/// An empty procedure whose first instruction the kernel emulates.
#[unsafe(naked)]
pub extern "C" fn emulated() {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("push rbx", "pop rbx", "ret");
    #[cfg(target_arch = "aarch64")]
    naked_asm!("b 1f", "1:", "ret");
}

/// An empty procedure whose first instruction the kernel executes out of line.
#[unsafe(naked)]
pub extern "C" fn stepped() {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("mov rax, rdi", "ret");
    #[cfg(target_arch = "aarch64")]
    naked_asm!("mov x0, x0", "ret");
}

/// The addresses of both procedures.
#[must_use]
pub fn addresses() -> [usize; 2] {
    [emulated as *const () as usize, stepped as *const () as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_do_nothing_and_lie_apart() {
        emulated();
        stepped();
        let [a, b] = addresses();
        assert_ne!(a, b);
    }
}

//! Frames that a kernel pushes for a signal handler, where no table describes them: programs with
//! musl, Go, and arm64's vDSO.

use crate::registers::{Machine, Registers};
use crate::stack::{Missing, Stack};

/// Largest number of bytes of code that [`is_trampoline`] looks at.
pub const TRAMPOLINE_BYTES_MAX: usize = 9;

/// Distances from an instruction of a trampoline, and from the one behind it, to the trampoline's
/// first one, by machine and encoding.
pub const BACK_IN_TRAMPOLINE: [i64; 6] = [0, -4, -5, -7, -8, -9];

/// Offset of `uc_mcontext` in the kernel's `struct ucontext` of x86-64
/// (arch/x86/include/uapi/asm/sigcontext.h). When the trampoline runs, the stack pointer points to
/// that struct (`struct rt_sigframe`, whose first word the handler's return has popped).
const X86_64_CONTEXT: u64 = 40;
/// DWARF numbers of the registers at the start of x86-64's `struct sigcontext`; rip follows.
const X86_64_ORDER: [u8; 16] = [8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7];
/// Offset of `regs` in arm64's `struct rt_sigframe`: siginfo (128 bytes), `uc_mcontext` in
/// `struct ucontext` (176), `fault_address` (8). x0 to x30, sp and pc follow
/// (arch/arm64/include/uapi/asm/{ucontext,sigcontext}.h).
const AARCH64_CONTEXT: u64 = 128 + 176 + 8;

/// Whether `code` begins with the system call `rt_sigreturn`, which only the code that a signal
/// handler returns to makes.
pub fn is_trampoline(machine: Machine, code: &[u8]) -> bool {
    match machine {
        // mov $15, %rax, or mov $15, %eax; syscall
        // Its programs return to the vdso's trampolines or to glibc's, which tables cover.
        Machine::X86 => false,
        Machine::X86_64 => {
            code.starts_with(&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05])
                || code.starts_with(&[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05])
        }
        // mov x8, #139; svc #0
        Machine::Aarch64 => code.starts_with(&[0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4]),
    }
}

/// Bytes of code that [`is_context_start`] looks at.
pub const CONTEXT_START_BYTES: usize = 3;

/// Whether a procedure with this code begins a context of its own: its first instruction loads the
/// stack pointer from a register (x86-64: `mov %rbx, %rsp`), so nothing can have called it.
pub fn is_context_start(machine: Machine, code: &[u8]) -> bool {
    machine == Machine::X86_64 && code.starts_with(&[0x48, 0x89, 0xdc])
}

/// The registers that the signal interrupted, from the trampoline's.
pub fn interrupted(registers: &Registers, stack: &Stack<'_>) -> Result<Registers, Missing> {
    let begin = registers.stack_pointer().ok_or(Missing::NoStack)?;
    let machine = registers.machine();
    let (context, count) = match machine {
        Machine::X86 => return Err(Missing::NoStack),
        Machine::X86_64 => (X86_64_CONTEXT, 16),
        Machine::Aarch64 => (AARCH64_CONTEXT, 32),
    };
    let context = begin.wrapping_add(context);
    let word = |place: u8| stack.word(context.wrapping_add(u64::from(place) * 8));
    let mut before = Registers::new(machine, word(count)?);
    for place in 0..count {
        let number = match machine {
            Machine::X86_64 => X86_64_ORDER.get(usize::from(place)).copied().unwrap_or(u8::MAX),
            Machine::X86 | Machine::Aarch64 => place,
        };
        before.set(number, Some(word(place)?));
    }
    Ok(before)
}

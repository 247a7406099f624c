//! The symbols to which code with events refers: the position, the origin of distances, and the
//! procedure for a full chunk.

use crate::chunks;
use core::arch::{asm, global_asm};

// The way out keeps every register but r11, and the flags are dead. The Rust code uses no register
// that x86-64 processors do not all have, so the upper halves of vector registers stay.
global_asm!(
    ".section .tdata,\"awT\",@progbits",
    ".balign 8",
    ".globl dcpi_trace_position",
    ".hidden dcpi_trace_position",
    ".type dcpi_trace_position, @object",
    "dcpi_trace_position: .quad {unset}",
    ".size dcpi_trace_position, 8",
    ".section .tbss,\"awT\",@nobits",
    ".balign 8",
    "dcpi_trace_slot: .zero 8",
    ".text",
    ".globl dcpi_trace_origin",
    ".hidden dcpi_trace_origin",
    "dcpi_trace_origin:",
    ".globl dcpi_trace_full",
    ".hidden dcpi_trace_full",
    ".type dcpi_trace_full, @function",
    "dcpi_trace_full:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbp, 0",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    ".irp register, rax, rcx, rdx, rsi, rdi, r8, r9, r10",
    "push \\register",
    ".endr",
    "sub rsp, 256",
    "and rsp, -16",
    ".irp number, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "movaps [rsp + 16 * \\number], xmm\\number",
    ".endr",
    "mov rdi, r11",
    "call {full}",
    "mov r11, rax",
    "mov fs:dcpi_trace_position@tpoff, r11",
    ".irp number, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "movaps xmm\\number, [rsp + 16 * \\number]",
    ".endr",
    "lea rsp, [rbp - 64]",
    ".irp register, r10, r9, r8, rdi, rsi, rdx, rcx, rax",
    "pop \\register",
    ".endr",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".size dcpi_trace_full, . - dcpi_trace_full",
    full = sym chunks::full,
    unset = const UNSET,
);

/// The position of a thread that has not begun: it is full, and no address, so that no register
/// has it by chance.
const UNSET: u64 = 0x8dc9_0000_0000_0004;

/// The thread's position: where its next event goes, outside code with events.
pub fn position() -> usize {
    let position;
    // SAFETY: reads a variable of this thread.
    unsafe {
        asm!("mov {}, fs:dcpi_trace_position@tpoff", out(reg) position,
            options(nostack, readonly, preserves_flags));
    }
    position
}

/// Sets the thread's position.
pub fn set_position(position: usize) {
    // SAFETY: writes a variable of this thread.
    unsafe {
        asm!("mov fs:dcpi_trace_position@tpoff, {}", in(reg) position,
            options(nostack, preserves_flags));
    }
}

/// Address of the thread's slot; 0 where it has none.
pub fn slot() -> usize {
    let slot;
    // SAFETY: reads a variable of this thread.
    unsafe {
        asm!("mov {}, fs:dcpi_trace_slot@tpoff", out(reg) slot,
            options(nostack, readonly, preserves_flags));
    }
    slot
}

/// Sets the address of the thread's slot.
pub fn set_slot(slot: usize) {
    // SAFETY: writes a variable of this thread.
    unsafe {
        asm!("mov fs:dcpi_trace_slot@tpoff, {}", in(reg) slot,
            options(nostack, preserves_flags));
    }
}

/// Bytes from the program's ELF header to the origin of events' distances.
pub fn origin_offset() -> u64 {
    let (origin, begin): (usize, usize);
    // SAFETY: computes two addresses; the linker defines the second symbol.
    unsafe {
        asm!("lea {}, [rip + dcpi_trace_origin]", "lea {}, [rip + __ehdr_start]",
            out(reg) origin, out(reg) begin, options(nostack, nomem, preserves_flags));
    }
    origin.wrapping_sub(begin) as u64
}

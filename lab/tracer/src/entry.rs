//! What code with events refers to: the position, the origin of distances, and the way out when a
//! chunk is full.

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
    "push rax",
    "push rcx",
    "push rdx",
    "push rsi",
    "push rdi",
    "push r8",
    "push r9",
    "push r10",
    "sub rsp, 256",
    "and rsp, -16",
    "movaps [rsp], xmm0",
    "movaps [rsp + 16], xmm1",
    "movaps [rsp + 32], xmm2",
    "movaps [rsp + 48], xmm3",
    "movaps [rsp + 64], xmm4",
    "movaps [rsp + 80], xmm5",
    "movaps [rsp + 96], xmm6",
    "movaps [rsp + 112], xmm7",
    "movaps [rsp + 128], xmm8",
    "movaps [rsp + 144], xmm9",
    "movaps [rsp + 160], xmm10",
    "movaps [rsp + 176], xmm11",
    "movaps [rsp + 192], xmm12",
    "movaps [rsp + 208], xmm13",
    "movaps [rsp + 224], xmm14",
    "movaps [rsp + 240], xmm15",
    "mov rdi, r11",
    "call {full}",
    "mov r11, rax",
    "mov fs:dcpi_trace_position@tpoff, r11",
    "movaps xmm0, [rsp]",
    "movaps xmm1, [rsp + 16]",
    "movaps xmm2, [rsp + 32]",
    "movaps xmm3, [rsp + 48]",
    "movaps xmm4, [rsp + 64]",
    "movaps xmm5, [rsp + 80]",
    "movaps xmm6, [rsp + 96]",
    "movaps xmm7, [rsp + 112]",
    "movaps xmm8, [rsp + 128]",
    "movaps xmm9, [rsp + 144]",
    "movaps xmm10, [rsp + 160]",
    "movaps xmm11, [rsp + 176]",
    "movaps xmm12, [rsp + 192]",
    "movaps xmm13, [rsp + 208]",
    "movaps xmm14, [rsp + 224]",
    "movaps xmm15, [rsp + 240]",
    "lea rsp, [rbp - 64]",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rdi",
    "pop rsi",
    "pop rdx",
    "pop rcx",
    "pop rax",
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

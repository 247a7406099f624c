//! Call stacks of unmodified programs, from a snapshot of a thread's registers and a copy of part
//! of its stack.
//!
//! The sampler copies registers and a window of the stack in the kernel; this crate walks them
//! later, in user space, with the unwind tables that every program has for exceptions and
//! debuggers. Nothing is asked of the program, which need not even live any more.
//!
//! # The walk
//!
//! A table of a file says, for each address of its code, how to compute the CFA (the value of the
//! stack pointer in the caller), where the return address is, and where the caller's values of
//! registers are. One step computes these, and the walk repeats the step until an [`End`]:
//!
//! 1. [`Space::code_at`] says which file the address is in. For a return address the address
//!    before it decides: a call may be the last instruction of its procedure.
//! 2. The index that the program header `PT_GNU_EH_FRAME` names is searched for the procedure's
//!    entry, piece by piece: about 20 reads of 8 bytes in pages that are kept. Nothing else of the
//!    table is read, so a program with millions of rows costs as little as a small one. Files
//!    without an index (static programs) have their `.eh_frame` scanned once. Programs of Go have a
//!    table of their own (`go_table.rs`), which is asked first. Stubs of a PLT that no entry
//!    covers are told by their instructions (`plt.rs`).
//! 3. gimli interprets the entry up to the address. The resulting rule is kept.
//! 4. The rule is applied. Only the copied stack and known registers are read. A register without
//!    a rule keeps its value, also one that procedures may change: a caller whose rule names such
//!    a register at a call knows that this procedure does not change it.
//! 5. The return address must be in executable code of which the caller of this crate knows, and
//!    must follow a call instruction ([`Proof`]); otherwise the walk ends there.
//!
//! **No frame is guessed.** A walk reaches the thread's first frame, or says by its [`End`] why it
//! does not. Frame pointers are followed only where [`Code`] says that the code keeps them.
//!
//! # What it assumes
//!
//! - The file is the one that is mapped. The table of another build is wrong; the check of calls
//!   detects this within a frame or two.
//! - Tables say the truth at every instruction (`-fasynchronous-unwind-tables`, the default of
//!   both machines).
//! - Frame records are complete where frame pointers are known to be kept. The usual first and last
//!   instructions, where the record is still or again the caller's, are recognised; elsewhere in a
//!   procedure that has no record of its own (leaves, Go's checks of the stack), its caller's frame
//!   is missing.
//!
//! # Go
//!
//! A goroutine's stack is whole when the walk reaches `runtime.goexit`, which the table marks as
//! first. Where Go's runtime changes to a thread's other stack (`systemstack`, `mcall`,
//! `morestack`, `asmcgocall`, and before calls of the vDSO), the walk ends at the procedure that
//! changed: on this stack it is the first, and the other stack is in no window. What leads to that
//! other stack is learnt where the code says it (`goroutine.rs`). A callback from C
//! returns to the goroutine's stack; the walk follows that stack, whose frames do not have C's
//! among them.
//!
//! # What it does not read
//!
//! `.debug_frame`, compressed or not; indexes in other encodings than signed and relative to the
//! index; entries larger than 256 KiB; 32-bit programs of arm; big-endian ones; SFrame; tables of
//! Go before 1.18 and of its 32-bit programs.
//!
//! # Sources
//!
//! - Tables: Linux Standard Base 5.0, "Exception Frames" and "DWARF Exception Header Encoding";
//!   DWARF 5, section 6.4 (call frame information), section 2.5 (expressions).
//! - x86: System V ABI, Intel386 supplement 1.1, sections 2.2 (calls) and 2.5 (numbers of
//!   registers).
//! - x86-64: System V ABI, AMD64 supplement, sections 3.2 (calls, red zone), 3.6.2 (numbers of
//!   registers), 3.7 (unwinding); Intel SDM, volume 2 (calls).
//! - arm64: AAPCS64, sections 6.1 and 6.2.3 (frame records); "DWARF for the Arm 64-bit
//!   Architecture", section 4 (numbers of registers, signed return addresses).
//! - Signal frames: `struct rt_sigframe` of each machine in the kernel's source.
//!
//! # Bounds
//!
//! A walk has at most [`FRAMES_MAX`] frames and reads and decodes at most 32 MiB of tables, then
//! it ends as [`End::Costly`]. Pages of files take 4 MiB, 1 MiB of one file; rules, rows and return
//! addresses are 16384, 65536 and 65536. Files and stacks are strangers': no bytes make it panic.

#![forbid(unsafe_code)]

mod call;
mod expression;
mod frame;
mod go_table;
mod goroutine;
mod headers;
mod lookup;
mod pages;
mod plt;
mod prologue;
mod registers;
mod rule;
mod rules;
mod signal;
mod simple;
mod source;
mod space;
mod stack;
mod step;
mod table;
mod walk;

pub use frame::{End, FRAMES_MAX, Frame, Proof};
pub use goroutine::{Goroutine, Way, labels_at, way_in};
pub use registers::{Machine, Registers};
pub use simple::{
    BLOCK_BYTES, Base, CHECKED_BEFORE, CHECKED_BYTES, EXTENT_RULES_MAX, Extent, FRAME_LOST,
    FrameRule, Learnt, code_check,
};
pub use source::ReadAt;
pub use space::{Code, GeneratedFrame, Image, Space};
pub use stack::Window;
pub use walk::{Figures, Unwinder};

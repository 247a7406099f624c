//! A thread's state, reached by translated code through %gs, and its layout.
//!
//! ```text
//! %gs + 0        registers, scratch, a signal that waits      (private memory)
//!     + 0x10000  which system calls the engine looks at       (private)
//!     ...        stack of the engine's own code               (private)
//!     + 0x100000 two tables of indirect branches' targets     (private)
//!     + 0x400000 counters                                     (shared: the area's file)
//! ```

use crate::memory::{load, store};
use crate::system::number;

/// Offset of a field of a context.
pub type Field = i32;

/// Registers by number (rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15), 8 bytes each, while
/// the engine's own code runs.
pub const REGISTERS: Field = 0;
pub const FLAGS: Field = 0x80;
/// Why translated code was left; zero while it runs.
pub const EXIT: Field = 0x88;
/// Address that an indirect branch leads to.
pub const TARGET: Field = 0x90;
pub const ENGINE_STACK: Field = 0x98;
/// Address of this context.
pub const SELF: Field = 0xa0;
/// Address of `blockcount_exit`.
pub const EXIT_CODE: Field = 0xa8;
/// Registers of the program that translated code has taken for itself.
pub const SCRATCH: Field = 0xb0;
pub const SCRATCH_2: Field = 0xb8;
/// Address of translated code at which the thread goes on.
pub const RESUME: Field = 0xc0;
/// A signal that came while the engine's own code ran; zero without.
pub const PENDING: Field = 0xd0;
/// Signals blocked before that one.
pub const PENDING_MASK: Field = 0xd8;
/// The low halves of the vector registers; the engine's code touches nothing above.
pub const XMM: Field = 0x100;
/// `siginfo_t` of the waiting signal, 128 bytes.
pub const PENDING_INFO: Field = 0x200;
/// Registers that the system call of `unblock` clobbers: rax, rcx, rdx, rsi, rdi, r10, r11.
pub const AFTER: Field = 0x280;
/// Address at which `unblock` continues.
pub const AFTER_RESUME: Field = 0x2c0;
/// The mask that `unblock` sets.
pub const AFTER_MASK: Field = 0x2d0;
/// Address of the dispositions of signals.
pub const DISPOSITIONS: Field = 0x2e0;
/// Number of the thread's slot in the area.
pub const SLOT: Field = 0x2e8;
/// The signals of [`crate::signals::KEPT`] that the program believes to be blocked.
pub const BLOCKED: Field = 0x2f0;
/// `stack_t` as the program set it.
pub const SIGNAL_STACK: Field = 0x300;
/// Whether a handler may run on that stack.
pub const ON_SIGNAL_STACK: Field = 0x318;
/// rdi, rsi, rdx and rax of the program while an exec of the engine is tried.
pub const EXEC_REGISTERS: Field = 0x320;
/// Registers that [`EXEC_REGISTERS`] keeps, in its order.
pub const EXEC_KEPT: [u8; 4] = [RDI, RSI, RDX, RAX];
/// Block of the exec or exit that the thread has made last.
pub const LAST_CALL: Field = 0x340;
/// Whether the thread is a process that uses the memory of its parent, which waits (vfork).
pub const BORROWS: Field = 0x348;
/// Number of the block of a burst that the thread executes.
pub const STEP: Field = 0x350;
/// `struct clone_args` of a clone3(2).
pub const CLONE_ARGUMENTS: Field = 0x400;
/// One byte for each number of a system call that the engine looks at.
pub const LOOKED_AT: Field = 0x1_0000;
/// End of the engine's stack, which grows down to [`STACK_END`].
pub const STACK: Field = 0xf_ff00;
/// Pairs of (negated address, translated code), chosen by the low 16 bits of the address.
pub const TARGETS: Field = 0x10_0000;
/// A second table of such pairs, indexed by a hash of more bits: programs of many megabytes have
/// many targets with the same low bits.
pub const TARGETS_2: Field = 0x20_0000;
pub const COUNTERS: Field = 0x40_0000;

/// Numbers of registers.
pub const RAX: u8 = 0;
pub const RCX: u8 = 1;
pub const RDX: u8 = 2;
pub const RSP: u8 = 4;
pub const RSI: u8 = 6;
pub const RDI: u8 = 7;
pub const R8: u8 = 8;
pub const R10: u8 = 10;
pub const R11: u8 = 11;

/// Registers that [`AFTER`] keeps, in its order.
pub const AFTER_REGISTERS: [u8; 7] = [RAX, RCX, RDX, RSI, RDI, R10, R11];

/// System calls whose effects concern the engine.
const LOOKED_AT_CALLS: [u64; 28] = [
    number::MMAP,
    number::MPROTECT,
    number::MUNMAP,
    number::MREMAP,
    number::PKEY_MPROTECT,
    number::RT_SIGACTION,
    number::RT_SIGPROCMASK,
    number::RT_SIGRETURN,
    number::SIGALTSTACK,
    number::CLONE,
    number::CLONE3,
    number::FORK,
    number::VFORK,
    number::EXECVE,
    number::EXECVEAT,
    number::EXIT,
    number::EXIT_GROUP,
    number::ARCH_PRCTL,
    number::PRCTL,
    number::SECCOMP,
    number::READLINK,
    number::READLINKAT,
    number::RSEQ,
    number::OPEN,
    number::CREAT,
    number::OPENAT,
    number::OPENAT2,
    number::PROCESS_VM_WRITEV,
];

/// The context of one thread.
#[derive(Clone, Copy)]
pub struct Context(pub u64);

impl Context {
    fn at(self, field: Field) -> u64 {
        self.0.wrapping_add_signed(i64::from(field))
    }

    pub fn get(self, field: Field) -> u64 {
        load(self.at(field))
    }

    pub fn set(self, field: Field, value: u64) {
        store(self.at(field), value);
    }

    pub fn register(self, number: u8) -> u64 {
        self.get(REGISTERS + 8 * Field::from(number))
    }

    pub fn set_register(self, number: u8, value: u64) {
        self.set(REGISTERS + 8 * Field::from(number), value);
    }

    /// Address of a field, for system calls.
    pub fn address_of(self, field: Field) -> u64 {
        self.at(field)
    }

    /// Fills in the fields that are the same for each thread.
    pub fn prepare(self, slot: u64) {
        self.set(SELF, self.0);
        self.set(SLOT, slot);
        self.set(EXIT, 1);
        self.set(EXIT_CODE, crate::switch::exit_address());
        self.set(ENGINE_STACK, self.at(STACK));
        self.set(FLAGS, 0x202);
        // An empty entry would be that of a jump to zero.
        self.set(TARGETS, 1);
        self.set(TARGETS_2, 1);
        LOOKED_AT_CALLS.iter().for_each(|call| self.look_at(*call));
    }

    /// Makes the thread's system calls of this number come to the engine.
    pub fn look_at(self, call: u64) {
        store(self.at(LOOKED_AT) + call, 1_u8);
    }

    /// Keeps what `unblock` clobbers, and where it goes on.
    pub fn keep_after(self, resume: u64, mask: u64) {
        for (field, register) in (AFTER..).step_by(8).zip(AFTER_REGISTERS) {
            self.set(field, self.register(register));
        }
        self.set(AFTER_RESUME, resume);
        self.set(AFTER_MASK, mask);
    }

    /// Makes an indirect branch to `target` find `code`.
    pub fn remember_target(self, target: u64, code: u64) {
        let mixed = target.wrapping_add(u64::from((target as u32).swap_bytes()));
        for (table, choice) in [(TARGETS, target), (TARGETS_2, mixed)] {
            let entry = self.at(table) + (choice & 0xffff) * 16;
            // The address comes last: the entry is whole at any time.
            store(entry, 0_u64);
            store(entry + 8, code);
            store(entry, target.wrapping_neg());
        }
    }
}

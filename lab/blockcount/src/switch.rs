//! The way from translated code to the engine's own code and back, in assembly.
//!
//! `EXIT` of the context tells a signal where it came: zero means translated code, in which each
//! place has a known state of the program; else the signal waits (`blockcount_deferred`). From
//! `blockcount_resume` on, a signal starts that part again, which sees that it waits.

use crate::context::{ENGINE_STACK, EXIT, FLAGS, PENDING, REGISTERS, RESUME, SELF, XMM};
use crate::system::number;

/// Value of `EXIT` for a signal's arrival.
pub const SIGNAL: u64 = 2;

/// One instruction for each register, to or from its place in the context.
macro_rules! moves {
    (save $instruction:literal $table:literal $($offset:literal $register:literal),+) => {
        concat!($($instruction, " gs:[{", $table, "}+", $offset, "], ", $register, "\n"),+)
    };
    (load $instruction:literal $table:literal $($offset:literal $register:literal),+) => {
        concat!($($instruction, " ", $register, ", gs:[{", $table, "}+", $offset, "]\n"),+)
    };
}

/// Moves the general registers, in the order of their numbers.
macro_rules! registers {
    ($way:ident) => {
        moves!($way "mov" "registers"
            "0x00" "rax", "0x08" "rcx", "0x10" "rdx", "0x18" "rbx",
            "0x20" "rsp", "0x28" "rbp", "0x30" "rsi", "0x38" "rdi",
            "0x40" "r8", "0x48" "r9", "0x50" "r10", "0x58" "r11",
            "0x60" "r12", "0x68" "r13", "0x70" "r14", "0x78" "r15")
    };
}

/// Moves the vector registers.
macro_rules! vectors {
    ($way:ident) => {
        moves!($way "movups" "xmm"
            "0x00" "xmm0", "0x10" "xmm1", "0x20" "xmm2", "0x30" "xmm3",
            "0x40" "xmm4", "0x50" "xmm5", "0x60" "xmm6", "0x70" "xmm7",
            "0x80" "xmm8", "0x90" "xmm9", "0xa0" "xmm10", "0xb0" "xmm11",
            "0xc0" "xmm12", "0xd0" "xmm13", "0xe0" "xmm14", "0xf0" "xmm15")
    };
}

core::arch::global_asm!(
    ".pushsection .text.blockcount_switch, \"ax\"",
    ".globl blockcount_exit, blockcount_resume, blockcount_jump, blockcount_signal",
    ".globl blockcount_clone, blockcount_leave, blockcount_restorer",
    ".hidden blockcount_exit, blockcount_resume, blockcount_jump, blockcount_signal",
    ".hidden blockcount_clone, blockcount_leave, blockcount_restorer",
    // Entry of all signals: rdi number, rsi siginfo, rdx ucontext.
    "blockcount_signal:",
    "cmp qword ptr gs:[{exit}], 0",
    "jne 1f",
    "mov qword ptr gs:[{exit}], {signal}",
    "jmp blockcount_exit",
    "1: lea rbx, [rsp+8]",
    "and rsp, -16",
    "mov rcx, gs:[{own}]",
    "call blockcount_deferred",
    "mov rsp, rbx",
    "blockcount_restorer:",
    "mov eax, {sigreturn}",
    "syscall",
    "ud2",
    // Translated code jumps here.
    "blockcount_exit:",
    registers!(save),
    "mov rsp, gs:[{stack}]",
    "pushfq",
    "pop qword ptr gs:[{flags}]",
    "cld",
    // With this flag the program has alignment checked, which compiled code does not stand.
    "test dword ptr gs:[{flags}], {alignment_check}",
    "jz 4f",
    "push 0x202",
    "popfq",
    "4:",
    vectors!(save),
    "mov rdi, gs:[{own}]",
    "call blockcount_dispatch",
    "blockcount_resume:",
    "mov rsp, gs:[{stack}]",
    "cmp qword ptr gs:[{pending}], 0",
    "je 2f",
    "mov rdi, gs:[{own}]",
    "call blockcount_pending",
    "2:",
    vectors!(load),
    "push qword ptr gs:[{flags}]",
    "popfq",
    registers!(load),
    "mov qword ptr gs:[{exit}], 0",
    "blockcount_jump:",
    "jmp qword ptr gs:[{resume}]",
    // rdi: number and five arguments of clone or clone3; rsi: the child's context, whose stack is
    // the child's. The answer is the parent's.
    "blockcount_clone:",
    "push r12",
    "mov r12, rsi",
    "mov r11, rdi",
    "mov rax, [r11]",
    "mov rdi, [r11+8]",
    "mov rsi, [r11+16]",
    "mov rdx, [r11+24]",
    "mov r10, [r11+32]",
    "mov r8, [r11+40]",
    "syscall",
    "test rax, rax",
    "jz 3f",
    "pop r12",
    "ret",
    "3: wrgsbase r12",
    "jmp blockcount_resume",
    // Ends the thread with the code in rdi; the lock at rsi is given back when nothing of the
    // thread's memory is needed any more.
    "blockcount_leave:",
    "mov dword ptr [rsi], 0",
    "mov eax, {leave}",
    "syscall",
    "ud2",
    ".popsection",
    exit = const EXIT,
    signal = const SIGNAL,
    own = const SELF,
    sigreturn = const number::RT_SIGRETURN,
    registers = const REGISTERS,
    stack = const ENGINE_STACK,
    flags = const FLAGS,
    xmm = const XMM,
    pending = const PENDING,
    resume = const RESUME,
    leave = const number::EXIT,
    alignment_check = const 1 << 18,
);

unsafe extern "C" {
    fn blockcount_exit();
    fn blockcount_resume();
    fn blockcount_jump();
    fn blockcount_signal();
    fn blockcount_restorer();
    fn blockcount_clone(call: *const [u64; 6], child: u64) -> i64;
    fn blockcount_leave(code: u64, lock: *const u32) -> !;
}

/// Address that translated code jumps to when it needs the engine.
pub fn exit_address() -> u64 {
    blockcount_exit as *const () as u64
}

/// Address of the entry of all signals.
pub fn signal_address() -> u64 {
    blockcount_signal as *const () as u64
}

/// Address of code that returns from a signal.
pub fn restorer_address() -> u64 {
    blockcount_restorer as *const () as u64
}

/// Address of the last instruction of the way back, at which the program's registers are all
/// there.
pub fn jump_address() -> u64 {
    blockcount_jump as *const () as u64
}

/// The address at which a thread continues that a signal interrupted at `at`, on the way back to
/// translated code; None elsewhere.
pub fn started_again(at: u64) -> Option<u64> {
    let (start, end) = (blockcount_resume as *const () as u64, jump_address());
    (start..end).contains(&at).then_some(start)
}

/// Makes a thread, which starts on its own context; the parent's answer.
pub fn clone(call: &[u64; 6], child: crate::context::Context) -> i64 {
    // SAFETY: the child has a stack of its own and never returns here.
    unsafe { blockcount_clone(call, child.0) }
}

/// Ends this thread, and gives the lock back.
pub fn leave(code: u64, lock: &core::sync::atomic::AtomicU32) -> ! {
    // SAFETY: the thread ends.
    unsafe { blockcount_leave(code, lock.as_ptr()) }
}

/// Starts translated code on a context.
pub fn start(context: crate::context::Context) -> ! {
    // SAFETY: the context is complete, and nothing of this stack is needed any more.
    unsafe {
        core::arch::asm!(
            "wrgsbase {context}",
            "jmp {resume}",
            context = in(reg) context.0,
            resume = sym blockcount_resume,
            options(noreturn)
        )
    }
}

//! The first instructions of the freestanding program: its relocations, then [`crate::load`].

/// Bytes of the stack that the engine begins on: the kernel's is for the program.
#[cfg(all(panic = "abort", not(test), not(feature = "reader")))]
const STACK: usize = 1 << 18;

#[cfg(all(panic = "abort", not(test), not(feature = "reader")))]
core::arch::global_asm!(
    ".pushsection .text.blockcount_start, \"ax\"",
    ".globl _start",
    ".weak _DYNAMIC",
    ".hidden _DYNAMIC, __ehdr_start, _end",
    "_start:",
    "xor ebp, ebp",
    "mov rbx, rsp",
    "lea rsp, [rip+blockcount_first_stack+{size}]",
    "lea rdi, [rip+__ehdr_start]",
    "lea rsi, [rip+_DYNAMIC]",
    // Relative relocations: DT_RELA is 7, DT_RELASZ is 8.
    "xor edx, edx",
    "xor ecx, ecx",
    "2: mov rax, [rsi]",
    "test rax, rax",
    "jz 5f",
    "cmp rax, 7",
    "jne 3f",
    "mov rdx, [rsi+8]",
    "3: cmp rax, 8",
    "jne 4f",
    "mov rcx, [rsi+8]",
    "4: add rsi, 16",
    "jmp 2b",
    "5: add rdx, rdi",
    "add rcx, rdx",
    "6: cmp rdx, rcx",
    "jae 7f",
    "mov rax, [rdx]",
    "mov r8, [rdx+16]",
    "add r8, rdi",
    "mov [rdi+rax], r8",
    "add rdx, 24",
    "jmp 6b",
    "7: mov rsi, rdi",
    "lea rdx, [rip+_end]",
    "mov rdi, rbx",
    "call blockcount_begin",
    "ud2",
    ".popsection",
    ".pushsection .bss.blockcount_first_stack, \"aw\", @nobits",
    ".balign 16",
    "blockcount_first_stack: .zero {size}",
    ".popsection",
    size = const STACK,
);

/// Goes on from the first instructions.
#[unsafe(no_mangle)]
extern "C" fn blockcount_begin(stack: u64, start: u64, end: u64) -> ! {
    crate::load::begin(stack, start..end)
}

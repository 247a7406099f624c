//! Memory by address: the engine's own mappings, and the program's.
//!
//! The engine and the program share one address space, and the engine writes machine code, so
//! addresses are numbers here. [`load`] and [`store`] are for memory that the engine mapped or that
//! the kernel's list of mappings names. What the program passes to system calls is read by
//! [`read_program`] and written by [`write_program`], whose faults the signal entry answers.

use alloc::vec::Vec;

/// The value at an address of mapped memory, aligned or not.
pub fn load<T: Copy>(at: u64) -> T {
    // SAFETY: the caller names mapped memory: see the module's documentation.
    unsafe { (at as *const T).read_unaligned() }
}

/// Writes a value to an address of mapped memory, aligned or not.
pub fn store<T>(at: u64, value: T) {
    // SAFETY: the caller names mapped memory that the engine may write.
    unsafe { (at as *mut T).write_unaligned(value) }
}

/// Bytes at an address of mapped memory, for as long as the mapping stays.
pub fn bytes(at: u64, len: usize) -> &'static [u8] {
    // SAFETY: the caller names mapped memory, and drops the slice before the program goes on.
    unsafe { core::slice::from_raw_parts(at as *const u8, len) }
}

/// Writes bytes to mapped memory. Where the number of bytes is known, this is a store or two.
#[inline(always)]
pub fn put(at: u64, bytes: &[u8]) {
    // SAFETY: the caller names mapped memory that the engine may write.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) }
}

/// Fills mapped memory with zeros.
pub fn clear(at: u64, len: usize) {
    // SAFETY: the caller names mapped memory that the engine may write.
    unsafe { core::ptr::write_bytes(at as *mut u8, 0, len) }
}

/// Replaces the four bytes of a jump's displacement, which other threads may be executing: the
/// emitter keeps them within a cache line, so one store is seen whole.
pub fn patch(at: u64, value: i32) {
    // SAFETY: `at` is in the code cache; volatile so that it stays one store.
    unsafe { (at as *mut i32).write_volatile(value) }
}

/// Replaces the first five bytes at the start of a block by a jump, in one store.
pub fn replace(at: u64, jump: u64) {
    let rest = load::<u64>(at) & !0xff_ffff_ffff;
    // SAFETY: `at` is in the code cache; volatile so that it stays one store.
    unsafe { (at as *mut u64).write_volatile(rest | jump) }
}

core::arch::global_asm!(
    ".pushsection .text.blockcount_copy, \"ax\"",
    ".globl blockcount_copy, blockcount_copy_at, blockcount_copy_failed",
    ".hidden blockcount_copy, blockcount_copy_at, blockcount_copy_failed",
    "blockcount_copy:",
    "mov rcx, rdx",
    "blockcount_copy_at:",
    "rep movsb",
    "xor eax, eax",
    "ret",
    "blockcount_copy_failed:",
    "mov eax, 1",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    fn blockcount_copy(to: u64, from: u64, len: u64) -> u64;
    fn blockcount_copy_at();
    fn blockcount_copy_failed();
}

/// The address at which a faulting copy continues; None if `at` is not in the copy routine.
pub fn copy_continues(at: u64) -> Option<u64> {
    (at == blockcount_copy_at as *const () as u64)
        .then_some(blockcount_copy_failed as *const () as u64)
}

fn copy(to: u64, from: u64, len: u64) -> bool {
    // SAFETY: a fault ends the copy with an answer.
    unsafe { blockcount_copy(to, from, len) == 0 }
}

/// A value of the program's, where it has memory there.
pub fn read_program<T: Copy + Default>(at: u64) -> Option<T> {
    let mut value = T::default();
    copy(&raw mut value as u64, at, size_of::<T>() as u64).then_some(value)
}

/// Writes a value of the program's; false where it has no such memory.
pub fn write_program<T: Copy>(at: u64, value: T) -> bool {
    copy(at, &raw const value as u64, size_of::<T>() as u64)
}

/// A string of the program's with its final zero byte, of at most `max` bytes.
pub fn read_string(at: u64, max: usize) -> Option<Vec<u8>> {
    let mut string = Vec::new();
    while string.len() < max {
        let from = at.checked_add(string.len() as u64)?;
        let mut part = [0_u8; 256];
        let len = (part.len() as u64).min(0x1000 - (from & 0xfff));
        if !copy(part.as_mut_ptr() as u64, from, len) {
            return None;
        }
        let part = part.get(..len as usize)?;
        match part.iter().position(|byte| *byte == 0) {
            Some(end) => {
                string.extend_from_slice(part.get(..=end)?);
                return Some(string);
            }
            None => string.extend_from_slice(part),
        }
    }
    None
}

/// The freestanding program's replacement of a C library: an allocator, and the functions that
/// compilers assume.
#[cfg(all(panic = "abort", not(test), not(feature = "reader")))]
mod freestanding {
    use crate::system;
    use core::alloc::{GlobalAlloc, Layout};
    use core::cell::UnsafeCell;

    core::arch::global_asm!(
        ".globl memcpy, memmove, memset, memcmp, bcmp, strlen",
        ".hidden memcpy, memmove, memset, memcmp, bcmp, strlen",
        "memmove:",
        "mov rax, rdi",
        "sub rax, rsi",
        "cmp rax, rdx",
        "jae memcpy",
        "mov rax, rdi",
        "mov rcx, rdx",
        "lea rdi, [rdi+rdx-1]",
        "lea rsi, [rsi+rdx-1]",
        "std",
        "rep movsb",
        "cld",
        "ret",
        // Mostly an instruction or a few fields: two stores that overlap.
        "memcpy:",
        "mov rax, rdi",
        "cmp rdx, 16",
        "ja 7f",
        "cmp edx, 8",
        "jae 6f",
        "cmp edx, 4",
        "jae 5f",
        "test edx, edx",
        "jz 8f",
        "4: mov cl, [rsi+rdx-1]",
        "mov [rdi+rdx-1], cl",
        "dec edx",
        "jnz 4b",
        "8: ret",
        "5: mov ecx, [rsi]",
        "mov r8d, [rsi+rdx-4]",
        "mov [rdi], ecx",
        "mov [rdi+rdx-4], r8d",
        "ret",
        "6: mov rcx, [rsi]",
        "mov r8, [rsi+rdx-8]",
        "mov [rdi], rcx",
        "mov [rdi+rdx-8], r8",
        "ret",
        "7: cmp rdx, 32",
        "ja 9f",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi+rdx-16]",
        "movups [rdi], xmm0",
        "movups [rdi+rdx-16], xmm1",
        "ret",
        "9: mov rcx, rdx",
        "rep movsb",
        "ret",
        "memset:",
        "mov r8, rdi",
        "mov eax, esi",
        "mov rcx, rdx",
        "rep stosb",
        "mov rax, r8",
        "ret",
        "memcmp:",
        "bcmp:",
        "mov rcx, rdx",
        "xor eax, eax",
        "cmp rcx, rcx",
        "repe cmpsb",
        "je 2f",
        "movzx eax, byte ptr [rdi-1]",
        "movzx ecx, byte ptr [rsi-1]",
        "sub ecx, eax",
        "mov eax, ecx",
        "2: ret",
        "strlen:",
        "xor eax, eax",
        "2: cmp byte ptr [rdi+rax], 0",
        "je 3f",
        "inc rax",
        "jmp 2b",
        "3: ret",
    );

    /// Address space of the engine's own tables, bytes. It is reserved once, so that a filter of
    /// system calls (seccomp) that the program sets up later never meets a call of the allocator.
    const RESERVE: u64 = 16 << 30;
    /// Sizes are powers of two from 16 bytes.
    const SMALLEST: u32 = 4;
    const CLASSES: usize = 36;

    struct Heap {
        next: u64,
        end: u64,
        /// First freed piece of each size; a freed piece begins with the address of the next.
        free: [u64; CLASSES],
    }

    /// Hands out pieces of one reserved range. Only code that holds the engine's lock allocates.
    struct Allocator(UnsafeCell<Heap>);

    // SAFETY: callers hold the engine's lock, so only one is in the heap at a time.
    unsafe impl Sync for Allocator {}

    #[global_allocator]
    static ALLOCATOR: Allocator =
        Allocator(UnsafeCell::new(Heap { next: 0, end: 0, free: [0; CLASSES] }));

    fn class(layout: Layout) -> u32 {
        let size = layout.size().max(layout.align()).max(1 << SMALLEST);
        size.next_power_of_two().trailing_zeros()
    }

    // SAFETY: pieces are disjoint, as large as asked and aligned to their size.
    unsafe impl GlobalAlloc for Allocator {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            // SAFETY: callers hold the engine's lock.
            let heap = unsafe { &mut *self.0.get() };
            let class = class(layout);
            let Some(free) = heap.free.get_mut((class - SMALLEST) as usize) else {
                return core::ptr::null_mut();
            };
            if *free != 0 {
                let piece = *free;
                *free = crate::memory::load(piece);
                return piece as *mut u8;
            }
            if heap.end == 0 {
                let prot = system::PROT_READ | system::PROT_WRITE;
                let Some(start) = system::map_private(RESERVE, prot) else {
                    system::refuse(&[b"no address space for its tables (ulimit -v?)"]);
                };
                (heap.next, heap.end) = (start, start + RESERVE);
            }
            let size = 1_u64 << class;
            let alignment = size.min(4096);
            let piece = (heap.next + alignment - 1) & !(alignment - 1);
            if piece + size > heap.end {
                system::refuse(&[b"its tables are full"]);
            }
            heap.next = piece + size;
            piece as *mut u8
        }

        unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
            // SAFETY: callers hold the engine's lock.
            let heap = unsafe { &mut *self.0.get() };
            if let Some(free) = heap.free.get_mut((class(layout) - SMALLEST) as usize) {
                crate::memory::store(piece as u64, *free);
                *free = piece as u64;
            }
        }
    }

    #[panic_handler]
    fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
        let (file, line) = info.location().map_or(("?", 0), |at| (at.file(), at.line()));
        let line = system::hexadecimal(u64::from(line));
        system::refuse(&[b"an error in the engine: ", file.as_bytes(), b" line 0x", &line])
    }
}

//! System calls, by number, and the program's environment.

use crate::area::VARIABLE;
use core::arch::asm;
use core::ffi::c_char;

/// Numbers of asm/unistd_64.h.
mod number {
    pub const MMAP: usize = 9;
    pub const MUNMAP: usize = 11;
    pub const CLOSE: usize = 3;
    pub const NANOSLEEP: usize = 35;
    pub const GETPID: usize = 39;
    pub const READLINK: usize = 89;
    pub const GETTID: usize = 186;
    pub const OPENAT: usize = 257;
}

const AT_FDCWD: usize = -100_isize as usize;
const O_RDWR_CLOEXEC: usize = 0o2_000_002;
const PROT_READ_WRITE: usize = 3;
const MAP_SHARED: usize = 1;
const MAP_FIXED: usize = 0x10;
const MAP_PRIVATE_ANONYMOUS: usize = 0x22;
const MAP_NORESERVE: usize = 0x4000;
/// Longest path in the environment that is tried.
const PATH_MAX: usize = 4096;

unsafe extern "C" {
    /// The environment, of the C library that each program with events has.
    static environ: *const *const c_char;
}

/// A system call; its answer, or the negative error number.
///
/// # Safety
/// As the call itself.
unsafe fn call(number: usize, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let answer: isize;
    // SAFETY: the kernel keeps all registers but these three; the rest is the caller's promise.
    unsafe {
        asm!("syscall", inlateout("rax") number => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    answer
}

/// Number of the process.
pub fn pid() -> u32 {
    // SAFETY: touches no memory.
    unsafe { call(number::GETPID, [0; 6]) as u32 }
}

/// Number of the thread.
pub fn tid() -> u32 {
    // SAFETY: touches no memory.
    unsafe { call(number::GETTID, [0; 6]) as u32 }
}

/// Gives the CPU away for 50 us.
pub fn pause() {
    let time: [u64; 2] = [0, 50_000];
    // SAFETY: reads `time`, a timespec.
    unsafe { call(number::NANOSLEEP, [time.as_ptr() as usize, 0, 0, 0, 0, 0]) };
}

/// Opens the file that the environment names.
pub fn open_area() -> Option<usize> {
    let path = variable()?;
    // SAFETY: the kernel reads a string that ends with 0.
    let file = unsafe { call(number::OPENAT, [AT_FDCWD, path as usize, O_RDWR_CLOEXEC, 0, 0, 0]) };
    usize::try_from(file).ok()
}

/// Closes a descriptor of [`open_area`].
pub fn close(file: usize) {
    // SAFETY: touches no memory.
    unsafe { call(number::CLOSE, [file, 0, 0, 0, 0, 0]) };
}

/// The variable's value.
fn variable() -> Option<*const c_char> {
    // SAFETY: the C library keeps `environ` null, or an array of strings that null ends.
    unsafe {
        let mut entries = environ;
        if entries.is_null() {
            return None;
        }
        while let Some(entry) = (*entries).as_ref() {
            let entry: *const c_char = entry;
            let mut same = 0;
            for byte in VARIABLE.bytes() {
                if *entry.add(same) as u8 != byte {
                    break;
                }
                same += 1;
            }
            if same == VARIABLE.len() && *entry.add(same) as u8 == b'=' {
                let value = entry.add(same + 1);
                let mut len = 0;
                while len < PATH_MAX && *value.add(len) != 0 {
                    len += 1;
                }
                return (len > 0 && len < PATH_MAX).then_some(value);
            }
            entries = entries.add(1);
        }
    }
    None
}

/// Maps bytes of the area, at an address that is a multiple of `align`.
pub fn map_area(file: usize, offset: usize, bytes: usize, align: usize) -> Option<*mut u8> {
    let place = map_memory(bytes, align)? as usize;
    let arguments = [place, bytes, PROT_READ_WRITE, MAP_SHARED | MAP_FIXED, file, offset];
    // SAFETY: replaces the mapping just made, which nobody else knows.
    let answer = unsafe { call(number::MMAP, arguments) };
    (answer == place as isize).then_some(place as *mut u8)
}

/// Maps memory of this process alone, at an address that is a multiple of `align`.
pub fn map_memory(bytes: usize, align: usize) -> Option<*mut u8> {
    let all = bytes.checked_add(align)?;
    let flags = MAP_PRIVATE_ANONYMOUS | MAP_NORESERVE;
    // SAFETY: a new mapping where the kernel likes.
    let answer = unsafe { call(number::MMAP, [0, all, PROT_READ_WRITE, flags, usize::MAX, 0]) };
    let begin = usize::try_from(answer).ok()?;
    let place = begin.checked_next_multiple_of(align)?;
    for (from, to) in [(begin, place), (place + bytes, begin + all)] {
        if to > from {
            // SAFETY: parts of the new mapping that nobody uses.
            unsafe { call(number::MUNMAP, [from, to - from, 0, 0, 0, 0]) };
        }
    }
    Some(place as *mut u8)
}

/// Unmaps what one of the two mapped.
pub fn unmap(place: *mut u8, bytes: usize) {
    // SAFETY: the caller made the mapping and nobody else knows it.
    unsafe { call(number::MUNMAP, [place as usize, bytes, 0, 0, 0, 0]) };
}

/// Writes the program's path, without a 0 at its end.
pub fn program_path(place: *mut u8, bytes: usize) {
    let link = c"/proc/self/exe".as_ptr() as usize;
    // SAFETY: the kernel writes at most `bytes` bytes, which the caller owns.
    unsafe { call(number::READLINK, [link, place as usize, bytes, 0, 0, 0]) };
}

/// Clears memory, without the C library: its own way may use registers that callers have not saved.
///
/// # Safety
/// The caller owns the `bytes` bytes, a multiple of 8.
pub unsafe fn clear(place: *mut u8, bytes: usize) {
    // SAFETY: as promised; the direction flag is 0 by the ABI.
    unsafe {
        asm!("rep stosq", inout("rdi") place => _, inout("rcx") bytes / 8 => _, in("rax") 0,
            options(nostack, preserves_flags));
    }
}

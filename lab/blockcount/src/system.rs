//! System calls by number: the program has no C library.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

/// Numbers of asm/unistd_64.h.
pub mod number {
    pub const WRITE: u64 = 1;
    pub const OPEN: u64 = 2;
    pub const CLOSE: u64 = 3;
    pub const FSTAT: u64 = 5;
    pub const MMAP: u64 = 9;
    pub const MPROTECT: u64 = 10;
    pub const MUNMAP: u64 = 11;
    pub const RT_SIGACTION: u64 = 13;
    pub const RT_SIGPROCMASK: u64 = 14;
    pub const RT_SIGRETURN: u64 = 15;
    pub const PREAD64: u64 = 17;
    pub const PWRITE64: u64 = 18;
    pub const ACCESS: u64 = 21;
    pub const MREMAP: u64 = 25;
    pub const GETPID: u64 = 39;
    pub const CLONE: u64 = 56;
    pub const FORK: u64 = 57;
    pub const VFORK: u64 = 58;
    pub const EXECVE: u64 = 59;
    pub const EXIT: u64 = 60;
    pub const FCNTL: u64 = 72;
    pub const FTRUNCATE: u64 = 77;
    pub const READLINK: u64 = 89;
    pub const GETRLIMIT: u64 = 97;
    pub const GETPPID: u64 = 110;
    pub const SIGALTSTACK: u64 = 131;
    pub const PRCTL: u64 = 157;
    pub const ARCH_PRCTL: u64 = 158;
    pub const GETTID: u64 = 186;
    pub const GETXATTR: u64 = 191;
    pub const EXIT_GROUP: u64 = 231;
    pub const READLINKAT: u64 = 267;
    pub const RT_TGSIGQUEUEINFO: u64 = 297;
    pub const EXECVEAT: u64 = 322;
    pub const PKEY_MPROTECT: u64 = 329;
    pub const RSEQ: u64 = 334;
    pub const CLONE3: u64 = 435;
}

pub const ENOENT: i64 = -2;
pub const ENOEXEC: i64 = -8;
pub const EACCES: i64 = -13;
pub const EFAULT: i64 = -14;
pub const EINVAL: i64 = -22;
pub const EFBIG: i64 = -27;
pub const ENOSYS: i64 = -38;
pub const EEXIST: i64 = -17;
pub const ENOTDIR: i64 = -20;

pub const PROT_READ: u64 = 1;
pub const PROT_WRITE: u64 = 2;
pub const PROT_EXEC: u64 = 4;
pub const MAP_SHARED: u64 = 1;
pub const MAP_PRIVATE: u64 = 2;
pub const MAP_FIXED: u64 = 0x10;
pub const MAP_ANONYMOUS: u64 = 0x20;
pub const MAP_NORESERVE: u64 = 0x4000;
pub const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;

pub const O_CLOEXEC: u64 = 0o2_000_000;

/// A system call; its answer, or the negative error number (syscall(2)).
pub fn call(number: u64, arguments: [u64; 6]) -> i64 {
    let [a, b, c, d, e, f] = arguments;
    let answer: i64;
    // SAFETY: the kernel keeps all registers but these three. What a call does with memory is
    // known to the caller: the engine's own mappings, or what the program asked for.
    unsafe {
        asm!("syscall", inlateout("rax") number => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _);
    }
    answer
}

/// As [`call`], for calls of at most three arguments.
pub fn call3(number: u64, a: u64, b: u64, c: u64) -> i64 {
    call(number, [a, b, c, 0, 0, 0])
}

/// Whether an answer is an error number.
pub fn is_error(answer: i64) -> bool {
    (-4095..0).contains(&answer)
}

/// Maps memory; `None` where the kernel refuses.
pub fn map(at: u64, size: u64, prot: u64, flags: u64, file: Option<(u64, u64)>) -> Option<u64> {
    let (descriptor, offset) = file.unwrap_or((u64::MAX, 0));
    let answer = call(number::MMAP, [at, size, prot, flags, descriptor, offset]);
    (!is_error(answer)).then_some(answer as u64)
}

/// Private memory of zeros, of which only touched pages cost.
pub fn map_private(size: u64, prot: u64) -> Option<u64> {
    map(0, size, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, None)
}

/// Opens a file whose path ends with a zero byte.
pub fn open(path: &[u8], flags: u64, mode: u64) -> Result<u64, i64> {
    let answer = call3(number::OPEN, path.as_ptr() as u64, flags | O_CLOEXEC, mode);
    if is_error(answer) { Err(answer) } else { Ok(answer as u64) }
}

/// Closes a descriptor.
pub fn close(descriptor: u64) {
    call3(number::CLOSE, descriptor, 0, 0);
}

/// Reads at an offset of a file until the buffer is full or the file ends; bytes read.
pub fn read_at(descriptor: u64, buffer: &mut [u8], offset: u64) -> usize {
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let (at, len) = (rest.as_mut_ptr() as u64, rest.len() as u64);
        let answer = call(number::PREAD64, [descriptor, at, len, offset + done as u64, 0, 0]);
        if answer <= 0 {
            break;
        }
        done += answer as usize;
    }
    done
}

/// Process number of this process.
pub fn pid() -> u64 {
    call3(number::GETPID, 0, 0, 0) as u64
}

/// Sets the mask of blocked signals and returns the one before.
pub fn set_mask(mask: u64) -> u64 {
    let mut before = 0_u64;
    let (new, old) = (&raw const mask as u64, &raw mut before as u64);
    call(number::RT_SIGPROCMASK, [2, new, old, 8, 0, 0]);
    before
}

/// Address of the path of the file that takes the line of [`refuse`]; zero: standard error.
static REFUSAL: AtomicU64 = AtomicU64::new(0);

/// Chooses a file for the line of [`refuse`], by the address of its path with a final zero byte;
/// zero: standard error.
pub fn refuse_to(path: u64) {
    REFUSAL.store(path, Ordering::Relaxed);
}

/// Ends the process with one line: what the engine refuses, or cannot do.
pub fn refuse(words: &[&[u8]]) -> ! {
    let mut line = [0_u8; 512];
    let mut len = 0;
    for word in [&b"dcpi-blockcount: "[..]].iter().chain(words).chain(&[&b"\n"[..]]) {
        for byte in *word {
            if let Some(place) = line.get_mut(len) {
                *place = *byte;
                len += 1;
            }
        }
    }
    const O_WRONLY_CREAT: u64 = 0o101;
    let path = REFUSAL.load(Ordering::Relaxed);
    let mut descriptor = 2;
    if path != 0 {
        let answer = call3(number::OPEN, path, O_WRONLY_CREAT, 0o600);
        descriptor = if is_error(answer) { 2 } else { answer as u64 };
    }
    call3(number::WRITE, descriptor, line.as_ptr() as u64, len as u64);
    loop {
        call3(number::EXIT_GROUP, REFUSED, 0, 0);
    }
}

/// Exit code of a program that was not run further: 126 and 127 are the shell's.
const REFUSED: u64 = 125;

/// A number in hexadecimal digits, for [`refuse`].
pub fn hexadecimal(value: u64) -> [u8; 16] {
    let mut digits = [b'0'; 16];
    for (place, digit) in digits.iter_mut().rev().enumerate() {
        let nibble = (value >> (4 * place) & 15) as u8;
        *digit = if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 };
    }
    digits
}

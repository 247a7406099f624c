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
    pub const IOCTL: u64 = 16;
    pub const PREAD64: u64 = 17;
    pub const PWRITE64: u64 = 18;
    pub const WRITEV: u64 = 20;
    pub const ACCESS: u64 = 21;
    pub const SCHED_YIELD: u64 = 24;
    pub const MREMAP: u64 = 25;
    pub const GETPID: u64 = 39;
    pub const SENDFILE: u64 = 40;
    pub const SOCKET: u64 = 41;
    pub const SENDMSG: u64 = 46;
    pub const SETSOCKOPT: u64 = 54;
    pub const CLONE: u64 = 56;
    pub const FORK: u64 = 57;
    pub const VFORK: u64 = 58;
    pub const EXECVE: u64 = 59;
    pub const EXIT: u64 = 60;
    pub const FCNTL: u64 = 72;
    pub const FTRUNCATE: u64 = 77;
    pub const CREAT: u64 = 85;
    pub const READLINK: u64 = 89;
    pub const GETRLIMIT: u64 = 97;
    pub const GETPPID: u64 = 110;
    pub const SIGALTSTACK: u64 = 131;
    pub const PRCTL: u64 = 157;
    pub const ARCH_PRCTL: u64 = 158;
    pub const GETTID: u64 = 186;
    pub const GETXATTR: u64 = 191;
    pub const GETDENTS64: u64 = 217;
    pub const TIMER_CREATE: u64 = 222;
    pub const TIMER_SETTIME: u64 = 223;
    pub const CLOCK_GETTIME: u64 = 228;
    pub const EXIT_GROUP: u64 = 231;
    pub const OPENAT: u64 = 257;
    pub const NEWFSTATAT: u64 = 262;
    pub const READLINKAT: u64 = 267;
    pub const SPLICE: u64 = 275;
    pub const FALLOCATE: u64 = 285;
    pub const PWRITEV: u64 = 296;
    pub const RT_TGSIGQUEUEINFO: u64 = 297;
    pub const PROCESS_VM_WRITEV: u64 = 311;
    pub const SECCOMP: u64 = 317;
    pub const EXECVEAT: u64 = 322;
    pub const COPY_FILE_RANGE: u64 = 326;
    pub const PWRITEV2: u64 = 328;
    pub const PKEY_MPROTECT: u64 = 329;
    pub const RSEQ: u64 = 334;
    pub const CLONE3: u64 = 435;
    pub const OPENAT2: u64 = 437;
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
///
/// # Safety
/// The call must leave everything that Rust relies on as it is: memory that the engine's own code
/// uses is written, mapped over, unmapped or protected only where the caller owns it, and a handler
/// or a stack that the call sets must be one. The program's own memory is the program's affair.
pub unsafe fn call(number: u64, arguments: [u64; 6]) -> i64 {
    let [a, b, c, d, e, f] = arguments;
    let answer: i64;
    // SAFETY: the kernel keeps all registers but these three; the rest is the caller's promise.
    unsafe {
        asm!("syscall", inlateout("rax") number => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _);
    }
    answer
}

/// As [`call`], for calls of at most three arguments.
///
/// # Safety
/// As [`call`].
pub unsafe fn call3(number: u64, a: u64, b: u64, c: u64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { call(number, [a, b, c, 0, 0, 0]) }
}

/// A call that neither reads nor writes memory, and changes no mapping.
macro_rules! without_memory {
    ($number:expr, $a:expr, $b:expr) => {
        // SAFETY: only numbers go in and come out.
        unsafe { call3($number, $a, $b, 0) }
    };
}

/// Whether an answer is an error number.
pub fn is_error(answer: i64) -> bool {
    (-4095..0).contains(&answer)
}

/// Maps memory; `None` where the kernel refuses.
///
/// # Safety
/// With `MAP_FIXED` nobody uses what is mapped there until now.
pub unsafe fn map(
    at: u64,
    size: u64,
    prot: u64,
    flags: u64,
    file: Option<(u64, u64)>,
) -> Option<u64> {
    let (descriptor, offset) = file.unwrap_or((u64::MAX, 0));
    // SAFETY: the caller's promise; elsewhere the kernel takes a place that is free.
    let answer = unsafe { call(number::MMAP, [at, size, prot, flags, descriptor, offset]) };
    (!is_error(answer)).then_some(answer as u64)
}

/// Private memory of zeros, of which only touched pages cost.
pub fn map_private(size: u64, prot: u64) -> Option<u64> {
    // SAFETY: the kernel takes a place that is free.
    unsafe { map(0, size, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, None) }
}

/// A call whose first argument is a path; EINVAL where that does not end with a zero byte.
fn of_path(number: u64, path: &[u8], b: u64, c: u64) -> i64 {
    if path.last() != Some(&0) {
        return EINVAL;
    }
    // SAFETY: the kernel reads the path until its zero byte. The callers below own what `b` is.
    unsafe { call3(number, path.as_ptr() as u64, b, c) }
}

/// Opens a file whose path ends with a zero byte.
pub fn open(path: &[u8], flags: u64, mode: u64) -> Result<u64, i64> {
    let answer = of_path(number::OPEN, path, flags | O_CLOEXEC, mode);
    if is_error(answer) { Err(answer) } else { Ok(answer as u64) }
}

/// Whether the program may use a file in a way (access(2)): 0, or the error.
pub fn access(path: &[u8], how: u64) -> i64 {
    of_path(number::ACCESS, path, how, 0)
}

/// Bytes of a link's target, or the error.
pub fn read_link(path: &[u8], target: &mut [u8]) -> i64 {
    of_path(number::READLINK, path, target.as_mut_ptr() as u64, target.len() as u64)
}

/// Bytes of an extended attribute of a file, or the error.
pub fn attribute_len(path: &[u8], name: &core::ffi::CStr) -> i64 {
    // The size 0 asks for the length alone, so no value is written.
    of_path(number::GETXATTR, path, name.as_ptr() as u64, 0)
}

/// The status of an open file (`struct stat`); zeros where there is none.
pub fn status(file: u64) -> [u64; 18] {
    let mut status = [0_u64; 18];
    // SAFETY: the kernel writes 144 bytes, which is all of `status`.
    unsafe { call3(number::FSTAT, file, status.as_mut_ptr() as u64, 0) };
    status
}

/// What stat(2) tells about a path of the program's; None: there is no such file.
pub fn status_at(directory: u64, path: u64) -> Option<[u64; 18]> {
    let mut status = [0_u64; 18];
    // SAFETY: the kernel reads the path, and writes 144 bytes, which is all of `status`.
    let answer =
        unsafe { call(number::NEWFSTATAT, [directory, path, status.as_mut_ptr() as u64, 0, 0, 0]) };
    (answer == 0).then_some(status)
}

/// Flags with which a descriptor was opened; 0 for one that is not open.
pub fn flags(descriptor: u64) -> u64 {
    const F_GETFL: u64 = 3;
    let answer = without_memory!(number::FCNTL, descriptor, F_GETFL);
    u64::try_from(answer).unwrap_or(0)
}

/// Reads entries of a folder, as getdents64(2) does; bytes read.
pub fn read_folder(folder: u64, buffer: &mut [u8]) -> usize {
    let (at, len) = (buffer.as_mut_ptr() as u64, buffer.len() as u64);
    // SAFETY: the kernel writes at most as many bytes as the buffer has.
    let answer = unsafe { call3(number::GETDENTS64, folder, at, len) };
    usize::try_from(answer).unwrap_or(0)
}

/// Gives a file a length; 0, or the error.
pub fn set_len(file: u64, len: u64) -> i64 {
    without_memory!(number::FTRUNCATE, file, len)
}

/// The longest file that the process may write, in bytes.
pub fn file_size_limit() -> u64 {
    const RLIMIT_FSIZE: u64 = 1;
    let mut limits = [u64::MAX; 2];
    // SAFETY: the kernel writes the two numbers of `struct rlimit`.
    unsafe { call3(number::GETRLIMIT, RLIMIT_FSIZE, limits.as_mut_ptr() as u64, 0) };
    let [soft, _] = limits;
    soft
}

/// Names the thread; the name ends with a zero byte.
pub fn name_thread(name: &[u8]) {
    const PR_SET_NAME: u64 = 15;
    if name.last() == Some(&0) {
        // SAFETY: the kernel reads the name until its zero byte.
        unsafe { call3(number::PRCTL, PR_SET_NAME, name.as_ptr() as u64, 0) };
    }
}

/// Unmaps memory.
///
/// # Safety
/// Nobody uses what is mapped there.
pub unsafe fn unmap(at: u64, size: u64) {
    // SAFETY: the caller's promise.
    unsafe { call3(number::MUNMAP, at, size, 0) };
}

/// Closes a descriptor.
pub fn close(descriptor: u64) {
    without_memory!(number::CLOSE, descriptor, 0);
}

/// Reads at an offset of a file until the buffer is full or the file ends; bytes read.
pub fn read_at(descriptor: u64, buffer: &mut [u8], offset: u64) -> usize {
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let (at, len) = (rest.as_mut_ptr() as u64, rest.len() as u64);
        let from = offset + done as u64;
        // SAFETY: the kernel writes at most as many bytes as the rest of the buffer has.
        let answer = unsafe { call(number::PREAD64, [descriptor, at, len, from, 0, 0]) };
        if answer <= 0 {
            break;
        }
        done += answer as usize;
    }
    done
}

/// Process number of this process.
pub fn pid() -> u64 {
    without_memory!(number::GETPID, 0, 0) as u64
}

/// Process number of the parent.
pub fn parent() -> u64 {
    without_memory!(number::GETPPID, 0, 0) as u64
}

/// Number of this thread.
pub fn thread() -> u64 {
    without_memory!(number::GETTID, 0, 0) as u64
}

/// Lets other threads run.
pub fn give_way() {
    without_memory!(number::SCHED_YIELD, 0, 0);
}

/// Ends the process.
pub fn exit(code: u64) -> ! {
    loop {
        without_memory!(number::EXIT_GROUP, code, 0);
    }
}

/// Sets the mask of blocked signals and returns the one before.
pub fn set_mask(mask: u64) -> u64 {
    let mut before = 0_u64;
    let (new, old) = (&raw const mask as u64, &raw mut before as u64);
    // SAFETY: the kernel reads and writes the two numbers.
    unsafe { call(number::RT_SIGPROCMASK, [2, new, old, 8, 0, 0]) };
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
        // SAFETY: the path of `refuse_to` ends with a zero byte; the kernel reads it.
        let answer = unsafe { call3(number::OPEN, path, O_WRONLY_CREAT, 0o600) };
        descriptor = if is_error(answer) { 2 } else { answer as u64 };
    }
    // SAFETY: the kernel reads the line.
    unsafe { call3(number::WRITE, descriptor, line.as_ptr() as u64, len as u64) };
    exit(REFUSED)
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

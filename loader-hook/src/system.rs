//! The few system calls that the hook makes, by number: it has no C library and sets no errno.

use core::arch::asm;

/// Numbers of asm/unistd_64.h.
#[cfg(target_arch = "x86_64")]
mod number {
    pub const CLOSE: usize = 3;
    pub const RT_SIGPROCMASK: usize = 14;
    pub const GETPID: usize = 39;
    pub const SOCKET: usize = 41;
    pub const SENDTO: usize = 44;
}

/// Numbers of asm-generic/unistd.h.
#[cfg(target_arch = "aarch64")]
mod number {
    pub const CLOSE: usize = 57;
    pub const RT_SIGPROCMASK: usize = 135;
    pub const GETPID: usize = 172;
    pub const SOCKET: usize = 198;
    pub const SENDTO: usize = 206;
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the loader hook knows the system calls of x86-64 and arm64 only");

// Compilers assume that this function of the C library exists. This copy is private: no other
// object sees it.
#[cfg(all(panic = "abort", not(test), target_arch = "x86_64"))]
core::arch::global_asm!(
    ".globl memcpy",
    ".hidden memcpy",
    "memcpy:",
    "mov rax, rdi",
    "mov rcx, rdx",
    "rep movsb",
    "ret"
);
#[cfg(all(panic = "abort", not(test), target_arch = "aarch64"))]
core::arch::global_asm!(
    ".globl memcpy",
    ".hidden memcpy",
    "memcpy:",
    "cbz x2, 2f",
    "mov x3, x0",
    "1: ldrb w4, [x1], #1",
    "strb w4, [x3], #1",
    "subs x2, x2, #1",
    "b.ne 1b",
    "2: ret"
);

const AF_UNIX: usize = 1;
const SOCK_DGRAM: usize = 2;
const SOCK_NONBLOCK: usize = 0o4000;
const SOCK_CLOEXEC: usize = 0o2_000_000;
const MSG_DONTWAIT: usize = 0x40;
const MSG_NOSIGNAL: usize = 0x4000;
const EFAULT: isize = -14;

/// A system call; its answer, or the negative error number (syscall(2)).
///
/// # Safety
/// As the call itself.
#[cfg(target_arch = "x86_64")]
unsafe fn call(number: usize, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let answer: isize;
    // SAFETY: the kernel keeps all registers but these three; what the call does with memory is the
    // caller's promise.
    unsafe {
        asm!("syscall", inlateout("rax") number => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    answer
}

/// A system call; its answer, or the negative error number (syscall(2)).
///
/// # Safety
/// As the call itself.
#[cfg(target_arch = "aarch64")]
unsafe fn call(number: usize, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let answer: isize;
    // SAFETY: the kernel keeps all registers but x0; what the call does with memory is the caller's
    // promise.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") a => answer,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack));
    }
    answer
}

/// Process number of this process in its own pid namespace.
pub fn pid() -> u32 {
    // SAFETY: getpid(2) touches no memory and never fails.
    unsafe { call(number::GETPID, [0; 6]) as u32 }
}

/// Sends one datagram to a Unix socket (`sockaddr_un`), or drops it: no listener, no permission, a
/// full queue, no descriptor left. Never waits, raises no signal, leaves no descriptor.
pub fn send(address: &[u8], datagram: &[u8]) {
    // SAFETY: socket(2) touches no memory.
    let socket = unsafe {
        call(number::SOCKET, [AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, 0, 0, 0])
    };
    let Ok(descriptor) = usize::try_from(socket) else { return };
    let (bytes, len) = (datagram.as_ptr() as usize, datagram.len());
    let (name, name_len) = (address.as_ptr() as usize, address.len());
    // SAFETY: sendto(2) reads the two slices.
    unsafe {
        call(number::SENDTO, [descriptor, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL, name, name_len])
    };
    // SAFETY: the descriptor is ours, and is not used after this.
    unsafe { call(number::CLOSE, [descriptor, 0, 0, 0, 0, 0]) };
}

/// Whether the 8 bytes at `address` can be read: rt_sigprocmask(2) reads its new mask before it
/// refuses an unknown request, so it does nothing but answer.
pub fn is_readable(address: usize) -> bool {
    const NO_SUCH_REQUEST: usize = u32::MAX as usize;
    // SAFETY: an unknown request changes no mask; the kernel itself finds out whether it can read
    // there.
    address != 0
        && unsafe { call(number::RT_SIGPROCMASK, [NO_SUCH_REQUEST, address, 0, 8, 0, 0]) } != EFAULT
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    /// Open sockets: other tests open files meanwhile.
    fn sockets() -> usize {
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let targets = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        targets
            .filter(|target| target.as_os_str().as_encoded_bytes().starts_with(b"socket:"))
            .count()
    }

    fn address(path: &str) -> Vec<u8> {
        [&(AF_UNIX as u16).to_ne_bytes()[..], path.as_bytes(), &[0]].concat()
    }

    fn blocked_signals() -> String {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        status.lines().find(|line| line.starts_with("SigBlk")).unwrap().to_owned()
    }

    #[test]
    fn memory_is_asked_for_without_touching_it() {
        let before = blocked_signals();
        let full = [u8::MAX; 8];
        for (address, expected) in [
            (full.as_ptr() as usize, true),
            (is_readable as fn(usize) -> bool as usize, true),
            (0, false),
            (8, false),
            (usize::MAX - 7, false),
            (1 << 62, false),
        ] {
            assert_eq!(is_readable(address), expected, "{address:#x}");
        }
        assert_eq!(blocked_signals(), before);
    }

    #[test]
    fn what_is_sent_arrives_and_what_cannot_be_sent_leaves_nothing() {
        assert_eq!(pid(), std::process::id());
        let directory = std::env::temp_dir().join(format!("dcpi-hook-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let path = directory.join("socket");
        let socket = UnixDatagram::bind(&path).unwrap();
        let before = sockets();
        send(&address(path.to_str().unwrap()), b"one");
        let mut buffer = [0; 8];
        assert_eq!((socket.recv(&mut buffer).unwrap(), &buffer[..3]), (3, &b"one"[..]));
        // Nobody reads: the queue is full after a few, and no call waits for it.
        (0..5000).for_each(|_| send(&address(path.to_str().unwrap()), b"more"));
        for nowhere in ["/no/such/socket", directory.to_str().unwrap(), ""] {
            send(&address(nowhere), b"x");
        }
        send(&[], b"x");
        assert_eq!(sockets(), before);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}

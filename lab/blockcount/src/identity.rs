//! The identity of a file when code is mapped from it, and its descriptor for the process that
//! reads the counts: after the run the file's path may lead to another file, or nowhere.

use crate::area::{Mapping, SOCKET};
use crate::system::{self, number};
use alloc::vec::Vec;

/// A file as fstat(2) tells it. Offsets in the file mean the same code as long as all four numbers
/// are the same and the file is not deleted, which an open descriptor prevents.
#[derive(Clone, Copy)]
pub struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    modified_ns: u64,
}

impl Identity {
    /// That of an open regular file.
    pub fn of(descriptor: u64) -> Option<Self> {
        Self::of_status(&system::status(descriptor))
    }

    /// That of a regular file of this status.
    pub fn of_status(status: &[u64; 18]) -> Option<Self> {
        let [device, inode, _, _, _, _, size, _, _, _, _, modified_s, modified_ns, ..] = *status;
        // As /proc/PID/maps has the two halves; the kernel's encoding is that of makedev(3).
        let major = device >> 8 & 0xfff | device >> 32 & !0xfff;
        let minor = device & 0xff | device >> 12 & !0xff & 0xffff_ffff;
        let modified_ns = modified_s.wrapping_mul(1_000_000_000).wrapping_add(modified_ns);
        let identity = Self { device: major << 32 | minor, inode, size, modified_ns };
        crate::programs::is_file(status).then_some(identity)
    }

    /// Whether both are of one file, perhaps changed in between.
    pub fn is_file_of(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// A mapping of the file. The kernel's list of mappings may name another device than fstat(2)
    /// does (btrfs, overlayfs).
    pub fn mapped(self, mapping: Mapping) -> Mapping {
        let Self { device, inode, size, modified_ns } = self;
        Mapping { device, inode, size, modified_ns, ..mapping }
    }
}

/// Longest wait for the receiver of a descriptor, microseconds. It only holds descriptors, so that
/// a wait this long means that it is stopped; the file is then found by its path.
const WAIT_MAX_US: u64 = 200_000;
/// Sends that signals may interrupt.
const ATTEMPTS: usize = 8;

/// Sends a descriptor to the socket in a folder of areas, if somebody listens there.
pub fn send(folder: &[u8], descriptor: u64) {
    const AF_UNIX: u16 = 1;
    const DATAGRAM: u64 = 2;
    const SOL_SOCKET: u64 = 1;
    const SO_SNDTIMEO: u64 = 21;
    const SCM_RIGHTS: u64 = 1;
    const NO_SIGNAL: u64 = 0x4000;
    const EINTR: i64 = -4;
    // struct sockaddr_un
    let mut address = Vec::from(AF_UNIX.to_le_bytes());
    for part in [folder, b"/", SOCKET.as_bytes(), b"\0"] {
        address.extend_from_slice(part);
    }
    if address.len() > 110 {
        return;
    }
    // SAFETY: only numbers go in and come out.
    let socket =
        unsafe { system::call3(number::SOCKET, AF_UNIX.into(), DATAGRAM | system::O_CLOEXEC, 0) };
    if system::is_error(socket) {
        return;
    }
    let socket = socket as u64;
    let wait = [0, WAIT_MAX_US];
    let byte = [b'f'];
    let bytes = [byte.as_ptr() as u64, 1];
    // struct cmsghdr and the descriptor: 16 and 4 bytes.
    let control = [20, SOL_SOCKET | SCM_RIGHTS << 32, descriptor & 0xffff_ffff];
    // struct msghdr
    let message = [
        address.as_ptr() as u64,
        address.len() as u64,
        bytes.as_ptr() as u64,
        1,
        control.as_ptr() as u64,
        size_of_val(&control) as u64,
        0,
    ];
    let at = wait.as_ptr() as u64;
    // SAFETY: the kernel reads the two numbers of `struct timeval`.
    unsafe { system::call(number::SETSOCKOPT, [socket, SOL_SOCKET, SO_SNDTIMEO, at, 16, 0]) };
    for _ in 0..ATTEMPTS {
        let at = message.as_ptr() as u64;
        // SAFETY: the kernel reads the message and what its pointers name, all of it above.
        if unsafe { system::call3(number::SENDMSG, socket, at, NO_SIGNAL) } != EINTR {
            break;
        }
    }
    system::close(socket);
}

//! Changes of code that the protection of its pages does not show: writes through /proc/PID/mem,
//! writes to the file that the code is mapped from, and process_vm_writev(2).
//!
//! Writes are looked at only once the program has opened such a file for writing, so that all other
//! programs write at full speed. What changes is dropped after the write, and translated anew.
//! Writes through a shared mapping of the file, and by another process, are not seen.

use crate::context::Context;
use crate::engine::Engine;
use crate::identity::Identity;
use crate::memory::read_program;
use crate::syscalls::Call;
use crate::system::{self, number};
use alloc::vec::Vec;

/// Calls that write to a descriptor, and which of their arguments that is.
const WRITES: [(u64, usize); 10] = [
    (number::WRITE, 0),
    (number::PWRITE64, 0),
    (number::WRITEV, 0),
    (number::PWRITEV, 0),
    (number::PWRITEV2, 0),
    (number::FTRUNCATE, 0),
    (number::FALLOCATE, 0),
    (number::SENDFILE, 0),
    (number::SPLICE, 2),
    (number::COPY_FILE_RANGE, 2),
];
/// Flags of open(2): how the file is accessed; 0: it is read.
const O_ACCMODE: u64 = 3;
/// Parts of a vector (limits.h).
const IOV_MAX: u64 = 1024;
const AT_FDCWD: u64 = -100_i64 as u64;

/// What is known of files that lead to code.
#[derive(Default)]
pub struct CodeWrites {
    /// Threads have their writes looked at.
    watching: bool,
    /// Device of the files in /proc; 0: not known yet.
    proc_device: u64,
}

impl CodeWrites {
    /// Has the writes of a new thread looked at, if those of the others are.
    pub fn begin(&self, context: Context) {
        if self.watching {
            WRITES.iter().for_each(|(call, _)| context.look_at(*call));
        }
    }
}

impl Engine {
    /// A call that may open a file for writing. Translated code makes it, since it may block.
    pub fn look_at_open(&mut self, call: &Call) {
        let [a, b, c, ..] = call.arguments;
        let (directory, path, flags) = match call.number {
            number::OPEN => (AT_FDCWD, a, b),
            number::CREAT => (AT_FDCWD, a, O_ACCMODE),
            number::OPENAT => (a, b, c),
            // The first field of struct open_how.
            _ => (a, b, read_program::<u64>(c).unwrap_or(0)),
        };
        // After a filter of system calls only the program's own calls are made.
        if flags & O_ACCMODE == 0 || self.code_writes.watching || !self.sends_files {
            return;
        }
        if system::status_at(directory, path).is_some_and(|status| self.leads_to_code(&status)) {
            self.watch();
        }
    }

    /// A call that writes; its answer if it may have changed code, which is then dropped. None: it
    /// does not concern code, and may block.
    pub fn write_to_code(&mut self, call: &Call) -> Option<i64> {
        let (_, argument) = WRITES.iter().find(|(number, _)| *number == call.number)?;
        let descriptor = *call.arguments.get(*argument)?;
        let status = system::status(descriptor);
        if !self.leads_to_code(&status) {
            return None;
        }
        // SAFETY: the program's own call, as the program makes it; its memory is its affair.
        let answer = unsafe { system::call(call.number, call.arguments) };
        let [_, _, len, at, ..] = call.arguments;
        let is_memory = self.is_in_proc(&status);
        if is_memory && call.number == number::PWRITE64 {
            self.cache.drop_range(at, at.saturating_add(len));
        } else {
            self.cache.drop_range(0, u64::MAX);
        }
        Some(answer)
    }

    /// process_vm_writev(2): into this process's memory, or that of another one.
    pub fn write_to_process(&mut self, call: &Call) -> i64 {
        let [process, _, _, parts, count, _] = call.arguments;
        let is_own = process == system::pid();
        // Unlike the program, the kernel is refused a write to a page that the engine protects.
        for part in (0..if is_own { count.min(IOV_MAX) } else { 0 }).map(|part| parts + 16 * part) {
            let (Some(at), Some(len)) = (read_program::<u64>(part), read_program::<u64>(part + 8))
            else {
                break;
            };
            self.cache.unprotect(at, at.saturating_add(len));
        }
        // SAFETY: the program's own call, as the program makes it; its memory is its affair.
        let answer = unsafe { system::call(call.number, call.arguments) };
        if is_own {
            self.cache.drop_range(0, u64::MAX);
        } else if !system::is_error(answer) {
            self.area
                .note(&[b"it writes to the memory of another process: changed code is not seen"]);
        }
        answer
    }

    /// Code was mapped from a file that may be open for writing already.
    pub fn look_for_writers(&mut self) {
        if self.code_writes.watching || !self.sends_files {
            return;
        }
        let descriptors = descriptors();
        if descriptors.into_iter().any(|descriptor| {
            system::flags(descriptor) & O_ACCMODE != 0
                && self.leads_to_code(&system::status(descriptor))
        }) {
            self.watch();
        }
    }

    fn watch(&mut self) {
        self.code_writes.watching = true;
        for slot in 0..self.threads.used() {
            self.code_writes.begin(Context(self.area.slot(slot)));
        }
    }

    /// Whether a file is the memory of a process, or one that code is mapped from. Any file of
    /// /proc passes for memory: few of them are written to.
    fn leads_to_code(&mut self, status: &[u64; 18]) -> bool {
        let identity = Identity::of_status(status);
        self.is_in_proc(status)
            || identity.is_some_and(|identity| self.cache.regions.has_file(identity))
    }

    fn is_in_proc(&mut self, [device, ..]: &[u64; 18]) -> bool {
        if self.code_writes.proc_device == 0 {
            let path = c"/proc/self/mem".as_ptr() as u64;
            self.code_writes.proc_device = system::status_at(AT_FDCWD, path).map_or(0, |[d, ..]| d);
        }
        *device == self.code_writes.proc_device && *device != 0
    }
}

/// The open descriptors of this process.
fn descriptors() -> Vec<u64> {
    let mut found = Vec::new();
    let Ok(folder) = system::open(b"/proc/self/fd\0", 0, 0) else { return found };
    let mut buffer = alloc::vec![0_u8; 1 << 15];
    loop {
        let read = system::read_folder(folder, &mut buffer);
        let mut entries = buffer.get(..read).unwrap_or_default();
        if entries.is_empty() {
            break;
        }
        // struct linux_dirent64: inode and offset, 8 bytes each, length, type, and the name.
        while let Some(&[low, high]) = entries.get(16..18) {
            let len = usize::from(u16::from_le_bytes([low, high]));
            let name = entries.get(19..len).unwrap_or_default();
            let digits = name.iter().take_while(|byte| byte.is_ascii_digit());
            let number = digits.fold(None, |value: Option<u64>, digit| {
                value.unwrap_or(0).checked_mul(10)?.checked_add(u64::from(digit - b'0'))
            });
            found.extend(number.filter(|number| *number != folder));
            entries = entries.get(len.max(19)..).unwrap_or_default();
        }
    }
    system::close(folder);
    found
}

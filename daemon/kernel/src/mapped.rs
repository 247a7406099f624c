//! Memory that the daemon and a BPF program share.

use super::KernelError;
use std::mem::size_of;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// An mmap-able BPF array, seen as a slice of `T` that the kernel writes too.
pub(super) struct Mapped<T> {
    base: NonNull<T>,
    len: usize,
}

// SAFETY: the memory is owned by this value, and every access goes through volatile reads and
// writes of plain integers.
unsafe impl<T> Send for Mapped<T> {}

impl<T: Copy> Mapped<T> {
    pub(super) fn new(
        fd: BorrowedFd<'_>,
        len: usize,
        what: &'static str,
    ) -> Result<Self, KernelError> {
        let bytes = len * size_of::<T>();
        let fail = |source: std::io::Error| KernelError::Map { what, bytes, source };
        let length = NonZeroUsize::new(bytes)
            .ok_or_else(|| fail(std::io::ErrorKind::InvalidInput.into()))?;
        // SAFETY: a new shared mapping at an address of the kernel's choice; nothing else refers to
        // it.
        let base = unsafe {
            mmap(
                None,
                length,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED,
                fd,
                0,
            )
        }
        .map_err(|errno| fail(errno.into()))?;
        Ok(Self { base: base.cast(), len })
    }

    pub(super) fn pointer(&self, index: usize) -> Option<*mut T> {
        // SAFETY: index < len, so the result lies inside the mapping.
        (index < self.len).then(|| unsafe { self.base.as_ptr().add(index) })
    }

    pub(super) fn read(&self, index: usize) -> Option<T> {
        // SAFETY: the pointer is inside the mapping and aligned (page-aligned base, T's size a
        // multiple of its alignment); every bit pattern is a valid T (integers only).
        self.pointer(index).map(|pointer| unsafe { pointer.read_volatile() })
    }

    pub(super) fn write(&self, index: usize, value: T) {
        if let Some(pointer) = self.pointer(index) {
            // SAFETY: as in `read`.
            unsafe { pointer.write_volatile(value) }
        }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new` with this length, and nothing refers to it any
        // more. Failure leaves it mapped.
        let _ = unsafe { munmap(self.base.cast(), self.len * size_of::<T>()) };
    }
}

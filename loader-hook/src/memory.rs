//! Reads memory of the program that the hook runs in, only where it is known to be mapped.

use crate::system;
use core::slice;

/// Smallest page size of the machines that the hook runs on; permissions are per page.
pub const PAGE: usize = 4096;

/// The bytes of the page that begins at `address`; None when no page begins there, or it cannot be
/// read.
pub fn page(address: usize) -> Option<&'static [u8]> {
    if !address.is_multiple_of(PAGE) || !system::is_readable(address) {
        return None;
    }
    // SAFETY: the kernel has just read there, and permissions are per page. No thread unmaps or
    // writes the headers of an object while the loader, which holds its lock, maps it.
    Some(unsafe { slice::from_raw_parts(address as *const u8, PAGE) })
}

/// The `len` bytes at `address`.
///
/// # Safety
/// The bytes must be readable, and no thread may write them while the slice is used.
pub unsafe fn bytes(address: usize, len: usize) -> &'static [u8] {
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(address as *const u8, len) }
}

/// The bytes before the NUL at `start`, if there is one within `max` bytes.
///
/// # Safety
/// `start` is null or leads to a string that ends in NUL, and that nobody writes as long as the
/// slice is used.
pub unsafe fn string(start: *const u8, max: usize) -> Option<&'static [u8]> {
    if start.is_null() {
        return None;
    }
    // SAFETY: no byte after the first NUL is read.
    let len = (0..=max).find(|at| unsafe { *start.add(*at) } == 0)?;
    // SAFETY: these bytes were just read.
    Some(unsafe { slice::from_raw_parts(start, len) })
}

/// The word at `address`.
///
/// # Safety
/// It is aligned and can be read.
pub unsafe fn word(address: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { *(address as *const usize) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_strings() {
        let here = pages_and_strings as fn() as usize & !(PAGE - 1);
        assert_eq!(page(here).map(<[u8]>::len), Some(PAGE));
        assert!(page(here + 8).is_none() && page(0).is_none() && page(PAGE).is_none());
        // SAFETY: string literals that end in NUL, or no string at all.
        let string = |text: *const u8, max| unsafe { string(text, max) };
        assert_eq!(string(c"/bin/x".as_ptr().cast(), 6), Some(&b"/bin/x"[..]));
        assert_eq!(string(c"/bin/x".as_ptr().cast(), 5), None);
        assert_eq!(string(c"".as_ptr().cast(), 0), Some(&b""[..]));
        assert_eq!(string(core::ptr::null(), 9), None);
    }
}

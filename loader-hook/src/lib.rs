//! The rtld-audit library (`LD_AUDIT`, rtld-audit(7)) that tells the daemon of each object the
//! dynamic loader maps.
//!
//! ```text
//! ld.so ──la_objopen──> object's headers ──> one datagram
//!       ──la_activity(LA_ACT_CONSISTENT)──> /run/dcpi/loader.sock
//! ```
//!
//! The hook runs inside strangers' programs, so it never fails, waits, allocates, prints or panics,
//! touches no signal and no errno, and leaves no descriptor open. When something goes wrong,
//! nothing is sent and the program goes on.
//!
//! The loader puts the hook into a namespace of its own. A dependency would be loaded there a
//! second time (a second C library takes 100 us and more), so the hook has none, not even on the C
//! library: it makes its system calls itself. `cargo xtask hook` links it with `-z defs`, and the
//! panic handler names a symbol that does not exist, so code that could panic, or that needs a
//! library, does not link.
//!
//! The loader holds its lock when it calls, so calls come one at a time. If one came within another
//! (from a signal handler that loads a library), its object would not be sent.
#![allow(
    unsafe_code,
    reason = "callbacks of the dynamic loader, and system calls without a library"
)]
#![cfg_attr(not(test), no_std)]
#![no_builtins]

mod audit;
mod elf;
mod memory;
mod stack;
mod system;

use core::cell::UnsafeCell;
use core::ffi::{c_char, c_long, c_uint};
use core::sync::atomic::{AtomicBool, Ordering};

/// The public fields of an object that the loader mapped, as in `<link.h>`.
#[repr(C)]
pub struct LinkMap {
    base: usize,
    name: *const c_char,
    dynamic: usize,
    next: *const LinkMap,
    previous: *const LinkMap,
}

/// The newest version of the interface that the hook knows: versions are 1, and 2 since glibc 2.35.
const VERSION_MAX: c_uint = 2;
/// `LA_ACT_CONSISTENT`: the loader has finished a request.
const CONSISTENT: c_uint = 0;

struct Shared {
    busy: AtomicBool,
    audit: UnsafeCell<audit::Audit>,
}

// SAFETY: `audit` is only reached through `with`, by the caller that has set `busy`.
unsafe impl Sync for Shared {}

static SHARED: Shared =
    Shared { busy: AtomicBool::new(false), audit: UnsafeCell::new(audit::Audit::new()) };

fn with(work: impl FnOnce(&mut audit::Audit)) {
    if SHARED.busy.swap(true, Ordering::Acquire) {
        return;
    }
    // SAFETY: `busy` was false and is true now, so nobody else has this reference until it is false
    // again.
    work(unsafe { &mut *SHARED.audit.get() });
    SHARED.busy.store(false, Ordering::Release);
}

/// The loader offers a version of the interface and accepts ours; 0 would refuse.
#[unsafe(no_mangle)]
pub extern "C" fn la_version(offered: c_uint) -> c_uint {
    offered.min(VERSION_MAX)
}

/// Notes an object that the loader has mapped. Returns 0, so that the loader does not audit the
/// binding of its symbols.
///
/// # Safety
/// `map` must come from the loader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn la_objopen(
    map: *const LinkMap,
    _namespace: c_long,
    _cookie: *mut usize,
) -> c_uint {
    // SAFETY: the loader gives a valid map, and changes nothing in it during this call.
    if let Some(map) = unsafe { map.as_ref() } {
        with(|audit| {
            audit.opened(&audit::Object { base: map.base, dynamic: map.dynamic, name: map.name })
        });
    }
    0
}

/// The loader begins or ends a request: at the end the noted objects are sent.
#[unsafe(no_mangle)]
pub extern "C" fn la_activity(_cookie: *mut usize, flag: c_uint) {
    if flag == CONSISTENT {
        with(audit::Audit::tell);
    }
}

/// The program begins. There is nothing to do, but the loader takes longer to look for a missing
/// function than to call it.
#[unsafe(no_mangle)]
pub extern "C" fn la_preinit(_cookie: *mut usize) {}

/// An object is unmapped. Empty; see [`la_preinit`].
#[unsafe(no_mangle)]
pub extern "C" fn la_objclose(_cookie: *mut usize) -> c_uint {
    0
}

/// Never linked: see the module's documentation.
#[cfg(all(panic = "abort", not(test)))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    unsafe extern "C" {
        safe fn a_panic_is_linked_into_the_loader_hook() -> !;
    }
    a_panic_is_linked_into_the_loader_hook()
}

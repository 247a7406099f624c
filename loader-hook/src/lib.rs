//! The rtld-audit library (`LD_AUDIT`, rtld-audit(7)) that tells the daemon of each object the
//! dynamic loader maps.
//!
//! ```text
//! ld.so ──la_objopen──> object's headers ──> one datagram
//!       ──la_activity(LA_ACT_CONSISTENT)──> /run/dcpi/loader.sock
//! ```
//!
//! It runs inside strangers' programs, so it never fails, waits, allocates, prints or panics,
//! touches no signal and no errno, and leaves no descriptor open. Whatever goes wrong, the daemon
//! hears nothing and the program goes on.
//!
//! The loader puts it into a namespace of its own. A dependency would be loaded there a second time
//! (a second C library, 100 us and more), so it has none, not even on the C library: its system
//! calls are its own. `cargo xtask hook` links it with `-z defs`, and the panic handler names a
//! symbol that nobody has, so code that could panic, or that needs a library, does not link.
//!
//! The loader calls with its lock held, so calls come one at a time; should one come within another
//! (a signal handler that loads a library), its object is not told of.
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

/// What `<link.h>` shows of an object that the loader mapped.
#[repr(C)]
pub struct LinkMap {
    base: usize,
    name: *const c_char,
    dynamic: usize,
    next: *const LinkMap,
    previous: *const LinkMap,
}

/// The newest version of the interface that we know: it has been 1, and 2 since glibc 2.35.
const VERSION_MAX: c_uint = 2;
/// `LA_ACT_CONSISTENT`: the loader is done with what it was asked for.
const CONSISTENT: c_uint = 0;

struct Shared {
    busy: AtomicBool,
    audit: UnsafeCell<audit::Audit>,
}

// SAFETY: `audit` is only reached through `with`, by whoever has set `busy`.
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

/// The loader offers a version of the interface and takes ours; 0 would be none.
#[unsafe(no_mangle)]
pub extern "C" fn la_version(offered: c_uint) -> c_uint {
    offered.min(VERSION_MAX)
}

/// The loader has mapped an object: it is noted. The answer 0 asks for no calls when its symbols
/// are bound, so binding costs nothing more.
///
/// # Safety
/// `map` is the loader's.
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

/// The loader begins or ends its work: at the end what was noted is told.
#[unsafe(no_mangle)]
pub extern "C" fn la_activity(_cookie: *mut usize, flag: c_uint) {
    if flag == CONSISTENT {
        with(audit::Audit::tell);
    }
}

/// The program begins. Nothing is left to do; but the loader spends more on looking for this
/// function in vain than on calling it.
#[unsafe(no_mangle)]
pub extern "C" fn la_preinit(_cookie: *mut usize) {}

/// An object goes away. Nothing to do; see [`la_preinit`].
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

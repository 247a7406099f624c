//! What programs with events compiled in are linked with (`asm-events` puts the events there): it
//! gives each thread room for its events, and hands full chunks to `dcpi trace` by a shared file.
//!
//! ```text
//! program's code ──events──> chunk ──full──> the file of area.rs ──> dcpi trace
//! ```
//!
//! It runs inside strangers' programs, so it takes no lock, allocates nothing but mappings, and
//! touches no errno. It waits only where `dcpi trace --wait` asked for it. Run without `dcpi
//! trace`, programs write their events into one chunk, over and over.
#![allow(unsafe_code, reason = "linked into strangers' programs, without a library")]
#![cfg_attr(all(feature = "inside", not(test)), no_std)]

pub mod area;
#[cfg(all(feature = "inside", target_arch = "x86_64"))]
mod chunks;
#[cfg(all(feature = "inside", target_arch = "x86_64"))]
mod entry;
#[cfg(all(feature = "inside", target_arch = "x86_64"))]
mod signals;
#[cfg(all(feature = "inside", target_arch = "x86_64"))]
mod system;

/// Never linked: code that could panic does not link.
#[cfg(all(feature = "inside", panic = "abort", not(test)))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    unsafe extern "C" {
        safe fn a_panic_is_linked_into_the_tracer() -> !;
    }
    a_panic_is_linked_into_the_tracer()
}

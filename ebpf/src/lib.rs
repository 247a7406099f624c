//! The sampler's compiled objects, one for each architecture, as committed: a build of the daemon needs no BPF compiler.
//!
//! Source: `sampler.bpf.c` (GPL-2.0, as the kernel asks of programs that call its helpers). `cargo xtask ebpf` rebuilds the objects with
//! Debian's clang; `cargo xtask ebpf --check` fails when the committed bytes do not come from the source.
#![no_std]
#![forbid(unsafe_code)]

/// Aligns the object as an ELF file's headers expect (8 bytes, ELF-64).
#[repr(align(8))]
struct Aligned<Bytes: ?Sized>(Bytes);

#[cfg(target_arch = "x86_64")]
static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!("../objects/sampler.x86_64.bpf.o"));
#[cfg(target_arch = "aarch64")]
static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!("../objects/sampler.aarch64.bpf.o"));

/// The sampler for the architecture this crate is compiled for: an ELF object with BTF, maps `CPUS`, `TABLE`, `SPILL`, `LOSSES` and
/// programs `sample_0` to `sample_15`.
#[must_use]
pub fn sampler() -> &'static [u8] {
    &OBJECT.0
}

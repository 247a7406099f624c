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

#[cfg(test)]
mod tests {
    use object::{Object as _, ObjectSection as _};

    /// Since Linux 6.13 a program with 64 bytes of stack or more has one of its own, for each CPU (kernel/bpf/verifier.c, BPF_PRIV_STACK_MIN_SIZE;
    /// sizes are rounded up to 16): one more page and line that no cache has. It cost a sixth of a sample.
    const STACK_BYTES_MAX: i32 = 48;

    #[test]
    fn samples_need_little_stack() {
        let object = object::File::parse(super::sampler()).unwrap();
        let mut deepest = 0;
        // Programs, and their functions.
        for section in ["perf_event", ".text"] {
            let code = object.section_by_name(section).unwrap().data().unwrap();
            let mut copy_of_frame = None;
            for instruction in code.chunks_exact(8) {
                let [opcode, registers, low, high, immediate @ ..] = <[u8; 8]>::try_from(instruction).unwrap();
                let (to, from) = (registers & 15, registers >> 4);
                let offset = i32::from(i16::from_le_bytes([low, high]));
                // Documentation/bpf/standardization/instruction-set.rst: loads, stores, and `rN = r10` before `rN += number`.
                let (load, store) = (opcode & 7 == 1, matches!(opcode & 7, 2 | 3));
                if (load && from == 10) || (store && to == 10) {
                    deepest = deepest.min(offset);
                }
                if opcode == 0x07 && copy_of_frame == Some(to) {
                    deepest = deepest.min(i32::from_le_bytes(immediate));
                }
                copy_of_frame = (opcode == 0xbf && from == 10).then_some(to);
            }
        }
        assert!((-STACK_BYTES_MAX..0).contains(&deepest), "{deepest}");
    }
}

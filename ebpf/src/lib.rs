//! The sampler's compiled objects, one for each architecture, as committed: a build of the daemon
//! needs no BPF compiler.
//!
//! Source: `sampler.bpf.c` and the C files that it includes (GPL-2.0, as the kernel asks of
//! programs that call its helpers). `cargo xtask ebpf` rebuilds the objects with Debian's clang;
//! `cargo xtask ebpf --check` fails when the committed bytes do not come from the source.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::vec::Vec;

/// Aligns the object as an ELF file's headers expect (8 bytes, ELF-64).
#[repr(align(8))]
struct Aligned<Bytes: ?Sized>(Bytes);

#[cfg(target_arch = "x86_64")]
static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!("../objects/sampler.x86_64.bpf.o"));
#[cfg(target_arch = "aarch64")]
static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!("../objects/sampler.aarch64.bpf.o"));

/// Settings of the sampler. They are chosen when it is loaded, and are the same for all its
/// programs.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Entries of a half's spill buffer; below 2^31.
    pub spill_entries: u32,
    /// Way in which the sampler reads the current task: 0 not at all, 1 by copying (Linux 5.10 with
    /// BTF), 2 through typed pointers (5.11).
    pub task_access: u32,
    /// Counts a program's own text, and that of two libraries, once for all processes that run it.
    pub share_programs: bool,
    /// Counts kernel addresses for each process.
    pub kernel_by_process: bool,
    /// Takes snapshots of registers.
    pub snapshots: bool,
    /// Buckets of a half in the map `TABLE`; 0: the buckets are those of the CPU's page.
    pub buckets: u32,
    /// Key of the hash that numbers of programs and libraries are made with.
    pub key: [u32; 4],
    /// Takes call stacks: 0 none, 1 of user code, 2 of kernel code with the user code that called
    /// it, which needs `bpf_task_pt_regs` (Linux 5.15) and typed pointers.
    pub stacks: u32,
}

/// Marker in the object's instructions for a setting, whose number is in the low byte; the twin of
/// `SETTING` in `settings.h`. Any number does that no other instruction loads.
const SETTING: u32 = 0x5e77_1e00;

/// The sampler for the architecture that this crate is compiled for: an ELF object with BTF, maps
/// `CPUS`, `SPILL`, `LOSSES` and programs `sample_0` to `sample_15`, with the settings written into
/// its instructions. The vector's address is a multiple of 16, as of every allocation of its size,
/// which readers of ELF need.
#[must_use]
pub fn sampler(settings: &Settings) -> Vec<u8> {
    let Settings {
        spill_entries,
        task_access,
        share_programs,
        kernel_by_process,
        snapshots,
        buckets,
        key: [first, second, third, fourth],
        stacks,
    } = *settings;
    let values = [
        spill_entries,
        task_access,
        share_programs.into(),
        kernel_by_process.into(),
        snapshots.into(),
        buckets,
        first,
        second,
        third,
        fourth,
        stacks,
    ];
    let mut object = OBJECT.0.to_vec();
    let (instructions, _) = object.as_chunks_mut::<8>();
    for [opcode, _, low, high, immediate @ ..] in instructions {
        // Instructions are aligned to 8 in the file, too. `rN = number`
        // (Documentation/bpf/standardization/instruction-set.rst).
        let number = u32::from_le_bytes(*immediate).wrapping_sub(SETTING + 1);
        if let (0xb7, 0, 0, Some(value)) = (*opcode, *low, *high, values.get(number as usize)) {
            *immediate = value.to_le_bytes();
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::{Object as _, ObjectSection as _, ObjectSymbol as _};

    /// Since Linux 6.13 a program with 64 bytes of stack or more has one of its own, for each CPU
    /// (kernel/bpf/verifier.c, BPF_PRIV_STACK_MIN_SIZE; sizes are rounded up to 16): one more page
    /// and line that no cache has. It cost a sixth of a sample.
    const STACK_BYTES_MAX: i32 = 48;
    /// The functions that may have more: they alone have stacks of their own then (`jit_subprogs`
    /// of the same file), and only samples of Perl and of LuaJIT run them.
    const WITH_MORE: [&str; 5] =
        ["copy_contexts", "note_calls", "note_state", "pass_new_frame", "running_base"];
    /// Most bytes of stack of these.
    const MORE_BYTES_MAX: i32 = 96;

    #[test]
    fn settings_are_in_the_instructions_and_nothing_else_is_touched() {
        let settings = |spill_entries| Settings {
            spill_entries,
            task_access: 2,
            share_programs: true,
            kernel_by_process: false,
            snapshots: true,
            buckets: 0,
            key: [1, 2, 3, 4],
            stacks: 2,
        };
        let stand_ins = |object: &[u8]| {
            let number = |word: &[u8; 4]| u32::from_le_bytes(*word).wrapping_sub(SETTING);
            let mut found = [0; 12];
            object.as_chunks().0.iter().map(number).for_each(|number| {
                found.get_mut(number as usize).into_iter().for_each(|count| *count += 1);
            });
            found
        };
        let before = stand_ins(&OBJECT.0);
        let is_right = |(number, count): (usize, &usize)| (*count > 0) == (number != 0);
        assert!(before.iter().enumerate().all(is_right), "each setting is asked for: {before:?}");
        let loaded = sampler(&settings(12345));
        assert_eq!(stand_ins(&loaded), [0; 12], "none is left");
        let changed = OBJECT
            .0
            .as_chunks::<4>()
            .0
            .iter()
            .zip(loaded.as_chunks::<4>().0)
            .filter(|(was, is)| was != is);
        assert_eq!(changed.count(), before.iter().sum::<usize>());
        let other = sampler(&settings(54321));
        let different = loaded
            .as_chunks::<4>()
            .0
            .iter()
            .zip(other.as_chunks::<4>().0)
            .filter(|(one, two)| one != two);
        let number = |word: &[u8; 4]| u32::from_le_bytes(*word);
        assert!(different.clone().all(|(one, two)| (number(one), number(two)) == (12345, 54321)));
        assert_eq!(different.count(), before[1]);
        assert!(object::File::parse(&*loaded).is_ok());
    }

    #[test]
    fn samples_need_little_stack() {
        let object = object::File::parse(&OBJECT.0).unwrap();
        let of_more = WITH_MORE.map(|name| {
            let symbol = object.symbols().find(|symbol| symbol.name() == Ok(name)).unwrap();
            symbol.address()..symbol.address() + symbol.size()
        });
        let (mut deepest, mut deeper) = (0, 0);
        // Programs, and their functions.
        for section in ["perf_event", ".text"] {
            let code = object.section_by_name(section).unwrap().data().unwrap();
            let mut copy_of_frame = None;
            for (at, instruction) in (0..).step_by(8).zip(code.chunks_exact(8)) {
                let is_of_more = section == ".text" && of_more.iter().any(|of| of.contains(&at));
                let deepest = if is_of_more { &mut deeper } else { &mut deepest };
                let [opcode, registers, low, high, immediate @ ..] =
                    <[u8; 8]>::try_from(instruction).unwrap();
                let (to, from) = (registers & 15, registers >> 4);
                let offset = i32::from(i16::from_le_bytes([low, high]));
                // Documentation/bpf/standardization/instruction-set.rst: loads, stores, and `rN =
                // r10` before `rN += number`.
                let (load, store) = (opcode & 7 == 1, matches!(opcode & 7, 2 | 3));
                if (load && from == 10) || (store && to == 10) {
                    *deepest = offset.min(*deepest);
                }
                if opcode == 0x07 && copy_of_frame == Some(to) {
                    *deepest = i32::from_le_bytes(immediate).min(*deepest);
                }
                copy_of_frame = (opcode == 0xbf && from == 10).then_some(to);
            }
        }
        assert!((-STACK_BYTES_MAX..0).contains(&deepest), "{deepest}");
        assert!((-MORE_BYTES_MAX..0).contains(&deeper), "{deeper}");
    }
}

//! From drained entries to counts per (image, offset): the paper's three look-ups per sample (section 4.3.1), shared by all entries of one
//! mapping because the entries are sorted first (its own future work, section 5.4).

use crate::images::{Image, MappedAt};
use crate::jit::{Asked, Jit, JitPlace};
use crate::kernel_text::KernelText;
use crate::mappings::{Mapping, Mappings, Window};
use crate::pending::Pending;
use crate::unresolved::Reason;
use crate::vdso::NarrowVdso;
use abi::{Entry, SPACE_FOREIGN, SPACE_KERNEL};
use image::ImageOffset;
use std::sync::Arc;

/// Sorts by address space, event and program counter, and adds up the entries of one place.
pub fn coalesce(entries: &mut Vec<Entry>) {
    entries.sort_unstable_by_key(|entry| (entry.space, entry.key));
    // Counts of one place that do not fit in one entry stay in two.
    entries.dedup_by(|next, kept| {
        let sum =
            if (next.space, next.key) == (kept.space, kept.key) { kept.count.checked_add(next.count) } else { None };
        sum.inspect(|sum| kept.count = *sum).is_some()
    });
}

/// What entries are resolved with.
pub struct Resolver<'a> {
    /// Processes.
    pub mappings: &'a mut Mappings,
    /// The kernel.
    pub kernel: &'a mut KernelText,
    /// The kernel's vdso, if there is one.
    pub vdso: Option<&'a Arc<Image>>,
    /// That of 32-bit programs.
    pub narrow_vdso: &'a mut NarrowVdso,
    /// Code that is in no file.
    pub jit: &'a mut Jit,
    /// When the entries were sampled.
    pub window: Window,
}

impl Resolver<'_> {
    /// Counts every entry in `pending`, under its image or under the reason why there is none. Entries must be [coalesced](coalesce).
    pub fn resolve(&mut self, entries: &[Entry], pending: &mut Pending) {
        for same in entries.chunk_by(|a, b| a.space == b.space && a.event() == b.event()) {
            let Some(first) = same.first() else { continue };
            match first.space {
                SPACE_KERNEL => self.resolve_kernel(same, pending),
                SPACE_FOREIGN => unresolve(same, Reason::OtherPidNamespace, pending),
                _ => self.resolve_process(first.pid(), first.generation(), same, pending),
            }
        }
    }

    fn resolve_kernel(&mut self, entries: &[Entry], pending: &mut Pending) {
        for entry in entries {
            match self.kernel.place(entry.pc()) {
                Ok(place) => {
                    pending.name(&place.image.id, place.symbol_range, place.symbol);
                    pending.count(&place.image, entry.event(), [(place.offset, u64::from(entry.count))].into_iter());
                }
                Err(reason) => pending.unresolve(entry.event(), reason, u64::from(entry.count)),
            }
        }
    }

    fn resolve_process(&mut self, pid: u32, generation: u16, mut entries: &[Entry], pending: &mut Pending) {
        while let Some(first) = entries.first() {
            let mapping = match self.mappings.find(pid, generation, first.pc(), self.window) {
                Ok(mapping) => mapping,
                Err(reason) => {
                    let (unknown, rest) = entries.split_at(1);
                    unresolve(unknown, reason, pending);
                    entries = rest;
                    continue;
                }
            };
            let (here, rest) = entries.split_at(entries.partition_point(|entry| entry.pc() < mapping.end).max(1));
            entries = rest;
            if self.jit.has_regions(pid) {
                here.chunks(1).for_each(|entry| self.resolve_registered(pid, generation, entry, &mapping, pending));
            } else {
                self.resolve_mapped(pid, generation, here, &mapping, pending);
            }
        }
    }

    /// Entries in one mapping.
    fn resolve_mapped(&mut self, pid: u32, generation: u16, here: &[Entry], mapping: &Mapping, pending: &mut Pending) {
        let Some(event) = here.first().map(Entry::event) else { return };
        let at = MappedAt { pid, start: mapping.start, end: mapping.end };
        let image = match NarrowVdso::is_at(mapping) {
            true => self.narrow_vdso.image(at),
            false => mapping.file.image(at, self.vdso),
        };
        match image {
            Ok(image) => {
                let offset =
                    |entry: &Entry| ImageOffset((entry.pc() - mapping.start).wrapping_add(mapping.file_offset));
                pending.count(&image, event, here.iter().map(|entry| (offset(entry), u64::from(entry.count))));
                for procedure in here.iter().filter_map(|entry| image.procedures.as_ref()?.find(offset(entry))) {
                    pending.name(&image.id, procedure.start.0..procedure.end.0, procedure.name());
                }
            }
            Err(reason) => {
                for entry in here {
                    let asked = Asked { pid, generation, address: entry.pc(), now_ns: self.window.to_ns };
                    match self.jit.place(asked, reason, mapping, self.mappings) {
                        Ok(place) => count_generated(entry, &place, pending),
                        Err(reason) => pending.unresolve(event, reason, u64::from(entry.count)),
                    }
                }
            }
        }
    }

    /// An entry of a process that has registered regions: these come first.
    fn resolve_registered(
        &mut self,
        pid: u32,
        generation: u16,
        one: &[Entry],
        mapping: &Mapping,
        pending: &mut Pending,
    ) {
        let Some(entry) = one.first() else { return };
        match self.jit.registered(Asked { pid, generation, address: entry.pc(), now_ns: self.window.to_ns }) {
            Some(place) => count_generated(entry, &place, pending),
            None => self.resolve_mapped(pid, generation, one, mapping, pending),
        }
    }
}

fn count_generated(entry: &Entry, place: &JitPlace, pending: &mut Pending) {
    pending.name(&place.image.id, place.range.clone(), &place.name);
    pending.count(&place.image, entry.event(), [(place.offset, u64::from(entry.count))].into_iter());
}

fn unresolve(entries: &[Entry], reason: Reason, pending: &mut Pending) {
    for entry in entries {
        pending.unresolve(entry.event(), reason, u64::from(entry.count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Machine, MappedFileId, Record, RecordKind, TimedRecord};
    use image::kernel::KernelSymbols;

    const KALLSYMS: &str = "ffffffff81000000 T _stext\nffffffff81000000 T startup\nffffffff81000100 T work\nffffffff81000200 T __cpuidle_text_start\n\
        ffffffff81000200 T halt\nffffffff81000300 T __cpuidle_text_end\nffffffff81000300 T pv_native_safe_halt\nffffffff81000400 T _etext\n\
        ffffffffc0000000 t run\t[driver]\nffffffffc0001000 t bpf_prog_aa_x\t[bpf]\n";
    const PID: u32 = (1 << abi::PID_BITS) - 9;

    fn record(start: u64, len: u64, file_offset: u64, build_id: u8, path: &str) -> TimedRecord {
        let file = MappedFileId::BuildId(vec![build_id; 20]);
        TimedRecord {
            time_ns: 1,
            kind: RecordKind::Mmap(Record { pid: PID, start, len, file_offset, path: path.into(), file }),
        }
    }

    fn resolved(entries: &[Entry]) -> Pending {
        let mut mappings = Mappings::default();
        mappings.apply(record(0x1000, 0x1000, 0x400, 1, "/bin/program"));
        mappings.apply(record(0x2000, 0x1000, 0, 2, "/lib/library"));
        let mut kernel = KernelText::new(&Machine::probe().unwrap());
        kernel.refresh(Some(KernelSymbols::parse(KALLSYMS.as_bytes()).unwrap()), 1);
        let mut entries = entries.to_vec();
        coalesce(&mut entries);
        let mut pending = Pending::new(2);
        let window = Window { from_ns: 0, to_ns: 10 };
        let (mut narrow_vdso, mut jit) = (NarrowVdso::default(), Jit::default());
        let (mappings, kernel, narrow_vdso, jit) = (&mut mappings, &mut kernel, &mut narrow_vdso, &mut jit);
        Resolver { mappings, kernel, vdso: None, narrow_vdso, jit, window }.resolve(&entries, &mut pending);
        pending
    }

    /// image name, event, offset, samples
    fn counts(pending: &Pending) -> Vec<(String, String, u64, u64)> {
        let delta = pending.delta(&["e0".into(), "e1".into()], 0);
        let mut rows: Vec<_> = delta
            .profiles
            .iter()
            .flat_map(|(key, profile)| {
                let image = delta.images[&key.image].name.clone();
                profile
                    .iter()
                    .map(move |(offset, samples)| (image.clone(), key.event.clone(), offset.0, samples))
                    .collect::<Vec<_>>()
            })
            .collect();
        rows.sort();
        rows
    }

    #[test]
    fn entries_of_one_place_are_added_up() {
        let mut entries = vec![
            Entry::new(0, 5, 9, 1),
            Entry::new(1, 5, 9, 2),
            Entry::new(0, 5, 9, 4),
            Entry::new(0, 5, 8, 7),
            Entry::new(0, 5, 8, u32::MAX),
        ];
        coalesce(&mut entries);
        let total: u64 = entries.iter().map(|entry| u64::from(entry.count)).sum();
        assert_eq!(total, 14 + u64::from(u32::MAX), "nothing wraps");
        assert!(entries.contains(&Entry::new(0, 5, 9, 5)) && entries.contains(&Entry::new(1, 5, 9, 2)));
    }

    #[test]
    fn samples_go_to_the_image_and_file_offset_they_were_taken_in() {
        let pending = resolved(&[
            Entry::new(0, 0x1010, PID, 3),
            Entry::new(0, 0x1fff, PID, 1),
            Entry::new(0, 0x2000, PID, 5),
            Entry::new(1, 0x1010, PID, 7),
            Entry::new(0, 0x3000, PID, 11),
        ]);
        let row = |image: &str, event: &str, offset, samples| (image.to_owned(), event.to_owned(), offset, samples);
        let expected = [
            row("library", "e0", 0, 5),
            row("program", "e0", 0x410, 3),
            row("program", "e0", 0x13ff, 1),
            row("program", "e1", 0x410, 7),
        ];
        assert_eq!(counts(&pending), expected);
        assert_eq!(pending.accounts()[0].unresolved.iter().collect::<Vec<_>>(), [(&Reason::NoMapping, &11)]);
    }

    #[test]
    fn kernel_addresses_go_to_the_kernel_its_parts_and_the_idle_loop() {
        let pending = resolved(&[
            Entry::new(0, 0xffff_ffff_8100_0104, SPACE_KERNEL, 3),
            Entry::new(0, 0xffff_ffff_8100_0210, SPACE_KERNEL, 50),
            Entry::new(0, 0xffff_ffff_8100_0308, SPACE_KERNEL, 9),
            Entry::new(0, 0xffff_ffff_c000_1008, SPACE_KERNEL, 2),
            Entry::new(0, 0xffff_ffff_ff60_0000, SPACE_KERNEL, 1),
            Entry::new(0, 0xffff_8000_0000_0000, SPACE_KERNEL, 4),
            Entry::new(0, 0x1234, SPACE_FOREIGN, 6),
        ]);
        let row = |image: &str, offset, samples| (image.to_owned(), "e0".to_owned(), offset, samples);
        assert_eq!(
            counts(&pending),
            [
                row("[bpf_prog_aa_x]", 8, 2),
                row("[idle]", 0x210, 50),
                row("[idle]", 0x308, 9),
                row("[kernel]", 0x104, 3)
            ]
        );
        let expected = [(Reason::Vsyscall, 1), (Reason::KernelTextUnknown, 4), (Reason::OtherPidNamespace, 6)];
        assert_eq!(pending.accounts()[0].unresolved.clone().into_iter().collect::<Vec<_>>(), expected);
        let delta = pending.delta(&["e0".into(), "e1".into()], 0);
        let names: Vec<_> =
            delta.symbols.values().flatten().map(|symbol| (symbol.name.as_str(), symbol.start, symbol.end)).collect();
        assert!(names.contains(&("work", 0x100, 0x200)) && names.contains(&("halt", 0x200, 0x300)), "{names:?}");
    }
}

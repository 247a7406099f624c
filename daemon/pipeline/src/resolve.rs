//! From drained entries to counts per (image, offset): the paper's three look-ups per sample
//! (section 4.3.1). Entries are sorted first, so that all entries of one mapping share a look-up
//! (the paper's own future work, section 5.4).

use crate::image_allowance::ImageAllowances;
use crate::late::LateSamples;
use abi::{Entry, Space};
use address_spaces::jit::{Asked, Jit, JitPlace};
use address_spaces::kernel_text::KernelText;
use address_spaces::mapped_files::Image;
use address_spaces::mappings::{Found, Mapping, Mappings, Window};
use address_spaces::scopes::{Rules, Tags};
use address_spaces::script_files::ScriptFiles;
use address_spaces::unknown_code::{Owner, UnknownCode};
use address_spaces::vdso32::NarrowVdso;
use image::{ImageKind, ImageOffset};
use inspect::open_mapped::MappedAt;
use model::Unresolved;
use pending::Pending;
use profiledb::Scope;
use std::sync::Arc;

/// Sorts by address space, event and program counter, and adds up the entries of one place.
pub fn coalesce(entries: &mut Vec<Entry>) {
    entries.sort_unstable_by_key(|entry| (entry.space, entry.key));
    // Counts of one place that overflow one entry stay in two.
    entries.dedup_by(|next, kept| {
        let sum = if (next.space, next.key) == (kept.space, kept.key) {
            kept.count.checked_add(next.count)
        } else {
            None
        };
        sum.inspect(|sum| kept.count = *sum).is_some()
    });
}

/// Everything that says which image an address belongs to, and whose a sample is.
pub struct Spaces {
    /// Processes and their mappings.
    pub mappings: Mappings,
    /// Text of the kernel.
    pub kernel: KernelText,
    /// The kernel's vdso, if there is one.
    vdso: Option<Arc<Image>>,
    /// The vdso of 32-bit programs.
    narrow_vdso: NarrowVdso,
    /// Code that is in no file.
    pub jit: Jit,
    /// Source files of interpreted functions.
    pub(crate) scripts: ScriptFiles,
    /// Images that stand for unknown code.
    pub(crate) unknown: UnknownCode,
    /// Allowances of images in the open epoch, by user.
    pub allowances: ImageAllowances,
    /// Samples of code that has no name yet.
    pub(crate) late: LateSamples,
}

impl Spaces {
    /// Spaces without generated code, images for unknown code and allowances; `run` is the random
    /// number of this run.
    pub fn new(mappings: Mappings, kernel: KernelText, vdso: Option<Arc<Image>>, run: u64) -> Self {
        Self {
            jit: Jit::new(run, mappings.system.clone()),
            mappings,
            kernel,
            vdso,
            narrow_vdso: NarrowVdso::default(),
            scripts: ScriptFiles::default(),
            unknown: UnknownCode::default(),
            allowances: ImageAllowances::default(),
            late: LateSamples::default(),
        }
    }

    /// A resolver of what was sampled in `window`.
    pub fn resolver(&mut self, window: Window) -> Resolver<'_> {
        Resolver { spaces: self, window }
    }
}

/// Resolves what was sampled in one window.
pub struct Resolver<'a> {
    pub(crate) spaces: &'a mut Spaces,
    pub(crate) window: Window,
}

impl Resolver<'_> {
    /// Counts every entry in `pending`, under its image or under the reason why it has none.
    /// Entries must be [coalesced](coalesce). Returns the processes for which kernel code was
    /// counted by process.
    pub fn resolve(&mut self, entries: &[Entry], pending: &mut Pending) -> Vec<u32> {
        let mut unscoped = Vec::new();
        for same in entries.chunk_by(|a, b| a.whose() == b.whose() && a.event() == b.event()) {
            let Some(first) = same.first() else { continue };
            // Kernel addresses have the higher keys. They have a process only where the sampler
            // counts kernel code by process, or does not know the scope of the process.
            let (user, kernel) =
                same.split_at(same.partition_point(|entry| entry.pc() as i64 >= 0));
            match first.whose() {
                Space::Kernel => self.resolve_kernel(0, &Tags::default(), same, pending),
                Space::Foreign => {
                    self.unresolve(user, Unresolved::OtherPidNamespace, None, pending);
                    self.resolve_kernel(0, &Tags::default(), kernel, pending);
                }
                Space::Process { pid, generation } => {
                    self.resolve_user(
                        (Some(pid), generation),
                        user,
                        pending,
                        |mappings, pc, window| {
                            let found = mappings.find(pid, generation, pc, window)?;
                            let at = MappedAt {
                                pid,
                                start: found.mapping.start,
                                end: found.mapping.end,
                            };
                            Ok((found, at))
                        },
                    );
                    if !kernel.is_empty() {
                        let tags = self.spaces.mappings.tags(pid, generation, self.window);
                        self.resolve_kernel(pid, &tags, kernel, pending);
                        if unscoped.last() != Some(&pid) {
                            unscoped.push(pid);
                        }
                    }
                }
                Space::KernelScope(number) => {
                    let tags = self.spaces.mappings.tagger.of_kernel_scope(number);
                    self.resolve_kernel(0, &tags.unwrap_or_default(), kernel, pending);
                }
                // Text of a process that is kept apart is not counted under its program.
                Space::Program(program) => {
                    self.resolve_user((None, 0), user, pending, |mappings, pc, window| {
                        let (mapping, at) = mappings.find_in_program(program, pc, window)?;
                        Ok((Found { mapping, tags: Tags::default() }, at))
                    })
                }
            }
        }
        unscoped
    }

    fn resolve_kernel(
        &mut self,
        pid: u32,
        tags: &Tags,
        mut entries: &[Entry],
        pending: &mut Pending,
    ) {
        if tags.excluded() {
            return self.unresolve(entries, Unresolved::Excluded, None, pending);
        }
        while let Some(first) = entries.first() {
            let place = match self.spaces.kernel.place(first.pc()) {
                Ok(place) => place,
                Err(reason) => {
                    let (unknown, rest) = entries.split_at(1);
                    self.unresolve(unknown, reason, Some((pid, 0)).filter(|_| pid > 0), pending);
                    entries = rest;
                    continue;
                }
            };
            let (here, rest) =
                entries.split_at(entries.partition_point(|entry| entry.pc() < place.until).max(1));
            entries = rest;
            match whose(self.spaces.mappings.tagger.rules(), tags, pid, &place.image) {
                Ok(scope) => {
                    pending.name(&place.image.id, place.symbol_range, place.symbol);
                    let offset =
                        |entry: &Entry| ImageOffset(place.offset.0 + (entry.pc() - first.pc()));
                    let places = here.iter().map(|entry| (offset(entry), u64::from(entry.count)));
                    pending.count(&place.image, first.event(), scope, places);
                }
                Err(reason) => self.unresolve(here, reason, None, pending),
            }
        }
    }

    /// Resolves entries of one generation of a process, or of a program that many processes run.
    fn resolve_user(
        &mut self,
        (pid, generation): (Option<u32>, u16),
        mut entries: &[Entry],
        pending: &mut Pending,
        find: impl Fn(&mut Mappings, u64, Window) -> Result<(Found, MappedAt), Unresolved>,
    ) {
        while let Some(first) = entries.first() {
            let (Found { mapping, tags }, at) =
                match find(&mut self.spaces.mappings, first.pc(), self.window) {
                    Ok(found) => found,
                    Err(reason) => {
                        let (unknown, rest) = entries.split_at(1);
                        self.unresolve(unknown, reason, pid.map(|pid| (pid, generation)), pending);
                        entries = rest;
                        continue;
                    }
                };
            let (here, rest) =
                entries.split_at(entries.partition_point(|entry| entry.pc() < mapping.end).max(1));
            entries = rest;
            if tags.excluded() {
                self.unresolve(here, Unresolved::Excluded, None, pending);
                continue;
            }
            let inside = Inside { at, generation, mapping: &mapping, tags: &tags };
            if self.spaces.jit.has_regions(at.pid) {
                here.chunks(1).for_each(|entry| self.resolve_registered(inside, entry, pending));
            } else {
                self.resolve_mapped(inside, here, pending);
            }
        }
    }

    /// The image that a mapping shows, whose code is kept unless the user leaves it out.
    pub(super) fn image_of(
        &mut self,
        mapping: &Mapping,
        at: MappedAt,
    ) -> Result<Arc<Image>, Unresolved> {
        if NarrowVdso::is_at(mapping) {
            return self.spaces.narrow_vdso.image(at, &self.spaces.mappings.system);
        }
        let left_out = &self.spaces.mappings.tagger.rules().exclude_images;
        mapping
            .file
            .image_kept_unless(at, self.spaces.vdso.as_ref(), |image| left_out.contain(image))
    }

    /// Resolves entries in one mapping.
    fn resolve_mapped(&mut self, inside: Inside<'_>, here: &[Entry], pending: &mut Pending) {
        let Some(event) = here.first().map(Entry::event) else { return };
        let Inside { at, mapping, .. } = inside;
        match self.image_of(mapping, at) {
            Ok(image) => {
                let scope =
                    match whose(self.spaces.mappings.tagger.rules(), inside.tags, at.pid, &image) {
                        Ok(scope) => scope,
                        Err(reason) => return self.unresolve(here, reason, None, pending),
                    };
                if !self.has_room(&image, at.pid, pending) {
                    let process = Some((at.pid, inside.generation));
                    return self.unresolve(here, Unresolved::TooManyImages, process, pending);
                }
                let offset = |entry: &Entry| {
                    ImageOffset((entry.pc() - mapping.start).wrapping_add(mapping.file_offset))
                };
                let places = here.iter().map(|entry| (offset(entry), u64::from(entry.count)));
                pending.count(&image, event, scope, places);
                for procedure in
                    here.iter().filter_map(|entry| image.procedures.as_ref()?.find(offset(entry)))
                {
                    pending.name(&image.id, procedure.start.0..procedure.end.0, procedure.name());
                }
            }
            Err(reason) => {
                for entry in here {
                    match self.spaces.jit.place(
                        self.asked(inside, entry),
                        reason,
                        mapping,
                        &self.spaces.mappings,
                    ) {
                        Ok(place) => self.count_generated(inside, entry, &place, pending),
                        Err(reason) if self.holds(inside, entry, reason, pending) => {}
                        Err(reason) => {
                            let process = Some((at.pid, inside.generation));
                            self.unresolve(std::slice::from_ref(entry), reason, process, pending);
                        }
                    }
                }
            }
        }
    }

    /// Counts entries under the reason why their image is not known and, where their process is
    /// known, under its program and scope as well. Only the number of excluded samples is kept.
    pub(crate) fn unresolve(
        &mut self,
        entries: &[Entry],
        reason: Unresolved,
        process: Option<(u32, u16)>,
        pending: &mut Pending,
    ) {
        let owner = process.and_then(|(pid, generation)| {
            let (file, tags) = self.spaces.mappings.program(pid, generation)?;
            if tags.excluded() {
                return None;
            }
            let (name, path) = file.shown();
            if self.spaces.mappings.tagger.rules().exclude_images.contain_file(&name, &path) {
                return None;
            }
            let image = self.spaces.unknown.of(&name, reason)?;
            let apart = self.spaces.mappings.tagger.rules().per_process.contain_file(&name, &path);
            let scope = if apart { Some(tags.of_process(pid)) } else { tags.scope().cloned() };
            Some(Owner { image, scope })
        });
        for entry in entries {
            pending.unresolve(entry.event(), reason, u64::from(entry.count), owner.as_ref());
        }
    }

    /// Resolves an entry of a process that has registered regions, which take precedence.
    fn resolve_registered(&mut self, inside: Inside<'_>, one: &[Entry], pending: &mut Pending) {
        let Some(entry) = one.first() else { return };
        match self.spaces.jit.registered(self.asked(inside, entry)) {
            Some(place) => self.count_generated(inside, entry, &place, pending),
            None => self.resolve_mapped(inside, one, pending),
        }
    }

    pub(crate) fn asked(&self, inside: Inside<'_>, entry: &Entry) -> Asked {
        let Inside { at, generation, .. } = inside;
        Asked { pid: at.pid, generation, address: entry.pc(), now_ns: self.window.to_ns }
    }

    /// Whether samples of process `pid` in this image may be counted: it waits already, is one of
    /// the epoch's, or the allowance of the process's user has room for one more.
    pub(super) fn has_room(&mut self, image: &Arc<Image>, pid: u32, pending: &mut Pending) -> bool {
        if pending.has(&image.id) || !matches!(image.kind, ImageKind::File | ImageKind::Jit) {
            return true;
        }
        let (mappings, now_ns) = (&mut self.spaces.mappings, self.window.to_ns);
        let payer = self.spaces.allowances.admit(image, now_ns, || mappings.payer(pid));
        payer.inspect(|payer| pending.charge(image, *payer)).is_some()
    }

    pub(crate) fn count_generated(
        &mut self,
        inside: Inside<'_>,
        entry: &Entry,
        place: &JitPlace,
        pending: &mut Pending,
    ) {
        let samples = u64::from(entry.count);
        match whose(self.spaces.mappings.tagger.rules(), inside.tags, inside.at.pid, &place.image) {
            Ok(_) if !self.has_room(&place.image, inside.at.pid, pending) => {
                let process = Some((inside.at.pid, inside.generation));
                let one = std::slice::from_ref(entry);
                self.unresolve(one, Unresolved::TooManyImages, process, pending);
            }
            Ok(scope) => {
                self.spaces.jit.want_bytes(inside.at.pid, place);
                pending.name(&place.image.id, place.range.clone(), &place.name);
                pending.count(
                    &place.image,
                    entry.event(),
                    scope,
                    [(place.offset, samples)].into_iter(),
                );
            }
            // The user asked to leave the samples out: only the number is kept.
            Err(reason) => pending.unresolve(entry.event(), reason, samples, None),
        }
    }
}

/// The place where entries were sampled.
#[derive(Clone, Copy)]
pub(crate) struct Inside<'a> {
    /// The process, and its address of the mapping.
    pub(crate) at: MappedAt,
    /// Generation of the address space; 0: not known.
    pub(crate) generation: u16,
    pub(crate) mapping: &'a Mapping,
    /// Tags of the process: its scope, and whether it is left out.
    pub(crate) tags: &'a Tags,
}

/// The scope of an image's samples; None unless the user asked to keep them apart.
fn whose(
    rules: &Rules,
    tags: &Tags,
    pid: u32,
    image: &Image,
) -> Result<Option<Arc<Scope>>, Unresolved> {
    if rules.exclude_images.contain(image) {
        return Err(Unresolved::Excluded);
    }
    if pid > 0 && rules.per_process.contain(image) {
        return Ok(Some(tags.of_process(pid)));
    }
    Ok(tags.scope().cloned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::{SPACE_FOREIGN, SPACE_KERNEL};
    use address_spaces::system::System;
    use image::kernel::KernelSymbols;
    use kernel::{MappedFileId, Record, RecordKind, TimedRecord};
    use model::Counted as _;

    const KALLSYMS: &str = "ffffffff81000000 T _stext\nffffffff81000000 T startup\nffffffff81000100 T work\nffffffff81000200 T __cpuidle_text_start\n\
        ffffffff81000200 T halt\nffffffff81000300 T __cpuidle_text_end\nffffffff81000300 T \
        pv_native_safe_halt\nffffffff81000400 T _etext\n\
        ffffffffc0000000 t run\t[driver]\nffffffffc0001000 t bpf_prog_aa_x\t[bpf]\n";
    const PID: u32 = (1 << abi::PID_BITS) - 9;

    fn record(start: u64, len: u64, file_offset: u64, build_id: u8, path: &str) -> TimedRecord {
        let file = MappedFileId::BuildId(vec![build_id; 20]);
        TimedRecord {
            time_ns: 1,
            kind: RecordKind::Mmap(Record {
                pid: PID,
                start,
                len,
                file_offset,
                path: path.into(),
                file,
            }),
        }
    }

    fn resolved(entries: &[Entry]) -> Pending {
        resolved_with(entries, Rules::default(), None)
    }

    /// The same with these rules, after the test's own process was labelled and had forked the
    /// sampled one.
    fn resolved_with(entries: &[Entry], rules: Rules, label: Option<&str>) -> Pending {
        let mut mappings = Mappings::default();
        mappings.keep_apart(rules);
        if let Some(label) = label {
            let me = std::process::id();
            mappings.label(me, None, (label, false), 0).unwrap();
            mappings
                .apply(TimedRecord { time_ns: 0, kind: RecordKind::Fork { pid: PID, parent: me } });
        }
        mappings.apply(record(0x1000, 0x1000, 0x400, 1, "/bin/program"));
        mappings.apply(record(0x2000, 0x1000, 0, 2, "/lib/library"));
        let mut entries = entries.to_vec();
        coalesce(&mut entries);
        let mut pending = Pending::new([1, 1]);
        let window = Window { from_ns: 0, to_ns: 10 };
        let mut spaces = Spaces::new(mappings, kernel_text(), None, 0);
        spaces.resolver(window).resolve(&entries, &mut pending);
        pending
    }

    fn kernel_text() -> KernelText {
        let kernel = image::ImageId::from_name("kernel", "");
        let mut kernel = KernelText::new("6.1", kernel, System::default());
        kernel.refresh(Some(KernelSymbols::parse(KALLSYMS.as_bytes()).unwrap()), 1);
        kernel
    }

    /// image name, event, offset, samples
    fn counts(pending: &Pending) -> Vec<(String, String, u64, u64)> {
        let delta = pending.delta(&["e0".into(), "e1".into()], 0);
        let mut rows: Vec<_> = delta
            .profiles
            .iter()
            .filter(|(key, _)| !key.image.is_unresolved())
            .flat_map(|(key, profile)| {
                let image = delta.images[&key.image].name.clone();
                model::Profile::of(profile.clone())
                    .unwrap()
                    .iter()
                    .map(move |(offset, samples)| {
                        (image.clone(), key.name().to_owned(), offset.0, samples)
                    })
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
        assert!(
            entries.contains(&Entry::new(0, 5, 9, 5)) && entries.contains(&Entry::new(1, 5, 9, 2))
        );
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
        let row = |image: &str, event: &str, offset, samples| {
            (image.to_owned(), event.to_owned(), offset, samples)
        };
        let expected = [
            row("library", "e0", 0, 5),
            row("program", "e0", 0x410, 3),
            row("program", "e0", 0x13ff, 1),
            row("program", "e1", 0x410, 7),
        ];
        assert_eq!(counts(&pending), expected);
        assert_eq!(
            pending.accounts().next().unwrap().1.unresolved.iter().collect::<Vec<_>>(),
            [(&Unresolved::NoMapping, &11)]
        );
    }

    /// image name, label, process, samples
    fn scopes(pending: &Pending) -> Vec<(String, Option<String>, Option<u32>, u64)> {
        let delta = pending.delta(&["e0".into(), "e1".into()], 0);
        let row = |(key, profile): (&profiledb::ProfileKey, &model::Counts)| {
            (
                delta.images[&key.image].name.clone(),
                key.scope.label.clone(),
                key.scope.pid,
                profile.total(),
            )
        };
        let mut rows: Vec<_> = delta.profiles.iter().map(row).collect();
        rows.sort();
        rows
    }

    #[test]
    fn samples_are_told_apart_by_label_and_process_where_that_is_asked_for() {
        let kernel = 0xffff_ffff_8100_0104;
        let entries = [
            Entry::new(0, 0x1010, PID, 3),
            Entry::new(0, 0x2000, PID, 5),
            Entry::new(0, kernel, SPACE_KERNEL, 7),
            Entry::new(0, kernel, PID, 11),
            Entry::new(0, kernel, SPACE_FOREIGN, 13),
        ];
        let row = |image: &str, label: Option<&str>, pid, samples| {
            (image.to_owned(), label.map(str::to_owned), pid, samples)
        };
        let nothing = [
            row("[kernel]", None, None, 31),
            row("library", None, None, 5),
            row("program", None, None, 3),
        ];
        assert_eq!(scopes(&resolved(&entries)), nothing, "whatever the sampler counts by process");
        assert_eq!(
            scopes(&resolved_with(&entries, Rules::default(), Some("run"))),
            [
                row("[kernel]", None, None, 20),
                row("[kernel]", Some("run"), None, 11),
                row("library", Some("run"), None, 5),
                row("program", Some("run"), None, 3)
            ]
        );
        let mut mappings = Mappings::default();
        mappings.keep_apart(Rules::default());
        mappings.label(std::process::id(), None, ("run", false), 0).unwrap();
        let number = mappings.kernel_scope(std::process::id()).unwrap();
        assert_eq!(number, 1, "the first scope");
        let scoped = [
            Entry::in_kernel_scope(0, kernel, number, 17),
            Entry::in_kernel_scope(0, kernel, number + 1, 19),
        ];
        let (mut scoped_entries, mut pending) = (scoped.to_vec(), Pending::new([1, 1]));
        coalesce(&mut scoped_entries);
        let window = Window { from_ns: 0, to_ns: 10 };
        let unscoped = Spaces::new(mappings, kernel_text(), None, 0)
            .resolver(window)
            .resolve(&scoped_entries, &mut pending);
        assert!(unscoped.is_empty(), "{unscoped:?}");
        assert_eq!(
            scopes(&pending),
            [row("[kernel]", None, None, 19), row("[kernel]", Some("run"), None, 17)],
            "a number that no scope has is nobody's"
        );
        let per_process =
            address_spaces::scopes::Images::new(&["program".into(), "[kernel]".into()]);
        let rules = Rules { per_process, ..Rules::default() };
        assert_eq!(
            scopes(&resolved_with(&entries, rules.clone(), None)),
            [
                row("[kernel]", None, None, 20),
                row("[kernel]", None, Some(PID), 11),
                row("library", None, None, 5),
                row("program", None, Some(PID), 3)
            ]
        );
        assert!(scopes(&resolved_with(&entries, rules, Some("run"))).contains(&row(
            "program",
            Some("run"),
            Some(PID),
            3
        )));
    }

    /// `dcpi record -- node hot.js` showed 1,171 of 22,816 samples: those of code that node made at
    /// run time had no label, so that they were in no report of the command.
    #[test]
    fn samples_of_unknown_code_keep_program_label_and_process() {
        let entries = [
            Entry::new(0, 0x9000, PID, 4),
            Entry::new(1, 0x9100, PID, 2),
            Entry::new(0, 0x1010, PID, 3),
        ];
        let unknown = |pending: &Pending| {
            let delta = pending.delta(&["e0".into(), "e1".into()], 0);
            let row = |(key, profile): (&profiledb::ProfileKey, &model::Counts)| {
                let image = &delta.images[&key.image];
                assert_eq!(
                    (image.kind, image.path.as_str()),
                    (image::ImageKind::Unresolved, "no_mapping")
                );
                (
                    key.name().to_owned(),
                    image.name.clone(),
                    key.scope.label.clone(),
                    key.scope.pid,
                    profile.total(),
                )
            };
            delta
                .profiles
                .iter()
                .filter(|(key, _)| key.image.is_unresolved())
                .map(row)
                .collect::<Vec<_>>()
        };
        let row = |event: &str, label: Option<&str>, pid, samples| {
            (event.to_owned(), "program".to_owned(), label.map(str::to_owned), pid, samples)
        };
        let pending = resolved_with(&entries, Rules::default(), Some("run"));
        assert_eq!(
            unknown(&pending),
            [row("e0", Some("run"), None, 4), row("e1", Some("run"), None, 2)]
        );
        assert_eq!(pending.samples(0), 3, "they are unresolved, not pending");
        let per_process = Rules {
            per_process: address_spaces::scopes::Images::new(&["program".into()]),
            ..Rules::default()
        };
        let pending = resolved_with(&entries, per_process, None);
        assert_eq!(
            unknown(&pending),
            [row("e0", None, Some(PID), 4), row("e1", None, Some(PID), 2)]
        );
        let account = pending.accounts().next().unwrap().1;
        assert_eq!((account.resolved, account.unresolved[&Unresolved::NoMapping]), (3, 4));
        let nobody = Entry::new(0, 0x9000, PID + 1, 7);
        assert_eq!(unknown(&resolved(&[nobody])), [], "a process that is not known has no program");
    }

    /// What is left out is a number, and nothing else of it reaches the database.
    #[test]
    fn what_is_left_out_is_counted_and_leaves_no_trace() {
        let entries = [
            Entry::new(0, 0x1010, PID, 3),
            Entry::new(0, 0x2000, PID, 5),
            Entry::new(0, 0x9000, PID, 1),
            Entry::new(0, 0xffff_ffff_8100_0104, SPACE_KERNEL, 7),
        ];
        let exclude = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            Rules {
                exclude_images: address_spaces::scopes::Images::new(&names),
                ..Rules::default()
            }
        };
        for (names, left, excluded) in [
            (&["program"][..], &["[kernel]", "library"][..], 3),
            (&["library"][..], &["[kernel]", "program"][..], 5),
            (&["/lib/library", "/bin/program"], &["[kernel]"], 8), // its unknown code, too
            (&["[kernel]"], &["library", "program"], 7),
        ] {
            let pending = resolved_with(&entries, exclude(names), None);
            let delta = pending.delta(&["e0".into(), "e1".into()], 0);
            let mut images: Vec<_> =
                delta.images.values().map(|image| image.name.as_str()).collect();
            images.sort_unstable();
            images.dedup();
            assert_eq!(images, left);
            assert!(delta.symbols.keys().all(|id| delta.images.contains_key(id)));
            assert_eq!(
                pending.accounts().next().unwrap().1.unresolved[&Unresolved::Excluded],
                excluded,
                "{names:?}"
            );
        }
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
        let row =
            |image: &str, offset, samples| (image.to_owned(), "e0".to_owned(), offset, samples);
        assert_eq!(
            counts(&pending),
            [
                row("[bpf_prog_aa_x]", 8, 2),
                row("[idle]", 0x210, 50),
                row("[idle]", 0x308, 9),
                row("[kernel]", 0x104, 3)
            ]
        );
        let expected = [
            (Unresolved::Vsyscall, 1),
            (Unresolved::KernelTextUnknown, 4),
            (Unresolved::OtherPidNamespace, 6),
        ];
        assert_eq!(
            pending.accounts().next().unwrap().1.unresolved.clone().into_iter().collect::<Vec<_>>(),
            expected
        );
        let delta = pending.delta(&["e0".into(), "e1".into()], 0);
        let names: Vec<_> = delta
            .symbols
            .values()
            .flatten()
            .map(|symbol| (symbol.name.as_str(), symbol.start, symbol.end))
            .collect();
        assert!(
            names.contains(&("work", 0x100, 0x200)) && names.contains(&("halt", 0x200, 0x300)),
            "{names:?}"
        );
    }
}

//! Finds the images of mapped files: the build of the file that a mapping shows.
//!
//! An inspector opens the file, through the process while it lives, and reads it, unless the
//! [catalogue](inspect::file_catalogue) knows it. That happens once for a file, soon after it was
//! mapped, because it may be gone when its first sample is resolved. With its first sample the file
//! is offered to the librarian through the [library](crate::library), which keeps its code.

use crate::file_versions::Versions;
use crate::library::{Library, Offer, Wanted};
use crate::system::{Identity, System};
use image::{ImageId, ImageKind, Procedures};
use inspect::file_facts::State;
use inspect::open_mapped::MappedAt;
use inspect::questions::{Facts, FileAt, Identified, Identify, Known};
use inspect::vdso::{memory_of, own_vdso_range};
use kernel::MappedFileId;
use kernel::clock;
use kernel::latin1::Bytes;
use model::Unresolved;
use profiledb::ImageRecord;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Files kept although no process maps them. Above this limit they are forgotten, and identified
/// again if they return.
const FILES_MAX: usize = 16_384;

/// Files that are read as soon as they are mapped, each time records are read. Further files are
/// read at their first sample, if they are unchanged.
const IDENTIFIED_MAX: usize = 64;
/// CPU time for these files, in ns: a file without build id may have up to 256 MiB of text to read.
const IDENTIFIED_NS_MAX: u64 = 20_000_000;
/// Most messages of the sampler that wait for the kernel's record of the same mapping: more than
/// processes map at one moment. A file whose message finds no room is inspected instead.
const TOLD_MAX: usize = 4096;

/// Most processes through which dcpid tries to open a file that the first one no longer led to:
/// the file may still exist in the mount namespace of another process.
const LOOKED_FOR_MAX: u32 = 8;

/// An image: code with a name that is still valid after a reboot.
#[derive(Debug)]
pub struct Image {
    /// The build.
    pub id: ImageId,
    /// The kind of the image.
    pub kind: ImageKind,
    /// Last component of the path, or a name in brackets.
    pub name: String,
    /// Path as the process named it, escaped as in the database ([`ImageRecord::escape_path`]).
    pub path: String,
    /// Size of the file in bytes, where it was opened.
    pub size_bytes: Option<u64>,
    /// Procedures of an image that is nowhere on disk (the vdso), to be kept beside its profile.
    pub procedures: Option<Procedures>,
}

impl Image {
    /// Whether the file was removed before it could be read.
    fn is_gone(&self) -> bool {
        self.kind == ImageKind::File && self.id.is_name()
    }
}

/// A file as processes map it.
#[derive(Debug)]
pub struct MappedFile {
    /// The kernel's identification of the file.
    pub id: MappedFileId,
    /// Path or label.
    pub path: Vec<u8>,
    image: OnceLock<Result<Arc<Image>, Unresolved>>,
    gone: Mutex<Option<Gone>>,
    library: Library,
    system: System,
    offer: Arc<Offer>,
}

/// A file that could not be opened.
#[derive(Debug)]
struct Gone {
    /// The process that was last asked for it.
    pid: u32,
    tries: u32,
    found: Result<Arc<Image>, Unresolved>,
}

/// Files of one identity, by path.
type Paths = HashMap<Box<[u8]>, Arc<MappedFile>, foldhash::fast::RandomState>;

/// What the sampler told of a file that is being mapped.
#[derive(Debug)]
struct Told {
    start: u64,
    state: State,
    number: u32,
}

/// All files that processes map, each once.
#[derive(Debug, Default)]
pub struct Files {
    /// Keyed by identity, then by path; nearly always one path. A user may make 16,000 hard links
    /// to a file, so paths are hashed instead of searched.
    known: HashMap<MappedFileId, Paths, foldhash::fast::RandomState>,
    len: usize,
    /// Number of known files at which unmapped files are next forgotten.
    sweep_at: usize,
    versions: Versions,
    /// By process: what the sampler told of the file of its next record.
    told: HashMap<u32, Told, foldhash::fast::RandomState>,
    /// The sampler's numbers of files.
    numbers: HashMap<MappedFileId, u32, foldhash::fast::RandomState>,
    /// Since the last records were read.
    identified: usize,
    /// CPU time that took, ns.
    identified_ns: u64,
    /// The library in which images are looked up and kept.
    pub library: Library,
    /// Answers questions about files.
    pub system: System,
}

impl Files {
    /// The file of that identity and path.
    pub fn intern(&mut self, id: MappedFileId, path: &[u8]) -> Arc<MappedFile> {
        if let Some(file) = self.known.get(&id).and_then(|paths| paths.get(path)) {
            // An inode that no process maps any longer may meanwhile be a different file: rebuilt
            // in place, or with a reused number.
            let may_be_another =
                matches!(id, MappedFileId::Inode { .. }) && Arc::strong_count(file) == 1;
            if !may_be_another {
                return file.clone();
            }
        }
        if self.len >= self.sweep_at.max(FILES_MAX) {
            self.sweep();
        }
        let file = Arc::new(MappedFile {
            id: id.clone(),
            path: path.to_vec(),
            image: OnceLock::new(),
            gone: Mutex::default(),
            library: self.library.clone(),
            system: self.system.clone(),
            offer: Arc::default(),
        });
        let before = self.known.entry(id).or_default().insert(path.into(), file.clone());
        self.len += usize::from(before.is_none());
        file
    }

    /// Forgets files that no process maps. The next sweep is due when the number of known files has
    /// doubled. With one sweep per new file, a user with 16,384 mapped files could easily keep the
    /// daemon busy with sweeps.
    fn sweep(&mut self) {
        for paths in self.known.values_mut() {
            paths.retain(|_, file| Arc::strong_count(file) > 1);
        }
        self.known.retain(|_, paths| !paths.is_empty());
        self.len = self.known.values().map(HashMap::len).sum();
        self.sweep_at = 2 * self.len;
    }

    /// Whether the file is known.
    pub fn have(&self, id: &MappedFileId, path: &[u8]) -> bool {
        self.known.get(id).is_some_and(|paths| paths.contains_key(path))
    }

    /// Called before more records are read, so that files are looked at again.
    pub fn look_anew(&mut self) {
        self.versions.look_anew();
        (self.identified, self.identified_ns) = (0, 0);
    }

    /// The sampler told the state of the file that process `pid` maps next, at `start`, and the
    /// number by which it knows the file in this state; 0: by none.
    pub fn hear_of(
        &mut self,
        pid: u32,
        start: u64,
        (size_low, changed_ns): (u32, u64),
        number: u32,
    ) {
        if self.told.len() < TOLD_MAX || self.told.contains_key(&pid) {
            let state = State { size_low, changed_ns };
            self.told.insert(pid, Told { start, state, number });
        }
    }

    /// The number by which the sampler knows where processes map the file
    /// ([`abi::FileRange`]). None: it was mapped before the sampler began, or long ago.
    pub fn number(&self, id: &MappedFileId) -> Option<u32> {
        self.numbers.get(id).copied()
    }

    /// Records were lost, so messages may be of records that never come.
    pub fn forget_what_was_told(&mut self) {
        self.told.clear();
    }

    /// The identity of a file that was mapped at `time_ns`: the inode, which the kernel's record
    /// has, and a hash of the file's state, so that a later build in the same inode is another
    /// file. The state is the sampler's, or, where its message is missing, an inspector's.
    pub fn look_at(
        &mut self,
        id: &MappedFileId,
        path: &[u8],
        at: MappedAt,
        time_ns: u64,
    ) -> MappedFileId {
        let MappedFileId::Inode { major, minor, inode: inode @ 1.. } = *id else {
            return id.clone();
        };
        let told = self.told.remove(&at.pid).filter(|told| told.start == at.start);
        if let Some(Told { state, number, .. }) = told {
            let content = Some(state.content(inode));
            let id = MappedFileId::Version { major, minor, inode, content };
            if self.numbers.len() >= FILES_MAX {
                self.numbers.clear();
            }
            if number != 0 {
                self.numbers.insert(id.clone(), number);
            }
            return id;
        }
        let versions = &mut self.versions;
        let question = (at.pid, at.start, time_ns);
        let inspectors = self.system.inspectors();
        let live = || versions.content(inspectors, id, path, at, time_ns);
        let content = self.system.content(question, live);
        MappedFileId::Version { major, minor, inode, content }
    }

    /// Reads a new file at once, because it may be gone at the drain.
    pub fn read_early(&mut self, id: &MappedFileId, path: &[u8], at: MappedAt) {
        let readable = matches!(id, MappedFileId::Version { content: Some(_), .. });
        if readable
            && self.identified < IDENTIFIED_MAX
            && self.identified_ns < IDENTIFIED_NS_MAX
            && !self.known.contains_key(id)
        {
            self.identified += 1;
            let inspectors = self.system.inspectors().clone();
            let cpu_ns = || clock::thread_cpu_ns() + inspectors.own_cpu_ns();
            let begun_ns = cpu_ns();
            let file = self.intern(id.clone(), path);
            // The file is not offered to the librarian, because it has no samples yet.
            let _ = file.identified(at, None);
            self.identified_ns += cpu_ns().saturating_sub(begun_ns);
        }
    }

    /// Files known now.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl MappedFile {
    /// Whether both are already known to be the same build, even under different paths: hard links,
    /// or a renamed file.
    pub fn is_same_build(&self, other: &MappedFile) -> bool {
        let anonymous = matches!(self.id, MappedFileId::Inode { inode: 0, .. });
        let same = std::ptr::eq(self, other)
            || (self.id == other.id && (!anonymous || self.path == other.path));
        same || self.build().is_some_and(|build| other.build() == Some(build))
    }

    fn build(&self) -> Option<ImageId> {
        match &self.id {
            MappedFileId::BuildId(_) => self.id.build(),
            MappedFileId::Inode { .. } | MappedFileId::Version { .. } => {
                Some(self.image.get()?.as_ref().ok()?.id)
            }
        }
    }

    /// The image, found out on the first call; `at` is where it is mapped then, and `vdso` the
    /// kernel's.
    pub fn image(&self, at: MappedAt, vdso: Option<&Arc<Image>>) -> Result<Arc<Image>, Unresolved> {
        self.image_kept_unless(at, vdso, |_| false)
    }

    /// Likewise, and offers the file's code to the librarian unless `is_left_out` says that nothing
    /// of it may reach the disk.
    pub fn image_kept_unless(
        &self,
        at: MappedAt,
        vdso: Option<&Arc<Image>>,
        is_left_out: impl Fn(&Image) -> bool,
    ) -> Result<Arc<Image>, Unresolved> {
        let image = self.identified(at, vdso);
        if let Ok(image) = &image
            && !is_left_out(image)
            && self.library.wants(&self.offer)
        {
            let wanted = Wanted { id: image.id, kind: image.kind, file: self.at(at) };
            self.library.offer(wanted, &self.offer);
        }
        image
    }

    /// The file, and where it is mapped.
    pub fn at(&self, at: MappedAt) -> FileAt {
        FileAt { id: self.id.clone(), path: Bytes(self.path.clone()), at }
    }

    /// The result, found now or earlier. If no inspector answered, the question is asked again the
    /// next time.
    fn identified(
        &self,
        at: MappedAt,
        vdso: Option<&Arc<Image>>,
    ) -> Result<Arc<Image>, Unresolved> {
        if let Some(known) = self.image.get() {
            return known.clone();
        }
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gone) = gone.as_ref().filter(|gone| gone.pid == at.pid) {
            return gone.found.clone();
        }
        let found = self.identify(at, vdso);
        let tries = gone.as_ref().map_or(0, |gone| gone.tries) + 1;
        match &found {
            Err(Unresolved::NotAnswered) => return found,
            Err(Unresolved::FileGone) => {}
            Ok(image) if image.is_gone() => {}
            _ => return self.image.get_or_init(|| found).clone(),
        }
        if tries >= LOOKED_FOR_MAX {
            return self.image.get_or_init(|| found).clone();
        }
        *gone = Some(Gone { pid: at.pid, tries, found: found.clone() });
        found
    }

    fn identify(&self, at: MappedAt, vdso: Option<&Arc<Image>>) -> Result<Arc<Image>, Unresolved> {
        match self.path.as_slice() {
            b"[vdso]" => return vdso.cloned().ok_or(Unresolved::Unidentified),
            b"[vsyscall]" => return Err(Unresolved::Vsyscall),
            b"[stack]" => return Err(Unresolved::ExecutableStack),
            // The page where instructions under a probe run, and since 6.18 also the one where
            // their trampolines are (kernel/events/uprobes.c, arch/x86/kernel/uprobes.c).
            b"[uprobes]" | b"[uprobes-trampoline]" => return Err(Unresolved::UprobesPage),
            // Special pages of 32-bit Arm programs (arch/arm64/kernel/vdso.c).
            b"[vectors]" | b"[sigpage]" => return Err(Unresolved::KernelPage),
            _ => {}
        }
        match &self.id {
            MappedFileId::BuildId(_) => {
                let id = self.id.build().ok_or(Unresolved::Unidentified)?;
                Ok(Arc::new(self.as_image(id, None)))
            }
            MappedFileId::Inode { inode: 0, .. } => Err(Unresolved::Anonymous),
            MappedFileId::Inode { .. } | MappedFileId::Version { .. } => {
                let live = || match self.identify_file(at) {
                    Ok((id, size_bytes)) => Identity::Image(id.to_string(), Some(size_bytes)),
                    Err(reason) => match self.id_of_gone(reason) {
                        Some(id) => Identity::Image(id.to_string(), None),
                        None => Identity::Unknown(reason.name().to_owned()),
                    },
                };
                let (id, size_bytes) = known(self.system.identity(&self.id, &self.path, live))?;
                Ok(Arc::new(self.as_image(id, size_bytes)))
            }
        }
    }

    /// The image and the size in bytes of the file: from the catalogue, or else from the file, and
    /// then the catalogue knows.
    fn identify_file(&self, at: MappedAt) -> Result<(ImageId, u64), Unresolved> {
        let (inspectors, catalogue) = (self.system.inspectors(), &self.library.catalogue);
        for (known, before, after) in inspectors.take_learnt() {
            catalogue.learn(&before, &after, known);
        }
        let facts = inspectors.ask(Facts(self.at(at))).ok_or(Unresolved::NotAnswered)?;
        let (facts, owner) = facts.ok_or(Unresolved::FileGone)?;
        let known = match catalogue.find(&facts) {
            Some(known) => known,
            None => match inspectors.ask(Identify(self.at(at))) {
                None => return Err(Unresolved::NotAnswered),
                Some(Identified::Gone) => return Err(Unresolved::FileGone),
                Some(Identified::Unreadable) => return Err(Unresolved::Unidentified),
                Some(Identified::Known(known, before, after)) => {
                    catalogue.learn(&before, &after, known);
                    known
                }
            },
        };
        match known {
            Known::Image(id) => Ok((id.owned_by(owner), facts.size)),
            Known::NotElf => Err(Unresolved::NotElf),
        }
    }

    /// The id of a file that was removed before it could be read, where its state when it was
    /// mapped is known: a short-lived program that a build has made and deleted. None for memory
    /// that never had a name of its own.
    fn id_of_gone(&self, reason: Unresolved) -> Option<ImageId> {
        let MappedFileId::Version { major, minor, inode, content: Some(content) } = &self.id else {
            return None;
        };
        let had_name = reason == Unresolved::FileGone
            && self.path.starts_with(b"/")
            && !self.path.starts_with(b"/memfd:")
            && !self.path.ends_with(b" (deleted)");
        let salt = || format!("{major}:{minor} {inode} {content}");
        had_name.then(|| ImageId::from_name(&String::from_utf8_lossy(&self.path), &salt()))
    }

    fn as_image(&self, id: ImageId, size_bytes: Option<u64>) -> Image {
        let (name, path) = self.shown();
        Image { id, kind: ImageKind::File, name, path, size_bytes, procedures: None }
    }

    /// Name and path, as an image has them.
    pub fn shown(&self) -> (String, String) {
        let path = self.path.strip_suffix(b" (deleted)").unwrap_or(&self.path);
        let path = ImageRecord::escape_path(Path::new(OsStr::from_bytes(path)));
        (path.rsplit('/').find(|part| !part.is_empty()).unwrap_or("?").to_owned(), path)
    }

    /// Whether it may be the program of a process: a file by its path, no memory that only looks
    /// like one (`//anon`, `[heap]`, `/memfd:`, `/dev/zero`).
    pub fn is_file(&self) -> bool {
        let memory = [&b"//"[..], b"/memfd:", b"/dev/zero"];
        self.path.starts_with(b"/") && !memory.iter().any(|begin| self.path.starts_with(begin))
    }
}

/// The image and size that an identity tells.
///
/// # Errors
/// The recorded reason; an unknown reason counts as a file that is gone.
pub fn known(identity: Option<Identity>) -> Result<(ImageId, Option<u64>), Unresolved> {
    match identity {
        Some(Identity::Image(id, size_bytes)) => {
            Ok((id.parse().map_err(|_| Unresolved::Unidentified)?, size_bytes))
        }
        Some(Identity::Unknown(name)) => {
            let reason = Unresolved::ALL.iter().find(|reason| reason.name() == name);
            Err(reason.copied().unwrap_or(Unresolved::FileGone))
        }
        None => Err(Unresolved::FileGone),
    }
}

/// The vdso of this process, which is the same in every 64-bit process under one kernel. None where
/// the kernel gives none.
pub fn own_vdso() -> Option<Arc<Image>> {
    let (start, end) = own_vdso_range()?;
    let bytes = memory_of("self", start, end)?;
    let id = image::identify(&bytes).ok()?;
    let procedures =
        image::procedures_of(&bytes, Some(&id), &[]).ok().map(|(procedures, _)| procedures);
    let (name, path) = ("[vdso]".to_owned(), "[vdso]".to_owned());
    let size_bytes = Some(end - start);
    Some(Arc::new(Image { id, kind: ImageKind::Vdso, name, path, size_bytes, procedures }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    fn here() -> MappedAt {
        MappedAt { pid: std::process::id(), start: 0, end: 0 }
    }

    #[test]
    fn a_file_without_a_build_id_in_its_record_is_opened_and_read() {
        let path = std::env::current_exe().unwrap();
        let metadata = path.metadata().unwrap();
        let (major, minor) = (
            nix::sys::stat::major(metadata.dev()) as u32,
            nix::sys::stat::minor(metadata.dev()) as u32,
        );
        let mut files = Files::default();
        let name = path.as_os_str().as_encoded_bytes();
        let image = files
            .intern(MappedFileId::Inode { major, minor, inode: metadata.ino() }, name)
            .image(here(), None)
            .unwrap();
        assert_eq!(image.id, image::identify_file(&std::fs::File::open(&path).unwrap()).unwrap());
        assert_eq!(image.size_bytes, Some(metadata.len()));
        assert_eq!(image.name, path.file_name().unwrap().to_str().unwrap());
        let other = files
            .intern(MappedFileId::Inode { major, minor, inode: metadata.ino() + 1 }, name)
            .image(here(), None);
        assert_eq!(other.unwrap_err(), Unresolved::FileGone, "the path now leads to another file");
    }

    #[test]
    fn labels_of_the_kernel_are_not_files() {
        let mut files = Files::default();
        let none = MappedFileId::Inode { major: 0, minor: 0, inode: 0 };
        for (path, reason) in [
            ("//anon", Unresolved::Anonymous),
            ("[vsyscall]", Unresolved::Vsyscall),
            ("[vdso]", Unresolved::Unidentified),
        ] {
            assert_eq!(
                files.intern(none.clone(), path.as_bytes()).image(here(), None).unwrap_err(),
                reason,
                "{path}"
            );
        }
        let vdso = own_vdso().expect("this kernel gives a vdso");
        assert_eq!(
            files.intern(none, b"[vdso] ").image(here(), Some(&vdso)).unwrap_err(),
            Unresolved::Anonymous
        );
        assert!(vdso.procedures.as_ref().is_some_and(|procedures| {
            procedures.iter().any(|p| p.name().contains("clock_gettime"))
        }));
    }

    #[test]
    fn a_build_id_needs_no_file() {
        let file = Files::default()
            .intern(MappedFileId::BuildId(vec![0xab; 20]), b"/gone/for/ever (deleted)");
        let image = file.image(here(), None).unwrap();
        assert_eq!((image.name.as_str(), image.path.as_str()), ("ever", "/gone/for/ever"));
        assert_eq!(image.id.to_string(), "ab".repeat(20));
    }

    /// A program without build id was rebuilt in place between two runs, and both runs' samples
    /// went to the first build.
    #[test]
    fn an_inode_that_nobody_maps_is_looked_at_again() {
        let mut files = Files::default();
        let id = MappedFileId::Inode { major: 0, minor: 1, inode: 2 };
        let first = files.intern(id.clone(), b"/bin/x");
        assert!(
            Arc::ptr_eq(&first, &files.intern(id.clone(), b"/bin/x")),
            "one that is mapped is the same"
        );
        let weak = Arc::downgrade(&first);
        drop(first);
        files.intern(id, b"/bin/x");
        assert!(weak.upgrade().is_none());
    }

    /// The runs of two builds in one inode within one drain: the dead process of the first still
    /// holds the file when the second is mapped.
    #[test]
    fn two_builds_in_one_inode_are_two_files_and_one_build_at_two_paths_is_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let mut files = Files::default();
        let mut look = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let metadata = path.metadata().unwrap();
            let (major, minor) = (
                nix::sys::stat::major(metadata.dev()) as u32,
                nix::sys::stat::minor(metadata.dev()) as u32,
            );
            let id = MappedFileId::Inode { major, minor, inode: metadata.ino() };
            let at = MappedAt { pid: u32::MAX, start: 0, end: 0 };
            files.look_anew();
            let id = files.look_at(&id, path.as_os_str().as_encoded_bytes(), at, u64::MAX);
            let file = files.intern(id, path.as_os_str().as_encoded_bytes());
            let other_path = files.intern(file.id.clone(), b"/link");
            (file.image(at, None), file, other_path)
        };
        let (first, first_file, other_path) = look(&own);
        let (second, second_file, _) = look(b"no program at all");
        assert_eq!(first.unwrap().id, image::identify(&own).unwrap(), "read when it was mapped");
        assert_eq!(second.unwrap_err(), Unresolved::NotElf);
        assert!(!first_file.is_same_build(&second_file) && first_file.is_same_build(&first_file));
        assert!(other_path.image(here(), None).unwrap().is_gone(), "changed since");
        let build =
            |files: &mut Files, path: &[u8]| files.intern(MappedFileId::BuildId(vec![5; 20]), path);
        let (one, link) = (build(&mut files, b"/one"), build(&mut files, b"/link"));
        assert!(!Arc::ptr_eq(&one, &link) && one.is_same_build(&link), "hard links");
    }

    /// The sampler tells the state that the file had when it was mapped, as `stat` shows it.
    #[test]
    fn what_the_sampler_tells_is_what_an_inspector_sees() {
        let exe = std::fs::metadata("/proc/self/exe").unwrap();
        let (major, minor) =
            (nix::sys::stat::major(exe.dev()) as u32, nix::sys::stat::minor(exe.dev()) as u32);
        let id = MappedFileId::Inode { major, minor, inode: exe.ino() };
        let path = std::env::current_exe().unwrap();
        let path = path.as_os_str().as_encoded_bytes();
        let mut files = Files::default();
        let seen = files.look_at(&id, path, here(), u64::MAX);
        let changed_ns = exe.ctime() as u64 * 1_000_000_000 + exe.ctime_nsec() as u64;
        let mut told = |start, changed_ns| {
            files.look_anew();
            files.hear_of(here().pid, start, (exe.size() as u32, changed_ns), 0);
            files.look_at(&id, path, here(), u64::MAX)
        };
        assert_eq!(told(here().start, changed_ns), seen);
        assert_ne!(told(here().start, changed_ns - 1), seen, "it was another build");
        assert_eq!(told(here().start + 4096, 1), seen, "another mapping's message");
    }

    /// A program that a build made and deleted has its name; one that another process still has is
    /// looked for there.
    #[test]
    fn a_file_that_is_gone_is_looked_for_through_other_processes() {
        let exe = std::fs::metadata("/proc/self/exe").unwrap();
        let (major, minor) =
            (nix::sys::stat::major(exe.dev()) as u32, nix::sys::stat::minor(exe.dev()) as u32);
        let content = Some(inspect::file_facts::FileFacts::of(&exe).content());
        let id = MappedFileId::Version { major, minor, inode: exe.ino(), content };
        let nobody = MappedAt { pid: u32::MAX, start: 0, end: 0 };
        let mut files = Files::default();
        let file = files.intern(id.clone(), b"/nowhere/conftest");
        let gone = file.image(nobody, None).unwrap();
        assert!(gone.is_gone() && gone.name == "conftest" && gone.size_bytes.is_none());
        let own = std::fs::read("/proc/self/exe").unwrap();
        let pid = std::process::id();
        let lines = kernel::procfs::executable_mappings(pid).unwrap();
        let path = std::env::current_exe().unwrap();
        let line = lines.iter().find(|line| line.path == path.as_os_str().as_encoded_bytes());
        let (start, end) = line.map(|line| (line.start, line.end)).unwrap();
        let found = file.image(MappedAt { pid, start, end }, None);
        // The capability to look through mappings is root's (CAP_CHECKPOINT_RESTORE).
        let may_look = nix::unistd::geteuid().is_root();
        let expected = if may_look { image::identify(&own).unwrap() } else { gone.id };
        assert_eq!(found.unwrap().id, expected);
        let memory = files.intern(id, b"/memfd:code (deleted)").image(nobody, None);
        assert_eq!(memory.unwrap_err(), Unresolved::FileGone, "it never had a name");
    }

    #[test]
    fn files_that_nobody_maps_are_forgotten() {
        let mut files = Files::default();
        let kept = files.intern(MappedFileId::BuildId(vec![1; 20]), b"/kept");
        for n in 0..FILES_MAX as u64 * 2 {
            files.intern(MappedFileId::Inode { major: 0, minor: 0, inode: n }, b"/passing");
        }
        assert!(files.len() <= FILES_MAX);
        assert!(Arc::ptr_eq(&kept, &files.intern(MappedFileId::BuildId(vec![1; 20]), b"/kept")));
    }
}

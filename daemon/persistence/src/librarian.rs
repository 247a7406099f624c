//! Keeps the code of images that have samples, so that they can be named, listed and analysed when
//! their files are gone.
//!
//! The drain reports each image once a day and never waits for this thread. An inspector of its own
//! opens the file at once, while the process lives, and this thread copies from it when there is
//! time: those that are deleted already first, then the smallest. Pieces of generated code are read
//! at once, and written as they come together.

use crate::generated::Generated;
use address_spaces::library::{CodeRequest, CodeStoreCounts, Library, Offer, Wanted};
use image::{ImageId, ImageKind, KeptFile, KeptRanges};
use inspect::file_catalogue::Catalogue;
use inspect::pool::Inspectors;
use inspect::questions::{Close, KeepError, Open, Opened, Raw, Read};
use inspect::vdso::vdso_bytes;
use kernel::clock;
use profiledb::{CodeStore, DbError};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

/// Images that the drain has offered and this thread has not looked at yet.
const REQUESTS_MAX: usize = 1024;
/// Files that are open and wait to be copied.
const WAITING_MAX: usize = 256;
/// Interval at which the catalogue of files is written to disk.
const SAVE_INTERVAL: Duration = Duration::from_secs(300);
/// Bytes that the store leaves free on the disk: the profiles need them.
const LEFT_FREE_BYTES: u64 = 64 << 20;
/// Limits of copying when the daemon ends: the time for deleted files, the time for the rest, which
/// the next daemon may find again, and the time to wait for this thread, because a file system may
/// never answer.
const LAST_DELETED_MAX: Duration = Duration::from_secs(3);
const LAST_OTHERS_MAX: Duration = Duration::from_millis(500);
const END_MAX: Duration = Duration::from_secs(4);
/// As nice as can be (setpriority(2)).
const NICENESS: i32 = 19;

/// The size limit of the store.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreLimits {
    /// Bytes on disk.
    pub bytes: u64,
    /// Part of one CPU that copying may take; None: any.
    pub cpu_share: Option<f64>,
    /// Whether code of files that are not world-readable is kept.
    pub private: bool,
}

/// The thread that keeps code and saves the catalogue.
pub struct Librarian {
    requests: SyncSender<CodeRequest>,
    counts: Arc<CodeStoreCounts>,
    done: Receiver<()>,
}

impl Librarian {
    /// Starts it. Without a store it only saves the catalogue. `limits` are the store's, and
    /// `inspectors` open the files.
    pub fn start(
        catalogue: Catalogue,
        store: Option<CodeStore>,
        limits: StoreLimits,
        inspectors: Inspectors,
    ) -> io::Result<(Self, Library)> {
        let (requests, queue) = mpsc::sync_channel(REQUESTS_MAX);
        let (ended, done) = mpsc::channel();
        let counts =
            Arc::new(CodeStoreCounts { limit_bytes: limits.bytes, ..CodeStoreCounts::default() });
        let desk = store.is_some().then(|| (requests.clone(), counts.clone()));
        let intake = Intake {
            queue,
            waiting: Vec::new(),
            catalogue: catalogue.clone(),
            inspectors,
            counts: counts.clone(),
            limits,
            generated: Generated::default(),
            rested: (Instant::now(), 0),
            last_copies_until: None,
        };
        let mut worker = Worker { store, intake, complaint: None };
        std::thread::Builder::new().name("librarian".into()).spawn(move || {
            worker.run();
            let _ = ended.send(()); // nobody may be waiting
        })?;
        Ok((Self { requests, counts, done }, Library::new(catalogue, desk)))
    }

    /// Tells it to end and waits until it has: it copies on for 3 s where files are deleted, and
    /// else for half a second.
    pub fn finish(self) {
        self.counts.ending.store(true, Relaxed);
        let _ = self.requests.try_send(CodeRequest::Wake); // with a full queue it is awake
        if self.done.recv_timeout(END_MAX) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the code of some images could not be read in time; it is not kept");
        }
    }
}

/// A file that is open, or the vdso, and waits to be copied.
struct Job {
    id: ImageId,
    ranges: KeptRanges,
    source: Code,
    offer: Arc<Offer>,
    /// It is deleted, and disappears with its last process.
    is_deleted: bool,
    path: Vec<u8>,
}

enum Code {
    /// Open at an inspector, which has this number ([`Inspectors::connection`]).
    File {
        handle: u32,
        connection: u64,
    },
    Memory(KeptFile),
}

/// Incoming requests, which are received even while a file is copied.
struct Intake {
    queue: Receiver<CodeRequest>,
    waiting: Vec<Job>,
    catalogue: Catalogue,
    inspectors: Inspectors,
    counts: Arc<CodeStoreCounts>,
    limits: StoreLimits,
    /// Pieces of generated code that wait to be written.
    generated: Generated,
    /// When this thread last rested, and its CPU time then, ns.
    rested: (Instant, u64),
    /// At the end.
    last_copies_until: Option<Instant>,
}

struct Worker {
    store: Option<CodeStore>,
    intake: Intake,
    complaint: Option<String>,
}

impl Worker {
    fn run(&mut self) {
        let lowered =
            rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICENESS);
        if let Err(error) = lowered {
            tracing::debug!(%error, "the librarian's priority stays");
        }
        self.show();
        let mut saved = Instant::now();
        while !self.intake.is_ending() {
            let until_due = self.intake.generated.due_in().unwrap_or(SAVE_INTERVAL);
            if self.intake.waiting.is_empty() && !self.intake.wait(until_due.min(SAVE_INTERVAL)) {
                break;
            }
            self.intake.take_all();
            if self.keep_generated(false) {
                // Its error is that the daemon ends.
                let _ = self.intake.rest();
            }
            if let Some(job) = self.intake.next() {
                self.keep(job);
            }
            if saved.elapsed() >= SAVE_INTERVAL {
                self.intake.catalogue.save();
                saved = Instant::now();
            }
        }
        self.intake.take_all();
        let end = Instant::now();
        while end.elapsed() < LAST_DELETED_MAX && self.keep_generated(true) {}
        while let Some(job) = self.intake.next() {
            let until = end + if job.is_deleted { LAST_DELETED_MAX } else { LAST_OTHERS_MAX };
            if Instant::now() >= until {
                break;
            }
            self.intake.last_copies_until = Some(until);
            self.keep(job);
        }
        self.intake.catalogue.save();
    }

    /// Writes the pieces of one image of generated code that are due. False: none are.
    fn keep_generated(&mut self, is_final: bool) -> bool {
        let Some((image, code)) = self.intake.generated.take_due(is_final) else { return false };
        let Some(store) = &mut self.store else { return true };
        let kept = store.follow().map_err(|error| error.to_string()).and_then(|()| {
            has_room(store, code.bytes())?;
            let pieces = code.pieces();
            let kept = store.add_pieces(&image, code.machine(), pieces, clock::unix_s());
            kept.map_err(|error| error.to_string())
        });
        let counts = &self.intake.counts;
        match kept {
            Ok(kept) => {
                counts.removed.fetch_add(kept.removed.len() as u64, Relaxed);
                self.intake.generated.written(image);
            }
            Err(error) => {
                counts.refused.fetch_add(1, Relaxed);
                tracing::warn!(%image, "generated code is not kept: {error}");
            }
        }
        self.show();
        true
    }

    /// Copies a file, if it is not kept yet.
    fn keep(&mut self, job: Job) {
        if let Some(store) = &mut self.store {
            let now = clock::unix_s();
            let outcome = match store.follow() {
                Err(error) => Err(error.to_string()),
                Ok(()) if store.has(&job.id) => {
                    store.seen(&job.id, now).map_err(|error| error.to_string())
                }
                Ok(()) => keep(store, &mut self.intake, &job, now),
            };
            if self.intake.is_ending() && outcome.is_err() {
                // The reason may only be a lack of time.
                tracing::debug!(
                    "the code of {} is not kept: {outcome:?}",
                    String::from_utf8_lossy(&job.path)
                );
                if self.intake.will_be_tried_again() {
                    self.intake.waiting.push(job);
                }
                return;
            }
            if let Err(error) = &outcome {
                self.intake.counts.refused.fetch_add(1, Relaxed);
                if self.complaint.as_ref() != Some(error) {
                    tracing::warn!(
                        "the code of {} is not kept: {error}",
                        String::from_utf8_lossy(&job.path)
                    );
                }
                job.offer.failed();
            }
            self.complaint = outcome.err();
        }
        self.show();
    }

    fn show(&self) {
        let counts = &self.intake.counts;
        if let Some(store) = &self.store {
            counts.images.store(store.len() as u64, Relaxed);
            counts.bytes.store(store.bytes(), Relaxed);
        }
        counts.waiting.store(self.intake.waiting.len() as u64, Relaxed);
    }
}

/// Copies a file into the store, whole or not at all; errors are one line.
fn keep(
    store: &mut CodeStore,
    intake: &mut Intake,
    job: &Job,
    now_unix_s: u64,
) -> Result<(), String> {
    let counts = intake.counts.clone();
    has_room(store, job.ranges.len())?;
    let kept = store.keep(&job.id, &job.ranges, now_unix_s, &mut |out| match &job.source {
        Code::Memory(kept) => out.write_all(kept.bytes()),
        Code::File { handle, connection } => copy(*handle, *connection, intake, out),
    });
    if let Code::File { handle, connection } = job.source
        && connection == intake.inspectors.connection()
        && !(kept.is_err() && intake.will_be_tried_again())
    {
        let _ = intake.inspectors.ask(Close { handle }); // an inspector that ended has closed it
    }
    match kept {
        Ok(kept) => {
            counts.kept.fetch_add(1, Relaxed);
            counts.removed.fetch_add(kept.removed.len() as u64, Relaxed);
            tracing::debug!(id = %job.id, bytes = kept.bytes, "kept the code of \
            {}", String::from_utf8_lossy(&job.path));
            Ok(())
        }
        Err(DbError::TooLarge { bytes, limit, .. }) => Err(format!(
            "it has {bytes} bytes and the store takes {limit}; give it more with --code-store"
        )),
        Err(error) => Err(error.to_string()),
    }
}

/// Copies the parts to be kept of a file that an inspector holds open.
fn copy(
    handle: u32,
    connection: u64,
    intake: &mut Intake,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    let mut anew = true;
    loop {
        if connection != intake.inspectors.connection() {
            return Err(io::Error::other("another file kept its reader waiting"));
        }
        match intake.inspectors.ask(Read { handle, anew: std::mem::take(&mut anew) }) {
            None => return Err(io::Error::other("its file system does not answer")),
            Some(Err(why)) => return Err(io::Error::other(why)),
            Some(Ok(Raw(piece))) if piece.is_empty() => return Ok(()),
            Some(Ok(Raw(piece))) => out.write_all(&piece)?,
        }
        intake.rest()?;
    }
}

/// Whether the disk has room for that many bytes more.
fn has_room(store: &CodeStore, bytes: u64) -> Result<(), String> {
    match free_bytes(store) {
        Some(free) if free < bytes.saturating_add(LEFT_FREE_BYTES) => {
            Err("the disk is nearly full, and the profiles come first".to_owned())
        }
        _ => Ok(()),
    }
}

/// The free space on the store's file system; None if it is unknown.
fn free_bytes(store: &CodeStore) -> Option<u64> {
    let disk = nix::sys::statvfs::statvfs(store.directory()).ok()?;
    disk.blocks_available().checked_mul(disk.fragment_size())
}

impl Intake {
    /// A copy that was broken off because the end has come is made then, if there is time.
    fn will_be_tried_again(&self) -> bool {
        self.is_ending() && self.last_copies_until.is_none()
    }

    fn is_ending(&self) -> bool {
        self.counts.ending.load(Relaxed)
    }

    /// CPU time of this thread and its inspectors, in ns.
    fn cpu_ns(&self) -> u64 {
        clock::thread_cpu_ns() + self.inspectors.own_cpu_ns()
    }

    /// Waits for a message; false when there will be none any more.
    fn wait(&mut self, at_most: Duration) -> bool {
        self.counts.cpu_ns.store(self.cpu_ns(), Relaxed);
        match self.queue.recv_timeout(at_most) {
            Ok(message) => self.take(message),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        true
    }

    fn take_all(&mut self) {
        while let Ok(message) = self.queue.try_recv() {
            self.take(message);
        }
    }

    fn take(&mut self, message: CodeRequest) {
        match message {
            CodeRequest::Wanted(wanted, offer) => {
                self.open(*wanted, offer);
                self.counts.waiting.store(self.waiting.len() as u64, Relaxed);
            }
            CodeRequest::Pieces(wanted) => {
                let private = self.limits.private;
                self.generated.read(*wanted, private, &self.inspectors, &self.counts);
            }
            CodeRequest::Wake => {}
        }
    }

    /// Opens a wanted file at once: its process may end.
    fn open(&mut self, wanted: Wanted, offer: Arc<Offer>) {
        if self.waiting.iter().any(|job| job.id == wanted.id) {
            return;
        }
        if self.waiting.len() >= WAITING_MAX {
            self.counts.put_off.fetch_add(1, Relaxed);
            offer.renew();
            return;
        }
        match wanted.kind {
            ImageKind::File => self.take_file(wanted, offer),
            ImageKind::Vdso => {
                let kept = vdso_bytes().and_then(|bytes| KeptFile::of(&bytes).ok());
                if let Some(kept) =
                    kept.filter(|kept| kept.identify().is_ok_and(|id| id == wanted.id))
                {
                    let (id, ranges) = (wanted.id, kept.ranges().clone());
                    let path = wanted.file.path.0;
                    self.waiting.push(Job {
                        id,
                        ranges,
                        source: Code::Memory(kept),
                        offer,
                        is_deleted: true,
                        path,
                    });
                }
            }
            // Their code is in the kernel's memory, or is offered piece by piece.
            ImageKind::Kernel
            | ImageKind::Module
            | ImageKind::Bpf
            | ImageKind::Idle
            | ImageKind::Jit
            | ImageKind::Unresolved => {}
        }
    }

    fn take_file(&mut self, wanted: Wanted, offer: Arc<Offer>) {
        let Wanted { id, file, .. } = wanted;
        let path = file.path.0.clone();
        let question = Open { image: id, file, private: self.limits.private };
        let opened = self.inspectors.ask(question);
        let refused = |counts: &CodeStoreCounts, why: &dyn std::fmt::Display| {
            counts.refused.fetch_add(1, Relaxed);
            tracing::info!("the code of {} is not kept: {why}", String::from_utf8_lossy(&path));
        };
        let Opened { handle, is_deleted, file_len, ranges } = match opened {
            Some(Ok(opened)) => opened,
            None | Some(Err(KeepError::Gone)) => {
                self.counts.gone.fetch_add(1, Relaxed);
                return offer.failed();
            }
            Some(Err(KeepError::Private)) => {
                self.counts.private.fetch_add(1, Relaxed);
                return;
            }
            Some(Err(KeepError::Refused(why))) => return refused(&self.counts, &why),
        };
        let ranges = ranges.into_iter().map(|(start, end)| start..end).collect();
        match KeptRanges::new(file_len, ranges) {
            Ok(ranges) => {
                let source = Code::File { handle, connection: self.inspectors.connection() };
                self.waiting.push(Job { id, ranges, source, offer, is_deleted, path });
            }
            Err(error) => refused(&self.counts, &error),
        }
    }

    /// The most urgent job: deleted files first, then the smallest.
    fn next(&mut self) -> Option<Job> {
        let order = |(_, job): &(usize, &Job)| (!job.is_deleted, job.ranges.len());
        let at = self.waiting.iter().enumerate().min_by_key(order).map(|(at, _)| at)?;
        Some(self.waiting.swap_remove(at))
    }

    /// Sleeps until this thread's CPU time is within its share; files requested meanwhile are
    /// opened. Returns an error if the current copy must be abandoned: for more urgent copies near
    /// the daemon's end, and then for the end itself.
    fn rest(&mut self) -> io::Result<()> {
        if self.is_ending() {
            let in_time = self.last_copies_until.is_some_and(|until| Instant::now() < until);
            return if in_time { Ok(()) } else { Err(io::Error::other("dcpid is ending")) };
        }
        let Some(share) = self.limits.cpu_share else {
            self.take_all();
            return Ok(());
        };
        let used = Duration::from_nanos(self.cpu_ns().saturating_sub(self.rested.1));
        if used < Duration::from_millis(1) {
            return Ok(());
        }
        let until = self.rested.0 + used.div_f64(share.max(1e-6));
        while !self.is_ending() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || !self.wait(left) {
                break;
            }
        }
        self.rested = (Instant::now(), self.cpu_ns());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inspect::open_mapped::{MappedAt, open_mapped};
    use inspect::questions::FileAt;
    use kernel::MappedFileId;
    use kernel::latin1::Bytes;
    use profiledb::{Database, Writer};
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    const LIMIT: u64 = 512 << 20;

    fn here() -> MappedAt {
        MappedAt { pid: std::process::id(), start: 0, end: 0 }
    }

    /// A request for the image in this file, and how it may be offered.
    fn wanted(path: &Path) -> (Wanted, Arc<Offer>) {
        let metadata = path.metadata().unwrap();
        let (major, minor) = (
            nix::sys::stat::major(metadata.dev()) as u32,
            nix::sys::stat::minor(metadata.dev()) as u32,
        );
        let id = image::identify_file(&File::open(path).unwrap()).unwrap();
        let file = MappedFileId::Inode { major, minor, inode: metadata.ino() };
        let path = Bytes(path.as_os_str().as_encoded_bytes().to_vec());
        let file = FileAt { id: file, path, at: here() };
        (Wanted { id, kind: ImageKind::File, file }, Arc::default())
    }

    fn started(root: &Path, cpu_share: Option<f64>) -> (Writer, Librarian, Library) {
        let writer = Writer::open(root, "here").unwrap();
        let store = CodeStore::open(&writer, LIMIT).unwrap();
        // Temporary directories are not world-accessible.
        let limits = StoreLimits { bytes: LIMIT, cpu_share, private: true };
        let (librarian, library) =
            Librarian::start(Catalogue::default(), Some(store), limits, Inspectors::default())
                .unwrap();
        (writer, librarian, library)
    }

    /// At the slowest pace nothing but the end lets a copy be finished; the deleted file has no
    /// name any more by then.
    #[test]
    fn the_code_of_a_file_that_is_deleted_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("db");
        let (_writer, librarian, library) = started(&root, Some(1e-6));
        let program = directory.path().join("program");
        std::fs::copy("/bin/sh", &program).unwrap();
        let (wanted, offer) = wanted(&program);
        let original = std::fs::read(&program).unwrap();
        let id = wanted.id;
        assert!(library.wants(&offer));
        library.offer(wanted, &offer);
        assert!(!library.wants(&offer), "once a day");
        while library.status().unwrap().waiting == 0 {
            std::thread::yield_now();
        }
        std::fs::remove_file(&program).unwrap();
        librarian.finish();
        let kept = Database::open(&root).unwrap().code("here", &id).unwrap().unwrap();
        assert_eq!(kept, KeptFile::of(&original).unwrap());
        let status = library.status().unwrap();
        assert_eq!(
            (status.images, status.kept, status.refused, status.limit_bytes),
            (1, 1, 0, LIMIT)
        );
        assert!(status.bytes > 0 && status.bytes < original.len() as u64);
    }

    /// A program was written again in place while it waited to be copied: the new build was kept
    /// under the id of the old one, and every reader, also of a copy of the database, called that
    /// damage ("damaged at byte 79: it belongs somewhere else").
    #[test]
    fn a_program_that_is_built_anew_while_it_waits_is_not_kept() {
        let original = std::fs::read("/bin/sh").unwrap();
        let other_length = std::fs::read("/bin/cat").unwrap();
        // Of the same length, and perhaps within the same tick of the file system's clock.
        let id = image::identify(&original).unwrap();
        let bytes = id.build_id().unwrap().to_vec();
        let at = original.windows(bytes.len()).position(|found| found == bytes).unwrap();
        let mut other_id = original.clone();
        other_id[at] ^= 1;
        assert_ne!(image::identify(&other_id).unwrap(), id);
        for (built_anew, is_kept) in [(other_length, false), (other_id, false), (original, true)] {
            let directory = tempfile::tempdir().unwrap();
            let root = directory.path().join("db");
            let program = directory.path().join("program");
            std::fs::copy("/bin/sh", &program).unwrap();
            let (wanted, offer) = wanted(&program);
            let writer = Writer::open(&root, "here").unwrap();
            let mut intake = Intake {
                queue: mpsc::sync_channel(1).1,
                waiting: Vec::new(),
                catalogue: Catalogue::default(),
                inspectors: Inspectors::default(),
                counts: Arc::default(),
                limits: StoreLimits { private: true, ..StoreLimits::default() },
                generated: Generated::default(),
                rested: (Instant::now(), 0),
                last_copies_until: None,
            };
            intake.open(wanted, offer.clone());
            let job = intake.next().unwrap();
            if !is_kept {
                std::fs::write(&program, built_anew).unwrap();
            }
            let store = Some(CodeStore::open(&writer, LIMIT).unwrap());
            Worker { store, intake, complaint: None }.keep(job);
            let kept = Database::open(&root).unwrap().code_images("here").unwrap();
            assert_eq!(kept, [id].into_iter().filter(|_| is_kept).collect::<Vec<_>>());
            assert!(profiledb::check(&root).unwrap().is_empty());
            assert_eq!(offer.failures(), u32::from(!is_kept), "it is offered again");
        }
    }

    #[test]
    fn the_vdso_is_kept_and_other_kinds_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("db");
        let (_writer, librarian, library) = started(&root, None);
        let vdso = address_spaces::mapped_files::own_vdso().expect("this kernel gives a vdso");
        let none = MappedFileId::Inode { major: 0, minor: 0, inode: 0 };
        for (id, kind) in
            [(vdso.id, ImageKind::Vdso), (ImageId::from_name("[kernel]", ""), ImageKind::Kernel)]
        {
            let file = FileAt { id: none.clone(), path: Bytes(b"[vdso]".to_vec()), at: here() };
            let wanted = Wanted { id, kind, file };
            library.offer(wanted, &Arc::default());
        }
        librarian.finish();
        let database = Database::open(&root).unwrap();
        assert_eq!(database.code_images("here").unwrap(), [vdso.id]);
        let kept = database.code("here", &vdso.id).unwrap().unwrap();
        assert!(
            kept.procedures(None, None, &[])
                .unwrap()
                .0
                .iter()
                .any(|p| p.name().contains("clock_gettime"))
        );
    }

    /// A path may lead to another build than the process has mapped: its code must not be kept
    /// under this one's id.
    #[test]
    fn another_build_is_not_kept_and_the_image_is_tried_again() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("db");
        let (_writer, librarian, library) = started(&root, None);
        let (mut other, offer) = wanted(Path::new("/bin/sh"));
        other.id = ImageId::from_build_id(&[7; 20]).unwrap();
        other.file.id = MappedFileId::BuildId(vec![7; 20]);
        library.offer(other, &offer);
        librarian.finish();
        assert!(library.wants(&offer), "another process may have it");
        assert_eq!(library.status().unwrap().gone, 1);
        assert!(Database::open(&root).unwrap().code_images("here").unwrap().is_empty());
    }

    /// Code of a program that only its owner may read was readable for the group of the database.
    #[test]
    fn code_that_not_everybody_may_read_is_kept_only_where_that_is_asked_for() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("db");
        let writer = Writer::open(&root, "here").unwrap();
        let program = directory.path().join("program");
        std::fs::copy("/bin/sh", &program).unwrap();
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(directory.path(), open).unwrap();
        for (mode, private, is_kept) in [(0o711, false, 0), (0o755, false, 1), (0o700, true, 1)] {
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).unwrap();
            let limits = StoreLimits { bytes: LIMIT, cpu_share: None, private };
            let store = Some(CodeStore::open(&writer, LIMIT).unwrap());
            let (librarian, library) =
                Librarian::start(Catalogue::default(), store, limits, Inspectors::default())
                    .unwrap();
            let (wanted, offer) = wanted(&program);
            library.offer(wanted, &offer);
            librarian.finish();
            let status = library.status().unwrap();
            assert_eq!((status.images, status.private), (is_kept, 1 - is_kept), "{mode:o}");
        }
    }

    #[test]
    fn neither_a_fifo_nor_a_device_is_opened() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        for path in [fifo.as_path(), Path::new("/dev/zero"), directory.path()] {
            let id = MappedFileId::BuildId(vec![1; 20]);
            assert!(
                open_mapped(&id, path.as_os_str().as_encoded_bytes(), here(), |_| true).is_none(),
                "{path:?}"
            );
        }
    }
}

//! Keeps the code of images that have samples, so that they can be named, listed and analysed when
//! their files are gone.
//!
//! The drain reports each image once a day and never waits for this thread. An inspector of its own
//! opens the file at once, while the process lives, and this thread copies from it when there is
//! time: those that are deleted already first, then the smallest. Small files are copied whole; of
//! others what their samples pay for (`worth`). Pieces of generated code are read
//! at once, and written as they come together.

use crate::generated::Generated;
use crate::worth::Worths;
use address_spaces::library::{CodeRequest, CodeStoreCounts, Library, Offer, Wanted};
use image::{ImageId, ImageKind, KeptFile, KeptRanges};
use inspect::file_catalogue::Catalogue;
use inspect::pool::Inspectors;
use inspect::questions::{Choose, Chosen, Close, KeepError, Open, Opened, Raw, Read};
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
/// Files of which no more is kept are copied whole, and at once.
const WHOLE_MAX_BYTES: u64 = 64 << 10;
/// Longest time for which an open file waits for its samples to be merged: more than an interval
/// between merges.
const TOLD_MAX: Duration = Duration::from_secs(15);
/// Time for which a deleted file is held open, because what later samples pay for can be read only
/// while it is.
const PAID_MAX: Duration = Duration::from_secs(600);
/// Interval at which such a file is looked at again.
const PAID_INTERVAL: Duration = Duration::from_secs(30);
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
    /// Whether files are kept whole, whatever their samples pay for.
    pub whole: bool,
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
            worths: Worths::default(),
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
    /// It keeps a file system busy that somebody may want to unmount.
    is_lent: bool,
    path: Vec<u8>,
    /// When it was opened, and when it is to be looked at again, if its samples did not pay for it.
    opened: Instant,
    retry: Option<Instant>,
}

/// What has become of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// What its samples pay for is kept, and the file can be closed.
    Done,
    /// Later samples may pay for more, or for its names.
    NotYet,
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
    worths: Worths,
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
            let idle = self.intake.idle();
            if !idle.is_zero() && !self.intake.wait(idle) {
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
    fn keep(&mut self, mut job: Job) {
        if let Some(store) = &mut self.store {
            let now = clock::unix_s();
            let outcome = match store.follow() {
                Err(error) => Err(error.to_string()),
                Ok(()) if store.has(&job.id) => {
                    let seen = store.seen(&job.id, now).map_err(|error| error.to_string());
                    seen.map(|()| Outcome::Done)
                }
                Ok(()) if self.intake.keeps_whole(&job) => {
                    let ranges = job.ranges.clone();
                    keep(store, &mut self.intake, (&job, &ranges, true), now)
                }
                Ok(()) => keep_part(store, &mut self.intake, &job, now),
            };
            if outcome == Ok(Outcome::NotYet)
                && job.is_deleted
                && !job.is_lent
                && job.opened.elapsed() < PAID_MAX
                && !self.intake.is_ending()
            {
                job.retry = Some(Instant::now() + PAID_INTERVAL);
                self.intake.waiting.push(job);
                return;
            }
            if !(outcome.is_err() && self.intake.will_be_tried_again()) {
                self.intake.close(&job);
            }
            if self.intake.is_ending() && outcome.is_err() {
                // The reason may only be a lack of time.
                let why = outcome.err();
                let path = String::from_utf8_lossy(&job.path);
                tracing::debug!("the code of {path} is not kept: {why:?}");
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

/// Chooses what of a file its samples pay for, and copies that.
fn keep_part(
    store: &mut CodeStore,
    intake: &mut Intake,
    job: &Job,
    now_unix_s: u64,
) -> Result<Outcome, String> {
    let Code::File { handle, .. } = job.source else { return Ok(Outcome::Done) };
    let there = store.part(&job.id).filter(|part| part.file_len() == job.ranges.file_len());
    let pairs = there.iter().flat_map(KeptRanges::ranges).map(|range| (range.start, range.end));
    let (lines, budget) = intake.worths.plan(&job.id);
    if job.is_deleted && lines.is_empty() && there.is_some() {
        return Ok(Outcome::NotYet);
    }
    let question = Choose { handle, kept: pairs.collect(), lines, budget };
    let chosen = intake.inspectors.ask(question).ok_or("its file system does not answer")??;
    let ranges = match chosen {
        Chosen::NotYet(bytes) => {
            intake.worths.not_yet(&job.id, bytes);
            return Ok(Outcome::NotYet);
        }
        Chosen::Ranges(pairs) => pairs.into_iter().map(|(start, end)| start..end).collect(),
    };
    let ranges =
        KeptRanges::new(job.ranges.file_len(), ranges).map_err(|error| error.to_string())?;
    let before = there.as_ref().map_or(0, KeptRanges::len);
    if there.as_ref() == Some(&ranges) {
        store.seen(&job.id, now_unix_s).map_err(|error| error.to_string())?;
    } else {
        let _ = keep(store, intake, (job, &ranges, false), now_unix_s)?;
    }
    intake.worths.spent(&job.id, ranges.len().saturating_sub(before));
    // What later samples pay for can be added only while the file is open.
    Ok(if job.is_deleted { Outcome::NotYet } else { Outcome::Done })
}

/// Copies ranges of a file into the store, all or nothing; errors are one line.
fn keep(
    store: &mut CodeStore,
    intake: &mut Intake,
    (job, ranges, is_whole): (&Job, &KeptRanges, bool),
    now_unix_s: u64,
) -> Result<Outcome, String> {
    let counts = intake.counts.clone();
    has_room(store, ranges.len())?;
    let mut copied = |out: &mut dyn io::Write| match &job.source {
        Code::Memory(kept) => out.write_all(kept.bytes()),
        Code::File { handle, connection } => copy(*handle, *connection, intake, out),
    };
    let kept = match is_whole {
        true => store.keep(&job.id, ranges, now_unix_s, &mut copied),
        false => store.keep_part(&job.id, ranges, now_unix_s, &mut copied),
    };
    match kept {
        Ok(kept) => {
            counts.kept.fetch_add(1, Relaxed);
            counts.removed.fetch_add(kept.removed.len() as u64, Relaxed);
            tracing::debug!(id = %job.id, bytes = kept.bytes, "kept the code of \
            {}", String::from_utf8_lossy(&job.path));
            Ok(Outcome::Done)
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

/// Refuses that many bytes more where the store's file system has no room for them.
fn has_room(store: &CodeStore, bytes: u64) -> Result<(), String> {
    let disk = nix::sys::statvfs::statvfs(store.directory()).ok();
    match disk.and_then(|disk| disk.blocks_available().checked_mul(disk.fragment_size())) {
        Some(free) if free < bytes.saturating_add(LEFT_FREE_BYTES) => {
            Err("the disk is nearly full, and the profiles come first".to_owned())
        }
        _ => Ok(()),
    }
}

impl Intake {
    /// A copy that was broken off because the end has come is made then, if there is time.
    fn will_be_tried_again(&self) -> bool {
        self.is_ending() && self.last_copies_until.is_none()
    }

    fn is_ending(&self) -> bool {
        self.counts.ending.load(Relaxed)
    }

    /// Closes the file of a job.
    fn close(&self, job: &Job) {
        if let Code::File { handle, connection } = job.source
            && connection == self.inspectors.connection()
        {
            let _ = self.inspectors.ask(Close { handle }); // an inspector that ended has closed it
        }
    }

    /// Whether all code of a file is kept.
    fn keeps_whole(&self, job: &Job) -> bool {
        let is_small = job.ranges.len() <= WHOLE_MAX_BYTES;
        self.limits.whole || is_small || matches!(job.source, Code::Memory(_))
    }

    /// Whether a file can be copied: what is not kept whole waits for its samples.
    fn is_due(&self, job: &Job) -> bool {
        let is_told = || self.worths.is_told(&job.id) || job.opened.elapsed() >= TOLD_MAX;
        let is_retried = || job.retry.is_none_or(|at| at <= Instant::now());
        self.is_ending() || self.keeps_whole(job) || is_told() && is_retried()
    }

    /// Time until there is something to do, unless a message comes.
    fn idle(&self) -> Duration {
        if self.waiting.iter().any(|job| self.is_due(job)) {
            return Duration::ZERO;
        }
        let look = if self.waiting.is_empty() { SAVE_INTERVAL } else { Duration::from_secs(1) };
        self.generated.due_in().unwrap_or(look).min(look)
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
            CodeRequest::Sampled(files) => {
                files.into_iter().for_each(|file| self.worths.sampled(file));
            }
            CodeRequest::Wake => {}
        }
    }

    /// Opens a wanted file at once: its process may end.
    fn open(&mut self, wanted: Wanted, offer: Arc<Offer>) {
        self.worths.offered(wanted.id, &offer);
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
                        is_lent: false,
                        path,
                        opened: Instant::now(),
                        retry: None,
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
        let Opened { handle, is_deleted, is_lent, file_len, ranges } = match opened {
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
                let (opened, retry) = (Instant::now(), None);
                let job =
                    Job { id, ranges, source, offer, is_deleted, is_lent, path, opened, retry };
                self.waiting.push(job);
            }
            Err(error) => refused(&self.counts, &error),
        }
    }

    /// The most urgent job that is due: deleted files first, then the smallest.
    fn next(&mut self) -> Option<Job> {
        let order = |(_, job): &(usize, &Job)| (!job.is_deleted, job.ranges.len());
        let due = self.waiting.iter().enumerate().filter(|(_, job)| self.is_due(job));
        let at = due.min_by_key(order).map(|(at, _)| at)?;
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
mod tests;

//! Epochs on their way from a host to the store of a fleet: one file for each, without what must
//! not leave the host.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use image::{ImageId, ImageKind};
use model::{Stacks, Thread};

use crate::code;
use crate::envelope::Kind;
use crate::epoch::EpochId;
use crate::error::DbError;
use crate::format_file;
use crate::images::ImageRecord;
use crate::naming;
use crate::reader::{Database, Epoch};
use crate::scope::Scope;
use crate::section_sum;
use crate::segment::{Segment, Span};
use crate::transfer;

/// The merges of every epoch in a store: an epoch that has ended is a whole, and two states of it
/// have one name.
const WHOLE: Span = Span { first: 0, last: 1 };

/// What of an epoch leaves its host. What stays is neither named nor counted apart; samples are
/// never left out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
pub struct Outgoing {
    /// Labels of runs.
    pub labels: bool,
    /// Names of systemd units and containers.
    pub units: bool,
    /// Numbers of processes and threads.
    pub pids: bool,
    /// Names of threads; commands leave with call stacks.
    pub threads: bool,
    /// Paths in home directories, of programs and of source files.
    pub homes: bool,
    /// Names of code that programs made at run time.
    pub generated: bool,
    /// Call stacks.
    pub stacks: bool,
}

impl Default for Outgoing {
    /// Labels, units and call stacks: what a review of services needs.
    fn default() -> Self {
        Self {
            labels: true,
            units: true,
            pids: false,
            threads: false,
            homes: false,
            generated: false,
            stacks: true,
        }
    }
}

impl Outgoing {
    /// Everything.
    pub(crate) const ALL: Self = Self {
        labels: true,
        units: true,
        pids: true,
        threads: true,
        homes: true,
        generated: true,
        stacks: true,
    };

    /// The scope that samples of a scope are counted under.
    pub(crate) fn scope(&self, scope: &Scope) -> Scope {
        Scope {
            label: scope.label.clone().filter(|_| self.labels),
            unit: scope.unit.clone().filter(|_| self.units),
            pid: scope.pid.filter(|_| self.pids),
        }
    }

    /// The thread that stacks of a thread are of.
    pub(crate) fn thread(&self, thread: &Thread) -> Thread {
        let number = |number: u32| if self.pids { number } else { 0 };
        Thread {
            command: thread.command.clone(),
            pid: number(thread.pid),
            name: if self.threads { thread.name.clone() } else { String::new() },
            tid: number(thread.tid),
        }
    }

    /// Adds stacks to others, as those of the threads that leave.
    pub(crate) fn add_stacks(&self, all: &mut Stacks, more: &Stacks) {
        all.merge_threads(more, |thread| self.thread(thread));
    }

    /// The images by what of their names leaves.
    pub(crate) fn images(
        &self,
        records: BTreeMap<ImageId, ImageRecord>,
    ) -> BTreeMap<ImageId, ImageRecord> {
        let record = |(id, mut record): (ImageId, ImageRecord)| {
            if !self.homes && is_in_home(&record.path) {
                record.path = format!("~/{}", record.name);
            }
            if !self.pids && record.kind == ImageKind::Jit {
                record.name = without_number(&record.name).to_owned();
                record.path = without_number(&record.path).to_owned();
            }
            (id, record)
        };
        records.into_iter().map(record).collect()
    }

    /// Whether names of procedures of an image leave.
    pub(crate) fn has_symbols(&self, record: Option<&ImageRecord>) -> bool {
        self.generated || record.is_some_and(|record| record.kind != ImageKind::Jit)
    }
}

/// Whether a path is in somebody's home directory.
fn is_in_home(path: &str) -> bool {
    ["/home/", "/root/", "/var/home/", "/run/user/"].iter().any(|home| path.starts_with(home))
}

/// The name of an image of generated code, `[jit] PROGRAM PID`, without the number of its process.
fn without_number(name: &str) -> &str {
    match name.rsplit_once(' ') {
        Some((front, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => front,
        _ => name,
    }
}

/// An epoch as one file for a store, a segment of `FORMAT.md` with all that may leave.
///
/// # Errors
/// [`DbError::Damaged`] when a part of the epoch cannot be read, or is of a later release; those of
/// reading.
pub fn outgoing(epoch: &Epoch, leaving: &Outgoing) -> Result<Vec<u8>, DbError> {
    transfer::whole(epoch)?;
    let mut meta = epoch.meta().clone();
    meta.merges = WHOLE.last;
    meta.ended_unix_s = Some(meta.ended_unix_s.unwrap_or(meta.updated_unix_s));
    transfer::whole_file(WHOLE, meta, epoch, leaving)
}

/// The place of an epoch in a store, beneath the directory of its raw epochs, which is a database.
///
/// # Errors
/// [`DbError::InvalidName`].
pub fn outgoing_place(host: &str, epoch: &EpochId) -> Result<String, DbError> {
    naming::check_host(host)?;
    Ok(format!("hosts/{host}/{epoch}/{}", WHOLE.name()))
}

/// What makes a directory a database: the file `format` of a store's raw epochs.
pub const FORMAT: &[u8] = format_file::TEXT.as_bytes();

/// Whether two files for a store are states of one epoch of one machine, whichever release wrote
/// them, and whatever of it left. Files that are none are states of nothing.
#[must_use]
pub fn is_same_epoch(a: &[u8], b: &[u8]) -> bool {
    let machine_and_time = |file: &[u8]| {
        let segment = Segment::parse(PathBuf::new(), file.to_vec()).ok()?;
        let meta = section_sum::meta(&segment).ok().flatten()?;
        Some((meta.host, meta.epoch, meta.started_unix_s, meta.machine.boot_id, meta.ledgers))
    };
    a == b || machine_and_time(a).is_some_and(|of| Some(of) == machine_and_time(b))
}

/// The kept part of the file of an image, in a code store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeFile {
    image: ImageId,
    kind: Kind,
}

impl CodeFile {
    /// The name of the file.
    #[must_use]
    pub fn name(&self) -> String {
        match self.kind {
            Kind::Excerpt => naming::excerpt_name(&self.image),
            _ => self.whole_name(),
        }
    }

    /// The name that the file has when no procedure's code is left out.
    #[must_use]
    pub fn whole_name(&self) -> String {
        naming::code_name(&self.image)
    }

    /// The content; None when the file is gone.
    ///
    /// # Errors
    /// [`DbError::Corrupt`], [`DbError::NewerFormat`] or [`DbError::Io`].
    pub fn read(&self, db: &Database, host: &str) -> Result<Option<Vec<u8>>, DbError> {
        let directory = naming::code_path(&naming::host_path(db.root(), host));
        code::read_file(db.disk(), &directory.join(self.name()), &self.image, self.kind)
    }
}

/// The files with kept parts of these images on a host.
///
/// # Errors
/// [`DbError::Io`] when the directory cannot be listed.
pub fn code_files(
    db: &Database,
    host: &str,
    images: &BTreeSet<ImageId>,
) -> Result<Vec<CodeFile>, DbError> {
    let directory = naming::code_path(&naming::host_path(db.root(), host));
    let entries = db.disk().list_if_there(&directory)?;
    let files = entries.iter().filter_map(|entry| {
        let whole = naming::parse_code_name(&entry.name).map(|image| (image, Kind::Code));
        let found = whole.or_else(|| {
            naming::parse_excerpt_name(&entry.name).map(|image| (image, Kind::Excerpt))
        });
        found.map(|(image, kind)| CodeFile { image, kind })
    });
    Ok(files.filter(|file| images.contains(&file.image)).collect())
}

//! Errors of a database, worded so that a user knows the file and the next step.

use std::fmt;
use std::io;
use std::path::PathBuf;

use image::ImageId;

use crate::epoch::EpochId;

/// Any failure of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DbError {
    /// The operating system refused an operation.
    #[error("cannot {op} {}: {source}{}", path.display(), advice(source))]
    Io {
        /// The operation.
        op: Operation,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The content of a file is not what a writer wrote; none of it was used.
    #[error("{} is damaged at byte {offset}: {damage}", path.display())]
    Corrupt {
        /// The damaged file.
        path: PathBuf,
        /// Offset of the damage in the file, in bytes.
        offset: u64,
        /// The kind of damage.
        damage: Damage,
    },
    /// A file was written by a newer release.
    #[error(
        "{} has format {found}, newer than {known}, the newest this release reads; use a newer release",
        path.display()
    )]
    NewerFormat {
        /// The newer file.
        path: PathBuf,
        /// The version it has.
        found: u32,
        /// The newest version known here.
        known: u32,
    },
    /// A file has a format of before the first release.
    #[error(
        "{} has format {found}, older than {oldest}, the oldest this release reads; read it with \
        the program that wrote it, or choose another directory",
        path.display()
    )]
    OlderFormat {
        /// The older file.
        path: PathBuf,
        /// The version it has.
        found: u32,
        /// The oldest version that is read.
        oldest: u32,
    },
    /// Another process writes this database.
    #[error("{} is locked: another daemon writes this database; stop it or choose another \
    directory", path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// The database, or a part of it that a writer needs, was removed while it was written. Nothing
    /// is written there until it is opened again, because another writer may have begun to.
    #[error("{} is gone: the database, or a part of it, was removed while it was \
    written", path.display())]
    Removed {
        /// The missing or replaced file or directory.
        path: PathBuf,
    },
    /// The directory is missing, or is not a database.
    #[error("{} is not a profile database: {found}", path.display())]
    NotADatabase {
        /// The directory.
        path: PathBuf,
        /// The actual content of the directory.
        found: NotADatabase,
    },
    /// The directory exists, but this user or this mount may not write to it.
    #[error("cannot write to {}: {source}; run as the daemon's user or choose another \
    directory", path.display())]
    NotWritable {
        /// The file or directory that could not be written.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// There is no such epoch.
    #[error("{} has no epoch {epoch} of host {host:?}", root.display())]
    NoSuchEpoch {
        /// The database.
        root: PathBuf,
        /// The host asked for.
        host: String,
        /// The epoch asked for.
        epoch: EpochId,
    },
    /// The writer has no open epoch to merge into: `begin` comes first.
    #[error("{} has no open epoch of host {host:?} to write to", root.display())]
    NoOpenEpoch {
        /// The database.
        root: PathBuf,
        /// The writer's host.
        host: String,
    },
    /// The name may not be stored.
    #[error("{what} {name:?} {why}")]
    InvalidName {
        /// The kind of name.
        what: NameKind,
        /// The name, cut to a bounded length.
        name: String,
        /// The rule that the name breaks.
        why: NameFault,
    },
    /// The ledger and the profiles of a delta disagree: samples would appear or vanish. Nothing was
    /// written.
    #[error(
        "the ledger of event {event:?} has {ledger} merged samples, its profiles have {profiles}"
    )]
    Unbalanced {
        /// The event.
        event: String,
        /// `merged` of the delta's ledger, in samples.
        ledger: u64,
        /// Sum over the delta's profiles of that event, in samples.
        profiles: u64,
    },
    /// A delta has samples of an event the epoch was not begun with. Nothing was written.
    #[error("event {event:?} is not one of the epoch's events")]
    UnknownEvent {
        /// The event.
        event: String,
    },
    /// An epoch was begun with the same event twice. Nothing was written.
    #[error("event {event:?} is given twice")]
    DuplicateEvent {
        /// The event.
        event: String,
    },
    /// A delta has a profile or symbols of an image that neither it nor the epoch describes, or
    /// describes it under another id. Nothing was written.
    #[error("image {image} has samples but no image record")]
    UnknownImage {
        /// The image.
        image: ImageId,
    },
    /// A file would be larger than a reader accepts. Nothing was written.
    #[error("{} would have {bytes} bytes, more than the limit of {limit}; begin a new \
    epoch", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The size it would have.
        bytes: u64,
        /// The largest allowed.
        limit: u64,
    },
    /// A file would have more entries of a kind than a reader accepts. Nothing was written.
    #[error("{} would have {count} {what}, more than the limit of {limit}; begin a new \
    epoch", path.display())]
    TooMany {
        /// The file.
        path: PathBuf,
        /// The kind of entries.
        what: &'static str,
        /// Number of entries that the file would have.
        count: u64,
        /// The most a reader accepts.
        limit: u64,
    },
    /// Facts and the bill of an epoch would become too large. Nothing was written.
    #[error("the facts about an epoch would have {bytes} bytes, more than the limit of {limit}")]
    FactsTooLarge {
        /// The bytes they would have as JSON.
        bytes: u64,
        /// The largest allowed.
        limit: u64,
    },
    /// The epochs cannot be merged: their samples have different weights.
    #[error("epochs of different {what} cannot be one: {first} and {second}")]
    Incompatible {
        /// The difference, such as the period of an event.
        what: String,
        /// The first epoch.
        first: String,
        /// An epoch that differs from it.
        second: String,
    },
    /// A part of an epoch cannot be read, so the epoch is neither copied nor merged.
    #[error("epoch {epoch} of host {host:?} is not whole: {why}")]
    Damaged {
        /// The host.
        host: String,
        /// The epoch.
        epoch: EpochId,
        /// The first damage.
        why: String,
    },
    /// Another epoch has the name already, or an open epoch must be sealed first.
    #[error("{} is in the way: {why}", path.display())]
    InTheWay {
        /// The file or directory in the way.
        path: PathBuf,
        /// The reason, and the next step.
        why: &'static str,
    },
    /// The change is decided and kept (readers see it), but its last step failed. It must **not**
    /// be repeated: the writer finishes it before its next change, or the next writer when it opens
    /// the database.
    #[error("the merge into epoch {epoch} is kept but not finished: {source}")]
    Unfinished {
        /// The epoch.
        epoch: EpochId,
        /// The error of that step.
        #[source]
        source: Box<DbError>,
    },
}

impl DbError {
    /// True when a file has other bytes than this release reads.
    pub(crate) const fn is_unreadable(&self) -> bool {
        matches!(self, Self::Corrupt { .. } | Self::NewerFormat { .. } | Self::OlderFormat { .. })
    }

    /// True when the file system has no such file or directory.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// True for errors that may not recur, such as a full disk; not for missing files.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, Self::Io { .. }) && !self.is_not_found()
    }

    /// The same error, as [`DbError::NotWritable`] when a permission is missing.
    pub(crate) fn or_not_writable(self) -> Self {
        match self {
            Self::Io { path, source, .. }
                if matches!(
                    source.kind(),
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
                ) =>
            {
                Self::NotWritable { path, source }
            }
            other => other,
        }
    }
}

/// What can be done about an error of the operating system whose text does not say it: text to
/// append, mostly none.
pub fn advice(error: &io::Error) -> &'static str {
    // EMFILE (asm-generic/errno-base.h).
    match error.raw_os_error() {
        Some(24) => {
            "; the limit of open files is too low: raise it with ulimit -n, or LimitNOFILE= of a \
             unit"
        }
        _ => "",
    }
}

/// An operation on the disk.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Make a directory.
    CreateDirectory,
    /// List a directory.
    List,
    /// Read a file.
    Read,
    /// Write a file and force it to the disk.
    Write,
    /// Give a file its final name.
    Rename,
    /// Remove a file or an empty directory.
    Remove,
    /// Force a directory's names to the disk.
    SyncDirectory,
    /// Take a lock.
    Lock,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CreateDirectory => "create directory",
            Self::List => "list",
            Self::Read => "read",
            Self::Write => "write",
            Self::Rename => "rename",
            Self::Remove => "remove",
            Self::SyncDirectory => "sync directory",
            Self::Lock => "lock",
        })
    }
}

/// Kinds of paths that are no database. Each kind has another next step.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotADatabase {
    /// Nothing exists there.
    Missing,
    /// A file, a device or the like.
    File,
    /// A directory without an entry.
    Empty,
    /// Epochs, but not the file `format`.
    NoFormat,
    /// A directory with other files.
    Foreign,
}

impl fmt::Display for NotADatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "there is no such directory",
            Self::File => "it is no directory",
            Self::Empty => "the directory is empty",
            Self::NoFormat => "its file `format` is missing",
            Self::Foreign => "the directory has other files and no file `format`",
        })
    }
}

/// Kinds of damage in a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// The file ends too early.
    #[error("it ends too early")]
    Truncated,
    /// The file has bytes after its end.
    #[error("bytes follow its end")]
    TrailingBytes,
    /// The file is larger than any that this crate writes.
    #[error("it is larger than {limit} bytes")]
    TooLong {
        /// The limit in bytes.
        limit: u64,
    },
    /// The first bytes are not those of our files.
    #[error("it does not begin like a profile database file")]
    Magic,
    /// The header's checksum does not fit.
    #[error("wrong header checksum")]
    HeaderChecksum,
    /// The contents' checksum does not fit.
    #[error("wrong checksum")]
    Checksum,
    /// The kind of the file differs from that of its name.
    #[error("kind {found} where {expected} belongs")]
    Kind {
        /// The kind in the header.
        found: u16,
        /// The kind of the name.
        expected: u16,
    },
    /// A reserved field is not zero.
    #[error("a reserved field is not zero")]
    Reserved,
    /// The format version does not exist.
    #[error("impossible format version")]
    Version,
    /// A varint is too long, or not in its shortest form.
    #[error("bad variable-length number")]
    Varint,
    /// More entries than the remaining bytes can hold.
    #[error("{count} entries do not fit in the remaining bytes")]
    Count {
        /// The number of entries claimed.
        count: u64,
    },
    /// Entries are not in ascending order, or run past 2^64.
    #[error("entries are out of order")]
    Order,
    /// An entry has a count of zero.
    #[error("an entry of zero samples")]
    ZeroCount,
    /// A text is not UTF-8.
    #[error("text that is not UTF-8")]
    Utf8,
    /// A name may not be stored.
    #[error("a name that may not be stored")]
    Name,
    /// The file belongs elsewhere: its content names another host, epoch, image or event.
    #[error("it belongs somewhere else: the contents do not fit the name")]
    Misplaced,
    /// The same entry comes twice.
    #[error("the same entry twice")]
    Duplicate,
    /// A sum differs from that of the entries.
    #[error("entries of {found} in all where {expected} belong")]
    Total {
        /// The sum of the entries.
        found: u64,
        /// The sum in the file.
        expected: u64,
    },
    /// A segment is missing.
    #[error(
        "it is missing, with what merges {first} to {last} added; where this is a copy of a database that a daemon wrote meanwhile, \
         make it anew with `dcpi copy`, whose copies are always whole"
    )]
    Missing {
        /// The first merge that is missing.
        first: u64,
        /// The last merge that is missing.
        last: u64,
    },
    /// Compressed bytes cannot be read.
    #[error("bad compressed bytes")]
    Compression,
    /// The kept part of a file is no kept part.
    #[error("{0}")]
    Image(#[source] Box<image::ImageError>),
    /// JSON does not have the expected form.
    #[error("{0}")]
    Json(#[source] serde_json::Error),
}

/// Kinds of names.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NameKind {
    /// A host.
    Host,
    /// A label.
    Label,
    /// An event.
    Event,
    /// An epoch.
    Epoch,
    /// A systemd unit or a container.
    Unit,
    /// A process.
    Process,
}

impl fmt::Display for NameKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host name",
            Self::Label => "label",
            Self::Event => "event name",
            Self::Epoch => "epoch",
            Self::Unit => "unit name",
            Self::Process => "process number",
        })
    }
}

/// Rules for names.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NameFault {
    /// The name is empty.
    Empty,
    /// The name is too long.
    TooLong {
        /// The most bytes allowed.
        limit_bytes: usize,
    },
    /// The name contains a slash.
    Slash,
    /// The name contains a control character.
    Control,
    /// The name begins with a dot.
    LeadingDot,
    /// The name is not `YYYYMMDD-HHMMSS`.
    NotATime,
    /// The number is zero.
    Zero,
}

impl fmt::Display for NameFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("is empty"),
            Self::TooLong { limit_bytes } => write!(f, "is longer than {limit_bytes} bytes"),
            Self::Slash => f.write_str("contains a slash"),
            Self::Control => f.write_str("contains a control character"),
            Self::LeadingDot => f.write_str("begins with a dot"),
            Self::Zero => f.write_str("is zero"),
            Self::NotATime => f.write_str("is not of the form YYYYMMDD-HHMMSS"),
        }
    }
}

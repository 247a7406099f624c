//! Objects of the store of a fleet: epochs on their way from a host, one file for each, and the
//! kept code of images.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use image::ImageId;

use super::Leaving;
use crate::checked_file::CheckedFile;
use crate::code;
use crate::envelope::Kind;
use crate::epoch::EpochId;
use crate::error::{Damage, DbError};
use crate::format_file;
use crate::naming;
use crate::outgoing::Outgoing;
use crate::reader::{Database, Epoch};
use crate::section_sum;
use crate::segment::{Segment, Span};
use crate::symbols::Symbol;

/// The merges of every epoch in a store: an epoch that has ended is a whole, and two states of it
/// have one name.
const WHOLE: Span = Span { first: 0, last: 1 };

/// An epoch as one file for a store, a segment of `FORMAT.md` with all that may leave. `names` are
/// symbols to add to those that the epoch has: the reader of the store has no access to the files
/// of the host.
///
/// # Errors
/// [`DbError::Damaged`] when a part of the epoch cannot be read, or is of a later release; those of
/// reading.
pub fn outgoing(
    epoch: &Epoch,
    parts: &Outgoing,
    names: &BTreeMap<ImageId, Vec<Symbol>>,
) -> Result<Vec<u8>, DbError> {
    super::whole(epoch)?;
    let mut meta = epoch.meta().clone();
    meta.merges = WHOLE.last;
    meta.ended_unix_s = Some(meta.ended_unix_s.unwrap_or(meta.updated_unix_s));
    super::whole_file(WHOLE, meta, epoch, &Leaving { parts, names })
}

/// The place of an epoch in a store, beneath the directory of its raw epochs, which is a database.
///
/// # Errors
/// [`DbError::InvalidName`].
pub fn outgoing_place(host: &str, epoch: &EpochId) -> Result<String, DbError> {
    naming::check_host(host)?;
    Ok(format!("hosts/{host}/{epoch}/{}", WHOLE.name()))
}

/// Refuses an object that is not an epoch of the host and name that its place in a store says, or
/// is damaged.
///
/// # Errors
/// [`DbError::Corrupt`], also for a place that [`outgoing_place`] does not give, and
/// [`DbError::NewerFormat`].
pub fn check_epoch_object(place: &str, object: &[u8]) -> Result<(), DbError> {
    let segment = Segment::parse(PathBuf::from(place), object.to_vec())?;
    segment.check_whole()?;
    if let Some(damage) = segment.damage() {
        return Err(damage);
    }
    let meta = section_sum::meta(&segment)?.ok_or_else(|| misplaced(place))?;
    let is_placed = outgoing_place(&meta.host, &meta.epoch).is_ok_and(|of| of == place);
    let agrees = (&segment.host, &segment.epoch, segment.span) == (&meta.host, &meta.epoch, WHOLE);
    if is_placed && agrees { Ok(()) } else { Err(misplaced(place)) }
}

/// Refuses an object that is not the kept part of the image in its file's name, or is damaged.
///
/// # Errors
/// [`DbError::Corrupt`], also for a name that [`CodeFile::name`] does not give, and
/// [`DbError::NewerFormat`].
pub fn check_code_object(name: &str, object: &[u8]) -> Result<(), DbError> {
    match CodeFile::parse(name) {
        Some(CodeFile { image, kind }) => code::check_file(Path::new(name), object, &image, kind),
        None => Err(misplaced(name)),
    }
}

fn misplaced(name: &str) -> DbError {
    DbError::Corrupt { path: PathBuf::from(name), offset: 0, damage: Damage::Misplaced }
}

/// The file `format`, which marks a store's raw epochs as a database.
pub const FORMAT: &[u8] = format_file::TEXT.as_bytes();

/// Whether two files for a store are states of one epoch of one machine, whichever release wrote
/// them, and whatever of it left. Files that are none are states of nothing.
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
    /// The file of a name; None for other files.
    fn parse(name: &str) -> Option<Self> {
        code::parse_name(name).map(|(image, kind)| Self { image, kind })
    }

    /// The name of the file.
    pub fn name(&self) -> String {
        match self.kind {
            Kind::Excerpt => naming::excerpt_name(&self.image),
            _ => self.whole_name(),
        }
    }

    /// The name that the file has when no procedure's code is left out.
    pub fn whole_name(&self) -> String {
        naming::code_name(&self.image)
    }

    /// The content, checked; None when the file is gone.
    ///
    /// # Errors
    /// [`DbError::Corrupt`], [`DbError::NewerFormat`] or [`DbError::Io`].
    pub fn open(&self, db: &Database, host: &str) -> Result<Option<CheckedFile>, DbError> {
        let directory = naming::code_path(&naming::host_path(db.root(), host));
        CheckedFile::open(db.disk(), &directory.join(self.name()), &self.image, self.kind)
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
    let files = entries.iter().filter_map(|entry| CodeFile::parse(&entry.name));
    Ok(files.filter(|file| images.contains(&file.image)).collect())
}

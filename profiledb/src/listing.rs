//! The segments in the directory of an epoch: their list, and reading them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::epoch::EpochId;
use crate::error::DbError;
use crate::segment::{Segment, Span};
use crate::storage::Disk;

/// Segments that were read, with the errors of those that could not be.
pub(crate) type Known = BTreeMap<Span, Result<Arc<Segment>, DbError>>;

/// Reads the segments that are not known yet; false when one has gone.
pub(crate) fn read_all(
    disk: &Disk,
    directory: &Path,
    of: (&str, &EpochId),
    taken: &[Span],
    known: &mut Known,
) -> Result<bool, DbError> {
    for span in taken {
        if known.contains_key(span) {
            continue;
        }
        match Segment::read(disk, directory, *span, of) {
            Ok(None) => return Ok(false),
            Ok(Some(segment)) => drop(known.insert(*span, Ok(Arc::new(segment)))),
            Err(error) if error.is_unreadable() => drop(known.insert(*span, Err(error))),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// The segments in a directory; empty when the directory is gone.
pub(crate) fn spans(disk: &Disk, directory: &Path) -> Result<Vec<Span>, DbError> {
    let entries = disk.list_if_there(directory)?;
    Ok(entries
        .iter()
        .filter(|entry| !entry.is_directory)
        .filter_map(|entry| Span::parse(&entry.name))
        .collect())
}

/// Number of the last merge of all these segments.
pub(crate) fn newest(spans: &[Span]) -> Option<u64> {
    spans.iter().map(|span| span.last).max()
}

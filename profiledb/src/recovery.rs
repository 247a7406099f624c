//! Recovery, the first step of a writer: finishes or undoes what an earlier writer left half done
//! when it was killed or lost power.

use std::path::Path;

use crate::epoch::EpochId;
use crate::error::DbError;
use crate::fold::Stored;
use crate::naming::{self, TEMPORARY_SUFFIX};
use crate::segment::{Segment, Span, cover};
use crate::storage::Disk;

/// The content of an epoch's directory after recovery.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    /// The segments, in the order of their merges.
    pub(crate) segments: Vec<Stored>,
    /// Damage that cannot be mended.
    pub(crate) finding: Option<DbError>,
}

/// Removes the files of an undecided merge or fold, segments that were folded but not removed, and
/// the directory itself when it never became an epoch.
pub(crate) fn recover(
    disk: &Disk,
    directory: &Path,
    of: (&str, &EpochId),
) -> Result<Recovered, DbError> {
    let entries = disk.list_if_there(directory)?;
    let mut found = Recovered::default();
    let mut left = 0;
    for entry in &entries {
        if !entry.is_directory && entry.name.ends_with(TEMPORARY_SUFFIX) {
            disk.remove_if_there(&directory.join(&entry.name))?;
            continue;
        }
        left += 1;
        if let Some(span) = Span::parse(&entry.name).filter(|_| !entry.is_directory) {
            found.segments.push(Stored { span, bytes: entry.size_bytes, end: None });
        }
    }
    if left == 0 {
        disk.remove_directory(directory)?;
        return Ok(found);
    }
    let (taken, _) = cover(found.segments.iter().map(|stored| stored.span).collect());
    let covered: Vec<Span> = found
        .segments
        .iter()
        .map(|stored| stored.span)
        .filter(|span| !taken.contains(span))
        .collect();
    for span in covered {
        let Some(wide) = taken.iter().find(|wide| wide.covers(span)) else { continue };
        // The segments that it replaces are removed only when every byte of it is good.
        match Segment::read(disk, directory, *wide, of)
            .and_then(|wide| wide.map_or(Ok(()), |wide| wide.check_whole()))
        {
            Ok(()) => disk.remove_if_there(&directory.join(span.name()))?,
            Err(error) if error.is_unreadable() => found.finding = Some(error),
            Err(error) => return Err(error),
        }
    }
    found.segments.retain(|stored| taken.contains(&stored.span));
    found.segments.sort_by_key(|stored| stored.span);
    Ok(found)
}

/// Removes the rest of epochs that were being removed.
pub(crate) fn remove_gone(disk: &Disk, host: &Path) -> Result<(), DbError> {
    for entry in disk.list_if_there(host)? {
        if entry.is_directory && naming::is_gone_name(&entry.name) {
            remove_directory(disk, &host.join(&entry.name))?;
        }
    }
    Ok(())
}

/// Removes a directory with the files in it.
pub(crate) fn remove_directory(disk: &Disk, directory: &Path) -> Result<(), DbError> {
    for entry in disk.list_if_there(directory)? {
        let path = directory.join(&entry.name);
        if entry.is_directory {
            remove_directory(disk, &path)?
        } else {
            disk.remove_if_there(&path)?
        }
    }
    disk.remove_directory(directory)
}

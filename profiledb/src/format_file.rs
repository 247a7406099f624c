//! The file `format`, which makes a directory a database.

use std::path::Path;

use crate::error::{Damage, DbError, NotADatabase};
use crate::naming::{format_path, hosts_path};
use crate::storage::{Disk, Entry};

/// The version of the directory's layout.
const LAYOUT_VERSION: u32 = 2;
const PREFIX: &str = "dcpi database ";
/// What is written.
pub(crate) const TEXT: &str = "dcpi database 2\n";
/// Prefix and suffix of the temporary name, with the host between. The file is there whole or not
/// at all, even when two hosts begin at once.
const TEMPORARY: (&str, &str) = ("format.", "tmp");
/// A directory that `mkfs` makes in every new ext file system; such a file system may be given to a
/// database.
const LOST_AND_FOUND: &str = "lost+found";

/// Refuses directories that are no database of this layout.
pub(crate) fn check(disk: &Disk, root: &Path) -> Result<(), DbError> {
    let path = format_path(root);
    let bytes = match disk.read_if_there(&path) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => {
            return Err(DbError::NotADatabase {
                path: root.to_owned(),
                found: instead(disk, root)?,
            });
        }
        Err(DbError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotADirectory => {
            return Err(DbError::NotADatabase { path: root.to_owned(), found: NotADatabase::File });
        }
        Err(error) => return Err(error),
    };
    match parse(&bytes) {
        Some(LAYOUT_VERSION) => Ok(()),
        Some(0) => Err(corrupt(&path, PREFIX.len(), Damage::Version)),
        Some(found) if found > LAYOUT_VERSION => {
            Err(DbError::NewerFormat { path, found, known: LAYOUT_VERSION })
        }
        Some(found) => Err(DbError::OlderFormat { path, found, oldest: LAYOUT_VERSION }),
        None => Err(corrupt(&path, 0, Damage::Magic)),
    }
}

/// The kind of a directory that is no database.
fn instead(disk: &Disk, root: &Path) -> Result<NotADatabase, DbError> {
    let entries = match disk.list(root) {
        Err(error) if error.is_not_found() => return Ok(NotADatabase::Missing),
        entries => entries?,
    };
    let hosts = hosts_path(root);
    let is_hosts = |entry: &Entry| {
        entry.is_directory && hosts.file_name().is_some_and(|hosts| hosts == entry.name.as_str())
    };
    Ok(match entries.as_slice() {
        [] => NotADatabase::Empty,
        entries if entries.iter().any(is_hosts) => NotADatabase::NoFormat,
        _ => NotADatabase::Foreign,
    })
}

/// Makes the directory a database of this layout, unless it is one. The caller must hold the
/// host's lock.
pub(crate) fn create(disk: &Disk, root: &Path, host: &str) -> Result<(), DbError> {
    match check(disk, root) {
        Ok(()) => return Ok(()),
        Err(DbError::NotADatabase { .. }) => {}
        Err(error) => return Err(error),
    }
    write(disk, root, host)
}

fn write(disk: &Disk, root: &Path, host: &str) -> Result<(), DbError> {
    let temporary = root.join(format!("{}{host}.{}", TEMPORARY.0, TEMPORARY.1));
    disk.write_synced(&temporary, TEXT.as_bytes())?;
    disk.rename(&temporary, &format_path(root))?;
    disk.sync_directory(root)
}

/// Refuses a directory in which other files are kept.
pub(crate) fn refuse_foreign(disk: &Disk, root: &Path) -> Result<(), DbError> {
    let entries = disk.list_if_there(root)?;
    let is = |name: &str, path: &Path| path.file_name().is_some_and(|ours| ours == name);
    if entries.iter().any(|e| is(&e.name, &format_path(root))) {
        return Ok(());
    }
    let ours =
        |name: &str| is_temporary(name) || name == LOST_AND_FOUND || is(name, &hosts_path(root));
    if entries.iter().all(|entry| ours(&entry.name)) {
        return Ok(());
    }
    Err(DbError::NotADatabase { path: root.to_owned(), found: NotADatabase::Foreign })
}

/// True for the file of a writer that was killed while it made the database.
pub(crate) fn is_temporary(name: &str) -> bool {
    name.starts_with(TEMPORARY.0) && name.ends_with(TEMPORARY.1)
}

/// The version in a format file; None when it is no format file.
fn parse(bytes: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(bytes).ok()?;
    let digits = text.strip_prefix(PREFIX)?.strip_suffix('\n')?;
    let version: u32 = digits.parse().ok()?;
    // Only one spelling is accepted: no sign, no leading zero.
    (version.to_string() == digits).then_some(version)
}

fn corrupt(path: &Path, offset: usize, damage: Damage) -> DbError {
    DbError::Corrupt { path: path.to_owned(), offset: offset as u64, damage }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_one_spelling() {
        assert_eq!(parse(b"dcpi database 1\n"), Some(1));
        assert_eq!(parse(b"dcpi database 20\n"), Some(20));
        for text in [
            "",
            "dcpi database \n",
            "dcpi database 1",
            "dcpi database 01\n",
            "dcpi database +1\n",
            "dcpi database 1\n\n",
            "dcpi database 99999999999\n",
            "DCPI database 1\n",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text:?}");
        }
    }
}

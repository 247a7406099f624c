//! Putting an object into a directory so that it is whole or not there, also after a power failure,
//! which `object_store` 0.13 does not promise.

use std::fs::{self, File};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Write};
use std::path::Path;
use std::time::UNIX_EPOCH;

use crate::objects::Found;

/// Creates a file; false where there is one.
///
/// # Errors
/// Errors of the file system; at most a file whose name begins with a dot is left behind.
pub(crate) fn create(root: &Path, place: &str, content: &[u8]) -> io::Result<bool> {
    put(root, place, content, |partial, path| match fs::hard_link(partial, path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    })
}

/// Replaces a file.
///
/// # Errors
/// Returns the errors of [`create`].
pub(crate) fn replace(root: &Path, place: &str, content: &[u8]) -> io::Result<()> {
    put(root, place, content, |partial, path| fs::rename(partial, path).map(|()| true)).map(drop)
}

/// The files below a directory, in order of key. What has no name of a key (other bytes than text,
/// control characters, a dot in front) is none, and symbolic links are not followed: one odd name
/// does not hide the others.
///
/// # Errors
/// Errors of the file system, except for files that are gone.
pub(crate) fn list(root: &Path, directory: &str) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        let entries = match fs::read_dir(root.join(&directory)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.starts_with('.') || name.contains(char::is_control) {
                continue;
            }
            let key = format!("{directory}/{name}");
            match entry.metadata() {
                Ok(of) if of.is_dir() => left.push(key),
                Ok(of) if of.is_file() => {
                    let put = of.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
                    let put_s = i64::try_from(put.as_secs()).unwrap_or(i64::MAX);
                    found.push(Found { key, bytes: of.len(), put_s });
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    found.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(found)
}

fn put(
    root: &Path,
    place: &str,
    content: &[u8],
    settle: impl Fn(&Path, &Path) -> io::Result<bool>,
) -> io::Result<bool> {
    let path = root.join(place);
    let parent = path.parent().unwrap_or(root);
    fs::create_dir_all(parent)?;
    // Random, since writers on several hosts may share the directory. `dcpi push` and readers of
    // databases know the name as that of an unfinished file.
    let number = RandomState::new().hash_one(place);
    let partial = parent.join(format!(".partial-{number:016x}"));
    let written = (|| {
        let mut file = File::options().write(true).create_new(true).open(&partial)?;
        file.write_all(content)?;
        file.sync_all()?;
        settle(&partial, &path)
    })();
    let _ = fs::remove_file(&partial);
    let is_new = written?;
    // The directories above may be new as well.
    let mut directory = Some(parent);
    while let Some(of) = directory.filter(|of| is_new && of.starts_with(root)) {
        File::open(of)?.sync_all()?;
        directory = of.parent();
    }
    Ok(is_new)
}

//! Putting an object into a directory so that it is whole or not there, also after a power failure,
//! which `object_store` 0.13 does not promise.

use std::fs::{self, File};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Write};
use std::path::Path;

/// Creates a file; false where there is one.
///
/// # Errors
/// Those of the file system; nothing is left then but perhaps a file whose name begins with a dot.
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
/// As [`create`].
pub(crate) fn replace(root: &Path, place: &str, content: &[u8]) -> io::Result<()> {
    put(root, place, content, |partial, path| fs::rename(partial, path).map(|()| true)).map(drop)
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

//! The text of source files, for listings: read when a line of one is shown, each once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Most bytes read of a source file.
const SOURCE_BYTES_MAX: u64 = 16 << 20;
/// Most files read for a listing.
const FILES_MAX: usize = 1024;
/// `O_NONBLOCK | O_NOCTTY` (include/uapi/asm-generic/fcntl.h): if the name comes to mean a FIFO or
/// terminal after it was looked at, to open it has no effect.
const NO_SURPRISE: i32 = 0o4000 | 0o400;

/// Source files and the directories to search for them.
#[derive(Debug, Default)]
pub struct Sources {
    directories: Vec<PathBuf>,
    files: RefCell<BTreeMap<String, Option<Vec<String>>>>,
}

impl Sources {
    /// Sources at the paths of the debug information, or below one of these directories, where as
    /// much of the end of the path as possible must match.
    #[must_use]
    pub fn below(directories: Vec<PathBuf>) -> Self {
        Self { directories, files: RefCell::default() }
    }

    /// A line of a file, counted from 1, without its line break; none if there is no such line.
    #[must_use]
    pub fn line(&self, file: &str, line: u32) -> Option<String> {
        let mut files = self.files.borrow_mut();
        if !files.contains_key(file) && files.len() >= FILES_MAX {
            return None;
        }
        let text = files.entry(file.to_owned()).or_insert_with(|| self.read(file));
        let at = usize::try_from(line).ok()?.checked_sub(1)?;
        text.as_ref()?.get(at).cloned()
    }

    /// The files that were needed and not found.
    #[must_use]
    pub fn missing(&self) -> Vec<String> {
        self.files
            .borrow()
            .iter()
            .filter(|(_, text)| text.is_none())
            .map(|(file, _)| file.clone())
            .collect()
    }

    fn read(&self, file: &str) -> Option<Vec<String>> {
        let named = Path::new(file);
        let parts: Vec<_> =
            named.iter().filter(|part| *part != "/" && *part != ".." && *part != ".").collect();
        let ends = (0..parts.len())
            .filter_map(|first| Some(parts.get(first..)?.iter().collect::<PathBuf>()));
        let below =
            ends.flat_map(|end| self.directories.iter().map(move |directory| directory.join(&end)));
        // A relative name is relative to a directory that nobody knows, not to where we are.
        let itself = named.is_absolute().then(|| named.to_path_buf());
        let bytes = itself.into_iter().chain(below).find_map(|path| read(&path).ok())?;
        Some(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect())
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // Looked at before it is opened: opening some devices does something.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let file = OpenOptions::new().read(true).custom_flags(NO_SURPRISE).open(path)?;
    let mut bytes = Vec::new();
    file.take(SOURCE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_by_the_end_of_its_path() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("src")).unwrap();
        std::fs::write(dir.path().join("src/a.c"), "one\r\ntwo\n").unwrap();
        std::fs::write(dir.path().join("a.c"), "other\n").unwrap();
        let sources = Sources::below(vec![dir.path().to_path_buf()]);
        assert_eq!(sources.line("/build/x/src/a.c", 1).as_deref(), Some("one"));
        assert_eq!(sources.line("/build/x/src/a.c", 2).as_deref(), Some("two"));
        assert_eq!(sources.line("/build/x/src/a.c", 3), None);
        assert_eq!(sources.line("/build/x/src/a.c", 0), None);
        assert_eq!(sources.line("/build/a.c", 1).as_deref(), Some("other"));
        assert_eq!(sources.missing(), Vec::<String>::new());
        assert_eq!(sources.line("../src", 1), None);
        assert_eq!(sources.line("/dev/zero", 1), None);
        assert_eq!(sources.missing(), ["../src", "/dev/zero"]);
    }
}

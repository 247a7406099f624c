//! The text of source files, for listings: read when a line of one is shown, each once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use image::OnBehalf;

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
    /// The user on whose behalf source files named by debug information are read.
    names_for: OnBehalf,
    /// When the code was built, at the latest.
    built: Option<SystemTime>,
    newer: RefCell<Vec<String>>,
    files: RefCell<BTreeMap<String, Result<Vec<String>, NoSource>>>,
}

/// Why the text of a source file is not there.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum NoSource {
    /// No file has the name.
    Missing,
    /// The owner of the debug information may not read it.
    NotTheirs,
}

impl Sources {
    /// Sources at the paths of the debug information, or below one of these directories, where as
    /// much of the end of the path as possible must match. The paths of the debug
    /// information are read on behalf of `names_for`; the directories are the caller's own choice.
    pub fn below(directories: Vec<PathBuf>, names_for: OnBehalf) -> Self {
        Self { directories, names_for, ..Self::default() }
    }

    /// Notes the files that were changed after that time: the code was not built from their text.
    pub fn built(self, at: Option<SystemTime>) -> Self {
        Self { built: at, ..self }
    }

    /// The files that were read and had changed since the code was built.
    pub fn newer(&self) -> Vec<String> {
        self.newer.borrow().clone()
    }

    /// A line of a file, counted from 1, without its line break; none if there is no such line.
    pub fn line(&self, file: &str, line: u32) -> Option<String> {
        let mut files = self.files.borrow_mut();
        if !files.contains_key(file) && files.len() >= FILES_MAX {
            return None;
        }
        let text = files.entry(file.to_owned()).or_insert_with(|| self.read(file));
        let at = usize::try_from(line).ok()?.checked_sub(1)?;
        text.as_ref().ok()?.get(at).cloned()
    }

    /// The files that were needed and not found.
    pub fn missing(&self) -> Vec<String> {
        self.without(NoSource::Missing)
    }

    /// The files that were asked for and not read, because the owner of the debug information may
    /// not read them.
    pub fn withheld(&self) -> Vec<String> {
        self.without(NoSource::NotTheirs)
    }

    fn without(&self, why: NoSource) -> Vec<String> {
        let files = self.files.borrow();
        let all = files.iter().filter(|(_, text)| text.as_ref().err() == Some(&why));
        all.map(|(file, _)| file.clone()).collect()
    }

    fn read(&self, file: &str) -> Result<Vec<String>, NoSource> {
        let named = Path::new(file);
        let parts: Vec<_> =
            named.iter().filter(|part| *part != "/" && *part != ".." && *part != ".").collect();
        let ends = (0..parts.len())
            .filter_map(|first| Some(parts.get(first..)?.iter().collect::<PathBuf>()));
        let mut below =
            ends.flat_map(|end| self.directories.iter().map(move |directory| directory.join(&end)));
        // A relative name is relative to a directory that nobody knows, not to where we are.
        let itself = named.is_absolute().then(|| read(named, self.names_for));
        let refused = |found: &io::Result<_>| {
            found.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
        };
        let why = match &itself {
            Some(found) if self.names_for != OnBehalf::Own && refused(found) => NoSource::NotTheirs,
            _ => NoSource::Missing,
        };
        let found = itself.and_then(Result::ok);
        let found = found.or_else(|| below.find_map(|path| read(&path, OnBehalf::Own).ok()));
        let (bytes, changed) = found.ok_or(why)?;
        if changed.zip(self.built).is_some_and(|(changed, built)| changed > built) {
            self.newer.borrow_mut().push(file.to_owned());
        }
        Ok(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect())
    }
}

/// A file's bytes, and when it was changed last.
fn read(path: &Path, names_for: OnBehalf) -> io::Result<(Vec<u8>, Option<SystemTime>)> {
    // Looked at before it is opened: opening some devices does something.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let file = OpenOptions::new().read(true).custom_flags(NO_SURPRISE).open(path)?;
    if !names_for.may_read(&file)? {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let changed = file.metadata()?.modified().ok();
    let mut bytes = Vec::new();
    file.take(SOURCE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok((bytes, changed))
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
        let sources = Sources::below(vec![dir.path().to_path_buf()], OnBehalf::Own);
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

    /// `sudo dcpi list` printed whatever file the debug information of a user's program named.
    #[test]
    fn what_its_owner_may_not_read_is_withheld_unless_a_directory_is_named() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "password").unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        let named = secret.display().to_string();
        let missing = dir.path().join("missing").display().to_string();
        let nobody = OnBehalf::User(65_534);
        let sources = Sources::below(Vec::new(), nobody);
        assert_eq!((sources.line(&named, 1), sources.line(&missing, 1)), (None, None));
        assert_eq!((sources.withheld(), sources.missing()), (vec![named.clone()], vec![missing]));
        let sources = Sources::below(vec![dir.path().to_path_buf()], nobody);
        assert_eq!(sources.line(&named, 1).as_deref(), Some("password"));
        assert_eq!(sources.withheld(), Vec::<String>::new());
    }
}

//! Where a command writes what it was asked for: standard output, or a file that is written as a
//! whole or not at all.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, TypedValueParser};
use query::error::AnalysisError;

/// Links to links that are followed, as many as the kernel does (path_resolution(7)).
const LINKS_MAX: usize = 40;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    Stdout,
    File(PathBuf),
}

impl Destination {
    /// `-` is standard output.
    pub fn from_argument(path: &Path) -> Self {
        if path == Path::new("-") { Self::Stdout } else { Self::File(path.to_path_buf()) }
    }

    /// Whether a file can be made there, asked before the work whose result it is for. Nothing is
    /// left behind, and existing files stay.
    pub fn check(&self) -> Result<(), AnalysisError> {
        let Self::File(asked) = self else { return Ok(()) };
        let failed = |source| AnalysisError::OutputFile { path: asked.clone(), source };
        let (partial, _) = partial(&place(asked)?).map_err(failed)?;
        fs::remove_file(partial).map_err(failed)
    }

    /// Writes by `write`, to `stdout` or to a file. A file that was there is replaced in one step
    /// when all is written; before, and if writing fails, it stays as it was.
    ///
    /// # Errors
    /// [`AnalysisError::Output`], [`AnalysisError::OutputFile`]; whatever `write` returns.
    pub fn write<T>(
        &self,
        stdout: &mut dyn Write,
        write: impl FnOnce(&mut dyn Write) -> Result<T, AnalysisError>,
    ) -> Result<T, AnalysisError> {
        match self {
            Self::Stdout => write(stdout),
            Self::File(path) => to_file(path, write),
        }
    }
}

/// A file that is written while a command runs, so that it can be read if its writer is killed.
/// The old contents stay until the first byte is written.
#[derive(Debug)]
pub struct Overwritten {
    file: File,
    is_emptied: bool,
}

impl Overwritten {
    /// Opens the file, or makes it.
    ///
    /// # Errors
    /// [`AnalysisError::OutputFile`], also for what is not a plain file (opening a pipe would wait
    /// for a reader) and for programs: the program that is to be observed stands near on the
    /// command line, and a slip would destroy it.
    pub fn open(path: &Path) -> Result<Self, AnalysisError> {
        let failed = |source| AnalysisError::OutputFile { path: path.to_path_buf(), source };
        let refused = |what: &str| failed(io::Error::other(what.to_owned()));
        if let Ok(there) = fs::metadata(path) {
            let is_null = path == Path::new("/dev/null");
            if !there.is_file() && !is_null {
                return Err(refused("it is no plain file"));
            }
            if there.is_file() && there.permissions().mode() & 0o111 != 0 {
                return Err(refused("it is a program"));
            }
        }
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(failed)?;
        // Two that write one file would each damage what the other wrote. Not on /dev/null, which
        // many write.
        if file.metadata().is_ok_and(|there| there.is_file())
            && matches!(file.try_lock(), Err(TryLockError::WouldBlock))
        {
            return Err(refused("another command is writing it"));
        }
        Ok(Self { file, is_emptied: false })
    }
}

impl Write for Overwritten {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_emptied {
            // A device has no length to set.
            if self.file.metadata()?.is_file() {
                self.file.set_len(0)?;
            }
            self.is_emptied = true;
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn to_file<T>(
    asked: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<T, AnalysisError>,
) -> Result<T, AnalysisError> {
    let failed = |source| AnalysisError::OutputFile { path: asked.to_path_buf(), source };
    let path = place(asked)?;
    let (partial, file) = partial(&path).map_err(failed)?;
    let mut out = BufWriter::new(file);
    let written = write(&mut out).map_err(|error| match error {
        AnalysisError::Output(source) => failed(source),
        other => other,
    });
    let kept = written.and_then(|value| {
        let finished = out
            .into_inner()
            .map_err(io::IntoInnerError::into_error)
            .and_then(|file| file.sync_all());
        finished.and_then(|()| fs::rename(&partial, &path)).map_err(failed)?;
        Ok(value)
    });
    if kept.is_err() {
        // The file is ours, and no process waits for it. If it cannot be removed, the previous
        // error is reported.
        let _ = fs::remove_file(&partial);
    }
    kept
}

/// Where a file is written that was asked for by this path.
fn place(asked: &Path) -> Result<PathBuf, AnalysisError> {
    let failed = |source| AnalysisError::OutputFile { path: asked.to_path_buf(), source };
    if let Ok(metadata) = fs::metadata(asked)
        && !metadata.is_file()
    {
        let what = if metadata.is_dir() { "it is a directory" } else { "it is no plain file" };
        return Err(failed(io::Error::other(what)));
    }
    through_links(asked).map_err(failed)
}

/// Endings of pictures that are not made here.
const OTHER_PICTURES: [&str; 11] =
    ["png", "jpg", "jpeg", "gif", "webp", "avif", "bmp", "tif", "tiff", "pdf", "eps"];

/// The path of a picture, which is SVG whatever its name says: one that says otherwise is refused.
pub(crate) fn svg_path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().try_map(|name| {
        let path = PathBuf::from(name);
        match not_svg(&path) {
            Some(why) => Err(why),
            None => Ok(path),
        }
    })
}

/// Why a picture cannot have this name, with the next step.
pub(crate) fn not_svg(path: &Path) -> Option<String> {
    let ending = path.extension()?.to_str()?.to_ascii_lowercase();
    let is_other = OTHER_PICTURES.contains(&ending.as_str());
    is_other.then(|| {
        format!(
            "pictures are SVG: name a file that ends in .svg, and make a .{ending} of it by a \
             browser or rsvg-convert"
        )
    })
}

/// What a symbolic link leads to, even where nothing is there yet: the link stays, its target is
/// written. A path that is not a link is as it was.
pub(crate) fn through_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..LINKS_MAX {
        match fs::read_link(&path) {
            // A relative target is relative to where the link is; an absolute one replaces all
            // before it.
            Ok(target) => path = path.parent().unwrap_or(Path::new("")).join(target),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("too many symbolic links lead to each other"))
}

/// A new file beside the one to write: a rename does not leave its file system.
fn partial(path: &Path) -> io::Result<(PathBuf, File)> {
    let name = path.file_name().ok_or_else(|| io::Error::other("it has no file name"))?;
    let mut partial = std::ffi::OsString::from(".");
    partial.push(name);
    partial.push(format!(".{}.partial", std::process::id()));
    let partial = path.with_file_name(partial);
    let file = OpenOptions::new().write(true).create_new(true).open(&partial)?;
    Ok((partial, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str, fail: bool) -> Result<(), String> {
        let mut stdout = Vec::new();
        let destination = Destination::from_argument(path);
        let written = destination.write(&mut stdout, |out| {
            out.write_all(text.as_bytes())?;
            if fail { Err(io::Error::other("the disk is full").into()) } else { Ok(()) }
        });
        assert!(stdout.is_empty());
        written.map_err(|error| error.to_string())
    }

    #[test]
    fn what_was_there_stays_until_something_is_written_and_programs_are_spared() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("old.trace");
        fs::write(&path, "what was there").unwrap();
        let mut file = Overwritten::open(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "what was there");
        file.write_all(b"new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        let error = Overwritten::open(&path).unwrap_err().to_string();
        assert!(error.contains("another command is writing it"), "{error}");
        drop(file);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let error = Overwritten::open(&path).unwrap_err().to_string();
        assert!(error.contains("it is a program"), "{error}");
        assert!(Overwritten::open(folder.path()).is_err());
        Overwritten::open(Path::new("/dev/null")).unwrap().write_all(b"x").unwrap();
    }

    #[test]
    fn a_file_is_written_whole_or_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("x"), directory.path().join("link"));
        write(&path, "one", false).unwrap();
        let error = write(&path, "two", true).unwrap_err();
        assert!(error.contains("the disk is full") && error.contains("/x"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "one");
        std::os::unix::fs::symlink("x", &link).unwrap();
        write(&link, "three", false).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "three");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "nothing is left behind");
    }

    /// A link to a file that was not there yet was replaced by the file: what should have appeared
    /// at its target did not.
    #[test]
    fn a_link_to_nothing_yet_stays_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("reports")).unwrap();
        std::os::unix::fs::symlink("reports/new", at("first")).unwrap();
        std::os::unix::fs::symlink(at("first"), at("second")).unwrap();
        write(&at("second"), "one", false).unwrap();
        write(&at("first"), "two", false).unwrap();
        assert_eq!(fs::read_to_string(at("reports/new")).unwrap(), "two");
        assert!(
            ["first", "second"]
                .iter()
                .all(|link| fs::symlink_metadata(at(link)).unwrap().is_symlink())
        );
        assert_eq!(fs::read_dir(at("reports")).unwrap().count(), 1, "nothing is left behind");
        std::os::unix::fs::symlink("loop", at("loop")).unwrap();
        assert!(write(&at("loop"), "", false).unwrap_err().contains("too many symbolic links"));
    }

    #[test]
    fn what_is_no_plain_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        for (path, said) in [
            (directory.path().to_path_buf(), "it is a directory"),
            (PathBuf::from("/dev/null"), "it is no plain file"),
            (directory.path().join("no/such"), "No such file"),
            (PathBuf::from("/"), "it is a directory"),
        ] {
            let error = write(&path, "", false).unwrap_err();
            assert!(error.contains(said) && !error.contains('\n'), "{error}");
        }
    }

    /// The measurement was over before the program checked that its file can be written.
    #[test]
    fn where_no_file_can_be_is_known_before_the_work() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        let check = |path: &Path| Destination::from_argument(path).check();
        check(&path).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left behind");
        fs::write(&path, "what was there").unwrap();
        check(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "what was there");
        check(Path::new("-")).unwrap();
        for path in [directory.path(), &directory.path().join("no/such"), "/dev/full".as_ref()] {
            assert!(check(path).is_err(), "{}", path.display());
        }
    }

    /// A file with the name x.png was an SVG, which no viewer showed.
    #[test]
    fn other_pictures_are_refused_by_their_names() {
        for name in ["x.png", "x.y.PDF", "jpg.jpg"] {
            let why = not_svg(Path::new(name)).unwrap();
            assert!(why.contains("ends in .svg") && !why.contains('\n'), "{why}");
        }
        for name in ["x.svg", "x", "-", "png", "directory.d", ".png"] {
            assert_eq!(not_svg(Path::new(name)), None, "{name}");
        }
    }

    #[test]
    fn a_dash_is_standard_output() {
        let mut stdout = Vec::new();
        let dash = Destination::from_argument(Path::new("-"));
        dash.write(&mut stdout, |out| Ok(out.write_all(b"x")?)).unwrap();
        assert_eq!(stdout, b"x");
    }
}

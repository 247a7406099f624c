//! Finds the file that IMAGE in `--at` names: by path, on `$PATH`, or among the program's
//! libraries.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::TraceError;

/// Most bytes that are read of the dynamic loader's list.
const LIST_BYTES_MAX: usize = 1 << 20;

/// Files that IMAGE can name: those of the traced program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Candidates {
    /// The program first, then its libraries.
    pub(crate) files: Vec<PathBuf>,
}

impl Candidates {
    /// The files of a command: its program and the libraries that the dynamic loader lists for it.
    pub(crate) fn of_command(program: &OsStr) -> Self {
        let Some(program) = on_path(program) else { return Self::default() };
        let mut files = vec![program.clone()];
        files.extend(libraries(&program));
        Self { files }
    }

    /// The files that a process has mapped.
    pub(crate) fn of_process(pid: u32) -> Self {
        let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
        let mut files: Vec<PathBuf> = Vec::new();
        for line in maps.split(|byte| *byte == b'\n') {
            let Some(at) = line.iter().position(|byte| *byte == b'/') else { continue };
            let path = PathBuf::from(OsStr::from_bytes(line.get(at..).unwrap_or_default()));
            if files.last() != Some(&path) && !files.contains(&path) {
                files.push(path);
            }
        }
        Self { files }
    }

    /// Whether a C++ runtime library is among the files.
    pub(crate) fn throws(&self) -> bool {
        let names = self.files.iter().filter_map(|path| path.file_name()?.to_str());
        names.into_iter().any(|name| name.starts_with("libstdc++") || name.starts_with("libc++"))
    }

    /// The file that IMAGE names. `libc` also names `libc.so.6`.
    pub(crate) fn find(&self, image: &str) -> Result<PathBuf, TraceError> {
        if image.contains('/') {
            let path = PathBuf::from(image);
            return match path.metadata() {
                Ok(metadata) if metadata.is_file() => Ok(path),
                Ok(_) => Err(TraceError::Refused(format!("{image} is no file; name a program"))),
                Err(error) => Err(TraceError::new(&format!("cannot probe {image}"), &error)),
            };
        }
        let name = |path: &Path| path.file_name().and_then(OsStr::to_str).unwrap_or("").to_owned();
        let is_short = |name: &str| {
            name.strip_prefix(image)
                .is_some_and(|rest| rest.starts_with(".so") || rest.starts_with('-'))
        };
        let known = self.files.iter().find(|path| name(path) == image);
        let known = known.or_else(|| self.files.iter().find(|path| is_short(&name(path))));
        let resolved = |path: &PathBuf| fs::canonicalize(path).map(|path| name(&path));
        let linked = || self.files.iter().find(|path| resolved(path).is_ok_and(|is| is == image));
        match known.or_else(linked) {
            Some(path) => Ok(path.clone()),
            None => on_path(OsStr::new(image)).ok_or_else(|| self.unknown(image)),
        }
    }

    fn unknown(&self, image: &str) -> TraceError {
        let names: Vec<&str> =
            self.files.iter().filter_map(|path| path.file_name()?.to_str()).take(8).collect();
        let known = match names.is_empty() {
            true => String::new(),
            false => format!(" (the program's are {})", names.join(", ")),
        };
        TraceError::Refused(format!(
            "no file {image} among the program's or on $PATH{known}; name a path"
        ))
    }
}

/// The file that a shell would execute.
fn on_path(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program)).filter(|path| path.is_file());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
}

/// Libraries of a program, as its own dynamic loader lists them (`ld.so --list`); empty for static
/// programs, scripts and foreign ones. The loader maps the libraries and runs none of their code.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let Some(loader) = interpreter(program) else { return Vec::new() };
    let mut command = Command::new(&loader);
    command.arg("--list").arg(program).stdin(Stdio::null()).stderr(Stdio::null());
    let Ok(output) = command.output() else { return vec![loader] };
    let text = output.stdout.get(..output.stdout.len().min(LIST_BYTES_MAX)).unwrap_or_default();
    let text = String::from_utf8_lossy(text);
    // `libm.so.6 => /lib/libm.so.6 (0x7f...)`, and the loader itself without an arrow.
    let path = |line: &str| {
        let line = line.rsplit_once("=>").map_or(line, |(_, path)| path).trim();
        let path = line.rsplit_once(" (").map_or(line, |(path, _)| path);
        path.starts_with('/').then(|| PathBuf::from(path))
    };
    text.lines().filter_map(path).collect()
}

/// The dynamic loader that a program names: PT_INTERP, which is the string `/.../ld...` near the
/// start of the file.
fn interpreter(program: &Path) -> Option<PathBuf> {
    use std::io::Read as _;
    let mut begin = Vec::new();
    fs::File::open(program).ok()?.take(64 << 10).read_to_end(&mut begin).ok()?;
    if !begin.starts_with(b"\x7fELF") {
        return None;
    }
    // Program headers: e_phoff, e_phentsize, e_phnum of a 64-bit file (elf(5)).
    let number = |at: usize, bytes: usize| {
        let field = begin.get(at..at.checked_add(bytes)?)?;
        Some(field.iter().rev().fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte)))
    };
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for header in (0..count).filter_map(|index| table.checked_add(index.checked_mul(size)?)) {
        if number(header, 4)? != 3 {
            continue;
        }
        let (offset, length) = (number(header.checked_add(8)?, 8)?, number(header + 32, 8)?);
        let text = begin.get(offset..offset.checked_add(length)?)?;
        let text = text.split(|byte| *byte == 0).next()?;
        return Some(PathBuf::from(OsStr::from_bytes(text))).filter(|path| path.is_absolute());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_found_by_path_and_by_name() {
        let program = std::env::current_exe().unwrap();
        let candidates = Candidates::of_command(program.as_os_str());
        assert_eq!(candidates.files[0], program);
        let libc = candidates.find("libc").unwrap();
        assert!(libc.file_name().unwrap().to_str().unwrap().starts_with("libc.so"), "{libc:?}");
        assert_eq!(candidates.find("libc.so.6").unwrap(), libc);
        assert_eq!(candidates.find("/bin/sh").unwrap(), Path::new("/bin/sh"));
        assert!(candidates.find("sh").unwrap().ends_with("sh"));
        let error = candidates.find("libnothing").unwrap_err().to_string();
        assert!(error.contains("libc.so.6") && error.ends_with("; name a path"), "{error}");
        assert!(candidates.find("/no/such").unwrap_err().to_string().contains("No such file"));
        assert!(candidates.find("/bin").unwrap_err().to_string().contains("is no file"));
        let own = Candidates::of_process(std::process::id());
        assert!(own.files.contains(&program), "{own:?}");
    }
}

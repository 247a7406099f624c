//! The separate debug file of a stripped image ("Debugging Information in Separate Files", GDB
//! manual): found by build id or by `.gnu_debuglink`, and only used if it is of the same build.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::endian::U32;
use object::pod;

use crate::elf::{Elf, Section, malformed};
use crate::source::{self, Source};
use crate::{Finding, ImageError, ImageId, OnBehalf};

/// Folder where distributions install debug files.
const DEFAULT_ROOT: &str = "/usr/lib/debug";
/// Largest `.gnu_debuglink` read, in bytes: a file name and a checksum.
const LINK_LIMIT: u64 = 4 << 10;
/// Largest debug file whose checksum is computed, in bytes. A file found by build id may be larger,
/// because its checksum is not needed.
const CHECKSUM_LIMIT: u64 = 4 << 30;

/// Folders where debug files are looked for unless the user names others: `/usr/lib/debug`.
pub fn default_debug_roots() -> Vec<PathBuf> {
    vec![PathBuf::from(DEFAULT_ROOT)]
}

/// The image whose debug file is wanted.
pub(crate) struct Wanted<'a> {
    pub(crate) elf: &'a Elf<'a>,
    pub(crate) sections: &'a [Section],
    /// The GNU build id, if it has one.
    pub(crate) build_id: Option<ImageId>,
    /// Path of the image; `None` for an image that is not a file.
    pub(crate) path: Option<&'a Path>,
    pub(crate) roots: &'a [PathBuf],
}

/// Content of `.gnu_debuglink`: a file name and the CRC-32 of that file.
struct Link {
    name: PathBuf,
    checksum: u32,
}

/// The debug files of the same build, best first, each opened when it is asked for. Files that are
/// there but cannot be used are added to `findings`.
pub(crate) fn find(
    wanted: &Wanted<'_>,
    findings: &mut Vec<Finding>,
    mut use_it: impl FnMut(&Path, &File, &mut Vec<Finding>) -> bool,
) -> bool {
    let link = link(wanted, findings);
    let by_id = build_id_paths(wanted.build_id, wanted.roots).into_iter().map(|path| (path, None));
    let by_link = link.iter().flat_map(|link| {
        let paths = link_paths(wanted, &link.name);
        paths.into_iter().map(|path| (path, Some(link.checksum)))
    });
    for (path, checksum) in by_id.chain(by_link) {
        let file = match open_other(&path, wanted.path) {
            Ok(Some(file)) if checksum.is_none() || may_be_named(wanted, &file) => file,
            Ok(_) => continue,
            Err(error) => {
                findings.push(Finding::DebugFileUnreadable { path, error });
                continue;
            }
        };
        match build_of(&file, wanted.build_id, checksum) {
            Ok(Build::Same) => {
                if use_it(&path, &file, findings) {
                    return true;
                }
            }
            Ok(Build::Other(found)) => {
                findings.push(Finding::DebugFileOfOtherBuild { path, found });
            }
            Err(error) => findings.push(Finding::DebugFileUnreadable { path, error }),
        }
    }
    false
}

/// Paths where the debug file of a build may be: `ROOT/.build-id/xx/yyyy.debug`.
pub(crate) fn build_id_paths(build_id: Option<ImageId>, roots: &[PathBuf]) -> Vec<PathBuf> {
    let Some(id) = build_id else {
        return Vec::new();
    };
    let hex = id.alone().to_string();
    // A build id of one byte has no yyyy.
    match hex.split_at_checked(2) {
        Some((first, rest)) if !rest.is_empty() => roots
            .iter()
            .map(|root| root.join(".build-id").join(first).join(format!("{rest}.debug")))
            .collect(),
        _ => Vec::new(),
    }
}

fn link_paths(wanted: &Wanted<'_>, name: &Path) -> Vec<PathBuf> {
    let Some(path) = wanted.path else {
        return Vec::new();
    };
    // The debug file is near the program itself, not near a link to it.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let Some(dir) = path.parent() else {
        return Vec::new();
    };
    let below_root = dir.strip_prefix("/").unwrap_or(dir);
    let mut paths = vec![dir.join(name), dir.join(".debug").join(name)];
    let global = wanted.roots.iter();
    paths.extend(global.map(|root| root.join(below_root).join(name)));
    paths
}

fn link(wanted: &Wanted<'_>, findings: &mut Vec<Finding>) -> Option<Link> {
    let section = wanted.sections.iter().find(|section| &*section.name == ".gnu_debuglink")?;
    let part = ".gnu_debuglink section";
    let link = wanted.elf.section_bytes(part, section, LINK_LIMIT).and_then(|bytes| {
        parse_link(wanted.elf, &bytes).ok_or_else(|| malformed(part, section.offset))
    });
    link.map_err(|error| findings.push(Finding::Unreadable { part, error })).ok()
}

/// A file name, its NUL, padding to four bytes, and the checksum in the file's byte order.
fn parse_link(elf: &Elf<'_>, bytes: &[u8]) -> Option<Link> {
    let end = bytes.iter().position(|&byte| byte == 0)?;
    let name = bytes.get(..end)?;
    // Only a plain name in one of the directories above: no path may lead out of them.
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') {
        return None;
    }
    let (checksum, _) =
        pod::from_bytes::<U32<object::Endianness>>(bytes.get((end + 1).next_multiple_of(4)..)?)
            .ok()?;
    Some(Link { name: PathBuf::from(OsStr::from_bytes(name)), checksum: checksum.get(elf.endian) })
}

/// Whether the image's owner may read the file that the image names. Those below the roots are
/// whoever's roots these are.
fn may_be_named(wanted: &Wanted<'_>, file: &File) -> bool {
    OnBehalf::of_owner(wanted.elf.source.owner()).may_read(file).unwrap_or(false)
}

/// Opens a file that exists and is not the image itself.
fn open_other(path: &Path, image: Option<&Path>) -> Result<Option<File>, ImageError> {
    use std::os::unix::fs::MetadataExt;
    let file = match source::open(path) {
        Err(ImageError::Io { source, .. })
            if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            return Ok(None);
        }
        other => other?,
    };
    let place = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let this = file.metadata().ok().map(place);
    let image = image.and_then(|image| image.metadata().ok()).map(place);
    Ok((this != image || this.is_none()).then_some(file))
}

enum Build {
    Same,
    Other(Option<ImageId>),
}

/// Whether a debug file is of the same build. Where both have a build id, it decides, because it is
/// stronger; else the checksum of the whole file decides.
fn build_of(
    file: &File,
    wanted: Option<ImageId>,
    checksum: Option<u32>,
) -> Result<Build, ImageError> {
    let source = Source::file(file)?;
    let found = Elf::parse(source)?.build_id();
    let same = match (wanted, found, checksum) {
        (Some(wanted), Some(found), _) => wanted == found,
        (_, _, Some(checksum)) => {
            let (size, limit) = (source.len(), CHECKSUM_LIMIT);
            if size > limit {
                let what = "debug file (bytes)";
                return Err(ImageError::TooLarge { what, size, limit });
            }
            let mut crc = Crc32::new();
            source.stream("debug file", 0, size, |piece| crc.update(piece))?;
            crc.finish() == checksum
        }
        _ => false,
    };
    Ok(if same { Build::Same } else { Build::Other(found) })
}

/// CRC-32 of IEEE 802.3, which `.gnu_debuglink` uses.
struct Crc32(u32);

impl Crc32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let mut crc = byte as u32;
            let mut bit = 0;
            while bit < 8 {
                crc = (crc >> 1) ^ (0xedb8_8320 * (crc & 1));
                bit += 1;
            }
            #[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
            {
                table[byte] = crc;
            }
            byte += 1;
        }
        table
    };

    fn new() -> Self {
        Self(!0)
    }

    fn update(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let index = usize::from(self.0.to_le_bytes()[0] ^ byte);
            // The index is a byte's value, the table has 256 entries.
            self.0 = (self.0 >> 8) ^ Self::TABLE.get(index).copied().unwrap_or_default();
        }
    }

    fn finish(self) -> u32 {
        !self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_one_everyone_has() {
        let mut crc = Crc32::new();
        crc.update(b"1234");
        crc.update(b"56789");
        // The check value of CRC-32/ISO-HDLC.
        assert_eq!(crc.finish(), 0xcbf4_3926);
    }
}

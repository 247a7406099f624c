//! The debug information (DWARF) of an image, read into memory: from the file itself, its separate
//! debug file, the supplementary file that several debug files may share (`dwz`), and the files of
//! single units (`split.rs`). Programs of Go that have none have the lines and inlined calls of
//! Go's table.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use gimli::{RunTimeEndian, SectionId};
use object::endian::Endianness;
use object::pod;
use object::read::CompressedData;
use object::{CompressionFormat, elf};

use crate::debug_file::{self, Wanted};
use crate::elf::{Elf, Section, malformed};
use crate::go_table::{GO_TABLE, GoTable};
use crate::lines::{Lines, Meter};
use crate::source::{self, Source};
use crate::split::Split;
use crate::{Binary, Finding, ImageError, ImageId, OnBehalf, Sites};

/// Most bytes of debug information of one image, decompressed: the largest programs have one or two
/// GiB. The limit bounds the memory of reports.
const DEBUG_BYTES_MAX: u64 = 2 << 30;
/// Most bytes that one byte of deflate's compressed data can expand to (zlib's technical details,
/// "Maximum Expansion Factor"). A section that claims more is damaged.
const INFLATION_MAX: u64 = 1032;
/// Largest `.gnu_debugaltlink` read, in bytes: a file name and a build id.
const LINK_LIMIT: u64 = 4 << 10;

/// Sections that are read: those which lines and inlined calls need.
const SECTIONS: [SectionId; 10] = [
    SectionId::DebugInfo,
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugAranges,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
];

/// The debug information of an image.
pub struct DebugInfo {
    pub(crate) sections: Sections,
    pub(crate) supplement: Option<Sections>,
    pub(crate) split: Split,
    /// The lines of a program without debug information.
    pub(crate) go_table: Option<GoTable>,
    path: Option<PathBuf>,
    names_for: OnBehalf,
    pub(crate) meter: Meter,
}

impl fmt::Debug for DebugInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DebugInfo({} bytes of {:?})", self.sections.len(), self.path)
    }
}

/// The sections of one file.
pub(crate) struct Sections {
    bytes: Vec<(SectionId, Vec<u8>)>,
    pub(crate) endian: RunTimeEndian,
}

impl Sections {
    /// A section's bytes; empty when there is none.
    pub(crate) fn get(&self, id: SectionId) -> &[u8] {
        self.bytes.iter().find(|(known, _)| *known == id).map_or(&[], |(_, bytes)| bytes)
    }

    /// Bytes of all sections.
    pub(crate) fn len(&self) -> u64 {
        self.bytes.iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }
}

impl DebugInfo {
    /// The debug information of an image: its own, or that of the first debug file of its build
    /// that has some (see [`crate::procedures`]), or Go's table of lines. Files that are there but
    /// cannot be used are added to `findings`.
    pub fn of(
        binary: &Binary,
        debug_roots: &[PathBuf],
        findings: &mut Vec<Finding>,
    ) -> Option<Self> {
        let part = "debug information";
        let mut unreadable = |error| findings.push(Finding::Unreadable { part, error });
        let elf = binary.elf().map_err(&mut unreadable).ok()?;
        let sections = elf.sections().map_err(&mut unreadable).ok()?;
        // The debug sections of a kept file have headers, but no bytes.
        if binary.is_whole() && has_debug_info(&sections) {
            return match Self::read(&elf, &sections, binary.path(), debug_roots) {
                Ok(info) => Some(info),
                Err(error) => {
                    unreadable(error);
                    None
                }
            };
        }
        let wanted = Wanted {
            elf: &elf,
            sections: &sections,
            build_id: elf.build_id(),
            path: binary.path(),
            roots: debug_roots,
        };
        let mut found = None;
        debug_file::find(&wanted, findings, |path, file, findings| {
            match Self::of_file(path, file, debug_roots) {
                Ok(info) => found = info,
                Err(error) => {
                    findings.push(Finding::DebugFileUnreadable { path: path.to_path_buf(), error })
                }
            }
            found.is_some()
        });
        if found.is_some() {
            return found;
        }
        match GoTable::read(&elf, &sections) {
            Ok(table) => table.map(|table| Self {
                sections: Sections { bytes: Vec::new(), endian: RunTimeEndian::Little },
                supplement: None,
                split: Split::beside(None, OnBehalf::Own, 0),
                go_table: Some(table.with_inlined(&elf, &sections)),
                path: binary.path().map(Path::to_path_buf),
                names_for: OnBehalf::of_owner(elf.source.owner()),
                meter: Meter::default(),
            }),
            Err(error) => {
                findings.push(Finding::Unreadable { part: GO_TABLE, error });
                None
            }
        }
    }

    /// The debug information of a debug file of the build `build`, wherever it was found; None if
    /// the file has none.
    ///
    /// # Errors
    /// [`ImageError::WrongBuild`]; [`ImageError::NotElf`]; [`ImageError::Malformed`];
    /// [`ImageError::TooLarge`]; [`ImageError::NotRegular`]; [`ImageError::Io`].
    pub fn of_debug_file(
        path: &Path,
        build: &ImageId,
        debug_roots: &[PathBuf],
    ) -> Result<Option<Self>, ImageError> {
        let file = source::open(path)?;
        let found = Elf::parse(Source::file(&file)?)?.build_id();
        match found {
            Some(found) if found == build.alone() => {
                Self::of_file(path, &file, debug_roots).map_err(|error| error.of(path))
            }
            Some(found) => Err(ImageError::WrongBuild { expected: *build, found }),
            None => Ok(None),
        }
    }

    /// The debug information of a debug file, if it has some.
    fn of_file(path: &Path, file: &File, roots: &[PathBuf]) -> Result<Option<Self>, ImageError> {
        let elf = Elf::parse(Source::file(file)?)?;
        let sections = elf.sections()?;
        match has_debug_info(&sections) {
            true => Self::read(&elf, &sections, Some(path), roots).map(Some),
            false => Ok(None),
        }
    }

    fn read(
        elf: &Elf<'_>,
        sections: &[Section],
        path: Option<&Path>,
        roots: &[PathBuf],
    ) -> Result<Self, ImageError> {
        let own = read_sections(elf, sections, OF_FILE, DEBUG_BYTES_MAX)?;
        let left = DEBUG_BYTES_MAX.saturating_sub(own.len());
        let names_for = OnBehalf::of_owner(elf.source.owner());
        let supplement = supplement(elf, sections, (path, names_for), roots, left);
        let left = left.saturating_sub(supplement.as_ref().map_or(0, Sections::len));
        Ok(Self {
            sections: own,
            supplement,
            split: Split::beside(path, names_for, left),
            go_table: None,
            path: path.map(Path::to_path_buf),
            names_for,
            meter: Meter::default(),
        })
    }

    /// Path of the file that has the debug information.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// On whose behalf files are read that it names: its file's owner's, where this process is
    /// root's.
    pub fn names_for(&self) -> OnBehalf {
        self.names_for
    }

    /// The source lines.
    ///
    /// # Errors
    /// [`ImageError::Malformed`] when not even the units can be separated.
    pub fn lines(&self) -> Result<Lines<'_>, ImageError> {
        Lines::of(self)
    }

    /// Functions and lines in the terms of compilers; none by Go's table.
    pub fn sites(&self) -> Result<Sites<'_>, ImageError> {
        Sites::of(self)
    }
}

fn has_debug_info(sections: &[Section]) -> bool {
    find(sections, SectionId::DebugInfo.name()).is_some()
}

/// Sections, and the names that they have in a file.
type Named<'a> = (&'a [SectionId], &'a dyn Fn(SectionId) -> Option<&'static str>);

/// The sections of an image or a debug file.
const OF_FILE: Named<'static> = (&SECTIONS, &|id| Some(id.name()));

/// A section by its name, or by the name that GNU tools once gave to compressed sections.
fn find<'a>(sections: &'a [Section], name: &str) -> Option<&'a Section> {
    let old = || name.replacen(".debug_", ".zdebug_", 1);
    let named =
        |name: &str| sections.iter().find(|section| section.has_bytes() && &*section.name == name);
    named(name).or_else(|| named(&old()))
}

pub(crate) fn read_sections(
    elf: &Elf<'_>,
    sections: &[Section],
    (wanted, name): Named<'_>,
    limit: u64,
) -> Result<Sections, ImageError> {
    let mut bytes = Vec::new();
    let mut left = limit;
    for &id in wanted {
        let Some(section) = name(id).and_then(|name| find(sections, name)) else {
            continue;
        };
        let read = read_section(elf, section, left)?;
        left = left.saturating_sub(read.len() as u64);
        bytes.push((id, read));
    }
    let endian = match elf.endian {
        Endianness::Little => RunTimeEndian::Little,
        Endianness::Big => RunTimeEndian::Big,
    };
    Ok(Sections { bytes, endian })
}

/// A section's bytes, decompressed. A section that reaches beyond the end of a truncated file is
/// read as far as it is there.
fn read_section(elf: &Elf<'_>, section: &Section, limit: u64) -> Result<Vec<u8>, ImageError> {
    let what = "debug information (bytes)";
    let size = section.size.min(elf.source.len().saturating_sub(section.offset));
    let bytes = elf.source.read(what, section.offset, size, limit)?;
    let compressed = if section.flags & u64::from(elf::SHF_COMPRESSED) != 0 {
        Some(
            compression_header(elf, &bytes)
                .ok_or_else(|| malformed("compressed section", section.offset))?,
        )
    } else if section.name.starts_with(".zdebug_") {
        // "ZLIB" and the size, big endian: the GNU tools' own form.
        let parts = bytes.strip_prefix(b"ZLIB").and_then(<[u8]>::split_first_chunk::<8>);
        let (size, data) = parts.ok_or_else(|| malformed("compressed section", section.offset))?;
        Some((CompressionFormat::Zlib, u64::from_be_bytes(*size), data))
    } else {
        None
    };
    let Some((format, size, data)) = compressed else {
        return Ok(bytes.into_owned());
    };
    if size > limit {
        return Err(ImageError::TooLarge { what, size, limit });
    }
    decompressed(format, data, size).ok_or_else(|| malformed("compressed section", section.offset))
}

/// Exactly `size` bytes of compressed data; None if it has another number.
fn decompressed(format: CompressionFormat, data: &[u8], size: u64) -> Option<Vec<u8>> {
    match format {
        // The library reserves the size that is claimed, and never gives more.
        CompressionFormat::Zlib if size <= (data.len() as u64).saturating_mul(INFLATION_MAX) => {
            let data = CompressedData { format, data, uncompressed_size: size };
            data.decompress().ok().map(Cow::into_owned)
        }
        // Its Zstandard gives as much as there is, so the limit is checked here.
        CompressionFormat::Zstandard => {
            let mut bytes = Vec::new();
            let decoder = ruzstd::decoding::StreamingDecoder::new(data).ok()?;
            decoder.take(size.saturating_add(1)).read_to_end(&mut bytes).ok()?;
            (bytes.len() as u64 == size).then_some(bytes)
        }
        _ => None,
    }
}

/// Head of a compressed section (gABI, "Compression Header"): format and size; and the data behind
/// it.
fn compression_header<'a>(
    elf: &Elf<'_>,
    bytes: &'a [u8],
) -> Option<(CompressionFormat, u64, &'a [u8])> {
    let (kind, size, data) = if elf.is_64 {
        let (header, data) = pod::from_bytes::<elf::CompressionHeader64<Endianness>>(bytes).ok()?;
        (header.ch_type.get(elf.endian), header.ch_size.get(elf.endian), data)
    } else {
        let (header, data) = pod::from_bytes::<elf::CompressionHeader32<Endianness>>(bytes).ok()?;
        (header.ch_type.get(elf.endian), u64::from(header.ch_size.get(elf.endian)), data)
    };
    match kind {
        elf::ELFCOMPRESS_ZLIB => Some((CompressionFormat::Zlib, size, data)),
        elf::ELFCOMPRESS_ZSTD => Some((CompressionFormat::Zstandard, size, data)),
        _ => None,
    }
}

/// The sections of the supplementary file that `.gnu_debugaltlink` names (a file name, NUL, and the
/// build id of that file), if it exists and is of that build. Without it only some names are
/// missing.
fn supplement(
    elf: &Elf<'_>,
    sections: &[Section],
    (path, names_for): (Option<&Path>, OnBehalf),
    roots: &[PathBuf],
    limit: u64,
) -> Option<Sections> {
    let section = sections.iter().find(|section| &*section.name == ".gnu_debugaltlink")?;
    let bytes = elf.section_bytes("link to a supplementary file", section, LINK_LIMIT).ok()?;
    let end = bytes.iter().position(|&byte| byte == 0)?;
    let name = Path::new(OsStr::from_bytes(bytes.get(..end)?));
    let build = ImageId::from_build_id(bytes.get(end + 1..)?)?;
    let of_roots = debug_file::build_id_paths(Some(build), roots).into_iter();
    let mut paths: Vec<_> = of_roots.map(|path| (path, OnBehalf::Own)).collect();
    let real = path.and_then(|path| path.canonicalize().ok());
    // An absolute path replaces the directory.
    paths.extend(real.as_deref().and_then(Path::parent).map(|dir| (dir.join(name), names_for)));
    paths.into_iter().find_map(|(path, names_for)| {
        let file = source::open(&path).ok()?;
        if !names_for.may_read(&file).ok()? {
            return None;
        }
        let elf = Elf::parse(Source::file(&file).ok()?).ok()?;
        if elf.build_id() != Some(build.alone()) {
            return None;
        }
        read_sections(&elf, &elf.sections().ok()?, OF_FILE, limit).ok()
    })
}

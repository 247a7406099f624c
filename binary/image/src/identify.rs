//! Identifies the build of a file.

use std::fs::File;

use object::elf;
use xxhash_rust::xxh3::Xxh3;

use crate::elf::{Elf, ProgramHeader};
use crate::id::TextHasher;
use crate::source::Source;
use crate::{ImageError, ImageId};

/// Bytes of code that are hashed: the largest programs have less. A file that claims more takes no
/// more time; two files that differ only beyond this limit would be one image.
const TEXT_LIMIT: u64 = 256 << 20;

/// The id of an ELF file in memory: its GNU build id and a hash of its program headers, else a hash
/// of its code.
///
/// The build id is looked for in the mapped notes (`PT_NOTE`), then in sections of notes
/// (`SHT_NOTE`). The code is the bytes of the executable `PT_LOAD` segments, in their order, or for
/// an object file of its sections of instructions; of it the first 256 MiB count.
///
/// # Errors
/// [`ImageError::NotElf`]; [`ImageError::Malformed`], [`ImageError::TooLarge`] when the file or
/// program headers are; [`ImageError::NoText`] when there is neither build id nor code.
pub fn identify(data: &[u8]) -> Result<ImageId, ImageError> {
    identify_elf(&Elf::parse(Source::Bytes(data))?)
}

/// The id of an open ELF file, as [`identify`].
///
/// Reads headers and notes only, and the code a piece at a time when it must be hashed. Does not
/// move the file's position.
///
/// # Errors
/// As [`identify`]; [`ImageError::NotRegular`] for a directory, device, FIFO or socket, without
/// reading from it; [`ImageError::Io`].
pub fn identify_file(file: &File) -> Result<ImageId, ImageError> {
    identify_elf(&Elf::parse(Source::file(file)?)?)
}

/// The GNU build id of an open ELF file, found as in [`identify`]; `None` when it has none. Never
/// reads code.
///
/// # Errors
/// Returns the errors of [`identify_file`], except [`ImageError::NoText`].
pub fn build_id_of_file(file: &File) -> Result<Option<ImageId>, ImageError> {
    Ok(Elf::parse(Source::file(file)?)?.build_id())
}

pub(crate) fn identify_elf(elf: &Elf<'_>) -> Result<ImageId, ImageError> {
    if let Some(id) = elf.build_id() {
        return Ok(match elf.segments.is_empty() {
            true => id,
            false => id.with_headers(hash_of_headers(elf)),
        });
    }
    let mut pieces: Vec<(u64, u64)> = elf
        .segments
        .iter()
        .filter(|segment| segment.kind == elf::PT_LOAD && segment.flags & elf::PF_X != 0)
        .map(|segment| (segment.offset, segment.file_size))
        .collect();
    if elf.segments.is_empty() {
        pieces = elf
            .sections()?
            .iter()
            .filter(|section| section.is_code() && section.has_bytes())
            .map(|section| (section.offset, section.size))
            .collect();
    }
    let mut hasher = TextHasher::new();
    let mut left = TEXT_LIMIT;
    for (offset, size) in pieces {
        let hashed =
            elf.source.stream("code", offset, size.min(left), |piece| hasher.update(piece))?;
        left -= hashed;
    }
    if left == TEXT_LIMIT {
        return Err(ImageError::NoText);
    }
    Ok(hasher.finish())
}

/// A hash of the segments that are loaded, which `strip` and `objcopy` leave as they are, and which
/// differ between nearly any two links of a program.
fn hash_of_headers(elf: &Elf<'_>) -> u32 {
    let mut hasher = Xxh3::new();
    for segment in elf.segments.iter().filter(|segment| segment.kind == elf::PT_LOAD) {
        let ProgramHeader { kind: _, flags, offset, vaddr, file_size, align: _, memory_size: _ } =
            *segment;
        for word in [u64::from(flags), offset, vaddr, file_size] {
            hasher.update(&word.to_le_bytes());
        }
    }
    hasher.update(&elf.entry.to_le_bytes());
    (hasher.digest() >> 32) as u32
}

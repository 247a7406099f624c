//! The 32 bytes that every file begins with, and the checks that precede any use of its content.

use std::cmp::Ordering;
use std::path::Path;

use crate::error::{Damage, DbError};

/// First bytes of every file. As in PNG: a byte above 127, letters, and line ends that a transfer
/// in text mode would change.
pub const MAGIC: [u8; 8] = *b"\x89DCPI\r\n\x1a";
/// The newest format version. A kind of file is written with the version that it was introduced or
/// last changed in.
pub const VERSION: u16 = 3;
/// Length of the header in bytes.
pub const HEADER_BYTES: usize = 32;

/// Kinds of files.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The kept part of one image.
    Code,
    /// The additions of some merges to an epoch.
    Segment,
    /// The kept part of one image, without some of its code.
    Excerpt,
    /// A kind of a later release. Readers check its checksum and skip it.
    Unknown(u16),
}

impl Kind {
    /// The kind's number in the header.
    pub const fn code(self) -> u16 {
        match self {
            Self::Code => 8,
            Self::Segment => 9,
            Self::Excerpt => 10,
            Self::Unknown(code) => code,
        }
    }

    /// The kind of a number.
    pub const fn from_code(code: u16) -> Self {
        match code {
            8 => Self::Code,
            9 => Self::Segment,
            10 => Self::Excerpt,
            code => Self::Unknown(code),
        }
    }

    /// The format version that a file of this kind is written with, the only one that is read.
    const fn version(self) -> u16 {
        match self {
            Self::Segment => VERSION,
            _ => 1,
        }
    }
}

/// A file of this kind with this payload.
pub fn seal(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let mut file = Vec::with_capacity(HEADER_BYTES + payload.len());
    file.extend_from_slice(&header(kind, payload.len() as u64, crc32c::crc32c(payload)));
    file.extend_from_slice(payload);
    file
}

/// The header of a file of this kind, whose payload has this length in bytes and this CRC-32C.
pub fn header(kind: Kind, length: u64, checksum: u32) -> Vec<u8> {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend_from_slice(&MAGIC);
    header.extend_from_slice(&kind.version().to_le_bytes());
    header.extend_from_slice(&kind.code().to_le_bytes());
    header.extend_from_slice(&length.to_le_bytes());
    header.extend_from_slice(&checksum.to_le_bytes());
    header.extend_from_slice(&[0; 4]);
    let header_checksum = crc32c::crc32c(&header);
    header.extend_from_slice(&header_checksum.to_le_bytes());
    header
}

/// An error in a file, before its path is known.
#[derive(Debug)]
pub enum OpenError {
    /// The file is damaged at this offset.
    Damaged {
        /// Offset in the file in bytes.
        offset: u64,
        /// The kind of damage.
        damage: Damage,
    },
    /// The file was written by a newer release.
    Newer {
        /// Version of the file.
        found: u16,
    },
    /// The file has a format of which nothing is read any more.
    Older {
        /// Version of the file.
        found: u16,
        /// The oldest version of its kind that is read.
        oldest: u16,
    },
}

impl OpenError {
    /// The error with the file's path.
    pub fn of(self, path: &Path) -> DbError {
        let path = path.to_owned();
        match self {
            Self::Damaged { offset, damage } => DbError::Corrupt { path, offset, damage },
            Self::Newer { found } => {
                DbError::NewerFormat { path, found: found.into(), known: VERSION.into() }
            }
            Self::Older { found, oldest } => {
                DbError::OlderFormat { path, found: found.into(), oldest: oldest.into() }
            }
        }
    }
}

/// The kind and the payload of a file whose checksums all fit.
///
/// # Errors
/// [`OpenError`] when the bytes are not those of a whole file that some release wrote, or are of a
/// format version newer than [`VERSION`], or older than what is read of their kind.
pub fn open(file: &[u8]) -> Result<(Kind, &[u8]), OpenError> {
    let (kind, payload, checksum) = open_header(file)?;
    if crc32c::crc32c(payload) != checksum {
        return Err(OpenError::Damaged { offset: HEADER_BYTES as u64, damage: Damage::Checksum });
    }
    Ok((kind, payload))
}

/// Kind, payload and the payload's checksum by the header.
fn open_header(file: &[u8]) -> Result<(Kind, &[u8], u32), OpenError> {
    let (header, payload) = file.split_at_checked(HEADER_BYTES).unwrap_or((file, &[]));
    let (kind, checksum) = parse_header(header, file.len() as u64)?;
    Ok((kind, payload, checksum))
}

/// The kind of a file of `file_bytes` bytes, and its payload's checksum, by its first
/// [`HEADER_BYTES`].
///
/// # Errors
/// As [`open`], but for the payload.
pub(crate) fn parse_header(header: &[u8], file_bytes: u64) -> Result<(Kind, u32), OpenError> {
    let damaged = |offset: usize, damage| OpenError::Damaged { offset: offset as u64, damage };
    let truncated = || OpenError::Damaged { offset: file_bytes, damage: Damage::Truncated };
    if header.len() < HEADER_BYTES {
        return Err(truncated());
    }
    let mut fields = Fields(header);
    if fields.take::<8>() != Some(MAGIC) {
        return Err(damaged(0, Damage::Magic));
    }
    let version = fields.take().map(u16::from_le_bytes).ok_or_else(truncated)?;
    let kind = fields.take().map(u16::from_le_bytes).ok_or_else(truncated)?;
    let kind = Kind::from_code(kind);
    let length = fields.take().map(u64::from_le_bytes).ok_or_else(truncated)?;
    let checksum = fields.take().map(u32::from_le_bytes).ok_or_else(truncated)?;
    let reserved = fields.take().map(u32::from_le_bytes).ok_or_else(truncated)?;
    let header_checksum = fields.take().map(u32::from_le_bytes).ok_or_else(truncated)?;
    let (checked, _) = header.split_at(HEADER_BYTES - 4);
    // Before the version: a damaged version must not read as "newer".
    if crc32c::crc32c(checked) != header_checksum {
        return Err(damaged(HEADER_BYTES - 4, Damage::HeaderChecksum));
    }
    if version > VERSION {
        return Err(OpenError::Newer { found: version });
    }
    if version == 0 {
        return Err(damaged(8, Damage::Version));
    }
    if version < kind.version() {
        return Err(OpenError::Older { found: version, oldest: kind.version() });
    }
    if reserved != 0 {
        return Err(damaged(24, Damage::Reserved));
    }
    let payload_bytes = file_bytes.saturating_sub(HEADER_BYTES as u64);
    match payload_bytes.cmp(&length) {
        Ordering::Less => Err(truncated()),
        Ordering::Greater => {
            let offset = HEADER_BYTES as u64 + length;
            Err(OpenError::Damaged { offset, damage: Damage::TrailingBytes })
        }
        Ordering::Equal => Ok((kind, checksum)),
    }
}

/// The payload of a file of the expected kind.
///
/// # Errors
/// Returns the errors of [`open`], and when the file is of another kind.
pub fn open_as(expected: Kind, file: &[u8]) -> Result<&[u8], OpenError> {
    let (kind, payload) = open(file)?;
    expect(expected, kind).map(|()| payload)
}

/// As [`open_as`], without the checksum of the payload: for a kind whose parts have checksums of
/// their own, so that damage in one part does not affect the others.
pub(crate) fn open_unsummed(expected: Kind, file: &[u8]) -> Result<&[u8], OpenError> {
    let (kind, payload, _) = open_header(file)?;
    expect(expected, kind).map(|()| payload)
}

/// Refuses a file of another kind.
pub(crate) fn expect(expected: Kind, found: Kind) -> Result<(), OpenError> {
    if found == expected {
        return Ok(());
    }
    Err(OpenError::Damaged {
        offset: 10,
        damage: Damage::Kind { found: found.code(), expected: expected.code() },
    })
}

/// Reads the header from its start to its end.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }
}

const _: () = assert!(HEADER_BYTES == 8 + 2 + 2 + 8 + 4 + 4 + 4);

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of FORMAT.md's example, so that document and code cannot part.
    const EXAMPLE: [u8; 35] = [
        0x89, 0x44, 0x43, 0x50, 0x49, 0x0d, 0x0a, 0x1a, // magic
        0x01, 0x00, 0x08, 0x00, // version 1, kind 8
        0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // payload of 3 bytes
        0xb7, 0x3f, 0x4b, 0x36, 0x00, 0x00, 0x00, 0x00, // its checksum, reserved
        0x22, 0x52, 0x0f, 0x90, // checksum of the header
        0x61, 0x62, 0x63, // payload
    ];

    fn with_header_checksum(mut file: Vec<u8>) -> Vec<u8> {
        let checksum = crc32c::crc32c(&file[..28]);
        file[28..32].copy_from_slice(&checksum.to_le_bytes());
        file
    }

    #[test]
    fn a_file_has_the_documented_bytes() {
        assert_eq!(seal(Kind::Code, b"abc"), EXAMPLE);
        let (kind, payload) = open(&EXAMPLE).unwrap();
        assert_eq!((kind, payload), (Kind::Code, &b"abc"[..]));
    }

    #[test]
    fn kinds_have_fixed_numbers() {
        for code in 0..100 {
            assert_eq!(Kind::from_code(code).code(), code);
        }
        let codes = [Kind::Code, Kind::Segment, Kind::Excerpt].map(Kind::code);
        assert_eq!((codes, Kind::Segment.version(), Kind::Code.version()), ([8, 9, 10], 3, 1));
    }

    #[test]
    fn an_unknown_kind_opens_and_is_not_taken_for_another() {
        let file = seal(Kind::Unknown(900), b"future");
        assert_eq!(open(&file).unwrap(), (Kind::Unknown(900), &b"future"[..]));
        assert!(open_as(Kind::Code, &file).is_err());
    }

    #[test]
    fn newer_and_older_versions_are_told_from_damaged_ones() {
        let mut file = seal(Kind::Code, b"{}");
        file[8] = 4;
        assert!(matches!(
            open(&file),
            Err(OpenError::Damaged { damage: Damage::HeaderChecksum, .. })
        ));
        let file = with_header_checksum(file);
        assert!(matches!(open(&file), Err(OpenError::Newer { found: 4 })));
        let mut file = seal(Kind::Segment, b"{}");
        file[8] = 2;
        let file = with_header_checksum(file);
        assert!(matches!(open(&file), Err(OpenError::Older { found: 2, oldest: 3 })));
    }

    #[test]
    fn fields_that_must_be_zero_or_fit_are_checked() {
        for (at, value) in [(24, 1), (8, 0), (12, 4), (12, 2), (19, 0xff)] {
            let mut file = seal(Kind::Code, b"abc");
            file[at] = value;
            assert!(open(&with_header_checksum(file)).is_err(), "byte {at}");
        }
    }

    #[test]
    fn every_flip_and_cut_is_seen() {
        let file = seal(Kind::Excerpt, b"some payload");
        for at in 0..file.len() {
            for bit in 0..8 {
                let mut damaged = file.clone();
                damaged[at] ^= 1 << bit;
                assert!(open(&damaged).is_err(), "bit {bit} of byte {at}");
            }
            assert!(open(&file[..at]).is_err(), "cut at {at}");
        }
        assert!(open(&[&file[..], b"x"].concat()).is_err());
    }
}

//! Code made at run time, as just-in-time compilers publish it in the two formats that Linux tools
//! read.
//!
//! - [`perf_map`]: a text file, a line for each piece of code
//!   (tools/perf/Documentation/jit-interface.txt);
//! - [`jitdump`]: a binary file with times, moves and the code itself
//!   (tools/perf/Documentation/jitdump-specification.txt).
//!
//! Both files grow while the program runs, so both are read from where the last reading ended.
//! Their content goes to a [`CodeMap`].

mod code_map;
mod excerpt;
pub mod jitdump;
pub mod perf_map;

pub use code_map::{CODE_MAX, CodeMap, NAMES_MAX, Piece};
pub use excerpt::{EXCERPT_BYTES_MAX, with_pieces};

use std::borrow::Cow;
use std::num::NonZeroU64;

/// Longest name kept, in bytes; a longer name is cut.
pub const NAME_MAX: usize = 1024;

/// Addresses of code are below this: user addresses have at most 57 bits (five-level paging).
const ADDRESS_MAX: u64 = 1 << 57;

/// A piece of code, as its compiler published it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Code<'a> {
    /// Address of its first byte in the process.
    pub start: u64,
    /// Length in bytes.
    pub size: u32,
    /// Name; at most [`NAME_MAX`] bytes, never empty, without NUL.
    pub name: Cow<'a, str>,
    /// When it was made, ns on the writer's clock, which is CLOCK_MONOTONIC where the writer keeps
    /// to perf's format; 0: its file does not say.
    pub made_ns: u64,
    /// Where its bytes are, if a jitdump has them.
    pub bytes: Option<DumpPlace>,
}

/// Bits of a [`DumpPlace`] that are the file offset.
const OFFSET_BITS: u32 = 56;

/// A place in one of a process's jitdumps: the dump's number, in the order in which the dumps were
/// found, and a file offset. Eight bytes, because there is one for each piece of code.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct DumpPlace(NonZeroU64);

impl DumpPlace {
    /// The place. None for offset 0, where the header is, and beyond 2^56.
    pub fn new(dump: u8, offset: u64) -> Option<Self> {
        if offset == 0 || offset >> OFFSET_BITS != 0 {
            return None;
        }
        Self::of_word(u64::from(dump) << OFFSET_BITS | offset)
    }

    /// The place as a number: the dump in the highest byte, the offset below.
    pub fn word(self) -> u64 {
        self.0.get()
    }

    /// The place of such a number.
    pub fn of_word(word: u64) -> Option<Self> {
        NonZeroU64::new(word).map(Self)
    }

    /// The number of the dump.
    pub fn dump(self) -> u8 {
        (self.word() >> OFFSET_BITS) as u8
    }

    /// The offset in the dump.
    pub fn offset(self) -> u64 {
        self.word() & ((1 << OFFSET_BITS) - 1)
    }
}

impl<'a> Code<'a> {
    /// The piece; None when it cannot be code: no bytes, more than 4 GiB, or beyond all addresses.
    pub fn new(start: u64, size: u64, name: &'a [u8]) -> Option<Self> {
        let size = u32::try_from(size).ok().filter(|size| *size > 0)?;
        start.checked_add(u64::from(size)).filter(|end| *end <= ADDRESS_MAX)?;
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default().trim_ascii();
        let mut name = String::from_utf8_lossy(name.get(..NAME_MAX).unwrap_or(name));
        if name.len() > NAME_MAX {
            // Replacing bytes that are not UTF-8 has made the name longer.
            name = Cow::Owned(
                name.get(..name.floor_char_boundary(NAME_MAX)).unwrap_or_default().to_owned(),
            );
        }
        (!name.is_empty()).then_some(Self { start, size, name, made_ns: 0, bytes: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_code_is_none() {
        for (start, size, name, expected) in [
            (0x1000, 0x10, &b"f"[..], Some("f")),
            (0x1000, 0x10, b" a b \r", Some("a b")),
            (0x1000, 0x10, b"a\0b", Some("a")),
            (0x1000, 0x10, b"a\xffb", Some("a\u{fffd}b")),
            (0x1000, 0, b"f", None),
            (0x1000, 1 << 32, b"f", None),
            (u64::MAX, 1, b"f", None),
            (ADDRESS_MAX - 1, 1, b"f", Some("f")),
            (ADDRESS_MAX, 1, b"f", None),
            (0x1000, 1, b"", None),
            (0x1000, 1, b"\0f", None),
        ] {
            let code = Code::new(start, size, name);
            assert_eq!(
                code.as_ref().map(|code| &*code.name),
                expected,
                "{start:x} {size:x} {name:?}"
            );
        }
    }

    #[test]
    fn a_place_in_a_dump_is_one_word() {
        let place = DumpPlace::new(7, 0x1234).unwrap();
        assert_eq!((place.dump(), place.offset()), (7, 0x1234));
        assert_eq!(DumpPlace::of_word(place.word()), Some(place));
        assert_eq!(size_of::<Option<DumpPlace>>(), 8);
        assert!(DumpPlace::new(1, 0).is_none() && DumpPlace::new(0, 1 << OFFSET_BITS).is_none());
    }

    #[test]
    fn a_long_name_is_cut_between_letters() {
        for long in ["x".repeat(5000).into_bytes(), "é".repeat(2000).into_bytes(), vec![0xff; 5000]]
        {
            let code = Code::new(1, 1, &long).unwrap();
            assert!((NAME_MAX - 3..=NAME_MAX).contains(&code.name.len()), "{}", code.name.len());
        }
    }
}

//! Functions that runtimes run: their languages, and their places in source files.

use std::ops::Range;

use image::ImageOffset;
use serde::{Deserialize, Serialize};

/// What a runtime runs. The names stand in ids of images, the numbers in the counts of
/// [`crate::INTERPRETED`]: neither ever changes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// CPython.
    #[default]
    Python,
    /// V8.
    JavaScript,
    /// HotSpot.
    Java,
    /// The reference implementation of Ruby, CRuby.
    Ruby,
    /// The Zend Engine.
    Php,
    /// The reference implementation of Lua, of lua.org.
    Lua,
    /// Perl 5.
    Perl,
    /// BEAM, the virtual machine of Erlang and Elixir.
    Erlang,
    /// CoreCLR, which runs C#, F# and Visual Basic.
    DotNet,
}

impl Language {
    /// Every language, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::Python,
        Self::JavaScript,
        Self::Java,
        Self::Ruby,
        Self::Php,
        Self::Lua,
        Self::Perl,
        Self::Erlang,
        Self::DotNet,
    ];

    /// The name: `python`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::JavaScript => "javascript",
            Self::Java => "java",
            Self::Ruby => "ruby",
            Self::Php => "php",
            Self::Lua => "lua",
            Self::Perl => "perl",
            Self::Erlang => "erlang",
            Self::DotNet => "dotnet",
        }
    }

    /// The place of the interpreter that a number there means, and what it ran; None where the
    /// number means nothing.
    pub fn of((at, number): (ImageOffset, i64)) -> Option<(ImageOffset, Self)> {
        Some((at, *Self::ALL.get(usize::try_from(number).ok()?)?))
    }

    /// The number.
    pub const fn number(self) -> i64 {
        self as i64
    }
}

/// Bits of a line, and of the hash of a name.
const LINE_BITS: u32 = 20;
const NAME_BITS: u32 = 22;
const LINE_MAX: u64 = (1 << LINE_BITS) - 1;
/// The bit of an offset that has further bits of the hash in the place of the first line.
const WITHOUT_LINE: u64 = 1 << (NAME_BITS + 2 * LINE_BITS);

/// A line of a function in a source file: an offset of the file's image. It has three parts, from
/// the highest bit on:
///
/// | bits | part |
/// |---|---|
/// | 20 | the function's first line |
/// | 22 | a hash of its name: several functions may begin in a line |
/// | 20 | the line that a frame executes |
///
/// So each function has a range of offsets that no other has, whatever lines it has in common with
/// functions around it, and the line is known where only the offset is.
///
/// Where first lines are not known, the hash alone tells the functions of a file apart. Then all of
/// its 32 bits count: the upper ones are in the place of the first line, with a bit above it set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourcePlace {
    /// The function's first line; 0: not known. Lines beyond 2^20 - 1 are that.
    pub first_line: u32,
    /// Hash of its name: the lower 22 bits count, or all where the first line is not known.
    pub name: u32,
    /// The line, likewise.
    pub line: u32,
}

impl SourcePlace {
    /// The place of an offset.
    pub const fn of(offset: ImageOffset) -> Self {
        let first_line = (offset.0 >> (NAME_BITS + LINE_BITS)) & LINE_MAX;
        let name = (offset.0 >> LINE_BITS) & ((1 << NAME_BITS) - 1);
        let line = offset.0 & LINE_MAX;
        let (first_line, name) = match offset.0 & WITHOUT_LINE {
            0 => (first_line, name),
            _ => (0, first_line << NAME_BITS | name),
        };
        Self { first_line: first_line as u32, name: name as u32, line: line as u32 }
    }

    /// The offset.
    pub fn offset(self) -> ImageOffset {
        ImageOffset(self.function().start + u64::from(self.line).min(LINE_MAX))
    }

    /// The offsets of the function.
    pub fn function(self) -> Range<u64> {
        let name = u64::from(self.name) & ((1 << NAME_BITS) - 1);
        let rest = u64::from(self.name) >> NAME_BITS;
        let (first_line, mark) = match self.first_line {
            0 if rest > 0 => (rest, WITHOUT_LINE),
            first_line => (u64::from(first_line).min(LINE_MAX), 0),
        };
        let begin = mark | (first_line << NAME_BITS | name) << LINE_BITS;
        begin..begin + (1 << LINE_BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_in_sources_are_offsets() {
        let place = SourcePlace { first_line: 12, name: 0x3f_1234, line: 15 };
        assert_eq!(SourcePlace::of(place.offset()), place);
        let far = SourcePlace { first_line: u32::MAX, name: u32::MAX, line: u32::MAX };
        let (first_line, line) = (LINE_MAX as u32, LINE_MAX as u32);
        let known = SourcePlace { first_line, name: 0x3f_ffff, line };
        assert_eq!(SourcePlace::of(far.offset()), known);
        assert!(far.function().contains(&far.offset().0) && far.function().end <= 1 << 62);
        let without_line = SourcePlace { first_line: 0, name: 0x1234_5678, line: 0 };
        assert_eq!(SourcePlace::of(without_line.offset()), without_line);
        let short = SourcePlace { first_line: 0, name: 0x3f_1234, line: 3 };
        assert_eq!((SourcePlace::of(short.offset()), short.offset().0 >> 42), (short, 0));
        assert!(without_line.function().contains(&without_line.offset().0));
    }

    #[test]
    fn numbers_mean_languages() {
        for language in Language::ALL {
            let at = ImageOffset(7);
            assert_eq!(Language::of((at, language.number())), Some((at, language)));
        }
        assert_eq!(Language::of((ImageOffset(7), 9)), None);
        assert_eq!(Language::of((ImageOffset(7), -1)), None);
    }
}

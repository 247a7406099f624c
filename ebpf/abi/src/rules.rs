//! Rules by which the sampler walks user stacks: one for each place of code, as it looks them up in
//! the map `RULES`.

use crate::IN_PROGRAM;

/// Rules that there can be at once; the kernel removes those that were used least lately.
pub const RULES_MAX: usize = 32_768;
/// Most frames of user code in a walk.
pub const WALK_FRAMES_MAX: usize = 1024;
/// [`crate::StackRecord::user_end`]: there was no rule for the last frame, or it did not hold.
pub const WALK_WITHOUT_RULE: u32 = 0;
/// [`crate::StackRecord::user_end`]: the last frame is the thread's first.
pub const WALK_WHOLE: u32 = 1;
/// In [`RuleKey::place`]: see [`Extent`].
const RULE_EXACT: u64 = 1 << 62;
const RULE_LINE: u64 = 1 << 60;
const RULE_BLOCK: u64 = 1 << 59;
/// Bytes of code in [`Extent::Line`].
pub const RULE_LINE_BYTES: u64 = 64;
/// Bytes of code in [`Extent::Block`].
pub const RULE_BLOCK_BYTES: u64 = 1024;

/// In [`RuleKey::place`]: an offset in a file, of which `space` is the number.
const RULE_IN_FILE: u64 = 1 << 61;
/// Mappings of files of one process whose rules hold in every process with these files.
pub const FILE_RANGES_MAX: usize = 8;
/// Processes with such mappings.
pub const FILE_SPACES_MAX: usize = 2048;

/// A mapping of a file in one process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileRange {
    /// First address.
    pub start: u64,
    /// Offset in the file of the byte there.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// Number of the file, drawn by the daemon; 0: no range, and none behind it.
    pub number: u32,
}

/// The mappings of one process.
pub type FileRanges = [FileRange; FILE_RANGES_MAX];

pub(crate) const FROM_SP: u64 = 1;
pub(crate) const FROM_FP: u64 = 2;
pub(crate) const THROUGH_FP: u64 = 3;
pub(crate) const FRAME_POINTER: u64 = 4;
pub(crate) const SIGNAL: u64 = 5;
pub(crate) const END: u64 = 6;
pub(crate) const OTHER: u64 = 7;

/// The frames that a rule holds for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Those that called: the place is one less than the return address.
    Call,
    /// Those that execute the instruction next that is there.
    Next,
    /// All in the [`RULE_LINE_BYTES`] from there on, a multiple of them. Return addresses follow a
    /// call.
    Line,
    /// The same of [`RULE_BLOCK_BYTES`].
    Block,
}

/// The place of a rule.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RuleKey {
    /// The distance from the begin of a program's or library's code, the offset in a file, or an
    /// address, with bits that say which, and the [`Extent`].
    pub place: u64,
    /// Number of the program, library or file, or an address space as in [`crate::Entry::space`].
    pub space: u32,
    /// Zero.
    pub reserved: u32,
}

impl RuleKey {
    /// A place in the code that is counted under a number.
    #[must_use]
    pub fn in_program(number: u32, distance: u64, extent: Extent) -> Self {
        Self::of(number, IN_PROGRAM | distance, extent)
    }

    /// An offset in the file with this number.
    #[must_use]
    pub fn in_file(number: u32, offset: u64, extent: Extent) -> Self {
        Self::of(number, RULE_IN_FILE | offset, extent)
    }

    /// An address in an address space.
    #[must_use]
    pub fn in_space(space: u32, address: u64, extent: Extent) -> Self {
        Self::of(space, address, extent)
    }

    fn of(space: u32, place: u64, extent: Extent) -> Self {
        let extent = match extent {
            Extent::Call => 0,
            Extent::Next => RULE_EXACT,
            Extent::Line => RULE_LINE,
            Extent::Block => RULE_BLOCK,
        };
        Self { place: place | extent, space, reserved: 0 }
    }
}

/// What the canonical frame address (CFA) of a frame is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameBase {
    /// The stack pointer.
    StackPointer,
    /// The frame pointer.
    FramePointer,
    /// The word at a distance from the frame pointer; the caller's frame pointer is where the frame
    /// pointer points.
    ThroughFramePointer,
}

/// A rule: the way from a frame to its caller, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule(u64);

impl Rule {
    /// A frame record is where the frame pointer points.
    pub const FRAME_POINTER: Self = Self(FRAME_POINTER);
    /// The kernel's frame of a signal is where the stack pointer points.
    pub const SIGNAL: Self = Self(SIGNAL);
    /// The sampler cannot leave the frame.
    pub const OTHER: Self = Self(OTHER);

    /// The CFA is `distance` bytes from `base`, or is in the word there. Return address and
    /// caller's frame pointer are so many bytes below the CFA; 0: in their registers. All are
    /// multiples of 8, of which a word has room for 2^19 of distance on either side, and for 1023
    /// of the others. `None` for more.
    #[must_use]
    pub fn row(
        base: FrameBase,
        distance: i64,
        return_below: u16,
        frame_below: u16,
    ) -> Option<Self> {
        let kind = match base {
            FrameBase::StackPointer => FROM_SP,
            FrameBase::FramePointer => FROM_FP,
            FrameBase::ThroughFramePointer => THROUGH_FP,
        };
        let words = distance / 8;
        let (return_words, frame_words) = (u64::from(return_below / 8), u64::from(frame_below / 8));
        let fits = distance % 8 == 0
            && (-(1 << 19)..1 << 19).contains(&words)
            && return_below.is_multiple_of(8)
            && frame_below.is_multiple_of(8)
            && return_words.max(frame_words) < 1024;
        let words = words as u64 & 0xf_ffff;
        fits.then_some(Self(kind | words << 8 | return_words << 28 | frame_words << 38))
    }

    /// The walk ends here; as [`crate::StackRecord::user_end`], below 16.
    #[must_use]
    pub fn end(end: u8) -> Self {
        Self(END | u64::from(end & 15) << 4)
    }

    /// As the sampler reads it: with the number of the code that it holds for, or the first byte of
    /// a line from which on it holds.
    #[must_use]
    pub fn word(self, above: u16) -> u64 {
        self.0 | u64::from(above) << 48
    }
}

/// The rules of a place, line or block: the first with the number of the code, the next ones, if
/// not 0, each with the first byte of the line from which on it holds, in ascending order.
pub type RuleWords = [u64; LINE_RULES_MAX];
/// Most rules of a line.
pub const LINE_RULES_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_has_room_for_large_frames() {
        let base = FrameBase::StackPointer;
        let word = |rule: Option<Rule>| rule.map(|rule| rule.word(0xabcd));
        let expected = 0xabcd << 48 | 2 << 38 | 1 << 28 | 6 << 8 | FROM_SP;
        assert_eq!(word(Rule::row(base, 48, 8, 16)), Some(expected));
        let through = Rule::row(FrameBase::ThroughFramePointer, -8, 8, 0);
        assert_eq!(word(through), Some(0xabcd << 48 | 1 << 28 | 0xf_ffff << 8 | THROUGH_FP));
        assert!(Rule::row(base, (1 << 22) - 8, 8, 1023 * 8).is_some());
        for (distance, return_below, frame_below) in
            [(1 << 22, 8, 0), (12, 8, 0), (16, 12, 0), (16, 8, 1024 * 8)]
        {
            assert_eq!(Rule::row(base, distance, return_below, frame_below), None, "{distance}");
        }
        assert_eq!(Rule::end(3).word(0), 3 << 4 | END);
    }
}

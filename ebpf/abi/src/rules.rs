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
const RULE_BLOCK: u64 = 1 << 60;
/// Bytes of code in [`Extent::Block`].
pub const RULE_BLOCK_BYTES: u64 = 256;

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
    /// Number of the file: a hash of its state, or drawn by the daemon; 0: no range.
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
pub(crate) const GOROUTINE: u64 = 8;

/// As words below the CFA: the caller's frame pointer is not known.
pub(crate) const LOST_WORDS: u64 = 1023;
/// The same in [`Rule::short`].
pub(crate) const SHORT_LOST_WORDS: u64 = 63;
/// The same in bytes, for [`Rule::row`].
pub const FRAME_LOST: u16 = LOST_WORDS as u16 * 8;

/// How a goroutine is found from the thread's own stack. Distances are in bytes, multiples of 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoroutineWay {
    /// By the thread's `g`.
    Thread {
        /// Distance of `g` from the thread's pointer, less than 4 MiB on either side.
        g_at: i32,
        /// Offset of the `m` in a `g`, at most 120.
        m_at: u16,
        /// Offset of the goroutine in an `m`, at most 8184.
        current_at: u16,
        /// Offset of the stack pointer in a `g`, at most 120.
        stack_pointer_at: u16,
    },
    /// By the frame of the procedure that has called C.
    Frame {
        /// Distance of the goroutine from the frame's stack pointer, at most 120.
        goroutine_at: u16,
        /// Distance of the depth of the goroutine's stack, at most 120.
        depth_at: u16,
        /// Offset in a `g` of the end of the stack, at most 8184.
        end_at: u16,
    },
}

/// In place of the end of a walk: [`GoroutineWay::Thread`], [`GoroutineWay::Frame`].
pub(crate) const OF_THREAD: u64 = 0;
pub(crate) const IN_C: u64 = 1;

/// The numbers above by their names in the C source.
#[cfg(test)]
pub(crate) const NUMBERS: [(&str, u64); 12] = [
    ("RULE_FROM_SP", FROM_SP),
    ("RULE_FROM_FP", FROM_FP),
    ("RULE_THROUGH_FP", THROUGH_FP),
    ("RULE_FRAME_POINTER", FRAME_POINTER),
    ("RULE_SIGNAL", SIGNAL),
    ("RULE_END", END),
    ("RULE_OTHER", OTHER),
    ("RULE_GOROUTINE", GOROUTINE),
    ("FRAME_LOST", LOST_WORDS),
    ("SHORT_FRAME_LOST", SHORT_LOST_WORDS),
    ("GOROUTINE_OF_THREAD", OF_THREAD),
    ("GOROUTINE_IN_C", IN_C),
];

/// The frames that a rule holds for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Those that called: the place is one less than the return address.
    Call,
    /// Those that execute the instruction next that is there.
    Next,
    /// All in the [`RULE_BLOCK_BYTES`] from there on, a multiple of them. Return addresses follow a
    /// call.
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

    /// Whether the place is an offset in a file.
    #[must_use]
    pub fn is_in_file(&self) -> bool {
        self.place & (IN_PROGRAM | RULE_IN_FILE) == RULE_IN_FILE
    }

    fn of(space: u32, place: u64, extent: Extent) -> Self {
        let extent = match extent {
            Extent::Call => 0,
            Extent::Next => RULE_EXACT,
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

    /// A frame record is where the frame pointer points, and the caller's stack pointer is in
    /// memory, `at` bytes from it: a multiple of 8, but not 0. `None` for others.
    #[must_use]
    pub fn kept_stack_pointer(at: i16) -> Option<Self> {
        let words = (i64::from(at) / 8) as u64 & 0xf_ffff;
        (at != 0 && at % 8 == 0).then_some(Self(FRAME_POINTER | words << 8))
    }

    /// The caller is on the stack of a goroutine, whose stack pointer is `frame_bytes` (at most 24)
    /// below the return address. `None` for distances beyond those that are named.
    #[must_use]
    pub fn goroutine(way: GoroutineWay, frame_bytes: u8) -> Option<Self> {
        let (kind, far, long, first, second) = match way {
            GoroutineWay::Thread { g_at, m_at, current_at, stack_pointer_at } => {
                (OF_THREAD, g_at, current_at, m_at, stack_pointer_at)
            }
            GoroutineWay::Frame { goroutine_at, depth_at, end_at } => {
                (IN_C, 0, end_at, goroutine_at, depth_at)
            }
        };
        let [long, first, second] = [long, first, second].map(u64::from);
        let frame = u64::from(frame_bytes);
        let fits = (far.unsigned_abs() < 4 << 20)
            && long < 1 << 13
            && first.max(second) < 1 << 7
            && frame < 1 << 5
            && (far.cast_unsigned() | (long | first | second | frame) as u32).is_multiple_of(8);
        let far = (i64::from(far) / 8) as u64 & 0xf_ffff;
        let [long, first, second, frame] = [long, first, second, frame].map(|bytes| bytes / 8);
        let word = GOROUTINE | kind << 4 | far << 8 | long << 28;
        fits.then_some(Self(word | first << 38 | second << 42 | frame << 46))
    }

    /// The walk ends here; as [`crate::StackRecord::user_end`], below 16.
    #[must_use]
    pub fn end(end: u8) -> Self {
        Self(END | u64::from(end & 15) << 4)
    }

    /// As the sampler reads the first rule of a place: with the number of the code that it holds
    /// for.
    #[must_use]
    pub fn word(self, check: u16) -> u64 {
        self.0 | u64::from(check) << 48
    }

    /// The rule in 32 bits, as the sampler reads the second and later rules of a block of code.
    /// From the lowest bit on: 8 bits, the byte of the block from which on the rule holds
    /// (`begin`); 3, the kind; 6, the words between the caller's saved frame pointer and the CFA,
    /// 63 if that is not known; 1, set if the return address is in the word above the frame pointer
    /// and not where a call puts it; 14, the distance of the CFA, signed. [`Self::OTHER`] stands
    /// for a rule that does not fit.
    #[must_use]
    pub fn short(self, begin: u8) -> u32 {
        let kind = self.0 & 15;
        let distance = (self.0 as i64) << 36 >> 44;
        let (return_words, mut frame_words) = (self.0 >> 28 & 1023, self.0 >> 38 & 1023);
        let is_above_frame = return_words != RETURN_WORDS;
        frame_words = match frame_words {
            LOST_WORDS => SHORT_LOST_WORDS,
            SHORT_LOST_WORDS => LOST_WORDS,
            words => words,
        };
        let fits = kind == OTHER
            || kind <= THROUGH_FP
                && (-(1 << 13)..1 << 13).contains(&distance)
                && frame_words < 64
                && (!is_above_frame || return_words + 1 == frame_words);
        if !fits {
            return Self::OTHER.short(begin);
        }
        let distance = (distance as u32) << 18;
        let frame = (frame_words as u32) << 11 | u32::from(is_above_frame) << 17;
        u32::from(begin) | (kind as u32) << 8 | if kind == OTHER { 0 } else { frame | distance }
    }
}

/// Words between the CFA and the return address where a call puts it: on x86-64 in the word below,
/// on arm64 in the link register.
const RETURN_WORDS: u64 = cfg!(target_arch = "x86_64") as u64;

/// The rules of a place or block: the first one as [`Rule::word`], and two of the next in each
/// further word as [`Rule::short`], those of lower addresses in lower bits, in ascending order; 0:
/// none.
pub type RuleWords = [u64; EXTENT_RULES_MAX / 2 + 1];
/// Most rules of a block.
pub const EXTENT_RULES_MAX: usize = 15;

/// The rules of a place or block: what the first one holds for, and from which byte on each of the
/// next ones holds. At most [`EXTENT_RULES_MAX`] are used.
#[must_use]
pub fn rule_words(check: u16, rules: impl IntoIterator<Item = (u8, Rule)>) -> RuleWords {
    let mut words = RuleWords::default();
    let mut rules = rules.into_iter();
    if let (Some(word), Some((_, rule))) = (words.first_mut(), rules.next()) {
        *word = rule.word(check);
    }
    for (place, (begin, rule)) in (2..).zip(rules) {
        if let Some(word) = words.get_mut(place / 2) {
            *word |= u64::from(rule.short(begin)) << (place % 2 * 32);
        }
    }
    words
}

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
        let lost = Rule::row(base, 48, 8, FRAME_LOST).unwrap();
        assert_eq!(lost.word(0) >> 38 & 1023, LOST_WORDS);
        if cfg!(target_arch = "x86_64") {
            assert_eq!(u64::from(lost.short(0) >> 11 & 63), SHORT_LOST_WORDS);
        }
    }

    #[test]
    fn a_word_leads_to_a_goroutine() {
        let of_thread = |g_at, m_at, current_at, stack_pointer_at, frame_bytes| {
            let way = GoroutineWay::Thread { g_at, m_at, current_at, stack_pointer_at };
            Rule::goroutine(way, frame_bytes).map(|rule| rule.word(0))
        };
        let expected = 1 << 46 | 7 << 42 | 6 << 38 | 24 << 28 | 0xf_ffff << 8 | GOROUTINE;
        assert_eq!(of_thread(-8, 48, 192, 56, 8), Some(expected));
        for (g_at, m_at, current_at, stack_pointer_at, frame_bytes) in [
            (-4, 48, 192, 56, 8),
            (4 << 20, 48, 192, 56, 8),
            (-8, 128, 192, 56, 8),
            (-8, 48, 8192, 56, 8),
            (-8, 48, 192, 60, 8),
            (-8, 48, 192, 56, 32),
        ] {
            assert_eq!(of_thread(g_at, m_at, current_at, stack_pointer_at, frame_bytes), None);
        }
        let way = GoroutineWay::Frame { goroutine_at: 8, depth_at: 0, end_at: 8 };
        let in_c = Rule::goroutine(way, 0).map(|rule| rule.word(0));
        assert_eq!(in_c, Some(1 << 38 | 1 << 28 | IN_C << 4 | GOROUTINE));
    }

    #[test]
    fn further_rules_of_a_block_take_half_a_word() {
        let row = |distance, return_below, frame_below| {
            Rule::row(FrameBase::StackPointer, distance, return_below, frame_below).unwrap()
        };
        let usual = RETURN_WORDS as u16 * 8;
        let short = |rule: Rule| rule.short(0x42);
        assert_eq!(short(row(48, usual, 16)), 6 << 18 | 2 << 11 | (FROM_SP as u32) << 8 | 0x42);
        assert_eq!(short(row(-8, usual, 0)), 0x3fff << 18 | (FROM_SP as u32) << 8 | 0x42);
        // A frame record at the lower end of a frame.
        let record = short(row(160, 152, 160));
        assert_eq!(record, 20 << 18 | 1 << 17 | 20 << 11 | (FROM_SP as u32) << 8 | 0x42);
        let other = (OTHER as u32) << 8 | 0x42;
        for rule in [
            row(1 << 16, usual, 0),
            row(160, usual, 64 * 8),
            row(160, 32, 16),
            Rule::end(1),
            Rule::FRAME_POINTER,
            Rule::OTHER,
        ] {
            assert_eq!(short(rule), other, "{rule:?}");
        }
        let rules = (0..20).map(|begin| (begin, row(48, usual, 16)));
        let words = rule_words(0xabcd, rules);
        assert_eq!(words[0], row(48, usual, 16).word(0xabcd));
        assert_eq!(words[7] as u32 & 0xff, 13);
        assert_eq!(words[7] >> 32 & 0xff, 14);
    }
}

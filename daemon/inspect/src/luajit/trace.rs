//! A trace: compiled Lua code, and how its frame is left.
//!
//! A trace runs above the interpreter's frame, with room for values between. That room has one size
//! in all of a trace but its first and last instructions: a trace that leaves another one has the
//! other's first, and one that goes on to another trace gives its own back last.

use crate::python::Memory;
use unwind::{Base, FrameRule};

/// Bytes from the stack pointer of the interpreter to where its frame ends, and those that traces
/// add for two registers.
const VM_BYTES: u32 = 80;
const SAVED_BYTES: u32 = 16;
/// The kind of an object that is a trace: the second byte behind the link that begins each.
const TRACE: u8 = 9;
/// `movl $number, distance(%r14)`: how a trace says which one runs.
const SETS_NUMBER: [u8; 3] = [0x41, 0xc7, 0x86];
/// Bytes of a trace's begin that are looked at: behind them the room has its size.
const HEAD_BYTES: usize = 512;
/// `jmp` with its distance: the last instruction of a trace that goes on to another one.
const JUMP_BYTES: u32 = 5;

/// What is read of a trace (`GCtrace`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Its address.
    pub at: u64,
    /// Its snapshots: their number, address, and that of their entries with their number.
    pub snapshots: (u16, u64),
    /// Likewise, and the number of entries.
    pub entries: (u32, u64),
    /// Address of instruction 0, of 8 bytes each, and the number of the first constant.
    pub instructions: (u64, u32),
    /// The function in which it begins.
    pub begins_in: u64,
    /// Machine code.
    pub code: u64,
    /// Its length in bytes.
    pub code_bytes: u32,
    /// Room for values, in bytes.
    room: u16,
    number: u16,
    /// Length of the begin in which the room has another size, and that size; 0: there is none.
    head: (u32, u32),
    /// Whether the last instruction runs without the room.
    gives_back: bool,
}

impl Trace {
    /// The trace at an address, as if its frame had one size throughout; None: there is none.
    pub fn read(memory: &impl Memory, at: u64) -> Option<Self> {
        let mut bytes = [0; 112];
        (at.is_multiple_of(8) && memory.read(at, &mut bytes) == bytes.len()).then_some(())?;
        let word = |at: usize| bytes.get(at..)?.first_chunk().map(|it| u64::from_le_bytes(*it));
        let number = |at: usize| bytes.get(at..)?.first_chunk().map(|it| u32::from_le_bytes(*it));
        let short = |at: usize| bytes.get(at..)?.first_chunk().map(|it| u16::from_le_bytes(*it));
        (bytes.get(9) == Some(&TRACE)).then_some(())?;
        let trace = Self {
            at,
            snapshots: (short(10)?, word(48)?),
            entries: (number(44)?, word(56)?),
            instructions: (word(32)?, number(40)?),
            begins_in: word(64)?,
            code: word(88)?,
            code_bytes: number(84)?,
            room: short(102)?,
            number: short(104)?,
            head: (0, 0),
            gives_back: false,
        };
        let is_there = trace.code != 0 && (1..1 << 24).contains(&trace.code_bytes);
        is_there.then_some(trace)
    }

    /// With what its first and last instructions tell.
    #[must_use]
    pub fn with_ends(mut self, memory: &impl Memory) -> Self {
        let mut code = [0; HEAD_BYTES];
        let bytes = HEAD_BYTES.min(self.code_bytes as usize);
        let read = memory.read(self.code, code.get_mut(..bytes).unwrap_or_default());
        let code = code.get(..read).unwrap_or_default();
        let sets = code.windows(11).position(|code| {
            code.starts_with(&SETS_NUMBER) && code.ends_with(&u32::from(self.number).to_le_bytes())
        });
        if let Some(sets) = sets {
            let added = code.get(..sets).and_then(added_last).unwrap_or(0);
            let before = i64::from(self.room) + added;
            let end = u32::try_from(sets).unwrap_or(0);
            self.head = (end, u32::try_from(before).unwrap_or(0));
        }
        let mut end = [0; 16];
        let begin = (self.code + u64::from(self.code_bytes)).wrapping_sub(16);
        let (before, jump) = end.split_at_mut(16 - JUMP_BYTES as usize);
        let has_read = memory.read(begin, before) == before.len()
            && memory.read(begin + before.len() as u64, jump) == jump.len();
        self.gives_back = has_read && jump.first() == Some(&0xe9) && added_last(before).is_some();
        self
    }

    /// Where its code ends.
    pub fn end(&self) -> u64 {
        self.code.saturating_add(self.code_bytes.into())
    }

    /// The rule of a frame with this room.
    fn rule_with(room: u32) -> FrameRule {
        FrameRule::Row {
            base: Base::StackPointer,
            distance: i64::from(VM_BYTES + SAVED_BYTES + room),
            return_below: 8,
            frame_below: 16,
        }
    }

    /// The rule of its body.
    pub fn body(&self) -> FrameRule {
        Self::rule_with(self.room.into())
    }

    /// The rule of a frame at an address in it.
    pub fn rule_at(&self, address: u64, is_exact: bool) -> FrameRule {
        let into = address.wrapping_sub(self.code);
        let (head, before) = self.head;
        if !is_exact {
            self.body()
        } else if into < u64::from(head) {
            Self::rule_with(before)
        } else if self.gives_back && into + u64::from(JUMP_BYTES) >= u64::from(self.code_bytes) {
            Self::rule_with(0)
        } else {
            self.body()
        }
    }

    /// Where its body begins and ends, in which the room has its size.
    pub fn body_range(&self) -> (u64, u64) {
        let begin = self.code.saturating_add(self.head.0.into());
        let end = if self.gives_back { self.end() - u64::from(JUMP_BYTES) } else { self.end() };
        (begin, end)
    }
}

/// The number that `add $number, %rsp` at the end of some code adds.
fn added_last(code: &[u8]) -> Option<i64> {
    let tail = |bytes: usize| code.len().checked_sub(bytes).and_then(|at| code.get(at..));
    match (tail(4), tail(7)) {
        (Some([0x48, 0x83, 0xc4, number]), _) => Some(i64::from(*number as i8)),
        (_, Some([0x48, 0x81, 0xc4, number @ ..])) => {
            number.first_chunk().map(|number| i32::from_le_bytes(*number).into())
        }
        _ => None,
    }
}

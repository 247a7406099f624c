//! Offsets of fields in each version of CPython, in bytes.

use super::Memory;
use abi::{PYTHON_BLOCK_MAX, PYTHON_DIRECT, PythonFrame, PythonLayout};

/// Which frames one call of the evaluation loop runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loop {
    OneFrame,
    /// Frames up to the one with `is_entry`, the byte of [`PythonFrame::flags`] with this number
    /// (3.11).
    UntilEntry(u32),
    /// Frames up to one that lies on the C stack (`FRAME_OWNED_BY_CSTACK`), which runs no code;
    /// the number of the byte with the owner (from 3.12 on).
    UntilCStack(u32),
}

/// `FRAME_OWNED_BY_CSTACK` of enum _frameowner (3.12 and 3.13, pycore_frame.h).
const OWNED_BY_C_STACK: u64 = 3;

/// The meaning of [`PythonFrame::instruction`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// The number of a byte (`f_lasti` until 3.9), in the low half.
    Byte,
    /// The number of an instruction of two bytes (3.10), in the low half.
    Unit,
    /// An address (from 3.11 on).
    Address,
}

/// A code object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeLayout {
    /// String: the file.
    pub file: u64,
    /// String: the function, with its class where the version has that.
    pub name: u64,
    /// 32 bits: the first line.
    pub first_line: u64,
    /// Bytes: the table of lines.
    pub lines: u64,
    /// The instructions themselves; 0: they are elsewhere.
    pub instructions: u64,
}

/// A version's structures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The number after `3.`.
    pub minor: u8,
    /// In the runtime (`_PyRuntime`): the newest interpreter.
    pub interpreters: u64,
    /// In an interpreter: the newest thread's state.
    pub threads: u64,
    /// In a thread's state: the next one.
    pub next: u64,
    /// In a thread's state: its interpreter.
    pub interpreter: u64,
    /// The pointers that the sampler follows, without [`PythonLayout::state_at`].
    pub sampler: PythonLayout,
    /// The meaning of the frame's instruction.
    pub instruction: Instruction,
    /// The code object.
    pub code: CodeLayout,
    /// Length of the head of a string of ASCII, and of another one.
    pub string_heads: [u64; 2],
    loops: Loop,
}

/// Frames that one call of the evaluation loop runs, innermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group<'a> {
    /// The frames.
    pub frames: Vec<&'a PythonFrame>,
    /// False: further frames were not copied.
    pub is_whole: bool,
}

/// A layout for the sampler, whose thread state leads to the frame in `frame_at` and, behind that,
/// `current_at`.
const fn sampler(
    id_at: u16,
    (frame_at, current_at): (u16, u16),
    (block_at, block_bytes): (u16, u16),
    [code_at, previous_at, instruction_at, flags_at]: [u16; 4],
) -> PythonLayout {
    PythonLayout {
        root: 0,
        state_at: 0,
        id_at,
        frame_at,
        current_at,
        block_at,
        block_bytes,
        code_at,
        previous_at,
        instruction_at,
        flags_at,
        step: 0,
        table_at: 0,
        reserved: [0; 3],
    }
}

/// 3.8 and 3.9: PyFrameObject has f_back at 24, f_code at 32 and f_lasti at 104.
const V3_8: Layout = Layout {
    minor: 8,
    interpreters: 32,
    threads: 8,
    next: 8,
    interpreter: 16,
    sampler: sampler(176, (24, PYTHON_DIRECT), (24, 88), [8, 0, 80, 80]),
    instruction: Instruction::Byte,
    code: CodeLayout { file: 104, name: 112, first_line: 40, lines: 120, instructions: 0 },
    string_heads: [48, 72],
    loops: Loop::OneFrame,
};

/// 3.10: f_lasti is at 96.
const V3_10: Layout = Layout {
    minor: 10,
    sampler: sampler(176, (24, PYTHON_DIRECT), (24, 80), [8, 0, 72, 72]),
    instruction: Instruction::Unit,
    ..V3_8
};

/// 3.11: a thread's `cframe` leads to the frame. _PyInterpreterFrame has f_code at 32, previous at
/// 48, prev_instr at 56 and is_entry at 68.
const V3_11: Layout = Layout {
    minor: 11,
    interpreters: 40,
    threads: 16,
    next: 8,
    interpreter: 16,
    sampler: sampler(152, (56, 8), (32, 40), [0, 16, 24, 32]),
    instruction: Instruction::Address,
    code: CodeLayout { file: 112, name: 128, first_line: 72, lines: 136, instructions: 184 },
    string_heads: [48, 72],
    loops: Loop::UntilEntry(4),
};

/// 3.12: f_code at 0, previous at 8, prev_instr at 56, owner at 70.
const V3_12: Layout = Layout {
    minor: 12,
    threads: 72,
    sampler: sampler(136, (56, 0), (0, 72), [0, 8, 56, 64]),
    code: CodeLayout { file: 112, name: 128, first_line: 68, lines: 136, instructions: 192 },
    string_heads: [40, 56],
    loops: Loop::UntilCStack(6),
    ..V3_11
};

/// `cookie` of `_Py_DebugOffsets`, the table that the runtime begins with from 3.13 on.
const COOKIE: u64 = u64::from_le_bytes(*b"xdebugpy");
/// Words of that table which are read.
const OFFSETS_WORDS: usize = 73;
/// Offsets larger than this are refused: an interpreter has some hundred KiB.
const OFFSET_MAX: u64 = 1 << 20;

impl Layout {
    /// The layout of the version `3.minor` whose runtime is at `runtime`.
    pub fn of(minor: u8, memory: &impl Memory, runtime: u64) -> Option<Self> {
        match minor {
            8 => Some(V3_8),
            9 => Some(Self { minor: 9, ..V3_8 }),
            10 => Some(V3_10),
            11 => Some(V3_11),
            12 => Some(V3_12),
            13 => Self::of_debug_offsets(memory, runtime),
            _ => None,
        }
    }

    /// 3.13: `_Py_DebugOffsets` at the runtime's begin (pycore_runtime.h).
    fn of_debug_offsets(memory: &impl Memory, runtime: u64) -> Option<Self> {
        let mut bytes = [0; 8 * OFFSETS_WORDS];
        if memory.read(runtime, &mut bytes) != bytes.len() {
            return None;
        }
        let word = |at: usize| {
            Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
                .filter(|offset| *offset < OFFSET_MAX)
        };
        let version = bytes.get(8..)?.first_chunk().map(|version| u64::from_le_bytes(*version))?;
        let cookie = bytes.first_chunk().map(|cookie| u64::from_le_bytes(*cookie))?;
        let is_free_threaded = word(16)? != 0;
        if cookie != COOKIE || version >> 16 != 0x030d || is_free_threaded {
            return None;
        }
        let [previous, code, instruction, owner] = [word(232)?, word(240)?, word(248)?, word(264)?];
        let flags = owner & !7;
        let block = [previous, code, instruction, flags];
        let block_bytes = block.into_iter().max()? + 8;
        let is_block = block.iter().all(|at| at.is_multiple_of(8));
        if !is_block || block_bytes > PYTHON_BLOCK_MAX as u64 {
            return None;
        }
        let short = |offset: u64| u16::try_from(offset).ok();
        Some(Self {
            minor: 13,
            interpreters: word(40)?,
            threads: word(72)?,
            next: word(168)?,
            interpreter: word(176)?,
            sampler: sampler(
                short(word(192)?)?,
                (short(word(184)?)?, PYTHON_DIRECT),
                (0, short(block_bytes)?),
                [short(code)?, short(previous)?, short(instruction)?, short(flags)?],
            ),
            instruction: Instruction::Address,
            code: CodeLayout {
                file: word(280)?,
                name: word(296)?,
                first_line: word(312)?,
                lines: word(304)?,
                instructions: word(344)?,
            },
            string_heads: V3_12.string_heads,
            loops: Loop::UntilCStack(u32::try_from(owner & 7).ok()?),
        })
    }

    /// Frames by calls of the evaluation loop, the innermost call first.
    pub fn groups<'a>(&self, frames: &'a [PythonFrame]) -> Vec<Group<'a>> {
        let mut groups = Vec::new();
        let mut group = Vec::new();
        for frame in frames {
            let byte = |number: u32| frame.flags >> (8 * number) & 0xff;
            let (is_frame, is_last) = match self.loops {
                Loop::OneFrame => (true, true),
                Loop::UntilEntry(number) => (true, byte(number) != 0),
                Loop::UntilCStack(number) => {
                    let is_shim = byte(number) == OWNED_BY_C_STACK;
                    (!is_shim, is_shim)
                }
            };
            group.extend(is_frame.then_some(frame));
            if is_last {
                groups.push(Group { frames: std::mem::take(&mut group), is_whole: true });
            }
        }
        if !group.is_empty() {
            groups.push(Group { frames: group, is_whole: false });
        }
        groups
    }
}

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
    /// Frames up to the interpreter's own, which runs no code: from 3.12 on.
    UntilInterpreter {
        /// The byte of [`PythonFrame::flags`] with the owner, by its number.
        owner: u32,
        /// Whether each thread's list ends with another one of the interpreter's, which no call of
        /// the loop made (`base_frame` of PyThreadState, from 3.15 on).
        has_base: bool,
    },
}

/// Owner of the interpreter's own frames in enum _frameowner: `FRAME_OWNED_BY_CSTACK` (3.12 and
/// 3.13, pycore_frame.h), `FRAME_OWNED_BY_INTERPRETER` (3.14 and 3.15,
/// pycore_interpframe_structs.h).
const OWNED_BY_INTERPRETER: u64 = 3;

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

/// Where a thread has the address of its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordOf {
    /// With `pthread_setspecific` (`autoTSSkey`, until 3.14).
    Key,
    /// In a variable (`_Py_tss_gilstate`, from 3.15 on).
    Variable,
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
    /// Where a thread has the address of its state.
    pub word: WordOf,
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
    word: WordOf::Key,
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
    word: WordOf::Key,
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
    loops: Loop::UntilInterpreter { owner: 6, has_base: false },
    ..V3_11
};

/// `cookie` of `_Py_DebugOffsets`, the table that the runtime begins with from 3.13 on.
const COOKIE: u64 = u64::from_le_bytes(*b"xdebugpy");
/// Words of that table which are read.
const OFFSETS_WORDS: usize = 59;
/// Offsets larger than this are refused: an interpreter has some hundred KiB.
const OFFSET_MAX: u64 = 1 << 20;

/// Where `_Py_DebugOffsets` has what is read of it, in bytes. Up to the interpreter's state all
/// versions have the same words.
struct OffsetsTable {
    /// In the thread's state: `next`, `interp`, `current_frame`, `thread_id`.
    thread: [usize; 4],
    /// `previous` of the frame, before `executable`, `instr_ptr` and, two words on, `owner`.
    frame: usize,
    /// `filename` of the code object, before `name`, `qualname`, `linetable`, `firstlineno`, and,
    /// three words on, `co_code_adaptive`.
    code: usize,
}

impl OffsetsTable {
    /// 3.13: pycore_runtime.h; from 3.14 on: pycore_debug_offsets.h.
    const fn of(minor: u8) -> Option<Self> {
        match minor {
            13 => Some(Self { thread: [168, 176, 184, 192], frame: 232, code: 280 }),
            14 => Some(Self { thread: [192, 200, 208, 216], frame: 256, code: 320 }),
            15 => Some(Self { thread: [192, 200, 208, 240], frame: 320, code: 384 }),
            _ => None,
        }
    }
}

impl Layout {
    /// The layout of the version `3.minor` whose runtime is at `runtime`.
    pub fn of(minor: u8, memory: &impl Memory, runtime: u64) -> Option<Self> {
        match minor {
            8 => Some(V3_8),
            9 => Some(Self { minor: 9, ..V3_8 }),
            10 => Some(V3_10),
            11 => Some(V3_11),
            12 => Some(V3_12),
            _ => Self::of_debug_offsets(minor, memory, runtime),
        }
    }

    /// From 3.13 on: by `_Py_DebugOffsets` at the runtime's begin.
    fn of_debug_offsets(minor: u8, memory: &impl Memory, runtime: u64) -> Option<Self> {
        let table = OffsetsTable::of(minor)?;
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
        if cookie != COOKIE || version >> 16 != 0x0300 | u64::from(minor) || is_free_threaded {
            return None;
        }
        let [next, interpreter, current_frame, thread_id] = table.thread;
        let of_frame = |words: usize| word(table.frame + 8 * words);
        let of_code = |words: usize| word(table.code + 8 * words);
        let [previous, code, instruction, owner] =
            [of_frame(0)?, of_frame(1)?, of_frame(2)?, of_frame(4)?];
        let flags = owner & !7;
        let block = [previous, code, instruction, flags];
        let block_bytes = block.into_iter().max()? + 8;
        let is_block = block.iter().all(|at| at.is_multiple_of(8));
        if !is_block || block_bytes > PYTHON_BLOCK_MAX as u64 {
            return None;
        }
        let short = |offset: u64| u16::try_from(offset).ok();
        let owner = u32::try_from(owner & 7).ok()?;
        Some(Self {
            minor,
            interpreters: word(40)?,
            threads: word(72)?,
            next: word(next)?,
            interpreter: word(interpreter)?,
            word: if minor < 15 { WordOf::Key } else { WordOf::Variable },
            sampler: sampler(
                short(word(thread_id)?)?,
                (short(word(current_frame)?)?, PYTHON_DIRECT),
                (0, short(block_bytes)?),
                [short(code)?, short(previous)?, short(instruction)?, short(flags)?],
            ),
            instruction: Instruction::Address,
            code: CodeLayout {
                file: of_code(0)?,
                name: of_code(2)?,
                first_line: of_code(4)?,
                lines: of_code(3)?,
                instructions: of_code(8)?,
            },
            string_heads: V3_12.string_heads,
            loops: Loop::UntilInterpreter { owner, has_base: minor >= 15 },
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
                Loop::UntilInterpreter { owner, .. } => {
                    let is_own = byte(owner) == OWNED_BY_INTERPRETER;
                    (!is_own, is_own)
                }
            };
            group.extend(is_frame.then_some(frame));
            if is_last {
                groups.push(Group { frames: std::mem::take(&mut group), is_whole: true });
            }
        }
        let has_base = matches!(self.loops, Loop::UntilInterpreter { has_base: true, .. });
        if !group.is_empty() {
            groups.push(Group { frames: group, is_whole: false });
        } else if has_base && groups.last().is_some_and(|group| group.frames.is_empty()) {
            groups.pop();
        }
        groups
    }
}

//! Functions of Lua: their files, lines and names.
//!
//! A function of Lua has no name of its own. It gets the one that an instruction called it by, as
//! in Lua's tracebacks (`getobjname` in ldebug.c): that of a variable, of a field or of a method.
//! Without that it is `function <app.lua:12>`. Only the instruction that last set the register
//! before the call is looked at: where none is found within `BACK_MAX`, there is no name.

use super::{NAME_MAX, PATH_MAX, text};
use crate::python::Memory;
use crate::questions::{Language, RuntimeFunction};
use std::ops::Range;

/// `LUA_TSTRING`, from 5.2 on of short ones, and that of long ones.
const STRING: u8 = 4;
const LONG_STRING: u8 = 0x14;
/// Type of a value that is a function: `LUA_TFUNCTION` of Lua 5.1.
const FUNCTION: u8 = 6;
/// Type of a value that is a function written in Lua: `ctb(LUA_VLCL)`, from 5.2 on.
const LUA_FUNCTION: u8 = 6 | 1 << 6;
/// The text of a string.
const TEXT_AT: u64 = 24;
/// `ABSLINEINFO`: a difference of lines that does not fit in a byte.
const FAR: u8 = 0x80;
/// Most instructions of a function.
const CODE_MAX: u64 = 1 << 24;
/// Instructions before a call that are looked at.
const BACK_MAX: u64 = 64;
/// Most differences of lines from an entry that tells a line (`MAXIWTHABS` is 128), and most
/// entries that are passed.
const DIFFERENCES_MAX: u64 = 1 << 10;
/// Most local variables of a function that are looked at.
const LOCALS_MAX: u64 = 256;

/// Offsets in a `Proto`, and opcodes, of one version.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    minor: u8,
    /// `LUA_TPROTO`.
    kind: u8,
    size_code: u64,
    size_lines: u64,
    size_locals: u64,
    first_line: u64,
    constants: u64,
    code: u64,
    upvalues: u64,
    /// Bytes of an upvalue's description, whose first word is the name.
    upvalue_bytes: u64,
    lines: u64,
    locals: u64,
    source: u64,
    /// `OP_CALL`, which `OP_TAILCALL` follows.
    call: u32,
}

/// The number of a constant, of an upvalue, or of a local variable's register.
enum Operand {
    Constant(u64),
    Upvalue(u64),
    Local(u64),
}

impl Layout {
    /// Those of Lua 5.`minor`.
    pub const fn of(minor: u8) -> Self {
        let later = Self {
            minor,
            kind: 10,
            size_code: 24,
            size_lines: 28,
            size_locals: 36,
            first_line: 44,
            constants: 56,
            code: 64,
            upvalues: 80,
            upvalue_bytes: 16,
            lines: 88,
            locals: 104,
            source: 112,
            call: 68,
        };
        match minor {
            1 => Self {
                kind: 9,
                size_code: 80,
                size_lines: 84,
                size_locals: 92,
                first_line: 96,
                constants: 16,
                code: 24,
                upvalues: 56,
                upvalue_bytes: 8,
                lines: 40,
                locals: 48,
                source: 64,
                call: 28,
                ..later
            },
            2 => Self {
                kind: 9,
                size_code: 88,
                size_lines: 92,
                size_locals: 100,
                first_line: 104,
                constants: 16,
                code: 24,
                upvalues: 56,
                lines: 40,
                locals: 48,
                source: 72,
                call: 29,
                ..later
            },
            3 => Self {
                kind: 9,
                first_line: 40,
                constants: 48,
                code: 56,
                upvalues: 88,
                lines: 72,
                locals: 80,
                source: 104,
                call: 36,
                ..later
            },
            _ => later,
        }
    }

    /// Whether a `Proto` is there. `tag`: that of the value which it is the function of.
    pub fn is_proto(&self, memory: &impl Memory, proto: u64, tag: u8) -> bool {
        // In 5.1 functions in C have the same tag; their address stands where a `Proto`'s would.
        let expected = if self.minor == 1 { FUNCTION } else { LUA_FUNCTION };
        let is_kind = |word: u64| word as u8 == self.kind;
        tag == expected
            && proto.is_multiple_of(8)
            && self.word(memory, proto, 8).is_some_and(is_kind)
            && self.code(memory, proto).is_some()
    }

    fn word(&self, memory: &impl Memory, proto: u64, at: u64) -> Option<u64> {
        memory.word(proto.checked_add(at)?)
    }

    fn number(&self, memory: &impl Memory, proto: u64, at: u64) -> Option<u64> {
        self.word(memory, proto, at).map(|word| u64::from(word as u32))
    }

    /// The addresses of a function's instructions.
    pub fn code(&self, memory: &impl Memory, proto: u64) -> Option<Range<u64>> {
        let begin = self.word(memory, proto, self.code)?;
        let len = self.number(memory, proto, self.size_code)?;
        (begin != 0 && (1..=CODE_MAX).contains(&len)).then_some(())?;
        Some(begin..begin.checked_add(4 * len)?)
    }

    /// Number of the instruction before an address.
    fn place(&self, memory: &impl Memory, proto: u64, next: u64) -> Option<u64> {
        let code = self.code(memory, proto)?;
        let bytes = next.checked_sub(code.start)?;
        (next <= code.end && bytes.is_multiple_of(4)).then_some((bytes / 4).saturating_sub(1))
    }

    /// Whether the instruction before an address is a call.
    pub fn is_at_call(&self, memory: &impl Memory, next: u64) -> bool {
        let word = next.checked_sub(4).and_then(|at| memory.word(at));
        word.is_some_and(|word| self.is_call(word as u32))
    }

    fn is_call(&self, instruction: u32) -> bool {
        let code = self.opcode(instruction);
        code == self.call || code == self.call + 1
    }

    fn opcode(&self, instruction: u32) -> u32 {
        instruction & if self.minor >= 4 { 0x7f } else { 0x3f }
    }

    fn register(&self, instruction: u32) -> u32 {
        instruction >> if self.minor >= 4 { 7 } else { 6 } & 0xff
    }

    /// What an instruction loads a function from; None: from something without a name.
    fn operand(&self, instruction: u32) -> Option<Operand> {
        let (b, c) = match self.minor {
            4.. => (instruction >> 16 & 0xff, instruction >> 24),
            _ => (instruction >> 23, instruction >> 14 & 0x1ff),
        };
        let (is_constant, c) = match self.minor {
            // OP_SELF of 5.5 has nothing but constants.
            4.. => (self.minor > 4 || instruction >> 15 & 1 == 1, c),
            _ => (c & 0x100 != 0, c & 0xff),
        };
        let constant = |is| Some(Operand::Constant(c.into())).filter(|_| is);
        match (self.minor, self.opcode(instruction)) {
            (_, 0) => Some(Operand::Local(b.into())),
            (4.., 9) | (2 | 3, 5) | (1, 4) => Some(Operand::Upvalue(b.into())),
            // OP_GETTABUP and OP_GETFIELD.
            (4.., 11 | 14) => constant(true),
            // OP_GETGLOBAL.
            (1, 5) => Some(Operand::Constant((instruction >> 14).into())),
            // OP_SELF; OP_GETTABUP, OP_GETTABLE.
            (4.., 20) | (2 | 3, 6 | 7 | 12) | (1, 6 | 11) => constant(is_constant),
            _ => None,
        }
    }

    /// What tells a function from another one that is made at its address later.
    pub fn identity(&self, memory: &impl Memory, proto: u64) -> Option<[u64; 3]> {
        let word = |at| self.word(memory, proto, at);
        Some([word(self.code)?, word(self.source)?, self.number(memory, proto, self.first_line)?])
    }

    /// The function of a `Proto`. `name`: the one that it is called by.
    pub fn function(
        &self,
        memory: &impl Memory,
        proto: u64,
        name: Option<&str>,
    ) -> Option<RuntimeFunction> {
        (self.word(memory, proto, 8)? as u8 == self.kind).then_some(())?;
        let first_line = u32::try_from(self.number(memory, proto, self.first_line)?).ok()?;
        let source = match self.word(memory, proto, self.source)? {
            0 => "=?".to_owned(),
            source => self.string(memory, source, PATH_MAX).unwrap_or_default(),
        };
        let file = match source.split_at_checked(1) {
            Some(("@" | "=", file)) => file.to_owned(),
            // The text itself, or one that is too long.
            _ => "[string]".to_owned(),
        };
        let name = match (name, first_line) {
            (Some(name), _) => name.to_owned(),
            (None, 0) => "main chunk".to_owned(),
            (None, line) => {
                let file = file.rsplit('/').next().unwrap_or(&file);
                format!("function <{file}:{line}>")
            }
        };
        Some(RuntimeFunction { language: Language::Lua, file, name, first_line })
    }

    /// The text of a string.
    fn string(&self, memory: &impl Memory, at: u64, bytes_max: u64) -> Option<String> {
        let head = memory.word(at.checked_add(8)?)?;
        let bytes = match (self.minor, head as u8) {
            (3.., STRING) => head >> 24 & 0xff,
            (..3, STRING) | (_, LONG_STRING) => memory.word(at.checked_add(16)?)?,
            _ => return None,
        };
        let text_at = at.checked_add(TEXT_AT)?;
        // From 5.5 on a long string has the address of its text.
        let is_apart = self.minor > 4 && head as u8 == LONG_STRING;
        text(memory, if is_apart { memory.word(text_at)? } else { text_at }, bytes, bytes_max)
    }

    /// The line of the instruction before an address.
    pub fn line(&self, memory: &impl Memory, proto: u64, next: u64) -> Option<u32> {
        let place = self.place(memory, proto, next)?;
        let lines = self.word(memory, proto, self.lines)?;
        (lines != 0 && place < self.number(memory, proto, self.size_lines)?).then_some(())?;
        if self.minor < 4 {
            let line = memory.word(lines.checked_add(4 * place)?)? as u32;
            return (line <= i32::MAX as u32).then_some(line);
        }
        let (from, mut line) = self.base_line(memory, proto, place)?;
        let count = (place + 1).checked_sub(from).filter(|count| *count <= DIFFERENCES_MAX)?;
        let mut differences = vec![0; usize::try_from(count).ok()?];
        (memory.read(lines.checked_add(from)?, &mut differences) == differences.len())
            .then_some(())?;
        for difference in differences {
            (difference != FAR).then_some(())?;
            line = line.checked_add_signed(i32::from(difference as i8))?;
        }
        Some(line)
    }

    /// A line that is known without others, and the first instruction whose difference is from it.
    fn base_line(&self, memory: &impl Memory, proto: u64, place: u64) -> Option<(u64, u32)> {
        // `sizeabslineinfo`, `abslineinfo`: pairs of an instruction and a line.
        let (count, pairs) = (self.number(memory, proto, 40)?, self.word(memory, proto, 96)?);
        let first_line = u32::try_from(self.number(memory, proto, self.first_line)?).ok()?;
        let pair = |at: u64| {
            let pair = memory.word(pairs.checked_add(8 * at)?)?;
            Some((u64::from(pair as u32), (pair >> 32) as u32))
        };
        let begin = (place / 128).saturating_sub(1);
        let mut base = (0, first_line);
        for at in (begin..count).take(usize::try_from(DIFFERENCES_MAX).ok()?) {
            let (instruction, line) = pair(at)?;
            if instruction > place {
                break;
            }
            base = (instruction + 1, line);
        }
        Some(base)
    }

    /// The name of a local variable in a register where an instruction runs.
    fn local(
        &self,
        memory: &impl Memory,
        proto: u64,
        (register, place): (u64, u64),
    ) -> Option<u64> {
        let locals = self.word(memory, proto, self.locals)?;
        let count = self.number(memory, proto, self.size_locals)?.min(LOCALS_MAX);
        let mut active = 0;
        for at in 0..count {
            let local = locals.checked_add(16 * at)?;
            let extent = memory.word(local.checked_add(8)?)?;
            let (begin, end) = (u64::from(extent as u32), extent >> 32);
            if begin > place {
                break;
            }
            if place < end {
                if active == register {
                    return memory.word(local);
                }
                active += 1;
            }
        }
        None
    }
}

/// The name that the instruction before an address calls a function by.
pub fn called(layout: &Layout, memory: &impl Memory, proto: u64, next: u64) -> Option<String> {
    let code = layout.code(memory, proto)?;
    let place = layout.place(memory, proto, next)?;
    let begin = place.saturating_sub(BACK_MAX);
    let mut bytes = vec![0; usize::try_from(4 * (place + 1 - begin)).ok()?];
    (memory.read(code.start.checked_add(4 * begin)?, &mut bytes) == bytes.len()).then_some(())?;
    let mut instructions =
        bytes.as_chunks().0.iter().rev().map(|bytes| u32::from_le_bytes(*bytes)).zip(0..);
    let (call, _) = instructions.next().filter(|(call, _)| layout.is_call(*call))?;
    let register = layout.register(call);
    // What sets the register; others that have its number there are not looked through.
    let (load, back) = instructions.find(|(other, _)| layout.register(*other) == register)?;
    let word = |at: u64| memory.word(proto.checked_add(at)?);
    let string = match layout.operand(load)? {
        Operand::Constant(at) => memory.word(word(layout.constants)?.checked_add(16 * at)?)?,
        Operand::Upvalue(at) => {
            memory.word(word(layout.upvalues)?.checked_add(layout.upvalue_bytes * at)?)?
        }
        Operand::Local(at) => layout.local(memory, proto, (at, place.checked_sub(back)?))?,
    };
    layout.string(memory, string, NAME_MAX)
}

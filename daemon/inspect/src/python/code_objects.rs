//! Functions and lines, from the code objects of a process.

use super::Memory;
use super::layouts::{Instruction, Layout};
use super::lines;
use super::program::Types;
use crate::questions::{Language, RuntimeFunction};
use abi::PythonFrame;
use std::collections::HashMap;

/// Longest path and name that are read, in characters. A code object with a longer one has no name.
const PATH_MAX: u64 = 4096;
const NAME_MAX: u64 = 512;
/// Longest table of lines that is read, in bytes: generated functions have the longest. A code
/// object with a longer one has no name.
const LINES_BYTES_MAX: u64 = 256 << 10;
/// Longest function, in bytes of instructions.
const INSTRUCTIONS_MAX: u64 = 64 << 20;
/// Bytes of names and tables that are kept of code objects of all processes; beyond, all are
/// forgotten and read again.
const KEPT_BYTES_MAX: usize = 8 << 20;
/// Bytes of names and tables that are read or decoded for one question, about 10 ms of work: of a
/// process's own making, in which each frame of each stack may have a table of the longest kind.
/// Frames beyond have no name.
const WORK_BYTES_MAX: usize = 16 << 20;
/// Bytes that are charged for an object that is no code object, because its path and name may have
/// been read.
const FAILED_BYTES: usize = 20 << 10;
/// Functions of one answer.
const FUNCTIONS_MAX: usize = 65_536;
/// Bytes of a code object's head that are read.
const HEAD_BYTES: usize = 256;

/// Offset of an object's type, and of the number of elements of one that has any (PyObject,
/// PyVarObject).
const TYPE_AT: u64 = 8;
const SIZE_AT: u64 = 16;
/// Offset of a string's state (PyASCIIObject); bits 2 to 4 are the bytes of a character, bit 5 says
/// that the characters follow the head, bit 6 that they are ASCII.
const STATE_AT: u64 = 32;
/// Offset of the first byte of a byte string (PyBytesObject).
const BYTES_AT: u64 = 32;

/// Reads code objects.
pub struct Reader<'a, M> {
    /// The process's memory.
    pub memory: &'a M,
    /// Its version.
    pub layout: &'a Layout,
    /// Addresses of the types of its objects.
    pub types: Types,
}

/// The identity of a code object that was read: the addresses of its strings and table, its first
/// line and its length.
type Head = [u64; 5];

/// Why a code object has no head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoHead {
    /// The memory cannot be read: the process is gone.
    Gone,
    /// Something else is there.
    Other,
}

/// A code object.
#[derive(Debug)]
pub struct Code {
    head: Head,
    address: u64,
    file: String,
    name: String,
    first_line: u32,
    table: Vec<u8>,
}

/// Code objects of all processes.
#[derive(Default)]
pub struct Codes {
    known: HashMap<(u32, u64), Known>,
    kept_bytes: usize,
    /// Questions so far.
    now: u64,
    /// Results for the current question, by code object and instruction.
    lines: HashMap<(u64, u64), u32>,
    /// The rest of [`WORK_BYTES_MAX`].
    work_left: usize,
}

/// None: it cannot be read.
struct Known {
    code: Option<Code>,
    /// Question at which its head was read last.
    checked: u64,
}

/// Functions of an answer, each once.
#[derive(Default)]
pub struct Functions {
    numbers: HashMap<u64, u32>,
    /// In the order of their numbers.
    pub all: Vec<RuntimeFunction>,
}

impl Functions {
    /// The number of a code object.
    pub fn number(&mut self, address: u64, code: &Code) -> Option<u32> {
        if let Some(number) = self.numbers.get(&address) {
            return Some(*number);
        }
        let number = u32::try_from(self.all.len()).ok()?;
        if self.all.len() >= FUNCTIONS_MAX {
            return None;
        }
        self.all.push(code.function());
        self.numbers.insert(address, number);
        Some(number)
    }
}

impl Codes {
    /// A new question begins: known code objects are verified again before they are used.
    pub fn begin(&mut self) {
        self.now += 1;
        self.lines.clear();
        self.work_left = WORK_BYTES_MAX;
    }

    fn work(&mut self, bytes: usize) -> Option<()> {
        let is_possible = self.work_left > bytes;
        self.work_left = self.work_left.saturating_sub(bytes);
        is_possible.then_some(())
    }

    /// The function and line of a frame. None: there is none, it cannot be read, or the question's
    /// frames are too much work.
    pub fn frame(
        &mut self,
        space: u32,
        frame: &PythonFrame,
        reader: &Reader<'_, impl Memory>,
    ) -> Option<(&Code, u32)> {
        let table_bytes = self.get(space, frame.code, reader)?.table.len();
        let key = (frame.code, frame.instruction);
        let line = match self.lines.get(&key) {
            Some(line) => *line,
            None => {
                self.work(table_bytes)?;
                let code = self.known.get(&(space, frame.code))?.code.as_ref()?;
                let line = code.line(reader.layout, frame)?;
                self.lines.insert(key, line);
                line
            }
        };
        Some((self.known.get(&(space, frame.code))?.code.as_ref()?, line))
    }

    /// Forgets all if it is too much: also within a question, which may name tens of thousands.
    fn bound(&mut self) {
        if self.kept_bytes > KEPT_BYTES_MAX {
            self.known.clear();
            self.kept_bytes = 0;
        }
    }

    /// The code object at an address of a process. None: there is none, or it cannot be read. For a
    /// process that is gone, the last known one.
    pub fn get(&mut self, space: u32, at: u64, reader: &Reader<'_, impl Memory>) -> Option<&Code> {
        let (key, now) = ((space, at), self.now);
        let is_checked = self.known.get(&key).is_some_and(|known| known.checked == now);
        if !is_checked {
            let head = reader.head(at);
            let is_same = |code: &Code| match &head {
                Ok(head) => *head == code.head,
                Err(why) => *why == NoHead::Gone,
            };
            let known = self.known.get_mut(&key);
            match known.filter(|known| known.code.as_ref().is_some_and(is_same)) {
                Some(known) => known.checked = now,
                None => {
                    self.work(0)?;
                    let code = head.ok().and_then(|head| reader.read(at, head));
                    let _ = self.work(code.as_ref().map_or(FAILED_BYTES, Code::kept_bytes));
                    self.bound();
                    self.kept_bytes += code.as_ref().map_or(0, Code::kept_bytes) + KEPT_BYTES_EACH;
                    self.known.insert(key, Known { code, checked: now });
                }
            }
        }
        self.known.get(&key)?.code.as_ref()
    }
}

/// Bytes of an entry of the table of code objects, about.
const KEPT_BYTES_EACH: usize = 192;

impl Code {
    /// The function.
    pub fn function(&self) -> RuntimeFunction {
        let (file, name) = (self.file.clone(), self.name.clone());
        let language = Language::Python;
        RuntimeFunction { language, file, name, first_line: self.first_line }
    }

    fn kept_bytes(&self) -> usize {
        self.file.len() + self.name.len() + self.table.len()
    }

    /// The line that a frame of this code executes; None where it has no such instruction.
    pub fn line(&self, layout: &Layout, frame: &PythonFrame) -> Option<u32> {
        let low = || i64::from((frame.instruction as u32).cast_signed());
        let byte = match layout.instruction {
            Instruction::Byte => low(),
            Instruction::Unit => 2 * low(),
            Instruction::Address => {
                let begin = self.address.wrapping_add(layout.code.instructions);
                frame.instruction.wrapping_sub(begin).cast_signed()
            }
        };
        let [.., size] = self.head;
        let end = i64::try_from(size).ok()?;
        // Before the first instruction there is one step: of a frame that was just made.
        if !(-2..end).contains(&byte) {
            return None;
        }
        // An instruction without a line is the compiler's own: of the line that the function begins
        // with, for want of a better one.
        Some(
            lines::line(layout.minor, &self.table, self.first_line, byte)
                .unwrap_or(self.first_line),
        )
    }
}

impl<M: Memory> Reader<'_, M> {
    /// The head of the code object at an address, if that is one.
    fn head(&self, at: u64) -> Result<Head, NoHead> {
        let mut bytes = [0; HEAD_BYTES];
        let read = self.memory.read(at, &mut bytes);
        if read == 0 {
            return Err(NoHead::Gone);
        }
        self.head_of(bytes.get(..read).unwrap_or_default()).ok_or(NoHead::Other)
    }

    fn head_of(&self, bytes: &[u8]) -> Option<Head> {
        let word = |offset: u64| {
            let rest = bytes.get(usize::try_from(offset).ok()?..)?;
            rest.first_chunk().map(|word| u64::from_le_bytes(*word))
        };
        if word(TYPE_AT)? != self.types.code {
            return None;
        }
        let code = &self.layout.code;
        // From 3.11 on the object's number of elements is that of its instructions.
        let size = match code.instructions {
            0 => INSTRUCTIONS_MAX,
            _ => word(SIZE_AT)?.checked_mul(2).filter(|bytes| *bytes <= INSTRUCTIONS_MAX)?,
        };
        let first_line = word(code.first_line)? & 0xffff_ffff;
        Some([word(code.file)?, word(code.name)?, word(code.lines)?, first_line, size])
    }

    fn read(&self, at: u64, head: Head) -> Option<Code> {
        let [file, name, table, first_line, _] = head;
        Some(Code {
            head,
            address: at,
            file: self.string(file, PATH_MAX)?,
            name: self.string(name, NAME_MAX)?,
            first_line: u32::try_from(first_line).ok().filter(|line| *line <= i32::MAX as u32)?,
            table: self.bytes(table)?,
        })
    }

    /// The text of a string object with at most this many characters.
    fn string(&self, at: u64, chars_max: u64) -> Option<String> {
        let mut head = [0; STATE_AT as usize + 4];
        if self.memory.read(at, &mut head) != head.len() {
            return None;
        }
        let word = |offset: u64| {
            let rest = head.get(usize::try_from(offset).ok()?..)?;
            rest.first_chunk().map(|word| u64::from_le_bytes(*word))
        };
        let (kind, chars) = (word(TYPE_AT)?, word(SIZE_AT)?);
        let state = head.last_chunk().map(|state| u32::from_le_bytes(*state))?;
        let (char_bytes, is_compact, is_ascii) =
            (u64::from(state >> 2 & 7), state & 0x20 != 0, state & 0x40 != 0);
        if kind != self.types.string || chars > chars_max || !is_compact {
            return None;
        }
        let [of_ascii, of_others] = self.layout.string_heads;
        let begin = at.checked_add(if is_ascii { of_ascii } else { of_others })?;
        let mut text = vec![0; usize::try_from(chars * char_bytes).ok()?];
        if self.memory.read(begin, &mut text) != text.len() {
            return None;
        }
        match (char_bytes, is_ascii) {
            (1, true) => String::from_utf8(text).ok().filter(|text| text.is_ascii()),
            (1, false) => Some(text.into_iter().map(char::from).collect()),
            (2, false) => text
                .as_chunks()
                .0
                .iter()
                .map(|unit| char::from_u32(u16::from_le_bytes(*unit).into()))
                .collect(),
            (4, false) => text
                .as_chunks()
                .0
                .iter()
                .map(|unit| char::from_u32(u32::from_le_bytes(*unit)))
                .collect(),
            _ => None,
        }
    }

    fn bytes(&self, at: u64) -> Option<Vec<u8>> {
        let is_bytes = self.memory.word(at.checked_add(TYPE_AT)?)? == self.types.bytes;
        let len = self.memory.word(at.checked_add(SIZE_AT)?)?;
        if !is_bytes || len > LINES_BYTES_MAX {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        let begin = at.checked_add(BYTES_AT)?;
        (self.memory.read(begin, &mut bytes) == bytes.len()).then_some(bytes)
    }
}

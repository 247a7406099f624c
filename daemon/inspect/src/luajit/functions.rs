//! Functions of LuaJIT: their files, lines and names.
//!
//! A function has no name of its own. LuaJIT's tracebacks give it the one that it was called by,
//! which is another function's if that one ended by calling it. Here it has the name that its
//! definition gives it: the instructions of the enclosing function, behind the one that makes it,
//! say where it is put: a local variable, a global one, an upvalue or a field. Without that, or if
//! the enclosing function was in no stack, it is `function <app.lua:12>`.

use super::places::Call;
use crate::lists::{NAME_MAX, PATH_MAX};
use crate::python::Memory;
use crate::questions::{Language, RuntimeFunction};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Names, and functions whose definitions were read, that are kept. Beyond, all are forgotten and
/// read again.
const KEPT_MAX: usize = 1 << 14;
/// Functions of one answer, each read with about five system calls. Frames beyond have no name.
const READ_MAX: usize = 8192;
/// Places in functions of one answer whose lines are read, likewise.
const LINES_MAX: usize = 32_768;
/// Most instructions of a function.
const CODE_MAX: u32 = 1 << 24;
/// Most instructions of a function that are looked through for definitions.
const DEFINING_MAX: u32 = 1 << 16;
/// Bytes of names of local variables and of upvalues that are read.
const VARIABLES_BYTES: usize = 16 << 10;
/// Names that the compiler gives to variables of its own, as numbers in place of texts.
const OWN_NAMES: u8 = 7;

/// Kinds of objects.
const STRING: u8 = 4;
const PROTO: u8 = 7;
const FUNCTION: u8 = 8;
/// Bytes of a string before its text.
const TEXT_AT: u64 = 24;

/// Opcodes (lj_bc.h; the same in all of 2.1): to copy a slot, to write an upvalue, to make a
/// function, to write a global variable, to write a field.
const MOV: u8 = 18;
const USETV: u8 = 46;
const FNEW: u8 = 51;
const GSET: u8 = 55;
const TSETS: u8 = 61;

/// What is read of a function (`GCproto`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proto {
    /// Its address.
    pub at: u64,
    instructions: u32,
    /// Constants are below, the first one last.
    constants: u64,
    constants_count: u32,
    upvalues: u64,
    chunk: u64,
    first_line: u32,
    /// Lines of the source.
    extent: u32,
    lines: u64,
    upvalue_names: u64,
    locals: u64,
}

/// An instruction: its opcode, and its operands.
#[derive(Clone, Copy)]
struct Instruction {
    code: u8,
    a: u8,
    c: u8,
    d: u16,
}

impl Instruction {
    fn of(word: [u8; 4]) -> Self {
        let [code, a, c, b] = word;
        Self { code, a, c, d: u16::from_le_bytes([c, b]) }
    }
}

impl Proto {
    /// Bytes of a `GCproto`; its instructions follow.
    pub const BYTES: u64 = 104;

    /// The function at an address; None: none is there.
    pub fn read(memory: &impl Memory, at: u64) -> Option<Self> {
        let mut bytes = [0; Self::BYTES as usize];
        let is_place = at.is_multiple_of(8) && at >> 47 == 0 && at >= 4096;
        (is_place && memory.read(at, &mut bytes) == bytes.len()).then_some(())?;
        let word = |at: usize| bytes.get(at..)?.first_chunk().map(|it| u64::from_le_bytes(*it));
        let number = |at: usize| bytes.get(at..)?.first_chunk().map(|it| u32::from_le_bytes(*it));
        let instructions = number(12)?;
        let is_one = bytes.get(9) == Some(&PROTO) && (1..=CODE_MAX).contains(&instructions);
        is_one.then_some(())?;
        Some(Self {
            at,
            instructions,
            constants: word(32)?,
            constants_count: number(48)?,
            upvalues: bytes.get(60).copied()?.into(),
            chunk: word(64)?,
            first_line: number(72)?,
            extent: number(76)?,
            lines: word(80)?,
            upvalue_names: word(88)?,
            locals: word(96)?,
        })
    }

    /// That of a function object in Lua.
    pub fn of_function(memory: &impl Memory, at: u64) -> Option<Self> {
        let is_place = at.is_multiple_of(8) && at >> 47 == 0 && at >= 4096;
        let header = memory.word(at.checked_add(8).filter(|_| is_place)?)?;
        (header >> 8 & 0xffff == u64::from(FUNCTION)).then_some(())?;
        Self::of_code(memory, memory.word(at.checked_add(32)?)?)
    }

    /// The function with these instructions.
    pub fn of_code(memory: &impl Memory, code: u64) -> Option<Self> {
        Self::read(memory, code.checked_sub(Self::BYTES)?)
    }

    fn code(&self) -> Range<u64> {
        let begin = self.at + Self::BYTES;
        begin..begin + 4 * u64::from(self.instructions)
    }

    /// Whether the instruction before an address is the function's.
    pub fn has(&self, next: u64) -> bool {
        let code = self.code();
        next > code.start && next <= code.end && next.is_multiple_of(4)
    }

    /// The line of the instruction before an address.
    pub fn line(&self, memory: &impl Memory, next: u64) -> Option<u32> {
        let place = (self.has(next) && self.lines != 0).then(|| (next - self.code().start) / 4)?;
        // The first instruction begins the function, and has no line.
        let Some(place) = place.checked_sub(2) else { return Some(self.first_line) };
        let bytes = match self.extent {
            0..256 => 1,
            256..65536 => 2,
            _ => 4,
        };
        let mut number = [0; 4];
        let into = number.get_mut(..bytes)?;
        let at = self.lines.checked_add(place.checked_mul(bytes as u64)?)?;
        (memory.read(at, into) == bytes).then_some(())?;
        let line = u32::from_le_bytes(number);
        (line <= self.extent).then(|| self.first_line.checked_add(line))?
    }

    /// The source, without the path before a file's name.
    fn file(&self, memory: &impl Memory) -> String {
        let source = string(memory, self.chunk, PATH_MAX).unwrap_or_default();
        match source.split_at_checked(1) {
            Some(("@" | "=", file)) => file.to_owned(),
            // The text itself, or one that is too long.
            _ => "[string]".to_owned(),
        }
    }

    fn function(&self, memory: &impl Memory, name: Option<&str>) -> RuntimeFunction {
        let (file, line) = (self.file(memory), self.first_line);
        let name = match (name, line) {
            (Some(name), _) => name.to_owned(),
            (None, 0) => "main chunk".to_owned(),
            (None, _) => {
                let file = file.rsplit('/').next().unwrap_or(&file);
                format!("function <{file}:{line}>")
            }
        };
        RuntimeFunction { language: Language::Lua, file, name, first_line: line }
    }

    /// The constant that is an object, of this number.
    fn constant(&self, memory: &impl Memory, number: u32) -> Option<u64> {
        (number < self.constants_count).then_some(())?;
        memory.word(self.constants.checked_sub(8 * (u64::from(number) + 1))?)
    }

    /// The functions that this one makes, with their names.
    fn definitions(&self, memory: &impl Memory) -> Vec<(u64, String)> {
        let count = self.instructions.min(DEFINING_MAX);
        let mut bytes = vec![0; 4 * count as usize];
        let read = memory.read(self.code().start, &mut bytes);
        bytes.truncate(read);
        let code: Vec<Instruction> =
            bytes.as_chunks().0.iter().map(|word| Instruction::of(*word)).collect();
        let mut variables = None;
        let mut found = Vec::new();
        for ((at, made), next) in (0_u32..).zip(&code).zip(code.iter().skip(1)) {
            if made.code != FNEW {
                continue;
            }
            let slot = made.a;
            let constant = |number: u32| self.constant(memory, number);
            let Some(proto) = constant(made.d.into()) else { continue };
            let variables = variables.get_or_insert_with(|| Variables::read(memory, self));
            let name = match next.code {
                GSET if next.a == slot => constant(next.d.into()),
                TSETS if next.a == slot => constant(next.c.into()),
                _ => None,
            };
            let name = match (name, next.code) {
                (Some(name), _) => string(memory, name, NAME_MAX),
                (None, USETV) if next.d == u16::from(slot) => variables.upvalue(next.a),
                (None, code) => variables.local(at + 1, slot).or_else(|| {
                    let is_copied = code == MOV && next.d == u16::from(slot);
                    variables.local(at + 2, next.a).filter(|_| is_copied)
                }),
            };
            found.extend(name.map(|name| (proto, name)));
        }
        found
    }

    /// What tells a function from another one that is made at its address later.
    fn identity(&self) -> [u64; 3] {
        let size = u64::from(self.instructions) << 32;
        [self.constants, self.chunk, size | u64::from(self.first_line)]
    }
}

/// Names of a function's variables.
struct Variables {
    locals: Vec<u8>,
    upvalues: Vec<u8>,
}

impl Variables {
    fn read(memory: &impl Memory, of: &Proto) -> Self {
        let bytes = |at: u64| {
            let mut bytes = vec![0; VARIABLES_BYTES];
            let read = if at == 0 { 0 } else { memory.read(at, &mut bytes) };
            bytes.truncate(read);
            bytes
        };
        let upvalues = if of.upvalues == 0 { Vec::new() } else { bytes(of.upvalue_names) };
        Self { locals: bytes(of.locals), upvalues }
    }

    /// The name of the local variable that is in a slot at an instruction.
    fn local(&self, at: u32, slot: u8) -> Option<String> {
        let mut rest = self.locals.as_slice();
        let (mut begin, mut slot) = (0_u32, slot);
        loop {
            let (first, _) = rest.split_first()?;
            let name = match *first {
                0 => return None,
                1..OWN_NAMES => {
                    rest = rest.get(1..)?;
                    &[][..]
                }
                _ => {
                    let end = rest.iter().position(|byte| *byte == 0)?;
                    let name = rest.get(..end)?;
                    rest = rest.get(end + 1..)?;
                    name
                }
            };
            begin = begin.checked_add(number(&mut rest)?)?;
            if begin > at {
                return None;
            }
            let end = begin.checked_add(number(&mut rest)?)?;
            if at < end {
                if slot == 0 {
                    return named(name);
                }
                slot -= 1;
            }
        }
    }

    fn upvalue(&self, number: u8) -> Option<String> {
        named(self.upvalues.split(|byte| *byte == 0).nth(number.into())?)
    }
}

/// A name of a variable, if it is one.
fn named(name: &[u8]) -> Option<String> {
    let is_name = !name.is_empty() && name.iter().all(|byte| !byte.is_ascii_control());
    std::str::from_utf8(name).ok().filter(|_| is_name).map(str::to_owned)
}

/// A number of 7 bits a byte, the lowest first.
fn number(bytes: &mut &[u8]) -> Option<u32> {
    let mut number = 0;
    for shift in (0..32).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u32::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// The text of a string: up to its zero, since the place of its length differs between builds.
/// None: it cannot be read, is too long, or has other characters than printable ones.
fn string(memory: &impl Memory, at: u64, bytes_max: u64) -> Option<String> {
    let header = memory.word(at.checked_add(8)?)?;
    ((header >> 8) as u8 == STRING).then_some(())?;
    let begin = at.checked_add(TEXT_AT)?;
    let mut text = Vec::new();
    while (text.len() as u64) < bytes_max {
        let from = begin.checked_add(text.len() as u64)?;
        let mut piece = [0; 64];
        let read = memory.read(from, &mut piece);
        let piece = piece.get(..read).filter(|piece| !piece.is_empty())?;
        let end = piece.iter().position(|byte| *byte == 0);
        text.extend_from_slice(piece.get(..end.unwrap_or(read))?);
        if end.is_some() {
            let text = String::from_utf8(text).ok()?;
            let is_text = !text.is_empty() && !text.chars().any(char::is_control);
            return Some(text).filter(|text| is_text && text.len() as u64 <= bytes_max);
        }
    }
    None
}

/// An address space, and a function's address.
type Key = (u32, u64);

/// Names that are known, with what tells their functions from others; and the functions whose
/// definitions were read.
#[derive(Default)]
pub struct Names {
    names: HashMap<Key, ([u64; 3], String)>,
    read: HashSet<(Key, [u64; 3])>,
}

/// A function of an answer: its number, and what its lines are read of.
type Function = Option<(u32, Proto)>;

/// Functions of one answer, each once.
pub struct Answer<'a> {
    names: &'a mut Names,
    space: u32,
    noted: HashSet<u64>,
    numbers: HashMap<u64, Function>,
    places: HashMap<Call, Option<(u32, u32)>>,
    all: Vec<RuntimeFunction>,
}

impl<'a> Answer<'a> {
    /// Without functions yet, of a process.
    pub fn new(names: &'a mut Names, space: u32) -> Self {
        if names.names.len() >= KEPT_MAX || names.read.len() >= KEPT_MAX {
            *names = Names::default();
        }
        let (noted, numbers, places) = Default::default();
        Self { names, space, noted, numbers, places, all: Vec::new() }
    }

    /// Notes the names that functions of a run give to those that they make.
    pub fn note(&mut self, memory: &impl Memory, calls: &[Call]) {
        for call in calls {
            if self.noted.len() >= READ_MAX || !self.noted.insert(call.proto) {
                continue;
            }
            let Some(proto) = Proto::read(memory, call.proto) else { continue };
            if !self.names.read.insert(((self.space, proto.at), proto.identity())) {
                continue;
            }
            for (made, name) in proto.definitions(memory) {
                if let Some(made) = Proto::read(memory, made) {
                    self.names.names.insert((self.space, made.at), (made.identity(), name));
                }
            }
        }
    }

    fn read(&mut self, memory: &impl Memory, at: u64) -> Function {
        if let Some(known) = self.numbers.get(&at) {
            return *known;
        }
        if self.numbers.len() >= READ_MAX {
            return None;
        }
        let function = Proto::read(memory, at).and_then(|proto| {
            let known = self.names.names.get(&(self.space, at));
            let name = known.filter(|known| known.0 == proto.identity());
            let name = name.map(|(_, name)| name.as_str());
            let number = u32::try_from(self.all.len()).ok()?;
            self.all.push(proto.function(memory, name));
            Some((number, proto))
        });
        self.numbers.insert(at, function);
        function
    }

    /// The function of a call, and the line.
    pub fn place(&mut self, memory: &impl Memory, call: &Call) -> Option<(u32, u32)> {
        if let Some(place) = self.places.get(call) {
            return *place;
        }
        if self.places.len() >= LINES_MAX {
            return None;
        }
        let function = self.read(memory, call.proto);
        let place = function.map(|(number, proto)| {
            (number, proto.line(memory, call.next).unwrap_or(proto.first_line))
        });
        self.places.insert(*call, place);
        place
    }

    /// The functions.
    pub fn into_functions(self) -> Vec<RuntimeFunction> {
        self.all
    }
}

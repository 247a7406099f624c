//! Functions of Perl: their files, lines and names.
//!
//! The name is `Package::function`, as `caller` tells it; of functions without one, it ends with
//! `__ANON__`. Code of a text or a file that is evaluated or required is `(eval)`, and what runs
//! outside of all functions `main program`. Perl keeps no line of a function's begin; its first
//! line is that of its first statement.
//!
//! Sources: cv.h (struct xpvcv, CVf_NAMED), gv.h, hv.h (struct hek, xpvhv_aux, HvNAME_HEK_NN),
//! sv.h (struct sv, svtype, SVf_OOK), op.h (BASEOP), cop.h (struct cop), opnames.h of the versions
//! that [`perl`](super::perl) names.

use super::{NAME_MAX, PATH_MAX, text};
use crate::python::Memory;
use crate::questions::{Language, RuntimeFunction};
use abi::{CONTEXT_START_SHIFT, ContextLayout, PythonFrame};

/// `svtype` of functions, variables by name, and hashes.
const CODE_TYPE: u8 = 13;
const NAME_TYPE: u8 = 9;
const HASH_TYPE: u8 = 12;
/// `SVf_OOK` of a hash: it has a `struct xpvhv_aux`.
const HAS_AUX: u32 = 1 << 25;
/// `CVf_NAMED`: the name stands in the function itself.
const IS_NAMED: u64 = 1 << 15;
/// Bits of `op_type`.
const TYPE_MASK: u16 = 0x1ff;
/// Most elements of a package's table.
const TABLE_MAX: u64 = 1 << 28;
/// Bytes of a path that are read at once.
const PATH_PIECE: usize = 128;

/// Name of what is evaluated, and the file of functions in texts.
const TEXT: &str = "(eval)";

/// What a frame runs: the low bits of the code of a [`PythonFrame`] here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A function or a format.
    Sub = 1,
    /// A function that has its name itself.
    NamedSub,
    /// A text that is evaluated.
    Text,
    /// A file that is required.
    File,
    /// What is outside of all functions.
    Main,
}

/// Offsets in bytes, and numbers, of one version.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    contexts: ContextLayout,
    /// `OP_NEXTSTATE`, which `OP_DBSTATE` follows.
    next_state: u16,
    /// The description of a package lies behind the hash's body, not behind its table.
    has_aux_in_body: bool,
    /// A statement has its file's name; otherwise it has the file's variable.
    has_threads: bool,
}

impl Layout {
    /// Those of Perl 5.`version`; None: it is not known.
    pub fn of(version: u8, has_threads: bool) -> Option<Self> {
        if !matches!(version, 28 | 30 | 32 | 34 | 36 | 38 | 40 | 42) {
            return None;
        }
        let contexts = ContextLayout {
            base: 0,
            info_at: if version < 34 { 240 } else { 224 },
            place_at: if version < 34 { 224 } else { 208 },
            row_at: 8,
            last_at: 32,
            previous_at: 16,
            entry_bytes: if version < 32 { 96 } else { 104 },
            caller_at: 16,
            return_at: 48,
            sub_at: if version < 32 { 64 } else { 72 },
            eval_at: if version < 32 { 80 } else { 88 },
        };
        let next_state = match version {
            ..38 => 195,
            38..42 => 198,
            _ => 202,
        };
        Some(Self { contexts, next_state, has_aux_in_body: version >= 36, has_threads })
    }

    /// Where an interpreter has its contexts.
    pub fn contexts(&self) -> ContextLayout {
        self.contexts
    }

    /// The function of a frame.
    pub fn function(&self, memory: &impl Memory, frame: &PythonFrame) -> Option<RuntimeFunction> {
        let PythonFrame { code, instruction: place, flags: name } = *frame;
        let at = code >> CONTEXT_START_SHIFT;
        let kind = code & ((1 << CONTEXT_START_SHIFT) - 1);
        let (name, place, first_line) = if kind == Kind::Main as u64 {
            ("main program".to_owned(), place, 0)
        } else if kind == Kind::Text as u64 {
            // Most texts are freed before their statements could be read.
            let [name, file] = [(); 2].map(|()| TEXT.to_owned());
            return Some(RuntimeFunction { language: Language::Perl, file, name, first_line: 0 });
        } else if kind == Kind::File as u64 {
            (TEXT.to_owned(), place, 0)
        } else if kind == Kind::Sub as u64 || kind == Kind::NamedSub as u64 {
            let name = self.name(memory, name, kind == Kind::NamedSub as u64)?;
            (name, at, self.line_at(memory, at)?)
        } else {
            return None;
        };
        let file = self.file_of(memory, place)?;
        // Each text that is evaluated has a number: `(eval 7)`.
        let file = if file.starts_with("(eval ") { TEXT.to_owned() } else { file };
        Some(RuntimeFunction { language: Language::Perl, file, name, first_line })
    }

    /// The line of a frame.
    pub fn line(&self, memory: &impl Memory, frame: &PythonFrame) -> Option<u32> {
        self.line_at(memory, frame.instruction)
    }

    /// The line of a statement; None: none is there, or it is one that is just compiled.
    fn line_at(&self, memory: &impl Memory, statement: u64) -> Option<u32> {
        let word = word(memory, statement, 32)?;
        let kind = word as u16 & TYPE_MASK;
        (kind == self.next_state || kind == self.next_state + 1).then_some((word >> 32) as u32)
    }

    /// The file of a statement.
    fn file_of(&self, memory: &impl Memory, statement: u64) -> Option<String> {
        self.line_at(memory, statement)?;
        let file = word(memory, statement, 48)?;
        if self.has_threads {
            return path(memory, file);
        }
        // The variable of a file is named `_<` and its path.
        let name = key(memory, word(memory, body(memory, file, NAME_TYPE)?, 32)?, PATH_MAX)?;
        name.strip_prefix("_<").map(str::to_owned)
    }

    /// The name of a function, by the variable that it is in or, if it has its name itself, by the
    /// function.
    fn name(&self, memory: &impl Memory, at: u64, is_function: bool) -> Option<String> {
        let (name, package) = if is_function {
            let body = body(memory, at, CODE_TYPE)?;
            let is_named = word(memory, body, 88)? >> 32 & IS_NAMED != 0;
            (word(memory, body, 56).filter(|_| is_named)?, word(memory, body, 32)?)
        } else {
            let body = body(memory, at, NAME_TYPE)?;
            (word(memory, body, 32)?, word(memory, body, 40)?)
        };
        let name = key(memory, name, NAME_MAX)?;
        Some(match self.package(memory, package) {
            Some(package) => format!("{package}::{name}"),
            None => name,
        })
    }

    /// The name of a package.
    fn package(&self, memory: &impl Memory, package: u64) -> Option<String> {
        let body = body(memory, package, HASH_TYPE)?;
        if flags(memory, package)? & HAS_AUX == 0 {
            return None;
        }
        let aux = match self.has_aux_in_body {
            true => body.checked_add(32)?,
            false => {
                let max = word(memory, body, 24).filter(|max| *max < TABLE_MAX)?;
                word(memory, package, 16)?.checked_add(8 * (max + 1))?
            }
        };
        let name = word(memory, aux, 0)?;
        let has_several = word(memory, aux, 24)? >> 32 != 0;
        key(memory, if has_several { memory.word(name)? } else { name }, NAME_MAX)
    }
}

fn word(memory: &impl Memory, base: u64, at: u64) -> Option<u64> {
    memory.word(base.checked_add(at)?)
}

/// The flags of a value; its type is in the low byte.
fn flags(memory: &impl Memory, value: u64) -> Option<u32> {
    word(memory, value, 8).map(|word| (word >> 32) as u32)
}

/// The body of a value of this type.
fn body(memory: &impl Memory, value: u64, kind: u8) -> Option<u64> {
    let is_aligned = value != 0 && value.is_multiple_of(8);
    let found = flags(memory, value).filter(|_| is_aligned)? as u8;
    (found == kind).then(|| memory.word(value)).flatten()
}

/// The text of a key (`struct hek`).
fn key(memory: &impl Memory, key: u64, bytes_max: u64) -> Option<String> {
    let bytes = memory.word(key)? >> 32;
    text(memory, key.checked_add(8)?, bytes, bytes_max)
}

/// A path, which a 0 ends.
fn path(memory: &impl Memory, at: u64) -> Option<String> {
    let mut path = Vec::new();
    while path.len() < PATH_MAX as usize {
        let mut piece = [0; PATH_PIECE];
        let read = memory.read(at.checked_add(path.len() as u64)?, &mut piece);
        let piece = piece.get(..read)?;
        if let Some(end) = piece.iter().position(|byte| *byte == 0) {
            path.extend_from_slice(piece.get(..end)?);
            let text = String::from_utf8(path).ok()?;
            return (!text.is_empty() && !text.chars().any(char::is_control)).then_some(text);
        }
        if read < PATH_PIECE {
            return None;
        }
        path.extend_from_slice(piece);
    }
    None
}

//! The Zend Engine of PHP (7.4 to 8.4), without threads: which file has one, and what its frames
//! tell.
//!
//! `executor_globals` has the innermost frame (`current_execute_data`), which has a link to its
//! caller. `execute_ex` runs frames until one that was called from C.
//!
//! # Sources
//!
//! Zend/zend_compile.h (zend_execute_data, zend_op_array, zend_op, ZEND_CALL_TOP), zend_globals.h,
//! zend_types.h (zend_string), zend.h (zend_class_entry) of PHP 7.4.33, 8.0.30, 8.1.27, 8.2.36,
//! 8.3.4 and 8.4.1.

use super::{NAME_MAX, PATH_MAX, text};
use crate::python::Memory;
use crate::python::layouts::Group;
use crate::questions::{Language, RuntimeFound, RuntimeFunction};
use abi::{PYTHON_DIRECT, PythonFrame, PythonLayout, RuntimeLayout};
use image::{
    Binary, Export, ImageOffset, Layout as FileLayout, Vaddr, exports_of_file, parts_of_procedure,
};
use std::fs::File;
use std::ops::Range;

/// The symbols that are needed; the last one is there with threads alone (ZTS).
const SYMBOLS: [&str; 3] = ["executor_globals", "execute_ex", "executor_globals_offset"];
/// What stands before the version in the file's constants (main/main.c).
const VERSION_AFTER: &[u8] = b"X-Powered-By: PHP/";
/// Bytes of constants that are searched for it: PHP has 4 to 10 MiB with all that it knows.
const CONSTANTS_MAX: u64 = 32 << 20;
/// `current_execute_data` in `executor_globals`.
const CURRENT_AT: u64 = 488;
/// `ZEND_CALL_TOP` in the low half of the word (`This.u1.type_info`): C has called it.
const CALLED_FROM_C: u64 = 1 << 17;
/// `ZEND_INTERNAL_FUNCTION`; functions in PHP are 2, evaluated text 4.
const USER_FUNCTION: u8 = 2;
const EVAL_CODE: u8 = 4;
/// `lineno` in an operation.
const LINE_AT: u64 = 24;
/// The text of a string, and its length.
const TEXT_AT: u64 = 24;
const LEN_AT: u64 = 16;

/// A file with a PHP. Addresses are the file's.
#[derive(Debug)]
pub struct Program {
    globals: u64,
    loops: Vec<Range<u64>>,
    /// Offset of the file in a function, before its first and last line.
    file_at: u64,
    layout: FileLayout,
}

/// Whether a file of this name may be a PHP: `php8.2`, `php-fpm8.2`, `libphp8.2.so`.
pub fn may_be_php(name: &[u8]) -> bool {
    name.starts_with(b"php") || name.starts_with(b"libphp") || name.starts_with(b"frankenphp")
}

/// Offset of the file's name in a function of a version; None: it is not known.
fn file_at(version: (u8, u8)) -> Option<u64> {
    match version {
        (7, 4) => Some(136),
        (8, 0 | 1 | 3) => Some(144),
        (8, 2) => Some(152),
        (8, 4) => Some(168),
        _ => None,
    }
}

/// The version in a file's constants.
pub fn version_in(constants: &[u8]) -> Option<(u8, u8)> {
    let mut at = constants.windows(VERSION_AFTER.len() + 8);
    let found = at.find(|bytes| bytes.starts_with(VERSION_AFTER))?;
    let text = std::str::from_utf8(found.get(VERSION_AFTER.len()..)?).ok()?;
    let mut numbers = text.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

impl Program {
    /// The PHP of a file; None: it has none. The error says why it is of no use.
    pub fn of_file(file: &File) -> Option<Result<Self, String>> {
        let exports = exports_of_file(file, &SYMBOLS).ok()?;
        let [globals, execute, threads] = exports.try_into().ok()?;
        let Export { vaddr: Vaddr(begin), size_bytes } = execute?;
        let Some(Export { vaddr: Vaddr(globals), .. }) = globals else {
            return threads.map(|_| Err("PHP with threads (ZTS) is not known".to_owned()));
        };
        let binary = Binary::of_file(file.try_clone().ok()?).ok()?;
        let constants = binary.section(".rodata", CONSTANTS_MAX).ok()??;
        let version @ (major, minor) = version_in(&constants)?;
        let Some(file_at) = file_at(version) else {
            return Some(Err(format!("PHP {major}.{minor} is not known")));
        };
        let loops = parts_of_procedure(file, begin..begin.checked_add(size_bytes)?).ok()?;
        let layout = FileLayout::of_file(file).ok()?;
        Some(Ok(Self { globals, loops, file_at, layout }))
    }

    /// One with this offset of the file.
    #[cfg(test)]
    pub fn with(file_at: u64, layout: FileLayout) -> Self {
        Self { globals: 0, loops: Vec::new(), file_at, layout }
    }

    /// Difference between a process's addresses and the file's, where it has the byte at this
    /// offset mapped at `address`.
    pub fn bias(&self, address: u64, file_offset: u64) -> Option<u64> {
        self.layout.bias(address, ImageOffset(file_offset))
    }

    /// Where a process has its frames.
    pub fn look(&self, bias: u64) -> RuntimeFound {
        let python = PythonLayout {
            root: self.globals.wrapping_add(bias).wrapping_add(CURRENT_AT),
            id_at: PYTHON_DIRECT,
            frame_at: PYTHON_DIRECT,
            current_at: PYTHON_DIRECT,
            block_bytes: 56,
            code_at: 24,
            previous_at: 48,
            instruction_at: 0,
            flags_at: 40,
            ..PythonLayout::default()
        };
        RuntimeFound::Layout(RuntimeLayout { python, ..RuntimeLayout::default() })
    }

    /// Whether code of the loop is at this address of the file.
    pub fn is_in_loop(&self, vaddr: u64) -> bool {
        self.loops.iter().any(|part| part.contains(&vaddr))
    }

    /// The function at an address.
    pub fn function(&self, memory: &impl Memory, at: u64) -> Option<RuntimeFunction> {
        is_user(memory, at).then_some(())?;
        let word = |distance: u64| memory.word(at.checked_add(distance)?);
        let file = string(memory, word(self.file_at)?, PATH_MAX)?;
        let (first_line, _) = self.lines(memory, at)?;
        // A file's own code has no name.
        let mut name = match word(8)? {
            0 => "{main}".to_owned(),
            name => string(memory, name, NAME_MAX)?,
        };
        let class = word(16)?;
        if class != 0 {
            let class = memory.word(class.checked_add(8)?)?;
            name = format!("{}::{name}", string(memory, class, NAME_MAX)?);
        }
        Some(RuntimeFunction { language: Language::Php, file, name, first_line })
    }

    /// The first and the last line of a function.
    fn lines(&self, memory: &impl Memory, at: u64) -> Option<(u32, u32)> {
        let lines = memory.word(at.checked_add(self.file_at)?.checked_add(8)?)?;
        let (first, last) = (lines as u32, (lines >> 32) as u32);
        (first <= last && last <= i32::MAX as u32).then_some((first, last))
    }

    /// The line of a frame.
    pub fn line(&self, memory: &impl Memory, frame: &PythonFrame) -> Option<u32> {
        self.line_at(memory, frame.code, frame.instruction)
    }

    /// The line of an operation; None: it is none of this function.
    pub fn line_at(&self, memory: &impl Memory, function: u64, operation: u64) -> Option<u32> {
        if !operation.is_multiple_of(8) {
            return None;
        }
        let (first, last) = self.lines(memory, function)?;
        let line = memory.word(operation.checked_add(LINE_AT)?)? as u32;
        (first..=last).contains(&line).then_some(line)
    }
}

/// Whether a function is one in PHP: others are native frames.
fn is_user(memory: &impl Memory, at: u64) -> bool {
    let kind = if at == 0 { None } else { memory.word(at) };
    kind.is_some_and(|word| matches!(word as u8, USER_FUNCTION | EVAL_CODE))
}

/// Frames by calls of the loop, the innermost call first.
pub fn groups<'a>(memory: &impl Memory, frames: &'a [PythonFrame]) -> Vec<Group<'a>> {
    let mut groups = Vec::new();
    let mut group = Vec::new();
    for frame in frames.iter().filter(|frame| is_user(memory, frame.code)) {
        group.push(frame);
        if frame.flags & CALLED_FROM_C != 0 {
            groups.push(Group { frames: std::mem::take(&mut group), is_whole: true });
        }
    }
    if !group.is_empty() {
        groups.push(Group { frames: group, is_whole: false });
    }
    groups
}

/// The text of a string.
fn string(memory: &impl Memory, at: u64, bytes_max: u64) -> Option<String> {
    let bytes = memory.word(at.checked_add(LEN_AT)?)?;
    text(memory, at.checked_add(TEXT_AT)?, bytes, bytes_max)
}

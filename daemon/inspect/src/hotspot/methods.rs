//! Methods: names, source files and lines.

use super::layouts::{Layout, Source};
use super::numbers::Numbers;
use crate::python::Memory;

/// Longest name of a class, a method or a file, in bytes. A method with a longer one has no name.
const NAME_MAX: usize = 1024;
/// Most bytes of a table of lines that are read. A method has 64 KiB of bytecode at most, and few
/// have a table of more than 4 KiB.
const LINES_MAX: usize = 32 << 10;
/// The kind of constants that are text (JVM_CONSTANT_Utf8).
const TEXT: u8 = 1;
/// Where an array of bytes has its first one.
const ARRAY_AT: u64 = 4;

/// A method.
#[derive(Debug, PartialEq, Eq)]
pub struct Method {
    /// Its name, with its class and package.
    pub name: String,
    /// Its source file, below the folder of its package.
    pub file: String,
    /// Its least line; 0: unknown.
    pub first_line: u32,
    /// Its bytecode.
    pub bytecode: (u64, u16),
    /// The places in the bytecode where a line begins, and the lines.
    lines: Vec<(u16, u16)>,
}

impl Method {
    /// The line of a place in the bytecode: as HotSpot does (`Method::line_number_from_bci`), that
    /// of the last begin before it.
    pub fn line(&self, place: u32) -> u32 {
        let begun = self.lines.iter().filter(|(begin, _)| u32::from(*begin) <= place);
        // Of two begins at one place, the first one counts.
        let last = begun.rev().max_by_key(|(begin, _)| *begin);
        last.map_or(self.first_line, |(_, line)| u32::from(*line))
    }

    /// Bytes of memory that its name and lines take.
    pub fn bytes(&self) -> usize {
        self.name.len() + self.file.len() + 4 * self.lines.len()
    }

    /// The place in the bytecode of an address.
    pub fn place(&self, address: u64) -> Option<u32> {
        let (begin, bytes) = self.bytecode;
        let place = address.checked_sub(begin)?;
        (place < u64::from(bytes)).then_some(place as u32)
    }
}

/// What is compared before a method that was read is used again: the part that does not change, and
/// its constants, flags, sizes and name.
pub type Head = [u64; 3];

/// The head of a method that an address may be of.
pub fn head(at: u64, layout: &Layout, memory: &impl Memory) -> Option<Head> {
    let offsets = &layout.method;
    if at == 0 || !at.is_multiple_of(8) {
        return None;
    }
    let constant = memory.word(at.wrapping_add(offsets.constant))?;
    let pool = memory.word(constant.wrapping_add(offsets.pool))?;
    let name = memory.word(constant.wrapping_add(offsets.code_size))?;
    (constant.is_multiple_of(8) && pool.is_multiple_of(8) && pool != 0)
        .then_some([constant, pool, name])
}

/// Reads a method, with all that names it checked: its name is a text of its class's constants, and
/// the class has these constants.
pub fn read([constant, pool, _]: Head, layout: &Layout, memory: &impl Memory) -> Option<Method> {
    let offsets = &layout.method;
    let short = |at: u64| short(memory, at);
    let class = memory.word(pool.wrapping_add(offsets.holder))?;
    if !class.is_multiple_of(8) || memory.word(class.wrapping_add(offsets.class_pool))? != pool {
        return None;
    }
    let name = short(constant.wrapping_add(offsets.name))?;
    let name = text(pool, name, layout, memory)?;
    let class_name = memory.word(class.wrapping_add(offsets.class_name))?;
    let class_name = symbol(class_name, layout, memory)?;
    let source = match offsets.source {
        Source::Pool(at) => short(pool.wrapping_add(at))?,
        Source::Class(at) => short(class.wrapping_add(at))?,
    };
    let source = text(pool, source, layout, memory);
    let code_size = short(constant.wrapping_add(offsets.code_size))?;
    let begin = constant.wrapping_add(offsets.bytes);
    let has_lines = short(constant.wrapping_add(offsets.flags))? & offsets.has_lines != 0;
    let lines = if has_lines {
        let bytes = int(memory, constant.wrapping_add(offsets.words))?;
        let end = constant.wrapping_add(8 * u64::from(bytes));
        let table = begin.wrapping_add(code_size.into());
        lines(memory, table..end, offsets.is_nonzero)
    } else {
        Vec::new()
    };
    let class_name = without_number(&class_name);
    let name = format!("{}.{name}", class_name.replace('/', "."));
    let file = match (source, class_name.rsplit_once('/')) {
        (Some(source), Some((package, _))) => format!("{package}/{source}"),
        (Some(source), None) => source,
        (None, _) => format!("[java] {}", class_name.replace('/', ".")),
    };
    let first_line = lines.iter().map(|(_, line)| u32::from(*line)).min().unwrap_or(0);
    Some(Method { name, file, first_line, bytecode: (begin, code_size), lines })
}

/// The name of a class that the VM has made, without the number that differs from run to run:
/// `Main$$Lambda$14+0x0000000800c03200` (JDK 16 and later), `Main$$Lambda$14/0x0000000800066840`.
fn without_number(name: &str) -> &str {
    let name = name.split_once("+0x").map_or(name, |(name, _)| name);
    let name = name.split_once("/0x").map_or(name, |(name, _)| name);
    match name.find("$$Lambda$") {
        Some(at) => name.get(..at + "$$Lambda".len()).unwrap_or(name),
        None => name,
    }
}

/// The constant with this number, if it is a text.
fn text(pool: u64, number: u16, layout: &Layout, memory: &impl Memory) -> Option<String> {
    let offsets = &layout.method;
    let count = int(memory, pool.wrapping_add(offsets.length))?;
    if number == 0 || u32::from(number) >= count {
        return None;
    }
    let tags = memory.word(pool.wrapping_add(offsets.tags))?;
    let mut tag = [0];
    let at = tags.wrapping_add(ARRAY_AT + u64::from(number));
    if memory.read(at, &mut tag) != 1 || tag != [TEXT] {
        return None;
    }
    let constants = pool.wrapping_add(offsets.constants);
    symbol(memory.word(constants.wrapping_add(8 * u64::from(number)))?, layout, memory)
}

/// The text of a symbol.
fn symbol(at: u64, layout: &Layout, memory: &impl Memory) -> Option<String> {
    let [length, body] = layout.method.symbol;
    let length = usize::from(short(memory, at.wrapping_add(length))?);
    if at == 0 || length == 0 || length > NAME_MAX {
        return None;
    }
    let mut text = vec![0; length];
    if memory.read(at.wrapping_add(body), &mut text) != length {
        return None;
    }
    let text = String::from_utf8(text).ok()?;
    (!text.chars().any(char::is_control)).then_some(text)
}

/// The begins of lines in a compressed table (compressedStream.cpp, method.cpp): bytes with the
/// distances of place and line, or numbers behind 255; 0 ends it.
fn lines(memory: &impl Memory, table: std::ops::Range<u64>, is_nonzero: bool) -> Vec<(u16, u16)> {
    let len = table.end.saturating_sub(table.start);
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(LINES_MAX).min(LINES_MAX)];
    let read = memory.read(table.start, &mut bytes);
    bytes.truncate(read);
    let mut numbers = Numbers::new(&bytes, is_nonzero);
    let (mut place, mut line) = (0_i32, 0_i32);
    let mut found = Vec::new();
    while let Some(byte) = numbers.byte().filter(|byte| *byte != 0) {
        let (by, lines) = if byte == 0xff {
            match (numbers.signed(), numbers.signed()) {
                (Some(by), Some(lines)) => (by, lines),
                _ => break,
            }
        } else {
            (i32::from(byte >> 3), i32::from(byte & 7))
        };
        (place, line) = (place.wrapping_add(by), line.wrapping_add(lines));
        match (u16::try_from(place), u16::try_from(line)) {
            (Ok(place), Ok(line)) => found.push((place, line)),
            _ => return Vec::new(),
        }
    }
    found
}

fn short(memory: &impl Memory, at: u64) -> Option<u16> {
    let mut bytes = [0; 2];
    (memory.read(at, &mut bytes) == bytes.len()).then(|| u16::from_le_bytes(bytes))
}

fn int(memory: &impl Memory, at: u64) -> Option<u32> {
    let mut bytes = [0; 4];
    (memory.read(at, &mut bytes) == bytes.len()).then(|| u32::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_differ_from_run_to_run_do_not() {
        for (name, expected) in [
            ("Main$$Lambda$14+0x0000000800c03200", "Main$$Lambda"),
            ("Main$$Lambda$14/0x0000000800066840", "Main$$Lambda"),
            ("Main$$Lambda/0x00007f1c8c003200", "Main$$Lambda"),
            ("java/lang/invoke/LambdaForm$MH+0x0000000800c00400", "java/lang/invoke/LambdaForm$MH"),
            ("java/util/HashMap$Node", "java/util/HashMap$Node"),
        ] {
            assert_eq!(without_number(name), expected);
        }
    }
}

//! Scripts: their paths, and the lines of positions.

use super::objects::{Heap, object, smi};
use crate::python::Memory;

/// Longest name of a script, in UTF-16 units. The functions of a script with a longer one have no
/// name.
const NAME_MAX: u64 = 4096;
/// Longest source whose lines are counted, in UTF-16 units: bundles of large applications have ten
/// million. Lines of longer ones are not known.
const SOURCE_MAX: u64 = 16 << 20;
/// Lines of a script that are known; those of positions beyond are not.
const LINES_MAX: usize = 1 << 18;

/// A script.
#[derive(Debug, Default)]
pub struct Script {
    /// The path of its file, or what its name is instead.
    pub file: String,
    /// The line that it begins in, from 0 on.
    first_line: u32,
    /// Positions of its line ends, which increase; None: they cannot be read.
    line_ends: Option<Vec<u32>>,
    /// Units whose lines were counted.
    pub counted: usize,
}

impl Script {
    /// Reads the script at an address, if there is one. `units_max` are the units of source that
    /// may be read.
    pub fn read(heap: &Heap<'_, impl Memory>, address: u64, units_max: u64) -> Option<Self> {
        let [source, name, line_offset, line_ends] = heap.layout.script;
        heap.is(address, heap.layout.types.script).then_some(())?;
        let name = heap.word(address, name)?;
        let is_text = object(name)
            .and_then(|name| heap.kind(name))
            .is_some_and(|kind| kind < heap.layout.strings.first_other);
        let file = if is_text { path(&heap.text(name, NAME_MAX)?) } else { NAMELESS.to_owned() };
        let first_line = smi(heap.word(address, line_offset)?)?;
        let mut script = Self {
            file,
            // A line before the first is of a wrapper.
            first_line: u32::try_from(first_line).unwrap_or(0),
            ..Self::default()
        };
        if let Some(known) = heap.field(address, line_ends).and_then(|ends| array(heap, ends)) {
            script.line_ends = Some(known);
            return Some(script);
        }
        let source = heap.word(address, source)?;
        let length = object(source).and_then(|it| heap.half(it, heap.layout.string_length));
        let length = u64::from(length.unwrap_or(0));
        if length <= SOURCE_MAX {
            // Another question may read it.
            (length <= units_max).then_some(())?;
            script.line_ends = script.count_lines(heap, source, length);
        }
        Some(script)
    }

    fn count_lines(
        &mut self,
        heap: &Heap<'_, impl Memory>,
        source: u64,
        max: u64,
    ) -> Option<Vec<u32>> {
        let (mut ends, mut at) = (Vec::new(), 0_u32);
        let mut was_return = false;
        let counted = heap.units(source, max, |unit| {
            // IsLineTerminatorSequence (src/strings/char-predicates.h): a carriage return before a
            // line feed ends no line.
            if was_return && unit != 0x0a && ends.len() < LINES_MAX {
                ends.push(at.saturating_sub(1));
            }
            was_return = unit == 0x0d;
            if matches!(unit, 0x0a | 0x2028 | 0x2029) && ends.len() < LINES_MAX {
                ends.push(at);
            }
            at = at.saturating_add(1);
        });
        self.counted = at as usize;
        counted.map(|()| ends)
    }

    /// The line of a position, from 1 on; 0: not known.
    pub fn line(&self, position: u32) -> u32 {
        match &self.line_ends {
            Some(ends) if ends.len() < LINES_MAX => {
                let before = ends.partition_point(|end| *end < position) as u32;
                self.first_line.saturating_add(before).saturating_add(1)
            }
            _ => 0,
        }
    }

    /// Bytes that it takes, about.
    pub fn bytes(&self) -> usize {
        self.file.len() + 4 * self.line_ends.as_ref().map_or(0, Vec::len)
    }
}

/// The file of scripts without a name: of `eval` and `new Function`.
const NAMELESS: &str = "<eval>";

/// The integers of an array of line ends, which V8 makes when it first needs a line.
fn array(heap: &Heap<'_, impl Memory>, address: u64) -> Option<Vec<u32>> {
    let [length, elements] = heap.layout.array;
    heap.is(address, heap.layout.types.array).then_some(())?;
    let length = usize::try_from(smi(heap.word(address, length)?)?).ok()?;
    (1..LINES_MAX).contains(&length).then_some(())?;
    let mut bytes = vec![0; 8 * length];
    let at = address.checked_add(elements)?;
    (heap.memory.read(at, &mut bytes) == bytes.len()).then_some(())?;
    let words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
    let ends: Vec<u32> = words
        .map(|word| smi(word).and_then(|end| u32::try_from(end).ok()))
        .collect::<Option<_>>()?;
    ends.is_sorted().then_some(ends)
}

/// The path that a name of a script stands for: modules have URLs.
fn path(name: &str) -> String {
    let Some(rest) = name.strip_prefix("file://") else { return name.to_owned() };
    let mut bytes = Vec::with_capacity(rest.len());
    let mut left = rest.as_bytes();
    while let Some((byte, rest)) = left.split_first() {
        let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match escaped.filter(|_| *byte == b'%') {
            Some(escaped) => {
                bytes.push(escaped);
                left = rest.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*byte);
                left = rest;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_files_are_paths() {
        assert_eq!(path("/x/a.js"), "/x/a.js");
        assert_eq!(path("file:///x/a%20b.mjs"), "/x/a b.mjs");
        assert_eq!(path("file:///x/%C3%A4%"), "/x/ä%");
        assert_eq!(path("file:///x/%ff"), "file:///x/%ff", "no text");
        assert_eq!(path("node:internal/timers"), "node:internal/timers");
    }

    #[test]
    fn lines_begin_behind_line_ends() {
        let line_ends = Some(vec![3, 3 + 5]);
        let script = Script { first_line: 10, line_ends, ..Script::default() };
        assert_eq!([0, 3, 4, 8, 9].map(|at| script.line(at)), [11, 11, 12, 12, 13]);
        assert_eq!(Script::default().line(7), 0);
    }
}

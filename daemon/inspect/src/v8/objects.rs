//! Words and objects of a process's heap.

use super::layouts::{Layout, Strings};
use crate::python::Memory;
use std::cell::RefCell;
use std::collections::HashMap;

/// End of the addresses that programs use: 47 bits on x86-64, 48 on arm64.
const ADDRESSES_END: u64 = 1 << 48;
/// Types of objects that are remembered during one question.
const MAPS_MAX: usize = 4096;
/// Strings that one string may consist of: a source file with a wrapper has three.
const PARTS_MAX: usize = 256;
/// Characters that are read at once.
const PIECE_CHARS: u64 = 16 << 10;

/// A process's heap. Pointers have the tag of objects, 1, in their low two bits (`kHeapObjectTag`);
/// integers (Smi) are the upper half of a word whose lower half is 0 (include/v8-internal.h,
/// without pointer compression).
pub struct Heap<'a, M> {
    /// The process's memory.
    pub memory: &'a M,
    /// Its V8.
    pub layout: &'a Layout,
    /// Types by map: the first word of an object.
    types: RefCell<HashMap<u64, u16>>,
}

/// The address of the object that a word points to.
pub fn object(word: u64) -> Option<u64> {
    let address = word.wrapping_sub(1);
    (word & 3 == 1 && address.is_multiple_of(8) && address < ADDRESSES_END).then_some(address)
}

/// The integer that a word is.
pub fn smi(word: u64) -> Option<i32> {
    (word as u32 == 0).then_some((word >> 32) as u32 as i32)
}

impl<'a, M: Memory> Heap<'a, M> {
    /// Types are read anew.
    pub fn new(memory: &'a M, layout: &'a Layout) -> Self {
        Self { memory, layout, types: RefCell::default() }
    }

    /// A word of the object at an address.
    pub fn word(&self, address: u64, offset: u64) -> Option<u64> {
        self.memory.word(address.checked_add(offset)?)
    }

    /// 32 bits of the object at an address.
    pub fn half(&self, address: u64, offset: u64) -> Option<u32> {
        let mut half = [0; 4];
        let read = self.memory.read(address.checked_add(offset)?, &mut half);
        (read == half.len()).then(|| u32::from_le_bytes(half))
    }

    /// The object that a word of the object at an address points to.
    pub fn field(&self, address: u64, offset: u64) -> Option<u64> {
        object(self.word(address, offset)?)
    }

    /// The type of the object at an address: a number of V8's InstanceType.
    pub fn kind(&self, address: u64) -> Option<u16> {
        let map = self.word(address, 0)?;
        if let Some(kind) = self.types.borrow().get(&map) {
            return Some(*kind);
        }
        let mut kind = [0; 2];
        let at = object(map)?.checked_add(self.layout.map_instance_type)?;
        (self.memory.read(at, &mut kind) == kind.len()).then_some(())?;
        let kind = u16::from_le_bytes(kind);
        let mut types = self.types.borrow_mut();
        if types.len() < MAPS_MAX {
            types.insert(map, kind);
        }
        Some(kind)
    }

    /// Whether the object at an address is of this type.
    pub fn is(&self, address: u64, kind: u16) -> bool {
        self.kind(address) == Some(kind)
    }

    /// Gives each UTF-16 unit of a string to `each`. None: it is no string, has more than `max`
    /// units, or cannot be read.
    pub fn units(&self, string: u64, max: u64, mut each: impl FnMut(u16)) -> Option<()> {
        let mut left = max;
        // String, first unit, number of units; the last is next.
        let mut parts = vec![(string, 0_u64, None)];
        for _ in 0..PARTS_MAX {
            let Some((word, from, count)) = parts.pop() else { return Some(()) };
            let address = object(word)?;
            let kind = self.kind(address)?;
            let Strings { first_other, representations, cons, sliced, thin, external, .. } =
                self.layout.strings;
            if kind >= first_other {
                return None;
            }
            let length = u64::from(self.half(address, self.layout.string_length)?);
            let count = count.unwrap_or(length);
            let of_parts = kind & representations;
            if of_parts == cons {
                // A part of such a string is a string of another kind.
                (from == 0 && count == length).then_some(())?;
                let [first, second] = self.layout.cons_string;
                parts.push((self.word(address, second)?, 0, None));
                parts.push((self.word(address, first)?, 0, None));
            } else if of_parts == thin {
                parts.push((self.word(address, self.layout.thin_string)?, from, Some(count)));
            } else if of_parts == sliced {
                let [parent, offset] = self.layout.sliced_string;
                let offset = u64::try_from(smi(self.word(address, offset)?)?).ok()?;
                let from = from.checked_add(offset)?;
                parts.push((self.word(address, parent)?, from, Some(count)));
            } else {
                (from.checked_add(count)? <= length).then_some(())?;
                left = left.checked_sub(count)?;
                let begin = self.characters(address, kind, of_parts == external)?;
                self.flat_units((begin, kind), (from, count), &mut each)?;
            }
        }
        None
    }

    /// The address of the characters of a string in one part.
    fn characters(&self, address: u64, kind: u16, is_external: bool) -> Option<u64> {
        let strings = self.layout.strings;
        if is_external {
            // Without this bit the string has the address of its characters.
            let has_address = kind & strings.uncached == 0;
            let data = self.layout.external_string.checked_add(8)?;
            return self.word(address, data).filter(|at| has_address && *at < ADDRESSES_END);
        }
        (kind & strings.representations == strings.sequential).then_some(())?;
        address.checked_add(self.layout.string_characters)
    }

    fn flat_units(
        &self,
        (begin, kind): (u64, u16),
        (from, count): (u64, u64),
        each: &mut impl FnMut(u16),
    ) -> Option<()> {
        let strings = self.layout.strings;
        let unit_bytes = if kind & strings.encodings == strings.one_byte { 1 } else { 2 };
        let mut bytes = Vec::new();
        let mut done = 0;
        while done < count {
            let piece = (count - done).min(PIECE_CHARS);
            bytes.resize(usize::try_from(piece * unit_bytes).ok()?, 0);
            let at = begin.checked_add(from.checked_add(done)?.checked_mul(unit_bytes)?)?;
            (self.memory.read(at, &mut bytes) == bytes.len()).then_some(())?;
            match unit_bytes {
                1 => bytes.iter().for_each(|byte| each(u16::from(*byte))),
                _ => {
                    let units = bytes.as_chunks().0;
                    units.iter().for_each(|unit| each(u16::from_le_bytes(*unit)));
                }
            }
            done += piece;
        }
        Some(())
    }

    /// The text of a string of at most `max` UTF-16 units. None for halves of characters.
    pub fn text(&self, string: u64, max: u64) -> Option<String> {
        let mut units = Vec::new();
        self.units(string, max, |unit| units.push(unit))?;
        String::from_utf16(&units).ok()
    }
}

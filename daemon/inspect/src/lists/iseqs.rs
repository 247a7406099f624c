//! Functions and lines of CRuby, from its instruction sequences (iseq).
//!
//! # Sources
//!
//! vm_core.h (rb_iseq_struct, rb_iseq_constant_body, rb_iseq_location_t), iseq.h
//! (iseq_insn_info_entry), iseq.c (succ_index_lookup, get_insn_info_succinct), internal/imemo.h,
//! include/ruby/internal/core/{rstring,rarray,rbasic}.h of Ruby 3.0.6, 3.1.2, 3.2.2, 3.3.0
//! and 3.4.1.

use super::{NAME_MAX, PATH_MAX, text};
use crate::python::Memory;

/// `T_STRING`, `T_ARRAY` and `T_IMEMO` in the low five bits of an object's flags.
const STRING: u64 = 0x05;
const ARRAY: u64 = 0x07;
const IMEMO: u64 = 0x1a;
/// `imemo_iseq`, in the four bits from 12 on.
const IMEMO_ISEQ: u64 = 7;
/// Bit 13 (`FL_USER1`): a string's text is elsewhere (`RSTRING_NOEMBED`), an array's elements are
/// in the object (`RARRAY_EMBED_FLAG`).
const USER1: u64 = 1 << 13;
/// Offsets of an iseq's body, of the instructions and of the location in a body.
const BODY_AT: u64 = 16;
const ENCODED_AT: u64 = 8;
const LOCATION_AT: u64 = 64;
/// Largest number of entries in a table of lines, and of words of a function.
const ENTRIES_MAX: u64 = 1 << 20;
const WORDS_MAX: u64 = 1 << 24;
/// Instructions whose ranks are in the head of a table of lines (`IMMEDIATE_TABLE_SIZE`), and the
/// number of one word of these.
const IMMEDIATE: u64 = 54;
const IMMEDIATE_EACH: u64 = 9;
/// Instructions of a further block (`struct succ_dict_block`), and its bytes.
const BLOCK_INSTRUCTIONS: u64 = 512;
const BLOCK_BYTES: u64 = 80;

/// A version's structures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// In a body: the table of lines, its number of entries, and the index of instructions.
    lines: u64,
    lines_len: u64,
    index: u64,
    /// Bytes of an entry of the table.
    entry_bytes: u64,
    /// The first line is a number of Ruby's, not one of C.
    is_fixnum: bool,
    /// A string has its length behind its head even where its bytes are in the object itself (Ruby
    /// 3.2 and later); before, the length of such a string was in the head's flags.
    has_len: bool,
}

impl Layout {
    /// Of a version, which is known.
    pub fn of(version: (u8, u8)) -> Self {
        let is_new = version >= (3, 2);
        let lines = if is_new { 112 } else { 120 };
        Self {
            lines,
            lines_len: lines + 16,
            index: lines + 24,
            entry_bytes: if version >= (3, 1) { 12 } else { 8 },
            is_fixnum: !is_new,
            has_len: is_new,
        }
    }
}

/// The body of the iseq at an address. None: there is none.
fn body(memory: &impl Memory, iseq: u64) -> Option<u64> {
    let flags = memory.word(iseq)?;
    let is_iseq = flags & 0x1f == IMEMO && flags >> 12 & 0xf == IMEMO_ISEQ;
    memory.word(iseq.checked_add(BODY_AT)?).filter(|body| is_iseq && *body != 0)
}

/// The word at a distance from an address.
fn word_at(memory: &impl Memory, at: u64, distance: u64) -> Option<u64> {
    memory.word(at.checked_add(distance)?)
}

/// The address of the code that runs the function's first instruction.
pub fn first_handler(memory: &impl Memory, iseq: u64) -> Option<u64> {
    let encoded = word_at(memory, body(memory, iseq)?, ENCODED_AT)?;
    memory.word(encoded)
}

/// The name, the file and the first line of an iseq.
pub fn function(memory: &impl Memory, iseq: u64, layout: &Layout) -> Option<(String, String, u32)> {
    let location = body(memory, iseq)?.checked_add(LOCATION_AT)?;
    let path = path(memory, memory.word(location)?, layout)?;
    let label = string(memory, word_at(memory, location, 16)?, NAME_MAX, layout)?;
    let line = word_at(memory, location, 24)?;
    let line = match layout.is_fixnum {
        true => line >> 1,
        false => line & 0xffff_ffff,
    };
    // The code of a command line begins at line 0.
    let line = u32::try_from(line).ok().filter(|line| *line <= i32::MAX as u32)?;
    Some((label, path, line))
}

/// The path of a file: a text, or an array of the path as it was told and the real one.
fn path(memory: &impl Memory, at: u64, layout: &Layout) -> Option<String> {
    let flags = memory.word(at)?;
    if flags & 0x1f == STRING {
        return string(memory, at, PATH_MAX, layout);
    }
    if flags & 0x1f != ARRAY {
        return None;
    }
    let elements = match flags & USER1 {
        0 => word_at(memory, at, 32)?,
        _ => at.checked_add(16)?,
    };
    let of = |at: Option<u64>| string(memory, at?, PATH_MAX, layout);
    // There is no real path of a text that is evaluated.
    of(word_at(memory, elements, 8)).or_else(|| of(memory.word(elements)))
}

/// The text of a string.
fn string(memory: &impl Memory, at: u64, bytes_max: u64, layout: &Layout) -> Option<String> {
    let flags = memory.word(at)?;
    if flags & 0x1f != STRING {
        return None;
    }
    let is_elsewhere = flags & USER1 != 0;
    let (begin, bytes) = match (is_elsewhere, layout.has_len) {
        (true, _) => (word_at(memory, at, 24)?, word_at(memory, at, 16)?),
        (false, true) => (at.checked_add(24)?, word_at(memory, at, 16)?),
        // Bits 14 to 18 (`RSTRING_EMBED_LEN_MASK`).
        (false, false) => (at.checked_add(16)?, flags >> 14 & 0x1f),
    };
    text(memory, begin, bytes, bytes_max)
}

/// The line of the instruction before `pc`.
pub fn line(memory: &impl Memory, (iseq, pc): (u64, u64), layout: &Layout) -> Option<u32> {
    let body = body(memory, iseq)?;
    let encoded = word_at(memory, body, ENCODED_AT)?;
    let words = word_at(memory, body, 0)? >> 32;
    let place = pc.checked_sub(encoded)? / 8;
    if words > WORDS_MAX || place > words {
        return None;
    }
    let entries = word_at(memory, body, layout.lines_len)? & 0xffff_ffff;
    let table = word_at(memory, body, layout.lines)?;
    // A frame has gone to the next instruction, unless it has not begun.
    let number = match entries {
        0 => return None,
        1 => 0,
        _ => {
            let index = word_at(memory, body, layout.index)?;
            rank(memory, index, place.saturating_sub(1))?.checked_sub(1)?
        }
    };
    if entries > ENTRIES_MAX || number >= entries {
        return None;
    }
    let line = word_at(memory, table, number.checked_mul(layout.entry_bytes)?)? & 0xffff_ffff;
    u32::try_from(line).ok().filter(|line| *line <= i32::MAX as u32)
}

/// How many entries of the table of lines begin up to the instruction at `place`.
fn rank(memory: &impl Memory, index: u64, place: u64) -> Option<u64> {
    let Some(place) = place.checked_sub(IMMEDIATE) else {
        let word = word_at(memory, index, 8 * (place / IMMEDIATE_EACH))?;
        return Some(word >> (7 * (place % IMMEDIATE_EACH)) & 0x7f);
    };
    let blocks = 8 * (IMMEDIATE / IMMEDIATE_EACH);
    let block = index.checked_add(blocks + BLOCK_BYTES * (place / BLOCK_INSTRUCTIONS))?;
    let (small, bit) = (place % BLOCK_INSTRUCTIONS / 64, place % 64);
    let before = memory.word(block)? & 0xffff_ffff;
    let in_block = match small.checked_sub(1) {
        Some(small) => word_at(memory, block, 8)? >> (9 * small) & 0x1ff,
        None => 0,
    };
    let bits = word_at(memory, block, 16 + 8 * small)?;
    Some(before + in_block + u64::from((bits << (63 - bit)).count_ones()))
}

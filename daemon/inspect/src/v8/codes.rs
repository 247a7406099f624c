//! Functions that are inlined where optimised code makes a call.
//!
//! Optimised code has a table of positions of its calls. Such a position names the place in a list
//! of inlined calls, if it is in one, and that place names a function and the position of the call
//! that was inlined (src/codegen/source-position.h, src/objects/deoptimization-data.h; `struct
//! InliningPosition`). Where code makes no call, the table says nothing: which function an
//! instruction is of is not known there.

use super::layouts::CodeLayout;
use super::objects::{Heap, object, smi};
use super::positions;
use crate::python::Memory;

/// Bytes of code of one function.
const CODE_BYTES_MAX: u32 = 64 << 20;
/// Longest table of positions or of inlined calls that is read, in bytes.
const TABLE_BYTES_MAX: usize = 1 << 20;
/// Calls that are inlined into each other.
const INLINED_MAX: usize = 32;
/// Bytes of an inlined call: its position, and the number of its function.
const CALL_BYTES: usize = 16;

/// Instructions that a compiler has made of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// Address of the object that has its tables.
    pub object: u64,
    /// Address of the first instruction.
    pub start: u64,
    /// Bytes of instructions.
    pub size: u32,
    /// Sparkplug made it.
    pub is_baseline: bool,
}

/// The code of an object, if an address is there.
pub fn at(
    object: u64,
    address: u64,
    layout: &CodeLayout,
    heap: &Heap<'_, impl Memory>,
) -> Option<Code> {
    heap.is(object, heap.layout.types.code).then_some(())?;
    let start = match layout.is_address {
        true => heap.word(object, layout.start)?,
        false => object.checked_add(layout.start)?,
    };
    let size = heap.half(object, layout.size)?;
    let is_within = address.checked_sub(start)? < u64::from(size) && size < CODE_BYTES_MAX;
    let kind = heap.half(object, layout.flags)? & layout.kind_mask;
    let is_baseline = kind == layout.baseline;
    is_within.then_some(Code { object, start, size, is_baseline })
}

/// The functions that are inlined at a distance from the begin of code, innermost first, without
/// the one whose code it is. None: the code's tables cannot be read.
pub fn inlined(
    code: u64,
    offset: u32,
    layout: &CodeLayout,
    heap: &Heap<'_, impl Memory>,
) -> Option<Vec<u64>> {
    let table = bytes(heap, heap.field(code, layout.positions)?)?;
    let Some(mut place) = positions::entry(&table, offset) else { return Some(Vec::new()) };
    let mut functions = Vec::new();
    if positions::inlining(place) == 0 {
        return Some(functions);
    }
    let data = heap.field(code, layout.deoptimization)?;
    let [length, elements] = heap.layout.array;
    let count = u64::try_from(smi(heap.word(data, length)?)?).ok()?;
    let element = |number: u64| {
        (number < count).then_some(())?;
        heap.field(data, number.checked_mul(8)?.checked_add(elements)?)
    };
    let (literals, calls) = (element(layout.literals)?, bytes(heap, element(layout.calls)?)?);
    let literals_count = u64::try_from(smi(heap.word(literals, length)?)?).ok()?;
    loop {
        let number = positions::inlining(place);
        let Some(number) = number.checked_sub(1) else { return Some(functions) };
        (functions.len() < INLINED_MAX).then_some(())?;
        let call = calls.get(usize::from(number) * CALL_BYTES..)?.first_chunk::<CALL_BYTES>()?;
        let (position, function) = call.split_first_chunk::<8>()?;
        let function = u64::from(u32::from_le_bytes(*function.first_chunk()?));
        (function < literals_count).then_some(())?;
        let word = heap.word(literals, elements.checked_add(function.checked_mul(8)?)?)?;
        // A weak pointer has another tag.
        let shared = object(word).or_else(|| object(word.wrapping_sub(2)))?;
        heap.is(shared, heap.layout.types.shared).then_some(())?;
        functions.push(shared | 1);
        place = i64::from_le_bytes(*position);
        // Calls are listed after those that they are inlined into.
        (positions::inlining(place) <= number).then_some(())?;
    }
}

/// The bytes of an array of bytes.
fn bytes(heap: &Heap<'_, impl Memory>, address: u64) -> Option<Vec<u8>> {
    let [length, elements] = heap.layout.array;
    heap.layout.types.bytes.contains(&heap.kind(address)?).then_some(())?;
    let length = usize::try_from(smi(heap.word(address, length)?)?).ok()?;
    (length < TABLE_BYTES_MAX).then_some(())?;
    let mut bytes = vec![0; length];
    let at = address.checked_add(elements)?;
    (heap.memory.read(at, &mut bytes) == bytes.len()).then_some(bytes)
}

//! Methods that are inlined in compiled code: which of them are active at an instruction.
//!
//! The VM keeps descriptions of the places in compiled code where it may have to know the state of
//! the methods: calls, and questions whether to stop. A description has the innermost method, its
//! place in the bytecode, and where the description of its caller is
//! (src/hotspot/share/code/{pcDesc,scopeDesc,debugInfoRec}.hpp).

use super::code_cache::{Blob, CodeCache};
use super::layouts::{CodeAt, Scopes};
use super::numbers::Numbers;
use crate::python::Memory;

/// Most methods inlined in each other. HotSpot inlines 15 deep, and recursion once more.
const DEEP_MAX: usize = 64;
/// Bytes of a description that are read: three numbers.
const HEAD_BYTES: usize = 15;
/// Most descriptions of a piece of code.
const PLACES_MAX: u64 = 1 << 20;
/// Bytes of the entry of a place: its offset in the code, where its description is, and more.
const PLACE_BYTES: u64 = 16;

/// A method that is active, and its place in the bytecode; a negative place is its begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Active {
    /// Its address.
    pub method: u64,
    /// Its place in the bytecode.
    pub place: i32,
}

/// The tables of a piece of code.
struct Tables {
    /// The first place, and the number of places.
    places: (u64, u64),
    descriptions: u64,
    methods: u64,
}

/// The methods that are active at a call in compiled code, innermost first: `address` is that of
/// the instruction behind the call. None: nothing is known of the place.
pub fn at_call<M: Memory>(cache: &CodeCache<M>, blob: &Blob, address: u64) -> Option<Vec<Active>> {
    let tables = tables(cache, blob)?;
    let offset = i32::try_from(address.checked_sub(blob.code)?).ok()?;
    let (at, found) = search(cache, &tables, offset)?;
    (found == offset).then_some(())?;
    chain(cache, &tables, at)
}

/// The methods that are probably active at an instruction, innermost first: those at the place that
/// it comes to next. A loop has its place, where it asks whether to stop, at its end, so that its
/// body is the loop's; what follows a place may be the method's that was called there, too. JFR has
/// the same rule (`CodeBlob::pc_desc_near`, src/hotspot/share/code/nmethod.cpp).
pub fn ahead<M: Memory>(cache: &CodeCache<M>, blob: &Blob, address: u64) -> Option<Vec<Active>> {
    let tables = tables(cache, blob)?;
    let offset = i32::try_from(address.checked_sub(blob.code)?).ok()?;
    let (at, _) = search(cache, &tables, offset)?;
    chain(cache, &tables, at)
}

fn tables<M: Memory>(cache: &CodeCache<M>, blob: &Blob) -> Option<Tables> {
    let (memory, layout) = (&cache.memory, &cache.layout);
    let int = |at: u64| {
        let mut bytes = [0; 4];
        let is_read = memory.read(blob.start.wrapping_add(at), &mut bytes) == bytes.len();
        is_read.then(|| u64::from(u32::from_le_bytes(bytes)))
    };
    let word = |at: u64| memory.word(blob.start.wrapping_add(at));
    let (first, end, descriptions, methods) = match &layout.scopes {
        Scopes::InBlob { places, places_end, descriptions, methods } => {
            let descriptions = match *descriptions {
                CodeAt::Address(at) => word(at)?,
                CodeAt::Offset(at) => blob.start.wrapping_add(int(at)?),
            };
            let at = |offset: u64| Some(blob.start.wrapping_add(int(offset)?));
            (at(*places)?, at(*places_end)?, descriptions, at(*methods)?)
        }
        Scopes::Apart { data, places, descriptions, mutable, relocation } => {
            let data = word(*data)?;
            let (first, end) = (int(*places)?, int(*descriptions)?);
            let methods = word(*mutable)?.wrapping_add(int(*relocation)?);
            (data.wrapping_add(first), data.wrapping_add(end), data.wrapping_add(end), methods)
        }
    };
    let count = end.checked_sub(first)? / PLACE_BYTES;
    let is_likely = (2..PLACES_MAX).contains(&count);
    is_likely.then_some(Tables { places: (first, count), descriptions, methods })
}

/// The first place at an offset or behind it, with its own offset. The first entry and the last one
/// stand for what is before and behind the code.
fn search<M: Memory>(cache: &CodeCache<M>, tables: &Tables, offset: i32) -> Option<(u64, i32)> {
    let (first, count) = tables.places;
    let of = |number: u64| {
        let mut bytes = [0; 4];
        let at = first.wrapping_add(number * PLACE_BYTES);
        (cache.memory.read(at, &mut bytes) == bytes.len()).then(|| i32::from_le_bytes(bytes))
    };
    let (mut low, mut high) = (1, count - 1);
    while low < high {
        let middle = low + (high - low) / 2;
        if of(middle)? < offset {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    (low < count - 1).then_some(())?;
    Some((first.wrapping_add(low * PLACE_BYTES), of(low)?))
}

/// The methods of a place.
fn chain<M: Memory>(cache: &CodeCache<M>, tables: &Tables, place: u64) -> Option<Vec<Active>> {
    let memory = &cache.memory;
    let mut next = [0; 4];
    (memory.read(place.wrapping_add(4), &mut next) == next.len()).then_some(())?;
    let mut next = u32::from_le_bytes(next);
    let mut found = Vec::new();
    while next != 0 && found.len() < DEEP_MAX {
        let mut bytes = [0; HEAD_BYTES];
        let read = memory.read(tables.descriptions.wrapping_add(next.into()), &mut bytes);
        let mut numbers = Numbers::new(bytes.get(..read)?, cache.layout.method.is_nonzero);
        let (caller, method) = (numbers.unsigned()?, numbers.unsigned()?);
        // The place is one more: -1 is the begin.
        let place = numbers.unsigned()?.wrapping_sub(1).cast_signed();
        let number = u64::from(method.checked_sub(1)?);
        let method = memory.word(tables.methods.wrapping_add(8 * number))?;
        found.push(Active { method, place });
        next = caller;
    }
    (!found.is_empty()).then_some(found)
}

//! Calls that are part of a trace. A trace has a *snapshot* of the Lua stack for each place where
//! it may be left, with the links between the calls, and the instruction to go on with.

use super::functions::Proto;
use super::places::{Link, Place, TraceCalls};
use super::trace::Trace;
use crate::python::Memory;

/// Bytes of a snapshot's description (`SnapShot`).
const SNAPSHOT_BYTES: usize = 12;
/// Most constants of a trace that are read, of 8 bytes each.
const CONSTANTS_MAX: u32 = 1 << 12;
/// Most functions of a trace.
const FUNCTIONS_MAX: usize = 256;
/// The number that instructions are counted from; constants are below (`REF_BIAS`).
const FIRST: u32 = 0x8000;
/// Bits of an entry: it is the link of a call.
const IS_LINK: u32 = 0x01_0000;
/// Entries behind those of a snapshot, with its instruction.
const ENTRIES_BEHIND: u32 = 2;
/// Slot of a trace that is the base of the function in which it begins.
const BASE_SLOT: u32 = 2;
/// Bytes of an instruction.
const INSTRUCTION: u64 = 4;

/// A snapshot's description.
struct Snapshot {
    entries_at: u32,
    code_at: u16,
    entries: u32,
}

fn snapshots(memory: &impl Memory, trace: &Trace) -> Option<Vec<Snapshot>> {
    let (count, at) = trace.snapshots;
    let mut bytes = vec![0; SNAPSHOT_BYTES * usize::from(count)];
    (memory.read(at, &mut bytes) == bytes.len()).then_some(())?;
    let read = |bytes: &[u8; SNAPSHOT_BYTES]| {
        let [a, b, c, d, _, _, low, high, _, _, entries, _] = *bytes;
        Snapshot {
            entries_at: u32::from_le_bytes([a, b, c, d]),
            code_at: u16::from_le_bytes([low, high]),
            entries: entries.into(),
        }
    };
    let all: Vec<Snapshot> = bytes.as_chunks().0.iter().map(read).collect();
    // Without the places in the code the fields lie otherwise.
    let ends = all.iter().skip(1).map(|next| next.entries_at).chain([trace.entries.0]);
    let is_one = |(snapshot, end): (&Snapshot, u32)| {
        snapshot.entries_at.checked_add(snapshot.entries + ENTRIES_BEHIND) == Some(end)
    };
    all.iter().zip(ends).all(is_one).then_some(all)
}

/// The functions that a trace names among its constants.
fn functions(memory: &impl Memory, trace: &Trace, constants: &[u64]) -> Vec<Proto> {
    let mut all: Vec<Proto> = Proto::read(memory, trace.begins_in).into_iter().collect();
    for constant in constants {
        if all.len() >= FUNCTIONS_MAX {
            break;
        }
        let found =
            Proto::read(memory, *constant).or_else(|| Proto::of_function(memory, *constant));
        all.extend(found);
    }
    all
}

/// The calls of a trace at an address in its code. None: they cannot be read.
pub fn calls_at(memory: &impl Memory, trace: &Trace, address: u64) -> Option<TraceCalls> {
    let into = address.checked_sub(trace.code)?;
    let snapshots = snapshots(memory, trace)?;
    let begun = snapshots.iter().take_while(|it| u64::from(it.code_at) <= into);
    let snapshot = begun.last().or(snapshots.first())?;
    let count = usize::try_from(snapshot.entries + ENTRIES_BEHIND).ok()?;
    let mut bytes = vec![0; 4 * count];
    let at = trace.entries.1.checked_add(4 * u64::from(snapshot.entries_at))?;
    (memory.read(at, &mut bytes) == bytes.len()).then_some(())?;
    let words = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
    let words: Vec<u32> = words.collect();
    let (entries, behind) = words.split_at_checked(snapshot.entries as usize)?;
    let [low, high] = *behind else { return None };
    let next = (u64::from(high) << 32 | u64::from(low)) >> 8;
    let next = next.checked_add(INSTRUCTION)?;
    let links: Vec<u32> = entries
        .iter()
        .copied()
        .filter(|entry| entry & IS_LINK != 0 && entry >> 24 >= BASE_SLOT)
        .collect();
    if links.is_empty() {
        return Some(TraceCalls { calls: Vec::new(), place: Place::at(next) });
    }
    let (instructions, first) = trace.instructions;
    let first = first.max(FIRST - CONSTANTS_MAX);
    let mut bytes = vec![0; 8 * usize::try_from(FIRST.checked_sub(first)?).ok()?];
    let at = instructions.checked_add(8 * u64::from(first))?;
    (memory.read(at, &mut bytes) == bytes.len()).then_some(())?;
    let constants = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
    let constants: Vec<u64> = constants.collect();
    // A constant of 64 bits is behind its description.
    let value = |slot: u32| {
        let entry = entries.iter().find(|entry| **entry >> 24 == slot)?;
        let place = (entry & 0xffff).checked_sub(first)? + 1;
        constants.get(place as usize).copied()
    };
    let functions = functions(memory, trace, &constants);
    let mut calls = TraceCalls { calls: Vec::new(), place: Place::at(next) };
    for link in links.iter().rev() {
        let slot = link >> 24;
        let link = Link(value(slot)?);
        let function = functions.iter().find(|it| it.has(calls.place.next));
        calls.calls.extend(function.and_then(|function| calls.place.call(function.at)));
        let continued = slot.checked_sub(2).and_then(value);
        calls.place.leave(link, continued.unwrap_or(0));
    }
    Some(calls)
}

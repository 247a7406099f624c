//! The tables that HotSpot has for its serviceability agent: offsets of fields, sizes of types and
//! constants, in the memory of a process (`src/hotspot/share/runtime/vmStructs.hpp`).

use crate::python::Memory;
use std::collections::HashMap;

/// The exported symbols: of structures the first entry, and where an entry has its parts; likewise
/// of types and constants.
pub const SYMBOLS: [&str; 13] = [
    "gHotSpotVMStructs",
    "gHotSpotVMStructEntryTypeNameOffset",
    "gHotSpotVMStructEntryFieldNameOffset",
    "gHotSpotVMStructEntryOffsetOffset",
    "gHotSpotVMStructEntryAddressOffset",
    "gHotSpotVMStructEntryArrayStride",
    "gHotSpotVMTypes",
    "gHotSpotVMTypeEntryTypeNameOffset",
    "gHotSpotVMTypeEntrySizeOffset",
    "gHotSpotVMTypeEntryArrayStride",
    "gHotSpotVMIntConstants",
    "gHotSpotVMIntConstantEntryValueOffset",
    "gHotSpotVMIntConstantEntryArrayStride",
];

/// Most entries of a table. The largest of JDK 8 to 25 has 1,300.
const ENTRIES_MAX: u64 = 8192;
/// Longest name in a table, in bytes. Longer ones are not asked for.
const NAME_MAX: usize = 64;
/// Largest entry of a table, in bytes: of JDK 25 it has 48.
const ENTRY_MAX: u64 = 128;

/// The tables of a process.
#[derive(Debug, Default)]
pub struct Tables {
    /// By `Type::_field`: the offset of a field, or the address of a static one.
    fields: HashMap<String, u64>,
    sizes: HashMap<String, u64>,
    constants: HashMap<String, i32>,
}

impl Tables {
    /// The tables, from the values of [`SYMBOLS`] in a process. None: the VM is not linked yet, or
    /// they cannot be read.
    pub fn read(memory: &impl Memory, symbols: [u64; SYMBOLS.len()]) -> Option<Self> {
        let [structs, type_at, field_at, offset_at, address_at, struct_bytes, rest @ ..] = symbols;
        let [types, name_at, size_at, type_bytes, constants, value_at, constant_bytes] = rest;
        let mut names = Names { memory, known: HashMap::new() };
        let mut tables = Self::default();
        for entry in entries(memory, structs, struct_bytes) {
            let Some(of) = names.get(word(&entry, type_at)?) else { break };
            let Some(field) = names.get(word(&entry, field_at)?) else { continue };
            // A static field has no offset.
            let value = match word(&entry, address_at)? {
                0 => word(&entry, offset_at)?,
                address => address,
            };
            tables.fields.insert(format!("{of}::{field}"), value);
        }
        for entry in entries(memory, types, type_bytes) {
            let Some(name) = names.get(word(&entry, name_at)?) else { break };
            tables.sizes.insert(name, word(&entry, size_at)?);
        }
        for entry in entries(memory, constants, constant_bytes) {
            let Some(name) = names.get(word(&entry, 0)?) else { break };
            let value = usize::try_from(value_at).ok()?;
            let value = i32::from_le_bytes(*entry.get(value..)?.first_chunk()?);
            tables.constants.insert(name, value);
        }
        (!tables.fields.is_empty() && !tables.sizes.is_empty()).then_some(tables)
    }

    /// Tables with these fields, sizes and constants.
    pub fn of(fields: &[(&str, u64)], sizes: &[(&str, u64)], constants: &[(&str, i32)]) -> Self {
        let name = |name: &&str| (*name).to_owned();
        Self {
            fields: fields.iter().map(|(of, value)| (name(of), *value)).collect(),
            sizes: sizes.iter().map(|(of, value)| (name(of), *value)).collect(),
            constants: constants.iter().map(|(of, value)| (name(of), *value)).collect(),
        }
    }

    /// The offset of the first of these fields that there is, or its address.
    pub fn field(&self, names: &[&str]) -> Option<u64> {
        names.iter().find_map(|name| self.fields.get(*name).copied())
    }

    /// The size of a type.
    pub fn size(&self, name: &str) -> Option<u64> {
        self.sizes.get(name).copied()
    }

    /// The value of the first of these constants that there is.
    pub fn constant(&self, names: &[&str]) -> Option<i32> {
        names.iter().find_map(|name| self.constants.get(*name).copied())
    }
}

/// The entries of a table, of so many bytes each, until one that cannot be read.
fn entries(memory: &impl Memory, first: u64, bytes: u64) -> impl Iterator<Item = Vec<u8>> {
    let is_known = first != 0 && (8..=ENTRY_MAX).contains(&bytes);
    let count = if is_known { ENTRIES_MAX } else { 0 };
    (0..count).map_while(move |number| {
        let mut entry = vec![0; bytes.min(ENTRY_MAX) as usize];
        let at = first.wrapping_add(number * bytes);
        (memory.read(at, &mut entry) == entry.len()).then_some(entry)
    })
}

fn word(entry: &[u8], at: u64) -> Option<u64> {
    let rest = entry.get(usize::try_from(at).ok()?..)?;
    Some(u64::from_le_bytes(*rest.first_chunk()?))
}

/// Names, each read once: the linker has one copy of each.
struct Names<'a, M> {
    memory: &'a M,
    known: HashMap<u64, Option<String>>,
}

impl<M: Memory> Names<'_, M> {
    fn get(&mut self, at: u64) -> Option<String> {
        let memory = self.memory;
        self.known.entry(at).or_insert_with(|| c_string::<NAME_MAX>(memory, at)).clone()
    }
}

/// The text that ends with a zero within `N` bytes.
pub fn c_string<const N: usize>(memory: &impl Memory, at: u64) -> Option<String> {
    if at == 0 {
        return None;
    }
    let mut bytes = [0; N];
    let read = memory.read(at, &mut bytes);
    let text = bytes.get(..read)?.split(|byte| *byte == 0).next().filter(|it| it.len() < N)?;
    Some(std::str::from_utf8(text).ok()?.to_owned())
}

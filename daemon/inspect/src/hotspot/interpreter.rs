//! The interpreter's code: from where on its entries have made the frame of the method.

use super::code_cache::CodeCache;
use super::tables::c_string;
use crate::python::Memory;
use std::collections::BTreeMap;

/// Most bytes of the interpreter that are read: of JDK 8 to 25 it has 100 to 400 KiB.
const BUFFER_MAX: usize = 1 << 20;
/// Most of its codelets, one for each bytecode and for each kind of entry: JDK 25 has 280.
const CODELETS_MAX: usize = 1024;
/// Longest description, in bytes.
const NAME_MAX: usize = 64;
/// Begin of the descriptions of entries.
const ENTRY: &str = "method entry point";
/// push %rbp; mov %rsp, %rbp; push %r13, which is the caller's stack pointer.
const ENTER: [u8; 6] = [0x55, 0x48, 0x8b, 0xec, 0x41, 0x55];

/// The entries of an interpreter.
#[derive(Debug, Default)]
pub struct Codelets {
    /// By their begin: their end, and the first instruction with a frame.
    entries: BTreeMap<u64, (u64, u64)>,
}

impl Codelets {
    /// The entries of a process's interpreter.
    pub fn read<M: Memory>(cache: &CodeCache<M>) -> Option<Self> {
        let (memory, layout) = (&cache.memory, &cache.layout.interpreter);
        let queue = memory.word(layout.queue.wrapping_add(cache.bias))?;
        let buffer = memory.word(queue.wrapping_add(layout.buffer))?;
        let mut limit = [0; 4];
        memory.read(queue.wrapping_add(layout.limit), &mut limit);
        let len = usize::try_from(u32::from_le_bytes(limit)).ok()?.min(BUFFER_MAX);
        let mut code = vec![0; len];
        let read = memory.read(buffer, &mut code);
        code.truncate(read);
        let mut found = Self::default();
        let mut at = 0;
        for _ in 0..CODELETS_MAX {
            let Some(head) = code.get(at..) else { break };
            let field = |at: u64| head.get(usize::try_from(at).ok()?..);
            let Some(size) = field(layout.size).and_then(|it| it.first_chunk()) else { break };
            let size = usize::try_from(i32::from_le_bytes(*size)).unwrap_or(0);
            if size < 8 {
                break;
            }
            let name = field(layout.description).and_then(|it| it.first_chunk());
            let name = name.and_then(|at| c_string::<NAME_MAX>(memory, u64::from_le_bytes(*at)));
            if name.is_some_and(|name| name.starts_with(ENTRY)) {
                let codelet = head.get(..size).unwrap_or(head);
                let begin = buffer.wrapping_add(at as u64);
                let end = begin.wrapping_add(codelet.len() as u64);
                let made = codelet.windows(ENTER.len()).position(|bytes| bytes == ENTER);
                let made = made.map_or(end, |at| begin.wrapping_add((at + ENTER.len()) as u64));
                found.entries.insert(begin, (end, made));
            }
            at = at.checked_add(size)?;
        }
        Some(found)
    }

    /// Whether there are none: the interpreter is not made yet.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The instruction from which on the entry that an address is in has a frame.
    pub fn frame_made(&self, address: u64) -> Option<u64> {
        let (_, (end, made)) = self.entries.range(..=address).next_back()?;
        (address < *end).then_some(*made)
    }
}

//! The code cache: which piece of code is at an address.

use super::layouts::{CodeAt, Layout};
use super::tables::c_string;
use crate::python::Memory;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Most heaps of a code cache. JDK 9 to 25 have 1 to 3.
const HEAPS_MAX: u32 = 8;
/// Most steps back to the begins of blobs for one question, about 50 ms of work: each is 254
/// segments, of 64 bytes at least, so a blob takes 100 at most.
const STEPS_MAX: usize = 1 << 16;
/// Most words of a frame, as a rule can say it.
const FRAME_WORDS_MAX: i32 = 1 << 18;
/// Longest name of a blob, in bytes.
const NAME_MAX: usize = 64;

/// What a piece of code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A method's, by a compiler, or the way to its native code.
    Method,
    /// The interpreter's.
    Interpreter,
    /// Procedures that keep frame pointers.
    Procedures,
    /// A procedure of the runtime, with frames of one size.
    Stub,
    /// Code that jumps on, without a frame of its own.
    Jump,
    /// Moves arguments between compiled and interpreted code.
    Adapter,
}

/// A piece of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blob {
    /// Where it begins.
    pub start: u64,
    /// The byte behind its last.
    pub end: u64,
    /// Its first instruction.
    pub code: u64,
    /// What it is.
    pub kind: Kind,
    /// Bytes of a frame, with the return address and the caller's frame pointer; 0: none.
    pub frame_bytes: u32,
    /// The instruction from which on the frame is there.
    pub complete: Option<u64>,
    /// Of a method's code: the method.
    pub method: u64,
    /// Where its name is.
    pub name: u64,
}

/// A heap of code.
#[derive(Clone, Copy, Debug)]
struct Heap {
    low: u64,
    high: u64,
    segments: u64,
    log: u32,
}

/// The code cache of a process, as one question sees it.
pub struct CodeCache<M> {
    /// The process's memory.
    pub memory: M,
    /// The offsets of its VM.
    pub layout: Arc<Layout>,
    /// Difference between the process's addresses and those in the layout.
    pub bias: u64,
    heaps: Vec<Heap>,
    /// The rest of [`STEPS_MAX`].
    steps_left: Cell<usize>,
    /// Blobs that were met, by their begins.
    blobs: RefCell<BTreeMap<u64, Blob>>,
    /// Kinds by the addresses of names.
    kinds: RefCell<HashMap<u64, Option<Kind>>>,
}

impl<M: Memory> CodeCache<M> {
    /// The code cache of a process. It has no code before the VM has made its heaps.
    pub fn new(memory: M, layout: Arc<Layout>, bias: u64) -> Self {
        let heaps = heaps(&memory, &layout, bias).unwrap_or_default();
        let (blobs, kinds) = (RefCell::default(), RefCell::default());
        Self { memory, layout, bias, heaps, steps_left: Cell::new(STEPS_MAX), blobs, kinds }
    }

    /// Whether the VM has begun.
    pub fn is_ready(&self) -> bool {
        !self.heaps.is_empty()
    }

    /// The code at an address.
    pub fn at(&self, address: u64) -> Option<Blob> {
        let known = self.blobs.borrow().range(..=address).next_back().map(|(_, blob)| *blob);
        if let Some(blob) = known.filter(|blob| address < blob.end) {
            return Some(blob);
        }
        let start = self.start(address)?;
        let blob = self.read(start).filter(|blob| address < blob.end)?;
        self.blobs.borrow_mut().insert(start, blob);
        Some(blob)
    }

    /// The name of code that is no method's.
    pub fn name(&self, blob: &Blob) -> Option<String> {
        let name = c_string::<NAME_MAX>(&self.memory, blob.name)?;
        (!name.is_empty() && !name.contains(char::is_control)).then_some(name)
    }

    /// Where the blob begins that an address is in: each segment has the number of segments back
    /// to one that is nearer to the begin, which has 0; free ones have 255
    /// (src/hotspot/share/memory/heap.cpp).
    fn start(&self, address: u64) -> Option<u64> {
        let heap = self.heaps.iter().find(|heap| (heap.low..heap.high).contains(&address))?;
        let mut segment = (address - heap.low) >> heap.log;
        loop {
            let left = self.steps_left.get().checked_sub(1)?;
            self.steps_left.set(left);
            let mut back = [0];
            let read = self.memory.read(heap.segments.wrapping_add(segment), &mut back);
            match back {
                [_] if read != 1 => return None,
                [0xff] => return None,
                [0] => {
                    let head = heap.low.wrapping_add(segment << heap.log);
                    let mut used = [0];
                    let is_read =
                        self.memory.read(head.wrapping_add(self.layout.cache.used), &mut used) == 1;
                    let start = head.wrapping_add(self.layout.cache.head_bytes);
                    return (is_read && used == [1] && start <= address).then_some(start);
                }
                [back] => segment = segment.checked_sub(back.into())?,
            }
        }
    }

    fn read(&self, start: u64) -> Option<Blob> {
        let layout = &self.layout.blob;
        let mut bytes = vec![0; layout.bytes];
        // The head of the last blob of a heap may be shorter.
        let read = self.memory.read(start, &mut bytes);
        bytes.truncate(read);
        let int = |at: u64| Some(i32::from_le_bytes(*rest(&bytes, at)?.first_chunk()?));
        let long = |at: u64| Some(u64::from_le_bytes(*rest(&bytes, at)?.first_chunk()?));
        let end = start.checked_add(u64::try_from(int(layout.size)?).ok()?)?;
        let code = match layout.code {
            CodeAt::Address(at) => long(at)?,
            CodeAt::Offset(at) => start.checked_add(u64::try_from(int(at)?).ok()?)?,
        };
        if !(start..end).contains(&code) {
            return None;
        }
        let kind = self.kind(long(layout.name)?)?;
        let words = int(layout.frame_size)?;
        let frame_bytes = match kind {
            Kind::Method | Kind::Stub if (2..FRAME_WORDS_MAX).contains(&words) => words as u32 * 8,
            Kind::Method => return None,
            _ => 0,
        };
        // A blob without frame size has procedures of several sizes.
        let kind = if kind == Kind::Stub && frame_bytes == 0 { Kind::Procedures } else { kind };
        let complete = match layout.frame_complete {
            (at, 2) => i16::from_le_bytes(*rest(&bytes, at)?.first_chunk()?).into(),
            (at, _) => int(at)?,
        };
        let complete = u64::try_from(complete).ok().and_then(|at| code.checked_add(at));
        let complete = complete.filter(|at| *at > code && *at < end);
        let method = if kind == Kind::Method { long(layout.method)? } else { 0 };
        let name = long(layout.name)?;
        Some(Blob { start, end, code, kind, frame_bytes, complete, method, name })
    }

    /// The kind of blobs with the name at an address. The names are the same in JDK 8 to 25
    /// (src/hotspot/share/code/codeBlob.cpp, nmethod.cpp).
    fn kind(&self, name: u64) -> Option<Kind> {
        let mut kinds = self.kinds.borrow_mut();
        *kinds.entry(name).or_insert_with(|| {
            let name = c_string::<NAME_MAX>(&self.memory, name)?;
            Some(match name.as_str() {
                "nmethod" | "native nmethod" => Kind::Method,
                "Interpreter" => Kind::Interpreter,
                "vtable chunks" | "MethodHandles adapters" => Kind::Jump,
                name if name.starts_with("I2C/C2I") => Kind::Adapter,
                _ => Kind::Stub,
            })
        })
    }
}

fn heaps(memory: &impl Memory, layout: &Layout, bias: u64) -> Option<Vec<Heap>> {
    let cache = &layout.cache;
    let list = memory.word(cache.heaps.wrapping_add(bias))?;
    let (count, first) = match cache.list {
        None => (1, cache.heaps.wrapping_add(bias)),
        Some((length, data)) => {
            let mut count = [0; 4];
            let is_read = memory.read(list.wrapping_add(length), &mut count) == count.len();
            let count = u32::from_le_bytes(count);
            (if is_read { count.min(HEAPS_MAX) } else { 0 }, memory.word(list.wrapping_add(data))?)
        }
    };
    let heaps = (0..u64::from(count)).filter_map(|number| {
        let heap = memory.word(first.wrapping_add(8 * number))?;
        let [low, high] = cache.memory.map(|at| memory.word(heap.wrapping_add(at)));
        let segments = memory.word(heap.wrapping_add(cache.segments))?;
        let mut log = [0; 4];
        let is_read = memory.read(heap.wrapping_add(cache.segment_log), &mut log) == log.len();
        let log = u32::from_le_bytes(log);
        let heap = Heap { low: low?, high: high?, segments, log };
        // A segment has 64 or 128 bytes (CodeCacheSegmentSize).
        (is_read && (5..=16).contains(&log) && heap.low < heap.high).then_some(heap)
    });
    Some(heaps.collect())
}

fn rest(bytes: &[u8], at: u64) -> Option<&[u8]> {
    bytes.get(usize::try_from(at).ok()?..)
}

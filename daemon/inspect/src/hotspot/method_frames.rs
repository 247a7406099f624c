//! The methods of a stack's frames.

use super::code_cache::{Blob, CodeCache, Kind};
use super::methods::{self, Head, Method};
use super::scopes;
use crate::frame_words::FrameWords;
use crate::python::Memory;
use crate::questions::{Language, RuntimeCode, RuntimeFunction, RuntimeRun, UnwoundStack};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Bytes of names and lines that are kept of all processes; beyond, all are forgotten and read
/// again.
const KEPT_BYTES_MAX: usize = 16 << 20;
/// Bytes of an entry of the table of methods, about; more than that of one that cannot be read.
const KEPT_BYTES_EACH: usize = 512;
/// Bytes of methods that are read anew for one question, about 20 ms of work. Frames of further
/// ones have no name.
const WORK_BYTES_MAX: usize = 2 << 20;
/// Places in compiled code whose inlined methods are looked up for one question, each in some
/// 20 us. Frames at further ones have the method of the code alone.
const PLACES_MAX: usize = 4096;
/// Methods of one answer.
const FUNCTIONS_MAX: usize = 65_536;
/// Pieces of code of one answer.
const CODES_MAX: usize = 4096;

/// None: there is no method, or it cannot be read.
struct Known {
    head: Option<Head>,
    method: Option<Arc<Method>>,
    /// The question in which its head was compared last.
    checked: u64,
}

/// A method's number in the answer, and a line.
type Frame = Option<(u32, u32)>;

/// Methods of all processes.
#[derive(Default)]
pub struct MethodFrames {
    /// By address space and address.
    known: HashMap<(u32, u64), Known>,
    /// Questions so far.
    now: u64,
    /// The rest of [`WORK_BYTES_MAX`].
    work_left: usize,
    kept_bytes: usize,
    /// Frames of compiled code of the current question, by address and whether it is a call's.
    compiled: HashMap<(u64, bool), Vec<Frame>>,
    /// Numbers of methods in the answer.
    numbers: HashMap<u64, u32>,
    answer: Vec<RuntimeFunction>,
    codes: BTreeMap<u64, RuntimeCode>,
}

impl MethodFrames {
    /// A new question begins.
    pub fn begin(&mut self) {
        self.now += 1;
        self.work_left = WORK_BYTES_MAX;
        self.compiled.clear();
        self.numbers.clear();
        self.answer.clear();
        self.codes.clear();
    }

    /// The methods that the question's frames named.
    pub fn take_answer(&mut self) -> Vec<RuntimeFunction> {
        std::mem::take(&mut self.answer)
    }

    /// The code that compilers have made of these methods, as far as frames were in it.
    pub fn take_codes(&mut self) -> Vec<RuntimeCode> {
        std::mem::take(&mut self.codes).into_values().collect()
    }

    /// Names the frames of a stack. `words` are those of its interpreted frames; `place` is the
    /// place in the bytecode where the innermost one is, if that is interpreted.
    pub fn name<M: Memory>(
        &mut self,
        space: u32,
        cache: &CodeCache<M>,
        (words, place): (&[FrameWords], Option<u64>),
        stack: &mut UnwoundStack,
    ) {
        let mut words = words.iter().peekable();
        for (depth, address) in (0_u32..).zip(&stack.addresses) {
            while words.peek().is_some_and(|words| words.depth < depth) {
                words.next();
            }
            let Some(blob) = cache.at(*address) else { continue };
            if blob.kind != Kind::Method {
                self.own_code(cache, &blob);
            }
            let frames = match blob.kind {
                Kind::Interpreter => {
                    let Some(words) = words.peek().filter(|words| words.depth == depth) else {
                        continue;
                    };
                    let places = [place.filter(|_| depth == 0), words.words.get(1).copied()];
                    let method = words.words.first().copied().unwrap_or(0);
                    self.interpreted(space, cache, method, places)
                }
                Kind::Method => self.compiled(space, cache, &blob, (*address, depth > 0)),
                _ => continue,
            };
            if frames.iter().any(Option::is_some) {
                stack.runs.push(RuntimeRun { depth, frames, is_part: false });
            }
        }
    }

    /// Tells the name of code of the VM's own.
    fn own_code<M: Memory>(&mut self, cache: &CodeCache<M>, blob: &Blob) {
        if self.codes.contains_key(&blob.code) || self.numbers.contains_key(&blob.start) {
            return;
        }
        let name = cache.name(blob).map(|name| format!("{name} (HotSpot)"));
        let name = name.unwrap_or_default();
        let is_named = !name.is_empty() && self.answer.len() < FUNCTIONS_MAX;
        if let (true, Ok(number)) = (is_named, u32::try_from(self.answer.len())) {
            self.answer.push(RuntimeFunction {
                language: Language::Java,
                name,
                ..Default::default()
            });
            self.numbers.insert(blob.start, number);
            self.code(blob, number);
        }
    }

    /// Tells the function of a piece of code.
    fn code(&mut self, blob: &Blob, function: u32) {
        if self.codes.len() < CODES_MAX {
            let size = u32::try_from(blob.end - blob.code).unwrap_or(0);
            self.codes.insert(blob.code, RuntimeCode { start: blob.code, size, function });
        }
    }

    fn interpreted<M: Memory>(
        &mut self,
        space: u32,
        cache: &CodeCache<M>,
        at: u64,
        places: [Option<u64>; 2],
    ) -> Vec<Frame> {
        let Some(method) = self.get(space, at, cache) else { return Vec::new() };
        let place = places.into_iter().flatten().find_map(|place| method.place(place));
        let line = place.map_or(method.first_line, |place| method.line(place));
        vec![self.number(at, &method).map(|number| (number, line))]
    }

    fn compiled<M: Memory>(
        &mut self,
        space: u32,
        cache: &CodeCache<M>,
        blob: &Blob,
        place: (u64, bool),
    ) -> Vec<Frame> {
        if let Some(known) = self.compiled.get(&place) {
            return known.clone();
        }
        let (address, is_call) = place;
        let active = match is_call {
            _ if self.compiled.len() >= PLACES_MAX => None,
            true => scopes::at_call(cache, blob, address.wrapping_add(1)),
            false => scopes::ahead(cache, blob, address),
        };
        let mut frames = Vec::new();
        let (outermost, inlined) = match active.as_deref().and_then(|active| active.split_last()) {
            Some((outermost, inlined)) if outermost.method == blob.method => {
                (Some(outermost), inlined)
            }
            _ => (None, &[][..]),
        };
        for active in inlined {
            let method = self.get(space, active.method, cache);
            let number = method.as_ref().and_then(|method| self.number(active.method, method));
            let line = |method: Arc<Method>| method.line(active.place.max(0).cast_unsigned());
            frames.push(number.zip(method.map(line)));
        }
        if let Some(method) = self.get(space, blob.method, cache)
            && let Some(number) = self.number(blob.method, &method)
        {
            let place = outermost.map(|active| active.place.max(0).cast_unsigned());
            let line = place.map_or(method.first_line, |place| method.line(place));
            frames.push(Some((number, line)));
            self.code(blob, number);
        } else {
            frames.push(None);
        }
        self.compiled.insert(place, frames.clone());
        frames
    }

    fn number(&mut self, at: u64, method: &Method) -> Option<u32> {
        if let Some(number) = self.numbers.get(&at) {
            return Some(*number);
        }
        let number = u32::try_from(self.answer.len()).ok()?;
        (self.answer.len() < FUNCTIONS_MAX).then_some(())?;
        self.answer.push(RuntimeFunction {
            language: Language::Java,
            file: method.file.clone(),
            name: method.name.clone(),
            first_line: method.first_line,
        });
        self.numbers.insert(at, number);
        Some(number)
    }

    /// The method at an address.
    fn get<M: Memory>(&mut self, space: u32, at: u64, cache: &CodeCache<M>) -> Option<Arc<Method>> {
        let (key, now) = ((space, at), self.now);
        if let Some(known) = self.known.get(&key).filter(|known| known.checked == now) {
            return known.method.clone();
        }
        let head = methods::head(at, &cache.layout, &cache.memory);
        if let Some(known) = self.known.get_mut(&key)
            && known.head == head
        {
            known.checked = now;
            return known.method.clone();
        }
        if self.work_left == 0 {
            return None;
        }
        let read = head.and_then(|head| methods::read(head, &cache.layout, &cache.memory));
        let method = read.map(Arc::new);
        let bytes = KEPT_BYTES_EACH + method.as_ref().map_or(0, |method| method.bytes());
        self.work_left = self.work_left.saturating_sub(bytes);
        if self.kept_bytes > KEPT_BYTES_MAX {
            self.known.clear();
            self.kept_bytes = 0;
        }
        self.kept_bytes += bytes;
        self.known.insert(key, Known { head, method: method.clone(), checked: now });
        method
    }
}

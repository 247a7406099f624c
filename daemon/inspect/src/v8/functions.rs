//! Functions: their names, scripts and lines, from what all closures of a function share.

use super::codes::{self, Code};
use super::handles::Handles;
use super::objects::{Heap, object, smi};
use super::positions;
use super::scripts::Script;
use crate::frame_words::FrameWords;
use crate::python::Memory;
use crate::questions::{Language, RuntimeCode, RuntimeFunction};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Longest name of a function, in UTF-16 units. A function with a longer one has no name.
const NAME_MAX: u64 = 512;
/// The name of functions that have none, as in V8's own traces.
const ANONYMOUS: &str = "<anonymous>";
/// Most variables of a scope.
const LOCALS_MAX: u64 = 1 << 16;
/// Longest table of positions that is read, in bytes.
const TABLE_BYTES_MAX: i32 = 1 << 20;
/// Longest bytecode, in bytes.
const BYTECODE_MAX: i32 = 64 << 20;
/// Bytes of names and line ends that are kept of all processes; beyond, all are forgotten and read
/// again.
const KEPT_BYTES_MAX: usize = 16 << 20;
/// Bytes of an entry of the table of functions, about.
const KEPT_BYTES_EACH: usize = 256;
/// Bytes that are read or decoded for one question, about 20 ms of work. Frames beyond have no
/// name.
const WORK_BYTES_MAX: usize = 32 << 20;
/// Bytes that are charged for an object that is no function.
const FAILED_BYTES: usize = 4 << 10;
/// Pieces of code of one answer.
const CODES_MAX: usize = 4096;
/// Bytes that are charged for looking at the tables of optimised code.
const INLINED_WORK: usize = 8 << 10;
/// Functions of one answer.
const FUNCTIONS_MAX: usize = 65_536;

/// A function.
#[derive(Debug)]
pub struct Function {
    name: String,
    script: Arc<Script>,
    first_line: u32,
}

/// What is compared before a function that was read is used again: the words with its type, its
/// name or scope, and its script.
type Head = [u64; 3];

/// Why there is no head.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NoHead {
    /// The memory cannot be read: the process is gone.
    Gone,
    /// Something else is there.
    Other,
}

/// None: there is no function, or it cannot be read.
struct Known {
    head: Option<Head>,
    function: Option<Arc<Function>>,
    /// The question in which its head was compared last.
    checked: u64,
}

/// Functions and scripts of all processes.
#[derive(Default)]
pub struct Functions {
    known: HashMap<(u32, u64), Known>,
    /// With the words of the script's source and name.
    scripts: HashMap<(u32, u64), ([u64; 2], Arc<Script>)>,
    kept_bytes: usize,
    /// Questions so far.
    now: u64,
    /// The rest of [`WORK_BYTES_MAX`].
    work_left: usize,
    /// Lines of the current question, by bytecode and offset.
    lines: HashMap<(u64, u32), Option<u32>>,
    /// Functions that are inlined, likewise, by code and offset.
    inlined: HashMap<(u64, u32), Vec<u64>>,
    /// Numbers of functions in the answer.
    numbers: HashMap<u64, u32>,
    handles: Handles,
    /// The answer's functions.
    answer: Vec<RuntimeFunction>,
    /// The answer's code, by its first address.
    codes: BTreeMap<u64, RuntimeCode>,
}

impl Functions {
    /// A new question begins.
    pub fn begin(&mut self) {
        self.now += 1;
        self.work_left = WORK_BYTES_MAX;
        self.lines.clear();
        self.inlined.clear();
        self.numbers.clear();
        self.answer.clear();
        self.codes.clear();
        self.handles.begin();
    }

    /// The functions that the question's frames named.
    pub fn take_answer(&mut self) -> Vec<RuntimeFunction> {
        std::mem::take(&mut self.answer)
    }

    /// The code that compilers have made of these functions, as far as frames were in it.
    pub fn take_codes(&mut self) -> Vec<RuntimeCode> {
        std::mem::take(&mut self.codes).into_values().collect()
    }

    /// The functions of a frame whose next instruction, or call, is at an address: numbers in the
    /// answer and the lines that they execute, innermost first. Several are inlined in one code.
    /// None: the frame is of none that is known. `maps` are the mappings of the process that
    /// [`super::handles::candidates`] names.
    pub fn frame(
        &mut self,
        space: u32,
        (frame, address): (&FrameWords, u64),
        heap: &Heap<'_, impl Memory>,
        maps: impl FnOnce() -> Vec<u64>,
    ) -> Option<Vec<Option<(u32, u32)>>> {
        let [shared, code, bytecode, offset] = frame.words;
        let function = self.get(space, shared, heap)?;
        let bytecode = object(bytecode);
        let is_bytecode = |at| heap.is(at, heap.layout.types.bytecode);
        let is_interpreted = smi(offset).is_some() && bytecode.is_some_and(is_bytecode);
        let code = match object(code) {
            Some(code) => {
                heap.layout.code.and_then(|layout| codes::at(code, address, &layout, heap))
            }
            // An interpreted frame has its bytecode and its place there; in one of a compiler's
            // code these are variables, of any value.
            None if is_interpreted => None,
            None => self.handles.code(space, (code as u32, address), heap, maps),
        };
        let is_its = code.is_some() || bytecode == self.bytecode_of(shared, heap);
        if frame.is_late && !is_its {
            return None;
        }
        let mut frames = Vec::new();
        // Of an instruction that is no call it is not known in which function it is inlined.
        if let Some(code) = code.filter(|code| frame.depth > 0 && !code.is_baseline) {
            let offset = u32::try_from(address.wrapping_sub(code.start)).unwrap_or(u32::MAX);
            for shared in self.inlined(code.object, offset, heap) {
                let function = self.get(space, shared, heap);
                let line = function.as_ref().map_or(0, |function| function.first_line);
                let number = function.and_then(|function| self.number(shared, &function));
                frames.push(number.map(|number| (number, line)));
            }
        }
        let position = match (bytecode, smi(offset)) {
            (Some(bytecode), Some(offset)) => self.position(bytecode, offset, heap),
            _ => None,
        };
        let line = match position.map(|position| function.script.line(position)) {
            Some(line) if line >= function.first_line => line,
            _ => function.first_line,
        };
        let number = self.number(shared, &function)?;
        if let Some(Code { start, size, .. }) = code
            && self.codes.len() < CODES_MAX
        {
            self.codes.insert(start, RuntimeCode { start, size, function: number });
        }
        frames.push(Some((number, line)));
        Some(frames)
    }

    /// The functions that are inlined at a call in optimised code, innermost first.
    fn inlined(&mut self, code: u64, offset: u32, heap: &Heap<'_, impl Memory>) -> Vec<u64> {
        if let Some(known) = self.inlined.get(&(code, offset)) {
            return known.clone();
        }
        let read = || codes::inlined(code, offset, heap.layout.code.as_ref()?, heap);
        let functions = match self.work(INLINED_WORK) {
            Some(()) => read().unwrap_or_default(),
            None => Vec::new(),
        };
        self.inlined.insert((code, offset), functions.clone());
        functions
    }

    fn number(&mut self, shared: u64, function: &Function) -> Option<u32> {
        if let Some(number) = self.numbers.get(&shared) {
            return Some(*number);
        }
        let number = u32::try_from(self.answer.len()).ok()?;
        (self.answer.len() < FUNCTIONS_MAX).then_some(())?;
        self.answer.push(RuntimeFunction {
            language: Language::JavaScript,
            file: function.script.file.clone(),
            name: function.name.clone(),
            first_line: function.first_line,
        });
        self.numbers.insert(shared, number);
        Some(number)
    }

    fn work(&mut self, bytes: usize) -> Option<()> {
        let is_possible = self.work_left > bytes;
        self.work_left = self.work_left.saturating_sub(bytes);
        is_possible.then_some(())
    }

    /// The function that a word points to.
    pub fn get(
        &mut self,
        space: u32,
        shared: u64,
        heap: &Heap<'_, impl Memory>,
    ) -> Option<Arc<Function>> {
        let (key, now) = ((space, shared), self.now);
        if let Some(known) = self.known.get(&key).filter(|known| known.checked == now) {
            return known.function.clone();
        }
        self.work(0)?;
        let head = head(shared, heap);
        if let Some(known) = self.known.get_mut(&key) {
            let is_same = match head {
                Ok(head) => known.head == Some(head),
                Err(why) => why == NoHead::Gone,
            };
            if is_same && known.function.is_some() {
                known.checked = now;
                return known.function.clone();
            }
        }
        let function = head.ok().and_then(|head| self.read(space, shared, head, heap));
        let function = function.map(Arc::new);
        let bytes = function.as_ref().map_or(FAILED_BYTES, |function| function.name.len());
        let _ = self.work(bytes);
        if self.kept_bytes > KEPT_BYTES_MAX {
            self.known.clear();
            self.scripts.clear();
            self.kept_bytes = 0;
        }
        self.kept_bytes += KEPT_BYTES_EACH + function.as_ref().map_or(0, |it| it.name.len());
        let known = Known { head: head.ok(), function: function.clone(), checked: now };
        self.known.insert(key, known);
        function
    }

    fn read(
        &mut self,
        space: u32,
        shared: u64,
        [_, name, script]: Head,
        heap: &Heap<'_, impl Memory>,
    ) -> Option<Function> {
        let address = object(shared)?;
        // Functions of V8's own have no script: their code has symbols.
        let script = self.script(space, object(script)?, heap)?;
        let (name, inferred, start) = match object(name) {
            Some(name) if heap.is(name, heap.layout.types.scope) => scope(name, heap)?,
            Some(name) => uncompiled(address, Some(heap.text(name | 1, NAME_MAX)?), heap)?,
            // kNoSharedNameSentinel
            None if smi(name) == Some(0) => uncompiled(address, None, heap)?,
            None => return None,
        };
        let name = [name, inferred].into_iter().flatten().find(|name| !name.is_empty());
        let first_line = script.line(start);
        Some(Function { name: name.unwrap_or_else(|| ANONYMOUS.to_owned()), script, first_line })
    }

    fn script(
        &mut self,
        space: u32,
        address: u64,
        heap: &Heap<'_, impl Memory>,
    ) -> Option<Arc<Script>> {
        let [source, name, ..] = heap.layout.script;
        let words = [heap.word(address, source)?, heap.word(address, name)?];
        if let Some((known, script)) = self.scripts.get(&(space, address))
            && *known == words
        {
            return Some(script.clone());
        }
        self.work(0)?;
        let script = Script::read(heap, address, self.work_left as u64)?;
        let _ = self.work(script.bytes() + 2 * script.counted);
        self.kept_bytes += KEPT_BYTES_EACH + script.bytes();
        let script = Arc::new(script);
        self.scripts.insert((space, address), (words, script.clone()));
        Some(script)
    }

    /// The bytecode of a function that has any.
    fn bytecode_of(&self, shared: u64, heap: &Heap<'_, impl Memory>) -> Option<u64> {
        let types = heap.layout.types;
        let ([data, ..], [of_code, of_data]) = (heap.layout.shared, heap.layout.to_bytecode);
        let mut at = heap.field(object(shared)?, data)?;
        for _ in 0..3 {
            at = match heap.kind(at)? {
                kind if kind == types.bytecode => return Some(at),
                kind if kind == types.code => heap.field(at, of_code)?,
                kind if kind == types.interpreter_data => heap.field(at, of_data)?,
                _ => return None,
            };
        }
        None
    }

    /// The position of a place in bytecode, where V8 has made a table of them: it makes one when it
    /// first needs a position.
    fn position(
        &mut self,
        bytecode: u64,
        offset: i32,
        heap: &Heap<'_, impl Memory>,
    ) -> Option<u32> {
        let [table, data] = heap.layout.bytecode;
        // The offset is from the object's tagged address on.
        let offset = u64::try_from(offset).ok()?.checked_sub(data.checked_sub(1)?)?;
        let offset = u32::try_from(offset).ok()?;
        let key = (bytecode, offset);
        if let Some(known) = self.lines.get(&key) {
            return *known;
        }
        let mut read = || {
            let types = heap.layout.types;
            heap.is(bytecode, types.bytecode).then_some(())?;
            let [length, elements] = heap.layout.array;
            let bytecodes = smi(heap.word(bytecode, length)?)?;
            let is_within = i64::from(offset) < i64::from(bytecodes) && bytecodes < BYTECODE_MAX;
            is_within.then_some(())?;
            let table = heap.field(bytecode, table)?;
            let kind = heap.kind(table)?;
            types.bytes.contains(&kind).then_some(())?;
            let length = smi(heap.word(table, length)?)?;
            (0..TABLE_BYTES_MAX).contains(&length).then_some(())?;
            let mut bytes = vec![0; usize::try_from(length).ok()?];
            self.work(bytes.len())?;
            let at = table.checked_add(elements)?;
            (heap.memory.read(at, &mut bytes) == bytes.len()).then_some(())?;
            positions::position(&bytes, offset)
        };
        let position = read();
        self.lines.insert(key, position);
        position
    }
}

/// The head of the function that a word points to.
fn head(shared: u64, heap: &Heap<'_, impl Memory>) -> Result<Head, NoHead> {
    let address = object(shared).ok_or(NoHead::Other)?;
    let [_, name, script] = heap.layout.shared;
    let map = heap.word(address, 0).ok_or(NoHead::Gone)?;
    if !heap.is(address, heap.layout.types.shared) {
        return Err(NoHead::Other);
    }
    let word = |offset| heap.word(address, offset).ok_or(NoHead::Other);
    Ok([map, word(name)?, word(script)?])
}

/// Name, inferred name and first position.
type Named = (Option<String>, Option<String>, u32);

/// What a scope says of its function (src/objects/scope-info.tq).
fn scope(address: u64, heap: &Heap<'_, impl Memory>) -> Option<Named> {
    let layout = heap.layout.scope;
    let slot = |number: u64| heap.word(address, number.checked_mul(8)?.checked_add(8)?);
    let number = |word: u64| smi(word).and_then(|number| u64::try_from(number).ok());
    // A number of 32 bits in newer versions, a tagged one in older ones. Its lower half is 0 there.
    let flags = slot(0)?;
    let flags = if flags as u32 == 0 { flags >> 32 } else { flags & 0xffff_ffff };
    let locals = number(slot(layout.context_locals)?).filter(|locals| *locals <= LOCALS_MAX)?;
    let bits = |at: u32, count: u32| flags >> at & ((1 << count) - 1);
    let mut at = layout.variable_part;
    if layout.has_fixed_positions && bits(0, 4) == layout.of_module {
        at += 1; // the number of its variables
    }
    let has_table = locals >= super::layouts::INLINED_NAMES_MAX
        && object(slot(at)?).and_then(|it| heap.kind(it))? >= heap.layout.strings.first_other;
    at += if has_table { 1 + locals } else { 2 * locals };
    at += bits(10, 1); // the variable of a class
    let is_text = |word: u64| {
        object(word)
            .and_then(|it| heap.kind(it))
            .is_some_and(|kind| kind < heap.layout.strings.first_other)
    };
    let mut name = None;
    if bits(12, 2) != 0 {
        let word = slot(at)?;
        if smi(word) != Some(0) {
            name = Some(heap.text(word, NAME_MAX)?);
        }
        at += 2;
    }
    let mut inferred = None;
    if bits(14, 1) != 0 {
        let word = slot(at)?;
        if is_text(word) {
            inferred = Some(heap.text(word, NAME_MAX)?);
        } else {
            // Nothing but `undefined` may stand there.
            object(word)?;
        }
        at += 1;
    }
    let positions = if layout.has_fixed_positions { layout.variable_part - 2 } else { at };
    let (start, end) = (number(slot(positions)?)?, number(slot(positions + 1)?)?);
    (start <= end).then_some((name, inferred, u32::try_from(start).ok()?))
}

/// What a function whose bytecode was dropped says instead.
fn uncompiled(shared: u64, name: Option<String>, heap: &Heap<'_, impl Memory>) -> Option<Named> {
    let [data, ..] = heap.layout.shared;
    let [inferred, start] = heap.layout.uncompiled;
    let [least, greatest] = heap.layout.types.uncompiled;
    let data = heap.field(shared, data)?;
    (least..=greatest).contains(&heap.kind(data)?).then_some(())?;
    let start = heap.half(data, start)?;
    let inferred = heap.text(heap.word(data, inferred)?, NAME_MAX)?;
    Some((name, Some(inferred), start))
}

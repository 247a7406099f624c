//! The methods of a stack's frames.

use super::code_ranges::{Code, CodeRanges, Kind};
use super::metadata::Metadata;
use crate::python::Memory;
use crate::questions::{Language, RuntimeCode, RuntimeFunction, RuntimeRun, UnwoundStack};
use std::collections::{BTreeMap, HashMap};

/// Names that are kept of all processes, of at most some KiB and mostly 100 bytes each; beyond, all
/// are forgotten and read again.
const NAMES_MAX: usize = 65_536;
/// Names that are read anew for one question, each in some 30 us. Frames of further methods have no
/// name.
const READ_MAX: usize = 2048;
/// Functions and pieces of code of one answer.
const FUNCTIONS_MAX: usize = 65_536;
const CODES_MAX: usize = 4096;
/// Longest name of a method without a token, in bytes.
const NAME_MAX: usize = 256;
/// Kinds of methods (`MethodClassification`, src/coreclr/vm/method.hpp).
const KINDS: u16 = 7;
const ARRAY: u16 = 4;
const DYNAMIC: u16 = 7;
/// Flags of a chunk that are no part of tokens.
const RANGE_BITS: u32 = 12;

/// A method: its process, its assembly in this version, and its number there.
type Method = (u32, u64, [u8; 16], u32);

/// Names of methods.
#[derive(Default)]
pub struct Methods {
    names: HashMap<Method, Option<(String, String)>>,
}

/// Functions and code of one answer.
pub struct Answer<'a, M> {
    methods: &'a mut Methods,
    map: &'a CodeRanges<M>,
    space: u32,
    left: usize,
    /// By address.
    assemblies: HashMap<u64, Option<Metadata>>,
    /// Numbers in the answer by the method's address; None: it has no name.
    numbers: HashMap<u64, Option<u32>>,
    /// The functions.
    pub functions: Vec<RuntimeFunction>,
    /// By the begin of the code.
    pub codes: BTreeMap<u64, RuntimeCode>,
}

impl<'a, M: Memory> Answer<'a, M> {
    /// An answer without frames.
    pub fn new(methods: &'a mut Methods, map: &'a CodeRanges<M>, space: u32) -> Self {
        if methods.names.len() > NAMES_MAX {
            methods.names.clear();
        }
        Self {
            methods,
            map,
            space,
            left: READ_MAX,
            assemblies: HashMap::new(),
            numbers: HashMap::new(),
            functions: Vec::new(),
            codes: BTreeMap::new(),
        }
    }

    /// Names the frames of a stack.
    pub fn name(&mut self, stack: &mut UnwoundStack) {
        for (depth, address) in (0_u32..).zip(&stack.addresses) {
            let Some(code) = self.map.at(*address) else { continue };
            let key = match code.kind {
                Kind::Method { method, .. } => method,
                Kind::Stub | Kind::Other => 0,
            };
            let number = match self.numbers.get(&key) {
                Some(number) => *number,
                None => {
                    let function = self.function(key);
                    let number = function.and_then(|function| self.add(function));
                    self.numbers.insert(key, number);
                    number
                }
            };
            let Some(number) = number else { continue };
            self.code(&code, number);
            let has_file = |function: &RuntimeFunction| !function.file.is_empty();
            if self.functions.get(number as usize).is_some_and(has_file) {
                let frames = vec![Some((number, 0))];
                stack.runs.push(RuntimeRun { depth, frames, is_part: false });
            }
        }
    }

    fn add(&mut self, function: RuntimeFunction) -> Option<u32> {
        let number = self.functions.len();
        (number < FUNCTIONS_MAX).then_some(())?;
        self.functions.push(function);
        u32::try_from(number).ok()
    }

    fn code(&mut self, code: &Code, function: u32) {
        let Ok(size) = u32::try_from(code.end - code.start) else { return };
        if self.codes.len() < CODES_MAX {
            let start = code.start;
            self.codes.insert(start, RuntimeCode { start, size, function });
        }
    }

    /// The function of a method, or at 0 that of stubs. What has no file has no frame of its own:
    /// only its code is named.
    fn function(&mut self, method: u64) -> Option<RuntimeFunction> {
        let of = |file, name| RuntimeFunction {
            language: Language::DotNet,
            file,
            name,
            ..RuntimeFunction::default()
        };
        if method == 0 {
            return Some(of(String::new(), "stub (.NET)".to_owned()));
        }
        let (memory, layout) = (&self.map.memory, &self.map.layout);
        let byte = |at: u64| {
            let mut byte = [0];
            let [value] = (memory.read(at, &mut byte) == 1).then_some(byte)?;
            Some(value)
        };
        let short = |at: u64| Some(u16::from_le_bytes([byte(at)?, byte(at.wrapping_add(1))?]));
        let kind = short(method.wrapping_add(layout.method_flags))? & KINDS;
        if kind == DYNAMIC {
            let name = memory.word(method.wrapping_add(layout.dynamic_name))?;
            let name = name_at(memory, name)?;
            return Some(of(String::new(), format!("{name} (.NET)")));
        }
        if kind == ARRAY {
            return None;
        }
        // Methods are behind their chunk's head.
        let number = u64::from(byte(method.wrapping_add(layout.method_number))?);
        let before = layout.chunk_bytes + number * layout.method_unit;
        let chunk = method.checked_sub(before)?;
        let class = memory.word(chunk.wrapping_add(layout.chunk_class))?;
        let module = memory.word(class.wrapping_add(layout.class_module))?;
        let low = u32::from(short(method.wrapping_add(layout.method_token))?);
        let high = u32::from(short(chunk.wrapping_add(layout.chunk_token))?);
        let (low, high) = (low & ((1 << layout.token_bits) - 1), high & ((1 << RANGE_BITS) - 1));
        let (file, name) = self.named(module, high << layout.token_bits | low)?;
        Some(of(file, name))
    }

    /// The file and the name of a method of a module.
    fn named(&mut self, module: u64, token: u32) -> Option<(String, String)> {
        let (memory, base_at) = (&self.map.memory, self.map.layout.module_base);
        let read = || Metadata::of_file(memory, memory.word(module.wrapping_add(base_at))?);
        let assembly = self.assemblies.entry(module).or_insert_with(read).as_ref()?;
        let key = (self.space, module, assembly.version, token);
        if let Some(known) = self.methods.names.get(&key) {
            return known.clone();
        }
        self.left = self.left.checked_sub(1)?;
        let named = assembly.file(memory).zip(assembly.method(memory, token));
        let named = named.filter(|(file, _)| !file.is_empty());
        self.methods.names.insert(key, named.clone());
        named
    }
}

/// A text of plain characters that ends with 0.
fn name_at(memory: &impl Memory, at: u64) -> Option<String> {
    let mut bytes = [0; NAME_MAX];
    let read = memory.read(at, &mut bytes);
    let bytes = bytes.get(..read)?;
    let text = bytes.get(..bytes.iter().position(|byte| *byte == 0)?)?;
    let text = std::str::from_utf8(text).ok()?;
    (!text.is_empty() && !text.contains(char::is_control)).then(|| text.to_owned())
}

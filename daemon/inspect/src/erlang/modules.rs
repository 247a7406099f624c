//! Loaded modules, as BEAM tells debuggers of them.
//!
//! GDB's interface is a list: a head, and entries with links, an address and a number of bytes. The
//! bytes are BEAM's own format, in the byte order of the machine:
//!
//! | part | fields |
//! |---|---|
//! | module | kind (4 bytes; 1), 4 unused, address (8), number of ranges (4), bytes (4), name |
//! | range | begin and end in the module's code (4 each), number of lines (4), name; then these |
//! | line | begin in the module's code (4), line (4), name of the file |
//!
//! A name has its length with a zero behind it (2), the text, and 2 unused bytes. Behind that of a
//! module are 4 more.

use crate::python::Memory;
use std::collections::BTreeMap;
use std::ops::Range;

/// Modules of a process. Code of older ones has no names.
const MODULES_MAX: usize = 16_384;
/// Most bytes about one module: of the largest ones of OTP, 200 KB.
const TEXT_BYTES_MAX: u64 = 4 << 20;
/// Most bytes of code of one module.
const CODE_BYTES_MAX: u32 = 64 << 20;
/// Bytes about modules that are read between two refreshes, some 10 ms of work. Frames of further
/// modules have no names until the next one.
const WORK_BYTES_MAX: u64 = 4 << 20;
/// Longest name that is taken, in bytes.
const NAME_MAX: usize = 1024;
/// Bytes that a function takes beside its name and its file, about.
const FUNCTION_BYTES: usize = 128;

/// Where the head of the list has its first entry, and the bytes of the head of an entry.
const FIRST_AT: u64 = 16;
const ENTRY_WORDS: usize = 4;
/// The kind of an entry that is a module.
const MODULE: u32 = 1;
/// Bytes of a module's head up to its name, and of its head without the name.
const NAME_AT: usize = 24;
const HEAD_BYTES: usize = 32;
/// The name of the module with code of BEAM's own.
const GLOBAL: &str = "global";
/// The end of the name of a range before a function's code, in which breakpoints and what the
/// function is are kept.
const PROLOGUE: &str = "-CodeInfoPrologue";

/// The modules of a process.
#[derive(Default)]
pub struct Modules {
    first: u64,
    /// By the begin of their code.
    all: BTreeMap<u64, Module>,
    work_bytes: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Module {
    end: u64,
    /// What BEAM tells of it: address and bytes.
    text: (u64, u64),
    is_global: bool,
    /// None: not read yet.
    functions: Option<Functions>,
}

/// Functions of a module, by their code.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Functions(Vec<Function>);

/// A function of a module.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    /// Its code in the module, with what is before it.
    pub code: Range<u32>,
    /// Its name, with its module and the number of its arguments.
    pub name: String,
    /// Its file, as the compiler was told of it; empty: it has none.
    pub file: String,
    /// Its line; 0: it has none.
    pub first_line: u32,
    /// Where lines begin in its code.
    lines: Vec<(u32, u32)>,
}

/// The function at an address.
#[derive(Debug, PartialEq, Eq)]
pub struct Found<'a> {
    /// Address of its first byte.
    pub start: u64,
    /// The function.
    pub function: &'a Function,
    /// Line of the address.
    pub line: u32,
}

impl Function {
    /// Bytes of code.
    pub fn size(&self) -> u32 {
        self.code.end - self.code.start
    }

    /// The line of a byte of the module's code.
    pub fn line(&self, at: u32) -> u32 {
        let begun = self.lines.iter().rev().find(|(begin, _)| *begin <= at);
        begun.map_or(self.first_line, |(_, line)| *line)
    }
}

impl Modules {
    /// Reads the list again, if there are newer modules. `descriptor`: the head of the list.
    pub fn refresh(&mut self, memory: &impl Memory, descriptor: u64) {
        self.work_bytes = 0;
        let first = memory.word(descriptor.wrapping_add(FIRST_AT)).unwrap_or(0);
        if first == self.first {
            return;
        }
        let mut before = std::mem::take(&mut self.all);
        (self.first, self.bytes) = (first, 0);
        let mut at = first;
        // Newer ones come first, and have replaced older ones at their place.
        for _ in 0..MODULES_MAX {
            let mut words = [0; 8 * ENTRY_WORDS];
            if at == 0 || memory.read(at, &mut words) != words.len() {
                break;
            }
            let word = |number: usize| {
                let bytes = words.get(8 * number..).and_then(|bytes| bytes.first_chunk());
                u64::from_le_bytes(bytes.copied().unwrap_or_default())
            };
            at = word(0);
            let text = (word(2), word(3));
            if let Some((start, module)) = read(memory, text) {
                let is_free = self.all.range(..module.end).next_back();
                if is_free.is_none_or(|(_, before)| before.end <= start) {
                    let same = before.remove(&start).filter(|it| it.is_same(&module));
                    let module = same.unwrap_or(module);
                    self.bytes += module.functions.as_ref().map_or(0, Functions::bytes);
                    self.all.insert(start, module);
                }
            }
        }
    }

    /// Whether no module is loaded.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Bytes that names and lines take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a module's code begins in an area.
    pub fn any_in(&self, area: Range<u64>) -> bool {
        area.start < area.end && self.all.range(area).next().is_some()
    }

    /// Code of BEAM's own with this name.
    pub fn global(&mut self, memory: &impl Memory, name: &str) -> Option<Range<u64>> {
        let start = *self.all.iter().find(|(_, module)| module.is_global)?.0;
        let functions = self.functions(memory, start)?;
        let is_it = |function: &&Function| {
            function.name.strip_suffix(" (BEAM)").is_some_and(|known| known == name)
        };
        let Range { start: begin, end } = functions.0.iter().find(is_it)?.code.clone();
        Some(start.checked_add(begin.into())?..start.checked_add(end.into())?)
    }

    /// The function whose code is at an address.
    pub fn find(&mut self, memory: &impl Memory, address: u64) -> Option<Found<'_>> {
        let (start, module) = self.all.range(..=address).next_back()?;
        let start = *start;
        if address >= module.end {
            return None;
        }
        let at = u32::try_from(address - start).ok()?;
        let functions = &self.functions(memory, start)?.0;
        let after = functions.partition_point(|function| function.code.start <= at);
        let function = functions.get(after.checked_sub(1)?)?;
        let begin = start + u64::from(function.code.start);
        let line = function.line(at);
        function.code.contains(&at).then_some(Found { start: begin, function, line })
    }

    fn functions(&mut self, memory: &impl Memory, start: u64) -> Option<&Functions> {
        let module = self.all.get_mut(&start)?;
        let (at, bytes) = module.text;
        if module.functions.is_none() {
            self.work_bytes = self.work_bytes.saturating_add(bytes);
            if self.work_bytes > WORK_BYTES_MAX.max(bytes) {
                return None;
            }
            let mut text = vec![0; usize::try_from(bytes).ok()?];
            let read = memory.read(at, &mut text);
            text.truncate(read);
            let code_bytes = u32::try_from(module.end - start).ok()?;
            let functions = Functions::read(&text, code_bytes).unwrap_or_default();
            self.bytes += functions.bytes();
            module.functions = Some(functions);
        }
        module.functions.as_ref()
    }
}

impl Module {
    fn is_same(&self, other: &Self) -> bool {
        (self.end, self.text) == (other.end, other.text)
    }
}

/// The head of what BEAM tells of a module.
fn read(memory: &impl Memory, text: (u64, u64)) -> Option<(u64, Module)> {
    let (at, bytes) = text;
    let mut head = [0; HEAD_BYTES + GLOBAL.len()];
    if bytes > TEXT_BYTES_MAX || memory.read(at, &mut head) != head.len() {
        return None;
    }
    let mut reader = Reader { bytes: &head };
    let kind = reader.number()?;
    reader.skip(4)?;
    let start = u64::from(reader.number()?) | u64::from(reader.number()?) << 32;
    let (_ranges, code_bytes) = (reader.number()?, reader.number()?);
    let is_global = reader.text().is_some_and(|name| name == GLOBAL);
    let end = start.checked_add(code_bytes.into())?;
    let is_module = kind == MODULE && start > 0 && (1..=CODE_BYTES_MAX).contains(&code_bytes);
    is_module.then_some((start, Module { end, text, is_global, functions: None }))
}

impl Functions {
    /// Reads what BEAM tells of a module with so many bytes of code. None: it makes no sense.
    pub fn read(text: &[u8], code_bytes: u32) -> Option<Self> {
        let mut reader = Reader { bytes: text };
        reader.skip(16)?;
        let ranges = reader.number()?;
        reader.skip(4)?;
        let module = reader.text()?.to_owned();
        reader.skip(HEAD_BYTES - NAME_AT - 4)?;
        let mut all: Vec<Function> = Vec::new();
        let mut prologue = None;
        for _ in 0..ranges {
            let (begin, end, lines) = (reader.number()?, reader.number()?, reader.number()?);
            let name = reader.text()?;
            let mut function = Function {
                code: begin..end,
                name: name_of(&module, name).unwrap_or_default(),
                file: String::new(),
                first_line: 0,
                lines: Vec::new(),
            };
            for _ in 0..lines {
                let (at, line, file) = (reader.number()?, reader.number()?, reader.text()?);
                function.add(at, line, file);
            }
            let last = all.last().map_or(0, |last| last.code.end);
            if begin < last || end <= begin || end > code_bytes {
                return None;
            }
            if name.ends_with(PROLOGUE) {
                prologue = Some(begin..end);
                continue;
            }
            if let Some(before) = prologue.take().filter(|before| before.end == begin) {
                function.code.start = before.start;
            }
            if !function.name.is_empty() {
                all.push(function);
            }
        }
        Some(Self(all))
    }

    /// Bytes of memory that they take.
    fn bytes(&self) -> usize {
        let of =
            |it: &Function| FUNCTION_BYTES + it.name.len() + it.file.len() + 8 * it.lines.len();
        self.0.iter().map(of).sum()
    }
}

impl Function {
    /// Adds a row of the module's line table: the code from `at` on is of this line. The first row
    /// of a function is the line of its definition, and its address is that of the code or before
    /// it. The last row often is of the next function, whose rows begin with the same one. A
    /// function that the table has no row for has no lines.
    fn add(&mut self, at: u32, line: u32, file: &str) {
        if self.file.is_empty() && at <= self.code.start {
            (self.file, self.first_line) = (file.to_owned(), line);
        }
        // A macro may be of another file.
        let is_of_file = !file.is_empty() && file == self.file;
        if is_of_file && self.lines.last().is_none_or(|(before, _)| *before <= at) {
            self.lines.push((at, line));
        }
    }
}

/// A function's name from that of its range; None: the range is no code of a function's. In names
/// of functions, modules are in quotation marks where Erlang's syntax asks for them.
fn name_of(module: &str, range: &str) -> Option<String> {
    let quoted = || range.strip_prefix('\'')?.strip_prefix(module)?.strip_prefix('\'');
    let own = range.strip_prefix(module).or_else(quoted).filter(|_| !module.is_empty())?;
    if let Some(part) = own.strip_prefix("::") {
        return (module == GLOBAL).then(|| format!("{part} (BEAM)"));
    }
    let function = own.strip_prefix(':')?;
    // Elixir writes its modules without this prefix, and a dot behind them.
    Some(match module.strip_prefix("Elixir.") {
        Some(module) => format!("{module}.{function}"),
        None => range.to_owned(),
    })
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn skip(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (skipped, rest) = self.bytes.split_at_checked(bytes)?;
        self.bytes = rest;
        Some(skipped)
    }

    fn number(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(*self.skip(4)?.first_chunk()?))
    }

    /// A name; empty where it is too long or has other characters than printable ones.
    fn text(&mut self) -> Option<&'a str> {
        let length = usize::from(u16::from_le_bytes(*self.skip(2)?.first_chunk()?));
        let text = self.skip(length)?.strip_suffix(&[0])?;
        self.skip(2)?;
        let is_taken = |text: &&str| text.len() <= NAME_MAX && !text.chars().any(char::is_control);
        Some(std::str::from_utf8(text).ok().filter(is_taken).unwrap_or_default())
    }
}

//! Reads the kernel's lists of symbols and modules.

use std::collections::HashMap;
use std::io::{BufRead, Read as _};

use super::{KernelSymbols, Names, OwnerEntry, OwnerKind, PADDED, PADDING_PREFIX, Run};
use crate::ImageError;

/// Longest line that is read, in bytes; the rest of a longer line is skipped. A symbol has at most
/// 512 (`KSYM_NAME_LEN`, since 6.1), a module may have many users.
const LINE_MAX: u64 = 16 << 10;
/// Most symbols kept; a kernel has about 200 thousand. The limit bounds memory.
const SYMBOLS_MAX: usize = 4 << 20;
/// Most bytes of names kept; a kernel has about 5 MB.
const NAMES_MAX: usize = 256 << 20;
/// Most owners kept; a kernel has about 200 modules.
const OWNERS_MAX: usize = 1 << 15;

/// Bytes that the size of code is rounded up to.
const PAGE: u64 = 4096;
/// Bytes that the last BPF program is taken to have at most: its size is not listed, and a program
/// may be larger than a page.
const PROGRAM_MAX: u64 = 1 << 20;

/// Place of a module, from `/proc/modules`.
pub(super) struct Module {
    base: u64,
    size: u64,
}

/// Calls `each` with every line, without its end, until `each` returns an error.
fn lines(
    mut from: impl BufRead,
    mut each: impl FnMut(&[u8]) -> Result<(), ImageError>,
) -> Result<(), ImageError> {
    let io = |source| ImageError::Io { op: "read", path: None, source };
    let mut line = Vec::new();
    let mut is_rest = false;
    loop {
        line.clear();
        let len = from.by_ref().take(LINE_MAX).read_until(b'\n', &mut line).map_err(io)?;
        if len == 0 {
            return Ok(());
        }
        let has_end = line.pop_if(|last| *last == b'\n').is_some();
        if !is_rest {
            each(&line)?;
        }
        is_rest = !has_end;
    }
}

fn hex(text: &[u8]) -> Option<u64> {
    let text = str::from_utf8(text).ok()?;
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

fn fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty())
}

/// Reads `/proc/modules`: `name size users used-by state address`. Modules whose addresses are
/// hidden are left out.
pub(super) fn modules(from: impl BufRead) -> Result<HashMap<String, Module>, ImageError> {
    let mut out = HashMap::new();
    lines(from, |line| {
        let mut fields = fields(line);
        let name = fields.next().and_then(|name| str::from_utf8(name).ok());
        let size = fields.next().and_then(|size| str::from_utf8(size).ok()?.parse().ok());
        let base = fields.nth(3).and_then(hex).filter(|base| *base != 0);
        if let (Some(name), Some(size), Some(base)) = (name, size, base)
            && out.len() < OWNERS_MAX
        {
            out.insert(name.to_owned(), Module { base, size });
        }
        Ok(())
    })?;
    Ok(out)
}

/// A symbol of code, as listed.
#[derive(Copy, Clone)]
struct Listed {
    address: u64,
    name: u32,
    owner: u16,
    /// See [`rank`].
    rank: u8,
}

/// The symbols of code, as listed.
pub(super) struct Lists {
    symbols: Vec<Listed>,
    names: Names,
    owners: Vec<OwnerEntry>,
    owner_numbers: HashMap<Box<[u8]>, u16>,
    any_hidden: bool,
    stext: Option<u64>,
    idle_start: Option<u64>,
    idle_end: Option<u64>,
    /// The error that ended reading; later lines are ignored.
    too_large: Option<ImageError>,
}

/// Reads `/proc/kallsyms` or `System.map`.
pub(super) fn symbols(from: impl BufRead) -> Result<Lists, ImageError> {
    let mut lists = Lists {
        symbols: Vec::new(),
        names: Names::default(),
        owners: vec![OwnerEntry { kind: OwnerKind::Kernel, name: "kernel".into(), base: 0 }],
        owner_numbers: HashMap::new(),
        any_hidden: false,
        stext: None,
        idle_start: None,
        idle_end: None,
        too_large: None,
    };
    lines(from, |line| {
        // None: the line is not of the list's form, or not a symbol of code.
        let _ = lists.add(line);
        lists.too_large.take().map_or(Ok(()), Err)
    })?;
    Ok(lists)
}

impl Lists {
    /// Adds a line's symbol, if it is one of code.
    fn add(&mut self, line: &[u8]) -> Option<()> {
        let mut fields = fields(line);
        let address = hex(fields.next()?)?;
        let kind = match fields.next()? {
            [kind @ (b't' | b'T' | b'w' | b'W')] => *kind,
            _ => return None,
        };
        let name = fields.next().and_then(|name| str::from_utf8(name).ok())?;
        if address == 0 {
            self.any_hidden = true;
            return None;
        }
        let owner = self.owner(fields.next())?;
        if owner == 0 {
            match name {
                "_stext" => self.stext = Some(address),
                "__cpuidle_text_start" => self.idle_start = Some(address),
                "__cpuidle_text_end" => self.idle_end = Some(address),
                _ => {}
            }
        }
        if self.symbols.len() >= SYMBOLS_MAX {
            self.refuse("kernel symbol list (symbols)", SYMBOLS_MAX);
            return None;
        }
        let rank = rank(name, kind);
        let name = self.name(name)?;
        self.symbols.push(Listed { address, name, owner, rank });
        Some(())
    }

    /// Puts a name into the table of names.
    fn name(&mut self, name: &str) -> Option<u32> {
        let names = &mut self.names;
        let end = names.bytes.len().saturating_sub(1);
        let last = names.bytes.get(names.last..end).unwrap_or_default();
        if !name.is_empty() && last.ends_with(name.as_bytes()) {
            return u32::try_from(end - name.len()).ok();
        }
        if names.bytes.len() + name.len() >= NAMES_MAX {
            self.refuse("kernel symbol list (bytes of names)", NAMES_MAX);
            return None;
        }
        names.last = names.bytes.len();
        names.bytes.extend_from_slice(name.as_bytes());
        names.bytes.push(0);
        u32::try_from(names.last).ok()
    }

    /// The number of a line's owner.
    fn owner(&mut self, field: Option<&[u8]>) -> Option<u16> {
        let Some(field) = field else { return Some(0) };
        let name = field.strip_prefix(b"[")?.strip_suffix(b"]")?;
        if let Some(number) = self.owner_numbers.get(name) {
            return Some(*number);
        }
        if self.owners.len() >= OWNERS_MAX {
            self.refuse("kernel symbol list (modules)", OWNERS_MAX);
            return None;
        }
        let number = u16::try_from(self.owners.len()).ok()?;
        self.owners.push(OwnerEntry {
            kind: match name {
                b"bpf" => OwnerKind::Bpf,
                name if name.starts_with(b"__builtin__") => OwnerKind::Other,
                _ => OwnerKind::Module,
            },
            name: str::from_utf8(name).ok()?.into(),
            base: u64::MAX,
        });
        self.owner_numbers.insert(name.into(), number);
        Some(number)
    }

    fn refuse(&mut self, what: &'static str, limit: usize) {
        let limit = limit as u64;
        self.too_large = Some(ImageError::TooLarge { what, size: limit + 1, limit });
    }

    /// Makes the compact form.
    pub(super) fn finish(
        mut self,
        modules: &HashMap<String, Module>,
    ) -> Result<KernelSymbols, ImageError> {
        if self.symbols.is_empty() && self.any_hidden {
            return Err(ImageError::AddressesHidden);
        }
        let name = "_stext";
        let stext = self.stext.ok_or(ImageError::NoKernelSymbol { name })?;
        // Code before `_stext` runs only while the kernel starts.
        self.symbols.retain(|symbol| symbol.owner != 0 || symbol.address >= stext);
        self.sort();
        self.set_bases(stext, modules);
        let mut out = KernelSymbols {
            stext,
            idle_text: match (self.idle_start, self.idle_end) {
                (Some(start), Some(end)) if start < end => Some(start..end),
                _ => None,
            },
            owners: self.owners,
            runs: Vec::new(),
            offsets: Vec::new(),
            name_starts: Vec::new(),
            padding: 0,
            names: self.names,
        };
        // An empty name marks the end of the kernel's code where no other symbol begins.
        let no_name = out.names.bytes.len() as u32;
        out.names.bytes.push(0);
        let mut is_padded = false;
        for (number, symbol) in self.symbols.iter().enumerate() {
            let next = self.symbols.get(number + 1);
            if !is_padded && next.is_some_and(|next| is_padding(&mut out, symbol, next)) {
                is_padded = true;
                continue;
            }
            let offset = place_in_run(&mut out.runs, out.offsets.len(), symbol);
            out.offsets.push(offset);
            let name = out.names.get(symbol.name);
            let ends_code = symbol.owner == 0 && matches!(name, "_etext" | "_einittext");
            let name = if ends_code { no_name } else { symbol.name };
            out.name_starts.push(if std::mem::take(&mut is_padded) { name | PADDED } else { name });
        }
        set_ends(&mut out, modules);
        out.offsets.shrink_to_fit();
        out.name_starts.shrink_to_fit();
        out.names.bytes.shrink_to_fit();
        out.runs.shrink_to_fit();
        Ok(out)
    }

    /// Sorts by address, and keeps one symbol for each address.
    fn sort(&mut self) {
        let names = &self.names;
        self.symbols.sort_by(|a, b| {
            (a.address, a.rank).cmp(&(b.address, b.rank)).then_with(|| {
                let (a, b) = (names.get(a.name), names.get(b.name));
                (a.len(), a).cmp(&(b.len(), b))
            })
        });
        self.symbols.dedup_by_key(|symbol| symbol.address);
    }

    /// Sets the address that each owner's offsets count from.
    fn set_bases(&mut self, stext: u64, modules: &HashMap<String, Module>) {
        for owner in &mut self.owners {
            owner.base = modules.get(&*owner.name).map_or(u64::MAX, |module| module.base);
        }
        for symbol in &self.symbols {
            if let Some(owner) = self.owners.get_mut(usize::from(symbol.owner)) {
                // The base is lowered where needed, so no offset is negative even if a symbol were
                // below the load address.
                owner.base = owner.base.min(symbol.address);
            }
        }
        if let Some(kernel) = self.owners.first_mut() {
            kernel.base = stext;
        }
    }
}

/// Whether a symbol is padding of the usual size before the next one: then a mark on the next
/// symbol stands for it. A symbol that begins a run is kept, because the run's start would change.
fn is_padding(out: &mut KernelSymbols, symbol: &Listed, next: &Listed) -> bool {
    let size = u32::try_from(next.address - symbol.address).unwrap_or(0);
    let run = out.runs.last().filter(|run| run.owner == symbol.owner && symbol.owner == next.owner);
    let fits = run.is_some_and(|run| u32::try_from(next.address - run.start).is_ok());
    let same_name = symbol.name.checked_add(PADDING_PREFIX.len() as u32) == Some(next.name);
    let is_one = fits && same_name && out.names.get(symbol.name).starts_with(PADDING_PREFIX);
    if is_one && out.padding == 0 {
        out.padding = size;
    }
    is_one && size == out.padding
}

/// The offset of the next symbol in its run; begins a new run where it must.
fn place_in_run(runs: &mut Vec<Run>, number: usize, symbol: &Listed) -> u32 {
    let last = runs.last().filter(|run| run.owner == symbol.owner);
    let offset = last.and_then(|run| u32::try_from(symbol.address - run.start).ok());
    offset.unwrap_or_else(|| {
        runs.push(Run {
            start: symbol.address,
            end: u64::MAX,
            first: number as u32,
            owner: symbol.owner,
        });
        0
    })
}

/// Sets the end of the last symbol of each run: the next run, or the end of its owner's code.
fn set_ends(symbols: &mut KernelSymbols, modules: &HashMap<String, Module>) {
    let starts = symbols.runs.iter().map(|run| run.start).skip(1);
    let next_starts: Vec<u64> = starts.chain([u64::MAX]).collect();
    for (number, next) in next_starts.into_iter().enumerate() {
        let range = symbols.symbols_of(number).unwrap_or_default();
        let offset = symbols.offsets.get(range.end.saturating_sub(1)).copied();
        let Some(run) = symbols.runs.get_mut(number) else {
            continue;
        };
        let last = run.start.saturating_add(u64::from(offset.unwrap_or(0)));
        let page_end = (last | (PAGE - 1)).saturating_add(1);
        let Some(owner) = symbols.owners.get(usize::from(run.owner)) else {
            continue;
        };
        let limit = match owner.kind {
            OwnerKind::Module => modules
                .get(&*owner.name)
                .map(|module| module.base.saturating_add(module.size))
                .filter(|end| *end > last)
                .unwrap_or(page_end),
            OwnerKind::Bpf => last.saturating_add(PROGRAM_MAX),
            OwnerKind::Kernel | OwnerKind::Other => page_end,
        };
        run.end = limit.min(next);
    }
}

/// Rank among symbols at one address, of which the lowest is kept: no marker of a section, then
/// global, then fewer leading underscores.
fn rank(name: &str, kind: u8) -> u8 {
    let underscores = name.bytes().take_while(|&byte| byte == b'_').count();
    let is_marker = underscores > 0
        && ["text", "_start", "_end", "_begin"].iter().any(|tail| name.ends_with(tail));
    u8::from(is_marker) << 7 | u8::from(kind == b't') << 6 | underscores.min(63) as u8
}

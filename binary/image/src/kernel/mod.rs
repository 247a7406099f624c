//! The running kernel's code: the symbol and the owner of an address.
//!
//! The kernel lists its symbols in `/proc/kallsyms` (kernel/kallsyms.c): `address type name`, and
//! in brackets the owner if that is not the kernel proper: a module's name, `bpf` (BPF programs and
//! their trampolines; include/linux/filter.h), `__builtin__ftrace`, `__builtin__kprobes`.

mod list;

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::ops::Range;
use std::path::Path;

use object::endian::Endianness;

use crate::{ImageError, ImageId, ImageOffset, Procedure, Procedures};

/// The owner of a piece of kernel code.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Owner<'a> {
    /// The kernel proper.
    Kernel,
    /// A loaded module, by name.
    Module(&'a str),
    /// A BPF program by its symbol (`bpf_prog_TAG_NAME`), or one of BPF's trampolines.
    Bpf(&'a str),
    /// Other code that the kernel wrote itself, by its symbol: a trampoline of the function tracer
    /// (`ftrace_trampoline`), a page of instructions that kprobes execute out of line
    /// (`kprobe_insn_page`).
    Other(&'a str),
}

/// The place of an address of kernel code.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct KernelPlace<'a> {
    /// The owner of the code.
    pub owner: Owner<'a>,
    /// The address in that owner's image: from `_stext` in the kernel, from the load address in a
    /// module, from the symbol's own start in the rest (BPF and other).
    pub offset: ImageOffset,
    /// First byte of the symbol that holds it, counted as `offset` is.
    pub symbol_start: ImageOffset,
    /// The byte after the symbol's last, counted as `offset` is. The kernel does not tell sizes:
    /// a symbol reaches to the next one, padding included.
    pub symbol_end: ImageOffset,
    /// The symbol, as the kernel spells it (mangled, where the kernel's code is Rust).
    pub symbol: &'a str,
}

/// A kernel with padding before each procedure (x86, since 6.2) lists each procedure twice. The
/// padding is executed only by tracers that patch themselves in, but a sample there belongs to the
/// procedure that follows, not to the one before.
const PADDING_PREFIX: &str = "__pfx_";
/// Bit that marks a symbol with padding before it, in the number where its name begins: names have
/// fewer bytes than that.
const PADDED: u32 = 1 << 31;

/// The kernel's symbols of code, compactly: for a kernel of 120 thousand symbols about 2 MB.
///
/// Of several symbols at one address one is kept, the first by: not a section's marker
/// (`__irqentry_text_start`), global, fewer leading underscores, shorter, alphabet.
#[derive(Debug)]
pub struct KernelSymbols {
    stext: u64,
    idle_text: Option<Range<u64>>,
    owners: Vec<OwnerEntry>,
    /// Runs by start; they are disjoint.
    runs: Vec<Run>,
    /// Address of each symbol, from its run's start; sorted in each run.
    offsets: Vec<u32>,
    /// Begin of each symbol's name in `names`, and whether the symbol is [`PADDED`].
    name_starts: Vec<u32>,
    /// Bytes of padding before each symbol with that mark.
    padding: u32,
    names: Names,
}

/// Consecutive symbols of one owner, less than 4 GiB apart.
#[derive(Debug)]
struct Run {
    start: u64,
    /// End of its last symbol.
    end: u64,
    /// Number of its first symbol. Its last is the one before the next run's first.
    first: u32,
    owner: u16,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum OwnerKind {
    Kernel,
    Module,
    Bpf,
    Other,
}

#[derive(Debug)]
struct OwnerEntry {
    kind: OwnerKind,
    name: Box<str>,
    /// Address that its offsets count from; unused where each symbol counts from its own start.
    base: u64,
}

/// Names, each ended by a NUL. `__pfx_foo` and `foo` share their bytes: a kernel with padding
/// before each procedure (x86, since 6.2) lists every procedure twice.
#[derive(Debug, Default)]
struct Names {
    bytes: Vec<u8>,
    /// Begin of the last name.
    last: usize,
}

impl Names {
    fn get(&self, start: u32) -> &str {
        let from = self.bytes.get(start as usize..).unwrap_or_default();
        let end = from.iter().position(|&byte| byte == 0).unwrap_or(0);
        // Only text is ever added. The start may be inside a name but never inside a character.
        str::from_utf8(from.get(..end).unwrap_or_default()).unwrap_or_default()
    }
}

impl KernelSymbols {
    /// Reads `/proc/kallsyms`, a line at a time. A module is taken to be loaded at its lowest
    /// symbol of code.
    ///
    /// # Errors
    /// [`ImageError::AddressesHidden`] when every address is zero (`kernel.kptr_restrict`, or a
    /// reader without `CAP_SYSLOG`); [`ImageError::NoKernelSymbol`] without `_stext`;
    /// [`ImageError::TooLarge`]; [`ImageError::Io`]. Lines that are not of the list's form are
    /// passed over.
    pub fn parse(kallsyms: impl BufRead) -> Result<Self, ImageError> {
        Self::parse_with_modules(kallsyms, std::io::empty())
    }

    /// Reads `/proc/kallsyms`, and `/proc/modules` (kernel/module/procfs.c) for where each module
    /// is loaded and how far it reaches.
    pub fn parse_with_modules(
        kallsyms: impl BufRead,
        modules: impl BufRead,
    ) -> Result<Self, ImageError> {
        let modules = list::modules(modules)?;
        list::symbols(kallsyms)?.finish(&modules)
    }

    /// Reads the lists at these paths: `/proc/kallsyms` and `/proc/modules`. The second may be
    /// absent, as it is from a kernel without modules.
    ///
    /// # Errors
    /// Returns the errors of [`KernelSymbols::parse`]; an [`ImageError::Io`] names the list.
    pub fn load(kallsyms: &Path, modules: &Path) -> Result<Self, ImageError> {
        let open = |path: &Path| {
            let file = File::open(path).map_err(|source| ImageError::Io {
                op: "open",
                path: Some(path.to_path_buf()),
                source,
            })?;
            Ok::<_, ImageError>(BufReader::new(file))
        };
        let places = match open(modules) {
            Ok(file) => list::modules(file).map_err(|error| error.of(modules))?,
            Err(ImageError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                HashMap::new()
            }
            Err(error) => return Err(error),
        };
        list::symbols(open(kallsyms)?)
            .and_then(|symbols| symbols.finish(&places))
            .map_err(|error| error.of(kallsyms))
    }

    /// Address of `_stext`, from which offsets in the kernel count.
    pub fn stext(&self) -> u64 {
        self.stext
    }

    /// Addresses of the code that idles: by the kernel's own rule (`cpu_in_idle`,
    /// kernel/sched/idle.c) from `__cpuidle_text_start` to `__cpuidle_text_end`.
    pub fn idle_text(&self) -> Option<Range<u64>> {
        self.idle_text.clone()
    }

    /// The symbol that holds an address. `None` outside of all code that the kernel lists. Takes
    /// time logarithmic in the number of symbols, and allocates nothing.
    pub fn place(&self, address: u64) -> Option<KernelPlace<'_>> {
        let run = self.runs.partition_point(|run| run.start <= address);
        let run = run.checked_sub(1)?;
        let symbols = self.symbols_of(run)?;
        let run = self.runs.get(run)?;
        let into = u32::try_from(address.checked_sub(run.start)?).ok()?;
        let offsets = self.offsets.get(symbols.clone())?;
        let at = offsets.partition_point(|&offset| offset <= into).checked_sub(1)?;
        let padding =
            self.padding_before(run, &symbols, at + 1).filter(|padding| address >= padding.start);
        let place = padding.or_else(|| self.symbol(run, symbols, at))?;
        (address < place.end).then(|| self.shown(run, &place, address))
    }

    /// The number of symbols.
    pub fn len(&self) -> usize {
        self.offsets.len() + self.name_starts.iter().filter(|&&start| start & PADDED != 0).count()
    }

    /// Whether there are no symbols; never so after [`KernelSymbols::parse`].
    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// Bytes of memory that the symbols take.
    pub fn memory_bytes(&self) -> usize {
        self.names.bytes.capacity()
            + size_of::<u32>() * (self.offsets.capacity() + self.name_starts.capacity())
            + size_of::<Run>() * self.runs.capacity()
            + size_of::<OwnerEntry>() * self.owners.capacity()
    }

    /// Numbers of a run's symbols.
    fn symbols_of(&self, run: usize) -> Option<Range<usize>> {
        let first = self.runs.get(run)?.first as usize;
        let next = self.runs.get(run + 1);
        Some(first..next.map_or(self.offsets.len(), |next| next.first as usize))
    }

    /// The symbol with number `at` of its run.
    fn symbol(&self, run: &Run, symbols: Range<usize>, at: usize) -> Option<Symbol<'_>> {
        let number = symbols.start + at;
        let start = run.start + u64::from(*self.offsets.get(number)?);
        let end = match (self.padding_before(run, &symbols, at + 1), self.offsets.get(number + 1)) {
            (Some(padding), _) => padding.start,
            (None, Some(next)) if number + 1 < symbols.end => run.start + u64::from(*next),
            _ => run.end,
        };
        let name = self.names.get(*self.name_starts.get(number)? & !PADDED);
        // A symbol without a name only marks the end of the code before it.
        (!name.is_empty()).then_some(Symbol { start, end, name })
    }

    /// The padding before the symbol with number `at` of its run, if it has some.
    fn padding_before(&self, run: &Run, symbols: &Range<usize>, at: usize) -> Option<Symbol<'_>> {
        let number = symbols.start.checked_add(at).filter(|number| *number < symbols.end)?;
        let name = self.name_starts.get(number).filter(|start| **start & PADDED != 0)? & !PADDED;
        let end = run.start + u64::from(*self.offsets.get(number)?);
        let name = self.names.get(name.checked_sub(PADDING_PREFIX.len() as u32)?);
        Some(Symbol { start: end.saturating_sub(u64::from(self.padding)), end, name })
    }

    fn shown<'a>(&'a self, run: &Run, symbol: &Symbol<'a>, address: u64) -> KernelPlace<'a> {
        let owner = self.owners.get(usize::from(run.owner));
        let kind = owner.map_or(OwnerKind::Kernel, |owner| owner.kind);
        let base = owner.map_or(self.stext, |owner| owner.base);
        let (owner, base) = match kind {
            OwnerKind::Kernel => (Owner::Kernel, base),
            OwnerKind::Module => (Owner::Module(owner.map_or("", |owner| &owner.name)), base),
            OwnerKind::Bpf => (Owner::Bpf(symbol.name), symbol.start),
            OwnerKind::Other => (Owner::Other(symbol.name), symbol.start),
        };
        let from_base = |address: u64| ImageOffset(address.saturating_sub(base));
        KernelPlace {
            owner,
            offset: from_base(address),
            symbol_start: from_base(symbol.start),
            symbol_end: from_base(symbol.end),
            symbol: symbol.name,
        }
    }

    /// The kernel's own symbols, as procedures.
    fn kernel_procedures(&self) -> Procedures {
        let runs = self.runs.iter().enumerate();
        let symbols = runs.flat_map(|(number, run)| {
            let symbols = self.symbols_of(number).unwrap_or_default();
            (0..symbols.len()).flat_map(move |at| {
                let both =
                    [self.padding_before(run, &symbols, at), self.symbol(run, symbols.clone(), at)];
                both.into_iter()
                    .flatten()
                    .map(|symbol| self.shown(run, &symbol, symbol.start))
                    .collect::<Vec<_>>()
            })
        });
        Procedures::from_list(
            symbols
                .filter(|place| place.owner == Owner::Kernel)
                .map(|place| Procedure::new(place.symbol_start, place.symbol_end, place.symbol)),
        )
    }
}

/// A symbol with its addresses.
struct Symbol<'a> {
    start: u64,
    end: u64,
    name: &'a str,
}

/// The GNU build id among ELF notes: the content of `/sys/kernel/notes` (the kernel's id) or of
/// `/sys/module/NAME/notes/.note.gnu.build-id`, in this machine's byte order.
pub fn build_id_from_notes(bytes: &[u8]) -> Option<ImageId> {
    crate::elf::build_id_in_notes(Endianness::default(), 4, bytes)
}

/// Reads a `System.map`, the list of a kernel's symbols that its build leaves (nm(1) format):
/// procedures at offsets from `_stext`.
///
/// # Errors
/// As [`KernelSymbols::parse`]; a distribution's stand-in without symbols has no `_stext`.
pub fn system_map(map: impl BufRead) -> Result<Procedures, ImageError> {
    Ok(KernelSymbols::parse(map)?.kernel_procedures())
}

#[cfg(test)]
mod tests;

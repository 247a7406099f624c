//! Kernel addresses to images: the kernel itself, its modules, BPF programs, and the idle loop,
//! which is kept apart.

use crate::kernel_code_records::Written;
use crate::mapped_files::Image;
use crate::system::{RecordedKernel, System};
use image::kernel::{KernelSymbols, Owner};
use image::{ImageId, ImageKind, ImageOffset};
use kernel::KernelSymbol;
use model::Unresolved;
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::ops::Range;
use std::sync::Arc;

/// Time between two looks at the list of modules; the kernel does not report when a module is
/// loaded or removed. The kernel's text is read again at most this often, when modules changed or
/// records of BPF programs were lost.
const REFRESH_INTERVAL_NS: u64 = 10_000_000_000;
/// Interval of reading the symbols when an address is in no known text. It is longer, because the
/// kernel does not list all of its code, and reading again would not find such code.
const VAIN_REFRESH_INTERVAL_NS: u64 = 600_000_000_000;

/// Modules and BPF programs remembered.
const PARTS_MAX: usize = 4096;

/// Procedures in which a CPU waits for work, besides those in the kernel's idle text (`__cpuidle`,
/// the range that its own cpu_in_idle() tests): they lie elsewhere because paravirtualisation or a
/// driver has them (arch/x86/kernel/paravirt.c and drivers/idle/intel_idle.c, 6.18;
/// arch/x86/include/asm/irqflags.h, 5.10).
const IDLE_PROCEDURES: [&str; 11] = [
    "arch_cpu_idle", // arm64 before 6.2, where it is noinstr
    "cpu_do_idle",
    "pv_native_safe_halt",
    "native_safe_halt",
    "acpi_safe_halt",
    "acpi_idle_do_entry",
    "mwait_idle",
    "mwait_idle_with_hints",
    "intel_idle",
    "intel_idle_irq",
    "poll_idle",
];

/// The place of a kernel address.
pub struct KernelPlace<'a> {
    /// In which image.
    pub image: Arc<Image>,
    /// At which offset.
    pub offset: ImageOffset,
    /// The first following address that may differ: all addresses before it have the same image and
    /// symbol.
    pub until: u64,
    /// Offsets of the symbol there.
    pub symbol_range: Range<u64>,
    /// The symbol's name. It is stored because the reader of the profile may lack the right to ask
    /// the kernel, or be on another machine.
    pub symbol: &'a str,
}

/// The kernel's symbols, read from it or from a recording.
enum Symbols {
    Read(KernelSymbols),
    Recorded(RecordedKernel),
}

impl Symbols {
    fn place(&self, address: u64) -> Option<image::kernel::KernelPlace<'_>> {
        match self {
            Self::Read(symbols) => symbols.place(address),
            Self::Recorded(symbols) => symbols.place(address),
        }
    }

    fn idle_text(&self) -> Option<Range<u64>> {
        match self {
            Self::Read(symbols) => symbols.idle_text(),
            Self::Recorded(symbols) => symbols.idle_text(),
        }
    }
}

/// The kernel's text as last read, and the changes that its records have reported since.
pub struct KernelText {
    symbols: Option<Symbols>,
    /// Answers questions about modules.
    system: System,
    written: Written,
    read_ns: u64,
    checked_ns: u64,
    /// The list of modules, hashed.
    modules: u64,
    /// Records were lost since it was read.
    doubtful: bool,
    /// Whether an address was outside of the known text.
    missed: bool,
    kernel: Arc<Image>,
    idle: Arc<Image>,
    parts: HashMap<String, Arc<Image>>,
}

impl KernelText {
    /// For the kernel of that release and build. [`KernelText::refresh`] fills it; in a replay it
    /// has what was recorded.
    pub fn new(release: &str, kernel_id: ImageId, system: System) -> Self {
        let image = |id, kind, name: &str, path: String| {
            Arc::new(Image {
                id,
                kind,
                name: name.to_owned(),
                path,
                size_bytes: None,
                procedures: None,
            })
        };
        let path = format!("/boot/vmlinuz-{release}");
        let idle = ImageId::from_name("[idle]", &kernel_id.to_string());
        Self {
            symbols: system.recorded_kernel().map(Symbols::Recorded),
            system,
            written: Written::default(),
            read_ns: 0,
            checked_ns: 0,
            modules: 0,
            doubtful: false,
            missed: false,
            kernel: image(kernel_id, ImageKind::Kernel, "[kernel]", path),
            idle: image(idle, ImageKind::Idle, "[idle]", "[idle]".to_owned()),
            parts: HashMap::new(),
        }
    }

    /// Replaces the symbols by a new reading; None (the reading failed) keeps the old symbols.
    pub fn refresh(&mut self, symbols: Option<KernelSymbols>, now_ns: u64) {
        if let Some(symbols) = symbols {
            self.system.keep_idle_text(symbols.idle_text());
            self.symbols = Some(Symbols::Read(symbols));
        }
        (self.read_ns, self.checked_ns) = (now_ns, now_ns);
        if std::mem::take(&mut self.doubtful) {
            // The new reading may still contain removed code, and already contains new code.
            self.written = Written::default();
        }
        self.missed = false;
    }

    /// The kernel wrote or removed code of its own.
    pub fn apply(&mut self, symbol: &KernelSymbol, time_ns: u64) {
        self.written.apply(symbol, time_ns);
    }

    /// Records of such code were lost.
    pub fn doubt(&mut self) {
        self.doubtful = true;
    }

    /// Forgets code that went before the samples of this drain were taken.
    pub fn forget_gone(&mut self, from_ns: u64) {
        self.written.forget_gone(from_ns);
    }

    /// Whether it is time to read the symbols again; `modules` gives the list of modules.
    pub fn wants_refresh(&mut self, now_ns: u64, modules: impl FnOnce() -> Vec<u8>) -> bool {
        let checked =
            self.modules != 0 && now_ns.saturating_sub(self.checked_ns) < REFRESH_INTERVAL_NS;
        if self.symbols.is_none() || checked || self.system.is_replay() {
            return false;
        }
        self.checked_ns = now_ns;
        let mut hasher = DefaultHasher::new();
        module_addresses(&modules()).for_each(|module| module.hash(&mut hasher));
        let known = std::mem::replace(&mut self.modules, hasher.finish());
        let changed = known != 0 && known != self.modules;
        let missed = self.missed && now_ns.saturating_sub(self.read_ns) >= VAIN_REFRESH_INTERVAL_NS;
        changed || self.doubtful || missed
    }

    /// The place of `address`.
    ///
    /// # Errors
    /// [`Unresolved::KernelAddressesHidden`], [`Unresolved::Vsyscall`] or
    /// [`Unresolved::KernelTextUnknown`].
    pub fn place(&mut self, address: u64) -> Result<KernelPlace<'_>, Unresolved> {
        // The x86-64 vsyscall page is user code at a kernel address
        // (Documentation/arch/x86/x86_64/mm.rst).
        if cfg!(target_arch = "x86_64")
            && (0xffff_ffff_ff60_0000..0xffff_ffff_ff60_1000).contains(&address)
        {
            return Err(Unresolved::Vsyscall);
        }
        let symbols = self.symbols.as_ref().ok_or(Unresolved::KernelAddressesHidden)?;
        // The newest record takes precedence.
        let read = || {
            let place = symbols.place(address)?;
            self.system.keep_kernel(address, &place);
            Some(place)
        };
        let Some(place) = self.written.place(address).or_else(read) else {
            self.missed = true;
            return Err(Unresolved::KernelTextUnknown);
        };
        let end = address.saturating_add(place.symbol_end.0.saturating_sub(place.offset.0));
        let idle = symbols.idle_text().filter(|idle| idle.end > address);
        // At most, a symbol is split by the bounds of the idle text, or by code written into a gap.
        let idle_edge =
            idle.as_ref().map(|idle| if idle.start > address { idle.start } else { idle.end });
        let until =
            self.written.next_after(address).into_iter().chain(idle_edge).fold(end, u64::min);
        let found = |image: &Arc<Image>| KernelPlace {
            image: image.clone(),
            offset: place.offset,
            until,
            symbol_range: place.symbol_start.0..place.symbol_end.0,
            symbol: place.symbol,
        };
        if idle.is_some_and(|idle| idle.contains(&address))
            || IDLE_PROCEDURES.contains(&place.symbol)
        {
            return Ok(found(&self.idle));
        }
        let (kind, name) = match place.owner {
            Owner::Kernel => return Ok(found(&self.kernel)),
            Owner::Module(name) => (ImageKind::Module, name),
            Owner::Bpf(name) => (ImageKind::Bpf, name),
            // Code that the kernel made for itself at run time.
            Owner::Other(name) => (ImageKind::Kernel, name),
        };
        if !self.parts.contains_key(name) {
            if self.parts.len() >= PARTS_MAX {
                self.parts.clear(); // pending samples hold on to the images they need
            }
            self.parts
                .insert(name.to_owned(), Arc::new(part(kind, name, &self.kernel.id, &self.system)));
        }
        self.parts.get(name).map(found).ok_or(Unresolved::KernelTextUnknown)
    }
}

/// A module has a build id of its own; a BPF program's name contains a hash of its instructions
/// (kernel/bpf/syscall.c, bpf_prog_calc_tag).
fn part(kind: ImageKind, name: &str, kernel: &ImageId, system: &System) -> Image {
    let notes = format!("/sys/module/{name}/notes/.note.gnu.build-id");
    let build_id = || image::kernel::build_id_from_notes(&std::fs::read(notes).ok()?);
    let id = (kind == ImageKind::Module).then(|| system.module_id(name, build_id)).flatten();
    let id = id.unwrap_or_else(|| ImageId::from_name(name, &kernel.to_string()));
    let name = format!("[{name}]");
    Image { id, kind, path: name.clone(), name, size_bytes: None, procedures: None }
}

/// From each line of /proc/modules (name, size, users, used by, state, address), the name, the size
/// and the address: the list of users changes all the time.
fn module_addresses(list: &[u8]) -> impl Iterator<Item = [&[u8]; 3]> {
    list.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(u8::is_ascii_whitespace);
        let (name, size) = (fields.next()?, fields.next()?);
        Some([name, size, fields.nth(3)?])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KALLSYMS: &str = "ffffffff81000000 T _stext\nffffffff81000100 T work\nffffffff81000400 T _etext\n\
        ffffffffc0001000 t bpf_prog_aa_old\t[bpf]\n";
    const SECOND: u64 = 1_000_000_000;

    fn text() -> KernelText {
        let mut text = KernelText::new("6.1", ImageId::from_name("kernel", ""), System::default());
        text.refresh(Some(KernelSymbols::parse(KALLSYMS.as_bytes()).unwrap()), SECOND);
        text
    }

    fn symbol(address: u64, name: &str, is_gone: bool) -> KernelSymbol {
        KernelSymbol { address, len: 0x80, is_bpf: true, is_gone, name: name.into() }
    }

    /// A BPF program was loaded, and for 10 s its samples were of no image, or of the program that
    /// had been at its address before.
    #[test]
    fn a_program_has_its_name_as_soon_as_the_kernel_tells() {
        let mut text = text();
        let name = |text: &mut KernelText, address| {
            text.place(address).map(|place| place.image.name.clone())
        };
        assert_eq!(name(&mut text, 0xffff_ffff_c000_1010), Ok("[bpf_prog_aa_old]".into()));
        assert_eq!(name(&mut text, 0xffff_ffff_c100_0010), Err(Unresolved::KernelTextUnknown));
        text.apply(&symbol(0xffff_ffff_c000_1000, "bpf_prog_bb_new", false), 2 * SECOND);
        text.apply(&symbol(0xffff_ffff_c100_0000, "bpf_prog_cc", false), 2 * SECOND);
        assert_eq!(name(&mut text, 0xffff_ffff_c000_1010), Ok("[bpf_prog_bb_new]".into()));
        let place = text.place(0xffff_ffff_c100_007f).unwrap();
        assert_eq!(
            (place.image.kind, place.offset.0, place.symbol_range),
            (ImageKind::Bpf, 0x7f, 0..0x80)
        );
        assert_eq!(name(&mut text, 0xffff_ffff_c100_0080), Err(Unresolved::KernelTextUnknown));
        // Its samples of the drain in which it goes are still its own.
        text.apply(&symbol(0xffff_ffff_c100_0000, "bpf_prog_cc", true), 3 * SECOND);
        text.forget_gone(3 * SECOND);
        assert_eq!(name(&mut text, 0xffff_ffff_c100_0010), Ok("[bpf_prog_cc]".into()));
        text.forget_gone(3 * SECOND + 1);
        assert_eq!(name(&mut text, 0xffff_ffff_c100_0010), Err(Unresolved::KernelTextUnknown));
    }

    /// Each BPF program that came had all of /proc/kallsyms read again, 40 ms.
    #[test]
    fn the_symbols_are_read_again_only_for_what_no_record_tells() {
        let mut text = text();
        let modules = |used: u8, more: &str| {
            format!("ext4 1048576 {used} jbd2, Live 0xffffffffc0a00000\n{more}").into_bytes()
        };
        let mut at = 11 * SECOND;
        let mut asked = |text: &mut KernelText, list: Vec<u8>, step: u64| {
            at += step;
            text.wants_refresh(at, || list)
        };
        assert!(!asked(&mut text, modules(1, ""), 0), "the first list is only remembered");
        text.apply(&symbol(0xffff_ffff_c100_0000, "bpf_prog_cc", false), 12 * SECOND);
        let _ = text.place(0xffff_ffff_c900_0000);
        assert!(
            !asked(&mut text, modules(2, ""), 11 * SECOND),
            "neither a BPF program nor an unknown address is a reason"
        );
        let fuse = "fuse 8192 0 - Live 0xffffffffc0a05000\n";
        assert!(!asked(&mut text, modules(2, fuse), SECOND), "not so soon");
        assert!(asked(&mut text, modules(2, fuse), 10 * SECOND), "a module came");
        assert!(asked(&mut text, modules(2, ""), 10 * SECOND), "and went");
        assert!(!asked(&mut text, modules(2, ""), 10 * SECOND));
        text.doubt();
        assert!(asked(&mut text, modules(2, ""), 10 * SECOND), "records were lost");
        text.refresh(None, 100 * SECOND);
        let _ = text.place(0xffff_ffff_c900_0000);
        assert!(
            asked(&mut text, modules(2, ""), 700 * SECOND),
            "an unknown address is one after a long time"
        );
    }

    #[test]
    fn after_lost_records_only_the_new_reading_counts() {
        let mut text = text();
        text.apply(&symbol(0xffff_ffff_c100_0000, "bpf_prog_cc", false), 2 * SECOND);
        text.doubt();
        text.refresh(Some(KernelSymbols::parse(KALLSYMS.as_bytes()).unwrap()), 3 * SECOND);
        assert_eq!(text.place(0xffff_ffff_c100_0010).err(), Some(Unresolved::KernelTextUnknown));
    }
}

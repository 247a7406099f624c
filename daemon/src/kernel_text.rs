//! Kernel addresses to images: the kernel itself, its modules, BPF programs, and the idle loop, which is kept apart.

use crate::images::Image;
use crate::kernel::Machine;
use crate::unresolved::Reason;
use image::kernel::{KernelSymbols, Owner};
use image::{ImageId, ImageKind, ImageOffset};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// The kernel's text is read again at most this often when an address is in none of it (BPF programs and modules come and go).
const REFRESH_INTERVAL_NS: u64 = 10_000_000_000;

/// Modules and BPF programs remembered.
const PARTS_MAX: usize = 4096;

/// Procedures in which a CPU waits for work, besides those in the kernel's idle text (`__cpuidle`, the range that its own
/// cpu_in_idle() tests): they lie elsewhere because paravirtualisation or a driver has them (arch/x86/kernel/paravirt.c and
/// drivers/idle/intel_idle.c, 6.18; arch/x86/include/asm/irqflags.h, 5.10).
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

/// Where a kernel address lies.
pub struct KernelPlace<'a> {
    /// In which image.
    pub image: Arc<Image>,
    /// At which offset.
    pub offset: ImageOffset,
    /// Offsets of the symbol there.
    pub symbol_range: Range<u64>,
    /// Its name: the reader of the profile may not be allowed to ask the kernel, or be on another machine.
    pub symbol: &'a str,
}

/// The kernel's text as last read.
pub struct KernelText {
    symbols: Option<KernelSymbols>,
    read_ns: u64,
    stale: bool,
    kernel: Arc<Image>,
    idle: Arc<Image>,
    parts: HashMap<String, Arc<Image>>,
}

impl KernelText {
    /// An empty one for this machine's kernel: [`KernelText::refresh`] fills it.
    #[must_use]
    pub fn new(machine: &Machine) -> Self {
        let image = |id, kind, name: &str, path: String| {
            Arc::new(Image { id, kind, name: name.to_owned(), path, size_bytes: None, procedures: None })
        };
        let path = format!("/boot/vmlinuz-{}", machine.kernel_release);
        let idle = ImageId::from_name("[idle]", &machine.kernel_id.to_string());
        Self {
            symbols: None,
            read_ns: 0,
            stale: true,
            kernel: image(machine.kernel_id, ImageKind::Kernel, "[kernel]", path),
            idle: image(idle, ImageKind::Idle, "[idle]", "[idle]".to_owned()),
            parts: HashMap::new(),
        }
    }

    /// Takes up a new reading of the symbols; None, when it failed, keeps the old one.
    pub fn refresh(&mut self, symbols: Option<KernelSymbols>, now_ns: u64) {
        self.symbols = symbols.or(self.symbols.take());
        self.read_ns = now_ns;
        self.stale = false;
    }

    /// The kernel said that its text changed, or an address was found in none of it.
    pub fn mark_stale(&mut self) {
        self.stale = true;
    }

    /// Whether it is time to read the symbols again.
    #[must_use]
    pub fn wants_refresh(&self, now_ns: u64) -> bool {
        self.stale && self.symbols.is_some() && now_ns.saturating_sub(self.read_ns) >= REFRESH_INTERVAL_NS
    }

    /// Where `address` lies.
    ///
    /// # Errors
    /// [`Reason::KernelAddressesHidden`], [`Reason::Vsyscall`] or [`Reason::KernelTextUnknown`].
    pub fn place(&mut self, address: u64) -> Result<KernelPlace<'_>, Reason> {
        // The x86-64 vsyscall page is user code at a kernel address (Documentation/arch/x86/x86_64/mm.rst).
        if cfg!(target_arch = "x86_64") && (0xffff_ffff_ff60_0000..0xffff_ffff_ff60_1000).contains(&address) {
            return Err(Reason::Vsyscall);
        }
        let symbols = self.symbols.as_ref().ok_or(Reason::KernelAddressesHidden)?;
        let Some(place) = symbols.place(address) else {
            self.stale = true;
            return Err(Reason::KernelTextUnknown);
        };
        let found = |image: &Arc<Image>| KernelPlace {
            image: image.clone(),
            offset: place.offset,
            symbol_range: place.symbol_start.0..place.symbol_end.0,
            symbol: place.symbol,
        };
        if symbols.idle_text().is_some_and(|idle| idle.contains(&address)) || IDLE_PROCEDURES.contains(&place.symbol) {
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
            self.parts.insert(name.to_owned(), Arc::new(part(kind, name, &self.kernel.id)));
        }
        self.parts.get(name).map(found).ok_or(Reason::KernelTextUnknown)
    }
}

/// A module has a build id of its own; a BPF program's name contains a hash of its instructions (kernel/bpf/syscall.c, bpf_prog_calc_tag).
fn part(kind: ImageKind, name: &str, kernel: &ImageId) -> Image {
    let notes = format!("/sys/module/{name}/notes/.note.gnu.build-id");
    let build_id = || image::kernel::build_id_from_notes(&std::fs::read(notes).ok()?);
    let id = (kind == ImageKind::Module).then(build_id).flatten();
    let id = id.unwrap_or_else(|| ImageId::from_name(name, &kernel.to_string()));
    let name = format!("[{name}]");
    Image { id, kind, path: name.clone(), name, size_bytes: None, procedures: None }
}

//! The sampler's tables as the daemon sees them: mapped memory, drained one half at a time without
//! any lock.
//!
//! The sampler on a CPU writes only the half that the CPU's `half` word names. To drain, the daemon
//! writes the other half's number there and then makes that CPU take an interprocessor interrupt
//! ([`super::sideband::Sideband::quiesce`]). Samplers run in interrupts themselves (timer or NMI)
//! on their own CPU and cannot be suspended, so once the CPU has answered, no sampler that read the
//! old number is still running, and the answer orders its writes before our reads. Sampling never
//! stops.

use super::KernelError;
use super::mapped::Mapped;
use abi::{
    BUCKETS, Bucket, CpuBlock, EVENTS_MAX, Entry, HALVES, HalfStats, KernelScope, KernelScopes,
    Library, Losses, PID_BITS, PROGRAM_APART, SLOT_BITS, Slot,
};

use std::cell::OnceCell;
use std::mem::size_of;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Sizes of each CPU's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSettings {
    /// Entries, of 16 bytes, in the spill buffer of a half. 1 to 2^20.
    pub spill_entries: u32,
    /// Buckets, of 64 bytes, of a half outside of the CPU's page, at most 4096 (code that many
    /// processes share is spread by 12 bits of its address); 0: the buckets in the page are used.
    pub buckets: u32,
}

impl TableSettings {
    /// Kernel memory that one CPU's tables take.
    pub fn bytes_per_cpu(&self) -> usize {
        let tables = size_of::<Bucket>() * self.buckets as usize
            + size_of::<Entry>() * self.spill_entries as usize;
        let half = tables + size_of::<Losses>();
        HALVES * half + size_of::<CpuBlock>()
    }
}

/// The tables of all possible CPUs.
pub struct Table {
    settings: TableSettings,
    cpus: Mapped<CpuBlock>,
    /// The buckets of all halves, where they are not in the pages.
    buckets: Option<Mapped<Bucket>>,
    spill: Mapped<Entry>,
    losses: Mapped<Losses>,
    /// The map of slots, which is mapped only when it is needed: its pages would count as the
    /// daemon's.
    slots: OwnedFd,
    /// The map of scopes, mapped when the first process has one.
    scopes: OwnedFd,
    mapped_scopes: OnceCell<Option<Mapped<KernelScope>>>,
}

/// File descriptors of the sampler's maps.
pub struct MapFds<'a> {
    pub cpus: BorrowedFd<'a>,
    pub table: BorrowedFd<'a>,
    pub spill: BorrowedFd<'a>,
    pub losses: BorrowedFd<'a>,
    pub slots: BorrowedFd<'a>,
    pub scopes: BorrowedFd<'a>,
}

/// The counts of a drained half besides its entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HalfTotals {
    /// Statistics as the sampler wrote them.
    pub stats: HalfStats,
    /// Samples taken but not counted, by event number.
    pub losses: [u64; EVENTS_MAX],
}

impl Table {
    /// Maps the tables of `cpus` possible CPUs.
    pub fn new(
        fds: &MapFds<'_>,
        settings: TableSettings,
        cpus: usize,
    ) -> Result<Self, KernelError> {
        let halves = cpus * HALVES;
        let buckets = halves * settings.buckets as usize;
        let kept = |map: BorrowedFd<'_>, bytes: usize| {
            let failed = |source| KernelError::Map { what: "processes", bytes, source };
            map.try_clone_to_owned().map_err(failed)
        };
        Ok(Self {
            settings,
            cpus: Mapped::new(fds.cpus, cpus, "pages")?,
            buckets: (buckets > 0)
                .then(|| Mapped::new(fds.table, buckets, "tables"))
                .transpose()?,
            spill: Mapped::new(
                fds.spill,
                halves * settings.spill_entries as usize,
                "spill buffers",
            )?,
            losses: Mapped::new(fds.losses, halves, "loss counters")?,
            slots: kept(fds.slots, size_of::<Slot>() << SLOT_BITS)?,
            scopes: kept(fds.scopes, size_of::<KernelScope>() << SLOT_BITS)?,
            mapped_scopes: OnceCell::new(),
        })
    }

    /// Makes the other half of `cpu` count from now on, and returns the number of the half that
    /// counted. The caller must make the CPU answer an interrupt before it drains that half.
    pub fn flip(&self, cpu: usize) -> usize {
        let Some(block) = self.cpus.pointer(cpu) else { return 0 };
        // SAFETY: inside the mapping; only the daemon writes this word, the sampler reads it whole
        // (an aligned 32-bit load).
        unsafe {
            let half = (&raw mut (*block).half).read_volatile() & 1;
            (&raw mut (*block).half).write_volatile(half ^ 1);
            half as usize
        }
    }

    /// Makes the sampler on `cpu` take a snapshot for each period of this many samples of user
    /// code; 0: none.
    pub fn snapshot_every(&self, cpu: usize, every: u32) {
        if let Some(block) = self.cpus.pointer(cpu) {
            // SAFETY: inside the mapping; only the daemon writes this word, the sampler reads it
            // whole (an aligned 32-bit load).
            unsafe { (&raw mut (*block).snapshot_every).write_volatile(every) }
        }
    }

    /// Makes the sampler on `cpu` take a call stack for each period of this many samples; 0: none.
    pub fn stack_every(&self, cpu: usize, every: u32) {
        if let Some(block) = self.cpus.pointer(cpu) {
            // SAFETY: as in `snapshot_every`.
            unsafe { (&raw mut (*block).stack_every).write_volatile(every) }
        }
    }

    /// Waits of `scale_us` and longer have their stacks taken on `cpu`; 0: none have.
    pub fn wait_scale(&self, cpu: usize, scale_us: u32) {
        if let Some(block) = self.cpus.pointer(cpu) {
            // SAFETY: as in `snapshot_every`.
            unsafe { (&raw mut (*block).wait_scale_us).write_volatile(scale_us) }
        }
    }

    /// What kernel code is counted under on `cpu`.
    pub fn kernel_scopes(&self, cpu: usize, scopes: KernelScopes) {
        if let Some(block) = self.cpus.pointer(cpu) {
            // SAFETY: as in `snapshot_every`.
            unsafe { (&raw mut (*block).kernel_scopes).write_volatile(scopes as u32) }
        }
    }

    /// Counts the kernel code of a process, and of the children that it will have, under the scope
    /// of that number; 0: none. The process's number is the root namespace's.
    pub fn set_kernel_scope(&self, pid: u32, number: u32) {
        let mapped = self.mapped_scopes.get_or_init(|| {
            Mapped::new(self.scopes.as_fd(), 1 << SLOT_BITS, "scopes")
                .inspect_err(|error| tracing::error!("{error}; kernel code has no scope"))
                .ok()
        });
        if let Some(scopes) = mapped {
            // One aligned word of 64 bits, which the sampler reads whole.
            scopes.write(pid as usize & ((1 << SLOT_BITS) - 1), KernelScope { pid, number });
        }
    }

    /// Marks a process so that neither its text and libraries nor those of its children is counted
    /// together with that of others. Its number is the root namespace's. The slot of another
    /// process is taken only if it `is_ours`: nobody else writes it now.
    pub fn keep_apart(&self, pid: u32, is_ours: bool) {
        let index = pid as usize & ((1 << SLOT_BITS) - 1);
        let slots = match Mapped::<Slot>::new(self.slots.as_fd(), 1 << SLOT_BITS, "processes") {
            Ok(slots) => slots,
            Err(error) => {
                return tracing::error!(
                    "{error}; samples of process {pid} in its own text are not kept apart"
                );
            }
        };
        let (Some(slot), Some(at)) = (slots.read(index), slots.pointer(index)) else { return };
        if slot.space & ((1 << PID_BITS) - 1) == pid {
            // If another process takes the slot at this moment, that one is counted apart: nothing
            // that is written here makes a sample another's.
            // SAFETY: inside the mapping and aligned; the sampler reads and writes each word whole.
            unsafe {
                (&raw mut (*at).text_len).write_volatile(0);
                for library in 0..slot.libraries.len() {
                    let libraries = (&raw mut (*at).libraries).cast::<Library>();
                    (&raw mut (*libraries.add(library)).len).write_volatile(0);
                }
                (&raw mut (*at).program).write_volatile(PROGRAM_APART);
            }
        } else if is_ours {
            // Another process has the line, and can do without: the mark must be found when this
            // one forks or execs.
            slots.write(index, Slot { space: pid, program: PROGRAM_APART, ..Slot::default() });
        }
    }

    /// Fill level of the spill buffer of the half that counts now on `cpu`, 0 to 1. Only a hint,
    /// because the sampler writes the buffer meanwhile.
    pub fn spill_used(&self, cpu: usize) -> f64 {
        let Some(block) = self.cpus.pointer(cpu) else { return 0.0 };
        // SAFETY: inside the mapping, half is 0 or 1; `spilled` is an aligned 32-bit word.
        let spilled = unsafe {
            let half = (&raw mut (*block).half).read_volatile() as usize & 1;
            let stats = (&raw mut (*block).stats).cast::<HalfStats>().add(half);
            (&raw mut (*stats).spilled).read_volatile()
        };
        f64::from(spilled) / f64::from(self.settings.spill_entries)
    }

    /// Moves all counts of a half that no longer counts to `into`. The entries keep their places
    /// with count 0, so that they are found when the half counts again.
    pub fn drain(&self, cpu: usize, half: usize, into: &mut Vec<Entry>) -> HalfTotals {
        let half_index = cpu * HALVES + half;
        let stats = self.take_stats(cpu, half);
        let spill_entries = self.settings.spill_entries as usize;
        let spilled = (stats.spilled as usize).min(spill_entries);
        // One place may be spilled many times; the caller adds these entries up.
        into.extend((0..spilled).filter_map(|n| self.spill.read(half_index * spill_entries + n)));
        if stats.taken != 0 {
            for index in 0..self.buckets() {
                let Some(mut bucket) = self.read_bucket(cpu, half, index) else { break };
                let before = into.len();
                into.extend(bucket.entries.iter().filter(|entry| entry.count != 0));
                if into.len() == before {
                    continue;
                }
                bucket.entries.iter_mut().for_each(|entry| entry.count = 0);
                self.write_bucket(cpu, half, index, bucket);
            }
        }
        let losses = self.losses.read(half_index).unwrap_or_default().spill_full;
        if losses != [0; EVENTS_MAX] {
            self.losses.write(half_index, Losses::default());
        }
        HalfTotals { stats, losses }
    }

    fn buckets(&self) -> usize {
        if self.buckets.is_some() { self.settings.buckets as usize } else { BUCKETS }
    }

    fn bucket(&self, cpu: usize, half: usize, index: usize) -> Option<*mut Bucket> {
        if half >= HALVES || index >= self.buckets() {
            return None;
        }
        if let Some(buckets) = &self.buckets {
            return buckets.pointer((cpu * HALVES + half) * self.buckets() + index);
        }
        let block = self.cpus.pointer(cpu)?;
        // SAFETY: inside the mapping, for the numbers are below those of halves and buckets; the
        // address alone is computed.
        Some(unsafe { (&raw mut (*block).table).cast::<Bucket>().add(half * BUCKETS + index) })
    }

    fn read_bucket(&self, cpu: usize, half: usize, index: usize) -> Option<Bucket> {
        // SAFETY: inside the mapping and aligned; any bits are a bucket. The sampler writes the
        // other half only.
        self.bucket(cpu, half, index).map(|bucket| unsafe { bucket.read_volatile() })
    }

    fn write_bucket(&self, cpu: usize, half: usize, index: usize, value: Bucket) {
        if let Some(bucket) = self.bucket(cpu, half, index) {
            // SAFETY: as in `read_bucket`.
            unsafe { bucket.write_volatile(value) }
        }
    }

    fn take_stats(&self, cpu: usize, half: usize) -> HalfStats {
        let Some(block) = self.cpus.pointer(cpu) else { return HalfStats::default() };
        // SAFETY: inside the mapping, half is 0 or 1; the sampler writes the other half's
        // statistics only.
        unsafe {
            let stats = (&raw mut (*block).stats).cast::<HalfStats>().add(half & 1);
            let taken = stats.read_volatile();
            stats.write_volatile(HalfStats::default());
            taken
        }
    }
}

/// The number of CPUs that this kernel may ever have: the size of per-CPU tables.
///
/// # Errors
/// When /sys/devices/system/cpu/possible cannot be read; its format is cpulist (kernel
/// documentation, ABI/stable/sysfs-devices-system-cpu).
pub fn possible_cpus() -> Result<usize, KernelError> {
    Ok(super::machine::cpu_list("possible")?.last().map_or(1, |last| last + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    /// Plain files stand in for the maps: the same memory layout, no kernel.
    fn table(settings: TableSettings, cpus: usize) -> Table {
        let file = |bytes: usize| {
            let file = tempfile::tempfile().unwrap();
            file.set_len(bytes as u64).unwrap();
            file
        };
        let halves = cpus * HALVES;
        let files: [File; 6] = [
            file(cpus * size_of::<CpuBlock>()),
            file(halves * size_of::<Bucket>() * settings.buckets as usize),
            file(halves * size_of::<Entry>() * settings.spill_entries as usize),
            file(halves * size_of::<Losses>()),
            file(size_of::<Slot>() << SLOT_BITS),
            file(size_of::<KernelScope>() << SLOT_BITS),
        ];
        let fds = MapFds {
            cpus: files[0].as_fd(),
            table: files[1].as_fd(),
            spill: files[2].as_fd(),
            losses: files[3].as_fd(),
            slots: files[4].as_fd(),
            scopes: files[5].as_fd(),
        };
        Table::new(&fds, settings, cpus).unwrap()
    }

    #[test]
    fn a_drained_half_gives_everything_once_and_leaves_the_other_alone() {
        for buckets in [0, 100] {
            drained_half(&table(TableSettings { spill_entries: 8, buckets }, 2));
        }
    }

    fn drained_half(table: &Table) {
        let (in_bucket, in_spill, other) =
            (Entry::new(0, 0x10, 5, 3), Entry::new(1, 0x20, 5, 2), Entry::new(0, 0x30, 6, 1));
        // CPU 1 counted in half 0: one entry in a bucket, one spilled, one sample lost.
        let mut bucket = Bucket::default();
        bucket.entries[0] = in_bucket;
        table.spill.write(2 * 8, in_spill);
        let mut losses = Losses::default();
        losses.spill_full[1] = 1;
        table.losses.write(2, losses);
        let stats = HalfStats { taken: 6, misses: 2, spilled: 1 };
        let stats_of_both = [stats, HalfStats { taken: 1, misses: 1, spilled: 0 }];
        table.cpus.write(1, CpuBlock { stats: stats_of_both, ..CpuBlock::default() });
        table.write_bucket(1, 0, table.buckets() - 1, bucket);
        // and in half 1 of the same CPU meanwhile:
        bucket.entries[0] = other;
        table.write_bucket(1, 1, 0, bucket);

        assert_eq!(table.flip(1), 0);
        let mut entries = Vec::new();
        let totals = table.drain(1, 0, &mut entries);
        assert_eq!(totals.stats, stats);
        assert_eq!(totals.losses[1], 1);
        assert_eq!(entries, [in_spill, in_bucket]);
        let counted: u64 = entries.iter().map(|entry| u64::from(entry.count)).sum();
        assert_eq!(counted + totals.losses.iter().sum::<u64>(), totals.stats.taken);

        entries.clear();
        assert_eq!(table.drain(1, 0, &mut entries), HalfTotals::default());
        assert!(entries.is_empty(), "a half drained twice gives nothing the second time");
        assert_eq!(table.flip(1), 1);
        table.drain(1, 1, &mut entries);
        assert_eq!(entries, [other]);
        assert_eq!(table.flip(0), 0, "another CPU's half is its own");
    }
}

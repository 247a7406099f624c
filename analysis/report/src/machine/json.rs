//! `dcpi machine` as JSON.

use model::{MeasuredCache, MeasuredMachine, MeasuredTlb, Spread};

use super::{Agreement, MachineReport, Missing, Told, level, size, tlb_level};

/// The object that a report is.
pub(super) fn of(report: &MachineReport) -> MachineJson<'_> {
    let MeasuredMachine { caches, tlbs, clock, events, .. } = &report.measured;
    MachineJson {
        cpu_model: &report.measured.cpu_model,
        unix_s: report.measured.unix_s,
        seconds: report.seconds,
        rounds: report.rounds,
        others_share: report.others_share,
        core_ghz: report.of_rounds(report.measured.core_ghz),
        large_pages: report.measured.large_pages,
        caches: caches
            .iter()
            .map(|of| CacheEntry::of(of, report.of_rounds(of.latency_cycles)))
            .collect(),
        tlbs: tlbs.iter().map(|of| TlbEntry::of(of, report.of_rounds(of.cycles))).collect(),
        not_found: report.missing(),
        memory_bytes: report.measured.memory_bytes,
        memory_cycles: report.measured.memory_cycles,
        loaded_memory_cycles: report.measured.loaded_memory_cycles,
        page_walk_cycles: report.measured.page_walk_cycles,
        cold_page_walk_cycles: report.measured.cold_page_walk_cycles,
        mispredict_cycles: report.of_rounds(report.measured.mispredict_cycles),
        forward_cycles: report.of_rounds(report.measured.forward_cycles),
        forward_failing_cycles: report.of_rounds(report.measured.forward_failing_cycles),
        clock: ClockEntry {
            ticks_per_ns: clock.ticks_per_ns,
            step_ns: clock.step_ns,
            read_ns: report.of_rounds(clock.read_ns),
            fenced_read_ns: report.of_rounds(clock.fenced_read_ns),
        },
        events: events
            .iter()
            .map(|(name, of)| EventEntry { name, ns: report.of_rounds(*of) })
            .collect(),
        latencies: report
            .latencies
            .iter()
            .map(|(bytes, cycles)| (*bytes, *cycles))
            .map(|(bytes, cycles)| LatencyEntry { bytes, cycles })
            .collect(),
        page_latencies: report
            .page_latencies
            .iter()
            .map(|(pages, cycles)| PageEntry { pages: *pages, cycles: *cycles })
            .collect(),
        mountain: report
            .mountain
            .iter()
            .flat_map(|(bytes, row)| {
                let cell = |(stride, rate): (&usize, &Option<f64>)| MountainEntry {
                    bytes: *bytes,
                    stride: *stride,
                    bytes_per_ns: *rate,
                };
                report.strides.iter().zip(row).map(cell).collect::<Vec<_>>()
            })
            .collect(),
        measured: rows(report),
    }
}

/// The rows of CSV: sizes, and then quantities.
fn rows(report: &MachineReport) -> Vec<RowJson> {
    let MeasuredMachine { caches, tlbs, .. } = &report.measured;
    let whole = |of: Option<u64>| of.map(|of| of.to_string());
    let size_row = |name: String, unit, low, high, stated| {
        let [low, value, high] = [low, size(low, high, stated), high].map(whole);
        RowJson { name, unit, low, value, high, stated }
    };
    let caches_of = caches
        .iter()
        .map(|of| size_row(level(of.level), "bytes", of.bytes_low, of.bytes_high, of.stated_bytes));
    let line = caches.iter().take(1);
    let line = line.map(|of| size_row("line".into(), "bytes", of.line, of.line, of.stated_line));
    let tlbs = tlbs.iter().map(|of| {
        let (low, high) = (of.entries_low, of.entries_high);
        size_row(tlb_level(of.level), "entries", low, high, of.stated_entries)
    });
    let missing = report.missing().into_iter();
    let missing = missing.map(|of| size_row(of.name, of.unit, None, None, Some(of.stated)));
    let cycles = report.cycles().into_iter().map(|(name, of)| (name, "cycles", of));
    let times = report.times().into_iter().map(|(name, of)| (name, "ns", of));
    let quantities = cycles.chain(times).map(|(name, unit, Told { low, value, high })| {
        let number = |of: Option<f64>| of.map(|of| format!("{of:.3}"));
        let [low, value, high] = [low, Some(value), high].map(number);
        RowJson { name, unit, low, value, high, stated: None }
    });
    caches_of.chain(line).chain(tlbs).chain(missing).chain(quantities).collect()
}

/// Whether a size is the stated one; none if that cannot be decided.
fn agrees(of: Agreement) -> Option<bool> {
    match of {
        Agreement::Agrees => Some(true),
        Agreement::Differs => Some(false),
        Agreement::Unknown | Agreement::Shared => None,
    }
}

crate::fields! {
    /// Spreads have the median as `value`, and the lowest and the highest of the rounds; those of
    /// memory the 5th and the 99th percentile of pieces of 512 loads. Of one round, `low` and
    /// `high` of rounds are `null` (in CSV empty): how far a quantity moves is not known. In CSV a
    /// row is a size (unit `bytes` or `entries`) or a quantity (`cycles` or `ns`).
    #[derive(Debug)]
    pub struct MachineJson<'a> {
        /// the processor, as /proc/cpuinfo has it
        cpu_model: &'a str;
        /// time of the measurement
        unix_s: u64, "s";
        /// its duration
        seconds: f64, "s";
        /// its rounds
        rounds: usize;
        /// part of the CPUs' time that other programs and other guests had meanwhile
        others_share: f64, "share";
        /// clock of the core
        core_ghz: Told, "GHz";
        /// true: the kernel gave pages of 2 MiB, so latencies of caches have no page walks
        large_pages: bool;
        caches: Vec<CacheEntry>;
        tlbs: Vec<TlbEntry>;
        not_found: Vec<Missing>;
        /// working set of the following
        memory_bytes: u64, "bytes";
        /// of a load from memory
        memory_cycles: Spread, "cycles";
        /// the same while other CPUs read memory; `null` with one CPU
        loaded_memory_cycles: Option<Spread>, "cycles";
        /// of a page walk of random loads; `low`: of the fewest pages beyond the TLBs, `high`: also
        /// while other CPUs read memory
        page_walk_cycles: Option<Spread>, "cycles";
        /// of a page walk with the page tables in no cache
        cold_page_walk_cycles: Option<f64>, "cycles";
        /// of a mispredicted branch
        mispredict_cycles: Told, "cycles";
        /// from a store to a load of the same word
        forward_cycles: Told, "cycles";
        /// from two stores to a load of a word with both
        forward_failing_cycles: Told, "cycles";
        clock: ClockEntry;
        events: Vec<EventEntry<'a>>;
        latencies: Vec<LatencyEntry>;
        page_latencies: Vec<PageEntry>;
        mountain: Vec<MountainEntry>;
        measured (csvrows): Vec<RowJson>;
    }

    /// A size or a quantity.
    #[derive(Debug)]
    pub struct RowJson {
        /// what was measured
        name: String => "name";
        /// of the row's numbers
        unit: &'static str => "unit";
        /// lowest; of a size, the largest that was surely within it
        low: Option<String>, "unit" => "low";
        /// median; of a size, the stated one within the range, else its middle
        value: Option<String>, "unit" => "value";
        /// highest; of a size, the smallest that was surely beyond it
        high: Option<String>, "unit" => "high";
        /// the size by sysfs or CPUID
        stated: Option<u64>, "unit" => "stated";
    }

    /// A data cache.
    #[derive(Debug)]
    pub struct CacheEntry {
        /// level of a data cache
        level: u32;
        /// its size: the stated one within the measured range, else its middle; `null`: no end was
        /// found
        bytes: Option<u64>, "bytes";
        /// largest working set that was surely within it
        bytes_low: Option<u64>, "bytes";
        /// smallest that was surely beyond it
        bytes_high: Option<u64>, "bytes";
        /// its size by sysfs
        stated_bytes: Option<u64>, "bytes";
        /// whether that is within the range; `null`: shared with other CPUs, or not known
        agrees: Option<bool>;
        /// of a line
        line: Option<u64>, "bytes";
        /// of a line, by sysfs
        stated_line: Option<u64>, "bytes";
        /// from the address of a load to its value
        latency_cycles: Told, "cycles";
    }

    /// A data TLB.
    #[derive(Debug)]
    pub struct TlbEntry {
        /// level of a data TLB
        level: u32;
        /// its entries for pages of 4 KiB, as `caches[].bytes`
        entries: Option<u64>;
        /// most pages that surely had entries
        entries_low: Option<u64>;
        /// fewest that surely had not all
        entries_high: Option<u64>;
        /// entries by CPUID
        stated_entries: Option<u64>;
        /// whether that is within the range
        agrees: Option<bool>;
        /// of a load with its page here, beyond one with its page in the first level
        cycles: Told, "cycles";
    }

    /// The counter.
    #[derive(Debug)]
    pub struct ClockEntry {
        /// rate of the counter
        ticks_per_ns: f64;
        /// step by which it moves
        step_ns: f64, "ns";
        /// of a read
        read_ns: Told, "ns";
        /// of a read between fences
        fenced_read_ns: Told, "ns";
    }

    /// An event.
    #[derive(Debug)]
    pub struct EventEntry<'a> {
        /// an event: `clock_gettime`, `thread_time`, `system_call`, `fence_pair`, `page_fault`
        name: &'a str;
        /// its time
        ns: Told, "ns";
    }

    /// The latency of a working set.
    #[derive(Debug)]
    pub struct LatencyEntry {
        /// a working set
        bytes: usize, "bytes";
        /// of a load from it; `null`: not measured, since other programs had the CPU
        cycles: Option<f64>, "cycles";
    }

    /// The latency of loads from pages.
    #[derive(Debug)]
    pub struct PageEntry {
        /// a number of pages of 4 KiB
        pages: usize;
        /// of a load, one in each of them; `null` likewise
        cycles: Option<f64>, "cycles";
    }

    /// A place of the mountain.
    #[derive(Debug)]
    pub struct MountainEntry {
        /// a working set
        bytes: usize, "bytes";
        /// a stride
        stride: usize, "bytes";
        /// speed of reading words of 8 bytes; `null` likewise
        bytes_per_ns: Option<f64>, "bytes/ns";
    }
}

impl CacheEntry {
    fn of(of: &MeasuredCache, latency_cycles: Told) -> Self {
        Self {
            level: of.level,
            bytes: size(of.bytes_low, of.bytes_high, of.stated_bytes),
            bytes_low: of.bytes_low,
            bytes_high: of.bytes_high,
            stated_bytes: of.stated_bytes,
            agrees: agrees(Agreement::of_cache(of)),
            line: of.line,
            stated_line: of.stated_line,
            latency_cycles,
        }
    }
}

impl TlbEntry {
    fn of(of: &MeasuredTlb, cycles: Told) -> Self {
        Self {
            level: of.level,
            entries: size(of.entries_low, of.entries_high, of.stated_entries),
            entries_low: of.entries_low,
            entries_high: of.entries_high,
            stated_entries: of.stated_entries,
            agrees: agrees(Agreement::of_tlb(of)),
            cycles,
        }
    }
}

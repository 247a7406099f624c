//! `dcpi machine` as plain data, as text, JSON and CSV.

use std::io::{self, Write};

use model::{MeasuredCache, MeasuredMachine, MeasuredTlb, Spread};
use query::problem::Problem;
use serde::Serialize;

use super::csv::record;
use super::quantity::{bytes, thousands};
use super::table::{Cell, Table};
use super::text::{head, note};
use super::{Report, Style};

/// `dcpi machine`.
#[derive(Debug)]
pub struct MachineReport {
    /// What was measured, as files and epochs keep it.
    pub measured: MeasuredMachine,
    /// Time that it took, s.
    pub seconds: f64,
    /// Rounds over this time.
    pub rounds: usize,
    /// Cycles of a load by working set in bytes.
    pub latencies: Vec<(usize, f64)>,
    /// Cycles of a load by number of pages, one load in each.
    pub page_latencies: Vec<(usize, f64)>,
    /// Strides of the columns of `mountain`, bytes.
    pub strides: Vec<usize>,
    /// Bytes per ns that are read, by working set in bytes, for each stride.
    pub mountain: Vec<(usize, Vec<f64>)>,
}

/// From this level on a cache is shared with other CPUs: what one program gets of it varies.
const SHARED_LEVEL: u32 = 3;

/// Beside what was measured, what the processor or the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Agreement {
    /// They say nothing, or no end was found.
    Unknown,
    /// Their size is within the measured range.
    Agrees,
    /// It is not.
    Differs,
    /// The level is shared, so that the measured range is the part that one gets.
    Shared,
}

impl Agreement {
    fn of(level: u32, (low, high): (Option<u64>, Option<u64>), stated: Option<u64>) -> Self {
        match (low, high, stated) {
            (Some(_), Some(_), Some(_)) if level >= SHARED_LEVEL => Self::Shared,
            (Some(low), Some(high), Some(stated)) if (low..=high).contains(&stated) => Self::Agrees,
            (Some(_), Some(_), Some(_)) => Self::Differs,
            _ => Self::Unknown,
        }
    }

    fn of_cache(cache: &MeasuredCache) -> Self {
        Self::of(cache.level, (cache.bytes_low, cache.bytes_high), cache.stated_bytes)
    }

    fn of_tlb(tlb: &MeasuredTlb) -> Self {
        // TLBs of all levels belong to one core.
        Self::of(0, (tlb.entries_low, tlb.entries_high), tlb.stated_entries)
    }

    fn of_line(cache: &MeasuredCache) -> Self {
        Self::of(0, (cache.line, cache.line), cache.stated_line)
    }
}

/// The middle of a measured range, or the stated size within it.
fn size(low: Option<u64>, high: Option<u64>, stated: Option<u64>) -> Option<u64> {
    let (low, high) = (low?, high?);
    let middle = (low as f64 * high as f64).sqrt() as u64;
    Some(stated.filter(|stated| (low..=high).contains(stated)).unwrap_or(middle))
}

impl MachineReport {
    /// Each size with its name and whether it agrees with what is stated.
    fn agreements(&self) -> Vec<(String, Agreement)> {
        let MeasuredMachine { caches, tlbs, .. } = &self.measured;
        let caches_of = caches.iter().map(|cache| (level(cache.level), Agreement::of_cache(cache)));
        let line = caches.iter().take(1).map(|of| ("line".to_owned(), Agreement::of_line(of)));
        let tlbs = tlbs.iter().map(|tlb| (tlb_level(tlb.level), Agreement::of_tlb(tlb)));
        caches_of.chain(line).chain(tlbs).collect()
    }

    /// The first lines: what was found, in words.
    fn verdict(&self) -> Vec<String> {
        let all = self.agreements();
        let named = |which: Agreement| {
            let names = all.iter().filter(|(_, of)| *of == which).map(|(name, _)| name.as_str());
            names.collect::<Vec<_>>().join(", ")
        };
        let (agree, differ) = (named(Agreement::Agrees), named(Agreement::Differs));
        let mut lines = Vec::new();
        if !differ.is_empty() {
            lines.push(format!(
                "{differ}: measured otherwise than the processor and the kernel say"
            ));
        }
        if !agree.is_empty() {
            lines.push(format!("{agree}: as large as the processor and the kernel say"));
        }
        let shared = |cache: &&MeasuredCache| Agreement::of_cache(cache) == Agreement::Shared;
        for cache in self.measured.caches.iter().filter(shared) {
            if let (Some(low), Some(high), Some(stated)) =
                (cache.bytes_low, cache.bytes_high, cache.stated_bytes)
            {
                lines.push(format!(
                    "{}: one program gets {} to {} of {} at this time",
                    level(cache.level),
                    bytes(low),
                    bytes(high),
                    bytes(stated)
                ));
            }
        }
        let ns = self.ns(self.measured.memory_cycles.value);
        let cycles = self.measured.memory_cycles.value.round() as u64;
        lines.push(format!("a load from memory takes {} cycles, {ns:.0} ns", thousands(cycles)));
        lines
    }

    fn ns(&self, cycles: f64) -> f64 {
        cycles / self.measured.core_ghz.value.max(f64::MIN_POSITIVE)
    }

    /// The quantities in cycles: name and value.
    fn cycles(&self) -> Vec<(String, Spread)> {
        let measured = &self.measured;
        let same = |value: f64| Spread { low: value, value, high: value };
        let caches = measured.caches.iter();
        let caches = caches.map(|of| (format!("{} load", level(of.level)), of.latency_cycles));
        let loaded = measured.loaded_memory_cycles.into_iter();
        let tlbs = measured.tlbs.iter().skip(1);
        let memory = [("memory load".to_owned(), measured.memory_cycles)];
        caches
            .chain(memory)
            .chain(loaded.map(|of| ("memory load, other CPUs reading".to_owned(), of)))
            .chain(tlbs.map(|of| (format!("{} hit, more", tlb_level(of.level)), of.cycles)))
            .chain(measured.page_walk_cycles.map(|of| ("page walk, more".to_owned(), of)))
            .chain(
                measured
                    .cold_page_walk_cycles
                    .map(|of| ("page walk without caches, more".to_owned(), same(of))),
            )
            .chain([
                ("mispredicted branch".to_owned(), measured.mispredict_cycles),
                ("store to load".to_owned(), measured.forward_cycles),
                ("stores to wider load".to_owned(), measured.forward_failing_cycles),
            ])
            .collect()
    }

    /// The quantities in ns.
    fn times(&self) -> Vec<(String, Spread)> {
        let MeasuredMachine { clock, events, .. } = &self.measured;
        let events = events.iter().map(|(name, of)| (name.replace('_', " "), *of));
        [
            ("counter read".to_owned(), clock.read_ns),
            ("counter read, fenced".to_owned(), clock.fenced_read_ns),
        ]
        .into_iter()
        .chain(events)
        .collect()
    }

    fn sizes_table(&self) -> Table {
        let mut table = Table::default();
        table.words("size of");
        table.number("measured", "");
        table.number("ends between", "");
        table.number("stated", "");
        table.words("by");
        let number = |of: Option<u64>, unit: fn(u64) -> String| of.map_or(String::new(), unit);
        let mut row = |name: String,
                       range: (Option<u64>, Option<u64>),
                       stated,
                       of: Agreement,
                       unit: fn(u64) -> String,
                       by: &str| {
            let between = match range {
                (Some(low), Some(high)) => format!("{}–{}", unit(low), unit(high)),
                _ => "not found".to_owned(),
            };
            let measured = match of {
                Agreement::Shared => String::new(),
                _ => number(size(range.0, range.1, stated), unit),
            };
            let says = match of {
                Agreement::Unknown if stated.is_none() => "nobody".to_owned(),
                Agreement::Unknown => by.to_owned(),
                Agreement::Agrees => format!("{by}: agrees"),
                Agreement::Differs => format!("{by}: differs"),
                Agreement::Shared => format!("{by}: shared"),
            };
            let cells = [name, measured, between, number(stated, unit), says];
            table.row(cells.map(Cell::from).into_iter().collect());
        };
        let entries: fn(u64) -> String = thousands;
        for of in &self.measured.caches {
            let range = (of.bytes_low, of.bytes_high);
            row(level(of.level), range, of.stated_bytes, Agreement::of_cache(of), bytes, "sysfs");
        }
        for of in self.measured.caches.iter().take(1) {
            let range = (of.line, of.line);
            row("line".into(), range, of.stated_line, Agreement::of_line(of), bytes, "sysfs");
        }
        for of in &self.measured.tlbs {
            let range = (of.entries_low, of.entries_high);
            let name = format!("{}, entries", tlb_level(of.level));
            row(name, range, of.stated_entries, Agreement::of_tlb(of), entries, "CPUID");
        }
        table
    }

    fn quantities_table(&self) -> Table {
        let mut table = Table::default();
        table.words("time of");
        table.number("cycles", "");
        table.number("low–high", "");
        table.number("ns", "");
        let range = |of: Spread| format!("{}–{}", digits(of.low), digits(of.high));
        for (name, of) in self.cycles() {
            let cells = [name, digits(of.value), range(of), digits(self.ns(of.value))];
            table.row(cells.map(Cell::from).into_iter().collect());
        }
        let per_ns = self.measured.core_ghz.value;
        for (name, of) in self.times() {
            let in_cycles = |ns: f64| ns * per_ns;
            let spread = Spread {
                low: in_cycles(of.low),
                value: in_cycles(of.value),
                high: in_cycles(of.high),
            };
            let cells = [name, digits(spread.value), range(spread), digits(of.value)];
            table.row(cells.map(Cell::from).into_iter().collect());
        }
        table
    }
}

fn level(level: u32) -> String {
    format!("L{level}")
}

fn tlb_level(level: u32) -> String {
    format!("TLB {level}")
}

/// Three digits of a number.
fn digits(number: f64) -> String {
    match number {
        ..=99.95 => format!("{number:.1}"),
        _ => thousands(number.round().max(0.0) as u64),
    }
}

impl Report for MachineReport {
    const NAME: &'static str = "machine";

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        let MeasuredMachine { cpu_model, cpuid, core_ghz, clock, .. } = &self.measured;
        for (number, line) in self.verdict().iter().enumerate() {
            head(style, out, if number == 0 { "found" } else { "" }, line)?;
        }
        let who = format!("{cpu_model}, family {} model {}", cpuid.family, cpuid.model);
        head(style, out, "processor", &format!("{who}, {:.2} GHz", core_ghz.value))?;
        head(style, out, "measured", &format!("{} rounds in {:.1} s", self.rounds, self.seconds))?;
        let step = format!(
            "{:.3} ticks per ns, in steps of {:.1} ns: shorter times are not told apart",
            clock.ticks_per_ns, clock.step_ns
        );
        head(style, out, "counter", &step)?;
        writeln!(out)?;
        self.sizes_table().write(style, out)?;
        writeln!(out)?;
        self.quantities_table().write(style, out)?;
        writeln!(out)?;
        note(
            style,
            out,
            "low–high: over the rounds; of loads from memory the 5th and the 99th percentile of \
             pieces of 512 loads. more: beyond the load itself",
        )?;
        if !self.measured.large_pages {
            note(
                style,
                out,
                "the kernel gave no large pages: latencies have page walks in them \
                 (/sys/kernel/mm/transparent_hugepage/enabled: madvise gives some)",
            )?;
        }
        Ok(())
    }

    fn json(&self) -> impl Serialize + '_ {
        let MeasuredMachine { caches, tlbs, clock, events, .. } = &self.measured;
        Json {
            cpu_model: &self.measured.cpu_model,
            unix_s: self.measured.unix_s,
            seconds: self.seconds,
            rounds: self.rounds,
            core_ghz: self.measured.core_ghz,
            large_pages: self.measured.large_pages,
            caches: caches.iter().map(CacheEntry::of).collect(),
            tlbs: tlbs.iter().map(TlbEntry::of).collect(),
            memory_bytes: self.measured.memory_bytes,
            memory_cycles: self.measured.memory_cycles,
            loaded_memory_cycles: self.measured.loaded_memory_cycles,
            page_walk_cycles: self.measured.page_walk_cycles,
            cold_page_walk_cycles: self.measured.cold_page_walk_cycles,
            mispredict_cycles: self.measured.mispredict_cycles,
            forward_cycles: self.measured.forward_cycles,
            forward_failing_cycles: self.measured.forward_failing_cycles,
            clock: ClockEntry {
                ticks_per_ns: clock.ticks_per_ns,
                step_ns: clock.step_ns,
                read_ns: clock.read_ns,
                fenced_read_ns: clock.fenced_read_ns,
            },
            events: events.iter().map(|(name, of)| EventEntry { name, ns: *of }).collect(),
            latencies: self
                .latencies
                .iter()
                .map(|(bytes, cycles)| (*bytes, *cycles))
                .map(|(bytes, cycles)| LatencyEntry { bytes, cycles })
                .collect(),
            page_latencies: self
                .page_latencies
                .iter()
                .map(|(pages, cycles)| PageEntry { pages: *pages, cycles: *cycles })
                .collect(),
            mountain: self
                .mountain
                .iter()
                .flat_map(|(bytes, row)| {
                    let cell = |(stride, rate): (&usize, &f64)| MountainEntry {
                        bytes: *bytes,
                        stride: *stride,
                        bytes_per_ns: *rate,
                    };
                    self.strides.iter().zip(row).map(cell).collect::<Vec<_>>()
                })
                .collect(),
        }
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        record(out, &["name", "unit", "low", "value", "high", "stated"].map(str::to_owned))?;
        let text = |of: Option<u64>| of.map(|of| of.to_string()).unwrap_or_default();
        let mut size_row = |name: String, unit: &str, low, high, stated| {
            let cells = [
                name,
                unit.to_owned(),
                text(low),
                text(size(low, high, stated)),
                text(high),
                text(stated),
            ];
            record(out, &cells)
        };
        for of in &self.measured.caches {
            size_row(level(of.level), "bytes", of.bytes_low, of.bytes_high, of.stated_bytes)?;
        }
        for of in self.measured.caches.iter().take(1) {
            size_row("line".into(), "bytes", of.line, of.line, of.stated_line)?;
        }
        for of in &self.measured.tlbs {
            let (low, high) = (of.entries_low, of.entries_high);
            size_row(tlb_level(of.level), "entries", low, high, of.stated_entries)?;
        }
        let cycles = self.cycles().into_iter().map(|(name, of)| (name, "cycles", of));
        let times = self.times().into_iter().map(|(name, of)| (name, "ns", of));
        for (name, unit, Spread { low, value, high }) in cycles.chain(times) {
            let numbers = [low, value, high].map(|number| format!("{number:.3}"));
            let [low, value, high] = numbers;
            record(out, &[name, unit.to_owned(), low, value, high, String::new()])?;
        }
        Ok(())
    }

    fn problems(&self) -> &[Problem] {
        &[]
    }
}

#[derive(Serialize)]
struct Json<'a> {
    cpu_model: &'a str,
    unix_s: u64,
    seconds: f64,
    rounds: usize,
    core_ghz: Spread,
    large_pages: bool,
    caches: Vec<CacheEntry>,
    tlbs: Vec<TlbEntry>,
    memory_bytes: u64,
    memory_cycles: Spread,
    loaded_memory_cycles: Option<Spread>,
    page_walk_cycles: Option<Spread>,
    cold_page_walk_cycles: Option<f64>,
    mispredict_cycles: Spread,
    forward_cycles: Spread,
    forward_failing_cycles: Spread,
    clock: ClockEntry,
    events: Vec<EventEntry<'a>>,
    latencies: Vec<LatencyEntry>,
    page_latencies: Vec<PageEntry>,
    mountain: Vec<MountainEntry>,
}

#[derive(Serialize)]
struct CacheEntry {
    level: u32,
    bytes: Option<u64>,
    bytes_low: Option<u64>,
    bytes_high: Option<u64>,
    stated_bytes: Option<u64>,
    agrees: Option<bool>,
    line: Option<u64>,
    stated_line: Option<u64>,
    latency_cycles: Spread,
}

impl CacheEntry {
    fn of(of: &MeasuredCache) -> Self {
        Self {
            level: of.level,
            bytes: size(of.bytes_low, of.bytes_high, of.stated_bytes),
            bytes_low: of.bytes_low,
            bytes_high: of.bytes_high,
            stated_bytes: of.stated_bytes,
            agrees: agrees(Agreement::of_cache(of)),
            line: of.line,
            stated_line: of.stated_line,
            latency_cycles: of.latency_cycles,
        }
    }
}

/// Whether a size is the stated one; none where that cannot be said.
fn agrees(of: Agreement) -> Option<bool> {
    match of {
        Agreement::Agrees => Some(true),
        Agreement::Differs => Some(false),
        Agreement::Unknown | Agreement::Shared => None,
    }
}

#[derive(Serialize)]
struct TlbEntry {
    level: u32,
    entries: Option<u64>,
    entries_low: Option<u64>,
    entries_high: Option<u64>,
    stated_entries: Option<u64>,
    agrees: Option<bool>,
    cycles: Spread,
}

impl TlbEntry {
    fn of(of: &MeasuredTlb) -> Self {
        Self {
            level: of.level,
            entries: size(of.entries_low, of.entries_high, of.stated_entries),
            entries_low: of.entries_low,
            entries_high: of.entries_high,
            stated_entries: of.stated_entries,
            agrees: agrees(Agreement::of_tlb(of)),
            cycles: of.cycles,
        }
    }
}

#[derive(Serialize)]
struct ClockEntry {
    ticks_per_ns: f64,
    step_ns: f64,
    read_ns: Spread,
    fenced_read_ns: Spread,
}

#[derive(Serialize)]
struct EventEntry<'a> {
    name: &'a str,
    ns: Spread,
}

#[derive(Serialize)]
struct LatencyEntry {
    bytes: usize,
    cycles: f64,
}

#[derive(Serialize)]
struct PageEntry {
    pages: usize,
    cycles: f64,
}

#[derive(Serialize)]
struct MountainEntry {
    bytes: usize,
    stride: usize,
    bytes_per_ns: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> MachineReport {
        let text = include_bytes!("../../../stalls/tests/zen4.json").as_slice();
        MachineReport {
            measured: MeasuredMachine::of_file(text).unwrap(),
            seconds: 7.0,
            rounds: 3,
            latencies: Vec::new(),
            page_latencies: Vec::new(),
            strides: vec![8],
            mountain: vec![(8192, vec![58.0])],
        }
    }

    #[test]
    fn the_verdict_names_what_differs_first() {
        let mut report = report();
        let [agree, shared, memory] = report.verdict().try_into().unwrap();
        assert_eq!(
            agree,
            "L1, L2, line, TLB 1, TLB 2: as large as the processor and the kernel say"
        );
        assert!(shared.starts_with("L3: one program gets ") && shared.contains(" of 32.0 MiB"));
        assert_eq!(memory, "a load from memory takes 560 cycles, 152 ns");
        report.measured.caches[0].stated_bytes = Some(48 << 10);
        let verdict = report.verdict();
        assert_eq!(verdict[0], "L1: measured otherwise than the processor and the kernel say");
        report.measured.tlbs.clear();
        report.measured.caches.clear();
        assert_eq!(report.verdict().len(), 1, "nothing is said of what was not found");
    }

    #[test]
    fn a_size_is_the_stated_one_within_the_range() {
        assert_eq!(size(Some(29), Some(35), Some(32)), Some(32));
        assert_eq!(size(Some(20), Some(45), Some(48)), Some(30));
        assert_eq!(size(None, None, Some(48)), None);
        assert_eq!(Agreement::of(1, (Some(29), Some(35)), None), Agreement::Unknown);
        assert_eq!(Agreement::of(3, (Some(29), Some(35)), Some(99)), Agreement::Shared);
    }

    #[test]
    fn csv_has_a_row_for_each_size_and_quantity() {
        let mut out = Vec::new();
        report().csv(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("\nL1,bytes,") && text.contains(",32768\n"), "{text}");
        assert!(text.contains("\nmemory load,cycles,543.427,560.043,778.211,\n"), "{text}");
        assert!(text.lines().all(|line| line.split(',').count() >= 6), "{text}");
    }
}

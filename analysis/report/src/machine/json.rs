//! `dcpi machine` as JSON.

use model::{MeasuredCache, MeasuredMachine, MeasuredTlb, Spread};
use serde::Serialize;

use super::{Agreement, MachineReport, Missing, Told, size};

/// The object that a report is.
pub(super) fn of(report: &MachineReport) -> Json<'_> {
    let MeasuredMachine { caches, tlbs, clock, events, .. } = &report.measured;
    Json {
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
        not_found: report.missing().into_iter().map(MissingEntry::of).collect(),
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
    }
}

#[derive(Serialize)]
pub(super) struct Json<'a> {
    cpu_model: &'a str,
    unix_s: u64,
    seconds: f64,
    rounds: usize,
    others_share: f64,
    core_ghz: Told,
    large_pages: bool,
    caches: Vec<CacheEntry>,
    tlbs: Vec<TlbEntry>,
    not_found: Vec<MissingEntry>,
    memory_bytes: u64,
    memory_cycles: Spread,
    loaded_memory_cycles: Option<Spread>,
    page_walk_cycles: Option<Spread>,
    cold_page_walk_cycles: Option<f64>,
    mispredict_cycles: Told,
    forward_cycles: Told,
    forward_failing_cycles: Told,
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
    latency_cycles: Told,
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
    cycles: Told,
}

/// A level that is stated and was not found.
#[derive(Serialize)]
struct MissingEntry {
    name: String,
    unit: &'static str,
    stated: u64,
}

impl MissingEntry {
    fn of(Missing { name, unit, stated, .. }: Missing) -> Self {
        Self { name, unit, stated }
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

#[derive(Serialize)]
struct ClockEntry {
    ticks_per_ns: f64,
    step_ns: f64,
    read_ns: Told,
    fenced_read_ns: Told,
}

#[derive(Serialize)]
struct EventEntry<'a> {
    name: &'a str,
    ns: Told,
}

#[derive(Serialize)]
struct LatencyEntry {
    bytes: usize,
    cycles: Option<f64>,
}

#[derive(Serialize)]
struct PageEntry {
    pages: usize,
    cycles: Option<f64>,
}

#[derive(Serialize)]
struct MountainEntry {
    bytes: usize,
    stride: usize,
    bytes_per_ns: Option<f64>,
}

//! `dcpi machine` as plain data, as text, JSON and CSV.

mod json;

use std::io::{self, Write};

use model::{MeasuredCache, MeasuredMachine, MeasuredTlb, Spread};

use super::quantity::{bytes, counted, thousands};
use super::table::{Cell, Table};
use super::text::{detail, head, note};
use super::{Report, Style};

/// `dcpi machine`.
#[derive(Debug)]
pub struct MachineReport {
    /// The measurement, as files and epochs store it.
    pub measured: MeasuredMachine,
    /// Time that it took, s.
    pub seconds: f64,
    /// Rounds over this time.
    pub rounds: usize,
    /// Part of the time of all CPUs that other programs and, on a virtual machine, other guests
    /// had meanwhile, 0 to 1.
    pub others_share: f64,
    /// Levels and bytes of data caches by sysfs, also of those that were not found.
    pub stated_caches: Vec<(u32, u64)>,
    /// Entries of data TLBs by CPUID, the first level first, likewise.
    pub stated_tlbs: Vec<u64>,
    /// Cycles of a load by working set in bytes. None: not measured, since other programs had the
    /// CPU.
    pub latencies: Vec<(usize, Option<f64>)>,
    /// Cycles of a load by number of pages, one load in each, likewise.
    pub page_latencies: Vec<(usize, Option<f64>)>,
    /// Strides of the columns of `mountain`, bytes.
    pub strides: Vec<usize>,
    /// Bytes per ns that are read, by working set in bytes, for each stride, likewise.
    pub mountain: Vec<(usize, Vec<Option<f64>>)>,
}

crate::fields! {
    /// A quantity as reports tell it.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Told {
        value: f64;
        /// lowest of the rounds; `null`: of one round
        low: Option<f64>;
        /// highest of the rounds; `null`: of one round
        high: Option<f64>;
    }

    /// A level that the kernel or the processor states, and that was not found.
    #[derive(Debug)]
    pub struct Missing {
        /// a level that is stated and was not told apart from what follows it: `L3`, `TLB 2`
        name: String;
        /// of its stated size: `bytes` or `entries`
        unit: &'static str;
        /// its size by sysfs or CPUID
        stated: u64, "bytes, entries";
        /// what it was not told apart from
        from (text): &'static str;
    }
}

impl Told {
    fn once(value: f64) -> Self {
        Self { value, low: None, high: None }
    }

    fn times(self, factor: f64) -> Self {
        let times = |number: f64| number * factor;
        Self { value: times(self.value), low: self.low.map(times), high: self.high.map(times) }
    }

    fn range(self) -> String {
        match (self.low, self.high) {
            (Some(low), Some(high)) => format!("{}–{}", digits(low), digits(high)),
            _ => "measured once".to_owned(),
        }
    }
}

impl From<Spread> for Told {
    fn from(Spread { low, value, high }: Spread) -> Self {
        Self { value, low: Some(low), high: Some(high) }
    }
}

/// Lines of what was found that are shown without `-v`, the most important ones.
const BRIEF: usize = 2;
/// Smallest share of the CPUs' time taken by other programs that is reported: an idle system's own
/// work takes less.
const OTHERS_TOLD: f64 = 0.05;

/// From this level on a cache is shared with other CPUs: what one program gets of it varies.
const SHARED_LEVEL: u32 = 3;

/// The measured values beside those that the processor or the kernel states.
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
    /// Each size with its name, and whether it agrees with the stated size.
    fn agreements(&self) -> Vec<(String, Agreement)> {
        let MeasuredMachine { caches, tlbs, .. } = &self.measured;
        let caches_of = caches.iter().map(|cache| (level(cache.level), Agreement::of_cache(cache)));
        let line = caches.iter().take(1).map(|of| ("line".to_owned(), Agreement::of_line(of)));
        let tlbs = tlbs.iter().map(|tlb| (tlb_level(tlb.level), Agreement::of_tlb(tlb)));
        caches_of.chain(line).chain(tlbs).collect()
    }

    /// The first lines, which sum up the results in words.
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
        for (name, from) in self.without_end() {
            lines.push(format!("{name}: where it ends was not found: not told apart from {from}"));
        }
        for Missing { name, unit, stated, from } in self.missing() {
            let (who, stated) = match unit {
                "bytes" => ("kernel", bytes(stated)),
                _ => ("processor", format!("{} {unit}", thousands(stated))),
            };
            lines.push(format!("{name}: not told apart from {from}: the {who} states {stated}"));
        }
        let ns = self.ns(self.measured.memory_cycles.value);
        let cycles = self.measured.memory_cycles.value.round() as u64;
        lines.push(format!("a load from memory takes {} cycles, {ns:.0} ns", thousands(cycles)));
        lines
    }

    fn ns(&self, cycles: f64) -> f64 {
        cycles / self.measured.core_ghz.value.max(f64::MIN_POSITIVE)
    }

    /// Levels that are stated, and were not found: those above as many as were, since levels are
    /// numbered as they are found.
    fn missing(&self) -> Vec<Missing> {
        let MeasuredMachine { caches, tlbs, .. } = &self.measured;
        let found = caches.iter().map(|cache| cache.level).max().unwrap_or(0);
        let caches = self.stated_caches.iter().filter(|(level, _)| *level > found);
        let caches = caches.map(|(of, stated)| Missing {
            name: level(*of),
            unit: "bytes",
            stated: *stated,
            from: "memory",
        });
        let tlbs = (1..).zip(&self.stated_tlbs).skip(tlbs.len()).map(|(of, stated)| Missing {
            name: tlb_level(of),
            unit: "entries",
            stated: *stated,
            from: "page walks",
        });
        caches.chain(tlbs).collect()
    }

    /// Levels that were found without an end, and what follows them.
    fn without_end(&self) -> Vec<(String, &'static str)> {
        let MeasuredMachine { caches, tlbs, .. } = &self.measured;
        let caches = caches.iter().filter(|of| of.bytes_low.is_none());
        let tlbs = tlbs.iter().filter(|of| of.entries_low.is_none());
        let caches = caches.map(|of| (level(of.level), "memory"));
        caches.chain(tlbs.map(|of| (tlb_level(of.level), "page walks"))).collect()
    }

    /// A quantity whose range is that of the rounds.
    fn of_rounds(&self, of: Spread) -> Told {
        if self.rounds > 1 { of.into() } else { Told::once(of.value) }
    }

    /// The quantities in cycles: name and value.
    fn cycles(&self) -> Vec<(String, Told)> {
        let measured = &self.measured;
        let caches = measured.caches.iter();
        let caches = caches
            .map(|of| (format!("{} load", level(of.level)), self.of_rounds(of.latency_cycles)));
        let loaded = measured.loaded_memory_cycles.into_iter();
        let tlbs = measured.tlbs.iter().skip(1);
        let memory = [("memory load".to_owned(), measured.memory_cycles.into())];
        let walks = [
            ("page walk, more", measured.page_walk_cycles.map(Told::from)),
            ("page walk without caches, more", measured.cold_page_walk_cycles.map(Told::once)),
        ];
        caches
            .chain(memory)
            .chain(loaded.map(|of| ("memory load, other CPUs reading".to_owned(), of.into())))
            .chain(tlbs.map(|of| {
                (format!("{} hit, more", tlb_level(of.level)), self.of_rounds(of.cycles))
            }))
            .chain(walks.into_iter().filter_map(|(name, of)| Some((name.to_owned(), of?))))
            .chain(
                [
                    ("mispredicted branch", measured.mispredict_cycles),
                    ("store to load", measured.forward_cycles),
                    ("stores to wider load", measured.forward_failing_cycles),
                ]
                .map(|(name, of)| (name.to_owned(), self.of_rounds(of))),
            )
            .collect()
    }

    /// The quantities in ns.
    fn times(&self) -> Vec<(String, Told)> {
        let MeasuredMachine { clock, events, .. } = &self.measured;
        let events = events.iter().map(|(name, of)| (name.replace('_', " "), self.of_rounds(*of)));
        [
            ("counter read".to_owned(), self.of_rounds(clock.read_ns)),
            ("counter read, fenced".to_owned(), self.of_rounds(clock.fenced_read_ns)),
        ]
        .into_iter()
        .chain(events)
        .collect()
    }

    /// Places of the curves and the mountain that were not measured.
    fn unseen(&self) -> u64 {
        let curves = self.latencies.iter().chain(&self.page_latencies).map(|(_, cycles)| cycles);
        let all = curves.chain(self.mountain.iter().flat_map(|(_, rates)| rates));
        all.filter(|of| of.is_none()).count() as u64
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
        for Missing { name, unit, stated, .. } in self.missing() {
            let (name, unit, by): (_, fn(u64) -> String, _) = match unit {
                "bytes" => (name, bytes, "sysfs"),
                _ => (format!("{name}, entries"), entries, "CPUID"),
            };
            row(name, (None, None), Some(stated), Agreement::Unknown, unit, by);
        }
        table
    }

    fn quantities_table(&self) -> Table {
        let mut table = Table::default();
        table.words("time of");
        table.number("cycles", "");
        table.number("low–high", "");
        table.number("ns", "");
        for (name, of) in self.cycles() {
            let cells = [name, digits(of.value), of.range(), digits(self.ns(of.value))];
            table.row(cells.map(Cell::from).into_iter().collect());
        }
        let per_ns = self.measured.core_ghz.value;
        for (name, of) in self.times() {
            let cycles = of.times(per_ns);
            let cells = [name, digits(cycles.value), cycles.range(), digits(of.value)];
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
    type Fields<'a> = json::MachineJson<'a>;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        let MeasuredMachine { cpu_model, cpuid, core_ghz, clock, .. } = &self.measured;
        let verdict = self.verdict();
        let shown = if style.verbose { verdict.len() } else { BRIEF };
        for (number, line) in verdict.iter().take(shown).enumerate() {
            head(style, out, if number == 0 { "found" } else { "" }, line)?;
        }
        let who = format!("{cpu_model}, family {} model {}", cpuid.family, cpuid.model);
        detail(style, out, "processor", &format!("{who}, {:.2} GHz", core_ghz.value))?;
        let rounds = counted(self.rounds as u64, "round");
        let unsure = match self.rounds {
            1 => ": how far quantities move is not known; raise --seconds",
            _ => "",
        };
        let measured = format!("{rounds} in {:.1} s{unsure}", self.seconds);
        // What makes the numbers worse is said without -v, too.
        if style.verbose || self.rounds == 1 {
            head(style, out, "measured", &measured)?;
        }
        if self.others_share >= OTHERS_TOLD {
            let busy = format!(
                "others had {:.0} % of the CPUs' time meanwhile, so ranges are wider; measure \
                 again in a quiet minute",
                100.0 * self.others_share
            );
            head(style, out, "", &busy)?;
        }
        let step = format!(
            "{:.3} ticks per ns, in steps of {:.1} ns: shorter times are not told apart",
            clock.ticks_per_ns, clock.step_ns
        );
        detail(style, out, "counter", &step)?;
        writeln!(out)?;
        self.sizes_table().write(style, out)?;
        writeln!(out)?;
        self.quantities_table().write(style, out)?;
        writeln!(out)?;
        note(
            style,
            out,
            "low–high: over the rounds; of loads from memory the 5th and the 99th percentile of \
             pieces of 512 loads; of page walks from the fewest pages beyond the TLBs to many \
             pages while other CPUs read. more: beyond the load itself",
        )?;
        let left_out = verdict.len().saturating_sub(shown) as u64;
        if left_out > 0 {
            note(style, out, &format!("{} on what was found: -v", counted(left_out, "more line")))?;
        }
        let unseen = self.unseen();
        if unseen > 0 {
            let places = counted(unseen, "place");
            note(
                style,
                out,
                &format!(
                    "{places} of the curves and the mountain not measured: other programs had the \
                     CPU each time; null in JSON, a gap in the picture"
                ),
            )?;
        }
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

    fn json(&self) -> json::MachineJson<'_> {
        json::of(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> MachineReport {
        let text = include_bytes!("../../stalls/tests/zen4.json").as_slice();
        MachineReport {
            measured: MeasuredMachine::of_file(text).unwrap(),
            seconds: 7.0,
            rounds: 3,
            others_share: 0.0,
            stated_caches: vec![(1, 32 << 10), (2, 1 << 20), (3, 32 << 20)],
            stated_tlbs: vec![72, 3072],
            latencies: Vec::new(),
            page_latencies: Vec::new(),
            strides: vec![8],
            mountain: vec![(8192, vec![Some(58.0)])],
        }
    }

    fn text(report: &MachineReport) -> String {
        let mut out = Vec::new();
        let style =
            Style { columns: 100, full_names: false, wrap: false, colour: false, verbose: true };
        report.text(&style, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_busy_minute_is_told() {
        assert!(!text(&report()).contains("others had"));
        let busy = text(&MachineReport { others_share: 0.456, ..report() });
        assert!(busy.contains("others had 46 % of the CPUs' time"), "{busy}");
    }

    /// Under load one round was measured, and its ranges had no width: as if nothing ever moved.
    #[test]
    fn what_was_measured_once_has_no_range() {
        let mut once = report();
        once.rounds = 1;
        let shown = text(&once);
        assert!(shown.contains("1 round in ") && shown.contains("measured once"), "{shown}");
        let json = serde_json::to_value(once.json()).unwrap();
        for of in ["/core_ghz", "/caches/0/latency_cycles", "/clock/read_ns", "/events/0/ns"] {
            let of = json.pointer(of).unwrap();
            assert!(of["low"].is_null() && of["high"].is_null() && of["value"].is_f64(), "{of}");
        }
        assert!(json["memory_cycles"]["low"].is_f64(), "pieces have a range: {json}");
        let several = serde_json::to_value(report().json()).unwrap();
        assert!(several["core_ghz"]["low"].is_f64(), "{several}");
    }

    /// Under load L3 was not found, and the report did not say so.
    #[test]
    fn what_was_not_found_or_not_measured_is_said() {
        let mut report = report();
        let json = serde_json::to_value(report.json()).unwrap();
        assert_eq!(json["not_found"], serde_json::json!([]));
        report.measured.caches.truncate(2);
        report.measured.caches[1].bytes_low = None;
        report.measured.caches[1].bytes_high = None;
        report.measured.tlbs.truncate(1);
        report.mountain.push((16384, vec![None]));
        let shown = text(&report);
        for said in [
            "L2: where it ends was not found: not told apart from memory",
            "L3: not told apart from memory: the kernel states 32.0 MiB",
            "TLB 2: not told apart from page walks: the processor states 3,072 entries",
            "1 place of the curves and the mountain not measured",
        ] {
            assert!(shown.contains(said), "{said}: {shown}");
        }
        let json = serde_json::to_value(report.json()).unwrap();
        let names: Vec<&serde_json::Value> =
            json["not_found"].as_array().unwrap().iter().map(|of| &of["name"]).collect();
        assert_eq!(names, ["L3", "TLB 2"]);
        assert!(json["mountain"][1]["bytes_per_ns"].is_null(), "{json}");
        let mut csv = Vec::new();
        report.csv(&mut csv).unwrap();
        let csv = String::from_utf8(csv).unwrap();
        assert!(csv.contains("\nL3,bytes,,,,33554432\n"), "{csv}");
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
        (report.stated_caches, report.stated_tlbs) = (Vec::new(), Vec::new());
        assert_eq!(report.verdict().len(), 1, "nothing is said of what nobody states");
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

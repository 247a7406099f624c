//! A processor as `dcpi machine` measured it, and the file that has it: JSON, read by dcpid into
//! the facts of epochs.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::facts::{Cpuid, Fact};

/// A measured quantity, with how far it moved over the rounds of the measurement. In a measurement
/// that is in order ([`MeasuredMachine::check`]), so are these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The lowest.
    pub low: f64,
    /// The median.
    pub value: f64,
    /// The highest; of loads from memory the 99th percentile.
    pub high: f64,
}

/// A level of the data cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredCache {
    /// The level, from 1.
    pub level: u32,
    /// The largest working set that was surely within the level, bytes. None with
    /// `bytes_high` where no working set was surely beyond it.
    pub bytes_low: Option<u64>,
    /// The smallest working set that was surely beyond the level, bytes.
    pub bytes_high: Option<u64>,
    /// Size by sysfs, bytes.
    pub stated_bytes: Option<u64>,
    /// Bytes of a line, measured.
    pub line: Option<u64>,
    /// Bytes of a line by sysfs.
    pub stated_line: Option<u64>,
    /// Cycles from the address of a load to its value.
    pub latency_cycles: Spread,
}

/// A level of the data TLB, for pages of 4 KiB.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredTlb {
    /// The level, from 1.
    pub level: u32,
    /// Most pages that surely had entries. None with `entries_high` where no number of pages was
    /// surely too many.
    pub entries_low: Option<u64>,
    /// Fewest pages that surely had not all entries.
    pub entries_high: Option<u64>,
    /// Entries by CPUID.
    pub stated_entries: Option<u64>,
    /// Cycles of a load beyond those of one whose page has an entry in the first level.
    pub cycles: Spread,
}

/// The clock that one instruction reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredClock {
    /// Ticks of the counter per ns.
    pub ticks_per_ns: f64,
    /// The step by which the counter moves, ns.
    pub step_ns: f64,
    /// Time of a read, ns.
    pub read_ns: Spread,
    /// Time of a read between fences, ns.
    pub fenced_read_ns: Spread,
}

/// A processor, measured. One of a file, or of facts, is in order ([`MeasuredMachine::check`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredMachine {
    /// The processor. Measurements of one are of no use for another.
    pub cpuid: Cpuid,
    /// The processor's name, as /proc/cpuinfo has it.
    pub cpu_model: String,
    /// Time of the measurement, in seconds since 1970 UTC.
    pub unix_s: u64,
    /// Cycles of the core per ns.
    pub core_ghz: Spread,
    /// Whether large pages were there; without them latencies have page walks in them.
    pub large_pages: bool,
    /// Caches of data, the first level first.
    pub caches: Vec<MeasuredCache>,
    /// Data TLBs, the first level first.
    pub tlbs: Vec<MeasuredTlb>,
    /// Cycles of a load from memory; of pieces of 512 loads the 5th percentile, the median and the
    /// 99th percentile.
    pub memory_cycles: Spread,
    /// The same while other CPUs read memory as fast as they could. None with one CPU.
    pub loaded_memory_cycles: Option<Spread>,
    /// Bytes of the working set in memory.
    pub memory_bytes: u64,
    /// Cycles of a page walk for random loads from `memory_bytes` in pages of 4 KiB: low right
    /// beyond the last TLB, high also loaded.
    pub page_walk_cycles: Option<Spread>,
    /// Cycles of a page walk whose tables are in no cache.
    pub cold_page_walk_cycles: Option<f64>,
    /// Cycles of a mispredicted branch.
    pub mispredict_cycles: Spread,
    /// Cycles from a store to a load of the same word.
    pub forward_cycles: Spread,
    /// Cycles from two stores to a load of a word with both, which is not forwarded.
    pub forward_failing_cycles: Spread,
    /// The clock.
    pub clock: MeasuredClock,
    /// Times of other events in ns, by name.
    pub events: BTreeMap<String, Spread>,
}

/// Cycles of one thing: a load on an emulated processor may take thousands, and no processor a
/// million. Measured numbers are told to a thousandth.
const CYCLES: RangeInclusive<f64> = 0.001..=1e6;
/// Cycles computed as the difference of two measurements, which may be 0.
const MORE_CYCLES: RangeInclusive<f64> = 0.0..=1e6;
/// Times of events in ns: a page fault may wait for a hypervisor, and for no second.
const NS: RangeInclusive<f64> = 0.001..=1e9;
/// Clocks of cores, GHz.
const GHZ: RangeInclusive<f64> = 0.001..=100.0;
/// Bytes of a cache, or of a working set.
const BYTES: RangeInclusive<u64> = 1..=1 << 40;
const LINE_BYTES: RangeInclusive<u64> = 1..=1 << 16;
/// Entries of a TLB.
const ENTRIES: RangeInclusive<u64> = 1..=1 << 32;
/// Most levels of caches or TLBs.
const LEVELS_MAX: usize = 8;
/// Most events, and most bytes of a name.
const EVENTS_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 200;
/// The first day of 2020 and the last of 2199: the time of a measurement is between them, so that
/// its date can be determined.
const UNIX_S: RangeInclusive<u64> = 1_577_836_800..=7_258_118_399;

/// A number as a message has it: of a stranger's 10^300, not all digits.
fn shown(number: f64) -> String {
    if number.abs() < 1e9 { format!("{number}") } else { format!("{number:e}") }
}

/// Whether a number can be; `name` says of what.
fn within(name: &str, number: f64, valid: &RangeInclusive<f64>, unit: &str) -> Result<(), String> {
    if valid.contains(&number) {
        return Ok(());
    }
    let [is, low, high] = [number, *valid.start(), *valid.end()].map(shown);
    Err(format!("{name} is {is}, not {low} to {high} {unit}"))
}

/// The same of whole numbers.
fn whole(name: &str, number: u64, valid: &RangeInclusive<u64>, unit: &str) -> Result<(), String> {
    if valid.contains(&number) {
        return Ok(());
    }
    Err(format!("{name} is {number}, not {} to {} {unit}", valid.start(), valid.end()))
}

fn spread(name: &str, of: Spread, valid: &RangeInclusive<f64>, unit: &str) -> Result<(), String> {
    let Spread { low, value, high } = of;
    within(&format!("{name}.low"), low, valid, unit)?;
    within(&format!("{name}.value"), value, valid, unit)?;
    within(&format!("{name}.high"), high, valid, unit)?;
    for (lower, higher, names) in [(low, value, ["low", "value"]), (value, high, ["value", "high"])]
    {
        if lower > higher {
            let [first, second] = names;
            let [lower, higher] = [lower, higher].map(shown);
            return Err(format!("{name}.{first} is {lower}, above {name}.{second}, {higher}"));
        }
    }
    Ok(())
}

/// Whether an end of a level can be: both sides or none, in order.
fn end(
    name: &str,
    (low, high): (Option<u64>, Option<u64>),
    valid: &RangeInclusive<u64>,
    unit: &str,
) -> Result<(), String> {
    match (low, high) {
        (None, None) => Ok(()),
        (Some(low), Some(high)) => {
            whole(&format!("{name}_low"), low, valid, unit)?;
            whole(&format!("{name}_high"), high, valid, unit)?;
            let is_ordered = low <= high;
            let why = || format!("{name}_low is {low}, above {name}_high, {high}");
            if is_ordered { Ok(()) } else { Err(why()) }
        }
        _ => Err(format!("{name}_low and {name}_high are not both there, or both null")),
    }
}

/// Whether levels count up from 1, and are few.
fn levels(name: &str, levels: impl ExactSizeIterator<Item = u32>) -> Result<(), String> {
    if levels.len() > LEVELS_MAX {
        return Err(format!("{name} has more than {LEVELS_MAX} levels"));
    }
    for (level, number) in levels.zip(1..) {
        if level != number {
            return Err(format!("{name}[{}].level is {level}, not {number}", number - 1));
        }
    }
    Ok(())
}

fn short(name: &str, text: &str) -> Result<(), String> {
    let is_short = text.len() <= NAME_BYTES_MAX;
    let why = || format!("{name} has more than {NAME_BYTES_MAX} bytes");
    if is_short { Ok(()) } else { Err(why()) }
}

impl MeasuredCache {
    fn check(&self, name: &str) -> Result<(), String> {
        end(&format!("{name}.bytes"), (self.bytes_low, self.bytes_high), &BYTES, "bytes")?;
        for (of, number, valid) in [
            ("stated_bytes", self.stated_bytes, &BYTES),
            ("line", self.line, &LINE_BYTES),
            ("stated_line", self.stated_line, &LINE_BYTES),
        ] {
            let check = |number| whole(&format!("{name}.{of}"), number, valid, "bytes");
            number.map_or(Ok(()), check)?;
        }
        spread(&format!("{name}.latency_cycles"), self.latency_cycles, &CYCLES, "cycles")
    }
}

impl MeasuredTlb {
    fn check(&self, name: &str) -> Result<(), String> {
        let entries = (self.entries_low, self.entries_high);
        end(&format!("{name}.entries"), entries, &ENTRIES, "entries")?;
        let check = |number| whole(&format!("{name}.stated_entries"), number, &ENTRIES, "entries");
        self.stated_entries.map_or(Ok(()), check)?;
        spread(&format!("{name}.cycles"), self.cycles, &MORE_CYCLES, "cycles")
    }
}

impl Fact for MeasuredMachine {
    const NAME: &'static str = "measured";

    fn is_sound(&self) -> bool {
        self.check().is_ok()
    }
}

/// Name and version of a file's fields.
#[derive(Serialize, Deserialize)]
struct Schema {
    name: String,
    version: u32,
}

const SCHEMA: &str = "dcpi.measured";
const VERSION: u32 = 1;

#[derive(Serialize)]
struct File<'a> {
    schema: Schema,
    #[serde(flatten)]
    measured: &'a MeasuredMachine,
}

impl MeasuredMachine {
    /// Most bytes of a file: one of a processor with eight levels of everything has 8 KiB.
    pub const FILE_BYTES_MAX: u64 = 32 << 10;
    /// Where dcpid looks for the file unless told otherwise.
    pub const FILE: &'static str = "/var/lib/dcpi/machine";

    /// The file's text.
    pub fn to_file(&self) -> String {
        let schema = Schema { name: SCHEMA.to_owned(), version: VERSION };
        // Structures of numbers and texts, which serde_json always accepts.
        let text = serde_json::to_string_pretty(&File { schema, measured: self });
        text.unwrap_or_default() + "\n"
    }

    /// Reads the text of a file, which may be a stranger's.
    ///
    /// # Errors
    /// Why the file is none, in a phrase.
    pub fn of_file(text: &[u8]) -> Result<Self, String> {
        if text.len() as u64 > Self::FILE_BYTES_MAX {
            return Err(format!("it has more than {} KiB", Self::FILE_BYTES_MAX >> 10));
        }
        #[derive(Deserialize)]
        struct Head {
            schema: Schema,
        }
        let head = serde_json::from_slice(text).map_err(|error| {
            // A file of ours that was edited or truncated still begins with its schema.
            let is_ours = text.windows(SCHEMA.len()).any(|part| part == SCHEMA.as_bytes());
            match is_ours {
                true => damage(text, &error),
                false => "it is no file of dcpi machine -o".to_owned(),
            }
        });
        let Head { schema } = head?;
        if schema.name != SCHEMA || schema.version != VERSION {
            let Schema { name, version } = schema;
            let name: String = name.chars().filter(|c| !c.is_control()).take(40).collect();
            return Err(format!("it is {name} version {version}, not {SCHEMA} version {VERSION}"));
        }
        let machine: Self = serde_json::from_slice(text).map_err(|error| damage(text, &error))?;
        machine.check().map_err(|why| format!("damaged: {why}"))?;
        Ok(machine)
    }

    /// Whether each quantity is one that a processor can have: no measurement gives others, but a
    /// file may.
    ///
    /// # Errors
    /// The first quantity that is none, by its name in the file, and why.
    pub fn check(&self) -> Result<(), String> {
        short("cpuid.vendor", &self.cpuid.vendor)?;
        short("cpu_model", &self.cpu_model)?;
        whole("unix_s", self.unix_s, &UNIX_S, "s")?;
        spread("core_ghz", self.core_ghz, &GHZ, "GHz")?;
        levels("caches", self.caches.iter().map(|cache| cache.level))?;
        for (number, cache) in self.caches.iter().enumerate() {
            cache.check(&format!("caches[{number}]"))?;
        }
        levels("tlbs", self.tlbs.iter().map(|tlb| tlb.level))?;
        for (number, tlb) in self.tlbs.iter().enumerate() {
            tlb.check(&format!("tlbs[{number}]"))?;
        }
        whole("memory_bytes", self.memory_bytes, &BYTES, "bytes")?;
        for (name, of, valid) in [
            ("memory_cycles", Some(self.memory_cycles), &CYCLES),
            ("loaded_memory_cycles", self.loaded_memory_cycles, &CYCLES),
            ("page_walk_cycles", self.page_walk_cycles, &MORE_CYCLES),
            ("mispredict_cycles", Some(self.mispredict_cycles), &MORE_CYCLES),
            ("forward_cycles", Some(self.forward_cycles), &CYCLES),
            ("forward_failing_cycles", Some(self.forward_failing_cycles), &CYCLES),
        ] {
            of.map_or(Ok(()), |of| spread(name, of, valid, "cycles"))?;
        }
        let cold = |cycles| within("cold_page_walk_cycles", cycles, &MORE_CYCLES, "cycles");
        self.cold_page_walk_cycles.map_or(Ok(()), cold)?;
        within("clock.ticks_per_ns", self.clock.ticks_per_ns, &GHZ, "per ns")?;
        within("clock.step_ns", self.clock.step_ns, &NS, "ns")?;
        spread("clock.read_ns", self.clock.read_ns, &NS, "ns")?;
        spread("clock.fenced_read_ns", self.clock.fenced_read_ns, &NS, "ns")?;
        if self.events.len() > EVENTS_MAX {
            return Err(format!("events are more than {EVENTS_MAX}"));
        }
        for (name, of) in &self.events {
            short("a name of events", name)?;
            let name: String = name.chars().filter(|c| !c.is_control()).take(40).collect();
            spread(&format!("events.{name}"), *of, &NS, "ns")?;
        }
        Ok(())
    }

    /// This measurement and another one of the same processor: of each bound the wider one. The
    /// later measurement gives the values.
    #[must_use]
    pub fn with(self, other: &Self) -> Self {
        let (mut latest, earlier) =
            if self.unix_s >= other.unix_s { (self, other) } else { (other.clone(), &self) };
        let wider = |of: &mut Spread, other: &Spread| {
            (of.low, of.high) = (of.low.min(other.low), of.high.max(other.high));
        };
        wider(&mut latest.memory_cycles, &earlier.memory_cycles);
        wider(&mut latest.mispredict_cycles, &earlier.mispredict_cycles);
        wider(&mut latest.forward_failing_cycles, &earlier.forward_failing_cycles);
        for (of, other) in [
            (&mut latest.loaded_memory_cycles, earlier.loaded_memory_cycles),
            (&mut latest.page_walk_cycles, earlier.page_walk_cycles),
        ] {
            match (of.as_mut(), other) {
                (Some(of), Some(other)) => wider(of, &other),
                (None, other) => *of = other,
                _ => {}
            }
        }
        let cold = [latest.cold_page_walk_cycles, earlier.cold_page_walk_cycles];
        latest.cold_page_walk_cycles = cold.into_iter().flatten().reduce(f64::max);
        latest
    }

    /// Cycles of a load that hits the first level of the cache.
    pub fn load_cycles(&self) -> Option<f64> {
        self.caches.first().map(|cache| cache.latency_cycles.value).filter(|cycles| *cycles > 0.0)
    }

    /// Most cycles of a load from memory that were seen, also loaded.
    pub fn memory_cycles_max(&self) -> f64 {
        self.memory_cycles.high.max(self.loaded_memory_cycles.map_or(0.0, |loaded| loaded.high))
    }
}

/// Why a text cannot be read, with the field where. Both may repeat a part of the text.
fn damage(text: &[u8], error: &serde_json::Error) -> String {
    let (at, why) = (field_at(text, error.line(), error.column()), error.to_string());
    let why = why.rsplit_once(" at line ").map_or(why.as_str(), |(why, _)| why);
    let at = if at.is_empty() { at } else { format!("{at}: ") };
    let plain = |text: &str, most: usize| -> String {
        text.chars().filter(|c| !c.is_control()).take(most).collect()
    };
    format!("damaged: {}{}", plain(&at, 60), plain(why, 100))
}

/// The field of a JSON text that has the byte before this place, counted from 1, as
/// `caches[0].line`. Empty outside of every field.
fn field_at(text: &[u8], line: usize, column: usize) -> String {
    /// An object with the key before the place, or a list with the number of its element.
    enum Around {
        Object(String),
        List(usize),
    }
    let before: usize =
        text.split(|byte| *byte == b'\n').take(line.saturating_sub(1)).map(|of| of.len() + 1).sum();
    let place = before.saturating_add(column).min(text.len());
    let (mut around, mut string, mut is_key) = (Vec::<Around>::new(), None::<Vec<u8>>, false);
    let mut bytes = text.get(..place).unwrap_or_default().iter().copied();
    while let Some(byte) = bytes.next() {
        match (&mut string, byte) {
            (Some(_), b'\\') => _ = bytes.next(),
            (Some(text), b'"') => {
                if let (true, Some(Around::Object(key))) = (is_key, around.last_mut()) {
                    *key = String::from_utf8_lossy(text).into_owned();
                }
                string = None;
            }
            (Some(text), byte) => text.push(byte),
            (None, b'"') => string = Some(Vec::new()),
            (None, b'{') => around.push(Around::Object(String::new())),
            (None, b'[') => around.push(Around::List(0)),
            (None, b'}' | b']') => _ = around.pop(),
            (None, b',') => {
                if let Some(Around::List(number)) = around.last_mut() {
                    *number += 1;
                }
            }
            _ => {}
        }
        is_key = match byte {
            b'{' | b',' if string.is_none() => true,
            b':' if string.is_none() => false,
            _ => is_key,
        };
    }
    let name = |at: &Around| match at {
        Around::Object(key) => format!(".{key}"),
        Around::List(number) => format!("[{number}]"),
    };
    let names: String = around.iter().map(name).collect();
    names.trim_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Facts;

    pub(crate) fn zen4() -> MeasuredMachine {
        let spread = |low, value, high| Spread { low, value, high };
        let same = |value| spread(value, value, value);
        MeasuredMachine {
            cpuid: Cpuid { vendor: "AuthenticAMD".into(), family: 25, model: 17 },
            cpu_model: "AMD EPYC".into(),
            unix_s: 1_795_000_000,
            core_ghz: same(3.7),
            large_pages: true,
            caches: vec![MeasuredCache {
                level: 1,
                bytes_low: Some(32 << 10),
                bytes_high: Some(35_734),
                stated_bytes: Some(32 << 10),
                line: Some(64),
                stated_line: Some(64),
                latency_cycles: same(4.0),
            }],
            tlbs: vec![MeasuredTlb {
                level: 1,
                entries_low: Some(70),
                entries_high: Some(76),
                stated_entries: Some(72),
                cycles: same(0.0),
            }],
            memory_cycles: spread(540.0, 560.0, 800.0),
            loaded_memory_cycles: Some(spread(550.0, 600.0, 1000.0)),
            memory_bytes: 256 << 20,
            page_walk_cycles: Some(spread(70.0, 180.0, 220.0)),
            cold_page_walk_cycles: Some(1900.0),
            mispredict_cycles: spread(17.0, 17.2, 17.4),
            forward_cycles: same(1.0),
            forward_failing_cycles: same(19.0),
            clock: MeasuredClock {
                ticks_per_ns: 2.596,
                step_ns: 10.0,
                read_ns: same(9.5),
                fenced_read_ns: same(23.3),
            },
            events: BTreeMap::from([("page_fault".into(), same(1400.0))]),
        }
    }

    #[test]
    fn a_file_reads_back_and_so_does_a_fact() {
        let machine = zen4();
        let file = machine.to_file();
        assert!(file.len() < 4096 && file.contains(r#""name": "dcpi.measured""#), "{file}");
        assert_eq!(MeasuredMachine::of_file(file.as_bytes()), Ok(machine.clone()));
        let mut facts = Facts::default();
        facts.state(&machine);
        let json = serde_json::to_string(&facts).unwrap();
        let facts: Facts = serde_json::from_str(&json).unwrap();
        assert_eq!(facts.get(), Some(machine.clone()));
        let mut facts = Facts::default();
        facts.state(&MeasuredMachine { memory_cycles: Spread::default(), ..machine });
        assert_eq!(facts.get::<MeasuredMachine>(), None, "a stranger's database may have it");
    }

    #[test]
    fn damage_is_one_line_and_odd_numbers_are_refused() {
        let file = zen4().to_file();
        let refused = |text: &str| {
            let why = MeasuredMachine::of_file(text.as_bytes()).unwrap_err();
            assert!(!why.contains('\n') && why.len() < 200, "{why}");
            why
        };
        assert_eq!(refused(""), "it is no file of dcpi machine -o");
        assert_eq!(refused("[schema]\nname = 3"), "it is no file of dcpi machine -o");
        assert_eq!(refused(&" ".repeat(40_000)), "it has more than 32 KiB");
        let other = file.replace(r#""version": 1"#, r#""version": 2"#);
        assert_eq!(refused(&other), "it is dcpi.measured version 2, not dcpi.measured version 1");
        for (from, to, said) in [
            ("560.0", "-560.0", "memory_cycles.value is -560, not 0.001 to 1000000 cycles"),
            ("560.0", "1e300", "memory_cycles.value is 1e300, not 0.001 to 1000000 cycles"),
            ("560.0", "1e999", "memory_cycles.value: number out of range"),
            ("560.0", "0", "memory_cycles.value is 0, not 0.001 to 1000000 cycles"),
            ("560.0", "Infinity", "memory_cycles.value: expected value"),
            ("560.0", "null", "memory_cycles.value: invalid type: null, expected f64"),
            ("540.0", "999.0", "memory_cycles.low is 999, above memory_cycles.value, 560"),
            ("560.0", "801", "memory_cycles.value is 801, above memory_cycles.high, 800"),
            ("35734", "100", "caches[0].bytes_low is 32768, above caches[0].bytes_high, 100"),
            ("35734", "null", "caches[0].bytes_low and caches[0].bytes_high are not both there"),
            ("\"line\": 64", "\"line\": 0", "caches[0].line is 0, not 1 to 65536 bytes"),
            ("\"level\": 1", "\"level\": 2", "caches[0].level is 2, not 1"),
            ("\"entries_low\": 70", "\"entries_low\": 0", "tlbs[0].entries_low is 0, not 1 to"),
            ("\"low\": 3.7", "\"low\": 0", "core_ghz.low is 0, not 0.001 to 100 GHz"),
            ("1900.0", "1e9", "cold_page_walk_cycles is 1e9, not 0 to 1000000 cycles"),
            ("2.596", "0", "clock.ticks_per_ns is 0, not 0.001 to 100 per ns"),
            ("\"high\": 1400.0", "\"high\": 3", "events.page_fault.value is 1400, above"),
            ("268435456", "0", "memory_bytes is 0, not 1 to 1099511627776 bytes"),
            ("1795000000", "0", "unix_s is 0, not 1577836800 to 7258118399 s"),
            ("\"AMD EPYC\"", "7", "cpu_model: invalid type: integer `7`, expected a string"),
        ] {
            assert!(file.contains(from), "{from}");
            let why = refused(&file.replacen(from, to, 1));
            assert!(why.starts_with(&format!("damaged: {said}")), "{why}, not {said}");
        }
        // Cut anywhere, and with any byte changed: never a panic.
        for at in 0..file.len() {
            let _ = MeasuredMachine::of_file(&file.as_bytes()[..at]);
            let mut flipped = file.clone().into_bytes();
            flipped[at] ^= 0x11;
            let _ = MeasuredMachine::of_file(&flipped);
        }
    }

    #[test]
    fn two_measurements_bound_what_both_saw() {
        let earlier = MeasuredMachine { unix_s: 1_700_000_000, ..zen4() };
        let mut later = zen4();
        later.memory_cycles = Spread { low: 500.0, value: 510.0, high: 520.0 };
        later.loaded_memory_cycles = None;
        later.cold_page_walk_cycles = Some(1000.0);
        for both in [earlier.clone().with(&later), later.clone().with(&earlier)] {
            assert_eq!(both.memory_cycles, Spread { low: 500.0, value: 510.0, high: 800.0 });
            assert_eq!(both.memory_cycles_max(), 1000.0);
            assert_eq!(both.cold_page_walk_cycles, Some(1900.0));
            assert_eq!(both.unix_s, later.unix_s);
        }
    }
}

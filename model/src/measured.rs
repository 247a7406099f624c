//! A processor as `dcpi machine` measured it, and the file that has it: JSON, read by dcpid into
//! the facts of epochs.

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::facts::{Cpuid, Fact};

/// A measured quantity, with how far it moved over the rounds of the measurement. One that is read
/// is in order, and neither negative nor beyond 10^9.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "UncheckedSpread")]
pub struct Spread {
    /// The lowest.
    pub low: f64,
    /// The median.
    pub value: f64,
    /// The highest; of loads from memory the 99th percentile.
    pub high: f64,
}

#[derive(Deserialize)]
struct UncheckedSpread {
    low: f64,
    value: f64,
    high: f64,
}

impl TryFrom<UncheckedSpread> for Spread {
    type Error = String;

    fn try_from(UncheckedSpread { low, value, high }: UncheckedSpread) -> Result<Self, String> {
        let ordered = 0.0 <= low && low <= value && value <= high && high <= NUMBER_MAX;
        if ordered { Ok(Self { low, value, high }) } else { Err(format!("{low}, {value}, {high}")) }
    }
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
    #[serde(deserialize_with = "number")]
    pub ticks_per_ns: f64,
    /// The step by which the counter moves, ns.
    #[serde(deserialize_with = "number")]
    pub step_ns: f64,
    /// Time of a read, ns.
    pub read_ns: Spread,
    /// Time of a read between fences, ns.
    pub fenced_read_ns: Spread,
}

/// A processor, measured. One that is read has few values, all of them numbers that can be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredMachine {
    /// The processor. Measurements of one are of no use for another.
    #[serde(deserialize_with = "processor")]
    pub cpuid: Cpuid,
    /// The processor's name, as /proc/cpuinfo has it.
    #[serde(deserialize_with = "name")]
    pub cpu_model: String,
    /// Time of the measurement, in seconds since 1970 UTC.
    #[serde(deserialize_with = "moment")]
    pub unix_s: u64,
    /// Cycles of the core per ns.
    pub core_ghz: Spread,
    /// Whether large pages were there; without them latencies have page walks in them.
    pub large_pages: bool,
    /// Caches of data, the first level first.
    #[serde(deserialize_with = "levels")]
    pub caches: Vec<MeasuredCache>,
    /// Data TLBs, the first level first.
    #[serde(deserialize_with = "levels")]
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
    #[serde(deserialize_with = "number_or_none")]
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
    #[serde(deserialize_with = "events")]
    pub events: BTreeMap<String, Spread>,
}

/// Most of any number in the file: cycles, or ns. A second has some billion of each.
const NUMBER_MAX: f64 = 1e9;
/// Most levels of caches or TLBs.
const LEVELS_MAX: usize = 8;
/// Most events, and most bytes of a name.
const EVENTS_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 200;
/// The first day of 2020 and of 2200: the time of a measurement is between them, so that its date
/// can be told.
const UNIX_S: std::ops::Range<u64> = 1_577_836_800..7_258_118_400;

/// A number of a file, or of a fact.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    let number = f64::deserialize(from)?;
    let valid = (0.0..=NUMBER_MAX).contains(&number);
    if valid { Ok(number) } else { Err(D::Error::custom(format!("a number is {number}"))) }
}

fn number_or_none<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    #[derive(Deserialize)]
    struct Number(#[serde(deserialize_with = "number")] f64);
    Ok(Option::<Number>::deserialize(from)?.map(|Number(number)| number))
}

fn levels<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    let levels = Vec::deserialize(from)?;
    let few = levels.len() <= LEVELS_MAX;
    if few { Ok(levels) } else { Err(D::Error::custom("too many levels")) }
}

fn events<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, Spread>, D::Error> {
    let events: BTreeMap<String, Spread> = BTreeMap::deserialize(from)?;
    let few = events.len() <= EVENTS_MAX && events.keys().all(|name| is_short(name));
    if few { Ok(events) } else { Err(D::Error::custom("too many events")) }
}

fn is_short(name: &str) -> bool {
    name.len() <= NAME_BYTES_MAX
}

fn name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let name = String::deserialize(from)?;
    if is_short(&name) { Ok(name) } else { Err(D::Error::custom("a name is too long")) }
}

fn processor<'de, D: Deserializer<'de>>(from: D) -> Result<Cpuid, D::Error> {
    let cpuid = Cpuid::deserialize(from)?;
    if is_short(&cpuid.vendor) { Ok(cpuid) } else { Err(D::Error::custom("a name is too long")) }
}

fn moment<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let unix_s = u64::deserialize(from)?;
    let valid = UNIX_S.contains(&unix_s);
    if valid { Ok(unix_s) } else { Err(D::Error::custom(format!("unix_s is {unix_s}"))) }
}

impl Fact for MeasuredMachine {
    const NAME: &'static str = "measured";
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
    #[must_use]
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
        let Ok(Head { schema }) = serde_json::from_slice(text) else {
            return Err("it is no file of dcpi machine -o".to_owned());
        };
        if schema.name != SCHEMA || schema.version != VERSION {
            let Schema { name, version } = schema;
            let name: String = name.chars().filter(|c| !c.is_control()).take(40).collect();
            return Err(format!("it is {name} version {version}, not {SCHEMA} version {VERSION}"));
        }
        serde_json::from_slice(text).map_err(|error| {
            // The message may repeat a part of the file.
            let message = error.to_string();
            let message: String = message.chars().filter(|c| !c.is_control()).take(120).collect();
            format!("damaged: {message}")
        })
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
    #[must_use]
    pub fn load_cycles(&self) -> Option<f64> {
        self.caches.first().map(|cache| cache.latency_cycles.value).filter(|cycles| *cycles > 0.0)
    }

    /// Most cycles of a load from memory that were seen, also loaded.
    #[must_use]
    pub fn memory_cycles_max(&self) -> f64 {
        self.memory_cycles.high.max(self.loaded_memory_cycles.map_or(0.0, |loaded| loaded.high))
    }
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
        assert_eq!(facts.get(), Some(machine));
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
        for (from, to) in [
            (r#""value": 560.0"#, r#""value": -560.0"#),
            (r#""value": 560.0"#, r#""value": 1e300"#),
            (r#""low": 540.0"#, r#""low": 999.0"#),
            (r#""value": 560.0"#, r#""value": null"#),
            (r#""unix_s": 1795000000"#, r#""unix_s": 0"#),
            (r#""cpu_model": "AMD EPYC""#, r#""cpu_model": 7"#),
        ] {
            assert!(file.contains(from), "{from}");
            assert!(refused(&file.replacen(from, to, 1)).starts_with("damaged: "), "{to}");
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

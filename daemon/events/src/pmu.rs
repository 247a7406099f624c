//! The PMUs of this machine, as their files in sysfs describe them: numbers, CPUs, terms and
//! events.
//!
//! /sys/bus/event_source/devices/PMU/{type,cpus,cpumask,format/TERM,events/NAME}:
//! Documentation/ABI/testing/sysfs-bus-event_source-devices-format and -events, and perf-list(1). A
//! PMU with a file `cpus` counts a kind of core (tools/perf/util/pmu.c, is_sysfs_pmu_core): Intel's
//! `cpu_core` and `cpu_atom`, arm's `armv8_cortex_a53`; one with `cpumask` counts something outside
//! of the cores.

use crate::{
    Coding, Encoding, Event, EventError, HARDWARE, HW_CACHE, RAW, SOFTWARE, Site, Term, number,
};
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Folder of the PMUs in sysfs.
pub const DEVICES: &str = "/sys/bus/event_source/devices";
/// Bytes read of each file; the kernel's files have at most a page.
const FILE_BYTES_MAX: u64 = 4096;
/// PMUs that are read, and terms or events of one PMU; a large server has some hundred of each.
const ENTRIES_MAX: usize = 4096;
/// Names that an error lists.
const NAMES_SHOWN: usize = 24;
/// Shift of the PMU's number in the config of a generic event, since Linux 5.13
/// (PERF_PMU_TYPE_SHIFT).
const PMU_TYPE_SHIFT: u32 = 32;
/// Suffixes of files beside an event's file that describe how to print it.
const NOT_EVENTS: [&str; 4] = [".scale", ".unit", ".per-pkg", ".snapshot"];

/// PMUs whose events occur in a task, as those of most software events do. A drain cannot rely on
/// their sampler having ended: the task may be suspended in the middle of a sample.
const IN_TASKS: [&str; 4] = ["breakpoint", "kprobe", "tracepoint", "uprobe"];
/// PERF_COUNT_SW_TASK_CLOCK (include/uapi/linux/perf_event.h); the CPU's clock is 0.
const TASK_CLOCK: u64 = 1;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Pmu {
    name: String,
    /// perf_event_attr.type.
    kind: u32,
    /// The CPUs that its events can be opened on; None: all.
    cpus: Option<Vec<usize>>,
    /// Whether the PMU counts a kind of core.
    is_core: bool,
    directory: PathBuf,
}

/// The place of a term's value: a word of the config, and ranges of its bits. The first range takes
/// the lowest bits of the value.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Format {
    word: usize,
    ranges: Vec<(u32, u32)>,
}

/// The PMUs of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pmus {
    all: Vec<Pmu>,
}

impl Pmus {
    /// Reads the PMUs below `root`; a file that cannot be read counts as absent.
    pub fn read(root: &Path) -> Self {
        let all =
            names(root).into_iter().filter_map(|name| Pmu::read(root.join(&name), name)).collect();
        Self { all }
    }

    /// The kinds of cores of a machine that has several; empty on all other machines, where the
    /// generic events need no PMU's name.
    fn cores(&self) -> Vec<&Pmu> {
        let cores: Vec<_> = self.all.iter().filter(|pmu| pmu.is_core).collect();
        if cores.len() > 1 { cores } else { Vec::new() }
    }

    /// The CPUs of a PMU, as of the last reading.
    pub fn cpus(&self, name: &str) -> Option<&[usize]> {
        self.all.iter().find(|pmu| pmu.name == name)?.cpus.as_deref()
    }

    /// The sites where an event can be opened. If several sites have the same PMU, the first one
    /// that the kernel accepts is used.
    ///
    /// # Errors
    /// [`EventError`] for a PMU or a term that is not there.
    pub fn sites(&self, event: &Event) -> Result<Vec<Site>, EventError> {
        let (pmu, terms) = match &event.coding {
            Coding::Generic(encoding) => return Ok(self.generic(*encoding)),
            Coding::Terms { pmu, terms } => (pmu, terms),
        };
        let found = self.all.iter().find(|known| known.name == *pmu).ok_or_else(|| {
            EventError::UnknownPmu {
                spec: event.name.clone(),
                pmu: pmu.clone(),
                known: shown(self.all.iter().map(|pmu| pmu.name.clone()).collect()),
            }
        })?;
        let encoding = found.encode(&event.name, terms)?;
        let is_clock = encoding.kind == SOFTWARE && encoding.config[0] <= TASK_CLOCK;
        if !is_clock && (encoding.kind == SOFTWARE || IN_TASKS.contains(&pmu.as_str())) {
            return Err(EventError::NoInterrupt { spec: event.name.clone(), pmu: pmu.clone() });
        }
        let pmu = found.cpus.as_ref().map(|_| found.name.clone());
        Ok(vec![Site { pmu, cpus: found.cpus.clone(), encoding }])
    }

    /// The sites of a generic event, or of a raw number, for each kind of core.
    fn generic(&self, encoding: Encoding) -> Vec<Site> {
        let plain = Site { pmu: None, cpus: None, encoding };
        let per_core = [HARDWARE, HW_CACHE, RAW].contains(&encoding.kind);
        let cores = if per_core { self.cores() } else { Vec::new() };
        if cores.is_empty() {
            return vec![plain];
        }
        let [config, more @ ..] = encoding.config;
        let of_core = |pmu: &Pmu| {
            let own = match encoding.kind {
                RAW => Encoding { kind: pmu.kind, ..encoding },
                kind => Encoding {
                    kind,
                    config: [config | u64::from(pmu.kind) << PMU_TYPE_SHIFT, more[0], more[1]],
                },
            };
            // arm64 accepts the PMU's number in a generic event only since 6.7; before, an event
            // without it is opened by the PMU of its CPU (drivers/perf/arm_pmu.c,
            // armpmu_event_init).
            [own, encoding].map(|encoding| Site {
                pmu: Some(pmu.name.clone()),
                cpus: pmu.cpus.clone(),
                encoding,
            })
        };
        cores.into_iter().flat_map(of_core).collect()
    }
}

impl Pmu {
    fn read(directory: PathBuf, name: String) -> Option<Self> {
        let kind = text(&directory.join("type"))?.parse().ok()?;
        let cpus = text(&directory.join("cpus"));
        let is_core = cpus.is_some();
        // A core PMU whose CPUs are all offline has an empty list; an empty mask of another means
        // all (perf's own reading).
        let cpus =
            cpus.or_else(|| text(&directory.join("cpumask")).filter(|list| !list.is_empty()));
        Some(Self { name, kind, cpus: cpus.map(|list| parse_cpu_list(&list)), is_core, directory })
    }

    fn encode(&self, spec: &str, terms: &[Term]) -> Result<Encoding, EventError> {
        let unknown = |term: &str| EventError::UnknownTerm {
            spec: spec.to_owned(),
            pmu: self.name.clone(),
            term: term.to_owned(),
            known: self.has(),
        };
        if terms.is_empty() {
            return Err(unknown(""));
        }
        let mut config = [0; 3];
        // An event by name comes first, so that the terms beside it change it.
        for (name, _) in
            terms.iter().filter(|(name, value)| value.is_none() && self.format(name).is_none())
        {
            let own = self.event(name).ok_or_else(|| unknown(name))?;
            for word in own.split(',') {
                let (term, value) = word.trim().split_once('=').unwrap_or((word.trim(), "1"));
                // `term=?`: the user must give the value.
                let value = number(value)
                    .or_else(|| Some(0).filter(|_| value == "?"))
                    .ok_or_else(|| unknown(name))?;
                self.set(&mut config, spec, term, value).unwrap_or_else(|| Err(unknown(term)))?;
            }
        }
        for (name, value) in
            terms.iter().filter(|(name, value)| value.is_some() || self.format(name).is_some())
        {
            self.set(&mut config, spec, name, value.unwrap_or(1))
                .unwrap_or_else(|| Err(unknown(name)))?;
        }
        Ok(Encoding { kind: self.kind, config })
    }

    /// Puts a term's value into the config; None where the PMU has no such term.
    fn set(
        &self,
        config: &mut [u64; 3],
        spec: &str,
        term: &str,
        value: u64,
    ) -> Option<Result<(), EventError>> {
        let format = match term {
            "config" => Format { word: 0, ranges: vec![(0, 63)] },
            "config1" => Format { word: 1, ranges: vec![(0, 63)] },
            "config2" => Format { word: 2, ranges: vec![(0, 63)] },
            term => self.format(term)?,
        };
        let word = config.get_mut(format.word)?;
        let set = format.put(*word, value).map(|changed| *word = changed);
        Some(set.map_err(|bits| EventError::TermValue {
            spec: spec.to_owned(),
            term: term.to_owned(),
            bits,
        }))
    }

    fn format(&self, term: &str) -> Option<Format> {
        Format::parse(&text(&self.directory.join("format").join(file_name(term)?))?)
    }

    /// The terms that the PMU defines for an event's name.
    fn event(&self, name: &str) -> Option<String> {
        let name = file_name(name).filter(|name| is_event(name))?;
        text(&self.directory.join("events").join(name))
    }

    /// The PMU's terms and events, for an error.
    fn has(&self) -> String {
        let terms = names(&self.directory.join("format"));
        let events: Vec<_> = names(&self.directory.join("events"))
            .into_iter()
            .filter(|name| is_event(name))
            .collect();
        let events = if events.is_empty() {
            String::new()
        } else {
            format!(", and the events {}", shown(events))
        };
        let terms = if terms.is_empty() { String::new() } else { format!("{}, ", shown(terms)) };
        format!("the terms {terms}config, config1, config2{events}")
    }
}

impl Format {
    /// Parses a format such as `config:0-7,32-35`.
    fn parse(text: &str) -> Option<Self> {
        let (word, ranges) = text.split_once(':')?;
        let word = ["config", "config1", "config2"].iter().position(|known| *known == word)?;
        let range = |range: &str| {
            let (low, high) = range.split_once('-').unwrap_or((range, range));
            let (low, high) = (low.parse().ok()?, high.parse().ok()?);
            (low <= high && high < u64::BITS).then_some((low, high))
        };
        let ranges: Vec<_> = ranges.split(',').map(range).collect::<Option<_>>()?;
        (ranges.iter().map(|(low, high)| high - low + 1).sum::<u32>() <= u64::BITS)
            .then_some(Self { word, ranges })
    }

    /// The word with the value in it; on error the number of bits that there is room for.
    fn put(&self, mut word: u64, value: u64) -> Result<u64, u32> {
        let (mut rest, mut bits) = (value, 0);
        for (low, high) in &self.ranges {
            let width = high - low + 1;
            let ones = u64::MAX >> (u64::BITS - width);
            word = word & !(ones << low) | (rest & ones) << low;
            rest = rest.checked_shr(width).unwrap_or(0);
            bits += width;
        }
        if rest == 0 { Ok(word) } else { Err(bits) }
    }
}

/// The text, if it can be the name of a file in a directory.
fn file_name(name: &str) -> Option<&str> {
    (!name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0'])).then_some(name)
}

fn is_event(name: &str) -> bool {
    !NOT_EVENTS.iter().any(|ending| name.ends_with(ending))
}

/// Names in a directory, in order; empty where it cannot be read.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().take(ENTRIES_MAX);
    let mut names: Vec<_> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// A small file's text without the spaces around it.
fn text(path: &Path) -> Option<String> {
    let mut text = String::new();
    fs::File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}

fn shown(names: Vec<String>) -> String {
    let more = names.len().saturating_sub(NAMES_SHOWN);
    let listed = names.iter().take(NAMES_SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match (names.is_empty(), more) {
        (true, _) => "none".to_owned(),
        (false, 0) => listed,
        (false, more) => format!("{listed} and {more} more"),
    }
}

/// "0-3,8" -> 0, 1, 2, 3, 8. At most 8192 CPUs, the kernel's own limit (NR_CPUS of x86 and arm64).
pub fn parse_cpu_list(text: &str) -> Vec<usize> {
    let number = |text: &str| text.trim().parse::<usize>().ok();
    let ranges = text.trim().split(',').filter_map(|part| match part.split_once('-') {
        Some((first, last)) => Some(number(first)?..=number(last)?),
        None => number(part).map(|cpu| cpu..=cpu),
    });
    ranges.flatten().take(8192).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EventSpec, tree};

    /// PMU, CPUs, type and config.
    type Told = (Option<String>, Option<Vec<usize>>, u32, [u64; 3]);

    fn sites(files: &[(&str, &str)], spec: &str) -> Result<Vec<Told>, String> {
        let directory = tempfile::tempdir().unwrap();
        tree::write(directory.path(), files);
        let event = EventSpec::parse(spec).map_err(|error| error.to_string())?.event;
        let sites =
            Pmus::read(directory.path()).sites(&event).map_err(|error| error.to_string())?;
        Ok(sites
            .into_iter()
            .map(|site| (site.pmu, site.cpus, site.encoding.kind, site.encoding.config))
            .collect())
    }

    fn encoded(files: &[(&str, &str)], spec: &str) -> (u32, [u64; 3]) {
        let sites = sites(files, spec).unwrap();
        assert_eq!(sites.len(), 1, "{sites:?}");
        (sites[0].2, sites[0].3)
    }

    #[test]
    fn terms_go_where_the_formats_say() {
        for (spec, expected) in [
            ("cpu/event=0x3c,umask=0x0/", (4, [0x3c, 0, 0])),
            ("cpu/umask=0x41,event=0x2e/", (4, [0x412e, 0, 0])),
            ("cpu/event=0x3c,inv,cmask=16/", (4, [0x1080_003c, 0, 0])),
            ("cpu/event=0x3c,inv=0/", (4, [0x3c, 0, 0])),
            ("cpu/cache-misses/", (4, [0x412e, 0, 0])),
            ("cpu/mem-loads/:5000", (4, [0x1cd, 3, 0])),
            ("cpu/ldlat=30,mem-loads/", (4, [0x1cd, 30, 0])),
            ("cpu/config=0x1c2,config2=7/", (4, [0x1c2, 0, 7])),
        ] {
            assert_eq!(encoded(&tree::INTEL, spec), expected, "{spec}");
        }
        assert_eq!(encoded(&tree::ARM, "armv8_pmuv3_0/inst_retired/"), (8, [8, 0, 0]));
        assert_eq!(encoded(&tree::ARM, "armv8_pmuv3_0/event=0x11,long/"), (8, [0x11, 1, 0]));
        // AMD: one term in two places (arch/x86/events/amd/core.c, event_attr_event).
        let amd = [("cpu/type", "4"), ("cpu/format/event", "config:0-7,32-35")];
        assert_eq!(encoded(&amd, "cpu/event=0xfab/"), (4, [0xf_0000_00ab, 0, 0]));
        assert!(
            sites(&amd, "cpu/event=0x1000/").unwrap_err().contains("a number of at most 12 bits")
        );
    }

    #[test]
    fn what_is_not_there_is_told_with_what_is() {
        for (spec, words) in [
            (
                "software/config=2/",
                "its 'software' does not count by interrupts; sample cpu-clock, or an event of a hardware PMU",
            ),
            ("gpu/event=1/", "this machine has no PMU 'gpu'; it has cpu, software, uncore_imc"),
            (
                "cpu/bogus=1/",
                "cpu has no term 'bogus'; it has the terms cmask, event, inv, ldlat, umask, config, config1, config2, and the events \
                 cache-misses, mem-loads",
            ),
            ("cpu/cache-mises/", "has no term 'cache-mises'; it has"),
            ("cpu/slots.scale/", "has no term 'slots.scale'"),
            ("cpu//", "has no term ''"),
            ("cpu/../type/", "has no term '../type'"),
            ("../cpu/event=1/", "this machine has no PMU '..'"),
            (
                "cpu/event=0x100/",
                "the value of event is wrong; it must be a number of at most 8 bits",
            ),
            (
                "uncore_imc/event=1/",
                "uncore_imc has no term 'event'; it has the terms config, config1, config2",
            ),
        ] {
            let error = sites(&tree::INTEL, spec).unwrap_err();
            assert!(error.contains(words), "{spec}: {error}");
            assert!(!error.contains('\n'));
        }
    }

    #[test]
    fn a_pmu_counts_on_its_own_cpus() {
        let cpus = |files: &[(&str, &str)], spec| sites(files, spec).unwrap().swap_remove(0).1;
        assert_eq!(cpus(&tree::HYBRID, "cpu_atom/event=0x3c/"), Some(vec![4, 5, 6, 7]));
        assert_eq!(cpus(&tree::INTEL, "uncore_imc/config=1/"), Some(vec![0, 18]));
        assert_eq!(cpus(&tree::INTEL, "cpu/event=1/"), None);
    }

    #[test]
    fn generic_events_are_opened_by_the_kind_of_core() {
        let on = |pmu: &str, cpus: &[usize], kind, config| {
            (Some(pmu.to_owned()), Some(cpus.to_vec()), kind, [config, 0, 0])
        };
        let (core, atom) = ([0, 1, 2, 3], [4, 5, 6, 7]);
        assert_eq!(
            sites(&tree::HYBRID, "instructions").unwrap(),
            [
                on("cpu_atom", &atom, HARDWARE, 0xa_0000_0001),
                on("cpu_atom", &atom, HARDWARE, 1),
                on("cpu_core", &core, HARDWARE, 0x4_0000_0001),
                on("cpu_core", &core, HARDWARE, 1),
            ]
        );
        assert_eq!(
            sites(&tree::HYBRID, "LLC-load-misses").unwrap()[0],
            on("cpu_atom", &atom, HW_CACHE, 0xa_0001_0002)
        );
        assert_eq!(sites(&tree::HYBRID, "r01c2").unwrap()[0], on("cpu_atom", &atom, 10, 0x1c2));
        // Timers are the same everywhere, and so is all on a machine with one kind.
        for (files, spec) in [
            (&tree::HYBRID[..], "cpu-clock"),
            (&tree::ARM, "cycles"),
            (&tree::INTEL, "r01c2"),
            (&[], "cycles"),
        ] {
            let sites = sites(files, spec).unwrap();
            assert_eq!((sites.len(), &sites[0].0, &sites[0].1), (1, &None, &None), "{spec}");
        }
        let big_little = [
            ("armv8_cortex_a53/type", "8"),
            ("armv8_cortex_a53/cpus", "0-3"),
            ("armv8_cortex_a72/type", "9"),
            ("armv8_cortex_a72/cpus", "4-5"),
        ];
        let sites = sites(&big_little, "cycles").unwrap();
        assert_eq!(sites[2], on("armv8_cortex_a72", &[4, 5], HARDWARE, 0x9_0000_0000));
        assert_eq!(
            sites[3],
            on("armv8_cortex_a72", &[4, 5], HARDWARE, 0),
            "as kernels before 6.7 want it"
        );
    }

    /// Whatever a driver writes there.
    #[test]
    fn strange_files_are_no_terms() {
        for text in [
            "",
            "config",
            "config:",
            "config:x",
            "config:5-2",
            "config:0-64",
            "config3:0-7",
            "config:0-63,0-63",
            "config:-1",
        ] {
            assert_eq!(Format::parse(text), None, "{text}");
        }
        let whole = Format::parse("config:0-63").unwrap();
        assert_eq!(whole.put(5, u64::MAX), Ok(u64::MAX));
        let files = [
            ("x/type", "not a number"),
            ("y/type", "9"),
            ("y/cpus", "what"),
            ("y/events/e", "nonsense==,,"),
        ];
        let directory = tempfile::tempdir().unwrap();
        tree::write(directory.path(), &files);
        let pmus = Pmus::read(directory.path());
        assert_eq!((pmus.all.len(), pmus.cpus("y")), (1, Some(&[][..])));
        let event = EventSpec::parse("y/e/").unwrap().event;
        assert!(pmus.sites(&event).is_err());
        assert_eq!(Pmus::read(Path::new("/does/not/exist")), Pmus::default());
    }
}

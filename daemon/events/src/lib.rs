//! Events by name: the events that users may ask for, and their encodings for the kernel.
//!
//! Names are perf's; DCPI's names are accepted where they mean the same. Numbers are those of
//! linux/perf_event.h.

use std::fmt;

mod pmu;
#[cfg(test)]
mod tree;

pub use pmu::{DEVICES, Pmus, parse_cpu_list};

/// perf_event_attr.type.
pub(crate) const HARDWARE: u32 = 0;
pub(crate) const SOFTWARE: u32 = 1;
pub(crate) const HW_CACHE: u32 = 3;
pub(crate) const RAW: u32 = 4;

/// Samples per second and CPU unless the user says otherwise: the paper's rate (SOSP 1997,
/// abstract). The budget may lower it.
pub const DEFAULT_RATE: u64 = 5200;

/// Mean period of an event whose frequency depends on the program, when the user gives none.
/// Shorter periods cost more with frequent events, longer ones find rare events late.
const DEFAULT_PERIOD: u64 = 65_536;

/// Unit of an event's period, which decides how a rate becomes a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds of a timer.
    Nanoseconds,
    /// Events that occur about once per clock cycle.
    Cycles,
    /// Occurrences at a frequency that depends on the program.
    Occurrences,
}

impl Unit {
    /// Units in a second of a CPU whose clock runs at `clock_hz`; for occurrences, an upper bound.
    pub fn per_second(self, clock_hz: u64) -> u64 {
        match self {
            Unit::Nanoseconds => 1_000_000_000,
            Unit::Cycles | Unit::Occurrences => clock_hz,
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unit::Nanoseconds => "ns",
            Unit::Cycles => "cycles",
            Unit::Occurrences => "count",
        })
    }
}

/// The encoding of an event for perf_event_open(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Encoding {
    /// perf_event_attr.type.
    pub kind: u32,
    /// perf_event_attr.config, config1 and config2.
    pub config: [u64; 3],
}

/// A term of `PMU/TERM,.../`: a name, and a value where one was given.
pub type Term = (String, Option<u64>);

/// The form in which an event was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Coding {
    /// An event that the kernel has numbers for on every machine.
    Generic(Encoding),
    /// An event that a PMU's files in sysfs describe.
    Terms {
        /// Name of the PMU.
        pmu: String,
        /// The terms in the order in which they were typed, without `period`.
        terms: Vec<Term>,
    },
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// perf's name for it; also the name in the database.
    pub name: String,
    /// Encoding or terms of the event.
    pub coding: Coding,
    /// Unit of its period.
    pub unit: Unit,
}

/// The CPUs that have an event under one encoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Name of the PMU, where one of several was chosen.
    pub pmu: Option<String>,
    /// The CPUs of the site; None: all.
    pub cpus: Option<Vec<usize>>,
    /// Encoding of the event on these CPUs.
    pub encoding: Encoding,
}

impl Site {
    /// Whether a CPU belongs to the site.
    pub fn has(&self, cpu: usize) -> bool {
        self.cpus.as_ref().is_none_or(|cpus| cpus.contains(&cpu))
    }
}

/// The sampling frequency of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frequency {
    /// Mean number of units between two samples.
    Period(u64),
    /// Samples per second and CPU.
    Rate(u64),
    /// The event's default.
    Default,
}

/// A parsed `NAME[:PERIOD][@RATE]`, where the name may be `PMU/TERM=VALUE,.../`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSpec {
    /// The event.
    pub event: Event,
    /// The sampling frequency.
    pub frequency: Frequency,
    /// Number of the group that the event takes turns in.
    pub mux: Option<usize>,
}

/// An event with its sampling period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedEvent {
    /// The event.
    pub event: Event,
    /// Mean units between two samples, at least 1.
    pub period: u64,
    /// Samples per second and CPU that were asked for, when a rate was.
    pub rate: Option<u64>,
    /// Whether the user left the frequency to us, so that the budget may lower it.
    pub adjustable: bool,
    /// Number of the group that the event takes turns in.
    pub mux: Option<usize>,
    /// The sites where it is sampled.
    pub sites: Vec<Site>,
    /// A note for readers of the profile, such as a fallback to another event.
    pub note: Option<String>,
}

impl PlannedEvent {
    /// The event, planned at another rate.
    pub fn at_rate(&self, rate: u64, clock_hz: u64) -> Self {
        let period = (self.event.unit.per_second(clock_hz) / rate.max(1)).max(1);
        Self { period, rate: Some(rate), ..self.clone() }
    }

    /// Samples per second of a CPU with a clock of `clock_hz`; for occurrences, an upper bound.
    pub fn samples_per_s(&self, clock_hz: u64) -> f64 {
        self.event.unit.per_second(clock_hz) as f64 / self.period.max(1) as f64
    }

    /// The event's encoding on a CPU; None: the event is not sampled there.
    pub fn encoding(&self, cpu: usize) -> Option<Encoding> {
        self.sites.iter().find(|site| site.has(cpu)).map(|site| site.encoding)
    }

    /// Adds a remark to the note.
    pub fn remark(&mut self, words: &str) {
        self.note = Some(
            self.note.take().map_or_else(|| words.to_owned(), |note| format!("{note}; {words}")),
        );
    }
}

/// An error in an event that the user typed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// The name is unknown.
    #[error(
        "unknown event '{0}'; try cycles, cpu-clock, instructions, cache-misses, branch-misses, L1-dcache-load-misses, a raw rNNN (hex) or PMU/term=value,.../"
    )]
    Unknown(String),
    /// The number after ':' or '@' is not one in range.
    #[error("event '{spec}': {what} must be a number from {min} to {max}")]
    Number {
        /// The text that the user typed.
        spec: String,
        /// "period" or "rate".
        what: &'static str,
        /// Smallest value accepted.
        min: u64,
        /// Largest value accepted.
        max: u64,
    },
    /// Both a period and a rate were given.
    #[error("event '{0}': give a period (:N) or a rate (@N), not both")]
    Both(String),
    /// A period or rate was given for an event that is counted.
    #[error("event '{0}': it is counted and not sampled; leave the period or rate out")]
    NoFrequency(String),
    /// The period was given twice: `period=` and `:N`.
    #[error("event '{0}': its period is given twice; give it once, as :N or as period=N")]
    PeriodTwice(String),
    /// A rate was given for an event without a known frequency.
    #[error(
        "event '{0}': how often it happens depends on the program, so give a period (:N) instead of a rate"
    )]
    NoRate(String),
    /// The `PMU/terms` has no closing slash.
    #[error("event '{0}': its second slash is missing; write PMU/term=value,.../")]
    Unclosed(String),
    /// The text behind the closing slash is no period.
    #[error(
        "event '{spec}': '{modifier}' behind the slash is not understood; only :PERIOD may stand there, user and kernel code are sampled alike"
    )]
    Modifier {
        /// The text that the user typed.
        spec: String,
        /// The text behind the slash.
        modifier: String,
    },
    /// A value is not a number, or too large for its term.
    #[error(
        "event '{spec}': the value of {term} is wrong; it must be a number of at most {bits} bits, decimal or 0x..."
    )]
    TermValue {
        /// The event.
        spec: String,
        /// The term.
        term: String,
        /// Bits of the term.
        bits: u32,
    },
    /// The event occurs in a task, not in an interrupt.
    #[error(
        "event '{spec}': its '{pmu}' does not count by interrupts; sample cpu-clock, or an event of a hardware PMU"
    )]
    NoInterrupt {
        /// The event.
        spec: String,
        /// The PMU asked for.
        pmu: String,
    },
    /// The PMU does not exist.
    #[error("event '{spec}': this machine has no PMU '{pmu}'; it has {known}")]
    UnknownPmu {
        /// The event.
        spec: String,
        /// The PMU asked for.
        pmu: String,
        /// The PMUs of the machine.
        known: String,
    },
    /// The PMU has no such term or event.
    #[error("event '{spec}': {pmu} has no term '{term}'; it has {known}")]
    UnknownTerm {
        /// The event.
        spec: String,
        /// Its PMU.
        pmu: String,
        /// The term asked for.
        term: String,
        /// The terms and events of the PMU.
        known: String,
    },
    /// The name is too long for the database.
    #[error(
        "event '{0}': the name is too long for the database, which takes 160 bytes, / = and , as three each; write config=0x... instead of the terms"
    )]
    TooLong(String),
    /// A group has only one event.
    #[error(
        "--mux {0}: takes turns with nobody; name two events or more, with commas between, or use --event"
    )]
    Alone(String),
}

impl EventSpec {
    /// Parses `NAME[:PERIOD][@RATE]`; the rate may end in `/s`.
    ///
    /// # Errors
    /// [`EventError`] says what to type instead.
    pub fn parse(spec: &str) -> Result<Self, EventError> {
        let (event, period, rate) = if spec
            .split(['@', ':'])
            .next()
            .is_some_and(|name| name.contains('/'))
        {
            let (event, period) = Event::of_terms(spec)?;
            (event, period, None)
        } else {
            let (rest, rate) =
                spec.split_once('@').map_or((spec, None), |(rest, rate)| (rest, Some(rate)));
            let (name, period) =
                rest.split_once(':').map_or((rest, None), |(name, period)| (name, Some(period)));
            (Event::named(name).ok_or_else(|| EventError::Unknown(name.to_owned()))?, period, rate)
        };
        let number = |text: &str, what, min, max| {
            let number = text.parse().ok().filter(|number| (min..=max).contains(number));
            number.ok_or_else(|| EventError::Number { spec: spec.to_owned(), what, min, max })
        };
        let frequency = match (period, rate) {
            (Some(_), Some(_)) => return Err(EventError::Both(spec.to_owned())),
            // The kernel raises a timer's period to 10 us (kernel/events/core.c,
            // perf_swevent_start_hrtimer), so less would be a lie; a counter must not overflow
            // faster than its handler returns.
            (Some(period), None) => {
                let min = if event.unit == Unit::Nanoseconds { 10_000 } else { 1_000 };
                Frequency::Period(number(period, "period", min, 1 << 47)?)
            }
            (None, Some(_)) if event.unit == Unit::Occurrences => {
                return Err(EventError::NoRate(spec.to_owned()));
            }
            (None, Some(rate)) => Frequency::Rate(number(
                rate.strip_suffix("/s").unwrap_or(rate),
                "rate",
                1,
                100_000,
            )?),
            (None, None) => Frequency::Default,
        };
        Ok(Self { event, frequency, mux: None })
    }

    /// Parses `SPEC,SPEC,...`, the events of a group that take turns. A comma between the slashes
    /// of `PMU/.../` does not separate events.
    ///
    /// # Errors
    /// [`EventError`] says what to type instead.
    pub fn parse_group(text: &str, number: usize) -> Result<Vec<Self>, EventError> {
        let group = profiledb::split_events(text)
            .map(|member| Ok(Self { mux: Some(number), ..Self::parse(member.trim())? }));
        let group: Vec<_> = group.collect::<Result<_, EventError>>()?;
        if group.len() < 2 { Err(EventError::Alone(text.to_owned())) } else { Ok(group) }
    }

    /// Fixes the period for a machine whose clock runs at `clock_hz`.
    pub fn plan(&self, clock_hz: u64) -> PlannedEvent {
        let units_per_second = self.event.unit.per_second(clock_hz);
        let (period, rate) = match (self.frequency, self.event.unit) {
            (Frequency::Period(period), _) => (period, None),
            (Frequency::Default, Unit::Occurrences) => (DEFAULT_PERIOD, None),
            (Frequency::Default, _) => (units_per_second / DEFAULT_RATE, Some(DEFAULT_RATE)),
            (Frequency::Rate(rate), _) => (units_per_second / rate.max(1), Some(rate)),
        };
        let adjustable = self.frequency == Frequency::Default && rate.is_some();
        let (event, period, sites) = (self.event.clone(), period.max(1), Vec::new());
        PlannedEvent { event, period, rate, adjustable, mux: self.mux, sites, note: None }
    }
}

/// Software events that occur in tasks and not in interrupts: they can be counted, not sampled.
/// Names are perf's, numbers those of `enum perf_sw_ids`.
const COUNTABLE: [(&str, u64); 8] = [
    ("page-faults", 2),
    ("context-switches", 3),
    ("cpu-migrations", 4),
    ("minor-faults", 5),
    ("major-faults", 6),
    ("alignment-faults", 7),
    ("emulation-faults", 8),
    ("cgroup-switches", 11),
];

impl Event {
    /// The event to count of this name: one that [`EventSpec::parse`] takes without a frequency, or
    /// a software event that cannot be sampled.
    ///
    /// # Errors
    /// [`EventError`] says what to type instead.
    pub fn countable(name: &str) -> Result<Self, EventError> {
        if let Some((name, config)) = COUNTABLE.iter().find(|(known, _)| *known == name) {
            let coding = Coding::Generic(Encoding { kind: SOFTWARE, config: [*config, 0, 0] });
            return Ok(Self { name: (*name).to_owned(), coding, unit: Unit::Occurrences });
        }
        let EventSpec { event, frequency, .. } = EventSpec::parse(name)?;
        match frequency {
            Frequency::Default => Ok(event),
            _ => Err(EventError::NoFrequency(name.to_owned())),
        }
    }

    /// The event of that name, or None.
    pub fn named(name: &str) -> Option<Self> {
        let make = |name: &str, kind, config, unit| {
            let coding = Coding::Generic(Encoding { kind, config: [config, 0, 0] });
            Some(Self { name: name.to_owned(), coding, unit })
        };
        let canonical = profiledb::event_name(name).unwrap_or(name);
        if let Some((_, kind, config, unit)) = NAMED.iter().find(|(known, ..)| *known == canonical)
        {
            return make(canonical, *kind, *config, *unit);
        }
        if let Some(config) = cache_event(canonical) {
            return make(canonical, HW_CACHE, config, Unit::Occurrences);
        }
        let digits =
            canonical.strip_prefix('r').filter(|digits| (1..=16).contains(&digits.len()))?;
        make(canonical, RAW, u64::from_str_radix(digits, 16).ok()?, Unit::Occurrences)
    }

    /// Parses the event `PMU/TERM=VALUE,.../[:PERIOD]`, with its period where one is given, without
    /// looking at the machine. The event's name is the text without spaces, period and empty terms,
    /// so that each event has one name.
    fn of_terms(spec: &str) -> Result<(Self, Option<&str>), EventError> {
        let whole = || spec.to_owned();
        let (pmu, rest) = spec.split_once('/').ok_or_else(|| EventError::Unclosed(whole()))?;
        let (inner, behind) = rest.rsplit_once('/').ok_or_else(|| EventError::Unclosed(whole()))?;
        let mut period = match behind.strip_prefix(':') {
            Some(period) => Some(period),
            None if behind.is_empty() => None,
            None if behind.starts_with('@') => return Err(EventError::NoRate(whole())),
            None => {
                return Err(EventError::Modifier { spec: whole(), modifier: behind.to_owned() });
            }
        };
        let (mut terms, mut words) = (Vec::new(), Vec::new());
        for word in inner.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (term, value) =
                word.split_once('=').map_or((word, None), |(term, value)| (term, Some(value)));
            let (term, value) = (term.trim(), value.map(str::trim));
            if term == "period" {
                if period.replace(value.unwrap_or_default()).is_some() {
                    return Err(EventError::PeriodTwice(whole()));
                }
                continue;
            }
            let wrong = || EventError::TermValue { spec: whole(), term: term.to_owned(), bits: 64 };
            terms.push((
                term.to_owned(),
                value.map(|value| number(value).ok_or_else(wrong)).transpose()?,
            ));
            words.push(value.map_or_else(|| term.to_owned(), |value| format!("{term}={value}")));
        }
        let name = format!("{}/{}/", pmu.trim(), words.join(","));
        if !profiledb::is_event_name(&name) {
            return Err(EventError::TooLong(name));
        }
        let coding = Coding::Terms { pmu: pmu.trim().to_owned(), terms };
        Ok((Self { name, coding, unit: Unit::Occurrences }, period))
    }

    /// Whether the kernel counts the event without a PMU.
    pub fn is_software(&self) -> bool {
        self.encoding().is_some_and(|encoding| encoding.kind == SOFTWARE)
    }

    /// Its encoding, where it is the same on every machine.
    pub fn encoding(&self) -> Option<Encoding> {
        match self.coding {
            Coding::Generic(encoding) => Some(encoding),
            Coding::Terms { .. } => None,
        }
    }

    /// Whether the event needs a hardware counter.
    pub fn needs_hardware(&self) -> bool {
        !matches!(self.coding, Coding::Generic(Encoding { kind: SOFTWARE, .. }))
    }
}

/// A number, decimal or 0x...
pub(crate) fn number(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    // `from_str_radix` takes a sign.
    let plain = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    match digits {
        Some(digits) => u64::from_str_radix(digits, 16).ok().filter(|_| plain(digits)),
        None => text.parse().ok().filter(|_| plain(text)),
    }
}

const NAMED: [(&str, u32, u64, Unit); 12] = [
    ("cycles", HARDWARE, 0, Unit::Cycles),
    ("instructions", HARDWARE, 1, Unit::Cycles),
    ("cache-references", HARDWARE, 2, Unit::Occurrences),
    ("cache-misses", HARDWARE, 3, Unit::Occurrences),
    ("branches", HARDWARE, 4, Unit::Occurrences),
    ("branch-misses", HARDWARE, 5, Unit::Occurrences),
    ("bus-cycles", HARDWARE, 6, Unit::Occurrences),
    ("stalled-cycles-frontend", HARDWARE, 7, Unit::Cycles),
    ("stalled-cycles-backend", HARDWARE, 8, Unit::Cycles),
    ("ref-cycles", HARDWARE, 9, Unit::Cycles),
    ("cpu-clock", SOFTWARE, 0, Unit::Nanoseconds),
    ("task-clock", SOFTWARE, 1, Unit::Nanoseconds),
];

/// perf's names of cache events: cache, operation, result; config is id | op << 8 | result << 16.
fn cache_event(name: &str) -> Option<u64> {
    let caches = ["L1-dcache-", "L1-icache-", "LLC-", "dTLB-", "iTLB-", "branch-", "node-"];
    let operations = [
        ("loads", 0, 0),
        ("load-misses", 0, 1),
        ("stores", 1, 0),
        ("store-misses", 1, 1),
        ("prefetches", 2, 0),
        ("prefetch-misses", 2, 1),
    ];
    let (id, rest) =
        caches.iter().enumerate().find_map(|(id, cache)| Some((id, name.strip_prefix(cache)?)))?;
    let (_, operation, result) = operations.iter().find(|(operation, ..)| *operation == rest)?;
    Some(id as u64 | operation << 8 | result << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specifications() {
        let spec = |text: &str| {
            let spec = EventSpec::parse(text)?;
            let Coding::Generic(Encoding { kind, config: [config, 0, 0] }) = spec.event.coding
            else {
                panic!("{text}")
            };
            Ok::<_, EventError>((spec.event.name, kind, config, spec.frequency))
        };
        for (text, name, kind, config, frequency) in [
            ("cycles", "cycles", HARDWARE, 0, Frequency::Default),
            ("cycles:62000", "cycles", HARDWARE, 0, Frequency::Period(62_000)),
            ("cpu-clock@5200", "cpu-clock", SOFTWARE, 0, Frequency::Rate(5200)),
            ("cpu-clock@100/s", "cpu-clock", SOFTWARE, 0, Frequency::Rate(100)),
            ("imiss:10000", "L1-icache-load-misses", HW_CACHE, 0x1_0001, Frequency::Period(10_000)),
            ("dTLB-store-misses", "dTLB-store-misses", HW_CACHE, 0x1_0103, Frequency::Default),
            ("r01c2:5000", "r01c2", RAW, 0x1c2, Frequency::Period(5000)),
        ] {
            assert_eq!(spec(text), Ok((name.to_owned(), kind, config, frequency)), "{text}");
        }
    }

    #[test]
    fn mistakes_say_what_to_type() {
        for (text, words) in [
            ("cycels", "unknown event 'cycels'"),
            ("", "unknown event ''"),
            ("rxyz", "unknown event"),
            ("r11112222333344445", "unknown event"),
            ("cycles:0", "period must be a number from 1000"),
            ("cpu-clock:999", "from 10000"),
            ("cycles:99999999999999999999999", "period must be"),
            ("cycles@", "rate must be a number from 1 to 100000"),
            ("cpu-clock@0", "rate must be"),
            ("cpu-clock@-5", "rate must be"),
            ("cycles:1000@5", "not both"),
            ("cache-misses@5", "give a period"),
            ("cpu/event=0x3c", "second slash is missing; write PMU/term=value,.../"),
            ("cpu/event=0x3c/u", "'u' behind the slash is not understood; only :PERIOD"),
            ("cpu/event=0x3c/:u", "period must be a number from 1000"),
            ("cpu/event=0x3c,period=5/", "period must be a number from 1000"),
            ("cpu/event=0x3c,period=5000/:5000", "given twice"),
            ("cpu/event=0x3c/@5", "give a period"),
            ("cpu/event=x/", "the value of event is wrong; it must be a number of at most 64 bits"),
            ("cpu/event=+1/", "the value of event is wrong"),
            ("cpu/event=/", "the value of event is wrong"),
            ("cpu/config=0x10000000000000000/", "the value of config is wrong"),
        ] {
            let message = EventSpec::parse(text).unwrap_err().to_string();
            assert!(message.contains(words), "{text}: {message}");
            assert!(!message.contains('\n'));
        }
    }

    #[test]
    fn terms_of_a_pmu() {
        for (text, name, frequency) in [
            ("cpu/event=0x3c,umask=0x0/", "cpu/event=0x3c,umask=0x0/", Frequency::Default),
            (" cpu / event = 0x3c ,, inv/:5000", "cpu/event=0x3c,inv/", Frequency::Period(5000)),
            ("cpu/period=5000,cache-misses/", "cpu/cache-misses/", Frequency::Period(5000)),
        ] {
            let spec = EventSpec::parse(text).unwrap();
            assert_eq!((spec.event.name.as_str(), spec.frequency), (name, frequency), "{text}");
            assert_eq!(EventSpec::parse(name).unwrap().event, spec.event, "one event, one name");
        }
        let Coding::Terms { pmu, terms } =
            EventSpec::parse("cpu/event=0x3c,inv,cmask=16/").unwrap().event.coding
        else {
            panic!("terms")
        };
        assert_eq!(pmu, "cpu");
        assert_eq!(
            terms,
            [("event".into(), Some(0x3c)), ("inv".into(), None), ("cmask".into(), Some(16))]
        );
        let long = format!("cpu/{}/", "event=0x3c,".repeat(12));
        assert!(
            EventSpec::parse(&long).unwrap_err().to_string().contains("write config=0x... instead")
        );
    }

    #[test]
    fn groups_part_at_commas_outside_of_slashes() {
        let names = |text: &str| {
            let group = EventSpec::parse_group(text, 3)?;
            assert!(group.iter().all(|spec| spec.mux == Some(3)));
            Ok::<_, EventError>(group.into_iter().map(|spec| spec.event.name).collect::<Vec<_>>())
        };
        assert_eq!(
            names("cycles:62000, cpu/event=0x3c,umask=0/:5000,imiss").unwrap(),
            ["cycles", "cpu/event=0x3c,umask=0/", "L1-icache-load-misses"]
        );
        for (text, words) in [
            ("cycles", "takes turns with nobody; name two events or more"),
            ("cpu/event=1,umask=2/", "takes turns with nobody"),
            ("cycles,", "unknown event ''"),
            ("", "unknown event ''"),
            ("cycles,cpu/event=1,instructions", "second slash is missing"),
        ] {
            let message = names(text).unwrap_err().to_string();
            assert!(message.contains(words), "{text}: {message}");
        }
    }

    #[test]
    fn rates_become_periods() {
        let period = |text: &str| EventSpec::parse(text).unwrap().plan(2_600_000_000).period;
        assert_eq!(period("cpu-clock@5000"), 200_000);
        assert_eq!(period("cycles@5200"), 500_000);
        assert_eq!(period("cycles:62000"), 62_000);
        assert_eq!(period("cache-misses"), DEFAULT_PERIOD);
    }
}

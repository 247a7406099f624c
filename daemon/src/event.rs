//! Events by name: what the user may ask for and what the kernel is asked for.
//!
//! Names are perf's; DCPI's words are accepted where they mean the same. Numbers are those of linux/perf_event.h.

use std::fmt;

/// perf_event_attr.type.
const HARDWARE: u32 = 0;
const SOFTWARE: u32 = 1;
const HW_CACHE: u32 = 3;
const RAW: u32 = 4;

/// Samples per second and CPU unless the user says otherwise (the paper's rate: SOSP 1997, abstract).
pub const DEFAULT_RATE: u64 = 5200;

/// Mean period of an event whose frequency nobody can know ahead, when the user gives none.
const DEFAULT_PERIOD: u64 = 65_536;

/// What an event's period is counted in, and so how a rate becomes a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds of a timer.
    Nanoseconds,
    /// Something that happens about once per clock cycle.
    Cycles,
    /// Occurrences at a frequency that depends on the program.
    Occurrences,
}

impl Unit {
    /// Units in a second of a CPU whose clock runs at `clock_hz`; for occurrences, an upper bound.
    #[must_use]
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

/// One event as perf_event_open(2) names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// perf's name for it; also the name in the database.
    pub name: String,
    /// perf_event_attr.type.
    pub kind: u32,
    /// perf_event_attr.config.
    pub config: u64,
    /// What its period counts.
    pub unit: Unit,
}

/// How often to sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frequency {
    /// Every so many units on average.
    Period(u64),
    /// So many samples per second and CPU.
    Rate(u64),
    /// The event's default.
    Default,
}

/// What the user typed: `NAME[:PERIOD][@RATE]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSpec {
    /// Which event.
    pub event: Event,
    /// How often.
    pub frequency: Frequency,
}

/// An event with the period it is sampled at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedEvent {
    /// Which event.
    pub event: Event,
    /// Mean units between two samples, at least 1.
    pub period: u64,
    /// Samples per second and CPU that were asked for, when a rate was.
    pub rate: Option<u64>,
    /// Whether the user left the frequency to us, so that the budget may lower it.
    pub adjustable: bool,
    /// What the reader of the profile should know, such as a fallback.
    pub note: Option<String>,
}

impl PlannedEvent {
    /// The same event at another rate.
    #[must_use]
    pub fn at_rate(&self, rate: u64, clock_hz: u64) -> Self {
        let spec = EventSpec { event: self.event.clone(), frequency: Frequency::Rate(rate) };
        Self { adjustable: self.adjustable, note: self.note.clone(), ..spec.plan(clock_hz) }
    }
}

/// What is wrong with an event the user typed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// No such name.
    #[error(
        "unknown event '{0}'; try cycles, cpu-clock, instructions, cache-misses, branch-misses, L1-dcache-load-misses or a raw rNNN (hex)"
    )]
    Unknown(String),
    /// The number after ':' or '@' is not one in range.
    #[error("event '{spec}': {what} must be a number from {min} to {max}")]
    Number {
        /// What the user typed.
        spec: String,
        /// "period" or "rate".
        what: &'static str,
        /// Smallest value accepted.
        min: u64,
        /// Largest value accepted.
        max: u64,
    },
    /// Both a period and a rate.
    #[error("event '{0}': give a period (:N) or a rate (@N), not both")]
    Both(String),
    /// A rate for an event without a known frequency.
    #[error("event '{0}': how often it happens depends on the program, so give a period (:N) instead of a rate")]
    NoRate(String),
}

impl EventSpec {
    /// Parses `NAME[:PERIOD][@RATE]`; the rate may end in `/s`.
    ///
    /// # Errors
    /// [`EventError`] says what to type instead.
    pub fn parse(spec: &str) -> Result<Self, EventError> {
        let (rest, rate) = spec.split_once('@').map_or((spec, None), |(rest, rate)| (rest, Some(rate)));
        let (name, period) = rest.split_once(':').map_or((rest, None), |(name, period)| (name, Some(period)));
        let event = Event::named(name).ok_or_else(|| EventError::Unknown(name.to_owned()))?;
        let number = |text: &str, what, min, max| {
            let number = text.parse().ok().filter(|number| (min..=max).contains(number));
            number.ok_or_else(|| EventError::Number { spec: spec.to_owned(), what, min, max })
        };
        let frequency = match (period, rate) {
            (Some(_), Some(_)) => return Err(EventError::Both(spec.to_owned())),
            // The kernel raises a timer's period to 10 us (kernel/events/core.c, perf_swevent_start_hrtimer), so less would be a lie;
            // a counter must not overflow faster than its handler returns.
            (Some(period), None) => {
                let min = if event.unit == Unit::Nanoseconds { 10_000 } else { 1_000 };
                Frequency::Period(number(period, "period", min, 1 << 47)?)
            }
            (None, Some(_)) if event.unit == Unit::Occurrences => return Err(EventError::NoRate(spec.to_owned())),
            (None, Some(rate)) => Frequency::Rate(number(rate.strip_suffix("/s").unwrap_or(rate), "rate", 1, 100_000)?),
            (None, None) => Frequency::Default,
        };
        Ok(Self { event, frequency })
    }

    /// Fixes the period, on a machine whose clock runs at `clock_hz`.
    #[must_use]
    pub fn plan(&self, clock_hz: u64) -> PlannedEvent {
        let units_per_second = self.event.unit.per_second(clock_hz);
        let (period, rate) = match (self.frequency, self.event.unit) {
            (Frequency::Period(period), _) => (period, None),
            (Frequency::Default, Unit::Occurrences) => (DEFAULT_PERIOD, None),
            (Frequency::Default, _) => (units_per_second / DEFAULT_RATE, Some(DEFAULT_RATE)),
            (Frequency::Rate(rate), _) => (units_per_second / rate.max(1), Some(rate)),
        };
        let adjustable = self.frequency == Frequency::Default && rate.is_some();
        PlannedEvent { event: self.event.clone(), period: period.max(1), rate, adjustable, note: None }
    }
}

impl Event {
    /// The event of that name, or None.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let make = |name: &str, kind, config, unit| Some(Self { name: name.to_owned(), kind, config, unit });
        let canonical = profiledb::event_name(name).unwrap_or(name);
        if let Some((_, kind, config, unit)) = NAMED.iter().find(|(known, ..)| *known == canonical) {
            return make(canonical, *kind, *config, *unit);
        }
        if let Some(config) = cache_event(canonical) {
            return make(canonical, HW_CACHE, config, Unit::Occurrences);
        }
        let digits = canonical.strip_prefix('r').filter(|digits| (1..=16).contains(&digits.len()))?;
        make(canonical, RAW, u64::from_str_radix(digits, 16).ok()?, Unit::Occurrences)
    }

    /// Whether the event needs a hardware counter.
    #[must_use]
    pub fn needs_hardware(&self) -> bool {
        self.kind != SOFTWARE
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
    let (id, rest) = caches.iter().enumerate().find_map(|(id, cache)| Some((id, name.strip_prefix(cache)?)))?;
    let (_, operation, result) = operations.iter().find(|(operation, ..)| *operation == rest)?;
    Some(id as u64 | operation << 8 | result << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specifications() {
        let spec = |text: &str| {
            EventSpec::parse(text).map(|spec| (spec.event.name, spec.event.kind, spec.event.config, spec.frequency))
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
        ] {
            let message = EventSpec::parse(text).unwrap_err().to_string();
            assert!(message.contains(words), "{text}: {message}");
            assert!(!message.contains('\n'));
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

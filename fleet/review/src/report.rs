//! The weekly review as data. Its JSON is an interface: keys are added, never changed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Name of the JSON's schema.
pub const SCHEMA: &str = "dcpi-fleet-review";
/// Version of the JSON's schema. It counts up when a key changes its meaning.
pub const VERSION: u32 = 1;
/// Weeks of a trend: half a year, as long as facts are kept.
pub const TREND_WEEKS: usize = 26;
/// Hours of a week.
pub const WEEK_H: f64 = 168.0;

/// Declares rows: public structs whose fields are the keys of the JSON.
macro_rules! rows {
    ($(
        $(#[$about:meta])*
        $row:ident { $($(#[$field_about:meta])* $field:ident: $type:ty,)* }
    )*) => {$(
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        pub struct $row { $($(#[$field_about])* pub $field: $type,)* }
    )*};
}

rows! {
    /// The review of one event in one week. Core-hours are those of procedures: without idle time
    /// and without samples of unknown code.
    Report {
        /// Schema of the JSON.
        schema: Schema,
        /// Week of ISO 8601: `2026-W47`.
        week: String,
        /// The sampled event, such as `cpu-clock`.
        event: String,
        /// Currency of all money; None: there are no prices ([`Settings`](crate::Settings)).
        currency: Option<String>,
        /// Command that leads from a row to its instructions, with `{service}`, `{image}` and
        /// `{procedure}` where the row's names go ([`Report::drill_command`]); a link where it
        /// begins with `/`.
        drill: String,
        /// Hosts that the review is of.
        hosts: Hosts,
        /// The account of all samples.
        ledger: Ledger,
        /// The fleet as a whole.
        fleet: Fleet,
        /// Services, the most core-hours first.
        services: Vec<ServiceRow>,
        /// Images of services, the most core-hours first.
        images: Vec<ImageRow>,
        /// Types of machines, the most core-hours first.
        machines: Vec<MachineRow>,
        /// Procedures of services, the most core-hours first; not all of them.
        top: Vec<TopRow>,
        /// What changed between builds on the same hosts in the week, the most cores first.
        changed: Vec<ChangeRow>,
        /// What changed from the week before in services that kept their builds.
        between_weeks: Vec<ChangeRow>,
        /// Procedures that no earlier build of the image had.
        new: Vec<SeenRow>,
        /// Procedures of the week before that no longer have samples.
        gone: Vec<SeenRow>,
        /// Procedures that had no samples in the week before, but in an earlier one.
        seldom: Vec<SeenRow>,
        /// Images with several builds at once.
        skew: Vec<SkewRow>,
        /// Work that all services share, by kind ([`tax`](crate::tax)).
        tax: Vec<TaxRow>,
        /// Hosts whose profile of a service is unlike that of the service's other hosts.
        unlike: Vec<UnlikeRow>,
        /// Accepted findings, and what became of them.
        findings: Vec<FindingRow>,
    }

    /// Hosts.
    Hosts {
        /// Hosts that were heard in this week or in the weeks before it.
        expected: u64,
        /// Hosts that were heard in this week.
        heard: u64,
        /// Expected hosts that were not heard.
        silent: Vec<String>,
        /// Hosts whose epochs cover less than half of the week.
        half: Vec<HalfHost>,
        /// Hosts whose clocks are ahead.
        clocks: Vec<ClockHost>,
    }

    /// A host that was heard for less than half of the week.
    HalfHost {
        /// The host.
        host: String,
        /// Part of the week that its epochs cover, 0..0.5.
        covered: f64,
    }

    /// A host with a wrong clock.
    ClockHost {
        /// The host.
        host: String,
        /// Seconds by which its clock is ahead, at least.
        ahead_s: u64,
    }

    /// Samples of all hosts in the week. All but the first field add up to the first one.
    Ledger {
        /// Samples taken.
        taken: u64,
        /// Samples in procedures or images: the review is of these.
        facts: u64,
        /// Samples of the idle loop.
        idle: u64,
        /// Samples of unknown code, by reason.
        unresolved: BTreeMap<String, u64>,
        /// Samples that were dropped, by reason.
        lost: BTreeMap<String, u64>,
    }

    /// Totals.
    Fleet {
        /// Core-hours of the week.
        core_hours: f64,
        /// CPUs that were busy, in the mean over the week.
        busy_cores: f64,
        /// CPUs of the hosts that were heard.
        cpus: u64,
        /// Relative change of busy cores from the week before; None: there is no such week.
        change: Option<f64>,
        /// Price of the core-hours.
        money: Option<f64>,
    }

    /// A service.
    ServiceRow {
        /// The service.
        service: String,
        /// Its owner.
        owner: Option<String>,
        /// Core-hours of the week.
        core_hours: f64,
        /// Part of the fleet's core-hours, 0..=1.
        share: f64,
        /// Hosts with samples.
        hosts: u64,
        /// Price of the core-hours.
        money: Option<f64>,
        /// Relative change of busy cores from the week before.
        change: Option<f64>,
        /// Core-hours by type of machine. Prices are of machines, hence the service's core-hour
        /// costs the mean over these.
        machines: BTreeMap<String, f64>,
    }

    /// An image of a service.
    ImageRow {
        /// The service.
        service: String,
        /// The image's name.
        image: String,
        /// Its owner.
        owner: Option<String>,
        /// Core-hours of the week.
        core_hours: f64,
        /// Part of the fleet's core-hours, 0..=1.
        share: f64,
        /// Hosts with samples.
        hosts: u64,
        /// Price of the core-hours.
        money: Option<f64>,
    }

    /// A type of machine.
    MachineRow {
        /// Instruction set and CPU model.
        #[serde(rename = "type")]
        machine: String,
        /// Hosts of the type that were heard.
        hosts: u64,
        /// Their CPUs.
        cpus: u64,
        /// Core-hours of the week.
        core_hours: f64,
        /// Part of the time covered in which the CPUs were busy, 0..=1.
        busy: f64,
    }

    /// A procedure of a service.
    TopRow {
        /// The service.
        service: String,
        /// The image's name.
        image: String,
        /// The procedure; empty: samples of the image that no symbol names.
        procedure: String,
        /// Its owner.
        owner: Option<String>,
        /// Core-hours of the week.
        core_hours: f64,
        /// Part of the fleet's core-hours, 0..=1.
        share: f64,
        /// Hosts with samples.
        hosts: u64,
        /// Price of the core-hours.
        money: Option<f64>,
        /// Core-hours by week, the oldest first, this week last; None: no samples.
        trend: Vec<Option<f64>>,
    }

    /// An estimate with an interval of 95 % confidence.
    Estimate {
        /// Estimate.
        value: f64,
        /// Lower end of the interval.
        low: f64,
        /// Upper end of the interval.
        high: f64,
    }

    /// A change that is more than chance, of a procedure or a whole image.
    ChangeRow {
        /// The compared sets.
        kind: ChangeKind,
        /// The service.
        service: String,
        /// The image's name.
        image: String,
        /// The earlier build's id; empty between weeks.
        build_old: String,
        /// The later build's id; empty between weeks.
        build_new: String,
        /// The procedure; empty: the whole image.
        procedure: String,
        /// Relative change of the part of the service's time; 0.02: 2 % more.
        change: Estimate,
        /// Expected part of false ones among all changes with this q or a smaller one, 0..=1
        /// (Benjamini and Hochberg 1995).
        q: f64,
        /// Hosts compared.
        hosts: u64,
        /// Busy cores more in the mean over the week, if all hosts of the service had the change.
        cores: f64,
        /// Price of these cores for a week.
        money: Option<f64>,
        /// Its owner.
        owner: Option<String>,
        /// Of builds: part of the hosts that changed on the day on which most did, 0..=1. What else
        /// happened on that day is in the change.
        same_day: f64,
        /// The reason for which the change was accepted; None: it was not.
        accepted: Option<String>,
        /// Procedures whose change is opposite and as large: cost that perhaps moved.
        moved_with: Vec<String>,
    }

    /// A procedure that appeared or went away.
    SeenRow {
        /// The service.
        service: String,
        /// The image's name.
        image: String,
        /// The procedure.
        procedure: String,
        /// Its owner.
        owner: Option<String>,
        /// Core-hours of the week; of procedures that are gone, of the week before.
        core_hours: f64,
        /// Hosts with samples.
        hosts: u64,
        /// Price of the core-hours.
        money: Option<f64>,
    }

    /// An image with several builds.
    SkewRow {
        /// The service.
        service: String,
        /// The image's name.
        image: String,
        /// Its builds, the one first seen last first.
        builds: Vec<BuildRow>,
    }

    /// A build.
    BuildRow {
        /// The build's id.
        build: String,
        /// Hosts with samples of the build.
        hosts: u64,
        /// Part of the image's samples, 0..=1.
        share: f64,
        /// First seen, seconds since 1970 UTC.
        first_s: i64,
        /// Last seen, seconds since 1970 UTC.
        last_s: i64,
        /// Why it was not compared with the build before; null: it was, or is the first.
        #[serde(default)]
        not_judged: Option<String>,
    }

    /// A kind of work that all services share.
    TaxRow {
        /// The kind's name ([`Kind`](crate::tax::Kind)).
        kind: String,
        /// Core-hours of the week.
        core_hours: f64,
        /// Part of the fleet's core-hours, 0..=1.
        share: f64,
        /// Price of the core-hours.
        money: Option<f64>,
    }

    /// A host whose profile of a service is unlike that of the service's other hosts.
    UnlikeRow {
        /// The service.
        service: String,
        /// The host.
        host: String,
        /// Half of the sum of absolute differences between the host's shares and the median host's,
        /// 0..=1.
        distance: f64,
        /// The distance that chance and the typical spread between hosts explain, 0..=1.
        expected: f64,
        /// The procedure whose share differs most.
        procedure: String,
    }

    /// An accepted finding.
    FindingRow {
        /// Its id.
        id: String,
        /// The findings.
        what: String,
        /// The service.
        service: String,
        /// The image's name.
        image: String,
        /// The procedure; empty: the whole image.
        procedure: String,
        /// Week in which it was accepted.
        week: String,
        /// Busy cores that its remedy promised to save; 0: nothing was promised.
        promised_cores: f64,
        /// Busy cores saved by week, the oldest first.
        got: Vec<GotWeek>,
        /// The outcome of the promise.
        state: FindingState,
    }

    /// The saving of a finding in a week.
    GotWeek {
        /// The week.
        week: String,
        /// Busy cores saved.
        value: f64,
        /// Lower end of the interval of 95 % confidence.
        low: f64,
        /// Upper end of the interval.
        high: f64,
    }
}

/// Name and version of a schema.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schema {
    /// The name.
    pub name: String,
    /// The version.
    pub version: u32,
}

impl Default for Schema {
    fn default() -> Self {
        Self { name: SCHEMA.to_owned(), version: VERSION }
    }
}

/// The two sides of a change.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    /// Two builds on the same hosts in the same week.
    #[default]
    Build,
    /// The week before and this week.
    Week,
}

/// The outcome of a finding's promise, according to the last measured week.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FindingState {
    /// Nothing was promised, or nothing measured.
    #[default]
    NotMeasured,
    /// The interval has both nothing and the promise in it.
    Undecided,
    /// The interval has nothing in it, and ends below the promise.
    NotSeen,
    /// More than nothing and less than the promise.
    InPart,
    /// The interval reaches the promise, and has more than nothing.
    Kept,
}

impl FindingState {
    /// The state's name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotMeasured => "not measured",
            Self::Undecided => "undecided",
            Self::NotSeen => "not seen",
            Self::InPart => "in part",
            Self::Kept => "kept",
        }
    }

    /// The state of a promise to save this many busy cores.
    #[must_use]
    pub fn of(promised_cores: f64, got: &[GotWeek]) -> Self {
        match got.last() {
            Some(last) if promised_cores > 0.0 => {
                match (last.low > 0.0, last.high >= promised_cores) {
                    (true, true) => Self::Kept,
                    (true, false) => Self::InPart,
                    (false, true) => Self::Undecided,
                    (false, false) => Self::NotSeen,
                }
            }
            _ => Self::NotMeasured,
        }
    }
}

impl Ledger {
    /// Samples of unknown code.
    #[must_use]
    pub fn unresolved(&self) -> u64 {
        sum(&self.unresolved)
    }

    /// Samples that were dropped.
    #[must_use]
    pub fn lost(&self) -> u64 {
        sum(&self.lost)
    }

    /// Samples taken less those accounted for. Anything but 0 is a mistake of the store's.
    #[must_use]
    pub fn difference(&self) -> i128 {
        let parts = [self.facts, self.idle, self.unresolved(), self.lost()];
        i128::from(self.taken) - parts.into_iter().map(i128::from).sum::<i128>()
    }
}

fn sum(by_reason: &BTreeMap<String, u64>) -> u64 {
    by_reason.values().fold(0, |sum, samples| sum.saturating_add(*samples))
}

impl Report {
    /// The command that leads from a row to its instructions, for a shell (bash).
    #[must_use]
    pub fn drill_command(&self, service: &str, image: &str, procedure: &str) -> String {
        // In one pass, since a name may have a placeholder in it.
        let mut command = String::new();
        let mut rest = self.drill.as_str();
        while let Some(at) = rest.find('{') {
            let (before, from) = rest.split_at(at);
            command.push_str(before);
            let names = [("{service}", service), ("{image}", image), ("{procedure}", procedure)];
            let found = names.iter().find_map(|(place, name)| {
                from.strip_prefix(place).map(|after| (self.drill_word(name), after))
            });
            let (word, after) = found.unwrap_or_else(|| {
                let (brace, after) = from.split_at(1);
                (brace.to_owned(), after)
            });
            command.push_str(&word);
            rest = after;
        }
        command + rest
    }
}

impl Report {
    /// A name as a part of the command: a word of bash, or of a link.
    fn drill_word(&self, name: &str) -> String {
        if self.drill.starts_with('/') { percent_encoded(name) } else { shell_word(name) }
    }
}

/// The text as a value in a link's query (RFC 3986, 2.1).
pub(crate) fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// The text as one word of bash: in quotation marks if need be, and without characters that a
/// terminal obeys.
#[must_use]
pub fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./:@%+,=-".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    if crate::escape::escape(text) == text {
        return format!("'{}'", text.replace('\'', "'\\''"));
    }
    let mut word = String::from("$'");
    for c in text.chars() {
        match c {
            '\'' | '\\' => word.extend(['\\', c]),
            ' '..='~' => word.push(c),
            c => word.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    word + "'"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_are_held_against_intervals() {
        let got = |low, high| {
            [GotWeek { week: String::new(), value: f64::midpoint(low, high), low, high }]
        };
        for (low, high, state) in [
            (9.0, 12.0, FindingState::Kept),
            (2.0, 12.0, FindingState::Kept),
            (2.0, 9.0, FindingState::InPart),
            (-1.0, 12.0, FindingState::Undecided),
            (-1.0, 3.0, FindingState::NotSeen),
            (-9.0, -3.0, FindingState::NotSeen),
        ] {
            assert_eq!(FindingState::of(10.0, &got(low, high)), state, "{low} {high}");
        }
        assert_eq!(FindingState::of(10.0, &[]), FindingState::NotMeasured);
        assert_eq!(FindingState::of(0.0, &got(1.0, 2.0)), FindingState::NotMeasured);
    }

    #[test]
    fn a_ledger_that_does_not_close_says_by_how_much() {
        let unresolved = [("a".to_owned(), 3), ("b".to_owned(), 4)].into();
        let lost = [("full".to_owned(), u64::MAX)].into();
        let ledger = Ledger { taken: 20, facts: 10, idle: 3, unresolved, lost: BTreeMap::new() };
        assert_eq!(ledger.difference(), 0);
        let wrong = Ledger { lost, ..ledger };
        assert_eq!(wrong.difference(), -i128::from(u64::MAX));
    }

    #[test]
    fn commands_hold_any_name() {
        let report = Report {
            drill: "drill {x} --service {service} --image {image} --procedure {procedure} end"
                .to_owned(),
            ..Report::default()
        };
        assert_eq!(
            report.drill_command("web", "it's", "f{image}(int)"),
            "drill {x} --service web --image 'it'\\''s' --procedure 'f{image}(int)' end"
        );
    }

    #[test]
    fn links_hold_any_name() {
        let report =
            Report { drill: "/d?s={service}&p={procedure}".to_owned(), ..Report::default() };
        assert_eq!(report.drill_command("a&b", "", "f<ü>"), "/d?s=a%26b&p=f%3C%C3%BC%3E");
    }

    /// Bash expands the word to the original name.
    #[test]
    fn bash_reads_the_name_back() {
        for name in ["", "a b", "it's $(rm) `x` \\", "\x1b[2J'\\\n", "größe", "\u{202e}cba", "-x"]
        {
            let script = format!("printf %s {}", shell_word(name));
            let run = std::process::Command::new("bash")
                .args(["-c", &script])
                .env("LC_ALL", "C.UTF-8")
                .output()
                .unwrap();
            assert_eq!(String::from_utf8_lossy(&run.stdout), name, "{script}");
            assert!(!script.contains(['\x1b', '\n', '\u{202e}']), "{script:?}");
        }
    }
}

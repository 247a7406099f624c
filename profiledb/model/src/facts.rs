//! Facts of host and processor that an epoch keeps beside its counts, each by name and of one type.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A fact: one JSON value under one name.
pub trait Fact: Serialize + DeserializeOwned {
    /// The name in epochs. It never changes.
    const NAME: &'static str;

    /// Whether its values can be: epochs may be a stranger's.
    fn is_sound(&self) -> bool {
        true
    }
}

/// The facts of an epoch. Facts that a later program wrote are kept unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Facts(BTreeMap<String, Value>);

impl Facts {
    /// A fact; None when it was not stated, has another type, or values that cannot be.
    pub fn get<Known: Fact>(&self) -> Option<Known> {
        Known::deserialize(self.0.get(Known::NAME)?).ok().filter(Known::is_sound)
    }

    /// States a fact, which replaces an earlier one of the same name.
    pub fn state<Known: Fact>(&mut self, fact: &Known) {
        // Our facts are structures, numbers and texts, which serde_json always accepts.
        self.state_value(Known::NAME, serde_json::to_value(fact).unwrap_or_default());
    }

    /// States that the fact could not be found out. The value is null, which replaces an earlier
    /// one.
    pub fn state_unknown<Known: Fact>(&mut self) {
        self.state_value(Known::NAME, Value::Null);
    }

    /// States a fact under a name, as JSON of any form.
    pub fn state_value(&mut self, name: &str, fact: Value) {
        self.0.insert(name.to_owned(), fact);
    }

    /// The JSON of a fact of any form.
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// Takes over the facts of `later`, which replace those of the same names.
    pub fn extend(&mut self, later: &Self) {
        self.0.extend(later.0.iter().map(|(name, fact)| (name.clone(), fact.clone())));
    }

    /// Keeps the facts that all of `others` state as well, with the same value.
    pub fn retain_agreed<'a>(&mut self, others: impl Iterator<Item = &'a Self> + Clone) {
        self.0.retain(|name, fact| others.clone().all(|other| other.0.get(name) == Some(fact)));
    }

    /// True when nothing was stated.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Skid of an event's samples, as measured on this machine when the daemon began: the distance from
/// the instruction that took the time to the instruction where the sample lands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredSkid {
    /// The event's name. Samples of other events may have another skid.
    pub event: String,
    /// Skid in instructions; 0 when a sample names the instruction that took the time.
    pub instructions: u8,
    /// Samples that the measurement took.
    #[serde(default)]
    pub samples: u64,
}

impl Fact for MeasuredSkid {
    const NAME: &'static str = "skid";
}

/// A processor, by the numbers of CPUID, or of MIDR on Arm.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpuid {
    /// `GenuineIntel`, `AuthenticAMD`; the implementer, `0x41` for Arm.
    pub vendor: String,
    /// Family, with the extended part; the architecture, 8.
    pub family: u64,
    /// Model, with the extended part; the part.
    pub model: u64,
}

impl Cpuid {
    /// A value of the first CPU in /proc/cpuinfo.
    pub fn fact_of_cpuinfo<'a>(cpuinfo: &'a str, key: &str) -> Option<&'a str> {
        let mut facts = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        facts.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim())
    }

    /// The processor of the text of /proc/cpuinfo; None where it does not tell, or reports several
    /// kinds.
    pub fn of_cpuinfo(cpuinfo: &str) -> Option<Self> {
        let number = |key| Self::fact_of_cpuinfo(cpuinfo, key)?.parse().ok();
        let Some(vendor) = Self::fact_of_cpuinfo(cpuinfo, "vendor_id") else {
            return Self::of_midr(cpuinfo);
        };
        Some(Self {
            vendor: vendor.to_owned(),
            family: number("cpu family")?,
            model: number("model")?,
        })
    }

    /// The MIDR as arm64 reports it (`arch/arm64/kernel/cpuinfo.c`), where all CPUs have the same
    /// one. Samples do not keep the kind of their CPU, so several kinds give None.
    fn of_midr(cpuinfo: &str) -> Option<Self> {
        let all = |key| {
            let facts = cpuinfo.lines().filter_map(|line| line.split_once(':'));
            let mut values =
                facts.filter(|(name, _)| name.trim() == key).map(|(_, value)| value.trim());
            let first = values.next()?;
            values.all(|value| value == first).then_some(first)
        };
        let model = u64::from_str_radix(all("CPU part")?.strip_prefix("0x")?, 16).ok()?;
        Some(Self {
            vendor: all("CPU implementer")?.to_owned(),
            family: all("CPU architecture")?.parse().ok()?,
            model,
        })
    }
}

impl Fact for Cpuid {
    const NAME: &'static str = "cpuid";
}

/// How often a command ran while it was sampled, in an epoch that has its exact counts too. The
/// counts are of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampledRuns {
    /// Runs that were sampled.
    pub runs: u32,
    /// Cycles a second of a busy CPU, measured before the first of these runs and after the last.
    /// None where the processor's latencies are not known, so that nothing could be measured.
    pub hertz: Option<f64>,
}

impl Fact for SampledRuns {
    const NAME: &'static str = "sampled_runs";
}

/// The model of the processor whose cycles the event `ideal` counts, by LLVM's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct IdealMachine(pub String);

impl Fact for IdealMachine {
    const NAME: &'static str = "ideal_machine";
}

/// The label that a reader of the epoch selects unless told otherwise: that of the command which
/// was recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OpensOn(pub String);

impl Fact for OpensOn {
    const NAME: &'static str = "opens_on";
}

/// The epochs that were merged into this one, each as `HOST/EPOCH`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MergedFrom(pub std::collections::BTreeSet<String>);

impl Fact for MergedFrom {
    const NAME: &'static str = "merged_from";
}

/// Times when the daemon did less than sample everything, the latest last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Restraints(pub Vec<Restraint>);

/// A change of how much the daemon did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restraint {
    /// Time of the change, in seconds since 1970 UTC.
    pub unix_s: u64,
    /// The daemon's level of activity from then on: `all`, `counts only` or `nothing`.
    pub doing: String,
    /// Reason for the change, in a phrase.
    pub why: String,
}

impl Fact for Restraints {
    const NAME: &'static str = "restraint";
}

/// Times when the clock on the wall was set while the epoch lasted, the latest last. Where it was
/// set back, the epoch's times are ahead of that clock from then on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClockSteps(pub Vec<ClockStep>);

/// A clock that was set back, or forward.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockStep {
    /// The epoch's time then, in seconds since 1970 UTC: that of the last merge before it.
    pub at_unix_s: u64,
    /// How far the clock was set back, in seconds.
    pub back_s: u64,
    /// How far it was set forward, in seconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub forward_s: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Fact for ClockSteps {
    const NAME: &'static str = "clock_set_back";
}

/// How the daemons ended that wrote the epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endings {
    /// Whether the last of them ended with all its samples in the epoch. False while it runs, and
    /// for ever when it was killed.
    pub ended: bool,
    /// Times that have no samples because a daemon was killed, the latest last.
    pub killed: Vec<Killed>,
}

/// The time from the last merge of a daemon that was killed to the next daemon's start.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Killed {
    /// The last merge, in seconds since 1970 UTC.
    pub since_unix_s: u64,
    /// The next start, in seconds since 1970 UTC.
    pub until_unix_s: u64,
}

impl Fact for Endings {
    const NAME: &'static str = "endings";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_is_told_by_its_cpuinfo() {
        let text =
            "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n";
        assert_eq!(
            Cpuid::of_cpuinfo(text),
            Some(Cpuid { vendor: "AuthenticAMD".to_owned(), family: 25, model: 1 })
        );
        assert_eq!(Cpuid::of_cpuinfo("CPU part\t: 0xd0c\n"), None);
        let arm = |part| {
            format!(
                "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: {part}\n"
            )
        };
        let one = Some(Cpuid { vendor: "0x41".to_owned(), family: 8, model: 0xd03 });
        assert_eq!(Cpuid::of_cpuinfo(&[arm("0xd03"), arm("0xd03")].concat()), one);
        assert_eq!(Cpuid::of_cpuinfo(&[arm("0xd03"), arm("0xd08")].concat()), None, "two kinds");
        assert_eq!(Cpuid::of_cpuinfo(&arm("d03")), None);
    }

    #[test]
    fn facts_read_back_and_have_the_names_and_forms_of_the_first_release() {
        let mut facts = Facts::default();
        facts.state(&MeasuredSkid { event: "cycles".into(), instructions: 1, samples: 90 });
        facts.state(&Cpuid { vendor: "GenuineIntel".into(), family: 6, model: 85 });
        facts.state(&OpensOn("run".into()));
        let restraint = Restraint { unix_s: 7, doing: "nothing".into(), why: "told".into() };
        facts.state(&Restraints(vec![restraint.clone()]));
        let json = concat!(
            r#"{"cpuid":{"family":6,"model":85,"vendor":"GenuineIntel"},"opens_on":"run","#,
            r#""restraint":[{"doing":"nothing","unix_s":7,"why":"told"}],"#,
            r#""skid":{"event":"cycles","instructions":1,"samples":90}}"#
        );
        assert_eq!(serde_json::to_string(&facts).unwrap(), json);
        let read: Facts = serde_json::from_str(json).unwrap();
        assert_eq!(read, facts);
        assert_eq!(read.get::<Restraints>(), Some(Restraints(vec![restraint])));
        assert_eq!(read.get::<MeasuredSkid>().map(|skid| skid.instructions), Some(1));
    }

    #[test]
    fn what_is_null_or_of_another_form_is_no_fact() {
        let mut facts = Facts::default();
        facts.state_unknown::<MeasuredSkid>();
        facts.state_value("cpuid", "of a later release".into());
        assert_eq!((facts.get::<MeasuredSkid>(), facts.get::<Cpuid>()), (None, None));
        assert_eq!(facts.value("skid"), Some(&Value::Null));
        let mut other = facts.clone();
        other.state_value("cpuid", 7.into());
        facts.retain_agreed([&other].into_iter());
        assert!(facts.value("cpuid").is_none() && !facts.is_empty());
    }
}

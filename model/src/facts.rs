//! Facts of host and processor that an epoch keeps beside its counts, each by name and of one type.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A fact: one JSON value under one name.
pub trait Fact: Serialize + DeserializeOwned {
    /// The name in epochs. It never changes.
    const NAME: &'static str;
}

/// The facts of an epoch. What a later program wrote stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Facts(BTreeMap<String, Value>);

impl Facts {
    /// A fact; None when it was not stated, or as another type.
    #[must_use]
    pub fn get<Known: Fact>(&self) -> Option<Known> {
        Known::deserialize(self.0.get(Known::NAME)?).ok()
    }

    /// States a fact. It replaces one of the same name.
    pub fn state<Known: Fact>(&mut self, fact: &Known) {
        // Our facts are structures, numbers and texts, which JSON always takes.
        self.state_value(Known::NAME, serde_json::to_value(fact).unwrap_or_default());
    }

    /// States that what this fact tells could not be found out: null, which replaces an earlier
    /// one.
    pub fn state_unknown<Known: Fact>(&mut self) {
        self.state_value(Known::NAME, Value::Null);
    }

    /// States a fact of any form.
    pub fn state_value(&mut self, name: &str, fact: Value) {
        self.0.insert(name.to_owned(), fact);
    }

    /// A fact of any form.
    #[must_use]
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
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// How far behind the instruction that took the time samples of an event land, as measured on this
/// machine when the daemon began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredSkid {
    /// The event's name. Other events may land elsewhere.
    pub event: String,
    /// Instructions: 0 where a sample has the instruction that took the time.
    pub instructions: u8,
    /// Samples of the measurement.
    #[serde(default)]
    pub samples: u64,
}

impl Fact for MeasuredSkid {
    const NAME: &'static str = "skid";
}

/// A processor as CPUID names it, or the MIDR of Arm's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpuid {
    /// `GenuineIntel`, `AuthenticAMD`; the implementer, `0x41` for Arm.
    pub vendor: String,
    /// Family, with the extended part; the architecture, 8.
    pub family: u64,
    /// Model, with the extended part; the part.
    pub model: u64,
}

impl Fact for Cpuid {
    const NAME: &'static str = "cpuid";
}

/// The label whose samples a reader of the epoch begins with, where one command was recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OpensOn(pub String);

impl Fact for OpensOn {
    const NAME: &'static str = "opens_on";
}

/// The epochs that this one was made of, each as `HOST/EPOCH`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MergedFrom(pub std::collections::BTreeSet<String>);

impl Fact for MergedFrom {
    const NAME: &'static str = "merged_from";
}

/// When the daemon did less than all, the latest last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Restraints(pub Vec<Restraint>);

/// From some time on, how much the daemon did, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restraint {
    /// Since when, in seconds since 1970 UTC.
    pub unix_s: u64,
    /// `all`, `counts only` or `nothing`.
    pub doing: String,
    /// Why, in a phrase.
    pub why: String,
}

impl Fact for Restraints {
    const NAME: &'static str = "restraint";
}

#[cfg(test)]
mod tests {
    use super::*;

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

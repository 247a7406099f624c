//! Scopes: the processes whose samples a profile has, where the user asked to keep them apart.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Damage, DbError};
use crate::naming;

/// Most scopes of one epoch. Each adds a profile for each image and event that it has samples of,
/// which readers have to add up.
pub const SCOPES_MAX: usize = 4096;
/// Most scopes with a process number among these: a storm of processes must not use up the places
/// of labels and units.
pub const PROCESS_SCOPES_MAX: usize = 3072;

/// The processes whose samples a profile has. A field that is None was not asked for: the profile
/// of the empty scope has the samples of all processes that are not kept apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Scope {
    /// The label of the run, as for [`check_label`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The systemd unit or container: 1 to 128 bytes without control character.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// Process number, not 0. Two processes with the same number are one scope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
}

impl Scope {
    /// True when no field is set.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.label.is_none() && self.unit.is_none() && self.pid.is_none()
    }

    /// The next wider scope: without the process, else without the unit, else the empty one.
    #[must_use]
    pub fn widened(&self) -> Self {
        match self {
            Self { label, unit, pid: Some(_) } => {
                Self { label: label.clone(), unit: unit.clone(), pid: None }
            }
            Self { label, unit: Some(_), pid: None } => {
                Self { label: label.clone(), unit: None, pid: None }
            }
            _ => Self::default(),
        }
    }

    /// Refuses a scope that may not be stored.
    pub(crate) fn check(&self) -> Result<(), DbError> {
        self.label.as_deref().map_or(Ok(()), check_label)?;
        self.unit.as_deref().map_or(Ok(()), check_unit)?;
        match self.pid {
            Some(0) => Err(naming::invalid_pid()),
            _ => Ok(()),
        }
    }
}

/// Refuses a label that a run or an epoch may not have: a label has 1 to 128 bytes without slash or
/// control character.
///
/// # Errors
/// [`DbError::InvalidName`].
pub fn check_label(label: &str) -> Result<(), DbError> {
    naming::check_label(label)
}

/// Refuses a name that a unit may not have: a unit has 1 to 128 bytes without control character.
///
/// # Errors
/// [`DbError::InvalidName`].
pub fn check_unit(unit: &str) -> Result<(), DbError> {
    naming::check_unit(unit)
}

/// The scopes of an epoch by number. A number is never given to another scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScopeTable {
    by_number: BTreeMap<u32, Scope>,
    numbers: BTreeMap<Scope, u32>,
}

impl ScopeTable {
    /// The scope with a number.
    pub(crate) fn get(&self, number: u32) -> Option<&Scope> {
        self.by_number.get(&number)
    }

    /// The number of a scope.
    pub(crate) fn number(&self, scope: &Scope) -> Option<u32> {
        self.numbers.get(scope).copied()
    }

    /// The number of scopes.
    pub(crate) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// All scopes, in order of number.
    pub(crate) fn scopes(&self) -> impl Iterator<Item = &Scope> {
        self.by_number.values()
    }

    /// Adds a scope that a file names.
    pub(crate) fn learn(&mut self, number: u32, scope: Scope) {
        self.numbers.insert(scope.clone(), number);
        self.by_number.insert(number, scope);
    }

    /// The scope under which samples of `scope` are stored: `scope` itself where there is room for
    /// it, else the narrowest wider scope that exists, at last the empty one (no number).
    pub(crate) fn admit(&mut self, scope: &Scope) -> (Scope, Option<u32>) {
        let mut scope = scope.clone();
        while !scope.is_empty() {
            if let Some(number) = self.number(&scope) {
                return (scope, Some(number));
            }
            let limit = if scope.pid.is_some() { PROCESS_SCOPES_MAX } else { SCOPES_MAX };
            if self.len() < limit {
                let number = self.by_number.last_key_value().map_or(0, |(last, _)| last + 1);
                self.learn(number, scope.clone());
                return (scope, Some(number));
            }
            scope = scope.widened();
        }
        (scope, None)
    }
}

/// Decodes the scopes of a file `scopes`.
pub(crate) fn decode(payload: &[u8]) -> Result<ScopeTable, Damage> {
    let scopes: Vec<Scope> = serde_json::from_slice(payload).map_err(Damage::Json)?;
    let mut table = ScopeTable::default();
    for (number, scope) in (0..).zip(scopes) {
        if scope.is_empty() || scope.check().is_err() {
            return Err(Damage::Name);
        }
        if table.number(&scope).is_some() {
            return Err(Damage::Duplicate);
        }
        table.learn(number, scope);
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(label: &str, unit: &str, pid: u32) -> Scope {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Scope { label: some(label), unit: some(unit), pid: (pid > 0).then_some(pid) }
    }

    #[test]
    fn a_list_of_format_1_reads_as_the_table_it_was() {
        let mut table = ScopeTable::default();
        assert_eq!(table.admit(&Scope::default()), (Scope::default(), None));
        for (number, scope) in
            (0..).zip([scope("a", "", 0), scope("", "b.service", 0), scope("a", "b.service", 7)])
        {
            assert_eq!(table.admit(&scope), (scope.clone(), Some(number)));
            assert_eq!(table.admit(&scope), (scope.clone(), Some(number)), "known by now");
        }
        let bytes =
            br#"[{"label":"a"},{"unit":"b.service"},{"label":"a","unit":"b.service","pid":7}]"#;
        assert_eq!(decode(bytes).unwrap(), table);
    }

    #[test]
    fn what_no_writer_writes_is_refused() {
        for (json, what) in [
            (r#"[{}]"#, "a name that may not be stored"),
            (r#"[{"label":""}]"#, "a name that may not be stored"),
            (r#"[{"label":"a/b"}]"#, "a name that may not be stored"),
            (r#"[{"unit":"a\nb"}]"#, "a name that may not be stored"),
            (r#"[{"pid":0}]"#, "a name that may not be stored"),
            (r#"[{"pid":1},{"pid":1}]"#, "the same entry twice"),
        ] {
            assert_eq!(decode(json.as_bytes()).unwrap_err().to_string(), what, "{json}");
        }
        for json in ["", "{}", r#"[{"pid":-1}]"#, r#"[{"pid":4294967296}]"#, "[[]]"] {
            assert!(
                matches!(decode(json.as_bytes()), Err(Damage::Json(_) | Damage::Name)),
                "{json}"
            );
        }
    }

    #[test]
    fn where_there_is_no_room_a_wider_scope_takes_the_samples() {
        let mut table = ScopeTable::default();
        table.admit(&scope("run", "", 0));
        let processes =
            (1..).take_while(|pid| table.admit(&scope("run", "", *pid)).0.pid.is_some()).count();
        assert_eq!(processes, PROCESS_SCOPES_MAX - 1);
        let refused = u32::MAX;
        assert_eq!(
            table.admit(&scope("run", "", refused)),
            (scope("run", "", 0), Some(0)),
            "the label is kept"
        );
        assert_eq!(table.admit(&scope("", "", refused)), (Scope::default(), None));
        let units = (0..)
            .take_while(|unit| table.admit(&scope("", &format!("u{unit}"), 0)).1.is_some())
            .count();
        assert_eq!((units, table.len()), (SCOPES_MAX - PROCESS_SCOPES_MAX, SCOPES_MAX));
        assert_eq!(table.admit(&scope("run", "new", 7)), (scope("run", "", 0), Some(0)));
        assert_eq!(table.admit(&scope("other", "new", 7)), (Scope::default(), None));
    }
}

//! Scopes: the processes whose samples a profile has, where the user asked to keep them apart.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::error::DbError;
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

/// The name of a container's image without tag and digest: `REGISTRY:PORT/NAME[:TAG][@DIGEST]`.
pub fn without_tag(image: &str) -> &str {
    let image = image.split_once('@').map_or(image, |(name, _)| name);
    let last = image.rfind('/').map_or(0, |at| at + 1);
    let tag = image.get(last..).and_then(|name| name.find(':'));
    tag.and_then(|at| image.get(..last + at)).unwrap_or(image)
}

impl Scope {
    /// True when no field is set.
    pub const fn is_empty(&self) -> bool {
        self.label.is_none() && self.unit.is_none() && self.pid.is_none()
    }

    /// The next wider scope: without the process, else without the unit, else the empty one.
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

    /// The image that a container was made of, as its engine names it, or its pod. dcpid stores it
    /// after the container's name: `docker-0123456789ab shop/api:2`.
    pub fn container_image(&self) -> Option<&str> {
        self.container().map(|(_, image)| image)
    }

    /// Whether the unit has this name. A container is also meant by its own name, and by its
    /// image's with or without tag.
    pub fn is_of_unit(&self, name: &str) -> bool {
        let is_container =
            |(container, image)| container == name || image == name || without_tag(image) == name;
        self.unit.as_deref() == Some(name) || self.container().is_some_and(is_container)
    }

    /// Name and image of a container whose image is known.
    fn container(&self) -> Option<(&str, &str)> {
        let (container, image) = self.unit.as_deref()?.split_once(' ')?;
        let (_, id) = container.rsplit_once('-')?;
        let is_id = id.len() == 12 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        (is_id && !container.starts_with('/')).then_some((container, image))
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

/// The scopes of an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScopeTable(BTreeSet<Scope>);

impl ScopeTable {
    /// The scope under which samples of `scope` are stored: `scope` itself where there is room for
    /// it, else the narrowest wider scope that exists, at last the empty one.
    pub(crate) fn admit(&mut self, scope: &Scope) -> Scope {
        let mut scope = scope.clone();
        while !scope.is_empty() && !self.0.contains(&scope) {
            let limit = if scope.pid.is_some() { PROCESS_SCOPES_MAX } else { SCOPES_MAX };
            if self.0.len() < limit {
                self.0.insert(scope.clone());
                break;
            }
            scope = scope.widened();
        }
        scope
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(label: &str, unit: &str, pid: u32) -> Scope {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Scope { label: some(label), unit: some(unit), pid: (pid > 0).then_some(pid) }
    }

    #[test]
    fn a_container_is_meant_by_its_name_and_its_image() {
        let web = scope("", "docker-0123456789ab hub:5000/shop/web:3@sha256:00", 0);
        for (name, is) in [
            ("docker-0123456789ab hub:5000/shop/web:3@sha256:00", true),
            ("docker-0123456789ab", true),
            ("hub:5000/shop/web:3@sha256:00", true),
            ("hub:5000/shop/web", true),
            ("hub", false),
            ("web", false),
            ("", false),
        ] {
            assert_eq!(web.is_of_unit(name), is, "{name}");
        }
        assert!(!scope("", "/a group", 0).is_of_unit("group"), "no container");
        assert!(!scope("", "/a-0123456789ab b", 0).is_of_unit("b"), "a path");
        for (image, name) in [("a:1", "a"), ("h:5/a", "h:5/a"), ("a@sha256:1", "a"), ("", "")] {
            assert_eq!(without_tag(image), name);
        }
    }

    #[test]
    fn where_there_is_no_room_a_wider_scope_takes_the_samples() {
        let mut table = ScopeTable::default();
        table.admit(&scope("run", "", 0));
        let processes =
            (1..).take_while(|pid| table.admit(&scope("run", "", *pid)).pid.is_some()).count();
        assert_eq!(processes, PROCESS_SCOPES_MAX - 1);
        let refused = u32::MAX;
        assert_eq!(table.admit(&scope("run", "", refused)), scope("run", "", 0), "the label stays");
        assert_eq!(table.admit(&scope("", "", refused)), Scope::default());
        let units = (0..)
            .take_while(|unit| !table.admit(&scope("", &format!("u{unit}"), 0)).is_empty())
            .count();
        assert_eq!((units, table.0.len()), (SCOPES_MAX - PROCESS_SCOPES_MAX, SCOPES_MAX));
        assert_eq!(table.admit(&scope("run", "new", 7)), scope("run", "", 0));
        assert_eq!(table.admit(&scope("other", "new", 7)), Scope::default());
    }
}

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

/// A container, as a unit names it: `NAME [pod:NAMESPACE/POD] [IMAGE]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Container<'a> {
    /// Its name: `docker-0123456789ab`, `machine-web.scope`.
    pub name: &'a str,
    /// The image that it was made of, as its engine names it.
    pub image: Option<&'a str>,
    /// Its pod's namespace and name.
    pub pod: Option<(&'a str, &'a str)>,
}

impl<'a> Container<'a> {
    /// The word before a pod.
    pub const POD: &'static str = "pod:";

    /// The container of a unit, if it is of one.
    pub fn of(unit: &'a str) -> Option<Self> {
        let mut words = unit.split(' ');
        let name = words.next().filter(|name| is_container(name))?;
        let mut container = Self { name, image: None, pod: None };
        for word in words {
            match word.strip_prefix(Self::POD) {
                Some(pod) => container.pod = pod.split_once('/'),
                None => container.image = Some(word),
            }
        }
        Some(container)
    }

    /// Whether this is the container's name, the id in it (cut short or whole), or the name of its
    /// image with or without tag.
    pub fn is_called(self, name: &str) -> bool {
        let of_image = |image: &str| image == name || without_tag(image) == name;
        let id = self.name.rsplit_once('-').map(|(_, id)| id).filter(|id| is_id(id));
        self.name == name
            || self.image.is_some_and(of_image)
            || id.is_some_and(|id| {
                name.starts_with(id) && name.bytes().all(|byte| byte.is_ascii_hexdigit())
            })
    }

    /// Its name with its image's.
    pub fn shown(self) -> String {
        let image = self.image.map(|image| format!(" {image}"));
        format!("{}{}", self.name, image.unwrap_or_default())
    }

    /// Its pod, `NAMESPACE/POD`.
    pub fn shown_pod(self) -> Option<String> {
        self.pod.map(|(namespace, pod)| format!("{namespace}/{pod}"))
    }
}

/// Whether a unit's first word is a container's: of an engine, systemd-nspawn's or LXC's.
fn is_container(name: &str) -> bool {
    let of_engine = name.rsplit_once('-').is_some_and(|(_, id)| is_id(id));
    let of_machine = name.starts_with("machine-") && name.ends_with(".scope");
    let other = ["systemd-nspawn@", "lxc.payload.", "lxc/"];
    !name.starts_with('/')
        && (of_engine || of_machine || other.iter().any(|begin| name.starts_with(begin)))
}

fn is_id(text: &str) -> bool {
    text.len() == 12 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
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

    /// The container, where the unit is one.
    pub fn container(&self) -> Option<Container<'_>> {
        Container::of(self.unit.as_deref()?)
    }

    /// Whether the unit has this name, of a service with or without `.service`, as systemctl takes
    /// it. A container is also meant by its own name, and by its image's with or without tag.
    pub fn is_of_unit(&self, name: &str) -> bool {
        let unit = self.unit.as_deref();
        unit == Some(name)
            || unit.and_then(|unit| unit.strip_suffix(".service")) == Some(name)
            || self.is_of_container(name)
    }

    /// Whether the unit is a container of this name.
    pub fn is_of_container(&self, name: &str) -> bool {
        self.container().is_some_and(|container| {
            self.unit.as_deref() == Some(name)
                || container.shown() == name
                || container.is_called(name)
        })
    }

    /// Whether the unit is a container of the pod of this name, with or without its namespace.
    pub fn is_of_pod(&self, name: &str) -> bool {
        let pod = self.container().and_then(|container| container.pod);
        pod.is_some_and(|(namespace, pod)| pod == name || format!("{namespace}/{pod}") == name)
    }

    /// The namespace of the container's pod.
    pub fn namespace(&self) -> Option<&str> {
        self.container()?.pod.map(|(namespace, _)| namespace)
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
            ("0123456789ab", true),
            ("0123456789abcdef", true),
            ("0123456789abx", false),
            ("hub:5000/shop/web:3@sha256:00", true),
            ("hub:5000/shop/web", true),
            ("hub", false),
            ("web", false),
            ("", false),
        ] {
            assert_eq!(web.is_of_unit(name), is, "{name}");
        }
        let cart = scope("", "cri-containerd-0123456789ab pod:shop/cart-0 hub/cart:9", 0);
        assert!(cart.is_of_container("hub/cart") && cart.is_of_unit("cri-containerd-0123456789ab"));
        assert!(cart.is_of_container("cri-containerd-0123456789ab hub/cart:9"));
        assert!(cart.is_of_pod("cart-0") && cart.is_of_pod("shop/cart-0") && !cart.is_of_pod("x"));
        assert_eq!(cart.namespace(), Some("shop"));
        assert_eq!(web.namespace(), None);
        assert!(scope("", "docker-0123456789ab", 0).is_of_container("docker-0123456789ab"));
        assert!(!scope("", "cron.service", 0).is_of_container("cron.service"));
        let cron = scope("", "cron.service", 0);
        assert!(cron.is_of_unit("cron") && cron.is_of_unit("cron.service"));
        assert!(!cron.is_of_unit("cro") && !scope("", "cron.timer", 0).is_of_unit("cron"));
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

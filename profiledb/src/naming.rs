//! Names: rules for hosts, labels and events, and the names of files.

use std::path::{Path, PathBuf};

use image::ImageId;
use model::{Counts, Measure};

use crate::epoch::EpochId;
use crate::error::{DbError, NameFault, NameKind};
use crate::scope::Scope;

/// Longest host name in bytes: the longest domain name (RFC 1035, section 3.1, as text).
pub(crate) const MAX_HOST_BYTES: usize = 253;
/// Longest label in bytes.
pub(crate) const MAX_LABEL_BYTES: usize = 128;
/// Longest name of a unit in bytes.
pub(crate) const MAX_UNIT_BYTES: usize = 128;
/// Longest event name in bytes, where a byte outside `[A-Za-z0-9_-]` counts as three: as where the
/// name is escaped in the name of a file, with room for more below NAME_MAX, 255 (limits.h).
pub(crate) const MAX_ESCAPED_EVENT_BYTES: usize = 160;

/// Suffix of files that are being written.
pub(crate) const TEMPORARY_SUFFIX: &str = ".tmp";
/// Suffix of epochs that are being removed.
const GONE_SUFFIX: &str = ".gone";
/// Prefix of the names of the daemon's own files.
pub(crate) const CATALOGUE: &str = "catalogue";
/// Suffix of files of the code store.
const CODE_SUFFIX: &str = ".code";
/// Suffix of files of the code store without some code of their images.
const EXCERPT_SUFFIX: &str = ".excerpt";

/// Identity of a profile of an epoch: the counts of a measure in an image, of the processes of a
/// scope. All counts of a profile have one weight.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProfileKey {
    /// The image; samples of unknown code are under ids of [`ImageId::unresolved`].
    pub image: ImageId,
    /// The measure.
    pub measure: Measure,
    /// The scope; empty where the user did not ask to keep processes apart.
    pub scope: Scope,
}

impl ProfileKey {
    /// The profile of a measure in an image, of all processes that are not kept apart.
    pub fn of(image: ImageId, measure: &Measure) -> Self {
        Self { image, measure: measure.clone(), scope: Scope::default() }
    }

    /// Samples of an event at a period, in the event's unit.
    pub fn samples(image: ImageId, event: &str, period: u64, scope: Scope) -> Self {
        Self { image, measure: Measure::samples(event, period), scope }
    }

    /// Refuses counts of another shape than the measure's, a name that may not be stored, and a
    /// measure that would be taken for an event, or for an event that the epoch does not have.
    pub(crate) fn check(
        &self,
        counts: &Counts,
        is_event: impl Fn(&str) -> bool,
    ) -> Result<(), DbError> {
        check_event(self.name())?;
        let is_sampled = self.measure.period().is_some();
        if counts.shape() != self.measure.shape || is_sampled != is_event(self.name()) {
            return Err(DbError::UnknownEvent { event: self.name().to_owned() });
        }
        Ok(())
    }

    /// Name of the event, or of the measure where its counts are not samples.
    pub fn name(&self) -> &str {
        &self.measure.name
    }

    /// The sampling period, in the event's unit; 0 where a count is one observation.
    pub fn period(&self) -> u64 {
        self.measure.period().unwrap_or(0)
    }
}

/// Aliases of events, perf's own and DCPI's (dcpid(1)), each with the name in the database.
const EVENT_ALIASES: [(&str, &str); 8] = [
    ("cpu-cycles", "cycles"),
    ("branch-instructions", "branches"),
    ("issues", "instructions"),
    ("imiss", "L1-icache-load-misses"),
    ("dmiss", "L1-dcache-load-misses"),
    ("branchmp", "branch-misses"),
    ("itbmiss", "iTLB-load-misses"),
    ("dtbmiss", "dTLB-load-misses"),
];

/// The name in the database for an alias of an event; `None` when the text is no alias.
pub fn event_name(alias: &str) -> Option<&'static str> {
    EVENT_ALIASES.iter().find(|(other, _)| *other == alias).map(|(_, name)| *name)
}

/// Splits a list of events at its commas, but not at those between the slashes of
/// `PMU/term=value,.../`.
pub fn split_events(list: &str) -> impl Iterator<Item = &str> {
    let mut between_slashes = false;
    list.split(move |letter| {
        between_slashes ^= letter == '/';
        letter == ',' && !between_slashes
    })
}

/// Whether a database can hold samples of an event with that name: 1 to 160 bytes, each outside
/// `[A-Za-z0-9_-]` counted as three, and no control character.
pub fn is_event_name(name: &str) -> bool {
    check_event(name).is_ok()
}

/// The format file of the database at `root`.
pub(crate) fn format_path(root: &Path) -> PathBuf {
    root.join("format")
}

/// The file that the writer of a host locks. Only this path decides how many writers a database may
/// have.
pub(crate) fn lock_path(root: &Path, host: &str) -> PathBuf {
    host_path(root, host).join("lock")
}

/// The directory of all hosts.
pub(crate) fn hosts_path(root: &Path) -> PathBuf {
    root.join("hosts")
}

/// The directory of a host; the name must have been checked.
pub(crate) fn host_path(root: &Path, host: &str) -> PathBuf {
    hosts_path(root).join(host)
}

/// The directory of an epoch.
pub(crate) fn epoch_path(root: &Path, host: &str, epoch: &EpochId) -> PathBuf {
    host_path(root, host).join(epoch.as_str())
}

/// The directory of a host's code store, in which no epoch can have its name; of the root, the
/// directory of the code that all hosts have in common.
pub(crate) fn code_path(host_or_root: &Path) -> PathBuf {
    host_or_root.join("code")
}

/// The file of an image's code.
pub(crate) fn code_name(image: &ImageId) -> String {
    format!("{image}{CODE_SUFFIX}")
}

/// The image of a file name; None when [`code_name`] does not make the name.
pub(crate) fn parse_code_name(name: &str) -> Option<ImageId> {
    name.strip_suffix(CODE_SUFFIX)?.parse().ok()
}

/// The file of an excerpt of an image's code.
pub(crate) fn excerpt_name(image: &ImageId) -> String {
    format!("{image}{EXCERPT_SUFFIX}")
}

/// The image of a file name; None when [`excerpt_name`] does not make the name.
pub(crate) fn parse_excerpt_name(name: &str) -> Option<ImageId> {
    name.strip_suffix(EXCERPT_SUFFIX)?.parse().ok()
}

/// The name under which a file is written before it is published.
pub(crate) fn temporary_name(name: &str) -> String {
    format!("{name}{TEMPORARY_SUFFIX}")
}

/// The name of an epoch that is being removed, which no epoch can have.
pub(crate) fn gone_name(epoch: &EpochId) -> String {
    format!("{epoch}{GONE_SUFFIX}")
}

/// True for the names that [`gone_name`] makes.
pub(crate) fn is_gone_name(name: &str) -> bool {
    name.strip_suffix(GONE_SUFFIX).is_some_and(|name| name.parse::<EpochId>().is_ok())
}

/// Refuses names that a host may not have. A host is one directory name.
pub(crate) fn check_host(host: &str) -> Result<(), DbError> {
    check(NameKind::Host, host, MAX_HOST_BYTES)?;
    if host.starts_with('.') {
        return Err(invalid(NameKind::Host, host, NameFault::LeadingDot));
    }
    if host.contains('/') {
        return Err(invalid(NameKind::Host, host, NameFault::Slash));
    }
    Ok(())
}

/// Refuses texts that no label may be. Labels may become directory names one day.
pub(crate) fn check_label(label: &str) -> Result<(), DbError> {
    check(NameKind::Label, label, MAX_LABEL_BYTES)?;
    if label.contains('/') {
        return Err(invalid(NameKind::Label, label, NameFault::Slash));
    }
    Ok(())
}

/// Refuses names that a unit may not have. Slashes are allowed: they are part of a control group's
/// path.
pub(crate) fn check_unit(unit: &str) -> Result<(), DbError> {
    check(NameKind::Unit, unit, MAX_UNIT_BYTES)
}

/// No process has number 0.
pub(crate) fn invalid_pid() -> DbError {
    invalid(NameKind::Process, "0", NameFault::Zero)
}

/// Refuses names that an event may not have. Slashes are allowed: they are part of perf's names.
pub(crate) fn check_event(event: &str) -> Result<(), DbError> {
    check(NameKind::Event, event, MAX_ESCAPED_EVENT_BYTES)?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    let escaped: usize = event.bytes().map(|byte| if is_plain(byte) { 1 } else { 3 }).sum();
    if escaped > MAX_ESCAPED_EVENT_BYTES {
        let limit_bytes = MAX_ESCAPED_EVENT_BYTES;
        let fault = NameFault::TooLong { limit_bytes };
        return Err(invalid(NameKind::Event, event, fault));
    }
    Ok(())
}

fn check(what: NameKind, name: &str, limit_bytes: usize) -> Result<(), DbError> {
    if name.is_empty() {
        return Err(invalid(what, name, NameFault::Empty));
    }
    if name.len() > limit_bytes {
        return Err(invalid(what, name, NameFault::TooLong { limit_bytes }));
    }
    if name.chars().any(char::is_control) {
        return Err(invalid(what, name, NameFault::Control));
    }
    Ok(())
}

/// The error for a refused name, which is shortened.
pub(crate) fn invalid(what: NameKind, name: &str, why: NameFault) -> DbError {
    let name = name.chars().take(64).collect();
    DbError::InvalidName { what, name, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_between_slashes_part_no_events() {
        for typed in [
            "cycles|imiss",
            "cpu/event=0x3c,umask=0x0/",
            "cycles|cpu/event=1,umask=2,inv/|r1|x/y/",
            "a/b,c",
        ] {
            let list = typed.replace('|', ",");
            assert!(split_events(&list).eq(typed.split('|')), "{list}");
        }
    }

    #[test]
    fn names_that_may_not_be_stored() {
        let long = "x".repeat(300);
        for (host, why) in [
            ("", "is empty"),
            (".", "begins with a dot"),
            ("..", "begins with a dot"),
            ("a/b", "contains a slash"),
            ("a\nb", "contains a control character"),
            ("a\0", "contains a control character"),
            (&long, "is longer than 253 bytes"),
        ] {
            let error = check_host(host).unwrap_err().to_string();
            assert!(error.ends_with(why), "{error}");
            assert!(error.starts_with("host name "), "{error}");
        }
        assert!(check_host("node-7.example.org").is_ok());
        for label in ["", "a/b", "a\tb", &long] {
            assert!(check_label(label).is_err(), "{label:?}");
        }
        assert!(check_label("before the change, -O3").is_ok());
        for unit in ["", "a\nb", &long] {
            assert!(check_unit(unit).is_err(), "{unit:?}");
        }
        assert!(check_unit("/machine.slice/a b").is_ok());
        for event in ["", "a\nb", &long, &"/".repeat(60)] {
            assert!(check_event(event).is_err(), "{event:?}");
        }
        assert!(check_event(&"/".repeat(53)).is_ok());
    }
}

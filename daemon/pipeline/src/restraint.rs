//! The level of activity: what the governor allows, or nothing while the pause file exists. Each
//! change is logged once and kept for the epoch.

use crate::governor::SamplingLevel;
use kernel::clock;
use model::Restraints;
use std::collections::VecDeque;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use wire::RestraintStatus;

/// Most changes that an epoch keeps; the newest stay. More make the facts of an epoch large on a
/// host that changes level all day.
const CHANGES_MAX: usize = 32;
const PRESSURE: &str = "it took too much of the budget or of the memory limit";

/// The level of activity in force, with its causes.
#[derive(Debug, Default)]
pub struct Restraint {
    /// True while the pause file exists.
    told_to_pause: bool,
    /// The level that the governor allows.
    allowed: SamplingLevel,
    why: Option<String>,
    changes: VecDeque<model::Restraint>,
    /// Number of changes since the start.
    changed: u64,
}

/// Whether the pause file exists. The file must belong to root or to the daemon's own user, because
/// others may be able to write to its directory. A dangling link counts too.
pub fn is_pause_file_there(file: Option<&Path>) -> bool {
    let own = |user| user == 0 || user == nix::unistd::geteuid().as_raw();
    file.is_some_and(|file| file.symlink_metadata().is_ok_and(|found| own(found.uid())))
}

impl Restraint {
    /// The level of activity in force.
    pub fn level(&self) -> SamplingLevel {
        if self.told_to_pause { SamplingLevel::Nothing } else { self.allowed }
    }

    /// Whether the pause file exists. While it does, the cost says nothing about the budget.
    pub fn is_told_to_pause(&self) -> bool {
        self.told_to_pause
    }

    /// Takes over whether the pause file `exists`. True when the level changes.
    pub fn told_to_pause(&mut self, exists: bool, file: Option<&Path>) -> bool {
        if exists == self.told_to_pause {
            return false;
        }
        let before = self.level();
        self.told_to_pause = exists;
        let shown = file.map(|file| file.display().to_string()).unwrap_or_default();
        self.note(
            before,
            if exists { format!("{shown} exists") } else { format!("{shown} is gone") },
        )
    }

    /// Takes over the level that the governor allows. True when the level in force changes.
    pub fn allow(&mut self, allowed: SamplingLevel) -> bool {
        let before = self.level();
        let less = allowed > self.allowed;
        self.allowed = allowed;
        self.note(
            before,
            if less { PRESSURE.to_owned() } else { "there is enough again".to_owned() },
        )
    }

    fn note(&mut self, before: SamplingLevel, why: String) -> bool {
        let level = self.level();
        if level == before {
            return false;
        }
        match level {
            SamplingLevel::Nothing => tracing::warn!("nothing is sampled from now on: {why}"),
            SamplingLevel::CountsOnly => {
                tracing::warn!("counts only from now on, no snapshots: {why}")
            }
            SamplingLevel::All => tracing::info!("all is sampled again: {why}"),
        }
        let (unix_s, level_now) = (clock::unix_s(), level.as_str().to_owned());
        self.changes.push_back(model::Restraint { unix_s, doing: level_now, why: why.clone() });
        if self.changes.len() > CHANGES_MAX {
            self.changes.pop_front();
        }
        self.changed += 1;
        self.why =
            (level != SamplingLevel::All).then_some(if self.told_to_pause || level < before {
                why
            } else {
                PRESSURE.to_owned()
            });
        true
    }

    /// The fact for the epoch; None before the first change.
    pub fn fact(&self) -> Option<Restraints> {
        (!self.changes.is_empty()).then(|| Restraints(self.changes.iter().cloned().collect()))
    }

    /// The level for the status.
    pub fn status(&self) -> RestraintStatus {
        RestraintStatus {
            doing: self.level().as_str().to_owned(),
            why: self.why.clone(),
            changes: self.changed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks at the file as the loop does.
    fn look(restraint: &mut Restraint, file: Option<&Path>) -> bool {
        restraint.told_to_pause(is_pause_file_there(file), file)
    }

    #[test]
    fn a_file_stops_sampling_whatever_is_allowed_and_changes_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pause");
        let mut restraint = Restraint::default();
        assert!(
            !look(&mut restraint, Some(&file))
                && !look(&mut restraint, None)
                && restraint.fact().is_none()
        );
        assert_eq!(restraint.status().doing, "all");
        std::fs::write(&file, "").unwrap();
        assert!(
            look(&mut restraint, Some(&file)) && !look(&mut restraint, Some(&file)),
            "said once"
        );
        assert_eq!(restraint.level(), SamplingLevel::Nothing);
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
            assert!(
                look(&mut restraint, Some(&file)) && restraint.level() == SamplingLevel::All,
                "another user's says nothing"
            );
            std::os::unix::fs::chown(&file, Some(0), None).unwrap();
            assert!(look(&mut restraint, Some(&file)));
        }
        assert!(!restraint.allow(SamplingLevel::CountsOnly), "nothing is less");
        assert!(restraint.status().why.unwrap().ends_with("pause exists"));
        std::fs::remove_file(&file).unwrap();
        assert!(look(&mut restraint, Some(&file)));
        assert_eq!(restraint.level(), SamplingLevel::CountsOnly);
        assert!(restraint.allow(SamplingLevel::Nothing));
        assert!(restraint.status().why.unwrap().contains("memory limit"));
        assert!(restraint.allow(SamplingLevel::All) && restraint.status().why.is_none());
        for _ in 0..CHANGES_MAX {
            assert!(restraint.allow(SamplingLevel::Nothing) && restraint.allow(SamplingLevel::All));
        }
        let fact = restraint.fact().unwrap();
        assert_eq!(fact.0.len(), CHANGES_MAX);
        assert!(
            serde_json::to_string(&fact).unwrap().len() < 16 << 10,
            "there is room for other facts"
        );
    }
}

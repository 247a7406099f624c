//! The users who can write mapped files. The sampler reports them before the kernel writes the
//! record of a mapping. Any user can write a file with the build id of another file, so a build id
//! can be trusted only as far as the users who can write the file.

use std::collections::HashMap;

/// Messages whose records are expected at once: no more than processes map at one moment. A message
/// beyond it is not kept, and its file is in doubt.
const EXPECTED_MAX: usize = 4096;

/// The owner of a file if the user of its process is unknown: the number that no user has
/// (chown(2)).
const UNKNOWN: u32 = u32::MAX;

/// The sampler's messages about mappings whose records are still to come.
#[derive(Debug, Default)]
pub struct Owners {
    /// By process: where the mapping of its next record begins, and the user who can write the
    /// file; 0: root alone.
    expected: HashMap<u32, (u64, u32), foldhash::fast::RandomState>,
    /// The sampler reports every file that is mapped to be executed.
    are_told: bool,
}

impl Owners {
    /// The sampler reports every mapping from now on.
    pub fn are_told(&mut self) {
        self.are_told = true;
    }

    /// The next record of process `pid` is of a mapping at `start`, of a file that `owner` can
    /// write.
    pub fn hear_of(&mut self, pid: u32, start: u64, owner: u32) {
        if self.expected.len() < EXPECTED_MAX || self.expected.contains_key(&pid) {
            self.expected.insert(pid, (start, owner));
        }
    }

    /// Records were lost, so messages may be of records that never come.
    pub fn forget(&mut self) {
        self.expected.clear();
    }

    /// The user who can write the file that a record is of; None: root alone. Without a message,
    /// the process's user is assumed to be able to; `user` returns that user.
    pub fn owner(
        &mut self,
        pid: u32,
        start: u64,
        user: impl FnOnce() -> Option<u32>,
    ) -> Option<u32> {
        let told = self.expected.remove(&pid).filter(|(at, _)| *at == start);
        let owner = match told {
            Some((_, owner)) => owner,
            None if self.are_told => user().unwrap_or(UNKNOWN),
            None => 0,
        };
        Some(owner).filter(|owner| *owner != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told() -> Owners {
        let mut owners = Owners::default();
        owners.are_told();
        owners
    }

    #[test]
    fn a_message_is_of_the_next_record_of_its_process() {
        let mut owners = told();
        owners.hear_of(7, 0x1000, 0);
        assert_eq!(owners.owner(8, 0x1000, || Some(1000)), Some(1000), "another process");
        assert_eq!(owners.owner(7, 0x1000, || Some(1000)), None, "root's file");
        assert_eq!(owners.owner(7, 0x1000, || Some(1000)), Some(1000), "told once");
        owners.hear_of(7, 0x1000, 1001);
        assert_eq!(owners.owner(7, 0x1000, || Some(1000)), Some(1001), "another user's file");
    }

    /// A user's file that becomes executable after it was mapped, or whose message the user has
    /// kept out of the ring, has no message; an older message must not do for it.
    #[test]
    fn without_a_message_only_roots_processes_are_believed() {
        let mut owners = told();
        assert_eq!(owners.owner(7, 0x1000, || Some(1000)), Some(1000));
        assert_eq!(owners.owner(7, 0x1000, || Some(0)), None);
        assert_eq!(owners.owner(7, 0x1000, || None), Some(UNKNOWN), "the process is gone");
        owners.hear_of(7, 0x1000, 0);
        assert_eq!(owners.owner(7, 0x2000, || Some(1000)), Some(1000), "another mapping");
        assert_eq!(owners.owner(7, 0x1000, || Some(1000)), Some(1000), "what was told is over");
        for pid in 0..=EXPECTED_MAX as u32 {
            owners.hear_of(pid, 0x1000, 0);
        }
        assert_eq!(owners.owner(EXPECTED_MAX as u32, 0x1000, || Some(1)), Some(1), "not kept");
    }

    #[test]
    fn where_the_sampler_cannot_tell_build_ids_are_believed() {
        assert_eq!(Owners::default().owner(7, 0x1000, || Some(1000)), None);
    }
}

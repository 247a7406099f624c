//! The users of processes, to whom limits are charged.
//!
//! A process that ended before the daemon looks has no owner in `/proc` any more, so the user is
//! noted while records are read, a tenth of a second after a process forks or runs a program, and a
//! child has its parent's. Thus an attacker is charged even if each of its processes lives for only
//! a millisecond.

use crate::system::System;
use kernel::RecordKind;
use kernel::procfs;
use std::collections::HashMap;

/// Processes whose users are remembered, 8 bytes each: as many as processes are
/// (`mappings::PROCESSES_MAX`). Others are asked for when they bring an image.
const PROCESSES_KNOWN_MAX: usize = 1 << 17;

/// The user to whom a limit is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Payer {
    /// The kernel, and what stands for unknown code: there are few.
    Nobody,
    /// A user; of a row of subordinate users the first.
    User(u32),
    /// A process that was gone before its user was known. All such processes share one limit.
    Unknown,
}

impl Payer {
    /// The user of that number.
    pub fn of_user(user: u32) -> Self {
        Self::User(procfs::first_of_row(user))
    }
}

/// The user of a process.
#[derive(Clone, Copy, Debug)]
enum Known {
    /// That user's.
    User(u32),
    /// The user of its parent: a process of root may change its user without running a program.
    AsParent(u32),
}

/// Parents that are asked about in turn, when a process and they are gone.
const ANCESTORS_MAX: usize = 8;

/// Users of the processes that forked or ran a program since the start. The sampler tells the user
/// of each program that is run: to ask `/proc` about each would take milliseconds a second in a
/// storm of short processes.
#[derive(Debug, Default)]
pub struct Users {
    known: HashMap<u32, Known, foldhash::fast::RandomState>,
    /// Processes that were an ordinary user's and became root's, and their children: that user.
    /// Anybody can run `su`, which is root's while it waits for a password.
    risen: HashMap<u32, u32, foldhash::fast::RandomState>,
    /// Processes that ended since the last drain, and before it.
    ended: [Vec<u32>; 2],
    /// The sampler has reported the user of an exec, so `/proc` need not be asked at the next.
    are_told: bool,
}

impl Users {
    /// Notes a record that will be applied with the next drain; `system` answers questions about
    /// its process.
    pub fn foresee(&mut self, record: &RecordKind, system: &System) {
        match *record {
            RecordKind::Execed { pid, user: Some(user), .. } => {
                self.are_told = true;
                self.note(pid, user);
            }
            RecordKind::Exec { pid } if !self.are_told => self.learn(pid, system),
            RecordKind::Fork { pid, parent } => self.inherit(pid, parent, system),
            RecordKind::Exit { pid } => {
                let [ended, _] = &mut self.ended;
                ended.push(pid);
            }
            _ => {}
        }
    }

    /// A process starts with its parent's user. Only a process of root can change its user without
    /// running a program.
    fn inherit(&mut self, pid: u32, parent: u32, system: &System) {
        if !self.known.contains_key(&parent) {
            self.learn(parent, system);
        }
        self.known.remove(&pid);
        self.risen.remove(&pid);
        match self.known.get(&parent).copied() {
            Some(user @ Known::User(1..)) => self.insert(pid, user),
            _ => self.insert(pid, Known::AsParent(parent)),
        }
        if let Some(user) = self.risen.get(&parent).copied() {
            self.rise(pid, user);
        }
    }

    /// Notes the user of a process that is already running.
    pub fn learn(&mut self, pid: u32, system: &System) {
        if let Some(user) = system.user(pid) {
            self.note(pid, user);
        }
    }

    /// The user who is charged for images that this process is the first to bring.
    pub fn payer(&mut self, pid: u32, system: &System) -> Payer {
        self.of(pid, system).map_or(Payer::Unknown, Payer::of_user)
    }

    /// The current user of a process, because it may have changed. For a process that is gone, its
    /// last user; for a process that has become root's, the user before.
    pub fn of(&mut self, pid: u32, system: &System) -> Option<u32> {
        let mut asked = pid;
        for _ in 0..ANCESTORS_MAX {
            self.learn(asked, system);
            match self.known.get(&asked).copied()? {
                Known::User(0) => {
                    let risen = self.risen.get(&asked).or_else(|| self.risen.get(&pid));
                    return Some(risen.copied().unwrap_or(0));
                }
                Known::User(user) => return Some(user),
                Known::AsParent(parent) => asked = parent,
            }
        }
        None
    }

    fn note(&mut self, pid: u32, user: u32) {
        if let (0, Some(Known::User(before @ 1..))) = (user, self.known.get(&pid).copied()) {
            self.rise(pid, before);
        }
        self.insert(pid, Known::User(user));
    }

    fn insert(&mut self, pid: u32, known: Known) {
        if self.known.len() < PROCESSES_KNOWN_MAX || self.known.contains_key(&pid) {
            self.known.insert(pid, known);
        }
    }

    fn rise(&mut self, pid: u32, user: u32) {
        if self.risen.len() < PROCESSES_KNOWN_MAX || self.risen.contains_key(&pid) {
            self.risen.insert(pid, user);
        }
    }

    /// A drain is done: forgets processes that ended before the drain before it.
    pub fn forget_ended(&mut self) {
        let [ended, before] = &mut self.ended;
        for pid in before.drain(..) {
            self.known.remove(&pid);
            self.risen.remove(&pid);
        }
        std::mem::swap(ended, before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::Answers;

    /// No process has these numbers.
    const PIDS: [u32; 4] = [u32::MAX - 4, u32::MAX - 3, u32::MAX - 2, u32::MAX - 1];

    #[test]
    fn a_chain_of_processes_that_are_gone_has_its_first_ones_user() {
        let mut users = Users::default();
        let nobody = System::replay(Answers::default());
        let [shell, first, second, other] = PIDS;
        users.note(shell, 1000);
        for (parent, pid) in [(shell, first), (first, second)] {
            users.foresee(&RecordKind::Fork { pid, parent }, &nobody);
            users.foresee(&RecordKind::Exec { pid }, &nobody);
            users.foresee(&RecordKind::Exit { pid: parent }, &nobody);
        }
        assert_eq!(users.payer(second, &nobody), Payer::User(1000));
        assert_eq!(users.payer(other, &nobody), Payer::Unknown);
        users.forget_ended();
        assert_eq!(users.payer(first, &nobody), Payer::User(1000), "its samples come with a drain");
        users.forget_ended();
        assert_eq!(users.payer(first, &nobody), Payer::Unknown);
        assert_eq!(users.payer(second, &nobody), Payer::User(1000));
    }

    /// A daemon of root's that becomes another user's for its clients, without running a program.
    #[test]
    fn a_process_of_a_root_process_is_whose_that_is_when_it_matters() {
        let mut users = Users::default();
        let nobody = System::replay(Answers::default());
        let [server, worker, helper, other] = PIDS;
        let execed =
            |pid, user| RecordKind::Execed { pid, generation: 0, program: None, user: Some(user) };
        users.foresee(&execed(server, 0), &nobody);
        for (parent, pid) in [(server, worker), (worker, helper)] {
            users.foresee(&RecordKind::Fork { pid, parent }, &nobody);
        }
        assert_eq!(users.payer(helper, &nobody), Payer::User(0));
        users.foresee(&execed(worker, 33), &nobody);
        assert_eq!(users.payer(helper, &nobody), Payer::User(33), "as its parent");
        users.foresee(&RecordKind::Fork { pid: other, parent: worker }, &nobody);
        users.foresee(&execed(worker, 44), &nobody);
        assert_eq!(users.payer(other, &nobody), Payer::User(33), "as its parent was");
    }

    /// A user's process maps a file, and is `su` when it is asked for, which waits for a password.
    #[test]
    fn who_becomes_root_is_still_the_user_from_before() {
        let mut users = Users::default();
        let nobody = System::replay(Answers::default());
        let [shell, su, child, cron] = PIDS;
        users.note(shell, 1000);
        users.foresee(&RecordKind::Fork { pid: su, parent: shell }, &nobody);
        users.note(su, 0);
        users.foresee(&RecordKind::Fork { pid: child, parent: su }, &nobody);
        users.note(cron, 0);
        let of = |users: &mut Users| PIDS.map(|pid| users.of(pid, &nobody));
        assert_eq!(of(&mut users), [Some(1000), Some(1000), Some(1000), Some(0)]);
        assert_eq!(users.payer(su, &nobody), Payer::User(1000));
        // Another process of that number.
        users.foresee(&RecordKind::Fork { pid: su, parent: cron }, &nobody);
        assert_eq!(users.of(su, &nobody), Some(0));
        // A process that is no longer root's has its current user.
        users.note(child, 1001);
        assert_eq!(users.of(child, &nobody), Some(1001));
        for pid in [child, su] {
            users.foresee(&RecordKind::Exit { pid }, &nobody);
        }
        users.forget_ended();
        users.forget_ended();
        assert!(users.risen.is_empty());
    }

    #[test]
    fn all_users_of_a_row_of_subordinate_users_are_one() {
        for (user, payer) in
            [(0, 0), (65_534, 65_534), (100_000, 100_000), (165_535, 100_000), (165_536, 165_536)]
        {
            assert_eq!(Payer::of_user(user), Payer::User(payer), "{user}");
        }
    }

    #[test]
    fn a_living_process_is_asked() {
        let mut users = Users::default();
        let (me, own) = (std::process::id(), nix::unistd::getuid().as_raw());
        // As what root began to run and gave to another user.
        users.note(me, 0);
        assert_eq!(users.payer(me, &System::default()), Payer::of_user(own));
    }
}

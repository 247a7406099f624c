//! Records which processes and users kept inspectors waiting: dcpid asks nothing about such a
//! process for a while, nor about a user whose processes have used up their waiting time.

use kernel::procfs;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A process that did not let an inspector answer is not asked about for this long; twice as long
/// each time again.
const SILENCE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(3600));
/// Longest time for which dcpid waits in vain for the processes of one user within a term. With
/// more, a user with many processes could delay the drain; with less, one slow process would leave
/// the user's other processes without names.
const WAIT_MAX: Duration = Duration::from_millis(600);
/// An answer that takes so long counts as waiting, too, except about root's processes: a user with
/// 1,000 files that take 0.2 s each would otherwise hold the loop up for minutes. Most answers take
/// 0.1 ms; with a shorter time, a busy machine that lets inspectors wait for a CPU would cost its
/// users names.
const SLOW: Duration = Duration::from_millis(50);
const TERM: Duration = Duration::from_secs(10);
/// Processes remembered.
const PROCESSES_MAX: usize = 4096;
/// Users remembered.
const USERS_MAX: usize = 1024;

/// A user, or a range of users of a user namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct User(u32);

impl User {
    /// For the user of that number.
    pub fn of(uid: u32) -> Self {
        Self(procfs::first_of_row(uid))
    }

    /// Of a process now. All processes that are gone are one user's: one who waits until dcpid asks
    /// about his process and ends it then would otherwise never have spent his time.
    pub fn of_process(pid: u32) -> Self {
        procfs::user_of(pid).map_or(GONE, Self::of)
    }

    /// The number, or the first one of the range.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// The user of processes that are gone: the number that no user has (chown(2)).
const GONE: User = User(u32::MAX);

#[derive(Debug)]
struct Silent {
    started: Option<u64>,
    until: Instant,
    next: Duration,
}

#[derive(Debug)]
struct Waited {
    began: Instant,
    waited: Duration,
    /// Questions without answer, since dcpid started.
    unanswered: u64,
    /// The process that was the last one, and its program's name.
    last: (u32, String),
}

/// A user whose processes kept inspectors waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blamed {
    /// The user.
    pub user: User,
    /// Questions without answer.
    pub unanswered: u64,
    /// The last of these processes.
    pub pid: u32,
    /// Name of its program, escaped.
    pub program: String,
}

/// Questions and answers since dcpid started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Questions asked.
    pub asked: u64,
    /// Questions that had no answer in time.
    pub unanswered: u64,
    /// Questions that were not asked because of who was asked about.
    pub withheld: u64,
    /// Inspectors begun.
    pub inspectors: u64,
    /// The most memory that any inspector had resident, in bytes.
    pub peak_bytes: u64,
}

/// Processes and users that kept inspectors waiting.
#[derive(Debug, Default)]
pub struct Blame {
    processes: HashMap<u32, Silent>,
    users: HashMap<User, Waited>,
    /// A user has used up the time of this term.
    spent_until: Option<Instant>,
    /// The question.
    pub counts: Counts,
}

impl Blame {
    /// Whether nothing is to be asked about a process now.
    pub fn is_silent(&mut self, pid: u32, now: Instant) -> bool {
        if let Some(silent) = self.processes.get(&pid) {
            if silent.until > now && silent.started == procfs::start_time(pid) {
                return true;
            }
            if silent.started != procfs::start_time(pid) {
                self.processes.remove(&pid);
            }
        }
        if self.spent_until.is_none_or(|until| until <= now) {
            return false;
        }
        self.users.get(&User::of_process(pid)).is_some_and(|user| user.has_spent(now))
    }

    /// A process of that user kept an inspector waiting for this long, in vain.
    pub fn waited(&mut self, pid: u32, user: User, waited: Duration, now: Instant) {
        let started = procfs::start_time(pid);
        let silence = self.processes.get(&pid).filter(|silent| silent.started == started);
        let silence = silence.map_or(SILENCE.0, |silent| silent.next);
        if self.processes.len() >= PROCESSES_MAX {
            self.processes.retain(|_, silent| silent.until > now);
        }
        if self.processes.len() < PROCESSES_MAX {
            let next = (silence * 2).min(SILENCE.1);
            self.processes.insert(pid, Silent { started, until: now + silence, next });
        }
        let known = self.spend(user, pid, waited, now);
        known.unanswered += 1;
        known.last = (pid, procfs::name_of(pid).unwrap_or_default());
    }

    /// The loop waited for this long until there was an answer about a process of that user.
    pub fn answered(&mut self, pid: u32, user: User, waited: Duration, now: Instant) {
        if waited >= SLOW && user.number() != 0 {
            self.spend(user, pid, waited, now);
        }
    }

    fn spend(&mut self, user: User, pid: u32, waited: Duration, now: Instant) -> &mut Waited {
        if self.users.len() >= USERS_MAX && !self.users.contains_key(&user) {
            self.users.retain(|_, user| user.began + TERM > now);
        }
        let begun = Waited {
            began: now,
            waited: Duration::ZERO,
            unanswered: 0,
            last: (pid, String::new()),
        };
        let known = self.users.entry(user).or_insert(begun);
        if known.began + TERM <= now {
            (known.began, known.waited) = (now, Duration::ZERO);
        }
        known.waited += waited;
        if known.has_spent(now) {
            self.spent_until = self.spent_until.max(Some(known.began + TERM));
        }
        known
    }

    /// Users whose processes kept inspectors waiting, most questions without answer first.
    pub fn users(&self) -> Vec<Blamed> {
        let blamed = |(user, of): (&User, &Waited)| {
            let (pid, program) = of.last.clone();
            Blamed { user: *user, unanswered: of.unanswered, pid, program }
        };
        let unanswered = self.users.iter().filter(|(_, of)| of.unanswered > 0);
        let mut users: Vec<Blamed> = unanswered.map(blamed).collect();
        users.sort_by_key(|blamed| (std::cmp::Reverse(blamed.unanswered), blamed.user));
        users
    }
}

impl Waited {
    fn has_spent(&self, now: Instant) -> bool {
        self.waited >= WAIT_MAX && self.began + TERM > now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_kept_us_waiting_is_left_alone_longer_each_time() {
        let (mut blame, now, pid) = (Blame::default(), Instant::now(), std::process::id());
        assert!(!blame.is_silent(pid, now));
        blame.waited(pid, User::of_process(pid), Duration::from_millis(300), now);
        assert!(blame.is_silent(pid, now + Duration::from_secs(9)));
        let later = now + Duration::from_secs(11);
        assert!(!blame.is_silent(pid, later) && !blame.is_silent(1, now));
        blame.waited(pid, User::of_process(pid), Duration::from_millis(300), later);
        assert!(blame.is_silent(pid, later + Duration::from_secs(19)));
        assert!(!blame.is_silent(pid, later + Duration::from_secs(21)));
    }

    #[test]
    fn the_time_for_all_processes_of_a_user_has_an_end_for_a_term() {
        let (mut blame, now) = (Blame::default(), Instant::now());
        let me = std::process::id();
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        for _ in 0..2 {
            assert!(!blame.is_silent(me, now));
            let user = User::of_process(other.id());
            blame.waited(other.id(), user, Duration::from_millis(300), now);
        }
        assert!(blame.is_silent(me, now + Duration::from_secs(5)), "another one of that user");
        assert!(!blame.is_silent(me, now + Duration::from_secs(10)));
        let uid = nix::unistd::getuid().as_raw();
        let (user, pid) = (User::of(uid), other.id());
        let program = "sleep".to_owned();
        assert_eq!(blame.users(), [Blamed { user, unanswered: 2, pid, program }]);
        other.kill().unwrap();
        other.wait().unwrap();
    }

    /// 100 files of a user that took 0.05 s each held the loop up for 5 s, and a process that ended
    /// while dcpid waited for it cost its user nothing.
    #[test]
    fn slow_answers_and_processes_that_end_meanwhile_cost_their_users_time() {
        let (mut blame, now) = (Blame::default(), Instant::now());
        let (me, gone, ms) = (std::process::id(), u32::MAX, Duration::from_millis);
        let (mine, user) = (User::of_process(me), User::of(12345));
        for _ in 0..100 {
            blame.answered(me, mine, ms(49), now);
            blame.answered(me, User::of(0), ms(100), now);
            blame.answered(gone, user, ms(100), now);
        }
        assert!(!blame.is_silent(me, now), "quick, root's or another user's");
        assert!(blame.users.get(&user).is_some_and(|user| user.has_spent(now)));
        assert!(!blame.is_silent(gone, now) && blame.users().is_empty(), "everybody was answered");
        // The user is as before the question, whatever became of the process.
        blame.waited(gone, user, ms(300), now);
        assert_eq!(blame.users().first().map(|blamed| blamed.user), Some(user));
        for _ in 0..6 {
            blame.answered(gone, GONE, ms(100), now);
        }
        assert!(blame.is_silent(gone - 1, now), "who is gone is one user");
    }

    #[test]
    fn users_of_one_user_namespace_are_one() {
        assert_eq!(User::of(100_000 + 1), User::of(100_000 + 2));
        assert_eq!(User::of(1000).number(), 1000);
        assert_ne!(User::of(1000), User::of(1001));
    }
}

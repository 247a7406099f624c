//! Which processes keep their numbers in call stacks. Many live for a second, such as compilers,
//! and are joined by command: a thread of each would fill the disk, and tables of threads.

use foldhash::fast::RandomState;
use model::{Stacks, Thread};
use profiledb::StacksKey;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Processes of one merge that keep their numbers in call stacks, those with the most stacks;
/// others are joined by command.
const PROCESSES_MAX: usize = 256;
/// Stacks within [`WINDOW_S`] with which a process without label has a number of its own. With
/// fewer, many short processes have one; with more, a process that does little has none.
const PROCESS_STACKS_MIN: u64 = 20;
/// Time in which the stacks of a process are counted, in seconds; in the last window before, too.
const WINDOW_S: u64 = 600;

type Counts = HashMap<u32, u64, RandomState>;

/// Processes by number, with the number of their stacks of late.
#[derive(Debug, Default)]
pub struct Processes {
    /// The time of the window, in seconds since 1970 UTC divided by [`WINDOW_S`].
    window: u64,
    counts: Counts,
    /// Those of the window before.
    before: Counts,
}

impl Processes {
    /// Takes the numbers of the other processes from the stacks of a merge at a time, in seconds
    /// since 1970 UTC.
    pub fn join(&mut self, stacks: &mut BTreeMap<StacksKey, Stacks>, now_unix_s: u64) {
        let window = now_unix_s / WINDOW_S;
        if window != self.window {
            let counts = std::mem::take(&mut self.counts);
            let follows = window == self.window + 1;
            (self.window, self.before) = (window, if follows { counts } else { Counts::default() });
        }
        for (key, stacks) in stacks {
            let mut own = Counts::default();
            for (_, thread, value) in stacks.values() {
                *own.entry(thread.pid).or_default() += value.stacks;
            }
            let is_labelled = key.scope.label.is_some();
            let mut large: Vec<(u64, u32)> = Vec::new();
            for (pid, stacks) in own {
                let counted = self.counts.entry(pid).or_default();
                *counted = counted.saturating_add(stacks);
                let of_late = counted.saturating_add(self.before.get(&pid).copied().unwrap_or(0));
                // Users label few processes, and ask about each of them.
                if is_labelled || of_late >= PROCESS_STACKS_MIN {
                    large.push((stacks, pid));
                }
            }
            large.sort_unstable_by(|a, b| b.cmp(a));
            let large: HashSet<u32> =
                large.into_iter().take(PROCESSES_MAX).map(|(_, pid)| pid).collect();
            let mut joined = Stacks::new();
            joined.merge_threads(stacks, |thread| match large.contains(&thread.pid) {
                true => thread.clone(),
                false => Thread { pid: 0, tid: 0, ..thread.clone() },
            });
            *stacks = joined;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::{ImageId, ImageOffset};
    use model::{Frame, Value};
    use profiledb::Scope;

    /// Stacks of processes, each with a number of stacks, of a label and of none.
    fn stacks(processes: &[(u32, u64)]) -> BTreeMap<StacksKey, Stacks> {
        let frame = Frame::Code(ImageId::from_build_id(&[1]).unwrap(), ImageOffset(16));
        let mut stacks = Stacks::new();
        for (pid, count) in processes {
            let thread = Thread { command: "cc1".into(), pid: *pid, ..Thread::default() };
            let value = Value { stacks: *count, weight: 1024 * count, squares: *count };
            stacks.add_stack([frame], &thread, value);
        }
        let key = |label: Option<&str>| StacksKey {
            event: "cycles".into(),
            scope: Scope { label: label.map(str::to_owned), ..Scope::default() },
        };
        [(key(None), stacks.clone()), (key(Some("run")), stacks)].into()
    }

    fn of(stacks: &BTreeMap<StacksKey, Stacks>) -> Vec<BTreeMap<u32, u64>> {
        let of = |stacks: &Stacks| {
            stacks.values().map(|(_, thread, value)| (thread.pid, value.stacks)).collect()
        };
        stacks.values().map(of).collect()
    }

    #[test]
    fn processes_with_few_stacks_are_joined_by_command() {
        let mut merge = stacks(&[(1, PROCESS_STACKS_MIN), (2, 1), (3, 1)]);
        Processes::default().join(&mut merge, 600);
        let labelled = BTreeMap::from([(1, PROCESS_STACKS_MIN), (2, 1), (3, 1)]);
        assert_eq!(of(&merge), [BTreeMap::from([(0, 2), (1, PROCESS_STACKS_MIN)]), labelled]);
    }

    /// A merge of ten seconds has few stacks of a process that is there all day.
    #[test]
    fn a_process_keeps_its_number_from_its_twentieth_stack_on() {
        let mut processes = Processes::default();
        let mut numbered = |now_unix_s, pid, stacks_of| {
            let mut merge = stacks(&[(pid, stacks_of)]);
            processes.join(&mut merge, now_unix_s);
            of(&merge)[0].contains_key(&pid)
        };
        // Each merge has the stacks twice, with and without label.
        assert_eq!([600, 610, 620].map(|now| numbered(now, 7, 4)), [false, false, true]);
        assert!(numbered(1210, 7, 1), "of the window before, too");
        assert!(!numbered(2410, 7, 1), "not for ever");
    }
}

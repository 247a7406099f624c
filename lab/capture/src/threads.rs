//! Living threads by tid, which the system assigns again after a thread's end, with the calls that
//! are kept of each.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::io::Write;

use trace::{EventKind, NameId, Sampled, Thread, ThreadId, Writer};

/// Most open calls of a thread that are remembered; returns of deeper calls are left out.
const DEPTH_MAX: usize = 1 << 16;

/// Threads that live.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    by_tid: HashMap<u32, Living>,
}

#[derive(Debug)]
pub(crate) struct Living {
    pub(crate) id: ThreadId,
    pub(crate) choice: Choice,
}

impl Threads {
    /// The thread of that number, which is added if it is new; `command` is its command if that is
    /// known. None where the trace has no room for more threads.
    pub(crate) fn get<W: Write>(
        &mut self,
        (pid, tid): (u32, u32),
        command: Option<&str>,
        writer: &mut Writer<W>,
    ) -> Option<&mut Living> {
        Some(match self.by_tid.entry(tid) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let command = command.map_or_else(|| running_command(pid, tid), str::to_owned);
                let id = writer.thread(Thread { pid, tid, command })?;
                new.insert(Living { id, choice: Choice::default() })
            }
        })
    }

    /// The thread of that number, if it is known.
    pub(crate) fn known(&self, tid: u32) -> Option<ThreadId> {
        self.by_tid.get(&tid).map(|living| living.id)
    }

    /// Threads that live.
    pub(crate) fn living(&self) -> usize {
        self.by_tid.len()
    }

    /// Removes a thread that has ended.
    pub(crate) fn end(&mut self, tid: u32) {
        self.by_tid.remove(&tid);
    }
}

/// The command of a thread that runs, or nothing.
fn running_command(pid: u32, tid: u32) -> String {
    let comm = fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
    comm.trim_end_matches('\n').to_owned()
}

/// Which calls of a thread are kept: the first `keep` of each `of`, counted for each name. A return
/// is kept with its call.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    counts: HashMap<(EventKind, NameId), u64>,
    open: Vec<(EventKind, NameId, bool)>,
}

impl Choice {
    /// Whether an event is kept. Switches, wakes, starts and ends of threads always are.
    pub(crate) fn keeps(&mut self, sampled: Sampled, kind: EventKind, name: NameId) -> bool {
        match (kind.closes(), kind) {
            (Some(opener), _) => {
                let is_own =
                    |(kind, of, _): &(EventKind, NameId, bool)| *kind == opener && *of == name;
                let Some(at) = self.open.iter().rposition(is_own) else { return false };
                let kept = self.open.get(at).is_some_and(|(_, _, kept)| *kept);
                self.open.truncate(at);
                kept
            }
            (None, EventKind::Enter | EventKind::SyscallEnter | EventKind::Instant) => {
                let count = self.counts.entry((kind, name)).or_default();
                let kept = *count % sampled.of.max(1) < sampled.keep;
                *count += 1;
                if kind.opens() && self.open.len() < DEPTH_MAX {
                    self.open.push((kind, name, kept));
                }
                kept
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_return_is_kept_with_its_call() {
        use EventKind::{Enter, Exit, SwitchOut};
        let sampled = Sampled { keep: 1, of: 3 };
        let mut choice = Choice::default();
        let mut keeps = |kind, name| choice.keeps(sampled, kind, NameId(name));
        // Each third call of a name, however deep.
        let calls = [(Enter, 1), (Enter, 2), (Enter, 1), (Exit, 1), (Exit, 2), (Exit, 1)];
        let kept = calls.map(|(kind, name)| keeps(kind, name));
        assert_eq!(kept, [true, true, false, false, true, true]);
        assert_eq!([keeps(Enter, 1), keeps(Exit, 1), keeps(Enter, 1)], [false, false, true]);
        assert!(keeps(SwitchOut, 0) && !keeps(Exit, 7));
    }

    #[test]
    fn a_number_that_is_used_again_is_another_thread() {
        let mut writer = Writer::new(Vec::new(), &trace::Facts::default()).unwrap();
        let mut threads = Threads::default();
        let mut id =
            |threads: &mut Threads| threads.get((1, 7), Some("a"), &mut writer).unwrap().id;
        let first = id(&mut threads);
        assert_eq!(id(&mut threads), first);
        assert_eq!(threads.living(), 1);
        threads.end(7);
        assert_eq!((threads.known(7), threads.living()), (None, 0));
        assert_ne!(id(&mut threads), first);
    }
}

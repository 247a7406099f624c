//! Follows the processes of the program and their mappings, and finds the places of addresses.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use super::records::{Mapping, Seen, What};
use super::{Happened, Place, Places};

/// Bytes of a process's name at most (TASK_COMM_LEN - 1).
const COMM_BYTES_MAX: usize = 15;
/// Most mappings with code that are kept of a process, which may map any number.
const MAPPINGS_MAX: usize = 1 << 14;
/// The kernel's addresses have their highest bit set.
const KERNEL: u64 = 1 << 63;

/// A process that was forked or executed during the run.
#[derive(Clone, Default)]
struct Process {
    /// Whether it is the program, or a child of it.
    is_program: bool,
    /// By start; later ones hide earlier ones.
    mappings: Vec<Mapping>,
}

/// The processes of a run.
#[derive(Default)]
pub(super) struct Processes {
    processes: HashMap<u32, Process>,
    places: Places,
    executed: bool,
}

impl Processes {
    /// Returns the ticks and events of the program of that name, the places of its ticks, and
    /// whether it was executed. `records` are in the order of time.
    pub(super) fn follow(records: Vec<Seen>, program: &OsStr) -> (Vec<Happened>, Vec<Place>, bool) {
        let name = program.as_bytes();
        let name = name.get(..COMM_BYTES_MAX).unwrap_or(name);
        let mut processes = Self::default();
        let happened = records.into_iter().filter_map(|seen| processes.take(seen, name)).collect();
        (happened, processes.places.places, processes.executed)
    }

    fn take(&mut self, seen: Seen, program: &[u8]) -> Option<Happened> {
        match seen.what {
            What::Executed(name) => {
                let process = self.processes.entry(seen.pid).or_default();
                process.mappings.clear();
                if name == program {
                    process.is_program = true;
                    self.executed = true;
                }
                None
            }
            What::Forked(parent) => {
                let process = self.processes.get(&parent).cloned().unwrap_or_default();
                self.processes.insert(seen.pid, process);
                None
            }
            What::Mapped(mapping) => {
                let mappings = &mut self.processes.entry(seen.pid).or_default().mappings;
                if mappings.len() < MAPPINGS_MAX {
                    mappings.push(mapping);
                }
                None
            }
            What::Tick(address, _) => {
                let process = self.processes.get(&seen.pid).filter(|of| of.is_program)?;
                let place = process.place(address);
                Some(Happened::Tick(self.places.number(place)))
            }
            What::Event(event, count) => {
                let process = self.processes.get(&seen.pid)?;
                process.is_program.then_some(Happened::Event(event, count))
            }
        }
    }
}

impl Process {
    fn place(&self, address: u64) -> Place {
        if address >= KERNEL {
            return Place::Kernel;
        }
        let found = self.mappings.iter().rev().find_map(|mapping| {
            let within = address.checked_sub(mapping.begin).filter(|at| *at < mapping.len)?;
            Some((mapping, mapping.offset.saturating_add(within)))
        });
        match found {
            Some((mapping, offset)) if mapping.path.starts_with('/') => {
                Place::File(mapping.path.clone(), offset)
            }
            _ => Place::Elsewhere,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(begin: u64, path: &str) -> What {
        What::Mapped(Mapping { begin, len: 0x1000, offset: 0x200, path: path.into() })
    }

    fn followed(list: &[(u32, What)], program: &str) -> (Vec<Happened>, Vec<Place>, bool) {
        let clone = |what: &What| match what {
            What::Executed(name) => What::Executed(name.clone()),
            What::Forked(parent) => What::Forked(*parent),
            What::Mapped(mapping) => What::Mapped(mapping.clone()),
            What::Tick(address, period) => What::Tick(*address, *period),
            What::Event(event, count) => What::Event(*event, *count),
        };
        let seen = (0..).zip(list).map(|(time_ns, (pid, what))| Seen {
            time_ns,
            pid: *pid,
            what: clone(what),
        });
        Processes::follow(seen.collect(), OsStr::new(program))
    }

    #[test]
    fn an_observers_own_time_is_not_the_programs() {
        let list = [
            (1, What::Executed(b"uftrace".to_vec())),
            (1, map(0x1000, "/usr/bin/uftrace")),
            (1, What::Tick(0x1100, 1)),
            (2, What::Forked(1)),
            (2, What::Tick(0x1100, 1)),
            (2, What::Executed(b"lua".to_vec())),
            (2, map(0x5000, "/usr/bin/lua")),
            (2, What::Tick(0x5010, 1)),
            (2, What::Tick(1 << 63, 1)),
            (2, What::Tick(0x10, 1)),
            (1, What::Event(0, 1)),
            (2, What::Event(0, 3)),
            (3, What::Forked(2)),
            (3, What::Tick(0x5010, 1)),
        ];
        let (happened, places, executed) = followed(&list, "lua");
        use Happened::{Event, Tick};
        assert_eq!(happened, [Tick(0), Tick(1), Tick(2), Event(0, 3), Tick(0)]);
        let lua = Place::File("/usr/bin/lua".into(), 0x210);
        assert_eq!(places, [lua, Place::Kernel, Place::Elsewhere]);
        assert!(executed);
        assert!(!followed(&list, "python3").2);
    }

    #[test]
    fn names_are_as_long_as_the_kernel_keeps_them_and_code_is_what_was_mapped_last() {
        let list = [
            (1, What::Executed(b"a_name_longer_t".to_vec())),
            (1, map(0x1000, "/first")),
            (1, map(0x1000, "/second")),
            (1, What::Tick(0x1000, 1)),
        ];
        let (_, places, executed) = followed(&list, "a_name_longer_than_15");
        assert!(executed);
        assert_eq!(places, [Place::File("/second".into(), 0x200)]);
    }
}

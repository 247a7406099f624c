//! Processes that run CPython: which processes to examine, and for which the sampler copies frames.

use abi::{PID_BITS, PYTHON_PROCESSES_MAX, PythonLayout};
use address_spaces::mappings::AddressMap;
use inspect::python::may_be_python;
use inspect::questions::PythonFound;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// Time until a process is looked at again in which no interpreter was found that runs: it may just
/// have begun. Each further time is twice as long.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Times that the time is doubled.
const DOUBLED_MAX: u32 = 9;
/// Processes that are remembered; beyond, all are looked at again.
const LOOKS_MAX: usize = 16_384;

/// Processes that were looked at, by their address space ([`abi::StackRecord::space`]).
#[derive(Default)]
pub struct Looks(HashMap<u32, Look>);

/// None: it was found.
struct Look {
    again_at: Option<Instant>,
    looks: u32,
}

impl Looks {
    /// Whether a process is to be looked at.
    pub fn wants(&self, space: u32, map: &AddressMap, now: Instant) -> bool {
        self.is_due(space, now) && map.iter().any(|mapping| may_be_python(&mapping.file.path))
    }

    /// Whether a process was not looked at yet, or long enough ago without an interpreter.
    fn is_due(&self, space: u32, now: Instant) -> bool {
        self.0.get(&space).is_none_or(|look| look.again_at.is_some_and(|at| now >= at))
    }

    /// Notes the outcome of a look. The layout, where one was found.
    pub fn note(&mut self, space: u32, found: PythonFound, now: Instant) -> Option<PythonLayout> {
        if self.0.len() >= LOOKS_MAX {
            self.0.clear();
        }
        let look = self.0.entry(space).or_insert(Look { again_at: None, looks: 0 });
        let after = AGAIN_AFTER * (1 << look.looks);
        look.looks = (look.looks + 1).min(DOUBLED_MAX);
        match found {
            PythonFound::Layout(layout) => {
                look.again_at = None;
                Some(layout)
            }
            PythonFound::Nowhere | PythonFound::NotYet => {
                look.again_at = Some(now + after);
                None
            }
        }
    }
}

/// Processes whose frames the sampler copies: their address spaces, by number.
#[derive(Default)]
pub struct Marked(BTreeMap<u32, u32>);

impl Marked {
    /// Marks an address space. False where too many are.
    pub fn mark(&mut self, space: u32) -> bool {
        let pid = space & ((1 << PID_BITS) - 1);
        let has_room = self.0.len() < PYTHON_PROCESSES_MAX || self.0.contains_key(&pid);
        if has_room {
            self.0.insert(pid, space);
        }
        has_room
    }

    /// The address space that a process had, unless it has this generation still; it is marked no
    /// longer.
    pub fn unmark(&mut self, pid: u32, generation: Option<u16>) -> Option<u32> {
        let space = *self.0.get(&pid)?;
        if generation.is_some_and(|now| u32::from(now) == space >> PID_BITS) {
            return None;
        }
        self.0.remove(&pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_looked_at_again_until_its_interpreter_runs() {
        let mut looks = Looks::default();
        let begin = Instant::now();
        let is_due = |looks: &Looks, ms| looks.is_due(7, begin + Duration::from_millis(ms));
        assert!(is_due(&looks, 0));
        assert_eq!(looks.note(7, PythonFound::Nowhere, begin), None);
        assert!(!is_due(&looks, 99) && is_due(&looks, 100));
        assert_eq!(looks.note(7, PythonFound::NotYet, begin), None);
        assert!(!is_due(&looks, 199) && is_due(&looks, 200), "twice as long");
        let layout = PythonLayout::default();
        assert_eq!(looks.note(7, PythonFound::Layout(layout), begin), Some(layout));
        assert!(!is_due(&looks, 1 << 40), "found");
    }

    #[test]
    fn the_mark_is_of_one_program() {
        let mut marked = Marked::default();
        let space = 5 << PID_BITS | 77;
        assert!(marked.mark(space));
        assert_eq!(marked.unmark(77, Some(5)), None, "the same program");
        assert_eq!(marked.unmark(77, Some(6)), Some(space));
        assert_eq!(marked.unmark(77, None), None);
        assert!((0..PYTHON_PROCESSES_MAX as u32).all(|pid| marked.mark(pid)));
        assert!(!marked.mark(1 << 20) && marked.mark(3));
        assert_eq!(marked.unmark(3, None), Some(3));
        assert!(marked.mark(1 << 20));
    }
}

//! Processes with a runtime whose functions have names (CPython, Ruby, PHP, Lua, LuaJIT,
//! Perl, V8, HotSpot, BEAM, .NET): which processes to examine, and for which the sampler copies
//! frames.

use abi::{AttributeLayout, PID_BITS, RUNTIME_PROCESSES_MAX, RuntimeLayout};
use address_spaces::mappings::AddressMap;
use address_spaces::users::Payer;
use inspect::questions::{RuntimeCode, RuntimeFound, RuntimeFunction};
use inspect::runtimes::may_be_runtime;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

/// Time until a process is looked at again in which no runtime was found that runs: it may just
/// have begun. Each further time is twice as long.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Times that the time is doubled.
const DOUBLED_MAX: u32 = 9;
/// Processes that are remembered; beyond, all are looked at again.
const LOOKS_MAX: usize = 16_384;
/// Reasons why a runtime is of no use that are told.
const REFUSED_MAX: usize = 64;

/// Generated code, with the name of its function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedCode {
    /// As [`abi::StackRecord::space`].
    pub space: u32,
    /// Address of the first byte, and the number of bytes.
    pub piece: (u64, u32),
    /// The function, its file and its first line.
    pub name: String,
}

impl NamedCode {
    /// The code of an answer.
    pub fn of(space: u32, codes: &[RuntimeCode], functions: &[RuntimeFunction]) -> Vec<Self> {
        let named = |code: &RuntimeCode| {
            let RuntimeFunction { name, file, first_line, .. } =
                functions.get(code.function as usize)?;
            let file = file.rsplit('/').next().unwrap_or(file);
            // Code of a runtime's own has no file, and that of classes that it made no lines.
            let name = match (file, *first_line) {
                ("", _) => name.clone(),
                (file, 0) => format!("{name} {file}"),
                (file, line) => format!("{name} {file}:{line}"),
            };
            Some(Self { space, piece: (code.start, code.size), name })
        };
        codes.iter().filter_map(named).collect()
    }
}

/// Processes that were looked at, by their address space ([`abi::StackRecord::space`]).
#[derive(Default)]
pub struct Looks {
    looked: HashMap<u32, Look>,
    /// What was found, by address space.
    layouts: HashMap<u32, RuntimeLayout>,
    /// Why runtimes are of no use, each told once.
    refused: HashSet<String>,
}

/// None: it was found.
struct Look {
    again_at: Option<Instant>,
    looks: u32,
}

impl Looks {
    /// Whether a process is to be looked at.
    pub fn wants(&self, space: u32, map: &AddressMap, now: Instant) -> bool {
        self.is_due(space, now) && map.iter().any(|mapping| may_be_runtime(&mapping.file.path))
    }

    /// Whether a process was not looked at yet, or long enough ago without a runtime.
    fn is_due(&self, space: u32, now: Instant) -> bool {
        self.looked.get(&space).is_none_or(|look| look.again_at.is_some_and(|at| now >= at))
    }

    /// Notes the outcome of a look. The layout, where one was found.
    pub fn note(&mut self, space: u32, found: RuntimeFound, now: Instant) -> Option<RuntimeLayout> {
        if self.looked.len() >= LOOKS_MAX {
            self.looked.clear();
        }
        let look = self.looked.entry(space).or_insert(Look { again_at: None, looks: 0 });
        let after = AGAIN_AFTER * (1 << look.looks);
        look.looks = (look.looks + 1).min(DOUBLED_MAX);
        match found {
            RuntimeFound::Layout(layout) => {
                look.again_at = None;
                let known = self.layout(space);
                *known = RuntimeLayout { attributes: known.attributes, ..layout };
                Some(*known)
            }
            RuntimeFound::Refused(why) => {
                look.again_at = None;
                if self.refused.len() < REFUSED_MAX && self.refused.insert(why.clone()) {
                    tracing::info!("functions without names: {why}");
                }
                None
            }
            RuntimeFound::Nowhere | RuntimeFound::NotYet => {
                look.again_at = Some(now + after);
                None
            }
        }
    }
}

impl Looks {
    /// Notes where threads of a process have attributes. The layout with those.
    pub fn note_attributes(&mut self, space: u32, attributes: AttributeLayout) -> RuntimeLayout {
        let layout = self.layout(space);
        layout.attributes = attributes;
        *layout
    }

    fn layout(&mut self, space: u32) -> &mut RuntimeLayout {
        if self.layouts.len() >= LOOKS_MAX {
            self.layouts.clear();
        }
        self.layouts.entry(space).or_default()
    }
}

/// An address space, and the layout of the frames that the sampler is to copy there; None: it is to
/// copy no more.
pub type Marking = (u32, Option<RuntimeLayout>);

/// Processes whose frames of runtimes the sampler copies, by number. Where there are more than it
/// has room for, the user with the most of them loses the one that was sampled longest ago.
#[derive(Default)]
pub struct Marked {
    marks: BTreeMap<u32, Mark>,
    /// Address spaces that lost their places and have not been sampled since.
    without: HashMap<u32, RuntimeLayout>,
    /// Number of stacks so far, which serves as a clock.
    stacks: u64,
}

struct Mark {
    space: u32,
    layout: RuntimeLayout,
    payer: Payer,
    /// The value of that clock at its last stack.
    sampled: u64,
}

impl Marked {
    /// Marks an address space, which is charged to a user. Returns what the sampler is to change.
    pub fn mark(&mut self, space: u32, layout: RuntimeLayout, payer: Payer) -> Vec<Marking> {
        let pid = space & ((1 << PID_BITS) - 1);
        let mut orders = Vec::new();
        if self.marks.len() >= RUNTIME_PROCESSES_MAX && !self.marks.contains_key(&pid) {
            orders.extend(self.give_away());
        }
        let mark = Mark { space, layout, payer, sampled: self.stacks };
        let before = self.marks.insert(pid, mark).filter(|before| before.space != space);
        orders.extend(before.map(|before| (before.space, None)));
        orders.push((space, Some(layout)));
        orders
    }

    /// Frees the place of the user with the most of them that was sampled longest ago.
    fn give_away(&mut self) -> Option<Marking> {
        let mut marks: HashMap<Payer, u32> = HashMap::new();
        self.marks.values().for_each(|mark| *marks.entry(mark.payer).or_default() += 1);
        let (most, _) = marks.into_iter().max_by_key(|(_, marks)| *marks)?;
        let of_most = self.marks.iter().filter(|(_, mark)| mark.payer == most);
        let pid = *of_most.min_by_key(|(_, mark)| mark.sampled)?.0;
        let Mark { space, layout, .. } = self.marks.remove(&pid)?;
        if self.without.len() >= LOOKS_MAX {
            self.without.clear();
        }
        self.without.insert(space, layout);
        Some((space, None))
    }

    /// Notes a stack of an address space, which is marked again if it lost its place. Returns what
    /// the sampler is to change.
    pub fn sampled(&mut self, space: u32, payer: Payer) -> Vec<Marking> {
        self.stacks += 1;
        let pid = space & ((1 << PID_BITS) - 1);
        if let Some(mark) = self.marks.get_mut(&pid).filter(|mark| mark.space == space) {
            mark.sampled = self.stacks;
            return Vec::new();
        }
        let layout = self.without.remove(&space);
        layout.map(|layout| self.mark(space, layout, payer)).unwrap_or_default()
    }

    /// The number of address spaces that lost their places and have not been sampled since.
    pub fn without(&self) -> usize {
        self.without.len()
    }

    /// The address space that a process had, unless it has this generation still; it is marked no
    /// longer.
    pub fn unmark(&mut self, pid: u32, generation: Option<u16>) -> Option<u32> {
        let is_same =
            |space: u32| generation.is_some_and(|now| u32::from(now) == space >> PID_BITS);
        let is_gone = |space: u32| space & ((1 << PID_BITS) - 1) == pid && !is_same(space);
        if !self.without.is_empty() {
            self.without.retain(|space, _| !is_gone(*space));
        }
        let space = self.marks.get(&pid)?.space;
        if is_same(space) {
            return None;
        }
        self.marks.remove(&pid).map(|mark| mark.space)
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
        assert_eq!(looks.note(7, RuntimeFound::Nowhere, begin), None);
        assert!(!is_due(&looks, 99) && is_due(&looks, 100));
        assert_eq!(looks.note(7, RuntimeFound::NotYet, begin), None);
        assert!(!is_due(&looks, 199) && is_due(&looks, 200), "twice as long");
        let layout = RuntimeLayout::default();
        assert_eq!(looks.note(7, RuntimeFound::Layout(layout), begin), Some(layout));
        assert!(!is_due(&looks, 1 << 40), "found");
    }

    #[test]
    fn the_mark_is_of_one_program() {
        let (mut marked, layout) = (Marked::default(), RuntimeLayout::default());
        let space = 5 << PID_BITS | 77;
        assert_eq!(marked.mark(space, layout, Payer::User(1)), [(space, Some(layout))]);
        assert_eq!(marked.unmark(77, Some(5)), None, "the same program");
        assert_eq!(marked.unmark(77, Some(6)), Some(space));
        assert_eq!(marked.unmark(77, None), None);
    }

    /// A thousand sleeping Pythons of one user took all places.
    #[test]
    fn the_user_with_the_most_gives_its_oldest_place_away() {
        let (mut marked, layout) = (Marked::default(), RuntimeLayout::default());
        let (many, one) = (Payer::User(1), Payer::User(2));
        let all = RUNTIME_PROCESSES_MAX as u32;
        assert!((0..all).all(|pid| marked.mark(pid, layout, many).len() == 1));
        assert_eq!(marked.sampled(0, many), []);
        let other = 1 << 20;
        assert_eq!(marked.mark(other, layout, one), [(1, None), (other, Some(layout))]);
        assert_eq!(marked.without(), 1);
        assert_eq!(marked.sampled(1, many), [(2, None), (1, Some(layout))], "it runs again");
        assert_eq!(marked.unmark(2, None), None);
        assert_eq!(marked.without(), 0, "it has ended");
    }
}

//! The traces of a process: which one is at an address.

use super::places::TraceCalls;
use super::program::Distances;
use super::snapshots;
use super::trace::Trace;
use crate::python::Memory;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use unwind::{BLOCK_BYTES, FrameRule};

/// Global states of a process: each belongs to a main program. Of further ones traces are unknown.
const STATES_MAX: usize = 64;
/// Most traces (compiled code) that are remembered of a process; each takes about 100 bytes.
/// LuaJIT itself keeps at most 1000 by default (its parameter `maxtrace`). Functions in further
/// traces have no names.
const TRACES_MAX: usize = 1 << 13;
/// Places in traces of one answer whose calls are read, each with about ten system calls.
const PLACES_MAX: usize = 8192;

/// The kind of an object that is a state: the second byte behind the link that begins each.
const THREAD: u8 = 6;
/// `sizeof(lua_State)`, of LuaJIT and of OpenResty's, which Debian has since 13 and which adds two
/// words: the main program's state lies before its global state (`GG_State`, lj_dispatch.h).
const STATE_BYTES: [u64; 2] = [96, 112];

/// The traces of a process.
#[derive(Debug, Default)]
pub struct Traces {
    distances: Option<Distances>,
    /// Addresses of global states.
    states: Vec<u64>,
    /// By the begin of their code.
    known: BTreeMap<u64, Trace>,
    /// Whether they were read for this question.
    is_fresh: bool,
    /// Calls at places, read for this question.
    calls: HashMap<u64, Option<TraceCalls>>,
}

impl Traces {
    /// Prepares for a question.
    pub fn begin(&mut self, distances: Distances) {
        self.distances = Some(distances);
        self.is_fresh = false;
        self.calls.clear();
    }

    /// Notes the global state of a state.
    pub fn add_state(&mut self, memory: &impl Memory, state: u64) {
        let global = state.checked_add(16).and_then(|at| memory.word(at));
        global.into_iter().for_each(|global| self.add(memory, global));
    }

    /// Notes the global state that has the interpreter's jumps at an address.
    pub fn add_jumps(&mut self, memory: &impl Memory, jumps: u64) {
        let distance = self.distances.map(|known| u64::from(known.jumps));
        let global = distance.and_then(|distance| jumps.checked_sub(distance));
        global.into_iter().for_each(|global| self.add(memory, global));
    }

    fn add(&mut self, memory: &impl Memory, global: u64) {
        if self.states.contains(&global) || self.states.len() >= STATES_MAX {
            return;
        }
        let is_state = |at: u64| {
            memory.word(at + 8).is_some_and(|header| (header >> 8) as u8 == THREAD)
                && memory.word(at + 16) == Some(global)
        };
        let mut states = STATE_BYTES.iter().filter_map(|bytes| global.checked_sub(*bytes));
        if global.is_multiple_of(8) && states.any(is_state) {
            self.states.push(global);
        }
    }

    /// Reads all traces anew.
    fn refresh(&mut self, memory: &impl Memory) {
        self.is_fresh = true;
        let Some(distances) = self.distances else { return };
        let mut known = BTreeMap::new();
        for global in &self.states {
            let at = global.wrapping_add(distances.traces.into());
            let number = at.checked_add(8).and_then(|at| memory.word(at)).unwrap_or(0) >> 32;
            let count = usize::try_from(number).unwrap_or(0).min(TRACES_MAX);
            let mut table = vec![0; 8 * count];
            let read = memory.word(at).map_or(0, |at| memory.read(at, &mut table));
            table.truncate(read);
            let all = table.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
            let all: BTreeSet<u64> = all.filter(|at| *at != 0).collect();
            for at in all {
                if known.len() >= TRACES_MAX {
                    break;
                }
                known.extend(Trace::read(memory, at).map(|trace| (trace.code, trace)));
            }
        }
        self.known = known;
    }

    fn find(&self, address: u64) -> Option<Trace> {
        let (_, trace) = self.known.range(..=address).next_back()?;
        (address < trace.end()).then_some(*trace)
    }

    /// The trace at an address, as it is now.
    fn at(&mut self, memory: &impl Memory, address: u64) -> Option<Trace> {
        let found = self.find(address);
        if self.is_fresh || found.is_some_and(|it| Trace::read(memory, it.at) == Some(it)) {
            return found;
        }
        self.refresh(memory);
        self.find(address)
    }

    /// The rule of the frame at an address of generated code. Nothing is learnt of code that is not
    /// finished yet, or no more there.
    pub fn rule_at(&mut self, memory: &impl Memory, address: u64, is_exact: bool) -> FrameRule {
        let found = self.at(memory, address);
        found.map_or(FrameRule::Other, |it| it.with_ends(memory).rule_at(address, is_exact))
    }

    /// The rules of a block that begins in the body of a trace.
    pub fn block(&self, memory: &impl Memory, begin: u64) -> Option<Vec<(u16, FrameRule)>> {
        let end = begin.checked_add(BLOCK_BYTES)?;
        let first = self.find(begin)?;
        let mut rules = Vec::new();
        let mut at = begin;
        for (_, trace) in self.known.range(first.code..end) {
            let trace = trace.with_ends(memory);
            let (body, body_end) = trace.body_range();
            if body > at {
                rules.push((u16::try_from(at - begin).ok()?, FrameRule::Other));
            }
            if body_end > body.max(at) && body < end {
                rules.push((u16::try_from(body.max(at) - begin).ok()?, trace.body()));
            }
            at = at.max(body_end);
        }
        if at < end {
            rules.push((u16::try_from(at - begin).ok()?, FrameRule::Other));
        }
        Some(rules)
    }

    /// The calls that are part of the trace at an address.
    pub fn calls_at(&mut self, memory: &impl Memory, address: u64) -> Option<TraceCalls> {
        if let Some(known) = self.calls.get(&address) {
            return known.clone();
        }
        if self.calls.len() >= PLACES_MAX {
            return None;
        }
        let trace = self.at(memory, address);
        let calls = trace.and_then(|trace| snapshots::calls_at(memory, &trace, address));
        self.calls.insert(address, calls.clone());
        calls
    }
}

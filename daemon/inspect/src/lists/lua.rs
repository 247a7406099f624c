//! Lua (5.1, 5.2.2 to 5.2.4, 5.3.3 to 5.3.6, 5.4 and 5.5, of lua.org): which file has one, and what
//! its calls tell.
//!
//! A `lua_State` is a coroutine or a main program. It has a list of its calls (`CallInfo`), which
//! `luaV_execute` runs until one that C has called. No variable of the process tells which state
//! runs: the sampler finds those that a native frame of `luaV_execute` may be of among the
//! registers that the frame saves, and copies their lists (`ebpf/src/list_frames.h`). A coroutine
//! may have its resumer's state there too. The resumer is that of outer frames, so each frame is
//! the state's that is least far out.
//!
//! `luaV_execute` has no symbol. It is the file's longest procedure: 6 to 15 KiB, where others
//! have 4 at most.
//!
//! # Sources
//!
//! lua.h, lstate.h (lua_State, CallInfo, CIST_*), lobject.h (TValue, LClosure, Proto, TString),
//! ldo.c (ccall, luaD_precall, luaD_rawrunprotected), ldebug.c and lopcodes.h of Lua 5.1.5, 5.2.3,
//! 5.3.6, 5.4.9 and 5.5.0; machine code of Debian's 5.1.5-9, 5.3.6-2 and 5.4.4-3.

use super::Run;
use super::lua_functions::Layout;
use crate::python::Memory;
use crate::questions::{RuntimeFound, SampledStack, ToWalk, UnwoundStack};
use abi::{LIST_ENTRY, ListLayout, PythonFrame, RUNTIME_FRAMES_MAX, RuntimeLayout};
use image::{
    ImageOffset, Layout as FileLayout, exports_of_file, large_procedures_of_file,
    parts_of_procedure,
};
use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use unwind::End;

/// The symbols that are needed: the version, and what LuaJIT lacks.
const SYMBOLS: [&str; 2] = ["lua_ident", "lua_newstate"];
/// What stands before the version in `lua_ident`.
const VERSION_AFTER: &[u8] = b"Lua 5.";
/// Bytes of `lua_ident` that are read; it has about 130.
const IDENT_BYTES: usize = 64;
/// Least length of `luaV_execute`, in bytes.
const LOOP_BYTES_MIN: u64 = 4 << 10;
/// `LUA_TTHREAD`, and where objects have their type (`CommonHeader`).
const THREAD: u8 = 8;
const TYPE_AT: u8 = 8;

/// A file with a Lua. Addresses are the file's.
#[derive(Debug)]
pub struct Program {
    /// 1 to 5.
    minor: u8,
    /// The first is `luaV_execute`, the others are its cold parts.
    loops: Vec<Range<u64>>,
    layout: FileLayout,
}

/// A call in a state's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Address of the function's `Proto`; None: the function is in C.
    pub proto: Option<u64>,
    /// Address of the next instruction.
    pub instruction: u64,
    /// A native frame of `luaV_execute` begins with it.
    pub is_fresh: bool,
    /// Its caller is gone.
    pub is_tail: bool,
}

/// What the sampler noted of a stack.
#[derive(Default)]
struct Noted {
    /// Frames of the loop, innermost first: their places, and states that they may be of.
    frames: Vec<(u32, Vec<u64>)>,
    /// Of each state the word that is saved there, and its entries.
    lists: HashMap<u64, (u64, Vec<[u64; 4]>)>,
}

/// The frames of a stack, and all calls of their states.
pub struct Calls {
    /// For [`UnwoundStack::runs`].
    pub runs: Vec<Run>,
    /// Of each state, innermost first.
    pub states: Vec<Vec<Call>>,
}

/// Whether a file of this name may be a Lua: `lua5.4`, `liblua5.3.so.0.0.0`.
pub fn may_be_lua(name: &[u8]) -> bool {
    name.starts_with(b"lua") || name.starts_with(b"liblua") || name == b"texlua"
}

/// The version in a text: 4 and 6 of `Lua 5.4.6`.
pub fn version_in(ident: &[u8]) -> Option<(u8, u8)> {
    let mut at = ident.windows(VERSION_AFTER.len());
    let place = at.position(|bytes| bytes == VERSION_AFTER)?;
    let digit = |at: usize| char::from(*ident.get(place + VERSION_AFTER.len() + at)?).to_digit(10);
    Some((u8::try_from(digit(0)?).ok()?, u8::try_from(digit(2)?).ok()?))
}

impl Program {
    /// The Lua of a file; None: it has none. The error names a version that is not known.
    pub fn of_file(file: &File) -> Option<Result<Self, String>> {
        let [ident, state] = exports_of_file(file, &SYMBOLS).ok()?.try_into().ok()?;
        state?;
        let layout = FileLayout::of_file(file).ok()?;
        let mut text = [0; IDENT_BYTES];
        let ImageOffset(at) = layout.vaddr_to_file_offset(ident?.vaddr)?;
        file.read_exact_at(&mut text, at).ok()?;
        let (minor, release) = version_in(&text)?;
        if !matches!((minor, release), (1 | 4 | 5, _) | (2, 2..) | (3, 3..)) {
            return Some(Err(format!("Lua 5.{minor}.{release} is not known")));
        }
        let procedures = large_procedures_of_file(file, LOOP_BYTES_MIN).ok()?;
        let longest = procedures.into_iter().max_by_key(|of| of.end - of.start);
        let Some(longest) = longest else {
            return Some(Err(format!("Lua 5.{minor} without an unwind table is not known")));
        };
        let loops = parts_of_procedure(file, longest).ok()?;
        Some(Ok(Self { minor, loops, layout }))
    }

    /// One of this version whose loop is at these addresses.
    #[cfg(test)]
    pub fn with(minor: u8, loop_at: Range<u64>, layout: FileLayout) -> Self {
        Self { minor, loops: vec![loop_at], layout }
    }

    /// Difference between a process's addresses and the file's, where it has the byte at this
    /// offset mapped at `address`.
    pub fn bias(&self, address: u64, file_offset: u64) -> Option<u64> {
        self.layout.bias(address, ImageOffset(file_offset))
    }

    /// How the sampler finds the calls.
    pub fn look(&self, bias: u64) -> RuntimeFound {
        // Elsewhere procedures save registers in another order.
        let (true, Some(code)) = (cfg!(target_arch = "x86_64"), self.loops.first()) else {
            return RuntimeFound::Nowhere;
        };
        let list = ListLayout {
            loop_at: code.start.wrapping_add(bias),
            loop_bytes: u32::try_from(code.end - code.start).unwrap_or(0),
            tag: THREAD,
            tag_at: TYPE_AT,
            code_at: 24,
            entry_at: 32,
            previous_at: 16,
            ..ListLayout::default()
        };
        let list = match self.minor {
            // CallInfo's are in a row from `base_ci` on.
            1 => ListLayout {
                entry_at: 40,
                saved_at: 48,
                code_at: 32,
                first_at: 80,
                entry_bytes: 40,
                function_at: 8,
                instruction_at: 24,
                flags_at: 32,
                step: 40,
                ..list
            },
            2 => ListLayout { entry_bytes: 64, instruction_at: 56, flags_at: 32, ..list },
            3 => ListLayout { entry_bytes: 72, instruction_at: 40, flags_at: 64, ..list },
            _ => ListLayout { entry_bytes: 64, instruction_at: 32, flags_at: 56, ..list },
        };
        RuntimeFound::Layout(RuntimeLayout { list, ..RuntimeLayout::default() })
    }

    /// Where functions have what is read of them.
    pub fn functions(&self) -> Layout {
        Layout::of(self.minor)
    }

    fn is_in_loop(&self, vaddr: u64) -> bool {
        self.loops.iter().any(|part| part.contains(&vaddr))
    }

    /// The calls of a stack, by native frames. None: they do not fit.
    pub fn calls(
        &self,
        (memory, bias): (&impl Memory, u64),
        stack: &SampledStack,
        walked: &UnwoundStack,
    ) -> Option<Calls> {
        let noted = Noted::of(stack, walked);
        let is_loop = |at: &u64| self.is_in_loop(at.wrapping_sub(bias));
        let loops = (0..).zip(&walked.addresses).filter(|(_, at)| is_loop(at));
        let mut loops: Vec<u32> = loops.map(|(depth, _)| depth).collect();
        let mut frames = noted.frames.as_slice();
        if frames.is_empty() {
            return Some(Calls { runs: Vec::new(), states: Vec::new() });
        }
        // The loop has just begun, and has not saved registers yet.
        let is_begun = loops.first() == Some(&0) && frames.first().is_some_and(|it| it.0 != 0);
        if is_begun {
            loops.remove(0);
        }
        let states = noted.states();
        let is_same = loops.iter().zip(frames).all(|(depth, frame)| *depth == frame.0);
        if !is_same || loops.len() < frames.len() {
            return None;
        }
        let is_whole = End::ALL.get(usize::from(walked.end)) == Some(&End::Whole)
            && loops.len() == frames.len();
        let mut calls = Calls { runs: Vec::new(), states: Vec::new() };
        while let Some((state, of_state)) = same_state(&states, frames) {
            let (_, rest) = frames.split_at_checked(of_state)?;
            let depths: Vec<u32> = frames.iter().take(of_state).map(|frame| frame.0).collect();
            let mut list = self.list(memory, noted.lists.get(&state)?);
            if list.iter().all(|call| call.proto.is_none()) {
                // The process has ended.
                return Some(Calls { runs: Vec::new(), states: Vec::new() });
            }
            let innermost = list.first_mut()?;
            if depths.first() == Some(&0) {
                // Of a resumer, the innermost call is that of a function in C.
                let code = self.functions().code(memory, innermost.proto?)?;
                self.find_instruction(innermost, &code, &stack.registers);
            }
            let mut groups = groups(&list);
            if is_begun && calls.states.is_empty() && groups.len() > depths.len() {
                groups.remove(0);
            }
            let is_seen = is_whole || !rest.is_empty();
            let is_cut = stack.noted.len() >= RUNTIME_FRAMES_MAX;
            calls.runs.extend(runs(depths, groups, (is_seen, is_cut))?);
            calls.states.push(list);
            frames = rest;
        }
        Some(calls)
    }

    /// The loop keeps the address of its next instruction in a register, 5.2 and 5.3 in the list
    /// alone.
    fn find_instruction(&self, call: &mut Call, code: &Range<u64>, registers: &[u64]) {
        let is_in = |at: &&u64| **at > code.start && **at <= code.end && at.is_multiple_of(4);
        let found = registers.iter().filter(is_in).max();
        if let Some(found) = found.filter(|_| !matches!(self.minor, 2 | 3)) {
            call.instruction = *found;
        }
    }

    fn list(&self, memory: &impl Memory, (saved, entries): &(u64, Vec<[u64; 4]>)) -> Vec<Call> {
        let layout = self.functions();
        let mut calls: Vec<Call> = entries
            .iter()
            .map(|&[proto, tag, instruction, flags]| {
                let proto = Some(proto).filter(|at| layout.is_proto(memory, *at, tag as u8));
                let (is_lua, is_fresh, is_tail) = match self.minor {
                    1 => (true, false, flags >> 32 != 0),
                    2 => (flags >> 16 & 1 == 1, flags >> 18 & 1 == 0, flags >> 22 & 1 == 1),
                    3 => (flags >> 17 & 1 == 1, flags >> 19 & 1 == 1, flags >> 21 & 1 == 1),
                    5 => (flags >> 47 & 1 == 0, flags >> 48 & 1 == 1, flags >> 54 & 1 == 1),
                    _ => (flags >> 49 & 1 == 0, flags >> 50 & 1 == 1, flags >> 53 & 1 == 1),
                };
                Call { proto: proto.filter(|_| is_lua), instruction, is_fresh, is_tail }
            })
            .collect();
        if self.minor == 1 {
            // The innermost call has it in the state; `luaV_execute` calls itself by C but for
            // the instructions of calls.
            calls.iter_mut().take(1).for_each(|call| call.instruction = *saved);
            for at in 0..calls.len() {
                let caller = calls.get(at + 1);
                let calls_on = caller.is_some_and(|it| layout.is_at_call(memory, it.instruction))
                    && caller.is_some_and(|it| it.proto.is_some());
                calls.iter_mut().skip(at).take(1).for_each(|call| call.is_fresh = !calls_on);
            }
        }
        calls
    }
}

impl Noted {
    fn of(stack: &SampledStack, walked: &UnwoundStack) -> Self {
        let agree = walked.addresses.iter().zip(&stack.walked).take_while(|(a, b)| a == b).count();
        let known = match stack.to_walk {
            ToWalk::Nothing(_) => agree,
            // The sampler's walk ended in its last frame.
            _ => agree.min(stack.walked.len().saturating_sub(1)),
        };
        let mut noted = Self::default();
        let mut last = None;
        for (number, words) in &stack.noted {
            let [state, saved, ..] = *words;
            if *number == LIST_ENTRY {
                let list = last.and_then(|last| noted.lists.get_mut(&last));
                list.into_iter().for_each(|(_, list): &mut (u64, Vec<_>)| list.push(*words));
                continue;
            }
            last = Some(state).filter(|state| !noted.lists.contains_key(state));
            noted.lists.entry(state).or_insert((saved, Vec::new()));
            if *number as usize >= known {
                continue;
            }
            match noted.frames.last_mut() {
                Some((depth, states)) if depth == number => states.push(state),
                _ => noted.frames.push((*number, vec![state])),
            }
        }
        noted
    }

    /// The state of each frame.
    fn states(&self) -> Vec<u64> {
        let mut outermost = HashMap::new();
        for (place, (_, states)) in self.frames.iter().enumerate() {
            outermost.extend(states.iter().map(|state| (*state, place)));
        }
        let has_calls = |state: &&u64| self.lists.get(state).is_some_and(|it| !it.1.is_empty());
        let of_frame = |(_, states): &(u32, Vec<u64>)| {
            let known = states.iter().filter(has_calls);
            known.min_by_key(|state| outermost.get(state)).copied().unwrap_or(0)
        };
        self.frames.iter().map(of_frame).collect()
    }
}

/// The state of the first of some frames, which are the last of all, and how many frames it has.
fn same_state(states: &[u64], frames: &[(u32, Vec<u64>)]) -> Option<(u64, usize)> {
    let states = states.get(states.len().checked_sub(frames.len())?..)?;
    let state = *states.first()?;
    Some((state, states.iter().take_while(|it| **it == state).count()))
}

/// Calls in Lua by native frames, the innermost first, and whether all of the frame's are there.
fn groups(list: &[Call]) -> Vec<(Vec<PythonFrame>, bool)> {
    let mut groups = Vec::new();
    let mut group = Vec::new();
    for call in list {
        let Some(proto) = call.proto else { continue };
        group.push(PythonFrame { code: proto, instruction: call.instruction, flags: 0 });
        if call.is_fresh {
            groups.push((std::mem::take(&mut group), true));
        }
    }
    if !group.is_empty() {
        groups.push((group, false));
    }
    groups
}

fn runs(
    depths: Vec<u32>,
    groups: Vec<(Vec<PythonFrame>, bool)>,
    (is_seen, is_cut): (bool, bool),
) -> Option<Vec<Run>> {
    let mut depths = depths;
    // A call of the loop that is about to end has removed its own.
    if groups.len() + 1 == depths.len() && depths.first() == Some(&0) {
        depths.remove(0);
    }
    if groups.len() < depths.len() && !is_cut {
        return None;
    }
    let mut groups = groups.into_iter();
    let pairs = depths.into_iter().zip(groups.by_ref());
    let mut runs: Vec<Run> =
        pairs.map(|(depth, (frames, is_all))| (depth, frames, !is_all && is_cut)).collect();
    // Since a coroutine was resumed, calls around one by C have no native frame.
    if let Some((_, frames, _)) = runs.last_mut().filter(|_| is_seen) {
        frames.extend(groups.flat_map(|(frames, _)| frames));
    }
    Some(runs)
}

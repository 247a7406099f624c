//! The calls of a stack, by native frames: each frame of the interpreter, or of a trace, ran the
//! calls from the innermost one on until one that C has called.

use super::functions::Proto;
use super::places::{Call, Kind, Link, Place, TraceCalls};
use crate::python::Memory;
use crate::questions::{SampledStack, ToWalk, UnwoundStack};
use abi::{LIST_ENTRY, LUA_CALLBACK, RUNTIME_FRAMES_MAX};
use std::collections::HashMap;

/// Number of rbx among the registers: the interpreter's next instruction.
const NEXT_REGISTER: usize = 3;
/// Kind of an object that is a function, of functions in Lua in two bytes.
const LUA_FUNCTION: u64 = 8;

/// An entry of the list of a state's calls, as the sampler notes it.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Address of the function's instructions, if it is in Lua.
    code: Option<u64>,
    is_callback: bool,
    link: Link,
    /// The base, or the instruction to go on with.
    base: u64,
}

impl Entry {
    fn of(words: [u64; 4]) -> Self {
        let [code, header, link, base] = words;
        let is_lua = header >> 8 & 0xffff == LUA_FUNCTION;
        let is_callback = header & LUA_CALLBACK != 0;
        Self { code: Some(code).filter(|_| is_lua), is_callback, link: Link(link), base }
    }

    /// Whether C code has called it.
    fn is_from_c(&self) -> bool {
        self.is_callback || self.link.kind() == Kind::C
    }
}

/// A native frame, as the sampler notes it.
struct Native {
    depth: u32,
    state: u64,
    /// Begin of the Lua stack.
    stack: u64,
    next: u64,
    /// Number of results; below 0: the frame has no call from the Lua stack's beginning and that
    /// many bytes on (`cframe_nres`).
    results: i32,
    /// The address, if it is in a trace.
    trace: Option<u64>,
}

/// What the sampler noted of a stack.
#[derive(Default)]
pub struct Noted {
    frames: Vec<Native>,
    lists: HashMap<u64, Vec<Entry>>,
}

/// Place of the native frame, the calls that it ran, and whether it ran further ones.
pub type Run = (u32, Vec<Call>, bool);

/// The states that the sampler noted in a stack.
pub fn states(stack: &SampledStack) -> impl Iterator<Item = u64> {
    let frames = stack.noted.iter().filter(|(number, _)| *number != LIST_ENTRY);
    frames.map(|(_, [state, ..])| *state)
}

impl Noted {
    /// What was noted of a stack, whose frames at these addresses are in the interpreter.
    pub fn of(stack: &SampledStack, walked: &UnwoundStack, is_in_vm: impl Fn(u64) -> bool) -> Self {
        let agree = walked.addresses.iter().zip(&stack.walked).take_while(|(a, b)| a == b).count();
        let known = match stack.to_walk {
            ToWalk::Nothing(_) => agree,
            // The sampler's walk ended in its last frame.
            _ => agree.min(stack.walked.len().saturating_sub(1)),
        };
        let mut noted = Self::default();
        let mut last = 0;
        for (number, words) in &stack.noted {
            if *number == LIST_ENTRY {
                noted.lists.entry(last).or_default().push(Entry::of(*words));
                continue;
            }
            let [state, begin, next, results] = *words;
            last = state;
            let depth = *number as usize;
            let Some(address) = walked.addresses.get(depth).filter(|_| depth < known) else {
                continue;
            };
            noted.frames.push(Native {
                depth: *number,
                state,
                stack: begin,
                next,
                results: results as i32,
                trace: Some(*address).filter(|at| !is_in_vm(*at)),
            });
        }
        noted
    }

    /// The runs of a stack. None: its frames and calls do not fit. `trace_at` tells the calls that
    /// are part of a trace.
    pub fn runs(
        &self,
        memory: &impl Memory,
        stack: &SampledStack,
        trace_at: &mut impl FnMut(u64) -> Option<TraceCalls>,
    ) -> Option<Vec<Run>> {
        let is_cut = stack.noted.len() >= RUNTIME_FRAMES_MAX;
        let mut left: HashMap<u64, &[Entry]> =
            self.lists.iter().map(|(state, list)| (*state, list.as_slice())).collect();
        let mut runs = Vec::new();
        for frame in &self.frames {
            let list = left.entry(frame.state).or_default();
            if frame.results < 0 {
                let begin = frame.stack.saturating_add(u64::from(frame.results.unsigned_abs()));
                let first = list.first().filter(|it| it.link.kind() != Kind::Continues);
                if list.is_empty() || first.is_some_and(|entry| entry.base - 8 < begin) {
                    continue;
                }
            }
            let mut place = Place::at(next_of(memory, frame, list.first(), &stack.registers));
            let mut calls = Vec::new();
            if let Some(address) = frame.trace {
                let Some(in_trace) = trace_at(address) else {
                    // The process has ended, or it has removed the trace.
                    let is_there = memory.word(frame.state).is_some();
                    return if is_there { None } else { Some(Vec::new()) };
                };
                calls = in_trace.calls;
                place = in_trace.place;
            }
            let mut has_ended = false;
            while let Some((entry, rest)) = list.split_first() {
                if let Some(code) = entry.code {
                    calls.extend(place.call(code.wrapping_sub(Proto::BYTES)));
                }
                place.leave(entry.link, entry.base);
                *list = rest;
                if entry.is_from_c() {
                    has_ended = true;
                    break;
                }
            }
            if calls.is_empty() {
                continue;
            }
            runs.push((frame.depth, calls, !has_ended && is_cut));
        }
        Some(runs)
    }
}

/// The next instruction of a native frame's innermost call, 0 if it is not known. The interpreter
/// has it in a register, and writes it to its frame before it calls C.
fn next_of(
    memory: &impl Memory,
    frame: &Native,
    innermost: Option<&Entry>,
    registers: &[u64],
) -> u64 {
    let function = innermost.and_then(|entry| Proto::of_code(memory, entry.code?));
    let Some(function) = function else { return 0 };
    let register = registers.get(NEXT_REGISTER).filter(|_| frame.depth == 0);
    let next = register.copied().filter(|_| registers.len() > 16).unwrap_or(frame.next);
    if function.has(next) { next } else { 0 }
}

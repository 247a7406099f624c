//! Functions of LuaJIT 2.1 in call stacks.
//!
//! LuaJIT interprets a function by code written in assembler, until a loop or a call is hot; then
//! it compiles the path that runs, with the calls on it, to a *trace*. Both keep all calls of a
//! state (a coroutine or a main program) on the state's Lua stack, above one frame of the thread's
//! stack.
//!
//! 1. `program`: which file of a process is a LuaJIT, and what its interpreter's code tells.
//! 2. The sampler copies the calls where its walk leaves the interpreter or a trace
//!    (`ebpf/src/luajit.h`).
//! 3. `traces`: which trace is at an address; `trace`: how its frame is left. The walker
//!    (`stack_walks`) asks that of each frame, and the sampler learns it as it learns all rules.
//! 4. `snapshots`: the calls that are part of a trace. They are not on the Lua stack. LuaJIT notes
//!    them for each place where the trace may be left.
//! 5. `calls`: the calls of a stack by native frames, on `places`; `functions`: their files, lines
//!    and names.
//!
//! **No name is guessed.** Of each object the type and the bounds are checked, and of each place
//! that it lies in its function's code. Where native frames and calls do not fit, native frames
//! stay. Memory is that of strangers: nothing in it makes this panic or sizes an allocation beyond
//! a limit.
//!
//! # What it assumes
//!
//! A function or a trace that was freed between the sample and its look-up, at most a second later,
//! and another one made at its address, passes for the first.
//!
//! A trace's place is that of the last point before it where the trace may be left. Instructions of
//! a call that come before the call's first such point count for its caller.
//!
//! # Not read
//!
//! - Builds with references of 32 bits, those for other processors than x86-64, and forks whose
//!   interpreter differs: native frames.
//! - Calls in traces of builds before March 2021: their time is that of the function in which the
//!   trace begins.
//! - Stacks of the code that leaves a trace, which moves the stack pointer: they are cut.
//!
//! # Sources
//!
//! lj_obj.h, lj_frame.h, lj_jit.h, lj_ir.h, lj_bc.h, lj_dispatch.h, lj_debug.c, lj_snap.c,
//! lj_asm.c, lj_asm_x86.h and vm_x64.dasc of LuaJIT 2.1 of March 2022 and of August 2026; machine
//! code of Debian's 2.1.0~beta3+git20220320+dfsg-4.1.

pub mod calls;
pub mod functions;
pub mod places;
pub mod program;
pub mod snapshots;
#[cfg(test)]
mod tests;
pub mod trace;
pub mod traces;

use crate::programs::Programs;
use crate::python::LiveMemory;
use crate::questions::{FileAt, RuntimeFound, RuntimeRun, Unwind, Unwound};
use calls::Noted;
use functions::{Answer, Names};
use program::Program;
use std::collections::HashMap;
use std::fs::File;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use traces::Traces;
use unwind::{FrameRule, GeneratedFrame};

pub use program::may_be_luajit;

/// Processes whose traces are known, each with at most 256 KiB. Beyond, likewise.
const PROCESSES_MAX: usize = 64;

/// Known files, traces of processes, and names.
#[derive(Default)]
pub struct LuaJits {
    /// None: the file is no LuaJIT. The error says why it is of no use.
    files: Programs<Option<Result<Arc<Program>, String>>>,
    /// By address space.
    traces: HashMap<u32, Arc<Mutex<Traces>>>,
    names: Names,
}

/// The LuaJIT of one process, as one question sees it.
pub struct Process {
    program: Arc<Program>,
    bias: u64,
    memory: LiveMemory,
    traces: Arc<Mutex<Traces>>,
}

impl Process {
    fn traces(&self) -> MutexGuard<'_, Traces> {
        self.traces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the frame at an address of generated code is kept.
    pub fn frame_at(&self, address: u64, is_exact: bool) -> Option<GeneratedFrame> {
        let rule = self.traces().rule_at(&self.memory, address, is_exact);
        Some(GeneratedFrame { rule, follows_call: true })
    }

    /// The rules of a block of traces.
    pub fn block(&self, begin: u64) -> Option<Vec<(u16, FrameRule)>> {
        self.traces().block(&self.memory, begin)
    }
}

impl LuaJits {
    /// The LuaJIT of a process. `open` opens a file of the process. None: it has none.
    ///
    /// # Errors
    /// Why it is of no use.
    pub fn process(
        &mut self,
        asked: &Unwind,
        open: impl Fn(&FileAt) -> Option<File>,
    ) -> Option<Result<Rc<Process>, String>> {
        let (program, bias) = match self.program(asked, open)? {
            Ok(found) => found,
            Err(why) => return Some(Err(why)),
        };
        let memory = LiveMemory::of(asked.pid);
        if self.traces.len() >= PROCESSES_MAX && !self.traces.contains_key(&asked.space) {
            self.traces.clear();
        }
        let known = self.traces.entry(asked.space).or_default();
        let process = Process { program, bias, memory, traces: known.clone() };
        let mut traces = process.traces();
        traces.begin(process.program.distances);
        for stack in &asked.stacks {
            let states = calls::states(stack);
            states.for_each(|state| traces.add_state(&process.memory, state));
            // r14 has the place of the interpreter's jumps (DISPATCH) in all of its code.
            let jumps = stack.registers.get(14).filter(|_| stack.registers.len() > 16);
            jumps.into_iter().for_each(|jumps| traces.add_jumps(&process.memory, *jumps));
        }
        drop(traces);
        Some(Ok(Rc::new(process)))
    }

    /// Puts functions in the place of native frames in the stacks of a process, and says how the
    /// sampler finds calls, if that was asked.
    pub fn name(&mut self, asked: &Unwind, process: &Process, unwound: &mut Unwound) {
        if asked.looks_for_runtime {
            unwound.runtime = RuntimeFound::Layout(process.program.layout(process.bias));
        }
        let memory = &process.memory;
        let mut traces = process.traces();
        let mut answer = Answer::new(&mut self.names, asked.space);
        let mut all = Vec::new();
        for (at, stack) in asked.stacks.iter().enumerate() {
            let Some(walked) = unwound.stacks.get_mut(at) else { break };
            if stack.noted.is_empty() {
                continue;
            }
            let noted = Noted::of(stack, walked, |at| process.program.is_in_vm(at, process.bias));
            let mut trace_at = |address| traces.calls_at(memory, address);
            let runs = noted.runs(memory, stack, &mut trace_at);
            walked.python_differs |= runs.is_none();
            let runs = runs.unwrap_or_default();
            runs.iter().for_each(|run| answer.note(memory, &run.1));
            all.push((at, runs));
        }
        // A function has the same name in all stacks, so they are read after the last one.
        for (at, runs) in all {
            let Some(walked) = unwound.stacks.get_mut(at) else { break };
            for (depth, calls, is_part) in runs {
                let frames = calls.iter().map(|call| answer.place(memory, call)).collect();
                walked.runs.push(RuntimeRun { depth, frames, is_part });
            }
        }
        unwound.functions = answer.into_functions();
    }

    /// The file of a process's LuaJIT, and the difference between its addresses and the file's.
    fn program(
        &mut self,
        asked: &Unwind,
        open: impl Fn(&FileAt) -> Option<File>,
    ) -> Option<Result<(Arc<Program>, u64), String>> {
        let (id, bias) = self.files.find(
            asked,
            may_be_luajit,
            |file| open(file).map(|opened| Program::of_file(&opened).map(|of| of.map(Arc::new))),
            |program, address, offset| match program.as_ref()? {
                Ok(program) => program.bias(address, offset),
                Err(_) => Some(0),
            },
        )?;
        let found = self.files.get(&id)?.as_ref()?;
        Some(found.as_ref().map(|program| (program.clone(), bias)).map_err(String::clone))
    }
}

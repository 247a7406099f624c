//! Frames of interpreters in call stacks: of CPython 3.8 to 3.15, on x86-64.
//!
//! To the processor an interpreter is one procedure, its evaluation loop. What the loop runs lies
//! in the heap: a list of frames, each with a code object and an instruction of it. The sampler
//! copies that list at the sample (`ebpf/src/python.h`), since it is another one a microsecond
//! later. Here is the rest:
//!
//! 1. `program`: which file of a process is CPython, of which version (`layouts`), and where
//!    its evaluation loop is. All from symbols that the file exports.
//! 2. `runtime`: where the process's threads have their list. An interpreter keeps it in a word
//!    of the C library's thread (`pthread_setspecific`): in the thread itself (glibc), or in a
//!    table that the thread has the address of (musl). The word is found by what is in it, so no
//!    offset of a C library is assumed. The daemon tells the sampler.
//! 3. `code_objects`: functions and lines (`lines`) from the process's memory, soon after the
//!    sample. Code objects live as long as their functions.
//! 4. `merge`: the native frames of the evaluation loop are replaced by those that it ran.
//!
//! **No name is guessed.** What is read is checked: the type of each object, lengths, that the
//! instruction is one of the code object. Where native frames and those of Python do not fit, all
//! native frames stay as they are. Memory is that of strangers: nothing in it makes this panic or
//! sizes an allocation beyond a limit.
//!
//! # What it assumes
//!
//! A code object that was freed between the sample and its look-up, at most a second later, and
//! another one made at its address, passes for the first. Interpreters free code objects when
//! modules are unloaded or functions made at run time are.
//!
//! # Not read
//!
//! Free-threaded and debug builds; CPython on arm64, where a thread's pointer is not what
//! `pthread_self` names. Threads of a second interpreter in one process (its list is another one).
//!
//! # Other interpreters
//!
//! Each needs the four parts above, and one of the sampler's if its frames are not on the stack:
//!
//! - V8: frames are whole already. A function's name hangs on the function object in its frame: a
//!   reader of the copied stack, no work for the sampler.
//! - HotSpot: a frame's size is in the code blob that holds its address, in a table of the process:
//!   a source of unwind rules for `unwind`, read from memory and cached.
//! - Ruby: `ruby_current_ec` leads to control frames in a row: a layout of the sampler, with a
//!   constant distance instead of a link.
//! - Perl, PHP: lists like CPython's (`PL_curstackinfo`, `EG(current_execute_data)`).
//!
//! # Sources
//!
//! Include/cpython/pystate.h, code.h, unicodeobject.h, Include/internal/pycore_frame.h,
//! pycore_runtime.h, pycore_interp.h, Objects/lnotab_notes.txt, Objects/locations.md of CPython
//! 3.8.18, 3.9.18, 3.10.13, 3.11.2, 3.11.7, 3.12.1, 3.13.0, 3.14.10, 3.15.2; PEP 626, PEP 659.

pub mod code_objects;
pub mod layouts;
mod lines;
pub mod merge;
pub mod program;
pub mod runtime;

#[cfg(test)]
pub(crate) mod tests;

use super::programs::Programs;
use super::questions::{FileAt, RuntimeFound, RuntimeFunction, Unwind, UnwoundStack};
use abi::{PythonFrame, RuntimeLayout};
use code_objects::Codes;
use program::Program;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

pub use program::may_be_python;

/// Memory of a process.
pub trait Memory {
    /// Copies bytes from an address on into `buffer` and returns their number.
    fn read(&self, at: u64, buffer: &mut [u8]) -> usize;

    /// The word at an address.
    fn word(&self, at: u64) -> Option<u64> {
        let mut word = [0; 8];
        (self.read(at, &mut word) == word.len()).then(|| u64::from_le_bytes(word))
    }
}

/// The memory of a live process.
pub struct LiveMemory(Option<File>);

impl LiveMemory {
    /// The name of the process; empty when it is gone.
    pub fn of(pid: u32) -> Self {
        Self(File::open(format!("/proc/{pid}/mem")).ok())
    }
}

impl Memory for LiveMemory {
    fn read(&self, at: u64, buffer: &mut [u8]) -> usize {
        self.0.as_ref().and_then(|file| file.read_at(buffer, at).ok()).unwrap_or(0)
    }
}

/// Known programs and code objects.
#[derive(Default)]
pub struct Pythons {
    /// None: the file exports no CPython that is known.
    programs: Programs<Option<Program>>,
    codes: Codes,
}

/// Frames of Python in the stacks of one question.
pub struct Reading<'a> {
    found: Found<'a>,
    codes: &'a mut Codes,
    memory: LiveMemory,
    space: u32,
    /// Code objects of this question, in the order of the answer.
    pub functions: code_objects::Functions,
}

/// A process's CPython.
#[derive(Clone, Copy)]
pub struct Found<'a> {
    program: &'a Program,
    /// Difference between the process's addresses and the file's.
    bias: u64,
}

impl Pythons {
    /// The reader of a process's frames, where it runs CPython. `open` opens a file of the process.
    pub fn reading(
        &mut self,
        asked: &Unwind,
        open: impl Fn(&FileAt) -> Option<File>,
    ) -> Option<Reading<'_>> {
        let (id, bias) = self.programs.find(
            asked,
            may_be_python,
            |file| open(file).map(|opened| Program::of_file(&opened, &file.path.0)),
            |program, address, offset| program.as_ref()?.bias(address, offset),
        )?;
        let program = self.programs.get(&id)?.as_ref()?;
        let memory = LiveMemory::of(asked.pid);
        let (space, codes) = (asked.space, &mut self.codes);
        codes.begin();
        let functions = code_objects::Functions::default();
        Some(Reading { found: Found { program, bias }, codes, memory, space, functions })
    }
}

impl Reading<'_> {
    /// Where the threads of the process have their frames.
    pub fn look(&self) -> RuntimeFound {
        let layout =
            |python| RuntimeFound::Layout(RuntimeLayout { python, ..RuntimeLayout::default() });
        runtime::places(&self.found, &self.memory).map_or(RuntimeFound::NotYet, layout)
    }

    /// Replaces native frames of the evaluation loop in a stack that was walked.
    pub fn merge(&mut self, python: &[PythonFrame], stack: &mut UnwoundStack, is_whole: bool) {
        let Found { program, bias } = self.found;
        let Some(layout) = program.layout(&self.memory, bias) else { return };
        let is_loop = |address: &u64| program.is_in_loop(address.wrapping_sub(bias));
        let begin = program.loop_begin().wrapping_add(bias);
        let in_prologue = stack
            .addresses
            .first()
            .is_some_and(|address| address.wrapping_sub(begin) < merge::PROLOGUE_BYTES);
        let native = merge::Native {
            loops: (0..).zip(&stack.addresses).filter(|(_, at)| is_loop(at)).map(|(n, _)| n),
            in_prologue,
            is_whole,
        };
        let groups = layout.groups(python);
        let Some(runs) = merge::merge(native, groups) else {
            stack.python_differs = true;
            return;
        };
        let types = program.types(bias);
        let reader = code_objects::Reader { memory: &self.memory, layout: &layout, types };
        let mut named = |frame: &PythonFrame| {
            // From 3.14 on the lowest bits of a reference say how it is counted (_PyStackRef,
            // pycore_stackref.h); objects are at multiples of 16.
            let frame = &PythonFrame { code: frame.code & !7, ..*frame };
            let (code, line) = self.codes.frame(self.space, frame, &reader)?;
            Some((self.functions.number(frame.code, code)?, line))
        };
        for run in runs {
            let frames = run.frames.iter().map(|frame| named(frame)).collect();
            stack.runs.push(super::questions::RuntimeRun {
                depth: run.depth,
                frames,
                is_part: run.is_part,
            });
        }
    }

    /// The functions of all stacks so far.
    pub fn into_functions(self) -> Vec<RuntimeFunction> {
        self.functions.all
    }
}

//! Functions of Erlang and Elixir (BEAM with its just-in-time compiler) in call stacks.
//!
//! BEAM generates code of every module when it loads the module, and runs nothing else. It tells
//! debuggers of each module by GDB's interface for generated code, always, without an option:
//!
//! 1. `program`: which file of a process is a BEAM, of which version, and where it has what the
//!    sampler needs.
//! 2. `modules`: the list of loaded modules, with their functions, files and lines.
//!
//! Generated code keeps its frames on the stack of the Erlang process, C code on that of the
//! thread. The sampler walks from the thread's stack to the Erlang process's, and through it
//! (`ebpf/src/erlang.h`). The return addresses tell the functions, so nothing else is copied.
//!
//! **No name is guessed.** Names are those that BEAM tells; of a list that cannot be read or makes
//! no sense, modules have none. Memory is that of strangers: nothing in it makes this panic or
//! sizes an allocation beyond a limit.
//!
//! # What it assumes
//!
//! A module that was unloaded between the sample and its look-up, at most a second later, and
//! another one loaded at its place, passes for the first.
//!
//! # Not read
//!
//! - Stacks of versions other than OTP 25 to 27: where their structures are is not known. Their
//!   generated code has names.
//! - Erlang's stacks in a stack that an inspector walks: the copy has the thread's stack only. Its
//!   generated code has names.
//! - Callers of C code on dirty schedulers: no generated code is on those threads' stacks.
//! - BEAM without the just-in-time compiler, which interprets.
//!
//! # Sources
//!
//! erts/emulator/beam/jit/beam_jit_metadata.cpp, beam/jit/x86/{beam_asm.hpp,process_main.cpp,
//! instr_bif.cpp,beam_asm_global.cpp}, beam/{erl_process.h,beam_ranges.c} of Erlang/OTP 25; the
//! code that Debian's 25.2.3 and 27.3.4 generate; gdb/doc "JIT Interface"; nptl/descr.h of glibc.

pub mod modules;
pub mod program;
#[cfg(test)]
mod tests;

use crate::programs::Programs;
use crate::python::{LiveMemory, Memory};
use crate::questions::{
    CodeSource, FileAt, RuntimeCode, RuntimeFunction, RuntimeRun, Unwind, Unwound, UnwoundStack,
};
use model::Language;
use modules::Modules;
use program::Program;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;

pub use program::may_be_erlang;

/// Processes whose modules are known, each with some KiB and the functions below. Beyond, all are
/// forgotten and read again.
const PROCESSES_MAX: usize = 64;
/// Bytes of functions of all processes that are kept. Beyond, all are forgotten and read again.
const KEPT_BYTES_MAX: usize = 32 << 20;
/// Functions of one answer. Frames of further ones have no name.
const FUNCTIONS_MAX: usize = 65_536;

/// Known files, and modules of processes.
#[derive(Default)]
pub struct Erlangs {
    /// None: the file is no BEAM.
    files: Programs<Option<Program>>,
    /// By address space.
    processes: HashMap<u32, Modules>,
}

/// Functions and code of one answer.
#[derive(Default)]
pub struct Answer {
    /// The functions.
    pub functions: Vec<RuntimeFunction>,
    /// By the begin of the code.
    pub codes: BTreeMap<u64, RuntimeCode>,
}

impl Erlangs {
    /// Names the frames of generated code in the stacks of a process, and says where the sampler
    /// finds such frames, if that was asked. False: the process is no BEAM. `open` opens a file of
    /// the process.
    pub fn name(
        &mut self,
        asked: &Unwind,
        unwound: &mut Unwound,
        open: impl Fn(&FileAt) -> Option<File>,
    ) -> bool {
        let Some((id, bias)) = self.program(asked, open) else { return false };
        let Some(Some(program)) = self.files.get(&id) else { return false };
        let kept: usize = self.processes.values().map(Modules::bytes).sum();
        let is_new = !self.processes.contains_key(&asked.space);
        if kept > KEPT_BYTES_MAX || (is_new && self.processes.len() >= PROCESSES_MAX) {
            self.processes.clear();
        }
        let memory = LiveMemory::of(asked.pid);
        let modules = self.processes.entry(asked.space).or_default();
        modules.refresh(&memory, program.descriptor(bias));
        let generated = asked.map.iter().filter(|it| matches!(it.code, CodeSource::Generated));
        let generated: Vec<(u64, u64)> = generated.map(|mapped| mapped.range).collect();
        if asked.looks_for_runtime {
            unwound.runtime = program.look(&memory, bias, modules, &generated);
        }
        let mut answer = Answer::default();
        for stack in &mut unwound.stacks {
            answer.name(&memory, modules, &generated, stack);
        }
        unwound.functions = answer.functions;
        unwound.codes = answer.codes.into_values().collect();
        true
    }

    /// The file of a process's BEAM, and the difference between its addresses and the file's.
    fn program(
        &mut self,
        asked: &Unwind,
        open: impl Fn(&FileAt) -> Option<File>,
    ) -> Option<(kernel::MappedFileId, u64)> {
        self.files.find(
            asked,
            may_be_erlang,
            |file| open(file).map(|opened| Program::of_file(&opened)),
            |program, address, offset| program.as_ref()?.bias(address, offset),
        )
    }
}

impl Answer {
    /// Names the frames of a stack that are in generated code, of which the process has these
    /// areas.
    pub fn name(
        &mut self,
        memory: &impl Memory,
        modules: &mut Modules,
        generated: &[(u64, u64)],
        stack: &mut UnwoundStack,
    ) {
        for (depth, address) in (0_u32..).zip(&stack.addresses) {
            if !generated.iter().any(|(begin, end)| (*begin..*end).contains(address)) {
                continue;
            }
            let Some(found) = modules.find(memory, *address) else { continue };
            let number = match self.codes.get(&found.start) {
                Some(code) => code.function,
                None => {
                    let number = self.functions.len();
                    let Ok(function) = u32::try_from(number) else { continue };
                    if number >= FUNCTIONS_MAX {
                        continue;
                    }
                    self.functions.push(RuntimeFunction {
                        language: Language::Erlang,
                        file: found.function.file.clone(),
                        name: found.function.name.clone(),
                        first_line: found.function.first_line,
                    });
                    let size = found.function.size();
                    let code = RuntimeCode { start: found.start, size, function };
                    self.codes.insert(found.start, code);
                    function
                }
            };
            // Code of BEAM's own, and functions that the compiler has made, have no lines.
            if !found.function.file.is_empty() {
                let frames = vec![Some((number, found.line))];
                stack.runs.push(RuntimeRun { depth, frames, is_part: false });
            }
        }
    }
}

//! Methods of .NET (CoreCLR) in call stacks: C#, F# and other languages.
//!
//! CoreCLR runs a method in code that its compiler makes when the method is first called, and again
//! better when it is called often, or in code that was compiled ahead and is mapped from the
//! assembly's file. Neither has unwind tables that others know.
//!
//! 1. `program`: which file of a process is a CoreCLR, and of which version; `layouts`: where that
//!    has its structures, as its library describes them to debuggers.
//! 2. `code_ranges`: which piece of code is at an address, with its method.
//! 3. `unwind_codes`: how a frame there is left. The walker (`stack_walks`) asks that of each
//!    frame, and the sampler learns it as it learns all rules.
//! 4. `method_names`: the names, from the assembly's `metadata`.
//!
//! **No name is guessed.** A piece of code begins where its header says, a method's number is one
//! of its assembly's, and metadata are complete. Memory is that of strangers: nothing in it makes
//! this panic or sizes an allocation beyond a limit.
//!
//! # What it assumes
//!
//! Code that was removed between the sample and its look-up, at most a second later, and other code
//! at its address, passes for the first. Only dynamic methods and assemblies that can be unloaded
//! are removed.
//!
//! # Not read
//!
//! - Versions other than .NET 9, and programs that have the runtime in their own file: native
//!   frames.
//! - Code that was compiled ahead with parts of functions apart (hot and cold): the stack is cut.
//! - Methods that the compiler has inlined count for the method whose code they are in: the runtime
//!   keeps no table of them.
//! - Lines, which are in files of their own (PDB).
//! - Names of methods of assemblies that the program makes itself (Reflection.Emit).
//! - Frames of the stubs that look up a method of an interface, and of code that the runtime
//!   generates for itself outside of its ranges: the stack is cut (`generated`).
//!
//! # Sources
//!
//! dotnet/runtime v9.0: src/coreclr/vm/{codeman.h,codeman.cpp,readytoruninfo.h,method.hpp,hash.h},
//! src/coreclr/inc/{dacvars.h,nibblemapmacros.h,win64unwind.h},
//! docs/design/datacontracts/datadescriptor.md; ECMA-335; memory of processes of 9.0.5.

pub mod code_ranges;
pub mod layouts;
pub mod metadata;
pub mod method_names;
pub mod program;
#[cfg(test)]
mod tests;
pub mod unwind_codes;

use crate::programs::Programs;
use crate::python::LiveMemory;
use crate::questions::{FileAt, Unwind, Unwound};
use code_ranges::CodeRanges;
use kernel::MappedFileId;
use layouts::Layout;
use method_names::{Answer, Methods};
use program::Program;
use std::collections::HashMap;
use std::fs::File;
use std::rc::Rc;
use std::sync::Arc;
use unwind::{FrameRule, GeneratedFrame};

pub use program::{may_be_assembly, may_be_dotnet};

/// Files whose layouts are known. Beyond, all are forgotten and read again.
const LAYOUTS_MAX: usize = 64;

/// Known files and names.
#[derive(Default)]
pub struct DotNets {
    /// None: the file is no library that can be read.
    files: Programs<Option<Program>>,
    layouts: HashMap<MappedFileId, Result<Arc<Layout>, String>>,
    methods: Methods,
}

/// The CoreCLR of one process, as one question sees it.
pub struct Process(CodeRanges<LiveMemory>);

impl Process {
    /// How the frame at an address is kept.
    pub fn frame_at(&self, address: u64, is_exact: bool) -> Option<GeneratedFrame> {
        unwind_codes::frame_at(&self.0, address, is_exact)
    }

    /// The rules of a block of methods' code.
    pub fn block(&self, begin: u64) -> Option<Vec<(u16, FrameRule)>> {
        unwind_codes::block(&self.0, begin)
    }
}

impl DotNets {
    /// The CoreCLR of a process. `open` opens a file of the process. None: it has none, or it has
    /// not begun yet.
    ///
    /// # Errors
    /// Why it is of no use.
    pub fn process(
        &mut self,
        asked: &Unwind,
        open: impl Fn(&FileAt) -> Option<File>,
    ) -> Option<Result<Rc<Process>, String>> {
        let (id, bias) = self.files.find(
            asked,
            may_be_dotnet,
            |file| open(file).map(|opened| Program::of_file(&opened)),
            |program, address, offset| program.as_ref()?.bias(address, offset),
        )?;
        let memory = LiveMemory::of(asked.pid);
        if !self.layouts.contains_key(&id) {
            let mut files = asked.map.iter().filter_map(|mapped| mapped.code.file());
            let file = open(files.find(|file| file.id == id)?)?;
            let layout = self.files.get(&id)?.as_ref()?.layout(&file, &memory, bias)?;
            if self.layouts.len() >= LAYOUTS_MAX {
                self.layouts.clear();
            }
            self.layouts.insert(id.clone(), layout.map(Arc::new));
        }
        match self.layouts.get(&id)? {
            Ok(layout) => {
                Some(Ok(Rc::new(Process(CodeRanges::new(memory, layout.clone(), bias)?))))
            }
            Err(why) => Some(Err(why.clone())),
        }
    }

    /// Puts methods in the place of native frames, in all stacks of one question. Addresses alone
    /// tell the methods, so the sampler gets no layout of frames.
    pub fn name(&mut self, asked: &Unwind, process: &Process, unwound: &mut Unwound) {
        let mut answer = Answer::new(&mut self.methods, &process.0, asked.space);
        unwound.stacks.iter_mut().for_each(|stack| answer.name(stack));
        unwound.functions = answer.functions;
        unwound.codes = answer.codes.into_values().collect();
    }
}

//! Methods of Java (HotSpot) in call stacks.
//!
//! HotSpot runs a method in its interpreter or in code of one of its compilers (C1, C2). Neither
//! has unwind tables. But the VM has tables for its serviceability agent, which say where all of
//! its structures are, in its library's exported symbols. They are read once for each library:
//!
//! 1. `program`: which file of a process is a HotSpot; `tables`: what it tells; `layouts`: the
//!    offsets of fields that are needed.
//! 2. `code_cache`: which piece of code is at an address, with the size of its frames.
//! 3. `frames`: how a frame there is left, with `interpreter` for its entries. The walker
//!    (`stack_walks`) asks that of each frame, and the sampler learns it as it learns all rules, so
//!    that whole stacks are walked in the kernel.
//! 4. `methods`: names, source files and lines, with `numbers`, as the VM compresses them. Compiled
//!    code belongs to a method, and `scopes` has those that are inlined at a call. An interpreted
//!    frame has its method and its place in the bytecode in two words, which the sampler's walk
//!    copies (`ebpf/src/runtime_frames.h`).
//!
//! **No name is guessed.** Of a method it is checked that its name is a text of its class's
//! constants, and that the class has these constants. Memory is that of strangers: nothing in it
//! makes this panic or sizes an allocation beyond a limit.
//!
//! # What it assumes
//!
//! Code that was removed between the sample and its look-up, at most a second later, and other code
//! at its address, passes for the first. So does a method of a class that was unloaded.
//!
//! # Not read
//!
//! Where a thread is in the few instructions in which a frame is made or removed by the
//! interpreter, or in code that moves arguments between compiled and interpreted code, the stack is
//! cut (`generated`). Code that was invalidated while it had called: its return address leads to
//! other code, and the stack is cut.
//!
//! # Sources
//!
//! OpenJDK 8, 11, 17, 21 and 25: src/hotspot/share/runtime/vmStructs.cpp,
//! src/hotspot/share/code/{codeBlob,nmethod,pcDesc,scopeDesc,compressedStream}.hpp,
//! src/hotspot/share/memory/heap.cpp, src/hotspot/cpu/x86/{frame_x86.hpp,macroAssembler_x86.cpp,
//! c1_MacroAssembler_x86.cpp,templateInterpreterGenerator_x86.cpp,x86_64.ad},
//! src/hotspot/share/oops/{constMethod,method,constantPool,symbol}.hpp.

pub mod code_cache;
pub mod frames;
pub mod interpreter;
pub mod layouts;
pub mod method_frames;
pub mod methods;
pub mod numbers;
pub mod program;
pub mod scopes;
pub mod tables;

#[cfg(test)]
mod tests;

use crate::frame_words::FrameWords;
use crate::python::LiveMemory;
use crate::questions::{FileAt, RuntimeCode, RuntimeFunction, Unwind, UnwoundStack};
use abi::FrameLayout;
use code_cache::CodeCache;
use interpreter::Codelets;
use layouts::{Layout, METHOD_AT};
use method_frames::MethodFrames;
use program::Program;
use std::collections::HashMap;
use std::fs::File;
use std::rc::Rc;
use std::sync::Arc;
use unwind::{FrameRule, GeneratedFrame};

pub use program::may_be_hotspot;

/// Files that are known, each with some hundred bytes. Beyond, all are forgotten and read again.
const FILES_MAX: usize = 64;
/// Processes whose interpreters are known, each with about 2 KiB. Beyond, likewise.
const PROCESSES_MAX: usize = 64;

/// Known files, interpreters and methods.
#[derive(Default)]
pub struct HotSpots {
    /// None: the file is no HotSpot.
    files: HashMap<kernel::MappedFileId, Option<Known>>,
    codelets: HashMap<u32, Arc<Codelets>>,
    functions: MethodFrames,
}

struct Known {
    program: Program,
    /// None: not read yet; the error says why it is of no use.
    layout: Option<Result<Arc<Layout>, String>>,
}

/// The HotSpot of one process, as one question sees it.
pub struct Process {
    cache: CodeCache<LiveMemory>,
    codelets: Option<Arc<Codelets>>,
}

impl Process {
    /// How the frame at an address is kept.
    pub fn frame_at(&self, address: u64, is_exact: bool) -> Option<GeneratedFrame> {
        frames::frame_at(&self.cache, self.codelets.as_deref(), address, is_exact)
    }

    /// The rules of a block of compiled code.
    pub fn block(&self, begin: u64) -> Option<Vec<(u16, FrameRule)>> {
        frames::block(&self.cache, begin)
    }

    /// The words of an interpreted frame that tell its method and its place.
    pub fn frame_layout(&self) -> FrameLayout {
        let begin = self.cache.layout.interpreter.bytecode_at;
        let method = u8::try_from((METHOD_AT - begin) / 8).unwrap_or(0);
        FrameLayout {
            block_at: begin,
            block_bytes: begin.unsigned_abs(),
            object: method,
            tag: method,
            // A method's address.
            tag_mask: 7,
            words: [method, 0, 0, 0],
            ..FrameLayout::default()
        }
    }
}

impl HotSpots {
    /// The HotSpot of a process. `open` opens a file of the process. None: it has none, or it has
    /// not begun yet.
    ///
    /// # Errors
    /// Why it is of no use.
    pub fn process(
        &mut self,
        asked: &Unwind,
        open: impl Fn(&FileAt) -> Option<File>,
    ) -> Option<Result<Rc<Process>, String>> {
        if self.files.len() > FILES_MAX {
            self.files.clear();
        }
        let mapped = asked.map.iter().filter_map(|mapped| Some((mapped, mapped.code.file()?)));
        for (mapped, file) in mapped.filter(|(_, file)| may_be_hotspot(&file.path.0)) {
            if !self.files.contains_key(&file.id) {
                // Through another process it may be opened later.
                let Some(opened) = open(file) else { continue };
                let program = Program::of_file(&opened);
                let known = program.map(|program| Known { program, layout: None });
                self.files.insert(file.id.clone(), known);
            }
            let Some(Some(known)) = self.files.get_mut(&file.id) else { continue };
            let bias = known.program.bias(mapped.range.0, mapped.file_offset)?;
            let memory = LiveMemory::of(asked.pid);
            if known.layout.is_none() {
                let read = known.program.layout(&memory, bias)?;
                known.layout = Some(read.map(Arc::new));
            }
            let layout = match known.layout.as_ref()? {
                Ok(layout) => layout.clone(),
                Err(why) => return Some(Err(why.clone())),
            };
            let cache = CodeCache::new(memory, layout, bias);
            if !cache.is_ready() {
                return None;
            }
            let codelets = self.codelets(asked.space, &cache);
            return Some(Ok(Rc::new(Process { cache, codelets })));
        }
        None
    }

    fn codelets(&mut self, space: u32, cache: &CodeCache<LiveMemory>) -> Option<Arc<Codelets>> {
        if let Some(known) = self.codelets.get(&space) {
            return Some(known.clone());
        }
        let read = Arc::new(Codelets::read(cache).filter(|codelets| !codelets.is_empty())?);
        if self.codelets.len() >= PROCESSES_MAX {
            self.codelets.clear();
        }
        self.codelets.insert(space, read.clone());
        Some(read)
    }

    /// Puts methods in the place of native frames, in all stacks of one question. `words` are those
    /// of the interpreted frames of each stack. Returns the methods, and the code that compilers
    /// have made of them.
    pub fn name(
        &mut self,
        asked: &Unwind,
        process: &Process,
        words: &[Vec<FrameWords>],
        stacks: &mut [UnwoundStack],
    ) -> (Vec<RuntimeFunction>, Vec<RuntimeCode>) {
        self.functions.begin();
        for ((stack, words), sampled) in stacks.iter_mut().zip(words).zip(&asked.stacks) {
            // r13 has the place in the bytecode (the C++ name is r13, rbcp).
            let place = sampled.registers.get(13).copied().filter(|_| sampled.registers.len() > 16);
            self.functions.name(asked.space, &process.cache, (words, place), stack);
        }
        (self.functions.take_answer(), self.functions.take_codes())
    }
}

//! Functions of V8 (Node.js) in call stacks.
//!
//! V8 runs a function in its interpreter (Ignition), in code without optimisation (Sparkplug), or
//! in optimised code (Maglev, TurboFan). In each of them the function has one frame on the thread's
//! stack, which is kept by a frame pointer and has the closure in a slot. So native stacks are
//! whole already, and a name hangs on a word of a frame. The sampler's walk copies, of each frame
//! that it leaves by the frame pointer, what leads to the function and its place in its bytecode
//! (`ebpf/src/runtime_frames.h`). The closure may be moved or freed a moment later, so the sampler
//! also copies what the closure points to: the part that all closures of a function share, which
//! lives as long as the function. Here is the rest:
//!
//! 1. `program`: which file of a process has V8, and its `symbols` for debuggers (`v8dbg_...`).
//! 2. `layouts`: the offsets of fields that they tell, and those that they leave out.
//! 3. `objects`: words, types and strings of the heap.
//! 4. `functions`: names, scripts (`scripts`) and lines (`positions`), soon after the sample.
//! 5. `codes`: functions that are inlined; `handles`: where a function's code is since 13.x.
//!
//! The native frame (the interpreter's entry, a piece of generated code) is replaced by the
//! function; as the innermost frame it stays, since it says what ran for the function. A piece of
//! generated code that a frame was in is told with its function's name, so that samples there have
//! a procedure.
//!
//! **No name is guessed.** Each object is checked: its tag, its type, lengths, that positions are
//! in order. Where a check fails, the frame stays native. Memory is that of strangers: nothing in
//! it makes this panic or sizes an allocation beyond a limit.
//!
//! # What it assumes
//!
//! The shared part of a function that was moved by the garbage collector (compaction) or freed
//! between the sample and its look-up, at most a second later, and another one at its address,
//! passes for the first.
//!
//! # Not read
//!
//! Functions that are inlined in optimised code, where they are innermost: their time is that of
//! the function whose code it is. Where they have made a call, they are frames (`codes`).
//! WebAssembly. V8 with compressed pointers (Chrome, Electron). Lines of a call are known where V8
//! has made a table of them, as it does for functions in the stack of an error; otherwise a frame
//! has its function's first line.
//!
//! # Sources
//!
//! V8 9.4, 10.2, 11.3, 12.4 and 13.6 (Node.js 16, 18, 20, 22, 24):
//! tools/gen-postmortem-metadata.py, include/v8-internal.h, src/execution/frame-constants.h,
//! src/objects/{shared-function-info, scope-info,script,js-function,string,code}.tq,
//! src/codegen/source-position-table.cc, src/codegen/source-position.h,
//! src/objects/deoptimization-data.h; the OpenTelemetry eBPF profiler's interpreter/nodev8/v8.go
//! for what versions lack.

pub mod codes;
pub mod functions;
pub mod handles;
pub mod layouts;
pub mod objects;
pub mod positions;
pub mod program;
pub mod scripts;
pub mod symbols;

#[cfg(test)]
mod tests;

use crate::frame_words::FrameWords;
use crate::python::LiveMemory;
use crate::questions::{FileAt, RuntimeCode, RuntimeFunction, RuntimeRun, Unwind, UnwoundStack};
use functions::Functions;
use kernel::procfs;
use layouts::Layout;
use objects::Heap;
use std::collections::HashMap;
use std::fs::File;

pub use program::may_be_v8;

/// Files that are known, each with some hundred bytes. Beyond, all are forgotten and read again.
const FILES_MAX: usize = 64;

/// Known files and functions.
#[derive(Default)]
pub struct V8s {
    /// None: the file has no V8; the error says why its V8 is of no use.
    files: HashMap<kernel::MappedFileId, Option<Result<Layout, String>>>,
    functions: Functions,
}

impl V8s {
    /// The V8 of a process. `open` opens a file of the process.
    pub fn layout(
        &mut self,
        asked: &Unwind,
        open: impl Fn(&FileAt) -> Option<File>,
    ) -> Option<Result<Layout, String>> {
        if self.files.len() > FILES_MAX {
            self.files.clear();
        }
        let files = asked.map.iter().filter_map(|mapped| mapped.code.file());
        for file in files.filter(|file| may_be_v8(&file.path.0)) {
            if !self.files.contains_key(&file.id) {
                // Through another process it may be opened later.
                let Some(opened) = open(file) else { continue };
                self.files.insert(file.id.clone(), program::of_file(&opened));
            }
            if let Some(Some(found)) = self.files.get(&file.id) {
                return Some(found.clone());
            }
        }
        None
    }

    /// Puts functions in the place of native frames, in all stacks of one question. `words` are
    /// those of the frames of each stack. Returns the functions, and the code that compilers have
    /// made of them.
    pub fn name(
        &mut self,
        (pid, space): (u32, u32),
        (layout, memory): (&Layout, &LiveMemory),
        words: &[Vec<FrameWords>],
        stacks: &mut [UnwoundStack],
    ) -> (Vec<RuntimeFunction>, Vec<RuntimeCode>) {
        self.functions.begin();
        let heap = Heap::new(memory, layout);
        let maps = || handles::candidates(&procfs::maps(pid).unwrap_or_default());
        for (stack, words) in stacks.iter_mut().zip(words) {
            for frame in words {
                let address = stack.addresses.get(frame.depth as usize).copied().unwrap_or(0);
                if let Some(frames) = self.functions.frame(space, (frame, address), &heap, maps) {
                    stack.runs.push(RuntimeRun { depth: frame.depth, frames, is_part: false });
                }
            }
        }
        (self.functions.take_answer(), self.functions.take_codes())
    }
}

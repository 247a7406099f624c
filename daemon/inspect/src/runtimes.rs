//! Runtimes whose functions have names in call stacks: what an inspector knows of them, and the
//! frames of a stack that are theirs.
//!
//! A runtime's frames are in one of four places:
//!
//! - **In the heap**, as CPython's, Ruby's, PHP's and Perl's: the sampler follows the list from the
//!   thread on, and [`python`](super::python) or [`lists`](super::lists) merges it with the native
//!   frames.
//! - **In lists** that a native frame of the interpreter's loop leads to, as Lua's: when the
//!   sampler's walk comes to that native frame, it copies the list ([`abi::ListLayout`]), and
//!   [`lists`](super::lists) replaces the native frame by the functions of the list.
//! - **On the stack**, kept by a frame pointer: a native frame is the function's. The sampler's
//!   walk copies some words of each such frame in passing ([`abi::FrameLayout`] says which). Where
//!   an inspector has walked the stack, the words are read from the copy of the stack here
//!   ([`frame_words`](super::frame_words)); an object that one of them points to is read from the
//!   process's memory, later than the sample (`is_late`).
//! - **On stacks of the runtime's own**, as Erlang's: the sampler's walk goes there and back
//!   ([`abi::ErlangLayout`]). The frames' addresses alone tell their functions
//!   ([`erlang`](super::erlang)).
//!
//! LuaJIT's are in lists that its interpreter's frame leads to, and within traces
//! ([`luajit`]). .NET's are native frames whose addresses tell their methods ([`dotnet`]).

use super::dotnet::{self, DotNets, may_be_dotnet};
use super::erlang::{Erlangs, may_be_erlang};
use super::frame_words::FrameWords;
use super::hotspot::{self, HotSpots, may_be_hotspot};
use super::lists::{Lists, may_be_listed};
use super::luajit::{self, LuaJits, may_be_luajit};
use super::python::{LiveMemory, Pythons, may_be_python};
use super::questions::{FileAt, RuntimeFound, SampledStack, ToWalk, Unwind, Unwound, UnwoundStack};
use super::v8::layouts::Layout;
use super::v8::{V8s, may_be_v8};
use abi::{FrameLayout, PythonFrame, RuntimeLayout};
use std::fs::File;
use std::rc::Rc;
use unwind::{End, Frame, FrameRule, GeneratedFrame};

/// Whether a file of this path may have a runtime that is known.
pub fn may_be_runtime(path: &[u8]) -> bool {
    may_be_python(path)
        || may_be_v8(path)
        || names_its_code(path)
        || may_be_listed(path)
        || may_be_luajit(path)
}

/// Whether a file of this path may have a runtime whose own tables name the code that it generates.
pub fn names_its_code(path: &[u8]) -> bool {
    needs_words(path) || may_be_dotnet(path)
}

/// Whether a file of this path may have such a runtime of whose frames the sampler notes words.
pub fn needs_words(path: &[u8]) -> bool {
    may_be_hotspot(path) || may_be_erlang(path)
}

/// Whether a file of this path may have a runtime that has tables of its generated code's frames.
pub fn has_code_tables(path: &[u8]) -> bool {
    may_be_hotspot(path) || may_be_luajit(path) || may_be_dotnet(path)
}

/// Known runtimes.
#[derive(Default)]
pub struct Runtimes {
    pythons: Pythons,
    v8s: V8s,
    hotspots: HotSpots,
    lists: Lists,
    luajits: LuaJits,
    erlangs: Erlangs,
    dotnets: DotNets,
}

/// A runtime that keeps its frames on the stack.
enum Kept {
    V8(Box<Layout>, LiveMemory),
    HotSpot(Rc<hotspot::Process>, LiveMemory),
}

impl Kept {
    fn frames(&self) -> FrameLayout {
        match self {
            Self::V8(layout, _) => layout.sampler,
            Self::HotSpot(process, _) => process.frame_layout(),
        }
    }

    fn memory(&self) -> &LiveMemory {
        let (Self::V8(_, memory) | Self::HotSpot(_, memory)) = self;
        memory
    }
}

/// What knows how frames of generated code are kept.
#[derive(Clone)]
pub enum GeneratedCode {
    /// HotSpot's tables of code.
    HotSpot(Rc<hotspot::Process>),
    /// LuaJIT's traces.
    LuaJit(Rc<luajit::Process>),
    /// .NET's tables of code.
    DotNet(Rc<dotnet::Process>),
}

impl GeneratedCode {
    /// How the frame at an address is kept.
    pub fn frame_at(&self, address: u64, is_exact: bool) -> Option<GeneratedFrame> {
        match self {
            Self::HotSpot(process) => process.frame_at(address, is_exact),
            Self::LuaJit(process) => process.frame_at(address, is_exact),
            Self::DotNet(process) => process.frame_at(address, is_exact),
        }
    }

    /// The rules of a block, if they are known of all of it.
    pub fn block(&self, begin: u64) -> Option<Vec<(u16, FrameRule)>> {
        match self {
            Self::HotSpot(process) => process.block(begin),
            Self::LuaJit(process) => process.block(begin),
            Self::DotNet(process) => process.block(begin),
        }
    }
}

/// What the stacks of one question have of frames that lie on the stack.
#[derive(Default)]
pub struct StackNotes {
    /// None: the process has no such runtime.
    of: Option<Kept>,
    /// Of a runtime whose frames need no words of the stack.
    code: Option<GeneratedCode>,
    /// Why the process's runtime is of no use.
    refused: Option<String>,
    /// Of each stack, the words of its frames, innermost first.
    words: Vec<Vec<FrameWords>>,
}

impl StackNotes {
    /// What knows how frames of generated code are kept.
    pub fn generated(&self) -> Option<GeneratedCode> {
        match &self.of {
            Some(Kept::HotSpot(process, _)) => Some(GeneratedCode::HotSpot(process.clone())),
            Some(Kept::V8(..)) => None,
            None => self.code.clone(),
        }
    }

    /// Notes the words of a stack's frames: those that the sampler has copied, and others from the
    /// copy of the stack. `frames` are those that were walked here, the first of them has number
    /// `first` in `walked`.
    pub fn note(
        &mut self,
        stack: &SampledStack,
        copy: &[u8],
        (first, frames): (usize, &[Frame]),
        walked: &UnwoundStack,
    ) {
        let Some(kept) = &self.of else { return };
        let (layout, memory) = (kept.frames(), kept.memory());
        let agree = walked.addresses.iter().zip(&stack.walked).take_while(|(a, b)| a == b).count();
        let by_sampler = match stack.to_walk {
            ToWalk::Nothing(_) => agree,
            // The sampler's walk ended in its last frame.
            _ => agree.min(stack.walked.len().saturating_sub(1)),
        };
        let noted = stack.noted.iter().filter(|(depth, _)| (*depth as usize) < by_sampler);
        let mut words: Vec<FrameWords> = noted
            .map(|(depth, words)| FrameWords { depth: *depth, words: *words, is_late: false })
            .collect();
        for (frame, depth) in frames.iter().zip(first..).filter(|(_, at)| *at >= by_sampler) {
            let Ok(depth) = u32::try_from(depth) else { continue };
            let copy = (stack.begin, copy);
            words.extend(FrameWords::read(depth, frame, &layout, copy, memory));
        }
        self.words.push(words);
    }
}

impl Runtimes {
    /// Prepares for the stacks of a process. `open` opens a file of the process.
    pub fn begin(&mut self, asked: &Unwind, open: impl Fn(&FileAt) -> Option<File>) -> StackNotes {
        let mut notes = StackNotes::default();
        let memory = || LiveMemory::of(asked.pid);
        let v8 = self.v8s.layout(asked, &open);
        let v8 = v8.map(|found| found.map(|layout| Kept::V8(Box::new(layout), memory())));
        let mut hotspot = || self.hotspots.process(asked, &open);
        let hotspot = || Some(hotspot()?.map(|process| Kept::HotSpot(process, memory())));
        match v8.or_else(hotspot) {
            Some(Ok(kept)) => notes.of = Some(kept),
            Some(Err(why)) => notes.refused = Some(why),
            None => {
                let luajit = self.luajits.process(asked, &open);
                let luajit = luajit.map(|found| found.map(GeneratedCode::LuaJit));
                let mut dotnet = || self.dotnets.process(asked, &open);
                let dotnet = || Some(dotnet()?.map(GeneratedCode::DotNet));
                match luajit.or_else(dotnet) {
                    Some(Ok(code)) => notes.code = Some(code),
                    Some(Err(why)) => notes.refused = Some(why),
                    None => {}
                }
            }
        }
        notes
    }

    /// Puts functions in the place of native frames, and adds where frames are, if that was asked.
    pub fn name(
        &mut self,
        asked: &Unwind,
        notes: StackNotes,
        unwound: &mut Unwound,
        open: impl Fn(&FileAt) -> Option<File>,
    ) {
        match &notes.code {
            Some(GeneratedCode::LuaJit(process)) => {
                return self.luajits.name(asked, process, unwound);
            }
            Some(GeneratedCode::DotNet(process)) => {
                return self.dotnets.name(asked, process, unwound);
            }
            Some(GeneratedCode::HotSpot(_)) | None => {}
        }
        let Some(kept) = notes.of else {
            if !self.erlangs.name(asked, unwound, &open) {
                self.name_listed(asked, unwound, open);
            }
            if let Some(why) = notes.refused
                && unwound.runtime == RuntimeFound::Nowhere
            {
                unwound.runtime = RuntimeFound::Refused(why);
            }
            return;
        };
        if asked.looks_for_runtime {
            let frames = kept.frames();
            unwound.runtime = RuntimeFound::Layout(RuntimeLayout { frames, ..Default::default() });
        }
        let (words, stacks) = (&notes.words, &mut unwound.stacks);
        (unwound.functions, unwound.codes) = match &kept {
            Kept::V8(layout, memory) => {
                let process = (asked.pid, asked.space);
                self.v8s.name(process, (layout, memory), words, stacks)
            }
            Kept::HotSpot(process, _) => self.hotspots.name(asked, process, words, stacks),
        };
    }

    fn name_listed(
        &mut self,
        asked: &Unwind,
        unwound: &mut Unwound,
        open: impl Fn(&FileAt) -> Option<File>,
    ) {
        let has = |stack: &SampledStack| !stack.python.is_empty() || !stack.noted.is_empty();
        let has_frames = asked.stacks.iter().any(has);
        if !has_frames && !asked.looks_for_runtime {
            return;
        }
        let Some(mut reading) = self.pythons.reading(asked, &open) else {
            self.lists.name(asked, unwound, open);
            return;
        };
        if asked.looks_for_runtime {
            unwound.runtime = reading.look();
        }
        let frame =
            |&[code, instruction, flags]: &[u64; 3]| PythonFrame { code, instruction, flags };
        for (stack, walked) in asked.stacks.iter().zip(&mut unwound.stacks) {
            if !stack.python.is_empty() {
                let frames: Vec<PythonFrame> = stack.python.iter().map(frame).collect();
                reading.merge(&frames, walked, is_whole(walked));
            }
        }
        unwound.functions = reading.into_functions();
    }
}

fn is_whole(stack: &UnwoundStack) -> bool {
    End::ALL.get(usize::from(stack.end)) == Some(&End::Whole)
}

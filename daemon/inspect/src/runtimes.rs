//! Runtimes whose functions have names in call stacks: what an inspector knows of them, and the
//! frames of a stack that are theirs.
//!
//! A runtime's frames are in one of two places:
//!
//! - **In the heap**, as CPython's: the sampler follows the list from the thread on, and
//!   [`python`](super::python) merges it with the native frames.
//! - **On the stack**, kept by a frame pointer: a native frame is the function's. The sampler's
//!   walk copies some words of each such frame in passing ([`abi::FrameLayout`] says which). Where
//!   an inspector has walked the stack, the words are read from the copy of the stack here
//!   ([`frame_words`](super::frame_words)); an object that one of them points to is read from the
//!   process's memory, later than the sample (`is_late`).

use super::frame_words::FrameWords;
use super::python::{LiveMemory, Pythons, may_be_python};
use super::questions::{FileAt, RuntimeFound, SampledStack, ToWalk, Unwind, Unwound, UnwoundStack};
use super::v8::layouts::Layout;
use super::v8::{V8s, may_be_v8};
use abi::{PythonFrame, RuntimeLayout};
use std::fs::File;
use unwind::{End, Frame};

/// Whether a file of this path may have a runtime that is known.
pub fn may_be_runtime(path: &[u8]) -> bool {
    may_be_python(path) || may_be_v8(path)
}

/// Known runtimes.
#[derive(Default)]
pub struct Runtimes {
    pythons: Pythons,
    v8s: V8s,
}

/// What the stacks of one question have of frames that lie on the stack.
#[derive(Default)]
pub struct StackNotes {
    /// None: the process has no such runtime.
    of: Option<(Layout, LiveMemory)>,
    /// Why the process's runtime is of no use.
    refused: Option<String>,
    /// Of each stack, the words of its frames, innermost first.
    words: Vec<Vec<FrameWords>>,
}

impl StackNotes {
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
        let Some((layout, memory)) = &self.of else { return };
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
            words.extend(FrameWords::read(depth, frame, &layout.sampler, copy, memory));
        }
        self.words.push(words);
    }
}

impl Runtimes {
    /// Prepares for the stacks of a process. `open` opens a file of the process.
    pub fn begin(&mut self, asked: &Unwind, open: impl Fn(&FileAt) -> Option<File>) -> StackNotes {
        let mut notes = StackNotes::default();
        match self.v8s.layout(asked, open) {
            Some(Ok(layout)) => notes.of = Some((layout, LiveMemory::of(asked.pid))),
            Some(Err(why)) => notes.refused = Some(why),
            None => {}
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
        let Some((layout, memory)) = notes.of else {
            self.name_python(asked, unwound, open);
            if let Some(why) = notes.refused
                && unwound.runtime == RuntimeFound::Nowhere
            {
                unwound.runtime = RuntimeFound::Refused(why);
            }
            return;
        };
        if asked.looks_for_runtime {
            let frames = layout.sampler;
            unwound.runtime = RuntimeFound::Layout(RuntimeLayout { frames, ..Default::default() });
        }
        let (words, stacks) = (&notes.words, &mut unwound.stacks);
        (unwound.functions, unwound.codes) =
            self.v8s.name((asked.pid, asked.space), (&layout, &memory), words, stacks);
    }

    fn name_python(
        &mut self,
        asked: &Unwind,
        unwound: &mut Unwound,
        open: impl Fn(&FileAt) -> Option<File>,
    ) {
        let has_python = asked.stacks.iter().any(|stack| !stack.python.is_empty());
        if !has_python && !asked.looks_for_runtime {
            return;
        }
        let Some(mut reading) = self.pythons.reading(asked, open) else { return };
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

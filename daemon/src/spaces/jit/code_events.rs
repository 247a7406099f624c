//! What a process tells of its generated code, as a recording has it.

use super::files::CodeSink;
use crate::spaces::system::CodeEvent;
use image::jit::{Code, CodeMap};

/// Code that a process tells of, and where a recording is made, the list of it.
pub struct Heard<'a> {
    /// What is known of its code.
    pub code: &'a mut CodeMap,
    /// What it told, for the recording.
    pub events: Option<&'a mut Vec<CodeEvent>>,
}

impl Heard<'_> {
    fn keep(&mut self, event: impl FnOnce() -> CodeEvent) {
        if let Some(events) = &mut self.events {
            events.push(event());
        }
    }
}

impl CodeSink for Heard<'_> {
    fn clear(&mut self) {
        self.code.clear();
        self.keep(|| CodeEvent::Clear);
    }

    fn load(&mut self, code: &Code<'_>) {
        self.code.insert(code);
        self.keep(|| CodeEvent::Load(code.start, code.size, code.name.to_string()));
    }

    fn relocate(&mut self, from: u64, to: u64) {
        self.code.relocate(from, to);
        self.keep(|| CodeEvent::Move(from, to));
    }
}

/// Takes in what a recording tells of code.
pub fn apply(event: &CodeEvent, code: &mut CodeMap) {
    match event {
        CodeEvent::Clear => code.clear(),
        CodeEvent::Load(start, size, name) => {
            if let Some(told) = Code::new(*start, u64::from(*size), name.as_bytes()) {
                code.insert(&told);
            }
        }
        CodeEvent::Move(from, to) => code.relocate(*from, *to),
    }
}

//! Events of generated code, as a process reports them.

use super::files::CodeSink;
use image::jit::{Code, CodeMap};
use serde::{Deserialize, Serialize};

/// A line of what a process says about its generated code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CodeEvent {
    /// The file was rewritten; everything read from it before is forgotten.
    Clear,
    /// Code at an address: first byte, bytes, name.
    Load(u64, u32, String),
    /// Code moved from one address to another.
    Move(u64, u64),
    /// Code whose time is known: CLOCK_MONOTONIC ns, first byte, bytes, name.
    LoadAt(u64, u64, u32, String),
}

/// One look at what a process says about its generated code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeLook {
    /// The new entries.
    pub events: Vec<CodeEvent>,
    /// Why a file was not believed.
    pub refused: Option<String>,
    /// Bytes that were read.
    pub bytes: u64,
    /// There is more than what may be read.
    pub is_cut: bool,
}

impl CodeSink for Vec<CodeEvent> {
    fn clear(&mut self) {
        Vec::clear(self);
        self.push(CodeEvent::Clear);
    }

    fn load(&mut self, code: &Code<'_>) {
        let name = code.name.to_string();
        self.push(match code.made_ns {
            0 => CodeEvent::Load(code.start, code.size, name),
            made_ns => CodeEvent::LoadAt(made_ns, code.start, code.size, name),
        });
    }

    fn relocate(&mut self, from: u64, to: u64) {
        self.push(CodeEvent::Move(from, to));
    }
}

/// Takes in what a process says about its code.
pub fn apply(event: &CodeEvent, code: &mut CodeMap) {
    match event {
        CodeEvent::Clear => code.clear(),
        CodeEvent::Load(start, size, name) | CodeEvent::LoadAt(_, start, size, name) => {
            if let Some(told) = Code::new(*start, u64::from(*size), name.as_bytes()) {
                code.insert(&told);
            }
        }
        CodeEvent::Move(from, to) => code.relocate(*from, *to),
    }
}

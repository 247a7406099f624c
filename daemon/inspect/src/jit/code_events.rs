//! Events of generated code, as a process reports them.

use super::files::CodeSink;
use image::jit::{Code, CodeMap, DumpPlace};
use serde::{Deserialize, Serialize};
use std::ops::Range;

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
    /// Code whose bytes a jitdump has: their place as [`DumpPlace::word`], then as
    /// [`Self::LoadAt`], with time 0 where the dump does not say.
    Dumped(u64, u64, u64, u32, String),
}

impl CodeEvent {
    /// When code was made, CLOCK_MONOTONIC ns, and where it is. None unless it is code whose time
    /// is known.
    pub fn made(&self) -> Option<(u64, Range<u64>)> {
        let (made_ns, start, size) = match self {
            Self::LoadAt(made_ns, start, size, _) => (*made_ns, *start, *size),
            Self::Dumped(_, made_ns, start, size, _) if *made_ns > 0 => (*made_ns, *start, *size),
            Self::Dumped(..) | Self::Load(..) | Self::Clear | Self::Move(..) => return None,
        };
        Some((made_ns, start..start.saturating_add(u64::from(size))))
    }
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
        self.push(match (code.bytes, code.made_ns) {
            (Some(place), made_ns) => {
                CodeEvent::Dumped(place.word(), made_ns, code.start, code.size, name)
            }
            (None, 0) => CodeEvent::Load(code.start, code.size, name),
            (None, made_ns) => CodeEvent::LoadAt(made_ns, code.start, code.size, name),
        });
    }

    fn relocate(&mut self, from: u64, to: u64) {
        self.push(CodeEvent::Move(from, to));
    }
}

/// Takes in what a process says about its code.
pub fn apply(event: &CodeEvent, code: &mut CodeMap) {
    let mut load = |start: u64, size: u32, name: &str, bytes: Option<DumpPlace>| {
        if let Some(told) = Code::new(start, u64::from(size), name.as_bytes()) {
            code.insert(&Code { bytes, ..told });
        }
    };
    match event {
        CodeEvent::Clear => code.clear(),
        CodeEvent::Load(start, size, name) | CodeEvent::LoadAt(_, start, size, name) => {
            load(*start, *size, name, None);
        }
        CodeEvent::Dumped(place, _, start, size, name) => {
            load(*start, *size, name, DumpPlace::of_word(*place));
        }
        CodeEvent::Move(from, to) => code.relocate(*from, *to),
    }
}

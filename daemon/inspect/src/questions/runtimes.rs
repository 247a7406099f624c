//! Functions that runtimes run, as inspectors tell them.

use abi::{FrameLayout, PythonLayout, RUNTIME_WORDS, RuntimeLayout};
use model::Language;
use serde::{Deserialize, Serialize};

/// A function that a runtime runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuntimeFunction {
    /// The language of its runtime.
    #[serde(default)]
    pub language: Language,
    /// Its file, as it was reported to the compiler.
    pub file: String,
    /// Its name, with its class where the runtime has that.
    pub name: String,
    /// Its first line.
    pub first_line: u32,
}

/// Generated code of one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeCode {
    /// Address of its first byte.
    pub start: u64,
    /// Bytes.
    pub size: u32,
    /// Number of the function in [`super::Unwound::functions`].
    pub function: u32,
}

/// Frames of functions that stand in the place of a native frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuntimeRun {
    /// Place of the native frame in [`super::UnwoundStack::addresses`].
    pub depth: u32,
    /// For each frame, innermost first: the number of its function in
    /// [`super::Unwound::functions`], and its line. None: unreadable.
    pub frames: Vec<Option<(u32, u32)>>,
    /// The native frame ran further ones, and stays.
    pub is_part: bool,
}

/// The frames of a process's runtimes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RuntimeFound {
    /// Nowhere: it has no runtime that is known.
    #[default]
    Nowhere,
    /// The runtime does not run yet, or its threads cannot be read.
    NotYet,
    /// Its runtime is of no use, for this reason.
    Refused(String),
    /// The layout by which the sampler finds them.
    Layout(#[serde(with = "LayoutsFields")] RuntimeLayout),
}

/// The fields of a [`RuntimeLayout`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "RuntimeLayout")]
struct LayoutsFields {
    #[serde(with = "LayoutFields")]
    python: PythonLayout,
    #[serde(with = "FrameFields")]
    frames: FrameLayout,
}

/// The fields of a [`FrameLayout`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "FrameLayout")]
struct FrameFields {
    block_at: i16,
    block_bytes: u16,
    object_at: i16,
    object_bytes: u16,
    object: u8,
    tag: u8,
    tag_mask: u8,
    tag_bits: u8,
    words: [u8; RUNTIME_WORDS],
}

/// The fields of a [`PythonLayout`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "PythonLayout")]
struct LayoutFields {
    root: u64,
    state_at: i32,
    id_at: u16,
    frame_at: u16,
    current_at: u16,
    block_at: u16,
    block_bytes: u16,
    code_at: u16,
    previous_at: u16,
    instruction_at: u16,
    flags_at: u16,
    step: u16,
}

//! Functions that runtimes run, as inspectors tell them.

use abi::{
    AttributeLayout, ContextLayout, ERLANG_AREAS_MAX, ErlangArea, ErlangLayout, FrameLayout,
    ListLayout, LuaJitLayout, PythonLayout, RUNTIME_WORDS, RuntimeLayout,
};
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
    /// [`super::Unwound::functions`], and its line. None: unreadable. Without any, at depth 0: the
    /// native frame, which stays, is that of an operation of the loop that called it.
    pub frames: Vec<Option<(u32, u32)>>,
    /// The native frame ran further ones, and stays.
    pub is_part: bool,
}

/// The frames of a process's runtimes.
#[expect(clippy::large_enum_variant, reason = "one in an answer, seldom")]
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

/// Where threads of a process have the attributes that its program sets for them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttributesFound {
    /// The layout by which the sampler finds them.
    #[serde(with = "AttributeFields")]
    pub layout: AttributeLayout,
    /// Of OpenTelemetry's records: names of the keys by number, at most 256.
    pub keys: Vec<String>,
}

/// The fields of an [`AttributeLayout`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "AttributeLayout")]
struct AttributeFields {
    kind: u32,
    thread_at: i32,
    module: u32,
    m_at: u16,
    current_at: u16,
    labels_at: u16,
    module_bytes: u16,
    reserved: u32,
}

/// The fields of a [`RuntimeLayout`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "RuntimeLayout")]
struct LayoutsFields {
    #[serde(with = "LayoutFields")]
    python: PythonLayout,
    #[serde(with = "FrameFields")]
    frames: FrameLayout,
    #[serde(with = "ListFields")]
    list: ListLayout,
    #[serde(with = "ContextFields")]
    contexts: ContextLayout,
    #[serde(with = "ErlangFields")]
    erlang: ErlangLayout,
    #[serde(with = "AttributeFields")]
    attributes: AttributeLayout,
    #[serde(with = "LuaJitFields")]
    luajit: LuaJitLayout,
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

/// The fields of a [`ListLayout`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "ListLayout")]
struct ListFields {
    loop_at: u64,
    loop_bytes: u32,
    tag: u8,
    tag_at: u8,
    saved_at: u8,
    code_at: u8,
    entry_at: u16,
    first_at: u16,
    entry_bytes: u16,
    function_at: u16,
    previous_at: u16,
    instruction_at: u16,
    flags_at: u16,
    step: u16,
}

/// The fields of a [`ContextLayout`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "ContextLayout")]
struct ContextFields {
    base: u64,
    info_at: u32,
    place_at: u32,
    row_at: u16,
    last_at: u16,
    previous_at: u16,
    entry_bytes: u16,
    caller_at: u16,
    return_at: u16,
    sub_at: u16,
    eval_at: u16,
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
    table_at: u16,
    reserved: [u16; 3],
}

/// The fields of an [`ErlangLayout`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "ErlangLayout")]
struct ErlangFields {
    #[serde(with = "areas")]
    areas: [ErlangArea; ERLANG_AREAS_MAX],
    loop_at: u64,
    loop_bytes: u32,
    scheduler_at: i32,
    exit_at: u64,
    process_at: u16,
    stack_at: u16,
    reserved: u32,
}

/// The fields of a [`LuaJitLayout`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "LuaJitLayout")]
struct LuaJitFields {
    vm_at: u64,
    vm_bytes: u32,
    jit_base_at: u32,
}

/// Areas as pairs of their begin and length.
mod areas {
    use super::{ERLANG_AREAS_MAX, ErlangArea};
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    type Areas = [ErlangArea; ERLANG_AREAS_MAX];

    pub fn serialize<S: Serializer>(areas: &Areas, to: S) -> Result<S::Ok, S::Error> {
        areas.map(|area| (area.start, area.len)).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Areas, D::Error> {
        let pairs = <[(u64, u64); ERLANG_AREAS_MAX]>::deserialize(from)?;
        Ok(pairs.map(|(start, len)| ErlangArea { start, len }))
    }
}

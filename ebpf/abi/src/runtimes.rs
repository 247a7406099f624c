//! Frames of functions that a runtime runs: where they lie on the thread's stack, in lists that
//! this leads to, or on stacks of the runtime's own.

use crate::{AttributeLayout, PythonLayout};
use core::mem::{offset_of, size_of};

/// Processes in the map `RUNTIMES`: frames of runtimes are copied in these.
pub const RUNTIME_PROCESSES_MAX: usize = 1024;
/// Most frames of a stack whose words are noted: each takes about 0.1 us, and stacks of servers
/// have 10 to 60 of them.
pub const RUNTIME_FRAMES_MAX: usize = 128;
/// Most bytes of each of a frame's two blocks that are read.
pub const RUNTIME_BLOCK_BYTES: usize = 64;
/// Words of a frame that are copied.
pub const RUNTIME_WORDS: usize = 4;

/// Most bytes of an entry of a list that are read.
pub const LIST_ENTRY_BYTES: usize = 2 * RUNTIME_BLOCK_BYTES;
/// [`RuntimeFrame::number`] of an entry of a list.
pub const LIST_ENTRY: u32 = 1 << 31;

/// Bit in the noted header of a LuaJIT function: C code called the function, by a callback of
/// LuaJIT's foreign function interface (FFI).
pub const LUA_CALLBACK: u64 = 1 << 32;

/// Contexts and stacks of an interpreter's that are looked at in a sample.
pub const CONTEXTS_MAX: usize = 160;
/// Bit of the flags of a copied context: it has no operation to return to.
pub const CONTEXT_BEGINS: u64 = 1 << 8;
/// Likewise: it is the first of its row.
pub const CONTEXT_FIRST: u64 = 1 << 9;
/// Likewise: its code is the function, which has its name; otherwise it is the name's variable.
pub const CONTEXT_NAMED: u64 = 1 << 10;
/// From this bit on, the flags of a call have the address of the function's first operation.
pub const CONTEXT_START_SHIFT: u32 = 16;

/// The words of a frame that tell its function. The sampler reads two blocks of each frame that
/// its walk leaves by the frame pointer: words 0 to 7 are from the stack, and 8 to 15 from an
/// object that one of these points to.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameLayout {
    /// From the frame pointer to the block on the stack, in bytes.
    pub block_at: i16,
    /// Length of that block, at most [`RUNTIME_BLOCK_BYTES`]; 0: the process has no such frames.
    pub block_bytes: u16,
    /// From the address in the word `object` to the block there, in bytes.
    pub object_at: i16,
    /// Length of that block, at most [`RUNTIME_BLOCK_BYTES`]; 0: there is none.
    pub object_bytes: u16,
    /// Word of the first block that points to the object.
    pub object: u8,
    /// Word of the first block that tells frames of interest from others.
    pub tag: u8,
    /// The bits of that word that are compared.
    pub tag_mask: u8,
    /// Their value in frames of interest.
    pub tag_bits: u8,
    /// The words that are copied.
    pub words: [u8; RUNTIME_WORDS],
}

/// Where a list of frames is that the native frame of an interpreter's loop leads to: a *state* is
/// among the registers that the loop saves, and has a list of *entries*. Offsets are in bytes;
/// fields of an entry are words at multiples of 8.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListLayout {
    /// Address of the loop's code in the process.
    pub loop_at: u64,
    /// Its length; 0: the process has no such frames.
    pub loop_bytes: u32,
    /// The byte that tells a state from other objects.
    pub tag: u8,
    /// In a state: that byte.
    pub tag_at: u8,
    /// In a state: a word that is copied.
    pub saved_at: u8,
    /// In a function: the address of its code, which is copied.
    pub code_at: u8,
    /// In a state: the address of the innermost entry.
    pub entry_at: u16,
    /// In a state: the address where entries in a row begin; that entry is not copied.
    pub first_at: u16,
    /// Bytes of an entry that are read, at most [`LIST_ENTRY_BYTES`].
    pub entry_bytes: u16,
    /// In an entry: where the address of the function is, and behind it a tag, which is copied.
    pub function_at: u16,
    /// In an entry: the address of its caller's entry.
    pub previous_at: u16,
    /// In an entry: the instruction.
    pub instruction_at: u16,
    /// In an entry: the word with its flags.
    pub flags_at: u16,
    /// From an entry down to its caller's; 0: entries have links.
    pub step: u16,
}

/// Where an interpreter has its calls among other contexts: each of its *stacks* has a row of
/// contexts and the address of the stack before. Offsets are in bytes; fields of a context are
/// words at multiples of 8 below [`PYTHON_BLOCK_MAX`](crate::PYTHON_BLOCK_MAX).
///
/// The contexts are copied as [`PythonFrame`](crate::PythonFrame)s, innermost first: what tells the
/// function's name, or the evaluated code; the caller's place; in the low byte of the flags the
/// kind, and above it [`CONTEXT_BEGINS`] and so on. Before them is one with the interpreter, its
/// place, and as flags whether all contexts were looked at.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextLayout {
    /// Address that `info_at` and `place_at` are counted from; 0: it is the thread's state that
    /// [`PythonLayout`] leads to.
    pub base: u64,
    /// The address of the current stack.
    pub info_at: u32,
    /// The place that is executed.
    pub place_at: u32,
    /// In a stack: the address of its row.
    pub row_at: u16,
    /// In a stack: the number of the innermost context, 32 bits, -1 where there is none.
    pub last_at: u16,
    /// In a stack: the address of the stack before.
    pub previous_at: u16,
    /// Length of a context; 0: the process has none.
    pub entry_bytes: u16,
    /// In a context: the caller's place.
    pub caller_at: u16,
    /// Offset in a context of the address of the operation that the call returns to.
    pub return_at: u16,
    /// In a context of a call: the function.
    pub sub_at: u16,
    /// In a context of an evaluation: the evaluated code.
    pub eval_at: u16,
}

/// Most areas of generated code of a process that the sampler knows.
pub const ERLANG_AREAS_MAX: usize = 4;
/// Words of a stack of Erlang's that a step of a walk looks at at once.
pub const ERLANG_BLOCK_WORDS: usize = 2 * RUNTIME_BLOCK_BYTES / 8;
/// Most such blocks in one walk: a frame takes one, or one for each 16 words. 2,048 take 0.2 ms.
pub const ERLANG_BLOCKS_MAX: usize = 2048;

/// Addresses of generated code.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErlangArea {
    /// The first one.
    pub start: u64,
    /// Bytes.
    pub len: u64,
}

/// Where Erlang's virtual machine (BEAM) has generated code, and the stack of the process of
/// Erlang's that a thread runs. Generated code has a return address and words with tags in each
/// frame, without a frame pointer or a size: the next word that is the address of generated code is
/// the return address. C code runs on the thread's own stack.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErlangLayout {
    /// Areas of generated code; those that are not used have no bytes. Without any the process has
    /// no such frames.
    pub areas: [ErlangArea; ERLANG_AREAS_MAX],
    /// Address of the scheduler's loop, generated code that runs on the thread's own stack.
    pub loop_at: u64,
    /// Its length in bytes.
    pub loop_bytes: u32,
    /// From the thread's pointer (`%fs`) to the word with the address of the scheduler. The first
    /// word of the scheduler is the stack pointer with which generated code calls C.
    pub scheduler_at: i32,
    /// The return address of the first function of a process of Erlang's.
    pub exit_at: u64,
    /// In a scheduler: the process of Erlang's that it runs.
    pub process_at: u16,
    /// In a process of Erlang's: the stack pointer of its code, while C code runs.
    pub stack_at: u16,
    /// Fills up.
    pub reserved: u32,
}

/// Where LuaJIT has its interpreter, and what tells where a trace began. What else the sampler
/// reads of LuaJIT is at the same place in all builds whose references have 64 bits (`LJ_GC64`),
/// and written in `ebpf/src/luajit.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LuaJitLayout {
    /// Address of the interpreter's code in the process.
    pub vm_at: u64,
    /// Its length; 0: the process has no LuaJIT.
    pub vm_bytes: u32,
    /// In the global state: the base of the function that a trace runs in (`jit_base`).
    pub jit_base_at: u32,
}

/// Where a process has frames of functions that its runtimes run, and attributes of its threads.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuntimeLayout {
    /// Of frames in the heap.
    pub python: PythonLayout,
    /// Of frames on the stack.
    pub frames: FrameLayout,
    /// Of frames in lists that frames on the stack lead to.
    pub list: ListLayout,
    /// Of calls among other contexts.
    pub contexts: ContextLayout,
    /// Of Erlang's stacks.
    pub erlang: ErlangLayout,
    /// Of attributes of threads.
    pub attributes: AttributeLayout,
    /// Of LuaJIT's calls.
    pub luajit: LuaJitLayout,
}

/// Words of a frame that the sampler has walked. Of a frame that [`ListLayout`] is about these are
/// the address of a state that it may be of, and the word at [`ListLayout::saved_at`]. Entries of
/// the state's list follow, unless they are noted already: the function's code, the function's tag,
/// the instruction, the flags.
///
/// Of frames of LuaJIT's interpreter and of traces the words are the state, where its Lua stack
/// begins, the saved instruction, and in the lower half of the last word the number of results.
/// For an entry of LuaJIT's list the four words are: the address of the function's bytecode, the
/// function's header word, the frame's link word, and the base of the frame on the Lua stack. If
/// the link is that of a continuation, the fourth word is the caller's instruction instead, and if
/// C code called the function, [`LUA_CALLBACK`] is set in the header.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuntimeFrame {
    /// Number of the frame; 0 is the innermost. [`LIST_ENTRY`]: it is an entry.
    pub number: u32,
    /// Fills up.
    pub reserved: u32,
    /// The words, as [`FrameLayout::words`] names them.
    pub words: [u64; RUNTIME_WORDS],
}

const _: () = {
    assert!(size_of::<FrameLayout>() == 16 && offset_of!(FrameLayout, words) == 12);
    assert!(size_of::<ListLayout>() == 32 && offset_of!(ListLayout, step) == 30);
    assert!(size_of::<RuntimeLayout>() == 256 && offset_of!(RuntimeLayout, frames) == 40);
    assert!(offset_of!(RuntimeLayout, list) == 56 && offset_of!(RuntimeLayout, contexts) == 88);
    assert!(size_of::<ErlangLayout>() == 96 && offset_of!(RuntimeLayout, erlang) == 120);
    assert!(offset_of!(RuntimeLayout, attributes) == 216);
    assert!(offset_of!(ErlangLayout, exit_at) == 80 && offset_of!(ErlangLayout, stack_at) == 90);
    assert!(size_of::<LuaJitLayout>() == 16 && offset_of!(RuntimeLayout, luajit) == 240);
    assert!(size_of::<ContextLayout>() == 32 && offset_of!(ContextLayout, eval_at) == 30);
    assert!(size_of::<RuntimeFrame>() == 40 && offset_of!(RuntimeFrame, words) == 8);
};

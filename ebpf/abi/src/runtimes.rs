//! Frames of functions that a runtime runs, where they lie on the thread's stack.

use crate::PythonLayout;
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

/// Where a process has frames of functions that its runtimes run.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuntimeLayout {
    /// Of frames in the heap.
    pub python: PythonLayout,
    /// Of frames on the stack.
    pub frames: FrameLayout,
}

/// Words of a frame that the sampler has walked.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuntimeFrame {
    /// Number of the frame; 0 is the innermost.
    pub number: u32,
    /// Fills up.
    pub reserved: u32,
    /// The words, as [`FrameLayout::words`] names them.
    pub words: [u64; RUNTIME_WORDS],
}

const _: () = {
    assert!(size_of::<FrameLayout>() == 16 && offset_of!(FrameLayout, words) == 12);
    assert!(size_of::<RuntimeLayout>() == 48 && offset_of!(RuntimeLayout, frames) == 32);
    assert!(size_of::<RuntimeFrame>() == 40 && offset_of!(RuntimeFrame, words) == 8);
};

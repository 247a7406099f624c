//! Frames of interpreters (CPython, Ruby, PHP, Perl) that the sampler copies.

use core::mem::{offset_of, size_of};

/// Most frames of CPython that are copied: each takes about 0.25 us, and 99 % of the stacks of
/// large frameworks have fewer.
pub const PYTHON_FRAMES_MAX: usize = 128;
/// Most bytes of one frame of CPython that are read.
pub const PYTHON_BLOCK_MAX: usize = 96;
/// [`PythonLayout::current_at`] where the thread's state has the frame itself,
/// [`PythonLayout::frame_at`] where it is the frame, and [`PythonLayout::id_at`] where it has none.
pub const PYTHON_DIRECT: u16 = u16::MAX;
/// Bit of [`PythonLayout::flags_at`]: the word there is the address of the word.
pub const PYTHON_FLAGS_THERE: u16 = 1 << 15;

/// A frame of an interpreter as the sampler copied it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PythonFrame {
    /// Address of the code object.
    pub code: u64,
    /// The word at [`PythonLayout::instruction_at`].
    pub instruction: u64,
    /// The word at [`PythonLayout::flags_at`].
    pub flags: u64,
}

/// Offsets, in bytes, of the fields of an interpreter that the sampler follows. It reads a block
/// of each frame; fields in the block are words of 8 bytes at multiples of 8.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PythonLayout {
    /// Address of the word with the address of the thread's state; 0: it is in the thread.
    pub root: u64,
    /// From the thread's pointer (`%fs`) to the word with the address of the thread's state.
    pub state_at: i32,
    /// In the thread's state: the thread's pointer. The sampler checks it.
    pub id_at: u16,
    /// In the thread's state: what leads to the innermost frame.
    pub frame_at: u16,
    /// In what that word points to: the innermost frame; [`PYTHON_DIRECT`]: the word points to the
    /// frame.
    pub current_at: u16,
    /// In a frame: the block.
    pub block_at: u16,
    /// Length of the block, at most [`PYTHON_BLOCK_MAX`]; 0: the process has no such frames.
    pub block_bytes: u16,
    /// In the block: the code object.
    pub code_at: u16,
    /// In the block: the frame's caller.
    pub previous_at: u16,
    /// In the block: the instruction.
    pub instruction_at: u16,
    /// In the block: what kind of frame it is.
    pub flags_at: u16,
    /// From a frame to its caller; 0: the frame has a link. Such frames lie in an area whose
    /// address, and length in words, are the first words of the thread's state.
    pub step: u16,
    /// In the thread: the address of the table that `state_at` is an offset in (musl); 0: the word
    /// is in the thread itself.
    pub table_at: u16,
    /// 0.
    pub reserved: [u16; 3],
}

const _: () = {
    assert!(size_of::<PythonFrame>() == 24 && size_of::<PythonLayout>() == 40);
    assert!(offset_of!(PythonLayout, flags_at) == 28 && offset_of!(PythonLayout, table_at) == 32);
};

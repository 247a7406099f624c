//! The caller's knowledge of the process: which code is at which address.

use crate::simple::FrameRule;

/// How code made at run time keeps a frame, by the tables of what made it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct GeneratedFrame {
    /// The way to the caller. [`FrameRule::FramePointer`] holds in the body of a procedure; what
    /// holds in its first and last instructions is told from the code.
    pub rule: FrameRule,
    /// Whether a call has left the return address there. HotSpot's interpreter pushes its own.
    pub follows_call: bool,
}

/// A file that the walker was given.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Image(pub(crate) u32);

/// The code at an address.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Code {
    /// Code of a file.
    File {
        /// Which file.
        image: Image,
        /// Offset in the file of the byte at the address.
        offset: u64,
        /// Whether code here that no table covers is known to keep frame pointers: Go's before
        /// 1.18, and the built-in procedures of V8. If in doubt: no. Nonsense follows where code
        /// does not.
        frame_pointers: bool,
    },
    /// Code made at run time.
    Generated {
        /// Whether this code is known to keep frame pointers: V8's does, HotSpot's does not.
        frame_pointers: bool,
    },
    /// Nothing that is known to be executable.
    None,
}

/// The mapped code of a process.
pub trait Space {
    /// The code at `address`.
    fn code_at(&self, address: u64) -> Code;

    /// Copies code bytes from `address` on into `buffer` and returns their number. Asked for
    /// generated code only; 0 says that the code cannot be looked at.
    fn read_code(&self, address: u64, buffer: &mut [u8]) -> usize {
        let _ = (address, buffer);
        0
    }

    /// How the generated code at `address` keeps its frame, where that is known. `is_exact` says
    /// that the instruction there is to be executed next; otherwise a call in the code returns
    /// behind the address.
    fn generated_frame(&self, address: u64, is_exact: bool) -> Option<GeneratedFrame> {
        let _ = (address, is_exact);
        None
    }

    /// The rules of a block of generated code that begins there, of
    /// [`BLOCK_BYTES`](crate::BLOCK_BYTES), each with the byte from which on it holds. None where
    /// they are not known of the whole block.
    fn generated_block(&self, begin: u64) -> Option<Vec<(u16, FrameRule)>> {
        let _ = begin;
        None
    }
}

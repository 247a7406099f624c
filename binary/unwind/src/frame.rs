//! The results of a walk.

use crate::space::Code;

/// How sure it is that a frame belongs to the stack.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Proof {
    /// The frame is the innermost one: its address is the sampled program counter.
    Registers,
    /// Before the return address is a direct call of the very procedure found in the frame below.
    Called,
    /// Before the return address is another call: through a pointer, through the PLT, of a
    /// procedure that then jumped to the one below.
    Call,
    /// The frame is a signal's: code that a handler returns to, or code that the signal
    /// interrupted.
    Signal,
    /// The code before the return address was not looked at, or cannot be.
    Unchecked,
}

/// One frame of a call stack.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Address of the next instruction in this frame: where it is in the innermost one, else where
    /// the frame below returns to.
    pub address: u64,
    /// An address within the instruction that this frame executes: the call before the return
    /// address, which may be the last instruction of its procedure. Names and lines are looked up
    /// with it.
    pub lookup: u64,
    /// The procedure at `lookup`.
    pub code: Code,
    /// The stack pointer in this frame, if known. From one frame to the next it grows by the size
    /// of the lower one's part of the stack, so this shows where a second window would help.
    pub stack_pointer: Option<u64>,
    /// Address of the frame record by which the frame is left: where its frame pointer points to.
    /// None where the frame is left by a rule.
    pub record: Option<u64>,
    /// How the frame was proved.
    pub proof: Proof,
}

/// Where and why a walk ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// At the thread's first frame: the table says that it has no return address (`_start`,
    /// `clone3`), it is the file's entry point, or its kept frame pointer is 0.
    Whole,
    /// The next word lies beyond the copied stack.
    Window,
    /// No table covers the code.
    NoUnwindInfo,
    /// Code made at run time, not known to keep frame pointers.
    Generated,
    /// The next frame is none: its address is not executable, or does not follow a call.
    Refused,
    /// A table, a register or a word that is needed is not readable or makes no sense.
    Unreadable,
    /// 1024 frames ([`FRAMES_MAX`]).
    TooDeep,
    /// The stack did not grow from one frame to the next.
    Loop,
    /// The tables asked for more work than a walk may do.
    Costly,
}

impl End {
    /// All ends, in order.
    pub const ALL: [Self; 9] = [
        Self::Whole,
        Self::Window,
        Self::NoUnwindInfo,
        Self::Generated,
        Self::Refused,
        Self::Unreadable,
        Self::TooDeep,
        Self::Loop,
        Self::Costly,
    ];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Window => "truncated",
            Self::NoUnwindInfo => "no_unwind_info",
            Self::Generated => "generated",
            Self::Refused => "refused",
            Self::Unreadable => "unreadable",
            Self::TooDeep => "too_deep",
            Self::Loop => "loop",
            Self::Costly => "costly",
        }
    }
}

/// Largest number of frames of a walk.
pub const FRAMES_MAX: usize = 1024;

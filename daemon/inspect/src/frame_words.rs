//! Words of frames that a runtime keeps on the stack, from a copy of the stack.

use crate::python::Memory;
use abi::{FrameLayout, RUNTIME_BLOCK_BYTES, RUNTIME_WORDS};
use unwind::Frame;

/// Words of a frame in a walked stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameWords {
    /// The frame's place in [`UnwoundStack::addresses`].
    pub depth: u32,
    /// As [`FrameLayout::words`] names them.
    pub words: [u64; RUNTIME_WORDS],
    /// The object was read after the sample: another one may be in its place.
    pub is_late: bool,
}

/// Words of each of a frame's two blocks.
const BLOCK_WORDS: usize = RUNTIME_BLOCK_BYTES / 8;

impl FrameWords {
    /// What the sampler's `note_frame` (`ebpf/src/runtime_frames.h`) does, with a copy of the stack
    /// whose first byte is that at `begin`. None: the frame is of no interest, or cannot be read.
    pub fn read(
        depth: u32,
        frame: &Frame,
        layout: &FrameLayout,
        (begin, copy): (u64, &[u8]),
        memory: &impl Memory,
    ) -> Option<Self> {
        let mut blocks = [0_u64; 2 * BLOCK_WORDS];
        let at = frame.record?.wrapping_add_signed(layout.block_at.into());
        // What a frame that is just being built has not written yet is an earlier one's.
        let slot = at.wrapping_add(8 * u64::from(layout.object));
        if frame.stack_pointer.is_some_and(|stack_pointer| slot < stack_pointer) {
            return None;
        }
        let at = at.checked_sub(begin)?;
        let bytes = copy.get(usize::try_from(at).ok()?..)?;
        let bytes = bytes.get(..layout.block_bytes.into())?;
        let (stack, object) = blocks.split_at_mut(BLOCK_WORDS);
        fill(stack, bytes);
        let word = |number: u8| stack.get(usize::from(number)).copied();
        if word(layout.tag)? & u64::from(layout.tag_mask) != u64::from(layout.tag_bits) {
            return None;
        }
        let has_object = layout.object_bytes > 0;
        if has_object {
            let mut block = [0; RUNTIME_BLOCK_BYTES];
            let block = block.get_mut(..layout.object_bytes.into())?;
            let at = word(layout.object)?.wrapping_add_signed(layout.object_at.into());
            if memory.read(at, block) != block.len() {
                return None;
            }
            fill(object, block);
        }
        let words = layout.words.map(|number| blocks.get(usize::from(number)).copied());
        let mut found = [0; RUNTIME_WORDS];
        for (to, word) in found.iter_mut().zip(words) {
            *to = word?;
        }
        Some(Self { depth, words: found, is_late: has_object })
    }
}

fn fill(words: &mut [u64], bytes: &[u8]) {
    let all = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
    words.iter_mut().zip(all).for_each(|(to, word)| *to = word);
}

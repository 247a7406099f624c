//! Words of frames that a runtime keeps on the stack, from a copy of the stack.

use crate::python::Memory;
use abi::{FrameLayout, RUNTIME_BLOCK_BYTES, RUNTIME_WORDS};
use unwind::Frame;

/// Words of a frame in a walked stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameWords {
    /// The frame's place in [`crate::questions::UnwoundStack::addresses`].
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::tests::Bytes;
    use unwind::{Code, Proof};

    /// As of V8 11.3: the context at -8, the closure at -16, bytecode and offset at -32 and -40; in
    /// the closure the shared part at 24, the code at 48.
    const LAYOUT: FrameLayout = FrameLayout {
        block_at: -40,
        block_bytes: 40,
        object_at: 23,
        object_bytes: 32,
        object: 3,
        tag: 4,
        tag_mask: 3,
        tag_bits: 1,
        words: [8, 11, 1, 0],
    };

    fn frame(record: u64, stack_pointer: u64) -> Frame {
        Frame {
            address: 0,
            lookup: 0,
            code: Code::None,
            stack_pointer: Some(stack_pointer),
            record: Some(record),
            proof: Proof::Unchecked,
        }
    }

    #[test]
    fn words_are_those_of_the_frame_and_of_its_object() {
        let words: [u64; 8] = [0, 7, 8, 9, 0x5001, 0x101, 0xdead, 0xbeef];
        let copy: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        let memory = Bytes::default();
        memory.put_words(0x5000, &[(24, 1), (32, 2), (40, 3), (48, 4)]);
        let begin = 0x7000;
        let record = begin + 48;
        let read = |frame: &Frame, layout: &FrameLayout| {
            FrameWords::read(2, frame, layout, (begin, &copy), &memory).map(|found| found.words)
        };
        let is = Some([1, 4, 8, 7]);
        assert_eq!(read(&frame(record, begin), &LAYOUT), is);
        assert_eq!(read(&frame(record, record - 16), &LAYOUT), is);
        assert_eq!(read(&frame(record, record - 8), &LAYOUT), None, "it is being built");
        assert_eq!(read(&frame(record - 16, begin), &LAYOUT), None, "before the copy");
        assert_eq!(read(&frame(record + 24, begin), &LAYOUT), None, "behind it");
        assert_eq!(read(&Frame { record: None, ..frame(record, begin) }, &LAYOUT), None);
        let other = FrameLayout { tag_bits: 0, ..LAYOUT };
        assert_eq!(read(&frame(record, begin), &other), None, "of another kind");
        let larger = FrameLayout { object_bytes: 40, ..LAYOUT };
        assert_eq!(read(&frame(record, begin), &larger), None, "an object that is gone");
        let wrong = FrameLayout { block_bytes: 400, object: 200, words: [99; 4], ..LAYOUT };
        assert_eq!(read(&frame(record, begin), &wrong), None);
        let plain = FrameLayout { object_bytes: 0, words: [0, 1, 2, 4], ..LAYOUT };
        let found = FrameWords::read(2, &frame(record, begin), &plain, (begin, &copy), &memory);
        let told = FrameWords { depth: 2, words: [7, 8, 9, 0x101], is_late: false };
        assert_eq!(found, Some(told));
    }
}

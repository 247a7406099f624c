//! Edges and rounds, from registers that were sampled: the interpreter of the crate `code` goes on
//! from them through the bytes of the sampled image.

use super::code_files::{CodeFiles, View};
use super::questions::{SampledRegisters, Walk, Walked};
use code::interpret::{BranchKind, Edge, Place, Rounds, Walker, Window};
use code::isa::x86_64::{State, X86_64};
use image::{ImageId, ImageOffset, Vaddr};
use model::BranchRounds;
use std::fs::File;

/// Decoded instructions kept, about 128 bytes each; with fewer, hot code is decoded again.
const INSTRUCTIONS: usize = 4096;

/// The interpreter and the files it reads.
pub struct Walks {
    walker: Walker<X86_64>,
    files: CodeFiles,
}

impl Default for Walks {
    fn default() -> Self {
        Self { walker: Walker::new(INSTRUCTIONS), files: CodeFiles::default() }
    }
}

impl Walks {
    /// Walks from each sample; `open` opens the image's file.
    pub fn walk(&mut self, asked: &Walk, open: impl Fn() -> Option<File>) -> Walked {
        let opened = self.files.opened();
        let mut walked = Walked::default();
        self.files.close_unused();
        for sample in &asked.samples {
            let before = walked.edges.len() + walked.rounds.len();
            match self.follow(asked.image, sample, &open, &mut walked) {
                Some(()) => {
                    let after = walked.edges.len() + walked.rounds.len();
                    walked.fruitful += u64::from(after > before);
                }
                None => walked.unresolved += 1,
            }
        }
        self.files.let_go();
        if self.files.opened() != opened {
            kernel::give_back(); // tables of relocations are large
        }
        walked
    }

    fn follow(
        &mut self,
        image: ImageId,
        sample: &SampledRegisters,
        open: impl Fn() -> Option<File>,
        walked: &mut Walked,
    ) -> Option<()> {
        let text = self.files.get(image, open)?;
        let (begin, end) = sample.range;
        let place = Place {
            image: text.number(),
            begin: Vaddr(begin),
            end: Vaddr(end),
            offset: ImageOffset(sample.file_offset),
        };
        let [registers @ .., rip, rflags] = &sample.registers;
        let rsp = registers.get(4).copied()?;
        let stack = Window { begin: Vaddr(rsp), bytes: &sample.stack };
        let mut view = View::new(text, place, Vaddr(*rip))?;
        let (edges, _) =
            self.walker.walk(Vaddr(*rip), State::sampled(*registers, *rflags), stack, &mut view);
        let offset = |address: Vaddr| {
            let inside = begin <= address.0 && address.0 < end;
            inside.then(|| sample.file_offset.checked_add(address.0 - begin)).flatten()
        };
        for (number, Edge { from, to, .. }) in edges.iter().enumerate() {
            // If a walk meets a branch again, only the first time counts: otherwise loops with many
            // rounds would be counted more often.
            let again = edges.iter().take(number).any(|before| before.from == *from);
            // A branch that leaves the image is not an edge of it.
            if let (Some(from), Some(to), false) = (offset(*from), offset(*to), again) {
                walked.edges.push((from, to, number == 0));
            }
        }
        for Rounds { edge, rounds } in self.walker.rounds() {
            let Some(branch) = offset(edge.from).map(ImageOffset) else { continue };
            let jumps = edge.kind == BranchKind::Taken;
            if let Some((branch, value)) = (BranchRounds { branch, jumps, rounds }).value() {
                walked.rounds.push((branch.0, value));
            }
        }
        Some(())
    }
}

//! Names of the stubs in procedure linkage tables: each jumps to another file's procedure through a
//! word of the global offset table, whose relocation has the procedure's name.
//!
//! System V ABI, AMD64 supplement, section 5.2; "System V ABI for the Arm 64-bit Architecture",
//! section 9 (PLT sequences).

use object::elf;

use crate::cover::{self, Piece, Span};
use crate::elf::{Elf, Section};
use crate::imports::Imports;
use crate::symbols::Label;

/// Largest section of stubs that is read, in bytes: a million stubs.
const STUBS_LIMIT: u64 = 16 << 20;
/// Bytes from one stub to the next, at least. Most have 16.
const STEP: usize = 8;
/// Bytes of a stub that are looked at, at most.
const STUB_BYTES: usize = 16;

/// Whether the section holds stubs.
pub(crate) fn is_of_stubs(section: &Section) -> bool {
    section.is_code() && (section.name.starts_with(".plt") || &*section.name == ".iplt")
}

/// The pieces that have code of sections with stubs.
pub(crate) fn overlap<'a>(
    sections: &'a [Section],
    pieces: &'a [Piece<Label>],
) -> impl Iterator<Item = &'a Piece<Label>> {
    sections.iter().filter(|section| is_of_stubs(section)).flat_map(|section| {
        let end = section.vaddr.saturating_add(section.size);
        pieces.iter().filter(move |piece| piece.start < end && section.vaddr < piece.end)
    })
}

/// The stubs of a file, and their names, which [`Label::Stub`] numbers.
#[derive(Default)]
pub(crate) struct Stubs {
    pub(crate) pieces: Vec<Piece<Label>>,
    names: Vec<Box<str>>,
}

impl Stubs {
    /// Finds the stubs of an ELF file. A part that cannot be read has none.
    pub(crate) fn of(elf: &Elf<'_>, sections: &[Section]) -> Self {
        let mut this = Self::default();
        let imports = Imports::of_elf_with_resolvers(elf).unwrap_or_default();
        let mut spans = Vec::new();
        for section in sections.iter().filter(|section| is_of_stubs(section)) {
            if let Ok(bytes) = elf.section_bytes("linkage table", section, STUBS_LIMIT) {
                this.add(elf.machine, section, &bytes, &imports, &mut spans);
            }
        }
        spans.sort_by_key(|span| span.start);
        this.pieces = cover::flatten(&spans);
        this
    }

    pub(crate) fn name(&self, number: u32) -> &str {
        self.names.get(number as usize).map_or("", |name| name)
    }

    fn add(
        &mut self,
        machine: u16,
        section: &Section,
        bytes: &[u8],
        imports: &Imports,
        spans: &mut Vec<Span<Label>>,
    ) {
        let end = section.vaddr.saturating_add(bytes.len() as u64);
        let mut slots = None;
        // A stub reaches to the next one: its label, and where it begins.
        let mut open: Option<(u64, Label)> = None;
        let mut at = 0;
        while let Some(code) = bytes.get(at..) {
            let code = code.get(..STUB_BYTES).unwrap_or(code);
            let vaddr = section.vaddr.saturating_add(at as u64);
            let stub = stub(machine, code, vaddr, slots);
            if let Stub::Shared(first) = stub {
                slots = Some(first);
            }
            if stub != Stub::None || code.is_empty() {
                if let Some((start, label)) = open.take() {
                    spans.push(Span { start, end: vaddr.min(end), limit: end, label });
                }
                if code.is_empty() {
                    break;
                }
            }
            if let Stub::Through(word) = stub
                && let Some(name) = imports.name(word)
            {
                open = Some((vaddr, Label::Stub(self.names.len() as u32)));
                self.names.push(format!("{name}@plt").into());
            }
            at = (at + STEP).min(bytes.len());
        }
    }
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Stub {
    /// Jumps through the word at this address, now or when the procedure is bound.
    Through(u64),
    /// The part that all stubs share; the address of the first procedure's word.
    Shared(u64),
    None,
}

/// What begins with `code` at `vaddr`. `slots` is the address of the first procedure's word.
fn stub(machine: u16, code: &[u8], vaddr: u64, slots: Option<u64>) -> Stub {
    match machine {
        elf::EM_X86_64 => x86_64(code, vaddr, slots),
        elf::EM_AARCH64 => aarch64(code, vaddr),
        _ => Stub::None,
    }
}

fn x86_64(code: &[u8], vaddr: u64, slots: Option<u64>) -> Stub {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    const BND: u8 = 0xf2;
    // The address that an instruction's last four bytes are the distance to, from its end.
    let target = |after: &[u8], distance: &[u8; 4]| {
        let instruction_end = vaddr.wrapping_add((code.len() - after.len()) as u64);
        instruction_end.wrapping_add_signed(i32::from_le_bytes(*distance).into())
    };
    let rest = code.strip_prefix(&ENDBR64).unwrap_or(code);
    // push GOT+8(%rip), and before it push %r11 (mold)
    let shared = rest.strip_prefix(&[0x41, 0x53]).unwrap_or(rest);
    if let Some((distance, after)) = operand(shared, &[0xff, 0x35]) {
        // Three words are before the procedures'.
        return Stub::Shared(target(after, distance).wrapping_add(16));
    }
    // push $index; jmp to the shared part
    if rest.len() < code.len()
        && let Some((index, after)) = operand(rest, &[0x68])
        && let Some(slots) = slots
        && after.strip_prefix(&[BND]).unwrap_or(after).first() == Some(&0xe9)
    {
        return Stub::Through(slots.wrapping_add(u64::from(u32::from_le_bytes(*index)) * 8));
    }
    // mov $index, %r11d (mold)
    let rest = operand(rest, &[0x41, 0xbb]).map_or(rest, |(_, after)| after);
    let rest = rest.strip_prefix(&[BND]).unwrap_or(rest);
    match operand(rest, &[0xff, 0x25]) {
        Some((distance, after)) => Stub::Through(target(after, distance)),
        None => Stub::None,
    }
}

/// The four bytes after `opcode`, and what follows them.
fn operand<'a>(code: &'a [u8], opcode: &[u8]) -> Option<(&'a [u8; 4], &'a [u8])> {
    code.strip_prefix(opcode)?.split_first_chunk()
}

/// adrp x16, page; ldr x17, [x16, #n], and before them bti c.
fn aarch64(code: &[u8], vaddr: u64) -> Stub {
    const BTI_C: u32 = 0xd503_245f;
    let mut words = code.chunks_exact(4).filter_map(|word| word.first_chunk());
    let mut next = || words.next().map(|word| u32::from_le_bytes(*word));
    let Some(first) = next() else { return Stub::None };
    let (adrp, at) = match first {
        BTI_C => (next(), vaddr.wrapping_add(4)),
        _ => (Some(first), vaddr),
    };
    match (adrp, next()) {
        (Some(adrp), Some(ldr))
            if adrp & 0x9f00_001f == 0x9000_0010 && ldr & 0xffc0_03ff == 0xf940_0211 =>
        {
            // 21 bits of signed distance in pages: the upper 19 at bit 5, the lower two at 29.
            let pages = (adrp >> 5 & 0x7_ffff) << 2 | adrp >> 29 & 3;
            let pages = i64::from((pages << 11).cast_signed() >> 11);
            let page = (at & !0xfff).wrapping_add_signed(pages << 12);
            Stub::Through(page.wrapping_add(u64::from(ldr >> 10 & 0xfff) * 8))
        }
        _ => Stub::None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Stub, aarch64, x86_64};

    #[test]
    fn stubs_of_all_linkers_say_through_which_word_they_jump() {
        let ld = [0xff, 0x25, 0xca, 0x2f, 0, 0, 0x68, 0, 0, 0, 0, 0xe9, 0xe0, 0xff, 0xff, 0xff];
        assert_eq!(x86_64(&ld, 0x1030, None), Stub::Through(0x4000));
        let ibt = [0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0x25, 0x76, 0x2f, 0, 0, 0x66, 0x0f, 0x1f, 0x44];
        assert_eq!(x86_64(&ibt, 0x1080, None), Stub::Through(0x4000));
        let bnd = [0xf3, 0x0f, 0x1e, 0xfa, 0xf2, 0xff, 0x25, 0x75, 0x2f, 0, 0, 0x0f, 0x1f, 0x44];
        assert_eq!(x86_64(&bnd, 0x1080, None), Stub::Through(0x4000));
        let shared = [0xff, 0x35, 0xca, 0x2f, 0, 0, 0xff, 0x25, 0xcc, 0x2f, 0, 0];
        assert_eq!(x86_64(&shared, 0x1020, None), Stub::Shared(0x4000));
        let lazy = [0xf3, 0x0f, 0x1e, 0xfa, 0x68, 1, 0, 0, 0, 0xe9, 0xd2, 0xff, 0xff, 0xff];
        assert_eq!(x86_64(&lazy, 0x1040, Some(0x4000)), Stub::Through(0x4008));
        assert_eq!(x86_64(&lazy, 0x1040, None), Stub::None);
        let mold = [0xf3, 0x0f, 0x1e, 0xfa, 0x41, 0xbb, 0, 0, 0, 0, 0xff, 0x25, 0x78, 0x24, 0, 0];
        assert_eq!(x86_64(&mold, 0x16b0, None), Stub::Through(0x3b38));
        let first = [0xf3, 0x0f, 0x1e, 0xfa, 0x41, 0x53, 0xff, 0x35, 0x8c, 0x24, 0, 0, 0xff, 0x25];
        assert_eq!(x86_64(&first, 0x1690, None), Stub::Shared(0x3b38));
        assert_eq!(x86_64(&[0xcc; 16], 0x1690, None), Stub::None);
        let arm: [u32; 5] = [0xd503_245f, 0xb000_0090, 0xf947_fe11, 0x913f_e210, 0xd61f_0220];
        let arm = arm.map(u32::to_le_bytes).concat();
        assert_eq!(aarch64(&arm, 0x10000), Stub::Through(0x21ff8));
        assert_eq!(aarch64(&arm[4..], 0x10000), Stub::Through(0x21ff8));
        assert_eq!(aarch64(&arm[8..], 0x10000), Stub::None);
    }
}

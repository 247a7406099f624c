//! Finds bytes that could be direct branches, without decoding: any byte that may end the opcode of
//! a direct branch counts as one.

use std::ops::Range;

use super::{Isa, aarch64};
use crate::isa::flow::Flow;

/// A possible direct branch.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lead {
    /// An address in the instruction.
    pub(crate) at: u64,
    pub(crate) target: u64,
    /// Whether the branch is a call.
    pub(crate) calls: bool,
}

/// Most bytes of an x86 instruction before the end of its opcode.
pub(crate) const BEFORE_MAX: u64 = 14;
/// Bytes that are compared together: a block without a near branch is skipped at once. Larger
/// blocks are skipped less often.
const BLOCK: usize = 256;
/// Largest distance of a branch with 8 bits of distance, with the branch's own length.
const NEAR: u64 = 130;

impl Isa {
    /// Calls `found` for each place in `bytes`, the first of which is at `address`, that would
    /// branch into the addresses of `into` if a direct branch began there: all direct branches, and
    /// some bytes that are none.
    pub(crate) fn leads(
        self,
        bytes: &[u8],
        address: u64,
        into: &Range<u64>,
        found: &mut impl FnMut(Lead),
    ) {
        match self {
            Self::X86_64 => {
                far(bytes, address, into, found);
                near(bytes, address, into, found);
            }
            Self::Aarch64 => words(bytes, address, into, found),
        }
    }
}

/// Branches with 32 bits of distance: `call`, `jmp`, conditional jumps, `xbegin`.
fn far(bytes: &[u8], address: u64, into: &Range<u64>, found: &mut impl FnMut(Lead)) {
    let len = u32::try_from(into.end.saturating_sub(into.start)).unwrap_or(u32::MAX);
    for begin in (1..bytes.len()).step_by(BLOCK) {
        let rest = bytes.get(begin..).unwrap_or_default();
        let next = address.wrapping_add(begin as u64 + 4);
        let (block, from_begin) =
            (rest.get(..BLOCK + 3).unwrap_or(rest), next.wrapping_sub(into.start) as u32);
        if !any_high(block, from_begin, len) || !any_near(block, from_begin, len) {
            continue;
        }
        for (index, distance) in rest.windows(4).take(BLOCK).enumerate() {
            let Some(distance) =
                distance.first_chunk().map(|distance| i32::from_le_bytes(*distance))
            else {
                continue;
            };
            let target = next.wrapping_add(index as u64).wrapping_add_signed(i64::from(distance));
            if !into.contains(&target) {
                continue;
            }
            if let Some(&opcode @ (0xe8 | 0xe9 | 0x80..=0x8f | 0xf8)) = bytes.get(begin + index - 1)
            {
                let at = address.wrapping_add((begin + index - 1) as u64);
                found(Lead { at, target, calls: opcode == 0xe8 });
            }
        }
    }
}

/// Whether the upper half of any 4 bytes of a block is that of a distance into a target of `len`
/// bytes. Only few blocks pass this test, and it compares half as many bytes as [`any_near`], so
/// twice as many at once. `next` as in [`any_near`].
fn any_high(block: &[u8], next: u32, len: u32) -> bool {
    let least = next.wrapping_neg().wrapping_sub(BLOCK as u32 - 1);
    // The upper half of the largest distance, from the block's first bytes, above that of the least
    // distance, from its last bytes.
    let more = (u64::from(least & 0xffff) + u64::from(len) + BLOCK as u64 - 1) >> 16;
    let (least, more) = ((least >> 16) as u16, u16::try_from(more).unwrap_or(u16::MAX));
    let mut any = 0;
    for phase in 2..4 {
        for half in block.get(phase..).unwrap_or_default().as_chunks::<2>().0 {
            any |= u16::from(u16::from_le_bytes(*half).wrapping_sub(least) <= more);
        }
    }
    any != 0
}

/// Whether any 4 bytes may be a distance into a target of `len` bytes. `next` is the number of
/// bytes from the start of `bytes` to the address after the first 4. The loop is written so that
/// the compiler compares many at once.
fn any_near(bytes: &[u8], next: u32, len: u32) -> bool {
    let mut any = false;
    for phase in 0..4_u32 {
        let words = bytes.get(phase as usize..).unwrap_or_default().as_chunks::<4>().0;
        for (index, word) in words.iter().enumerate() {
            let after = next.wrapping_add(phase).wrapping_add((index as u32).wrapping_mul(4));
            any |= u32::from_le_bytes(*word).wrapping_add(after) <= len;
        }
    }
    any
}

/// Branches with 8 bits of distance: conditional jumps, `loop` and its variants, `jmp`.
fn near(bytes: &[u8], address: u64, into: &Range<u64>, found: &mut impl FnMut(Lead)) {
    let place =
        |address_of: u64| usize::try_from(address_of.saturating_sub(address)).unwrap_or(usize::MAX);
    let begin = place(into.start.saturating_sub(NEAR)).min(bytes.len());
    let end = place(into.end.saturating_add(NEAR)).min(bytes.len());
    for (index, pair) in bytes.get(begin..end).unwrap_or_default().windows(2).enumerate() {
        if let &[0x70..=0x7f | 0xe0..=0xe3 | 0xeb, distance] = pair {
            let at = address.wrapping_add((begin + index) as u64);
            let target = at.wrapping_add(2).wrapping_add_signed(i64::from(distance as i8));
            if into.contains(&target) {
                found(Lead { at, target, calls: false });
            }
        }
    }
}

/// Branches of A64: each word is an instruction.
fn words(bytes: &[u8], address: u64, into: &Range<u64>, found: &mut impl FnMut(Lead)) {
    let len = usize::from(aarch64::LEN);
    let begin =
        usize::try_from(address.wrapping_neg() % u64::from(aarch64::LEN)).unwrap_or_default();
    for (index, word) in bytes.get(begin..).unwrap_or_default().chunks_exact(len).enumerate() {
        let at = address.wrapping_add((begin + index * len) as u64);
        let (target, calls) = match aarch64::order(word, at).map(|ordered| ordered.flow) {
            Some(Flow::Call { target: Some(target), .. }) => (target, true),
            Some(Flow::Jump { target } | Flow::Conditional { target }) => (target, false),
            _ => continue,
        };
        if into.contains(&target) {
            found(Lead { at, target, calls });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever bytes are, what decodes as a direct branch at any of them is found.
    #[test]
    fn every_direct_branch_is_found() {
        let mut random = fastrand::Rng::with_seed(9);
        let mut branches = 0;
        for isa in [Isa::X86_64, Isa::Aarch64] {
            for _ in 0..300 {
                let address = random.u64(0x1000..u64::MAX >> 1) & !3;
                let mut bytes: Vec<u8> = (0..random.usize(1..900)).map(|_| random.u8(..)).collect();
                for _ in 0..40 {
                    // Opcodes and distances that random bytes have seldom.
                    let place = random.usize(..bytes.len());
                    let opcodes =
                        [0xe8, 0xe9, 0xeb, 0x74, 0xe3, 0x0f, 0x85, 0x94, 0x14, 0x54, 0x34];
                    bytes[place] = opcodes[random.usize(..opcodes.len())];
                    let distance = random.i32(-600..600).to_le_bytes();
                    bytes
                        .iter_mut()
                        .skip(place + 1)
                        .zip(distance)
                        .for_each(|(byte, of)| *byte = of);
                }
                let begin = address.wrapping_add_signed(random.i64(-300..1200));
                let into =
                    [begin..begin + random.u64(1..500), 0..u64::MAX][random.usize(..2)].clone();
                let mut found = Vec::new();
                isa.leads(&bytes, address, &into, &mut |lead| found.push(lead));
                for (place, at) in (0..bytes.len()).zip(address..) {
                    let (target, calls) = match isa
                        .order(&bytes[place..], at)
                        .map(|ordered| (ordered.flow, ordered.len))
                    {
                        // A transaction with 16 bits of distance: nobody writes that.
                        Some((Flow::Conditional { .. }, _))
                            if bytes[place..].starts_with(&[0x66]) =>
                        {
                            continue;
                        }
                        Some((Flow::Call { target: Some(target), .. }, _)) => (target, true),
                        Some((Flow::Jump { target } | Flow::Conditional { target }, _)) => {
                            (target, false)
                        }
                        _ => continue,
                    };
                    if into.contains(&target) {
                        branches += 1;
                        let is_it = |lead: &Lead| {
                            (lead.target, lead.calls) == (target, calls)
                                && (at..=at + BEFORE_MAX).contains(&lead.at)
                        };
                        assert!(
                            found.iter().any(is_it),
                            "{isa:?} {at:#x} {target:#x} {into:x?} {:x?}",
                            &bytes[place..]
                        );
                    }
                }
            }
        }
        assert!(branches > 5000, "{branches}");
    }
}

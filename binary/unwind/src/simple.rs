//! Rules of frames in their simplest form, for a walker that knows only the stack pointer, the
//! frame pointer and, in arm64's innermost frame, the link register: the sampler in the kernel
//! (`ebpf/src/walk.h`).

use crate::frame::End;
use crate::goroutine::Goroutine;
use crate::prologue::Record;
use crate::registers::Machine;
use crate::rule::{Cfa, Rule, Saved, StackPointer};

/// Bytes of code that [`code_check`] is of.
pub const CHECKED_BYTES: usize = 16;
/// How many of them are before [`Learnt::address`].
pub const CHECKED_BEFORE: u64 = 7;

/// Bytes of a block of code, which begins at a multiple of that. Its rules are learnt together: the
/// frames of a large program are at new instructions all the time.
pub const BLOCK_BYTES: u64 = 256;

/// Most rules of a block: prologues and epilogues have one for each register that they save.
pub const EXTENT_RULES_MAX: usize = 15;

/// Rules that hold for fewer bytes are the first to be left out of a block with many: those
/// between the instructions of prologues and epilogues.
const SHORT_ROW_BYTES: u16 = 5;

/// In [`FrameRule::Row`]: the caller's frame pointer is not known, as in procedures of Go. A walk
/// goes on as long as no rule needs it.
pub const FRAME_LOST: u16 = 1023 * 8;

/// What a frame's canonical frame address (CFA) is computed from.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Base {
    /// The stack pointer.
    StackPointer,
    /// The frame pointer.
    FramePointer,
    /// The CFA is in memory, at a distance from the frame pointer, and the caller's frame pointer
    /// is where the frame pointer points. So do procedures that align their stack (gcc).
    ThroughFramePointer,
}

/// The way from a frame to its caller.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum FrameRule {
    /// By the CFA, which is the caller's stack pointer.
    Row {
        /// Where the CFA comes from.
        base: Base,
        /// Distance of the CFA, or of the word that has it, from `base`, in bytes.
        distance: i64,
        /// Bytes from the return address to the CFA; 0: it is in the link register.
        return_below: u16,
        /// Bytes from the caller's frame pointer to the CFA; 0: it is in its register still;
        /// [`FRAME_LOST`]: it is not known.
        frame_below: u16,
    },
    /// The frame pointer points to the caller's, and the return address is behind that.
    FramePointer,
    /// Likewise; the caller's stack pointer is in memory, so many bytes from the frame pointer
    /// (HotSpot's interpreter, whose frames overlap).
    KeptStackPointer(i16),
    /// The caller is on the stack of a goroutine.
    Goroutine(Goroutine),
    /// The stack pointer points to the kernel's frame of a signal.
    Signal,
    /// There is no caller, or none that can be found.
    End(End),
    /// The simple walker cannot leave the frame.
    Other,
}

/// The frames that a rule holds for.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Extent {
    /// Those that called, with this return address, less one.
    Call,
    /// Those that execute this instruction next.
    Next,
    /// All in the [`BLOCK_BYTES`] from here on. Return addresses there follow a call.
    Block,
}

/// The rule of a place in the code that a walk has met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Learnt {
    /// The place.
    pub address: u64,
    /// What the rule holds for there.
    pub extent: Extent,
    /// The rule.
    pub rule: FrameRule,
    /// Further rules of a block, each with the first byte from which on it holds, at most
    /// [`EXTENT_RULES_MAX`] in all. If there are more, [`FrameRule::Other`] stands for those that
    /// hold for few bytes, or for the last ones.
    pub then: Vec<(u8, FrameRule)>,
    /// [`code_check`] of the code from [`CHECKED_BEFORE`] bytes before `address` on; of blocks from
    /// `address` on.
    pub check: u16,
    /// Whether the rule follows from the file alone, and so holds in every process that maps it.
    pub is_of_file: bool,
}

impl Learnt {
    /// Whether all places of a block have a rule.
    pub(crate) fn is_complete(&self) -> bool {
        self.then.iter().all(|(_, rule)| *rule != FrameRule::Other) && self.rule != FrameRule::Other
    }

    /// The bytes of a block that have a rule, one bit each.
    pub(crate) fn covered(&self) -> [u64; BLOCK_BYTES as usize / 64] {
        let mut covered = [0; BLOCK_BYTES as usize / 64];
        let all = || std::iter::once((0, self.rule)).chain(self.then.iter().copied());
        let ends = all().skip(1).map(|(begin, _)| u64::from(begin)).chain([BLOCK_BYTES]);
        for ((begin, rule), end) in all().zip(ends) {
            for into in (u64::from(begin)..end).filter(|_| rule != FrameRule::Other) {
                if let Some(word) = covered.get_mut(into as usize / 64) {
                    *word |= 1 << (into % 64);
                }
            }
        }
        covered
    }

    /// Whether this is the rule of that place of a block.
    pub(crate) fn says(&self, address: u64, rule: FrameRule) -> bool {
        let into = address.wrapping_sub(self.address);
        let begun = self.then.iter().rev().find(|(begin, _)| u64::from(*begin) <= into);
        into < BLOCK_BYTES && begun.map_or(self.rule, |(_, rule)| *rule) == rule
    }
}

/// A number for the code around a place; its twin is in `ebpf/src/rules.h`.
pub fn code_check(code: &[u8; CHECKED_BYTES]) -> u16 {
    let ([low, high], []) = code.as_chunks::<8>() else { return 0 };
    let (low, high) = (u64::from_le_bytes(*low), u64::from_le_bytes(*high));
    let mixed = low.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ high.wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    (mixed >> 48) as u16
}

/// The rule of a table's row for the instruction at `address`, in the process's terms.
pub fn of_row(rule: &Rule, machine: Machine, address: u64, is_exact: bool) -> FrameRule {
    if rule.return_address == Some(Saved::Undefined) {
        return FrameRule::End(End::Whole);
    }
    if rule.saved.iter().any(|(number, _)| *number == machine.stack_pointer()) && !rule.is_signal {
        return FrameRule::End(End::Refused);
    }
    row(rule, machine, address, is_exact).unwrap_or(FrameRule::Other)
}

fn row(rule: &Rule, machine: Machine, address: u64, is_exact: bool) -> Option<FrameRule> {
    // Whether a kept stack pointer is on the same stack depends on its value.
    if rule.is_signal || rule.stack_pointer == StackPointer::Kept {
        return None;
    }
    let return_below = match (&rule.return_address, machine) {
        (Some(Saved::At(distance)), _) => below(*distance)?,
        (None | Some(Saved::Same), Machine::Aarch64) => 0,
        _ => return None,
    };
    let frame_pointer = machine.frame_pointer();
    let saved = rule.saved.iter().find(|(number, _)| *number == frame_pointer);
    let saved = saved.map(|(_, saved)| saved);
    let (base, distance) = match &rule.cfa {
        Cfa::Register(number, distance) if *number == machine.stack_pointer() => {
            (Base::StackPointer, *distance)
        }
        Cfa::Register(number, distance) if *number == frame_pointer => {
            (Base::FramePointer, *distance)
        }
        Cfa::Register(..) => return None,
        Cfa::Expression(code) => match through_frame_pointer(code) {
            // Behind `leave` the table may not say that the frame pointer is restored.
            Some(distance) if !is_exact && is_at_frame_pointer(saved) => {
                (Base::ThroughFramePointer, distance)
            }
            Some(_) => return None,
            None => (Base::StackPointer, stub_distance(code, address).filter(|_| is_exact)?),
        },
    };
    let frame_below = match saved {
        _ if base == Base::ThroughFramePointer => 0,
        None | Some(Saved::Same) => 0,
        Some(Saved::At(distance)) => below(*distance)?,
        Some(Saved::Undefined) => FRAME_LOST,
        Some(_) => return None,
    };
    let is_short = distance % 8 == 0 && distance.unsigned_abs() < 1 << 21;
    is_short.then_some(FrameRule::Row { base, distance, return_below, frame_below })
}

/// The rules of a block, by first byte, as many as a [`Learnt`] can have.
pub(crate) fn fewer(mut rows: Vec<(u16, FrameRule)>) -> Vec<(u16, FrameRule)> {
    if rows.len() > EXTENT_RULES_MAX {
        let ends: Vec<u16> = rows.iter().skip(1).map(|(begin, _)| *begin).collect();
        for ((begin, rule), end) in rows.iter_mut().zip(ends) {
            if end - *begin < SHORT_ROW_BYTES {
                *rule = FrameRule::Other;
            }
        }
        rows.dedup_by_key(|(_, rule)| *rule);
    }
    if rows.len() > EXTENT_RULES_MAX {
        rows.truncate(EXTENT_RULES_MAX);
        rows.last_mut().into_iter().for_each(|(_, rule)| *rule = FrameRule::Other);
    }
    rows
}

/// The rule of a frame record that `record` leads to.
pub fn of_record(record: Record, machine: Machine) -> FrameRule {
    let (distance, return_below, frame_below) = match (record, machine) {
        (Record::FramePointer, _) => return FrameRule::FramePointer,
        (Record::StackPointer, Machine::X86_64) => (16, 8, 16),
        (Record::None, Machine::X86_64) => (8, 8, 0),
        (Record::None, Machine::Aarch64) => (0, 0, 0),
        _ => return FrameRule::Other,
    };
    FrameRule::Row { base: Base::StackPointer, distance, return_below, frame_below }
}

/// Bytes below the CFA of a word at this distance from it, and of the word below that.
fn below(distance: i64) -> Option<u16> {
    let below = u16::try_from(-distance).ok()?;
    (below > 0 && below % 8 == 0 && below < FRAME_LOST - 8).then_some(below)
}

/// The distance of `DW_OP_breg6 distance; DW_OP_deref`, if the expression is that.
fn through_frame_pointer(code: &[u8]) -> Option<i64> {
    match *code {
        // One byte of a signed LEB128 number.
        [0x76, distance, 0x06] if distance < 0x80 => Some(i64::from((distance << 1) as i8 >> 1)),
        _ => None,
    }
}

/// Whether the caller's frame pointer is where the frame pointer points (`DW_OP_breg6 0`).
fn is_at_frame_pointer(saved: Option<&Saved>) -> bool {
    matches!(saved, Some(Saved::AtExpression(code)) if **code == [0x76, 0])
}

/// The distance of the CFA from the stack pointer in a stub of a procedure linkage table, by the
/// expression of GNU ld: `rsp + 8 + ((rip & 15) >= N) * 8`.
fn stub_distance(code: &[u8], address: u64) -> Option<i64> {
    match *code {
        [0x77, 8, 0x80, 0, 0x3f, 0x1a, n @ 0x30..=0x3f, 0x2a, 0x33, 0x24, 0x22] => {
            Some(8 + 8 * i64::from(address & 15 >= u64::from(n - 0x30)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(cfa: Cfa, saved: &[(u8, Saved)]) -> Rule {
        Rule {
            cfa,
            return_address: Some(Saved::At(-8)),
            saved: saved.into(),
            is_signal: false,
            stack_pointer: StackPointer::Followed,
        }
    }

    fn said(rule: &Rule, address: u64, is_exact: bool) -> Option<(Base, i64, u16, u16)> {
        match of_row(rule, Machine::X86_64, address, is_exact) {
            FrameRule::Row { base, distance, return_below, frame_below } => {
                Some((base, distance, return_below, frame_below))
            }
            _ => None,
        }
    }

    #[test]
    fn rows_of_compilers_are_said() {
        let plain = rule(Cfa::Register(7, 48), &[(3, Saved::At(-24)), (6, Saved::At(-16))]);
        assert_eq!(said(&plain, 0, false), Some((Base::StackPointer, 48, 8, 16)));
        let framed = rule(Cfa::Register(6, 16), &[(6, Saved::At(-16))]);
        assert_eq!(said(&framed, 0, true), Some((Base::FramePointer, 16, 8, 16)));
        let large = rule(Cfa::Register(7, 300 << 10), &[]);
        assert_eq!(said(&large, 0, false), Some((Base::StackPointer, 300 << 10, 8, 0)));
        let aligned = rule(
            Cfa::Expression([0x76, 0x78, 0x06].into()),
            &[(6, Saved::AtExpression([0x76, 0].into()))],
        );
        assert_eq!(said(&aligned, 0, false), Some((Base::ThroughFramePointer, -8, 8, 0)));
        let of_go = rule(Cfa::Register(7, 40), &[(6, Saved::Undefined)]);
        assert_eq!(said(&of_go, 0, false), Some((Base::StackPointer, 40, 8, FRAME_LOST)));
        let stub = [0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
        let stub = rule(Cfa::Expression(stub.into()), &[]);
        assert_eq!(said(&stub, 0x1006, true), Some((Base::StackPointer, 8, 8, 0)));
        assert_eq!(said(&stub, 0x100b, true), Some((Base::StackPointer, 16, 8, 0)));
        let first = Rule { return_address: Some(Saved::Undefined), ..rule(plain.cfa.clone(), &[]) };
        let end = of_row(&first, Machine::X86_64, 0, false);
        assert_eq!(end, FrameRule::End(End::Whole));
    }

    #[test]
    fn what_needs_more_is_not_said() {
        let aligned = rule(
            Cfa::Expression([0x76, 0x78, 0x06].into()),
            &[(6, Saved::AtExpression([0x76, 0].into()))],
        );
        for (rule, is_exact) in [
            (rule(Cfa::Register(10, 8), &[]), false),
            (rule(Cfa::Register(7, 12), &[]), false),
            (rule(Cfa::Register(7, 4 << 20), &[]), false),
            (rule(Cfa::Register(7, 16), &[(6, Saved::At(-9000))]), false),
            (rule(Cfa::Register(7, 16), &[(6, Saved::At(8))]), false),
            (rule(Cfa::Register(7, 16), &[(6, Saved::AtExpression([0x76, 8].into()))]), false),
            (rule(Cfa::Expression([0x77, 8].into()), &[]), true),
            (Rule { stack_pointer: StackPointer::Kept, ..rule(Cfa::Register(6, 16), &[]) }, false),
            (aligned, true),
        ] {
            let said = of_row(&rule, Machine::X86_64, 0, is_exact);
            assert_eq!(said, FrameRule::Other, "{rule:?}");
        }
    }
    #[test]
    fn a_block_with_many_rules_loses_the_short_ones_first() {
        let row = |distance| FrameRule::Row {
            base: Base::StackPointer,
            distance,
            return_below: 8,
            frame_below: 0,
        };
        // A prologue that pushes six registers, and a body, in each half of the block.
        let half = |begin: u16| {
            (0..7u16)
                .map(move |push| (begin + 2 * push, row(8 + 8 * i64::from(push))))
                .chain([(begin + 20, row(128))])
        };
        let few: Vec<_> = half(0).collect();
        assert_eq!(fewer(few.clone()), few);
        let many: Vec<_> = half(0).chain(half(128)).collect();
        assert_eq!(many.len(), EXTENT_RULES_MAX + 1);
        let expected = [
            (0, FrameRule::Other),
            (12, row(56)),
            (20, row(128)),
            (128, FrameRule::Other),
            (140, row(56)),
            (148, row(128)),
        ];
        assert_eq!(fewer(many), expected);
        let long: Vec<_> =
            (0..20u16).map(|number| (12 * number, row(8 + i64::from(number) % 2 * 8))).collect();
        let long = fewer(long);
        assert_eq!(long.len(), EXTENT_RULES_MAX);
        assert_eq!(long.last(), Some(&(12 * 14, FrameRule::Other)));
        assert!(long.iter().rev().skip(1).all(|(_, rule)| *rule != FrameRule::Other));
    }
}

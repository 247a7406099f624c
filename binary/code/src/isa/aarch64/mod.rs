//! A64, the instruction set of 64-bit Arm. Facts about instructions are from the Arm Architecture
//! Reference Manual for A-profile (DDI 0487), chapters C4 (encodings) and C6 (base instructions);
//! registers that calls preserve are from the procedure call standard (AAPCS64).
//!
//! yaxpeax-arm makes the text of instructions. The order of execution, and the values that it
//! depends on, are read from the fields of the word itself: these are a few dozen encodings, fixed
//! for good, and an instruction of an extension that no decoder knows yet still ends no block.

mod access;
mod ahead;
mod decode;
mod execute;
mod fields;
mod forms;
mod operations;
mod order;
mod reach;
mod text;
mod track;
mod vectors;
#[cfg(test)]
mod walks;
mod work;

pub use super::flags::Flags;
pub(in crate::isa) use forms::{form_name, forms};
pub use operations::Instruction;
pub(in crate::isa) use order::{order, stub};
pub(in crate::isa) use text::disassemble;
pub(in crate::isa) use track::Tracker;
pub(in crate::isa) use work::work;

/// Bytes of every instruction. Instructions are at multiples of 4, or the processor traps (DDI
/// 0487, C1.2 and D1.4.5).
pub(in crate::isa) const LEN: u8 = 4;

use super::compared::Compared;
use crate::interpret::{
    Ahead, Bits, CodeView, Comparison, InstructionSet, Memory, MemoryAccess, Relation, Step, Way,
    mask,
};
use operations::{Op, Place, STACK, ZERO};

/// General registers and the stack pointer.
pub const REGISTERS: usize = 32;

/// A64.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Aarch64;

/// Registers and flags of a thread, as far as they are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// x0 to x30, and the stack pointer.
    pub registers: [Bits; REGISTERS],
    /// The flags.
    pub flags: Flags,
    /// The comparison that set the flags.
    compared: Option<Compared>,
}

/// Each flag and its bit in NZCV and PSTATE (DDI 0487, C5.2.10).
const IN_NZCV: [(u8, u32); 4] =
    [(Flags::OVERFLOW, 28), (Flags::CARRY, 29), (Flags::ZERO, 30), (Flags::SIGN, 31)];
/// The bit of C, which [`Flags`] has inverted.
const C: u64 = 1 << 29;

impl Flags {
    /// All flags known, from NZCV or PSTATE.
    pub fn of_nzcv(nzcv: u64) -> Self {
        Self::known(nzcv ^ C, &IN_NZCV)
    }

    /// Whether NZCV may have this value.
    pub fn may_be_nzcv(self, nzcv: u64) -> bool {
        let mut known = Self::of_nzcv(nzcv);
        // Not a flag of this processor.
        known.set(Self::PARITY, self.get(Self::PARITY));
        self.may_be_those(known)
    }
}

impl State {
    /// Whether the processor may be in that state: no known bit differs.
    pub fn may_be(&self, registers: &[u64; REGISTERS], nzcv: u64) -> bool {
        self.registers.iter().zip(registers).all(|(known, value)| known.may_be(*value))
            && self.flags.may_be_nzcv(nzcv)
    }

    fn get(&self, number: u8) -> Bits {
        if number == ZERO {
            return Bits::ZERO;
        }
        self.registers.get(usize::from(number)).copied().unwrap_or(Bits::UNKNOWN)
    }

    /// Writes to the zero register are lost.
    fn set(&mut self, number: u8, value: Bits) {
        self.registers.get_mut(usize::from(number)).into_iter().for_each(|to| *to = value);
    }
}

impl InstructionSet for Aarch64 {
    type State = State;
    type Instruction = Instruction;
    type Decoder = ();
    const LEN_MAX: usize = LEN as usize;
    const REGISTERS: usize = REGISTERS;
    const STACK_POINTER: u8 = STACK;

    fn sampled(registers: &[u64], pstate: u64) -> State {
        let register = |number: usize| registers.get(number).copied().map(Bits::known);
        State {
            registers: std::array::from_fn(|number| register(number).unwrap_or(Bits::UNKNOWN)),
            flags: Flags::of_nzcv(pstate),
            compared: None,
        }
    }

    fn decode((): &mut (), bytes: &[u8]) -> Option<Instruction> {
        Instruction::decode(bytes)
    }

    fn len(_: &Instruction) -> usize {
        LEN.into()
    }

    fn execute(
        instruction: &Instruction,
        at: u64,
        state: &mut State,
        memory: &mut Memory<'_>,
        view: &mut impl CodeView,
    ) -> Step {
        execute::Machine { instruction, at, state, memory, view }.execute()
    }

    fn access(instruction: &Instruction, at: u64, state: &State) -> Option<MemoryAccess> {
        let (reads, writes) = match instruction.op {
            Op::Load { .. } => (true, false),
            Op::Store { .. } | Op::StoreVector => (false, true),
            Op::Other(effects) => (effects.loads, effects.stores),
            _ => return None,
        };
        let bytes = Some(instruction.memory_bytes).filter(|bytes| *bytes > 0)?;
        let address = address(instruction, at, state).get()?;
        Some(MemoryAccess { address, bytes: bytes.into(), reads, writes })
    }

    fn decided(instruction: &Instruction, state: &State) -> Option<Comparison> {
        let (register, bytes, relation) = match instruction.op {
            Op::Branch(condition, _) => return state.compared?.asked(condition.test),
            Op::BranchIfZero { register, .. } => (register, instruction.bytes, Relation::Equal),
            // The sign.
            Op::BranchIfBit { register, bit: bit @ (31 | 63), .. } => {
                (register, (bit / 8 + 1) as u8, Relation::Less)
            }
            _ => return None,
        };
        let left = state.get(register).low(bytes).get()? & mask(bytes);
        Some(Comparison { left, right: 0, bytes, relation })
    }

    fn look_ahead(
        instruction: &Instruction,
        at: u64,
        ahead: &mut Ahead,
        view: &mut impl CodeView,
    ) -> Way {
        ahead::Reader { instruction, at, ahead, view }.execute()
    }
}

/// The address of an instruction's memory operand.
fn address(instruction: &Instruction, at: u64, state: &State) -> Bits {
    let address = match instruction.place {
        Place::None => Bits::UNKNOWN,
        Place::Relative(distance) => Bits::known(at.wrapping_add_signed(distance)),
        Place::At { base, distance, .. } => {
            state.get(base).plus(Bits::known(distance.cast_unsigned()))
        }
        Place::Indexed { base, index, bytes, signed, by } => {
            let index = execute::extended(state.get(index), bytes, signed);
            state.get(base).plus(index.left(by))
        }
    };
    address.sign_extended(execute::ADDRESS_WITHOUT_TAG)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use image::Vaddr;

    use crate::cfg::{Cfg, EdgeKind, Ending, FindingKind, Knowledge, Part, ReadOnly, Survey, To};
    use crate::isa::{Isa, Syntax};

    const BEGIN: u64 = 0x1000;
    /// Where tables are: the page after the code's.
    const TABLES: u64 = 0x2000;

    struct Tables<'a>(&'a [u8]);

    impl ReadOnly for Tables<'_> {
        fn constant(&mut self, address: Vaddr, len: u8) -> Option<u64> {
            let begin = usize::try_from(address.0.checked_sub(TABLES)?).ok()?;
            let bytes = self.0.get(begin..begin + usize::from(len))?;
            Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
        }
    }

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn graph(words: &[u32], tables: &[u8]) -> Cfg {
        let parts = [Part { begin: Vaddr(BEGIN), bytes: &bytes(words) }];
        Cfg::build(Isa::Aarch64, &parts, &mut Tables(tables), &Knowledge::default())
    }

    /// Where the jumps through tables go, as distances from the start, without those that are there
    /// twice.
    fn cases(graph: &Cfg) -> Vec<u64> {
        let cases = graph.edges().iter().filter(|edge| edge.kind == EdgeKind::Case);
        let to = cases.filter_map(|edge| {
            if let To::Block(block) = edge.to { graph.blocks().get(block) } else { None }
        });
        to.map(|block| block.start.0 - BEGIN).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// A `bl` far away, `mov w0, #1`, `ret`.
    const BODY: [u32; 3] = [0x9400_2000, 0x5280_0020, 0xd65f_03c0];

    #[test]
    fn a_switch_of_gcc_goes_by_bytes_with_a_sign() {
        let head = [
            0x7100_081f, // cmp w0, #2
            0x5400_0108, // b.hi 0x1024
            0xa9bf_7bfd, // stp x29, x30, [sp, #-16]!
            0xb000_0001, // adrp x1, 0x2000
            0x9100_0021, // add x1, x1, #0
            0x3860_4821, // ldrb w1, [x1, w0, uxtw]
            0x1000_0060, // adr x0, 0x1024
            0x8b21_8801, // add x1, x0, w1, sxtb #2
            0xd61f_0020, // br x1
        ];
        let graph = graph(&[&head[..], &BODY, &BODY, &BODY].concat(), &[0, 3, 6, 0x7f]);
        assert_eq!(cases(&graph), [0x24, 0x30, 0x3c]);
        assert_eq!(graph.findings(), []);
        assert!(!graph.missing_edges());
    }

    #[test]
    fn a_switch_of_clang_goes_by_bytes_without() {
        let head = [
            0x7100_081f, // cmp w0, #2
            0x5400_0128, // b.hi 0x1028
            0x910003fd,  // mov x29, sp
            0x2a00_03e8, // mov w8, w0
            0xb000_0009, // adrp x9, 0x2000
            0x9100_0129, // add x9, x9, #0
            0x1000_008a, // adr x10, 0x1028
            0x3868_692b, // ldrb w11, [x9, x8]
            0x8b0b_094a, // add x10, x10, x11, lsl #2
            0xd61f_0140, // br x10
        ];
        let graph = graph(&[&head[..], &BODY, &BODY, &BODY].concat(), &[6, 3, 0, 0xff]);
        assert_eq!(cases(&graph), [0x28, 0x34, 0x40]);
        assert_eq!(graph.findings(), []);
    }

    #[test]
    fn labels_are_a_table_of_addresses_without_a_bound() {
        let code = [
            0xb000_0003, // adrp x3, 0x2000
            0x9100_0063, // add x3, x3, #0
            0x3840_1441, // ldrb w1, [x2], #1
            0xf861_7861, // ldr x1, [x3, x1, lsl #3]
            0xd61f_0020, // br x1
            0x3840_1441, // ldrb w1, [x2], #1
            0x9100_0c00, // add x0, x0, #3
            0xf861_7861, // ldr x1, [x3, x1, lsl #3]
            0xd61f_0020, // br x1
            0xd65f_03c0, // ret
        ];
        let table: Vec<u8> =
            [0x1014_u64, 0x1024, 0x1014, 7].iter().flat_map(|word| word.to_le_bytes()).collect();
        let graph = graph(&code, &table);
        assert_eq!(cases(&graph), [0x14, 0x24]);
        let kinds: Vec<FindingKind> = graph.findings().iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, [FindingKind::UnboundedTable], "one table");
    }

    #[test]
    fn what_is_compared_elsewhere_is_no_bound() {
        // The index is x5, what is compared is w0; a call in between loses x9: nothing is known of
        // where it goes.
        let code = [
            0xa9bf_7bfd, // stp x29, x30, [sp, #-16]!
            0x7100_081f, // cmp w0, #2
            0x5400_00c8, // b.hi 0x1020
            0xb000_0009, // adrp x9, 0x2000
            0x9400_2000, // bl 0x9010
            0x3865_692b, // ldrb w11, [x9, x5]
            0x8b0b_094a, // add x10, x10, x11, lsl #2
            0xd61f_0140, // br x10
            0xd65f_03c0, // ret
        ];
        let graph = graph(&code, &[6, 3, 0, 0xff]);
        assert_eq!(cases(&graph), [0; 0]);
        assert!(graph.missing_edges());
    }

    #[test]
    fn a_call_through_a_stub_of_what_does_not_return_ends_the_flow() {
        let code = [
            0xb400_0060, // cbz x0, 0x100c
            0x9400_0003, // bl 0x1010
            0xd503_201f, // nop
            0xd65f_03c0, // ret
            // The stub: adrp x16, 0x2000; ldr x17, [x16, #8]; add x16, x16, #8; br x17
            0xb000_0010,
            0xf940_0611,
            0x9100_2210,
            0xd61f_0220,
        ];
        let (code, word) = (bytes(&code), TABLES + 8);
        let text = [Part { begin: Vaddr(BEGIN), bytes: &code }];
        let procedures = [BEGIN..BEGIN + 16, BEGIN + 16..BEGIN + 32];
        let survey = Survey::of(Isa::Aarch64, &text, &procedures, [Vaddr(word)]);
        assert!(survey.no_return().contains(&Vaddr(0x1010)));
        let build = |range: std::ops::Range<usize>| {
            let parts = [Part { begin: Vaddr(BEGIN + range.start as u64), bytes: &code[range] }];
            let knowledge = Knowledge { no_return: Some(survey.no_return()), observed: &[] };
            Cfg::build(Isa::Aarch64, &parts, &mut Tables(&[]), &knowledge)
        };
        let graph = build(0..16);
        let endings: Vec<Ending> = graph.blocks().iter().map(|block| block.ending).collect();
        assert_eq!(endings, [Ending::Conditional, Ending::NoReturn, Ending::Next, Ending::Return]);
        assert!(graph.blocks()[2].padding);
        let graph = build(16..32);
        assert_eq!(graph.edges().iter().map(|edge| edge.to).collect::<Vec<_>>(), [To::Nowhere]);
    }

    #[test]
    fn any_words_have_a_graph_and_a_listing() {
        let mut random = fastrand::Rng::with_seed(3);
        // Words in the middle of what jumps and loads, so that there is something to follow.
        let heads = [
            0x1000_0000_u32,
            0x3860_4800,
            0x5400_0000,
            0x7100_0000,
            0x8b20_8800,
            0x9000_0000,
            0xd61f_0000,
            0xf860_7800,
        ];
        for _ in 0..2000 {
            let word = |random: &mut fastrand::Rng| match random.u8(..3) {
                0 => random.u32(..),
                _ => heads[random.usize(..heads.len())] | random.u32(..) & 0x000f_fcff,
            };
            let mut code = bytes(&(0..60).map(|_| word(&mut random)).collect::<Vec<_>>());
            code.truncate(random.usize(200..=code.len()));
            let tables: Vec<u8> = (0..600).map(|_| random.u8(..)).collect();
            let begin = if random.u8(..9) == 0 { random.u64(..) } else { BEGIN };
            let parts = [Part { begin: Vaddr(begin), bytes: &code }];
            let graph =
                Cfg::build(Isa::Aarch64, &parts, &mut Tables(&tables), &Knowledge::default());
            for (number, block) in graph.blocks().iter().enumerate() {
                assert!(block.padding || !graph.out_of(number).is_empty(), "{:x}", block.start.0);
            }
            let lines = Isa::Aarch64.disassemble(&code, Vaddr(begin), Syntax::Att);
            assert_eq!(lines.iter().map(|line| line.len).sum::<usize>(), code.len());
            assert!(
                code.chunks(4).all(|word| Isa::Aarch64.work(word).is_none_or(|work| work.len == 4))
            );
        }
    }
}

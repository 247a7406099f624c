//! x86-64 in 64-bit mode, decoded by iced-x86. Facts about instructions are from the Intel SDM
//! volume 2 and the AMD64 APM volume 3.

mod ahead;
mod arithmetic;
mod compared;
mod decode;
mod execute;
mod flags;
mod order;
mod text;
mod track;
mod work;

use iced_x86::InstructionInfoFactory;

pub use decode::Instruction;
pub use flags::Flags;
pub(in crate::isa) use order::order;
pub(in crate::isa) use text::disassemble;
pub(in crate::isa) use track::Tracker;
pub(in crate::isa) use work::{form_name, forms, work};

use super::compared::Compared;
use crate::interpret::{
    Ahead, Bits, CodeView, Comparison, InstructionSet, Memory, MemoryAccess, Step, Way,
};

/// General registers.
pub const REGISTERS: usize = 16;

/// x86-64 in 64-bit mode.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct X86_64;

/// Registers and flags of a thread, as far as they are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// In the order of instructions: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
    pub registers: [Bits; REGISTERS],
    /// The flags.
    pub flags: Flags,
    /// The comparison that set the flags.
    compared: Option<Compared>,
}

impl State {
    /// A state in which all is known: the general registers (rax, rcx, rdx, rbx, rsp, rbp, rsi,
    /// rdi, r8 to r15) and RFLAGS of a thread.
    pub fn sampled(registers: [u64; REGISTERS], rflags: u64) -> Self {
        X86_64::sampled(&registers, rflags)
    }

    /// Whether the processor may be in that state: no known bit differs.
    pub fn may_be(&self, registers: [u64; REGISTERS], rflags: u64) -> bool {
        self.registers.iter().zip(registers).all(|(known, value)| known.may_be(value))
            && self.flags.may_be(rflags)
    }
}

/// Working memory of the decoder.
#[derive(Debug)]
pub struct Decoder(InstructionInfoFactory);

impl Default for Decoder {
    fn default() -> Self {
        Self(InstructionInfoFactory::new())
    }
}

impl InstructionSet for X86_64 {
    type State = State;
    type Instruction = Instruction;
    type Decoder = Decoder;
    const LEN_MAX: usize = decode::LEN_MAX;
    const REGISTERS: usize = REGISTERS;
    const STACK_POINTER: u8 = 4;

    fn sampled(registers: &[u64], rflags: u64) -> State {
        let register = |number: usize| registers.get(number).copied().map(Bits::known);
        State {
            registers: std::array::from_fn(|number| register(number).unwrap_or(Bits::UNKNOWN)),
            flags: Flags::sampled(rflags),
            compared: None,
        }
    }

    fn decode(decoder: &mut Decoder, bytes: &[u8]) -> Option<Instruction> {
        Instruction::decode(bytes, &mut decoder.0)
    }

    fn len(instruction: &Instruction) -> usize {
        usize::from(instruction.len)
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
        let bytes = Some(instruction.memory_bytes).filter(|bytes| *bytes > 0)?;
        let address = address(instruction, at, state).get()?;
        let writes = instruction.effects.memory != decode::Written::Nothing;
        Some(MemoryAccess { address, bytes, reads: instruction.reads_memory, writes })
    }

    fn decided(instruction: &Instruction, state: &State) -> Option<Comparison> {
        let decode::Op::Branch(condition) = instruction.op else { return None };
        state.compared?.asked(condition.test)
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
    match instruction.place {
        decode::Place::Relative(displacement) => Bits::known(at.wrapping_add_signed(displacement)),
        decode::Place::At { base, index, scale, displacement } => {
            let register = |number: u8| state.registers.get(usize::from(number)).copied();
            let part = |number: Option<u8>| {
                number.map_or(Bits::ZERO, |number| register(number).unwrap_or(Bits::UNKNOWN))
            };
            let scaled = part(index).left(u32::from(scale).checked_ilog2().unwrap_or(0));
            part(base).plus(scaled).plus(Bits::known(displacement as u64))
        }
        decode::Place::Unknown | decode::Place::Guard => Bits::UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use image::{ImageOffset, Vaddr};

    use super::*;
    use crate::interpret::BranchKind::{self, Call, IndirectJump, Jump, NotTaken, Return, Taken};
    use crate::interpret::{Place, STEPS_MAX, Stop, Walker, Window};

    /// Code at 0x1000, a table of jumps at 0x1107.
    struct Code<'a>(&'a [u8]);

    impl CodeView for Code<'_> {
        fn place(&mut self, _: Vaddr) -> Option<Place> {
            let end = Vaddr(0x1000 + self.0.len() as u64);
            Some(Place { image: 0, begin: Vaddr(0x1000), end, offset: ImageOffset(0) })
        }
        fn bytes(&mut self, _: u32, offset: ImageOffset, into: &mut [u8]) -> usize {
            let rest = &self.0[offset.0 as usize..];
            let len = rest.len().min(into.len());
            into[..len].copy_from_slice(&rest[..len]);
            len
        }
        fn constant(&mut self, address: Vaddr, len: u8) -> Option<u64> {
            // The distance from the table to 0x1000.
            (address.0 == 0x1107 + 3 * 4 && len == 4).then_some(0xffff_fef9)
        }
    }

    /// With rsp at a window of five words, rdi 3, all else 0. Of each branch: its kind and where it
    /// goes.
    fn walk(code: &[u8], window: [u64; 5]) -> (Vec<(BranchKind, u64)>, Stop) {
        let mut registers = [0; 16];
        (registers[4], registers[7]) = (0x8000, 3);
        let bytes: Vec<u8> = window.iter().flat_map(|word| word.to_le_bytes()).collect();
        let window = Window { begin: Vaddr(0x8000), bytes: &bytes, lines: &[] };
        let mut walker = Walker::<X86_64>::new(64);
        let (edges, stop) =
            walker.walk(Vaddr(0x1000), State::sampled(registers, 0), window, &mut Code(code));
        (edges.iter().map(|edge| (edge.kind, edge.to.0)).collect(), stop)
    }

    #[test]
    fn a_kept_instruction_is_as_small_as_the_limits_say() {
        assert!(size_of::<Option<(u32, ImageOffset, Instruction)>>() <= 128);
    }

    #[test]
    fn a_counted_loop_and_the_return_after_it() {
        // mov ecx, 2; L: dec ecx; jne L; ret
        let code = [0xb9, 2, 0, 0, 0, 0xff, 0xc9, 0x75, 0xfc, 0xc3];
        let edges = vec![(Taken, 0x1005), (NotTaken, 0x1009), (Return, 0x4321)];
        assert_eq!(walk(&code, [0x4321, 0, 0, 0, 0]), (edges, Stop::NoCode));
    }

    #[test]
    fn a_call_returns_to_after_it() {
        // call F; ud2; F: push rbp; pop rbp; ret
        let code = [0xe8, 2, 0, 0, 0, 0x0f, 0x0b, 0x55, 0x5d, 0xc3];
        assert_eq!(
            walk(&code, [0; 5]),
            (vec![(Call, 0x1007), (Return, 0x1005)], Stop::NotFollowed)
        );
    }

    #[test]
    fn a_table_of_jumps_is_looked_up() {
        // lea rdx, [rip+0x100]; movsxd rax, dword [rdx+rdi*4]; add rax, rdx; jmp rax
        let code =
            [0x48, 0x8d, 0x15, 0, 1, 0, 0, 0x48, 0x63, 0x04, 0xba, 0x48, 0x01, 0xd0, 0xff, 0xe0];
        let (edges, stop) = walk(&code, [0; 5]);
        // It goes to its own begin, until the walk is long enough.
        assert_eq!(edges, vec![(IndirectJump, 0x1000); STEPS_MAX / 4]);
        assert_eq!(stop, Stop::Steps);
    }

    #[test]
    fn the_guard_of_a_stack_frame_is_what_it_was() {
        // mov rax, [rsp+8]; sub rax, fs:[0x28]; jne +0x10; jmp $-20
        let code = [
            0x48, 0x8b, 0x44, 0x24, 8, 0x64, 0x48, 0x2b, 0x04, 0x25, 0x28, 0, 0, 0, 0x75, 0x10,
            0x0f, 0x0b,
        ];
        assert_eq!(walk(&code, [0; 5]), (vec![(NotTaken, 0x1010)], Stop::NotFollowed));
        // Another word of the thread may be anything.
        let code = code.map(|byte| if byte == 0x28 { 0x30 } else { byte });
        assert_eq!(walk(&code, [0; 5]), (vec![], Stop::UnknownCondition));
    }

    #[test]
    fn a_store_through_an_unknown_pointer_leaves_return_addresses_only() {
        // mov rax, [rdi]; mov [rax], ecx; then: mov ecx, [rsp]; test ecx, ecx; jne +0 | ret
        let store = [0x48, 0x8b, 0x07, 0x89, 0x08];
        let load = [&store[..], &[0x8b, 0x0c, 0x24, 0x85, 0xc9, 0x75, 0]].concat();
        assert_eq!(walk(&load, [0x4321, 0, 0, 0, 0]), (vec![], Stop::UnknownCondition));
        assert_eq!(
            walk(&load[3..], [0x4321, 0, 0, 0, 0]),
            (vec![(Taken, 0x1009)], Stop::NoCode),
            "a known one elsewhere"
        );
        assert_eq!(
            walk(&[&store[..], &[0xc3]].concat(), [0x4321, 0, 0, 0, 0]),
            (vec![(Return, 0x4321)], Stop::NoCode)
        );
    }

    #[test]
    fn prefixes_that_processors_take_differently_end_a_walk() {
        assert_eq!(walk(&[0xeb, 0], [0; 5]), (vec![(Jump, 0x1002)], Stop::NoCode));
        assert_eq!(walk(&[0x66, 0xeb, 0], [0; 5]), (vec![], Stop::NotFollowed));
        assert_eq!(walk(&[0x66, 0xc3], [0; 5]), (vec![], Stop::NotFollowed));
    }
}

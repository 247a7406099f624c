//! Blocks of bursts: a piece of the program's code whose memory operands are known where it begins,
//! and whose end comes to the engine, which records what is executed and takes the branch itself.
//!
//! They are blocks like others, with counters of their own, so counts stay exact, and a signal
//! finds the program's state in them. Indirect branches and the engine alone lead to them.

use super::Cache;
use super::translate::leaves_procedure;
use crate::area::writer::Area;
use crate::context::Context;
use crate::decode::{Decoded, End};
use crate::emit::Emitter;
use alloc::vec::Vec;
use iced_x86::{
    Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess, Register,
    UsedMemory,
};

/// Instructions of a block of a burst: their number has 4 bits in a record.
const INSTRUCTIONS_MAX: usize = 16;
/// Lines of memory that are recorded of one string instruction.
pub const LINES_MAX: u64 = 64;

/// A block of a burst.
pub struct Step {
    pub block: u32,
    pub end: End,
    /// Address of the last instruction.
    pub last: u64,
    /// Address behind it.
    pub next: u64,
    /// Condition of a conditional branch, as its machine code has it.
    pub condition: u8,
    /// Where an indirect branch finds its target.
    pub target: Source,
    /// Whether the targets of the indirect branch are counted, one by one.
    pub counted: bool,
    /// Counters by target.
    pub targets: Vec<(u64, u32)>,
    pub operands: Vec<Operand>,
}

/// Where a target is.
#[derive(Clone, Copy)]
pub enum Source {
    Register(u8),
    Memory(Operand),
    Stack,
}

/// An operand in memory.
#[derive(Clone, Copy)]
pub struct Operand {
    /// Numbers of registers, or [`NO_REGISTER`].
    base: u8,
    index: u8,
    scale: u8,
    /// Addresses have 32 bits.
    short: bool,
    /// Relative to %fs.
    of_thread: bool,
    /// As often as rcx says.
    pub repeats: bool,
    pub bytes: u8,
    pub stores: bool,
    /// Number of the instruction in its block.
    pub instruction: u8,
    displacement: u64,
}

const NO_REGISTER: u8 = 16;

impl Operand {
    fn of(memory: &UsedMemory, stores: bool, instruction: usize) -> Option<Self> {
        let number = |register: Register| match register {
            // The displacement is the address.
            Register::None | Register::RIP | Register::EIP => Some(NO_REGISTER),
            _ if register.is_gpr32() || register.is_gpr64() => Some(register.number() as u8),
            // Vectors of indices are not known to the engine.
            _ => None,
        };
        let registers = [memory.base(), memory.index()];
        let bytes = memory.memory_size().size().clamp(1, 64);
        Some(Self {
            base: number(memory.base())?,
            index: number(memory.index())?,
            scale: memory.scale() as u8,
            short: registers.iter().any(|register| register.is_gpr32()),
            of_thread: memory.segment() == Register::FS,
            repeats: false,
            bytes: bytes as u8,
            stores,
            instruction: instruction as u8,
            displacement: memory.displacement(),
        })
    }

    /// The address, by the registers of the program; `thread` is the base of %fs.
    pub fn address(&self, context: Context, thread: u64) -> u64 {
        let value = |register: u8| if register < 16 { context.register(register) } else { 0 };
        let scaled = value(self.index).wrapping_mul(u64::from(self.scale));
        let sum = value(self.base).wrapping_add(scaled).wrapping_add(self.displacement);
        let sum = if self.short { sum & 0xffff_ffff } else { sum };
        sum.wrapping_add(if self.of_thread { thread } else { 0 })
    }

    /// Registers that the address depends on, as bits.
    fn registers(&self) -> u32 {
        (1 << self.base | 1 << self.index | u32::from(self.repeats) << 1) & 0xffff
    }
}

/// Whether the engine takes branches of this kind itself in bursts.
fn is_taken_by_engine(end: End, last: &Instruction) -> bool {
    match end {
        End::Conditional(_) => last.is_jcc_short_or_near(),
        End::Jump(_) | End::Call(_) | End::IndirectCall | End::IndirectJump | End::Return(_) => {
            true
        }
        _ => false,
    }
}

/// Operands of an instruction in memory, and the registers that it writes, as bits.
fn operands(
    information: &mut InstructionInfoFactory,
    instruction: &Instruction,
    number: usize,
    into: &mut Vec<Operand>,
) -> u32 {
    let info = information.info_options(instruction, InstructionInfoOptions::NONE);
    for memory in info.used_memory() {
        let (loads, stores) = match memory.access() {
            OpAccess::Read | OpAccess::CondRead => (true, false),
            OpAccess::Write | OpAccess::CondWrite => (false, true),
            OpAccess::ReadWrite | OpAccess::ReadCondWrite => (true, true),
            OpAccess::None | OpAccess::NoMemAccess => continue,
        };
        let repeats = instruction.has_rep_prefix() || instruction.has_repne_prefix();
        let repeats = repeats && instruction.is_string_instruction();
        for stores in [loads.then_some(false), stores.then_some(true)].into_iter().flatten() {
            let operand = Operand::of(memory, stores, number);
            into.extend(operand.map(|operand| Operand { repeats, ..operand }));
        }
    }
    let writes =
        |access: OpAccess| !matches!(access, OpAccess::None | OpAccess::Read | OpAccess::CondRead);
    let written = info.used_registers().iter().filter(|used| writes(used.access()));
    let written = written.map(|used| used.register()).filter(|register| register.is_gpr());
    written.fold(0, |all, register| all | 1 << register.full_register().number())
}

impl Cache {
    /// The block of a burst at an address; None where the program's instruction there is one that
    /// bursts leave to ordinary code.
    pub fn step_block(&mut self, at: u64, area: &mut Area) -> Option<u32> {
        if let Some(known) = self.step_at.get(at)
            && let Some(step) = self.steps.get(known as usize)
            && self.blocks.get(step.block as usize).is_some_and(|block| !block.dropped)
        {
            return Some(known);
        }
        self.translate_step(at, area)
    }

    pub fn step_of(&mut self, step: u32) -> Option<&mut Step> {
        self.steps.get_mut(step as usize)
    }

    /// Whether the code of a block has changed or gone.
    pub fn is_dropped(&self, block: u32) -> bool {
        self.blocks.get(block as usize).is_none_or(|block| block.dropped)
    }

    fn translate_step(&mut self, at: u64, area: &mut Area) -> Option<u32> {
        self.require_room();
        self.regions.find(at, area)?;
        let mut decoded = core::mem::take(&mut self.decoded);
        let end = self.decode(at, &mut decoded, area);
        let step = end.and_then(|end| self.emit_step(&decoded, end, area));
        self.decoded = decoded;
        let step = step?;
        let number = self.steps.len() as u32;
        self.steps.push(step);
        self.step_at.insert(at, number);
        Some(number)
    }

    fn emit_step(&mut self, decoded: &[Decoded], end: End, area: &mut Area) -> Option<Step> {
        let mut information = InstructionInfoFactory::new();
        let last = decoded.last()?;
        let ends = is_taken_by_engine(end, &last.instruction);
        // Other ends are not part of it.
        let most = match end {
            End::Cut => decoded.len(),
            _ => decoded.len() - usize::from(!ends),
        };
        let (mut all, mut written, mut taken) = (Vec::new(), 0, 0);
        for (number, one) in decoded.iter().take(most.min(INSTRUCTIONS_MAX)).enumerate() {
            let before = all.len();
            let writes = operands(&mut information, &one.instruction, number, &mut all);
            let needs = all.iter().skip(before).fold(0, |bits, one| bits | one.registers());
            let reads_target = ends && number + 1 == decoded.len();
            if needs & written != 0 && !reads_target {
                all.truncate(before);
                break;
            }
            if reads_target {
                // The engine takes the branch when the rest is done.
                all.truncate(before);
            }
            written |= writes;
            taken += 1;
        }
        let decoded = decoded.get(..taken).filter(|taken| !taken.is_empty())?;
        let is_whole = ends && taken == most;
        let end = if is_whole { end } else { End::Cut };
        self.emit_step_of(decoded, end, all, area)
    }

    fn emit_step_of(
        &mut self,
        decoded: &[Decoded],
        end: End,
        operands: Vec<Operand>,
        area: &mut Area,
    ) -> Option<Step> {
        let (last, block) = (decoded.last()?, self.blocks.len() as u32);
        let mut code = Emitter { at: (self.hot + 63) & !63 };
        let begin = code.at;
        self.emit_block(&mut code, decoded, (end, true), (begin, 0), area);
        self.hot = code.at;
        let target = match end {
            End::IndirectCall | End::IndirectJump => source(&last.instruction)?,
            _ => Source::Stack,
        };
        let counted = match end {
            End::IndirectCall => area.counts_edges(),
            End::IndirectJump => {
                area.counts_jumps() || leaves_procedure(decoded) && area.counts_edges()
            }
            _ => false,
        };
        Some(Step {
            block,
            end,
            last: last.address(),
            next: last.instruction.next_ip(),
            condition: (last.instruction.condition_code() as u8).wrapping_sub(1),
            target,
            counted,
            targets: Vec::new(),
            operands,
        })
    }

    /// The entry of a block of a burst.
    pub fn step_entry(&self, step: u32) -> Option<u64> {
        Some(self.entry(self.steps.get(step as usize)?.block))
    }
}

/// Where an indirect branch finds its target.
fn source(instruction: &Instruction) -> Option<Source> {
    if instruction.op0_register() != Register::None {
        return Some(Source::Register(instruction.op0_register().full_register().number() as u8));
    }
    let is_plain = matches!(instruction.mnemonic(), Mnemonic::Jmp | Mnemonic::Call);
    let mut information = InstructionInfoFactory::new();
    let info = information.info(instruction);
    let read = info.used_memory().iter().find(|memory| memory.access() == OpAccess::Read);
    read.filter(|_| is_plain).and_then(|read| Operand::of(read, false, 0)).map(Source::Memory)
}

/// Whether a condition of machine code holds (Intel SDM, volume 1, appendix B).
pub fn holds(condition: u8, flags: u64) -> bool {
    let flag = |bit: u32| flags >> bit & 1 != 0;
    let (carry, parity, zero, sign, overflow) = (flag(0), flag(2), flag(6), flag(7), flag(11));
    let plain = match condition >> 1 {
        0 => overflow,
        1 => carry,
        2 => zero,
        3 => carry || zero,
        4 => sign,
        5 => parity,
        6 => sign != overflow,
        _ => zero || sign != overflow,
    };
    plain != (condition & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_hold_as_the_processor_says() {
        let (carry, zero, sign, overflow) = (1, 1 << 6, 1 << 7, 1 << 11);
        // jb, jae, je, jne, ja, jl, jge, jg
        for (condition, flags, is) in [
            (2, carry, true),
            (3, carry, false),
            (4, zero, true),
            (5, zero, false),
            (7, 0, true),
            (7, zero, false),
            (12, sign, true),
            (12, sign | overflow, false),
            (13, sign | overflow, true),
            (15, 0, true),
            (15, zero, false),
        ] {
            assert_eq!(holds(condition, flags), is, "{condition} {flags:#x}");
        }
    }
}

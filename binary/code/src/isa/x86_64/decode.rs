//! Decodes bytes to an instruction in the form that the interpreter executes and caches. The form
//! has no address, so one copy serves every process that has the code mapped.

use iced_x86::{
    Code, ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction as Decoded,
    InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register, RflagsBits,
};

use super::flags::Flags;
use crate::isa::arithmetic::Shift;
use crate::isa::flags::{Condition, Test};

/// Bytes of the longest instruction (Intel SDM volume 2, 2.3.11).
pub(super) const LEN_MAX: usize = 15;
/// Displacement of `fs:0x28`, the thread's word that guards stacks (System V ABI for x86-64, as gcc
/// and glibc use it).
const STACK_GUARD: i64 = 0x28;

/// The operation of an instruction.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// Copies the second operand to the first, with zeros above it.
    Mov,
    /// Copies the second operand to the first, with copies of the sign above it.
    MovSigned,
    Lea,
    Add,
    Adc,
    Sub,
    Sbb,
    Cmp,
    And,
    Andn,
    Test,
    Or,
    Xor,
    Inc,
    Dec,
    Neg,
    Not,
    Shift(Shift),
    /// Shifts by a count in a register, without flags (BMI2).
    ShiftWithoutFlags(Shift),
    /// `imul` with two or three operands.
    Multiply,
    /// `mul` and `imul` with one operand.
    MultiplyWide {
        signed: bool,
    },
    Divide {
        signed: bool,
    },
    Set(Condition),
    CMov(Condition),
    Push,
    Pop,
    Leave,
    Bit(BitOp),
    Xchg,
    CmpXchg,
    XAdd,
    ByteSwap,
    /// `cbw`, `cwde`, `cdqe`: extends to this many bytes.
    ExtendA(u8),
    /// `cwd`, `cdq`, `cqo`: of a number of this many bytes.
    SignOfA(u8),
    Count(Count),
    Carry(Option<bool>),
    Direction(bool),
    /// `rep movs` and `rep stos`; `movs` and `stos` without it.
    Strings {
        repeated: bool,
        loads: bool,
    },
    Nop,
    /// Any other operation: everything that it writes is unknown afterwards.
    Other,
    Jump,
    JumpTo,
    Branch(Condition),
    /// `jrcxz`.
    BranchIfCounted,
    Loop,
    Call,
    CallTo,
    Return,
    /// The walk ends here.
    Stop,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum BitOp {
    Test,
    Set,
    Reset,
    Complement,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Count {
    Ones,
    TrailingZeros,
    LeadingZeros,
    /// `bsf`: the result of 0 is unknown.
    ScanForward,
    /// `bsr`.
    ScanReverse,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    None,
    /// A register, or its lowest part.
    Register {
        number: u8,
        bytes: u8,
    },
    /// ah, ch, dh or bh.
    High(u8),
    Immediate(i64),
    /// The memory operand, with its size in bytes.
    Memory(u8),
}

/// The place of a memory operand.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    At {
        base: Option<u8>,
        index: Option<u8>,
        scale: u8,
        displacement: i64,
    },
    /// Relative to this instruction's first byte.
    Relative(i64),
    /// An address that is not computed: relative to fs or gs, of 32 bits, or with a vector as
    /// index.
    Unknown,
    /// The stack's guard word.
    Guard,
}

/// Registers, flags and memory that become unknown after an operation that is not modelled.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Effects {
    /// General registers, one bit each.
    pub(super) registers: u16,
    pub(super) flags_unknown: u8,
    pub(super) flags_clear: u8,
    pub(super) flags_set: u8,
    pub(super) memory: Written,
}

/// The memory that an operation writes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Written {
    Nothing,
    /// This many bytes at the memory operand.
    Operand(u16),
    Anything,
}

/// An instruction.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    pub(super) op: Op,
    /// Length in bytes, 1 to 15.
    pub(super) len: u8,
    /// Bytes of its operands.
    pub(super) bytes: u8,
    /// Whether other threads may change its memory operand meanwhile: it is locked.
    pub(super) shared: bool,
    pub(super) operands: [Operand; 3],
    pub(super) place: Place,
    /// Bytes of its memory operand; 0: none, or of a size that depends on the state.
    pub(super) memory_bytes: u16,
    /// Whether it reads the operand.
    pub(super) reads_memory: bool,
    /// Target of a direct jump or call, relative to the instruction's first byte.
    pub(super) target: i64,
    pub(super) effects: Effects,
}

impl Instruction {
    /// Decodes the instruction that `bytes` begin with.
    pub(super) fn decode(bytes: &[u8], factory: &mut InstructionInfoFactory) -> Option<Self> {
        let mut decoder = Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE);
        let decoded = decoder.decode();
        if decoded.is_invalid() {
            return None;
        }
        let effects = effects(&decoded, factory);
        let mut this = Self {
            op: Op::Other,
            len: u8::try_from(decoded.len()).ok()?,
            bytes: 8,
            shared: decoded.has_lock_prefix() || (decoded.mnemonic() == Mnemonic::Xchg),
            operands: [Operand::None; 3],
            place: place(&decoded),
            memory_bytes: memory_bytes(&decoded),
            reads_memory: reads_memory(&decoded, factory),
            target: decoded.near_branch64() as i64,
            effects,
        };
        this.op = match decoded.flow_control() {
            FlowControl::Next => operation(&decoded),
            // With an operand-size prefix, processors of AMD cut the address to 16 bits and those
            // of Intel do not.
            _ if Decoder::with_ip(64, bytes, 0, DecoderOptions::AMD).decode() != decoded => {
                Op::Stop
            }
            _ => flow(&decoded),
        };
        if !matches!(this.op, Op::Other | Op::Stop | Op::Nop | Op::Strings { .. })
            && !this.take_operands(&decoded)
        {
            this.op =
                if decoded.flow_control() == FlowControl::Next { Op::Other } else { Op::Stop };
        }
        let before_opcode = decoded.len().checked_sub(2).and_then(|index| bytes.get(index));
        if decoded.mnemonic() == Mnemonic::Pause
            && before_opcode.is_some_and(|byte| byte & 0xf0 == 0x40)
        {
            // With a REX prefix the instruction exchanges registers, whatever other prefixes it
            // has.
            this.op = Op::Stop;
        }
        if matches!(this.op, Op::Strings { .. }) {
            // The first operand is written, or read and not written.
            this.bytes = u8::try_from(decoded.memory_size().size()).unwrap_or(0);
        }
        Some(this)
    }

    /// Adds the operands; false if one is of a kind that is not followed.
    fn take_operands(&mut self, decoded: &Decoded) -> bool {
        // The stack memory of `push` and similar instructions is not among these.
        for number in 0..decoded.op_count() {
            let Some(place) = self.operands.get_mut(number as usize) else { return false };
            *place = match decoded.op_kind(number) {
                OpKind::Register => match register(decoded.op_register(number)) {
                    Some(operand) => operand,
                    None => return false,
                },
                OpKind::Memory => match decoded.memory_size().size() {
                    _ if self.op == Op::Lea => Operand::Memory(8),
                    size @ (1 | 2 | 4 | 8) => Operand::Memory(size as u8),
                    _ => return false,
                },
                OpKind::NearBranch64 => Operand::None,
                _ => match decoded.try_immediate(number) {
                    Ok(value) => Operand::Immediate(value as i64),
                    Err(_) => return false,
                },
            };
        }
        self.bytes = match self.operands[0] {
            Operand::Register { bytes, .. } | Operand::Memory(bytes) => bytes,
            Operand::High(_) => 1,
            Operand::Immediate(_) | Operand::None => 8,
        };
        true
    }
}

fn register(register: Register) -> Option<Operand> {
    if matches!(register, Register::AH | Register::CH | Register::DH | Register::BH) {
        return Some(Operand::High(number_of(register)?));
    }
    let bytes = u8::try_from(register.size()).ok()?;
    Some(Operand::Register { number: number_of(register)?, bytes })
}

/// Bytes of the memory operand that is read or written.
fn memory_bytes(decoded: &Decoded) -> u16 {
    let is_operand = (0..decoded.op_count()).any(|at| decoded.op_kind(at) == OpKind::Memory);
    let computes = matches!(decoded.mnemonic(), Mnemonic::Lea | Mnemonic::Nop);
    let size = u16::try_from(decoded.memory_size().size()).unwrap_or(0);
    if is_operand && !computes { size } else { 0 }
}

fn reads_memory(decoded: &Decoded, factory: &mut InstructionInfoFactory) -> bool {
    let writes_only = |access| matches!(access, OpAccess::Write | OpAccess::CondWrite);
    factory.info(decoded).used_memory().iter().any(|used| !writes_only(used.access()))
}

/// Number of a register in encodings, 0 to 15: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8...
fn number_of(register: Register) -> Option<u8> {
    register
        .is_gpr()
        .then(|| u8::try_from(register.full_register().number()).ok())?
        .filter(|&number| number < 16)
}

fn place(decoded: &Decoded) -> Place {
    let (base, index) = (decoded.memory_base(), decoded.memory_index());
    // The displacement is relative to an instruction at address 0, so its wrap is right at any
    // address.
    let displacement = decoded.memory_displacement64() as i64;
    if decoded.memory_segment() == Register::FS
        && displacement == STACK_GUARD
        && (base, index) == (Register::None, Register::None)
    {
        return Place::Guard;
    }
    if matches!(decoded.memory_segment(), Register::FS | Register::GS) {
        return Place::Unknown;
    }
    if base == Register::RIP {
        return if index == Register::None {
            Place::Relative(displacement)
        } else {
            Place::Unknown
        };
    }
    let part = |register: Register| match register {
        Register::None => Ok(None),
        register if register.is_gpr64() => Ok(number_of(register)),
        _ => Err(()),
    };
    // The decoder extends an absolute address of 32 bits as the processor does.
    match (part(base), part(index)) {
        (Ok(base), Ok(index)) => {
            let scale = decoded.memory_index_scale() as u8;
            Place::At { base, index, scale, displacement }
        }
        _ => Place::Unknown,
    }
}

fn flow(decoded: &Decoded) -> Op {
    match decoded.code() {
        Code::Jmp_rel8_64 | Code::Jmp_rel32_64 => Op::Jump,
        Code::Jmp_rm64 => Op::JumpTo,
        Code::Call_rel32_64 => Op::Call,
        Code::Call_rm64 => Op::CallTo,
        Code::Retnq | Code::Retnq_imm16 => Op::Return,
        Code::Jrcxz_rel8_64 => Op::BranchIfCounted,
        Code::Loop_rel8_64_RCX => Op::Loop,
        _ if decoded.mnemonic() == Mnemonic::Loope || decoded.mnemonic() == Mnemonic::Loopne => {
            Op::Stop
        }
        _ if decoded.flow_control() == FlowControl::ConditionalBranch
            && decoded.op_kind(0) == OpKind::NearBranch64 =>
        {
            condition(decoded).map_or(Op::Stop, Op::Branch)
        }
        _ => Op::Stop,
    }
}

fn condition(decoded: &Decoded) -> Option<Condition> {
    let (test, negated) = match decoded.condition_code() {
        ConditionCode::None => return None,
        ConditionCode::o => (Test::Overflow, false),
        ConditionCode::no => (Test::Overflow, true),
        ConditionCode::b => (Test::Below, false),
        ConditionCode::ae => (Test::Below, true),
        ConditionCode::e => (Test::Equal, false),
        ConditionCode::ne => (Test::Equal, true),
        ConditionCode::be => (Test::BelowOrEqual, false),
        ConditionCode::a => (Test::BelowOrEqual, true),
        ConditionCode::s => (Test::Sign, false),
        ConditionCode::ns => (Test::Sign, true),
        ConditionCode::p => (Test::Parity, false),
        ConditionCode::np => (Test::Parity, true),
        ConditionCode::l => (Test::Less, false),
        ConditionCode::ge => (Test::Less, true),
        ConditionCode::le => (Test::LessOrEqual, false),
        ConditionCode::g => (Test::LessOrEqual, true),
    };
    Some(Condition { test, negated })
}

fn operation(decoded: &Decoded) -> Op {
    if decoded.op_count() > 0
        && decoded.op_kind(0) == OpKind::Register
        && decoded.op_register(0).is_segment_register()
    {
        return Op::Stop;
    }
    if let Some(op) = by_code(decoded) {
        return op;
    }
    match decoded.mnemonic() {
        Mnemonic::Mov | Mnemonic::Movzx => Op::Mov,
        Mnemonic::Movsx | Mnemonic::Movsxd => Op::MovSigned,
        Mnemonic::Lea => Op::Lea,
        Mnemonic::Add => Op::Add,
        Mnemonic::Adc => Op::Adc,
        Mnemonic::Sub => Op::Sub,
        Mnemonic::Sbb => Op::Sbb,
        Mnemonic::Cmp => Op::Cmp,
        Mnemonic::And => Op::And,
        Mnemonic::Andn => Op::Andn,
        Mnemonic::Test => Op::Test,
        Mnemonic::Or => Op::Or,
        Mnemonic::Xor => Op::Xor,
        Mnemonic::Inc => Op::Inc,
        Mnemonic::Dec => Op::Dec,
        Mnemonic::Neg => Op::Neg,
        Mnemonic::Not => Op::Not,
        Mnemonic::Imul if decoded.op_count() == 1 => Op::MultiplyWide { signed: true },
        Mnemonic::Imul => Op::Multiply,
        Mnemonic::Mul => Op::MultiplyWide { signed: false },
        Mnemonic::Div => Op::Divide { signed: false },
        Mnemonic::Idiv => Op::Divide { signed: true },
        Mnemonic::Xchg => Op::Xchg,
        Mnemonic::Cmpxchg => Op::CmpXchg,
        Mnemonic::Xadd => Op::XAdd,
        Mnemonic::Bswap => Op::ByteSwap,
        Mnemonic::Stc => Op::Carry(Some(true)),
        Mnemonic::Clc => Op::Carry(Some(false)),
        Mnemonic::Cmc => Op::Carry(None),
        Mnemonic::Cld => Op::Direction(false),
        Mnemonic::Std => Op::Direction(true),
        // Hints, fences, and marks of branch targets.
        Mnemonic::Nop
        | Mnemonic::Endbr64
        | Mnemonic::Pause
        | Mnemonic::Lfence
        | Mnemonic::Sfence
        | Mnemonic::Mfence
        | Mnemonic::Prefetcht0
        | Mnemonic::Prefetcht1
        | Mnemonic::Prefetcht2
        | Mnemonic::Prefetchnta
        | Mnemonic::Prefetchw => Op::Nop,
        // These change state that the interpreter does not have.
        Mnemonic::Popf | Mnemonic::Popfd | Mnemonic::Popfq | Mnemonic::Lss | Mnemonic::Hlt => {
            Op::Stop
        }
        _ => on_bits(decoded).or_else(|| conditional(decoded)).unwrap_or(Op::Other),
    }
}

/// Shifts, and instructions on single bits.
fn on_bits(decoded: &Decoded) -> Option<Op> {
    Some(match decoded.mnemonic() {
        Mnemonic::Shl | Mnemonic::Sal => Op::Shift(Shift::Left),
        Mnemonic::Shr => Op::Shift(Shift::Right),
        Mnemonic::Sar => Op::Shift(Shift::RightSigned),
        Mnemonic::Rol => Op::Shift(Shift::RotateLeft),
        Mnemonic::Ror => Op::Shift(Shift::RotateRight),
        Mnemonic::Shlx => Op::ShiftWithoutFlags(Shift::Left),
        Mnemonic::Shrx => Op::ShiftWithoutFlags(Shift::Right),
        Mnemonic::Sarx => Op::ShiftWithoutFlags(Shift::RightSigned),
        Mnemonic::Rorx => Op::ShiftWithoutFlags(Shift::RotateRight),
        Mnemonic::Bt => Op::Bit(BitOp::Test),
        Mnemonic::Bts => Op::Bit(BitOp::Set),
        Mnemonic::Btr => Op::Bit(BitOp::Reset),
        Mnemonic::Btc => Op::Bit(BitOp::Complement),
        Mnemonic::Popcnt => Op::Count(Count::Ones),
        Mnemonic::Tzcnt => Op::Count(Count::TrailingZeros),
        Mnemonic::Lzcnt => Op::Count(Count::LeadingZeros),
        Mnemonic::Bsf => Op::Count(Count::ScanForward),
        Mnemonic::Bsr => Op::Count(Count::ScanReverse),
        _ => return None,
    })
}

/// Instructions that differ from others with their mnemonic.
fn by_code(decoded: &Decoded) -> Option<Op> {
    let address_is_64 =
        |register: OpKind| matches!(register, OpKind::MemoryESRDI | OpKind::MemorySegRSI);
    let plain = (0..decoded.op_count()).all(|number| {
        address_is_64(decoded.op_kind(number)) || decoded.op_kind(number) == OpKind::Register
    });
    let repeated = decoded.has_rep_prefix() || decoded.has_repne_prefix();
    Some(match decoded.code() {
        Code::Pushq_imm8 | Code::Pushq_imm32 | Code::Push_r64 | Code::Push_rm64 => Op::Push,
        Code::Pop_r64 | Code::Pop_rm64 => Op::Pop,
        Code::Leaveq => Op::Leave,
        Code::Cbw => Op::ExtendA(2),
        Code::Cwde => Op::ExtendA(4),
        Code::Cdqe => Op::ExtendA(8),
        Code::Cwd => Op::SignOfA(2),
        Code::Cdq => Op::SignOfA(4),
        Code::Cqo => Op::SignOfA(8),
        Code::Movsb_m8_m8 | Code::Movsw_m16_m16 | Code::Movsd_m32_m32 | Code::Movsq_m64_m64
            if plain =>
        {
            Op::Strings { repeated, loads: true }
        }
        Code::Stosb_m8_AL | Code::Stosw_m16_AX | Code::Stosd_m32_EAX | Code::Stosq_m64_RAX
            if plain =>
        {
            Op::Strings { repeated, loads: false }
        }
        _ => return None,
    })
}

fn conditional(decoded: &Decoded) -> Option<Op> {
    let condition = condition(decoded)?;
    // With one operand the instruction sets it; of two, the second is moved. `cmpccxadd` has three.
    match decoded.op_count() {
        1 => Some(Op::Set(condition)),
        2 => Some(Op::CMov(condition)),
        _ => None,
    }
}

fn effects(decoded: &Decoded, factory: &mut InstructionInfoFactory) -> Effects {
    let info = factory.info(decoded);
    let writes = |access: OpAccess| {
        matches!(
            access,
            OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
        )
    };
    let mut registers = 0;
    for used in info.used_registers().iter().filter(|used| writes(used.access())) {
        registers |= number_of(used.register()).map_or(0, |number| 1 << number);
    }
    // The decoder does not list these writes: `clzero` clears a cache line, and the size of saved
    // processor state depends on the processor.
    let unsized_operand = (0..decoded.op_count())
        .any(|number| decoded.op_kind(number) == OpKind::Memory)
        && decoded.memory_size().size() == 0;
    let listed = decoded.mnemonic() != Mnemonic::Clzero && !unsized_operand;
    let mut memory = if listed { Written::Nothing } else { Written::Anything };
    for used in info.used_memory().iter().filter(|used| writes(used.access())) {
        let is_operand = (0..decoded.op_count())
            .any(|number| decoded.op_kind(number) == OpKind::Memory)
            && (used.base(), used.index()) == (decoded.memory_base(), decoded.memory_index())
            && used.displacement() == decoded.memory_displacement64();
        let size = u16::try_from(used.memory_size().size()).unwrap_or(0);
        memory = if memory == Written::Nothing && is_operand && size > 0 {
            Written::Operand(size)
        } else {
            Written::Anything
        };
    }
    // The decoder takes a rotation by all bits and the carry for none; the processor changes the
    // overflow flag.
    let rotated = if matches!(decoded.mnemonic(), Mnemonic::Rcl | Mnemonic::Rcr) {
        Flags::CARRY | Flags::OVERFLOW
    } else {
        0
    };
    Effects {
        registers,
        flags_unknown: rotated | flags(decoded.rflags_written() | decoded.rflags_undefined()),
        flags_clear: flags(decoded.rflags_cleared()),
        flags_set: flags(decoded.rflags_set()),
        memory,
    }
}

fn flags(bits: u32) -> u8 {
    let pairs = [
        (RflagsBits::CF, Flags::CARRY),
        (RflagsBits::PF, Flags::PARITY),
        (RflagsBits::ZF, Flags::ZERO),
        (RflagsBits::SF, Flags::SIGN),
        (RflagsBits::OF, Flags::OVERFLOW),
        (RflagsBits::DF, Flags::DIRECTION),
    ];
    pairs.iter().filter(|(theirs, _)| bits & theirs != 0).fold(0, |all, (_, ours)| all | ours)
}

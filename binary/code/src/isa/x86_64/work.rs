//! Demands of x86-64 instructions on a processor. Registers that an instruction reads and writes
//! are those that iced-x86 lists (Intel SDM volume 2).

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register, RflagsBits,
};

use crate::isa::work::{Form, Place, Registers, Work};

/// Bits of [`Registers`]: general registers from 0, vectors from 16, masks from 48.
const VECTORS: u32 = 16;
const MASKS: u32 = 48;
/// The x87 stack and the registers of MMX in it.
const X87: u64 = 1 << 56;
/// The carry flag, which some instructions read and write without the other flags.
const CARRY: u64 = 1 << 57;
/// The other flags.
const FLAGS: u64 = 1 << 58;
const STACK_POINTER: u64 = 1 << 4;

thread_local! {
    static FACTORY: std::cell::RefCell<InstructionInfoFactory> =
        std::cell::RefCell::new(InstructionInfoFactory::new());
}

pub(in crate::isa) fn work(bytes: &[u8]) -> Option<Work> {
    let mut decoder = Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE);
    let mut decoded = Instruction::default();
    decoder.decode_out(&mut decoded);
    if decoded.is_invalid() {
        return None;
    }
    Some(FACTORY.with_borrow_mut(|factory| of(&decoded, factory)))
}

pub(in crate::isa) fn form_name(form: Form) -> String {
    let memory = if form.0 & 1 == 1 { "_mem" } else { "" };
    Code::try_from(usize::from(form.0 >> 1))
        .map_or_else(|_| String::new(), |code| format!("{code:?}{memory}"))
}

pub(in crate::isa) fn forms() -> impl Iterator<Item = Form> {
    Code::values().flat_map(|code| [Form((code as u16) << 1), Form((code as u16) << 1 | 1)])
}

fn of(decoded: &Instruction, factory: &mut InstructionInfoFactory) -> Work {
    use Mnemonic as M;
    let memory_operand =
        (0..decoded.op_count()).any(|operand| decoded.op_kind(operand) == OpKind::Memory);
    let mnemonic = decoded.mnemonic();
    let info = factory.info(decoded);
    let mut work = Work {
        len: u8::try_from(decoded.len()).unwrap_or(15),
        form: Form((decoded.code() as u16) << 1 | u16::from(memory_operand)),
        ..Work::default()
    };
    for used in info.used_registers() {
        let register = Registers(bit(used.register()));
        if reads(used.access()) {
            work.reads = work.reads.or(register);
        }
        if writes(used.access()) {
            work.writes = work.writes.or(register);
        }
    }
    for used in info.used_memory() {
        let address = Registers(bit(used.base()) | bit(used.index()));
        work.addresses = work.addresses.or(address);
        let place = match (used.base(), used.index()) {
            (Register::RSP, Register::None) => Place::Stack,
            (Register::RIP | Register::None, Register::None) => Place::Fixed,
            _ => Place::Computed,
        };
        // `rep stos`, whose count may be 0, writes or leaves memory, and reads none.
        if reads(used.access()) && used.access() != OpAccess::CondWrite {
            work.loads = Some(place);
        }
        if writes(used.access()) {
            work.stores = Some(place);
        }
    }
    work.reads = work.reads.or(flags(decoded.rflags_read())).or(work.addresses);
    work.writes = work.writes.or(flags(decoded.rflags_modified()));
    let pushes_or_pops = matches!(mnemonic, M::Push | M::Pop | M::Call | M::Ret);
    if pushes_or_pops {
        for registers in [&mut work.reads, &mut work.addresses, &mut work.writes] {
            registers.0 &= !STACK_POINTER;
        }
    }
    tell(&mut work, decoded, memory_operand);
    work
}

/// Demands that do not depend on the registers and memory of the operands.
fn tell(work: &mut Work, decoded: &Instruction, memory_operand: bool) {
    use Mnemonic as M;
    let mnemonic = decoded.mnemonic();
    work.adds = adds(decoded);
    let copies = matches!(
        mnemonic,
        M::Mov
            | M::Movaps
            | M::Movups
            | M::Movdqa
            | M::Movdqu
            | M::Vmovaps
            | M::Vmovups
            | M::Vmovdqa
            | M::Vmovdqu
    );
    let whole = |operand| {
        decoded.op_kind(operand) == OpKind::Register && decoded.op_register(operand).size() >= 4
    };
    let zeroes = is_zero(decoded);
    if zeroes {
        work.reads = Registers::default();
    }
    work.renamed = zeroes || (copies && decoded.op_count() == 2 && whole(0) && whole(1));
    work.divides = divides(mnemonic);
    let exchanges = mnemonic == M::Xchg && memory_operand;
    work.locks = decoded.has_lock_prefix() || exchanges;
    work.serialises = serialises(mnemonic);
    work.microcoded = decoded.has_rep_prefix() && decoded.is_string_instruction()
        || decoded.has_repne_prefix() && decoded.is_string_instruction()
        || matches!(
            mnemonic,
            M::Cpuid | M::Xsave | M::Xsavec | M::Xrstor | M::Fsin | M::Fcos | M::Fpatan | M::Fptan
        );
    let flow = decoded.flow_control();
    work.calls = matches!(mnemonic, M::Call);
    work.conditional = flow == FlowControl::ConditionalBranch;
    work.scaled = memory_operand
        && decoded.memory_index() != Register::None
        && decoded.memory_index_scale() > 1;
    work.enters_kernel = matches!(mnemonic, M::Syscall | M::Sysenter | M::Int);
    // Intel 64 optimization manual, "Macro-fusion". AMD fuses `cmp` and `test` only, and the others
    // too from Zen 3 on.
    let immediate_and_memory = memory_operand && decoded.op_kind(1) != OpKind::Register;
    work.fuses = matches!(mnemonic, M::Cmp | M::Test | M::Add | M::Sub | M::And | M::Inc | M::Dec)
        && !immediate_and_memory;
}

fn reads(access: OpAccess) -> bool {
    use OpAccess as A;
    matches!(access, A::Read | A::CondRead | A::ReadWrite | A::ReadCondWrite | A::CondWrite)
}

fn writes(access: OpAccess) -> bool {
    use OpAccess as A;
    matches!(access, A::Write | A::CondWrite | A::ReadWrite | A::ReadCondWrite)
}

fn bit(register: Register) -> u64 {
    let full = register.full_register();
    let number = full.number() as u32;
    if full.is_gpr64() {
        1 << (number & 15)
    } else if full.is_vector_register() {
        1 << (VECTORS + (number & 31))
    } else if full.is_k() {
        1 << (MASKS + (number & 7))
    } else if full.is_st() || full.is_mm() {
        X87
    } else {
        0
    }
}

fn flags(rflags: u32) -> Registers {
    let carry = if rflags & RflagsBits::CF != 0 { CARRY } else { 0 };
    let others = RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::PF;
    Registers(carry | if rflags & others != 0 { FLAGS } else { 0 })
}

/// The register to which the instruction only adds a constant.
fn adds(decoded: &Instruction) -> Option<(Registers, i64)> {
    use Mnemonic as M;
    let register =
        || (decoded.op_kind(0) == OpKind::Register).then(|| Registers(bit(decoded.op0_register())));
    let constant = || match decoded.op_kind(1) {
        OpKind::Register | OpKind::Memory => None,
        _ => decoded.try_immediate(1).ok().map(u64::cast_signed),
    };
    match decoded.mnemonic() {
        M::Inc => Some((register()?, 1)),
        M::Dec => Some((register()?, -1)),
        M::Add => Some((register()?, constant()?)),
        M::Sub => Some((register()?, constant()?.wrapping_neg())),
        M::Lea
            if decoded.memory_index() == Register::None
                && decoded.memory_base() == decoded.op0_register() =>
        {
            Some((register()?, decoded.memory_displacement64().cast_signed()))
        }
        _ => None,
    }
}

/// Whether the result is zero whatever the registers hold, and processors know the idiom.
fn is_zero(decoded: &Instruction) -> bool {
    use Mnemonic as M;
    let (two, three) = match decoded.mnemonic() {
        M::Xor | M::Sub | M::Xorps | M::Xorpd | M::Pxor => (true, false),
        M::Vxorps | M::Vxorpd | M::Vpxor | M::Vpxord | M::Vpxorq => (false, true),
        _ => (false, false),
    };
    let same = |a: u32, b: u32| {
        decoded.op_kind(a) == OpKind::Register
            && decoded.op_kind(b) == OpKind::Register
            && decoded.op_register(a) == decoded.op_register(b)
    };
    (two && decoded.op_count() == 2 && same(0, 1))
        || (three && decoded.op_count() == 3 && same(1, 2))
}

fn divides(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        mnemonic,
        M::Div
            | M::Idiv
            | M::Divss
            | M::Divsd
            | M::Divps
            | M::Divpd
            | M::Vdivss
            | M::Vdivsd
            | M::Vdivps
            | M::Vdivpd
            | M::Sqrtss
            | M::Sqrtsd
            | M::Sqrtps
            | M::Sqrtpd
            | M::Vsqrtss
            | M::Vsqrtsd
            | M::Vsqrtps
            | M::Vsqrtpd
            | M::Fdiv
            | M::Fdivp
            | M::Fdivr
            | M::Fdivrp
            | M::Fidiv
            | M::Fidivr
            | M::Fsqrt
    )
}

/// Whether the instruction serialises: Intel SDM volume 3, "Serializing Instructions"; fences and
/// reads of clocks, which wait for earlier instructions; entries into the kernel.
fn serialises(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        mnemonic,
        M::Cpuid
            | M::Lfence
            | M::Mfence
            | M::Sfence
            | M::Rdtsc
            | M::Rdtscp
            | M::Pause
            | M::Tpause
            | M::Umwait
            | M::Serialize
            | M::Syscall
            | M::Sysenter
            | M::Sysret
            | M::Sysretq
            | M::Iret
            | M::Iretd
            | M::Iretq
            | M::Int
            | M::Int1
            | M::Int3
            | M::Xgetbv
            | M::Xsetbv
            | M::Rdpmc
            | M::Rdmsr
            | M::Wrmsr
            | M::Invlpg
            | M::Wbinvd
            | M::Swapgs
            | M::Hlt
            | M::Mwait
            | M::Vmcall
            | M::Vmmcall
            | M::Rdrand
            | M::Rdseed
            | M::Clflush
            | M::Clflushopt
            | M::Wrpkru
            | M::Ldmxcsr
            | M::Fldcw
            | M::Stmxcsr
            | M::In
            | M::Out
            | M::Cli
            | M::Sti
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regs(numbers: &[u32]) -> Registers {
        Registers(numbers.iter().fold(0, |bits, number| bits | 1 << number))
    }

    #[test]
    fn what_is_read_written_and_waited_for() {
        // mov rax, [rdi+rsi*8]
        let load = work(&[0x48, 0x8b, 0x04, 0xf7]).unwrap();
        assert_eq!((load.loads, load.stores, load.scaled), (Some(Place::Computed), None, true));
        assert_eq!(
            (load.reads, load.addresses, load.writes),
            (regs(&[6, 7]), regs(&[6, 7]), regs(&[0]))
        );
        // add [rsp+8], ecx
        let both = work(&[0x01, 0x4c, 0x24, 0x08]).unwrap();
        assert_eq!((both.loads, both.stores), (Some(Place::Stack), Some(Place::Stack)));
        assert_eq!(both.writes, Registers(CARRY | FLAGS));
        // xor eax, eax; mov rbx, rcx; lock inc dword [rip]; div rcx; mfence; rep movsb
        let zero = work(&[0x31, 0xc0]).unwrap();
        assert!(zero.renamed && zero.reads == Registers::default());
        assert!(work(&[0x48, 0x89, 0xcb]).unwrap().renamed);
        let locked = work(&[0xf0, 0xff, 0x05, 0, 0, 0, 0]).unwrap();
        assert!(locked.locks && locked.loads == Some(Place::Fixed));
        let fills = work(&[0xf3, 0x48, 0xab]).unwrap(); // rep stosq
        assert_eq!((fills.loads, fills.stores), (None, Some(Place::Computed)));
        assert!(work(&[0x48, 0xf7, 0xf1]).unwrap().divides);
        assert!(work(&[0x0f, 0xae, 0xf0]).unwrap().serialises);
        assert!(work(&[0xf3, 0xa4]).unwrap().microcoded);
        // push rbp; dec ecx; jne $
        let push = work(&[0x55]).unwrap();
        assert_eq!(
            (push.stores, push.reads, push.writes),
            (Some(Place::Stack), regs(&[5]), Registers::default())
        );
        let count = work(&[0xff, 0xc9]).unwrap();
        assert!(
            count.fuses
                && count.adds == Some((regs(&[1]), -1))
                && !count.writes.meets(Registers(CARRY))
        );
        let jump = work(&[0x75, 0xfe]).unwrap();
        assert!(jump.conditional && jump.reads == Registers(FLAGS));
        assert_eq!(work(&[0x06]), None);
    }

    #[test]
    fn forms_have_names() {
        let add = work(&[0x48, 0x03, 0x07]).unwrap();
        assert_eq!(form_name(add.form), "Add_r64_rm64_mem");
        assert!(forms().any(|form| form == add.form));
    }
}

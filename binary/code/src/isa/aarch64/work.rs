//! Demands of A64 instructions on a processor (DDI 0487, C4.1: the encodings by group).

use super::fields::{Word, ZERO};
use super::forms::Kind;
use super::operations::Effects;
use super::{LEN, order};
use crate::isa::flow::Flow;
use crate::isa::work::{Form, Registers, Work};

/// Bits of [`Registers`]: general registers from 0. x18 shares the bit of x17, because there is one
/// bit less than there are registers, and x18 is the platform's (AAPCS64 6.1.1) or the last that
/// compilers use.
const FLAGS: u64 = 1 << 18;
const SHARED: u8 = 17;
const STACK: u64 = 1 << 31;
/// First bit of the vector registers.
const VECTORS: u8 = 32;
/// The link register.
const LINK: u8 = 30;

pub(in crate::isa) fn work(bytes: &[u8]) -> Option<Work> {
    let (word, ordered) = (Word::of(bytes)?, order(bytes, 0)?);
    let work = Work {
        len: LEN,
        form: Kind::Other.form(false),
        calls: matches!(ordered.flow, Flow::Call { .. }),
        conditional: matches!(ordered.flow, Flow::Conditional { .. }),
        ..Work::default()
    };
    let mut asked = Asked { word, work };
    match word.bits(25, 4) {
        0b1000 | 0b1001 => asked.immediate(),
        0b1010 | 0b1011 => asked.branch_or_system(),
        0b0101 | 0b1101 => asked.registers(),
        0b0111 | 0b1111 => asked.vector(),
        0b0100 | 0b0110 | 0b1100 | 0b1110 => asked.memory(),
        _ => asked.scalable(),
    }
    asked.work.reads = asked.work.reads.or(asked.work.addresses);
    Some(asked.work)
}

/// What an instruction writes of which nothing else is known; rather too much.
pub(super) fn written(word: Word) -> Effects {
    let work = work(&word.0.to_le_bytes()).unwrap_or_default();
    let Registers(all) = work.writes;
    let mut registers = all as u32 & !(FLAGS as u32);
    if all & 1 << SHARED != 0 {
        registers |= 3 << SHARED;
    }
    let (mut flags, group) = (all & FLAGS != 0, word.bits(25, 4));
    if matches!(group, 0b1000 | 0b1001 | 0b0101 | 0b1101) {
        // Instructions on tags and checked pointers may write the stack pointer and flags.
        registers |= 1 << word.register(0);
        flags |= word.bit(29);
    }
    // `fjcvtzs` says whether it was exact.
    flags |= word.is(0xffff_fc00, 0x1e7e_0000);
    Effects { registers, flags, loads: work.loads.is_some(), stores: work.stores.is_some() }
}

/// The constant that a load or store of vectors adds to its base register.
pub(super) fn moved(word: Word) -> Option<i64> {
    work(&word.0.to_le_bytes())?.adds.map(|(_, by)| by)
}

/// The demands of an instruction, as far as they are known.
pub(super) struct Asked {
    pub(super) word: Word,
    pub(super) work: Work,
}

/// The bit of a general register; none for the zero register.
pub(super) fn general(number: u8) -> Registers {
    Registers(match number {
        ZERO => 0,
        18 => 1 << SHARED,
        number => 1 << (number & 31),
    })
}

/// The bit of a general register; 31 is the stack pointer.
pub(super) fn general_or_stack(number: u8) -> Registers {
    if number == ZERO { Registers(STACK) } else { general(number) }
}

/// The bit of a vector register.
pub(super) fn vector(number: u8) -> Registers {
    Registers(1 << (VECTORS + (number & 31)))
}

impl Asked {
    pub(super) fn form(&mut self, form: Form) {
        self.work.form = form;
    }

    pub(super) fn reads(&mut self, registers: Registers) {
        self.work.reads = self.work.reads.or(registers);
    }

    pub(super) fn writes(&mut self, registers: Registers) {
        self.work.writes = self.work.writes.or(registers);
    }

    pub(super) fn reads_flags(&mut self) {
        self.reads(Registers(FLAGS));
    }

    pub(super) fn writes_flags(&mut self) {
        self.writes(Registers(FLAGS));
    }

    /// Data processing with an immediate.
    fn immediate(&mut self) {
        let (word, wide) = (self.word, self.word.bit(31));
        let (to, from) = (word.register(0), word.register(5));
        match word.bits(23, 3) {
            0 | 1 => {
                self.form(Kind::Address.form(true));
                self.writes(general(to));
            }
            2 => self.add_immediate(),
            4 => {
                let sets_flags = word.bits(29, 2) == 3;
                self.form(if sets_flags { Kind::LogicFlags } else { Kind::Logic }.form(wide));
                self.reads(general(from));
                self.writes(if sets_flags { general(to) } else { general_or_stack(to) });
                if sets_flags {
                    self.writes_flags();
                }
            }
            5 => {
                let keeps = word.bits(29, 2) == 3;
                self.form(if keeps { Kind::Insert } else { Kind::Wide }.form(wide));
                self.reads(if keeps { general(to) } else { Registers::default() });
                self.writes(general(to));
                self.work.renamed = word.bits(29, 2) == 2 && word.bits(5, 16) == 0;
            }
            6 => {
                let keeps = word.bits(29, 2) == 1;
                self.form(if keeps { Kind::BitInsert } else { Kind::BitField }.form(wide));
                self.reads(general(from).or(if keeps {
                    general(to)
                } else {
                    Registers::default()
                }));
                self.writes(general(to));
            }
            // `extr`; memory tags, minimum and maximum.
            group => {
                let extracts = group == 7 && word.bits(29, 2) == 0;
                self.form(if extracts { Kind::Extract } else { Kind::Add }.form(wide));
                self.reads(general(from).or(if extracts {
                    general(word.register(16))
                } else {
                    Registers::default()
                }));
                self.writes(general(to));
            }
        }
    }

    fn add_immediate(&mut self) {
        let (word, wide) = (self.word, self.word.bit(31));
        let (to, from, sets_flags) = (word.register(0), word.register(5), word.bit(29));
        let constant = i64::from(word.bits(10, 12)) << if word.bit(22) { 12 } else { 0 };
        self.form(if sets_flags { Kind::AddFlags } else { Kind::Add }.form(wide));
        self.reads(general_or_stack(from));
        let written = if sets_flags { general(to) } else { general_or_stack(to) };
        self.writes(written);
        if sets_flags {
            self.writes_flags();
        }
        if written == general_or_stack(from) {
            self.work.adds = Some((written, if word.bit(30) { -constant } else { constant }));
        }
    }

    /// Data processing on registers.
    fn registers(&mut self) {
        match (self.word.bit(28), self.word.bit(24)) {
            (false, false) => self.logical(),
            (false, true) => self.add(),
            (true, false) => self.by_condition(),
            (true, true) => self.multiply(),
        }
    }

    fn logical(&mut self) {
        let (word, wide) = (self.word, self.word.bit(31));
        let (to, a, b) = (word.register(0), word.register(5), word.register(16));
        let (shifts, sets_flags) = (word.bits(10, 6) != 0, word.bits(29, 2) == 3);
        let kind = match (sets_flags, shifts) {
            (false, false) => Kind::Logic,
            (true, false) => Kind::LogicFlags,
            (false, true) => Kind::LogicShifted,
            (true, true) => Kind::LogicFlagsShifted,
        };
        self.form(kind.form(wide));
        self.reads(general(a).or(general(b)));
        self.writes(general(to));
        if sets_flags {
            self.writes_flags();
        }
        // `mov` of a register.
        self.work.renamed = word.bits(29, 2) == 1 && !word.bit(21) && a == ZERO && !shifts;
    }

    /// Sums and differences with a shifted or an extended register.
    fn add(&mut self) {
        let (word, wide) = (self.word, self.word.bit(31));
        let (to, from, by) = (word.register(0), word.register(5), word.register(16));
        let (sets_flags, extends, shifts) = (word.bit(29), word.bit(21), word.bits(10, 6) != 0);
        let kind = match (sets_flags, extends, shifts) {
            (false, true, _) => Kind::AddExtended,
            (true, true, _) => Kind::AddFlagsExtended,
            (false, _, true) => Kind::AddShifted,
            (true, _, true) => Kind::AddFlagsShifted,
            (false, ..) => Kind::Add,
            (true, ..) => Kind::AddFlags,
        };
        self.form(kind.form(wide));
        self.reads(if extends { general_or_stack(from) } else { general(from) }.or(general(by)));
        self.writes(if extends && !sets_flags { general_or_stack(to) } else { general(to) });
        if sets_flags {
            self.writes_flags();
        }
    }

    /// Arithmetic with carry; conditional instructions; instructions of two operands and of one.
    fn by_condition(&mut self) {
        let (word, wide) = (self.word, self.word.bit(31));
        let (to, a, b) = (word.register(0), word.register(5), word.register(16));
        match word.bits(21, 4) {
            0 if word.bits(10, 6) == 0 => {
                self.form(Kind::Carry.form(wide));
                self.reads(general(a).or(general(b)));
                self.reads_flags();
                self.writes(general(to));
                if word.bit(29) {
                    self.writes_flags();
                }
            }
            // `rmif`, `setf8`, `setf16`.
            0 => {
                self.form(Kind::AddFlags.form(wide));
                self.reads(general(a));
                self.reads_flags();
                self.writes_flags();
            }
            2 => {
                self.form(Kind::Compare.form(wide));
                self.reads(general(a).or(if word.bit(11) {
                    Registers::default()
                } else {
                    general(b)
                }));
                self.reads_flags();
                self.writes_flags();
            }
            4 => {
                self.form(Kind::Select.form(wide));
                self.reads(general(a).or(general(b)));
                self.reads_flags();
                self.writes(general(to));
            }
            6 if word.bit(30) => {
                // The other instructions sign and authenticate pointers.
                let counts = word.bits(16, 5) == 0;
                self.form(if counts { Kind::Bits } else { Kind::Pointer }.form(wide));
                self.reads(if counts { general(a) } else { general_or_stack(a).or(general(to)) });
                self.writes(general(to));
            }
            _ => self.two_operands(),
        }
    }

    fn two_operands(&mut self) {
        let (word, wide) = (self.word, self.word.bit(31));
        let kind = match word.bits(10, 6) {
            2 | 3 => Kind::Divide,
            8..=11 => Kind::Shift,
            16..=23 => Kind::Crc,
            12 => Kind::Pointer,
            _ => Kind::Add,
        };
        self.form(kind.form(wide));
        self.work.divides = kind == Kind::Divide;
        self.reads(general(word.register(5)).or(general(word.register(16))));
        self.writes(general(word.register(0)));
        if word.bit(29) {
            self.writes_flags();
        }
    }

    fn multiply(&mut self) {
        let (word, wide) = (self.word, self.word.bit(31));
        let third = word.register(10);
        let kind = match (word.bits(21, 3), third == ZERO) {
            (0, true) => Kind::Multiply,
            (0, false) => Kind::MultiplyAdd,
            (2 | 6, _) => Kind::MultiplyHigh,
            (_, true) => Kind::MultiplyLong,
            (_, false) => Kind::MultiplyAddLong,
        };
        self.form(kind.form(wide));
        let third = if kind == Kind::MultiplyHigh { Registers::default() } else { general(third) };
        self.reads(general(word.register(5)).or(general(word.register(16))).or(third));
        self.writes(general(word.register(0)));
    }

    fn branch_or_system(&mut self) {
        let word = self.word;
        let asked = word.register(0);
        match word.0 >> 24 {
            0x14..=0x17 => self.form(Kind::Jump.form(true)),
            0x94..=0x97 => {
                self.form(Kind::Call.form(true));
                self.writes(general(LINK));
            }
            0x54 => {
                self.form(Kind::Conditional.form(true));
                self.reads_flags();
            }
            0x34..=0x37 | 0xb4..=0xb7 | 0x75 | 0xf5 => {
                self.form(Kind::Zero.form(true));
                self.reads(general(asked));
            }
            0x74 | 0xf4 => {
                self.form(Kind::Zero.form(true));
                self.reads(general(asked).or(general(word.register(16))));
            }
            0x55 | 0xd6 | 0xd7 => self.through_register(),
            0xd4 => {
                self.form(Kind::Kernel.form(true));
                self.work.serialises = true;
                self.work.enters_kernel = word.is(0xffe0_001f, 0xd400_0001);
            }
            0xd5 => self.system(),
            _ => {}
        }
    }

    fn through_register(&mut self) {
        let word = self.word;
        if word.0 >> 24 == 0x55 {
            self.form(Kind::Return.form(true));
            return self.reads(general(LINK).or(Registers(STACK)));
        }
        // An authenticating branch also reads another register or the stack pointer.
        let modifier = match (word.bit(11), word.bit(24)) {
            (true, true) => general_or_stack(word.register(0)),
            (true, false) if word.bits(21, 4) == 2 => Registers(STACK).or(general(LINK)),
            _ => Registers::default(),
        };
        self.reads(general(word.register(5)).or(modifier));
        match word.bits(21, 4) {
            0 | 8 => self.form(Kind::Indirect.form(true)),
            1 | 9 => {
                self.form(Kind::IndirectCall.form(true));
                self.writes(general(LINK));
            }
            2 => self.form(Kind::Return.form(true)),
            // Returns from exceptions.
            _ => self.work.serialises = true,
        }
    }

    fn system(&mut self) {
        let (word, register) = (self.word, self.word.register(0));
        if word.is(0xffff_f01f, 0xd503_201f) {
            return self.hint(word.bits(5, 7));
        }
        // `clrex` is no barrier.
        if word.is(0xffff_f01f, 0xd503_301f) {
            self.form(Kind::Barrier.form(true));
            self.work.serialises = word.bits(5, 3) != 2;
        } else if word.is(0xffff_ffe0, 0xd51b_4200) {
            // `msr NZCV`.
            self.form(Kind::Set.form(true));
            self.reads(general(register));
            self.writes_flags();
        } else if word.is(0xffff_ff9f, 0xd500_401f) {
            // `cfinv`, `xaflag`, `axflag`.
            self.form(Kind::AddFlags.form(true));
            self.reads_flags();
            self.writes_flags();
        } else if word.bit(21) {
            self.form(Kind::Get.form(true));
            self.writes(general(register));
            if word.is(0xffff_ffe0, 0xd53b_4200) {
                self.reads_flags();
            }
        } else if word.is(0xffff_ffe0, 0xd50b_7420) {
            // `dc zva`: stores a cache line of zeros.
            self.form(Kind::Store.form(true));
            self.stores(general(register), crate::isa::work::Place::Computed);
        } else {
            self.form(Kind::Set.form(true));
            self.reads(general(register));
            self.work.serialises = true;
        }
    }

    /// Hints, which do nothing on processors that do not know them.
    fn hint(&mut self, number: u32) {
        self.form(Kind::Hint.form(true));
        let (signed, with) = match number {
            7 => (general(LINK), Registers::default()),
            8..=15 => (general(17), general(16)),
            24..=31 => (general(LINK), Registers(STACK)),
            // `wfe`, `wfi`, `esb`.
            2 | 3 | 16 => return self.work.serialises = true,
            _ => return,
        };
        self.form(Kind::Pointer.form(true));
        self.reads(signed.or(with));
        self.writes(signed);
    }

    /// SVE and SME, with the demands that most of their instructions have in common.
    fn scalable(&mut self) {
        let word = self.word;
        if word.0 >> 16 == 0 {
            return;
        }
        self.form(Kind::Scalable.form(true));
        let (first, second) = (vector(word.register(0)), vector(word.register(5)));
        if !word.bit(31) {
            self.reads(first.or(second).or(vector(word.register(16))));
            self.writes(first);
        } else if word.bits(29, 3) == 7 {
            self.reads(first);
            self.stores(general_or_stack(word.register(5)), crate::isa::work::Place::Computed);
        } else {
            self.writes(first);
            self.loads(general_or_stack(word.register(5)), crate::isa::work::Place::Computed);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::isa::work::{Place, Registers, Work};

    fn of(word: u32) -> Work {
        Isa::Aarch64.work(&word.to_le_bytes()).unwrap()
    }

    fn named(text: &str) -> Registers {
        let bit = |name: &str| match name {
            "flags" => super::FLAGS,
            "sp" => super::STACK,
            name => {
                let number: u8 = name[1..].parse().unwrap();
                if name.starts_with('v') {
                    super::vector(number).0
                } else {
                    super::general(number).0
                }
            }
        };
        Registers(text.split_whitespace().map(bit).fold(0, |all, bit| all | bit))
    }

    /// Words as llvm-mc assembles them: their forms, what they read and write. (All distinct words
    /// of six libraries of Debian's arm64, 164,851, name the same registers as objdump shows, the
    /// same one to be written.)
    #[test]
    #[rustfmt::skip]
    fn what_is_read_and_written() {
        let all = [
            (0x8b02_0020, "add_wide", "x1 x2", "x0"), // add x0, x1, x2
            (0x8b24_4be3, "add_extended_wide", "sp x4", "x3"), // add x3, sp, w4, uxtw #2
            (0x7100_0421, "adds", "x1", "x1 flags"), // subs w1, w1, #1
            (0xf100_0cbf, "adds_wide", "x5", "flags"), // cmp x5, #3
            (0x2b02_103f, "adds_shifted", "x1 x2", "flags"), // cmn w1, w2, lsl #4
            (0x7200_083f, "ands", "x1", "flags"), // tst w1, #7
            (0xba02_0020, "adc_wide", "x1 x2 flags", "x0 flags"), // adcs x0, x1, x2
            (0xf2a0_0027, "movk_wide", "x7", "x7"), // movk x7, #1, lsl #16
            (0x331d_0c20, "bfm", "x0 x1", "x0"), // bfi w0, w1, #3, #4
            (0x93c2_1420, "extr_wide", "x1 x2", "x0"), // extr x0, x1, x2, #5
            (0x1a9f_b420, "csel", "x1 flags", "x0"), // csinc w0, w1, wzr, lt
            (0xfa42_0020, "ccmp_wide", "x1 x2 flags", "flags"), // ccmp x1, x2, #0, eq
            (0xfa42_0820, "ccmp_wide", "x1 flags", "flags"), // ccmp x1, #2, #0, eq
            (0x9b02_0c20, "madd_wide", "x1 x2 x3", "x0"), // madd x0, x1, x2, x3
            (0x1b02_7c20, "mul", "x1 x2", "x0"), // mul w0, w1, w2
            (0x9bc2_7c20, "smulh_wide", "x1 x2", "x0"), // umulh x0, x1, x2
            (0x9ac2_0820, "sdiv_wide", "x1 x2", "x0"), // udiv x0, x1, x2
            (0x5400_0041, "b.cond_wide", "flags", ""), // b.ne 8
            (0xb640_0054, "cbz_wide", "x20", ""), // tbz x20, #40, 8
            (0xd63f_0100, "blr_wide", "x8", "x30"), // blr x8
            (0xd65f_03c0, "ret_wide", "x30", ""), // ret
            (0xd65f_0bff, "ret_wide", "x30 sp", ""), // retaa
            (0xd503_233f, "pacia_wide", "x30 sp", "x30"), // paciasp
            (0xd53b_4201, "mrs_wide", "flags", "x1"), // mrs x1, nzcv
            (0xd51b_4201, "msr_wide", "x1", "flags"), // msr nzcv, x1
            (0xf940_07e0, "ldr_wide", "sp", "x0"), // ldr x0, [sp, #8]
            (0xb8b2_7820, "ldr_indexed", "x1 x17", "x0"), // ldrsw x0, [x1, x18, lsl #2]
            (0xb840_4420, "ldr_moved", "x1", "x0 x1"), // ldr w0, [x1], #4
            (0xa9bf_7bfd, "stp_moved_wide", "sp x29 x30", "sp"), // stp x29, x30, [sp, #-16]!
            (0xacc1_0440, "ldp_v_moved_wide", "x2", "v0 v1 x2"), // ldp q0, q1, [x2], #32
            (0xfc22_d823, "str_v_indexed", "v3 x1 x2", ""), // str d3, [x1, w2, sxtw #3]
            (0xf980_0020, "prfm_wide", "x1", ""), // prfm pldl1keep, [x1]
            (0xc800_fc41, "stxr_wide", "x1 x2", "x0"), // stlxr w0, x1, [x2]
            (0xc87f_8440, "ldxr_wide", "x2", "x0 x1"), // ldaxp x0, x1, [x2]
            (0x88e0_fc41, "cas", "x0 x1 x2", "x0"), // casal w0, w1, [x2]
            (0x4820_7c82, "cas_wide", "x0 x1 x2 x3 x4", "x0 x1"), // casp x0, x1, x2, x3, [x4]
            (0xf821_0040, "ldadd_wide", "x1 x2", "x0"), // ldadd x1, x0, [x2]
            (0xd920_1c20, "stlr_wide", "x0 x1", "x1"), // stg x0, [x1, #16]!
            // Ld3 {v30.4s, v31.4s, v0.4s}, [x1], x2.
            (0x4cc2_483e, "ld3_wide", "x1 x2", "v30 v31 v0 x1"),
            (0x0d40_9020, "ld1_lane", "v0 x1", "v0"), // ld1 {v0.s}[1], [x1]
            (0x4c9f_a001, "st1_2_wide", "v1 v2 x0", "x0"), // st1 {v1.16b, v2.16b}, [x0], #32
            (0x1f42_0c20, "fmadd_wide", "v1 v2 v3", "v0"), // fmadd d0, d1, d2, d3
            (0x1e22_2020, "fcmp", "v1 v2", "flags"), // fcmp s1, s2
            (0x1e60_2028, "fcmp_wide", "v1", "flags"), // fcmp d1, #0.0
            (0x1e22_cc20, "fcsel", "v1 v2 flags", "v0"), // fcsel s0, s1, s2, gt
            (0x9e78_0020, "fcvtzs_wide", "v1", "x0"), // fcvtzs x0, d1
            (0x1e22_0020, "scvtf", "x1", "v0"), // scvtf s0, w1
            (0x9e66_0020, "fmov_to_wide", "v1", "x0"), // fmov x0, d1
            (0x9eaf_0020, "fmov_from", "v0 x1", "v0"), // fmov v0.d[1], x1
            (0x4ea2_9420, "v_mla_wide", "v0 v1 v2", "v0"), // mla v0.4s, v1.4s, v2.4s
            (0x4fc2_1820, "v_fmla_wide", "v0 v1 v2", "v0"), // fmla v0.2d, v1.2d, v2.d[1]
            (0x2ea2_1c20, "v_bsl", "v0 v1 v2", "v0"), // bit v0.8b, v1.8b, v2.8b
            (0x4eb1_b820, "v_addv_wide", "v1", "v0"), // addv s0, v1.4s
            (0x0e07_3c20, "v_umov", "v1", "x0"), // umov w0, v1.b[3]
            (0x4e0c_1c20, "v_ins_from_wide", "v0 x1", "v0"), // ins v0.s[1], w1
            (0x4e02_23e0, "tbl_2_wide", "v31 v0 v2", "v0"), // tbl v0.16b, {v31.16b, v0.16b}, v2.16b
            (0x4ea1_2820, "v_xtn_wide", "v0 v1", "v0"), // xtn2 v0.4s, v1.2d
            (0x4f00_04a0, "v_movi_wide", "", "v0"), // movi v0.4s, #5
            (0x4e28_4820, "aese_wide", "v0 v1", "v0"), // aese v0.16b, v1.16b
            (0x5e02_4020, "sha256h_wide", "v0 v1 v2", "v0"), // sha256h q0, q1, v2.4s
        ];
        for (word, form, reads, writes) in all {
            let work = of(word);
            assert_eq!(Isa::Aarch64.form_name(work.form), form, "{word:08x}");
            assert_eq!((work.reads, work.writes), (named(reads), named(writes)), "{word:08x} \
            {form}");
        }
    }

    #[test]
    fn what_is_waited_for() {
        // ldr x0, [sp, #8]; str x0, [x1, #8]; ldr x0, .+8; ldr x0, [x1, x2, lsl #3]
        let stack = of(0xf940_07e0);
        assert_eq!(
            (stack.loads, stack.stores, stack.addresses),
            (Some(Place::Stack), None, named("sp"))
        );
        let store = of(0xf900_0420);
        assert_eq!(
            (store.loads, store.stores, store.addresses),
            (None, Some(Place::Computed), named("x1"))
        );
        assert_eq!(of(0x5800_0040).loads, Some(Place::Fixed));
        let indexed = of(0xf862_7820);
        assert!(indexed.scaled && indexed.addresses == named("x1 x2"));
        // ldr x0, [x1], #8; sub x1, x1, #16; add x1, x2, #16
        assert_eq!(
            [0xf840_8420, 0xd100_4021, 0x9100_4041].map(|word| of(word).adds),
            [Some((named("x1"), 8)), Some((named("x1"), -16)), None]
        );
        // sdiv; fsqrt d; fdiv v.4s: ldxr; stlxr; ldadd; cas: ldar; ldapr
        assert!([0x9ac2_0c20, 0x1e61_c020, 0x6e22_fc20].iter().all(|word| of(*word).divides));
        assert!(
            [0xc85f_7c20, 0xc800_fc41, 0xf821_0040, 0x88a0_7c41].iter().all(|word| of(*word).locks)
        );
        assert!(![0x88df_fc20, 0xb8bf_c020].iter().any(|word| of(*word).locks));
        // dmb ish; isb; msr tpidr_el0, x1; svc #0: mrs x0, tpidr_el0; nop; clrex
        assert!(
            [0xd503_3bbf, 0xd503_3fdf, 0xd51b_d041, 0xd400_0001]
                .iter()
                .all(|word| of(*word).serialises)
        );
        assert!(![0xd53b_d040, 0xd503_201f, 0xd503_3f5f].iter().any(|word| of(*word).serialises));
        assert!(
            of(0xd400_0001).enters_kernel && of(0x9400_0010).calls && of(0x5400_0041).conditional
        );
        // mov x0, x1; mov w0, wzr; mov w0, #0: orr x0, x1, x2
        assert!([0xaa01_03e0, 0x2a1f_03e0, 0x5280_0000].iter().all(|word| of(*word).renamed));
        assert!(!of(0xaa02_0020).renamed);
    }

    #[test]
    fn any_word_has_some_work() {
        let names: std::collections::HashSet<String> =
            Isa::Aarch64.forms().map(|form| Isa::Aarch64.form_name(form)).collect();
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..1_000_000 {
            let word = random.u32(..);
            let Some(work) = Isa::Aarch64.work(&word.to_le_bytes()) else { continue };
            assert!(names.contains(&Isa::Aarch64.form_name(work.form)), "{word:08x}");
            assert_eq!(work.reads.or(work.addresses), work.reads, "{word:08x}");
            assert_eq!(
                work.adds.map_or(Registers::default(), |(to, _)| to).or(work.writes),
                work.writes,
                "{word:08x}"
            );
        }
    }
}

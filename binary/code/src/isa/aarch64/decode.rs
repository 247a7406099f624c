//! Decodes a word to an instruction in the form that the interpreter executes and caches. Sections
//! are those of DDI 0487, C4.1: the encodings by group.

use super::fields::Word;
use super::operations::{
    Effects, Field, Fill, Instruction, LINK, Logic, Op, Operand, Place, STACK, Single, ZERO,
};
use super::work::written;
use crate::isa::arithmetic::Shift;
use crate::isa::flags::{Condition, Test};

impl Instruction {
    /// Decodes the instruction that `bytes` begin with.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        super::order(bytes, 0)?;
        let word = Word::of(bytes)?;
        let mut this =
            Self { op: Op::Nop, bytes: word.width(), place: Place::None, memory_bytes: 0 };
        this.op = match word.bits(25, 4) {
            0b1000 | 0b1001 => immediate(word),
            0b1010 | 0b1011 => branch_or_system(word),
            0b0101 | 0b1101 => registers(word),
            0b0111 | 0b1111 => None,
            0b0100 | 0b0110 | 0b1100 | 0b1110 => this.memory(word),
            0b0000 if word.0 >> 16 == 0 => Some(Op::Stop),
            _ => Some(Op::Other(scalable(word))),
        }
        .unwrap_or_else(|| Op::Other(written(word)));
        Some(this)
    }

    /// Loads and stores; None where they are not modelled.
    fn memory(&mut self, word: Word) -> Option<Op> {
        let (vector, base) = (word.bit(26), word.register(5));
        let at = |distance, moved| Place::At { base, distance, moved };
        match (word.bits(28, 2), word.bit(24)) {
            (0, _) => return self.exclusive_or_structure(word),
            (1, false) => return self.literal(word),
            // `ldapur`, `stlur`.
            (1, true) if !vector && !word.bit(21) && word.bits(10, 2) == 0 => {
                self.place = at(word.signed(12, 9), 0);
            }
            (1, true) => return None,
            (2, _) => return self.pair(word),
            (_, true) => {
                let scale = i64::from(word.size_of_one());
                self.place = at(i64::from(word.bits(10, 12)) * scale, 0);
            }
            (_, false) if word.bit(21) && word.bits(10, 2) == 2 => {
                let by = if word.bit(12) { word.size_of_one().ilog2() } else { 0 };
                let (bytes, signed) = (if word.bit(13) { 8 } else { 4 }, word.bit(15));
                self.place = Place::Indexed { base, index: general(word, 16), bytes, signed, by };
            }
            (_, false) if word.bit(21) => return self.atomic(word),
            (_, false) => {
                let distance = word.signed(12, 9);
                self.place = match word.bits(10, 2) {
                    1 => at(0, distance),
                    3 => at(distance, distance),
                    _ => at(distance, 0),
                };
            }
        }
        self.one(word)
    }

    /// A load or store of one register.
    fn one(&mut self, word: Word) -> Option<Op> {
        let (to, size, operation) = (general(word, 0), word.size_of_one(), word.bits(22, 2));
        self.memory_bytes = size;
        Some(match (word.bit(26), operation) {
            (true, 2 | 3) if word.bits(30, 2) != 0 => Op::Stop,
            (true, 0 | 2) => Op::StoreVector,
            (true, _) => Op::Load { to: ZERO, second: None, signed: 0 },
            (false, 0) => Op::Store { from: to, second: None },
            (false, 1) => Op::Load { to, second: None, signed: 0 },
            (false, 2) if size == 8 => return self.nothing(),
            (false, 3) if size >= 4 => Op::Stop,
            (false, _) => Op::Load { to, second: None, signed: if operation == 2 { 8 } else { 4 } },
        })
    }

    /// A prefetch.
    fn nothing(&mut self) -> Option<Op> {
        (self.place, self.memory_bytes) = (Place::None, 0);
        Some(Op::Nop)
    }

    fn pair(&mut self, word: Word) -> Option<Op> {
        let (vector, kind, loads) = (word.bit(26), word.bits(30, 2), word.bit(22));
        let size = match (vector, kind, loads) {
            (_, 3, _) => return Some(Op::Stop),
            (true, ..) => 4 << kind,
            (false, 2, _) => 8,
            // `stgp`.
            (false, 1, false) => return None,
            (false, ..) => 4,
        };
        let (base, by) = (word.register(5), word.signed(15, 7) * i64::from(size));
        let (distance, moved) = match word.bits(23, 2) {
            1 => (0, by),
            3 => (by, by),
            _ => (by, 0),
        };
        self.place = Place::At { base, distance, moved };
        self.memory_bytes = 2 * size;
        let (first, second) = (general(word, 0), general(word, 10));
        Some(match (vector, loads) {
            (true, true) => Op::Load { to: ZERO, second: None, signed: 0 },
            (true, false) => Op::StoreVector,
            (false, true) => {
                Op::Load { to: first, second: Some(second), signed: if kind == 1 { 8 } else { 0 } }
            }
            (false, false) => Op::Store { from: first, second: Some(second) },
        })
    }

    /// `ldr` of a word near the instruction.
    fn literal(&mut self, word: Word) -> Option<Op> {
        self.place = Place::Relative(word.signed(5, 19) << 2);
        let to = general(word, 0);
        let (to, signed, size) = match (word.bit(26), word.bits(30, 2)) {
            (true, 3) => return Some(Op::Stop),
            (true, size) => (ZERO, 0, 4 << size),
            (false, 0) => (to, 0, 4),
            (false, 1) => (to, 0, 8),
            (false, 2) => (to, 8, 4),
            (false, _) => return self.nothing(),
        };
        self.memory_bytes = size;
        Some(Op::Load { to, second: None, signed })
    }

    /// Exclusive and ordered accesses, of which only the latter are like any other here; vectors'
    /// structures.
    fn exclusive_or_structure(&mut self, word: Word) -> Option<Op> {
        let (base, mut moved) = (word.register(5), 0);
        let mut effects = written(word);
        if word.bit(26) {
            if let Some(by) = super::work::moved(word) {
                // The base register is what it was, plus that.
                moved = by;
                effects.registers &= !(1 << base);
                self.memory_bytes = u8::try_from(by).unwrap_or(0);
            }
            self.place = Place::At { base, distance: 0, moved };
            return Some(Op::Other(effects));
        }
        let (loads, ordered, pairs) = (word.bit(22), word.bit(23), word.bit(21));
        let size = 1 << word.bits(30, 2);
        self.place = Place::At { base, distance: 0, moved: 0 };
        if ordered && !pairs {
            self.memory_bytes = size;
            let register = general(word, 0);
            return Some(if loads {
                Op::Load { to: register, second: None, signed: 0 }
            } else {
                Op::Store { from: register, second: None }
            });
        }
        self.memory_bytes = if !pairs || ordered { size } else { 0 };
        Some(Op::Other(effects))
    }

    /// Atomic operations; `ldapr`; pointers that are authenticated.
    fn atomic(&mut self, word: Word) -> Option<Op> {
        if word.bits(10, 2) != 0 || word.bit(26) {
            return None;
        }
        self.place = Place::At { base: word.register(5), distance: 0, moved: 0 };
        let size = 1 << word.bits(30, 2);
        if word.bit(15) && word.bits(12, 3) == 4 {
            self.memory_bytes = size;
            return Some(Op::Load { to: general(word, 0), second: None, signed: 0 });
        }
        // Of 64 bytes, whose registers are several.
        let whole_line = word.bit(15) && size == 8 && matches!(word.bits(12, 3), 1 | 2 | 3 | 5);
        self.memory_bytes = if whole_line { 64 } else { size };
        None
    }
}

/// The number of a register; 31 is zero.
fn general(word: Word, low: u32) -> u8 {
    match word.register(low) {
        STACK => ZERO,
        number => number,
    }
}

/// A condition. The last two always hold: [`Test::Always`].
fn condition(number: u32) -> Condition {
    let (test, negated) = match number >> 1 {
        0 => (Test::Equal, false),
        1 => (Test::Below, true),
        2 => (Test::Sign, false),
        3 => (Test::Overflow, false),
        4 => (Test::BelowOrEqual, true),
        5 => (Test::Less, true),
        6 => (Test::LessOrEqual, true),
        _ => return Condition { test: Test::Always, negated: false },
    };
    Condition { test, negated: negated != (number & 1 == 1) }
}

/// Data processing with an immediate.
fn immediate(word: Word) -> Option<Op> {
    let (to, from, wide) = (general(word, 0), word.register(5), word.bit(31));
    let is_wide = |bit: u32| word.bit(bit) == wide;
    Some(match word.bits(23, 3) {
        0 | 1 => Op::Address { to, word },
        2 => {
            let sets_flags = word.bit(29);
            let shift = if word.bit(22) { 12 } else { 0 };
            let b = Operand::Constant(u64::from(word.bits(10, 12)) << shift);
            let to = if sets_flags { to } else { word.register(0) };
            Op::Sum { to, a: from, b, subtracts: word.bit(30), sets_flags, carries: false }
        }
        4 => {
            let Some(mask) = word.mask() else { return Some(Op::Stop) };
            let b = Operand::Constant(mask);
            let to = if word.bits(29, 2) == 3 { to } else { word.register(0) };
            logic(word, to, general(word, 5), b, false)
        }
        5 => {
            let (value, shift) = (u64::from(word.bits(5, 16)), 16 * word.bits(21, 2));
            match word.bits(29, 2) {
                _ if !wide && shift > 16 => Op::Stop,
                0 => Op::Constant { to, value: !(value << shift), mask: u64::MAX },
                2 => Op::Constant { to, value: value << shift, mask: u64::MAX },
                3 => Op::Constant { to, value: value << shift, mask: 0xffff << shift },
                _ => Op::Stop,
            }
        }
        6 => {
            let (turned, last) = (word.bits(16, 6), word.bits(10, 6));
            let all = if wide { 64 } else { 32 };
            let fill = match word.bits(29, 2) {
                0 => Fill::Sign,
                1 => Fill::Before,
                2 => Fill::Zeros,
                _ => return Some(Op::Stop),
            };
            if !is_wide(22) || turned >= all || last >= all {
                return Some(Op::Stop);
            }
            let field = if last >= turned {
                Field { low: turned, width: last - turned + 1, to: 0 }
            } else {
                Field { low: 0, width: last + 1, to: all - turned }
            };
            Op::Field { to, from: general(word, 5), field, fill }
        }
        7 if word.bits(29, 2) == 0 && !word.bit(21) && is_wide(22) => {
            let by = word.bits(10, 6);
            if !wide && by >= 32 {
                return Some(Op::Stop);
            }
            Op::Extract { to, a: general(word, 5), b: general(word, 16), by }
        }
        7 => Op::Stop,
        _ => return None,
    })
}

fn logic(word: Word, to: u8, a: u8, b: Operand, negates: bool) -> Op {
    let (logic, sets_flags) = match word.bits(29, 2) {
        0 => (Logic::And, false),
        1 => (Logic::Or, false),
        2 => (Logic::Xor, false),
        _ => (Logic::And, true),
    };
    Op::Logic { to, a, b, logic, negates, sets_flags }
}

fn shift(number: u32) -> Shift {
    match number {
        0 => Shift::Left,
        1 => Shift::Right,
        2 => Shift::RightSigned,
        _ => Shift::RotateRight,
    }
}

/// Data processing on registers.
fn registers(word: Word) -> Option<Op> {
    let (to, a, wide) = (general(word, 0), general(word, 5), word.bit(31));
    let (register, by) = (general(word, 16), word.bits(10, 6));
    let b = Operand::Shifted { register, shift: shift(word.bits(22, 2)), by };
    let (subtracts, sets_flags) = (word.bit(30), word.bit(29));
    Some(match (word.bit(28), word.bit(24)) {
        (false, _) if !wide && by >= 32 && !(word.bit(24) && word.bit(21)) => Op::Stop,
        (false, false) => logic(word, to, a, b, word.bit(21)),
        (false, true) if word.bit(21) => {
            let by = word.bits(10, 3);
            if by > 4 || word.bits(22, 2) != 0 {
                return Some(Op::Stop);
            }
            let (bytes, signed) = (1 << word.bits(13, 2), word.bit(15));
            let b = Operand::Extended { register, bytes, signed, by };
            let to = if sets_flags { to } else { word.register(0) };
            Op::Sum { to, a: word.register(5), b, subtracts, sets_flags, carries: false }
        }
        (false, true) if word.bits(22, 2) == 3 => Op::Stop,
        (false, true) => Op::Sum { to, a, b, subtracts, sets_flags, carries: false },
        (true, false) => return by_condition(word),
        (true, true) => {
            let (c, subtracts) = (general(word, 10), word.bit(15));
            let product = |bytes, signed| {
                Some(Op::Multiply { to, a, b: register, c, subtracts, bytes, signed })
            };
            match (word.bits(21, 3), wide) {
                (0, _) => return product(word.width(), false),
                (1, true) => return product(4, true),
                (5, true) => return product(4, false),
                (kind @ (2 | 6), true) => {
                    Op::MultiplyHigh { to, a, b: register, signed: kind == 2 }
                }
                _ => return None,
            }
        }
    })
}

/// Arithmetic with carry; conditional instructions; instructions of two operands and of one.
fn by_condition(word: Word) -> Option<Op> {
    let (to, a, b) = (general(word, 0), general(word, 5), general(word, 16));
    let shifted = Operand::Shifted { register: b, shift: Shift::Left, by: 0 };
    let (subtracts, sets_flags) = (word.bit(30), word.bit(29));
    let holds = condition(word.bits(12, 4));
    Some(match word.bits(21, 4) {
        0 if word.bits(10, 6) == 0 => {
            Op::Sum { to, a, b: shifted, subtracts, sets_flags, carries: true }
        }
        2 if sets_flags && !word.bit(10) && !word.bit(4) => {
            let constant = Operand::Constant(word.bits(16, 5).into());
            let b = if word.bit(11) { constant } else { shifted };
            Op::Compare { a, b, condition: holds, subtracts, flags: word.bits(0, 4) as u8 }
        }
        4 if !sets_flags && !word.bit(11) => {
            let increments = word.bit(10);
            Op::Select { to, a, b, condition: holds, inverts: subtracts, increments }
        }
        6 if !subtracts && !sets_flags => match word.bits(10, 6) {
            kind @ (2 | 3) => Op::Divide { to, a, b, signed: kind == 3 },
            kind @ 8..=11 => Op::Shift { to, a, by: b, shift: shift(kind & 3) },
            _ => return None,
        },
        6 if !sets_flags => match (word.bits(16, 5), word.bits(10, 6)) {
            (0, kind @ 0..=5) if kind != 3 || word.bit(31) => {
                let single = match kind {
                    0 => Single::ReverseBits,
                    4 => Single::LeadingZeros,
                    5 => Single::LeadingSigns,
                    kind => Single::ReverseBytes(1 << kind),
                };
                Op::Single { to, from: a, single }
            }
            (1, kind @ 0..=17) => Op::Pointer { register: to, strips: kind >= 16 || kind & 4 != 0 },
            _ => return None,
        },
        _ => return None,
    })
}

fn branch_or_system(word: Word) -> Option<Op> {
    let far = word.signed(5, 19) << 2;
    let register = general(word, 0);
    Some(match word.0 >> 24 {
        0x14..=0x17 => Op::Jump(word.signed(0, 26) << 2),
        0x94..=0x97 => Op::Call(word.signed(0, 26) << 2),
        0x54 if word.bits(1, 3) == 7 => Op::Jump(far),
        0x54 => Op::Branch(condition(word.bits(0, 4)), far),
        0x55 if word.is(0xffc0_001f, 0x5500_001f) => Op::Return(LINK),
        0x34 | 0x35 | 0xb4 | 0xb5 => {
            Op::BranchIfZero { register, negated: word.bit(24), distance: far }
        }
        0x36 | 0x37 | 0xb6 | 0xb7 => {
            let bit = word.bits(31, 1) << 5 | word.bits(19, 5);
            let distance = word.signed(5, 14) << 2;
            Op::BranchIfBit { register, bit, set: word.bit(24), distance }
        }
        0xd5 => return system(word),
        // Pointers are authenticated or not: the target is the same.
        0xd6 | 0xd7 => match word.bits(21, 4) {
            0 | 8 => Op::JumpTo(general(word, 5)),
            1 | 9 => Op::CallTo(general(word, 5)),
            // `retaa` has no register.
            2 if word.bit(11) => Op::Return(LINK),
            2 => Op::Return(general(word, 5)),
            _ => Op::Stop,
        },
        // Comparing branches (FEAT_CMPBR), system calls, traps.
        _ => Op::Stop,
    })
}

fn system(word: Word) -> Option<Op> {
    let pointer = |register, strips| Op::Pointer { register, strips };
    Some(match word.0 {
        // Hints.
        _ if word.is(0xffff_f01f, 0xd503_201f) => match word.bits(5, 7) {
            7 | 28..=31 => pointer(LINK, true),
            24..=27 => pointer(LINK, false),
            8 | 10 => pointer(17, false),
            12 | 14 => pointer(17, true),
            // `chkfeat`.
            40 => Op::Other(Effects { registers: 1 << 16, ..Effects::default() }),
            _ => Op::Nop,
        },
        // Barriers.
        _ if word.is(0xffff_f01f, 0xd503_301f) => Op::Nop,
        // `tstart`: a transaction may be undone.
        _ if word.is(0xffff_ffe0, 0xd523_3060) => Op::Stop,
        _ if word.is(0xffff_ff00, 0xd50b_7400) => Op::ZeroBlock(general(word, 0)),
        _ => return None,
    })
}

/// SVE and SME: those that write a general register name it in this field; some set flags, some
/// store.
fn scalable(word: Word) -> Effects {
    Effects { registers: 1 << word.register(0), flags: true, loads: false, stores: word.bit(31) }
}

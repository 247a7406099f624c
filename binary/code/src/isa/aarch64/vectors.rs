//! Demands of A64 instructions on floating-point numbers and vectors on a processor (DDI 0487,
//! C4.1: scalar floating-point and advanced SIMD).

use super::forms::Kind;
use super::work::{Asked, general, vector};
use crate::isa::work::Registers;

impl Asked {
    /// Floating point and vectors.
    pub(super) fn vector(&mut self) {
        let word = self.word;
        match word.0 >> 24 & 0x5f {
            0x1e if word.bit(21) => self.float(),
            0x1e => self.converted(word.bit(22), word.bits(16, 3) & 6 == 2),
            0x1f => {
                self.form(Kind::FloatMultiplyAdd.form(word.bit(22)));
                self.sources(2);
                self.reads(vector(word.register(10)));
                self.writes(vector(word.register(0)));
            }
            _ if word.is(0xff3e_0c00, 0x4e28_0800) || word.is(0xff20_8c00, 0x5e00_0000) => {
                self.crypto()
            }
            _ if word.is(0xff3e_0c00, 0x5e28_0800) || word.0 >> 24 == 0xce => self.crypto(),
            _ if word.bit(28) => self.vector_of(false),
            _ => self.vector_of(word.bit(30)),
        }
    }

    /// Reads the first `count` of the registers that most instructions have at the same places.
    fn sources(&mut self, count: u32) {
        self.reads(vector(self.word.register(5)));
        if count > 1 {
            self.reads(vector(self.word.register(16)));
        }
    }

    /// Converts a number from or to a general register.
    fn converted(&mut self, wide: bool, from_general: bool) {
        let (to, from) = (self.word.register(0), self.word.register(5));
        self.form(if from_general { Kind::FromInteger } else { Kind::ToInteger }.form(wide));
        self.reads(if from_general { general(from) } else { vector(from) });
        self.writes(if from_general { vector(to) } else { general(to) });
    }

    /// Scalar floating point.
    fn float(&mut self) {
        let (word, wide) = (self.word, self.word.bits(22, 2) == 1);
        let (to, from) = (word.register(0), word.register(5));
        match (word.bits(10, 2), word.bits(10, 6)) {
            (0, 0) => match word.bits(16, 3) {
                6 => {
                    self.form(Kind::FloatTo.form(wide));
                    self.reads(vector(from));
                    self.writes(general(to));
                }
                7 => {
                    self.form(Kind::FloatFrom.form(wide));
                    self.reads(general(from).or(if word.bit(19) {
                        vector(to)
                    } else {
                        Registers::default()
                    }));
                    self.writes(vector(to));
                }
                opcode => self.converted(wide, opcode & 6 == 2),
            },
            (0, opcode) if opcode & 0x1f == 16 => {
                let kind = match word.bits(15, 6) {
                    0 => Kind::FloatMove,
                    1 | 2 => Kind::FloatSign,
                    3 => Kind::FloatRoot,
                    4..=7 => Kind::FloatConvert,
                    _ => Kind::FloatRound,
                };
                self.work.divides = kind == Kind::FloatRoot;
                self.work.renamed = kind == Kind::FloatMove;
                self.form(kind.form(wide));
                self.sources(1);
                self.writes(vector(to));
            }
            (0, opcode) if opcode & 0xf == 8 => {
                self.form(Kind::FloatCompare.form(wide));
                self.sources(if word.bit(3) { 1 } else { 2 });
                self.writes_flags();
            }
            (0, _) => {
                self.form(Kind::FloatConstant.form(wide));
                self.writes(vector(to));
            }
            (1, _) => {
                self.form(Kind::FloatCompareIf.form(wide));
                self.sources(2);
                self.reads_flags();
                self.writes_flags();
            }
            (2, _) => {
                let kind = match word.bits(12, 4) {
                    0 | 8 => Kind::FloatMultiply,
                    1 => Kind::FloatDivide,
                    4..=7 => Kind::FloatMost,
                    _ => Kind::FloatAdd,
                };
                self.work.divides = kind == Kind::FloatDivide;
                self.form(kind.form(wide));
                self.sources(2);
                self.writes(vector(to));
            }
            _ => {
                self.form(Kind::FloatSelect.form(wide));
                self.sources(2);
                self.reads_flags();
                self.writes(vector(to));
            }
        }
    }

    fn crypto(&mut self) {
        let word = self.word;
        let (group, opcode, two) = (word.0 >> 24, word.bits(12, 5), word.bit(21));
        let kind = match (group, two) {
            (0x4e, _) if opcode > 5 => Kind::AesMix,
            (0x4e, _) => Kind::Aes,
            (0x5e, true) if opcode > 1 => Kind::Sha256Schedule,
            (0x5e, true) => Kind::Sha1Schedule,
            (0x5e, false) => match opcode & 7 {
                0..=2 => Kind::Sha1,
                3 => Kind::Sha1Schedule,
                4 | 5 => Kind::Sha256,
                _ => Kind::Sha256Schedule,
            },
            // SHA-3, SHA-512, SM3 and SM4.
            _ => Kind::VectorLogic,
        };
        self.form(kind.form(true));
        let one = group == 0x4e || group == 0x5e && two;
        self.sources(if one { 1 } else { 2 });
        // `sha1h` also makes a new value.
        if kind != Kind::AesMix && !(one && kind == Kind::Sha1Schedule && opcode == 0) {
            self.reads(vector(word.register(0)));
        }
        if group == 0xce {
            self.reads(vector(word.register(10)));
        }
        self.writes(vector(word.register(0)));
    }

    /// Vector instructions; scalar ones work on the lowest lane.
    fn vector_of(&mut self, wide: bool) {
        let word = self.word;
        self.writes(vector(word.register(0)));
        match (word.bit(24), word.bit(21), word.bits(10, 2)) {
            (true, _, 0 | 2) => self.by_element(wide),
            (true, ..) => self.by_constant(wide),
            (_, true, 1 | 3) => self.three_same(wide, word.bits(11, 5)),
            (_, true, 0) => self.three_different(wide),
            (_, true, _) => self.of_one(wide),
            // `sdot` and the like; half precision.
            _ if word.bit(10) && word.bit(15) => {
                self.three(Kind::VectorDot, wide, true);
            }
            _ if word.bit(10) && word.bits(22, 1) == 1 => {
                self.three_same(wide, word.bits(11, 3) | 24)
            }
            _ if word.bit(10) => self.copy(wide),
            _ => self.permuted(wide),
        }
    }

    /// Two operands and, for instructions that accumulate, the accumulator.
    fn three(&mut self, kind: Kind, wide: bool, adds: bool) {
        self.form(kind.form(wide));
        self.sources(2);
        if adds {
            self.reads(vector(self.word.register(0)));
        }
    }

    fn three_same(&mut self, wide: bool, opcode: u32) {
        let (word, unsigned) = (self.word, self.word.bit(29));
        let (kind, adds) = match opcode {
            0..=2 | 4 | 5 | 16 => (Kind::VectorAdd, false),
            3 if unsigned && word.bits(22, 2) != 0 => (Kind::VectorSelect, true),
            // `orr` of a register with itself is `mov`.
            3 => (Kind::VectorLogic, false),
            6 | 7 | 17 => (Kind::VectorCompare, false),
            8..=11 => (Kind::VectorShift, false),
            12 | 13 => (Kind::VectorMost, false),
            14 => (Kind::VectorDifference, false),
            15 => (Kind::VectorDifferenceAdd, true),
            18 => (Kind::VectorMultiplyAdd, true),
            19 | 22 => (Kind::VectorMultiply, false),
            20 | 21 | 23 => (Kind::VectorPairs, false),
            25 if !unsigned || word.bit(23) => (Kind::VectorFloatMultiplyAdd, true),
            27 | 31 if !(opcode == 31 && unsigned) => (Kind::VectorFloatMultiply, false),
            29 if !unsigned && !word.bit(23) => (Kind::VectorFloatMultiplyAdd, true),
            31 if word.bit(22) => (Kind::VectorFloatDivide8, false),
            31 => (Kind::VectorFloatDivide4, false),
            _ => (Kind::VectorFloatAdd, false),
        };
        self.work.divides = matches!(kind, Kind::VectorFloatDivide4 | Kind::VectorFloatDivide8);
        self.work.renamed = kind == Kind::VectorLogic
            && !unsigned
            && word.bits(22, 2) == 2
            && word.register(5) == word.register(16);
        self.three(kind, wide, adds);
    }

    fn three_different(&mut self, wide: bool) {
        let (kind, adds) = match self.word.bits(12, 4) {
            5 => (Kind::VectorDifferenceAdd, true),
            8..=11 => (Kind::VectorMultiplyAddLong, true),
            12 | 13 => (Kind::VectorMultiplyLong, false),
            14 => (Kind::Polynomial, false),
            _ => (Kind::VectorAddLong, false),
        };
        self.three(kind, wide, adds);
    }

    /// One operand; or a reduction over all its lanes.
    fn of_one(&mut self, wide: bool) {
        let word = self.word;
        self.sources(1);
        let opcode = word.bits(12, 5);
        let across = word.bits(17, 5) == 0b11000;
        let (kind, keeps) = match opcode {
            _ if across && matches!(opcode, 10 | 26 | 12 | 15) => (Kind::VectorAcrossMost, false),
            _ if across => (Kind::VectorAcross, false),
            0 | 1 => (Kind::VectorReverse, false),
            2 => (Kind::VectorPairsLong, false),
            3 => (Kind::VectorAdd, true),
            4 | 5 => (Kind::VectorCount, false),
            6 => (Kind::VectorPairsLongAdd, true),
            8..=10 => (Kind::VectorCompare, false),
            7 | 11 => (Kind::VectorAdd, false),
            12..=15 => (Kind::VectorFloatAdd, false),
            // Narrowing into the upper half preserves the lower one.
            18 | 20 | 22 => (Kind::VectorNarrow, wide),
            19 => (Kind::VectorShiftLong, false),
            24 | 25 => (Kind::VectorFloatRound, false),
            31 if word.bit(22) => (Kind::VectorFloatRoot8, false),
            31 => (Kind::VectorFloatRoot4, false),
            _ => (Kind::VectorFloatConvert, false),
        };
        self.work.divides = opcode == 31;
        self.form(kind.form(wide));
        if keeps {
            self.reads(vector(word.register(0)));
        }
    }

    /// Copies of lanes, also from and to general registers.
    fn copy(&mut self, wide: bool) {
        let (word, operation) = (self.word, self.word.bits(11, 4));
        let (to, from) = (word.register(0), word.register(5));
        let keeps = vector(to);
        match operation {
            1 if !word.bit(29) => {
                self.form(Kind::VectorFrom.form(wide));
                self.reads(general(from));
            }
            3 if !word.bit(29) => {
                self.form(Kind::VectorInsertFrom.form(true));
                self.reads(general(from).or(keeps));
            }
            5 | 7 if !word.bit(29) => {
                self.form(Kind::VectorTo.form(wide));
                self.reads(vector(from));
                self.work.writes = general(to);
            }
            _ if word.bit(29) => {
                self.form(Kind::VectorInsert.form(true));
                self.reads(vector(from).or(keeps));
            }
            _ => {
                self.form(Kind::VectorCopy.form(wide));
                self.reads(vector(from));
            }
        }
    }

    /// Table look-ups, extraction, and interleaving of two registers.
    fn permuted(&mut self, wide: bool) {
        let word = self.word;
        if word.bit(29) {
            return self.three(Kind::VectorExtract, wide, false);
        }
        if word.bit(11) {
            return self.three(Kind::VectorPermute, wide, false);
        }
        let tables = word.bits(13, 2);
        let kind = match tables {
            0 => Kind::Table1,
            1 => Kind::Table2,
            2 => Kind::Table3,
            _ => Kind::Table4,
        };
        self.three(kind, wide, word.bit(12));
        (1..=tables).for_each(|next| self.reads(vector(((word.bits(5, 5) + next) & 31) as u8)));
    }

    /// Operations with one lane of a register.
    fn by_element(&mut self, wide: bool) {
        let (kind, adds) = match self.word.bits(12, 4) {
            0 | 4 => (Kind::VectorMultiplyAdd, true),
            1 | 5 => (Kind::VectorFloatMultiplyAdd, true),
            2 | 3 | 6 | 7 => (Kind::VectorMultiplyAddLong, true),
            8 | 12 | 13 => (Kind::VectorMultiply, false),
            9 => (Kind::VectorFloatMultiply, false),
            10 | 11 => (Kind::VectorMultiplyLong, false),
            _ => (Kind::VectorDot, true),
        };
        self.three(kind, wide, adds);
        // For half-words the register number has one bit less.
        if self.word.bits(22, 2) == 1 {
            let lower = vector(self.word.bits(16, 4) as u8);
            self.reads(lower);
        }
    }

    /// Constants, and shifts by constants.
    fn by_constant(&mut self, wide: bool) {
        let word = self.word;
        if word.bits(19, 4) == 0 && !word.bit(28) {
            self.form(Kind::VectorConstant.form(wide));
            self.work.renamed =
                word.bits(16, 3) == 0 && word.bits(5, 5) == 0 && word.bits(12, 4) == 14;
            // `orr` and `bic`.
            if word.bit(12) && word.bits(12, 4) < 12 {
                self.reads(vector(word.register(0)));
            }
            return;
        }
        self.sources(1);
        let (kind, keeps) = match word.bits(11, 5) {
            2 | 6 => (Kind::VectorShiftAdd, true),
            // `sri`, `sli`.
            8 | 10 if word.bit(29) => (Kind::VectorShiftBy, true),
            16..=19 => (Kind::VectorShiftNarrow, wide),
            20 => (Kind::VectorShiftLong, false),
            28 | 31 => (Kind::VectorFloatConvert, false),
            _ => (Kind::VectorShiftBy, false),
        };
        self.form(kind.form(wide));
        if keeps {
            self.reads(vector(word.register(0)));
        }
    }
}

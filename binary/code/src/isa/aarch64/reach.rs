//! Demands of A64 loads and stores on a processor (DDI 0487, C4.1: loads and stores).

use super::fields::ZERO;
use super::forms::Kind;
use super::work::{Asked, general, general_or_stack, vector};
use crate::isa::work::{Place, Registers};

/// Addressing modes.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Mode {
    /// A register plus a constant.
    Offset,
    /// A register plus a constant, after which the register is incremented by this.
    Moved(i64),
    /// A register plus a register.
    Indexed,
}

impl Asked {
    pub(super) fn loads(&mut self, addresses: Registers, place: Place) {
        self.work.addresses = self.work.addresses.or(addresses);
        self.work.loads = Some(place);
    }

    pub(super) fn stores(&mut self, addresses: Registers, place: Place) {
        self.work.addresses = self.work.addresses.or(addresses);
        self.work.stores = Some(place);
    }

    /// Loads and stores.
    pub(super) fn memory(&mut self) {
        let (word, of_vectors) = (self.word, self.word.bit(26));
        match (word.bits(28, 2), word.bit(24)) {
            (0, _) if of_vectors => self.structure(),
            (0, _) => self.exclusive(),
            (1, false) => self.literal(),
            (1, true) => self.ordered(),
            (2, _) => self.pair(),
            (_, true) => self.one(Mode::Offset),
            (_, false) if word.bit(21) => match word.bits(10, 2) {
                2 => self.one(Mode::Indexed),
                0 => self.atomic(),
                // `ldraa`, `ldrab`.
                _ => {
                    self.form(Kind::Load.form(true));
                    self.writes(general(word.register(0)));
                    let moved = word.signed(12, 9) << 3;
                    self.reach(true, if word.bit(11) { Mode::Moved(moved) } else { Mode::Offset });
                }
            },
            (_, false) if word.bit(10) => self.one(Mode::Moved(word.signed(12, 9))),
            (_, false) => self.one(Mode::Offset),
        }
    }

    /// The address, with the base register at the place where nearly all instructions have it.
    fn reach(&mut self, loads: bool, mode: Mode) {
        let number = self.word.register(5);
        let base = general_or_stack(number);
        let place =
            if number == ZERO && mode != Mode::Indexed { Place::Stack } else { Place::Computed };
        let index = if mode == Mode::Indexed {
            general(self.word.register(16))
        } else {
            Registers::default()
        };
        if loads {
            self.loads(base.or(index), place);
        } else {
            self.stores(base.or(index), place);
        }
        if let Mode::Moved(by) = mode {
            self.writes(base);
            self.work.adds = Some((base, by));
        }
        self.work.scaled = mode == Mode::Indexed && self.word.bit(12);
    }

    /// One register.
    fn one(&mut self, mode: Mode) {
        let word = self.word;
        let (register, operation, size) = (word.register(0), word.bits(22, 2), word.bits(30, 2));
        if word.bit(26) {
            let loads = word.bit(22);
            let kind = match (loads, mode) {
                (true, Mode::Offset) => Kind::LoadVector,
                (true, Mode::Moved(_)) => Kind::LoadVectorMoved,
                (true, Mode::Indexed) => Kind::LoadVectorIndexed,
                (false, Mode::Offset) => Kind::StoreVector,
                (false, Mode::Moved(_)) => Kind::StoreVectorMoved,
                (false, Mode::Indexed) => Kind::StoreVectorIndexed,
            };
            self.form(kind.form(word.bit(23)));
            if loads {
                self.writes(vector(register));
            } else {
                self.reads(vector(register));
            }
            return self.reach(loads, mode);
        }
        if size == 3 && operation == 2 {
            // A prefetch waits for nothing.
            self.form(Kind::Prefetch.form(true));
            return self.reads(general_or_stack(word.register(5)));
        }
        let kind = match (operation, mode) {
            (0, Mode::Offset) => Kind::Store,
            (0, Mode::Moved(_)) => Kind::StoreMoved,
            (0, Mode::Indexed) => Kind::StoreIndexed,
            (_, Mode::Moved(_)) => Kind::LoadMoved,
            (_, Mode::Indexed) => Kind::LoadIndexed,
            (1, Mode::Offset) => Kind::Load,
            (_, Mode::Offset) => Kind::LoadSigned,
        };
        self.form(kind.form(size == 3));
        if operation == 0 {
            self.reads(general(register));
        } else {
            self.writes(general(register));
        }
        self.reach(operation != 0, mode);
    }

    fn pair(&mut self) {
        let word = self.word;
        let (of_vectors, size, loads) = (word.bit(26), word.bits(30, 2), word.bit(22));
        let bytes = match (of_vectors, size, loads) {
            (true, ..) => 4_i64 << size,
            // `stgp`.
            (false, 1, false) => 16,
            (false, 0 | 1, _) => 4,
            (false, ..) => 8,
        };
        let moves = word.bit(23);
        let mode = if moves { Mode::Moved(word.signed(15, 7) * bytes) } else { Mode::Offset };
        let kind = match (loads, of_vectors, moves) {
            (true, true, false) => Kind::LoadVectorPair,
            (true, true, true) => Kind::LoadVectorPairMoved,
            (false, true, false) => Kind::StoreVectorPair,
            (false, true, true) => Kind::StoreVectorPairMoved,
            (true, false, _) if size == 1 => Kind::LoadPairSigned,
            (true, false, false) => Kind::LoadPair,
            (true, false, true) => Kind::LoadPairMoved,
            (false, false, false) => Kind::StorePair,
            (false, false, true) => Kind::StorePairMoved,
        };
        self.form(kind.form(size == 2));
        let of = if of_vectors { vector } else { general };
        let both = of(word.register(0)).or(of(word.register(10)));
        if loads {
            self.writes(both);
        } else {
            self.reads(both);
        }
        self.reach(loads, mode);
    }

    /// `ldr` of a word near the instruction.
    fn literal(&mut self) {
        let (word, of_vectors) = (self.word, self.word.bit(26));
        let register = word.register(0);
        match (of_vectors, word.bits(30, 2)) {
            (false, 3) => return self.form(Kind::Prefetch.form(true)),
            (false, size) => {
                self.form(Kind::LoadLiteral.form(size == 1));
                self.writes(general(register));
            }
            (true, size) => {
                self.form(Kind::LoadVectorLiteral.form(size == 2));
                self.writes(vector(register));
            }
        }
        self.loads(Registers::default(), Place::Fixed);
    }

    /// Exclusive and ordered loads and stores; comparing and swapping.
    fn exclusive(&mut self) {
        let word = self.word;
        let (status, first, second) = (word.register(16), word.register(0), word.register(10));
        let (loads, ordered, pairs) = (word.bit(22), word.bit(23), word.bit(21));
        let wide = word.bit(30);
        let next = |register: u8| general((register + 1) & 31);
        let compares = pairs && (ordered || !word.bit(31));
        let value = general(first).or(if pairs && !compares {
            general(second)
        } else {
            Registers::default()
        });
        self.work.locks = compares || !ordered;
        if compares {
            self.form(Kind::Swap.form(wide));
            let two = !ordered;
            let compared =
                general(status).or(if two { next(status) } else { Registers::default() });
            self.reads(compared.or(value).or(if two { next(first) } else { Registers::default() }));
            self.writes(compared);
            self.reach(true, Mode::Offset);
            return self.reach(false, Mode::Offset);
        }
        let kind = match (loads, ordered) {
            (true, true) => Kind::LoadOrdered,
            (true, false) => Kind::LoadExclusive,
            (false, true) => Kind::StoreOrdered,
            (false, false) => Kind::StoreExclusive,
        };
        self.form(kind.form(wide));
        if loads {
            self.writes(value);
        } else {
            self.reads(value);
            self.writes(if ordered { Registers::default() } else { general(status) });
        }
        self.reach(loads, Mode::Offset);
    }

    /// Atomic operations: the old value is loaded; 64 bytes take eight registers.
    fn atomic(&mut self) {
        let word = self.word;
        let (to, by) = (word.register(0), word.register(16));
        // `ldapr`.
        if word.bit(15) && word.bits(12, 3) == 4 {
            self.form(Kind::LoadOrdered.form(word.bit(30)));
            self.writes(general(to));
            return self.reach(true, Mode::Offset);
        }
        self.form(Kind::Atomic.form(word.bit(30)));
        let whole_line =
            word.bit(15) && word.bits(30, 2) == 3 && matches!(word.bits(12, 3), 1 | 2 | 3 | 5);
        // `ld64b` writes eight registers. `st64b` and its variants read them, and write a register
        // with the status.
        let (loads, count) = (word.bits(12, 3) == 5, if whole_line { 8 } else { 1 });
        let of_line = |this: &mut Self, next: u8| {
            let register = general((to + next) & 31);
            if loads || !whole_line { this.writes(register) } else { this.reads(register) }
        };
        (0..count).for_each(|next| of_line(self, next));
        if whole_line && !loads {
            self.writes(general(by));
        } else {
            self.reads(general(by));
        }
        self.work.locks = !whole_line;
        self.reach(true, Mode::Offset);
        self.reach(false, Mode::Offset);
    }

    /// Ordered accesses with an offset; memory tags and copies of memory.
    fn ordered(&mut self) {
        let word = self.word;
        let register = word.register(0);
        let (loads, of_vectors) = (word.bits(22, 2) != 0, word.bit(26));
        let copies = !of_vectors && word.bits(10, 2) == 1 && word.bits(30, 2) == 0;
        if copies {
            let all =
                general(register).or(general(word.register(5))).or(general(word.register(16)));
            self.reads(all);
            self.writes(all);
            self.work.microcoded = true;
            self.reach(true, Mode::Offset);
            return self.reach(false, Mode::Offset);
        }
        // Tags are stored whatever bit 22 is, except by `ldg` and `ldgm`.
        let tags = word.bit(21) && word.bits(30, 2) == 3;
        let loads = loads && (!tags || word.bits(10, 2) == 0);
        let kind = if loads { Kind::LoadOrdered } else { Kind::StoreOrdered };
        self.form(kind.form(word.bit(30)));
        let value = if of_vectors { vector(register) } else { general(register) };
        if loads {
            self.writes(value);
        } else {
            self.reads(value);
        }
        self.reach(loads, Mode::Offset);
        if word.bit(21) && word.bit(10) {
            self.writes(general_or_stack(word.register(5)));
        }
    }

    /// Structures of vectors: whole vectors or one lane of each.
    fn structure(&mut self) {
        let word = self.word;
        let (loads, moves, lanes) = (word.bit(22), word.bit(23), word.bit(24));
        let all_lanes = lanes && word.bits(14, 2) == 3;
        let (registers, elements) = match word.bits(12, 4) {
            opcode if lanes => {
                let count = (opcode & 2 | u32::from(word.bit(21))) + 1;
                (count, count)
            }
            0 => (4, 4),
            2 => (4, 1),
            4 => (3, 3),
            6 => (3, 1),
            8 => (2, 2),
            10 => (2, 1),
            _ => (1, 1),
        };
        let kind = match (loads, elements, registers) {
            (true, ..) if all_lanes => Kind::LoadAllLanes,
            (true, ..) if lanes => Kind::LoadLane,
            (false, ..) if lanes => Kind::StoreLane,
            (true, 1, 1) => Kind::Load1,
            (true, 1, 2) => Kind::Load1x2,
            (true, 1, 3) => Kind::Load1x3,
            (true, 1, _) => Kind::Load1x4,
            (true, 2, _) => Kind::Load2,
            (true, 3, _) => Kind::Load3,
            (true, ..) => Kind::Load4,
            (false, 1, 1) => Kind::Store1,
            (false, 1, 2) => Kind::Store1x2,
            (false, 1, 3) => Kind::Store1x3,
            (false, 1, _) => Kind::Store1x4,
            (false, 2, _) => Kind::Store2,
            (false, 3, _) => Kind::Store3,
            (false, ..) => Kind::Store4,
        };
        self.form(kind.form(word.bit(30)));
        for number in 0..registers {
            let register = vector(((word.bits(0, 5) + number) & 31) as u8);
            if loads {
                self.writes(register);
            }
            if !loads || lanes && !all_lanes {
                self.reads(register);
            }
        }
        let by = word.register(16);
        let bytes = i64::from(registers) << if word.bit(30) { 4 } else { 3 };
        let known = moves && by == ZERO && !lanes;
        self.reach(loads, if known { Mode::Moved(bytes) } else { Mode::Offset });
        if moves && !known {
            self.writes(general_or_stack(word.register(5)));
            self.reads(general(by));
        }
    }
}

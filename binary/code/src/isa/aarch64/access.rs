//! Loads and stores of A64, for the values that decide indirect jumps (see `cfg`; DDI 0487, C4.1:
//! loads and stores).

use super::track::{Step, nowhere};
use crate::values::ReadOnly;
use crate::values::{Spot, Value, mixed};

impl<M: ReadOnly> Step<'_, M> {
    /// Loads and stores.
    pub(super) fn memory_access(&mut self) {
        let (word, vector) = (self.word, self.word.bit(26));
        match (word.bits(28, 2), word.bit(24)) {
            (0, _) if vector => self.vector_structure(),
            (0, _) => self.exclusive(),
            (1, false) => self.literal(),
            (1, true) => self.by_several(),
            (2, _) => self.pair(),
            (_, true) => {
                let (size, offset) = (self.word.size_of_one(), i64::from(word.bits(10, 12)));
                let spot = self.displaced(word.register(5), offset * i64::from(size));
                self.one(spot, size);
            }
            (_, false) if word.bit(21) => match word.bits(10, 2) {
                2 => {
                    let size = self.word.size_of_one();
                    let spot = self.indexed(size);
                    self.one(spot, size);
                }
                0 => self.atomic(),
                _ => {
                    // `ldraa`: the pointer is authenticated.
                    self.forget(word.register(0), 8);
                    if word.bit(11) {
                        self.write_or_stack(word.register(5), 8, None);
                    }
                }
            },
            (_, false) => {
                let (base, offset) = (word.register(5), word.signed(12, 9));
                let (writes_back, after) = (word.bit(10), word.bits(10, 2) == 1);
                let moved = self.displaced(base, offset);
                let spot = if after { self.displaced(base, 0) } else { moved };
                self.one(spot, self.word.size_of_one());
                if writes_back {
                    self.write_back(base, moved);
                }
            }
        }
    }

    /// Loads or stores one register.
    fn one(&mut self, spot: Spot, size: u8) {
        let (word, register) = (self.word, self.word.register(0));
        let (vector, operation) = (word.bit(26), word.bits(22, 2));
        self.name(spot.address);
        match operation {
            0 if vector => self.store(spot, size, None),
            0 => self.store(spot, size, Some(self.read(register, size))),
            2 if vector => self.store(spot, size, None),
            _ if vector => {}
            // `prfm`.
            2 | 3 if size == 8 => {}
            1 => {
                let value = self.state.load(spot, size, false, self.memory);
                self.write(register, 8, Some(value));
            }
            _ => {
                let value = self.state.load(spot, size, true, self.memory);
                self.write(register, if operation == 2 { 8 } else { 4 }, Some(value));
            }
        }
    }

    fn pair(&mut self) {
        let (word, vector) = (self.word, self.word.bit(26));
        let (kind, loads) = (word.bits(30, 2), word.bit(22));
        let (first, second, base) = (word.register(0), word.register(10), word.register(5));
        let size = match (vector, kind) {
            (true, _) => 4 << kind,
            // `ldpsw`; `stgp` stores 16 bytes at multiples of 16.
            (false, 0 | 1) => 4,
            _ => 8,
        };
        let tagged = !vector && kind == 1 && !loads;
        let moved =
            self.displaced(base, word.signed(15, 7) * if tagged { 16 } else { i64::from(size) });
        let mode = word.bits(23, 2);
        let begin = if mode == 1 { self.displaced(base, 0) } else { moved };
        let after = |spot: Spot| Spot {
            address: spot.address.and_then(|address| address.sum(Value::Const(u64::from(size)))),
            id: mixed(spot.id, u64::from(size)),
            ..spot
        };
        self.name(begin.address);
        match (vector, loads) {
            (true, true) => {}
            (true, false) => {
                self.store(begin, size, None);
                self.store(after(begin), size, None);
            }
            (false, true) => {
                let signed = kind == 1;
                let values = [begin, after(begin)]
                    .map(|spot| self.state.load(spot, size, signed, self.memory));
                self.write(first, 8, Some(values[0]));
                self.write(second, 8, Some(values[1]));
            }
            (false, false) => {
                let size = if tagged { 8 } else { size };
                self.store(begin, size, Some(self.read(first, size)));
                self.store(after(begin), size, Some(self.read(second, size)));
            }
        }
        if mode & 1 == 1 {
            self.write_back(base, moved);
        }
    }

    /// `ldr` of a word near the instruction.
    fn literal(&mut self) {
        let word = self.word;
        let address = self.at.wrapping_add_signed(word.signed(5, 19) << 2);
        let (size, signed) = match (word.bit(26), word.bits(30, 2)) {
            (false, 0) => (4, false),
            (false, 1) => (8, false),
            (false, 2) => (4, true),
            // Vectors, and `prfm`.
            _ => return,
        };
        let spot = Spot {
            address: Some(Value::Const(address)),
            table: false,
            id: Value::Const(address).id(),
        };
        self.name(spot.address);
        let value = self.state.load(spot, size, signed, self.memory);
        self.write(word.register(0), 8, Some(value));
    }

    /// Structures of vectors, after which the address register may be incremented.
    fn vector_structure(&mut self) {
        let (word, base) = (self.word, self.word.register(5));
        if !word.bit(22) {
            let spot = self.displaced(base, 0);
            self.store(spot, 64, None);
        }
        if word.bit(23) {
            self.write_or_stack(base, 8, None);
        }
    }

    /// Exclusive and ordered loads and stores; comparing and swapping.
    fn exclusive(&mut self) {
        let word = self.word;
        let (status, first, second) = (word.register(16), word.register(0), word.register(10));
        let (loads, ordered, pairs) = (word.bit(22), word.bit(23), word.bit(21));
        let spot = self.displaced(word.register(5), 0);
        if ordered && !pairs && !loads {
            let size = 1 << word.bits(30, 2);
            return self.store(spot, size, Some(self.read(first, size)));
        }
        if !loads || pairs {
            self.store(spot, 16, None);
        }
        // `ldxp` has bit 31; `cas` and `casp` have pairs without one of both.
        let compares = pairs && (ordered || !word.bit(31));
        if loads && !compares {
            self.forget(first, 8);
            if pairs {
                self.forget(second, 8);
            }
        } else {
            // The status of the store; or the old values, in two adjacent registers.
            self.forget(status, 8);
            self.forget((status + 1) & 31, 8);
        }
    }

    /// Atomic operations: the old value is loaded; 64 bytes take eight registers.
    fn atomic(&mut self) {
        let word = self.word;
        let to = word.register(0);
        let many =
            if word.bit(15) && word.bits(30, 2) == 3 && matches!(word.bits(12, 3), 1 | 2 | 3 | 5) {
                8
            } else {
                1
            };
        let spot = self.displaced(word.register(5), 0);
        self.store(spot, if many == 8 { 64 } else { 8 }, None);
        (0..many).for_each(|next| self.forget((to + next) & 31, 8));
        if many == 8 {
            self.forget(word.register(16), 8);
        }
    }

    /// Ordered accesses with an offset, memory tags, copies of memory: all registers and memory
    /// that they name become unknown.
    fn by_several(&mut self) {
        let word = self.word;
        self.store(nowhere(self.at), 64, None);
        self.forget(word.register(0), 8);
        if word.bits(10, 2) != 0 {
            self.write_or_stack(word.register(5), 8, None);
            self.forget(word.register(16), 8);
        }
    }

    pub(super) fn store(&mut self, spot: Spot, size: u8, value: Option<Value>) {
        self.state.store(spot, size, value, self.at);
    }

    fn write_back(&mut self, base: u8, moved: Spot) {
        let value =
            moved.address.filter(|address| matches!(address, Value::Stack(_) | Value::Const(_)));
        self.write_or_stack(base, 8, value);
    }

    /// The memory at a distance from a register or the stack pointer.
    fn displaced(&self, base: u8, by: i64) -> Spot {
        let base = self.read_or_stack(base, 8);
        let address = base.as_index().sum(Value::Const(by.cast_unsigned()));
        Spot { address, table: is_table(address), id: address.map_or(self.at, Value::id) }
    }

    /// The memory at the sum of a register and another one, which is extended and may be shifted.
    fn indexed(&self, size: u8) -> Spot {
        let word = self.word;
        let base = self.read_or_stack(word.register(5), 8);
        let (width, signed) = if word.bit(13) { (8, false) } else { (4, word.bit(15)) };
        let index = self.read(word.register(16), 8).extended(width, signed).as_index();
        let scale = if word.bit(12) { size } else { 1 };
        let scaled = index.times(scale);
        let address = scaled.and_then(|scaled| base.as_index().sum(scaled));
        let named = |value: Option<Value>| matches!(value, Some(Value::Const(_)));
        let id = mixed(mixed(base.id(), u64::from(scale)), index.id());
        Spot { address, table: is_table(address) || named(Some(base)) || named(scaled), id }
    }
}

fn is_table(address: Option<Value>) -> bool {
    matches!(address, Some(Value::Number { scale, .. }) if scale > 1)
}

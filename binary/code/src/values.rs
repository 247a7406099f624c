//! Values of registers, as far as jumps through tables need them: addresses that the code names,
//! the stack pointer, indices with a bound, entries of tables. Every other value is a symbol: a
//! number without a known value, where equal symbols are equal numbers.

use image::Vaddr;

/// Memory that never changes once the loader has done its work: `image::Constants` with the file's
/// bytes. All addresses are the file's.
pub trait ReadOnly {
    /// The `len` bytes, 1 to 8, at `address`, lowest first, if they are constant; of a word that
    /// the loader relocates, the address in the file that it becomes.
    fn constant(&mut self, address: Vaddr, len: u8) -> Option<u64>;
}

/// No memory is constant.
impl ReadOnly for () {
    fn constant(&mut self, _: Vaddr, _: u8) -> Option<u64> {
        None
    }
}

/// Most words of the stack that are followed at one time. Fewer lose tables whose address is saved
/// in a large frame; more cost time at each join.
const SLOTS_MAX: usize = 32;
/// Most bounds of numbers that are known at one time; more cost time at each join.
const BOUNDS_MAX: usize = 8;
/// Most entries of a table of indices that are read; larger tables are not resolved.
const INDICES_MAX: u64 = 1 << 12;

/// A number without a known value. Equal symbols are equal numbers.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Symbol {
    root: u64,
    /// Bytes that the number fits in; of a longer number, the symbol is its lowest bytes.
    bytes: u8,
}

/// The value of a register.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Number {
        symbol: Symbol,
        scale: u8,
        base: u64,
    },
    /// An address or number that the code itself has.
    Const(u64),
    /// The stack pointer at the procedure's entry plus this.
    Stack(i64),
    /// An entry of a table.
    Entry(Entry),
}

/// An entry of a table, with the arithmetic that was done on it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    /// Address of the entry of index 0.
    pub(crate) table: u64,
    /// Bytes from one entry to the next, and bytes that are read of each.
    pub(crate) stride: u8,
    pub(crate) width: u8,
    pub(crate) signed: bool,
    /// The greatest index, if it is known: from a comparison or mask, or only from the size of the
    /// index.
    pub(crate) last: Option<u64>,
    pub(crate) compared: bool,
    /// Factor of the entry, and the constant that is added to the product.
    pub(crate) factor: u8,
    pub(crate) plus: u64,
    index: u64,
}

/// The comparison of two numbers that decides a conditional jump.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Unsigned: `a < b`, `a <= b`, and their opposites.
    Below,
    BelowOrEqual,
    Above,
    AboveOrEqual,
    Equal,
    NotEqual,
}

/// The value that decides the instruction at the end of a block.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Decision {
    None,
    /// The target of an indirect jump.
    To(Value),
    /// The comparison that holds when a conditional jump jumps, and the one that holds when it does
    /// not.
    By(Order, Order),
}

/// The known values at a place in the code.
///
/// A symbol stands for the number that its place made the last time. It never stands for an earlier
/// number, of the round before in a loop, because of joins: where a loop is entered, no value has a
/// symbol that the loop makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    registers: Box<[Value]>,
    /// Words of the stack, by their distance from the stack pointer at the entry.
    slots: Vec<(i64, Value)>,
    bounds: Vec<(Symbol, u64)>,
    /// The last comparison: of a number with a constant.
    compared: Option<(Symbol, u64)>,
    /// The symbol for the content of memory.
    memory: u64,
}

/// A symbol made of two (splitmix64's mixing step, public domain).
pub(crate) fn mixed(a: u64, b: u64) -> u64 {
    let mut z =
        a.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(b).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// The lowest `bytes` bytes of a number.
fn cut(value: u64, bytes: u8, signed: bool) -> u64 {
    let unused = 64 - 8 * u32::from(bytes.clamp(1, 8));
    if signed { (((value << unused) as i64) >> unused) as u64 } else { value << unused >> unused }
}

impl Symbol {
    fn part(self, bytes: u8) -> Self {
        Self { root: self.root, bytes: self.bytes.min(bytes) }
    }
}

impl Value {
    fn number(root: u64, bytes: u8) -> Self {
        Self::Number { symbol: Symbol { root, bytes }, scale: 1, base: 0 }
    }

    /// A symbol for the value.
    pub(crate) fn id(self) -> u64 {
        match self {
            Self::Number { symbol, scale, base } => {
                mixed(mixed(symbol.root, u64::from(symbol.bytes)), mixed(u64::from(scale), base))
            }
            Self::Const(value) => mixed(1, value),
            Self::Stack(at) => mixed(2, at as u64),
            Self::Entry(entry) => {
                let form = u64::from(entry.width) | u64::from(entry.factor) << 8;
                mixed(mixed(entry.table, entry.plus), mixed(entry.index, form))
            }
        }
    }

    /// The value as a symbol.
    fn symbol(self) -> Symbol {
        match self {
            Self::Number { symbol, scale: 1, base: 0 } => symbol,
            Self::Entry(entry) if entry.is_whole() && !entry.signed => {
                Symbol { root: self.id(), bytes: entry.width }
            }
            _ => Symbol { root: self.id(), bytes: 8 },
        }
    }

    /// The lowest `bytes` bytes, with copies of the sign or zeros above them.
    pub(crate) fn extended(self, bytes: u8, signed: bool) -> Self {
        match self {
            _ if bytes >= 8 => self,
            Self::Const(value) => Self::Const(cut(value, bytes, signed)),
            Self::Entry(entry) if entry.width == bytes && entry.is_whole() => {
                Self::Entry(Entry { signed, ..entry })
            }
            Self::Entry(entry) if entry.width < bytes && entry.is_whole() && !entry.signed => self,
            // The sign is extended, which leaves no bound that matters.
            _ => Self::Number { symbol: self.symbol().part(bytes), scale: 1, base: 0 },
        }
    }

    /// The sum of a value and a constant that the code names as an address.
    fn plus(self, addend: u64) -> Self {
        match self {
            Self::Const(value) => Self::Const(value.wrapping_add(addend)),
            Self::Stack(at) => Self::Stack(at.wrapping_add_unsigned(addend)),
            Self::Number { symbol, scale, base } => {
                Self::Number { symbol, scale, base: base.wrapping_add(addend) }
            }
            Self::Entry(entry) => {
                Self::Entry(Entry { plus: entry.plus.wrapping_add(addend), ..entry })
            }
        }
    }

    /// The value times `factor`; None when the product is not followed.
    pub(crate) fn times(self, factor: u8) -> Option<Self> {
        match self {
            _ if factor == 1 => Some(self),
            Self::Const(value) => Some(Self::Const(value.wrapping_mul(u64::from(factor)))),
            Self::Number { symbol, scale, base } => {
                let scale = scale.checked_mul(factor)?;
                Some(Self::Number { symbol, scale, base: base.wrapping_mul(u64::from(factor)) })
            }
            Self::Entry(_) => Some(Self::Number { symbol: self.symbol(), scale: factor, base: 0 }),
            Self::Stack(_) => None,
        }
    }

    /// The value as part of an address: an entry of a table is then an index into another table.
    pub(crate) fn as_index(self) -> Self {
        match self {
            Self::Entry(_) => Self::Number { symbol: self.symbol(), scale: 1, base: 0 },
            value => value,
        }
    }

    /// The value times `factor`, as part of a jump's target: an entry of a table is then a
    /// distance.
    pub(crate) fn as_distance(self, factor: u8) -> Option<Self> {
        match self {
            Self::Entry(entry) if entry.is_whole() => Some(Self::Entry(Entry { factor, ..entry })),
            value => value.times(factor),
        }
    }

    /// The value that is one of two entries of the same table.
    fn same_table(self, other: Self, index: u64) -> Option<Self> {
        let (Self::Entry(a), Self::Entry(b)) = (self, other) else { return None };
        let last = a.last.zip(b.last).map(|(a, b)| a.max(b));
        let (compared, index) =
            (a.compared && b.compared, if a.index == b.index { a.index } else { index });
        let joined = Entry { last, compared, index, ..a };
        (joined == Entry { last, compared, index, ..b }).then_some(Self::Entry(joined))
    }

    /// The sum of two values; None when it is not followed.
    pub(crate) fn sum(self, other: Self) -> Option<Self> {
        match (self, other) {
            (value, Self::Const(addend)) | (Self::Const(addend), value) => Some(value.plus(addend)),
            _ => None,
        }
    }
}

/// The place of a memory operand.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Spot {
    /// The address, as far as it is followed.
    pub(crate) address: Option<Value>,
    /// Whether a part of the address is one that the code names, or an index is scaled, so that it
    /// may be a table.
    pub(crate) table: bool,
    /// The symbol of the address.
    pub(crate) id: u64,
}

impl Entry {
    pub(super) fn of_any_index(self) -> Self {
        Self { index: 0, ..self }
    }

    /// The jump's target if `word` is the word in the table.
    pub(super) fn target(&self, word: u64) -> u64 {
        cut(word, self.width, self.signed)
            .wrapping_mul(u64::from(self.factor))
            .wrapping_add(self.plus)
    }

    /// Whether the value is the entry itself, without arithmetic.
    fn is_whole(&self) -> bool {
        self.plus == 0 && self.factor == 1
    }
}

impl State {
    /// The state at the entry, with this many registers: only the stack pointer is known, in the
    /// register `stack`. At another beginning nothing is known.
    pub(crate) fn at_entry(place: u64, registers: usize, stack: Option<usize>) -> Self {
        let register = |number| match stack {
            Some(stack) if stack == number => Value::Stack(0),
            _ => Value::number(mixed(place, number as u64), 8),
        };
        let registers = (0..registers).map(register).collect();
        Self {
            registers,
            slots: Vec::new(),
            bounds: Vec::new(),
            compared: None,
            memory: mixed(place, 99),
        }
    }

    pub(crate) fn get(&self, register: usize) -> Value {
        self.registers.get(register).copied().unwrap_or(Value::Number {
            symbol: Symbol { root: 0, bytes: 8 },
            scale: 1,
            base: 0,
        })
    }

    pub(crate) fn set(&mut self, register: usize, value: Value) {
        if let Some(at) = self.registers.get_mut(register) {
            *at = value;
        }
    }

    /// Makes a register a new symbol of `bytes` bytes; `at` is the instruction's address.
    pub(crate) fn set_fresh(&mut self, register: usize, at: u64, bytes: u8) {
        self.set(register, Value::number(mixed(at, register as u64), bytes));
    }

    /// Makes a register a new symbol of at most `last`.
    pub(crate) fn set_bounded(&mut self, register: usize, at: u64, last: u64) {
        self.set_fresh(register, at, 8);
        let symbol = self.get(register).symbol();
        self.bound(symbol, last);
    }

    fn bound(&mut self, symbol: Symbol, last: u64) {
        self.bounds.retain(|(bounded, _)| *bounded != symbol);
        if self.bounds.len() >= BOUNDS_MAX {
            self.bounds.remove(0);
        }
        self.bounds.push((symbol, last));
    }

    /// The greatest value of a number, and whether a comparison proves it.
    fn last(&self, symbol: Symbol) -> (Option<u64>, bool) {
        let of_same = self
            .bounds
            .iter()
            .filter(|(bounded, _)| bounded.root == symbol.root && bounded.bytes >= symbol.bytes);
        match of_same.map(|&(_, last)| last).min() {
            Some(last) => (Some(last), true),
            None => ((symbol.bytes <= 2).then(|| (1 << (8 * symbol.bytes)) - 1), false),
        }
    }

    /// Notes that `value`, of `bytes` bytes, was compared with the constant `with`.
    pub(crate) fn compare(&mut self, value: Value, bytes: u8, with: u64) {
        let symbol = value.symbol().part(bytes);
        self.compared = Some((symbol, cut(with, bytes, false)));
    }

    /// Forgets the flags.
    pub(crate) fn forget_comparison(&mut self) {
        self.compared = None;
    }

    /// Notes the outcome of the last comparison, by which a jump went or did not.
    pub(crate) fn learn(&mut self, order: Order) {
        let Some((symbol, with)) = self.compared else { return };
        let last = match order {
            Order::Below => with.checked_sub(1),
            Order::BelowOrEqual | Order::Equal => Some(with),
            Order::Above | Order::AboveOrEqual | Order::NotEqual => None,
        };
        if let Some(last) = last {
            self.bound(symbol, last);
        }
    }

    /// Loads `width` bytes from `spot`, with zeros or copies of the sign above them.
    pub(crate) fn load(
        &mut self,
        spot: Spot,
        width: u8,
        signed: bool,
        memory: &mut impl ReadOnly,
    ) -> Value {
        match spot.address {
            Some(Value::Const(address)) => {
                if let Some(value) = memory.constant(image::Vaddr(address), width) {
                    return Value::Const(cut(value, width, signed));
                }
            }
            Some(Value::Stack(at)) => {
                if let Some(&(_, value)) = self.slots.iter().find(|(slot, _)| *slot == at) {
                    return value.extended(width, signed);
                }
            }
            Some(Value::Number { symbol, scale, base }) if spot.table => {
                let (last, compared) = self.last(symbol);
                let index = mixed(symbol.root, u64::from(symbol.bytes));
                let entry = Entry {
                    table: base,
                    stride: scale,
                    width,
                    signed,
                    last,
                    compared,
                    factor: 1,
                    plus: 0,
                    index,
                };
                self.bound_entry(&entry, memory);
                return Value::Entry(entry);
            }
            _ => {}
        }
        Value::number(self.in_memory(spot, width), width)
    }

    /// Bounds an entry by the greatest entry of the table of indices that its index comes from.
    fn bound_entry(&mut self, entry: &Entry, memory: &mut impl ReadOnly) {
        let Some(last) =
            entry.last.filter(|&last| entry.compared && entry.width == 1 && last < INDICES_MAX)
        else {
            return;
        };
        let mut greatest = 0;
        for index in 0..=last {
            let at = entry.table.wrapping_add(index * u64::from(entry.stride));
            let Some(value) = memory.constant(image::Vaddr(at), 1) else { return };
            greatest = greatest.max(value);
        }
        self.bound(Value::Entry(Entry { signed: false, ..*entry }).symbol(), greatest);
    }

    /// Stores `value` at `spot`; the instruction's address is `at`. None: an unknown value.
    pub(crate) fn store(&mut self, spot: Spot, width: u8, value: Option<Value>, at: u64) {
        let Some(Value::Stack(slot)) = spot.address else { return self.store_elsewhere(spot, at) };
        let ends = slot.wrapping_add(i64::from(width));
        self.slots.retain(|&(other, _)| other.wrapping_add(8) <= slot || ends <= other);
        if self.slots.len() >= SLOTS_MAX {
            self.slots.remove(0);
        }
        let unknown = Value::number(mixed(at, 8), width.min(8));
        self.slots.push((slot, value.map_or(unknown, |value| value.extended(width, false))));
    }

    /// Stores an unknown value through a pointer. The word is taken to be another than those that
    /// were compared through other pointers: a compiler that loads an index again after the
    /// comparison has proved that.
    fn store_elsewhere(&mut self, spot: Spot, at: u64) {
        for width in [1, 2, 4, 8] {
            let root = self.in_memory(spot, width);
            self.bounds.retain(|(symbol, _)| symbol.root != root);
            self.compared = self.compared.filter(|(symbol, _)| symbol.root != root);
            for value in &mut self.registers {
                if let Value::Number { symbol, .. } = value
                    && symbol.root == root
                {
                    symbol.root = mixed(root, at);
                }
            }
        }
    }

    /// Forgets all memory but the words in which the compiler saved addresses of tables.
    pub(crate) fn clobber(&mut self, at: u64) {
        self.memory = mixed(at, 7);
        self.slots.retain(|(_, value)| matches!(value, Value::Const(_) | Value::Stack(_)));
    }

    /// The symbol for the content of memory at `spot`.
    fn in_memory(&self, spot: Spot, width: u8) -> u64 {
        mixed(self.memory, mixed(spot.id, u64::from(width)))
    }

    /// Joins the state with that of another path to the same place. Returns whether that made a
    /// difference.
    pub(crate) fn join(&mut self, other: &Self, place: u64) -> bool {
        let mut changed = false;
        let mut bounds = Vec::new();
        for number in 0..self.registers.len() {
            let (mine, theirs) = (self.get(number), other.get(number));
            if mine == theirs {
                continue;
            }
            if let Some(entry) = mine.same_table(theirs, mixed(place, number as u64 + 200)) {
                changed |= entry != mine;
                self.set(number, entry);
                continue;
            }
            let (a, b) = (mine.symbol(), theirs.symbol());
            let symbol =
                Symbol { root: mixed(place, number as u64 + 200), bytes: a.bytes.max(b.bytes) };
            if let ((Some(one), compared), (Some(two), too)) = (self.last(a), other.last(b))
                && (compared || too)
            {
                bounds.push((symbol, one.max(two)));
            }
            let joined = Value::Number { symbol, scale: 1, base: 0 };
            changed |= joined != mine;
            self.set(number, joined);
        }
        let slots = self.slots.len();
        self.slots.retain(|slot| other.slots.contains(slot));
        let mut kept: Vec<(Symbol, u64)> = Vec::new();
        for &(symbol, last) in &self.bounds {
            let theirs = other.bounds.iter().find(|(bounded, _)| *bounded == symbol);
            kept.extend(theirs.map(|&(_, theirs)| (symbol, last.max(theirs))));
        }
        kept.retain(|(symbol, _)| bounds.iter().all(|(bounded, _)| bounded != symbol));
        kept.extend(bounds);
        kept.truncate(BOUNDS_MAX);
        changed |= slots != self.slots.len() || kept != self.bounds;
        self.bounds = kept;
        if self.compared != other.compared && self.compared.is_some() {
            (self.compared, changed) = (None, true);
        }
        let memory = if self.memory == other.memory { self.memory } else { mixed(place, 300) };
        changed |= memory != self.memory;
        self.memory = memory;
        changed
    }

    /// Forgets all bounds, so that a join that goes on changing comes to an end.
    pub(crate) fn forget_bounds(&mut self) {
        self.bounds.clear();
        self.compared = None;
    }
}

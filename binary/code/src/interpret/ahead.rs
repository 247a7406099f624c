//! What the code ahead of a sample is going to load, as a program over the registers at the sample.
//!
//! A walk ends where a branch depends on memory that the sampler has not copied. Which addresses
//! these are follows from the code: [`Walker::read_ahead`] follows it from a place with unknown
//! registers, along several ways that execution may take, and keeps the expressions of the
//! addresses from which branches get their values. The sampler computes them from the registers of
//! a sample there, and copies the lines of memory. It is a speculative precomputation slice (Zilles
//! and Sohi, ISCA 2001): where execution goes another way, lines are copied in vain, and nothing is
//! wrong. So aliases and the wrapping around of sums are ignored here; the walk does not.

use std::collections::HashMap;

use image::Vaddr;

use super::expression::{Expressions, Node, Operation, Value};
use super::{CodeView, InstructionSet, Place, Walker};

/// Ways that are followed, and most instructions of each. More find loads that few walks come to.
const WAYS: u64 = 8;
const STEPS_AHEAD_MAX: usize = 256;
/// Of so many conditional branches that lead back, one is followed forward: loops go on.
const LEAVES_LOOP_ONE_IN: u32 = 8;
/// Most lines that a program copies, at most [`super::LINES_MAX`] of which differ.
const POINTS_MAX: usize = 24;
/// Bytes of a line.
const LINE: i64 = super::LINE_BYTES as i64;
/// Most operations of a program.
pub const OPERATIONS_MAX: usize = 46;

/// The place of a value for a program: the registers at the sample in the order of instructions, of
/// which there may be fewer than 32; [`Slot::COUNTER`], [`Slot::ZERO`], and the results of
/// operations, in their order.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Slot(pub u8);

impl Slot {
    /// The address of the sampled instruction.
    pub const COUNTER: Self = Self(32);
    /// Zero.
    pub const ZERO: Self = Self(33);
    /// The result of the first operation.
    pub const FIRST: Self = Self(34);
}

/// An operation of a program.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum AheadOperation {
    /// Copies the line of memory with the byte at this distance from a value.
    Line(Slot, i32),
    /// The `bytes` bytes at a distance from a value, with zeros above; 0 if they are not in memory.
    Load {
        /// The value.
        at: Slot,
        /// The distance.
        offset: i32,
        /// 1, 2, 4 or 8.
        bytes: u8,
    },
    /// `a`, plus `b` shifted left, plus a constant.
    Sum {
        /// A value.
        a: Slot,
        /// Another one.
        b: Slot,
        /// Bits, 0 to 63.
        shift: u8,
        /// The constant.
        offset: i32,
    },
    /// An operation on two values.
    Binary(Operation, Slot, Slot),
    /// The lowest bytes of a value.
    Extended {
        /// The value.
        a: Slot,
        /// 1, 2 or 4.
        bytes: u8,
        /// Whether copies of the sign follow, or zeros.
        signed: bool,
    },
}

/// Where execution goes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the next instruction.
    Next,
    /// To an address.
    To(Vaddr),
    /// There, or to the next instruction.
    Either(Vaddr),
    /// To one of those that were seen.
    Seen,
    /// Nowhere that is followed.
    Ends,
}

/// What is known of a thread's state ahead of a sample.
#[derive(Debug)]
pub struct Ahead {
    /// Expressions that were met, on all ways.
    pub expressions: Expressions,
    registers: Vec<Option<Value>>,
    /// What the flags depend on.
    flags: [Option<Value>; 2],
    stores: Vec<(Value, u8, Option<Value>)>,
    /// Loads that branches depend on, with the number of instructions before.
    needed: HashMap<u32, usize, foldhash::fast::FixedState>,
    /// For each expression, the last way on which a branch depended on it.
    decided: Vec<u32>,
    way: u32,
    steps: usize,
    begin: Vaddr,
    random: fastrand::Rng,
    /// Whether nothing may be left to chance.
    is_exact: bool,
}

impl Ahead {
    fn new(begin: Vaddr, registers: usize) -> Self {
        Self {
            expressions: Expressions::default(),
            registers: vec![None; registers],
            flags: [None; 2],
            stores: Vec::new(),
            needed: HashMap::default(),
            decided: Vec::new(),
            way: 0,
            steps: 0,
            begin,
            random: fastrand::Rng::with_seed(begin.0),
            is_exact: false,
        }
    }

    /// For a way that is known: what depends on more than that is unknown.
    pub(super) fn exact(begin: Vaddr, registers: usize) -> Self {
        let mut ahead = Self { is_exact: true, ..Self::new(begin, registers) };
        ahead.restart();
        ahead
    }

    /// Addresses, bytes and values of the stores so far.
    pub(super) fn stores(&self) -> &[(Value, u8, Option<Value>)] {
        &self.stores
    }

    fn restart(&mut self) {
        for (number, register) in (0..).zip(&mut self.registers) {
            *register = self.expressions.register(number);
        }
        self.flags = [None; 2];
        self.stores.clear();
        self.way += 1;
        self.steps = 0;
    }

    /// The value of a register.
    pub fn register(&self, number: u8) -> Option<Value> {
        self.registers.get(usize::from(number)).copied().flatten()
    }

    /// Gives a register a value.
    pub fn set_register(&mut self, number: u8, value: Option<Value>) {
        self.registers.get_mut(usize::from(number)).into_iter().for_each(|to| *to = value);
    }

    /// Notes what the flags depend on.
    pub fn set_flags(&mut self, values: [Option<Value>; 2]) {
        self.flags = values;
    }

    /// An address that the code has relative to itself, `address` in the sampled process.
    pub fn relative(&mut self, address: u64) -> Option<Value> {
        let distance = address.wrapping_sub(self.begin.0).cast_signed();
        Some(self.expressions.register(Slot::COUNTER.0)?.plus(distance))
    }

    /// The address in the sampled process, if it is relative to the code.
    pub fn address(&mut self, value: Option<Value>) -> Option<Vaddr> {
        let value = value?;
        let code = self.expressions.register(Slot::COUNTER.0)?.node;
        (value.node == code).then(|| Vaddr(self.begin.0.wrapping_add_signed(value.offset)))
    }

    /// The `bytes` bytes at an address, 1 to 8.
    pub fn load(
        &mut self,
        address: Option<Value>,
        bytes: u8,
        view: &mut impl CodeView,
    ) -> Option<Value> {
        if let Some(at) = self.address(address)
            && let Some(value) = view.constant(at, bytes)
        {
            // An address that the loader has written there leads into the same image.
            let distance = value.wrapping_sub(self.begin.0).cast_signed();
            if bytes == 8 && i32::try_from(distance).is_ok() {
                return self.relative(value);
            }
            return Some(Value::constant(value.cast_signed()));
        }
        let address = address?;
        let stored = self.stores.iter().rev().find(|(at, len, _)| (*at, *len) == (address, bytes));
        match stored {
            Some((.., value)) => *value,
            None => self.expressions.load(address, bytes),
        }
    }

    /// Stores a value.
    pub fn store(&mut self, address: Option<Value>, bytes: u8, value: Option<Value>) {
        self.stores.extend(address.map(|address| (address, bytes, value)));
    }

    /// Chance decides: true in half of the cases. None where nothing may be left to it.
    pub fn chance(&mut self) -> Option<bool> {
        (!self.is_exact).then(|| self.random.bool())
    }

    /// A value that depends on the flags.
    pub fn unknown_by_flags(&mut self) -> Option<Value> {
        self.expressions.unknown(&self.flags)
    }

    /// Notes that the flags decide a branch.
    pub fn decide_by_flags(&mut self) {
        self.flags.into_iter().flatten().for_each(|value| self.decide(value));
    }

    /// Notes that a value decides where execution goes.
    pub fn decide(&mut self, value: Value) {
        let mut open: Vec<u32> = value.node.into_iter().collect();
        while let Some(number) = open.pop() {
            if self.decided.len() <= number as usize {
                self.decided.resize(number as usize + 1, 0);
            }
            // What it depends on was noted as well, at an earlier step of this way.
            let Some(decided) = self.decided.get_mut(number as usize) else { continue };
            if std::mem::replace(decided, self.way) == self.way {
                continue;
            }
            let Some(node) = self.expressions.get(number) else { continue };
            if matches!(node, Node::Load { .. }) {
                let steps = self.steps;
                let needed = self.needed.entry(number).or_insert(steps);
                *needed = steps.min(*needed);
            }
            open.extend(node.parts());
        }
    }

    /// Addresses whose lines have what branches depend on, those needed first in front. Loads are
    /// taken to be in one line each, and two addresses not more than a line apart to have what is
    /// between them. What `is_copied` anyway is left out.
    fn points(&self, is_copied: impl Fn(Value) -> bool) -> Vec<Value> {
        let mut loads: HashMap<Option<u32>, Vec<(i64, usize)>, foldhash::fast::FixedState> =
            HashMap::default();
        for (number, steps) in &self.needed {
            let Some(Node::Load { address, .. }) = self.expressions.get(*number) else {
                continue;
            };
            if !is_copied(address) {
                let of_node = loads.entry(address.node).or_default();
                of_node.push((address.offset, *steps));
            }
        }
        let mut points = Vec::new();
        for (node, mut bytes) in loads {
            bytes.sort_unstable();
            let mut bytes = bytes.into_iter().peekable();
            // A byte less than a line behind the last copied one is copied only if one follows
            // that is further away.
            let mut begin: Option<i64> = None;
            while let Some((offset, steps)) = bytes.next() {
                let far = |from: i64, to: i64| to.checked_sub(from).is_none_or(|far| far > LINE);
                let is_far = begin.is_none_or(|begin| far(begin, offset));
                let next = bytes.peek().map(|(next, _)| *next);
                let is_last = begin != Some(offset)
                    && next.is_none_or(|next| begin.is_none_or(|begin| far(begin, next)));
                if is_far || is_last {
                    points.push((steps, Value { node, offset }));
                    begin = Some(offset);
                }
            }
        }
        points.sort_unstable_by_key(|(steps, value)| (*steps, value.node, value.offset));
        points.into_iter().map(|(_, value)| value).collect()
    }
}

impl<I: InstructionSet> Walker<I> {
    /// What the code from `at` on is going to load, as far as branches depend on it. Branches are
    /// followed as in the walks so far.
    pub fn read_ahead<V: CodeView>(&mut self, at: Vaddr, view: &mut V) -> Vec<AheadOperation> {
        let mut ahead = Ahead::new(at, I::REGISTERS);
        for _ in 0..WAYS {
            ahead.restart();
            self.follow_ahead(at, &mut ahead, view);
        }
        let points = ahead.points(|address| {
            let register = address.node.and_then(|node| ahead.expressions.get(node));
            register == Some(Node::Register(I::STACK_POINTER))
                && (0..super::WINDOW_BYTES as i64 - 8).contains(&address.offset)
        });
        program(&ahead.expressions, &points)
    }

    fn follow_ahead<V: CodeView>(
        &mut self,
        at: Vaddr,
        ahead: &mut Ahead,
        view: &mut V,
    ) -> Option<()> {
        let mut at = at;
        let mut place: Option<Place> = None;
        while ahead.steps < STEPS_AHEAD_MAX {
            let is_in = |place: &Place| place.begin <= at && at < place.end;
            place = place.filter(is_in).or_else(|| view.place(at).filter(is_in));
            let instruction = *self.instruction(place?, at, view)?;
            let next = Vaddr(at.0.wrapping_add(I::len(&instruction) as u64));
            let way = I::look_ahead(&instruction, at.0, ahead, view);
            let branch = place?.number_of(at)?;
            let mut seen = || self.seen.choose(branch, at, &mut ahead.random);
            at = match way {
                Way::Next => next,
                Way::To(to) => to,
                Way::Either(to) => match seen() {
                    Some(to) => to,
                    None if to > at && ahead.random.bool() => to,
                    None if to <= at && ahead.random.u32(..LEAVES_LOOP_ONE_IN) != 0 => to,
                    None => next,
                },
                Way::Seen => seen()?,
                Way::Ends => return None,
            };
            ahead.steps += 1;
        }
        Some(())
    }
}

/// The program that copies the lines of these addresses; those that do not fit are left out.
fn program(expressions: &Expressions, points: &[Value]) -> Vec<AheadOperation> {
    let mut program = Program { expressions, slots: HashMap::new(), operations: Vec::new() };
    let mut lines = 0;
    for point in points {
        if lines == POINTS_MAX {
            break;
        }
        let before = program.operations.len();
        let slots = program.slots.clone();
        if program.line(*point).is_none() || program.operations.len() > OPERATIONS_MAX {
            program.operations.truncate(before);
            program.slots = slots;
        } else {
            lines += 1;
        }
    }
    program.operations
}

struct Program<'a> {
    expressions: &'a Expressions,
    slots: HashMap<Value, Slot>,
    operations: Vec<AheadOperation>,
}

impl Program<'_> {
    fn line(&mut self, address: Value) -> Option<()> {
        let (at, offset) = self.split(address)?;
        self.operations.push(AheadOperation::Line(at, offset));
        Some(())
    }

    /// The slot of a value's expression, and the rest.
    fn split(&mut self, value: Value) -> Option<(Slot, i32)> {
        let offset = i32::try_from(value.offset).ok()?;
        let Some(node) = value.node else { return Some((Slot::ZERO, offset)) };
        Some((self.slot(Value { node: Some(node), offset: 0 })?, offset))
    }

    fn slot(&mut self, value: Value) -> Option<Slot> {
        if let Some(slot) = self.slots.get(&value) {
            return Some(*slot);
        }
        if self.operations.len() > OPERATIONS_MAX {
            return None;
        }
        let sum = |a, offset| AheadOperation::Sum { a, b: Slot::ZERO, shift: 0, offset };
        let operation = match value.node.filter(|_| value.offset == 0) {
            None if value.node.is_none() && value.offset == 0 => return Some(Slot::ZERO),
            None => {
                let (a, offset) = self.split(value)?;
                sum(a, offset)
            }
            Some(node) => match self.expressions.get(node)? {
                Node::Register(number) => return Some(Slot(number)),
                Node::Sum { a, b, shift } => {
                    let a = match a {
                        Some(a) => self.slot(Value { node: Some(a), offset: 0 })?,
                        None => Slot::ZERO,
                    };
                    let b = self.slot(Value { node: Some(b), offset: 0 })?;
                    AheadOperation::Sum { a, b, shift, offset: 0 }
                }
                Node::Binary { operation, a, b } => {
                    AheadOperation::Binary(operation, self.slot(a)?, self.slot(b)?)
                }
                Node::Extended { a, bytes, signed } => {
                    let a = self.slot(Value { node: Some(a), offset: 0 })?;
                    AheadOperation::Extended { a, bytes, signed }
                }
                Node::Load { address, bytes } => {
                    let (at, offset) = self.split(address)?;
                    AheadOperation::Load { at, offset, bytes }
                }
                Node::Unknown { .. } => return None,
            },
        };
        let number = u8::try_from(self.operations.len()).ok()?.checked_add(Slot::FIRST.0)?;
        self.operations.push(operation);
        self.slots.insert(value, Slot(number));
        Some(Slot(number))
    }
}

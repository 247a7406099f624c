//! Values as expressions over the registers at a sample.

use std::collections::HashMap;

/// Most expressions that are kept; beyond, further values are unknown. The code ahead of a sample
/// needs a few hundred.
const NODES_MAX: usize = 4096;

/// A value: an expression, if any, plus a constant. Sums with constants are kept apart from
/// expressions, so that the elements of an array that a loop goes through differ in the constant.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Value {
    /// Its number among [`Expressions`].
    pub node: Option<u32>,
    /// What is added to it, modulo 2^64.
    pub offset: i64,
}

impl Value {
    /// A constant.
    pub fn constant(value: i64) -> Self {
        Self { node: None, offset: value }
    }

    /// The value plus a constant.
    #[must_use]
    pub fn plus(self, more: i64) -> Self {
        Self { offset: self.offset.wrapping_add(more), ..self }
    }

    /// The value, if it is a constant.
    pub fn known(self) -> Option<i64> {
        self.node.is_none().then_some(self.offset)
    }
}

/// An operation on two values.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// The first less the second.
    Subtract,
    /// The lower half of the product.
    Multiply,
    /// Bits that both have.
    And,
    /// Bits that one has.
    Or,
    /// Bits that only one has.
    Xor,
    /// The first, shifted right by the second, with zeros.
    Right,
    /// The first, shifted right by the second, with copies of its sign.
    RightSigned,
}

impl Operation {
    /// The result, of 64 bits.
    pub fn of(self, a: u64, b: u64) -> u64 {
        match self {
            Self::Subtract => a.wrapping_sub(b),
            Self::Multiply => a.wrapping_mul(b),
            Self::And => a & b,
            Self::Or => a | b,
            Self::Xor => a ^ b,
            Self::Right => a >> (b & 63),
            Self::RightSigned => (a.cast_signed() >> (b & 63)).cast_unsigned(),
        }
    }
}

/// An expression.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Node {
    /// A register at the sample.
    Register(u8),
    /// `a` plus `b` shifted left.
    Sum { a: Option<u32>, b: u32, shift: u8 },
    /// An operation.
    Binary { operation: Operation, a: Value, b: Value },
    /// The lowest bytes, with copies of their sign or zeros above.
    Extended { a: u32, bytes: u8, signed: bool },
    /// The bytes at an address, with zeros above.
    Load { address: Value, bytes: u8 },
    /// What is not computed, but depends on these.
    Unknown { a: Option<u32>, b: Option<u32> },
}

impl Node {
    /// The expressions that it depends on.
    pub(super) fn parts(self) -> impl Iterator<Item = u32> {
        let (a, b) = match self {
            Self::Register(_) => (None, None),
            Self::Sum { a, b, .. } => (a, Some(b)),
            Self::Binary { a, b, .. } => (a.node, b.node),
            Self::Extended { a, .. } => (Some(a), None),
            Self::Load { address, .. } => (address.node, None),
            Self::Unknown { a, b } => (a, b),
        };
        a.into_iter().chain(b)
    }
}

/// Expressions, each once.
#[derive(Debug, Default)]
pub struct Expressions {
    nodes: Vec<Node>,
    numbers: HashMap<Node, u32, foldhash::fast::FixedState>,
}

impl Expressions {
    pub(super) fn get(&self, number: u32) -> Option<Node> {
        self.nodes.get(number as usize).copied()
    }

    fn node(&mut self, node: Node) -> Option<Value> {
        let number = match self.numbers.get(&node) {
            Some(number) => *number,
            None if self.nodes.len() >= NODES_MAX => return None,
            None => {
                let number = u32::try_from(self.nodes.len()).ok()?;
                self.nodes.push(node);
                self.numbers.insert(node, number);
                number
            }
        };
        Some(Value { node: Some(number), offset: 0 })
    }

    /// A register at the sample.
    pub fn register(&mut self, number: u8) -> Option<Value> {
        self.node(Node::Register(number))
    }

    /// `a` plus `b` shifted left by `shift`, at most 63.
    pub fn sum(&mut self, a: Value, b: Value, shift: u8) -> Option<Value> {
        let offset = a.offset.wrapping_add(b.offset.wrapping_shl(u32::from(shift)));
        let sum = match (a.node, b.node) {
            (a, None) => Value { node: a, offset: 0 },
            (None, b) if shift == 0 => Value { node: b, offset: 0 },
            (a, Some(b)) => self.node(Node::Sum { a, b, shift })?,
        };
        Some(sum.plus(offset))
    }

    /// The result of an operation.
    pub fn binary(&mut self, operation: Operation, a: Value, b: Value) -> Option<Value> {
        match (operation, a.known(), b.known()) {
            (_, Some(a), Some(b)) => {
                let result = operation.of(a.cast_unsigned(), b.cast_unsigned());
                Some(Value::constant(result.cast_signed()))
            }
            (Operation::Subtract, _, Some(b)) => Some(a.plus(b.wrapping_neg())),
            (Operation::Subtract, ..) if a.node == b.node => {
                Some(Value::constant(a.offset.wrapping_sub(b.offset)))
            }
            (Operation::Multiply, _, Some(factor)) if a.offset != 0 => {
                let node = Value { offset: 0, ..a };
                let product = self.node(Node::Binary { operation, a: node, b })?;
                Some(product.plus(a.offset.wrapping_mul(factor)))
            }
            _ => self.node(Node::Binary { operation, a, b }),
        }
    }

    /// The lowest `bytes` bytes of a value. Constants are added behind, as if nothing wrapped
    /// around.
    pub fn extended(&mut self, a: Value, bytes: u8, signed: bool) -> Option<Value> {
        if bytes >= 8 {
            return Some(a);
        }
        let Some(number) = a.node else {
            let unused = 64 - 8 * u32::from(bytes);
            let low = a.offset << unused;
            let signed_value = low >> unused;
            let value = (low.cast_unsigned() >> unused).cast_signed();
            return Some(Value::constant(if signed { signed_value } else { value }));
        };
        match self.get(number)? {
            Node::Extended { bytes: before, signed: was, .. }
                if before <= bytes && was == signed =>
            {
                return Some(a);
            }
            Node::Load { bytes: loaded, .. } if loaded < bytes || (loaded == bytes && !signed) => {
                return Some(a);
            }
            _ => {}
        }
        Some(self.node(Node::Extended { a: number, bytes, signed })?.plus(a.offset))
    }

    /// A value that is not computed, but depends on others.
    pub fn unknown(&mut self, depends: &[Option<Value>]) -> Option<Value> {
        let mut known = None;
        for number in depends.iter().flatten().filter_map(|value| value.node) {
            known = match known {
                None => Some(number),
                Some(a) if a == number => known,
                Some(_) => self.node(Node::Unknown { a: known, b: Some(number) })?.node,
            };
        }
        self.node(Node::Unknown { a: known, b: None })
    }

    /// The `bytes` bytes at an address.
    pub fn load(&mut self, address: Value, bytes: u8) -> Option<Value> {
        self.node(Node::Load { address, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_of_an_array_differ_in_a_constant() {
        let mut all = Expressions::default();
        let (table, index) = (all.register(3).unwrap(), all.register(0).unwrap());
        let mut address = |rounds: i64| {
            let low = all.extended(index.plus(rounds), 4, true).unwrap();
            all.sum(table, low, 2).unwrap()
        };
        let (first, sixth) = (address(0), address(5));
        assert_eq!((first.node, first.offset), (sixth.node, sixth.offset - 20));
        let times = all.binary(Operation::Multiply, index.plus(3), Value::constant(24)).unwrap();
        assert_eq!(times.offset, 72);
        assert_eq!(all.binary(Operation::Subtract, index.plus(9), index).unwrap().known(), Some(9));
        assert_eq!(all.extended(Value::constant(0x1ff), 1, true).unwrap().known(), Some(-1));
    }
}

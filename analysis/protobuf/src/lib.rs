//! The wire format of protocol buffers ("Encoding", protobuf.dev), as much as profiles and traces
//! need: a message of some ten fields is not worth a generator. Fields with the value zero are left
//! out when messages are written, as proto3 has it.
#![forbid(unsafe_code)]

/// A message that is being written.
#[derive(Debug, Default)]
pub struct Message {
    bytes: Vec<u8>,
}

/// Wire types.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH: u64 = 2;
const FIXED32: u64 = 5;

impl Message {
    /// An integer field; signed ones are never negative here.
    pub fn number(&mut self, field: u64, value: u64) -> &mut Self {
        if value != 0 {
            self.tag(field, VARINT);
            varint(&mut self.bytes, value);
        }
        self
    }

    /// An integer field that is written even when it is zero: one of several that exclude each
    /// other, where absence has a meaning.
    pub fn told_number(&mut self, field: u64, value: u64) -> &mut Self {
        self.tag(field, VARINT);
        varint(&mut self.bytes, value);
        self
    }

    /// An integer field of eight bytes.
    pub fn fixed64(&mut self, field: u64, value: u64) -> &mut Self {
        if value != 0 {
            self.tag(field, FIXED64);
            self.bytes.extend_from_slice(&value.to_le_bytes());
        }
        self
    }

    /// A field of bytes: text, or another message. Written even when it is empty, as an entry of a
    /// repeated field must be.
    pub fn bytes(&mut self, field: u64, bytes: &[u8]) -> &mut Self {
        self.tag(field, LENGTH);
        varint(&mut self.bytes, bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// A field that is another message.
    pub fn message(&mut self, field: u64, message: &Self) -> &mut Self {
        self.bytes(field, &message.bytes)
    }

    /// A repeated field of integers, packed.
    pub fn numbers(&mut self, field: u64, values: impl IntoIterator<Item = u64>) -> &mut Self {
        let mut packed = Vec::new();
        values.into_iter().for_each(|value| varint(&mut packed, value));
        if packed.is_empty() { self } else { self.bytes(field, &packed) }
    }

    /// Fields of the same message that were written apart.
    pub fn fields(&mut self, others: &Self) -> &mut Self {
        self.bytes.extend_from_slice(&others.bytes);
        self
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Takes the bytes written so far; the message is empty afterwards.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    fn tag(&mut self, field: u64, wire: u64) {
        varint(&mut self.bytes, field << 3 | wire);
    }
}

/// A count as a signed integer.
pub fn signed(count: u64) -> u64 {
    count.min(i64::MAX.unsigned_abs())
}

/// Seven bits a byte, the lowest first; all but the last byte have the top bit.
fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A field that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// An integer.
    Number(u64),
    /// Eight bytes: an integer, or a double as bits.
    Fixed64(u64),
    /// Four bytes: an integer, or a float as bits.
    Fixed32(u32),
    /// Text, packed integers, or another message.
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    /// An integer, of whatever width.
    pub fn number(self) -> Option<u64> {
        match self {
            Self::Number(value) | Self::Fixed64(value) => Some(value),
            Self::Fixed32(value) => Some(value.into()),
            Self::Bytes(_) => None,
        }
    }

    /// Bytes.
    pub fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// Reads the fields of a message in their order. It ends at the end of the bytes, and at whatever
/// is no field: [`Fields::is_whole`] tells which.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
    is_whole: bool,
}

impl<'a> Fields<'a> {
    /// The fields of a message.
    pub fn of(message: &'a [u8]) -> Self {
        Self { rest: message, is_whole: true }
    }

    /// False after something that is no field.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn field(&mut self) -> Option<(u64, Value<'a>)> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            VARINT => Value::Number(self.varint()?),
            FIXED64 => {
                let (bytes, rest) = self.rest.split_first_chunk()?;
                self.rest = rest;
                Value::Fixed64(u64::from_le_bytes(*bytes))
            }
            LENGTH => {
                let length = usize::try_from(self.varint()?).ok()?;
                let (bytes, rest) = self.rest.split_at_checked(length)?;
                self.rest = rest;
                Value::Bytes(bytes)
            }
            FIXED32 => {
                let (bytes, rest) = self.rest.split_first_chunk()?;
                self.rest = rest;
                Value::Fixed32(u32::from_le_bytes(*bytes))
            }
            _ => return None,
        };
        Some((tag >> 3, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() || !self.is_whole {
            return None;
        }
        let field = self.field();
        self.is_whole = field.is_some();
        field
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_specification() {
        // "Encoding": `a: 150`, `b: "testing"`, `c: {a: 150}`, `e: [1, 2, 3]` and a packed field
        // `f: [3, 270, 86942]`.
        let mut message = Message::default();
        assert_eq!(message.number(1, 150).take(), [0x08, 0x96, 0x01]);
        assert_eq!(message.bytes(2, b"testing").take(), *b"\x12\x07testing");
        let mut inner = Message::default();
        inner.number(1, 150);
        assert_eq!(message.message(3, &inner).take(), [0x1a, 0x03, 0x08, 0x96, 0x01]);
        assert_eq!(
            message.numbers(6, [3, 270, 86942]).take(),
            [0x32, 6, 3, 0x8e, 2, 0x9e, 0xa7, 5]
        );
        assert!(message.number(1, 0).numbers(6, []).take().is_empty());
        assert_eq!(message.number(1, u64::MAX).take().len(), 11);
        assert_eq!(message.fixed64(3, 0x0102).take(), [0x19, 2, 1, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn what_is_written_is_read() {
        let mut message = Message::default();
        message.number(1, 300).bytes(2, b"ab").fixed64(3, 7).number(20, 1);
        let bytes = message.take();
        let mut fields = Fields::of(&bytes);
        let read: Vec<_> = fields.by_ref().collect();
        let expected = [
            (1, Value::Number(300)),
            (2, Value::Bytes(b"ab")),
            (3, Value::Fixed64(7)),
            (20, Value::Number(1)),
        ];
        assert_eq!(read, expected);
        assert!(fields.is_whole());
        for length in 1..bytes.len() {
            let mut fields = Fields::of(&bytes[..length]);
            let count = fields.by_ref().count();
            let ends_with_a_field = [3, 7, 16].contains(&length);
            assert_eq!(fields.is_whole(), ends_with_a_field, "{length}");
            assert!(count < 4);
        }
        let mut bad = Fields::of(&[0x0f, 1, 2]);
        assert_eq!((bad.next(), bad.is_whole()), (None, false), "wire type 7");
        assert_eq!(Fields::of(&[0x0d, 1, 0, 0, 0]).next(), Some((1, Value::Fixed32(1))));
    }
}

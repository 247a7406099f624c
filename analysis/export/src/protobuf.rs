//! The wire format of protocol buffers ("Encoding", protobuf.dev), as much as a profile needs: a
//! message of some ten fields is not worth a generator. Fields with the value zero are left out, as
//! proto3 has it.

/// A message that is being written.
#[derive(Debug, Default)]
pub(super) struct Message {
    bytes: Vec<u8>,
}

/// Wire types.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH: u64 = 2;

impl Message {
    /// An integer field; signed ones are never negative here.
    pub(super) fn number(&mut self, field: u64, value: u64) -> &mut Self {
        if value != 0 {
            self.tag(field, VARINT);
            varint(&mut self.bytes, value);
        }
        self
    }

    /// An integer field of eight bytes.
    pub(super) fn fixed64(&mut self, field: u64, value: u64) -> &mut Self {
        if value != 0 {
            self.tag(field, FIXED64);
            self.bytes.extend_from_slice(&value.to_le_bytes());
        }
        self
    }

    /// A field of bytes: text, or another message. Written even when it is empty, as an entry of a
    /// repeated field must be.
    pub(super) fn bytes(&mut self, field: u64, bytes: &[u8]) -> &mut Self {
        self.tag(field, LENGTH);
        varint(&mut self.bytes, bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// A field that is another message.
    pub(super) fn message(&mut self, field: u64, message: &Self) -> &mut Self {
        self.bytes(field, &message.bytes)
    }

    /// A repeated field of integers, packed.
    pub(super) fn numbers(
        &mut self,
        field: u64,
        values: impl IntoIterator<Item = u64>,
    ) -> &mut Self {
        let mut packed = Vec::new();
        values.into_iter().for_each(|value| varint(&mut packed, value));
        if packed.is_empty() { self } else { self.bytes(field, &packed) }
    }

    /// Fields of the same message that were written apart.
    pub(super) fn fields(&mut self, others: &Self) -> &mut Self {
        self.bytes.extend_from_slice(&others.bytes);
        self
    }

    /// Whether nothing was written.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What was written; the message is empty after that.
    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    fn tag(&mut self, field: u64, wire: u64) {
        varint(&mut self.bytes, field << 3 | wire);
    }
}

/// A count as a signed integer.
pub(super) fn signed(count: u64) -> u64 {
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
}

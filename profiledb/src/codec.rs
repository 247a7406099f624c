//! Numbers, texts and symbols as bytes. `FORMAT.md` describes the same bytes.
//!
//! Every value has exactly one encoding, and every byte string decodes to at most one value, so a
//! decoder accepts only bytes that an encoder wrote.

use image::ImageId;

use crate::error::Damage;
use crate::scope::Scope;
use crate::symbols::Symbol;

/// Longest varint: 64 bits in groups of seven.
const MAX_VARINT_BYTES: usize = 10;

/// Damage, with its offset in the payload.
#[derive(Debug)]
pub struct DecodeError {
    /// Offset in the payload in bytes.
    pub offset: usize,
    /// The kind of damage.
    pub damage: Damage,
}

/// Appends a number: seven bits a byte, lowest first, the top bit set on all bytes but the last.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        // Masked to seven bits: the cast loses nothing.
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_varint(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// An absent field is written as an empty text, or 0: neither is a name that may be stored.
pub(crate) fn put_scope(out: &mut Vec<u8>, scope: &Scope) {
    put_text(out, scope.label.as_deref().unwrap_or(""));
    put_text(out, scope.unit.as_deref().unwrap_or(""));
    put_varint(out, scope.pid.unwrap_or(0).into());
}

/// The payload of a symbols file. The symbols must be in strictly ascending order of start, have a
/// name and not end before they start; other symbols are left out.
pub fn encode_symbols(image: &ImageId, symbols: &[Symbol]) -> Vec<u8> {
    let mut kept: Vec<&Symbol> = Vec::with_capacity(symbols.len());
    for symbol in symbols {
        let ascends = kept.last().is_none_or(|last| last.start < symbol.start);
        if ascends && symbol.end >= symbol.start && !symbol.name.is_empty() {
            kept.push(symbol);
        }
    }
    let mut out = Vec::with_capacity(64 + kept.len() * 32);
    put_text(&mut out, &image.to_string());
    put_varint(&mut out, kept.len() as u64);
    let mut last = 0;
    for symbol in kept {
        put_varint(&mut out, symbol.start - last);
        put_varint(&mut out, symbol.end - symbol.start);
        put_text(&mut out, &symbol.name);
        last = symbol.start;
    }
    out
}

/// The symbols in the payload of a symbols file, which must be that of `image`.
///
/// # Errors
/// [`DecodeError`] when the bytes are not exactly what [`encode_symbols`] makes for `image`.
pub fn decode_symbols(image: &ImageId, payload: &[u8]) -> Result<Vec<Symbol>, DecodeError> {
    let mut input = Input::new(payload);
    input.expect_text(&image.to_string())?;
    // Each entry has two varints and a name of at least a byte each.
    let entries = input.count(4)?;
    let mut symbols = Vec::new();
    let mut last = None;
    for _ in 0..entries {
        let start = input.ascending(last)?;
        let at = input.offset();
        let size = input.varint()?;
        let end =
            start.checked_add(size).ok_or(DecodeError { offset: at, damage: Damage::Order })?;
        let at = input.offset();
        let name = input.text()?.to_owned();
        if name.is_empty() {
            return Err(DecodeError { offset: at, damage: Damage::Name });
        }
        symbols.push(Symbol { start, end, name });
        last = Some(start);
    }
    input.end()?;
    Ok(symbols)
}

/// A varint of any length, and the bytes behind it. Takes and returns slices instead of an
/// [`Input`], so that the fields of an [`Input`] stay in registers inside loops.
#[inline(never)]
fn long_varint(bytes: &[u8]) -> Result<(u64, &[u8]), Damage> {
    let mut value = 0_u64;
    for (at, byte) in bytes.iter().take(MAX_VARINT_BYTES).enumerate() {
        let bits = u64::from(byte & 0x7f);
        let shift = at * 7;
        // The tenth byte has only the 64th bit.
        if shift == 63 && bits > 1 {
            return Err(Damage::Varint);
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            // A last byte of zero is not allowed, because there is a shorter form.
            if *byte == 0 && at > 0 {
                return Err(Damage::Varint);
            }
            return Ok((value, bytes.get(at + 1..).unwrap_or(&[])));
        }
    }
    Err(if bytes.len() < MAX_VARINT_BYTES { Damage::Truncated } else { Damage::Varint })
}

/// A payload under reading.
pub(crate) struct Input<'a> {
    rest: &'a [u8],
    length: usize,
}

impl<'a> Input<'a> {
    pub(crate) const fn new(payload: &'a [u8]) -> Self {
        Self { rest: payload, length: payload.len() }
    }

    pub(crate) const fn offset(&self) -> usize {
        self.length - self.rest.len()
    }

    /// The bytes that were not read yet.
    pub(crate) const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    const fn error(&self, damage: Damage) -> DecodeError {
        DecodeError { offset: self.offset(), damage }
    }

    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u64, DecodeError> {
        // Nearly all numbers of a profile are below 128, and there are millions of them.
        if let Some((byte, rest)) = self.rest.split_first()
            && *byte < 0x80
        {
            self.rest = rest;
            return Ok((*byte).into());
        }
        let (value, rest) = long_varint(self.rest).map_err(|damage| self.error(damage))?;
        self.rest = rest;
        Ok(value)
    }

    /// Reads a number of entries, each of at least `entry_bytes`, that must fit in the rest.
    pub(crate) fn count(&mut self, entry_bytes: usize) -> Result<usize, DecodeError> {
        let at = self.offset();
        let count = self.varint()?;
        match usize::try_from(count) {
            Ok(entries) if entries <= self.rest.len() / entry_bytes => Ok(entries),
            _ => Err(DecodeError { offset: at, damage: Damage::Count { count } }),
        }
    }

    /// Reads a number above `last`, stored as the distance; the first number is stored as it is.
    fn ascending(&mut self, last: Option<u64>) -> Result<u64, DecodeError> {
        let at = self.offset();
        let distance = self.varint()?;
        let next = match last {
            None => Some(distance),
            Some(_) if distance == 0 => None,
            Some(last) => last.checked_add(distance),
        };
        next.ok_or(DecodeError { offset: at, damage: Damage::Order })
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, DecodeError> {
        let at = self.offset();
        std::str::from_utf8(self.bytes()?)
            .map_err(|_| DecodeError { offset: at, damage: Damage::Utf8 })
    }

    /// Reads a length and that many bytes.
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = self.count(1)?;
        let Some((bytes, rest)) = self.rest.split_at_checked(length) else {
            return Err(self.error(Damage::Truncated));
        };
        self.rest = rest;
        Ok(bytes)
    }

    /// Reads `N` bytes.
    pub(crate) fn fixed<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let Some((bytes, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(self.error(Damage::Truncated));
        };
        self.rest = rest;
        Ok(*bytes)
    }

    pub(crate) fn expect_text(&mut self, expected: &str) -> Result<(), DecodeError> {
        let at = self.offset();
        if self.text()? == expected {
            return Ok(());
        }
        Err(DecodeError { offset: at, damage: Damage::Misplaced })
    }

    pub(crate) fn scope(&mut self) -> Result<Scope, DecodeError> {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let (label, unit) = (some(self.text()?), some(self.text()?));
        let at = self.offset();
        let pid = u32::try_from(self.varint()?)
            .map_err(|_| DecodeError { offset: at, damage: Damage::Varint })?;
        Ok(Scope { label, unit, pid: (pid > 0).then_some(pid) })
    }

    pub(crate) const fn end(&self) -> Result<(), DecodeError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(self.error(Damage::TrailingBytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> ImageId {
        ImageId::from_build_id(&[0x12, 0x34]).unwrap()
    }

    #[test]
    fn what_no_encoder_writes_is_refused_where_it_is_wrong() {
        let wide = [0xff; 9];
        for (entries, offset, what) in [
            (&b""[..], 5, "it ends too early"),
            (b"\x01\x10\x81\x00\x01a", 7, "bad variable-length number"),
            (b"\x01\x10\x01\x01a\x00", 10, "bytes follow its end"),
            (&[&b"\x01"[..], &wide, b"\x02\x01"].concat(), 6, "bad variable-length number"),
            (&[&b"\x01"[..], &wide, b"\xff\x01"].concat(), 6, "bad variable-length number"),
            (&[&b"\x01"[..], &wide, b"\x01\x01\x01a"].concat(), 16, "entries are out of order"),
            (
                &[&wide[..], b"\x01"].concat(),
                5,
                "18446744073709551615 entries do not fit in the remaining bytes",
            ),
        ] {
            let payload = [&b"\x041234"[..], entries].concat();
            let error = decode_symbols(&image(), &payload).unwrap_err();
            assert_eq!((error.offset, error.damage.to_string()), (offset, what.to_owned()));
        }
    }

    #[test]
    fn symbols_of_another_image_are_refused() {
        let error = decode_symbols(&image(), b"\x041235\x00").unwrap_err();
        assert!(matches!((error.offset, error.damage), (0, Damage::Misplaced)));
    }

    #[test]
    fn symbols_have_the_documented_bytes() {
        let image = image();
        let symbols = [(0x40, 0x50, "a"), (0x48, 0x48, "bc")].map(|(start, end, name)| Symbol {
            start,
            end,
            name: name.to_owned(),
        });
        let bytes = encode_symbols(&image, &symbols);
        assert_eq!(bytes, b"\x041234\x02\x40\x10\x01a\x08\x00\x02bc");
        assert_eq!(decode_symbols(&image, &bytes).unwrap(), symbols);
        for (entries, what) in [
            (&b"\x01\x40\x10\x00\x00"[..], "a name that may not be stored"),
            (b"\x01\x40\x10\x01\xff", "text that is not UTF-8"),
            (b"\x01\x40\x10\x09a", "9 entries do not fit in the remaining bytes"),
            (b"\x02\x40\x10\x01a\x00\x01\x01b", "entries are out of order"),
        ] {
            let payload = [&b"\x041234"[..], entries].concat();
            let error = decode_symbols(&image, &payload).unwrap_err();
            assert_eq!(error.damage.to_string(), what);
        }
    }
}

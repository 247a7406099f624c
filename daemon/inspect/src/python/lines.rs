//! Lines of instructions, by the tables of code objects.

/// The line of the instruction at a byte of a code object, by its table. `byte` is negative before
/// the first instruction. None where the table has no line for it, or ends before.
pub fn line(minor: u8, table: &[u8], first_line: u32, byte: i64) -> Option<u32> {
    let Ok(byte) = u64::try_from(byte) else { return Some(first_line) };
    match minor {
        8 | 9 => Some(of_increments(table, first_line, byte)),
        10 => of_ranges(table, first_line, byte),
        _ => of_locations(table, first_line, byte),
    }
    .and_then(|line| u32::try_from(line).ok())
}

/// Until 3.9 (Objects/lnotab_notes.txt): pairs of increments, of bytes and, signed, of lines.
fn of_increments(table: &[u8], first_line: u32, byte: u64) -> i64 {
    let (mut line, mut at) = (i64::from(first_line), 0_u64);
    for [bytes, lines] in table.as_chunks::<2>().0 {
        at += u64::from(*bytes);
        if at > byte {
            break;
        }
        line += i64::from(lines.cast_signed());
    }
    line
}

/// 3.10 (the same file): pairs of the length of a range and, signed, the difference of its line to
/// that of the one before; -128: none.
fn of_ranges(table: &[u8], first_line: u32, byte: u64) -> Option<i64> {
    let (mut line, mut end) = (i64::from(first_line), 0_u64);
    for [bytes, lines] in table.as_chunks::<2>().0 {
        let (bytes, lines) = (u64::from(*bytes), lines.cast_signed());
        end += bytes;
        if lines != -128 {
            line += i64::from(lines);
        }
        if byte < end {
            return (lines != -128).then_some(line);
        }
    }
    None
}

/// From 3.11 on (Objects/locations.md): entries of a first byte (bit 7, code in bits 3 to 6, length
/// in units of two bytes less one in bits 0 to 2) and further bytes without bit 7.
fn of_locations(table: &[u8], first_line: u32, byte: u64) -> Option<i64> {
    let (mut line, mut end) = (i64::from(first_line), 0_u64);
    let mut rest = table;
    while let Some((first, after)) = rest.split_first() {
        let length = after.iter().position(|byte| byte & 0x80 != 0).unwrap_or(after.len());
        let (own, next) = after.split_at_checked(length)?;
        rest = next;
        let code = first >> 3 & 15;
        end += 2 * (u64::from(first & 7) + 1);
        match code {
            0..=9 | 15 => {}
            10..=12 => line += i64::from(code - 10),
            _ => line = line.checked_add(signed(own)?)?,
        }
        if byte < end {
            return (code != 15).then_some(line);
        }
    }
    None
}

/// A number in pieces of 6 bits, the low ones first, bit 6 set in all but the last; its lowest bit
/// is the sign.
fn signed(bytes: &[u8]) -> Option<i64> {
    let mut value = 0_i64;
    for (byte, shift) in bytes.iter().zip((0..=24).step_by(6)) {
        value |= i64::from(byte & 63) << shift;
        if byte & 64 == 0 {
            return Some(if value & 1 == 0 { value >> 1 } else { -(value >> 1) });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_each_form() {
        // 6 bytes in line 10, 4 in 12, then 11.
        let increments = [6, 2, 4, 0xff];
        let ranges = [6, 0, 4, 2, 2, 0x80, 4, 0xff];
        let lines = |minor, table: &[u8], bytes: &[i64]| -> Vec<Option<u32>> {
            bytes.iter().map(|byte| line(minor, table, 10, *byte)).collect()
        };
        let at = [-2, 0, 5, 6, 9, 10, 13];
        let told = |lines: [u32; 7]| lines.map(Some).to_vec();
        assert_eq!(lines(8, &increments, &at), told([10, 10, 10, 12, 12, 11, 11]));
        let with_gap = [Some(10), Some(10), Some(10), Some(12), Some(12), None, Some(11)];
        assert_eq!(lines(10, &ranges, &at), with_gap);
        assert_eq!(line(10, &ranges, 10, 20), None, "beyond the table");
        // Code 0 (one more byte), 12 (two lines on), 15 (none), 13 (a line back: 3 as signed).
        let locations = [0x80 | 2, 0, 0x80 | 12 << 3 | 1, 0, 0, 0x80 | 15 << 3, 0x80 | 13 << 3, 3];
        let with_gap = [Some(10), Some(10), Some(10), Some(12), Some(12), None, Some(11)];
        assert_eq!(lines(11, &locations, &at), with_gap);
        assert_eq!(line(13, &locations, 10, 99), None);
        assert_eq!(line(12, &[0x80 | 13 << 3, 64, 64], 10, 0), None, "a number that does not end");
    }
}

//! Tables of source positions (src/codegen/source-position-table.cc, 9.0 to 13.6): for each entry
//! the distance of its code from the one before, and that of its position, as signed numbers of
//! variable length (src/base/vlq.h: 7 bits in a byte, the lowest first; the sign is the lowest bit
//! of the number).

/// The position, in UTF-16 units from the script's begin, of the code at an offset. None: there is
/// none, or the table is damaged.
pub fn position(table: &[u8], offset: u32) -> Option<u32> {
    // SourcePosition (src/codegen/source-position.h): a bit that says that the position is in a
    // file of V8's own, and 30 bits with 1 more than the position.
    let found = entry(table, offset)?;
    let is_external = found & 1 == 1;
    let position = (found >> 1) & ((1 << 30) - 1);
    u32::try_from(position.checked_sub(1)?).ok().filter(|_| !is_external)
}

/// The place of an entry among its code's inlined calls, from 1 on; 0: it is in none.
pub fn inlining(entry: i64) -> u16 {
    (entry >> 31) as u16
}

/// The last entry up to the offset.
pub fn entry(table: &[u8], offset: u32) -> Option<i64> {
    let mut bytes = table.iter();
    let (mut code, mut source) = (-1_i64, 0_i64);
    let mut found = None;
    while !bytes.as_slice().is_empty() {
        // Entries of expressions have the complement of the distance, those of statements have it
        // as it is.
        let distance = number(&mut bytes)?;
        let distance = if distance < 0 { -(distance + 1) } else { distance };
        code = code.checked_add(distance)?;
        source = source.checked_add(number(&mut bytes)?)?;
        if code > i64::from(offset) {
            break;
        }
        found = Some(source);
    }
    found
}

fn number(bytes: &mut std::slice::Iter<'_, u8>) -> Option<i64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = bytes.next()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            let magnitude = (number >> 1).cast_signed();
            return Some(magnitude ^ -(number & 1).cast_signed());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(entries: &[(i64, i64)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut put = |value: i64| {
            let mut rest = ((value << 1) ^ (value >> 63)).cast_unsigned();
            while rest >= 0x80 {
                bytes.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            bytes.push(rest as u8);
        };
        for (code, source) in entries {
            put(*code);
            put(*source);
        }
        bytes
    }

    #[test]
    fn the_last_entry_up_to_the_offset_tells_the_position() {
        let place = |position: i64| (position + 1) << 1;
        let table =
            table(&[(1, place(100)), (-4, place(150) - place(100)), (200, place(7) - place(150))]);
        assert_eq!(
            [0, 2, 3, 202, 203, 999].map(|at| position(&table, at)),
            [Some(100), Some(100), Some(150), Some(150), Some(7), Some(7)]
        );
    }

    #[test]
    fn damaged_tables_tell_none() {
        assert_eq!(position(&[], 0), None);
        assert_eq!(position(&[0x80; 40], 0), None);
        assert_eq!(position(&table(&[(1, 0)]), 5), None, "no position");
        assert_eq!(position(&table(&[(1, 3)]), 5), None, "in V8's own files");
        assert_eq!(position(&table(&[(9, 4)]), 5), None, "later");
        for seed in 0..2000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let bytes: Vec<u8> = (0..random.usize(..40)).map(|_| random.u8(..)).collect();
            let _ = position(&bytes, random.u32(..));
        }
    }
}

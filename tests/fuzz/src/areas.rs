//! Files of counts by the engine of `dcpi ideal`, which any process of a counted program can
//! overwrite.
//!
//! A file is larger than a fuzzer's input can be, and nearly all of it is a hole. An input is a
//! header and pieces of tables: the number of a table (a byte), a length (two bytes), and the
//! bytes, which are appended to the table.

use crate::memory_directory;
use blockcount::area::reader::Counted;
use blockcount::area::{
    self, BLOCKS, CALLS, COUNTERS_IN_SLOT, EVENTS, HEADER, LENGTHS, MAPPINGS, NOTES, SLOTS,
    STRINGS, Table,
};
use std::fs::File;
use std::os::unix::fs::FileExt as _;

const HEADER_BYTES: usize = size_of::<area::Header>();

/// Offset of each table, and of the counters of the first two slots.
fn begins() -> [u64; 9] {
    let slot = |number: u64| SLOTS.offset + number * SLOTS.entry + COUNTERS_IN_SLOT;
    let tables: [Table; 7] = [MAPPINGS, STRINGS, BLOCKS, LENGTHS, CALLS, EVENTS, NOTES];
    let [a, b, c, d, e, f, g] = tables.map(|table| table.offset);
    [a, b, c, d, e, f, g, slot(0), slot(1)]
}

/// A file of counts, read as `dcpi ideal` reads it.
pub fn area(bytes: &[u8]) {
    let Some((header, mut rest)) = bytes.split_at_checked(HEADER_BYTES) else { return };
    let directory = memory_directory();
    let path = directory.path().join("area");
    let file = File::create(&path).unwrap();
    file.set_len(area::SIZE).unwrap();
    file.write_all_at(header, HEADER.offset).unwrap();
    let mut ends = begins();
    while let Some(([table, low, high], more)) = rest.split_first_chunk() {
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(more.len());
        let (piece, after) = more.split_at(len);
        let table = usize::from(*table) % ends.len();
        file.write_all_at(piece, ends[table]).unwrap();
        ends[table] += len as u64;
        rest = after;
    }
    let counted = match Counted::open(&path) {
        Ok(counted) => counted,
        Err(error) => return assert!(!error.to_string().contains('\n'), "{error}"),
    };
    let files = counted.files();
    let edges = [counted.taken(), counted.calls(), counted.jumps(), counted.indirect_calls()];
    for edge in edges.iter().flatten() {
        assert!(edge.from.file < files.len() && edge.to.is_none_or(|to| to.file < files.len()));
    }
    let flow = counted.flow();
    assert!(flow.exact <= flow.addresses && flow.differences.len() <= flow.addresses);
}

/// Files of two blocks, a call and an event, whole and with parts missing.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let words = |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
    let pair = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
    let header = |flags: u32| {
        words(&[
            area::MAGIC,
            pair(area::VERSION, 7),
            pair(1, 0),
            pair(flags, 2), // two slots
            pair(5, 4),     // counters, and bytes of the path
            1,              // mappings
            8,              // bytes of strings
            2,              // blocks
            4,              // bytes of lengths
            1,              // calls
            1,              // events
        ])
    };
    let block = |at: u64, target: u64, taken: u32, lengths: u32, kind: u8| {
        let end = u64::from(u32::from_le_bytes([4, 0, 2, kind]));
        words(&[at, target, pair(0, lengths), pair(taken, lengths), end])
    };
    let piece = |table: u8, bytes: Vec<u8>| {
        [&[table][..], &(bytes.len() as u16).to_le_bytes(), &bytes].concat()
    };
    let whole = |flags: u32| {
        [
            header(flags),
            piece(0, words(&[0x1000, 0x2000, 0, 8, 99, pair(4, 4)])),
            piece(1, b"/a/b/lib".to_vec()),
            piece(2, block(0x1000, 0x1004, 1, 0, area::kind::CONDITIONAL)),
            piece(2, block(0x1004, 0x1000, area::NONE, 2, area::kind::INDIRECT_CALL)),
            piece(3, vec![1, 3, 2, 2]),
            piece(4, words(&[pair(1, 3), 0x1000])),
            piece(5, words(&[pair(0, area::event::LEFT), 0x1001, 1])),
            piece(6, b"not counted: a program of another processor".to_vec()),
            piece(7, words(&[10, 4, 9, 9, 0])),
            piece(8, words(&[1, 1, 1, 1, 1])),
        ]
        .concat()
    };
    vec![whole(0), whole(area::EDGES), whole(area::EDGES | area::JUMPS), header(area::EDGES)]
}

//! Reading a damaged area gives an error or counts, and never a panic or a large allocation.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests panic to fail")]

mod harness;

use blockcount::area::reader::{Counted, ReadError};
use harness::Case;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// A generator of numbers (xorshift), seeded so that a failure repeats.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

#[test]
fn broken_areas_are_refused_or_read() {
    let case = Case::of("/usr/bin/true");
    case.run(&[]);
    let path = std::fs::read_dir(case.areas()).unwrap().next().unwrap().unwrap().path();
    let area = File::options().read(true).write(true).open(path).unwrap();
    let good = Counted::read(&area).unwrap();
    assert!(good.blocks.len() > 1000);
    let mut random = Random(0x2026_1125);
    let (mut refused, mut read) = (0, 0);
    for round in 0..600 {
        // Headers, tables of mappings and blocks, and the places that the header names.
        let place = match round % 4 {
            0 => random.below(112),
            1 => 4096 + random.below(48 * good.mappings.len() as u64),
            2 => blockcount::area::BLOCKS.offset + random.below(48 * good.blocks.len() as u64),
            _ => blockcount::area::LENGTHS.offset + random.below(good.header.lengths),
        };
        let mut before = [0; 8];
        area.read_exact_at(&mut before, place).unwrap();
        let broken = match random.below(3) {
            0 => u64::MAX,
            1 => random.below(u64::MAX),
            _ => u64::from_le_bytes(before) ^ 1 << random.below(64),
        };
        area.write_all_at(&broken.to_le_bytes(), place).unwrap();
        match Counted::read(&area) {
            Ok(counted) => {
                counted.files();
                counted.taken();
                counted.calls();
                counted.flow();
                read += 1;
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                refused += 1;
            }
        }
        area.write_all_at(&before, place).unwrap();
    }
    assert!(refused > 50 && read > 50, "{refused} refused, {read} read");
}

#[test]
fn other_files_are_no_areas() {
    let file = tempfile::tempfile().unwrap();
    assert!(matches!(Counted::read(&file), Err(ReadError::Io(_))));
    file.write_all_at(&[7; 8192], 0).unwrap();
    assert!(matches!(Counted::read(&file), Err(ReadError::NotAnArea)));
}

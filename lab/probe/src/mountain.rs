//! The memory mountain: how fast a core reads, by working set and stride (the lecture; Bryant and
//! O'Hallaron, *Computer Systems*, chapter 6).

use crate::kernels::{READS, read};
use crate::pieces::fastest;
use crate::region::Region;

/// Strides in bytes: from every word to every fourth line.
pub const STRIDES: [usize; 9] = [8, 16, 24, 32, 48, 64, 96, 128, 256];
/// Smallest working set, bytes; each next one is twice as large.
const BYTES_MIN: usize = 8 << 10;
/// Fewest loads of a piece: small working sets are read several times.
const LOADS_MIN: u64 = 16 << 10;
/// Pieces at each place; the fastest one counts.
const PIECES: usize = 2;

/// Working sets in bytes up to those of a region.
#[must_use]
pub fn working_sets(region: &Region) -> Vec<usize> {
    let sizes = std::iter::successors(Some(BYTES_MIN), |bytes| bytes.checked_mul(2));
    sizes.take_while(|bytes| *bytes <= region.bytes()).collect()
}

/// Bytes per ns (GB/s) of words that are read, by working set and stride: rows are working sets,
/// columns [`STRIDES`]. 0 where another thread took the CPU in each piece.
#[must_use]
pub fn throughputs(region: &Region, working_sets: &[usize]) -> Vec<Vec<f64>> {
    let at = |bytes: usize, stride: usize| {
        let rounds = (bytes / stride) as u64 / READS;
        let loads = rounds * READS;
        let times = LOADS_MIN.div_ceil(loads.max(1));
        let pass = || (0..times).for_each(|_| read(region, stride, rounds));
        pass();
        8.0 * (loads * times) as f64 / fastest(PIECES, pass)
    };
    let row = |bytes: &usize| STRIDES.iter().map(|stride| at(*bytes, *stride)).collect();
    working_sets.iter().map(row).collect()
}

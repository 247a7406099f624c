//! The rings in which samplers leave snapshots of registers: one writer, the sampler on that CPU,
//! and one reader, the daemon.
//!
//! The sampler writes a snapshot and then increments `written`. x86-64 keeps the order of stores
//! (Intel SDM volume 3, 9.2.2). arm64 need not, and its kernels take an atomic operation of BPF
//! that would order them since 5.18 only: a snapshot that is read in the nanoseconds in which it is
//! written may have words that were wiped, 0, and then gives no edge or few. The daemon reads the
//! snapshot, wipes it, and then increments `taken`, which frees the place.

use super::KernelError;
use super::mapped::Mapped;
use abi::{SNAPSHOTS_PER_CPU, Snapshot, SnapshotRing};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{Ordering, fence};

/// The rings of all possible CPUs.
pub struct Snapshots {
    rings: Mapped<SnapshotRing>,
    data: Mapped<Snapshot>,
}

impl Snapshots {
    /// Maps the rings of `cpus` possible CPUs.
    pub fn new(
        rings: BorrowedFd<'_>,
        data: BorrowedFd<'_>,
        cpus: usize,
    ) -> Result<Self, KernelError> {
        Ok(Self {
            rings: Mapped::new(rings, cpus, "rings of snapshots")?,
            data: Mapped::new(data, cpus * SNAPSHOTS_PER_CPU, "snapshots")?,
        })
    }

    /// Moves the snapshots of `cpu` to `into` and wipes them in the ring. Returns the number of
    /// snapshots that the CPU ever had to drop, which wraps.
    pub fn take(&self, cpu: usize, into: &mut Vec<Snapshot>) -> u32 {
        let Some(ring) = self.rings.pointer(cpu) else { return 0 };
        // SAFETY: inside the mapping; aligned words, of which the sampler writes the first two and
        // the daemon the third.
        let (written, dropped, taken) = unsafe {
            let written = (&raw const (*ring).written).read_volatile();
            let dropped = (&raw const (*ring).dropped).read_volatile();
            (written, dropped, (&raw const (*ring).taken).read_volatile())
        };
        fence(Ordering::Acquire);
        let new = written.wrapping_sub(taken).min(SNAPSHOTS_PER_CPU as u32);
        for number in (0..new).map(|n| taken.wrapping_add(n)) {
            let index = cpu * SNAPSHOTS_PER_CPU + number as usize % SNAPSHOTS_PER_CPU;
            into.extend(self.data.read(index));
            self.data.write(index, Snapshot::EMPTY);
        }
        fence(Ordering::Release);
        // SAFETY: as above.
        unsafe { (&raw mut (*ring).taken).write_volatile(written) };
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn each_snapshot_is_given_once_and_wiped() {
        let file = |bytes: usize| {
            let file = tempfile::tempfile().unwrap();
            file.set_len(bytes as u64).unwrap();
            file
        };
        let (rings, data) = (
            file(2 * size_of::<SnapshotRing>()),
            file(2 * SNAPSHOTS_PER_CPU * size_of::<Snapshot>()),
        );
        let snapshots = Snapshots::new(rings.as_fd(), data.as_fd(), 2).unwrap();
        let mut into = Vec::new();
        // Around the end of the ring, and of the numbers.
        let begin = u32::MAX - 2;
        let ring =
            |written, taken| SnapshotRing { written, taken, dropped: 7, ..SnapshotRing::default() };
        snapshots.rings.write(1, ring(begin, begin));
        assert_eq!(snapshots.take(1, &mut into), 7);
        assert!(into.is_empty());
        let index = |n: u32| SNAPSHOTS_PER_CPU + begin.wrapping_add(n) as usize % SNAPSHOTS_PER_CPU;
        let full = Snapshot { stack: [1; 256], ..Snapshot::EMPTY };
        for n in 0..5 {
            snapshots
                .data
                .write(index(n), Snapshot { key: n.into(), line_bytes: [[1; 64]; 16], ..full });
        }
        snapshots.rings.write(1, ring(begin.wrapping_add(5), begin));
        snapshots.take(1, &mut into);
        assert_eq!(into.iter().map(|snapshot| snapshot.key).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        assert!(
            (0..5).all(|n| {
                let left = snapshots.data.read(index(n)).unwrap();
                left.stack == [0; 256] && left.line_bytes == [[0; 64]; 16]
            }),
            "nothing stays behind"
        );
        snapshots.take(1, &mut into);
        assert_eq!(into.len(), 5);
        // A ring that claims more than it can have gives what it has.
        snapshots.rings.write(0, ring(1000, 0));
        into.clear();
        snapshots.take(0, &mut into);
        assert_eq!(into.len(), SNAPSHOTS_PER_CPU);
        assert_eq!(snapshots.take(2, &mut into), 0, "no such CPU");
    }
}

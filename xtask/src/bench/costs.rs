//! A model of a table's cost, to compare shapes whose difference is below the noise of
//! measurements.
//!
//! cost of a sample in ns = handler + daemon:
//! - handler = LINE_NS per cache line of the bucket + far_ns of a table that is not in the CPU's
//!   page + LOOK_NS per way looked at + MISS_NS per miss + SPILL_NS per spilled entry
//! - daemon = ENTRY_NS per entry handed over (spilled or drained) + PLACE_NS per place +
//!   (DRAIN_NS + BUCKET_NS per bucket) per drain of a CPU
//!
//! What every shape costs alike (the interrupt, the look-ups of maps, the merge to disk) is left
//! out. The constants are from `bench overhead` on a virtual machine (Xeon, Linux 6.18): they are
//! right within a factor of two or so, which moves all shapes alike, and small differences mean
//! nothing.

use super::simulation::{Counts, IN_PAGE, SPILL_ENTRIES, Shape};

/// Access to a cache line of the table. It is seldom in a near cache, because the program had the
/// 200 us since the last sample to evict it.
const LINE_NS: f64 = 60.0;
/// Comparison of one way with the key.
const LOOK_NS: f64 = 1.0;
/// A miss: moves entries back and writes a new one. The handler takes 180 ns more than the empty
/// program without misses and 280 ns with 80 % misses; two thirds of the difference are here.
const MISS_NS: f64 = 60.0;
/// An entry of the spill buffer. Four share a cache line, which is written in order.
const SPILL_NS: f64 = 40.0;
/// Sorting an entry, in the daemon.
const ENTRY_NS: f64 = 60.0;
/// Finding a place's mapping and adding to its profile. With sorting, the daemon takes 100 ns per
/// sample without misses and 220 ns with 35 % misses.
const PLACE_NS: f64 = 290.0;
/// A drain without entries: interprocessor interrupt, system calls, wake-up, records of processes.
/// Measured: 0.5 ms per second and CPU, the benchmark's own requests included.
const DRAIN_NS: f64 = 300_000.0;
/// Reading a bucket of 64 bytes, in order; most are not in a cache.
const BUCKET_NS: f64 = 8.0;

/// Additional cost of a table outside of the page of its CPU's own line: a TLB miss, and, the
/// larger the table, a line from a farther cache. Measured in turns in a compile storm: one of 256
/// buckets 129 ns more than one of 31, of 1024 151, of 4096 257; in a loop that stays in one page
/// of the table, beside other builds, 100, 114 and 143 (Zen 3, virtual, Linux 6.18).
fn far_ns(shape: &Shape) -> f64 {
    if shape.buckets <= IN_PAGE {
        0.0
    } else {
        110.0 + 30.0 * (shape.buckets as f64 / 256.0).log2()
    }
}

/// Most kernel memory of a CPU's tables, in bytes.
pub const BYTES_MAX: u64 = 1 << 20;
/// Another shape replaces the default if the default costs more by this part of its cost.
pub const WORTH_A_CHANGE: f64 = 0.1;
/// Shapes whose costs differ by less than this part count as equal.
pub const EQUAL: f64 = 0.03;

/// Cost of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Time in the sampling interrupt, ns per sample.
    pub handler_ns: f64,
    /// CPU time of the daemon, ns per sample.
    pub daemon_ns: f64,
}

impl Cost {
    /// The cost of a shape whose simulation gave `counts`.
    pub fn of(shape: &Shape, counts: &Counts) -> Self {
        let buckets = (shape.bucket_bytes() * shape.buckets) as f64 / 64.0;
        let handler = LINE_NS * counts.lines as f64
            + far_ns(shape) * counts.samples as f64
            + LOOK_NS * counts.looks as f64
            + MISS_NS * counts.misses as f64
            + SPILL_NS * counts.spilled as f64;
        let daemon = ENTRY_NS * (counts.spilled + counts.drained) as f64
            + PLACE_NS * counts.places as f64
            + (DRAIN_NS + BUCKET_NS * buckets) * counts.drains as f64;
        let samples = counts.samples.max(1) as f64;
        Self { handler_ns: handler / samples, daemon_ns: daemon / samples }
    }

    /// Sum of both parts.
    pub fn total_ns(&self) -> f64 {
        self.handler_ns + self.daemon_ns
    }
}

/// Kernel memory of one CPU: its line, two halves of buckets and spill entries.
pub fn bytes_per_cpu(shape: &Shape) -> u64 {
    let page = (64 + 2 * shape.bucket_bytes() * shape.buckets).next_multiple_of(4096);
    page as u64 + 2 * 16 * SPILL_ENTRIES
}

/// The model in words.
pub fn model() -> String {
    format!(
        "Cost model, ns: handler = {LINE_NS} per line of the bucket + {LOOK_NS} per way looked at + {MISS_NS} per miss + {SPILL_NS} per spilled entry\n\
         (+ 110 to 230 where the table is not in the page of the CPU's own line); daemon = \
         {ENTRY_NS} per entry handed over + {PLACE_NS} per place + ({DRAIN_NS} + {BUCKET_NS} per \
         64 bytes of buckets) per drain of a CPU. The same for all and left out: the\n\
         interrupt, map look-ups, the merge to disk. A drain comes early when seven tenths of the \
         {SPILL_ENTRIES} spill entries are used. Limit: {} KiB per CPU.\n\
         The default is kept unless another is {:.0} % cheaper; of those within {:.0} % of the \
         cheapest the least memory is taken. Six packed ways are hypothetical: our key\n\
         alone has 96 bits.\n",
        BYTES_MAX / 1024,
        100.0 * WORTH_A_CHANGE,
        100.0 * EQUAL,
    )
}

#[cfg(test)]
mod tests {
    use super::super::simulation::DEFAULT;
    use super::*;

    #[test]
    fn cost_and_memory_of_the_default() {
        let counts = Counts {
            samples: 1000,
            misses: 100,
            spilled: 20,
            drained: 80,
            places: 50,
            looks: 1500,
            lines: 1000,
            drains: 1,
            spill_peak: 20,
        };
        let cost = Cost::of(&DEFAULT, &counts);
        assert!((cost.handler_ns - (60.0 + 1.5 + 6.0 + 0.8)).abs() < 1e-9, "{cost:?}");
        assert!((cost.daemon_ns - (6.0 + 14.5 + 300.0 + 0.248)).abs() < 1e-9, "{cost:?}");
        assert_eq!(bytes_per_cpu(&DEFAULT), 516 << 10);
        let far = Cost::of(&Shape { buckets: 256, ..DEFAULT }, &counts);
        assert!((far.handler_ns - cost.handler_ns - 110.0).abs() < 1e-9, "{far:?}");
    }
}

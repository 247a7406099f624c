//! Simulates every shape of the table that comes into question, on all CPUs, and chooses the best.

use super::costs::{BYTES_MAX, Cost, EQUAL, WORTH_A_CHANGE, bytes_per_cpu};
use super::machine::cpus;
use super::recording::Phase;
use super::simulation::{Counts, DEFAULT, IN_PAGE, Policy, Shape};
use anyhow::{Context as _, bail};

/// Numbers of ways that are simulated.
pub const WAYS: [usize; 3] = [4, 6, 8];
/// Numbers of buckets that are simulated: as many as fit in a page beside the CPU's own line, and
/// those of 4, 16 and 64 pages.
pub const BUCKETS: [usize; 4] = [IN_PAGE, 256, 1024, 4096];
/// Drain intervals that are simulated, s.
pub const INTERVALS_S: [u64; 4] = [1, 2, 5, 10];

/// A shape and its results.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// The shape.
    pub shape: Shape,
    /// Counts of all phases together.
    pub counts: Counts,
}

impl Cell {
    /// The shape's cost by the model.
    pub fn cost(&self) -> Cost {
        Cost::of(&self.shape, &self.counts)
    }

    /// Kernel memory of one CPU, in bytes.
    pub fn bytes(&self) -> u64 {
        bytes_per_cpu(&self.shape)
    }
}

/// All shapes.
pub fn shapes() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for ways in WAYS {
        for buckets in BUCKETS {
            for policy in Policy::ALL {
                for interval_s in INTERVALS_S {
                    for (kernel_shared, retained) in [(true, true), (true, false), (false, true)] {
                        shapes.push(Shape {
                            ways,
                            buckets,
                            policy,
                            interval_s,
                            kernel_shared,
                            retained,
                        });
                    }
                }
            }
        }
    }
    shapes
}

/// Simulates all shapes on all phases; each phase begins with empty tables.
pub fn simulate(phases: &[Phase]) -> anyhow::Result<Vec<Cell>> {
    let shapes = shapes();
    let cell = |shape: &Shape| {
        let mut counts = Counts::default();
        phases.iter().for_each(|phase| counts.add(&shape.simulate(&phase.samples)));
        Cell { shape: *shape, counts }
    };
    std::thread::scope(|scope| {
        let parts = shapes.chunks(shapes.len().div_ceil(cpus()));
        let workers: Vec<_> = parts
            .map(|part| scope.spawn(move || part.iter().map(cell).collect::<Vec<_>>()))
            .collect();
        let mut cells = Vec::new();
        for worker in workers {
            match worker.join() {
                Ok(part) => cells.extend(part),
                Err(_) => bail!("a thread of the simulation panicked"),
            }
        }
        Ok(cells)
    })
}

/// The default, unless another shape that can be built and fits in memory is cheaper by
/// [`WORTH_A_CHANGE`]: then the smallest of the cheapest, and of those the one with the shortest
/// interval.
pub fn best(cells: &[Cell]) -> anyhow::Result<Cell> {
    let fitting: Vec<&Cell> = cells
        .iter()
        .filter(|cell| cell.bytes() <= BYTES_MAX && !cell.shape.is_hypothetical())
        .collect();
    let least = fitting
        .iter()
        .map(|cell| cell.cost().total_ns())
        .min_by(f64::total_cmp)
        .context("no shape fits")?;
    let cheapest = fitting.iter().filter(|cell| cell.cost().total_ns() <= least * (1.0 + EQUAL));
    let best = cheapest
        .min_by_key(|cell| (cell.bytes(), cell.shape.interval_s))
        .context("no shape fits")?;
    let kept = best.cost().total_ns() * (1.0 + WORTH_A_CHANGE);
    let default =
        fitting.iter().find(|cell| cell.shape == DEFAULT && cell.cost().total_ns() <= kept);
    Ok(**default.unwrap_or(best))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_among_the_shapes() {
        assert_eq!(shapes().iter().filter(|shape| **shape == DEFAULT).count(), 1);
        assert_eq!(shapes().len(), 3 * 4 * 3 * 4 * 3);
    }

    #[test]
    fn the_best_is_cheap_small_and_fits() {
        let counts = Counts { samples: 1_000_000, lines: 1_000_000, ..Counts::default() };
        let cell = |buckets, interval_s, misses| Cell {
            shape: Shape { buckets, interval_s, ..DEFAULT },
            counts: Counts { misses, drained: misses, places: misses, ..counts },
        };
        let (small, large, huge) =
            (cell(256, 1, 500_000), cell(512, 1, 427_000), cell(1 << 15, 60, 0));
        assert_eq!(
            best(&[large, small, huge]).unwrap().shape,
            small.shape,
            "equal cost: the smaller; too big: not at all"
        );
        let better = cell(512, 1, 100_000);
        assert_eq!(best(&[small, better]).unwrap().shape, better.shape);
        let default = cell(DEFAULT.buckets, 5, 500_000);
        let hardly = cell(DEFAULT.buckets, 1, 470_000);
        assert_eq!(
            best(&[small, default, hardly]).unwrap().shape,
            DEFAULT,
            "no change for nothing"
        );
        let packed = Cell { shape: Shape { ways: 6, ..better.shape }, ..better };
        assert_eq!(
            best(&[packed, default]).unwrap().shape,
            DEFAULT,
            "six entries cannot be packed today"
        );
        assert!(best(&[huge]).is_err());
    }
}

//! How often what of a procedure was executed, with what a processor's best cases tell of it.

use code::cfg::{Cfg, Loops};
use code::isa::work::Work;
use estimate::{Estimate, IssuePoint, ProcedureSamples};

use crate::best::{Ways, best_cases};
use crate::machine::Machine;

/// Estimates how often the blocks of `graph` were executed: as [`estimate::estimate`] does, and
/// where the machine issues in order, once more with the best cases of its instructions, on the
/// ways that were found to be the usual ones. `work` and `samples` are of the instructions of each
/// block. None where nothing can be said.
#[must_use]
pub fn estimate(
    machine: Option<&Machine>,
    graph: &Cfg,
    loops: &Loops,
    sampled: &ProcedureSamples<'_>,
    (work, samples): (&[Vec<Work>], &[Vec<f64>]),
) -> Option<Estimate> {
    let first = estimate::estimate(graph, loops, sampled)?;
    let Some(machine) = machine.filter(|machine| machine.in_order()) else { return Some(first) };
    let best = best_cases(&Ways::new(graph, loops, &first), machine, work);
    let of_block = |(best, samples): (&Vec<crate::schedule::Slot>, &Vec<f64>)| {
        let point = |(slot, samples): (&crate::schedule::Slot, &f64)| IssuePoint {
            samples: *samples,
            best_cycles: slot.cycles,
            producer_distance: slot.after,
        };
        best.iter().zip(samples).map(point).collect()
    };
    let points: Vec<Vec<IssuePoint>> = best.iter().zip(samples).map(of_block).collect();
    estimate::estimate(graph, loops, &ProcedureSamples { issue_points: Some(&points), ..*sampled })
        .or(Some(first))
}

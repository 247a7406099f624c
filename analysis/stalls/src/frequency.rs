//! Execution frequencies, with the best cases of a processor that issues in order.

use code::cfg::{Cfg, Loops};
use code::isa::work::Work;
use estimate::{BranchBias, Estimate, IssuePoint, ProcedureSamples};

use crate::best_case::{FrequentPaths, best_cases};
use crate::machine::Machine;
use crate::schedule::BestCase;

/// Estimates how often the blocks of `graph` were executed, as [`estimate::estimate`] does. Where
/// the machine issues in order, a second estimate adds the best cases of the instructions,
/// scheduled on the most frequent paths of the first. `work` and `samples` are of the instructions
/// of each block. `None` where nothing can be estimated.
pub fn estimate(
    machine: Option<&Machine>,
    graph: &Cfg,
    loops: &Loops,
    sampled: &ProcedureSamples<'_>,
    (work, samples): (&[Vec<Work>], &[Vec<f64>]),
) -> Option<Estimate> {
    let branch_bias = machine.map_or(BranchBias::UNKNOWN, Machine::branch_bias);
    let sampled = &ProcedureSamples { branch_bias, ..*sampled };
    let first = estimate::estimate(graph, loops, sampled)?;
    let Some(machine) = machine.filter(|machine| machine.in_order()) else { return Some(first) };
    let best = best_cases(&FrequentPaths::new(graph, loops, &first), machine, work);
    let of_block = |(best, samples): (&Vec<BestCase>, &Vec<f64>)| {
        let point = |(best_case, samples): (&BestCase, &f64)| IssuePoint {
            samples: *samples,
            best_cycles: best_case.cycles,
            producer_distance: best_case.producer_distance,
        };
        best.iter().zip(samples).map(point).collect()
    };
    let points: Vec<Vec<IssuePoint>> = best.iter().zip(samples).map(of_block).collect();
    estimate::estimate(graph, loops, &ProcedureSamples { issue_points: Some(&points), ..*sampled })
        .or(Some(first))
}

//! A procedure's loops.

use code::cfg::To;

use crate::graphs::Graph;
use crate::report::{LoopRow, TestRow};

/// The loops that took samples or were seen to go round, those with most samples first.
pub(super) fn loops(graph: &Graph) -> Vec<LoopRow> {
    let Some(estimate) = &graph.estimate else { return Vec::new() };
    let all = graph.loops.loops();
    let mut rows: Vec<LoopRow> = all
        .iter()
        .map(|one| LoopRow { depth: one.depth, sure: estimate::Confidence::High, ..LoopRow::default() })
        .collect();
    let mut executions = vec![0.0; rows.len()];
    let around = |block: usize| {
        std::iter::successors(graph.loops.innermost(block), |number| all.get(*number).and_then(|inner| inner.parent))
    };
    let blocks = graph.graph.blocks().iter().zip(&estimate.blocks).enumerate();
    for (number, (block, runs)) in blocks.filter(|(_, (block, _))| !block.padding) {
        for within in around(number) {
            let Some(row) = rows.get_mut(within) else { continue };
            row.samples += runs.samples;
            if all.get(within).is_some_and(|one| one.header == number) {
                row.header = block.start.0;
                executions.get_mut(within).into_iter().for_each(|of| *of = runs.executions);
                row.sure = row.sure.min(runs.confidence);
            }
        }
    }
    // Rounds for one entry: executions of the header, by those that come from outside the loop.
    let mut entries = vec![0.0; rows.len()];
    for (edge, taken) in graph.graph.edges().iter().zip(&estimate.edges) {
        let To::Block(to) = edge.to else { continue };
        for number in around(to) {
            if graph.loops.contains(number, edge.from) {
                break;
            }
            entries.get_mut(number).into_iter().for_each(|sum| *sum += taken);
        }
    }
    for (number, row) in rows.iter_mut().enumerate() {
        let entered_aside = all.get(number).is_some_and(|one| Some(one.header) == graph.graph.entry());
        let entries = entries.get(number).copied().unwrap_or(0.0) + if entered_aside { 1.0 } else { 0.0 };
        row.rounds = (entries > 0.0).then(|| executions.get(number).map_or(0.0, |runs| runs / entries));
    }
    for trips in &estimate.trips {
        let Some(row) = rows.get_mut(trips.number) else { continue };
        row.test = Some(TestRow {
            at: trips.test.0,
            samples: trips.samples,
            rounds: 1.0 / trips.ends,
            spread: trips.spread,
            quantiles: trips.quantiles,
            only: trips.only,
            once: trips.once,
        });
    }
    rows.retain(|row| row.samples > 0.0 || row.test.is_some());
    rows.sort_by(|a, b| b.samples.total_cmp(&a.samples).then(a.header.cmp(&b.header)));
    rows
}

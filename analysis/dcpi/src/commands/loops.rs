//! A procedure's loops.

use code::cfg::To;
use estimate::Confidence;
use stalls::Explained;
use verdict::{Hardware, SAMPLES_MIN, judge};

use annotate::graphs::Graph;
use report::{LoopRow, RoundNs, WhyAlternative};

/// The loops that took samples or were seen to go round, those with the most samples first.
pub(super) fn loops(graph: &Graph, explained: &Explained, hardware: &Hardware) -> Vec<LoopRow> {
    let Some(estimate) = &graph.estimate else { return Vec::new() };
    let (cfg, loops) = (&graph.graph, &graph.loops);
    let row = |one: &code::cfg::Loop| {
        let runs = estimate.blocks.get(one.header).copied().unwrap_or_default();
        let header = cfg.blocks().get(one.header).map_or(0, |block| block.start.0);
        LoopRow { header, depth: one.depth, sure: runs.confidence, ..LoopRow::default() }
    };
    let mut rows: Vec<LoopRow> = loops.loops().iter().map(row).collect();
    for (number, runs) in estimate.blocks.iter().enumerate() {
        let row = loops.innermost(number).and_then(|inner| rows.get_mut(inner));
        row.into_iter().for_each(|row| row.samples += runs.samples);
    }
    // Loops in others have larger numbers.
    for (number, one) in loops.loops().iter().enumerate().rev() {
        let samples = rows.get(number).map_or(0.0, |row| row.samples);
        let around = one.parent.and_then(|parent| rows.get_mut(parent));
        around.into_iter().for_each(|row| row.samples += samples);
    }
    // Rounds for one entry are no surer than how often the loop is entered, unless its test tells
    // them.
    for edge in cfg
        .edges()
        .iter()
        .zip(&estimate.edges)
        .filter(|(_, taken)| **taken > 0.0)
        .map(|(edge, _)| edge)
    {
        let To::Block(to) = edge.to else { continue };
        let headed = loops
            .innermost(to)
            .filter(|number| loops.loops().get(*number).is_some_and(|one| one.header == to));
        let from = estimate.blocks.get(edge.from).map_or(Confidence::Low, |from| from.confidence);
        let row = headed
            .filter(|number| !loops.contains(*number, edge.from))
            .and_then(|number| rows.get_mut(number));
        row.into_iter().for_each(|row| row.sure = row.sure.min(from));
    }
    let entries = estimate::rounds::entries(cfg, loops, &estimate.edges);
    for ((row, one), entries) in rows.iter_mut().zip(loops.loops()).zip(entries) {
        let runs = estimate.blocks.get(one.header).map_or(0.0, |runs| runs.executions);
        row.rounds = (entries > 0.0).then(|| runs / entries);
    }
    for (number, row) in rows.iter_mut().enumerate() {
        let told = |round: annotate::rates::RoundNs| {
            let annotate::rates::RoundNs { value, low, high, pairs, .. } = round;
            RoundNs { value, low, high, pairs }
        };
        row.round_ns = graph.round_ns(number).map(told);
    }
    for piece in graph.pieces(explained, hardware.ghz) {
        let is_judged = piece.region.is_loop && piece.region.samples >= SAMPLES_MIN as f64;
        let row = rows.iter_mut().find(|row| row.header == piece.begin && is_judged);
        row.into_iter().for_each(|row| {
            let verdict = judge(&piece.region, hardware);
            let (mechanism, probability) = (verdict.mechanism, verdict.probability);
            row.why = Some(WhyAlternative { mechanism, probability });
        });
    }
    for trips in &estimate.trips {
        let Some(row) = rows.get_mut(trips.loop_number) else { continue };
        // The result of the test is valid for any number of entries of the loop.
        let header =
            loops.loops().get(trips.loop_number).and_then(|one| estimate.blocks.get(one.header));
        if let Some(header) = header.filter(|_| trips.decides && trips.only_exit) {
            row.sure = row.sure.max(Confidence::of(trips.spread()).min(header.confidence));
        }
        row.trips = Some(trips.clone());
    }
    rows.retain(|row| row.samples > 0.0 || row.trips.is_some());
    rows.sort_by(|a, b| b.samples.total_cmp(&a.samples).then(a.header.cmp(&b.header)));
    rows
}

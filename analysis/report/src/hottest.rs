//! The hottest blocks of a procedure that is too long to be read from its start.

use std::collections::BTreeMap;
use std::io::{self, Write};

use stalls::Cause;

use super::costs::{cycle, number, told, word};
use super::quantity::{counted, percent};
use super::table::Table;
use super::{BlockRow, CalcReport, EventColumn, Style};

/// Most lines of a listing without a table of its hottest blocks: one screen.
const SCREEN: usize = 50;
/// Most blocks in the table.
const SHOWN_MAX: usize = 10;
/// Smallest part of the procedure's samples that a block in the table has.
const SHOWN_MIN: f64 = 0.01;

/// A line for each of the hottest blocks, if the listing is longer than a screen.
pub(super) fn text(report: &CalcReport, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    // A block has a line with its runs, and an edge one.
    let lines = report.blocks.iter().map(|block| block.instructions.len() + 1).sum::<usize>()
        + report.edges.len();
    let all = report.events.get(report.time).map_or(0, EventColumn::equal).max(1) as f64;
    let mut hottest: Vec<&BlockRow> =
        report.blocks.iter().filter(|block| block.samples >= all * SHOWN_MIN).collect();
    if lines <= SCREEN || hottest.is_empty() {
        return Ok(());
    }
    hottest.sort_by(|a, b| b.samples.total_cmp(&a.samples).then(a.start.cmp(&b.start)));
    let mut table = Table::default();
    table.words("hottest blocks");
    table.number("%", "");
    table.number("times per call", "");
    for title in ["confidence", "cycles", "CPI"] {
        table.number(title, "");
        table.spared();
    }
    table.texts("stalled most by");
    for block in hottest.iter().take(SHOWN_MAX) {
        let took = |count: f64| block.cycles.map(|took| cycle(took / count)).unwrap_or_default();
        table.row(vec![
            format!("{:#x}..{:#x}", block.start, block.end),
            percent(block.samples / all),
            number(block.runs.value),
            word(block.runs.confidence).to_owned(),
            took(1.0),
            took(block.instructions.len().max(1) as f64),
            cause(report, block),
        ]);
    }
    writeln!(out)?;
    table.write(style, out)?;
    if report.omitted.0 > 0 {
        return Ok(());
    }
    let more = counted((report.blocks.len() - hottest.len().min(SHOWN_MAX)) as u64, "more block");
    writeln!(
        out,
        "and {more}; all blocks, with their instructions, in the order of their addresses:"
    )
}

/// The causes that may have stalled a block longest.
fn cause(report: &CalcReport, block: &BlockRow) -> String {
    let stalled = block
        .instructions
        .iter()
        .filter(|line| line.stall(report.scale, report.sums.samples).is_some());
    let mut any = false;
    let mut causes: BTreeMap<Cause, f64> = BTreeMap::new();
    for line in stalled {
        any = true;
        told(&line.why.culprits)
            .for_each(|culprit| *causes.entry(culprit.cause).or_default() += culprit.high);
    }
    let most = causes.values().fold(0.0, |most: f64, cycles| most.max(*cycles));
    let largest = causes.iter().filter(|(_, cycles)| **cycles >= most / SIMILAR);
    let names: Vec<String> = largest.map(|(cause, _)| cause.to_string()).collect();
    match names.as_slice() {
        [] if any => "no cause explains it".to_owned(),
        [] if block.cycles.zip(block.best).is_some_and(|(took, best)| took > NEAR * best) => {
            "not known: too few samples".to_owned()
        }
        [] => "no stall: near the best case".to_owned(),
        [one] => one.clone(),
        [one, two] => format!("{one}, or {two}"),
        [one, rest @ ..] => format!("{one}, or one of {} others", rest.len()),
    }
}

/// Factor between the cycles of a block and its best case below which the block is near its best
/// case.
const NEAR: f64 = 1.5;
/// Factor between the cycles of two causes below which both are named.
const SIMILAR: f64 = 1.2;

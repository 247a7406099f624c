//! A procedure's control flow as a drawing: the annotated graphs of the DCPI paper (section 3).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use draw::escaped;

use super::calc::{BlockRow, CalcReport, Runs};
use super::costs::{cycle, number, word};
use super::quantity::percent;

/// Width of the widest block, in pixels.
const WIDTH: f64 = 360.0;
/// Height of a block with one line of text, in pixels: the least height.
const LINE: f64 = 16.0;
/// Gap between two blocks, in pixels.
const GAP: f64 = 14.0;
/// Left side of the blocks, in pixels: edges that lead back are drawn to the left of it.
const LEFT: f64 = 180.0;
/// Height of the drawing, in pixels, if blocks had no least height.
const HEIGHT: f64 = 900.0;
/// Most instructions in a tooltip.
const TIP_MAX: usize = 40;

struct Drawn<'a> {
    block: &'a BlockRow,
    top: f64,
    height: f64,
    width: f64,
}

/// The drawing as SVG.
pub fn svg(report: &CalcReport) -> String {
    let drawn = place(report);
    let at: BTreeMap<u64, usize> =
        drawn.iter().enumerate().map(|(index, drawn)| (drawn.block.start, index)).collect();
    let bottom = drawn.last().map_or(LINE, |last| last.top + last.height) + LINE;
    let right = LEFT + WIDTH + LEFT;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {right:.0} {bottom:.0}\" width=\"{right:.0}\" height=\"{bottom:.0}\" font-family=\"monospace\" font-size=\"11\">\n<title>{}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
        escaped(&report.procedure)
    );
    let most = drawn.iter().map(|drawn| drawn.block.runs.value).fold(f64::MIN_POSITIVE, f64::max);
    for edge in &report.edges {
        let ends = at.get(&edge.from).zip(edge.to.and_then(|to| at.get(&to)));
        let Some((from, to)) =
            ends.and_then(|(from, to)| Some((drawn.get(*from)?, drawn.get(*to)?)))
        else {
            continue;
        };
        let line = (6.0 * edge.runs.value / most).clamp(0.5, 6.0);
        let back = to.top <= from.top;
        let (y1, y2) = (from.top + from.height, to.top);
        let far = (y2 - y1).abs();
        let (times, sure) = (number(edge.runs.value), word(edge.runs.confidence));
        let title =
            escaped(&format!("{} % {}, {times} times ({sure})", percent(edge.share), edge.kind));
        let dashes = if unsure(edge.runs) { " stroke-dasharray=\"5 3\"" } else { "" };
        let path = if back {
            let x = LEFT - 12.0 - (far / 6.0).min(LEFT - 30.0);
            format!("M{LEFT:.1} {y1:.1} C{x:.1} {y1:.1} {x:.1} {y2:.1} {LEFT:.1} {y2:.1}")
        } else if far <= GAP + 1.0 {
            format!("M{:.1} {y1:.1} L{:.1} {y2:.1}", LEFT + 10.0, LEFT + 10.0)
        } else {
            let (x1, x2) = (LEFT + from.width, LEFT + to.width);
            let x = x1.max(x2) + 12.0 + (far / 6.0).min(LEFT - 30.0);
            format!("M{x1:.1} {y1:.1} C{x:.1} {y1:.1} {x:.1} {y2:.1} {x2:.1} {y2:.1}")
        };
        let colour = if back { "#b33" } else { "#456" };
        let _ = writeln!(
            out,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{line:.1}\"{dashes} opacity=\"0.7\"><title>{title}</title></path>"
        );
    }
    for Drawn { block, top, height, width } in &drawn {
        let all: f64 = report.sums.samples.max(f64::MIN_POSITIVE);
        let share = block.samples / all;
        let shade = 255.0 - 200.0 * share.clamp(0.0, 1.0).sqrt();
        let cpi = block.cycles.map(|cycles| format!(", {} cy", cycle(cycles))).unwrap_or_default();
        let _ = writeln!(
            out,
            "<g><title>{}</title><rect x=\"{LEFT:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"rgb(255,{shade:.0},{shade:.0})\" stroke=\"#333\"/><text x=\"{:.1}\" y=\"{:.1}\">{:#x}: {} times ({}){cpi}, {} %</text></g>",
            escaped(&tip(block)),
            LEFT + 4.0,
            top + 12.0,
            block.start,
            number(block.runs.value),
            word(block.runs.confidence),
            escaped(&percent(share).to_string())
        );
    }
    out.push_str("</svg>\n");
    out
}

/// The drawing as an HTML page.
pub fn html(report: &CalcReport) -> String {
    let name = escaped(&report.procedure);
    format!(
        "<!doctype html>\n<meta charset=\"utf-8\">\n<title>{name}</title>\n<h1>{name}</h1>\n{}",
        svg(report)
    )
}

/// The graph in Graphviz's language DOT.
pub fn dot(report: &CalcReport) -> String {
    let mut out = "digraph procedure {\n  node [shape=box fontname=monospace];\n".to_owned();
    let all: f64 = report.sums.samples.max(f64::MIN_POSITIVE);
    for block in &report.blocks {
        let cpi = block.cycles.map(|cycles| format!("\\n{} cy", cycle(cycles))).unwrap_or_default();
        let _ = writeln!(
            out,
            "  \"{:#x}\" [label=\"{:#x}\\n{} times ({}){cpi}\\n{} %\"];",
            block.start,
            block.start,
            number(block.runs.value),
            word(block.runs.confidence),
            percent(block.samples / all)
        );
    }
    for edge in &report.edges {
        if let Some(to) = edge.to {
            let (from, share) = (edge.from, percent(edge.share));
            let style = if unsure(edge.runs) { " style=dashed" } else { "" };
            let _ = writeln!(out, "  \"{from:#x}\" -> \"{to:#x}\" [label=\"{share} %\"{style}];");
        }
    }
    out.push_str("}\n");
    out
}

/// Whether an edge is drawn with dashes: the error of its executions is not known.
fn unsure(runs: Runs) -> bool {
    runs.confidence == estimate::Confidence::Low
}

/// The places of blocks: the width stands for executions, the area for time.
fn place(report: &CalcReport) -> Vec<Drawn<'_>> {
    let most = report.blocks.iter().map(|block| block.runs.value).fold(f64::MIN_POSITIVE, f64::max);
    let wide = |block: &BlockRow| (block.runs.value / most * WIDTH).clamp(40.0, WIDTH);
    let area: f64 = report.blocks.iter().map(|block| block.samples).sum();
    let mut top = LINE;
    let mut drawn = Vec::with_capacity(report.blocks.len());
    for block in &report.blocks {
        let width = wide(block);
        let height =
            if area > 0.0 { block.samples / area * HEIGHT * WIDTH / width / 2.0 } else { 0.0 };
        let height = height.clamp(LINE, HEIGHT);
        drawn.push(Drawn { block, top, height, width });
        top += height + GAP;
    }
    drawn
}

/// The tooltip of a block: its instructions with their samples.
fn tip(block: &BlockRow) -> String {
    let mut tip = String::new();
    for line in block.instructions.iter().take(TIP_MAX) {
        let _ = writeln!(tip, "{:>8} {:#x} {}", line.samples, line.address, line.text);
    }
    if block.instructions.len() > TIP_MAX {
        let _ = writeln!(tip, "and {} more", block.instructions.len() - TIP_MAX);
    }
    tip
}

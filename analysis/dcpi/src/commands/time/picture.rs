//! All runs as dots by layout.

use draw::{Axis, Drawing, LINE, Paint, Plot, Scale};
use measure::humps::{median, quantile};
use report::TimeReport;

/// Width and height of the drawing, in pixels.
const SIZE: (f64, f64) = (900.0, 480.0);
/// Most dots: more say nothing, and a browser waits.
const DOTS_MAX: usize = 20_000;
/// Radius of a dot, in pixels.
const DOT: f64 = 3.0;
/// Most characters of a command in the legend: what fits the drawing's width.
const NAME_MAX: usize = 110;
/// Times above this many times the median have their dots at the upper edge: one run that the
/// machine interrupted would press all others into a line.
const HIGHEST: f64 = 3.0;

/// The picture as SVG: a column for each layout, A's runs on its left, B's on its right, a line at
/// the median of each. Warm-up is pale.
pub(super) fn svg(report: &TimeReport, verdict: &str) -> String {
    let name = if report.clock.is_cpu() { "CPU time" } else { "wall-clock time" };
    let time = |row: &report::RunRow| if report.clock.is_cpu() { row.cpu_s() } else { row.wall_s };
    let mut sorted: Vec<f64> = report.runs.iter().map(time).collect();
    sorted.sort_by(f64::total_cmp);
    let highest = quantile(&sorted, 0.5).unwrap_or(1.0) * HIGHEST;
    let shown: Vec<f64> = sorted.iter().map(|time| time.min(highest)).collect();
    let title = "Runs by layout";
    let about = format!("{} runs in {} layouts. {verdict}", report.runs.len(), report.layouts);
    let mut drawing = Drawing::new(SIZE.0, SIZE.1, title, &about);
    let layouts = report.layouts.max(1) as f64;
    let plot = Plot {
        area: [80.0, 5.0 * LINE, SIZE.0 - 20.0, SIZE.1 - 50.0],
        x: Axis::new("layout", Scale::Linear, 0.5, layouts + 0.5).whole(),
        y: Axis::over(&format!("{name} of a run (s)"), Scale::Linear, &shown, false),
    };
    plot.frame(&mut drawing);
    drawing.text((80.0, LINE), draw::Anchor::Start, verdict);
    let half = if report.commands.len() > 1 { 0.2 } else { 0.0 };
    let side = |command: usize| if command == 0 { -half } else { half };
    let mut seen = std::collections::BTreeMap::<(usize, usize), Vec<f64>>::new();
    for row in report.runs.iter().take(DOTS_MAX) {
        let values = seen.entry((row.layout, row.command)).or_default();
        // Beside each other, so that equal times are seen.
        let beside = (values.len() % 7) as f64 / 7.0 * 0.2 - 0.1;
        let paint = if row.warm_up { Paint::Faint } else { Paint::Series(row.command) };
        let warm = if row.warm_up { " (warm-up)" } else { "" };
        let letter = if row.command == 0 { "A" } else { "B" };
        let tip = format!(
            "{letter}, layout {}: {:.6} s CPU, {:.6} s wall{warm}",
            row.layout + 1,
            row.cpu_s(),
            row.wall_s
        );
        let at = row.layout as f64 + 1.0 + side(row.command) + beside;
        plot.dot(&mut drawing, (at, time(row).min(highest)), DOT, paint, &tip);
        values.push(time(row));
    }
    for ((layout, command), values) in &seen {
        if let Some(middle) = median(values) {
            let at = *layout as f64 + 1.0 + side(*command);
            let ends = [(at - 0.18, middle.min(highest)), (at + 0.18, middle.min(highest))];
            plot.line(&mut drawing, &ends, Paint::Series(*command));
        }
    }
    let commands = report.commands.iter().map(|timed| timed.command.as_str());
    let named = |(letter, of): (&str, &str)| format!("{letter}: {of}");
    let names = ["A", "B"].into_iter().zip(commands).map(named);
    let names: Vec<String> = names.map(|of| of.chars().take(NAME_MAX).collect()).collect();
    let mut names: Vec<(Paint, &str)> =
        (0..).zip(&names).map(|(index, name)| (Paint::Series(index), name.as_str())).collect();
    if report.runs.iter().any(|run| run.warm_up) {
        names.push((Paint::Faint, "warm-up, left out"));
    }
    drawing.legend((84.0, 2.0 * LINE), &names);
    drawing.finish()
}

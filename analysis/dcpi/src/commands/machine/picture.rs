//! The memory mountain as a landscape, and the curves of latency as lines.

use std::path::{Path, PathBuf};

use draw::{Anchor, Axis, Drawing, LINE, Paint, Plot, Scale};
use query::error::AnalysisError;
use report::MachineReport;

use crate::destination::Destination;

/// A drawing within a rectangle: left, top, right, bottom.
type Part = fn(&MachineReport, &mut Drawing, [f64; 4]);

/// Names of files in a directory, titles, and what draws them.
const PARTS: [(&str, &str, Part); 3] = [
    ("mountain.svg", "Memory mountain: GB/s by working set and stride", mountain),
    ("latency.svg", "Cycles of a load by working set (pages of 2 MiB)", latency),
    ("pages.svg", "Cycles of a load by pages of 4 KiB, one load in each", pages),
];

/// Size of one drawing, pixels.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;

/// Writes all drawings into one SVG, or one file each into a directory that is there.
pub(super) fn write(report: &MachineReport, path: &Path) -> Result<(), AnalysisError> {
    let title = format!("{}, measured", report.measured.cpu_model);
    if !path.is_dir() {
        let mut drawing = Drawing::new(WIDTH, HEIGHT * PARTS.len() as f64, &title, "");
        for (number, (_, title, part)) in PARTS.iter().enumerate() {
            draw(report, &mut drawing, (title, *part), HEIGHT * number as f64);
        }
        return save(drawing, path.to_path_buf());
    }
    for (file, title, part) in PARTS {
        let mut drawing = Drawing::new(WIDTH, HEIGHT, title, "");
        draw(report, &mut drawing, (title, part), 0.0);
        save(drawing, path.join(file))?;
    }
    Ok(())
}

/// Whether drawings can be written there, asked before the measurement.
pub(super) fn check(path: &Path) -> Result<(), AnalysisError> {
    if !path.is_dir() {
        return Destination::File(path.to_path_buf()).check();
    }
    PARTS.iter().try_for_each(|(file, ..)| Destination::File(path.join(file)).check())
}

fn draw(report: &MachineReport, drawing: &mut Drawing, (title, part): (&str, Part), top: f64) {
    drawing.text((WIDTH / 2.0, top + 1.5 * LINE), Anchor::Middle, title);
    part(report, drawing, [70.0, top + 2.5 * LINE, WIDTH - 20.0, top + HEIGHT - 50.0]);
}

fn save(drawing: Drawing, path: PathBuf) -> Result<(), AnalysisError> {
    let text = drawing.finish();
    Destination::File(path).write(&mut std::io::sink(), |out| Ok(out.write_all(text.as_bytes())?))
}

/// The landscape, seen from where working sets and strides are largest: the small ones, where
/// reading is fastest, are behind, so that nothing is hidden.
fn mountain(report: &MachineReport, drawing: &mut Drawing, [left, top, right, bottom]: [f64; 4]) {
    let (rows, columns) = (report.mountain.len(), report.strides.len());
    let rates = report.mountain.iter().flat_map(|(_, row)| row);
    let most = rates.copied().flatten().fold(1e-9, f64::max);
    // Pixels of the highest place.
    let (height, depth) = ((bottom - top) * 0.45, (bottom - top) * 0.5);
    let share = |at: f64, count: usize| at / (count.max(2) - 1) as f64;
    let place = |row: f64, column: f64, rate: f64| {
        let (row, column) = (share(row, rows), share(column, columns));
        let middle = f64::midpoint(left, right);
        let x = middle + (row - column) * (right - left) * 0.46;
        (x, top + height + (row + column) * depth / 2.0 - rate / most * height)
    };
    let rate = |row: usize, column: usize| {
        report.mountain.get(row).and_then(|(_, rates)| rates.get(column)).copied().flatten()
    };
    for row in 0..rows.saturating_sub(1) {
        for column in 0..columns.saturating_sub(1) {
            let corners = [(0, 0), (1, 0), (1, 1), (0, 1)].map(|(r, c)| (row + r, column + c));
            // Where one was not measured there is a gap: at the height of 0 it would be a pit.
            let Some(heights) = all(corners.map(|(r, c)| rate(r, c))) else { continue };
            let mut points = [(0.0, 0.0); 4];
            for ((point, (r, c)), height) in points.iter_mut().zip(corners).zip(heights) {
                *point = place(r as f64, c as f64, height);
            }
            let mean = heights.iter().sum::<f64>() / 4.0;
            let bytes = report.mountain.get(row).map_or(0, |(bytes, _)| *bytes as u64);
            let stride = report.strides.get(column).copied().unwrap_or(0);
            let [here, ..] = heights;
            let tip = format!("{}, stride {stride}: {here:.1} GB/s", report::bytes(bytes));
            drawing.polygon(&points, Paint::Amount(mean / most), &tip);
            drawing.line(&[points[0], points[1]], Paint::Faint);
            drawing.line(&[points[0], points[3]], Paint::Faint);
        }
    }
    let last = (rows.saturating_sub(1) as f64, columns.saturating_sub(1) as f64);
    for (row, (bytes, _)) in report.mountain.iter().enumerate().step_by(2) {
        let (x, y) = place(row as f64, last.1, 0.0);
        drawing.text((x - 4.0, y + LINE), Anchor::End, &report::bytes(*bytes as u64));
    }
    for (column, stride) in report.strides.iter().enumerate() {
        let (x, y) = place(last.0, column as f64, 0.0);
        drawing.text((x + 4.0, y + LINE), Anchor::Start, &stride.to_string());
    }
    let (x, y) = place(last.0, last.1 / 2.0, 0.0);
    drawing.text((x + 40.0, y + 2.0 * LINE), Anchor::Start, "stride (bytes)");
    let (x, y) = place(last.0 / 2.0, last.1, 0.0);
    drawing.text((x - 60.0, y + 2.0 * LINE), Anchor::End, "working set");
    drawing.line(&[place(0.0, last.1, 0.0), place(0.0, last.1, most)], Paint::Ink);
    for part in [0.0, 0.5, 1.0] {
        let (x, y) = place(0.0, last.1, part * most);
        drawing.text((x - 4.0, y + 4.0), Anchor::End, &format!("{:.0}", part * most));
    }
}

/// All of four numbers, or none.
fn all(numbers: [Option<f64>; 4]) -> Option<[f64; 4]> {
    let [a, b, c, d] = numbers;
    Some([a?, b?, c?, d?])
}

/// Lines through the measured latencies, with gaps where there is none.
fn curve(
    drawing: &mut Drawing,
    area: [f64; 4],
    (label, unit): (&str, fn(u64) -> String),
    values: &[(usize, Option<f64>)],
) {
    let (Some(first), Some(last)) = (values.first(), values.last()) else { return };
    let cycles: Vec<f64> = values.iter().filter_map(|(_, cycles)| *cycles).collect();
    let plot = Plot {
        area,
        x: Axis::new(label, Scale::Log2, first.0 as f64, last.0 as f64),
        y: Axis::over("cycles", Scale::Log10, &cycles, false),
    };
    plot.frame(drawing);
    for stretch in values.split(|(_, cycles)| cycles.is_none()) {
        let known = stretch.iter().filter_map(|(size, cycles)| Some((*size as f64, (*cycles)?)));
        let known: Vec<(f64, f64)> = known.collect();
        plot.line(drawing, &known, Paint::Series(0));
        for (size, cycles) in known {
            let tip = format!("{}: {cycles:.1} cycles", unit(size as u64));
            plot.dot(drawing, (size, cycles), 2.0, Paint::Series(0), &tip);
        }
    }
}

fn latency(report: &MachineReport, drawing: &mut Drawing, area: [f64; 4]) {
    curve(drawing, area, ("working set (bytes)", report::bytes), &report.latencies);
}

fn pages(report: &MachineReport, drawing: &mut Drawing, area: [f64; 4]) {
    let pages = |pages| format!("{pages} pages");
    curve(drawing, area, ("pages", pages), &report.page_latencies);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes that were not measured were drawn as a pit, as if nothing could be read there.
    #[test]
    fn what_was_not_measured_is_a_gap() {
        let mut report = super::super::tests::report();
        report.mountain[2].1[0] = None;
        report.latencies[1].1 = None;
        let folder = tempfile::tempdir().unwrap();
        let one = folder.path().join("all.svg");
        check(&one).unwrap();
        write(&report, &one).unwrap();
        let all = std::fs::read_to_string(&one).unwrap();
        assert_eq!(all.matches("<polygon").count(), 1);
        assert_eq!(all.matches("<circle").count(), 3);
        assert!(!all.contains("NaN"), "{all}");
        assert!(check(&folder.path().join("none/x.svg")).is_err());
    }

    #[test]
    fn every_place_of_the_mountain_is_drawn_with_its_rate() {
        let report = super::super::tests::report();
        let folder = tempfile::tempdir().unwrap();
        let one = folder.path().join("all.svg");
        write(&report, &one).unwrap();
        let all = std::fs::read_to_string(&one).unwrap();
        assert!(all.ends_with("</svg>\n"));
        // 3 working sets and 2 strides have 2 places between them.
        assert_eq!(all.matches("<polygon").count(), 2);
        assert!(all.contains("8.0 KiB, stride 8: 58.0 GB/s"), "{all}");
        assert_eq!(all.matches("<circle").count(), 4);
        write(&report, folder.path()).unwrap();
        for (file, ..) in PARTS {
            assert!(folder.path().join(file).exists(), "{file}");
        }
        assert!(write(&report, &folder.path().join("none/x.svg")).is_err());
    }
}

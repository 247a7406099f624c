//! Draws a Gantt chart of a trace: a row for each thread with its calls as bars, and a line below
//! them with the times when the thread ran, waited, or was preempted.
//!
//! Calls narrower than a column of pixels are merged with their neighbours, and the drawing states
//! their time. So a drawing has some ten thousand shapes for a trace of any length.

mod rows;

use std::collections::HashMap;
use std::fmt::Write as _;

use draw::{Anchor, Axis, Drawing, LINE, Paint, Scale, escaped};

use crate::event::{NameId, Trace};
use crate::summary::Summary;
use rows::{Chart, Column, Row, State};

/// Width in pixels of the plot, and of the threads' names left of it.
const PLOT_WIDTH: f64 = 1200.0;
const LABEL_WIDTH: f64 = 190.0;
/// Most threads that are drawn: those with the most events.
pub const THREADS_MAX: usize = 256;
/// Most shapes of calls and thread states; columns are widened until there are no more. Browsers
/// scroll 30,000 shapes smoothly, and they take 6 MB.
const SHAPES_MAX: usize = 30_000;
/// Width in pixels of a name in a tooltip.
const TIP_WIDTH: f64 = 600.0;
/// Number of names with a colour of their own: those with the most time.
const COLOURED_MAX: usize = 5;
/// The colour of all other names.
const OTHERS: Paint = Paint::Series(5);
/// Approximate width in pixels of a character in the font of drawings.
const CHARACTER_WIDTH: f64 = 6.6;
/// Most wakes that are drawn as lines: more would hide the bars.
const WAKES_MAX: usize = 200;

/// A drawing of a trace, as SVG. Where the trace has corrected times, those are drawn.
#[must_use]
pub fn svg(trace: &Trace) -> String {
    let chart = Chart::of(trace, SHAPES_MAX, PLOT_WIDTH);
    let colours = colours(trace);
    let (unit_ns, unit) = unit(chart.span_ns);
    let top = 3.0 * LINE + 6.0;
    let bottom = top + chart.rows.iter().map(|row| row.height).sum::<f64>();
    let notes = notes(trace, &chart);
    let names = legend(trace, &colours);
    let legend_height = LINE * names.len() as f64;
    let height = bottom + 3.5 * LINE + LINE * notes.len() as f64 + legend_height + LINE;
    let width = LABEL_WIDTH + PLOT_WIDTH + 20.0;
    let title = title(trace);
    let mut drawing = Drawing::new(width, height, &title, &headline(trace, &chart));
    drawing.text((8.0, LINE), Anchor::Start, &cut(&title, width - 16.0));
    drawing.text((8.0, 2.0 * LINE), Anchor::Start, &headline(trace, &chart));
    let axis = Axis::new(
        &format!("time in {unit}, from the first event"),
        Scale::Linear,
        0.0,
        chart.span_ns as f64 / unit_ns,
    );
    let x = |share: f64| LABEL_WIDTH + share * PLOT_WIDTH;
    for (at, text) in axis.ticks() {
        let x = x(axis.share(at));
        drawing.line(&[(x, top), (x, bottom + 4.0)], Paint::Faint);
        drawing.text((x, bottom + LINE), Anchor::Middle, &text);
    }
    let middle = (LABEL_WIDTH + PLOT_WIDTH / 2.0, bottom + 2.2 * LINE);
    drawing.text(middle, Anchor::Middle, &axis.label);
    let mut y = top;
    for row in &chart.rows {
        draw_row(&mut drawing, trace, &chart, row, y, &colours);
        y += row.height;
    }
    draw_wakes(&mut drawing, &chart, top);
    let mut y = bottom + 3.5 * LINE;
    let names: Vec<(Paint, &str)> =
        names.iter().map(|(paint, name)| (*paint, name.as_str())).collect();
    drawing.legend((8.0, y), &names);
    y += legend_height;
    for note in &notes {
        drawing.text((8.0, y), Anchor::Start, &cut(note, width - 16.0));
        y += LINE;
    }
    drawing.finish()
}

/// The drawing as a page, with the names and their times as a table.
#[must_use]
pub fn html(trace: &Trace) -> String {
    let mut summary = Summary::default();
    for (index, event) in trace.events.iter().enumerate() {
        summary.take(event, time(trace, index, event.time_ns));
    }
    let title = escaped(&title(trace));
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\n<title>{title}</title>\n\
         <style>:root{{color-scheme:light dark}}body{{font:14px sans-serif;margin:16px}}\
         .chart{{overflow:auto;max-height:80vh}}table{{border-collapse:collapse;margin-top:16px}}\
         td,th{{padding:2px 12px 2px 0;text-align:right}}td:last-child,th:last-child\
         {{text-align:left}}</style>\n<div class=\"chart\">\n{}</div>\n<table>\n<tr><th>calls</th>\
         <th>total ms</th><th>mean us</th><th>longest us</th><th>name</th></tr>\n",
        svg(trace)
    );
    for row in summary.rows().iter().take(1000) {
        let name = trace.names.get(row.name.0 as usize);
        let name = escaped(name.map_or("", |name| name.text.as_str()));
        let times = match row.ended {
            0 => "<td></td><td></td><td></td>".to_owned(),
            _ => format!(
                "<td>{:.3}</td><td>{:.3}</td><td>{:.3}</td>",
                row.total_ns as f64 / 1e6,
                row.mean_ns() / 1e3,
                row.max_ns as f64 / 1e3
            ),
        };
        let _ = writeln!(out, "<tr><td>{}</td>{times}<td>{name}</td></tr>", row.count);
    }
    out.push_str("</table>\n</html>\n");
    out
}

/// The time of an event that is drawn: corrected where that is known.
fn time(trace: &Trace, index: usize, measured_ns: u64) -> u64 {
    trace.corrected.get(index).map_or(measured_ns, |corrected| corrected.value_ns)
}

fn title(trace: &Trace) -> String {
    match trace.facts.command.is_empty() {
        true => "trace".to_owned(),
        false => trace.facts.command.join(" "),
    }
}

fn headline(trace: &Trace, chart: &Chart) -> String {
    let (unit_ns, unit) = unit(chart.span_ns);
    let (events, threads) = (trace.events.len(), trace.threads.len());
    let corrected = match trace.corrected.is_empty() {
        true => "as measured, with the time that tracing took",
        false => "corrected for the time that tracing took",
    };
    let time = chart.span_ns as f64 / unit_ns;
    let plural = if threads == 1 { "" } else { "s" };
    format!(
        "{events} events of {threads} thread{plural} in {time:.3} {unit}; times are {corrected}"
    )
}

/// The unit in which a period is written: its length in ns, and its name.
fn unit(span_ns: u64) -> (f64, &'static str) {
    match span_ns {
        0..20_000 => (1.0, "ns"),
        20_000..20_000_000 => (1e3, "us"),
        20_000_000..20_000_000_000 => (1e6, "ms"),
        _ => (1e9, "s"),
    }
}

/// A time in the unit that suits it.
fn told(ns: u64) -> String {
    let (unit_ns, unit) = unit(ns);
    format!("{:.3} {unit}", ns as f64 / unit_ns)
}

/// Colours of the names with the most time.
fn colours(trace: &Trace) -> HashMap<NameId, Paint> {
    let mut summary = Summary::default();
    for (index, event) in trace.events.iter().enumerate() {
        summary.take(event, time(trace, index, event.time_ns));
    }
    let rows = summary.rows();
    let rows = rows.iter().filter(|row| row.kind.opens()).take(COLOURED_MAX);
    rows.enumerate().map(|(at, row)| (row.name, Paint::Series(at))).collect()
}

fn legend(trace: &Trace, colours: &HashMap<NameId, Paint>) -> Vec<(Paint, String)> {
    let mut names: Vec<(usize, String)> = Vec::new();
    for (name, paint) in colours {
        let Paint::Series(at) = paint else { continue };
        let text = trace.names.get(name.0 as usize).map(|name| name.text.clone());
        names.push((*at, text.unwrap_or_default()));
    }
    names.sort();
    let names = names.into_iter().map(|(at, name)| (Paint::Series(at), cut(&name, 900.0)));
    let others = (OTHERS, "other names".to_owned());
    names.chain([others]).collect()
}

fn cut(text: &str, width: f64) -> String {
    let most = (width / CHARACTER_WIDTH).max(1.0) as usize;
    match text.chars().count() > most {
        true => text.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

fn draw_row(
    drawing: &mut Drawing,
    trace: &Trace,
    chart: &Chart,
    row: &Row,
    top: f64,
    colours: &HashMap<NameId, Paint>,
) {
    let name_of =
        |name: NameId| trace.names.get(name.0 as usize).map_or("", |name| name.text.as_str());
    let paint = |name: NameId| colours.get(&name).copied().unwrap_or(OTHERS);
    let label = cut(&row.label, LABEL_WIDTH - 12.0);
    let middle = top + row.height / 2.0;
    drawing.text((LABEL_WIDTH - 8.0, middle + 4.0), Anchor::End, &label);
    let x = |ns: u64| LABEL_WIDTH + chart.share(ns) * PLOT_WIDTH;
    let lane_top = |lane: usize| top + lane as f64 * row.lane_height;
    for slice in &row.slices {
        let (left, right) = (x(slice.begin_ns), x(slice.end_ns));
        let name = name_of(slice.name);
        let missing = if slice.is_cut { ", its end is missing" } else { "" };
        let length = told(slice.end_ns - slice.begin_ns);
        let tip = format!("{}: {length}{missing}", cut(name, TIP_WIDTH));
        let y = lane_top(slice.lane);
        drawing.bar([left, y, right - left, row.lane_height - 1.0], paint(slice.name), &tip);
        if right - left > 5.0 * CHARACTER_WIDTH && row.lane_height > 12.0 {
            let text = cut(name, right - left - 4.0);
            drawing.text_on((left + 3.0, y + 11.0), &text, paint(slice.name));
        }
    }
    for merged in row.merged() {
        let Column { calls, ns, name } = merged.sum;
        let (left, width) = (merged.first as f64, (merged.last + 1 - merged.first) as f64);
        let left = LABEL_WIDTH + left * chart.column_px;
        let most = cut(name_of(name), TIP_WIDTH);
        let tip = format!("{calls} short calls, {} in all, most of {most}", told(ns));
        // Lower than a call, so that it is seen as none.
        let y = lane_top(merged.lane) + row.lane_height * 0.3;
        let box_ = [left, y, width * chart.column_px, row.lane_height * 0.7 - 1.0];
        drawing.bar(box_, paint(name), &tip);
    }
    for (first, last, state) in row.states() {
        let (left, right) = (first as f64 * chart.column_px, (last + 1) as f64 * chart.column_px);
        let (paint, height, tip) = match state {
            State::Runs => (Paint::Ink, 3.0, "runs"),
            State::Waits => (Paint::Faint, 2.0, "waits"),
            State::Preempted => (Paint::Amount(1.0), 3.0, "could run, has no CPU"),
        };
        let y = top + row.height - 5.0;
        drawing.bar([LABEL_WIDTH + left, y, right - left, height], paint, tip);
    }
}

/// Lines from threads that wake others to those.
fn draw_wakes(drawing: &mut Drawing, chart: &Chart, top: f64) {
    if chart.wakes_all > WAKES_MAX {
        return;
    }
    let middles: Vec<f64> = (chart.rows.iter())
        .scan(top, |y, row| {
            *y += row.height;
            Some(*y - 4.0)
        })
        .collect();
    for wake in &chart.wakes {
        let x = LABEL_WIDTH + chart.share(wake.time_ns) * PLOT_WIDTH;
        if let Some((from, to)) = middles.get(wake.from).zip(middles.get(wake.to)) {
            drawing.line(&[(x, *from), (x, *to)], Paint::Faint);
        }
    }
}

/// Omissions of the drawing, one sentence each.
fn notes(trace: &Trace, chart: &Chart) -> Vec<String> {
    let mut notes = Vec::new();
    if chart.has_states {
        notes.push(
            "The line below each thread: dark (on a dark page light) where the thread runs, grey where it waits, red \
             where it could run and has no CPU."
                .to_owned(),
        );
    }
    if chart.merged_calls > 0 {
        notes.push(format!(
            "Low bars: {} calls narrower than {} px ({}) are merged with their neighbours; they \
             are {} in all.",
            chart.merged_calls,
            chart.column_px,
            told((chart.span_ns as f64 * chart.column_px / PLOT_WIDTH) as u64),
            told(chart.merged_ns)
        ));
    }
    if chart.flattened > 0 {
        notes.push(format!(
            "{} calls are deeper than their rows have lanes; they are drawn over the lowest lane, \
             and of those at one place the innermost.",
            chart.flattened
        ));
    }
    if chart.left_out > 0 {
        notes.push(format!("{} threads with the fewest events are left out.", chart.left_out));
    }
    if chart.wakes_all > WAKES_MAX {
        notes.push(format!("{} wakes are not drawn: they would hide the rest.", chart.wakes_all));
    }
    let lost: u64 = trace.facts.lost.iter().fold(0, |sum, lost| sum.saturating_add(lost.events));
    if lost > 0 {
        notes.push(format!("{lost} events are lost, so some calls are missing or too long."));
    }
    notes.extend(trace.cut.iter().map(|cut| format!("The trace is not whole: {cut}.")));
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, EventKind, Name, NameKind, Thread, ThreadId};

    fn trace(threads: u32, events_each: u64) -> Trace {
        let mut trace = Trace::default();
        for tid in 0..threads {
            trace.threads.push(Thread { pid: 1, tid, command: format!("<worker {tid}>") });
        }
        for name in ["main", "work&", "tiny"] {
            trace.names.push(Name::new(NameKind::Procedure, name));
        }
        for thread in (0..threads).map(ThreadId) {
            let mut add = |time_ns, kind, name, argument| {
                let name = NameId(name);
                trace.events.push(Event { time_ns, kind, name, thread, argument, cpu: None });
            };
            let begin = u64::from(thread.0) * 10;
            add(begin, EventKind::Enter, 0, 0);
            for call in 0..events_each {
                let at = begin + 1000 + call * 1000;
                add(at, EventKind::Enter, 2, 0);
                add(at + 600, EventKind::Exit, 2, 0);
            }
            let at = begin + 2000 + events_each * 1000;
            add(at, EventKind::Enter, 1, 0);
            add(at + 10, EventKind::SwitchOut, 0, 1);
            add(at + 500_000, EventKind::SwitchIn, 0, 0);
            add(at + events_each * 1000, EventKind::Exit, 1, 0);
            add(at + events_each * 1000 + 1000, EventKind::Exit, 0, 0);
        }
        trace.sort();
        trace
    }

    #[test]
    fn a_large_trace_is_a_small_drawing_that_says_what_it_merged() {
        let drawing = svg(&trace(200, 2000));
        assert!(drawing.len() < 6 << 20, "{} bytes", drawing.len());
        assert!(drawing.contains("400000 calls narrower than"));
        assert!(drawing.contains("short calls"));
        assert!(!drawing.contains("too much to draw"));
        assert_eq!(drawing.matches("&lt;worker ").count(), 200);
    }

    /// Calls that were all as wide as the drawing lay over each other in the lowest lane: 11 MB.
    #[test]
    fn calls_that_lie_over_each_other_are_one_bar() {
        let mut trace = trace(1, 0);
        trace.events.clear();
        for (kind, time) in [(EventKind::Enter, 0), (EventKind::Exit, 100_000_000)] {
            for call in 0..30_000 {
                let time_ns = time + call * 10;
                trace.events.push(Event { time_ns, kind, ..Event::default() });
            }
        }
        let drawing = svg(&trace);
        assert!(drawing.len() < 20_000, "{} bytes", drawing.len());
        assert!((12..50).contains(&drawing.matches("main: ").count()));
        assert!(drawing.contains("29988 calls are deeper than their rows have lanes"));
    }

    #[test]
    fn names_are_escaped_and_the_end_is_there() {
        let page = html(&trace(2, 3));
        assert!(page.contains("work&amp;") && page.contains("&lt;worker 1&gt;"));
        assert!(page.trim_end().ends_with("</html>"));
        assert!(page.contains("as measured"));
        assert!(page.contains("has no CPU"));
    }

    #[test]
    fn threads_beyond_those_drawn_are_said() {
        let drawing = svg(&trace(300, 1));
        assert!(drawing.contains("44 threads with the fewest events are left out"));
        assert!(svg(&Trace::default()).contains("</svg>"), "nothing at all is drawn, too");
    }
}

//! A flame graph as an SVG file that needs no other file and no network.

use std::fmt::Write as _;

use draw::escaped;

use super::{Call, Flame, SCRIPT, STYLE, colours};
use crate::escape;

/// Width of a drawing, of a line of calls, and of a character in it, in pixels. The script knows
/// the width and the characters, too.
const WIDTH: f64 = 1200.0;
const ROW: f64 = 18.0;
const CHARACTER: f64 = 6.7;
/// Room above the calls: title, search and keys.
const TOP: f64 = 62.0;
/// Space below the calls, for the details of one of them.
const BOTTOM: f64 = 28.0;
/// Narrower boxes are not seen.
const NARROW: f64 = 0.3;

const KEYS: &str = "click or Enter: zoom, Esc: all, arrows: move, / search, n: next";

const PAGE_STYLE: &str = "\
svg { color-scheme: light dark; }
.title { font-size: 15px; font-weight: 600; }
.keys { opacity: .65; }
.found, .details { font-size: 12px; }
input { font: 12px ui-monospace, monospace; width: 190px; box-sizing: border-box; }
";

/// Starts the script in a file of its own.
const START: &str = "\
(() => {
  const svg = document.documentElement;
  const at = (name) => document.getElementById(name);
  const parts = { input: at(\"search\"), details: at(\"details\"), found: at(\"found\") };
  const graph = dcpiFlame(svg, parts);
  document.addEventListener(\"keydown\", (event) => graph.key(event));
  svg.focus();
})();
";

/// The drawing.
pub fn svg(flame: &Flame) -> String {
    let rows = flame.depth as f64 + 1.0;
    let height = TOP + rows * ROW + BOTTOM;
    let grows = if flame.is_icicle { "down" } else { "up" };
    let title = escaped(&escape(&flame.title));
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"flame\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" tabindex=\"0\" data-grows=\"{grows}\">\n\
         <title>{title}</title>\n<style>\n{STYLE}{}{PAGE_STYLE}</style>\n\
         <rect class=\"back\" width=\"100%\" height=\"100%\"/>\n\
         <text class=\"title\" x=\"8\" y=\"22\">{title}</text>\n\
         <text class=\"keys\" x=\"8\" y=\"44\">{KEYS}</text>\n\
         <text class=\"found\" id=\"found\" x=\"760\" y=\"44\"></text>\n\
         <foreignObject x=\"1000\" y=\"8\" width=\"196\" height=\"26\">\
         <input xmlns=\"http://www.w3.org/1999/xhtml\" id=\"search\" type=\"search\" \
         placeholder=\"search ( / )\" aria-label=\"search\"/></foreignObject>\n\
         <text class=\"details\" id=\"details\" x=\"8\" y=\"{}\" aria-live=\"polite\"></text>\n",
        colours(false),
        height - 10.0,
    );
    for call in &flame.calls {
        let row = if flame.is_icicle { call.depth } else { flame.depth - call.depth };
        write_call(call, TOP + row as f64 * ROW, &mut out);
    }
    let _ = write!(out, "<script><![CDATA[\n{SCRIPT}{START}]]></script>\n</svg>\n");
    out
}

fn write_call(call: &Call, y: f64, out: &mut String) {
    let Call { name, tip, x, w, depth, parent, class } = call;
    let (left, width) = (x * WIDTH, w * WIDTH);
    let room = ((width - 6.0) / CHARACTER).max(0.0) as usize;
    let shown = match name.chars().count() {
        _ if room < 3 => String::new(),
        letters if letters <= room => name.clone(),
        _ => name.chars().take(room - 1).chain(['…']).collect(),
    };
    let _ = writeln!(
        out,
        "<g class=\"n {class}\" data-x=\"{x:.7}\" data-w=\"{w:.7}\" data-d=\"{depth}\" \
         data-p=\"{parent}\" data-name=\"{}\"><title>{}</title>\
         <rect x=\"{left:.2}\" y=\"{y:.1}\" width=\"{:.2}\" height=\"{:.1}\" rx=\"1\"/>\
         <text x=\"{:.2}\" y=\"{:.1}\">{}</text></g>",
        escaped(name),
        escaped(tip),
        (width - 0.5).max(NARROW),
        ROW - 1.0,
        left + 3.0,
        y + 12.5,
        escaped(&shown)
    );
}

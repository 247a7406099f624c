//! Drawings as SVG: axes, dots, lines, bars, areas and text, in light and dark.
//!
//! A [`Drawing`] takes shapes in pixels. A [`Plot`] is a rectangle in it with two [`Axis`]es, and
//! turns values into pixels. Colours are classes of a style sheet in the file, which has a second
//! set for readers who prefer dark pages. The file has no script, and every text is escaped.
//!
//! ```
//! use draw::{Axis, Drawing, Paint, Plot, Scale};
//! let mut drawing = Drawing::new(400.0, 200.0, "Runs", "times of 3 runs");
//! let plot = Plot {
//!     area: [60.0, 20.0, 380.0, 160.0],
//!     x: Axis::new("run", Scale::Linear, 0.0, 3.0),
//!     y: Axis::new("time (s)", Scale::Log10, 0.1, 10.0),
//! };
//! plot.frame(&mut drawing);
//! plot.dot(&mut drawing, (1.0, 0.5), 3.0, Paint::Series(0), "run 1: 0.5 s");
//! assert!(drawing.finish().ends_with("</svg>\n"));
//! ```
#![forbid(unsafe_code)]

mod axis;

pub use axis::{Axis, Scale};

use std::fmt::{self, Write as _};

/// Most bytes of a drawing: shapes beyond it are left out, and [`Drawing::finish`] says so in the
/// picture. Browsers draw 100,000 shapes, of 160 bytes each, in a second.
const BYTES_MAX: usize = 16 << 20;
/// Space of one line of text, in pixels.
pub const LINE: f64 = 16.0;
/// Length of a tick, in pixels.
const TICK: f64 = 4.0;

/// Colours of series on a light and on a dark page: Okabe and Ito's, which colour-blind readers can
/// tell apart (Color Universal Design, 2008); black and yellow are replaced.
const SERIES: [(&str, &str); 6] = [
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#e69f00"),
    ("#009e73", "#4dc9a3"),
    ("#aa4499", "#dd88cc"),
    ("#8a6d00", "#d8c04c"),
    ("#555555", "#bbbbbb"),
];

/// The paint of a shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Paint {
    /// The colour of text.
    Ink,
    /// The colour of lines that guide the eye.
    Faint,
    /// A colour of your own for each number; after the sixth they are used again.
    Series(usize),
    /// From blue (0) to red (1): an amount.
    Amount(f64),
}

/// Whether white, not black, is the text that reads better on a series of a light page: of the two
/// the one with the greater contrast, which is 4.9 or more (WCAG 2.2 asks for 4.5). All colours of
/// dark pages are light.
const WHITE_ON_SERIES: [bool; 6] = [true, false, false, true, true, true];

impl Paint {
    /// Attributes of a shape that is filled, or of a line.
    fn attributes(self, filled: bool) -> String {
        let way = if filled { 'f' } else { 'l' };
        match self {
            Self::Ink => format!("class=\"{way}i\""),
            Self::Faint => format!("class=\"{way}f\""),
            Self::Series(index) => format!("class=\"{way}{}\"", index % SERIES.len()),
            Self::Amount(amount) => {
                let amount = if amount.is_finite() { amount.clamp(0.0, 1.0) } else { 0.0 };
                let colour = format!("hsl({:.0},70%,50%)", 230.0 * (1.0 - amount));
                match filled {
                    true => format!("fill=\"{colour}\""),
                    false => format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\""),
                }
            }
        }
    }
}

/// Where a text's point is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Anchor {
    /// At its start.
    Start,
    /// In its middle.
    Middle,
    /// At its end.
    End,
}

/// An SVG document. Places are pixels from the upper left corner; shapes at places that are not
/// numbers are left out.
#[derive(Debug)]
pub struct Drawing {
    width: f64,
    height: f64,
    title: String,
    description: String,
    body: String,
    is_cut: bool,
}

impl Drawing {
    /// An empty drawing of this size, in pixels. Title and description are for readers that read
    /// aloud; browsers show the title as a tooltip.
    pub fn new(width: f64, height: f64, title: &str, description: &str) -> Self {
        Self {
            width,
            height,
            title: escaped(title),
            description: escaped(description),
            body: String::new(),
            is_cut: false,
        }
    }

    /// A line through these points.
    pub fn line(&mut self, points: &[(f64, f64)], paint: Paint) {
        if let Some(points) = list(points) {
            let paint = paint.attributes(false);
            self.add(format_args!("<polyline {paint} points=\"{points}\"/>"));
        }
    }

    /// An area with these corners, with a tooltip unless that is empty.
    pub fn polygon(&mut self, points: &[(f64, f64)], paint: Paint, tip: &str) {
        if let Some(points) = list(points) {
            let (paint, tip) = (paint.attributes(true), tooltip(tip));
            self.add(format_args!("<polygon {paint} points=\"{points}\">{tip}</polygon>"));
        }
    }

    /// A rectangle: left, top, width, height; with a tooltip unless that is empty.
    pub fn bar(&mut self, [x, y, width, height]: [f64; 4], paint: Paint, tip: &str) {
        if [x, y, width, height].iter().all(|number| number.is_finite()) {
            let (paint, tip) = (paint.attributes(true), tooltip(tip));
            let (width, height) = (width.max(0.0), height.max(0.0));
            self.add(format_args!(
                "<rect {paint} x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\">{tip}</rect>"
            ));
        }
    }

    /// A dot of this radius, with a tooltip unless that is empty.
    pub fn dot(&mut self, (x, y): (f64, f64), radius: f64, paint: Paint, tip: &str) {
        if [x, y, radius].iter().all(|number| number.is_finite()) {
            let (paint, tip) = (paint.attributes(true), tooltip(tip));
            self.add(format_args!(
                "<circle {paint} cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius:.1}\">{tip}</circle>"
            ));
        }
    }

    /// A line of text with its base line at this place, in the colour of text.
    pub fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        self.turned_text((x, y), anchor, text, 0.0);
    }

    /// A line of text on a shape of this paint, black or white, whichever reads better there.
    pub fn text_on(&mut self, (x, y): (f64, f64), text: &str, paint: Paint) {
        if let Paint::Series(index) = paint
            && [x, y].iter().all(|number| number.is_finite())
        {
            let (index, text) = (index % SERIES.len(), escaped(text));
            self.add(format_args!(
                "<text class=\"o{index}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>"
            ));
        } else {
            self.text((x, y), Anchor::Start, text);
        }
    }

    /// The same, turned about the place by degrees, clockwise.
    pub fn turned_text(&mut self, (x, y): (f64, f64), anchor: Anchor, text: &str, degrees: f64) {
        if ![x, y, degrees].iter().all(|number| number.is_finite()) {
            return;
        }
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let turn = match degrees == 0.0 {
            true => String::new(),
            false => format!(" transform=\"rotate({degrees:.1} {x:.1} {y:.1})\""),
        };
        let text = escaped(text);
        self.add(format_args!(
            "<text class=\"fi\" x=\"{x:.1}\" y=\"{y:.1}\"{anchor}{turn}>{text}</text>"
        ));
    }

    /// Names of series, one below the other, from this place down.
    pub fn legend(&mut self, (x, y): (f64, f64), names: &[(Paint, &str)]) {
        for (row, (paint, name)) in names.iter().enumerate() {
            let y = y + row as f64 * LINE;
            self.bar([x, y - 9.0, 10.0, 10.0], *paint, "");
            self.text((x + 15.0, y), Anchor::Start, name);
        }
    }

    /// The document.
    pub fn finish(self) -> String {
        let Self { width, height, title, description, body, is_cut } = self;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" height=\"{height:.0}\" role=\"img\" font-family=\"sans-serif\" font-size=\"12\">\n<title>{title}</title>\n<desc>{description}</desc>\n<style>\n"
        );
        style(&mut out, ("#ffffff", "#222222", "#dddddd"), |colours| colours.0);
        for (index, white) in WHITE_ON_SERIES.iter().enumerate() {
            let colour = if *white { "#ffffff" } else { "#000000" };
            let _ = writeln!(out, ".o{index}{{fill:{colour}}}");
        }
        out.push_str("@media (prefers-color-scheme: dark) {\n");
        style(&mut out, ("#181818", "#dddddd", "#444444"), |colours| colours.1);
        (0..SERIES.len()).for_each(|index| {
            let _ = writeln!(out, ".o{index}{{fill:#000000}}");
        });
        out.push_str("}\n</style>\n<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n");
        out.push_str(&body);
        if is_cut {
            let _ = writeln!(
                out,
                "<text class=\"fi\" x=\"4\" y=\"{:.0}\">too much to draw: the rest is left out</text>",
                height - 4.0
            );
        }
        out.push_str("</svg>\n");
        out
    }

    fn add(&mut self, shape: fmt::Arguments<'_>) {
        if self.body.len() > BYTES_MAX {
            self.is_cut = true;
        } else {
            let _ = writeln!(self.body, "{shape}");
        }
    }
}

fn style(
    out: &mut String,
    (page, ink, faint): (&str, &str, &str),
    of: fn(&(&'static str, &'static str)) -> &'static str,
) {
    let _ = writeln!(out, ".page{{fill:{page}}}");
    let named = [("i".to_owned(), ink), ("f".to_owned(), faint)].into_iter();
    let series = SERIES.iter().enumerate().map(|(index, colours)| (index.to_string(), of(colours)));
    for (name, colour) in named.chain(series) {
        let _ = writeln!(
            out,
            ".f{name}{{fill:{colour}}}.l{name}{{fill:none;stroke:{colour};stroke-width:1.5}}"
        );
    }
}

/// A rectangle of a drawing in which values have places.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Left, top, right and bottom, in pixels. Ticks and labels of the axes lie outside, in 60
    /// pixels to the left and 40 below.
    pub area: [f64; 4],
    /// The axis from left to right.
    pub x: Axis,
    /// The axis from the bottom up.
    pub y: Axis,
}

impl Plot {
    /// The place of a value in the drawing. Not a number where an axis has no place for it.
    pub fn place(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let [left, top, right, bottom] = self.area;
        (left + self.x.share(x) * (right - left), bottom - self.y.share(y) * (bottom - top))
    }

    /// Draws both axes: lines at their ticks, numbers, and labels.
    pub fn frame(&self, drawing: &mut Drawing) {
        let [left, top, right, bottom] = self.area;
        for (at, number) in self.x.ticks() {
            let x = left + self.x.share(at) * (right - left);
            drawing.line(&[(x, top), (x, bottom + TICK)], Paint::Faint);
            drawing.text((x, bottom + LINE), Anchor::Middle, &number);
        }
        for (at, number) in self.y.ticks() {
            let y = bottom - self.y.share(at) * (bottom - top);
            drawing.line(&[(left - TICK, y), (right, y)], Paint::Faint);
            drawing.text((left - TICK - 2.0, y + 4.0), Anchor::End, &number);
        }
        drawing.line(&[(left, top), (left, bottom), (right, bottom)], Paint::Ink);
        let middle = (f64::midpoint(left, right), f64::midpoint(top, bottom));
        drawing.text((middle.0, bottom + 2.2 * LINE), Anchor::Middle, &self.x.label);
        drawing.turned_text((left - 48.0, middle.1), Anchor::Middle, &self.y.label, -90.0);
    }

    /// A dot at a value.
    pub fn dot(&self, drawing: &mut Drawing, at: (f64, f64), radius: f64, paint: Paint, tip: &str) {
        drawing.dot(self.place(at), radius, paint, tip);
    }

    /// A line through values; values without a place are left out.
    pub fn line(&self, drawing: &mut Drawing, values: &[(f64, f64)], paint: Paint) {
        let places: Vec<_> = values.iter().map(|value| self.place(*value)).collect();
        let places: Vec<_> = places.into_iter().filter(|(x, y)| (x + y).is_finite()).collect();
        drawing.line(&places, paint);
    }

    /// A bar between two corners, both values.
    pub fn bar(
        &self,
        drawing: &mut Drawing,
        from: (f64, f64),
        to: (f64, f64),
        paint: Paint,
        tip: &str,
    ) {
        let (from, to) = (self.place(from), self.place(to));
        let (left, top) = (from.0.min(to.0), from.1.min(to.1));
        drawing.bar([left, top, (from.0 - to.0).abs(), (from.1 - to.1).abs()], paint, tip);
    }
}

/// Points as SVG has them; None if there are none, or one is not a number.
fn list(points: &[(f64, f64)]) -> Option<String> {
    let mut list = String::with_capacity(points.len() * 12);
    for (x, y) in points {
        if !x.is_finite() || !y.is_finite() {
            return None;
        }
        let _ = write!(list, "{x:.1},{y:.1} ");
    }
    (!points.is_empty()).then(|| list.trim_end().to_owned())
}

fn tooltip(tip: &str) -> String {
    if tip.is_empty() { String::new() } else { format!("<title>{}</title>", escaped(tip)) }
}

/// Escapes a text for XML. Characters that XML cannot hold become spaces.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push('\n'),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// WCAG 2.2's relative luminance of a colour.
    fn luminance(colour: &str) -> f64 {
        let part = |at: usize| {
            let part = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    }

    /// Text on bars was that of the page: grey on blue in dark mode.
    #[test]
    fn text_on_a_shape_can_be_read_in_light_and_dark() {
        let on_black = |colour: &str| (luminance(colour) + 0.05) / 0.05;
        let on_white = |colour: &str| 1.05 / (luminance(colour) + 0.05);
        for ((light, dark), white) in SERIES.into_iter().zip(WHITE_ON_SERIES) {
            let contrast = if white { on_white(light) } else { on_black(light) };
            assert!(contrast >= 4.9, "{light}: {contrast}");
            assert!(on_black(dark) >= 4.9, "{dark}");
        }
        let mut drawing = Drawing::new(10.0, 10.0, "", "");
        drawing.text_on((1.0, 2.0), "<f>", Paint::Series(7));
        drawing.text_on((f64::NAN, 2.0), "nowhere", Paint::Series(7));
        let svg = drawing.finish();
        assert!(svg.contains("<text class=\"o1\" x=\"1.0\" y=\"2.0\">&lt;f&gt;"), "{svg}");
        assert!(svg.contains(".o1{fill:#000000}") && !svg.contains("nowhere"), "{svg}");
    }

    #[test]
    fn texts_cannot_become_markup() {
        let mut drawing = Drawing::new(10.0, 10.0, "<a & b>", "\u{1}\"");
        drawing.text((1.0, 2.0), Anchor::Middle, "</text><script>");
        drawing.dot((1.0, 2.0), 1.0, Paint::Ink, "x<y");
        let svg = drawing.finish();
        assert!(svg.contains("<title>&lt;a &amp; b&gt;</title>\n<desc> &quot;</desc>"), "{svg}");
        assert!(svg.contains(">&lt;/text&gt;&lt;script&gt;</text>"), "{svg}");
        assert!(svg.contains("<title>x&lt;y</title>"), "{svg}");
    }

    #[test]
    fn values_have_places_by_both_axes() {
        let plot = Plot {
            area: [100.0, 10.0, 300.0, 110.0],
            x: Axis::new("size", Scale::Log2, 1024.0, 4096.0),
            y: Axis::new("s", Scale::Linear, 0.0, 2.0),
        };
        assert_eq!(plot.place((1024.0, 0.0)), (100.0, 110.0));
        assert_eq!(plot.place((2048.0, 2.0)), (200.0, 10.0));
        let mut drawing = Drawing::new(400.0, 200.0, "", "");
        plot.bar(&mut drawing, (1024.0, 0.0), (2048.0, 1.0), Paint::Series(7), "");
        assert!(drawing.finish().contains(
            "<rect class=\"f1\" x=\"100.0\" y=\"60.0\" width=\"100.0\" height=\"50.0\">"
        ));
    }

    /// A logarithm of 0 is no place: one such value must not break the document.
    #[test]
    fn what_has_no_place_is_left_out() {
        let plot = Plot {
            area: [0.0, 0.0, 100.0, 100.0],
            x: Axis::new("", Scale::Log10, 1.0, 100.0),
            y: Axis::new("", Scale::Linear, 0.0, 1.0),
        };
        let mut drawing = Drawing::new(100.0, 100.0, "", "");
        plot.dot(&mut drawing, (0.0, 0.5), 1.0, Paint::Ink, "");
        plot.line(&mut drawing, &[(0.0, 0.5), (1.0, 0.0), (10.0, 1.0)], Paint::Series(0));
        drawing.polygon(&[(f64::NAN, 1.0)], Paint::Amount(0.5), "");
        let svg = drawing.finish();
        assert!(svg.contains("points=\"0.0,100.0 50.0,0.0\""), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains("<circle"), "{svg}");
    }

    #[test]
    fn a_drawing_has_a_largest_size() {
        let mut drawing = Drawing::new(10.0, 10.0, "", "");
        let long = "x".repeat(1 << 20);
        for _ in 0..20 {
            drawing.text((0.0, 0.0), Anchor::Start, &long);
        }
        let svg = drawing.finish();
        assert!(svg.len() < BYTES_MAX + (2 << 20) && svg.contains("the rest is left out"));
    }

    #[test]
    fn both_pages_have_colours() {
        let svg = Drawing::new(1.0, 1.0, "", "").finish();
        assert!(svg.contains(".f0{fill:#0072b2}") && svg.contains(".f0{fill:#56b4e9}"), "{svg}");
        assert_eq!(svg.matches(".page{").count(), 2);
    }
}

//! The colours of a flame graph, as plain numbers: programs that draw SVG without a browser know no
//! variables of CSS.

use super::{HUES, STEPS};

/// Lightness of boxes beside dark text, and beside light text.
const LIGHTNESS: [f64; 2] = [0.74, 0.31];
/// Text and background, on a light and on a dark page: those of the HTML report.
const INK: [&str; 2] = ["#1b1b1b", "#f0efec"];
const BACK: [&str; 2] = ["#fdfdfb", "#161719"];
/// Hue and saturation of threads that ran, and of threads that waited.
const RAN: (f64, f64) = (22.0, 0.78);
const WAITED: (f64, f64) = (212.0, 0.65);

/// Rules for a drawing of its own; `in_page`: for a page that has a theme of its own, and its own
/// background.
pub(in super::super) fn colours(in_page: bool) -> String {
    let [light, dark] = [0, 1].map(|theme| rules("", theme, !in_page));
    let mut css = format!("{light}@media (prefers-color-scheme: dark) {{\n{dark}}}\n");
    if in_page {
        css.push_str(&rules(":root[data-theme=\"light\"] ", 0, false));
        css.push_str(&rules(":root[data-theme=\"dark\"] ", 1, false));
    }
    css
}

/// The rules of a theme: 0 light, 1 dark.
fn rules(before: &str, theme: usize, with_back: bool) -> String {
    let of = |values: [&'static str; 2]| values.get(theme).copied().unwrap_or_default();
    let light = LIGHTNESS.get(theme).copied().unwrap_or_default();
    let mut css = format!("{before}.flame text {{ fill: {}; }}\n", of(INK));
    if with_back {
        css.push_str(&format!("{before}.flame .back {{ fill: {}; }}\n", of(BACK)));
    }
    let mut rule = |class: &str, colour: [f64; 3]| {
        let hex = hex(colour);
        css.push_str(&format!("{before}.flame .{class} rect {{ fill: {hex}; }}\n"));
    };
    rule("k", rgb(28.0, 0.78, light));
    rule("j", rgb(265.0, 0.45, light));
    rule("w", rgb(212.0, 0.62, light));
    rule("c", rgb(0.0, 0.0, light));
    rule("a", rgb(45.0, 0.12, light + 0.08));
    for hue in 0..HUES {
        let half = HUES / 2;
        // Yellow to teal, then purple to pink: neither the kernel's orange nor the waits' blue.
        let degrees = if hue < half { 50 + hue * 11 } else { 285 + (hue - half) * 6 };
        let rich = if hue.is_multiple_of(2) { 0.52 } else { 0.34 };
        rule(&format!("h{hue}"), rgb(f64::from(degrees), rich, light));
    }
    rule("d0", rgb(60.0, 0.06, light));
    for step in 1..=STEPS {
        let rich = 0.15 * f64::from(step);
        rule(&format!("m{step}"), rgb(5.0, rich, light));
        rule(&format!("l{step}"), rgb(215.0, rich, light));
    }
    let (ran, waited) = (rgb(RAN.0, RAN.1, light), rgb(WAITED.0, WAITED.1, light));
    for step in 0..=2 * STEPS {
        let part = f64::from(step) / f64::from(2 * STEPS);
        let [r, g, b] = ran;
        let [r2, g2, b2] = waited;
        let mix = |from: f64, to: f64| from + (to - from) * part;
        rule(&format!("o{step}"), [mix(r, r2), mix(g, g2), mix(b, b2)]);
    }
    css
}

/// Red, green and blue of a hue in degrees, saturation and lightness (CSS Color 4, section 7.1).
fn rgb(hue: f64, saturation: f64, lightness: f64) -> [f64; 3] {
    let spread = saturation * lightness.min(1.0 - lightness);
    [0.0, 8.0, 4.0].map(|offset| {
        let at = (offset + hue / 30.0) % 12.0;
        lightness - spread * (at - 3.0).min(9.0 - at).clamp(-1.0, 1.0)
    })
}

fn hex(colour: [f64; 3]) -> String {
    // The cast saturates.
    let [r, g, b] = colour.map(|part| (part * 255.0).round() as u8);
    format!("#{r:02x}{g:02x}{b:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_those_of_css() {
        for ((hue, saturation, lightness), expected) in [
            ((0.0, 1.0, 0.5), "#ff0000"),
            ((120.0, 1.0, 0.25), "#008000"),
            ((240.0, 1.0, 0.75), "#8080ff"),
            ((0.0, 0.0, 0.5), "#808080"),
        ] {
            assert_eq!(hex(rgb(hue, saturation, lightness)), expected);
        }
        let own = colours(false);
        assert!(own.contains(".flame .back { fill: #fdfdfb; }") && !own.contains("var("));
        assert!(colours(true).contains(":root[data-theme=\"dark\"] .flame .o10 rect { fill: #"));
    }
}

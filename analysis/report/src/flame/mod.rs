//! Flame graphs: the tree of calls as boxes, as wide as their time (B. Gregg, "The Flame Graph",
//! Communications of the ACM 59, 2016).
//!
//! A drawing is whole without its script, which adds zoom, search and keyboard.

use std::collections::{BTreeMap, HashMap};

use image::ImageKind;
use serde::Serialize;

use super::quantity::percent;
use super::stacks::amount;
use super::{Callee, TreeRow, escape};
use names::shorten::brief;

mod palette;
mod svg;

pub(super) use palette::colours;
pub use svg::svg;

/// The script of a flame graph.
pub(super) const SCRIPT: &str = include_str!("flame.js");
/// The style of a flame graph, without its colours.
pub(super) const STYLE: &str = include_str!("flame.css");
/// Most calls in a drawing: up to this number, browsers zoom without a noticeable pause.
const CALLS_MAX: usize = 20_000;
/// Most calls above their root of a drawing that grows up: a screen shows the root and the title.
const UP_MAX: usize = 36;
/// Number of hues of images.
const HUES: u32 = 24;
/// Steps from one colour to another, on either side of the middle.
const STEPS: i32 = 5;

/// A tree of calls of one event, or of one set.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Its name: the event, or the set.
    pub name: String,
    /// Its time.
    pub total: f64,
    /// Whether its threads did not run.
    pub is_waiting: bool,
    /// The tree, each row before those below it.
    pub rows: Vec<TreeRow>,
}

/// The meaning of several layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layers {
    /// Times that add up.
    Sum,
    /// The second is before the first: colours show the change of each call's share.
    Difference,
}

/// The colours of boxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colours {
    /// By image.
    Image,
    /// By whether the threads ran.
    Waiting,
}

/// A flame graph.
#[derive(Clone, Debug)]
pub struct Flame {
    /// The subject of the graph, in words.
    pub title: String,
    /// The unit of its time.
    pub unit: String,
    /// Its time.
    total: f64,
    /// Whether callees are drawn below their callers.
    pub is_icicle: bool,
    /// Depth of the deepest call.
    depth: usize,
    /// The calls, each before those below it; the first is all time.
    calls: Vec<Call>,
}

/// A call: a box.
#[derive(Clone, Debug, Serialize)]
struct Call {
    /// The name in the box.
    name: String,
    /// All that is known of it, in words.
    tip: String,
    /// Begin and width, as parts of all time.
    x: f64,
    w: f64,
    depth: usize,
    /// Index of the call above it.
    parent: usize,
    /// The class of its colour.
    class: String,
}

/// A call in the making: layers are joined by names, so that builds can be compared.
#[derive(Default)]
struct Joined<'a> {
    procedure: Option<&'a Callee>,
    /// Time by layer.
    times: Vec<f64>,
    /// Share by layer, with the reach of its interval.
    shares: Vec<(f64, f64)>,
    children: BTreeMap<(&'a str, &'a str), usize>,
}

impl Flame {
    /// The graph of some trees. Shares of different sets are compared, times of different events
    /// are added up.
    pub fn of(
        title: String,
        unit: String,
        layers: &[Layer],
        (mode, colours): (Layers, Colours),
        is_icicle: bool,
    ) -> Self {
        let joined = join(layers);
        let counted = match mode {
            Layers::Sum => layers.len(),
            Layers::Difference => 1,
        };
        let time = |of: &Joined<'_>| of.times.iter().take(counted).sum::<f64>();
        let total: f64 = layers.iter().take(counted).map(|layer| layer.total).sum();
        let mut flame = Self { title, unit, total, is_icicle, depth: 0, calls: Vec::new() };
        let paint = Paint { layers, mode, colours };
        let mut todo = vec![(0_usize, 0_usize, 0_usize, 0.0_f64)];
        while let Some((at, depth, parent, x)) = todo.pop() {
            let Some(of) = joined.get(at).filter(|_| flame.calls.len() < CALLS_MAX) else {
                break;
            };
            let this = flame.calls.len();
            let w = if total > 0.0 { (time(of) / total).min(1.0) } else { 1.0 };
            flame.calls.push(flame.call(of, &paint, (x, w, depth, parent)));
            flame.depth = flame.depth.max(depth);
            let mut children: Vec<(usize, f64)> = of
                .children
                .values()
                .map(|child| (*child, joined.get(*child).map_or(0.0, &time)))
                .filter(|(_, time)| *time > 0.0)
                .collect();
            children.sort_by(|(_, a), (_, b)| b.total_cmp(a));
            let mut begins = Vec::with_capacity(children.len());
            let mut begin = x;
            for (child, time) in &children {
                begins.push((*child, depth + 1, this, begin));
                begin += time / total.max(f64::MIN_POSITIVE);
            }
            todo.extend(begins.into_iter().rev());
        }
        flame.is_icicle |= flame.depth > UP_MAX;
        flame
    }

    fn call(
        &self,
        of: &Joined<'_>,
        paint: &Paint<'_>,
        (x, w, depth, parent): (f64, f64, usize, usize),
    ) -> Call {
        let (name, tip) = match of.procedure {
            None => ("all".to_owned(), "all".to_owned()),
            Some(procedure) => {
                let whole = escape(&procedure.name).into_owned();
                let image = procedure.image.as_ref().map(|image| escape(&image.name).into_owned());
                let is_generated =
                    procedure.image.as_ref().is_some_and(|of| of.kind == ImageKind::Jit);
                // Names of generated code are no C++.
                let shown = match is_generated || whole.starts_with('[') {
                    true => whole.clone(),
                    false => escape(&brief(image::without_suffix(&procedure.name))).into_owned(),
                };
                let place = image.map(|image| format!(" ({image})")).unwrap_or_default();
                let tail = procedure.tail();
                (format!("{shown}{tail}"), format!("{whole}{tail}{place}"))
            }
        };
        let time = amount(w * self.total, &self.unit);
        let tip = format!("{tip}: {time}, {} %{}", percent(w), paint.more(of));
        Call { name, tip, x, w, depth, parent, class: paint.class(of) }
    }
}

/// The layers' trees as one; the first is the root of all.
fn join(layers: &[Layer]) -> Vec<Joined<'_>> {
    let none = || Joined {
        times: vec![0.0; layers.len()],
        shares: vec![(0.0, 0.0); layers.len()],
        ..Joined::default()
    };
    let mut joined = vec![none()];
    for (number, layer) in layers.iter().enumerate() {
        if let Some(time) = joined.first_mut().and_then(|root| root.times.get_mut(number)) {
            *time = layer.total;
        }
        let mut of_row: HashMap<usize, usize> = HashMap::new();
        for (at, row) in layer.rows.iter().enumerate() {
            let above = row.parent.and_then(|parent| of_row.get(&parent)).copied().unwrap_or(0);
            let image = row.procedure.image.as_ref().map_or("", |image| image.name.as_str());
            let next = joined.len();
            let Some(parent) = joined.get_mut(above) else { continue };
            let this = *parent.children.entry((&row.procedure.name, image)).or_insert(next);
            if this == next {
                joined.push(Joined { procedure: Some(&row.procedure), ..none() });
            }
            of_row.insert(at, this);
            if let Some(call) = joined.get_mut(this) {
                call.times.iter_mut().skip(number).take(1).for_each(|time| *time += row.time);
                for share in call.shares.iter_mut().skip(number).take(1) {
                    *share = (share.0 + row.share.value, share.1.hypot(row.share.reach()));
                }
            }
        }
    }
    joined
}

/// How boxes are coloured.
struct Paint<'a> {
    layers: &'a [Layer],
    mode: Layers,
    colours: Colours,
}

impl Paint<'_> {
    /// The change of a call's share, and whether it is more than chance.
    fn change(&self, of: &Joined<'_>) -> Option<(f64, f64, bool)> {
        let [after, before] = of.shares.as_slice() else { return None };
        let is_difference = self.mode == Layers::Difference && of.procedure.is_some();
        let real = (after.0 - before.0).abs() > after.1.hypot(before.1);
        is_difference.then_some((before.0, after.0, real))
    }

    fn class(&self, of: &Joined<'_>) -> String {
        if let Some((before, after, real)) = self.change(of) {
            let change = (after - before) / after.max(before).max(f64::MIN_POSITIVE);
            let step = (change * f64::from(STEPS)).round() as i32;
            return match (real, step) {
                (false, _) | (true, 0) => "d0".to_owned(),
                (true, more) if more > 0 => format!("m{more}"),
                (true, less) => format!("l{}", -less),
            };
        }
        let Some(procedure) = of.procedure else { return "a".to_owned() };
        if self.colours == Colours::Waiting {
            let off: f64 = self
                .layers
                .iter()
                .zip(&of.times)
                .filter(|(layer, _)| layer.is_waiting)
                .map(|(_, time)| time)
                .sum();
            let all: f64 = of.times.iter().sum();
            let share = if all > 0.0 { off / all } else { 0.0 };
            return format!("o{}", (share * f64::from(2 * STEPS)).round() as u32);
        }
        match &procedure.image {
            None if procedure.name.starts_with('[') => {
                let waits = model::Wait::ALL.iter().any(|wait| {
                    procedure.name.strip_prefix('[').and_then(|name| name.strip_suffix(']'))
                        == Some(wait.name())
                });
                if waits { "w".to_owned() } else { "c".to_owned() }
            }
            None => "a".to_owned(),
            Some(image) => match image.kind {
                ImageKind::Kernel | ImageKind::Module | ImageKind::Bpf | ImageKind::Idle => {
                    "k".to_owned()
                }
                ImageKind::Jit => "j".to_owned(),
                ImageKind::Unresolved => "c".to_owned(),
                ImageKind::File | ImageKind::Vdso => format!("h{}", hue(&image.name)),
            },
        }
    }

    /// The text of a tooltip for several layers.
    fn more(&self, of: &Joined<'_>) -> String {
        if let Some((before, after, real)) = self.change(of) {
            let chance = if real { "" } else { ", which may be chance" };
            return format!(" (before {} %, now {} %{chance})", percent(before), percent(after));
        }
        if self.layers.len() < 2 || self.mode == Layers::Difference {
            return String::new();
        }
        let all: f64 = of.times.iter().sum();
        let part = |(layer, time): (&Layer, &f64)| {
            format!("{} {} %", layer.name, percent(time / all.max(f64::MIN_POSITIVE)))
        };
        let parts: Vec<String> = self.layers.iter().zip(&of.times).map(part).collect();
        format!(" ({})", parts.join(", "))
    }
}

/// The hue of an image: the same for one name in every drawing (FNV-1a).
fn hue(name: &str) -> u32 {
    let mix = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    name.bytes().fold(0x811c_9dc5, mix) % HUES
}

#[cfg(test)]
mod tests {
    use super::*;
    use stats::Share;

    fn row(name: &str, parent: Option<usize>, depth: usize, time: f64, reach: f64) -> TreeRow {
        let share = time / 100.0;
        TreeRow {
            procedure: Callee::nobody(name),
            depth,
            parent,
            time,
            share: Share { value: share, low: share - reach, high: share + reach },
            own: 0.0,
            thread: None,
        }
    }

    fn layer(name: &str, is_waiting: bool, rows: Vec<TreeRow>) -> Layer {
        Layer { name: name.into(), total: 100.0, is_waiting, rows }
    }

    fn drawn(layers: &[Layer], how: (Layers, Colours)) -> Vec<(String, f64, f64, String)> {
        let flame = Flame::of("x".into(), "ns".into(), layers, how, false);
        let call = |call: Call| (call.name, call.x, call.w, call.class);
        flame.calls.into_iter().map(call).collect()
    }

    #[test]
    fn colours_show_what_changed_and_not_what_may_be_chance() {
        let rows = |much: f64, little: f64, same: f64| {
            vec![
                row("a", None, 0, much, 0.01),
                row("b", Some(0), 1, little, 0.01),
                row("c", None, 0, same, 0.05),
            ]
        };
        let layers = [
            layer("now", false, rows(60.0, 10.0, 24.0)),
            layer("before", false, rows(30.0, 30.0, 20.0)),
        ];
        let expected = [
            ("all", 0.0, 1.0, "a"),
            ("a", 0.0, 0.6, "m3"),
            ("b", 0.0, 0.1, "l3"),
            ("c", 0.6, 0.24, "d0"),
        ];
        let expected =
            expected.map(|(name, x, w, class)| (name.to_owned(), x, w, class.to_owned()));
        assert_eq!(drawn(&layers, (Layers::Difference, Colours::Image)), expected);
    }

    #[test]
    fn times_of_several_events_add_up() {
        let on = layer("on", false, vec![row("a", None, 0, 30.0, 0.0)]);
        let off = layer(
            "off",
            true,
            vec![row("a", None, 0, 90.0, 0.0), row("[futex]", Some(0), 1, 90.0, 0.0)],
        );
        let expected =
            [("all", 0.0, 1.0, "a"), ("a", 0.0, 0.6, "o8"), ("[futex]", 0.0, 0.45, "o10")];
        let expected =
            expected.map(|(name, x, w, class)| (name.to_owned(), x, w, class.to_owned()));
        assert_eq!(drawn(&[on.clone(), off], (Layers::Sum, Colours::Waiting)), expected);
        assert_eq!(drawn(&[on], (Layers::Sum, Colours::Image))[1].3, "a");
    }

    /// The root of a deep drawing was below the first screen.
    #[test]
    fn the_root_of_a_deep_drawing_is_at_its_top() {
        for (deepest, is_icicle) in [(UP_MAX - 1, false), (UP_MAX, true)] {
            let rows = (0..=deepest)
                .map(|depth| row("deep", depth.checked_sub(1), depth, 50.0, 0.0))
                .collect();
            let how = (Layers::Sum, Colours::Image);
            let flame = Flame::of("x".into(), "ns".into(), &[layer("on", false, rows)], how, false);
            assert_eq!((flame.depth, flame.is_icicle), (deepest + 1, is_icicle));
        }
    }

    /// Names are made by whoever makes programs.
    #[test]
    fn names_stay_text() {
        let evil = "</title><script>alert(1)</script>]]>&\"'\u{1b}\u{fffe}\n\u{202e}";
        let layers = [layer(evil, false, vec![row(evil, None, 0, 50.0, 0.0)])];
        let flame =
            Flame::of(evil.into(), "ns".into(), &layers, (Layers::Sum, Colours::Image), true);
        let svg = svg(&flame);
        assert_eq!(svg.matches("<script>").count(), 1, "its own");
        assert_eq!(svg.matches("</script>").count(), 1);
        assert_eq!(svg.matches("]]>").count(), 1);
        for hidden in ['\u{1b}', '\u{fffe}', '\u{202e}'] {
            assert!(!svg.contains(hidden));
        }
        assert!(svg.contains("&lt;/title&gt;&lt;script&gt;alert(1)"), "{svg}");
    }
}

//! Call stacks in exports: which samples are theirs, and their frames.
//!
//! Samples tell how long a procedure took, and are many more than stacks; so the samples of a
//! procedure are divided among the stacks that end in it, by their weights. Samples of procedures
//! without stacks stay where they are.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use image::{ImageId, ImageOffset};
use model::{Cut, Frame, Thread};
use names::inlined;
use names::interpreted::{self, Loops};
use profiledb::Scope;

use super::{Event, Image, Resolved};

/// Call stacks by event and scope.
pub type ByEvent = BTreeMap<(String, Scope), model::Stacks>;

/// The stacks of a selection.
#[derive(Debug, Default)]
pub struct Stacks {
    /// Calls: each after its caller.
    pub nodes: Vec<StackNode>,
    /// The stacks.
    pub samples: Vec<StackSample>,
    /// Their threads.
    pub threads: Vec<Thread>,
}

/// A frame with its callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackNode {
    /// Index of its caller's node.
    pub parent: Option<usize>,
    /// The frame.
    pub frame: StackFrame,
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StackFrame {
    /// A place of an image, by their numbers: in [`Resolved::images`] and [`Image::places`].
    Place(usize, usize),
    /// Words in brackets for frames that are not known, or for why a thread did not run.
    Words(String),
}

/// Samples of one stack and thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackSample {
    /// Index of [`Resolved::events`].
    pub event: usize,
    /// Index of [`Stacks::nodes`]: the innermost frame.
    pub node: usize,
    /// Index of [`Stacks::threads`].
    pub thread: usize,
    /// Index of [`Resolved::scopes`].
    pub scope: usize,
    /// Number of samples; of an event without samples the number of stacks.
    pub samples: u64,
    /// Occurrences that they stand for.
    pub occurrences: u64,
}

impl Stacks {
    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The frames of a stack, innermost first.
    pub fn frames(&self, node: usize) -> impl Iterator<Item = &StackFrame> + '_ {
        let mut at = Some(node);
        std::iter::from_fn(move || {
            let node = self.nodes.get(at?)?;
            at = node.parent;
            Some(&node.frame)
        })
    }

    /// Leaves out the callers of the lightest stacks where all stacks together have more frames.
    fn shorten(&mut self, frames_max: usize) {
        let mut depths: Vec<usize> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let above = node.parent.and_then(|parent| depths.get(parent)).copied().unwrap_or(0);
            depths.push(above + 1);
        }
        let depth = |sample: &StackSample| depths.get(sample.node).copied().unwrap_or(0);
        let mut order: Vec<usize> = (0..self.samples.len()).collect();
        order.sort_by_key(|at| Reverse(self.samples.get(*at).map(|sample| sample.occurrences)));
        let mut left = frames_max;
        let mut root = None;
        for at in order {
            let Some(sample) = self.samples.get_mut(at) else { continue };
            if let Some(rest) = left.checked_sub(depth(sample)) {
                left = rest;
                continue;
            }
            left = 0;
            let Some(frame) = self.nodes.get(sample.node).map(|node| node.frame.clone()) else {
                continue;
            };
            let words = StackFrame::Words(format!("[{}]", Cut::Deeper.name()));
            let parent = *root.get_or_insert_with(|| {
                self.nodes.push(StackNode { parent: None, frame: words });
                self.nodes.len() - 1
            });
            self.nodes.push(StackNode { parent: Some(parent), frame });
            sample.node = self.nodes.len() - 1;
        }
    }

    /// The thread of a sample.
    pub fn thread(&self, sample: &StackSample) -> Option<&Thread> {
        self.threads.get(sample.thread)
    }
}

/// The offsets of frames, by image.
pub(super) fn offsets(stacks: &ByEvent) -> BTreeMap<ImageId, BTreeSet<ImageOffset>> {
    let mut offsets: BTreeMap<ImageId, BTreeSet<ImageOffset>> = BTreeMap::new();
    for frame in stacks.values().flat_map(model::Stacks::distinct_frames) {
        if let Frame::Code(image, offset) = frame {
            offsets.entry(*image).or_default().insert(*offset);
        }
    }
    offsets
}

/// Most frames of all stacks together in an export: some formats keep them all in memory, up to 30
/// bytes each. A busy host's day has a tenth of that.
const FRAMES_MAX: usize = 50_000_000;

/// Where the stacks of a procedure end: scope, event, image, procedure.
type End = (usize, usize, usize, Option<usize>);

/// Moves samples from places to stacks. `unit` gives the unit of an event; `counts` says whether
/// stacks that end in an image are wanted.
pub(super) fn divide(
    resolved: &mut Resolved,
    stacks: &ByEvent,
    unit: impl Fn(&str) -> String,
    counts: impl Fn(&Image) -> bool,
) {
    add_events(resolved, stacks, unit);
    let mut scopes: BTreeSet<Scope> = resolved.scopes.iter().cloned().collect();
    scopes.extend(stacks.keys().map(|(_, scope)| scope.clone()));
    rescope(resolved, scopes.into_iter().collect());
    let mut made = Stacks::default();
    let mut ends: BTreeMap<End, Vec<StackSample>> = BTreeMap::new();
    let places = Places::of(&resolved.images);
    let mut numbers: HashMap<(Option<usize>, StackFrame), usize> = HashMap::new();
    let mut threads: HashMap<Thread, usize> = HashMap::new();
    for ((name, scope), of) in stacks {
        let event = resolved.events.iter().position(|event| event.name == *name);
        let scope = resolved.scopes.iter().position(|known| known == scope);
        let (Some(event), Some(scope)) = (event, scope) else { continue };
        let mut new: Vec<usize> = Vec::with_capacity(of.len());
        for (parent, frame) in of.nodes() {
            let parent = parent.and_then(|parent| new.get(parent as usize).copied());
            let frame = places.frame(&frame);
            let node = *numbers.entry((parent, frame)).or_insert_with_key(|(parent, frame)| {
                made.nodes.push(StackNode { parent: *parent, frame: frame.clone() });
                made.nodes.len() - 1
            });
            new.push(node);
        }
        for (node, thread, value) in of.values() {
            let Some(node) = new.get(node as usize).copied() else { continue };
            let thread = *threads.entry(thread.clone()).or_insert_with(|| {
                made.threads.push(thread.clone());
                made.threads.len() - 1
            });
            let (samples, occurrences) = (value.stacks, value.weight);
            let sample = StackSample { event, node, thread, scope, samples, occurrences };
            let innermost = made.nodes.get(node).map(|node| &node.frame);
            let end = match innermost {
                Some(StackFrame::Place(image, place)) => {
                    let of = resolved.images.get(*image);
                    if !of.is_some_and(&counts) {
                        continue;
                    }
                    let place = of.and_then(|of| of.places.get(*place));
                    (scope, event, *image, place.and_then(|place| place.procedure))
                }
                _ => (scope, event, usize::MAX, None),
            };
            ends.entry(end).or_default().push(sample);
        }
    }
    for (end, samples) in ends {
        let (_, event, ..) = end;
        if resolved.events.get(event).is_some_and(|event| event.period > 0) {
            share_out(resolved, end, &samples, &mut made);
        } else {
            made.samples.extend(samples);
        }
    }
    made.shorten(FRAMES_MAX);
    resolved.stacks = made;
}

/// Gives the samples of interpreters' loops to the frames of the functions that the loops ran, as
/// the rows of `dcpi prof` do: the innermost frame is a function that has lines.
pub(super) fn without_loops(resolved: &mut Resolved, loops: &Loops) {
    if loops.is_empty() {
        return;
    }
    let code = |node: &StackNode| {
        let (image, place) = resolved.frame_place(&node.frame)?;
        Some(Frame::Code(image.id, ImageOffset(place.offset)))
    };
    let ran = |node: usize| {
        let node = resolved.stacks.nodes.get(node)?;
        let innermost = code(node)?;
        let caller = code(resolved.stacks.nodes.get(node.parent?)?)?;
        interpreted::ran(loops, innermost, caller).and(node.parent)
    };
    let mut sums: BTreeMap<(usize, usize, usize, usize), StackSample> = BTreeMap::new();
    for sample in &resolved.stacks.samples {
        let sample = StackSample { node: ran(sample.node).unwrap_or(sample.node), ..*sample };
        let StackSample { event, node, thread, scope, samples, occurrences } = sample;
        let nothing = StackSample { samples: 0, occurrences: 0, ..sample };
        let sum = sums.entry((event, node, thread, scope)).or_insert(nothing);
        sum.samples = sum.samples.saturating_add(samples);
        sum.occurrences = sum.occurrences.saturating_add(occurrences);
    }
    resolved.stacks.samples = sums.into_values().collect();
}

/// Adds the events that have stacks only. Their period is none: a stack stands for its own time.
fn add_events(resolved: &mut Resolved, stacks: &ByEvent, unit: impl Fn(&str) -> String) {
    for ((name, _), of) in stacks {
        let total = of.total();
        if let Some(event) = resolved.events.iter_mut().find(|event| event.name == *name) {
            if event.period == 0 {
                event.samples = event.samples.saturating_add(total.stacks);
            }
            continue;
        }
        resolved.events.push(Event {
            name: name.clone(),
            unit: unit(name),
            weight: if total.stacks > 0 { total.weight as f64 / total.stacks as f64 } else { 0.0 },
            samples: total.stacks,
            ..Event::default()
        });
    }
    let events = resolved.events.len();
    for place in resolved.images.iter_mut().flat_map(|image| &mut image.places) {
        place.counts.iter_mut().for_each(|(_, counts)| counts.resize(events, 0));
    }
}

/// Gives samples the numbers that their scopes have in `scopes`.
fn rescope(resolved: &mut Resolved, scopes: Vec<Scope>) {
    let number = |scope: &Scope| scopes.binary_search(scope).unwrap_or(0);
    let new: Vec<usize> = resolved.scopes.iter().map(number).collect();
    for place in resolved.images.iter_mut().flat_map(|image| &mut image.places) {
        for (scope, _) in &mut place.counts {
            *scope = new.get(*scope).copied().unwrap_or(0);
        }
    }
    resolved.scopes = scopes;
}

/// Divides the samples of a procedure among the stacks that end in it: those of the places where
/// the same functions are inlined among the stacks that end there, as `calls` does. Where none do,
/// the procedure's stacks stand for them.
fn share_out(
    resolved: &mut Resolved,
    (scope, event, image, procedure): End,
    stacks: &[StackSample],
    made: &mut Stacks,
) {
    let (Some(of), Some(of_event)) = (resolved.images.get_mut(image), resolved.events.get(event))
    else {
        return;
    };
    let inlined = |place: &super::Place| -> Vec<String> {
        inlined::calls(&place.frames).iter().map(|frame| inlined::name(frame).to_owned()).collect()
    };
    let mut spots: BTreeMap<Vec<String>, Spot> = BTreeMap::new();
    for (at, place) in of.places.iter_mut().enumerate() {
        if place.procedure != procedure {
            continue;
        }
        let spot =
            spots.entry(inlined(place)).or_insert_with(|| Spot { place: at, ..Spot::default() });
        for (_, counts) in place.counts.iter_mut().filter(|(of, _)| *of == scope) {
            let count = counts.get_mut(event).map(std::mem::take).unwrap_or_default();
            spot.samples = spot.samples.saturating_add(count);
        }
    }
    for stack in stacks {
        let place = made.nodes.get(stack.node).and_then(|node| match node.frame {
            StackFrame::Place(_, place) => of.places.get(place),
            StackFrame::Words(_) => None,
        });
        if let Some(spot) = place.and_then(|place| spots.get_mut(&inlined(place))) {
            spot.stacks.push(*stack);
        }
    }
    for Spot { place, samples, stacks: own } in spots.into_values().filter(|of| of.samples > 0) {
        if own.iter().any(|stack| stack.occurrences > 0) {
            made.samples.extend(divided(samples, &own, of_event));
            continue;
        }
        for shared in divided(samples, stacks, of_event) {
            let parent = made.nodes.get(shared.node).and_then(|node| node.parent);
            made.nodes.push(StackNode { parent, frame: StackFrame::Place(image, place) });
            let node = made.nodes.len() - 1;
            made.samples.push(StackSample { node, ..shared });
        }
    }
}

/// The places of a procedure where the same functions are inlined.
#[derive(Default)]
struct Spot {
    /// The number of its first place.
    place: usize,
    samples: u64,
    /// The stacks that end in it.
    stacks: Vec<StackSample>,
}

/// Samples divided among stacks by their weights. Nothing is lost by rounding: the sum of the first
/// stacks is rounded.
fn divided(all: u64, stacks: &[StackSample], event: &Event) -> Vec<StackSample> {
    let whole: u128 = stacks.iter().map(|stack| u128::from(stack.occurrences)).sum();
    let (mut before, mut given) = (0_u128, 0_u64);
    let mut shared = Vec::with_capacity(stacks.len());
    for stack in stacks {
        before += u128::from(stack.occurrences);
        let until = u128::from(all) * before * 2 + whole;
        let until = until.checked_div(whole * 2).and_then(|until| u64::try_from(until).ok());
        let samples = until.unwrap_or(0).saturating_sub(given);
        given = given.saturating_add(samples);
        if samples > 0 {
            shared.push(StackSample { samples, occurrences: event.occurrences(samples), ..*stack });
        }
    }
    shared
}

/// The numbers of images and places.
struct Places(HashMap<(ImageId, u64), (usize, usize)>);

impl Places {
    fn of(images: &[Image]) -> Self {
        let mut places = HashMap::new();
        for (number, image) in images.iter().enumerate() {
            for (at, place) in image.places.iter().enumerate() {
                places.insert((image.id, place.offset), (number, at));
            }
        }
        Self(places)
    }

    fn frame(&self, frame: &Frame) -> StackFrame {
        match frame {
            Frame::Code(image, offset) => match self.0.get(&(*image, offset.0)) {
                Some((image, place)) => StackFrame::Place(*image, *place),
                None => StackFrame::Words("[unknown]".to_owned()),
            },
            Frame::Cut(cut) => StackFrame::Words(format!("[{}]", cut.name())),
            Frame::Wait(wait) => StackFrame::Words(format!("[{}]", wait.name())),
        }
    }
}

impl Resolved {
    /// The names of a frame: the procedure and the calls inlined in it, the innermost last.
    pub fn frame_names<'a>(&'a self, frame: &'a StackFrame) -> Vec<&'a str> {
        match frame {
            StackFrame::Words(words) => vec![words],
            StackFrame::Place(image, place) => {
                let image = self.images.get(*image);
                let place = image.and_then(|image| image.places.get(*place));
                image.zip(place).map(|(image, place)| image.functions(place)).unwrap_or_default()
            }
        }
    }

    /// The image and the place of a frame that is code.
    pub fn frame_place<'a>(&'a self, frame: &StackFrame) -> Option<(&'a Image, &'a super::Place)> {
        match frame {
            StackFrame::Words(_) => None,
            StackFrame::Place(image, place) => {
                let image = self.images.get(*image)?;
                Some((image, image.places.get(*place)?))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_profile::{resolved, with_stacks};
    use super::*;

    /// Each stack as `frame > frame: samples, occurrences`.
    fn shown(resolved: &Resolved) -> Vec<String> {
        let stack = |sample: &StackSample| {
            let mut names: Vec<&str> = resolved
                .stacks
                .frames(sample.node)
                .flat_map(|frame| resolved.frame_names(frame))
                .collect();
            names.reverse();
            let StackSample { samples, occurrences, .. } = sample;
            format!("{}: {samples}, {occurrences}", names.join(" > "))
        };
        resolved.stacks.samples.iter().map(stack).collect()
    }

    #[test]
    fn samples_of_a_procedure_are_divided_among_its_stacks() {
        let divided = with_stacks();
        let mut stacks = shown(&divided);
        stacks.sort();
        assert_eq!(
            stacks,
            [
                "[truncated] > evil\nname > ns::f(int): 3, 3000",
                "evil\nname > clear_page: 20, 20000",
                "evil\nname > ns::f(int) > [futex]: 1, 5000000",
                "evil\nname > ns::f(int): 9, 9000",
            ]
        );
        // With room for the first and the last of them only, the others lose their callers.
        let mut short = with_stacks();
        short.stacks.shorten(5);
        let mut stacks = shown(&short);
        stacks.sort();
        assert_eq!(
            stacks,
            [
                "[deeper] > ns::f(int): 3, 3000",
                "[deeper] > ns::f(int): 9, 9000",
                "evil\nname > clear_page: 20, 20000",
                "evil\nname > ns::f(int) > [futex]: 1, 5000000",
            ]
        );
        // Samples of another scope, and of procedures without stacks, stay at their places.
        let before = resolved();
        for event in 0..2 {
            let flat: u64 = divided.images.iter().map(|image| image.samples(event)).sum();
            let of_stacks = divided.stacks.samples.iter().filter(|of| of.event == event);
            let of_stacks: u64 = of_stacks.map(|of| of.samples).sum();
            let all: u64 = before.images.iter().map(|image| image.samples(event)).sum();
            assert_eq!((flat + of_stacks, of_stacks), (all, [32, 0][event]));
        }
        let off = &divided.events[2];
        assert_eq!((&*off.name, off.samples, off.period), ("off-cpu", 1, 0));
    }
}

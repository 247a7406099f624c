//! The samples of interpreters, divided among the functions that they ran.
//!
//! A sample in an interpreter's loop does not say which function the loop ran; a call stack does,
//! and only some samples have one. So the samples of each procedure of the interpreter are divided
//! in the proportion of the stacks that end in it: for each function those whose innermost frame is
//! the loop, at a place that dcpid saw interpret ([`INTERPRETED`]), called by the function. The
//! rest (stacks without the function's name) stays the procedure's own. Procedures that the
//! interpreter calls (a dictionary's look-up, the allocator) are no loops and keep their samples.
//! Code that a runtime's compiler made is divided likewise: it runs the function that it was made
//! for, and those that were inlined into it. So no sample is counted twice, and none is lost.
//!
//! How sure a function's part is: [`Tally::divided`](stats::tally::Tally::divided), and
//! `shared_code` for functions of Java that are inlined into each other. V8 tells of no instruction
//! at which a sample may be which function it is of: the part of a function is that of its code,
//! with what is inlined there.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use image::{ImageId, ImageOffset};
use model::{Frame, INTERPRETED, Language, Profile, SourcePlace, Stacks, Values};
use profiledb::Epoch;
use query::error::AnalysisError;
use query::load::{ImageSamples, Interpreted, Samples};
use query::problem::{self, Problem};
use query::select;
use query::stacks::ByEvent;
use stats::tally::{self, Doubt, Tally};

use crate::procedures::{self, Place, Places, Rows};
use crate::shared_code::{Function, SharedCode, function_of};

/// Unit of the weights in [`model::Value::squares`].
const SQUARES_UNIT: f64 = 1024.0;

/// The rows of the report, for which the variance of divided samples is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sure {
    /// Functions.
    Functions,
    /// Lines.
    Lines,
    /// Source files.
    Images,
}

/// Places of interpreters' loops, and what the loops ran.
pub type Loops = HashMap<ImageId, HashMap<ImageOffset, Language>>;

/// A place in a source file.
type Target = (ImageId, ImageOffset);

/// The stacks that end in a procedure of an interpreter.
#[derive(Debug, Default)]
struct Ended {
    /// Sum of the weights, and of their squares.
    weight: f64,
    squares: f64,
    /// Of those whose caller is an interpreted function, by its place.
    by_target: BTreeMap<Target, f64>,
    /// Of those functions that a compiler may have inlined: their callers in these stacks.
    callers: BTreeMap<Function, BTreeSet<Function>>,
}

/// A part of a procedure's samples: a place, the share of the samples, and the variance of their
/// occurrences.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Part {
    target: Target,
    share: f64,
    variance: f64,
}

/// Whether the epochs have places of interpreters.
pub fn any(epochs: &[Epoch]) -> bool {
    epochs.iter().any(|epoch| !images(epoch).is_empty())
}

fn images(epoch: &Epoch) -> BTreeSet<ImageId> {
    let keys = epoch.keys().unwrap_or_default().into_iter();
    keys.filter(|key| key.measure == INTERPRETED).map(|key| key.image).collect()
}

/// The places of interpreters in the epochs.
pub fn loops(epochs: &[Epoch], problems: &mut Vec<Problem>) -> Loops {
    let mut loops = Loops::new();
    for epoch in epochs {
        for image in images(epoch) {
            let observed = epoch.observed::<Values>(&INTERPRETED, &image);
            let observed = observed.unwrap_or_else(|error| {
                problem::add_unreadable(problems, error);
                Values::default()
            });
            let places = observed.iter().filter_map(|(value, _)| Language::of(value));
            loops.entry(image).or_default().extend(places);
        }
    }
    loops
}

/// The function that a stack's innermost frame interprets, with its language; None where the frame
/// is no interpreter's.
pub fn ran(loops: &Loops, innermost: Frame, caller: Frame) -> Option<(Target, Language)> {
    let (Frame::Code(image, offset), Frame::Code(file, place)) = (innermost, caller) else {
        return None;
    };
    let language = *loops.get(&image)?.get(&offset)?;
    // A source file is known by its name only, as a file that was gone is, which has no loops.
    (file.is_name() && !loops.contains_key(&file)).then_some(((file, place), language))
}

/// The call stacks by event, without the interpreters' loops as innermost frames: a stack then ends
/// in the script function that the loop ran, as its samples do. None where no samples were divided.
pub fn without_loops(
    samples: &Samples,
    by_event: &ByEvent,
    problems: &mut Vec<Problem>,
) -> Option<ByEvent> {
    if samples.loops.is_empty() {
        return None;
    }
    let loops = loops(&samples.epochs, problems);
    let is_divided = |innermost: Frame, caller: Frame| match innermost {
        Frame::Code(image, offset) if samples.loops.contains(&(image, offset)) => {
            ran(&loops, innermost, caller).is_some()
        }
        _ => false,
    };
    let without =
        |(event, stacks): (&String, &Stacks)| (event.clone(), stacks.without_innermost(is_divided));
    Some(by_event.iter().map(without).collect())
}

/// Moves the samples of interpreters to the functions that they ran, for events with call stacks;
/// the images of their source files come to the samples' images. Does nothing the second time.
pub fn divide(samples: &mut Samples, places: &Places, sure: Sure) {
    if !samples.interpreted.is_empty() {
        return;
    }
    let mut problems = std::mem::take(&mut samples.problems);
    let loops = loops(&samples.epochs, &mut problems);
    for event in 0..samples.events.len() {
        let name = samples.events.get(event).filter(|event| !event.is_exact());
        let Some(name) = name.map(|event| event.name.clone()).filter(|_| !loops.is_empty()) else {
            continue;
        };
        let stacks = samples.stacks(std::slice::from_ref(&name), &mut problems);
        if let Some(stacks) = stacks.ok().and_then(|mut by_event| by_event.remove(&name)) {
            divide_event(samples, (event, &stacks), (&loops, places, sure), &mut problems);
        }
    }
    samples.problems = problems;
}

fn divide_event(
    samples: &mut Samples,
    (event, stacks): (usize, &Stacks),
    (loops, places, sure): (&Loops, &Places, Sure),
    problems: &mut Vec<Problem>,
) {
    let mut given: BTreeMap<ImageId, Given> = BTreeMap::new();
    let mut ended = ended(stacks, loops, &mut samples.interpreted);
    let weight = samples.events.get(event).map_or(1.0, |event| event.weight);
    let mut moved = 0_u64;
    let mut shared = SharedCode::default();
    for at in 0..samples.images.len() {
        let Some(image) = samples.images.get(at) else { continue };
        let Some(ended) = ended.remove(&image.record.id) else { continue };
        let (procedures, of_offset) = by_procedure(samples, image, ended, places);
        let id = image.record.id;
        let tallies = image.profiles.get(event).map(|profile| {
            let mut tallies = vec![Tally::default(); procedures.len()];
            for (offset, tally) in profile.iter() {
                let sum = of_offset.get(&offset).and_then(|at| tallies.get_mut(*at));
                sum.into_iter().for_each(|sum| *sum += tally);
            }
            tallies
        });
        let Some(profile) =
            samples.images.get_mut(at).and_then(|image| image.profiles.get_mut(event))
        else {
            continue;
        };
        let tallies = tallies.unwrap_or_default();
        for (ended, tally) in procedures.iter().zip(&tallies) {
            if !ended.callers.is_empty() {
                shared.note(ended.times(tally.occurrences), &ended.callers);
            }
        }
        let divided: Vec<(Vec<Part>, (f64, f64))> = procedures
            .iter()
            .zip(tallies)
            .map(|(ended, tally)| parts(ended, tally.occurrences, sure))
            .collect();
        let of = |offset| {
            let procedure = *of_offset.get(&offset)?;
            let (_, (share, _)) = divided.get(procedure)?;
            (*share > 0.0).then_some((procedure, *share))
        };
        let first: BTreeMap<usize, ImageOffset> =
            of_offset.iter().rev().map(|(offset, at)| (*at, *offset)).collect();
        for (at, (taken, (parts, (_, variance)))) in
            profile.take(procedures.len(), of).iter().zip(&divided).enumerate()
        {
            moved += taken.iter().map(|(_, samples)| samples).sum::<u64>();
            hand_out(taken, parts, &mut given);
            if let Some(offset) = first.get(&at).filter(|_| !taken.is_empty()) {
                profile.doubt(*offset, Doubt { variance: *variance, ..Doubt::default() });
            }
        }
        profile.equalize(weight);
        samples.loops.extend(of_offset.into_keys().map(|offset| (id, offset)));
    }
    doubt_shared(&mut given, &shared, sure);
    receive(samples, (event, weight), given, problems);
    if let Some(event) = samples.events.get_mut(event).filter(|_| moved > 0) {
        let note = format!(
            "{moved} samples of interpreters are in the rows of the functions that they ran, in \
             the proportion of call stacks"
        );
        event.notes.push(note);
    }
    let images = &mut samples.images;
    images.retain(|image| image.profiles.iter().any(|profile| !profile.is_empty()));
}

/// Loads samples, all (of no images) or those of `images`, and divides them. As source files may be
/// asked for, interpreters are loaded too, whose samples the source files' images are given.
///
/// # Errors
/// Those of `load` with these images.
pub fn load_divided(
    load: impl Fn(&[String]) -> Result<Samples, AnalysisError>,
    images: &[String],
    (places, sure): (&Places, Sure),
) -> Result<Samples, AnalysisError> {
    let mut asked = load(images);
    if images.is_empty() {
        asked.iter_mut().for_each(|samples| divide(samples, places, sure));
        return asked;
    }
    let of_files = || {
        if asked.as_ref().is_ok_and(|samples| !any(&samples.epochs)) {
            return None;
        }
        let mut samples = load(&[]).ok()?;
        divide(&mut samples, places, sure);
        if samples.interpreted.is_empty() {
            return None;
        }
        let known = samples.images.iter().filter(|image| image.unresolved().is_none());
        let wanted = select::images(images, known.map(|image| &image.record)).ok()?;
        for image in &mut samples.images {
            image.wanted = wanted.contains(&image.record.id);
        }
        Some(samples)
    };
    of_files().map_or(asked, Ok)
}

/// The stacks that end in images with loops, by place; `files` gets the source files.
fn ended(
    stacks: &Stacks,
    loops: &Loops,
    files: &mut BTreeMap<ImageId, Interpreted>,
) -> BTreeMap<ImageId, BTreeMap<ImageOffset, Ended>> {
    let mut ended = BTreeMap::<ImageId, BTreeMap<ImageOffset, Ended>>::new();
    for (node, _, value) in stacks.values() {
        let mut frames = stacks.frames(node);
        let (Some(innermost), caller) = (frames.next(), frames.next()) else { continue };
        let Frame::Code(image, offset) = innermost else { continue };
        if !loops.contains_key(&image) {
            continue;
        }
        let of = ended.entry(image).or_default().entry(offset).or_default();
        of.weight += value.weight as f64;
        of.squares += value.squares as f64 * SQUARES_UNIT * SQUARES_UNIT;
        if let Some((target, language)) = caller.and_then(|of| ran(loops, innermost, of)) {
            *of.by_target.entry(target).or_default() += value.weight as f64;
            if language == Language::Java {
                let callers = frames.filter_map(|frame| match frame {
                    Frame::Code(image, offset) if image.is_name() => {
                        Some(function_of((image, offset)))
                    }
                    _ => None,
                });
                of.callers.entry(function_of(target)).or_default().extend(callers);
            }
            let file = files.entry(target.0).or_default();
            file.language = language;
            let stacks = file.stacks.entry(target.1).or_default();
            *stacks = stacks.saturating_add(value.stacks);
        }
    }
    ended
}

/// The stacks by procedure, and the procedures of the image's offsets by their places there.
fn by_procedure(
    samples: &Samples,
    image: &ImageSamples,
    ended: BTreeMap<ImageOffset, Ended>,
    places: &Places,
) -> (Vec<Ended>, BTreeMap<ImageOffset, usize>) {
    let mut offsets = image.offsets();
    offsets.extend(ended.keys());
    offsets.sort_unstable();
    offsets.dedup();
    // What has no name is said where the samples get theirs.
    let (located, _) = procedures::locate(samples, image, (&offsets, Rows::Procedures), places);
    let mut numbers: BTreeMap<Place, usize> = BTreeMap::new();
    let mut of_offset = BTreeMap::new();
    for (offset, located) in offsets.into_iter().zip(located) {
        let next = numbers.len();
        of_offset.insert(offset, *numbers.entry(located.place).or_insert(next));
    }
    let mut procedures: Vec<Ended> = numbers.iter().map(|_| Ended::default()).collect();
    for (offset, ended) in ended {
        let procedure = of_offset.get(&offset).and_then(|at| procedures.get_mut(*at));
        let Some(sum) = procedure else { continue };
        sum.weight += ended.weight;
        sum.squares += ended.squares;
        for (target, weight) in ended.by_target {
            *sum.by_target.entry(target).or_default() += weight;
        }
        for (function, callers) in ended.callers {
            sum.callers.entry(function).or_default().extend(callers);
        }
    }
    (procedures, of_offset)
}

impl Ended {
    /// The occurrences of each function, of all `occurrences`.
    fn times(&self, occurrences: f64) -> BTreeMap<Function, f64> {
        let mut times = BTreeMap::new();
        for (target, weight) in &self.by_target {
            *times.entry(function_of(*target)).or_default() += occurrences * weight / self.weight;
        }
        times
    }
}

/// The parts of a procedure's samples, which stand for `occurrences`; and the share of all parts
/// together, with the variance of the occurrences that stay.
fn parts(ended: &Ended, occurrences: f64, sure: Sure) -> (Vec<Part>, (f64, f64)) {
    if ended.weight <= 0.0 || ended.by_target.is_empty() {
        return (Vec::new(), (0.0, 0.0));
    }
    let stacks = match ended.squares > 0.0 {
        true => ended.weight * ended.weight / ended.squares,
        false => 1.0,
    };
    let variance = |share: f64| occurrences * occurrences * tally::share_variance(share, stacks);
    let key = |target: Target| match sure {
        Sure::Functions => function_of(target),
        Sure::Lines => (target.0, target.1.0),
        Sure::Images => (target.0, 0),
    };
    let mut weights: BTreeMap<(ImageId, u64), f64> = BTreeMap::new();
    for (target, weight) in &ended.by_target {
        *weights.entry(key(*target)).or_default() += weight;
    }
    let part = |(target, weight): (&Target, &f64)| {
        let of_key = weights.get(&key(*target)).copied().unwrap_or(*weight);
        // Those of one row add up to its variance.
        let variance = variance(of_key / ended.weight) * weight / of_key;
        Part { target: *target, share: weight / ended.weight, variance }
    };
    let all = (ended.by_target.values().sum::<f64>() / ended.weight).min(1.0);
    (ended.by_target.iter().map(part).collect(), (all, variance(all)))
}

/// What a source file is given: samples by weight and place, and what is not sure of them.
#[derive(Debug, Default)]
struct Given {
    samples: Vec<(f64, BTreeMap<ImageOffset, u64>)>,
    doubts: BTreeMap<ImageOffset, Doubt>,
}

/// Hands out what was taken from a procedure. What is rounded off at one place counts at the next.
fn hand_out(taken: &[(f64, u64)], parts: &[Part], given: &mut BTreeMap<ImageId, Given>) {
    let all: f64 = parts.iter().map(|part| part.share).sum();
    for (weight, samples) in taken {
        let (mut due, mut left) = (0.0, *samples);
        for (number, part) in (1..).zip(parts) {
            due += *samples as f64 * part.share / all;
            let handed = samples - left;
            let some = ((due - handed as f64).round() as u64).min(left);
            let some = if number == parts.len() { left } else { some };
            left -= some;
            let (file, place) = part.target;
            let given = given.entry(file).or_default();
            let of_weight = given.samples.iter().position(|(known, _)| known == weight);
            let of_weight = of_weight.unwrap_or_else(|| {
                given.samples.push((*weight, BTreeMap::new()));
                given.samples.len() - 1
            });
            if let Some((_, of_weight)) = given.samples.get_mut(of_weight).filter(|_| some > 0) {
                *of_weight.entry(place).or_default() += some;
            }
        }
    }
    for part in parts.iter().filter(|_| !taken.is_empty()) {
        let given = given.entry(part.target.0).or_default();
        let doubt = Doubt { variance: part.variance, ..Doubt::default() };
        *given.doubts.entry(part.target.1).or_default() += doubt;
    }
}

/// Doubts the parts of functions that share code.
fn doubt_shared(given: &mut BTreeMap<ImageId, Given>, shared: &SharedCode, sure: Sure) {
    for (function, (less, more)) in shared.shifts(sure == Sure::Images) {
        let Some(given) = given.get_mut(&function.0) else { continue };
        let range = SourcePlace::of(ImageOffset(function.1)).function();
        let range = ImageOffset(range.start)..ImageOffset(range.end);
        let places: Vec<&mut Doubt> =
            given.doubts.range_mut(range).map(|(_, doubt)| doubt).collect();
        // Each line may have all; those of one function add up to its own.
        let parts = if sure == Sure::Lines { 1.0 } else { places.len() as f64 };
        for doubt in places {
            *doubt += Doubt { variance: 0.0, less: less / parts, more: more / parts };
        }
    }
}

/// Adds what source files are given to their images, which are made if they are new.
fn receive(
    samples: &mut Samples,
    (event, weight): (usize, f64),
    given: BTreeMap<ImageId, Given>,
    problems: &mut Vec<Problem>,
) {
    let known: BTreeSet<ImageId> = samples.images.iter().map(|image| image.record.id).collect();
    let new = given.keys().filter(|id| !known.contains(id)).copied().collect();
    let described = samples.described(&new, problems);
    samples.images.extend(described);
    samples.images.sort_by_key(|image| image.record.id);
    for image in &mut samples.images {
        let Some(given) = given.get(&image.record.id) else { continue };
        let Some(profile) = image.profiles.get_mut(event) else { continue };
        for (weight, counts) in &given.samples {
            let counts = counts.iter().map(|(at, samples)| (*at, *samples));
            profile.add(*weight, Profile::from_counts(counts));
        }
        given.doubts.iter().for_each(|(at, doubt)| profile.doubt(*at, *doubt));
        profile.equalize(weight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(file: &str, first_line: u32, line: u32) -> Target {
        let place = SourcePlace { first_line, name: first_line, line };
        (ImageId::from_name(file, "python"), place.offset())
    }

    /// 100 stacks of weight 1024: 60 and 15 of two lines of `f`, 20 of `g`, 5 of no function.
    fn stacks() -> Ended {
        let weight = |stacks: f64| stacks * SQUARES_UNIT;
        Ended {
            weight: weight(100.0),
            squares: 100.0 * SQUARES_UNIT * SQUARES_UNIT,
            by_target: BTreeMap::from([
                (target("a.py", 1, 2), weight(60.0)),
                (target("a.py", 1, 3), weight(15.0)),
                (target("a.py", 9, 9), weight(20.0)),
            ]),
            callers: BTreeMap::new(),
        }
    }

    fn deviation_of(parts: &[Part], of: impl Fn(&Part) -> bool) -> f64 {
        let of = parts.iter().filter(|part| of(part));
        of.map(|part| part.variance).sum::<f64>().sqrt()
    }

    #[test]
    fn samples_are_divided_in_the_proportion_of_stacks() {
        let (parts, (all, _)) = parts(&stacks(), 1000.0, Sure::Functions);
        assert!((all - 0.95).abs() < 1e-9, "{all}");
        let mut given = BTreeMap::new();
        hand_out(&[(1.0, 950), (3.0, 7)], &parts, &mut given);
        let given = given.remove(&target("a.py", 1, 2).0).unwrap();
        let of = |at: usize| -> Vec<u64> { given.samples[at].1.values().copied().collect() };
        assert_eq!(of(0), [600, 150, 200]);
        assert_eq!(of(1).iter().sum::<u64>(), 7, "each once: {:?}", of(1));
    }

    /// The binomial deviation of 75 of 100 stacks is 4.3; of 60, 4.9.
    #[test]
    fn a_part_is_as_sure_as_its_stacks() {
        let of_f = |part: &Part| SourcePlace::of(part.target.1).first_line == 1;
        let (functions, _) = parts(&stacks(), 1000.0, Sure::Functions);
        assert!((deviation_of(&functions, of_f) - 43.0).abs() < 1.0);
        let (lines, _) = parts(&stacks(), 1000.0, Sure::Lines);
        let line = |part: &Part| SourcePlace::of(part.target.1).line == 2;
        assert!((deviation_of(&lines, line) - 49.0).abs() < 1.0);
        let (files, _) = parts(&stacks(), 1000.0, Sure::Images);
        assert!((deviation_of(&files, |_| true) - 22.0).abs() < 2.0, "95 of 100");
        let one = Ended {
            weight: 7.0,
            squares: 49.0,
            by_target: BTreeMap::from([(target("a.py", 1, 2), 7.0)]),
            callers: BTreeMap::new(),
        };
        let (only, (share, _)) = parts(&one, 1000.0, Sure::Functions);
        assert!(share == 1.0 && deviation_of(&only, |_| true) > 250.0, "one stack proves nothing");
        assert_eq!(parts(&Ended::default(), 1000.0, Sure::Lines), (Vec::new(), (0.0, 0.0)));
    }

    #[test]
    fn loops_are_called_by_files() {
        let python = ImageId::from_build_id(&[7]).unwrap();
        let at = ImageOffset(0x10);
        let loops = Loops::from([(python, HashMap::from([(at, Language::Python)]))]);
        let (file, place) = target("a.py", 1, 2);
        let in_loop = Frame::Code(python, at);
        let function = Frame::Code(file, place);
        assert_eq!(ran(&loops, in_loop, function), Some(((file, place), Language::Python)));
        assert_eq!(ran(&loops, in_loop, in_loop), None, "native code called it");
        let helper = Frame::Code(python, ImageOffset(0x20));
        assert_eq!(ran(&loops, helper, function), None, "a helper is no loop");
    }
}

//! Times of procedures with all that they called, callers and trees, of stacks that are known.

use calls::{
    Contexts, Direction, FrameOf, Neighbour, Shape, SubjectId, Timed, Tree, callees, callers,
};
use image::{ImageId, ImageOffset};
use model::{Cut, Frame, Stacks, Thread, Value, Wait};
use proptest::prelude::*;
use stats::Confidence;
use stats::tally::Tally;

const MAIN: SubjectId = 0;
const PARSE: SubjectId = 1;
const PRINT: SubjectId = 2;
const COPY: SubjectId = 3;
const RARE: SubjectId = 4;
const FUTEX: SubjectId = 5;
const TRUNCATED: SubjectId = 6;
const NO_STACK: SubjectId = 7;
const SUBJECTS: usize = 8;

fn frame(subject: SubjectId) -> Frame {
    match subject {
        FUTEX => Frame::Wait(Wait::Futex),
        TRUNCATED => Frame::Cut(Cut::Truncated),
        code => Frame::Code(ImageId::from_name("app", ""), ImageOffset(u64::from(code) * 16)),
    }
}

fn subject(frame: &Frame) -> SubjectId {
    match frame {
        Frame::Code(_, offset) => (offset.0 / 16) as SubjectId,
        Frame::Wait(_) => FUTEX,
        Frame::Cut(_) => TRUNCATED,
    }
}

fn stacks(all: &[(&[SubjectId], u64, u64)]) -> Contexts {
    let mut stacks = Stacks::new();
    for (frames, count, weight) in all {
        for _ in 0..*count {
            let frames = frames.iter().map(|subject| frame(*subject));
            stacks.add_stack(frames, &Thread::default(), Value::of_one(*weight));
        }
    }
    Contexts::of(&stacks, subject)
}

fn times(of: &[(SubjectId, u64)], weight: f64) -> (Vec<Tally>, Tally) {
    let mut times = vec![Tally::default(); SUBJECTS];
    for (subject, samples) in of {
        let of_subject = times.iter_mut().skip(*subject as usize).take(1);
        of_subject.for_each(|time| *time += Tally::of(*samples, weight));
    }
    let whole = times.iter().copied().sum();
    (times, whole)
}

fn sampled(contexts: Contexts, of: &[(SubjectId, u64)]) -> Timed {
    let (times, whole) = times(of, 1e6);
    Timed::sampled(contexts, &times, whole, NO_STACK)
}

fn shares(timed: &Timed) -> Vec<f64> {
    let all = timed.inclusive(SUBJECTS, Confidence::default());
    all.iter().map(|of| (of.share.value * 1e6).round() / 1e6).collect()
}

/// A quarter of the copies' stacks come from print; the samples say how long all copies took.
#[test]
fn samples_say_how_long_and_stacks_say_for_whom() {
    let contexts = stacks(&[
        (&[MAIN, PARSE, COPY], 3, 50_000_000),
        (&[MAIN, PRINT, COPY], 1, 50_000_000),
        (&[MAIN, PARSE], 2, 50_000_000),
    ]);
    let timed = sampled(contexts, &[(COPY, 600), (PARSE, 300), (RARE, 100)]);
    let expected = [0.9, 0.75, 0.15, 0.6, 0.1, 0.0, 0.0, 0.1];
    assert_eq!(shares(&timed), expected);
    let all = timed.inclusive(SUBJECTS, Confidence::default());
    for (of, value) in all.iter().zip(expected) {
        assert!(of.share.low <= value && value <= of.share.high, "{of:?}");
    }
    let print = all[PRINT as usize].share;
    // One stack of four: the interval is wide.
    assert!(print.low < 0.05 && print.high > 0.35, "{print:?}");
    // Six stacks cannot exclude that copies call it; six hundred say that they do not.
    let rare = all[RARE as usize].share;
    assert!(rare.low < 0.05 && rare.high > 0.2, "{rare:?}");
    assert_eq!(all[COPY as usize].stacks, 4);
    let more = stacks(&[
        (&[MAIN, PARSE, COPY], 300, 50_000_000),
        (&[MAIN, PRINT, COPY], 100, 50_000_000),
        (&[MAIN, PARSE], 200, 50_000_000),
    ]);
    let timed = sampled(more, &[(COPY, 600), (PARSE, 300), (RARE, 100)]);
    let rare = timed.inclusive(SUBJECTS, Confidence::default())[RARE as usize].share;
    assert!(rare.low > 0.08 && rare.high < 0.125, "{rare:?}");
}

#[test]
fn a_procedure_counts_once_in_a_stack_however_often_it_calls_itself() {
    let contexts = stacks(&[(&[MAIN, PARSE, PARSE, PRINT, PARSE, COPY], 4, 4096)]);
    let timed = Timed::weighted(contexts, SUBJECTS);
    assert_eq!(shares(&timed), [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
    let confidence = Confidence::default();
    let named = |all: Vec<Neighbour>| -> Vec<_> {
        all.iter().map(|of| (of.subject, of.estimate.share.value)).collect()
    };
    assert_eq!(named(callers(&timed, PARSE, &|_| false, confidence)), [(Some(MAIN), 1.0)]);
    assert_eq!(named(callees(&timed, PARSE, &|_| false, confidence)), [(Some(COPY), 1.0)]);
    assert_eq!(named(callees(&timed, COPY, &|_| false, confidence)), [(None, 1.0)]);
    assert_eq!(named(callers(&timed, MAIN, &|_| false, confidence)), [(None, 1.0)]);
}

#[test]
fn weights_are_the_time_where_there_is_nothing_else() {
    let contexts =
        stacks(&[(&[MAIN, PARSE, FUTEX], 2, 3_000_000), (&[TRUNCATED, COPY, FUTEX], 1, 2_000_000)]);
    let timed = Timed::weighted(contexts, SUBJECTS);
    assert_eq!(shares(&timed), [0.75, 0.75, 0.0, 0.25, 0.0, 1.0, 0.25, 0.0]);
    let all = timed.inclusive(SUBJECTS, Confidence::default());
    assert_eq!(all[MAIN as usize].time, 6e6);
    // Three stacks say little of a quarter.
    assert!(all[COPY as usize].share.high > 0.5, "{:?}", all[COPY as usize]);
}

/// Frames that were left out to bound a tree are time of procedures that have no stack.
#[test]
fn stacks_without_samples_stand_for_samples_without_stacks() {
    let contexts =
        stacks(&[(&[MAIN, COPY], 2, 1_000_000), (&[MAIN, PARSE, TRUNCATED], 1, 30_000_000)]);
    let timed = sampled(contexts, &[(COPY, 60), (RARE, 40)]);
    assert_eq!(shares(&timed), [0.9, 0.3, 0.0, 0.6, 0.1, 0.0, 0.3, 0.1]);
}

#[test]
fn trees_have_all_time_from_either_end() {
    let contexts = stacks(&[
        (&[MAIN, PARSE, COPY], 3, 50_000_000),
        (&[MAIN, PRINT, COPY], 1, 50_000_000),
        (&[MAIN, PARSE], 2, 50_000_000),
    ]);
    let timed = sampled(contexts, &[(COPY, 600), (PARSE, 300), (RARE, 100)]);
    let shown = |tree: &Tree| -> Vec<(usize, SubjectId, f64, f64)> {
        let node = |node: &calls::TreeNode| {
            let time = (node.estimate.time / 1e6).round();
            (node.depth, node.subject, time, (node.own / 1e6).round())
        };
        tree.nodes.iter().map(node).collect()
    };
    let confidence = Confidence::default();
    let down = Tree::of(&timed, Shape::of(Direction::TopDown), 0.0, confidence);
    assert_eq!(
        shown(&down),
        [
            (0, MAIN, 900.0, 0.0),
            (1, PARSE, 750.0, 300.0),
            (2, COPY, 450.0, 450.0),
            (1, PRINT, 150.0, 0.0),
            (2, COPY, 150.0, 150.0),
            (0, NO_STACK, 100.0, 0.0),
            (1, RARE, 100.0, 100.0),
        ]
    );
    let up = Tree::of(&timed, Shape::of(Direction::BottomUp), 0.14, confidence);
    assert_eq!(
        shown(&up),
        [
            (0, COPY, 600.0, 600.0),
            (1, PARSE, 450.0, 0.0),
            (2, MAIN, 450.0, 0.0),
            (1, PRINT, 150.0, 0.0),
            (2, MAIN, 150.0, 0.0),
            (0, PARSE, 300.0, 300.0),
            (1, MAIN, 300.0, 0.0),
        ]
    );
    assert_eq!((up.left_out_nodes, (up.left_out / 1e6).round()), (2, 100.0));
    // From a procedure on, of some depth, without the frames of another.
    let of = |direction, from, depth_max, without: &dyn Fn(SubjectId) -> bool| {
        let from_there = timed.through(from);
        let shape = Shape { direction, from: Some(from), depth_max, without: Some(without) };
        shown(&Tree::of(&from_there, shape, 0.0, confidence))
    };
    let all = |_| false;
    let parse = [(0, PARSE, 750.0, 300.0), (1, COPY, 450.0, 450.0)];
    assert_eq!(of(Direction::TopDown, PARSE, usize::MAX, &all), parse);
    assert_eq!(of(Direction::TopDown, PARSE, 1, &all), parse[..1]);
    assert_eq!(
        of(Direction::TopDown, PARSE, usize::MAX, &|subject| subject == COPY),
        [(0, PARSE, 750.0, 750.0)]
    );
    assert_eq!(
        of(Direction::BottomUp, PARSE, usize::MAX, &all),
        [(0, PARSE, 750.0, 300.0), (1, MAIN, 750.0, 0.0)]
    );
}

#[test]
fn threads_are_kept_apart_below_their_roots() {
    let mut all = Stacks::new();
    let thread = |tid| Thread { command: "w".into(), name: "w".into(), pid: 1, tid };
    all.add_stack([frame(MAIN), frame(COPY)], &thread(1), Value::of_one(3000));
    all.add_stack([frame(MAIN), frame(COPY)], &thread(2), Value::of_one(1000));
    let contexts = Contexts::of(&all, subject);
    let apart = contexts.by_thread(|thread| if thread.tid == 1 { PARSE } else { PRINT });
    let timed = sampled(apart, &[(COPY, 100)]);
    assert_eq!(shares(&timed), [1.0, 0.75, 0.25, 1.0, 0.0, 0.0, 0.0, 0.0]);
}

/// Of a thousand recordings of one program, intervals of 95 % hold the true share in about 95 of
/// 100, whether the share is large or small, and whether stacks are many or few.
#[test]
fn intervals_hold_the_truth_as_often_as_they_say() {
    // The subject that takes the time, its caller, and the share of the time.
    let paths: [(&[SubjectId], f64); 6] = [
        (&[MAIN, PARSE, COPY], 0.30),
        (&[MAIN, PRINT, COPY], 0.10),
        (&[MAIN, PARSE], 0.35),
        (&[MAIN, PRINT], 0.20),
        (&[MAIN, PRINT, RARE], 0.01),
        (&[RARE], 0.04),
    ];
    let through = |subject: SubjectId| -> f64 {
        paths.iter().filter(|(path, _)| path.contains(&subject)).map(|(_, share)| share).sum()
    };
    let mut random = fastrand::Rng::with_seed(7);
    for stacks_taken in [60, 600] {
        let runs = 1000;
        let mut held = [0; SUBJECTS];
        for _ in 0..runs {
            let mut draw = |count: u64| -> Vec<u64> {
                let mut drawn = vec![0; paths.len()];
                for _ in 0..count {
                    let mut at = random.f64();
                    let found = paths.iter().position(|(_, share)| {
                        at -= share;
                        at < 0.0
                    });
                    drawn[found.unwrap_or(0)] += 1;
                }
                drawn
            };
            let (samples, walked) = (draw(20_000), draw(stacks_taken));
            let of: Vec<(SubjectId, u64)> = paths
                .iter()
                .zip(samples)
                .map(|((path, _), samples)| (*path.last().unwrap(), samples))
                .collect();
            let all: Vec<(&[SubjectId], u64, u64)> = paths
                .iter()
                .zip(walked)
                .map(|((path, _), count)| (*path, count, 50_000_000))
                .collect();
            let timed = sampled(stacks(&all), &of);
            let found = timed.inclusive(SUBJECTS, Confidence::default());
            for subject in [PARSE, PRINT, COPY, RARE] {
                let share = found[subject as usize].share;
                let truth = through(subject);
                held[subject as usize] += usize::from(share.low <= truth && truth <= share.high);
            }
        }
        for subject in [PARSE, PRINT, COPY, RARE] {
            let held = held[subject as usize];
            assert!(held >= runs * 92 / 100, "{subject} with {stacks_taken}: {held} of {runs}");
        }
    }
}

proptest! {
    /// Whatever the stacks and the samples are: no time appears from nowhere, and none is lost.
    #[test]
    fn all_time_is_somewhere(
        all in proptest::collection::vec(
            (proptest::collection::vec(0_u32..7, 1..8), 0_u64..1 << 40), 0..20),
        of in proptest::collection::vec((0_u32..5, 1_u64..1000), 1..6),
    ) {
        let mut stacks = Stacks::new();
        for (frames, weight) in &all {
            let frames = frames.iter().map(|subject| frame(*subject));
            stacks.add_stack(frames, &Thread::default(), Value::of_one(*weight));
        }
        let timed = sampled(Contexts::of(&stacks, subject), &of);
        let whole = timed.whole().occurrences;
        let confidence = Confidence::default();
        for direction in [Direction::TopDown, Direction::BottomUp] {
            let tree = Tree::of(&timed, Shape::of(direction), 0.0, confidence);
            let own: f64 = tree.nodes.iter().map(|node| node.own).sum();
            let roots: f64 = tree.nodes.iter().filter(|node| node.parent.is_none())
                .map(|node| node.estimate.time).sum();
            prop_assert!((own - whole).abs() <= 1e-6 * whole, "{own} of {whole}");
            prop_assert!((roots - whole).abs() <= 1e-6 * whole, "{roots} of {whole}");
        }
        for of in timed.inclusive(SUBJECTS, confidence) {
            prop_assert!(of.share.low <= of.share.value && of.share.value <= of.share.high);
            prop_assert!((0.0..=1.0).contains(&of.share.low) && of.share.high <= 1.0);
        }
        for subject in 0..6 {
            let inclusive = timed.inclusive(SUBJECTS, confidence)[subject as usize].time;
            for neighbours in [callers, callees] {
                let found = neighbours(&timed, subject, &|of| of % 2 == 0, confidence);
                let sum: f64 = found.iter().map(|of| of.estimate.time).sum();
                prop_assert!((sum - inclusive).abs() <= 1e-6 * whole, "{sum} of {inclusive}");
            }
        }
    }
}

/// SpeedShop's `usertime` ends at the innermost procedure of the program: the kernel's work for it
/// and its waits are its own. A thread of the kernel has nothing else.
#[test]
fn what_the_kernel_does_for_a_procedure_is_the_procedures_own() {
    let (kernel, of) = (RARE, |subject| match subject {
        FUTEX => FrameOf::Wait,
        RARE | TRUNCATED | NO_STACK => FrameOf::Other,
        _ => FrameOf::Program,
    });
    let all = stacks(&[
        (&[MAIN, PARSE], 1, 1024),
        (&[MAIN, PARSE, kernel, FUTEX], 1, 2048),
        (&[MAIN, PARSE, kernel], 1, 4096),
        (&[kernel, FUTEX], 1, 8192),
        (&[TRUNCATED, kernel, FUTEX], 1, 16_384),
        (&[FUTEX], 1, 32_768),
    ]);
    let own = Timed::weighted(all, SUBJECTS).within_programs(of);
    let mut paths: Vec<(Vec<SubjectId>, u64)> = Vec::new();
    for entry in own.entries() {
        let path = own.path(entry.node).map(|(_, subject)| subject).collect();
        match paths.iter_mut().find(|(known, _)| *known == path) {
            Some((_, weight)) => *weight += entry.value.weight,
            None => paths.push((path, entry.value.weight)),
        }
    }
    paths.sort_by_key(|(_, weight)| *weight);
    let expected = [
        (vec![PARSE, MAIN], 7168),
        (vec![kernel], 8192),
        (vec![kernel, TRUNCATED], 16_384),
        (vec![FUTEX], 32_768),
    ];
    assert_eq!(paths, expected);
    // Where there are samples, they determine the time; stacks only divide it.
    let all = stacks(&[(&[MAIN, PARSE], 1, 1024), (&[MAIN, PARSE, kernel], 3, 1024)]);
    let own = sampled(all, &[(PARSE, 10), (kernel, 6)]).within_programs(of);
    let weight: u64 = own.entries().iter().map(|entry| entry.value.weight).sum();
    assert_eq!(weight, 16_000_000);
    assert_eq!(own.nodes().count(), 2);
}

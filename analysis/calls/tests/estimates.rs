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
    Timed::sampled(contexts, &times, whole, NO_STACK, |_| 0)
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
    // Nobody saw who calls rare. No procedure has one stack alone, so all six lend their callers.
    let expected = [1.0, 0.8, 0.166667, 0.6, 0.1, 0.0, 0.0, 0.1];
    assert_eq!(shares(&timed), expected);
    let all = timed.inclusive(SUBJECTS, Confidence::default());
    for (of, value) in all.iter().zip(expected) {
        assert!(of.share.low <= value && value <= of.share.high, "{of:?}");
    }
    let print = all[PRINT as usize].share;
    // One stack of four: the interval is wide.
    assert!(print.low < 0.05 && print.high > 0.35, "{print:?}");
    // Its own time is sure. Six stacks cannot exclude that copies call it; six hundred say that
    // they do not.
    let rare = all[RARE as usize].share;
    assert!(rare.low > 0.08 && rare.high > 0.17, "{rare:?}");
    assert_eq!(all[COPY as usize].stacks, 4);
    let more = stacks(&[
        (&[MAIN, PARSE, COPY], 300, 50_000_000),
        (&[MAIN, PRINT, COPY], 100, 50_000_000),
        (&[MAIN, PARSE], 200, 50_000_000),
    ]);
    let timed = sampled(more, &[(COPY, 600), (PARSE, 300), (RARE, 100)]);
    let rare = timed.inclusive(SUBJECTS, Confidence::default())[RARE as usize].share;
    assert!(rare.low > 0.08 && rare.high < 0.13, "{rare:?}");
}

#[test]
fn a_procedure_counts_once_in_a_stack_however_often_it_calls_itself() {
    let contexts = stacks(&[(&[MAIN, PARSE, PARSE, PRINT, PARSE, COPY], 4, 4096)]);
    let timed = Timed::weighted(contexts, SUBJECTS, None);
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
    let timed = Timed::weighted(contexts, SUBJECTS, None);
    assert_eq!(shares(&timed), [0.75, 0.75, 0.0, 0.25, 0.0, 1.0, 0.25, 0.0]);
    let all = timed.inclusive(SUBJECTS, Confidence::default());
    assert_eq!(all[MAIN as usize].time, 6e6);
    // Three stacks say little of a quarter.
    assert!(all[COPY as usize].share.high > 0.5, "{:?}", all[COPY as usize]);
}

/// A thread that waits regularly: of some waits no stack was taken. A thread whose waits were short
/// before has nothing that a long wait without a stack could be of.
#[test]
fn waits_without_a_stack_are_those_that_the_thread_waits_otherwise() {
    const SURPRISE: SubjectId = TRUNCATED;
    let thread = |tid| Thread { command: "w".into(), name: "w".into(), pid: 1, tid };
    let mut all = Stacks::new();
    for _ in 0..10 {
        let sleep = Value { stacks: 1, weight: 1 << 30, squares: 0 };
        all.add_stack([MAIN, PARSE, FUTEX].map(frame), &thread(1), sleep);
        let short = Value { stacks: 1, weight: 1 << 20, squares: 0 };
        all.add_stack([MAIN, PRINT, FUTEX].map(frame), &thread(1), short);
        all.add_stack([MAIN, COPY, FUTEX].map(frame), &thread(2), short);
    }
    let missed = Value { stacks: 2, weight: 2 << 30, squares: 0 };
    all.add_stack([frame(SURPRISE)], &thread(1), missed);
    all.add_stack([frame(SURPRISE)], &thread(2), missed);
    let timed = Timed::weighted(Contexts::of(&all, subject), SUBJECTS, Some(SURPRISE));
    let found = timed.inclusive(SUBJECTS, Confidence::default());
    let of = |subject: SubjectId| found[subject as usize];
    let whole = (14_u64 << 30) + (20 << 20);
    assert_eq!(timed.whole().occurrences, whole as f64);
    assert_eq!(of(PARSE).time, (12_u64 << 30) as f64);
    assert_eq!(of(SURPRISE).time, (2_u64 << 30) as f64);
    let parse = of(PARSE).share;
    assert!(parse.high - parse.low > 0.02 && parse.high - parse.low < 0.2, "{parse:?}");
    // The second thread's long waits may have been copy's, as far as is known.
    assert!(of(COPY).share.value < 0.01 && of(COPY).share.high > 0.14, "{:?}", of(COPY));
    assert!(of(PRINT).share.high < 0.05, "{:?}", of(PRINT));
}

/// Frames that were left out to bound a tree are time of procedures that have no stack.
#[test]
fn stacks_without_samples_stand_for_samples_without_stacks() {
    let contexts =
        stacks(&[(&[MAIN, COPY], 2, 1_000_000), (&[MAIN, PARSE, TRUNCATED], 1, 30_000_000)]);
    let timed = sampled(contexts, &[(COPY, 60), (RARE, 40)]);
    assert_eq!(shares(&timed), [1.0, 0.4, 0.0, 0.6, 0.1, 0.0, 0.3, 0.1]);
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
            (0, MAIN, 1000.0, 0.0),
            (1, PARSE, 800.0, 300.0),
            (2, COPY, 450.0, 450.0),
            (2, NO_STACK, 50.0, 50.0),
            (1, PRINT, 167.0, 0.0),
            (2, COPY, 150.0, 150.0),
            (2, NO_STACK, 17.0, 17.0),
            (1, NO_STACK, 33.0, 33.0),
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
    let parse = [(0, PARSE, 800.0, 300.0), (1, COPY, 450.0, 450.0), (1, NO_STACK, 50.0, 50.0)];
    assert_eq!(of(Direction::TopDown, PARSE, usize::MAX, &all), parse);
    assert_eq!(of(Direction::TopDown, PARSE, 1, &all), parse[..1]);
    assert_eq!(
        of(Direction::TopDown, PARSE, usize::MAX, &|subject| subject == COPY),
        [(0, PARSE, 800.0, 750.0), (1, NO_STACK, 50.0, 50.0)]
    );
    assert_eq!(
        of(Direction::BottomUp, PARSE, usize::MAX, &all),
        [(0, PARSE, 800.0, 300.0), (1, MAIN, 800.0, 0.0)]
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

/// A flat program: three thousand procedures, most without a stack among some hundred. What all
/// time is below is there whole, and the intervals of the others hold the truth.
#[test]
fn procedures_without_a_stack_borrow_callers() {
    const PROCEDURES: u32 = 3000;
    const FIRST: SubjectId = SUBJECTS as SubjectId;
    let subjects = SUBJECTS + PROCEDURES as usize;
    let mut random = fastrand::Rng::with_seed(11);
    // The n-th procedure takes as much as Zipf's law says. A third of them are called by parse
    // only, a third by print only, and others by both; copy is between print and some.
    let weights: Vec<f64> = (0..PROCEDURES).map(|at| 1.0 / (f64::from(at) + 10.0)).collect();
    let whole: f64 = weights.iter().sum();
    let by_print: Vec<f64> = (0..PROCEDURES)
        .map(|_| match random.u8(..3) {
            0 => 0.0,
            1 => 1.0,
            _ => random.f64(),
        })
        .collect();
    let is_below_copy: Vec<bool> = (0..PROCEDURES).map(|_| random.u8(..5) == 0).collect();
    let mut truth = [0.0; SUBJECTS];
    for ((weight, by_print), below_copy) in weights.iter().zip(&by_print).zip(&is_below_copy) {
        truth[MAIN as usize] += weight / whole;
        truth[PARSE as usize] += weight / whole * (1.0 - by_print);
        truth[PRINT as usize] += weight / whole * by_print;
        if *below_copy {
            truth[COPY as usize] += weight / whole * by_print;
        }
    }
    let mut cumulated = weights.clone();
    for at in 1..cumulated.len() {
        cumulated[at] += cumulated[at - 1];
    }
    for taken in [60, 500] {
        let runs = 200;
        let mut held = [0; SUBJECTS];
        let mut widths = [0.0; SUBJECTS];
        for _ in 0..runs {
            let mut draw = || {
                let at = random.f64() * whole;
                cumulated.partition_point(|sum| *sum < at).min(PROCEDURES as usize - 1)
            };
            let mut samples = vec![0; subjects];
            (0..20_000).for_each(|_| samples[SUBJECTS + draw()] += 1);
            let walked: Vec<usize> = (0..taken).map(|_| draw()).collect();
            let mut stacks = Stacks::new();
            for at in walked {
                let leaf = FIRST + at as SubjectId;
                let path: Vec<SubjectId> = if random.f64() >= by_print[at] {
                    vec![MAIN, PARSE, leaf]
                } else if is_below_copy[at] {
                    vec![MAIN, PRINT, COPY, leaf]
                } else {
                    vec![MAIN, PRINT, leaf]
                };
                let frames = path.iter().map(|of| {
                    Frame::Code(ImageId::from_name("app", ""), ImageOffset(u64::from(*of) * 16))
                });
                stacks.add_stack(frames, &Thread::default(), Value::of_one(50_000_000));
            }
            let times: Vec<Tally> = samples.iter().map(|of| Tally::of(*of, 1e6)).collect();
            let all = times.iter().copied().sum();
            let contexts = Contexts::of(&stacks, subject);
            let timed = Timed::sampled(contexts, &times, all, NO_STACK, |_| 0);
            let found = timed.inclusive(subjects, Confidence::default());
            assert!((found[MAIN as usize].share.value - 1.0).abs() < 1e-6);
            for subject in [MAIN, PARSE, PRINT, COPY].map(|subject| subject as usize) {
                let (share, truth) = (found[subject].share, truth[subject]);
                held[subject] +=
                    usize::from(share.low <= truth + 1e-9 && truth - 1e-9 <= share.high);
                widths[subject] += (share.high - share.low) / f64::from(runs);
            }
            // A procedure's own time is as sure as its samples are.
            let often = found[SUBJECTS + 10].share;
            assert!(often.low > 0.7 * often.value, "{often:?}");
        }
        for subject in [MAIN, PARSE, PRINT, COPY].map(|subject| subject as usize) {
            let (held, width) = (held[subject], widths[subject]);
            println!("{subject} with {taken}: {held} of {runs}, {width:.3} wide");
            assert!(held >= runs as usize * 92 / 100, "{subject} with {taken}: {held} of {runs}");
            // As wide as the stacks alone would make it.
            assert!(width < 4.5 * (0.25 / f64::from(taken)).sqrt(), "{subject}: {width}");
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
    let own = Timed::weighted(all, SUBJECTS, None).within_programs(of);
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

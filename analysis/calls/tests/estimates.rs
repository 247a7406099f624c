//! Times of procedures with all that they called, callers and trees, of stacks that are known.

use calls::{
    Contexts, Direction, FrameOf, Group, Neighbour, Shape, SubjectId, Timed, Tree, callees, callers,
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

fn contexts(stacks: &Stacks) -> Contexts {
    Contexts::of(stacks, [].into(), |frame| [subject(frame)])
}

fn stacks(all: &[(&[SubjectId], u64, u64)]) -> Contexts {
    let mut stacks = Stacks::new();
    for (frames, count, weight) in all {
        for _ in 0..*count {
            let frames = frames.iter().map(|subject| frame(*subject));
            stacks.add_stack(frames, &Thread::default(), Value::of_one(*weight));
        }
    }
    contexts(&stacks)
}

fn sampled(contexts: Contexts, of: &[(SubjectId, u64)]) -> Timed {
    sampled_in(contexts, of, |_| Group::default())
}

fn sampled_in(
    contexts: Contexts,
    of: &[(SubjectId, u64)],
    group: impl Fn(SubjectId) -> Group,
) -> Timed {
    let paths: Vec<[SubjectId; 1]> = of.iter().map(|(subject, _)| [*subject]).collect();
    let spots: Vec<(&[SubjectId], Tally)> =
        paths.iter().zip(of).map(|(path, (_, n))| (&path[..], Tally::of(*n, 1e6))).collect();
    Timed::sampled(contexts, SUBJECTS, &spots, NO_STACK, group)
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

/// One stack inside a system call was lent to a library without stacks: `path_openat` had 66 % with
/// what it called, 1 % being true.
#[test]
fn code_of_the_kernel_calls_no_library() {
    let stack = || stacks(&[(&[MAIN, PARSE, COPY], 1, 50_000_000)]);
    let group = |kernel: SubjectId| {
        move |subject| Group {
            number: match subject {
                MAIN => 1,
                RARE => 2,
                _ => 3,
            },
            is_kernel: kernel == COPY && matches!(subject, PARSE | COPY),
        }
    };
    let of = [(COPY, 10), (RARE, 990)];
    let timed = sampled_in(stack(), &of, group(COPY));
    assert_eq!(shares(&timed)[PARSE as usize], 0.01, "the kernel's own time");
    assert_eq!(shares(&timed)[RARE as usize], 0.99);
    let timed = sampled_in(stack(), &of, group(NO_STACK));
    assert_eq!(shares(&timed)[PARSE as usize], 1.0, "another library may call it");
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
    let thread =
        |tid| Thread { command: "w".into(), name: "w".into(), pid: 1, tid, ..Thread::default() };
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
    let timed = Timed::weighted(contexts(&all), SUBJECTS, Some(SURPRISE));
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
    let thread =
        |tid| Thread { command: "w".into(), name: "w".into(), pid: 1, tid, ..Thread::default() };
    all.add_stack([frame(MAIN), frame(COPY)], &thread(1), Value::of_one(3000));
    all.add_stack([frame(MAIN), frame(COPY)], &thread(2), Value::of_one(1000));
    let contexts = contexts(&all);
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
            let numbers: Vec<[SubjectId; 1]> = (0..subjects as SubjectId).map(|of| [of]).collect();
            let spots: Vec<(&[SubjectId], Tally)> = numbers
                .iter()
                .zip(&samples)
                .map(|(path, samples)| (&path[..], Tally::of(*samples, 1e6)))
                .collect();
            let timed =
                Timed::sampled(contexts(&stacks), subjects, &spots, NO_STACK, |_| Group::default());
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
        let timed = sampled(contexts(&stacks), &of);
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

const STEP: SubjectId = 8;
const MIX: SubjectId = 9;
const FUNCTIONS: usize = 10;

/// The path of a procedure's spot: itself, and with `depth` functions inlined into it.
fn spot(procedure: SubjectId, depth: usize) -> Vec<SubjectId> {
    [procedure, STEP, MIX].into_iter().take(depth + 1).collect()
}

/// Stacks of procedures, each with the depth of its spot; their number, and the weight of each.
type Spotted = (Vec<(SubjectId, usize)>, u64, u64);

fn spotted(all: &[Spotted]) -> Contexts {
    let app = ImageId::from_name("app", "");
    let mut stacks = Stacks::new();
    for (frames, count, weight) in all {
        for _ in 0..*count {
            let frames = frames.iter().map(|(procedure, depth)| {
                Frame::Code(app, ImageOffset(u64::from(*procedure) * 16 + *depth as u64))
            });
            stacks.add_stack(frames, &Thread::default(), Value::of_one(*weight));
        }
    }
    let inlined = (0..FUNCTIONS as SubjectId).map(|of| of >= STEP).collect();
    Contexts::of(&stacks, inlined, |frame| match frame {
        Frame::Code(_, offset) => spot((offset.0 / 16) as SubjectId, offset.0 as usize % 16),
        _ => Vec::new(),
    })
}

fn sampled_spots(contexts: Contexts, of: &[(SubjectId, usize, u64)]) -> Timed {
    let paths: Vec<Vec<SubjectId>> =
        of.iter().map(|(procedure, depth, _)| spot(*procedure, *depth)).collect();
    let spots: Vec<(&[SubjectId], Tally)> =
        paths.iter().zip(of).map(|(path, (.., n))| (&**path, Tally::of(*n, 1e6))).collect();
    Timed::sampled(contexts, FUNCTIONS, &spots, NO_STACK, |_| Group::default())
}

/// Samples say how much of a procedure's time is of a function inlined into it; stacks say for whom
/// it ran. A spot without a stack has the callers of the procedure's stacks.
#[test]
fn a_function_that_is_inlined_has_the_time_of_its_samples() {
    let stack =
        |caller, depth, count| (vec![(MAIN, 0), (caller, 0), (COPY, depth)], count, 1 << 20);
    let contexts = spotted(&[stack(PARSE, 0, 10), stack(PRINT, 2, 30), stack(PARSE, 2, 30)]);
    let timed = sampled_spots(contexts, &[(COPY, 0, 300), (COPY, 1, 100), (COPY, 2, 600)]);
    let all = timed.inclusive(FUNCTIONS, Confidence::default());
    let value = |of: SubjectId| (all[of as usize].share.value * 1e4).round() / 1e4;
    assert_eq!([COPY, STEP, MIX, MAIN].map(value), [1.0, 0.7, 0.6, 1.0]);
    // Of 600 samples half, of 300 all, and of 100 what the stacks without them say.
    assert!((value(PARSE) - 0.6571).abs() < 0.03, "{}", value(PARSE));
    let of = |found: Vec<Neighbour>| -> Vec<_> {
        found.iter().map(|of| (of.subject, (of.estimate.share.value * 100.0).round())).collect()
    };
    let without: &dyn Fn(SubjectId) -> bool = &|_| false;
    let confidence = Confidence::default();
    assert_eq!(of(callers(&timed, STEP, without, confidence)), [(Some(COPY), 100.0)]);
    assert_eq!(of(callers(&timed, MIX, without, confidence)), [(Some(STEP), 100.0)]);
    assert_eq!(of(callees(&timed, STEP, without, confidence)), [(Some(MIX), 86.0), (None, 14.0)]);
    assert_eq!(of(callees(&timed, COPY, without, confidence)), [(Some(STEP), 70.0), (None, 30.0)]);
    let print = callers(&timed, COPY, without, confidence)[1].estimate.share;
    assert!(print.low < 0.33 && print.high > 0.33, "{print:?}");
    // A procedure without a stack has its functions below callers that are lent.
    let timed = sampled_spots(spotted(&[stack(PARSE, 0, 1)]), &[(COPY, 0, 300), (RARE, 2, 700)]);
    let all = timed.inclusive(FUNCTIONS, confidence);
    let value = |of: SubjectId| (all[of as usize].share.value * 1e4).round() / 1e4;
    assert_eq!([MAIN, PARSE, RARE, STEP, MIX].map(value), [1.0, 1.0, 0.7, 0.7, 0.7]);
    let tree = Tree::of(&timed, Shape::of(Direction::BottomUp), 0.0, confidence);
    let drawn: Vec<_> = tree.nodes.iter().map(|node| (node.depth, node.subject)).collect();
    assert_eq!(drawn[..4], [(0, MIX), (1, STEP), (2, RARE), (3, NO_STACK)]);
}

/// The callers of a procedure are others when another function inlined into it runs: the stacks say
/// so, and intervals of 95 % hold the truth in about 95 of 100 recordings.
#[test]
fn intervals_of_inlined_functions_hold_the_truth() {
    // The caller of copy, the depth of its spot, and the share of the time.
    let truth =
        [(PARSE, 0, 0.25), (PARSE, 1, 0.15), (PRINT, 1, 0.05), (PRINT, 2, 0.53), (PARSE, 2, 0.02)];
    let sum = |wanted: &dyn Fn(SubjectId, usize) -> bool| -> f64 {
        truth.iter().filter(|(of, depth, _)| wanted(*of, *depth)).map(|(.., share)| share).sum()
    };
    let expected = [
        (PARSE, sum(&|caller, _| caller == PARSE)),
        (PRINT, sum(&|caller, _| caller == PRINT)),
        (STEP, sum(&|_, depth| depth > 0)),
        (MIX, sum(&|_, depth| depth > 1)),
    ];
    let mut random = fastrand::Rng::with_seed(23);
    let mut draw = |count: u64| -> Vec<u64> {
        let mut drawn = vec![0; truth.len()];
        for _ in 0..count {
            let mut at = random.f64();
            let found = truth.iter().position(|(.., share)| {
                at -= share;
                at < 0.0
            });
            drawn[found.unwrap_or(0)] += 1;
        }
        drawn
    };
    let runs = 1000;
    for taken in [20, 60, 600] {
        let mut held = [0; 4];
        for _ in 0..runs {
            let (samples, walked) = (draw(20_000), draw(taken));
            let stacks = truth.iter().zip(walked).map(|((caller, depth, _), count)| {
                (vec![(MAIN, 0), (*caller, 0), (COPY, *depth)], count, 50_000_000)
            });
            let of: Vec<_> =
                truth.iter().zip(samples).map(|((_, depth, _), n)| (COPY, *depth, n)).collect();
            let timed = sampled_spots(spotted(&stacks.collect::<Vec<_>>()), &of);
            let found = timed.inclusive(FUNCTIONS, Confidence::default());
            for ((subject, truth), held) in expected.iter().zip(&mut held) {
                let share = found[*subject as usize].share;
                *held += usize::from(share.low <= *truth && *truth <= share.high);
            }
        }
        for ((subject, _), held) in expected.iter().zip(held) {
            println!("{subject} with {taken}: {held} of {runs}");
            assert!(held >= runs * 92 / 100, "{subject} with {taken}: {held} of {runs}");
        }
    }
}

proptest! {
    /// No time appears from nowhere and none is lost, whatever is inlined where.
    #[test]
    fn all_time_of_inlined_functions_is_somewhere(
        all in proptest::collection::vec(
            (proptest::collection::vec((0_u32..5, 0_usize..3), 1..6), 1_u64..1 << 40), 0..20),
        of in proptest::collection::vec((0_u32..5, 0_usize..3, 1_u64..1000), 1..9),
    ) {
        let all: Vec<_> = all.into_iter().map(|(frames, weight)| (frames, 1, weight)).collect();
        let mut merged: Vec<(SubjectId, usize, u64)> = Vec::new();
        for (procedure, depth, n) in of {
            match merged.iter_mut().find(|known| (known.0, known.1) == (procedure, depth)) {
                Some(known) => known.2 += n,
                None => merged.push((procedure, depth, n)),
            }
        }
        let timed = sampled_spots(spotted(&all), &merged);
        let confidence = Confidence::default();
        let whole = timed.whole().occurrences;
        let inclusive = timed.inclusive(FUNCTIONS, confidence);
        // Stacks of procedures without samples have some of the time of others.
        let has_orphans = all.iter().filter_map(|(frames, ..)| frames.last()).any(|leaf| {
            merged.iter().all(|of| of.0 != leaf.0)
        });
        for direction in [Direction::TopDown, Direction::BottomUp] {
            let tree = Tree::of(&timed, Shape::of(direction), 0.0, confidence);
            let own: f64 = tree.nodes.iter().map(|node| node.own).sum();
            prop_assert!((own - whole).abs() <= 1e-6 * whole, "{own} of {whole}");
            // A function's own time is that of its samples.
            for (subject, depth) in [(STEP, 1), (MIX, 2)] {
                let own: f64 = tree.nodes.iter().filter(|node| node.subject == subject)
                    .map(|node| node.own).sum();
                let of = merged.iter().filter(|of| of.1 == depth);
                let samples: f64 = of.map(|of| of.2 as f64 * 1e6).sum();
                // From the top, procedures without a stack are not drawn.
                let is_all = direction == Direction::BottomUp && !has_orphans;
                let least = if is_all { samples } else { 0.0 };
                prop_assert!(own >= least - 1e-6 * whole, "{own} of {samples}");
                prop_assert!(has_orphans || own <= samples + 1e-6 * whole, "{own} of {samples}");
                let inclusive = inclusive[subject as usize].time;
                prop_assert!(has_orphans || inclusive >= samples - 1e-6 * whole);
            }
        }
        for of in &inclusive {
            prop_assert!(of.share.low <= of.share.value && of.share.value <= of.share.high);
        }
        for subject in [0, 1, STEP, MIX] {
            for neighbours in [callers, callees] {
                let found = neighbours(&timed, subject, &|_| false, confidence);
                let sum: f64 = found.iter().map(|of| of.estimate.time).sum();
                let inclusive = inclusive[subject as usize].time;
                prop_assert!((sum - inclusive).abs() <= 1e-6 * whole, "{sum} of {inclusive}");
            }
        }
    }
}

//! The observed or counted branches of an image.

use std::collections::{BTreeMap, HashMap};

use code::cfg::Part;
use estimate::times::{ExecutionNs, Pairs};
use estimate::truth::ExactCounts;
use estimate::{Branch, Outcomes, RemainingRounds, Sequence};
use image::{ImageOffset, Vaddr};
use model::{BranchOutcome, BranchRounds, EDGES, Edges, ExecutionTime, FIRST_EDGES, OUTCOMES};
use model::{ROUNDS, TAKEN, TIMES, Told, Values};
use names::procedures::Known;
use query::load::{ImageSamples, Samples};
use query::problem::{self, Problem};

/// The branches of an image that were seen.
pub(crate) fn branches(
    samples: &Samples,
    image: &ImageSamples,
    known: &Known,
    problems: &mut Vec<Problem>,
) -> Vec<Branch> {
    let mut counted: BTreeMap<(Vaddr, Vaddr), (u64, u64)> = BTreeMap::new();
    for epoch in &samples.epochs {
        let edges = |measure| epoch.observed::<Edges>(measure, &image.record.id);
        let both = edges(&EDGES).and_then(|all| Ok((all, edges(&FIRST_EDGES)?)));
        match both {
            Ok((all, first)) => {
                for ((from, to), count) in all.iter() {
                    let sum = counted
                        .entry((Vaddr(known.address(from)), Vaddr(known.address(to))))
                        .or_default();
                    sum.0 = sum.0.saturating_add(count);
                    sum.1 = sum.1.saturating_add(first.get((from, to)));
                }
            }
            Err(error) => problem::add_unreadable(problems, error),
        }
    }
    let sequences = sequences(samples, image, known, problems);
    let branch = |((from, to), (all, first)): ((Vaddr, Vaddr), (u64, u64))| Branch {
        from,
        to,
        first,
        later: all.saturating_sub(first),
        sequence: sequences.get(&from).copied(),
    };
    counted.into_iter().map(branch).collect()
}

/// What is known of branches that walks met again.
fn sequences(
    samples: &Samples,
    image: &ImageSamples,
    known: &Known,
    problems: &mut Vec<Problem>,
) -> HashMap<Vaddr, Sequence> {
    let mut all: HashMap<ImageOffset, BTreeMap<u8, Outcomes>> = HashMap::new();
    for epoch in &samples.epochs {
        match epoch.observed::<Values>(&OUTCOMES, &image.record.id) {
            Ok(outcomes) => {
                for (value, times) in outcomes.iter() {
                    let Some(outcome) = BranchOutcome::of(value) else { continue };
                    let of = all.entry(outcome.branch).or_default();
                    let of = of.entry(outcome.history).or_default();
                    let sum = if outcome.jumps { &mut of.jumped } else { &mut of.went_on };
                    *sum = sum.saturating_add(times);
                }
            }
            Err(error) => problem::add_unreadable(problems, error),
        }
    }
    let sequence = |(branch, outcomes): (ImageOffset, BTreeMap<u8, Outcomes>)| {
        let outcomes: Vec<(u8, Outcomes)> = outcomes.into_iter().collect();
        (Vaddr(known.address(branch)), Sequence::of(&outcomes))
    };
    all.into_iter().map(sequence).collect()
}

/// Times from one execution of an instruction to the next, in the order of addresses.
pub(crate) fn times(
    samples: &Samples,
    image: &ImageSamples,
    known: &Known,
    problems: &mut Vec<Problem>,
) -> Vec<ExecutionNs> {
    let mut all: BTreeMap<(Vaddr, bool), Pairs> = BTreeMap::new();
    for epoch in &samples.epochs {
        match epoch.observed::<Values>(&TIMES, &image.record.id) {
            Ok(times) => {
                for (value, pairs) in times.iter() {
                    let Some(time) = ExecutionTime::of(value) else { continue };
                    let at = Vaddr(known.address(time.instruction));
                    let of = all.entry((at, time.is_round)).or_default();
                    match time.told {
                        Told::Nothing => of.backwards = of.backwards.saturating_add(pairs),
                        Told::None => of.none = of.none.saturating_add(pairs),
                        Told::Ns(ns) => of.ns.push((ns, pairs)),
                    }
                }
            }
            Err(error) => problem::add_unreadable(problems, error),
        }
    }
    all.into_iter().filter_map(|(at, pairs)| ExecutionNs::of(at, &pairs)).collect()
}

/// Exact executions of an image's instructions, and of its jumps that were taken. None where they
/// were not counted.
pub(crate) fn exact(
    samples: &Samples,
    image: &ImageSamples,
    known: &Known,
    problems: &mut Vec<Problem>,
) -> Option<ExactCounts> {
    let event = samples.executed()?;
    let executed = image.equal(event).filter(|executed| executed.total() > 0)?;
    let at = |offset| Vaddr(known.address(offset));
    let executed = executed.iter().map(|(offset, count)| (at(offset), count)).collect();
    let mut jumped: HashMap<(Vaddr, Vaddr), u64> = HashMap::new();
    for epoch in &samples.epochs {
        match epoch.observed::<Edges>(&TAKEN, &image.record.id) {
            Ok(taken) => {
                for ((from, to), count) in taken.iter() {
                    let sum = jumped.entry((at(from), at(to))).or_default();
                    *sum = sum.saturating_add(count);
                }
            }
            Err(error) => problem::add_unreadable(problems, error),
        }
    }
    Some(ExactCounts { executed, jumped })
}

/// The branches that exact counts have, with the sequences that samples show.
pub(crate) fn counted(
    exact: &ExactCounts,
    (samples, image): (&Samples, &ImageSamples),
    known: &Known,
    problems: &mut Vec<Problem>,
) -> Vec<Branch> {
    let sequences = sequences(samples, image, known, problems);
    let branch = |((from, to), count): (&(Vaddr, Vaddr), &u64)| Branch {
        from: *from,
        to: *to,
        later: *count,
        sequence: sequences.get(from).copied(),
        ..Branch::default()
    };
    let mut branches: Vec<Branch> = exact.jumped.iter().map(branch).collect();
    branches.sort_unstable_by_key(|branch| (branch.from, branch.to));
    branches
}

/// The elements that are in a part of a procedure, of a list sorted by address.
pub(crate) fn within<'a, T>(all: &'a [T], part: &Part<'_>, at: fn(&T) -> Vaddr) -> &'a [T] {
    let end = Vaddr(part.begin.0.saturating_add(part.bytes.len() as u64));
    let before = |address| all.partition_point(|one| at(one) < address);
    all.get(before(part.begin)..before(end)).unwrap_or_default()
}

/// Observed numbers of rounds that the loops of an image had left.
pub(crate) fn remaining_rounds(
    samples: &Samples,
    image: &ImageSamples,
    known: &Known,
    problems: &mut Vec<Problem>,
) -> Vec<RemainingRounds> {
    let mut sum = Values::new();
    for epoch in &samples.epochs {
        match epoch.observed(&ROUNDS, &image.record.id) {
            Ok(rounds) => sum.merge(&rounds),
            Err(error) => problem::add_unreadable(problems, error),
        }
    }
    let remaining_rounds = |(value, count)| {
        let BranchRounds { branch, jumps, rounds } = BranchRounds::of(value)?;
        let branch = Vaddr(known.address(branch));
        Some(RemainingRounds {
            branch,
            jumps,
            rounds,
            width: BranchRounds::class_width(rounds),
            count,
        })
    };
    let mut remaining_rounds: Vec<RemainingRounds> =
        sum.iter().filter_map(remaining_rounds).collect();
    remaining_rounds.sort_by_key(|one| one.branch);
    remaining_rounds
}

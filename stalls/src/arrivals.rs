//! How blocks are come to, and how loops go round: what an instruction can have been stalled by
//! besides itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use code::cfg::{Edge, EdgeKind, Ending, Entered};
use code::isa::work::{Registers, Work};
use estimate::{Branch, RemainingRounds};

use crate::causes::{Arrival, BEFORE, LINE, PAGE};
use crate::explain::Timed;

/// Bytes of code that surely stay in the cache, and pages whose translation does, while a loop runs
/// that calls nothing.
const CACHED_BYTES: u64 = 16 << 10;
const CACHED_PAGES: u64 = 16;

/// How many blocks after one that was come to after a wrong way nothing is begun ahead yet, at
/// most: where they are of a few instructions.
const SHORT_BLOCKS: usize = 3;

/// Of each block, for how many of its executions at most the processor was on a wrong way shortly
/// before: until what comes after is ahead of what is done, a branch in a loop of short blocks is
/// waited for in each of them.
pub(crate) fn wrong(timed: &Timed<'_>, arrivals: &[Option<Arrival>]) -> Vec<f64> {
    let own: Vec<f64> =
        arrivals.iter().map(|arrival| arrival.map_or(0.0, |arrival| arrival.mispredicts)).collect();
    let mut wrong = own.clone();
    for _ in 0..SHORT_BLOCKS {
        let mut next = own.clone();
        for (number, next) in next.iter_mut().enumerate() {
            let executions =
                timed.estimate.blocks.get(number).map_or(0.0, |block| block.executions);
            for edge in timed.graph.into_of(number) {
                let Some(from) = timed.graph.edges().get(*edge).map(|edge| edge.from) else {
                    continue;
                };
                let flow = timed.estimate.edges.get(*edge).copied().unwrap_or(0.0);
                if executions > 0.0 && timed.work.get(from).is_some_and(|work| work.len() < BEFORE)
                {
                    *next += flow / executions * wrong.get(from).copied().unwrap_or(0.0);
                }
            }
            *next = next.min(1.0);
        }
        wrong = next;
    }
    wrong
}

/// A loop that has no other in it, by its number, and the registers of an address in it: how far
/// that moves on in a round, and the block where.
pub(crate) type Steps = BTreeMap<(usize, u64), (u64, usize)>;

/// Of loops that have no other in them: addresses of which one register has a constant added, once
/// a round, and the others stay.
pub(crate) fn steps(timed: &Timed<'_>) -> Steps {
    let mut written: BTreeMap<(usize, usize), Option<(u64, usize)>> = BTreeMap::new();
    let mut read: BTreeSet<(usize, u64)> = BTreeSet::new();
    let outer: BTreeSet<usize> =
        timed.loops.loops().iter().filter_map(|this| this.parent).collect();
    for (number, work) in timed.work.iter().enumerate() {
        let Some(inner) = timed.loops.innermost(number).filter(|inner| !outer.contains(inner))
        else {
            continue;
        };
        for work in work {
            if work.addresses.0 != 0 && !work.scaled {
                read.insert((inner, work.addresses.0));
            }
            // What is called keeps some registers; which, is not asked.
            let writes = if work.leaves() { u64::MAX } else { work.writes.0 };
            for register in Registers(writes).iter() {
                let added = work.adds.filter(|(what, _)| what.0 == 1 << register);
                let added = added.map(|(_, by)| (by.unsigned_abs(), number));
                let first = !written.contains_key(&(inner, register));
                written.insert((inner, register), added.filter(|_| first));
            }
        }
    }
    let mut steps = BTreeMap::new();
    for (inner, registers) in read {
        let moves = Registers(registers)
            .iter()
            .filter_map(|register| written.get(&(inner, register)).copied());
        let moves: Option<Vec<(u64, usize)>> = moves.collect();
        if let Some([step]) = moves.as_deref() {
            steps.insert((inner, registers), *step);
        }
    }
    steps
}

/// By how many bytes the address of an instruction moves on from one execution to the next, and how
/// often it begins anew.
pub(crate) fn step(
    timed: &Timed<'_>,
    (rounds, steps): (&[Round], &Steps),
    number: usize,
    work: &Work,
) -> Option<(f64, f64)> {
    let inner = timed.loops.innermost(number).filter(|_| !work.scaled)?;
    let (by, adds) = steps.get(&(inner, work.addresses.0))?;
    let executions =
        |block: usize| timed.estimate.blocks.get(block).map_or(0.0, |block| block.executions);
    // Who looks only now and then finds it moved on by more.
    let (own, moved) = (executions(number), executions(*adds));
    (own > 0.0).then(|| {
        (
            *by as f64 * (moved / own).max(1.0),
            (rounds.get(inner).map_or(own, |round| round.entries) / own).min(1.0),
        )
    })
}

/// A loop.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Round {
    /// How often it is entered.
    entries: f64,
    /// Bytes of its code.
    bytes: u64,
    /// Pages of its blocks, those that two blocks share twice.
    pages: u64,
    /// Its first byte and its last; none without blocks.
    span: Option<(u64, u64)>,
    /// Other code is executed in it, or it is entered elsewhere than at its header.
    open: bool,
}

impl Round {
    /// Adds other code of the loop.
    fn add(&mut self, other: &Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.pages = self.pages.saturating_add(other.pages);
        self.open |= other.open;
        if let Some((first, last)) = other.span {
            let (least, most) = self.span.unwrap_or((first, last));
            self.span = Some((least.min(first), most.max(last)));
        }
    }

    /// Pages that its code is in, at most.
    fn pages(&self) -> u64 {
        self.pages.min(
            self.span.map_or(0, |(first, last)| (last / PAGE - first / PAGE).saturating_add(1)),
        )
    }
}

/// All loops, by number.
pub(crate) fn rounds(timed: &Timed<'_>) -> Vec<Round> {
    let (graph, loops) = (timed.graph, timed.loops);
    let entries = estimate::rounds::entries(graph, loops, &timed.estimate.edges);
    let mut rounds: Vec<Round> =
        entries.into_iter().map(|entries| Round { entries, ..Round::default() }).collect();
    for (number, block) in graph.blocks().iter().enumerate() {
        let Some((inner, round)) =
            loops.innermost(number).and_then(|inner| Some((inner, rounds.get_mut(inner)?)))
        else {
            continue;
        };
        let (first, last) = (block.start.0, block.end.0.wrapping_sub(1).max(block.start.0));
        let bytes = last - first + 1;
        let leaves = timed.work.get(number).is_some_and(|work| work.iter().any(Work::leaves));
        // Where the procedure begins with a loop, that is one more entry of it.
        let begins = block.entered == Entered::Entry
            && loops.loops().get(inner).is_some_and(|this| this.header == number);
        let open = leaves || graph.is_entered(number) && !begins;
        let pages = last / PAGE - first / PAGE + 1;
        round.add(&Round { bytes, pages, span: Some((first, last)), open, ..Round::default() });
    }
    // Inner loops come after those around them.
    for number in (0..rounds.len()).rev() {
        let inner = rounds.get(number).copied().unwrap_or_default();
        let parent = loops.loops().get(number).and_then(|this| this.parent);
        parent
            .and_then(|parent| rounds.get_mut(parent))
            .into_iter()
            .for_each(|outer| outer.add(&inner));
    }
    rounds
}

/// What is known of each branch, by its address.
pub(crate) type Seen = HashMap<u64, (f64, Option<f64>)>;

/// How often each branch was seen; and how often at most it goes another way than the time before,
/// where samples tell.
pub(crate) fn seen(branches: &[Branch], remaining_rounds: &[RemainingRounds]) -> Seen {
    let mut seen: Seen = HashMap::new();
    let mut first: HashMap<u64, u64> = HashMap::new();
    for branch in branches {
        seen.entry(branch.from.0).or_default().0 += branch.first as f64 + branch.later as f64;
        let sum = first.entry(branch.from.0).or_default();
        *sum = sum.saturating_add(branch.first);
    }
    for (branch, changes) in estimate::rounds::direction_changes(remaining_rounds, |branch| {
        first.get(&branch.0).copied().unwrap_or(0)
    }) {
        seen.entry(branch.0).or_default().1 = Some(changes);
    }
    seen
}

/// How a block is come to; none where it is by going on from the instruction before.
pub(crate) fn arrival(
    timed: &Timed<'_>,
    number: usize,
    rounds: &[Round],
    seen: &Seen,
) -> Option<Arrival> {
    let graph = timed.graph;
    let block = graph.blocks().get(number)?;
    let executions =
        |block: usize| timed.estimate.blocks.get(block).map_or(0.0, |block| block.executions);
    let own = executions(number);
    let edges =
        || graph.into_of(number).iter().filter_map(|edge| Some((*edge, graph.edges().get(*edge)?)));
    let left =
        |from: usize| timed.work.get(from).and_then(|work| work.last()).is_some_and(Work::leaves);
    let follows = |edge: &Edge| {
        edge.kind == EdgeKind::Next
            && graph.blocks().get(edge.from).is_some_and(|from| from.end == block.start)
    };
    let entered = graph.is_entered(number);
    if !entered
        && edges().next().is_some()
        && edges().all(|(_, edge)| follows(edge) && !left(edge.from))
    {
        return None;
    }
    // What comes back from elsewhere may have been mispredicted: a return.
    if edges().any(|(_, edge)| left(edge.from)) || own <= 0.0 {
        return Some(Arrival::ANY);
    }
    let (mut mispredicts, mut taken, mut comes) = (0.0, 0.0, 0.0);
    for (edge, from) in edges() {
        let Some(before) = graph.blocks().get(from.from) else { continue };
        let flow = timed.estimate.edges.get(edge).copied().unwrap_or(0.0);
        comes += flow;
        if !matches!(from.kind, EdgeKind::Next | EdgeKind::NotTaken) {
            taken += flow;
        }
        if matches!(before.ending, Ending::Conditional | Ending::Indirect) {
            let all = executions(from.from);
            let (count, changes) = seen.get(&before.last.0).copied().unwrap_or_default();
            mispredicts += flow * wrong_part(flow / all, count, changes);
        }
    }
    // So many executions come from outside, in any way: an indirect call, a signal.
    let outside = if entered { (1.0 - comes / own).clamp(0.0, 1.0) } else { 0.0 };
    // Code in the line, or the page, that was executed just before is there.
    let near = |size: u64| {
        let mut from = edges().filter_map(|(_, edge)| graph.blocks().get(edge.from));
        from.all(|from| from.last.0 / size == block.start.0 / size)
    };
    let (code, pages) = loop_misses(timed, rounds, number, own);
    let part = |inside: f64| (inside + outside).min(1.0);
    Some(Arrival {
        code_misses: part(if near(LINE) { 0.0 } else { code }),
        page_misses: part(if near(PAGE) { 0.0 } else { pages }),
        mispredicts: part(mispredicts / own),
        // What keeps the code of a loop keeps its branches.
        resteers: part((taken / own).min(code)),
    })
}

/// Of the times that a branch goes one of its ways, which has `share` of its executions, the part
/// that is mispredicted at most. A predictor that knew only how often each way is taken, and
/// guessed each as often, would be wrong where it guessed one of the others; one that knew only the
/// last time would be wrong where that was another way, which as often leads to this way as from
/// it. A way that was not seen may be as often as three in what was (the rule of three: 95 %
/// confidence).
fn wrong_part(share: f64, seen: f64, changes: Option<f64>) -> f64 {
    let others = if share.is_finite() { (1.0 - share).max(0.0) } else { 1.0 };
    let changed = changes.filter(|_| share > 0.0).map_or(1.0, |changes| changes / 2.0 / share);
    (others.min(changed) + 3.0 / (seen + 3.0)).min(1.0)
}

/// How often, for each execution of a block, its code may not have been there: once each time that
/// the largest loop around it is entered that is small enough and executes no other code.
pub(crate) fn loop_misses(
    timed: &Timed<'_>,
    rounds: &[Round],
    number: usize,
    own: f64,
) -> (f64, f64) {
    let (mut code, mut pages) = (1.0, 1.0);
    let mut at = timed.loops.innermost(number);
    while let Some((number, round)) =
        at.and_then(|at| Some((at, rounds.get(at)?))).filter(|(_, round)| !round.open)
    {
        let misses = (round.entries / own).min(1.0);
        if round.bytes <= CACHED_BYTES {
            code = misses;
        }
        if round.pages() <= CACHED_PAGES {
            pages = misses;
        }
        if round.bytes > CACHED_BYTES && round.pages() > CACHED_PAGES {
            break;
        }
        at = timed.loops.loops().get(number).and_then(|this| this.parent);
    }
    (code, pages)
}

//! How control arrives at blocks, and how loops repeat: what may have stalled an instruction
//! besides itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use code::cfg::{Edge, EdgeKind, Ending, Entered};
use code::isa::work::{Registers, Work};
use estimate::{Branch, RemainingRounds};

use crate::causes::{Arrival, HISTORY_LEN, LINE_BYTES, PAGE_BYTES};
use crate::explain::ProfiledProcedure;

/// Bytes of a loop's code that certainly stay in the first level of the instruction cache while the
/// loop runs and calls nothing: half of the 32 KiB of nearly all processors. A larger value rules
/// out instruction cache misses that may have happened; a smaller one suspects them in vain.
const CACHED_CODE_BYTES: u64 = 16 << 10;
/// Pages of a loop's code whose translations certainly stay in the first-level instruction TLB
/// while the loop runs and calls nothing. Set by hand, far below the 64 entries and more of x86-64
/// processors. A larger value rules out TLB misses that may have happened.
const CACHED_CODE_PAGES: u64 = 16;

/// Most blocks after a mispredicted branch that run before the front end is ahead of execution
/// again: where blocks have a few instructions, more than one. Set by hand. A larger value suspects
/// mispredictions far from their branch.
const REFILL_BLOCKS: usize = 3;

/// For each block, an upper limit of the share of its executions that come shortly after a
/// misprediction. Until the front end is ahead again, a branch in a loop of short blocks is waited
/// for in each of them.
pub(crate) fn mispredicted_before(
    profiled: &ProfiledProcedure<'_>,
    arrivals: &[Option<Arrival>],
) -> Vec<f64> {
    let own: Vec<f64> =
        arrivals.iter().map(|arrival| arrival.map_or(0.0, |arrival| arrival.mispredicts)).collect();
    let mut mispredicted = own.clone();
    for _ in 0..REFILL_BLOCKS {
        let mut next = own.clone();
        for (number, next) in next.iter_mut().enumerate() {
            let executions =
                profiled.estimate.blocks.get(number).map_or(0.0, |block| block.executions);
            for edge in profiled.graph.into_of(number) {
                let Some(from) = profiled.graph.edges().get(*edge).map(|edge| edge.from) else {
                    continue;
                };
                let flow = profiled.estimate.edges.get(*edge).copied().unwrap_or(0.0);
                if executions > 0.0
                    && profiled.work.get(from).is_some_and(|work| work.len() < HISTORY_LEN)
                {
                    *next += flow / executions * mispredicted.get(from).copied().unwrap_or(0.0);
                }
            }
            *next = next.min(1.0);
        }
        mispredicted = next;
    }
    mispredicted
}

/// The stride of each address in an innermost loop, by the loop and the registers of the address:
/// how many bytes the address moves in a round, and the block where it moves.
pub(crate) type Strides = BTreeMap<(usize, u64), (u64, usize)>;

/// The strides of innermost loops, for addresses of which one register has a constant added to it
/// once a round and the others do not change.
pub(crate) fn strides(profiled: &ProfiledProcedure<'_>) -> Strides {
    let mut written: BTreeMap<(usize, usize), Option<(u64, usize)>> = BTreeMap::new();
    let mut read: BTreeSet<(usize, u64)> = BTreeSet::new();
    let outer: BTreeSet<usize> =
        profiled.loops.loops().iter().filter_map(|this| this.parent).collect();
    for (number, work) in profiled.work.iter().enumerate() {
        let Some(inner) = profiled.loops.innermost(number).filter(|inner| !outer.contains(inner))
        else {
            continue;
        };
        for work in work {
            if work.addresses.0 != 0 && !work.scaled {
                read.insert((inner, work.addresses.0));
            }
            // A callee preserves some registers, but which ones depends on its ABI: assume none.
            let writes = if work.leaves() { u64::MAX } else { work.writes.0 };
            for register in Registers(writes).iter() {
                let added = work.adds.filter(|(what, _)| what.0 == 1 << register);
                let added = added.map(|(_, by)| (by.unsigned_abs(), number));
                let first = !written.contains_key(&(inner, register));
                written.insert((inner, register), added.filter(|_| first));
            }
        }
    }
    let mut strides = BTreeMap::new();
    for (inner, registers) in read {
        let moves = Registers(registers)
            .iter()
            .filter_map(|register| written.get(&(inner, register)).copied());
        let moves: Option<Vec<(u64, usize)>> = moves.collect();
        if let Some([stride]) = moves.as_deref() {
            strides.insert((inner, registers), *stride);
        }
    }
    strides
}

/// The bytes by which the address of an instruction moves from one execution to the next, and the
/// share of executions in which the address begins again.
pub(crate) fn stride(
    profiled: &ProfiledProcedure<'_>,
    (loop_codes, strides): (&[LoopCode], &Strides),
    number: usize,
    work: &Work,
) -> Option<(f64, f64)> {
    let inner = profiled.loops.innermost(number).filter(|_| !work.scaled)?;
    let (by, adds) = strides.get(&(inner, work.addresses.0))?;
    let executions =
        |block: usize| profiled.estimate.blocks.get(block).map_or(0.0, |block| block.executions);
    // An instruction that is executed less often than its address moves finds the address moved by
    // several strides.
    let (own, moved) = (executions(number), executions(*adds));
    (own > 0.0).then(|| {
        (
            *by as f64 * (moved / own).max(1.0),
            (loop_codes.get(inner).map_or(own, |loop_code| loop_code.entries) / own).min(1.0),
        )
    })
}

/// The code of a loop, with its inner loops.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LoopCode {
    /// Executions of the loop's entry from outside.
    entries: f64,
    /// Bytes of the loop's code.
    bytes: u64,
    /// Sum over the loop's blocks of the pages that each touches: an upper limit of the pages.
    pages: u64,
    /// Addresses of the first and the last byte; `None` without blocks.
    span: Option<(u64, u64)>,
    /// Whether other code is executed in the loop, or the loop is entered other than at its header.
    open: bool,
}

impl LoopCode {
    /// Adds the code of a block or of an inner loop.
    fn add(&mut self, other: &Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.pages = self.pages.saturating_add(other.pages);
        self.open |= other.open;
        if let Some((first, last)) = other.span {
            let (least, most) = self.span.unwrap_or((first, last));
            self.span = Some((least.min(first), most.max(last)));
        }
    }

    /// An upper limit of the pages that the loop's code is in.
    fn pages(&self) -> u64 {
        self.pages.min(
            self.span.map_or(0, |(first, last)| {
                (last / PAGE_BYTES - first / PAGE_BYTES).saturating_add(1)
            }),
        )
    }
}

/// The code of all loops, by the loops' indices.
pub(crate) fn loop_codes(profiled: &ProfiledProcedure<'_>) -> Vec<LoopCode> {
    let (graph, loops) = (profiled.graph, profiled.loops);
    let entries = estimate::rounds::entries(graph, loops, &profiled.estimate.edges);
    let mut loop_codes: Vec<LoopCode> =
        entries.into_iter().map(|entries| LoopCode { entries, ..LoopCode::default() }).collect();
    for (number, block) in graph.blocks().iter().enumerate() {
        let Some((inner, loop_code)) =
            loops.innermost(number).and_then(|inner| Some((inner, loop_codes.get_mut(inner)?)))
        else {
            continue;
        };
        let (first, last) = (block.start.0, block.end.0.wrapping_sub(1).max(block.start.0));
        let bytes = last - first + 1;
        let leaves = profiled.work.get(number).is_some_and(|work| work.iter().any(Work::leaves));
        // A procedure that begins with a loop has its entry at the loop's header, which is just one
        // more entry of the loop.
        let begins = block.entered == Entered::Entry
            && loops.loops().get(inner).is_some_and(|this| this.header == number);
        let open = leaves || graph.is_entered(number) && !begins;
        let pages = last / PAGE_BYTES - first / PAGE_BYTES + 1;
        loop_code.add(&LoopCode {
            bytes,
            pages,
            span: Some((first, last)),
            open,
            ..LoopCode::default()
        });
    }
    // Inner loops have larger indices than the loops around them.
    for number in (0..loop_codes.len()).rev() {
        let inner = loop_codes.get(number).copied().unwrap_or_default();
        let parent = loops.loops().get(number).and_then(|this| this.parent);
        parent
            .and_then(|parent| loop_codes.get_mut(parent))
            .into_iter()
            .for_each(|outer| outer.add(&inner));
    }
    loop_codes
}

/// For each branch, by its address: its observed count, and an upper limit of its changes of
/// direction, or of its outcomes that those before do not tell, per execution, if samples show
/// that.
pub(crate) type BranchHistory = HashMap<u64, (f64, Option<f64>)>;

pub(crate) fn branch_history(
    branches: &[Branch],
    remaining_rounds: &[RemainingRounds],
) -> BranchHistory {
    let mut branch_history: BranchHistory = HashMap::new();
    let mut first: HashMap<u64, u64> = HashMap::new();
    for branch in branches {
        branch_history.entry(branch.from.0).or_default().0 +=
            branch.first as f64 + branch.later as f64;
        let sum = first.entry(branch.from.0).or_default();
        *sum = sum.saturating_add(branch.first);
    }
    for (branch, changes) in estimate::rounds::direction_changes(remaining_rounds, |branch| {
        first.get(&branch.0).copied().unwrap_or(0)
    }) {
        branch_history.entry(branch.0).or_default().1 = Some(changes);
    }
    for branch in branches {
        let limit = &mut branch_history.entry(branch.from.0).or_default().1;
        *limit = [*limit, branch.sequence.and_then(|sequence| sequence.untold)]
            .into_iter()
            .flatten()
            .reduce(f64::min);
    }
    branch_history
}

/// How control arrives at a block; `None` if only by going on from the instruction before.
pub(crate) fn arrival(
    profiled: &ProfiledProcedure<'_>,
    number: usize,
    loop_codes: &[LoopCode],
    branch_history: &BranchHistory,
) -> Option<Arrival> {
    let graph = profiled.graph;
    let block = graph.blocks().get(number)?;
    let executions =
        |block: usize| profiled.estimate.blocks.get(block).map_or(0.0, |block| block.executions);
    let own = executions(number);
    let edges =
        || graph.into_of(number).iter().filter_map(|edge| Some((*edge, graph.edges().get(*edge)?)));
    let returns_from = |from: usize| {
        profiled.work.get(from).and_then(|work| work.last()).is_some_and(Work::leaves)
    };
    let follows = |edge: &Edge| {
        edge.kind == EdgeKind::Next
            && graph.blocks().get(edge.from).is_some_and(|from| from.end == block.start)
    };
    let entered = graph.is_entered(number);
    if !entered
        && edges().next().is_some()
        && edges().all(|(_, edge)| follows(edge) && !returns_from(edge.from))
    {
        return None;
    }
    // A return from a call, which may be mispredicted.
    if edges().any(|(_, edge)| returns_from(edge.from)) || own <= 0.0 {
        return Some(Arrival::ANY);
    }
    let (mut mispredicts, mut taken, mut inflow) = (0.0, 0.0, 0.0);
    for (edge, from) in edges() {
        let Some(before) = graph.blocks().get(from.from) else { continue };
        let flow = profiled.estimate.edges.get(edge).copied().unwrap_or(0.0);
        inflow += flow;
        if !matches!(from.kind, EdgeKind::Next | EdgeKind::NotTaken) {
            taken += flow;
        }
        if matches!(before.ending, Ending::Conditional | Ending::Indirect) {
            let all = executions(from.from);
            let (count, changes) = branch_history.get(&before.last.0).copied().unwrap_or_default();
            mispredicts += flow * mispredict_rate_max(flow / all, count, changes);
        }
    }
    // Executions that no edge accounts for come from outside in an unknown way: an indirect call, a
    // signal.
    let outside = if entered { (1.0 - inflow / own).clamp(0.0, 1.0) } else { 0.0 };
    // Code in the cache line, or the page, of the instruction executed just before is present.
    let near = |size: u64| {
        let mut from = edges().filter_map(|(_, edge)| graph.blocks().get(edge.from));
        from.all(|from| from.last.0 / size == block.start.0 / size)
    };
    let (code, pages) = loop_misses(profiled, loop_codes, number, own);
    let with_outside = |inside: f64| (inside + outside).min(1.0);
    Some(Arrival {
        code_misses: with_outside(if near(LINE_BYTES) { 0.0 } else { code }),
        page_misses: with_outside(if near(PAGE_BYTES) { 0.0 } else { pages }),
        mispredicts: with_outside(mispredicts / own),
        // A loop whose code stays in the instruction cache keeps its branches in the branch target
        // buffer.
        resteers: with_outside((taken / own).min(code)),
    })
}

/// An upper limit of the share of mispredictions among the executions of a branch in one direction,
/// which has the part `share` of the branch's executions. Two predictors bound it:
///
/// * one that knows only the probability of each direction, and predicts each as often, is wrong
///   where it predicts another direction;
/// * one that predicts the last direction again is wrong where the direction changes, and half of
///   the changes lead to this direction.
///
/// Directions that were not observed may have three executions beside the `observed` ones (the rule
/// of three, 95 % confidence).
fn mispredict_rate_max(share: f64, observed: f64, changes: Option<f64>) -> f64 {
    let others = if share.is_finite() { (1.0 - share).max(0.0) } else { 1.0 };
    let changed = changes.filter(|_| share > 0.0).map_or(1.0, |changes| changes / 2.0 / share);
    (others.min(changed) + 3.0 / (observed + 3.0)).min(1.0)
}

/// Upper limits of instruction cache misses and instruction TLB misses per execution of a block:
/// one per entry of the largest loop around the block that is small enough to stay cached and
/// executes no other code.
pub(crate) fn loop_misses(
    profiled: &ProfiledProcedure<'_>,
    loop_codes: &[LoopCode],
    number: usize,
    own: f64,
) -> (f64, f64) {
    let (mut code, mut pages) = (1.0, 1.0);
    let mut at = profiled.loops.innermost(number);
    while let Some((number, loop_code)) =
        at.and_then(|at| Some((at, loop_codes.get(at)?))).filter(|(_, loop_code)| !loop_code.open)
    {
        let misses = (loop_code.entries / own).min(1.0);
        if loop_code.bytes <= CACHED_CODE_BYTES {
            code = misses;
        }
        if loop_code.pages() <= CACHED_CODE_PAGES {
            pages = misses;
        }
        if loop_code.bytes > CACHED_CODE_BYTES && loop_code.pages() > CACHED_CODE_PAGES {
            break;
        }
        at = profiled.loops.loops().get(number).and_then(|this| this.parent);
    }
    (code, pages)
}

//! The time of every instruction: what it takes at best, and what may have taken the rest.

use std::collections::BTreeMap;

use code::cfg::{Cfg, Loops};
use code::isa::work::Work;
use estimate::{Branch, Estimate, RemainingRounds};

use crate::arrivals::{arrival, loop_misses, rounds, seen, step, steps, wrong};
use crate::best::{Ways, best_cases};
use crate::causes::{Arrival, BEFORE, Cause, Past, Situation, Suspect, suspects};
use crate::machine::Machine;
use crate::scale::{Block, Scale, Steady};
use crate::schedule::{Course, Slot, Wait, schedule};

/// A procedure with its samples.
#[derive(Copy, Clone, Debug)]
pub struct Timed<'a> {
    /// Its graph.
    pub graph: &'a Cfg,
    /// The graph's loops.
    pub loops: &'a Loops,
    /// How often its blocks ran.
    pub estimate: &'a Estimate,
    /// The instructions of each block.
    pub work: &'a [Vec<Work>],
    /// Samples of each instruction of each block, of the time that it took.
    pub samples: &'a [Vec<f64>],
    /// Branches that were seen.
    pub branches: &'a [Branch],
    /// How often in a row branches were going to go the same way.
    pub remaining_rounds: &'a [RemainingRounds],
    /// Samples for each cycle of an execution, where samples of executed instructions tell.
    pub measured: Option<f64>,
}

/// Where the time of a procedure went.
#[derive(Clone, Debug, Default)]
pub struct Explained {
    /// Each instruction of each block.
    pub blocks: Vec<Vec<Explanation>>,
    /// What its time is told by; none without samples.
    pub scale: Option<Scale>,
    /// All of it.
    pub sums: Sums,
}

/// The time of an instruction. Cycles are of one execution.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Explanation {
    /// Its part of the best case.
    pub best: Slot,
    /// Cycles that it took, if the procedure is as far from its best case as most are
    /// ([`Scale::told`]); no more than a bound where that is not known.
    pub cycles: f64,
    /// And at most: in 19 of 20 procedures, and if its executions are as few beside those of others
    /// as they may be; infinite where that is not known.
    pub cycles_most: f64,
    /// What took more than the best case, and may have been: the largest first.
    pub culprits: Vec<Culprit>,
    /// Cycles that nothing explains.
    pub unexplained: f64,
}

/// What may have stalled an instruction.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Culprit {
    /// The cause.
    pub cause: Cause,
    /// The instruction that is to blame, its first byte.
    pub at: u64,
    /// Cycles for each execution: at least, if nothing else that is suspected took any.
    pub low: f64,
    /// And at most.
    pub high: f64,
}

/// Samples by what took them: figure 4 of the paper. What adds up to `samples`: `execution`,
/// `waits`, `dynamic`, `unexplained`, `error` and `unknown`, less `gain`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sums {
    /// All samples.
    pub samples: f64,
    /// What the best case takes for execution alone.
    pub execution: f64,
    /// What the best case waits for besides.
    pub waits: BTreeMap<Wait, f64>,
    /// What stalls took that have a suspect.
    pub dynamic: f64,
    /// Of causes: at least and at most. The upper ends hold even if the executions are as few as
    /// [`Scale::stalled`] says.
    pub causes: BTreeMap<Cause, (f64, f64)>,
    /// What stalls took that have none.
    pub unexplained: f64,
    /// What instructions took less than in the best case.
    pub gain: f64,
    /// What took more or less by no more than chance: more, on balance.
    pub error: f64,
    /// Of procedures of which it is not known how long an execution took: none of the above.
    pub unknown: f64,
}

impl Sums {
    /// Adds those of another procedure.
    pub fn add(&mut self, other: &Self) {
        for (sum, part) in [
            (&mut self.samples, other.samples),
            (&mut self.execution, other.execution),
            (&mut self.dynamic, other.dynamic),
            (&mut self.unexplained, other.unexplained),
            (&mut self.gain, other.gain),
            (&mut self.error, other.error),
            (&mut self.unknown, other.unknown),
        ] {
            *sum += part;
        }
        for (wait, samples) in &other.waits {
            *self.waits.entry(*wait).or_default() += samples;
        }
        for (cause, (low, high)) in &other.causes {
            let sum = self.causes.entry(*cause).or_default();
            (sum.0, sum.1) = (sum.0 + low, sum.1 + high);
        }
    }
}

/// Instructions that may retire in one cycle: samples tell of all of them where one of them is.
const GROUP: usize = 8;
/// Who may be off by a larger factor may be off by any.
const ANY: f64 = 100.0;
/// Standard deviations that numbers of samples may be off by chance.
const CHANCE: f64 = 2.0;

/// One instruction as it is looked at.
struct Line {
    block: usize,
    index: usize,
    address: u64,
    samples: f64,
    executions: f64,
    /// Standard deviation of the logarithm of those.
    spread: f64,
    best: Slot,
    suspects: Vec<Suspect>,
}

impl Line {
    /// Cycles of an execution that it waits at best.
    fn waits(&self) -> f64 {
        if self.best.wait == Wait::Nothing {
            0.0
        } else {
            (self.best.cycles - self.best.share).max(0.0)
        }
    }

    /// Cycles of an execution at worst.
    fn worst(&self) -> f64 {
        self.best.cycles + self.suspects.iter().map(|suspect| suspect.most).sum::<f64>()
    }
}

/// Explains the time of a procedure on a machine.
#[must_use]
pub fn explain(machine: &Machine, timed: &Timed<'_>) -> Explained {
    let ways = Ways::new(timed.graph, timed.loops, timed.estimate);
    let best = best_cases(&ways, machine, timed.work);
    let lines = lines(machine, timed, &ways, &best);
    let scale = match timed.measured {
        Some(measured) if measured.is_finite() && measured > 0.0 => Some(Scale::measured(measured)),
        _ => {
            let blocks = whole_blocks(&lines);
            let paced = timed.estimate.pace.and_then(|pace| Scale::paced(pace, &blocks));
            paced.or_else(|| Some(Scale::of(&blocks)?.unless_waiting(steady(&lines), &blocks)))
        }
    };
    let mut blocks: Vec<Vec<Explanation>> =
        timed.work.iter().map(|work| vec![Explanation::default(); work.len()]).collect();
    let mut sums = Sums { samples: lines.iter().map(|line| line.samples).sum(), ..Sums::default() };
    if let Some(scale) = scale {
        let mut causes = ByCause::default();
        let groups = lines.chunk_by(|a, b| a.block == b.block);
        for group in groups {
            let explanations = of_block(&ways, group, scale, (&mut sums, &mut causes));
            for (line, explanation) in group.iter().zip(explanations) {
                if let Some(place) =
                    blocks.get_mut(line.block).and_then(|block| block.get_mut(line.index))
                {
                    *place = explanation;
                }
            }
        }
        if !scale.is_known() {
            sums = Sums { samples: sums.samples, unknown: sums.samples, ..Sums::default() };
        }
        let all = Cause::ALL.into_iter().zip(causes);
        sums.causes = all.filter_map(|(cause, sum)| Some((cause, sum?))).collect();
    }
    Explained { blocks, scale, sums }
}

/// What causes took at least and at most, in the order of [`Cause::ALL`]; none of those that
/// nothing was suspected of.
type ByCause = [Option<(f64, f64)>; Cause::ALL.len()];

/// All instructions, with their suspects.
fn lines(machine: &Machine, timed: &Timed<'_>, ways: &Ways<'_>, best: &[Vec<Slot>]) -> Vec<Line> {
    let mut lines = Vec::with_capacity(timed.work.iter().map(Vec::len).sum());
    let rounds = rounds(timed);
    let steps = steps(timed);
    let seen = seen(timed.branches, timed.remaining_rounds);
    let arrivals: Vec<_> =
        (0..timed.work.len()).map(|number| arrival(timed, number, &rounds, &seen)).collect();
    let wrong = wrong(timed, &arrivals);
    for (number, work) in timed.work.iter().enumerate() {
        let Some(block) = timed.graph.blocks().get(number).filter(|block| !block.padding) else {
            continue;
        };
        let executions = timed.estimate.blocks.get(number).map_or(0.0, |block| block.executions);
        let mut past = Past::of(&ways.leading_to(number, BEFORE, timed.work));
        let spread = timed.estimate.blocks.get(number).map_or(0.0, |block| block.log_sd);
        let arrival = arrivals.get(number).copied().flatten();
        let crossing = loop_misses(timed, &rounds, number, executions);
        let mispredicts = wrong.get(number).copied().unwrap_or(0.0);
        let cold =
            if mispredicts > 0.0 { schedule(machine, work, Course::Cold) } else { Vec::new() };
        for ((index, own), address) in work.iter().enumerate().zip(timed.graph.instructions(number))
        {
            let after_call = index > 0 && work.get(index - 1).is_some_and(Work::leaves);
            let arrival = match index {
                0 => arrival,
                _ if after_call => Some(Arrival::ANY),
                _ => None,
            };
            let step = step(timed, (&rounds, &steps), number, own);
            let best =
                best.get(number).and_then(|block| block.get(index)).copied().unwrap_or_default();
            let situation =
                Situation { address: address.0, arrival, crossing, step, pressure: best.pressure };
            let mut suspects = suspects(machine, &past, own, &situation);
            past.push(own);
            // After a wrong way nothing is begun ahead: what takes long is waited for.
            let slower = cold.get(index).map_or(0.0, |cold| cold.cycles - best.cycles);
            if slower > 0.0 {
                let most = slower * mispredicts;
                match suspects.iter_mut().find(|suspect| suspect.cause == Cause::Mispredict) {
                    Some(known) => known.most += most,
                    None => {
                        suspects.push(Suspect { cause: Cause::Mispredict, behind: index + 1, most })
                    }
                }
            }
            let of = |all: &[Vec<f64>]| {
                all.get(number).and_then(|block| block.get(index)).copied().unwrap_or(0.0)
            };
            lines.push(Line {
                block: number,
                index,
                address: address.0,
                samples: of(timed.samples),
                executions,
                spread,
                best,
                suspects,
            });
        }
        debug_assert_eq!(block.instructions, work.len());
    }
    lines
}

/// Cycles that a suspect of memory can take at most so that its instruction is steady all the same:
/// as long as the second level of the cache takes.
const SHORT_WAIT: f64 = 20.0;

/// The instructions that do not wait for memory. Without a measured skid, samples land behind what
/// took the time, so the instruction after one that may wait is none of them.
fn steady(lines: &[Line]) -> Steady {
    let waits = |line: &Line| {
        line.suspects
            .iter()
            .any(|suspect| suspect.cause.is_of_memory() && suspect.most > SHORT_WAIT)
    };
    let (mut all, mut steady) = ((0.0, 0.0), (0.0, 0.0));
    for block in lines.chunk_by(|a, b| a.block == b.block) {
        let mut waited = false;
        for line in block {
            let own = waits(line);
            let (samples, best) = (line.samples, line.executions * line.best.cycles);
            all = (all.0 + samples, all.1 + best);
            if !own && !waited {
                steady = (steady.0 + samples, steady.1 + best);
            }
            waited = own;
        }
    }
    let part = |steady: f64, all: f64| if all > 0.0 { steady / all } else { 0.0 };
    Steady { samples: part(steady.0, all.0), best: part(steady.1, all.1) }
}

/// Each block as a whole.
fn whole_blocks(lines: &[Line]) -> Vec<Block> {
    let whole = |block: &[Line]| {
        let sum = |of: fn(&Line) -> f64| block.iter().map(of).sum::<f64>();
        let spread = block.first().map_or(0.0, |line| line.spread);
        Block {
            samples: sum(|line| line.samples),
            best: sum(|line| line.executions * line.best.cycles),
            // Executions may be fewer than they are told to be.
            worst: sum(|line| line.executions * line.worst()) * (2.0 * spread).exp(),
            spread,
        }
    };
    lines.chunk_by(|a, b| a.block == b.block).map(whole).collect()
}

/// The instructions of one block.
fn of_block(
    ways: &Ways<'_>,
    lines: &[Line],
    scale: Scale,
    (sums, causes): (&mut Sums, &mut ByCause),
) -> Vec<Explanation> {
    // In samples: what each took more than in the best case, or less.
    let expected = |line: &Line, scale: f64| line.executions * line.best.cycles * scale;
    let more_than = |scale: f64| {
        let mut over: Vec<f64> =
            lines.iter().map(|line| line.samples - expected(line, scale)).collect();
        pool(&mut over);
        over
    };
    let over = more_than(scale.told);
    // How often the instructions of a block were executed is known equally well.
    let (off, bounds) = unsure(lines.first().map_or(0.0, |line| line.spread), scale);
    let mut suspected = Suspected::new(lines, &over, scale);
    let mut explanations = Vec::with_capacity(lines.len());
    for (((at, line), over), surely) in
        lines.iter().enumerate().zip(&over).zip(more_than(scale.most))
    {
        let suspects = suspected.with_neighbours(at, line, *over);
        let best = expected(line, scale.told);
        let waited = line.executions * line.waits() * scale.told;
        sums.execution += best - waited;
        if waited > 0.0 {
            *sums.waits.entry(line.best.wait).or_default() += waited;
        }
        let cycle = line.executions * scale.told;
        let per_execution = |samples: f64| if cycle > 0.0 { samples / cycle } else { 0.0 };
        let by_chance = over.abs() < CHANCE * (best + 1.0).sqrt();
        let stall = if by_chance { 0.0 } else { over.max(0.0) };
        match by_chance {
            true => sums.error += over,
            false => sums.gain += (-over).max(0.0),
        }
        let most = |suspect: &Suspect, scale: f64| {
            if cycle > 0.0 { suspect.most * line.executions * scale } else { 0.0 }
        };
        let explained: f64 = suspects.iter().map(|(suspect, _)| most(suspect, scale.told)).sum();
        let unexplained = (stall - explained).max(0.0);
        sums.unexplained += unexplained;
        sums.dynamic += stall - unexplained;
        let mut culprits = Vec::with_capacity(suspects.len());
        for (number, (suspect, at)) in suspects.iter().enumerate() {
            let others = suspects.iter().enumerate().filter(|(other, _)| *other != number);
            // At least: if the executions are as many as in 19 of 20 procedures at most.
            let others: f64 = others.map(|(_, (other, _))| most(other, scale.most)).sum();
            let low = surely.min(stall) - unexplained - others;
            let high = stall.min(most(suspect, scale.told)).max(most_of(line, suspect, bounds));
            let low = low.clamp(0.0, high);
            if let Some(sum) = causes.get_mut(suspect.cause as usize) {
                let before = sum.unwrap_or_default();
                *sum = Some((before.0 + low, before.1 + high));
            }
            let (low, high) = (per_execution(low), per_execution(high));
            if high > 0.0 {
                let at = blamed(ways, lines, (line, *at), suspect);
                culprits.push(Culprit { cause: suspect.cause, at, low, high });
            }
        }
        culprits.sort_by(|a, b| b.high.total_cmp(&a.high));
        let cycles = per_execution(line.samples);
        explanations.push(Explanation {
            best: line.best,
            cycles,
            cycles_most: if off < ANY { cycles * off } else { f64::INFINITY },
            culprits,
            unexplained: per_execution(unexplained),
        });
    }
    explanations
}

/// By what factor cycles may be off, and from what to what the scale may be, by how well it is
/// known how often a block was executed.
fn unsure(spread: f64, scale: Scale) -> (f64, (f64, f64)) {
    let unsure = (2.0 * spread).exp();
    let off = (scale.told / scale.least).ln().hypot(2.0 * spread).exp();
    (off, (scale.stalled / unsure, scale.most * unsure))
}

/// The most samples that a suspect can have taken, however few the executions were: fewer of them
/// leave more to explain, but each can have been stalled for so long only. How many they are told
/// to be beside other blocks may be off, too: `least` and `most` are scales with that.
fn most_of(line: &Line, suspect: &Suspect, (least, most): (f64, f64)) -> f64 {
    let cycles = line.best.cycles + suspect.most;
    if line.executions <= 0.0 || !cycles.is_finite() || cycles <= 0.0 {
        return line.samples;
    }
    let scale = (line.samples / (line.executions * cycles)).min(most).max(least);
    let stall = line.samples - line.executions * line.best.cycles * scale;
    stall.min(suspect.most * line.executions * scale).max(0.0)
}

/// The suspects of the instructions of a block.
struct Suspected<'a> {
    lines: &'a [Line],
    scale: Scale,
    /// What suspects of each can still explain when they have explained their own instruction, and
    /// those before it.
    spare: Vec<f64>,
    /// Those of the last that was asked for.
    found: Vec<(Suspect, usize)>,
}

impl<'a> Suspected<'a> {
    fn new(lines: &'a [Line], over: &[f64], scale: Scale) -> Self {
        let mut this =
            Self { lines, scale, spare: Vec::with_capacity(lines.len()), found: Vec::new() };
        for (line, over) in lines.iter().zip(over) {
            this.spare.push((this.limit(line) - over.max(0.0)).max(0.0));
        }
        this
    }

    /// What an instruction's own suspects can explain.
    fn limit(&self, line: &Line) -> f64 {
        let cycles: f64 = line.suspects.iter().map(|suspect| suspect.most).sum();
        if line.executions > 0.0 { cycles * line.executions * self.scale.told } else { 0.0 }
    }

    /// The suspects of the instruction at a place, with the place of the instruction in the block
    /// that they are of: its own, and where they do not explain what it took, those of its
    /// neighbours. A sample lands a fixed number of instructions behind the one that took the time
    /// only in the rule. Instructions are asked for one after the other.
    fn with_neighbours(&mut self, at: usize, line: &Line, over: f64) -> &[(Suspect, usize)] {
        let mut open = over - self.limit(line);
        self.found.clear();
        self.found.extend(line.suspects.iter().map(|suspect| (*suspect, at)));
        for other in [at.checked_sub(1), Some(at + 1)].into_iter().flatten() {
            let (Some(neighbour), Some(spare)) = (self.lines.get(other), self.spare.get_mut(other))
            else {
                continue;
            };
            let lent = open.min(*spare);
            if lent <= 0.0 {
                continue;
            }
            (*spare, open) = (*spare - lent, open - lent);
            let cycles = lent / (line.executions * self.scale.told);
            for suspect in &neighbour.suspects {
                let most = suspect.most.min(cycles);
                match self.found.iter_mut().find(|(known, _)| known.cause == suspect.cause) {
                    Some((known, _)) => known.most += most,
                    None => self.found.push((Suspect { most, ..*suspect }, other)),
                }
            }
        }
        &self.found
    }
}

/// The address of the instruction that is to blame, so many before the one of the block's at `at`,
/// on the way that is taken most often. A block that is gone on to may come after a branch all the
/// same, some blocks before.
fn blamed(ways: &Ways<'_>, lines: &[Line], (line, at): (&Line, usize), suspect: &Suspect) -> u64 {
    if let Some(index) = at.checked_sub(suspect.behind) {
        return lines.get(index).map_or(line.address, |own| own.address);
    }
    let branch = matches!(suspect.cause, Cause::Mispredict | Cause::Resteer)
        .then(|| ways.branch_before(line.block));
    let before = || ways.address_before(line.block, suspect.behind - at);
    branch.flatten().or_else(before).map_or(line.address, |address| address.0)
}

/// What instructions that may have retired in one cycle took more and less is of all of them
/// together.
fn pool(over: &mut [f64]) {
    for at in 0..over.len() {
        for distance in 1..GROUP {
            for other in [at.checked_sub(distance), Some(at + distance)].into_iter().flatten() {
                let (Some(less), Some(more)) = (over.get(other).copied(), over.get(at).copied())
                else {
                    continue;
                };
                if less < 0.0 && more > 0.0 {
                    let moved = more.min(-less);
                    over.get_mut(at).into_iter().for_each(|more| *more -= moved);
                    over.get_mut(other).into_iter().for_each(|less| *less += moved);
                }
            }
        }
    }
}

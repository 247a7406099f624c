//! The time of every instruction: its best case, and what may have taken the rest.

use std::collections::BTreeMap;

use code::cfg::{Cfg, Loops};
use code::isa::work::Work;
use estimate::{Branch, Estimate, RemainingRounds};

use crate::arrivals::{
    arrival, branch_history, loop_codes, loop_misses, mispredicted_before, stride, strides,
};
use crate::best_case::{FrequentPaths, best_cases};
use crate::causes::{Arrival, Cause, HISTORY_LEN, History, Site, Suspect, suspects};
use crate::limits::{Nearby, Stall};
use crate::machine::Machine;
use crate::neighbours::NeighbourSuspects;
use crate::scale::{BlockTime, Scale};
use crate::schedule::{BestCase, TraceContext, Wait, schedule};

/// A procedure with its samples and its estimate.
#[derive(Copy, Clone, Debug)]
pub struct ProfiledProcedure<'a> {
    /// The control-flow graph.
    pub graph: &'a Cfg,
    /// The loops of `graph`.
    pub loops: &'a Loops,
    /// Estimated executions.
    pub estimate: &'a Estimate,
    /// The instructions of each block.
    pub work: &'a [Vec<Work>],
    /// Samples of each instruction of each block, attributed to the instruction that took the time.
    pub samples: &'a [Vec<f64>],
    /// Observed branches.
    pub branches: &'a [Branch],
    /// Samples by how many times in a row branches were going to go the same direction.
    pub remaining_rounds: &'a [RemainingRounds],
    /// The scale, where executions are known: by samples of retired instructions or exact counts.
    pub measured: Option<Scale>,
}

/// Where the time of a procedure went.
#[derive(Clone, Debug, Default)]
pub struct Explained {
    /// The instructions of each block.
    pub blocks: Vec<Vec<Explanation>>,
    /// Samples per cycle; `None` without samples.
    pub scale: Option<Scale>,
    /// The sums over all instructions.
    pub sums: TimeBreakdown,
}

/// The time of an instruction, in cycles per execution.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Explanation {
    /// The instruction's part of its block's best case.
    pub best: BestCase,
    /// Cycles per execution, by [`Scale::samples_per_cycle`]; a lower limit where the scale is
    /// unknown.
    pub cycles: f64,
    /// Upper limit of `cycles`: by the scale that holds for 19 of 20 procedures, and with as few
    /// executions as their standard deviation allows. Infinite where the scale is unknown.
    pub cycles_max: f64,
    /// Possible causes of the time beyond the best case, the largest first.
    pub culprits: Vec<Culprit>,
    /// Cycles beyond the best case that no suspect accounts for.
    pub unexplained: f64,
}

/// A cause that may have stalled an instruction, with the instruction to blame.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Culprit {
    /// The cause.
    pub cause: Cause,
    /// Address of the instruction to blame.
    pub at: u64,
    /// Fewest cycles per execution: what remains if all other suspects cost as much as they can.
    pub low: f64,
    /// Most cycles per execution.
    pub high: f64,
}

/// Samples by what took them (the paper's figure 4). `execution`, `waits`, `dynamic`,
/// `unexplained`, `error` and `unknown`, less `gain`, add up to `samples`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TimeBreakdown {
    /// All samples.
    pub samples: f64,
    /// Best case: the share of the issue width.
    pub execution: f64,
    /// Best case: waits beyond `execution`.
    pub waits: BTreeMap<Wait, f64>,
    /// Fewest and most samples of the whole best case, `execution` and `waits`, by the limits of
    /// the scale.
    pub best_case: (f64, f64),
    /// Stalls that have a suspect.
    pub dynamic: f64,
    /// Fewest and most samples of each cause. The upper limits hold even if executions are as few
    /// as [`Scale::lower_if_stalled`] says.
    pub causes: BTreeMap<Cause, (f64, f64)>,
    /// Fewest and most samples of all causes that are of data in memory ([`Cause::is_of_data`])
    /// together.
    pub of_data: (f64, f64),
    /// Stalls without a suspect.
    pub unexplained: f64,
    /// Samples that instructions have less than in their best case.
    pub gain: f64,
    /// Differences from the best case that chance explains: positive where samples are more.
    pub error: f64,
    /// All samples of procedures whose scale is unknown; these have no other part.
    pub unknown: f64,
}

/// Most instructions that retire in one cycle, on any processor here. Samples of a group that
/// retires together land on any of its instructions, so excess and deficit are evened out within
/// this distance. A larger value hides stalls of neighbours.
const RETIRE_GROUP_MAX: usize = 8;
/// Factor beyond which an uncertain number of cycles is reported without an upper limit. Set by
/// hand: a limit that far off says nothing.
const UNBOUNDED_FACTOR: f64 = 100.0;
/// Standard deviations by which samples may differ from the best case by chance: 95 % confidence. A
/// larger value calls small stalls chance.
const CHANCE_SDS: f64 = 2.0;

/// An instruction with its samples, its best case and its suspects.
pub(crate) struct Instruction {
    pub(crate) block: usize,
    pub(crate) index: usize,
    pub(crate) address: u64,
    pub(crate) samples: f64,
    pub(crate) executions: f64,
    /// Standard deviation of the logarithm of `executions`.
    pub(crate) log_sd: f64,
    pub(crate) best: BestCase,
    pub(crate) suspects: Vec<Suspect>,
}

impl Instruction {
    /// Cycles of the best case in which the instruction waits.
    fn wait_cycles(&self) -> f64 {
        if self.best.wait == Wait::Nothing {
            0.0
        } else {
            (self.best.cycles - self.best.issue_cycles).max(0.0)
        }
    }

    /// Samples that all executions have in the best case, at `scale` samples per cycle.
    fn best_samples(&self, scale: f64) -> f64 {
        self.executions * self.best.cycles * scale
    }

    /// Cycles with all suspected stalls at their most.
    fn worst_cycles(&self) -> f64 {
        self.best.cycles + self.suspects.iter().map(|suspect| suspect.cycles_max).sum::<f64>()
    }
}

/// Explains the time of a procedure on a machine.
pub fn explain(machine: &Machine, profiled: &ProfiledProcedure<'_>) -> Explained {
    let paths = FrequentPaths::new(profiled.graph, profiled.loops, profiled.estimate);
    let best = best_cases(&paths, machine, profiled.work);
    let instructions = instructions(machine, profiled, &paths, &best);
    let scale = match profiled.measured {
        Some(measured) => Some(measured),
        None => {
            let blocks = whole_blocks(&instructions);
            let by_pace = profiled.estimate.pace.and_then(|pace| Scale::from_pace(pace, &blocks));
            by_pace.or_else(|| Scale::unknown(&blocks))
        }
    };
    let mut blocks: Vec<Vec<Explanation>> =
        profiled.work.iter().map(|work| vec![Explanation::default(); work.len()]).collect();
    let mut sums = TimeBreakdown {
        samples: instructions.iter().map(|instruction| instruction.samples).sum(),
        ..TimeBreakdown::default()
    };
    if let Some(scale) = scale {
        let mut causes = ByCause::default();
        let groups = instructions.chunk_by(|a, b| a.block == b.block);
        for group in groups {
            let explanations =
                explain_block(&paths, group, (scale, machine.scatter()), (&mut sums, &mut causes));
            for (instruction, explanation) in group.iter().zip(explanations) {
                if let Some(place) = blocks
                    .get_mut(instruction.block)
                    .and_then(|block| block.get_mut(instruction.index))
                {
                    *place = explanation;
                }
            }
        }
        if !scale.is_known() {
            sums = TimeBreakdown {
                samples: sums.samples,
                unknown: sums.samples,
                of_data: sums.of_data,
                ..TimeBreakdown::default()
            };
        }
        let all = Cause::ALL.into_iter().zip(causes);
        sums.causes = all.filter_map(|(cause, sum)| Some((cause, sum?))).collect();
    }
    Explained { blocks, scale, sums }
}

/// Fewest and most samples of each cause, in the order of [`Cause::ALL`]; `None` for causes that no
/// instruction is suspected of.
type ByCause = [Option<(f64, f64)>; Cause::ALL.len()];

/// All instructions, with their suspects.
fn instructions(
    machine: &Machine,
    profiled: &ProfiledProcedure<'_>,
    paths: &FrequentPaths<'_>,
    best: &[Vec<BestCase>],
) -> Vec<Instruction> {
    let mut instructions = Vec::with_capacity(profiled.work.iter().map(Vec::len).sum());
    let loop_codes = loop_codes(profiled);
    let strides = strides(profiled);
    let branch_history = branch_history(profiled.branches, profiled.remaining_rounds);
    let arrivals: Vec<_> = (0..profiled.work.len())
        .map(|number| arrival(profiled, number, &loop_codes, &branch_history))
        .collect();
    let mispredicted = mispredicted_before(profiled, &arrivals);
    for (number, work) in profiled.work.iter().enumerate() {
        let Some(block) = profiled.graph.blocks().get(number).filter(|block| !block.padding) else {
            continue;
        };
        let executions = profiled.estimate.blocks.get(number).map_or(0.0, |block| block.executions);
        let mut history = History::of(&paths.leading_to(number, HISTORY_LEN, profiled.work));
        let log_sd = profiled.estimate.blocks.get(number).map_or(0.0, |block| block.log_sd);
        let arrival = arrivals.get(number).copied().flatten();
        let crossing = loop_misses(profiled, &loop_codes, number, executions);
        let mispredicts = mispredicted.get(number).copied().unwrap_or(0.0);
        let cold = if mispredicts > 0.0 {
            schedule(machine, work, TraceContext::Empty)
        } else {
            Vec::new()
        };
        for ((index, own), address) in
            work.iter().enumerate().zip(profiled.graph.instructions(number))
        {
            let after_call = index > 0 && work.get(index - 1).is_some_and(Work::leaves);
            let arrival = match index {
                0 => arrival,
                _ if after_call => Some(Arrival::ANY),
                _ => None,
            };
            let stride = stride(profiled, (&loop_codes, &strides), number, own);
            let best =
                best.get(number).and_then(|block| block.get(index)).copied().unwrap_or_default();
            let site = Site {
                address: address.0,
                arrival,
                crossing,
                stride,
                unit_contention: best.unit_contention,
            };
            let mut suspects = suspects(machine, &history, own, &site);
            history.push(own);
            // After a misprediction nothing was issued ahead, so latencies show that the best case
            // hides.
            let slower = cold.get(index).map_or(0.0, |cold| cold.cycles - best.cycles);
            if slower > 0.0 {
                add_suspect(&mut suspects, Cause::Mispredict, index + 1, slower * mispredicts);
            }
            let of = |all: &[Vec<f64>]| {
                all.get(number).and_then(|block| block.get(index)).copied().unwrap_or(0.0)
            };
            instructions.push(Instruction {
                block: number,
                index,
                address: address.0,
                samples: of(profiled.samples),
                executions,
                log_sd,
                best,
                suspects,
            });
        }
        debug_assert_eq!(block.instructions, work.len());
    }
    instructions
}

/// Adds cycles to a suspected cause, or the suspect itself.
fn add_suspect(suspects: &mut Vec<Suspect>, cause: Cause, distance: usize, cycles_max: f64) {
    match suspects.iter_mut().find(|suspect| suspect.cause == cause) {
        Some(known) => {
            known.cycles_max += cycles_max;
            known.usual_cycles_max += cycles_max;
        }
        None => {
            suspects.push(Suspect { cause, distance, cycles_max, usual_cycles_max: cycles_max });
        }
    }
}

/// Samples and cycles of each block.
fn whole_blocks(instructions: &[Instruction]) -> Vec<BlockTime> {
    let whole = |block: &[Instruction]| {
        let sum = |of: fn(&Instruction) -> f64| block.iter().map(of).sum::<f64>();
        let log_sd = block.first().map_or(0.0, |instruction| instruction.log_sd);
        BlockTime {
            samples: sum(|instruction| instruction.samples),
            best_cycles: sum(|instruction| instruction.executions * instruction.best.cycles),
            // True executions may be more than estimated, by two standard deviations.
            worst_cycles: sum(|instruction| instruction.executions * instruction.worst_cycles())
                * (2.0 * log_sd).exp(),
        }
    };
    instructions.chunk_by(|a, b| a.block == b.block).map(whole).collect()
}

fn explain_block(
    paths: &FrequentPaths<'_>,
    instructions: &[Instruction],
    (scale, scatter): (Scale, usize),
    (sums, causes): (&mut TimeBreakdown, &mut ByCause),
) -> Vec<Explanation> {
    let over = excess(instructions, scale.samples_per_cycle);
    // All instructions of a block have the same executions.
    let (factor, bounds) =
        uncertainty(instructions.first().map_or(0.0, |instruction| instruction.log_sd), scale);
    let over_at_lowest = excess(instructions, bounds.0);
    let mut suspected = NeighbourSuspects::new(instructions, &over, scale);
    // Where it is not known which instruction of several took the time, each may have taken all of
    // it, but together they took no more than there is.
    let all: f64 = instructions.iter().map(|instruction| instruction.samples).sum();
    let (mut of_block, mut of_data) = (ByCause::default(), (0.0, 0.0));
    let mut explanations = Vec::with_capacity(instructions.len());
    for (((at, instruction), over), over_at_upper) in
        instructions.iter().enumerate().zip(&over).zip(excess(instructions, scale.upper))
    {
        let suspects = suspected.with_neighbours(at, instruction, *over);
        let best = instruction.best_samples(scale.samples_per_cycle);
        let waited = instruction.executions * instruction.wait_cycles() * scale.samples_per_cycle;
        sums.execution += best - waited;
        sums.best_case.0 += best * scale.lower / scale.samples_per_cycle.max(f64::MIN_POSITIVE);
        sums.best_case.1 += best * scale.upper / scale.samples_per_cycle.max(f64::MIN_POSITIVE);
        if waited > 0.0 {
            *sums.waits.entry(instruction.best.wait).or_default() += waited;
        }
        let cycle = instruction.executions * scale.samples_per_cycle;
        let per_execution = |samples: f64| if cycle > 0.0 { samples / cycle } else { 0.0 };
        let by_chance = over.abs() < CHANCE_SDS * (best + 1.0).sqrt();
        let stall = if by_chance { 0.0 } else { over.max(0.0) };
        match by_chance {
            true => sums.error += over,
            false => sums.gain += (-over).max(0.0),
        }
        let nearby = Nearby::of(instructions, at, scatter, (&over_at_lowest, scale.upper));
        let limited = Stall { instruction, scale, bounds, samples: stall, sure: 0.0, nearby };
        let explained: f64 = suspects.iter().map(|(suspect, _)| limited.most(suspect)).sum();
        let unexplained = (stall - explained).max(0.0);
        sums.unexplained += unexplained;
        sums.dynamic += stall - unexplained;
        let limited = Stall { sure: over_at_upper.min(stall) - unexplained, ..limited };
        let mut culprits = Vec::with_capacity(suspects.len());
        for (number, (suspect, at)) in suspects.iter().enumerate() {
            let others = suspects.iter().enumerate().filter(|(other, _)| *other != number);
            let (low, high) = limited.limits(suspect, others.map(|(_, (other, _))| other));
            if let Some(sum) = of_block.get_mut(suspect.cause as usize) {
                let before: (f64, f64) = sum.unwrap_or_default();
                *sum = Some((before.0 + low, (before.1 + high).min(all)));
            }
            let (low, high) = (per_execution(low), per_execution(high));
            if high > 0.0 {
                let at = culprit_address(paths, instructions, (instruction, *at), suspect);
                culprits.push(Culprit { cause: suspect.cause, at, low, high });
            }
        }
        let (low, high) = limited.limits_of_data(suspects).unwrap_or_default();
        of_data = (of_data.0 + low, of_data.1 + high);
        culprits.sort_by(|a, b| b.high.total_cmp(&a.high));
        let cycles = per_execution(instruction.samples);
        explanations.push(Explanation {
            best: instruction.best,
            cycles,
            cycles_max: if factor < UNBOUNDED_FACTOR { cycles * factor } else { f64::INFINITY },
            culprits,
            unexplained: per_execution(unexplained),
        });
    }
    for (sum, (low, high)) in
        causes.iter_mut().zip(of_block).filter_map(|(sum, of_block)| Some((sum, of_block?)))
    {
        let before = sum.unwrap_or_default();
        *sum = Some((before.0 + low, before.1 + high));
    }
    sums.of_data = (sums.of_data.0 + of_data.0, sums.of_data.1 + of_data.1.min(all));
    explanations
}

/// Samples of each instruction of a block beyond its best case; negative where it took less.
/// `scale` is in samples per cycle.
fn excess(instructions: &[Instruction], scale: f64) -> Vec<f64> {
    let own = |instruction: &Instruction| instruction.samples - instruction.best_samples(scale);
    let mut excess: Vec<f64> = instructions.iter().map(own).collect();
    pool_retire_groups(&mut excess);
    excess
}

/// The factor by which cycles may be off, and the lowest and highest scale, from the standard
/// deviation of a block's executions.
fn uncertainty(log_sd: f64, scale: Scale) -> (f64, (f64, f64)) {
    let executions = (2.0 * log_sd).exp();
    let factor = (scale.samples_per_cycle / scale.lower).ln().hypot(2.0 * log_sd).exp();
    (factor, (scale.lower_if_stalled / executions, scale.upper * executions))
}

/// The address of the culprit: `suspect.distance` instructions before the instruction at index
/// `at`, on the most frequent path. A mispredicted branch may be some blocks before, if blocks
/// between only fall through.
fn culprit_address(
    paths: &FrequentPaths<'_>,
    instructions: &[Instruction],
    (instruction, at): (&Instruction, usize),
    suspect: &Suspect,
) -> u64 {
    if let Some(index) = at.checked_sub(suspect.distance) {
        return instructions.get(index).map_or(instruction.address, |own| own.address);
    }
    let branch = matches!(suspect.cause, Cause::Mispredict | Cause::Resteer)
        .then(|| paths.branch_before(instruction.block));
    let before = || paths.address_before(instruction.block, suspect.distance - at);
    branch.flatten().or_else(before).map_or(instruction.address, |address| address.0)
}

/// Evens out excess and deficit among instructions that may have retired in the same cycle.
fn pool_retire_groups(over: &mut [f64]) {
    for at in 0..over.len() {
        for distance in 1..RETIRE_GROUP_MAX {
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

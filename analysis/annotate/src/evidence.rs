//! What is known of the pieces of a procedure that take time: the input of verdicts.

use std::collections::BTreeMap;

use code::isa::work::{Place, Registers, Work};
use estimate::Confidence;
use estimate::TripCount;
use image::Vaddr;
use model::{ACCESSES, Access, Values};
use stalls::{BestCase, Explained, Scale, Wait};
use verdict::{Instruction, Kind, Region, Sketch};

use crate::graphs::Graph;
use crate::listing::ByAddress;
use names::procedures::Known;
use query::load::{ImageSamples, Samples};
use query::problem::{self, Problem};

/// Share of a region's samples above which one loop in it stands for it.
const MOST: f64 = 0.8;
/// Share above which a loop is a region of its own.
const OWN: f64 = 0.15;

/// A region of a procedure, with the address of its begin.
#[derive(Debug)]
pub struct Piece {
    /// Address of the loop's header, or of the procedure.
    pub begin: u64,
    /// Address of the instruction with the most samples.
    pub hottest: u64,
    /// What is known of it.
    pub region: Region,
}

/// A loop of a procedure, and how many rounds it makes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoopRounds {
    /// Address of the loop's header.
    pub header: u64,
    /// Number of the loop around it.
    pub parent: Option<usize>,
    /// As [`Region::rounds`].
    pub rounds: Option<(f64, f64)>,
}

/// How instructions of an image use memory.
pub(crate) fn accesses(
    samples: &Samples,
    image: &ImageSamples,
    known: &Known,
    problems: &mut Vec<Problem>,
) -> BTreeMap<Vaddr, Sketch> {
    let mut all: BTreeMap<Vaddr, Sketch> = BTreeMap::new();
    for epoch in &samples.epochs {
        match epoch.observed::<Values>(&ACCESSES, &image.record.id) {
            Ok(accesses) => {
                for (value, times) in accesses.iter() {
                    let Some((at, access)) = Access::of(value) else { continue };
                    all.entry(Vaddr(known.address(at))).or_default().add(access, times);
                }
            }
            Err(error) => problem::add_unreadable(problems, error),
        }
    }
    all
}

/// Standard deviation of the logarithm of how often a loop is entered, at least: few samples are at
/// the branches that enter it. Set by hand: 1.3 times too few rounds were told of a list.
const ENTRIES_LOG_SD: f64 = 0.35;

/// Factor each way within which the rounds of a loop are known where no sample tells how many tests
/// of it were left, and their confidence is low. Set by hand: of a loop of 48 rounds that few
/// samples are outside of, 307 and 42 were told in two builds.
const UNTESTED_FACTOR: f64 = 10.0;

impl Graph {
    /// The pieces of the procedure that take time: loops that take most of it, and the rest.
    pub fn pieces(&self, explained: &Explained, ghz: Option<f64>) -> Vec<Piece> {
        let all: Vec<usize> = (0..self.graph.blocks().len()).collect();
        let mut pieces = Vec::new();
        self.descend(None, &all, (explained, ghz), &mut pieces);
        pieces
    }

    /// Samples of these blocks.
    pub(crate) fn samples_of(&self, blocks: impl IntoIterator<Item = usize>) -> f64 {
        let all = self.estimate.as_ref().map(|estimate| estimate.blocks.as_slice());
        let all = all.unwrap_or_default();
        blocks.into_iter().filter_map(|block| all.get(block)).map(|block| block.samples).sum()
    }

    fn blocks_of(&self, number: usize, among: &[usize]) -> Vec<usize> {
        among.iter().copied().filter(|block| self.loops.contains(number, *block)).collect()
    }

    /// Adds the pieces of a loop, or of the procedure.
    fn descend(
        &self,
        within: Option<usize>,
        blocks: &[usize],
        (explained, ghz): (&Explained, Option<f64>),
        pieces: &mut Vec<Piece>,
    ) {
        let samples = self.samples_of(blocks.iter().copied());
        let children = self.loops.loops().iter().enumerate();
        let children = children.filter(|(_, one)| one.parent == within).map(|(number, _)| {
            let of = self.blocks_of(number, blocks);
            (self.samples_of(of.iter().copied()), number, of)
        });
        let mut children: Vec<(f64, usize, Vec<usize>)> = children.collect();
        children.sort_by(|a, b| b.0.total_cmp(&a.0));
        if let Some((most, number, of)) = children.first()
            && *most >= MOST * samples
            && samples > 0.0
        {
            return self.descend(Some(*number), of, (explained, ghz), pieces);
        }
        let mut rest = blocks.to_vec();
        for (own, number, of) in children {
            if own >= OWN * samples && samples > 0.0 {
                rest.retain(|block| !of.contains(block));
                self.descend(Some(number), &of, (explained, ghz), pieces);
            }
        }
        let is_whole = rest.len() == blocks.len();
        if self.samples_of(rest.iter().copied()) > 0.0 {
            pieces.extend(self.piece(within, &rest, is_whole, (explained, ghz)));
        }
    }

    fn piece(
        &self,
        within: Option<usize>,
        blocks: &[usize],
        is_whole: bool,
        (explained, ghz): (&Explained, Option<f64>),
    ) -> Option<Piece> {
        let estimate = self.estimate.as_ref()?;
        let header = within.and_then(|number| self.loops.loops().get(number)).map(|one| one.header);
        let begin = header.or(self.graph.entry()).unwrap_or(0);
        let rounds = estimate.blocks.get(begin)?.executions;
        let samples = self.samples_of(blocks.iter().copied());
        let is_loop = within.is_some() && is_whole;
        let entered_by_chance = if is_loop { 0.0 } else { self.entered_by_chance };
        let mut region = Region { is_loop, samples, entered_by_chance, ..Region::default() };
        if is_loop {
            let round = self.round_cycles(within, explained.scale, (samples / rounds, ghz));
            region.round_ns = round.and_then(|(known, ..)| Some(known / ghz?));
            region.round_cycles = round;
            region.rounds = within.and_then(|number| self.rounds_of_entry(number));
        }
        let mut hottest = (0.0, self.graph.blocks().get(begin)?.start.0);
        let mut texts = ByAddress::of(&self.parts);
        let chased = self.chased(blocks);
        let mut lines: BTreeMap<u64, f64> = BTreeMap::new();
        let mut listed = Vec::new();
        for &block in blocks {
            let times = estimate.blocks.get(block)?.executions / rounds;
            let none = Vec::new();
            let work = self.work.get(block).unwrap_or(&none);
            let why = explained.blocks.get(block);
            for (index, at) in self.graph.instructions(block).enumerate() {
                let work = work.get(index).copied().unwrap_or_default();
                let best = why.and_then(|block| Some(block.get(index)?.best)).unwrap_or_default();
                let landed = self.samples_at(block, index);
                *lines.entry(at.0 / 64).or_default() += landed;
                if landed > hottest.0 {
                    hottest = (landed, at.0);
                }
                let line = texts.at(at.0);
                listed.extend(line);
                let text = line.map_or("", |line| line.text.as_str());
                region.instructions.push(Instruction {
                    share: landed / samples.max(1.0),
                    times: if times.is_finite() { times } else { 1.0 },
                    sketch: self.sketches.get(&at).cloned().unwrap_or_default(),
                    chases: chased.contains(&at),
                    untold: self.untold(at),
                    elsewhere: self.elsewhere(at),
                    ..instruction(at, text, &work, best)
                });
            }
        }
        region.counted = self.counters.per_cycle(listed.into_iter(), ghz);
        region.hot_lines = hot_lines(lines.into_values().collect(), samples);
        Some(Piece { begin: self.graph.blocks().get(begin)?.start.0, hottest: hottest.1, region })
    }

    /// All loops of the procedure by number, with their rounds.
    pub fn loop_rounds(&self) -> Vec<LoopRounds> {
        let loops = self.loops.loops().iter().enumerate();
        let of = loops.filter_map(|(number, one)| {
            let header = self.graph.blocks().get(one.header)?.start.0;
            let rounds = self.rounds_of_entry(number);
            Some(LoopRounds { header, parent: one.parent, rounds })
        });
        of.collect()
    }

    /// Rounds of a loop each time that it is entered, and the factor each way within which they are
    /// known.
    fn rounds_of_entry(&self, number: usize) -> Option<(f64, f64)> {
        let estimate = self.estimate.as_ref()?;
        let at = self.loops.loops().get(number)?.header;
        let header = estimate.blocks.get(at)?;
        // Few samples are outside of a loop: how often it is entered is known less well.
        let into = self.graph.into_of(at).iter().filter_map(|edge| self.graph.edges().get(*edge));
        let outside = into.filter(|edge| !self.loops.contains(number, edge.from));
        let of = |from: usize| estimate.blocks.get(from).map(|block| block.confidence);
        let entered = outside.filter_map(|edge| of(edge.from)).min().unwrap_or_default();
        let confidence = header.confidence.min(entered);
        let entries = estimate::rounds::entries(&self.graph, &self.loops, &estimate.edges);
        let rounds = header.executions / entries.get(number)?;
        let factor = (2.0 * header.log_sd.max(ENTRIES_LOG_SD)).exp();
        let mut tests =
            estimate.trips.iter().filter(|trips| trips.loop_number == number).peekable();
        let factor = match tests.peek().is_none() && confidence == Confidence::Low {
            true => factor.max(UNTESTED_FACTOR),
            false => tests.fold(factor, |factor, TripCount { interval: (low, high), .. }| {
                factor.max(rounds / low).max(high / rounds)
            }),
        };
        rounds.is_finite().then_some((rounds, factor))
    }

    /// Cycles of a round of the loop, with limits: by its own time where that is known, else by the
    /// procedure's scale and the loop's samples for each round.
    fn round_cycles(
        &self,
        within: Option<usize>,
        scale: Option<Scale>,
        (samples, ghz): (f64, Option<f64>),
    ) -> Option<(f64, f64, f64)> {
        let own = within.and_then(|number| self.round_ns(number)).filter(|round| round.is_own);
        if let Some((round, ghz)) = own.zip(ghz) {
            return Some((round.value * ghz, round.low * ghz, round.high * ghz));
        }
        let scale = scale.filter(Scale::is_known)?;
        let cycles = |samples_per_cycle: f64| samples / samples_per_cycle;
        let known = cycles(scale.samples_per_cycle);
        let limits = (cycles(scale.upper), cycles(scale.lower));
        (known.is_finite() && known > 0.0).then_some((known, limits.0, limits.1))
    }

    fn samples_at(&self, block: usize, index: usize) -> f64 {
        self.landed.get(block).and_then(|block| block.get(index)).copied().unwrap_or(0.0)
    }

    /// Share of a conditional branch's outcomes that those before do not tell, at most. None for
    /// the end of a loop of always as many rounds: the four outcomes before do not tell it, but
    /// processors look further back.
    fn untold(&self, at: Vaddr) -> Option<f64> {
        let mut trips = self.estimate.iter().flat_map(|estimate| &estimate.trips);
        if trips.any(|trips| trips.test == at && trips.constant && !trips.single_test_entries) {
            return None;
        }
        let first = self.branches.partition_point(|branch| branch.from < at);
        self.branches.get(first).filter(|branch| branch.from == at)?.sequence?.untold
    }

    /// Share of an indirect branch's executions that do not go to its most usual target.
    fn elsewhere(&self, at: Vaddr) -> Option<f64> {
        let first = self.branches.partition_point(|branch| branch.from < at);
        let of = self.branches.get(first..)?.iter().take_while(|branch| branch.from == at);
        let counts: Vec<u64> = of.map(|branch| branch.first.saturating_add(branch.later)).collect();
        let all = counts.iter().fold(0, |sum: u64, count| sum.saturating_add(*count));
        let most = counts.iter().max()?;
        (counts.len() > 2 && all >= 40).then(|| 1.0 - *most as f64 / all as f64)
    }

    /// Loads whose address comes from what they loaded a round before.
    fn chased(&self, blocks: &[usize]) -> Vec<Vaddr> {
        let mut all: Vec<(Vaddr, Work)> = Vec::new();
        for &block in blocks {
            let work = self.work.get(block).map(Vec::as_slice).unwrap_or_default();
            all.extend(self.graph.instructions(block).zip(work.iter().copied()));
        }
        all.sort_by_key(|(at, _)| *at);
        if all.len() > CHASED_MAX {
            return Vec::new();
        }
        let is_chased = |(number, (_, load)): &(usize, &(Vaddr, Work))| {
            // The registers whose values depend on the loaded one, in the instructions from here
            // to here again. A register that is written with another value leaves the set.
            let (before, after) = all.split_at(*number);
            let mut reached = load.writes;
            for (_, work) in after.iter().skip(1).chain(before) {
                let depends = work.reads.or(work.addresses).meets(reached);
                reached = match depends {
                    // What a comparison decides is guessed, not waited for.
                    true if work.fuses && work.stores.is_none() => reached,
                    true => reached.or(work.writes),
                    false => Registers(reached.0 & !work.writes.0),
                };
            }
            load.addresses.meets(reached)
        };
        let loads = all.iter().enumerate();
        let loads = loads.filter(|(_, (_, work))| work.loads.is_some_and(|at| at != Place::Stack));
        loads.filter(is_chased).map(|(_, (at, _))| *at).collect()
    }
}

/// Instructions of a region in which chains are looked for.
const CHASED_MAX: usize = 1024;

fn instruction(at: Vaddr, text: &str, work: &Work, best: BestCase) -> Instruction {
    let is_far = |place: Option<Place>| place.is_some_and(|place| place != Place::Stack);
    Instruction {
        address: at.0,
        text: text.split_whitespace().collect::<Vec<_>>().join(" "),
        best_cycles: best.cycles,
        issue_cycles: best.issue_cycles,
        unit_cycles: best.unit_contention,
        kind: match best.wait {
            Wait::Nothing => Kind::Issue,
            Wait::Operand | Wait::Load => Kind::Operand,
            Wait::Unit => Kind::Unit,
        },
        loads: is_far(work.loads),
        stores: is_far(work.stores),
        divides: work.divides,
        locks: work.locks,
        serialises: work.serialises,
        ..Instruction::default()
    }
}

/// The fewest lines of code that together have 90 % of `all` samples, from the samples of each.
pub fn hot_lines(mut samples: Vec<f64>, all: f64) -> usize {
    samples.sort_by(|a, b| b.total_cmp(a));
    let mut sum = 0.0;
    let hot = samples.iter().take_while(|line| {
        let is_needed = sum < 0.9 * all;
        sum += **line;
        is_needed && **line > 0.0
    });
    hot.count()
}

//! Edges and rounds, from registers that were sampled: the interpreter of the crate `code` goes on
//! from them through the bytes of the sampled image.

use super::code_files::{CodeFiles, OpenCode, View};
use super::questions::{SampledRegisters, Walk, Walked, WalkedEdge};
use crate::accesses::{Accesses, Who};
use crate::ahead;
use code::interpret::{
    BranchKind, CounterSample, Edge, Execution, InstructionSet, LINE_BYTES, Line, MemoryAccess,
    Place, Rounds, Walker, Window,
};
use code::isa::Native;
use image::{ImageId, ImageOffset, Vaddr};
use model::{BranchOutcome, BranchRounds, ExecutionTime, Told};
use std::collections::HashMap;
use std::fs::File;
use std::time::{Duration, Instant};

/// Decoded instructions kept, about 128 bytes each; with fewer, hot code is decoded again.
const INSTRUCTIONS: usize = 4096;

/// Time after which no more programs are made that read ahead, in one question: dcpid waits for the
/// answer. They are asked for again.
const READS_AHEAD_MAX: Duration = Duration::from_millis(20);

/// The interpreter and the files it reads.
pub struct Walks {
    walker: Walker<Native>,
    files: CodeFiles,
    accesses: Accesses,
    /// The accesses of one walk, by image offset.
    of_walk: Vec<(u64, MemoryAccess)>,
}

/// What the walks of a question have shown.
#[derive(Default)]
struct Counted {
    /// By branch and next instruction: as the first of its walk, and in all.
    edges: HashMap<(u64, u64), (u64, u64), foldhash::fast::RandomState>,
    /// By branch and number.
    outcomes: HashMap<(u64, i64), u64, foldhash::fast::RandomState>,
    /// By instruction and number.
    accesses: HashMap<(u64, i64), u64, foldhash::fast::RandomState>,
    /// Outcomes so far of the branches of one walk.
    histories: HashMap<Vaddr, u8, foldhash::fast::RandomState>,
}

impl Default for Walks {
    fn default() -> Self {
        Self {
            walker: Walker::new(INSTRUCTIONS),
            files: CodeFiles::default(),
            accesses: Accesses::default(),
            of_walk: Vec::new(),
        }
    }
}

impl Walks {
    /// Walks from each sample; `open` opens the image's file.
    pub fn walk(&mut self, asked: &Walk, open: impl Fn() -> Option<File>) -> Walked {
        let opened = self.files.opened();
        let mut walked = Walked::default();
        let mut counted = Counted::default();
        let begun = Instant::now();
        self.files.close_unused();
        for (number, sample) in asked.samples.iter().enumerate() {
            match self.follow(asked.image, sample, &open, &mut walked, &mut counted) {
                Some(is_fruitful) => {
                    walked.fruitful += u64::from(is_fruitful);
                    if sample.until_next_ns > 0
                        && let Some(next) = asked.samples.get(number + 1)
                    {
                        self.time(asked.image, sample, next, &open, &mut walked);
                    }
                }
                None => walked.unresolved += 1,
            }
            // After the walk, which shows where branches lead.
            if sample.wants_ahead
                && begun.elapsed() < READS_AHEAD_MAX
                && let Some(program) = self.read_ahead(asked.image, sample, &open)
            {
                walked.ahead.push((number, program));
            }
        }
        let edge = |((from, to), (first, all))| WalkedEdge { from, to, first, all };
        walked.edges = counted.edges.into_iter().map(edge).collect();
        let outcome = |((branch, value), times)| (branch, value, times);
        walked.outcomes = counted.outcomes.into_iter().map(outcome).collect();
        let access = |((at, number), times)| (at, number, times);
        walked.accesses = counted.accesses.into_iter().map(access).collect();
        self.files.let_go();
        if self.files.opened() != opened {
            kernel::give_back(); // tables of relocations are large
        }
        walked
    }

    /// The program that reads ahead from the sampled instruction.
    fn read_ahead(
        &mut self,
        image: ImageId,
        sample: &SampledRegisters,
        open: impl Fn() -> Option<File>,
    ) -> Option<Vec<u64>> {
        let text = self.files.get(image, open)?;
        let CounterSample { at, .. } = counters(sample)?;
        let place = place(&text, sample);
        let mut view = View::new(text, place, at)?;
        Some(ahead::words(&self.walker.read_ahead(at, &mut view)))
    }

    /// Tells the times of instructions between two samples of one thread. The last walk was from
    /// the first.
    fn time(
        &mut self,
        image: ImageId,
        first: &SampledRegisters,
        next: &SampledRegisters,
        open: impl Fn() -> Option<File>,
        walked: &mut Walked,
    ) -> Option<()> {
        let text = self.files.get(image, open)?;
        let place = place(&text, first);
        let (first_counters, next_counters) = (counters(first)?, counters(next)?);
        let mut view = View::new(text, place, first_counters.at)?;
        let executions = self.walker.executions(first_counters, next_counters, &mut view);
        for Execution { at, is_round, times } in executions {
            let instruction = ImageOffset(offset(first, at)?);
            let told = match times {
                None => Told::Nothing,
                Some(0) => Told::None,
                Some(times) => Told::Ns(first.until_next_ns as f64 / times as f64),
            };
            let (ImageOffset(instruction), value) =
                ExecutionTime { instruction, is_round, told }.value();
            walked.times.push((instruction, value));
        }
        Some(())
    }

    /// Walks from a sample; whether that gave an edge or rounds.
    fn follow(
        &mut self,
        image: ImageId,
        sample: &SampledRegisters,
        open: impl Fn() -> Option<File>,
        walked: &mut Walked,
        counted: &mut Counted,
    ) -> Option<bool> {
        let text = self.files.get(image, open)?;
        let place = place(&text, sample);
        let CounterSample { at, registers, stack } = counters(sample)?;
        let flags = sample.registers.last().copied()?;
        let (lines, _) = sample.lines.as_chunks::<LINE_BYTES>();
        let line = |(address, bytes): (&u64, &_)| Line { address: Vaddr(*address), bytes: *bytes };
        let lines: Vec<Line> = sample.line_addresses.iter().zip(lines).map(line).collect();
        let memory = Window { lines: &lines, ..stack };
        let mut view = View::new(text, place, at)?;
        let state = Native::sampled(registers, flags);
        let (edges, _) = self.walker.walk(at, state, memory, &mut view);
        let offset = |address: Vaddr| offset(sample, address);
        counted.histories.clear();
        let before = walked.rounds.len();
        for (number, Edge { kind, from, to }) in edges.iter().enumerate() {
            // A branch that leaves the image is not an edge of it.
            let Some((branch, to)) = offset(*from).zip(offset(*to)) else { continue };
            let (first, all) = counted.edges.entry((branch, to)).or_default();
            *first += u64::from(number == 0);
            *all += 1;
            if matches!(kind, BranchKind::Taken | BranchKind::NotTaken) {
                let (branch, jumps) = (ImageOffset(branch), *kind == BranchKind::Taken);
                let history = counted.histories.entry(*from).or_insert(1);
                if *history > 1 {
                    let outcome = BranchOutcome { branch, history: *history, jumps };
                    let (ImageOffset(branch), value) = outcome.value();
                    *counted.outcomes.entry((branch, value)).or_default() += 1;
                }
                *history = BranchOutcome::after(*history, jumps);
            }
        }
        let is_fruitful = !edges.is_empty();
        self.of_walk.clear();
        let accesses = self.walker.accesses().iter();
        self.of_walk.extend(accesses.filter_map(|(at, access)| Some((offset(*at)?, *access))));
        let who = Who { process: sample.process, thread: sample.thread };
        self.accesses.tell(who, (place.image, stack.begin.0), &self.of_walk, |at, access| {
            *counted.accesses.entry((at, access.number())).or_default() += 1;
        });
        for Rounds { edge, rounds } in self.walker.rounds() {
            let Some(branch) = offset(edge.from).map(ImageOffset) else { continue };
            let jumps = edge.kind == BranchKind::Taken;
            if let Some((branch, value)) = (BranchRounds { branch, jumps, rounds }).value() {
                walked.rounds.push((branch.0, value));
            }
        }
        Some(is_fruitful || walked.rounds.len() > before)
    }
}

/// The mapping's address as one in the image's file.
fn offset(sample: &SampledRegisters, address: Vaddr) -> Option<u64> {
    let (begin, end) = sample.range;
    let inside = begin <= address.0 && address.0 < end;
    inside.then(|| sample.file_offset.checked_add(address.0 - begin)).flatten()
}

/// A sample, for what counts.
fn counters(sample: &SampledRegisters) -> Option<CounterSample<'_>> {
    let [registers @ .., pc, _] = sample.registers.as_slice() else { return None };
    let sp = registers.get(usize::from(Native::STACK_POINTER))?;
    let stack = Window { begin: Vaddr(*sp), bytes: &sample.stack, lines: &[] };
    Some(CounterSample { at: Vaddr(*pc), registers, stack })
}

/// The piece of code that the sampled process has mapped.
fn place(text: &OpenCode<'_>, sample: &SampledRegisters) -> Place {
    let (begin, end) = sample.range;
    Place {
        image: text.number(),
        begin: Vaddr(begin),
        end: Vaddr(end),
        offset: ImageOffset(sample.file_offset),
    }
}

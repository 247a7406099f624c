//! Control-flow graphs of procedures, with their samples.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use code::cfg::{Cfg, Knowledge, Loops, Part, ReadOnly, Survey, is_no_return_name};
use code::isa::work::Work;
use code::isa::{Isa, Syntax};
use code::skid::Skid;
use estimate::times::ExecutionNs;
use estimate::truth::ExactCounts;
use estimate::{Branch, Estimate, ProcedureSamples, RemainingRounds};
use image::{Binary, CODE_BYTES_MAX, Constant, Constants, ImageOffset, Imports, Procedure, Vaddr};
use stalls::best_case::FrequentPaths;
use stalls::{BestCase, Explained, Machine, ProfiledProcedure, Scale, ScaleBasis};
use verdict::Sketch;

use crate::counters::Counters;
use crate::evidence::accesses;
use crate::listing::{self, ByAddress, Listing};
use crate::observed::{branches, counted, exact, remaining_rounds, times, within};
use crate::surveys::{self, Surveyable};
use names::procedures::Known;
use query::load::{Executions, ImageSamples, Samples};
use query::problem::Problem;

/// A procedure's graph, with samples, observed branches and estimated executions.
#[derive(Debug, Default)]
pub struct Graph {
    /// The instruction set.
    pub isa: Option<Isa>,
    /// The graph, of all parts of the procedure.
    pub graph: Cfg,
    /// Executions of its blocks and edges; none where they cannot be estimated.
    pub estimate: Option<Estimate>,
    /// Whether the executions are exact counts.
    pub is_exact: bool,
    /// The graph's loops.
    pub loops: Loops,
    /// The parts, instruction by instruction; the first begins with the entry. Samples of time are
    /// at the instructions that took it.
    pub parts: Vec<Listing>,
    /// Observed executions of branches: sampled, or all of them where they were counted.
    pub branches: Vec<Branch>,
    /// Observed numbers of rounds that loops had left.
    remaining_rounds: Vec<RemainingRounds>,
    /// Times from one execution of an instruction to the next, where they are known.
    pub times: Vec<ExecutionNs>,
    /// Latencies and units that the instructions of each block need.
    pub(crate) work: Vec<Vec<Work>>,
    /// Samples of time of the instructions of each block.
    pub(crate) landed: Vec<Vec<f64>>,
    /// Share of entries by indirect calls without a usual target.
    pub(crate) entered_by_chance: f64,
    /// How the instructions use memory, where that was seen.
    pub(crate) sketches: BTreeMap<Vaddr, Sketch>,
    /// Hardware events that were sampled beside time.
    pub(crate) counters: Counters,
}

impl Graph {
    /// The procedure's time by cause, on a machine with its instruction set. `event` counts time;
    /// `executions` tells how often code was executed, if anything does. None without an estimate
    /// of executions.
    pub fn explained(
        &self,
        machine: &Machine,
        event: usize,
        executions: Option<Executions>,
    ) -> Option<Explained> {
        let estimate = self.estimate.as_ref()?;
        let of_blocks = |event: usize| of_blocks(&self.graph, &self.parts, event);
        let samples = of_blocks(event);
        let measured = match executions {
            None => None,
            Some(Executions::Retired { event, instructions, cycles }) => {
                let samples: f64 = of_blocks(event).iter().flatten().sum();
                let blocks = self.graph.blocks().iter().zip(&estimate.blocks);
                let executed: f64 =
                    blocks.map(|(block, runs)| block.instructions as f64 * runs.executions).sum();
                // Executions of the procedure, divided by the cycles that a sample stands for.
                let scale = samples * instructions / executed / cycles;
                Scale::measured(scale, ScaleBasis::RetiredInstructions)
                    .filter(|_| samples >= MEASURED_MIN)
            }
            Some(Executions::Counted { .. }) if !self.is_exact => None,
            Some(Executions::Counted { samples_per_cycle }) => {
                Scale::measured(samples_per_cycle, ScaleBasis::ExactCounts)
            }
        };
        let measured = measured.or_else(|| self.scale_by_rounds(machine.core_ghz?));
        let profiled = ProfiledProcedure {
            graph: &self.graph,
            loops: &self.loops,
            estimate,
            work: &self.work,
            samples: &samples,
            branches: &self.branches,
            remaining_rounds: &self.remaining_rounds,
            measured,
        };
        Some(stalls::explain(machine, &profiled))
    }
}

impl Graph {
    /// The best case of each instruction of each block, on a machine with its instruction set. None
    /// without executions.
    pub fn best_cases(&self, machine: &Machine) -> Option<Vec<Vec<BestCase>>> {
        let paths = FrequentPaths::new(&self.graph, &self.loops, self.estimate.as_ref()?);
        Some(stalls::best_case::best_cases(&paths, machine, &self.work))
    }
}

/// Fewest executions of a branch whose targets are judged.
const OUTCOMES_MIN: u64 = 40;
/// Why a procedure has no estimate.
pub const NOT_ESTIMATED: &str =
    "its executions cannot be estimated: it has no entry, or is too large, or has too many paths";
/// Fewest samples of instructions in a procedure that measure its executions.
const MEASURED_MIN: f64 = 100.0;

/// The survey of an image: the code and branches that the graphs of its procedures share.
#[derive(Debug)]
pub struct Surveyed<'a> {
    isa: Isa,
    procedures: &'a [Procedure],
    survey: Arc<Survey>,
    constants: Constants,
    branches: Branches,
    /// In the order of their branches.
    remaining_rounds: Vec<RemainingRounds>,
    /// In the order of their instructions.
    times: Vec<ExecutionNs>,
    /// How instructions use memory.
    sketches: BTreeMap<Vaddr, Sketch>,
    /// Hardware events that were sampled beside time.
    counters: Counters,
    /// Exact executions, where they were counted.
    exact: Option<ExactCounts>,
}

/// The branches of an image that were seen.
#[derive(Debug)]
struct Branches {
    /// Sorted by source.
    by_from: Vec<Branch>,
    /// Sorted by target.
    by_to: Vec<Branch>,
}

impl Branches {
    fn new(branches: Vec<Branch>) -> Self {
        let mut by_to = branches.clone();
        by_to.sort_by_key(|branch| branch.to);
        Self { by_from: branches, by_to }
    }

    /// Share of the entries at an address that come from branches with other targets, of which none
    /// has half of the executions.
    fn entered_by_chance(&self, entry: Vaddr) -> f64 {
        let times = |branch: &Branch| branch.first.saturating_add(branch.later);
        let (mut all, mut by_chance) = (0_u64, 0_u64);
        let first = self.by_to.partition_point(|branch| branch.to < entry);
        let entering = self.by_to.get(first..).unwrap_or_default();
        for branch in entering.iter().take_while(|branch| branch.to == entry) {
            let first = self.by_from.partition_point(|other| other.from < branch.from);
            let others = self.by_from.get(first..).unwrap_or_default();
            let others = others.iter().take_while(|other| other.from == branch.from).map(times);
            let (sum, most) = others
                .fold((0, 0), |(sum, most): (u64, u64), n| (sum.saturating_add(n), n.max(most)));
            let is_by_chance = most < sum / 2 && sum >= OUTCOMES_MIN;
            all = all.saturating_add(times(branch));
            by_chance = by_chance.saturating_add(if is_by_chance { times(branch) } else { 0 });
        }
        if all == 0 { 0.0 } else { by_chance as f64 / all as f64 }
    }

    /// The branches that leave or enter parts of a procedure.
    fn of(&self, parts: &[Part<'_>]) -> Vec<Branch> {
        let mut found = BTreeMap::new();
        for part in parts {
            let from = within(&self.by_from, part, |branch| branch.from);
            let to = within(&self.by_to, part, |branch| branch.to);
            found.extend(from.iter().chain(to).map(|branch| ((branch.from, branch.to), *branch)));
        }
        found.into_values().collect()
    }
}

/// The read-only bytes of a file.
struct Memory<'a> {
    binary: &'a Binary,
    constants: &'a Constants,
}

impl ReadOnly for Memory<'_> {
    fn constant(&mut self, address: Vaddr, len: u8) -> Option<u64> {
        match self.constants.at(address, len)? {
            Constant::Address(vaddr) => Some(vaddr.0),
            Constant::InFile(offset) => {
                let read = self.binary.code(offset, u64::from(len)).ok()?;
                let mut bytes = [0; 8];
                bytes.get_mut(..usize::from(len))?.copy_from_slice(&read);
                Some(u64::from_le_bytes(bytes))
            }
        }
    }
}

impl<'a> Surveyed<'a> {
    /// Surveys all code of an image. None where its bytes or its instruction set are not known.
    pub fn of(
        samples: &Samples,
        image: &ImageSamples,
        known: &'a Known,
        problems: &mut Vec<Problem>,
    ) -> Option<Self> {
        Self::look(samples, image, known, None, problems)
    }

    /// Surveys only what the [graph](Surveyed::graph) of this procedure needs. [`Surveyed::of`]
    /// surveys the whole image, for the graphs of many procedures, and takes many times as long.
    pub fn around(
        samples: &Samples,
        image: &ImageSamples,
        known: &'a Known,
        procedure: &Procedure,
        problems: &mut Vec<Problem>,
    ) -> Option<Self> {
        Self::look(samples, image, known, Some(procedure), problems)
    }

    fn look(
        samples: &Samples,
        image: &ImageSamples,
        known: &'a Known,
        only: Option<&Procedure>,
        problems: &mut Vec<Problem>,
    ) -> Option<Self> {
        let binary = known.binary.as_ref()?;
        let procedures = known.procedures.iter().as_slice();
        let Code { isa, ranges, text, never } = Code::of(binary, procedures)?;
        let text: Vec<Part<'_>> =
            text.iter().map(|(begin, bytes)| Part { begin: *begin, bytes }).collect();
        let number = |only: &Procedure| {
            procedures.binary_search_by_key(&only.start, |other| other.start).ok()
        };
        let survey = match only {
            Some(only) => Survey::around(isa, &text, &ranges, never, number(only)?).into(),
            None => surveys::survey(&Surveyable {
                isa,
                text: &text,
                procedures: &ranges,
                never: &never,
            }),
        };
        let constants = binary.constants().unwrap_or_default();
        let exact = exact(samples, image, known, problems);
        let branches = match &exact {
            Some(exact) => counted(exact, (samples, image), known, problems),
            None => branches(samples, image, known, problems),
        };
        Some(Self {
            isa,
            procedures,
            survey,
            constants,
            branches: Branches::new(branches),
            remaining_rounds: remaining_rounds(samples, image, known, problems),
            times: times(samples, image, known, problems),
            sketches: accesses(samples, image, known, problems),
            counters: samples
                .time()
                .map(|(time, _)| Counters::of(samples, time))
                .unwrap_or_default(),
            exact,
        })
    }

    /// The image's instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Procedures with samples of an event, each with the samples of all its parts.
    pub fn sampled(&self, image: &ImageSamples, event: usize) -> Vec<(&Procedure, u64)> {
        let mut sums: BTreeMap<usize, u64> = BTreeMap::new();
        for (offset, samples) in image.equal(event).into_iter().flat_map(model::Profile::iter) {
            let after = self.procedures.partition_point(|procedure| procedure.start <= offset);
            let number = after.checked_sub(1).filter(|number| {
                self.procedures.get(*number).is_some_and(|procedure| procedure.contains(offset))
            });
            if let Some(number) = number {
                let sum = sums.entry(self.survey.whole(number)).or_default();
                *sum = sum.saturating_add(samples);
            }
        }
        sums.into_iter()
            .filter_map(|(number, samples)| Some((self.procedures.get(number)?, samples)))
            .collect()
    }

    /// The procedure at an offset; of a procedure's part, the procedure.
    pub fn at(&self, offset: ImageOffset) -> Option<&Procedure> {
        let number = self
            .procedures
            .partition_point(|procedure| procedure.start <= offset)
            .checked_sub(1)?;
        self.procedures.get(number).filter(|procedure| procedure.contains(offset))?;
        self.procedures.get(self.survey.whole(number))
    }

    /// The graph of a procedure, or of the one that it is a part of, with the samples of `event`,
    /// corrected by `skid`. A machine that issues in order gives better estimates of executions.
    /// Without a syntax instructions have no text.
    pub fn graph(
        &self,
        image: &ImageSamples,
        known: &Known,
        procedure: &Procedure,
        syntax: Option<Syntax>,
        (event, skid): (usize, Skid),
        machine: Option<&Machine>,
    ) -> Option<Graph> {
        let binary = known.binary.as_ref()?;
        let number =
            self.procedures.binary_search_by_key(&procedure.start, |other| other.start).ok()?;
        let whole = self.survey.whole(number);
        let numbers = std::iter::once(whole).chain(self.survey.parts(whole).iter().copied());
        let procedures: Vec<&Procedure> =
            numbers.filter_map(|number| self.procedures.get(number)).collect();
        let bytes: Vec<(Vaddr, Vec<u8>)> = procedures
            .iter()
            .filter_map(|part| {
                let bytes = binary.code(part.start, part.size_bytes().min(CODE_BYTES_MAX)).ok()?;
                Some((Vaddr(known.address(part.start)), bytes))
            })
            .collect();
        let parts: Vec<Part<'_>> =
            bytes.iter().map(|(begin, bytes)| Part { begin: *begin, bytes }).collect();
        let branches = self.branches.of(&parts);
        let remaining_rounds =
            parts.iter().flat_map(|part| within(&self.remaining_rounds, part, |one| one.branch));
        let remaining_rounds: Vec<RemainingRounds> = remaining_rounds.copied().collect();
        let times = parts.iter().flat_map(|part| within(&self.times, part, |one| one.at));
        let times: Vec<ExecutionNs> = times.copied().collect();
        let sketches = self.sketches_of(&parts);
        let list = |part: &&Procedure| listing::of(image, known, part, syntax, None);
        let mut listed: Vec<Listing> = procedures.iter().map(list).collect();
        let mut memory = Memory { binary, constants: &self.constants };
        let mut build = |observed: &[(Vaddr, Vaddr)]| {
            let knowledge = Knowledge { no_return: Some(self.survey.no_return()), observed };
            Cfg::build(self.isa, &parts, &mut memory, &knowledge)
        };
        let mut graph = build(&[]);
        // Samples may show the targets of jumps that the code does not name.
        let open: BTreeSet<Vaddr> = graph.open_jumps().collect();
        let observed = branches.iter().map(|branch| (branch.from, branch.to));
        let observed: Vec<(Vaddr, Vaddr)> =
            observed.filter(|(from, _)| open.contains(from)).collect();
        if !observed.is_empty() {
            graph = build(&observed);
        }
        let loops = Loops::of(&graph);
        listed.iter_mut().for_each(|part| part.attribute((event, skid)));
        let lines = listed.iter().flat_map(|part| &part.instructions);
        let mut landed: Vec<(Vaddr, u64)> = lines
            .filter_map(|line| Some((Vaddr(line.address), *line.counts.get(event)?)))
            .filter(|(_, count)| *count > 0)
            .collect();
        landed.sort_unstable();
        let sampled = ProcedureSamples {
            time: &landed,
            branches: &branches,
            remaining_rounds: &remaining_rounds,
            ..ProcedureSamples::default()
        };
        let work = work(self.isa, &graph, &bytes);
        let samples = of_blocks(&graph, &listed, event);
        let machine = machine.filter(|machine| machine.isa == self.isa);
        let exact = self.exact(&graph, &samples);
        let is_exact = exact.is_some();
        let solve = || stalls::estimate(machine, &graph, &loops, &sampled, (&work, &samples));
        let estimate = exact.or_else(solve);
        Some(Graph {
            isa: Some(self.isa),
            graph,
            estimate,
            is_exact,
            loops,
            parts: listed,
            branches,
            remaining_rounds,
            times,
            work,
            landed: samples,
            entered_by_chance: self
                .branches
                .entered_by_chance(Vaddr(known.address(procedure.start))),
            sketches,
            counters: self.counters.clone(),
        })
    }
}

impl Surveyed<'_> {
    /// How the instructions of some parts use memory.
    fn sketches_of(&self, parts: &[Part<'_>]) -> BTreeMap<Vaddr, Sketch> {
        let of = |part: &Part<'_>| {
            let end = part.begin.0.saturating_add(part.bytes.len() as u64);
            self.sketches.range(part.begin..Vaddr(end))
        };
        parts.iter().flat_map(of).map(|(at, sketch)| (*at, sketch.clone())).collect()
    }

    /// The exact executions of a graph, where they were counted. `samples` are those of the
    /// instructions of each block.
    fn exact(&self, graph: &Cfg, samples: &[Vec<f64>]) -> Option<Estimate> {
        let of_block = |samples: &Vec<f64>| samples.iter().sum();
        estimate::truth::exact(graph, self.exact.as_ref()?, samples.iter().map(of_block))
    }
}

/// Samples of an event of the instructions of each block.
fn of_blocks(graph: &Cfg, parts: &[Listing], event: usize) -> Vec<Vec<f64>> {
    let mut lines = ByAddress::of(parts);
    let mut count = |at: Vaddr| {
        lines
            .at(at.0)
            .and_then(|line| line.counts.get(event))
            .map_or(0.0, |samples| *samples as f64)
    };
    (0..graph.blocks().len())
        .map(|block| graph.instructions(block).map(&mut count).collect())
        .collect()
}

/// Latencies and units that the instructions of each block need.
fn work(isa: Isa, graph: &Cfg, parts: &[(Vaddr, Vec<u8>)]) -> Vec<Vec<Work>> {
    let at = |address: Vaddr| {
        let (begin, bytes) = parts
            .iter()
            .find(|(begin, bytes)| address.0.wrapping_sub(begin.0) < bytes.len() as u64)?;
        isa.work(bytes.get(usize::try_from(address.0 - begin.0).ok()?..)?)
    };
    let blocks = 0..graph.blocks().len();
    blocks
        .map(|block| {
            graph.instructions(block).map(|address| at(address).unwrap_or_default()).collect()
        })
        .collect()
}

/// The input of an image's survey.
struct Code {
    isa: Isa,
    /// The addresses of each procedure.
    ranges: Vec<Range<u64>>,
    text: Vec<(Vaddr, Vec<u8>)>,
    /// Procedures that do not return, by name, and the pointers through which they are called.
    never: Vec<Vaddr>,
}

impl Code {
    /// None for an instruction set that is not known.
    fn of(binary: &Binary, procedures: &[Procedure]) -> Option<Self> {
        let isa = Isa::of_elf_machine(binary.machine())?;
        let address =
            |offset| binary.layout().file_offset_to_vaddr(offset).map_or(offset.0, |vaddr| vaddr.0);
        let range = |procedure: &Procedure| {
            let begin = address(procedure.start);
            begin..begin.saturating_add(procedure.size_bytes())
        };
        let ranges: Vec<_> = procedures.iter().map(range).collect();
        let imports = binary.imports().unwrap_or_else(|_| Imports::default());
        let named = procedures
            .iter()
            .zip(&ranges)
            .filter(|(procedure, _)| is_no_return_name(procedure.raw_name()));
        let never = imports
            .iter()
            .filter(|(_, name)| is_no_return_name(name))
            .map(|(at, _)| at)
            .chain(named.map(|(_, range)| Vaddr(range.start)))
            .collect();
        Some(Self { isa, ranges, text: text(binary), never })
    }
}

/// The pieces of a file's code, by file offset, that no report on samples at these places needs:
/// procedures that have none of them, are no part of one that has, and say nothing about those.
/// None where the file's code is not understood.
pub fn unneeded(
    binary: &Binary,
    sampled: &[ImageOffset],
    debug_roots: &[PathBuf],
) -> Option<Vec<Range<u64>>> {
    let (procedures, _) = binary.procedures(debug_roots).ok()?;
    let procedures = procedures.iter().as_slice();
    let Code { isa, ranges, text, never } = Code::of(binary, procedures)?;
    let text: Vec<Part<'_>> =
        text.iter().map(|(begin, bytes)| Part { begin: *begin, bytes }).collect();
    let holds = |offset: &ImageOffset| {
        let number =
            procedures.partition_point(|procedure| procedure.start <= *offset).checked_sub(1)?;
        procedures.get(number)?.contains(*offset).then_some(number)
    };
    let needed =
        code::cfg::needed(isa, &text, &ranges, never, &sampled.iter().filter_map(holds).collect());
    let others = procedures.iter().enumerate().filter(|(number, _)| !needed.contains(number));
    let segments = binary.layout().segments();
    let is_code = |range: &Range<u64>| {
        segments.iter().any(|segment| {
            let end = segment.offset.0.saturating_add(segment.file_size_bytes);
            segment.executable && segment.offset.0 <= range.start && range.end <= end
        })
    };
    let (mut unneeded, mut before): (Vec<Range<u64>>, Option<usize>) = (Vec::new(), None);
    for (number, range) in others.map(|(number, other)| (number, other.start.0..other.end.0)) {
        if !is_code(&range) {
            continue;
        }
        let adjoins = before.is_some_and(|before| before + 1 == number);
        match unneeded.last_mut() {
            Some(last) if adjoins && range.start.saturating_sub(last.end) < PADDING_MAX => {
                last.end = last.end.max(range.end);
            }
            _ => unneeded.push(range),
        }
        before = Some(number);
    }
    Some(unneeded)
}

/// Most bytes between two procedures that count as padding: compilers align procedures to 64 bytes
/// at most. If padding were kept, a large program would have a piece for each procedure, and a kept
/// file has at most 65536 pieces.
const PADDING_MAX: u64 = 64;

/// Most bytes of code of an image that are surveyed.
const TEXT_BYTES_MAX: u64 = 256 << 20;

/// Bytes of code that are read at once: few enough to stay in a cache while they are copied.
const PIECE_BYTES: u64 = 256 << 10;

/// The code of a file, segment after segment, as much of it as can be read.
fn text(binary: &Binary) -> Vec<(Vaddr, Vec<u8>)> {
    let mut text = Vec::new();
    let mut rest = TEXT_BYTES_MAX;
    for segment in binary.layout().segments().iter().filter(|segment| segment.executable) {
        let mut bytes = Vec::new();
        let wanted = segment.file_size_bytes.min(rest);
        while let Some(left) = wanted.checked_sub(bytes.len() as u64).filter(|left| *left > 0) {
            let at = ImageOffset(segment.offset.0.saturating_add(bytes.len() as u64));
            match binary.code_or_zeros(at, left.min(PIECE_BYTES)) {
                Ok(mut more) if !more.is_empty() => bytes.append(&mut more),
                _ => break,
            }
        }
        rest -= wanted;
        text.push((segment.vaddr, bytes));
    }
    text
}

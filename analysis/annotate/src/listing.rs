//! The instructions of a procedure, with their samples and their places in the source.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use code::isa::{Isa, Syntax};
use code::skid::{Sampled, Skid};
use image::{CODE_BYTES_MAX, Frame, ImageId, ImageKind, ImageOffset, Lines, Procedure, Vaddr};

use names::procedures::Known;
use query::load::ImageSamples;
use query::problem::{NoCode, Problem};

/// A procedure, instruction by instruction.
#[derive(Debug)]
pub struct Listing {
    /// The image's name.
    pub image: String,
    /// Its id.
    pub id: ImageId,
    /// The procedure's name, demangled.
    pub procedure: String,
    /// Its addresses, as `nm` and `objdump` show them; in an image that is not a file, its offsets.
    pub addresses: Range<u64>,
    /// Its offsets in the image.
    pub offsets: Range<ImageOffset>,
    /// The instruction set; none if the bytes or the instruction set are not known.
    pub isa: Option<Isa>,
    /// The instructions in order, without gaps. Without bytes, the addresses with samples.
    pub instructions: Vec<ListedInstruction>,
    /// Samples by event: the sum over the instructions.
    pub counts: Vec<u64>,
    /// Samples that [`Listing::attribute`] did not move back.
    pub kept: u64,
    /// Missing code, lines or names.
    pub problems: Vec<Problem>,
}

/// An instruction with its samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedInstruction {
    /// Its first byte, as `objdump` shows it.
    pub address: u64,
    /// Its first byte in the image.
    pub offset: ImageOffset,
    /// Length in bytes; 0 if the instruction could not be read.
    pub len: u64,
    /// Mnemonic and operands; empty if the instruction could not be read, or without a syntax.
    pub text: String,
    /// Target of a direct jump or call.
    pub target: Option<u64>,
    /// Whether samples of the next instruction are not moved back to it: [`code::isa::Line::bars`].
    pub bars: bool,
    /// Name of a target in another procedure, with the distance from that procedure's begin.
    pub target_name: Option<String>,
    /// Samples by event, of all its bytes.
    pub counts: Vec<u64>,
    /// Its place in the source: the innermost inlined call first, the procedure itself last. Empty
    /// if it is not known.
    pub frames: Vec<Frame>,
}

/// A source line of a procedure, or of a function that is inlined there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// The function, file and line, without the column.
    pub place: Frame,
    /// Whether the function is inlined in the procedure.
    pub inlined: bool,
    /// Samples by event of all its instructions.
    pub counts: Vec<u64>,
}

/// Part of a procedure's samples that its hot blocks have.
const HOT: f64 = 0.9;

/// Of blocks with so many samples: whether each is among the fewest that have `HOT` of all.
pub fn hottest(samples: &[f64]) -> Vec<bool> {
    let all: f64 = samples.iter().sum();
    let mut order: Vec<usize> = (0..samples.len()).collect();
    let of = |at: &usize| samples.get(*at).copied().unwrap_or(0.0);
    order.sort_by(|a, b| of(b).total_cmp(&of(a)).then(a.cmp(b)));
    let (mut hot, mut sum) = (vec![false; samples.len()], 0.0);
    for at in order {
        if sum >= all * HOT {
            break;
        }
        sum += of(&at);
        hot.iter_mut().skip(at).take(1).for_each(|hot| *hot = true);
    }
    hot
}

impl Listing {
    /// The source lines of its instructions, the procedure's own first, then by function, file and
    /// line. Each instruction belongs to the innermost function that is inlined there, so the
    /// lines' samples add up to the procedure's.
    pub fn by_line(&self) -> Vec<SourceLine> {
        let mut lines: BTreeMap<(bool, Frame), Vec<u64>> = BTreeMap::new();
        for instruction in &self.instructions {
            let place = instruction.frames.first().cloned().unwrap_or_default();
            let inlined = instruction.frames.len() > 1;
            let sums = lines
                .entry((inlined, Frame { column: None, ..place }))
                .or_insert_with(|| vec![0; self.counts.len()]);
            sums.iter_mut()
                .zip(&instruction.counts)
                .for_each(|(sum, count)| *sum = sum.saturating_add(*count));
        }
        lines
            .into_iter()
            .map(|((inlined, place), counts)| SourceLine { place, inlined, counts })
            .collect()
    }

    /// Corrects the skid of an event's samples: moves them back to the instructions that took the
    /// time. Does nothing without bytes, since the instructions between two addresses with samples
    /// are not known then.
    pub fn attribute(&mut self, (event, skid): (usize, Skid)) {
        if self.isa.is_some() {
            let attributed = skid.attributed(&self.sampled(event));
            self.kept = attributed.kept;
            for (instruction, samples) in self.instructions.iter_mut().zip(attributed.samples) {
                if let Some(count) = instruction.counts.get_mut(event) {
                    *count = samples;
                }
            }
        }
    }

    /// Leaves only the blocks, those with the most samples first, that have `HOT` of the samples
    /// of the first event. A block ends before a target of a jump and behind a jump within the
    /// procedure.
    pub fn keep_hot(&mut self) {
        let targets = self.jump_targets();
        let addresses = self.addresses.clone();
        let jumps =
            |line: &ListedInstruction| line.target.is_some_and(|to| addresses.contains(&to));
        let one_block = |a: &ListedInstruction, b: &ListedInstruction| {
            !jumps(a) && !targets.contains(&b.address)
        };
        let samples = |line: &ListedInstruction| line.counts.first().copied().unwrap_or(0);
        let blocks: Vec<(u64, &[ListedInstruction])> = self
            .instructions
            .chunk_by(one_block)
            .map(|block| (block.iter().map(samples).sum(), block))
            .collect();
        let hot = hottest(&blocks.iter().map(|(samples, _)| *samples as f64).collect::<Vec<_>>());
        let kept = blocks.iter().zip(hot).filter(|(_, hot)| *hot);
        self.instructions = kept.flat_map(|((_, block), _)| block.iter().cloned()).collect();
    }

    /// The instructions as skid sees them. The first instruction of a loop has the samples of the
    /// branch that leads back: the instruction before the loop is executed once for many rounds.
    fn sampled(&self, event: usize) -> Vec<Sampled> {
        let back = |line: &ListedInstruction| line.target.filter(|target| *target <= line.address);
        let begins: BTreeSet<u64> = self.instructions.iter().filter_map(back).collect();
        let next = self.instructions.iter().skip(1).map(|next| begins.contains(&next.address));
        let sampled = |(instruction, begins): (&ListedInstruction, bool)| Sampled {
            samples: instruction.counts.get(event).copied().unwrap_or(0),
            bars: instruction.bars || begins,
        };
        self.instructions.iter().zip(next.chain([false])).map(sampled).collect()
    }

    /// The targets of jumps within the procedure.
    pub fn jump_targets(&self) -> BTreeSet<u64> {
        self.instructions
            .iter()
            .filter_map(|instruction| instruction.target)
            .filter(|to| self.addresses.contains(to))
            .collect()
    }
}

/// The instructions of some listings, found by their addresses. Looking up addresses in increasing
/// order is fast.
#[derive(Debug)]
pub struct ByAddress<'a> {
    /// In the order of their addresses.
    lines: Vec<&'a ListedInstruction>,
    /// The place after the last that was found.
    next: usize,
}

impl<'a> ByAddress<'a> {
    /// The instructions of these listings.
    pub fn of(parts: &'a [Listing]) -> Self {
        let mut lines: Vec<&ListedInstruction> =
            parts.iter().flat_map(|part| &part.instructions).collect();
        lines.sort_by_key(|line| line.address);
        Self { lines, next: 0 }
    }

    /// The instruction at an address.
    pub fn at(&mut self, address: u64) -> Option<&'a ListedInstruction> {
        let is_there =
            |place: &usize| self.lines.get(*place).is_some_and(|line| line.address == address);
        let place = Some(self.next).filter(is_there);
        let place = place
            .or_else(|| self.lines.binary_search_by_key(&address, |line| line.address).ok())?;
        self.next = place + 1;
        self.lines.get(place).copied()
    }
}

/// Lists a procedure of an image.
///
/// The bytes come from the file, if it is still the build that was sampled, else from the code that
/// dcpid kept. Without bytes, only the addresses with samples are listed. Source lines come from
/// `lines`, if they are wanted. Without a syntax, instructions have no text, and targets in other
/// procedures have no name.
pub fn of(
    image: &ImageSamples,
    known: &Known,
    procedure: &Procedure,
    syntax: Option<Syntax>,
    lines: Option<&Lines<'_>>,
) -> Listing {
    let mut problems = Vec::new();
    let code = code(image, known, procedure);
    let isa = code.as_ref().ok().map(|(isa, _)| *isa);
    let mut instructions = match code {
        Ok((isa, bytes)) => {
            if (bytes.len() as u64) < procedure.size_bytes() {
                problems.push(Problem::ListingCut {
                    procedure: procedure.name().to_owned(),
                    listed: bytes.len() as u64,
                });
            }
            disassembled(known, procedure, &bytes, isa, syntax)
        }
        Err(why) => {
            problems.push(Problem::NoCode {
                image: image.record.name.clone(),
                id: image.record.id,
                why,
            });
            places(image, known, procedure)
        }
    };
    let counts = count(image, procedure, &mut instructions);
    if let Some(lines) = lines {
        for instruction in &mut instructions {
            instruction.frames = lines.frames(Vaddr(instruction.address));
        }
    }
    let (start, end) = (procedure.start, procedure.end);
    let first = known.address(start);
    Listing {
        image: image.record.name.clone(),
        id: image.record.id,
        procedure: procedure.name().to_owned(),
        addresses: first..first.saturating_add(procedure.size_bytes()),
        offsets: start..end,
        isa,
        instructions,
        counts,
        kept: 0,
        problems,
    }
}

/// Where the samples of an event in an image move back to: the offset of each instruction with
/// samples, and of the one that took the time, in procedures whose bytes are known.
pub fn moved_back(
    image: &ImageSamples,
    known: &Known,
    (event, skid): (usize, Skid),
) -> BTreeMap<ImageOffset, ImageOffset> {
    let mut moved = BTreeMap::new();
    let Some(profile) = image.profiles.get(event) else { return moved };
    let mut listed = None;
    for (offset, _) in profile.iter() {
        let Some(procedure) = known.procedures.find(offset) else { continue };
        if listed.replace(procedure.start) == Some(procedure.start) {
            continue;
        }
        let listing = of(image, known, procedure, None, None);
        if listing.isa.is_none() {
            continue;
        }
        let sampled = listing.sampled(event);
        for (index, instruction) in listing.instructions.iter().enumerate() {
            let source = listing.instructions.get(skid.source(&sampled, index).0);
            if let Some(source) = source.filter(|source| source.offset != instruction.offset) {
                moved.insert(instruction.offset, source.offset);
            }
        }
    }
    moved
}

/// The listed bytes of a procedure, and their meaning.
pub fn code(
    image: &ImageSamples,
    known: &Known,
    procedure: &Procedure,
) -> Result<(Isa, Vec<u8>), NoCode> {
    let Some(binary) = &known.binary else {
        return Err(match image.record.kind {
            ImageKind::File | ImageKind::Vdso => NoCode::NotKept,
            ImageKind::Kernel | ImageKind::Module | ImageKind::Idle | ImageKind::Bpf => {
                NoCode::Kernel
            }
            ImageKind::Jit | ImageKind::Unresolved => NoCode::Generated,
        });
    };
    let machine = binary.machine();
    let isa = Isa::of_elf_machine(machine).ok_or(NoCode::UnknownMachine { machine })?;
    let bytes = binary.code(procedure.start, procedure.size_bytes().min(CODE_BYTES_MAX));
    // Other code of the image may be kept.
    let why = |error| match image.record.kind {
        ImageKind::Jit => NoCode::Generated,
        _ if binary.kept().is_some() => NoCode::NotKept,
        _ => NoCode::Unreadable { error },
    };
    Ok((isa, bytes.map_err(why)?))
}

impl ListedInstruction {
    /// Mnemonic and operands in a syntax; empty if the instruction cannot be read.
    pub fn text_in(&self, syntax: Syntax, isa: Isa, known: &Known) -> String {
        let bytes = known.binary.as_ref().and_then(|of| of.code(self.offset, self.len).ok());
        let lines = isa.disassemble(&bytes.unwrap_or_default(), Vaddr(self.address), syntax);
        lines.into_iter().next().map(|line| line.text).unwrap_or_default()
    }
}

fn disassembled(
    known: &Known,
    procedure: &Procedure,
    bytes: &[u8],
    isa: Isa,
    syntax: Option<Syntax>,
) -> Vec<ListedInstruction> {
    let first = known.address(procedure.start);
    let listed = |line: code::isa::Line| ListedInstruction {
        address: line.address.0,
        offset: ImageOffset(procedure.start.0.saturating_add(line.address.0.wrapping_sub(first))),
        len: line.len as u64,
        text: line.text,
        target: line.target.map(|target| target.0),
        bars: line.bars,
        target_name: line
            .target
            .filter(|_| syntax.is_some())
            .and_then(|at| target_name(known, procedure, at.0)),
        counts: Vec::new(),
        frames: Vec::new(),
    };
    isa.disassemble(bytes, Vaddr(first), syntax).into_iter().map(listed).collect()
}

/// The name of a place in another procedure.
fn target_name(known: &Known, procedure: &Procedure, target: u64) -> Option<String> {
    let offset = known.offset(target).filter(|offset| !procedure.contains(*offset))?;
    let other = known.procedures.find(offset)?;
    Some(match offset.0 - other.start.0 {
        0 => other.name().to_owned(),
        into => format!("{}+{into:#x}", other.name()),
    })
}

/// The places with samples, for code without bytes.
fn places(image: &ImageSamples, known: &Known, procedure: &Procedure) -> Vec<ListedInstruction> {
    let listed = |offset| ListedInstruction {
        address: known.address(offset),
        offset,
        len: 0,
        text: String::new(),
        target: None,
        bars: false,
        target_name: None,
        counts: Vec::new(),
        frames: Vec::new(),
    };
    let within = image
        .profiles
        .iter()
        .flat_map(|profile| profile.equal().within(procedure.start..procedure.end));
    let offsets: BTreeSet<ImageOffset> = within.map(|(offset, _)| offset).collect();
    offsets.into_iter().map(listed).collect()
}

/// Gives each instruction the samples of its bytes. Returns the sums.
fn count(
    image: &ImageSamples,
    procedure: &Procedure,
    instructions: &mut [ListedInstruction],
) -> Vec<u64> {
    let events = image.profiles.len();
    instructions.iter_mut().for_each(|instruction| instruction.counts = vec![0; events]);
    let mut sums = vec![0_u64; events];
    for (event, profile) in image.profiles.iter().enumerate() {
        for (offset, samples) in profile.equal().within(procedure.start..procedure.end) {
            // The instruction that holds the byte: the last that begins at it or before.
            let after = instructions.partition_point(|instruction| instruction.offset <= offset);
            let instruction = after.checked_sub(1).and_then(|at| instructions.get_mut(at));
            let count = instruction.and_then(|instruction| instruction.counts.get_mut(event));
            for count in [count, sums.get_mut(event)].into_iter().flatten() {
                *count = count.saturating_add(samples);
            }
        }
    }
    sums
}

//! The control-flow graph of a procedure, from its bytes.
//!
//! [`Cfg::build`] follows the code from the procedure's entry. Jumps through tables are resolved by
//! following values from the entry ([`values`](self)): tables of addresses or of distances, bounded
//! by the comparison before the jump, and tables of labels whose address was saved long before (the
//! dispatch of interpreters). Code that is not reached that way is decoded too, as blocks without a
//! predecessor: landing pads of exceptions, code behind unresolved jumps, dead code, and filler
//! between blocks, which is told apart.
//!
//! Invariants:
//! 1. Whatever the bytes are: time and memory are linear in bytes and edges, both are bounded
//!    ([`BYTES_MAX`], [`EDGES_MAX`], [`TABLE_ENTRIES_MAX`]), nothing panics. What a bound cuts off
//!    is a [`Finding`].
//! 2. Targets are never guessed. A jump whose targets are not known has an edge to [`To::Unknown`],
//!    and the block says so ([`Block::targets_incomplete`]). Each assumption about its targets is a
//!    finding.
//! 3. Flow is conserved: each block but filler ends in at least one edge; to [`To::Caller`],
//!    [`To::Outside`], [`To::Nowhere`] where it leaves.
//!
//! Three assumptions hold because compilers write no other code: a call that may return does so to
//! the instruction after it; a function keeps the registers that the ABI makes it keep; no other
//! code writes the words of the stack that hold a table's address.

mod around;
mod blocks;
mod build;
mod classes;
mod crossings;
mod discover;
mod dominators;
mod follow;
mod loops;
mod needed;
mod survey;
mod tables;

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

use image::Vaddr;

pub use classes::Classes;
pub use loops::{Loop, Loops};
pub use needed::needed;
pub use survey::{NO_RETURN_NAMES, Survey, is_no_return_name};

use crate::isa::Isa;
pub use crate::values::ReadOnly;

/// Most bytes of a procedure, all its parts together; bytes beyond are left out. Compilers' largest
/// procedures have a tenth. A larger limit lets damaged files cost more time and memory.
pub const BYTES_MAX: usize = 16 << 20;
/// Most edges of a procedure. Beyond, targets of tables are left out. The limit bounds the memory
/// that a damaged or hostile file can cost.
pub const EDGES_MAX: usize = 1 << 20;
/// Most entries of a table that are read; the largest `switch` of compilers' code has far fewer.
/// The limit bounds the work for a table without an end.
pub const TABLE_ENTRIES_MAX: u64 = 1 << 16;

/// A range of a procedure's bytes. Compilers split procedures: code that is seldom executed is a
/// part of its own (`name.cold`).
#[derive(Copy, Clone, Debug)]
pub struct Part<'a> {
    /// Address of the first byte, in the file.
    pub begin: Vaddr,
    /// The code.
    pub bytes: &'a [u8],
}

/// Knowledge about a procedure besides its bytes.
#[derive(Copy, Clone, Debug, Default)]
pub struct Knowledge<'a> {
    /// Addresses that a call does not return from: of procedures and stubs, and of words through
    /// which calls and jumps go to one (entries of the global offset table). See [`Survey`].
    pub no_return: Option<&'a BTreeSet<Vaddr>>,
    /// Jumps that were observed, from the address of the jump to that of the next instruction, in
    /// any order and possibly repeated; no calls and no returns. Jumps from outside into the
    /// procedure are entries.
    pub observed: &'a [(Vaddr, Vaddr)],
}

/// A control-flow graph. Blocks are sorted by their first byte, edges by the block they leave.
#[derive(Clone, Debug, Default)]
pub struct Cfg {
    blocks: Vec<Block>,
    edges: Vec<Edge>,
    /// Numbers of edges, sorted by the block that they go to; those that leave the procedure are
    /// not among them.
    into: Vec<usize>,
    /// Begin of each block's edges in `into`.
    into_begin: Vec<usize>,
    calls: Vec<Call>,
    /// Length of each instruction, block after block.
    lens: Vec<u8>,
    entry: Option<usize>,
    findings: Vec<Finding>,
}

/// Instructions that are executed one after the other: when the first is executed, all are (unless
/// a call among them does not return).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Address of the first byte.
    pub start: Vaddr,
    /// The address after its last byte. Blocks overlap where something jumps between an
    /// instruction's prefix and the rest.
    pub end: Vaddr,
    /// Address of the last instruction.
    pub last: Vaddr,
    /// Number of instructions, at least 1.
    pub instructions: usize,
    /// Effect of the last instruction on the order of execution.
    pub ending: Ending,
    /// Entries into the block other than by the graph's edges.
    pub entered: Entered,
    /// True for filler between blocks, which is never executed. Filler has no edges.
    pub padding: bool,
    /// True when the last instruction, an indirect jump, may go elsewhere than the edges say; one
    /// of its edges then goes to [`To::Unknown`].
    pub targets_incomplete: bool,
    edges: Range<usize>,
    calls: Range<usize>,
    first_len: usize,
}

/// Effect of a block's last instruction.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ending {
    /// Execution goes on in the next block.
    Next,
    /// A conditional jump.
    Conditional,
    /// A jump to a fixed target.
    Jump,
    /// A jump through a register or memory.
    Indirect,
    /// A return.
    Return,
    /// A call that does not return.
    NoReturn,
    /// A trap that stops the program (`ud2`, `hlt`, `int3`).
    Trap,
    /// Bytes that are no instruction follow.
    NoInstruction,
}

/// Entries into a block other than by the graph's edges.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Entered {
    /// None.
    No,
    /// The procedure begins here.
    Entry,
    /// An observed jump from outside, or a call from inside, enters here.
    Aside,
    /// No entry is known, and the block is not a filler: a landing pad of exceptions, a target of
    /// an unresolved jump, another entry, dead code.
    Unreferenced,
}

/// An edge of the graph.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The block that it leaves.
    pub from: usize,
    /// The block or place that it goes to.
    pub to: To,
    /// The reason for the edge.
    pub kind: EdgeKind,
    /// Number of table entries that name the target, for [`EdgeKind::Case`]; else 1.
    pub cases: u32,
}

/// The target of an edge.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum To {
    /// A block, by its number.
    Block(usize),
    /// An address outside of the procedure: a tail call, that is, a call and a return in one.
    Outside(Vaddr),
    /// An unknown place outside of the procedure: a tail call through a pointer.
    Elsewhere,
    /// The instruction after the call of this procedure.
    Caller,
    /// Nothing: the call before does not return, or the program stops.
    Nowhere,
    /// An unknown place, in the procedure or not.
    Unknown,
}

/// The reason for an edge.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EdgeKind {
    /// The next block follows.
    Next,
    /// A conditional jump that is not taken.
    NotTaken,
    /// A conditional jump that is taken.
    Taken,
    /// A jump to a fixed target.
    Jump,
    /// A jump through a table.
    Case,
    /// An indirect jump that the code does not explain but that was observed.
    Observed,
    /// An indirect jump to an unknown place.
    Indirect,
    /// A return.
    Return,
    /// The end of the flow.
    End,
}

/// A call in a block.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Number of the block.
    pub block: usize,
    /// Address of the call.
    pub at: Vaddr,
    /// Target, if the instruction itself has it.
    pub target: Option<Vaddr>,
    /// The word that holds the target, if the word's address is fixed.
    pub through: Option<Vaddr>,
}

/// A peculiarity of the code, or code that had to be left out.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The kind.
    pub kind: FindingKind,
    /// The address that it is about.
    pub address: Vaddr,
}

/// Kinds of findings.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FindingKind {
    /// An indirect jump whose targets are not known.
    UnresolvedJump,
    /// A table without a bound: its targets were read up to the first entry that is no target, and
    /// may be too many.
    UnboundedTable,
    /// A table has an entry that is no code, within its bound. The entry was left out.
    OddEntry,
    /// A jump into the middle of an instruction.
    MiddleOfInstruction,
    /// Bytes that are no instruction, where one should be.
    NoInstruction,
    /// The code runs out of its part.
    FallsOut,
    /// A part that overlaps another, or the end of the address space: what they share was left out.
    Overlap,
    /// A limit was reached: code or edges are left out.
    TooLarge,
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnresolvedJump => "indirect jump with unknown targets",
            Self::UnboundedTable => "jump table without a bound",
            Self::OddEntry => "jump table entry that is no code",
            Self::MiddleOfInstruction => "jump into the middle of an instruction",
            Self::NoInstruction => "bytes that are no instruction",
            Self::FallsOut => "code that runs out of the procedure",
            Self::Overlap => "part that overlaps another",
            Self::TooLarge => "too large: the rest is left out",
        })
    }
}

impl Cfg {
    /// Builds the graph of the procedure with these parts, the first of which begins with the
    /// entry.
    pub fn build(
        isa: Isa,
        parts: &[Part<'_>],
        memory: &mut impl ReadOnly,
        knowledge: &Knowledge<'_>,
    ) -> Self {
        build::build(isa, parts, memory, knowledge)
    }

    /// The blocks, by their first byte.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// The jumps whose targets are not all known.
    pub fn open_jumps(&self) -> impl Iterator<Item = Vaddr> + '_ {
        self.blocks.iter().filter(|block| block.targets_incomplete).map(|block| block.last)
    }

    /// The edges, by the block that they leave.
    pub fn edges(&self) -> &[Edge] {
        &self.edges
    }

    /// The block that the procedure is entered at. None if it has no instruction there.
    pub fn entry(&self) -> Option<usize> {
        self.entry
    }

    /// All calls, by block and address. They end no block, unless they do not return.
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// The findings about the code.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Whether some block may go to places that its edges do not name.
    pub fn missing_edges(&self) -> bool {
        self.blocks.iter().any(|block| block.targets_incomplete)
            || self.findings.iter().any(|finding| finding.kind == FindingKind::TooLarge)
    }

    /// Numbers of the edges that leave `block`.
    pub fn out_of(&self, block: usize) -> Range<usize> {
        self.blocks.get(block).map_or(0..0, |block| block.edges.clone())
    }

    /// Numbers of the edges that go to `block`.
    pub fn into_of(&self, block: usize) -> &[usize] {
        let begin = self.into_begin.get(block).copied().unwrap_or_default();
        let end = self.into_begin.get(block + 1).copied().unwrap_or(self.into.len());
        self.into.get(begin..end).unwrap_or_default()
    }

    /// Blocks that the edges of `block` go to, one for each edge.
    pub fn successors(&self, block: usize) -> impl DoubleEndedIterator<Item = usize> {
        let edges = self.edges.get(self.out_of(block)).unwrap_or_default();
        edges
            .iter()
            .filter_map(|edge| if let To::Block(block) = edge.to { Some(block) } else { None })
    }

    /// Blocks whose edges go to `block`, one for each edge.
    pub fn predecessors(&self, block: usize) -> impl Iterator<Item = usize> {
        self.into_of(block).iter().filter_map(|&edge| Some(self.edges.get(edge)?.from))
    }

    /// Numbers of the blocks that are entered from outside: the entry first, then the others by
    /// address.
    pub fn entrances(&self) -> Vec<usize> {
        let others = (0..self.blocks.len())
            .filter(|&block| self.is_entered(block) && Some(block) != self.entry);
        self.entry.into_iter().chain(others).collect()
    }

    /// Whether `block` is entered from outside, or may be.
    pub fn is_entered(&self, block: usize) -> bool {
        self.blocks.get(block).is_some_and(|block| block.entered != Entered::No)
    }

    /// The calls in `block`.
    pub fn calls_in(&self, block: usize) -> &[Call] {
        let calls = self.blocks.get(block).map_or(0..0, |block| block.calls.clone());
        self.calls.get(calls).unwrap_or_default()
    }

    /// Addresses of the instructions of `block`.
    pub fn instructions(&self, block: usize) -> impl Iterator<Item = Vaddr> {
        let found = self.blocks.get(block);
        let lens = found
            .and_then(|block| self.lens.get(block.first_len..block.first_len + block.instructions));
        let mut at = found.map_or(0, |block| block.start.0);
        lens.unwrap_or_default().iter().map(move |&len| {
            let this = at;
            at = at.wrapping_add(u64::from(len));
            Vaddr(this)
        })
    }

    /// The block that has an instruction at, or around, `address`. Of two such blocks, the one
    /// whose first byte is nearer.
    pub fn block_of(&self, address: Vaddr) -> Option<usize> {
        let after = self.blocks.partition_point(|block| block.start <= address);
        // Overlapping blocks are one instruction apart.
        (after.saturating_sub(4)..after)
            .rev()
            .find(|&number| self.blocks.get(number).is_some_and(|b| address < b.end))
    }
}

#[cfg(test)]
impl Cfg {
    /// A graph of `count` blocks, one byte each, with an edge for each pair; those without one
    /// return.
    pub(crate) fn of_pairs(count: usize, pairs: &[(usize, usize)]) -> Self {
        let mut this = Self { entry: Some(0), ..Self::default() };
        for block in 0..count {
            let first = this.edges.len();
            let out = pairs.iter().filter(|(from, _)| *from == block);
            let edge = |to| Edge { from: block, to, kind: EdgeKind::Jump, cases: 1 };
            this.edges.extend(out.map(|&(_, to)| edge(To::Block(to))));
            if this.edges.len() == first {
                this.edges.push(edge(To::Caller));
            }
            let start = Vaddr(block as u64);
            this.blocks.push(Block {
                start,
                end: Vaddr(start.0 + 1),
                last: start,
                instructions: 1,
                ending: Ending::Next,
                entered: Entered::No,
                padding: false,
                targets_incomplete: false,
                edges: first..this.edges.len(),
                calls: 0..0,
                first_len: block,
            });
            this.lens.push(1);
        }
        build::index(&mut this);
        build::enter(&mut this, |_| false);
        this
    }

    /// A graph of up to 8 blocks with random edges.
    pub(crate) fn random(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let count = random.usize(1..9);
        let pairs: Vec<(usize, usize)> = (0..random.usize(0..15))
            .map(|_| (random.usize(0..count), random.usize(0..count)))
            .collect();
        Self::of_pairs(count, &pairs)
    }
}

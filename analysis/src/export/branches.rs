//! Branches, as far as the registers at samples told which way they went.
//!
//! An edge is from an instruction to the one executed next, counted where the daemon could follow a sampled thread. Which way a branch goes is
//! known to about 0.03 of its executions (`cargo xtask bench walks --callgrind`); how often it is executed is not: edges are met in proportion to
//! the time that is spent shortly before them, as samples are.

use std::collections::BTreeMap;

use code::isa::{Isa, Line, Syntax};
use image::{ImageOffset, Site, Sites, Vaddr};
use profiledb::Edges;

use crate::procedures::Known;

/// Bytes looked at for the next branch behind a place; runs without one that are longer are cut there.
const RUN_BYTES_MAX: u64 = 256;
/// Bytes of the longest x86-64 instruction (Intel SDM volume 2, 2.3.11).
const INSTRUCTION_BYTES_MAX: u64 = 15;
/// What stands behind the counts of branches, in a line.
pub const FIDELITY: &str = "branches are computed from registers at samples: which way they go is good to about 0.03, how often they are executed is time";

/// A branch that went one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Branch {
    /// Its address, as [`super::Place::address`].
    pub from: u64,
    /// What was executed next.
    pub to: u64,
    /// Whether that is just what follows it: it was not taken.
    pub falls_through: bool,
    /// The last instruction that was certainly executed from `to` on, one after the other: the next branch.
    pub run_end: u64,
    /// Where `to` is the first instruction of another procedure than the branch's, as it is of a call: that one's name for linkers.
    pub callee: Option<String>,
    /// The places in the source that the branch is of; none where that was not asked for, or is not known.
    pub sites: Vec<Site>,
    /// How often that was met.
    pub times: u64,
}

/// The branches of an image's edges, by `from` and `to`, and how many edges are of code of which there are no bytes.
#[must_use]
pub fn resolve(edges: &Edges, known: &Known) -> (Vec<Branch>, u64) {
    let mut run_ends = BTreeMap::new();
    let (mut branches, mut without) = (Vec::with_capacity(edges.len()), 0_u64);
    for (from, to, times) in edges.iter() {
        let end = *run_ends.entry(to).or_insert_with(|| run_end(known, to));
        match (next_of(known, from), end) {
            (Some(next), Some(run_end)) => branches.push(Branch {
                from: known.address(from),
                to: known.address(to),
                falls_through: known.address(to) == next,
                run_end,
                callee: callee(known, from, to),
                sites: Vec::new(),
                times,
            }),
            _ => without = without.saturating_add(times),
        }
    }
    (branches, without)
}

/// Says where in the source branches into other procedures are.
pub fn locate(branches: &mut [Branch], sites: &Sites<'_>) {
    for branch in branches.iter_mut().filter(|branch| branch.callee.is_some()) {
        branch.sites = sites.at(Vaddr(branch.from));
    }
}

fn lines(known: &Known, at: ImageOffset, bytes: u64) -> Vec<Line> {
    let Some(binary) = &known.binary else { return Vec::new() };
    let Some(isa) = Isa::of_elf_machine(binary.machine()) else { return Vec::new() };
    let segments = binary.layout().segments().iter().filter(|segment| segment.executable);
    let room = segments.filter_map(|segment| {
        let into = at.0.checked_sub(segment.offset.0)?;
        segment.file_size_bytes.checked_sub(into)
    });
    let bytes = room.max().unwrap_or(0).min(bytes);
    let bytes = if bytes == 0 { Vec::new() } else { binary.code(at, bytes).unwrap_or_default() };
    isa.disassemble(&bytes, Vaddr(known.address(at)), Syntax::Intel)
}

/// The address after an instruction.
fn next_of(known: &Known, at: ImageOffset) -> Option<u64> {
    let lines = lines(known, at, INSTRUCTION_BYTES_MAX);
    let line = lines.first()?;
    line.address.0.checked_add(line.len as u64)
}

/// The next branch, or what comes last within the bytes that are looked at.
fn run_end(known: &Known, from: ImageOffset) -> Option<u64> {
    let lines = lines(known, from, RUN_BYTES_MAX);
    // Without a branch the last instruction may be cut.
    let end = lines.iter().position(|line| line.branches).unwrap_or(lines.len().saturating_sub(2));
    lines.get(end).map(|line| line.address.0)
}

fn callee(known: &Known, from: ImageOffset, to: ImageOffset) -> Option<String> {
    let procedure = known.procedures.find(to).filter(|procedure| procedure.start == to)?;
    (!procedure.contains(from)).then(|| procedure.raw_name().to_owned())
}

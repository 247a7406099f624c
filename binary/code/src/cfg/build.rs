//! Builds the graph.

use std::collections::BTreeMap;

use image::Vaddr;

use super::blocks::{Goal, Jumps, Raw, Way, form};
use super::discover::Code;
use super::follow::follow_values;
use super::tables::Reader;
use super::{
    Block, Call, Cfg, EDGES_MAX, Edge, Entered, Finding, FindingKind, Knowledge, Part, ReadOnly, To,
};
use crate::isa::Isa;
use crate::isa::flow::{Flow, Tracker};

/// Most nested jumps through tables: each round finds the code behind the jumps of the round
/// before. Code that nests deeper has unresolved jumps; compilers' code nests a few deep.
const ROUNDS_MAX: usize = 24;

pub(super) fn build(
    isa: Isa,
    parts: &[Part<'_>],
    memory: &mut impl ReadOnly,
    knowledge: &Knowledge<'_>,
) -> Cfg {
    let mut code = Code::new(isa, parts, *knowledge);
    let entry =
        parts.iter().find(|part| !part.bytes.is_empty()).and_then(|part| code.place(part.begin));
    if let Some(entry) = entry {
        code.lead(entry);
    }
    code.follow();
    let mut jumps = Jumps { observed: observed(&code, knowledge), ..Jumps::default() };
    let mut reader = Reader::default();
    let known: Vec<(usize, bool)> = entry.map(|entry| (entry, true)).into_iter().collect();
    let aside = |code: &Code<'_>| {
        (0..code.places()).filter(|&place| code.is_entered_aside(place)).collect::<Vec<_>>()
    };
    resolve(&mut code, &mut jumps, &mut reader, &known, memory, knowledge);
    // Code that no edge leads to is followed last. It may be no code, and values known on other
    // paths are not known there.
    let mut roots = code.fill_gaps();
    roots.extend(aside(&code).into_iter().filter(|&place| Some(place) != entry));
    // Without such code, another pass would find the same.
    if !roots.is_empty() {
        let others = roots.iter().map(|&place| (place, false));
        let known: Vec<(usize, bool)> = known.iter().copied().chain(others).collect();
        resolve(&mut code, &mut jumps, &mut reader, &known, memory, knowledge);
        code.fill_gaps();
    }
    code.findings.append(&mut reader.findings);
    finish(code, &jumps, entry)
}

/// Resolves indirect jumps until a round finds nothing new.
fn resolve(
    code: &mut Code<'_>,
    jumps: &mut Jumps,
    reader: &mut Reader,
    roots: &[(usize, bool)],
    memory: &mut impl ReadOnly,
    knowledge: &Knowledge<'_>,
) {
    let mut tracker: Option<Tracker> = None;
    for _ in 0..ROUNDS_MAX {
        let raws = form(code);
        let open = |raw: &Raw| {
            matches!(raw.flow, Flow::Indirect { .. }) && !jumps.resolved.contains_key(&raw.last)
        };
        if !raws.iter().any(open) {
            return;
        }
        let tracker = tracker.get_or_insert_with(|| Tracker::new(code.isa()));
        let reached = follow_values(code, &raws, jumps, roots, tracker, memory);
        if !reader.resolve(code, &reached, jumps, knowledge, tracker.named(), memory) {
            return;
        }
        code.follow();
    }
}

/// The observed jumps, as places.
fn observed(code: &Code<'_>, knowledge: &Knowledge<'_>) -> BTreeMap<usize, Vec<Goal>> {
    let mut all: BTreeMap<usize, Vec<Goal>> = BTreeMap::new();
    for &(from, to) in knowledge.observed {
        if let Some(from) = code.place(from) {
            let goal = code.place(to).map_or(Goal::Outside(to), Goal::Place);
            all.entry(from).or_default().push(goal);
        }
    }
    for goals in all.values_mut() {
        goals.sort_unstable();
        goals.dedup();
    }
    all
}

fn finish(mut code: Code<'_>, jumps: &Jumps, entry: Option<usize>) -> Cfg {
    let raws = form(&code);
    let number = |place: usize| raws.binary_search_by_key(&place, |raw| raw.place).ok();
    let (ways, used) = ways(&code, &raws, jumps, entry);
    let mut cfg = Cfg { entry: entry.and_then(number), ..Cfg::default() };
    for ((raw, ways), used) in raws.iter().zip(ways).zip(&used) {
        let first_edge = cfg.edges.len();
        let room = EDGES_MAX.saturating_sub(first_edge);
        if ways.len() > room {
            code.findings
                .push(Finding { kind: FindingKind::TooLarge, address: code.address(raw.last) });
        }
        for way in ways.into_iter().take(room) {
            let to = match way.goal {
                Goal::Place(place) => number(place).map_or(To::Nowhere, To::Block),
                Goal::Outside(address) => To::Outside(address),
                Goal::Elsewhere => To::Elsewhere,
                Goal::Caller => To::Caller,
                Goal::Nowhere => To::Nowhere,
                Goal::Unknown => To::Unknown,
            };
            cfg.edges.push(Edge { from: cfg.blocks.len(), to, kind: way.kind, cases: way.cases });
        }
        push_block(&mut cfg, &code, raw, first_edge, *used);
    }
    cfg.findings = std::mem::take(&mut code.findings);
    for block in cfg.blocks.iter().filter(|block| block.targets_incomplete) {
        cfg.findings.push(Finding { kind: FindingKind::UnresolvedJump, address: block.last });
    }
    cfg.findings.sort_unstable_by_key(|finding| (finding.address, finding.kind));
    cfg.findings.dedup();
    index(&mut cfg);
    enter(&mut cfg, |block| raws.get(block).is_some_and(|raw| code.is_entered_aside(raw.place)));
    cfg
}

/// The edges of each block, and whether an edge leads to the block or it is not a filler. Filler
/// that no edge leads to gets no edges: else it would be a second entry of the loop that it aligns.
fn ways(
    code: &Code<'_>,
    raws: &[Raw],
    jumps: &Jumps,
    entry: Option<usize>,
) -> (Vec<Vec<Way>>, Vec<bool>) {
    let number = |place: usize| raws.binary_search_by_key(&place, |raw| raw.place).ok();
    let is_used =
        |raw: &Raw| !raw.filler || Some(raw.place) == entry || code.is_entered_aside(raw.place);
    let mut used: Vec<bool> = raws.iter().map(is_used).collect();
    let mut all: Vec<Vec<Way>> = raws.iter().map(|_| Vec::new()).collect();
    // Filler goes forward only, so a piece of filler is decided after all filler that leads to it.
    for filler in [false, true] {
        for (index, raw) in raws.iter().enumerate().filter(|(_, raw)| raw.filler == filler) {
            if used.get(index) != Some(&true) {
                continue;
            }
            let ways = raw.ways(code, jumps);
            for way in &ways {
                if let Goal::Place(place) = way.goal
                    && let Some(to) = number(place).and_then(|to| used.get_mut(to))
                {
                    *to = true;
                }
            }
            if let Some(at) = all.get_mut(index) {
                *at = ways;
            }
        }
    }
    (all, used)
}

fn push_block(cfg: &mut Cfg, code: &Code<'_>, raw: &Raw, first_edge: usize, used: bool) {
    let (first_len, first_call, number) = (cfg.lens.len(), cfg.calls.len(), cfg.blocks.len());
    let mut place = raw.place;
    while place < raw.end {
        let flow =
            if code.calls(place) { code.order(place).map(|ordered| ordered.flow) } else { None };
        if let Some(Flow::Call { target, through } | Flow::NoReturn { target, through }) = flow {
            let at = code.address(place);
            cfg.calls.push(Call {
                block: number,
                at,
                target: target.map(Vaddr),
                through: through.map(Vaddr),
            });
        }
        let len = code.len_at(place).max(1);
        cfg.lens.push(u8::try_from(len).unwrap_or(u8::MAX));
        place += len;
    }
    let start = code.address(raw.place);
    let targets_incomplete =
        cfg.edges.get(first_edge..).unwrap_or_default().iter().any(|edge| edge.to == To::Unknown);
    cfg.blocks.push(Block {
        start,
        end: Vaddr(start.0 + (raw.end - raw.place) as u64),
        last: code.address(raw.last),
        instructions: raw.instructions,
        ending: raw.ending(code),
        entered: Entered::No,
        padding: !used,
        targets_incomplete,
        edges: first_edge..cfg.edges.len(),
        calls: first_call..cfg.calls.len(),
        first_len,
    });
}

/// Sorts edges by the block that they go to.
pub(super) fn index(cfg: &mut Cfg) {
    let goal = |edge: &usize| match cfg.edges.get(*edge)?.to {
        To::Block(block) => Some(block),
        _ => None,
    };
    let mut into: Vec<usize> = (0..cfg.edges.len()).filter(|edge| goal(edge).is_some()).collect();
    into.sort_by_key(goal);
    cfg.into_begin = (0..cfg.blocks.len())
        .map(|block| into.partition_point(|edge| goal(edge) < Some(block)))
        .collect();
    cfg.into = into;
}

/// Marks the blocks that the graph's edges do not lead to.
pub(super) fn enter(cfg: &mut Cfg, is_aside: impl Fn(usize) -> bool) {
    let mut seen: Vec<bool> = cfg.blocks.iter().map(|block| block.padding).collect();
    let entry = cfg.entry;
    let mut roots: Vec<(usize, Entered)> =
        entry.map(|entry| (entry, Entered::Entry)).into_iter().collect();
    let all = 0..cfg.blocks.len();
    roots.extend(
        all.clone()
            .filter(|&block| Some(block) != entry && is_aside(block))
            .map(|block| (block, Entered::Aside)),
    );
    // Blocks without any edge to them first; then loops that no edge enters, from their first
    // block.
    let unreferenced = all.clone().filter(|&block| cfg.into_of(block).is_empty()).chain(all);
    let roots = roots.into_iter().chain(unreferenced.map(|block| (block, Entered::Unreferenced)));
    let mut found = Vec::new();
    for (root, entered) in roots {
        let known = entered != Entered::Unreferenced;
        let new = seen.get(root) == Some(&false);
        if !known && !new {
            continue;
        }
        found.push((root, entered));
        let mut pending = vec![root];
        while let Some(block) = pending.pop() {
            if let Some(seen) = seen.get_mut(block)
                && !std::mem::replace(seen, true)
            {
                pending.extend(cfg.successors(block));
            }
        }
    }
    for (block, entered) in found {
        if let Some(block) = cfg.blocks.get_mut(block) {
            block.entered = entered;
        }
    }
}

//! An interpreter whose instructions all jump through one table: a thousand edges are estimated
//! through one node of that table, and get the executions that they would have without it.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests panic to fail")]

use code::cfg::{Cfg, Knowledge, Loops, Part, ReadOnly, To};
use code::isa::Isa;
use estimate::{Branch, Estimate, ProcedureSamples};
use image::Vaddr;

const PIECES: u64 = 32;
const TABLE: u64 = 0x10_0000;
/// movzx eax, byte ptr [rdi]; inc rdi; and eax, 31; jmp [rax * 8 + TABLE]
const PIECE: &[u8] = &[
    0x0f, 0xb6, 0x07, 0x48, 0xff, 0xc7, 0x83, 0xe0, 0x1f, 0xff, 0x24, 0xc5, 0x00, 0x00, 0x10, 0x00,
];
/// Offset of the jump in a piece.
const JUMP: u64 = 9;

/// The jump table: where pieces begin. The last piece is a `ret`.
struct Table;

impl ReadOnly for Table {
    fn constant(&mut self, address: Vaddr, _: u8) -> Option<u64> {
        let entry = address.0.checked_sub(TABLE)? / 8;
        (entry < PIECES).then_some(entry * PIECE.len() as u64)
    }
}

/// The graph and its estimate, from samples of time in each piece and from observed branches.
fn estimated(samples: impl Fn(u64) -> u64, branches: &[Branch]) -> (Cfg, Estimate) {
    let mut code = PIECE.repeat(PIECES as usize - 1);
    code.push(0xc3);
    let parts = [Part { begin: Vaddr(0), bytes: &code }];
    let graph = Cfg::build(Isa::X86_64, &parts, &mut Table, &Knowledge::default());
    assert_eq!(graph.blocks().len() as u64, PIECES);
    assert_eq!(graph.edges().len() as u64, (PIECES - 1) * PIECES + 1);
    let loops = Loops::of(&graph);
    let landed: Vec<(Vaddr, u64)> =
        (0..PIECES).map(|piece| (Vaddr(piece * PIECE.len() as u64), samples(piece))).collect();
    let sampled = ProcedureSamples { time: &landed, branches, ..ProcedureSamples::default() };
    let estimate = estimate::estimate(&graph, &loops, &sampled).unwrap();
    (graph, estimate)
}

/// Asserts that executions are conserved at each block.
fn balanced(graph: &Cfg, estimate: &Estimate) {
    let mut comes = vec![0.0; graph.blocks().len()];
    let mut goes = comes.clone();
    comes[graph.entry().unwrap()] = 1.0;
    for (edge, executions) in graph.edges().iter().zip(&estimate.edges) {
        goes[edge.from] += executions;
        if let To::Block(to) = edge.to {
            comes[to] += executions;
        }
    }
    for ((block, comes), goes) in estimate.blocks.iter().zip(comes).zip(goes) {
        assert!((comes / block.executions - 1.0).abs() < 1e-6, "{comes} {block:?}");
        assert!((goes / block.executions - 1.0).abs() < 1e-6, "{goes} {block:?}");
    }
}

#[test]
fn pieces_are_executed_as_their_time_says() {
    let samples = |piece: u64| if piece + 1 == PIECES { 10 } else { 1000 * (1 + piece % 4) };
    let (graph, estimate) = estimated(samples, &[]);
    balanced(&graph, &estimate);
    let [one, four] = [4, 7].map(|piece: usize| estimate.blocks[piece].executions);
    assert!((four / one / 4.0).ln().abs() < 0.3, "{four} {one}");
}

#[test]
fn what_was_observed_of_one_piece_is_its_own() {
    let (from, to) =
        (5 * PIECE.len() as u64 + JUMP, |piece: u64| Vaddr(piece * PIECE.len() as u64));
    let branch =
        |piece, first| Branch { from: Vaddr(from), to: to(piece), first, ..Branch::default() };
    let (graph, estimate) = estimated(|_| 1000, &[branch(6, 9000), branch(9, 1000)]);
    balanced(&graph, &estimate);
    let share = |from: usize, to: usize| {
        let edge =
            graph.out_of(from).find(|edge| graph.edges()[*edge].to == To::Block(to)).unwrap();
        estimate.edges[edge] / estimate.blocks[from].executions
    };
    assert!(
        (share(5, 6) - 0.9).abs() < 0.02 && (share(5, 9) - 0.1).abs() < 0.02,
        "{} {}",
        share(5, 6),
        share(5, 9)
    );
    assert!(share(5, 8) < 0.001, "{}", share(5, 8));
    // Other pieces have no observations, and their estimates are all the same.
    assert!(
        (share(4, 8) / share(3, 8) - 1.0).abs() < 1e-6 && share(4, 8) > 0.01,
        "{}",
        share(4, 8)
    );
    // With few observations, an edge's executions are those observed plus those through the table.
    let (graph, estimate) = estimated(|_| 1000, &[branch(6, 9), branch(9, 1)]);
    balanced(&graph, &estimate);
}

//! Loops whose tests tell how many rounds they make, beside branches that say otherwise or nothing.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests panic to fail")]

use code::cfg::{Cfg, Knowledge, Loops, Part};
use code::isa::Isa;
use estimate::{Branch, Confidence, Estimate, Sampled, Turned};
use image::Vaddr;

/// test rsi, rsi; je 12; xor eax, eax; 7: add eax, esi; dec rsi; jne 7; ret; 15: xor eax, eax; ret
const GUARDED: &[u8] = &[
    0x48, 0x85, 0xf6, 0x74, 0x0a, 0x31, 0xc0, 0x01, 0xf0, 0x48, 0xff, 0xce, 0x75, 0xf9, 0xc3, 0x31,
    0xc0, 0xc3,
];
/// xor eax, eax; 2: cmp [rdi], eax; je 12; dec rsi; jne 2; 11: nop; 12: ret
const TWO_EXITS: &[u8] =
    &[0x31, 0xc0, 0x39, 0x07, 0x74, 0x06, 0x48, 0xff, 0xce, 0x75, 0xf7, 0x90, 0xc3];

/// The graph's blocks by where they begin, with what is said of them. Samples of time are in the
/// loop only; its test, the last of the branches from one place to another that were `seen` 5000
/// times, goes back to its header and makes `rounds` rounds.
fn estimated(code: &[u8], seen: &[(u64, u64)], rounds: u64) -> (Vec<u64>, Estimate) {
    let parts = [Part { begin: Vaddr(0), bytes: code }];
    let graph = Cfg::build(Isa::X86_64, &parts, &mut (), &Knowledge::default());
    let loops = Loops::of(&graph);
    let &(test, header) = seen.last().unwrap();
    let mut turned = Vec::new();
    let mut left = 1;
    while left < rounds {
        let width: u64 = 1 << (u64::BITS - left.leading_zeros()).saturating_sub(4);
        let count = 5000 * (left + width).min(rounds) / rounds - 5000 * left / rounds;
        turned.push(Turned { branch: Vaddr(test), jumps: true, rounds: left, width, count });
        left += width;
    }
    let branch = |&(from, to)| Branch { from: Vaddr(from), to: Vaddr(to), first: 5000, later: 0 };
    let branches: Vec<Branch> = seen.iter().map(branch).collect();
    let landed = [(Vaddr(header), 30_000), (Vaddr(header + 2), 29_000)];
    let sampled = Sampled { landed: &landed, branches: &branches, rounds: &turned, points: None };
    let estimate = estimate::estimate(&graph, &loops, &sampled).unwrap();
    (graph.blocks().iter().map(|block| block.start.0).collect(), estimate)
}

/// A loop of a million rounds, whose guard no sample tells of, ran 194,706 times for one entry of
/// the procedure, "high": the guard was guessed to be taken 4 of 5 times, because its block had no
/// sample.
#[test]
fn a_guard_without_samples_is_one_more_of_the_tests_of_its_loop() {
    let (blocks, estimate) = estimated(GUARDED, &[(12, 7)], 1 << 20);
    assert_eq!(blocks, [0, 5, 7, 14, 15]);
    let runs = estimate.blocks[2].executions;
    assert!((runs / (1 << 20) as f64).ln().abs() < 0.1, "{runs}");
    // Nobody has seen the guard: the procedure may have been entered far more often than the loop.
    assert_eq!(estimate.blocks[0].confidence, Confidence::Low);
    assert!(estimate.blocks[0].spread > 0.5, "{:?}", estimate.blocks[0]);
    assert_eq!(estimate.blocks[1].confidence, Confidence::High);
}

/// Branches that were seen to go on 5000 times, and never out, say that a loop makes hundreds of
/// thousands of rounds; its test, that it ends after a thousand at the latest. The test decides,
/// and nothing is called sure.
#[test]
fn where_branches_and_a_test_contradict_the_test_decides() {
    let (blocks, estimate) = estimated(TWO_EXITS, &[(4, 6), (9, 2)], 1000);
    assert_eq!(blocks, [0, 2, 6, 11, 12]);
    let [trips] = estimate.trips.as_slice() else { panic!("{:?}", estimate.trips) };
    assert!(!trips.only && trips.decides && trips.alike, "{trips:?}");
    let runs = estimate.blocks[1].executions;
    assert!(runs < 1100.0, "{runs}");
    assert_eq!(estimate.blocks[1].confidence, Confidence::Low);
    let (low, high) = trips.range();
    assert!(low < 1000.0 && 1000.0 < high && high < 1.2 * low, "{low} to {high}");
}

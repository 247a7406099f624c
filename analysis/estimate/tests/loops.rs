//! Loops with a sampled trip count, beside observed branches that contradict it or say nothing.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests panic to fail")]

use code::cfg::{Cfg, Knowledge, Loops, Part};
use code::isa::Isa;
use estimate::{Branch, Confidence, Estimate, ProcedureSamples, RemainingRounds};
use image::Vaddr;

/// test rsi, rsi; je 12; xor eax, eax; 7: add eax, esi; dec rsi; jne 7; ret; 15: xor eax, eax; ret
const GUARDED: &[u8] = &[
    0x48, 0x85, 0xf6, 0x74, 0x0a, 0x31, 0xc0, 0x01, 0xf0, 0x48, 0xff, 0xce, 0x75, 0xf9, 0xc3, 0x31,
    0xc0, 0xc3,
];
/// xor eax, eax; 2: cmp [rdi], eax; je 12; dec rsi; jne 2; 11: nop; 12: ret
const TWO_EXITS: &[u8] =
    &[0x31, 0xc0, 0x39, 0x07, 0x74, 0x06, 0x48, 0xff, 0xce, 0x75, 0xf7, 0x90, 0xc3];

/// The addresses of the graph's blocks, and its estimate. Samples of time are in the loop only. The
/// branches `observed` (from, to) were each observed 5000 times; the last is the loop's test, which
/// goes back to the header. Each entry of the loop makes `rounds` rounds.
fn estimated(code: &[u8], observed: &[(u64, u64)], rounds: u64) -> (Vec<u64>, Estimate) {
    let parts = [Part { begin: Vaddr(0), bytes: code }];
    let graph = Cfg::build(Isa::X86_64, &parts, &mut (), &Knowledge::default());
    let loops = Loops::of(&graph);
    let &(test, header) = observed.last().unwrap();
    let mut remaining_rounds = Vec::new();
    let mut left = 1;
    while left < rounds {
        let width: u64 = 1 << (u64::BITS - left.leading_zeros()).saturating_sub(4);
        let count = 5000 * (left + width).min(rounds) / rounds - 5000 * left / rounds;
        remaining_rounds.push(RemainingRounds {
            branch: Vaddr(test),
            jumps: true,
            rounds: left,
            width,
            count,
        });
        left += width;
    }
    let branch =
        |&(from, to)| Branch { from: Vaddr(from), to: Vaddr(to), first: 5000, ..Branch::default() };
    let branches: Vec<Branch> = observed.iter().map(branch).collect();
    let landed = [(Vaddr(header), 30_000), (Vaddr(header + 2), 29_000)];
    let sampled = ProcedureSamples {
        time: &landed,
        branches: &branches,
        remaining_rounds: &remaining_rounds,
        ..ProcedureSamples::default()
    };
    let estimate = estimate::estimate(&graph, &loops, &sampled).unwrap();
    (graph.blocks().iter().map(|block| block.start.0).collect(), estimate)
}

/// A loop of a million rounds ran 194,706 times per entry of the procedure with confidence "high":
/// its guard had no samples, and a prior of 4/5 let it skip the loop.
#[test]
fn a_guard_without_samples_is_one_more_of_the_tests_of_its_loop() {
    let (blocks, estimate) = estimated(GUARDED, &[(12, 7)], 1 << 20);
    assert_eq!(blocks, [0, 5, 7, 14, 15]);
    let runs = estimate.blocks[2].executions;
    assert!((runs / (1 << 20) as f64).ln().abs() < 0.1, "{runs}");
    // The guard has no observations: the procedure may be entered far more often than the loop.
    assert_eq!(estimate.blocks[0].confidence, Confidence::Low);
    assert!(estimate.blocks[0].log_sd > 0.5, "{:?}", estimate.blocks[0]);
    assert_eq!(estimate.blocks[1].confidence, Confidence::High);
}

/// Branches that were observed 5000 times to stay in the loop, and never to leave it, imply
/// hundreds of thousands of rounds. The trip count says a thousand at most. The trip count decides,
/// with confidence "low".
#[test]
fn where_branches_and_a_test_contradict_the_test_decides() {
    let (blocks, estimate) = estimated(TWO_EXITS, &[(4, 6), (9, 2)], 1000);
    assert_eq!(blocks, [0, 2, 6, 11, 12]);
    let [trips] = estimate.trips.as_slice() else { panic!("{:?}", estimate.trips) };
    assert!(!trips.only_exit && trips.decides && trips.constant, "{trips:?}");
    let runs = estimate.blocks[1].executions;
    assert!(runs < 1100.0, "{runs}");
    assert_eq!(estimate.blocks[1].confidence, Confidence::Low);
    let (low, high) = trips.interval;
    assert!(low < 1000.0 && 1000.0 < high && high < 1.5 * low, "{low} to {high}");
}

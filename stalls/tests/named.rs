//! Causes are named where they can be, and cleared where they cannot.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests panic to fail")]

use code::cfg::{Cfg, Knowledge, Loops, Part};
use code::isa::Isa;
use code::isa::work::Work;
use estimate::{Branch, Sampled};
use image::Vaddr;
use stalls::{Cause, Explanation, Machine, Timed, explain};

/// What is told of the instructions of a procedure, by their addresses, if those at `slow` took that many samples, and each other 100.
fn explained(code: &[u8], slow: &[(u64, u64)]) -> Vec<(u64, Explanation)> {
    explained_by(code, slow, &[])
}

/// Of branches that were seen: from, to, how often.
fn explained_by(code: &[u8], slow: &[(u64, u64)], seen: &[(u64, u64, u64)]) -> Vec<(u64, Explanation)> {
    let branch = |&(from, to, first)| Branch { from: Vaddr(from), to: Vaddr(to), first, later: 0 };
    let branches: Vec<Branch> = seen.iter().map(branch).collect();
    let parts = [Part { begin: Vaddr(0), bytes: code }];
    let graph = Cfg::build(Isa::X86_64, &parts, &mut (), &Knowledge::default());
    let loops = Loops::of(&graph);
    let addresses: Vec<Vec<Vaddr>> =
        (0..graph.blocks().len()).map(|block| graph.instructions(block).collect()).collect();
    let count = |at: &Vaddr| slow.iter().find(|(address, _)| *address == at.0).map_or(100, |(_, count)| *count);
    let landed: Vec<(Vaddr, u64)> = addresses.iter().flatten().map(|at| (*at, count(at))).collect();
    let sampled = Sampled { landed: &landed, branches: &branches, ..Sampled::default() };
    let estimate = estimate::estimate(&graph, &loops, &sampled).unwrap();
    let work = |at: &Vaddr| Isa::X86_64.work(&code[at.0 as usize..]).unwrap();
    let work: Vec<Vec<Work>> = addresses.iter().map(|block| block.iter().map(work).collect()).collect();
    let samples = |block: &Vec<Vaddr>| block.iter().map(|at| count(at) as f64).collect();
    let samples: Vec<Vec<f64>> = addresses.iter().map(samples).collect();
    let timed = Timed {
        graph: &graph,
        loops: &loops,
        estimate: &estimate,
        work: &work,
        samples: &samples,
        branches: &branches,
        measured: Some(50.0),
    };
    let told = explain(&Machine::named("znver3").unwrap(), &timed).blocks;
    addresses.into_iter().flatten().map(|at| at.0).zip(told.into_iter().flatten()).collect()
}

fn is_suspected(told: &[(u64, Explanation)], at: u64, cause: Cause) -> Option<u64> {
    let (_, told) = told.iter().find(|(address, _)| *address == at).unwrap();
    told.culprits.iter().find(|culprit| culprit.cause == cause).map(|culprit| culprit.at)
}

#[test]
fn a_branch_can_be_found_late_only_where_one_is_taken() {
    // test edi, edi; je over; add eax, 1; add eax, 1; over: add ebx, 1; ret
    let code = [0x85, 0xff, 0x74, 6, 0x83, 0xc0, 1, 0x83, 0xc0, 1, 0x83, 0xc3, 1, 0xc3];
    let told = explained(&code, &[(4, 20_000), (10, 20_000)]);
    assert_eq!(is_suspected(&told, 4, Cause::Resteer), None);
    assert!(is_suspected(&told, 4, Cause::Mispredict).is_some());
    assert!(is_suspected(&told, 10, Cause::Resteer).is_some());
}

#[test]
fn what_a_mispredicted_branch_waits_for_is_its_fault_too() {
    // xor eax, eax; round: movzx edx, [rdi]; test dl, dl; jns over; xor rax, 0x55; over: add rdi, 1; cmp rdi, rcx; jne round; ret
    let code = [
        0x31, 0xc0, 0x0f, 0xb6, 0x17, 0x84, 0xd2, 0x79, 4, 0x48, 0x83, 0xf0, 0x55, 0x48, 0x83, 0xc7, 1, 0x48, 0x39,
        0xcf, 0x75, 0xec, 0xc3,
    ];
    let slow = [(0, 500), (2, 50_000_000), (5, 100_000_000), (13, 100_000_000), (22, 500)];
    let share = |taken: u64| {
        let seen = [(7, 13, taken), (7, 9, 10_000 - taken), (20, 2, 100_000), (20, 22, 1)];
        let told = explained_by(&code, &slow, &seen);
        // The loop's own branch is foreseen: what comes first in a round comes after the other in the round before.
        let of = |at| {
            let (_, told): &(u64, Explanation) = told.iter().find(|(address, _)| *address == at).unwrap();
            told.culprits.iter().find(|culprit| culprit.cause == Cause::Mispredict).map_or(0.0, |culprit| culprit.high)
        };
        of(2) + of(5)
    };
    assert!(share(5_000) > 1.0 && share(5_000) > 20.0 * share(1), "{} {}", share(5_000), share(1));
}

#[test]
fn a_loop_that_fits_knows_its_branches() {
    // mov ecx, 1000; round: imul eax, eax; dec ecx; jne round; ret
    let code = [0xb9, 0xe8, 3, 0, 0, 0x0f, 0xaf, 0xc0, 0xff, 0xc9, 0x75, 0xf9, 0xc3];
    let told = explained(&code, &[(0, 1), (5, 2_000_000), (8, 100_000), (12, 1)]);
    let (_, first) = told.iter().find(|(at, _)| *at == 5).unwrap();
    let most = first.culprits.iter().find(|culprit| culprit.cause == Cause::Resteer).map_or(0.0, |found| found.high);
    assert!(most < 1.0, "{first:?}");
}

#[test]
fn units_are_suspected_where_the_best_case_waits_for_them() {
    // round: add of r8 to r15, rax, rdx, rsi and rdi to themselves; dec ecx; jne round; ret: four units for twelve.
    let mut code: Vec<u8> = (0..8).flat_map(|register| [0x4d, 0x01, 0xc0 | register << 3 | register]).collect();
    code.extend([0x48, 0x01, 0xc0, 0x48, 0x01, 0xd2, 0x48, 0x01, 0xf6, 0x48, 0x01, 0xff]);
    let latch = code.len() as u64;
    code.extend([0xff, 0xc9, 0x75, (-(latch as i64) - 4) as u8, 0xc3]);
    let slow: Vec<(u64, u64)> = (0..latch).step_by(3).map(|at| (at, 1_000_000)).collect();
    let told = explained(&code, &slow);
    assert!(told.iter().any(|(at, _)| is_suspected(&told, *at, Cause::Port) == Some(*at)), "{told:#?}");
    // round: add eax, 1; dec ecx; jne round; ret: units enough.
    let told = explained(&[0x83, 0xc0, 1, 0xff, 0xc9, 0x75, 0xf9, 0xc3], &[(0, 1_000_000)]);
    assert!(told.iter().all(|(at, _)| is_suspected(&told, *at, Cause::Port).is_none()), "{told:#?}");
}

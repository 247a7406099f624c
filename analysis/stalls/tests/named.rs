//! Causes are suspected where they are possible, and ruled out where they are not.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests panic to fail")]

use code::cfg::{Cfg, Knowledge, Loops, Part};
use code::isa::Isa;
use code::isa::work::Work;
use estimate::{Branch, ProcedureSamples, RemainingRounds};
use image::Vaddr;
use stalls::{
    Cause, Explained, Explanation, Machine, ProfiledProcedure, Scale, ScaleBasis, TimeBreakdown,
    explain,
};

/// The explanations of a procedure's instructions, by address. `slow` has addresses with their
/// samples; each other instruction has 100.
fn explained(code: &[u8], slow: &[(u64, u64)]) -> Vec<(u64, Explanation)> {
    explained_by(code, slow, &[])
}

/// The same with observed branches: from, to, observed count.
fn explained_by(
    code: &[u8],
    slow: &[(u64, u64)],
    observed: &[(u64, u64, u64)],
) -> Vec<(u64, Explanation)> {
    let count =
        |at: u64| slow.iter().find(|(address, _)| *address == at).map_or(100, |(_, count)| *count);
    let (addresses, explanations) = explained_as(code, count, (observed, &[]), Some(50.0));
    addresses
        .into_iter()
        .flatten()
        .map(|at| at.0)
        .zip(explanations.blocks.into_iter().flatten())
        .collect()
}

/// The addresses of each block's instructions, and their explanations, from samples by address,
/// observed branches with their remaining rounds, and measured samples per cycle.
fn explained_as(
    code: &[u8],
    count: impl Fn(u64) -> u64,
    (observed, remaining_rounds): (&[(u64, u64, u64)], &[RemainingRounds]),
    measured: Option<f64>,
) -> (Vec<Vec<Vaddr>>, Explained) {
    explained_on(
        &Machine::named("znver3").unwrap(),
        code,
        count,
        (observed, remaining_rounds),
        measured,
    )
}

/// The same on another machine.
fn explained_on(
    machine: &Machine,
    code: &[u8],
    count: impl Fn(u64) -> u64,
    (observed, remaining_rounds): (&[(u64, u64, u64)], &[RemainingRounds]),
    measured: Option<f64>,
) -> (Vec<Vec<Vaddr>>, Explained) {
    let branch = |&(from, to, first)| Branch {
        from: Vaddr(from),
        to: Vaddr(to),
        first,
        ..Branch::default()
    };
    let branches: Vec<Branch> = observed.iter().map(branch).collect();
    let parts = [Part { begin: Vaddr(0), bytes: code }];
    let graph = Cfg::build(Isa::X86_64, &parts, &mut (), &Knowledge::default());
    let loops = Loops::of(&graph);
    let addresses: Vec<Vec<Vaddr>> =
        (0..graph.blocks().len()).map(|block| graph.instructions(block).collect()).collect();
    let landed: Vec<(Vaddr, u64)> =
        addresses.iter().flatten().map(|at| (*at, count(at.0))).collect();
    let sampled = ProcedureSamples {
        time: &landed,
        branches: &branches,
        remaining_rounds,
        ..ProcedureSamples::default()
    };
    let estimate = estimate::estimate(&graph, &loops, &sampled).unwrap();
    let work = |at: &Vaddr| Isa::X86_64.work(&code[at.0 as usize..]).unwrap();
    let work: Vec<Vec<Work>> =
        addresses.iter().map(|block| block.iter().map(work).collect()).collect();
    let samples = |block: &Vec<Vaddr>| block.iter().map(|at| count(at.0) as f64).collect();
    let samples: Vec<Vec<f64>> = addresses.iter().map(samples).collect();
    let profiled = ProfiledProcedure {
        graph: &graph,
        loops: &loops,
        estimate: &estimate,
        work: &work,
        samples: &samples,
        branches: &branches,
        remaining_rounds,
        measured: measured
            .and_then(|scale| Scale::measured(scale, ScaleBasis::RetiredInstructions)),
    };
    let explanations = explain(machine, &profiled);
    (addresses, explanations)
}

fn is_suspected(explanations: &[(u64, Explanation)], at: u64, cause: Cause) -> Option<u64> {
    let (_, explanation) = explanations.iter().find(|(address, _)| *address == at).unwrap();
    explanation.culprits.iter().find(|culprit| culprit.cause == cause).map(|culprit| culprit.at)
}

#[test]
fn only_a_taken_branch_can_be_a_late_one() {
    // test edi, edi; je over; add eax, 1; add eax, 1; over: add ebx, 1; ret
    let code = [0x85, 0xff, 0x74, 6, 0x83, 0xc0, 1, 0x83, 0xc0, 1, 0x83, 0xc3, 1, 0xc3];
    let explanations = explained(&code, &[(4, 20_000), (10, 20_000)]);
    assert_eq!(is_suspected(&explanations, 4, Cause::Resteer), None);
    assert!(is_suspected(&explanations, 4, Cause::Mispredict).is_some());
    assert!(is_suspected(&explanations, 10, Cause::Resteer).is_some());
}

#[test]
fn the_wait_of_a_mispredicted_branch_is_part_of_its_cost() {
    // xor eax, eax; round: movzx edx, [rdi]; test dl, dl; jns over; xor rax, 0x55; over: add rdi,
    // 1; cmp rdi, rcx; jne round; ret
    let code = [
        0x31, 0xc0, 0x0f, 0xb6, 0x17, 0x84, 0xd2, 0x79, 4, 0x48, 0x83, 0xf0, 0x55, 0x48, 0x83,
        0xc7, 1, 0x48, 0x39, 0xcf, 0x75, 0xec, 0xc3,
    ];
    let slow = [(0, 500), (2, 50_000_000), (5, 100_000_000), (13, 100_000_000), (22, 500)];
    let share = |taken: u64| {
        let observed = [(7, 13, taken), (7, 9, 10_000 - taken), (20, 2, 100_000), (20, 22, 1)];
        let explanations = explained_by(&code, &slow, &observed);
        // The loop's own branch is foreseen: what comes first in a round comes after the other in
        // the round before.
        let of = |at| {
            let (_, explanation): &(u64, Explanation) =
                explanations.iter().find(|(address, _)| *address == at).unwrap();
            explanation
                .culprits
                .iter()
                .find(|culprit| culprit.cause == Cause::Mispredict)
                .map_or(0.0, |culprit| culprit.high)
        };
        of(2) + of(5)
    };
    assert!(share(5_000) > 1.0 && share(5_000) > 20.0 * share(1), "{} {}", share(5_000), share(1));
}

#[test]
fn a_loop_that_fits_knows_its_branches() {
    // mov ecx, 1000; round: imul eax, eax; dec ecx; jne round; ret
    let code = [0xb9, 0xe8, 3, 0, 0, 0x0f, 0xaf, 0xc0, 0xff, 0xc9, 0x75, 0xf9, 0xc3];
    let explanations = explained(&code, &[(0, 1), (5, 2_000_000), (8, 100_000), (12, 1)]);
    let (_, first) = explanations.iter().find(|(at, _)| *at == 5).unwrap();
    let most = first
        .culprits
        .iter()
        .find(|culprit| culprit.cause == Cause::Resteer)
        .map_or(0.0, |found| found.high);
    assert!(most < 1.0, "{first:?}");
}

#[test]
fn units_are_suspected_where_the_best_case_waits_for_them() {
    // round: add of r8 to r15, rax, rdx, rsi and rdi to themselves; dec ecx; jne round; ret: four
    // units for twelve.
    let mut code: Vec<u8> =
        (0..8).flat_map(|register| [0x4d, 0x01, 0xc0 | register << 3 | register]).collect();
    code.extend([0x48, 0x01, 0xc0, 0x48, 0x01, 0xd2, 0x48, 0x01, 0xf6, 0x48, 0x01, 0xff]);
    let latch = code.len() as u64;
    code.extend([0xff, 0xc9, 0x75, (-(latch as i64) - 4) as u8, 0xc3]);
    let slow: Vec<(u64, u64)> = (0..latch).step_by(3).map(|at| (at, 1_000_000)).collect();
    let explanations = explained(&code, &slow);
    assert!(
        explanations
            .iter()
            .any(|(at, _)| is_suspected(&explanations, *at, Cause::Port) == Some(*at)),
        "{explanations:#?}"
    );
    // round: add eax, 1; dec ecx; jne round; ret: units enough.
    let explanations = explained(&[0x83, 0xc0, 1, 0xff, 0xc9, 0x75, 0xf9, 0xc3], &[(0, 1_000_000)]);
    assert!(
        explanations.iter().all(|(at, _)| is_suspected(&explanations, *at, Cause::Port).is_none()),
        "{explanations:#?}"
    );
}

/// 0: mov rdi, [rdi]; dec rsi; jne 0; ret: the loop begins where the procedure does.
const CHASE: &[u8] = &[0x48, 0x8b, 0x3f, 0x48, 0xff, 0xce, 0x75, 0xf8, 0xc3];
/// 0: xor eax, eax; 2: bt edx, 3; jae 10; add eax, esi; 10: ror rdx; dec rsi; jne 2; ret
const EITHER: &[u8] = &[
    0x31, 0xc0, 0x0f, 0xba, 0xe2, 0x03, 0x73, 0x02, 0x01, 0xf0, 0x48, 0xd1, 0xca, 0x48, 0xff, 0xce,
    0x75, 0xf0, 0xc3,
];
/// The branch of `EITHER`, and its two targets.
const BRANCH: u64 = 6;
const WAYS: [u64; 2] = [8, 10];

/// Where the time of a procedure went, with 1000 samples of each instruction of its loop.
fn spent(
    code: &[u8],
    in_loop: std::ops::Range<u64>,
    observed: &[(u64, u64, u64)],
    remaining_rounds: &[RemainingRounds],
) -> TimeBreakdown {
    let count = |at: u64| if in_loop.contains(&at) { 1000 } else { 0 };
    explained_as(code, count, (observed, remaining_rounds), None).1.sums
}

/// The largest share of the time that a cause can have taken.
fn most(sums: &TimeBreakdown, cause: Cause) -> f64 {
    sums.causes.get(&cause).map_or(0.0, |(_, most)| most / sums.samples)
}

/// `whatcg` allowed instruction TLB misses 83 % of the time of a loop in one page: where a loop
/// begins at the procedure's entry, each round counted as an entry of the procedure.
#[test]
fn a_loop_in_one_page_has_no_misses_of_code_after_its_first_round() {
    let sums = spent(CHASE, 0..8, &[(6, 0, 10_000), (6, 8, 10)], &[]);
    for cause in [Cause::InstructionTlb, Cause::InstructionCache, Cause::Mispredict, Cause::Resteer]
    {
        // Each entry may miss, and go the wrong way at the end: one round of a thousand.
        assert!(most(&sums, cause) < 0.5, "{cause}: {sums:#?}");
    }
    assert!(most(&sums, Cause::DataCache) > 0.6, "{sums:#?}");
    // The length of a round is unknown, so no time is called static.
    assert!(sums.unknown == sums.samples && sums.waits.is_empty(), "{sums:#?}");
}

/// A loop of two cache lines was suspected of an instruction cache miss in each round, where an
/// instruction crosses from one line to the other: 19 % of the time of a loop of a million rounds.
#[test]
fn a_loop_in_two_lines_misses_neither_after_its_first_round() {
    // 60 no-ops; 60: inc eax; dec rsi; jne 60; ret
    let code = [[0x90; 60].as_slice(), &[0xff, 0xc0, 0x48, 0xff, 0xce, 0x75, 0xf9, 0xc3]].concat();
    let sums = spent(&code, 60..67, &[(65, 60, 1_000_000), (65, 67, 10)], &[]);
    let most = most(&sums, Cause::InstructionCache);
    assert!(most < 0.1, "{most} of {sums:#?}");
}

/// A branch with random directions and one that changes direction once in a thousand rounds were
/// both suspected of 97 % of the time and more: only the probability of each direction counted, and
/// counted twice.
#[test]
fn a_branch_that_seldom_changes_direction_is_hardly_mispredicted() {
    let observed = [(BRANCH, WAYS[0], 4000), (BRANCH, WAYS[1], 4000), (16, 2, 8000), (16, 18, 8)];
    let remaining_rounds = |rounds, count| {
        [false, true].map(|jumps| RemainingRounds {
            branch: Vaddr(BRANCH),
            jumps,
            rounds,
            width: 1,
            count,
        })
    };
    let at_random =
        (1..12).flat_map(|rounds| remaining_rounds(rounds, 4000 >> rounds)).collect::<Vec<_>>();
    let in_runs = (1..1000).flat_map(|rounds| remaining_rounds(rounds, 4)).collect::<Vec<_>>();
    let [random, unknown, runs] = [at_random.as_slice(), &[], &in_runs].map(|remaining_rounds| {
        most(&spent(EITHER, 2..18, &observed, remaining_rounds), Cause::Mispredict)
    });
    assert!(random > 0.5 && unknown >= random, "{random} {unknown}");
    assert!(runs < 0.2, "{runs} beside {random}");
    // Branches that mostly go one way are wrong no oftener than the other is taken.
    let seldom = [(BRANCH, WAYS[0], 7992), (BRANCH, WAYS[1], 8), (16, 2, 8000), (16, 18, 8)];
    let seldom = most(&spent(EITHER, 2..18, &seldom, &[]), Cause::Mispredict);
    assert!(seldom < 0.2, "{seldom}");
}

/// Of 700 cycles of a load, a page walk could have taken all on a machine of which nothing is
/// known, so that no cycle was surely the cache's. Where the machine is measured, most of them are.
#[test]
fn on_a_measured_machine_a_pointer_chase_waits_for_the_cache() {
    const CYCLES: f64 = 700.0;
    let measured = model::MeasuredMachine::of_file(include_bytes!("zen4.json").as_slice()).unwrap();
    let generic = Machine::named("znver4").unwrap();
    let mut known = generic.clone();
    known.learn(&measured);
    let range = |machine: &Machine| {
        let observed = ([(6, 0, 10_000), (6, 8, 10)].as_slice(), [].as_slice());
        let count = |at: u64| if at == 0 { 70_000 } else { 0 };
        let of = |scale: f64| explained_on(machine, CHASE, count, observed, Some(scale)).1;
        // At one sample a cycle, cycles are samples per execution of the estimate's scale.
        let per_execution = of(1.0).blocks[0][0].cycles;
        let told = of(per_execution / CYCLES);
        let load = &told.blocks[0][0];
        assert!((load.cycles - CYCLES).abs() < 1.0, "{load:?}");
        let of_cache = load.culprits.iter().find(|one| one.cause == Cause::DataCache).unwrap();
        let (low, high) = told.sums.of_data;
        assert!(low > 0.95 * told.sums.samples && high >= low, "{:?}", told.sums);
        (of_cache.low, of_cache.high)
    };
    let (low, high) = range(&generic);
    assert!(low == 0.0 && high > 600.0, "{low} to {high}");
    let (low, high) = range(&known);
    let walk = measured.page_walk_cycles.unwrap().value;
    assert!((low - (CYCLES - walk)).abs() < 15.0 && high > 690.0, "{low} to {high}, walk {walk}");
}

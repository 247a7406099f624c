//! Any bytes as code, with any samples: graphs, estimates and explanations do not panic, and their
//! numbers add up.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests panic to fail")]

use code::cfg::{Cfg, Knowledge, Loops, Part};
use code::isa::Isa;
use code::isa::work::Work;
use estimate::{Branch, Outcomes, ProcedureSamples, RemainingRounds, Sequence};
use image::Vaddr;
use stalls::{Explained, Machine, ProfiledProcedure, Scale, ScaleBasis, explain};

/// Instructions that compilers write, so that random code has loops and paths; the rest are random
/// bytes.
const PIECES: [&[u8]; 16] = [
    &[0xff, 0xc9],
    &[0x75, 0xf0],
    &[0x74, 0x10],
    &[0x48, 0x8b, 0x07],
    &[0x48, 0x89, 0x06],
    &[0x48, 0xf7, 0xf1],
    &[0xf0, 0xff, 0x07],
    &[0xf3, 0xa4],
    &[0x0f, 0xae, 0xf0],
    &[0xe8, 0, 0, 0, 0x10],
    &[0xff, 0xe0],
    &[0xeb, 0xe8],
    &[0xc3],
    &[0x48, 0x83, 0xc7, 0x40],
    &[0x0f, 0x1f, 0x40, 0],
    &[0xcc],
];

/// The same for A64: sums, loads, stores, a division, a barrier, a locked addition, a copy of
/// memory, branches, a call, a return.
const WORDS: [u32; 18] = [
    0x7100_0421,
    0x54ff_ff41,
    0xb400_00a0,
    0xf940_0020,
    0xf840_8420,
    0xf900_0062,
    0xa9bf_7bfd,
    0x9ac1_0c00,
    0xd503_3b9f,
    0xf821_0001,
    0x1904_0440,
    0x1e62_1820,
    0x4ea2_1c20,
    0x9400_2000,
    0xd61f_0020,
    0x17ff_fff0,
    0x9100_4021,
    0xd65f_03c0,
];

fn code(random: &mut fastrand::Rng, isa: Isa) -> Vec<u8> {
    let mut bytes = Vec::new();
    if isa == Isa::Aarch64 {
        for _ in 0..random.usize(1..100) {
            let word = if random.u8(..10) == 0 {
                random.u32(..)
            } else {
                WORDS[random.usize(..WORDS.len())]
            };
            bytes.extend(word.to_le_bytes());
        }
        return bytes;
    }
    while bytes.len() < random.usize(1..400) {
        if random.u8(..10) == 0 {
            bytes.push(random.u8(..));
        } else {
            bytes.extend(PIECES[random.usize(..PIECES.len())]);
        }
    }
    bytes
}

fn sequence(random: &mut fastrand::Rng) -> Sequence {
    let mut times = || random.u64(..) >> random.u32(..64);
    let mut outcomes = |history| (history, Outcomes { jumped: times(), went_on: times() });
    let outcomes: Vec<(u8, Outcomes)> = [1, 2, 3, 20, 31].map(&mut outcomes).into();
    Sequence::of(&outcomes)
}

#[test]
fn whatever_the_code_is_sums_add_up() {
    let named = |name| Machine::named(name).unwrap();
    let machines: Vec<Machine> = Isa::ALL.into_iter().flat_map(Machine::names).map(named).collect();
    let mut explained = 0;
    for seed in 0..3000_u64 {
        let mut random = fastrand::Rng::with_seed(seed);
        let machine = &machines[random.usize(..machines.len())];
        let isa = machine.isa;
        let bytes = code(&mut random, isa);
        let begin = Vaddr([0x1000, 0, u64::MAX - 99, 1 << 63][random.usize(..4)]);
        let part = Part { begin, bytes: &bytes };
        let graph = Cfg::build(isa, &[part], &mut (), &Knowledge::default());
        let loops = Loops::of(&graph);
        let mut landed: Vec<(Vaddr, u64)> = (0..graph.blocks().len())
            .flat_map(|block| graph.instructions(block).collect::<Vec<_>>())
            .map(|at| (at, [0, 1, 30, 1 << 20, u64::MAX >> 8][random.usize(..5)]))
            .filter(|(_, count)| *count > 0)
            .collect();
        landed.sort_unstable();
        landed.dedup_by_key(|(at, _)| *at);
        let any = |random: &mut fastrand::Rng| Vaddr(begin.0.wrapping_add(random.u64(..500)));
        let branches: Vec<Branch> = (0..random.usize(..8))
            .map(|_| Branch {
                from: any(&mut random),
                to: any(&mut random),
                first: random.u64(..1000),
                later: random.u64(..) >> 20,
                sequence: random.bool().then(|| sequence(&mut random)),
            })
            .collect();
        let remaining_rounds: Vec<RemainingRounds> = (0..random.usize(..8))
            .map(|_| RemainingRounds {
                branch: any(&mut random),
                jumps: random.bool(),
                rounds: random.u64(1..) >> random.u32(..63) | 1,
                width: 1,
                count: random.u64(..) >> 20,
            })
            .collect();
        let sampled = ProcedureSamples {
            time: &landed,
            branches: &branches,
            remaining_rounds: &remaining_rounds,
            ..ProcedureSamples::default()
        };
        let at =
            |address: Vaddr| &bytes[(address.0.wrapping_sub(begin.0) as usize).min(bytes.len())..];
        let of_blocks = || (0..graph.blocks().len()).map(|block| graph.instructions(block));
        let work: Vec<Vec<Work>> = of_blocks()
            .map(|block| block.map(|at_| isa.work(at(at_)).unwrap_or_default()).collect())
            .collect();
        let count = |at: Vaddr| {
            landed
                .binary_search_by_key(&at, |(at, _)| *at)
                .map_or(0.0, |index| landed[index].1 as f64)
        };
        let samples: Vec<Vec<f64>> = of_blocks().map(|block| block.map(count).collect()).collect();
        let Some(estimate) =
            stalls::estimate(Some(machine), &graph, &loops, &sampled, (&work, &samples))
        else {
            continue;
        };
        let scale = random.f64() * f64::from(random.u8(..4) / 3) * 1e6;
        let measured = Scale::measured(scale, ScaleBasis::RetiredInstructions);
        let profiled = ProfiledProcedure {
            graph: &graph,
            loops: &loops,
            estimate: &estimate,
            work: &work,
            samples: &samples,
            branches: &branches,
            remaining_rounds: &remaining_rounds,
            measured,
        };
        let explained_procedure = explain(machine, &profiled);
        let Some(scale) = explained_procedure.scale else { continue };
        explained += 1;
        holds(seed, scale, &explained_procedure);
    }
    assert!(explained > 500, "only {explained} were explained");
}

/// Asserts the invariants of every explanation.
fn holds(seed: u64, scale: Scale, explained_procedure: &Explained) {
    assert!(0.0 <= scale.lower_if_stalled && scale.lower_if_stalled <= scale.lower);
    assert!(
        scale.lower <= scale.samples_per_cycle
            && scale.samples_per_cycle <= scale.upper
            && scale.upper.is_finite(),
        "{seed}: {scale:?}"
    );
    let sums = &explained_procedure.sums;
    let parts = sums.execution
        + sums.waits.values().sum::<f64>()
        + sums.dynamic
        + sums.unexplained
        + sums.error
        + sums.unknown;
    assert!(
        (parts - sums.gain - sums.samples).abs() <= 1e-6 * (parts + sums.samples),
        "{seed}: {sums:?}"
    );
    for (low, high) in sums.causes.values() {
        assert!(
            0.0 <= *low && low <= high && *high <= sums.samples * (1.0 + 1e-9),
            "{seed}: {sums:?}"
        );
    }
    for line in explained_procedure.blocks.iter().flatten() {
        assert!(
            line.cycles >= 0.0 && line.cycles <= line.cycles_max && line.unexplained >= 0.0,
            "{seed}: {line:?}"
        );
        for culprit in &line.culprits {
            assert!(
                0.0 <= culprit.low && culprit.low <= culprit.high * (1.0 + 1e-9),
                "{seed}: {line:?}"
            );
        }
    }
}

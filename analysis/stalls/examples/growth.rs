//! How long graph, estimate and explanation of a procedure take as it grows: `cargo xtask bench
//! why`. The procedures are interpreters' loops: a dispatching block that jumps to any of many
//! pieces, each with a branch and a loop of its own, all of which go back to it; the same where
//! each piece dispatches itself, through one table; and loops in each other.
#![allow(clippy::print_stdout, reason = "an example prints")]

use std::time::Instant;

use code::cfg::{Cfg, Knowledge, Loops, Part, ReadOnly};
use code::isa::Isa;
use code::isa::work::Work;
use estimate::{Branch, ProcedureSamples};
use image::Vaddr;
use stalls::{Machine, ProfiledProcedure, explain};

/// Where the table of pieces is.
const TABLE: u64 = 1 << 24;

/// The table of where pieces begin.
struct Table<'a>(&'a [Vaddr]);

impl ReadOnly for Table<'_> {
    fn constant(&mut self, address: Vaddr, _: u8) -> Option<u64> {
        let entry = address.0.checked_sub(TABLE)? / 8;
        self.0.get(usize::try_from(entry).ok()?).map(|begin| begin.0)
    }
}

/// mov eax, [rdi]; add rdi, 4; jmp [rsi + rax * 8]
const DISPATCH: &[u8] = &[0x8b, 0x07, 0x48, 0x83, 0xc7, 4, 0xff, 0x24, 0xc6];
/// add rbx, [rdi]; test rbx, rbx; je over; mov ecx, 5; (dec ecx; jne); over: jmp to the start
const PIECE: &[u8] =
    &[0x48, 0x03, 0x1f, 0x48, 0x85, 0xdb, 0x74, 9, 0xb9, 5, 0, 0, 0, 0xff, 0xc9, 0x75, 0xfc, 0xe9];
/// mov eax, [rdi]; add rdi, 4; and eax, a mask; jmp [rax * 8 + TABLE]
const OWN_DISPATCH: [&[u8]; 2] =
    [&[0x8b, 0x07, 0x48, 0x83, 0xc7, 4, 0x25], &[0xff, 0x24, 0xc5, 0, 0, 0, 1]];
/// A piece without its jump back.
const PIECE_BYTES: usize = PIECE.len() - 1;

/// A procedure.
struct Grown {
    code: Vec<u8>,
    /// Where its pieces begin.
    begins: Vec<Vaddr>,
    /// Jumps that were seen.
    seen: Vec<(Vaddr, Vaddr)>,
}

/// One block that dispatches to this many pieces.
fn central(pieces: usize) -> anyhow::Result<Grown> {
    let mut code = DISPATCH.to_vec();
    let mut begins = Vec::new();
    for _ in 0..pieces {
        begins.push(Vaddr(code.len() as u64));
        code.extend(PIECE);
        code.extend((-i32::try_from(code.len() + 4)?).to_le_bytes());
    }
    let seen = begins.iter().map(|begin| (Vaddr(6), *begin)).collect();
    Ok(Grown { code, begins: Vec::new(), seen })
}

/// Each of so many pieces, a power of two, dispatches. Some jumps of each were seen.
fn threaded(pieces: usize) -> anyhow::Result<Grown> {
    let (mut code, mut begins, mut jumps) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..pieces {
        begins.push(Vaddr(code.len() as u64));
        code.extend(PIECE.get(..PIECE_BYTES).unwrap_or_default());
        code.extend(OWN_DISPATCH[0]);
        code.extend((i32::try_from(pieces)? - 1).to_le_bytes());
        jumps.push(Vaddr(code.len() as u64));
        code.extend(OWN_DISPATCH[1]);
    }
    let mut random = fastrand::Rng::with_seed(2);
    let mut some = || random.choice(&begins).copied().unwrap_or(Vaddr(0));
    let seen = jumps.iter().flat_map(|jump| [(*jump, some()), (*jump, some())]).collect();
    Ok(Grown { code, begins, seen })
}

/// This many nested loops, each in the one before: mov ecx, 5; ...; dec ecx; jne.
fn nested(loops: usize) -> anyhow::Result<Grown> {
    let mut code = [0xb9, 5, 0, 0, 0].repeat(loops);
    for inner in (0..loops).rev() {
        code.extend([0xff, 0xc9, 0x0f, 0x85]);
        code.extend(
            i32::try_from(inner * 5)?.wrapping_sub(i32::try_from(code.len() + 4)?).to_le_bytes(),
        );
    }
    code.push(0xc3);
    Ok(Grown { code, begins: Vec::new(), seen: Vec::new() })
}

fn main() -> anyhow::Result<()> {
    let machine = Machine::named("znver3").ok_or_else(|| anyhow::anyhow!("no such machine"))?;
    type Make = fn(usize) -> anyhow::Result<Grown>;
    let kinds: [(&str, Make, &[usize]); 3] = [
        ("one dispatch", central, &[64, 128, 256, 512, 1024, 2048, 4096]),
        ("own dispatch", threaded, &[64, 128, 256]),
        ("nested loops", nested, &[64, 256, 1024, 5000]),
    ];
    println!(
        "{:>12} {:>7} {:>7} {:>9} {:>9} {:>9} {:>12}",
        "", "blocks", "edges", "graph", "estimate", "explained", "µs a block"
    );
    for (name, make, sizes) in kinds {
        for size in sizes {
            measure(&machine, name, &make(*size)?, *size)?;
        }
    }
    Ok(())
}

fn measure(machine: &Machine, name: &str, grown: &Grown, least: usize) -> anyhow::Result<()> {
    let Grown { code, begins, seen } = grown;
    let begun = Instant::now();
    let parts = [Part { begin: Vaddr(0), bytes: code }];
    let observed: &[_] = if begins.is_empty() { seen } else { &[] };
    let graph = Cfg::build(
        Isa::X86_64,
        &parts,
        &mut Table(begins),
        &Knowledge { no_return: None, observed },
    );
    let loops = Loops::of(&graph);
    let built = begun.elapsed();
    let of_blocks = || (0..graph.blocks().len()).map(|block| graph.instructions(block));
    let mut random = fastrand::Rng::with_seed(1);
    let landed: Vec<(Vaddr, u64)> =
        of_blocks().flatten().map(|at| (at, random.u64(1..100))).collect();
    let branch = |(from, to): &(Vaddr, Vaddr)| Branch {
        from: *from,
        to: *to,
        first: 20,
        later: 50,
        sequence: None,
    };
    let branches: Vec<Branch> = seen.iter().map(branch).collect();
    let begun = Instant::now();
    let sampled =
        ProcedureSamples { time: &landed, branches: &branches, ..ProcedureSamples::default() };
    let Some(estimate) = estimate::estimate(&graph, &loops, &sampled) else {
        anyhow::bail!("no estimate")
    };
    let estimated = begun.elapsed();
    let work = |at: Vaddr| {
        code.get(at.0 as usize..).and_then(|rest| Isa::X86_64.work(rest)).unwrap_or_default()
    };
    let work: Vec<Vec<Work>> = of_blocks().map(|block| block.map(work).collect()).collect();
    let mut counts = landed.iter().map(|(_, count)| *count as f64);
    let samples: Vec<Vec<f64>> =
        work.iter().map(|work| counts.by_ref().take(work.len()).collect()).collect();
    let begun = Instant::now();
    let profiled = ProfiledProcedure {
        graph: &graph,
        loops: &loops,
        estimate: &estimate,
        work: &work,
        samples: &samples,
        branches: &branches,
        remaining_rounds: &[],
        measured: None,
    };
    let explained = explain(machine, &profiled);
    let told = begun.elapsed();
    anyhow::ensure!(explained.scale.is_some(), "nothing was explained");
    let (blocks, edges) = (graph.blocks().len(), graph.edges().len());
    anyhow::ensure!(blocks >= least, "{blocks} blocks of {least} pieces");
    anyhow::ensure!(begins.is_empty() || edges >= least * least, "{edges} edges of {least} pieces");
    let all = (built + estimated + told).as_secs_f64() * 1e6 / blocks as f64;
    let ms = |took: std::time::Duration| format!("{:.1} ms", took.as_secs_f64() * 1e3);
    println!(
        "{name:>12} {blocks:>7} {edges:>7} {:>9} {:>9} {:>9} {all:>12.1}",
        ms(built),
        ms(estimated),
        ms(told)
    );
    Ok(())
}

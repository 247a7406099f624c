//! How long graph, estimate and explanation of a procedure take as it grows: `cargo xtask bench why`. The procedures are interpreters' loops: a
//! dispatching block that jumps to any of many pieces, each with a branch and a loop of its own, all of which go back to it.

use std::time::Instant;

use code::cfg::{Cfg, Knowledge, Loops, Part, ReadOnly};
use code::isa::Isa;
use code::isa::work::Work;
use code::skid::Skid;
use estimate::{Branch, Sampled};
use image::Vaddr;
use stalls::{Machine, Timed, explain};

struct Nothing;

impl ReadOnly for Nothing {
    fn constant(&mut self, _: Vaddr, _: u8) -> Option<u64> {
        None
    }
}

/// mov eax, [rdi]; add rdi, 4; jmp [rsi + rax * 8]
const DISPATCH: &[u8] = &[0x8b, 0x07, 0x48, 0x83, 0xc7, 4, 0xff, 0x24, 0xc6];
/// add rbx, [rdi]; test rbx, rbx; je over; mov ecx, 5; (dec ecx; jne); over: jmp to the begin
const PIECE: &[u8] = &[0x48, 0x03, 0x1f, 0x48, 0x85, 0xdb, 0x74, 9, 0xb9, 5, 0, 0, 0, 0xff, 0xc9, 0x75, 0xfc, 0xe9];
const BLOCKS_OF_PIECE: usize = 4;

fn main() -> anyhow::Result<()> {
    let machine = Machine::named("znver3").ok_or_else(|| anyhow::anyhow!("no such machine"))?;
    println!("{:>7} {:>7} {:>9} {:>9} {:>9} {:>12}", "blocks", "edges", "graph", "estimate", "explained", "µs a block");
    for pieces in [64, 128, 256, 512, 1024, 2048, 4096] {
        let mut code = DISPATCH.to_vec();
        let mut begins = Vec::new();
        for _ in 0..pieces {
            begins.push(Vaddr(code.len() as u64));
            code.extend(PIECE);
            code.extend((-i32::try_from(code.len() + 4)?).to_le_bytes());
        }
        let observed: Vec<(Vaddr, Vaddr)> = begins.iter().map(|begin| (Vaddr(6), *begin)).collect();
        let begun = Instant::now();
        let parts = [Part { begin: Vaddr(0), bytes: &code }];
        let knowledge = Knowledge { no_return: None, observed: &observed };
        let graph = Cfg::build(Isa::X86_64, &parts, &mut Nothing, &knowledge);
        let loops = Loops::of(&graph);
        let built = begun.elapsed();
        let of_blocks = || (0..graph.blocks().len()).map(|block| graph.instructions(block));
        let mut random = fastrand::Rng::with_seed(1);
        let landed: Vec<(Vaddr, u64)> = of_blocks().flatten().map(|at| (at, random.u64(1..100))).collect();
        let branch = |(from, to): &(Vaddr, Vaddr)| Branch { from: *from, to: *to, first: 20, later: 50 };
        let branches: Vec<Branch> = observed.iter().map(branch).collect();
        let begun = Instant::now();
        let sampled = Sampled { landed: &landed, skid: Skid::default(), branches: &branches, rounds: &[] };
        let Some(estimate) = estimate::estimate(&graph, &loops, &sampled) else { anyhow::bail!("no estimate") };
        let estimated = begun.elapsed();
        let work = |at: Vaddr| code.get(at.0 as usize..).and_then(|rest| Isa::X86_64.work(rest)).unwrap_or_default();
        let work: Vec<Vec<Work>> = of_blocks().map(|block| block.map(work).collect()).collect();
        let mut counts = landed.iter().map(|(_, count)| *count as f64);
        let samples: Vec<Vec<f64>> = work.iter().map(|work| counts.by_ref().take(work.len()).collect()).collect();
        let begun = Instant::now();
        let timed = Timed {
            graph: &graph,
            loops: &loops,
            estimate: &estimate,
            work: &work,
            samples: &samples,
            branches: &branches,
            measured: None,
        };
        let explained = explain(&machine, &timed);
        let told = begun.elapsed();
        anyhow::ensure!(explained.scale.is_some(), "nothing was explained");
        let blocks = graph.blocks().len();
        anyhow::ensure!(blocks >= pieces * BLOCKS_OF_PIECE, "{blocks} blocks of {pieces} pieces");
        let all = (built + estimated + told).as_secs_f64() * 1e6 / blocks as f64;
        let ms = |took: std::time::Duration| format!("{:.1} ms", took.as_secs_f64() * 1e3);
        println!(
            "{blocks:>7} {:>7} {:>9} {:>9} {:>9} {all:>12.1}",
            graph.edges().len(),
            ms(built),
            ms(estimated),
            ms(told)
        );
    }
    Ok(())
}

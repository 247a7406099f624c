//! What each mechanism would cost a round of a region by the evidence.

use crate::region::{Instruction, Sketch};
use crate::{Evidence, Hardware, Mechanism, Region, rivals};

/// A mechanism that there is evidence for.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) mechanism: Mechanism,
    /// Cycles of a round that it takes beyond the best case: at least, and at most.
    pub(crate) cycles: (f64, f64),
    /// How good the evidence is that it happens at all: a probability.
    pub(crate) strength: f64,
    /// The instruction.
    pub(crate) at: Option<u64>,
    /// Share of the region's samples that shows it without a time of the round.
    pub(crate) shown: f64,
    pub(crate) evidence: Vec<Evidence>,
}

/// Cycles of a locked instruction on a line that the core has (A. Fog, instruction tables: 17 to
/// 20 on Zen 3 and Ice Lake).
pub(crate) const LOCK_CYCLES: (f64, f64) = (8.0, 30.0);
/// Cycles of an access across two lines, and across two pages (A. Fog, microarchitecture: 1 to 11
/// and up to 36 on today's cores, 100 before Skylake).
const ACROSS_LINES: (f64, f64) = (0.5, 14.0);
const ACROSS_PAGES: (f64, f64) = (5.0, 150.0);
/// Cycles of a load that waits for a store to an address with the same lowest bits.
const ALIASED: (f64, f64) = (2.0, 20.0);
/// Cycles from a store to a load of the same bytes, and of the operation between (A. Fog: 4 to 5, 0
/// where the core renames memory).
const FORWARDED: (f64, f64) = (1.0, 12.0);
/// Cycles of a microcode assist (Intel optimization manual, 2024, 3.8.3: about 150).
const ASSIST: (f64, f64) = (40.0, 400.0);
/// Cycles of a line that another core has modified: 50 ns to 300 ns.
const FOREIGN_LINE: (f64, f64) = (40.0, 1500.0);
/// Share of a loop's samples at an arithmetic instruction that its throughput does not explain.
const SHOWN_MIN: f64 = 0.8;
/// Fewest accesses that were seen of an instruction that is judged by them.
const SEEN_MIN: u64 = 20;
/// Share of accesses above which they are said to cost.
const SHARE_MIN: f64 = 0.03;
/// Share of outcomes that nothing before tells, above which a branch is said to be mispredicted:
/// the limit of a branch that is told by all before is as high where few outcomes were seen.
const UNTOLD_MIN: f64 = 0.06;

/// All candidates of a region.
pub(crate) fn candidates(region: &Region, hardware: &Hardware) -> Vec<Candidate> {
    let mut found = Vec::new();
    if crate::modelled::is_known(region) {
        // Models of what was executed know more than samples of it.
        crate::modelled::candidates(region, hardware, &mut found);
    } else {
        branches(region, hardware, &mut found);
        entries(region, hardware, &mut found);
        loads(region, hardware, &mut found);
        stores(region, hardware, &mut found);
        fetching(region, hardware, &mut found);
    }
    through_memory(region, &mut found);
    crossings(region, hardware, &mut found);
    shared(region, &mut found);
    special(region, &mut found);
    assists(region, hardware, &mut found);
    crate::counted::candidates(region, hardware, &mut found);
    found
}

fn branches(region: &Region, hardware: &Hardware, found: &mut Vec<Candidate>) {
    let (mut missed, mut worst): (f64, Option<(&Instruction, f64)>) = (0.0, None);
    for instruction in &region.instructions {
        let Some(untold) = instruction.untold.filter(|untold| *untold >= UNTOLD_MIN) else {
            continue;
        };
        let times = untold * instruction.times;
        missed += times;
        if worst.is_none_or(|(_, most)| times > most) {
            worst = Some((instruction, untold));
        }
    }
    if let Some((instruction, untold)) = worst {
        let cycles = missed * hardware.mispredict_cycles;
        let text = format!(
            "`{}` at {:#x}: {:.0} % of its outcomes cannot be told from its four outcomes before",
            instruction.text,
            instruction.address,
            100.0 * untold
        );
        found.push(Candidate {
            mechanism: Mechanism::BranchMispredict,
            cycles: (0.3 * cycles, 1.6 * cycles),
            // Predictors look further back than four outcomes: at the rounds of a short loop, say.
            strength: (0.4 + 2.0 * (untold - UNTOLD_MIN)).clamp(0.4, 0.96),
            at: Some(instruction.address),
            shown: 0.0,
            evidence: vec![Evidence::of("branches", text, untold, "share")],
        });
    }
    let indirect = region.instructions.iter();
    let indirect = indirect.filter_map(|one| Some((one, one.elsewhere? * one.times)));
    if let Some((instruction, times)) = indirect.max_by(|(_, a), (_, b)| a.total_cmp(b))
        && times > 0.1
    {
        let elsewhere = instruction.elsewhere.unwrap_or(0.0);
        let cycles = times * hardware.mispredict_cycles;
        let text = format!(
            "`{}` at {:#x} goes to its most usual target in {:.0} % of its executions",
            instruction.text,
            instruction.address,
            100.0 * (1.0 - elsewhere)
        );
        found.push(Candidate {
            mechanism: if instruction.mnemonic().starts_with("ret") {
                Mechanism::ReturnMispredict
            } else {
                Mechanism::IndirectMispredict
            },
            // A processor that remembers the targets before misses none.
            cycles: (0.3 * cycles, 1.8 * cycles),
            strength: if elsewhere >= 0.5 { 0.85 } else { 0.6 },
            at: Some(instruction.address),
            shown: 0.0,
            evidence: vec![Evidence::of("branches", text, elsewhere, "share")],
        });
    }
}

/// A procedure that indirect calls enter: what a wrong guess costs is at its first instructions.
fn entries(region: &Region, hardware: &Hardware, found: &mut Vec<Candidate>) {
    let Some(first) = region.instructions.first().filter(|_| region.entered_by_chance > 0.1) else {
        return;
    };
    let cycles = region.entered_by_chance * hardware.mispredict_cycles;
    let text = format!(
        "{:.0} % of its calls come from an indirect call that has other targets as often",
        100.0 * region.entered_by_chance
    );
    found.push(Candidate {
        mechanism: Mechanism::IndirectMispredict,
        cycles: (0.3 * cycles, 1.8 * cycles),
        strength: 0.85,
        at: Some(first.address),
        shown: waiting_share(0, region),
        evidence: vec![Evidence::of("branches", text, region.entered_by_chance, "share")],
    });
}

/// Where loads find their data, by the memory that addresses are spread over.
fn loads(region: &Region, hardware: &Hardware, found: &mut Vec<Candidate>) {
    let all = region.instructions.iter().enumerate();
    let loads = all.filter(|(_, one)| one.loads && one.times > 0.0);
    let mut most: Option<(f64, Candidate, &Instruction)> = None;
    for load in loads {
        let Some(candidate) = of_load(load, region, hardware) else { continue };
        let weight = candidate.strength * candidate.cycles.1;
        if most.as_ref().is_none_or(|(before, ..)| weight > *before) {
            most = Some((weight, candidate, load.1));
        }
    }
    let Some((_, candidate, load)) = most else { return };
    found.extend(rivals::rival(&candidate, load, hardware));
    found.push(candidate);
}

fn of_load(
    (number, load): (usize, &Instruction),
    region: &Region,
    hardware: &Hardware,
) -> Option<Candidate> {
    let sketch = &load.sketch;
    let at = Some(load.address);
    let Some(span) = sketch.span() else {
        // Nothing is known of its addresses. Samples show what waits for it.
        let waiting = waiting_share(number, region);
        let cycles = (5.0 * load.times, load.times * hardware.memory_cycles.1);
        let percent = 100.0 * waiting;
        let text = format!(
            "{percent:.0} % of the samples here are at the load `{}` at {:#x} and the two \
             instructions after it, as where these wait for its data",
            load.text, load.address
        );
        let evidence = vec![Evidence::of("samples", text, waiting, "share")];
        let strength = if waiting > 0.6 { 0.7 } else { 0.2 };
        let mechanism = Mechanism::LoadFromMemory;
        let shown = waiting;
        return Some(Candidate { mechanism, cycles, strength, at, shown, evidence });
    };
    let new_lines = sketch.new_lines() * load.times;
    // The next lines of a steady stride are fetched before they are needed.
    let steady = sketch
        .usual_stride()
        .filter(|(stride, share)| *share >= 0.8 && (1..=2048).contains(&stride.unsigned_abs()));
    let lines = if sketch.is_line_of_pages() { span / 4096.0 * 64.0 } else { span };
    let level = hardware.level_of(lines);
    let walked = match steady {
        None => sketch.walked_share(span, hardware.tlb_bytes),
        Some(_) => 0.0,
    };
    let misses_tlb = walked > 0.0;
    if level.is_some_and(|level| level.number <= 1) && !misses_tlb {
        return None;
    }
    let mut evidence = vec![spread_text(load, span, sketch)];
    // Of data that the TLB covers in small pages, their size tells nothing.
    if misses_tlb || sketch.in_huge_pages > 0 {
        evidence.extend(pages(load));
    }
    if let Some((stride, _)) = steady {
        // A stream: what it needs is bandwidth.
        let text = format!("the address of `{}` moves by {stride} bytes each time", load.text);
        evidence.push(Evidence::of("addresses", text, stride as f64, "bytes"));
        let of_line = match level.map(|level| level.number) {
            Some(2) => (0.5, 8.0),
            Some(_) => (1.0, 25.0),
            None => (4.0, 120.0),
        };
        let cycles = (of_line.0 * new_lines, of_line.1 * new_lines);
        let mechanism = match level.map(|level| level.number) {
            Some(2) => Mechanism::LoadFromL2,
            Some(_) => Mechanism::LoadFromL3,
            None => Mechanism::MemoryBandwidth,
        };
        let shown = waiting_share(number, region);
        return Some(Candidate { mechanism, cycles, strength: 0.85, at, shown, evidence });
    }
    let first = hardware.first_cycles();
    let (walk, walk_max) = (walked * hardware.walk_cycles.0, walked * hardware.walk_cycles.1);
    let (usual, most) = match level {
        Some(level) => (level.cycles - first, 2.0 * level.cycles),
        None => (hardware.memory_cycles.0, hardware.memory_cycles.1),
    };
    let mechanism = match level.map(|level| level.number) {
        // What the data take is less than what the translation takes.
        Some(number) if misses_tlb && (number <= 2 || walk > usual) => Mechanism::PageWalk,
        Some(2) => Mechanism::LoadFromL2,
        Some(_) => Mechanism::LoadFromL3,
        None => Mechanism::LoadFromMemory,
    };
    // Loads that depend on each other wait one after the other; of others several wait at once.
    let least = if load.chases { 0.5 } else { 0.02 };
    let cycles = (least * (usual + walk) * new_lines, (1.3 * most + walk_max) * new_lines);
    if load.chases {
        let text = format!("`{}` loads from an address that a load before it gave", load.text);
        evidence.push(Evidence { kind: "code", text, value: None, unit: None });
    }
    // Without a measurement, sizes of the machine's caches are not known for sure.
    let strength = if hardware.is_measured { 0.96 } else { 0.85 };
    // What is hidden behind other work is not seen by samples either.
    let shown = waiting_share(number, region) * usual / (usual + hardware.mispredict_cycles);
    let candidate = Candidate { mechanism, cycles, strength, at, shown, evidence };
    Some(by_time(candidate, load, region, hardware))
}

/// Share of the region's samples at an instruction, by its number, and at the two behind it: a
/// sample lands where an instruction waits for the loaded value.
fn waiting_share(number: usize, region: &Region) -> f64 {
    let behind = region.instructions.get(number..).unwrap_or_default();
    behind.iter().take(3).map(|one| one.share).sum()
}

/// Of a chase, which level: the one whose latency is nearest to the time of a round.
fn by_time(
    candidate: Candidate,
    load: &Instruction,
    region: &Region,
    hardware: &Hardware,
) -> Candidate {
    let Some((cycles, ..)) = region.round_cycles.filter(|_| load.chases && load.times > 0.9) else {
        return candidate;
    };
    let of_level = |number: u32| hardware.levels.iter().find(|level| level.number == number);
    let (second, third) = (of_level(2).map(|of| of.cycles), of_level(3).map(|of| of.cycles));
    let span = load.sketch.span().unwrap_or(0.0);
    let walked = load.sketch.walked_share(span, hardware.tlb_bytes);
    let (memory, walk) = (hardware.memory_cycles.0, walked * hardware.walk_cycles.0);
    // What lies in more pages than the TLB has needs a walk besides.
    let all = if walked > 0.0 {
        let with_walk = |cycles: f64| match cycles < walk {
            true => (Mechanism::PageWalk, Some(cycles + walk)),
            false => (Mechanism::LoadFromL3, Some(cycles + walk)),
        };
        let of = |cycles: Option<f64>| cycles.map_or((Mechanism::PageWalk, None), with_walk);
        [of(second), of(third), (Mechanism::LoadFromMemory, Some(memory + walk / 2.0))]
    } else {
        [
            (Mechanism::LoadFromL2, second),
            (Mechanism::LoadFromL3, third),
            (Mechanism::LoadFromMemory, Some(memory)),
        ]
    };
    let each = cycles / load.times;
    let far = |latency: f64| (each / latency).ln().abs();
    let known = all.into_iter().filter_map(|(mechanism, latency)| Some((mechanism, latency?)));
    let nearest = known.min_by(|(_, a), (_, b)| far(*a).total_cmp(&far(*b)));
    let Some((mechanism, latency)) = nearest else { return candidate };
    let mut evidence = candidate.evidence;
    let on = if hardware.is_measured { "this machine" } else { "most machines" };
    let text = format!("a round takes {each:.0} cycles, {mechanism} {latency:.0} on {on}");
    evidence.push(Evidence::of("time", text, each, "cycles"));
    // Addresses and time must agree.
    let agrees = mechanism == candidate.mechanism;
    let strength = match (agrees, hardware.is_measured) {
        (true, true) => 0.98,
        (true, false) => 0.9,
        (false, true) => 0.8,
        // Neither sizes nor latencies are this machine's.
        (false, false) => 0.6,
    };
    let cycles = (0.5 * latency * load.times, 1.5 * each.max(latency) * load.times);
    Candidate { mechanism, evidence, strength, cycles, ..candidate }
}

/// The share of a load's accesses to huge pages, where it is known.
pub(crate) fn pages(load: &Instruction) -> Option<Evidence> {
    let huge = load.sketch.huge_share()?;
    let text = match huge {
        0.0 => "its data are in pages of 4 KiB: huge pages would need fewer page walks".to_owned(),
        _ => format!(
            "{:.0} % of its accesses are to huge pages, which need few page walks",
            100.0 * huge
        ),
    };
    Some(Evidence::of(Evidence::PAGES, text, huge, "share"))
}

fn spread_text(load: &Instruction, span: f64, sketch: &Sketch) -> Evidence {
    let same: u64 = sketch.apart.get(&model::Apart::Line).copied().unwrap_or(0);
    let (pairs, spread) = (sketch.pairs(), bytes(span));
    let mut text = format!(
        "the addresses of `{}` at {:#x} are spread over some {spread}, by the distances in {pairs} \
         pairs of them",
        load.text, load.address
    );
    if same > 0 {
        let percent = 100.0 * same as f64 / pairs.max(1) as f64;
        text.push_str(&format!("; {percent:.0} % of the pairs are in one line of the cache"));
    }
    Evidence::of("addresses", text, span, "bytes")
}

/// A size with two digits.
pub(crate) fn bytes(size: f64) -> String {
    let kib = 1024.0;
    match size {
        _ if size >= kib * kib * kib => format!("{:.1} GiB", size / kib / kib / kib),
        _ if size >= kib * kib => format!("{:.1} MiB", size / kib / kib),
        _ if size >= kib => format!("{:.0} KiB", size / kib),
        _ => format!("{size:.0} bytes"),
    }
}

/// Stores to memory that no cache holds, where no load waits.
fn stores(region: &Region, hardware: &Hardware, found: &mut Vec<Candidate>) {
    let stores = region.instructions.iter().filter(|one| one.stores && !one.loads && !one.locks);
    let far = stores.filter_map(|store| {
        let span = store.sketch.span()?;
        let second = hardware.levels.iter().find(|level| level.number == 2)?;
        (span > second.bytes).then_some((store, span))
    });
    let Some((store, span)) = far.max_by(|(a, _), (b, _)| a.times.total_cmp(&b.times)) else {
        return;
    };
    let new_lines = store.sketch.new_lines() * store.times;
    let is_stream = store
        .sketch
        .usual_stride()
        .is_some_and(|(stride, share)| share >= 0.8 && stride.unsigned_abs() <= 64);
    let (latency, most) = hardware.memory_cycles;
    let mechanism = if is_stream { Mechanism::MemoryBandwidth } else { Mechanism::StoreBuffer };
    found.push(Candidate {
        mechanism,
        cycles: (0.02 * latency * new_lines, most * new_lines),
        strength: 0.85,
        at: Some(store.address),
        shown: 0.0,
        evidence: vec![spread_text(store, span, &store.sketch)],
    });
}

/// A value that goes through memory from one round to the next: a counter in a table, say.
fn through_memory(region: &Region, found: &mut Vec<Candidate>) {
    let seen = region.instructions.iter().filter(|one| one.loads && one.sketch.all >= SEEN_MIN);
    let share = |one: &Instruction| one.sketch.share(one.sketch.forwarded);
    let forwarded = seen.filter(|one| share(one) >= 0.2);
    let most = forwarded.max_by(|a, b| (share(a) * a.times).total_cmp(&(share(b) * b.times)));
    if let Some(one) = most {
        let text = format!(
            "`{}` at {:#x} loads what was stored shortly before in {:.0} % of its executions",
            one.text,
            one.address,
            100.0 * share(one)
        );
        let times = share(one) * one.times;
        found.push(Candidate {
            mechanism: Mechanism::DependencyChain,
            cycles: (FORWARDED.0 * times, FORWARDED.1 * times),
            strength: 0.8,
            at: Some(one.address),
            shown: 0.0,
            evidence: vec![Evidence::of("addresses", text, share(one), "share")],
        });
    }
}

fn crossings(region: &Region, hardware: &Hardware, found: &mut Vec<Candidate>) {
    let mut add = |mechanism, what: &str, of: fn(&Sketch) -> u64, cost: (f64, f64), strength| {
        let seen = region.instructions.iter().filter(|one| one.sketch.all >= SEEN_MIN);
        let share = |one: &Instruction| one.sketch.share(of(&one.sketch));
        let costly: Vec<&Instruction> = seen.filter(|one| share(one) >= SHARE_MIN).collect();
        let times: f64 = costly.iter().map(|one| share(one) * one.times).sum();
        let most = costly.iter().max_by(|a, b| share(a).total_cmp(&share(b)));
        if let Some(one) = most {
            let text = format!(
                "{:.0} % of the accesses of `{}` at {:#x} {what}",
                100.0 * share(one),
                one.text,
                one.address
            );
            found.push(Candidate {
                mechanism,
                cycles: (cost.0 * times, cost.1 * times),
                strength,
                at: Some(one.address),
                shown: 0.0,
                evidence: vec![Evidence::of("addresses", text, share(one), "share")],
            });
        }
    };
    let forward = hardware.forward_cycles;
    add(
        Mechanism::StoreForwarding,
        "need bytes of a store before that has not all of them",
        |sketch| sketch.not_forwarded,
        (0.4 * forward, 3.0 * forward),
        0.96,
    );
    add(
        Mechanism::SplitAccess,
        "lie in two lines",
        |sketch| sketch.across_lines.saturating_sub(sketch.across_pages),
        ACROSS_LINES,
        0.9,
    );
    add(
        Mechanism::SplitAccess,
        "lie in two pages",
        |sketch| sketch.across_pages,
        ACROSS_PAGES,
        0.9,
    );
    add(
        Mechanism::Aliasing4k,
        "follow a store whose address has the same lowest 12 bits",
        |sketch| sketch.aliased,
        ALIASED,
        0.8,
    );
}

/// Lines that threads share.
fn shared(region: &Region, found: &mut Vec<Candidate>) {
    let seen = region.instructions.iter().filter(|one| one.sketch.all >= SEEN_MIN);
    let share = |one: &Instruction| {
        one.sketch.share(one.sketch.shared_others.saturating_add(one.sketch.shared_same))
    };
    let Some(one) = seen.max_by(|a, b| share(a).total_cmp(&share(b))) else { return };
    if share(one) < SHARE_MIN {
        return;
    }
    // What another thread does to the rest of a lock's line is about the lock.
    let other_bytes = if one.locks { 50 } else { 4 };
    let is_false = one.sketch.shared_others > one.sketch.shared_same.saturating_mul(other_bytes);
    let bytes = if is_false { "other bytes of the line" } else { "the same bytes" };
    let text = format!(
        "in {:.0} % of the accesses of `{}` at {:#x} another thread uses {bytes}",
        100.0 * share(one),
        one.text,
        one.address
    );
    found.push(Candidate {
        mechanism: if is_false { Mechanism::FalseSharing } else { Mechanism::ContendedLine },
        cycles: (FOREIGN_LINE.0 * 0.05 * one.times, FOREIGN_LINE.1 * one.times),
        strength: 0.93,
        at: Some(one.address),
        shown: 0.0,
        evidence: vec![Evidence::of("addresses", text, share(one), "share")],
    });
}

/// Instructions that take long by themselves.
fn special(region: &Region, found: &mut Vec<Candidate>) {
    let mut add = |mechanism, number: usize, cost: (f64, f64), strength: f64| {
        let Some(one) = region.instructions.get(number) else { return };
        let text = format!("`{}` at {:#x}", one.text, one.address);
        found.push(Candidate {
            mechanism,
            cycles: (cost.0 * one.times, cost.1 * one.times),
            strength,
            at: Some(one.address),
            shown: waiting_share(number, region),
            evidence: vec![Evidence { kind: "code", text, value: None, unit: None }],
        });
    };
    for (number, one) in region.instructions.iter().enumerate() {
        match one.mnemonic() {
            "cpuid" | "rdmsr" | "wrmsr" | "in" | "out" | "vmcall" | "vmmcall" | "invlpg" => {
                add(Mechanism::HypervisorTrap, number, (500.0, 500_000.0), 0.95);
            }
            "rdtsc" | "rdtscp" | "rdpmc" | "rdrand" | "rdseed" => {
                // In a virtual machine they trap, or not.
                add(Mechanism::HypervisorTrap, number, (1000.0, 100_000.0), 0.7);
                add(Mechanism::SerialisingInstruction, number, (15.0, 800.0), 0.9);
            }
            "mfence" | "lfence" | "sfence" | "serialize" | "clflush" | "clflushopt" => {
                add(Mechanism::SerialisingInstruction, number, (4.0, 400.0), 0.95);
            }
            "syscall" | "sysenter" | "int" => {
                add(Mechanism::SystemCall, number, (60.0, 2000.0), 0.95);
            }
            "pause" => add(Mechanism::Spinning, number, (10.0, 400.0), 0.95),
            _ if one.locks => add(Mechanism::LockedInstruction, number, LOCK_CYCLES, 0.93),
            _ if one.serialises => {
                add(Mechanism::SerialisingInstruction, number, (10.0, 400.0), 0.8);
            }
            _ => {}
        }
    }
}

/// Arithmetic that takes many times its latency, without anything else that could take it.
fn assists(region: &Region, hardware: &Hardware, found: &mut Vec<Candidate>) {
    let is_arithmetic = |(_, one): &(usize, &Instruction)| {
        let operations = ["add", "sub", "mul", "div", "fma", "fmadd", "fnmadd", "sqrt"];
        let name = one.mnemonic().trim_start_matches('v');
        operations.iter().any(|operation| name.starts_with(operation))
            && ["ss", "sd", "ps", "pd"].iter().any(|end| name.ends_with(end))
            || name.starts_with('f') && operations.iter().any(|one| name[1..].starts_with(one))
    };
    let all = region.instructions.iter().enumerate();
    let arithmetic: Vec<(usize, &Instruction)> = all.filter(is_arithmetic).collect();
    let most = arithmetic.iter().max_by(|(_, a), (_, b)| a.share.total_cmp(&b.share));
    let Some(&(number, one)) = most else { return };
    let far = region.instructions.iter().any(|one| {
        let span = one.sketch.span();
        one.loads && span.is_none_or(|span| hardware.level_of(span).is_none_or(|at| at.number > 2))
    });
    let times: f64 = arithmetic.iter().map(|(_, one)| one.times).sum();
    let limit: f64 = region.instructions.iter().map(|one| one.best_cycles * one.times).sum();
    // Operations that nothing holds up share their loop's samples with it. Of a chain of a product
    // and a sum, say, all samples are at the two, as the limit says.
    let waiting = waiting_share(number, region);
    let behind = region.instructions.get(number..).unwrap_or_default();
    let expected: f64 = behind.iter().take(3).map(|one| one.best_cycles * one.times).sum();
    let is_shown = region.is_loop && !far && waiting >= SHOWN_MIN && expected < 0.5 * limit;
    let text = if is_shown {
        let percent = 100.0 * waiting;
        format!(
            "{percent:.0} % of the loop's samples are at `{}` at {:#x} and the two instructions \
             after it",
            one.text, one.address
        )
    } else {
        format!("`{}` at {:#x} takes many times its latency", one.text, one.address)
    };
    found.push(Candidate {
        mechanism: Mechanism::Assist,
        cycles: (ASSIST.0 * one.times, ASSIST.1 * times),
        strength: if far { 0.4 } else { 0.85 },
        at: Some(one.address),
        shown: if is_shown { waiting } else { 0.0 },
        evidence: vec![Evidence { kind: "code", text, value: None, unit: None }],
    });
}

/// Code that is larger than the first-level cache.
fn fetching(region: &Region, hardware: &Hardware, found: &mut Vec<Candidate>) {
    let size = region.hot_lines as f64 * 64.0;
    if size < 24.0 * 1024.0 {
        return;
    }
    let first =
        hardware.levels.first().map_or(32.0 * 1024.0, |level| level.bytes.min(32.0 * 1024.0));
    let text = format!("90 % of its samples are in {} of code", bytes(size));
    let lines = region.hot_lines as f64;
    found.push(Candidate {
        mechanism: Mechanism::InstructionFetch,
        cycles: (0.5 * lines, 40.0 * lines),
        strength: if size > first { 0.85 } else { 0.6 },
        at: None,
        shown: 0.0,
        evidence: vec![Evidence::of("code", text, size, "bytes")],
    });
}

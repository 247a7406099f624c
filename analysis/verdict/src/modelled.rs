//! Candidates by models of the processor: misses, walks and mispredictions of a round, times what
//! each costs on the machine.

use crate::candidates::Candidate;
use crate::region::{Instruction, Modelled};
use crate::{Evidence, Hardware, Mechanism, Region};

/// Executions in the models, of the instruction with the most, that a region needs. With fewer the
/// rates are too uncertain, and samples decide.
const EXECUTIONS_MIN: u64 = 500;
/// Part of the latency that a miss costs at least where loads do not wait for each other: a core
/// has 10 to 16 misses under way at once (line fill buffers).
const AT_ONCE: f64 = 1.0 / 16.0;
/// Cycles of a line that a prefetcher fetches, beyond its use: from the second level, the third,
/// memory. At least and at most, by the bandwidth of a core of today's servers.
const STREAMED_CYCLES: [(f64, f64); 3] = [(0.5, 8.0), (1.0, 25.0), (4.0, 120.0)];
/// Cycles of a line of code that the first level does not have; parts are hidden by what was
/// fetched before.
const CODE_CYCLES: (f64, f64) = (4.0, 45.0);
/// Part and multiple of a mispredicted branch's usual cycles that one costs: less where the way is
/// known early, more where its operand comes late.
const MISPREDICT: (f64, f64) = (0.5, 2.0);
/// Events of a round below which there are none.
const RATE_MIN: f64 = 0.002;
/// How good the evidence of a model is: its caches and its predictor are not the machine's.
const STRENGTH: f64 = 0.97;
/// The same where the sizes and costs were not measured on the machine.
const STRENGTH_GENERIC: f64 = 0.85;
/// The same where the time that the model explains does not agree with the measured time.
const STRENGTH_DIFFERS: f64 = 0.7;

/// Part of the cycles of all cache levels and page walks that one of them has to take, to be named
/// without doubt.
const LARGEST_MIN: f64 = 0.65;
/// How good the evidence for the level with the most cycles is, where no level has that part.
const STRENGTH_MIXED: f64 = 0.7;

/// Which instructions are looked at.
type Which<'a> = &'a dyn Fn(&Instruction) -> bool;

/// Whether the models have seen enough of a region.
pub(crate) fn is_known(region: &Region) -> bool {
    let known = region.instructions.iter().filter(|one| one.share > 0.0 || one.times > 0.1);
    let (mut all, mut seen, mut most) = (0, 0, 0);
    for one in known {
        all += 1;
        if let Some(modelled) = &one.modelled {
            seen += usize::from(modelled.executions > 0);
            most = most.max(modelled.executions);
        }
    }
    most >= EXECUTIONS_MIN && 2 * seen > all
}

/// Whether the models have seen enough of a region, and see events that cost time.
pub(crate) fn find_any(region: &Region, hardware: &Hardware) -> bool {
    let mut found = Vec::new();
    if is_known(region) {
        candidates(region, hardware, &mut found);
    }
    !found.is_empty()
}

/// Adds what the models give evidence for.
pub(crate) fn candidates(region: &Region, hardware: &Hardware, found: &mut Vec<Candidate>) {
    let from = found.len();
    branches(region, hardware, found);
    data(region, hardware, found);
    code(region, found);
    let limit: f64 = region.instructions.iter().map(|one| one.best_cycles * one.times).sum();
    for candidate in found.iter_mut().skip(from) {
        let most = match region.round_cycles {
            _ if !hardware.is_measured => STRENGTH_GENERIC,
            Some((cycles, ..)) if !agrees(candidate.cycles, cycles - limit) => STRENGTH_DIFFERS,
            _ => STRENGTH,
        };
        candidate.strength = candidate.strength.min(most);
    }
}

/// Whether the time that a model explains is the measured one.
fn agrees((low, high): (f64, f64), excess: f64) -> bool {
    low <= 1.2 * excess.max(0.0) && high >= 0.8 * excess
}

/// Events of a round, by the models.
fn sum(region: &Region, of: impl Fn(&Instruction, &Modelled) -> f64) -> f64 {
    let known = region.instructions.iter();
    let known = known.filter_map(|one| Some((one, one.modelled.as_ref()?)));
    known.map(|(one, modelled)| one.times * of(one, modelled)).sum()
}

/// The instruction with the most of them.
fn worst(region: &Region, of: impl Fn(&Instruction, &Modelled) -> f64) -> Option<&Instruction> {
    let known = region.instructions.iter();
    let known = known.filter_map(|one| Some((one, one.times * of(one, one.modelled.as_ref()?))));
    let worst = known.filter(|(_, events)| *events > 0.0).max_by(|a, b| a.1.total_cmp(&b.1));
    worst.map(|(one, _)| one)
}

fn text(
    kind: &'static str,
    region: &Region,
    events: f64,
    what: &str,
    at: Option<&Instruction>,
) -> Evidence {
    let most = at.map(|one| format!(", most by `{}` at {:#x}", one.text, one.address));
    let each = if region.is_loop { "a round" } else { "an entry" };
    let text = format!("{events:.2} {what} {each} in the model{}", most.unwrap_or_default());
    Evidence::of(kind, text, events, "events")
}

fn branches(region: &Region, hardware: &Hardware, found: &mut Vec<Candidate>) {
    let is_return = |one: &Instruction| one.mnemonic().starts_with("ret");
    let is_indirect = |one: &Instruction| {
        let name = one.mnemonic();
        name.starts_with("call") || name.starts_with("jmp")
    };
    let kinds: [(Mechanism, Which<'_>, &str); 3] = [
        (
            Mechanism::BranchMispredict,
            &|one| !is_return(one) && !is_indirect(one),
            "mispredicted branches",
        ),
        (Mechanism::IndirectMispredict, &is_indirect, "mispredicted indirect branches"),
        (Mechanism::ReturnMispredict, &is_return, "mispredicted returns"),
    ];
    for (mechanism, is, what) in kinds {
        let of = |one: &Instruction, modelled: &Modelled| {
            if is(one) { modelled.mispredicted } else { 0.0 }
        };
        let events = sum(region, of);
        if events < RATE_MIN {
            continue;
        }
        let at = worst(region, of);
        let cycles = events * hardware.mispredict_cycles;
        found.push(Candidate {
            mechanism,
            cycles: (MISPREDICT.0 * cycles, MISPREDICT.1 * cycles),
            strength: STRENGTH,
            at: at.map(|one| one.address),
            shown: 0.0,
            evidence: vec![text("branches", region, events, what, at)],
        });
    }
}

/// Loads, stores and page walks: one candidate for each of latency, bandwidth and stores, which
/// waits at the level that takes the most.
fn data(region: &Region, hardware: &Hardware, found: &mut Vec<Candidate>) {
    let is_load = |one: &Instruction| one.loads || !one.stores;
    let first = hardware.first_cycles();
    let of_level = |number: u32| hardware.levels.iter().find(|level| level.number == number);
    let usual = |number: u32| of_level(number).map_or(0.0, |level| (level.cycles - first).max(0.0));
    let memory = hardware.memory_cycles;
    let costs = [(usual(2), usual(2)), (usual(3), 1.5 * usual(3)), memory];
    let mechanisms = [Mechanism::LoadFromL2, Mechanism::LoadFromL3, Mechanism::LoadFromMemory];
    for (loads, what) in [(true, "loads"), (false, "stores")] {
        let is = |one: &Instruction| is_load(one) == loads;
        let served = |of: fn(&Modelled) -> [f64; 3], level: usize| {
            sum(region, |one, modelled| if is(one) { from(of(modelled), level) } else { 0.0 })
        };
        let chased = region.instructions.iter().any(|one| one.chases && is(one));
        let least = if chased { 0.6 } else { AT_ONCE };
        let mut cycles = (0.0, 0.0);
        let (mut most, mut total) = ((0.0, Mechanism::LoadFromL2), 0.0);
        let mut evidence = Vec::new();
        for ((level, (usual, high)), mechanism) in costs.iter().enumerate().zip(mechanisms) {
            let events = served(|modelled| modelled.misses, level);
            if events < RATE_MIN || *usual <= 0.0 {
                continue;
            }
            cycles.0 += least * usual * events;
            cycles.1 += 1.4 * high * events;
            if usual * events > most.0 {
                most = (usual * events, mechanism);
            }
            let at = worst(
                region,
                |one, modelled| {
                    if is(one) { from(modelled.misses, level) } else { 0.0 }
                },
            );
            let place = ["the second level", "the third level", "memory"];
            let place = place.get(level).copied().unwrap_or("memory");
            let what = if loads {
                format!("loads from {place}")
            } else {
                format!("stores to lines from {place}")
            };
            evidence.push(text("addresses", region, events, &what, at));
        }
        walks(region, hardware, &is, (least, what), (&mut cycles, &mut most, &mut evidence));
        if most.1 == Mechanism::PageWalk {
            total += most.0;
        }
        let is_one = !loads || most.0 >= LARGEST_MIN * total;
        let mechanism = if loads { most.1 } else { Mechanism::StoreBuffer };
        push(region, found, (mechanism, &is, chased, is_one), cycles, evidence);
        streams(region, found, &is);
    }
}

/// Accesses that the level behind `level` misses serves.
fn from(misses: [f64; 3], level: usize) -> f64 {
    let of = |level: usize| misses.get(level).copied().unwrap_or(0.0);
    (of(level) - of(level + 1)).max(0.0)
}

type Sums<'a> = (&'a mut (f64, f64), &'a mut (f64, Mechanism), &'a mut Vec<Evidence>);

fn walks(
    region: &Region,
    hardware: &Hardware,
    is: Which<'_>,
    (least, what): (f64, &str),
    (cycles, most, evidence): Sums<'_>,
) {
    let of = |one: &Instruction, modelled: &Modelled| if is(one) { modelled.walks } else { 0.0 };
    let events = sum(region, of);
    if events < RATE_MIN {
        return;
    }
    let (usual, high) = hardware.walk_cycles;
    cycles.0 += least * 0.5 * usual * events;
    cycles.1 += high * events;
    if usual * events > most.0 {
        *most = (usual * events, Mechanism::PageWalk);
    }
    let at = worst(region, of);
    evidence.push(text("addresses", region, events, &format!("page walks of {what}"), at));
}

fn push(
    region: &Region,
    found: &mut Vec<Candidate>,
    (mechanism, is, chased, is_one): (Mechanism, Which<'_>, bool, bool),
    cycles: (f64, f64),
    mut evidence: Vec<Evidence>,
) {
    if cycles.1 <= 0.0 {
        return;
    }
    let at = worst(region, |one, modelled| {
        let [first, second, third] = modelled.misses;
        if is(one) { first + 10.0 * second + 50.0 * third + 5.0 * modelled.walks } else { 0.0 }
    });
    if chased {
        let text = "each load waits for the one before".to_owned();
        evidence.push(Evidence { kind: "code", text, value: None, unit: None });
    }
    let at = at.map(|one| one.address);
    let strength = if is_one { STRENGTH } else { STRENGTH_MIXED };
    let candidate = Candidate { mechanism, cycles, strength, at, shown: 0.0, evidence };
    found.push(candidate);
}

/// Lines that come before they are asked for: what they take is bandwidth.
fn streams(region: &Region, found: &mut Vec<Candidate>, is: Which<'_>) {
    let mechanisms = [Mechanism::LoadFromL2, Mechanism::LoadFromL3, Mechanism::MemoryBandwidth];
    let mut best: Option<(f64, Candidate)> = None;
    for (level, (mechanism, (low, high))) in mechanisms.into_iter().zip(STREAMED_CYCLES).enumerate()
    {
        let of = |one: &Instruction, modelled: &Modelled| {
            if is(one) { from(modelled.streamed, level) } else { 0.0 }
        };
        let events = sum(region, of);
        if events < RATE_MIN {
            continue;
        }
        let at = worst(region, of);
        let place = ["the second level", "the third level", "memory"];
        let place = place.get(level).copied().unwrap_or("memory");
        let what = format!("lines from {place} that a prefetcher foresees");
        let candidate = Candidate {
            mechanism,
            cycles: (low * events, high * events),
            strength: STRENGTH,
            at: at.map(|one| one.address),
            shown: 0.0,
            evidence: vec![text("addresses", region, events, &what, at)],
        };
        if best.as_ref().is_none_or(|(most, _)| high * events > *most) {
            best = Some((high * events, candidate));
        }
    }
    found.extend(best.map(|(_, candidate)| candidate));
}

fn code(region: &Region, found: &mut Vec<Candidate>) {
    let of = |_: &Instruction, modelled: &Modelled| modelled.code_misses;
    let events = sum(region, of);
    if events < RATE_MIN {
        return;
    }
    let at = worst(region, of);
    found.push(Candidate {
        mechanism: Mechanism::InstructionFetch,
        cycles: (CODE_CYCLES.0 * events, CODE_CYCLES.1 * events),
        strength: STRENGTH,
        at: at.map(|one| one.address),
        shown: 0.0,
        evidence: vec![text("code", region, events, "lines of code not in the first level", at)],
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Certainty, Level, judge};

    fn hardware() -> Hardware {
        let level = |number, bytes, cycles| Level { number, bytes, cycles };
        Hardware {
            levels: vec![level(1, 48e3, 5.0), level(2, 2e6, 16.0), level(3, 32e6, 100.0)],
            memory_cycles: (800.0, 1200.0),
            walk_cycles: (150.0, 400.0),
            is_measured: true,
            ..Hardware::generic(None)
        }
    }

    /// A load that waits for the one before, and a branch.
    fn region(cycles: f64, load: Modelled, mispredicted: f64) -> Region {
        let modelled = |modelled: Modelled| Some(Modelled { executions: 10_000, ..modelled });
        let one = |text: &str| Instruction {
            text: text.into(),
            times: 1.0,
            share: 0.5,
            best_cycles: 1.0,
            ..Instruction::default()
        };
        let load = Instruction {
            loads: true,
            chases: true,
            best_cycles: 5.0,
            modelled: modelled(load),
            ..one("mov rax, [rax]")
        };
        let branch = Modelled { mispredicted, ..Modelled::default() };
        let branch = Instruction { modelled: modelled(branch), untold: Some(0.5), ..one("jne 0") };
        Region {
            is_loop: true,
            samples: 1000.0,
            round_cycles: Some((cycles, cycles, cycles)),
            instructions: vec![load, branch],
            ..Region::default()
        }
    }

    fn told(region: &Region) -> (Mechanism, Certainty) {
        let verdict = judge(region, &hardware());
        (verdict.mechanism, Certainty::of(verdict.mechanism, verdict.probability))
    }

    #[test]
    fn the_level_is_what_misses_say_and_time_confirms() {
        let load = |first, second, third, walks| Modelled {
            misses: [first, second, third],
            walks,
            ..Modelled::default()
        };
        let certain = Certainty::Certain;
        for (cycles, load, mechanism) in [
            (17.0, load(1.0, 0.0, 0.0, 0.0), Mechanism::LoadFromL2),
            (110.0, load(1.0, 0.95, 0.02, 0.0), Mechanism::LoadFromL3),
            (900.0, load(1.0, 1.0, 1.0, 0.3), Mechanism::LoadFromMemory),
        ] {
            assert_eq!(told(&region(cycles, load, 0.0)), (mechanism, certain), "{cycles}");
        }
        // Pages may be huge.
        let walks = region(170.0, load(1.0, 0.0, 0.0, 1.0), 0.0);
        assert_eq!(told(&walks), (Mechanism::PageWalk, Certainty::Likely));
        // The model says memory; the time of a round has no room for it.
        let (_, certainty) = told(&region(20.0, load(1.0, 1.0, 1.0, 0.0), 0.0));
        assert!(certainty < certain);
    }

    /// Four outcomes before do not tell the next one, and a longer history does.
    #[test]
    fn a_branch_that_the_predictor_learns_is_none() {
        let none = Modelled::default();
        assert_eq!(told(&region(15.0, none, 0.5)).0, Mechanism::BranchMispredict);
        assert_ne!(told(&region(15.0, none, 0.0)).0, Mechanism::BranchMispredict);
    }
}

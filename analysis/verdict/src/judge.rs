//! From candidates to one verdict.

use crate::candidates::{self, Candidate, candidates};
use crate::region::{Instruction, Kind};
use crate::{Evidence, Hardware, Mechanism, Region, modelled};

/// A cause, with its probability.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The mechanism.
    pub mechanism: Mechanism,
    /// Probability that it takes most of the time beyond the best case.
    pub probability: f64,
    /// Share of the region's time that would be gained without it: value and limits.
    pub gain: (f64, f64, f64),
    /// The instruction, where one can take the time.
    pub at: Option<u64>,
    /// What it rests on.
    pub evidence: Vec<Evidence>,
    /// Other mechanisms, with their probabilities, the likeliest first.
    pub alternatives: Vec<(Mechanism, f64)>,
}

/// Fewest samples of a region that is judged.
pub const SAMPLES_MIN: u64 = 20;
/// A round that takes at most so many times its limit runs at the limit: tables of latencies and
/// the time of a round are as sure as that.
const AT_LIMIT: f64 = 1.3;
/// Share of a best case that decides what the limit is.
const OF_LIMIT: f64 = 0.35;
/// Share of a best case that instructions take by their mere number, above which it is full.
const FULL: f64 = 0.6;
/// Part of the score of the best mechanism from which on another one of the same load leaves open
/// which of the two it is.
const OPEN: f64 = 0.75;
/// Largest probability of a verdict.
const PROBABILITY_MAX: f64 = 0.97;
/// Largest probability of page walks where the pages are not known: memory in huge pages needs
/// none. A chase through 16 MiB of huge pages, in a slow L3 cache, looks the same.
const WALKS_MAX: f64 = 0.9;
/// Largest probability where the time of a round is not known, and all of the region's samples are
/// at the instruction and just behind.
const SHOWN: f64 = 0.95;
/// Probability of the limit where neither a time nor anything else was seen: most such code runs
/// as fast as its instructions let it.
const BY_DEFAULT: f64 = 0.55;
/// Largest probability of what is only possible: what was not seen makes nothing likely.
const POSSIBLE_MAX: f64 = 0.74;
/// Largest probability where the time of a round is not known.
const WITHOUT_TIME: f64 = 0.7;
/// Most alternatives that are told.
const ALTERNATIVES: usize = 3;

/// Why a region takes its time.
pub fn judge(region: &Region, hardware: &Hardware) -> Verdict {
    let limit: f64 = region.instructions.iter().map(|one| one.best_cycles * one.times).sum();
    let mut all: Vec<(f64, Candidate)> = candidates(region, hardware)
        .into_iter()
        .map(|candidate| (fit(&candidate, region, limit), candidate))
        .collect();
    if let Some((_, low, _)) = region.round_cycles.filter(|_| region.is_loop && limit > 0.0) {
        let ratio = low / limit;
        // Beyond the limit the probability falls to nothing at twice the tolerance.
        let fit = ((2.0 * AT_LIMIT - ratio) / AT_LIMIT).clamp(0.0, 1.0);
        all.push((fit * 0.97, of_limit(region, limit)));
    } else if region.round_cycles.is_none() && limit > 0.0 {
        let seen = all.iter().map(|(score, _)| *score).fold(0.0, f64::max);
        all.push((BY_DEFAULT * (1.0 - seen), by_default(region, limit)));
    }
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut of_mechanisms: Vec<(Mechanism, f64)> = Vec::new();
    for (score, candidate) in &all {
        if !of_mechanisms.iter().any(|(known, _)| *known == candidate.mechanism) {
            of_mechanisms.push((candidate.mechanism, *score));
        }
    }
    let rival = of_mechanisms.get(1).map_or(0.0, |(_, score)| *score);
    let Some((score, best)) = all.into_iter().next().filter(|(score, _)| *score >= 0.1) else {
        return match modelled::find_any(region, hardware) {
            true => without_models(region, hardware),
            false => unknown(region, limit),
        };
    };
    let score_of_best = score;
    // Of two that both explain the time, one is true.
    let score = score * (1.0 - 0.45 * rival / score.max(rival));
    let at = region.instructions.iter().find(|one| Some(one.address) == best.at);
    let pages = at.and_then(candidates::pages);
    let knows_pages = pages.is_some();
    let is_by_default = best.evidence.iter().any(|evidence| evidence.kind == "limit");
    let is_near = |(_, rival): &&(Mechanism, f64)| *rival >= OPEN * score_of_best;
    let is_open = best.mechanism.is_of_a_load()
        && of_mechanisms.get(1).filter(is_near).is_some_and(|(rival, _)| rival.is_of_a_load());
    let most = match best.mechanism {
        _ if is_by_default || is_open => POSSIBLE_MAX,
        Mechanism::PageWalk if !knows_pages => WALKS_MAX,
        _ => PROBABILITY_MAX,
    };
    let probability = calibrated(score).min(most);
    let alternatives = of_mechanisms.into_iter().skip(1).take(ALTERNATIVES);
    let alternatives = alternatives
        .map(|(mechanism, score)| (mechanism, (score * 0.5).min(1.0 - probability)))
        .filter(|(_, probability)| *probability >= 0.02)
        .collect();
    let mut evidence = times(region, limit);
    evidence.extend(best.evidence.iter().cloned());
    if best.mechanism.is_of_pages() && !evidence.iter().any(|one| one.kind == Evidence::PAGES) {
        evidence.extend(pages);
    }
    if best.mechanism == Mechanism::PageWalk && !knows_pages {
        let text = "if its data are in pages of 4 KiB: their size was not seen, and huge pages \
                    would need few walks";
        evidence.push(Evidence {
            kind: "addresses",
            text: text.to_owned(),
            value: None,
            unit: None,
        });
    }
    Verdict {
        mechanism: best.mechanism,
        probability,
        gain: gain(&best, region, limit),
        at: best.at,
        evidence,
        alternatives,
    }
}

/// Scores, and the part of the findings with these scores that was right: of 113 programs with one
/// cause each, most by authors who did not know the rules (Intel, family 6, model 167).
const RIGHT: [(f64, f64); 8] = [
    (0.0, 0.0),
    (0.3, 0.66),
    (0.45, 0.76),
    (0.6, 0.8),
    (0.72, 0.88),
    (0.8, 0.91),
    (0.87, 0.94),
    (0.95, 0.95),
];

/// The probability that a finding with this score is right.
fn calibrated(score: f64) -> f64 {
    let between = |pair: &[(f64, f64)]| {
        let [(from, low), (to, high)] = pair else { return None };
        (score < *to).then(|| low + (score - from) / (to - from) * (high - low))
    };
    RIGHT.windows(2).find_map(between).unwrap_or(score)
}

/// The verdict by samples alone, where the models find more misses than there is time for: what
/// they see is an address space, and many of its pages may be one page of memory.
fn without_models(region: &Region, hardware: &Hardware) -> Verdict {
    let mut sampled = region.clone();
    sampled.instructions.iter_mut().for_each(|one| one.modelled = None);
    let verdict = judge(&sampled, hardware);
    Verdict { probability: verdict.probability.min(POSSIBLE_MAX), ..verdict }
}

/// How well a candidate explains the time beyond the limit: a probability.
fn fit(candidate: &Candidate, region: &Region, limit: f64) -> f64 {
    let (low, high) = candidate.cycles;
    let Some((cycles, ..)) = region.round_cycles else {
        if candidate.mechanism == Mechanism::Assist {
            // Nothing but the time tells it, or where the samples are.
            return candidate.strength * SHOWN * candidate.shown;
        }
        // Where no time was measured, the mechanism is as likely as its usual cost is large beside
        // the limit, or as many samples lie where an instruction would wait for it.
        let usual = (low * high).sqrt().max(low);
        let by_cost = WITHOUT_TIME * usual / (usual + limit.max(1.0));
        return candidate.strength * by_cost.max(SHOWN * candidate.shown);
    };
    let excess = cycles - limit;
    if excess < 0.1 * cycles {
        // There is nothing to explain; but a limit that is too high hides it.
        return candidate.strength * (low / cycles).min(0.5);
    }
    let most = (high / excess).min(1.0);
    let least = if low > 2.5 * excess { (2.5 * excess / low).powi(2) } else { 1.0 };
    candidate.strength * most * least * (excess / cycles * 2.0).min(1.0)
}

/// The verdict that code runs at its limit, for code without a measured time and without evidence
/// of anything else.
fn by_default(region: &Region, limit: f64) -> Candidate {
    let text = "by its instructions alone: no sign of cache misses, mispredicted branches or other \
                delays was seen";
    let text = text.to_owned();
    let evidence = vec![Evidence { kind: "limit", text, value: None, unit: None }];
    Candidate { evidence, ..of_limit(region, limit) }
}

fn of_limit(region: &Region, limit: f64) -> Candidate {
    let part = |is: &dyn Fn(&Instruction) -> bool| {
        let all = region.instructions.iter().filter(|one| is(one));
        all.map(|one| one.best_cycles * one.times).sum::<f64>() / limit
    };
    let of_units: f64 = region.instructions.iter().map(|one| one.unit_cycles * one.times).sum();
    let divides: Vec<&Instruction> =
        region.instructions.iter().filter(|one| one.divides && one.times > 0.05).collect();
    let (mechanism, at) = if let Some(one) =
        divides.iter().max_by(|a, b| a.times.total_cmp(&b.times))
        && (part(&|one| one.divides) >= OF_LIMIT || limit > 8.0 * one.times)
    {
        (Mechanism::Divider, Some(one.address))
    } else if of_units / limit >= OF_LIMIT {
        (Mechanism::Throughput, None)
    } else if part(&|one| one.kind == Kind::Operand) >= OF_LIMIT {
        (Mechanism::DependencyChain, None)
    } else if part(&|one| one.kind == Kind::Unit) >= OF_LIMIT {
        (Mechanism::Throughput, None)
    } else {
        (Mechanism::AtLimit, None)
    };
    let issue: f64 = region.instructions.iter().map(|one| one.issue_cycles * one.times).sum();
    let is_full = issue >= FULL * limit && mechanism != Mechanism::Divider;
    let mechanism = if is_full { Mechanism::AtLimit } else { mechanism };
    let evidence = Vec::new();
    Candidate { mechanism, cycles: (0.0, 0.0), strength: 1.0, at, shown: 0.0, evidence }
}

fn gain(best: &Candidate, region: &Region, limit: f64) -> (f64, f64, f64) {
    let Some((cycles, ..)) = region.round_cycles.filter(|(cycles, ..)| *cycles > 0.0) else {
        return match best.mechanism {
            Mechanism::AtLimit => (0.0, 0.0, 0.0),
            Mechanism::DependencyChain | Mechanism::Throughput => (0.2, 0.0, 0.9),
            _ => (0.5, 0.0, 1.0),
        };
    };
    let issue: f64 = region.instructions.iter().map(|one| one.issue_cycles * one.times).sum();
    let share = |cycles_gained: f64| (cycles_gained / cycles).clamp(0.0, 1.0);
    match best.mechanism {
        Mechanism::AtLimit => (0.0, 0.0, 0.0),
        Mechanism::Divider => {
            let others = region.instructions.iter().filter(|one| !one.divides);
            let others: f64 = others.map(|one| one.issue_cycles * one.times).sum();
            let most = share(cycles - others);
            (0.7 * most, 0.0, most)
        }
        // What it would take if nothing waited for another instruction.
        Mechanism::DependencyChain if best.cycles.1 > 0.0 => {
            let most = share(cycles - issue);
            (0.7 * most, 0.0, most)
        }
        Mechanism::DependencyChain | Mechanism::Throughput => {
            let most = share(limit.min(cycles) - issue);
            (most / 2.0, 0.0, most)
        }
        _ => {
            let excess = (cycles - limit).max(0.0);
            let (low, high) = best.cycles;
            // The best case has some of these cycles already: a locked instruction's, say.
            let most = if best.mechanism == Mechanism::LockedInstruction { cycles } else { excess };
            let (low, high) = (share(low.min(most)), share(high.min(most)));
            let value = if high > 0.0 { share(most.min(best.cycles.1)) } else { 0.0 };
            (value, low.min(value), high.max(value))
        }
    }
}

fn unknown(region: &Region, limit: f64) -> Verdict {
    Verdict {
        mechanism: Mechanism::Unknown,
        probability: 0.5,
        gain: (0.0, 0.0, 1.0),
        at: None,
        evidence: times(region, limit),
        alternatives: Vec::new(),
    }
}

/// Rounds of an entry from which on they are told: fewer of them may be the larger gain.
const MANY_ROUNDS: f64 = 10.0;

/// Factor from which on limits of a number of rounds say little.
const VAGUE: f64 = 10.0;

/// How many rounds a loop makes, and the time of a round beside its limit.
fn times(region: &Region, limit: f64) -> Vec<Evidence> {
    let mut evidence = Vec::new();
    if let Some((rounds, factor)) = region.rounds.filter(|(rounds, _)| *rounds >= MANY_ROUNDS) {
        let sure = match factor < VAGUE {
            true => format!(" ({:.0} to {:.0})", rounds / factor, rounds * factor),
            false => ", or many times more or fewer".to_owned(),
        };
        let text = format!("rounds of the loop each time it is entered: about {rounds:.0}{sure}");
        evidence.push(Evidence::of("time", text, rounds, "rounds"));
    }
    if let Some(ns) = region.round_ns {
        let text = format!("a round of the loop takes {ns:.2} ns");
        evidence.push(Evidence::of("time", text, ns, "ns"));
    }
    if let Some((cycles, ..)) = region.round_cycles.filter(|_| limit > 0.0) {
        let of = if region.is_loop { "round" } else { "call" };
        let text =
            format!("{cycles:.1} cycles for each {of}; its instructions need {limit:.1} at best");
        evidence.push(Evidence::of("limit", text, limit, "cycles"));
    }
    evidence
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Certainty, Level, Sketch};
    use model::Access;

    fn hardware() -> Hardware {
        let level = |number, bytes, cycles| Level { number, bytes, cycles };
        Hardware {
            ghz: Some(4.0),
            levels: vec![level(1, 48e3, 5.0), level(2, 2e6, 16.0), level(3, 32e6, 100.0)],
            memory_cycles: (800.0, 1200.0),
            is_measured: true,
            ..Hardware::generic(None)
        }
    }

    /// `mov rax, [rax]; dec ecx; jne`, with addresses so many bytes apart.
    fn chase(apart: u64, cycles: Option<f64>) -> Region {
        let mut sketch = Sketch::default();
        sketch.add(Access::Crosses(model::Crossed::Nothing), 300);
        for number in 0..100 {
            sketch.add(Access::apart(0, (number * 97 % 100) * apart / 100 + 64), 1);
        }
        let load = Instruction {
            text: "mov rax, [rax]".into(),
            times: 1.0,
            best_cycles: 5.0,
            issue_cycles: 0.25,
            kind: Kind::Operand,
            loads: true,
            chases: true,
            sketch,
            share: 0.9,
            ..Instruction::default()
        };
        Region {
            is_loop: true,
            samples: 1000.0,
            round_cycles: cycles.map(|cycles| (cycles, 0.97 * cycles, 1.03 * cycles)),
            instructions: vec![load],
            ..Region::default()
        }
    }

    fn told(region: &Region) -> (Mechanism, Certainty) {
        let Verdict { mechanism, probability, gain: (value, low, high), .. } =
            judge(region, &hardware());
        assert!((0.0..=1.0).contains(&probability));
        assert!(0.0 <= low && low <= value && value <= high && high <= 1.0);
        (mechanism, Certainty::of(mechanism, probability))
    }

    #[test]
    fn samples_at_a_chain_are_no_assists() {
        let one = |text: &str, cycles, share| Instruction {
            text: text.into(),
            times: 1.0,
            best_cycles: cycles,
            share,
            kind: Kind::Operand,
            ..Instruction::default()
        };
        let region = |of: &[(&str, f64, f64)]| Region {
            is_loop: true,
            samples: 1000.0,
            instructions: of
                .iter()
                .map(|(text, cycles, share)| one(text, *cycles, *share))
                .collect(),
            ..Region::default()
        };
        let horner = region(&[
            ("mulsd xmm0, xmm1", 4.0, 0.5),
            ("addsd xmm0, [rdi]", 4.0, 0.5),
            ("add rdi, 8", 0.25, 0.0),
            ("jne 0x10", 0.25, 0.0),
        ]);
        assert_eq!(told(&horner), (Mechanism::DependencyChain, Certainty::Possible));
        let mut all = vec![("mulsd xmm0, xmm1", 1.0, 0.9), ("add rdi, 8", 0.25, 0.05)];
        all.extend([("mov eax, ebx", 1.0, 0.01); 8]);
        assert_eq!(told(&region(&all)).0, Mechanism::Assist);
    }

    #[test]
    fn page_walks_are_those_of_small_pages() {
        let mut region = chase(64 << 20, Some(170.0));
        let hardware = Hardware {
            levels: vec![
                Level { number: 1, bytes: 48e3, cycles: 5.0 },
                Level { number: 3, bytes: 96e6, cycles: 60.0 },
            ],
            walk_cycles: (110.0, 200.0),
            ..hardware()
        };
        let judged = |region: &Region| {
            let verdict = judge(region, &hardware);
            let seen = verdict.evidence.iter().find(|one| one.kind == Evidence::PAGES);
            (verdict.mechanism, verdict.probability, seen.and_then(|one| one.value))
        };
        assert!(matches!(judged(&region), (Mechanism::LoadFromL3 | Mechanism::PageWalk, _, None)));
        let load = region.instructions.first_mut().unwrap();
        load.sketch.add(Access::HugePage(true), 40);
        let (mechanism, _, huge) = judged(&region);
        assert_eq!((mechanism, huge), (Mechanism::LoadFromL3, Some(1.0)));
        let advice = |mechanism: Mechanism, share| {
            mechanism.advice_beside([(Evidence::PAGES, Some(share))]).count()
        };
        assert_eq!(advice(Mechanism::PageWalk, 0.1), 1);
        assert_eq!(advice(Mechanism::PageWalk, 0.95), 0);
        assert_eq!(advice(Mechanism::LoadFromMemory, 0.95), 1);
    }

    #[test]
    fn a_chase_is_told_by_addresses_and_time() {
        let certain = Certainty::Certain;
        for (apart, cycles, mechanism) in [
            (16 << 10, 5.2, Mechanism::DependencyChain),
            (512 << 10, 16.0, Mechanism::LoadFromL2),
            (5 << 20, 110.0, Mechanism::LoadFromL3),
            (1 << 30, 850.0, Mechanism::LoadFromMemory),
        ] {
            assert_eq!(told(&chase(apart, Some(cycles))), (mechanism, certain), "{apart}");
        }
        // Time and addresses disagree.
        let (_, certainty) = told(&chase(512 << 10, Some(850.0)));
        assert!(certainty < certain);
        // Nobody knows the time; samples wait for the load.
        let (mechanism, certainty) = told(&chase(1 << 30, None));
        assert_eq!((mechanism, certainty), (Mechanism::LoadFromMemory, Certainty::Likely));
    }

    #[test]
    fn what_nothing_shows_is_not_told() {
        let add = Instruction {
            text: "add rax, 1".into(),
            times: 1.0,
            best_cycles: 1.0,
            share: 1.0,
            ..Instruction::default()
        };
        let region = |cycles: Option<f64>| Region {
            is_loop: true,
            samples: 1000.0,
            round_cycles: cycles.map(|cycles| (cycles, cycles, cycles)),
            instructions: vec![add.clone()],
            ..Region::default()
        };
        // `add` takes 250 cycles: no line of code is fetched so slowly, and nothing else is seen.
        for cycles in [250.0, 20.0] {
            assert_eq!(told(&region(Some(cycles))).1, Certainty::Unknown, "{cycles}");
        }
        assert_eq!(told(&region(None)), (Mechanism::AtLimit, Certainty::Possible));
        assert_eq!(told(&region(Some(1.0))).1, Certainty::Certain);
    }

    #[test]
    fn sorted_outcomes_are_no_misprediction() {
        let branch = |untold| Instruction {
            text: "jne 0x10".into(),
            times: 1.0,
            best_cycles: 1.0,
            untold: Some(untold),
            ..Instruction::default()
        };
        let region = |untold, cycles| Region {
            is_loop: true,
            samples: 1000.0,
            round_cycles: Some((cycles, cycles, cycles)),
            instructions: vec![branch(untold)],
            ..Region::default()
        };
        assert_eq!(told(&region(0.5, 10.0)).0, Mechanism::BranchMispredict);
        assert_ne!(told(&region(0.02, 10.0)).0, Mechanism::BranchMispredict);
        assert_ne!(told(&region(0.5, 1.1)).0, Mechanism::BranchMispredict);
    }
}

//! Candidates by hardware events that were sampled: events of a cycle, times what each costs.

use crate::candidates::Candidate;
use crate::{Evidence, Hardware, Mechanism, Region};

/// A kind of hardware event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Mispredicted branches.
    BranchMisses,
    /// Loads from memory, or accesses that no cache serves.
    MemoryLoads,
    /// Loads that the first level does not have.
    FirstLevelMisses,
    /// Loads whose page no TLB has.
    TlbMisses,
    /// Lines of code that the first level does not have.
    CodeMisses,
    /// Pages of code that no TLB has.
    CodeTlbMisses,
}

/// How often a hardware event happened in a region, by its samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counted {
    /// The event.
    pub counter: Counter,
    /// Events of a cycle of the region's time.
    pub per_cycle: f64,
    /// The same at most, in 19 of 20 cases.
    pub per_cycle_max: f64,
    /// Samples of the event in the region.
    pub samples: f64,
}

/// How good a sampled event is as evidence: processors count some events of work that they throw
/// away, and samples land a few instructions late.
const STRENGTH: f64 = 0.96;
/// Fewest samples of an event in a region that are evidence for it.
const SAMPLES_MIN: f64 = 20.0;
/// Part of the time below which an event cannot be what takes it, however much each costs.
const NOTHING: f64 = 0.05;
/// What remains of the evidence for a mechanism whose event hardly happens.
const REFUTED: f64 = 0.1;

impl Counter {
    /// The kind of an event, by perf's generic name (perf_event_open(2), `PERF_TYPE_HARDWARE` and
    /// `PERF_TYPE_HW_CACHE`; perf-list(1)); None for events that count something else.
    pub fn of_event(name: &str) -> Option<Self> {
        Some(match name {
            "branch-misses" | "branch-load-misses" => Self::BranchMisses,
            "cache-misses" | "LLC-load-misses" | "LLC-misses" => Self::MemoryLoads,
            "L1-dcache-load-misses" => Self::FirstLevelMisses,
            "dTLB-load-misses" => Self::TlbMisses,
            "L1-icache-load-misses" => Self::CodeMisses,
            "iTLB-load-misses" => Self::CodeTlbMisses,
            _ => return None,
        })
    }

    fn mechanism(self) -> Mechanism {
        match self {
            Self::BranchMisses => Mechanism::BranchMispredict,
            Self::MemoryLoads => Mechanism::LoadFromMemory,
            Self::FirstLevelMisses => Mechanism::LoadFromL2,
            Self::TlbMisses => Mechanism::PageWalk,
            Self::CodeMisses | Self::CodeTlbMisses => Mechanism::InstructionFetch,
        }
    }

    /// The mechanisms that do not happen without the event.
    fn refutes(self, mechanism: Mechanism) -> bool {
        match self {
            Self::BranchMisses => matches!(
                mechanism,
                Mechanism::BranchMispredict
                    | Mechanism::IndirectMispredict
                    | Mechanism::ReturnMispredict
            ),
            Self::MemoryLoads => mechanism == Mechanism::LoadFromMemory,
            Self::FirstLevelMisses => matches!(
                mechanism,
                Mechanism::LoadFromL2 | Mechanism::LoadFromL3 | Mechanism::LoadFromMemory
            ),
            Self::TlbMisses => mechanism == Mechanism::PageWalk,
            // Code can be slow to decode without a miss.
            Self::CodeMisses | Self::CodeTlbMisses => false,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::BranchMisses => "mispredicted branches",
            Self::MemoryLoads => "accesses that no cache serves",
            Self::FirstLevelMisses => "loads that miss the first level",
            Self::TlbMisses => "loads that miss the TLB",
            Self::CodeMisses => "misses of the instruction cache",
            Self::CodeTlbMisses => "misses of the instruction TLB",
        }
    }

    /// Cycles that one event costs: at least, where others are under way, usually, and at most.
    fn costs(self, hardware: &Hardware, chases: bool) -> (f64, f64, f64) {
        let least = if chases { 0.6 } else { 1.0 / 16.0 };
        let second = hardware.levels.iter().find(|level| level.number == 2);
        let second = second.map_or(10.0, |level| level.cycles) - hardware.first_cycles();
        let of =
            |usual: f64, most: f64| (least * usual, if chases { usual } else { usual / 4.0 }, most);
        match self {
            Self::BranchMisses => {
                let cycles = hardware.mispredict_cycles;
                (0.5 * cycles, cycles, 2.0 * cycles)
            }
            Self::MemoryLoads => of(hardware.memory_cycles.0, hardware.memory_cycles.1),
            Self::FirstLevelMisses => of(second, 1.4 * second),
            Self::TlbMisses => of(hardware.walk_cycles.0, hardware.walk_cycles.1),
            Self::CodeMisses => (4.0, 15.0, 45.0),
            Self::CodeTlbMisses => (10.0, 30.0, hardware.walk_cycles.1),
        }
    }
}

/// Adds what events give evidence for, and weakens what they refute.
pub(crate) fn candidates(region: &Region, hardware: &Hardware, found: &mut Vec<Candidate>) {
    let chases = region.instructions.iter().any(|one| one.chases);
    let misses_memory = |one: &Counted| one.counter == Counter::MemoryLoads;
    let knows_memory = region.counted.iter().any(misses_memory);
    for counted in &region.counted {
        let (least, usual, most) = counted.counter.costs(hardware, chases);
        if counted.per_cycle_max * most < NOTHING {
            let refuted = found.iter_mut().filter(|one| counted.counter.refutes(one.mechanism));
            refuted.for_each(|one| one.strength *= REFUTED);
        }
        // Which level has what the first one misses is known only beside an event of the last one.
        let is_vague = counted.counter == Counter::FirstLevelMisses && !knows_memory;
        if counted.samples < SAMPLES_MIN || is_vague {
            continue;
        }
        let events = counted.per_cycle * 1000.0;
        let text =
            format!("{events:.2} {} in 1,000 cycles, by sampled events", counted.counter.words());
        let cycles = region.round_cycles.map_or(0.0, |(cycles, ..)| cycles * counted.per_cycle);
        found.push(Candidate {
            mechanism: counted.counter.mechanism(),
            cycles: (least * cycles, most * cycles),
            strength: STRENGTH,
            at: None,
            shown: (usual * counted.per_cycle).min(1.0),
            evidence: vec![Evidence::of("counters", text, events, "events")],
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Instruction, judge};

    fn region(counted: Vec<Counted>) -> Region {
        let branch = Instruction {
            text: "jne 0x10".into(),
            times: 1.0,
            best_cycles: 1.0,
            untold: Some(0.4),
            ..Instruction::default()
        };
        Region {
            is_loop: true,
            samples: 1000.0,
            round_cycles: Some((10.0, 9.7, 10.3)),
            instructions: vec![branch],
            counted,
            ..Region::default()
        }
    }

    fn told(counter: Counter, per_cycle: f64) -> (Mechanism, f64) {
        let samples = per_cycle * 1e4;
        let counted = Counted { counter, per_cycle, per_cycle_max: per_cycle + 3e-4, samples };
        let mut region = region(vec![counted]);
        if counter != Counter::BranchMisses {
            region.instructions.iter_mut().for_each(|one| one.untold = None);
        }
        let verdict = judge(&region, &Hardware::generic(Some(4.0)));
        (verdict.mechanism, verdict.probability)
    }

    #[test]
    fn events_decide_over_what_samples_suggest() {
        // Outcomes suggest mispredictions; there are none.
        let (mechanism, probability) = told(Counter::BranchMisses, 0.0);
        assert!(mechanism != Mechanism::BranchMispredict || probability < 0.3, "{mechanism:?}");
        let (mechanism, probability) = told(Counter::BranchMisses, 0.05);
        assert!(mechanism == Mechanism::BranchMispredict && probability > 0.9, "{probability}");
        assert_eq!(told(Counter::MemoryLoads, 0.01).0, Mechanism::LoadFromMemory);
    }
}

//! Parts of the status, computed from the daemon's state.

use crate::cpu_ledger::CpuLedger;
use address_spaces::jit::Totals;
use events::PlannedEvent;
use kernel::EventSkid;
use kernel::clock;
use model::{Cpuid, Facts, MeasuredSkid};
use pending::ledger::Account;
use sampling::branch_edges;
use sampling::call_stacks::{self, CallStacks};
use sampling::waits::{self, Waits};
use serde_json::{Value, json};
use wire::{
    CpuStatus, EdgesStatus, EventStatus, GeneratedStatus, ProgramStacksStatus, StacksStatus,
    WaitsStatus,
};

/// Code that is in no file.
pub fn generated_status(generated: Totals) -> GeneratedStatus {
    GeneratedStatus {
        processes: generated.processes as u64,
        pieces: generated.pieces as u64,
        bytes: generated.bytes as u64,
        regions: generated.regions as u64,
        refused: generated.refused,
    }
}

/// Facts for the epoch: the skid, unknown where it could not be measured, and the processor.
/// `names` are the events' names by number.
pub fn facts(skid: Option<EventSkid>, cpuid: Option<&Cpuid>, names: &[String]) -> Facts {
    let mut facts = Facts::default();
    let skid = skid.and_then(|EventSkid { event, distance, samples }| {
        Some(MeasuredSkid {
            event: names.get(event)?.clone(),
            instructions: distance.instructions(),
            samples,
        })
    });
    match skid {
        Some(skid) => facts.state(&skid),
        None => facts.state_unknown::<MeasuredSkid>(),
    }
    cpuid.into_iter().for_each(|cpuid| facts.state(cpuid));
    facts
}

/// The cost of sampling, for the epoch: `ns_per_sample` with the interrupt, the daemon's `cpu_s`
/// and samples `taken` since it started, and the `share` of all CPU time in the last minute, null
/// before the first minute has passed.
pub fn bill(ns_per_sample: f64, share: Option<f64>, cpu_ns: u64, taken: u64) -> Value {
    let cpu_s = cpu_ns as f64 / 1e9;
    json!({"ns_per_sample": ns_per_sample, "share": share, "cpu_s": cpu_s, "taken": taken})
}

/// Fewest samples whose mean cost to the daemon is reported. With fewer samples, the mean is
/// dominated by work that does not grow with their number: the daemon reads the file of each
/// program once, and drains tables that are nearly empty. With a larger number a fresh status says
/// nothing for longer.
const MEAN_COST_SAMPLES_MIN: u64 = 10_000;
/// Fewest snapshots of registers for a mean cost; each CPU has 50 a second.
const MEAN_COST_SNAPSHOTS_MIN: u64 = 1000;

/// The mean cost of a sample to the daemon, in ns; None for fewer than
/// `MEAN_COST_SAMPLES_MIN` samples.
pub fn ns_per_sample(cpu_ns: u64, samples: u64) -> Option<f64> {
    (samples >= MEAN_COST_SAMPLES_MIN).then(|| cpu_ns as f64 / samples as f64)
}

/// Snapshots and their edges, where at most `rate_per_s` snapshots are taken per second and CPU.
pub fn edges_status(rate_per_s: f64, totals: &branch_edges::Totals) -> EdgesStatus {
    let branch_edges::Totals { taken, dropped, unresolved, fruitful, edges, cpu_ns } = *totals;
    let ns_per_snapshot = (taken >= MEAN_COST_SNAPSHOTS_MIN).then(|| cpu_ns as f64 / taken as f64);
    let cpu_s = cpu_ns as f64 / 1e9;
    EdgesStatus { rate_per_s, taken, dropped, unresolved, fruitful, edges, cpu_s, ns_per_snapshot }
}

/// Call stacks, where at most `rate_per_s` are taken per second and CPU.
pub fn stacks_status(rate_per_s: f64, stacks: &CallStacks) -> StacksStatus {
    let call_stacks::Totals { taken, dropped, excluded, outcomes, .. } = stacks.totals;
    let call_stacks::Totals { frames, bytes, cpu_ns, named, named_differs, .. } = stacks.totals;
    let ns_per_stack = (taken >= MEAN_COST_SNAPSHOTS_MIN).then(|| cpu_ns as f64 / taken as f64);
    let by_reason = |outcomes: &call_stacks::Outcomes| {
        outcomes.cut().map(|(cut, stacks)| (cut.name().to_owned(), stacks)).collect()
    };
    let mut programs: Vec<(u64, ProgramStacksStatus)> = stacks
        .programs()
        .map(|(program, outcomes)| {
            let (program, whole, cut) = (program.to_owned(), outcomes.whole, by_reason(outcomes));
            (outcomes.all() - whole, ProgramStacksStatus { program, whole, cut })
        })
        .collect();
    programs.sort_by(|(a, left), (b, right)| b.cmp(a).then(right.whole.cmp(&left.whole)));
    programs.truncate(PROGRAMS_TOLD);
    StacksStatus {
        rate_per_s,
        taken,
        dropped,
        excluded,
        whole: outcomes.whole,
        cut: by_reason(&outcomes),
        frames,
        bytes,
        cpu_s: cpu_ns as f64 / 1e9,
        ns_per_stack,
        programs: programs.into_iter().map(|(_, program)| program).collect(),
        named,
        named_differs,
        named_without: stacks.runtimes_without(),
        thinned: stacks.totals.thinned,
        by_sampler: stacks.totals.by_sampler,
        by_inspector: stacks.totals.by_inspector,
        differing: stacks.totals.differing,
    }
}

/// Times of threads, and waits.
pub fn waits_status(waits: &Waits) -> WaitsStatus {
    let waits::Totals { taken, lost, seen, times } = waits.totals;
    let seconds = |ns: u64| ns as f64 / 1e9;
    WaitsStatus {
        scale_s: waits.scale().map(|scale| scale.as_secs_f64()),
        pass_s: waits.period().map(|period| period.as_secs_f64()),
        seen,
        switches_per_s: waits.switches_per_s(),
        taken,
        lost,
        threads: times.threads,
        wall_s: seconds(times.wall_ns),
        on_s: seconds(times.on_ns),
        blocked_s: seconds(times.blocked_ns),
        runnable_s: seconds(times.runnable_ns),
    }
}

/// Programs of which a status tells the call stacks.
const PROGRAMS_TOLD: usize = 32;

/// Samples of a CPU, and the reasons why it missed some.
pub fn cpu_status(cpu: u32, ledger: &CpuLedger) -> CpuStatus {
    let missed = [("throttled", ledger.throttled), ("late", ledger.late())]
        .into_iter()
        .filter(|(_, samples)| *samples > 0);
    let missed = missed.map(|(reason, samples)| (reason.to_owned(), samples)).collect();
    let offline_s = ledger.offline_ns(clock::monotonic_ns()) as f64 / 1e9;
    CpuStatus {
        cpu,
        taken: ledger.taken,
        implied: ledger.implied,
        missed,
        offline: ledger.offline,
        offline_s,
    }
}

/// An event, and its counts.
pub fn event_status(plan: &PlannedEvent, account: &Account) -> EventStatus {
    EventStatus {
        name: plan.event.name.clone(),
        period: plan.period,
        unit: plan.event.unit.to_string(),
        samples: account.taken,
        enabled_ns: account.counted.enabled_ns,
        running_ns: account.counted.running_ns,
        note: plan.note.clone(),
    }
}

/// Resident memory of this process (/proc/self/statm: pages), 0 where unknown.
pub fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 =
        statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    let page =
        nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4096);
    pages * page as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fresh daemon said that a sample cost it 1.6 ms: the cost of the daemon's start of work,
    /// divided by the first few samples.
    #[test]
    fn a_mean_cost_is_told_of_enough_samples_only() {
        assert_eq!(ns_per_sample(16_000_000, 10), None);
        assert_eq!(ns_per_sample(16_000_000, 9999), None);
        assert_eq!(ns_per_sample(16_000_000, 10_000), Some(1600.0));
        let each = |taken| {
            let totals = branch_edges::Totals { taken, cpu_ns: 4_000_000, ..Default::default() };
            edges_status(50.0, &totals).ns_per_snapshot
        };
        assert_eq!((each(0), each(999), each(1000)), (None, None, Some(4000.0)));
    }
}

//! Evidence of how often the sampled code was executed, and of the processor that did.

use std::collections::BTreeMap;

use model::{IDEAL, MeasuredMachine, OpensOn, SampledRuns};

use super::Samples;
use crate::scope::ScopeChoice;

/// Evidence for the number of executions of code while time was sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Executions {
    /// Samples of retired instructions.
    Retired {
        /// Their event.
        event: usize,
        /// Instructions that one sample stands for.
        instructions: f64,
        /// Cycles that a sample of time stands for.
        cycles: f64,
    },
    /// Exact counts of one run of the command whose runs were sampled.
    Counted {
        /// Samples of time for each cycle of an execution that was counted.
        samples_per_cycle: f64,
    },
}

/// Largest share of samples without a place in code with which exact counts tell the cycles of an
/// execution. With a larger one, counted code has too few samples, and seems fast: a loop of which
/// a loaded host had named a tenth seemed to run at its limit.
const NAMELESS_MAX: f64 = 0.05;

impl Samples {
    /// Evidence for the number of executions of code while the event with index `time` was sampled;
    /// None if there is none.
    pub fn executions(&self, time: usize) -> Option<Executions> {
        self.counted(time).or_else(|| self.retired(time))
    }

    fn counted(&self, time: usize) -> Option<Executions> {
        if self.events.get(time).is_some_and(|event| event.name == IDEAL) {
            return Some(Executions::Counted { samples_per_cycle: 1.0 });
        }
        let runs = self.sampled_runs()?.0;
        if self.events.get(time).is_some_and(|event| event.nameless_share() > NAMELESS_MAX) {
            return None;
        }
        let samples_per_cycle = runs / self.cycles(time)?;
        samples_per_cycle.is_finite().then_some(Executions::Counted { samples_per_cycle })
    }

    /// Sampled runs for each run that was counted, and cycles a second of a busy CPU where they are
    /// known: means over the epochs. None unless all epochs have exact counts of a command beside
    /// its samples, and the samples are those of this command.
    pub fn sampled_runs(&self) -> Option<(f64, Option<f64>)> {
        let (mut runs, mut hertz) = (0.0, Some(0.0));
        for epoch in &self.epochs {
            let OpensOn(label) = epoch.meta().facts.get()?;
            if self.whose != (ScopeChoice { label: Some(label), ..ScopeChoice::default() }) {
                return None;
            }
            let sampled: SampledRuns = epoch.meta().facts.get()?;
            runs += f64::from(sampled.runs);
            hertz = hertz.zip(sampled.hertz).map(|(sum, hertz)| sum + hertz);
        }
        let epochs = self.epochs.len() as f64;
        let mean = |sum: f64| Some(sum / epochs).filter(|mean| mean.is_finite() && *mean > 0.0);
        Some((mean(runs)?, hertz.and_then(mean)))
    }

    /// Cycles that a sample of the event with index `time` stands for. None where it counts no
    /// time, or time in ns and the frequency of the CPUs is not known.
    pub fn cycles(&self, time: usize) -> Option<f64> {
        let event = self.events.get(time)?;
        let cycles = match event.unit.as_str() {
            "cycles" => event.weight,
            "ns" => event.weight * 1e-9 * self.sampled_runs()?.1?,
            _ => return None,
        };
        (cycles > 0.0).then_some(cycles)
    }

    /// The sampled processor as `dcpi machine` measured it: bounds that hold for all measurements.
    /// None where the epochs are of several kinds of processors, or where a host has no
    /// measurement: memory differs between hosts of one kind.
    pub fn measured(&self) -> Option<MeasuredMachine> {
        let cpuid = self.cpuid()?;
        let mut of_hosts: BTreeMap<&str, Option<MeasuredMachine>> = BTreeMap::new();
        for epoch in &self.epochs {
            let of_host = of_hosts.entry(epoch.meta().host.as_str()).or_default();
            let measured: Option<MeasuredMachine> = epoch.meta().facts.get();
            if let Some(measured) = measured.filter(|measured| measured.cpuid == cpuid) {
                *of_host = Some(match of_host.take() {
                    Some(known) => known.with(&measured),
                    None => measured,
                });
            }
        }
        let mut all = of_hosts.into_values();
        all.next()?.and_then(|first| all.try_fold(first, |sum, next| Some(sum.with(&next?))))
    }

    /// Samples of the event `instructions`, if the event with index `time` counts cycles.
    fn retired(&self, time: usize) -> Option<Executions> {
        let time = self.events.get(time).filter(|event| event.unit == "cycles")?;
        let event = self.events.iter().position(|event| event.name == "instructions")?;
        let instructions = self.events.get(event)?.weight;
        Some(Executions::Retired { event, instructions, cycles: time.weight })
    }
}

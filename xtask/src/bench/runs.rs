//! Measures runs of workloads under configurations, interleaved in rotating order.

use super::machine::{busy_s, cpus, other_profilers};
use super::profilers::{BpfStatistics, Configuration, Profiler, Seen};
use super::workloads::{Kind, Workload};
use std::collections::BTreeSet;

/// Largest share of all CPUs that other programs use during an undisturbed run; above, it is
/// repeated.
pub const OTHERS_MAX: f64 = 0.05;

/// Most attempts at a run, of which the least disturbed counts.
const TRIES: u32 = 3;

/// One run of a workload under a configuration.
#[derive(Clone, Debug)]
pub struct Run {
    /// The workload.
    pub kind: Kind,
    /// The profiler.
    pub configuration: Configuration,
    /// Number of its round; runs are compared within a round.
    pub round: u64,
    /// Wall time.
    pub wall_s: f64,
    /// CPU time of the workload.
    pub cpu_s: f64,
    /// The profiler's cost and counters.
    pub seen: Seen,
    /// Share of all CPUs' time that other programs used.
    pub others: f64,
    /// Attempts, from 1.
    pub tries: u32,
}

/// All runs of a benchmark.
#[derive(Default)]
pub struct Runs {
    /// Runs whose time counts.
    pub timed: Vec<Run>,
    /// Runs with the kernel's BPF statistics, which cost time themselves. dcpid has sampled the
    /// workload once before, like a daemon that always runs.
    pub handler: Vec<Run>,
    /// Other profilers that were running at the same time.
    pub strangers: BTreeSet<String>,
    /// Repetitions left for all disturbed runs together, so that the benchmark ends on a busy
    /// machine.
    repeats_left: u64,
}

impl Runs {
    /// Runs every workload under every configuration `rounds` times for its time, and then with BPF
    /// statistics.
    pub fn measure(
        folder: &str,
        workloads: &[Workload],
        rounds: u64,
        repeats: u64,
    ) -> anyhow::Result<Self> {
        let mut runs = Self { repeats_left: repeats, ..Self::default() };
        for round in 0..rounds {
            for workload in workloads {
                let mut order = Configuration::ALL.to_vec();
                order.rotate_left(round as usize % Configuration::ALL.len());
                for configuration in order {
                    let run = runs.undisturbed(folder, workload, configuration, (round, false))?;
                    println!(
                        "  round {}/{rounds}  {:<8}  {:<7}  {:>6.3} s{}",
                        round + 1,
                        workload.kind.name(),
                        configuration.name(),
                        run.wall_s,
                        if run.others > OTHERS_MAX {
                            format!(
                                "  (others used {:.0} % of the CPUs, {} tries)",
                                100.0 * run.others,
                                run.tries
                            )
                        } else {
                            String::new()
                        }
                    );
                    runs.timed.push(run);
                }
            }
        }
        println!(
            "  once more with the kernel's BPF statistics on, for what a sample costs, dcpid's when it has settled"
        );
        let statistics = BpfStatistics::on(folder)?;
        for (round, workload) in
            (0..rounds).flat_map(|round| workloads.iter().map(move |workload| (round, workload)))
        {
            for configuration in [Configuration::Empty, Configuration::Dcpid] {
                let run = runs.undisturbed(folder, workload, configuration, (round, true))?;
                runs.handler.push(run);
            }
        }
        drop(statistics);
        Ok(runs)
    }

    /// The least disturbed of a few tries.
    fn undisturbed(
        &mut self,
        folder: &str,
        workload: &Workload,
        configuration: Configuration,
        when: (u64, bool),
    ) -> anyhow::Result<Run> {
        let mut best = self.once(folder, workload, configuration, when)?;
        while best.others > OTHERS_MAX && best.tries < TRIES && self.repeats_left > 0 {
            self.repeats_left -= 1;
            let again = self.once(folder, workload, configuration, when)?;
            let tries = best.tries + 1;
            best = Run { tries, ..if again.others < best.others { again } else { best } };
        }
        Ok(best)
    }

    fn once(
        &mut self,
        folder: &str,
        workload: &Workload,
        configuration: Configuration,
        (round, settles): (u64, bool),
    ) -> anyhow::Result<Run> {
        let mut profiler = Profiler::start(configuration, folder)?;
        if settles && configuration == Configuration::Dcpid {
            workload.run(folder)?;
            profiler.settle()?;
        }
        self.strangers.extend(other_profilers(profiler.pid()));
        let busy = busy_s();
        let took = workload.run(folder)?;
        let busy = busy_s() - busy;
        let seen = profiler.end()?;
        let wall_s = took.wall.as_secs_f64();
        let others = (busy - took.cpu_s - seen.during.cpu_s) / (wall_s * cpus() as f64);
        Ok(Run {
            kind: workload.kind,
            configuration,
            round,
            wall_s,
            cpu_s: took.cpu_s,
            seen,
            others: others.max(0.0),
            tries: 1,
        })
    }
}

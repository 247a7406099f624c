//! The time of all CPUs as /proc/stat has it.

/// Ticks in a second: USER_HZ is 100 on every architecture that programs here run on (proc(5)).
pub(super) const TICKS_PER_S: f64 = 100.0;

/// Time of all CPUs since the machine started, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CpuTicks {
    pub(super) all: f64,
    /// Time without a program to run: idle and iowait.
    pub(super) idle: f64,
    /// Time that a hypervisor gave to other machines.
    pub(super) steal: f64,
}

impl CpuTicks {
    /// By the first line of /proc/stat (proc(5)): user, nice, system, idle, iowait, irq, softirq,
    /// steal. Guests' time is in user's.
    pub(super) fn of_stat(stat: &str) -> Self {
        let line = stat.lines().next().unwrap_or_default();
        let ticks: Vec<f64> =
            line.split_ascii_whitespace().skip(1).take(8).filter_map(|n| n.parse().ok()).collect();
        Self {
            all: ticks.iter().sum(),
            idle: ticks.get(3..5).unwrap_or_default().iter().sum(),
            steal: ticks.get(7).copied().unwrap_or_default(),
        }
    }
}

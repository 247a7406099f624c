//! The samples of each CPU beside those that its events' counts and periods imply.

use kernel::Drained;
use std::collections::BTreeMap;

/// Samples of one CPU: taken, implied and missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuLedger {
    /// Samples taken.
    pub taken: u64,
    /// Samples that the events' counts and periods imply.
    pub implied: u64,
    /// Samples that were implied and not taken in drains in which the kernel throttled an event of
    /// the CPU.
    pub throttled: u64,
    /// Number of times that the kernel throttled an event.
    pub throttles: u64,
    /// Value of `throttles` at the last drain.
    throttles_booked: u64,
    /// Number of times that the CPU went offline.
    pub offline: u64,
    /// Time without sampling because the CPU was offline, in ns, without the time since
    /// `offline_since_ns`.
    pub offline_ns: u64,
    /// Time since which the CPU is offline.
    pub offline_since_ns: Option<u64>,
}

impl CpuLedger {
    /// Samples implied that were neither taken nor throttled: the timer came late because a
    /// hypervisor ran another machine, or an interrupt came while another BPF program held this
    /// CPU.
    pub fn late(&self) -> u64 {
        self.implied.saturating_sub(self.taken + self.throttled)
    }

    /// Time without sampling until `now_ns` because the CPU was offline, in ns.
    pub fn offline_ns(&self, now_ns: u64) -> u64 {
        self.offline_ns + self.offline_since_ns.map_or(0, |since| now_ns.saturating_sub(since))
    }

    fn went_offline(&mut self, since_ns: u64) {
        self.offline += 1;
        self.offline_since_ns = Some(since_ns);
    }

    fn came_back(&mut self, now_ns: u64) {
        self.offline_ns = self.offline_ns(now_ns);
        self.offline_since_ns = None;
    }
}

/// The ledgers of all CPUs that ever took a sample, by number.
#[derive(Clone, Debug, Default)]
pub struct CpuLedgers(BTreeMap<u32, CpuLedger>);

impl CpuLedgers {
    /// Each CPU's number and ledger, by number.
    pub fn iter(&self) -> impl Iterator<Item = (&u32, &CpuLedger)> {
        self.0.iter()
    }

    /// The ledger of a CPU; an empty one for a CPU that never took a sample.
    pub fn of(&self, cpu: u32) -> CpuLedger {
        self.0.get(&cpu).copied().unwrap_or_default()
    }

    /// The kernel throttled an event of a CPU.
    pub fn throttled(&mut self, cpu: u32) {
        self.0.entry(cpu).or_default().throttles += 1;
    }

    /// Compares the samples that each CPU took with those that its events imply.
    pub fn book(&mut self, drained: &Drained, now_ns: u64) {
        // A CPU that came back before its absence was noticed is in both lists.
        drained
            .gone
            .iter()
            .for_each(|(cpu, since_ns)| self.0.entry(*cpu).or_default().went_offline(*since_ns));
        drained.back.iter().for_each(|cpu| self.0.entry(*cpu).or_default().came_back(now_ns));
        for cpu in &drained.cpus {
            let ledger = self.0.entry(cpu.cpu).or_default();
            ledger.taken += cpu.taken;
            ledger.implied += cpu.implied;
            if ledger.throttles > std::mem::replace(&mut ledger.throttles_booked, ledger.throttles)
            {
                ledger.throttled += cpu.implied.saturating_sub(cpu.taken);
            }
        }
    }
}

//! What happens to the machine while commands run: a busy sibling thread, steal time, throttling,
//! and settings that make all times those of one layout.

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use measure::humps::{humps, peak};

use crate::commands::cpu_ticks::CpuTicks;

/// Length of an undisturbed piece.
const PIECE: Duration = Duration::from_micros(10);
/// Pieces at each look.
const PIECES: usize = 25;
/// Most pieces that are kept: a megabyte of numbers.
const PIECES_MAX: usize = 1 << 17;
/// Smallest steal time that is reported, as a share of the time of all CPUs.
const STEAL_TOLD: f64 = 0.005;
/// Smallest difference of clock rates that is reported, as a share of the fastest rate.
const RATES_TOLD: f64 = 0.05;
/// Smallest delay for which other load is reported, as a share of the commands' wall-clock time.
const DELAY_TOLD: f64 = 0.02;
/// Smallest difference of two commands' delays for which other load may decide which is faster: a
/// command with several threads loses more of its time to other programs than one with a single
/// thread.
const DELAYS_DIFFER: f64 = 0.1;

pub(super) struct Host {
    rounds: u32,
    /// Times of pieces, ns.
    pieces: Vec<f64>,
    before: Counters,
    /// Slowest and fastest clock of a CPU that was seen, kHz.
    rates: Option<(f64, f64)>,
}

/// Counters of the kernel since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counters {
    /// Time that a hypervisor gave to others, and all time, of all CPUs, in ticks.
    steal: f64,
    all: f64,
    /// Times that a CPU was slowed down because it was hot.
    throttled: f64,
}

impl Host {
    /// Calibrates the loop and reads the counters.
    pub(super) fn new() -> Self {
        let mut rounds = 64;
        while rounds < 1 << 24 {
            // The faster of three: an interrupt in one is not a reason for short pieces.
            let fastest = (0..3).map(|_| piece(rounds)).fold(f64::INFINITY, f64::min);
            if fastest >= PIECE.as_nanos() as f64 {
                break;
            }
            rounds *= 2;
        }
        Self { rounds, pieces: Vec::new(), before: Counters::read(), rates: None }
    }

    /// Looks: some pieces, a fraction of a millisecond in all, and the clocks' rates.
    pub(super) fn look(&mut self) {
        if self.pieces.len() < PIECES_MAX {
            let rounds = self.rounds;
            // The first one wakes the CPU up.
            piece(rounds);
            self.pieces.extend((0..PIECES).map(|_| piece(rounds)));
        }
        for rate in rates(Path::new("/sys/devices/system/cpu")) {
            let (low, high) = self.rates.unwrap_or((rate, rate));
            self.rates = Some((low.min(rate), high.max(rate)));
        }
    }

    /// Time of 1,000 rounds of the fixed loop between the runs, ns: tells whether another
    /// measurement had the same clock. None without runs.
    pub(super) fn loop_ns(&self) -> Option<f64> {
        peak(&self.pieces, 0.25).map(|fast| 1000.0 * fast / f64::from(self.rounds))
    }

    /// What there is to say, a sentence each. `delayed` is the share of each command's wall-clock
    /// time in which its first thread was ready and no CPU was free.
    pub(super) fn notes(&self, delayed: &[f64]) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(found) = humps(&self.pieces) {
            notes.push(format!(
                "a busy neighbour: {:.0} % of {} short pieces of work between the runs took {:.1} \
                 times as long as the others, as beside a busy sibling thread; times are too long \
                 and vary, and the comparison allows for it",
                found.slow_share * 100.0,
                self.pieces.len(),
                found.slow / found.fast
            ));
        } else if let Some(fast) = peak(&self.pieces, 0.25) {
            let slow = self.pieces.iter().filter(|time| **time > fast * 1.2).count();
            let share = slow as f64 / self.pieces.len().max(1) as f64;
            if share > 0.1 {
                notes.push(format!(
                    "{:.0} % of {} short pieces of work between the runs were more than a fifth \
                     slower than the fastest: the machine is not quiet",
                    share * 100.0,
                    self.pieces.len()
                ));
            }
        }
        notes.extend(of_delays(delayed));
        let now = Counters::read();
        let steal = (now.steal - self.before.steal) / (now.all - self.before.all).max(1.0);
        if steal > STEAL_TOLD {
            notes.push(format!(
                "the hypervisor gave {:.1} % of the CPUs' time to other machines (steal)",
                steal * 100.0
            ));
        }
        let throttled = now.throttled - self.before.throttled;
        if throttled > 0.0 {
            notes.push(format!("CPUs were slowed down {throttled:.0} times because they were hot"));
        }
        if let Some((low, high)) = self.rates.filter(|(low, high)| low / high < 1.0 - RATES_TOLD) {
            notes.push(format!(
                "CPUs' clocks ran at {:.2} to {:.2} GHz: the governor 'performance' keeps them at \
                 one rate",
                low / 1e6,
                high / 1e6
            ));
        }
        if let Some(why) = fixed_layout() {
            notes.push(why.to_owned());
        }
        notes
    }
}

/// The time that other programs took from the commands, if it was much.
fn of_delays(delayed: &[f64]) -> Option<String> {
    let had = "other programs had the CPUs: the first thread of";
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    match delayed {
        [a, b] if a.max(*b) > DELAY_TOLD => {
            let mut text = format!(
                "{had} A was ready and did not run for {} of its wall-clock time, that of B for {}",
                percent(*a),
                percent(*b)
            );
            if (a - b).abs() > DELAYS_DIFFER {
                text += "; the other command may be faster on an idle machine: measure there";
            }
            Some(text)
        }
        [a] if *a > DELAY_TOLD => Some(format!(
            "{had} the command was ready and did not run for {} of its wall-clock time",
            percent(*a)
        )),
        _ => None,
    }
}

/// One piece: independent chains that fill the processor's units, so that a sibling thread takes
/// half of them. One chain alone would leave room for both. Returns ns.
fn piece(rounds: u32) -> f64 {
    let begun = Instant::now();
    let mut sums: [u64; 8] = black_box([1, 2, 3, 4, 5, 6, 7, 8]);
    for round in 0..u64::from(rounds) {
        for sum in &mut sums {
            *sum = sum.wrapping_add(round) ^ (*sum >> 3);
        }
    }
    black_box(sums);
    begun.elapsed().as_nanos() as f64
}

impl Counters {
    fn read() -> Self {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let CpuTicks { steal, all, .. } = CpuTicks::of_stat(&stat);
        Self { steal, all, throttled: throttled(Path::new("/sys/devices/system/cpu")) }
    }
}

/// Files of all CPUs of this name below `root`, as numbers.
fn of_cpus(root: &Path, name: &str) -> Vec<f64> {
    let cpus = fs::read_dir(root).into_iter().flatten().flatten();
    let texts = cpus.filter_map(|cpu| fs::read_to_string(cpu.path().join(name)).ok());
    texts.filter_map(|text| text.trim().parse().ok()).collect()
}

/// Clocks of the CPUs, kHz; none where the kernel does not know them.
fn rates(root: &Path) -> Vec<f64> {
    of_cpus(root, "cpufreq/scaling_cur_freq").into_iter().filter(|rate| *rate > 0.0).collect()
}

/// Throttling events of the CPUs so far (x86's thermal_throttle).
fn throttled(root: &Path) -> f64 {
    ["thermal_throttle/core_throttle_count", "thermal_throttle/package_throttle_count"]
        .into_iter()
        .flat_map(|name| of_cpus(root, name))
        .sum()
}

/// A setting that gives every run the same addresses.
fn fixed_layout() -> Option<&'static str> {
    /// personality(2).
    const ADDR_NO_RANDOMIZE: u32 = 0x0004_0000;
    let off = |path: &str| fs::read_to_string(path).is_ok_and(|text| text.trim() == "0");
    let personality = fs::read_to_string("/proc/self/personality").unwrap_or_default();
    let personality = u32::from_str_radix(personality.trim(), 16).unwrap_or_default();
    let fixed = off("/proc/sys/kernel/randomize_va_space") || personality & ADDR_NO_RANDOMIZE != 0;
    fixed.then_some(
        "addresses are not random here (randomize_va_space, setarch -R): all runs have one layout \
         but for the environment's size, and the interval is too narrow",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read() {
        let stat = "cpu  10 0 20 60 0 1 2 7 5 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        let of = |stat| CpuTicks::of_stat(stat);
        assert_eq!((of(stat).steal, of(stat).all), (7.0, 100.0));
        assert_eq!(of(""), CpuTicks::default());
        let root = tempfile::tempdir().unwrap();
        for (cpu, rate, count) in [("cpu0", "3700000\n", "2"), ("cpu1", "1200000\n", "3")] {
            let at = |name: &str| root.path().join(cpu).join(name);
            fs::create_dir_all(at("cpufreq")).unwrap();
            fs::create_dir_all(at("thermal_throttle")).unwrap();
            fs::write(at("cpufreq/scaling_cur_freq"), rate).unwrap();
            fs::write(at("thermal_throttle/core_throttle_count"), count).unwrap();
        }
        let mut found = rates(root.path());
        found.sort_by(f64::total_cmp);
        assert_eq!(found, [1_200_000.0, 3_700_000.0]);
        assert_eq!(throttled(root.path()), 5.0);
    }

    #[test]
    fn commands_that_lose_differently_to_other_programs_are_told_apart() {
        assert_eq!((of_delays(&[0.01]), of_delays(&[0.01, 0.02])), (None, None));
        let alike = of_delays(&[0.4, 0.45]).unwrap();
        assert!(alike.contains("for 40 % of") && alike.ends_with("of B for 45 %"), "{alike}");
        let apart = of_delays(&[0.45, 0.02]).unwrap();
        assert!(apart.contains("the other command may be faster on an idle machine"), "{apart}");
    }

    #[test]
    fn what_was_seen_is_told() {
        let quiet = Host {
            rounds: 1,
            pieces: (0..1000).map(|at| 10_000.0 + f64::from(at % 7)).collect(),
            before: Counters::read(),
            rates: Some((3_600_000.0, 3_700_000.0)),
        };
        let told = |host: &Host, delayed: f64| host.notes(&[delayed]).join("\n");
        let none = told(&quiet, 0.0);
        assert!(!none.contains("neighbour") && !none.contains("GHz"), "{none}");
        let pieces = (0..1000).map(|at| if at % 4 == 0 { 19_000.0 } else { 10_000.0 }).collect();
        let busy = Host { pieces, rates: Some((1_200_000.0, 3_700_000.0)), ..quiet };
        let all = told(&busy, 0.3);
        for says in ["24 % of 1000 short pieces", "took 1.9 times", "1.20 to 3.70 GHz", "for 30 %"]
        {
            assert!(all.contains(says), "{says}: {all}");
        }
    }
}

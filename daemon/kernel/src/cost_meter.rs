//! Measures the cost of one sample on this machine in short windows. At start the windows include
//! the sampler and are spread over the CPUs. While sampling, windows go on over time, but without
//! the sampler, because its samples would be in the table. The cost of a sample then is the part
//! that the sampler added at start, plus the interrupt as measured now.

use super::counters::{Counters, open_bare};
use super::machine;
use crate::clock;
use crate::quiet_windows::{self, Measured, Window};
use events::{PlannedEvent, Unit};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Samples per second while measuring. Many more than clock ticks, which else would be mistaken for
/// samples; few enough that the kernel does not throttle perf (kernel.perf_cpu_time_max_percent
/// allows 25 % of a CPU, that is 50 us a sample).
const RATE: u64 = 5000;
/// Samples per second of a window without the sampler. Twice the highest sampling rate, so that the
/// median gap does not come from the sampler, which goes on.
const BARE_RATE: u64 = 2 * RATE;
/// Length of a window: about 30 samples. A longer window is seldom left undisturbed on a busy CPU;
/// a shorter one has too few samples for a median.
const WINDOW: Duration = Duration::from_millis(6);
/// Windows with the sampler at start; one window without it is added for each two of them: 0.2 s in
/// all. Fewer leave too few quiet windows, more delay the start.
const WINDOWS: usize = 24;
/// Fewest samples of a window that is used: in a window with fewer, something else had the CPU for
/// most of the time.
const SAMPLES_MIN: usize = 12;
/// Time between two readings of the clock, in ns, above which it is an interruption: reading takes
/// 20 to 60 ns, an interrupt 500 at least.
const GAP_NS: u64 = 300;
/// Time in ns above which an interruption is another task or the hypervisor: samples of that length
/// would take half the CPU at the rates above.
const LONG_NS: u64 = 100_000;
/// A window is disturbed when such long interruptions take more than this part of it. Larger values
/// let disturbed windows make samples dearer; smaller ones leave no window on a busy machine.
const LONG_PART: f64 = 0.05;
/// Windows kept while sampling: the last ten minutes at the shortest interval. More react late to a
/// changed machine; fewer leave the median to chance.
const WINDOWS_KEPT: usize = 60;
/// Least time between two windows while sampling. A longer time notices a changed machine later; a
/// shorter one costs CPU time.
const INTERVAL: Duration = Duration::from_secs(10);
/// Largest part of the budget for measuring windows. With a small budget, windows are rarer than
/// [`INTERVAL`].
const BUDGET_PART: f64 = 0.02;

/// Measures the cost of a sample at start, and again at intervals.
#[derive(Debug)]
pub struct Meter {
    plan: PlannedEvent,
    cpus: Vec<usize>,
    next_cpu: usize,
    /// Time that the sampler adds to its interrupt, in ns.
    sampler_ns: f64,
    /// Windows without the sampler, oldest first.
    bare: VecDeque<Window>,
    running: Option<JoinHandle<Option<Window>>>,
    next_ns: u64,
    interval: Duration,
}

impl Meter {
    /// Measures a sample of the event on these CPUs. None when no window gave a cost.
    pub fn start(
        plan: &PlannedEvent,
        program: RawFd,
        cpus: &[usize],
        budget: Option<f64>,
    ) -> Option<(Self, Measured)> {
        let plan = PlannedEvent { mux: None, ..plan.clone() };
        // The last CPUs first: they are the least likely to be busy with interrupts of devices.
        let cpus: Vec<usize> =
            cpus.iter().rev().copied().filter(|cpu| plan.encoding(*cpu).is_some()).collect();
        let mut windows = Vec::with_capacity(WINDOWS);
        let mut bare = VecDeque::with_capacity(WINDOWS_KEPT);
        for (number, &cpu) in cpus.iter().cycle().take(WINDOWS).enumerate() {
            windows.extend(window(&plan, Some(program), cpu)?.join().ok().flatten());
            if number % 2 == 0 {
                bare.extend(window(&plan, None, cpu)?.join().ok().flatten());
            }
        }
        let measured = quiet_windows::of(&windows)?;
        let interrupt_ns = quiet_windows::of(&bare).map_or(measured.ns, |bare| bare.ns);
        let sampler_ns = (measured.ns - interrupt_ns).max(0.0);
        // A part of the budget is a CPU time per second; a window takes as much CPU time as it is
        // long.
        let spent_per_s = budget.unwrap_or(1.0) * BUDGET_PART * cpus.len() as f64;
        let interval = INTERVAL
            .max(Duration::from_secs_f64((WINDOW.as_secs_f64() / spent_per_s).min(86_400.0)));
        let next_ns = clock::monotonic_ns() + interval.as_nanos() as u64;
        let meter =
            Self { plan, cpus, next_cpu: 0, sampler_ns, bare, running: None, next_ns, interval };
        Some((meter, measured))
    }

    /// Begins a window when one is due, and returns a new cost when the last window found one.
    /// Never waits.
    pub fn look(&mut self, now_ns: u64) -> Option<Cost> {
        let found = match self.running.take() {
            Some(running) if running.is_finished() => running.join().ok().flatten(),
            running => {
                self.running = running;
                None
            }
        };
        // With hardware counters the cost at start stays: one more counter might take the place of
        // a sampled event, and the interrupt does not come from a hypervisor's timer.
        if self.running.is_none()
            && now_ns >= self.next_ns
            && self.plan.event.unit == Unit::Nanoseconds
        {
            self.next_ns = now_ns + self.interval.as_nanos() as u64;
            self.next_cpu = (self.next_cpu + 1) % self.cpus.len().max(1);
            self.running =
                self.cpus.get(self.next_cpu).and_then(|cpu| window(&self.plan, None, *cpu));
        }
        self.bare.push_back(found?);
        if self.bare.len() > WINDOWS_KEPT {
            self.bare.pop_front();
        }
        let bare = quiet_windows::of(&self.bare)?;
        let with = |ns: f64| ns + self.sampler_ns;
        let measured = Measured {
            ns: with(bare.ns),
            low_ns: with(bare.low_ns),
            high_ns: with(bare.high_ns),
            ..bare
        };
        Some(Cost::of(measured))
    }
}

/// A thread that reads the clock without pause on a CPU while the event overflows there.
/// Interruptions show as gaps, from which [`judge`] computes a cost.
fn window(
    plan: &PlannedEvent,
    program: Option<RawFd>,
    cpu: usize,
) -> Option<JoinHandle<Option<Window>>> {
    let rate = if program.is_some() { RATE } else { BARE_RATE };
    let period = (plan.event.unit.per_second(machine::clock_hz()) / rate).max(1);
    let plan = PlannedEvent { period, ..plan.clone() };
    let measure = move || {
        let mut here = nix::sched::CpuSet::new();
        here.set(cpu).ok()?;
        nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &here).ok()?;
        match program {
            Some(program) => {
                let events = [plan];
                let mut counters = Counters::open(&events, &[program], &[cpu]).ok()?;
                counters.start(&events).ok()?;
                let window = read_clock(rate);
                counters.stop();
                Some(window)
            }
            None => {
                let counting = open_bare(plan.encoding(cpu)?, cpu, plan.period).ok()?;
                let window = read_clock(rate);
                drop(counting);
                Some(window)
            }
        }
    };
    std::thread::Builder::new().name("calibrate".into()).spawn(measure).ok()
}

/// Reads the clock for one window, on a CPU that is interrupted `rate` times a second.
fn read_clock(rate: u64) -> Window {
    let mut gaps = Vec::with_capacity(256);
    let mut steps = [0_u32; GAP_NS as usize + 1];
    let begin = Instant::now();
    let mut last = begin;
    while last.duration_since(begin) < WINDOW {
        let now = Instant::now();
        let step = now.duration_since(last).as_nanos() as u64;
        match steps.get_mut(step as usize) {
            Some(count) => *count += 1,
            None => gaps.push(step),
        }
        last = now;
    }
    judge(gaps, &steps, last.duration_since(begin), rate)
}

/// The cost that a window shows: from its gaps and its shorter steps (counted by their length in
/// ns), on a CPU that is interrupted `rate` times a second.
///
/// The number of samples in the window is known, but not which gaps are samples: clock ticks and
/// other tasks leave gaps too, and a hypervisor leaves many of 300 to 900 ns, which are more than
/// the samples and far shorter. So the longest gaps are taken for the samples, without those longer
/// than any sample, and their median is the cost. Other long gaps make the cost larger; nothing
/// makes it smaller.
fn judge(mut gaps: Vec<u64>, steps: &[u32], length: Duration, rate: u64) -> Window {
    let long: u64 = gaps.iter().filter(|gap| **gap > LONG_NS).sum();
    gaps.retain(|gap| *gap <= LONG_NS);
    gaps.sort_unstable_by(|a, b| b.cmp(a));
    let own_s = length.as_secs_f64() - Duration::from_nanos(long).as_secs_f64();
    let samples = (own_s.max(0.0) * rate as f64) as usize;
    let ns = gaps.get(samples / 2).filter(|_| samples >= SAMPLES_MIN).map(|gap| *gap as f64);
    let half = steps.iter().sum::<u32>() / 2;
    let mut below = 0;
    let median = steps.iter().position(|count| {
        below += count;
        below > half
    });
    let disturbed = long as f64 > LONG_PART * length.as_nanos() as f64;
    Window { ns, clock_ns: median.unwrap_or(steps.len()) as f64, disturbed }
}

/// The cost of a sample on this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Time that one sample takes from the program it interrupts, ns.
    pub ns_per_sample: f64,
    /// The windows that measured it; None: the cost is assumed.
    pub measured: Option<Measured>,
    /// Time of the measurement, in seconds since 1970 UTC.
    pub unix_s: u64,
}

impl Cost {
    /// A cost that was measured now.
    pub fn of(measured: Measured) -> Self {
        Self { ns_per_sample: measured.ns, measured: Some(measured), unix_s: clock::unix_s() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_the_median_of_enough_gaps_and_knows_what_disturbed_it() {
        let mut steps = [0; GAP_NS as usize + 1];
        (steps[24], steps[25], steps[60]) = (10, 100, 20);
        let mut gaps = vec![14_000; 30];
        gaps.extend([90_000; 12]);
        let window = judge(gaps.clone(), &steps, WINDOW, RATE);
        assert_eq!(window, Window { ns: Some(14_000.0), clock_ns: 25.0, disturbed: false });
        gaps.push(2_000_000);
        assert!(judge(gaps, &steps, WINDOW, RATE).disturbed, "a third of it was another task's");
        assert_eq!(
            judge(vec![14_000; 10], &steps, WINDOW, RATE).ns,
            None,
            "not half of its samples"
        );
        assert_eq!(
            judge(vec![14_000, 4_000_000], &steps, WINDOW, RATE).ns,
            None,
            "hardly any of it was ours"
        );
    }

    /// On a busy virtual machine five of twelve starts measured 14.6 to 27.8 us and seven 0.5 to 3
    /// us: 116 gaps of a median of 832 ns, of which 30 were samples. The budget was overrun 14
    /// times.
    #[test]
    fn many_short_gaps_do_not_make_a_sample_cheap() {
        let mut steps = [0; GAP_NS as usize + 1];
        steps[25] = 100_000;
        let mut random = fastrand::Rng::with_seed(1);
        let mut gaps: Vec<u64> = (0..30).map(|_| random.u64(14_000..16_000)).collect();
        gaps.extend((0..86).map(|_| random.u64(301..900)));
        random.shuffle(&mut gaps);
        let ns = judge(gaps, &steps, WINDOW, RATE).ns.unwrap();
        assert!((14_000.0..16_000.0).contains(&ns), "{ns}");
    }
}

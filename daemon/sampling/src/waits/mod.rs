//! Waits: how long threads were blocked or awake without CPU, and where they left the CPU.
//!
//! The sampler adds up each thread's times exactly, and takes the stacks of some waits when they
//! begin (`ebpf/src/waits.c`). A stack is walked like that of a sample; the end of its wait comes
//! later, on any CPU. The time of a short wait is multiplied by the inverse of the probability with
//! which the wait was chosen. The sampler reports every long wait, and each counts once; a long
//! wait of a thread whose waits were short before may have no stack, since none was taken at its
//! start. The time of a wait that goes on is counted at each drain, so what hangs shows. A thread's
//! waits are made to add up to its times (`told`).
//!
//! Each switch between threads costs the sampler about 0.4 us, whatever is taken of it. Where that
//! is more than its part of the budget, switches are not traced until there are fewer. Meanwhile,
//! waiting threads are sampled in passes over all threads at random moments (`passes`,
//! `ebpf/src/wait_samples.c`), whose cost does not grow with the number of switches. While switches
//! are traced, passes sample the threads that have not switched since tracing began.

mod passes;
pub mod reasons;
mod told;

use passes::{PERIOD_MIN, PERIOD_OF_REST, REST_PART};
pub use passes::{Passes, SAMPLES};

use crate::call_stacks::WalkedStack;
use abi::{StackKind, StackRecord, ThreadState, WaitLine};
use kernel::budget::Budget;
use model::{Attributes, Cut, Value};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use told::AllTold;

/// Waits whose stacks are known and that go on, or whose end came before their stack was walked;
/// about 600 bytes each. Further ones are not counted.
const WAITS_MAX: usize = 8192;
/// Length of waits that are always taken, in us, at least, with a budget of 1 %: SpeedShop's
/// `usertime` looked at all threads as often.
pub const SCALE_MIN_US: u32 = 30_000;
/// At first, until it is known how many waits there are, as a multiple of that.
const SCALE_FIRST: u32 = 4;
/// The largest such multiple.
const SCALE_MAX_US: u32 = 8_000_000;
/// Stacks of waits per second and CPU beyond which longer waits only are always taken, with a
/// budget of 1 %.
const WAITS_PER_S_MAX: f64 = 30.0;
/// Largest factor by which a larger budget, or none, raises the number of stacks of waits and
/// shortens the waits that are always taken. More stacks would not fit into the ring of a CPU.
const PLENTY_MAX: f64 = 10.0;
/// Part of the largest number of switches below which waits are taken again.
const AGAIN: f64 = 0.7;
/// Length in ns from which an unfinished wait is counted in parts. The sampler takes the stacks of
/// all waits of this length (its `LONG_WAIT_US` is at most this).
const GOES_ON_NS: u64 = 1_000_000_000;
/// Waits that go on, were not chosen, and are counted as they go; those beyond are counted when
/// they end. The names of each cost two files to read.
const UNCHOSEN_MAX: usize = 1024;
/// The bit of [`WaitLine::weight`] that marks a stack that found no room.
const UNTAKEN: u16 = 0x8000;

/// A wait that is chosen: the thread, in the root namespace, and when it left the CPU.
type Key = (u32, u64);

/// A wait, or a part of one, with its stack.
pub struct CountedWait<'a> {
    /// The stack; without frames, and with a reason for that, where none was taken.
    pub stack: &'a WalkedStack,
    /// Number of waits that it stands for.
    pub weight: u64,
    /// Time blocked, ns.
    pub blocked_ns: u64,
    /// Time awake without CPU, ns.
    pub runnable_ns: u64,
    /// Time of earlier waits of the thread, weighed, that were chosen and found no room, ns.
    pub owed_ns: u64,
    /// Time of this wait that was counted before, as blocked, ns.
    pub before_ns: u64,
    /// Correction in ns, which makes the thread's waits add up to its exact time blocked: above 0
    /// where the waits told so far were too short in sum, below 0 where they were too long.
    pub due_ns: i64,
    /// It is a sample of a waiting thread: its time is the period of passes, which is by chance.
    pub is_seen: bool,
}

impl<'a> CountedWait<'a> {
    /// A wait without time.
    fn of(stack: &'a WalkedStack) -> Self {
        Self {
            stack,
            weight: 1,
            blocked_ns: 0,
            runnable_ns: 0,
            owed_ns: 0,
            before_ns: 0,
            due_ns: 0,
            is_seen: false,
        }
    }

    /// A sample of a waiting thread, which stands for so much time, in ns: blocked, or awake
    /// without CPU.
    pub fn seen(stack: &'a WalkedStack, blocked_ns: u64, runnable_ns: u64) -> Self {
        let weight = stack.record.weight.into();
        Self { weight, blocked_ns, runnable_ns, is_seen: true, ..Self::of(stack) }
    }

    /// The value that `ns` of this wait add to its context, where `before_ns` of it were added
    /// before, and `owed_ns` of earlier waits are made up for. All parts of a wait are one stack.
    /// The variance is that of drawing the wait with probability 1 / weight (Horvitz and Thompson,
    /// 1952): (1 - 1 / weight) times the square of the weighed time, so 0 for weight 1. For a
    /// sample of a waiting thread it is the whole square, since a pass meets even a thread that it
    /// always samples by chance. The square of what is owed is added, as the waits that it was owed
    /// for may have been others. The correction `due_ns` adds nothing to the variance: it takes
    /// away an error of the sum that the variance of earlier waits has counted.
    pub fn value(&self, ns: u64, before_ns: u64, owed_ns: u64, due_ns: i64) -> Value {
        let squares = |weight: u64| {
            let part = u128::from(weight >> 10);
            let drawn = u128::from(self.weight.max(1));
            let certain = u128::from(!self.is_seen);
            u64::try_from(part * part * (drawn - certain) / drawn).unwrap_or(u64::MAX)
        };
        let of = |ns: u64| ns.saturating_mul(self.weight);
        let all = of(before_ns.saturating_add(ns)).saturating_add(owed_ns);
        let owed = u128::from(owed_ns >> 10);
        let owed_squares = u64::try_from(owed * owed).unwrap_or(u64::MAX);
        Value {
            stacks: u64::from(before_ns == 0),
            weight: (all - of(before_ns).min(all)).saturating_add_signed(due_ns),
            squares: squares(all)
                .saturating_sub(squares(of(before_ns)))
                .saturating_add(owed_squares),
        }
    }
}

#[derive(Clone, Copy)]
struct End {
    weight: u64,
    blocked_ns: u64,
    runnable_ns: u64,
    owed_ns: u64,
}

impl End {
    fn of(record: &StackRecord) -> Self {
        let [runnable_ns, owed_ns, ..] = record.registers;
        Self { weight: record.weight.into(), blocked_ns: record.begin, runnable_ns, owed_ns }
    }
}

/// An unfinished wait.
struct Going {
    stack: WalkedStack,
    /// Time that is counted already, as blocked.
    counted_ns: u64,
}

impl Going {
    /// Counts the time since it was counted last.
    fn goes_on(&mut self, waited_ns: u64, count: &mut impl FnMut(CountedWait<'_>)) {
        let before_ns = self.counted_ns.min(waited_ns);
        self.counted_ns = waited_ns;
        let blocked_ns = waited_ns - before_ns;
        count(CountedWait { blocked_ns, before_ns, ..CountedWait::of(&self.stack) });
    }

    /// Counts the rest of the wait.
    fn ends(&self, end: End, count: &mut impl FnMut(CountedWait<'_>)) {
        let End { weight, blocked_ns, runnable_ns, owed_ns } = end;
        count(CountedWait {
            weight,
            blocked_ns: blocked_ns.saturating_sub(self.counted_ns),
            runnable_ns,
            owed_ns,
            before_ns: self.counted_ns,
            ..CountedWait::of(&self.stack)
        });
    }
}

/// The stack for a wait whose stack was not taken, or not walked.
pub fn without_stack(record: StackRecord) -> WalkedStack {
    WalkedStack {
        record,
        kernel: Vec::new(),
        user: Vec::new(),
        runs: Vec::new(),
        functions: Arc::default(),
        attributes: Attributes::default(),
        cut: Some(Cut::Unexpected),
        space: None,
    }
}

/// Times of threads, summed up. Those of threads that have ended, and of threads whose line another
/// has got, are in it until the daemon has seen that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Threads.
    pub threads: u64,
    /// Time since the sampler first saw each thread, ns.
    pub wall_ns: u64,
    /// Time on a CPU, ns.
    pub on_ns: u64,
    /// Time blocked, ns.
    pub blocked_ns: u64,
    /// Time awake without CPU, ns.
    pub runnable_ns: u64,
}

/// Numbers of waits by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Waits whose stacks were taken.
    pub taken: u64,
    /// Waits that found no room, here or in the sampler, or whose end was never reported.
    pub lost: u64,
    /// Samples of waiting threads, which passes over all threads took.
    pub seen: u64,
    /// Times of threads at the last drain.
    pub times: Times,
}

/// Unfinished waits.
pub struct Waits {
    going: HashMap<Key, Going>,
    /// Likewise, for waits without a stack.
    unchosen: HashMap<Key, Going>,
    /// What was told of threads, by their numbers in the root namespace.
    told: AllTold,
    ends: HashMap<Key, End>,
    long: Vec<StackRecord>,
    lines: Vec<WaitLine>,
    /// When they were read.
    looked_ns: u64,
    /// Whether nothing was counted since.
    is_fresh: bool,
    /// Length of waits that are always taken, in us; 0: nothing is taken.
    scale_us: u32,
    switches: Switches,
    taken_before: u64,
    /// The times of passes over all threads; None: not begun, or not possible.
    passes: Option<Passes>,
    /// The kernel or this process's rights allow no pass.
    is_without_passes: bool,
    passes_ns: u64,
    /// Outcomes so far.
    pub totals: Totals,
}

/// The kernel's count of switches between threads, and its rate.
struct Switches {
    count: u64,
    at: Instant,
    per_s: f64,
    /// Switches of which times were taken.
    taken: u64,
}

impl Default for Waits {
    fn default() -> Self {
        let switches = Switches { count: 0, at: Instant::now(), per_s: 0.0, taken: 0 };
        Self {
            going: HashMap::new(),
            unchosen: HashMap::new(),
            told: AllTold::default(),
            ends: HashMap::new(),
            long: Vec::new(),
            lines: Vec::new(),
            looked_ns: 0,
            is_fresh: false,
            scale_us: 0,
            switches,
            taken_before: 0,
            passes: None,
            is_without_passes: false,
            passes_ns: 0,
            totals: Totals::default(),
        }
    }
}

impl Waits {
    /// Notes the end of a wait.
    pub fn end(&mut self, record: &StackRecord) {
        if self.ends.len() + self.long.len() >= WAITS_MAX {
            self.totals.lost += 1;
            return;
        }
        if record.kind == StackKind::LongWait as u32 {
            self.long.push(*record);
            return;
        }
        self.ends.insert((record.root_tid, record.time_ns), End::of(record));
    }

    /// Notes the stack of a wait, which may go on or have ended.
    pub fn begin(&mut self, stack: WalkedStack) {
        self.totals.taken += 1;
        if self.going.len() >= WAITS_MAX {
            self.totals.lost += 1;
            return;
        }
        let key = (stack.record.root_tid, stack.record.time_ns);
        self.going.insert(key, Going { stack, counted_ns: 0 });
    }

    /// Passes to `tell` each wait that has ended, and, once after each [`Self::look`], of long
    /// unfinished waits the part that was not counted yet. `record` returns the fields of a record
    /// about a thread, by its number in the root namespace; None where it is not known.
    pub fn count(
        &mut self,
        now_ns: u64,
        record: impl Fn(u32) -> Option<StackRecord>,
        mut tell: impl FnMut(CountedWait<'_>),
    ) {
        let mut told = std::mem::take(&mut self.told);
        let mut count = |wait: CountedWait<'_>| tell(told.with_due(wait));
        let (ends, going) = (&mut self.ends, &mut self.going);
        ends.retain(|key, end| {
            let Some(wait) = going.remove(key) else {
                return key.1.saturating_add(GOES_ON_NS * 10) > now_ns; // being walked
            };
            wait.ends(*end, &mut count);
            false
        });
        for record in self.long.drain(..) {
            let known = self.unchosen.remove(&(record.root_tid, record.time_ns));
            let wait =
                known.unwrap_or_else(|| Going { stack: without_stack(record), counted_ns: 0 });
            wait.ends(End::of(&record), &mut count);
        }
        // Later, their lines may include waits that have ended and are already counted; and on a
        // host with hundreds of sleeping threads, to name their stacks at each look cost 1 % of a
        // CPU.
        if std::mem::take(&mut self.is_fresh) {
            self.count_unchosen(now_ns, record, &mut count);
            self.count_going(now_ns, &mut count);
            told.compare(&self.lines, now_ns);
        }
        self.told = told;
    }

    /// Counts unfinished waits without a stack.
    fn count_unchosen(
        &mut self,
        now_ns: u64,
        record: impl Fn(u32) -> Option<StackRecord>,
        count: &mut impl FnMut(CountedWait<'_>),
    ) {
        let (looked_ns, unchosen) = (self.looked_ns, &mut self.unchosen);
        let goes_on = |line: &&WaitLine| {
            line.state == ThreadState::Blocked as u16
                && (line.weight == 0 || line.weight & UNTAKEN != 0)
                && line.since_ns + GOES_ON_NS <= looked_ns
                && line.woken_ns == 0
        };
        let mut still: HashMap<Key, Going> = HashMap::new();
        for line in self.lines.iter().filter(goes_on) {
            let key = (line.tid, line.since_ns);
            let known = unchosen.remove(&key).or_else(|| {
                let is_room = still.len() < UNCHOSEN_MAX;
                let record = is_room.then(|| record(line.tid)).flatten()?;
                Some(Going { stack: without_stack(record), counted_ns: 0 })
            });
            if let Some(mut wait) = known {
                wait.goes_on(now_ns.saturating_sub(line.since_ns), count);
                still.insert(key, wait);
            }
        }
        // The ends of the others are to come, unless their threads have ended.
        unchosen.retain(|(_, since_ns), wait| {
            now_ns.saturating_sub(since_ns + wait.counted_ns) < 30 * GOES_ON_NS
        });
        unchosen.extend(still);
    }

    /// Counts unfinished waits.
    fn count_going(&mut self, now_ns: u64, count: &mut impl FnMut(CountedWait<'_>)) {
        let lines: HashMap<u32, &WaitLine> =
            self.lines.iter().map(|line| (line.tid, line)).collect();
        let (mut lost, looked_ns) = (0, self.looked_ns);
        self.going.retain(|(tid, since_ns), wait| {
            let waited_ns = now_ns.saturating_sub(*since_ns);
            // Lines that were read before the wait began do not include it.
            if waited_ns < GOES_ON_NS || looked_ns <= *since_ns {
                return true;
            }
            let line = lines.get(tid);
            let Some(line) = line.filter(|line| line.since_ns == *since_ns) else {
                // It has ended, and its end is lost or to come: not of a thread that has ended, or
                // that has been at something else for longer than records take.
                let since = |line: &WaitLine| now_ns.saturating_sub(line.since_ns);
                let is_late = line.is_none_or(|line| since(line) > GOES_ON_NS)
                    || waited_ns > 100 * GOES_ON_NS;
                lost += u64::from(is_late);
                return !is_late;
            };
            if line.state == ThreadState::Blocked as u16 {
                wait.goes_on(waited_ns, count);
            }
            true
        });
        self.totals.lost += lost;
    }

    /// Takes over the times of threads that `read` gives, with the time when it has read them.
    pub fn look(&mut self, read: impl FnOnce(&mut Vec<WaitLine>) -> u64) {
        self.lines.clear();
        let now_ns = read(&mut self.lines);
        (self.looked_ns, self.is_fresh) = (now_ns, true);
        let mut times = Times::default();
        for line in &self.lines {
            let going_ns = now_ns.saturating_sub(line.since_ns);
            times.threads += 1;
            times.on_ns += line.on_ns;
            times.blocked_ns += line.blocked_ns;
            times.runnable_ns += line.runnable_ns;
            let mut wall_ns = now_ns.saturating_sub(line.born_ns);
            match line.state {
                state if state == ThreadState::Runs as u16 => times.on_ns += going_ns,
                state if state == ThreadState::Runnable as u16 => times.runnable_ns += going_ns,
                state if state == ThreadState::Blocked as u16 => {
                    let woken = if line.woken_ns > line.since_ns { line.woken_ns } else { now_ns };
                    times.blocked_ns += woken.saturating_sub(line.since_ns);
                    times.runnable_ns += now_ns.saturating_sub(woken);
                }
                _ => wall_ns = line.since_ns.saturating_sub(line.born_ns),
            }
            times.wall_ns += wall_ns;
        }
        self.totals.times = times;
    }

    /// The length of waits that are always taken from now on, in us, when it changes; 0: none are
    /// taken. `switches` is the kernel's count of switches between threads, on `cpus` CPUs;
    /// `affords` says what may be spent.
    pub fn pace(
        &mut self,
        switches: u64,
        cpus: usize,
        budget: Option<Budget>,
        affords: &Affords,
    ) -> Option<u32> {
        let now = Instant::now();
        let seconds = now.duration_since(self.switches.at).as_secs_f64();
        let plenty = plenty(budget);
        let scale_min_us = (f64::from(SCALE_MIN_US) / plenty) as u32;
        let scale_first_us = SCALE_FIRST * scale_min_us;
        if !self.is_without_passes {
            self.passes.get_or_insert_with(|| Passes::new(now));
        }
        if self.switches.count == 0 {
            (self.switches.count, self.switches.at) = (switches, now);
            self.scale_us = scale_first_us;
            return Some(scale_first_us);
        }
        if seconds < 0.5 {
            return None;
        }
        let per_cpu = seconds * cpus.max(1) as f64;
        let since = switches.saturating_sub(self.switches.count);
        self.switches.per_s = since as f64 / per_cpu;
        if self.scale_us > 0 {
            self.switches.taken += since;
        }
        (self.switches.count, self.switches.at) = (switches, now);
        let taken_per_s = (self.totals.taken - self.taken_before) as f64 / per_cpu;
        self.taken_before = self.totals.taken;
        let most = affords.ns_per_s / affords.switch_ns;
        let left_ns = affords.ns_per_s - self.switches.per_s * affords.switch_ns;
        let taken_max = (WAITS_PER_S_MAX * plenty).min((left_ns / affords.stack_ns).max(1.0));
        let scale_us = match self.scale_us {
            _ if self.switches.per_s > most => 0,
            0 if self.switches.per_s > most * AGAIN => 0,
            0 => scale_first_us,
            scale => {
                let part = (taken_per_s / taken_max).clamp(0.5, 16.0);
                ((f64::from(scale) * part) as u32).clamp(scale_min_us, SCALE_MAX_US)
            }
        };
        let is_new = scale_us != self.scale_us;
        if is_new && (scale_us == 0 || self.scale_us == 0) {
            let (per_s, most) = (self.switches.per_s as u64, most as u64);
            tracing::info!(per_s, most, takes = scale_us > 0, "switches of threads on each CPU");
        }
        if scale_us == 0 && self.scale_us > 0 {
            self.stop();
        }
        self.scale_us = scale_us;
        is_new.then_some(scale_us)
    }

    /// Forgets waits that go on: nothing reports their ends any more.
    pub fn stop(&mut self) {
        (self.going, self.ends) = (HashMap::new(), HashMap::new());
        (self.unchosen, self.long) = (HashMap::new(), Vec::new());
        self.told = AllTold::default();
        self.scale_us = 0;
        self.passes = None;
    }

    /// The times of passes over all threads.
    pub fn passes(&self) -> Option<&Passes> {
        self.passes.as_ref()
    }

    /// A pass stands for `covered` and took `cost` of CPU time; all passes may take `ns_per_s`.
    pub fn passed(&mut self, covered: Duration, cost: Duration, ns_per_s: f64) {
        self.passes_ns += u64::try_from(cost.as_nanos()).unwrap_or(u64::MAX);
        let Some(passes) = &mut self.passes else { return };
        // Threads whose switches are not traced wait for long, so few passes find the same.
        let (ns_per_s, least) = match self.scale_us {
            0 => (ns_per_s, PERIOD_MIN),
            _ => (ns_per_s * REST_PART, PERIOD_OF_REST),
        };
        passes.passed(covered, cost, ns_per_s, least);
    }

    /// No pass is possible, so there are none from now on.
    pub fn do_without_passes(&mut self) {
        (self.passes, self.is_without_passes) = (None, true);
    }

    /// CPU time of all passes so far, ns.
    pub fn passes_ns(&self) -> u64 {
        self.passes_ns
    }

    /// Period of these passes while switches are not followed.
    pub fn period(&self) -> Option<Duration> {
        self.passes.as_ref().filter(|_| self.scale_us == 0).map(Passes::period)
    }

    /// Length of waits that are always taken; None: none are taken.
    pub fn scale(&self) -> Option<Duration> {
        (self.scale_us > 0).then(|| Duration::from_micros(self.scale_us.into()))
    }

    /// Switches between threads of which times were taken.
    pub fn switches_taken(&self) -> u64 {
        self.switches.taken
    }

    /// Switches between threads, per second and CPU.
    pub fn switches_per_s(&self) -> f64 {
        self.switches.per_s
    }
}

/// What waits may cost, and what they cost.
#[derive(Clone, Copy, Debug)]
pub struct Affords {
    /// CPU time per second and CPU, ns; infinite without a budget.
    pub ns_per_s: f64,
    /// CPU time of a switch between threads, ns.
    pub switch_ns: f64,
    /// CPU time of copying and walking a stack, ns.
    pub stack_ns: f64,
}

/// The number of waits taken, as a multiple of that with a budget of 1 %.
fn plenty(budget: Option<Budget>) -> f64 {
    budget.map_or(PLENTY_MAX, |budget| (budget.0 / 0.01).clamp(1.0, PLENTY_MAX))
}

/// The kernel's count of switches between threads since it started (`ctxt` of proc_stat(5)).
pub fn switches() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().find_map(|line| line.strip_prefix("ctxt "));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(tid: u32, at_s: u64) -> WalkedStack {
        let record =
            StackRecord { root_tid: tid, time_ns: at_s * 1_000_000_000, ..StackRecord::EMPTY };
        WalkedStack {
            record,
            kernel: Vec::new(),
            user: Vec::new(),
            runs: Vec::new(),
            functions: std::sync::Arc::default(),
            attributes: model::Attributes::default(),
            cut: None,
            space: None,
        }
    }

    fn end(tid: u32, at_s: u64, blocked_ns: u64, runnable_ns: u64) -> StackRecord {
        let mut record = StackRecord { weight: 1, ..stack(tid, at_s).record };
        (record.begin, record.registers[0]) = (blocked_ns, runnable_ns);
        record
    }

    fn counted(waits: &mut Waits, now_s: u64) -> Vec<(u32, u64, u64)> {
        let mut all = Vec::new();
        let named = |tid| Some(StackRecord { root_tid: tid, ..StackRecord::EMPTY });
        waits.count(now_s * 1_000_000_000, named, |wait| {
            all.push((wait.stack.record.root_tid, wait.blocked_ns, wait.runnable_ns));
        });
        all.sort_unstable();
        all
    }

    #[test]
    fn a_wait_is_counted_once_whichever_of_its_ends_is_known_first() {
        let mut waits = Waits::default();
        waits.begin(stack(1, 5));
        assert_eq!(counted(&mut waits, 5), []);
        waits.end(&end(1, 5, 700, 30));
        waits.end(&end(2, 5, 900, 0));
        assert_eq!(counted(&mut waits, 6), [(1, 700, 30)]);
        waits.begin(stack(2, 5));
        assert_eq!(counted(&mut waits, 6), [(2, 900, 0)]);
        assert_eq!(counted(&mut waits, 7), []);
        assert_eq!((waits.totals.taken, waits.totals.lost), (2, 0));
    }

    /// A thread that slept for 10 s after 300 short waits was absent, or had half an hour.
    #[test]
    fn a_long_wait_that_was_not_chosen_is_counted_once_without_stack() {
        let mut waits = Waits::default();
        let since_ns = 5_000_000_000;
        let blocked = ThreadState::Blocked as u16;
        let look = |waits: &mut Waits, now_s: u64, lines: &[WaitLine]| {
            waits.look(|into| {
                into.extend(lines);
                now_s * 1_000_000_000
            });
        };
        let of =
            |tid, weight| WaitLine { tid, since_ns, state: blocked, weight, ..WaitLine::default() };
        // The second was chosen, and is being walked.
        look(&mut waits, 7, &[of(1, 0), of(2, 40), of(3, UNTAKEN | 40)]);
        assert_eq!(counted(&mut waits, 7), [(1, 2_000_000_000, 0), (3, 2_000_000_000, 0)]);
        look(&mut waits, 8, &[]);
        assert_eq!(counted(&mut waits, 8), []);
        for tid in [1, 4] {
            let kind = StackKind::LongWait as u32;
            waits.end(&StackRecord { kind, weight: 1, ..end(tid, 5, 2_500_000_000, 10) });
        }
        assert_eq!(counted(&mut waits, 8), [(1, 500_000_000, 10), (4, 2_500_000_000, 10)]);
        look(&mut waits, 99, &[]);
        assert_eq!(counted(&mut waits, 99), []);
        assert!(waits.unchosen.is_empty());
    }

    #[test]
    fn parts_of_a_wait_are_one_stack_and_what_is_certain_has_no_variance() {
        let of = |weight, before_ns| {
            CountedWait { weight, before_ns, ..CountedWait::of(&stack(1, 5)) }.value(
                1 << 30,
                before_ns,
                0,
                0,
            )
        };
        assert_eq!(of(1, 0), Value { stacks: 1, weight: 1 << 30, squares: 0 });
        assert_eq!(of(1, 7), Value { stacks: 0, weight: 1 << 30, squares: 0 });
        // One of two: as likely nothing or twice as much.
        assert_eq!(of(2, 0), Value { stacks: 1, weight: 2 << 30, squares: 1 << 41 });
    }

    /// Such a wait kept the label of its process in force for 100 s.
    #[test]
    fn a_wait_whose_end_is_lost_is_given_up_when_its_thread_has_gone_on() {
        let mut waits = Waits::default();
        for tid in [1, 2, 3] {
            waits.begin(stack(tid, 5));
        }
        // The first wait is forgotten; the second has lasted for a long time, the third has just
        // begun.
        waits.look(|lines| {
            for (tid, since_ns) in [(2, 6_000_000_000), (3, 7_900_000_000)] {
                lines.push(WaitLine { tid, since_ns, ..WaitLine::default() });
            }
            8_000_000_000
        });
        assert_eq!(counted(&mut waits, 8), []);
        assert_eq!(waits.totals.lost, 2);
        waits.end(&end(3, 5, 2_900_000_000, 0));
        assert_eq!(counted(&mut waits, 8), [(3, 2_900_000_000, 0)]);
    }

    /// Times of threads are read at drains only, and waits of a second that began since were given
    /// up: their threads were at something else when their times were read.
    #[test]
    fn a_wait_that_began_after_the_last_look_is_kept() {
        let mut waits = Waits::default();
        waits.look(|lines| {
            lines.push(WaitLine { tid: 1, since_ns: 2_000_000_000, ..WaitLine::default() });
            4_000_000_000
        });
        waits.begin(stack(1, 5));
        assert_eq!(counted(&mut waits, 7), []);
        waits.end(&end(1, 5, 3_000_000_000, 0));
        assert_eq!(counted(&mut waits, 8), [(1, 3_000_000_000, 0)]);
        assert_eq!(waits.totals.lost, 0);
    }

    #[test]
    fn a_wait_that_goes_on_is_counted_as_it_goes() {
        let mut waits = Waits::default();
        waits.begin(stack(1, 5));
        let since_ns = 5_000_000_000;
        let blocked = ThreadState::Blocked as u16;
        let line = WaitLine { tid: 1, since_ns, state: blocked, weight: 1, ..WaitLine::default() };
        let look = |waits: &mut Waits, now_s: u64| {
            waits.look(|lines| {
                lines.push(line);
                now_s * 1_000_000_000
            });
        };
        look(&mut waits, 7);
        assert_eq!(waits.totals.times.blocked_ns, 2_000_000_000);
        assert_eq!(counted(&mut waits, 7), [(1, 2_000_000_000, 0)]);
        assert_eq!(counted(&mut waits, 8), [], "once after a look");
        look(&mut waits, 8);
        assert_eq!(counted(&mut waits, 8), [(1, 1_000_000_000, 0)]);
        waits.end(&end(1, 5, 3_500_000_000, 10));
        assert_eq!(counted(&mut waits, 9), [(1, 500_000_000, 10)], "the rest");
    }

    #[test]
    fn times_of_threads_add_up_to_wall_time() {
        let mut waits = Waits::default();
        let of = |state: ThreadState, on_ns, blocked_ns, since_ns, woken_ns| WaitLine {
            born_ns: since_ns - on_ns - blocked_ns,
            on_ns,
            blocked_ns,
            since_ns,
            woken_ns,
            tid: 1,
            state: state as u16,
            ..WaitLine::default()
        };
        let lines = [
            of(ThreadState::Runs, 10, 20, 100, 0),
            of(ThreadState::Blocked, 1, 2, 150, 0),
            of(ThreadState::Blocked, 1, 2, 150, 180),
            of(ThreadState::Runnable, 5, 5, 120, 0),
            of(ThreadState::Ended, 7, 3, 130, 0),
        ];
        waits.look(|into| {
            into.extend(lines);
            200
        });
        let Times { threads, wall_ns, on_ns, blocked_ns, runnable_ns } = waits.totals.times;
        assert_eq!((threads, on_ns, blocked_ns, runnable_ns), (5, 124, 112, 100));
        assert_eq!(on_ns + blocked_ns + runnable_ns, wall_ns);
    }

    #[test]
    fn what_costs_too_much_ends_and_begins_again() {
        const SCALE_FIRST_US: u32 = SCALE_FIRST * SCALE_MIN_US;
        let mut waits = Waits::default();
        let budget = Some(Budget(0.01));
        let mut affords = Affords { ns_per_s: 3e6, switch_ns: 450.0, stack_ns: 1e3 };
        let after_1s = |waits: &mut Waits, switches: u64, affords: &Affords| {
            waits.switches.at = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
            let count = waits.switches.count.max(1) + switches;
            waits.pace(count, 1, budget, affords)
        };
        assert_eq!(after_1s(&mut waits, 1000, &affords), Some(SCALE_FIRST_US));
        assert_eq!(after_1s(&mut waits, 6000, &affords), Some(SCALE_FIRST_US / 2));
        assert_eq!(after_1s(&mut waits, 6000, &affords), Some(SCALE_MIN_US));
        assert_eq!(after_1s(&mut waits, 6000, &affords), None);
        waits.totals.taken += 60;
        let scale_us = after_1s(&mut waits, 6000, &affords).unwrap();
        assert!((2 * SCALE_MIN_US).abs_diff(scale_us) < SCALE_MIN_US / 10, "fewer: {scale_us}");
        affords.stack_ns = 60_000.0; // 5 stacks a second beside 6000 switches
        waits.totals.taken += 20;
        let dearer_us = after_1s(&mut waits, 6000, &affords).unwrap();
        assert!((4 * scale_us).abs_diff(dearer_us) < scale_us, "{scale_us}, {dearer_us}");
        affords.stack_ns = 1e3;
        let taken = waits.switches_taken();
        assert_eq!(after_1s(&mut waits, 7000, &affords), Some(0));
        assert_eq!(waits.switches_taken(), taken + 7000);
        assert_eq!(waits.scale(), None);
        assert_eq!(after_1s(&mut waits, 6000, &affords), None, "not at once");
        assert_eq!(waits.switches_taken(), taken + 7000);
        assert_eq!(after_1s(&mut waits, 1000, &affords), Some(SCALE_FIRST_US));
    }

    #[test]
    fn a_larger_budget_takes_more_and_shorter_waits() {
        for (budget, first_us) in
            [(Some(0.005), 120_000), (Some(0.05), 24_000), (Some(0.3), 12_000), (None, 12_000)]
        {
            let scale_us = {
                let affords = Affords { ns_per_s: f64::INFINITY, switch_ns: 450.0, stack_ns: 1e4 };
                Waits::default().pace(1, 1, budget.map(Budget), &affords)
            };
            assert_eq!(scale_us, Some(first_us), "{budget:?}");
        }
    }
}

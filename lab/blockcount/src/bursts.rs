//! Bursts: now and then some 10^5 instructions of a thread are recorded, with the addresses of
//! their loads and stores and the ways of their branches. A timer of the process's CPU time begins
//! a burst; its signal is one that no program uses.
//!
//! A recorded block of instructions ends in the engine, which takes the branch and looks at the
//! registers that the operands of the next block need (`cache/steps.rs`): some 100 ns each.

use crate::area::{event, record};
use crate::cache::steps::{LINES_MAX, Operand, Source, holds};
use crate::context::{COUNTERS, Context, FLAGS, RCX, RESUME, RSP, SLOT, STEP};
use crate::decode::End;
use crate::engine::Engine;
use crate::huge_pages;
use crate::memory::{load, read_program, store, write_program};
use crate::signals;
use crate::syscalls::Then;
use crate::system::{self, number};

/// SIGSTKFLT: the kernel never sends it.
pub const SIGNAL: u64 = 16;
/// `si_code` of a timer's signal (SI_TIMER).
const BY_TIMER: i32 = -2;
/// CLOCK_PROCESS_CPUTIME_ID.
const CPU_TIME: u64 = 2;

/// Words of a burst: 10^5 to 2 * 10^5 instructions. In a longer burst more of a large cache's lines
/// are seen again; shorter ones are spread better.
const WORDS: u64 = 1 << 18;
/// A burst takes at most this part of the room that is left, so the room never ends.
const ROOM_PART: u64 = 24;
/// With less room no burst begins.
const WORDS_MIN: u64 = 1 << 12;
/// CPU time before the first burst, and between bursts, ns at least: a tick of most kernels.
const INTERVAL_MIN_NS: u64 = 4_000_000;
/// Between bursts is this part of the CPU time so far: the bursts of a long run are spread over it.
const INTERVAL_PART: u64 = 16;
/// Targets of an indirect branch that are counted one by one.
const TARGETS_MAX: usize = 1024;

/// The state of bursts.
pub struct Bursts {
    timer: Option<u32>,
    /// The context of the thread that is recorded; zero between bursts.
    owner: u64,
    /// The room at which the burst ends.
    room: u64,
    /// CPU time at its begin, ns.
    begun: u64,
    random: u64,
}

impl Bursts {
    pub fn new() -> Self {
        Self { timer: None, owner: 0, room: 0, begun: 0, random: 0x9e37_79b9_7f4a_7c15 }
    }

    /// 0 to 2^16 - 1, a linear congruence's upper bits (Knuth's MMIX).
    fn random(&mut self) -> u64 {
        let next = self.random.wrapping_mul(6_364_136_223_846_793_005);
        self.random = next.wrapping_add(1_442_695_040_888_963_407);
        self.random >> 48
    }
}

/// Whether a signal is that of the timer.
pub fn is_timer(signal: u64, code: i32) -> bool {
    signal == SIGNAL && code == BY_TIMER
}

fn cpu_time() -> u64 {
    let mut time = [0_u64; 2];
    // SAFETY: the kernel writes the time.
    unsafe { system::call3(number::CLOCK_GETTIME, CPU_TIME, time.as_mut_ptr() as u64, 0) };
    let [seconds, ns] = time;
    seconds.wrapping_mul(1_000_000_000).wrapping_add(ns)
}

/// Base of the thread's %fs.
fn thread_base() -> u64 {
    let base: u64;
    // SAFETY: the kernel lets programs read it, or the engine had not started.
    unsafe {
        core::arch::asm!("rdfsbase {}", out(reg) base, options(nomem, nostack, preserves_flags));
    }
    base
}

impl Engine {
    /// Begins to count down to the first burst of this process.
    pub fn begin_bursts(&mut self) {
        self.bursts = Bursts::new();
        if !self.area.records_bursts() || self.area.folder().is_empty() || !self.sends_files {
            return;
        }
        self.bursts.random ^= system::pid() << 32 ^ cpu_time();
        signals::catch(SIGNAL);
        // struct sigevent: value, signal, SIGEV_SIGNAL (0).
        let mut event = [0_u64; 8];
        let [_, signal, ..] = &mut event;
        *signal = SIGNAL;
        let mut timer = 0_u32;
        let (event, at) = (event.as_ptr() as u64, &raw mut timer as u64);
        // SAFETY: the kernel reads the event and writes the timer's number.
        let answer = unsafe { system::call3(number::TIMER_CREATE, CPU_TIME, event, at) };
        self.bursts.timer = (answer == 0).then_some(timer);
        self.arm(INTERVAL_MIN_NS);
    }

    /// The next burst comes in so many ns, half as many, or half as many more.
    fn arm(&mut self, ns: u64) {
        // A program that filters its system calls would end by this one.
        let Some(timer) = self.bursts.timer.filter(|_| self.sends_files) else { return };
        let ns = ns / 2 + (ns >> 16) * self.bursts.random();
        // struct itimerspec: interval, time.
        let spec = [0, 0, ns / 1_000_000_000, ns % 1_000_000_000];
        let arguments = [u64::from(timer), 0, spec.as_ptr() as u64, 0, 0, 0];
        // SAFETY: the kernel reads the time.
        unsafe { system::call(number::TIMER_SETTIME, arguments) };
    }

    /// Continues at an address to which no edge leads, and records from there on.
    pub fn begin_burst(&mut self, at: u64, context: Context) {
        let room = self.area.records_room();
        let words = WORDS.min(room / ROOM_PART);
        let step = self.cache.step_block(at, &mut self.area);
        let Some((step, entry)) = step
            .filter(|_| words >= WORDS_MIN)
            .and_then(|step| Some((step, self.cache.step_entry(step)?)))
        else {
            self.enter(at, context);
            if words >= WORDS_MIN {
                self.arm(INTERVAL_MIN_NS);
            }
            return;
        };
        huge_pages::record(&mut self.area);
        self.bursts.owner = context.0;
        self.bursts.room = self.area.records_room().saturating_sub(words);
        self.bursts.begun = cpu_time();
        self.area.record(record::BURST | context.get(SLOT) << record::NUMBER);
        if let Some(step) = self.cache.step_of(step) {
            // The program's registers are in the signal's frame: of this block no address is known.
            self.area.record(record::BLOCK | u64::from(step.block) << record::NUMBER);
            self.area.event(event::ENTERED, step.block, at);
        }
        context.set(STEP, u64::from(step));
        context.set(RESUME, entry);
    }

    /// The thread goes on without being recorded.
    pub fn end_burst(&mut self, context: Context) {
        if self.bursts.owner != context.0 || context.0 == 0 {
            return;
        }
        self.bursts.owner = 0;
        self.area.recorded();
        let now = cpu_time();
        let took = now.saturating_sub(self.bursts.begun);
        self.arm(took.max(INTERVAL_MIN_NS).max(now / INTERVAL_PART));
    }

    /// A block of a burst has come to its end.
    pub fn step(&mut self, context: Context) -> Then {
        let number = context.get(STEP) as u32;
        let Some(step) = self.cache.step_of(number) else {
            system::refuse(&[b"an error in the engine: a burst without code"]);
        };
        let (block, end, last, next) = (step.block, step.end, step.last, step.next);
        let changed = self.cache.is_dropped(block);
        let owned = self.bursts.owner == context.0;
        let to = match end {
            End::Cut => Some((next, false)),
            _ if changed => None,
            End::Jump(target) => Some((target, false)),
            End::Conditional(target) => {
                Some((self.conditional(context, number, (target, next)), false))
            }
            End::Call(target) => push(context, next).then_some((target, false)),
            _ => self.indirect_target(context, number).map(|target| (target, true)),
        };
        let Some((to, indirect)) = to else {
            // The program's own instruction is executed, and faults.
            self.area.event(event::LEFT, block, last);
            self.enter(last, context);
            return Then::GoOn;
        };
        let more = owned && !changed && (indirect || self.area.records_room() > self.bursts.room);
        let step = if more { self.cache.step_block(to, &mut self.area) } else { None };
        let next_block = match step {
            Some(step) => self.cache.step_of(step).map(|step| step.block),
            None => self.cache.block(to, &mut self.area),
        };
        if indirect {
            self.count_target(context, number, to, next_block);
        }
        if let Some(step) = step
            && let Some(entry) = self.cache.step_entry(step)
        {
            self.record_block(context, step);
            context.set(STEP, u64::from(step));
            context.set(RESUME, entry);
            return Then::GoOn;
        }
        self.end_burst(context);
        let code = match next_block {
            Some(block) => self.cache.entry(block),
            None => self.cache.fault(to, context),
        };
        context.set(RESUME, code);
        Then::GoOn
    }

    /// Takes a conditional branch; the address that it leads to.
    fn conditional(&mut self, context: Context, step: u32, (target, next): (u64, u64)) -> u64 {
        let Some(step) = self.cache.step_of(step) else { return next };
        let taken = holds(step.condition, context.get(FLAGS));
        self.area.record(record::BRANCH | u64::from(taken) << record::NUMBER);
        if taken && let Some(counter) = self.area.taken_counter(step.block) {
            count(context, counter);
        }
        if taken { target } else { next }
    }

    /// Takes an indirect branch; None where it would fault.
    fn indirect_target(&mut self, context: Context, step: u32) -> Option<u64> {
        let step = self.cache.step_of(step)?;
        let target = match step.target {
            Source::Register(register) => context.register(register),
            Source::Memory(operand) => read_program(operand.address(context, thread_base()))?,
            Source::Stack => read_program(context.register(RSP))?,
        };
        match step.end {
            End::IndirectCall if !push(context, step.next) => return None,
            End::Return(arguments) => {
                let stack = context.register(RSP).wrapping_add(8 + u64::from(arguments));
                context.set_register(RSP, stack);
            }
            _ => {}
        }
        let word = record::TARGET | (target & ((1 << 48) - 1)) << record::NUMBER;
        self.area.record(word);
        Some(target)
    }

    /// Counts that an indirect branch led to a block.
    fn count_target(&mut self, context: Context, step: u32, target: u64, block: Option<u32>) {
        let Some(step) = self.cache.step_of(step) else { return };
        if !step.counted {
            if let Some(block) = block {
                self.area.entered_indirectly(block);
            }
            return;
        }
        // Further targets share a counter, that of target zero.
        let full = step.targets.len() >= TARGETS_MAX;
        let find = |target| step.targets.iter().find(|(known, _)| *known == target);
        let (target, known) = match find(target) {
            None if full => (0, find(0)),
            known => (target, known),
        };
        let counter = match known {
            Some((_, counter)) => *counter,
            None => {
                let counter = self.area.call(step.block, target);
                step.targets.push((target, counter));
                counter
            }
        };
        if target == 0
            && let Some(block) = block
        {
            self.area.entered_indirectly(block);
        }
        count(context, counter);
    }

    /// Records a block that is executed next, with the addresses of its operands.
    fn record_block(&mut self, context: Context, step: u32) {
        let Some(step) = self.cache.step_of(step) else { return };
        self.area.record(record::BLOCK | u64::from(step.block) << record::NUMBER);
        let mut thread = None;
        for operand in &step.operands {
            let thread = *thread.get_or_insert_with(thread_base);
            let start = operand.address(context, thread);
            let bytes = u64::from(operand.bytes);
            let all = if operand.repeats { context.register(RCX).saturating_mul(bytes) } else { 1 };
            for line in 0..all.div_ceil(64).min(LINES_MAX) {
                self.area.record(access(operand, start.wrapping_add(64 * line)));
            }
        }
    }
}

/// The word of an access.
fn access(operand: &Operand, address: u64) -> u64 {
    record::ACCESS
        | (address & ((1 << 48) - 1)) << record::NUMBER
        | u64::from(operand.instruction & 0xf) << record::INSTRUCTION
        | u64::from(operand.bytes) << record::BYTES
        | u64::from(operand.stores) << record::STORE
}

/// Pushes a return address; false where the program has no stack.
fn push(context: Context, value: u64) -> bool {
    let stack = context.register(RSP).wrapping_sub(8);
    let done = write_program(stack, value);
    if done {
        context.set_register(RSP, stack);
    }
    done
}

/// Adds one to a counter of a thread.
fn count(context: Context, counter: u32) {
    let at = context.address_of(COUNTERS).wrapping_add(u64::from(counter) * 8);
    store(at, load::<u64>(at).wrapping_add(1));
}

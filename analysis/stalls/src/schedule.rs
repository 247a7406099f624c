//! The best case on a processor that executes out of order: when the instructions of a trace retire
//! if every load hits the first level of the cache, every branch is predicted and all code is
//! present. (For processors that issue in order: `in_order.rs`.)
//!
//! Instructions are dispatched in order, `width` micro-operations a cycle, as long as the reorder
//! buffer has room. Each begins when its operands and a unit are ready; all retire in order.
//! Samples of time land on the oldest instruction that has not retired. Its cycles are those
//! between the retirement of the instruction before it and its own. (The paper's M, section 6.1.3,
//! is the same for a processor that issues in order.)

use code::isa::work::{Registers, Work};

use crate::in_order;
use crate::machine::{Cost, Machine};

/// The resource or operand that an instruction waits for in its best case.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// Nothing: the instruction takes its share of the issue width.
    #[default]
    Nothing,
    /// The result of another instruction, or its own latency.
    Operand,
    /// A load, by another instruction or by itself.
    Load,
    /// A unit that other instructions keep busy.
    Unit,
}

/// An instruction's part of the best case of its trace. Cycles are per execution.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct BestCase {
    /// Cycles if nothing waits: micro-operations / issue width.
    pub issue_cycles: f64,
    /// Mean cycles as the oldest instruction that has not retired (in order: at the head of the
    /// issue queue).
    pub cycles: f64,
    /// The reason for most of those cycles.
    pub wait: Wait,
    /// Distance, in instructions, back to the one that is waited for; only on processors that issue
    /// in order.
    pub producer_distance: Option<usize>,
    /// Cycles that unlimited units would save.
    pub unit_contention: f64,
}

/// Bits of a set of units: the most units of any processor here.
const UNITS: usize = 64;
/// Instructions over all scheduled rounds of a loop, by which the state before the first round has
/// no influence any more: several reorder buffers. Set by hand; more only cost time.
const SCHEDULED_INSTRUCTIONS: usize = 2048;
/// Most rounds of a loop that are scheduled. Set by hand: short loops are steady long before.
const ROUNDS_MAX: usize = 64;

/// The state of a processor, in cycles.
#[derive(Clone)]
struct Core<'a> {
    machine: &'a Machine,
    /// For each register, the cycle in which its value is ready, and the reason for its wait.
    registers: [(f64, Wait); 64],
    /// When each unit is free.
    units: [f64; UNITS],
    /// Whether every unit is always free.
    unlimited_units: bool,
    /// Whether an instruction had to wait for a unit.
    waited_for_unit: bool,
    /// When the next instruction is dispatched.
    dispatched: f64,
    /// When the last instruction retired.
    retired: f64,
    /// When the instructions retire that may still be in the reorder buffer, oldest first.
    reorder_buffer: std::collections::VecDeque<f64>,
}

/// The state of the pipeline before a trace.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TraceContext {
    /// The pipeline is full of other instructions. The trace runs once.
    Busy,
    /// The trace is one round of a loop.
    Loop,
    /// The pipeline is empty: after a misprediction, or a miss of the instruction cache.
    Empty,
}

/// The best case of each instruction of `trace`.
pub fn schedule(machine: &Machine, trace: &[Work], context: TraceContext) -> Vec<BestCase> {
    if machine.in_order() {
        return in_order::schedule(machine, trace, context);
    }
    let rounds = match context {
        TraceContext::Loop => (SCHEDULED_INSTRUCTIONS / trace.len().max(1)).clamp(4, ROUNDS_MAX),
        _ => 1,
    };
    let new_core =
        |unlimited_units| Core::new(machine, context, unlimited_units, rounds * trace.len());
    let mut core = new_core(false);
    let mut best_cases = core.schedule(trace, false, rounds);
    if core.waited_for_unit && context != TraceContext::Empty {
        note_contention(&mut best_cases, &new_core(true).schedule(trace, false, rounds));
    }
    best_cases
}

/// A processor after the instructions that precede several traces: these are scheduled only once.
/// The processor was busy before them.
pub(crate) struct WarmCore<'a> {
    core: Core<'a>,
    /// The same with unlimited units; made when first needed.
    unlimited: Option<Core<'a>>,
    traces: Vec<&'a [Work]>,
    /// Whether the last instruction fuses with a branch.
    fuses: bool,
}

impl<'a> WarmCore<'a> {
    /// The processor, which executes out of order, after the instructions of `traces`, the last of
    /// which immediately precede what is scheduled.
    pub(crate) fn new(machine: &'a Machine, traces: Vec<&'a [Work]>) -> Self {
        let core = Self::warmed_up(machine, &traces, false);
        let fuses =
            traces.iter().rev().find_map(|trace| trace.last()).is_some_and(|last| last.fuses);
        Self { core, unlimited: None, traces, fuses }
    }

    fn warmed_up(machine: &'a Machine, traces: &[&[Work]], unlimited_units: bool) -> Core<'a> {
        let len = traces.iter().map(|trace| trace.len()).sum();
        let mut core = Core::new(machine, TraceContext::Busy, unlimited_units, len);
        let mut fuses = false;
        for work in traces.iter().copied().flatten() {
            core.step(work, fuses && work.conditional);
            fuses = work.fuses;
        }
        core
    }

    /// The best case of each instruction of `trace`.
    pub(crate) fn schedule(&mut self, trace: &[Work]) -> Vec<BestCase> {
        let mut core = self.core.clone();
        let mut best_cases = core.schedule(trace, self.fuses, 1);
        if core.waited_for_unit {
            let unlimited = self
                .unlimited
                .get_or_insert_with(|| Self::warmed_up(core.machine, &self.traces, true));
            note_contention(&mut best_cases, &unlimited.clone().schedule(trace, self.fuses, 1));
        }
        best_cases
    }
}

/// Notes how much faster instructions are with unlimited units.
fn note_contention(best_cases: &mut [BestCase], unlimited: &[BestCase]) {
    for (best_case, unlimited) in best_cases.iter_mut().zip(unlimited) {
        let unit_contention = best_case.cycles - unlimited.cycles;
        best_case.unit_contention =
            if unit_contention < CONTENTION_MIN { 0.0 } else { unit_contention };
    }
}

/// Least unit contention, in cycles, that is noted: less is rounding.
const CONTENTION_MIN: f64 = 0.01;

impl<'a> Core<'a> {
    /// A processor before its first instruction; `instructions` is a hint of how many it will
    /// schedule.
    fn new(
        machine: &'a Machine,
        context: TraceContext,
        unlimited_units: bool,
        instructions: usize,
    ) -> Self {
        // A busy processor is ahead of retirement by its reorder buffer: what a trace waits for was
        // new_core long before it could retire.
        let begin = if context == TraceContext::Busy {
            -(machine.reorder_buffer as f64) / machine.width
        } else {
            0.0
        };
        Self {
            machine,
            registers: [(begin, Wait::Nothing); 64],
            units: [begin; UNITS],
            unlimited_units,
            waited_for_unit: false,
            dispatched: begin,
            retired: 0.0,
            reorder_buffer: std::collections::VecDeque::with_capacity(
                instructions.min(machine.reorder_buffer),
            ),
        }
    }

    /// Schedules a trace `rounds` times, of which the first half only fills the reorder buffer and
    /// occupies units. `fuses`: whether the instruction before the trace fuses with a branch.
    fn schedule(&mut self, trace: &[Work], fuses: bool, rounds: usize) -> Vec<BestCase> {
        let warm = rounds / 2;
        let mut best_cases = vec![BestCase::default(); trace.len()];
        let mut waits = vec![[0.0_f64; 4]; trace.len()];
        for round in 0..rounds {
            let mut fuses = fuses;
            for ((work, best_case), waits) in trace.iter().zip(&mut best_cases).zip(&mut waits) {
                let begin = self.retired;
                let (issue_cycles, wait) = self.step(work, fuses && work.conditional);
                fuses = work.fuses;
                if round >= warm {
                    let took = self.retired - begin;
                    (best_case.cycles, best_case.issue_cycles) =
                        (best_case.cycles + took, issue_cycles);
                    waits.get_mut(wait as usize).into_iter().for_each(|sum| *sum += took);
                }
            }
        }
        let per_round = 1.0 / (rounds - warm).max(1) as f64;
        for (best_case, waits) in best_cases.iter_mut().zip(waits) {
            best_case.cycles *= per_round;
            let most =
                [Wait::Nothing, Wait::Operand, Wait::Load, Wait::Unit].into_iter().zip(waits);
            best_case.wait =
                most.max_by(|a, b| a.1.total_cmp(&b.1)).map_or(Wait::Nothing, |(wait, _)| wait);
        }
        best_cases
    }

    /// Schedules an instruction: its cycles of the issue width, and what its retirement waits for.
    /// `fused`: whether it is fused with the instruction before it.
    fn step(&mut self, work: &Work, fused: bool) -> (f64, Wait) {
        static SIMPLE: Cost = Cost {
            latency: 1.0,
            forwarded_latency: 1.0,
            operand_lead: 0.0,
            uops: 1.0,
            units: Vec::new(),
        };
        let machine = self.machine;
        let cost = machine.cost(work).unwrap_or(&SIMPLE);
        if work.calls {
            // The time of a callee is its own, and all operands are ready when it returns.
            self.registers = [(self.dispatched, Wait::Nothing); 64];
        }
        let uops = if fused { 0.0 } else { cost.uops.max(0.5) };
        while self.reorder_buffer.len() >= machine.reorder_buffer {
            self.dispatched =
                self.dispatched.max(self.reorder_buffer.pop_front().unwrap_or_default());
        }
        self.dispatched += uops / machine.width;
        let latest = |core: &Self, registers: Registers| {
            let ready =
                registers.iter().filter_map(|register| core.registers.get(register).copied());
            ready.fold(
                (f64::NEG_INFINITY, Wait::Nothing),
                |most, at| if at.0 > most.0 { at } else { most },
            )
        };
        let later = |a: (f64, Wait), b: (f64, Wait)| if b.0 > a.0 { b } else { a };
        let mut ready = (self.dispatched, Wait::Nothing);
        if work.loads.is_some() {
            let address = later(ready, latest(self, work.addresses));
            ready = (address.0 + machine.load_latency, Wait::Load);
            let others = Registers(work.reads.0 & !work.addresses.0);
            ready = later(ready, latest(self, others));
        } else {
            ready = later(ready, latest(self, work.reads));
        }
        if !work.renamed && !fused && !self.unlimited_units {
            let free = self.occupy(cost);
            let loaded = if work.loads.is_some() { machine.load_latency } else { 0.0 };
            self.waited_for_unit |= free + loaded > ready.0;
            ready = later(ready, (free + loaded, Wait::Unit));
        }
        let latency = if work.renamed || fused || work.calls { 0.0 } else { cost.latency };
        let kind = match ready.1 {
            // The instruction's own latency is longer than its wait for anything.
            _ if latency > 1.0 && ready.0 - latency < self.retired => Wait::Operand,
            kind => kind,
        };
        let done = (ready.0 + latency, kind);
        let moved = work
            .adds
            .filter(|_| work.loads.or(work.stores).is_some())
            .map_or(0, |(base, _)| base.0);
        for register in work.writes.iter() {
            if moved >> register & 1 == 1 {
                // The updated base of a pre- or post-indexed access has the latency of an addition.
                let base = latest(self, Registers(1 << register)).0.max(self.dispatched);
                self.registers
                    .get_mut(register)
                    .into_iter()
                    .for_each(|at| *at = (base + 1.0, Wait::Operand));
                continue;
            }
            let because =
                if work.loads.is_some() && latency == 0.0 { Wait::Load } else { Wait::Operand };
            if let Some(at) = self.registers.get_mut(register) {
                *at = (done.0, if kind == Wait::Unit { Wait::Unit } else { because });
            }
        }
        // After a wait, more instructions retire in a cycle than can be dispatched in the long run.
        // Only the mean matters, so retirement has the width of dispatch.
        let in_order = self.retired + uops / machine.width;
        self.retired = in_order.max(done.0);
        self.reorder_buffer.push_back(self.retired);
        // A wait of half a cycle is not worth a report.
        (uops / machine.width, if done.0 > in_order + 0.5 { done.1 } else { Wait::Nothing })
    }

    /// Occupies units in the order of dispatch: the cycle from which all units that the instruction
    /// needs are free. (Instructions that wait for operands let others go first in truth; units are
    /// as busy in the mean.)
    fn occupy(&mut self, cost: &Cost) -> f64 {
        let mut begin = self.dispatched;
        for (bits, cycles) in &cost.units {
            let mut first: Option<(usize, f64)> = None;
            for unit in Registers(*bits).iter() {
                let free = self.units.get(unit).copied().unwrap_or_default();
                if first.is_none_or(|(_, least)| free < least) {
                    first = Some((unit, free));
                }
            }
            let Some((first, free)) = first else { continue };
            begin = begin.max(free);
            // Work for several units of a kind is spread over them.
            let several = *cycles > 1.0 && bits.count_ones() > 1;
            let (busy, cycles) = if several {
                (*bits, cycles / f64::from(bits.count_ones()))
            } else {
                (1 << first, *cycles)
            };
            for unit in Registers(busy).iter() {
                let dispatched = self.dispatched;
                self.units
                    .get_mut(unit)
                    .into_iter()
                    .for_each(|free| *free = free.max(dispatched) + cycles);
            }
        }
        begin
    }
}

#[cfg(test)]
mod tests {
    use code::isa::Isa;

    use super::*;

    fn trace(code: &[u8]) -> Vec<Work> {
        let mut works = Vec::new();
        let mut rest = code;
        while !rest.is_empty() {
            let work = Isa::X86_64.work(rest).unwrap();
            rest = &rest[usize::from(work.len)..];
            works.push(work);
        }
        works
    }

    fn round(code: &[u8]) -> f64 {
        let best_cases =
            schedule(&Machine::named("znver3").unwrap(), &trace(code), TraceContext::Loop);
        best_cases.iter().map(|best_case| best_case.cycles).sum()
    }

    #[test]
    fn loops_take_what_their_chains_take() {
        // dec ecx; jne
        assert!((round(&[0xff, 0xc9, 0x75, 0xfc]) - 1.0).abs() < 0.1);
        // imul rax, rbx; dec ecx; jne
        assert!((round(&[0x48, 0x0f, 0xaf, 0xc3, 0xff, 0xc9, 0x75, 0xf8]) - 3.0).abs() < 0.1);
        // mov rax, [rax]; dec ecx; jne: a chain of loads
        let chase = [0x48, 0x8b, 0x00, 0xff, 0xc9, 0x75, 0xf9];
        assert!((4.0..5.5).contains(&round(&chase)), "{}", round(&chase));
        let best_cases =
            schedule(&Machine::named("znver3").unwrap(), &trace(&chase), TraceContext::Loop);
        assert_eq!(best_cases[0].wait, Wait::Load);
        // div rcx (with rax and rdx): a chain of divisions
        assert!(round(&[0x48, 0xf7, 0xf1, 0xff, 0xc9, 0x75, 0xf9]) >= 6.9);
    }

    #[test]
    fn what_depends_on_nothing_takes_its_share_of_the_width() {
        // 12 times add of an own register to itself: r8 to r15, rax, rdx, rsi, rdi
        let mut code = Vec::new();
        for register in 0..8_u8 {
            code.extend([0x4d, 0x01, 0xc0 | register << 3 | register]);
        }
        code.extend([0x48, 0x01, 0xc0, 0x48, 0x01, 0xd2, 0x48, 0x01, 0xf6, 0x48, 0x01, 0xff]);
        // Four units.
        assert!((round(&code) - 3.0).abs() < 0.3, "{}", round(&code));
        // Eight loads from the stack, three a cycle.
        let loads: Vec<u8> = (0..8)
            .flat_map(|register| [0x4c, 0x8b, 0x44 | register << 3, 0x24, register * 8])
            .collect();
        assert!((2.0..3.5).contains(&round(&loads)), "{}", round(&loads));
        // mov rax, [rsi]; mov [rdi], rax; add rsi, 8; add rdi, 8; cmp rsi, rdx; jne: a copy, where
        // stores wait for loads and nothing for stores
        let copy = [
            0x48, 0x8b, 0x06, 0x48, 0x89, 0x07, 0x48, 0x83, 0xc6, 8, 0x48, 0x83, 0xc7, 8, 0x48,
            0x39, 0xd6, 0x75, 0xed,
        ];
        assert!((1.0..2.5).contains(&round(&copy)), "{}", round(&copy));
    }

    #[test]
    fn what_comes_before_is_followed_once_for_all_that_comes_after() {
        // add rax, [rsi + 8]; imul rbx, rax; cmp rbx, rax
        let before = trace(&[0x48, 0x03, 0x46, 8, 0x48, 0x0f, 0xaf, 0xd8, 0x48, 0x39, 0xc3]);
        // jne; imul eax, ecx, 3 again and again, for which there is one unit; div rcx
        let mut own = trace(&[0x75, 0]);
        own.extend(trace(&[0x6b, 0xc1, 3].repeat(200)));
        own.extend(trace(&[0x48, 0xf7, 0xf1]));
        for machine in Machine::names(Isa::X86_64) {
            let machine = Machine::named(machine).unwrap();
            let (first, rest) = before.split_at(1);
            let mut after = WarmCore::new(&machine, vec![first, rest]);
            for own in [&own[..], &own[1..], &own[..1]] {
                let whole: Vec<Work> = before.iter().chain(own).copied().collect();
                let whole = schedule(&machine, &whole, TraceContext::Busy);
                assert_eq!(after.schedule(own), whole[before.len()..], "{}", machine.name);
            }
            let pressed =
                after.schedule(&own).iter().any(|best_case| best_case.unit_contention > 0.0);
            assert!(pressed, "{}", machine.name);
        }
    }
}

//! The best case on a processor that issues instructions in program order (the paper's M, section
//! 6.1.3): the cycles that each instruction is at the head of the issue queue if every load hits
//! the first level of the cache, every branch is predicted and all code is present.
//!
//! In each cycle, up to `width` micro-operations are issued whose operands and units are ready. The
//! first that has to wait holds all behind it. An instruction that is issued together with the one
//! before it spends no cycle at the head.
//!
//! Latencies are those of LLVM's models, with two exceptions: the operand that a conditional branch
//! tests and the value that a store stores are needed a cycle later than the operands of an
//! addition, as in GCC's description of Cortex-A53 (`gcc/config/arm/cortex-a53.md`: results of
//! additions reach stores and branches that are issued in the same cycle). LLVM's models have these
//! wait for the whole latency.

use code::isa::work::{Registers, Work};

use crate::machine::{Cost, Machine};
use crate::schedule::{BestCase, TraceContext, Wait};

/// Instructions over all scheduled rounds of a loop, by which the state before the first round has
/// no influence any more. Set by hand; more only cost time.
const SCHEDULED_INSTRUCTIONS: usize = 512;
/// Most rounds of a loop that are scheduled. Set by hand: short loops are steady long before.
const ROUNDS_MAX: usize = 16;

/// A result in flight.
#[derive(Clone, Copy, Default)]
struct Result {
    /// When any instruction can use the result.
    ready: f64,
    /// When an addition can, by forwarding.
    forwarded: f64,
    /// When a store can as its value, or a branch as its condition.
    late: f64,
    /// The number of the instruction that produces the result, in the order of issue; `None` for
    /// one that is not part of the schedule.
    producer: Option<usize>,
    /// Whether the result comes from memory.
    is_load: bool,
}

/// The cycle until which an instruction is held back, and why.
#[derive(Clone, Copy)]
struct Delay {
    until: f64,
    wait: Wait,
    producer: Option<usize>,
}

/// The state of the processor.
pub(crate) struct Pipeline<'a> {
    machine: &'a Machine,
    results: [Result; 64],
    /// For each unit, the cycle in which it is free, and the instruction that occupies it until
    /// then.
    units: [(f64, Option<usize>); 64],
    /// The cycle in which the last instruction was issued.
    cycle: f64,
    /// Micro-operations issued in that cycle.
    used: f64,
    /// Instructions issued.
    issued: usize,
}

/// The best case of each instruction of `trace`.
pub(crate) fn schedule(machine: &Machine, trace: &[Work], context: TraceContext) -> Vec<BestCase> {
    let again = context == TraceContext::Loop;
    let rounds =
        if again { (SCHEDULED_INSTRUCTIONS / trace.len().max(1)).clamp(4, ROUNDS_MAX) } else { 1 };
    let warm = if again { rounds / 2 } else { 0 };
    let mut pipeline = Pipeline::new(machine);
    let mut best_cases = vec![BestCase::default(); trace.len()];
    for round in 0..rounds {
        for (best_case, work) in best_cases.iter_mut().zip(trace) {
            let issued = pipeline.issue(work);
            if round >= warm {
                *best_case = BestCase {
                    cycles: best_case.cycles + issued.cycles / (rounds - warm) as f64,
                    ..issued
                };
            }
        }
    }
    best_cases
}

impl<'a> Pipeline<'a> {
    /// A processor with nothing in flight.
    pub(crate) fn new(machine: &'a Machine) -> Self {
        Self {
            machine,
            results: [Result::default(); 64],
            units: [(0.0, None); 64],
            cycle: 0.0,
            used: machine.width,
            issued: 0,
        }
    }

    /// Issues the next instruction.
    pub(crate) fn issue(&mut self, work: &Work) -> BestCase {
        let simple = Cost {
            latency: 1.0,
            forwarded_latency: 1.0,
            operand_lead: 0.0,
            uops: 1.0,
            units: Vec::new(),
        };
        let cost = self.machine.cost(work).unwrap_or(&simple);
        let number = self.issued;
        self.issued += 1;
        let full = self.used + cost.uops > self.machine.width;
        let mut delay = Delay {
            until: self.cycle + f64::from(u8::from(full)),
            wait: Wait::Nothing,
            producer: None,
        };
        self.wait_for_operands(work, cost, &mut delay);
        self.wait_for_units(cost, number, &mut delay);
        let begun = self.cycle;
        if delay.until > begun {
            (self.cycle, self.used) = (delay.until, 0.0);
        }
        self.used += cost.uops;
        // An instruction of more micro-operations than the width is at the head for several cycles.
        while self.used > self.machine.width {
            (self.cycle, self.used) = (self.cycle + 1.0, self.used - self.machine.width);
        }
        let cycles = self.cycle - begun;
        self.write(work, cost, number, delay.until);
        if work.calls {
            // The time of a callee is its own, and all operands are ready when it returns.
            self.results = [Result::default(); 64];
            self.units = [(0.0, None); 64];
        }
        let producer_distance = delay
            .producer
            .and_then(|producer| number.checked_sub(producer))
            .filter(|_| delay.wait != Wait::Nothing);
        BestCase {
            issue_cycles: self.machine.issue_cycles(work),
            cycles,
            wait: delay.wait,
            producer_distance,
            unit_contention: 0.0,
        }
    }

    fn wait_for_operands(&self, work: &Work, cost: &Cost, delay: &mut Delay) {
        for register in work.reads.iter() {
            let Some(result) = self.results.get(register) else { continue };
            let register = Registers(1 << register);
            let until = match () {
                () if work.addresses.meets(register) => result.ready,
                () if work.conditional || work.stores.is_some() => result.late,
                () => (result.forwarded + cost.operand_lead).min(result.ready),
            };
            let wait = if result.is_load { Wait::Load } else { Wait::Operand };
            delay.later(until, wait, result.producer);
        }
    }

    fn wait_for_units(&mut self, cost: &Cost, number: usize, delay: &mut Delay) {
        for (bits, cycles) in &cost.units {
            let at = |unit: usize| self.units.get(unit).copied().unwrap_or_default();
            let fits = Registers(*bits);
            let Some(first) = fits.iter().min_by(|a, b| at(*a).0.total_cmp(&at(*b).0)) else {
                continue;
            };
            delay.later(at(first).0, Wait::Unit, at(first).1);
            // Work for several units of a kind is spread over them.
            let count = if *cycles > 1.0 { f64::from(bits.count_ones().max(1)) } else { 1.0 };
            for unit in fits.iter().filter(|unit| count > 1.0 || *unit == first) {
                let until = delay.until + (cycles / count).ceil();
                self.units.get_mut(unit).into_iter().for_each(|busy| *busy = (until, Some(number)));
            }
        }
    }

    fn write(&mut self, work: &Work, cost: &Cost, number: usize, at: f64) {
        let loaded = work.loads.is_some();
        let more = if loaded { self.machine.load_latency } else { 0.0 };
        let moved =
            work.adds.filter(|_| loaded || work.stores.is_some()).map_or(0, |(base, _)| base.0);
        for register in work.writes.iter() {
            // The updated base of a pre- or post-indexed access has the latency of an addition.
            let (latency, forwarded) = if moved >> register & 1 == 1 {
                (1.0, 1.0)
            } else {
                (cost.latency + more, cost.forwarded_latency + more)
            };
            let result = Result {
                ready: at + latency,
                forwarded: at + forwarded,
                late: at + (forwarded - 1.0).max(0.0),
                producer: Some(number),
                is_load: loaded && moved >> register & 1 == 0,
            };
            self.results.get_mut(register).into_iter().for_each(|place| *place = result);
        }
    }
}

impl Delay {
    fn later(&mut self, until: f64, wait: Wait, producer: Option<usize>) {
        if until > self.until {
            *self = Self { until, wait, producer };
        }
    }
}

#[cfg(test)]
mod tests {
    use code::isa::Isa;

    use super::*;

    fn cycles(machine: &str, words: &[u32], context: TraceContext) -> Vec<f64> {
        let trace: Vec<Work> =
            words.iter().map(|word| Isa::Aarch64.work(&word.to_le_bytes()).unwrap()).collect();
        let best_cases = schedule(&Machine::named(machine).unwrap(), &trace, context);
        best_cases.iter().map(|best_case| best_case.cycles).collect()
    }

    #[test]
    fn two_independent_instructions_are_issued_per_cycle() {
        // add x0, x1, x2; add x3, x4, x5; add x6, x0, x3; add x7, x6, x0
        let adds = [0x8b02_0020, 0x8b05_0083, 0x8b03_0006, 0x8b00_00c7];
        assert_eq!(cycles("cortex-a53", &adds, TraceContext::Busy), [1.0, 0.0, 1.0, 1.0]);
        // mul x0, x1, x2; mul x3, x4, x5: one multiplier. sdiv x0, x0, x1: it needs the product
        // sooner than it is there.
        let muls = [0x9b02_7c20, 0x9b05_7c83, 0x9ac1_0c00];
        assert_eq!(cycles("cortex-a53", &muls, TraceContext::Busy), [1.0, 1.0, 2.0]);
    }

    #[test]
    fn what_is_wider_than_the_processor_takes_its_cycles() {
        // ldp x29, x30, [sp], #16; add x0, x1, x2 again and again: three micro-operations, and one.
        let words = [0xa8c1_7bfd_u32, 0x8b02_0020];
        let machine = Machine::named("cortex-a53").unwrap();
        let trace: Vec<Work> =
            words.iter().map(|word| Isa::Aarch64.work(&word.to_le_bytes()).unwrap()).collect();
        assert!(machine.cost(&trace[0]).unwrap().uops > machine.width);
        let rounds = cycles("cortex-a53", &words, TraceContext::Loop);
        assert!((rounds.iter().sum::<f64>() - 2.0).abs() < 0.1, "{rounds:?}");
        let once = cycles("cortex-a53", &words, TraceContext::Busy);
        assert!(once.iter().sum::<f64>() >= 2.0, "{once:?}");
    }

    #[test]
    fn waits_have_a_reason_and_a_producer() {
        // ldr x0, [x1]; add x2, x0, #1; str x2, [x3]; cmp x2, x4; b.ne: the addition waits for the
        // load, nothing for the comparison
        let words = [0xf940_0020_u32, 0x9100_0402, 0xf900_0062, 0xeb04_005f, 0x54ff_ff81];
        let trace: Vec<Work> =
            words.iter().map(|word| Isa::Aarch64.work(&word.to_le_bytes()).unwrap()).collect();
        let best_cases =
            schedule(&Machine::named("cortex-a55").unwrap(), &trace, TraceContext::Busy);
        assert_eq!(
            best_cases.iter().map(|best_case| best_case.cycles).collect::<Vec<_>>(),
            [1.0, 3.0, 0.0, 1.0, 0.0]
        );
        assert_eq!((best_cases[1].wait, best_cases[1].producer_distance), (Wait::Load, Some(1)));
        assert_eq!(
            (best_cases[3].wait, best_cases[3].producer_distance),
            (Wait::Nothing, None),
            "it only comes after two"
        );
        // ldr x0, [x1], #8; b .-4 again and again: the base is there in the next cycle.
        let moved = cycles("cortex-a55", &[0xf840_8420, 0x17ff_ffff], TraceContext::Loop);
        assert!((moved.iter().sum::<f64>() - 2.0).abs() < 0.6, "{moved:?}");
        // ldr x0, [x0]; b .-4: a chain of loads
        let chase = cycles("cortex-a53", &[0xf940_0000, 0x17ff_ffff], TraceContext::Loop);
        assert!((chase.iter().sum::<f64>() - 4.0).abs() < 0.1, "{chase:?}");
    }
}

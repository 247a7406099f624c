//! The best case on a processor that issues instructions in the order of the program (the paper's
//! M, section 6.1.3): how many cycles each instruction is at the head of the issue queue if every
//! load hits the first level of the cache, every branch is predicted and all code is there.
//!
//! So many micro-operations as the processor is wide are issued in a cycle, as long as operands and
//! units are there; the first that has to wait keeps all behind it waiting. An instruction that is
//! issued with the one before takes no time at the head.
//!
//! When results can be had is from LLVM's models, but for two: what a conditional branch tests and
//! what a store stores is needed a cycle later than an addition needs its operands, as GCC's
//! description of Cortex-A53 has it (`gcc/config/arm/cortex-a53.md`: results of additions reach
//! stores, and branches, that are issued in the same cycle; LLVM's models have them wait for the
//! whole latency).

use code::isa::work::{Registers, Work};

use crate::machine::{Cost, Machine};
use crate::schedule::{Course, Slot, Wait};

/// Instructions that are followed in all, until what comes first matters no more, and rounds of a
/// loop.
const FOLLOWED: usize = 512;
const ROUNDS_MAX: usize = 16;

/// A result that is under way.
#[derive(Clone, Copy, Default)]
struct Result {
    /// When it is there for anybody, for additions, and for stores and branches.
    ready: f64,
    forwarded: f64,
    late: f64,
    /// Who makes it: the number of the instruction among all that were issued; none: nobody here.
    by: Option<usize>,
    loaded: bool,
}

/// What holds an instruction back, until when.
#[derive(Clone, Copy)]
struct Held {
    until: f64,
    wait: Wait,
    by: Option<usize>,
}

/// The processor, as far as it has come.
pub(crate) struct Pipeline<'a> {
    machine: &'a Machine,
    results: [Result; 64],
    /// When each unit is free, and who keeps it busy.
    units: [(f64, Option<usize>); 64],
    /// The cycle in which the last was issued, and the micro-operations that are issued in it.
    cycle: f64,
    used: f64,
    issued: usize,
}

/// The best case of the instructions of `trace`, one after the other.
pub(crate) fn schedule(machine: &Machine, trace: &[Work], course: Course) -> Vec<Slot> {
    let again = course == Course::Again;
    let rounds = if again { (FOLLOWED / trace.len().max(1)).clamp(4, ROUNDS_MAX) } else { 1 };
    let warm = if again { rounds / 2 } else { 0 };
    let mut pipeline = Pipeline::new(machine);
    let mut slots = vec![Slot::default(); trace.len()];
    for round in 0..rounds {
        for (slot, work) in slots.iter_mut().zip(trace) {
            let one = pipeline.issue(work);
            if round >= warm {
                *slot = Slot { cycles: slot.cycles + one.cycles / (rounds - warm) as f64, ..one };
            }
        }
    }
    slots
}

impl<'a> Pipeline<'a> {
    /// One in which nothing is under way.
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

    /// Issues an instruction.
    pub(crate) fn issue(&mut self, work: &Work) -> Slot {
        let simple =
            Cost { latency: 1.0, forwarded: 1.0, early: 0.0, uops: 1.0, units: Vec::new() };
        let cost = self.machine.cost(work).unwrap_or(&simple);
        let number = self.issued;
        self.issued += 1;
        let full = self.used + cost.uops > self.machine.width;
        let mut held =
            Held { until: self.cycle + f64::from(u8::from(full)), wait: Wait::Nothing, by: None };
        self.wait_for_operands(work, cost, &mut held);
        self.wait_for_units(cost, number, &mut held);
        let begun = self.cycle;
        if held.until > begun {
            (self.cycle, self.used) = (held.until, 0.0);
        }
        self.used += cost.uops;
        // One of more micro-operations than are issued in a cycle is at the head for several.
        while self.used > self.machine.width {
            (self.cycle, self.used) = (self.cycle + 1.0, self.used - self.machine.width);
        }
        let cycles = self.cycle - begun;
        self.write(work, cost, number, held.until);
        if work.calls {
            // What is called takes its own time, and keeps nothing waiting that comes after it.
            self.results = [Result::default(); 64];
            self.units = [(0.0, None); 64];
        }
        let after =
            held.by.and_then(|by| number.checked_sub(by)).filter(|_| held.wait != Wait::Nothing);
        Slot { share: self.machine.share(work), cycles, wait: held.wait, after, pressure: 0.0 }
    }

    fn wait_for_operands(&self, work: &Work, cost: &Cost, held: &mut Held) {
        for register in work.reads.iter() {
            let Some(result) = self.results.get(register) else { continue };
            let one = Registers(1 << register);
            let until = match () {
                () if work.addresses.meets(one) => result.ready,
                () if work.conditional || work.stores.is_some() => result.late,
                () => (result.forwarded + cost.early).min(result.ready),
            };
            let wait = if result.loaded { Wait::Load } else { Wait::Operand };
            held.later(until, wait, result.by);
        }
    }

    fn wait_for_units(&mut self, cost: &Cost, number: usize, held: &mut Held) {
        for (bits, cycles) in &cost.units {
            let at = |unit: usize| self.units.get(unit).copied().unwrap_or_default();
            let fits = Registers(*bits);
            let Some(first) = fits.iter().min_by(|a, b| at(*a).0.total_cmp(&at(*b).0)) else {
                continue;
            };
            held.later(at(first).0, Wait::Unit, at(first).1);
            // Work for several units of a kind is spread over them.
            let count = if *cycles > 1.0 { f64::from(bits.count_ones().max(1)) } else { 1.0 };
            for unit in fits.iter().filter(|unit| count > 1.0 || *unit == first) {
                let until = held.until + (cycles / count).ceil();
                self.units.get_mut(unit).into_iter().for_each(|busy| *busy = (until, Some(number)));
            }
        }
    }

    fn write(&mut self, work: &Work, cost: &Cost, number: usize, at: f64) {
        let loaded = work.loads.is_some();
        let more = if loaded { self.machine.load } else { 0.0 };
        let moved =
            work.adds.filter(|_| loaded || work.stores.is_some()).map_or(0, |(base, _)| base.0);
        for register in work.writes.iter() {
            // The base of an access that moves it on is there as a sum would be.
            let (latency, forwarded) = if moved >> register & 1 == 1 {
                (1.0, 1.0)
            } else {
                (cost.latency + more, cost.forwarded + more)
            };
            let result = Result {
                ready: at + latency,
                forwarded: at + forwarded,
                late: at + (forwarded - 1.0).max(0.0),
                by: Some(number),
                loaded: loaded && moved >> register & 1 == 0,
            };
            self.results.get_mut(register).into_iter().for_each(|place| *place = result);
        }
    }
}

impl Held {
    fn later(&mut self, until: f64, wait: Wait, by: Option<usize>) {
        if until > self.until {
            *self = Self { until, wait, by };
        }
    }
}

#[cfg(test)]
mod tests {
    use code::isa::Isa;

    use super::*;

    fn cycles(machine: &str, words: &[u32], course: Course) -> Vec<f64> {
        let trace: Vec<Work> =
            words.iter().map(|word| Isa::Aarch64.work(&word.to_le_bytes()).unwrap()).collect();
        let slots = schedule(&Machine::named(machine).unwrap(), &trace, course);
        slots.iter().map(|slot| slot.cycles).collect()
    }

    #[test]
    fn two_are_issued_in_a_cycle_where_nothing_is_in_the_way() {
        // add x0, x1, x2; add x3, x4, x5; add x6, x0, x3; add x7, x6, x0
        let adds = [0x8b02_0020, 0x8b05_0083, 0x8b03_0006, 0x8b00_00c7];
        assert_eq!(cycles("cortex-a53", &adds, Course::Once), [1.0, 0.0, 1.0, 1.0]);
        // mul x0, x1, x2; mul x3, x4, x5: one multiplier. sdiv x0, x0, x1: it needs the product
        // sooner than it is there.
        let muls = [0x9b02_7c20, 0x9b05_7c83, 0x9ac1_0c00];
        assert_eq!(cycles("cortex-a53", &muls, Course::Once), [1.0, 1.0, 2.0]);
    }

    #[test]
    fn what_is_wider_than_the_processor_takes_its_cycles() {
        // ldp x29, x30, [sp], #16; add x0, x1, x2 again and again: three micro-operations, and one.
        let words = [0xa8c1_7bfd_u32, 0x8b02_0020];
        let machine = Machine::named("cortex-a53").unwrap();
        let trace: Vec<Work> =
            words.iter().map(|word| Isa::Aarch64.work(&word.to_le_bytes()).unwrap()).collect();
        assert!(machine.cost(&trace[0]).unwrap().uops > machine.width);
        let rounds = cycles("cortex-a53", &words, Course::Again);
        assert!((rounds.iter().sum::<f64>() - 2.0).abs() < 0.1, "{rounds:?}");
        let once = cycles("cortex-a53", &words, Course::Once);
        assert!(once.iter().sum::<f64>() >= 2.0, "{once:?}");
    }

    #[test]
    fn who_waits_and_for_whom() {
        // ldr x0, [x1]; add x2, x0, #1; str x2, [x3]; cmp x2, x4; b.ne: the addition waits for the
        // load, nothing for the comparison
        let words = [0xf940_0020_u32, 0x9100_0402, 0xf900_0062, 0xeb04_005f, 0x54ff_ff81];
        let trace: Vec<Work> =
            words.iter().map(|word| Isa::Aarch64.work(&word.to_le_bytes()).unwrap()).collect();
        let slots = schedule(&Machine::named("cortex-a55").unwrap(), &trace, Course::Once);
        assert_eq!(
            slots.iter().map(|slot| slot.cycles).collect::<Vec<_>>(),
            [1.0, 3.0, 0.0, 1.0, 0.0]
        );
        assert_eq!((slots[1].wait, slots[1].after), (Wait::Load, Some(1)));
        assert_eq!(
            (slots[3].wait, slots[3].after),
            (Wait::Nothing, None),
            "it only comes after two"
        );
        // ldr x0, [x1], #8; b .-4 again and again: the base is there in the next cycle.
        let moved = cycles("cortex-a55", &[0xf840_8420, 0x17ff_ffff], Course::Again);
        assert!((moved.iter().sum::<f64>() - 2.0).abs() < 0.6, "{moved:?}");
        // ldr x0, [x0]; b .-4: a chain of loads
        let chase = cycles("cortex-a53", &[0xf940_0000, 0x17ff_ffff], Course::Again);
        assert!((chase.iter().sum::<f64>() - 4.0).abs() < 0.1, "{chase:?}");
    }
}

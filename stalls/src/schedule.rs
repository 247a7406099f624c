//! The best case: when the instructions of a trace retire on an out-of-order processor, if every
//! load hits the first level of the cache, every branch is predicted and all code is there. (On one
//! that issues in order: `in_order.rs`.)
//!
//! Instructions are taken up in order, `width` micro-operations a cycle, as long as the reorder
//! buffer has room; each begins when its operands are ready and a unit is free; they retire in
//! order. The cycles that an instruction is the oldest one not retired, which is where samples of
//! time find it, are those between the retirement of the one before and its own. (The paper's M,
//! section 6.1.3, was the same for a processor that issues in order.)

use code::isa::work::{Registers, Work};

use crate::in_order;
use crate::machine::{Cost, Machine};

/// What the best case of an instruction waits for.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// Nothing: it takes its share of what the processor does in a cycle.
    #[default]
    Nothing,
    /// The result of another instruction, or its own.
    Operand,
    /// Another instruction's load from memory, or its own.
    Load,
    /// A unit that others keep busy.
    Unit,
}

/// An instruction's part of the best case.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Slot {
    /// Cycles that it takes if nothing waits for anything: its share of what the processor takes up
    /// in a cycle.
    pub share: f64,
    /// Cycles that it is the oldest one not retired, in the mean.
    pub cycles: f64,
    /// What it waits for meanwhile.
    pub wait: Wait,
    /// How many instructions before it the one is that keeps it waiting, where that is told: on
    /// processors that issue in order.
    pub after: Option<usize>,
    /// Cycles that it would be faster by with units enough.
    pub pressure: f64,
}

/// Units of any processor here.
const UNITS: usize = 64;
/// Instructions that are followed in all, until what comes first matters no more.
const FOLLOWED: usize = 2048;
/// Rounds of a loop at most.
const ROUNDS_MAX: usize = 64;

/// When what is under way will be done, in cycles.
#[derive(Clone)]
struct Core<'a> {
    machine: &'a Machine,
    registers: [(f64, Wait); 64],
    units: [f64; UNITS],
    /// Whether there are units enough, and if not, whether anything has waited for one.
    enough: bool,
    waited: bool,
    /// When the next is taken up, and when the last retired.
    taken: f64,
    retired: f64,
    /// Retirements of those that may still be in the buffer, oldest first.
    buffer: std::collections::VecDeque<f64>,
}

/// What comes before a trace, and after it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Course {
    /// The processor is busy with other things when the trace comes; it is followed once.
    Once,
    /// After its end comes its begin.
    Again,
    /// The processor has nothing else to do: it had gone a wrong way, or code was missing.
    Cold,
}

/// The best case of the instructions of `trace`, one after the other.
#[must_use]
pub fn schedule(machine: &Machine, trace: &[Work], course: Course) -> Vec<Slot> {
    if machine.in_order() {
        return in_order::schedule(machine, trace, course);
    }
    let rounds = match course {
        Course::Again => (FOLLOWED / trace.len().max(1)).clamp(4, ROUNDS_MAX),
        _ => 1,
    };
    let begun = |enough| Core::new(machine, course, enough, rounds * trace.len());
    let mut core = begun(false);
    let mut slots = core.follow(trace, false, rounds);
    if core.waited && course != Course::Cold {
        press(&mut slots, &begun(true).follow(trace, false, rounds));
    }
    slots
}

/// What is executed before several traces, on a processor that was busy before that: it is followed
/// once.
pub(crate) struct Before<'a> {
    core: Core<'a>,
    /// The same with units enough, once it was asked for.
    free: Option<Core<'a>>,
    pieces: Vec<&'a [Work]>,
    fuses: bool,
}

impl<'a> Before<'a> {
    /// After these instructions, the last of which come just before. The processor executes out of
    /// order.
    pub(crate) fn new(machine: &'a Machine, pieces: Vec<&'a [Work]>) -> Self {
        let core = Self::followed(machine, &pieces, false);
        let fuses =
            pieces.iter().rev().find_map(|piece| piece.last()).is_some_and(|last| last.fuses);
        Self { core, free: None, pieces, fuses }
    }

    fn followed(machine: &'a Machine, pieces: &[&[Work]], enough: bool) -> Core<'a> {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        let mut core = Core::new(machine, Course::Once, enough, len);
        let mut fuses = false;
        for work in pieces.iter().copied().flatten() {
            core.step(work, fuses && work.conditional);
            fuses = work.fuses;
        }
        core
    }

    /// The best case of the instructions of `trace`.
    pub(crate) fn schedule(&mut self, trace: &[Work]) -> Vec<Slot> {
        let mut core = self.core.clone();
        let mut slots = core.follow(trace, self.fuses, 1);
        if core.waited {
            let free =
                self.free.get_or_insert_with(|| Self::followed(core.machine, &self.pieces, true));
            press(&mut slots, &free.clone().follow(trace, self.fuses, 1));
        }
        slots
    }
}

/// Notes by how much slots are faster with units enough.
fn press(slots: &mut [Slot], free: &[Slot]) {
    for (slot, free) in slots.iter_mut().zip(free) {
        let pressure = slot.cycles - free.cycles;
        slot.pressure = if pressure < PRESSED { 0.0 } else { pressure };
    }
}

/// Less is rounding.
const PRESSED: f64 = 0.01;

impl<'a> Core<'a> {
    /// A processor on which nothing was followed yet, whose units may be `enough` for everything;
    /// about so many instructions will be.
    fn new(machine: &'a Machine, course: Course, enough: bool, instructions: usize) -> Self {
        // A busy processor is as far ahead as its buffer is long: what a trace waits for was begun
        // long before it could retire.
        let begin =
            if course == Course::Once { -(machine.buffer as f64) / machine.width } else { 0.0 };
        Self {
            machine,
            registers: [(begin, Wait::Nothing); 64],
            units: [begin; UNITS],
            enough,
            waited: false,
            taken: begin,
            retired: 0.0,
            buffer: std::collections::VecDeque::with_capacity(instructions.min(machine.buffer)),
        }
    }

    /// Follows a trace so many times, of which the first half fills the buffer and the units.
    /// `fuses`: what is before it does, with a branch.
    fn follow(&mut self, trace: &[Work], fuses: bool, rounds: usize) -> Vec<Slot> {
        let warm = rounds / 2;
        let mut slots = vec![Slot::default(); trace.len()];
        let mut waits = vec![[0.0_f64; 4]; trace.len()];
        for round in 0..rounds {
            let mut fuses = fuses;
            for ((work, slot), waits) in trace.iter().zip(&mut slots).zip(&mut waits) {
                let begin = self.retired;
                let (share, wait) = self.step(work, fuses && work.conditional);
                fuses = work.fuses;
                if round >= warm {
                    let took = self.retired - begin;
                    (slot.cycles, slot.share) = (slot.cycles + took, share);
                    waits.get_mut(wait as usize).into_iter().for_each(|sum| *sum += took);
                }
            }
        }
        let share = 1.0 / (rounds - warm).max(1) as f64;
        for (slot, waits) in slots.iter_mut().zip(waits) {
            slot.cycles *= share;
            let most =
                [Wait::Nothing, Wait::Operand, Wait::Load, Wait::Unit].into_iter().zip(waits);
            slot.wait =
                most.max_by(|a, b| a.1.total_cmp(&b.1)).map_or(Wait::Nothing, |(wait, _)| wait);
        }
        slots
    }

    /// One instruction; its share of a cycle and what its retirement waited for. `fused`: with the
    /// one before.
    fn step(&mut self, work: &Work, fused: bool) -> (f64, Wait) {
        static SIMPLE: Cost =
            Cost { latency: 1.0, forwarded: 1.0, early: 0.0, uops: 1.0, units: Vec::new() };
        let machine = self.machine;
        let cost = machine.cost(work).unwrap_or(&SIMPLE);
        if work.calls {
            // What is called takes its own time, and keeps nothing waiting that is taken up after
            // it.
            self.registers = [(self.taken, Wait::Nothing); 64];
        }
        let uops = if fused { 0.0 } else { cost.uops.max(0.5) };
        while self.buffer.len() >= machine.buffer {
            self.taken = self.taken.max(self.buffer.pop_front().unwrap_or_default());
        }
        self.taken += uops / machine.width;
        let latest = |core: &Self, registers: Registers| {
            let ready =
                registers.iter().filter_map(|register| core.registers.get(register).copied());
            ready.fold(
                (f64::NEG_INFINITY, Wait::Nothing),
                |most, at| if at.0 > most.0 { at } else { most },
            )
        };
        let later = |a: (f64, Wait), b: (f64, Wait)| if b.0 > a.0 { b } else { a };
        let mut ready = (self.taken, Wait::Nothing);
        if work.loads.is_some() {
            let address = later(ready, latest(self, work.addresses));
            ready = (address.0 + machine.load, Wait::Load);
            let others = Registers(work.reads.0 & !work.addresses.0);
            ready = later(ready, latest(self, others));
        } else {
            ready = later(ready, latest(self, work.reads));
        }
        if !work.renamed && !fused && !self.enough {
            let free = self.occupy(cost);
            let loaded = if work.loads.is_some() { machine.load } else { 0.0 };
            self.waited |= free + loaded > ready.0;
            ready = later(ready, (free + loaded, Wait::Unit));
        }
        let latency = if work.renamed || fused || work.calls { 0.0 } else { cost.latency };
        let kind = match ready.1 {
            // Its own latency is longer than it had to wait for anything.
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
                // The base of an access that moves it on is there as a sum would be.
                let base = latest(self, Registers(1 << register)).0.max(self.taken);
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
        // After a wait more retire than can be taken up in the long run; the mean is what counts.
        let in_order = self.retired + uops / machine.width;
        self.retired = in_order.max(done.0);
        self.buffer.push_back(self.retired);
        // Half a cycle is nothing worth telling.
        (uops / machine.width, if done.0 > in_order + 0.5 { done.1 } else { Wait::Nothing })
    }

    /// Gives the units work, in the order that instructions are taken up; when all of them were
    /// free for it. (That what waits for operands lets others go first is not followed: units are
    /// as busy in the mean.)
    fn occupy(&mut self, cost: &Cost) -> f64 {
        let mut begin = self.taken;
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
                let taken = self.taken;
                self.units
                    .get_mut(unit)
                    .into_iter()
                    .for_each(|free| *free = free.max(taken) + cycles);
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
        let slots = schedule(&Machine::named("znver3").unwrap(), &trace(code), Course::Again);
        slots.iter().map(|slot| slot.cycles).sum()
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
        let slots = schedule(&Machine::named("znver3").unwrap(), &trace(&chase), Course::Again);
        assert_eq!(slots[0].wait, Wait::Load);
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
            let mut after = Before::new(&machine, vec![first, rest]);
            for own in [&own[..], &own[1..], &own[..1]] {
                let whole: Vec<Work> = before.iter().chain(own).copied().collect();
                let whole = schedule(&machine, &whole, Course::Once);
                assert_eq!(after.schedule(own), whole[before.len()..], "{}", machine.name);
            }
            let pressed = after.schedule(&own).iter().any(|slot| slot.pressure > 0.0);
            assert!(pressed, "{}", machine.name);
        }
    }
}

//! A processor that issues in order, cycle by cycle.

use code::isa::work::Work;
use stalls::Machine;

/// What an instruction meets in an execution: cycles that its load takes longer, that its store
/// waits, that its code is not there.
#[derive(Clone, Copy, Default)]
pub struct Met {
    pub load: u64,
    pub store: u64,
    pub code: u64,
}

/// How often each instruction of each block meets what, and how long that takes.
pub struct Stalls(Vec<Vec<[(f64, u64); 3]>>);

impl Stalls {
    /// Some: half of the loads and more of the rest never.
    pub fn any(work: &[Vec<Work>], random: &mut fastrand::Rng) -> Self {
        let mut of = |work: &Work, index: usize| {
            let rate = |is: bool, rates: [f64; 4], random: &mut fastrand::Rng| {
                if is { rates[random.usize(..4)] } else { 0.0 }
            };
            let loads = rate(work.loads.is_some(), [0.0, 0.0, 0.05, 0.3], random);
            let stores = rate(work.stores.is_some(), [0.0, 0.0, 0.0, 0.2], random);
            let code = rate(index == 0, [0.0, 0.0, 0.001, 0.01], random);
            [
                (loads, 10 + random.u64(..90)),
                (stores, 5 + random.u64(..30)),
                (code, 10 + random.u64(..30)),
            ]
        };
        Self(
            work.iter()
                .map(|block| {
                    block.iter().enumerate().map(|(index, work)| of(work, index)).collect()
                })
                .collect(),
        )
    }

    pub fn draw(&self, block: usize, index: usize, random: &mut fastrand::Rng) -> Met {
        let mut one = |number: usize| {
            let (rate, cycles) = self.0[block][index][number];
            if rate > 0.0 && random.f64() < rate { cycles } else { 0 }
        };
        Met { load: one(0), store: one(1), code: one(2) }
    }
}

/// A result: who made it when, how long it takes, and how much longer it took this time.
#[derive(Clone, Copy, Default)]
struct Made {
    at: u64,
    latency: u64,
    forwarded: u64,
    longer: u64,
}

pub struct Pipeline<'a> {
    machine: &'a Machine,
    /// Cycles so far: the last instruction was issued in this one; and those in which only a stall
    /// kept one waiting.
    pub cycle: u64,
    pub stalled: u64,
    room: u64,
    made: [Made; 64],
    busy: [u64; 64],
    /// No code comes before this cycle.
    fetched: u64,
}

impl<'a> Pipeline<'a> {
    pub fn new(machine: &'a Machine) -> Self {
        Self {
            machine,
            cycle: 0,
            stalled: 0,
            room: 0,
            made: [Made::default(); 64],
            busy: [0; 64],
            fetched: 0,
        }
    }

    /// Waits until the instruction can be issued, and issues it. `wrong`: a branch at which the
    /// processor had gone the other way.
    pub fn execute(&mut self, work: &Work, met: Met, wrong: bool) {
        let cost = self.machine.cost(work).unwrap();
        let uops = cost.uops as u64;
        let begin = self.cycle;
        let mut first = true;
        loop {
            // An instruction wider than the processor begins in a cycle of its own.
            let fits = if first { self.room >= uops } else { true };
            let arrived = self.cycle >= self.fetched.max(begin + met.code + met.store);
            if fits && self.free(work) && self.ready(work, true) && arrived {
                break;
            }
            // Only what comes on top of the best case keeps it.
            let otherwise = fits && self.free(work) && self.ready(work, false);
            self.stalled += u64::from(otherwise);
            self.cycle += 1;
            first = false;
            self.room = self.machine.width as u64;
        }
        if first {
            self.room -= uops;
        } else {
            let width = self.machine.width as u64;
            let more = uops.saturating_sub(1) / width;
            self.room = (width * (more + 1)).saturating_sub(uops);
        }
        for (bits, cycles) in &cost.units {
            let many = *cycles > 1.0;
            let count = if many { u64::from(bits.count_ones()) } else { 1 };
            let until = self.cycle + (*cycles / count as f64).ceil() as u64;
            let mut units: Vec<usize> = (0..64).filter(|unit| bits >> unit & 1 == 1).collect();
            units.sort_by_key(|unit| self.busy[*unit]);
            units.into_iter().take(count as usize).for_each(|unit| self.busy[unit] = until);
        }
        let load = if work.loads.is_some() { self.machine.load_latency } else { 0.0 };
        let moved = work
            .adds
            .filter(|_| work.loads.is_some() || work.stores.is_some())
            .map_or(0, |(base, _)| base.0);
        for register in work.writes.iter() {
            let base = moved >> register & 1 == 1;
            let cycles = |cycles: f64| if base { 1 } else { (cycles + load) as u64 };
            let longer = if base { 0 } else { met.load };
            self.made[register] = Made {
                at: self.cycle,
                latency: cycles(cost.latency),
                forwarded: cycles(cost.forwarded_latency),
                longer,
            };
        }
        if !first && uops > self.machine.width as u64 {
            self.cycle += uops.saturating_sub(1) / self.machine.width as u64;
        }
        if wrong && work.conditional {
            self.fetched = self.cycle + 8;
        }
    }

    /// Whether units are free.
    fn free(&self, work: &Work) -> bool {
        let cost = self.machine.cost(work).unwrap();
        cost.units.iter().all(|(bits, _)| {
            (0..64).any(|unit| bits >> unit & 1 == 1 && self.busy[unit] <= self.cycle)
        })
    }

    /// Whether operands are there, with or without what took longer.
    fn ready(&self, work: &Work, with: bool) -> bool {
        let early = self.machine.cost(work).unwrap().operand_lead as u64;
        work.reads.iter().all(|register| {
            let Made { at, latency, forwarded, longer } = self.made[register];
            let needed = if work.addresses.0 >> register & 1 == 1 {
                latency
            } else if work.conditional || work.stores.is_some() {
                forwarded.saturating_sub(1)
            } else {
                latency.min(forwarded + early)
            };
            at + needed + if with { longer } else { 0 } <= self.cycle
        })
    }
}

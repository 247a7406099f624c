//! What may have stalled an instruction. A cause is guilty until it is cleared: by what the
//! instruction is, where it is, how it is come to, or by how much time it can cost at most (the
//! paper's section 6.3, for processors that execute out of order).
//!
//! On those, time is charged to the oldest instruction that has not retired. All before it have
//! retired, so it waits for itself: for its own load, unit or latency; or it is not there yet: its
//! code was not, the processor had gone another way, or had no room for it.

use std::fmt;

use code::isa::work::{Place, Registers, Work};

use crate::machine::Machine;

/// Why an instruction may have taken longer than in the best case.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// Its code was not in the first level of the instruction cache.
    InstructionCache,
    /// The translation of its code's address was not at hand.
    InstructionTlb,
    /// What it loads was not in the first level of the data cache.
    DataCache,
    /// The translation of its data's address was not at hand.
    DataTlb,
    /// The store buffer was full.
    StoreBuffer,
    /// A store before it, of which the processor could not tell at once whether it is to the same
    /// place.
    StoreForwarding,
    /// The processor had gone the other way at the branch before it.
    Mispredict,
    /// Its code was not fetched ahead: the taken branch before it was not known to be one before it
    /// was decoded.
    Resteer,
    /// The unit that divides, whose time depends on the numbers.
    Divider,
    /// A unit that it needs was busy.
    Port,
    /// Results it needs, that the best case found on another way, or its own latency.
    Dependency,
    /// It is a barrier, or behind one.
    Serialisation,
    /// It has memory to itself, or waits behind one that has.
    Lock,
    /// It is a program of the processor.
    Microcode,
}

impl Cause {
    /// All of them, as reports order them.
    pub const ALL: [Self; 14] = [
        Self::InstructionCache,
        Self::InstructionTlb,
        Self::DataCache,
        Self::DataTlb,
        Self::StoreBuffer,
        Self::StoreForwarding,
        Self::Mispredict,
        Self::Resteer,
        Self::Divider,
        Self::Port,
        Self::Dependency,
        Self::Serialisation,
        Self::Lock,
        Self::Microcode,
    ];

    /// Its letter: the paper's where it had one (figure 2).
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            Self::InstructionCache => 'i',
            Self::InstructionTlb => 'I',
            Self::DataCache => 'd',
            Self::DataTlb => 'D',
            Self::StoreBuffer => 'w',
            Self::StoreForwarding => 'f',
            Self::Mispredict => 'p',
            Self::Resteer => 'r',
            Self::Divider => 'v',
            Self::Port => 'u',
            Self::Dependency => 'o',
            Self::Serialisation => 's',
            Self::Lock => 'l',
            Self::Microcode => 'm',
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InstructionCache => "instruction cache miss",
            Self::InstructionTlb => "instruction TLB miss",
            Self::DataCache => "data cache miss",
            Self::DataTlb => "data TLB miss",
            Self::StoreBuffer => "store buffer full",
            Self::StoreForwarding => "store forwarding",
            Self::Mispredict => "branch mispredict",
            Self::Resteer => "branch found late",
            Self::Divider => "divider",
            Self::Port => "busy unit",
            Self::Dependency => "operands on another way",
            Self::Serialisation => "serialisation",
            Self::Lock => "lock",
            Self::Microcode => "microcode",
        })
    }
}

impl Cause {
    /// Whether it may take any time between none and that of memory, without anything else telling
    /// how much.
    #[must_use]
    pub fn is_of_memory(self) -> bool {
        matches!(
            self,
            Self::DataCache
                | Self::DataTlb
                | Self::StoreBuffer
                | Self::StoreForwarding
                | Self::Serialisation
                | Self::Lock
                | Self::Microcode
        )
    }
}

/// A cause that an instruction may have been stalled by.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Suspect {
    /// Which.
    pub cause: Cause,
    /// How many instructions before this one it is that may be to blame, on the way that is taken
    /// most often; 0: itself.
    pub behind: usize,
    /// Cycles that it can have cost at most, for each execution. Infinite where nothing limits it.
    pub most: f64,
}

/// Cycles that a miss costs at most, each time. Memory of another socket that is being written
/// elsewhere takes some 300 ns (Intel memory latency checker, published figures of two-socket
/// servers). Code comes from the same places.
const MEMORY: f64 = 1200.0;
/// A page walk in a guest reads up to 24 words (AMD64 APM volume 2, 15.25), nearly all of them
/// cached: not more than two from memory.
const PAGE_WALK: f64 = 2.0 * MEMORY;
/// The longest division (128 bits by 64 on Haswell: A. Fog, instruction tables).
const DIVISION: f64 = 100.0;
/// The bubble where fetching is sent elsewhere by the decoder: about 8 cycles (Intel 64 and IA-32
/// manual, volume 3, event `BACLEAR`), doubled as those of branches mispredicted are.
const RESTEER: f64 = 16.0;
/// What is behind a barrier or a locked instruction waits with it, until the first load: so far at
/// most.
const BEHIND: usize = 16;
/// A trace that is shorter than this begins with the procedure, or after a call: what was before is
/// not known.
pub(crate) const BEFORE: usize = 48;
/// Bytes of a line of caches, and of a page.
pub(crate) const LINE: u64 = 64;
pub(crate) const PAGE: u64 = 4096;

/// How an instruction is come to.
#[derive(Copy, Clone, Debug, Default)]
pub struct Arrival {
    /// How often, for each execution of it, its code may not have been there: 1 unless it is in a
    /// loop that fits into the cache.
    pub code_misses: f64,
    /// The same of the translation of the code's address.
    pub page_misses: f64,
    /// How often at most, for each execution, the processor was on a wrong way before.
    pub mispredicts: f64,
    /// How often at most it was come to by a taken branch that was not known: never by going on,
    /// and in a loop that fits once for each entry.
    pub resteers: f64,
}

impl Arrival {
    /// It may have been come to in any way.
    pub const ANY: Self =
        Self { code_misses: 1.0, page_misses: 1.0, mispredicts: 1.0, resteers: 1.0 };
}

/// Where an instruction is, and what is known of it besides.
#[derive(Copy, Clone, Debug, Default)]
pub struct Situation {
    /// Its first byte.
    pub address: u64,
    /// How it is come to, if it is the first of a block, or after a call.
    pub arrival: Option<Arrival>,
    /// For how many of its executions the next line of code, and the next page, may not have been
    /// there, where it reaches into one from the instruction before.
    pub crossing: (f64, f64),
    /// Bytes by which the address that it reads or writes moves on from one execution to the next,
    /// if that is known, and for how many of its executions it begins anew somewhere else.
    pub step: Option<(f64, f64)>,
    /// Cycles that it waits for busy units in the best case: with more of them it would be as much
    /// faster, so it can lose as much where they are given to others first.
    pub pressure: f64,
}

/// What was executed before an instruction, as far as that may have stalled it: the last [`BEFORE`]
/// - 1 instructions.
#[derive(Clone, Debug)]
pub(crate) struct Past {
    count: usize,
    /// A bit for each instruction that does, the nearest lowest.
    loads: u64,
    stores: u64,
    serialises: u64,
    locks: u64,
    microcoded: u64,
    /// The last to write each register, by its number from 1; 0: none.
    written: [usize; 64],
}

/// The bits of those of [`Past`] that are remembered.
const REMEMBERED: u64 = (1 << (BEFORE - 1)) - 1;

impl Past {
    /// After these instructions.
    pub(crate) fn of(pieces: &[&[Work]]) -> Self {
        let mut this = Self {
            count: 0,
            loads: 0,
            stores: 0,
            serialises: 0,
            locks: 0,
            microcoded: 0,
            written: [0; 64],
        };
        pieces.iter().copied().flatten().for_each(|work| this.push(work));
        this
    }

    /// One more.
    pub(crate) fn push(&mut self, work: &Work) {
        self.count += 1;
        for (bits, is) in [
            (&mut self.loads, work.loads.is_some()),
            (&mut self.stores, work.stores.is_some()),
            (&mut self.serialises, work.serialises),
            (&mut self.locks, work.locks),
            (&mut self.microcoded, work.microcoded),
        ] {
            *bits = (*bits << 1 | u64::from(is)) & REMEMBERED;
        }
        for register in work.writes.iter() {
            self.written.get_mut(register).into_iter().for_each(|last| *last = self.count);
        }
    }

    /// How many instructions before the next one the nearest one is that makes something it reads;
    /// 0: none of those that are remembered.
    fn waits_for(&self, reads: Registers) -> usize {
        let last = reads.iter().filter_map(|register| self.written.get(register)).max();
        last.filter(|last| **last > 0)
            .map(|last| self.count - last + 1)
            .filter(|behind| *behind < BEFORE)
            .unwrap_or(0)
    }
}

/// What may have stalled the instruction `own`, which comes after `past`.
#[must_use]
pub(crate) fn suspects(
    machine: &Machine,
    past: &Past,
    own: &Work,
    situation: &Situation,
) -> Vec<Suspect> {
    let Situation { address, arrival, crossing: (code_misses, page_misses), step, pressure } =
        *situation;
    let mut found = Vec::with_capacity(8);
    let mut add = |cause, behind, most: f64| {
        if most > 0.0 {
            found.push(Suspect { cause, behind, most });
        }
    };
    let last = address.wrapping_add(u64::from(own.len).saturating_sub(1));
    let begins = |size: u64| address % size == 0 || address / size != last / size;
    let arrived =
        arrival.unwrap_or(Arrival { code_misses, page_misses, mispredicts: 0.0, resteers: 0.0 });
    if arrival.is_some() || begins(LINE) {
        add(Cause::InstructionCache, 0, MEMORY * arrived.code_misses);
    }
    if arrival.is_some() || begins(PAGE) {
        add(Cause::InstructionTlb, 0, PAGE_WALK * arrived.page_misses);
    }
    if arrived.mispredicts > 0.0 {
        add(Cause::Mispredict, 1, machine.mispredict * arrived.mispredicts);
    }
    add(Cause::Resteer, 1, RESTEER * arrived.resteers);
    add(Cause::Port, 0, pressure);
    // A step of less than a line reaches a new one only now and then.
    let part = |size: u64| step.map_or(1.0, |(step, anew)| (step / size as f64 + anew).min(1.0));
    let place = own.loads.or(own.stores);
    if let Some(place) = place {
        if own.loads.is_some() && place != Place::Stack {
            add(Cause::DataCache, 0, MEMORY * part(LINE));
        }
        if place != Place::Stack {
            add(Cause::DataTlb, 0, PAGE_WALK * part(PAGE));
        }
        if own.loads.is_some() && (past.count < BEFORE - 1 || past.stores != 0) {
            // It waits until the store is in the cache, and those before it.
            add(Cause::StoreForwarding, 0, MEMORY);
        }
        if own.stores.is_some() {
            add(Cause::StoreBuffer, 0, MEMORY);
        }
    }
    if own.divides {
        add(Cause::Divider, 0, DIVISION);
    }
    // The first load ends it.
    let near = 1_u64 << BEHIND.min(past.loads.trailing_zeros() as usize + 1);
    for (cause, own, before) in [
        (Cause::Serialisation, own.serialises, past.serialises),
        (Cause::Lock, own.locks, past.locks),
        (Cause::Microcode, own.microcoded, past.microcoded),
    ] {
        let before = before & (near - 1);
        if own {
            add(cause, 0, f64::INFINITY);
        } else if before != 0 {
            add(cause, before.trailing_zeros() as usize + 1, f64::INFINITY);
        }
    }
    let latency = machine.cost(own).map_or(1.0, |cost| cost.latency)
        + own.loads.map_or(0.0, |_| machine.load);
    if !own.renamed {
        add(Cause::Dependency, past.waits_for(own.reads), latency);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_past_is_that_of_the_last_instructions() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..300 {
            let count = random.usize(0..100);
            let mut work = || Work {
                reads: Registers(1 << random.u32(..64)),
                writes: Registers(1 << random.u32(..64) & random.u64(..)),
                loads: (random.u32(..8) == 0).then_some(Place::Fixed),
                serialises: random.u32(..30) == 0,
                ..Work::default()
            };
            let all: Vec<Work> = (0..count).map(|_| work()).collect();
            let own = work();
            let (early, late) = all.split_at(count / 3);
            let past = Past::of(&[early, late]);
            let before = all.get(count.saturating_sub(BEFORE - 1)..).unwrap();
            let nearest = |is: &dyn Fn(&Work) -> bool| {
                before.iter().rev().position(is).map_or(0, |at| at + 1)
            };
            assert_eq!(past.waits_for(own.reads), nearest(&|work| work.writes.meets(own.reads)));
            for (bits, is) in [
                (past.loads, (|work| work.loads.is_some()) as fn(&Work) -> bool),
                (past.serialises, |work| work.serialises),
                (past.stores, |work| work.stores.is_some()),
            ] {
                let first = if bits == 0 { 0 } else { bits.trailing_zeros() as usize + 1 };
                assert_eq!(first, nearest(&is), "{count} {bits:b}");
            }
        }
    }
}

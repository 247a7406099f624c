//! What may have stalled an instruction. A cause is guilty until it is cleared: by what the instruction is, where it is, how it is come to, or by
//! how much time it can cost at most (the paper's section 6.3, for processors that execute out of order).
//!
//! On those, time is charged to the oldest instruction that has not retired. All before it have retired, so it waits for itself: for its
//! own load, unit or latency; or it is not there yet: its code was not, the processor had gone another way, or had no room for it.

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
    /// A store before it, of which the processor could not tell at once whether it is to the same place.
    StoreForwarding,
    /// The processor had gone the other way at the branch before it.
    Mispredict,
    /// Its code was not fetched ahead: the taken branch before it was not known to be one before it was decoded.
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

/// A cause that an instruction may have been stalled by.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Suspect {
    /// Which.
    pub cause: Cause,
    /// How many instructions before this one it is that may be to blame, on the way that is taken most often; 0: itself.
    pub behind: usize,
    /// Cycles that it can have cost at most, for each execution. Infinite where nothing limits it.
    pub most: f64,
}

/// Cycles that a miss costs at most, each time. Memory of another socket that is being written elsewhere takes some 300 ns (Intel memory latency
/// checker, published figures of two-socket servers). Code comes from the same places.
const MEMORY: f64 = 1200.0;
/// A page walk in a guest reads up to 24 words (AMD64 APM volume 2, 15.25), nearly all of them cached: not more than two from memory.
const PAGE_WALK: f64 = 2.0 * MEMORY;
/// The longest division (128 bits by 64 on Haswell: A. Fog, instruction tables).
const DIVISION: f64 = 100.0;
/// The bubble where fetching is sent elsewhere by the decoder: about 8 cycles (Intel 64 and IA-32 manual, volume 3, event `BACLEAR`), doubled as those
/// of branches mispredicted are.
const RESTEER: f64 = 16.0;
/// What is behind a barrier or a locked instruction waits with it, until the first load: so far at most.
const BEHIND: usize = 16;
/// A trace that is shorter than this begins with the procedure, or after a call: what was before is not known.
pub(crate) const BEFORE: usize = 48;
/// Bytes of a line of caches, and of a page.
pub(crate) const LINE: u64 = 64;
pub(crate) const PAGE: u64 = 4096;

/// How an instruction is come to.
#[derive(Copy, Clone, Debug, Default)]
pub struct Arrival {
    /// How often, for each execution of it, its code may not have been there: 1 unless it is in a loop that fits into the cache.
    pub code_misses: f64,
    /// The same of the translation of the code's address.
    pub page_misses: f64,
    /// How often at most, for each execution, the processor was on a wrong way before.
    pub mispredicts: f64,
    /// How often at most it was come to by a taken branch that was not known: never by going on, and in a loop that fits once for each entry.
    pub resteers: f64,
}

impl Arrival {
    /// It may have been come to in any way.
    pub const ANY: Self = Self { code_misses: 1.0, page_misses: 1.0, mispredicts: 1.0, resteers: 1.0 };
}

/// Where an instruction is, and what is known of it besides.
#[derive(Copy, Clone, Debug, Default)]
pub struct Situation {
    /// Its first byte.
    pub address: u64,
    /// How it is come to, if it is the first of a block, or after a call.
    pub arrival: Option<Arrival>,
    /// Bytes by which the address that it reads or writes moves on from one execution to the next, if that is known, and for how many of its
    /// executions it begins anew somewhere else.
    pub step: Option<(f64, f64)>,
    /// Cycles that it waits for busy units in the best case: with more of them it would be as much faster, so it can lose as much where they are
    /// given to others first.
    pub pressure: f64,
}

/// What may have stalled the last of `trace`.
#[must_use]
pub fn suspects(machine: &Machine, trace: &[Work], situation: &Situation) -> Vec<Suspect> {
    let Situation { address, arrival, step, pressure } = *situation;
    let mut found = Vec::new();
    let Some((own, before)) = trace.split_last() else { return found };
    let mut add = |cause, behind, most: f64| {
        if most > 0.0 {
            found.push(Suspect { cause, behind, most });
        }
    };
    let last = address.wrapping_add(u64::from(own.len).saturating_sub(1));
    let begins = |size: u64| address % size == 0 || address / size != last / size;
    let arrived = arrival.unwrap_or(Arrival { mispredicts: 0.0, resteers: 0.0, ..Arrival::ANY });
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
        if own.loads.is_some() && (trace.len() < BEFORE || before.iter().any(|work| work.stores.is_some())) {
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
    let to_first_load = before.iter().rev().position(|work| work.loads.is_some()).map_or(BEHIND, |at| at + 1);
    let near = before.iter().rev().take(to_first_load.min(BEHIND)).enumerate();
    let near = || std::iter::once((0, own)).chain(near.clone().map(|(behind, work)| (behind + 1, work)));
    for (cause, is) in [
        (Cause::Serialisation, (|work| work.serialises) as fn(&Work) -> bool),
        (Cause::Lock, |work| work.locks),
        (Cause::Microcode, |work| work.microcoded),
    ] {
        if let Some((behind, _)) = near().find(|(_, work)| is(work)) {
            add(cause, behind, f64::INFINITY);
        }
    }
    let latency = machine.cost(own).map_or(1.0, |cost| cost.latency) + own.loads.map_or(0.0, |_| machine.load);
    if !own.renamed {
        add(Cause::Dependency, waits_for(own, before), latency);
    }
    found
}

/// How many instructions before `own` the nearest one is that makes something it reads.
fn waits_for(own: &Work, before: &[Work]) -> usize {
    let reads = own.reads;
    before
        .iter()
        .rev()
        .position(|work| work.writes.meets(reads) && reads != Registers::default())
        .map_or(0, |at| at + 1)
}

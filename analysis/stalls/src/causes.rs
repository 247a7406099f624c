//! What may have stalled an instruction. A cause is suspected until it is ruled out: by what the
//! instruction is, by its address, by how control arrives at it, or by the time that the cause can
//! cost at most (the paper's section 6.3, for processors that execute out of order).
//!
//! Such processors have time charged to the oldest instruction that has not retired. All
//! instructions before it have retired, so it waits for itself (for its own load, unit or latency),
//! or it has not arrived yet: its code was not fetched, the processor had gone on along the wrong
//! path, or the reorder buffer had no room.

use std::fmt;

use code::isa::work::{Place, Registers, Work};

use crate::machine::Machine;

/// Why an instruction may have taken longer than in the best case.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// The code missed the first level of the instruction cache.
    InstructionCache,
    /// The address of the code missed the instruction TLB.
    InstructionTlb,
    /// The load missed the first level of the data cache.
    DataCache,
    /// The address of the data missed the data TLB.
    DataTlb,
    /// The store buffer was full.
    StoreBuffer,
    /// An earlier store may be to the address of the load: the load waits until the addresses are
    /// compared, or until the store is in the cache.
    StoreForwarding,
    /// The branch before the instruction was mispredicted.
    Mispredict,
    /// The taken branch before the instruction was not in the branch target buffer, so that it
    /// redirected fetching only when it was decoded.
    Resteer,
    /// The divider, whose time depends on the operands.
    Divider,
    /// A unit that the instruction needs was busy.
    Port,
    /// Operands came later than on the path of the best case, or the instruction's own latency
    /// shows.
    Dependency,
    /// The instruction is a barrier, or waits for one.
    Serialisation,
    /// The instruction locks memory, or waits for one that does.
    Lock,
    /// The instruction runs a microcode routine of unknown length.
    Microcode,
}

impl Cause {
    /// All causes, in the order of reports.
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

    /// The cause's letter: the paper's where it had one (figure 2).
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
            Self::Resteer => "front-end redirect",
            Self::Dependency => "waits for an earlier result",
            other => other.name(),
        })
    }
}

impl Cause {
    /// The name for programs, which never changes.
    pub const fn name(self) -> &'static str {
        match self {
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
            Self::Dependency => "late operand",
            Self::Serialisation => "serialisation",
            Self::Lock => "lock",
            Self::Microcode => "microcode",
        }
    }
}

impl Cause {
    /// Whether the cause is a wait for data in memory: samples hardly tell a miss of the cache from
    /// one of the TLB.
    pub fn is_of_data(self) -> bool {
        matches!(self, Self::DataCache | Self::DataTlb)
    }

    /// Whether the cause may cost anything from nothing to the latency of memory, with no other
    /// evidence of how much.
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

/// A cause that may have stalled an instruction.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Suspect {
    /// The cause.
    pub cause: Cause,
    /// Distance, in instructions, back to the culprit on the most frequent path; 0 for the
    /// instruction itself.
    pub distance: usize,
    /// Most cycles that the cause can have cost per execution; infinite if nothing bounds it.
    pub cycles_max: f64,
    /// Most cycles that the cause takes from the others of the instruction: less than `cycles_max`
    /// for page walks on a machine that was measured.
    pub usual_cycles_max: f64,
}

/// Most cycles of a division: 128 bits by 64 on Haswell (A. Fog, instruction tables).
const DIVISION_CYCLES_MAX: f64 = 100.0;
/// Most cycles of a fetch bubble after the decoder redirects fetching: 8 cycles (Intel 64 and IA-32
/// manual, volume 3, event `BACLEAR`), doubled as the cost of mispredictions is.
const RESTEER_CYCLES_MAX: f64 = 16.0;
/// Most instructions behind a barrier or a locked instruction that wait with it; the first load
/// among them ends the wait. Set by hand. A larger value suspects barriers that completed long
/// before.
const BARRIER_REACH: usize = 16;
/// Instructions of history that suspects look at, plus 1: a history with fewer than `HISTORY_LEN -
/// 1` instructions begins at the procedure's entry or after a call, and what precedes it is
/// unknown. Set by hand, below the 64 bits of a set.
pub(crate) const HISTORY_LEN: usize = 48;
/// Bytes of a cache line, on all processors here.
pub(crate) const LINE_BYTES: u64 = 64;
/// Bytes of the smallest page. Larger pages only lower the misses that are suspected.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// How control arrives at an instruction. Each field is an upper limit per execution.
#[derive(Copy, Clone, Debug, Default)]
pub struct Arrival {
    /// Instruction cache misses: 1, unless the instruction is in a loop that fits the cache.
    pub code_misses: f64,
    /// Instruction TLB misses: 1, unless the instruction is in a loop that fits the TLB.
    pub page_misses: f64,
    /// Mispredictions of the branch before.
    pub mispredicts: f64,
    /// Taken branches that were not in the branch target buffer: 0 if control only falls through,
    /// and one per entry of a loop that fits the cache.
    pub resteers: f64,
}

impl Arrival {
    /// Nothing is known of how control arrives.
    pub const ANY: Self =
        Self { code_misses: 1.0, page_misses: 1.0, mispredicts: 1.0, resteers: 1.0 };
}

/// Where an instruction is, and what else is known of its executions.
#[derive(Copy, Clone, Debug, Default)]
pub struct Site {
    /// Address of the first byte.
    pub address: u64,
    /// How control arrives, for the first instruction of a block and after a call.
    pub arrival: Option<Arrival>,
    /// Most misses per execution of the instruction cache and of its TLB, in this order, where the
    /// instruction is the first in a line or page.
    pub crossing: (f64, f64),
    /// The bytes by which the address of the data moves from one execution to the next, and the
    /// share of executions in which it begins again elsewhere; `None` if unknown.
    pub stride: Option<(f64, f64)>,
    /// Cycles of the best case that unlimited units would save. When other instructions get a unit
    /// first, the instruction can lose as many again.
    pub unit_contention: f64,
}

/// The last [`HISTORY_LEN`] - 1 instructions before an instruction, as far as they may have stalled
/// it.
#[derive(Clone, Debug)]
pub(crate) struct History {
    /// Instructions so far, also those that are forgotten.
    count: usize,
    /// Bit sets of the instructions that do so, the nearest in the lowest bit.
    loads: u64,
    stores: u64,
    serialises: u64,
    locks: u64,
    microcoded: u64,
    /// The number of the last instruction that wrote each register, from 1; 0: none.
    written: [usize; 64],
}

/// The bits of a set that are kept.
const HISTORY_MASK: u64 = (1 << (HISTORY_LEN - 1)) - 1;

impl History {
    /// The history after these instructions.
    pub(crate) fn of(traces: &[&[Work]]) -> Self {
        let mut this = Self {
            count: 0,
            loads: 0,
            stores: 0,
            serialises: 0,
            locks: 0,
            microcoded: 0,
            written: [0; 64],
        };
        traces.iter().copied().flatten().for_each(|work| this.push(work));
        this
    }

    /// Adds the next instruction.
    pub(crate) fn push(&mut self, work: &Work) {
        self.count += 1;
        for (bits, is) in [
            (&mut self.loads, work.loads.is_some()),
            (&mut self.stores, work.stores.is_some()),
            (&mut self.serialises, work.serialises),
            (&mut self.locks, work.locks),
            (&mut self.microcoded, work.microcoded),
        ] {
            *bits = (*bits << 1 | u64::from(is)) & HISTORY_MASK;
        }
        for register in work.writes.iter() {
            self.written.get_mut(register).into_iter().for_each(|last| *last = self.count);
        }
    }

    /// Distance from the next instruction back to the nearest one that writes a register of
    /// `reads`; 0 if none of the history does.
    fn waits_for(&self, reads: Registers) -> usize {
        let last = reads.iter().filter_map(|register| self.written.get(register)).max();
        last.filter(|last| **last > 0)
            .map(|last| self.count - last + 1)
            .filter(|distance| *distance < HISTORY_LEN)
            .unwrap_or(0)
    }
}

/// What may have stalled the instruction `own`, which follows `history`.
pub(crate) fn suspects(
    machine: &Machine,
    history: &History,
    own: &Work,
    site: &Site,
) -> Vec<Suspect> {
    let Site { address, arrival, crossing: (code_misses, page_misses), stride, unit_contention } =
        *site;
    let mut found = Vec::with_capacity(8);
    let walk = machine.page_walk_cycles_max;
    let mut add = |cause, distance, cycles_max: f64| {
        let usual =
            if cause == Cause::DataTlb { machine.usual_page_walk_cycles_max / walk } else { 1.0 };
        if cycles_max > 0.0 {
            found.push(Suspect {
                cause,
                distance,
                cycles_max,
                usual_cycles_max: cycles_max * usual,
            });
        }
    };
    let last = address.wrapping_add(u64::from(own.len).saturating_sub(1));
    let begins = |size: u64| address % size == 0 || address / size != last / size;
    let arrived =
        arrival.unwrap_or(Arrival { code_misses, page_misses, mispredicts: 0.0, resteers: 0.0 });
    if arrival.is_some() || begins(LINE_BYTES) {
        add(Cause::InstructionCache, 0, machine.miss_cycles_max * arrived.code_misses);
    }
    if arrival.is_some() || begins(PAGE_BYTES) {
        add(Cause::InstructionTlb, 0, walk * arrived.page_misses);
    }
    if arrived.mispredicts > 0.0 {
        add(Cause::Mispredict, 1, machine.mispredict_cycles * arrived.mispredicts);
    }
    add(Cause::Resteer, 1, RESTEER_CYCLES_MAX * arrived.resteers);
    add(Cause::Port, 0, unit_contention);
    // An address that moves by less than a line reaches a new line only in some executions.
    let part =
        |size: u64| stride.map_or(1.0, |(stride, anew)| (stride / size as f64 + anew).min(1.0));
    let place = own.loads.or(own.stores);
    if let Some(place) = place {
        if own.loads.is_some() && place != Place::Stack {
            add(Cause::DataCache, 0, machine.miss_cycles_max * part(LINE_BYTES));
        }
        if place != Place::Stack {
            add(Cause::DataTlb, 0, walk * part(PAGE_BYTES));
        }
        if own.loads.is_some() && (history.count < HISTORY_LEN - 1 || history.stores != 0) {
            // The load waits until the store, and those before it, are in the cache.
            add(Cause::StoreForwarding, 0, machine.miss_cycles_max + machine.forward_cycles_max);
        }
        if own.stores.is_some() {
            add(Cause::StoreBuffer, 0, machine.miss_cycles_max);
        }
    }
    if own.divides {
        add(Cause::Divider, 0, DIVISION_CYCLES_MAX);
    }
    // The first load after a barrier ends the wait for it.
    let near = 1_u64 << BARRIER_REACH.min(history.loads.trailing_zeros() as usize + 1);
    for (cause, own, before) in [
        (Cause::Serialisation, own.serialises, history.serialises),
        (Cause::Lock, own.locks, history.locks),
        (Cause::Microcode, own.microcoded, history.microcoded),
    ] {
        let before = before & (near - 1);
        if own {
            add(cause, 0, f64::INFINITY);
        } else if before != 0 {
            add(cause, before.trailing_zeros() as usize + 1, f64::INFINITY);
        }
    }
    let latency = machine.cost(own).map_or(1.0, |cost| cost.latency)
        + own.loads.map_or(0.0, |_| machine.load_latency);
    if !own.renamed {
        add(Cause::Dependency, history.waits_for(own.reads), latency);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_is_that_of_the_last_instructions() {
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
            let history = History::of(&[early, late]);
            let before = all.get(count.saturating_sub(HISTORY_LEN - 1)..).unwrap();
            let nearest = |is: &dyn Fn(&Work) -> bool| {
                before.iter().rev().position(is).map_or(0, |at| at + 1)
            };
            assert_eq!(history.waits_for(own.reads), nearest(&|work| work.writes.meets(own.reads)));
            for (bits, is) in [
                (history.loads, (|work| work.loads.is_some()) as fn(&Work) -> bool),
                (history.serialises, |work| work.serialises),
                (history.stores, |work| work.stores.is_some()),
            ] {
                let first = if bits == 0 { 0 } else { bits.trailing_zeros() as usize + 1 };
                assert_eq!(first, nearest(&is), "{count} {bits:b}");
            }
        }
    }
}

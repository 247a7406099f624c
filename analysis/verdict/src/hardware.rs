//! What events cost on a processor, in cycles.

use model::{MeasuredMachine, Spread};

/// A level of the data cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// The level, from 1.
    pub number: u32,
    /// Bytes that it holds.
    pub bytes: f64,
    /// Cycles from an address to its value.
    pub cycles: f64,
}

/// The costs of events.
#[derive(Clone, Debug, PartialEq)]
pub struct Hardware {
    /// Cycles of the core per ns; None: not known.
    pub ghz: Option<f64>,
    /// The caches, the first level first.
    pub levels: Vec<Level>,
    /// Cycles of a load from memory: usual, and the most.
    pub memory_cycles: (f64, f64),
    /// Bytes of memory in pages of 4 KiB that the last TLB reaches.
    pub tlb_bytes: f64,
    /// Cycles of a page walk, usual and the most.
    pub walk_cycles: (f64, f64),
    /// Cycles of a mispredicted branch.
    pub mispredict_cycles: f64,
    /// Cycles of a load that a store does not forward to, beyond one that it does.
    pub forward_cycles: f64,
    /// Whether it was measured on the sampled host.
    pub is_measured: bool,
}

/// Bytes of a shared cache that are counted on: in a virtual machine the system tells all of it,
/// 480 MiB, of which others use the most.
const SHARED_MAX: f64 = 48.0 * 1024.0 * 1024.0;
/// Bytes of the smallest page.
const PAGE: f64 = 4096.0;

impl Hardware {
    /// A server of today, where nothing is measured. Latencies from A. Fog (microarchitecture,
    /// 2024) and 7-cpu.com for Zen 3, Ice Lake and Sapphire Rapids: between these all differ by
    /// half.
    pub fn generic(ghz: Option<f64>) -> Self {
        let level = |number, bytes, cycles| Level { number, bytes, cycles };
        let kib = 1024.0;
        Self {
            ghz,
            levels: vec![
                level(1, 40.0 * kib, 5.0),
                level(2, 1024.0 * kib, 15.0),
                level(3, 32.0 * kib * kib, 65.0),
            ],
            memory_cycles: (300.0, 900.0),
            tlb_bytes: 1536.0 * PAGE,
            walk_cycles: (40.0, 400.0),
            mispredict_cycles: 18.0,
            forward_cycles: 12.0,
            is_measured: false,
        }
    }

    /// As `dcpi machine` measured it.
    pub fn measured(measured: &MeasuredMachine) -> Self {
        let generic = Self::generic(Some(measured.core_ghz.value));
        let mut levels: Vec<Level> = Vec::new();
        for cache in &measured.caches {
            // The measured size; the size that the system states, where the measurement did not
            // reach the end of the cache.
            let middle = |(low, high): (u64, u64)| (low as f64 * high as f64).sqrt();
            let bytes = cache.bytes_low.zip(cache.bytes_high).map(middle);
            let stated = cache.stated_bytes.map(|bytes| bytes as f64);
            let bytes = bytes.or(stated).or(cache.bytes_low.map(|bytes| bytes as f64));
            if let Some(bytes) = bytes {
                let cycles = cache.latency_cycles.value;
                levels.push(Level { number: cache.level, bytes, cycles });
            }
        }
        let reach = measured.tlbs.iter().filter_map(|tlb| {
            tlb.entries_high
                .or(tlb.stated_entries)
                .or(tlb.entries_low)
                .map(|entries| entries as f64)
        });
        let usual = |spread: Option<Spread>, or: (f64, f64)| {
            spread.map_or(or, |spread| (spread.value, spread.high))
        };
        let memory = measured.memory_cycles;
        let failing = measured.forward_failing_cycles.value - measured.forward_cycles.value;
        Self {
            levels: if levels.is_empty() { generic.levels } else { levels },
            memory_cycles: (memory.value, measured.memory_cycles_max().max(memory.high)),
            tlb_bytes: reach.map(|entries| entries * PAGE).fold(generic.tlb_bytes, f64::max),
            walk_cycles: usual(measured.page_walk_cycles, generic.walk_cycles),
            mispredict_cycles: measured.mispredict_cycles.value,
            forward_cycles: failing.max(5.0),
            is_measured: true,
            ..generic
        }
    }

    /// Takes sizes of caches from what the system of the sampled host says.
    #[must_use]
    pub fn with_sizes(mut self, sizes: &[(u32, u64)]) -> Self {
        if !self.is_measured {
            for level in &mut self.levels {
                let stated = sizes.iter().find(|(number, _)| *number == level.number);
                let stated = stated.map_or(level.bytes, |(_, bytes)| *bytes as f64);
                level.bytes = if level.number > 2 { stated.min(SHARED_MAX) } else { stated };
            }
        }
        self
    }

    /// The level whose data a working set of so many bytes comes from, as a rule: None for memory.
    pub fn level_of(&self, bytes: f64) -> Option<Level> {
        self.levels.iter().copied().find(|level| bytes <= level.bytes * 1.1)
    }

    /// Bytes of the caches, the first level first: at most three.
    pub fn sizes(&self) -> Vec<f64> {
        self.levels.iter().take(3).map(|level| level.bytes.min(SHARED_MAX)).collect()
    }

    /// Cycles of a load that hits the first level.
    pub fn first_cycles(&self) -> f64 {
        self.levels.first().map_or(5.0, |level| level.cycles)
    }
}

//! Measures the cost of a program's events (reads of clocks, a system call, a page fault) and of
//! instructions in chains (a misprediction, a store that is loaded again).

use crate::kernels::{FORWARDS, branches, forward, forward_failing};
use crate::pieces::fastest;
use crate::region::{PAGE_BYTES, Pages, Region};
use crate::{counter, switches};

/// One measurement of the time of each event, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Events {
    /// `clock_gettime(CLOCK_MONOTONIC)`.
    pub clock_gettime_ns: f64,
    /// `clock_gettime(CLOCK_THREAD_CPUTIME_ID)`.
    pub thread_time_ns: f64,
    /// The system call getppid.
    pub system_call_ns: f64,
    /// Two reads of the counter, each between fences: what brackets a piece of code.
    pub fence_pair_ns: f64,
    /// The first touch of a page of 4 KiB.
    pub page_fault_ns: f64,
}

impl Events {
    /// The times with the events' names.
    #[must_use]
    pub fn named(&self) -> [(&'static str, f64); 5] {
        [
            ("clock_gettime", self.clock_gettime_ns),
            ("thread_time", self.thread_time_ns),
            ("system_call", self.system_call_ns),
            ("fence_pair", self.fence_pair_ns),
            ("page_fault", self.page_fault_ns),
        ]
    }
}

/// Events of a piece.
const TIMES: usize = 200;
/// Pages of a piece of page faults.
const FAULTS: usize = 256;
/// Pieces of each kind; the fastest one counts.
const PIECES: usize = 5;

/// Measures each event.
#[must_use]
pub fn events() -> Events {
    let each =
        |event: &dyn Fn()| fastest(PIECES, || (0..TIMES).for_each(|_| event())) / TIMES as f64;
    let keep = |value: u64| {
        std::hint::black_box(value);
    };
    // The mapping itself is a small part: two system calls for 512 faults.
    let faults =
        |pages: usize| fastest(PIECES, || drop(Region::new(pages * PAGE_BYTES, Pages::Small)));
    let region_pages = FAULTS.next_multiple_of(512);
    Events {
        clock_gettime_ns: each(&|| {
            std::hint::black_box(switches::monotonic_time());
        }),
        thread_time_ns: each(&|| {
            std::hint::black_box(switches::thread_time());
        }),
        system_call_ns: each(&switches::system_call),
        fence_pair_ns: each(&|| {
            keep(counter::read_fenced());
            keep(counter::read_fenced());
        }),
        page_fault_ns: faults(region_pages) / region_pages as f64,
    }
}

/// One measurement of the times of instructions, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Instructions {
    /// A mispredicted branch minus a predicted one.
    pub mispredict_ns: f64,
    /// From a store to the load of the same word.
    pub forward_ns: f64,
    /// From two stores to the load of a word with both.
    pub forward_failing_ns: f64,
}

/// Rounds of a piece of branches: about 0.1 ms.
const BRANCHES: u64 = 10_000;
/// Rounds of a piece of stores and loads.
const STORES: u64 = 500;

/// Measures each.
#[must_use]
pub fn instructions(region: &mut Region) -> Instructions {
    let branch =
        |predictable| fastest(PIECES, || branches(predictable, BRANCHES)) / BRANCHES as f64;
    let per_load = |took: f64| took / (STORES * FORWARDS) as f64;
    Instructions {
        // Half of the directions are guessed wrong.
        mispredict_ns: (branch(false) - branch(true)) * 2.0,
        forward_ns: per_load(fastest(PIECES, || forward(region, STORES))),
        forward_failing_ns: per_load(fastest(PIECES, || forward_failing(region, STORES))),
    }
}

//! What is known of a piece of code that takes time.

use std::collections::BTreeMap;

use model::{Access, Apart, Crossed};

use crate::Counted;

/// A loop, or a procedure without one that takes most of its time.
#[derive(Clone, Debug, Default)]
pub struct Region {
    /// Whether it is a loop.
    pub is_loop: bool,
    /// Samples of its time.
    pub samples: f64,
    /// Cycles of one round, calls left out, with limits; None where they are not known.
    pub round_cycles: Option<(f64, f64, f64)>,
    /// ns of one round, as measured.
    pub round_ns: Option<f64>,
    /// Rounds each time that the loop is entered, and the factor each way within which they are
    /// known with a confidence of 95 %; None where it is not a loop, or not known.
    pub rounds: Option<(f64, f64)>,
    /// Share of a procedure's entries that come from an indirect call with several targets, none of
    /// which is usual.
    pub entered_by_chance: f64,
    /// Lines of 64 bytes that have 90 % of its samples.
    pub hot_lines: usize,
    /// Hardware events that were sampled, in its time.
    pub counted: Vec<Counted>,
    /// Its instructions.
    pub instructions: Vec<Instruction>,
}

/// An instruction, per round of its region.
#[derive(Clone, Debug, Default)]
pub struct Instruction {
    /// Its address.
    pub address: u64,
    /// Mnemonic and operands.
    pub text: String,
    /// Share of the region's samples.
    pub share: f64,
    /// Executions.
    pub times: f64,
    /// Cycles of the best case of one execution.
    pub best_cycles: f64,
    /// The same, if nothing waits.
    pub issue_cycles: f64,
    /// Cycles of the best case that more units would save.
    pub unit_cycles: f64,
    /// What most of the best case waits for.
    pub kind: Kind,
    /// What was seen of its accesses to memory.
    pub sketch: Sketch,
    /// Whether it loads from memory other than the stack.
    pub loads: bool,
    /// Whether it stores to memory other than the stack.
    pub stores: bool,
    /// Whether the address that it loads from is one that a load of the region has loaded.
    pub chases: bool,
    /// It divides, or takes a root.
    pub divides: bool,
    /// It locks memory.
    pub locks: bool,
    /// It serialises.
    pub serialises: bool,
    /// Largest share of its outcomes that those before do not tell; of a conditional branch.
    pub untold: Option<f64>,
    /// Of an indirect branch: share of executions that do not go to the most usual target.
    pub elsewhere: Option<f64>,
    /// What it did in models of the processor, where bursts of it were recorded.
    pub modelled: Option<Modelled>,
}

/// What an execution of an instruction does in models of the processor's caches, TLB and branch
/// predictor.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Modelled {
    /// Executions in the models.
    pub executions: u64,
    /// Misses of the first, second and third level that no prefetcher foresees.
    pub misses: [f64; 3],
    /// Those that the prefetchers foresee.
    pub streamed: [f64; 3],
    /// Page walks.
    pub walks: f64,
    /// Mispredictions.
    pub mispredicted: f64,
    /// Misses of the instruction cache.
    pub code_misses: f64,
}

/// What a best case waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Nothing but its turn.
    #[default]
    Issue,
    /// An operand.
    Operand,
    /// A unit.
    Unit,
}

impl Instruction {
    /// The mnemonic.
    pub fn mnemonic(&self) -> &str {
        let is_prefix =
            |word: &&str| !matches!(*word, "lock" | "rep" | "repz" | "repnz" | "notrack" | "bnd");
        self.text.split_whitespace().find(is_prefix).unwrap_or_default()
    }
}

/// The sum; hostile counts do not overflow.
fn sum<'a>(counts: impl Iterator<Item = &'a u64>) -> u64 {
    counts.fold(0, |sum, count| sum.saturating_add(*count))
}

/// Fewest pairs of addresses that tell how far these are spread.
const PAIRS_MIN: u64 = 20;

/// Fewest accesses whose page is known that tell the share of huge pages: with 12 of 12 alike, the
/// share is at least 0.76 or at most 0.24 (Wilson's interval at 95 %).
const PAGES_MIN: u64 = 12;
/// Small pages in a huge one.
const SMALL_IN_HUGE: f64 = 512.0;

/// Counts of what was seen of an instruction's accesses.
#[derive(Clone, Debug, Default)]
pub struct Sketch {
    /// Accesses.
    pub all: u64,
    /// Those across lines, pages included.
    pub across_lines: u64,
    /// Those across pages.
    pub across_pages: u64,
    /// Strides, with how often.
    pub strides: BTreeMap<i64, u64>,
    /// Distances, with how often.
    pub apart: BTreeMap<Apart, u64>,
    /// Loads after a store that does not have all their bytes.
    pub not_forwarded: u64,
    /// Loads after one that has.
    pub forwarded: u64,
    /// Loads after a store with the same lowest bits.
    pub aliased: u64,
    /// Accesses to a line of which another thread uses other bytes.
    pub shared_others: u64,
    /// Accesses to bytes that another thread uses.
    pub shared_same: u64,
    /// Accesses to pages of 4 KiB, of those whose page is known.
    pub in_small_pages: u64,
    /// Accesses to huge pages, likewise.
    pub in_huge_pages: u64,
}

impl Sketch {
    /// Adds what was seen so often.
    pub fn add(&mut self, access: Access, times: u64) {
        let sum = match access {
            Access::Crosses(crossed) => {
                let if_so = |is: bool| if is { times } else { 0 };
                let across = [crossed != Crossed::Nothing, crossed == Crossed::Page].map(if_so);
                self.all = self.all.saturating_add(times);
                self.across_lines = self.across_lines.saturating_add(across[0]);
                self.across_pages = self.across_pages.saturating_add(across[1]);
                return;
            }
            Access::Stride(stride) => self.strides.entry(stride).or_default(),
            Access::Apart(apart) => self.apart.entry(apart).or_default(),
            Access::Forwards(false) => &mut self.not_forwarded,
            Access::Forwards(true) => &mut self.forwarded,
            Access::Aliases => &mut self.aliased,
            Access::Shared(false) => &mut self.shared_others,
            Access::Shared(true) => &mut self.shared_same,
            Access::HugePage(false) => &mut self.in_small_pages,
            Access::HugePage(true) => &mut self.in_huge_pages,
        };
        *sum = sum.saturating_add(times);
    }

    /// Share of accesses that are to huge pages; None where of few the page is known.
    pub fn huge_share(&self) -> Option<f64> {
        let all = self.in_small_pages.saturating_add(self.in_huge_pages);
        (all >= PAGES_MIN).then(|| self.in_huge_pages as f64 / all as f64)
    }

    /// Share of the accesses (0 to 1) that need a page walk. The accesses are taken to be spread
    /// evenly over `span` bytes; `reach` is the number of bytes in pages of 4 KiB that the last
    /// TLB covers, which has as many entries for huge pages. Pages of unknown size are taken for
    /// pages of 4 KiB.
    pub fn walked_share(&self, span: f64, reach: f64) -> f64 {
        let huge = self.huge_share().unwrap_or(0.0);
        let of_huge_pages = span * huge / SMALL_IN_HUGE;
        match span * (1.0 - huge) + of_huge_pages > reach {
            true if of_huge_pages > reach => 1.0,
            true => 1.0 - huge,
            false => 0.0,
        }
    }

    /// Share of all accesses.
    pub fn share(&self, of: u64) -> f64 {
        of as f64 / self.all.max(1) as f64
    }

    /// Pairs of moments whose distance is known.
    pub fn pairs(&self) -> u64 {
        sum(self.apart.values())
    }

    /// Share of executions that come to another line than the one before; of strides that are not
    /// known, all do.
    pub fn new_lines(&self) -> f64 {
        let all = sum(self.strides.values());
        if all == 0 {
            return 1.0;
        }
        let new = |(stride, times): (&i64, &u64)| {
            (stride.unsigned_abs() as f64 / 64.0).min(1.0) * *times as f64
        };
        self.strides.iter().map(new).sum::<f64>() / all as f64
    }

    /// Share of strides that are the most usual one, and that stride.
    pub fn usual_stride(&self) -> Option<(i64, f64)> {
        let all = sum(self.strides.values());
        let (stride, times) = self.strides.iter().max_by_key(|(_, times)| **times)?;
        (all >= 8).then(|| (*stride, *times as f64 / all as f64))
    }

    /// Bytes of the memory that accesses are spread over, if they are spread evenly: of two places
    /// in a row of places, half are closer than 0.29 of its length. None where few pairs are
    /// known. The median leaves out pairs of two arrays.
    pub fn span(&self) -> Option<f64> {
        let pairs = self.pairs();
        let distance = |apart: &Apart| match apart {
            Apart::Line => 16.0,
            Apart::Page => 1024.0,
            // The middle of the doubling.
            Apart::Bits(bits) | Apart::Pages(bits) => 0.72 * f64::from(*bits).exp2(),
        };
        let mut sorted: Vec<(f64, u64)> =
            self.apart.iter().map(|(apart, times)| (distance(apart), *times)).collect();
        sorted.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        // The place of the median within its doubling, as if all distances there were as likely.
        let half = pairs as f64 / 2.0;
        let mut below = 0.0;
        for (distance, times) in sorted {
            let times = times as f64;
            if below + times >= half {
                let part = (half - below) / times.max(1.0);
                let median = distance * (0.7 + 0.7 * part);
                return (pairs >= PAIRS_MIN).then_some(median / 0.29);
            }
            below += times;
        }
        None
    }

    /// Whether pages have one line each that is used.
    pub fn is_line_of_pages(&self) -> bool {
        let of = |apart: &Apart| matches!(apart, Apart::Pages(_) | Apart::Line);
        let same = self.apart.iter().filter(|(apart, _)| of(apart)).map(|(_, times)| times);
        let same = sum(same);
        self.pairs() >= PAIRS_MIN && same as f64 >= 0.9 * self.pairs() as f64
    }
}

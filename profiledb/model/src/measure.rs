//! Measures: the counted quantity, its shape, and the weight of one count.

use std::borrow::Cow;

/// What one observation is of. A closed set: each shape has a type in [`crate::Counts`] and a codec
/// in the profile database.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Shape {
    /// A place in an image: [`crate::Profile`].
    Places,
    /// Two places of an image, in order: [`crate::Edges`].
    Pairs,
    /// A number that was seen at a place of an image: [`crate::Values`].
    Values,
}

impl Shape {
    /// Every shape.
    pub const ALL: [Self; 3] = [Self::Places, Self::Pairs, Self::Values];
}

/// The weight of one count of a measure.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Weight {
    /// One observation. Such counts have no ledger, because the number that should have been
    /// counted is unknown.
    One,
    /// A sample of an event, taken each time the event has occurred this often on a CPU: the
    /// sampling period, in the event's unit (ns, cycles or occurrences). A reader divides the
    /// weight by the share of the time in which the event had a counter. Such counts balance with a
    /// ledger.
    Period(u64),
}

/// A measure: a name, unique in its epoch, with shape and weight.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Measure {
    /// Name: of the event for samples (`cycles`, `cpu-clock`), else of the measure.
    pub name: Cow<'static, str>,
    /// Shape of the observations.
    pub shape: Shape,
    /// Weight of one count.
    pub weight: Weight,
}

/// Branches: how often control went from one place of an image to another, in walks that begin at a
/// snapshot of a thread's registers. A walk counts each time.
pub static EDGES: Measure = Measure::observed("edges", Shape::Pairs);

/// The first edge of each walk. First edges do not depend on how long walks are, which differs with
/// the code that they follow.
pub static FIRST_EDGES: Measure = Measure::observed("first_edges", Shape::Pairs);

/// Loops: rounds that the branch which ends a loop still has to go, as [`crate::BranchRounds`].
pub static ROUNDS: Measure = Measure::observed("rounds", Shape::Values);

/// Outcomes of conditional branches in turn, as [`crate::BranchOutcome`]s.
pub static OUTCOMES: Measure = Measure::observed("outcomes", Shape::Values);

/// Times from one execution of an instruction to the next, as [`crate::ExecutionTime`]s.
pub static TIMES: Measure = Measure::observed("times", Shape::Values);

/// How instructions use memory, as [`crate::Access`]es.
pub static ACCESSES: Measure = Measure::observed("accesses", Shape::Values);

/// Where interpreters were while a function that they ran was the innermost frame of a call stack
/// that has its name: at places of an interpreter's loop, the numbers of [`crate::Language`]s.
/// The frame of that function is the caller of the loop's in the stacks. Counted by stack.
pub static INTERPRETED: Measure = Measure::observed("interpreted", Shape::Values);

/// Name of the event of exact executions of instructions.
pub const EXECUTED: &str = "executed";
/// Name of the event of the cycles of exact executions where nothing waits for memory or guesses
/// wrong.
pub const IDEAL: &str = "ideal";
/// Name of the event of exact calls. Its stacks are a call instruction and what it led to.
pub const CALLS: &str = "calls";

/// Names of the events of exact floating-point exceptions, in the order of IEEE 754's section 7.
pub const EXCEPTIONS: [&str; 5] =
    ["fpe-invalid", "fpe-divide", "fpe-overflow", "fpe-underflow", "fpe-inexact"];

/// Whether each occurrence of the event of that name is counted, instead of some sampled.
pub fn is_exact(event: &str) -> bool {
    matches!(event, EXECUTED | IDEAL) || EXCEPTIONS.contains(&event)
}

/// Exact executions of jumps that were taken, and of indirect calls, by the instruction and its
/// target.
pub static TAKEN: Measure = Measure::observed("taken", Shape::Pairs);

impl Measure {
    /// A measure whose counts are single observations.
    pub const fn observed(name: &'static str, shape: Shape) -> Self {
        Self { name: Cow::Borrowed(name), shape, weight: Weight::One }
    }

    /// Samples of an event at a period in the event's unit, by place.
    pub fn samples(event: &str, period: u64) -> Self {
        Self {
            name: Cow::Owned(event.to_owned()),
            shape: Shape::Places,
            weight: Weight::Period(period),
        }
    }

    /// The sampling period in the event's unit; None where a count is one observation.
    pub const fn period(&self) -> Option<u64> {
        match self.weight {
            Weight::Period(period) => Some(period),
            Weight::One => None,
        }
    }
}

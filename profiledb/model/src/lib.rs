//! The terms of a measurement that sampling, storage and analysis share.
//!
//! A [`Measure`] has a name, a [`Shape`] (what one observation is of: a place, a pair of places, a
//! value at a place) and a [`Weight`] (what one count stands for). Its [`Counts`] have one law: two
//! are combined by adding the counts of each key, saturating at `u64::MAX`, so the order in which
//! merges, folds and copies combine them does not matter. Samples have a [`Ledger`], in samples:
//! taken = merged + unresolved + lost, with unresolved and lost split by reason. [`Stacks`] are a
//! tree of frames across images, with the same law.
//!
//! A new measure of a known shape is one constant here and the code that takes it. A new shape is a
//! module of `counts/` and a codec in `profiledb/src/shapes/`.
#![forbid(unsafe_code)]

mod attributes;
mod counts;
mod facts;
mod language;
mod ledger;
mod measure;
mod measured;
mod reasons;
mod stacks;

pub use attributes::{Attributes, KeptAttributes};
pub use counts::{
    Access, Apart, BranchOutcome, BranchRounds, Counted, Counts, Crossed, Edges, ExecutionTime,
    Observation, Profile, Table, Told, Values,
};
pub use facts::{
    ClockStep, ClockSteps, Cpuid, Endings, Fact, Facts, IdealMachine, Killed, MeasuredSkid,
    MergedFrom, OpensOn, Restraint, Restraints, SampledRuns,
};
pub use language::{Language, SourcePlace};
pub use ledger::{Ledger, Ledgers, Totals};
pub use measure::{
    ACCESSES, CALLS, EDGES, EXCEPTIONS, EXECUTED, FIRST_EDGES, IDEAL, INTERPRETED, Measure,
    OUTCOMES, ROUNDS, Shape, TAKEN, TIMES, Weight, is_exact,
};
pub use measured::{MeasuredCache, MeasuredClock, MeasuredMachine, MeasuredTlb, Spread};
pub use reasons::{Cut, Loss, Unresolved, Wait, meaning};
pub use stacks::{Frame, Node, OFF_CPU, RUNNABLE, Stacks, Thread, Value};

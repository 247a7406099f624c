//! Samples and call stacks of generated code that had no name when they were drained. They count as
//! not taken yet until the process tells the name, ends, or somebody wants everything on disk.

use abi::{EVENTS_MAX, Entry};
use address_spaces::mappings::{Mapping, Window};
use address_spaces::scopes::Tags;
use inspect::open_mapped::MappedAt;
use model::Unresolved;
use sampling::call_stacks::WalkedStack;

/// Places whose samples wait, and call stacks that wait, of all processes. Further ones have no
/// name.
pub(crate) const PLACES_MAX: usize = 65_536;
const STACKS_MAX: usize = 8192;

/// What waits.
#[derive(Default)]
pub struct LateSamples {
    pub(crate) places: Vec<Place>,
    /// Samples that the count of each event implies and that wait, too.
    pub(crate) implied: [u64; EVENTS_MAX],
    pub(crate) stacks: Vec<(WalkedStack, Window)>,
    /// Frames of the stack that is being resolved wait.
    pub(crate) has_late_frame: bool,
    /// Nothing waits any more: all that is unknown stays so.
    pub(crate) is_final: bool,
    /// End of the last drain, CLOCK_MONOTONIC ns.
    pub(crate) now_ns: u64,
}

/// Samples of one event at one place.
pub(crate) struct Place {
    pub(crate) entry: Entry,
    pub(crate) at: MappedAt,
    pub(crate) generation: u16,
    pub(crate) mapping: Mapping,
    pub(crate) tags: Tags,
    pub(crate) reason: Unresolved,
}

impl LateSamples {
    /// Whether another stack may wait.
    pub(crate) fn takes_stacks(&self) -> bool {
        !self.is_final && self.stacks.len() < STACKS_MAX
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty() && self.stacks.is_empty()
    }
}

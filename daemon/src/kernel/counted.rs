//! What an event counted.

/// What one event did on one CPU since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counted {
    /// Samples that its count and period imply.
    pub implied: u64,
    /// Time in which it should have counted, ns: while it was enabled or, where events take turns,
    /// any of its group was.
    pub enabled_ns: u64,
    /// Time in which it had a counter, ns.
    pub running_ns: u64,
}

impl Counted {
    /// Adds what the event did elsewhere, or later.
    pub fn add(&mut self, other: Self) {
        self.implied += other.implied;
        self.enabled_ns += other.enabled_ns;
        self.running_ns += other.running_ns;
    }
}

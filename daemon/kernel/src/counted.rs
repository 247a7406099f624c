//! The counts of an event that do not come from samples.

/// Counts of one event on one CPU since the last reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counted {
    /// Samples that the event's count and period imply.
    pub implied: u64,
    /// Time in which the event should have counted, in ns: while it was enabled or, where events
    /// take turns, while any event of its group was.
    pub enabled_ns: u64,
    /// Time in which the event had a counter, in ns.
    pub running_ns: u64,
}

impl Counted {
    /// Adds the counts of another CPU or of a later time.
    pub fn add(&mut self, other: Self) {
        self.implied += other.implied;
        self.enabled_ns += other.enabled_ns;
        self.running_ns += other.running_ns;
    }
}

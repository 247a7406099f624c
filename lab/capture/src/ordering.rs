//! Merges the records of all CPUs in the order of time.

use crate::records::Record;

/// Longest time in ns from a record's time stamp until it is in its ring: the kernel takes the time
/// first and then writes the record, with preemption off.
const LATE_NS: u64 = 1_000_000;

/// Records that were read, but may follow records that are not yet in a ring.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    records: Vec<Record>,
}

impl Waiting {
    /// The list to which new records are appended.
    pub(crate) fn inbox(&mut self) -> &mut Vec<Record> {
        &mut self.records
    }

    /// Removes and returns, in order, the records that no later one can precede. `read_ns` is a
    /// time before the last reading of the rings began; None after the last reading.
    pub(crate) fn take(&mut self, read_ns: Option<u64>) -> Vec<Record> {
        // Stable: records of one CPU and one time keep their order.
        self.records.sort_by_key(|record| record.time_ns);
        let Some(read_ns) = read_ns else { return std::mem::take(&mut self.records) };
        let safe = read_ns.saturating_sub(LATE_NS);
        let count = self.records.partition_point(|record| record.time_ns < safe);
        let later = self.records.split_off(count);
        std::mem::replace(&mut self.records, later)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::RecordKind;

    #[test]
    fn what_may_still_be_preceded_waits() {
        let record = |time_ns: u64, cpu: u32| Record {
            time_ns,
            pid: 1,
            tid: 1,
            cpu,
            kind: RecordKind::SwitchIn,
        };
        let mut waiting = Waiting::default();
        waiting.inbox().extend([record(5, 0), record(9, 0), record(3_000_000, 0), record(7, 1)]);
        let times = |records: Vec<Record>| {
            records.iter().map(|record| record.time_ns).collect::<Vec<u64>>()
        };
        assert_eq!(times(waiting.take(Some(LATE_NS + 9))), [5, 7]);
        waiting.inbox().push(record(2_000_000, 1));
        assert_eq!(times(waiting.take(Some(LATE_NS + 2_500_000))), [9, 2_000_000]);
        assert_eq!(times(waiting.take(None)), [3_000_000]);
        assert!(waiting.take(None).is_empty());
    }
}

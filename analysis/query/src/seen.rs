//! When images had samples, which tells the older of two builds.

use profiledb::{ImageRecord, Stretch};

/// When an image had samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    /// When its first samples were written, in seconds since 1970 UTC: the end of their slice.
    pub first_unix_s: u64,
    /// When its last samples were written.
    pub last_unix_s: u64,
    /// From the begin of the slice of its first samples to the end of that of its last ones: a
    /// report of this time leaves out none of its samples.
    pub stretch: Stretch,
}

impl Seen {
    /// By the image's record, among these slices, sorted by their ends.
    pub fn of(record: &ImageRecord, slices: &[Stretch]) -> Self {
        let (first_unix_s, last_unix_s) = (record.first_seen_unix_s, record.last_seen_unix_s);
        let slice = |written_unix_s: u64| {
            let at = slices.partition_point(|slice| slice.until_unix_s < written_unix_s);
            slices.get(at).filter(|slice| slice.since_unix_s < written_unix_s)
        };
        let since_unix_s = slice(first_unix_s).map_or(first_unix_s, |slice| slice.since_unix_s);
        let until_unix_s = slice(last_unix_s).map_or(last_unix_s, |slice| slice.until_unix_s);
        Self { first_unix_s, last_unix_s, stretch: Stretch { since_unix_s, until_unix_s } }
    }

    /// Whether its samples were all written before those of the other: one slice may have the last
    /// of the one and the first of the other.
    pub fn is_before(&self, other: &Self) -> bool {
        self.last_unix_s <= other.first_unix_s && self.last_unix_s < other.last_unix_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::{ImageId, ImageKind};

    /// Builds changed at 27 s; the slice from 20 to 30 s has the samples of both.
    #[test]
    fn the_slice_in_which_builds_change_is_of_both() {
        let slices = [(0, 10), (10, 20), (20, 30), (30, 40)];
        let slices =
            slices.map(|(since_unix_s, until_unix_s)| Stretch { since_unix_s, until_unix_s });
        let seen = |first_seen_unix_s, last_seen_unix_s| {
            let record = ImageRecord {
                id: ImageId::unresolved("", "x"),
                kind: ImageKind::File,
                name: "orders".to_owned(),
                path: "/opt/orders".to_owned(),
                size_bytes: None,
                first_seen_unix_s,
                last_seen_unix_s,
            };
            Seen::of(&record, &slices)
        };
        let (old, new) = (seen(10, 30), seen(30, 40));
        assert!(old.is_before(&new) && !new.is_before(&old));
        let [old, new] =
            [old, new].map(|seen| (seen.stretch.since_unix_s, seen.stretch.until_unix_s));
        assert_eq!((old, new), ((0, 30), (20, 40)));
        assert!(!seen(10, 40).is_before(&seen(30, 40)));
        assert_eq!(seen(90, 95).stretch, Stretch { since_unix_s: 90, until_unix_s: 95 });
    }
}

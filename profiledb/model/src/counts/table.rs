//! Counts by key, as a sorted table: what all shapes have in common.

/// Counts by key, in ascending order of the keys.
///
/// Invariant: no key has a count of zero. Counts saturate at `u64::MAX`, so that
/// [`Table::merge`] is commutative and associative for all values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table<K> {
    /// Strictly ascending by key.
    pub(super) counts: Vec<(K, u64)>,
}

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K> Table<K> {
    /// No counts.
    pub const fn new() -> Self {
        Self { counts: Vec::new() }
    }

    /// The sum of all counts.
    pub fn total(&self) -> u64 {
        self.counts.iter().fold(0, |sum: u64, (_, count)| sum.saturating_add(*count))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// True when there are no counts.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }
}

impl<K: Ord + Copy> Table<K> {
    /// The table of these counts. A key may come more than once: its counts are added.
    pub fn from_counts(counts: impl IntoIterator<Item = (K, u64)>) -> Self {
        let mut counts: Vec<(K, u64)> =
            counts.into_iter().filter(|(_, count)| *count > 0).collect();
        counts.sort_unstable_by_key(|(key, _)| *key);
        counts.dedup_by(|later, kept| {
            let same = later.0 == kept.0;
            if same {
                kept.1 = kept.1.saturating_add(later.1);
            }
            same
        });
        Self { counts }
    }

    /// The table of entries that are in strictly ascending order of the keys and have no count of
    /// zero. None when the entries are not so.
    pub fn from_sorted(counts: Vec<(K, u64)>) -> Option<Self> {
        let ascends = counts.is_sorted_by(|(before, _), (key, _)| before < key);
        (ascends && counts.iter().all(|(_, count)| *count > 0)).then_some(Self { counts })
    }

    /// The entries in ascending order of the keys.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (K, u64)> + '_ {
        self.counts.iter().copied()
    }

    /// The count of a key; 0 for a key that is not in the table.
    pub fn get(&self, key: K) -> u64 {
        let found = self.counts.binary_search_by_key(&key, |(known, _)| *known);
        found.ok().and_then(|at| self.counts.get(at)).map_or(0, |(_, count)| *count)
    }

    /// The counts without those of `other`; a count is 0 at least.
    pub fn without(&self, other: &Self) -> Self {
        let left = |(key, count): (K, u64)| (key, count.saturating_sub(other.get(key)));
        let counts = self.iter().map(left).filter(|(_, count)| *count > 0).collect();
        Self { counts }
    }

    /// Adds all counts of `other`: one pass over both.
    pub fn merge(&mut self, other: &Self) {
        let follows = match (self.counts.last(), other.counts.first()) {
            (Some((last, _)), Some((first, _))) => last < first,
            _ => true,
        };
        if follows {
            self.counts.extend_from_slice(&other.counts);
            return;
        }
        let mine = std::mem::take(&mut self.counts);
        let mut sum = Vec::with_capacity(mine.len() + other.counts.len());
        let mut rest = other.counts.as_slice();
        for (key, count) in mine {
            while let Some(((next, more), after)) = rest.split_first()
                && *next < key
            {
                sum.push((*next, *more));
                rest = after;
            }
            match rest.split_first() {
                Some(((next, more), after)) if *next == key => {
                    sum.push((key, count.saturating_add(*more)));
                    rest = after;
                }
                _ => sum.push((key, count)),
            }
        }
        sum.extend_from_slice(rest);
        self.counts = sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_away_is_at_most_what_is_there() {
        let table = |counts: &[(u64, u64)]| Table::from_counts(counts.iter().copied());
        let left =
            table(&[(1, 5), (2, 7), (3, 1)]).without(&table(&[(1, 5), (2, 3), (3, 9), (4, 1)]));
        assert_eq!(left, table(&[(2, 4)]));
    }

    #[test]
    fn tables_are_joined_wherever_they_meet() {
        for (a, b, sum) in [
            (&[][..], &[(1, 1)][..], &[(1, 1)][..]),
            (&[(1, 1)], &[], &[(1, 1)]),
            (&[(1, 1)], &[(2, 2)], &[(1, 1), (2, 2)]),
            (&[(2, 2)], &[(1, 1)], &[(1, 1), (2, 2)]),
            (
                &[(1, 1), (5, 5)],
                &[(0, 9), (1, 2), (3, 3), (5, 1), (7, 7)],
                &[(0, 9), (1, 3), (3, 3), (5, 6), (7, 7)],
            ),
        ] {
            let mut table = Table::from_counts(a.iter().copied());
            table.merge(&Table::from_counts(b.iter().copied()));
            assert_eq!(table.counts, sum);
        }
    }

    #[test]
    fn what_is_not_in_order_is_no_table() {
        for (counts, fine) in [
            (vec![], true),
            (vec![(1, 1), (2, 7)], true),
            (vec![(1, 1), (1, 7)], false),
            (vec![(2, 1), (1, 7)], false),
            (vec![(1, 1), (2, 0)], false),
        ] {
            assert_eq!(Table::from_sorted(counts.clone()).is_some(), fine, "{counts:?}");
        }
    }
}

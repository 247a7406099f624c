//! Finds the symbols that decide which procedure holds each of a few places. Most symbols of an
//! image are far from all samples, so they need neither be sorted nor named.

/// Limit on pairs of a symbol and a place that it holds. Beyond it, as in a table in which each
/// symbol holds each place, all symbols are sorted instead.
const WORK_MAX: usize = 16 << 20;

/// State of the search for some addresses, to which symbols are added in any order.
pub(crate) struct Near<'a> {
    /// Addresses in order, each once.
    addresses: &'a [u64],
    /// Neighbours of each address.
    around: Vec<Around>,
    work_left: usize,
}

/// Begins of the symbols around an address, so far.
#[derive(Clone, Copy)]
struct Around {
    /// Among the sized symbols that contain the address, the one that starts last.
    holder: Option<u64>,
    /// The farthest end of the sized symbols that start at or before the address, and the start of
    /// that symbol.
    reached: Option<(u64, u64)>,
    /// The last symbol without a size that begins at it or before.
    unsized_before: Option<u64>,
    /// The first symbols after the address, with and without a size.
    next: [u64; 2],
}

/// Ranges of addresses in which the deciding symbols begin.
pub(crate) struct Deciding(Vec<(u64, u64)>);

impl<'a> Near<'a> {
    /// An empty search. `addresses` are sorted, each there once.
    pub(crate) fn new(addresses: &'a [u64]) -> Self {
        let around =
            Around { holder: None, reached: None, unsized_before: None, next: [u64::MAX; 2] };
        Self { addresses, around: vec![around; addresses.len()], work_left: WORK_MAX }
    }

    /// Adds a symbol of `start..end`; `start == end` when its size is not known.
    pub(crate) fn add(&mut self, start: u64, end: u64) {
        // A result here holds for all later places too; `deciding` carries it on.
        let behind = self.addresses.partition_point(|address| *address < start);
        let is_unsized = usize::from(end <= start);
        if let Some(before) = behind.checked_sub(1).and_then(|before| self.around.get_mut(before))
            && let Some(next) = before.next.get_mut(is_unsized)
        {
            *next = start.min(*next);
        }
        let Some(around) = self.around.get_mut(behind..) else { return };
        let Some(first) = around.first_mut() else { return };
        if end <= start {
            first.unsized_before = first.unsized_before.max(Some(start));
            return;
        }
        first.reached = first.reached.max(Some((end, start)));
        for (around, _) in around
            .iter_mut()
            .zip(self.addresses.iter().skip(behind))
            .take_while(|(_, at)| **at < end)
        {
            around.holder = around.holder.max(Some(start));
            self.work_left = self.work_left.saturating_sub(1);
            if self.work_left == 0 {
                return;
            }
        }
    }

    /// The begins of the symbols that decide, once all symbols were added; None when that took too
    /// much work.
    pub(crate) fn deciding(mut self) -> Option<Deciding> {
        if self.work_left == 0 {
            return None;
        }
        let mut next = [u64::MAX; 2];
        for around in self.around.iter_mut().rev() {
            next.iter_mut().zip(&around.next).for_each(|(next, own)| *next = (*own).min(*next));
            around.next = next;
        }
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        let (mut reached, mut unsized_before) = (None, None);
        // Most addresses are in the symbol that holds the one before, so they have the same
        // neighbours.
        let (mut held, mut bounded): (Option<(u64, usize)>, _) = (None, [u64::MAX; 2]);
        for (around, &address) in self.around.iter().zip(self.addresses) {
            reached = reached.max(around.reached);
            unsized_before = unsized_before.max(around.unsized_before);
            match around.holder {
                // A symbol that begins inside before the address may have taken its start.
                Some(start) => match held
                    .and_then(|(holder, at)| ranges.get_mut(at).filter(|_| holder == start))
                {
                    Some(range) => range.1 = address,
                    None => {
                        held = Some((start, ranges.len()));
                        ranges.push((start, address));
                    }
                },
                // A symbol without a size may hold the address, unless a symbol with a size is
                // between. If no symbol holds it, the symbol that reached nearest to it bounds the
                // range that is named otherwise.
                None => {
                    let starts =
                        [unsized_before, reached.map(|(_, start)| start)].into_iter().flatten();
                    ranges.extend(starts.map(|start| (start, start)));
                }
            }
            if around.next != bounded {
                ranges.extend(around.next.map(|start| (start, start)));
                bounded = around.next;
            }
        }
        ranges.sort_unstable();
        let mut disjoint: Vec<(u64, u64)> = Vec::new();
        for (first, last) in ranges {
            match disjoint.last_mut() {
                Some(before) if first <= before.1 => before.1 = before.1.max(last),
                _ => disjoint.push((first, last)),
            }
        }
        Some(Deciding(disjoint))
    }
}

impl Deciding {
    /// Whether a symbol with this start is one of those that decide.
    pub(crate) fn has(&self, start: u64) -> bool {
        let behind = self.0.partition_point(|(first, _)| *first <= start);
        behind.checked_sub(1).and_then(|at| self.0.get(at)).is_some_and(|(_, last)| start <= *last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cover::{Piece, Span, fill, flatten};
    use proptest::prelude::*;

    fn piece_at(pieces: &[Piece<u64>], at: u64) -> Option<Piece<u64>> {
        pieces.iter().find(|piece| (piece.start..piece.end).contains(&at)).copied()
    }

    /// Pieces of spans (start, size), as the procedures of an image are put together; ranges of a
    /// section and of the unwind table are there too.
    fn pieces(spans: &[(u64, u64)], more: &[Piece<u64>]) -> Vec<Piece<u64>> {
        let span = |&(start, size): &(u64, u64)| Span {
            start,
            end: start + size,
            limit: 90 - start % 3,
            label: start,
        };
        let mut spans: Vec<Span<u64>> = spans.iter().map(span).collect();
        spans.sort_by_key(|span| (span.start, span.end));
        let mut pieces = flatten(&spans);
        more.iter().for_each(|more| {
            fill(&mut pieces, &[*more]);
        });
        pieces
    }

    proptest! {
        /// The pieces that hold the addresses are the same when all other symbols are left out.
        #[test]
        fn what_decides_is_enough(
            spans in prop::collection::vec(
                (0..88_u64, prop_oneof![Just(0_u64), 0..4_u64, 0..40_u64]),
                0..30
            ),
            addresses in prop::collection::btree_set(0..100_u64, 1..6),
            section in (0..90_u64, 1..30_u64),
            unwound in (0..90_u64, 1..30_u64),
        ) {
            let addresses: Vec<u64> = addresses.into_iter().collect();
            let mut near = Near::new(&addresses);
            spans.iter().for_each(|(start, size)| near.add(*start, start + size));
            let deciding = near.deciding().unwrap();
            let has = |(start, _): &&(u64, u64)| deciding.has(*start);
            let some: Vec<(u64, u64)> = spans.iter().filter(has).copied().collect();
            let more = [(section, 1000), (unwound, 2000)]
                .map(|((start, size), label)| Piece { start, end: start + size, label });
            let (all, some) = (pieces(&spans, &more), pieces(&some, &more));
            for at in addresses {
                prop_assert_eq!(piece_at(&all, at), piece_at(&some, at), "{}", at);
            }
        }
    }

    #[test]
    fn what_is_far_away_decides_nothing() {
        let mut near = Near::new(&[105, 107, 500]);
        (0..100).for_each(|symbol| near.add(symbol * 10, symbol * 10 + 8));
        let deciding = near.deciding().unwrap();
        let some: Vec<u64> =
            (0..100).map(|symbol| symbol * 10).filter(|start| deciding.has(*start)).collect();
        assert_eq!(some, [100, 110, 500, 510]);
    }

    #[test]
    fn too_much_work_is_not_done() {
        let addresses: Vec<u64> = (0..5000).collect();
        let mut near = Near::new(&addresses);
        (0..5000).for_each(|_| near.add(0, 5000));
        assert!(near.deciding().is_none());
    }
}

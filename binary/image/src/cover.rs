//! Makes disjoint ranges of named ranges that overlap.

/// A named range of addresses that may overlap others.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Span<L> {
    pub(crate) start: u64,
    /// The address after its last byte; equal to `start` when the size is not known.
    pub(crate) end: u64,
    /// The address that it ends before in any case when its size is not known: the end of its
    /// section.
    pub(crate) limit: u64,
    pub(crate) label: L,
}

/// A range of addresses that overlaps no other: `start < end`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Piece<L> {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) label: L,
}

/// Makes spans disjoint. Spans come sorted by start. Of several with one start the one whose label
/// is used comes first; it gets the longest of their sizes, since they name the same code.
///
/// A span with a size takes its range from the spans that start before it. A span without a size
/// takes the range up to the next span that no sized span has. Linear in the number of spans.
pub(crate) fn flatten<L: Copy>(spans: &[Span<L>]) -> Vec<Piece<L>> {
    let mut sized = Vec::new();
    let mut unsized_spans = Vec::new();
    for group in spans.chunk_by(|a, b| a.start == b.start) {
        let Some(first) = group.first() else { continue };
        let longest = group.iter().map(|span| span.end).max();
        let end = longest.unwrap_or(first.end);
        if end > first.start {
            sized.push(Piece { start: first.start, end, label: first.label });
        } else {
            unsized_spans.push(*first);
        }
    }
    let mut pieces = flatten_sized(&sized);
    let more = stretch(&unsized_spans, &pieces);
    fill(&mut pieces, &more);
    pieces
}

/// Makes overlapping pieces, sorted by distinct starts, disjoint: the piece that starts last wins.
fn flatten_sized<L: Copy>(spans: &[Piece<L>]) -> Vec<Piece<L>> {
    let mut out: Vec<Piece<L>> = Vec::with_capacity(spans.len());
    // Pieces that began before the current address, the last to begin on top. Each is pushed and
    // popped once.
    let mut open: Vec<Piece<L>> = Vec::new();
    let mut at = 0;
    let mut until = |open: &mut Vec<Piece<L>>, stop: u64| {
        while let Some(top) = open.last() {
            let (start, end) = (at.max(top.start), top.end.min(stop));
            if start < end {
                out.push(Piece { start, end, label: top.label });
                at = end;
            }
            if top.end > stop {
                break;
            }
            open.pop();
        }
        at = at.max(stop);
    };
    for span in spans {
        until(&mut open, span.start);
        open.push(*span);
    }
    until(&mut open, u64::MAX);
    out
}

/// Spans without size, each reaching to the next span, the next of `pieces` or its limit. Spans
/// that start inside one of `pieces` are left out.
fn stretch<L: Copy>(spans: &[Span<L>], pieces: &[Piece<L>]) -> Vec<Piece<L>> {
    let mut out: Vec<Piece<L>> = Vec::new();
    let mut pieces = pieces.iter().peekable();
    let mut spans = spans.iter().peekable();
    while let Some(span) = spans.next() {
        while pieces.next_if(|piece| piece.end <= span.start).is_some() {}
        let next_piece = pieces.peek().map_or(u64::MAX, |piece| piece.start);
        let next_span = spans.peek().map_or(u64::MAX, |span| span.start);
        let end = span.limit.min(next_piece).min(next_span);
        if span.start < end {
            out.push(Piece { start: span.start, end, label: span.label });
        }
    }
    out
}

/// Adds the parts of disjoint sorted `more` that disjoint sorted `pieces` do not cover. Returns the
/// number of parts added. Linear.
pub(crate) fn fill<L: Copy>(pieces: &mut Vec<Piece<L>>, more: &[Piece<L>]) -> usize {
    let before = pieces.len();
    let mut out = Vec::with_capacity(before + more.len());
    let mut kept = pieces.iter().copied().peekable();
    let mut at = 0;
    for piece in more {
        // A kept piece before this one may reach into it.
        at = piece.start.max(at);
        while let Some(next) = kept.next_if(|next| next.start < piece.end) {
            if at < next.start {
                out.push(Piece { start: at, end: next.start, label: piece.label });
            }
            at = at.max(next.end);
            out.push(next);
        }
        if at < piece.end {
            out.push(Piece { start: at, end: piece.end, label: piece.label });
        }
    }
    out.extend(kept);
    *pieces = out;
    pieces.len() - before
}

/// Whether one of disjoint sorted `pieces` has the address. Takes time logarithmic in their number.
pub(crate) fn has<L>(pieces: &[Piece<L>], address: u64) -> bool {
    let behind = pieces.partition_point(|piece| piece.start <= address);
    behind.checked_sub(1).and_then(|at| pieces.get(at)).is_some_and(|piece| address < piece.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span(start: u64, end: u64, label: char) -> Span<char> {
        Span { start, end, limit: 1000, label }
    }

    fn shown(pieces: &[Piece<char>]) -> String {
        pieces
            .iter()
            .map(|piece| format!("{}-{}{} ", piece.start, piece.end, piece.label))
            .collect()
    }

    #[test]
    fn sized_spans() {
        for (spans, expected) in [
            (vec![], ""),
            (vec![span(0, 10, 'a'), span(20, 30, 'b')], "0-10a 20-30b "),
            // Nested: the inner one wins, the rest of the outer one follows.
            (vec![span(0, 30, 'a'), span(10, 20, 'b')], "0-10a 10-20b 20-30a "),
            // Crossing.
            (vec![span(0, 20, 'a'), span(10, 30, 'b')], "0-10a 10-30b "),
            // Three deep, two ending together.
            (
                vec![span(0, 40, 'a'), span(10, 30, 'b'), span(20, 30, 'c')],
                "0-10a 10-20b 20-30c 30-40a ",
            ),
            // Aliases: the first names them, the longest sizes them.
            (vec![span(0, 5, 'a'), span(0, 9, 'b'), span(0, 0, 'c')], "0-9a "),
            (vec![span(0, 0, 'a'), span(0, 9, 'b')], "0-9a "),
            (vec![span(5, u64::MAX, 'a')], "5-18446744073709551615a "),
        ] {
            assert_eq!(shown(&flatten(&spans)), expected);
        }
    }

    #[test]
    fn spans_without_size_reach_to_the_next_one_or_their_limit() {
        let spans = [
            span(0, 0, 'a'),
            span(10, 20, 'b'),
            span(15, 15, 'x'), // a label inside b
            span(20, 20, 'c'),
            span(30, 30, 'd'),
        ];
        assert_eq!(shown(&flatten(&spans)), "0-10a 10-20b 20-30c 30-1000d ");
    }

    #[test]
    fn fill_adds_only_what_is_uncovered() {
        let piece = |start, end, label| Piece { start, end, label };
        let mut pieces = vec![piece(10, 20, 'a'), piece(30, 40, 'b')];
        let more = [piece(0, 12, 'x'), piece(15, 18, 'y'), piece(19, 50, 'z'), piece(60, 70, 'w')];
        assert_eq!(fill(&mut pieces, &more), 4);
        assert_eq!(shown(&pieces), "0-10x 10-20a 20-30z 30-40b 40-50z 60-70w ");
    }

    proptest! {
        /// Against the definition, address by address.
        #[test]
        fn flatten_gives_each_address_to_the_last_to_begin(
            ranges in prop::collection::vec((0..60_u64, 0..20_u64), 0..30)
        ) {
            let mut spans: Vec<Span<usize>> = ranges
                .iter()
                .enumerate()
                .map(|(label, &(start, size))| Span { start, end: start + size, limit: 100, label })
                .collect();
            spans.sort_by_key(|span| span.start);
            let pieces = flatten(&spans);
            prop_assert!(pieces.iter().all(|piece| piece.start < piece.end));
            prop_assert!(pieces.is_sorted_by(|a, b| a.end <= b.start));
            for at in 0..100 {
                let found = pieces.iter().find(|p| (p.start..p.end).contains(&at));
                let from = |start| spans.iter().filter(move |s| s.start == start);
                let longest = |start| from(start).map(|s| s.end).max();
                let covering = spans
                    .iter()
                    .filter(|s| s.start <= at && longest(s.start) > Some(at))
                    .map(|s| s.start)
                    .max();
                match covering {
                    Some(start) => {
                        let label = spans.iter().find(|s| s.start == start).unwrap().label;
                        prop_assert_eq!(found.map(|p| p.label), Some(label));
                    }
                    // Only a span without size may reach here.
                    None => if let Some(found) = found {
                        let span = spans.iter().find(|s| s.label == found.label).unwrap();
                        prop_assert_eq!(span.start, span.end);
                        prop_assert_eq!(span.start, found.start);
                    },
                }
            }
        }
    }
}

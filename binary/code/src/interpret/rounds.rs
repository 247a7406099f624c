//! How many more rounds a loop makes, where its test compares values that change by the same amount
//! in each round.

use super::{BranchKind, Edge, STEPS_MAX, mask};

/// Largest number of rounds that is reported. 2^44 rounds take hours, so a larger result comes from
/// a comparison that is no loop's test.
const ROUNDS_MAX: u128 = 1 << 44;

/// The comparison of `left` with `right` that decided a conditional branch.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// The value in the lowest `bytes` bytes; the others are 0.
    pub left: u64,
    /// The value that `left` is compared with, in the same form.
    pub right: u64,
    /// Bytes that are compared, 1 to 8.
    pub bytes: u8,
    /// The relation whose truth, or whose negation, the branch depends on.
    pub relation: Relation,
}

/// A relation of `left` to `right`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Relation {
    /// Both are equal.
    Equal,
    /// `left` is less, as unsigned numbers.
    Below,
    /// `left` is less or equal, as unsigned numbers.
    BelowOrEqual,
    /// `left` is less, as signed numbers.
    Less,
    /// `left` is less or equal, as signed numbers.
    LessOrEqual,
}

/// The number of times in a row that a branch goes the same way.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Rounds {
    /// The branch, and where it goes these times.
    pub edge: Edge,
    /// Number of times, the first one included; then the branch goes the other way, if the loop is
    /// not left before.
    pub rounds: u64,
}

/// The conditional branches of a walk, each with its comparison and the number of instructions
/// before it, and the number of branches before the walk came back to where it began.
#[derive(Debug, Default)]
pub(super) struct Visits {
    pub(super) decided: Vec<(Option<Comparison>, usize)>,
    pub(super) returned: Option<usize>,
}

impl Visits {
    pub(super) fn clear(&mut self) {
        self.decided.clear();
        self.returned = None;
    }

    /// The rounds of each conditional branch between the start of the walk and its return there,
    /// where they are known. A sample in a loop is in any of its rounds, so these are the rounds
    /// that are left.
    pub(super) fn rounds<'a>(&'a self, edges: &'a [Edge]) -> impl Iterator<Item = Rounds> + 'a {
        let until = self.returned.unwrap_or(0);
        let firsts = edges.iter().enumerate().take(until);
        let firsts = firsts
            .filter(|(_, edge)| matches!(edge.kind, BranchKind::Taken | BranchKind::NotTaken));
        firsts.filter_map(move |(number, first)| {
            let again = edges.iter().take(until).filter(|edge| edge.from == first.from).count() > 1;
            let rounds = if again { None } else { self.rounds_of(edges, number) };
            Some(Rounds { edge: *first, rounds: rounds? })
        })
    }

    fn rounds_of(&self, edges: &[Edge], number: usize) -> Option<u64> {
        let first = edges.get(number)?;
        let visits = edges
            .iter()
            .zip(&self.decided)
            .skip(number)
            .filter(|(edge, _)| edge.from == first.from);
        let mut last: [Option<Comparison>; 3] = [None; 3];
        let mut rounds = 0;
        let mut begun = None;
        for (edge, (decided, steps)) in visits {
            // A small number of rounds is reported only where a large one could be: where the walk
            // has room for three visits. Otherwise reported rounds would be biased towards small
            // numbers.
            let apart = begun.map_or(0, |begun| steps - begun);
            if edge.to != first.to {
                return (decided.is_some() && steps + apart < STEPS_MAX || rounds > 2)
                    .then_some(rounds);
            }
            rounds += 1;
            begun = begun.or(Some(*steps));
            last = [last[1], last[2], *decided];
        }
        let [Some(first), Some(second), Some(third)] = last else { return None };
        Some(rounds + more([first, second, third])?)
    }
}

/// The number of further times that a comparison comes out as it did three times, if both sides go
/// on changing by the same amount.
fn more(visits: [Comparison; 3]) -> Option<u64> {
    let [first, second, third] = visits;
    let bytes = third.bytes;
    if visits.iter().any(|visit| (visit.bytes, visit.relation) != (bytes, third.relation)) {
        return None;
    }
    let minus = |a: u64, b: u64| a.wrapping_sub(b) & mask(bytes);
    let steps = |a: Comparison, b: Comparison| (minus(b.left, a.left), minus(b.right, a.right));
    if steps(first, second) != steps(second, third) {
        return None;
    }
    let (left, right) = steps(second, third);
    let signed = |value: u64| {
        i128::from(
            ((value << (64 - 8 * u32::from(bytes))).cast_signed()) >> (64 - 8 * u32::from(bytes)),
        )
    };
    let changes = match third.relation {
        Relation::Equal => {
            let step = signed(minus(left, right));
            // As signed numbers, such as a negative index that goes up to 0, or as unsigned ones. A
            // relation that is reached only after the numbers wrap around is mostly not reached at
            // all: such numbers are remainders.
            let signed_way = signed(third.right) - signed(third.left);
            let way = i128::from(third.right) - i128::from(third.left);
            let way = if step == 0 {
                0
            } else if (way > 0) == (step > 0) {
                way
            } else {
                signed_way
            };
            let ahead = way != 0 && (way > 0) == (step > 0) && way % step == 0;
            ahead.then(|| (way / step).unsigned_abs())
        }
        relation => {
            let has_sign = matches!(relation, Relation::Less | Relation::LessOrEqual);
            let number = |value: u64| if has_sign { signed(value) } else { i128::from(value) };
            let at = |rounds: i128| {
                (
                    number(third.left) + rounds * signed(left),
                    number(third.right) + rounds * signed(right),
                )
            };
            let apart = number(third.left) - number(third.right);
            let step = signed(left) - signed(right);
            let or_equal = matches!(relation, Relation::BelowOrEqual | Relation::LessOrEqual);
            // In whole numbers, the relation ends where both sides are at least `edge` apart.
            let edge = i128::from(or_equal);
            let rounds = if apart < edge && step > 0 {
                (edge - apart + step - 1) / step
            } else if apart >= edge && step < 0 {
                (apart - edge) / -step + 1
            } else {
                return None;
            };
            let (low, high) = if has_sign {
                (signed(1 << (8 * bytes - 1)), signed(mask(bytes) >> 1))
            } else {
                (0, i128::from(mask(bytes)))
            };
            let (left, right) = at(rounds);
            let fits = |value: i128| (low..=high).contains(&value);
            (fits(left) && fits(right)).then_some(rounds.unsigned_abs())
        }
    };
    // The visit that comes out otherwise is not counted.
    changes
        .filter(|changes| *changes <= ROUNDS_MAX)
        .and_then(|changes| u64::try_from(changes - 1).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The results of `more` and of counting rounds one by one.
    fn both(
        bytes: u8,
        relation: Relation,
        left: (u64, u64),
        right: (u64, u64),
    ) -> (Option<u64>, Option<u64>) {
        let visit = |round: u64| Comparison {
            left: left.0.wrapping_add(left.1.wrapping_mul(round)) & mask(bytes),
            right: right.0.wrapping_add(right.1.wrapping_mul(round)) & mask(bytes),
            bytes,
            relation,
        };
        let holds = |round: u64| {
            let Comparison { left, right, .. } = visit(round);
            let up = 64 - 8 * u32::from(bytes);
            let signed = |value: u64| (value << up).cast_signed();
            match relation {
                Relation::Equal => left == right,
                Relation::Below => left < right,
                Relation::BelowOrEqual => left <= right,
                Relation::Less => signed(left) < signed(right),
                Relation::LessOrEqual => signed(left) <= signed(right),
            }
        };
        let counted = (1..3000)
            .find(|round| holds(*round) != holds(0))
            .and_then(|round: u64| round.checked_sub(3));
        (more([visit(0), visit(1), visit(2)]), counted)
    }

    #[test]
    fn counted_loops_end_when_they_do() {
        let minus = |value: u64| value.wrapping_neg();
        for (bytes, relation, left, right, rounds) in [
            // dec ecx; jnz: it ends at 0.
            (4, Relation::Equal, (1000, minus(1)), (0, 0), 997),
            // add rax, 8; cmp rax, rdx; jne
            (8, Relation::Equal, (0x7fff_0000, 8), (0x7fff_0800, 0), 253),
            // inc eax; cmp eax, n; jl, from a negative number
            (4, Relation::Less, (minus(5) & 0xffff_ffff, 1), (100, 0), 102),
            // sub rcx, 32; cmp rcx, 31; ja
            (8, Relation::BelowOrEqual, (1000, minus(32)), (31, 0), 28),
            // two pointers that meet
            (8, Relation::Below, (0x1000, 4), (0x2000, minus(4)), 509),
            (4, Relation::LessOrEqual, (0, 7), (700, 0), 98),
            (1, Relation::Below, (200, 1), (250, 0), 47),
        ] {
            assert_eq!(
                both(bytes, relation, left, right),
                (Some(rounds), Some(rounds)),
                "{relation:?} {left:?} {right:?}"
            );
        }
    }

    #[test]
    fn what_does_not_end_so_is_not_told() {
        for (bytes, relation, left, right) in [
            // It jumps over what it waits for.
            (4, Relation::Equal, (1, 2), (1000, 0)),
            (4, Relation::Less, (10, 1_u64.wrapping_neg()), (100, 0)),
            (8, Relation::Below, (0, 0), (5, 0)),
            // It would wrap around first: 250 of 255.
            (1, Relation::BelowOrEqual, (240, 7), (253, 0)),
            // A remainder, which is 0 again before.
            (4, Relation::Equal, (5, 1), (0, 0)),
            (4, Relation::Equal, (5, 0xffff_ffff), (7, 0)),
        ] {
            assert_eq!(
                both(bytes, relation, left, right).0,
                None,
                "{relation:?} {left:?} {right:?}"
            );
        }
    }

    #[test]
    fn at_random_it_is_what_counting_says_or_nothing() {
        let mut random = fastrand::Rng::with_seed(8);
        let relations = [
            Relation::Equal,
            Relation::Below,
            Relation::BelowOrEqual,
            Relation::Less,
            Relation::LessOrEqual,
        ];
        let mut told = 0;
        for _ in 0..200_000 {
            let relation = relations[random.usize(0..5)];
            let bytes = [1, 2, 4, 8][random.usize(0..4)];
            let step = |random: &mut fastrand::Rng| u64::from(random.u8(0..9)).wrapping_sub(4);
            let (from, to) =
                (u64::from(random.u16(..)) << random.u8(0..40), u64::from(random.u16(0..500)));
            let (left, right) = (
                (from, step(&mut random)),
                (from.wrapping_add(to).wrapping_sub(250), step(&mut random)),
            );
            let (more, counted) = both(bytes, relation, left, right);
            let Some(more) = more.filter(|more| *more < 2990) else { continue };
            // The three visits came out the same: that is what `more` is asked for.
            if counted.is_some() {
                assert_eq!(Some(more), counted, "{bytes} {relation:?} {left:?} {right:?}");
                told += 1;
            }
        }
        assert!(told > 50_000, "{told}");
    }
}

//! Counts of each shape, and their one law: the sum.

mod access;
mod execution_time;
mod outcomes;
mod pairs;
mod places;
mod table;
mod values;

pub use access::{Access, Apart, Crossed};
pub use execution_time::{ExecutionTime, Told};
pub use outcomes::BranchOutcome;
pub use pairs::Edges;
pub use places::Profile;
pub use table::Table;
pub use values::{BranchRounds, Values};

use image::ImageOffset;

use crate::measure::Shape;

/// The counts of one measure in one image, in the measure's shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counts {
    /// Counts by place.
    Places(Profile),
    /// Counts by pair of places.
    Pairs(Edges),
    /// Counts by place and number.
    Values(Values),
}

/// One observation.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Observation {
    /// An observation of a place.
    Place(ImageOffset),
    /// An observation of two places: from the first to the second.
    Pair(ImageOffset, ImageOffset),
    /// An observation of a number at a place.
    Value(ImageOffset, i64),
}

/// The counts of one shape, as a type of their own.
pub trait Counted: Default {
    /// The shape.
    const SHAPE: Shape;

    /// The counts inside, when they are of this shape; None when they are of another.
    fn of(counts: Counts) -> Option<Self>;
}

impl Counts {
    /// Empty counts of a shape.
    pub const fn none(shape: Shape) -> Self {
        match shape {
            Shape::Places => Self::Places(Profile::new()),
            Shape::Pairs => Self::Pairs(Edges::new()),
            Shape::Values => Self::Values(Values::new()),
        }
    }

    /// The shape of the counts.
    pub const fn shape(&self) -> Shape {
        match self {
            Self::Places(_) => Shape::Places,
            Self::Pairs(_) => Shape::Pairs,
            Self::Values(_) => Shape::Values,
        }
    }

    /// Adds all counts of `other`, which must be of the same shape. Returns false, and adds
    /// nothing, when the shapes differ.
    #[must_use]
    pub fn merge(&mut self, other: &Self) -> bool {
        match (self, other) {
            (Self::Places(mine), Self::Places(theirs)) => mine.merge(theirs),
            (Self::Pairs(mine), Self::Pairs(theirs)) => mine.merge(theirs),
            (Self::Values(mine), Self::Values(theirs)) => mine.merge(theirs),
            _ => return false,
        }
        true
    }

    /// The counts without those of `other`. Counts of another shape take nothing away.
    pub fn without(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Places(mine), Self::Places(theirs)) => Self::Places(mine.without(theirs)),
            (Self::Pairs(mine), Self::Pairs(theirs)) => Self::Pairs(mine.without(theirs)),
            (Self::Values(mine), Self::Values(theirs)) => Self::Values(mine.without(theirs)),
            _ => self.clone(),
        }
    }

    /// The sum of all counts.
    pub fn total(&self) -> u64 {
        match self {
            Self::Places(counts) => counts.total(),
            Self::Pairs(counts) => counts.total(),
            Self::Values(counts) => counts.total(),
        }
    }

    /// Number of different observations.
    pub fn len(&self) -> usize {
        match self {
            Self::Places(counts) => counts.len(),
            Self::Pairs(counts) => counts.len(),
            Self::Values(counts) => counts.len(),
        }
    }

    /// True when there are no counts.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

macro_rules! counted {
    ($($type:ident $shape:ident),*) => {$(
        impl From<$type> for Counts {
            fn from(counts: $type) -> Self {
                Self::$shape(counts)
            }
        }

        impl Counted for $type {
            const SHAPE: Shape = Shape::$shape;

            fn of(counts: Counts) -> Option<Self> {
                match counts {
                    Counts::$shape(counts) => Some(counts),
                    _ => None,
                }
            }
        }
    )*};
}
counted!(Profile Places, Edges Pairs, Values Values);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Counts of a shape from numbers: few keys, so that sums meet, and counts up to the largest.
    fn counts(shape: Shape) -> impl Strategy<Value = Counts> {
        let count = prop_oneof![0_u64..5, Just(u64::MAX)];
        let entries = proptest::collection::vec((0_u64..6, 0_u64..4, count), 0..12);
        entries.prop_map(move |entries| {
            let at = ImageOffset;
            let entries = entries.into_iter();
            match shape {
                Shape::Places => Profile::from_counts(entries.map(|(a, _, n)| (at(a), n))).into(),
                Shape::Pairs => {
                    Edges::from_counts(entries.map(|(a, b, n)| ((at(a), at(b)), n))).into()
                }
                Shape::Values => {
                    Values::from_counts(entries.map(|(a, b, n)| ((at(a), b.cast_signed() - 2), n)))
                        .into()
                }
            }
        })
    }

    fn of_any_shape() -> impl Strategy<Value = [Counts; 3]> {
        proptest::sample::select(&Shape::ALL[..])
            .prop_flat_map(|shape| [counts(shape), counts(shape), counts(shape)])
    }

    fn sum(a: &Counts, b: &Counts) -> Counts {
        let mut sum = a.clone();
        assert!(sum.merge(b));
        sum
    }

    proptest! {
        #[test]
        fn the_law_of_every_shape_is_a_sum([a, b, c] in of_any_shape()) {
            let none = Counts::none(a.shape());
            prop_assert_eq!(sum(&a, &b), sum(&b, &a));
            prop_assert_eq!(sum(&sum(&a, &b), &c), sum(&a, &sum(&b, &c)));
            prop_assert_eq!(sum(&a, &none), a.clone());
            prop_assert_eq!(sum(&none, &a), a.clone());
            let total = a.total().checked_add(b.total());
            if let Some(total) = total.filter(|total| *total < u64::MAX) {
                prop_assert_eq!(sum(&a, &b).total(), total);
            }
        }
    }

    #[test]
    fn counts_of_two_shapes_are_not_added() {
        let mut places = Counts::from(Profile::from_counts([(ImageOffset(1), 1)]));
        let before = places.clone();
        assert!(!places.merge(&Counts::none(Shape::Pairs)));
        assert_eq!(places, before);
        assert_eq!(Edges::of(places.clone()), None);
        assert_eq!(Profile::of(places).map(|profile| profile.total()), Some(1));
    }
}

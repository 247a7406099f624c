//! Counts by pair of places.

use image::ImageOffset;

use super::table::Table;

/// Number of times that control went from one place of an image to another: by (from, to).
pub type Edges = Table<(ImageOffset, ImageOffset)>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_add_by_pair() {
        let edge = |from, to| (ImageOffset(from), ImageOffset(to));
        let mut edges = Edges::from_counts([(edge(5, 1), 2), (edge(5, 1), 1), (edge(2, 9), 4)]);
        edges.merge(&Edges::from_counts([(edge(5, 0), 7), (edge(2, 9), 1)]));
        let all: Vec<_> = edges.iter().collect();
        assert_eq!(all, [(edge(2, 9), 5), (edge(5, 0), 7), (edge(5, 1), 3)]);
        assert_eq!(
            (edges.get(edge(5, 1)), edges.get(edge(5, 2)), edges.total(), edges.len()),
            (3, 0, 15, 3)
        );
    }
}

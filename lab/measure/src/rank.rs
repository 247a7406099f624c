//! Rank correlation: whether two series rise and fall together, however they are scaled.

/// Ranks of values, from 1; equal values share the mean of their ranks. A NaN ranks above all.
#[must_use]
pub fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<(usize, f64)> = values.iter().copied().enumerate().collect();
    order.sort_by(|(_, a), (_, b)| a.total_cmp(b));
    let mut ranks = vec![0.0; values.len()];
    let mut before = 0_usize;
    for equal in order.chunk_by(|(_, a), (_, b)| a == b) {
        // Ranks before + 1 to before + n, whose mean is in the middle.
        let rank = before as f64 + (equal.len() as f64 + 1.0) / 2.0;
        for (at, _) in equal {
            if let Some(of) = ranks.get_mut(*at) {
                *of = rank;
            }
        }
        before += equal.len();
    }
    ranks
}

/// Spearman's rank correlation, -1 to 1: Pearson's correlation of the ranks, which is right with
/// ties, too (C. Spearman, "The Proof and Measurement of Association between Two Things", American
/// Journal of Psychology 15, 1904). Of series of different lengths the shorter one counts.
///
/// None for fewer than 3 values, or where a series is constant: it has no trend to share.
#[must_use]
pub fn spearman(a: &[f64], b: &[f64]) -> Option<f64> {
    let n = a.len().min(b.len());
    if n < 3 {
        return None;
    }
    pearson(&ranks(a.get(..n)?), &ranks(b.get(..n)?))
}

/// Pearson's correlation; None where a series is constant.
fn pearson(a: &[f64], b: &[f64]) -> Option<f64> {
    let n = a.len().min(b.len()) as f64;
    let mean = |of: &[f64]| of.iter().sum::<f64>() / n;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let (mut ab, mut aa, mut bb) = (0.0, 0.0, 0.0);
    for (x, y) in a.iter().zip(b) {
        let (x, y) = (x - mean_a, y - mean_b);
        (ab, aa, bb) = (ab + x * y, aa + x * x, bb + y * y);
    }
    let scale = (aa * bb).sqrt();
    (scale > 0.0).then(|| (ab / scale).clamp(-1.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_share_their_ranks() {
        assert_eq!(ranks(&[10.0, 20.0, 20.0, 5.0]), [2.0, 3.5, 3.5, 1.0]);
        assert_eq!(ranks(&[]), Vec::<f64>::new());
        assert_eq!(ranks(&[0.0, -0.0]), [1.5, 1.5], "zeros are equal");
    }

    #[test]
    fn only_the_order_counts() {
        let rises = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(spearman(&rises, &[1.0, 8.0, 27.0, 1e9]), Some(1.0));
        assert_eq!(spearman(&rises, &[4.0, 3.0, 2.0, 1.0]), Some(-1.0));
        assert_eq!(spearman(&rises, &[7.0; 4]), None);
        assert_eq!(spearman(&rises[..2], &rises[..2]), None);
    }

    #[test]
    fn the_textbooks_example() {
        // IQ and hours of television, the example of Wikipedia's article: rho = -29/165.
        let iq = [106.0, 100.0, 86.0, 101.0, 99.0, 103.0, 97.0, 113.0, 112.0, 110.0];
        let hours = [7.0, 27.0, 2.0, 50.0, 28.0, 29.0, 20.0, 12.0, 6.0, 17.0];
        let rho = spearman(&iq, &hours).unwrap();
        assert!((rho + 29.0 / 165.0).abs() < 1e-12, "{rho}");
        // With ties: Pearson's of ranks 1.5, 1.5, 3, 4 and 1, 2, 3.5, 3.5.
        let rho = spearman(&[1.0, 1.0, 2.0, 3.0], &[1.0, 2.0, 3.0, 3.0]).unwrap();
        assert!((rho - 4.0 / 4.5).abs() < 1e-9, "{rho}");
    }
}

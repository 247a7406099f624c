//! Vectors of several right sides at once, and access by index without panics.

/// The elements at an index; 0 outside the slice.
pub(crate) fn at_each<const N: usize>(values: &[[f64; N]], index: usize) -> [f64; N] {
    values.get(index).copied().unwrap_or([0.0; N])
}

/// Adds `factor` times `more` to the elements at an index; nothing outside the slice.
pub(crate) fn add_each<const N: usize>(
    values: &mut [[f64; N]],
    index: usize,
    more: [f64; N],
    factor: f64,
) {
    if let Some(values) = values.get_mut(index) {
        values.iter_mut().zip(more).for_each(|(value, more)| *value += factor * more);
    }
}

/// Applies `of` to each pair of elements.
pub(crate) fn each<const N: usize>(
    mut a: [f64; N],
    b: [f64; N],
    of: impl Fn(f64, f64) -> f64,
) -> [f64; N] {
    a.iter_mut().zip(b).for_each(|(a, b)| *a = of(*a, b));
    a
}

/// The inner products of the columns of `a` and `b`.
pub(crate) fn products<const N: usize>(a: &[[f64; N]], b: &[[f64; N]]) -> [f64; N] {
    a.iter()
        .zip(b)
        .fold([0.0; N], |sum, (a, b)| each(sum, each(*a, *b, |a, b| a * b), |sum, one| sum + one))
}

/// The element at an index; 0 outside the slice.
pub(crate) fn at(values: &[f64], index: usize) -> f64 {
    values.get(index).copied().unwrap_or(0.0)
}

/// Adds to the element at an index; nothing outside the slice.
pub(crate) fn add(values: &mut [f64], index: usize, more: f64) {
    values.get_mut(index).into_iter().for_each(|value| *value += more);
}

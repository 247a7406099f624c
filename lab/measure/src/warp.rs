//! Dynamic time warping: aligns two runs of a program whose parts differ in speed (H. Sakoe, S.
//! Chiba, "Dynamic Programming Algorithm Optimization for Spoken Word Recognition", IEEE TASSP
//! 26(1), 1978; as Mytkowicz et al. align traces).

/// Part of the longer series by which the path may leave the diagonal (Sakoe and Chiba's band). A
/// wider band finds larger shifts, and makes unlike series look alike.
pub const BAND: f64 = 0.1;
/// Cells of the band at most: 64 Mi steps of one byte. Larger series are refused.
const CELLS_MAX: usize = 1 << 26;

/// Aligns `other` with `reference`: for each record of the reference the range of records of
/// `other` that belong to it, first and last. Both have one column for each metric
/// (`[metric][record]`). Metrics are scaled to the same spread first, so that each has as much to
/// say.
///
/// None where a series has no record, the numbers of metrics differ, columns of one series differ
/// in length, or there are more records than fit in 64 Mi cells of the band.
#[must_use]
pub fn align(reference: &[Vec<f64>], other: &[Vec<f64>]) -> Option<Vec<(usize, usize)>> {
    let (rows, columns) = (records(reference)?, records(other)?);
    if reference.len() != other.len() {
        return None;
    }
    let (a, b) = (by_record(reference, rows), by_record(other, columns));
    let reach = (BAND * rows.max(columns) as f64).ceil() as usize + 1;
    // The columns of a row's part of the band: around the diagonal.
    let middle = |row: usize| (row * (columns - 1)).checked_div(rows - 1).unwrap_or(0);
    // Neighbouring rows' bands must touch, however steep the diagonal is.
    let steep = columns.div_ceil(rows);
    let reach = reach.max(steep);
    let band = |row: usize| {
        let first = if rows == 1 { 0 } else { middle(row).saturating_sub(reach) };
        let last = if rows == 1 { columns - 1 } else { (middle(row) + reach).min(columns - 1) };
        (first, last)
    };
    let width = (2 * reach + 1).max(if rows == 1 { columns } else { 0 });
    if rows.checked_mul(width)? > CELLS_MAX {
        return None;
    }
    let mut steps = Vec::with_capacity(rows * width);
    let mut starts = Vec::with_capacity(rows);
    let (mut above, mut above_first) = (Vec::<f64>::new(), 0_usize);
    for row in 0..rows {
        let (first, last) = band(row);
        starts.push((steps.len(), first));
        let mut costs = Vec::with_capacity(last - first + 1);
        for column in first..=last {
            let up = |column: usize| {
                let at = column.checked_sub(above_first);
                at.and_then(|at| above.get(at)).copied().unwrap_or(f64::INFINITY)
            };
            let diagonal = column.checked_sub(1).map_or(f64::INFINITY, up);
            let left = costs.last().copied().unwrap_or(f64::INFINITY);
            let (step, before) = if row == 0 && column == 0 {
                (Step::Diagonal, 0.0)
            } else if diagonal <= up(column) && diagonal <= left {
                (Step::Diagonal, diagonal)
            } else if up(column) <= left {
                (Step::Up, up(column))
            } else {
                (Step::Left, left)
            };
            steps.push(step);
            costs.push(before + distance(a.get(row)?, b.get(column)?));
        }
        (above, above_first) = (costs, first);
    }
    back(&steps, &starts, rows, columns)
}

/// A metric of the aligned series: for each record of the reference the mean of the records of
/// `column` that belong to it.
#[must_use]
pub fn warped(column: &[f64], path: &[(usize, usize)]) -> Vec<f64> {
    let of = |(first, last): &(usize, usize)| {
        let part = column.get(*first..=*last).unwrap_or_default();
        part.iter().sum::<f64>() / part.len().max(1) as f64
    };
    path.iter().map(of).collect()
}

/// The step by which the path reaches a cell.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Diagonal,
    Up,
    Left,
}

/// Follows the steps from the end.
fn back(
    steps: &[Step],
    starts: &[(usize, usize)],
    rows: usize,
    columns: usize,
) -> Option<Vec<(usize, usize)>> {
    let (mut row, mut column) = (rows - 1, columns - 1);
    let mut path = vec![(0_usize, 0_usize); rows];
    *path.last_mut()? = (column, column);
    loop {
        path.get_mut(row)?.0 = column;
        if row == 0 && column == 0 {
            return Some(path);
        }
        let (start, first) = *starts.get(row)?;
        match steps.get(start + column.checked_sub(first)?)? {
            Step::Left => column = column.checked_sub(1)?,
            step => {
                row = row.checked_sub(1)?;
                column = column.checked_sub(usize::from(*step == Step::Diagonal))?;
                *path.get_mut(row)? = (column, column);
            }
        }
    }
}

/// Number of records of a series. None if columns differ in length, or have none.
fn records(series: &[Vec<f64>]) -> Option<usize> {
    let count = series.first()?.len();
    (count > 0 && series.iter().all(|column| column.len() == count)).then_some(count)
}

/// Records with all metrics scaled to mean 0 and standard deviation 1.
fn by_record(series: &[Vec<f64>], records: usize) -> Vec<Vec<f64>> {
    let n = records as f64;
    let scaled: Vec<(f64, f64)> = series
        .iter()
        .map(|column| {
            let mean = column.iter().sum::<f64>() / n;
            let variance = column.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / n;
            (mean, if variance > 0.0 { variance.sqrt() } else { 1.0 })
        })
        .collect();
    let record = |at: usize| {
        let values = series.iter().zip(&scaled);
        let value = |(column, (mean, scale)): (&Vec<f64>, &(f64, f64))| {
            column.get(at).map_or(0.0, |value| (value - mean) / scale)
        };
        values.map(value).collect()
    };
    (0..records).map(record).collect()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank::spearman;

    fn waves(records: usize, late: f64) -> Vec<Vec<f64>> {
        let at = |record: usize| record as f64 / 5.0 - late;
        vec![
            (0..records).map(|record| at(record).sin()).collect(),
            (0..records).map(|record| (at(record) * 0.3).cos()).collect(),
        ]
    }

    #[test]
    fn the_same_is_aligned_with_itself() {
        let series = waves(50, 0.0);
        let path = align(&series, &series).unwrap();
        assert!(path.iter().enumerate().all(|(at, range)| *range == (at, at)), "{path:?}");
        assert_eq!(warped(&series[0], &path), series[0]);
    }

    #[test]
    fn a_late_series_is_found_again() {
        let (reference, late) = (waves(120, 0.0), waves(120, 1.0));
        let apart = spearman(&reference[0], &late[0]).unwrap();
        let path = align(&reference, &late).unwrap();
        let together = spearman(&reference[0], &warped(&late[0], &path)).unwrap();
        assert!(apart < 0.6 && together > 0.9, "{apart} {together}");
        // Each step advances by at most one, and the path covers all records of both series.
        assert_eq!((path[0].0, path[119].1), (0, 119));
        assert!(path.windows(2).all(|two| two[1].0 - two[0].1 <= 1), "{path:?}");
    }

    #[test]
    fn series_of_other_lengths_are_aligned_too() {
        let (short, long) = (waves(40, 0.0), waves(200, 0.0));
        let stretched: Vec<Vec<f64>> =
            short.iter().map(|of| of.iter().flat_map(|value| [*value; 5]).collect()).collect();
        for (reference, other) in [(&short, &stretched), (&stretched, &short)] {
            let path = align(reference, other).unwrap();
            let aligned = warped(&other[0], &path);
            let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-12;
            assert!(aligned.iter().zip(&reference[0]).all(near), "{aligned:?}");
        }
        assert_eq!(align(&long, &short).unwrap().len(), 200);
        let one = vec![vec![1.0], vec![2.0]];
        assert_eq!(align(&one, &short).unwrap(), [(0, 39)]);
        assert_eq!(align(&short, &one).unwrap(), vec![(0, 0); 40]);
    }

    #[test]
    fn what_cannot_be_aligned_is_refused() {
        let series = waves(10, 0.0);
        assert_eq!(align(&series, &[]), None);
        assert_eq!(align(&series, &[vec![], vec![]]), None);
        assert_eq!(align(&series, &series[..1]), None);
        assert_eq!(align(&[vec![1.0, 2.0], vec![1.0]], &series), None);
        let huge = vec![vec![0.0; 100_000]];
        assert_eq!(align(&huge, &huge), None);
    }
}

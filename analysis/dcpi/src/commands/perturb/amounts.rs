//! How much there is of each metric, without and with an observer.

use measure::perturbation::{difference, difference_chance, holm};
use report::Moved;

use super::columns::{Columns, Run};

/// Change of a share of time that is worth a word: smaller ones are in the table only.
const MOVED_MIN: f64 = 0.02;

/// Amounts of metrics in runs: shares of the run's time, 0 to 1, or occurrences of events.
pub(super) struct Amounts {
    /// `[metric][run]`.
    of: Vec<Vec<f64>>,
    is_time: Vec<bool>,
}

impl Amounts {
    pub(super) fn of<'a>(columns: &Columns, runs: impl Iterator<Item = &'a Run> + Clone) -> Self {
        let metrics = 0..columns.names.len();
        let of_metric = |at| runs.clone().map(|run| columns.amount(run, at)).collect();
        Self {
            of: metrics.clone().map(of_metric).collect(),
            is_time: metrics.map(|at| columns.is_time(at)).collect(),
        }
    }

    /// How the amount of each metric differs between the runs `with` an observer and those
    /// `without`, all by their numbers. `level` is the probability of finding that any has moved
    /// where none has.
    pub(super) fn moved(&self, without: &[usize], with: &[usize], level: f64) -> Vec<Moved> {
        let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len().max(1) as f64;
        let sides = |values: &Vec<f64>| {
            let side = |runs: &[usize]| {
                runs.iter().filter_map(|run| values.get(*run).copied()).collect::<Vec<f64>>()
            };
            (side(without), side(with))
        };
        let sides: Vec<(Vec<f64>, Vec<f64>)> = self.of.iter().map(sides).collect();
        let chances: Vec<f64> = sides.iter().map(|(a, b)| difference_chance(a, b)).collect();
        let all = sides.iter().zip(holm(&chances)).zip(&self.is_time);
        all.map(|(((without, with), chance), is_time)| {
            let change = difference(without, with).unwrap_or_default();
            let is_large = !is_time || change.value.abs() >= MOVED_MIN;
            Moved {
                baseline: mean(without),
                observed: mean(with),
                change,
                moved: chance <= level && is_large,
            }
        })
        .collect()
    }

    pub(super) fn shares_moved(&self, moved: &[Moved]) -> bool {
        moved.iter().zip(&self.is_time).any(|(of, is_time)| *is_time && of.moved)
    }
}

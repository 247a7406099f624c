//! Whether a build cost cores.
//!
//! Shares tell which procedure changed; whether the service needs more cores, only its cores tell,
//! and these follow the load. Of hosts that changed their build on different days, each day's load
//! is seen on hosts of both builds, and each host's size on days of both: the logarithm of a host's
//! cores in a day is the host's own, the day's own, and the new build's (two-way fixed effects).
//! Where all hosts changed on one day, the build's part cannot be told from the day's, and no
//! number is given.

use std::collections::BTreeMap;

use stats::Confidence;

use crate::chance::{beyond, reach};

/// The cores of a service on a host, in a day, under one build.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Cell {
    /// The host.
    pub host: i64,
    /// The day.
    pub day: i64,
    /// The new build, or the old one.
    pub new: bool,
    /// Core-seconds of the service.
    pub core_s: f64,
    /// Seconds that were profiled under that build.
    pub covered_s: f64,
}

/// The effect of a build on a service's cores.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Cost {
    /// Relative change of the cores; 0.02: 2 % more.
    pub value: f64,
    /// Lower end of its interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// The probability of such a change by chance.
    pub p: f64,
    /// Hosts that ran both builds.
    pub changed: usize,
    /// All hosts compared.
    pub hosts: usize,
}

/// The reason why no verdict is possible.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Untold {
    /// Fewer than three hosts ran both builds.
    Hosts,
    /// The hosts changed all on one day, or so nearly so that all hangs on one of them: what else
    /// happened that day is in it.
    SameDay,
}

/// Seconds of a day.
const DAY_S: f64 = 86_400.0;
/// The least part of a day that must be profiled under a build: less is of a few hours, and these
/// have their own load.
const COVERED_LEAST_S: f64 = DAY_S / 4.0;
/// Days that are compared, the last ones: bounds the work, which grows with their cube for each
/// host. A review needs seven or fourteen.
const DAYS_MOST: usize = 62;
/// The least part of the new build's variation within hosts that must be no day's: below, build and
/// day are one except for rounding.
const APART_LEAST: f64 = 1e-6;

/// What a build did to the cores, by the cells of all hosts of a service.
///
/// A host's day with both builds is left out: morning and evening have their own load. Hosts
/// weigh by the days they were profiled. The variance is the jackknife's over hosts, as a host's
/// days are alike (A. C. Cameron, D. L. Miller, "A practitioner's guide to cluster-robust
/// inference", Journal of Human Resources 50, 2015: with few hosts that changed, others are too
/// small).
///
/// # Errors
/// [`Untold`]: where build and day, or build and host, are the same to the data.
pub fn cores(cells: &[Cell], confidence: Confidence) -> Result<Cost, Untold> {
    let (hosts, days) = by_host(cells);
    let changed = hosts.iter().filter(|cells| ran_both(cells)).count();
    if changed < 3 {
        return Err(Untold::Hosts);
    }
    let parts: Vec<Normal> = hosts.iter().map(|cells| Normal::of(cells, days)).collect();
    let mut all = Normal::new(days);
    parts.iter().for_each(|part| all.add(part, 1.0));
    let coefficient = all.solve().ok_or(Untold::SameDay)?;
    let mut squares = 0.0;
    for part in &parts {
        let mut rest = all.clone();
        rest.add(part, -1.0);
        squares += (rest.solve().ok_or(Untold::SameDay)? - coefficient).powi(2);
    }
    let count = parts.len() as f64;
    let sd = ((count - 1.0) / count * squares).sqrt();
    if !sd.is_finite() || !coefficient.is_finite() {
        return Err(Untold::SameDay);
    }
    // Hosts that did not change say nothing of the build.
    let df = changed as f64 - 1.0;
    let reach = reach(df, confidence) * sd;
    let p = if sd > 0.0 { beyond(coefficient / sd, df) } else { 1.0 };
    let relative = f64::exp_m1;
    Ok(Cost {
        value: relative(coefficient),
        low: relative(coefficient - reach),
        high: relative(coefficient + reach),
        p,
        changed,
        hosts: parts.len(),
    })
}

/// A usable cell: which of the days, new build or not, logarithm of the cores, weight.
struct Used {
    day: usize,
    new: bool,
    log: f64,
    weight: f64,
}

fn ran_both(cells: &[Used]) -> bool {
    cells.iter().any(|cell| cell.new) && cells.iter().any(|cell| !cell.new)
}

/// The usable cells of each host, and the number of days.
fn by_host(cells: &[Cell]) -> (Vec<Vec<Used>>, usize) {
    let usable = |cell: &&Cell| {
        cell.covered_s >= COVERED_LEAST_S
            && cell.covered_s.is_finite()
            && cell.core_s > 0.0
            && cell.core_s.is_finite()
    };
    let mut by_day: BTreeMap<(i64, i64), Vec<&Cell>> = BTreeMap::new();
    cells.iter().for_each(|cell| by_day.entry((cell.host, cell.day)).or_default().push(cell));
    // Of a host's day with two cells, whatever is the matter with one, neither is of a whole day.
    let single: Vec<&Cell> = by_day
        .values()
        .filter(|cells| cells.len() == 1)
        .flatten()
        .copied()
        .filter(usable)
        .collect();
    let mut days: Vec<i64> = single.iter().map(|cell| cell.day).collect();
    days.sort_unstable();
    days.dedup();
    let days = days.split_off(days.len().saturating_sub(DAYS_MOST));
    let mut hosts: BTreeMap<i64, Vec<Used>> = BTreeMap::new();
    for cell in single {
        let Ok(day) = days.binary_search(&cell.day) else { continue };
        let log = (cell.core_s / cell.covered_s).ln();
        let weight = (cell.covered_s / DAY_S).min(1.0);
        hosts.entry(cell.host).or_default().push(Used { day, new: cell.new, log, weight });
    }
    // A host with one day has nothing to compare it with.
    (hosts.into_values().filter(|cells| cells.len() > 1).collect(), days.len())
}

/// The normal equations of days and build, within hosts: symmetric, of `days + 2` columns: the
/// days, the build, the logarithm of the cores.
#[derive(Clone)]
struct Normal {
    size: usize,
    of: Vec<f64>,
}

impl Normal {
    fn new(days: usize) -> Self {
        let size = days + 2;
        Self { size, of: vec![0.0; size * size] }
    }

    /// For one host: sums of products of deviations from the host's means.
    fn of(cells: &[Used], days: usize) -> Self {
        let mut normal = Self::new(days);
        let row = |cell: &Used| {
            let mut row = vec![0.0; normal.size];
            let values = [(cell.day, 1.0), (days, f64::from(cell.new)), (days + 1, cell.log)];
            for (at, value) in values {
                if let Some(slot) = row.get_mut(at) {
                    *slot = value;
                }
            }
            row
        };
        let rows: Vec<(f64, Vec<f64>)> =
            cells.iter().map(|cell| (cell.weight, row(cell))).collect();
        let weight: f64 = rows.iter().map(|(weight, _)| weight).sum();
        let mut means = vec![0.0; normal.size];
        for (w, row) in &rows {
            means.iter_mut().zip(row).for_each(|(mean, value)| *mean += w * value / weight);
        }
        for (w, row) in &rows {
            let away: Vec<f64> = row.iter().zip(&means).map(|(value, mean)| value - mean).collect();
            for (a, line) in away.iter().zip(normal.of.chunks_mut(normal.size)) {
                line.iter_mut().zip(&away).for_each(|(sum, b)| *sum += w * a * b);
            }
        }
        normal
    }

    fn add(&mut self, other: &Self, times: f64) {
        self.of.iter_mut().zip(&other.of).for_each(|(sum, value)| *sum += times * value);
    }

    /// The build's coefficient; None where it is a day's. Days are swept out one after the other
    /// (Gauss), those that the others give already are passed over.
    fn solve(&self) -> Option<f64> {
        let (size, days) = (self.size, self.size - 2);
        let mut lines: Vec<Vec<f64>> = self.of.chunks(size).map(<[f64]>::to_vec).collect();
        let before = *lines.get(days)?.get(days)?;
        for day in 0..days {
            let own = self.of.get(day * size + day).copied().unwrap_or(0.0);
            let pivot = lines.get(day)?.clone();
            let diagonal = *pivot.get(day)?;
            if diagonal <= APART_LEAST * own.max(APART_LEAST) {
                continue;
            }
            for line in lines.iter_mut().skip(day + 1) {
                let factor = line.get(day)? / diagonal;
                line.iter_mut().zip(&pivot).for_each(|(value, pivot)| *value -= factor * pivot);
            }
        }
        let build = lines.get(days)?;
        let (own, with_cores) = (*build.get(days)?, *build.get(days + 1)?);
        (own > APART_LEAST * before).then(|| with_cores / own)
    }
}

#[cfg(test)]
mod tests;

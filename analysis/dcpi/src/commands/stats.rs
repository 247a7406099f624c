//! `dcpi stats`: variation of procedures between sets of samples (figure 3 of the DCPI paper).

use std::io::Write;

use clap::Args;

use super::Outcome;
use crate::options::{Compared, Format};
use compare::{Comparison, Row, SYNTAX, Set, SetChoice, Table};
use query::error::AnalysisError;
use report::{Folded, SetsReport, StatsReport, StatsRow};
use stats::many;
use stats::significance::{self, Counted, Measure, Typical};

/// `dcpi stats`.
#[derive(Debug, Args)]
#[command(after_help = format!("{SYNTAX}\n\n{NOTES}"))]
pub struct StatsArgs {
    /// The sets: epochs, labels or databases, see below
    #[arg(value_name = "SET", required = true)]
    pub sets: Vec<SetChoice>,
    /// Make each epoch with 100 samples or more a set of its own
    #[arg(long)]
    pub each: bool,
    /// Compare shares of each set's samples instead of samples: for sets that did different work
    #[arg(long)]
    pub shares: bool,
    #[command(flatten)]
    pub with: Compared,
}

const NOTES: &str = "\
The column range % has the largest value less the smallest, as a part of the sum; std-dev the \
standard deviation of the sets' values (with N - 1); by chance the standard deviation that \
sampling alone would cause. A * marks rows that vary more than sampling explains (chi-squared), \
and more than the epochs or hosts of a SET vary among themselves. All marks together are right \
with the given confidence (Holm's correction, weighted by samples). Marked rows come first. Rows \
with too few samples are left out; a note has their number. Exact counts (dcpi ideal) have no \
column by chance and no marks.

Exit codes: 0 done; 1 done, but part of a database could not be read; 2 could not.";

pub(crate) fn run(args: &StatsArgs, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    super::write(&report(args)?, &args.with.output, out)
}

fn report(args: &StatsArgs) -> Result<StatsReport, AnalysisError> {
    let comparison = args.with.comparison()?;
    let is_text = args.with.output.format == Format::Text;
    let mut table = compare::read(&args.sets, args.each, &comparison)?;
    if table.sets.len() < 2 {
        return Err(AnalysisError::OneSet {
            left_out: table.left_out.len(),
            least: compare::EACH_MIN_SAMPLES,
        });
    }
    let measure = match (args.shares, table.is_timed) {
        (true, _) => Measure::Share,
        (false, true) => Measure::Rate,
        (false, false) => Measure::Amount,
    };
    let folded = fold(&mut table, &comparison);
    let own = |row: &Row| {
        let parts = parts(&table, row, measure);
        Some((significance::dispersion(measure, &parts)?, significance::in_a_part(&parts)))
    };
    let is_exact = table.is_exact();
    let typical = match is_exact {
        true => Typical::default(),
        false => Typical::of(&table.rows.iter().filter_map(own).collect::<Vec<_>>()),
    };
    let whole: f64 = whole(&table, measure);
    let mut rows: Vec<StatsRow> =
        table.rows.iter().map(|found| row(&table, found, measure, typical, whole)).collect();
    let tests: Vec<(f64, f64)> = rows.iter().map(|row| (row.p, row.samples as f64)).collect();
    for row in rows.iter_mut().filter(|_| is_exact) {
        row.significant = row.max > row.min;
        (row.stddev_by_sampling, row.p) = (0.0, if row.significant { 0.0 } else { 1.0 });
        row.p_corrected = row.p;
    }
    for (row, corrected) in rows.iter_mut().zip(many::corrected(&tests)).filter(|_| !is_exact) {
        row.p_corrected = corrected;
        row.significant = args.with.look.confidence.marks(corrected);
    }
    rows.sort_by(|a, b| {
        let order = b.significant.cmp(&a.significant).then(b.range.total_cmp(&a.range));
        order.then_with(|| a.subject.cmp(&b.subject))
    });
    Ok(StatsReport {
        sets: SetsReport::of(table, measure, typical, folded, (&comparison, is_text)),
        rows,
    })
}

/// Removes the rows with too few samples from the table, and returns their number and samples.
pub(super) fn fold(table: &mut Table, args: &Comparison) -> Folded {
    // Exact counts are sure, however small.
    let min = match table.is_exact() {
        true => args.min_samples.unwrap_or_default(),
        false => args.min_samples(table.sets.len()),
    };
    let (kept, few): (Vec<Row>, Vec<Row>) =
        std::mem::take(&mut table.rows).into_iter().partition(|row| row.total() >= min);
    let mut samples = vec![0_u64; table.sets.len()];
    for row in &few {
        for (all, of_set) in samples.iter_mut().zip(table.by_set(row)) {
            *all = all.saturating_add(compare::samples(of_set));
        }
    }
    table.rows = kept;
    Folded { rows: few.len(), samples, min_samples: min }
}

/// A row's samples in the parts of each set.
fn parts(table: &Table, row: &Row, measure: Measure) -> Vec<Vec<Counted>> {
    let weight = table.weight();
    let parts = table.sets.iter().zip(table.by_set(row));
    parts.map(|(set, samples)| set.counted_parts(measure, samples, weight)).collect()
}

/// The sum over all rows, of which the column `sum %` shows parts.
fn whole(table: &Table, measure: Measure) -> f64 {
    let weight = table.weight();
    let parts = table.sets.iter().flat_map(|set| &set.parts);
    match measure {
        Measure::Share => table.sets.len() as f64,
        Measure::Amount => parts.map(|part| part.counted.occurrences / weight).sum(),
        Measure::Rate => {
            let of_set = |set: &Set| {
                let parts = set.parts.iter().map(|part| part.counted.occurrences / weight);
                parts.sum::<f64>() / set.seconds()
            };
            table.sets.iter().map(of_set).sum()
        }
    }
}

fn row(table: &Table, row: &Row, measure: Measure, typical: Typical, whole: f64) -> StatsRow {
    let weight = table.weight();
    let of_sets = table.sets.iter().zip(table.by_set(row));
    let sets: Vec<Counted> =
        of_sets.map(|(set, samples)| set.counted(measure, samples, weight, 1.0)).collect();
    let values: Vec<f64> = sets.iter().map(Counted::value).collect();
    let n = values.len();
    let total: f64 = values.iter().sum();
    let mean = total / n as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let (min, max) = values
        .iter()
        .fold((f64::INFINITY, 0.0_f64), |(min, max), value| (min.min(*value), max.max(*value)));
    let parts = parts(table, row, measure);
    let typical = typical.factor_of(significance::in_a_part(&parts));
    let spread = significance::spread(significance::dispersion(measure, &parts), typical);
    StatsRow {
        subject: row.subject.clone(),
        image_ids: row.builds.clone(),
        samples: row.total(),
        range: if total > 0.0 { (max - min) / total } else { 0.0 },
        sum: total,
        share: if whole > 0.0 { total / whole } else { 0.0 },
        n,
        mean,
        stddev: (squares / (n as f64 - 1.0)).sqrt(),
        stddev_by_sampling: significance::deviation_by_sampling(measure, &sets),
        min,
        max,
        p: significance::same(measure, &sets, spread),
        p_corrected: 1.0,
        significant: false,
        values,
    }
}

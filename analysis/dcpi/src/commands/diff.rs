//! `dcpi diff`: changes from one set of samples to another.

use std::io::Write;

use clap::Args;

use super::Outcome;
use super::stats::fold;
use crate::options::{Compared as Sets, Format};
use compare::{Comparison, Row, SYNTAX, Set, SetChoice, Table};
use query::error::AnalysisError;
use report::{DiffReport, DiffRow, SetsReport, Totals};
use stats::significance::{self, Compared, Counted, Judged, Measure, Typical};
use stats::tally::Tally;

/// `dcpi diff`.
#[derive(Debug, Args)]
#[command(after_help = format!("{SYNTAX}\n\n{NOTES}"))]
pub struct DiffArgs {
    /// The set before the change: epochs, a label or a database, see below
    #[arg(value_name = "BEFORE")]
    pub before: SetChoice,
    /// The set after the change
    #[arg(value_name = "AFTER")]
    pub after: SetChoice,
    /// Compare samples per run, epoch and host: for sets that did the same work [default for labels
    /// and recordings of a command]; of stretches of time samples per second, their default
    #[arg(long, conflicts_with = "shares")]
    pub amounts: bool,
    /// Compare shares of each set's samples: for sets that did different work [default for others]
    #[arg(long)]
    pub shares: bool,
    #[command(flatten)]
    pub with: Sets,
}

const NOTES: &str = "\
The line total has the sum of each SET: the mean of its runs (recordings of dcpi record) or \
epochs, the ratio of both, and its interval. The interval allows for the spread between runs \
(Student's t, Welch's degrees of freedom), and is never narrower than the sampling error. The \
verdict is on this ratio: faster or slower where the interval does not hold 1, no difference shown \
where it does. Where each SET is one run or a stretch of time, it says what the samples show: how \
much runs differ without a change is not known. It is none where shares are compared. Labels and \
recordings are taken to have done the same work. Of several runs in one epoch, only the sum is \
known: the SETs must have equally many.

The interval of a row's change (Newcombe's, of that row alone) holds the true change with the \
given confidence. A * marks rows that changed. All marks together are right with the given \
confidence, so tables of two equal sets have no mark in 95 of 100 cases (Holm's correction, \
weighted by samples). Marked rows come first, sorted by the size of the change. Rows with too few \
samples are left out; a note has their number.

A SET of a stretch of time (since:TIME,until:TIME) is compared by the second, and so are two \
builds (image:ID image:ID) of which one ran after the other, each in its own time: a row has the \
samples of a second of one host. The longer SET is parted into pieces as long as the shorter, 60 \
at most. A mark then means that the change is larger than the differences between such pieces. A \
slice of the database is of the SET that has its middle.

--map OLD=NEW compares the image OLD with the image NEW.

The samples of one epoch show the error of sampling, not the variation between runs. If each SET \
has several epochs or hosts, a mark means that the change is larger than the differences within \
the SETs. If not, amounts are taken to vary between runs as rows typically do, by 5 % at most.

Exact counts (dcpi ideal) have no interval and no mark; rows whose counts changed come first.

Exit codes: 0 done; 1 done, but part of a database could not be read; 2 could not.";

pub(crate) fn run(args: &DiffArgs, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    super::write(&report(args)?, &args.with.output, out)
}

pub(super) fn report(args: &DiffArgs) -> Result<DiffReport, AnalysisError> {
    let own_times = !args.amounts && !args.shares;
    let comparison = Comparison { own_times, ..args.with.comparison()? };
    let is_text = args.with.output.format == Format::Text;
    let mut table = compare::read(&[args.before.clone(), args.after.clone()], false, &comparison)?;
    let measure = match (args.amounts, args.shares) {
        (_, true) => Measure::Share,
        // A stretch of time has as much of a run as fits.
        _ if table.is_timed => Measure::Rate,
        (true, _) => Measure::Amount,
        _ if table.is_of_labels() => Measure::Amount,
        _ => Measure::Share,
    };
    let other_name = table.other_name.take();
    let folded = fold(&mut table, &comparison);
    let compared: Vec<Compared> =
        table.rows.iter().map(|row| compared(&table, row, measure)).collect();
    let (typical, judged) = match table.is_exact() {
        true => (Typical::default(), significance::exact_changes(&compared)),
        false => significance::changes(measure, &compared, args.with.look.confidence),
    };
    let rows = table.rows.iter().zip(&compared).zip(judged);
    let mut rows: Vec<DiffRow> =
        rows.map(|((found, compared), judged)| row(&table, found, compared, judged)).collect();
    rows.sort_by(|a, b| {
        let size = |row: &DiffRow| row.judged.change.value.abs();
        let order =
            b.judged.significant.cmp(&a.judged.significant).then(size(b).total_cmp(&size(a)));
        order.then_with(|| a.subject.cmp(&b.subject))
    });
    let sets = SetsReport::of(table, measure, typical, folded, (&comparison, is_text));
    Ok(DiffReport { totals: Totals::of(&sets), sets, other_name, rows })
}

/// The counts of a row in both sets, and in the epochs of each.
fn compared(table: &Table, row: &Row, measure: Measure) -> Compared {
    let weight = table.weight();
    let of_sets = table.by_set(row);
    let set = |at: usize| table.sets.get(at).zip(of_sets.get(at));
    let counted = |at: usize| {
        let counted = |(set, samples): (&Set, &&[Tally])| {
            set.counted(measure, samples, weight, set.parts.len() as f64)
        };
        set(at).map_or(Counted::default(), counted)
    };
    let parts = |at: usize| {
        let parts = |(set, samples): (&Set, &&[Tally])| set.counted_parts(measure, samples, weight);
        set(at).map_or(Vec::new(), parts)
    };
    Compared { a: counted(0), b: counted(1), parts: [parts(0), parts(1)] }
}

fn row(table: &Table, row: &Row, compared: &Compared, judged: Judged) -> DiffRow {
    let of_set =
        |at: usize| table.by_set(row).get(at).map_or(0, |tallies| compare::samples(tallies));
    DiffRow {
        subject: row.subject.clone(),
        builds: row.builds.clone(),
        samples: [of_set(0), of_set(1)],
        a: compared.a.value(),
        b: compared.b.value(),
        judged,
    }
}

//! `dcpi images`: the images with samples, with their files and times.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use image::ImageId;

use super::Outcome;
use super::prof::columns;
use crate::options::{Chosen, Output};
use query::error::AnalysisError;
use query::load::{ImageSamples, Samples};
use query::problem::Problem;
use report::{ImageRow, ImagesReport, Selection};
use stats::Confidence;

/// `dcpi images`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct ImagesArgs {
    /// Only these images: name, path, or id (may be cut short)
    #[arg(value_name = "IMAGE", value_parser = NonEmptyStringValueParser::new())]
    pub images: Vec<String>,
    #[command(flatten)]
    pub chosen: Chosen,
    #[command(flatten)]
    pub output: Output,
}

const NOTES: &str = "\
Times are in UTC, from the selected epochs: when samples were written, which are from the ten \
seconds (or the longer slice) before. The column code has kept where dcpid has a copy of the \
image's code (dcpid --code-store): its procedures can be named and listed when the file is gone.

Exit codes: 0 done; 1 done, but part of the database could not be read; 2 could not.";

pub(crate) fn run(args: &ImagesArgs, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let samples = args.chosen.question(&args.images)?.samples()?;
    super::write(&report(samples), &args.output, out)
}

fn report(mut samples: Samples) -> ImagesReport {
    let mut problems = std::mem::take(&mut samples.problems);
    let kept = kept(&samples, &mut problems);
    let images: Vec<&ImageSamples> = samples.images.iter().filter(|image| image.wanted).collect();
    let mut rows: Vec<ImageRow> = images.iter().map(|image| row(&samples, image, &kept)).collect();
    rows.sort_by(|a, b| {
        let of = |row: &ImageRow| row.counts.first().map_or(0.0, |count| count.occurrences);
        let samples = |row: &ImageRow| stats::tally::samples(&row.counts);
        of(b)
            .total_cmp(&of(a))
            .then_with(|| samples(b).cmp(&samples(a)))
            .then_with(|| (&a.record.path, a.record.id).cmp(&(&b.record.path, b.record.id)))
    });
    // Only the totals are shown, so any confidence will do.
    let columns = columns(false, Confidence::default(), &samples, &images);
    let epochs = samples.epochs.iter().map(|epoch| epoch.meta().clone()).collect();
    ImagesReport {
        selection: Selection { db: samples.db.root().display().to_string(), epochs },
        events: columns,
        whose: samples.whose.clone(),
        images: rows,
        problems,
    }
}

/// By host, the images whose code is kept.
fn kept(samples: &Samples, problems: &mut Vec<Problem>) -> BTreeMap<String, BTreeSet<ImageId>> {
    let mut kept = BTreeMap::new();
    for host in samples.epochs.iter().map(|epoch| &epoch.meta().host) {
        if kept.contains_key(host) {
            continue;
        }
        let of_host = samples.db.code_images(host).unwrap_or_else(|error| {
            problems.push(Problem::CodeUnreadable { error });
            Vec::new()
        });
        kept.insert(host.clone(), of_host.into_iter().collect());
    }
    kept
}

fn row(
    samples: &Samples,
    image: &ImageSamples,
    kept: &BTreeMap<String, BTreeSet<ImageId>>,
) -> ImageRow {
    let of_epochs = image.epochs.iter().filter_map(|&at| samples.epochs.get(at));
    let hosts: BTreeSet<String> = of_epochs.map(|epoch| epoch.meta().host.clone()).collect();
    let has =
        |host: &&String| kept.get(*host).is_some_and(|images| images.contains(&image.record.id));
    ImageRow {
        record: image.record.clone(),
        counts: image.totals(),
        code_kept: hosts.iter().any(|host| has(&host)),
        hosts,
    }
}

//! `dcpi cat`: samples by offset, or edges, as the profiles have them.

use std::io::{self, Write};

use clap::Args;
use model::{EDGES, Edges};

use super::Outcome;
use crate::options::{Chosen, Output};
use query::error::AnalysisError;
use query::load::{ImageSamples, Samples};
use query::problem::{self, Problem};
use report::fields::Address;
use report::{self, Report, Style};

/// `dcpi cat`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct Cat {
    /// Only these images: name, path, or id (may be cut short)
    #[arg(value_name = "IMAGE")]
    pub images: Vec<String>,
    /// Edges instead of samples: where branches of user code went, computed from snapshots of
    /// registers
    #[arg(long)]
    pub edges: bool,
    #[command(flatten)]
    pub chosen: Chosen,
    #[command(flatten)]
    pub output: Output,
}

const NOTES: &str = "\
Offsets are those of the database: in a file, the offset of the byte; in the kernel, the distance \
from _stext. Counts of the selected epochs are added up. dcpid computes edges of user code only. \
Edges are counted for each image as a whole: --label, --unit and --pid choose among samples only.";

pub(crate) fn run(args: &Cat, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let mut samples = args.chosen.question(&args.images)?.samples()?;
    let mut problems = std::mem::take(&mut samples.problems);
    let images: Vec<&ImageSamples> = samples.images.iter().filter(|image| image.wanted).collect();
    let rows = match args.edges {
        false => images.iter().flat_map(|image| counted(&samples, image)).collect(),
        true => images.iter().flat_map(|image| edges(&samples, image, &mut problems)).collect(),
    };
    let epochs = samples.epochs.iter().map(|epoch| epoch.meta().epoch.to_string()).collect();
    let db = samples.db.root().display().to_string();
    super::write(&Dump { db, epochs, of_edges: args.edges, rows, problems }, &args.output, out)
}

fn counted<'a>(samples: &'a Samples, image: &'a ImageSamples) -> impl Iterator<Item = Row> + 'a {
    let events = samples.events.iter().zip(&image.profiles);
    events.flat_map(move |(event, profile)| {
        profile.iter().map(move |(offset, count)| Row {
            event: Some(event.name.clone()),
            offset: Some(Address(offset.0)),
            ..row(image, count.samples)
        })
    })
}

fn edges(samples: &Samples, image: &ImageSamples, problems: &mut Vec<Problem>) -> Vec<Row> {
    sum_of_edges(samples, image, problems)
        .iter()
        .map(|((from, to), count)| Row {
            from: Some(Address(from.0)),
            to: Some(Address(to.0)),
            ..row(image, count)
        })
        .collect()
}

fn row(image: &ImageSamples, count: u64) -> Row {
    let (image, image_id) = (image.record.name.clone(), image.record.id.to_string());
    Row { image, image_id, event: None, offset: None, from: None, to: None, count }
}

/// Edges of an image, of all selected epochs together.
fn sum_of_edges(samples: &Samples, image: &ImageSamples, problems: &mut Vec<Problem>) -> Edges {
    let mut sum = Edges::new();
    for epoch in &samples.epochs {
        match epoch.observed(&EDGES, &image.record.id) {
            Ok(edges) => sum.merge(&edges),
            Err(error) => problem::add_unreadable(problems, error),
        }
    }
    sum
}

pub struct Dump {
    db: String,
    epochs: Vec<String>,
    of_edges: bool,
    rows: Vec<Row>,
    problems: Vec<Problem>,
}

report::fields! {
    /// The count of an offset or of an edge.
    #[derive(Debug)]
    pub struct Row {
        /// name
        image: String => "image";
        /// id: build id (behind it `-pHASH`: of the program headers; `-uUSER`: this user can
        /// write the file), or a hash
        image_id: String => "image_id";
        /// absent with `--edges`
        event (maybe): Option<String> => "event";
        /// absent with `--edges`
        offset (maybe): Option<Address>, "offset" => "offset";
        /// offset of the branch (`--edges`)
        from (maybe): Option<Address>, "offset" => "from";
        /// offset of its target (`--edges`)
        to (maybe): Option<Address>, "offset" => "to";
        /// number of samples; with `--edges`: number of observations
        count: u64, "samples" => "count";
    }

    /// Counts of all chosen epochs together; problems are texts here.
    #[derive(Debug)]
    pub struct CatJson<'a> {
        db: &'a str;
        epochs: &'a [String];
        rows (rows): &'a [Row];
        /// what could not be read
        problems: Vec<String>;
    }
}

impl Dump {
    fn places(&self, row: &Row) -> Vec<String> {
        let places = if self.of_edges { vec![row.from, row.to] } else { vec![row.offset] };
        places.into_iter().flatten().map(|Address(offset)| format!("{offset:#x}")).collect()
    }
}

impl Report for Dump {
    const NAME: &'static str = "cat";
    type Fields<'a> = CatJson<'a>;

    fn text(&self, _style: &Style, out: &mut dyn Write) -> io::Result<()> {
        for row in &self.rows {
            write!(out, "{} ", report::escape(&row.image))?;
            row.event.iter().try_for_each(|event| write!(out, "{event} "))?;
            writeln!(out, "{} {}", self.places(row).join(" -> "), row.count)?;
        }
        self.problems
            .iter()
            .try_for_each(|problem| writeln!(out, "# {}", report::escape(&problem.to_string())))
    }

    fn json(&self) -> CatJson<'_> {
        let problems = self.problems.iter().map(Problem::to_string).collect();
        CatJson { db: &self.db, epochs: &self.epochs, rows: &self.rows, problems }
    }

    fn columns(&self) -> Option<Vec<&'static str>> {
        Some(match self.of_edges {
            true => vec!["image", "image_id", "from", "to", "count"],
            false => vec!["image", "image_id", "event", "offset", "count"],
        })
    }

    fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

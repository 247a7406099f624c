//! `dcpi html`: a report as one file for a browser.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::io::Write;
use std::path::PathBuf;

use calls::Direction;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use code::isa::Syntax;
use image::ImageId;

use super::costs::{Finder, OnMachine};
use super::flame;
use super::stacks::{self, Loaded};
use super::trees::TreeOf;
use super::{Outcome, inclusive, prof};
use crate::destination::Destination;
use crate::options::{
    self, Chosen, DisplayArgs, OfCalls, OfThreads, Prof, RowLimit, SyntaxArgument,
};
use annotate::graphs::Surveyed;
use annotate::listing::{self, Listing};
use names::procedures::{self, Needed, Places, Rows};
use query::error::AnalysisError;
use query::load::{ImageSamples, Question, Samples};
use query::problem::Problem;
use query::progress;
use report::flame::{Colours, Flame, Layer, Layers};
use report::{Costs, HtmlReport, ProfReport, html};
use stats::Confidence;

const IMAGES_MAX: usize = 500;
/// Most rows of the table of procedures: up to this number, a browser sorts without a noticeable
/// pause.
const ROWS_MAX: usize = 20_000;
/// Most listings in a page: each may take some hundred KiB.
const LISTINGS_MAX: usize = 500;

/// Smallest share of all time of a call in a flame graph.
const FLAME_MIN: f64 = 0.001;

/// `dcpi html`.
#[derive(Debug, Args)]
#[command(
    after_help = NOTES,
    mut_arg("rows", |rows| rows.default_value("1000").help("At most N procedures, 0 for 20000"))
)]
pub struct Html {
    /// Only these images: name, path, or id (may be cut short); shares are of their samples
    #[arg(value_name = "IMAGE", value_parser = NonEmptyStringValueParser::new())]
    pub images: Vec<String>,
    /// The file to write; - for standard output
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    pub file: PathBuf,
    #[command(flatten)]
    pub max: RowLimit,
    /// List the instructions of the N procedures with the most samples, at most 500
    #[arg(long, value_name = "N", default_value = "40")]
    pub listings: usize,
    #[command(flatten)]
    pub syntax: SyntaxArgument,
    /// Executions, cycles and causes of stalls of each instruction in the listings (takes a minute
    /// for large images)
    #[arg(long)]
    pub why: bool,
    /// Include the samples of the idle loop in rows and shares
    #[arg(long)]
    pub idle: bool,
    /// Confidence of the intervals, in percent
    #[arg(
        long,
        value_name = "PERCENT",
        default_value = "95",
        value_parser = crate::options::parse_confidence
    )]
    pub confidence: Confidence,
    #[command(flatten)]
    pub on: OnMachine,
    #[command(flatten)]
    pub chosen: Chosen,
    #[command(flatten)]
    pub threads: OfThreads,
}

const NOTES: &str = "\
The file needs no other file and no network, so it can be kept and sent. It shows names of \
procedures, disassembled code and, with debug information, names of source files. With --command, \
--thread or --tid the tables are of call stacks, and there are no listings.

Exit codes: those of dcpi prof.";

pub(crate) fn run(args: &Html, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let of_threads = args.threads.narrow(args.chosen.question(&args.images)?);
    let (report, problems) = match of_threads.whose.needs_stacks() {
        true => report_of_threads(args, &of_threads)?,
        false => report(args)?,
    };
    let serious = problems.iter().chain(&report.procedures.problems);
    let serious = serious.chain(&report.images.problems).filter(|problem| problem.is_serious());
    let aside: Vec<String> = serious.map(ToString::to_string).collect();
    let sound = aside.is_empty();
    // A number that no name in the report can have guessed.
    let nonce =
        format!("{:016x}{:016x}", RandomState::new().hash_one(0), RandomState::new().hash_one(1));
    let destination = Destination::from_argument(&args.file);
    destination.write(out, |out| Ok(html::write(&report, &nonce, out)?))?;
    if destination == Destination::Stdout {
        return Ok(Outcome { sound, aside, code: None });
    }
    writeln!(out, "{}: open it in a browser", report::escape(&args.file.display().to_string()))?;
    Ok(Outcome { sound, aside, code: None })
}

fn report(args: &Html) -> Result<(HtmlReport, Vec<Problem>), AnalysisError> {
    let mut samples = args.chosen.question(&args.images)?.samples()?;
    if args.why {
        Finder::new(&samples, &args.on, args.confidence).known()?;
    }
    let images = prof::report(&prof_args(args, true)?, &mut samples)?;
    let mut procedures = prof::report(&prof_args(args, false)?, &mut samples)?;
    let mut problems = Vec::new();
    let finder = args.why.then(|| Finder::new(&samples, &args.on, args.confidence));
    let listings = listings(args, &samples, (&procedures, finder.as_ref()), &mut problems);
    procedures.problems.append(&mut problems);
    let named = |(event, skid): (usize, _)| Some((samples.events.get(event)?.name.clone(), skid));
    let skid = samples.skid().and_then(named);
    let mut flames = Vec::new();
    if stacks::any(&samples) {
        // The same state of the database, even if dcpid writes to it meanwhile.
        let loaded =
            Loaded::beside(&samples, &args.chosen.question(&[])?, (&look(args), Rows::Functions))?;
        flames = drawn(args, loaded, &mut problems)?;
    }
    Ok((HtmlReport { procedures, images, listings, flames, skid }, problems))
}

/// The report on some threads, by their call stacks alone. Samples of instructions are of all
/// threads, so there are no listings.
fn report_of_threads(
    args: &Html,
    question: &Question,
) -> Result<(HtmlReport, Vec<Problem>), AnalysisError> {
    if args.why {
        let message = "--why explains samples, which are kept of all threads together".to_owned();
        return Err(AnalysisError::Usage { message, help: "dcpi html --help".to_owned() });
    }
    let prof = Prof { threads: args.threads.clone(), ..prof_args(args, false)? };
    let (procedures, images) = inclusive::tables(prof, IMAGES_MAX)?;
    let mut problems = Vec::new();
    let question = Question { images: Vec::new(), ..question.clone() };
    let loaded = Loaded::if_any(&question, (&look(args), Rows::Functions))?;
    let flames = drawn(args, loaded, &mut problems)?;
    let listings = BTreeMap::new();
    Ok((HtmlReport { procedures, images, listings, flames, skid: None }, problems))
}

fn look(args: &Html) -> DisplayArgs {
    DisplayArgs {
        idle: args.idle,
        confidence: args.confidence,
        debug_root: args.on.debug_root.clone(),
    }
}

/// Flame graphs of each event that has stacks, and of all whose times add up.
fn drawn(
    args: &Html,
    loaded: Option<Loaded>,
    problems: &mut Vec<Problem>,
) -> Result<Vec<Flame>, AnalysisError> {
    let Some(mut loaded) = loaded else { return Ok(Vec::new()) };
    problems.append(&mut loaded.problems);
    let what = TreeOf {
        direction: Direction::TopDown,
        part: &OfCalls::default(),
        by_thread: false,
        min: FLAME_MIN,
        confidence: args.confidence,
    };
    let mut layers: Vec<(String, Layer)> = Vec::new();
    for event in loaded.calls.events.clone() {
        layers.push((loaded.unit(&event), flame::layer(&mut loaded, &event, &what)?));
    }
    // Events with samples first.
    layers.sort_by_key(|(_, layer)| layer.is_waiting);
    let draw = |title: &str, unit: &str, layers: &[Layer], colours: Colours| {
        let how = (Layers::Sum, colours);
        Flame::of(title.to_owned(), unit.to_owned(), layers, how, false)
    };
    let mut flames: Vec<Flame> = layers
        .iter()
        .map(|(unit, layer)| draw(&layer.name, unit, std::slice::from_ref(layer), Colours::Image))
        .collect();
    let times: Vec<Layer> =
        layers.into_iter().filter(|(unit, _)| unit == "ns").map(|(_, layer)| layer).collect();
    if times.len() > 1 {
        let names: Vec<&str> = times.iter().map(|layer| layer.name.as_str()).collect();
        flames.push(draw(&names.join(" and "), "ns", &times, Colours::Waiting));
    }
    Ok(flames)
}

/// The options of `dcpi prof` that make the tables.
fn prof_args(args: &Html, by_image: bool) -> Result<Prof, AnalysisError> {
    let Ok(mut prof) = options::typed::<Prof>(std::iter::empty::<std::ffi::OsString>()) else {
        let message = "dcpi prof does not understand itself".to_owned();
        return Err(AnalysisError::Usage { message, help: "dcpi help".to_owned() });
    };
    let rows = args.max.of(ROWS_MAX);
    prof.images.clone_from(&args.images);
    prof.by_image = by_image;
    prof.rows = Some(if by_image { IMAGES_MAX } else { rows });
    prof.look.idle = args.idle;
    prof.look.confidence = args.confidence;
    prof.look.debug_root.clone_from(&args.on.debug_root);
    prof.chosen = args.chosen.clone();
    Ok(prof)
}

/// The listings of the first procedures, by the number of their row. Images are read one after the
/// other.
fn listings(
    args: &Html,
    samples: &Samples,
    (report, finder): (&ProfReport, Option<&Finder<'_>>),
    problems: &mut Vec<Problem>,
) -> BTreeMap<usize, (Listing, Option<Costs>)> {
    let mut wanted: BTreeMap<ImageId, Vec<(usize, u64)>> = BTreeMap::new();
    let rows = report.rows.iter().enumerate().filter_map(|(at, row)| {
        let address = row.procedure.as_ref()?.address?;
        Some((at, row.image.as_ref()?.id, address))
    });
    for (at, image, address) in rows.take(args.listings.min(LISTINGS_MAX)) {
        wanted.entry(image).or_default().push((at, address));
    }
    let places = args.on.places();
    let syntax = args.syntax.syntax();
    let mut listings = BTreeMap::new();
    let stage = progress::stage("making listings", wanted.len() as u64);
    for (id, rows) in wanted {
        stage.advance(1);
        if let Some(image) = samples.images.iter().find(|image| image.record.id == id) {
            listings.extend(of_image((samples, finder), image, &rows, (&places, syntax), problems));
        }
    }
    listings
}

fn of_image(
    (samples, finder): (&Samples, Option<&Finder<'_>>),
    image: &ImageSamples,
    rows: &[(usize, u64)],
    (places, syntax): (&Places, Syntax),
    problems: &mut Vec<Problem>,
) -> Vec<(usize, (Listing, Option<Costs>))> {
    // The table has already reported the image's problem.
    let Ok(known) = procedures::known(samples, image, places, Needed::All, &mut Vec::new()) else {
        return Vec::new();
    };
    let debug = known.debug_info(image, places, problems);
    let lines = debug.as_ref().and_then(|debug| procedures::lines(debug, image, problems));
    let procedure =
        |address: u64| known.offset(address).and_then(|offset| known.procedures.find(offset));
    let worth = |finder: &&Finder<'_>| {
        rows.iter()
            .filter_map(|(_, address)| procedure(*address))
            .any(|found| finder.can(image, found).is_ok())
    };
    let surveyed = finder
        .filter(worth)
        .and_then(|finder| Some((finder, Surveyed::of(samples, image, &known, problems)?)));
    let listing = |(row, address): &(usize, u64)| {
        let procedure = procedure(*address)?;
        let mut listing = listing::of(image, &known, procedure, Some(syntax), lines.as_ref());
        samples.skid().into_iter().for_each(|skid| listing.attribute(skid));
        let costs = surveyed
            .as_ref()
            .and_then(|(finder, surveyed)| finder.find(surveyed, (image, &known), procedure).ok());
        Some((*row, (listing, costs)))
    };
    let listings = rows.iter().filter_map(listing).collect();
    if let Some(why) = lines.as_ref().and_then(image::Lines::cut) {
        problems.push(Problem::LinesCut {
            image: image.record.name.clone(),
            id: image.record.id,
            why,
        });
    }
    listings
}

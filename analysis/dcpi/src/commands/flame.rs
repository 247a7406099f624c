//! `dcpi flame`: a flame graph of the call stacks.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::Outcome;
use super::stacks::{Loaded, functions, is_wait, nobody_has};
use super::trees::{TreeOf, roots, tree_rows};
use crate::destination::Destination;
use crate::options::{Chosen, DisplayArgs, OfCalls, OfThreads, parse_min};
use calls::{Direction, EventCalls};
use compare::SetChoice;
use query::error::AnalysisError;
use query::problem::Problem;
use report::flame::{self, Colours, Flame, Layer, Layers};

/// `dcpi flame`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct FlameArgs {
    /// The file to write, an SVG; - for standard output
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    pub file: PathBuf,
    /// Draw callees below their callers instead of above them, as is done where the root would not
    /// be in the first screen: beyond 36 calls above each other
    #[arg(long)]
    pub icicle: bool,
    /// Colours: by image, or by whether threads ran [default: by image; with several events by
    /// whether threads ran]
    #[arg(long, value_name = "BY", value_enum, conflicts_with = "before")]
    pub colour: Option<Colour>,
    /// Colours show the change from this set: epochs, a label or a database, as of dcpi diff
    #[arg(long = "diff", value_name = "BEFORE", allow_hyphen_values = true)]
    pub before: Option<SetChoice>,
    /// A tree for each thread; threads of short-lived processes are joined by command
    #[arg(long)]
    pub by_thread: bool,
    /// A tree for each value of a label (Go) or attribute (OpenTelemetry) that programs set for
    /// their threads
    #[arg(long, value_name = "KEY", conflicts_with = "by_thread")]
    pub by_attribute: Option<String>,
    /// Leave out calls with less than this share of all time
    #[arg(long, value_name = "P%", default_value = "0.1%", value_parser = parse_min)]
    pub min: f64,
    #[command(flatten)]
    pub part: OfCalls,
    #[command(flatten)]
    pub look: DisplayArgs,
    #[command(flatten)]
    pub chosen: Chosen,
    #[command(flatten)]
    pub threads: OfThreads,
}

/// Colours of boxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Colour {
    /// By image; the kernel orange, generated code violet, waiting blue, unknown frames grey.
    Image,
    /// From orange (threads ran) to blue (threads waited).
    Waiting,
}

const NOTES: &str = "\
A box is a call, as wide as its share of all time; a box on another is called by it. Boxes are \
sorted by time, not by when they ran. In a browser, a click zooms, / searches, arrows move, Esc \
shows all. Events of one unit add up: --event cpu-clock,off-cpu shows the time of threads, running \
or not.

With --diff, boxes are red where the share of the call grew since BEFORE, blue where it shrank, \
grey where the change may be chance; calls that are gone are not drawn. Calls of the same names \
are compared, rebuilt or not.

Exit codes: 0 done; 1 done, but part of the database could not be read; 2 could not.";

pub(crate) fn run(args: &FlameArgs, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let mut problems = Vec::new();
    let flame = flame(args, &mut problems)?;
    let drawn = flame::svg(&flame);
    let destination = Destination::from_argument(&args.file);
    destination.write(out, |out| Ok(out.write_all(drawn.as_bytes())?))?;
    let sound = !problems.iter().any(Problem::is_serious);
    let told = problems.iter().filter(|problem| problem.is_serious() || problem.is_of_name());
    let aside: Vec<String> = told.map(ToString::to_string).collect();
    if destination != Destination::Stdout {
        writeln!(
            out,
            "{}: open it in a browser",
            report::escape(&args.file.display().to_string())
        )?;
    }
    Ok(Outcome { sound, aside, code: None })
}

fn flame(args: &FlameArgs, problems: &mut Vec<Problem>) -> Result<Flame, AnalysisError> {
    let question = args.threads.narrow(args.chosen.question(&[])?);
    let look = (&args.look, functions(args.part.no_inlined));
    let mut loaded = Loaded::of(&question, look)?;
    let events = loaded.events(&args.chosen)?;
    let units: Vec<String> = events.iter().map(|event| loaded.unit(event)).collect();
    let unit = units.first().cloned().unwrap_or_default();
    let one_event = args.before.is_some() && events.len() > 1;
    if one_event || units.iter().any(|other| *other != unit) {
        let message = match one_event {
            true => "--diff compares one event: name one with --event".to_owned(),
            false => "these events have different units: name one with --event".to_owned(),
        };
        return Err(AnalysisError::Usage { message, help: "dcpi flame --help".to_owned() });
    }
    let what = TreeOf {
        direction: Direction::TopDown,
        part: &args.part,
        roots: roots(args.by_thread, args.by_attribute.as_deref()),
        min: args.min,
        confidence: args.look.confidence,
    };
    let mut layers = Vec::with_capacity(events.len());
    for event in &events {
        layers.push(layer(&mut loaded, event, &what)?);
    }
    if layers.iter().all(|layer| layer.rows.is_empty()) && !args.part.from.is_empty() {
        return Err(nobody_has(&args.part.from, &question, (&args.chosen, look)));
    }
    let names: Vec<&str> = events.iter().map(|event| event.name.as_str()).collect();
    let mut title = format!("{} of {}", names.join(" and "), loaded.hosts());
    if !args.part.from.is_empty() {
        title.push_str(&format!(", from {}", args.part.from.join(" ")));
    }
    problems.append(&mut loaded.problems);
    let mut mode = Layers::Sum;
    if let (Some(before), Some(event)) = (&args.before, events.first()) {
        let questions = before.questions(&question);
        let [one] = questions.as_slice() else {
            return Err(AnalysisError::Refused(format!(
                "the set {} of --diff has {} databases; name one, or compare both with dcpi diff",
                before.typed,
                questions.len()
            )));
        };
        let mut earlier = Loaded::of(one, look)?;
        let same = Chosen { events: vec![event.name.clone()], ..args.chosen.clone() };
        for event in earlier.events(&same)? {
            layers.push(layer(&mut earlier, &event, &what)?);
        }
        title.push_str(&format!(", changes since {}", before.typed));
        mode = Layers::Difference;
        problems.append(&mut earlier.problems);
    }
    let colours = match args.colour {
        Some(Colour::Image) => Colours::Image,
        Some(Colour::Waiting) => Colours::Waiting,
        None if mode == Layers::Sum && layers.len() > 1 => Colours::Waiting,
        None => Colours::Image,
    };
    Ok(Flame::of(title, unit, &layers, (mode, colours), args.icicle))
}

pub(super) fn layer(
    loaded: &mut Loaded,
    event: &EventCalls,
    what: &TreeOf<'_>,
) -> Result<Layer, AnalysisError> {
    let (tree, timed, _) = loaded.tree(event, what)?;
    let total = timed.whole().occurrences;
    Ok(Layer {
        name: event.name.clone(),
        total,
        is_waiting: is_wait(&event.name),
        rows: tree_rows(&tree, &loaded.calls.subjects, total),
    })
}

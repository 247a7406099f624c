//! `dcpi flow`: a drawing of a procedure's control flow.

use std::io::Write;
use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};

use super::Outcome;
use super::calc::{self, Calc};
use super::costs::OnMachine;
use crate::args::{Chosen, Format, Output};
use crate::destination::Destination;
use crate::error::AnalysisError;
use crate::load;
use crate::report::{Report as _, flow};

/// `dcpi flow`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct Flow {
    /// The image: name, path, or id (may be cut short)
    #[arg(value_name = "IMAGE", value_parser = NonEmptyStringValueParser::new())]
    pub image: String,
    /// The procedure: its name, part of that, or an address in it (0x1040)
    #[arg(value_name = "PROCEDURE", value_parser = NonEmptyStringValueParser::new())]
    pub procedure: String,
    /// File to write, - for the standard output
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    pub file: PathBuf,
    /// What to write [default: what the file's name ends with, else SVG]
    #[arg(long, value_name = "FORM", value_enum)]
    pub form: Option<Form>,
    /// Instructions as Intel's manuals write them, destination first [default: AT&T's syntax]
    #[arg(long)]
    pub intel: bool,
    /// On which processor, and where debug files are.
    #[command(flatten)]
    pub on: OnMachine,
    /// Which samples.
    #[command(flatten)]
    pub chosen: Chosen,
}

/// A form of drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// A picture.
    Svg,
    /// A page with the picture.
    Html,
    /// A graph for Graphviz.
    Dot,
}

const NOTES: &str = "\
Blocks are drawn from top to bottom as they are in memory: as wide as they ran often, as large as the time they took, so a tall
one is slow. Lines at the right go on, at the left back; the wider the more often. Pointing at a block shows its instructions.

Exit codes: 0 done; 1 done, but part of the database could not be read; 2 could not.";

pub(super) fn run(args: &Flow, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let calc = Calc {
        image: args.image.clone(),
        procedure: args.procedure.clone(),
        intel: args.intel,
        on: args.on.clone(),
        confidence: crate::stats::Confidence::default(),
        chosen: args.chosen.clone(),
        output: Output { format: Format::Text },
    };
    let samples = load::chosen(&calc.chosen, std::slice::from_ref(&calc.image))?;
    let report = calc::report(&calc, samples)?;
    let form = args.form.unwrap_or_else(|| match args.file.extension().and_then(|extension| extension.to_str()) {
        Some("html" | "htm") => Form::Html,
        Some("dot" | "gv") => Form::Dot,
        _ => Form::Svg,
    });
    let drawn = match form {
        Form::Svg => flow::svg(&report),
        Form::Html => flow::html(&report),
        Form::Dot => flow::dot(&report),
    };
    Destination::from_argument(&args.file).write(out, |out| Ok(out.write_all(drawn.as_bytes())?))?;
    let aside = report.problems().iter().filter(|problem| problem.is_serious()).map(ToString::to_string);
    let aside: Vec<String> = aside.collect();
    Ok(Outcome { sound: aside.is_empty(), aside, code: None })
}

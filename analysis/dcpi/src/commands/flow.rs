//! `dcpi flow`: a drawing of a procedure's control flow.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};

use super::Outcome;
use super::calc::{self, Calc};
use super::costs::OnMachine;
use crate::destination::Destination;
use crate::options::{Chosen, Format, Output};
use query::error::AnalysisError;
use query::problem;
use report::{Report as _, flow};

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
    /// What to write [default: what the file's name ends with; SVG where it has no ending]
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
Blocks are drawn from top to bottom in the order of memory. The width of a block is how often the \
block ran, its area the time that it took, so a tall block is slow. Brackets hold how sure the \
runs are; edges whose runs are of low confidence are dashed. Lines at the right lead forward, \
lines at the left back; wide lines are frequent. Pointing at a block shows its instructions.

Exit codes: 0 done; 1 done, but part of the database could not be read; 2 could not.";

/// What a file's name asks for. No other program would take an SVG for a .png.
fn form(file: &Path) -> Result<Form, AnalysisError> {
    let Some(extension) = file.extension() else { return Ok(Form::Svg) };
    match extension.to_string_lossy().to_ascii_lowercase().as_str() {
        "svg" => Ok(Form::Svg),
        "html" | "htm" => Ok(Form::Html),
        "dot" | "gv" => Ok(Form::Dot),
        other => {
            let what = format!("cannot draw a .{other}");
            Err(AnalysisError::Refused(format!(
                "{what}; name a file that ends in .svg, .html or .dot, or say --form"
            )))
        }
    }
}

pub(crate) fn run(args: &Flow, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let calc = Calc {
        image: args.image.clone(),
        procedure: args.procedure.clone(),
        intel: args.intel,
        on: args.on.clone(),
        confidence: stats::Confidence::default(),
        chosen: args.chosen.clone(),
        output: Output { format: Format::Text, full_names: false },
    };
    let form = args.form.map_or_else(|| form(&args.file), Ok)?;
    let samples = calc.chosen.question(std::slice::from_ref(&calc.image)).samples()?;
    let damage = problem::damage(&samples.problems);
    let report = calc::report(&calc, samples).map_err(|error| error.beside(damage))?;
    let drawn = match form {
        Form::Svg => flow::svg(&report),
        Form::Html => flow::html(&report),
        Form::Dot => flow::dot(&report),
    };
    Destination::from_argument(&args.file)
        .write(out, |out| Ok(out.write_all(drawn.as_bytes())?))?;
    let aside =
        report.problems().iter().filter(|problem| problem.is_serious()).map(ToString::to_string);
    let aside: Vec<String> = aside.collect();
    Ok(Outcome { sound: aside.is_empty(), aside, code: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_what_its_name_says_or_refused() {
        for (name, expected) in [
            ("x.svg", Form::Svg),
            ("-", Form::Svg),
            ("x", Form::Svg),
            ("a.b/x.HTML", Form::Html),
            ("x.y.gv", Form::Dot),
        ] {
            assert_eq!(form(Path::new(name)).unwrap(), expected, "{name}");
        }
        let refused = form(Path::new("x.png")).unwrap_err().to_string();
        assert_eq!(
            refused,
            "cannot draw a .png; name a file that ends in .svg, .html or .dot, or say --form"
        );
    }
}

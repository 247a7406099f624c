//! `dcpi flow`: a drawing of a procedure's control flow.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::Outcome;
use super::calc::{self, Calc};
use super::costs::OnMachine;
use crate::destination::Destination;
use crate::options::{Chosen, Format, Output, ProcedureArguments, SyntaxArgument};
use query::error::AnalysisError;
use query::problem;
use report::{Report as _, flow};

/// `dcpi flow`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct Flow {
    #[command(flatten)]
    pub subject: ProcedureArguments,
    /// The file to write; - for standard output
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    pub file: PathBuf,
    /// Format of the drawing [default: by the ending of the file's name; SVG if it has none]
    #[arg(long, value_name = "FORM", value_enum)]
    pub form: Option<Form>,
    #[command(flatten)]
    pub syntax: SyntaxArgument,
    #[command(flatten)]
    pub on: OnMachine,
    #[command(flatten)]
    pub chosen: Chosen,
}

/// Formats of a drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// A vector graphic.
    Svg,
    /// An HTML page with the graphic.
    Html,
    /// A graph for Graphviz.
    Dot,
}

const NOTES: &str = "\
Blocks are drawn from top to bottom in the order of their addresses. The width of a block stands \
for its executions and its area for the time that it took, so a tall block is slow. The confidence \
in the executions is in brackets; edges of low confidence are dashed. Edges at the right lead \
forward, edges at the left lead back; the wider an edge, the more executions it has. Pointing at a \
block shows its instructions.

Exit codes: 0 done; 1 done, but part of the database could not be read; 2 could not.";

/// The format that a file's name asks for. Other endings are refused: no program reads an SVG in a
/// file that is called .png.
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
        subject: args.subject.clone(),
        syntax: args.syntax,
        hot: false,
        on: args.on.clone(),
        confidence: stats::Confidence::default(),
        chosen: args.chosen.clone(),
        output: Output { format: Format::Text, full_names: false, verbose: false },
    };
    let form = args.form.map_or_else(|| form(&args.file), Ok)?;
    let samples = calc.chosen.question(std::slice::from_ref(&calc.subject.image))?.samples()?;
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

//! `dcpi-fleet review`.

use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use review::{Report, json, page, text};
use weeks::assemble;

use crate::store_option::{InStore, OfWeek};

/// `dcpi-fleet review`.
#[derive(Args, Debug)]
#[command(after_help = "\
Prices of machines, owners of code and findings that were accepted are in the store, in \
settings/prices.toml, owners.toml and findings.toml (docs/src/fleet.md).")]
pub struct Review {
    #[command(flatten)]
    store: InStore,
    #[command(flatten)]
    week: OfWeek,
    /// The file, instead of the terminal
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The form [default: by the name of the file, else text]
    #[arg(long, value_enum)]
    format: Option<Form>,
    /// Rows of each table of text
    #[arg(long, value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u32).range(1..))]
    rows: u32,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// For a terminal
    Text,
    /// One object (docs/src/fleet.md)
    Json,
    /// A page that needs nothing else, for a browser
    Html,
}

impl Review {
    fn form(&self) -> Form {
        let of_name = || {
            let name = self.output.as_ref()?.extension()?.to_str()?;
            match name {
                "html" => Some(Form::Html),
                "json" => Some(Form::Json),
                _ => None,
            }
        };
        self.format.or_else(of_name).unwrap_or(Form::Text)
    }
}

/// The command that leads from a row of a review to its instructions.
pub fn drill(store: &str, week: &str) -> String {
    format!(
        "dcpi-fleet drill --store {} --week {week} --service {{service}} --image {{image}} \
         --procedure={{procedure}}",
        review::report::shell_word(store)
    )
}

/// # Errors
/// One line, with the next step.
pub async fn run(args: &Review) -> Result<bool, String> {
    let store = args.store.open()?;
    let week = args.week.get();
    let drill = drill(store.shown(), &week.to_string());
    let report = assemble(&store, week, &drill).await.map_err(|error| error.to_string())?;
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let style = text::Style {
        columns: columns.unwrap_or(100).clamp(80, 250),
        rows: usize::try_from(args.rows).unwrap_or(usize::MAX),
    };
    let written = match &args.output {
        Some(path) => {
            let mut all = Vec::new();
            // Whole or not at all: an earlier review is not lost for a full disk.
            let part = path.with_extension("part");
            let written = write(args.form(), &report, style, &mut all)
                .and_then(|()| std::fs::write(&part, &all))
                .and_then(|()| std::fs::rename(&part, path));
            written.map_err(|error| {
                let _ = std::fs::remove_file(&part);
                format!("cannot write {}: {error}; name another with -o", path.display())
            })?;
            Ok(())
        }
        None => {
            let out = io::stdout();
            let mut out = BufWriter::new(out.lock());
            write(args.form(), &report, style, &mut out).and_then(|()| out.flush())
        }
    };
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(true),
        Err(error) => Err(format!("cannot write the review: {error}")),
        Ok(()) => Ok(report.ledger.difference() == 0),
    }
}

fn write(form: Form, report: &Report, style: text::Style, out: &mut dyn Write) -> io::Result<()> {
    match form {
        Form::Text => text::write(report, style, out),
        Form::Json => json::write(report, out),
        Form::Html => page::write(report, &nonce(), out),
    }
}

/// A number that cannot be guessed by anyone who can choose names.
pub fn nonce() -> String {
    let random = || RandomState::new().hash_one(std::process::id());
    format!("{:016x}{:016x}", random(), random())
}

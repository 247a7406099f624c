//! `dcpi check`: damage in a database, and the samples that the damage costs.

use std::io::{self, Write};

use clap::Args;
use profiledb::{Database, Fault};

use super::Outcome;
use crate::options::{Output, Place};
use query::error::AnalysisError;
use query::problem;
use report::{self, Report, Style};

/// `dcpi check`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct Check {
    #[command(flatten)]
    pub place: Place,
    #[command(flatten)]
    pub output: Output,
}

const NOTES: &str = "\
dcpi check reads every file of the database, also while dcpid writes. Reports leave out the \
samples of a damaged file and name the file; all other samples are in the reports. Removing a \
damaged file ends the messages about it. A temporary file that changed in the last ten minutes is \
dcpid's work; an older one is a remark.

Exit codes: 0 no damage, and at most remarks on files that an interrupted writer left; 1 damage, \
or files that do not belong there; 2 could not read the database.";

pub(crate) fn run(args: &Check, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    // A directory that is not a database has the same error as with every command.
    Database::open(args.place.db())?;
    let problems = profiledb::check(args.place.db())?;
    let sound = !problems.iter().any(|problem| problem.is_damage() || is_unknown(problem));
    let checked = Checked { db: args.place.db().display().to_string(), problems };
    Ok(Outcome { sound, ..super::write(&checked, &args.output, out)? })
}

/// Whether the file does not belong into a database.
fn is_unknown(problem: &profiledb::Problem) -> bool {
    matches!(problem.fault, Fault::Unknown)
}

pub struct Checked {
    db: String,
    problems: Vec<profiledb::Problem>,
}

report::fields! {
    /// CSV has a row per problem.
    #[derive(Debug)]
    pub struct CheckJson<'a> {
        db: &'a str;
        problems (rows): Vec<Found>;
    }

    /// A problem.
    #[derive(Debug)]
    pub struct Found {
        /// the file
        path: String => "path";
        /// false: a file that a writer left, or that is none of the database's
        damage: bool => "damage";
        /// text for people
        message: String => "message";
        /// part of the database that is lost by the problem
        lost: String => "lost";
    }
}

impl Checked {
    fn found(&self) -> impl Iterator<Item = Found> + '_ {
        self.problems.iter().map(|problem| Found {
            path: problem.path.display().to_string(),
            damage: problem.is_damage(),
            message: problem.to_string(),
            lost: problem.lost.to_string(),
        })
    }
}

impl Report for Checked {
    const NAME: &'static str = "check";
    type Fields<'a> = CheckJson<'a>;

    fn text(&self, _style: &Style, out: &mut dyn Write) -> io::Result<()> {
        for problem in &self.problems {
            let remark = if problem.is_damage() || is_unknown(problem) { "" } else { "remark: " };
            writeln!(out, "{remark}{}", report::escape(&problem.to_string()))?;
        }
        let damage = self.problems.iter().filter(|problem| problem.is_damage()).count();
        let unknown = self.problems.iter().filter(|problem| is_unknown(problem)).count();
        let db = report::escape(&self.db);
        match (damage, unknown) {
            (0, 0) => writeln!(out, "{db} is whole"),
            (0, 1) => writeln!(out, "{db} is whole, but for 1 file that does not belong there"),
            (0, unknown) => {
                writeln!(out, "{db} is whole, but for {unknown} files that do not belong there")
            }
            (damage, _) => {
                let counted = report::counted;
                let others = counted((self.problems.len() - damage) as u64, "other remark");
                writeln!(out, "{db} has {}; {others}", counted(damage as u64, "damaged part"))
            }
        }
    }

    fn json(&self) -> CheckJson<'_> {
        CheckJson { db: &self.db, problems: self.found().collect() }
    }

    fn problems(&self) -> &[problem::Problem] {
        &[]
    }
}

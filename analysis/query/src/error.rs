//! Why a command could not do its work. Every message is one line that ends in what to do next.

use std::io;
use std::path::{Path, PathBuf};

use profiledb::{DbError, NotADatabase, Stretch, advice};

/// Why a command could not do its work.
///
/// Missing data that a report can do without is not an error but a
/// [`Problem`](crate::problem::Problem) of the report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnalysisError {
    /// The database could not be read.
    #[error("{0}{next}", next = next_step(.0))]
    Database(#[from] DbError),
    /// The database has no epoch of any host.
    #[error("{} has no epochs yet; see whether the daemon runs: dcpictl status", root.display())]
    Empty {
        /// The database.
        root: PathBuf,
    },
    /// No such host has written to the database.
    #[error("{} has no host {asked:?}; it has {}", root.display(), list(known))]
    NoHost {
        /// The database.
        root: PathBuf,
        /// The host asked for.
        asked: String,
        /// Hosts there are.
        known: Vec<String>,
    },
    /// No epoch fits the selection.
    #[error("no epoch matches {asked}; for a list of epochs: dcpi epochs --db {}", root.display())]
    NoEpoch {
        /// The database.
        root: PathBuf,
        /// The selection, as typed.
        asked: String,
    },
    /// No epoch has samples of the stretch of time.
    #[error(
        "no samples between --since and --until; the database has some from {} to {}, and \
         'dcpictl flush' writes those that dcpid still holds",
        crate::times::rfc3339(covered.since_unix_s), crate::times::rfc3339(covered.until_unix_s)
    )]
    NoTime {
        /// The time of the samples there are.
        covered: Stretch,
    },
    /// The selected epochs have call stacks of this event, and no samples.
    #[error(
        "{event} has call stacks and no samples; see dcpi prof --inclusive --event {event}, \
         dcpi tree --event {event}, or dcpi prof --by thread --event {event}"
    )]
    StacksOnly {
        /// The event.
        event: String,
    },
    /// The image has frames in the call stacks of the selected epochs, and no samples of its own.
    #[error(
        "{image} has no samples of its own, only frames in call stacks; see dcpi prof --inclusive \
         {}",
        quoted(image)
    )]
    FramesOnly {
        /// The image, as typed.
        image: String,
    },
    /// The selected epochs did not sample this event.
    #[error("no event {asked:?} in these epochs; they have {}", list(known))]
    NoEvent {
        /// The event asked for.
        asked: String,
        /// Events there are.
        known: Vec<String>,
    },
    /// No samples were kept apart by the label, unit or process asked for.
    #[error("no samples {asked}; {}", elsewhere.clone().unwrap_or_else(|| there_are(known, how)))]
    NoScope {
        /// The scope asked for, in words.
        asked: String,
        /// Labels, units or processes that have samples; none: see `how`.
        known: Vec<String>,
        /// The next step.
        how: &'static str,
        /// The epoch that has such samples, and the option that chooses it; None: no epoch has.
        elsewhere: Option<String>,
    },
    /// The command that was recorded has no samples.
    #[error(
        "the recorded command {label} has no samples: it used too little CPU time; -a shows the whole machine"
    )]
    NothingRecorded {
        /// The command's label.
        label: String,
    },
    /// The event to sort by is not one of those shown.
    #[error(
        "cannot sort by {asked:?}, which is not shown; add it to --event, or sort by {}",
        list(shown)
    )]
    SortNotShown {
        /// The event to sort by.
        asked: String,
        /// The events shown.
        shown: Vec<String>,
    },
    /// No image with samples fits an IMAGE argument.
    #[error(
        "no image with samples has the name, path or id {asked:?}; for a list of images: dcpi prof -i (--epoch all: of all epochs)"
    )]
    NoImage {
        /// The argument.
        asked: String,
    },
    /// No procedure of the chosen images fits a PROCEDURE argument.
    #[error(
        "no procedure of {image} has the name or address {asked:?}{why}; for procedures with samples: dcpi prof{} -n 0 --full-names",
        if image == "any image" { String::new() } else { format!(" {}", quoted(image)) }
    )]
    NoProcedure {
        /// The argument.
        asked: String,
        /// The image.
        image: String,
        /// Why there may be none: empty, or from a semicolon on.
        why: String,
    },
    /// More than one procedure fits a PROCEDURE argument.
    #[error("{asked:?} matches {}; {next}", listed(known))]
    AmbiguousProcedure {
        /// The argument.
        asked: String,
        /// The candidates: name, address and image.
        known: Vec<String>,
        /// Advice on how to choose one.
        next: &'static str,
    },
    /// The command cannot do its work; the text has the reason and the next step.
    #[error("{0}")]
    Refused(String),
    /// The command could not do its work, and part of the database could not be read, which may be
    /// the reason.
    #[error("{error}; besides, {damage}; to see what is lost: dcpi check")]
    BesideDamage {
        /// The operation that failed.
        error: Box<AnalysisError>,
        /// The data that could not be read.
        damage: String,
    },
    /// A set has nothing to compare.
    #[error("the set {set} is empty: {}; dcpictl flush writes those of the running epoch; for \
    other epochs: dcpi epochs --db {root}", emptiness(*epochs, *least, event))]
    EmptySet {
        /// The set, as typed.
        set: String,
        /// Its database.
        root: String,
        /// How many epochs it names.
        epochs: usize,
        /// Samples that one of them needs.
        least: u64,
        /// The event that is compared.
        event: String,
    },
    /// There is nothing to compare a set with.
    #[error(
        "there is only one set{}; name another, or compare epochs with --each (and --epoch all)",
        too_small(*left_out, *least)
    )]
    OneSet {
        /// Epochs that have too few samples to be sets.
        left_out: usize,
        /// Samples that an epoch needs to be one.
        least: u64,
    },
    /// The command line cannot be understood.
    #[error("{message}; see {help}")]
    Usage {
        /// The part that cannot be understood.
        message: String,
        /// The command whose help shows the correct form.
        help: String,
    },
    /// The report could not be written.
    #[error("cannot write the report: {0}; check where standard output goes")]
    Output(#[from] io::Error),
    /// A file could not be written.
    #[error("cannot write {}: {source}{}; {}name another file with -o, or - for standard output",
        path.display(), advice(source), made(path, source))]
    OutputFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The report could not be turned into JSON.
    #[error("cannot write the report as JSON: {0}; use --format text")]
    Json(#[source] serde_json::Error),
}

/// How to make the directory of a file, where that is missing.
fn made(file: &Path, error: &io::Error) -> String {
    let missing = file.parent().filter(|directory| !directory.exists());
    match missing.filter(|_| error.kind() == io::ErrorKind::NotFound) {
        Some(directory) => {
            format!("make its directory (mkdir -p {}), or ", quoted(&directory.to_string_lossy()))
        }
        None => String::new(),
    }
}

impl AnalysisError {
    /// The error, with the damage that may be its cause, if there is some.
    #[must_use]
    pub fn beside(self, damage: Option<String>) -> Self {
        match damage {
            Some(damage) => Self::BesideDamage { error: Box::new(self), damage },
            None => self,
        }
    }

    /// Whether the reader of the output has gone, which is no failure.
    pub fn is_broken_pipe(&self) -> bool {
        match self {
            Self::Output(error) => error.kind() == io::ErrorKind::BrokenPipe,
            Self::Json(error) => error.io_error_kind() == Some(io::ErrorKind::BrokenPipe),
            _ => false,
        }
    }
}

/// The next step after a database error, with the separator; empty where the message has it
/// already.
fn next_step(error: &DbError) -> &'static str {
    match error {
        DbError::NotADatabase { found: NotADatabase::Missing, .. } => {
            "; name a database with --db or $DCPIDB, or let dcpid make this one"
        }
        DbError::NotADatabase { found: NotADatabase::Empty, .. } => {
            "; start dcpid with this --db, or name another database with --db or $DCPIDB"
        }
        DbError::NotADatabase { found: NotADatabase::NoFormat, .. } => {
            "; dcpid writes it anew when it starts with this --db"
        }
        DbError::NotADatabase { .. } => "; name the directory of a database with --db or $DCPIDB",
        DbError::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            "; read it as a member of the directory's group, or as root"
        }
        DbError::Io { .. } => "; check the file system and the database's directory",
        DbError::Corrupt { path, .. } if path.file_name().is_some_and(|name| name == "format") => {
            "; dcpi check names what else is damaged; remove this file, and dcpid writes it anew when it starts with this --db"
        }
        DbError::Corrupt { .. } => "; choose other epochs with --epoch (see dcpi epochs)",
        DbError::NoSuchEpoch { .. } => "; see dcpi epochs",
        DbError::InvalidName { .. } => "; see dcpi help",
        _ => "",
    }
}

/// `there are: a, b`, or the command that keeps samples apart.
fn there_are(known: &[String], how: &str) -> String {
    match known {
        [] if how.starts_with("see") => how.to_owned(),
        [] => format!("these epochs keep none apart (--epoch chooses others): {how}"),
        known => format!("there are: {} (in these epochs; --epoch chooses others)", list(known)),
    }
}

/// Why a set is empty.
fn emptiness(epochs: usize, least: u64, event: &str) -> String {
    let epochs = if epochs == 1 {
        "its epoch does not have".to_owned()
    } else {
        format!("none of its {epochs} epochs has")
    };
    let samples = if least == 1 { "a sample".to_owned() } else { format!("{least} samples") };
    format!("{epochs} {samples} of {event} outside the idle loop")
}

/// The epochs that are too small to be sets, where there is only one set.
fn too_small(left_out: usize, least: u64) -> String {
    let what = if left_out == 1 { "epoch has" } else { "epochs have" };
    if left_out == 0 {
        String::new()
    } else {
        format!(": {left_out} {what} fewer than {least} samples")
    }
}

/// A text as one word of a shell's command line.
pub fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+=:@%~".contains(c);
    if text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// Procedures for a message: their names have commas.
fn listed(names: &[String]) -> String {
    format!("{}: {}", names.len(), list(names).replace("], ", "]; "))
}

/// Names for a message: at most eight.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 8;
    if names.is_empty() {
        return "none".to_owned();
    }
    let shown: Vec<&str> = names.iter().take(SHOWN).map(String::as_str).collect();
    let more = names.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", shown.join(", "))
}

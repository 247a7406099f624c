//! `dcpi copy`, `dcpi merge`, `dcpi tar`: epochs into another database, into one epoch, into an
//! archive. The database that is read stays as it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use flate2::Compression;
use flate2::write::GzEncoder;
use image::ImageId;
use profiledb::{
    Copied, Database, DbError, Epoch, EpochId, EpochMeta, Writer, copy_code, copy_epoch,
    copy_readable_code, merge_epochs, moment,
};

use super::Outcome;
use crate::destination::Destination;
use crate::options::Source;
use model::{Facts, MergedFrom};
use query::error::AnalysisError;
use query::select::{self, EpochChoice};
use report::counted;

/// `dcpi copy`.
#[derive(Debug, Args)]
#[command(after_help = "\
The target keeps the epochs of each host apart. Epochs that are there already are brought up to \
date, so the same command may run every hour. The open epoch is copied as of its last merge \
(dcpictl flush).")]
pub struct Copy {
    /// The database to copy into; made if it does not exist
    #[arg(short = 'o', long = "output", alias = "to", value_name = "DIR")]
    pub to: PathBuf,
    /// Epochs of each host: latest, all, ID, ID..ID, or -N for the Nth before the latest
    #[arg(long, value_name = "WHICH", default_value = "all", allow_hyphen_values = true)]
    pub epoch: EpochChoice,
    /// Leave out the kept code of images: then procedures have names only where the images' files
    /// are
    #[arg(long)]
    pub without_code: bool,
    #[command(flatten)]
    pub source: Source,
}

/// `dcpi merge`.
#[derive(Debug, Args)]
#[command(after_help = "\
Counts and ledgers of all hosts are added up. The merged epochs stay as they are. An event's \
samples of different periods stay apart within the new epoch, and reports weigh each sample by its \
period.")]
pub struct Merge {
    /// The database to write the new epoch to; made if it does not exist
    #[arg(short = 'o', long = "output", alias = "to", value_name = "DIR")]
    pub to: PathBuf,
    /// Host of the new epoch [default: the host of the epochs, if they have one host]
    #[arg(long, value_name = "HOST")]
    pub as_host: Option<String>,
    /// Label of the new epoch
    #[arg(long, value_name = "LABEL")]
    pub new_label: Option<String>,
    /// Epochs of each host: latest, all, ID, ID..ID, or -N for the Nth before the latest
    #[arg(long, value_name = "WHICH", default_value = "all", allow_hyphen_values = true)]
    pub epoch: EpochChoice,
    #[command(flatten)]
    pub source: Source,
}

/// `dcpi tar`.
#[derive(Debug, Args)]
#[command(after_help = "\
The archive holds a database with these epochs and the code of their images, and nothing else: \
unpack it anywhere (tar -xzf FILE) and read it with --db. The open epoch is archived as of its \
last merge (dcpictl flush).")]
pub struct Tar {
    /// The archive, gzip-compressed; - for standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Epochs of each host: latest, all, ID, ID..ID, or -N for the Nth before the latest
    #[arg(long, value_name = "WHICH", default_value = "latest", allow_hyphen_values = true)]
    pub epoch: EpochChoice,
    /// Leave out the kept code of images: the archive is smaller, but procedures have names only
    /// where the images' files are
    #[arg(long)]
    pub without_code: bool,
    #[command(flatten)]
    pub source: Source,
}

pub(crate) fn copy(args: &Copy, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let db = Database::open(args.source.db())?;
    let chosen = select::epochs(&db, &args.source.epochs(&args.epoch))?;
    // A copy is brought up to date by the next one.
    let Report { new, updated, there, code, failed, open: _ } =
        copy_all(&db, &chosen, &args.to, !args.without_code)?;
    let to = args.to.display();
    writeln!(
        out,
        "{to}: {} copied, {updated} brought up to date, {there} already there; code of {}",
        counted(new as u64, "epoch"),
        counted(code, "image")
    )?;
    Ok(Outcome { sound: failed.is_empty(), aside: failed, ..Outcome::default() })
}

pub(crate) fn merge(args: &Merge, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let (db, epochs) = open(&args.source, &args.epoch)?;
    let mut hosts: Vec<&str> = epochs.iter().map(|epoch| epoch.meta().host.as_str()).collect();
    hosts.dedup();
    let host = match (&args.as_host, hosts.as_slice()) {
        (Some(host), _) => host.clone(),
        (None, [one]) => (*one).to_owned(),
        (None, _) => {
            let message = format!(
                "the epochs are of {} hosts: name the host of the new epoch with --as-host",
                hosts.len()
            );
            return Err(AnalysisError::Usage { message, help: "dcpi help merge".to_owned() });
        }
    };
    let canonical = |path: &Path| std::fs::canonicalize(path).ok();
    if canonical(db.root()).is_some_and(|root| canonical(&args.to) == Some(root)) {
        return Err(AnalysisError::Refused(format!(
            "{} is the database that is read: its reports would count the merged samples twice; \
             merge into another directory",
            args.to.display()
        )));
    }
    drop(Writer::open(&args.to, &host)?);
    let target = Database::open(&args.to)?;
    let aside = merged_already(&epochs, &target)?;
    let epoch =
        merge_epochs(&epochs, &target, &host, args.new_label.as_deref(), &Facts::default())?;
    let mut code = 0;
    for from in hosts {
        code += copy_code(&db, from, &images(&epochs, from)?, &target)?;
    }
    writeln!(
        out,
        "{}: epoch {epoch} of {host}, made of {}; code of {}",
        args.to.display(),
        counted(epochs.len() as u64, "epoch"),
        counted(code, "image")
    )?;
    Ok(Outcome { aside, ..Outcome::default() })
}

/// Which epochs of the target have counts of some of these already; refused where one was made of
/// exactly these.
fn merged_already(epochs: &[Epoch], target: &Database) -> Result<Vec<String>, AnalysisError> {
    let names: BTreeSet<String> = epochs
        .iter()
        .map(|epoch| format!("{}/{}", epoch.meta().host, epoch.meta().epoch))
        .collect();
    let mut aside = Vec::new();
    for host in target.hosts()? {
        for id in target.epochs(&host)? {
            // An unreadable epoch of the target is not an error here: its readers report it.
            let Ok(epoch) = target.epoch(&host, &id) else { continue };
            let MergedFrom(from) = epoch.meta().facts.get().unwrap_or_default();
            let again = names.iter().filter(|name| from.contains(name.as_str())).count();
            let to = target.root().display();
            if again == names.len() && from.len() == again {
                let message = format!("{to}: epoch {id} of {host} was made of the same epochs");
                return Err(AnalysisError::Refused(format!(
                    "{message}; remove it, or merge into another directory"
                )));
            }
            if again > 0 {
                aside.push(format!(
                    "{to}: epoch {id} of {host} has {again} of these epochs too: a report on both counts their samples twice"
                ));
            }
        }
    }
    Ok(aside)
}

pub(crate) fn tar(args: &Tar, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let db = Database::open(args.source.db())?;
    let chosen = select::epochs(&db, &args.source.epochs(&args.epoch))?;
    // Beside the archive: there must be room for it there anyway.
    let directory = match args.output.parent() {
        _ if args.output == Path::new("-") => std::env::temp_dir(),
        Some(parent) if parent != Path::new("") => parent.to_path_buf(),
        _ => PathBuf::from("."),
    };
    let destination = Destination::from_argument(&args.output);
    let report = destination.write(out, |out| {
        let scratch = Scratch::new(&directory).map_err(|source| unwritable(&directory, source))?;
        let copied = scratch.0.join("dcpi");
        let report = copy_all(&db, &chosen, &copied, !args.without_code)?;
        archive(&copied, out)?;
        Ok(report)
    })?;
    if let Destination::File(path) = destination {
        let bytes = fs::metadata(&path).map_err(|source| unwritable(&path, source))?.len();
        let (path, Report { new, code, .. }) = (path.display(), &report);
        writeln!(out, "{path}: {new} epochs, code of {code} images, {bytes} bytes")?;
    }
    let Report { failed, open, .. } = report;
    Ok(Outcome { sound: failed.is_empty(), aside: [failed, open].concat(), ..Outcome::default() })
}

fn unwritable(path: &Path, source: io::Error) -> AnalysisError {
    AnalysisError::OutputFile { path: path.to_path_buf(), source }
}

/// A directory that is removed when this is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(directory: &Path) -> io::Result<Self> {
        let path = directory.join(format!(".dcpi-tar-{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // what stays has a name that tells
    }
}

/// A tar archive of a directory, compressed.
fn archive(directory: &Path, to: impl Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(GzEncoder::new(to, Compression::default()));
    archive.mode(tar::HeaderMode::Deterministic);
    archive.append_dir_all("dcpi", directory)?;
    archive.into_inner()?.finish()?.flush()
}

#[derive(Default)]
struct Report {
    new: usize,
    updated: usize,
    there: usize,
    code: u64,
    /// Epochs and code that could not be copied, with the reason.
    failed: Vec<String>,
    /// What is missing of epochs that go on.
    open: Vec<String>,
}

fn open(source: &Source, which: &EpochChoice) -> Result<(Database, Vec<Epoch>), AnalysisError> {
    let db = Database::open(source.db())?;
    let chosen = select::epochs(&db, &source.epochs(which))?;
    let epochs =
        chosen.iter().map(|(host, id)| db.epoch(host, id)).collect::<Result<Vec<_>, _>>()?;
    Ok((db, epochs))
}

/// Copies epochs one after the other, so that one is in memory at a time. An epoch that cannot be
/// read does not keep the others from being copied.
fn copy_all(
    db: &Database,
    chosen: &[(String, EpochId)],
    target: &Path,
    with_code: bool,
) -> Result<Report, AnalysisError> {
    // The first writer makes the database.
    if let Some((host, _)) = chosen.first() {
        drop(Writer::open(target, host)?);
    }
    let target = Database::open(target)?;
    let (mut report, mut last) = (Report::default(), None);
    let mut images: BTreeMap<&str, BTreeSet<ImageId>> = BTreeMap::new();
    let copy = |host: &str, id: &EpochId| -> Result<_, DbError> {
        let epoch = db.epoch(host, id)?;
        Ok((copy_epoch(&epoch, &target)?, epoch.images()?, part(epoch.meta())))
    };
    for (host, id) in chosen {
        match copy(host, id) {
            Ok((copied, of_epoch, part)) => {
                report.open.extend(part);
                match copied {
                    Copied::New => report.new += 1,
                    Copied::Updated => report.updated += 1,
                    Copied::AlreadyThere => report.there += 1,
                }
                images.entry(host).or_default().extend(of_epoch.into_keys());
            }
            Err(error) if stops_all(&error, db) => return Err(error.into()),
            Err(error) => {
                report.failed.push(format!("epoch {id} of {host} was not copied: {error}"));
                last = Some(error);
            }
        }
    }
    // Nothing was copied: that is a failure, not a copy with problems.
    if let Some(error) = last.filter(|_| images.is_empty()) {
        return Err(error.into());
    }
    for (host, images) in images.iter().filter(|_| with_code) {
        match copy_readable_code(db, host, images, &target) {
            Ok((copied, failed)) => {
                report.code += copied;
                report.failed.extend(failed.iter().map(|error| format!("not copied: {error}")));
            }
            Err(error) if stops_all(&error, db) => return Err(error.into()),
            Err(error) => {
                report.failed.push(format!("code of images of {host} was not copied: {error}"))
            }
        }
    }
    Ok(report)
}

/// What the copy of an epoch that goes on lacks.
fn part(epoch: &EpochMeta) -> Option<String> {
    if epoch.ended_unix_s.is_some() {
        return None;
    }
    let (id, host, until) = (&epoch.epoch, &epoch.host, moment(epoch.updated_unix_s));
    let there = match epoch.merges {
        0 => format!("epoch {id} of {host} has no samples yet"),
        _ => format!("epoch {id} of {host} goes on: later samples than of {until} UTC are missing"),
    };
    Some(format!("{there}; for what was sampled until now: dcpictl flush, and then this again"))
}

/// Whether an error is of the target database, so that the next epoch would fail with it too.
fn stops_all(error: &DbError, from: &Database) -> bool {
    match error {
        DbError::Io { path, .. } | DbError::NotWritable { path, .. } | DbError::Locked { path } => {
            !path.starts_with(from.root())
        }
        _ => false,
    }
}

/// The images of these epochs of a host.
fn images(epochs: &[Epoch], host: &str) -> Result<BTreeSet<ImageId>, AnalysisError> {
    let mut images = BTreeSet::new();
    for epoch in epochs.iter().filter(|epoch| epoch.meta().host == host) {
        images.extend(epoch.images()?.into_keys());
    }
    Ok(images)
}

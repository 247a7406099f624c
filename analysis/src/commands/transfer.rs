//! `dcpi copy`, `dcpi merge`, `dcpi tar`: epochs into another database, into one epoch, into an archive. The database that is read stays as it is.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use flate2::Compression;
use flate2::write::GzEncoder;
use image::ImageId;
use profiledb::{Copied, Database, Epoch, Writer, copy_code, copy_epoch, merge_epochs};

use super::Outcome;
use crate::args::Source;
use crate::error::AnalysisError;
use crate::select::{self, EpochChoice};

/// `dcpi copy`.
#[derive(Debug, Args)]
#[command(after_help = "\
Hosts lie side by side in the target; what is there already is brought up to date, so that the same
command may run every hour. An epoch that is open is copied as of its last merge (dcpictl flush).")]
pub struct Copy {
    /// The database to copy into, made if it is not there
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    /// Which epochs of each host: latest, all, ID, ID..ID, or -N for the Nth before the latest
    #[arg(long, value_name = "WHICH", default_value = "all", allow_hyphen_values = true)]
    pub epoch: EpochChoice,
    /// Leave the kept code of images behind: their procedures have names elsewhere only if the files are there
    #[arg(long)]
    pub without_code: bool,
    /// What to read.
    #[command(flatten)]
    pub source: Source,
}

/// `dcpi merge`.
#[derive(Debug, Args)]
#[command(after_help = "\
Counts and ledgers are added up, of all hosts together. The epochs stay where they are. Epochs with
another period of the same event do not add up: that is refused.")]
pub struct Merge {
    /// The database to write the new epoch to, made if it is not there
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    /// The host that the new epoch is of [default: that of the epochs, if they are of one]
    #[arg(long, value_name = "HOST")]
    pub as_host: Option<String>,
    /// A label for the new epoch
    #[arg(long, value_name = "LABEL")]
    pub new_label: Option<String>,
    /// Which epochs of each host: latest, all, ID, ID..ID, or -N for the Nth before the latest
    #[arg(long, value_name = "WHICH", default_value = "all", allow_hyphen_values = true)]
    pub epoch: EpochChoice,
    /// What to read.
    #[command(flatten)]
    pub source: Source,
}

/// `dcpi tar`.
#[derive(Debug, Args)]
#[command(after_help = "\
The archive holds a database with these epochs and the code of their images, and nothing else:
unpack it anywhere (tar -xzf FILE) and read it with --db.")]
pub struct Tar {
    /// The archive, gzip-compressed; - for standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Which epochs of each host: latest, all, ID, ID..ID, or -N for the Nth before the latest
    #[arg(long, value_name = "WHICH", default_value = "latest", allow_hyphen_values = true)]
    pub epoch: EpochChoice,
    /// Leave the kept code of images out: smaller
    #[arg(long)]
    pub without_code: bool,
    /// What to read.
    #[command(flatten)]
    pub source: Source,
}

pub(super) fn copy(args: &Copy, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let (db, epochs) = open(&args.source, &args.epoch)?;
    let target = target(&args.to, &epochs)?;
    let report = copy_all(&db, &epochs, &target, !args.without_code)?;
    let Report { new, updated, there, code, sound } = report;
    let to = args.to.display();
    writeln!(
        out,
        "{to}: {new} epochs copied, {updated} brought up to date, {there} there already; code of {code} images"
    )?;
    Ok(Outcome { sound, ..Outcome::default() })
}

pub(super) fn merge(args: &Merge, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let (db, epochs) = open(&args.source, &args.epoch)?;
    let mut hosts: Vec<&str> = epochs.iter().map(|epoch| epoch.meta().host.as_str()).collect();
    hosts.dedup();
    let host = match (&args.as_host, hosts.as_slice()) {
        (Some(host), _) => host.clone(),
        (None, [one]) => (*one).to_owned(),
        (None, _) => {
            let message = format!("the epochs are of {} hosts: say with --as-host whose the new one is", hosts.len());
            return Err(AnalysisError::Usage { message, help: "dcpi help merge" });
        }
    };
    drop(Writer::open(&args.to, &host)?);
    let target = Database::open(&args.to)?;
    let epoch = merge_epochs(&epochs, &target, &host, args.new_label.as_deref())?;
    let mut code = 0;
    for from in hosts {
        code += copy_code(&db, from, &images(&epochs, from)?, &target)?;
    }
    writeln!(
        out,
        "{}: epoch {epoch} of {host}, made of {} epochs; code of {code} images",
        args.to.display(),
        epochs.len()
    )?;
    Ok(Outcome::default())
}

pub(super) fn tar(args: &Tar, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let (db, epochs) = open(&args.source, &args.epoch)?;
    // Beside the archive: there must be room for it there anyway.
    let directory = match args.output.parent() {
        Some(parent) if args.output != Path::new("-") && parent != Path::new("") => parent.to_path_buf(),
        _ if args.output == Path::new("-") => std::env::temp_dir(),
        _ => PathBuf::from("."),
    };
    let scratch = Scratch::new(&directory).map_err(|source| unwritable(&directory, source))?;
    let copied = scratch.0.join("dcpi");
    let target = target(&copied, &epochs)?;
    let report = copy_all(&db, &epochs, &target, !args.without_code)?;
    if args.output == Path::new("-") {
        archive(&copied, &mut *out)?;
    } else {
        let whole = scratch.0.join("archive");
        let write = || {
            let mut file = File::create(&whole)?;
            archive(&copied, &mut file)?;
            file.sync_all()?;
            fs::rename(&whole, &args.output)
        };
        write().map_err(|source| unwritable(&args.output, source))?;
        let bytes = fs::metadata(&args.output)?.len();
        writeln!(
            out,
            "{}: {} epochs, code of {} images, {bytes} bytes",
            args.output.display(),
            report.new,
            report.code
        )?;
    }
    Ok(Outcome { sound: report.sound, ..Outcome::default() })
}

fn unwritable(path: &Path, source: io::Error) -> AnalysisError {
    AnalysisError::OutputFile { path: path.to_path_buf(), source }
}

/// A directory of ours that goes when it is no longer needed.
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
    sound: bool,
}

fn open(source: &Source, which: &EpochChoice) -> Result<(Database, Vec<Epoch>), AnalysisError> {
    let db = Database::open(source.db())?;
    let chosen = select::epochs(&db, source, which)?;
    let epochs = chosen.iter().map(|(host, id)| db.epoch(host, id)).collect::<Result<Vec<_>, _>>()?;
    Ok((db, epochs))
}

/// The database to write to: its first writer makes it.
fn target(root: &Path, epochs: &[Epoch]) -> Result<Database, AnalysisError> {
    if let Some(epoch) = epochs.first() {
        drop(Writer::open(root, &epoch.meta().host)?);
    }
    Ok(Database::open(root)?)
}

fn copy_all(db: &Database, epochs: &[Epoch], target: &Database, with_code: bool) -> Result<Report, AnalysisError> {
    let mut report = Report { sound: true, ..Report::default() };
    for epoch in epochs {
        match copy_epoch(epoch, target)? {
            Copied::New => report.new += 1,
            Copied::Updated => report.updated += 1,
            Copied::AlreadyThere => report.there += 1,
        }
    }
    let hosts: BTreeSet<&str> = epochs.iter().map(|epoch| epoch.meta().host.as_str()).collect();
    for host in hosts.into_iter().filter(|_| with_code) {
        report.code += copy_code(db, host, &images(epochs, host)?, target)?;
    }
    Ok(report)
}

/// The images of these epochs of a host.
fn images(epochs: &[Epoch], host: &str) -> Result<BTreeSet<ImageId>, AnalysisError> {
    let mut images = BTreeSet::new();
    for epoch in epochs.iter().filter(|epoch| epoch.meta().host == host) {
        images.extend(epoch.images()?.into_keys());
    }
    Ok(images)
}

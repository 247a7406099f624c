//! Checks a database for damage: every byte of every file, every name, and every ledger against the
//! profiles.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use image::ImageId;
use model::{Frame, Ledgers, Totals};

use crate::code;
use crate::description::EpochMeta;
use crate::epoch::EpochId;
use crate::error::{Damage, DbError, Operation};
use crate::format_file;
use crate::listing;
use crate::naming::{self, ProfileKey, TEMPORARY_SUFFIX};
use crate::section_sum;
use crate::segment::{Section, SectionKey, SectionKind, Segment, Span, cover};
use crate::sliced;
use crate::stacks::StacksKey;
use crate::storage::{Directory, Disk, Entry, Storage};

/// Times that an epoch is read again when its segments are folded meanwhile. A fold takes longer
/// than reading the directory, so a second reading nearly always succeeds.
const LOOKS_MAX: usize = 20;
/// Age from which a temporary file counts as left over, in seconds since its last change. A running
/// writer changes its temporary file all the time, and renames it at the end. With a smaller age,
/// a file of a writer whose disk is slow is called left over; with a larger one, the files of a
/// killed writer are called so later.
const LEFT_OVER_AFTER_S: u64 = 600;

/// A defect of a database.
#[derive(Debug)]
pub struct Problem {
    /// The file or directory.
    pub path: PathBuf,
    /// The defect of that file.
    pub fault: Fault,
    /// What is lost by the defect. All else can be read.
    pub lost: Lost,
}

/// Kinds of defects.
#[derive(Debug)]
#[non_exhaustive]
pub enum Fault {
    /// The file is damaged, newer than this release, or unreadable.
    Unreadable(DbError),
    /// The file was left by a writer that was killed; the next writer removes it.
    Leftover,
    /// The file is none of a database; no reader uses it.
    Unknown,
    /// The merged samples in the ledger of an event differ from the samples in its profiles.
    Unbalanced {
        /// The event.
        event: String,
        /// `merged` of the ledger, in samples.
        ledger: u64,
        /// Sum over the profiles, in samples.
        profiles: u64,
    },
    /// The ledger of an event does not add up: the samples taken are not those merged, unresolved
    /// and lost.
    Open {
        /// The event.
        event: String,
        /// Samples taken.
        taken: u64,
        /// Samples that the ledger accounts for.
        accounted: u64,
    },
    /// An image has samples but no record.
    Nameless(ImageId),
}

/// What is lost by a defect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lost {
    /// Nothing.
    Nothing,
    /// Samples of one profile, from some merges.
    Samples {
        /// The profile.
        key: ProfileKey,
        /// Number of samples; None where it is not known.
        samples: Option<u64>,
    },
    /// Everything that the merges from the first to the last added.
    Merges {
        /// The first.
        first: u64,
        /// The last.
        last: u64,
    },
    /// Call stacks of an event, from some merges.
    Stacks {
        /// The event and scope.
        key: StacksKey,
        /// Number of stacks.
        stacks: u64,
    },
    /// Names or paths of images.
    Images,
    /// When within a segment its samples were taken.
    Times,
    /// Symbols of an image.
    Symbols(ImageId),
    /// The kept code of an image.
    Code(ImageId),
    /// The epoch's description as of some merges.
    Description,
    /// A whole epoch.
    Epoch,
    /// The content of the file is not known.
    Unknown,
}

impl Problem {
    /// Whether something is lost or does not add up; else the defect is only untidy.
    pub const fn is_damage(&self) -> bool {
        !matches!(self.fault, Fault::Leftover | Fault::Unknown)
    }
}

impl fmt::Display for Problem {
    /// One line: the defect, and what is lost by it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.fault {
            Fault::Unreadable(error) => write!(f, "{error}")?,
            Fault::Leftover => {
                write!(f, "{path} was left by a writer that was killed; the next one removes it")?
            }
            Fault::Unknown => write!(f, "{path} is no file of a profile database")?,
            Fault::Unbalanced { event, ledger, profiles } => {
                write!(
                    f,
                    "{path}: the ledger of event {event:?} has {ledger} merged samples, its profiles have {profiles}"
                )?;
            }
            Fault::Open { event, taken, accounted } => {
                write!(
                    f,
                    "{path}: the ledger of event {event:?} has {taken} samples taken and accounts for {accounted}"
                )?;
            }
            Fault::Nameless(image) => write!(f, "{path}: image {image} has samples but no record")?,
        }
        write!(f, "; lost: {}", self.lost)
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::Samples { key, samples } => {
                match samples {
                    Some(samples) => write!(f, "{samples} samples")?,
                    None => f.write_str("samples")?,
                }
                write!(f, " of {:?} in image {}", key.name(), key.image)
            }
            Self::Merges { first, last } if first == last => write!(f, "what merge {first} added"),
            Self::Merges { first, last } => write!(f, "what merges {first} to {last} added"),
            Self::Stacks { key, stacks } => write!(f, "{stacks} call stacks of {:?}", key.event),
            Self::Images => f.write_str("names and paths of images"),
            Self::Times => f.write_str("the times of some samples, within a few minutes"),
            Self::Symbols(image) => write!(f, "symbols of image {image}"),
            Self::Code(image) => write!(f, "the code of image {image}"),
            Self::Description => f.write_str("the description of the epoch as of that merge"),
            Self::Epoch => f.write_str("the epoch"),
            Self::Unknown => f.write_str("not known"),
        }
    }
}

/// Checks everything in a database, also while a daemon writes it, and returns the defects; empty:
/// there are none. A temporary file that changed in the last ten minutes is no defect: a writer may
/// be writing it. Holds one file in memory at a time.
///
/// # Errors
/// [`DbError::Io`] when a directory cannot be listed, [`DbError::NotADatabase`]. Files that cannot
/// be read are problems, not errors.
pub fn check(root: &Path) -> Result<Vec<Problem>, DbError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    check_on(Arc::new(Directory), root, now.as_secs())
}

/// As [`check`], on another storage, at a time in seconds since 1970 UTC.
pub fn check_on(
    storage: Arc<dyn Storage>,
    root: &Path,
    now_unix_s: u64,
) -> Result<Vec<Problem>, DbError> {
    let disk = Disk::new(storage);
    let mut checker = Checker { disk, now_unix_s, problems: Vec::new() };
    let mut readable = true;
    match format_file::check(&checker.disk, root) {
        Ok(()) => {}
        Err(error @ (DbError::Corrupt { .. } | DbError::NewerFormat { .. })) => {
            readable = !matches!(error, DbError::NewerFormat { .. });
            checker.tell(naming::format_path(root), Fault::Unreadable(error), Lost::Nothing);
        }
        Err(error) => return Err(error),
    }
    if readable {
        checker.root(root)?;
    }
    Ok(checker.problems)
}

struct Checker {
    disk: Disk,
    /// Time of the check, in seconds since 1970 UTC.
    now_unix_s: u64,
    problems: Vec<Problem>,
}

impl Checker {
    fn tell(&mut self, path: PathBuf, fault: Fault, lost: Lost) {
        self.problems.push(Problem { path, fault, lost });
    }

    /// Whether a running writer may be writing or removing the file or directory, by its age. A
    /// time of change in the future, from a clock that was set back, is as old as any.
    fn is_in_use(&self, entry: &Entry) -> bool {
        let age_s = self.now_unix_s.checked_sub(entry.modified_unix_s);
        age_s.is_some_and(|age_s| age_s < LEFT_OVER_AFTER_S)
    }

    /// Reports a file whose name has no meaning, unless a writer may be writing it.
    fn stray(&mut self, directory: &Path, entry: &Entry) {
        let is_leftover = !entry.is_directory && entry.name.ends_with(TEMPORARY_SUFFIX);
        if is_leftover && self.is_in_use(entry) {
            return;
        }
        let fault = if is_leftover { Fault::Leftover } else { Fault::Unknown };
        self.tell(directory.join(&entry.name), fault, Lost::Nothing);
    }

    fn root(&mut self, root: &Path) -> Result<(), DbError> {
        for entry in self.disk.list(root)? {
            let path = root.join(&entry.name);
            match (entry.name.as_str(), entry.is_directory) {
                ("lost+found", true) => {}
                _ if path == naming::hosts_path(root) && entry.is_directory => {}
                _ if path == naming::code_path(root) && entry.is_directory => self.code(&path)?,
                _ if path == naming::format_path(root) => {}
                _ => self.stray(root, &entry),
            }
        }
        let hosts = naming::hosts_path(root);
        for entry in self.disk.list_if_there(&hosts)? {
            if entry.is_directory && naming::check_host(&entry.name).is_ok() {
                self.host(root, &entry.name)?;
            } else {
                self.stray(&hosts, &entry);
            }
        }
        Ok(())
    }

    fn host(&mut self, root: &Path, host: &str) -> Result<(), DbError> {
        let directory = naming::host_path(root, host);
        for entry in self.disk.list_if_there(&directory)? {
            let path = directory.join(&entry.name);
            if let (Ok(epoch), true) = (entry.name.parse::<EpochId>(), entry.is_directory) {
                self.epoch(root, host, &epoch)?;
            } else if entry.is_directory && naming::is_gone_name(&entry.name) {
                if !self.is_in_use(&entry) {
                    self.tell(path, Fault::Leftover, Lost::Nothing);
                }
            } else if path == naming::code_path(&directory) && entry.is_directory {
                self.code(&path)?;
            } else if path != naming::lock_path(root, host)
                && !entry.name.starts_with(naming::CATALOGUE)
            {
                self.stray(&directory, &entry);
            }
        }
        Ok(())
    }

    fn code(&mut self, directory: &Path) -> Result<(), DbError> {
        for entry in self.disk.list_if_there(directory)? {
            let found = code::parse_name(&entry.name);
            let Some((image, kind)) = found.filter(|_| !entry.is_directory) else {
                self.stray(directory, &entry);
                continue;
            };
            let path = directory.join(&entry.name);
            let read = self.disk.read_if_there(&path);
            let check = |file: Vec<u8>| code::check_file(&path, &file, &image, kind);
            if let Err(error) = read.and_then(|file| file.map_or(Ok(()), check)) {
                self.tell(path, Fault::Unreadable(error), Lost::Code(image));
            }
        }
        Ok(())
    }

    fn epoch(&mut self, root: &Path, host: &str, epoch: &EpochId) -> Result<(), DbError> {
        let told = self.problems.len();
        for _ in 0..LOOKS_MAX {
            if self.look(root, host, epoch)? {
                return Ok(());
            }
            self.problems.truncate(told);
        }
        let path = naming::epoch_path(root, host, epoch);
        let source =
            std::io::Error::other("its files are replaced faster than they can be read; try again");
        let error = DbError::Io { op: Operation::Read, path: path.clone(), source };
        self.tell(path, Fault::Unreadable(error), Lost::Nothing);
        Ok(())
    }

    /// Checks an epoch once; false when the epoch was folded meanwhile.
    fn look(&mut self, root: &Path, host: &str, epoch: &EpochId) -> Result<bool, DbError> {
        let directory = naming::epoch_path(root, host, epoch);
        let entries = self.disk.list_if_there(&directory)?;
        let files = entries.iter().filter(|entry| !entry.is_directory);
        let spans: Vec<Span> = files.filter_map(|entry| Span::parse(&entry.name)).collect();
        let (taken, missing) = cover(spans.clone());
        for entry in &entries {
            match Span::parse(&entry.name).filter(|_| !entry.is_directory) {
                // A wider segment replaces it: it stays for copies under way, and is removed then.
                Some(span) if taken.iter().any(|wide| wide.covers(span)) => {}
                Some(_) => self.tell(directory.join(&entry.name), Fault::Leftover, Lost::Nothing),
                None => self.stray(&directory, entry),
            }
        }
        let is_begun = entries.iter().any(|entry| self.is_in_use(entry));
        let only_temporary = entries.iter().all(|entry| entry.name.ends_with(TEMPORARY_SUFFIX));
        if taken.is_empty() && only_temporary && !is_begun {
            self.tell(directory.clone(), Fault::Leftover, Lost::Nothing);
        }
        let mut sum = Sum::default();
        for span in &taken {
            let path = directory.join(span.name());
            let lost = Lost::Merges { first: span.first, last: span.last };
            match Segment::read(&self.disk, &directory, *span, (host, epoch)) {
                Ok(Some(segment)) => self.segment(&segment, &mut sum),
                Ok(None) if listing::spans(&self.disk, &directory)? != spans => return Ok(false),
                // The name is listed but leads to no file: a dangling link.
                Ok(None) => self.tell_missing(path, *span),
                Err(error) => self.tell(path, Fault::Unreadable(error), lost),
            }
        }
        for span in missing {
            self.tell_missing(directory.join(span.name()), span);
        }
        self.balance(&directory, &sum);
        Ok(true)
    }

    fn tell_missing(&mut self, path: PathBuf, span: Span) {
        let (first, last) = (span.first, span.last);
        let damage = Damage::Missing { first, last };
        let fault = Fault::Unreadable(DbError::Corrupt { path: path.clone(), offset: 0, damage });
        self.tell(path, fault, Lost::Merges { first, last });
    }

    /// Checks every section, and every byte between them.
    fn segment(&mut self, segment: &Segment, sum: &mut Sum) {
        let before = self.problems.len();
        for section in &segment.sections {
            if let Err(error) = sum.add(segment, section) {
                self.tell(segment.path.clone(), Fault::Unreadable(error), lost_with(section));
            }
        }
        match segment.check_whole() {
            Err(error) if self.problems.len() == before => {
                self.tell(segment.path.clone(), Fault::Unreadable(error), Lost::Nothing);
            }
            _ => {}
        }
    }

    fn balance(&mut self, directory: &Path, sum: &Sum) {
        let Some(meta) = &sum.meta else { return };
        let mut totals = Totals::default();
        for (key, samples) in &sum.samples {
            if let Some(key) = key.profile(&meta.events) {
                totals.add(&key.measure, Some(&key.image), *samples);
            }
        }
        self.ledgers(directory, &meta.ledgers, &totals);
        for image in sum.sampled.difference(&sum.described) {
            self.tell(directory.to_owned(), Fault::Nameless(*image), Lost::Images);
        }
    }

    fn ledgers(&mut self, directory: &Path, ledgers: &Ledgers, totals: &Totals) {
        for (event, ledger, profiles) in totals.unbalanced(ledgers) {
            self.tell(
                directory.to_owned(),
                Fault::Unbalanced { event, ledger, profiles },
                Lost::Unknown,
            );
        }
        for (event, _, ledger) in ledgers.iter().filter(|(_, _, ledger)| !ledger.closes()) {
            let (taken, accounted) = (ledger.taken, ledger.accounted());
            let fault = Fault::Open { event: event.to_owned(), taken, accounted };
            self.tell(directory.to_owned(), fault, Lost::Nothing);
        }
    }
}

/// The sums over the segments of an epoch.
#[derive(Default)]
struct Sum {
    /// The latest description that can be read.
    meta: Option<EpochMeta>,
    /// Samples of each profile's section.
    samples: BTreeMap<SectionKey, u64>,
    sampled: BTreeSet<ImageId>,
    described: BTreeSet<ImageId>,
}

impl Sum {
    fn add(&mut self, segment: &Segment, section: &Section) -> Result<(), DbError> {
        let part = [(segment, section)];
        if let Some(shape) = section.key.kind.shape() {
            self.sampled.extend(section.key.image);
            let total = self.samples.entry(section.key.clone()).or_default();
            *total = total.saturating_add(section_sum::counts(shape, &part)?.total());
            return Ok(());
        }
        match section.key.kind {
            SectionKind::META => self.meta = section_sum::meta(segment)?.or(self.meta.take()),
            SectionKind::IMAGES => self.described.extend(section_sum::records(&part)?.into_keys()),
            SectionKind::SYMBOLS => {
                if let Some(image) = &section.key.image {
                    section_sum::symbols(image, &part)?;
                }
            }
            SectionKind::STACKS => {
                for frame in section_sum::stacks(&part)?.distinct_frames() {
                    if let Frame::Code(image, _) = frame {
                        self.sampled.insert(*image);
                    }
                }
            }
            SectionKind::SLICES => drop(sliced::slices(segment)?),
            kind if kind.of_timing().is_some() => sliced::check_timing(segment, section)?,
            // The section is of a later release, so only its checksum can be checked.
            _ => drop(segment.bytes(section)?),
        }
        Ok(())
    }
}

fn lost_with(section: &Section) -> Lost {
    match (section.key.kind, section.key.image) {
        (SectionKind::META, _) => Lost::Description,
        (SectionKind::SLICES, _) => Lost::Times,
        (kind, _) if kind.of_timing().is_some() => Lost::Times,
        (SectionKind::IMAGES, _) => Lost::Images,
        (SectionKind::SYMBOLS, Some(image)) => Lost::Symbols(image),
        _ => match section.key.profile(&[]) {
            Some(key) => Lost::Samples { key, samples: Some(section.total) },
            None => match section.key.stacks() {
                Some(key) => Lost::Stacks { key, stacks: section.total },
                None => Lost::Unknown,
            },
        },
    }
}

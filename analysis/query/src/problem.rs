//! Notes of a report: missing names, files that could not be read, doubtful data.

use std::fmt;
use std::path::PathBuf;

use image::{ImageError, ImageId, LinesCut};
use profiledb::{DbError, moment};

/// Follows the name of an inlined function, in reports and where such a name is asked for.
pub const INLINED: &str = " (inlined)";

/// Missing or doubtful data that a report had to work around.
#[derive(Debug)]
#[non_exhaustive]
pub enum Problem {
    /// A file of the database could not be read: its samples are missing from the report.
    Unreadable {
        /// The file and the reason.
        error: DbError,
    },
    /// The kept code of an image could not be read: its procedures come from the file or from
    /// recorded symbols, or are not known.
    CodeUnreadable {
        /// The file and the reason.
        error: DbError,
    },
    /// An image's file is gone or changed; its procedures come from the code that dcpid kept.
    FromCodeStore {
        /// The image's name.
        image: String,
        /// Its id.
        id: ImageId,
        /// Its samples by event.
        counts: Vec<u64>,
        /// Why the file is of no use.
        why: NoProcedures,
    },
    /// The model of the processor lacks the instructions of an image, so the image's time is not
    /// explained.
    NoMachine {
        /// The image's name.
        image: String,
        /// The model's name.
        machine: &'static str,
    },
    /// The epochs recorded several commands: the samples are those of the whole machine.
    SeveralCommands {
        /// The labels of the commands.
        labels: Vec<String>,
    },
    /// An epoch was removed while it was read.
    Vanished {
        /// Its host.
        host: String,
        /// Its name.
        epoch: String,
    },
    /// An epoch's profiles have another number of samples than its ledger.
    Unbalanced {
        /// Its host.
        host: String,
        /// Its name.
        epoch: String,
        /// The event.
        event: String,
        /// Samples by the ledger.
        ledger: u64,
        /// Samples in the profiles.
        profiles: u64,
    },
    /// A clock was set while an epoch lasted: back, and the epoch's times are ahead of it since; or
    /// forward, and no sample has a time between.
    ClockSet {
        /// Its host.
        host: String,
        /// Its name.
        epoch: String,
        /// The epoch's time then, in seconds since 1970 UTC; the first of several times.
        at_unix_s: u64,
        /// Forward, not back.
        is_forward: bool,
        /// How far the clock was set in all, in seconds.
        by_s: u64,
    },
    /// An epoch lacks samples of a time because dcpid was killed.
    Killed {
        /// Its host.
        host: String,
        /// The last merge before, in seconds since 1970 UTC.
        since_unix_s: u64,
        /// The next start of dcpid, in seconds since 1970 UTC.
        until_unix_s: u64,
    },
    /// An epoch has no files.
    NoFiles {
        /// Its host.
        host: String,
        /// Its name.
        epoch: String,
    },
    /// The end of an epoch is missing: later epochs of its host are there, and it has not ended.
    EndMissing {
        /// Its host.
        host: String,
        /// Its name.
        epoch: String,
        /// Its last merge that is there, in seconds since 1970 UTC.
        until_unix_s: u64,
    },
    /// The epochs count an event in different units: sums of them mean nothing.
    UnitsDiffer {
        /// The event.
        event: String,
        /// The units.
        units: Vec<String>,
    },
    /// An image's samples have no procedures.
    NoProcedures {
        /// The image's name.
        image: String,
        /// Its id.
        id: ImageId,
        /// Its samples by event.
        counts: Vec<u64>,
        /// Why.
        why: NoProcedures,
    },
    /// No image has procedures.
    NoNames,
    /// An image has no symbol table, and some of its samples are in procedures without a name.
    Stripped {
        /// The image's name.
        image: String,
        /// Its id.
        id: ImageId,
        /// Samples of these procedures by event.
        counts: Vec<u64>,
    },
    /// A procedure's instructions cannot be shown.
    NoCode {
        /// The image's name.
        image: String,
        /// Its id.
        id: ImageId,
        /// Why.
        why: NoCode,
    },
    /// A procedure is listed in part only: it is larger than the limit.
    ListingCut {
        /// The procedure.
        procedure: String,
        /// Bytes of it that are listed.
        listed: u64,
    },
    /// An image's source lines are not known.
    NoLines {
        /// The image's name.
        image: String,
        /// Its id.
        id: ImageId,
        /// Its samples by event.
        counts: Vec<u64>,
        /// Why the debug information is of no use; none: there is none.
        why: Option<String>,
    },
    /// Source files are not where the debug information says.
    SourceMissing {
        /// Their names.
        files: Vec<String>,
    },
    /// Source files that were changed after the code was built.
    SourceNewer {
        /// Their names.
        files: Vec<String>,
    },
    /// Source files that the owner of the image may not read.
    SourceWithheld {
        /// Their names.
        files: Vec<String>,
    },
    /// A procedure is meant by a part of its name.
    PartOfName {
        /// What was asked for.
        asked: String,
        /// The name.
        name: String,
    },
    /// A procedure is also inlined into others, which is not part of the answer.
    AlsoInlined {
        /// Its name.
        name: String,
    },
    /// Some source lines of an image are not known.
    LinesCut {
        /// The image's name.
        image: String,
        /// Its id.
        id: ImageId,
        /// Why.
        why: LinesCut,
    },
    /// Other pieces of generated code have the name of the procedure that was asked for.
    OtherPieces {
        /// The name.
        name: String,
        /// Their samples, of all events.
        samples: u64,
        /// Their addresses as reports show them, of the piece with the most samples first.
        at: Vec<u64>,
    },
    /// The kernel's procedures come from a file for its release, which may be of another build.
    KernelMapUnchecked {
        /// The image's name.
        image: String,
        /// Its id.
        id: ImageId,
        /// The file.
        map: PathBuf,
    },
}

/// Adds damage, unless damage of the same file is named already: many profiles of one file are one
/// problem. A damaged epoch names its file in words.
pub fn add_unreadable(problems: &mut Vec<Problem>, error: DbError) {
    let same = |problem: &Problem| match (problem, &error) {
        (
            Problem::Unreadable { error: DbError::Corrupt { path: named, .. } },
            DbError::Corrupt { path, .. },
        ) => named == path,
        (
            Problem::Unreadable { error: DbError::Damaged { why, .. } },
            DbError::Corrupt { path, .. },
        )
        | (
            Problem::Unreadable { error: DbError::Corrupt { path, .. } },
            DbError::Damaged { why, .. },
        ) => why.starts_with(&format!("{} is damaged", path.display())),
        (Problem::Unreadable { error: known }, error) => known.to_string() == error.to_string(),
        _ => false,
    };
    if !problems.iter().any(same) {
        problems.push(Problem::Unreadable { error });
    }
}

/// The first serious problem and the number of others, in a few words, for an error that may come
/// of it. None without serious problems.
pub fn damage(problems: &[Problem]) -> Option<String> {
    let mut serious = problems.iter().filter(|problem| problem.is_serious());
    let first = serious.next()?.to_string();
    let more = serious.count();
    Some(if more > 0 { format!("{first} (and {more} more)") } else { first })
}

/// Why a procedure's instructions cannot be shown.
#[derive(Debug)]
#[non_exhaustive]
pub enum NoCode {
    /// The file is gone or was rebuilt, and the daemon did not keep this code.
    NotKept,
    /// The kernel's code is only in the running kernel, which patches it.
    Kernel,
    /// A program made the code while it ran, and dcpid has not kept it.
    Generated,
    /// The instruction set is not known to this program.
    UnknownMachine {
        /// The ELF file's `e_machine`.
        machine: u16,
    },
    /// The bytes could not be read.
    Unreadable {
        /// Why.
        error: ImageError,
    },
}

/// Why an image has no procedures.
#[derive(Debug)]
#[non_exhaustive]
pub enum NoProcedures {
    /// There is no file at the image's path any more, or on this machine.
    FileGone,
    /// The file has been replaced by another build.
    FileChanged {
        /// The build that is there now.
        found: ImageId,
    },
    /// The file is there, but cannot be read.
    FileUnreadable {
        /// Why.
        error: ImageError,
    },
    /// The file has no procedures.
    NoneInFile,
    /// The image is not a file, and dcpid could not read its symbols.
    NotRecorded,
}

impl Problem {
    /// A stable word for programs.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "unreadable",
            Self::CodeUnreadable { .. } => "code_unreadable",
            Self::FromCodeStore { .. } => "from_code_store",
            Self::NoMachine { .. } => "no_machine",
            Self::SeveralCommands { .. } => "several_commands",
            Self::Vanished { .. } => "vanished",
            Self::Unbalanced { .. } => "unbalanced",
            Self::ClockSet { is_forward: false, .. } => "clock_set_back",
            Self::ClockSet { is_forward: true, .. } => "clock_set_forward",
            Self::Killed { .. } => "killed",
            Self::NoFiles { .. } => "no_files",
            Self::EndMissing { .. } => "end_missing",
            Self::UnitsDiffer { .. } => "units_differ",
            Self::NoProcedures { .. } => "no_procedures",
            Self::NoNames => "no_names",
            Self::Stripped { .. } => "stripped",
            Self::KernelMapUnchecked { .. } => "kernel_map_unchecked",
            Self::NoCode { .. } => "no_code",
            Self::ListingCut { .. } => "listing_cut",
            Self::NoLines { .. } => "no_lines",
            Self::SourceMissing { .. } => "source_missing",
            Self::SourceNewer { .. } => "source_newer",
            Self::SourceWithheld { .. } => "source_withheld",
            Self::LinesCut { .. } => "lines_cut",
            Self::PartOfName { .. } => "part_of_name",
            Self::AlsoInlined { .. } => "also_inlined",
            Self::OtherPieces { .. } => "other_pieces",
        }
    }

    /// Whether it is about how a PROCEDURE argument was understood.
    pub const fn is_of_name(&self) -> bool {
        matches!(
            self,
            Self::PartOfName { .. } | Self::AlsoInlined { .. } | Self::OtherPieces { .. }
        )
    }

    /// Whether the report is incomplete, which means exit code 1: samples are missing or counted
    /// wrongly, or no procedure could be found. A single image without names is not serious:
    /// programs are upgraded every day, all their samples are counted, and the rows say so.
    pub const fn is_serious(&self) -> bool {
        matches!(
            self,
            Self::Unreadable { .. }
                | Self::Vanished { .. }
                | Self::Unbalanced { .. }
                | Self::NoFiles { .. }
                | Self::EndMissing { .. }
                | Self::NoNames
        )
    }

    /// Name and id of the image that the problem is about.
    pub fn image(&self) -> Option<(&str, &ImageId)> {
        match self {
            Self::NoProcedures { image, id, .. }
            | Self::FromCodeStore { image, id, .. }
            | Self::Stripped { image, id, .. }
            | Self::NoCode { image, id, .. }
            | Self::NoLines { image, id, .. }
            | Self::LinesCut { image, id, .. }
            | Self::KernelMapUnchecked { image, id, .. } => Some((image, id)),
            _ => None,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { error } => write!(f, "left out: {error}"),
            Self::CodeUnreadable { error } => write!(f, "kept code could not be read: {error}"),
            Self::FromCodeStore { image, why, .. } => {
                write!(f, "{image}: {why}; its procedures are from the code that dcpid kept")
            }
            Self::NoMachine { image, machine } => {
                write!(f, "{image}: time not explained: its instructions are not those of {machine}; name another --machine")
            }
            Self::SeveralCommands { labels } => write!(
                f,
                "the samples are of the whole machine: these epochs recorded several commands ({}); --label chooses one",
                labels.join(", ")
            ),
            Self::Vanished { host, epoch } => write!(f, "left out: epoch {epoch} of {host} was \
            removed during the report"),
            Self::Unbalanced { host, epoch, event, ledger, profiles } => write!(
                f,
                "epoch {epoch} of {host}: the ledger has {ledger} samples of {event}, the profiles have {profiles}"
            ),
            Self::ClockSet { .. }
            | Self::Killed { .. }
            | Self::NoFiles { .. }
            | Self::EndMissing { .. } => self.write_of_epoch(f),
            Self::UnitsDiffer { event, units } => write!(
                f,
                "these epochs count {event} in {}: sums over them mean nothing; choose epochs of one unit with --epoch",
                units.join(" and in ")
            ),
            Self::NoProcedures { image, why, .. } => write!(f, "{image}: no procedures: {why}"),
            Self::NoNames => f.write_str(
                "no procedure of any image could be found: run dcpi on a machine that has the images, or report by image with dcpi prof -i",
            ),
            Self::Stripped { image, .. } => {
                write!(f, "{image}: neither the image nor a debug file has a symbol table: some procedures are shown by address")
            }
            Self::KernelMapUnchecked { image, map, .. } => {
                write!(f, "{image}: procedures are from {}, which is of this release but perhaps of another build", map.display())
            }
            Self::NoCode { image, why, .. } => write!(f, "{image}: instructions are not known, only addresses with samples: {why}"),
            Self::ListingCut { procedure, listed } => {
                write!(
                    f,
                    "{procedure}: only its first {listed} bytes are listed; the last line has the samples of the rest"
                )
            }
            Self::NoLines { image, why: None, .. } => write!(
                f,
                "{image}: no source lines: neither the image nor a debug file has debug information; install debug symbols, see --debug-root"
            ),
            Self::NoLines { image, why: Some(why), .. } => write!(f, "{image}: no source lines: {why}"),
            Self::SourceMissing { files } => {
                const NAMED: usize = 3;
                let more = files.len().saturating_sub(NAMED);
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                let named: Vec<&str> = files.iter().take(NAMED).map(String::as_str).collect();
                let next = "name their directory with --source-dir";
                write!(f, "source files not found: {}{more}; {next}", named.join(", "))
            }
            Self::SourceNewer { files } => write!(
                f,
                "source changed after the code was built, so lines may be others: {}; name the directory of the text that was compiled with --source-dir",
                first_of(files)
            ),
            Self::SourceWithheld { files } => write!(
                f,
                "source not read, as root must not show what the image's owner may not read: {}; name its directory with --source-dir",
                first_of(files)
            ),
            Self::LinesCut { image, why, .. } => write!(f, "{image}: some source lines and inlined functions are missing: {why}"),
            Self::PartOfName { .. } | Self::AlsoInlined { .. } | Self::OtherPieces { .. } => {
                self.write_of_name(f)
            }
        }
    }
}

impl Problem {
    /// How a PROCEDURE argument was understood.
    fn write_of_name(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PartOfName { asked, name } => {
                write!(
                    f,
                    "no procedure is named {asked:?}; {name} is the only one whose name has that in it"
                )
            }
            Self::OtherPieces { name, samples, at } => {
                let at: Vec<String> = at.iter().map(|at| format!("{at:#x}")).collect();
                let have = if at.len() == 1 { "piece of code has" } else { "pieces of code have" };
                write!(
                    f,
                    "{} other {have} the name {name} and {samples} samples, which are not counted here: {}",
                    at.len(),
                    first_of(&at)
                )
            }
            Self::AlsoInlined { name } => write!(
                f,
                "{name} is inlined into other procedures, too, which is not counted here: {:?} names that part",
                format!("{name}{INLINED}")
            ),
            _ => Ok(()),
        }
    }

    /// What is doubtful of an epoch as a whole.
    fn write_of_epoch(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClockSet { host, epoch, at_unix_s, is_forward: true, by_s } => write!(
                f,
                "the clock of {host} was set forward by {by_s} s after {} UTC, while epoch {epoch} lasted: \
                 that time did not pass",
                moment(*at_unix_s)
            ),
            Self::ClockSet { host, epoch, at_unix_s, is_forward: false, by_s } => write!(
                f,
                "the clock of {host} was set back by {by_s} s after {} UTC: all samples are there, and later times of epoch {epoch} are up to {by_s} s ahead of the clock",
                moment(*at_unix_s)
            ),
            Self::Killed { host, since_unix_s, until_unix_s } => write!(
                f,
                "{host} has no samples from {} to {} UTC: dcpid was killed, or the machine went down",
                moment(*since_unix_s),
                moment(*until_unix_s)
            ),
            Self::NoFiles { host, epoch } => write!(
                f,
                "left out: epoch {epoch} of {host} has no files: they were removed, or dcpid was killed when it began"
            ),
            Self::EndMissing { host, epoch, until_unix_s } => write!(
                f,
                "epoch {epoch} of {host} lacks its end: what was merged after {} UTC, if anything, is missing; dcpi check",
                moment(*until_unix_s)
            ),
            _ => Ok(()),
        }
    }
}

/// The first of many files, and how many more there are.
fn first_of(files: &[String]) -> String {
    const NAMED: usize = 3;
    let more = files.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let named: Vec<&str> = files.iter().take(NAMED).map(String::as_str).collect();
    format!("{}{more}", named.join(", "))
}

impl fmt::Display for NoCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotKept => f.write_str(
                "the file is gone or was rebuilt, and dcpid did not keep this code; dcpid \
                     --whole-code keeps all",
            ),
            Self::Kernel => f.write_str("the code of the running kernel is in no file"),
            Self::Generated => f.write_str(
                "the program made this code while it ran, and no bytes of it are kept; run the \
                 program with an option that writes a jitdump, such as node --perf-prof",
            ),
            Self::UnknownMachine { machine } => {
                write!(f, "the instructions of ELF machine {machine} are not known to dcpi")
            }
            Self::Unreadable { error } => write!(f, "{error}"),
        }
    }
}

impl NoProcedures {
    /// In a few words, for a row.
    pub const fn short(&self) -> &'static str {
        match self {
            Self::FileGone => "file gone",
            Self::FileChanged { .. } => "file changed since",
            Self::FileUnreadable { .. } => "file unreadable",
            Self::NoneInFile => "none in file",
            Self::NotRecorded => "not recorded",
        }
    }
}

impl fmt::Display for NoProcedures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FileGone => f.write_str("the file is gone, or not on this machine"),
            Self::FileChanged { found } => {
                write!(f, "the file was replaced by build {found}")
            }
            Self::FileUnreadable { error } => {
                write!(f, "{error}")?;
                let source = std::error::Error::source(error);
                source.map_or(Ok(()), |source| write!(f, ": {source}"))
            }
            Self::NoneInFile => f.write_str("the file has neither symbols nor an unwind table"),
            Self::NotRecorded => f.write_str("dcpid could not read its symbols"),
        }
    }
}

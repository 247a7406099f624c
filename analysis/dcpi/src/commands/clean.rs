//! `dcpi clean`: recordings that `dcpi record` left in the directory for temporary files.

use std::fs;
use std::io::{self, BufRead as _, IsTerminal as _, Write};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::Args;
use wire::Client;

use super::Outcome;
use super::scratch::{SCRATCH_PREFIX, control_path};
use crate::options::{Format, Output, with_unit};
use query::error::AnalysisError;
use report::{self, Report, Style, bytes};

/// Deepest level of directories whose sizes are added up: a database has four levels.
const DEPTH_MAX: usize = 8;
/// Longest time that `--older-than` takes.
const AGE_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

/// `dcpi clean`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct Clean {
    /// Only recordings that ended at least this long ago, such as 30m, 12h or 7d
    #[arg(long, value_name = "T", value_parser = age)]
    pub older_than: Option<Duration>,
    /// List the recordings and remove none
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Remove the recordings without a question
    #[arg(short = 'f', long, conflicts_with = "dry_run")]
    pub force: bool,
    #[command(flatten)]
    pub output: Output,
}

const NOTES: &str = "\
On a terminal dcpi clean asks before it removes recordings; elsewhere it removes none without \
--force. Recordings are directories in $TMPDIR, else /tmp, that dcpi record made without -o. Only \
directories that belong to this user and that nobody else may enter are removed, and no links. A \
recording that is still being made stays.

Exit codes: 0 done, also when no recording was removed; 1 a recording could not be removed; 2 \
could not read the directory.";

report::fields! {
    /// A recording that was left.
    #[derive(Debug)]
    pub struct Left {
        /// a recording's directory
        path: PathBuf => "path";
        /// bytes of its files
        size_bytes: u64, "bytes" => "size_bytes";
        /// time since the recording ended
        age_s: u64, "s" => "age_s";
        /// true: the recording was removed now
        removed: bool => "removed";
    }

    /// No database is read.
    #[derive(Debug)]
    pub struct Recordings {
        /// directory that was searched
        directory: PathBuf;
        rows (rows): Vec<Left>;
    }
}

pub(crate) fn run(args: &Clean, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let directory = std::env::temp_dir();
    let rows = recordings(&directory, args.older_than.unwrap_or_default(), SystemTime::now())
        .map_err(|error| {
            AnalysisError::Refused(format!("cannot read {}: {error}", directory.display()))
        })?;
    let mut found = Recordings { directory, rows };
    let as_text = args.output.format == Format::Text;
    if as_text {
        super::write(&found, &args.output, out)?;
    }
    let mut aside = Vec::new();
    let may_ask = as_text && io::stdin().is_terminal() && io::stdout().is_terminal();
    let confirmed = args.force || !args.dry_run && may_ask && !found.rows.is_empty() && ask(out)?;
    for left in found.rows.iter_mut().filter(|_| confirmed) {
        match fs::remove_dir_all(&left.path) {
            Ok(()) => left.removed = true,
            Err(error) => aside.push(format!("{} cannot be removed: {error}", left.path.display())),
        }
    }
    if !as_text {
        super::write(&found, &args.output, out)?;
    } else if !found.rows.is_empty() {
        let removed = found.rows.iter().filter(|left| left.removed);
        let (count, size) =
            removed.fold((0, 0_u64), |(n, sum), left| (n + 1, sum.saturating_add(left.size_bytes)));
        match count {
            0 if args.dry_run || may_ask => writeln!(out, "nothing was removed")?,
            0 => writeln!(out, "nothing was removed; to remove recordings: dcpi clean --force")?,
            _ => writeln!(out, "removed {}, {}", report::counted(count, "recording"), bytes(size))?,
        }
    }
    Ok(Outcome { sound: aside.is_empty(), aside, ..Outcome::default() })
}

fn ask(out: &mut dyn Write) -> Result<bool, AnalysisError> {
    write!(out, "remove these recordings? [y/N] ")?;
    out.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// The recordings in a directory that ended at least so long before `now`, oldest first. Only
/// directories of this user that nobody else may enter: in a directory that all may write to, any
/// name may be anybody's.
fn recordings(directory: &Path, age_min: Duration, now: SystemTime) -> io::Result<Vec<Left>> {
    let mut found = Vec::new();
    let own = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(directory)? {
        let Ok(entry) = entry else { continue };
        if !entry.file_name().to_str().is_some_and(is_recording) {
            continue;
        }
        let path = entry.path();
        // The facts of the entry itself: a link is not a directory. The entry may be gone already.
        let Ok(metadata) = path.symlink_metadata() else { continue };
        let is_ours = metadata.is_dir()
            && metadata.uid() == own
            && metadata.permissions().mode() & 0o077 == 0;
        if !is_ours || Client::new(control_path(&path)).is_heard() {
            continue;
        }
        // The sockets in it go when it ends, or stay as they were when it was killed.
        let age = metadata
            .modified()
            .ok()
            .and_then(|ended| now.duration_since(ended).ok())
            .unwrap_or_default();
        if age >= age_min {
            found.push(Left {
                size_bytes: size_bytes(&path),
                path,
                age_s: age.as_secs(),
                removed: false,
            });
        }
    }
    found.sort_by_key(|left| std::cmp::Reverse(left.age_s));
    Ok(found)
}

/// Whether `dcpi record` makes directories of this name: the process number and six digits.
fn is_recording(name: &str) -> bool {
    let numbers = name.strip_prefix(SCRATCH_PREFIX).and_then(|numbers| numbers.split_once('-'));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    numbers.is_some_and(|(process, micros)| digits(process) && digits(micros) && micros.len() == 6)
}

/// Bytes of all files in a directory and those below it; no link is followed, and what cannot be
/// looked at counts as none.
pub(super) fn size_bytes(directory: &Path) -> u64 {
    let (mut sum, mut pending) = (0_u64, vec![(directory.to_path_buf(), DEPTH_MAX)]);
    while let Some((directory, depth)) = pending.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => {
                    pending.extend(depth.checked_sub(1).map(|depth| (entry.path(), depth)));
                }
                Ok(metadata) => sum = sum.saturating_add(metadata.len()),
                Err(_) => {}
            }
        }
    }
    sum
}

fn age(text: &str) -> Result<Duration, String> {
    // A plain number could be meant as days, and removal cannot be undone, so a unit is required.
    with_unit(text).filter(|age| *age <= AGE_MAX).ok_or_else(|| {
        format!("must be a time of up to {AGE_MAX:?} with its unit, such as 12h or 7d")
    })
}

fn ago(age_s: u64) -> String {
    let units = [(86_400, "d"), (3600, "h"), (60, "min")];
    let unit = units.iter().find(|(unit, _)| age_s >= *unit);
    unit.map_or_else(|| format!("{age_s} s"), |(unit, name)| format!("{} {name}", age_s / unit))
}

impl Report for Recordings {
    const NAME: &'static str = "clean";
    type Fields<'a> = &'a Self;

    fn text(&self, _style: &Style, out: &mut dyn Write) -> io::Result<()> {
        let directory = self.directory.display().to_string();
        if self.rows.is_empty() {
            return writeln!(out, "no recordings in {}", report::escape(&directory));
        }
        for left in &self.rows {
            let (path, size) = (left.path.display().to_string(), bytes(left.size_bytes));
            writeln!(out, "{size:>10}  {:>6} ago  {}", ago(left.age_s), report::escape(&path))?;
        }
        let size = self.rows.iter().fold(0, |sum: u64, left| sum.saturating_add(left.size_bytes));
        let recordings = report::counted(self.rows.len() as u64, "recording");
        writeln!(out, "{recordings}, {}", bytes(size))
    }

    fn json(&self) -> &Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// A recording without -o left 371 MB that were neither reported nor removed. Only directories
    /// that are surely ours may be removed.
    #[test]
    fn only_recordings_of_ours_that_have_ended_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let make = |name: &str, mode: u32| {
            let path = directory.path().join(name);
            fs::create_dir_all(path.join("db/hosts/here")).unwrap();
            fs::write(path.join("db/hosts/here/file"), [0; 1000]).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let ours = make("dcpi-record-17-000123", 0o700);
        make("dcpi-record-18-000123", 0o755);
        make("dcpi-record-17-123", 0o700);
        make("dcpi-record-x-000123", 0o700);
        make("dcpi-record-17-000123.bak", 0o700);
        make("else", 0o700);
        let live = make("dcpi-record-19-000123", 0o700);
        let _listener = UnixListener::bind(control_path(&live)).unwrap();
        std::os::unix::fs::symlink("else", directory.path().join("dcpi-record-20-000123")).unwrap();
        std::os::unix::fs::symlink("/", ours.join("root")).unwrap();
        let now = SystemTime::now() + Duration::from_secs(100);
        let found = recordings(directory.path(), Duration::from_secs(60), now).unwrap();
        assert_eq!(found.iter().map(|left| &left.path).collect::<Vec<_>>(), [&ours]);
        assert!(found[0].age_s >= 99 && (1000..2000).contains(&found[0].size_bytes), "{found:?}");
        assert!(recordings(directory.path(), Duration::from_secs(1000), now).unwrap().is_empty());
        assert_eq!([5, 60, 7300, 200_000].map(ago), ["5 s", "1 min", "2 h", "2 d"]);
    }
}

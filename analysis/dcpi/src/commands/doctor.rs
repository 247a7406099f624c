//! `dcpi doctor`: what this host allows, and what the database lacks.

use std::io::{BufRead as _, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Args;
use profiledb::Database;
use wire::{Client, HostCheck, Status};

use super::record::private::program;
use super::{Outcome, prof};
use crate::options::{self, Output, Place, Prof};
use query::error::AnalysisError;
use query::load::sum;
use query::problem::Problem;
use report::{DoctorCheck, DoctorReport, ProfReport, bytes, counted, thousands};

/// Longest silence of dcpid: it answers within a drain, which takes less than a second.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Share of the samples from which on code without names or lines, and lost samples, are worth a
/// remedy: as much as `dcpi prof` has a note for.
const WORTH: f64 = 0.05;
/// Images that a remedy names.
const NAMED: usize = 3;
/// Space that a database and the code beside it want: code alone takes 512 MiB at most.
const SPACE_MIN: u64 = 1 << 30;

/// `dcpi doctor`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct Doctor {
    #[command(flatten)]
    pub place: Place,
    /// Control socket of dcpid
    #[arg(long, value_name = "PATH", default_value = "/run/dcpi/control.sock")]
    pub control: PathBuf,
    #[command(flatten)]
    pub output: Output,
}

const NOTES: &str = "\
Checks what dcpid needs of the host (by dcpid --check-host): kernel and its types (BTF), hardware \
counters, rights, kernel.perf_event_paranoid, kernel.kptr_restrict, lockdown, limits, unwinding; \
then the running dcpid, the database and its disk, and whether what is hot in its latest epoch has \
names and source lines. Below the table is what to do about each check that says no. Rights are \
those of who asks: run it as dcpid runs, as root.

Exit codes: 0 nothing is to be done; 1 something is; 2 could not.";

pub(crate) fn run(args: &Doctor, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let mut checks = of_host();
    let status = Client::new(&args.control).with_silence_max(SILENCE_MAX).status();
    checks.extend(of_daemon(&args.control, status.map_err(|error| error.to_string())));
    checks.extend(of_database(args.place.db()));
    let report = DoctorReport { checks };
    let outcome = super::write(&report, &args.output, out)?;
    Ok(Outcome { sound: report.is_well(), ..outcome })
}

fn check(name: &str, ok: bool, found: impl Into<String>, remedy: &str) -> DoctorCheck {
    row(HostCheck::new(name, ok, found, remedy))
}

fn row(check: HostCheck) -> DoctorCheck {
    let HostCheck { name, ok, found, remedy } = check;
    DoctorCheck { name, ok, found, remedy }
}

/// The checks of dcpid itself, which knows what it needs.
fn of_host() -> Vec<DoctorCheck> {
    let asked = program("dcpid").map_err(|error| error.to_string()).and_then(|dcpid| {
        let mut command = Command::new(dcpid);
        command.args(["--check-host", "--log", "error"]);
        let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
        let lines = output.stdout.lines().map_while(Result::ok);
        let checks: Vec<HostCheck> =
            lines.filter_map(|line| serde_json::from_str(&line).ok()).collect();
        let why = String::from_utf8_lossy(&output.stderr);
        let why = why.lines().next().unwrap_or("it is of another version").to_owned();
        if checks.is_empty() { Err(why) } else { Ok(checks) }
    });
    match asked {
        Ok(checks) => checks.into_iter().map(row).collect(),
        Err(why) => {
            vec![check("host", false, why, "install the dcpid of this version beside dcpi")]
        }
    }
}

/// The running dcpid: whether it answers, loses samples or cannot write, and how whole its call
/// stacks are.
fn of_daemon(control: &Path, status: Result<Status, String>) -> Vec<DoctorCheck> {
    let status = match status {
        Ok(status) => status,
        Err(why) => {
            let remedy = format!(
                "systemctl start dcpid, or name its socket with --control ({})",
                control.display()
            );
            return vec![check("dcpid", false, why, &remedy)];
        }
    };
    let events: Vec<&str> = status.events.iter().map(|event| event.name.as_str()).collect();
    let found = format!("{} samples {}", status.version, events.join(", "));
    let mut checks = match &status.merge_error {
        Some(error) => vec![check("dcpid", false, error, "free space, or see dcpictl status")],
        None => vec![check("dcpid", true, found, "")],
    };
    let samples = &status.samples;
    let share = samples.lost() as f64 / samples.taken.max(1) as f64;
    checks.push(check(
        "samples",
        share < WORTH,
        format!("{} taken, {:.1} % lost", thousands(samples.taken), 100.0 * share),
        "see lost in dcpictl status for the reasons",
    ));
    if let Some(stacks) = &status.stacks {
        let cut = sum(stacks.cut.values().copied());
        let walked = stacks.whole.saturating_add(cut);
        let share = stacks.whole as f64 / walked.max(1) as f64;
        checks.push(check(
            "call stacks",
            walked == 0 || share >= 0.5,
            format!("{:.0} % of {} whole", 100.0 * share, counted(walked, "stack")),
            "dcpictl status has the programs; build them with .eh_frame or frame pointers",
        ));
    }
    checks
}

/// The database: whether it can be read, the space beside it, and what its hot code lacks.
fn of_database(db: &Path) -> Vec<DoctorCheck> {
    let (shown, remedy) = (db.display(), "start dcpid, or name another database with --db");
    let epochs = Database::open(db).and_then(|database| {
        let hosts = database.hosts()?;
        let of_host = hosts.iter().map(|host| Ok(database.epochs(host)?.len()));
        Ok((hosts.len(), of_host.sum::<Result<usize, profiledb::DbError>>()?))
    });
    let mut checks = match epochs {
        Ok((hosts, epochs)) => {
            let (hosts, found) = (counted(hosts as u64, "host"), counted(epochs as u64, "epoch"));
            vec![check("database", epochs > 0, format!("{shown}: {found} of {hosts}"), remedy)]
        }
        Err(error) => return vec![check("database", false, error.to_string(), remedy)],
    };
    if let Ok(disk) = rustix::fs::statvfs(db) {
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        checks.push(check(
            "space",
            free >= SPACE_MIN,
            format!("{} free", bytes(free)),
            "free space, or let dcpid keep less: --retain, --code-store",
        ));
    }
    match hot(db) {
        Ok(report) => checks.extend(of_hot(&report)),
        Err(error) => {
            let remedy = "record something, or: dcpictl flush";
            checks.push(check("hot code", false, error.to_string(), remedy));
        }
    }
    checks
}

/// The latest epoch by source line.
fn hot(db: &Path) -> Result<ProfReport, AnalysisError> {
    let words = ["--lines".as_ref(), "-n0".as_ref(), "--db".as_ref(), db.as_os_str()];
    let args: Prof =
        options::typed(words).map_err(|error| AnalysisError::Refused(error.to_string()))?;
    let question = args.chosen.question(&[])?;
    let mut samples = prof::with_interpreted(&args, &question)?;
    prof::report(&args, &mut samples)
}

/// Whether the code with most of the samples has names and source lines.
fn of_hot(report: &ProfReport) -> [DoctorCheck; 2] {
    let all = report.events.get(report.sort).map_or(0, |column| column.counted.samples).max(1);
    let of = |counts: &[u64]| counts.get(report.sort).copied().unwrap_or(0);
    let about = |name: &str, images: Vec<(u64, &str)>, remedy: &str| {
        let mut images = images;
        images.sort_by(|a, b| b.cmp(a));
        let share = sum(images.iter().map(|(samples, _)| *samples)) as f64 / all as f64;
        let named: Vec<&str> = images.iter().take(NAMED).map(|(_, name)| *name).collect();
        let found = format!("{:.0} % of the samples have them", 100.0 * (1.0 - share).max(0.0));
        let remedy = format!("{remedy}: {}", named.join(", "));
        check(name, share < WORTH, found, &remedy)
    };
    let mut nameless = Vec::new();
    let mut without_lines = Vec::new();
    for problem in &report.problems {
        match problem {
            Problem::NoProcedures { image, counts, .. }
            | Problem::Stripped { image, counts, .. } => {
                nameless.push((of(counts), image.as_str()));
            }
            Problem::NoLines { image, counts, .. } => {
                without_lines.push((of(counts), image.as_str()));
            }
            _ => {}
        }
    }
    let install = "install debug symbols, or name them with --debug-root or $DEBUGINFOD_URLS, of";
    [about("procedure names", nameless, install), about("source lines", without_lines, install)]
}

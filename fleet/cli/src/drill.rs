//! `dcpi-fleet drill`: from a row of a review to its instructions.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use ingest::{Merged, Wanted, merged};
use review::report::shell_word;
use serde_json::Value;

use crate::out::{counted, say};
use crate::store_option::{InStore, OfWeek};

/// Fewest samples of a procedure whose instructions are shown, as many as `dcpi stats` asks of an
/// epoch.
const SAMPLES_MIN: u64 = 100;

/// `dcpi-fleet drill`.
#[derive(Args, Debug)]
#[command(after_help = "\
The epochs of the service's hosts in the week become one epoch, in a database that all commands of \
dcpi read: with a procedure, dcpi calc shows its instructions, how often each ran, and why it \
waited; with -o the database stays, for list, whatcg, flame, html and export (autofdo, bolt).")]
pub struct Drill {
    #[command(flatten)]
    store: InStore,
    #[command(flatten)]
    week: OfWeek,
    /// The service, as reviews name it
    #[arg(long, value_name = "NAME")]
    service: String,
    /// The image: only hosts that ran it
    #[arg(long, value_name = "NAME")]
    image: Option<String>,
    /// The image's build, the first characters of its id: only hosts that ran it
    #[arg(long, value_name = "ID", requires = "image")]
    build: Option<String>,
    /// The procedure whose instructions are shown
    #[arg(long, value_name = "NAME", requires = "image")]
    procedure: Option<String>,
    /// The type of machine, as reviews name it [default: the one of the most samples]
    #[arg(long, value_name = "TYPE")]
    machine: Option<String>,
    /// The most hosts, those of the most samples
    #[arg(long, value_name = "N", default_value_t = 500,
          value_parser = clap::value_parser!(u32).range(1..))]
    hosts: u32,
    /// The command of dcpi that shows the procedure
    #[arg(long, value_name = "COMMAND", default_value = "calc",
          value_parser = ["calc", "list", "callers", "callees"])]
    show: String,
    /// A new directory for the database, which stays
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
}

/// # Errors
/// One line, with the next step.
pub async fn run(args: &Drill) -> Result<bool, String> {
    if args.output.is_none() && args.procedure.is_none() {
        return Err("name a --procedure to show, or a directory for the database with -o".into());
    }
    let store = args.store.open()?;
    let wanted = Wanted {
        week: args.week.get(),
        service: args.service.clone(),
        image: args.image.clone(),
        build: args.build.clone(),
        machine: args.machine.clone(),
        hosts: usize::try_from(args.hosts).unwrap_or(usize::MAX),
    };
    let temporary = tempfile::tempdir().map_err(|error| format!("{error}; see $TMPDIR"))?;
    let directory = match &args.output {
        Some(path) if path.read_dir().is_ok_and(|mut entries| entries.next().is_some()) => {
            return Err(format!("{} has something in it; name a new directory", path.display()));
        }
        Some(path) => path.clone(),
        None => temporary.path().join("db"),
    };
    let merged = merged(&store, &wanted, &directory).await.map_err(|error| error.to_string())?;
    let (epochs, hosts) = (counted(merged.epochs, "epoch"), counted(merged.hosts, "host"));
    let (samples, machine) = (merged.samples, &merged.machine);
    say!("{}: {samples} samples of {epochs} of {hosts}, {machine}", args.service);
    if merged.left_out > 0 {
        let left_out = merged.left_out;
        say!("{left_out} samples are left out: their hosts had more than 64 sampling periods");
    }
    let shown =
        args.procedure.as_deref().map(|procedure| show(args, &merged, procedure, &directory));
    if args.output.is_some() {
        let db = shell_word(&directory.display().to_string());
        say!("next: dcpi prof --db {db}; dcpi whatcg, flame, html, export --to autofdo|bolt");
    }
    shown.unwrap_or(Ok(true))
}

/// Shows a procedure by a command of `dcpi`.
fn show(args: &Drill, merged: &Merged, procedure: &str, directory: &Path) -> Result<bool, String> {
    let wanted = args.image.as_deref().unwrap_or_default();
    // The build of the most samples, where there are several.
    let build = merged
        .builds
        .iter()
        .find(|(build, _)| args.build.as_deref().is_none_or(|wanted| build.starts_with(wanted)));
    let Some((build, _)) = build else {
        return Err(format!("{} ran no {wanted}; see dcpi-fleet review", args.service));
    };
    if merged.builds.len() > 1 {
        say!("{} builds of {wanted}; shown is {build}, see --build", merged.builds.len());
    }
    let dcpi = dcpi();
    if ["calc", "list"].contains(&args.show.as_str()) {
        enough(directory, build, procedure)?;
    }
    let mut command = Command::new(&dcpi);
    match procedure {
        // No symbol names the code: the image's procedures as a whole.
        "" => command.args(["prof", "--db"]).arg(directory).args(["--", build]),
        _ => {
            command.args([args.show.as_str(), "--db"]).arg(directory).args(["--", build, procedure])
        }
    };
    let run = command.status();
    match run {
        Ok(status) => Ok(status.success()),
        Err(error) => Err(format!(
            "cannot run {}: {error}; install dcpi beside dcpi-fleet, or keep the database with -o",
            dcpi.display()
        )),
    }
}

/// Refuses to show instructions of a procedure with few samples: most of their numbers would be
/// chance, and have no interval that says so.
///
/// # Errors
/// One line, with the next step.
pub fn enough(directory: &Path, build: &str, procedure: &str) -> Result<(), String> {
    if procedure.is_empty() {
        return Ok(());
    }
    let mut command = Command::new(dcpi());
    command.args(["prof", "--format", "json", "-n", "0", "--db"]).arg(directory);
    let output = command.args(["--", build]).stderr(Stdio::null()).output();
    let report: Option<Value> =
        output.ok().and_then(|output| serde_json::from_slice(&output.stdout).ok());
    // Where nothing can be read, the command that shows the procedure says why.
    match report.and_then(|report| samples(&report, procedure)) {
        Some(samples) if samples < SAMPLES_MIN => Err(format!(
            "{procedure} has {}: too few to say anything of its instructions, which takes \
             {SAMPLES_MIN}; take an earlier --week, or more --hosts",
            counted(samples, "sample")
        )),
        _ => Ok(()),
    }
}

/// Samples of a procedure in a report of `dcpi prof`, of the event that has the most.
fn samples(report: &Value, procedure: &str) -> Option<u64> {
    let rows = report.get("rows")?.as_array()?.iter();
    let of_name = |row: &&Value| row.get("procedure").and_then(Value::as_str) == Some(procedure);
    let counts = rows.filter(of_name).filter_map(|row| row.get("counts")?.as_object());
    counts.flat_map(|counts| counts.values()).filter_map(Value::as_u64).max()
}

/// The program `dcpi`: beside this one, else where the shell finds it.
pub fn dcpi() -> PathBuf {
    let beside = std::env::current_exe().ok().map(|path| path.with_file_name("dcpi"));
    beside.filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from("dcpi"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_those_of_the_procedure() {
        let report = serde_json::json!({"rows": [
            {"procedure": "parse", "counts": {"cycles": 99, "cpu-clock": 7}},
            {"procedure": "print", "counts": {"cycles": 1000}},
            {"image": "x"},
        ]});
        assert_eq!(samples(&report, "parse"), Some(99));
        assert_eq!(samples(&report, "none"), None);
        assert_eq!(samples(&Value::Null, "parse"), None);
    }
}

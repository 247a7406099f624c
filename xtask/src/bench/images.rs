//! `bench images`: what new images and short processes cost `dcpid` and its inspectors: CPU time
//! per image or process, memory, and samples that found no image. `--beside DIR` measures the
//! `dcpid` of another build in the same rounds.

use super::profilers::{Program, start_until};
use super::statistics::Spread;
use super::{FOLDER, count, json, machine, option, refuse_others, require_root};
use crate::process::{command, must, output};
use crate::{Outcome, packages};
use anyhow::{Context as _, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time for dcpid to inspect new files: it does when it reads their records, a fraction of a second
/// after they were mapped.
const SETTLES: Duration = Duration::from_secs(1);

/// Workloads: name, shell script, which runs in a folder of its own, and number of images or
/// processes that it makes.
const WORKLOADS: [(&str, &str, u32); 3] = [
    ("libraries, each a new build id", "../image_flood 4000 500", 4000),
    (
        "programs, each new, without build id",
        "for i in $(seq 1000); do cp ../short s$i; ./s$i 2000; rm s$i; done",
        1000,
    ),
    ("processes of one program", "seq 6000 | xargs -P 2 -n 1 ../short 500 #", 6000),
];

/// A running `dcpid`.
struct Daemon {
    program: Program,
    dcpictl: PathBuf,
    control: String,
}

/// The cost of a workload.
struct Cost {
    cpu_us: f64,
    per_s: f64,
    memory_bytes: f64,
    taken: f64,
    unresolved: f64,
    lost: f64,
}

/// Measures each workload under each build, and prints the medians.
pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    refuse_others("images", arguments, &[], &["--rounds", "--beside"])?;
    require_root("images")?;
    packages::ensure(packages::COMPILER.iter())?;
    let rounds = count(arguments, "--rounds", 3)?;
    let folder = PathBuf::from(format!("{FOLDER}/images"));
    fs::create_dir_all(folder.join("work"))?;
    let folder = fs::canonicalize(folder)?;
    must(&mut command("cargo build -q --release -p dcpid --bins"))?;
    for (source, flags) in
        [("workloads/image_flood", ""), ("bench/short", "-static -Wl,--build-id=none")]
    {
        let name = source.rsplit('/').next().unwrap_or(source);
        let program = folder.join(name);
        let line = format!("cc -O2 {flags} -o {} tests/{source}.c", program.display());
        must(&mut command(&line))?;
    }
    let mut builds = vec![("this build", fs::canonicalize("target/release")?)];
    if let Some(beside) = option(arguments, "--beside")? {
        builds.push(("beside", fs::canonicalize(beside).context("--beside")?));
    }
    println!("{}; {rounds} rounds, cpu-clock at 5200/s/CPU", machine::description());
    for (what, line, number) in WORKLOADS {
        println!("\n{what} ({number} a round)");
        println!(
            "{:12} {:>22} {:>9} {:>9} {:>9} {:>12} {:>6}",
            "", "CPU us each", "each/s", "MiB", "samples", "unresolved %", "lost"
        );
        let mut costs: Vec<Vec<Cost>> = builds.iter().map(|_| Vec::new()).collect();
        for _ in 0..rounds {
            for ((_, programs), costs) in builds.iter().zip(&mut costs) {
                costs.push(measure(&folder, programs, line, number)?);
            }
        }
        for ((name, _), costs) in builds.iter().zip(&costs) {
            let of = |value: fn(&Cost) -> f64| Spread::of(costs.iter().map(value));
            let median = |value| of(value).map_or(f64::NAN, |spread| spread.median);
            println!(
                "{name:12} {:>22} {:>9.0} {:>9.1} {:>9.0} {:>12.2} {:>6.0}",
                of(|cost| cost.cpu_us).map(|spread| format!("{spread:.1}")).unwrap_or_default(),
                median(|cost| cost.per_s),
                median(|cost| cost.memory_bytes) / f64::from(1 << 20),
                median(|cost| cost.taken),
                100.0 * median(|cost| cost.unresolved / cost.taken),
                median(|cost| cost.lost),
            );
        }
    }
    Ok(Outcome::Clean)
}

fn measure(folder: &Path, programs: &Path, line: &str, number: u32) -> anyhow::Result<Cost> {
    let daemon = Daemon::start(folder, programs)?;
    std::thread::sleep(SETTLES);
    let [taken_before, unresolved_before, lost_before] = daemon.samples()?;
    let (cpu_s, begun) = (daemon.cpu_s(), Instant::now());
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).current_dir(folder.join("work")).stdout(Stdio::null());
    must(&mut shell)?;
    let per_s = f64::from(number) / begun.elapsed().as_secs_f64();
    std::thread::sleep(SETTLES);
    daemon.ask(&["flush"])?;
    let ([taken, unresolved, lost], cpu_s) = (daemon.samples()?, daemon.cpu_s() - cpu_s);
    Ok(Cost {
        cpu_us: 1e6 * cpu_s / f64::from(number),
        per_s,
        memory_bytes: daemon.memory_bytes(),
        taken: taken - taken_before,
        unresolved: unresolved - unresolved_before,
        lost: lost - lost_before,
    })
}

impl Daemon {
    fn start(folder: &Path, programs: &Path) -> anyhow::Result<Self> {
        let db = folder.join("db");
        let _ = fs::remove_dir_all(&db); // each run has a fresh one
        let control = folder.join("control.sock").display().to_string();
        let line = format!(
            "{} --db {} --control {control} --event cpu-clock@5200 --log warn",
            programs.join("dcpid").display(),
            db.display()
        );
        let log = folder.join("dcpid.log").display().to_string();
        let dcpictl = programs.join("dcpictl");
        let is_ready = || ask(&dcpictl, &control, &["status"]).is_ok();
        let program = start_until("dcpid", &line, &log, is_ready)?;
        Ok(Self { program, dcpictl, control })
    }

    fn ask(&self, what: &[&str]) -> anyhow::Result<String> {
        ask(&self.dcpictl, &self.control, what)
    }

    /// Samples taken, unresolved and lost.
    fn samples(&self) -> anyhow::Result<[f64; 3]> {
        let status = self.ask(&["status", "--json"])?;
        let taken = json::number_at(&status, &["samples", "taken"]);
        let taken = taken.context("no samples in the status")?;
        ensure!(taken > 0.0, "dcpid has taken no samples");
        let sum = |name| json::sum_at(&status, &["samples", name]);
        Ok([taken, sum("unresolved"), sum("lost")])
    }

    /// CPU time of dcpid and its inspectors in seconds, with inspectors that have ended.
    fn cpu_s(&self) -> f64 {
        let tree = machine::descendants(self.program.pid());
        tree.iter().map(|pid| machine::with_waited_cpu_s(*pid).unwrap_or(0.0)).sum()
    }

    /// Proportional set size of dcpid and its inspectors, in bytes.
    fn memory_bytes(&self) -> f64 {
        let tree = machine::descendants(self.program.pid());
        tree.iter().filter_map(|pid| machine::proportional_bytes(*pid)).sum()
    }
}

/// The answer of a daemon to its own build's `dcpictl`.
fn ask(dcpictl: &Path, control: &str, what: &[&str]) -> anyhow::Result<String> {
    output(Command::new(dcpictl).args(["--control", control]).args(what).stderr(Stdio::null()))
}

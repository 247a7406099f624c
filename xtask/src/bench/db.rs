//! `bench db`: what the database costs, on profiles of this machine: recorded here, beside `perf record` at the same rate.

use super::profilers::Recorder;
use super::workloads::{Kind, Workload, prepare};
use super::{FOLDER, count, option, refuse_others, require_root};
use crate::Outcome;
use crate::packages;
use crate::process::{command, must};
use anyhow::{Context as _, bail, ensure};
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Samples per second and CPU, of both.
const RATE: u64 = 5000;
/// The daemon has to be ready by then.
const READY: Duration = Duration::from_secs(60);

/// Records, unless there is a database, and measures.
pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    refuse_others("db", arguments, &[], &["--db", "--seconds"])?;
    let seconds = count(arguments, "--seconds", 60)?;
    let (database, perf_bytes) = match option(arguments, "--db")? {
        Some(path) => (path.to_owned(), None),
        None => {
            require_root("db")?;
            packages::ensure(packages::COMPILER.iter().chain(&packages::BENCH_TOOLS))?;
            fs::create_dir_all(FOLDER)?;
            record(seconds).map(|(path, bytes)| (path, Some(bytes)))?
        }
    };
    let database = fs::canonicalize(&database).with_context(|| format!("reading --db {database}"))?;
    let mut bench = command("cargo bench -q -p profiledb --bench database --");
    bench.arg(database).args(perf_bytes.map(|bytes| bytes.to_string()));
    must(&mut bench)?;
    Ok(Outcome::Clean)
}

/// Ends the daemon, whatever happens.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it has ended already when all went well
        let _ = self.0.wait();
    }
}

/// Compiles and computes for a while under both profilers: the database, and the bytes that perf wrote.
fn record(seconds: u64) -> anyhow::Result<(String, u64)> {
    must(&mut command("cargo build -q --release -p daemon --bins"))?;
    prepare(FOLDER)?;
    let half = Duration::from_secs((seconds / 2).max(1));
    let workloads =
        [Workload::calibrate(FOLDER, Kind::Compile, half)?, Workload::calibrate(FOLDER, Kind::Database, half)?];
    let (database, socket) = (format!("{FOLDER}/db"), format!("{FOLDER}/db.sock"));
    for old in [&database, &socket] {
        let _ = fs::remove_dir_all(old).or_else(|_| fs::remove_file(old)); // there is none the first time
    }
    let mut dcpid = command("target/release/dcpid --loader-socket off --code-store off --overhead-budget off");
    dcpid.args(["--db", &database, "--control", &socket, "--event", &format!("cpu-clock@{RATE}")]);
    dcpid.stdin(Stdio::null()).stderr(fs::File::create(format!("{FOLDER}/db.log"))?);
    let mut daemon = Daemon(dcpid.spawn().context("starting dcpid")?);
    let started = Instant::now();
    let ask =
        |what: &str| must(command("target/release/dcpictl").args(["--control", &socket, what]).stdout(Stdio::null()));
    while !Path::new(&socket).exists() {
        ensure!(started.elapsed() < READY, "dcpid is not ready; {FOLDER}/db.log says why");
        if let Some(status) = daemon.0.try_wait()? {
            bail!("dcpid ended ({status}); {FOLDER}/db.log says why");
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    let data = format!("{FOLDER}/db.perf");
    let line = format!("perf record -a -F {RATE} -e cpu-clock -N -o {data}");
    let recorder = Recorder::start(&line, &data, &format!("{FOLDER}/db.perf.log"))?;
    println!("recording {seconds} s of work");
    for workload in &workloads {
        workload.run(FOLDER)?;
    }
    recorder.end()?;
    ask("quit")?;
    daemon.0.wait()?;
    let bytes = fs::metadata(&data).with_context(|| format!("reading {data}"))?.len();
    let _ = fs::remove_file(&data); // big, and not needed any more
    Ok((database, bytes))
}

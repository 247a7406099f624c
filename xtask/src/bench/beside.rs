//! Records the same seconds with dcpid and with `perf record`, at the same rate, so that the size
//! of their files and the time to read them can be compared.

use super::FOLDER;
use super::profilers::{Recorder, start_daemon};
use crate::process::{command, output};
use anyhow::Context as _;
use std::fs;

/// Samples per second and CPU, of dcpid and of perf.
pub const RATE: u64 = 5000;
/// The files of one recording. Dropping the value removes perf's file, which is large.
pub struct Recorded {
    /// Path of dcpid's database.
    pub database: String,
    /// Path of perf's file.
    pub perf_data: String,
    /// Number of samples in perf's file.
    pub perf_samples: f64,
}

impl Recorded {
    /// Size of perf's file in bytes.
    pub fn perf_bytes(&self) -> anyhow::Result<u64> {
        Ok(fs::metadata(&self.perf_data)
            .with_context(|| format!("reading {}", self.perf_data))?
            .len())
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.perf_data); // it may be gone
    }
}

/// The processes that perf samples; dcpid samples all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// All processes.
    Everybodys,
    /// Only the children of this process: perf 6.1 cannot read its own system-wide recording if BPF
    /// programs were loaded meanwhile ("failed to process type: 17").
    Ours,
}

/// Runs `work` under both profilers. The names of their files begin with `name`.
pub fn record(
    name: &str,
    whose: Whose,
    work: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<Recorded> {
    let at = |what: &str| format!("{FOLDER}/{name}{what}");
    let (database, socket) = (at(""), at(".sock"));
    for old in [&database, &socket] {
        // There is none the first time.
        let _ = fs::remove_dir_all(old).or_else(|_| fs::remove_file(old));
    }
    let options = "--loader-socket off --code-store off --overhead-budget off";
    let line = format!(
        "target/release/dcpid {options} --db {database} --control {socket} --event cpu-clock@{RATE}"
    );
    let mut daemon = start_daemon(&line, &socket, &at(".log"))?;
    let perf_data = at(".perf");
    let whose = match whose {
        Whose::Everybodys => "-a".to_owned(),
        Whose::Ours => format!("-p {}", std::process::id()),
    };
    // If any reader requests build ids in records of mappings, as dcpid does, the kernel marks the
    // records of all readers as having one (6.18). perf 6.1, which did not request build ids,
    // misreads other bytes as one and ends with "assertion failed at util/build-id.c:1010".
    let line =
        format!("perf record {whose} -F {RATE} -e cpu-clock -N --buildid-mmap -o {perf_data}");
    let recorder = Recorder::start(&line, &perf_data, &at(".perf.log"))?;
    work()?;
    // perf record reports its number of samples only when it collects build ids.
    let perf_samples = recorder.end()?.max(sampled(&perf_data).unwrap_or(0.0));
    daemon.end()?;
    Ok(Recorded { database, perf_data, perf_samples })
}

/// Number of samples in a file of perf's; None where perf cannot read it.
fn sampled(perf_data: &str) -> Option<f64> {
    let stats = output(&mut command(&format!("perf report --stats -i {perf_data}"))).ok()?;
    let count = stats.lines().find_map(|line| line.trim().strip_prefix("SAMPLE events:"))?;
    count.split_whitespace().next()?.parse().ok()
}

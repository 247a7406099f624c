//! Workloads of a fixed amount of work, whose wall-clock time is measured.

use super::machine::{children_cpu_s, cpus};
use crate::process::{command, must};
use anyhow::{Context as _, bail, ensure};
use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Number of small C files that the compile storm compiles in turn.
const STORM_FILES: u64 = 150;
/// Least time of a trial whose amount of work is scaled to the requested time.
const PROBE: Duration = Duration::from_millis(300);

named! {
    /// The program to run.
    pub enum Kind {
        /// An integer loop on every CPU.
        Compute = "compute",
        /// A triad over 64 MiB on every CPU.
        Memory = "memory",
        /// Many short runs of the C compiler, as many at once as there are CPUs.
        Compile = "compile",
        /// sqlite3 on every CPU.
        Database = "database",
        /// No work, for a time.
        Idle = "idle",
    }
}

/// A kind and how much of it.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// The program.
    pub kind: Kind,
    /// Units of work, which the sources in tests/bench define; milliseconds for the idle machine.
    pub units: u64,
}

/// The time of a run of a workload.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    /// Time from the start of the first process to the end of the last.
    pub wall: Duration,
    /// CPU time of its processes.
    pub cpu_s: f64,
}

/// Processes that are killed when the value is dropped.
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill(); // it may have ended already
            let _ = child.wait();
        }
    }
}

/// Builds the programs and writes the files that workloads need to `folder`.
pub fn prepare(folder: &str) -> anyhow::Result<()> {
    let storm = format!("{folder}/storm");
    fs::create_dir_all(&storm).with_context(|| format!("creating {storm}"))?;
    for program in ["compute", "triad", "empty_event"] {
        must(&mut command(&format!("cc -O2 -Wall -o {folder}/{program} tests/bench/{program}.c")))?;
    }
    let template =
        fs::read_to_string("tests/bench/storm.c.in").context("reading tests/bench/storm.c.in")?;
    for number in 0..STORM_FILES {
        fs::write(format!("{storm}/{number}.c"), template.replace("@N@", &number.to_string()))?;
    }
    Ok(())
}

impl Workload {
    /// The amount of `kind` that takes about `wanted` without a profiler, found by doubling and
    /// then scaled.
    pub fn calibrate(folder: &str, kind: Kind, wanted: Duration) -> anyhow::Result<Self> {
        let mut workload = Self { kind, units: 1 };
        if kind == Kind::Idle {
            return Ok(Self { kind, units: wanted.as_millis() as u64 });
        }
        loop {
            let took = workload.run(folder)?.wall;
            if took >= PROBE {
                break;
            }
            ensure!(workload.units < 1 << 40, "{} takes no time at all", kind.name());
            workload.units *= 2;
        }
        // Twice, because in the short trial the start-up time weighs too much, or other programs
        // ran.
        for _ in 0..2 {
            let took = workload.run(folder)?.wall;
            let units = workload.units as f64 * wanted.as_secs_f64() / took.as_secs_f64();
            workload.units = (units.round() as u64).max(1);
        }
        Ok(workload)
    }

    /// Runs the workload once.
    pub fn run(&self, folder: &str) -> anyhow::Result<Took> {
        let on_every_cpu =
            |line: String| run_together((0..cpus()).map(|_| command(&line)).collect());
        let cpu_s = children_cpu_s();
        let started = Instant::now();
        match self.kind {
            Kind::Compute => on_every_cpu(format!("{folder}/compute {}", self.units))?,
            Kind::Memory => on_every_cpu(format!("{folder}/triad {}", self.units))?,
            Kind::Compile => compile(folder, self.units)?,
            Kind::Database => return self.run_database(folder),
            Kind::Idle => std::thread::sleep(Duration::from_millis(self.units)),
        }
        Ok(Took { wall: started.elapsed(), cpu_s: children_cpu_s() - cpu_s })
    }

    /// Runs sqlite3 on a fresh database for every CPU. The time to write its script does not count.
    fn run_database(&self, folder: &str) -> anyhow::Result<Took> {
        let source = fs::read_to_string("tests/bench/database.sql")
            .context("reading tests/bench/database.sql")?;
        let (head, unit) = source
            .split_once("-- unit\n")
            .context("tests/bench/database.sql has no line '-- unit'")?;
        fs::write(
            format!("{folder}/script.sql"),
            format!("{head}{}", unit.repeat(self.units as usize)),
        )?;
        let mut commands = Vec::new();
        for cpu in 0..cpus() {
            let database = format!("{folder}/items-{cpu}.db");
            let _ = fs::remove_file(&database); // there is none before the first run
            let mut sqlite = command(&format!("sqlite3 -batch -bail -init /dev/null {database}"));
            sqlite.arg(format!(".read {folder}/script.sql"));
            commands.push(sqlite);
        }
        let cpu_s = children_cpu_s();
        let started = Instant::now();
        run_together(commands)?;
        Ok(Took { wall: started.elapsed(), cpu_s: children_cpu_s() - cpu_s })
    }
}

/// Starts all commands and waits for them. They are killed when this process ends, even if it is
/// killed.
fn run_together(commands: Vec<Command>) -> anyhow::Result<()> {
    let mut children = Children(Vec::new());
    for inner in commands {
        let mut outer = Command::new("setpriv");
        outer.args(["--pdeathsig", "KILL"]).arg(inner.get_program()).args(inner.get_args());
        outer.stdin(Stdio::null()).stdout(Stdio::null());
        children
            .0
            .push(outer.spawn().with_context(|| format!("starting {:?}", inner.get_program()))?);
    }
    for child in &mut children.0 {
        let status = child.wait()?;
        ensure!(status.success(), "a workload failed ({status}); its output above says why");
    }
    Ok(())
}

/// Runs the compiler `count` times, as many at once as there are CPUs.
fn compile(folder: &str, count: u64) -> anyhow::Result<()> {
    together(count, |number| {
        let file = format!("{folder}/storm/{}", number % STORM_FILES);
        must(&mut command(&format!("cc -O0 -c {file}.c -o {file}.o")))
    })
}

/// Calls `work` with each number below `count`, in one thread per CPU; stops after an error.
pub fn together(count: u64, work: impl Fn(u64) -> anyhow::Result<()> + Sync) -> anyhow::Result<()> {
    let next = AtomicU64::new(0);
    let work = || -> anyhow::Result<()> {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(());
            }
            if let Err(error) = work(number) {
                next.store(count, Ordering::Relaxed); // the others stop too
                return Err(error);
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..cpus()).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            match worker.join() {
                Ok(result) => result?,
                Err(_) => bail!("a thread of the benchmark panicked"),
            }
        }
        Ok(())
    })
}

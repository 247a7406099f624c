//! `bench stacks`: share of call stacks that reach the thread's first frame, and cost of a stack in
//! the kernel and in the daemon, by program, beside `perf record --call-graph dwarf` and `fp` at
//! the same rate.

use super::profilers::{BpfStatistics, Program, Recorder, build, client, start_dcpid};
use super::{
    FOLDER, count, machine, option, refuse_others, require_root, stacks_counted, stacks_named,
};
use crate::process::{command, must, output};
use crate::{Outcome, packages};
use anyhow::Context as _;
use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;
use wire::Status;

/// Seconds of the workload before the measurement, in which dcpid learns the stack depths of the
/// program's threads, as a daemon that always runs has.
const WARM_UP_S: u64 = 6;
/// Stacks per second and CPU, of all profilers.
const RATE: u64 = 100;
const SECONDS: u64 = 10;
const SECONDS_QUICK: u64 = 4;
/// Time for dcpid to read the mappings of programs that run already.
const SETTLES: Duration = Duration::from_secs(2);

/// A program: its name in tables, those of its files in the status, and the shell line that keeps
/// it busy until it is ended.
struct Workload(&'static str, &'static [&'static str], &'static str);

const LOOP: &str = "while :; do";

/// The programs. Each line runs in `sh`, in a folder of its own; `$SOURCE` is the checkout.
const WORKLOADS: [Workload; 18] = [
    Workload("python3", &["python3"], "exec python3 $SOURCE/tests/bench/stacks/words.py"),
    Workload("cc1plus", &["cc1plus"], "LOOP c++ -O1 -c part.cc -o part.o; done"),
    Workload("sqlite3", &["sqlite3"], "LOOP sqlite3 :memory: < queries.sql >/dev/null; done"),
    Workload("postgres", &["postgres"], "exec sh $SOURCE/tests/bench/stacks/postgres.sh"),
    Workload("node", &["node"], "exec node $SOURCE/tests/bench/stacks/words.js"),
    Workload("bash", &["bash"], "exec bash $SOURCE/tests/bench/stacks/words.bash"),
    Workload("git", &["git"], "LOOP git -C $SOURCE log --stat -n 40 >/dev/null; done"),
    Workload("Go", &["go-stacks"], "exec ./go-stacks"),
    Workload("C++", &["cxx-stacks"], "exec ./cxx-stacks"),
    Workload("storm", &["python3"], "LOOP python3 -Sc 'sum(range(200000))'; done"),
    Workload("rustc", &["rustc"], "LOOP rustc -O --crate-type lib -o lib.rlib large.rs; done"),
    Workload("java", &["java"], "exec java -cp . Words"),
    Workload("ruby", &["ruby3.1"], "exec ruby3.1 $SOURCE/tests/workloads/functions.rb 1000"),
    Workload("php", &["php8.2"], "exec php8.2 $SOURCE/tests/workloads/functions.php 1000"),
    Workload("perl", &["perl"], "exec perl $SOURCE/tests/workloads/functions.pl 1000"),
    Workload("lua", &["lua5.4"], "exec lua5.4 $SOURCE/tests/workloads/functions.lua 1000"),
    Workload("luajit", &["luajit"], "exec luajit $SOURCE/tests/workloads/functions.lua 1000"),
    Workload(
        "erlang",
        &["beam.smp"],
        "erlc $SOURCE/tests/workloads/functions.erl && exec erl -noshell -run functions main 1000",
    ),
];

/// One profiler's stacks of one program.
#[derive(Clone, Debug, Default)]
struct Seen {
    stacks: f64,
    whole: f64,
    dropped: f64,
    /// Incomplete stacks by reason.
    cut: BTreeMap<String, u64>,
    /// CPU time in the kernel, ns per stack; no counter has perf's.
    kernel_ns: f64,
    /// CPU time of the daemon, or of perf's recording and unwinding, ns per stack.
    own_ns: f64,
    bytes: f64,
}

pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    let switches = ["--quick", "--callgrind", "--names"];
    refuse_others("stacks", arguments, &switches, &["--seconds", "--only", "--processes"])?;
    require_root("stacks")?;
    if arguments.contains(&"--names") {
        return stacks_named::run(arguments);
    }
    packages::ensure(
        packages::BENCH_TOOLS.iter().chain(&packages::STACKED).chain(&packages::CALLGRIND),
    )?;
    let quick = arguments.contains(&"--quick");
    let seconds = count(arguments, "--seconds", if quick { SECONDS_QUICK } else { SECONDS })?;
    let only = option(arguments, "--only")?;
    let folder = fs::canonicalize(prepare()?)?;
    let folder = folder.to_str().context("the folder's name is no text")?;
    println!("{}; {seconds} s each, {RATE} stacks/s/CPU", machine::description());
    if arguments.contains(&"--callgrind") {
        let within = stacks_counted::run(folder, seconds)?;
        return Ok(if within { Outcome::Clean } else { Outcome::Problems });
    }
    println!(
        "{:9} {:>7} {:>7} {:>8} {:>10} {:>10} {:>9}   {:>7} {:>7} {:>10} {:>7} {:>7}",
        "",
        "stacks",
        "whole %",
        "dropped",
        "kernel ns",
        "dcpid ns",
        "KiB each",
        "dwarf",
        "whole %",
        "perf ns",
        "fp",
        "whole %"
    );
    for workload in WORKLOADS.iter().filter(|of| only.is_none_or(|only| of.0 == only)) {
        let ours = of_dcpid(folder, workload, seconds)?;
        let dwarf = of_perf(folder, workload, seconds, "dwarf,65528")?;
        let fp = of_perf(folder, workload, seconds, "fp")?;
        let percent = |seen: &Seen| 100.0 * seen.whole / seen.stacks.max(1.0);
        println!(
            "{:9} {:>7} {:>7.2} {:>8} {:>10.0} {:>10.0} {:>9.1}   {:>7} {:>7.2} {:>10.0} {:>7} {:>7.2}",
            workload.0,
            ours.stacks,
            percent(&ours),
            ours.dropped,
            ours.kernel_ns,
            ours.own_ns,
            ours.bytes / 1024.0,
            dwarf.stacks,
            percent(&dwarf),
            dwarf.own_ns,
            fp.stacks,
            percent(&fp)
        );
        if !ours.cut.is_empty() {
            let cut = ours.cut.iter().map(|(why, stacks)| format!("{stacks} {why}"));
            println!("          cut: {}", cut.collect::<Vec<_>>().join(", "));
        }
    }
    Ok(Outcome::Clean)
}

/// Builds dcpid and the programs, and returns their folder.
fn prepare() -> anyhow::Result<String> {
    let folder = format!("{FOLDER}/stacks");
    fs::create_dir_all(&folder).with_context(|| format!("creating {folder}"))?;
    let empty_event = "tests/bench/empty_event.c";
    must(&mut command(&format!("cc -O2 -o {folder}/empty_event {empty_event}")))?;
    build(&folder, &["dcpid", "dcpi"])?;
    let part = fs::read_to_string("tests/bench/part.cc.in").context("reading part.cc.in")?;
    fs::write(format!("{folder}/part.cc"), part.replace("@N@", "1"))?;
    fs::write(format!("{folder}/cxx.cc"), part.replace("@N@", "2"))?;
    let queries = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 200000) \
                   SELECT x % 97, count(*), max(hex(x)) FROM n GROUP BY 1 ORDER BY 3;";
    fs::write(format!("{folder}/queries.sql"), queries)?;
    let procedures = (0..400).map(|number| {
        format!("pub fn f{number}(x: &[u64]) -> Vec<String> {{ let mut v: Vec<String> = x.iter().filter(|y| **y % {} > 1).map(|y| format!(\"{{y}}\")).collect(); v.sort(); v }}\n", number + 2)
    });
    fs::write(format!("{folder}/large.rs"), procedures.collect::<String>())?;
    let built = |line: &str| must(&mut command(line));
    built(&format!("c++ -O2 -o {folder}/cxx-stacks tests/bench/stacks/words.cc"))?;
    built(&format!("javac -d {folder} tests/bench/stacks/Words.java"))?;
    let mut go = command(&format!("go build -o {folder}/go-stacks tests/bench/stacks/words.go"));
    must(go.env("GO111MODULE", "off").env("GOFLAGS", ""))?;
    Ok(folder)
}

/// The shell command that keeps a program busy for this many seconds.
fn shell(folder: &str, workload: &Workload, seconds: u64) -> anyhow::Result<Command> {
    let Workload(.., line) = workload;
    let mut shell = Command::new("timeout");
    shell.args(["--kill-after=5", &seconds.to_string(), "sh", "-c", &line.replace("LOOP", LOOP)]);
    shell.current_dir(folder).env("SOURCE", std::env::current_dir()?);
    shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(shell)
}

fn work(folder: &str, workload: &Workload, seconds: u64) -> anyhow::Result<()> {
    shell(folder, workload, seconds)?.status().context("starting timeout")?;
    Ok(())
}

/// Costs and stacks of dcpid. A second run without stacks gives their cost in the kernel.
fn of_dcpid(folder: &str, workload: &Workload, seconds: u64) -> anyhow::Result<Seen> {
    let (with, taken, seen) = with_dcpid(folder, workload, seconds, &RATE.to_string())?;
    let (without, ..) = with_dcpid(folder, workload, seconds, "off")?;
    let without_ns = without.ns / without.samples.max(1.0) * with.samples;
    Ok(Seen { kernel_ns: (with.ns - without_ns) / taken.max(1.0), ..seen })
}

/// Samples of a run, and the time in the handler that the kernel measured.
struct Handler {
    samples: f64,
    ns: f64,
}

/// Runs the workload under dcpid. Returns the handler's figures, the stacks of all programs, and
/// those of the workload.
fn with_dcpid(
    folder: &str,
    workload: &Workload,
    seconds: u64,
    stacks: &str,
) -> anyhow::Result<(Handler, f64, Seen)> {
    let _statistics = BpfStatistics::on(folder)?;
    let arguments = format!("--stacks {stacks} --waits off --overhead-budget off --code-store off");
    let mut dcpid: Program = start_dcpid(folder, &arguments)?;
    work(folder, workload, WARM_UP_S)?;
    std::thread::sleep(SETTLES);
    let before = client(folder).status()?;
    work(folder, workload, seconds)?;
    std::thread::sleep(SETTLES);
    let after = client(folder).status()?;
    dcpid.end()?;
    let handler = |status: &Status| {
        let runs = status.handler.calls as f64;
        [runs, status.handler.ns_per_sample.unwrap_or(0.0) * runs]
    };
    let ([runs, ns], [runs_before, ns_before]) = (handler(&after), handler(&before));
    let during = Handler { samples: runs - runs_before, ns: ns - ns_before };
    let (Some(before), Some(after)) = (before.stacks, after.stacks) else {
        return Ok((during, 0.0, Seen::default()));
    };
    let named = workload.1;
    let of_programs = |status: &wire::StacksStatus| {
        let is_of = |program: &str| named.iter().any(|name| program.starts_with(name));
        let (mut whole, mut cut) = (0, BTreeMap::<String, u64>::new());
        for program in status.programs.iter().filter(|of| is_of(&of.program)) {
            whole += program.whole;
            for (why, stacks) in &program.cut {
                *cut.entry(why.clone()).or_default() += stacks;
            }
        }
        (whole, whole + cut.values().sum::<u64>(), cut)
    };
    let (whole, all, mut cut) = of_programs(&after);
    let (whole_before, all_before, cut_before) = of_programs(&before);
    cut.iter_mut().for_each(|(why, stacks)| *stacks -= cut_before.get(why).unwrap_or(&0));
    cut.retain(|_, stacks| *stacks > 0);
    let taken = (after.taken - before.taken) as f64;
    Ok((
        during,
        taken,
        Seen {
            stacks: (all - all_before) as f64,
            whole: (whole - whole_before) as f64,
            cut,
            dropped: (after.dropped - before.dropped) as f64,
            own_ns: 1e9 * (after.cpu_s - before.cpu_s) / taken.max(1.0),
            bytes: (after.bytes - before.bytes) as f64 / taken.max(1.0),
            ..Seen::default()
        },
    ))
}

/// Symbols of threads' first frames: of the C library, the loader, Go and the kernel.
const FIRST: [&str; 14] = [
    "_start",
    "clone3",
    "__clone3",
    "__GI___clone3",
    "clone",
    "__clone",
    "_dl_start_user",
    "ret_from_fork_asm",
    "ret_from_fork",
    "runtime.goexit.abi0",
    "runtime.goexit",
    "runtime.rt0_go.abi0",
    "runtime.mstart.abi0",
    "runtime.mcall",
];

/// Costs and stacks of `perf record`, of the workload's programs: the cost is the CPU time of
/// recording and of unwinding.
fn of_perf(folder: &str, workload: &Workload, seconds: u64, how: &str) -> anyhow::Result<Seen> {
    let data = format!("{folder}/perf.data");
    let line = format!(
        "perf record -a -F {RATE} -e cpu-clock -N --buildid-mmap --call-graph {how} -o {data}"
    );
    let recorder = Recorder::start(&line, &data, &format!("{folder}/perf.log"))?;
    let before = recorder.cpu_s();
    work(folder, workload, seconds)?;
    let recording_s = recorder.cpu_s() - before;
    recorder.end()?;
    let bytes = fs::metadata(&data).map_or(0, |file| file.len()) as f64;
    let mut script =
        command(&format!("perf script --no-inline --max-stack 1024 -F comm,ip,sym -i {data}"));
    let begun = machine::children_cpu_s();
    let said = output(&mut script)?;
    let unwinding_s = machine::children_cpu_s() - begun;
    fs::remove_file(&data)?;
    let (mut all, mut stacks, mut whole) = (0.0_f64, 0.0, 0.0);
    for sample in said.split("\n\n") {
        let mut lines = sample.lines().filter(|line| !line.trim().is_empty());
        let Some(command) = lines.next() else { continue };
        all += 1.0;
        let is_of = |name: &&str| command.trim().starts_with(name.get(..15).unwrap_or(name));
        if !workload.1.iter().any(is_of) {
            continue;
        }
        stacks += 1.0;
        // `_start` has no name in stripped programs, and perf often ends at its callee.
        let last = lines.rev().take(2).filter_map(|line| line.split_whitespace().nth(1));
        whole += f64::from(u8::from(
            last.into_iter()
                .any(|symbol| FIRST.contains(&symbol) || symbol.starts_with("__libc_start")),
        ));
    }
    let own_ns = 1e9 * (recording_s + unwinding_s) / all.max(1.0);
    Ok(Seen { stacks, whole, own_ns, bytes: bytes / all.max(1.0), ..Seen::default() })
}

//! `bench waits`: waits of threads by cause, compared with the threads' own clocks; the times of
//! 1,000 threads, compared with wall-clock time; the sum of a storm of short waits; and the cost
//! beyond an empty program at the tracepoint of switches.

use super::json::number_at;
use super::machine::{cpus, description, process_cpu_s};
use super::profilers::{BpfStatistics, Program, Switches, build, client, start_dcpid, waits_cost};
use super::statistics::Spread;
use super::{FOLDER, option, refuse_others, require_root};
use crate::Outcome;
use crate::process::{command, must, output};
use anyhow::{Context as _, bail};
use std::fs;
use std::time::Duration;
use wire::{Request, WaitsStatus};

/// Kinds of waits: name in the workload's output, procedure in the workload, and leaf of the call
/// stack in the database. Computing threads have no other waits than those for a CPU.
const KINDS: [(&str, &str, &str); 6] = [
    ("futex", "of_lock", "[futex]"),
    ("pipe", "of_pipe", "[pipe]"),
    ("timer", "of_timer", "[timer]"),
    ("disk", "of_disk", "[disk]"),
    ("page_fault", "of_fault", "[page_fault]"),
    (QUEUED, "of_queue", "[preempted]"),
];
const QUEUED: &str = "runnable";
/// Largest relative difference of the database from the threads' clocks that passes.
const KNOWN_MAX: f64 = 0.02;
/// Largest relative difference of the threads' times from wall-clock time that passes.
const LEDGER_MAX: f64 = 0.005;
/// Largest relative difference of a storm's time that passes, and most call stacks per second.
const STORM_MAX: f64 = 0.05;
const STACKS_MAX: f64 = 1000.0;
/// Largest share of the machine's CPU time beyond that of an empty program that passes.
const COST_MAX: f64 = 0.005;
const THREADS: u64 = 1000;
const KNOWN_S: u64 = 20;
const LEDGER_S: u64 = 5;
const STORM_S: u64 = 2;
const STORMS: usize = 10;
/// Pairs of threads that hand over a byte in the storm; as many pairs sleep meanwhile.
const PAIRS: u64 = 8;
const COST_S: u64 = 4;
const COST_ROUNDS: usize = 4;
const FILE_BYTES: usize = 64 << 20;
const SETTLES: Duration = Duration::from_secs(2);
const DCPID: &str = "--overhead-budget off --code-store off";
const DCPID_WITHOUT: &str = "--overhead-budget off --code-store off --waits off";

/// A part of the benchmark. It takes the folder, and returns whether its figures are within limits.
type Part = fn(&str) -> anyhow::Result<bool>;

pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    refuse_others("waits", arguments, &[], &["--only"])?;
    require_root("waits")?;
    let only = option(arguments, "--only")?;
    let folder = format!("{FOLDER}/waits");
    fs::create_dir_all(&folder).with_context(|| format!("creating {folder}"))?;
    for program in ["empty_event", "waits"] {
        let source = format!("tests/bench/{program}.c");
        must(&mut command(&format!("cc -O2 -pthread -o {folder}/{program} {source}")))?;
    }
    build(&folder, &["dcpid", "dcpi"])?;
    println!("{}", description());
    let mut is_clean = true;
    let parts: [(&str, Part); 4] =
        [("known", known), ("ledger", ledger), ("storm", storm), ("cost", cost)];
    if only.is_some_and(|only| parts.iter().all(|(name, _)| *name != only)) {
        bail!("bench waits --only takes {}", parts.map(|(name, _)| name).join(", "));
    }
    for (name, part) in parts.iter().filter(|part| only.is_none_or(|only| only == part.0)) {
        is_clean &= part(&folder).with_context(|| format!("the part {name}"))?;
    }
    Ok(if is_clean { Outcome::Clean } else { Outcome::Problems })
}

/// The remark after a figure with this upper limit, and whether the figure is within.
fn verdict(value: f64, most: f64) -> (&'static str, bool) {
    if value.abs() <= most { ("", true) } else { (": TOO LARGE", false) }
}

/// Runs the workload under this name, and returns its own report.
fn work(folder: &str, name: &str, arguments: &str) -> anyhow::Result<String> {
    output(&mut command(&format!("{folder}/{name} {arguments}")))
}

fn said(text: &str, name: &str) -> anyhow::Result<f64> {
    number_at(text, &[name]).with_context(|| format!("the workload does not say '{name}': {text}"))
}

fn waits(folder: &str) -> anyhow::Result<WaitsStatus> {
    client(folder).status()?.waits.context("dcpid takes no waits on this kernel")
}

/// Call stacks of an event, of one command: frames and seconds.
fn stacks(folder: &str, event: &str, name: &str) -> anyhow::Result<Vec<(Vec<String>, f64)>> {
    let file = format!("{folder}/folded");
    let _ = fs::remove_file(&file); // there is none the first time
    let line = format!("{folder}/dcpi export --to folded --all --event {event} --output {file}");
    output(&mut command(&format!("{line} --db {folder}/db")))?;
    let text = fs::read_to_string(&file)?;
    let stack = |line: &str| {
        let (frames, us) = line.rsplit_once(' ')?;
        let frames: Vec<String> = frames.split(';').map(str::to_owned).collect();
        (frames.first()? == name).then_some((frames, us.parse::<f64>().ok()? / 1e6))
    };
    Ok(text.lines().filter_map(stack).collect())
}

/// Compares waits with known causes and lengths.
fn known(folder: &str) -> anyhow::Result<bool> {
    let file = format!("{folder}/file");
    // Random bytes: a file system may store zeros without blocks, so that reading them waits for no
    // disk.
    let mut state = 1_u64;
    let words = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_le_bytes()
    });
    let bytes: Vec<u8> = words.take(FILE_BYTES / 8).flatten().collect();
    fs::write(&file, bytes)?;
    must(&mut command("sync"))?;
    let mut dcpid = start_dcpid(folder, DCPID)?;
    std::thread::sleep(SETTLES);
    let truth = work(folder, "waits", &format!("known {KNOWN_S} {file}"))?;
    client(folder).ask(&Request::Flush)?;
    let status = waits(folder)?;
    dcpid.end()?;
    let _ = fs::remove_file(&file);
    let (blocked, without) =
        (stacks(folder, "off-cpu", "waits")?, stacks(folder, "runnable", "waits")?);
    println!(
        "{:10} {:>11} {:>11} {:>9} {:>11}",
        "waits for", "known s", "told s", "apart %", "blocked s"
    );
    let mut is_clean = true;
    for (kind, procedure, leaf) in KINDS {
        let sum = |stacks: &[(Vec<String>, f64)], leaf: &str| -> f64 {
            let is_of = |frames: &[String]| {
                frames.iter().any(|frame| frame == procedure)
                    && frames.last().is_some_and(|last| last == leaf)
            };
            stacks.iter().filter(|(frames, _)| is_of(frames)).map(|(_, s)| s).sum::<f64>() + 0.0
        };
        let known = said(&truth, kind)?;
        // A thread that was blocked and woken still waits for a CPU.
        let (blocked, then) = (sum(&blocked, leaf), sum(&without, "[runnable]"));
        let told = if kind == QUEUED { sum(&without, leaf) + then } else { blocked + then };
        let apart = told / known - 1.0;
        let (word, within) = verdict(apart, KNOWN_MAX);
        is_clean &= within;
        let percent = 100.0 * apart;
        println!("{kind:10} {known:>11.3} {told:>11.3} {percent:>9.2} {blocked:>11.3}{word}");
    }
    println!("  {} stacks, {} lost", status.taken, status.lost);
    Ok(is_clean)
}

/// Compares the times of many threads with wall-clock time.
fn ledger(folder: &str) -> anyhow::Result<bool> {
    let mut dcpid = start_dcpid(folder, DCPID)?;
    std::thread::sleep(SETTLES);
    client(folder).ask(&Request::Flush)?;
    let before = waits(folder)?;
    let truth = work(folder, "waits", &format!("crowd {LEDGER_S} {THREADS}"))?;
    client(folder).ask(&Request::Flush)?;
    let after = waits(folder)?;
    dcpid.end()?;
    let wall_s = after.wall_s - before.wall_s;
    let (on_s, off_s) = (
        after.on_s - before.on_s,
        after.blocked_s + after.runnable_s - before.blocked_s - before.runnable_s,
    );
    let apart = (on_s + off_s) / wall_s - 1.0;
    let (word, is_clean) = verdict(apart, LEDGER_MAX);
    println!(
        "{} threads lived {:.1} s, of which {:.2} s on a CPU; {} threads in the ledger:\n  \
         {wall_s:.1} s of wall-clock time, {on_s:.2} s on a CPU + {:.1} s blocked + {:.2} s \
         runnable: {:.4} % apart{word}",
        THREADS,
        said(&truth, "wall")?,
        said(&truth, "on")?,
        after.threads,
        after.blocked_s - before.blocked_s,
        after.runnable_s - before.runnable_s,
        100.0 * apart
    );
    Ok(is_clean)
}

/// Compares the times of storms of short waits beside long ones. Each storm runs under a name of
/// its own.
fn storm(folder: &str) -> anyhow::Result<bool> {
    let mut dcpid = start_dcpid(folder, DCPID)?;
    let (mut known_s, mut stacks_per_s, mut switches_per_s) = (vec![], vec![], vec![]);
    for number in 0..STORMS {
        std::thread::sleep(SETTLES);
        let name = format!("storm{number}");
        fs::copy(format!("{folder}/waits"), format!("{folder}/{name}"))?;
        let (taken, switches) = (waits(folder)?.taken, switches());
        let truth = work(folder, &name, &format!("storm {STORM_S} {PAIRS}"))?;
        switches_per_s.push((self::switches() - switches) / STORM_S as f64);
        client(folder).ask(&Request::Flush)?;
        stacks_per_s.push((waits(folder)?.taken - taken) as f64 / STORM_S as f64);
        known_s.push(said(&truth, "off")?);
    }
    let lost = waits(folder)?.lost;
    let dropped = client(folder).status()?.stacks.map_or(0, |stacks| stacks.dropped);
    dcpid.end()?;
    let mut apart = Vec::new();
    for (number, known_s) in known_s.iter().enumerate() {
        let name = format!("storm{number}");
        let of = |event: &str| -> anyhow::Result<f64> {
            Ok(stacks(folder, event, &name)?.iter().map(|(_, s)| s).sum())
        };
        apart.push((of("off-cpu")? + of("runnable")?) / known_s - 1.0);
        let _ = fs::remove_file(format!("{folder}/{name}"));
    }
    let rms = (apart.iter().map(|apart| apart * apart).sum::<f64>() / apart.len() as f64).sqrt();
    let mean = apart.iter().sum::<f64>() / apart.len() as f64;
    let stacks_per_s = Spread::of(stacks_per_s).context("no storm")?;
    let switches_per_s = Spread::of(switches_per_s).context("no storm")?;
    let (word, within) = verdict(rms, STORM_MAX);
    println!(
        "{STORMS} storms of {STORM_S} s, {switches_per_s:.0} switches/s, {stacks_per_s:.0} \
         stacks/s: time off the CPUs\n  {:.2} % apart (root of the mean square; the mean is {:.2} \
         %; each: {}){word}\n  {lost} waits lost, {dropped} stacks dropped",
        100.0 * rms,
        100.0 * mean,
        apart.iter().map(|apart| format!("{:.1}", 100.0 * apart)).collect::<Vec<_>>().join(" ")
    );
    Ok(within && stacks_per_s.median <= STACKS_MAX)
}

/// The kernel's count of switches between threads (proc_stat(5)).
fn switches() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let count = stat.lines().find_map(|line| line.strip_prefix("ctxt "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0.0)
}

named! {
    /// The program at each switch between threads.
    enum At {
        Nothing = "nothing",
        Empty = "an empty program at each switch",
        Without = "dcpid --waits off",
        With = "dcpid",
    }
}

/// Runs a storm. Returns the seconds of one hand-over of the byte, and dcpid's share of the
/// machine's CPU time.
fn stormy(folder: &str, at: At) -> anyhow::Result<(f64, f64)> {
    let begin = |line| start_dcpid(folder, line).map(Some);
    let (mut dcpid, mut empty): (Option<Program>, _) = (None, None);
    match at {
        At::Nothing => {}
        At::Empty => empty = Some(Switches::start(folder)?),
        At::Without => dcpid = begin(DCPID_WITHOUT)?,
        At::With => dcpid = begin(DCPID)?,
    }
    std::thread::sleep(SETTLES);
    let pid = dcpid.as_ref().map(Program::pid);
    let daemon_s = || pid.and_then(process_cpu_s).unwrap_or(0.0);
    let before_s = daemon_s();
    let truth = work(folder, "waits", &format!("storm {COST_S} {PAIRS}"))?;
    let own = (daemon_s() - before_s) / (COST_S as f64 * cpus() as f64);
    if let Some(mut dcpid) = dcpid {
        dcpid.end()?;
    }
    if let Some(empty) = empty {
        empty.end()?;
    }
    Ok((COST_S as f64 / said(&truth, "turns")?, own))
}

/// Measures the cost of a storm's switches: in the kernel by BPF statistics, and in total by the
/// storm's slowdown.
fn cost(folder: &str) -> anyhow::Result<bool> {
    let machine_ns = COST_S as f64 * cpus() as f64 * 1e9;
    let (empty, with, switches_with) = {
        let _statistics = BpfStatistics::on(folder)?;
        let switches = Switches::start(folder)?;
        work(folder, "waits", &format!("storm {COST_S} {PAIRS}"))?;
        let empty = switches.end()?;
        let mut dcpid = start_dcpid(folder, DCPID)?;
        std::thread::sleep(SETTLES);
        let before = waits_cost(folder)?;
        work(folder, "waits", &format!("storm {COST_S} {PAIRS}"))?;
        let after = waits_cost(folder)?;
        dcpid.end()?;
        let runs = after.0 - before.0;
        (empty.1 / empty.0.max(1.0), (after.1 - before.1) / runs.max(1.0), runs)
    };
    let beyond = (with - empty) * switches_with / machine_ns;
    println!(
        "at a switch: an empty program {empty:.0} ns, dcpid's {with:.0} ns with its stacks and \
         wakeups, {:.0} switches/s: {:.2} % of the machine beyond the empty program",
        switches_with / COST_S as f64,
        100.0 * beyond
    );
    let mut seconds: [Vec<f64>; 4] = Default::default();
    let mut own: [Vec<f64>; 4] = Default::default();
    for round in 0..COST_ROUNDS {
        let order: Vec<usize> =
            if round % 2 == 0 { (0..4).collect() } else { (0..4).rev().collect() };
        for number in order {
            let Some(at) = At::ALL.get(number) else { continue };
            let (turn_s, daemon) = stormy(folder, *at)?;
            if let (Some(seconds), Some(own)) = (seconds.get_mut(number), own.get_mut(number)) {
                seconds.push(turn_s);
                own.push(daemon);
            }
        }
    }
    let [nothing, ..] = &seconds;
    let nothing = Spread::of(nothing.iter().copied()).context("no storm")?.median;
    for ((at, seconds), own) in At::ALL.iter().zip(&seconds).zip(&own) {
        let slower = Spread::of(seconds.iter().map(|s| 100.0 * (s / nothing - 1.0)));
        let own = Spread::of(own.iter().map(|share| 100.0 * share)).context("no storm")?;
        println!(
            "  {:32} slower by {:.2} %; dcpid's process {:.2} % of the machine",
            at.name(),
            slower.context("no storm")?,
            own.median
        );
    }
    let (word, is_clean) = verdict(beyond, COST_MAX);
    println!("  in the kernel beyond the tracepoint: {:.2} %{word}", 100.0 * beyond);
    Ok(is_clean)
}

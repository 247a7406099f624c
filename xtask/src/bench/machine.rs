//! Load and description of the machine during a measurement, without which no figure can be judged.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike as _};
use std::fs;

/// Units of the times in /proc/stat and /proc/PID/stat: USER_HZ is 100 on every architecture that
/// we run on.
const TICKS_PER_S: f64 = 100.0;

/// Number of CPUs on which this process may run.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// CPU time of programs, of the kernel on their behalf, and stolen by the host, on all CPUs, in
/// seconds since boot. Interrupts are left out, because sampling is done in them.
pub fn busy_s() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let total = stat.lines().next().unwrap_or_default();
    let times: Vec<f64> =
        total.split_whitespace().skip(1).map(|word| word.parse().unwrap_or(0.0)).collect();
    // user nice system idle iowait irq softirq steal (proc(5))
    [0, 1, 2, 7].iter().filter_map(|field| times.get(*field)).sum::<f64>() / TICKS_PER_S
}

/// CPU time of the children that this process has waited for, theirs included, in seconds.
pub fn children_cpu_s() -> f64 {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else { return 0.0 };
    let seconds = |time: TimeVal| time.num_microseconds() as f64 / 1e6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}

/// A process and its living descendants.
pub fn descendants(pid: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter_map(|pid| Some((pid, stat_field(pid, 1)? as u32)))
        .collect();
    let mut tree = vec![pid];
    let mut next = 0;
    while let Some(parent) = tree.get(next).copied() {
        tree.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    tree
}

/// CPU time of a process and of the children that it has waited for, in seconds.
pub fn with_waited_cpu_s(pid: u32) -> Option<f64> {
    // cutime and cstime (proc(5)).
    Some(process_cpu_s(pid)? + (stat_field(pid, 13)? + stat_field(pid, 14)?) / TICKS_PER_S)
}

/// A field of /proc/PID/stat, counted from the state, which is 0.
fn stat_field(pid: u32, field: usize) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name, in parentheses before the state, may hold spaces and parentheses.
    stat.rsplit_once(')')?.1.split_whitespace().nth(field)?.parse().ok()
}

/// CPU time of all threads of a process in seconds; None where there is no such process.
pub fn process_cpu_s(pid: u32) -> Option<f64> {
    let mut total_ns = 0.0;
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let schedstat = fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        total_ns += schedstat.split_whitespace().next()?.parse::<f64>().ok()?;
    }
    Some(total_ns / 1e9)
}

/// A line of /proc/PID/status that is given in kB, in bytes.
pub fn memory_bytes(pid: u32, line: &str) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let value = status.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(':'))?;
    Some(value.split_whitespace().next()?.parse::<f64>().ok()? * 1024.0)
}

/// Proportional set size of a process, in bytes (Pss, proc_pid_smaps(5)).
pub fn proportional_bytes(pid: u32) -> Option<f64> {
    let sums = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let value = sums.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    Some(value.split_whitespace().next()?.parse::<f64>().ok()? * 1024.0)
}

/// Profilers other than the process `ours` that run now and interrupt the same CPUs.
pub fn other_profilers(ours: Option<u32>) -> Vec<String> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let pids =
        processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let named = pids.filter(|pid| Some(*pid) != ours).filter_map(|pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        ["dcpid", "perf"].contains(&name.trim()).then(|| format!("{} (process {pid})", name.trim()))
    });
    named.collect()
}

/// Size in bytes of a file, or of all files in a folder and its subfolders.
pub fn size_bytes(path: &std::path::Path) -> u64 {
    let Ok(entries) = fs::read_dir(path) else {
        return path.metadata().map_or(0, |file| file.len());
    };
    entries.flatten().map(|entry| size_bytes(&entry.path())).sum()
}

/// Processor and kernel, as reports name the machine.
pub fn description() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "{} CPUs, {}, Linux {}",
        cpus(),
        model.map_or("unnamed processor", |(_, model)| model),
        kernel.trim()
    )
}

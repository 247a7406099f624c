//! Recordings of single samples by `perf record`, which the simulation feeds to the sampler's
//! table.

use super::FOLDER;
use super::profilers::Recorder;
use super::workloads::{Kind, Workload, prepare};
use crate::process::output;
use anyhow::{Context as _, bail, ensure};
use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use std::time::Duration;

/// Nanoseconds between two samples of a CPU: 5000 a second.
const PERIOD_NS: u64 = 200_000;

/// One sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// CPU on which it was taken.
    pub cpu: u16,
    /// The process.
    pub pid: u32,
    /// Time in microseconds of perf's clock.
    pub time_us: u64,
    /// The program counter.
    pub pc: u64,
}

impl Sample {
    /// Whether the program counter is a kernel address, in the upper half.
    pub fn is_kernel(&self) -> bool {
        self.pc >> 63 == 1
    }
}

/// Samples of one workload, in order of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Phase {
    /// The workload.
    pub name: String,
    /// The sampled events.
    pub samples: Vec<Sample>,
}

/// Records the workloads, for about `seconds` in all, and returns the path of the file.
///
/// The file has a line `# NAME` for each phase and then a line `CPU PID TIME PC` for each sample:
/// time in microseconds, the rest of the numbers decimal except for the program counter, which is
/// hexadecimal.
pub fn record(seconds: u64) -> anyhow::Result<String> {
    prepare(FOLDER)?;
    let each = Duration::from_secs((seconds / 3).max(1));
    println!("finding how much work {} s are", each.as_secs());
    let compute = Workload::calibrate(FOLDER, Kind::Compute, each)?;
    let compile = Workload::calibrate(FOLDER, Kind::Compile, each)?;
    let half = |workload: &Workload| Workload { units: (workload.units / 2).max(1), ..*workload };
    let mut text = String::new();
    for (name, workloads) in [
        ("compute", vec![compute]),
        ("compile", vec![compile]),
        ("both", vec![half(&compute), half(&compile)]),
    ] {
        let samples = record_phase(&workloads)?;
        println!("  {name:<8} {:>9} samples", samples.len());
        let _ = writeln!(text, "# {name}"); // writing to a String cannot fail
        for Sample { cpu, pid, time_us, pc } in samples {
            let _ = writeln!(text, "{cpu} {pid} {time_us} {pc:x}");
        }
    }
    let path = format!("{FOLDER}/recording.txt");
    fs::write(&path, text).with_context(|| format!("writing {path}"))?;
    Ok(path)
}

fn record_phase(workloads: &[Workload]) -> anyhow::Result<Vec<Sample>> {
    let data = format!("{FOLDER}/recording.perf");
    let line = format!("perf record -a -c {PERIOD_NS} -e cpu-clock -N -o {data}");
    let recorder = Recorder::start(&line, &data, &format!("{FOLDER}/recording.log"))?;
    std::thread::scope(|scope| {
        let running: Vec<_> =
            workloads.iter().map(|workload| scope.spawn(|| workload.run(FOLDER))).collect();
        for thread in running {
            match thread.join() {
                Ok(result) => drop(result?),
                Err(_) => bail!("a workload's thread panicked"),
            }
        }
        Ok(())
    })?;
    recorder.end()?;
    let mut script = Command::new("perf");
    script.args(["script", "-i", &data, "-F", "cpu,pid,time,ip"]);
    let samples = output(&mut script)?.lines().filter_map(perf_line).collect();
    let _ = fs::remove_file(&data); // big, and not needed any more
    Ok(samples)
}

/// Parses a line of perf script, such as `  27687 [001]  6703.667386:  ffffffff81b9764c`; None for
/// other lines. Of a process that has ended perf writes -1.
fn perf_line(line: &str) -> Option<Sample> {
    let mut words = line.split_whitespace();
    let pid = words.next()?.parse::<i64>().ok()?;
    let cpu = words.next()?.strip_prefix('[')?.strip_suffix(']')?.parse().ok()?;
    let (seconds, fraction) = words.next()?.strip_suffix(':')?.split_once('.')?;
    let micros = fraction.get(..6)?.parse::<u64>().ok()?;
    let time_us = seconds.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(micros)?;
    let pc = u64::from_str_radix(words.next()?, 16).ok()?;
    Some(Sample { cpu, pid: u32::try_from(pid).unwrap_or(u32::MAX), time_us, pc })
}

/// Reads a recording.
pub fn read(path: &str) -> anyhow::Result<Vec<Phase>> {
    let text = fs::read_to_string(path).with_context(|| format!("reading --recording {path}"))?;
    let mut phases: Vec<Phase> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if let Some(name) = line.strip_prefix("# ") {
            phases.push(Phase { name: name.to_owned(), samples: Vec::new() });
            continue;
        }
        let sample = recorded_line(line).with_context(|| {
            format!(
                "{path}:{}: not 'CPU PID TIME PC'; record it anew without --recording",
                number + 1
            )
        })?;
        phases
            .last_mut()
            .with_context(|| format!("{path} does not begin with a phase, '# NAME'"))?
            .samples
            .push(sample);
    }
    for phase in &mut phases {
        phase.samples.sort_by_key(|sample| sample.time_us);
    }
    ensure!(phases.iter().any(|phase| !phase.samples.is_empty()), "{path} has no samples");
    Ok(phases)
}

fn recorded_line(line: &str) -> Option<Sample> {
    let mut words = line.split(' ');
    let cpu = words.next()?.parse().ok().filter(|cpu| *cpu < 4096)?;
    let sample = Sample {
        cpu,
        pid: words.next()?.parse().ok()?,
        time_us: words.next()?.parse().ok()?,
        pc: u64::from_str_radix(words.next()?, 16).ok()?,
    };
    words.next().is_none().then_some(sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_perf_and_of_recordings() {
        let sample = perf_line("  27687 [001]  6703.667386:  ffffffff81b9764c ").unwrap();
        assert_eq!(
            sample,
            Sample { cpu: 1, pid: 27687, time_us: 6_703_667_386, pc: 0xffff_ffff_81b9_764c }
        );
        assert!(sample.is_kernel());
        assert_eq!(perf_line("   -1 [000] 1.000001:  10").unwrap().pid, u32::MAX);
        assert_eq!(recorded_line("1 27687 6703667386 ffffffff81b9764c"), Some(sample));
        for odd in ["", "x", "1 2 3", "1 2 3 zz", "1 2 3 4 5", "99999 2 3 4", "-1 2 3 4"] {
            assert_eq!((perf_line(odd), recorded_line(odd)), (None, None), "{odd}");
        }
    }
}

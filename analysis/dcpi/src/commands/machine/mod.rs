//! `dcpi machine`: what this processor is, measured.

mod picture;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use model::{Cpuid, MeasuredCache, MeasuredClock, MeasuredMachine, MeasuredTlb, Spread};
use probe::machine::{Cache, Limits, Machine, Tlb};
use probe::mountain::STRIDES;
use probe::pieces::Stable;
use probe::stated::{self, StatedCache};

use super::cpu_ticks::{CpuTicks, TICKS_PER_S};
use super::ideal::database::{cpu_model, now_unix_s, of_proc};
use super::{Outcome, write_and_keep};
use crate::destination::{Destination, svg_path};
use crate::options::{Format, Output};
use query::error::AnalysisError;
use query::progress;
use report::MachineReport;

/// `dcpi machine`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct MachineArgs {
    /// Write what was measured to this file, for dcpid (/var/lib/dcpi/machine) and for dcpi calc
    /// --latencies; - writes it on standard output instead of a report
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Begin no round that would end after so many seconds, but the first, which is always
    /// measured: even with 1 all takes some 3 seconds. More rounds make ranges surer
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 7,
        value_parser = clap::value_parser!(u64).range(1..=600)
    )]
    pub seconds: u64,
    /// Draw the memory mountain and the curves of latency: an SVG, or a directory for one of each
    #[arg(long, value_name = "FILE.svg|DIR", value_parser = svg_path())]
    pub picture: Option<PathBuf>,
    #[command(flatten)]
    pub output: Output,
}

const NOTES: &str = "\
It takes less than 10 seconds (--seconds), up to 1 GiB of memory, and at the end the memory \
throughput of all CPUs for half a second: measure in a quiet minute. Other load makes ranges \
wider: of each time the fastest of many short pieces counts, spread over the whole measurement. \
What is shared with other CPUs (the last cache, memory, page walks) others make slower all the \
time.

Sizes are found by loads that each wait for the one before, in random order, over more and more \
memory: where they become slower a cache or TLB has ended. The last level is shared with other \
CPUs, and on a virtual machine with other guests: its size is what one program gets at this time.

dcpid keeps the file /var/lib/dcpi/machine with each epoch, from its start or the next reload on. \
Then dcpi calc, whatcg and topstalls take these latencies instead of generic ones. Measure again \
after a change of the processor, the memory, or the host of a virtual machine.

Exit codes: 0 done; 2 could not.";

/// Most rounds a second. On an idle machine a round takes 0.7 s.
const ROUNDS_PER_S: u64 = 2;

pub(crate) fn run(args: &MachineArgs, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let file = args.file.as_deref().map(Destination::from_argument);
    // Files that cannot be written are known before the measurement.
    file.as_ref().map_or(Ok(()), Destination::check)?;
    args.picture.as_deref().map_or(Ok(()), picture::check)?;
    kept(&measure(args.seconds)?, args, file.as_ref(), out)
}

/// Writes the report and the files of a measurement.
fn kept(
    report: &MachineReport,
    args: &MachineArgs,
    file: Option<&Destination>,
    out: &mut dyn Write,
) -> Result<Outcome, AnalysisError> {
    let keep = |out: &mut dyn Write| {
        let drawn = args.picture.as_deref().map_or(Ok(()), |path| picture::write(report, path));
        file.map_or(Ok(()), |file| for_dcpid(&report.measured, file, out))?;
        drawn
    };
    if file == Some(&Destination::Stdout) {
        keep(out)?;
        return Ok(Outcome::default());
    }
    let outcome = write_and_keep(report, &args.output, out, keep)?;
    if let (Some(file), Format::Text) = (&args.file, args.output.format) {
        let name = report::escape(&file.display().to_string()).into_owned();
        let next = match file == Path::new(MeasuredMachine::FILE) {
            true => "dcpid keeps it with its samples after: systemctl reload dcpid".to_owned(),
            false => format!("dcpi calc --latencies {name} takes it"),
        };
        writeln!(out, "{name}: {next}")?;
    }
    Ok(outcome)
}

/// Writes the file for dcpid. Nobody would read one with a quantity that no processor has.
fn for_dcpid(
    measured: &MeasuredMachine,
    file: &Destination,
    out: &mut dyn Write,
) -> Result<(), AnalysisError> {
    measured.check().map_err(|why| {
        AnalysisError::Refused(format!(
            "no file is written, since {why}; measure again when the machine is quieter"
        ))
    })?;
    let text = measured.to_file();
    file.write(out, |out| Ok(out.write_all(text.as_bytes())?))
}

/// Measures this machine for about this long.
///
/// # Errors
/// [`AnalysisError::Refused`] without enough memory, or where /proc does not tell the processor.
fn measure(seconds: u64) -> Result<MachineReport, AnalysisError> {
    let refused = |why: &str| AnalysisError::Refused(why.to_owned());
    let cpuinfo = of_proc("/proc/cpuinfo");
    let cpuid = Cpuid::of_cpuinfo(&cpuinfo)
        .ok_or_else(|| refused("/proc/cpuinfo does not name one kind of processor"))?;
    let name = cpu_model();
    let available = available_bytes(&of_proc("/proc/meminfo")).unwrap_or(1 << 30);
    let limits = Limits {
        time: Duration::from_secs(seconds),
        rounds: usize::try_from(seconds * ROUNDS_PER_S).unwrap_or(usize::MAX),
        memory_bytes: available / 2,
    };
    let stage = progress::stage("measuring", PARTS);
    let done = AtomicU64::new(0);
    let told = |part: f64| {
        let now = (part * PARTS as f64) as u64;
        stage.advance(now.saturating_sub(done.fetch_max(now, Ordering::Relaxed)));
    };
    let before = Busy::read();
    let machine = probe::machine::measure(limits, &told)
        .ok_or_else(|| refused("there is not enough memory to measure: 1 GiB must be available"))?;
    drop(stage);
    let others_share = Busy::read().others_since(before);
    let about = (cpuid, name.as_deref().unwrap_or("unknown").chars().take(100).collect());
    let stated = (stated::caches(Path::new("/sys")), stated::tlbs());
    Ok(MachineReport {
        measured: measured(&machine, about, &stated),
        seconds: machine.seconds,
        rounds: machine.rounds,
        others_share,
        stated_caches: stated.0.iter().map(|cache| (cache.level, cache.bytes)).collect(),
        stated_tlbs: stated.1.clone(),
        latencies: machine.latencies,
        page_latencies: machine.page_latencies,
        strides: STRIDES.to_vec(),
        mountain: machine.mountain,
    })
}

const PARTS: u64 = 100;

/// Times since the machine started, and of this process, at one moment.
#[derive(Clone, Copy, Debug)]
struct Busy {
    cpus: CpuTicks,
    /// CPU time of this process, in ticks.
    own: f64,
}

impl Busy {
    fn read() -> Self {
        let own = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let own_s = own.tv_sec as f64 + own.tv_nsec as f64 * 1e-9;
        Self { cpus: CpuTicks::of_stat(&of_proc("/proc/stat")), own: own_s * TICKS_PER_S }
    }

    /// Part of all CPUs' time since `before` that was neither idle nor this process's, 0 to 1.
    fn others_since(self, before: Self) -> f64 {
        let all = self.cpus.all - before.cpus.all;
        let others = all - (self.cpus.idle - before.cpus.idle) - (self.own - before.own);
        if all > 0.0 { (others / all).clamp(0.0, 1.0) } else { 0.0 }
    }
}

/// Memory that programs can have, by the text of /proc/meminfo, bytes.
fn available_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

fn spread(Stable { low, value, high }: Stable) -> Spread {
    let [low, value, high] = [low, value, high].map(rounded);
    Spread { low, value, high }
}

/// A number to a thousandth: no clock is finer.
fn rounded(number: f64) -> f64 {
    (number.clamp(0.0, 1e9) * 1000.0).round() / 1000.0
}

/// The form that files and epochs keep.
fn measured(
    machine: &Machine,
    (cpuid, cpu_model): (Cpuid, String),
    (caches, tlbs): &(Vec<StatedCache>, Vec<u64>),
) -> MeasuredMachine {
    let cache = |of: &Cache| {
        let stated = caches.iter().find(|stated| stated.level == of.level);
        MeasuredCache {
            level: of.level,
            bytes_low: of.bytes.map(|(low, _)| low),
            bytes_high: of.bytes.map(|(_, high)| high),
            stated_bytes: stated.map(|stated| stated.bytes),
            line: machine.line_bytes,
            stated_line: stated.map(|stated| stated.line_bytes),
            latency_cycles: spread(of.latency_cycles),
        }
    };
    let tlb = |of: &Tlb| MeasuredTlb {
        level: of.level,
        entries_low: of.entries.map(|(low, _)| low),
        entries_high: of.entries.map(|(_, high)| high),
        stated_entries: tlbs.get(of.level.saturating_sub(1) as usize).copied(),
        cycles: spread(of.cycles),
    };
    MeasuredMachine {
        cpuid,
        cpu_model,
        unix_s: now_unix_s(),
        core_ghz: spread(machine.core_ghz),
        large_pages: machine.large_pages,
        caches: machine.caches.iter().map(cache).collect(),
        tlbs: machine.tlbs.iter().map(tlb).collect(),
        memory_cycles: spread(machine.memory_cycles),
        loaded_memory_cycles: machine.loaded_memory_cycles.map(spread),
        memory_bytes: machine.memory_bytes.1,
        page_walk_cycles: machine.page_walk_cycles.map(spread),
        cold_page_walk_cycles: machine.cold_page_walk_cycles.map(rounded),
        mispredict_cycles: spread(machine.mispredict_cycles),
        forward_cycles: spread(machine.forward_cycles),
        forward_failing_cycles: spread(machine.forward_failing_cycles),
        clock: MeasuredClock {
            ticks_per_ns: rounded(machine.counter_ghz),
            step_ns: rounded(machine.step_ns),
            read_ns: spread(machine.read_ns),
            fenced_read_ns: spread(machine.fenced_read_ns),
        },
        events: machine.events.iter().map(|(name, of)| ((*name).to_owned(), spread(*of))).collect(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A report of a small machine.
    pub(in crate::commands) fn report() -> MachineReport {
        let text = include_str!("../../../../stalls/tests/zen4.json");
        MachineReport {
            measured: MeasuredMachine::of_file(text.as_bytes()).unwrap(),
            seconds: 6.5,
            rounds: 8,
            others_share: 0.0,
            stated_caches: vec![(1, 32 << 10), (2, 1 << 20), (3, 32 << 20)],
            stated_tlbs: vec![72, 3072],
            latencies: vec![(4096, Some(4.0)), (65536, Some(14.0))],
            page_latencies: vec![(8, Some(4.0)), (128, Some(11.0))],
            strides: vec![8, 64],
            mountain: vec![
                (8192, vec![Some(58.0), Some(58.0)]),
                (65536, vec![Some(58.0), Some(15.0)]),
                (1 << 26, vec![Some(35.0), Some(4.0)]),
            ],
        }
    }

    /// A measurement of ten seconds was lost with the disk that its file should have been on.
    #[test]
    fn a_report_is_there_also_where_no_file_can_be() {
        let folder = tempfile::tempdir().unwrap();
        let written = |words: &[&str]| {
            let args: MachineArgs = crate::options::typed(words).unwrap();
            let file = args.file.as_deref().map(Destination::from_argument);
            let mut out = Vec::new();
            let done = kept(&report(), &args, file.as_ref(), &mut out);
            (done.map_err(|error| error.to_string()), String::from_utf8(out).unwrap())
        };
        let (file, none) = (folder.path().join("machine"), folder.path().join("none/x"));
        let (file, none) = (file.to_str().unwrap(), none.to_str().unwrap());
        for words in [["-o", none, "--picture", file], ["-o", file, "--picture", none]] {
            let (done, out) = written(&words);
            assert!(done.unwrap_err().starts_with(&format!("cannot write {none}")), "{words:?}");
            assert!(out.starts_with("found ") && !out.contains("--latencies"), "{out}");
            assert!(std::fs::read_to_string(file).unwrap().len() > 1000, "the other one is there");
            std::fs::remove_file(file).unwrap();
        }
        let (done, out) = written(&["-o", "-"]);
        assert!(done.is_ok() && MeasuredMachine::of_file(out.as_bytes()).is_ok(), "{out}");
    }

    #[test]
    fn others_have_what_is_neither_idle_nor_ours() {
        let of = |stat, own| Busy { cpus: CpuTicks::of_stat(stat), own };
        let before = of("cpu 100 0 100 700 100 0 0 0 0 0\n", 200.0);
        let after = of("cpu 400 0 200 1100 200 0 0 100 9 0\n", 500.0);
        // 500 of 1000 ticks were idle, and 300 were ours.
        assert!((after.others_since(before) - 0.2).abs() < 1e-9);
        assert_eq!(before.others_since(before), 0.0);
    }

    #[test]
    fn memory_that_is_available_is_read() {
        let text = "MemTotal:       24683000 kB\nMemAvailable:   24000000 kB\n";
        assert_eq!(available_bytes(text), Some(24_000_000 << 10));
        assert_eq!(available_bytes("MemAvailable: x kB"), None);
    }
}

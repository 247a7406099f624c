//! What an event of `dcpi trace` costs a program here and now: this program runs itself, with work
//! that is known, without and with events.

use std::ffi::OsString;
use std::fs;
use std::hint::black_box;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use capture::TraceError;
use capture::recorder::{self, Options, RING_BYTES, Target};
use capture::sites::Site;
use clap::Args;
use measure::models::alpha::Alpha;
use query::error::AnalysisError;
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use trace::calibration::{median_and_spread, of_rounds, paired};
use trace::correct::cost;
use trace::{Cost, EventKind, Name, NameKind};

use super::Outcome;
use super::passing::Stopped;

/// How the costs are measured.
const HOW: &str = "in vitro";
/// The subcommand, for internal use only.
pub(crate) const NAME: &str = "calibration-work";
/// The medium, over all rounds, of so many steps is a figure.
const ROUNDS: usize = 9;
const STEPS: u32 = 100;
/// System calls, and switches of each of two threads, of a figure.
const CALLS: u32 = 3000;
/// Time for the switches of a figure: beside other busy threads each takes some ms.
const SWITCHES_LAST: Duration = Duration::from_millis(50);
/// Kinds of work between the events.
const PLACES: usize = 7;
/// Words of the memory that is walked through: 32 MiB, more than caches hold.
const WORDS: usize = 1 << 22;

/// `dcpi calibration-work`: the work; prints what each step took.
#[derive(Debug, Args)]
pub struct CalibrationWork {
    /// What to do: probes, syscalls or switches
    pub what: String,
}

pub(crate) fn work(args: &CalibrationWork, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    match args.what.as_str() {
        "probes" => {
            let memory: Vec<u64> =
                (0..WORDS as u64).map(|at| at.wrapping_mul(0x9e37_79b1)).collect();
            for place in 0..PLACES {
                let [(emulated, error), (stepped, its_error)] = of_place(place, &memory);
                writeln!(out, "{emulated} {error} {stepped} {its_error}")?;
            }
        }
        "syscalls" => {
            let each = rounds(|| {
                let begun = cpu_ns();
                for _ in 0..CALLS {
                    // Not cached by the C library, and does nothing.
                    black_box(rustix::process::getppid());
                }
                (cpu_ns() - begun) / f64::from(CALLS)
            });
            writeln!(out, "{each}")?;
        }
        "switches" => writeln!(out, "{}", rounds(of_switches))?,
        other => {
            let message = format!("no work is named {other}");
            return Err(AnalysisError::Usage { message, help: "dcpi trace --help".to_owned() });
        }
    }
    Ok(Outcome::default())
}

/// CPU time of this thread, ns: what preemption takes is not in it.
fn cpu_ns() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// CPU time of all threads of this process, ns.
fn process_ns() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

fn rounds(mut once: impl FnMut() -> f64) -> f64 {
    let mut all: Vec<f64> = (0..ROUNDS).map(|_| once()).collect();
    median_and_spread(&mut all).map_or(0.0, |(median, _)| median)
}

/// Time that a call of either procedure adds to a step of work, in ns, with its standard error.
fn of_place(place: usize, memory: &[u64]) -> [(f64, f64); 2] {
    let mut x = 1_u64;
    let mut steps = |call: Option<extern "C" fn()>| {
        let begun = cpu_ns();
        for _ in 0..STEPS {
            x = black_box(step(place, x, memory));
            if let Some(call) = call {
                call();
            }
        }
        (cpu_ns() - begun) / f64::from(STEPS)
    };
    let mut added = [const { Vec::new() }; 2];
    let procedures: [extern "C" fn(); 2] = [probe::calibrate::emulated, probe::calibrate::stepped];
    for _ in 0..ROUNDS {
        // Without and with follow each other: what slows the machine slows both.
        for (values, procedure) in added.iter_mut().zip(procedures) {
            let bare = steps(None);
            values.push(steps(Some(procedure)) - bare);
        }
    }
    added.map(|mut values| of_rounds(&mut values).unwrap_or_default())
}

/// Nothing, a chain of multiplications, loads from the cache, loads from memory, branches that no
/// predictor knows, divisions; a walk through 512 KiB, which pushes the kernel's own code and
/// data out of the near caches, as large programs do: an event costs most there.
fn step(place: usize, mut x: u64, memory: &[u64]) -> u64 {
    let next = |x: u64| x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    let load = |at: u64| memory.get(at as usize % WORDS).copied().unwrap_or_default();
    match place {
        0 => {}
        1 => (0..60).for_each(|_| x = next(x)),
        2 => (0..100).for_each(|at| x = x.wrapping_add(load((x.wrapping_add(at * 8)) % 512))),
        3 => (0..8).for_each(|_| {
            x = next(x);
            x = x.wrapping_add(load(x >> 33));
        }),
        4 => (0..40).for_each(|_| {
            x = next(x);
            if x >> 63 == 1 {
                x = black_box(x);
            } else {
                x ^= 5;
            }
        }),
        5 => (0..20).for_each(|at| x = (u64::MAX / (x % 1000 + 3)).wrapping_add(at)),
        _ => (0..1 << 13).for_each(|line| x = x.wrapping_add(load(line * 8))),
    }
    x
}

/// ns of CPU time from one thread to another on the same CPU by sched_yield(2).
fn of_switches() -> f64 {
    let (mut one, first) = (CpuSet::new(), rustix::thread::sched_getcpu());
    one.set(first);
    let (ready, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        // Without affinity the threads run beside each other, and nothing is switched.
        let other = scope.spawn(|| {
            let _ = sched_setaffinity(None, &one);
            ready.store(true, Ordering::Release);
            while !done.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        });
        let before = rustix::thread::sched_getaffinity(None);
        let _ = sched_setaffinity(None, &one);
        while !ready.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let (begun, since) = (process_ns(), Instant::now());
        let mut calls = 0;
        while calls < CALLS && since.elapsed() < SWITCHES_LAST {
            std::thread::yield_now();
            calls += 1;
        }
        done.store(true, Ordering::Release);
        let _ = other.join();
        let took = process_ns() - begun;
        if let Ok(before) = before {
            let _ = sched_setaffinity(None, &before);
        }
        took / (2.0 * f64::from(calls.max(1)))
    })
}

/// A summary of the events to be traced.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traced {
    /// Procedures, with their returns.
    pub(crate) calls: bool,
    /// Procedures, or lines, without returns.
    pub(crate) entries: bool,
    pub(crate) syscalls: bool,
    pub(crate) sched: bool,
}

/// Costs of the events that are going to be traced, measured now: about 0.3 s for each kind. A
/// signal ends it.
///
/// # Errors
/// [`AnalysisError::Refused`] where this program cannot run itself, or nothing can be traced, or a
/// signal came.
pub(super) fn costs(traced: Traced, stopped: &Stopped) -> Result<Vec<Cost>, AnalysisError> {
    let mut costs = Vec::new();
    for with_return in [true, false] {
        if if with_return { traced.calls } else { traced.entries } {
            costs.extend(of_probes(with_return, stopped)?);
        }
    }
    let more = |what: &str, options: Options, kinds: [EventKind; 2]| {
        let alone = numbers(&output(what)?, what)?;
        let (_, with) = captured(options, what, stopped)?;
        let with = numbers(&with, what)?;
        let each = alone.first().zip(with.first()).map(|(alone, with)| (with - alone) / 2.0);
        let alpha = Alpha::of_means(&[each.unwrap_or_default().max(0.0)], 0.0);
        let of = |alpha: Alpha| kinds.map(|kind| cost(kind, &alpha, HOW)).to_vec();
        Ok::<_, AnalysisError>(alpha.map(of).unwrap_or_default())
    };
    if traced.syscalls {
        let options = Options { syscalls: true, ..options(Vec::new()) };
        costs.extend(more("syscalls", options, [EventKind::SyscallEnter, EventKind::SyscallExit])?);
    }
    if traced.sched {
        let options = Options { sched: true, ..options(Vec::new()) };
        costs.extend(more("switches", options, [EventKind::SwitchOut, EventKind::SwitchIn])?);
    }
    Ok(costs)
}

fn options(sites: Vec<Site>) -> Options {
    Options {
        sites,
        syscalls: false,
        sched: false,
        sampled: None,
        ring_bytes: RING_BYTES,
        duration: None,
        notes: Vec::new(),
        costs: Vec::new(),
        untraced_runs: 0,
    }
}

/// Costs of probes, of both kinds of instructions.
fn of_probes(with_return: bool, stopped: &Stopped) -> Result<Vec<Cost>, AnalysisError> {
    let names = ["emulated", "stepped"];
    let own = std::env::current_exe()?;
    let sites = probe::calibrate::addresses().into_iter().zip(names).map(|(address, text)| {
        let offset =
            file_offset(address).ok_or_else(|| refused("find its own code in /proc/self/maps"))?;
        let name = Name::new(NameKind::Procedure, text);
        Ok(Site { path: own.clone(), offset, name, has_return: with_return })
    });
    let sites = sites.collect::<Result<Vec<Site>, AnalysisError>>()?;
    let (trace, printed) = captured(options(sites), "probes", stopped)?;
    let lines: Vec<Vec<f64>> =
        printed.lines().map(|line| numbers(line, "probes")).collect::<Result<_, _>>()?;
    let mut costs = Vec::new();
    for (column, name) in names.iter().enumerate() {
        let places: Vec<(f64, f64)> = lines
            .iter()
            .filter_map(|line| Some((*line.get(2 * column)?, *line.get(2 * column + 1)?)))
            .collect();
        let mut gaps = gaps(&trace, name, with_return);
        let Some((inside, within)) = median_and_spread(&mut gaps) else {
            return Err(refused("trace itself"));
        };
        let of = match with_return {
            true => paired(&places, inside, within, HOW).unwrap_or_default(),
            false => Alpha::of_measured(&places, within)
                .map(|alpha| {
                    [EventKind::Enter, EventKind::Instant]
                        .map(|kind| cost(kind, &alpha, HOW))
                        .to_vec()
                })
                .unwrap_or_default(),
        };
        costs.extend(of.into_iter().map(|cost| Cost {
            stepped: Some(*name == "stepped"),
            with_return: Some(with_return),
            ..cost
        }));
    }
    Ok(costs)
}

/// ns from entries to returns of a procedure; without returns from each entry to the next.
fn gaps(trace: &trace::Trace, name: &str, with_return: bool) -> Vec<f64> {
    let of_name =
        trace.events.iter().filter(|event| trace.name(event).is_some_and(|of| of.text == name));
    let events: Vec<_> = of_name.collect();
    let pairs = events.iter().zip(events.iter().skip(1));
    let wanted = |first: EventKind, second: EventKind| {
        let next = if with_return { EventKind::Exit } else { EventKind::Enter };
        first == EventKind::Enter && second == next
    };
    pairs
        .filter(|(a, b)| wanted(a.kind, b.kind))
        .map(|(a, b)| b.time_ns.saturating_sub(a.time_ns) as f64)
        .collect()
}

/// The offset in its file of an address of this process.
fn file_offset(address: usize) -> Option<u64> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (begin, end) = words.next()?.split_once('-')?;
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let (begin, end, address) = (number(begin)?, number(end)?, address as u64);
        let offset = number(words.nth(1)?)?;
        (begin..end).contains(&address).then(|| address - begin + offset)
    })
}

/// Runs this program with its work traced. Returns the trace and the output of the work.
fn captured(
    options: Options,
    what: &str,
    stopped: &Stopped,
) -> Result<(trace::Trace, String), AnalysisError> {
    let said = tempfile::NamedTempFile::new()?;
    // The work's words go to a file: standard output is the command's that is traced later.
    let words: [OsString; 6] = [
        "/bin/sh".into(),
        "-c".into(),
        "exec \"$0\" \"$1\" \"$2\" > \"$3\"".into(),
        std::env::current_exe()?.into(),
        NAME.into(),
        what.into(),
    ];
    let target = Target::Command(words.into_iter().chain([said.path().into()]).collect());
    let mut bytes = Vec::new();
    let stop = |_| stopped.signal().is_some();
    let captured = recorder::run(&options, &target, &mut bytes, None, &stop);
    captured.map_err(|error: TraceError| AnalysisError::Refused(error.to_string()))?;
    let trace = trace::reader::read(bytes.as_slice());
    let trace = trace.map_err(|error| AnalysisError::Refused(error.to_string()))?;
    Ok((trace, fs::read_to_string(said.path())?))
}

/// The output of the work when it is not traced.
fn output(what: &str) -> Result<String, AnalysisError> {
    let mut own = Command::new(std::env::current_exe()?);
    let output = own.args([NAME, what]).stdin(Stdio::null()).stderr(Stdio::null()).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn numbers(line: &str, what: &str) -> Result<Vec<f64>, AnalysisError> {
    let numbers = line.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>();
    match numbers {
        Ok(numbers) if !numbers.is_empty() => Ok(numbers),
        _ => Err(refused(&format!("measure what its {what} cost"))),
    }
}

fn refused(what: &str) -> AnalysisError {
    let next = "trace with --no-costs, and correct nothing";
    AnalysisError::Refused(format!("dcpi trace cannot {what}; {next}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_code_is_found_in_its_file() {
        let [emulated, stepped] = probe::calibrate::addresses();
        let [a, b] = [emulated, stepped].map(|address| file_offset(address).unwrap());
        assert_eq!(a.abs_diff(b), emulated.abs_diff(stepped) as u64);
        assert_eq!(file_offset(0), None);
    }

    #[test]
    fn work_says_what_its_steps_took() {
        for what in ["syscalls", "switches"] {
            let mut out = Vec::new();
            work(&CalibrationWork { what: what.to_owned() }, &mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            assert!(numbers(&text, what).unwrap()[0] > 0.0, "{text}");
        }
        let memory = vec![7; WORDS];
        for place in 0..PLACES {
            assert!(of_place(place, &memory).iter().all(|(_, error)| *error > 0.0));
        }
        assert!(work(&CalibrationWork { what: "x".to_owned() }, &mut Vec::new()).is_err());
    }
}

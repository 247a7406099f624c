//! Whole-program counts of perf events, of a command and all its children.
//!
//! Events are opened, disabled, for the thread that starts the command: its children inherit them,
//! and the kernel enables them when a child executes another program (perf_event_open(2), `inherit`
//! and `enable_on_exec`). More events than the processor has counters take turns. Then the count is
//! scaled by the time enabled over the time counted, and how sure it is follows from the rates in
//! the slices of time in which it was read.

use std::io;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use events::{DEVICES, Encoding, Event, EventError, Pmus};
use perf_event::events::Software;
use perf_event::{Builder, Counter};

use crate::{Streams, run_beside, set_encoding};

/// Time between two readings: an event's turn is some milliseconds.
const SLICE: Duration = Duration::from_millis(10);
/// Reciprocal of the largest share of the time spent on reading: each reading sums over all threads
/// of the command.
const READING_PART: u32 = 50;

/// Events that can be counted on this machine.
#[derive(Debug)]
pub struct Totals {
    events: Vec<(Event, Vec<Encoding>)>,
    /// Whether the kernel's part is counted too.
    with_kernel: bool,
}

/// The total of an event in one run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Total {
    /// Occurrences, or ns: counted, or scaled to the whole time.
    pub value: f64,
    /// Variance of `value` where it is scaled; 0 where all was counted.
    pub variance: f64,
    /// The part of the time in which the event counted, 0 to 1.
    pub enabled_share: f64,
}

/// One run of a command.
#[derive(Debug)]
pub struct TotalsRun {
    /// How the command ended.
    pub status: ExitStatus,
    /// Time from start to end.
    pub took: Duration,
    /// The total of each event; None where it never counted.
    pub totals: Vec<Option<Total>>,
}

/// Why an event cannot be counted.
#[derive(Debug, thiserror::Error)]
pub enum TotalsError {
    /// Its name is not known.
    #[error(transparent)]
    Name(#[from] EventError),
    /// The kernel refuses it.
    #[error("event '{event}' cannot be counted here: {why}")]
    Refused {
        /// The event.
        event: String,
        /// The reason, with the next step.
        why: String,
    },
    /// The command cannot be started.
    #[error("cannot start the command: {0}; try it without dcpi count")]
    NotStarted(io::Error),
}

impl Totals {
    /// Finds the events of these names. Returns those that this machine has, and the errors of the
    /// others.
    #[must_use]
    pub fn find(names: &[String]) -> (Self, Vec<(String, TotalsError)>) {
        let pmus = Pmus::read(Path::new(DEVICES));
        let (mut found, mut missing) = (Self { events: Vec::new(), with_kernel: true }, Vec::new());
        // An ordinary user may count user code only, where perf_event_paranoid is 2 or more.
        if builder(Encoding { kind: 1, config: [1, 0, 0] }, true).build().is_err() {
            found.with_kernel = false;
        }
        for name in names {
            match found.encodings(name, &pmus) {
                Ok(event) => found.events.push(event),
                Err(error) => missing.push((name.clone(), error)),
            }
        }
        (found, missing)
    }

    fn encodings(&self, name: &str, pmus: &Pmus) -> Result<(Event, Vec<Encoding>), TotalsError> {
        let event = Event::countable(name)?;
        // Each kind of core has an encoding of its own, and some kernels want another one.
        let sites: Vec<Encoding> = match event.is_software() {
            true => event.encoding().into_iter().collect(),
            false => pmus.sites(&event)?.into_iter().map(|site| site.encoding).collect(),
        };
        let (mut opened, mut refusal): (Vec<Encoding>, Option<io::Error>) = (Vec::new(), None);
        for encoding in sites {
            match builder(encoding, self.with_kernel).build() {
                Ok(_) if opened.contains(&encoding) => {}
                Ok(_) => opened.push(encoding),
                Err(error) => refusal = Some(error),
            }
        }
        match refusal {
            Some(error) if opened.is_empty() => {
                let why = match error.raw_os_error() {
                    // ENOENT, EOPNOTSUPP, ENODEV.
                    Some(2 | 95 | 19) => {
                        "this machine has no such counter; leave the event out".to_owned()
                    }
                    _ => format!("{error}; try as root"),
                };
                Err(TotalsError::Refused { event: name.to_owned(), why })
            }
            _ => Ok((event, opened)),
        }
    }

    /// The events, in the order of [`TotalsRun::totals`].
    pub fn events(&self) -> impl ExactSizeIterator<Item = &Event> {
        self.events.iter().map(|(event, _)| event)
    }

    /// Whether the time in the kernel is counted too.
    #[must_use]
    pub fn with_kernel(&self) -> bool {
        self.with_kernel
    }

    /// Runs a command to its end and counts.
    ///
    /// # Errors
    /// [`TotalsError`] where an event or the command cannot be started.
    pub fn run(
        &self,
        (program, arguments): (&std::ffi::OsStr, &[std::ffi::OsString]),
        streams: Streams,
    ) -> Result<TotalsRun, TotalsError> {
        let mut counters = Vec::new();
        for (event, encodings) in &self.events {
            let refused = |error: io::Error| TotalsError::Refused {
                event: event.name.clone(),
                why: error.to_string(),
            };
            let of_event = encodings
                .iter()
                .map(|encoding| builder(*encoding, self.with_kernel).build().map_err(refused));
            let counters_of = of_event.collect::<Result<Vec<Counter>, TotalsError>>()?;
            counters.push(EventCounters { counters: counters_of, slices: Slices::default() });
        }
        let mut command = Command::new(program);
        streams.give(command.args(arguments));
        let read = |end: &Receiver<()>| read_until(counters, end);
        let (status, took, totals) =
            run_beside(&mut command, read).map_err(TotalsError::NotStarted)?;
        Ok(TotalsRun { status, took, totals })
    }
}

/// An event of the thread that opens it, for the programs that its children execute.
fn builder(encoding: Encoding, with_kernel: bool) -> Builder<'static> {
    let mut builder = Builder::new(Software::DUMMY);
    set_encoding(&mut builder, encoding);
    builder.observe_self().any_cpu().enabled(false).inherit(true).enable_on_exec(true);
    builder.exclude_kernel(!with_kernel).exclude_hv(!with_kernel);
    builder
}

/// The counters of an event, one for each kind of core.
struct EventCounters {
    counters: Vec<Counter>,
    slices: Slices,
}

/// Counts in slices of time.
#[derive(Clone, Debug, Default)]
struct Slices {
    /// Totals at the last reading: count, time enabled and time counted, ns.
    last: [u64; 3],
    /// For each slice in which the event counted: its count, and the time counted.
    slices: Vec<(f64, f64)>,
}

impl Slices {
    fn add(&mut self, read: [u64; 3]) {
        let [count, _, running] = [0, 1, 2].map(|at: usize| {
            let of = |all: &[u64; 3]| all.get(at).copied().unwrap_or_default();
            of(&read).saturating_sub(of(&self.last)) as f64
        });
        self.last = read;
        if running > 0.0 {
            self.slices.push((count, running));
        }
    }

    /// The total: a ratio estimate (W. G. Cochran, "Sampling Techniques", 3rd edition, 1977,
    /// section 6.3) of the count by the time counted, over the slices.
    fn total(&self) -> Option<Total> {
        let [count, enabled, running] = self.last.map(|sum| sum as f64);
        if running <= 0.0 {
            return None;
        }
        let enabled_share = (running / enabled.max(running)).min(1.0);
        let rate = count / running;
        let n = self.slices.len() as f64;
        let spread = |(count, running): &(f64, f64)| (count - rate * running).powi(2);
        let squares: f64 = self.slices.iter().map(spread).sum();
        let scale = enabled / running;
        let is_whole = enabled_share > 1.0 - 1e-9 || n < 2.0;
        let variance = match is_whole {
            true => 0.0,
            false => (1.0 - enabled_share) * n / (n - 1.0) * squares * scale * scale,
        };
        Some(Total { value: count * scale.max(1.0), variance, enabled_share })
    }
}

/// Reads the counters until the command has ended.
fn read_until(mut events: Vec<EventCounters>, end: &Receiver<()>) -> Vec<Option<Total>> {
    let mut pause = SLICE;
    loop {
        let over = end.recv_timeout(pause) != Err(RecvTimeoutError::Timeout);
        let begun = Instant::now();
        for event in &mut events {
            let mut sum = [0_u64; 3];
            for counter in &mut event.counters {
                if let Ok(read) = counter.read_count_and_time() {
                    let read = [read.count, read.time_enabled, read.time_running];
                    sum.iter_mut().zip(read).for_each(|(sum, of)| *sum = sum.saturating_add(of));
                }
            }
            // Where each kind of core has a counter, the time enabled is that of one.
            let kinds = event.counters.len().max(1) as u64;
            event.slices.add([sum[0], sum[1] / kinds, sum[2]]);
        }
        if over {
            return events.iter().map(|event| event.slices.total()).collect();
        }
        pause = SLICE.max(begun.elapsed() * READING_PART);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event that had every second slice, with rates that the others do not have.
    #[test]
    fn a_scaled_total_is_as_unsure_as_its_slices_differ() {
        let slices = |counts: &[u64], enabled: u64| {
            let mut all = Slices::default();
            let mut sum = 0;
            for (at, count) in (1..).zip(counts) {
                sum += count;
                all.add([sum, at * enabled, at * 1000]);
            }
            all.total().unwrap()
        };
        let whole = slices(&[10, 500, 3], 1000);
        assert_eq!((whole.value, whole.variance, whole.enabled_share), (513.0, 0.0, 1.0));
        let even = slices(&[100; 50], 2000);
        assert_eq!((even.value, even.variance, even.enabled_share), (10_000.0, 0.0, 0.5));
        let uneven: Vec<u64> = (0..50).map(|at| 50 + at % 2 * 100).collect();
        let uneven = slices(&uneven, 2000);
        // Each of 50 slices is 50 off; the unseen half is as unsure as a sample of the seen one.
        let expected = 0.5 * 50.0 / 49.0 * 50.0 * 2500.0 * 4.0;
        assert_eq!(uneven.value, 10_000.0);
        assert!((uneven.variance / expected - 1.0).abs() < 1e-9, "{uneven:?}");
        assert_eq!(Slices::default().total(), None, "it never counted");
    }

    #[test]
    fn software_events_of_a_command_and_its_children_are_counted() {
        let names = ["task-clock", "page-faults", "context-switches", "no-such"].map(str::to_owned);
        let (totals, missing) = Totals::find(&names);
        assert!(missing.len() == 1 && missing[0].0 == "no-such", "{missing:?}");
        let words = ["-c", "head -c 3000000 /dev/zero | sort | wc -c"].map(Into::into);
        let streams = || Streams { input: None, quiet: true };
        let run = totals.run(("sh".as_ref(), &words), streams()).unwrap();
        assert!(run.status.success());
        let value = |run: &TotalsRun, at: usize| run.totals[at].unwrap().value;
        let nothing = totals.run(("true".as_ref(), &[]), streams()).unwrap();
        // The pages of three programs and of what sort keeps, beside those of one.
        assert!(value(&run, 1) > 700.0 + value(&nothing, 1), "{run:?} {nothing:?}");
        assert!(value(&run, 0) > 2.0 * value(&nothing, 0), "{run:?} {nothing:?}");
        let of_run = run.took.as_nanos() as f64 * 64.0;
        assert!(value(&run, 0) < of_run, "{run:?}");
        assert!(run.totals.iter().flatten().all(|total| total.enabled_share == 1.0), "{run:?}");
    }
}

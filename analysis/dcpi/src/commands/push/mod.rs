//! `dcpi push`: what a database has got since the last time, to an OpenTelemetry collector or to
//! the store of a fleet.
//!
//! The database is the queue: nothing waits in memory, and what could not be sent is sent later, as
//! long as dcpid keeps it.

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::{Args, ValueEnum};
use profiledb::{Database, DbError, Outgoing, Sent};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::Outcome;
use crate::signals;
use names::procedures::Places;
use query::DEFAULT_DB;
use query::error::AnalysisError;

mod collector;
mod epochs;
mod folder;
mod http;
mod metrics;
mod otlp_http;
mod store;

use collector::ToCollector;
use epochs::{Done, ToStore};
use metrics::Metrics;
use otlp_http::Collector;
use store::Store;

/// Most characters of what a receiver says that are shown.
const SAID_MAX: usize = 200;
/// Attempts without `--every`.
const ATTEMPTS: u32 = 4;
/// First and longest time between two attempts.
const BACKOFF: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(300);
/// Shortest and longest time that `--every` takes.
const EVERY_MIN: Duration = Duration::from_secs(1);
const EVERY_MAX: Duration = Duration::from_secs(24 * 3600);
/// Longest time that `--spread` takes: epochs of a day are sent before the next one ends.
const SPREAD_MAX: Duration = Duration::from_secs(24 * 3600);

/// `dcpi push`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct Push {
    /// Receiver: `otlp+http://HOST[:PORT][/PATH]`, an OpenTelemetry collector [default port: 4318,
    /// default path: /v1development/profiles]; the store of a fleet, a directory (`/PATH`) or
    /// `dcpi+http://HOST:PORT[/PATH]`
    #[arg(short = 'o', long = "output", alias = "to", value_name = "URL")]
    pub to: To,
    /// The database's directory
    #[arg(
        long = "db",
        alias = "from",
        value_name = "DIR",
        env = "DCPIDB",
        hide_env_values = true,
        default_value = DEFAULT_DB
    )]
    pub from: PathBuf,
    /// Go on, and push what is new at this interval, such as 1min, until SIGTERM or Ctrl-C
    #[arg(long, value_name = "T", value_parser = every)]
    pub every: Option<Duration>,
    /// Send an epoch to a store at a moment within this time after its end, at most 24h, so that
    /// many hosts do not push at once; the moment follows from host and epoch [default: 0s]
    #[arg(long, value_name = "T", value_parser = spread, requires = "every")]
    pub spread: Option<Duration>,
    /// Directory for what was sent, from which the next push goes on [default:
    /// $STATE_DIRECTORY, else /var/lib/dcpi-push]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Write how pushing goes to this file after each attempt, in the text format of Prometheus,
    /// for the textfile collector of node_exporter
    #[arg(long, value_name = "FILE")]
    pub metrics: Option<PathBuf>,
    /// Send to a store also these, separated by commas
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    pub with: Vec<Part>,
    /// Do not send these to a store
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    pub without: Vec<Part>,
}

/// A part of an epoch that leaves its host, or stays.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Labels of runs (sent by default)
    Labels,
    /// Names of systemd units and containers (sent by default)
    Units,
    /// Call stacks with the commands of their processes (sent by default)
    Stacks,
    /// Code, symbols and line numbers of programs, as far as dcpid keeps them (sent by default)
    Code,
    /// Numbers of processes and threads
    Pids,
    /// Names of threads
    Threads,
    /// Paths in home directories
    Homes,
    /// Names of procedures that programs generate, and their code
    Generated,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum To {
    Collector(Collector),
    Store(Store),
}

impl FromStr for To {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        match Store::of(url) {
            Some(store) => store.map(Self::Store),
            None => url.parse().map(Self::Collector),
        }
    }
}

impl fmt::Display for To {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Collector(to) => to.fmt(f),
            Self::Store(to) => to.fmt(f),
        }
    }
}

const NOTES: &str = "\
To a collector: what dcpid has merged since the last push (it merges every 10 seconds, \
--merge-interval) is sent once, as a request ExportProfilesServiceRequest of \
opentelemetry.proto.collector.profiles.v1development, gzip, plain HTTP; for TLS let a collector on \
this host pass it on. What a receiver has confirmed is not sent again; if dcpi is killed between \
confirmation and noting it, one request is sent twice. Samples of the idle loop are not sent.

To a store: each epoch that has ended (dcpid --epoch-length, dcpictl epoch) is put there once, \
under its host and name, with the code of its images where no host has put that. What is there is \
never replaced: an epoch that is there already counts as sent, unless it is another of the same \
name, from a machine with the same host name. Where epochs of many hosts end together, as at \
midnight, --spread 1h has each host send at a moment of its own.

The first push sends all that the database has. While the receiver is down the database keeps what \
is to be sent, and dcpi tries again at growing distances of up to 5 minutes.

Exit codes: 0 done; 1 done, but part of the database could not be read or was not taken; 2 could \
not.";

pub(crate) fn run(args: &Push, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let is_spread = args.spread.is_some_and(|spread| !spread.is_zero());
    let is_chosen = !args.with.is_empty() || !args.without.is_empty() || is_spread;
    if is_chosen && matches!(args.to, To::Collector(_)) {
        let message = "--with, --without and --spread are for stores: a collector gets \
                       procedures, units and labels"
            .to_owned();
        return Err(AnalysisError::Usage { message, help: "dcpi help push".to_owned() });
    }
    let metrics = Metrics::new(args.metrics.as_deref());
    let mut pusher = Pusher { args, way: None, is_sound: true, metrics };
    let Some(every) = args.every else {
        pusher.once(out)?;
        return Ok(Outcome { sound: pusher.is_sound, ..Outcome::default() });
    };
    let heard = signals::hear(&[SIGINT, SIGTERM, SIGHUP]).map_err(AnalysisError::from)?;
    pusher.forever(every, &heard, out)?;
    Ok(Outcome { sound: pusher.is_sound, ..Outcome::default() })
}

/// The way to the receiver, with the record of what was sent there.
fn way(args: &Push) -> Result<Box<dyn Way>, AnalysisError> {
    let state =
        args.state.clone().or_else(|| std::env::var_os("STATE_DIRECTORY").map(PathBuf::from));
    let state = state.unwrap_or_else(|| PathBuf::from("/var/lib/dcpi-push"));
    let way: Box<dyn Way> = match &args.to {
        To::Collector(to) => {
            let sent = open(&args.to, &state.join(to.file_name()), Sent::open)?;
            Box::new(ToCollector { to: to.clone(), sent })
        }
        To::Store(to) => {
            let done = open(&args.to, &state.join(to.file_name()), Done::open)?;
            let (leaving, with_code) = leaving(&args.with, &args.without);
            let places = Places::with_debug_roots(Vec::new());
            let spread = args.spread.unwrap_or_default();
            Box::new(ToStore { to: to.clone(), done, leaving, with_code, places, spread })
        }
    };
    Ok(way)
}

/// The data that leaves the host, and whether code is included.
fn leaving(with: &[Part], without: &[Part]) -> (Outgoing, bool) {
    let leaves = |part, default| (default || with.contains(&part)) && !without.contains(&part);
    let of = Outgoing::default();
    let leaving = Outgoing {
        labels: leaves(Part::Labels, of.labels),
        units: leaves(Part::Units, of.units),
        stacks: leaves(Part::Stacks, of.stacks),
        pids: leaves(Part::Pids, of.pids),
        threads: leaves(Part::Threads, of.threads),
        homes: leaves(Part::Homes, of.homes),
        generated: leaves(Part::Generated, of.generated),
    };
    (leaving, leaves(Part::Code, true))
}

/// The record of data sent to a receiver, in the directory of `--state`.
fn open<Known>(
    to: &To,
    directory: &Path,
    open: impl Fn(&Path) -> Result<Known, DbError>,
) -> Result<Known, AnalysisError> {
    let shown = directory.display().to_string();
    open(directory).map_err(|error| {
        AnalysisError::Refused(match error {
            DbError::Locked { .. } => format!(
                "another dcpi push sends to {to}: it has {shown}; end it, or name another --state"
            ),
            DbError::Io { source, .. } => format!(
                "cannot keep what was sent in {shown}: {source}; name a directory of yours with \
                 --state"
            ),
            error => format!("cannot keep what was sent: {error}; name another --state"),
        })
    })
}

/// A way to a receiver.
trait Way {
    /// Sends all that is new.
    fn push(
        &mut self,
        db: &Database,
        pushed: &mut Pushed,
        out: &mut dyn Write,
    ) -> Result<(), Stopped>;

    /// A summary of the data sent, if there was any.
    fn told(&self, pushed: &Pushed) -> String;
}

struct Pusher<'a> {
    args: &'a Push,
    /// None until the record of what was sent could be opened: a disk that is full now may have
    /// room later.
    way: Option<Box<dyn Way>>,
    /// Whether all could be read and nothing was rejected so far.
    is_sound: bool,
    metrics: Metrics,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) why: String,
    /// Whether the same request will not be taken later either.
    pub(super) is_final: bool,
    /// When the receiver wants the next attempt.
    pub(super) retry_after: Option<Duration>,
}

impl Failure {
    /// Something that failed on this side.
    pub(super) fn here(error: &AnalysisError) -> Self {
        Self { why: error.to_string(), is_final: false, retry_after: None }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

/// Why a push did not get to its end.
enum Stopped {
    /// The receiver did not take a request; perhaps later.
    Receiver(Failure),
    /// The database, or the record of data sent, could not be read or written.
    Here(AnalysisError),
}

impl<E: Into<AnalysisError>> From<E> for Stopped {
    fn from(error: E) -> Self {
        Self::Here(error.into())
    }
}

#[derive(Clone, Copy, Debug)]
struct Pushed {
    /// Requests to a collector, epochs to a store.
    objects: u64,
    samples: u64,
    /// Images whose code was sent.
    code: u64,
    /// Whether all could be read and was taken.
    is_sound: bool,
    /// Time until the first of what waits for its moment is to be sent; None: nothing waits.
    next: Option<Duration>,
}

impl Pushed {
    const NOTHING: Self = Self { objects: 0, samples: 0, code: 0, is_sound: true, next: None };
}

impl Pusher<'_> {
    /// Pushes new data, with a few attempts.
    fn once(&mut self, out: &mut dyn Write) -> Result<(), AnalysisError> {
        let mut pushed = Pushed::NOTHING;
        for attempt in 1.. {
            match self.push(&mut pushed, out) {
                Ok(()) => break,
                Err(Stopped::Here(error)) => return Err(error),
                Err(Stopped::Receiver(failure)) if failure.is_final || attempt == ATTEMPTS => {
                    let what = format!(
                        "{} does not take profiles: {failure}; what was not sent stays in {} for \
                         the next push",
                        self.args.to,
                        self.args.from.display()
                    );
                    return Err(AnalysisError::Refused(what));
                }
                Err(Stopped::Receiver(failure)) => {
                    let wait = pause(attempt, &failure);
                    // A message is printed before each long wait.
                    if attempt == 1 || failure.retry_after.is_some() {
                        let seconds = wait.as_secs_f64().ceil();
                        let to = &self.args.to;
                        writeln!(out, "{to}: {failure}; dcpi tries again in {seconds} s")?;
                        out.flush()?;
                    }
                    std::thread::sleep(wait);
                }
            }
        }
        let what = match (pushed.objects, pushed.code, &self.way) {
            (0, 0, _) | (_, _, None) => "nothing new".to_owned(),
            (_, _, Some(way)) => way.told(&pushed),
        };
        Ok(writeln!(out, "{}: {what}", self.args.to)?)
    }

    /// Pushes new data at intervals until a signal arrives.
    fn forever(
        &mut self,
        every: Duration,
        heard: &Receiver<i32>,
        out: &mut dyn Write,
    ) -> Result<(), AnalysisError> {
        let mut failures = 0_u32;
        loop {
            let next = Instant::now() + every;
            let mut pushed = Pushed::NOTHING;
            let wait = match self.push(&mut pushed, out) {
                Ok(()) => {
                    if failures > 0 {
                        writeln!(out, "{}: takes profiles again", self.args.to)?;
                    }
                    failures = 0;
                    let wait = next.saturating_duration_since(Instant::now());
                    pushed.next.map_or(wait, |next| next.min(wait))
                }
                Err(stopped) => {
                    failures = failures.saturating_add(1);
                    let failure = match stopped {
                        Stopped::Receiver(failure) => failure,
                        Stopped::Here(error) => Failure::here(&error),
                    };
                    let wait = pause(failures, &failure).min(BACKOFF_MAX);
                    // Once for each time that something is down, not for each attempt.
                    if failures == 1 {
                        let seconds = wait.as_secs_f64().ceil();
                        let next = format!("dcpi tries again, first in {seconds} s");
                        writeln!(out, "{}: {failure}; {next}", self.args.to)?;
                    }
                    wait
                }
            };
            out.flush()?;
            match heard.recv_timeout(wait) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(_) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    /// Sends all that is new.
    fn push(&mut self, pushed: &mut Pushed, out: &mut dyn Write) -> Result<(), Stopped> {
        let before = pushed.objects;
        let ended = self.try_push(pushed, out);
        self.is_sound &= pushed.is_sound;
        self.metrics.note(pushed.objects - before, ended.is_ok())?;
        ended
    }

    fn try_push(&mut self, pushed: &mut Pushed, out: &mut dyn Write) -> Result<(), Stopped> {
        let way = match &mut self.way {
            Some(way) => way,
            none => none.insert(way(self.args)?),
        };
        way.push(&Database::open(&self.args.from)?, pushed, out)
    }
}

/// A receiver's message for people, with terminal control characters escaped.
fn shown(body: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(body).trim().chars().take(SAID_MAX).collect();
    report::escape(&text).into_owned()
}

/// A file name made from this text, for the record of data sent to a receiver.
fn file_name(text: &str) -> String {
    let plain = |character: char| match character {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '-' => character,
        _ => '_',
    };
    // Longer names are not file names. Two receivers of one long prefix are refused by none: a name
    // of that length is no host.
    text.chars().map(plain).take(200).collect()
}

/// Time until the next attempt after this many attempts: the time that the receiver asks for, or
/// else doubled each time, plus a random part, so that many hosts do not retry at once.
fn pause(attempts: u32, failure: &Failure) -> Duration {
    let doubled = BACKOFF.saturating_mul(1_u32 << attempts.saturating_sub(1).min(16));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let more = f64::from(now.subsec_nanos()) / 4e9;
    failure.retry_after.unwrap_or(doubled).min(BACKOFF_MAX).mul_f64(1.0 + more)
}

fn every(text: &str) -> Result<Duration, String> {
    crate::options::parse_time(text, EVERY_MIN, EVERY_MAX)
}

/// No text is no spread: a unit passes a variable that is not set.
fn spread(text: &str) -> Result<Duration, String> {
    if text.is_empty() {
        return Ok(Duration::ZERO);
    }
    crate::options::parse_time(text, Duration::ZERO, SPREAD_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_come_at_growing_distances() {
        let failure = Failure { why: String::new(), is_final: false, retry_after: None };
        for (attempts, seconds) in [(1, 1.0), (2, 2.0), (5, 16.0), (40, 300.0)] {
            let pause = pause(attempts, &failure).as_secs_f64();
            assert!((seconds..=seconds * 1.25).contains(&pause), "{attempts}: {pause} s");
        }
        let asked = Failure { retry_after: Some(Duration::from_secs(7)), ..failure };
        assert!((7.0..=8.75).contains(&pause(3, &asked).as_secs_f64()));
    }
}

//! `dcpi push`: what a database has got since the last time, to an OpenTelemetry collector.
//!
//! The database is the queue: nothing waits in memory, and what could not be sent is sent later, as
//! long as dcpid keeps it. `profiledb::Sent` knows what was sent.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use profiledb::{Database, DbError, Epoch, Sent};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::Outcome;
use crate::signals;
use export::otlp;
use export::resolve::{self, Detail, Wanted};
use names::procedures::Places;
use query::DEFAULT_DB;
use query::error::AnalysisError;
use query::load::Samples;
use query::problem::Problem;
use report::counted;

mod otlp_http;

use otlp_http::{Collector, Failure};

/// Bytes of segments that one request is of, at least one segment. A request is some five times as
/// large before it is compressed, and collectors take 20 MiB by default. Memory is some ten times
/// as much.
const PART_BYTES_MAX: u64 = 2 << 20;
/// Attempts without `--every`.
const ATTEMPTS: u32 = 4;
/// First and longest time between two attempts.
const BACKOFF: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(300);
/// Shortest and longest time that `--every` takes.
const EVERY_MIN: Duration = Duration::from_secs(1);
const EVERY_MAX: Duration = Duration::from_secs(24 * 3600);

/// `dcpi push`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub struct Push {
    /// Receiver: `otlp+http://HOST[:PORT][/PATH]`, an OpenTelemetry collector [default port: 4318,
    /// default path: /v1development/profiles]
    #[arg(long, value_name = "URL")]
    pub to: Collector,
    /// The database's directory
    #[arg(
        long,
        value_name = "DIR",
        env = "DCPIDB",
        hide_env_values = true,
        default_value = DEFAULT_DB
    )]
    pub from: PathBuf,
    /// Go on, and push what is new at this interval, such as 1min, until SIGTERM or Ctrl-C
    #[arg(long, value_name = "T", value_parser = every)]
    pub every: Option<Duration>,
    /// Directory for what was sent, from which the next push goes on [default:
    /// $STATE_DIRECTORY, else /var/lib/dcpi-push]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

const NOTES: &str = "\
Each merge of dcpid (10 minutes, --merge-interval) is sent once, as a request \
ExportProfilesServiceRequest of opentelemetry.proto.collector.profiles.v1development, gzip, plain \
HTTP; for TLS let a collector on this host pass it on. The first push sends all that the database \
has. What a receiver has confirmed is not sent again; if dcpi is killed between confirmation and \
noting it, one request is sent twice. While the receiver is down the database keeps what is to be \
sent, and dcpi tries again at growing distances of up to 5 minutes. Samples of the idle loop are \
not sent.

Exit codes: 0 done; 1 done, but part of the database could not be read, or the receiver rejected \
samples; 2 could not.";

pub(crate) fn run(args: &Push, out: &mut dyn Write) -> Result<Outcome, AnalysisError> {
    let state =
        args.state.clone().or_else(|| std::env::var_os("STATE_DIRECTORY").map(PathBuf::from));
    let state = state.unwrap_or_else(|| PathBuf::from("/var/lib/dcpi-push"));
    let mut pusher = Pusher {
        from: args.from.clone(),
        to: args.to.clone(),
        sent: open_state(&state, &args.to)?,
        is_sound: true,
    };
    let Some(every) = args.every else {
        pusher.once(out)?;
        return Ok(Outcome { sound: pusher.is_sound, ..Outcome::default() });
    };
    let heard = signals::hear(&[SIGINT, SIGTERM, SIGHUP]).map_err(AnalysisError::from)?;
    pusher.forever(every, &heard, out)?;
    Ok(Outcome { sound: pusher.is_sound, ..Outcome::default() })
}

/// What was sent to a receiver, in the directory of `--state`.
fn open_state(state: &Path, to: &Collector) -> Result<Sent, AnalysisError> {
    let directory = state.join(to.file_name());
    let shown = directory.display().to_string();
    Sent::open(&directory).map_err(|error| {
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

/// A push, or many of them.
struct Pusher {
    from: PathBuf,
    to: Collector,
    sent: Sent,
    /// Whether all could be read and nothing was rejected so far.
    is_sound: bool,
}

/// Why a push did not get to its end.
enum Stopped {
    /// The receiver did not take a request; perhaps later.
    Receiver(Failure),
    /// The database, or what was sent, could not be read or written.
    Here(AnalysisError),
}

impl<E: Into<AnalysisError>> From<E> for Stopped {
    fn from(error: E) -> Self {
        Self::Here(error.into())
    }
}

/// What a push sent.
#[derive(Clone, Copy, Debug, Default)]
struct Pushed {
    requests: u64,
    samples: u64,
}

impl Pusher {
    /// Pushes what is new, with a few attempts.
    fn once(&mut self, out: &mut dyn Write) -> Result<(), AnalysisError> {
        let mut pushed = Pushed::default();
        for attempt in 1.. {
            match self.push(&mut pushed, out) {
                Ok(()) => break,
                Err(Stopped::Here(error)) => return Err(error),
                Err(Stopped::Receiver(failure)) if failure.is_final || attempt == ATTEMPTS => {
                    let what = format!(
                        "{} does not take profiles: {failure}; what was not sent stays in {} for \
                         the next push",
                        self.to,
                        self.from.display()
                    );
                    return Err(AnalysisError::Refused(what));
                }
                Err(Stopped::Receiver(failure)) => {
                    let wait = pause(attempt, &failure);
                    // Nobody waits for minutes without a word.
                    if attempt == 1 || failure.retry_after.is_some() {
                        let seconds = wait.as_secs_f64().ceil();
                        writeln!(out, "{}: {failure}; dcpi tries again in {seconds} s", self.to)?;
                        out.flush()?;
                    }
                    std::thread::sleep(wait);
                }
            }
        }
        let what = match pushed.requests {
            0 => "nothing new".to_owned(),
            requests => {
                format!("{} in {}", counted(pushed.samples, "sample"), counted(requests, "request"))
            }
        };
        Ok(writeln!(out, "{}: {what}", self.to)?)
    }

    /// Pushes what is new again and again, until a signal comes.
    fn forever(
        &mut self,
        every: Duration,
        heard: &Receiver<i32>,
        out: &mut dyn Write,
    ) -> Result<(), AnalysisError> {
        let mut failures = 0_u32;
        loop {
            let next = Instant::now() + every;
            let mut pushed = Pushed::default();
            let wait = match self.push(&mut pushed, out) {
                Ok(()) => {
                    if failures > 0 {
                        writeln!(out, "{}: takes profiles again", self.to)?;
                    }
                    failures = 0;
                    next.saturating_duration_since(Instant::now())
                }
                Err(stopped) => {
                    failures = failures.saturating_add(1);
                    let (failure, is_here) = match stopped {
                        Stopped::Receiver(failure) => (failure, false),
                        Stopped::Here(error) => (Failure::here(&error), true),
                    };
                    let wait = pause(failures, &failure).min(BACKOFF_MAX);
                    // Once for each time that something is down, not for each attempt.
                    if failures == 1 {
                        let seconds = wait.as_secs_f64().ceil();
                        let next = match is_here {
                            true => String::new(),
                            false => format!("; dcpi tries again, first in {seconds} s"),
                        };
                        writeln!(out, "{}: {failure}{next}", self.to)?;
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

    /// Sends all that is new, epoch by epoch and part by part.
    fn push(&mut self, pushed: &mut Pushed, out: &mut dyn Write) -> Result<(), Stopped> {
        let db = Database::open(&self.from)?;
        for host in db.hosts()? {
            for epoch in db.epochs(&host)? {
                while let Some(part) = self.sent.unsent(&db, &host, &epoch, PART_BYTES_MAX)? {
                    if Sent::has_counts(&part) {
                        let (samples, is_whole) = self.send(&db, part.clone(), out)?;
                        pushed.requests += u64::from(samples.is_some());
                        pushed.samples = pushed.samples.saturating_add(samples.unwrap_or(0));
                        self.is_sound &= is_whole;
                    }
                    self.sent.mark(&part)?;
                }
            }
            self.sent.forget_gone(&db, &host)?;
        }
        Ok(())
    }

    /// Sends one part; gives the number of its samples, None where there was nothing to send, and
    /// whether all of them arrived.
    fn send(
        &self,
        db: &Database,
        part: Epoch,
        out: &mut dyn Write,
    ) -> Result<(Option<u64>, bool), Stopped> {
        let mut problems: Vec<Problem> = Vec::new();
        let mut samples = Samples::of_epoch(db, part)?;
        problems.append(&mut samples.problems);
        let wanted = Wanted {
            detail: Detail::Procedures,
            executed: false,
            idle: false,
            everything: true,
            places: Places::with_debug_roots(Vec::new()),
            stacks: samples.stacks_by_scope(&[], &mut problems)?,
        };
        let resolved = resolve::resolve(&samples, &wanted, &mut problems);
        drop((samples, wanted));
        let mut message = Vec::new();
        let carried = otlp::write(&resolved, &mut message)?;
        let has_any = carried.samples.iter().any(|samples| *samples > 0)
            || !resolved.stacks.samples.is_empty();
        // Events that only stacks have count those.
        let sampled = resolved.events.iter().zip(&carried.samples);
        let sampled = sampled.filter(|(event, _)| event.period > 0).map(|(_, samples)| *samples);
        let samples = sampled.fold(0, u64::saturating_add);
        drop(resolved);
        let mut is_whole = true;
        for problem in problems.iter().filter(|problem| problem.is_serious()) {
            writeln!(out, "{problem}")?;
            is_whole = false;
        }
        if !has_any {
            return Ok((None, is_whole));
        }
        let answer = self.to.send(&message).map_err(Stopped::Receiver)?;
        if let Some(rejected) = answer {
            writeln!(out, "{}: {rejected}", self.to)?;
            is_whole = false;
        }
        Ok((Some(samples), is_whole))
    }
}

/// Time until the next attempt after so many: as the receiver asks, else twice as long each time,
/// and some part of that more, so that many hosts do not come at once.
fn pause(attempts: u32, failure: &Failure) -> Duration {
    let doubled = BACKOFF.saturating_mul(1_u32 << attempts.saturating_sub(1).min(16));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let more = f64::from(now.subsec_nanos()) / 4e9;
    failure.retry_after.unwrap_or(doubled).min(BACKOFF_MAX).mul_f64(1.0 + more)
}

fn every(text: &str) -> Result<Duration, String> {
    crate::options::parse_time(text, EVERY_MIN, EVERY_MAX)
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

//! Runs of one command, recorded one after the other into one epoch.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use exact::Streams;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::private::Private;
use super::summary::Recorded;
use super::{Record, Subject, lost_sight, wait};
use crate::{options, signals};
use query::error::AnalysisError;

pub(in crate::commands) struct Repeated {
    pub(in crate::commands) host: String,
    /// First and last epoch.
    pub(in crate::commands) epochs: (String, String),
    pub(in crate::commands) status: ExitStatus,
    pub(in crate::commands) took: Duration,
}

/// Records `runs` runs of a command under a label, with the standard streams that `streams` gives
/// to the run of each number, into the database at `db`; `edges` is as `--edges`.
///
/// # Errors
/// Returns the errors of a private dcpid; [`AnalysisError::Refused`] if the command was
/// interrupted.
pub(in crate::commands) fn repeated(
    (label, command): (&str, &[OsString]),
    db: &Path,
    (runs, edges): (u32, &str),
    mut streams: impl FnMut(u32) -> Result<Streams, AnalysisError>,
) -> Result<Repeated, AnalysisError> {
    let words = ["--overhead-budget", "off", "--edges", edges, "--"].map(OsString::from);
    let words = words.into_iter().chain(command.iter().cloned());
    let args: Record = options::typed(words).map_err(|error| {
        AnalysisError::Refused(format!("cannot record: {}; see dcpi record --help", error.kind()))
    })?;
    let heard = signals::hear(&[SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD]).map_err(lost_sight)?;
    let mut private = Private::start(&args, None, Some(db), Some(label))?;
    let begun = Instant::now();
    let mut first = None;
    for run in 0..runs.max(1) {
        let mut child = private.labelled(label, command, streams(run)?)?;
        let ended = wait(&mut private, Subject::Command(&mut child), None, &heard);
        let status = child.wait().map_err(lost_sight)?;
        let _ = ended?;
        let stops = |signal: &i32| [SIGINT, SIGTERM, SIGHUP, SIGQUIT].contains(signal);
        if let Some(signal) = status.signal().filter(stops) {
            return Err(AnalysisError::Refused(format!(
                "signal {signal} ended the command while it was sampled; nothing was written"
            )));
        }
        first.get_or_insert(status);
    }
    let took = begun.elapsed();
    let Recorded { host, epochs, .. } = private.end()?;
    Ok(Repeated { host, epochs, status: first.unwrap_or_default(), took })
}

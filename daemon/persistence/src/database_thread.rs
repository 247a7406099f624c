//! The thread that owns the database's writer: merges take as long as the disk does, and sampling
//! and draining go on meanwhile.

use crate::plausible_clock::PlausibleClock;
use address_spaces::library::Library;
use events::PlannedEvent;
use kernel::Machine;
use kernel::clock;
use profiledb::{
    Database, DbError, Delta, EpochId, EpochStart, EventMeta, MergeReport, Retention, Writer,
};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;

/// While idle, the thread folds this many bytes of small files into larger ones, and again after
/// this interval, so that folding never takes more than a few milliseconds a second.
const FOLD_BYTES: u64 = 128 << 10;
const FOLD_PAUSE: Duration = Duration::from_secs(1);
/// Old epochs are looked for at the start, with each new epoch, and this often.
const GARBAGE_INTERVAL: Duration = Duration::from_secs(3600);
/// The files of the database are counted this often; in between, what merges write is added.
const SIZE_INTERVAL: Duration = Duration::from_secs(600);

/// Requests to the writer.
pub enum Job {
    /// Add to the open epoch.
    Merge(Box<Delta>),
    /// Seal the open epoch and open another.
    NextEpoch(Box<EpochStart>),
    /// New rules for removing old epochs; there is no answer.
    Retain(Retention),
}

/// The result of a task; errors are one line, with the next step.
pub enum Done {
    /// The delta is on disk, whole, or not at all.
    Merged(Result<Merged, String>),
    /// The new epoch is open.
    Epoch(Result<EpochId, String>),
}

/// A merge that succeeded.
#[derive(Clone, Debug)]
pub struct Merged {
    /// The epoch it went to.
    pub epoch: EpochId,
    /// The result of writing.
    pub report: MergeReport,
    /// Bytes of the whole database now, as good as they are known.
    pub database_bytes: u64,
}

/// The writer's thread. It ends when this value is dropped.
pub struct Flusher {
    jobs: mpsc::Sender<Job>,
}

impl Flusher {
    /// Hands the writer over, whose open epoch was begun with `start`, and the rules by which old
    /// ones go; answers go to `done`, in the order of the jobs. `library` is told what was merged.
    pub fn start(
        mut writer: Writer,
        mut start: EpochStart,
        (root, mut retention, library): (PathBuf, Retention, Library),
        done: UnboundedSender<Done>,
    ) -> std::io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        std::thread::Builder::new().name("flush".into()).spawn(move || {
            kernel::privileges::give_up_all();
            let mut folds = true;
            let mut looked: Option<Instant> = None;
            let mut clock = PlausibleClock::new();
            let mut size = Size { root, bytes: 0, counted: None };
            loop {
                if looked.is_none_or(|looked| looked.elapsed() >= GARBAGE_INTERVAL) {
                    remove_old(&mut writer, &retention, &mut clock);
                    looked = Some(Instant::now());
                }
                // Once all is folded only a merge can bring something to fold.
                let next = queue.recv_timeout(if folds { FOLD_PAUSE } else { GARBAGE_INTERVAL });
                let answer = match next {
                    Ok(Job::Merge(delta)) => {
                        let merged = merge(&mut writer, &start, &mut size, &delta);
                        if merged.is_ok() {
                            library.sampled(&delta);
                        }
                        Done::Merged(merged)
                    }
                    Ok(Job::Retain(rules)) => {
                        (retention, looked) = (rules, None);
                        continue;
                    }
                    Ok(Job::NextEpoch(next)) => {
                        start = *next;
                        let epoch =
                            in_place(&mut writer, |writer| writer.next_epoch(start.clone()));
                        let epoch = epoch.map_err(|error| error.to_string());
                        looked = None;
                        Done::Epoch(epoch)
                    }
                    Err(RecvTimeoutError::Timeout) => {
                        folds = folds && fold(&mut writer, &mut clock);
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                };
                folds = true;
                if done.send(answer).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { jobs })
    }

    /// Queues a job. False when the thread is gone, which only a panic there can cause.
    pub fn send(&self, job: Job) -> bool {
        self.jobs.send(job).is_ok()
    }
}

/// The parameters of a new epoch.
pub fn epoch_start(
    machine: &Machine,
    events: &[PlannedEvent],
    label: Option<String>,
) -> EpochStart {
    let events = events.iter().map(|plan| EventMeta {
        name: plan.event.name.clone(),
        unit: plan.event.unit.to_string(),
        period: plan.period,
        rate_per_s: plan.rate,
        note: plan.note.clone(),
    });
    EpochStart {
        label,
        machine: profiledb::Machine {
            arch: machine.arch.clone(),
            cpu_model: machine.cpu_model.clone(),
            cpus: machine.cpus.len() as u32,
            kernel_release: machine.kernel_release.clone(),
            kernel_build_id: machine.kernel_id.build_id().map(|_| machine.kernel_id.to_string()),
            boot_id: machine.boot_id.clone(),
        },
        events: events.collect(),
        now_unix_s: clock::unix_s(),
        writer_version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// Removes the epochs that are too old, or too many bytes. One that cannot be removed is tried
/// again.
fn remove_old(writer: &mut Writer, retention: &Retention, clock: &mut PlausibleClock) {
    match writer.collect_garbage(retention, clock.unix_s()) {
        Ok(gone) => {
            gone.iter()
                .for_each(|epoch| tracing::info!(epoch = %epoch.epoch, bytes = epoch.bytes, "removed an old epoch"));
        }
        Err(error) => tracing::warn!("{error}; old epochs stay, and are tried again"),
    }
}

/// Folds a little; false when there is no more to fold now.
fn fold(writer: &mut Writer, clock: &mut PlausibleClock) -> bool {
    match writer.fold(FOLD_BYTES, clock.unix_s()) {
        Ok(folded) => folded.more,
        // The epoch is as it was, in more files; the next merge tries again.
        Err(error) => {
            tracing::warn!("{error}; the epoch stays in more files than it needs");
            false
        }
    }
}

/// Does it, and where the database, or a part of it, was removed meanwhile, makes that again first.
fn in_place<T>(
    writer: &mut Writer,
    mut work: impl FnMut(&mut Writer) -> Result<T, DbError>,
) -> Result<T, DbError> {
    match work(writer) {
        Err(removed @ DbError::Removed { .. }) => {
            writer.reopen()?;
            tracing::error!(
                "{removed}; what is missing is made anew and takes the samples from here on"
            );
            work(writer)
        }
        done => done,
    }
}

fn merge(
    writer: &mut Writer,
    start: &EpochStart,
    size: &mut Size,
    delta: &Delta,
) -> Result<Merged, String> {
    let report =
        in_place(writer, |writer| add(writer, start, delta)).map_err(|error| error.to_string())?;
    let epoch = writer.epoch().cloned().ok_or("no epoch is open; restart dcpid")?;
    Ok(Merged { epoch, report, database_bytes: size.with(report.bytes_written) })
}

/// The size of the database.
struct Size {
    root: PathBuf,
    bytes: u64,
    counted: Option<Instant>,
}

impl Size {
    /// The size after a merge of so many bytes.
    fn with(&mut self, written: u64) -> u64 {
        if self.counted.is_none_or(|counted| counted.elapsed() >= SIZE_INTERVAL) {
            self.bytes = database_bytes(&self.root).unwrap_or(0);
            self.counted = Some(Instant::now());
        } else {
            self.bytes = self.bytes.saturating_add(written);
        }
        self.bytes
    }
}

/// Adds to the open epoch, or to a new one.
fn add(writer: &mut Writer, start: &EpochStart, delta: &Delta) -> Result<MergeReport, DbError> {
    match writer.merge(delta) {
        // The epoch has the delta already; the writer does the rest before its next change.
        Err(DbError::Unfinished { source, .. }) => {
            tracing::warn!(
                "the merge is decided but not finished: {source}; it is finished with the next"
            );
            Ok(MergeReport::default())
        }
        // Trying again cannot mend these. The epoch is kept as it is, and a new one takes the
        // samples.
        Err(
            error @ (DbError::Corrupt { .. } | DbError::TooLarge { .. } | DbError::TooMany { .. }),
        ) => {
            tracing::error!("{error}; the epoch is closed, and a new one begins");
            let start = EpochStart { now_unix_s: clock::unix_s(), ..start.clone() };
            writer.next_epoch(start).and_then(|_| writer.merge(delta))
        }
        // The last epoch was closed and the next could not be made: a full disk, say.
        Err(DbError::NoOpenEpoch { .. }) => {
            let start = EpochStart { now_unix_s: clock::unix_s(), ..start.clone() };
            writer.begin(start, false).and_then(|_| writer.merge(delta))
        }
        result => result,
    }
}

/// Bytes of all epochs of all hosts.
fn database_bytes(root: &Path) -> Result<u64, profiledb::DbError> {
    let database = Database::open(root)?;
    let mut bytes = 0;
    for host in database.hosts()? {
        for epoch in database.epochs(&host)? {
            // If one cannot be listed, the others are still read.
            bytes += database.epoch_bytes(&host, &epoch).unwrap_or(0);
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiledb::EventMeta;

    /// A full disk let `dcpictl epoch` close the epoch and not open the next: every merge after
    /// that failed, for ever.
    #[test]
    fn a_merge_without_an_open_epoch_opens_one() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("db");
        let mut writer = Writer::open(&root, "here").unwrap();
        let start = EpochStart {
            events: vec![EventMeta { name: "cycles".into(), ..EventMeta::default() }],
            ..EpochStart::default()
        };
        let first = writer.begin(start.clone(), false).unwrap();
        writer.seal(1).unwrap();
        let mut size = Size { root, bytes: 0, counted: None };
        let merged = merge(&mut writer, &start, &mut size, &Delta::default()).unwrap();
        assert!(merged.epoch > first);
    }
}

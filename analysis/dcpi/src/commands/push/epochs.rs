//! To the store of a fleet: each epoch that has ended, once, and the code of its images.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use image::ImageId;
use names::procedures::Places;
use names::sent;
use profiledb::{
    Database, DbError, EpochId, Operation, Outgoing, code_files, is_same_epoch, outgoing,
    outgoing_place,
};
use report::counted;

use super::store::{Put, Store};
use super::{Pushed, Stopped, Way};

/// Directory of the epochs in a store, a database.
const RAW: &str = "raw";
/// Directory of the code of images below, which all hosts have in common.
const CODE: &str = "code";

/// Sends each epoch that has ended to a store, once.
pub(super) struct ToStore {
    pub(super) to: Store,
    pub(super) done: Done,
    pub(super) leaving: Outgoing,
    pub(super) with_code: bool,
    /// Where names of procedures are, beside the database.
    pub(super) places: Places,
    /// Time after its end within which an epoch is sent.
    pub(super) spread: Duration,
}

impl Way for ToStore {
    fn push(
        &mut self,
        db: &Database,
        pushed: &mut Pushed,
        out: &mut dyn Write,
    ) -> Result<(), Stopped> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut is_made = false;
        for host in db.hosts()? {
            for id in db.epochs(&host)? {
                if self.done.has(&host, id.as_str()) {
                    continue;
                }
                let epoch = match db.epoch(&host, &id) {
                    // dcpid may have removed it in the meantime.
                    Err(DbError::NoSuchEpoch { .. }) => continue,
                    epoch => epoch?,
                };
                let Some(ended_s) = epoch.meta().ended_unix_s else { continue };
                let wait = wait(&host, &id, Duration::from_secs(ended_s), self.spread, now);
                if !wait.is_zero() {
                    pushed.next = Some(pushed.next.map_or(wait, |next| next.min(wait)));
                    continue;
                }
                let names = match self.with_code {
                    true => sent::symbols(&epoch, &self.places).unwrap_or_default(),
                    false => BTreeMap::new(),
                };
                let file = match outgoing(&epoch, &self.leaving, &names) {
                    Ok(file) => file,
                    // A damaged epoch does not delay the next ones.
                    Err(error @ (DbError::Corrupt { .. } | DbError::Damaged { .. })) => {
                        writeln!(out, "epoch {id} of {host} is not sent: {error}")?;
                        pushed.is_sound = false;
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                };
                if self.with_code {
                    let images = epoch.images()?.into_iter();
                    let leaves =
                        images.filter(|(_, record)| self.leaving.has_symbols(Some(record)));
                    self.send_code(db, &host, &leaves.map(|(id, _)| id).collect(), pushed)?;
                }
                if !is_made {
                    self.make()?;
                    is_made = true;
                }
                self.send(&host, &id, &file, pushed, out)?;
            }
            self.done.forget_gone(&host, &db.epochs(&host)?)?;
        }
        Ok(())
    }

    fn told(&self, pushed: &Pushed) -> String {
        let epochs = counted(pushed.objects, "epoch");
        format!("{epochs}, code of {}", counted(pushed.code, "image"))
    }
}

/// Time from `now` to the moment at which an epoch is sent, which lies within `spread` after its
/// end and follows from host and epoch: of many hosts whose epochs end together, as many send in
/// each second. 0: the moment has come. An end that is still to come is a clock that was put back,
/// and nobody waits for that. Times are since 1970 UTC.
fn wait(host: &str, id: &EpochId, ended: Duration, spread: Duration, now: Duration) -> Duration {
    let mut hasher = DefaultHasher::new();
    (host, id.as_str()).hash(&mut hasher);
    let ms = (u128::from(hasher.finish()) * spread.as_millis()) >> u64::BITS;
    let delay = Duration::from_millis(u64::try_from(ms).unwrap_or(u64::MAX));
    if now < ended { Duration::ZERO } else { (ended + delay).saturating_sub(now) }
}

impl ToStore {
    /// Makes the store a database: readers take the directory for one by this file.
    fn make(&self) -> Result<(), Stopped> {
        let format = format!("{RAW}/format");
        if !self.to.has(&format).map_err(Stopped::Receiver)? {
            self.put(&format, profiledb::FORMAT)?;
        }
        Ok(())
    }

    fn put(&self, key: &str, mut object: &[u8]) -> Result<Put, Stopped> {
        let size_bytes = object.len() as u64;
        self.to.put(key, &mut object, size_bytes).map_err(Stopped::Receiver)
    }

    fn send(
        &self,
        host: &str,
        id: &EpochId,
        file: &[u8],
        pushed: &mut Pushed,
        out: &mut dyn Write,
    ) -> Result<(), Stopped> {
        let key = format!("{RAW}/{}", outgoing_place(host, id)?);
        let is_another = match self.put(&key, file)? {
            Put::Stored => {
                pushed.objects += 1;
                false
            }
            Put::Same => false,
            Put::Another => true,
            Put::WasThere => {
                let there = self.to.get(&key).map_err(Stopped::Receiver)?;
                there.is_some_and(|there| !is_same_epoch(&there, file))
            }
        };
        if is_another {
            writeln!(
                out,
                "epoch {id} of {host} is not sent: {} has another of that name, from another \
                 machine or database; give each machine a host name of its own (dcpid --host)",
                self.to
            )?;
            pushed.is_sound = false;
        }
        Ok(self.done.mark(host, id.as_str())?)
    }

    /// Sends the kept code of images that the store does not have.
    fn send_code(
        &self,
        db: &Database,
        host: &str,
        images: &BTreeSet<ImageId>,
        pushed: &mut Pushed,
    ) -> Result<(), Stopped> {
        for file in code_files(db, host, images)? {
            let name = file.name();
            if self.done.has(CODE, &name) {
                continue;
            }
            let whole = format!("{RAW}/{CODE}/{}", file.whole_name());
            let key = format!("{RAW}/{CODE}/{name}");
            let has = |key: &str| self.to.has(key).map_err(Stopped::Receiver);
            if !has(&whole)? && (key == whole || !has(&key)?) {
                // Unreadable data does not prevent other data from being sent.
                let Ok(Some(mut code)) = file.open(db, host) else {
                    pushed.is_sound = false;
                    continue;
                };
                let size_bytes = code.size_bytes();
                let put = self.to.put(&key, &mut code, size_bytes).map_err(Stopped::Receiver)?;
                pushed.code += u64::from(put == Put::Stored);
            }
            self.done.mark(CODE, &name)?;
        }
        Ok(())
    }
}

/// What was sent to a store: empty files, whose loss costs a question to the store for each.
pub(super) struct Done {
    root: PathBuf,
    _lock: File,
}

impl Done {
    /// Opens the directory, which is made if there is none.
    ///
    /// # Errors
    /// [`DbError::Locked`] while another process has it open; [`DbError::Io`].
    pub(super) fn open(root: &Path) -> Result<Self, DbError> {
        fs::create_dir_all(root).map_err(|error| io(Operation::CreateDirectory, root, error))?;
        let path = root.join("lock");
        let lock = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(|error| io(Operation::Write, &path, error))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { root: root.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(DbError::Locked { path }),
            Err(TryLockError::Error(error)) => Err(io(Operation::Lock, &path, error)),
        }
    }

    fn directory(&self, of: &str) -> PathBuf {
        self.root.join(if of == CODE { CODE.to_owned() } else { format!("of-{of}") })
    }

    fn has(&self, of: &str, name: &str) -> bool {
        self.directory(of).join(name).exists()
    }

    fn mark(&self, of: &str, name: &str) -> Result<(), DbError> {
        let directory = self.directory(of);
        fs::create_dir_all(&directory)
            .map_err(|error| io(Operation::CreateDirectory, &directory, error))?;
        let path = directory.join(name);
        File::create(&path).map(drop).map_err(|error| io(Operation::Write, &path, error))
    }

    /// Forgets the epochs of a host that are no longer in the database.
    fn forget_gone(&self, host: &str, there: &[EpochId]) -> Result<(), DbError> {
        let directory = self.directory(host);
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(|error| io(Operation::List, &directory, error))?,
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if !there.iter().any(|id| name == id.as_str()) {
                let path = entry.path();
                fs::remove_file(&path).map_err(|error| io(Operation::Remove, &path, error))?;
            }
        }
        Ok(())
    }
}

fn io(op: Operation, path: &Path, source: io::Error) -> DbError {
    DbError::Io { op, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const END: Duration = Duration::from_secs(1_795_651_200);

    fn delay(host: &str, id: &EpochId, spread: Duration) -> Duration {
        wait(host, id, END, spread, END)
    }

    /// With an even spread, the hosts of a bin are Poisson of mean 100, and the sum below is
    /// chi-squared of 99 degrees of freedom: mean 99, standard deviation 14.
    #[test]
    fn ten_thousand_hosts_spread_evenly() {
        for name in ["20261124-000000", "20261125-000000"] {
            let id: EpochId = name.parse().unwrap();
            let mut bins = [0_i32; 100];
            for host in 0..10_000 {
                let at = delay(&format!("web-{host:05}.example.org"), &id, HOUR);
                bins[usize::try_from(at.as_secs() / 36).unwrap()] += 1;
            }
            let squares: i32 = bins.iter().map(|hosts| (hosts - 100).pow(2)).sum();
            assert!((29..=169).contains(&(squares / 100)), "{squares} {bins:?}");
            assert!(bins.iter().all(|hosts| (50..=150).contains(hosts)), "{bins:?}");
        }
    }

    #[test]
    fn a_moment_follows_from_host_and_epoch() {
        let [one, other] = ["20261124-000000", "20261125-000000"].map(|id| id.parse().unwrap());
        let at = delay("web", &one, HOUR);
        assert_eq!(at, delay("web", &one, HOUR));
        assert!(at != delay("web", &other, HOUR) && at != delay("db", &one, HOUR));
        assert_eq!(delay("web", &one, Duration::ZERO), Duration::ZERO);
        // It comes nearer, and does not come again.
        let second = Duration::from_secs(1);
        assert_eq!(wait("web", &one, END, HOUR, END + second), at - second);
        assert_eq!(wait("web", &one, END, HOUR, END + at), Duration::ZERO);
        assert_eq!(wait("web", &one, END, HOUR, END + 2 * HOUR), Duration::ZERO);
        assert_eq!(wait("web", &one, END, HOUR, END - second), Duration::ZERO);
    }
}

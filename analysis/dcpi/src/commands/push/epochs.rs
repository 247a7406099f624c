//! To the store of a fleet: each epoch that has ended, once, and the code of its images.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use image::ImageId;
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
}

impl Way for ToStore {
    fn push(
        &mut self,
        db: &Database,
        pushed: &mut Pushed,
        out: &mut dyn Write,
    ) -> Result<(), Stopped> {
        for host in db.hosts()? {
            for id in db.epochs(&host)? {
                if self.done.has(&host, id.as_str()) {
                    continue;
                }
                let epoch = match db.epoch(&host, &id) {
                    // dcpid may have removed it meanwhile.
                    Err(DbError::NoSuchEpoch { .. }) => continue,
                    epoch => epoch?,
                };
                if epoch.meta().ended_unix_s.is_none() {
                    continue;
                }
                let file = match outgoing(&epoch, &self.leaving) {
                    Ok(file) => file,
                    // The next epochs need not wait until somebody mends this one.
                    Err(error @ (DbError::Corrupt { .. } | DbError::Damaged { .. })) => {
                        writeln!(out, "epoch {id} of {host} is not sent: {error}")?;
                        pushed.is_sound = false;
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                };
                if self.with_code {
                    self.send_code(db, &host, &epoch.images()?.into_keys().collect(), pushed)?;
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

impl ToStore {
    /// Sends an epoch.
    fn send(
        &self,
        host: &str,
        id: &EpochId,
        file: &[u8],
        pushed: &mut Pushed,
        out: &mut dyn Write,
    ) -> Result<(), Stopped> {
        // Readers take the directory for a database by this file.
        let format = format!("{RAW}/format");
        if !self.to.has(&format).map_err(Stopped::Receiver)? {
            self.to.put(&format, profiledb::FORMAT).map_err(Stopped::Receiver)?;
        }
        let key = format!("{RAW}/{}", outgoing_place(host, id)?);
        let is_another = match self.to.put(&key, file).map_err(Stopped::Receiver)? {
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
                // What cannot be read keeps nothing else from being sent.
                let Ok(Some(bytes)) = file.read(db, host) else {
                    pushed.is_sound = false;
                    continue;
                };
                let put = self.to.put(&key, &bytes).map_err(Stopped::Receiver)?;
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

    /// Forgets the epochs of a host that the database does not have any more.
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

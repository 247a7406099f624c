//! A disk in memory that fails on command.
//!
//! It shows what a *process* sees when operations fail or when it is killed (everything done before
//! is there), and what a machine sees after a power failure ([`SimulatedDisk::cut_power`]): what
//! was forced out is there, and any part of the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use profiledb::storage::{Entry, Lock, Opened, Storage, WriteBody};

/// A disk in memory. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub struct SimulatedDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<PathBuf, Vec<u8>>,
    /// Names and bytes that survive a power failure: those forced out.
    durable: BTreeMap<PathBuf, Vec<u8>>,
    /// Bytes that were forced out, of files whose names perhaps were not.
    synced: BTreeMap<PathBuf, Vec<u8>>,
    durable_directories: BTreeSet<PathBuf>,
    /// Directories that were renamed since their parent was forced out: new name to old.
    renamed: BTreeMap<PathBuf, PathBuf>,
    /// Names that a directory got before forcing it out failed. As on Linux the error is reported
    /// once, and the next sync succeeds without them (fsync(2), "NOTES"; "Can applications recover
    /// from fsync failures?", USENIX ATC 2020): only a name that is given again is forced out.
    forgotten: BTreeSet<PathBuf>,
    /// Times of change that were set.
    modified: BTreeMap<PathBuf, u64>,
    directories: BTreeSet<PathBuf>,
    locked: BTreeSet<PathBuf>,
    operations: u64,
    fault: Option<Fault>,
}

#[derive(Copy, Clone, Debug)]
struct Fault {
    /// The first operation to fail, counted like `State::operations`.
    at: u64,
    /// Number of operations that fail from there on.
    count: u64,
    errno: i32,
}

/// The steps of writing a file, each of which can fail.
enum Step {
    Write,
    Sync,
}

impl SimulatedDisk {
    /// An empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of operations so far. Writing a file is two: the bytes, and forcing them out.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Lets the operation after `skip` more fail once with this error number.
    pub fn fail_after(&self, skip: u64, errno: i32) {
        self.set_fault(skip, 1, errno);
    }

    /// Lets all operations after `skip` more fail, as if the process had been killed there (EIO).
    pub fn stop_after(&self, skip: u64) {
        // 5 = EIO (errno(3)).
        self.set_fault(skip, u64::MAX, 5);
    }

    /// From now on no operation fails.
    pub fn heal(&self) {
        self.state().fault = None;
    }

    /// A copy of all files.
    pub fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        self.state().files.clone()
    }

    /// Puts a file and its directory on the disk, safe from power failures, in place of any file
    /// there.
    pub fn put(&self, path: &Path, bytes: Vec<u8>) {
        let mut state = self.state();
        if let Some(parent) = path.parent() {
            state.create_directory(parent);
            state.durable_directories.extend(parent.ancestors().map(Path::to_owned));
        }
        state.synced.insert(path.to_owned(), bytes.clone());
        state.durable.insert(path.to_owned(), bytes.clone());
        state.files.insert(path.to_owned(), bytes);
    }

    /// The disk after a power failure now. For each name that was not forced out, `choice` decides
    /// whether it is there; it is called with a new number each time. A file whose bytes were not
    /// forced out is empty, half there or whole.
    pub fn cut_power(&self, choice: impl Fn(u64) -> u64) -> Self {
        let state = self.state();
        let after = Self::new();
        let mut question = 0;
        let mut ask = |answers: u64| {
            question += 1;
            choice(question) % answers.max(1)
        };
        // A directory that was renamed is at one place or the other, with its content.
        let moved = ask(2) == 1;
        let is_moved = |path: &Path| {
            let names = state.renamed.iter().flat_map(|(to, from)| [to, from]);
            names.into_iter().any(|name| path.starts_with(name))
        };
        let keep = |path: &Path, ask: &mut dyn FnMut(u64) -> u64| {
            if is_moved(path) { moved } else { ask(2) == 1 }
        };
        let (mut files, mut directories) = (BTreeMap::new(), BTreeSet::new());
        for name in state.directories.union(&state.durable_directories) {
            let (now, before) =
                (state.directories.contains(name), state.durable_directories.contains(name));
            let is_there = if now == before || keep(name, &mut ask) { now } else { before };
            if is_there && name.parent().is_none_or(|parent| directories.contains(parent)) {
                directories.insert(name.clone());
            }
        }
        let names: BTreeSet<&PathBuf> = state.files.keys().chain(state.durable.keys()).collect();
        for name in names {
            let (now, before) = (state.files.get(name), state.durable.get(name));
            let as_now = now != before && keep(name, &mut ask);
            let bytes = if as_now { state.surviving(name, &mut ask) } else { before.cloned() };
            if let Some(bytes) =
                bytes.filter(|_| name.parent().is_none_or(|parent| directories.contains(parent)))
            {
                files.insert(name.clone(), bytes);
            }
        }
        {
            let mut to = after.state();
            to.modified.clone_from(&state.modified);
            to.durable.clone_from(&files);
            to.synced.clone_from(&files);
            to.files = files;
            to.durable_directories.clone_from(&directories);
            to.directories = directories;
        }
        drop(state);
        after
    }

    /// Another disk with the same files and directories, without locks and faults.
    pub fn copy(&self) -> Self {
        let state = self.state();
        let copy = Self::new();
        {
            let mut to = copy.state();
            to.files.clone_from(&state.files);
            to.durable.clone_from(&state.durable);
            to.synced.clone_from(&state.synced);
            to.durable_directories.clone_from(&state.durable_directories);
            to.modified.clone_from(&state.modified);
            to.directories.clone_from(&state.directories);
        }
        copy
    }

    fn set_fault(&self, skip: u64, count: u64, errno: i32) {
        let mut state = self.state();
        let at = state.operations.saturating_add(skip);
        state.fault = Some(Fault { at, count, errno });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Counts an operation and says whether it fails.
    fn operation(&mut self) -> io::Result<()> {
        let now = self.operations;
        self.operations += 1;
        match self.fault {
            Some(fault) if now >= fault.at && now - fault.at < fault.count => {
                Err(io::Error::from_raw_os_error(fault.errno))
            }
            _ => Ok(()),
        }
    }

    /// The surviving bytes of a file that has its name: all that were forced out, and any part of
    /// the others.
    fn surviving(&self, name: &Path, ask: &mut impl FnMut(u64) -> u64) -> Option<Vec<u8>> {
        let bytes = self.files.get(name)?;
        if self.synced.get(name) == Some(bytes) {
            return Some(bytes.clone());
        }
        let part = [0, bytes.len() / 2, bytes.len()].get(ask(3) as usize).copied().unwrap_or(0);
        Some(bytes.split_at(part).0.to_vec())
    }

    /// Moves the file or directory with this name, and everything below it, to another name.
    fn move_all(&mut self, from: &Path, to: &Path) {
        let moved = |path: &PathBuf| Some(to.join(path.strip_prefix(from).ok()?));
        for map in [&mut self.files, &mut self.synced] {
            let names: Vec<PathBuf> =
                map.keys().filter(|path| path.starts_with(from)).cloned().collect();
            for name in names {
                if let (Some(bytes), Some(new)) = (map.remove(&name), moved(&name)) {
                    map.insert(new, bytes);
                }
            }
        }
        let names: Vec<PathBuf> =
            self.directories.iter().filter(|path| path.starts_with(from)).cloned().collect();
        for name in names {
            self.directories.remove(&name);
            self.directories.extend(moved(&name));
        }
    }

    /// Forcing the directory out failed: names that were not safe before do not become safe by
    /// another attempt.
    fn forget_names(&mut self, path: &Path) {
        let inside = self.files.iter().filter(|(child, _)| child.parent() == Some(path));
        let fresh = inside.filter(|(child, bytes)| self.durable.get(*child) != Some(*bytes));
        self.forgotten.extend(fresh.map(|(child, _)| child.clone()));
    }

    /// Makes the names in a directory safe; names that were lost stay lost.
    fn sync_names(&mut self, path: &Path) {
        let inside = |child: &PathBuf| child.parent() == Some(path);
        let gone: Vec<PathBuf> = self
            .durable_directories
            .iter()
            .filter(|child| inside(child) && !self.directories.contains(*child))
            .cloned()
            .collect();
        let before: BTreeMap<PathBuf, Vec<u8>> = self
            .durable
            .iter()
            .filter(|(child, _)| inside(child))
            .map(|(a, b)| (a.clone(), b.clone()))
            .collect();
        self.durable
            .retain(|child, _| !inside(child) && !gone.iter().any(|gone| child.starts_with(gone)));
        self.durable_directories.retain(|child| !gone.iter().any(|gone| child.starts_with(gone)));
        let fresh: Vec<PathBuf> = self
            .directories
            .iter()
            .filter(|child| inside(child) && !self.durable_directories.contains(*child))
            .cloned()
            .collect();
        self.durable_directories.insert(path.to_owned());
        for name in fresh {
            // A directory that was renamed takes its content along.
            let below: Vec<PathBuf> =
                self.directories.iter().filter(|child| child.starts_with(&name)).cloned().collect();
            self.durable_directories.insert(name.clone());
            if self.renamed.remove(&name).is_some() {
                self.durable_directories.extend(below);
                let files = self.synced.iter().filter(|(child, _)| child.starts_with(&name));
                self.durable.extend(files.map(|(child, bytes)| (child.clone(), bytes.clone())));
            }
        }
        for (child, bytes) in self.files.iter().filter(|(child, _)| inside(child)) {
            if self.forgotten.contains(child) {
                self.durable.extend(before.get(child).map(|bytes| (child.clone(), bytes.clone())));
                continue;
            }
            // A file whose name is safe but whose bytes were not forced out is empty.
            let safe = self
                .synced
                .get(child)
                .filter(|synced| *synced == bytes)
                .cloned()
                .unwrap_or_default();
            self.durable.insert(child.clone(), safe);
        }
    }

    fn create_directory(&mut self, path: &Path) {
        for ancestor in path.ancestors() {
            self.directories.insert(ancestor.to_owned());
        }
    }

    fn has_directory(&self, path: &Path) -> io::Result<()> {
        if self.directories.contains(path) {
            return Ok(());
        }
        Err(io::ErrorKind::NotFound.into())
    }

    fn has_parent(&self, path: &Path) -> io::Result<()> {
        path.parent().map_or(Ok(()), |dir| self.has_directory(dir))
    }

    fn write_step(&mut self, step: &Step, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let outcome = self.operation();
        self.has_parent(path)?;
        if matches!(step, Step::Write) {
            // A failed write leaves a part of the file.
            let kept = if outcome.is_ok() { bytes } else { bytes.split_at(bytes.len() / 2).0 };
            self.files.insert(path.to_owned(), kept.to_vec());
            self.synced.remove(path);
        } else if outcome.is_ok()
            && let Some(bytes) = self.files.get(path).cloned()
        {
            self.synced.insert(path.to_owned(), bytes);
        }
        outcome
    }
}

impl Storage for SimulatedDisk {
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.operation()?;
        state.create_directory(path);
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        let mut state = self.state();
        state.operation()?;
        state.has_directory(path)?;
        let name = |child: &Path| match child.parent() == Some(path) {
            true => Some(child.file_name()?.to_str()?.to_owned()),
            false => None,
        };
        let directories = state.directories.iter().filter_map(|child| {
            Some(Entry {
                name: name(child)?,
                is_directory: true,
                size_bytes: 0,
                modified_unix_s: 0,
            })
        });
        let files = state.files.iter().filter_map(|(child, bytes)| {
            let modified_unix_s = state.modified.get(child).copied().unwrap_or(0);
            Some(Entry {
                name: name(child)?,
                is_directory: false,
                size_bytes: bytes.len() as u64,
                modified_unix_s,
            })
        });
        let mut entries: Vec<Entry> = directories.chain(files).collect();
        entries.sort();
        Ok(entries)
    }

    fn open(&self, path: &Path, limit_bytes: u64) -> io::Result<Opened> {
        let mut state = self.state();
        state.operation()?;
        match state.files.get(path) {
            Some(bytes) if bytes.len() as u64 > limit_bytes => {
                Err(io::ErrorKind::FileTooLarge.into())
            }
            Some(bytes) => Ok((Box::new(io::Cursor::new(bytes.clone())), bytes.len() as u64)),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn size_bytes(&self, path: &Path) -> io::Result<u64> {
        let mut state = self.state();
        state.operation()?;
        match state.files.get(path) {
            Some(bytes) => Ok(bytes.len() as u64),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn write_synced(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        state.write_step(&Step::Write, path, bytes)?;
        state.write_step(&Step::Sync, path, bytes)
    }

    fn write_streamed(
        &self,
        path: &Path,
        head_bytes: usize,
        body: WriteBody<'_>,
    ) -> io::Result<()> {
        let mut rest = Vec::new();
        let head = body(&mut rest);
        // The lock on the state is released while others write.
        let mut state = self.state();
        state.write_step(&Step::Write, path, &rest)?;
        let mut file = head?;
        file.resize(head_bytes, 0);
        file.append(&mut rest);
        let synced = state.write_step(&Step::Sync, path, &file);
        if synced.is_ok() {
            state.files.insert(path.to_owned(), file.clone());
            state.synced.insert(path.to_owned(), file);
        }
        synced
    }

    fn set_modified(&self, path: &Path, unix_s: u64) -> io::Result<()> {
        let mut state = self.state();
        state.operation()?;
        if !state.files.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.modified.insert(path.to_owned(), unix_s);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.operation()?;
        state.has_parent(to)?;
        if state.directories.contains(from) {
            if state.directories.contains(to) {
                return Err(io::ErrorKind::DirectoryNotEmpty.into());
            }
            state.move_all(from, to);
            state.renamed.insert(to.to_owned(), from.to_owned());
            return Ok(());
        }
        let bytes = state.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.files.insert(to.to_owned(), bytes);
        state.forgotten.remove(to);
        match state.synced.remove(from) {
            Some(bytes) => drop(state.synced.insert(to.to_owned(), bytes)),
            None => drop(state.synced.remove(to)),
        }
        if let Some(unix_s) = state.modified.remove(from) {
            state.modified.insert(to.to_owned(), unix_s);
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.operation()?;
        state.synced.remove(path);
        match state.files.remove(path) {
            Some(_) => Ok(()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.operation()?;
        state.has_directory(path)?;
        let inside = |child: &PathBuf| child.parent() == Some(path);
        if state.files.keys().any(inside) || state.directories.iter().any(inside) {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        state.directories.remove(path);
        Ok(())
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        let outcome = state.operation();
        state.has_directory(path)?;
        if outcome.is_ok() {
            state.sync_names(path);
        } else {
            state.forget_names(path);
        }
        outcome
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        let mut state = self.state();
        state.operation()?;
        state.has_parent(path)?;
        state.files.entry(path.to_owned()).or_default();
        if !state.locked.insert(path.to_owned()) {
            return Ok(None);
        }
        Ok(Some(Box::new(SimulatedLock { disk: self.clone(), path: path.to_owned() })))
    }
}

#[derive(Debug)]
struct SimulatedLock {
    disk: SimulatedDisk,
    path: PathBuf,
}

impl Lock for SimulatedLock {
    fn has_its_name(&self) -> io::Result<bool> {
        Ok(self.disk.state().files.contains_key(&self.path))
    }
}

impl Drop for SimulatedLock {
    fn drop(&mut self) {
        self.disk.state().locked.remove(&self.path);
    }
}

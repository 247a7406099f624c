//! The images of files, kept over restarts: to identify a file without build id may take reading
//! 256 MiB in the middle of a drain.
//!
//! Everything is in memory; on disk it is a sled database, private to this daemon and worth nothing
//! but time. sled is open only while it is read at the start and written now and then, on a thread
//! of its own: it panics, or waits for ever, on half of all damaged files (tried with 0.34.7), so
//! it never sees one. A checksum of its files is kept beside them, and where that is wrong they are
//! put aside. No failure here costs more than a log line and the time to learn again.

use crate::file_facts::FileFacts;
use crate::questions::Known;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

/// Files known at most, about 150 bytes each; beyond it those go that were not met since the start.
const FILES_MAX: usize = 4096;
/// sled's files together; larger ones are begun again, since everything is in memory.
const DISK_BYTES_MAX: u64 = 16 << 20;
/// sled's cache: all there is fits.
const CACHE_BYTES: u64 = 256 << 10;
/// sled's unit of writing: its smallest file.
const SEGMENT_BYTES: usize = 64 << 10;
/// Longest time for sled, which takes a hundredth of a second.
const PATIENCE: Duration = Duration::from_secs(10);
/// File modes of the catalogue on disk: only the daemon can read it.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// First line of the checksum file. A different line means another version, which is not read.
const FIRST_LINE: &str = "dcpid catalogue 1";
/// sled's tree of files; its keys are [`FileKey`]s.
const TREE: &str = "files";

/// A file in one state: any write to it changes the key (ctime cannot be set back by its owner).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileKey([u8; KEY_BYTES]);

/// Device, inode, size, and seconds and nanoseconds of mtime and ctime.
const KEY_BYTES: usize = 7 * 8;

impl FileKey {
    /// The key of a file with these facts.
    pub fn of(facts: &FileFacts) -> Self {
        let times = [facts.mtime.0, facts.mtime.1, facts.ctime.0, facts.ctime.1];
        let numbers = [facts.dev, facts.ino, facts.size];
        let mut bytes = [0; KEY_BYTES];
        let fields =
            numbers.into_iter().chain(times.map(i64::cast_unsigned)).flat_map(u64::to_be_bytes);
        bytes.iter_mut().zip(fields).for_each(|(to, from)| *to = from);
        Self(bytes)
    }
}

/// All that is known. Clones are the same catalogue; the default one forgets when it ends.
#[derive(Clone, Debug, Default)]
pub struct Catalogue(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    files: HashMap<FileKey, Known>,
    /// Looked up or learnt since the start.
    met: HashSet<FileKey>,
    /// Not on disk yet.
    unsaved: HashSet<FileKey>,
    /// The copy on disk has entries for forgotten files, and is written from scratch.
    begin_anew: bool,
    /// None: nothing is kept on disk.
    place: Option<PathBuf>,
    /// The path for messages.
    shown: PathBuf,
    /// The directory that `place` is in, which stays that one whatever its path comes to mean.
    _directory: Option<OwnedFd>,
    complaint: Option<String>,
}

impl Catalogue {
    /// The catalogue in this directory, which is made when there is none; `place.sum` beside it has
    /// its checksum. Always succeeds: what cannot be used is put aside, or left alone where another
    /// process holds it, and said in the log.
    pub fn open(place: &Path) -> Self {
        Self::open_as(place, State { shown: place.to_owned(), ..State::default() })
    }

    /// Opens the catalogue of that name in an open directory, whose path is `shown`, so that a
    /// directory or link that another user puts there cannot redirect writes.
    pub fn open_in(directory: OwnedFd, shown: &Path, name: &str) -> Self {
        let place = format!("/proc/self/fd/{}/{name}", directory.as_raw_fd());
        let (shown, directory) = (shown.join(name), Some(directory));
        Self::open_as(Path::new(&place), State { shown, _directory: directory, ..State::default() })
    }

    fn open_as(place: &Path, state: State) -> Self {
        let mut state = State { place: Some(place.to_owned()), ..state };
        match load(place) {
            Ok(files) => state.files = files,
            Err(Failure::Locked) => {
                tracing::warn!(
                    "{} is held by another process; what is learnt now is not kept",
                    state.shown.display()
                );
                state.place = None;
            }
            Err(failure) => {
                tracing::warn!(
                    "{} cannot be used ({failure}); it is put aside and learnt anew",
                    state.shown.display()
                );
                put_aside(place);
            }
        }
        Self(Arc::new(Mutex::new(state)))
    }

    /// The known facts about a file in this state.
    pub fn find(&self, facts: &FileFacts) -> Option<Known> {
        self.find_key(FileKey::of(facts))
    }

    fn find_key(&self, key: FileKey) -> Option<Known> {
        let mut state = self.state();
        let learnt = state.files.get(&key).copied()?;
        state.met.insert(key);
        Some(learnt)
    }

    /// Remembers the image of a file; `before` and `after` are the file's facts before and after it
    /// was read. A file that changed in between, or just before, is not remembered.
    pub fn learn(&self, before: &FileFacts, after: &FileFacts, learnt: Known) {
        let key = FileKey::of(before);
        if key == FileKey::of(after) && before.is_settled() {
            self.state().learn(key, learnt);
        }
    }

    /// Files known.
    pub fn len(&self) -> usize {
        self.state().files.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.state().files.is_empty()
    }

    /// Puts on disk what was learnt since the last time. Takes a while: never called from the
    /// drain.
    pub fn save(&self) {
        let (place, mut anew, files) = {
            let state = self.state();
            let Some(place) = state.place.clone() else { return };
            if state.unsaved.is_empty() && !state.begin_anew {
                return;
            }
            let anew = state.begin_anew || size_on_disk(&place) > DISK_BYTES_MAX;
            let wanted = |key: &FileKey| anew || state.unsaved.contains(key);
            let files = state
                .files
                .iter()
                .filter(|(key, _)| wanted(key))
                .map(|(key, learnt)| (*key, *learnt));
            (place, anew, files.collect::<Vec<_>>())
        };
        let saved = store(&place, anew, &files).or_else(|failure| match failure {
            Failure::Damaged(_) | Failure::Sled(_) => {
                put_aside(&place);
                anew = true;
                let all = self
                    .state()
                    .files
                    .iter()
                    .map(|(key, learnt)| (*key, *learnt))
                    .collect::<Vec<_>>();
                store(&place, false, &all)
            }
            failure => Err(failure),
        });
        let mut state = self.state();
        match saved {
            Ok(()) => {
                for (key, _) in &files {
                    state.unsaved.remove(key);
                }
                state.begin_anew &= !anew;
                state.complaint = None;
            }
            Err(failure) => {
                let complaint = failure.to_string();
                if state.complaint.as_ref() != Some(&complaint) {
                    tracing::warn!(
                        "what was learnt of files is not kept in {}: {complaint}",
                        state.shown.display()
                    );
                }
                state.complaint = Some(complaint);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn learn(&mut self, key: FileKey, learnt: Known) {
        if self.files.len() >= FILES_MAX && !self.files.contains_key(&key) {
            let met = std::mem::take(&mut self.met);
            self.files.retain(|key, _| met.contains(key));
            if self.files.len() >= FILES_MAX / 2 {
                self.files.clear(); // more files than we remember: all are learnt again
            }
            self.unsaved.clear();
            self.begin_anew = true;
        }
        self.met.insert(key);
        if self.files.insert(key, learnt) != Some(learnt) {
            self.unsaved.insert(key);
        }
    }
}

/// Why the files on disk cannot be used.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Damaged(&'static str),
    #[error("another process holds it")]
    Locked,
    #[error("{0}")]
    Sled(String),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("sled did not answer in {PATIENCE:?}")]
    Stuck,
}

impl From<sled::Error> for Failure {
    fn from(error: sled::Error) -> Self {
        match error {
            // sled 0.34.7, config.rs, `try_lock`: any failure to lock is one of this kind with
            // these words.
            sled::Error::Io(error) if error.to_string().contains("could not acquire lock") => {
                Failure::Locked
            }
            sled::Error::Io(error) => Failure::Io(error),
            error => Failure::Sled(error.to_string().lines().next().unwrap_or_default().to_owned()),
        }
    }
}

fn load(place: &Path) -> Result<HashMap<FileKey, Known>, Failure> {
    if !place.exists() {
        return Ok(HashMap::new());
    }
    let expected = read_limited(&sum_path(place), 4096)
        .map_err(|_| Failure::Damaged("its checksum is missing"))?;
    let expected = String::from_utf8(expected).unwrap_or_default();
    if expected.lines().next() != Some(FIRST_LINE) {
        return Err(Failure::Damaged("it is of another version"));
    }
    if checksum(place)? != expected {
        return Err(Failure::Damaged("its checksum is wrong"));
    }
    let directory = place.to_owned();
    apart(move || {
        let tree = sled_at(&directory)?.open_tree(TREE)?;
        let mut files = HashMap::new();
        for entry in tree.iter().take(FILES_MAX) {
            let (key, value) = entry?;
            if let (Ok(key), Some(learnt)) = (
                <[u8; KEY_BYTES]>::try_from(key.as_ref()),
                std::str::from_utf8(&value).ok().and_then(Known::parse),
            ) {
                files.insert(FileKey(key), learnt);
            }
        }
        drop(tree);
        // Opening it may have written.
        write_checksum(&directory)?;
        Ok(files)
    })
}

/// Adds files to those on disk, or replaces these.
fn store(place: &Path, anew: bool, files: &[(FileKey, Known)]) -> Result<(), Failure> {
    if place.exists()
        && !anew
        && checksum(place)? != read_limited(&sum_path(place), 4096).map(text).unwrap_or_default()
    {
        return Err(Failure::Damaged("its checksum is wrong"));
    }
    if anew {
        remove(place)?;
    }
    let (directory, files) = (place.to_owned(), files.to_vec());
    apart(move || {
        // From here until the checksum is written again, whoever finds it learns again.
        remove_file(&sum_path(&directory))?;
        make_private(&directory)?;
        let database = sled_at(&directory)?;
        let tree = database.open_tree(TREE)?;
        for (key, learnt) in files {
            tree.insert(key.0, learnt.text().as_bytes())?;
        }
        database.flush()?;
        drop((tree, database));
        write_checksum(&directory)
    })
}

/// Makes sled's directory before sled does, closed to others: sled leaves its files' modes to the
/// umask.
fn make_private(place: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(place)?;
    // A release before made it with mode 0755.
    std::fs::set_permissions(place, std::fs::Permissions::from_mode(DIRECTORY_MODE))
}

fn sled_at(directory: &Path) -> sled::Result<sled::Db> {
    sled::Config::new()
        .path(directory)
        .cache_capacity(CACHE_BYTES)
        .segment_size(SEGMENT_BYTES)
        .mode(sled::Mode::LowSpace)
        .flush_every_ms(None)
        .open()
}

/// Does it on a thread of its own, which may panic or never end.
fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let (sender, answer) = mpsc::channel();
    std::thread::Builder::new()
        .name("catalogue".into())
        .spawn(move || drop(sender.send(work())))?;
    answer.recv_timeout(PATIENCE).map_err(|error| match error {
        mpsc::RecvTimeoutError::Timeout => Failure::Stuck,
        mpsc::RecvTimeoutError::Disconnected => Failure::Sled("sled panicked".to_owned()),
    })?
}

fn sum_path(place: &Path) -> PathBuf {
    place.with_extension("sum")
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_default()
}

fn write_checksum(place: &Path) -> Result<(), Failure> {
    let temporary = place.with_extension("sum.tmp");
    let sum = checksum(place)?;
    for (path, _) in files_of(place)? {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(FILE_MODE))?;
    }
    remove_file(&temporary)?;
    let mut file = File::options().write(true).create_new(true).mode(FILE_MODE).open(&temporary)?;
    file.write_all(sum.as_bytes())?;
    Ok(std::fs::rename(temporary, sum_path(place))?)
}

/// The text of the checksum file: a line of our own, and name, size and CRC-32C of each of sled's
/// files.
fn checksum(place: &Path) -> Result<String, Failure> {
    let mut files = files_of(place)?;
    files.sort();
    if files.iter().map(|(_, size)| size).sum::<u64>() > 2 * DISK_BYTES_MAX {
        return Err(Failure::Damaged("it is too large"));
    }
    let mut lines = vec![FIRST_LINE.to_owned()];
    for (path, size) in files {
        let sum = crc32c::crc32c(&read_limited(&path, size)?);
        lines.push(format!(
            "{sum:08x} {size} {}",
            path.strip_prefix(place).unwrap_or(&path).display()
        ));
    }
    Ok(lines.join("\n"))
}

/// sled's files and their sizes: in its directory and that of its blobs.
fn files_of(place: &Path) -> io::Result<Vec<(PathBuf, u64)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(place)?.take(64) {
        let entry = entry?;
        let metadata = entry.path().symlink_metadata()?;
        if metadata.is_file() {
            files.push((entry.path(), metadata.len()));
        } else if metadata.is_dir() && entry.path().parent() == Some(place) {
            for entry in std::fs::read_dir(entry.path())?.take(64) {
                let path = entry?.path();
                files.push((path.clone(), path.symlink_metadata()?.len()));
            }
        }
    }
    Ok(files)
}

fn size_on_disk(place: &Path) -> u64 {
    files_of(place).map_or(0, |files| files.iter().map(|(_, size)| size).sum())
}

fn read_limited(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    use io::Read as _;
    let mut bytes = Vec::new();
    File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn remove_file(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn remove(place: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(place) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Out of the way, for somebody to look at; the one put aside before it goes.
fn put_aside(place: &Path) {
    let aside = place.with_extension("damaged");
    let moved = remove(&aside).and_then(|()| std::fs::rename(place, &aside));
    if moved.is_err() {
        let _ = remove(place); // and where even that fails, saving says so
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> FileKey {
        let mut bytes = [0; KEY_BYTES];
        bytes.iter_mut().zip(number.to_be_bytes()).for_each(|(to, from)| *to = from);
        FileKey(bytes)
    }

    fn id(number: u64) -> image::ImageId {
        image::ImageId::from_name("image", &number.to_string())
    }

    /// A catalogue of so many images and one file that is none.
    fn filled(place: &Path, images: u64) -> Catalogue {
        let catalogue = Catalogue::open(place);
        (0..images).for_each(|n| catalogue.state().learn(key(n), Known::Image(id(n))));
        catalogue.state().learn(key(u64::MAX), Known::NotElf);
        catalogue
    }

    /// The owner of the folder above a database put a link in its place, and the catalogue was
    /// written to the link's target.
    #[test]
    fn an_open_directory_stays_that_one_whatever_its_path_comes_to_mean() {
        let directory = tempfile::tempdir().unwrap();
        let (db, gone) = (directory.path().join("db"), directory.path().join("gone"));
        let victim = directory.path().join("victim");
        std::fs::create_dir(&db).unwrap();
        std::fs::create_dir(&victim).unwrap();
        let open = profiledb::storage::open_own_directory(&db, &db).unwrap();
        let catalogue = Catalogue::open_in(open, &db, "catalogue");
        std::fs::rename(&db, &gone).unwrap();
        std::os::unix::fs::symlink(&victim, &db).unwrap();
        catalogue.state().learn(key(1), Known::NotElf);
        catalogue.save();
        assert_eq!(std::fs::read_dir(&victim).unwrap().count(), 0);
        assert_eq!(Catalogue::open(&gone.join("catalogue")).find_key(key(1)), Some(Known::NotElf));
    }

    #[test]
    fn what_was_learnt_is_known_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("catalogue");
        let first = filled(&place, 100);
        first.save();
        for round in 0..5 {
            let again = Catalogue::open(&place);
            assert_eq!(again.len(), 101 + round, "round {round}");
            assert_eq!(again.find_key(key(7)), Some(Known::Image(id(7))));
            assert_eq!(again.find_key(key(u64::MAX)), Some(Known::NotElf));
            assert_eq!(again.find_key(key(5000)), None);
            again.state().learn(key(1000 + round as u64), Known::NotElf);
            again.save();
            again.save(); // nothing new
        }
        assert!(!place.with_extension("damaged").exists());
    }

    /// sled's files had the modes of the umask and were readable by all users.
    #[test]
    fn nobody_else_may_read_what_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("catalogue");
        filled(&place, 3).save();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&place), mode(&sum_path(&place))), (DIRECTORY_MODE, FILE_MODE));
        let files = files_of(&place).unwrap();
        assert!(
            !files.is_empty() && files.iter().all(|(path, _)| mode(path) == FILE_MODE),
            "{files:?}"
        );
        assert_eq!(reopened(&place).len(), 4);
    }

    #[test]
    fn every_write_to_a_file_is_another_key() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "one").unwrap();
        let first = FileFacts::of(&std::fs::metadata(&path).unwrap());
        let catalogue = Catalogue::default();
        catalogue.learn(&first, &first, Known::NotElf);
        assert!(catalogue.is_empty(), "it was changed a moment ago");
        let old = std::time::SystemTime::now() - Duration::from_secs(3600);
        File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
        let second = FileFacts::of(&std::fs::metadata(&path).unwrap());
        assert_ne!(FileKey::of(&first), FileKey::of(&second));
        catalogue.learn(&second, &second, Known::NotElf);
        assert!(catalogue.is_empty(), "its times were set a moment ago");
        let program = FileFacts::of(&std::fs::metadata("/proc/self/exe").unwrap());
        catalogue.learn(&program, &second, Known::NotElf);
        assert!(catalogue.is_empty(), "changed while it was read");
        let shell = FileFacts::of(&std::fs::metadata("/bin/sh").unwrap());
        catalogue.learn(&shell, &shell, Known::NotElf);
        assert_eq!(catalogue.find(&shell), Some(Known::NotElf));
    }

    /// sled itself waits for ever on half of these, and panics on a quarter.
    #[test]
    fn damage_costs_a_rebuild_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("catalogue");
        filled(&place, 300).save();
        let whole = place.with_extension("whole");
        let copy = |from: &Path, to: &Path| {
            remove(to).unwrap();
            let copied =
                std::process::Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
            assert!(copied.success());
        };
        copy(&place, &whole);
        let sum = std::fs::read(sum_path(&place)).unwrap();
        let (database, settings) = (place.join("db"), place.join("conf"));
        let size = std::fs::metadata(&database).unwrap().len();
        let mut damages: Vec<Box<dyn Fn()>> = Vec::new();
        for at in (0..size).step_by(size as usize / 37) {
            let database = &database;
            damages.push(Box::new(move || flip(database, at)));
            damages.push(Box::new(move || {
                File::options().write(true).open(database).unwrap().set_len(at).unwrap()
            }));
        }
        for at in 0..std::fs::metadata(&settings).unwrap().len() {
            let settings = &settings;
            damages.push(Box::new(move || flip(settings, at)));
        }
        for path in [&database, &settings, &sum_path(&place)] {
            let path = path.clone();
            damages.push(Box::new(move || std::fs::remove_file(&path).unwrap()));
        }
        for at in 0..sum.len() as u64 {
            let path = sum_path(&place);
            damages.push(Box::new(move || flip(&path, at)));
        }
        damages.push(Box::new(|| std::fs::write(place.join("blobs/1"), "more").unwrap()));
        for (number, damage) in damages.iter().enumerate() {
            copy(&whole, &place);
            std::fs::write(sum_path(&place), &sum).unwrap();
            damage();
            let catalogue = Catalogue::open(&place);
            assert!(catalogue.is_empty(), "damage {number} was believed");
            assert!(place.with_extension("damaged").exists() && !place.exists());
        }
        let catalogue = filled(&place, 10);
        catalogue.save();
        assert_eq!(Catalogue::open(&place).len(), 11, "it is learnt anew");
        // Damage while the daemon runs.
        flip(&database, 40);
        catalogue.state().learn(key(77), Known::NotElf);
        catalogue.save();
        assert_eq!(Catalogue::open(&place).len(), 12);
    }

    fn flip(path: &Path, at: u64) {
        let mut bytes = std::fs::read(path).unwrap();
        bytes[at as usize] ^= 0x10;
        std::fs::write(path, bytes).unwrap();
    }

    /// One that has something. Threads of sled let go of the files a moment after it is dropped, on
    /// a loaded machine a long one.
    fn reopened(place: &Path) -> Catalogue {
        let mut tries = std::iter::repeat_with(|| Catalogue::open(place)).take(1000);
        tries
            .find(|catalogue| {
                !catalogue.is_empty() || (std::thread::sleep(Duration::from_millis(5)), false).1
            })
            .unwrap()
    }

    #[test]
    fn one_that_another_process_holds_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("catalogue");
        filled(&place, 10).save();
        // Threads of sled let go of the files a moment after it is dropped.
        let wait = || std::thread::sleep(Duration::from_millis(5));
        let held = std::iter::repeat_with(|| sled_at(&place))
            .take(1000)
            .find_map(|held| held.map_err(|_| wait()).ok());
        let held = held.unwrap();
        write_checksum(&place).unwrap();
        let catalogue = Catalogue::open(&place);
        assert!(catalogue.is_empty());
        catalogue.state().learn(key(1), Known::NotElf);
        catalogue.save();
        assert_eq!(catalogue.find_key(key(1)), Some(Known::NotElf), "it works in memory");
        drop(held);
        write_checksum(&place).unwrap();
        let is_there = || Catalogue::open(&place).len() == 11;
        assert!((0..1000).any(|_| is_there() || (wait(), false).1));
    }

    #[test]
    fn where_it_cannot_be_written_it_works_in_memory() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("file"), "").unwrap();
        let catalogue = filled(&directory.path().join("file/catalogue"), 5);
        catalogue.save();
        catalogue.save();
        assert_eq!(catalogue.len(), 6);
        assert!(catalogue.state().complaint.is_some());
    }

    #[test]
    fn files_that_were_not_met_go_first_and_the_number_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("catalogue");
        filled(&place, FILES_MAX as u64 - 1).save();
        let catalogue = reopened(&place);
        assert_eq!(catalogue.len(), FILES_MAX);
        assert!(catalogue.find_key(key(3)).is_some());
        catalogue.state().learn(key(1 << 40), Known::NotElf);
        assert_eq!(catalogue.len(), 2);
        catalogue.save();
        let again = reopened(&place);
        assert_eq!(again.len(), 2, "also on disk");
        (0..3 * FILES_MAX as u64).for_each(|n| again.state().learn(key(n), Known::NotElf));
        assert!(again.len() <= FILES_MAX && again.state().met.len() <= FILES_MAX);
        again.save();
        assert_eq!(reopened(&place).len(), again.len());
    }
}

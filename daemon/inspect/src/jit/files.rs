//! The files that just-in-time compilers leave in `/tmp` for profilers: opened with suspicion, read
//! as they grow.
//!
//! Any user may put a file there, so a file counts only if it is a plain file of the process's own
//! user, on a file system that the kernel itself keeps; nothing here waits for a FIFO, opens a
//! device, follows a link or enters a mount at the last step, or leaves the directory tree that the
//! process sees.

use crate::file_facts::FileFacts;
use image::jit::jitdump::{self, Event, Header, Step};
use image::jit::{Code, CodeMap, DumpPlace, perf_map};
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Bytes read at once.
const PIECE: usize = 256 << 10;
/// Bytes at the start and before the end of what was read, by which a file that was written again
/// is known.
const MARK: usize = 64;

/// Why a file is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoFile {
    /// There is none.
    Absent,
    /// There is one, and it is not believed.
    Refused(&'static str),
}

/// Kinds of file systems (statfs(2)) on which the kernel itself determines a file's owner and
/// content: ext2 to 4, xfs, btrfs, tmpfs, ramfs, overlayfs, f2fs, zfs, bcachefs. On others (FUSE,
/// NFS) a program or another machine does.
const KNOWN_FILE_SYSTEMS: [u64; 9] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x0102_1994,
    0x8584_58f6,
    0x794c_7630,
    0xf2f5_2010,
    0x2fc1_2fc1,
    0xca45_1a4e,
];

/// Opens the file of that name in `/tmp` under the directory `root`, as a process with that root
/// would, if it is a plain file of one of these owners. A mount in `/tmp` is not entered: in a user
/// namespace of his own anybody may mount any file there, and have it read.
pub fn open(root: &Path, name: &str, owners: &[u32]) -> Result<File, NoFile> {
    // Only a handle: opening it has no effect on whatever it is.
    let handle = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let directory = handle | OFlag::O_DIRECTORY;
    let root = OpenOptions::new().read(true).custom_flags(directory.bits()).open(root);
    let root = root.map_err(|_| NoFile::Absent)?;
    let within = |directory: &File, name: &str, flags, resolve| {
        let how = OpenHow::new().flags(flags).resolve(resolve | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        openat2(directory, name, how).map(File::from).map_err(|error| match error {
            nix::errno::Errno::ENOENT | nix::errno::Errno::ENOTDIR => NoFile::Absent,
            nix::errno::Errno::EXDEV => NoFile::Refused("it is mounted there"),
            nix::errno::Errno::ELOOP => NoFile::Refused("it is a symbolic link"),
            _ => NoFile::Refused("it cannot be reached"),
        })
    };
    let tmp = within(&root, "tmp", directory, ResolveFlag::RESOLVE_IN_ROOT)?;
    let here = ResolveFlag::RESOLVE_BENEATH
        | ResolveFlag::RESOLVE_NO_XDEV
        | ResolveFlag::RESOLVE_NO_SYMLINKS;
    let found = within(&tmp, name, handle, here)?;
    trusted(&found, owners)?;
    let again = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(again);
    file.map_err(|_| NoFile::Refused("it cannot be opened"))
}

/// Facts of a file, if it is a plain file of one of these owners on a file system of a known kind.
pub fn trusted(file: &File, owners: &[u32]) -> Result<FileFacts, NoFile> {
    let metadata = file.metadata().map_err(|_| NoFile::Refused("it cannot be looked at"))?;
    if !metadata.is_file() {
        return Err(NoFile::Refused("it is not a plain file"));
    }
    let facts = FileFacts::of(&metadata);
    if !owners.contains(&facts.uid) {
        return Err(NoFile::Refused("it belongs to another user than the process"));
    }
    let kind = rustix::fs::fstatfs(file).map(|found| found.f_type as u64 & 0xffff_ffff);
    if !kind.is_ok_and(|kind| KNOWN_FILE_SYSTEMS.contains(&kind)) {
        return Err(NoFile::Refused("its file system is served by a program or another machine"));
    }
    Ok(facts)
}

/// A receiver of a file's code events.
pub trait CodeSink {
    /// The file was rewritten; everything read from it before is forgotten.
    fn clear(&mut self);
    /// There is code.
    fn load(&mut self, code: &Code<'_>);
    /// Code moved from one address to another.
    fn relocate(&mut self, from: u64, to: u64);
}

impl CodeSink for CodeMap {
    fn clear(&mut self) {
        CodeMap::clear(self);
    }

    fn load(&mut self, code: &Code<'_>) {
        self.insert(code);
    }

    fn relocate(&mut self, from: u64, to: u64) {
        CodeMap::relocate(self, from, to);
    }
}

/// The reading position in a perf map.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MapReader {
    file: (u64, u64),
    at: u64,
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl MapReader {
    /// Reads what the file has grown by, at most `allowance` bytes, which become fewer. False: the
    /// allowance did not suffice. A file that was rewritten is read from its start, and everything
    /// read before is forgotten.
    pub fn read(&mut self, file: &File, allowance: &mut u64, code: &mut impl CodeSink) -> bool {
        let Ok(metadata) = file.metadata() else { return true };
        let metadata = FileFacts::of(&metadata);
        if self.at > 0 && !self.is_continued(file, &metadata) {
            code.clear();
            *self = Self::default();
        }
        self.file = (metadata.dev, metadata.ino);
        let mut bytes = vec![0; PIECE];
        while *allowance > 0 {
            let want = PIECE.min(usize::try_from(*allowance).unwrap_or(PIECE));
            let Ok(read) = file.read_at(bytes.get_mut(..want).unwrap_or_default(), self.at) else {
                return true;
            };
            let piece = bytes.get(..read).unwrap_or_default();
            let whole = perf_map::read(piece, |told| code.load(&told));
            // What was read twice is paid for twice, except for the line that is being written.
            *allowance = allowance.saturating_sub(whole as u64);
            if whole == 0 {
                return read < want; // else a line is longer than what may still be read
            }
            self.advance(piece.get(..whole).unwrap_or_default());
        }
        metadata.size <= self.at
    }

    fn advance(&mut self, whole: &[u8]) {
        if self.at == 0 {
            self.head = whole.get(..MARK.min(whole.len())).unwrap_or_default().to_vec();
        }
        self.tail = whole.get(whole.len().saturating_sub(MARK)..).unwrap_or_default().to_vec();
        self.at += whole.len() as u64;
    }

    fn is_continued(&self, file: &File, metadata: &FileFacts) -> bool {
        let same = |mark: &[u8], at: u64| {
            let mut now = vec![0; mark.len()];
            file.read_exact_at(&mut now, at).is_ok() && now == mark
        };
        self.file == (metadata.dev, metadata.ino)
            && metadata.size >= self.at
            && same(&self.head, 0)
            && same(&self.tail, self.at.saturating_sub(self.tail.len() as u64))
    }
}

/// The reading position in a jitdump.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DumpReader {
    file: (u64, u64),
    /// Read again at each look.
    #[serde(skip)]
    header: Option<Header>,
    at: u64,
    damaged: bool,
}

impl DumpReader {
    /// Whether this is the file that it reads.
    pub fn is_of(&self, metadata: &FileFacts) -> bool {
        self.file == (metadata.dev, metadata.ino)
    }

    /// A reader of that file.
    pub fn new(metadata: &FileFacts) -> Self {
        Self { file: (metadata.dev, metadata.ino), ..Self::default() }
    }

    /// As [`MapReader::read`]; the code itself, which lies between the records' heads, is passed
    /// over without reading where it is long. `number` is that of the dump in [`DumpPlace`].
    pub fn read(
        &mut self,
        (file, number): (&File, u8),
        allowance: &mut u64,
        code: &mut impl CodeSink,
    ) -> bool {
        let mut bytes = vec![0; PIECE / 16];
        if self.at > 0 && self.header.is_none() {
            let read = file.read_at(&mut bytes, 0).unwrap_or(0);
            self.header = jitdump::header(bytes.get(..read).unwrap_or_default());
            self.damaged |= self.header.is_none();
        }
        while *allowance > 0 && !self.damaged {
            let Ok(read) = file.read_at(&mut bytes, self.at) else { return true };
            let passed = self.take(bytes.get(..read).unwrap_or_default(), number, code);
            *allowance = allowance.saturating_sub(passed.min(read as u64));
            if passed == 0 {
                return true;
            }
            self.at = self.at.saturating_add(passed);
        }
        self.damaged || file.metadata().is_ok_and(|metadata| metadata.len() <= self.at)
    }

    /// Takes the records of a piece; how far behind its start the next one begins.
    fn take(&mut self, piece: &[u8], number: u8, code: &mut impl CodeSink) -> u64 {
        let Some(header) = self.header else {
            self.header = jitdump::header(piece);
            // Zeros: the writer has mapped the file, and its buffer is not written yet.
            let is_empty = piece.iter().take(MARK).all(|byte| *byte == 0);
            self.damaged = self.header.is_none() && piece.len() >= jitdump::RECORD_MIN && !is_empty;
            return self.header.map_or(0, |header| header.size);
        };
        let mut at: usize = 0;
        while let Some(rest) = piece.get(at..) {
            match header.next(rest) {
                Step::Record { event, size } => {
                    match event {
                        Event::Load { code: told, bytes_at } => {
                            let record = self.at.saturating_add(at as u64);
                            let bytes = bytes_at
                                .and_then(|into| DumpPlace::new(number, record.checked_add(into)?));
                            code.load(&Code { bytes, ..told });
                        }
                        Event::Move { from, to } => code.relocate(from, to),
                        Event::Other => {}
                    }
                    at = at.saturating_add(usize::try_from(size).unwrap_or(usize::MAX));
                }
                Step::More => break,
                Step::Damaged => {
                    self.damaged = true;
                    break;
                }
            }
        }
        at as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::fs::{MetadataExt as _, symlink};

    fn own() -> [u32; 1] {
        [std::fs::metadata("/proc/self").unwrap().uid()]
    }

    /// A FIFO nobody writes, a link, a device, a directory, another user's file: each was put into
    /// /tmp under the name of a map.
    #[test]
    fn only_a_plain_file_of_the_owner_is_believed() {
        let root = tempfile::tempdir().unwrap();
        let tmp = root.path().join("tmp");
        std::fs::create_dir(&tmp).unwrap();
        std::fs::write(tmp.join("good"), "10 1 f\n").unwrap();
        std::fs::create_dir(tmp.join("directory")).unwrap();
        nix::unistd::mkfifo(&tmp.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        symlink("good", tmp.join("link")).unwrap();
        symlink("/dev/zero", tmp.join("device")).unwrap();
        let open = |name: &str, owners: &[u32]| open(root.path(), name, owners).map(|_| ());
        assert_eq!(open("good", &own()), Ok(()));
        assert_eq!(open("none", &own()), Err(NoFile::Absent));
        for name in ["directory", "fifo"] {
            assert_eq!(
                open(name, &own()),
                Err(NoFile::Refused("it is not a plain file")),
                "{name}"
            );
        }
        for name in ["link", "device"] {
            let refused = NoFile::Refused("it is a symbolic link");
            assert_eq!(open(name, &own()), Err(refused), "{name}");
        }
        for name in ["../tmp/good", "../../good", "/tmp/good"] {
            assert!(open(name, &own()).is_err(), "{name}");
        }
        let refused = NoFile::Refused("it belongs to another user than the process");
        assert_eq!(open("good", &[own()[0] + 1]), Err(refused), "also of root's for another's");
        std::fs::rename(&tmp, root.path().join("moved")).unwrap();
        symlink("/moved", root.path().join("tmp")).unwrap();
        assert_eq!(open("good", &own()), Ok(()), "a link's / is the process's own");
    }

    /// A file system served by a program can report any owner, and need not answer.
    #[test]
    fn a_file_on_a_file_system_of_another_kind_is_not_believed() {
        let file = File::open("/proc/self/status").unwrap();
        assert!(matches!(trusted(&file, &own()), Err(NoFile::Refused(_))));
        assert!(trusted(&tempfile::tempfile().unwrap(), &own()).is_ok());
    }

    fn names(code: &CodeMap, addresses: &[u64]) -> Vec<String> {
        addresses
            .iter()
            .filter_map(|at| code.find(*at))
            .map(|piece| piece.name.to_owned())
            .collect()
    }

    #[test]
    fn a_growing_map_is_read_on_and_a_rewritten_one_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("map");
        let (mut reader, mut code, mut allowance) =
            (MapReader::default(), CodeMap::default(), 1 << 20);
        let mut read = |text: &str, append: bool| {
            let mut file = OpenOptions::new()
                .create(true)
                .append(append)
                .write(true)
                .truncate(!append)
                .open(&path)
                .unwrap();
            file.write_all(text.as_bytes()).unwrap();
            assert!(reader.read(&File::open(&path).unwrap(), &mut allowance, &mut code));
            (names(&code, &[0x10, 0x20, 0x30]), allowance)
        };
        assert_eq!(read("10 1 a\n20 1 b", true).0, ["a"]);
        let (names, left) = read("c\n", true);
        assert_eq!(
            (names, left),
            (vec!["a".to_owned(), "bc".to_owned()], (1 << 20) - 15),
            "no byte is paid for twice"
        );
        assert_eq!(read("", true).1, left, "nothing new costs nothing");
        assert_eq!(read("30 1 shorter\n", false).0, ["shorter"]);
        assert_eq!(
            read("20 1 longer and of another begin\n30 1 e\n", false).0,
            ["longer and of another begin", "e"]
        );
    }

    #[test]
    fn a_sparse_file_costs_no_more_than_its_allowance() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"10 1 a\n").unwrap();
        file.set_len(10 << 30).unwrap();
        let (mut reader, mut code, mut allowance) =
            (MapReader::default(), CodeMap::default(), 3 << 20);
        assert!(!reader.read(&file, &mut allowance, &mut code), "there is more");
        assert_eq!((allowance, names(&code, &[0x10])), (0, vec!["a".to_owned()]));
        assert!(!reader.read(&file, &mut allowance, &mut code) && reader.at == 3 << 20);
    }

    fn dump(records: &[(u64, u64, &str)]) -> Vec<u8> {
        let words =
            |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        let mut bytes = words(&[0x4A69_5444, 1, 40, 62, 0, 1, 0, 0, 0, 0]);
        for (start, size, name) in records {
            let total = 56 + name.len() as u32 + 1 + *size as u32;
            bytes.extend(words(&[0, total, 0, 0, 1, 1]));
            [start, start, size, &0].iter().for_each(|long| bytes.extend(long.to_ne_bytes()));
            bytes.extend(name.as_bytes());
            bytes.push(0);
            bytes.extend(vec![name.as_bytes()[0]; *size as usize]);
        }
        bytes
    }

    #[test]
    fn a_dump_is_read_as_it_grows() {
        let whole =
            dump(&[(0x1000, 100_000, "long"), (0x40000, 16, "short"), (0x1000, 16, "later")]);
        for step in [1, 40, 57, 1000, 100_150, whole.len()] {
            let mut file = tempfile::tempfile().unwrap();
            let (mut reader, mut code, mut allowance) =
                (DumpReader::default(), CodeMap::default(), 1 << 20);
            for piece in whole.chunks(step.max(whole.len() / 50)) {
                file.write_all(piece).unwrap();
                assert!(reader.read((&file, 3), &mut allowance, &mut code));
            }
            assert_eq!(names(&code, &[0x1001, 0x40001]), ["later", "short"], "{step}");
            for (address, byte) in [(0x1001, b'l'), (0x40001, b's')] {
                let place = code.find(address).unwrap().bytes.unwrap();
                let mut bytes = [0; 17];
                file.read_at(&mut bytes, place.offset() - 1).unwrap();
                assert_eq!((place.dump(), bytes[0], &bytes[1..]), (3, 0, &[byte; 16][..]));
            }
        }
    }

    #[test]
    fn a_dump_of_garbage_is_left_alone() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![0xa5; 1 << 20]).unwrap();
        let (mut reader, mut code, mut allowance) =
            (DumpReader::default(), CodeMap::default(), 1 << 20);
        assert!(reader.read((&file, 0), &mut allowance, &mut code) && code.is_empty());
        assert_eq!(allowance, 1 << 20, "not worth another look");
        let mut bytes = dump(&[(0x1000, 16, "a")]);
        bytes.extend([0xff; 4000].iter().chain(&dump(&[(0x2000, 16, "b")])));
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let mut reader = DumpReader::default();
        assert!(reader.read((&file, 0), &mut allowance, &mut code));
        assert_eq!(names(&code, &[0x1001, 0x2001]), ["a"], "what came before the damage counts");
    }
}

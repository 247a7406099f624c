//! Pieces of generated code on their way to the code store: read from jitdumps at once, because a
//! process and its dump may be gone in a moment, and written when some have come together, because
//! the image's excerpt is written anew each time.

use address_spaces::library::{CodeStoreCounts, PiecesWanted};
use image::ImageId;
use inspect::pool::Inspectors;
use inspect::questions::{Dumped, KeepError};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Most bytes that wait to be written; further pieces are not kept.
const WAITING_BYTES_MAX: usize = 16 << 20;
/// Time from one writing of an image to the next: a compiler makes most of its code in the first
/// minute.
const INTERVAL: Duration = Duration::from_secs(60);
/// Images whose last writing is remembered.
const WRITTEN_MAX: usize = 4096;

/// Pieces of the images of all processes.
#[derive(Default)]
pub struct Generated {
    waiting: BTreeMap<ImageId, Code>,
    bytes: usize,
    written: HashMap<ImageId, Instant>,
}

/// Pieces of one image.
pub struct Code {
    machine: u16,
    pieces: BTreeMap<u64, Vec<u8>>,
    due: Instant,
}

impl Code {
    /// `e_machine`.
    pub fn machine(&self) -> u16 {
        self.machine
    }

    /// By offset in the image.
    pub fn pieces(&self) -> &BTreeMap<u64, Vec<u8>> {
        &self.pieces
    }

    /// Bytes of all pieces.
    pub fn bytes(&self) -> u64 {
        self.pieces.values().map(|bytes| bytes.len() as u64).sum()
    }
}

impl Generated {
    /// Reads the pieces, and has them wait.
    pub fn read(
        &mut self,
        wanted: PiecesWanted,
        private: bool,
        inspectors: &Inspectors,
        counts: &CodeStoreCounts,
    ) {
        let PiecesWanted { image, offsets, mut question } = wanted;
        question.private = private;
        let sizes: Vec<u32> = question.pieces.iter().map(|(_, len)| *len).collect();
        let failed = match inspectors.ask(question) {
            Some(Ok(dumped)) => {
                let all = self.add(image, &offsets, &sizes, dumped);
                (!all).then_some(&counts.refused)
            }
            None | Some(Err(KeepError::Gone)) => Some(&counts.gone),
            Some(Err(KeepError::Private)) => Some(&counts.private),
            Some(Err(KeepError::Refused(_))) => Some(&counts.refused),
        };
        if let Some(count) = failed {
            count.fetch_add(1, Relaxed);
        }
    }

    /// False: some are not there, or find no room.
    fn add(&mut self, image: ImageId, offsets: &[u64], sizes: &[u32], dumped: Dumped) -> bool {
        let Dumped { machine, pieces } = dumped;
        let mut all = pieces.len() == offsets.len();
        let due = || {
            let now = Instant::now();
            self.written.get(&image).map_or(now, |written| now.max(*written + INTERVAL))
        };
        let code = self.waiting.entry(image);
        let code = code.or_insert_with(|| Code { machine, pieces: BTreeMap::new(), due: due() });
        for ((offset, size), piece) in offsets.iter().zip(sizes).zip(pieces) {
            let is_whole = piece.0.len() == *size as usize;
            if !is_whole || self.bytes + piece.0.len() > WAITING_BYTES_MAX {
                all = false;
                continue;
            }
            self.bytes += piece.0.len();
            code.pieces.insert(*offset, piece.0);
        }
        if code.pieces.is_empty() {
            self.waiting.remove(&image);
        }
        all
    }

    /// Time until pieces are due; None: none wait.
    pub fn due_in(&self) -> Option<Duration> {
        let next = self.waiting.values().map(|code| code.due).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// The pieces of an image that are due; at the end all are.
    pub fn take_due(&mut self, is_final: bool) -> Option<(ImageId, Code)> {
        let now = Instant::now();
        let due = self.waiting.iter().find(|(_, code)| is_final || code.due <= now);
        let image = due.map(|(image, _)| *image)?;
        let code = self.waiting.remove(&image)?;
        self.bytes = self.bytes.saturating_sub(code.bytes() as usize);
        Some((image, code))
    }

    /// The pieces of an image were written.
    pub fn written(&mut self, image: ImageId) {
        let now = Instant::now();
        if self.written.len() >= WRITTEN_MAX {
            self.written.retain(|_, at| now.duration_since(*at) < INTERVAL);
        }
        if self.written.len() < WRITTEN_MAX {
            self.written.insert(image, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inspect::questions::Raw;

    fn dumped(pieces: &[usize]) -> Dumped {
        Dumped { machine: 62, pieces: pieces.iter().map(|len| Raw(vec![7; *len])).collect() }
    }

    #[test]
    fn pieces_come_together_after_the_first_writing() {
        let image = ImageId::from_name("[jit] x 1", "");
        let mut generated = Generated::default();
        assert!(generated.due_in().is_none() && generated.take_due(true).is_none());
        assert!(generated.add(image, &[10, 20], &[3, 4], dumped(&[3, 4])));
        let (_, code) = generated.take_due(false).unwrap();
        assert_eq!((code.machine(), code.bytes(), generated.bytes), (62, 7, 0));
        generated.written(image);
        assert!(generated.add(image, &[30], &[1], dumped(&[1])));
        assert!(generated.add(image, &[40], &[1], dumped(&[1])));
        assert!(generated.take_due(false).is_none());
        assert!(generated.due_in().is_some_and(|due| due > INTERVAL / 2));
        let (_, code) = generated.take_due(true).unwrap();
        assert_eq!(code.pieces().keys().copied().collect::<Vec<_>>(), [30, 40]);
    }

    /// Reads one piece of a dump in this directory, which the inspector opens by its path.
    fn read(directory: &std::path::Path, private: bool) -> (Generated, CodeStoreCounts) {
        use inspect::file_facts::FileFacts;
        use inspect::jit::files::DumpReader;
        use inspect::open_mapped::MappedAt;
        use inspect::questions::{DumpedCode, FileAt};
        use nix::sys::stat::{major, minor};
        let path = directory.join("jit-1.dump");
        let words: [u32; 10] = [0x4a69_5444, 1, 40, 183, 0, 1, 0, 0, 0, 0];
        let header: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        std::fs::write(&path, [&header[..], b"some code"].concat()).unwrap();
        let facts = FileFacts::of(&path.metadata().unwrap());
        let (major, minor) = (major(facts.dev) as u32, minor(facts.dev) as u32);
        let id = kernel::MappedFileId::Inode { major, minor, inode: facts.ino };
        let bytes = kernel::latin1::Bytes(path.as_os_str().as_encoded_bytes().to_vec());
        let at = MappedAt { pid: std::process::id(), start: 0, end: 0 };
        let question = DumpedCode {
            dumps: vec![FileAt { id, path: bytes, at }],
            dump: DumpReader::new(&facts),
            owners: [facts.uid; 2],
            private: false,
            pieces: vec![(45, 4), (45, 5)],
        };
        let image = ImageId::from_name("[jit] x 1", "");
        let wanted = PiecesWanted { image, offsets: vec![0x1000, 0x2000], question };
        let (mut generated, counts) = (Generated::default(), CodeStoreCounts::default());
        generated.read(wanted, private, &Inspectors::default(), &counts);
        (generated, counts)
    }

    #[test]
    fn pieces_are_read_from_dumps_that_may_be_read() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let counted = |counts: &CodeStoreCounts| {
            [&counts.private, &counts.gone, &counts.refused].map(|count| count.load(Relaxed))
        };
        let set = |mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(directory.path(), mode).unwrap();
        };
        set(0o700);
        let (mut generated, counts) = read(directory.path(), false);
        assert!(generated.take_due(true).is_none());
        assert_eq!(counted(&counts), [1, 0, 0], "a directory of its owner's");
        let (mut generated, counts) = read(directory.path(), true);
        assert_eq!(counted(&counts), [0, 0, 1], "the second piece ends behind the dump's end");
        let (_, code) = generated.take_due(true).unwrap();
        assert_eq!((code.machine(), code.pieces()), (183, &[(0x1000, b"code".to_vec())].into()));
        set(0o755);
        assert!(read(directory.path(), false).0.take_due(true).is_some());
    }

    /// An inspector that was taken over by what it read.
    #[test]
    fn no_more_is_taken_than_was_asked_for_and_has_room() {
        let image = ImageId::from_name("[jit] x 1", "");
        let mut generated = Generated::default();
        assert!(!generated.add(image, &[10, 20], &[3, 4], dumped(&[4, 4, 4])));
        let half = WAITING_BYTES_MAX / 2;
        assert!(!generated.add(image, &[30, 40], &[half as u32; 2], dumped(&[half; 2])));
        let (_, code) = generated.take_due(true).unwrap();
        assert_eq!(code.bytes(), 4 + half as u64);
        let lens: Vec<_> = code.pieces().iter().map(|(at, bytes)| (*at, bytes.len())).collect();
        assert_eq!(lens, [(20, 4), (30, half)]);
    }
}

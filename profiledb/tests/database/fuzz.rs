//! Every decoder, fed with what a stranger could have written: changed bytes under checksums that
//! fit. None may panic, and what is read must be what an encoder writes for it.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::simulated::SimulatedDisk;
use flate2::bufread::DeflateDecoder;
use image::{ImageOffset, KeptRanges};
use model::{Edges, Profile};
use profiledb::codec::{self, put_varint};
use profiledb::envelope::{Kind, open, seal};
use profiledb::shapes;
use profiledb::{CodeStore, Database, check_on};

use crate::code::{elf, one_excerpt, one_image};
use crate::fixture::{HOST, NOW, image, root, segments, small_database, storage, symbol, writer};

/// Seconds of the long run.
const SECONDS: &str = "PROFILEDB_FUZZ_S";

/// xorshift64 (Marsaglia 2003).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() >> 11) as usize % end.max(1)
    }

    /// A number of any magnitude.
    fn number(&mut self) -> u64 {
        self.next() >> self.below(64)
    }

    /// Changes a few bytes: others, more, fewer, some again, a wide number.
    fn change(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..1 + self.below(4) {
            let at = self.below(bytes.len() + 1);
            match self.below(7) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, self.next() as u8),
                2 if at < bytes.len() => drop(bytes.remove(at)),
                3 => {
                    let from = self.below(bytes.len() + 1);
                    let copied: Vec<u8> =
                        bytes[from..].iter().copied().take(self.below(9)).collect();
                    bytes.splice(at..at, copied);
                }
                4 => {
                    let mut wide = Vec::new();
                    put_varint(&mut wide, self.number());
                    bytes.splice(at..at, wide);
                }
                5 if at < bytes.len() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
                _ if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                _ => {}
            }
        }
    }
}

/// A path and the bytes there.
type NamedFile = (PathBuf, Vec<u8>);

/// Seeds and what is known of them.
struct Fuzzer {
    random: Random,
    /// One database with samples, one with code, one with an excerpt, with their files.
    databases: Vec<(SimulatedDisk, Vec<NamedFile>)>,
    /// How often what was changed could be read all the same.
    read: u64,
}

impl Fuzzer {
    fn new(seed: u64) -> Self {
        let databases = [small_database(), one_image(), one_excerpt()].into_iter();
        let files = |disk: &SimulatedDisk| {
            let files = disk.files().into_iter().filter(|(path, _)| !path.ends_with("lock"));
            files.collect::<Vec<_>>()
        };
        let databases = databases
            .into_iter()
            .map(|disk| {
                let files = files(&disk);
                (disk, files)
            })
            .collect();
        Self { random: Random(seed), databases, read: 0 }
    }

    fn run(&mut self) {
        match self.random.below(10) {
            0..=2 => self.samples(),
            3 | 4 => self.edges(),
            5 => self.symbols(),
            6 => self.bytes(),
            7 => self.code(),
            _ => self.file(),
        }
    }

    fn counts(&mut self) -> Vec<(u64, u64)> {
        let (count, mut offset) = (self.random.below(60), 0_u64);
        let mut next = |random: &mut Random| {
            offset = offset.saturating_add(random.number() >> random.below(64));
            (offset, random.number())
        };
        (0..count).map(|_| next(&mut self.random)).collect()
    }

    fn samples(&mut self) {
        let profile = Profile::from_counts(
            self.counts().into_iter().map(|(offset, count)| (ImageOffset(offset), count)),
        );
        let mut bytes = shapes::encode_samples(&profile);
        self.random.change(&mut bytes);
        let entries =
            if self.random.below(4) > 0 { profile.len() as u64 } else { self.random.number() };
        if let Ok(read) = shapes::decode_samples(&bytes, entries) {
            self.read += 1;
            let again = shapes::encode_samples(&read);
            assert_eq!(shapes::decode_samples(&again, entries).unwrap(), read);
        }
    }

    fn edges(&mut self) {
        let pair = |(from, to): (u64, u64)| ((ImageOffset(from), ImageOffset(to)), from.max(1));
        let edges = Edges::from_counts(self.counts().into_iter().map(pair));
        let mut bytes = shapes::encode_edges(&edges);
        self.random.change(&mut bytes);
        if let Ok(read) = shapes::decode_edges(&bytes, edges.len() as u64) {
            self.read += 1;
            let again = shapes::encode_edges(&read);
            assert_eq!(shapes::decode_edges(&again, edges.len() as u64).unwrap(), read);
        }
    }

    fn symbols(&mut self) {
        let symbols = [symbol(1, 5, "a"), symbol(9, 9, "bcd"), symbol(300, 70_000, "e\u{e9}")];
        let mut bytes = codec::encode_symbols(&image(1), &symbols);
        self.random.change(&mut bytes);
        if let Ok(read) = codec::decode_symbols(&image(1), &bytes) {
            self.read += 1;
            assert_eq!(codec::encode_symbols(&image(1), &read), bytes);
        }
    }

    /// Code of another program than it is said to be, or of none, and pieces of it that fit or do
    /// not.
    fn code(&mut self) {
        let mut file = elf(1, 40);
        self.random.change(&mut file);
        let len = file.len() as u64;
        let pieces = [self.random.number() % (len + 1), self.random.number() % (len + 9)];
        let some = || KeptRanges::new(len, vec![0..pieces[0], pieces[0] + 1..pieces[1]]);
        let ranges = if self.random.below(2) == 0 { KeptRanges::of(&file) } else { some() };
        let Ok(ranges) = ranges else { return };
        let pieces =
            ranges.ranges().iter().map(|piece| &file[piece.start as usize..piece.end as usize]);
        let kept = pieces.collect::<Vec<_>>().concat();
        let disk = SimulatedDisk::new();
        let mut store = CodeStore::open(&writer(&disk), 1 << 20).unwrap();
        store.keep(&image(1), &ranges, NOW, &mut |out| out.write_all(&kept)).unwrap();
        if let Ok(read) = Database::open_on(storage(&disk), &root()).unwrap().code(HOST, &image(1))
        {
            self.read += 1;
            let read = read.unwrap();
            let identified = read.identify().unwrap().alone();
            assert_eq!((read.ranges(), read.bytes(), identified), (&ranges, &*kept, image(1)));
        }
    }

    /// A file as it is, changed: seen by a checksum.
    fn bytes(&mut self) {
        let at = self.random.below(self.databases[0].1.len());
        let before = self.databases[0].1[at].1.clone();
        let mut bytes = before.clone();
        self.random.change(&mut bytes);
        assert!(open(&bytes).is_err() || bytes == before);
    }

    /// A file of a database, changed where its meaning is, with checksums that fit; then all of the
    /// database is read.
    fn file(&mut self) {
        let database = self.random.below(self.databases.len());
        let files = &self.databases[database].1;
        let (path, before) = files[self.random.below(files.len())].clone();
        let changed = match open(&before) {
            Ok((Kind::Segment, payload)) => self.segment(payload),
            Ok((kind, payload)) => {
                let mut payload = payload.to_vec();
                self.random.change(&mut payload);
                seal(kind, &payload)
            }
            Err(_) => {
                let mut bytes = before;
                self.random.change(&mut bytes);
                bytes
            }
        };
        let disk = self.databases[database].0.copy();
        disk.put(&path, changed);
        self.read += u64::from(read_all(&disk, &path));
    }

    /// A segment whose directory is not packed, changed in it or in a section.
    fn segment(&mut self, payload: &[u8]) -> Vec<u8> {
        let length = u32::from_le_bytes(payload[..4].try_into().unwrap()) as usize;
        let (directory, mut body) =
            (payload[8..8 + length].to_vec(), payload[8 + length..].to_vec());
        let mut plain = unpacked(&directory);
        if self.random.below(2) == 0 {
            self.random.change(&mut plain);
        } else if !body.is_empty() {
            // One byte of a section, whose checksum is one of the numbers in the directory: found
            // by trying them all.
            let at = self.random.below(body.len());
            let sums: Vec<usize> = (0..plain.len().saturating_sub(3)).collect();
            let (mut begin, mut end, mut place) = (0, 0, None);
            'sections: for from in 0..=at {
                for to in at + 1..=body.len() {
                    let sum = crc32c::crc32c(&body[from..to]).to_le_bytes();
                    if let Some(found) =
                        sums.iter().find(|place| plain[**place..**place + 4] == sum)
                    {
                        (begin, end, place) = (from, to, Some(*found));
                        break 'sections;
                    }
                }
                if from > 40 {
                    break;
                }
            }
            body[at] ^= 1 << self.random.below(8);
            if let Some(place) = place {
                let sum = crc32c::crc32c(&body[begin..end]).to_le_bytes();
                plain[place..place + 4].copy_from_slice(&sum);
            }
        }
        let mut directory = Vec::new();
        put_varint(&mut directory, plain.len() as u64);
        put_varint(&mut directory, plain.len() as u64);
        directory.extend(plain);
        let length = (directory.len() as u32).to_le_bytes();
        let sum = crc32c::crc32c_append(crc32c::crc32c(&length), &directory).to_le_bytes();
        seal(Kind::Segment, &[&length[..], &sum, &directory, &body].concat())
    }
}

/// The bytes of a block.
fn unpacked(block: &[u8]) -> Vec<u8> {
    let varint = |at: usize| {
        let end = at + block[at..].iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
        let value = block[at..end]
            .iter()
            .rev()
            .fold(0_usize, |value, byte| value << 7 | usize::from(byte & 0x7f));
        (value, end)
    };
    let (length, at) = varint(0);
    let (stored, at) = varint(at);
    let mut bytes = block[at..].to_vec();
    if stored != length {
        bytes.clear();
        DeflateDecoder::new(&block[at..]).read_to_end(&mut bytes).unwrap();
    }
    bytes
}

/// Reads and checks all there is; whether nothing was found wrong.
fn read_all(disk: &SimulatedDisk, path: &Path) -> bool {
    let problems = check_on(storage(disk), &root(), u64::MAX).unwrap();
    assert!(problems.iter().all(|problem| !problem.to_string().contains('\n')));
    let Ok(database) = Database::open_on(storage(disk), &root()) else { return false };
    for id in database.epochs(HOST).unwrap() {
        let Ok(epoch) = database.epoch(HOST, &id) else { continue };
        let _ = (epoch.scopes(), epoch.check_ledgers(), epoch.is_current(), epoch.size_bytes());
        for key in epoch.keys().unwrap() {
            let _ = epoch.counts(&key);
        }
        for key in epoch.stacks_keys() {
            let _ = epoch.stacks(&key);
        }
        for image in epoch.images().unwrap_or_default().keys() {
            let _ = epoch.symbols(image);
        }
    }
    let _ = database.code(HOST, &image(1));
    !problems.iter().any(|problem| path.starts_with(&problem.path))
}

#[test]
fn broken_files_break_nothing() {
    let mut fuzzer = Fuzzer::new(0x2545_f491_4f6c_dd1d);
    (0..20_000).for_each(|_| fuzzer.run());
    assert!(
        fuzzer.read > 100,
        "{}: what is changed so much tests nothing but checksums",
        fuzzer.read
    );
    assert!(segments(&small_database()).len() == 3);
}

#[test]
#[ignore = "runs for as long as PROFILEDB_FUZZ_S says, a minute without"]
fn fuzz_for_long() {
    let seconds = std::env::var(SECONDS).map_or(60, |seconds| seconds.parse().unwrap());
    let (started, seed) = (Instant::now(), u64::from(std::process::id()));
    let mut fuzzer = Fuzzer::new(0x9e37_79b9_7f4a_7c15 ^ seed);
    let mut executions = 0_u64;
    while started.elapsed() < Duration::from_secs(seconds) {
        (0..1000).for_each(|_| fuzzer.run());
        executions += 1000;
    }
    println!(
        "{executions} executions in {seconds} s, {} of them read, seed {seed}: no finding",
        fuzzer.read
    );
    assert!(fuzzer.read > 0);
}

//! The code store: what is kept is what comes back, within its limit, and no damaged file is
//! believed.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::simulated::SimulatedDisk;
use image::{ImageId, KeptFile, KeptRanges};
use profiledb::envelope::{Kind, open, seal};
use profiledb::{CodeStore, Damage, Database, DbError, Kept, keep_excerpt};

use crate::fixture::{HOST, NOW, image, leftovers, read, root, small_database, storage, writer};

const DAY_S: u64 = 86_400;

/// A little ELF file of 64 bit: the build id of `image(number)` and `code` bytes that do not
/// compress.
pub fn elf(number: u8, code: usize) -> Vec<u8> {
    let note = [&[4, 0, 0, 0, 20, 0, 0, 0, 3, 0, 0, 0][..], b"GNU\0", &[number + 1; 20]].concat();
    let (note_at, code_at) = (64 + 2 * 56, 64 + 2 * 56 + note.len());
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
    let word = |file: &mut Vec<u8>, value: usize| file.extend((value as u64).to_le_bytes());
    // Entry, program headers, section headers.
    [0, 64, 0].into_iter().for_each(|value| word(&mut file, value));
    file.extend([0, 0, 0, 0, 64, 0, 56, 0, 2, 0, 64, 0, 0, 0, 0, 0]);
    for (kind, at, size) in [(1_u32, code_at, code), (4, note_at, note.len())] {
        file.extend(kind.to_le_bytes());
        file.extend(5_u32.to_le_bytes()); // read and execute
        [at, at, at, size, size, 4].into_iter().for_each(|value| word(&mut file, value));
    }
    file.extend(note);
    let mut numbers = 0x9e37_79b9_7f4a_7c15_u64;
    file.extend((0..code).map(|_| {
        numbers =
            numbers.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (numbers >> 56) as u8
    }));
    file
}

fn keep(store: &mut CodeStore, number: u8, code: usize, now: u64) -> Result<Kept, DbError> {
    let kept = KeptFile::of(&elf(number, code)).unwrap();
    store.keep(&image(number), kept.ranges(), now, &mut |out| out.write_all(kept.bytes()))
}

fn database(disk: &SimulatedDisk) -> Database {
    Database::open_on(storage(disk), &root()).unwrap()
}

fn path(number: u8) -> PathBuf {
    root().join("hosts").join(HOST).join("code").join(format!("{}.code", image(number)))
}

fn kept(disk: &SimulatedDisk) -> Vec<u8> {
    let ids = database(disk).code_images(HOST).unwrap();
    (0..100).filter(|number| ids.contains(&image(*number))).collect()
}

/// A disk with one small image in its store.
pub fn one_image() -> SimulatedDisk {
    let disk = SimulatedDisk::new();
    keep(&mut CodeStore::open(&writer(&disk), 1 << 20).unwrap(), 1, 40, NOW).unwrap();
    disk
}

/// What is kept of an image of `elf(1, 5000)` without 4000 bytes of its code.
fn excerpt() -> KeptFile {
    let kept = KeptFile::of(&elf(1, 5000)).unwrap();
    kept.without(std::slice::from_ref(&(1000..5000))).unwrap()
}

/// A disk with an excerpt of one image in its store.
pub fn one_excerpt() -> SimulatedDisk {
    let disk = SimulatedDisk::new();
    let writer = writer(&disk);
    keep(&mut CodeStore::open(&writer, 1 << 20).unwrap(), 1, 5000, NOW).unwrap();
    keep_excerpt(&writer, &image(1), &excerpt()).unwrap();
    disk
}

/// A recording of 17,000 samples left all code of a compiler. An excerpt stands for it until the
/// image is kept again.
#[test]
fn an_excerpt_takes_the_place_of_the_whole_until_that_is_kept_again() {
    let disk = SimulatedDisk::new();
    let writer = writer(&disk);
    let mut store = CodeStore::open(&writer, 1 << 20).unwrap();
    assert_eq!(
        keep_excerpt(&writer, &image(1), &excerpt()).unwrap(),
        (0, 0),
        "nothing was kept of it"
    );
    let whole = keep(&mut store, 1, 5000, NOW).unwrap().bytes;
    let (before, after) = keep_excerpt(&writer, &image(1), &excerpt()).unwrap();
    assert!(before == whole && after + 3900 < whole, "{before} {after}");
    assert_eq!(database(&disk).code(HOST, &image(1)).unwrap().unwrap(), excerpt());
    assert_eq!(database(&disk).code_bytes(HOST).unwrap()[&image(1)], after);
    assert!(leftovers(&disk).is_empty() && !disk.files().contains_key(&path(1)));
    assert!(profiledb::check_on(storage(&disk), &root(), u64::MAX).unwrap().is_empty());
    drop(store);
    // Another recording has samples elsewhere in it.
    let mut store = CodeStore::open(&writer, 1 << 20).unwrap();
    assert!(!store.has(&image(1)) && store.bytes() == after);
    store.seen(&image(1), NOW + 10 * DAY_S).unwrap();
    keep(&mut store, 1, 5000, NOW + DAY_S).unwrap();
    assert!(store.has(&image(1)) && store.bytes() == whole);
    assert_eq!(database(&disk).code(HOST, &image(1)).unwrap(), KeptFile::of(&elf(1, 5000)).ok());
    assert_eq!(database(&disk).code_bytes(HOST).unwrap()[&image(1)], whole, "the excerpt is gone");
    // What saves nothing is not taken, and the oldest goes for others with its excerpt.
    let all = KeptFile::of(&elf(1, 5000)).unwrap().into_excerpt();
    keep_excerpt(&writer, &image(1), &all).unwrap();
    keep_excerpt(&writer, &image(1), &excerpt()).unwrap();
    drop(CodeStore::open(&writer, 10).unwrap());
    assert!(kept(&disk).is_empty() && database(&disk).code_bytes(HOST).unwrap().is_empty());
}

fn generated(number: u8) -> ImageId {
    ImageId::from_name(&format!("[jit] x {number}"), "")
}

/// Adds pieces of `len` bytes that do not compress, each at a place of its own.
fn add(store: &mut CodeStore, number: u8, pieces: &[(u64, usize)], now: u64) -> Kept {
    let piece = |(at, len): &(u64, usize)| {
        let bytes = elf(*at as u8, *len);
        (0x10_0000 + at * 0x1_0000, bytes[bytes.len() - len..].to_vec())
    };
    let pieces: BTreeMap<u64, Vec<u8>> = pieces.iter().map(piece).collect();
    store.add_pieces(&generated(number), 62, &pieces, now).unwrap()
}

/// The code bytes of what is kept of generated code, without the headers.
fn code_bytes(kept: Option<KeptFile>) -> u64 {
    kept.map_or(0, |kept| kept.ranges().len() - kept.ranges().ranges()[0].end)
}

#[test]
fn pieces_of_generated_code_come_together_in_one_file() {
    let disk = SimulatedDisk::new();
    let mut store = CodeStore::open(&writer(&disk), 1 << 20).unwrap();
    add(&mut store, 1, &[(1, 100), (2, 50)], NOW);
    assert_eq!(code_bytes(database(&disk).code(HOST, &generated(1)).unwrap()), 150);
    drop(store);
    let mut store = CodeStore::open(&writer(&disk), 1 << 20).unwrap();
    let bytes = add(&mut store, 1, &[(2, 50), (3, 7)], NOW + 1).bytes;
    let kept = database(&disk).code(HOST, &generated(1)).unwrap();
    let third = elf(3, 7);
    let piece = kept.as_ref().and_then(|kept| kept.get(0x10_0000 + 3 * 0x1_0000, 7));
    assert_eq!(piece, third.get(third.len() - 7..));
    assert_eq!((code_bytes(kept), store.bytes(), store.len()), (157, bytes, 1));
    assert!(!store.has(&generated(1)) && leftovers(&disk).is_empty());
    assert!(profiledb::check_on(storage(&disk), &root(), u64::MAX).unwrap().is_empty());
    // A damaged file is begun anew.
    let path = store.directory().join(format!("{}.excerpt", generated(1)));
    disk.put(&path, b"damaged".to_vec());
    add(&mut store, 1, &[(4, 9)], NOW + 2);
    assert_eq!(code_bytes(database(&disk).code(HOST, &generated(1)).unwrap()), 9);
}

#[test]
fn generated_code_takes_an_eighth_of_the_store_and_files_stay() {
    let disk = SimulatedDisk::new();
    let mut store = CodeStore::open(&writer(&disk), 80_000).unwrap();
    keep(&mut store, 1, 5000, NOW - 99).unwrap();
    for number in 1..=9 {
        let removed = add(&mut store, number, &[(1, 3000)], NOW + u64::from(number)).removed;
        assert_eq!(removed, if number > 3 { vec![generated(number - 3)] } else { Vec::new() });
    }
    assert!(store.has(&image(1)) && store.len() == 4 && store.bytes() < 15_500);
    let pieces = [(1, elf(1, 20_000))].map(|(at, bytes)| (at << 20, bytes)).into();
    let error = store.add_pieces(&generated(1), 62, &pieces, NOW).unwrap_err();
    assert!(matches!(error, DbError::TooLarge { limit: 10_000, .. }), "{error}");
    assert!(leftovers(&disk).is_empty() && store.len() == 4);
}

/// A copy that was made while the program ran had the code of then for ever.
#[test]
fn generated_code_that_has_grown_is_copied_again() {
    let (from, to) = (SimulatedDisk::new(), SimulatedDisk::new());
    drop(writer(&to));
    let mut store = CodeStore::open(&writer(&from), 1 << 20).unwrap();
    let images = [generated(1)].into();
    let copy = || {
        profiledb::copy_code(&database(&from), HOST, &images, &database(&to)).unwrap();
        code_bytes(database(&to).code(HOST, &generated(1)).unwrap())
    };
    add(&mut store, 1, &[(1, 100)], NOW);
    assert_eq!((copy(), copy()), (100, 100));
    add(&mut store, 1, &[(2, 50)], NOW + 60);
    assert_eq!(copy(), 150);
}

#[test]
fn an_excerpt_is_copied_where_there_is_nothing_better() {
    let (from, to) = (one_excerpt(), SimulatedDisk::new());
    let target = || database(&to);
    drop(writer(&to));
    let images = [image(1)].into();
    assert_eq!(profiledb::copy_code(&database(&from), HOST, &images, &target()).unwrap(), 1);
    assert_eq!(target().code(HOST, &image(1)).unwrap().unwrap(), excerpt());
    assert_eq!(profiledb::copy_code(&database(&from), HOST, &images, &target()).unwrap(), 0);
    keep(&mut CodeStore::open(&writer(&to), 1 << 20).unwrap(), 1, 5000, NOW).unwrap();
    assert_eq!(
        profiledb::copy_code(&database(&from), HOST, &images, &target()).unwrap(),
        0,
        "the whole stays"
    );
}

#[test]
fn what_is_kept_comes_back_and_is_in_no_epochs_way() {
    let disk = small_database();
    let before = read(&disk).unwrap();
    let writer = writer(&disk);
    let mut store = CodeStore::open(&writer, 1 << 20).unwrap();
    assert!(store.is_empty() && !store.has(&image(1)));
    let report = keep(&mut store, 1, 5000, NOW).unwrap();
    assert!(report.removed.is_empty() && store.has(&image(1)));
    assert_eq!((store.len(), store.bytes()), (1, report.bytes));
    let back = database(&disk).code(HOST, &image(1)).unwrap().unwrap();
    assert_eq!(back, KeptFile::of(&elf(1, 5000)).unwrap());
    assert_eq!(back.to_bytes(1 << 20).unwrap(), elf(1, 5000), "all of this file is kept");
    assert_eq!(database(&disk).code(HOST, &image(2)).unwrap(), None);
    assert_eq!(database(&disk).code("other-host", &image(1)).unwrap(), None);
    assert_eq!(read(&disk).unwrap(), before, "epochs are as they were");
    assert_eq!(disk.files()[&path(1)].len() as u64, report.bytes);
    drop(store);
    let again = CodeStore::open(&writer, 1 << 20).unwrap();
    assert_eq!((again.has(&image(1)), again.bytes()), (true, report.bytes));
}

#[test]
fn a_file_that_compresses_is_smaller_than_what_is_kept() {
    let disk = SimulatedDisk::new();
    let mut file = elf(1, 50_000);
    let code = file.len() - 50_000..file.len();
    file[code].fill(0x90);
    let kept = KeptFile::of(&file).unwrap();
    let mut store = CodeStore::open(&writer(&disk), 1 << 20).unwrap();
    let report =
        store.keep(&image(1), kept.ranges(), NOW, &mut |out| out.write_all(kept.bytes())).unwrap();
    assert!(report.bytes < 1000, "{report:?}");
    assert_eq!(database(&disk).code(HOST, &image(1)).unwrap().unwrap(), kept);
}

/// Which image was last seen is kept on the disk, exact to a day; the oldest go first.
#[test]
fn a_full_store_lets_go_what_was_not_seen_for_the_longest_time() {
    let disk = SimulatedDisk::new();
    let writer = writer(&disk);
    let mut store = CodeStore::open(&writer, 10_000).unwrap();
    for (number, now) in [(1, NOW), (2, NOW + 1), (3, NOW + 2)] {
        assert_eq!(keep(&mut store, number, 3000, now).unwrap().removed, []);
    }
    store.seen(&image(1), NOW + DAY_S - 1).unwrap();
    assert_eq!(
        keep(&mut store, 4, 3000, NOW + 5).unwrap().removed,
        [image(1)],
        "seen on the same day counts once"
    );
    store.seen(&image(2), NOW + DAY_S + 1).unwrap();
    store.seen(&image(77), NOW).unwrap(); // not kept: no error
    assert_eq!(keep(&mut store, 5, 3000, NOW + DAY_S + 2).unwrap().removed, [image(3)]);
    assert_eq!(kept(&disk), [2, 4, 5]);
    // The next daemon, with a smaller store.
    drop(store);
    let store = CodeStore::open(&writer, 7000).unwrap();
    assert_eq!((kept(&disk), store.len()), (vec![2, 5], 2));
    assert!(store.bytes() <= 7000);
}

#[test]
fn an_image_larger_than_the_store_is_refused_and_nothing_goes_for_it() {
    let disk = SimulatedDisk::new();
    let mut store = CodeStore::open(&writer(&disk), 4000).unwrap();
    keep(&mut store, 1, 3000, NOW).unwrap();
    let error = keep(&mut store, 2, 5000, NOW).unwrap_err();
    assert!(matches!(error, DbError::TooLarge { limit: 4000, .. }), "{error}");
    assert_eq!((kept(&disk), leftovers(&disk)), (vec![1], vec![]));
}

#[test]
fn a_file_that_changes_while_it_is_copied_is_not_kept() {
    let disk = SimulatedDisk::new();
    let mut store = CodeStore::open(&writer(&disk), 1 << 20).unwrap();
    let ranges = KeptRanges::of(&elf(1, 300)).unwrap();
    for len in [0, 299, 10_000] {
        let error = store
            .keep(&image(1), &ranges, NOW, &mut |out| out.write_all(&vec![0; len]))
            .unwrap_err();
        assert!(matches!(error, DbError::Io { .. }), "{error}");
        assert_eq!((kept(&disk), leftovers(&disk)), (vec![], vec![]));
    }
}

#[test]
fn every_failure_leaves_the_image_kept_or_not() {
    for skip in 0.. {
        let disk = SimulatedDisk::new();
        let writer = writer(&disk);
        let mut store = CodeStore::open(&writer, 7000).unwrap();
        keep(&mut store, 1, 3000, NOW).unwrap();
        keep(&mut store, 2, 3000, NOW + 1).unwrap();
        let before = disk.operations();
        disk.stop_after(skip);
        let outcome = keep(&mut store, 3, 3000, NOW + 2);
        let needed = disk.operations() - before;
        disk.heal();
        let store = CodeStore::open(&writer, 7000).unwrap();
        assert!(leftovers(&disk).is_empty(), "the next one removes what was left");
        let there = kept(&disk);
        assert!(there.contains(&2) && store.bytes() <= 7000, "{there:?}");
        for number in there {
            assert!(database(&disk).code(HOST, &image(number)).unwrap().is_some());
        }
        if outcome.is_ok() {
            assert!(
                skip >= 6,
                "a file is written, forced out, dated, and renamed: {needed} operations"
            );
            return;
        }
    }
}

fn must_be_seen(disk: &SimulatedDisk, path: &Path, bytes: Vec<u8>, what: &str) {
    let damaged = disk.copy();
    damaged.put(path, bytes);
    let error = database(&damaged).code(HOST, &image(1)).map(|_| ()).expect_err(what);
    assert!(matches!(error, DbError::Corrupt { .. }), "{what}: {error}");
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    assert!(!error.to_string().contains('\n'), "{error}");
}

/// A whole file of the store and an excerpt, each with where it is.
fn both() -> [(SimulatedDisk, PathBuf, Kind); 2] {
    [
        (one_image(), path(1), Kind::Code),
        (one_excerpt(), path(1).with_extension("excerpt"), Kind::Excerpt),
    ]
}

#[test]
fn every_flip_and_every_cut_is_seen() {
    for (disk, path, _) in both() {
        let bytes = disk.files()[&path].clone();
        for at in 0..bytes.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] ^= flip;
                must_be_seen(&disk, &path, damaged, &format!("flip of byte {at}"));
            }
            must_be_seen(&disk, &path, bytes[..at].to_vec(), &format!("cut at {at}"));
        }
    }
}

/// The checksums only tell of accidents: whoever can write them can write anything, and it must be
/// an error or a kept file.
#[test]
fn payloads_of_a_stranger_with_right_checksums() {
    for (disk, path, kind) in both() {
        let payload = disk.files()[&path][32..].to_vec();
        let mut read = 0;
        // The head and the start of the stream; all that follows is of the same kind.
        for at in 0..payload.len().min(300) {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut changed = payload.clone();
                changed[at] = value;
                let damaged = disk.copy();
                damaged.put(&path, seal(kind, &changed));
                match database(&damaged).code(HOST, &image(1)) {
                    Ok(found) => read += usize::from(found.is_some()),
                    Err(error) => assert!(matches!(error, DbError::Corrupt { .. }), "{error}"),
                }
            }
            must_be_seen(&disk, &path, seal(kind, &payload[..at]), &format!("payload cut at {at}"));
        }
        must_be_seen(&disk, &path, seal(kind, &[&payload[..], b"\0"].concat()), "a byte more");
        let other = if kind == Kind::Code { Kind::Excerpt } else { Kind::Code };
        [Kind::Unknown(3), other]
            .into_iter()
            .for_each(|other| must_be_seen(&disk, &path, seal(other, &payload), "another kind"));
        assert!(
            kind == Kind::Excerpt || read < payload.len(),
            "{read} of {} bytes may be others",
            payload.len()
        );
    }
}

#[test]
fn a_file_under_another_images_name_is_seen() {
    let disk = one_image();
    let bytes = disk.files()[&path(1)].clone();
    disk.put(&path(2), bytes);
    let error = database(&disk).code(HOST, &image(2)).unwrap_err();
    assert!(matches!(error, DbError::Corrupt { damage: Damage::Misplaced, .. }), "{error}");
    // Also when the name inside agrees, and the code is another image's.
    let other = SimulatedDisk::new();
    let wrong = KeptFile::of(&elf(2, 40)).unwrap();
    let mut store = CodeStore::open(&writer(&other), 1 << 20).unwrap();
    store.keep(&image(1), wrong.ranges(), NOW, &mut |out| out.write_all(wrong.bytes())).unwrap();
    let error = database(&other).code(HOST, &image(1)).unwrap_err();
    assert!(matches!(error, DbError::Corrupt { damage: Damage::Misplaced, .. }), "{error}");
}

/// A header may claim that a thousand bytes become terabytes, or that the file was that long.
#[test]
fn no_length_of_a_stranger_is_believed() {
    let disk = one_image();
    let id = image(1).to_string();
    let number = |mut value: u64| {
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    };
    let payload = |numbers: &[u64]| {
        let numbers = numbers.iter().flat_map(|value| number(*value));
        [&[id.len() as u8][..], id.as_bytes(), &numbers.collect::<Vec<u8>>(), &[3, 0]].concat()
    };
    for (story, numbers) in [
        ("a range longer than may be kept", &[u64::MAX, 1, 0, 1 << 40][..]),
        ("ranges past the end of all numbers", &[u64::MAX, 2, u64::MAX, 1, 1, 1]),
        ("a range outside of the file", &[10, 1, 5, 6]),
        ("an empty range", &[10, 1, 5, 0]),
        ("ranges that touch", &[10, 2, 1, 2, 0, 3]),
        ("ranges that are not there", &[10, 200]),
        ("fewer bytes than ranges", &[10, 1, 0, 10]),
        ("no range", &[10, 0]),
    ] {
        must_be_seen(&disk, &path(1), seal(Kind::Code, &payload(numbers)), story);
    }
    // A file of an exabyte whose first page is kept is no trouble, only no ELF file.
    must_be_seen(
        &disk,
        &path(1),
        seal(Kind::Code, &payload(&[1 << 60, 0])),
        "an exabyte of nothing",
    );
}

#[test]
fn on_a_real_disk() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("db");
    let program = std::env::current_exe().unwrap();
    let file = std::fs::File::open(&program).unwrap();
    let id: ImageId = image::identify_file(&file).unwrap();
    let writer = profiledb::Writer::open(&root, HOST).unwrap();
    let mut store = CodeStore::open(&writer, 256 << 20).unwrap();
    let ranges = KeptRanges::of_file(&file).unwrap();
    let report = store
        .keep(&id, &ranges, NOW, &mut |out: &mut dyn Write| {
            ranges.copy(&file, |piece| out.write_all(piece))
        })
        .unwrap();
    let path = store.directory().join(format!("{id}.code"));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), report.bytes);
    assert!(report.bytes < ranges.len(), "{report:?}");
    let back = Database::open(&root).unwrap().code(HOST, &id).unwrap().unwrap();
    assert_eq!(back, KeptFile::of(&std::fs::read(&program).unwrap()).unwrap());
    drop(store);
    // As of the day it was kept, not of the day this test runs.
    let mut store = CodeStore::open(&writer, report.bytes + 10).unwrap();
    store.seen(&id, NOW + 2 * DAY_S).unwrap();
    let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
    assert_eq!(modified.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs(), NOW + 2 * DAY_S);
    assert!(Path::new(&path).is_file());
}

#[test]
fn a_damaged_file_keeps_no_other_from_being_copied() {
    let disk = one_image();
    let mut store = CodeStore::open(&writer(&disk), 1 << 20).unwrap();
    for number in [0, 2] {
        keep(&mut store, number, 40, NOW).unwrap();
    }
    drop(store);
    let mut bytes = disk.files()[&path(1)].clone();
    *bytes.last_mut().unwrap() ^= 1;
    disk.put(&path(1), bytes);
    let copy = SimulatedDisk::new();
    drop(writer(&copy));
    let images = (0..3).map(image).collect();
    let (source, target) = (database(&disk), database(&copy));
    let (copied, failed) = profiledb::copy_readable_code(&source, HOST, &images, &target).unwrap();
    assert_eq!((copied, kept(&copy)), (2, vec![0, 2]));
    assert!(
        matches!(&failed[..], [DbError::Corrupt { path: named, .. }] if *named == path(1)),
        "{failed:?}"
    );
    assert!(matches!(
        profiledb::copy_code(&source, HOST, &images, &target),
        Err(DbError::Corrupt { .. })
    ));
}

/// A database that a stranger made had bytes behind the compressed ones, under a checksum that
/// fits: a copy of it had an image that nobody could read.
#[test]
fn code_that_cannot_be_decoded_is_not_copied() {
    let disk = one_image();
    let (_, payload) =
        open(&disk.files()[&path(1)]).map(|(kind, all)| (kind, all.to_vec())).unwrap();
    disk.put(&path(1), seal(Kind::Code, &[&payload[..], b"x"].concat()));
    let copy = SimulatedDisk::new();
    drop(writer(&copy));
    let (source, target) = (database(&disk), database(&copy));
    let images = [image(1)].into();
    let (copied, failed) = profiledb::copy_readable_code(&source, HOST, &images, &target).unwrap();
    assert_eq!((copied, kept(&copy)), (0, vec![]));
    let is_told = |error: &DbError| {
        matches!(error, DbError::Corrupt { path: named, damage: Damage::TrailingBytes, .. }
            if *named == path(1))
    };
    assert!(matches!(&failed[..], [error] if is_told(error)), "{failed:?}");
}

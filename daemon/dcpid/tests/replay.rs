//! Recordings of real hosts through drain, resolution and merge, without privilege.
//!
//! `tests/recordings/NAME.dcpid-input` is what a host told, `NAME.db` the database that it becomes,
//! byte by byte. A difference is a mistake or to be reviewed: `BLESS=1 cargo nextest run -p dcpid
//! --test replay` writes the databases again. What reports show of them is in
//! `analysis/dcpi/tests/cli/replayed.rs`.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests panic to fail")]

use dcpid::player::{Replayed, replay};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use profiledb::Database;
use sampling::recording::tape::{Recording, RecordingError};
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A compile storm; containers in namespaces and control groups of their own; node with a perf map;
/// a program of four threads.
const NAMES: [&str; 4] = ["compile-storm", "containers", "node-jit", "threads"];
/// Recordings with labels, registered regions and rules, whose samples `attribution.rs` holds
/// against seconds.
const ATTRIBUTED: [&str; 5] = ["apart", "generated", "node", "process-numbers", "rebuilt"];

fn recordings() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings")
}

fn bytes_of(name: &str) -> Vec<u8> {
    std::fs::read(recordings().join(format!("{name}.dcpid-input"))).unwrap()
}

fn read(bytes: &[u8]) -> Result<Recording, RecordingError> {
    Recording::read(bytes, Path::new("FILE"))
}

/// Files of a directory by their paths in it.
fn files(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                let bytes = std::fs::read(&path).unwrap();
                found.insert(path.strip_prefix(root).unwrap().to_owned(), bytes);
            }
        }
    }
    found
}

fn replayed(recording: Recording) -> (Replayed, BTreeMap<PathBuf, Vec<u8>>) {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("db");
    let done = replay(recording, &root).unwrap();
    assert!(profiledb::check(&root).unwrap().is_empty());
    (done, files(&root))
}

#[test]
fn recordings_become_the_same_bytes_each_time() {
    for name in NAMES {
        let (done, written) = replayed(read(&bytes_of(name)).unwrap());
        assert_eq!(done.unanswered, 0, "{name}: the recording answers every question");
        assert_eq!(replayed(read(&bytes_of(name)).unwrap()), (done, written.clone()), "{name}");
        let golden = recordings().join(format!("{name}.db"));
        if std::env::var_os("BLESS").is_some() {
            let _ = std::fs::remove_dir_all(&golden);
            for (path, bytes) in &written {
                let path = golden.join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, bytes).unwrap();
            }
        }
        let golden = files(&golden);
        let names = |files: &BTreeMap<PathBuf, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&written), names(&golden), "{name}");
        for (path, bytes) in &written {
            assert!(*bytes == golden[path], "{name}: {} differs", path.display());
        }
    }
}

/// Every sample that the samplers counted is in a profile or under a reason.
#[test]
fn replayed_ledgers_close_and_hold_what_was_taken() {
    for name in NAMES {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("db");
        let done = replay(read(&bytes_of(name)).unwrap(), &root).unwrap();
        let epoch = Database::open(&root).unwrap().epoch("host", &done.epoch).unwrap();
        let ledgers = &epoch.meta().ledgers;
        let of_event = ledgers.of("cpu-clock").map(|(_, ledger)| ledger);
        let (mut taken, mut merged) = (0, 0);
        for ledger in of_event {
            assert!(ledger.closes(), "{name}: {ledger:?}");
            taken += ledger.taken;
            merged += ledger.merged;
        }
        assert_eq!(taken, done.taken, "{name}");
        assert!(merged * 100 >= taken * 97, "{name}: {merged} of {taken} have an image");
    }
}

/// Processes that are gone before anybody can look at them: all samples have an image.
#[test]
fn in_a_compile_storm_every_sample_finds_its_image() {
    let (done, _) = replayed(read(&bytes_of("compile-storm")).unwrap());
    let directory = tempfile::tempdir().unwrap();
    let _ = replay(read(&bytes_of("compile-storm")).unwrap(), directory.path()).unwrap();
    let epoch = Database::open(directory.path()).unwrap().epoch("host", &done.epoch).unwrap();
    let ledger = epoch.meta().ledgers.sum("cpu-clock");
    assert!(ledger.merged > 500 && ledger.merged == ledger.taken, "{ledger:?}");
}

#[test]
fn a_recording_that_is_read_and_written_is_the_same() {
    for name in NAMES.into_iter().chain(ATTRIBUTED) {
        let first = read(&bytes_of(name)).unwrap();
        let mut bytes = Vec::new();
        first.write(&mut bytes).unwrap();
        let second = read(&bytes).unwrap();
        assert_eq!((&first.start, &first.steps), (&second.start, &second.steps), "{name}");
        assert_eq!(replayed(first), replayed(second), "{name}");
    }
}

/// What a damaged copy costs is one line, whatever is damaged. The first ten bytes of gzip (time
/// and system of the writer) are under no checksum: a change of those leaves all else as it was.
#[test]
fn a_cut_or_flipped_recording_is_refused() {
    let bytes = bytes_of("threads");
    let whole = read(&bytes).unwrap();
    let mut random = fastrand::Rng::with_seed(23);
    for len in (0..bytes.len()).filter(|len| *len < 64 || random.u8(..) < 6) {
        let error = read(&bytes[..len]).unwrap_err().to_string();
        assert!(error.contains("FILE") && error.contains("; "), "{len}: {error}");
        assert!(!error.contains('\n'), "{len}: {error}");
    }
    let flips: Vec<usize> = (0..bytes.len()).filter(|at| *at < 64 || random.u8(..) < 12).collect();
    for at in flips {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << random.u32(..8);
        match read(&flipped) {
            Ok(same) => assert!(at < 10 && same.steps == whole.steps, "byte {at}"),
            Err(error) => assert!(!error.to_string().contains('\n'), "byte {at}: {error}"),
        }
    }
    let mut longer = bytes.clone();
    longer.extend(&bytes);
    assert!(read(&longer).unwrap_err().to_string().contains("more follows"));
}

fn text_of(bytes: &[u8]) -> String {
    let mut text = String::new();
    GzDecoder::new(bytes).read_to_string(&mut text).unwrap();
    text
}

fn packed(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

/// Whole files with other numbers and lines in them, as somebody might send: whatever they tell,
/// there is a database or one line.
#[test]
fn a_recording_of_invented_numbers_is_merged_or_refused() {
    let mut random = fastrand::Rng::with_seed(5);
    let (mut merged, mut refused) = (0, 0);
    let names = [&NAMES[..], &ATTRIBUTED].concat();
    for round in 0..300 {
        let text = text_of(&bytes_of(names[round % names.len()]));
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(1..lines.len());
            match random.u8(..10) {
                0 => drop(lines.remove(at)),
                1 => lines.swap(at, 1),
                2 => lines.insert(at, lines[random.usize(1..lines.len())].clone()),
                _ => lines[at] = with_another_number(&lines[at], &mut random),
            }
        }
        let Ok(recording) = read(&packed(&lines.join("\n"))) else {
            refused += 1;
            continue;
        };
        let directory = tempfile::tempdir().unwrap();
        match replay(recording, &directory.path().join("db")) {
            Ok(_) => merged += 1,
            Err(error) => {
                assert!(!format!("{error:#}").contains('\n'), "{error:#}");
                refused += 1;
            }
        }
    }
    assert!(merged > 30 && refused > 30, "{merged} merged, {refused} refused");
}

/// The line with one of its numbers replaced by one at a limit.
fn with_another_number(line: &str, random: &mut fastrand::Rng) -> String {
    let starts: Vec<usize> = line
        .match_indices(|c: char| c.is_ascii_digit())
        .map(|(at, _)| at)
        .filter(|at| *at > 0 && matches!(line.as_bytes()[at - 1], b':' | b'[' | b','))
        .collect();
    if starts.is_empty() {
        return line.to_owned();
    }
    let start = starts[random.usize(..starts.len())];
    let rest = &line[start..];
    let end = start + rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let numbers = ["0", "1", "4294967295", "9223372036854775807", "18446744073709551615", "-1"];
    format!("{}{}{}", &line[..start], numbers[random.usize(..numbers.len())], &line[end..])
}

#[test]
fn another_format_or_file_is_refused_by_name() {
    for (text, said) in [
        ("{\"dcpid_input\":2}\n", "format 2"),
        ("{\"something\":1}\n", "its first line is not dcpid's"),
        ("", "it is empty"),
        ("{\"dcpid_input\":1}\n", "it has no start"),
        ("{\"dcpid_input\":1}\n{\"step\":{}}\n", "line 2"),
    ] {
        let error = read(&packed(text)).unwrap_err().to_string();
        assert!(error.contains(said), "{text}: {error}");
    }
    let whole = text_of(&bytes_of("threads"));
    let (without_end, _) = whole.trim_end().rsplit_once('\n').unwrap();
    let error = read(&packed(without_end)).unwrap_err().to_string();
    assert!(error.contains("its end is missing"), "{error}");
}

/// A bomb: 200 MB of blanks in 200 KB.
#[test]
fn text_without_end_is_refused() {
    let bomb = packed(&" ".repeat(200 << 20));
    let error = read(&bomb).unwrap_err().to_string();
    assert!(bomb.len() < 1 << 20 && error.contains("bytes of text"), "{error}");
}

#[test]
fn dcpid_replays_without_privilege_and_refuses_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let recording = recordings().join("threads.dcpid-input");
    let dcpid = |file: &Path, db: Option<&Path>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dcpid"));
        command.arg("--replay").arg(file);
        if let Some(db) = db {
            command.arg("--db").arg(db);
        }
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let db = directory.path().join("db");
    let (code, log) = dcpid(&recording, Some(&db));
    assert!(code == Some(0) && log.contains("replayed"), "{log}");
    assert_eq!(files(&db), files(&recordings().join("threads.db")), "as the library does");
    let cut = directory.path().join("cut");
    std::fs::write(&cut, &bytes_of("threads")[..5000]).unwrap();
    let none = directory.path().join("none");
    for (file, db, said) in [
        (cut.as_path(), Some(none.as_path()), "is no whole recording"),
        (Path::new("/does/not/exist"), Some(none.as_path()), "cannot read /does/not/exist"),
        (Path::new("/dev/null"), Some(none.as_path()), "is no whole recording"),
        (recording.as_path(), None, "--db"),
    ] {
        let (code, error) = dcpid(file, db);
        assert_eq!((code, error.matches('\n').count()), (Some(2), 1), "{error}");
        assert!(error.contains(said), "{error}");
        assert!(!none.exists(), "nothing is made of a recording that is not whole");
    }
}

//! Recordings of the daemon's input, which may come from untrusted sources.

use crate::{memory_directory, repository};
use dcpid::player::replay;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use sampling::recording::tape::Recording;
use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;

/// First bytes of gzip (RFC 1952).
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Bytes of text of a seed: the start and the end of a recording.
const SEED_TEXT_BYTES: usize = 24 << 10;

/// A recording, as it is or as its text.
pub fn recording(bytes: &[u8]) {
    let packed = if bytes.starts_with(&GZIP) { bytes.to_vec() } else { packed(bytes) };
    let recording = match Recording::read(&packed[..], Path::new("FILE")) {
        Ok(recording) => recording,
        Err(error) => return assert!(!error.to_string().contains('\n'), "{error}"),
    };
    let directory = memory_directory();
    let root = directory.path().join("db");
    match replay(recording, &root) {
        Ok(_) => assert!(profiledb::check(&root).unwrap().is_empty()),
        Err(error) => assert!(!format!("{error:#}").contains('\n'), "{error:#}"),
    }
}

fn packed(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::none());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

/// Parts of the recordings of this repository: the first steps, and the answers.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let directory = fs::read_dir(repository("daemon/dcpid/tests/recordings")).unwrap();
    let mut paths: Vec<_> = directory.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut seeds = vec![packed(b"{\"dcpid_input\":1}\n")];
    for path in paths.iter().filter(|path| path.extension().is_some_and(|e| e == "dcpid-input")) {
        let mut text = String::new();
        GzDecoder::new(&fs::read(path).unwrap()[..]).read_to_string(&mut text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let [head, start, steps @ .., answers] = &lines[..] else { continue };
        let mut left = SEED_TEXT_BYTES.saturating_sub(head.len() + start.len() + answers.len());
        let fits = |step: &&&str| {
            let fits = step.len() < left;
            left -= if fits { step.len() } else { 0 };
            fits
        };
        let steps: Vec<&str> = steps.iter().filter(fits).copied().collect();
        seeds.push([&[*head, *start][..], &steps, &[*answers]].concat().join("\n").into_bytes());
        seeds.push([*head, *start, "{\"answers\":{}}"].join("\n").into_bytes());
    }
    seeds
}

//! Copies of a live database by programs that know nothing of it.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use image::KeptFile;
use profiledb::{CodeStore, Database, Writer};

use crate::code::elf;
use crate::fixture::{EpochState, HOST, NOW, full_delta, image, read_database, start};

const COPIES: u64 = 200;
/// Merges while a copy is made: three folds of four segments each.
const MERGES_PER_COPY: u64 = 12;
/// Simulated seconds that a copy takes: folded segments go while later copies are made.
const COPY_S: u64 = 100;

/// A `cp -a` of a live database lists a directory, and opens the files a moment later. A fold
/// between the two had removed what was listed, and what it had written in its place was not: the
/// copy had a gap, without a word about how to make a better one.
#[test]
fn every_copy_of_a_live_database_is_whole() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("db");
    // Merges that may be begun, merges acknowledged, copies made.
    let (allowed, merged, copied, done) = (
        AtomicU64::new(MERGES_PER_COPY),
        AtomicU64::new(0),
        AtomicU64::new(0),
        AtomicBool::new(false),
    );
    let mut writer = Writer::open(&root, HOST).unwrap();
    writer.begin(start(NOW), false).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Too small for all images: some go for others.
            let mut store = CodeStore::open(&writer, 8 << 10).unwrap();
            for round in 0.. {
                while merged.load(SeqCst) >= allowed.load(SeqCst) && !done.load(SeqCst) {
                    std::thread::yield_now();
                }
                if done.load(SeqCst) {
                    return;
                }
                let now = NOW + copied.load(SeqCst) * COPY_S;
                writer.merge(&full_delta(now, 3)).unwrap();
                writer.fold(u64::MAX, now).unwrap();
                let number = (round % 50) as u8;
                let kept = KeptFile::of(&elf(number, 1000)).unwrap();
                store
                    .keep(&image(number), kept.ranges(), now, &mut |out| {
                        out.write_all(kept.bytes())
                    })
                    .unwrap();
                if round % 100 == 99 {
                    writer.next_epoch(start(now)).unwrap();
                }
                merged.fetch_add(1, SeqCst);
            }
        });
        let ended = Ended(&done);
        for number in 0..COPIES {
            allowed.fetch_add(MERGES_PER_COPY, SeqCst);
            let before = merged.load(SeqCst);
            let target = directory.path().join(format!("copy-{number}"));
            if number % 4 == 3 {
                tar(&root, &target)
            } else {
                cp(&root, &target)
            }
            copied.fetch_add(1, SeqCst);
            let problems = profiledb::check(&target).unwrap();
            assert!(
                problems.iter().all(|problem| !problem.is_damage()),
                "copy {number}: {problems:?}"
            );
            let samples: u64 = {
                let all = read_database(&Database::open(&target).unwrap()).unwrap();
                all.values().map(EpochState::sampled).sum()
            };
            assert!(samples >= before * 10, "copy {number}: {samples} samples of {before} merges");
            std::fs::remove_dir_all(&target).unwrap();
            // One fold for each copy at least, however slow the disk is.
            while merged.load(SeqCst) < 4 * (number + 1) {
                std::thread::yield_now();
            }
        }
        drop(ended);
    });
}

/// Ends the writer, also when an assertion fails.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Both say that a temporary file has gone, or changed, when one does, and copy the others.
fn cp(from: &Path, to: &Path) {
    Command::new("cp").arg("-a").arg(from).arg(to).stderr(Stdio::null()).status().unwrap();
}

fn tar(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    let mut packs = Command::new("tar");
    packs.arg("-C").arg(from).args(["-cf", "-", "."]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut packs = packs.spawn().unwrap();
    let unpacks = Command::new("tar")
        .arg("-C")
        .arg(to)
        .args(["-xf", "-"])
        .stdin(packs.stdout.take().unwrap())
        .status();
    assert!(unpacks.unwrap().success());
    packs.wait().unwrap();
}

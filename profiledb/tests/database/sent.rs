//! What was sent on of a database: each merge once, however segments are folded between.

use std::collections::BTreeMap;
use std::path::Path;

use image::{ImageId, ImageKind, ImageOffset};
use model::{Frame, Ledger, Profile, Stacks, Thread, Value};
use profiledb::{
    Database, DbError, Delta, Epoch, EpochId, EpochStart, EventMeta, ImageRecord, ProfileKey,
    Scope, Sent, StacksKey, Writer,
};

const START: u64 = 1_763_697_753;
const PERIOD: u64 = 1000;
const BYTES_MAX: u64 = 1 << 20;

fn id() -> ImageId {
    ImageId::from_build_id(&[7]).unwrap()
}

fn key() -> ProfileKey {
    ProfileKey::samples(id(), "cpu-clock", PERIOD, Scope::default())
}

fn of_stacks() -> StacksKey {
    StacksKey { event: "cpu-clock".into(), scope: Scope::default() }
}

/// A writer, and what it has merged.
struct Merged {
    writer: Writer,
    epoch: EpochId,
    now_unix_s: u64,
    samples: u64,
}

impl Merged {
    fn begin(root: &Path) -> Self {
        let mut writer = Writer::open(root, "h").unwrap();
        let event = EventMeta { name: "cpu-clock".into(), period: PERIOD, ..EventMeta::default() };
        let start = EpochStart { events: vec![event], now_unix_s: START, ..EpochStart::default() };
        let epoch = writer.begin(start, true).unwrap();
        Self { writer, epoch, now_unix_s: START, samples: 0 }
    }

    /// Merges this many samples and stacks at one place, a minute later.
    fn merge(&mut self, samples: u64) {
        self.now_unix_s += 60;
        let record = ImageRecord {
            id: id(),
            kind: ImageKind::File,
            name: "program".into(),
            path: "/program".into(),
            size_bytes: None,
            first_seen_unix_s: START,
            last_seen_unix_s: self.now_unix_s,
        };
        let counts = Profile::from_counts([(ImageOffset(16), samples)]);
        let mut stacks = Stacks::new();
        for _ in 0..samples {
            let frame = Frame::Code(id(), ImageOffset(16));
            stacks.add_stack([frame], &Thread::default(), Value::of_one(PERIOD));
        }
        let mut delta = Delta { now_unix_s: self.now_unix_s, ..Delta::default() };
        delta.images.insert(id(), record);
        delta.profiles.insert(key(), counts.into());
        delta.stacks = BTreeMap::from([(of_stacks(), stacks)]);
        let of = Ledger { taken: samples, merged: samples, ..Ledger::default() };
        self.samples += samples;
        delta.ledgers.entry("cpu-clock", PERIOD).add(&of);
        self.writer.merge(&delta).unwrap();
    }

    /// Folds all that can be folded, so much later that the folded files are gone.
    fn fold(&mut self) {
        for now_unix_s in [self.now_unix_s + 200_000, self.now_unix_s + 300_000] {
            while self.writer.fold(u64::MAX, now_unix_s).unwrap().more {}
        }
    }
}

fn parts(sent: &Sent, db: &Database, epoch: &EpochId, bytes_max: u64) -> Vec<u64> {
    let mut parts = Vec::new();
    while let Some(part) = sent.unsent(db, "h", epoch, bytes_max).unwrap() {
        part.check_ledgers().unwrap();
        let samples = samples(&part);
        assert_eq!(part.total(&key()).unwrap(), samples);
        let stacks = part.stacks(&of_stacks()).unwrap().total();
        assert_eq!((stacks.stacks, stacks.weight), (samples, samples * PERIOD));
        if Sent::has_counts(&part) {
            parts.push(samples);
        }
        sent.mark(&part).unwrap();
    }
    parts
}

fn samples(part: &Epoch) -> u64 {
    part.profile(&key()).unwrap().total()
}

#[test]
fn each_merge_is_sent_once_whatever_is_folded_between() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("db");
    let copies = directory.path().join("sent");
    let mut merged = Merged::begin(&root);
    let db = Database::open(&root).unwrap();
    let mut sum = 0;
    // Of each round three merges are sent. The fourth comes later, and then all are one file, which
    // in every second round has merges that were sent beside merges that were not.
    for round in 1..8 {
        let sent = Sent::open(&copies).unwrap();
        (0..3).for_each(|merge| merged.merge(round * 10 + merge));
        let bytes_max = if round % 3 == 0 { 1 } else { BYTES_MAX };
        sum += parts(&sent, &db, &merged.epoch, bytes_max).iter().sum::<u64>();
        assert_eq!(sum, merged.samples, "round {round}");
        merged.merge(5);
        merged.fold();
        if round % 2 == 0 {
            sum += parts(&sent, &db, &merged.epoch, BYTES_MAX).iter().sum::<u64>();
            assert_eq!(sum, merged.samples, "round {round}");
        }
    }
    let segments = |root: &Path| {
        let epoch = root.join("hosts/h").join(merged.epoch.to_string());
        std::fs::read_dir(epoch).unwrap().count()
    };
    assert!(segments(&root) < 15 && segments(&copies) <= 30, "{}", segments(&root));
}

#[test]
fn what_is_sent_at_once_is_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("db");
    let mut merged = Merged::begin(&root);
    (1..=5).for_each(|samples| merged.merge(samples));
    let db = Database::open(&root).unwrap();
    let sent = Sent::open(&directory.path().join("sent")).unwrap();
    assert_eq!(parts(&sent, &db, &merged.epoch, 1), [1, 2, 3, 4, 5]);
    assert!(matches!(
        Sent::open(&directory.path().join("sent")).map(drop),
        Err(DbError::Locked { .. })
    ));
}

#[test]
fn without_the_copies_a_mixed_segment_is_an_error_and_nothing_is_sent_twice() {
    let directory = tempfile::tempdir().unwrap();
    let (root, copies) = (directory.path().join("db"), directory.path().join("sent"));
    let mut merged = Merged::begin(&root);
    let db = Database::open(&root).unwrap();
    let sent = Sent::open(&copies).unwrap();
    (0..4).for_each(|_| merged.merge(3));
    assert_eq!(parts(&sent, &db, &merged.epoch, BYTES_MAX), [12]);
    (0..4).for_each(|_| merged.merge(3));
    merged.fold();
    let epoch = copies.join("hosts/h").join(merged.epoch.to_string());
    std::fs::remove_file(epoch.join("2-2.segment")).unwrap();
    let missing = sent.unsent(&db, "h", &merged.epoch, BYTES_MAX).map(drop).unwrap_err();
    assert!(matches!(missing, DbError::Corrupt { .. }), "{missing}");
    // Copies of epochs that the database does not have any more are removed.
    std::fs::remove_dir_all(root.join("hosts/h").join(merged.epoch.to_string())).unwrap();
    assert!(sent.unsent(&db, "h", &merged.epoch, BYTES_MAX).unwrap().is_none());
    sent.forget_gone(&db, "h").unwrap();
    assert!(!epoch.exists());
}

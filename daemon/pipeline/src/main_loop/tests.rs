use super::*;
use crate::batches::Batches;
use abi::Entry;
use address_spaces::kernel_text::KernelText;
use address_spaces::mapped_files::Image;
use events::EventSpec;
use kernel::{Drained, MappedFileId, Record, RecordKind, TimedRecord};
use persistence::database_thread::epoch_start;
use profiledb::{Database, EpochId, Writer};
use std::path::Path;
use std::sync::Arc;
use wire::{Reply, Request};

const PID: u32 = (1 << abi::PID_BITS) - 9;

fn text(status: &wire::Status) -> String {
    crate::status_text::text(status, kernel::clock::unix_s())
}

/// Five resolved samples and two without a mapping.
fn batch() -> (Vec<Entry>, Drained, Vec<TimedRecord>) {
    let file = MappedFileId::BuildId(vec![7; 20]);
    let record = Record {
        pid: PID,
        start: 0x1000,
        len: 0x1000,
        file_offset: 0,
        path: b"/bin/x".to_vec(),
        file,
    };
    let entries = vec![Entry::new(0, 0x1010, PID, 5), Entry::new(0, 0x9000, PID, 2)];
    (
        entries,
        Drained { taken: 7, ..Drained::default() },
        vec![TimedRecord { time_ns: 1, kind: RecordKind::Mmap(record) }],
    )
}

/// Runs a pipeline on a recording of `batches` batches while `client` asks it; the client's end
/// stops it.
fn run<Client: Future<Output = ()>>(
    root: &Path,
    batches: usize,
    client: impl FnOnce(mpsc::Sender<Asked>) -> Client,
) -> anyhow::Result<()> {
    run_at_cost(root, batches, 0.0, Default::default(), client)
}

/// The same, where a sample costs so much, in the first drain of a new term, with these settings.
fn run_at_cost<Client: Future<Output = ()>>(
    root: &Path,
    batches: usize,
    ns_per_sample: f64,
    settings: settings::args::Settings,
    client: impl FnOnce(mpsc::Sender<Asked>) -> Client,
) -> anyhow::Result<()> {
    run_from(root, (batches, |_| ()), ns_per_sample, settings, client)
}

/// The same, beginning with the pipeline as `prepare` leaves it.
fn run_from<Client: Future<Output = ()>>(
    root: &Path,
    (batches, prepare): (usize, impl FnOnce(&mut Pipeline<Batches>)),
    ns_per_sample: f64,
    settings: settings::args::Settings,
    client: impl FnOnce(mpsc::Sender<Asked>) -> Client,
) -> anyhow::Result<()> {
    let machine = Machine::probe().unwrap();
    let events = vec![EventSpec::parse("cpu-clock").unwrap().plan(1)];
    let mut writer = Writer::open(root, "here").unwrap();
    let start = epoch_start(&machine, &events, Some("load test".into()));
    let epoch = writer.begin(start.clone(), false).unwrap().to_string();
    let recording = Batches::new((0..batches).map(|_| batch()).collect());
    let collector = Collector::new(
        recording,
        KernelText::new(&machine.kernel_release, machine.kernel_id, Default::default()),
        None,
        &[events[0].period],
        Default::default(),
        Default::default(),
    );
    let drain_interval = (ns_per_sample > 0.0).then(|| "10ms".to_owned());
    let (db, cost) = (Some(root.to_owned()), Cost { ns_per_sample, ..Cost::default() });
    let settings = settings::args::Settings { db, drain_interval, ..settings };
    let config = Config::new(settings, Some(Path::new("/dev/null"))).unwrap();
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let (done_sender, done) = mpsc::unbounded_channel();
        let flusher = Flusher::start(
            writer,
            start,
            (root.to_owned(), config.retention, Default::default()),
            done_sender,
        )
        .unwrap();
        let (asked_sender, asked) = mpsc::channel(4);
        let ((stop_sender, stop), (_reloads, reload)) = (mpsc::channel(1), mpsc::channel(1));
        let mut pipeline = Pipeline::new(
            Parts {
                config,
                machine,
                events,
                skid: None,
                collector,
                flusher,
                epoch,
                epoch_clock: EpochClock::new(0, 0, Default::default()),
                killed: Vec::new(),
                opens_on: None,
            },
            cost,
        );
        pipeline.merges.last_merges_pause = Duration::from_millis(1);
        pipeline.rates.age_term(crate::governor::TERM);
        prepare(&mut pipeline);
        let client = async {
            client(asked_sender).await;
            stop_sender.send(()).await.unwrap();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            result = pipeline.run(asked, done, (stop, reload), Alarm::new().unwrap()) => result,
            () = client => unreachable!(),
        }
    })
}

/// A database that cannot be made again.
fn replace_by_a_file(root: &Path) {
    std::fs::remove_dir_all(root).unwrap();
    std::fs::write(root, "").unwrap();
}

fn endings(root: &Path, epoch: &str) -> model::Endings {
    let epoch = Database::open(root).unwrap().epoch("here", &epoch.parse().unwrap()).unwrap();
    epoch.meta().facts.get().unwrap()
}

async fn ask(asked: &mpsc::Sender<Asked>, request: Request) -> Reply {
    let (reply, answer) = oneshot::channel();
    asked.send((request, reply)).await.unwrap();
    answer.await.unwrap()
}

fn on_disk(root: &Path, epoch: &str) -> u64 {
    let epoch: EpochId = epoch.parse().unwrap();
    let epoch = Database::open(root).unwrap().epoch("here", &epoch).unwrap();
    let known = epoch.profiles().unwrap().into_iter().filter(|key| !key.image.is_unresolved());
    known.map(|key| epoch.profile(&key).unwrap().total()).sum()
}

#[test]
fn requests_are_answered_after_they_are_done() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("db");
    run(&root, 4, |asked| {
        let root = root.clone();
        async move {
            let status = ask(&asked, Request::Status).await.status.unwrap();
            assert_eq!(
                (status.samples.taken, status.samples.pending, status.samples.merged),
                (7, 5, 0)
            );
            let flushed = ask(&asked, Request::Flush).await;
            let first = flushed.epoch.unwrap();
            assert_eq!(flushed.merged, Some(10));
            assert_eq!(on_disk(&root, &first), 10, "on disk when the answer comes");
            assert!(!endings(&root, &first).ended, "it would be known that it was killed");
            let second =
                ask(&asked, Request::Epoch { label: Some("next".into()) }).await.epoch.unwrap();
            assert_ne!(first, second);
            assert_eq!(
                on_disk(&root, &first),
                15,
                "samples before the call belong to the old epoch"
            );
            let status = ask(&asked, Request::Status).await.status.unwrap();
            let samples = status.samples;
            let unresolved: u64 = samples.unresolved.values().sum();
            assert_eq!((samples.taken, samples.merged + samples.pending + unresolved), (28, 28));
            assert_eq!(status.epoch, second);
            ask(&asked, Request::Quit).await;
            assert_eq!(on_disk(&root, &second), 5);
        }
    })
    .unwrap();
    let last = Database::open(&root).unwrap().epochs("here").unwrap().pop().unwrap();
    assert_eq!(endings(&root, last.as_str()), model::Endings { ended: true, killed: Vec::new() });
}

/// Samples of 30 s had no time after the clock had been set back by as much, and looked as if they
/// had been taken in one moment.
#[test]
fn a_clock_that_is_set_back_loses_no_samples_and_no_time() {
    thread_local! {
        static NOW: std::cell::Cell<(u64, u64)> = const { std::cell::Cell::new((0, 0)) };
    }
    const SECOND: u64 = 1_000_000_000;
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("db");
    NOW.set(kernel::clock::both_ns());
    let fake = |pipeline: &mut Pipeline<Batches>| {
        let clock = EpochClock::reading(|| NOW.get(), 0, model::ClockSteps::default());
        pipeline.parts.epoch_clock = clock;
    };
    run_from(&root, (4, fake), 0.0, Default::default(), |asked| {
        let root = root.clone();
        async move {
            for set_back_s in [0, 30, 0] {
                let (wall, monotonic) = NOW.get();
                let passed = (wall + 10 * SECOND - set_back_s * SECOND, monotonic + 10 * SECOND);
                NOW.set(passed);
                ask(&asked, Request::Flush).await;
            }
            let epoch = ask(&asked, Request::Status).await.status.unwrap().epoch;
            let samples = on_disk(&root, &epoch);
            let epoch: EpochId = epoch.parse().unwrap();
            let epoch = Database::open(&root).unwrap().epoch("here", &epoch).unwrap();
            let lengths = epoch.slices().into_iter().map(|one| one.until_unix_s - one.since_unix_s);
            let lengths: Vec<u64> = lengths.collect();
            assert!(
                lengths.len() == 3 && lengths.iter().all(|s| (9..=11).contains(s)),
                "{lengths:?}"
            );
            assert_eq!(samples, 15);
            epoch.check_ledgers().unwrap();
            let model::ClockSteps(steps) = epoch.meta().facts.get().unwrap();
            assert_eq!(steps.iter().map(|step| step.back_s).collect::<Vec<_>>(), [30]);
        }
    })
    .unwrap();
}

/// A change of rate began an epoch: what `dcpictl epoch --label` had begun was over after a minute,
/// and what followed had no label.
#[test]
fn a_rate_that_costs_too_much_is_lowered_and_the_labelled_epoch_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("db");
    run_at_cost(&root, 9, 1e12, Default::default(), |asked| {
        let root = root.clone();
        async move {
            let before = ask(&asked, Request::Status).await.status.unwrap();
            let after = loop {
                let status = ask(&asked, Request::Status).await.status.unwrap();
                if status.events[0].period != before.events[0].period {
                    break status;
                }
                tokio::task::yield_now().await;
            };
            assert_eq!(after.events[0].period, 1_000_000_000 / 28);
            assert!(after.overhead.share.unwrap() > after.overhead.budget.unwrap());
            let epoch = before.epoch;
            assert_eq!(ask(&asked, Request::Flush).await.epoch.unwrap(), epoch);
            let meta = Database::open(&root)
                .unwrap()
                .epoch("here", &epoch.parse().unwrap())
                .unwrap()
                .meta()
                .clone();
            assert_eq!(meta.label.as_deref(), Some("load test"));
            let periods: Vec<u64> =
                meta.ledgers.of("cpu-clock").map(|(period, _)| period).collect();
            assert_eq!(periods, [1_000_000_000 / 5200, 1_000_000_000 / 28]);
            assert_eq!(meta.period_changes["cpu-clock"][0].period, periods[1]);
        }
    })
    .unwrap();
}

#[test]
fn what_takes_too_much_memory_does_less_and_the_epoch_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("db");
    let (memory_limit, overhead_budget) = (Some("1MiB".to_owned()), Some("off".to_owned()));
    let settings = settings::args::Settings { memory_limit, overhead_budget, ..Default::default() };
    run_at_cost(&root, 3, 1.0, settings, |asked| {
        let root = root.clone();
        async move {
            let after = loop {
                let status = ask(&asked, Request::Status).await.status.unwrap();
                if status.restraint.changes > 0 {
                    break status;
                }
                tokio::task::yield_now().await;
            };
            assert_eq!(after.restraint.doing, "counts only");
            assert!(
                text(&after).contains("counts only, no snapshots: it took too much"),
                "{}",
                text(&after)
            );
            let epoch = ask(&asked, Request::Flush).await.epoch.unwrap();
            let epoch =
                Database::open(&root).unwrap().epoch("here", &epoch.parse().unwrap()).unwrap();
            assert_eq!(
                epoch.meta().facts.get::<model::Restraints>().unwrap().0[0].doing,
                "counts only"
            );
        }
    })
    .unwrap();
}

#[test]
fn a_label_is_in_force_when_the_answer_comes() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("db");
    run(&root, 3, |asked| {
        let root = root.clone();
        async move {
            let label =
                |pid, label: &str| Request::Label { pid, start_time: None, label: label.into() };
            let me = Some(std::process::id());
            assert_eq!(ask(&asked, label(me, "run")).await, Reply::default());
            for (request, why) in [
                (label(me, "a/b"), "contains a slash; choose another label"),
                (label(None, "x"), "pid namespace; run both in one"),
                (label(Some(0), "x"), "pid namespace; run both in one"),
                (label(Some(u32::MAX), "x"), "no process has the number"),
            ] {
                let error = ask(&asked, request).await.error.unwrap();
                assert!(error.contains(why), "{error}");
            }
            let status = ask(&asked, Request::Status).await.status.unwrap();
            assert_eq!(status.apart.labels, ["run"]);
            assert!(text(&status).contains("labels      run\n"), "{}", text(&status));
            let epoch = ask(&asked, Request::Flush).await.epoch.unwrap();
            // The recording's process is none of ours.
            assert_eq!(on_disk(&root, &epoch), 15);
        }
    })
    .unwrap();
}

/// More images than a segment takes failed every merge, for ever.
#[test]
fn more_images_than_a_segment_takes_are_on_disk_when_the_answer_comes() {
    const IMAGES: u64 = 30_000;
    let flood = |pipeline: &mut Pipeline<Batches>| {
        let pending = &mut pipeline.parts.collector.pending;
        for number in 1..=IMAGES {
            let image = Arc::new(Image {
                id: image::ImageId::from_build_id(&number.to_le_bytes()).unwrap(),
                kind: image::ImageKind::File,
                name: "x".into(),
                path: "/tmp/x".into(),
                size_bytes: None,
                procedures: None,
            });
            pending.count(&image, 0, None, [(image::ImageOffset(8), 3)].into_iter());
            pending.account(0).unwrap().taken += 3;
        }
    };
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("db");
    run_from(&root, (3, flood), 0.0, Default::default(), |asked| {
        let root = root.clone();
        async move {
            let flushed = ask(&asked, Request::Flush).await;
            assert_eq!((flushed.error, flushed.merged), (None, Some(3 * IMAGES + 5)));
            let epoch = flushed.epoch.unwrap();
            assert_eq!(on_disk(&root, &epoch), 3 * IMAGES + 5);
            let open = Database::open(&root).unwrap();
            let open = open.epoch("here", &epoch.parse().unwrap()).unwrap();
            assert!(open.meta().merges >= 2, "{} merges", open.meta().merges);
            open.check_ledgers().unwrap();
            let samples = ask(&asked, Request::Status).await.status.unwrap().samples;
            let unresolved: u64 = samples.unresolved.values().sum();
            assert_eq!(samples.taken, samples.merged + samples.pending + unresolved);
        }
    })
    .unwrap();
}

/// Nothing was sampled, so nothing was written, and `dcpictl quit` was told that it failed.
#[test]
fn a_quit_with_nothing_to_write_is_answered() {
    let directory = tempfile::tempdir().unwrap();
    run(&directory.path().join("db"), 0, |asked| async move {
        assert_eq!(ask(&asked, Request::Quit).await.error, None);
    })
    .unwrap();
}

/// A daemon that was told to end waited for its next merge, ten minutes, when call stacks came
/// behind the last one.
#[test]
fn what_comes_while_the_last_merge_is_written_is_merged_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("db");
    let end_late = |pipeline: &mut Pipeline<Batches>| {
        pipeline.parts.collector.drain();
        let behind = pipeline.parts.collector.pending.take();
        pipeline.parts.collector.drain();
        pipeline.stop();
        pipeline.start_merge();
        pipeline.parts.collector.pending.absorb(behind);
    };
    run_from(&root, (2, end_late), 0.0, Default::default(), |_| async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        panic!("the daemon goes on");
    })
    .unwrap();
    let database = Database::open(&root).unwrap();
    let epoch = database.epochs("here").unwrap().pop().unwrap();
    assert_eq!(on_disk(&root, &epoch.to_string()), 10);
}

/// After the database or one of its epochs had been removed, every flush failed until dcpid was
/// restarted, which lost the samples in memory.
#[test]
fn a_database_that_was_removed_is_made_anew_with_all_that_waits() {
    for what in ["", "hosts", "hosts/here", "hosts/here/EPOCH", "hosts/here/lock", "format"] {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("db");
        run(&root, 4, |asked| {
            let root = root.clone();
            async move {
                let first = ask(&asked, Request::Flush).await.epoch.unwrap();
                let gone = root.join(what.replace("EPOCH", &first));
                if gone.is_dir() {
                    std::fs::remove_dir_all(gone).unwrap()
                } else {
                    std::fs::remove_file(gone).unwrap()
                }
                let flushed = ask(&asked, Request::Flush).await;
                assert_eq!((flushed.error, flushed.merged), (None, Some(10)), "{what}");
                // A new epoch of the same second has the same name.
                let has_first = ["hosts/here/lock", "format"].contains(&what);
                assert_eq!(
                    on_disk(&root, &flushed.epoch.unwrap()),
                    if has_first { 10 } else { 5 },
                    "{what}"
                );
                assert!(
                    matches!(Writer::open(&root, "here"), Err(profiledb::DbError::Locked { .. })),
                    "{what}"
                );
                let next = ask(&asked, Request::Epoch { label: None }).await.epoch.unwrap();
                ask(&asked, Request::Quit).await;
                assert_eq!(on_disk(&root, &next), 5, "{what}");
                assert!(profiledb::check(&root).unwrap().is_empty(), "{what}");
            }
        })
        .unwrap();
    }
}

/// Between the removal and the next merge another daemon may have made a database there: it is not
/// written to.
#[test]
fn a_database_that_another_daemon_made_in_its_place_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("db");
    run(&root, 3, |asked| {
        let root = root.clone();
        async move {
            ask(&asked, Request::Flush).await;
            std::fs::remove_dir_all(&root).unwrap();
            let other = Writer::open(&root, "here").unwrap();
            let error = ask(&asked, Request::Flush).await.error.unwrap();
            assert!(
                error.contains("another daemon writes this database")
                    && error.contains("keeps the samples")
            );
            assert!(Database::open(&root).unwrap().epochs("here").unwrap().is_empty());
            drop(other);
            assert_eq!(ask(&asked, Request::Flush).await.error, None, "it has gone");
        }
    })
    .unwrap();
}

/// A daemon whose disk had gone was told to end, tried its last merge without pause or limit, and
/// never ended.
#[test]
fn a_daemon_that_cannot_write_ends_and_says_what_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("db");
    let error = run(&root, 1, |asked| {
        let root = root.clone();
        async move {
            replace_by_a_file(&root);
            let reply = ask(&asked, Request::Flush).await;
            assert!(reply.error.unwrap().contains("keeps the samples"), "it goes on, for now");
            let samples = ask(&asked, Request::Status).await.status.unwrap().samples;
            assert_eq!((samples.taken, samples.pending), (7, 5));
        }
    })
    .unwrap_err();
    assert!(error.to_string().contains("7 samples are lost"), "{error}");
}

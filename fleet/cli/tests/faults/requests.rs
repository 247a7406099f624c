//! The store fails at every request, in every way.

use std::sync::OnceLock;

use ingest::ingest;
use object_store::memory::InMemory;
use store::{Store, object_store};
use weeks::{CloseError, Closing, close, compact};

use crate::epochs::{Objects, RAW, SMALL, weeks};
use crate::faulty::{At, FAULTS, Fault, Faulty, in_memory};
use crate::run;
use crate::sums::{Sums, assert_account};

/// What of each week is ingested of [`RAW`], without a fault.
fn reference() -> &'static Vec<Sums> {
    static REFERENCE: OnceLock<Vec<Sums>> = OnceLock::new();
    REFERENCE.get_or_init(|| {
        run(|| async {
            let store = Faulty::new(in_memory(&RAW).await).store();
            let done = ingest(&store).await.unwrap();
            assert_eq!(done.epochs.values().sum::<u64>(), 10);
            let (refused, left) = (&done.refused[0], &done.left[0]);
            assert_eq!((done.refused.len(), done.left.len()), (1, 1));
            assert!(refused.0.host == "web-1" && refused.1.contains("damaged"), "{refused:?}");
            assert!(left.0.host == "web-2" && left.1.contains("newer"), "{left:?}");
            let of_ingested = Sums::of_weeks(&store).await;
            assert_account(&of_ingested, &RAW);
            assert_eq!(of_ingested[0].refused.len(), 1);
            // The damaged epoch is not looked at again.
            let again = ingest(&store).await.unwrap();
            assert!(again.epochs.is_empty() && again.refused.is_empty(), "{again:?}");
            assert_eq!(again.left.len(), 1);
            of_ingested
        })
    })
}

fn assert_all(all: &[Sums], expected: &[Sums], same: fn(&Sums, &Sums)) {
    assert_eq!(all.len(), expected.len());
    all.iter().zip(expected).for_each(|(a, b)| same(a, b));
}

/// Ingests while a request fails, again until it succeeds, for each request.
async fn ingest_with(fault: Fault, objects: &Objects, expected: &[Sums]) {
    let mut failed = 0;
    for at in 0.. {
        let faulty = Faulty::new(in_memory(objects).await);
        let store = faulty.store();
        faulty.fail(Some((At::Request(at), fault)));
        let mut attempts = 0;
        while !matches!(faulty.until_killed(ingest(&store)).await, Some(Ok(_))) {
            failed += 1;
            attempts += 1;
            assert!(attempts < 3, "{fault:?} at {at}");
        }
        faulty.settle(true).await;
        faulty.fail(None);
        let all = Sums::of_weeks(&store).await;
        assert_all(&all, expected, Sums::assert_ingested_as);
        if !faulty.has_failed() {
            assert!(at > 20 && (failed > 10 || fault == Fault::Twice), "{at} {failed}");
            break;
        }
    }
}

#[test]
fn ingest_survives_each_request_that_fails() {
    let expected = reference();
    run(move || ingest_with(Fault::Undone, &RAW, expected));
}

#[test]
fn ingest_survives_each_answer_that_is_lost_and_each_kill() {
    run(|| async {
        let faulty = Faulty::new(in_memory(&SMALL).await);
        let store = faulty.store();
        ingest(&store).await.unwrap();
        let expected = Sums::of_weeks(&store).await;
        assert_account(&expected, &SMALL);
        for fault in FAULTS.into_iter().filter(|fault| *fault != Fault::Undone) {
            ingest_with(fault, &SMALL, &expected).await;
        }
    });
}

/// What close and compact do.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Work {
    Close,
    Compact,
}

impl Work {
    async fn on(self, store: &Store) -> Result<(), CloseError> {
        let closing = Closing::default();
        match self {
            Self::Close => close(store, weeks()[1], &closing).await.map(drop),
            Self::Compact => compact(store, weeks()[1], &closing).await.map(drop),
        }
    }
}

/// A store before work and what its second week is then, and after.
struct Changed {
    from: InMemory,
    before: Sums,
    after: Sums,
    requests: usize,
    puts: usize,
}

impl Changed {
    async fn by(work: Work, from: InMemory) -> Self {
        let faulty = Faulty::new(from.fork());
        let store = faulty.store();
        let before = Sums::of(&store, weeks()[1]).await;
        let (all, puts) = (faulty.requests(), faulty.puts());
        work.on(&store).await.unwrap();
        let (requests, puts) = (faulty.requests() - all, faulty.puts() - puts);
        Self { from, before, after: Sums::of(&store, weeks()[1]).await, requests, puts }
    }

    /// Works while a request fails, on what the attempts before left: the week is as it was, or as
    /// it should be.
    async fn with(&self, work: Work, faults: impl IntoIterator<Item = (Fault, At)>) {
        let mut there = self.from.fork();
        let mut changed = 0;
        for (fault, at) in faults {
            let faulty = Faulty::new(there.fork());
            faulty.fail(Some((at, fault)));
            let done = faulty.until_killed(work.on(&faulty.store())).await;
            assert!(faulty.has_failed(), "{fault:?} {at:?}");
            faulty.settle(true).await;
            let sums = Sums::of(&faulty.store(), weeks()[1]).await;
            if sums.number == self.before.number {
                assert!(!matches!(done, Some(Ok(()))), "{fault:?} {at:?} {done:?}");
                sums.assert_ingested_as(&self.before);
                assert_eq!(sums.is_closed, self.before.is_closed);
                there = faulty.inner.fork();
            } else {
                self.assert_done(&sums);
                changed += 1;
            }
        }
        assert!(changed < 20, "{changed}");
        let faulty = Faulty::new(there);
        work.on(&faulty.store()).await.unwrap();
        self.assert_done(&Sums::of(&faulty.store(), weeks()[1]).await);
    }

    fn assert_done(&self, sums: &Sums) {
        // A compaction whose answer was of its second put is done again.
        assert!(sums.number > self.before.number);
        sums.assert_ingested_as(&self.after);
        if self.after.is_closed {
            sums.assert_closed_as(&self.after);
        }
    }
}

/// The small fleet, ingested.
async fn small() -> InMemory {
    let faulty = Faulty::new(in_memory(&SMALL).await);
    ingest(&faulty.store()).await.unwrap();
    faulty.inner.fork()
}

#[test]
fn close_survives_each_request_that_fails() {
    run(|| async {
        let changed = Changed::by(Work::Close, small().await).await;
        assert!(changed.requests > 50, "{}", changed.requests);
        // Their order differs from time to time, but their number hardly.
        let faults = (0..changed.requests - 3).map(|at| (Fault::Undone, At::Request(at)));
        changed.with(Work::Close, faults).await;
    });
}

#[test]
fn close_survives_each_answer_that_is_lost_and_each_kill() {
    run(|| async {
        let changed = Changed::by(Work::Close, small().await).await;
        let last = changed.puts - 1;
        let puts = (0..last - 1).step_by(5).chain([last - 1, last]);
        let faults = puts.flat_map(|at| FAULTS.map(|fault| (fault, At::Put(at))));
        changed.with(Work::Close, faults.filter(|(fault, _)| *fault != Fault::Undone)).await;
    });
}

#[test]
fn compact_survives_each_put_that_fails() {
    run(|| async {
        let changed = Changed::by(Work::Compact, small().await).await;
        let puts = 0..changed.puts;
        let faults = puts.flat_map(|at| FAULTS.map(|fault| (fault, At::Put(at))));
        changed.with(Work::Compact, faults).await;
        // The week is closed as it would have been.
        let faulty = Faulty::new(changed.from.fork());
        let store = faulty.store();
        for work in [Work::Compact, Work::Close] {
            work.on(&store).await.unwrap();
        }
        let closed = Changed::by(Work::Close, changed.from.fork()).await;
        Sums::of(&store, weeks()[1]).await.assert_closed_as(&closed.after);
    });
}

//! What ingesting, closing, compacting and better names do to sums, on a store that does not fail.

use std::collections::BTreeSet;

use ingest::ingest;
use store::{Manifest, Store};
use tables::{Build, HostWeek, Name, Rollup};
use weeks::{Closing, assemble, close, compact};

use crate::epochs::{DAYS, HOSTS, LATE, Objects, PROGRAM, RAW, SMALL, key, objects, weeks};
use crate::faulty::{Faulty, in_memory};
use crate::run;
use crate::sums::{Sums, assert_account, rows};

async fn store_of(objects: &Objects) -> Store {
    Faulty::new(in_memory(objects).await).store()
}

pub async fn put(store: &Store, objects: &Objects) {
    for (key, object) in objects {
        store.create(key, object.clone().into()).await.unwrap();
    }
}

async fn close_all(store: &Store) {
    for week in weeks() {
        assert!(!close(store, week, &Closing::default()).await.unwrap().was_closed);
    }
}

/// The account of a closed week closes in each of its tables, and in its review.
async fn assert_closes(store: &Store) {
    for week in weeks() {
        let manifest = Manifest::newest(store, week).await.unwrap();
        let sums = Sums::of(store, week).await;
        for (event, [taken, facts, idle, unresolved, lost]) in &sums.account {
            let hosts = rows::<HostWeek>(store, &manifest, event).await;
            let sum = |of: fn(&HostWeek) -> i64| hosts.iter().map(of).sum::<i64>() as u64;
            assert_eq!(sum(|host| host.taken), *taken);
            assert_eq!(sum(|host| host.facts), *facts);
            assert_eq!(sum(|host| host.idle), *idle);
            assert_eq!(sum(|host| host.unresolved), *unresolved);
            assert_eq!(sum(|host| host.lost), *lost);
            let epochs: i64 = hosts.iter().map(|host| host.epochs).sum();
            assert!(epochs == sums.epochs.len() as i64 || event != "time", "{epochs}");
            let rollups = rows::<Rollup>(store, &manifest, event).await;
            let samples: i64 = rollups.iter().map(|row| row.samples).sum();
            assert_eq!(samples as u64, *facts, "{event}");
            let of_hosts: f64 = hosts.iter().map(|host| host.core_s).sum();
            let core_s: f64 = rollups.iter().map(|row| row.core_s).sum();
            assert!((core_s - of_hosts).abs() < 1e-9 * of_hosts, "{event}: {core_s} {of_hosts}");
        }
        let ledger = assemble(store, week, "").await.unwrap().ledger;
        let missed: u64 = ledger.unresolved.values().chain(ledger.lost.values()).sum();
        assert_eq!(ledger.taken, ledger.facts + ledger.idle + missed);
        assert_eq!(ledger.taken, sums.account["time"][0]);
    }
}

#[test]
fn late_epochs_open_a_week_and_its_next_close_has_them() {
    run(|| async {
        let store = store_of(&RAW).await;
        ingest(&store).await.unwrap();
        close_all(&store).await;
        assert_closes(&store).await;
        let first = Sums::of_weeks(&store).await;
        put(&store, &LATE).await;
        assert_eq!(ingest(&store).await.unwrap().epochs.values().sum::<u64>(), 3);
        let open = Sums::of_weeks(&store).await;
        assert!(open[0].is_closed && !open[1].is_closed);
        let error = assemble(&store, weeks()[1], "").await.unwrap_err().to_string();
        assert!(error.contains("dcpi-fleet close --week"), "{error}");
        let closing = Closing::default();
        assert!(close(&store, weeks()[0], &closing).await.unwrap().was_closed);
        assert!(!close(&store, weeks()[1], &closing).await.unwrap().was_closed);
        assert_closes(&store).await;
        let mut all = RAW.clone();
        all.extend(LATE.clone());
        let late = Sums::of_weeks(&store).await;
        assert_account(&late, &all);
        late[0].assert_closed_as(&first[0]);
        assert_ne!(late[1].account, first[1].account);
        // As if they had been there from the start.
        let other = store_of(&all).await;
        ingest(&other).await.unwrap();
        close_all(&other).await;
        for (late, at_once) in late.iter().zip(Sums::of_weeks(&other).await) {
            late.assert_closed_as(&at_once);
        }
        // Compacting leaves sums alone, and so does closing again.
        let again = Closing { again: true, ..Closing::default() };
        compact(&store, weeks()[1], &closing).await.unwrap();
        let compacted = Sums::of(&store, weeks()[1]).await;
        assert!(!compacted.is_closed);
        compacted.assert_ingested_as(&late[1]);
        close(&store, weeks()[1], &closing).await.unwrap();
        close(&store, weeks()[1], &again).await.unwrap();
        Sums::of(&store, weeks()[1]).await.assert_closed_as(&late[1]);
    });
}

#[test]
fn of_ingesters_and_closers_at_once_each_epoch_is_taken_once() {
    run(|| async {
        let expected = store_of(&SMALL).await;
        ingest(&expected).await.unwrap();
        close_all(&expected).await;
        let expected = Sums::of_weeks(&expected).await;
        for _ in 0..3 {
            let store = store_of(&SMALL).await;
            let closing = Closing::default();
            let closer = async || {
                while !close(&store, weeks()[1], &closing).await.is_ok_and(|of| of.was_closed) {
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                }
            };
            let (a, b, c, (), ()) =
                tokio::join!(ingest(&store), ingest(&store), ingest(&store), closer(), closer());
            // One of them took them.
            let of = [a, b, c].map(|done| done.unwrap().epochs.values().sum::<u64>());
            assert_eq!(of.iter().sum::<u64>(), 6, "{of:?}");
            Sums::of(&store, weeks()[0]).await.assert_ingested_as(&expected[0]);
            Sums::of(&store, weeks()[1]).await.assert_closed_as(&expected[1]);
        }
    });
}

#[test]
fn the_same_epochs_are_the_same_files() {
    run(|| async {
        let mut of = Vec::new();
        for _ in 0..2 {
            let store = store_of(&RAW).await;
            ingest(&store).await.unwrap();
            let ingested = Sums::of_weeks(&store).await;
            close_all(&store).await;
            let closed = Sums::of_weeks(&store).await;
            let files = |of: Vec<Sums>| of.into_iter().map(|of| of.files).collect::<Vec<_>>();
            of.push((files(ingested), files(closed)));
        }
        assert_eq!(of[0], of[1]);
    });
}

#[test]
fn better_names_that_come_later_rename_old_weeks() {
    run(|| async {
        let is_code = |key: &str| key.starts_with("raw/code/");
        let mut nameless = SMALL.clone();
        nameless.extend(objects(&HOSTS[2..], &DAYS[..4], false));
        let (code, without): (Objects, Objects) =
            nameless.into_iter().partition(|(key, _)| is_code(key));
        let store = store_of(&without).await;
        ingest(&store).await.unwrap();
        close_all(&store).await;
        let names = async |image: &str| {
            let manifest = Manifest::newest(&store, weeks()[0]).await.unwrap();
            let builds = rows::<Build>(&store, &manifest, "").await;
            let build = builds.into_iter().find(|build| build.image_name == image).unwrap();
            let names = rows::<Name>(&store, &manifest, "").await.into_iter();
            let of_image = names.filter(|name| name.image == build.image).map(|name| name.name);
            (build.quality, of_image.collect::<BTreeSet<String>>())
        };
        assert_eq!(names("true").await, (0, BTreeSet::from([String::new()])));
        let server = names("server").await;
        assert_eq!(server.0, 1);
        let before = Sums::of_weeks(&store).await;
        // A file that is none of code names nothing.
        let other = format!("{}.bak", code.keys().next().unwrap());
        store.create(&other, code.values().next().unwrap().clone().into()).await.unwrap();
        assert!(ingest(&store).await.unwrap().renamed.is_empty());
        put(&store, &code).await;
        let renamed = ingest(&store).await.unwrap().renamed;
        assert_eq!(renamed.into_iter().collect::<Vec<_>>(), weeks().map(|week| (week, 1)));
        let (quality, of_program) = names("true").await;
        assert_eq!(quality, 3);
        assert!(of_program.iter().any(|name| !name.is_empty()), "{PROGRAM}: {of_program:?}");
        assert_eq!(names("server").await, server);
        let after = Sums::of_weeks(&store).await;
        for (before, after) in before.iter().zip(&after) {
            assert!(!after.is_closed);
            after.assert_once();
            assert_eq!((&after.epochs, &after.account), (&before.epochs, &before.account));
            assert_eq!(after.ingested["loads time"].len(), before.ingested["loads time"].len());
        }
        assert!(ingest(&store).await.unwrap().renamed.is_empty(), "once");
        close_all(&store).await;
        assert_closes(&store).await;
        // As if the code had been there from the start.
        let mut all = without;
        all.extend(code);
        let other = store_of(&all).await;
        ingest(&other).await.unwrap();
        close_all(&other).await;
        for (renamed, at_once) in
            Sums::of_weeks(&store).await.iter().zip(Sums::of_weeks(&other).await)
        {
            renamed.assert_closed_as(&at_once);
        }
    });
}

#[test]
fn a_week_whose_raw_epochs_are_gone_keeps_its_names() {
    run(|| async {
        let (code, without): (Objects, Objects) = objects(&HOSTS[2..], &DAYS[..2], false)
            .into_iter()
            .partition(|(key, _)| key.starts_with("raw/code/"));
        let store = store_of(&without).await;
        ingest(&store).await.unwrap();
        let before = Sums::of(&store, weeks()[0]).await;
        store.remove(&key(HOSTS[2], DAYS[0])).await.unwrap();
        put(&store, &code).await;
        assert!(ingest(&store).await.unwrap().renamed.is_empty());
        Sums::of(&store, weeks()[0]).await.assert_ingested_as(&before);
    });
}

/// What lies beside an epoch, or was listed twice, is not the epoch again.
#[test]
fn other_objects_of_an_epoch_are_not_the_epoch_again() {
    run(|| async {
        let expected = store_of(&SMALL).await;
        ingest(&expected).await.unwrap();
        let mut more = SMALL.clone();
        for (key, object) in SMALL.iter().filter(|(key, _)| key.ends_with(".segment")) {
            more.insert(key.replace("0-1.segment", "0-0.segment"), object.clone());
            more.insert(format!("{key}.copy"), object.clone());
        }
        let store = store_of(&more).await;
        ingest(&store).await.unwrap();
        let all = Sums::of_weeks(&store).await;
        for (sums, expected) in all.iter().zip(Sums::of_weeks(&expected).await) {
            sums.assert_ingested_as(&expected);
        }
    });
}

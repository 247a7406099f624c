//! Epochs that nobody would push, and stores that somebody damaged: one line with the next step.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use image::{ImageId, ImageKind, ImageOffset};
use ingest::ingest;
use model::{Ledger, Profile};
use profiledb::{Delta, EpochId, EpochStart, EventMeta, ProfileKey, Scope, Symbol, Writer};
use store::{Manifest, Store, Week};
use tables::{Build, HostWeek, ImageWeek, Name};
use weeks::{CloseError, Closing, assemble, close};

use crate::epochs::{DAY_S, MONDAY, Objects, SMALL, leaving, record, weeks};
use crate::faulty::{Faulty, in_memory};
use crate::processes::{dcpi_fleet, said, write};
use crate::run;
use crate::sums::{Sums, rows};

/// An epoch of a host that begins at a time, of which `add` says what it has; none where no writer
/// writes it.
fn epoch(host: &str, begin_s: u64, end_s: u64, add: impl FnOnce(&mut Delta)) -> Objects {
    let root = tempfile::tempdir().unwrap();
    let clock = EventMeta {
        name: "cpu-clock".to_owned(),
        unit: "ns".to_owned(),
        period: 1_000_000,
        ..EventMeta::default()
    };
    let start = EpochStart { events: vec![clock], now_unix_s: begin_s, ..EpochStart::default() };
    let mut writer = Writer::open(root.path(), host).unwrap();
    let id: EpochId = writer.begin(start, true).unwrap();
    let mut delta = Delta { now_unix_s: end_s, ..Delta::default() };
    add(&mut delta);
    writer.merge(&delta).unwrap();
    writer.seal(end_s).unwrap();
    let key = format!("raw/{}", profiledb::outgoing_place(host, &id).unwrap());
    Objects::from([(key, leaving(root.path(), host, &id))])
}

/// Adds samples of an image; gives its ledger.
fn sample<'a>(
    delta: &'a mut Delta,
    (kind, name): (ImageKind, &str),
    symbol: &str,
    samples: u64,
) -> &'a mut Ledger {
    let id = ImageId::from_text([name, "x"]);
    let counts = Profile::from_counts([(ImageOffset(0x1000), samples)]);
    let scope = Scope { unit: Some("a.service".to_owned()), ..Scope::default() };
    delta.profiles.insert(ProfileKey::samples(id, "cpu-clock", 1_000_000, scope), counts.into());
    delta.images.insert(id, record(id, kind, name));
    let symbol = Symbol { start: 0x1000, end: 0x1010, name: symbol.to_owned() };
    delta.symbols.insert(id, vec![symbol]);
    let ledger = delta.ledgers.entry("cpu-clock", 1_000_000);
    ledger.merged = ledger.merged.saturating_add(samples);
    ledger.taken = ledger.merged;
    ledger
}

const BEGIN_S: u64 = MONDAY + 7 * DAY_S;

fn normal(host: &str, begin_s: u64) -> Objects {
    epoch(host, begin_s, begin_s + 600, |delta| {
        sample(delta, (ImageKind::File, "server"), "serve", 100);
        sample(delta, (ImageKind::Idle, "[idle]"), "idle", 50);
    })
}

async fn closed(objects: &Objects, week: Week) -> (Store, Manifest, Sums) {
    let store = Faulty::new(in_memory(objects).await).store();
    ingest(&store).await.unwrap();
    close(&store, week, &Closing::default()).await.unwrap();
    let manifest = Manifest::newest(&store, week).await.unwrap();
    let sums = Sums::of(&store, week).await;
    (store, manifest, sums)
}

#[test]
fn names_may_be_anything() {
    let long = "x".repeat(4096);
    let control = "\u{1b}[31m\n\r\t\0\u{202e}\u{7f}";
    let names = [long.as_str(), control, "", "é".repeat(2048).leak(), "</script>"];
    let mut objects = normal("node-1", BEGIN_S);
    for (at, name) in (1..).zip(names) {
        objects.extend(epoch("node-1", BEGIN_S + 1000 * at, BEGIN_S + 1000 * at + 60, |delta| {
            sample(delta, (ImageKind::File, name), name, 1000);
            sample(delta, (ImageKind::Jit, &format!("{name} 17")), name, 10);
        }));
    }
    run(move || async move {
        let (store, manifest, sums) = closed(&objects, weeks()[1]).await;
        assert_eq!(sums.account["time"], [5200, 5150, 50, 0, 0]);
        for name in rows::<Name>(&store, &manifest, "").await {
            assert!(name.name.len() <= 1024);
        }
        let builds = rows::<Build>(&store, &manifest, "").await;
        assert!(builds.iter().all(|build| (1..=1024).contains(&build.image_name.len())));
        assert!(builds.iter().all(|build| build.path.len() <= 1024));
        // The image without name is one, and not the whole service once more.
        let images = rows::<ImageWeek>(&store, &manifest, "time").await;
        let all: i64 =
            images.iter().filter(|row| row.image.is_empty()).map(|row| row.samples).sum();
        assert_eq!(all, 5150);
        let report = assemble(&store, weeks()[1], "").await.unwrap();
        assert_eq!(report.services.len(), 1);
        assert!((report.services[0].share - 1.0).abs() < 1e-9);
        let (mut text, mut page) = (Vec::new(), Vec::new());
        review::text::write(&report, review::text::Style { columns: 100, rows: 20 }, &mut text)
            .unwrap();
        review::page::write(&report, "nonce", &mut page).unwrap();
        for shown in [text, page].map(|bytes| String::from_utf8(bytes).unwrap()) {
            let harmless = |c: char| c == '\n' || !(c.is_control() || c == '\u{202e}');
            assert!(shown.chars().all(harmless));
        }
    });
}

#[test]
fn numbers_that_cannot_be_are_refused_and_others_taken() {
    let max = 1 << 44;
    let mut objects = normal("node-1", BEGIN_S);
    objects.extend(epoch("evil-1", BEGIN_S, BEGIN_S + 60, |delta| {
        sample(delta, (ImageKind::File, "server"), "serve", 1 << 63);
    }));
    objects.extend(epoch("evil-2", BEGIN_S, BEGIN_S + 60, |delta| {
        sample(delta, (ImageKind::File, "server"), "serve", 10).taken = 11;
    }));
    objects.extend(epoch("evil-3", BEGIN_S, BEGIN_S + 60, |delta| {
        let ledger = sample(delta, (ImageKind::File, "server"), "serve", 10);
        ledger.lost.insert("a".to_owned(), u64::MAX);
        ledger.lost.insert("b".to_owned(), u64::MAX);
        ledger.taken = u64::MAX;
    }));
    // As many as there can be, in more epochs than 32 bits would hold.
    for at in 0..8 {
        objects.extend(epoch("busy", BEGIN_S + at, BEGIN_S + at, |delta| {
            sample(delta, (ImageKind::File, "server"), "serve", max);
        }));
    }
    run(move || async move {
        let store = Faulty::new(in_memory(&objects).await).store();
        let done = ingest(&store).await.unwrap();
        let mut refused: Vec<&str> =
            done.refused.iter().map(|(name, _)| name.host.as_str()).collect();
        refused.sort_unstable();
        assert_eq!(refused, ["evil-1", "evil-2", "evil-3"]);
        assert!(done.refused.iter().all(|(_, why)| why.contains("samples")), "{done:?}");
        close(&store, weeks()[1], &Closing::default()).await.unwrap();
        let sums = Sums::of(&store, weeks()[1]).await;
        assert_eq!(sums.account["time"], [8 * max + 150, 8 * max + 100, 50, 0, 0]);
        let report = assemble(&store, weeks()[1], "").await.unwrap();
        let hours = (8.0 * max as f64 + 100.0) / 1000.0 / 3600.0;
        assert!((report.fleet.core_hours / hours - 1.0).abs() < 1e-9);
    });
}

#[test]
fn clocks_may_be_wrong() {
    let last = 253_402_300_799;
    let mut objects = normal("past", 0);
    objects.extend(normal("future", last - 700));
    objects.extend(normal("far", last + DAY_S));
    objects.extend(normal("back", BEGIN_S));
    objects.extend(epoch("ends-late", BEGIN_S, u64::MAX, |delta| {
        sample(delta, (ImageKind::File, "server"), "serve", 10);
    }));
    objects.extend(epoch("ends-early", BEGIN_S, 1, |delta| {
        sample(delta, (ImageKind::File, "server"), "serve", 10);
    }));
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().to_owned();
    write(&store, &objects);
    let (code, text) = said(dcpi_fleet(&store, &["ingest"]));
    assert_eq!(code, 0, "{text}");
    for (week, hosts) in [("1970-W01", 1), ("2025-W47", 3), ("9999-W52", 2)] {
        for command in ["close", "review"] {
            let (code, text) = said(dcpi_fleet(&store, &[command, "--week", week]));
            assert_eq!(code, 0, "{command} {week}: {text}");
        }
        let (store, week) = (store.clone(), week.parse().unwrap());
        run(move || async move {
            let store = Store::open(&store).unwrap();
            let manifest = Manifest::newest(&store, week).await.unwrap();
            let of = rows::<HostWeek>(&store, &manifest, "time").await;
            assert_eq!(of.len(), hosts);
            assert!(of.iter().all(|host| host.covered_s >= 0));
            let ahead = of.iter().filter(|host| host.ahead_s > 0).count();
            let expected = match week.to_string().as_str() {
                "1970-W01" => 0,
                "2025-W47" => 1,
                _ => 2,
            };
            assert_eq!(ahead, expected, "{week}");
        });
    }
}

#[test]
fn weeks_without_anything_are_told() {
    let idle = epoch("node-1", BEGIN_S, BEGIN_S + 60, |delta| {
        sample(delta, (ImageKind::Idle, "[idle]"), "idle", 50);
    });
    let mut refused = normal("node-1", MONDAY);
    refused.values_mut().for_each(|object| *object.last_mut().unwrap() ^= 1);
    let empty = epoch("node-1", BEGIN_S + 14 * DAY_S, BEGIN_S + 14 * DAY_S, |_| {});
    run(move || async move {
        let mut objects = idle;
        objects.extend(refused);
        objects.extend(empty);
        let (store, _, sums) = closed(&objects, weeks()[1]).await;
        assert_eq!(sums.account["time"], [50, 0, 50, 0, 0]);
        let report = assemble(&store, weeks()[1], "").await.unwrap();
        assert_eq!((report.ledger.taken, report.hosts.heard), (50, 1));
        // Of the other week, all is damaged; of the next, there is nothing at all.
        for week in [weeks()[0], Week::of((BEGIN_S + 7 * DAY_S) as i64)] {
            let error = close(&store, week, &Closing::default()).await.unwrap_err();
            assert!(matches!(error, CloseError::Nothing(_)), "{error}");
            let error = assemble(&store, week, "").await.unwrap_err();
            assert!(matches!(error, CloseError::Nothing(_)), "{error}");
        }
        let week = Week::of((BEGIN_S + 14 * DAY_S) as i64);
        let done = close(&store, week, &Closing::default()).await.unwrap();
        assert_eq!((done.epochs, done.facts), (1, 0));
        assemble(&store, week, "").await.unwrap();
    });
}

/// One line that says what is wrong and what to do, and exit code 2.
fn assert_told(store: &Path, arguments: &[&str], expected: &[&str]) {
    let (code, text) = said(dcpi_fleet(store, arguments));
    assert_eq!(code, 2, "{arguments:?}: {text}");
    assert_eq!(text.lines().count(), 1, "{arguments:?}: {text}");
    assert!(expected.iter().all(|part| text.contains(part)), "{arguments:?}: {text}");
}

fn ingested() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), &SMALL);
    assert_eq!(said(dcpi_fleet(directory.path(), &["ingest"])).0, 0);
    let week = directory.path().join("weeks").join(weeks()[1].to_string());
    (directory, week)
}

#[test]
fn manifests_that_are_damaged_or_of_a_later_release_are_told() {
    let (directory, week) = ingested();
    let store = directory.path();
    let week_name = weeks()[1].to_string();
    let manifest = fs::read_to_string(week.join("manifest-000001")).unwrap();
    let later = manifest.replacen("\"schema\":1", "\"schema\":2", 1).replace("\"files\"", "\"f\"");
    let second = manifest.replacen("\"number\":1", "\"number\":7", 1);
    // Another week's epochs are taken all the same.
    write(store, &normal("node-9", MONDAY + 21 * DAY_S));
    for (text, expected) in [
        ("", "remove it, then ingest"),
        ("{", "remove it, then ingest"),
        (&manifest[..manifest.len() / 2], "remove it, then ingest"),
        (second.as_str(), "remove it, then ingest"),
        (later.as_str(), "use the newest dcpi-fleet"),
    ] {
        fs::write(week.join("manifest-000001"), text).unwrap();
        let expected = ["/manifest-000001 cannot be read", expected];
        for command in [
            &["ingest"][..],
            &["close", "--week", &week_name],
            &["compact", "--week", &week_name],
            &["review", "--week", &week_name],
            &["sql", "select 1", "--week", &week_name],
        ] {
            assert_told(store, command, &expected);
        }
    }
    let other = Week::of((MONDAY + 21 * DAY_S) as i64).to_string();
    assert_eq!(said(dcpi_fleet(store, &["close", "--week", &other])).0, 0);
    // The next step is right.
    fs::remove_file(week.join("manifest-000001")).unwrap();
    assert_eq!(said(dcpi_fleet(store, &["ingest"])).0, 0);
    assert_eq!(said(dcpi_fleet(store, &["close", "--week", &week_name])).0, 0);
}

#[test]
fn files_that_are_gone_or_damaged_are_told_and_made_again() {
    let (directory, week) = ingested();
    let store = directory.path();
    let week_name = weeks()[1].to_string();
    let close = ["close", "--week", week_name.as_str()];
    let files: Vec<PathBuf> = fs::read_dir(&week)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|of| of == "parquet"))
        .collect();
    assert!(files.len() >= 7, "{files:?}");
    let before = |store: &Path| {
        let store = store.to_owned();
        run(move || async move { Sums::of(&Store::open(&store).unwrap(), weeks()[1]).await })
    };
    let expected = before(store);
    for path in &files {
        let name = path.file_name().unwrap().to_str().unwrap();
        let good = fs::read(path).unwrap();
        let mut flipped = good.clone();
        flipped[good.len() / 3] ^= 4;
        for damaged in
            [None, Some(Vec::new()), Some(good[..good.len() / 2].to_vec()), Some(flipped)]
        {
            match &damaged {
                None => fs::remove_file(path).unwrap(),
                Some(damaged) => fs::write(path, damaged).unwrap(),
            }
            let what = if damaged.is_some() { "is damaged" } else { "is gone" };
            assert_told(store, &close, &[name, what, &format!("remove weeks/{week_name}")]);
        }
        fs::write(path, &good).unwrap();
    }
    // Questions do not pass over them either.
    let facts = files.iter().find(|path| path.to_str().unwrap().contains("/facts-")).unwrap();
    let question = ["sql", "select count(*) from facts", "--week", week_name.as_str()];
    let mut changed = fs::read(facts).unwrap();
    let at = changed.len() / 2;
    changed[at] ^= 1;
    for content in [changed, Vec::new()] {
        fs::write(facts, content).unwrap();
        assert_told(store, &question, &["is damaged", &format!("remove weeks/{week_name}")]);
    }
    fs::remove_file(facts).unwrap();
    assert_told(store, &question, &["is gone"]);
    // Facts of the week before, with which this one is compared.
    let before_this = store.join("weeks").join(weeks()[0].to_string());
    for entry in fs::read_dir(&before_this).unwrap() {
        let path = entry.unwrap().path();
        if path.to_str().unwrap().contains("/facts-") {
            fs::write(path, "").unwrap();
        }
    }
    // The next step is right.
    fs::remove_dir_all(&week).unwrap();
    assert_eq!(said(dcpi_fleet(store, &["ingest"])).0, 0);
    before(store).assert_ingested_as(&expected);
    let remove = format!("remove weeks/{}", weeks()[0]);
    assert_told(store, &close, &["weeks/2025-W46/facts-", "is damaged", &remove]);
    fs::remove_dir_all(&before_this).unwrap();
    assert_eq!(said(dcpi_fleet(store, &["ingest"])).0, 0);
    assert_eq!(said(dcpi_fleet(store, &close)).0, 0);
}

#[test]
fn an_epoch_that_cannot_be_opened_holds_up_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path();
    write(store, &SMALL);
    // A host's first object may arrive before this one.
    fs::remove_file(store.join("raw/format")).unwrap();
    let path = store.join(crate::epochs::key("web-1", 7));
    for (directory, mode) in [(store, 0o777), (&store.join("raw"), 0o777), (&path, 0)] {
        fs::set_permissions(directory, fs::Permissions::from_mode(mode)).unwrap();
    }
    let program = dcpi_fleet(store, &["ingest"]);
    // Root may read all files, nobody else may.
    let mut command = Command::new("setpriv");
    if fs::read(&path).is_ok() {
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    }
    command.arg(program.get_program()).args(program.get_args());
    let (code, text) = said(command);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains(&format!("{}: 3 epochs taken", weeks()[1])), "{text}");
    assert!(text.contains("of web-1 is left for now: cannot"), "{text}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let (code, text) = said(dcpi_fleet(store, &["ingest"]));
    assert!(code == 0 && text.contains(": 1 epoch taken"), "{text}");
}

/// A small disk that is full is reported; with room, the same command goes on.
#[test]
#[ignore = "mounts a file system, which root may"]
fn a_full_disk_is_told_and_loses_nothing() {
    let (reference, _) = ingested();
    let week = weeks()[1].to_string();
    let close = ["close", "--week", week.as_str()];
    assert_eq!(said(dcpi_fleet(reference.path(), &close)).0, 0);
    let directory = tempfile::tempdir().unwrap();
    let mounted = |arguments: &[&str]| {
        let status = Command::new("mount").args(arguments).arg(directory.path()).status();
        assert!(status.unwrap().success(), "{arguments:?}");
    };
    mounted(&["-t", "tmpfs", "-o", "size=4m", "dcpi-test"]);
    let outcome = std::panic::catch_unwind(|| {
        let store = directory.path();
        write(store, &SMALL);
        // Page by page, each time further.
        let mut told = 0;
        for command in [&["ingest"][..], &close] {
            let used = |store: &Path| {
                let mut df = Command::new("df");
                df.args(["--output=used", "-B1024"]).arg(store);
                let text = String::from_utf8(df.output().unwrap().stdout).unwrap();
                text.lines().last().unwrap().trim().parse::<u64>().unwrap()
            };
            for room in (4..).step_by(8) {
                let size = format!("remount,size={}k", used(store) + room);
                mounted(&["-o", &size]);
                let (code, text) = said(dcpi_fleet(store, command));
                if code == 0 {
                    break;
                }
                assert_eq!((code, text.lines().count()), (2, 1), "{text}");
                assert!(text.contains("No space left on device"), "{text}");
                told += 1;
            }
        }
        assert!(told > 5, "{told}");
        let sums = |store: &Path| {
            let store = store.to_owned();
            run(move || async move { Sums::of_weeks(&Store::open(&store).unwrap()).await })
        };
        let (all, expected) = (sums(store), sums(reference.path()));
        all[0].assert_ingested_as(&expected[0]);
        all[1].assert_closed_as(&expected[1]);
    });
    let status = Command::new("umount").arg(directory.path()).status();
    assert!(status.unwrap().success());
    outcome.unwrap();
}

//! Slices of ten seconds: what reports find in them, and how sets of stretches of time compare.
//! Clocks that were set back, and files of a database that are gone.

use image::{ImageKind, ImageOffset};
use model::{ClockStep, ClockSteps, Endings, Facts, Killed, Ledger, Profile};
use profiledb::{Delta, EpochStart, EventMeta, ProfileKey, Scope, Writer};
use serde_json::Value;

use crate::database::{Db, START, clock, image};
use crate::runs::{json, on, shown};

const CLOCK: &str = "cpu-clock";
/// A sample stands for a fifth of a second.
const PERIOD: u64 = 200_000_000;

/// Merges every ten seconds from 10:15 on: a service that takes 2 to 3 s of each, and xz where it
/// runs, for a time in fifths of a second.
fn recorded(merges: u64, xz: impl Fn(u64) -> u64) -> Db {
    let db = Db::new();
    let mut writer = writer(&db, START);
    for merge in 1..=merges {
        let service = 10 + merge * 7919 % 6;
        writer
            .merge(&delta(START + merge * 10, &[("service", service), ("xz", xz(merge))]))
            .unwrap();
        while writer.fold(u64::MAX, START + merge * 10).unwrap().more {}
    }
    writer.seal(START + merges * 10).unwrap();
    db
}

fn writer(db: &Db, now_unix_s: u64) -> Writer {
    let mut writer = Writer::open(&db.root(), "node-7").unwrap();
    let events = vec![EventMeta { period: PERIOD, ..clock() }];
    writer.begin(EpochStart { events, now_unix_s, ..EpochStart::default() }, true).unwrap();
    writer
}

fn delta(now_unix_s: u64, samples: &[(&str, u64)]) -> Delta {
    let mut delta = Delta { now_unix_s, ..Delta::default() };
    for (name, count) in samples.iter().filter(|(_, count)| *count > 0) {
        let image = image(ImageKind::File, name, &format!("/bin/{name}"));
        let key = ProfileKey::samples(image.id, CLOCK, PERIOD, Scope::default());
        delta.profiles.insert(key, Profile::from_counts([(ImageOffset(0x1000), *count)]).into());
        delta.images.insert(image.id, image);
        let ledger = Ledger { taken: *count, merged: *count, ..Ledger::default() };
        delta.ledgers.entry(CLOCK, PERIOD).add(&ledger);
    }
    delta
}

fn row<'a>(report: &'a Value, image: &str) -> &'a Value {
    let rows = report["rows"].as_array().unwrap();
    let named = |row: &&Value| row["image"] == image || row["key"] == image;
    rows.iter().find(named).unwrap_or_else(|| panic!("{image}: {report}"))
}

/// 45 s of xz in ten minutes were 0.07 CPUs at the begin of these.
#[test]
fn a_burst_of_45_seconds_has_its_time_and_its_height() {
    let xz = |merge| match merge {
        44..=47 => 50,
        48 => 25,
        _ => 0,
    };
    let db = recorded(130, xz);
    let text = shown(&db, "timeline --by image");
    let line = text.lines().find(|line| line.ends_with("xz")).unwrap();
    assert!(line.contains("1.00  2026-11-05 10:22:10"), "{line}");
    assert!(text.contains("44 columns of up to 30 s"), "{text}");
    assert!(text.contains("peaks are of up to 10 s"), "{text}");
    let minute = "--since 2026-11-05T10:22:10Z --until 2026-11-05T10:22:50Z";
    let report = json(&db, &format!("prof -i {minute}"));
    assert_eq!(row(&report, "xz")["counts"][CLOCK], 200);
    assert_eq!(report["time"]["slice_s"], 10);
    assert_eq!(report["time"]["since_unix_s"], START + 430);
    assert_eq!(
        report["events"][0]["total"],
        200 + (44..=47).map(|m| 10 + m * 7919 % 6).sum::<u64>()
    );
    let report = json(&db, "timeline --by image --slices 1000");
    let slices = row(&report, "xz")["slices"].as_array().unwrap();
    assert_eq!(slices.len(), 130);
    let seconds = |at: usize| slices[at]["seconds"].as_f64().unwrap();
    assert_eq!([42, 43, 46, 47, 48].map(seconds), [0.0, 10.0, 10.0, 5.0, 0.0]);
}

/// What changed in this minute against the quarter of an hour before? `dcpi diff` tells.
#[test]
fn a_minute_is_compared_with_the_time_before_it_by_the_second() {
    let db = recorded(96, |merge| if merge > 90 { 20 } else { u64::from(merge % 9 == 0) });
    let before = "since:2026-11-05T10:15:00Z,until:2026-11-05T10:30:00Z";
    let minute = "since:2026-11-05T10:30:00Z,until:2026-11-05T10:31:00Z";
    let report = json(&db, &format!("diff -i {before} {minute}"));
    assert_eq!(report["measure"], "samples_per_s");
    let xz = row(&report, "xz");
    assert_eq!((by_second(&xz["a"]), by_second(&xz["b"])), (10.0, 1800.0));
    assert_eq!((xz["significant"].as_bool(), xz["samples"][1].as_u64()), (Some(true), Some(120)));
    let (low, high) = (xz["low"].as_f64().unwrap(), xz["high"].as_f64().unwrap());
    assert!(low < 1.99 && 1.99 < high && high - low < 1.0, "{low} {high}");
    // The service did the same in each minute, and the share that it lost is none of its own.
    let service = row(&report, "service");
    assert_eq!(service["significant"].as_bool(), Some(false), "{service}");
    let (low, high) = (service["low"].as_f64().unwrap(), service["high"].as_f64().unwrap());
    assert!(low < 0.0 && 0.0 < high, "{service}");
    let shares = json(&db, &format!("diff -i --shares {before} {minute}"));
    assert_eq!(
        (shares["measure"].as_str(), row(&shares, "xz")["a"].is_f64()),
        (Some("share"), true)
    );
    // The long set is fifteen minutes, and each slice is of one set.
    assert_eq!(report["totals"]["parts"], serde_json::json!([15, 1]));
    assert_eq!(report["sets"][0]["total"].as_u64().unwrap(), total(1..=90));
    assert_eq!(report["sets"][1]["total"].as_u64().unwrap(), total(91..=96));
    let text = shown(&db, &format!("diff -i {before} {minute}"));
    for said in [
        "2026-11-05 10:15:00 to 2026-11-05 10:30:00 UTC in 15 parts",
        "samples a second of one host, one every 200 ms per CPU",
        "per second",
        "more by samples: 2.21 to 3.00 times; their work may have differed, too",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    // A boundary within a slice gives the slice to the set that has its middle.
    let (first, second) = (
        "since:2026-11-05T10:16:00Z,until:2026-11-05T10:17:04Z",
        "since:2026-11-05T10:17:04Z,until:2026-11-05T10:17:58Z",
    );
    let report = json(&db, &format!("diff -i {first} {second}"));
    assert_eq!(report["sets"][0]["total"].as_u64().unwrap(), total(7..=12));
    assert_eq!(report["sets"][1]["total"].as_u64().unwrap(), total(13..=18));
    // A set without time is compared by the second as well.
    let report = json(&db, &format!("diff -i latest {minute}"));
    let whole = row(&report, "service")["a"].as_f64().unwrap();
    assert!((whole - total_of_service(1..=96) as f64 / 960.0).abs() < 1e-6, "{whole}");
}

/// A rate as a number in a quarter of an hour.
fn by_second(rate: &Value) -> f64 {
    (rate.as_f64().unwrap() * 900.0 * 1000.0).round() / 1000.0
}

fn total_of_service(merges: std::ops::RangeInclusive<u64>) -> u64 {
    merges.map(|merge| 10 + merge * 7919 % 6).sum()
}

fn total(merges: std::ops::RangeInclusive<u64>) -> u64 {
    let xz = |merge| if merge > 90 { 20 } else { u64::from(merge % 9 == 0) };
    total_of_service(merges.clone()) + merges.map(xz).sum::<u64>()
}

/// A program that did not run in some parts did nothing there, and these parts count.
#[test]
fn a_set_of_an_image_that_runs_now_and_then_has_all_of_its_time() {
    let db = recorded(96, |merge| if merge > 90 || merge == 5 { 20 } else { 0 });
    let sets = "since:2026-11-05T10:15:00Z,until:2026-11-05T10:30:00Z since:2026-11-05T10:30:00Z";
    let report = json(&db, &format!("diff -i --image xz {sets}"));
    assert_eq!(by_second(&row(&report, "xz")["a"]), 20.0);
    assert_eq!(by_second(&row(&report, "xz")["b"]), 1800.0);
}

#[test]
fn a_clock_that_was_set_is_told() {
    let db = Db::new();
    let mut writer = writer(&db, START);
    let mut facts = Facts::default();
    let back = ClockStep { at_unix_s: START + 20, back_s: 30, forward_s: 0 };
    let forward = ClockStep { at_unix_s: START + 30, back_s: 0, forward_s: 864_000 };
    facts.state(&ClockSteps(vec![back, forward]));
    for merge in 1..=4 {
        let more = delta(START + merge * 10, &[("service", 50)]);
        writer.merge(&Delta { facts: facts.clone(), ..more }).unwrap();
    }
    for command in ["prof -i", "timeline --by image"] {
        let text = shown(&db, command);
        let said = "the clock of node-7 was set back by 30 s after 2026-11-05 10:15:20 UTC: all \
                    samples are there, and later times of epoch 20261105-101500 are up to 30 s \
                    ahead of the clock";
        assert!(text.replace("\n", " ").contains(said), "{text}");
        let said = "was set forward by 864000 s after 2026-11-05 10:15:30 UTC, while epoch \
                    20261105-101500 lasted: that time did not pass";
        assert!(text.replace("\n", " ").contains(said), "{text}");
    }
    let report = json(&db, "timeline --by image");
    assert_eq!(report["problems"][1]["kind"], "clock_set_forward");
    assert_eq!(report["problems"][0]["kind"], "clock_set_back");
    assert_eq!(row(&report, "service")["total"]["seconds"]["value"], 40.0);
    assert_eq!(row(&report, "service")["slices"].as_array().unwrap().len(), 4);
}

/// A daemon that was killed left a hole, and nothing said why.
#[test]
fn a_daemon_that_was_killed_is_told_with_what_is_missing() {
    let db = Db::new();
    let mut writer = writer(&db, START);
    let killed = vec![Killed { since_unix_s: START + 20, until_unix_s: START + 32 }];
    let mut facts = Facts::default();
    facts.state(&Endings { ended: false, killed });
    for merge in [1, 2, 4] {
        let more = delta(START + merge * 10, &[("service", 50)]);
        writer.merge(&Delta { facts: facts.clone(), ..more }).unwrap();
    }
    let said = "node-7 has no samples from 2026-11-05 10:15:20 to 2026-11-05 10:15:32 UTC: dcpid \
                was killed, or the machine went down";
    let text = shown(&db, "prof -i");
    assert!(text.replace("\n", " ").contains(said), "{text}");
    assert_eq!(json(&db, "prof -i")["problems"][0]["kind"], "killed");
}

/// The files of an epoch were gone, and reports were silent about it.
#[test]
fn epochs_whose_files_are_gone_are_told() {
    let db = Db::new();
    let mut writer = writer(&db, START);
    for epoch in 1..=4 {
        writer.merge(&delta(START + epoch * 600 - 300, &[("service", 50)])).unwrap();
        writer.merge(&delta(START + epoch * 600 - 10, &[("service", 50)])).unwrap();
        let events = vec![EventMeta { period: PERIOD, ..clock() }];
        let now_unix_s = START + epoch * 600;
        let start = EpochStart { events, now_unix_s, ..EpochStart::default() };
        writer.next_epoch(start).unwrap();
    }
    writer.merge(&delta(START + 3000, &[("service", 50)])).unwrap();
    drop(writer);
    assert_eq!(shown(&db, "prof -i --epoch all").matches("no files").count(), 0);
    let remove = |epoch: &str, last: bool| {
        let mut files: Vec<_> = db
            .files(".segment")
            .into_iter()
            .filter(|path| path.to_str().unwrap().contains(epoch))
            .collect();
        files.sort_by_key(|path| std::fs::metadata(path).unwrap().len());
        if last {
            files.retain(|path| !path.file_name().unwrap().to_str().unwrap().starts_with("0-"));
            assert!(!files.is_empty());
        }
        files.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    };
    remove("20261105-102500", false);
    remove("20261105-103500", true);
    let told = |words: &str| {
        let output = on(&db, words);
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.code().unwrap(), text)
    };
    let (code, text) = told("prof -i --epoch all");
    assert_eq!(code, 1, "{text}");
    let text = text.replace("\n  ", " ");
    assert!(text.contains("epoch 20261105-102500 of node-7 has no files"), "{text}");
    assert!(text.contains("epoch 20261105-103500 of node-7 lacks its end"), "{text}");
    let (_, json) = told("timeline --by image --epoch all --format json");
    let report: Value = serde_json::from_str(&json).unwrap();
    let kinds: Vec<&str> = report["problems"]
        .as_array()
        .unwrap()
        .iter()
        .map(|problem| problem["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["end_missing", "no_files"], "{report}");
    // Epochs that are whole have no note.
    assert_eq!(told("prof -i --epoch latest").0, 0);
    assert_eq!(told("prof -i --epoch 20261105-104500").0, 0);
}

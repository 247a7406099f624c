//! Stretches of time: `--since` and `--until`, and `dcpi timeline`.

use std::collections::BTreeMap;

use image::{ImageKind, ImageOffset};
use model::{Counts, Frame, Ledger, Profile, Stacks, Thread};
use profiledb::{Delta, EpochStart, EventMeta, ProfileKey, Scope, StacksKey, Writer};
use serde_json::Value;

use crate::database::{Db, START, clock, image};
use crate::runs::{json, refused, shown};

const CLOCK: &str = "cpu-clock";
const SECOND_NS: u64 = 1_000_000_000;

/// Seconds of the processes in a slice of ten minutes: the service all the time, and from 11:05
/// to 11:15 one of two Pythons for nine minutes.
fn processes(slice: u64) -> Vec<(&'static str, u32, u64)> {
    let disturbed = if slice == 5 { 540 } else { 6 };
    vec![("service", 0, 60), ("python3", 4711, disturbed), ("python3", 815, 6)]
}

/// An hour and a half from 10:15 on, with merges every ten minutes, whose processes run two images.
pub fn recorded() -> Db {
    recorded_but(0)
}

/// The same, with this many of the slices' stacks dropped, each of whatever process; with
/// `u64::MAX` all those of the first slice and no others.
fn recorded_but(dropped: u64) -> Db {
    let db = Db::new();
    let mut writer = Writer::open(&db.root(), "node-7").unwrap();
    // Whole samples of a second: reports of stacks and of samples have the same seconds.
    let period = 200_000;
    let event = EventMeta { period, ..clock() };
    let start = EpochStart { events: vec![event], now_unix_s: START, ..EpochStart::default() };
    writer.begin(start, true).unwrap();
    let (service, python) = (
        image(ImageKind::File, "service", "/bin/service"),
        image(ImageKind::File, "python3", "/bin/python3"),
    );
    for slice in 0..9 {
        let now_unix_s = START + (slice + 1) * 600;
        let mut delta = Delta { now_unix_s, ..Delta::default() };
        let mut stacks = Stacks::new();
        let mut samples: BTreeMap<_, u64> = BTreeMap::new();
        for (command, pid, seconds) in processes(slice) {
            let of = if command == "service" { &service } else { &python };
            delta.images.insert(of.id, of.clone());
            *samples.entry(of.id).or_default() += seconds * SECOND_NS / period;
            let thread = Thread { command: command.into(), pid, ..Thread::default() };
            let dropped = match (dropped, slice) {
                (u64::MAX, 0) => seconds,
                (u64::MAX, _) => 0,
                (dropped, _) => dropped.min(seconds / 2),
            };
            for _ in 0..seconds - dropped {
                let value = model::Value::of_one(SECOND_NS);
                stacks.add_stack([Frame::Code(of.id, ImageOffset(0x1000))], &thread, value);
            }
        }
        for (id, count) in samples {
            let counts: Counts = Profile::from_counts([(ImageOffset(0x1000), count)]).into();
            delta.profiles.insert(ProfileKey::samples(id, CLOCK, period, Scope::default()), counts);
            let ledger = delta.ledgers.entry(CLOCK, period);
            ledger.add(&Ledger { taken: count, merged: count, ..Ledger::default() });
        }
        delta.stacks.insert(StacksKey { event: CLOCK.into(), scope: Scope::default() }, stacks);
        writer.merge(&delta).unwrap();
        while writer.fold(u64::MAX, now_unix_s).unwrap().more {}
    }
    db
}

/// What happened at 11:08, and in which python3?
#[test]
fn one_command_tells_what_happened_and_in_which_process() {
    let db = recorded();
    let report = json(&db, "timeline --by command");
    let rows = report["rows"].as_array().unwrap();
    let keys: Vec<&str> = rows.iter().map(|row| row["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["python3 4711", "service", "python3 815"]);
    assert_eq!(rows[0]["pid"], 4711);
    let seconds: Vec<f64> = rows[0]["slices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|slice| slice["seconds"].as_f64().unwrap())
        .collect();
    assert_eq!(seconds, [6.0, 6.0, 6.0, 6.0, 6.0, 540.0, 6.0, 6.0, 6.0]);
    assert_eq!(rows[0]["slices"][5]["start"], "2026-11-05T11:05:00Z");
    let total = &rows[0]["total"]["seconds"];
    let total: Vec<f64> = ["low", "value", "high"].map(|end| total[end].as_f64().unwrap()).into();
    assert!(total[0] < 588.0 && total[1] == 588.0 && total[2] > 588.0, "{total:?}");
    let text = shown(&db, "timeline --by command");
    let row = text.lines().find(|line| line.contains("python3 4711")).unwrap();
    for part in ["588.00", "▁▁▁▁▁█▁▁▁", "0.90", "2026-11-05 11:05:00"] {
        assert!(row.contains(part), "{part}: {row}");
    }
    // The guide shows the same table.
    let page = include_str!("../../../../docs/src/when.md");
    let table: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("seconds")).collect();
    assert!(table.len() >= 4 && page.contains(&table[..4].join("\n")), "{}", table.join("\n"));
    // The minute itself, in the time that a merge covers.
    let minute = "timeline --by command --since 2026-11-05T11:08:00Z --until 2026-11-05T11:09:00Z";
    let report = json(&db, minute);
    assert_eq!(report["time"]["since_unix_s"], START + 3000);
    assert_eq!(report["time"]["until_unix_s"], START + 3600);
    assert_eq!(report["time"]["slice_s"], 600);
    assert_eq!(report["rows"][0]["slices"].as_array().unwrap().len(), 1);
    assert_eq!(report["rows"][0]["total"]["seconds"]["value"], 540.0);
}

/// Seconds are those of the samples, even where the sampler's ring was full.
#[test]
fn stacks_that_were_dropped_take_no_seconds_with_them() {
    let db = recorded_but(3);
    let report = json(&db, "timeline --by command");
    let seconds = |row: &Value| row["total"]["seconds"]["value"].as_f64().unwrap();
    let sum: f64 = report["rows"].as_array().unwrap().iter().map(seconds).sum();
    assert!((sum - 1182.0).abs() < 1e-3, "{sum}");
    let rows = report["rows"].as_array().unwrap();
    let service = rows.iter().find(|row| row["key"] == "service").unwrap();
    let service = service["slices"].as_array().unwrap();
    for (at, slice) in service.iter().enumerate() {
        // 57 of the 63 stacks of most slices.
        let expected = if at == 5 { 606.0 * 57.0 / 597.0 } else { 72.0 * 57.0 / 63.0 };
        let seconds = slice["seconds"].as_f64().unwrap();
        assert!((seconds - expected).abs() < 1e-3, "{at}: {seconds}, {expected}");
    }
    for by in ["command", "pid", "thread"] {
        let report = json(&db, &format!("prof --by {by}"));
        let total = report["events"][0]["count"]["value"].as_f64().unwrap();
        assert!((total - 1182e9).abs() < 1e6, "{by}: {total}");
    }
    let tree = json(&db, "tree --command python3");
    let total = tree["event"]["total"].as_f64().unwrap() / 1e9;
    assert!((600.0..660.0).contains(&total), "{total}");
}

/// For a slice dcpid had no room for stacks: whose its seconds are is not known, and they are not
/// another slice's.
#[test]
fn a_slice_without_stacks_has_a_row_of_its_own() {
    let db = recorded_but(u64::MAX);
    let report = json(&db, "timeline --by command");
    let rows = report["rows"].as_array().unwrap();
    let seconds = |key: &str| -> Vec<f64> {
        let row = rows.iter().find(|row| row["key"] == key).unwrap();
        let slices = row["slices"].as_array().unwrap().iter();
        slices.map(|slice| slice["seconds"].as_f64().unwrap()).collect()
    };
    let none = seconds("[no call stacks]");
    assert_eq!(
        none.iter().map(|s| s.round()).collect::<Vec<_>>(),
        [72.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    );
    assert_eq!(seconds("python3 815")[0], 0.0);
    let sum: f64 = rows.iter().map(|row| row["total"]["seconds"]["value"].as_f64().unwrap()).sum();
    assert!((sum - 1182.0).abs() < 1e-3, "{sum}");
    // Of one command nobody knows whether it ran then.
    let report = json(&db, "timeline --by command --command service");
    assert_eq!(report["rows"].as_array().unwrap().len(), 1);
    let report = json(&db, "prof --by command");
    let total = report["events"][0]["count"]["value"].as_f64().unwrap();
    assert!((total - 1182e9).abs() < 1e6, "{total}");
    let rows = report["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["command"] == "[no call stacks]").unwrap();
    let [low, share, high] =
        ["low", "value", "high"].map(|end| row["share"]["cpu-clock"][end].as_f64().unwrap());
    assert!((share - 72.0 / 1182.0).abs() < 1e-6, "{row}");
    assert!(low > 0.04 && low < share && share < high && high < 0.08, "{row}");
    let all = json(&recorded(), "prof --by thread");
    assert!(!all.to_string().contains("[no call stacks]"));
}

/// Wall-clock time by command is that of all its parts.
#[test]
fn usertime_has_rows_by_command() {
    let db = recorded();
    let report = json(&db, "timeline --by command --event usertime");
    assert_eq!(report["rows"][0]["total"]["seconds"]["value"], 588.0);
    let report = json(&db, "prof --by command --event usertime");
    assert_eq!(report["events"][0]["name"], "usertime", "{report}");
}

#[test]
fn samples_over_time_add_up_to_those_of_all_time() {
    let db = recorded();
    for (by, first) in
        [("image", "python3"), ("procedure", "[no procedures: file gone]"), ("label", "[no label]")]
    {
        let report = json(&db, &format!("timeline --by {by} --slices 4"));
        let row = &report["rows"][0];
        assert_eq!(row["slices"].as_array().unwrap().len(), 4, "{by}");
        if by != "procedure" {
            assert_eq!(row["key"], first);
        }
        let sum: f64 = row["slices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|slice| slice["seconds"].as_f64().unwrap())
            .sum();
        let total = row["total"]["seconds"]["value"].as_f64().unwrap();
        assert!((sum - total).abs() < 1e-6, "{by}: {sum} {total}");
    }
    let images = json(&db, "timeline --by image");
    let of = |image: &str| {
        let row = images["rows"].as_array().unwrap().iter().find(|row| row["key"] == image);
        row.unwrap()["slices"][5]["seconds"].as_f64().unwrap()
    };
    assert!((of("python3") - 546.0).abs() < 0.1 && (of("service") - 60.0).abs() < 0.1);
}

/// Samples of a row of `dcpi prof -i`.
fn samples(report: &Value, image: &str) -> u64 {
    let rows = report["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["image"] == image).unwrap();
    row["counts"][CLOCK].as_u64().unwrap()
}

#[test]
fn reports_are_of_the_stretch_that_is_asked_for() {
    let db = recorded();
    let all = json(&db, "prof -i");
    assert!(all["time"].is_null());
    let before = json(&db, "prof -i --until 2026-11-05T11:05:00Z");
    let during = json(&db, "prof -i --since 2026-11-05T11:05:00Z --until 2026-11-05T11:15:00Z");
    let after = json(&db, "prof -i --since 2026-11-05T11:15:00Z");
    let parts = [&before, &during, &after];
    for image in ["service", "python3"] {
        let sum: u64 = parts.iter().map(|part| samples(part, image)).sum();
        assert_eq!(sum, samples(&all, image), "{image}");
    }
    assert!(samples(&during, "python3") > 9 * samples(&during, "service") - 10);
    let totals: u64 = parts.iter().map(|part| part["events"][0]["total"].as_u64().unwrap()).sum();
    assert_eq!(
        totals,
        all["events"][0]["total"].as_u64().unwrap(),
        "ledgers are those of the time"
    );
    let text = shown(&db, "prof -i --since 2026-11-05T11:08:00Z --until 2026-11-05T11:09:00Z");
    assert!(
        text.contains("2026-11-05 11:05:00 to 2026-11-05 11:15:00 UTC, in slices of up to 10 min"),
        "{text}"
    );
    // Sets of samples may be of a time, too.
    let sets = json(&db, "diff -i latest latest --since 2026-11-05T11:15:00Z");
    assert!(sets["rows"].as_array().is_some());
}

#[test]
fn absurd_times_are_refused_in_one_line() {
    let db = recorded();
    for (words, said) in [
        (
            "prof --since 25:00",
            "invalid value '25:00' for '--since <TIME>': is no moment: HH:MM, -10min",
        ),
        ("prof --since tomorrow", "is no moment"),
        ("prof --since=", "is no moment"),
        ("prof --until -1x", "is no moment"),
        ("prof --since 9999-01-01T00:00:00Z", "--since is in the future"),
        ("prof --since -1h --until -2h", "--until is not after --since; name"),
        (
            "prof --since 2020-01-01T00:00:00Z --until 2020-01-02T00:00:00Z",
            "no samples between --since and --until; the database has some from \
             2026-11-05T10:15:00Z to 2026-11-05T11:45:00Z, and 'dcpictl flush' writes",
        ),
        ("timeline --slices 0", "must be a number from 1 to 1000"),
        (
            "timeline --by command python3",
            "take no IMAGE, since a call stack has frames of several; of one program alone: --command",
        ),
        ("timeline --event nothing", "no event \"nothing\""),
        ("timeline --event a,b", "name one event"),
        ("timeline --label x", "no samples labelled \"x\""),
        ("timeline nothing", "no image with samples"),
    ] {
        let error = refused(&db, words);
        assert!(error.contains(said), "{words}: {error}");
    }
}

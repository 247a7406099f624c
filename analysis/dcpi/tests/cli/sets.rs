//! What `dcpi stats` and `dcpi diff` compare, and how; `dcpi topcounts` and `dcpi images`.

use image::{ImageId, ImageKind};
use serde_json::Value;

use crate::database::{
    Db, Epoch, START, clock, cycles, idle, image, imiss, kernel, named, runs, two_events, typical,
    variable,
};
use crate::runs::{dcpi, json, on, refused, shown};

const CLOCK: &str = "cpu-clock";

fn one(epoch: Epoch) -> Db {
    let db = Db::new();
    db.epoch("node-7", epoch);
    db
}

/// "procedure a b" of each row, in samples.
fn samples(report: &Value) -> Vec<String> {
    let row = |row: &Value| {
        format!(
            "{} {} {}",
            row["procedure"].as_str().unwrap_or("-"),
            row["samples"][0],
            row["samples"][1]
        )
    };
    report["rows"].as_array().unwrap().iter().map(row).collect()
}

pub(crate) fn marked(report: &Value) -> Vec<&str> {
    let rows = report["rows"].as_array().unwrap().iter();
    rows.filter(|row| row["significant"] == true)
        .map(|row| row["procedure"].as_str().unwrap())
        .collect()
}

/// Figure 3 of the paper: the procedure that makes runs differ comes first, and only it is marked.
#[test]
fn the_procedure_that_varies_comes_first() {
    let db = variable();
    for words in [
        "stats all --each",
        "stats epoch-label:run0,epoch:all -1 -2 -3 -4 -5 -6 latest",
        "stats all --each --shares",
    ] {
        let report = json(&db, words);
        let first = &report["rows"][0];
        assert_eq!(
            (first["procedure"].as_str(), first["n"].as_u64()),
            (Some("smooth_"), Some(8)),
            "{words}"
        );
        assert_eq!(
            report["rows"].as_array().unwrap().len(),
            4,
            "main has too few samples: {words}"
        );
        assert_eq!(report["folded"]["rows"], 1);
        if !words.contains("shares") {
            assert_eq!(marked(&report), ["smooth_"]);
        }
    }
    let first = &json(&db, "stats all --each")["rows"][0];
    let number = |key: &str| first[key].as_f64().unwrap();
    assert_eq!(
        (number("sum"), number("min"), number("max"), number("mean")),
        (44_100.0, 3816.0, 8808.0, 5512.5)
    );
    assert!((number("range") - 4992.0 / 44_100.0).abs() < 1e-6);
    // By Python's statistics.stdev of the eight numbers.
    assert!((number("stddev") - 1979.179).abs() < 0.001, "{}", number("stddev"));
    assert!((number("stddev_by_sampling") - 5512.5_f64.sqrt()).abs() < 1e-3);
}

#[test]
fn a_program_built_anew_is_the_same() {
    let db = variable();
    let report = json(&db, "diff ..-4 epoch:-3.. --amounts");
    assert_eq!(report["rebuilt"], serde_json::json!(["wave5"]));
    let row = report["rows"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["procedure"] == "parmvr_")
        .unwrap();
    assert_eq!(row["image_ids"].as_array().unwrap().len(), 2);
    assert_eq!(row["samples"], serde_json::json!([212_236, 212_140]));
    // Means of four epochs.
    assert_eq!((row["a"].as_f64(), row["b"].as_f64()), (Some(53_059.0), Some(53_035.0)));
    // Four runs of which each does something else tell nothing of the build.
    assert_eq!(marked(&report), Vec::<&str>::new());
    assert_eq!(marked(&json(&db, "diff -7 -6"))[..2], ["smooth_", "parmvr_"]);
    assert!(shown(&db, "diff -7 -6").contains("each set is one epoch"));
}

#[test]
fn two_files_of_one_name_are_two_programs_only_where_both_are_in_a_set() {
    let program = |id: u8, path: &str| {
        named(ImageId::from_build_id(&[id, 9]).unwrap(), ImageKind::File, "app", path)
    };
    let (here, there) = (program(1, "/a/app"), program(2, "/b/app"));
    let db = Db::new();
    db.epoch("h", Epoch::new(START, vec![clock()]).samples(CLOCK, &here, &[(0, 50)]));
    db.epoch("h", Epoch::new(START + 5000, vec![clock()]).samples(CLOCK, &there, &[(0, 60)]));
    db.epoch(
        "h",
        Epoch::new(START + 9000, vec![clock()]).samples(CLOCK, &here, &[(0, 70)]).samples(
            CLOCK,
            &there,
            &[(0, 80)],
        ),
    );
    let rows = |words: &str| {
        let report = json(&db, words);
        let row =
            |row: &Value| format!("{} {}", row["path"].as_str().unwrap_or("app"), row["samples"]);
        let mut rows: Vec<String> = report["rows"].as_array().unwrap().iter().map(row).collect();
        rows.sort();
        rows
    };
    assert_eq!(rows("diff -2 -1 -i"), ["app [50,60]"]);
    assert_eq!(rows("diff -2 latest -i"), ["/a/app [50,70]", "/b/app [0,80]"]);
}

#[test]
fn code_made_at_run_time_is_the_same_program_in_another_process() {
    let jit = |pid: u32| image(ImageKind::Jit, &format!("[jit] node {pid}"), "");
    let db = Db::new();
    for (at, pid) in [(0, 17), (5000, 4711)] {
        let jit = jit(pid);
        let epoch =
            Epoch::new(START + at, vec![clock()]).samples(CLOCK, &jit, &[(0x10, 500), (0x30, 500)]);
        db.epoch("h", epoch.symbols(&jit, &[(0x10, 0x20, "hot"), (0x30, 0x40, "hot")]));
    }
    let report = json(&db, "diff -1 latest");
    assert_eq!(samples(&report), ["hot 1000 1000"]);
    assert_eq!(report["rows"][0]["image"], "[jit] node");
    assert_eq!(report["rebuilt"], serde_json::json!([]));
}

#[test]
fn sets_are_labels_hosts_and_databases_too() {
    let db = one(runs());
    let report = json(&db, "diff label:before label:before,unit:web.service --min-samples 1");
    assert_eq!(samples(&report), ["parse 300 0", "print 100 0", "copy 30 30"]);
    assert_eq!(
        report["sets"][1]["only"],
        serde_json::json!({"label": "before", "unit": "web.service"})
    );
    let other = one(typical());
    let root = other.root_text();
    let report = json(&db, &format!("diff {root} {root}@all --event cpu-clock"));
    assert_eq!(marked(&report), Vec::<&str>::new());
    assert_eq!(report["sets"][0]["db"].as_str(), Some(root.as_str()));
    let two = Db::new();
    two.epoch("a", typical());
    two.epoch("b", typical());
    let report = json(&two, "diff host:a host:b");
    assert_eq!(marked(&report), Vec::<&str>::new());
    assert_eq!(report["hosts"], serde_json::json!(["a", "b"]));
    // Nothing is left out: rows, and what was folded, are all samples that were counted.
    let sum: u64 = report["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["samples"][0].as_u64().unwrap())
        .sum();
    assert_eq!(
        sum + report["folded"]["samples"][0].as_u64().unwrap(),
        report["sets"][0]["counted"].as_u64().unwrap()
    );
}

/// Samples of a longer period stand for more; so do those of an event that had a counter for a part
/// of the time.
#[test]
fn samples_of_different_weight_are_scaled() {
    let slow = profiledb::EventMeta { period: 124_000, ..cycles() };
    let db = Db::new();
    let symbols = [(0x1000, 0x1100, "f"), (0x2000, 0x2100, "g")];
    let epoch = |start: u64, event, counts: &[(u64, u64)]| {
        Epoch::new(start, vec![event])
            .samples("cycles", &kernel(), counts)
            .symbols(&kernel(), &symbols)
    };
    db.epoch("h", epoch(START, cycles(), &[(0x1000, 20_000), (0x2000, 20_000)]));
    db.epoch("h", epoch(START + 5000, slow, &[(0x1000, 10_000), (0x2000, 10_000)]));
    let half_the_time = epoch(START + 9000, cycles(), &[(0x1000, 10_000), (0x2000, 10_000)]);
    db.epoch("h", half_the_time.counted("cycles", 500, 1000));
    for sets in ["-2 -1", "-2 latest", "-1 latest"] {
        let report = json(&db, &format!("diff {sets} --amounts"));
        assert_eq!(marked(&report), Vec::<&str>::new(), "{sets}");
        for row in report["rows"].as_array().unwrap() {
            assert_eq!(row["a"], row["b"], "{sets}");
        }
    }
    let width = |sets: &str| {
        let row = &json(&db, &format!("diff {sets} --amounts"))["rows"][0];
        row["high"].as_f64().unwrap() - row["low"].as_f64().unwrap()
    };
    // Variances of 20,000 + 20,000, and of 20,000 + 10,000 * 4.
    let ratio = width("-2 -1") / width("-2 -2");
    assert!((ratio - 1.5_f64.sqrt()).abs() < 0.01, "{ratio}");
    assert!(shown(&db, "diff -2 -1 --amounts").contains("scaled to one every 62,000 cycles"));
}

/// Both columns had the title `epoc…e-upgrade`.
#[test]
fn titles_of_two_sets_can_be_told_apart_and_read() {
    let db = Db::new();
    for (at, label) in [(0, "before-the-upgrade"), (1, "after-the-upgrade")] {
        let epoch = Epoch::new(START + 9000 * at, vec![clock()]).samples(
            CLOCK,
            &kernel(),
            &[(0x1000, 5000 + at)],
        );
        db.epoch("node-7", Epoch { label: Some(label), ..epoch });
    }
    let titles = |words: &str| -> Vec<String> {
        let (columns, words) = words.split_once(' ').unwrap();
        let mut command = dcpi();
        command.env("COLUMNS", columns).args(words.split(' ')).arg("--db").arg(db.root());
        let report = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let line = report.lines().find(|line| line.contains("low–high")).unwrap();
        line.replace(" %", "").split_whitespace().take(2).map(str::to_owned).collect()
    };
    let all = "--epoch all --amounts";
    let labels = "epoch-label:before-the-upgrade epoch-label:after-the-upgrade";
    for (columns, sets, expected) in [
        (80, "-1 latest", ["-1", "latest"]),
        (100, labels, ["before-the-upgrade", "after-the-upgrade"]),
        (80, labels, ["set", "1"]),
        (100, "epoch-label:before-the-upgrade,host:node-7 latest", ["set", "1"]),
    ] {
        assert_eq!(titles(&format!("{columns} diff {sets} {all}")), expected, "{sets}");
    }
    let narrow = dcpi().env("COLUMNS", "80").args(["epochs", "--db"]).arg(db.root()).output();
    let narrow = String::from_utf8(narrow.unwrap().stdout).unwrap();
    assert!(narrow.contains("  before-the-upgrade") && narrow.contains("  after-the-upgrade"));
    assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
}

#[test]
fn what_cannot_be_compared_is_refused_in_one_line() {
    let db = variable();
    for (words, said) in [
        ("stats latest", "there is only one set"),
        ("stats", "required arguments were not provided"),
        ("diff latest", "required arguments were not provided"),
        ("diff latest 2027", "no epoch matches"),
        ("diff latest label:x", "no samples labelled \"x\""),
        ("diff latest label:", "has no value after label:"),
        ("diff latest /nowhere/at/all", "is not a profile database"),
        ("diff latest -1 --event imiss", "no event \"imiss\" in these epochs"),
        ("diff latest -1 --image nothing", "no image with samples has the name"),
        ("topcounts --sort cycles/imiss", "cannot sort by \"cycles/imiss\""),
        ("topcounts --min-samples x", "invalid value 'x'"),
        ("images nothing", "no image with samples has the name"),
    ] {
        let error = refused(&db, words);
        assert!(error.contains(said), "{words}: {error}");
    }
    db.epoch(
        "node-7",
        Epoch { label: Some("empty"), ..Epoch::new(START + 500_000, vec![cycles()]) },
    );
    assert!(shown(&db, "topcounts").contains("no samples yet"));
    assert!(shown(&db, "images").contains("0 images"));
}

/// An epoch that was ended as soon as it was begun counted as a run in which everything took no
/// time: `stats --each all` marked 94 of 98 rows, and `diff` told a change of -100 % for every row.
#[test]
fn an_epoch_without_samples_is_compared_with_nothing() {
    let db = variable();
    let before = json(&db, "stats all --each");
    let empty = |label| Epoch { label: Some(label), ..Epoch::new(START + 500_000, vec![cycles()]) };
    db.epoch("node-7", empty("empty"));
    db.epoch(
        "node-7",
        Epoch {
            start: START + 510_000,
            ..empty("few").samples("cycles", &kernel(), &[(0x1000, 99)])
        },
    );
    let after = json(&db, "stats all --each");
    assert_eq!(marked(&after), ["smooth_"]);
    assert_eq!(after["rows"], before["rows"]);
    let left_out = |report: &Value| {
        let of =
            |epoch: &Value| format!("{} {}", epoch["epoch"].as_str().unwrap(), epoch["counted"]);
        report["left_out"].as_array().unwrap().iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(left_out(&after), ["20261111-050820 0", "20261111-075500 99"]);
    let said = "left out: 2 epochs with fewer than 100 samples: 20261111-050820, 20261111-075500\n";
    assert!(shown(&db, "stats all --each").contains(said));
    // A set of several epochs has those with samples, however few.
    let said = "left out: 1 epoch without samples: 20261111-050820\n";
    assert!(shown(&db, "diff ..-2 all").contains(said));
    for (words, said) in [
        (
            "diff -1 latest",
            "the set -1 is empty: its epoch does not have a sample of cycles outside the idle loop; dcpictl flush",
        ),
        (
            "diff -2 epoch-label:empty",
            "the set epoch-label:empty is empty: its epoch does not have a sample of cycles",
        ),
        ("stats latest -1", "the set -1 is empty"),
        (
            "stats -1..latest --each",
            "the set -1..latest is empty: none of its 2 epochs has 100 samples of cycles",
        ),
        (
            "stats -2..latest --each",
            "there is only one set: 2 epochs have fewer than 100 samples; name another",
        ),
    ] {
        let error = refused(&db, words);
        assert!(error.contains(said), "{words}: {error}");
    }
}

/// `diff -2 -1` was understood and `stats --each -3..latest` was not: the start of the range was
/// taken for an option.
#[test]
fn a_range_that_begins_with_a_dash_is_a_set_wherever_it_stands() {
    let db = variable();
    let names = |words: &str| {
        let report = json(&db, words);
        let name = |set: &Value| {
            format!("{} {}", set["name"].as_str().unwrap(), set["epochs"].as_array().unwrap().len())
        };
        report["sets"].as_array().unwrap().iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(names("stats --each -3..latest"), ["run4 1", "run5 1", "run6 1", "run7 1"]);
    assert_eq!(names("stats -3..latest --each --shares"), names("stats --each -3..latest"));
    assert_eq!(names("diff -3..-2 -1.. --amounts"), ["-3..-2 2", "-1.. 2"]);
    // The option has the same words, and is what a set says nothing of.
    assert_eq!(names("diff -7..-6 host:node-7 --epoch -3..latest"), ["-7..-6 2", "host:node-7 4"]);
}

#[test]
fn a_reader_that_goes_away_and_huge_counts_are_no_failure() {
    let db = Db::new();
    for at in [0, 5000] {
        db.epoch(
            "h",
            Epoch::new(START + at, vec![clock()]).samples(
                CLOCK,
                &kernel(),
                &[(0, u64::MAX / 4), (1, 1)],
            ),
        );
    }
    for words in
        ["stats -1 latest", "diff -1 latest", "diff -1 latest --amounts", "topcounts", "images"]
    {
        for format in ["text", "json", "csv"] {
            let output = on(&db, &format!("{words} --format {format}"));
            assert_eq!(output.status.code(), Some(0), "{words}: {output:?}");
        }
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = dcpi()
        .args(["diff", "-1", "latest", "--db"])
        .arg(db.root())
        .stdout(writer)
        .output()
        .unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
}

#[test]
fn instructions_come_by_samples_or_by_a_ratio() {
    let db = one(two_events());
    let places = |words: &str| -> Vec<String> {
        let report = json(&db, words);
        let row = |row: &Value| {
            format!(
                "{}+{} {}",
                row["procedure"].as_str().unwrap(),
                row["procedure_offset"],
                row["ratio"]["value"]
            )
        };
        report["rows"].as_array().unwrap().iter().map(row).collect()
    };
    assert!(places("topcounts -n 2")[1].starts_with("parse+0"));
    assert_eq!(json(&db, "topcounts -n 2")["omitted"]["rows"], 3);
    // 400 * 2000 by 200 * 62000, 3 * 2000 by 50 * 62000.
    let ratios = places("topcounts --sort imiss/cycles");
    assert!(
        ratios[0].starts_with("parse+0 0.0645") && ratios[1].starts_with("parse+0 0.0019"),
        "{ratios:?}"
    );
    let report = json(&db, "topcounts --sort imiss/cycles --min-samples 60");
    assert_eq!(report["folded"]["rows"], 3);
    let row = &report["rows"][0]["ratio"];
    // The interval of 400 of 600 is 62.8 to 70.3 %: odds of 1.69 to 2.37.
    assert!((row["low"].as_f64().unwrap() - 1.69 * 2.0 / 62.0).abs() < 1e-3, "{row}");
    assert!((row["high"].as_f64().unwrap() - 2.37 * 2.0 / 62.0).abs() < 1e-3, "{row}");
    // Of nothing: infinite, which JSON has no number for.
    let inverse = json(&db, "topcounts --sort cycles/imiss");
    let nothing = inverse["rows"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["counts"]["L1-icache-load-misses"] == 0);
    assert_eq!(nothing.unwrap()["ratio"]["value"], Value::Null);
    assert!(nothing.unwrap()["ratio"]["low"].as_f64().unwrap() > 0.0);
}

#[test]
fn names_of_events_may_have_slashes() {
    let raw = |name: &str| profiledb::EventMeta { name: name.into(), ..imiss() };
    let names = ["cpu/event=0x3c,umask=0x0/", "cpu/event=0x1/"];
    let mut epoch = Epoch::new(START, names.map(raw).into());
    for name in names {
        epoch = epoch.samples(name, &kernel(), &[(0, 90)]);
    }
    let db = one(epoch);
    for sort in [
        "cpu/event=0x1/",
        "cpu/event=0x3c,umask=0x0//cpu/event=0x1/",
        "cpu/event=0x1//cpu/event=0x3c,umask=0x0/",
    ] {
        assert_eq!(json(&db, &format!("topcounts --sort {sort}"))["sorted_by"], sort);
    }
}

#[test]
fn images_say_what_is_known_of_them() {
    let db = one(typical());
    let program = image(ImageKind::File, "gone", "/opt/app/gone");
    let again = Epoch::new(START + 5000, vec![clock()]);
    let later = profiledb::ImageRecord {
        first_seen_unix_s: START + 5000,
        last_seen_unix_s: START + 6000,
        size_bytes: Some(4096),
        ..program
    };
    db.epoch("node-7", again.samples(CLOCK, &later, &[(0, 7)]).samples(CLOCK, &idle(), &[(0, 9)]));
    let report = json(&db, "images gone --epoch all");
    let row = &report["rows"][0];
    assert_eq!(
        (row["counts"][CLOCK].as_u64(), row["size_bytes"].as_u64()),
        (Some(2507), Some(4096))
    );
    assert_eq!(
        (row["first_seen_unix_s"].as_u64(), row["last_seen_unix_s"].as_u64()),
        (Some(START), Some(START + 6000))
    );
    assert_eq!(row["code_kept"], false);
    assert_eq!(report["rows"].as_array().unwrap().len(), 1);
    assert_eq!(json(&db, "images")["rows"].as_array().unwrap().len(), 2, "the idle loop is one");

    let own = std::path::Path::new(env!("CARGO_BIN_EXE_dcpi"));
    let id = image::identify_file(&std::fs::File::open(own).unwrap()).unwrap();
    db.epoch(
        "node-7",
        Epoch::new(START + 9000, vec![clock()]).samples(
            CLOCK,
            &named(id, ImageKind::File, "dcpi", own.to_str().unwrap()),
            &[(0, 1)],
        ),
    );
    db.keep("node-7", own);
    assert_eq!(json(&db, "images dcpi")["rows"][0]["code_kept"], true);
    assert!(shown(&db, "images dcpi").contains("1 image, of which dcpid kept the code of 1"));
}

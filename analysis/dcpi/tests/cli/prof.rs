//! What `dcpi prof` counts, selects and names.

use std::path::Path;

use image::{ImageId, ImageKind};
use profiledb::ImageRecord;
use serde_json::Value;

use crate::database::{
    Db, Epoch, START, clock, cycles, idle, image, imiss, kernel, named, runs, two_events, typical,
};
use crate::runs::{json, on, refused, shown};

const CLOCK: &str = "cpu-clock";

fn one(epoch: Epoch) -> Db {
    let db = Db::new();
    db.epoch("node-7", epoch);
    db
}

/// "procedure image samples" of each row.
fn rows(report: &Value, event: &str) -> Vec<String> {
    let row = |row: &Value| {
        let text = |key: &str| row[key].as_str().unwrap_or("").to_owned();
        format!("{} {} {}", text("procedure"), text("image"), row["counts"][event])
            .trim()
            .to_owned()
    };
    report["rows"].as_array().unwrap().iter().map(row).collect()
}

#[test]
fn shares_are_of_all_but_idle_samples_and_sum_to_one() {
    let report = json(&one(typical()), "prof");
    let counted = 36_952 + 4_100 + 900 + 2_500 + 333;
    assert_eq!(report["events"][0]["counted"], counted);
    assert_eq!(report["events"][0]["total"], counted + 200_000);
    assert_eq!(report["events"][0]["idle"], 200_000);
    let samples = |of: &Value| of.as_u64().unwrap();
    let in_rows: u64 =
        report["rows"].as_array().unwrap().iter().map(|row| samples(&row["counts"][CLOCK])).sum();
    let unresolved: u64 = report["unresolved"].as_object().unwrap().values().map(samples).sum();
    assert_eq!(
        (in_rows, unresolved),
        (counted as u64, 333),
        "samples of unknown code are rows by their size"
    );
    for row in report["rows"].as_array().unwrap() {
        let share = &row["share"][CLOCK];
        let value = share["value"].as_f64().unwrap();
        let exact = samples(&row["counts"][CLOCK]) as f64 / counted as f64;
        assert!((value - exact).abs() < 1e-8);
        assert!(
            share["low"].as_f64().unwrap() <= value && value <= share["high"].as_f64().unwrap()
        );
    }
    let last = &report["rows"].as_array().unwrap().last().unwrap()["cumulative"];
    assert!((last.as_f64().unwrap() - in_rows as f64 / counted as f64).abs() < 1e-8);
}

#[test]
fn counts_are_scaled_by_the_time_that_an_event_had_a_counter() {
    let app = image(ImageKind::Vdso, "app", "[app]");
    let sampled = |start, samples| {
        let epoch = Epoch::new(start, vec![cycles()]).samples("cycles", &app, &[(0, samples)]);
        epoch.symbols(&app, &[(0, 0x40, "parse")])
    };
    let epoch = |start| sampled(start, 100);
    let event = |db: &Db, words: &str| json(db, words)["events"][0].clone();
    let event_of = |epoch| event(&one(epoch), "prof");

    let third = event_of(epoch(START).counted("cycles", 1_000_000, 3_000_000));
    assert_eq!(
        (&third["enabled_ns"], &third["running_ns"]),
        (&3_000_000.into(), &1_000_000.into())
    );
    assert_eq!(
        (third["scale"].as_f64(), &third["count"]["value"]),
        (Some(3.0), &(100 * 62_000 * 3).into())
    );
    // 101.92 ± 1.96 * sqrt(100.96), times 186000.
    let [low, high] = ["low", "high"].map(|end| third["count"][end].as_f64().unwrap() / 186_000.0);
    assert!((low - 82.23).abs() < 0.01 && (high - 121.61).abs() < 0.01, "{low} {high}");

    // An epoch of before times were kept, and one that always counted.
    for epoch in [epoch(START), epoch(START).counted("cycles", 7, 7)] {
        let all = event_of(epoch);
        assert_eq!((all["scale"].as_f64(), &all["count"]["value"]), (Some(1.0), &6_200_000.into()));
    }
    let never = event_of(sampled(START, 1).counted("cycles", 0, 9));
    assert_eq!((&never["scale"], &never["count"]), (&Value::Null, &Value::Null));

    // Each epoch by its own scale: 100 at 4, 100 at 1.
    let db = one(Epoch { end: Some(START + 1600), ..epoch(START).counted("cycles", 100, 400) });
    db.epoch("node-7", epoch(START + 3600).counted("cycles", 400, 400));
    let both = event(&db, "prof --epoch all");
    assert_eq!(
        (both["scale"].as_f64(), &both["count"]["value"]),
        (Some(1.6), &(500 * 62_000).into())
    );
}

#[test]
fn idle_counts_when_asked_for() {
    let db = one(typical());
    let with = json(&db, "prof --idle");
    assert_eq!(rows(&with, CLOCK)[0], "default_idle [idle] 200000");
    assert_eq!(with["events"][0]["counted"], with["events"][0]["total"]);
    // By name, it is what was asked for.
    assert_eq!(rows(&json(&db, "prof idle"), CLOCK), ["default_idle [idle] 200000"]);
    // All other images by name do not bring it in.
    assert_eq!(json(&db, "prof kernel ext4")["events"][0]["counted"], 36_952 + 900);
}

#[test]
fn images_restrict_rows_and_denominator() {
    let db = one(typical());
    let report = json(&db, "prof kernel");
    assert_eq!(report["events"][0]["counted"], 36_952);
    assert_eq!(rows(&report, CLOCK)[0], "clear_page_erms [kernel] 36128");
    let share = report["rows"][0]["share"][CLOCK]["value"].as_f64().unwrap();
    assert!((share - 36_128.0 / 36_952.0).abs() < 1e-8);
    // The selection's account stays what it is.
    assert_eq!(report["unresolved"]["anonymous_memory"], 321);
    let id = kernel().id.to_string();
    assert_eq!(rows(&json(&db, &format!("prof -i {id}")), CLOCK), ["[kernel] 36952"]);
    assert_eq!(rows(&json(&db, "prof -i /opt/app/gone vdso"), CLOCK), ["[vdso] 4100", "gone 2500"]);
}

#[test]
fn runs_are_summed_up_and_can_be_had_apart() {
    let db = one(runs());
    let app = |words: &str| {
        let report = json(&db, &format!("prof -i {words}"));
        rows(&report, CLOCK)
            .iter()
            .find_map(|row| row.strip_prefix("app ")?.parse::<u64>().ok())
            .unwrap_or(0)
    };
    assert_eq!(app(""), 50 + 400 + 300 + 5);
    assert_eq!(app("--label before"), 400);
    assert_eq!(app("--label before app"), 400);
    assert_eq!(app("--unit docker-0123456789ab --pid 4711"), 5);
    let report = json(&db, "prof --label before");
    assert_eq!(
        (&report["only"], &report["events"][0]["counted"]),
        (&serde_json::json!({"label": "before"}), &430.into())
    );
    assert_eq!(rows(&report, CLOCK), ["parse app 300", "print app 100", "copy lib 30"]);
    assert_eq!(rows(&json(&db, "prof --label before --unit web.service"), CLOCK), ["copy lib 30"]);
    for (words, said) in [
        ("--unit x", "no samples of unit \"x\"; there are: docker-0123456789ab, web.service"),
        ("--pid 1", "no samples of process 1; there are: 4711"),
        (
            "--label before --pid 4711",
            "no samples labelled \"before\", of process 4711; see the samples of each",
        ),
        ("--label before vdso", "no image with samples has the name"),
    ] {
        let error = refused(&db, &format!("prof {words}"));
        assert!(error.contains(said), "{words}: {error}");
    }
}

/// Rows by label, unit or process hold every sample that rows by image do.
#[test]
fn rows_of_what_is_kept_apart_have_all_samples() {
    let db = one(runs());
    for words in ["", "--idle", "app", "--label before", "--label before lib"] {
        let total = |by: &str| {
            let report = json(&db, &format!("prof {by} {words}"));
            let samples = report["rows"]
                .as_array()
                .unwrap()
                .iter()
                .map(|row| row["counts"][CLOCK].as_u64().unwrap());
            (samples.sum::<u64>(), report["events"][0]["counted"].clone())
        };
        for by in ["--by label", "--by unit", "--by pid"] {
            assert_eq!(total(by), total("-i"), "{by} {words}");
        }
    }
    let by = |dimension: &str| -> Vec<(Value, u64)> {
        let report = json(&db, &format!("prof --by {dimension}"));
        let rows = report["rows"].as_array().unwrap().iter();
        rows.map(|row| (row[dimension].clone(), row["counts"][CLOCK].as_u64().unwrap())).collect()
    };
    assert_eq!(
        by("label"),
        [(Value::Null, 1_225), ("before".into(), 430), ("after, -O3".into(), 320)]
    );
    assert_eq!(
        by("unit"),
        [(Value::Null, 1_870), ("web.service".into(), 100), ("docker-0123456789ab".into(), 5)]
    );
    assert_eq!(by("pid"), [(Value::Null, 1_970), (4711.into(), 5)]);
}

#[test]
fn keep_and_n_cut_the_rows() {
    let db = one(typical());
    assert_eq!(rows(&json(&db, "prof --keep 80%"), CLOCK).len(), 1);
    assert_eq!(rows(&json(&db, "prof --keep 81"), CLOCK).len(), 2);
    assert_eq!(rows(&json(&db, "prof --keep 100%"), CLOCK).len(), 9);
    assert_eq!(rows(&json(&db, "prof -n 3"), CLOCK).len(), 3);
    assert_eq!(rows(&json(&db, "prof -n 0"), CLOCK).len(), 9);
    let report = json(&db, "prof --keep 90% -n 1");
    assert_eq!((report["omitted"]["rows"].as_u64(), rows(&report, CLOCK).len()), (Some(8), 1));
    assert_eq!(report["omitted"]["counts"][CLOCK], 8_657);
    assert!(
        shown(&db, "prof")
            .contains("3 more procedures with 0.05 % of the samples (-n 0 shows all)")
    );
    assert!(!shown(&db, "prof -n 0").contains("more procedures"));
}

#[test]
fn rows_are_sorted_by_the_event_asked_for() {
    let db = one(two_events());
    let first = |words: &str| json(&db, words)["rows"][0]["address"].as_str().unwrap().to_owned();
    assert_eq!(first("prof"), "0x0");
    assert_eq!(first("prof --sort imiss"), "0x100");
    assert_eq!(first("prof --event imiss"), "0x100");
    assert_eq!(first("prof --event imiss,cycles --sort cycles"), "0x0");
    let names = |words: &str| {
        let events = json(&db, words)["events"].as_array().unwrap().clone();
        events.iter().map(|event| event["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names("prof --event imiss,cycles,imiss"), ["L1-icache-load-misses", "cycles"]);
}

#[test]
fn confidence_widens_the_interval() {
    let db = one(typical());
    let width = |words: &str| {
        let share = json(&db, words)["rows"][0]["share"][CLOCK].clone();
        share["high"].as_f64().unwrap() - share["low"].as_f64().unwrap()
    };
    let (narrow, usual, wide) =
        (width("prof --confidence 90"), width("prof"), width("prof --confidence 99.9"));
    assert!(narrow < usual && usual < wide, "{narrow} {usual} {wide}");
}

/// An epoch with samples of this image and a period.
fn simple(start: u64, period: u64, samples: u64) -> Epoch {
    let mut event = cycles();
    event.period = period;
    Epoch::new(start, vec![event])
        .samples("cycles", &kernel(), &[(0x1000, samples)])
        .symbols(&kernel(), &[(0x1000, 0x1100, "clear_page_erms")])
}

#[test]
fn epochs_and_hosts_are_summed() {
    let db = Db::new();
    db.epoch("a", simple(START, 1000, 3));
    db.epoch("a", simple(START + 5000, 1000, 20));
    db.epoch("b", simple(START + 7000, 1000, 100));
    let total =
        |words: &str| rows(&json(&db, words), "cycles")[0].rsplit(' ').next().unwrap().to_owned();
    assert_eq!(total("prof"), "120");
    assert_eq!(total("prof --epoch all"), "123");
    assert_eq!(total("prof --epoch all --host a"), "23");
    assert_eq!(total("prof --epoch -1"), "3");
    assert_eq!(total("prof --epoch ..-1"), "3");
    let report = json(&db, "prof --epoch all");
    assert_eq!(report["hosts"], serde_json::json!(["a", "b"]));
    assert_eq!(report["epochs"].as_array().unwrap().len(), 3);
    assert_eq!(report["problems"], serde_json::json!([]));
}

#[test]
fn an_event_of_one_epoch_only() {
    let db = Db::new();
    db.epoch("a", simple(START, 1000, 300));
    let other = Epoch::new(START + 5000, vec![imiss()]).samples(
        "L1-icache-load-misses",
        &kernel(),
        &[(0x1000, 7)],
    );
    db.epoch("a", other);
    let report = json(&db, "prof --epoch all");
    assert_eq!(
        report["rows"][0]["counts"],
        serde_json::json!({"cycles": 300, "L1-icache-load-misses": 7})
    );
}

#[test]
fn names_that_others_have_are_told_apart() {
    let builds = [1, 2].map(|n| ImageId::from_build_id(&[0xa0 + n; 20]).unwrap());
    let images = builds.map(|id| named(id, ImageKind::Vdso, "libx.so", "/lib/libx.so"));
    let epoch = Epoch::new(START, vec![clock()])
        .samples(CLOCK, &images[0], &[(0, 5)])
        .symbols(&images[0], &[(0, 16, "f")])
        .samples(CLOCK, &images[1], &[(0, 4), (32, 3)])
        .symbols(&images[1], &[(0, 16, "f"), (32, 48, "f")]);
    let text = shown(&one(epoch), "prof");
    for line in [
        "  f          libx.so (a1a1a1a1)",
        "  f [0x0]    libx.so (a2a2a2a2)",
        "  f [0x20]   libx.so (a2a2a2a2)",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
}

/// Where this very program has its code, to attribute samples to.
#[inline(never)]
extern "C" fn landmark(x: u64) -> u64 {
    std::hint::black_box(x).wrapping_mul(3)
}

/// File offset and address by the file's headers of a function of this program, without help of the
/// crate that is tested: from where the kernel mapped it.
fn places_of(function: usize) -> (u64, u64) {
    let exe = std::env::current_exe().unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let mut base = None;
    for line in maps.lines().filter(|line| line.ends_with(exe.to_str().unwrap())) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (start, end) = words[0].split_once('-').unwrap();
        let (start, end, offset) = (hex(start), hex(end), hex(words[2]));
        // A position-independent program: its first byte has address 0.
        let base = *base.get_or_insert(start);
        if (start..end).contains(&(function as u64)) {
            return (function as u64 - start + offset, function as u64 - base);
        }
    }
    panic!("not mapped");
}

/// This test program's record.
fn myself(path: &Path) -> ImageRecord {
    let id = image::identify_file(&std::fs::File::open(path).unwrap()).unwrap();
    named(id, ImageKind::File, "cli", path.to_str().unwrap())
}

#[test]
fn samples_of_a_file_are_attributed_to_its_procedures() {
    assert_eq!(landmark(7), 21);
    let (offset, address) = places_of(landmark as *const () as usize);
    let exe = std::env::current_exe().unwrap();
    let record = myself(&exe);
    // The first bytes of a file are its headers: no procedure.
    let epoch = Epoch::new(START, vec![clock()]).samples(
        CLOCK,
        &record,
        &[(offset, 10), (offset + 1, 5), (8, 1)],
    );
    let report = json(&one(epoch), "prof");
    assert_eq!(rows(&report, CLOCK), ["cli::prof::landmark cli 15", "[unknown] cli 1"]);
    assert_eq!(report["rows"][0]["address"], format!("{address:#x}"));
    assert_eq!(report["rows"][1]["address"], Value::Null);
    assert_eq!(report["problems"], serde_json::json!([]));
}

#[test]
fn a_file_that_is_gone_or_changed_keeps_its_samples() {
    let exe = std::env::current_exe().unwrap();
    let other = ImageId::from_build_id(&[0xee; 20]).unwrap();
    let changed = named(other, ImageKind::File, "changed", exe.to_str().unwrap());
    let gone = image(ImageKind::File, "gone", "/nowhere/gone");
    let script =
        image(ImageKind::File, "Cargo.toml", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
    let found = myself(&exe);
    let (offset, _) = places_of(landmark as *const () as usize);
    let db = one(Epoch::new(START, vec![clock()])
        .samples(CLOCK, &changed, &[(1, 30), (2, 3)])
        .samples(CLOCK, &gone, &[(1, 20)])
        .samples(CLOCK, &script, &[(1, 10)])
        .samples(CLOCK, &found, &[(offset, 1)]));
    let report = json(&db, "prof");
    assert_eq!(
        rows(&report, CLOCK),
        [
            "[no procedures: file changed since] changed 33",
            "[no procedures: file gone] gone 20",
            "[no procedures: file unreadable] Cargo.toml 10",
            "cli::prof::landmark cli 1",
        ]
    );
    let kinds: Vec<&Value> =
        report["problems"].as_array().unwrap().iter().map(|problem| &problem["kind"]).collect();
    assert_eq!(kinds, ["no_procedures"; 3]);
    let text = shown(&db, "prof");
    let note = "note: 98.44 % of the samples have no procedure, in 3 images: changed (file changed since), gone (file gone), \
                Cargo.toml (file unreadable); --format json has the reasons";
    assert!(text.contains(note), "{text}");
}

/// A program was upgraded, and yesterday's samples of it had no names any more.
#[test]
fn a_file_that_is_gone_or_changed_is_named_from_its_kept_code() {
    let exe = std::env::current_exe().unwrap();
    let (offset, address) = places_of(landmark as *const () as usize);
    let db = Db::new();
    let mut gone = myself(&exe);
    gone.path = "/nowhere/gone".to_owned();
    let epoch = || Epoch::new(START, vec![clock()]).samples(CLOCK, &gone, &[(offset, 10), (8, 1)]);
    db.epoch("node-7", epoch());
    db.keep("node-8", &exe);
    let of_none: Value =
        serde_json::from_slice(&on(&db, "prof --host node-7 --format json").stdout).unwrap();
    assert_eq!(
        rows(&of_none, CLOCK),
        ["[no procedures: file gone] cli 11"],
        "another host's code is not looked at"
    );
    db.keep("node-7", &exe);
    let report = json(&db, "prof --host node-7");
    assert_eq!(rows(&report, CLOCK), ["cli::prof::landmark cli 10", "[unknown] cli 1"]);
    assert_eq!(report["rows"][0]["address"], format!("{address:#x}"));
    assert_eq!(
        (&report["problems"][0]["kind"], &report["problems"][0]["serious"]),
        (&"from_code_store".into(), &false.into())
    );
    let text = shown(&db, "prof --host node-7");
    let note = "note: 100.00 % of the samples have names from the code that dcpid kept, in 1 image: cli (file gone); see dcpid --code-store";
    assert!(text.contains(note), "{text}");

    // Another build is at its path now: the file there is not asked.
    let other = Db::new();
    gone.path = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml").to_owned();
    other.epoch("node-7", Epoch::new(START, vec![clock()]).samples(CLOCK, &gone, &[(offset, 10)]));
    other.keep("node-7", &exe);
    assert_eq!(rows(&json(&other, "prof"), CLOCK), ["cli::prof::landmark cli 10"]);

    // Damaged, it is left out and named, and the samples are still counted.
    let path = db
        .files(".code")
        .into_iter()
        .find(|path| path.to_str().unwrap().contains("node-7"))
        .unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[1000] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let report: Value =
        serde_json::from_slice(&on(&db, "prof --host node-7 --format json").stdout).unwrap();
    assert_eq!(rows(&report, CLOCK), ["[no procedures: file gone] cli 11"]);
    assert_eq!(report["problems"][0]["kind"], "code_unreadable");
}

#[test]
fn when_nothing_at_all_has_a_name_that_is_a_problem() {
    let gone = image(ImageKind::File, "gone", "/nowhere/gone");
    let db = one(Epoch::new(START, vec![clock()]).samples(CLOCK, &gone, &[(1, 20)]));
    let output = on(&db, "prof");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("problem: no procedure of any image could be found"), "{text}");
    assert_eq!(on(&db, "prof -i").status.code(), Some(0));
}

#[test]
fn kernel_names_come_from_a_system_map_when_the_daemon_had_none() {
    let debug = tempfile::tempdir().unwrap();
    std::fs::create_dir(debug.path().join("boot")).unwrap();
    let map = "ffffffff81000000 T _stext\nffffffff81000100 T do_idle\nffffffff81000200 T schedule\n\
               ffffffff81000300 T _etext\n";
    std::fs::write(debug.path().join("boot/System.map-6.18.0-test"), map).unwrap();
    let db = one(Epoch::new(START, vec![clock()]).samples(CLOCK, &kernel(), &[(0x210, 9)]));
    let report = json(&db, &format!("prof --debug-root {}", debug.path().display()));
    assert_eq!(rows(&report, CLOCK), ["schedule [kernel] 9"]);
    assert_eq!(report["problems"][0]["kind"], "kernel_map_unchecked");
    let report: Value = serde_json::from_slice(&on(&db, "prof --format json").stdout).unwrap();
    assert_eq!(rows(&report, CLOCK), ["[no procedures: not recorded] [kernel] 9"]);
}

#[test]
fn hostile_names_do_not_reach_the_terminal() {
    let evil = image(ImageKind::Vdso, "\x1b]0;owned\x07", "/tmp/\u{202e}x");
    let long = "x".repeat(5000);
    let epoch = Epoch::new(START, vec![clock()])
        .samples(CLOCK, &evil, &[(0, 5), (16, 1)])
        .symbols(&evil, &[(0, 16, "a\nb\x1b[31m"), (16, 32, &long)])
        .unresolved(CLOCK, "a\x1bb", 3);
    let db = one(epoch);
    for words in ["prof", "prof -i", "prof --wide", "prof --format csv", "epochs"] {
        let text = shown(&db, words);
        assert!(
            !text.contains(|c: char| c.is_control() && c != '\n' || c == '\u{202e}'),
            "{words}: {text:?}"
        );
    }
    // Programs get the names as they are.
    assert_eq!(json(&db, "prof")["rows"][0]["procedure"], "a\nb\x1b[31m");
    let widest = shown(&db, "prof").lines().map(|line| line.chars().count()).max().unwrap();
    assert!(widest <= 120, "{widest}");
}

#[test]
fn an_epoch_without_samples_is_an_empty_report() {
    let text = shown(&one(Epoch::new(START, vec![clock()])), "prof");
    assert!(text.contains("no samples yet"), "{text}");
    let only_idle = one(Epoch::new(START, vec![clock()]).samples(CLOCK, &idle(), &[(1, 5)]));
    assert_eq!(json(&only_idle, "prof")["rows"], serde_json::json!([]));
}

#[test]
fn events_alone_have_no_room_for_confusion() {
    // A profile of an event that is not selected counts nowhere.
    let report = json(&one(two_events()), "prof -i --event cycles");
    assert_eq!(report["events"].as_array().unwrap().len(), 1);
    assert_eq!(report["unresolved"], serde_json::json!({}));
    assert_eq!(rows(&report, "cycles"), ["app 959", "app 41"]);
}

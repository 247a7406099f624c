//! The life of a store: pushed, ingested, closed, reviewed, drilled into, and kept small.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::expect_used)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use image::{ImageId, ImageKind, ImageOffset};
use model::{Ledger, Ledgers, Profile};
use profiledb::{
    DbError, Delta, EpochStart, EventMeta, ImageRecord, Machine, ProfileKey, Scope, Symbol, Writer,
};
use serde_json::Value;
use store::Week;

const PERIOD: u64 = 1_000_000;
const WEEK_S: u64 = 7 * 86_400;

struct Fleet {
    root: tempfile::TempDir,
    /// Wednesday noon of this week.
    now_s: u64,
}

impl Fleet {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("store")).unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let monday = Week::of(i64::try_from(now).unwrap()).begin_s();
        Self { root, now_s: u64::try_from(monday).unwrap() + 5 * 43_200 }
    }

    fn week(&self, before: u64) -> String {
        Week::of(i64::try_from(self.now_s - before * WEEK_S).unwrap()).to_string()
    }

    fn store(&self) -> std::path::PathBuf {
        self.root.path().join("store")
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dcpi-fleet"));
        command.args(arguments).env("DCPI_FLEET_STORE", self.store());
        command.current_dir(self.root.path()).output().unwrap()
    }

    /// What a command that goes well says.
    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The one line of a command that is refused.
    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert_eq!(error.trim_end().lines().count(), 1, "{error}");
        error
    }

    /// An epoch of a host that ended: `samples` of each of two procedures of a service.
    fn epoch(&self, host: &str, weeks_ago: u64, samples: [u64; 2]) {
        let (root, start_s) = (self.root.path().join("db"), self.now_s - weeks_ago * WEEK_S);
        let clock = EventMeta {
            name: "cpu-clock".into(),
            unit: "ns".into(),
            period: PERIOD,
            ..EventMeta::default()
        };
        let machine = Machine {
            arch: "x86_64".into(),
            cpu_model: "Model".into(),
            cpus: 4,
            boot_id: format!("boot of {host}"),
            ..Machine::default()
        };
        let start = EpochStart {
            events: vec![clock],
            machine,
            now_unix_s: start_s,
            ..EpochStart::default()
        };
        // A process that another test starts has the last writer's lock until it executes.
        let mut writer = loop {
            match Writer::open(&root, host) {
                Err(DbError::Locked { .. }) => std::thread::yield_now(),
                opened => break opened.unwrap(),
            }
        };
        writer.begin(start, true).unwrap();
        let image = ImageId::from_build_id(&[0xab, 0xcd]).unwrap();
        let record = ImageRecord {
            id: image,
            kind: ImageKind::File,
            name: "server".into(),
            path: "/usr/bin/server".into(),
            size_bytes: None,
            first_seen_unix_s: start_s,
            last_seen_unix_s: start_s,
        };
        let symbol = |at: u64, name: &str| Symbol {
            start: at * 0x100,
            end: (at + 1) * 0x100,
            name: name.to_owned(),
        };
        let counts = [(ImageOffset(0x110), samples[0]), (ImageOffset(0x210), samples[1])];
        let scope = Scope { unit: Some("web.service".into()), ..Scope::default() };
        let key = ProfileKey::samples(image, "cpu-clock", PERIOD, scope);
        let merged: u64 = samples.iter().sum();
        let mut ledgers = Ledgers::default();
        let lost = BTreeMap::from([("table_full".to_owned(), 3)]);
        *ledgers.entry("cpu-clock", PERIOD) =
            Ledger { taken: merged + 3, merged, lost, ..Ledger::default() };
        let delta = Delta {
            profiles: BTreeMap::from([(key, Profile::from_counts(counts).into())]),
            images: BTreeMap::from([(image, record)]),
            symbols: BTreeMap::from([(image, vec![symbol(1, "parse"), symbol(2, "write")])]),
            ledgers,
            now_unix_s: start_s + 3600,
            ..Delta::default()
        };
        writer.merge(&delta).unwrap();
        writer.seal(start_s + 3600).unwrap();
    }

    fn review(&self, before: u64) -> Value {
        let week = self.week(before);
        let json = self.ok(&["review", "--week", &week, "--format", "json"]);
        serde_json::from_str(&json).unwrap()
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn a_review_has_what_hosts_pushed_and_leads_to_it() {
    let fleet = Fleet::new();
    for host in ["a", "b"] {
        fleet.epoch(host, 1, [30_000, 70_000]);
        fleet.epoch(host, 0, [20_000, 80_000]);
    }
    fleet.epoch("c", 1, [1000, 1000]);
    assert!(fleet.refused(&["close", "--week", &fleet.week(1)]).contains("ingest"));
    let said = fleet.ok(&["push", "--from", "db"]);
    assert!(said.contains("5 epochs"), "{said}");
    // Again: each is there.
    assert!(fleet.ok(&["push", "--from", "db"]).contains(" 0 epochs"));
    let said = fleet.ok(&["ingest"]);
    assert!(said.contains("3 epochs taken") && said.contains("2 epochs taken"), "{said}");
    assert_eq!(fleet.ok(&["ingest"]), "nothing new\n");
    assert!(fleet.refused(&["review", "--week", &fleet.week(0)]).contains("dcpi-fleet close"));
    for before in [1, 0] {
        fleet.ok(&["close", "--week", &fleet.week(before)]);
    }
    let review = fleet.review(0);
    assert_eq!(review["hosts"]["expected"], 3);
    assert_eq!(review["hosts"]["silent"][0], "c");
    let ledger = &review["ledger"];
    assert_eq!((&ledger["taken"], &ledger["facts"]), (&200_006.into(), &200_000.into()));
    assert_eq!(ledger["lost"]["table_full"], 6);
    let top = &review["top"][0];
    assert_eq!((&top["service"], &top["procedure"]), (&"web.service".into(), &"write".into()));
    assert_eq!((&top["image"], &top["hosts"]), (&"server".into(), &2.into()));
    // 160,000 samples of 1 ms.
    assert!((number(&top["core_hours"]) - 160.0 / 3600.0).abs() < 1e-9, "{top}");
    assert!((number(&top["share"]) - 0.8).abs() < 1e-9, "{top}");
    let text = fleet.ok(&["review", "--week", &fleet.week(0)]);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("all accounted for"), "{text}");
    assert!(text.contains("web.service: server: write"), "{text}");
    fleet.ok(&["review", "--week", &fleet.week(0), "-o", "week.html"]);
    let page = fs::read_to_string(fleet.root.path().join("week.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("web.service"));
    let week = fleet.week(0);
    let sql = "select procedure, sum(samples) as samples from heads group by 1 order by 2 desc";
    assert_eq!(
        fleet.ok(&["sql", "--week", &week, sql]),
        "procedure,samples\nwrite,160000\nparse,40000\n"
    );
    let sql = "select null as a, true as b, 1.5 as c, count(*) as d from heads";
    assert_eq!(fleet.ok(&["sql", "--week", &week, sql]), "a,b,c,d\n,true,1.5,2\n");
    let json = fleet.ok(&["sql", "--week", &week, "--format", "json", sql]);
    assert_eq!(json, "{\"a\":null,\"b\":true,\"c\":1.5,\"d\":2}\n");
    let drill = ["drill", "--week", &week, "--service", "web.service", "-o", "drilled"];
    let said = fleet.ok(&drill);
    assert!(said.starts_with("web.service: 200000 samples of 2 epochs of 2 hosts"), "{said}");
    let database = profiledb::Database::open(&fleet.root.path().join("drilled")).unwrap();
    let host = database.hosts().unwrap().remove(0);
    let epoch = database.epoch(&host, &database.epochs(&host).unwrap()[0]).unwrap();
    epoch.check_ledgers().unwrap();
    assert_eq!(epoch.meta().ledgers.sum("cpu-clock").merged, 200_000);
    assert_eq!(
        epoch.symbols(&epoch.images().unwrap().into_keys().next().unwrap()).unwrap().len(),
        2
    );
    assert!(fleet.refused(&drill).contains("name a new directory"));
}

#[test]
fn absurd_questions_get_one_line() {
    let fleet = Fleet::new();
    fleet.epoch("a", 0, [10, 20]);
    fleet.ok(&["push", "--from", "db"]);
    fleet.ok(&["ingest"]);
    let week = fleet.week(0);
    fleet.ok(&["close", "--week", &week]);
    for (arguments, says) in [
        (&["sql", "--week", &week, "drop table facts"][..], "DDL"),
        (&["sql", "--week", &week, "select nothing from facts"], "nothing"),
        (&["sql", "--week", "2020-W01", "select 1"], "has nothing of 2020-W01"),
        (&["sql", "--week", &week, "--engine", "x://y", "select 1"], "no engine"),
        (&["drill", "--week", &week, "--service", "web.service"], "--procedure"),
        (&["drill", "--week", &week, "--service", "none", "-o", "x"], "no raw epochs of none"),
        (&["compare", "--service", "web.service", "--build", "ab", "cd"], "no build cd"),
        (&["review", "--week", "2020-W01"], "has nothing of 2020-W01"),
        (&["review", "--week", &week, "-o", "/nowhere/x"], "-o"),
        (&["push", "--from", "/nowhere"], "--from"),
        (&["ingest", "--store", "/nowhere"], "make the directory"),
        (&["ingest", "--store", "ftp://x"], "s3://"),
    ] {
        let error = fleet.refused(arguments);
        assert!(error.contains(says), "{arguments:?}: {error}");
    }
    // A gate that could never fail is no gate.
    let rules = fleet.root.path().join("rules.toml");
    for text in ["cores_percent = nan", "procedure_percent = -1", "hosts = 0", "x = 1"] {
        fs::write(&rules, text).unwrap();
        let compare = ["compare", "--service", "web.service", "--build", "ab", "cd"];
        let error = fleet.refused(&[&compare[..], &["--rules", "rules.toml"]].concat());
        assert!(error.contains("rules.toml"), "{text}: {error}");
    }
    fs::create_dir_all(fleet.store().join("settings")).unwrap();
    fs::write(fleet.store().join("settings/prices.toml"), "core_hour = -1").unwrap();
    assert!(fleet.refused(&["review", "--week", &week]).contains("prices.toml"));
}

#[test]
fn what_is_old_is_removed_and_reviews_stay() {
    let fleet = Fleet::new();
    for weeks_ago in [30, 10, 1, 0] {
        fleet.epoch("a", weeks_ago, [100, 200]);
        fleet.ok(&["push", "--from", "db"]);
        fleet.ok(&["ingest"]);
        fleet.ok(&["close", "--week", &fleet.week(weeks_ago)]);
    }
    // This one is not ingested.
    fleet.epoch("late", 20, [5, 6]);
    fleet.ok(&["push", "--from", "db"]);
    // Everything but what was put just now is old; one file is nobody's.
    let orphan = fleet.store().join(format!("weeks/{}/facts-time-0.parquet", fleet.week(0)));
    fs::write(&orphan, "x").unwrap();
    let young = orphan.with_file_name("facts-time-1.parquet");
    let old = SystemTime::now() - Duration::from_secs(40 * 86_400);
    for path in files(&fleet.store()) {
        File::options().append(true).open(path).unwrap().set_modified(old).unwrap();
    }
    fs::write(&young, "x").unwrap();
    let before = files(&fleet.store()).len();
    let said = fleet.ok(&["retain", "--dry-run"]);
    assert!(said.contains("would remove 2 raw epochs"), "{said}");
    assert_eq!(files(&fleet.store()).len(), before);
    let said = fleet.ok(&["retain"]);
    assert!(said.contains("removed 2 raw epochs"), "{said}");
    assert!(!orphan.exists() && young.exists());
    let left: Vec<String> =
        files(&fleet.store()).iter().map(|path| path.display().to_string()).collect();
    let raw = left.iter().filter(|path| path.contains("raw/hosts")).count();
    assert_eq!(raw, 3, "{left:?}");
    let facts = |week: &str| left.iter().any(|path| path.contains(&format!("{week}/facts")));
    assert!(facts(&fleet.week(10)) && !facts(&fleet.week(30)), "{left:?}");
    // The sums stay, and what was taken is not taken again.
    for weeks_ago in [30, 10, 1, 0] {
        assert_eq!(fleet.review(weeks_ago)["ledger"]["facts"], 300);
    }
    let said = fleet.ok(&["ingest"]);
    assert_eq!(said, format!("{}: 1 epoch taken\n", fleet.week(20)));
    let drill = ["drill", "--week", &fleet.week(10), "--service", "web.service", "-o", "x"];
    assert!(fleet.refused(&drill).contains("no raw epochs"));
}

/// One host that writes odd names into the store kept all others from being ingested.
#[test]
fn odd_names_in_a_store_hold_up_nobody() {
    let fleet = Fleet::new();
    fleet.epoch("a", 0, [10, 20]);
    fleet.ok(&["push", "--from", "db"]);
    let hosts = fleet.store().join("raw/hosts");
    fs::create_dir(hosts.join("e\u{1b}[31mvil")).unwrap();
    fs::write(hosts.join("a\nb"), "").unwrap();
    std::os::unix::fs::symlink(&hosts, hosts.join("loop")).unwrap();
    assert!(fleet.ok(&["ingest"]).contains("1 epoch taken"));
    let week = fleet.week(0);
    fleet.ok(&["close", "--week", &week]);
    // Another week's damage is not this one's, and a pipe is not waited for.
    let before = fleet.store().join(format!("weeks/{}", fleet.week(1)));
    fs::create_dir_all(&before).unwrap();
    fs::write(before.join("manifest-000001"), "{").unwrap();
    assert_eq!(fleet.review(0)["ledger"]["facts"], 30);
    fs::create_dir_all(fleet.store().join("settings/owners.toml")).unwrap();
    assert!(fleet.refused(&["review", "--week", &week]).contains("it is no file"));
}

/// A damaged epoch was left out for ever, also when its host put it again.
#[test]
fn a_damaged_epoch_that_is_put_anew_is_taken() {
    let fleet = Fleet::new();
    fleet.epoch("a", 0, [10, 20]);
    fleet.ok(&["push", "--from", "db"]);
    let found = files(&fleet.store().join("raw/hosts"));
    let mut damaged = fs::read(&found[0]).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    fs::write(&found[0], damaged).unwrap();
    let old = SystemTime::now() - Duration::from_secs(100);
    File::options().append(true).open(&found[0]).unwrap().set_modified(old).unwrap();
    let output = fleet.run(&["ingest"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is damaged and left out"));
    assert_eq!(fleet.ok(&["ingest"]), "nothing new\n");
    fs::remove_file(&found[0]).unwrap();
    fleet.ok(&["push", "--from", "db"]);
    let later = SystemTime::now() + Duration::from_secs(2);
    File::options().append(true).open(&found[0]).unwrap().set_modified(later).unwrap();
    assert!(fleet.ok(&["ingest"]).contains("1 epoch taken"));
    fleet.ok(&["close", "--week", &fleet.week(0)]);
    assert_eq!(fleet.review(0)["ledger"]["facts"], 30);
}

fn files(root: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

//! Whole reports. A difference is either a mistake or to be reviewed: `BLESS=1` writes the files
//! again.

use std::path::PathBuf;

use crate::database::{Db, Epoch, START, clock, kernel, runs, two_events, typical, variable};
use crate::runs::{dcpi, json, shown};

#[track_caller]
pub fn check(name: &str, db: &Db, words: &str) {
    let beside = db.root().parent().unwrap().to_str().unwrap().to_owned();
    let report = shown(db, words).replace(&db.root_text(), "DB").replace(&beside, "DIR");
    same(name, &without_sizes(&report, db), words);
}

/// Compares a text with a golden file.
#[track_caller]
fn same(name: &str, report: &str, words: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, report).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    if report != expected {
        let line = report.lines().zip(expected.lines()).position(|(a, b)| a != b);
        let at = line.unwrap_or_else(|| report.lines().count().min(expected.lines().count()));
        panic!(
            "dcpi {words} differs from {} from line {} on; is:\n{report}\nBLESS=1 takes it",
            path.display(),
            at + 1
        );
    }
}

/// Sizes of files are the database's business: their digits become `#`.
fn without_sizes(report: &str, db: &Db) -> String {
    let mut report = report.to_owned();
    let epochs = json(db, "epochs");
    for row in epochs["rows"].as_array().unwrap() {
        let bytes = row["size_bytes"].as_u64().unwrap();
        let exact = bytes.to_string();
        for (shown, around) in [
            (exact.clone(), ("\"size_bytes\": ", "")),
            (exact.clone(), (",", ",")),
            (exact, (" ", " B")),
            (format!("{:.1}", bytes as f64 / 1024.0), (" ", " KiB")),
        ] {
            let (before, after) = around;
            let hidden: String =
                shown.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect();
            report = report
                .replace(&format!("{before}{shown}{after}"), &format!("{before}{hidden}{after}"));
        }
    }
    report
}

fn one(epoch: Epoch) -> Db {
    let db = Db::new();
    db.epoch("node-7", epoch);
    db
}

#[test]
fn prof() {
    let db = one(typical());
    check("prof.txt", &db, "prof");
    check("prof.json", &db, "prof --format json");
    check("prof.csv", &db, "prof --format csv");
}

#[test]
fn prof_by_image() {
    let db = one(typical());
    check("prof-images.txt", &db, "prof -i");
    check("prof-images.json", &db, "prof -i --format json");
    check("prof-images.csv", &db, "prof -i --format csv");
}

#[test]
fn prof_of_some_images() {
    check("prof-kernel.txt", &one(typical()), "prof kernel --confidence 99.9");
}

#[test]
fn prof_with_idle() {
    check("prof-idle.txt", &one(typical()), "prof --idle -n 2");
}

#[test]
fn prof_of_two_events() {
    let db = one(two_events());
    check("prof-two-events.txt", &db, "prof");
    check("prof-two-events-sorted.txt", &db, "prof --sort imiss --wide");
    check("prof-two-events.json", &db, "prof --format json -n 2");
    check("prof-two-events.csv", &db, "prof --format csv");
}

#[test]
fn prof_of_events_that_took_turns() {
    let db = one(two_events().counted("cycles", 331_000_000, 1_000_000_000).counted(
        "L1-icache-load-misses",
        0,
        1_000_000_000,
    ));
    check("prof-multiplexed.txt", &db, "prof");
    check("prof-multiplexed.json", &db, "prof --format json -n 1");
}

fn several() -> Db {
    let db = one(Epoch { end: Some(START + 1600), label: Some("before"), ..typical() });
    db.epoch(
        "node-7",
        Epoch::new(START + 3600, vec![clock()]).samples("cpu-clock", &kernel(), &[(0x1000, 10)]),
    );
    db.epoch("node-8", Epoch { start: START + 60, ..two_events() });
    db
}

#[test]
fn prof_of_several_epochs() {
    check("prof-several.txt", &several(), "prof --epoch all -n 3");
}

#[test]
fn epochs() {
    let db = several();
    check("epochs.txt", &db, "epochs");
    check("epochs.json", &db, "epochs --format json");
    check("epochs.csv", &db, "epochs --format csv");
}

#[test]
fn prof_of_what_is_kept_apart() {
    let db = one(runs());
    check("prof-scoped.txt", &db, "prof");
    check("prof-by-label.txt", &db, "prof --by label");
    check("prof-by-label.json", &db, "prof --by label --format json");
    check("prof-by-label.csv", &db, "prof --by label --format csv");
    check("prof-by-unit.txt", &db, "prof --by unit");
    check("prof-by-pid.txt", &db, "prof --by pid app");
    check("prof-label.txt", &db, "prof --label before");
    check("prof-label.json", &db, "prof --label before --format json");
    check("prof-label.csv", &db, "prof --label before --unit web.service --format csv");
    check("epochs-runs.txt", &db, "epochs");
}

#[test]
fn topcounts() {
    check("topcounts.txt", &one(typical()), "topcounts -n 5");
    let db = one(two_events());
    check("topcounts-two-events.csv", &db, "topcounts --format csv");
    check("topcounts-ratio.txt", &db, "topcounts --sort imiss/cycles --min-samples 50");
    check("topcounts-ratio.json", &db, "topcounts --sort imiss/cycles -n 1 --format json");
}

#[test]
fn stats() {
    let db = variable();
    check("stats.txt", &db, "stats all --each");
    check("stats.json", &db, "stats -1 -2 --format json");
    check("stats.csv", &db, "stats all --each -i --shares --format csv");
}

#[test]
fn diff() {
    let db = variable();
    check("diff.txt", &db, "diff -1 latest");
    check("diff.json", &db, "diff -1 latest --format json -n 1");
    check("diff.csv", &db, "diff epoch-label:run0,epoch:all latest --amounts -i --format csv");
    check("diff-several.txt", &db, "diff ..-4 epoch:-3.. --amounts");
    check("diff-runs.txt", &one(runs()), "diff label:before unit:web.service --min-samples 1");
}

#[test]
fn images() {
    let db = one(two_events());
    check("images.txt", &db, "images");
    check("images.json", &db, "images --format json");
    check("images.csv", &db, "images --format csv");
}

#[test]
fn help() {
    let db = one(typical());
    check("help-topcounts.txt", &db, "topcounts --help");
    check("help-stats.txt", &db, "stats --help");
    check("help-diff.txt", &db, "diff --help");
    check("help-export.txt", &db, "export --help");
    check("help-list.txt", &db, "list --help");
    check("help-images.txt", &db, "images --help");
    check("help-prof.txt", &db, "prof --help");
    check("help.txt", &db, "--help");
}

/// Reports as people see them, without `-v`, in three widths. Nothing is wider than the terminal.
#[test]
fn screens() {
    let (program, calls) = (crate::why::copies(), crate::stacks::db());
    for columns in [80, 120, 200] {
        for (db, name, words) in [
            (&program, "prof", "prof -n 3"),
            (&program, "list", "list copy copy"),
            (&program, "list-why", "list copy copy --why"),
            (&program, "calc", "calc copy copy"),
            (&program, "calc-hot", "calc copy copy --hot"),
            (&program, "why", "why"),
            (&calls, "tree", "tree"),
        ] {
            let text = screen(db, words, columns);
            let wide = text.lines().find(|line| line.chars().count() > columns);
            assert_eq!(wide, None, "dcpi {words} in {columns} columns");
            let head = text.lines().take_while(|line| !line.is_empty()).count();
            assert!(head <= 2, "dcpi {words}: {text}");
            same(&format!("screens/{name}-{columns}.txt"), &text, words);
        }
        let text = screen(&program, "prof -n 3", columns);
        assert!(text.lines().count() <= 3 + 5, "{text}");
    }
}

fn screen(db: &Db, words: &str, columns: usize) -> String {
    let mut command = dcpi();
    command.env_remove("DCPI_VERBOSE").env("COLUMNS", columns.to_string());
    let output = command.args(words.split(' ')).arg("--db").arg(db.root()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{words}");
    String::from_utf8(output.stdout).unwrap()
}

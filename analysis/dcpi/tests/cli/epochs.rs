//! `dcpi epochs`.

use crate::database::{Db, Epoch, START, clock, kernel, runs, typical};
use crate::runs::{json, shown};

fn three() -> Db {
    let db = Db::new();
    db.epoch("a", Epoch { label: Some("nightly"), ..typical() });
    db.epoch(
        "a",
        Epoch::new(START + 5000, vec![clock()]).samples("cpu-clock", &kernel(), &[(1, 2)]),
    );
    db.epoch("b", Epoch { start: START + 7000, end: Some(START + 9000), ..typical() });
    db
}

#[test]
fn all_are_listed_unless_some_are_chosen() {
    let db = three();
    let listed = |words: &str| -> Vec<String> {
        let rows = json(&db, words)["rows"].as_array().unwrap().clone();
        rows.iter()
            .map(|row| format!("{} {}", row["host"].as_str().unwrap(), row["back"]))
            .collect()
    };
    assert_eq!(listed("epochs"), ["a 1", "a 0", "b 0"]);
    assert_eq!(listed("epochs --epoch latest"), ["a 0", "b 0"]);
    assert_eq!(listed("epochs --epoch -1"), ["a 1"]);
    assert_eq!(listed("epochs --host b"), ["b 0"]);
    assert_eq!(listed("epochs --epoch-label nightly"), ["a 1"]);
}

#[test]
fn epochs_are_chosen_by_the_runs_they_have() {
    let db = three();
    db.epoch("a", Epoch { start: START + 10_000, ..runs() });
    let report = json(&db, "epochs --label before");
    let rows = report["rows"].as_array().unwrap();
    assert_eq!((rows.len(), &rows[0]["back"]), (1, &serde_json::json!(0)));
    assert_eq!(rows[0]["run_labels"], serde_json::json!(["after, -O3", "before"]));
    assert_eq!(json(&db, "epochs")["rows"].as_array().unwrap().len(), 4);
    let error = crate::runs::refused(&db, "epochs --label nobody");
    assert!(
        error.contains("no samples labelled \"nobody\"; there are: after, -O3, before"),
        "{error}"
    );
}

#[test]
fn an_epoch_that_was_followed_is_closed() {
    let rows = json(&three(), "epochs")["rows"].clone();
    // A new writer seals what an earlier one left, as of its last merge.
    assert_eq!(rows[0]["ended_unix_s"], rows[0]["updated_unix_s"]);
    assert_eq!((rows[1]["open"].as_bool(), rows[2]["open"].as_bool()), (Some(true), Some(false)));
    assert_eq!(rows[2]["duration_s"], 2000);
    assert_eq!(rows[0]["images"], 5);
}

#[test]
fn every_sample_is_in_the_account() {
    let db = three();
    for row in json(&db, "epochs")["rows"].as_array().unwrap() {
        let event = &row["events"][0];
        let sum = |of: &serde_json::Value| {
            of.as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum::<u64>()
        };
        let (taken, merged) = (event["taken"].as_u64().unwrap(), event["merged"].as_u64().unwrap());
        assert_eq!(taken, merged + sum(&event["unresolved"]) + sum(&event["lost"]));
    }
    assert!(shown(&db, "epochs").contains("nightly"));
}

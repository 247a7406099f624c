//! `dcpi doctor`: what the host and the database lack, each with what to do about it.

use std::path::Path;

use serde_json::Value;

use crate::database::{Db, typical};
use crate::runs::dcpi;

fn checks(db: &Path) -> Vec<Value> {
    let mut command = dcpi();
    command.args(["doctor", "--control", "/nowhere", "--format", "json", "--db"]).arg(db);
    let output = command.output().unwrap();
    // No dcpid answers, at least.
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["schema"]["name"], "dcpi.doctor");
    report["checks"].as_array().unwrap().clone()
}

#[test]
fn each_check_that_says_no_has_a_remedy_of_one_line() {
    let db = Db::new();
    db.epoch("node-7", typical());
    let checks = checks(&db.root());
    for check in &checks {
        let remedy = check.get("remedy").and_then(Value::as_str);
        assert_eq!(check["ok"], remedy.is_none(), "{check}");
        assert!(remedy.is_none_or(|remedy| !remedy.contains('\n')), "{check}");
    }
    let of = |name: &str| checks.iter().find(|check| check["name"] == name).unwrap();
    assert_eq!(of("dcpid")["ok"], false);
    assert_eq!(of("database")["ok"], true);
    assert!(of("database")["found"].as_str().unwrap().ends_with(": 1 epoch of 1 host"));
    // The file of some samples is gone.
    let names = of("procedure names")["remedy"].as_str().unwrap();
    assert!(names.starts_with("install debug symbols") && names.contains("gone"), "{names}");
}

#[test]
fn a_database_that_is_none_is_a_check_that_says_no() {
    let nothing = tempfile::tempdir().unwrap();
    let checks = checks(&nothing.path().join("none"));
    let database = checks.iter().find(|check| check["name"] == "database").unwrap();
    assert_eq!(database["ok"], false, "{database}");
    assert!(database["remedy"].as_str().unwrap().contains("start dcpid"), "{database}");
}

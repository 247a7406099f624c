//! Reports on what recordings of real hosts become: databases that `dcpid --replay` has written
//! (`daemon/dcpid/tests/replay.rs` holds them against the recordings).
//!
//! The programs that were sampled are on no other machine, so a report that looks into files would
//! differ from one to the next. These reports show images, and procedures of what has no file: the
//! kernel and generated code, whose names the daemon keeps.

use std::path::Path;

use crate::database::Db;
use crate::golden::check;
use crate::runs::shown;

fn replayed(name: &str) -> Db {
    let recordings = "../../daemon/dcpid/tests/recordings";
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join(recordings).join(format!("{name}.db"));
    let db = Db::new();
    copy(&from, &db.root());
    db
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[test]
fn a_compile_storm() {
    let db = replayed("compile-storm");
    check("replay-compile-storm.txt", &db, "prof -i");
    check("replay-compile-storm.json", &db, "prof -i --format json");
    check("replay-compile-storm-kernel.txt", &db, "prof [kernel]");
}

/// One program under one path in two mount namespaces, in two control groups.
#[test]
fn containers() {
    let db = replayed("containers");
    check("replay-containers.txt", &db, "prof -i");
    check("replay-containers-units.txt", &db, "prof --by unit");
    check("replay-containers.json", &db, "prof -i --unit web.service --format json");
    // The command that compares the two builds is one that works.
    let all = shown(&db, "prof -i");
    let (_, command) = all.lines().find_map(|line| line.split_once(": dcpi diff ")).unwrap();
    let words = command.split(" --db ").next().unwrap();
    let compared = shown(&db, &format!("diff {words}"));
    assert!(compared.contains("different builds of an image"), "{compared}");
}

#[test]
fn generated_code() {
    let db = replayed("node-jit");
    let all = shown(&db, "prof -i -n 0");
    let jit = all.lines().find_map(|line| line.split_once("[jit] node ")).unwrap().1.trim();
    // Its id: a name with blanks is more than one word.
    let rows = crate::runs::json(&db, "prof -i -n 0");
    let is_jit =
        |row: &&serde_json::Value| row["image"].as_str().unwrap() == format!("[jit] node {jit}");
    let row = rows["rows"].as_array().unwrap().iter().find(is_jit).unwrap();
    let id = row["image_id"].as_str().unwrap().to_owned();
    check("replay-node-jit.txt", &db, &format!("prof {id}"));
    check("replay-node-jit.json", &db, &format!("prof {id} --format json"));
    check("replay-node-jit-images.txt", &db, "prof -i");
}

#[test]
fn threads() {
    let db = replayed("threads");
    check("replay-threads.txt", &db, "prof -i");
    check("replay-threads.json", &db, "prof -i --format json");
}

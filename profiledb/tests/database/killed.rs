//! A real process that writes to a real disk and is killed with SIGKILL.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use profiledb::{Database, Writer};

use crate::fixture::{HOST, NOW, full_delta, read_database, start};

const ROUNDS: &str = "PROFILEDB_TEST_KILLED_ROUNDS";
const DIRECTORY: &str = "PROFILEDB_TEST_KILLED_DIRECTORY";

/// Merges until it is killed, and says so after each merge.
#[test]
#[ignore = "started by `a_killed_writer_leaves_a_whole_database`, which kills it"]
fn writes_until_killed() {
    let directory = std::env::var_os(DIRECTORY).expect("started by the other test");
    let mut writer = Writer::open(Path::new(&directory), HOST).unwrap();
    writer.begin(start(NOW), false).unwrap();
    let mut out = std::io::stdout();
    // Bounded, should the other test die first.
    for _ in 0..100_000 {
        writer.merge(&full_delta(NOW + 1, 3)).unwrap();
        writer.fold(200, NOW).unwrap();
        let merges = writer.meta().unwrap().merges;
        if writeln!(out, "\nmerged {merges}").is_err() {
            return;
        }
    }
}

#[test]
fn a_killed_writer_leaves_a_whole_database() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("db");
    let mut last_seen = 0;
    // More where somebody asks for more.
    let rounds = std::env::var(ROUNDS).map_or(12, |rounds| rounds.parse::<u64>().unwrap());
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed::writes_until_killed"])
            .args(["--ignored", "--nocapture", "--test-threads=1"])
            .env(DIRECTORY, &root)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut told = 0;
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // After another number of merges each time, so somewhere in the next one.
        for line in lines.map_while(Result::ok) {
            let Some(merges) = line.strip_prefix("merged ") else {
                continue;
            };
            told = merges.parse().unwrap();
            if told >= last_seen + 1 + round % 5 {
                break;
            }
        }
        child.kill().unwrap();
        let status = child.wait().unwrap();
        assert!(status.code().is_none(), "not killed: {status}");

        let database = Database::open(&root).unwrap();
        let all = read_database(&database).unwrap();
        assert_eq!(all.len(), 1);
        let state = all.values().next().unwrap();
        // What it told of is there; each merge has 3 + 1 + 2 + 4 samples, one of unknown code and 3
        // of another period.
        assert!(told > 0 && state.meta.merges >= told, "round {round}");
        let total: u64 = state.sampled();
        assert_eq!(total, state.meta.merges * 14);
        last_seen = state.meta.merges;
        let problems = profiledb::check(&root).unwrap();
        assert!(problems.iter().all(|problem| !problem.is_damage()), "{problems:?}");
    }
}

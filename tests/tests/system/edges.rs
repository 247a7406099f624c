//! Edges from the sampled registers of real programs, as `dcpi cat --edges` prints them; and the
//! daemon's behaviour with code that no compiler made. Needs root.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use tests::daemon::{Daemon, Place, assert_closes};
use tests::report::dcpi;
use tests::workload::{Running, Truth, Workload};
use tests::{is_amd, require_root, run, succeed};

/// Seed of the workload's secret, whose bytes occur in no database by chance.
const SEED: u64 = 20_261_121;
/// Limit of a daemon's resident memory, in a build for tests.
const RSS_MAX: u64 = 64 << 20;

/// A daemon with a snapshot for each sample.
fn start<'a>(place: &'a Place, edges: &str) -> Daemon<'a> {
    let mut command = place.dcpid();
    command.args(["--event", "cpu-clock@1000", "--edges", edges]);
    place.start_as(command)
}

/// Runs `sided.c` for some seconds. Returns its measurements.
fn run_sided(program: &Path, seconds: &str) -> Truth {
    let truth = Running::start(Command::new(program).args([seconds, &SEED.to_string()])).wait();
    assert!(truth.number("held") > 0.5, "its registers and stack had the secret to the end");
    truth
}

/// The output of `dcpi cat --edges`: from, to and count, by offset in the file.
fn edges(place: &Place, image: &Path) -> BTreeMap<(u64, u64), u64> {
    let told = succeed(&mut dcpi(
        &place.db(),
        "cat",
        &["--edges", "--format", "json", image.to_str().unwrap()],
    ));
    let told: Value = serde_json::from_str(&told).unwrap();
    let offset = |row: &Value, name: &str| {
        u64::from_str_radix(row[name].as_str().unwrap().strip_prefix("0x").unwrap(), 16).unwrap()
    };
    let edge =
        |row: &Value| ((offset(row, "from"), offset(row, "to")), row["count"].as_u64().unwrap());
    told["rows"].as_array().unwrap().iter().map(edge).collect()
}

/// Offset of a symbol in its program's file.
fn offset_of(program: &Path, symbol: &str) -> u64 {
    let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap();
    let symbols = succeed(Command::new("nm").arg(program));
    let line = symbols.lines().find(|line| line.ends_with(&format!(" {symbol}"))).unwrap();
    let address = hex(line.split_whitespace().next().unwrap());
    let headers = succeed(Command::new("readelf").arg("-lW").arg(program));
    let code =
        headers.lines().find(|line| line.contains("LOAD") && line.contains(" R E ")).unwrap();
    let words: Vec<&str> = code.split_whitespace().collect();
    address - hex(words[2]) + hex(words[1])
}

/// A branch that random data decide is told to be taken as often as it is, straight in a loop and
/// between a table of jumps and calls of other objects.
#[test]
#[ignore = "needs root"]
fn a_branch_is_told_to_be_taken_as_often_as_it_is() {
    require_root();
    for flags in [&[][..], &["-DTHROUGH_TABLE", "-fno-builtin"]] {
        let place = Place::default();
        let program = Workload::build(place.path(), "sided", flags);
        let program = program.program();
        let daemon = start(&place, "1000");
        let truth = run_sided(program, "4");
        daemon.flush();
        let status = daemon.status();
        assert_closes(&status.samples);
        let counted = status.edges.expect("edges are on");
        assert!(
            counted.edges >= counted.fruitful && counted.fruitful <= counted.taken,
            "{counted:?}"
        );
        let edges = edges(&place, program);
        let at = |symbol| offset_of(program, symbol);
        let count = |to| edges.get(&(at("the_branch"), at(to))).copied().unwrap_or(0) as f64;
        let (taken, not_taken) = (count("the_target"), count("the_next"));
        let (all, p) = (taken + not_taken, truth.number("taken") / truth.number("all"));
        assert!(all > 200.0, "{flags:?}: hardly any edge of the branch: {all} of {edges:?}");
        let known: u64 = edges
            .range((at("the_branch"), 0)..(at("the_branch") + 1, 0))
            .map(|(_, count)| count)
            .sum();
        assert_eq!(known as f64, all, "{flags:?}: it goes nowhere else: {edges:?}");
        // Chance, at four standard deviations, and what a branch is wrong by because samples are of
        // time: slow.md states both errors.
        let stated = if is_amd() { 0.03 } else { 0.16 };
        let allowed = 4.0 * (p * (1.0 - p) / all).sqrt() + stated;
        assert!((taken / all - p).abs() < allowed, "{flags:?}: {taken} of {all}, but it is {p}");
        assert_calculated(&place, program, taken as u64, (p, allowed + 0.02));
    }
}

/// Fails the test unless `dcpi calc` gives the edge seen `taken` times the share `p` of its block's
/// executions, and conserves all flow.
fn assert_calculated(place: &Place, image: &Path, taken: u64, (p, allowed): (f64, f64)) {
    let image = image.to_str().unwrap();
    let told = succeed(&mut dcpi(&place.db(), "calc", &["--format", "json", image, "rounds"]));
    let told: Value = serde_json::from_str(&told).unwrap();
    let edges = told["edges"].as_array().unwrap();
    // Walks whose answers the flush did not wait for may have been merged since.
    let seen = taken..=taken + taken / 10;
    let is_seen = |edge: &&Value| edge["observed"].as_u64().is_some_and(|n| seen.contains(&n));
    let edge = edges.iter().find(is_seen);
    let edge = edge.unwrap_or_else(|| panic!("no edge was seen {taken} times: {told:#}"));
    let share = edge["share"].as_f64().unwrap();
    assert!((share - p).abs() < allowed, "{share}, but it is {p}: {told:#}");
    for block in told["blocks"].as_array().unwrap() {
        let runs = block["frequency"]["value"].as_f64().unwrap();
        let leaving = edges.iter().filter(|edge| edge["from"] == block["start"]);
        let leaves: f64 = leaving.map(|edge| edge["frequency"]["value"].as_f64().unwrap()).sum();
        assert!((leaves - runs).abs() <= 1e-3 * runs, "{leaves} leave {block:#}");
    }
}

/// A branch that goes both ways at random is told from one whose data are sorted, and from a
/// pattern: how much of its outcomes follows from none before.
#[test]
#[ignore = "needs root"]
fn branches_that_are_sorted_are_told_from_those_at_random() {
    require_root();
    let place = Place::default();
    let program = Workload::build(place.path(), "in_turn", &[]);
    let program = program.program();
    let daemon = start(&place, "1000");
    let truth = Running::start(Command::new(program).arg("6")).wait();
    daemon.flush();
    for (name, untold) in [("random", 0.42..0.65), ("sorted", 0.0..0.08), ("of_five", 0.0..0.08)] {
        let words = ["--format", "json", program.to_str().unwrap(), &format!("of_{name}")];
        let told: Value =
            serde_json::from_str(&succeed(&mut dcpi(&place.db(), "calc", &words))).unwrap();
        let edges = told["edges"].as_array().unwrap();
        let is_told = |edge: &&Value| {
            let share = edge["share"].as_f64().unwrap();
            (0.2..0.8).contains(&share) && edge["untold"].is_number()
        };
        let of: Vec<&Value> = edges.iter().filter(is_told).collect();
        let [one, other] = of[..] else { panic!("{name}: {told:#}") };
        for edge in [one, other] {
            assert!(untold.contains(&edge["untold"].as_f64().unwrap()), "{name}: {edge:#}");
        }
        let shares = [one, other].map(|edge| edge["share"].as_f64().unwrap());
        let p = truth.number(name);
        // A sample is of time: of sorted data the half that takes longer is sampled more often.
        let stated = if name == "sorted" { 0.16 } else { 0.03 };
        let near = shares.iter().any(|share| (share - p).abs() < stated);
        assert!(near, "{name}: {shares:?}, but it is {p}");
    }
}

#[test]
#[ignore = "needs root"]
fn without_snapshots_there_are_no_edges() {
    require_root();
    let place = Place::default();
    let program = Workload::build(place.path(), "sided", &[]);
    let daemon = start(&place, "off");
    let _ = run_sided(program.program(), "1");
    daemon.flush();
    assert!(daemon.status().edges.is_none());
    assert!(edges(&place, program.program()).is_empty());
    let samples = succeed(&mut dcpi(&place.db(), "cat", &[program.program().to_str().unwrap()]));
    assert!(samples.lines().count() > 3, "it was sampled all the same: {samples}");
}

/// The secret, eight bytes that `sided.c` holds in registers and on its stack.
fn secret() -> u64 {
    let x = SEED.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// Appends to `found` the files below a directory that contain these bytes.
fn files_with(directory: &Path, bytes: &[u8], found: &mut Vec<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_with(&path, bytes, found);
        } else if path.is_file()
            && fs::read(&path).unwrap().windows(bytes.len()).any(|window| window == bytes)
        {
            found.push(path.display().to_string());
        }
    }
}

/// A secret that a program has in registers and on its stack while it is sampled, in no file, is in
/// nothing that the daemon writes: neither in profiles, kept code, catalogue and log, nor in what
/// the tools read out of packed ones.
#[test]
#[ignore = "needs root"]
fn registers_and_stacks_stay_in_memory() {
    require_root();
    let place = Place::default();
    let program = Workload::build(place.path(), "sided", &[]);
    let mut command = place.dcpid();
    command.args(["--event", "cpu-clock@1000", "--edges", "1000", "--log", "debug"]);
    let daemon = place.start_as(command);
    let _ = run_sided(program.program(), "3");
    daemon.flush();
    let edges = daemon.status().edges.expect("edges are on");
    assert!(edges.taken > 500, "it was hardly looked at: {edges:?}");
    // Without the lines of memory that the secret is in, no walk goes around the loop.
    assert!(edges.edges > 5 * edges.taken, "walks had no memory: {edges:?}");
    let _ = daemon.terminate();
    let (secret, hex) = (secret(), format!("{:x}", secret()));
    let inverted = format!("{:x}", !secret);
    let mut found = Vec::new();
    for bytes in
        [&secret.to_le_bytes()[..], &secret.to_be_bytes(), hex.as_bytes(), inverted.as_bytes()]
    {
        files_with(place.path(), bytes, &mut found);
    }
    files_with(place.path(), &(!secret).to_le_bytes(), &mut found);
    assert_eq!(found, [""; 0]);
    for arguments in [&["cat"][..], &["cat", "--edges"], &["images"], &["epochs"], &["prof"]] {
        let (subcommand, rest) = arguments.split_first().unwrap();
        let told = String::from_utf8(
            run(dcpi(&place.db(), subcommand, &["--format", "json"]).args(rest)).stdout,
        )
        .unwrap();
        assert!(told.contains("\"rows\""), "dcpi {arguments:?} told nothing: {told}");
        assert!(
            !told.contains(&hex)
                && !told.contains(&inverted)
                && !told.contains(&secret.to_string()),
            "{arguments:?}"
        );
    }
    // The search finds what is there.
    fs::write(place.path().join("control"), [&[0; 5][..], &secret.to_le_bytes(), &[1; 3]].concat())
        .unwrap();
    files_with(place.path(), &secret.to_le_bytes(), &mut found);
    assert_eq!(found, [place.path().join("control").display().to_string()]);
}

/// Programs that jump into the middle of instructions, write their own code, unmap and cut it, have
/// stack pointers that lead nowhere, and run the zeros of a file of a gigabyte: the daemon follows
/// them as far as it goes, and is none the worse for it.
#[test]
#[ignore = "needs root"]
fn hostile_programs_cost_edges_and_nothing_else() {
    require_root();
    let place = Place::default();
    let program = Workload::build(place.path(), "hostile", &[]);
    let sparse = program.copy("sparse");
    fs::File::options().write(true).open(sparse.program()).unwrap().set_len(1 << 30).unwrap();
    let daemon = start(&place, "1000");
    let before = daemon.status();
    let all = ["middle", "modify", "unmap", "stack"].map(|what| (&program, what));
    let all = all.into_iter().chain([(&sparse, "middle"), (&sparse, "zeros")]);
    let running: Vec<Running> = all
        .map(|(program, what)| Running::start(Command::new(program.program()).args(["2", what])))
        .collect();
    for one in running {
        assert!(one.wait().number("rounds") > 0.0);
    }
    daemon.flush();
    let after = daemon.status();
    assert_closes(&after.samples);
    let (snapshots, edges) =
        after.edges.as_ref().map(|edges| (edges.taken, edges.edges)).expect("edges are on");
    assert!(
        snapshots > 1000 && edges > 100,
        "they were hardly looked at: {snapshots} snapshots, {edges} edges"
    );
    let (before, after) = (before.daemon.rss_bytes, after.daemon.rss_bytes);
    assert!(after < RSS_MAX, "{after} bytes resident, {before} before");
    assert!(!daemon.log().contains("panic"), "{}", daemon.log());
    assert!(daemon.terminate().success());
    let check = run(&mut dcpi(&place.db(), "check", &[]));
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
}

//! Attribution of samples: recordings of workloads that report the CPU seconds they used are
//! replayed without privilege, and the samples are compared with those seconds.
//!
//! `cargo xtask record [NAME...]` makes `tests/recordings/NAME.dcpid-input` and `NAME.truth.json`
//! again; `tests/examples/record.rs` says what runs in each. Tests of `tests/tests/system` hold the
//! same against live samples, once for each mechanism of the kernel.
#![allow(clippy::print_stderr, reason = "what tests print is shown when they fail")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests panic to fail")]

use address_spaces::scopes::Images;
use dcpid::player::replay;
use kernel::{RecordKind, TimedRecord};
use profiledb::{Database, Epoch, ProfileKey, Scope};
use sampling::recording::steps::Step;
use sampling::recording::tape::Recording;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The period of the recordings' one event, cpu-clock.
const SECONDS_PER_SAMPLE: f64 = 1e-3;

/// Samples of one image and scope, or of one procedure of them where the daemon keeps names.
#[derive(Debug)]
struct Row {
    image: String,
    path: String,
    image_id: String,
    scope: Scope,
    procedure: Option<String>,
    samples: u64,
}

/// The replayed recording, and the seconds that its workloads reported.
struct Replayed {
    rows: Vec<Row>,
    /// Samples without an image, by reason.
    unresolved: BTreeMap<String, u64>,
    /// Questions that were not asked when the recording was made.
    unanswered: u64,
    truth: Value,
}

fn file(name: &str, ending: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/recordings/{name}.{ending}"))
}

fn recording(name: &str) -> Recording {
    Recording::open(&file(name, "dcpid-input")).unwrap()
}

/// The rows of a profile: one, or one for each procedure whose name is kept.
fn rows(epoch: &Epoch, key: &ProfileKey) -> Vec<Row> {
    let images = epoch.images().unwrap();
    let (image, symbols) = (&images[&key.image], epoch.symbols(&key.image).unwrap());
    let mut by_name: BTreeMap<Option<String>, u64> = BTreeMap::new();
    for (offset, samples) in epoch.profile(key).unwrap().iter() {
        let symbol = symbols.iter().find(|symbol| (symbol.start..symbol.end).contains(&offset.0));
        *by_name.entry(symbol.map(|symbol| symbol.name.clone())).or_default() += samples;
    }
    let row = |(procedure, samples)| Row {
        image: image.name.clone(),
        path: image.path.clone(),
        image_id: key.image.to_string(),
        scope: key.scope.clone(),
        procedure,
        samples,
    };
    by_name.into_iter().map(row).collect()
}

impl Replayed {
    fn of(name: &str) -> Self {
        let replayed = Self::from(name, recording(name));
        assert_eq!(replayed.unanswered, 0, "{name}: the recording answers every question");
        replayed
    }

    fn from(name: &str, recording: Recording) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("db");
        let done = replay(recording, &root).unwrap();
        assert!(profiledb::check(&root).unwrap().is_empty());
        let epoch = Database::open(&root).unwrap().epoch("host", &done.epoch).unwrap();
        let keys = epoch.profiles().unwrap();
        let truth = std::fs::read_to_string(file(name, "truth.json")).unwrap();
        assert_eq!(1e-9 * epoch.meta().events[0].period as f64, SECONDS_PER_SAMPLE, "{name}");
        let ledger = epoch.meta().ledgers.sum("cpu-clock");
        assert!(ledger.closes(), "{name}: {ledger:?}");
        Self {
            rows: keys.iter().flat_map(|key| rows(&epoch, key)).collect(),
            unresolved: ledger.unresolved,
            unanswered: done.unanswered,
            truth: serde_json::from_str(&truth).unwrap(),
        }
    }

    /// The CPU time that the samples of these rows stand for, s.
    fn seconds(&self, is: impl Fn(&Row) -> bool) -> f64 {
        let rows = self.rows.iter().filter(|row| is(row));
        SECONDS_PER_SAMPLE * rows.map(|row| row.samples).sum::<u64>() as f64
    }

    fn seconds_of_image(&self, name: &str) -> f64 {
        self.seconds(|row| row.image == name)
    }

    /// The CPU time whose samples have no image for this reason, s.
    fn seconds_without(&self, reason: &str) -> f64 {
        SECONDS_PER_SAMPLE * self.unresolved.get(reason).copied().unwrap_or(0) as f64
    }

    /// A number that a workload said.
    fn said(&self, pointer: &str) -> f64 {
        self.truth.pointer(pointer).and_then(Value::as_f64).unwrap()
    }

    /// Seconds that workloads said, by what they are of.
    fn said_by(&self, pointer: &str) -> BTreeMap<String, f64> {
        serde_json::from_value(self.truth.pointer(pointer).unwrap().clone()).unwrap()
    }
}

/// Fails the test unless the seconds are those expected, give or take three standard deviations of
/// a number of samples that were taken by chance, and 3 % for time that the host of the virtual
/// machine took while a workload's own clock ran.
fn assert_about(what: &str, seconds: f64, expected: f64) {
    let samples = expected / SECONDS_PER_SAMPLE;
    let tolerance = 3.0 * samples.sqrt() * SECONDS_PER_SAMPLE + 0.03 * expected;
    eprintln!("{what}: {seconds:.3} s in samples, {expected:.3} s by its own clock");
    assert!(
        (seconds - expected).abs() <= tolerance,
        "{what}: {seconds:.3} s, not {expected:.3} s within {tolerance:.3} s"
    );
}

/// Two images of one name, told apart by their build ids: each has its own time.
fn assert_two_builds(replayed: &Replayed, image: &str, work_s: &BTreeMap<String, f64>) {
    let rows = || replayed.rows.iter().filter(|row| row.image == image);
    let ids: BTreeSet<&str> = rows().map(|row| row.image_id.as_str()).collect();
    assert_eq!(ids, work_s.keys().map(String::as_str).collect(), "two images of one name");
    for (id, expected) in work_s {
        assert_about(id, replayed.seconds(|row| row.image_id == *id), *expected);
    }
}

/// A program built again in place and run again, several times within one drain: the second build's
/// samples went to the first, or nowhere.
#[test]
fn a_program_built_anew_in_place_is_a_second_image() {
    let replayed = Replayed::of("rebuilt");
    assert_two_builds(&replayed, "program", &replayed.said_by("/program"));
}

/// The same with a library whose code the sampler counts once for all processes.
#[test]
fn a_library_built_anew_in_place_is_a_second_image() {
    let replayed = Replayed::of("rebuilt");
    assert_two_builds(&replayed, "libc-rebuilt.so", &replayed.said_by("/libc-rebuilt.so"));
}

/// One process number for 80 processes, dozens of them within a drain, with one of two libraries at
/// one address.
#[test]
fn programs_that_reuse_process_numbers_keep_their_own_time() {
    let replayed = Replayed::of("process-numbers");
    assert_two_builds(&replayed, "liblibrary.so", &replayed.said_by(""));
}

/// The recording as it would be if the kernel had dropped its record of what `pid` mapped from
/// `path`, and the loader hook had told of that mapping: dcpid takes it up at the next drain.
/// Without `hook`, nobody tells.
fn with_a_dropped_record(mut recording: Recording, pid: u32, path: &str, hook: bool) -> Recording {
    let is_dropped = |record: &TimedRecord| match &record.kind {
        RecordKind::Mmap(mapped) => mapped.pid == pid && mapped.path == path.as_bytes(),
        _ => false,
    };
    let (mut steps, mut told, mut drained_ns) = (Vec::new(), Vec::new(), None);
    for mut step in std::mem::take(&mut recording.steps) {
        if let Step::Drain { ended_ns, .. } = step {
            drained_ns = Some(ended_ns);
        }
        let Step::Records { records, .. } = &mut step else {
            steps.push(step);
            continue;
        };
        told.extend(records.extract_if(.., |record| is_dropped(record)));
        steps.push(step);
        // What is read after a drain is of the drain, and so are notices.
        if let Some(time_ns) = drained_ns.take() {
            let told = told.drain(..).filter(|_| hook);
            steps.extend(told.map(|record| Step::Learnt(TimedRecord { time_ns, ..record })));
        }
    }
    assert!(told.is_empty(), "a drain follows");
    Recording { steps, ..recording }
}

/// Where the kernel's record of a mapping was dropped and the loader hook told of the mapping, the
/// samples go to the same image.
#[test]
fn what_the_loader_hook_tells_is_as_good_as_a_record() {
    let by_pid = Replayed::of("apart").said_by("/kept_s");
    let (pid, expected) = by_pid.iter().max_by(|one, other| one.1.total_cmp(other.1)).unwrap();
    let pid = pid.parse().unwrap();
    let seconds = |hook| {
        let recording = with_a_dropped_record(recording("apart"), pid, "/opt/build/kept", hook);
        let replayed = Replayed::from("apart", recording);
        replayed.seconds(|row| row.image == "kept" && row.scope.pid == Some(pid))
    };
    assert_about("told by the hook", seconds(true), *expected);
    assert!(seconds(false) < 0.1 * expected, "nobody told: {} s", seconds(false));
}

const LABELS: [&str; 2] = ["late", "run"];

fn with_label(label: &str) -> impl Fn(&Row) -> bool {
    move |row| row.scope.label.as_deref() == Some(label)
}

/// A service that runs already is labelled with what it has started.
#[test]
fn a_running_process_is_labelled_with_its_children() {
    let replayed = Replayed::of("apart");
    let truth = replayed.said("/late_s");
    let labelled = replayed.seconds(|row| row.image == "late" && with_label("late")(row));
    assert_about("all of it", replayed.seconds_of_image("late"), truth);
    let before = replayed.seconds_of_image("late") - labelled;
    eprintln!("{before:.3} s before the label, {labelled:.3} s after");
    assert!(before > 0.2 && labelled > 0.4 * truth, "{before} {labelled}");
}

/// A process number is used again while the samples of its first owner are still being drained.
#[test]
fn a_process_number_that_is_used_again_does_not_inherit_a_label() {
    let replayed = Replayed::of("apart");
    let labelled = replayed.seconds(|row| row.image == "first" && with_label("run")(row));
    assert_about("the labelled", labelled, replayed.said("/first_s"));
    assert_about("all of it", replayed.seconds_of_image("first"), replayed.said("/first_s"));
    assert_about("the next", replayed.seconds_of_image("next"), replayed.said("/next_s"));
    let is_labelled = |row: &&Row| row.image == "next" && row.scope.label.is_some();
    assert_eq!(replayed.rows.iter().filter(is_labelled).count(), 0);
}

/// Samples of processes without a label have no label, and a label has only its own processes'
/// samples.
#[test]
fn labels_are_of_those_who_were_labelled() {
    let replayed = Replayed::of("apart");
    let labels = replayed.rows.iter().filter_map(|row| row.scope.label.as_deref());
    assert_eq!(labels.collect::<BTreeSet<_>>(), LABELS.into());
    for image in ["served", "kept"] {
        let of_image = |row: &&Row| row.image == image;
        assert!(replayed.rows.iter().filter(of_image).all(|row| row.scope.label.is_none()));
    }
}

#[test]
fn an_image_can_be_kept_apart_by_process() {
    let replayed = Replayed::of("apart");
    let by_pid = replayed.said_by("/kept_s");
    let of_image = |row: &&Row| row.image == "kept";
    let pids = replayed.rows.iter().filter(of_image).map(|row| row.scope.pid.unwrap().to_string());
    assert_eq!(pids.collect::<BTreeSet<_>>(), by_pid.keys().cloned().collect());
    for (pid, expected) in &by_pid {
        let is = |row: &Row| row.scope.pid == pid.parse().ok();
        assert_about(pid, replayed.seconds(is), *expected);
    }
    let others = |row: &&Row| row.image != "kept";
    assert!(replayed.rows.iter().filter(others).all(|row| row.scope.pid.is_none()));
}

#[test]
fn units_are_kept_apart() {
    let replayed = Replayed::of("apart");
    let of_unit = |unit: Option<&str>| {
        replayed.seconds(|row| row.image == "served" && row.scope.unit.as_deref() == unit)
    };
    assert_about("batch", of_unit(Some("dcpi-batch.service")), replayed.said("/batch_s"));
    assert_about("in no unit", of_unit(None), replayed.said("/outside_s"));
    // It ran before the daemon did.
    let (web, all) = (of_unit(Some("dcpi-web.service")), replayed.said("/web_s"));
    assert!(web > 0.3 * all && web < 1.08 * all, "{web:.3} s of {all:.3} s");
}

/// What is left out is a number: an image by its name or its path, a process with the children that
/// it had and those that it got.
#[test]
fn what_is_left_out_leaves_a_number() {
    let by_path = {
        let mut recording = recording("apart");
        let path = "/opt/build/secret-image".to_owned();
        recording.start.rules.exclude_images = Images::new(&[path]);
        Replayed::from("apart", recording)
    };
    for replayed in [Replayed::of("apart"), by_path] {
        let [image, process] = ["/secret_image_s", "/secret_process_s"].map(|at| replayed.said(at));
        let excluded = replayed.seconds_without("excluded");
        eprintln!("{excluded:.3} s left out, {image:.3} s and {process:.3} s by their own clocks");
        // The process ran before the daemon did.
        assert!(excluded > 0.92 * image + 0.3 * process, "{excluded:.3} s");
        assert!(excluded < 1.08 * (image + process), "{excluded:.3} s");
        let trace = replayed.rows.iter().find(|row| row.path.contains("secret"));
        assert!(trace.is_none(), "{trace:?}");
    }
}

/// The rules are what leaves out: without them the same samples are there.
#[test]
fn what_is_not_left_out_is_there() {
    let mut recording = recording("apart");
    recording.start.rules.exclude_images = Images::default();
    recording.start.rules.exclude_pids.clear();
    let replayed = Replayed::from("apart", recording);
    assert_about(
        "the image",
        replayed.seconds_of_image("secret-image"),
        replayed.said("/secret_image_s"),
    );
    assert!(replayed.seconds_of_image("secret-process") > 0.3 * replayed.said("/secret_process_s"));
    assert_eq!(replayed.unresolved.get("excluded"), None);
}

/// Samples of a procedure of the generated code of one of the workloads.
fn generated(replayed: &Replayed, of: &str, procedure: &str) -> f64 {
    let image = format!("[jit] jit {}", replayed.said(&format!("/{of}/pid")));
    replayed.seconds(|row| row.image == image && row.procedure.as_deref() == Some(procedure))
}

/// Every way in which compilers report their code: in a map, in a map of code that lies in a memory
/// file, in a dump.
#[test]
fn code_made_at_run_time_has_its_names_and_its_time() {
    let replayed = Replayed::of("generated");
    for mode in ["map", "memfd", "dump"] {
        for (name, key) in [("made first", "first_s"), ("made_second", "second_s")] {
            let expected = replayed.said(&format!("/{mode}/{key}"));
            assert_about(&format!("{mode}: {name}"), generated(&replayed, mode, name), expected);
        }
    }
}

#[test]
fn what_node_compiles_has_its_names_and_its_time() {
    let replayed = Replayed::of("node");
    let image = format!("[jit] node {}", replayed.said("/pid"));
    for (name, key) in [("firstOfTwo", "/first_s"), ("secondOfTwo", "/second_s")] {
        let is_named = |row: &Row| row.procedure.as_deref().is_some_and(|row| row.contains(name));
        let seconds = replayed.seconds(|row| row.image == image && is_named(row));
        assert_about(name, seconds, replayed.said(key));
    }
}

/// Without its option a compiler publishes no map, and its samples have a reason of their own.
#[test]
fn a_compiler_that_tells_nothing_is_named() {
    let replayed = Replayed::of("generated");
    let expected = replayed.said("/silent/first_s") + replayed.said("/silent/second_s");
    assert_about("silent", replayed.seconds_without("jit_without_map"), expected);
}

#[test]
fn a_registered_region_has_its_name_from_then_on() {
    let replayed = Replayed::of("generated");
    let first = generated(&replayed, "registered", "first of mine");
    let is_second =
        |row: &Row| row.image == "an image" && row.procedure.as_deref() == Some("second_of_mine");
    let second = replayed.seconds(is_second);
    let all = replayed.said("/registered/first_s") + replayed.said("/registered/second_s");
    eprintln!("{first:.3} s and {second:.3} s of {all:.3} s");
    assert!(first + second > 0.8 * all && first + second < 1.08 * all);
    let share = first / (first + second);
    assert!((0.7..0.8).contains(&share), "three quarters: {share:.3}");
    assert!(replayed.rows.iter().all(|row| row.procedure.as_deref() != Some("nowhere")));
}

/// A region that is taken back has no samples from then on. What is nobody's in the end: before
/// registrations, and after this.
#[test]
fn a_region_that_is_taken_back_is_unattributed() {
    let replayed = Replayed::of("generated");
    let forgotten = generated(&replayed, "unregistered", "forgotten");
    let all = replayed.said("/unregistered/first_s") + replayed.said("/unregistered/second_s");
    let unattributed = replayed.seconds_without("anonymous_memory");
    eprintln!("{forgotten:.3} s of {all:.3} s; {unattributed:.3} s are nobody's");
    assert!(forgotten > 0.05 * all && forgotten < 0.7 * all, "{forgotten:.3} s of {all:.3} s");
    assert!(unattributed > 0.3 * all, "{unattributed:.3} s");
}

/// A copy of a program's code in memory of no file, as loaders make for huge pages: its samples are
/// the program's.
#[test]
fn a_region_that_is_a_copy_of_a_file_counts_as_the_file() {
    let replayed = Replayed::of("generated");
    let all = replayed.said("/copied/first_s") + replayed.said("/copied/second_s");
    let copied = replayed.seconds_of_image("liblibrary.so");
    eprintln!("{copied:.3} s of {all:.3} s");
    assert!(copied > 0.8 * all && copied < 1.08 * all, "{copied:.3} s of {all:.3} s");
}

//! Compares reports with perf's and with known values, on the real kernel. Each test needs root:
//! `cargo xtask test` runs them, and without root they fail.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::daemon::{Daemon, Place, start_by_time};
use tests::report::{dcpi, prof};
use tests::workload::{Running, Workload, script};
use tests::{require_root, succeed};

/// Pairs of runs, the second with 5 % more of one procedure: 500 samples more, with a sampling
/// error of 143. About four of five pairs are marked (the unit tests of the statistics have the
/// number), so that hardly ever none of three is.
const PAIRS: usize = 3;
/// Pairs of equal runs. Each is marked with a probability of at most 5 %, so that at most 1.6 % of
/// the tests have more than [`FALSE_MARKS_MAX`] marks.
const SAME: usize = 20;
const FALSE_MARKS_MAX: usize = 3;

/// Runs `portions` under a label.
fn run(place: &Place, workload: &Workload, label: &str, portions_ms: [u32; 3]) {
    let mut command = place.dcpilabel(label);
    command.arg(workload.program()).args(portions_ms.map(|ms| ms.to_string()));
    let _ = succeed(&mut command);
}

fn report(place: &Place, subcommand: &str, arguments: &[&str]) -> Value {
    let text = succeed(
        dcpi(&place.db(), subcommand, &["--format", "json", "--image", "portions"]).args(arguments),
    );
    serde_json::from_str(&text).unwrap()
}

fn marked(report: &Value) -> Vec<String> {
    let rows = report["rows"].as_array().unwrap().iter().filter(|row| row["significant"] == true);
    rows.map(|row| row["procedure"].as_str().unwrap().to_owned()).collect()
}

fn with_portions(test: impl FnOnce(&Place, &Workload, Daemon<'_>)) {
    require_root();
    let place = Place::default();
    let workload = Workload::build(place.path(), "portions", &[]);
    test(&place, &workload, start_by_time(&place));
}

/// Figure 3 of the paper: of eight runs, what made them differ.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn the_procedure_that_makes_runs_differ_comes_first() {
    with_portions(|place, workload, daemon| {
        let labels: Vec<String> = (0..8).map(|n| format!("run{n}")).collect();
        for (label, ms) in labels.iter().zip([100, 180, 110, 105, 170, 100, 120, 145]) {
            run(place, workload, label, [400, ms, 200]);
        }
        daemon.flush();
        let sets: Vec<String> = labels.iter().map(|label| format!("label:{label}")).collect();
        let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
        let report = report(place, "stats", &sets);
        eprintln!("{}", succeed(dcpi(&place.db(), "stats", &["--image", "portions"]).args(&sets)));
        let first = &report["rows"][0];
        assert_eq!(
            (first["procedure"].as_str(), first["n"].as_u64()),
            (Some("variable"), Some(8)),
            "{report:#}"
        );
        assert_eq!(first["significant"], true);
        assert_eq!(daemon.quit().code(), Some(0));
    });
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn the_same_twice_is_left_alone_and_five_percent_more_are_found() {
    with_portions(|place, workload, daemon| {
        for n in 0..=SAME {
            run(place, workload, &format!("same{n}"), [300, 100, 50]);
        }
        // 2 s at 5200 per second.
        for n in 0..PAIRS {
            run(place, workload, &format!("before{n}"), [300, 2000, 200]);
            run(place, workload, &format!("after{n}"), [300, 2100, 200]);
        }
        daemon.flush();
        let mut false_marks = 0;
        for n in 0..SAME {
            let sets = [format!("label:same{n}"), format!("label:same{}", n + 1)];
            for measure in ["", "--amounts"] {
                let arguments: Vec<&str> = [sets[0].as_str(), &sets[1], measure]
                    .into_iter()
                    .filter(|word| !word.is_empty())
                    .collect();
                let marked = marked(&report(place, "diff", &arguments));
                eprintln!("{sets:?} {measure}: {marked:?}");
                false_marks += usize::from(!marked.is_empty() && measure.is_empty());
            }
        }
        let (mut found, mut covered, mut others) = (0, 0, 0);
        for n in 0..PAIRS {
            let sets = [format!("label:before{n}"), format!("label:after{n}")];
            let arguments = [&sets[0], sets[1].as_str(), "--amounts", "--confidence"];
            let change = report(place, "diff", &[&arguments[..], &["99.9"]].concat());
            let row = change["rows"]
                .as_array()
                .unwrap()
                .iter()
                .find(|row| row["procedure"] == "variable")
                .unwrap();
            let number = |key: &str| row[key].as_f64().unwrap();
            assert!((5000.0..12_000.0).contains(&number("a")), "{row}");
            let truth = 0.05 * number("a");
            covered += usize::from((number("low")..number("high")).contains(&truth));
            eprintln!(
                "{}",
                succeed(dcpi(&place.db(), "diff", &["--image", "portions"]).args(&arguments[..3]))
            );
            let marked = marked(&report(place, "diff", &arguments[..3]));
            found += usize::from(marked.iter().any(|procedure| procedure == "variable"));
            others += usize::from(marked.iter().any(|procedure| procedure != "variable"));
        }
        eprintln!("found in {found} of {PAIRS}, the true difference covered in {covered}");
        assert!(false_marks <= FALSE_MARKS_MAX, "{false_marks} of {SAME}");
        assert!(covered + 1 >= PAIRS, "the true difference is in {covered} of {PAIRS} intervals");
        assert!(
            found >= 1 && others <= 1,
            "found in {found} of {PAIRS}, others marked in {others}"
        );
        assert_eq!(daemon.quit().code(), Some(0));
    });
}

/// Samples by image and procedure.
type Rows = BTreeMap<(String, String), u64>;

/// Seconds of sampling by both.
const SECONDS: u32 = 8;
/// Standard deviations of each one's interval: 99 %. Both ends together leave 1 in 4000 rows
/// outside by chance.
const Z: f64 = 2.576;

/// perf and dcpid on one machine in the same seconds, each with timers of its own: two samples of
/// the same time.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn the_top_twenty_procedures_have_the_shares_that_perf_sees() {
    require_root();
    let place = Place::default();
    let directory = place.path();
    let length = 3 * SECONDS;
    let build = |name: &str, flags: &[&str]| Workload::build(directory, name, flags);
    let others =
        [build("two_functions", &[]), build("kernel_reader", &[]), build("stripped", &["-s"])];
    let sorting = directory.join("sorting");
    let _ = succeed(
        Command::new("c++")
            .args(["-O1", "-Wl,--build-id", "-o"])
            .arg(&sorting)
            .arg(script("sorting.cc")),
    );
    let counting = directory.join("counting");
    let _ =
        succeed(Command::new("rustc").args(["-O", "-o"]).arg(&counting).arg(script("counting.rs")));
    let mut running: Vec<Running> = others.iter().map(|workload| workload.start(length)).collect();
    for program in [&sorting, &counting] {
        running.push(Running::start(Command::new(program).arg(length.to_string())));
    }
    let node = ["--perf-basic-prof", script("jit.js").to_str().unwrap()].map(str::to_owned);
    // It leaves a log where it runs, and its names where both tools look.
    let node = Running::start(
        Command::new("node").args(node).arg(length.to_string()).current_dir(directory),
    );
    let names = PathBuf::from(format!("/tmp/perf-{}.map", node.pid()));
    running.push(node);
    let daemon = start_by_time(&place);
    std::thread::sleep(Duration::from_secs(2)); // until all have begun to work
    let data = directory.join("perf.data");
    let epoch = |label: &str| {
        let command = place.dcpictl(&["epoch", "--label", label]);
        let words = [command.get_program()].into_iter().chain(command.get_args());
        words.map(|word| format!("'{}'", word.to_str().unwrap())).collect::<Vec<_>>().join(" ")
    };
    // perf samples while the shell lives, and takes seconds before and after. An epoch ends when
    // its end is asked for, not when that is on disk: the shell does not wait for it.
    let ended = directory.join("ended");
    let end =
        format!("({}; echo >{}) </dev/null >/dev/null 2>&1 &", epoch("after"), ended.display());
    let beside = format!("{}; sleep {SECONDS}; {end}", epoch("beside"));
    let mut perf = Command::new("perf");
    perf.args(["record", "-a", "-q", "-B", "-N", "-e", "cpu-clock", "-F", "2999", "-o"]).arg(&data);
    let _ = succeed(perf.args(["--", "sh", "-c", &beside]));
    let patience = Instant::now() + Duration::from_secs(30);
    while !ended.exists() && Instant::now() < patience {
        // Another process's work: there is nothing to wait on.
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(ended.exists(), "dcpictl epoch did not end");
    let ours = prof(&place.db(), &["--idle", "--epoch", "all", "--epoch-label", "beside"]);
    drop(running);
    let perfs = perf_report(&data);
    let _ = std::fs::remove_file(names); // only to be tidy
    let (mut rows, mut idle) = (Rows::new(), Vec::new());
    for row in &ours.rows {
        let procedure = row.procedure.clone().unwrap_or_default();
        if row.image == "[idle]" {
            idle.push(procedure);
        } else {
            *rows.entry(plain(&row.image, &procedure)).or_default() += row.samples();
        }
    }
    // What neither has an image for is in no row; idle time is the machine's, not the programs'.
    let perfs: Rows =
        perfs.into_iter().filter(|((_, procedure), _)| !idle.contains(procedure)).collect();
    compare(&rows, &perfs);
    assert_eq!(daemon.quit().code(), Some(0));
}

/// Prints both side by side, and fails the test where they do not agree.
fn compare(ours: &Rows, perfs: &Rows) {
    let (all, all_perf): (u64, u64) = (ours.values().sum(), perfs.values().sum());
    let mut top: Vec<(&(String, String), u64)> =
        ours.iter().map(|(name, samples)| (name, *samples)).collect();
    top.sort_by_key(|(_, samples)| std::cmp::Reverse(*samples));
    eprintln!(
        "{all} samples by dcpid, {all_perf} by perf\n{:>22} {:>22}  procedure",
        "dcpid %", "perf %"
    );
    let mut apart = Vec::new();
    for (name, samples) in top.into_iter().take(20) {
        let (a, b) =
            (interval(samples, all), interval(perfs.get(name).copied().unwrap_or(0), all_perf));
        let agree = a.1 <= b.2 && b.1 <= a.2;
        let shown = |(share, low, high): (f64, f64, f64)| {
            format!("{:6.2} ({:5.2} to {:5.2})", 100.0 * share, 100.0 * low, 100.0 * high)
        };
        eprintln!(
            "{:>22} {:>22}  {} ({}){}",
            shown(a),
            shown(b),
            name.1,
            name.0,
            if agree { "" } else { "  APART" }
        );
        if !agree {
            apart.push(name);
        }
    }
    assert!(apart.is_empty(), "of the top 20, these are apart: {apart:?}");
}

/// A share and Wilson's interval.
fn interval(samples: u64, all: u64) -> (f64, f64, f64) {
    let (n, share) = (all as f64, samples as f64 / all as f64);
    let (middle, scale) = (share + Z * Z / (2.0 * n), 1.0 + Z * Z / n);
    let reach = Z * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
    (share, (middle - reach) / scale, (middle + reach) / scale)
}

/// `perf report`, in our words.
fn perf_report(data: &std::path::Path) -> Rows {
    let mut perf = Command::new("perf");
    perf.args(["report", "--stdio", "-q", "-F", "sample,dso,sym", "-t", "\t", "-i"]).arg(data);
    let mut rows = Rows::new();
    for line in succeed(&mut perf).lines() {
        let mut cells = line.split('\t').map(str::trim);
        let (Some(samples), Some(image), Some(procedure)) =
            (cells.next(), cells.next(), cells.next())
        else {
            continue;
        };
        let Ok(samples) = samples.parse::<u64>() else { continue };
        // The sign of the mode: [k] or [.]
        let procedure = procedure.split_once("] ").map_or(procedure, |(_, name)| name);
        *rows.entry(plain(image, procedure)).or_default() += samples;
    }
    rows
}

/// Maps the names of both tools to a common one. For code without a name perf prints the address of
/// each sample, and dcpi that of the procedure. perf does not name the stubs of all linkage tables
/// (`swap@plt`).
fn plain(image: &str, procedure: &str) -> (String, String) {
    let is_script = |image: &str| {
        [".js", "[jit]", "[JIT]", "perf-"]
            .iter()
            .any(|part| image.starts_with(part) || image.ends_with(part))
    };
    let image = match image {
        "[kernel.kallsyms]" | "[kernel.vmlinux]" => "[kernel]",
        // dcpi's jit.js, or [jit] node 4711 where it has no function; perf's [JIT] tid 4711 or
        // perf-4711.map
        script if is_script(script) => "[jit]",
        other => other,
    };
    // V8's names of compiled functions: `JS:*firstOfTwo /x/jit.js:3:20`.
    let procedure = match procedure.split_once(':') {
        Some((_, name)) if image == "[jit]" => {
            name.trim_start_matches(['*', '~', '^', '+']).split(' ').next().unwrap_or(name)
        }
        _ => procedure,
    };
    if procedure.starts_with("0x") || procedure.starts_with('[') || procedure.ends_with("@plt") {
        return (image.to_owned(), "[without name]".to_owned());
    }
    // Two names of one address in the C library: perf takes one, dcpi the other.
    if procedure.starts_with("cfree@") || procedure == "cfree" {
        return (image.to_owned(), "free".to_owned());
    }
    // They write types of C++ and Rust differently: what is in brackets, and results before the
    // name, is left out.
    let mut depth = 0;
    let mut base = String::new();
    for c in procedure.chars() {
        depth += i32::from(matches!(c, '<' | '('));
        if depth == 0 {
            base.push(c);
        }
        depth -= i32::from(matches!(c, '>' | ')') && depth > 0);
    }
    let base = base.strip_suffix(" const").unwrap_or(&base);
    let base = base.split_whitespace().next_back().unwrap_or(procedure);
    // Versions of a symbol, and parts that a compiler took out of a procedure, are that procedure.
    let base = base.split(['@', '.']).next().unwrap_or(base);
    // One procedure of the C library, or of the kernel's page in programs, with two names.
    let base = base.strip_prefix("__vdso_").unwrap_or(base);
    (image.to_owned(), base.replace("__memcpy_", "__memmove_"))
}

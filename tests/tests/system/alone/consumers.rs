//! Reads the formats of `dcpi export` with the programs they are for: Go's pprof, LLVM's profile
//! reader, compiler and BOLT, Google's AutoFDO tools, OpenTelemetry's own messages, and the Firefox
//! profiler's importer. `cargo xtask consumers` installs these and runs the tests; they take half a
//! gigabyte, so neither `cargo xtask test` nor the gate does. Needs root, to record the workload
//! that all of them read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use tests::daemon::{Place, start_by_time};
use tests::report::{dcpi, prof};
use tests::workload::Running;
use tests::{require_root, run, succeed};

const SECONDS: &str = "3";

/// A recorded run of `feedback.c` as clang builds it with these flags.
struct Recorded {
    place: Place,
    program: PathBuf,
}

fn record(flags: &[&str]) -> Recorded {
    require_root();
    let place = Place::default();
    let program = place.path().join("feedback");
    let _ = succeed(
        clang()
            .args(flags)
            .args(["-Wl,--build-id,--emit-relocs", "-o"])
            .arg(&program)
            .arg(source()),
    );
    let daemon = start_by_time(&place);
    let _ = Running::start(Command::new(&program).arg(SECONDS)).wait();
    daemon.flush();
    drop(daemon);
    Recorded { place, program }
}

fn clang() -> Command {
    let mut clang = Command::new("clang-19");
    clang.args(["-O2", "-g", "-fdebug-info-for-profiling"]);
    clang
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads/feedback.c")
}

impl Recorded {
    /// An export of the program's samples.
    fn export(&self, format: &str, arguments: &[&str]) -> PathBuf {
        let file = self.place.path().join(format!("out.{format}"));
        let arguments = [
            &["--to", format, "-o", file.to_str().unwrap(), self.program.to_str().unwrap()],
            arguments,
        ]
        .concat();
        let _ = succeed(&mut dcpi(&self.place.db(), "export", &arguments));
        file
    }

    /// Its samples, and those of `hot`.
    fn samples(&self) -> (u64, u64) {
        let report = prof(&self.place.db(), &[self.program.to_str().unwrap()]);
        let count = |row: &tests::report::Row| row.counts.values().sum::<u64>();
        let hot =
            report.rows.iter().find(|row| row.procedure.as_deref() == Some("hot")).map_or(0, count);
        (report.rows.iter().map(count).sum(), hot)
    }
}

#[test]
#[ignore = "needs root and the programs that cargo xtask consumers installs"]
fn go_tool_pprof() {
    let recorded = record(&[]);
    let (all, hot) = recorded.samples();
    for arguments in [&[][..], &["--lines"], &["--no-symbols"]] {
        let file = recorded.export("pprof", arguments);
        let pprof = |words: &[&str]| {
            let mut command = Command::new("go");
            command
                .args(["tool", "pprof"])
                .args(words)
                .arg(&file)
                .env("PPROF_TMPDIR", recorded.place.path());
            succeed(&mut command)
        };
        let top = pprof(&["-top", "-unit=count"]);
        assert!(top.contains(&format!("Total samples = {all} ")), "{top}");
        // Inlined calls are frames of their own: what comes below `hot` is summed in the second
        // column.
        let row = top
            .lines()
            .find(|line| line.trim_end().ends_with(" hot"))
            .unwrap_or_else(|| panic!("{top}"));
        let cumulative: u64 = row.split_whitespace().nth(3).unwrap().parse().unwrap();
        assert_eq!(cumulative, hot, "{arguments:?}: {top}");
        // Lines are ours, or pprof's own where it symbolises.
        if !arguments.is_empty() {
            let list = pprof(&["-list", "^hot$"]);
            assert!(list.contains("x % 1000 == 0"), "{arguments:?}: {list}");
        }
    }
}

/// clang compiles the program again with its profile: every record is applied at its line, and the
/// branch is known to be rarely taken.
#[test]
#[ignore = "needs root and the programs that cargo xtask consumers installs"]
fn clang_is_fed_with_the_profile() {
    let recorded = record(&[]);
    let (_, hot) = recorded.samples();
    let mut profile = PathBuf::new();
    for (arguments, total) in [(&["--no-edges"][..], hot.to_string()), (&[], String::new())] {
        profile = recorded.export("autofdo", arguments);
        for llvm in ["19", "22"] {
            let merged = recorded.place.path().join("merged");
            let profdata = || Command::new(format!("llvm-profdata-{llvm}"));
            let _ = succeed(
                profdata().args(["merge", "--sample"]).arg(&profile).arg("-o").arg(&merged),
            );
            let shown = succeed(profdata().args(["show", "--sample"]).arg(&merged));
            assert!(shown.contains(&format!("Function: hot: {total}")), "{shown}");
        }
        let text = std::fs::read_to_string(&profile).unwrap();
        let head = text.lines().find(|line| line.starts_with("hot:")).unwrap();
        let mut numbers = head.split(':').skip(1).map(|number| number.parse::<u64>().unwrap());
        let (all, entries) = (numbers.next().unwrap(), numbers.next().unwrap());
        // It is a loop of many rounds, and does not call itself.
        let own = text
            .lines()
            .skip_while(|line| *line != head)
            .skip(1)
            .take_while(|line| line.starts_with(' '));
        assert!(all > 10 * entries && own.clone().count() > 5, "{text}");
        assert!(own.clone().all(|line| !line.contains(" hot:")), "{text}");
    }
    let mut compile = clang();
    compile.args(["-S", "-emit-llvm", "-Rpass-analysis=sample-profile-impl", "-o", "-"]);
    compile.arg(format!("-fprofile-sample-use={}", profile.display())).arg(source());
    let output = run(&mut compile);
    let (code, remarks) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success() && !remarks.contains("warning:"), "{remarks}");
    let source = std::fs::read_to_string(source()).unwrap();
    let applied = |text: &str| -> u64 {
        let line = source.lines().position(|line| line.contains(text)).unwrap() + 1;
        let at = format!("feedback.c:{line}:");
        let samples =
            |remark: &str| remark.split_once("Applied ")?.1.split(' ').next()?.parse::<u64>().ok();
        remarks.lines().filter(|remark| remark.contains(&at)).filter_map(samples).max().unwrap_or(0)
    };
    let (likely, rarely) = (applied("x % 1000 == 0"), applied("sum += rare(x)"));
    assert!(likely > 100 * rarely.max(1) / 2 && applied("x ^= x << 5") > 100, "{remarks}");
    assert!(code.contains("!\"branch_weights\""), "no weights came of the profile");
}

/// The AutoFDO tools make the same lines of our addresses as we of ours. Their release in Debian
/// reads DWARF 4.
#[test]
#[ignore = "needs root and the programs that cargo xtask consumers installs"]
fn create_llvm_prof() {
    for flags in [&["-gdwarf-4"][..], &["-gdwarf-4", "-no-pie"]] {
        let recorded = record(flags);
        let (addresses, ours) = (
            recorded.export("autofdo-addresses", &[]),
            recorded.export("autofdo", &["--no-edges"]),
        );
        let theirs = recorded.place.path().join("theirs");
        let mut tool = Command::new("create_llvm_prof");
        tool.args(["--profiler=text", "--use_lbr=false", "--format=text"]);
        tool.arg(format!("--binary={}", recorded.program.display()));
        tool.arg(format!("--profile={}", addresses.display()))
            .arg(format!("--out={}", theirs.display()));
        let _ = succeed(&mut tool);
        let lines = |file: &Path| -> Vec<String> {
            let text = String::from_utf8_lossy(&std::fs::read(file).unwrap()).into_owned();
            // Theirs has lines without samples too, and spoils the names of inlined calls.
            let counted = |line: &&str| {
                line.starts_with(' ') && !line.ends_with(": 0") && !line.ends_with(":0")
            };
            let number = |line: &str| match line.split_once(": ") {
                Some((at, what)) => format!("{at}: {}", what.rsplit(':').next().unwrap()),
                None => line.to_owned(),
            };
            let body = text
                .split_once("hot:")
                .unwrap()
                .1
                .lines()
                .skip(1)
                .take_while(|line| line.starts_with(' '));
            body.filter(counted).map(number).collect()
        };
        let (ours, theirs) = (lines(&ours), lines(&theirs));
        assert!(ours.len() > 3, "{ours:?}");
        assert_eq!(ours, theirs, "{flags:?}");
    }
}

#[test]
#[ignore = "needs root and the programs that cargo xtask consumers installs"]
fn llvm_bolt() {
    for flags in [&["-pie"][..], &["-no-pie"]] {
        let recorded = record(flags);
        let better = recorded.place.path().join("better");
        let bolted = |export: &[&str], mode: &[&str]| {
            let profile = recorded.export("bolt", export);
            let mut bolt = Command::new("llvm-bolt-22");
            bolt.arg(&recorded.program)
                .args(mode)
                .args(["--pa", "--reorder-blocks=ext-tsp", "-p"])
                .arg(&profile);
            let output = run(bolt.arg("-o").arg(&better));
            let (out, errors) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            let said = format!("{out}{errors}");
            assert!(output.status.success(), "{said}");
            assert!(
                said.contains("have non-empty execution profile") && !said.contains(" 0 out of "),
                "{said}"
            );
            let _ = Running::start(Command::new(&better).arg("0.2")).wait();
            said
        };
        let said = bolted(&["--no-edges"], &["--ba"]);
        assert!(
            said.contains("out of range samples recorded in unknown regions: 0 (0.0%)"),
            "{said}"
        );
        // Branch records, of which each is one that the program has.
        let said = bolted(&[], &[]);
        assert!(
            said.contains("traces mismatching disassembled function contents: 0 (0.0%)"),
            "{said}"
        );
    }
}

/// The messages are OpenTelemetry's own, from the Python package index, for `$DCPI_OTLP_PYTHON`:
/// `workloads/otlp.py` decodes all samples of the machine with them. Each build of a program has as
/// many samples there as in `dcpi prof`.
#[test]
#[ignore = "needs root and the programs that cargo xtask consumers installs"]
fn opentelemetry_proto() {
    #[derive(serde::Deserialize)]
    struct Read {
        samples: BTreeMap<String, BTreeMap<String, u64>>,
        functions: BTreeMap<String, BTreeMap<String, u64>>,
        comments: Vec<String>,
        hosts: Vec<String>,
    }
    let recorded = record(&[]);
    let python =
        std::env::var_os("DCPI_OTLP_PYTHON").expect("cargo xtask consumers sets DCPI_OTLP_PYTHON");
    let reader = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads/otlp.py");
    let images = prof(&recorded.place.db(), &["-i", "-n", "0"]);
    let (_, hot) = recorded.samples();
    for arguments in [&[][..], &["--lines"], &["--no-symbols"]] {
        let file = recorded.place.path().join("out.otlp");
        let arguments = [&["--to", "otlp", "-o", file.to_str().unwrap()], arguments].concat();
        let _ = succeed(&mut dcpi(&recorded.place.db(), "export", &arguments));
        let mut read: Read =
            serde_json::from_str(&succeed(Command::new(&python).arg(&reader).arg(&file)))
                .expect("its own JSON");
        let unknown = read.samples.remove("unknown code").unwrap_or_default();
        assert_eq!(
            unknown.values().sum::<u64>(),
            images.unresolved.values().sum::<u64>(),
            "{unknown:?}"
        );
        let expected: BTreeMap<_, _> =
            images.rows.iter().map(|row| (row.image_id.clone(), row.counts.clone())).collect();
        assert!(
            expected.len() > 2 && read.samples == expected,
            "{:?}, not {expected:?}",
            read.samples
        );
        if !arguments.contains(&"--no-symbols") {
            assert_eq!(read.functions["hot"].values().sum::<u64>(), hot);
        }
        assert!(
            read.comments.iter().any(|comment| comment.starts_with("samples of ")),
            "{:?}",
            read.comments
        );
        assert_eq!(read.hosts.len(), 1);
    }
}

/// `dcpi push` to a receiver that reads the request with OpenTelemetry's own classes
/// (`workloads/otlp_server.py`): all samples of the machine arrive, with their stacks.
#[test]
#[ignore = "needs root and the programs that cargo xtask consumers installs"]
fn opentelemetry_receiver() {
    use std::io::{BufRead as _, BufReader};
    let recorded = record(&[]);
    let python =
        std::env::var_os("DCPI_OTLP_PYTHON").expect("cargo xtask consumers sets DCPI_OTLP_PYTHON");
    let receiver = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads/otlp_server.py");
    let mut command = Command::new(&python);
    let mut child = command.arg(receiver).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let port = lines.next().unwrap().unwrap();
    let state = recorded.place.path().join("push");
    let push = || {
        let mut push = Command::new(tests::binary("dcpi"));
        push.args(["push", "--to", &format!("otlp+http://127.0.0.1:{port}"), "--from"]);
        succeed(push.arg(recorded.place.db()).arg("--state").arg(&state))
    };
    let said = push();
    let read: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert!(child.wait().unwrap().success(), "{said}");
    let all = prof(&recorded.place.db(), &["-i", "-n", "0"]);
    let expected: u64 = all.rows.iter().flat_map(|row| row.counts.values()).sum();
    assert_eq!(read["sums"]["samples"], expected, "{read}");
    assert!(read["depth"].as_u64().unwrap() > 2, "{read}");
    assert!(read["commands"].to_string().contains("feedback"), "{read}");
    // The receiver is gone, and nothing is to be sent.
    assert!(push().contains("nothing new"));
}

/// A trace of `dcpi trace` as Perfetto's own messages, from the Python package index: every call is
/// a slice, on the track of its thread (`workloads/perfetto_trace.py`).
#[test]
#[ignore = "needs root and the programs that cargo xtask consumers installs"]
fn perfetto() {
    require_root();
    let directory = tempfile::tempdir().unwrap();
    let workload =
        tests::workload::Workload::build(directory.path(), "traced", &["-O1", "-g", "-pthread"]);
    let python =
        std::env::var_os("DCPI_OTLP_PYTHON").expect("cargo xtask consumers sets DCPI_OTLP_PYTHON");
    let file = directory.path().join("out.perfetto");
    let mut trace = Command::new(tests::binary("dcpi"));
    trace.args(["trace", "--at", ":step", "--at", ":deep", "--syscalls", "--sched", "-o"]);
    let output = run(trace.arg(&file).arg("--").arg(workload.program()).args(["3", "100", "2"]));
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let reader = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads/perfetto_trace.py");
    let read: serde_json::Value =
        serde_json::from_str(&succeed(Command::new(&python).arg(&reader).arg(&file))).unwrap();
    assert_eq!(read["slices"]["step"], 302, "{read}");
    assert_eq!(read["slices"]["deep"], 5, "{read}");
    assert_eq!(read["threads"], 6, "{read}");
    assert_eq!(read["instants"]["thread"], 11, "begins of five threads and ends of six: {read}");
}

/// The importer is the profiler's own, from npm: `$DCPI_PROFILER_CLI`.
#[test]
#[ignore = "needs root and the programs that cargo xtask consumers installs"]
fn firefox_profiler() {
    let recorded = record(&[]);
    let (all, hot) = recorded.samples();
    let cli = std::env::var_os("DCPI_PROFILER_CLI")
        .expect("cargo xtask consumers sets DCPI_PROFILER_CLI");
    let home = recorded.place.path().join("home");
    std::fs::create_dir(&home).unwrap();
    let command = |words: &[&str]| {
        let mut command = Command::new(&cli);
        command.args(words).env("HOME", &home);
        command
    };
    let file = recorded.export("firefox", &["--lines"]);
    // It waits half a second for its own server, which a busy machine takes longer to start: the
    // server is there a moment later.
    let loaded = run(&mut command(&["load", file.to_str().unwrap()]));
    let mut functions = run(&mut command(&["thread", "functions"]));
    for _ in 0..50 {
        if functions.status.success() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
        functions = run(&mut command(&["thread", "functions"]));
    }
    let _ = run(&mut command(&["stop", "--all"]));
    let text = String::from_utf8_lossy(&functions.stdout).into_owned();
    let row = text
        .lines()
        .find(|line| line.contains("feedback!hot - "))
        .unwrap_or_else(|| panic!("{loaded:?}\n{functions:?}"));
    assert!(row.contains(&format!("total: {hot} (")), "{all} samples: {text}");
}

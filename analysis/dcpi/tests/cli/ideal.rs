//! `dcpi ideal`: exact counts as events of a database, by both engines.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::Value;

use crate::runs::dcpi;

fn run(words: &[&str]) -> Output {
    dcpi().args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Counts of an event in an image, by offset.
fn counts(db: &Path, event: &str, image: &str) -> BTreeMap<String, u64> {
    let db = db.to_str().unwrap();
    let output = run(&["cat", "--db", db, "--event", event, "--format", "json", image]);
    assert!(output.status.success(), "{output:?}");
    let cat: Value = serde_json::from_slice(&output.stdout).unwrap();
    let count =
        |row: &Value| (row["offset"].as_str().unwrap().to_owned(), row["count"].as_u64().unwrap());
    cat["rows"].as_array().unwrap().iter().map(count).collect()
}

/// Callers or callees of a procedure with the numbers of calls, those with the most time first.
fn neighbours(db: &Path, which: &str, procedure: &str) -> Vec<(String, u64)> {
    let db = db.to_str().unwrap();
    let output = run(&[which, "--db", db, "--format", "json", procedure]);
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap().iter();
    let row = |row: &Value| {
        (row["procedure"].as_str().unwrap().to_owned(), row["stacks"].as_u64().unwrap())
    };
    rows.map(row).collect()
}

/// A jump to another procedure is a call, and what calls through a linkage table calls the
/// procedure behind it.
#[test]
fn calls_are_followed_through_tail_calls_and_linkage_tables() {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("calls.c"), folder.path().join("calls"));
    let code = "#include <stdlib.h>\n\
        static int order(const void *a, const void *b) { return *(int *)a - *(int *)b; }\n\
        __attribute__((noinline)) int leaf(int n) { __asm__ volatile(\"\"); return n * 3; }\n\
        __attribute__((noinline)) int tail(int n) { return leaf(n + 1); }\n\
        int main(void) { int n[64], sum = 0; for (int k = 0; k < 40; k++) {\n\
        for (int i = 0; i < 64; i++) n[i] = tail(i * 7919 % 64);\n\
        qsort(n, 64, sizeof *n, order); sum += leaf(n[3]); } return sum & 1; }\n";
    std::fs::write(&source, code).unwrap();
    let mut compiler = std::process::Command::new("cc");
    let compiler = compiler.args(["-O2", "-Wl,-z,lazy", "-o"]).arg(&program).arg(&source);
    assert!(compiler.status().unwrap().success());
    let db = folder.path().join("db");
    let output = run(&["ideal", "-o", db.to_str().unwrap(), "--", program.to_str().unwrap()]);
    assert!(text(&output.stderr).contains("flow: conserved at all"), "{output:?}");
    let of_leaf = neighbours(&db, "callers", "leaf");
    assert_eq!(of_leaf, [("tail".to_owned(), 2560), ("main".to_owned(), 40)]);
    assert_eq!(neighbours(&db, "callers", "qsort")[0], ("main".to_owned(), 40));
    let of_main = neighbours(&db, "callees", "main");
    for callee in [("tail", 2560), ("leaf", 40), ("qsort", 40), ("[itself]", 1)] {
        assert!(of_main.contains(&(callee.0.to_owned(), callee.1)), "{callee:?} in {of_main:?}");
    }
    let words = ["prof", "--inclusive", "--db", db.to_str().unwrap(), "--format", "json"];
    let report: Value = serde_json::from_slice(&run(&words).stdout).unwrap();
    let share = |name: &str| {
        let mut rows = report["rows"].as_array().unwrap().iter();
        let row = rows.find(|row| row["procedure"] == name).unwrap();
        row["inclusive"]["ideal"]["value"].as_f64().unwrap()
    };
    assert!(share("main") > share("qsort") && share("qsort") > share("order"), "{report:#}");
    assert!(share("tail") > share("leaf") * 0.9, "{report:#}");
}

/// A program without repeated string instructions has the same count at every instruction.
#[test]
fn both_engines_count_the_same_and_the_command_does_as_without() {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("loops.c"), folder.path().join("loops"));
    let code = "#include <stdio.h>\n\
        static int step(int n) { return n % 7 ? n * 3 : n - 1; }\n\
        int main(void) { unsigned sum = 0; for (int n = 0; n < 12345; n++) sum += step(n);\n\
        printf(\"%u\\n\", sum); return 3; }\n";
    std::fs::write(&source, code).unwrap();
    let compile = ["-O1", "-fno-inline", "-o"];
    let mut compiler = std::process::Command::new("cc");
    assert!(compiler.args(compile).arg(&program).arg(&source).status().unwrap().success());
    let alone = std::process::Command::new(&program).output().unwrap();
    let mut of_engines = Vec::new();
    for engine in ["own", "valgrind"] {
        let db = folder.path().join(engine);
        let words = ["ideal", "--engine", engine, "-o", db.to_str().unwrap(), "--"];
        let output = run(&[&words[..], &[program.to_str().unwrap()]].concat());
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert_eq!(output.stdout, alone.stdout, "the command's own output");
        let said = text(&output.stderr);
        assert!(said.contains("of 1 process in") && said.contains("counted exactly"), "{said}");
        assert!(engine != "own" || said.contains("flow: conserved at all"), "{said}");
        let executed = counts(&db, "executed", "loops");
        let ideal = counts(&db, "ideal", "loops");
        assert!(executed.values().filter(|count| **count == 12345).count() > 5, "{executed:?}");
        let (cycles, executions) = (ideal.values().sum::<u64>(), executed.values().sum::<u64>());
        assert!(cycles > executions / 8 && cycles < executions * 40, "{cycles} of {executions}");
        assert_eq!(neighbours(&db, "callers", "step"), [("main".to_owned(), 12345)]);
        of_engines.push(executed);
    }
    let [own, callgrind] = of_engines.as_slice() else { panic!("two engines") };
    let (same, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
        own.clone().into_iter().partition(|(at, _)| callgrind.contains_key(at));
    assert_eq!(&same, callgrind);
    // Callgrind knows no file of what is before and behind .text: .init, .plt and .fini.
    assert!(others.values().all(|count| *count == 1) && others.len() < 40, "{others:?}");
}

#[test]
fn what_cannot_be_counted_is_said_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("db");
    let words = ["ideal", "-o", db.to_str().unwrap(), "--"];
    let output = run(&[&words[..], &["nosuchcommand"]].concat());
    assert_eq!(output.status.code(), Some(127));
    assert!(text(&output.stderr).contains("no such command; nothing was counted"), "{output:?}");
    let file = folder.path().join("file");
    std::fs::write(&file, "text").unwrap();
    let output = run(&["ideal", "-o", file.to_str().unwrap(), "--", "true"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert_eq!(text(&output.stderr).lines().count(), 1, "{output:?}");
    // An engine that cannot be started leaves no epoch without counts.
    let mut command = dcpi();
    command.args(["ideal", "--engine", "valgrind", "-o"]).arg(&db).args(["--", "/bin/true"]);
    let output = command.env("PATH", "/nowhere").output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let epochs = run(&["epochs", "--db", db.to_str().unwrap()]);
    assert!(text(&epochs.stderr).contains("no epochs"), "{epochs:?}");
}

/// The refusal was two lines, one of them of a program that nobody had called.
#[test]
fn a_set_user_id_command_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let (db, copy) = (folder.path().join("db"), folder.path().join("copy"));
    std::fs::copy("/usr/bin/true", &copy).unwrap();
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let output = run(&["ideal", "-o", db.to_str().unwrap(), "--", copy.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = text(&output.stderr);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("a set-user-ID program") && said.contains("; a copy of the"), "{said}");
}

/// A limit of file sizes ended the command by SIGXFSZ, without a word.
#[test]
fn a_limit_of_file_sizes_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -f 100000; exec \"$0\" ideal -o \"$1\" -- /bin/true"]);
    let output = limited.arg(dcpi().get_program()).arg(folder.path().join("db")).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{output:?}");
    assert!(said.contains("RLIMIT_FSIZE") && said.contains("ulimit -f unlimited"), "{said}");
}

/// The counts of a run that was killed stayed in /dev/shm until the machine was started again.
#[test]
fn counts_of_a_killed_run_go_with_the_next_run() {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("db");
    let mut killed = dcpi();
    killed.arg("ideal").arg("-o").arg(&db).args(["--", "sh", "-c", "echo $$; read end"]);
    killed.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut killed = killed.spawn().unwrap();
    let mut pid = String::new();
    BufReader::new(killed.stdout.as_mut().unwrap()).read_line(&mut pid).unwrap();
    let counts = || {
        let folders = std::fs::read_dir("/dev/shm").unwrap().flatten();
        let of_run = |entry: &std::fs::DirEntry| {
            let is_counts = entry.file_name().to_string_lossy().starts_with("dcpi-counts-");
            is_counts && entry.path().join(format!("{}.0", pid.trim())).exists()
        };
        folders.filter(of_run).count()
    };
    assert_eq!(counts(), 1);
    let other = ["ideal", "-o", db.to_str().unwrap(), "--", "/bin/true"];
    run(&other);
    assert_eq!(counts(), 1, "the owner lives");
    // The command reads on, and ends with its standard input.
    killed.kill().unwrap();
    killed.wait().unwrap();
    run(&other);
    assert_eq!(counts(), 0, "the owner is dead");
}

/// Whoever opened it waited for a writer, and SIGTERM did not end that.
#[test]
fn a_fifo_among_the_counts_holds_nobody_up() {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("db");
    let plant = "d=$(sed -n 's,.* \\(/dev/shm/dcpi-counts-[^/]*\\)/.*,\\1,p' /proc/$$/maps | \
                 head -n 1); mkfifo \"$d/x\"";
    let output = run(&["ideal", "-o", db.to_str().unwrap(), "--", "sh", "-c", plant]);
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{output:?}");
    assert!(said.contains("it is no plain file"), "{said}");
}

/// Reports on exact counts spoke of samples, their chance and its intervals.
#[test]
fn exact_counts_have_their_own_nouns_and_no_intervals() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let code = "__attribute__((noinline)) static int step(int n) { return n % 7 ? n * 3 : n; }\n\
        int main(int count, char **words) { int sum = 0; (void)words;\n\
        for (int n = 0; n < 1000 * count; n++) sum += step(n); return sum == 1; }\n";
    std::fs::write(at("steps.c"), code).unwrap();
    let mut compiler = std::process::Command::new("cc");
    compiler.args(["-O1", "-o", &at("steps"), &at("steps.c")]);
    assert!(compiler.status().unwrap().success());
    assert!(run(&["ideal", "-o", &at("one"), "--", &at("steps")]).status.success());
    assert!(run(&["ideal", "-o", &at("two"), "--", &at("steps"), "word"]).status.success());
    let shown = |words: &[&str]| {
        let output = run(words);
        assert!(output.status.success(), "{output:?}");
        let text = text(&output.stdout);
        for of_samples in ["sample", "±", "–", "chance", "skid", "confidence", "*"] {
            assert!(!text.contains(of_samples), "{of_samples}: {text}");
        }
        text
    };
    let list = shown(&["list", "--db", &at("one"), "--asm", "steps", "step"]);
    assert!(list.contains("of the procedure's cycles and executions"), "{list}");
    let title = "cycles      %  executions      %";
    assert!(list.contains(title) && list.contains("  1,000  "), "{list}");
    let diff = ["diff", "--event", "executed", "--amounts", &at("one"), &at("two")];
    let diff = shown(&[&diff[..], &["-n", "1"]].concat());
    assert!(
        diff.contains("executions, counted exactly") && diff.contains("+100.0  step"),
        "{diff}"
    );
    let same = shown(&["diff", "--event", "executed", &at("one"), &at("one")]);
    assert!(same.contains("\n0 of ") && same.contains(" procedures changed"), "{same}");
    let stats = shown(&["stats", "--event", "executed", &at("one"), &at("two")]);
    assert!(stats.contains("std-dev    min") || stats.contains("std-dev     min"), "{stats}");
    // An interval of nothing but the count itself.
    let words = ["diff", "--amounts", &at("one"), &at("two"), "--format", "json"];
    let json: Value = serde_json::from_slice(&run(&words).stdout).unwrap();
    let first = &json["rows"][0];
    assert!(first["low"] == first["change"] && first["change"] == first["high"], "{first}");
}

/// Compilers get the counts themselves, calls and both ways of a branch among them.
#[test]
fn exact_counts_are_exported_for_compilers() {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("calls.c"), folder.path().join("calls"));
    let code = "volatile int sum;\n\
        __attribute__((noinline)) static void step(int n) {\n\
        if (n % 5 == 0)\n\
        sum += 3;\n\
        }\n\
        int main(void) {\n\
        for (int n = 0; n < 10000; n++)\n\
        step(n);\n\
        return 0; }\n";
    std::fs::write(&source, code).unwrap();
    let mut compiler = std::process::Command::new("cc");
    compiler.args(["-O1", "-g", "-no-pie", "-o"]).arg(&program).arg(&source);
    assert!(compiler.status().unwrap().success());
    let db = folder.path().join("db");
    let (db, program) = (db.to_str().unwrap(), program.to_str().unwrap());
    assert!(run(&["ideal", "-o", db, "--", program]).status.success());
    let export = |to: &str| {
        let output = run(&["export", "--db", db, "--to", to, "-o", "-", program]);
        let said = text(&output.stderr);
        assert!(output.status.success() && said.contains("each of them counted"), "{said}");
        text(&output.stdout)
    };
    let bolt = export("bolt");
    let counts = |kind: &str, field: usize| {
        let lines = bolt.lines().filter(|line| line.starts_with(kind));
        let count = |line: &str| line.split(' ').nth(field).unwrap().parse::<u64>().unwrap();
        lines.map(count).collect::<Vec<u64>>()
    };
    assert!(bolt.starts_with("E executions:"), "{bolt}");
    let (branches, falls) = (counts("B ", 3), counts("F ", 3));
    assert!(
        branches.contains(&10_000) && branches.contains(&9_999),
        "the call and the loop: {bolt}"
    );
    let both = branches.contains(&8000) && falls.contains(&2000)
        || branches.contains(&2000) && falls.contains(&8000);
    assert!(both, "{bolt}");
    let autofdo = export("autofdo");
    let (_, step) = autofdo.split_once("\nstep:").unwrap();
    let lines: Vec<&str> = step.lines().skip(1).take_while(|line| line.starts_with(' ')).collect();
    assert!(step.lines().next().unwrap().ends_with(":10000"), "entries: {autofdo}");
    assert!(lines.contains(&" 1: 10000") && lines.contains(&" 2: 2000"), "{autofdo}");
    assert!(autofdo.contains("step:10000"), "the call: {autofdo}");
}

/// A procedure that is never called, and conditions that go one way.
const SIGNS: &str = "#include <stdio.h>\n\
    int never(int n) {\n\
    return n + 1;\n\
    }\n\
    int sign(int n) {\n\
    if (n < 0)\n\
    return -1;\n\
    if (n > 1000)\n\
    return never(n);\n\
    return 1;\n\
    }\n\
    int main(void) {\n\
    int sum = 0;\n\
    for (int n = -10; n < 90; n++)\n\
    sum += sign(n);\n\
    printf(\"%d\\n\", sum);\n\
    return 0;\n\
    }\n";

/// The lines that gcov counts, and which of them were executed, are those of a build for coverage.
#[test]
fn coverage_has_what_gcov_has() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("signs.c"), SIGNS).unwrap();
    let in_folder = |program: &str, words: &[&str]| {
        let output = std::process::Command::new(program)
            .args(words)
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{program}: {output:?}");
        text(&output.stdout)
    };
    in_folder("cc", &["-O0", "-g", "-o", "signs", "signs.c"]);
    in_folder("cc", &["-O0", "-g", "--coverage", "-o", "covered", "signs.c"]);
    in_folder(at("covered").to_str().unwrap(), &[]);
    let gcov = in_folder("gcov", &["-t", "covered-signs.c"]);
    let (db, lcov, program) = (at("db"), at("lcov"), at("signs"));
    let words = [db.as_path(), lcov.as_path(), &program].map(|path| path.to_str().unwrap());
    let output = run(&["ideal", "-o", words[0], "--coverage", words[1], "--", words[2]]);
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("coverage: "), "{said}");
    let lcov = std::fs::read_to_string(&lcov).unwrap();
    let path = at("signs.c").canonicalize().unwrap();
    let (_, record) = lcov.split_once(&format!("SF:{}\n", path.display())).unwrap();
    let (record, _) = record.split_once("end_of_record\n").unwrap();
    let values = |key: &str| {
        let lines = record.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        lines.map(str::to_owned).collect::<Vec<String>>()
    };
    let pair = |line: &String| {
        let (line, count) = line.split_once(',').unwrap();
        (line.parse().unwrap(), count.parse().unwrap())
    };
    let lines: BTreeMap<u32, u64> = values("DA").iter().map(pair).collect();
    let expected: BTreeMap<u32, u64> = gcov
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(':').map(str::trim);
            let (count, line) = (fields.next()?, fields.next()?.parse().ok()?);
            let count = if count == "#####" { 0 } else { count.parse().ok()? };
            Some((line, count))
        })
        .collect();
    assert!(expected.len() > 10, "{gcov}");
    // gcov leaves out the brackets that end procedures.
    let executed = |lines: &BTreeMap<u32, u64>| -> BTreeMap<u32, bool> {
        let told = lines.iter().filter(|(line, _)| ![4, 11, 18].contains(*line));
        told.map(|(line, count)| (*line, *count > 0)).collect()
    };
    assert_eq!(executed(&lines), executed(&expected), "{record}\n{gcov}");
    for line in [3, 6, 7, 8, 9, 10, 15, 16, 17] {
        assert_eq!(lines[&line], expected[&line], "line {line}: {record}\n{gcov}");
    }
    let branches = values("BRDA");
    let at_line = |line: &str| branches.iter().filter(|branch| branch.starts_with(line)).count();
    assert_eq!((at_line("6,"), at_line("8,"), at_line("14,")), (2, 2, 2), "{branches:?}");
    for branch in ["6,0,0,90", "6,0,1,10", "8,0,0,90", "8,0,1,0", "14,0,0,100", "14,0,1,1"] {
        assert!(branches.contains(&branch.to_owned()), "{branch}: {branches:?}");
    }
    assert_eq!(values("FNDA"), ["1,main", "0,never", "100,sign"]);
    let counted = |key: &str| values(key)[0].parse::<usize>().unwrap();
    assert_eq!((counted("LF"), counted("FNF"), counted("BRF")), (lines.len(), 3, branches.len()));
    assert_eq!(counted("LH"), lines.values().filter(|count| **count > 0).count());
}

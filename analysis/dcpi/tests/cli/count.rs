//! `dcpi count`: totals of a command.

use serde_json::Value;

use crate::runs::dcpi;

fn report(words: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("report");
    let mut command = dcpi();
    command.args(["count", "--format", "json", "--to"]).arg(&to).args(words);
    let output = command.output().unwrap();
    assert_eq!(output.stderr, b"", "{output:?}");
    serde_json::from_slice(&std::fs::read(to).unwrap()).unwrap()
}

fn row<'a>(report: &'a Value, event: &str) -> &'a Value {
    let mut rows = report["rows"].as_array().unwrap().iter();
    rows.find(|row| row["event"] == event).unwrap_or_else(|| panic!("{event}: {report:#}"))
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("{key} of {row:#}"))
}

#[test]
fn means_have_intervals_and_exact_counts_have_none() {
    let events = "task-clock,page-faults,blocks,calls";
    let told = report(&["-r", "4", "-e", events, "--", "sh", "-c", "exit 3"]);
    let faults = row(&told, "page-faults");
    assert_eq!(faults["runs"].as_array().unwrap().len(), 4, "{told:#}");
    let [low, value, high] = ["low", "value", "high"].map(|key| number(faults, key));
    assert!(20.0 < value && low <= value && value <= high && high < value * 3.0, "{faults:#}");
    let blocks = row(&told, "blocks");
    assert!(blocks["exact"] == true && blocks["low"] == blocks["high"], "{blocks:#}");
    assert!(number(blocks, "value") > 2.0 * number(row(&told, "calls"), "value"), "{told:#}");
    assert!(number(&told["seconds"], "high") > number(&told["seconds"], "low"), "{told:#}");
    assert_eq!(told["rows"][0]["event"], "task-clock", "in the order asked for");
}

/// A loop of more rounds has more of everything, exactly.
#[test]
fn a_build_fails_on_more_than_before() {
    let folder = tempfile::tempdir().unwrap();
    let before = folder.path().join("before");
    let command = |rounds: u32| {
        let script = format!("i=0; while [ $i -lt {rounds} ]; do i=$((i+1)); done");
        let mut command = dcpi();
        command.args(["count", "-e", "instructions,page-faults", "-r", "3"]);
        (command, ["--".into(), "sh".into(), "-c".into(), script])
    };
    let (mut first, words) = command(1000);
    let first = first.args(["--format", "json", "--to"]).arg(&before).args(words).output();
    assert!(first.unwrap().status.success());
    let compared = |rounds| {
        let (mut command, words) = command(rounds);
        command.args(["--fail-on", "more", "--bencher", "-", "--baseline"]).arg(&before);
        command.args(words).output().unwrap()
    };
    let same = compared(1000);
    let errors = String::from_utf8(same.stderr).unwrap();
    assert!(same.status.success() && errors.contains("exact"), "{errors}");
    let measures: Value = serde_json::from_slice(&same.stdout).unwrap();
    let counts = measures.as_object().unwrap().values().next().unwrap();
    assert!(counts["instructions"]["value"].as_f64().unwrap() > 100_000.0, "{measures:#}");
    let more = compared(1500);
    let errors = String::from_utf8(more.stderr).unwrap();
    assert_eq!(more.status.code(), Some(1), "{errors}");
    assert!(errors.contains("dcpi: more instructions than before: +"), "{errors}");
    assert!(errors.contains("change %: since 20"), "{errors}");
    let once = ["count", "-e", "page-faults", "--fail-on", "more", "--baseline"];
    let output = dcpi().args(once).arg(&before).args(["--", "true"]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(
        errors.contains("not judged") && errors.contains("nothing could be judged"),
        "{errors}"
    );
    // A baseline that a slip of the hand names for the output, too, stays.
    let held = std::fs::read(&before).unwrap();
    let mut onto = dcpi();
    onto.args(["count", "--format", "json", "-o"]).arg(&before).arg("--baseline").arg(&before);
    let output = onto.args(["--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert_eq!(std::fs::read(&before).unwrap(), held);
}

/// Each run reads all of the input, and the output of the first is seen.
#[test]
fn runs_have_the_same_input_and_one_output() {
    let folder = tempfile::tempdir().unwrap();
    let (text, to) = (folder.path().join("text"), folder.path().join("report"));
    std::fs::write(&text, "line\n".repeat(70_000)).unwrap();
    let command = |input: &str, runs: &str| {
        let words = format!("count --format json --to {} -r {runs}", to.display());
        let mut command = std::process::Command::new("sh");
        let dcpi = dcpi();
        let dcpi = dcpi.get_program().to_str().unwrap();
        command.args(["-c", &format!("{input} {dcpi} {words} -e task-clock,blocks -- wc -w")]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let told: Value = serde_json::from_slice(&std::fs::read(&to).unwrap()).unwrap();
        (String::from_utf8(output.stdout).unwrap(), number(row(&told, "blocks"), "value"))
    };
    let path = text.display();
    let piped = command(&format!("cat {path} |"), "3");
    let file = command(&format!("<{path}"), "3");
    let nothing = command("</dev/null", "1");
    assert_eq!((piped.0.as_str(), file.0.as_str()), ("70000\n", "70000\n"));
    assert!(
        piped.1 > nothing.1 + 100_000.0 && file.1 > nothing.1 + 100_000.0,
        "{piped:?} {file:?}"
    );
}

#[test]
fn what_cannot_be_counted_is_told_in_one_line_before_the_command_runs() {
    let refused = |words: &[&str]| {
        let output = dcpi().arg("count").args(words).args(["--", "echo", "ran"]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    };
    assert!(refused(&["-e", "no-such"]).contains("unknown event 'no-such'"));
    assert!(refused(&["-e", "cpu-clock@100"]).contains("counted and not sampled"));
    assert!(refused(&["-e", "nopmu/a=1/"]).contains("no PMU 'nopmu'"));
    assert!(refused(&["--to", "/no/such/file"]).contains("/no/such/file"));
    let missing = dcpi().args(["count", "--", "/no/such"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(127), "{missing:?}");
}

//! `dcpi time`: whether a command is faster than another.

use std::path::Path;

use serde_json::Value;

use crate::runs::dcpi;

fn report(words: &[&str]) -> Value {
    let output = dcpi().args(["time", "--format", "json"]).args(words).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), errors.as_ref()), (Some(0), ""), "{words:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refused(words: &[&str]) -> String {
    let output = dcpi().arg("time").args(words).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{errors}");
    assert!(errors.lines().count() == 1 && errors.contains("; "), "{errors}");
    errors
}

/// Sleeping 20 ms longer is no difference that noise makes, and none of CPU time.
#[test]
fn a_longer_sleep_is_slower_by_the_wall_clock() {
    let told = report(&["--layouts", "3", "-r", "3", "sleep 0.02", "sleep 0.06"]);
    assert_eq!((&told["verdict"], &told["by"]), (&"slower".into(), &"wall".into()), "{told:#}");
    let change = ["low", "value", "high"].map(|end| told["change"][end].as_f64().unwrap());
    assert!(change[0] <= change[1] && change[1] <= change[2] && change[1] > 0.2, "{change:?}");
    assert_eq!(told["runs"].as_array().unwrap().len(), 18);
    assert_eq!((&told["a"]["command"], &told["layouts"]), (&"sleep 0.02".into(), &3.into()));
}

#[test]
fn a_build_fails_on_what_is_slower_and_on_nothing_else() {
    let code = |words: &[&str]| {
        let words = [&["time", "--layouts", "3", "-r", "3", "--fail-on", "slower"], words].concat();
        dcpi().args(words).output().unwrap().status.code()
    };
    assert_eq!(code(&["sleep 0.02", "sleep 0.06"]), Some(1));
    assert_eq!(code(&["sleep 0.06", "sleep 0.02"]), Some(0));
    assert!(
        refused(&["--fail-on", "slower", "true"]).contains("needs two commands, or --baseline")
    );
    refused(&["--fail-on", "faster", "true", "true"]);
}

/// A run of before in which all took a tenth of the time: what takes ten times as long is slower.
#[test]
fn a_build_fails_on_what_is_slower_than_before() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (file, bencher) = (at("before.json"), at("bencher.json"));
    let command = "sh -c 'for i in 1 2 3 4 5 6 7 8 9; do /bin/true; done'";
    let told = report(&["--layouts", "3", "-r", "2", command]);
    let write = |told: &Value| std::fs::write(&file, told.to_string()).unwrap();
    let by = |factor: f64| {
        let mut told = told.clone();
        for run in told["runs"].as_array_mut().unwrap() {
            for field in ["wall_s", "user_s", "system_s", "delayed_s"] {
                run[field] = (run[field].as_f64().unwrap() * factor).into();
            }
        }
        write(&told);
        let words = ["time", "--layouts", "3", "-r", "2", "--fail-on", "slower", "--bencher"];
        let words = words.into_iter().chain([bencher.as_str(), "--baseline", &file, command]);
        dcpi().args(words).env("GITHUB_ACTIONS", "true").output().unwrap()
    };
    let slower = by(0.1);
    let errors = String::from_utf8(slower.stderr).unwrap();
    assert_eq!(slower.status.code(), Some(1), "{errors}");
    assert!(errors.starts_with("::error title=dcpi time::B is ") && errors.contains(" %25 slower"));
    let says = String::from_utf8(slower.stdout).unwrap();
    assert!(says.contains("A was measured until 20"), "{says}");
    let measures: Value = serde_json::from_slice(&std::fs::read(&bencher).unwrap()).unwrap();
    let latency = &measures.as_object().unwrap().values().next().unwrap()["latency"];
    let ends = ["lower_value", "value", "upper_value"].map(|end| latency[end].as_f64().unwrap());
    assert!(ends.is_sorted() && ends[1] > 1e5 && ends[1] < 1e10, "{ends:?} ns");
    let faster = by(10.0);
    assert_eq!((faster.status.code(), faster.stderr.len()), (Some(0), 0));
    assert!(refused(&["--baseline", &file, "true", "--", "true"]).contains("name one command"));
    let mut other = told.clone();
    other["cpu"] = "Z80".into();
    write(&other);
    assert!(refused(&["--baseline", &file, "true"]).contains("another processor (Z80; here "));
    std::fs::write(&file, "{\"schema\":{\"name\":\"dcpi.prof\"},\"cpu\":\"\"}").unwrap();
    assert!(refused(&["--baseline", &file, "true"]).contains("is a report of dcpi prof; "));
    std::fs::write(&file, "{").unwrap();
    assert!(refused(&["--baseline", &file, "true"]).contains("no report of dcpi's"));
}

/// Each pair has one run of each command, in both orders, with one size of the environment.
#[test]
fn runs_take_turns_in_random_order() {
    let told = report(&["--layouts", "4", "-r", "6", "--seed", "7", "true", "--", "true"]);
    let runs = told["runs"].as_array().unwrap();
    let pairs: Vec<&[Value]> = runs.chunks(2).collect();
    let (mut firsts, mut paddings) = (Vec::new(), Vec::new());
    for pair in &pairs {
        let [a, b] = pair else { panic!("half a pair: {pair:?}") };
        assert!(a["command"] != b["command"] && a["padding"] == b["padding"], "{a} {b}");
        assert_eq!((&a["layout"], &a["pair"]), (&b["layout"], &b["pair"]));
        firsts.push(a["command"].as_str().unwrap());
        paddings.push(a["padding"].as_u64().unwrap());
    }
    assert!(firsts.contains(&"A") && firsts.contains(&"B"), "{firsts:?}");
    paddings.dedup();
    assert_eq!(paddings.len(), 24, "drawn anew for each pair");
}

/// The program that `--relink` makes is the one that runs, and each layout has its own number.
#[test]
fn each_layout_is_linked_anew() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let relink = format!(
        "sh -c 'echo $DCPI_LAYOUT >>{seeds}; printf \"#!/bin/sh\\nexit 0\\n\" >{a}; chmod +x {a}'",
        seeds = at("seeds"),
        a = at("a")
    );
    std::fs::copy("/bin/true", at("a")).unwrap();
    let told = report(&["--layouts", "3", "-r", "1", "--relink", &relink, &at("a")]);
    assert!(told["verdict"].is_null() && told["a"]["cpu_s"]["value"].as_f64() > Some(0.0));
    let seeds = std::fs::read_to_string(at("seeds")).unwrap();
    let mut seeds: Vec<u32> = seeds.lines().map(|line| line.parse().unwrap()).collect();
    seeds.sort_unstable();
    seeds.dedup();
    assert_eq!(seeds.len(), 3);
    assert!(std::fs::read(at("a")).unwrap().starts_with(b"#!"), "it was made anew");
}

#[test]
fn what_cannot_be_timed_is_told_in_one_line() {
    assert!(refused(&["false"]).contains("false failed: exit code 1; --show-output shows why"));
    assert!(refused(&["no-such-command"]).contains("no-such-command: no such command"));
    assert!(refused(&["a x", "b y", "c z"]).contains("more than two quoted commands"));
    assert!(refused(&["--layouts", "9999", "-r", "99", "true"]).contains("more than 100000 runs"));
    assert!(refused(&["--effect", "0", "true"]).contains("must be a percentage from 0.01"));
    assert!(refused(&["--relink", "false", "true"]).contains("--relink false: exit code 1"));
    assert!(
        refused(&["--input", "/no/such", "cat"]).contains("for '--input <FILE>': No such file")
    );
    assert!(
        refused(&["--timeout", "20ms", "sleep 1000"]).contains("took longer than --timeout allows")
    );
    let told = report(&["-i", "--layouts", "2", "-r", "1", "false"]);
    assert_eq!(told["a"]["failed"], 2);
    for words in [["-o", "x.png", "true"], ["--picture", "x.PDF", "true"]] {
        assert!(refused(&words).contains("pictures are SVG: name a file that ends in .svg"));
    }
    // What was measured would be lost: nothing is.
    for words in [["-o", "/dev/full", "true"], ["-o", "/no/such/x.svg", "true"]] {
        assert!(refused(&words).starts_with("dcpi: cannot write "));
    }
    let none = refused(&["--function", "/bin/true", "no_such", "true"]);
    assert!(none.contains("--function: "), "{none}");
}

/// The command of `--relink` never ended, and `--timeout` waited with it.
#[test]
fn a_link_that_takes_too_long_is_ended() {
    let said = refused(&["--timeout", "50ms", "--relink", "sh -c 'sleep 1000; true'", "true"]);
    assert!(said.contains("--relink") && said.contains("longer than --timeout allows"), "{said}");
    let folder = tempfile::tempdir().unwrap();
    let relinks = folder.path().join("relinks");
    let script =
        format!("sh -c 'echo x >>{0}; test $(wc -l <{0}) -lt 3 || sleep 1000'", relinks.display());
    let told = report(&["--timeout", "500ms", "-r", "1", "--relink", &script, "true"]);
    assert_eq!(told["layouts"], 2, "what was measured before is reported: {told:#}");
    assert!(told["notes"].to_string().contains("longer than --timeout allows"), "{told:#}");
}

/// The disk was full when the picture was written, and so nobody learned what the runs had told.
#[test]
fn a_report_is_there_also_where_no_picture_can_be() {
    let folder = tempfile::tempdir().unwrap();
    let pictures = folder.path().join("pictures");
    std::fs::create_dir(&pictures).unwrap();
    // The command itself takes the place away.
    let script = format!("rm -rf {}", pictures.display());
    let picture = pictures.join("x.svg");
    let words = ["--layouts", "2", "-r", "1", "-o", picture.to_str().unwrap(), &script];
    let output = dcpi().arg("time").args(words).output().unwrap();
    let (out, errors) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(out.starts_with("A takes "), "{out}");
    assert!(errors.starts_with("dcpi: cannot write ") && errors.lines().count() == 1, "{errors}");
}

/// The confidence is in percent, as in all other reports.
#[test]
fn an_effect_is_a_share_and_confidence_percent() {
    let told = report(&["--layouts", "2", "-r", "1", "--effect", "3%", "true"]);
    assert_eq!((told["effect"].as_f64(), told["confidence"].as_f64()), (Some(0.03), Some(95.0)));
}

/// A run that reads its input gets all of it each time.
#[test]
fn each_run_has_the_input() {
    let folder = tempfile::tempdir().unwrap();
    let (text, counts) = (folder.path().join("text"), folder.path().join("counts"));
    std::fs::write(&text, "line\n".repeat(1000)).unwrap();
    let script = format!("sh -c 'wc -l >>{}'", counts.display());
    report(&["--layouts", "2", "-r", "2", "--input", text.to_str().unwrap(), &script]);
    assert_eq!(std::fs::read_to_string(&counts).unwrap(), "1000\n".repeat(4));
}

#[test]
fn the_picture_has_a_dot_for_each_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.svg");
    let words = ["--layouts", "2", "-r", "3", "-o", path.to_str().unwrap(), "true", "--", "true"];
    report(&words);
    let svg = std::fs::read_to_string(&path).unwrap();
    assert_eq!(svg.matches("<circle").count(), 12);
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert!(svg.contains(">A: true<") && svg.contains(">B: true<"), "{svg}");
    assert!(!Path::new(&folder.path().join(".runs.svg.partial")).exists());
}

/// The first interrupt ends the run that goes on, and what was measured is reported.
#[test]
fn after_an_interrupt_the_runs_so_far_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let marks = folder.path().join("marks");
    // The third run waits for the signal, which it asks for itself.
    let script = format!(
        "echo x >>{0}; test $(wc -l <{0}) -lt 5 || {{ kill -TERM $PPID; sleep 1000; }}",
        marks.display()
    );
    let words = ["--layouts", "9", "-r", "2", "sh", "-c", &script];
    let told = report(&words);
    assert_eq!(told["runs"].as_array().unwrap().len(), 4, "{told:#}");
    let notes = told["notes"].to_string();
    assert!(notes.contains("not all layouts: a signal ended the runs"), "{notes}");
}

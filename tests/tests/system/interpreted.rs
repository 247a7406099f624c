//! The samples of interpreters, divided among the functions that they ran, from a real daemon to
//! the reports. Needs root.

use super::stacks::{folded, start};
use serde_json::Value;
use std::process::Command;
use tests::daemon::Place;
use tests::report::dcpi;
use tests::workload::{Running, script};
use tests::{require_root, succeed};

/// A report in JSON.
fn report(place: &Place, command: &str, arguments: &[&str]) -> Value {
    let text = succeed(dcpi(&place.db(), command, &["--format", "json"]).args(arguments));
    serde_json::from_str(&text).expect("JSON")
}

/// A row's share of the samples: the value, and the ends of its interval.
fn share(row: &Value) -> [f64; 3] {
    let share = &row["share"]["cpu-clock"];
    ["value", "low", "high"].map(|of| share[of].as_f64().expect("a share"))
}

/// One of two functions of the same lines ran three times as long as the other: their rows of
/// `dcpi prof` say so within their intervals, the loop's own row has nearly nothing left, and no
/// sample is lost or counted twice. Exports and listings agree with the rows.
fn functions_have_rows_of_their_own_time(command: &[&str], file: &str, language: (&str, u64)) {
    let (language, lines) = language;
    let (program, options) = command.split_first().unwrap();
    require_root();
    let place = Place::default();
    let daemon = start(&place, "200");
    let truth =
        Running::start(Command::new(program).args(options).arg(script(file)).arg("6")).wait();
    daemon.flush();
    drop(daemon);
    let prof = report(&place, "prof", &["--all", "-n", "0", "--confidence", "99.9"]);
    let rows = prof["rows"].as_array().expect("rows");
    let samples = |row: &Value| row["counts"]["cpu-clock"].as_u64().expect("samples");
    let all: u64 = rows.iter().map(samples).sum();
    assert_eq!(Some(all), prof["events"][0]["counted"].as_u64(), "each sample is in one row");
    // Names of Perl's functions have the package's before them, Java's the class's.
    let [heavy, light] = ["heavy", "light"].map(|name| match language {
        "perl" => format!("main::{name}"),
        "java" => format!("Split.{name}"),
        _ => name.to_owned(),
    });
    let names = [heavy.as_str(), &light];
    let row = |name: &str| {
        let is_of = |row: &&Value| row["procedure"] == name && row["image"] == file;
        rows.iter().find(is_of).unwrap_or_else(|| panic!("no row of {name}: {rows:?}"))
    };
    let [heavy, light] = names.map(row);
    assert_eq!((&heavy["language"], &light["language"]), (&language.into(), &language.into()));
    let ([_, heavy_low, heavy_high], [_, light_low, light_high]) = (share(heavy), share(light));
    let [low, high] = [heavy_low / (heavy_low + light_high), heavy_high / (heavy_high + light_low)];
    let known = truth.number("heavy") / (truth.number("heavy") + truth.number("light"));
    let said = samples(heavy) as f64 / (samples(heavy) + samples(light)) as f64;
    println!("{language}: {said:.3} ({low:.3} to {high:.3}), it is {known:.3}");
    assert!((low..=high).contains(&known), "{said} ({low} to {high}), but it is {known}");
    let folded = folded(&place, "cpu-clock", program.rsplit('/').next().unwrap());
    for (name, row) in names.into_iter().zip([heavy, light]) {
        let ends = folded.iter().filter(|(frames, _)| frames.last().is_some_and(|it| it == name));
        let exported: f64 = ends.map(|(_, count)| count).sum();
        let (samples, most) = (samples(row) as f64, 2.0 + 0.01 * samples(row) as f64);
        assert!((exported - samples).abs() <= most, "{name}: {exported} beside {samples}");
    }
    let list = report(&place, "list", &[file, names[0]]);
    let of_list: u64 = list["lines"].as_array().expect("lines").iter().map(samples).sum();
    assert!(of_list.abs_diff(samples(heavy)) <= 2, "{of_list} beside {}", samples(heavy));
    let hot =
        |line: &Value| line["line"].as_u64().is_some_and(|it| (lines..lines + 7).contains(&it));
    assert!(list["lines"].as_array().unwrap().iter().all(hot), "{list}");
}

#[test]
#[ignore = "needs root"]
fn functions_of_python_have_rows_of_their_own_time() {
    functions_have_rows_of_their_own_time(&["/usr/bin/python3"], "split.py", ("python", 8));
}

#[test]
#[ignore = "needs root"]
fn functions_of_ruby_have_rows_of_their_own_time() {
    functions_have_rows_of_their_own_time(&["ruby3.1"], "split.rb", ("ruby", 3));
}

#[test]
#[ignore = "needs root"]
fn functions_of_php_have_rows_of_their_own_time() {
    functions_have_rows_of_their_own_time(&["php8.2"], "split.php", ("php", 4));
}

#[test]
#[ignore = "needs root"]
fn functions_of_lua_have_rows_of_their_own_time() {
    functions_have_rows_of_their_own_time(&["lua5.4"], "split.lua", ("lua", 3));
}

#[test]
#[ignore = "needs root"]
fn functions_of_perl_have_rows_of_their_own_time() {
    functions_have_rows_of_their_own_time(&["perl"], "split.pl", ("perl", 6));
}

#[test]
#[ignore = "needs root"]
fn functions_of_javascript_have_rows_of_their_own_time() {
    let node = ["node", "--jitless"];
    functions_have_rows_of_their_own_time(&node, "split.js", ("javascript", 3));
}

/// The functions' code is that of V8's compilers, after some rounds.
#[test]
#[ignore = "needs root"]
fn compiled_functions_of_javascript_have_rows_of_their_own_time() {
    functions_have_rows_of_their_own_time(&["node"], "split.js", ("javascript", 3));
}

/// HotSpot's compilers inline the methods into the code of `main`.
#[test]
#[ignore = "needs root"]
fn compiled_methods_of_java_have_rows_of_their_own_time() {
    functions_have_rows_of_their_own_time(&["java"], "Split.java", ("java", 4));
}

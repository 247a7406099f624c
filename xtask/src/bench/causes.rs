//! `bench why --causes`: programs of one known cause each, sampled for three seconds, and whether
//! `dcpi why` names the cause first; and how often statements of each probability are true. With
//! `--peers` also what `perf annotate` and callgrind show of them (`causes_peers.rs`).

use super::causes_peers::{self as peers, Shown};
use super::profilers::build;
use super::{FOLDER, count, machine, require_root};
use crate::packages;
use crate::process::{command, must, output};
use anyhow::Context as _;
use serde_json::Value;
use std::process::Stdio;
use std::{fmt, fs};

/// The programs that the rules were tuned on, and others.
const TUNED: &str = "tests/workloads/caused.c";
const OTHERS: &str = "tests/bench/why/others";
/// Lower limits of the classes of probability; the last is that of `certain`.
const CLASSES: [f64; 5] = [0.0, 0.5, 0.75, 0.9, 0.95];

/// The words that start a program, which prints its kinds without arguments.
type Words = Vec<String>;

/// What was said of a program first.
struct Said {
    mechanism: String,
    certainty: String,
    probability: f64,
}

pub fn run(arguments: &[&str]) -> anyhow::Result<bool> {
    require_root("why --causes")?;
    let seconds = count(arguments, "--seconds", 3)?;
    let with_peers = arguments.contains(&"--peers");
    packages::ensure(packages::COMPILER.iter().chain(&packages::WALKED))?;
    if with_peers {
        packages::ensure(packages::BENCH_TOOLS.iter().chain(&packages::CALLGRIND))?;
    }
    let folder = format!("{FOLDER}/causes");
    fs::create_dir_all(&folder).with_context(|| format!("creating {folder}"))?;
    build(&folder, &["dcpid", "dcpilabel", "dcpi"])?;
    println!("{}; {seconds} s each", machine::description());
    let measured = format!("{folder}/machine");
    must(command(&format!("{folder}/dcpi machine -o {measured}")).stdout(Stdio::null()))?;
    let mut wrong_and_certain = 0;
    let mut beside = Beside::default();
    for (kind, programs) in [("tuned", tuned(&folder)?), ("others", others(&folder)?)] {
        let mut all = Vec::new();
        for words in programs {
            let kinds = output(command(&words.join(" ")).stdout(Stdio::piped()))?;
            for line in kinds.lines() {
                let (name, mechanisms) = line.split_once(' ').context("a kind without a cause")?;
                let right: Vec<&str> = mechanisms.split(',').collect();
                let said = said_of(&folder, &measured, &words, (name, seconds))?;
                let is_right = right.contains(&said.mechanism.as_str());
                let mark = if is_right { "right" } else { "" };
                println!(
                    "{kind:<7} {name:<18} {:<24} {:<24} {:<9} {:.2} {mark}",
                    right.first().copied().unwrap_or_default(),
                    said.mechanism,
                    said.certainty,
                    said.probability
                );
                all.push((said, is_right));
                if with_peers {
                    let words = [&words[..], &[name.to_owned(), seconds.to_string()]].concat();
                    beside.add(&folder, &words, &right);
                }
            }
        }
        wrong_and_certain += summed_up(kind, &all);
    }
    if with_peers {
        println!("{beside}");
    }
    Ok(wrong_and_certain == 0)
}

/// How many programs there were, and for how many what the peers show leads to the cause.
#[derive(Default)]
struct Beside {
    programs: usize,
    perf: usize,
    callgrind: usize,
}

impl Beside {
    fn add(&mut self, folder: &str, words: &[String], right: &[&str]) {
        let leads = |shown: &Shown| shown.leads_to.iter().any(|to| right.contains(to));
        let (perf, callgrind) = (peers::perf(folder, words), peers::callgrind(folder, words));
        for (tool, shown) in [("perf", &perf), ("callgrind", &callgrind)] {
            let mark = if leads(shown) { "leads there" } else { "" };
            println!("        {tool:<10} {:<90} {mark}", shown.text);
        }
        self.programs += 1;
        self.perf += usize::from(leads(&perf));
        self.callgrind += usize::from(leads(&callgrind));
    }
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { programs, perf, callgrind } = self;
        write!(f, "of {programs} programs perf annotate leads to the cause of {perf}, ")?;
        write!(f, "callgrind to that of {callgrind}")
    }
}

/// Prints how many are right, in all and by probability. Returns how many were certain and wrong.
fn summed_up(kind: &str, all: &[(Said, bool)]) -> usize {
    let right = all.iter().filter(|(_, is_right)| *is_right).count();
    println!("{kind}: {right} of {} right", all.len());
    let ends = CLASSES.iter().skip(1).copied().chain([1.01]);
    for (low, high) in CLASSES.into_iter().zip(ends) {
        let of = all.iter().filter(|(said, _)| (low..high).contains(&said.probability));
        let (n, sum, right) = of.fold((0_usize, 0.0, 0_usize), |(n, sum, right), (said, is)| {
            (n + 1, sum + said.probability, right + usize::from(*is))
        });
        if n > 0 {
            let mean = sum / n as f64;
            let share = right as f64 / n as f64;
            println!("{kind}: p from {low:.2}: mean {mean:.2}, right {share:.2} of {n}");
        }
    }
    all.iter().filter(|(said, is_right)| said.certainty == "certain" && !is_right).count()
}

fn said_of(
    folder: &str,
    machine: &str,
    words: &[String],
    (name, seconds): (&str, u64),
) -> anyhow::Result<Said> {
    let db = format!("{folder}/{name}.db");
    let _ = fs::remove_dir_all(&db);
    let mut record = command(&format!("{folder}/dcpi record --db {db} --"));
    record.args(words).args([name, &seconds.to_string()]);
    must(record.stdout(Stdio::null()).stderr(Stdio::null()))?;
    let mut why =
        command(&format!("{folder}/dcpi why --db {db} --latencies {machine} --format json"));
    let report: Value = serde_json::from_str(&output(why.stdout(Stdio::piped()))?)?;
    let first = report.pointer("/findings/0");
    let text = |field: &str| {
        let text = first.and_then(|first| first.get(field)?.as_str());
        text.unwrap_or("nothing").to_owned()
    };
    let probability = first.and_then(|first| first.get("probability")?.as_f64());
    Ok(Said {
        mechanism: text("mechanism"),
        certainty: text("certainty"),
        probability: probability.unwrap_or_default(),
    })
}

fn tuned(folder: &str) -> anyhow::Result<Vec<Words>> {
    let program = format!("{folder}/caused");
    must(&mut command(&format!("cc -O2 -g -o {program} {TUNED} -lm -pthread")))?;
    Ok(vec![vec![program]])
}

fn others(folder: &str) -> anyhow::Result<Vec<Words>> {
    let built = ["c", "cc", "rs", "go"].map(|ending| format!("{folder}/others-{ending}"));
    let [c, cc, rust, go] = &built;
    must(&mut command(&format!("cc -O2 -g -o {c} {OTHERS}.c -lm -pthread")))?;
    must(&mut command(&format!("c++ -O2 -g -o {cc} {OTHERS}.cc")))?;
    must(&mut command(&format!("rustc -O -g --edition=2024 -o {rust} {OTHERS}.rs")))?;
    let cache = std::path::absolute(folder)?.join("go-cache");
    let mut build = command(&format!("go build -o {go} {OTHERS}.go"));
    must(build.env("GO111MODULE", "off").env("GOCACHE", cache))?;
    let python = ["/usr/bin/python3".to_owned(), format!("{OTHERS}.py")];
    Ok(built.into_iter().map(|program| vec![program]).chain([python.into()]).collect())
}

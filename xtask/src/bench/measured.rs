//! `bench machine`: repeats `dcpi machine` and compares its figures with each other, with sysfs and
//! with CPUID; and measures what reads of the clock cost between pieces of work
//! (`lab/probe/examples/contexts.rs`).

use super::json::pointed as at;
use super::load::Load;
use super::machine::description;
use super::{count, refuse_others};
use crate::Outcome;
use crate::process::{command, must, output};
use serde_json::Value;
use std::collections::BTreeMap;

/// The results of the runs: numbers by name, in the order of the report's fields.
#[derive(Default)]
struct Found {
    numbers: BTreeMap<String, Vec<f64>>,
    /// By level: runs whose measured size agrees with the stated one, and runs that could be
    /// compared.
    agreed: BTreeMap<String, (usize, usize)>,
    /// Sizes of levels that programs share, as ranges.
    shared: Vec<String>,
    /// Levels that the machine states and the measurement did not find, with the number of runs.
    missing: BTreeMap<String, usize>,
}

impl Found {
    fn add(&mut self, report: &Value) {
        let spreads = [
            "memory_cycles",
            "loaded_memory_cycles",
            "page_walk_cycles",
            "mispredict_cycles",
            "forward_cycles",
            "forward_failing_cycles",
        ];
        let mut number = |name: String, value: &Value| {
            self.numbers.entry(name).or_default().extend(value.as_f64());
        };
        number("seconds".to_owned(), at(report, "/seconds"));
        number("rounds".to_owned(), at(report, "/rounds"));
        for name in spreads {
            number(name.to_owned(), at(report, &format!("/{name}/value")));
            number(format!("{name}, high"), at(report, &format!("/{name}/high")));
        }
        number("cold_page_walk_cycles".to_owned(), at(report, "/cold_page_walk_cycles"));
        number("clock step_ns".to_owned(), at(report, "/clock/step_ns"));
        number("clock read_ns".to_owned(), at(report, "/clock/read_ns/value"));
        for event in at(report, "/events").as_array().into_iter().flatten() {
            let name = at(event, "/name").as_str().unwrap_or_default();
            number(format!("{name} ns"), at(event, "/ns/value"));
        }
        for (list, prefix, cycles) in
            [("caches", "L", "latency_cycles"), ("tlbs", "TLB ", "cycles")]
        {
            for level in at(report, &format!("/{list}")).as_array().into_iter().flatten() {
                let name = format!("{prefix}{}", at(level, "/level"));
                number(format!("{name} cycles"), at(level, &format!("/{cycles}/value")));
                let size = if list == "caches" { "bytes" } else { "entries" };
                if let Some(agrees) = at(level, "/agrees").as_bool() {
                    let sum = self.agreed.entry(name).or_default();
                    *sum = (sum.0 + usize::from(agrees), sum.1 + 1);
                } else {
                    let [low, high] =
                        ["low", "high"].map(|end| at(level, &format!("/{size}_{end}")));
                    self.shared.push(format!("{name} {low} to {high} {size}"));
                }
            }
        }
        for level in at(report, "/not_found").as_array().into_iter().flatten() {
            let name = at(level, "/name").as_str().unwrap_or_default();
            *self.missing.entry(name.to_owned()).or_default() += 1;
        }
        let first = at(report, "/caches/0");
        let line = at(first, "/line").as_u64().zip(at(first, "/stated_line").as_u64());
        if let Some((line, stated)) = line {
            let sum = self.agreed.entry("line".to_owned()).or_default();
            *sum = (sum.0 + usize::from(line == stated), sum.1 + 1);
        }
    }

    fn print(&self) {
        println!("\nsizes that agree with sysfs and CPUID");
        for (name, (agree, all)) in &self.agreed {
            println!("{name:32} {agree} of {all}");
        }
        self.shared.iter().for_each(|range| println!("one program gets: {range}"));
        self.missing.iter().for_each(|(name, runs)| println!("{name:32} not found in {runs}"));
        println!("\n{:32} {:>10} {:>10} {:>10}", "over the runs", "least", "median", "most");
        for (name, values) in self.numbers.iter().filter(|(_, values)| !values.is_empty()) {
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            let at = |place: usize| sorted.get(place).copied().unwrap_or(f64::NAN);
            let (least, most) = (at(0), at(sorted.len() - 1));
            println!("{name:32} {least:>10.1} {:>10.1} {most:>10.1}", at(sorted.len() / 2));
        }
    }
}

pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    refuse_others("machine", arguments, &[], &["--runs", "--load"])?;
    let runs = count(arguments, "--runs", 5)?;
    let busy = if arguments.contains(&"--load") { count(arguments, "--load", 4)? } else { 0 };
    must(&mut command("cargo build --quiet --release -p dcpi --bin dcpi"))?;
    must(&mut command("cargo build --quiet --release -p probe --example contexts"))?;
    println!("{}; {runs} runs beside {busy} busy processes", description());
    let load = Load::start(busy)?;
    let mut found = Found::default();
    for _ in 0..runs {
        let report = output(&mut command("target/release/dcpi machine --format json"))?;
        found.add(&serde_json::from_str(&report)?);
    }
    found.print();
    println!("\nwhat a read of the counter adds to work");
    print!("{}", output(&mut command("target/release/examples/contexts"))?);
    drop(load);
    let agree = found.agreed.values().all(|(agree, all)| agree == all);
    let in_time = found.numbers.get("seconds").is_some_and(|all| all.iter().all(|s| *s < 10.0));
    Ok(if agree && in_time { Outcome::Clean } else { Outcome::Problems })
}

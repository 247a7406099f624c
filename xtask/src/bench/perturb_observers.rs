//! `bench perturb observers`: verdicts of `dcpi perturb` on observers of Lua. Function tracing must
//! be flagged, block ids must not, and of 100 comparisons of Lua with itself at most 5 may be. The
//! table also has the inner and outer correlations that changed most, as in Mytkowicz et al.,
//! figures 4 and 7.

use super::faster::{Program, prepare_sources};
use super::json::pointed as at;
use super::machine::description;
use super::{FOLDER, count, option, refuse_others, require_root};
use crate::process::{command, must, output};
use crate::{Outcome, blocks, packages};
use anyhow::{Context as _, bail};
use serde_json::Value;
use std::fs;
use std::process::Command;

/// Comparisons of Lua with itself, and the most of them that may be flagged.
const TRIALS: u64 = 100;
const FALSE_MOST: u64 = 5;
const SCRIPT: &str = "tests/bench/faster/work.lua 7";
/// A script that runs a busy loop beside its command: load, which is no observer.
const BESIDE: &str = "while :; do :; done & busy=$!; \"$@\"; end=$?; kill $busy; exit $end";

/// An observer, and the required verdict.
struct Observer {
    name: &'static str,
    /// Options of `dcpi perturb`.
    options: Vec<String>,
    /// Size of Lua's work: half a second of CPU time is 3. uftrace writes 1 GB for a size of 1.
    size: u32,
    /// The required verdict: true is flagged; None: either passes.
    asked: Option<bool>,
}

pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    refuse_others("perturb observers", arguments, &[], &["--only", "--trials"])?;
    require_root("perturb observers")?;
    packages::ensure(packages::COMPILER.iter().chain(&packages::TRACERS))?;
    let programs = super::perturb_uprobes::programs()?;
    let folder = format!("{FOLDER}/perturb");
    prepare_sources()?;
    build(&folder)?;
    let only = option(arguments, "--only")?;
    let trials = count(arguments, "--trials", TRIALS)?;
    println!("{}\n\n{}", description(), Row::HEADER);
    let mut reached = true;
    let observers = observers(&folder, &programs)?;
    for observer in observers.iter().filter(|of| only.is_none_or(|only| of.name.contains(only))) {
        let row = Row::measure(observer, &folder, &programs)
            .with_context(|| format!("observing with {}", observer.name))?;
        println!("{}", row.shown());
        reached &= observer.asked.is_none_or(|asked| asked == row.perturbed);
    }
    if only.is_none() {
        let flagged = false_alarms(&folder, &programs, trials)?;
        reached &= flagged * TRIALS <= FALSE_MOST * trials;
        println!("\nLua against itself: {flagged} of {trials} comparisons flagged");
    }
    let told = if reached { "reached" } else { "not reached" };
    println!(
        "asked: tracing of functions flagged, block ids not, at most {FALSE_MOST} of {TRIALS} of \
         itself: {told}"
    );
    Ok(if reached { Outcome::Clean } else { Outcome::Problems })
}

/// Makes four builds of Lua: with room for uftrace's calls, which also runs without observers; with
/// traced functions; with counted blocks; with block ids.
fn build(folder: &str) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("creating {folder}"))?;
    blocks::build()?;
    let ids = format!("-B {0}/ -L {0} -specs={0}/dcpi.specs", blocks::FOLDER);
    for (name, flags) in [
        ("lua", "-fpatchable-function-entry=5"),
        ("lua-functions", "-finstrument-functions tests/bench/perturb/entries.c"),
        ("lua-blocks", "-fprofile-arcs"),
        ("lua-ids", &ids),
    ] {
        let path = format!("{folder}/{name}");
        let mut gcc = command(&format!("gcc -O2 -g -w -o {path} {flags}"));
        must(gcc.args(Program::Lua.sources()?))?;
    }
    Ok(())
}

fn observers(folder: &str, programs: &str) -> anyhow::Result<Vec<Observer>> {
    let of = |name, options: &[&str], size, asked| Observer {
        name,
        options: options.iter().map(|word| (*word).to_owned()).collect(),
        size,
        asked,
    };
    let lua = |name: &str| format!("{folder}/{name} {SCRIPT} 3");
    let ids = format!("{programs}/dcpi trace --blocks -o {folder}/ids.trace");
    let events = "--event=cpu-clock,page-faults,context-switches,cpu-migrations,minor-faults";
    Ok(vec![
        of("functions, compiled in", &["--observed", &lua("lua-functions")], 3, Some(true)),
        of(
            "uftrace",
            &["--interval=5ms", "--observer", &format!("uftrace record -P . -d {folder}/uftrace")],
            1,
            Some(true),
        ),
        of("block ids", &["--observed", &format!("{ids} -- {}", lua("lua-ids"))], 3, Some(false)),
        // Counters change what gcc inlines, and with it the procedures' shares: either verdict
        // passes.
        of("block counts", &["--observed", &lua("lua-blocks")], 3, None),
        of(
            "dcpi record",
            &["--observer", &format!("{programs}/dcpi record --db {folder}/db --")],
            3,
            None,
        ),
        of("1 more event", &["--event=page-faults,context-switches,cpu-migrations"], 3, None),
        of("3 more events", &[events], 3, None),
        of("load beside it", &["--observer", &format!("sh -c '{BESIDE}' sh")], 3, None),
    ])
}

/// The output of `dcpi perturb`.
struct Row {
    name: &'static str,
    perturbed: bool,
    slowdown: f64,
    believed: (usize, usize),
    moved: String,
    inner: String,
    outer: String,
}

impl Row {
    const HEADER: &str = "observer                verdict        CPU time  believe  time moved most\n\
        \x20   inner, outer: the correlations that changed most";

    fn measure(observer: &Observer, folder: &str, programs: &str) -> anyhow::Result<Self> {
        let json = perturb(programs, &observer.options, folder, observer.size)?;
        let metrics = at(&json, "/metrics").as_array().context("no metrics")?;
        let name = |metric: &Value| at(metric, "/name").as_str().unwrap_or_default().to_owned();
        let relation = |metric: &Value, kind: &str| {
            let of = at(metric, &format!("/{kind}"));
            let distance = at(of, "/deviations").as_f64()?;
            let number = |field: &str| at(of, &format!("/{field}")).as_f64().unwrap_or_default();
            let with =
                at(of, "/with").as_str().map(|with| format!(" / {with}")).unwrap_or_default();
            let text = format!(
                "{kind} {}{with}: {:.2} (sd {:.2}) -> {:.2}, {:+.1} sd{}",
                name(metric),
                number("baseline"),
                number("spread"),
                number("observed"),
                distance,
                if *at(of, "/changed") == Value::Bool(true) { ", changed" } else { "" },
            );
            Some((distance.abs(), text))
        };
        let largest = |kind: &str| {
            let all = metrics.iter().filter_map(|metric| relation(metric, kind));
            all.max_by(|a, b| a.0.total_cmp(&b.0)).map_or_else(String::new, |(_, text)| text)
        };
        let moved =
            metrics.iter().filter(|metric| at(metric, "/unit") == "share").max_by(|a, b| {
                let by = |of: &Value| at(of, "/amount/change/value").as_f64().unwrap_or(0.0).abs();
                by(a).total_cmp(&by(b))
            });
        let moved = moved.map(|metric| {
            let amount = |field: &str| {
                100.0 * at(metric, &format!("/amount/{field}")).as_f64().unwrap_or(0.0)
            };
            format!("{} {:.1} -> {:.1} %", name(metric), amount("baseline"), amount("observed"))
        });
        let is =
            |metric: &&Value, field: &str| *at(metric, &format!("/{field}")) == Value::Bool(true);
        let believed =
            metrics.iter().filter(|of| !is(of, "perturbed") && !is(of, "unknown")).count();
        Ok(Self {
            name: observer.name,
            perturbed: at(&json, "/relations_changed").as_bool().context("no verdict")?,
            slowdown: at(&json, "/slowdown/cpu/value").as_f64().context("no slowdown")?,
            believed: (believed, metrics.len()),
            moved: moved.unwrap_or_default(),
            inner: largest("inner"),
            outer: largest("outer"),
        })
    }

    fn shown(&self) -> String {
        format!(
            "{:<23} {:<14} {:>8.2}  {:>2} of {:<2} {}\n    {}\n    {}",
            self.name,
            if self.perturbed { "perturbed" } else { "not perturbed" },
            self.slowdown,
            self.believed.0,
            self.believed.1,
            self.moved,
            self.inner,
            self.outer,
        )
    }
}

/// The report of `dcpi perturb` with these options.
fn perturb(programs: &str, options: &[String], folder: &str, size: u32) -> anyhow::Result<Value> {
    let mut dcpi = Command::new(format!("{programs}/dcpi"));
    // The build with counted blocks writes its counts there.
    dcpi.env("GCOV_PREFIX", std::path::absolute(format!("{folder}/counts"))?);
    dcpi.arg("perturb").args(options).args(["--format=json", "--"]);
    dcpi.arg(format!("{folder}/lua")).args(SCRIPT.split(' ')).arg(size.to_string());
    let text = output(&mut dcpi)?;
    let json: Value = serde_json::from_str(&text).context("reading the report")?;
    if at(&json, "/schema/name") != "dcpi.perturb" {
        bail!("dcpi perturb wrote another report: {}", at(&json, "/schema"));
    }
    Ok(json)
}

fn false_alarms(folder: &str, programs: &str, trials: u64) -> anyhow::Result<u64> {
    let json = perturb(programs, &[format!("--false-alarms={trials}")], folder, 3)?;
    at(&json, "/false_alarms/flagged").as_u64().context("no false alarms in the report")
}

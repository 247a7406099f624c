//! `bench time`: error rates of `dcpi time` and `dcpi-bench`, beside the lecture's techniques,
//! hyperfine and criterion.
//!
//! The program is Lua, linked in random orders. Its time varies by some percent with the layout of
//! its code, which no number of runs of one build can tell from a change. Comparisons of Lua with
//! itself are of two builds that differ in link order alone, so every "faster" is wrong;
//! comparisons with 2 % less work should be found.

use super::faster::{self, Program};
use super::json::number_at;
use super::load::Load;
use super::machine::description;
use super::time_peers::{criterion, hyperfine, moments};
use super::{FOLDER, count, option, refuse_others};
use crate::process::{command, must, output};
use crate::{Outcome, packages};
use anyhow::{Context as _, ensure};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// The values of `--only`.
const PARTS: [&str; 5] = ["lecture", "functions", "same", "effect", "peers"];
/// Size of the work of one run: about 30 ms.
const SIZE: u32 = 1500;
/// Size of 2 % less work.
const LESS: u32 = 1470;
/// Layouts of a comparison: enough to find an effect as large as the spread over layouts in four of
/// five cases.
const LAYOUTS: u32 = 12;
/// Runs of each program in a layout.
const RUNS: u32 = 5;

/// Runs it.
pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    let valued = ["--only", "--pairs", "--effects", "--load"];
    refuse_others("time", arguments, &["--quick"], &valued)?;
    let quick = arguments.contains(&"--quick");
    let pairs = count(arguments, "--pairs", if quick { 10 } else { 100 })?;
    let effects = count(arguments, "--effects", if quick { 5 } else { 20 })?;
    let load = count(arguments, "--load", 4)?;
    let only = option(arguments, "--only")?;
    if let Some(only) = only {
        ensure!(PARTS.contains(&only), "--only {only}: must be one of {}", PARTS.join(", "));
    }
    let is_asked = |part: &str| only.is_none_or(|only| only == part);
    println!("on {}\n", description());
    let speed = if quick { " --quick" } else { "" };
    if is_asked("lecture") {
        println!("The lecture's techniques\n");
        must(&mut example("lecture", speed))?;
    }
    if is_asked("functions") {
        must(&mut command("cargo build -q --release -p dcpi-bench --examples"))?;
        for busy in [0, load] {
            println!("\nFunctions whose times are known, by dcpi-bench; {}", loaded(busy));
            let _load = Load::start(busy)?;
            must(&mut example("chains", speed))?;
        }
    }
    if is_asked("same") || is_asked("effect") || is_asked("peers") {
        let bench = Bench::prepare()?;
        if is_asked("same") {
            bench.same(pairs, load)?;
        }
        if is_asked("effect") {
            bench.effects(effects, load)?;
        }
        if is_asked("peers") {
            bench.peers(pairs.div_ceil(5), load)?;
        }
    }
    Ok(Outcome::Clean)
}

fn example(name: &str, options: &str) -> Command {
    command(&format!("cargo run -q --release -p dcpi-bench --example {name} --{options}"))
}

/// The load in words.
fn loaded(busy: u64) -> String {
    if busy == 0 { "no load of ours".to_owned() } else { format!("beside {busy} busy loops") }
}

/// Two builds of Lua, and dcpi.
pub struct Bench {
    dcpi: String,
    folder: String,
}

/// Verdicts of comparisons.
#[derive(Default)]
struct Verdicts {
    faster: u32,
    slower: u32,
    not_distinguishable: u32,
    too_few: u32,
    /// Changes, in percent.
    changes: Vec<f64>,
    seconds: f64,
}

impl Verdicts {
    fn all(&self) -> u32 {
        self.faster + self.slower + self.not_distinguishable + self.too_few
    }
}

impl Bench {
    /// Builds dcpi and the objects of Lua.
    fn prepare() -> anyhow::Result<Self> {
        packages::ensure(packages::COMPILER.iter().chain(&packages::TIMERS))?;
        let programs = super::perturb_uprobes::programs()?;
        let folder = format!("{FOLDER}/time");
        let objects = format!("{folder}/objects");
        fs::create_dir_all(&objects).with_context(|| format!("creating {objects}"))?;
        faster::prepare_sources()?;
        let words = Program::Lua.sources()?;
        let (files, flags): (Vec<&String>, Vec<&String>) =
            words.iter().filter(|word| *word != "-lm").partition(|word| word.ends_with(".c"));
        println!("compiling Lua");
        for file in files {
            let name = Path::new(file).file_stem().context("a source without a name")?;
            let object = Path::new(&objects).join(name).with_extension("o");
            // Lua's own lua.c has a second main.
            let is_own_main = name == "lua" && !file.starts_with("tests/");
            if !object.exists() && !is_own_main && name != "luac" {
                let mut gcc = command("gcc -O2 -w -c");
                must(gcc.args(&flags).arg("-o").arg(&object).arg(file))?;
            }
        }
        Ok(Self { dcpi: format!("{programs}/dcpi"), folder })
    }

    /// Links both programs; each number is the seed of a link order.
    pub fn link(&self, numbers: [u64; 2]) -> anyhow::Result<()> {
        for (number, name) in numbers.into_iter().zip(["a", "b"]) {
            must(Command::new("bash").args(["tests/bench/relink.sh"]).args([
                format!("{}/objects", self.folder),
                number.to_string(),
                format!("{}/{name}", self.folder),
            ]))?;
        }
        Ok(())
    }

    /// The command line of a program with work of this size.
    pub fn work(&self, name: &str, size: u32) -> String {
        format!("{}/{name} tests/bench/time.lua 7 {size}", self.folder)
    }

    /// The JSON of one `dcpi time` of works of these sizes, with link orders as `links` says.
    fn compare(&self, sizes: [u32; 2], seed: u64, links: Links) -> anyhow::Result<String> {
        let script = |name: &str, number: &str| {
            let folder = &self.folder;
            format!("bash tests/bench/relink.sh {folder}/objects {number} {folder}/{name}")
        };
        let second = if links == Links::OneOrder { "$DCPI_LAYOUT" } else { "$((DCPI_LAYOUT + 1))" };
        let relink = format!("{} && {}", script("a", "$DCPI_LAYOUT"), script("b", second));
        let mut dcpi = Command::new(&self.dcpi);
        dcpi.args(["time", "--format", "json", "--seed", &seed.to_string()]);
        dcpi.args(["--layouts", &LAYOUTS.to_string(), "-r", &RUNS.to_string()]);
        if matches!(links, Links::OneOrder | Links::OwnOrders) {
            dcpi.args(["--relink", &format!("sh -c '{relink}'")]);
        }
        let second = if links == Links::SameFile { "a" } else { "b" };
        let commands = [self.work("a", sizes[0]), self.work(second, sizes[1])];
        output(dcpi.args(commands))
    }

    fn verdicts(&self, sizes: [u32; 2], count: u64, links: Links) -> anyhow::Result<Verdicts> {
        let mut verdicts = Verdicts::default();
        let begun = Instant::now();
        for seed in 0..count {
            let told = self.compare(sizes, seed, links)?;
            match told.lines().find_map(|line| line.trim().strip_prefix("\"verdict\": \"")) {
                Some(word) if word.starts_with("faster") => verdicts.faster += 1,
                Some(word) if word.starts_with("slower") => verdicts.slower += 1,
                Some(word) if word.starts_with("not") => verdicts.not_distinguishable += 1,
                Some(_) => verdicts.too_few += 1,
                None => anyhow::bail!("dcpi time has no verdict: {told}"),
            }
            let change = number_at(&told, &["change", "value"]).unwrap_or(f64::NAN);
            verdicts.changes.push(change * 100.0);
        }
        verdicts.seconds = begun.elapsed().as_secs_f64() / count as f64;
        Ok(verdicts)
    }

    fn same(&self, pairs: u64, load: u64) -> anyhow::Result<()> {
        println!("\ndcpi time of Lua against itself, {LAYOUTS} layouts, {RUNS} runs in each");
        head();
        for busy in [0, load] {
            let _load = Load::start(busy)?;
            for links in [Links::OwnOrders, Links::Never, Links::SameFile] {
                // One order for both: builds of two orders that are never linked again do differ in
                // speed.
                self.link([1, 1])?;
                row(&self.verdicts([SIZE, SIZE], pairs, links)?, links, busy);
            }
        }
        println!("every 'faster' and 'slower' is wrong; 5 of 100 are what 95 % confidence says");
        Ok(())
    }

    fn effects(&self, count: u64, load: u64) -> anyhow::Result<()> {
        println!("\ndcpi time of Lua against Lua with 2 % less work, {LAYOUTS} layouts");
        head();
        for busy in [0, load] {
            let _load = Load::start(busy)?;
            for links in [Links::OneOrder, Links::OwnOrders] {
                row(&self.verdicts([SIZE, LESS], count, links)?, links, busy);
            }
        }
        println!("'faster' is right; four of five are asked for");
        Ok(())
    }

    fn peers(&self, pairs: u64, load: u64) -> anyhow::Result<()> {
        println!("\nothers, of Lua against itself in two link orders, as of two builds");
        println!("{:<28} {:<22} {:>22} {:>6}", "", "", "say a difference", "of");
        for busy in [0, load] {
            let _load = Load::start(busy)?;
            for said in hyperfine(self, pairs)?.into_iter().chain([criterion(self, pairs)?]) {
                let (name, wrong) = said;
                println!("{name:<28} {:<22} {wrong:>22} {pairs:>6}", loaded(busy));
            }
        }
        Ok(())
    }

    /// The benchmark's folder.
    pub fn folder(&self) -> &str {
        &self.folder
    }

    /// The command lines of both programs, with the same work.
    pub fn same_work(&self) -> [String; 2] {
        [self.work("a", SIZE), self.work("b", SIZE)]
    }
}

/// Link orders of the two programs in a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Links {
    /// Both are linked again for each layout, in different orders.
    OwnOrders,
    /// Both are linked again for each layout, in one order.
    OneOrder,
    /// Neither is linked again.
    Never,
    /// Neither is linked again, and both are one file.
    SameFile,
}

fn head() {
    println!(
        "{:<28} {:<22} {:>6} {:>6} {:>8} {:>8} {:>6} {:>9} {:>9} {:>7}",
        "links", "", "faster", "slower", "not dist", "too few", "of", "mean %", "sd %", "s each"
    );
}

fn row(verdicts: &Verdicts, links: Links, busy: u64) {
    let links = match links {
        Links::OwnOrders => "anew, orders of their own",
        Links::OneOrder => "anew, in one order",
        Links::Never => "never, copies of one build",
        Links::SameFile => "never, one file",
    };
    let (mean, sd) = moments(&verdicts.changes);
    println!(
        "{links:<28} {:<22} {:>6} {:>6} {:>8} {:>8} {:>6} {mean:>9.2} {sd:>9.2} {:>7.1}",
        loaded(busy),
        verdicts.faster,
        verdicts.slower,
        verdicts.not_distinguishable,
        verdicts.too_few,
        verdicts.all(),
        verdicts.seconds
    );
}

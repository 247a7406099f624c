//! `bench faster`: speedup of programs by profiles of time samples. An interpreter, a compressor
//! and a database are built without a profile, with dcpi's profile for the compiler, reordered by
//! BOLT with dcpi's profile, with both, the same with exact counts of `dcpi ideal`, and, as the
//! upper limit, with the counts of instrumented builds.
//!
//! The programs come from the crates registry, their compilers and linkers from Debian. Profiled
//! runs have other inputs than measured ones.

use super::machine::description;
use super::statistics::{Spread, interval_of_median};
use super::workloads::together;
use super::{FOLDER, count, refuse_others, require_root};
use crate::process::{command, must, output};
use crate::{Outcome, blockcount, packages};
use anyhow::{Context as _, ensure};
use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::Hasher as _;
use std::io::Read as _;
use std::process::Stdio;

/// Manifest that fetches the programs' sources, with exact versions.
const MANIFEST: &str = r#"[package]
name = "sources"
version = "0.0.0"
edition = "2021"
[lib]
path = "empty.rs"
[workspace]
[dependencies]
lua-src = "=551.1.0"
bzip2-sys = "=0.1.13"
libsqlite3-sys = { version = "=0.39.1", features = ["bundled"] }
"#;
const LUA: &str = "sources/vendor/lua-src-551.1.0";
const BZIP2: &str = "sources/vendor/bzip2-sys-0.1.13+1.0.8/bzip2-1.0.8";
const SQLITE: &str = "sources/vendor/libsqlite3-sys-0.39.1/sqlite3";

/// Flags of all builds: the compiler's profiles refer to debug information, which costs no time.
const FLAGS: &str = "-O2 -w -g -fdebug-info-for-profiling -funique-internal-linkage-names -Wl,--build-id,--emit-relocs";
/// Options that BOLT's documentation recommends.
const BOLT: &str =
    "-reorder-blocks=ext-tsp -reorder-functions=cdsort -split-functions -split-all-cold -icf=1";

named! {
    /// A way to build a program.
    enum Variant {
        Plain = "clang -O2",
        Autofdo = "with our AutoFDO profile",
        Bolt = "after BOLT with our profile",
        Both = "both",
        ExactAutofdo = "AutoFDO, exact counts",
        ExactBoth = "both, exact counts",
        Instrumented = "instrumented PGO",
    }
}

impl Variant {
    fn folder(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Autofdo => "autofdo",
            Self::Bolt => "bolt",
            Self::Both => "both",
            Self::ExactAutofdo => "exact-autofdo",
            Self::ExactBoth => "exact-both",
            Self::Instrumented => "instrumented",
        }
    }
}

/// A program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// The interpreter of Lua.
    Lua,
    /// The compressor.
    Bzip2,
    /// A shell of SQLite.
    Sqlite,
}

/// All programs; the one that takes longest to build is first.
const PROGRAMS: [Program; 3] = [Program::Sqlite, Program::Lua, Program::Bzip2];

impl Program {
    /// The file's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lua => "lua",
            Self::Bzip2 => "bzip2",
            Self::Sqlite => "sqlite",
        }
    }

    fn path(self, variant: &str) -> String {
        format!("{FOLDER}/faster/{variant}/{}", self.name())
    }

    /// Source files, and flags of the program, for the compiler.
    pub fn sources(self) -> anyhow::Result<Vec<String>> {
        let of = |folder: &str, name: &str| format!("{FOLDER}/faster/{folder}/{name}");
        Ok(match self {
            Self::Lua => {
                let folder = format!("{LUA}/lua-5.4.9");
                let mut words = c_files(&of(&folder, ""))?;
                words.extend(["-DLUA_USE_POSIX".to_owned(), format!("-I{}", of(&folder, ""))]);
                words.extend(["tests/bench/faster/lua.c".to_owned(), "-lm".to_owned()]);
                words
            }
            Self::Bzip2 => {
                let names = [
                    "bzip2",
                    "bzlib",
                    "blocksort",
                    "compress",
                    "decompress",
                    "crctable",
                    "huffman",
                    "randtable",
                ];
                names.map(|name| of(BZIP2, &format!("{name}.c"))).to_vec()
            }
            Self::Sqlite => {
                let words = [
                    "-DSQLITE_THREADSAFE=0",
                    "-DSQLITE_OMIT_LOAD_EXTENSION",
                    "tests/bench/faster/sqlite.c",
                    "-lm",
                ];
                let mut words = words.map(str::to_owned).to_vec();
                words.extend([format!("-I{}", of(SQLITE, "")), of(SQLITE, "sqlite3.c")]);
                words
            }
        })
    }

    /// The arguments of the runs that are profiled, or of those that are measured.
    fn runs(self, training: bool) -> Vec<String> {
        let input = |name: &str| {
            format!("{FOLDER}/faster/{}.{name}", if training { "training" } else { "measured" })
        };
        match self {
            Self::Lua => vec![format!(
                "tests/bench/faster/work.lua {}",
                if training { "3 1" } else { "7 2" }
            )],
            Self::Bzip2 => vec![format!("-kc {}", input("data")), format!("-dc {}", input("bz2"))],
            Self::Sqlite => vec![input("sql")],
        }
    }

    fn build(self, to: &str, more: &[String]) -> anyhow::Result<()> {
        let path = self.path(to);
        let mut clang = command(&format!("clang-22 {FLAGS} -o {path}"));
        must(clang.args(more).args(self.sources()?))
    }
}

/// Builds and profiles the programs, unless `--again` is given, measures, and prints the table.
pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    refuse_others("faster", arguments, &["--again"], &["--rounds", "--seconds"])?;
    require_root("faster")?;
    packages::ensure(packages::COMPILER.iter().chain(&packages::OPTIMIZERS))?;
    if !arguments.contains(&"--again") {
        blockcount::build()?;
        let programs = super::perturb_uprobes::programs()?;
        prepare(&format!("{programs}/dcpi"), count(arguments, "--seconds", 30)?)?;
    }
    let rounds = count(arguments, "--rounds", 15)?;
    println!("measuring {rounds} rounds of {} programs", PROGRAMS.len() * Variant::ALL.len());
    let table = Table { times: measure(rounds)? };
    print!("\n{table}");
    println!(
        "{} rounds on {}. CPU time; medians over rounds of the ratio to plain in the same round, with 95 % intervals.",
        rounds,
        description()
    );
    Ok(Outcome::Clean)
}

/// Builds everything.
fn prepare(dcpi: &str, seconds: u64) -> anyhow::Result<()> {
    let folder = format!("{FOLDER}/faster");
    fetch(&folder)?;
    for variant in Variant::ALL.iter().map(|variant| variant.folder()).chain(["counting"]) {
        fs::create_dir_all(format!("{folder}/{variant}"))?;
    }
    println!("building programs plainly, and such that count what they execute");
    let each = |work: &(dyn Fn(Program) -> anyhow::Result<()> + Sync)| {
        together(PROGRAMS.len() as u64, |number| {
            PROGRAMS.get(number as usize).map_or(Ok(()), |program| work(*program))
        })
    };
    each(&|program| program.build("plain", &[]))?;
    write_inputs(&folder)?;
    println!("profiling each for {seconds} s");
    for program in PROGRAMS {
        record(dcpi, program, "plain", Source::Sampled, seconds)?;
        record(dcpi, program, "plain", Source::Counted, seconds)?;
    }
    println!("building with profiles");
    each(&|program| {
        for (to, source) in
            [(Variant::Autofdo, Source::Sampled), (Variant::ExactAutofdo, Source::Counted)]
        {
            let profile = profile(program, "plain", source, "autofdo");
            program.build(to.folder(), &[format!("-fprofile-sample-use={profile}")])?;
        }
        bolt(program, Variant::Plain, Variant::Bolt, Source::Sampled)?;
        instrument(program)
    })?;
    for program in PROGRAMS {
        record(dcpi, program, "autofdo", Source::Sampled, seconds)?;
        bolt(program, Variant::Autofdo, Variant::Both, Source::Sampled)?;
        record(dcpi, program, Variant::ExactAutofdo.folder(), Source::Counted, seconds)?;
        bolt(program, Variant::ExactAutofdo, Variant::ExactBoth, Source::Counted)?;
    }
    Ok(())
}

/// Fetches the programs' sources.
pub fn prepare_sources() -> anyhow::Result<()> {
    fetch(&format!("{FOLDER}/faster"))
}

fn fetch(folder: &str) -> anyhow::Result<()> {
    let sources = format!("{folder}/sources");
    if fs::read_to_string(format!("{sources}/fetched")).is_ok_and(|fetched| fetched == MANIFEST) {
        return Ok(());
    }
    fs::create_dir_all(&sources).with_context(|| format!("creating {sources}"))?;
    fs::write(format!("{sources}/Cargo.toml"), MANIFEST)?;
    fs::write(format!("{sources}/empty.rs"), "")?;
    println!("fetching sources into {sources}");
    let _ = output(command("cargo vendor -q --versioned-dirs vendor").current_dir(&sources))?;
    fs::write(format!("{sources}/fetched"), MANIFEST)?;
    Ok(())
}

fn c_files(folder: &str) -> anyhow::Result<Vec<String>> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {folder}"))?;
    let mut paths: Vec<String> =
        entries.flatten().map(|entry| entry.path().display().to_string()).collect();
    paths.retain(|path| path.ends_with(".c"));
    paths.sort();
    Ok(paths)
}

/// Writes the programs' inputs, different ones for profiled and measured runs. Those of bzip2 are
/// text and machine code.
fn write_inputs(folder: &str) -> anyhow::Result<()> {
    let mut training = Vec::new();
    for version in ["5.1.5", "5.2.4", "5.3.6", "5.4.9", "5.5.1"] {
        training.extend(c_files(&format!("{folder}/{LUA}/lua-{version}"))?);
    }
    training.push(Program::Lua.path("plain"));
    let measured = [format!("{folder}/{SQLITE}/sqlite3.c"), Program::Bzip2.path("plain")];
    let template = fs::read_to_string("tests/bench/faster/work.sql")
        .context("reading tests/bench/faster/work.sql")?;
    for (name, files, seed, size) in
        [("training", training, "12345", "2"), ("measured", measured.to_vec(), "777", "4")]
    {
        let mut data = Vec::new();
        for file in files {
            data.append(&mut fs::read(&file).with_context(|| format!("reading {file}"))?);
        }
        fs::write(format!("{folder}/{name}.data"), data)?;
        let packed = command(&format!("{} -kc {folder}/{name}.data", Program::Bzip2.path("plain")))
            .output()?;
        ensure!(packed.status.success(), "bzip2 failed");
        fs::write(format!("{folder}/{name}.bz2"), packed.stdout)?;
        fs::write(
            format!("{folder}/{name}.sql"),
            template.replace("@SEED@", seed).replace("@SIZE@", size),
        )?;
    }
    Ok(())
}

/// The source of a profile's counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Sampled,
    Counted,
}

fn profile(program: Program, variant: &str, source: Source, format: &str) -> String {
    let source = if source == Source::Counted { ".exact" } else { "" };
    format!("{}{source}.{format}", program.path(variant))
}

/// Profiles the training runs of a program as a user would, and exports the profile: samples them
/// again and again for some seconds, or counts one execution of each.
fn record(
    dcpi: &str,
    program: Program,
    variant: &str,
    source: Source,
    seconds: u64,
) -> anyhow::Result<()> {
    let path = program.path(variant);
    let db = profile(program, variant, source, "db");
    let _ = fs::remove_dir_all(&db); // of an earlier run
    let runs: Vec<String> =
        program.runs(true).iter().map(|run| format!("{path} {run} > /dev/null")).collect();
    let runs = runs.join("; ");
    let (task, script) = match source {
        Source::Sampled => {
            let end = format!("end=$(($(date +%s) + {seconds}))");
            ("record -n 1", format!("{end}; while [ $(date +%s) -lt $end ]; do {runs}; done"))
        }
        Source::Counted => ("ideal --jumps", runs),
    };
    output(command(&format!("{dcpi} {task} -o {db} -- sh -c")).arg(script))?;
    for format in ["autofdo", "bolt"] {
        let file = profile(program, variant, source, format);
        output(&mut command(&format!("{dcpi} export --db {db} --to {format} -o {file} {path}")))?;
    }
    Ok(())
}

fn bolt(program: Program, from: Variant, to: Variant, source: Source) -> anyhow::Result<()> {
    let (old, new) = (program.path(from.folder()), program.path(to.folder()));
    let profile = profile(program, from.folder(), source, "bolt");
    let said =
        output(&mut command(&format!("llvm-bolt-22 {old} --pa -p {profile} -o {new} {BOLT}")))?;
    fs::write(format!("{new}.bolt-says"), said)?;
    Ok(())
}

/// Builds a program with exact counts of what its training executes.
fn instrument(program: Program) -> anyhow::Result<()> {
    program.build("counting", &["-fprofile-generate".to_owned()])?;
    let path = program.path("counting");
    let mut raw = Vec::new();
    for (number, run) in program.runs(true).iter().enumerate() {
        let counts = format!("{path}.{number}.profraw");
        let mut counted = command(&format!("{path} {run}"));
        must(counted.env("LLVM_PROFILE_FILE", &counts).stdout(Stdio::null()))?;
        raw.push(counts);
    }
    let merged = format!("{path}.profdata");
    must(command(&format!("llvm-profdata-22 merge -o {merged}")).args(raw))?;
    program.build(Variant::Instrumented.folder(), &[format!("-fprofile-use={merged}")])
}

/// CPU seconds of each program's variants, round by round.
type Times = Vec<(Program, Vec<Vec<f64>>)>;

fn measure(rounds: u64) -> anyhow::Result<Times> {
    let mut times: Times =
        PROGRAMS.iter().map(|program| (*program, vec![Vec::new(); Variant::ALL.len()])).collect();
    let mut expected: Vec<Option<u64>> = vec![None; PROGRAMS.len()];
    for round in 0..rounds as usize {
        for ((program, times), expected) in times.iter_mut().zip(&mut expected) {
            for number in 0..Variant::ALL.len() {
                // The order of the variants rotates by one each round.
                let number = (number + round) % Variant::ALL.len();
                let (Some(variant), Some(times)) =
                    (Variant::ALL.get(number), times.get_mut(number))
                else {
                    continue;
                };
                let (seconds, wrote) = timed(*program, *variant)?;
                let path = program.path(variant.folder());
                ensure!(
                    *expected.get_or_insert(wrote) == wrote,
                    "{path} writes something else than the others"
                );
                times.push(seconds);
            }
        }
    }
    Ok(times)
}

/// CPU seconds of a program's runs, and a hash of what it wrote.
fn timed(program: Program, variant: Variant) -> anyhow::Result<(f64, u64)> {
    let (mut hasher, mut total_ns) = (DefaultHasher::new(), 0.0);
    for run in program.runs(false) {
        let mut child = command(&format!("{} {run}", program.path(variant.folder())));
        let mut child = child.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut written = Vec::new();
        child.stdout.take().context("no output")?.read_to_end(&mut written)?;
        // The process has ended, or is about to, but has not been waited for, so the kernel still
        // reports its time in nanoseconds.
        let path = format!("/proc/{}/schedstat", child.id());
        let schedstat = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        let ran_ns = schedstat.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
        total_ns += ran_ns.with_context(|| format!("{path} has no number"))?;
        ensure!(child.wait()?.success(), "{} failed", program.path(variant.folder()));
        hasher.write(&written);
    }
    Ok((total_ns / 1e9, hasher.finish()))
}

/// The overall result.
struct Table {
    times: Times,
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let header = ["program", "variant", "CPU s", "of plain", "95 % interval", "of PGO's gain"];
        let [program, variant, seconds, ratio, interval, share] = header;
        writeln!(
            f,
            "{program:<8} {variant:<28} {seconds:>7} {ratio:>9} {interval:>17} {share:>14}"
        )?;
        let mut logs = vec![0.0; Variant::ALL.len()];
        for (program, times) in &self.times {
            let ratios = ratios(times);
            let gain = ratios
                .last()
                .and_then(|all| Spread::of(all.iter().copied()))
                .map_or(0.0, |best| best.median.ln());
            for (((variant, ratios), times), log) in
                Variant::ALL.iter().zip(&ratios).zip(times).zip(&mut logs)
            {
                let (Some(ratio), Some(seconds)) =
                    (Spread::of(ratios.iter().copied()), Spread::of(times.iter().copied()))
                else {
                    continue;
                };
                *log += ratio.median.ln();
                let (low, high) = interval_of_median(ratios).unwrap_or((ratio.min, ratio.max));
                let interval = format!("{low:.3}..{high:.3}");
                let share = shown_share(ratio.median.ln(), gain);
                let (name, title) = (program.name(), variant.name());
                let (seconds, ratio) = (seconds.median, ratio.median);
                writeln!(
                    f,
                    "{name:<8} {title:<28} {seconds:>7.2} {ratio:>9.3} {interval:>17} {share:>14}"
                )?;
            }
        }
        let all = logs.last().copied().unwrap_or(0.0);
        for (variant, log) in Variant::ALL.iter().zip(&logs) {
            let (ratio, share) = ((log / self.times.len() as f64).exp(), shown_share(*log, all));
            writeln!(
                f,
                "{:<8} {:<28} {:>7} {ratio:>9.3} {:>17} {share:>14}",
                "all",
                variant.name(),
                "",
                ""
            )?;
        }
        Ok(())
    }
}

/// Ratio of each variant's time to that of the first variant in the same round.
fn ratios(times: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let Some(plain) = times.first() else { return Vec::new() };
    times
        .iter()
        .map(|times| times.iter().zip(plain).map(|(time, plain)| time / plain).collect())
        .collect()
}

/// A gain as a share of the best gain, both as logarithms of ratios; `-` where the best gain is
/// next to none.
fn shown_share(log: f64, best: f64) -> String {
    if best > -0.005 {
        return "-".to_owned();
    }
    format!("{:.0} %", 100.0 * log / best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_ratios_and_shares() {
        let times = vec![
            vec![1.0, 2.0, 4.0],
            vec![0.9, 1.8, 3.6],
            vec![1.0, 2.0, 4.0],
            vec![0.9, 1.8, 3.6],
            vec![0.85, 1.7, 3.4],
            vec![0.81, 1.62, 3.24],
            vec![0.81, 1.62, 3.24],
        ];
        let table = Table { times: vec![(Program::Lua, times)] }.to_string();
        let row = |title: &str| {
            table
                .lines()
                .find(|line| line.starts_with("lua") && line.contains(title))
                .unwrap()
                .to_owned()
        };
        assert!(row("AutoFDO").contains("0.900") && row("AutoFDO").ends_with(" 50 %"), "{table}");
        assert!(
            row("instrumented").contains("0.810") && row("instrumented").ends_with("100 %"),
            "{table}"
        );
        assert_eq!(shown_share(-0.1, 0.0), "-");
    }
}

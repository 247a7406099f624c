//! `bench stacks --callgrind`: inclusive times by sampled call stacks against those by exact
//! counts.
//!
//! callgrind counts the instructions that each procedure executes below each chain of callers, of
//! programs that do the same in every run. The time of a procedure below a caller is its time by
//! samples times the share of its instructions that it executed there: the time per instruction
//! depends on the procedure, hardly on its caller.

use super::faster::Program as Source;
use super::profilers::{client, start_dcpid};
use crate::process::{command, must, output};
use anyhow::{Context as _, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::process::{Command, Stdio};
use wire::Request;

/// Length of callgrind's chains of callers, above the depth of these programs' stacks.
const CALLERS: u32 = 60;
/// Least share of a compared procedure: below, it has too few stacks.
const SHARE_MIN: f64 = 0.01;
/// Required share of procedures whose interval of 95 % contains the counted value.
const WITHIN_MIN: f64 = 0.95;
/// Settings that make glibc choose the same copy routines on the processor as under valgrind, which
/// lacks AVX-512.
const TUNABLES: &str = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-ERMS,-FSRM";

/// A program of one file, and the arguments of a run.
struct Program {
    name: &'static str,
    path: String,
    arguments: String,
}

/// Procedures compared, and those whose interval contains the counted value.
#[derive(Clone, Copy, Debug, Default)]
struct Score {
    procedures: usize,
    within: usize,
    farthest: f64,
}

/// Compares five programs. Returns whether [`WITHIN_MIN`] is reached.
pub fn run(folder: &str, seconds: u64) -> anyhow::Result<bool> {
    println!("{:10} {:>10} {:>7} {:>9} {:>9}", "", "procedures", "within", "farthest", "uncounted");
    let mut all = Score::default();
    for program in programs(folder)? {
        let rows = sampled(folder, &program, seconds)?;
        let counted = counted(folder, &program)?;
        let own: BTreeSet<String> = symbols(&format!("{}.o", program.path))?.into_keys().collect();
        let symbols = symbols(&program.path)?;
        let own = symbols.iter().filter(|(name, _)| own.contains(*name)).map(|(_, at)| *at);
        let (score, uncounted) = compared(&rows, &counted, (&symbols, &own.collect()));
        println!(
            "{:10} {:>10} {:>7} {:>8.2} % {:>7.2} %",
            program.name,
            score.procedures,
            score.within,
            100.0 * score.farthest,
            100.0 * uncounted
        );
        all.procedures += score.procedures;
        all.within += score.within;
    }
    let share = all.within as f64 / all.procedures.max(1) as f64;
    println!(
        "{} of {} procedures of at least {} % within their interval of 95 %: {:.1} %",
        all.within,
        all.procedures,
        100.0 * SHARE_MIN,
        100.0 * share
    );
    Ok(share >= WITHIN_MIN)
}

/// The programs, linked statically, so that all of their code has symbols.
fn programs(folder: &str) -> anyhow::Result<Vec<Program>> {
    super::faster::prepare_sources()?;
    let build = |compiler: &str, name: &str, sources: Vec<String>| {
        let path = format!("{folder}/{name}");
        let (sources, libraries): (Vec<String>, Vec<String>) =
            sources.into_iter().partition(|word| !word.starts_with("-l"));
        // Without sibling calls: callgrind takes a jump to another procedure for a call, but it
        // leaves no frame for stacks.
        let flags = "-O2 -w -fno-optimize-sibling-calls -fno-pie -r -nostdlib";
        must(command(&format!("{compiler} {flags} -o {path}.o")).args(sources))?;
        must(command(&format!("{compiler} -static -no-pie -o {path} {path}.o")).args(libraries))?;
        anyhow::Ok(path)
    };
    let c = |source: Source| build("cc", source.name(), source.sources()?);
    let (lua, bzip2, sqlite) = (c(Source::Lua)?, c(Source::Bzip2)?, c(Source::Sqlite)?);
    let words = build("c++", "words", vec!["tests/bench/stacks/words.cc".to_owned()])?;
    let [packed, unpacked, queries] =
        ["data", "bz2", "sql"].map(|end| format!("{folder}/in.{end}"));
    let mut data = fs::read(&lua)?;
    data.truncate(400_000);
    fs::write(&packed, data)?;
    let compressed = command(&format!("{bzip2} -kc {packed}")).output()?;
    fs::write(&unpacked, compressed.stdout)?;
    let template = fs::read_to_string("tests/bench/faster/work.sql")?;
    fs::write(&queries, template.replace("@SEED@", "12345").replace("@SIZE@", "1"))?;
    let program =
        |name, path: &str, arguments: String| Program { name, path: path.to_owned(), arguments };
    Ok(vec![
        program("lua", &lua, "tests/bench/faster/work.lua 1 1".to_owned()),
        program("bzip2 -z", &bzip2, format!("-kc {packed}")),
        program("bzip2 -d", &bzip2, format!("-dc {unpacked}")),
        program("sqlite", &sqlite, queries),
        program("C++", &words, "20".to_owned()),
    ])
}

/// Rows of `dcpi prof --inclusive` of runs of the program, one after the other.
fn sampled(folder: &str, program: &Program, seconds: u64) -> anyhow::Result<Vec<Value>> {
    let arguments = "--stacks 300 --waits off --overhead-budget off --code-store off";
    let mut dcpid = start_dcpid(folder, arguments)?;
    let line = format!("while :; do {} {}; done", program.path, program.arguments);
    let mut shell = Command::new("timeout");
    shell.args([&seconds.to_string(), "sh", "-c", &line]).env("GLIBC_TUNABLES", TUNABLES);
    shell.stdout(Stdio::null()).stderr(Stdio::null()).status().context("starting timeout")?;
    client(folder).ask(&Request::Flush)?;
    dcpid.end()?;
    let name = program.path.rsplit('/').next().unwrap_or_default();
    let line = format!(
        "{folder}/dcpi prof --inclusive --command {name} -n 0 --format json --db {folder}/db"
    );
    let said: Value = serde_json::from_str(&output(&mut command(&line))?)?;
    Ok(said.get("rows").and_then(Value::as_array).cloned().unwrap_or_default())
}

/// Instructions by chain of procedures, the innermost first.
fn counted(folder: &str, program: &Program) -> anyhow::Result<BTreeMap<Vec<String>, u64>> {
    let out = format!("{folder}/callgrind.out");
    let mut valgrind = command("valgrind -q --tool=callgrind --demangle=no --compress-strings=no");
    valgrind.args(["--compress-pos=no".to_owned(), format!("--separate-callers={CALLERS}")]);
    valgrind.arg(format!("--callgrind-out-file={out}")).arg(&program.path);
    valgrind.args(program.arguments.split(' ')).env("GLIBC_TUNABLES", TUNABLES);
    let ended = valgrind.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    ensure!(ended.success(), "callgrind failed with {}", program.path);
    let text = fs::read_to_string(&out)?;
    fs::remove_file(out)?;
    let (mut sums, mut chain, mut is_call) = (BTreeMap::new(), Vec::new(), false);
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("fn=") {
            // Contexts that differ only by depth of recursion have a number.
            let names = name.split('\'').filter(|part| part.parse::<u32>().is_err());
            chain = names.map(str::to_owned).collect();
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit()) {
            // The line after `calls=` has the inclusive cost of the callee.
            let cost = line.split(' ').nth(1).and_then(|cost| cost.parse::<u64>().ok());
            if !std::mem::take(&mut is_call) {
                *sums.entry(chain.clone()).or_default() += cost.unwrap_or(0);
            }
        }
    }
    Ok(sums)
}

/// Addresses by name, of names that only one address has.
fn symbols(path: &str) -> anyhow::Result<HashMap<String, u64>> {
    let (mut found, mut twice) = (HashMap::new(), BTreeSet::new());
    for line in output(&mut command(&format!("nm {path}")))?.lines() {
        let mut words = line.split_whitespace();
        let (Some(address), Some(kind), Some(name)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let Ok(address) = u64::from_str_radix(address, 16) else { continue };
        if "tTwWi".contains(kind) && found.insert(name.to_owned(), address).is_some() {
            twice.insert(name.to_owned());
        }
    }
    found.retain(|name, _| !twice.contains(name));
    Ok(found)
}

/// Compares the rows of the program's own procedures with the counted shares. callgrind does not
/// count the kernel, nor procedures under other names; their share of the time, which may be below
/// any procedure or none, widens the intervals.
fn compared(
    rows: &[Value],
    counted: &BTreeMap<Vec<String>, u64>,
    (symbols, of_program): (&HashMap<String, u64>, &BTreeSet<u64>),
) -> (Score, f64) {
    let address = |row: &Value| {
        let text = row.get("address")?.as_str()?.strip_prefix("0x")?;
        u64::from_str_radix(text, 16).ok()
    };
    let number = |row: &Value, path: &[&str]| {
        let found = path.iter().try_fold(row, |value, key| value.get(key));
        found.and_then(Value::as_f64).unwrap_or(0.0)
    };
    let is_kernel = |row: &&Value| row.get("kind").and_then(Value::as_str) == Some("kernel");
    let own = |row: &Value| number(row, &["share", "cpu-clock", "value"]);
    let times: HashMap<u64, f64> = rows
        .iter()
        .filter(|row| !is_kernel(row))
        .filter_map(|row| Some((address(row)?, own(row))))
        .collect();
    let (mut all, mut below) = (HashMap::<u64, u64>::new(), HashMap::<(u64, u64), u64>::new());
    for (chain, count) in counted {
        let known: Vec<u64> = chain.iter().filter_map(|name| symbols.get(name).copied()).collect();
        let first = chain.first().and_then(|name| symbols.get(name));
        let Some(first) = first else { continue };
        *all.entry(*first).or_default() += count;
        for caller in known.iter().collect::<BTreeSet<_>>() {
            *below.entry((*first, *caller)).or_default() += count;
        }
    }
    let is_counted = |row: &&Value| address(row).is_some_and(|at| all.contains_key(&at));
    let uncounted: f64 =
        rows.iter().filter(|row| is_kernel(row) || !is_counted(row)).map(own).sum();
    let mut expected: HashMap<u64, f64> = HashMap::new();
    for ((procedure, caller), count) in &below {
        let time = times.get(procedure).copied().unwrap_or(0.0);
        let whole = all.get(procedure).copied().unwrap_or(0).max(1);
        *expected.entry(*caller).or_default() += time * *count as f64 / whole as f64;
    }
    let mut score = Score::default();
    for row in rows.iter().filter(|row| !is_kernel(row)) {
        let of = |part| number(row, &["inclusive", "cpu-clock", part]);
        let at = address(row).filter(|at| of_program.contains(at));
        let Some(counted) = at.and_then(|at| expected.get(&at)) else { continue };
        if of("value").max(*counted) < SHARE_MIN {
            continue;
        }
        score.procedures += 1;
        let is_within = of("low") <= counted + uncounted && *counted <= of("high");
        score.within += usize::from(is_within);
        let distance = (of("low") - counted - uncounted).max(counted - of("high"));
        if !is_within {
            let name = row.get("procedure").and_then(Value::as_str).unwrap_or_default();
            println!("  {name}: {:.4} to {:.4}, counted {counted:.4}", of("low"), of("high"));
        }
        score.farthest = score.farthest.max(distance);
    }
    (score, uncounted)
}

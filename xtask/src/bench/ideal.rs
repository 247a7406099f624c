//! `bench ideal`: cost of exact counts: CPU time of programs of many kinds under the engine
//! `dcpi-blockcount`, with blocks alone and with edges, and under callgrind, over that of the
//! programs alone.

use super::machine::{children_cpu_s, description};
use super::statistics::Spread;
use super::{FOLDER, count, refuse_others};
use crate::process::{command, must, output};
use crate::{Outcome, blockcount, packages};
use anyhow::{Context as _, ensure};
use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hasher as _};
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Largest ratios to native time that pass: geometric mean, and each program.
const MEAN_ASKED: f64 = 2.0;
const EACH_ASKED: f64 = 4.0;
/// The options that `dcpi ideal --engine valgrind` passes to callgrind.
const CALLGRIND: &str = "valgrind --tool=callgrind --dump-instr=yes --collect-jumps=yes \
    --compress-strings=no --compress-pos=no --skip-plt=no --trace-children=yes -q";
/// Repetitions of the small source file that make the compiler's input.
const STORM: u32 = 25;
const QUERIES: usize = 40;

/// A program and its workload.
struct Program {
    name: &'static str,
    words: Vec<String>,
}

pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    refuse_others("ideal", arguments, &["--no-callgrind"], &["--rounds"])?;
    let rounds = count(arguments, "--rounds", 3)?;
    let beside = !arguments.contains(&"--no-callgrind");
    packages::ensure(packages::COMPILER.iter().chain(&packages::WALKED).chain(&packages::COUNTED))?;
    blockcount::build()?;
    let folder = format!("{FOLDER}/ideal");
    fs::create_dir_all(&folder).with_context(|| format!("creating {folder}"))?;
    println!("{}\n\n{}", description(), Row::HEADER);
    let mut rows = Vec::new();
    for program in programs(&folder)? {
        let row = Row::measure(&program, &folder, rounds, beside)
            .with_context(|| format!("counting {}", program.name))?;
        println!("{}", row.shown());
        rows.push(row);
    }
    let (text, enough) = summary(&rows);
    println!("{text}");
    Ok(if enough { Outcome::Clean } else { Outcome::Problems })
}

/// The programs, with their inputs in `folder`.
fn programs(folder: &str) -> anyhow::Result<Vec<Program>> {
    let inputs = std::path::absolute(folder)?;
    let at = |name: &str| inputs.join(name).display().to_string();
    let mut text = String::new();
    for line in 0..60_000_u64 {
        let word = line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50;
        let _ = writeln!(text, "line {line} of the text says {word} and {:x}", word * word);
    }
    let mut input = fs::read("/proc/self/exe").context("reading this program")?;
    input.truncate(2 << 20);
    input.extend(text.bytes());
    fs::write(at("text"), &text)?;
    fs::write(at("input"), input)?;
    let queries = fs::read_to_string("tests/bench/database.sql").context("reading database.sql")?;
    let (head, unit) = queries.split_once("-- unit\n").context("database.sql has no unit")?;
    fs::write(at("queries.sql"), format!("{head}{}", unit.repeat(QUERIES)))?;
    let template = fs::read_to_string("tests/bench/storm.c.in").context("reading storm.c.in")?;
    let storm: String = (0..STORM).map(|n| template.replace("@N@", &n.to_string())).collect();
    fs::write(at("storm.c"), storm)?;
    let truth = "tests/bench/truth";
    for line in [
        format!("cc -E -o {folder}/storm.i {folder}/storm.c"),
        format!("cc -O2 -o {folder}/float {truth}/numbers.c -lm"),
        format!("c++ -O2 -o {folder}/throws {truth}/throws.cc"),
    ] {
        must(&mut command(&line))?;
    }
    let cc1 = output(command("cc -print-prog-name=cc1").stdout(Stdio::piped()))?;
    let (input, text) = (at("input"), at("text"));
    let lines = [
        ("gzip", format!("/bin/gzip -9 -c {input}")),
        ("bzip2", format!("/bin/bzip2 -9 -c {input}")),
        ("xz", format!("/usr/bin/xz -T2 -3 --block-size=2MiB -c {input}")),
        ("zstd", format!("/usr/bin/zstd -12 -q --single-thread -c {input}")),
        ("python3", format!("/usr/bin/python3 {truth}/floats.py 5")),
        ("perl", "/usr/bin/perl binary/code/tests/walks/programs/set.pl".to_owned()),
        ("lua", format!("/usr/bin/lua5.4 {truth}/lists.lua")),
        ("awk", format!("/usr/bin/mawk -f {truth}/words.awk {text}")),
        ("sort", format!("/usr/bin/sort {text} {text} {text}")),
        ("cc1", format!("{} -quiet -O2 {} -o /dev/null", cc1.trim(), at("storm.i"))),
        ("throws", at("throws")),
        ("float", at("float")),
    ];
    let mut programs: Vec<Program> = Vec::new();
    for (name, line) in lines {
        programs.push(Program { name, words: line.split(' ').map(str::to_owned).collect() });
    }
    let words = ["/usr/bin/sqlite3", "-init", "/dev/null", ":memory:"].map(str::to_owned);
    let words = words.into_iter().chain([format!(".read {}", at("queries.sql"))]).collect();
    programs.insert(4, Program { name: "sqlite3", words });
    Ok(programs)
}

impl Program {
    /// CPU seconds of a run under the command of `words`, and a hash of what the program wrote.
    fn run(&self, words: &[&str]) -> anyhow::Result<(f64, u64)> {
        let mut all = words.iter().copied().chain(self.words.iter().map(String::as_str));
        let mut counted = Command::new(all.next().unwrap_or_default());
        counted.args(all).env("LC_ALL", "C").env("PYTHONHASHSEED", "1").env("PERL_HASH_SEED", "1");
        counted.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let before = children_cpu_s();
        let mut child = counted.spawn().context("starting it")?;
        let mut written = Vec::new();
        child.stdout.take().context("no output")?.read_to_end(&mut written)?;
        ensure!(child.wait()?.success(), "it failed");
        let mut hasher = DefaultHasher::new();
        hasher.write(&written);
        Ok((children_cpu_s() - before, hasher.finish()))
    }
}

/// The time that a program took.
struct Row {
    name: &'static str,
    native_s: f64,
    /// Ratios to native time: with blocks, and with blocks and edges.
    blocks: Spread,
    edges: Spread,
    callgrind: Option<f64>,
}

impl Row {
    const HEADER: &str = "CPU time over native (medians of rounds)\n\
        program   native s  blocks             with edges         callgrind";

    fn measure(program: &Program, folder: &str, rounds: u64, beside: bool) -> anyhow::Result<Self> {
        let (_, wrote) = program.run(&[])?; // also brings files into memory
        let same = |(seconds, now): (f64, u64)| {
            ensure!(now == wrote, "it writes something else than alone");
            Ok(seconds)
        };
        let (mut native, mut blocks, mut edges) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let alone = same(program.run(&[])?)?;
            native.push(alone);
            blocks.push(same(program.counted(&[])?)? / alone);
            edges.push(same(program.counted(&["--edges"])?)? / alone);
        }
        let spread = |values: &[f64]| Spread::of(values.iter().copied()).context("no rounds");
        let native_s = spread(&native)?.median;
        let callgrind = beside.then(|| {
            let file = format!("--callgrind-out-file={folder}/callgrind.%p");
            let words: Vec<&str> = CALLGRIND.split_whitespace().chain([file.as_str()]).collect();
            same(program.run(&words)?)
        });
        let callgrind = callgrind.transpose()?.map(|seconds| seconds / native_s);
        let counts = fs::read_dir(folder)?.flatten().map(|file| file.path());
        let of_callgrind = |path: &Path| path.to_string_lossy().contains("/callgrind.");
        for file in counts.filter(|path| of_callgrind(path)) {
            fs::remove_file(file)?;
        }
        let (blocks, edges) = (spread(&blocks)?, spread(&edges)?);
        Ok(Self { name: program.name, native_s, blocks, edges, callgrind })
    }

    fn shown(&self) -> String {
        let callgrind =
            self.callgrind.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.1}"));
        let (blocks, edges) = (format!("{:.2}", self.blocks), format!("{:.2}", self.edges));
        format!("{:<9} {:>8.3}  {blocks:<18} {edges:<18} {callgrind:>9}", self.name, self.native_s)
    }
}

impl Program {
    /// A run under `dcpi-blockcount`, whose counts are in /dev/shm as with `dcpi ideal`.
    fn counted(&self, options: &[&str]) -> anyhow::Result<(f64, u64)> {
        let areas = format!("/dev/shm/dcpi-bench-ideal-{}", std::process::id());
        fs::create_dir(&areas).with_context(|| format!("creating {areas}"))?;
        let words = [&[blockcount::PROGRAM, "--area", &areas], options, &["--"]].concat();
        let ran = self.run(&words);
        fs::remove_dir_all(&areas)?;
        ran
    }
}

/// Summary of the rows, and whether they meet the requirement.
fn summary(rows: &[Row]) -> (String, bool) {
    let mean = |ratios: &mut dyn Iterator<Item = f64>| {
        let (sum, count) = ratios.fold((0.0, 0.0), |(sum, n), ratio| (sum + ratio.ln(), n + 1.0));
        (sum / f64::max(count, 1.0)).exp()
    };
    let blocks = mean(&mut rows.iter().map(|row| row.blocks.median));
    let edges = mean(&mut rows.iter().map(|row| row.edges.median));
    let callgrind = mean(&mut rows.iter().filter_map(|row| row.callgrind));
    let most = rows.iter().map(|row| row.edges.median.max(row.blocks.median)).fold(0.0, f64::max);
    let enough = edges.max(blocks) <= MEAN_ASKED && most <= EACH_ASKED;
    let told = if enough { "reached" } else { "not reached" };
    let text = format!(
        "geometric mean: blocks {blocks:.2}, with edges {edges:.2}, callgrind {callgrind:.1}\n\
         asked: a mean of at most {MEAN_ASKED}, none above {EACH_ASKED}: {told}"
    );
    (text, enough)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_geometric_and_each_program_counts() {
        let row = |blocks: f64, edges: f64| Row {
            name: "x",
            native_s: 1.0,
            blocks: Spread::of([blocks]).unwrap(),
            edges: Spread::of([edges]).unwrap(),
            callgrind: Some(40.0),
        };
        let (text, enough) = summary(&[row(1.0, 1.0), row(2.0, 3.9)]);
        assert!(enough && text.contains("blocks 1.41, with edges 1.97, callgrind 40.0"), "{text}");
        assert!(!summary(&[row(1.0, 1.0), row(1.0, 1.0), row(2.0, 4.1)]).1, "one is above");
        assert!(!summary(&[row(2.0, 2.1), row(2.0, 2.0)]).1, "the mean is above");
        assert!(row(1.5, 2.0).shown().contains("1.50 [1.50..1.50]"));
    }
}

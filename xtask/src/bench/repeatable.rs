//! Programs that execute the same instructions in every run, so that the counts of one run hold for
//! all.

use super::machine;
use crate::process::{command, must, output};
use anyhow::{Context as _, ensure};
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Folder of the sources of [`programs`].
const SOURCES: &str = "binary/code/tests/walks/programs";
/// Folder of the sources of [`later_programs`].
const LATER: &str = "tests/bench/truth";
/// Setting of the C library that leaves out instructions that valgrind lacks, and `rep movsb`
/// (ERMS), which it chooses by the processor's model.
const SAME_CODE: &str =
    "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ,-AVX512CD,-ERMS,-FSRM,-RTM";

/// A program and its workload.
pub struct Program {
    /// Its short name.
    pub name: &'static str,
    words: Vec<String>,
}

/// The eight programs on which the estimates were tuned. `folder` receives programs and inputs, and
/// must hold the program dcpid, which is a part of the input.
pub fn programs(folder: &str) -> anyhow::Result<Vec<Program>> {
    let (c, rust, input) =
        (format!("{folder}/c"), format!("{folder}/rust"), format!("{folder}/input"));
    must(&mut command(&format!("cc -O2 -static -Wl,--build-id -o {c} {SOURCES}/set.c")))?;
    must(&mut command(&format!(
        "rustc -O --edition=2021 -C link-arg=-Wl,--build-id -o {rust} {SOURCES}/set.rs"
    )))?;
    // A megabyte of code, and one of text.
    let mut bytes = fs::read(format!("{folder}/dcpid")).context("reading dcpid")?;
    bytes.truncate(1 << 20);
    for line in 0..20_000_u64 {
        let word = line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50;
        bytes
            .extend(format!("line {line} of the text says {word} and {:x}\n", word * word).bytes());
    }
    fs::write(&input, bytes).with_context(|| format!("writing {input}"))?;
    let lines = [
        ("gzip", format!("/bin/gzip -6 -c {input}")),
        ("bzip2", format!("/bin/bzip2 -9 -c {input}")),
        ("xz", format!("/usr/bin/xz -3 -T1 -c {input}")),
        ("python3", format!("/usr/bin/python3 {SOURCES}/set.py")),
        ("perl", format!("/usr/bin/perl {SOURCES}/set.pl")),
        ("c", c),
        ("rust", rust),
    ];
    let mut programs = named(lines);
    let read = format!(".read {SOURCES}/set.sql");
    programs.push(Program {
        name: "sqlite3",
        words: vec!["/usr/bin/sqlite3".into(), ":memory:".into(), read],
    });
    Ok(programs)
}

/// Programs of other kinds, on which nothing was tuned. Call [`programs`] with the same folder
/// first.
pub fn later_programs(folder: &str) -> anyhow::Result<Vec<Program>> {
    let built = |name: &str| format!("{folder}/{name}");
    must(&mut command(&format!("cc -O2 -Wl,--build-id -o {folder}/float {LATER}/numbers.c -lm")))?;
    must(&mut command(&format!("c++ -O2 -Wl,--build-id -o {folder}/c++ {SOURCES}/set.cc")))?;
    must(&mut command(&format!("c++ -O2 -Wl,--build-id -o {folder}/throws {LATER}/throws.cc")))?;
    must(
        command(&format!("go build -o {folder}/go {LATER}/tree.go"))
            .env("GO111MODULE", "off")
            .env("GOCACHE", std::path::absolute(folder)?.join("go-cache")),
    )?;
    must(&mut command(&format!("cc -O2 -E -o {folder}/set.i {SOURCES}/set.c")))?;
    must(&mut command(&format!("c++ -O2 -S -o {folder}/set.s {SOURCES}/set.cc")))?;
    let text = fs::read(format!("{folder}/input"))?;
    let text = text.get(1 << 20..).unwrap_or_default();
    fs::write(format!("{folder}/text"), text)?;
    let cc1 = output(command("cc -print-prog-name=cc1").stdout(Stdio::piped()))?;
    let (input, text) = (built("input"), built("text"));
    Ok(named([
        ("cc1", format!("{} -quiet -O2 {folder}/set.i -o /dev/null", cc1.trim())),
        ("as", format!("/usr/bin/as -o /dev/null {folder}/set.s")),
        ("c++", built("c++")),
        ("throws", built("throws")),
        ("go", built("go")),
        ("float", built("float")),
        ("floatpy", format!("/usr/bin/python3 {LATER}/floats.py")),
        ("lua", format!("/usr/bin/lua5.4 {LATER}/lists.lua")),
        ("awk", format!("/usr/bin/mawk -f {LATER}/words.awk {text}")),
        ("zstd", format!("/usr/bin/zstd -9 -q --single-thread -c {input}")),
        ("sort", format!("/usr/bin/sort {text}")),
        ("grep", format!("/bin/grep -c -E (1|3).*([a-f]+)7.*9 {text}")),
        ("sha256", format!("/usr/bin/sha256sum {input} {text} {input}")),
    ]))
}

fn named(lines: impl IntoIterator<Item = (&'static str, String)>) -> Vec<Program> {
    let words = |line: String| line.split(' ').map(str::to_owned).collect();
    lines.into_iter().map(|(name, line)| Program { name, words: words(line) }).collect()
}

impl Program {
    /// The command of `words`, such as valgrind's, that runs the program.
    pub fn under(&self, words: &[String]) -> Command {
        let mut all = words.iter().chain(&self.words);
        let mut command = Command::new(all.next().map_or("", String::as_str));
        // Fixed seeds: hash tables have the same order in every run.
        command
            .args(all)
            .env("GLIBC_TUNABLES", SAME_CODE)
            .env("PYTHONHASHSEED", "1")
            .env("PERL_HASH_SEED", "1")
            .env("LC_ALL", "C")
            .env("GOMAXPROCS", "1")
            .env("GOGC", "off");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Runs it repeatedly for this time, two at once per CPU, so that no CPU is idle between runs.
    pub fn run_for(&self, long: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + long;
        while Instant::now() < until {
            let started = (0..2 * machine::cpus()).map(|_| self.under(&[]).spawn());
            let started = started
                .collect::<Result<Vec<_>, _>>()
                .with_context(|| format!("starting {}", self.name))?;
            for mut child in started {
                let status = child.wait()?;
                ensure!(status.success(), "{} failed: {status}", self.name);
            }
        }
        Ok(())
    }
}

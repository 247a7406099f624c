//! `bench perturb uprobes`: five programs traced by `dcpi trace`, perf, uftrace and LTTng on the
//! same procedures: the slowdown by each, and the error of the times that `dcpi trace --correct`
//! corrects.

use super::faster::{Program, prepare_sources};
use super::machine::{children_cpu_s, description};
use super::perturb_peers::{Peer, Peers};
use super::statistics::Spread;
use super::{FOLDER, count, option, refuse_others, require_root};
use crate::process::{command, must, output};
use crate::{Outcome, packages};
use anyhow::{Context as _, ensure};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Required: corrected totals differ from raw by at most this part, for programs whose traced time
/// is at most this multiple of the raw time.
const WITHIN: f64 = 0.10;
const SLOWDOWN_MOST: f64 = 3.0;
/// Required: at least 95 of 100 intervals contain the raw time.
const RIGHT: (usize, usize) = (95, 100);

/// A program, and the procedures to trace.
pub struct Subject {
    pub name: &'static str,
    /// Source files and flags.
    sources: Vec<String>,
    arguments: Vec<String>,
    pub procedures: &'static [&'static str],
}

/// The calls that a build has for tracers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// None.
    Plain,
    /// Room for uftrace's calls.
    Patchable,
    /// LTTng's calls in the traced procedures.
    Calling,
}

impl Build {
    fn flags(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Patchable => "-fpatchable-function-entry=5",
            Self::Calling => "-finstrument-functions -no-pie",
        }
    }

    fn ending(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Patchable => "-patchable",
            Self::Calling => "-calling",
        }
    }
}

/// The time of a run, s.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    pub cpu: f64,
    pub wall: f64,
}

/// The folder of dcpid and dcpi: DCPI_BIN_DIR, or else a fresh release build.
pub fn programs() -> anyhow::Result<String> {
    std::env::var("DCPI_BIN_DIR").or_else(|_| {
        must(&mut command("cargo build -q --release -p dcpid -p dcpi --bins"))?;
        Ok("target/release".to_owned())
    })
}

pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    refuse_others("perturb uprobes", arguments, &["--no-peers"], &["--rounds", "--only"])?;
    require_root("perturb uprobes")?;
    packages::ensure(packages::COMPILER.iter().chain(&packages::TRACERS))?;
    let programs = programs()?;
    let folder = format!("{FOLDER}/perturb");
    fs::create_dir_all(&folder).with_context(|| format!("creating {folder}"))?;
    let rounds = count(arguments, "--rounds", 20)?;
    let only = option(arguments, "--only")?;
    prepare_sources()?;
    let subjects = subjects(&folder)?;
    let peers = match arguments.contains(&"--no-peers") {
        true => None,
        false => Some(Peers::prepare(&folder, &programs)?),
    };
    println!("{}\n\n{}", description(), Table::HEADER);
    let mut table = Table::default();
    for subject in subjects.iter().filter(|of| only.is_none_or(|only| of.name == only)) {
        for build in [Build::Plain, Build::Patchable, Build::Calling] {
            subject.build(&folder, build)?;
        }
        let rows = subject
            .measure(&folder, &programs, rounds, peers.as_ref())
            .with_context(|| format!("tracing {}", subject.name))?;
        for row in rows {
            println!("{}", row.shown());
            table.rows.push(row);
        }
    }
    let (text, reached) = table.summary();
    println!("\n{text}");
    Ok(if reached { Outcome::Clean } else { Outcome::Problems })
}

/// The programs, with their inputs in `folder`.
fn subjects(folder: &str) -> anyhow::Result<Vec<Subject>> {
    let at = |name: &str| format!("{folder}/{name}");
    let sources = Program::Lua.sources()?;
    let mut data = Vec::new();
    for path in sources.iter().filter(|path| path.ends_with(".c")).take(12) {
        data.extend(fs::read(path).with_context(|| format!("reading {path}"))?);
    }
    // Letters without runs, which are little work for bzip2's first step, run-length encoding.
    let (mut state, mut letter) = (1_u64, 0_u64);
    for _ in 0..800_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        letter = (letter + 1 + (state >> 33) % 24) % 26;
        data.push(b'a' + letter as u8);
    }
    fs::write(at("data"), &data)?;
    let template = fs::read_to_string("tests/bench/faster/work.sql").context("reading work.sql")?;
    fs::write(at("work.sql"), template.replace("@SEED@", "777").replace("@SIZE@", "3"))?;
    let of = |name, sources: Vec<String>, arguments: &str, procedures| Subject {
        name,
        sources,
        arguments: arguments.split_whitespace().map(str::to_owned).collect(),
        procedures,
    };
    let own = |name: &str, library: &str| {
        vec![format!("tests/bench/perturb/{name}.c"), library.to_owned()]
    };
    Ok(vec![
        of("lua", sources, "tests/bench/faster/work.lua 7 1", &["luaL_tolstring", "lua_next"]),
        of(
            "bzip2",
            Program::Bzip2.sources()?,
            &format!("-kc {}", at("data")),
            &["add_pair_to_block", "BZ2_bzCompress"],
        ),
        of("sqlite", Program::Sqlite.sources()?, &at("work.sql"), &["sqlite3BtreeInsert"]),
        of("deflate", own("deflate", "-lz"), &at("data"), &["compress_block"]),
        of("threads", own("threads", "-lpthread"), "", &["give", "take"]),
    ])
}

impl Subject {
    pub fn path(&self, folder: &str, build: Build) -> String {
        format!("{folder}/{}{}", self.name, build.ending())
    }

    /// The program with its arguments.
    pub fn words(&self, folder: &str, build: Build) -> Vec<String> {
        [self.path(folder, build)].into_iter().chain(self.arguments.iter().cloned()).collect()
    }

    fn build(&self, folder: &str, build: Build) -> anyhow::Result<()> {
        let path = self.path(folder, build);
        let mut gcc = command(&format!("gcc -O2 -g -w -o {path} {}", build.flags()));
        if build == Build::Calling {
            // gcc is told which procedures not to instrument, as parts of names. The list is that
            // of a build without inlining, because inlined procedures would have calls too.
            let all = format!("{path}-all");
            must(command(&format!("gcc -O0 -w -o {all}")).args(&self.sources))?;
            let names = output(&mut command(&format!("nm --defined-only {all}")))?;
            let others = names.lines().filter_map(|line| line.split_whitespace().nth(2));
            let wanted =
                |name: &&str| self.procedures.iter().chain(&["main"]).any(|of| of.contains(name));
            let others: Vec<&str> = others.filter(|name| !wanted(name)).collect();
            gcc.arg(format!("-finstrument-functions-exclude-function-list={}", others.join(",")));
        }
        must(gcc.args(&self.sources))
    }

    /// Runs a command to its end, quietly.
    pub fn run(words: &[String]) -> anyhow::Result<Took> {
        let mut run = Command::new(words.first().context("no command")?);
        run.args(words.get(1..).unwrap_or_default());
        let (begun, before) = (Instant::now(), children_cpu_s());
        let ended =
            run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
        let took = Took { cpu: children_cpu_s() - before, wall: begun.elapsed().as_secs_f64() };
        ensure!(ended.success(), "{} failed: {ended}", words.join(" "));
        Ok(took)
    }

    fn measure(
        &self,
        folder: &str,
        programs: &str,
        rounds: u64,
        peers: Option<&Peers>,
    ) -> anyhow::Result<Vec<Row>> {
        let raw_words = self.words(folder, Build::Plain);
        Self::run(&raw_words)?; // brings files into memory
        let (mut raw, mut ours, mut in_situ) = (Vec::new(), Vec::new(), Vec::new());
        let mut others: Vec<(Peer, Vec<Corrected>)> = Vec::new();
        others.extend(peers.iter().flat_map(|_| Peer::ALL.map(|peer| (peer, Vec::new()))));
        for _ in 0..rounds {
            raw.push(Self::run(&raw_words)?);
            ours.push(self.traced(folder, programs, "")?);
            in_situ.push(self.traced(folder, programs, IN_SITU)?);
            // The peers take longer, and have no requirement to meet: few rounds are enough.
            if let Some(peers) = peers.filter(|_| raw.len() <= PEER_ROUNDS) {
                for (peer, of) in &mut others {
                    match peers.traced(*peer, self, folder) {
                        Ok(corrected) => of.extend(corrected),
                        // A failure of another tool is a result, not an error of the benchmark.
                        Err(why) => println!("{}: {}: {}", self.name, peer.name(), first(&why)),
                    }
                }
            }
        }
        let all = |of: fn(&Took) -> f64| raw.iter().map(of).collect::<Vec<f64>>();
        let (cpu, wall) = (all(|took| took.cpu), all(|took| took.wall));
        let mut rows = vec![
            Row::of(self.name, IN_VITRO_ROW, &cpu, &ours)?,
            Row::of(self.name, IN_SITU_ROW, &cpu, &in_situ)?,
        ];
        for (peer, of) in &others {
            rows.push(Row::of(self.name, peer.name(), &wall, of)?);
        }
        Ok(rows)
    }

    /// Runs the program under `dcpi trace`. Returns its time on CPUs, corrected.
    fn traced(&self, folder: &str, programs: &str, flags: &str) -> anyhow::Result<Corrected> {
        let file = format!("{folder}/{}.trace", self.name);
        let mut trace =
            command(&format!("{programs}/dcpi trace --sched --ring 16MiB {flags} -o {file}"));
        for procedure in self.procedures {
            trace.arg("--at").arg(format!(":{procedure}"));
        }
        let ran = trace.arg("--").args(self.words(folder, Build::Plain)).output()?;
        ensure!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let json = correct(programs, &[&file])?;
        Corrected::of(json.pointer("/on_cpu_ns").context("no time on CPUs")?)
            .context("no time on CPUs")
    }
}

/// The first line of an error.
fn first(why: &anyhow::Error) -> String {
    format!("{why:#}").lines().next().unwrap_or_default().to_owned()
}

/// Option for costs that are measured in the program itself, in six runs without events.
const IN_SITU: &str = "--in-situ 6";
/// Names of the rows of `dcpi trace`: with costs in vitro, and in situ.
const IN_VITRO_ROW: &str = "dcpi trace";
const IN_SITU_ROW: &str = "dcpi in situ";
/// Rounds in which the other tools trace.
const PEER_ROUNDS: usize = 5;

/// The output of `dcpi trace --correct` with these arguments.
pub fn correct(programs: &str, arguments: &[&str]) -> anyhow::Result<Value> {
    let mut dcpi = command(&format!("{programs}/dcpi trace --correct --format json"));
    let text = output(dcpi.args(arguments))?;
    serde_json::from_str(&text).context("reading the corrected trace")
}

/// A traced time and the same corrected, s.
#[derive(Clone, Copy, Debug)]
pub struct Corrected {
    pub measured: f64,
    /// Low end, value and high end of the corrected time; None where `dcpi trace` cannot read the
    /// tool's trace.
    pub range: Option<[f64; 3]>,
}

impl Corrected {
    /// Of a time in a report.
    pub fn of(json: &Value) -> Option<Self> {
        let number = |name: &str| Some(json.get(name)?.as_f64()? / 1e9);
        let range = [number("low")?, number("value")?, number("high")?];
        Some(Self { measured: number("measured")?, range: Some(range) })
    }
}

/// A tool on a program.
struct Row {
    program: &'static str,
    tool: &'static str,
    raw_s: f64,
    slowdown: f64,
    /// Raw runs: the slowest tenth over the fastest tenth.
    raw_spread: f64,
    /// Corrected over raw, the median of rounds.
    corrected: Option<f64>,
    /// Intervals that hold a time of raw runs, from the fastest to the slowest tenth: a run's own
    /// time is known to that only.
    right: (usize, usize),
    /// Number of intervals that contain the median time of raw runs.
    hold_median: usize,
}

impl Row {
    fn of(
        program: &'static str,
        tool: &'static str,
        raw: &[f64],
        runs: &[Corrected],
    ) -> anyhow::Result<Self> {
        let raw_s = Spread::of(raw.iter().copied()).context("no runs")?.median;
        let mut sorted = raw.to_vec();
        sorted.sort_by(f64::total_cmp);
        let tenth = sorted.len() / 10;
        let fastest = sorted.get(tenth).copied().unwrap_or(raw_s);
        let slowest = sorted.iter().rev().nth(tenth).copied().unwrap_or(raw_s);
        let median = |values: Vec<f64>| Spread::of(values).map(|spread| spread.median / raw_s);
        let ranges: Vec<[f64; 3]> = runs.iter().filter_map(|run| run.range).collect();
        let holds = |[low, _, high]: &&[f64; 3]| *low <= slowest && *high >= fastest;
        let right = ranges.iter().filter(holds).count();
        let median_in = |[low, _, high]: &&[f64; 3]| (*low..=*high).contains(&raw_s);
        let hold_median = ranges.iter().filter(median_in).count();
        Ok(Self {
            program,
            tool,
            raw_s,
            raw_spread: slowest / fastest,
            slowdown: median(runs.iter().map(|run| run.measured).collect()).unwrap_or(f64::NAN),
            corrected: median(ranges.iter().map(|[_, value, _]| *value).collect()),
            right: (right, ranges.len()),
            hold_median,
        })
    }

    fn shown(&self) -> String {
        let corrected = self.corrected.map_or_else(|| "-".to_owned(), |of| format!("{of:.3}"));
        let right = format!("{} of {}", self.right.0, self.right.1);
        let slowdown = match self.slowdown.is_finite() {
            true => format!("{:.3}", self.slowdown),
            false => "-".to_owned(),
        };
        let Self { program, tool, raw_s, raw_spread, .. } = self;
        format!(
            "{program:<9} {tool:<12} {raw_s:>7.3} {raw_spread:>7.2} {slowdown:>11} {corrected:>14} \
             {right:>15} {:>12}",
            self.hold_median
        )
    }
}

#[derive(Default)]
struct Table {
    rows: Vec<Row>,
}

impl Table {
    const HEADER: &str = "program   tool           raw s  spread  traced/raw  \
         corrected/raw  interval right  hold median";

    /// Summary, and whether the rows with costs in vitro meet the requirement. Rows in situ do not
    /// count, because their totals come from other runs.
    fn summary(&self) -> (String, bool) {
        let mut text =
            "dcpi trace is of CPU time, the others of the time from begin to end of main.\n\
             An interval is right where it meets the raw runs from their fastest to their slowest \
             tenth.\n"
                .to_owned();
        let (in_vitro, reached) = self.held_against(IN_VITRO_ROW);
        let (in_situ, _) = self.held_against(IN_SITU_ROW);
        let _ = write!(
            text,
            "asked: within {} % up to traced/raw {SLOWDOWN_MOST}, and {} of {} intervals right\n\
             costs in vitro: {in_vitro}\ncosts in situ:  {in_situ}",
            WITHIN * 100.0,
            RIGHT.0,
            RIGHT.1
        );
        (text, reached)
    }

    fn held_against(&self, tool: &str) -> (String, bool) {
        let ours: Vec<&Row> = self.rows.iter().filter(|row| row.tool == tool).collect();
        let off = |row: &&&Row| row.corrected.is_none_or(|of| (of - 1.0).abs() > WITHIN);
        let counted = ours.iter().filter(|row| row.slowdown <= SLOWDOWN_MOST);
        let wrong: Vec<&str> = counted.clone().filter(off).map(|row| row.program).collect();
        let right: usize = ours.iter().map(|row| row.right.0).sum();
        let all: usize = ours.iter().map(|row| row.right.1).sum();
        let median: usize = ours.iter().map(|row| row.hold_median).sum();
        let is_right = right * RIGHT.1 >= RIGHT.0 * all;
        let reached = wrong.is_empty() && is_right && counted.count() > 0;
        let wrong = if wrong.is_empty() { "none".to_owned() } else { wrong.join(", ") };
        let told = if reached { "reached" } else { "not reached" };
        let text = format!(
            "{right} of {all} right, with the median of raw runs in {median}; more than {} % off: \
             {wrong}: {told}",
            WITHIN * 100.0
        );
        (text, reached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(measured: f64, value: f64, reach: f64) -> Row {
        let range = Some([value - reach, value, value + reach]);
        Row::of("lua", "dcpi trace", &[1.0], &[Corrected { measured, range }]).unwrap()
    }

    #[test]
    fn what_is_asked_is_held_against_rows() {
        let summary = |rows: Vec<Row>| Table { rows }.summary();
        let (text, reached) = summary(vec![row(2.0, 1.05, 0.1), row(5.0, 1.4, 0.5)]);
        assert!(reached && text.contains("in vitro: 2 of 2 right"), "{text}");
        assert!(!summary(vec![row(2.0, 1.2, 0.3)]).1, "20 % off");
        assert!(!summary(vec![row(2.0, 1.05, 0.01)]).1, "the interval is wrong");
        assert!(!summary(vec![row(5.0, 1.0, 0.1)]).1, "nothing was within the slowdown");
        let without = Corrected { measured: 3.0, range: None };
        let none = Row::of("lua", "perf trace", &[2.0], &[without]).unwrap();
        assert!(none.shown().contains("1.500              -"), "{}", none.shown());
    }
}

//! `bench reading`: time to print a report by `dcpi`, and by perf and other tools, of the same
//! seconds.

use super::beside::{RATE, Recorded, Whose, record};
use super::machine::{children_cpu_s, description, other_profilers};
use super::programs::{self, HOT};
use super::statistics::Spread;
use super::{FOLDER, count, json, refuse_others, require_root};
use crate::process::{command, must, output};
use crate::{Outcome, packages};
use anyhow::{Context as _, ensure};
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Images with samples and debug information.
const IMAGES: u64 = 320;
const IMAGES_QUICK: u64 = 40;
/// Bytes of the large program.
const LARGE_BYTES: u64 = 150 << 20;
const LARGE_BYTES_QUICK: u64 = 30 << 20;
/// Seconds after which timeout(1) ends a reader.
const PATIENCE_S: u64 = 120;

/// A question that `dcpi` and other tools answer.
struct Question {
    what: &'static str,
    /// `dcpi` first, then the other tools.
    readers: Vec<Reader>,
    /// Longest time of `dcpi` in seconds, with files in the page cache and without; None without a
    /// limit.
    limits_s: [Option<f64>; 2],
}

struct Reader {
    name: String,
    line: String,
}

/// The time that a reader took.
struct Took {
    wall: Spread,
    cpu: Spread,
    /// Whether it was ended for taking too long.
    ended: bool,
    /// The message of a reader that failed.
    failed: Option<String>,
}

/// Builds the programs, records them, times the readers, and prints the table.
pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    refuse_others("reading", arguments, &["--quick"], &["--rounds"])?;
    let quick = arguments.contains(&"--quick");
    let rounds = count(arguments, "--rounds", if quick { 3 } else { 7 })?;
    require_root("reading")?;
    packages::ensure(
        packages::COMPILER.iter().chain(&packages::BENCH_TOOLS).chain(&packages::READERS),
    )?;
    must(&mut command("cargo build -q --release -p dcpid -p dcpi --bins"))?;
    let (images, large) =
        if quick { (IMAGES_QUICK, LARGE_BYTES_QUICK) } else { (IMAGES, LARGE_BYTES) };
    let folder = format!("{FOLDER}/reading-{images}");
    programs::build(&folder, images, large)?;
    for other in other_profilers(None) {
        println!("{other} runs too");
    }
    println!("recording a run of each, {RATE} samples/s per CPU");
    let recorded = record("reading", Whose::Ours, || programs::run(&folder, images))?;
    let machine = description();
    println!("\n{machine}; {rounds} rounds; {}", said(&recorded, images)?);
    let mut rows = Vec::new();
    let mut too_slow = false;
    for question in questions(&recorded, &folder, quick)? {
        for (cold, limit_s) in [false, true].into_iter().zip(question.limits_s) {
            too_slow |= ask(
                &question,
                cold,
                limit_s,
                if cold { rounds.min(3) } else { rounds },
                &mut rows,
            )?;
        }
    }
    let path = format!("{FOLDER}/reading.json");
    let members = [
        ("machine", json::text(&machine)),
        ("rounds", rounds.to_string()),
        ("readers", json::array(rows.into_iter())),
    ];
    fs::write(&path, json::object(&members))?;
    println!("\nwarm: in the page cache; cold: nothing is; the same as JSON: {path}");
    Ok(if too_slow { Outcome::Problems } else { Outcome::Clean })
}

/// The output of a command, without comments.
fn lines(line: &str) -> anyhow::Result<Vec<String>> {
    let text = output(&mut command(line))?;
    Ok(text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect())
}

/// Images and samples in both recordings, in words.
fn said(recorded: &Recorded, wanted: u64) -> anyhow::Result<String> {
    let ours = lines(&format!(
        "target/release/dcpi prof -i -n 0 --format csv --db {}",
        recorded.database
    ))?;
    let theirs = lines(&format!("perf report --stdio --sort dso -i {}", recorded.perf_data))?;
    // The first line has the names of the columns.
    let images = ours.len().saturating_sub(1);
    ensure!(images as u64 > wanted, "{images} images have samples, not {wanted}");
    // perf may exit with success although it could not read its own file.
    ensure!(
        theirs.len() as u64 > wanted,
        "perf finds {} images in its file, not {wanted}",
        theirs.len()
    );
    Ok(format!(
        "{images} images have samples (perf: {}), perf took {} samples, {} bytes",
        theirs.len(),
        recorded.perf_samples,
        recorded.perf_bytes()?
    ))
}

fn reader(name: &str, line: String) -> Reader {
    Reader { name: name.to_owned(), line }
}

fn questions(recorded: &Recorded, folder: &str, quick: bool) -> anyhow::Result<Vec<Question>> {
    let (db, data) = (&recorded.database, &recorded.perf_data);
    let dcpi = |what: &str| {
        reader(&format!("dcpi {what}"), format!("target/release/dcpi {what} --db {db}"))
    };
    let perf =
        |what: &str| reader(&format!("perf {what}"), format!("perf {what} --stdio -i {data}"));
    let large = format!("{folder}/large");
    let places = places(&large)?;
    let of_large = |name: &str, line: &str| reader(name, format!("{line} {large}"));
    let mut questions = vec![
        Question {
            what: "procedures of all images",
            readers: vec![dcpi("prof -n 0"), perf("report")],
            limits_s: [Some(0.5), Some(3.0)],
        },
        Question {
            what: "images",
            readers: vec![dcpi("prof -i -n 0"), perf("report --sort dso")],
            limits_s: [None, None],
        },
        Question {
            what: "a procedure of the large program",
            readers: vec![
                dcpi(&format!("list large {HOT}")),
                of_large("objdump -dl", &format!("objdump -dl --disassemble={HOT}")),
                reader(
                    "addr2line -fi, its instructions",
                    format!("addr2line -Cfi -e {large} {}", places.join(" ")),
                ),
            ],
            limits_s: [Some(1.0), None],
        },
    ];
    if !quick {
        questions.push(Question {
            what: "source lines of all images",
            readers: vec![dcpi("prof --lines -n 0"), perf("report --sort dso,srcline")],
            limits_s: [None, None],
        });
    }
    Ok(questions)
}

/// The addresses of all instructions of the procedure that is listed.
fn places(large: &str) -> anyhow::Result<Vec<String>> {
    let text = output(&mut command(&format!(
        "objdump -d --no-show-raw-insn --disassemble={HOT} {large}"
    )))?;
    let address =
        |line: &str| line.split_once(":\t").map(|(address, _)| format!("0x{}", address.trim()));
    let places: Vec<String> = text.lines().filter_map(address).collect();
    ensure!(places.len() > 5, "{large} has no procedure {HOT}; remove its folder");
    Ok(places)
}

/// Times all readers of a question and prints their times. Returns whether `dcpi` exceeded its
/// limit.
fn ask(
    question: &Question,
    cold: bool,
    limit_s: Option<f64>,
    rounds: u64,
    rows: &mut Vec<String>,
) -> anyhow::Result<bool> {
    let cache = if cold { "cold" } else { "warm" };
    println!("\n{}, {cache}", question.what);
    println!("  {:<34} {:>22} {:>22}  {:>6}", "", "ms", "ms of CPU", "ratio");
    let mut all: Vec<Vec<Once>> = question.readers.iter().map(|_| Vec::new()).collect();
    // The readers alternate in each round, because disturbances of the machine last longer than a
    // round.
    for round in 0..=rounds {
        for (reader, times) in question.readers.iter().zip(&mut all) {
            // A reader that took too long or failed is not run again; the first round is a warm-up.
            if times.iter().any(Once::is_last) || (cold && round == 0) {
                continue;
            }
            if cold {
                drop_caches()?;
            }
            let once = once(&reader.line)?;
            if round > 0 || once.is_last() {
                times.push(once);
            }
        }
    }
    let mut ours = None;
    for (reader, times) in question.readers.iter().zip(&all) {
        let took = Took::of(times).context("nothing was measured")?;
        if let Some(failed) = took.failed {
            println!("  {:<34} failed: {failed}", reader.name);
            continue;
        }
        let median = took.wall.median;
        let ratio = median / *ours.get_or_insert(median);
        let more = if took.ended { ">" } else { "" };
        let (wall, cpu) = (format!("{more}{:.0}", took.wall), format!("{:.0}", took.cpu));
        println!("  {:<34} {wall:>22} {cpu:>22}  {:>6}", reader.name, format!("{more}{ratio:.2}"));
        rows.push(json::object(&[
            ("what", json::text(question.what)),
            ("cache", json::text(cache)),
            ("reader", json::text(&reader.name)),
            ("wall_ms", json::number(median)),
            ("cpu_ms", json::number(took.cpu.median)),
            ("ratio", json::number(ratio)),
            ("ended", took.ended.to_string()),
        ]));
    }
    let Some((limit_s, ours)) = limit_s.zip(ours) else { return Ok(false) };
    let too_slow = ours > limit_s * 1e3;
    println!("  at most {:.0} ms{}", limit_s * 1e3, if too_slow { ": TOO SLOW" } else { "" });
    Ok(too_slow)
}

/// The times of one answer, ms.
struct Once {
    wall_ms: f64,
    cpu_ms: f64,
    ended: bool,
    failed: Option<String>,
}

impl Once {
    /// Whether the reader failed or was ended, and is not run again.
    fn is_last(&self) -> bool {
        self.ended || self.failed.is_some()
    }
}

fn once(line: &str) -> anyhow::Result<Once> {
    let mut limited = Command::new("timeout");
    limited.arg(PATIENCE_S.to_string()).args(line.split_whitespace());
    limited.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let (started, before) = (Instant::now(), children_cpu_s());
    let status = limited.status().with_context(|| format!("starting {line}"))?;
    let (wall, cpu) = (started.elapsed(), children_cpu_s() - before);
    let ended = wall >= Duration::from_secs(PATIENCE_S);
    // dcpi exits with 1 where it has problems to report, which is an answer.
    let ours = line.contains("dcpi ");
    let answered = status.success() || (ours && status.code() == Some(1)) || ended;
    ensure!(answered || !ours, "{line} failed ({status})");
    let failed = (!answered).then(|| status.to_string());
    Ok(Once { wall_ms: wall.as_secs_f64() * 1e3, cpu_ms: cpu * 1e3, ended, failed })
}

impl Took {
    fn of(times: &[Once]) -> Option<Self> {
        Some(Self {
            wall: Spread::of(times.iter().map(|once| once.wall_ms))?,
            cpu: Spread::of(times.iter().map(|once| once.cpu_ms))?,
            ended: times.iter().any(|once| once.ended),
            failed: times.iter().find_map(|once| once.failed.clone()),
        })
    }
}

/// Empties the page cache, so that files are read from the disk again.
fn drop_caches() -> anyhow::Result<()> {
    must(&mut command("sync"))?;
    fs::write("/proc/sys/vm/drop_caches", "3").context("emptying the page cache")
}

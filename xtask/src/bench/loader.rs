//! `bench loader`: CPU time that the loader hook adds to the start of programs.
//!
//! Every round runs each program once in each way, in rotating order. Runs of one round are
//! compared, because the machine's speed changes over times longer than a round. Time is CPU time
//! of the program, in the kernel too, because wall-clock time depends on other programs. One of the
//! ways is an audit library that does nothing: most of the time is that of the dynamic loader and
//! the kernel, and every user of LD_AUDIT pays it.

use super::statistics::interval_of_median;
use super::{FOLDER, count, json, machine, refuse_others};
use crate::process::{command, must, output};
use crate::{Outcome, hook, packages};
use anyhow::Context as _;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Commands that start and do next to nothing: name and words.
const PROGRAMS: [(&str, &[&str]); 5] = [
    ("bash -c true", &["bash", "-c", "true"]),
    ("perl -e 1", &["perl", "-e", "1"]),
    ("git --version", &["git", "--version"]),
    ("python3 -c pass", &["/usr/bin/python3", "-c", "pass"]),
    ("gcc small.c", &["gcc", "-O2", "-o", "small", "small.c"]),
];

/// An audit library that does nothing.
const EMPTY: &str = "unsigned la_version(unsigned offered) { return offered; }\n\
    unsigned la_objopen(void *map, long space, unsigned long *cookie) { return 0; }\n";

/// Interval at which dcpid reads the hook's socket.
const READ_INTERVAL: Duration = Duration::from_millis(100);

named! {
    /// One way to run a program.
    enum Way {
        /// Without any audit library.
        Plain = "plain",
        /// Without any audit library again: the difference to the first is noise.
        Again = "plain again",
        Empty = "empty library",
        /// The hook without a reader.
        Alone = "hook, no daemon",
        /// The hook with a reader that behaves like the daemon.
        Heard = "hook, daemon",
    }
}

/// Paths of the benchmark's files.
struct Place {
    folder: PathBuf,
    empty: PathBuf,
    hook: PathBuf,
}

/// Time that a way adds to a program's start, from the differences to the plain run of each round.
struct Added {
    way: Way,
    plain_us: f64,
    /// Median of the added time, and its confidence interval of 95 % by order statistics.
    median_us: f64,
    low_us: f64,
    high_us: f64,
}

/// Measures and prints the table.
pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    refuse_others("loader", arguments, &["--quick"], &["--rounds"])?;
    let rounds =
        count(arguments, "--rounds", if arguments.contains(&"--quick") { 100 } else { 1000 })?;
    packages::ensure(packages::COMPILER.iter().chain(&packages::TEST_TOOLS))?;
    hook::build()?;
    let place = prepare()?;
    let machine = machine::description();
    println!("\n{machine}; {}; {rounds} rounds\n", glibc());
    println!(
        "{:<16}  {:<16}  {:>9}  {:>8}  {:>19}  {:>7}",
        "program", "way", "plain us", "added us", "95 %", "added %"
    );
    let mut rows = Vec::new();
    let mut suite: Vec<Vec<f64>> = Vec::new();
    for (name, program) in PROGRAMS {
        let times = while_heard(&place, || measure(&place, program, rounds))?;
        rows.extend(tell(name, &times));
        suite = sums(suite, &times);
    }
    rows.extend(tell("all together", &suite));
    let path = format!("{FOLDER}/loader.json");
    let members = [
        ("machine", json::text(&machine)),
        ("rounds", rounds.to_string()),
        ("added", json::array(rows.into_iter())),
    ];
    fs::write(&path, json::object(&members))?;
    println!(
        "\nthe empty library is the loader's and the kernel's own part; the same as JSON: {path}"
    );
    Ok(Outcome::Clean)
}

/// Prints what each way adds to the start of a program; the same as JSON.
fn tell(program: &str, times: &[Vec<f64>]) -> Vec<String> {
    let added = Way::ALL.into_iter().skip(1).filter_map(|way| Added::of(way, times));
    let tell = |added: Added| {
        let (median, plain) = (added.median_us, added.plain_us);
        let range = format!("{:+.1} .. {:+.1}", added.low_us, added.high_us);
        let (way, percent) = (added.way.name(), 100.0 * median / plain);
        println!(
            "{program:<16}  {way:<16}  {plain:>9.1}  {median:>+8.1}  {range:>19}  {percent:>+6.2}%"
        );
        row(program, &added)
    };
    added.map(tell).collect()
}

/// Sums of the times of two programs, by round and way.
fn sums(of: Vec<Vec<f64>>, times: &[Vec<f64>]) -> Vec<Vec<f64>> {
    if of.is_empty() {
        return times.to_vec();
    }
    let sum = |(one, other): (Vec<f64>, &Vec<f64>)| {
        one.iter().zip(other).map(|(one, other)| one + other).collect()
    };
    of.into_iter().zip(times).map(sum).collect()
}

fn row(program: &str, added: &Added) -> String {
    json::object(&[
        ("program", json::text(program)),
        ("way", json::text(added.way.name())),
        ("plain_us", json::number(added.plain_us)),
        ("added_us", json::number(added.median_us)),
        ("low_us", json::number(added.low_us)),
        ("high_us", json::number(added.high_us)),
        ("ratio", json::number(1.0 + added.median_us / added.plain_us)),
    ])
}

fn glibc() -> String {
    let version = output(&mut command("ldd --version")).unwrap_or_default();
    version.lines().next().unwrap_or("unknown C library").to_owned()
}

fn prepare() -> anyhow::Result<Place> {
    let folder = std::env::current_dir()?.join(FOLDER).join("loader");
    fs::create_dir_all(&folder)?;
    fs::write(
        folder.join("small.c"),
        "#include <stdio.h>\nint main(void) { return puts(\"small\") < 0; }\n",
    )?;
    fs::write(folder.join("empty.c"), EMPTY)?;
    // As small as the hook, so that the comparison is fair.
    let flags = "-O2 -shared -fPIC -nostdlib -s -Wl,-z,norelro,-z,noseparate-code,--hash-style=gnu,--build-id -o empty.so empty.c";
    must(command(&format!("cc {flags}")).current_dir(&folder))?;
    must(&mut command(&format!("cc -O2 -o {FOLDER}/loader/startup tests/bench/startup.c")))?;
    Ok(Place {
        empty: folder.join("empty.so"),
        hook: std::env::current_dir()?.join(hook::HOOK),
        folder,
    })
}

/// Reads the hook's datagrams at dcpid's interval while `work` runs.
fn while_heard<T>(place: &Place, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let path = place.folder.join("heard.sock");
    let _ = fs::remove_file(&path); // of the benchmark before
    let socket = UnixDatagram::bind(&path).context("binding the benchmark's socket")?;
    socket.set_nonblocking(true)?;
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut datagram = [0; 4096];
            while !is_done.load(Ordering::Relaxed) {
                while socket.recv(&mut datagram).is_ok() {}
                std::thread::sleep(READ_INTERVAL);
            }
        });
        let result = work();
        is_done.store(true, Ordering::Relaxed);
        result
    })
}

/// CPU time of each way in µs, by round.
fn measure(place: &Place, program: &[&str], rounds: u64) -> anyhow::Result<Vec<Vec<f64>>> {
    let audit = |library: &Path, socket: &str| {
        format!(
            "LD_AUDIT={},DCPI_LOADER_SOCKET={}",
            library.display(),
            place.folder.join(socket).display()
        )
    };
    let mut command = Command::new(place.folder.join("startup"));
    command.current_dir(&place.folder).arg(rounds.to_string());
    command.args(Way::ALL.map(|way| match way {
        Way::Plain | Way::Again => String::new(),
        Way::Empty => audit(&place.empty, "nobody.sock"),
        Way::Alone => audit(&place.hook, "nobody.sock"),
        Way::Heard => audit(&place.hook, "heard.sock"),
    }));
    // Each line has CPU time and wall-clock time of each way in turn; the CPU times are kept.
    let printed = output(command.arg("--").args(program))?;
    let row = |line: &str| {
        line.split_whitespace().step_by(2).filter_map(|time| time.parse().ok()).collect()
    };
    Ok(printed.lines().map(row).collect())
}

impl Added {
    fn of(way: Way, times: &[Vec<f64>]) -> Option<Self> {
        let index = Way::ALL.iter().position(|other| *other == way)?;
        let sorted = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values
        };
        let plain = sorted(times.iter().filter_map(|row| row.first().copied()).collect());
        let pairs = times.iter().filter_map(|row| Some(row.get(index)? - row.first()?));
        let differences = sorted(pairs.collect());
        let middle = differences.len() / 2;
        let at = |values: &[f64], position: usize| {
            values.get(position.min(values.len().checked_sub(1)?)).copied()
        };
        let (low_us, high_us) = interval_of_median(&differences)
            .or_else(|| Some((*differences.first()?, *differences.last()?)))?;
        Some(Self {
            way,
            plain_us: at(&plain, plain.len() / 2)?,
            median_us: at(&differences, middle)?,
            low_us,
            high_us,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_one_round_are_compared() {
        // The machine slows down twenty times as much as the hook costs.
        let times: Vec<_> = (0..100)
            .map(|round| {
                [100.0, 100.0, 130.0, 140.0, 150.0]
                    .map(|time| time + 10.0 * f64::from(round))
                    .to_vec()
            })
            .collect();
        let heard = Added::of(Way::Heard, &times).unwrap();
        assert_eq!(
            (heard.median_us, heard.low_us, heard.high_us, heard.plain_us),
            (50.0, 50.0, 50.0, 600.0)
        );
        assert!(Added::of(Way::Empty, &[]).is_none());
        let twice = Added::of(Way::Heard, &sums(sums(Vec::new(), &times), &times)).unwrap();
        assert_eq!((twice.median_us, twice.plain_us), (100.0, 1200.0));
    }
}

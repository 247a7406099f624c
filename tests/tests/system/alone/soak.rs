//! Hours in minutes: a storm of compilers, reads, flushes, epochs and kills of the daemon at the
//! highest rate. `cargo xtask bench soak --minutes N` for long ones. It needs root, as those of
//! privileged.rs do.

use std::process::Command;
use std::time::{Duration, Instant};
use tests::daemon::{Daemon, Place, assert_closes};
use tests::workload::{Running, script};
use tests::{binary, require_root, succeed};
use wire::Request;

/// Resident memory of a build for tests, whatever it has seen.
const RSS_MAX: u64 = 96 << 20;
/// In the second half of a daemon's life it may have so much more on average than in its second
/// quarter.
const RSS_GROWTH_MAX: f64 = 0.15;
/// Most open files: counters, rings, 64 of walks, and at most 256 that wait to be copied.
const DESCRIPTORS_MAX: usize = 420;
const PAUSE: Duration = Duration::from_secs(5);

/// The resources of a daemon at one moment.
#[derive(Clone, Copy, Debug)]
struct Look {
    rss: u64,
    descriptors: usize,
    maps: usize,
}

impl Look {
    fn at(daemon: &Daemon<'_>, rss: u64) -> Self {
        let process = format!("/proc/{}", daemon.pid());
        let descriptors = std::fs::read_dir(format!("{process}/fd")).unwrap().count();
        let maps = std::fs::read_to_string(format!("{process}/maps")).unwrap().lines().count();
        Self { rss, descriptors, maps }
    }
}

fn start(place: &Place) -> Daemon<'_> {
    let mut command = place.dcpid();
    command.args(["--event", "cpu-clock@5200", "--retain", "all"]);
    place.start_as(command)
}

/// Samplers that the kernel has: programs are named in its symbols.
fn samplers() -> usize {
    let symbols = std::fs::read_to_string("/proc/kallsyms").unwrap();
    symbols
        .lines()
        .filter(|line| line.contains("bpf_prog_") && line.contains("take_sample"))
        .count()
}

fn dcpi(place: &Place, arguments: &[&str]) -> String {
    succeed(
        Command::new(binary("dcpi"))
            .arg(arguments[0])
            .arg("--db")
            .arg(place.db())
            .args(&arguments[1..]),
    )
}

/// Samples on disk, of all epochs, with and without image.
fn on_disk(place: &Place) -> u64 {
    tests::report::prof(&place.db(), &["--idle", "-n", "0", "--epoch", "all"]).total()
}

/// One daemon's life, until `end`: gives what it acknowledged, and whether its memory was flat.
fn live(place: &Place, daemon: &Daemon<'_>, begun: Instant, life: Duration) -> u64 {
    let (born, mut looks, mut acknowledged) = (Instant::now(), Vec::new(), 0);
    let mut round = 0;
    while born.elapsed() < life {
        round += 1;
        acknowledged = flush(place);
        let status = daemon.status();
        assert_closes(&status.samples);
        let look = Look::at(daemon, status.daemon.rss_bytes);
        looks.push(look);
        eprintln!(
            "{:>5} s  {:>6} KiB  {:>3} descriptors  {:>3} maps  {:>5} processes  {:>9} taken  {:>4} lost  {:>6} unresolved",
            begun.elapsed().as_secs(),
            look.rss >> 10,
            look.descriptors,
            look.maps,
            status.processes,
            status.samples.taken,
            status.samples.lost(),
            status.samples.unresolved()
        );
        assert_eq!(status.samples.lost(), 0, "{:?}", status.samples);
        assert!(look.rss < RSS_MAX && look.descriptors < DESCRIPTORS_MAX, "{look:?}");
        match round % 4 {
            0 => drop(place.ask(&Request::Epoch { label: None })),
            1 => drop(dcpi(place, &["prof", "--epoch", "all"])),
            2 => drop(dcpi(place, &["images"])),
            _ => drop(dcpi(place, &["topcounts"])),
        }
        std::thread::sleep(PAUSE);
    }
    assert_flat(&looks);
    acknowledged
}

/// Samples that a daemon says are on disk, all since it started.
fn flush(place: &Place) -> u64 {
    place.ask(&Request::Flush).taken.unwrap()
}

/// Neither memory nor mappings grow once everything is warm.
fn assert_flat(looks: &[Look]) {
    let mean = |looks: &[Look]| {
        looks.iter().map(|look| look.rss as f64).sum::<f64>() / looks.len().max(1) as f64
    };
    let (quarter, half) = (looks.len() / 4, looks.len() / 2);
    if looks.len() >= 16 {
        let (early, late) = (mean(&looks[quarter..half]), mean(&looks[half..]));
        assert!(
            late < early * (1.0 + RSS_GROWTH_MAX) + f64::from(1 << 20),
            "memory grows: {early:.0}, {late:.0} bytes"
        );
        let (first, last) = (looks[quarter].maps, looks[looks.len() - 1].maps);
        assert!(last <= first + 16, "mappings grow: {first}, {last}");
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_soak_leaks_nothing_and_loses_nothing_that_was_acknowledged() {
    require_root();
    let seconds =
        std::env::var("DCPI_SOAK_S").ok().and_then(|text| text.parse().ok()).unwrap_or(36_u64);
    // The daemon is killed every three minutes or more often, and at least twice.
    let life = Duration::from_secs((seconds / 3).min(180));
    let (place, begun, samplers_before) = (Place::default(), Instant::now(), samplers());
    let mut storm = Command::new("sh");
    storm.arg(script("storm.sh")).arg(place.path()).arg(seconds.to_string()).arg("2");
    let mut storm = Running::start(&mut storm);
    let (mut acknowledged, mut lives) = (0, 0);
    while storm.is_running() {
        let daemon = start(&place);
        acknowledged += live(&place, &daemon, begun, life);
        lives += 1;
        daemon.kill();
        let found = on_disk(&place);
        eprintln!("daemon {lives} killed: {found} samples on disk, {acknowledged} acknowledged");
        assert!(
            found >= acknowledged,
            "{found} of {acknowledged} samples that were acknowledged are on disk"
        );
        let _ = dcpi(&place, &["check"]);
    }
    let processes = storm.wait().number("processes");
    let daemon = start(&place);
    assert!(daemon.terminate().success());
    let _ = dcpi(&place, &["check"]);
    assert_eq!(samplers(), samplers_before, "samplers stay in the kernel");
    eprintln!(
        "{lives} daemons, {processes} processes, {acknowledged} samples in {:.0} s: nothing lost",
        begun.elapsed().as_secs_f64()
    );
}

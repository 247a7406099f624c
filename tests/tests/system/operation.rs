//! Tasks of an operator: pauses sampling with a file, changes the configuration, reads metrics.
//! These tests need root, as those of privileged.rs do.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::{Duration, Instant};
use tests::daemon::{Daemon, Place, assert_closes, start_by_time};
use tests::{require_root, succeed};
use wire::{Reply, Status};

fn until(daemon: &Daemon<'_>, what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}:\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(50)); // the pace of the questions
    }
}

fn doing(daemon: &Daemon<'_>) -> String {
    daemon.status().restraint.doing
}

/// While the file exists nothing is sampled, and the epoch is reported.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_file_stops_sampling_until_it_is_gone() {
    require_root();
    let place = Place::default();
    let daemon = place.start();
    let pause = place.path().join("pause");
    std::fs::write(&pause, "").unwrap();
    until(&daemon, "paused", || doing(&daemon) == "nothing");
    let before = daemon.status().samples.taken;
    std::thread::sleep(Duration::from_secs(2)); // in which nothing must happen
    assert_eq!(daemon.status().samples.taken, before);
    assert!(
        daemon.status_text().contains("nothing is sampled: ")
            && daemon.status_text().contains("pause exists")
    );
    std::fs::remove_file(&pause).unwrap();
    until(&daemon, "sampled again", || doing(&daemon) == "all");
    until(&daemon, "samples", || daemon.status().samples.taken > before);
    daemon.flush();
    assert_closes(&daemon.status().samples);
    let log = daemon.log();
    assert_eq!(
        (
            log.matches("nothing is sampled from now on").count(),
            log.matches("all is sampled again").count()
        ),
        (1, 1)
    );
    assert!(daemon.terminate().success());
    // A daemon that starts while the file is there takes next to nothing, and ends like any other.
    std::fs::write(&pause, "").unwrap();
    let daemon = place.start();
    assert_eq!(doing(&daemon), "nothing");
    assert!(daemon.quit().success());
}

/// SIGHUP: what can be changed is, what cannot is named, and a mistake changes nothing.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn the_configuration_is_read_again() {
    require_root();
    let place = Place::default();
    let daemon = place.start();
    let config = place.path().join("dcpid.toml");
    let reload = |text: &str, said: &str| {
        std::fs::write(&config, text).unwrap();
        kill(Pid::from_raw(daemon.pid().cast_signed()), Signal::SIGHUP).unwrap();
        until(&daemon, said, || daemon.log().contains(said));
    };
    assert_eq!(daemon.status().overhead.budget, None);
    reload("overhead-budget = \"2%\"\nhost = \"other\"\n", "these wait for a restart: host");
    assert_eq!(daemon.status().overhead.budget, Some(0.02));
    reload("overhead-budget = 7\n", "the configuration stays as it was: ");
    assert_eq!(daemon.status().overhead.budget, Some(0.02));
    reload("overhead-budget = \"off\"\nretain = \"all\"\n", "the configuration is read again\n");
    assert_eq!(daemon.status().overhead.budget, None);
    assert_closes(&daemon.status().samples);
    assert!(daemon.terminate().success());
}

/// Metrics, beside readers that are slow or talk nonsense.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn metrics_are_served_on_a_socket() {
    require_root();
    let (place, metrics) = (Place::default(), Place::default());
    let socket = metrics.path().join("metrics.sock");
    let mut command = place.dcpid();
    command.arg("--metrics").arg(&socket);
    let daemon = place.start_as(command);
    let slow = UnixStream::connect(&socket).unwrap(); // lets go of after 5 s
    let read = |request: &[u8]| {
        let mut reader = UnixStream::connect(&socket).unwrap();
        reader.write_all(request).unwrap();
        let mut said = String::new();
        reader.read_to_string(&mut said).unwrap();
        said
    };
    let said = read(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
    assert!(
        said.starts_with("HTTP/1.1 200 OK\r\n") && said.contains("\ndcpi_samples_total{event="),
        "{said}"
    );
    assert!(said.contains("\ndcpi_restraint 0\n"), "{said}");
    assert!(read(b"nonsense\r\n\r\n").starts_with("HTTP/1.1 405"));
    drop(slow);
    assert!(daemon.terminate().success());
}

/// The service manager hears that the loop turns, from the loop.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn the_watchdog_is_told_that_the_loop_turns() {
    require_root();
    let place = Place::default();
    let mut command = place.dcpid();
    command.env("WATCHDOG_USEC", "600000");
    let daemon = place.start_as(command);
    // The harness has read READY=1 from this socket's first owner; another takes its place.
    let path = place.path().join("notify.sock");
    std::fs::remove_file(&path).unwrap();
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut message = [0; 64];
    for _ in 0..3 {
        let length = manager.recv(&mut message).unwrap();
        assert_eq!(message.get(..length), Some(&b"WATCHDOG=1\n"[..]));
    }
    assert!(daemon.terminate().success());
}

/// Scripts read what dcpictl writes with --json: the status itself, and replies as they came.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn dcpictl_writes_the_status_and_replies_as_json() {
    require_root();
    let place = Place::default();
    let daemon = start_by_time(&place);
    let text = succeed(&mut place.dcpictl(&["status", "--json"]));
    let (said, status): (Status, _) = (serde_json::from_str(&text).unwrap(), daemon.status());
    assert_eq!(
        (&said.version, &said.host, &said.db.path),
        (&status.version, &status.host, &status.db.path)
    );
    assert_eq!((&said.epoch, said.events[0].period), (&status.epoch, status.events[0].period));
    assert_closes(&said.samples);
    let flushed: Reply =
        serde_json::from_str(&succeed(&mut place.dcpictl(&["flush", "--json"]))).unwrap();
    assert_eq!((flushed.epoch, flushed.error), (Some(status.epoch), None));
    assert!(
        flushed.merged <= flushed.taken && flushed.taken >= Some(said.samples.taken),
        "{:?}",
        flushed.taken
    );
    assert!(daemon.quit().success());
}

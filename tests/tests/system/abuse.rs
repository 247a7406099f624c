//! Abusive clients of dcpid's sockets. These tests need root, as those of privileged.rs do.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tests::daemon::{Daemon, Place, assert_closes};
use tests::{binary, require_root, succeed};
use wire::Request;

/// Threads that go on until this is dropped.
struct Crowd {
    socket: PathBuf,
    ends: Arc<AtomicBool>,
    /// The sum of their work.
    rounds: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Crowd {
    fn on(socket: PathBuf) -> Self {
        Self { socket, ends: Arc::default(), rounds: Arc::default(), threads: Vec::new() }
    }

    /// Starts a thread that calls `work` repeatedly, at most a thousand times a second.
    fn join(&mut self, mut work: impl FnMut(&Path) + Send + 'static) {
        let (socket, ends, rounds) = (self.socket.clone(), self.ends.clone(), self.rounds.clone());
        self.threads.push(std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                work(&socket);
                rounds.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        }));
    }

    /// This many connections, each written to by `write`; a client that is disconnected connects
    /// again.
    fn connections(
        &mut self,
        count: usize,
        pause: Duration,
        write: fn(&mut UnixStream) -> std::io::Result<()>,
    ) {
        let mut connections: Vec<UnixStream> = Vec::new();
        self.join(move |socket| {
            connections.retain_mut(|client| write(client).is_ok());
            while connections.len() < count {
                let Ok(client) = UnixStream::connect(socket) else { break };
                client.set_nonblocking(true).unwrap();
                connections.push(client);
            }
            std::thread::sleep(pause);
        });
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Treats a full socket as success; an error means that the other side is gone.
fn written(result: std::io::Result<usize>) -> std::io::Result<()> {
    match result {
        Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(()),
    }
}

/// A thousand clients, which hold 988 connections and open new ones repeatedly.
fn thousand_clients(socket: PathBuf) -> Crowd {
    let mut crowd = Crowd::on(socket);
    let pause = Duration::from_millis(50);
    // Silent clients, slow ones that send single bytes, and ones that send requests and never read.
    crowd.connections(300, pause, |client| {
        written(
            client.read(&mut [0; 64]).and_then(|n| {
                if n == 0 { Err(std::io::ErrorKind::BrokenPipe.into()) } else { Ok(n) }
            }),
        )
    });
    crowd.connections(300, pause, |client| written(client.write(b"{")));
    crowd.connections(388, pause, |client| written(client.write(&Request::Status.encode()?)));
    for number in 0..4_u64 {
        // Garbage, huge requests, and questions as fast as they are answered.
        crowd.join(move |socket| {
            let mut garbage: Vec<u8> = (0..200).map(|n| (n * 7 + number) as u8).collect();
            garbage.push(b'\n');
            let _ = UnixStream::connect(socket).and_then(|mut client| {
                client.write_all(&garbage)?;
                client.read(&mut garbage)
            });
        });
        crowd.join(|socket| {
            let _ = UnixStream::connect(socket)
                .and_then(|mut client| client.write_all(&[b'['; 10 << 20]));
        });
        let mut asked = number;
        crowd.join(move |socket| {
            asked += 4;
            let counts = Request::Counts { watch: asked, user: Some(asked as u32) };
            for request in [Request::Status, counts, Request::Flush] {
                let _ = UnixStream::connect(socket).and_then(|mut client| {
                    client.write_all(&request.encode()?)?;
                    client.read(&mut [0; 1 << 16])
                });
            }
        });
    }
    crowd
}

/// Starts a daemon without the code store, whose time and memory would be measured too.
fn start(place: &Place) -> Daemon<'_> {
    let mut command = place.dcpid();
    command.args(["--event", "cpu-clock", "--code-store", "off"]);
    place.start_as(command)
}

fn sockets(daemon: &Daemon<'_>) -> usize {
    let open = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
    let leads_to = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    leads_to.filter(|path| path.as_os_str().as_encoded_bytes().starts_with(b"socket:")).count()
}

/// Silent clients do not block others: 64 of them blocked all others for half a minute, and a
/// thousand for eight minutes.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_thousand_clients_that_misbehave_do_not_keep_others_from_the_daemon() {
    require_root();
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard.min(20_000), hard).unwrap();
    let place = Place::default();
    let daemon = start(&place);
    daemon.flush();
    let (before, sockets_before) = (daemon.status(), sockets(&daemon));
    let crowd = thousand_clients(place.control());
    let (mut slowest, begin) = ([Duration::ZERO; 3], Instant::now());
    while begin.elapsed() < Duration::from_secs(10) {
        let mut label = place.dcpilabel("served");
        let mut requests = [place.dcpictl(&["status"]), place.dcpictl(&["flush"])];
        let [status, flush] = &mut requests;
        for (command, slowest) in [status, flush, label.arg("true")].into_iter().zip(&mut slowest) {
            let asked = Instant::now();
            let _ = succeed(command);
            *slowest = asked.elapsed().max(*slowest);
        }
    }
    let (rounds, during) = (crowd.rounds.load(Ordering::Relaxed), daemon.status());
    drop(crowd);
    let cpu_s = during.daemon.cpu_s - before.daemon.cpu_s;
    let grown = during.daemon.rss_bytes.saturating_sub(before.daemon.rss_bytes);
    eprintln!(
        "{rounds} rounds of the crowd in {:.1} s: the slowest status, flush and label took {slowest:.1?}; dcpid took {cpu_s:.1} s of CPU time and {} KiB",
        begin.elapsed().as_secs_f64(),
        grown >> 10
    );
    assert!(
        slowest.iter().all(|slowest| *slowest < Duration::from_secs(20)),
        "{slowest:?}: others wait"
    );
    assert!(grown < 16 << 20, "{grown} bytes more");
    assert!(daemon.log().contains("the slowest are let go"), "there were not enough of them");
    let let_go = Instant::now();
    while sockets(&daemon) > sockets_before {
        assert!(let_go.elapsed() < Duration::from_secs(20), "{} sockets", sockets(&daemon));
        std::thread::sleep(Duration::from_millis(100)); // the pace of the questions
    }
    assert_closes(&daemon.status().samples);
    assert!(daemon.terminate().success());
}

/// Four watches of one user are all that he has, and however he asks, another user's `dcpi top` has
/// its own.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_user_who_takes_all_his_watches_leaves_those_of_others() {
    require_root();
    let place = Place::default();
    let daemon = start(&place);
    std::os::unix::fs::chown(place.control(), Some(65534), None).unwrap();
    let dcpi = place.path().join("dcpi");
    std::fs::copy(binary("dcpi"), &dcpi).unwrap();
    let mut greedy: Vec<_> = (0..6)
        .map(|_| {
            let mut command = Command::new("setpriv");
            command
                .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
                .arg(&dcpi)
                .arg("top");
            command.args(["--once", "-d", "5s", "--control"]).arg(place.control());
            command
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    // They ask twice: at the start and the end of their five seconds.
    std::thread::sleep(Duration::from_secs(1));
    let mut top = Command::new(binary("dcpi"));
    let _ = succeed(top.args(["top", "--once", "-d", "1s", "--control"]).arg(place.control()));
    let refused = greedy
        .iter_mut()
        .filter_map(|child| (!child.wait().unwrap().success()).then_some(child))
        .map(|child| {
            let mut said = String::new();
            child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            assert!(said.contains("4 of them yours"), "{said}");
        });
    assert_eq!(refused.count(), 2);
    assert_closes(&daemon.status().samples);
}

/// They want the whole machine: `tests/system/main.rs`.
mod alone {
    use super::*;

    /// A process that writes to the loader hook's socket as fast as it can takes little of the
    /// daemon's time, and none of its memory.
    #[test]
    #[ignore = "needs root: run by cargo xtask test"]
    fn a_flood_of_notices_costs_little() {
        require_root();
        let place = Place::default();
        let daemon = start(&place);
        let before = daemon.status();
        let mut crowd = Crowd::on(place.loader_socket());
        for size in [1, 64, 2000, 100_000] {
            let (sender, bytes) = (UnixDatagram::unbound().unwrap(), vec![b'D'; size]);
            sender.set_nonblocking(true).unwrap();
            crowd.join(move |socket| while sender.send_to(&bytes, socket).is_ok() {});
        }
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(6) {
            assert_closes(&daemon.status().samples);
            std::thread::sleep(Duration::from_millis(500)); // the pace of the questions
        }
        let during = daemon.status();
        drop(crowd);
        let share = (during.daemon.cpu_s - before.daemon.cpu_s) / begin.elapsed().as_secs_f64();
        let grown = during.daemon.rss_bytes.saturating_sub(before.daemon.rss_bytes);
        eprintln!(
            "{:?}; dcpid takes {:.1} % of a CPU and {} KiB more",
            during.loader,
            100.0 * share,
            grown >> 10
        );
        assert!(during.loader.refused > 100, "{:?}", during.loader);
        assert!(share < 0.3, "{share:.2} of a CPU");
        assert!(grown < 4 << 20, "{grown} bytes more");
    }
}

//! `dcpi-fleet receive`, as hosts and as strangers see it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::expect_used)]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use profiledb::{Database, EpochStart, EventMeta, Machine, Outgoing, Writer};

/// 2026-11-05 10:15:00 UTC.
const START: u64 = 1_793_873_700;

struct Receiver {
    child: Child,
    address: String,
    store: tempfile::TempDir,
}

impl Receiver {
    fn start() -> Self {
        let store = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_dcpi-fleet"));
        command.args(["receive", "--listen", "127.0.0.1:0", "--store"]).arg(store.path());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let (_, address) = line.split_once("address=").expect("it tells where it listens");
        let address = address.split(' ').next().unwrap().to_owned();
        Self { child, address, store }
    }

    /// The status and body of the answer to a request.
    fn ask(&self, head: &str, body: &[u8]) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let head = format!("{head}\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        // The receiver may have answered already, and not read all.
        let _ = stream.write_all(body);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        (head.split(' ').nth(1).map_or(0, |code| code.parse().unwrap()), body.to_owned())
    }

    fn put(&self, key: &str, object: &[u8]) -> (u16, String) {
        let length = object.len();
        let head = format!("PUT /{key} HTTP/1.1\r\nIf-None-Match: *\r\nContent-Length: {length}");
        self.ask(&head, object)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

/// An epoch of a host as `dcpi push` sends it, with its key.
fn epoch(root: &Path, host: &str, boot: &str) -> (String, Vec<u8>) {
    let mut writer = Writer::open(root, host).unwrap();
    let clock = EventMeta {
        name: "cpu-clock".into(),
        unit: "ns".into(),
        period: 192_307,
        ..EventMeta::default()
    };
    let machine = Machine { boot_id: boot.into(), cpus: 2, ..Machine::default() };
    let start =
        EpochStart { events: vec![clock], now_unix_s: START, machine, ..EpochStart::default() };
    let id = writer.begin(start, true).unwrap();
    writer.seal(START + 60).unwrap();
    let epoch = Database::open(root).unwrap().epoch(host, &id).unwrap();
    let object = profiledb::outgoing(&epoch, &Outgoing::default(), &BTreeMap::new()).unwrap();
    (format!("raw/{}", profiledb::outgoing_place(host, &id).unwrap()), object)
}

#[test]
fn epochs_are_taken_once_and_another_machines_are_refused() {
    let receiver = Receiver::start();
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (key, object) = epoch(one.path(), "node-1", "boot-1");
    let head = format!("HEAD /{key} HTTP/1.1");
    assert_eq!(receiver.ask(&head, b"").0, 404);
    assert_eq!(receiver.put(&key, &object).0, 201);
    assert_eq!(receiver.put(&key, &object).0, 200);
    assert_eq!(receiver.ask(&head, b"").0, 200);
    let (same_key, another) = epoch(other.path(), "node-1", "boot-2");
    assert_eq!(same_key, key);
    assert_eq!(receiver.put(&key, &another).0, 409);
    assert_eq!(receiver.put("raw/format", profiledb::FORMAT).0, 201);
    let raw = Database::open(&receiver.store.path().join("raw")).unwrap();
    assert_eq!(raw.hosts().unwrap(), ["node-1"]);
    let id = raw.epochs("node-1").unwrap().remove(0);
    let there = raw.epoch("node-1", &id).unwrap();
    assert_eq!(there.meta().machine.boot_id, "boot-1");
    // Nothing is read out.
    assert_eq!(receiver.ask(&format!("GET /{key} HTTP/1.1"), b"").0, 405);
    assert_eq!(receiver.ask(&format!("DELETE /{key} HTTP/1.1"), b"").0, 405);
}

/// Two PUTs that declared 256 MiB and sent nothing stopped all others; so did clients that left
/// what they were sent unread, and small objects that inflate had all memory.
#[test]
fn what_is_declared_and_never_comes_takes_nothing_from_others() {
    let receiver = Receiver::start();
    let root = tempfile::tempdir().unwrap();
    let (key, object) = epoch(root.path(), "node-1", "boot-1");
    let head = format!(
        "PUT /{key} HTTP/1.1\r\nHost: x\r\nIf-None-Match: *\r\nContent-Length: {}\r\n\r\n",
        256 << 20
    );
    let silent: Vec<TcpStream> = (0..64)
        .map(|_| {
            let mut stream = TcpStream::connect(&receiver.address).unwrap();
            stream.write_all(head.as_bytes()).unwrap();
            stream
        })
        .collect();
    assert_eq!(receiver.put(&key, &object).0, 201);
    // They are answered and let go when they do not go on.
    let mut first = silent.into_iter().next().unwrap();
    first.set_read_timeout(Some(Duration::from_secs(40))).unwrap();
    let mut answer = String::new();
    let _ = first.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}

#[test]
fn what_is_not_what_its_name_says_is_refused() {
    let receiver = Receiver::start();
    let root = tempfile::tempdir().unwrap();
    let (key, object) = epoch(root.path(), "node-1", "boot-1");
    let elsewhere = key.replace("node-1", "node-2");
    let (code, why) = receiver.put(&elsewhere, &object);
    assert_eq!(code, 422);
    assert!(why.contains("belongs somewhere else"), "{why}");
    let mut statuses: BTreeMap<u16, usize> = BTreeMap::new();
    for at in 0..object.len() {
        let mut damaged = object.clone();
        damaged[at] ^= 1;
        *statuses.entry(receiver.put(&key, &damaged).0).or_default() += 1;
    }
    assert_eq!(statuses, BTreeMap::from([(422, object.len())]));
    assert_eq!(receiver.put(&key, &object[..object.len() - 1]).0, 422);
    assert_eq!(receiver.put("raw/format", b"dcpi database 9\n").0, 422);
    assert_eq!(receiver.put("raw/code/x.code", b"x").0, 422);
    for path in
        ["raw/hosts/../../x", "raw/hosts/%2e%2e/%2e%2e/x", "x", "raw/code/%2ex", "raw/code/%00"]
    {
        assert_eq!(receiver.put(path, &object).0, 404, "{path}");
    }
    // Nothing of it is there, and the object is still taken.
    assert_eq!(std::fs::read_dir(receiver.store.path()).unwrap().count(), 0);
    assert_eq!(receiver.put(&key, &object).0, 201);
}

#[test]
fn strangers_hold_up_nobody() {
    let receiver = Receiver::start();
    let root = tempfile::tempdir().unwrap();
    let (key, object) = epoch(root.path(), "node-1", "boot-1");
    let unsaid = receiver.ask(&format!("PUT /{key} HTTP/1.1\r\nContent-Length: 1"), b"x");
    assert_eq!(unsaid.0, 428);
    let large = format!("PUT /{key} HTTP/1.1\r\nIf-None-Match: *\r\nContent-Length: 999999999999");
    assert_eq!(receiver.ask(&large, b"").0, 413);
    let chunked = format!("PUT /{key} HTTP/1.1\r\nIf-None-Match: *\r\nTransfer-Encoding: chunked");
    assert_eq!(receiver.ask(&chunked, b"1\r\nx\r\n0\r\n\r\n").0, 411);
    assert_eq!(receiver.ask("nonsense", b"").0, 400);
    // Connections that say nothing, or stop in the middle of an object.
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(TcpStream::connect(&receiver.address).unwrap());
        let mut begun = TcpStream::connect(&receiver.address).unwrap();
        let head = format!(
            "PUT /{key} HTTP/1.1\r\nHost: x\r\nIf-None-Match: *\r\nContent-Length: 1000\r\n\r\n"
        );
        begun.write_all(head.as_bytes()).unwrap();
        silent.push(begun);
    }
    assert_eq!(receiver.put(&key, &object).0, 201);
    drop(silent);
}

#[test]
fn what_cannot_be_is_told_in_one_line() {
    for (arguments, expected) in [
        (&["receive", "--store", "/no/such"][..], "no store in /no/such"),
        (&["receive", "--store", "/tmp", "--listen", "127.0.0.1"], "invalid value '127.0.0.1'"),
        (&["receive"], "--store"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dcpi-fleet"));
        let output = command.args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(expected), "{said}");
    }
}

//! `dcpi push` against a server on this machine that reads what it gets.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Output;
use std::sync::mpsc::{Receiver, channel};

use flate2::read::GzDecoder;
use image::{ImageKind, ImageOffset};
use model::{Frame, Ledger, OFF_CPU, Profile, Stacks, Thread, Value};
use profiledb::{Delta, EpochStart, ProfileKey, Scope, StacksKey, Writer};

use crate::database::{Db, START, clock, image};
use crate::runs::dcpi;

/// A request that the server got.
struct Request {
    head: String,
    body: Vec<u8>,
}

/// A server that gives these answers, one to each request.
struct Server {
    url: String,
    requests: Receiver<Request>,
}

impl Server {
    fn start(answers: Vec<(&'static str, &'static [u8])>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("otlp+http://{}", listener.local_addr().unwrap());
        let (sender, requests) = channel();
        std::thread::spawn(move || {
            for (head, body) in answers {
                let (mut stream, _) = listener.accept().unwrap();
                sender.send(read(&stream)).unwrap();
                let length = body.len();
                let length = match head.contains("Content-Length") {
                    true => String::new(),
                    false => format!("\r\nContent-Length: {length}"),
                };
                let head = format!("HTTP/1.1 {head}{length}\r\n\r\n");
                stream.write_all(head.as_bytes()).unwrap();
                stream.write_all(body).unwrap();
            }
        });
        Self { url, requests }
    }
}

fn read(stream: &TcpStream) -> Request {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(number) = line.strip_prefix("content-length:") {
            length = number.trim().parse().unwrap();
        }
        head.push_str(&line);
        head.push('\n');
    }
    let mut packed = vec![0; length];
    reader.read_exact(&mut packed).unwrap();
    let mut body = Vec::new();
    GzDecoder::new(packed.as_slice()).read_to_end(&mut body).unwrap();
    Request { head, body }
}

/// The fields of a message, numbers as themselves.
fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, &[u8])> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let (number, value) = match key & 7 {
            0 => (varint(&mut bytes), &[][..]),
            1 => (0, take(&mut bytes, 8)),
            2 => {
                let length = varint(&mut bytes);
                (0, take(&mut bytes, length as usize))
            }
            other => panic!("wire type {other}"),
        };
        fields.push((key >> 3, number, value));
    }
    fields
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(length);
    *bytes = rest;
    taken
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, 1)[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

fn messages(bytes: &[u8], field: u64) -> Vec<&[u8]> {
    let of = |(number, _, value): (u64, u64, _)| (number == field).then_some(value);
    fields(bytes).into_iter().filter_map(of).collect()
}

/// Sums of the values of all samples in a message ExportProfilesServiceRequest, by sample type
/// (profiles.proto: resource_profiles, scope_profiles, profiles, sample_type and samples, values).
fn sums(request: &[u8]) -> BTreeMap<String, u64> {
    let [dictionary] = messages(request, 2)[..] else { panic!("one dictionary") };
    let strings = messages(dictionary, 5);
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for resource in messages(request, 1) {
        let scopes = messages(resource, 2);
        for profile in scopes.iter().flat_map(|scope| messages(scope, 2)) {
            let of = fields(messages(profile, 1)[0])[0].1;
            let of = String::from_utf8(strings[of as usize].to_vec()).unwrap();
            for sample in messages(profile, 2) {
                let mut values = messages(sample, 4)[0];
                *sums.entry(of.clone()).or_default() += varint(&mut values);
            }
        }
    }
    sums
}

/// A writer that merges a second of samples, and of waiting, at each step.
struct Steps {
    writer: Writer,
    now_unix_s: u64,
    samples: u64,
    waited_ns: u64,
}

impl Steps {
    fn begin(db: &Db) -> Self {
        let mut writer = Writer::open(&db.root(), "node-7").unwrap();
        let start =
            EpochStart { events: vec![clock()], now_unix_s: START, ..EpochStart::default() };
        writer.begin(start, true).unwrap();
        Self { writer, now_unix_s: START, samples: 0, waited_ns: 0 }
    }

    fn merge(&mut self, samples: u64) {
        self.now_unix_s += 60;
        let service = image(ImageKind::File, "service", "/bin/service");
        let period = clock().period;
        let mut delta = Delta { now_unix_s: self.now_unix_s, ..Delta::default() };
        let counts = Profile::from_counts([(ImageOffset(0x1000), samples)]);
        let key = ProfileKey::samples(service.id, &clock().name, period, Scope::default());
        delta.profiles.insert(key, counts.into());
        let frame = Frame::Code(service.id, ImageOffset(0x1000));
        for (event, weight) in [(clock().name.as_str(), period * samples), (OFF_CPU, 7000)] {
            let mut stacks = Stacks::new();
            stacks.add_stack([frame], &Thread::default(), Value::of_one(weight));
            let key = StacksKey { event: event.to_owned(), scope: Scope::default() };
            delta.stacks.insert(key, stacks);
        }
        delta.images.insert(service.id, service);
        let of = Ledger { taken: samples, merged: samples, ..Ledger::default() };
        delta.ledgers.entry(&clock().name, period).add(&of);
        self.writer.merge(&delta).unwrap();
        self.samples += samples;
        self.waited_ns += 7000;
    }

    /// Makes one file of all that can be, so much later that the files before are gone.
    fn fold(&mut self) {
        for now_unix_s in [self.now_unix_s + 200_000, self.now_unix_s + 300_000] {
            while self.writer.fold(u64::MAX, now_unix_s).unwrap().more {}
        }
    }
}

pub fn push(db: &Db, to: &str, arguments: &[&str]) -> Output {
    let mut command = dcpi();
    command.args(["push", "--to", to, "--from"]).arg(db.root());
    command.arg("--state").arg(db.root().with_file_name("state")).args(arguments);
    command.output().unwrap()
}

pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

const TAKEN: (&str, &[u8]) = ("200 OK", b"");

/// What was merged between is sent, once: neither the receiver's refusals nor folds leave anything
/// out or send anything twice.
#[test]
fn each_merge_arrives_once() {
    let db = Db::new();
    let mut steps = Steps::begin(&db);
    // Attempts in the place of one: the first fails, as while a collector starts.
    let answers = vec![("503 Service Unavailable", &b"starting"[..]), TAKEN, TAKEN, TAKEN, TAKEN];
    let server = Server::start(answers);
    let (mut arrived, mut requests) = (BTreeMap::new(), 0);
    for round in 0..4 {
        steps.merge(10 + round);
        steps.merge(20);
        let output = push(&db, &server.url, &[]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let left = if round == 0 { 0 } else { 3 };
        let expected = format!("{} samples in 1 request", 30 + round + left);
        assert!(said(&output).contains(&expected), "{expected}: {}", said(&output));
        if round == 0 {
            let refused = server.requests.recv().unwrap();
            assert!(sums(&refused.body).values().all(|sum| *sum > 0));
        }
        let request = server.requests.recv().unwrap();
        assert!(request.head.starts_with("post /v1development/profiles http/1.1"));
        for header in ["content-type: application/x-protobuf", "content-encoding: gzip"] {
            assert!(request.head.contains(header), "{}", request.head);
        }
        for (of, sum) in sums(&request.body) {
            *arrived.entry(of).or_insert(0) += sum;
        }
        requests += 1;
        let again = push(&db, &server.url, &[]);
        assert!(said(&again).contains("nothing new"), "{}", said(&again));
        steps.merge(3);
        steps.fold();
    }
    // The last merge came after the last push.
    assert_eq!(requests, 4);
    assert_eq!(arrived["samples"], steps.samples - 3, "{arrived:?}");
    assert_eq!(arrived["off-cpu"], steps.waited_ns - 7000, "{arrived:?}");
}

#[test]
fn what_a_receiver_does_not_take_stays_and_is_told_in_one_line() {
    let db = Db::new();
    let mut steps = Steps::begin(&db);
    steps.merge(10);
    let server = Server::start(vec![
        ("404 Not Found", &b"no such path\x1b[2J"[..]),
        ("200 OK", b"\x0a\x06\x08\x02\x12\x02no"),
    ]);
    let lost = push(&db, &server.url, &[]);
    assert_eq!(lost.status.code(), Some(2));
    assert!(said(&lost).contains("answers 404 no such path\\x1b[2J; what was not sent stays"));
    // Rejected samples are not to be sent again.
    let partly = push(&db, &server.url, &[]);
    assert_eq!(partly.status.code(), Some(1), "{}", said(&partly));
    assert!(said(&partly).contains("rejects 2 profiles: no"), "{}", said(&partly));
    assert!(said(&push(&db, &server.url, &[])).contains("nothing new"));
    for (to, said_of) in
        [("http://127.0.0.1:1", "otlp+http://127.0.0.1:1?"), ("otlp+https://c", "TLS")]
    {
        let refused = push(&db, to, &[]);
        assert_eq!(refused.status.code(), Some(2));
        assert!(said(&refused).contains(said_of), "{}", said(&refused));
    }
    let nowhere = push(&Db::new(), &server.url, &[]);
    assert_eq!(nowhere.status.code(), Some(2));
    assert!(said(&nowhere).contains("no database") || said(&nowhere).contains("--db"));
    assert!(Path::new(&db.root()).exists());
}

/// The answer of a receiver that died while it answered: what it rejected is not known.
#[test]
fn an_answer_that_breaks_off_confirms_nothing() {
    let db = Db::new();
    Steps::begin(&db).merge(10);
    const SHORT: (&str, &[u8]) = ("200 OK\r\nContent-Length: 9", b"\x0a\x06");
    let message = "200 OK\r\nContent-Type: application/x-protobuf";
    let server = Server::start(vec![SHORT, (message, b"\x0a\x06\x08"), TAKEN]);
    let output = push(&db, &server.url, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains("answers 200, and breaks off; dcpi tries again in 2 s"));
    assert!(said(&output).contains("10 samples in 1 request"), "{}", said(&output));
    for _ in 0..3 {
        assert_eq!(sums(&server.requests.recv().unwrap().body)["samples"], 10);
    }
}

/// The hint was that of a database.
#[test]
fn a_state_that_cannot_be_written_is_told_with_its_option() {
    let db = Db::new();
    Steps::begin(&db).merge(10);
    let file = db.root().with_file_name("file");
    std::fs::write(&file, "").unwrap();
    let mut command = dcpi();
    command.args(["push", "--to", "otlp+http://127.0.0.1:1", "--from"]).arg(db.root());
    let output = command.arg("--state").arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = said(&output);
    assert!(said.contains("cannot keep what was sent in"), "{said}");
    assert!(said.contains("name a directory of yours with --state"), "{said}");
}

/// On a schedule it goes on until it is told to end.
#[test]
fn a_push_on_a_schedule_sends_what_comes_and_ends_with_sigterm() {
    let db = Db::new();
    let mut steps = Steps::begin(&db);
    let server = Server::start(vec![TAKEN, ("429 Too Many Requests", b"later"), TAKEN]);
    steps.merge(10);
    let mut command = dcpi();
    command.args(["push", "--to", &server.url, "--every", "1s", "--from"]).arg(db.root());
    command.arg("--state").arg(db.root().with_file_name("state"));
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    assert_eq!(sums(&server.requests.recv().unwrap().body)["samples"], 10);
    steps.merge(20);
    for _ in 0..2 {
        assert_eq!(sums(&server.requests.recv().unwrap().body)["samples"], 20);
    }
    let _ = std::process::Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("answers 429 later; dcpi tries again, first in 2 s"), "{said}");
}

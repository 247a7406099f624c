//! `dcpi push` to the store of a fleet: a directory, and a receiver that fails wherever it can.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use image::{ImageKind, ImageOffset, identify_file};
use model::{Frame, Ledger, Profile, Stacks, Thread, Value};
use profiledb::{
    Database, Delta, EpochStart, Machine, ProfileKey, Scope, StacksKey, Symbol, Writer,
};

use crate::database::{Db, START, clock, image};
use crate::push::{push, said};
use crate::runs::dcpi;

/// A program whose code is kept.
const PROGRAM: &str = "/bin/true";

/// Writes an epoch of `samples` that began a while after [`START`].
fn epoch(db: &Db, host: &str, boot: &str, (begin_s, samples): (u64, u64), is_over: bool) {
    epoch_at(db, host, boot, (START + begin_s, samples), is_over);
}

/// Writes an epoch of `samples` that began at this second since 1970 UTC.
fn epoch_at(db: &Db, host: &str, boot: &str, at: (u64, u64), is_over: bool) {
    epoch_of(db, host, boot, at, (is_over, Path::new(PROGRAM)));
}

/// The same, of this program.
fn epoch_of(
    db: &Db,
    host: &str,
    boot: &str,
    (now_unix_s, samples): (u64, u64),
    (is_over, program): (bool, &Path),
) {
    let mut writer = Writer::open(&db.root(), host).unwrap();
    let machine = Machine { boot_id: boot.to_owned(), cpus: 2, ..Machine::default() };
    let start = EpochStart { events: vec![clock()], now_unix_s, machine, ..EpochStart::default() };
    writer.begin(start, true).unwrap();
    let period = clock().period;
    let mut delta = Delta { now_unix_s: now_unix_s + 60, ..Delta::default() };
    let jit = image(ImageKind::Jit, "[jit] node 77", "[jit] node 77");
    let mut home = image(ImageKind::File, "tool", "/home/alice/bin/tool");
    home.id = identify_file(&fs::File::open(program).unwrap()).unwrap();
    for (of, pid) in [(&home, Some(77)), (&jit, None)] {
        let scope = Scope { label: None, unit: Some("web.service".to_owned()), pid };
        let counts = Profile::from_counts([(ImageOffset(0x1000), samples)]);
        let key = ProfileKey::samples(of.id, &clock().name, period, scope);
        delta.profiles.insert(key, counts.into());
    }
    let symbol = Symbol { start: 0x1000, end: 0x1010, name: "secretOfAlice".to_owned() };
    delta.symbols.insert(jit.id, vec![symbol]);
    let mut stacks = Stacks::new();
    let thread = Thread {
        command: "node".to_owned(),
        pid: 77,
        name: "alices-thread".to_owned(),
        tid: 78,
        ..Thread::default()
    };
    let frame = Frame::Code(home.id, ImageOffset(0x1000));
    stacks.add_stack([frame], &thread, Value::of_one(samples * period));
    delta.stacks.insert(StacksKey { event: clock().name, scope: Scope::default() }, stacks);
    delta.images.extend([(home.id, home), (jit.id, jit)]);
    let of = Ledger { taken: 2 * samples, merged: 2 * samples, ..Ledger::default() };
    delta.ledgers.entry(&clock().name, period).add(&of);
    writer.merge(&delta).unwrap();
    if is_over {
        writer.seal(now_unix_s + 120).unwrap();
    }
}

/// Samples by host and epoch.
fn samples(raw: &Path) -> BTreeMap<String, u64> {
    let db = Database::open(raw).unwrap();
    let mut samples = BTreeMap::new();
    for host in db.hosts().unwrap() {
        for id in db.epochs(&host).unwrap() {
            let epoch = db.epoch(&host, &id).unwrap();
            epoch.check_ledgers().unwrap();
            let profiles = epoch.profiles().unwrap();
            let sum = profiles.iter().map(|key| epoch.total(key).unwrap()).sum();
            samples.insert(format!("{host} {id}"), sum);
        }
    }
    samples
}

/// A directory for a store, beside the database.
fn store(db: &Db) -> PathBuf {
    let store = db.root().with_file_name("store");
    fs::create_dir_all(&store).unwrap();
    store
}

#[test]
fn epochs_that_have_ended_are_put_once_and_the_store_is_a_database() {
    let db = Db::new();
    epoch(&db, "node-1", "boot", (0, 10), true);
    epoch(&db, "node-1", "boot", (1000, 20), true);
    epoch(&db, "node-2", "boot-2", (0, 40), false);
    db.keep("node-1", Path::new(PROGRAM));
    let store = store(&db);
    let to = store.to_str().unwrap();
    let first = push(&db, to, &[]);
    assert_eq!(first.status.code(), Some(0), "{}", said(&first));
    assert_eq!(said(&first), format!("{to}: 2 epochs, code of 1 image\n"));
    assert_eq!(fs::read_dir(store.join("raw/code")).unwrap().count(), 1);
    let there = samples(&store.join("raw"));
    let expected = BTreeMap::from([
        ("node-1 20261105-101500".to_owned(), 20),
        ("node-1 20261105-103140".to_owned(), 40),
    ]);
    assert_eq!(there, expected);
    // The code that all hosts have in common is found for each.
    let raw = Database::open(&store.join("raw")).unwrap();
    assert_eq!(raw.code_images("node-1").unwrap().len(), 1);
    assert!(raw.code("node-2", &raw.code_images("node-1").unwrap()[0]).unwrap().is_some());
    assert!(profiledb::check(&store.join("raw")).unwrap().is_empty());
    let report = dcpi().args(["prof", "--db"]).arg(store.join("raw")).output().unwrap();
    assert!(said(&report).contains("tool"), "{}", said(&report));
    assert_eq!(said(&push(&db, to, &[])), format!("{to}: nothing new\n"));
    // What was sent may be forgotten: the same epochs, in other files now, are there already.
    fs::remove_dir_all(db.root().with_file_name("state")).unwrap();
    let mut writer = Writer::open(&db.root(), "node-1").unwrap();
    while writer.fold(u64::MAX, u64::MAX).unwrap().more {}
    drop(writer);
    let again = push(&db, to, &["--with", "pids,homes"]);
    assert_eq!(again.status.code(), Some(0), "{}", said(&again));
    assert_eq!(said(&again), format!("{to}: nothing new\n"));
    profiledb::seal(&Database::open(&db.root()).unwrap(), "node-2").unwrap();
    assert_eq!(said(&push(&db, to, &[])), format!("{to}: 1 epoch, code of 0 images\n"));
    assert_eq!(samples(&store.join("raw")).len(), 3);
}

/// The reader of a store has neither the stripped program nor its debug file.
#[test]
fn names_that_the_host_has_leave_with_the_epoch() {
    let db = Db::new();
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (program, debug, source) = (at("program"), at("program.debug"), at("program.c"));
    let text = "static __attribute__((noinline)) int hidden(int a) { return a * 3; }\n\
                int main(int n, char **v) { (void)v; return hidden(n); }\n";
    fs::write(&source, text).unwrap();
    let run = |words: &[&str]| {
        assert!(Command::new(words[0]).args(&words[1..]).status().unwrap().success(), "{words:?}");
    };
    run(&["cc", "-O1", "-g", "-Wl,--build-id", "-o", &program, &source]);
    let (known, _) = image::procedures(Path::new(&program), None, &[]).unwrap();
    let hidden = known.iter().find(|procedure| procedure.name() == "hidden").unwrap();
    run(&["objcopy", "--only-keep-debug", &program, &debug]);
    run(&["objcopy", "--strip-all", &format!("--add-gnu-debuglink={debug}"), &program]);

    let mut writer = Writer::open(&db.root(), "node").unwrap();
    let start = EpochStart { events: vec![clock()], now_unix_s: START, ..EpochStart::default() };
    writer.begin(start, true).unwrap();
    let mut delta = Delta { now_unix_s: START + 60, ..Delta::default() };
    let mut of = image(ImageKind::File, "program", &program);
    of.id = identify_file(&fs::File::open(&program).unwrap()).unwrap();
    let (event, period) = (clock().name, clock().period);
    let key = ProfileKey::samples(of.id, &event, period, Scope::default());
    delta.profiles.insert(key, Profile::from_counts([(hidden.start, 7)]).into());
    delta.images.insert(of.id, of.clone());
    let seven = Ledger { taken: 7, merged: 7, ..Ledger::default() };
    delta.ledgers.entry(&event, period).add(&seven);
    writer.merge(&delta).unwrap();
    writer.seal(START + 120).unwrap();
    drop(writer);
    db.keep("node", Path::new(&program));

    let sent = |to: &str, arguments: &[&str]| {
        fs::create_dir(to).unwrap();
        let pushed = push(&db, to, arguments);
        assert_eq!(pushed.status.code(), Some(0), "{}", said(&pushed));
        let raw = Database::open(&Path::new(to).join("raw")).unwrap();
        let epoch = raw.epoch("node", &raw.epochs("node").unwrap()[0]).unwrap();
        epoch.symbols(&of.id).unwrap()
    };
    let expected = Symbol { start: hidden.start.0, end: hidden.end.0, name: "hidden".to_owned() };
    let metrics = at("push.prom");
    assert_eq!(sent(&at("store"), &["--metrics", &metrics]), [expected]);
    let told = fs::read_to_string(&metrics).unwrap();
    for line in
        ["dcpi_push_attempts_total 1", "dcpi_push_failures_total 0", "dcpi_push_objects_total 1"]
    {
        assert!(told.lines().any(|told| told == line), "{line}: {told}");
    }
    assert!(told.contains("\ndcpi_push_last_success_timestamp_seconds 1"), "{told}");
    assert_eq!(sent(&at("other"), &["--without", "code"]), []);

    // Elsewhere there is only what was sent.
    fs::remove_file(&program).unwrap();
    fs::remove_file(&debug).unwrap();
    let report = dcpi().args(["prof", "--db", &at("store/raw")]).output().unwrap();
    assert!(said(&report).contains("hidden"), "{}", said(&report));
}

#[test]
fn two_machines_of_one_name_are_told_and_neither_is_lost_silently() {
    let (one, other) = (Db::new(), Db::new());
    epoch(&one, "node", "boot-1", (0, 10), true);
    epoch(&other, "node", "boot-2", (0, 20), true);
    epoch(&other, "node", "boot-2", (1000, 40), true);
    let store = store(&one);
    let to = store.to_str().unwrap();
    assert_eq!(push(&one, to, &[]).status.code(), Some(0));
    let output = push(&other, to, &[]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let expected = "epoch 20261105-101500 of node is not sent";
    assert!(said(&output).contains(expected), "{}", said(&output));
    assert!(said(&output).contains("a host name of its own"), "{}", said(&output));
    // The other epoch of that machine is not held up.
    assert_eq!(samples(&store.join("raw")).values().sum::<u64>(), 2 * (10 + 40));
}

#[test]
fn what_may_not_leave_a_host_does_not() {
    let db = Db::new();
    epoch(&db, "node", "boot", (0, 10), true);
    let left = |arguments: &[&str]| {
        let store = tempfile::tempdir().unwrap();
        let state = tempfile::tempdir().unwrap();
        let mut command = dcpi();
        command.args(["push", "--from"]).arg(db.root()).arg("--to").arg(store.path());
        let output = command.arg("--state").arg(state.path()).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let raw = Database::open(&store.path().join("raw")).unwrap();
        let epoch = raw.epoch("node", &raw.epochs("node").unwrap()[0]).unwrap();
        let mut words: BTreeSet<String> = BTreeSet::new();
        for (id, record) in epoch.images().unwrap() {
            words.extend([record.name, record.path]);
            words.extend(epoch.symbols(&id).unwrap().into_iter().map(|symbol| symbol.name));
        }
        for scope in epoch.scopes().unwrap() {
            words.extend(scope.unit);
            words.extend(scope.pid.map(|pid| format!("pid {pid}")));
        }
        for key in epoch.stacks_keys() {
            for (_, thread, _) in epoch.stacks(&key).unwrap().values() {
                let Thread { command, pid, name, tid, attributes: _ } = thread;
                words.extend([format!("thread {command} {pid} {name} {tid}")]);
            }
        }
        assert_eq!(samples(&store.path().join("raw")).values().sum::<u64>(), 20);
        words
    };
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let by_default: BTreeSet<String> =
        words(&["[jit] node", "tool", "~/tool", "web.service", "thread node 0  0"]);
    assert_eq!(left(&[]), by_default);
    let less: BTreeSet<String> = words(&["[jit] node", "tool", "~/tool"]);
    assert_eq!(left(&["--without", "units,stacks"]), less);
    let all: BTreeSet<String> = words(&[
        "[jit] node 77",
        "tool",
        "/home/alice/bin/tool",
        "secretOfAlice",
        "web.service",
        "pid 77",
        "thread node 77 alices-thread 78",
    ]);
    assert_eq!(left(&["--with", "pids,threads,homes,generated"]), all);
    let refused = push(&db, "otlp+http://127.0.0.1:1", &["--with", "pids"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(said(&refused).contains("are for stores"), "{}", said(&refused));
}

/// What a receiver does wrong with a request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Fault {
    /// It answers that it is busy.
    Busy,
    /// It ends the connection before it does anything.
    Deaf,
    /// It does what is asked, and ends the connection without an answer.
    Dumb,
    /// It kills the client when it has done what was asked.
    Kills,
}

#[derive(Default)]
struct Objects {
    by_key: BTreeMap<String, Vec<u8>>,
    requests: usize,
    /// The request that goes wrong, counted from 0, and how.
    fault: Option<(usize, Fault)>,
    client: u32,
}

/// A receiver that keeps objects in memory.
fn receiver() -> (String, Arc<Mutex<Objects>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("dcpi+http://{}/fleet", listener.local_addr().unwrap());
    let objects = Arc::new(Mutex::new(Objects::default()));
    let kept = Arc::clone(&objects);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            answer(stream.unwrap(), &mut kept.lock().unwrap());
        }
    });
    (url, objects)
}

fn answer(mut stream: TcpStream, objects: &mut Objects) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut head, mut length) = (Vec::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if let Some(number) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = number.trim().parse().unwrap();
        }
        head.push(line.to_owned());
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let fault = objects.fault.filter(|(at, _)| *at == objects.requests).map(|(_, fault)| fault);
    objects.requests += 1;
    let words: Vec<&str> = head[0].split(' ').collect();
    let (code, body) = match (fault, words[0]) {
        (Some(Fault::Deaf), _) => return,
        (Some(Fault::Busy), _) => (503, b"busy".to_vec()),
        (_, "PUT") => {
            let only_new = |line: &String| line.eq_ignore_ascii_case("If-None-Match: *");
            assert!(head.iter().any(only_new), "{head:?}");
            let code = match objects.by_key.contains_key(words[1]) {
                true => 412,
                false => 201,
            };
            objects.by_key.entry(words[1].to_owned()).or_insert(body);
            (code, Vec::new())
        }
        (_, asked) => match (objects.by_key.get(words[1]), asked) {
            (None, _) => (404, Vec::new()),
            (Some(_), "HEAD") => (200, Vec::new()),
            (Some(body), _) => (200, body.clone()),
        },
    };
    match fault {
        Some(Fault::Dumb) => return,
        Some(Fault::Kills) => {
            let client = objects.client.to_string();
            std::process::Command::new("kill").args(["-9", &client]).status().unwrap();
            return;
        }
        _ => {}
    }
    let head = format!("HTTP/1.1 {code} x\r\nContent-Length: {}\r\n\r\n", body.len());
    // The client may be gone.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
}

/// At every request of a push the receiver fails in each way once; another push goes on.
#[test]
fn whatever_a_receiver_does_each_epoch_arrives_once() {
    let db = Db::new();
    epoch(&db, "node-1", "boot", (0, 10), true);
    epoch(&db, "node-1", "boot", (1000, 20), true);
    let state = db.root().with_file_name("state");
    let mut kills = 0;
    for fault in [Fault::Busy, Fault::Deaf, Fault::Dumb, Fault::Kills] {
        for at in 0.. {
            let (url, objects) = receiver();
            let _ = fs::remove_dir_all(&state);
            objects.lock().unwrap().fault = Some((at, fault));
            let mut attempts = 0;
            loop {
                attempts += 1;
                assert!(attempts < 4, "{fault:?} at {at}");
                let mut command = dcpi();
                command.args(["push", "--to", &url, "--from"]).arg(db.root());
                command.arg("--state").arg(&state);
                command.stdout(std::process::Stdio::null());
                // The client cannot send before its number is known.
                let mut locked = objects.lock().unwrap();
                let mut child = command.spawn().unwrap();
                locked.client = child.id();
                drop(locked);
                let status = child.wait().unwrap();
                kills += u32::from(status.code().is_none());
                if status.code() == Some(0) {
                    break;
                }
            }
            let objects = objects.lock().unwrap();
            let raw = tempfile::tempdir().unwrap();
            for (key, bytes) in &objects.by_key {
                let path = raw.path().join(key.strip_prefix("/fleet/").unwrap());
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, bytes).unwrap();
            }
            let there = samples(&raw.path().join("raw"));
            assert_eq!(there.into_values().collect::<Vec<_>>(), [20, 40], "{fault:?} at {at}");
            if objects.requests <= at {
                assert!(at >= 4, "a push has some requests: {at}");
                break;
            }
        }
    }
    assert!(kills >= 4, "{kills} pushes were killed");
}

/// Runs a push with these arguments until the store has two epochs or the time is over: the epochs
/// that are there.
fn push_a_while(db: &Db, to: &Path, arguments: &[&str], time: Duration) -> Vec<String> {
    let mut command = dcpi();
    command.args(["push", "--every", "1s", "--to"]).arg(to).arg("--from").arg(db.root());
    command.arg("--state").arg(db.root().with_file_name("state")).args(arguments);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    let is_there = || samples(&to.join("raw")).len() == 2;
    while begun.elapsed() < time && !(to.join("raw/format").exists() && is_there()) {
        std::thread::sleep(Duration::from_millis(50));
    }
    Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    samples(&to.join("raw")).into_keys().collect()
}

#[test]
fn an_epoch_waits_for_its_moment_within_the_spread() {
    let db = Db::new();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    // It ends now, and its moment is hours away.
    epoch_at(&db, "node", "boot", (now - 3 * 86_400, 10), true);
    epoch_at(&db, "node", "boot", (now - 120, 20), true);
    let store = store(&db);
    let sent = push_a_while(&db, &store, &["--spread", "24h"], Duration::from_secs(3));
    assert_eq!(sent.len(), 1, "{sent:?}");
    // The unit passes an empty text where no spread is set.
    let sent = push_a_while(&db, &store, &["--spread", ""], Duration::from_secs(60));
    assert_eq!(sent.len(), 2, "{sent:?}");
    let refused = push(&db, "otlp+http://127.0.0.1:1", &["--every", "1s", "--spread", "1h"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(said(&refused).contains("--spread are for stores"), "{}", said(&refused));
    let once = push(&db, store.to_str().unwrap(), &["--spread", "1h"]);
    assert_eq!(once.status.code(), Some(2));
    assert!(said(&once).contains("--every"), "{}", said(&once));
}

/// Bytes of code of a large program: node has as many.
const LARGE: usize = 92 << 20;
/// Memory for a push, a copy or an archive of it, in KiB: what the program has anyway (8 MiB are
/// the main thread's stack), and 32 MiB.
const MEMORY_KIB: u64 = 48 << 10;

/// A program of [`LARGE`] bytes that do not compress: one segment, which is all code.
fn large_program(path: &Path) {
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(16, 0);
    // ET_EXEC, EM_X86_64, EV_CURRENT; entry; program headers behind the file header, no sections.
    elf.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    elf.extend([0x40_0000_u64, 64, 0].iter().flat_map(|value| value.to_le_bytes()));
    elf.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 64, 0, 0, 0, 0, 0]);
    // PT_LOAD, readable and executable, all of the file.
    elf.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    let (place, size) = (0x40_0000, LARGE as u64);
    elf.extend([0, place, place, size, size, 4096].iter().flat_map(|value| value.to_le_bytes()));
    let mut random = fastrand::Rng::with_seed(42);
    elf.resize_with(LARGE, || random.u8(..));
    fs::write(path, elf).unwrap();
}

/// A node of 64 MB took 255 MB of memory, and the push of a whole host with it was killed three
/// times and never came further.
#[test]
fn a_large_program_is_passed_on_in_little_memory() {
    let db = Db::new();
    let program = db.root().with_file_name("node");
    large_program(&program);
    db.keep("node-1", &program);
    for at in 0..42 {
        epoch_of(&db, "node-1", "boot", (START + 1000 * at, 10), (true, &program));
    }
    let (url, objects) = receiver();
    let (copy, tar) = (db.root().with_file_name("copy"), db.root().with_file_name("all.tar.gz"));
    let (copy, tar) = (copy.to_str().unwrap(), tar.to_str().unwrap());
    let (store, state) = (store(&db), db.root().with_file_name("state"));
    let limited = |arguments: &[&str]| {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("ulimit -d {MEMORY_KIB} && exec \"$0\" \"$@\"")]);
        shell.arg(dcpi().get_program()).args(arguments).arg("--db").arg(db.root());
        let output = shell.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", said(&output));
        said(&output)
    };
    let state = state.to_str().unwrap();
    for to in [store.to_str().unwrap(), &url] {
        let said = limited(&["push", "-o", to, "--state", state]);
        assert_eq!(said, format!("{to}: 42 epochs, code of 1 image\n"));
    }
    let said = limited(&["copy", "-o", copy]);
    assert!(said.contains("42 epochs copied") && said.contains("code of 1 image"), "{said}");
    let said = limited(&["tar", "-o", tar, "--epoch", "all"]);
    assert!(said.contains("42 epochs, code of 1 images"), "{said}");
    assert!(profiledb::check(Path::new(copy)).unwrap().is_empty());
    let kept = |of: &Path| {
        let code = fs::read_dir(of).unwrap().next().unwrap().unwrap();
        fs::read(code.path()).unwrap()
    };
    let ours = kept(&db.root().join("hosts/node-1/code"));
    assert!(ours.len() > LARGE);
    assert!(kept(&store.join("raw/code")) == ours, "as it was");
    let objects = objects.lock().unwrap();
    let sent = objects.by_key.iter().find(|(key, _)| key.contains("/code/")).unwrap();
    assert!(*sent.1 == ours, "as it was");
}

/// A record of what was sent that cannot be opened now, as on a full disk, ends no service.
#[test]
fn what_fails_for_a_moment_is_tried_again() {
    let db = Db::new();
    epoch(&db, "node", "boot", (0, 10), true);
    let (store, state) = (store(&db), db.root().with_file_name("state"));
    fs::write(&state, "in the way").unwrap();
    let mut command = dcpi();
    command.args(["push", "--every", "1s", "-o"]).arg(&store).arg("--db").arg(db.root());
    let mut child = command.arg("--state").arg(&state).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.contains("cannot keep what was sent in"), "{first}");
    assert!(first.ends_with("dcpi tries again, first in 2 s"), "{first}");
    fs::remove_file(&state).unwrap();
    let second = lines.next().unwrap().unwrap();
    assert!(second.ends_with("takes profiles again"), "{second}");
    assert_eq!(samples(&store.join("raw")).len(), 1);
    Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn stores_that_cannot_be_are_told_in_one_line() {
    let db = Db::new();
    epoch(&db, "node", "boot", (0, 10), true);
    for (to, expected) in [
        ("/no/such/directory", "no such directory; make it, or mount it"),
        ("dcpi+http://127.0.0.1", "must be dcpi+http://HOST:PORT[/PATH]"),
        ("ftp://x", "must be otlp+http://HOST[:PORT][/PATH]"),
    ] {
        let output = push(&db, to, &[]);
        assert_eq!(output.status.code(), Some(2), "{to}: {}", said(&output));
        assert!(said(&output).contains(expected), "{to}: {}", said(&output));
    }
}

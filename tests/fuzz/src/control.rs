//! The control socket, as dcpid reads requests and as clients read replies; the loader's notices.

use crate::{choice, memory_directory};
use address_spaces::jit::Jit;
use address_spaces::loader_notices::Notices;
use address_spaces::mappings::Mappings;
use address_spaces::system::System;
use pipeline::status_text;
use std::cell::RefCell;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex};
use wire::{Client, REQUEST_BYTES_MAX, Registration, Reply, Request};

/// Handles a line that a client sends.
pub fn request(bytes: &[u8]) {
    let line = bytes.get(..REQUEST_BYTES_MAX).unwrap_or(bytes);
    let request = match Request::decode(line) {
        Ok(request) => request,
        Err(error) => {
            let reply = Reply::error(error.to_string()).encode().unwrap();
            assert!(reply.iter().filter(|byte| **byte == b'\n').count() == 1);
            return;
        }
    };
    let again = request.encode().unwrap();
    assert_eq!(Request::decode(&again).unwrap(), request);
    match request {
        Request::Register(told) => {
            // With this process's number, which exists, and without a file, which the ELF fuzzer
            // covers.
            let told = Registration { pid: std::process::id(), file: None, ..told };
            let mut jit = Jit::new(1, System::default());
            if jit.register(&told, 1).is_ok() {
                jit.unregister(told.pid, told.start).unwrap();
            }
        }
        Request::Label { label, .. } => drop(profiledb::check_label(&label)),
        Request::Epoch { label: Some(label) } => drop(profiledb::check_label(&label)),
        _ => {}
    }
}

/// Requests of every kind.
#[must_use]
pub fn request_seeds() -> Vec<Vec<u8>> {
    let label = "a label".to_owned();
    let registration = Registration {
        pid: 1,
        start: 0x7f00_0000_1000,
        len: 4096,
        name: "name".into(),
        image: Some("image".into()),
        file: Some("/usr/bin/cat".into()),
        offset: 4096,
    };
    let all = [
        Request::Status,
        Request::Flush,
        Request::Epoch { label: Some(label.clone()) },
        Request::Label { pid: Some(7), start_time: Some(9), label },
        Request::Counts { watch: 3, user: Some(1000) },
        Request::Quit,
        Request::Register(registration),
        Request::Unregister { pid: 7, start: 4096 },
    ];
    all.iter().map(|request| request.encode().unwrap()).collect()
}

/// A socket that answers every request with the same bytes.
static SERVER: LazyLock<(PathBuf, Arc<Mutex<Vec<u8>>>)> = LazyLock::new(|| {
    let path = memory_directory().keep().join("control.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let answer = Arc::new(Mutex::new(Vec::new()));
    let shared = answer.clone();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            BufReader::new(&client).read_line(&mut String::new()).unwrap();
            client.write_all(&shared.lock().unwrap()).unwrap();
        }
    });
    (path, answer)
});

/// Reads the bytes as a client reads dcpid's replies.
pub fn reply(bytes: &[u8]) {
    let Some((choice, answer)) = choice(bytes) else { return };
    let (path, shared) = &*SERVER;
    answer.clone_into(&mut shared.lock().unwrap());
    let client = Client::new(path);
    let error = match choice % 3 {
        0 => client.ask(&Request::Flush).err(),
        1 => client.counts(7).err(),
        _ => match client.status() {
            Ok(status) => {
                assert!(!status_text::text(&status, 1_700_000_000).is_empty());
                None
            }
            Err(error) => Some(error),
        },
    };
    drop(error.map(|error| error.to_string()));
}

/// Replies of every kind.
#[must_use]
pub fn reply_seeds() -> Vec<Vec<u8>> {
    let status = Reply { status: Some(Box::default()), ..Reply::default() };
    let counts = wire::Counts {
        since_ms: 2000,
        events: vec![wire::EventCounts::default()],
        images: vec![wire::ImageCounts::default()],
        ..wire::Counts::default()
    };
    let counts = Reply { counts: Some(Box::new(counts)), ..Reply::default() };
    let done =
        Reply { epoch: Some("e".into()), taken: Some(9), merged: Some(8), ..Reply::default() };
    [(0, done), (0, Reply::error("no")), (1, counts), (2, status)]
        .into_iter()
        .map(|(choice, reply)| [&[choice][..], &reply.encode().unwrap()].concat())
        .collect()
}

struct Loader {
    notices: Notices,
    sender: UnixDatagram,
    now_ns: u64,
}

thread_local! {
    static LOADER: RefCell<Loader> = RefCell::new({
        let path = memory_directory().keep().join("loader.sock");
        let notices = Notices::bind(&path).unwrap();
        let sender = UnixDatagram::unbound().unwrap();
        sender.connect(&path).unwrap();
        Loader { notices, sender, now_ns: 0 }
    });
}

/// Handles a datagram to the loader's socket.
pub fn notice(bytes: &[u8]) {
    LOADER.with_borrow_mut(|loader| {
        if loader.sender.send(bytes).is_err() {
            return; // longer than any datagram
        }
        loader.now_ns += 1_000_000_000;
        let before = loader.notices.counts().received;
        loader.notices.read(bytes.len().is_multiple_of(2), loader.now_ns);
        let mut mappings = Mappings::default();
        loader.notices.judge(&mut mappings, loader.now_ns);
        let counts = loader.notices.counts();
        assert_eq!(counts.received, counts.known + counts.learnt + counts.refused);
        assert!(counts.received >= before);
    });
}

/// Datagrams with objects that this process has mapped, and with others.
#[must_use]
pub fn notice_seeds() -> Vec<Vec<u8>> {
    use abi::notice::{DATAGRAM_MAX, LoaderNotice, begin, push};
    let mapped = kernel::procfs::executable_mappings("self").unwrap();
    let datagram = |objects: &[(u64, &[u8])]| {
        let mut buffer = [0; DATAGRAM_MAX];
        let mut used = begin(&mut buffer, 1).unwrap();
        for (start, build_id) in objects {
            let end = start.wrapping_add(1);
            let object = LoaderNotice { base: 0, start: *start, end, build_id, path: b"/x" };
            used = push(&mut buffer, used, &object).unwrap();
        }
        buffer[..used].to_vec()
    };
    let of_mapped: Vec<(u64, &[u8])> = mapped.iter().map(|line| (line.start, &[][..])).collect();
    vec![
        datagram(&[]),
        datagram(&[(0x1000, &[7; 20])]),
        datagram(&[(0x1000, &[]), (u64::MAX, &[1])]),
        datagram(&of_mapped[..of_mapped.len().min(4)]),
    ]
}

//! Traces of `dcpi trace` and of other tools, from untrusted sources.
//!
//! An input is a file, or, after a zero byte, the contents of chunks, which are packed and get
//! correct checksums. Each chunk is a kind (a byte), a length (two bytes), and its bytes.

use std::io::Write as _;
use trace::formats::{self, Format};
use trace::{Event, EventKind, Facts, Name, NameId, NameKind, Thread, ThreadId, Trace, gantt};

/// A trace with these chunks.
fn of_chunks(mut bytes: &[u8]) -> Vec<u8> {
    let mut file = b"\x89DCPITR\n\x01\0\0\0".to_vec();
    while let Some(([kind, low, high], rest)) = bytes.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (plain, after) = rest.split_at(length);
        let mut packer =
            flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::none());
        packer.write_all(plain).unwrap();
        let stored = packer.finish().unwrap();
        let mut header = vec![*kind, 0, 0, 0];
        header.extend((stored.len() as u32).to_le_bytes());
        header.extend((plain.len() as u32).to_le_bytes());
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&header), &stored);
        file.extend(header);
        file.extend(checksum.to_le_bytes());
        file.extend(stored);
        bytes = after;
    }
    file
}

/// Reads a trace as `dcpi trace FILE` does, writes it in every format, and draws it.
pub fn read(bytes: &[u8]) {
    let made = bytes.strip_prefix(&[0]).map(of_chunks);
    let read = formats::read(made.as_deref().unwrap_or(bytes));
    let Ok(trace) = read else { return };
    assert!(trace.corrected.is_empty() || trace.corrected.len() == trace.events.len());
    assert!(
        trace
            .events
            .iter()
            .all(|event| { trace.name(event).is_some() && trace.thread(event).is_some() })
    );
    for format in [Format::Own, Format::Text, Format::Json, Format::Chrome, Format::Perfetto] {
        let mut out = Vec::new();
        formats::write(&trace, format, &mut out).unwrap();
        if format == Format::Own {
            let again = formats::read(out.as_slice()).unwrap();
            assert_eq!((again.events.len(), again.cut), (trace.events.len(), None));
        }
    }
    assert!(gantt::html(&trace).ends_with("</html>\n"));
}

/// A small trace in every format, its chunks apart, and lines of other tools.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let event = |time_ns, kind, name| Event {
        time_ns,
        kind,
        name: NameId(name),
        thread: ThreadId(0),
        argument: 3,
        cpu: trace::event::Cpu::new(1),
    };
    let trace = Trace {
        facts: Facts { command: vec!["a".into()], ..Facts::default() },
        names: ["f", "read"].map(|name| Name::new(NameKind::Procedure, name)).to_vec(),
        threads: vec![Thread { pid: 7, tid: 8, command: "a".into() }],
        events: vec![
            event(1000, EventKind::Enter, 0),
            event(1100, EventKind::SyscallEnter, 1),
            event(1150, EventKind::SwitchOut, 1),
            event(1160, EventKind::SwitchIn, 1),
            event(1200, EventKind::SyscallExit, 1),
            event(1300, EventKind::Instant, 0),
            event(1400, EventKind::Exit, 0),
        ],
        ..Trace::default()
    };
    let formats = [Format::Own, Format::Text, Format::Chrome, Format::Perfetto];
    let mut seeds = formats.map(|format| {
        let mut out = Vec::new();
        formats::write(&trace, format, &mut out).unwrap();
        out
    });
    let mut chunks = vec![0];
    let mut chunk = |kind: u8, plain: &[u8]| {
        chunks.push(kind);
        chunks.extend((plain.len() as u16).to_le_bytes());
        chunks.extend(plain);
    };
    chunk(1, b"{\"command\":[\"a\"]}");
    chunk(2, b"[{\"kind\":\"procedure\",\"text\":\"f\"}]");
    chunk(3, b"[[0,{\"pid\":7,\"tid\":8}]]");
    // Two events, a pair each of kind and name 0, with corrected times.
    chunk(4, &[0, 2, 1, 2, 1, 0, 2, 0, 0, 1, 200, 1, 4, 2, 1, 0, 0, 1, 2, 2, 0, 2, 2]);
    chunk(5, b"2");
    let uftrace = b"uftrace file header: version = 4\n1.5  7: [entry] f(400) depth: 0\n\
        1.6  7: [exit ] f(400) depth: 0\n"
        .to_vec();
    let script = b"w 7/8 [000] 1.5: probe_w:f: (55)\nw 7 1.6: sched:sched_switch: \
        prev_comm=w prev_pid=7 prev_state=S ==> next_comm=x next_pid=9\n"
        .to_vec();
    seeds.iter_mut().map(std::mem::take).chain([chunks, uftrace, script]).collect()
}

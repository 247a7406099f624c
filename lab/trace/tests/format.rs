//! Traces written and read back: whole, cut, damaged.

use trace::event::Cpu;
use trace::{
    Corrected, Event, EventKind, Facts, Lost, Name, NameKind, Thread, Trace, Writer, reader, writer,
};

/// Two threads, three names, calls that nest.
fn example(events: usize) -> Trace {
    let facts = Facts {
        command: vec!["lua".into(), "a b.lua".into()],
        clock: "CLOCK_MONOTONIC".into(),
        lost: vec![Lost { name: "luaV_execute".into(), reason: "ring_full".into(), events: 3 }],
        ..Facts::default()
    };
    let mut procedure = Name::new(NameKind::Procedure, "luaV_execute");
    (procedure.image, procedure.offset) = ("/usr/bin/lua5.4".into(), Some(0x1234));
    let names =
        vec![procedure, Name::new(NameKind::Syscall, "read"), Name::new(NameKind::Sched, "switch")];
    let threads = vec![
        Thread { pid: 10, tid: 10, command: "lua".into() },
        Thread { pid: 10, tid: 11, command: "worker".into() },
    ];
    let event = |at: usize| {
        let number = at as u64;
        let kinds = [EventKind::Enter, EventKind::SyscallEnter, EventKind::SyscallExit];
        let kind = *kinds.get(at % 4).unwrap_or(&EventKind::Exit);
        Event {
            time_ns: 1_000_000 + number * 731 + number * number % 97,
            argument: if kind == EventKind::SyscallExit { 4096 } else { 0 },
            thread: trace::ThreadId((at / 4 % 2) as u32),
            name: trace::NameId(u32::from(at % 4 == 1 || at % 4 == 2)),
            cpu: Cpu::new((at / 8) as u32 % 2),
            kind,
        }
    };
    let events = (0..events).map(event).collect();
    Trace { facts, names, threads, events, corrected: Vec::new(), cut: None }
}

#[allow(clippy::unwrap_used, reason = "a vector takes all bytes")]
fn bytes(trace: &Trace) -> Vec<u8> {
    writer::write(trace, Vec::new()).unwrap().1
}

#[test]
fn a_trace_comes_back_as_it_was() {
    let mut trace = example(20_000);
    assert_eq!(reader::read(bytes(&trace).as_slice()).unwrap(), trace);
    trace.corrected = (trace.events.iter())
        .map(|event| Corrected {
            low_ns: event.time_ns - 300,
            value_ns: event.time_ns - 200,
            high_ns: event.time_ns,
        })
        .collect();
    assert_eq!(reader::read(bytes(&trace).as_slice()).unwrap(), trace);
}

#[test]
fn a_trace_of_one_name_and_even_times_is_small() {
    let (written, bytes) = writer::write(&example(100_000), Vec::new()).unwrap();
    assert_eq!(written.bytes, bytes.len() as u64);
    assert!(written.bytes_an_event() < 3.0, "{written:?}");
}

/// A tracer that is killed leaves what it has flushed; a reader says that this is not all.
#[test]
fn a_cut_trace_is_read_up_to_the_cut() {
    let trace = example(9_000);
    let whole = bytes(&trace);
    let mut counts = Vec::new();
    for length in (0..whole.len()).step_by(37) {
        match reader::read(whole.get(..length).unwrap()) {
            Err(reader::ReadError::NotATrace) => assert!(length < 12, "{length}"),
            Err(error) => panic!("{length}: {error}"),
            Ok(part) => {
                assert!(part.cut.is_some(), "{length}");
                counts.push(part.events.len());
            }
        }
    }
    assert!(counts.is_sorted());
    assert!(counts.contains(&4096) && counts.contains(&8192), "{counts:?}");
}

#[test]
fn a_damaged_byte_never_goes_unnoticed() {
    let trace = example(500);
    let whole = bytes(&trace);
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        *damaged.get_mut(at).unwrap() ^= 0x10;
        match reader::read(damaged.as_slice()) {
            // The two bytes after the version are not used.
            Ok(read) => assert!(read.cut.is_some() || (10..12).contains(&at), "byte {at}"),
            Err(_) => assert!(at < 10, "byte {at}"),
        }
    }
}

#[test]
fn a_later_release_is_named() {
    let mut later = bytes(&example(1));
    later[8] = 9;
    let error = reader::read(later.as_slice()).unwrap_err().to_string();
    assert_eq!(error, "its format 9 is newer than this dcpi (format 1); read it with a newer dcpi");
    assert!(matches!(reader::read(&b"# a text"[..]), Err(reader::ReadError::NotATrace)));
}

#[test]
fn what_is_flushed_is_readable_before_the_end() {
    let trace = example(10);
    let mut writer = Writer::new(Vec::new(), &trace.facts).unwrap();
    for thread in &trace.threads {
        writer.thread(thread.clone()).unwrap();
    }
    for event in &trace.events {
        let name = writer.name(trace.name(event).unwrap());
        writer.event(&Event { name, ..*event }).unwrap();
    }
    writer.set_thread(trace::ThreadId(1), Thread { pid: 10, tid: 11, command: "new".into() });
    writer.flush().unwrap();
    let (written, bytes) = writer.finish(&trace.facts).unwrap();
    assert_eq!(written.events, 10);
    let read = reader::read(bytes.as_slice()).unwrap();
    assert_eq!(read.threads[1].command, "new");
    assert_eq!(read.events, trace.events);
}

#[test]
fn an_event_of_no_thread_is_refused() {
    let mut writer = Writer::new(Vec::new(), &Facts::default()).unwrap();
    assert!(writer.event(&Event::default()).is_err());
}

//! Every format that is written is read back; what others write is in the formats' own tests.

use trace::event::Cpu;
use trace::formats::{self, Format};
use trace::{Corrected, Event, EventKind, Facts, Name, NameId, NameKind, Thread, ThreadId, Trace};

/// Two threads: calls, a system call within one, switches, a wake, a lock, a mark.
fn example() -> Trace {
    use EventKind::*;
    let kinds = [NameKind::Procedure, NameKind::Syscall, NameKind::Sched, NameKind::Sync];
    let names = ["ns::f(int) <x>", "read", "switch", "lock \"a\"", "wake", "line.c:7", "thread"];
    let kinds = kinds.into_iter().chain([NameKind::Sched, NameKind::Line, NameKind::Sched]);
    let names = kinds.zip(names).map(|(kind, text)| Name::new(kind, text)).collect();
    let threads = vec![
        Thread { pid: 10, tid: 10, command: "Web Content".into() },
        Thread { pid: 10, tid: 11, command: "w".into() },
    ];
    let rows = [
        (1_000_u64, 0, Enter, 0, 0),
        (1_500, 0, SyscallEnter, 1, 0),
        (1_600, 0, SwitchOut, 2, 0),
        (1_601, 1, SwitchIn, 2, 0),
        (1_700, 1, LockRequest, 3, 0xbeef),
        (1_800, 1, Wake, 4, 10),
        (1_850, 1, LockAcquire, 3, 0xbeef),
        (1_860, 1, Instant, 5, 0),
        (1_870, 1, LockRelease, 3, 0xbeef),
        (1_900, 1, SwitchOut, 2, 1),
        (1_901, 0, SwitchIn, 2, 0),
        (2_000, 0, SyscallExit, 1, (-4_i64).cast_unsigned()),
        (2_100, 0, Enter, 0, 0),
        (2_200, 0, Exit, 0, 0),
        (3_000, 0, Exit, 0, 0),
        (3_500, 1, SwitchIn, 2, 0),
        (3_600, 1, ThreadEnd, 6, 0),
    ];
    let event = |(time, thread, kind, name, argument)| Event {
        time_ns: 5_000_000_000_000 + time,
        argument,
        thread: ThreadId(thread),
        name: NameId(name),
        cpu: Cpu::new(thread),
        kind,
    };
    let facts =
        Facts { command: vec!["w".into()], clock: "CLOCK_MONOTONIC".into(), ..Facts::default() };
    Trace { facts, names, threads, events: rows.map(event).to_vec(), ..Trace::default() }
}

fn corrected(mut trace: Trace) -> Trace {
    let times = trace.events.iter().map(|event| event.time_ns);
    let times = times.map(|time| Corrected { low_ns: time - 9, value_ns: time - 5, high_ns: time });
    trace.corrected = times.collect();
    trace
}

#[allow(clippy::unwrap_used, reason = "a vector takes all bytes")]
fn written(trace: &Trace, format: Format) -> Vec<u8> {
    let mut bytes = Vec::new();
    formats::write(trace, format, &mut bytes).unwrap();
    bytes
}

/// Time, thread, kind, name, argument and CPU.
type Told = (u64, u32, EventKind, NameKind, String, u64, Option<u32>);

/// Events by content, independent of the numbers of names and threads.
#[allow(clippy::unwrap_used, reason = "a trace that was read has all names and threads")]
fn told(trace: &Trace, with_cpu: bool) -> Vec<Told> {
    let row = |event: &Event| {
        let (name, thread) = trace.name(event).zip(trace.thread(event)).unwrap();
        let cpu = event.cpu.map(Cpu::number).filter(|_| with_cpu);
        let text = name.text.clone();
        (event.time_ns, thread.tid, event.kind, name.kind, text, event.argument, cpu)
    };
    trace.events.iter().map(row).collect()
}

#[test]
fn our_own_and_text_lose_nothing_of_events() {
    for trace in [example(), corrected(example())] {
        let own = formats::read(written(&trace, Format::Own).as_slice()).unwrap();
        assert_eq!(own, trace);
        let text = formats::read(written(&trace, Format::Text).as_slice()).unwrap();
        assert_eq!(text.corrected, trace.corrected);
        assert_eq!(text.threads, trace.threads);
        assert_eq!(text.facts.command, ["w"]);
        // The text format has no kinds of names; the kind of an instant's name is lost.
        let mut expected = told(&trace, true);
        expected.iter_mut().filter(|row| row.3 == NameKind::Line).for_each(|row| {
            row.3 = NameKind::Other;
        });
        assert_eq!(told(&text, true), expected);
    }
}

#[test]
fn chromes_json_comes_back_but_for_cpus() {
    for trace in [example(), corrected(example())] {
        let bytes = written(&trace, Format::Chrome);
        let read = formats::read(bytes.as_slice()).unwrap();
        assert_eq!(told(&read, false), told(&trace, false));
        assert_eq!(read.threads[1].command, "w");
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        let lock = json["traceEvents"].as_array().unwrap();
        let lock = lock.iter().find(|event| event["cat"] == "sync").unwrap();
        assert_eq!((&lock["ph"], &lock["ts"]), (&"X".into(), &5_000_000_001.7.into()));
        assert_eq!(lock["args"]["corrected_begin_us"].is_object(), !trace.corrected.is_empty());
    }
}

#[test]
fn perfettos_packets_come_back() {
    for trace in [example(), corrected(example())] {
        let read = formats::read(written(&trace, Format::Perfetto).as_slice()).unwrap();
        // A thread's first switch may be in; then nothing began that it could end.
        let mut expected = told(&trace, true);
        expected.retain(|row| row.0 != 5_000_000_001_601);
        assert_eq!(told(&read, true), expected);
        assert_eq!(read.threads[0].command, "Web Content");
    }
}

#[test]
fn json_lines_have_every_field() {
    let trace = corrected(example());
    let text = String::from_utf8(written(&trace, Format::Json)).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), trace.events.len() + 1);
    assert_eq!(lines[0]["schema"]["name"], "dcpi.trace-events");
    assert_eq!(lines[0]["facts"]["clock"], "CLOCK_MONOTONIC");
    let exit = &lines[12];
    assert_eq!((&exit["kind"], &exit["argument"]), (&"syscall_exit".into(), &(-4).into()));
    assert_eq!(exit["time_ns"]["value"], 5_000_000_001_995_u64);
    let plain = String::from_utf8(written(&example(), Format::Json)).unwrap();
    assert!(plain.lines().nth(1).unwrap().contains("\"low\":null"), "{plain}");
}

/// Returns that are missing, and returns without entries: no format makes calls of them.
#[test]
fn unbalanced_calls_stay_balanced_for_other_tools() {
    let mut trace = example();
    trace.events.retain(|event| event.kind != EventKind::SyscallExit);
    let event = trace.events[0];
    trace.events.insert(0, Event { kind: EventKind::Exit, time_ns: event.time_ns - 1, ..event });
    let counts =
        |trace: &Trace, kind| trace.events.iter().filter(|event| event.kind == kind).count();
    for format in [Format::Chrome, Format::Perfetto] {
        let read = formats::read(written(&trace, format).as_slice()).unwrap();
        assert_eq!(counts(&read, EventKind::Enter), 2, "{format:?}");
        assert_eq!(counts(&read, EventKind::Exit), 2, "{format:?}");
        assert_eq!(counts(&read, EventKind::SyscallExit), 1, "{format:?}: the call's around it");
    }
}

/// Strangers' files: whatever the bytes are, no panic, and nothing larger than they are.
#[test]
fn hostile_files_are_refused_or_read() {
    let trace = example();
    for format in [Format::Own, Format::Text, Format::Chrome, Format::Perfetto] {
        let whole = written(&trace, format);
        for length in 0..whole.len() {
            let read = formats::read(&whole[..length]);
            assert!(read.is_err() || read.unwrap().events.len() <= trace.events.len() + 2);
        }
        let mut random = 1_u64;
        for _ in 0..2000 {
            let mut damaged = whole.clone();
            for _ in 0..3 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (random >> 33) as usize % damaged.len();
                damaged[at] = (random >> 24) as u8;
            }
            if let Ok(read) = formats::read(damaged.as_slice()) {
                assert!(read.events.len() <= 4 * trace.events.len());
            }
        }
    }
}

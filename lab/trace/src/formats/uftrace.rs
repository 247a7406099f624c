//! Reads the output of `uftrace dump` (uftrace 0.15 to 0.18): lines of entries and returns, thread
//! by thread.
//!
//! `26355.265003313  32655: [entry] foo(56251736a1d8) depth: 1`

use super::collect::{Collector, Seen};
use super::seconds_to_ns;
use crate::event::{EventKind, NameKind, Trace};
use crate::reader::ReadError;

pub(super) fn is_begin(bytes: &[u8]) -> bool {
    bytes.starts_with(b"uftrace file header:")
}

pub(super) fn read(bytes: &[u8]) -> Result<Trace, ReadError> {
    let mut collector = Collector::default();
    // uftrace's default clock (uftrace-record(1), --clock).
    collector.trace.facts.clock = "CLOCK_MONOTONIC".into();
    for line in super::lines(bytes) {
        let is_head = line.starts_with("uftrace file header:") || line.starts_with("reading ");
        if is_head || line.trim().is_empty() {
            continue;
        }
        if read_line(&line, &mut collector).is_none() {
            collector.skipped += 1;
        }
    }
    collector.finish("a dump of uftrace", "uftrace dump")
}

fn read_line(line: &str, collector: &mut Collector) -> Option<()> {
    let (time, rest) = line.trim_start().split_once(char::is_whitespace)?;
    let time_ns = seconds_to_ns(time)?;
    let (tid, rest) = rest.trim_start().split_once(": ")?;
    let tid = tid.parse().ok()?;
    let (kind, rest) = rest.trim_start().strip_prefix('[')?.split_once("] ")?;
    // The dump has no process numbers: each thread is its own.
    let who = (tid, tid);
    let (kind, name) = match kind.trim() {
        // The address is in the last parentheses before the depth.
        "entry" => (EventKind::Enter, (NameKind::Procedure, procedure(rest)?)),
        "exit" => (EventKind::Exit, (NameKind::Procedure, procedure(rest)?)),
        "event" => {
            let text = rest.rsplit_once('(').map_or(rest, |(text, _)| text).trim();
            let kind = match text {
                "linux:sched-out" | "linux:sched-out (pre-empted)" => EventKind::SwitchOut,
                "linux:sched-in" => EventKind::SwitchIn,
                "linux:task-exit" => EventKind::ThreadEnd,
                _ => EventKind::Instant,
            };
            match kind {
                EventKind::Instant => (kind, (NameKind::Other, text)),
                EventKind::ThreadEnd => (kind, (NameKind::Sched, "thread")),
                _ => (kind, (NameKind::Sched, "switch")),
            }
        }
        _ => return None, // arguments, lost records
    };
    let argument = u64::from(rest.contains("(pre-empted)"));
    collector.event(&Seen { time_ns, who, cpu: None, kind, argument, name });
    Some(())
}

/// `foo(56251736a1d8) depth: 1`
fn procedure(text: &str) -> Option<&str> {
    let (call, _) = text.rsplit_once(" depth: ")?;
    let (name, _) = call.rsplit_once('(')?;
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As uftrace 0.17 prints it.
    const DUMP: &str = "uftrace file header: version       = 4\n\n\
        reading 5186.dat\n\
        26355.265003253  32655: [entry] main(56251736a214) depth: 0\n\
        26355.265003313  32655: [entry] ns::f(int)(56251736a1d8) depth: 1\n\
        26355.265004274  32655: [exit ] ns::f(int)(56251736a1d8) depth: 1\n\
        26355.265010213  32655: [exit ] main(56251736a214) depth: 0\n\
        26355.2650  32655: [other] x\n\
        reading perf-cpu0.dat\n\
        26355.260637698  32655: [event] linux:sched-out (pre-empted)(200007)\n\
        26355.260655215  32655: [event] linux:sched-in(200001)\n\
        26355.265065776  32655: [event] linux:task-exit(200005)\n";

    #[test]
    fn a_dump_is_read() {
        let trace = super::super::read(DUMP.as_bytes()).unwrap();
        let kinds: Vec<EventKind> = trace.events.iter().map(|event| event.kind).collect();
        use EventKind::{Enter, Exit, SwitchIn, SwitchOut, ThreadEnd};
        assert_eq!(kinds, [SwitchOut, SwitchIn, Enter, Enter, Exit, Exit, ThreadEnd], "sorted");
        assert_eq!(trace.name(&trace.events[3]).unwrap().text, "ns::f(int)");
        assert_eq!(trace.events[0].argument, 1, "preempted");
        assert_eq!(trace.events[2].time_ns, 26_355_265_003_253);
        assert_eq!(trace.facts.notes, ["1 entries of a dump of uftrace were passed over"]);
    }
}

//! Lines of `perf script` (perf 5.10 to 6.18): command, thread, CPU, time, event and its fields.
//!
//! `w 32688 [000] 26355.567041:  probe_w:work: (555e421cd139)`
//!
//! Probes whose return is probed as well (`perf probe 'work%return'`, event `work__return`) are
//! calls; system calls, switches and wakes are what they are; every other event is an instant.

use std::collections::HashSet;

use super::collect::{Collector, Seen};
use super::seconds_to_ns;
use crate::event::{EventKind, NameKind, Trace};
use crate::reader::ReadError;

/// The suffix that perf appends to the name of a return probe.
const RETURN: &str = "__return";
/// System calls that the kernel's own trampolines of uprobes make (x86-64, Linux 6.11).
const OF_UPROBES: [&str; 3] = ["335", "336", "-1"];

/// A line, in its parts.
#[derive(Debug, PartialEq)]
struct Line<'a> {
    command: &'a str,
    who: (u32, u32),
    cpu: Option<u32>,
    time_ns: u64,
    event: &'a str,
    fields: &'a str,
}

pub(super) fn read(bytes: &[u8]) -> Result<Trace, ReadError> {
    let mut collector = Collector::default();
    collector.trace.facts.clock = "that of perf record".into();
    let mut returning: HashSet<String> = HashSet::new();
    for line in super::lines(bytes) {
        let probe = parse(&line).and_then(|line| line.event.strip_suffix(RETURN));
        if let Some(probe) = probe
            && !returning.contains(probe)
            && collector.takes_text(probe, 1, 2 * size_of::<String>())
        {
            returning.insert(probe.to_owned());
        }
    }
    for line in super::lines(bytes) {
        // Comments, and the frames of call stacks: an address, indented.
        let is_frame = line.starts_with(['\t', '#'])
            || line.trim_start().split(' ').next().is_some_and(is_address);
        if line.trim().is_empty() {
            continue;
        }
        match parse(&line) {
            Some(line) => take(&line, &returning, &mut collector),
            None if is_frame => {}
            None => collector.skipped += 1,
        }
    }
    collector.finish("text of perf script", "perf script")
}

fn is_address(word: &str) -> bool {
    word.len() >= 8 && word.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Commands may have spaces, so a line is taken apart from the time on: the first word that ends in
/// a colon and is a time.
fn parse(line: &str) -> Option<Line<'_>> {
    let mut begin = 0;
    for word in line.split_inclusive(' ') {
        let end = begin + word.len();
        let time = word.trim_end().strip_suffix(':').filter(|time| time.contains('.'));
        if let Some(time_ns) = time.and_then(seconds_to_ns) {
            let (before, after) = (line.get(..begin)?, line.get(end..)?.trim_start());
            // With periods: `1 cpu-clock:`.
            let (event, fields) = after
                .split_once(": ")
                .or_else(|| after.trim_end().strip_suffix(':').map(|event| (event, "")))?;
            let event = event.trim().rsplit(' ').next()?;
            return parse_before(before, time_ns, event, fields);
        }
        begin = end;
    }
    None
}

/// `w 32688 [000]`, `w 32688/32690 [000]`, or without the CPU.
fn parse_before<'a>(
    before: &'a str,
    time_ns: u64,
    event: &'a str,
    fields: &'a str,
) -> Option<Line<'a>> {
    let before = before.trim();
    let (before, cpu) = match before.rsplit_once('[') {
        Some((before, cpu)) => (before.trim_end(), cpu.strip_suffix(']')?.parse().ok()),
        None => (before, None),
    };
    let (command, who) = before.rsplit_once(char::is_whitespace)?;
    let (pid, tid) = who.split_once('/').unwrap_or((who, who));
    let who = (pid.parse().ok()?, tid.parse().ok()?);
    Some(Line { command: command.trim(), who, cpu, time_ns, event, fields })
}

fn take(line: &Line<'_>, returning: &HashSet<String>, collector: &mut Collector) {
    collector.set_command(line.who, line.command);
    let mut add = |who: (u32, u32), kind: EventKind, argument: u64, name: (NameKind, &str)| {
        let (time_ns, cpu) = (line.time_ns, line.cpu);
        collector.event(&Seen { time_ns, who, cpu, kind, argument, name });
    };
    let (system, event) = line.event.split_once(':').unwrap_or(("", line.event));
    let field = |name: &str| {
        let begin = line.fields.find(&format!("{name}="))? + name.len() + 1;
        let value = line.fields.get(begin..)?;
        value.split([' ', ',']).next()
    };
    let number = |name: &str| field(name).and_then(|value| value.parse::<u64>().ok());
    match (system, event) {
        ("raw_syscalls", _) => {
            let Some(rest) = line.fields.strip_prefix("NR ") else { return };
            let call = rest.split(' ').next().unwrap_or_default();
            if OF_UPROBES.contains(&call) {
                return;
            }
            let text = format!("syscall {call}");
            let result = rest.rsplit_once("= ").and_then(|(_, value)| value.trim().parse().ok());
            let (kind, argument) = match event {
                "sys_enter" => (EventKind::SyscallEnter, 0),
                _ => (EventKind::SyscallExit, i64::cast_unsigned(result.unwrap_or_default())),
            };
            add(line.who, kind, argument, (NameKind::Syscall, &text));
        }
        ("syscalls", event) => {
            let enter = event.strip_prefix("sys_enter_");
            let exit = event.strip_prefix("sys_exit_");
            let kind =
                if enter.is_some() { EventKind::SyscallEnter } else { EventKind::SyscallExit };
            let name = enter.or(exit).unwrap_or(event);
            add(line.who, kind, 0, (NameKind::Syscall, name));
        }
        ("sched", "sched_switch") => {
            let name = (NameKind::Sched, "switch");
            // R: it could have gone on.
            let preempted = field("prev_state").is_some_and(|state| state.starts_with('R'));
            if line.who.1 != 0 {
                add(line.who, EventKind::SwitchOut, u64::from(preempted), name);
            }
            let next = number("next_pid").and_then(|next| u32::try_from(next).ok());
            if let Some(next) = next.filter(|next| *next != 0) {
                add((next, next), EventKind::SwitchIn, 0, name);
            }
        }
        ("sched", "sched_waking" | "sched_wakeup" | "sched_wakeup_new") => {
            let woken = line.fields.split(' ').find_map(|word| word.strip_prefix("pid="));
            let woken = woken.and_then(|pid| pid.parse().ok()).unwrap_or_default();
            add(line.who, EventKind::Wake, woken, (NameKind::Sched, "wake"));
        }
        (_, event) => {
            let is_return = line.event.ends_with(RETURN);
            let name = event.strip_suffix(RETURN).unwrap_or(event);
            let kind = match (is_return, returning.contains(line.event)) {
                (true, _) => EventKind::Exit,
                (false, true) => EventKind::Enter,
                (false, false) => EventKind::Instant,
            };
            let of = if kind == EventKind::Instant { NameKind::Other } else { NameKind::Procedure };
            add(line.who, kind, 0, (of, name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As perf 6.12 prints it.
    const SCRIPT: &str = "\
# captured on : today
               w 32688 [000] 26355.566886: raw_syscalls:sys_enter: NR 273 (7f0a0817ca20, 18)
               w 32688 [000] 26355.566887:  raw_syscalls:sys_exit: NR 273 = -2
               w 32688 [000] 26355.567041:           probe_w:work: (555e421cd139)
               w 32688 [000] 26355.567069: raw_syscalls:sys_enter: NR 335 (3e8, 7ffc4edad098)
               w 32688 [000] 26355.567070:   probe_w:work__return: (555e421cd139 <- 555e421cd16e)
               w 32688 [000] 26355.567071:  raw_syscalls:sys_exit: NR -1 = 499500
  Web Content  700/705  [001] 26355.567085:     sched:sched_switch: prev_comm=Web prev_pid=705 \
prev_prio=120 prev_state=R+ ==> next_comm=w next_pid=32688 next_prio=120
               w 32688 26355.6: sched:sched_wakeup: comm=x pid=17 prio=120 target_cpu=000
               w 32688 [000] 26355.7:  1 cpu-clock:  55555 main+0x10 (/tmp/w)
\t    55555e421139 work+0x10 (/tmp/w)
nonsense
";

    #[test]
    fn lines_of_perf_script_are_read() {
        let trace = super::super::read(SCRIPT.as_bytes()).unwrap();
        let of = |event: &crate::Event| {
            let name = trace.name(event).unwrap().text.clone();
            (event.kind, trace.thread(event).unwrap().tid, name, event.argument.cast_signed())
        };
        use EventKind::*;
        let events: Vec<_> = trace.events.iter().map(of).collect();
        let expected = [
            (SyscallEnter, 32688, "syscall 273", 0),
            (SyscallExit, 32688, "syscall 273", -2),
            (Enter, 32688, "work", 0),
            (Exit, 32688, "work", 0),
            (SwitchOut, 705, "switch", 1),
            (SwitchIn, 32688, "switch", 0),
            (Wake, 32688, "wake", 17),
            (Instant, 32688, "cpu-clock", 0),
        ];
        assert_eq!(events, expected.map(|(k, t, n, a)| (k, t, n.to_owned(), a)));
        assert_eq!(trace.threads[1].command, "Web Content");
        assert_eq!(trace.threads[1].pid, 700);
        assert_eq!(trace.events[6].cpu, None);
        assert_eq!(trace.facts.notes, ["1 entries of text of perf script were passed over"]);
    }

    #[test]
    fn a_text_of_something_else_is_refused() {
        let error = super::super::read(&b"hello\nworld\n"[..]).unwrap_err().to_string();
        assert!(error.contains("no event in it is understood"), "{error}");
        assert!(super::super::read(&b""[..]).is_err());
    }
}

//! The text format: a line for each event, in the order of time, which can be read back.

use std::io::{self, Write};

use super::collect::{Collector, Seen};
use super::seconds_to_ns;
use crate::event::{Corrected, Event, EventKind, Lost, Name, NameKind, Thread, Trace};
use crate::reader::ReadError;

const FIRST_LINE: &str = "# dcpi trace, text 1";
const COLUMNS: &str = "cpu pid/tid command kind argument name";

pub(super) fn is_begin(bytes: &[u8]) -> bool {
    bytes.starts_with(FIRST_LINE.as_bytes())
}

pub(super) fn write(trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{FIRST_LINE}")?;
    let facts = &trace.facts;
    if !facts.command.is_empty() {
        writeln!(out, "# command: {}", escape(&facts.command.join(" "), false))?;
    }
    if !facts.host.is_empty() {
        writeln!(out, "# host: {}", escape(&facts.host, false))?;
    }
    writeln!(out, "# clock: {}", escape(&facts.clock, false))?;
    for lost in &facts.lost {
        let name = escape(&lost.name, false);
        writeln!(out, "# lost: {} events of {name} ({})", lost.events, escape(&lost.reason, true))?;
    }
    let notes = facts.notes.iter().chain(&trace.cut);
    notes.into_iter().try_for_each(|note| writeln!(out, "# note: {}", escape(note, false)))?;
    let times = if trace.corrected.is_empty() { "time_s" } else { "time_s low_s value_s high_s" };
    writeln!(out, "# fields: {times} {COLUMNS}")?;
    let mut corrected = trace.corrected.iter();
    for event in &trace.events {
        let corrected = corrected.next();
        let Some((name, thread)) = trace.name(event).zip(trace.thread(event)) else { continue };
        write_line(event, corrected, name, thread, out)?;
    }
    Ok(())
}

pub(super) fn write_line(
    event: &Event,
    corrected: Option<&Corrected>,
    name: &Name,
    thread: &Thread,
    out: &mut dyn Write,
) -> io::Result<()> {
    write!(out, "{}", seconds(event.time_ns))?;
    if let Some(Corrected { low_ns, value_ns, high_ns }) = corrected {
        write!(out, " {} {} {}", seconds(*low_ns), seconds(*value_ns), seconds(*high_ns))?;
    }
    match event.cpu {
        Some(cpu) => write!(out, " {:03}", cpu.number())?,
        None => write!(out, " -  ")?,
    }
    let who = format!("{}/{}", thread.pid, thread.tid);
    let command = match thread.command.is_empty() {
        true => "-".to_owned(),
        false => escape(&thread.command, true),
    };
    write!(out, " {who:<15} {command:<15} {:<13} ", event.kind.word())?;
    match event.kind.has_signed_argument() {
        true => write!(out, "{}", event.argument.cast_signed())?,
        false => write!(out, "{}", event.argument)?,
    }
    writeln!(out, " {}", escape(&name.text, false))
}

fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// A text on one line, without characters that terminals act on; with `words`, as one word.
fn escape(text: &str, word: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            c if c.is_control() || word && c.is_whitespace() => {
                out.push_str(&format!("\\u{{{:x}}}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        let code = after.strip_prefix("u{").and_then(|code| code.split_once('}'));
        let character = code.and_then(|(code, rest)| {
            Some((u32::from_str_radix(code, 16).ok().and_then(char::from_u32)?, rest))
        });
        rest = match (character, after.strip_prefix('\\')) {
            (Some((character, rest)), _) => {
                out.push(character);
                rest
            }
            (None, after_backslash) => {
                out.push('\\');
                after_backslash.unwrap_or(after)
            }
        };
    }
    out + rest
}

pub(super) fn read(bytes: &[u8]) -> Result<Trace, ReadError> {
    let mut collector = Collector::default();
    let mut has_corrected = false;
    for line in super::lines(bytes) {
        if let Some(fact) = line.strip_prefix("# ") {
            let facts = &mut collector.trace.facts;
            match fact.split_once(": ") {
                Some(("command", command)) => facts.command = vec![unescape(command)],
                Some(("host", host)) => facts.host = unescape(host),
                Some(("clock", clock)) => facts.clock = unescape(clock),
                Some(("note", note)) => collector.note(unescape(note)),
                Some(("lost", lost)) if collector.takes_text(lost, 1, size_of::<Lost>()) => {
                    collector.trace.facts.lost.extend(read_lost(lost));
                }
                Some(("fields", fields)) => has_corrected = fields.contains("value_s"),
                _ => {}
            }
            continue;
        }
        if line.trim().is_empty() {
            continue;
        }
        if read_line(&line, has_corrected, &mut collector).is_none() {
            collector.skipped += 1;
        }
    }
    collector.finish("text of dcpi trace", "dcpi trace, text")
}

/// `3 events of NAME (REASON)`.
fn read_lost(text: &str) -> Option<Lost> {
    let (events, rest) = text.split_once(" events of ")?;
    let (name, reason) = rest.rsplit_once(" (")?;
    let reason = unescape(reason.strip_suffix(')')?);
    Some(Lost { name: unescape(name), reason, events: events.parse().ok()? })
}

fn read_line(line: &str, has_corrected: bool, collector: &mut Collector) -> Option<()> {
    let mut rest = line;
    let mut word = || {
        let (word, after) = rest.trim_start().split_once(' ')?;
        rest = after;
        Some(word)
    };
    let time_ns = seconds_to_ns(word()?)?;
    let mut corrected = None;
    if has_corrected {
        let mut time = || seconds_to_ns(word()?);
        corrected = Some(Corrected { low_ns: time()?, value_ns: time()?, high_ns: time()? });
    }
    let cpu = word()?.parse().ok();
    let (pid, tid) = word()?.split_once('/')?;
    let who = (pid.parse().ok()?, tid.parse().ok()?);
    let command = unescape(word()?);
    let kind = EventKind::of_word(word()?)?;
    let argument = word()?;
    let argument =
        argument.parse().ok().or_else(|| argument.parse::<i64>().ok().map(i64::cast_unsigned))?;
    let text = unescape(rest);
    if command != "-" {
        collector.set_command(who, &command);
    }
    let name = (kind_of_name(kind), text.as_str());
    collector.corrected_event(&Seen { time_ns, who, cpu, kind, argument, name }, corrected);
    Some(())
}

/// The kind of name that events of a kind have, where a format does not tell it.
fn kind_of_name(kind: EventKind) -> NameKind {
    match kind {
        EventKind::Enter | EventKind::Exit => NameKind::Procedure,
        EventKind::SyscallEnter | EventKind::SyscallExit => NameKind::Syscall,
        EventKind::SwitchOut
        | EventKind::SwitchIn
        | EventKind::Wake
        | EventKind::ThreadStart
        | EventKind::ThreadEnd => NameKind::Sched,
        EventKind::Block => NameKind::Block,
        EventKind::Instant => NameKind::Other,
        _ => NameKind::Sync,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_terminals_act_on_is_escaped_and_comes_back() {
        for text in ["a b", "\u{1b}[31m", "back\\slash", "\\u{41}", "line\nfeed", ""] {
            assert_eq!(unescape(&escape(text, true)), text);
            assert_eq!(unescape(&escape(text, false)), text);
            let escaped = escape(text, true);
            assert!(!escaped.contains([' ', '\n', '\u{1b}']), "{escaped}");
        }
        assert_eq!(unescape("a\\"), "a\\");
        assert_eq!(unescape("\\u{110000}x"), "\\u{110000}x");
    }

    #[test]
    fn lines_that_are_none_are_counted() {
        let text = "# dcpi trace, text 1\n# fields: time_s\nnonsense\n\
                    1.000000002 001 1/2 a enter 0 f g\n1.5 - 1/2 - syscall_exit -2 read\n";
        let trace = read(text.as_bytes()).unwrap();
        assert_eq!(trace.facts.notes, ["1 entries of text of dcpi trace were passed over"]);
        assert_eq!(trace.names[0].text, "f g");
        assert_eq!(trace.events[1].argument.cast_signed(), -2);
        assert_eq!(trace.events[1].cpu, None);
        assert_eq!(trace.threads[0].command, "a");
    }
}

//! Builds a trace from another tool's events.

use std::collections::HashMap;

use crate::event::{
    Corrected, Cpu, EVENTS_BYTES_MAX, Event, EventKind, NAMES_MAX, Name, NameId, NameKind,
    TEXTS_BYTES_MAX, THREADS_MAX, Thread, ThreadId, Trace,
};
use crate::reader::ReadError;

/// Most bytes of a name or command that are kept.
const TEXT_BYTES_MAX: usize = 4096;

/// A trace that grows.
#[derive(Debug, Default)]
pub(super) struct Collector {
    pub(super) trace: Trace,
    names: HashMap<(NameKind, String), NameId>,
    threads: HashMap<(u32, u32), ThreadId>,
    /// Events or lines that were not understood.
    pub(super) skipped: u64,
    /// Events beyond the limits of a trace.
    beyond: u64,
    /// Bytes of texts that are kept.
    text_bytes: usize,
    /// Bytes that events take, those included that a format keeps until their time comes.
    event_bytes: usize,
}

/// An event of another tool's trace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen<'a> {
    pub(super) time_ns: u64,
    /// Process and thread, in the system's numbers.
    pub(super) who: (u32, u32),
    pub(super) cpu: Option<u32>,
    pub(super) kind: EventKind,
    pub(super) argument: u64,
    pub(super) name: (NameKind, &'a str),
}

/// The part of a text that is kept as a name.
pub(super) fn text_of(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes.get(..TEXT_BYTES_MAX).unwrap_or(bytes))
}

impl Collector {
    /// Reserves memory for `copies` copies of a text and `others` further bytes. Returns whether
    /// there is room.
    pub(super) fn takes_text(&mut self, text: &str, copies: usize, others: usize) -> bool {
        let all = text.len().saturating_mul(copies).saturating_add(others);
        let bytes = self.text_bytes.saturating_add(all);
        let fits = bytes <= TEXTS_BYTES_MAX;
        if fits {
            self.text_bytes = bytes;
        }
        fits
    }

    /// Reserves memory for an event of this many bytes. Returns whether there is room; an event
    /// without room is counted.
    pub(super) fn takes_event(&mut self, bytes: usize) -> bool {
        let all = self.event_bytes.saturating_add(bytes);
        let fits = all <= EVENTS_BYTES_MAX;
        match fits {
            true => self.event_bytes = all,
            false => self.beyond += 1,
        }
        fits
    }

    /// Whether there is room for another event.
    pub(super) fn has_room(&self) -> bool {
        self.event_bytes.saturating_add(size_of::<Event>()) <= EVENTS_BYTES_MAX
    }

    /// Adds a note, if there is room.
    pub(super) fn note(&mut self, note: String) {
        if self.takes_text(&note, 1, size_of::<String>()) {
            self.trace.facts.notes.push(note);
        }
    }

    pub(super) fn name(&mut self, kind: NameKind, text: &str) -> Option<NameId> {
        let text = text.get(..text.floor_char_boundary(TEXT_BYTES_MAX)).unwrap_or_default();
        // The key is only made where the name is new.
        if let Some(known) = self.names.get(&(kind, text.to_owned())) {
            return Some(*known);
        }
        let others = size_of::<Name>() + 2 * size_of::<(NameKind, String, NameId)>();
        if self.names.len() >= NAMES_MAX || !self.takes_text(text, 2, others) {
            return None;
        }
        let id = NameId(u32::try_from(self.names.len()).ok()?);
        self.names.insert((kind, text.to_owned()), id);
        self.trace.names.push(Name::new(kind, text));
        Some(id)
    }

    pub(super) fn thread(&mut self, who: (u32, u32)) -> Option<ThreadId> {
        if let Some(known) = self.threads.get(&who) {
            return Some(*known);
        }
        if self.threads.len() >= THREADS_MAX {
            return None;
        }
        let id = ThreadId(u32::try_from(self.threads.len()).ok()?);
        self.threads.insert(who, id);
        self.trace.threads.push(Thread { pid: who.0, tid: who.1, command: String::new() });
        Some(id)
    }

    /// Sets the command of a thread; only the first call has an effect.
    pub(super) fn set_command(&mut self, who: (u32, u32), command: &str) {
        let Some(id) = self.thread(who) else { return };
        let command =
            command.get(..command.floor_char_boundary(TEXT_BYTES_MAX)).unwrap_or_default();
        let is_known = |thread: &Thread| command.is_empty() || !thread.command.is_empty();
        if self.trace.threads.get(id.0 as usize).is_none_or(is_known)
            || !self.takes_text(command, 1, 0)
        {
            return;
        }
        if let Some(thread) = self.trace.threads.get_mut(id.0 as usize) {
            command.clone_into(&mut thread.command);
        }
    }

    /// Adds an event.
    pub(super) fn event(&mut self, seen: &Seen<'_>) {
        self.corrected_event(seen, None);
    }

    /// Adds an event, with its corrected time if it has one.
    pub(super) fn corrected_event(&mut self, seen: &Seen<'_>, corrected: Option<Corrected>) {
        let Some((name, thread)) = self.name_and_thread(seen.name, seen.who) else { return };
        let corrected_bytes = corrected.map_or(0, |_| size_of::<Corrected>());
        if !self.takes_event(size_of::<Event>() + corrected_bytes) {
            return;
        }
        self.trace.events.push(Event {
            time_ns: seen.time_ns,
            argument: seen.argument,
            thread,
            name,
            cpu: seen.cpu.and_then(Cpu::new),
            kind: seen.kind,
        });
        self.trace.corrected.extend(corrected);
    }

    /// Numbers of an event's name and thread; None, and the event is counted, where there is no
    /// room for them.
    pub(super) fn name_and_thread(
        &mut self,
        (kind, text): (NameKind, &str),
        who: (u32, u32),
    ) -> Option<(NameId, ThreadId)> {
        let found = self.name(kind, text).zip(self.thread(who));
        self.beyond += u64::from(found.is_none());
        found
    }

    /// The trace, with a remark on skipped input. `what` is the format's name.
    pub(super) fn finish(mut self, what: &str, source: &str) -> Result<Trace, ReadError> {
        let facts = &mut self.trace.facts;
        if self.trace.events.is_empty() {
            return Err(ReadError::NothingUnderstood { what: what.to_owned() });
        }
        if facts.source.is_empty() {
            source.clone_into(&mut facts.source);
        }
        if self.skipped > 0 {
            facts.notes.push(format!("{} entries of {what} were passed over", self.skipped));
        }
        if self.beyond > 0 {
            let cut = format!(
                "{} events are left out: more than 1 GiB of events or 256 MiB of names is not \
                 read",
                self.beyond
            );
            self.trace.cut = Some(cut);
        }
        let times = self.trace.events.iter().map(|event| event.time_ns);
        if facts.begun_ns == 0 {
            facts.begun_ns = times.clone().min().unwrap_or_default();
        }
        if facts.ended_ns == 0 {
            facts.ended_ns = times.max().unwrap_or_default();
        }
        if self.trace.corrected.len() != self.trace.events.len() {
            self.trace.corrected.clear();
        }
        Ok(self.trace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 4 KiB of name for each event of a few bytes were kept without end.
    #[test]
    fn texts_and_events_have_a_total() {
        let mut collector = Collector::default();
        assert!(collector.takes_text("abcd", 2, TEXTS_BYTES_MAX - 8));
        assert!(!collector.takes_text("a", 1, 0) && collector.takes_text("", 1, 0));
        assert!(!collector.takes_text("", usize::MAX, usize::MAX));
        let seen = Seen {
            time_ns: 1,
            who: (1, 1),
            cpu: None,
            kind: EventKind::Instant,
            argument: 0,
            name: (NameKind::Other, "new"),
        };
        collector.event(&seen);
        collector.note("no room".to_owned());
        assert!(collector.trace.events.is_empty() && collector.trace.facts.notes.is_empty());
        let mut collector = Collector::default();
        assert!(collector.takes_event(EVENTS_BYTES_MAX - size_of::<Event>()));
        collector.event(&seen);
        collector.event(&seen);
        let trace = collector.finish("a test", "a test").unwrap();
        assert_eq!(trace.events.len(), 1);
        assert!(trace.cut.unwrap().starts_with("1 events are left out: more than 1 GiB"));
    }
}

//! A trace that is put together from another tool's events.

use std::collections::HashMap;

use crate::event::{
    Corrected, Cpu, EVENTS_MAX, Event, EventKind, NAMES_MAX, Name, NameId, NameKind, THREADS_MAX,
    Thread, ThreadId, Trace,
};
use crate::reader::ReadError;

/// Bytes of a name or command that are kept.
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
}

/// What an event is of, and where it was.
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

impl Collector {
    pub(super) fn name(&mut self, kind: NameKind, text: &str) -> Option<NameId> {
        let text = text.get(..text.floor_char_boundary(TEXT_BYTES_MAX)).unwrap_or_default();
        // The key is only made where the name is new.
        if let Some(known) = self.names.get(&(kind, text.to_owned())) {
            return Some(*known);
        }
        if self.names.len() >= NAMES_MAX {
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

    /// Tells the command of a thread; the first one that is told stays.
    pub(super) fn set_command(&mut self, who: (u32, u32), command: &str) {
        let Some(id) = self.thread(who) else { return };
        if let Some(thread) = self.trace.threads.get_mut(id.0 as usize)
            && thread.command.is_empty()
        {
            let end = command.floor_char_boundary(TEXT_BYTES_MAX);
            command.get(..end).unwrap_or_default().clone_into(&mut thread.command);
        }
    }

    /// Adds an event.
    pub(super) fn event(&mut self, seen: &Seen<'_>) {
        self.corrected_event(seen, None);
    }

    /// Adds an event, with its corrected time if it has one.
    pub(super) fn corrected_event(&mut self, seen: &Seen<'_>, corrected: Option<Corrected>) {
        let named = self.name(seen.name.0, seen.name.1).zip(self.thread(seen.who));
        let Some((name, thread)) = named.filter(|_| self.trace.events.len() < EVENTS_MAX) else {
            self.beyond += 1;
            return;
        };
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

    /// The trace, with what was left out said. `what` is the format's name.
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
            let cut = format!("{} events beyond the limits of a trace are left out", self.beyond);
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

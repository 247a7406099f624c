//! Pairs events to calls: each entry with its return, by thread.
//!
//! Returns may be missing (longjmp, exceptions, lost events, the end of the trace). A return ends
//! the innermost open call of its name, and with it every call inside that has not ended: those are
//! marked as cut. A return without entry is counted and passed over.

use std::collections::HashMap;

use crate::event::{Event, EventKind, NameId, ThreadId};

/// Most open calls of a thread; deeper ones are counted, not kept.
const DEPTH_MAX: usize = 1 << 16;
/// Most open calls of all threads; each takes 88 bytes.
const OPEN_MAX: usize = 1 << 22;

/// A period of a thread: a call, a system call, a wait at a lock or barrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// The thread.
    pub thread: ThreadId,
    /// Its subject.
    pub name: NameId,
    /// The kind of the event that began it.
    pub kind: EventKind,
    /// When it began, in ns.
    pub begin_ns: u64,
    /// When it ended, in ns.
    pub end_ns: u64,
    /// Number of periods of the same thread around it.
    pub depth: u32,
    /// Number of the event that began it, from 0, among those that were taken.
    pub begin_index: usize,
    /// Number of the event that ended it; None for the end of the trace.
    pub end_index: Option<usize>,
    /// Whether its own end is missing, so that an outer return or the trace's end ended it.
    pub is_cut: bool,
    /// Whether a period of the same name is around it, whose time includes its own.
    pub is_inner: bool,
}

/// Open calls of all threads.
#[derive(Debug, Default)]
pub struct Pairs {
    threads: HashMap<ThreadId, Open>,
    /// Open slices of all threads.
    open: usize,
    taken: usize,
    unmatched: u64,
}

#[derive(Debug, Default)]
struct Open {
    slices: Vec<Slice>,
    /// Open slices by kind and name.
    by_name: HashMap<(EventKind, NameId), u32>,
    /// Slices beyond [`DEPTH_MAX`] that are open.
    too_deep: u64,
}

impl Pairs {
    /// Takes the next event, in the order of time; `time_ns` is its measured or corrected time.
    /// Appends the periods that it ends to `ended`, inner ones first. Returns whether it began one.
    pub fn take(&mut self, event: &Event, time_ns: u64, ended: &mut Vec<Slice>) -> bool {
        let at = At { time_ns, index: Some(self.taken) };
        self.taken += 1;
        if event.kind.opens() {
            let has_room = self.open < OPEN_MAX;
            let open = self.threads.entry(event.thread).or_default();
            let has_begun = open.begin(event, at, has_room);
            self.open += usize::from(has_begun);
            return has_begun;
        }
        let before = ended.len();
        if let Some(opener) = event.kind.closes() {
            let open = self.threads.entry(event.thread).or_default();
            self.unmatched += u64::from(!open.end(opener, event.name, at, ended));
        } else if event.kind == EventKind::ThreadEnd
            && let Some(mut open) = self.threads.remove(&event.thread)
        {
            open.end_all(at, ended);
        }
        self.open = self.open.saturating_sub(ended.len() - before);
        false
    }

    /// Ends everything that is open, at the end of the trace.
    pub fn finish(&mut self, end_ns: u64, ended: &mut Vec<Slice>) {
        let mut threads: Vec<(ThreadId, Open)> = self.threads.drain().collect();
        threads.sort_by_key(|(thread, _)| *thread);
        let at = At { time_ns: end_ns, index: None };
        threads.iter_mut().for_each(|(_, open)| open.end_all(at, ended));
    }

    /// Returns without an entry so far.
    #[must_use]
    pub fn unmatched(&self) -> u64 {
        self.unmatched
    }
}

/// Time and number of an event.
#[derive(Clone, Copy, Debug)]
struct At {
    time_ns: u64,
    index: Option<usize>,
}

impl Open {
    fn begin(&mut self, event: &Event, at: At, has_room: bool) -> bool {
        // Below a call that found no room, no further call is recorded, because returns are matched
        // by order.
        if !has_room || self.too_deep > 0 || self.slices.len() >= DEPTH_MAX {
            self.too_deep += 1;
            return false;
        }
        let of_name = self.by_name.entry((event.kind, event.name)).or_default();
        *of_name += 1;
        self.slices.push(Slice {
            thread: event.thread,
            name: event.name,
            kind: event.kind,
            begin_ns: at.time_ns,
            end_ns: at.time_ns,
            depth: u32::try_from(self.slices.len()).unwrap_or(u32::MAX),
            begin_index: at.index.unwrap_or_default(),
            end_index: None,
            is_cut: false,
            is_inner: *of_name > 1,
        });
        true
    }

    /// Ends the innermost open period of this kind and name. Returns false where there is none.
    fn end(&mut self, opener: EventKind, name: NameId, at: At, ended: &mut Vec<Slice>) -> bool {
        if self.too_deep > 0 {
            self.too_deep -= 1;
            return true;
        }
        // Checked first, so that returns without an entry do not each search all open calls.
        if !self.by_name.contains_key(&(opener, name)) {
            return false;
        }
        let is_own = |slice: &Slice| slice.kind == opener && slice.name == name;
        let Some(own) = self.slices.iter().rposition(is_own) else { return false };
        while self.slices.len() > own {
            let is_cut = self.slices.len() > own + 1;
            self.pop(at, is_cut, ended);
        }
        true
    }

    fn end_all(&mut self, at: At, ended: &mut Vec<Slice>) {
        while !self.slices.is_empty() {
            self.pop(at, true, ended);
        }
    }

    fn pop(&mut self, at: At, is_cut: bool, ended: &mut Vec<Slice>) {
        let Some(slice) = self.slices.pop() else { return };
        let key = (slice.kind, slice.name);
        if let Some(of_name) = self.by_name.get_mut(&key) {
            *of_name -= 1;
            if *of_name == 0 {
                self.by_name.remove(&key);
            }
        }
        // A corrected time may lie before that of the event around it.
        let end_ns = at.time_ns.max(slice.begin_ns);
        ended.push(Slice { end_ns, end_index: at.index, is_cut, ..slice });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, begin, end, depth, cut, inner.
    type Row = (u32, u64, u64, u32, bool, bool);

    fn pairs(events: &[(EventKind, u32)]) -> (Vec<Row>, u64) {
        let (mut pairs, mut ended) = (Pairs::default(), Vec::new());
        for (time, (kind, name)) in (0..).zip(events) {
            let event = Event { kind: *kind, name: NameId(*name), ..Event::default() };
            pairs.take(&event, time, &mut ended);
        }
        pairs.finish(events.len() as u64, &mut ended);
        let row = |s: &Slice| (s.name.0, s.begin_ns, s.end_ns, s.depth, s.is_cut, s.is_inner);
        (ended.iter().map(row).collect(), pairs.unmatched())
    }

    #[test]
    fn calls_nest_and_recursion_is_told() {
        use EventKind::{Enter, Exit, SyscallEnter, SyscallExit};
        let events =
            [(Enter, 1), (Enter, 1), (SyscallEnter, 2), (SyscallExit, 2), (Exit, 1), (Exit, 1)];
        let expected =
            [(2, 2, 3, 2, false, false), (1, 1, 4, 1, false, true), (1, 0, 5, 0, false, false)];
        assert_eq!(pairs(&events), (expected.to_vec(), 0));
    }

    /// A longjmp left two calls without a return.
    #[test]
    fn an_outer_return_ends_inner_calls() {
        use EventKind::{Enter, Exit};
        let events = [(Enter, 1), (Enter, 2), (Enter, 3), (Exit, 1), (Exit, 9), (Enter, 4)];
        let (slices, unmatched) = pairs(&events);
        let expected = [
            (3, 2, 3, 2, true, false),
            (2, 1, 3, 1, true, false),
            (1, 0, 3, 0, false, false),
            (4, 5, 6, 0, true, false),
        ];
        assert_eq!((slices, unmatched), (expected.to_vec(), 1));
    }

    #[test]
    fn a_threads_end_ends_its_calls() {
        let events = [(EventKind::Enter, 1), (EventKind::ThreadEnd, 0), (EventKind::Exit, 1)];
        assert_eq!(pairs(&events), (vec![(1, 0, 1, 0, true, false)], 1));
    }

    #[test]
    fn endless_recursion_is_bounded() {
        let mut events = vec![(EventKind::Enter, 1); DEPTH_MAX + 5];
        events.extend(vec![(EventKind::Exit, 1); DEPTH_MAX + 5]);
        let (slices, unmatched) = pairs(&events);
        assert_eq!((slices.len(), unmatched), (DEPTH_MAX, 0));
        assert!(slices.iter().all(|slice| !slice.4));
    }
}

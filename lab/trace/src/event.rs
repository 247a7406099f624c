//! The types of a trace: facts of the run, names, threads, events.

use serde::{Deserialize, Serialize};

/// Bytes of [`Event`]s of a trace in memory with their [`Corrected`] times, at most: 33 million
/// events, or 19 million corrected ones. Packed, they may be a thousand times smaller.
pub const EVENTS_BYTES_MAX: usize = 1 << 30;
/// Bytes of names, threads and facts of a trace in memory, at most.
pub const TEXTS_BYTES_MAX: usize = 256 << 20;
/// Names of a trace, at most.
pub const NAMES_MAX: usize = 1 << 20;
/// Most threads of a trace, fewer than Linux has thread numbers (PID_MAX_LIMIT, 4 Mi), to bound the
/// memory of a malformed trace.
pub const THREADS_MAX: usize = 1 << 20;

/// Number of a name: its index in [`Trace::names`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameId(pub u32);

/// Number of a thread: its index in [`Trace::threads`]. Numbers of threads of the system (tid) are
/// used again by later threads; these are not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(pub u32);

/// A whole trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// The traced run, and its lost events.
    pub facts: Facts,
    /// The subjects of events, by [`NameId`].
    pub names: Vec<Name>,
    /// Threads, by [`ThreadId`].
    pub threads: Vec<Thread>,
    /// Events in the order of their measured times; events of one thread and one time are in the
    /// order in which the thread had them.
    pub events: Vec<Event>,
    /// Corrected times, one for each event and in their order; empty where nothing was corrected.
    pub corrected: Vec<Corrected>,
    /// Why the trace is not whole, in one sentence; None where it is.
    pub cut: Option<String>,
}

/// One event of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Time in ns on the trace's clock ([`Facts::clock`]), as it was measured.
    pub time_ns: u64,
    /// A number whose meaning depends on the kind; 0 where the kind has none.
    pub argument: u64,
    /// The thread.
    pub thread: ThreadId,
    /// The subject of the event.
    pub name: NameId,
    /// The CPU, where it is known. Numbers above 65534 are left out.
    pub cpu: Option<Cpu>,
    /// The kind of the event.
    pub kind: EventKind,
}

/// A CPU's number, one more than it: an `Option` of it takes two bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu(std::num::NonZeroU16);

impl Cpu {
    /// The CPU of that number; None where the number does not fit.
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        let next = u16::try_from(number).ok()?.checked_add(1)?;
        std::num::NonZeroU16::new(next).map(Self)
    }

    /// The CPU's number.
    #[must_use]
    pub fn number(self) -> u32 {
        u32::from(self.0.get()) - 1
    }
}

/// The kind of an event. The numbers are those of the format on disk.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum EventKind {
    /// A procedure was entered. `argument`: 0.
    Enter = 1,
    /// A procedure returned. `argument`: 0.
    Exit = 2,
    /// A place was passed, such as a source line. `argument`: the tool's own.
    #[default]
    Instant = 3,
    /// A system call began. `argument`: its first argument; an `int` is sign extended.
    SyscallEnter = 4,
    /// A system call ended. `argument`: its result, an `i64` as bits; errors are -errno.
    SyscallExit = 5,
    /// The thread left its CPU. `argument`: 1 if it could have gone on (preempted), 0 if it waits.
    SwitchOut = 6,
    /// The thread came to a CPU.
    SwitchIn = 7,
    /// The thread woke another one. `argument`: the woken thread's number in the system (tid).
    Wake = 8,
    /// A basic block was entered. `argument`: 0.
    Block = 9,
    /// The thread came to a lock. `argument` of all kinds of synchronisation: the identity of the
    /// lock, barrier or counter, such as its address.
    LockRequest = 10,
    /// The thread has the lock.
    LockAcquire = 11,
    /// The thread gives the lock up.
    LockRelease = 12,
    /// The thread came to a barrier.
    BarrierArrive = 13,
    /// The thread continues after a barrier.
    BarrierLeave = 14,
    /// The thread tells others how far it is (advance of advance/await). The step it reached is
    /// that of the name, or the number of advances before.
    Advance = 15,
    /// The thread begins to await another's advance.
    AwaitBegin = 16,
    /// The awaited advance was seen.
    AwaitEnd = 17,
    /// The thread began. `argument`: the number in the system (tid) of its creator, or 0.
    ThreadStart = 18,
    /// The thread ended.
    ThreadEnd = 19,
}

impl EventKind {
    /// All kinds in the order of their numbers, with their words in text and JSON.
    const WORDS: [(Self, &str); 19] = [
        (Self::Enter, "enter"),
        (Self::Exit, "exit"),
        (Self::Instant, "instant"),
        (Self::SyscallEnter, "syscall_enter"),
        (Self::SyscallExit, "syscall_exit"),
        (Self::SwitchOut, "switch_out"),
        (Self::SwitchIn, "switch_in"),
        (Self::Wake, "wake"),
        (Self::Block, "block"),
        (Self::LockRequest, "lock_request"),
        (Self::LockAcquire, "lock_acquire"),
        (Self::LockRelease, "lock_release"),
        (Self::BarrierArrive, "barrier_arrive"),
        (Self::BarrierLeave, "barrier_leave"),
        (Self::Advance, "advance"),
        (Self::AwaitBegin, "await_begin"),
        (Self::AwaitEnd, "await_end"),
        (Self::ThreadStart, "thread_start"),
        (Self::ThreadEnd, "thread_end"),
    ];

    /// The kind of a number of the format on disk.
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        Self::WORDS.get(usize::from(number).checked_sub(1)?).map(|(kind, _)| *kind)
    }

    /// The kind's word in text and JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        Self::WORDS.get(self as usize - 1).map_or("", |(_, word)| word)
    }

    /// The kind of a word.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        Self::WORDS.into_iter().find(|(_, of)| *of == word).map(|(kind, _)| kind)
    }

    /// The kind of the event that ends what an event of this kind began.
    #[must_use]
    pub fn closer(self) -> Self {
        let is_closer = |(kind, _): &(Self, &str)| kind.closes() == Some(self);
        Self::WORDS.into_iter().find(is_closer).map_or(Self::Exit, |(kind, _)| kind)
    }

    /// Whether the argument is an `i64` as bits.
    #[must_use]
    pub fn has_signed_argument(self) -> bool {
        matches!(self, Self::SyscallEnter | Self::SyscallExit)
    }

    /// Whether events of this kind begin a period, such as a call, which a later event ends.
    #[must_use]
    pub fn opens(self) -> bool {
        matches!(
            self,
            Self::Enter
                | Self::SyscallEnter
                | Self::LockRequest
                | Self::BarrierArrive
                | Self::AwaitBegin
        )
    }

    /// The kind of the event that begins the period which an event of this kind ends; None if it
    /// ends none.
    #[must_use]
    pub fn closes(self) -> Option<Self> {
        match self {
            Self::Exit => Some(Self::Enter),
            Self::SyscallExit => Some(Self::SyscallEnter),
            Self::LockAcquire => Some(Self::LockRequest),
            Self::BarrierLeave => Some(Self::BarrierArrive),
            Self::AwaitEnd => Some(Self::AwaitBegin),
            _ => None,
        }
    }
}

/// The corrected time of one event: an estimate of its time in a run without tracing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Corrected {
    /// The earliest time in ns that the model allows, on the trace's clock.
    pub low_ns: u64,
    /// The best estimate in ns.
    pub value_ns: u64,
    /// The latest time in ns.
    pub high_ns: u64,
}

/// The subject of an event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Name {
    /// The kind of the named thing.
    pub kind: NameKind,
    /// The name that people read: a procedure, a system call, `FILE:LINE`.
    pub text: String,
    /// Path of the file with the code; empty where there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub image: String,
    /// Offset of the code in that file, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Source file; empty where it is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub file: String,
    /// Line of the source file, from 1; 0 where it is not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub line: u32,
    /// Number of a system call, or of a block in its program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// Whether the kernel executes the probed instruction out of line, by a single-step trap, which
    /// costs up to seven times as much as where it emulates the instruction; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stepped: Option<bool>,
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}

impl Name {
    /// A name without further particulars.
    #[must_use]
    pub fn new(kind: NameKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), ..Self::default() }
    }
}

/// The kind of thing that a name refers to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NameKind {
    /// A procedure.
    Procedure,
    /// A source line.
    Line,
    /// A system call.
    Syscall,
    /// The scheduler.
    Sched,
    /// A basic block.
    Block,
    /// A lock, barrier or counter that threads synchronise by.
    Sync,
    /// Something else, such as another tool's slice.
    #[default]
    Other,
}

/// A thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// Number of the process.
    pub pid: u32,
    /// Number of the thread in the system.
    pub tid: u32,
    /// The command (comm) that the thread had last.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub command: String,
}

/// The run that was traced.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// The command with its arguments; empty where it is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The host's name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// The clock of all times, as Linux calls it (`CLOCK_MONOTONIC`), or another tool's word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub clock: String,
    /// When tracing began, in ns on that clock.
    #[serde(default)]
    pub begun_ns: u64,
    /// When tracing ended, in ns on that clock; 0 where it is not known.
    #[serde(default)]
    pub ended_ns: u64,
    /// When tracing began, in ns since 1970-01-01 UTC; 0 where it is not known.
    #[serde(default)]
    pub begun_unix_ns: u64,
    /// The program that captured the events.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// Events that happened and are not in the trace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<Lost>,
    /// The cost of an event, if it was measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub costs: Vec<Cost>,
    /// Runs of the same command without events, where there were some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub untraced: Option<Untraced>,
    /// The part of the calls that was kept; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled: Option<Sampled>,
    /// Remarks for the user, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Events that happened and are not in the trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// The subject of the events: a name as in [`Name::text`], or a kind of event.
    pub name: String,
    /// Why they are not there: `ring_full` (the tracer did not keep up), or another word.
    pub reason: String,
    /// Number of events.
    pub events: u64,
}

/// The cost of an event: alpha of Malony, Reed and Wijshoff, "Performance measurement intrusion and
/// perturbation analysis", 1992, section 3.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// The kind of event.
    pub kind: EventKind,
    /// The time that one event adds to its thread, in ns.
    pub alpha_ns: Interval,
    /// Standard deviation of single events' costs, in ns, where it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread_ns: Option<f64>,
    /// Description of the measurement, for users.
    pub how: String,
    /// Whether it is that in loops of nothing else, and not that in the traced program.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_vitro: bool,
    /// Whether that is the cost of probes whose instruction the kernel executes out of line
    /// ([`Name::stepped`]); absent: of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stepped: Option<bool>,
    /// Whether that is the cost where returns are traced too; absent: of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with_return: Option<bool>,
}

/// CPU times of a command with its children, from its first instruction on (perf's task-clock): of
/// the run with events, and of runs without.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Untraced {
    /// CPU time of the traced run, in ns.
    pub traced_cpu_ns: f64,
    /// CPU time of each run without events, in ns.
    pub cpu_ns: Vec<f64>,
}

/// A value and the bounds of its interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower bound.
    pub low: f64,
    /// The value.
    pub value: f64,
    /// Upper bound.
    pub high: f64,
}

/// A choice of calls: the first `keep` of each `of`, counted for each thread and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampled {
    /// Calls kept.
    pub keep: u64,
    /// Calls of which `keep` are kept.
    pub of: u64,
}

impl Trace {
    /// The name of an event.
    #[must_use]
    pub fn name(&self, event: &Event) -> Option<&Name> {
        self.names.get(usize::try_from(event.name.0).ok()?)
    }

    /// The thread of an event.
    #[must_use]
    pub fn thread(&self, event: &Event) -> Option<&Thread> {
        self.threads.get(usize::try_from(event.thread.0).ok()?)
    }

    /// Puts events, and their corrected times with them, into the order of their measured times.
    pub fn sort(&mut self) {
        if self.events.is_sorted_by_key(|event| event.time_ns) {
            return;
        }
        // In place, by numbers of 4 bytes: a second list of events may be a gigabyte.
        let time = |at: &u32| self.events.get(*at as usize).map(|event| event.time_ns);
        let mut order: Vec<u32> = (0..).take(self.events.len()).collect();
        order.sort_by_key(time);
        let has_corrected = self.corrected.len() == self.events.len();
        for first in 0..order.len() {
            let mut at = first;
            while let Some(place) = order.get_mut(at) {
                let from = std::mem::replace(place, at as u32) as usize;
                if from == at || from == first {
                    break;
                }
                self.events.swap(at, from);
                if has_corrected {
                    self.corrected.swap(at, from);
                }
                at = from;
            }
        }
    }

    /// Whether this many more events fit into [`EVENTS_BYTES_MAX`] beside those that are there;
    /// `corrected` of them have corrected times.
    #[must_use]
    pub fn has_room(&self, events: usize, corrected: usize) -> bool {
        let events = self.events.len().saturating_add(events).saturating_mul(size_of::<Event>());
        let corrected = self.corrected.len().saturating_add(corrected);
        events.saturating_add(corrected.saturating_mul(size_of::<Corrected>())) <= EVENTS_BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_words_and_kinds_are_the_same_thing() {
        for (number, (kind, _)) in (1_u8..).zip(EventKind::WORDS) {
            assert_eq!(kind as u8, number);
            assert_eq!(EventKind::of_number(number), Some(kind));
            assert_eq!(EventKind::of_word(kind.word()), Some(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.word());
            assert!(kind.closes().is_none_or(EventKind::opens));
        }
        assert_eq!(EventKind::of_number(0), None);
        assert_eq!(EventKind::of_number(20), None);
    }

    #[test]
    fn events_are_sorted_in_place_with_their_corrected_times() {
        let times = [5_u64, 1, 4, 4, 0, 9, 1, 3, 7, 2, 2];
        let numbered = times.iter().zip(0..);
        let event = |(time, number): (&u64, u64)| Event {
            time_ns: *time,
            argument: number,
            ..Event::default()
        };
        let mut trace =
            Trace { events: numbered.map(event).collect::<Vec<Event>>(), ..Trace::default() };
        let mut expected = trace.events.clone();
        expected.sort_by_key(|event| event.time_ns);
        let corrected =
            |event: &Event| Corrected { value_ns: event.argument, ..Corrected::default() };
        trace.corrected = trace.events.iter().map(corrected).collect();
        trace.sort();
        assert_eq!(trace.events, expected);
        assert_eq!(trace.corrected, expected.iter().map(corrected).collect::<Vec<Corrected>>());
    }

    #[test]
    fn an_event_takes_32_bytes() {
        assert_eq!(size_of::<Event>(), 32);
        let trace = Trace::default();
        assert!(trace.has_room(1 << 25, 0) && !trace.has_room((1 << 25) + 1, 0));
        assert!(!trace.has_room(1 << 25, 1) && !trace.has_room(usize::MAX, usize::MAX));
        assert_eq!(Cpu::new(0).unwrap().number(), 0);
        assert_eq!(Cpu::new(65534).unwrap().number(), 65534);
        assert_eq!(Cpu::new(65535), None);
    }
}

//! Perfetto's TrackEvents (protos/perfetto/trace/ of its sources, v58): packets of protocol
//! buffers, names interned, one track for each thread.
//!
//! Calls are slices of their threads' tracks. Perfetto ends the innermost slice at each end,
//! whatever the name, so only ends that have a start are written. Time off the CPU is on a track of
//! its own below each thread.

mod read;

use std::collections::HashSet;
use std::io::{self, Write};

use protobuf::Message;

pub(super) use read::{is_begin, read};

use super::category;
use crate::event::{Corrected, Event, EventKind, ThreadId, Trace};
use crate::pairs::Pairs;

/// Fields of the messages, by the names of the schema.
mod field {
    pub(super) const TRACE_PACKET: u64 = 1;

    pub(super) const PACKET_CLOCK_SNAPSHOT: u64 = 6;
    pub(super) const PACKET_TIMESTAMP: u64 = 8;
    pub(super) const PACKET_SEQUENCE: u64 = 10;
    pub(super) const PACKET_TRACK_EVENT: u64 = 11;
    pub(super) const PACKET_INTERNED: u64 = 12;
    pub(super) const PACKET_SEQUENCE_FLAGS: u64 = 13;
    pub(super) const PACKET_TIMESTAMP_CLOCK: u64 = 58;
    pub(super) const PACKET_DEFAULTS: u64 = 59;
    pub(super) const PACKET_TRACK_DESCRIPTOR: u64 = 60;

    pub(super) const SNAPSHOT_CLOCK: u64 = 1;
    pub(super) const SNAPSHOT_PRIMARY: u64 = 2;
    pub(super) const CLOCK_ID: u64 = 1;
    pub(super) const CLOCK_TIMESTAMP: u64 = 2;
    pub(super) const CLOCK_IS_INCREMENTAL: u64 = 3;
    pub(super) const CLOCK_UNIT_NS: u64 = 4;

    pub(super) const DEFAULTS_TIMESTAMP_CLOCK: u64 = 58;
    pub(super) const DEFAULTS_TRACK_EVENT: u64 = 11;
    pub(super) const EVENT_DEFAULTS_TRACK: u64 = 11;

    pub(super) const TRACK_UUID: u64 = 1;
    pub(super) const TRACK_NAME: u64 = 2;
    pub(super) const TRACK_PROCESS: u64 = 3;
    pub(super) const TRACK_THREAD: u64 = 4;
    pub(super) const TRACK_PARENT: u64 = 5;
    pub(super) const PROCESS_PID: u64 = 1;
    pub(super) const PROCESS_NAME: u64 = 6;
    pub(super) const THREAD_PID: u64 = 1;
    pub(super) const THREAD_TID: u64 = 2;
    pub(super) const THREAD_NAME: u64 = 5;

    pub(super) const EVENT_CATEGORY_IID: u64 = 3;
    pub(super) const EVENT_ANNOTATION: u64 = 4;
    pub(super) const EVENT_TYPE: u64 = 9;
    pub(super) const EVENT_NAME_IID: u64 = 10;
    pub(super) const EVENT_TRACK: u64 = 11;
    pub(super) const EVENT_CATEGORY: u64 = 22;
    pub(super) const EVENT_NAME: u64 = 23;

    pub(super) const INTERNED_CATEGORY: u64 = 1;
    pub(super) const INTERNED_NAME: u64 = 2;
    pub(super) const INTERNED_ANNOTATION_NAME: u64 = 3;
    pub(super) const IID: u64 = 1;
    pub(super) const IID_NAME: u64 = 2;

    pub(super) const ANNOTATION_NAME_IID: u64 = 1;
    pub(super) const ANNOTATION_UINT: u64 = 3;
    pub(super) const ANNOTATION_INT: u64 = 4;
    pub(super) const ANNOTATION_STRING: u64 = 6;
    pub(super) const ANNOTATION_NAME: u64 = 10;
}

/// TrackEvent.Type.
const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
const INSTANT: u64 = 3;

/// BuiltinClock: CLOCK_MONOTONIC, and CLOCK_BOOTTIME, the default of traces.
const MONOTONIC: u64 = 3;
const BOOTTIME: u64 = 6;

/// TracePacket.SequenceFlags.
const STATE_CLEARED: u64 = 1;
const NEEDS_STATE: u64 = 2;

/// Number of the only sequence of packets.
const SEQUENCE: u64 = 1;

/// Names of annotations, with their numbers.
const KIND: (u64, &str) = (1, "kind");
const ARGUMENT: (u64, &str) = (2, "argument");
const LOW: (u64, &str) = (3, "corrected_low_ns");
const VALUE: (u64, &str) = (4, "corrected_ns");
const HIGH: (u64, &str) = (5, "corrected_high_ns");
const CPU: (u64, &str) = (6, "cpu");
const ANNOTATIONS: [(u64, &str); 6] = [KIND, ARGUMENT, LOW, VALUE, HIGH, CPU];

/// Name of the tracks off the CPU.
const OFF_CPU: &str = "off the CPU";
/// Slices of those tracks.
const WAITS: (u64, &str) = (1, "waits");
const PREEMPTED: (u64, &str) = (2, "preempted");
/// Numbers of other names follow those.
const FIRST_NAME: u64 = 3;

/// Tracks: of a process, of a thread, and of a thread's time off the CPU. A track's number has its
/// kind above bit 40, so that none is 0, and none that of another kind.
fn process_track(pid: u32) -> u64 {
    1 << 40 | u64::from(pid)
}

fn thread_track(thread: ThreadId) -> u64 {
    2 << 40 | u64::from(thread.0)
}

fn off_cpu_track(thread: ThreadId) -> u64 {
    3 << 40 | u64::from(thread.0)
}

/// Packets that are being written.
struct Packets<'a> {
    trace: &'a Trace,
    out: &'a mut dyn Write,
    /// Names that are interned already.
    told: HashSet<u32>,
}

pub(super) fn write(trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
    let mut packets = Packets { trace, out, told: HashSet::new() };
    packets.begin()?;
    packets.tracks()?;
    let (mut pairs, mut ended) = (Pairs::default(), Vec::new());
    let mut off_cpu: HashSet<ThreadId> = HashSet::new();
    let mut last_ns = 0;
    for (index, event) in trace.events.iter().enumerate() {
        last_ns = event.time_ns;
        let began = pairs.take(event, event.time_ns, &mut ended);
        for slice in ended.drain(..) {
            packets.end(slice.end_ns, thread_track(slice.thread), Some((index, event)))?;
        }
        match event.kind {
            EventKind::SwitchOut => {
                // A second switch without a return: the return was lost.
                if !off_cpu.insert(event.thread) {
                    packets.end(event.time_ns, off_cpu_track(event.thread), None)?;
                }
                packets.off_cpu(index, event)?;
            }
            EventKind::SwitchIn => {
                if off_cpu.remove(&event.thread) {
                    let by = Some((index, event));
                    packets.end(event.time_ns, off_cpu_track(event.thread), by)?;
                }
            }
            kind if kind.opens() => {
                if began {
                    packets.event(index, event, SLICE_BEGIN)?;
                }
            }
            kind if kind.closes().is_some() => {}
            _ => packets.event(index, event, INSTANT)?,
        }
    }
    pairs.finish(last_ns, &mut ended);
    for slice in ended.drain(..) {
        packets.end(slice.end_ns, thread_track(slice.thread), None)?;
    }
    let mut left: Vec<ThreadId> = off_cpu.into_iter().collect();
    left.sort();
    left.into_iter().try_for_each(|thread| packets.end(last_ns, off_cpu_track(thread), None))
}

impl Packets<'_> {
    fn put(&mut self, packet: &mut Message) -> io::Result<()> {
        packet.number(field::PACKET_SEQUENCE, SEQUENCE);
        let mut trace = Message::default();
        trace.message(field::TRACE_PACKET, packet);
        self.out.write_all(&trace.take())
    }

    /// The clock, defaults, and the names of annotations.
    fn begin(&mut self) -> io::Result<()> {
        let begun = self.trace.facts.begun_ns;
        let mut snapshot = Message::default();
        // The clocks differ by the time that the machine was suspended, which traces do not know.
        for clock in [BOOTTIME, MONOTONIC] {
            let mut of_clock = Message::default();
            of_clock.number(field::CLOCK_ID, clock).number(field::CLOCK_TIMESTAMP, begun);
            snapshot.message(field::SNAPSHOT_CLOCK, &of_clock);
        }
        snapshot.number(field::SNAPSHOT_PRIMARY, MONOTONIC);
        let mut packet = Message::default();
        packet.message(field::PACKET_CLOCK_SNAPSHOT, &snapshot);
        self.put(&mut packet)?;
        let (mut defaults, mut interned) = (Message::default(), Message::default());
        defaults.number(field::DEFAULTS_TIMESTAMP_CLOCK, MONOTONIC);
        for (iid, name) in ANNOTATIONS {
            interned.message(field::INTERNED_ANNOTATION_NAME, &interning(iid, name));
        }
        for (iid, name) in [WAITS, PREEMPTED] {
            interned.message(field::INTERNED_NAME, &interning(iid, name));
        }
        let mut packet = Message::default();
        packet.number(field::PACKET_SEQUENCE_FLAGS, STATE_CLEARED);
        packet.message(field::PACKET_DEFAULTS, &defaults);
        packet.message(field::PACKET_INTERNED, &interned);
        self.put(&mut packet)
    }

    /// Descriptors of processes, threads and their time off the CPU.
    fn tracks(&mut self) -> io::Result<()> {
        let mut processes = HashSet::new();
        let has_switches = self.trace.events.iter().any(|event| event.kind == EventKind::SwitchOut);
        for (number, thread) in self.trace.threads.iter().enumerate() {
            let id = ThreadId(u32::try_from(number).unwrap_or(u32::MAX));
            if processes.insert(thread.pid) {
                let mut process = Message::default();
                process.number(field::PROCESS_PID, thread.pid.into());
                process.bytes(field::PROCESS_NAME, thread.command.as_bytes());
                let mut track = Message::default();
                track.number(field::TRACK_UUID, process_track(thread.pid));
                track.message(field::TRACK_PROCESS, &process);
                self.put(Message::default().message(field::PACKET_TRACK_DESCRIPTOR, &track))?;
            }
            let mut of_thread = Message::default();
            of_thread.number(field::THREAD_PID, thread.pid.into());
            of_thread.number(field::THREAD_TID, thread.tid.into());
            of_thread.bytes(field::THREAD_NAME, thread.command.as_bytes());
            let mut track = Message::default();
            track.number(field::TRACK_UUID, thread_track(id));
            track.number(field::TRACK_PARENT, process_track(thread.pid));
            track.message(field::TRACK_THREAD, &of_thread);
            self.put(Message::default().message(field::PACKET_TRACK_DESCRIPTOR, &track))?;
            if has_switches {
                let mut track = Message::default();
                track.number(field::TRACK_UUID, off_cpu_track(id));
                track.number(field::TRACK_PARENT, thread_track(id));
                track.bytes(field::TRACK_NAME, OFF_CPU.as_bytes());
                self.put(Message::default().message(field::PACKET_TRACK_DESCRIPTOR, &track))?;
            }
        }
        Ok(())
    }

    fn packet(&self, time_ns: u64) -> Message {
        let mut packet = Message::default();
        packet.number(field::PACKET_TIMESTAMP, time_ns);
        packet.number(field::PACKET_SEQUENCE_FLAGS, NEEDS_STATE);
        packet
    }

    /// Writes the start of a slice, or an instant.
    fn event(&mut self, index: usize, event: &Event, kind: u64) -> io::Result<()> {
        let Some(name) = self.trace.name(event) else { return Ok(()) };
        let mut packet = self.packet(event.time_ns);
        let iid = FIRST_NAME + u64::from(event.name.0);
        let category_iid = name.kind as u64 + 1;
        if self.told.insert(event.name.0) {
            let mut interned = Message::default();
            // The category is interned again with each name, which the format allows.
            let category = interning(category_iid, category(name.kind));
            interned.message(field::INTERNED_CATEGORY, &category);
            interned.message(field::INTERNED_NAME, &interning(iid, &name.text));
            packet.message(field::PACKET_INTERNED, &interned);
        }
        let mut of_event = Message::default();
        of_event.number(field::EVENT_TYPE, kind);
        of_event.number(field::EVENT_TRACK, thread_track(event.thread));
        of_event.number(field::EVENT_NAME_IID, iid);
        of_event.number(field::EVENT_CATEGORY_IID, category_iid);
        if !matches!(event.kind, EventKind::Enter | EventKind::SyscallEnter | EventKind::Instant) {
            let mut annotation = Message::default();
            annotation.number(field::ANNOTATION_NAME_IID, KIND.0);
            annotation.bytes(field::ANNOTATION_STRING, event.kind.word().as_bytes());
            of_event.message(field::EVENT_ANNOTATION, &annotation);
        }
        self.annotate(index, event, &mut of_event);
        packet.message(field::PACKET_TRACK_EVENT, &of_event);
        self.put(&mut packet)
    }

    /// Adds the argument, the CPU and the corrected times of an event.
    fn annotate(&self, index: usize, event: &Event, to: &mut Message) {
        let mut number = |name: (u64, &str), kind: u64, value: u64| {
            let mut annotation = Message::default();
            annotation.number(field::ANNOTATION_NAME_IID, name.0).told_number(kind, value);
            to.message(field::EVENT_ANNOTATION, &annotation);
        };
        if event.argument != 0 {
            number(ARGUMENT, field::ANNOTATION_INT, event.argument);
        }
        if let Some(cpu) = event.cpu {
            number(CPU, field::ANNOTATION_UINT, cpu.number().into());
        }
        if let Some(Corrected { low_ns, value_ns, high_ns }) = self.trace.corrected.get(index) {
            number(LOW, field::ANNOTATION_UINT, *low_ns);
            number(VALUE, field::ANNOTATION_UINT, *value_ns);
            number(HIGH, field::ANNOTATION_UINT, *high_ns);
        }
    }

    /// Writes the end of a track's innermost slice, with the annotations of the event that ends it.
    fn end(&mut self, time_ns: u64, track: u64, by: Option<(usize, &Event)>) -> io::Result<()> {
        let mut packet = self.packet(time_ns);
        let mut of_event = Message::default();
        of_event.number(field::EVENT_TYPE, SLICE_END).number(field::EVENT_TRACK, track);
        if let Some((index, event)) = by {
            self.annotate(index, event, &mut of_event);
        }
        packet.message(field::PACKET_TRACK_EVENT, &of_event);
        self.put(&mut packet)
    }

    /// The start of a time off the CPU.
    fn off_cpu(&mut self, index: usize, event: &Event) -> io::Result<()> {
        let (iid, _) = if event.argument == 0 { WAITS } else { PREEMPTED };
        let mut packet = self.packet(event.time_ns);
        let mut of_event = Message::default();
        of_event.number(field::EVENT_TYPE, SLICE_BEGIN);
        of_event.number(field::EVENT_TRACK, off_cpu_track(event.thread));
        of_event.number(field::EVENT_NAME_IID, iid);
        self.annotate(index, &Event { argument: 0, ..*event }, &mut of_event);
        packet.message(field::PACKET_TRACK_EVENT, &of_event);
        self.put(&mut packet)
    }
}

fn interning(iid: u64, name: &str) -> Message {
    let mut message = Message::default();
    message.number(field::IID, iid).bytes(field::IID_NAME, name.as_bytes());
    message
}

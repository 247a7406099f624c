//! Reads TrackEvents of any program: names interned or not, incremental clocks, tracks of threads,
//! processes and others. Other packets (ftrace, counters, memory) are skipped.

use std::collections::HashMap;

use protobuf::{Fields, Value};

use super::{INSTANT, SLICE_BEGIN, SLICE_END, field};
use crate::event::{EventKind, NameId, NameKind, Trace};
use crate::formats::collect::{Collector, Seen, text_of};
use crate::formats::of_category;
use crate::reader::ReadError;

/// Most interned texts of all sequences; events with later ones have no name.
const INTERNED_MAX: usize = 1 << 20;
/// Most bytes of interned texts of all sequences.
const INTERNED_BYTES_MAX: usize = 64 << 20;
/// Sequences and tracks, at most.
const SEQUENCES_MAX: usize = 1 << 16;
const TRACKS_MAX: usize = 1 << 20;
/// Open slices of a track whose names are remembered for their ends.
const DEPTH_MAX: usize = 1 << 14;

/// Whether the bytes begin with a packet: field 1 of the trace, and its length.
pub(in crate::formats) fn is_begin(bytes: &[u8]) -> bool {
    let packet = Fields::of(bytes).next();
    let Some((field::TRACE_PACKET, Value::Bytes(packet))) = packet else { return false };
    let mut fields = Fields::of(packet);
    fields.by_ref().count() > 0 && fields.is_whole()
}

pub(in crate::formats) fn read(bytes: &[u8]) -> Result<Trace, ReadError> {
    let mut reader = Reader::default();
    let mut packets = Fields::of(bytes);
    for (number, packet) in packets.by_ref() {
        let packet = packet.bytes().filter(|_| number == field::TRACE_PACKET);
        if packet.and_then(|packet| reader.packet(packet)).is_none() {
            reader.collector.skipped += 1;
        }
    }
    reader.collector.trace.facts.clock = "that of the trace's source".into();
    let is_whole = packets.is_whole();
    let mut trace = reader.collector.finish("Perfetto's packets", "a trace of Perfetto")?;
    if !is_whole {
        trace.cut = Some("the file ends within a packet; it is read up to there".into());
    }
    Ok(trace)
}

#[derive(Default)]
struct Reader {
    collector: Collector,
    sequences: HashMap<u64, Sequence>,
    tracks: HashMap<u64, Track>,
    interned: Interned,
}

/// Room that the interned texts of all sequences take.
#[derive(Default)]
struct Interned {
    texts: usize,
    bytes: usize,
}

impl Interned {
    fn takes(&mut self, text: &str) -> bool {
        let fits = self.texts < INTERNED_MAX && self.bytes + text.len() <= INTERNED_BYTES_MAX;
        if fits {
            self.texts += 1;
            self.bytes += text.len();
        }
        fits
    }

    fn forgets(&mut self, texts: &mut HashMap<u64, String>) {
        texts.drain().for_each(|(_, text)| self.gives_back(&text));
    }

    fn gives_back(&mut self, text: &str) {
        self.texts = self.texts.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(text.len());
    }
}

/// The state shared by packets of one sequence.
#[derive(Default)]
struct Sequence {
    names: HashMap<u64, String>,
    categories: HashMap<u64, String>,
    annotations: HashMap<u64, String>,
    default_clock: Option<u64>,
    default_track: Option<u64>,
    /// Clocks of this sequence alone.
    clocks: HashMap<u64, Clock>,
}

#[derive(Clone, Copy, Default)]
struct Clock {
    now: u64,
    is_incremental: bool,
    unit_ns: u64,
}

#[derive(Default)]
struct Track {
    /// Process and thread; None: those of the parent.
    who: Option<(u32, u32)>,
    parent: Option<u64>,
    /// Whether it is a track, written by dcpi, of a thread's time off the CPU.
    is_off_cpu: bool,
    open: Vec<(EventKind, NameId)>,
}

/// The fields of a TrackEvent that are used.
#[derive(Default)]
struct TrackEvent<'a> {
    kind: u64,
    track: Option<u64>,
    name: Option<&'a [u8]>,
    name_iid: Option<u64>,
    category: Option<&'a [u8]>,
    category_iid: Option<u64>,
    /// Kind of the event, from an annotation that dcpi writes.
    told_kind: Option<EventKind>,
    argument: u64,
    cpu: Option<u32>,
}

impl Reader {
    /// Reads a packet; None where it has no event that is used.
    fn packet(&mut self, packet: &[u8]) -> Option<()> {
        let mut sequence_number = 0;
        for (number, value) in Fields::of(packet) {
            if number == field::PACKET_SEQUENCE {
                sequence_number = value.number()?;
            }
        }
        if self.sequences.len() >= SEQUENCES_MAX && !self.sequences.contains_key(&sequence_number) {
            return None;
        }
        let sequence = self.sequences.entry(sequence_number).or_default();
        let (mut time, mut clock, mut event) = (0, None, None);
        let mut is_used = false;
        for (number, value) in Fields::of(packet) {
            match (number, value) {
                (field::PACKET_TIMESTAMP, value) => time = value.number()?,
                (field::PACKET_TIMESTAMP_CLOCK, value) => clock = value.number(),
                (field::PACKET_SEQUENCE_FLAGS, value) if value.number()? & 1 != 0 => {
                    self.interned.forgets(&mut sequence.names);
                    self.interned.forgets(&mut sequence.categories);
                    self.interned.forgets(&mut sequence.annotations);
                }
                (field::PACKET_DEFAULTS, Value::Bytes(bytes)) => {
                    sequence.defaults(bytes);
                    is_used = true;
                }
                (field::PACKET_CLOCK_SNAPSHOT, Value::Bytes(bytes)) => {
                    sequence.snapshot(bytes);
                    is_used = true;
                }
                (field::PACKET_INTERNED, Value::Bytes(bytes)) => {
                    sequence.intern(bytes, &mut self.interned);
                    is_used = true;
                }
                (field::PACKET_TRACK_DESCRIPTOR, Value::Bytes(bytes)) => {
                    if self.tracks.len() >= TRACKS_MAX {
                        return None;
                    }
                    describe(bytes, &mut self.tracks, &mut self.collector)?;
                    is_used = true;
                }
                (field::PACKET_TRACK_EVENT, Value::Bytes(bytes)) => event = Some(bytes),
                _ => {}
            }
        }
        let Some(event) = event else { return is_used.then_some(()) };
        let time_ns = sequence.time(time, clock);
        self.event(sequence_number, time_ns, event)
    }

    fn event(&mut self, sequence: u64, time_ns: u64, bytes: &[u8]) -> Option<()> {
        let sequence = self.sequences.get(&sequence)?;
        let event = sequence.event(bytes);
        let uuid = event.track.or(sequence.default_track).unwrap_or_default();
        if self.tracks.len() >= TRACKS_MAX && !self.tracks.contains_key(&uuid) {
            return None;
        }
        let off_cpu = self.tracks.get(&uuid).filter(|track| track.is_off_cpu);
        let off_cpu = off_cpu.and_then(|track| self.tracks.get(&track.parent?)?.who);
        let who = off_cpu.unwrap_or_else(|| thread_of(uuid, &self.tracks));
        let track = self.tracks.entry(uuid).or_default();
        let name = event.name.map(text_of);
        let interned = || sequence.names.get(&event.name_iid?).map(|name| name.as_str().into());
        let name = name.or_else(interned).unwrap_or_default();
        let category = event.category.map(text_of);
        let interned =
            || sequence.categories.get(&event.category_iid?).map(|name| name.as_str().into());
        let category = of_category(&category.or_else(interned).unwrap_or_default());
        let (cpu, argument) = (event.cpu, event.argument);
        let mut add = |kind, name: (NameKind, &str)| {
            self.collector.event(&Seen { time_ns, who, cpu, kind, argument, name });
        };
        match event.kind {
            SLICE_BEGIN if off_cpu.is_some() => {
                let argument = u64::from(name == super::PREEMPTED.1);
                let (kind, name) = (EventKind::SwitchOut, (NameKind::Sched, "switch"));
                self.collector.event(&Seen { time_ns, who, cpu, kind, argument, name });
            }
            SLICE_END if off_cpu.is_some() => add(EventKind::SwitchIn, (NameKind::Sched, "switch")),
            SLICE_BEGIN => {
                let of = if category == NameKind::Other { NameKind::Procedure } else { category };
                let opener = match event.told_kind {
                    Some(kind) if kind.opens() => kind,
                    _ if of == NameKind::Syscall => EventKind::SyscallEnter,
                    _ => EventKind::Enter,
                };
                // An event without room opens no slice, so the limit holds.
                let id = self.collector.name(of, &name).filter(|_| self.collector.has_room());
                if let Some(id) = id.filter(|_| track.open.len() < DEPTH_MAX) {
                    track.open.push((opener, id));
                }
                let name = (of, name.as_ref());
                self.collector.event(&Seen { time_ns, who, cpu, kind: opener, argument, name });
            }
            SLICE_END => {
                let (opener, id) = track.open.pop()?;
                let kind = opener.closer();
                let name = self.collector.trace.names.get(id.0 as usize)?;
                let (of, text) = (name.kind, name.text.clone());
                let name = (of, text.as_str());
                self.collector.event(&Seen { time_ns, who, cpu, kind, argument, name });
            }
            INSTANT => add(event.told_kind.unwrap_or(EventKind::Instant), (category, &name)),
            _ => return None, // counters
        }
        Some(())
    }
}

/// The thread of a track: its own, or that of the track above. Tracks of no thread are threads of
/// their own, with numbers that no thread of Linux has (above PID_MAX_LIMIT, 2^22).
fn thread_of(uuid: u64, tracks: &HashMap<u64, Track>) -> (u32, u32) {
    let mut at = uuid;
    // Bounded, because parents of tracks may form a cycle.
    for _ in 0..8 {
        match tracks.get(&at) {
            Some(Track { who: Some(who), .. }) if at == uuid => return *who,
            // A track below a thread or process, such as asynchronous work: beside, not within.
            Some(Track { who: Some((pid, _)), .. }) => return (*pid, beside(uuid)),
            Some(Track { parent: Some(parent), .. }) => at = *parent,
            _ => break,
        }
    }
    (0, beside(uuid))
}

fn beside(uuid: u64) -> u32 {
    let folded = (uuid ^ uuid >> 32) as u32;
    folded | 1 << 31
}

fn describe(
    bytes: &[u8],
    tracks: &mut HashMap<u64, Track>,
    collector: &mut Collector,
) -> Option<()> {
    let (mut uuid, mut parent, mut who, mut name) = (0, None, None, None);
    for (number, value) in Fields::of(bytes) {
        match (number, value) {
            (field::TRACK_UUID, value) => uuid = value.number()?,
            (field::TRACK_PARENT, value) => parent = value.number(),
            (field::TRACK_NAME, Value::Bytes(text)) => name = Some(text),
            (field::TRACK_THREAD, Value::Bytes(thread)) => {
                let (mut pid, mut tid) = (0, 0);
                for (number, value) in Fields::of(thread) {
                    match (number, value) {
                        (field::THREAD_PID, value) => pid = value.number()?,
                        (field::THREAD_TID, value) => tid = value.number()?,
                        (field::THREAD_NAME, Value::Bytes(text)) => name = Some(text),
                        _ => {}
                    }
                }
                // Numbers are int32 in the schema.
                who = Some((pid as u32, tid as u32));
            }
            (field::TRACK_PROCESS, Value::Bytes(process)) if who.is_none() => {
                for (number, value) in Fields::of(process) {
                    match (number, value) {
                        (field::PROCESS_PID, value) => {
                            let pid = value.number()? as u32;
                            who = Some((pid, pid));
                        }
                        (field::PROCESS_NAME, Value::Bytes(text)) => name = Some(text),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    let track = tracks.entry(uuid).or_default();
    (track.who, track.parent) = (who.or(track.who), parent.or(track.parent));
    if name == Some(super::OFF_CPU.as_bytes()) && parent.is_some() {
        track.is_off_cpu = true;
        return Some(());
    }
    let who = who.unwrap_or_else(|| thread_of(uuid, tracks));
    if let Some(name) = name.filter(|name| !name.is_empty()) {
        collector.set_command(who, &text_of(name));
    }
    Some(())
}

impl Sequence {
    fn defaults(&mut self, bytes: &[u8]) {
        for (number, value) in Fields::of(bytes) {
            match (number, value) {
                (field::DEFAULTS_TIMESTAMP_CLOCK, value) => self.default_clock = value.number(),
                (field::DEFAULTS_TRACK_EVENT, Value::Bytes(bytes)) => {
                    let track = Fields::of(bytes).find(|(n, _)| *n == field::EVENT_DEFAULTS_TRACK);
                    self.default_track = track.and_then(|(_, value)| value.number());
                }
                _ => {}
            }
        }
    }

    fn snapshot(&mut self, bytes: &[u8]) {
        for (number, value) in Fields::of(bytes) {
            let (field::SNAPSHOT_CLOCK, Value::Bytes(bytes)) = (number, value) else { continue };
            let (mut id, mut clock) = (0, Clock { unit_ns: 1, ..Clock::default() });
            for (number, value) in Fields::of(bytes) {
                let value = value.number().unwrap_or_default();
                match number {
                    field::CLOCK_ID => id = value,
                    field::CLOCK_TIMESTAMP => clock.now = value,
                    field::CLOCK_IS_INCREMENTAL => clock.is_incremental = value != 0,
                    field::CLOCK_UNIT_NS => clock.unit_ns = value.max(1),
                    _ => {}
                }
            }
            // Clocks below 64 are the system's; those from 64 on are the sequence's own.
            if id >= 64 && self.clocks.len() < 64 {
                self.clocks.insert(id, clock);
            }
        }
    }

    fn intern(&mut self, bytes: &[u8], interned: &mut Interned) {
        for (number, value) in Fields::of(bytes) {
            let map = match number {
                field::INTERNED_CATEGORY => &mut self.categories,
                field::INTERNED_NAME => &mut self.names,
                field::INTERNED_ANNOTATION_NAME => &mut self.annotations,
                _ => continue,
            };
            let Value::Bytes(bytes) = value else { continue };
            let (mut iid, mut name) = (0, "".into());
            for (number, value) in Fields::of(bytes) {
                match (number, value) {
                    (field::IID, value) => iid = value.number().unwrap_or_default(),
                    (field::IID_NAME, Value::Bytes(text)) => name = text_of(text),
                    _ => {}
                }
            }
            if interned.takes(&name)
                && let Some(before) = map.insert(iid, name.into_owned())
            {
                interned.gives_back(&before);
            }
        }
    }

    /// ns of a timestamp.
    fn time(&mut self, time: u64, clock: Option<u64>) -> u64 {
        let clock = clock.or(self.default_clock).and_then(|clock| self.clocks.get_mut(&clock));
        let Some(clock) = clock else { return time };
        if clock.is_incremental {
            clock.now = clock.now.wrapping_add(time);
            return clock.now.wrapping_mul(clock.unit_ns);
        }
        time.wrapping_mul(clock.unit_ns)
    }

    fn event<'a>(&self, bytes: &'a [u8]) -> TrackEvent<'a> {
        let mut event = TrackEvent::default();
        for (number, value) in Fields::of(bytes) {
            match (number, value) {
                (field::EVENT_TYPE, value) => event.kind = value.number().unwrap_or_default(),
                (field::EVENT_TRACK, value) => event.track = value.number(),
                (field::EVENT_NAME, Value::Bytes(name)) => event.name = Some(name),
                (field::EVENT_NAME_IID, value) => event.name_iid = value.number(),
                (field::EVENT_CATEGORY, Value::Bytes(name)) => event.category = Some(name),
                (field::EVENT_CATEGORY_IID, value) => event.category_iid = value.number(),
                (field::EVENT_ANNOTATION, Value::Bytes(bytes)) => self.annotate(bytes, &mut event),
                _ => {}
            }
        }
        event
    }

    /// Reads the annotations that dcpi writes, and no others.
    fn annotate(&self, bytes: &[u8], event: &mut TrackEvent<'_>) {
        let (mut name, mut number_of, mut text) = (None, None, None);
        for (number, value) in Fields::of(bytes) {
            match (number, value) {
                (field::ANNOTATION_NAME_IID, value) => {
                    let iid = value.number().unwrap_or_default();
                    name = self.annotations.get(&iid).map(|name| name.as_bytes());
                }
                (field::ANNOTATION_NAME, Value::Bytes(bytes)) => name = Some(bytes),
                (field::ANNOTATION_UINT | field::ANNOTATION_INT, value) => {
                    number_of = value.number();
                }
                (field::ANNOTATION_STRING, Value::Bytes(bytes)) => text = Some(bytes),
                _ => {}
            }
        }
        match (name, number_of, text) {
            (Some(b"argument"), Some(value), _) => event.argument = value,
            (Some(b"cpu"), value, _) => {
                event.cpu = u32::try_from(value.unwrap_or_default()).ok();
            }
            (Some(b"kind"), _, Some(word)) => {
                let word = std::str::from_utf8(word).unwrap_or_default();
                event.told_kind = EventKind::of_word(word);
            }
            _ => {}
        }
    }
}

//! The profiles signal of OpenTelemetry: a message `ProfilesData`, not compressed
//! (github.com/open-telemetry/opentelemetry-proto 1.10.0,
//! opentelemetry/proto/profiles/v1development/profiles.proto, with common/v1/common.proto and
//! resource/v1/resource.proto; messages and field numbers below are those of these files). The
//! signal is alpha: its next version may number them otherwise.
//!
//! A resource for the samples without scope and one for each label, unit and process kept apart;
//! in it a profile for each event, whose values are samples and whose period is the occurrences
//! that one stands for; of an event that has stacks only, the values are its time. A call stack has
//! its thread as attributes; a sample without call stack has a stack of one location. Addresses are
//! those in the file. Names of
//! attributes are those of the semantic conventions (opentelemetry.io, "Attribute registry": host,
//! process, profile, pprof), and `dcpi.*` where they have none. A mapping without GNU build id has
//! `dcpi.image_id`.

use std::collections::HashMap;
use std::io::{self, Write};

use image::ImageKind;
use model::{Attributes, Thread};
use profiledb::Scope;

use super::pieces::Piece;
use super::stacks::StackFrame;
use super::{Call, Carried, Event, Image, Place, Resolved, UNKNOWN_CODE};
use protobuf::{Message, signed};

/// Fields of message `ProfilesDictionary`.
mod table {
    pub(super) const MAPPING: u64 = 1;
    pub(super) const LOCATION: u64 = 2;
    pub(super) const FUNCTION: u64 = 3;
    pub(super) const LINK: u64 = 4;
    pub(super) const STRING: u64 = 5;
    pub(super) const ATTRIBUTE: u64 = 6;
    pub(super) const STACK: u64 = 7;
    /// All of them.
    pub(super) const ALL: std::ops::RangeInclusive<u64> = 1..=7;
}

/// Writes the samples of all events.
pub fn write(resolved: &Resolved, out: &mut dyn Write) -> io::Result<Carried> {
    let mut dictionary = Dictionary::new();
    let mut samples = BySource::new(resolved);
    let mut locations: HashMap<StackFrame, u64> = HashMap::new();
    for (number, image) in resolved.images.iter().enumerate() {
        let pieces =
            image.pieces().into_iter().map(|piece| (dictionary.mapping(image, piece), piece));
        let pieces: Vec<(u64, Piece)> = pieces.collect();
        for (at, place) in image.places.iter().enumerate() {
            let is_sampled = place.counts.iter().any(|(_, counts)| some(counts));
            if !is_sampled && resolved.stacks.is_empty() {
                continue;
            }
            let location = dictionary.place(image, place, &pieces);
            locations.insert(StackFrame::Place(number, at), location);
            if is_sampled {
                let stack = dictionary.stack(vec![location]);
                place.counts.iter().for_each(|(scope, counts)| {
                    samples.add(samples.of_scope(*scope), stack, counts);
                });
            }
        }
    }
    add_stacks(resolved, &mut dictionary, &mut samples, &mut locations);
    for (reason, counts) in resolved.unknown_code().into_iter().filter(|(_, counts)| some(counts)) {
        let name = format!("{UNKNOWN_CODE} {reason}");
        let location = dictionary.words(&name);
        let stack = dictionary.stack(vec![location]);
        samples.add(NOBODY, stack, &counts);
    }
    let mut data = Message::default();
    for (source, profiles) in
        samples.sources.iter().zip(samples.profiles.chunks(resolved.events.len().max(1)))
    {
        if let Some(of_source) = resource(resolved, source, profiles, &mut dictionary) {
            data.message(1, &of_source);
        }
    }
    data.message(2, &dictionary.body);
    out.write_all(&data.take())?;
    out.flush()?;
    let samples = resolved.events.iter().map(|event| event.samples.saturating_add(event.unknown()));
    let several =
        "samples of several hosts are one resource without a name; choose a host with --host"
            .to_owned();
    let notes = if resolved.hosts.len() > 1 { vec![several] } else { Vec::new() };
    Ok(Carried { samples: samples.collect(), notes, ..Carried::default() })
}

/// Adds the call stacks, with their threads as attributes.
fn add_stacks(
    resolved: &Resolved,
    dictionary: &mut Dictionary,
    samples: &mut BySource,
    locations: &mut HashMap<StackFrame, u64>,
) {
    let stacks = &resolved.stacks;
    for sample in &stacks.samples {
        let mut path = Vec::new();
        for frame in stacks.frames(sample.node) {
            let known = locations.get(frame).copied();
            path.push(known.unwrap_or_else(|| {
                let location = dictionary.words(&resolved.frame_names(frame).concat());
                locations.insert(frame.clone(), location);
                location
            }));
        }
        let stack = dictionary.stack(path);
        let thread = stacks.thread(sample);
        let attributes = thread.map(|thread| dictionary.thread(thread)).unwrap_or_default();
        let link = thread.map_or(0, |thread| dictionary.link(thread));
        let is_time = resolved.events.get(sample.event).is_some_and(|event| event.period == 0);
        let value = if is_time { sample.occurrences } else { sample.samples };
        let source = samples.of_scope(sample.scope);
        samples.add_one((source, sample.event), stack, (&attributes, link), value);
    }
}

fn some(counts: &[u64]) -> bool {
    counts.iter().any(|count| *count > 0)
}

/// The source of samples that were not kept apart.
const NOBODY: usize = 0;

/// Messages `Sample` by source and event.
struct BySource {
    sources: Vec<Scope>,
    /// Field `samples` of the profiles of each source, event by event.
    profiles: Vec<Message>,
    events: usize,
    /// How many sources come before those of [`Resolved::scopes`].
    before: usize,
}

impl BySource {
    fn new(resolved: &Resolved) -> Self {
        // Scopes are sorted: the scope without label, unit and process comes first, if it exists.
        let before = usize::from(resolved.scopes.first() != Some(&Scope::default()));
        let sources =
            std::iter::repeat_n(Scope::default(), before).chain(resolved.scopes.iter().cloned());
        let sources: Vec<Scope> = sources.collect();
        let events = resolved.events.len();
        let profiles = std::iter::repeat_with(Message::default)
            .take(sources.len().saturating_mul(events))
            .collect();
        Self { sources, profiles, events, before }
    }

    fn of_scope(&self, scope: usize) -> usize {
        scope.saturating_add(self.before)
    }

    /// Samples of a stack, by event.
    fn add(&mut self, source: usize, stack: u64, counts: &[u64]) {
        for (event, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            self.add_one((source, event), stack, (&[], 0), *count);
        }
    }

    /// Message `Sample`: stack_index, attribute_indices, link_index, values.
    fn add_one(
        &mut self,
        (source, event): (usize, usize),
        stack: u64,
        (attributes, link): (&[u64], u64),
        value: u64,
    ) {
        let at = source.saturating_mul(self.events).saturating_add(event);
        if let Some(profile) = self.profiles.get_mut(at).filter(|_| event < self.events) {
            let mut sample = Message::default();
            sample.number(1, stack).numbers(2, attributes.iter().copied());
            sample.number(3, link).numbers(4, [signed(value)]);
            profile.message(2, &sample);
        }
    }
}

/// Message `ResourceProfiles`: resource (message `Resource`: attributes), scope_profiles (message
/// `ScopeProfiles`: scope, profiles). None where it has no samples.
fn resource(
    resolved: &Resolved,
    source: &Scope,
    samples: &[Message],
    dictionary: &mut Dictionary,
) -> Option<Message> {
    let mut whose = Message::default();
    let host = resolved.hosts.first().filter(|_| resolved.hosts.len() == 1);
    for (key, text) in [
        ("host.name", host),
        ("dcpi.label", source.label.as_ref()),
        ("dcpi.unit", source.unit.as_ref()),
    ] {
        if let Some(text) = text {
            whose.message(1, &key_value(key, &Value::Text(text.clone())));
        }
    }
    if let Some(pid) = source.pid {
        whose.message(1, &key_value("process.pid", &Value::Number(u64::from(pid))));
    }
    let mut profiles = Message::default();
    // Message `InstrumentationScope`: name, version.
    let mut scope = Message::default();
    scope.bytes(1, b"dcpi").bytes(2, env!("CARGO_PKG_VERSION").as_bytes());
    profiles.message(1, &scope);
    for (event, samples) in
        resolved.events.iter().zip(samples).filter(|(_, samples)| !samples.is_empty())
    {
        profiles.message(2, &profile(resolved, event, samples, dictionary));
    }
    let mut message = Message::default();
    message.message(1, &whose).message(2, &profiles);
    samples.iter().any(|samples| !samples.is_empty()).then_some(message)
}

/// Message `Profile`: sample_type, samples, time_unix_nano, duration_nano, period_type, period,
/// attribute_indices.
fn profile(
    resolved: &Resolved,
    event: &Event,
    samples: &Message,
    dictionary: &mut Dictionary,
) -> Message {
    const NS_PER_S: u64 = 1_000_000_000;
    // The specification's examples call processors' time and cycles "cpu".
    let (kind, unit) = match event.unit.as_str() {
        "ns" => ("cpu", "nanoseconds"),
        "cycles" => ("cpu", "cycles"),
        _ => (event.name.as_str(), "count"),
    };
    let attributes = [
        dictionary.attribute("dcpi.event", Value::Text(event.name.clone())),
        dictionary.attribute("pprof.profile.comment", Value::Texts(resolved.comments())),
    ];
    let duration_s = resolved.ended_unix_s.saturating_sub(resolved.started_unix_s);
    // Events that have stacks only have values that are times.
    let value = match event.period {
        0 => dictionary.value_type(&event.name, "nanoseconds"),
        _ => dictionary.value_type(&resolved.samples_name(event), "count"),
    };
    let period = if event.period == 0 { 0 } else { event.occurrences(1) };
    let mut message = Message::default();
    message
        .message(1, &value)
        .fields(samples)
        .fixed64(3, resolved.started_unix_s.saturating_mul(NS_PER_S))
        .number(4, duration_s.saturating_mul(NS_PER_S))
        .message(5, &dictionary.value_type(kind, unit))
        .number(6, signed(period))
        .numbers(11, attributes);
    message
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Value {
    Text(String),
    Number(u64),
    Texts(Vec<String>),
}

/// Message `AnyValue`: string_value, int_value, array_value (message `ArrayValue`: values).
fn any_value(value: &Value) -> Message {
    let text = |text: &str| {
        let mut message = Message::default();
        message.bytes(1, text.as_bytes());
        message
    };
    match value {
        Value::Text(value) => text(value),
        Value::Number(number) => {
            let mut message = Message::default();
            message.number(3, *number);
            message
        }
        Value::Texts(texts) => {
            let (mut message, mut values) = (Message::default(), Message::default());
            for one in texts {
                values.message(1, &text(one));
            }
            message.message(5, &values);
            message
        }
    }
}

/// Message `KeyValue`: key, value.
fn key_value(key: &str, value: &Value) -> Message {
    let mut message = Message::default();
    message.bytes(1, key.as_bytes()).message(2, &any_value(value));
    message
}

/// Keys of what every thread has. Keys of a sample are unique, so a program's own are left out
/// where they are the same.
const OF_THREADS: [&str; 4] = ["dcpi.command", "thread.name", "process.pid", "thread.id"];

/// The identity of the request that a thread worked for.
fn request(thread: &Thread) -> Option<(u128, u64)> {
    let trace = thread.attributes.get(Attributes::TRACE_ID).filter(|id| id.len() == 32)?;
    let span = thread.attributes.get(Attributes::SPAN_ID).filter(|id| id.len() == 16)?;
    Some((u128::from_str_radix(trace, 16).ok()?, u64::from_str_radix(span, 16).ok()?))
}

/// Message `ProfilesDictionary`. The first entry of each table is empty and stands for none.
#[derive(Default)]
struct Dictionary {
    body: Message,
    strings: HashMap<String, u64>,
    functions: HashMap<(u64, u64, u64), u64>,
    attributes: HashMap<(u64, Value), u64>,
    links: HashMap<(u128, u64), u64>,
    stacks: HashMap<Vec<u64>, u64>,
    /// Entries but the first.
    mappings: u64,
    locations: u64,
}

impl Dictionary {
    fn new() -> Self {
        let mut dictionary = Self::default();
        for table in table::ALL {
            dictionary.body.bytes(table, b"");
        }
        dictionary.strings.insert(String::new(), 0);
        dictionary
    }

    fn text(&mut self, text: &str) -> u64 {
        if let Some(number) = self.strings.get(text) {
            return *number;
        }
        let number = self.strings.len() as u64;
        self.body.bytes(table::STRING, text.as_bytes());
        self.strings.insert(text.to_owned(), number);
        number
    }

    /// Message `ValueType`: type_strindex, unit_strindex.
    fn value_type(&mut self, kind: &str, unit: &str) -> Message {
        let mut message = Message::default();
        message.number(1, self.text(kind)).number(2, self.text(unit));
        message
    }

    /// Message `KeyValueAndUnit`: key_strindex, value.
    fn attribute(&mut self, key: &str, value: Value) -> u64 {
        let key = self.text(key);
        let next = self.attributes.len() as u64 + 1;
        let mut message = Message::default();
        message.number(1, key).message(2, &any_value(&value));
        let number = *self.attributes.entry((key, value)).or_insert(next);
        if number == next {
            self.body.message(table::ATTRIBUTE, &message);
        }
        number
    }

    /// Message `Mapping`: memory_start, memory_limit, file_offset, filename_strindex,
    /// attribute_indices.
    fn mapping(&mut self, image: &Image, piece: Piece) -> u64 {
        let key = if image.id.build_id().is_some() {
            "process.executable.build_id.gnu"
        } else {
            "dcpi.image_id"
        };
        let build = self.attribute(key, Value::Text(image.id.alone().to_string()));
        let mut message = Message::default();
        message.number(1, piece.start).number(2, piece.limit).number(3, piece.offset);
        message.number(4, self.text(image.file())).numbers(5, [build]);
        self.body.message(table::MAPPING, &message);
        self.mappings += 1;
        self.mappings
    }

    /// Message `Function`: name_strindex, system_name_strindex, filename_strindex.
    fn function(&mut self, call: &Call<'_>) -> u64 {
        let key = (self.text(call.name), self.text(call.raw), self.text(call.file));
        let next = self.functions.len() as u64 + 1;
        let number = *self.functions.entry(key).or_insert(next);
        if number == next {
            let mut message = Message::default();
            message.number(1, key.0).number(2, key.1).number(3, key.2);
            self.body.message(table::FUNCTION, &message);
        }
        number
    }

    /// The location of a place.
    fn place(&mut self, image: &Image, place: &Place, pieces: &[(u64, Piece)]) -> u64 {
        let mapping =
            pieces.iter().find(|(_, piece)| piece.holds(place)).map_or(0, |(number, _)| *number);
        let frame = match image.kind {
            _ if image.is_kernel() => Some("kernel"),
            ImageKind::File | ImageKind::Vdso => Some("native"),
            // The code's owner is unknown.
            _ => None,
        };
        let frame =
            frame.map(|frame| self.attribute("profile.frame.type", Value::Text(frame.to_owned())));
        self.location(mapping, place.address, &image.calls(place), frame.as_slice())
    }

    /// Message `Location`: mapping_index, address, lines (message `Line`: function_index, line),
    /// attribute_indices.
    fn location(
        &mut self,
        mapping: u64,
        address: u64,
        calls: &[Call<'_>],
        attributes: &[u64],
    ) -> u64 {
        let mut message = Message::default();
        message.number(1, mapping).number(2, address);
        for call in calls {
            let mut line = Message::default();
            line.number(1, self.function(call)).number(2, u64::from(call.line.unwrap_or(0)));
            message.message(3, &line);
        }
        message.numbers(4, attributes.iter().copied());
        self.body.message(table::LOCATION, &message);
        self.locations += 1;
        self.locations
    }

    /// A location that is no code.
    fn words(&mut self, name: &str) -> u64 {
        self.location(0, 0, &[Call { name, raw: name, file: "", line: None }], &[])
    }

    /// Message `Stack`: location_indices, the innermost first.
    fn stack(&mut self, locations: Vec<u64>) -> u64 {
        let next = self.stacks.len() as u64 + 1;
        if let Some(number) = self.stacks.get(&locations) {
            return *number;
        }
        let mut stack = Message::default();
        stack.numbers(1, locations.iter().copied());
        self.body.message(table::STACK, &stack);
        self.stacks.insert(locations, next);
        next
    }

    /// The link of a thread to the request that it worked for; 0: it worked for none.
    fn link(&mut self, thread: &Thread) -> u64 {
        let Some((trace, span)) = request(thread) else { return 0 };
        let next = self.links.len() as u64 + 1;
        let number = *self.links.entry((trace, span)).or_insert(next);
        if number == next {
            // Message `Link`: trace_id, span_id.
            let mut link = Message::default();
            link.bytes(1, &trace.to_be_bytes()).bytes(2, &span.to_be_bytes());
            self.body.message(table::LINK, &link);
        }
        number
    }

    /// The attributes of a thread.
    fn thread(&mut self, thread: &Thread) -> Vec<u64> {
        let [command, name, pid, tid] = OF_THREADS;
        let texts = [(command, &thread.command), (name, &thread.name)];
        let numbers = [(pid, thread.pid), (tid, thread.tid)];
        let texts = texts.into_iter().filter(|(_, text)| !text.is_empty());
        let texts = texts.map(|(key, text)| (key, text.as_str()));
        let has_link = request(thread).is_some();
        let own = thread.attributes.iter();
        let own = own.filter(|(key, _)| {
            !OF_THREADS.contains(key)
                && (!has_link || !matches!(*key, Attributes::TRACE_ID | Attributes::SPAN_ID))
        });
        let texts = texts.chain(own);
        let numbers = numbers.into_iter().filter(|(_, number)| *number > 0);
        texts
            .map(|(key, text)| (key, Value::Text(text.to_owned())))
            .chain(numbers.map(|(key, number)| (key, Value::Number(u64::from(number)))))
            .map(|(key, value)| self.attribute(key, value))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_profile::with_stacks;
    use super::*;

    #[test]
    fn attributes_are_the_samples_and_requests_are_links() {
        let mut resolved = with_stacks();
        let [trace, span] = [0x9e_u8, 0xcd].map(|byte| format!("{byte:02x}"));
        let pairs = [
            (Attributes::TRACE_ID, trace.repeat(16)),
            (Attributes::SPAN_ID, span.repeat(8)),
            ("route", "/checkout".to_owned()),
            ("thread.id", "mine".to_owned()),
        ];
        let attributes = Attributes::of(pairs.map(|(key, value)| (key.to_owned(), value)));
        for thread in &mut resolved.stacks.threads {
            thread.attributes = attributes.clone();
        }
        let mut out = Vec::new();
        let _ = write(&resolved, &mut out).unwrap();
        let count = |part: &[u8]| out.windows(part.len()).filter(|window| *window == part).count();
        let link = [&[0x0a, 16][..], &[0x9e; 16], &[0x12, 8], &[0xcd; 8]].concat();
        assert_eq!((count(&link), count(b"route"), count(b"/checkout")), (1, 1, 1));
        assert_eq!(
            (count(b"trace_id"), count(b"mine"), count(trace.repeat(16).as_bytes())),
            (0, 0, 0)
        );
    }
}

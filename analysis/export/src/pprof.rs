//! The format of pprof (github.com/google/pprof, proto/profile.proto; message and field numbers
//! below are those of that file), compressed with gzip as its readers expect.
//!
//! Two sample types per event: samples, and the occurrences that they stand for. A mapping is an
//! executable piece of an image, with its build id; addresses are those in the file, so pprof can
//! symbolise by itself what has no names here. Samples of unknown code are locations without
//! mapping. Label, unit and process of samples that were kept apart are labels, and so are command,
//! process and thread of call stacks.

use std::collections::HashMap;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use model::Thread;
use profiledb::Scope;

use super::pieces::Piece;
use super::stacks::StackFrame;
use super::{Carried, Image, Place, Resolved, UNKNOWN_CODE};
use protobuf::{Message, signed};

/// Fields of message `Profile`.
mod profile {
    pub(super) const SAMPLE_TYPE: u64 = 1;
    pub(super) const SAMPLE: u64 = 2;
    pub(super) const MAPPING: u64 = 3;
    pub(super) const LOCATION: u64 = 4;
    pub(super) const FUNCTION: u64 = 5;
    pub(super) const STRING_TABLE: u64 = 6;
    pub(super) const TIME_NANOS: u64 = 9;
    pub(super) const DURATION_NANOS: u64 = 10;
    pub(super) const PERIOD_TYPE: u64 = 11;
    pub(super) const PERIOD: u64 = 12;
    pub(super) const COMMENT: u64 = 13;
    pub(super) const DEFAULT_SAMPLE_TYPE: u64 = 14;
}

/// Writes the samples of all events.
pub fn write(resolved: &Resolved, out: &mut dyn Write) -> io::Result<Carried> {
    let mut writer = Writer::default();
    writer.text(""); // the first must be empty
    let types = sample_types(resolved, &mut writer);
    let mut locations: HashMap<StackFrame, u64> = HashMap::new();
    for (number, image) in resolved.images.iter().enumerate() {
        let mappings = Mappings::new(image, &mut writer);
        for (at, place) in image.places.iter().enumerate() {
            let location = writer.location(image, place, mappings.of(place));
            locations.insert(StackFrame::Place(number, at), location);
            for (scope, counts) in place.counts.iter().filter(|(_, counts)| some(counts)) {
                let whose = resolved.scopes.get(*scope);
                writer.sample(resolved, &[location], &values(resolved, counts), (whose, None));
            }
        }
    }
    writer.stacks(resolved, &mut locations);
    writer.unknown_code(resolved);
    writer.about(resolved, &types);
    let mut gzip = GzEncoder::new(out, Compression::default());
    gzip.write_all(&writer.body.take())?;
    gzip.write_all(&writer.strings.message.take())?;
    gzip.finish()?.flush()?;
    let samples = resolved.events.iter().map(|event| event.samples.saturating_add(event.unknown()));
    Ok(Carried { samples: samples.collect(), ..Carried::default() })
}

fn some(counts: &[u64]) -> bool {
    counts.iter().any(|count| *count > 0)
}

/// Samples and occurrences of each event.
fn values(resolved: &Resolved, counts: &[u64]) -> Vec<u64> {
    let values = resolved.events.iter().zip(counts);
    values
        .flat_map(|(event, &samples)| [signed(samples), signed(event.occurrences(samples))])
        .collect()
}

/// Strings by their number.
#[derive(Default)]
struct Strings {
    numbers: HashMap<String, u64>,
    message: Message,
}

#[derive(Default)]
struct Writer {
    body: Message,
    strings: Strings,
    /// Name, name for linkers and file of functions, by number.
    functions: HashMap<(u64, u64, u64), u64>,
    locations: u64,
    mappings: u64,
}

/// The sample types (samples, occurrences) of an event, as strings' numbers with those of their
/// units.
struct Types {
    samples: (u64, u64),
    occurrences: (u64, u64),
}

fn sample_types(resolved: &Resolved, writer: &mut Writer) -> Vec<Types> {
    let mut types = Vec::new();
    for event in &resolved.events {
        let samples = resolved.samples_name(event);
        let unit = if event.unit == "ns" { "nanoseconds" } else { "count" };
        let count = writer.text("count");
        let of_event = Types {
            samples: (writer.text(&samples), count),
            occurrences: (writer.text(&event.name), writer.text(unit)),
        };
        for of in [of_event.samples, of_event.occurrences] {
            writer.body.message(profile::SAMPLE_TYPE, &value_type(of));
        }
        types.push(of_event);
    }
    types
}

/// Message `ValueType`: type, unit.
fn value_type((kind, unit): (u64, u64)) -> Message {
    let mut message = Message::default();
    message.number(1, kind).number(2, unit);
    message
}

/// The mappings of an image, with their numbers.
struct Mappings(Vec<(u64, Piece)>);

impl Mappings {
    fn new(image: &Image, writer: &mut Writer) -> Self {
        let with_lines = image.places.iter().any(|place| !place.frames.is_empty());
        let number = |piece: Piece| (writer.mapping(image, piece, with_lines), piece);
        Self(image.pieces().into_iter().map(number).collect())
    }

    fn of(&self, place: &Place) -> u64 {
        self.0.iter().find(|(_, piece)| piece.holds(place)).map_or(0, |(number, _)| *number)
    }
}

impl Writer {
    fn text(&mut self, text: &str) -> u64 {
        if let Some(number) = self.strings.numbers.get(text) {
            return *number;
        }
        let number = self.strings.numbers.len() as u64;
        self.strings.message.bytes(profile::STRING_TABLE, text.as_bytes());
        self.strings.numbers.insert(text.to_owned(), number);
        number
    }

    /// Message `Mapping`: id, memory_start, memory_limit, file_offset, filename, build_id,
    /// has_functions, has_filenames, has_line_numbers, has_inline_frames.
    fn mapping(&mut self, image: &Image, piece: Piece, with_lines: bool) -> u64 {
        self.mappings += 1;
        let Piece { start, limit, offset, .. } = piece;
        let (file, build) = (self.text(image.file()), self.text(&image.id.alone().to_string()));
        let with_names = u64::from(!image.procedures.is_empty());
        let with_lines = u64::from(with_lines);
        let mut message = Message::default();
        message
            .number(1, self.mappings)
            .number(2, start)
            .number(3, limit)
            .number(4, offset)
            .number(5, file);
        message
            .number(6, build)
            .number(7, with_names)
            .number(8, with_lines)
            .number(9, with_lines)
            .number(10, with_lines);
        self.body.message(profile::MAPPING, &message);
        self.mappings
    }

    /// Message `Function`: id, name, system_name, filename. The first line is not known.
    fn function(&mut self, name: &str, raw: &str, file: &str) -> u64 {
        let key = (self.text(name), self.text(raw), self.text(file));
        if let Some(number) = self.functions.get(&key) {
            return *number;
        }
        let number = self.functions.len() as u64 + 1;
        let mut message = Message::default();
        message.number(1, number).number(2, key.0).number(3, key.1).number(4, key.2);
        self.body.message(profile::FUNCTION, &message);
        self.functions.insert(key, number);
        number
    }

    /// Message `Location`: id, mapping_id, address, line (message `Line`: function_id, line), the
    /// innermost inlined call first.
    fn location(&mut self, image: &Image, place: &Place, mapping: u64) -> u64 {
        self.locations += 1;
        let mut message = Message::default();
        message.number(1, self.locations).number(2, mapping).number(3, place.address);
        for call in image.calls(place) {
            let function = self.function(call.name, call.raw, call.file);
            message.message(4, &line(function, call.line));
        }
        self.body.message(profile::LOCATION, &message);
        self.locations
    }

    /// Message `Sample`: location_id, the innermost first, value, label (message `Label`: key, str,
    /// num).
    fn sample(
        &mut self,
        resolved: &Resolved,
        locations: &[u64],
        values: &[u64],
        (scope, thread): (Option<&Scope>, Option<&Thread>),
    ) {
        debug_assert_eq!(values.len(), resolved.events.len() * 2, "as many as sample types");
        let mut message = Message::default();
        message.numbers(1, locations.iter().copied()).numbers(2, values.iter().copied());
        let mut texts: Vec<(&str, &str)> = Vec::new();
        texts.extend(scope.and_then(|scope| Some(("label", scope.label.as_deref()?))));
        texts.extend(scope.and_then(|scope| Some(("unit", scope.unit.as_deref()?))));
        texts.extend(thread.map(|thread| ("command", thread.command.as_str())));
        texts.extend(thread.map(|thread| ("thread", thread.name.as_str())));
        texts.extend(thread.into_iter().flat_map(|thread| thread.attributes.iter()));
        for (key, value) in texts.into_iter().filter(|(_, value)| !value.is_empty()) {
            let mut label = Message::default();
            label.number(1, self.text(key)).number(2, self.text(value));
            message.message(3, &label);
        }
        let pid = scope.and_then(|scope| scope.pid).or(thread.map(|thread| thread.pid));
        let numbers = [("pid", pid), ("tid", thread.map(|thread| thread.tid))];
        for (key, number) in numbers {
            if let Some(number) = number.filter(|number| *number > 0) {
                let mut label = Message::default();
                label.number(1, self.text(key)).number(3, u64::from(number));
                message.message(3, &label);
            }
        }
        self.body.message(profile::SAMPLE, &message);
    }

    /// The samples of call stacks.
    fn stacks(&mut self, resolved: &Resolved, locations: &mut HashMap<StackFrame, u64>) {
        let stacks = &resolved.stacks;
        for sample in &stacks.samples {
            let mut path = Vec::new();
            for frame in stacks.frames(sample.node) {
                let known = locations.get(frame).copied();
                path.push(known.unwrap_or_else(|| {
                    let name = resolved.frame_names(frame).concat();
                    let location = self.words(&name);
                    locations.insert(frame.clone(), location);
                    location
                }));
            }
            let mut values = vec![0; resolved.events.len() * 2];
            let own = [signed(sample.samples), signed(sample.occurrences)];
            values.iter_mut().skip(sample.event * 2).zip(own).for_each(|(to, own)| *to = own);
            let whose = (resolved.scopes.get(sample.scope), stacks.thread(sample));
            self.sample(resolved, &path, &values, whose);
        }
    }

    /// A location that is no code.
    fn words(&mut self, name: &str) -> u64 {
        let function = self.function(name, name, "");
        self.locations += 1;
        let mut message = Message::default();
        message.number(1, self.locations).message(4, &line(function, None));
        self.body.message(profile::LOCATION, &message);
        self.locations
    }

    /// Samples of unknown code, by reason.
    fn unknown_code(&mut self, resolved: &Resolved) {
        for (reason, counts) in resolved.unknown_code() {
            let location = self.words(&format!("{UNKNOWN_CODE} {reason}"));
            self.sample(resolved, &[location], &values(resolved, &counts), (None, None));
        }
    }

    /// The rest of message `Profile`.
    fn about(&mut self, resolved: &Resolved, types: &[Types]) {
        const NS_PER_S: u64 = 1_000_000_000;
        let duration_s = resolved.ended_unix_s.saturating_sub(resolved.started_unix_s);
        self.body.number(profile::TIME_NANOS, resolved.started_unix_s.saturating_mul(NS_PER_S));
        self.body.number(profile::DURATION_NANOS, duration_s.saturating_mul(NS_PER_S));
        if let (Some(event), Some(of)) = (resolved.events.first(), types.first()) {
            self.body
                .message(profile::PERIOD_TYPE, &value_type(of.occurrences))
                .number(profile::PERIOD, event.period);
            self.body.number(profile::DEFAULT_SAMPLE_TYPE, of.occurrences.0);
        }
        let comments: Vec<u64> =
            resolved.comments().iter().map(|comment| self.text(comment)).collect();
        self.body.numbers(profile::COMMENT, comments);
    }
}

fn line(function: u64, line: Option<u32>) -> Message {
    let mut message = Message::default();
    message.number(1, function).number(2, u64::from(line.unwrap_or(0)));
    message
}

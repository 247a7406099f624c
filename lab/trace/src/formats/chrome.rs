//! Chrome's Trace Event Format ("Trace Event Format", Google, 2016): a JSON list of objects with
//! times in microseconds. Perfetto, Chrome and Firefox's profiler read it; uftrace and many others
//! write it.
//!
//! Calls are written as complete events (`"ph":"X"`), which stay what they are where a return is
//! missing. Reading takes B, E, X and instants (i, I, R); samples, counters, flows and asynchronous
//! events are passed over and counted.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::collect::{Collector, Seen};
use super::{category, of_category};
use crate::event::{Corrected, Event, EventKind, NameId, NameKind, ThreadId, Trace};
use crate::pairs::{Pairs, Slice};
use crate::reader::ReadError;

#[derive(Serialize)]
struct Written<'a> {
    name: &'a str,
    cat: &'a str,
    ph: &'static str,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    /// Scope of an instant: its thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    pid: u32,
    tid: u32,
    #[serde(skip_serializing_if = "Args::is_empty")]
    args: Args<'a>,
}

#[derive(Default, Serialize)]
struct Args<'a> {
    /// The event's kind, where the phase does not determine it.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    argument: Option<i64>,
    /// The end of the call is missing, and something else ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    cut: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    corrected_begin_us: Option<Interval>,
    #[serde(skip_serializing_if = "Option::is_none")]
    corrected_end_us: Option<Interval>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
}

impl Args<'_> {
    fn is_empty(&self) -> bool {
        let Self { kind, argument, cut, corrected_begin_us, corrected_end_us, name } = self;
        kind.is_none()
            && argument.is_none()
            && cut.is_none()
            && corrected_begin_us.is_none()
            && corrected_end_us.is_none()
            && name.is_none()
    }
}

#[derive(Serialize)]
struct Interval {
    low: f64,
    value: f64,
    high: f64,
}

impl Interval {
    fn of(corrected: &Corrected) -> Self {
        let Corrected { low_ns, value_ns, high_ns } = corrected;
        Self { low: us(*low_ns), value: us(*value_ns), high: us(*high_ns) }
    }
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// Writes the elements of a JSON list.
struct List<'a> {
    out: &'a mut dyn Write,
    is_begun: bool,
}

impl List<'_> {
    fn add(&mut self, element: &Written<'_>) -> io::Result<()> {
        self.out.write_all(if self.is_begun { b",\n" } else { b"\n" })?;
        self.is_begun = true;
        Ok(serde_json::to_writer(&mut *self.out, element)?)
    }
}

pub(super) fn write(trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
    write!(out, "{{\"displayTimeUnit\":\"ns\",\"otherData\":")?;
    serde_json::to_writer(&mut *out, &trace.facts)?;
    write!(out, ",\"traceEvents\":[")?;
    let mut list = List { out, is_begun: false };
    let mut seen = std::collections::HashSet::new();
    for thread in &trace.threads {
        let (pid, tid, name) = (thread.pid, thread.tid, thread.command.as_str());
        if name.is_empty() {
            continue;
        }
        let mut metadata = |what| {
            let args = Args { name: Some(name), ..Args::default() };
            let (cat, ph) = ("__metadata", "M");
            list.add(&Written { name: what, cat, ph, ts: 0.0, dur: None, s: None, pid, tid, args })
        };
        metadata("thread_name")?;
        if seen.insert(pid) {
            metadata("process_name")?;
        }
    }
    let (mut pairs, mut ended) = (Pairs::default(), Vec::new());
    let mut last_ns = 0;
    for (index, event) in trace.events.iter().enumerate() {
        last_ns = event.time_ns;
        pairs.take(event, event.time_ns, &mut ended);
        for slice in ended.drain(..) {
            list.add(&complete(trace, &slice))?;
        }
        if !event.kind.opens() && event.kind.closes().is_none() {
            let Some((name, thread)) = trace.name(event).zip(trace.thread(event)) else { continue };
            let kind = (event.kind != EventKind::Instant).then_some(event.kind.word());
            let argument = Some(event.argument.cast_signed()).filter(|argument| *argument != 0);
            let corrected_begin_us = trace.corrected.get(index).map(Interval::of);
            let args = Args { kind, argument, corrected_begin_us, ..Args::default() };
            list.add(&Written {
                name: &name.text,
                cat: category(name.kind),
                ph: "i",
                ts: us(event.time_ns),
                dur: None,
                s: Some("t"),
                pid: thread.pid,
                tid: thread.tid,
                args,
            })?;
        }
    }
    pairs.finish(last_ns, &mut ended);
    for slice in ended.drain(..) {
        list.add(&complete(trace, &slice))?;
    }
    writeln!(out, "\n]}}")
}

/// A call as a complete event.
fn complete<'a>(trace: &'a Trace, slice: &Slice) -> Written<'a> {
    let name = trace.names.get(slice.name.0 as usize);
    let thread = trace.threads.get(slice.thread.0 as usize);
    let corrected = |index: usize| trace.corrected.get(index).map(Interval::of);
    // A system call's result; of others the identity of a lock, from the start.
    let index = match slice.kind {
        EventKind::SyscallEnter => slice.end_index.filter(|_| !slice.is_cut),
        _ => Some(slice.begin_index),
    };
    let argument = index.and_then(|index| trace.events.get(index)).map(|event| event.argument);
    let args = Args {
        kind: (slice.kind != EventKind::Enter).then_some(slice.kind.word()),
        argument: argument.map(u64::cast_signed).filter(|argument| *argument != 0),
        cut: slice.is_cut.then_some(true),
        corrected_begin_us: corrected(slice.begin_index),
        corrected_end_us: slice.end_index.and_then(corrected),
        name: None,
    };
    Written {
        name: name.map_or("", |name| name.text.as_str()),
        cat: category(name.map_or(NameKind::Other, |name| name.kind)),
        ph: "X",
        ts: us(slice.begin_ns),
        dur: Some(us(slice.end_ns - slice.begin_ns)),
        s: None,
        pid: thread.map_or(0, |thread| thread.pid),
        tid: thread.map_or(0, |thread| thread.tid),
        args,
    }
}

/// An event as other tools write it: all fields may be missing, numbers may be texts.
#[derive(Deserialize)]
struct Read<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    cat: Cow<'a, str>,
    #[serde(borrow, default)]
    ph: Cow<'a, str>,
    #[serde(default)]
    ts: Number,
    #[serde(default)]
    dur: Number,
    #[serde(default)]
    pid: Number,
    #[serde(default)]
    tid: Number,
    #[serde(default)]
    args: ReadArgs,
}

#[derive(Default)]
struct ReadArgs {
    name: Option<String>,
    kind: Option<String>,
    argument: Option<i64>,
}

impl<'de> Deserialize<'de> for ReadArgs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ArgsVisitor;
        impl<'de> Visitor<'de> for ArgsVisitor {
            type Value = ReadArgs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("arguments of an event")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ReadArgs, A::Error> {
                let mut args = ReadArgs::default();
                while let Some(key) = map.next_key::<Cow<'_, str>>()? {
                    match key.as_ref() {
                        "name" => args.name = map.next_value::<Loose>()?.text,
                        "kind" => args.kind = map.next_value::<Loose>()?.text,
                        "argument" => {
                            args.argument =
                                map.next_value::<Loose>()?.number.map(|number| number as i64);
                        }
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(args)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<ReadArgs, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(ReadArgs::default())
            }

            fn visit_str<E>(self, _: &str) -> Result<ReadArgs, E> {
                Ok(ReadArgs::default())
            }

            fn visit_unit<E>(self) -> Result<ReadArgs, E> {
                Ok(ReadArgs::default())
            }

            fn visit_u64<E>(self, _: u64) -> Result<ReadArgs, E> {
                Ok(ReadArgs::default())
            }
        }
        deserializer.deserialize_any(ArgsVisitor)
    }
}

/// A number, which some tools write as text.
#[derive(Clone, Copy, Default)]
struct Number(Option<f64>);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let loose = Loose::deserialize(deserializer)?;
        let text = || loose.text.as_deref()?.parse().ok();
        Ok(Self(loose.number.or_else(text).filter(|number: &f64| number.is_finite())))
    }
}

/// A number or a text, or anything else, which is passed over.
#[derive(Default)]
struct Loose {
    text: Option<String>,
    number: Option<f64>,
}

impl<'de> Deserialize<'de> for Loose {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LooseVisitor;
        impl<'de> Visitor<'de> for LooseVisitor {
            type Value = Loose;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_str<E>(self, text: &str) -> Result<Loose, E> {
                Ok(Loose { text: Some(text.to_owned()), number: None })
            }

            fn visit_u64<E>(self, number: u64) -> Result<Loose, E> {
                Ok(Loose { text: None, number: Some(number as f64) })
            }

            fn visit_i64<E>(self, number: i64) -> Result<Loose, E> {
                Ok(Loose { text: None, number: Some(number as f64) })
            }

            fn visit_f64<E>(self, number: f64) -> Result<Loose, E> {
                Ok(Loose { text: None, number: Some(number) })
            }

            fn visit_bool<E>(self, _: bool) -> Result<Loose, E> {
                Ok(Loose::default())
            }

            fn visit_unit<E>(self) -> Result<Loose, E> {
                Ok(Loose::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Loose, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Loose::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Loose, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Loose::default())
            }
        }
        deserializer.deserialize_any(LooseVisitor)
    }
}

/// Receives events while they are parsed, so that no list of them is in memory.
struct Taken<'a> {
    collector: &'a mut Collector,
    complete: &'a mut Vec<Complete>,
}

/// A complete event, until its end is added in the order of time.
#[derive(Clone, Copy)]
struct Complete {
    thread: ThreadId,
    begin_ns: u64,
    end_ns: u64,
    kind: EventKind,
    argument: u64,
    name: NameId,
}

/// Bytes that a complete event takes until its start and end are events, sorting included.
const COMPLETE_BYTES: usize = 2 * size_of::<Complete>();

/// A list of events, or the object that has one.
impl<'de> DeserializeSeed<'de> for Taken<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Taken<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of trace events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(event) = seq.next_element::<Read<'de>>()? {
            if take(event, self.collector, self.complete).is_none() {
                self.collector.skipped += 1;
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Taken { collector, complete } = self;
        while let Some(key) = map.next_key::<Cow<'_, str>>()? {
            if key == "traceEvents" {
                let list = Taken { collector: &mut *collector, complete: &mut *complete };
                map.next_value_seed(list)?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// Microseconds as ns; None for negative times and those above 285 years.
fn ns(us: Number) -> Option<u64> {
    let ns = (us.0? * 1e3).round();
    (0.0..9.0e18).contains(&ns).then_some(ns as u64)
}

fn number(number: Number) -> u32 {
    let value = number.0.unwrap_or_default();
    if (0.0..=f64::from(u32::MAX)).contains(&value) { value as u32 } else { 0 }
}

fn take(event: Read<'_>, collector: &mut Collector, complete: &mut Vec<Complete>) -> Option<()> {
    let pid = number(event.pid);
    let tid = event.tid.0.map_or(pid, |_| number(event.tid));
    let who = (pid, tid);
    if event.ph == "M" {
        if let Some(name) = event.args.name.filter(|_| event.name == "thread_name") {
            collector.set_command(who, &name);
        }
        return Some(());
    }
    let time_ns = ns(event.ts)?;
    let told = event.args.kind.as_deref().and_then(EventKind::of_word);
    let argument = event.args.argument.unwrap_or_default().cast_unsigned();
    let kind_of_name = match of_category(&event.cat) {
        NameKind::Other if matches!(event.ph.as_ref(), "B" | "E" | "X") => NameKind::Procedure,
        kind => kind,
    };
    let opener = told.filter(|kind| kind.opens()).unwrap_or(EventKind::Enter);
    let kind = match event.ph.as_ref() {
        "B" => opener,
        "E" => opener.closer(),
        "i" | "I" | "R" => told.unwrap_or(EventKind::Instant),
        "X" => {
            let end_ns = time_ns.checked_add(ns(Number(event.dur.0.or(Some(0.0))))?)?;
            let found = collector.name_and_thread((kind_of_name, &event.name), who);
            if let Some((name, thread)) = found
                && collector.takes_event(2 * size_of::<Event>() + COMPLETE_BYTES)
            {
                let (begin_ns, kind) = (time_ns, opener);
                complete.push(Complete { thread, begin_ns, end_ns, kind, argument, name });
            }
            return Some(());
        }
        _ => return None,
    };
    let name = (kind_of_name, event.name.as_ref());
    collector.event(&Seen { time_ns, who, cpu: None, kind, argument, name });
    Some(())
}

/// Begins and ends of complete events, nested as they are: of two that begin at one time the longer
/// is the outer one.
fn nest(mut complete: Vec<Complete>, events: &mut Vec<Event>) {
    complete.sort_by_key(|of| (of.thread, of.begin_ns, std::cmp::Reverse(of.end_ns)));
    let mut open: Vec<Complete> = Vec::new();
    let end = |of: &Complete, events: &mut Vec<Event>| {
        let argument = if of.kind == EventKind::Enter { 0 } else { of.argument };
        let (time_ns, thread, name, kind) = (of.end_ns, of.thread, of.name, of.kind.closer());
        events.push(Event { time_ns, argument, thread, name, cpu: None, kind });
    };
    for of in complete {
        let is_over = |last: &mut Complete| last.thread != of.thread || last.end_ns <= of.begin_ns;
        while let Some(last) = open.pop_if(is_over) {
            end(&last, events);
        }
        let Complete { thread, begin_ns: time_ns, kind, name, .. } = of;
        let argument = if kind == EventKind::SyscallEnter { 0 } else { of.argument };
        events.push(Event { time_ns, argument, thread, name, cpu: None, kind });
        open.push(of);
    }
    while let Some(last) = open.pop() {
        end(&last, events);
    }
}

pub(super) fn read(bytes: &[u8]) -> Result<Trace, ReadError> {
    let mut collector = Collector::default();
    let mut complete = Vec::new();
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let taken = Taken { collector: &mut collector, complete: &mut complete };
    // The format allows a list without its end: the program was killed.
    let cut = taken.deserialize(&mut json).err();
    nest(complete, &mut collector.trace.events);
    collector.trace.facts.clock = "that of the trace's source".into();
    let mut trace = collector.finish("Chrome's JSON", "a trace in Chrome's JSON")?;
    if let Some(error) = cut {
        trace.cut = Some(format!("it is no JSON any more at {error}; it is read up to there"));
    }
    Ok(trace)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(trace: &Trace) -> Vec<(u64, EventKind, &str, u64)> {
        let row = |event: &crate::Event| {
            let name = trace.name(event).unwrap().text.as_str();
            (event.time_ns, event.kind, name, event.argument)
        };
        trace.events.iter().map(row).collect()
    }

    #[test]
    fn what_uftrace_and_others_write_is_read() {
        // Without tid, as uftrace has it; a number as text; unknown phases; a list without end.
        let text = r#"[
            {"ts":0,"ph":"M","pid":7,"name":"thread_name","args":{"name":"[7] t"}},
            {"ts":1.5,"ph":"B","pid":7,"name":"main"},
            {"ts":"2.25","ph":"X","pid":"7","tid":8,"name":"a","dur":3,"args":{"argument":[1]}},
            {"ts":2.25,"ph":"X","pid":7,"tid":8,"name":"b","dur":2},
            {"ts":3,"ph":"C","pid":7,"name":"counter","args":{"x":{"y":[1]}}},
            {"ts":4,"ph":"E","pid":7,"name":"main","args":null},
            {"ts":5,"ph":"i","pid":7,"name":"now"},
            {"ts":-1,"ph":"i","pid":7,"name":"never"}"#;
        let trace = super::super::read(text.as_bytes()).unwrap();
        use EventKind::{Enter, Exit, Instant};
        let expected = [
            (1500, Enter, "main", 0),
            (2250, Enter, "a", 0),
            (2250, Enter, "b", 0),
            (4000, Exit, "main", 0),
            (4250, Exit, "b", 0),
            (5000, Instant, "now", 0),
            (5250, Exit, "a", 0),
        ];
        assert_eq!(rows(&trace), expected);
        assert_eq!(trace.threads[0].command, "[7] t");
        assert!(trace.cut.unwrap().contains("no JSON any more at EOF"));
        assert_eq!(trace.facts.notes, ["2 entries of Chrome's JSON were passed over"]);
    }

    #[test]
    fn an_object_with_the_list_in_any_place_is_read() {
        let text = r#"{"a":{"traceEvents":3},"traceEvents":[{"ph":"i","ts":1,"name":"x"}],"b":1}"#;
        let trace = super::super::read(text.as_bytes()).unwrap();
        assert_eq!(rows(&trace), [(1000, EventKind::Instant, "x", 0)]);
        assert_eq!(trace.cut, None);
        let deep = format!("{{\"a\":{}", "[".repeat(100_000));
        assert!(super::super::read(deep.as_bytes()).is_err());
    }
}

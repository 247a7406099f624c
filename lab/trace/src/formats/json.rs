//! dcpi's own JSON format, with all fields of each event: an object a line, the first with the
//! facts.

use std::io::{self, Write};

use serde::Serialize;

use crate::event::{EventKind, Facts, NameKind, Trace};

/// Version of the objects' fields: `docs/src/output.md` has their meanings.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct First<'a> {
    schema: Schema,
    facts: &'a Facts,
    cut: Option<&'a str>,
}

#[derive(Serialize)]
struct Schema {
    name: &'static str,
    version: u32,
}

#[derive(Serialize)]
struct Line<'a> {
    time_ns: Times,
    cpu: Option<u32>,
    pid: u32,
    tid: u32,
    command: &'a str,
    kind: EventKind,
    argument: i128,
    name: &'a str,
    name_kind: NameKind,
    image: Option<&'a str>,
}

/// Corrected times are null where nothing was corrected.
#[derive(Serialize)]
struct Times {
    measured: u64,
    low: Option<u64>,
    value: Option<u64>,
    high: Option<u64>,
}

pub(super) fn write(trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
    let schema = Schema { name: "dcpi.trace-events", version: VERSION };
    let first = First { schema, facts: &trace.facts, cut: trace.cut.as_deref() };
    serde_json::to_writer(&mut *out, &first)?;
    writeln!(out)?;
    for (index, event) in trace.events.iter().enumerate() {
        let Some((name, thread)) = trace.name(event).zip(trace.thread(event)) else { continue };
        let corrected = trace.corrected.get(index);
        let line = Line {
            time_ns: Times {
                measured: event.time_ns,
                low: corrected.map(|of| of.low_ns),
                value: corrected.map(|of| of.value_ns),
                high: corrected.map(|of| of.high_ns),
            },
            cpu: event.cpu.map(crate::event::Cpu::number),
            pid: thread.pid,
            tid: thread.tid,
            command: &thread.command,
            kind: event.kind,
            argument: match event.kind.has_signed_argument() {
                true => event.argument.cast_signed().into(),
                false => event.argument.into(),
            },
            name: &name.text,
            name_kind: name.kind,
            image: Some(name.image.as_str()).filter(|image| !image.is_empty()),
        };
        serde_json::to_writer(&mut *out, &line)?;
        writeln!(out)?;
    }
    Ok(())
}

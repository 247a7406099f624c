//! Reads the files in which a process names its generated code, `perf-PID.map` and jitdumps.

use super::{Asked, LOOK_BYTES, LOOK_INTERVAL_NS, Process};
use crate::mappings::{Mapping, Mappings};
use inspect::jit::code_events::{CodeLook, apply};
use inspect::jit::process::{self, Who};
use inspect::open_mapped::MappedAt;
use inspect::questions::{FileAt, Generated, GeneratedCode};

/// Reads what the process has added to its perf map and jitdumps since the last look, at most `all`
/// bytes, and updates its map of code. Returns the bytes that were read.
pub(super) fn look(process: &mut Process, asked: Asked, mappings: &Mappings, all: u64) -> u64 {
    let due = process.looked_ns == 0
        || asked.now_ns.saturating_sub(process.looked_ns) >= LOOK_INTERVAL_NS;
    let has_ended = std::mem::take(&mut process.last_look);
    if !due && !has_ended {
        return 0;
    }
    process.looked_ns = asked.now_ns;
    let Some(who) = process.who.clone() else { return 0 };
    for mapping in mappings.mapped(asked.pid) {
        process.is_runtime |= process::is_of_runtime(&mapping.file.path);
    }
    let mine = process.allowance.at(asked.now_ns);
    let given = mine.min(all).min(LOOK_BYTES);
    let system = &mappings.system;
    let seen = system.code_look(asked.pid, || {
        read_files(process, &who, asked.pid, mappings, given).unwrap_or_else(|| CodeLook {
            refused: Some("its file system does not answer".to_owned()),
            ..CodeLook::default()
        })
    });
    if process.is_learnt && !seen.events.is_empty() {
        process.is_learnt = false;
        process.code.clear();
    }
    for event in &seen.events {
        process.awaited.settle(event, &process.code);
        apply(event, &mut process.code);
    }
    process.is_complete |= has_ended && !seen.is_cut;
    let mut refused = seen.refused;
    if seen.is_cut && mine <= LOOK_BYTES.min(all) {
        refused = Some("it is larger than what is read of it".to_owned());
    }
    // The files of an ended process may already be removed; that the process was refused must still
    // be known.
    if has_ended && refused.is_none() && seen.bytes == 0 {
        refused = process.refused.take();
    }
    if let Some(why) = refused.as_ref().filter(|why| process.refused.as_ref() != Some(why)) {
        tracing::warn!(
            pid = asked.pid,
            program = who.name,
            "the map of generated code is not read: {why}"
        );
    }
    process.refused = refused;
    let spent = seen.bytes.min(given);
    process.allowance.left = mine - spent;
    spent
}

/// Reads what was added to the process's perf map and jitdumps since the last reading, at most
/// `given` bytes. `None`: no inspector answered.
fn read_files(
    process: &mut Process,
    who: &Who,
    pid: u32,
    mappings: &Mappings,
    given: u64,
) -> Option<CodeLook> {
    let question = GeneratedCode {
        pid,
        who: who.clone(),
        map: process.map.clone(),
        dumps: dumps(pid, mappings),
        read: process.dumps.clone(),
        bytes_max: given,
    };
    let Generated { look, map, read } = mappings.system.inspectors().ask(question)?;
    (process.map, process.dumps) = (map, read);
    Some(look)
}

/// The jitdumps that a process has mapped.
pub(super) fn dumps(pid: u32, mappings: &Mappings) -> Vec<FileAt> {
    let dumps = mappings.mapped(pid).filter(|mapping| is_dump(&mapping.file.path));
    let dump = |mapping: &Mapping| {
        mapping.file.at(MappedAt { pid, start: mapping.start, end: mapping.end })
    };
    dumps.map(dump).collect()
}

/// `.../jit-PID.dump`. Its writer maps a page of the file so that profilers notice it.
pub(super) fn is_dump(path: &[u8]) -> bool {
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let number = name.strip_prefix(b"jit-").and_then(|name| name.strip_suffix(b".dump"));
    number.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
}

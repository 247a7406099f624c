//! Formats of other tools, written and read.

mod chrome;
mod collect;
mod json;
mod perf_script;
mod perfetto;
mod text;
mod uftrace;

use std::io::{self, Read, Write};

use crate::event::{NameKind, Trace};
use crate::reader::{self, ReadError};

/// Bytes of a file of another tool, at most: it is read into memory.
pub const FOREIGN_BYTES_MAX: u64 = 1 << 30;

/// A format of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Our own, `FORMAT.md`.
    Own,
    /// Lines for people, which can be read back.
    Text,
    /// Our own, a JSON object a line.
    Json,
    /// Chrome's Trace Event Format: JSON.
    Chrome,
    /// Perfetto's TrackEvents: protocol buffers.
    Perfetto,
}

/// Writes a trace. Where it has corrected times, each event has both.
///
/// # Errors
/// Returns the errors of `out`.
pub fn write(trace: &Trace, format: Format, out: &mut dyn Write) -> io::Result<()> {
    match format {
        Format::Own => crate::writer::write(trace, out).map(|_| ()),
        Format::Text => text::write(trace, out),
        Format::Json => json::write(trace, out),
        Format::Chrome => chrome::write(trace, out),
        Format::Perfetto => perfetto::write(trace, out),
    }
}

/// Writes one event as a line of [`Format::Text`].
///
/// # Errors
/// Returns the errors of `out`.
pub fn write_text_line(
    event: &crate::Event,
    name: &crate::Name,
    thread: &crate::Thread,
    out: &mut dyn Write,
) -> io::Result<()> {
    text::write_line(event, None, name, thread, out)
}

/// Reads a trace of whatever format: our own, our text, Chrome's JSON, Perfetto's protocol buffers,
/// `perf script`'s lines, uftrace's dump. What cannot be understood is passed over, and counted in
/// a note of the facts.
///
/// # Errors
/// [`ReadError`] where nothing of the file can be understood.
pub fn read(mut input: impl Read) -> Result<Trace, ReadError> {
    let mut begin = Vec::new();
    input.by_ref().take(64).read_to_end(&mut begin)?;
    let input = begin.as_slice().chain(input);
    if reader::is_trace(&begin) {
        return reader::read(input);
    }
    let mut bytes = Vec::new();
    let mut limited = input.take(FOREIGN_BYTES_MAX + 1);
    limited.read_to_end(&mut bytes)?;
    let is_cut = bytes.len() as u64 > FOREIGN_BYTES_MAX;
    let mut trace = match bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{' | b'[') => chrome::read(&bytes)?,
        _ if perfetto::is_begin(&bytes) => perfetto::read(&bytes)?,
        _ if text::is_begin(&bytes) => text::read(&bytes)?,
        _ if uftrace::is_begin(&bytes) => uftrace::read(&bytes)?,
        _ => perf_script::read(&bytes)?,
    };
    if is_cut {
        let cut = "the file has more than 1 GiB; it is read up to there".to_owned();
        trace.cut = Some(cut);
    }
    trace.sort();
    Ok(trace)
}

/// The word of a kind of name, in categories of other formats.
fn category(kind: NameKind) -> &'static str {
    match kind {
        NameKind::Procedure => "procedure",
        NameKind::Line => "line",
        NameKind::Syscall => "syscall",
        NameKind::Sched => "sched",
        NameKind::Block => "block",
        NameKind::Sync => "sync",
        NameKind::Other => "other",
    }
}

/// The kind of name of a category; other tools have categories of their own.
fn of_category(word: &str) -> NameKind {
    let kinds = [
        NameKind::Procedure,
        NameKind::Line,
        NameKind::Syscall,
        NameKind::Sched,
        NameKind::Block,
        NameKind::Sync,
    ];
    kinds.into_iter().find(|kind| category(*kind) == word).unwrap_or(NameKind::Other)
}

/// Nanoseconds of a time in seconds with up to nine decimals.
fn seconds_to_ns(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if seconds.is_empty() || !is_number(seconds) || !is_number(fraction) || fraction.len() > 9 {
        return None;
    }
    let seconds: u64 = seconds.parse().ok()?;
    let fraction: u64 = format!("{fraction:0<9}").parse().ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(fraction)
}

/// Most bytes of a line that are read; bytes that are not text take three times as many.
const LINE_BYTES_MAX: usize = 1 << 20;

/// Lines of bytes, without the parts that are not text.
fn lines(bytes: &[u8]) -> impl Iterator<Item = std::borrow::Cow<'_, str>> {
    let begin = |line| <[u8]>::get(line, ..LINE_BYTES_MAX).unwrap_or(line);
    bytes.split(|byte| *byte == b'\n').map(move |line| String::from_utf8_lossy(begin(line)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_up_to_nine_digits_behind_the_point() {
        for (text, expected) in [
            ("12.345678", Some(12_345_678_000)),
            ("0.000000001", Some(1)),
            ("7", Some(7_000_000_000)),
            ("7.", Some(7_000_000_000)),
            (".5", None),
            ("1.0000000001", None),
            ("-1.0", None),
            ("99999999999999.0", None),
        ] {
            assert_eq!(seconds_to_ns(text), expected, "{text}");
        }
    }
}

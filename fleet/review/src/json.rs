//! The review as JSON.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

use crate::Report;
use crate::escape::Spelt;

/// Rows are lines: what lies deeper than the lists of the report is written without line breaks.
const LINES_DEPTH: usize = 2;
/// Significant decimals of a number with a fraction. Sums of engines that add in another order
/// differ behind them.
const DIGITS: usize = 9;

/// Writes the report, one row in a line, numbers to nine digits.
///
/// # Errors
/// Returns errors of writing the output.
pub fn write(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let mut serializer = Serializer::with_formatter(Spelt(&mut *out), Lines::default());
    report.serialize(&mut serializer).map_err(io::Error::from)?;
    writeln!(out)
}

/// The value in one line, numbers to nine digits.
pub(crate) fn compact<T: Serialize>(value: &T) -> io::Result<String> {
    let mut bytes = Vec::new();
    // From the start deeper than any line break.
    let depth = LINES_DEPTH;
    let mut serializer = Serializer::with_formatter(&mut bytes, Lines { depth, is_empty: true });
    value.serialize(&mut serializer).map_err(io::Error::from)?;
    String::from_utf8(bytes).map_err(io::Error::other)
}

#[derive(Default)]
struct Lines {
    /// Lists and objects that are open.
    depth: usize,
    /// Whether nothing is in the innermost one yet.
    is_empty: bool,
}

impl Lines {
    fn open<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.is_empty = true;
        out.write_all(bracket)
    }

    fn close<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        let was_empty = std::mem::take(&mut self.is_empty);
        if self.depth <= LINES_DEPTH && !was_empty {
            write!(out, "\n{:1$}", "", self.depth.saturating_sub(1))?;
        }
        self.depth = self.depth.saturating_sub(1);
        out.write_all(bracket)
    }

    fn next<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.is_empty = false;
        if !first {
            out.write_all(b",")?;
        }
        if self.depth <= LINES_DEPTH { write!(out, "\n{:1$}", "", self.depth) } else { Ok(()) }
    }
}

impl Formatter for Lines {
    fn write_f64<W: ?Sized + Write>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        if value.fract() == 0.0 && value.abs() < 1e15 {
            // Not `-0`, the sum of no numbers.
            return write!(out, "{:.0}", value + 0.0);
        }
        // The shortest text of the number that is nearest to nine digits.
        let rounded: f64 = format!("{value:.*e}", DIGITS - 1).parse().unwrap_or(value);
        out.write_all(serde_json::to_string(&rounded).map_err(io::Error::from)?.as_bytes())
    }

    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.next(out, first)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.next(out, first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_nine_digits_and_lists_no_lines() {
        let value =
            (0.1 + 0.2, 3.0, -0.0, -0.000_012_345_678_91, 1e300, f64::NAN, [[1, 2], [3, 4]]);
        assert_eq!(
            compact(&value).unwrap(),
            "[0.3,3,0,-0.0000123456789,1e+300,null,[[1,2],[3,4]]]"
        );
    }
}

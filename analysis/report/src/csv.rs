//! Rows for spreadsheets and data frames (RFC 4180).

use std::borrow::Cow;
use std::io::{self, Write};

use super::escape;

/// One record. Lines end in a bare line feed, as Unix tools want it and RFC 4180 readers accept.
///
/// Names are strangers', and a spreadsheet takes a cell that begins with `=`, `+`, `-` or `@` for a
/// formula, also within quotes: such a cell has an apostrophe before it (OWASP, "CSV Injection"),
/// unless it is a number, or a word behind a dash.
pub fn record(out: &mut dyn Write, cells: &[String]) -> io::Result<()> {
    for (at, cell) in cells.iter().enumerate() {
        if at > 0 {
            out.write_all(b",")?;
        }
        out.write_all(quoted(cell).as_bytes())?;
    }
    out.write_all(b"\n")
}

fn quoted(cell: &str) -> Cow<'_, str> {
    // `-2..latest`, an epoch, calls nothing.
    let is_word = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let is_formula = match cell.chars().next() {
        // `= dynamic`, a sum of whatcg, is none either: a word alone.
        Some('=') if cell.starts_with("= ") => !cell.chars().skip(2).all(is_word),
        Some('=' | '+' | '@') => cell.parse::<f64>().is_err(),
        Some('-') => !cell.chars().all(is_word) && cell.parse::<f64>().is_err(),
        _ => false,
    };
    let cell = match is_formula {
        true => format!("'{}", escape(cell)).into(),
        false => escape(cell),
    };
    if cell.contains(['"', ',']) {
        format!("\"{}\"", cell.replace('"', "\"\"")).into()
    } else {
        cell
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted_where_they_must_be() {
        let mut out = Vec::new();
        record(&mut out, &["a".into(), "f(int, \"x\")".into(), String::new(), "b\nc".into()])
            .unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "a,\"f(int, \"\"x\"\")\",,b\\nc\n");
    }

    /// A procedure or command with such a name ran a program on the reader's machine.
    #[test]
    fn cells_are_no_formulas() {
        for (cell, expected) in [
            ("=HYPERLINK(\"http://a\",\"b\")", "\"'=HYPERLINK(\"\"http://a\"\",\"\"b\"\")\""),
            ("=1+1", "'=1+1"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("-2+3|cmd", "'-2+3|cmd"),
            ("+x", "'+x"),
            ("-2.5e-3", "-2.5e-3"),
            ("-", "-"),
            ("= dynamic", "= dynamic"),
            ("= f(A1)", "'= f(A1)"),
            ("-2..latest_samples", "-2..latest_samples"),
            ("operator=", "operator="),
        ] {
            assert_eq!(quoted(cell), expected);
        }
        // Only tabs and line feeds could hide one, and both are escaped.
        assert_eq!(quoted("\t=1"), "\\t=1");
    }
}

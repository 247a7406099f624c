//! Rows for spreadsheets and data frames (RFC 4180).

use std::borrow::Cow;
use std::io::{self, Write};

use super::{By, EpochsReport, ProfReport, Row, TopReport, escape};
use query::load::sum;
use stats::Share;

/// A procedure, line, image or scope per row, then a row per reason that samples are of
/// unknown code: what is counted, is here. The columns of an event are its samples, and `_share`,
/// `_low` and `_high`.
pub(super) fn prof(report: &ProfReport, out: &mut dyn Write) -> io::Result<()> {
    let mut titles: Vec<String> = Vec::new();
    match report.by {
        By::Procedure => {
            titles.extend(["procedure", "image", "image_id", "address"].map(str::to_owned))
        }
        By::Line => {
            titles.extend(["procedure", "file", "line", "image", "image_id"].map(str::to_owned))
        }
        By::Image => titles.extend(["image", "image_id", "path"].map(str::to_owned)),
        By::Scope(dimensions) => titles.extend(dimensions.iter().map(|of| of.name().to_owned())),
    }
    for column in &report.events {
        let name = &column.event.name;
        titles.extend([
            name.clone(),
            format!("{name}_share"),
            format!("{name}_low"),
            format!("{name}_high"),
        ]);
        if report.with_calls {
            let of = ["inclusive", "inclusive_low", "inclusive_high"];
            titles.extend(of.map(|part| format!("{name}_{part}")));
        }
    }
    titles.push("cumulative".to_owned());
    // Whose samples all rows are of, where some were chosen.
    let whose = report.whose.asked();
    titles.extend(whose.iter().map(|(dimension, _)| format!("only_{}", dimension.name())));
    record(out, &titles)?;
    for row in &report.rows {
        let mut cells = if report.by == By::Line { line_subject(row) } else { subject(row) };
        for (at, (count, share)) in row.counts.iter().zip(&row.shares).enumerate() {
            cells.extend(count_cells(count.samples, share));
            if report.with_calls {
                let share = row.inclusive.get(at).copied().flatten();
                let ends = share.map(|share| [share.value, share.low, share.high].map(fraction));
                cells.extend(ends.unwrap_or_default());
            }
        }
        cells.push(fraction(row.cumulative));
        cells.extend(whose.iter().map(|(_, value)| value.clone()));
        record(out, &cells)?;
    }
    Ok(())
}

/// What a row is about.
fn subject(row: &Row) -> Vec<String> {
    let mut cells: Vec<String> =
        row.procedure.iter().map(|procedure| procedure.name.clone()).collect();
    if let Some(image) = &row.image {
        cells.extend([image.name.clone(), image.id.to_string()]);
        cells.push(match &row.procedure {
            Some(procedure) => procedure.address.map(|at| format!("{at:#x}")).unwrap_or_default(),
            None => image.path.clone(),
        });
    }
    cells.extend(row.parts.iter().map(|part| part.value().unwrap_or_default()));
    cells
}

/// The same, where rows are source lines.
fn line_subject(row: &Row) -> Vec<String> {
    let procedure = row.procedure.as_ref().map(|procedure| procedure.name.clone());
    let file = row.line.as_ref().map(|line| line.file.clone());
    let line = row.line.as_ref().and_then(|line| line.line).map(|line| line.to_string());
    let image = row.image.as_ref().map(|image| image.name.clone());
    let id = row.image.as_ref().map(|image| image.id.to_string());
    [procedure, file, line, image, id].map(Option::unwrap_or_default).to_vec()
}

pub(super) fn count_cells(count: u64, share: &Share) -> [String; 4] {
    [count.to_string(), fraction(share.value), fraction(share.low), fraction(share.high)]
}

/// A row per procedure or image.
pub(super) fn top(report: &TopReport, out: &mut dyn Write) -> io::Result<()> {
    let event = &report.event;
    let titles = [
        "procedure",
        "image",
        event,
        &format!("{event}_share"),
        &format!("{event}_low"),
        &format!("{event}_high"),
    ];
    record(out, &titles.map(str::to_owned))?;
    for row in &report.rows {
        let mut cells = vec![row.procedure.clone(), row.image.clone()];
        cells.extend(count_cells(row.samples, &row.share));
        record(out, &cells)?;
    }
    Ok(())
}

/// An epoch and event per row.
pub(super) fn epochs(report: &EpochsReport, out: &mut dyn Write) -> io::Result<()> {
    let titles = [
        "host",
        "epoch",
        "label",
        "started_unix_s",
        "ended_unix_s",
        "updated_unix_s",
        "images",
        "size_bytes",
        "event",
        "period",
        "unit",
        "taken",
        "merged",
        "unresolved",
        "lost",
    ];
    record(out, &titles.map(str::to_owned))?;
    let maybe = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
    for row in &report.rows {
        for event in &row.meta.events {
            let ledger = row.meta.ledgers.sum(&event.name);
            record(
                out,
                &[
                    row.meta.host.clone(),
                    row.meta.epoch.to_string(),
                    row.meta.label.clone().unwrap_or_default(),
                    row.meta.started_unix_s.to_string(),
                    maybe(row.meta.ended_unix_s),
                    row.meta.updated_unix_s.to_string(),
                    maybe(row.images.map(|images| images as u64)),
                    maybe(row.size_bytes),
                    event.name.clone(),
                    event.period.to_string(),
                    event.unit.clone(),
                    ledger.taken.to_string(),
                    ledger.merged.to_string(),
                    sum(ledger.unresolved.into_values()).to_string(),
                    sum(ledger.lost.into_values()).to_string(),
                ],
            )?;
        }
    }
    Ok(())
}

/// A fraction to eight decimals: finer than any sample.
pub(super) fn fraction(value: f64) -> String {
    super::json::rounded(value).to_string()
}

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

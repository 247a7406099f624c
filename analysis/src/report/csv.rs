//! Rows for spreadsheets and data frames (RFC 4180).

use std::borrow::Cow;
use std::io::{self, Write};

use super::{EpochsReport, ProfReport, escape};
use crate::load::sum;
use crate::stats::Share;

/// A procedure or image per row, then a row per reason that samples are of unknown code: what is
/// counted, is here. The columns of an event are its samples, and `_share`, `_low` and `_high`.
pub(super) fn prof(report: &ProfReport, out: &mut dyn Write) -> io::Result<()> {
    let mut titles: Vec<String> = Vec::new();
    if !report.by_image {
        titles.push("procedure".to_owned());
    }
    titles.extend(["image", "image_id"].map(str::to_owned));
    titles.push(if report.by_image { "path" } else { "address" }.to_owned());
    for column in &report.events {
        let name = &column.event.name;
        titles.extend([name.clone(), format!("{name}_share"), format!("{name}_low"), format!("{name}_high")]);
    }
    titles.push("cumulative".to_owned());
    record(out, &titles)?;
    for row in &report.rows {
        let mut cells = Vec::with_capacity(titles.len());
        if let Some(procedure) = &row.procedure {
            cells.push(procedure.name.clone());
        }
        cells.extend([row.image.name.clone(), row.image.id.to_string()]);
        match &row.procedure {
            Some(procedure) => cells.push(procedure.address.map(|at| format!("{at:#x}")).unwrap_or_default()),
            None => cells.push(row.image.path.clone()),
        }
        for (count, share) in row.counts.iter().zip(&row.shares) {
            cells.extend(count_cells(*count, share));
        }
        cells.push(fraction(row.cumulative));
        record(out, &cells)?;
    }
    unresolved(report, out)
}

fn unresolved(report: &ProfReport, out: &mut dyn Write) -> io::Result<()> {
    for reason in report.unresolved_reasons() {
        let mut cells = vec![format!("[unresolved: {reason}]")];
        cells.resize(if report.by_image { 3 } else { 4 }, String::new());
        for column in &report.events {
            let found = column.unresolved.iter().find(|(known, ..)| known == reason);
            let (count, share) = found.map_or((0, Share::default()), |(_, count, share)| (*count, *share));
            cells.extend(count_cells(count, &share));
        }
        cells.push(String::new());
        record(out, &cells)?;
    }
    Ok(())
}

fn count_cells(count: u64, share: &Share) -> [String; 4] {
    [count.to_string(), fraction(share.value), fraction(share.low), fraction(share.high)]
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
            let ledger = row.meta.ledgers.get(&event.name).cloned().unwrap_or_default();
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
fn fraction(value: f64) -> String {
    super::json::rounded(value).to_string()
}

/// One record. Lines end in a bare line feed, as Unix tools want it and RFC 4180 readers accept.
fn record(out: &mut dyn Write, cells: &[String]) -> io::Result<()> {
    for (at, cell) in cells.iter().enumerate() {
        if at > 0 {
            out.write_all(b",")?;
        }
        out.write_all(quoted(cell).as_bytes())?;
    }
    out.write_all(b"\n")
}

fn quoted(cell: &str) -> Cow<'_, str> {
    let cell = escape(cell);
    if cell.contains(['"', ',']) { format!("\"{}\"", cell.replace('"', "\"\"")).into() } else { cell }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted_where_they_must_be() {
        let mut out = Vec::new();
        record(&mut out, &["a".into(), "f(int, \"x\")".into(), String::new(), "b\nc".into()]).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "a,\"f(int, \"\"x\"\")\",,b\\nc\n");
    }
}

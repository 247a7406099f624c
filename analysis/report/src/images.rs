//! `dcpi images`.

use std::collections::BTreeSet;
use std::io::{self, Write};

use profiledb::ImageRecord;
use serde::Serialize;

use super::csv::record;
use super::json::{self, Event, InOrder, ProblemEntry};
use super::quantity::{bytes, counted, moment, thousands};
use super::table::Table;
use super::text::{event_head, head, note, problem_lines, selection, short_id};
use super::{EventColumn, Report, Selection, Style, escape};
use query::problem::Problem;
use query::scope::ScopeChoice;
use stats::tally::{self, Tally};

/// `dcpi images`.
#[derive(Debug)]
pub struct ImagesReport {
    /// Database, epochs and hosts that were read.
    pub selection: Selection,
    /// The events, in order of columns.
    pub events: Vec<EventColumn>,
    /// Label, unit or process whose samples these are; all, if none is chosen.
    pub whose: ScopeChoice,
    /// The images, those with the most samples of the first event first.
    pub rows: Vec<ImageRow>,
    /// Missing or doubtful data: the notes of the report.
    pub problems: Vec<Problem>,
}

/// An image.
#[derive(Clone, Debug)]
pub struct ImageRow {
    /// Its record, joined over the chosen epochs.
    pub record: ImageRecord,
    /// Samples by event.
    pub counts: Vec<Tally>,
    /// Hosts that have samples of it.
    pub hosts: BTreeSet<String>,
    /// Whether dcpid kept its code on one of these hosts.
    pub code_kept: bool,
}

#[derive(Serialize)]
struct ImagesJson<'a> {
    db: &'a str,
    epochs: Vec<&'a profiledb::EpochId>,
    hosts: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<json::Time>,
    events: Vec<Event<'a>>,
    rows: Vec<RowJson<'a>>,
    problems: Vec<ProblemEntry<'a>>,
}

#[derive(Serialize)]
struct RowJson<'a> {
    image: &'a str,
    image_id: String,
    kind: &'static str,
    path: &'a str,
    size_bytes: Option<u64>,
    first_seen_unix_s: u64,
    last_seen_unix_s: u64,
    counts: InOrder<&'a str, u64>,
    hosts: &'a BTreeSet<String>,
    code_kept: bool,
}

impl Report for ImagesReport {
    const NAME: &'static str = "images";

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        selection(&self.selection, style, out)?;
        self.events.iter().try_for_each(|column| event_head(column, true, style, out))?;
        if !self.whose.is_all() {
            head(style, out, "only", &format!("samples {}", self.whose.shown()))?;
        }
        writeln!(out)?;
        let mut table = Table::default();
        for column in &self.events {
            table.number(&column.event.name, "");
        }
        table.number("size", "");
        table.words("first seen");
        table.spared();
        ["last seen", "code", "kind", "id"].into_iter().for_each(|title| table.words(title));
        table.paths("image");
        for row in &self.rows {
            let record = &row.record;
            let mut cells: Vec<String> =
                row.counts.iter().map(|count| thousands(count.samples)).collect();
            cells.push(record.size_bytes.map(bytes).unwrap_or_default());
            cells.extend([moment(record.first_seen_unix_s), moment(record.last_seen_unix_s)]);
            cells.push(if row.code_kept { "kept" } else { "" }.to_owned());
            cells.extend([record.kind.as_str().to_owned(), short_id(&record.id)]);
            let place = if record.path.is_empty() { &record.name } else { &record.path };
            // An image that is no file has a name for a path, or nothing.
            let place = if record.kind == image::ImageKind::File { place } else { &record.name };
            cells.push(escape(place).into_owned());
            table.row(cells);
        }
        table.write(style, out)?;
        let kept = self.rows.iter().filter(|row| row.code_kept).count();
        writeln!(
            out,
            "\n{}, of which dcpid kept the code of {}",
            counted(self.rows.len() as u64, "image"),
            thousands(kept as u64)
        )?;
        problem_lines(&self.problems).iter().try_for_each(|line| note(style, out, line))
    }

    fn json(&self) -> impl Serialize + '_ {
        let rows = self.rows.iter().map(|row| RowJson {
            image: &row.record.name,
            image_id: row.record.id.to_string(),
            kind: row.record.kind.as_str(),
            path: &row.record.path,
            size_bytes: row.record.size_bytes,
            first_seen_unix_s: row.record.first_seen_unix_s,
            last_seen_unix_s: row.record.last_seen_unix_s,
            counts: InOrder(
                self.events
                    .iter()
                    .map(|column| column.event.name.as_str())
                    .zip(tally::samples(&row.counts))
                    .collect(),
            ),
            hosts: &row.hosts,
            code_kept: row.code_kept,
        });
        ImagesJson {
            db: &self.selection.db,
            epochs: self.selection.epoch_ids(),
            hosts: self.selection.hosts(),
            time: json::time(&self.selection),
            events: self.events.iter().map(json::event).collect(),
            rows: rows.collect(),
            problems: json::problems(&self.problems),
        }
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let fixed = [
            "image",
            "image_id",
            "kind",
            "path",
            "size_bytes",
            "first_seen_unix_s",
            "last_seen_unix_s",
            "code_kept",
        ];
        let mut titles: Vec<String> = fixed.map(str::to_owned).into();
        titles.extend(self.events.iter().map(|column| column.event.name.clone()));
        record(out, &titles)?;
        for row in &self.rows {
            let it = &row.record;
            let mut cells = vec![
                it.name.clone(),
                it.id.to_string(),
                it.kind.as_str().to_owned(),
                it.path.clone(),
            ];
            cells.push(it.size_bytes.map(|size| size.to_string()).unwrap_or_default());
            cells.extend([
                it.first_seen_unix_s.to_string(),
                it.last_seen_unix_s.to_string(),
                row.code_kept.to_string(),
            ]);
            cells.extend(row.counts.iter().map(|count| count.samples.to_string()));
            record(out, &cells)?;
        }
        Ok(())
    }

    fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

//! `dcpi images`.

use std::collections::BTreeSet;
use std::io::{self, Write};

use image::ImageId;
use profiledb::ImageRecord;

use super::fields::InOrder;
use super::json::{self, Event, Head, ProblemEntry};
use super::quantity::{bytes, counted, moment, thousands};
use super::table::Table;
use super::text::{self, brief, counts, event_head, head, note, problem_lines, selection};
use super::{EventColumn, Report, Selection, Style, escape};
use query::problem::Problem;
use query::scope::ScopeChoice;
use stats::tally::{self, Tally};

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

crate::fields! {
    #[derive(Debug)]
    pub struct ImagesReport {
        pub selection (flat): Selection as Head<'_>;
        pub events: Vec<EventColumn> as Vec<Event<'_>>;
        /// scope of the samples
        pub whose (text): ScopeChoice;
        /// those with the most samples of the first event first
        pub images (text): Vec<ImageRow>;
        rows (rows): Vec<RowJson<'_>> = Self::row_entries;
        pub problems: Vec<Problem> as Vec<ProblemEntry<'_>>;
    }

    /// An image.
    #[derive(Debug)]
    pub struct RowJson<'a> {
        /// name
        image: &'a str => "image";
        /// id: build id (behind it `-pHASH`: of the program headers; `-uUSER`: this user can
        /// write the file), or a hash
        image_id: ImageId => "image_id";
        /// as of `dcpi prof`
        kind: &'static str => "kind";
        /// path; empty: none
        path: &'a str => "path";
        /// size of the file; `null`: not known
        size_bytes: Option<u64>, "bytes" => "size_bytes";
        /// when its first samples were written: the end of their slice of time, of ten seconds or
        /// more
        first_seen_unix_s: u64, "s" => "first_seen_unix_s";
        /// when its last samples were written
        last_seen_unix_s: u64, "s" => "last_seen_unix_s";
        counts: InOrder<&'a str, u64>, "samples" => "EVENT";
        /// hosts that have samples of the image
        hosts: &'a BTreeSet<String>;
        /// true: dcpid kept the image's code
        code_kept: bool => "code_kept";
    }
}

impl ImagesReport {
    fn row_entries(&self) -> Vec<RowJson<'_>> {
        let rows = self.images.iter().map(|row| RowJson {
            image: &row.record.name,
            image_id: row.record.id,
            kind: row.record.kind.as_str(),
            path: &row.record.path,
            size_bytes: row.record.size_bytes,
            first_seen_unix_s: row.record.first_seen_unix_s,
            last_seen_unix_s: row.record.last_seen_unix_s,
            counts: json::by_event(&self.events, tally::samples(&row.counts)),
            hosts: &row.hosts,
            code_kept: row.code_kept,
        });
        rows.collect()
    }
}

impl Report for ImagesReport {
    const NAME: &'static str = "images";
    type Fields<'a> = &'a Self;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        if style.verbose {
            selection(&self.selection, style, out)?;
            self.events.iter().try_for_each(|column| event_head(column, true, style, out))?;
            if !self.whose.is_all() {
                head(style, out, "only", &format!("samples {}", self.whose.shown()))?;
            }
        } else {
            brief(&counts(&self.events, true), &self.selection, &self.whose, style, out)?;
        }
        writeln!(out)?;
        let mut table = Table::default();
        for column in &self.events {
            table.number(&column.event.name, "");
        }
        table.number("size", "");
        table.words("first seen by");
        table.spared();
        for title in ["last seen by", "code", "kind", "id"] {
            table.words(title);
            if title == "last seen by" {
                table.spared();
            }
        }
        table.paths("image");
        for row in &self.images {
            let record = &row.record;
            let mut cells: Vec<String> =
                row.counts.iter().map(|count| thousands(count.samples)).collect();
            cells.push(record.size_bytes.map(bytes).unwrap_or_default());
            cells.extend([moment(record.first_seen_unix_s), moment(record.last_seen_unix_s)]);
            cells.push(if row.code_kept { "kept" } else { "" }.to_owned());
            cells.extend([record.kind.as_str().to_owned(), record.id.short()]);
            let place = if record.path.is_empty() { &record.name } else { &record.path };
            // An image that is not a file has a name for a path, or nothing.
            let place = if record.kind == image::ImageKind::File { place } else { &record.name };
            cells.push(escape(place).into_owned());
            table.row(cells);
        }
        table.write(style, out)?;
        let kept = self.images.iter().filter(|row| row.code_kept).count();
        writeln!(
            out,
            "\n{}, of which dcpid kept the code of {}",
            counted(self.images.len() as u64, "image"),
            thousands(kept as u64)
        )?;
        problem_lines(text::told(&self.problems, style))
            .iter()
            .try_for_each(|line| note(style, out, line))
    }

    fn json(&self) -> &Self {
        self
    }

    fn columns(&self) -> Option<Vec<&'static str>> {
        let mut titles = vec!["image", "image_id", "kind", "path", "size_bytes"];
        titles.extend(["first_seen_unix_s", "last_seen_unix_s", "code_kept", "EVENT"]);
        Some(titles)
    }

    fn keys(&self, _: &str) -> Vec<String> {
        json::event_keys(&self.events)
    }

    fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

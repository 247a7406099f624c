//! Rows of CSV out of fields.

use std::io::{self, Write};

use super::{Field, Fields, Shape};
use crate::Report;
use crate::csv::record;

/// The cells of a row of CSV. Fields of the report that are in no row are no cells.
#[derive(Clone, Debug, Default)]
pub struct Cells {
    cells: Vec<Cell>,
    is_row: bool,
}

/// A title, the key that `EVENT` in it stands for, and the text.
type Cell = (&'static str, Option<String>, String);

impl Cells {
    /// Adds a cell, where there is a title.
    pub fn push(&mut self, titles: &[&'static str], key: Option<&str>, text: impl ToString) {
        if let Some(title) = titles.first().filter(|_| self.is_row) {
            self.cells.push((title, key.map(str::to_owned), text.to_string()));
        }
    }

    /// The cells, for a row within.
    pub fn within(&self) -> Self {
        Self { cells: self.cells.clone(), is_row: true }
    }

    fn text(&self, column: &Column) -> String {
        let is = |(title, key, _): &&Cell| {
            *title == column.title && (key.is_none() || *key == column.key)
        };
        self.cells.iter().find(is).map(|(.., text)| text.clone()).unwrap_or_default()
    }
}

/// A column of CSV.
struct Column {
    title: &'static str,
    key: Option<String>,
}

/// Words in titles that stand for the keys of a map.
pub(super) const KEYS: [&str; 2] = ["EVENT", "WHAT"];

pub(super) fn key_in(title: &str) -> Option<&'static str> {
    KEYS.into_iter().find(|key| title.contains(key))
}

/// The titles of the rows of a report with these fields.
pub(crate) fn titles_of_rows(fields: &[Field], list: &str) -> Vec<&'static str> {
    let mut titles = Vec::new();
    for field in fields.iter().filter(|field| field.is_rows()) {
        if let (true, Shape::List(of)) =
            (list.is_empty() || list == field.name, inner(&field.shape))
            && let Shape::Object(fields) = inner(of)
        {
            titles.extend(self::titles(fields));
        }
    }
    titles
}

/// The titles of these fields: those of lists of rows come last.
fn titles(fields: &[Field]) -> Vec<&'static str> {
    let mut titles = Vec::new();
    for field in fields.iter().filter(|field| !field.is_rows()) {
        match (inner(&field.shape), field.csv) {
            (Shape::Object(fields), []) => titles.extend(self::titles(fields)),
            (_, own) => titles.extend(own.iter().copied().filter(|title| !title.is_empty())),
        }
    }
    titles.extend(titles_of_rows(fields, ""));
    titles
}

/// The shape without null and the maps around it.
fn inner(shape: &Shape) -> &Shape {
    match shape {
        Shape::Nullable(of) | Shape::Map(_, of) => inner(of),
        shape => shape,
    }
}

/// Writes a report as CSV (RFC 4180): a line of titles, and rows.
pub fn write<R: Report + ?Sized>(report: &R, out: &mut dyn Write) -> io::Result<()> {
    let list = report.list_of_rows();
    let titles = report
        .columns()
        .unwrap_or_else(|| titles_of_rows(&<R::Fields<'_> as Fields>::fields(), list));
    let mut columns: Vec<Column> = Vec::new();
    // Columns of an event are side by side.
    for group in titles.chunk_by(|a, b| key_in(a).is_some() && key_in(a) == key_in(b)) {
        match group.first().and_then(|title| key_in(title)) {
            None => columns.extend(group.iter().map(|title| Column { title, key: None })),
            Some(word) => {
                for key in report.keys(word) {
                    let column = |title: &&'static str| Column { title, key: Some(key.clone()) };
                    columns.extend(group.iter().map(column));
                }
            }
        }
    }
    let shown = |column: &Column| match (&column.key, key_in(column.title)) {
        (Some(key), Some(word)) => column.title.replace(word, key),
        _ => report.title(column.title),
    };
    record(out, &columns.iter().map(shown).collect::<Vec<_>>())?;
    report.json().rows(list, Cells::default(), &mut |cells| {
        record(out, &columns.iter().map(|column| cells.text(column)).collect::<Vec<_>>())
    })
}

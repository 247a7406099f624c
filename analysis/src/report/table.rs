//! Columns of text.

use std::io::{self, Write};
use std::iter::repeat_n;

/// Between columns.
const GAP: usize = 2;

/// A table: column titles, perhaps titles of groups of columns, and rows.
#[derive(Debug, Default)]
pub(super) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

#[derive(Debug)]
struct Column {
    title: String,
    right: bool,
    group: String,
}

impl Table {
    /// Adds a column of numbers, to the right.
    pub(super) fn number(&mut self, title: &str, group: &str) {
        self.columns.push(Column { title: title.to_owned(), right: true, group: group.to_owned() });
    }

    /// Adds a column of words, to the left.
    pub(super) fn words(&mut self, title: &str) {
        self.columns.push(Column { title: title.to_owned(), right: false, group: String::new() });
    }

    /// Adds a row; cells that are missing at its end are empty.
    pub(super) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Writes it, all columns as wide as their widest cell.
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let widths = self.widths();
        if self.columns.iter().any(|column| !column.group.is_empty()) {
            writeln!(out, "{}", self.groups(&widths).trim_end())?;
        }
        let titles: Vec<&str> = self.columns.iter().map(|column| column.title.as_str()).collect();
        self.line(out, &titles, &widths)?;
        for row in &self.rows {
            let cells: Vec<&str> = row.iter().map(String::as_str).collect();
            self.line(out, &cells, &widths)?;
        }
        Ok(())
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self.columns.iter().map(|column| width(&column.title)).collect();
        for row in &self.rows {
            for (widest, cell) in widths.iter_mut().zip(row) {
                *widest = (*widest).max(width(cell));
            }
        }
        widths
    }

    fn line(&self, out: &mut dyn Write, cells: &[&str], widths: &[usize]) -> io::Result<()> {
        let mut line = String::new();
        for ((column, width), cell) in self.columns.iter().zip(widths).zip(cells) {
            if !line.is_empty() {
                line.extend(repeat_n(' ', GAP));
            }
            let padding = repeat_n(' ', width.saturating_sub(self::width(cell)));
            if column.right {
                line.extend(padding);
                line.push_str(cell);
            } else {
                line.push_str(cell);
                line.extend(padding);
            }
        }
        writeln!(out, "{}", line.trim_end())
    }

    /// The line of group titles: each in a rule over its columns.
    fn groups(&self, widths: &[usize]) -> String {
        let mut line = String::new();
        let mut columns = self.columns.iter().zip(widths).peekable();
        while let Some((first, width)) = columns.next() {
            let mut span = *width;
            while let Some((_, more)) = columns.next_if(|(next, _)| next.group == first.group) {
                span += GAP + more;
            }
            if !line.is_empty() {
                line.push_str(&" ".repeat(GAP));
            }
            if first.group.is_empty() {
                line.push_str(&" ".repeat(span));
            } else {
                line.push_str(&format!("{:-^span$}", format!(" {} ", first.group)));
            }
        }
        line
    }
}

/// Columns that a text takes on a terminal, near enough: East Asian wide characters take two.
pub(super) fn width(text: &str) -> usize {
    text.chars().count()
}

/// A text of at most this many characters, its middle replaced by one `…` if need be. More is kept
/// of the end, which tells procedures of one type or crate apart.
#[must_use]
pub fn shorten(text: &str, most: usize) -> String {
    let length = width(text);
    if length <= most || most < 3 {
        return text.to_owned();
    }
    let head = (most - 1) / 3;
    let tail = most - 1 - head;
    let first = text.chars().take(head);
    let last = text.chars().skip(length - tail);
    first.chain(['…']).chain(last).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(table: &Table) -> String {
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_are_as_wide_as_need_be() {
        let mut table = Table::default();
        table.number("n", "");
        table.words("name");
        table.row(vec!["10".into(), "a".into()]);
        table.row(vec!["1,000".into(), "größe".into()]);
        table.row(vec!["1".into()]);
        assert_eq!(written(&table), "    n  name\n   10  a\n1,000  größe\n    1\n");
    }

    #[test]
    fn groups_span_their_columns() {
        let mut table = Table::default();
        table.number("samples", "cycles");
        table.number("%", "cycles");
        table.number("samples", "imiss");
        table.words("name");
        table.row(vec!["1".into(), "50.00".into(), "2".into(), "f".into()]);
        assert_eq!(
            written(&table),
            "--- cycles ---   imiss \nsamples      %  samples  name\n      1  50.00        2  f\n"
                .replace(" imiss \n", " imiss\n")
        );
    }

    #[test]
    fn long_names_lose_their_middle() {
        assert_eq!(shorten("abcdefghij", 10), "abcdefghij");
        assert_eq!(shorten("abcdefghij", 7), "ab…ghij");
        assert_eq!(shorten("größenwahn", 4), "g…hn");
        assert_eq!(shorten("abc", 2), "abc");
    }
}

//! Columns of text.

use crate::escape::escape;

/// Characters between columns.
const GAP: usize = 2;

/// A table whose last column has what room the others leave.
pub(crate) struct Table {
    /// Titles; one that begins with a space is of numbers, which stand to the right.
    titles: Vec<String>,
    rows: Vec<Vec<String>>,
    notes: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(titles: &[&str]) -> Self {
        Self {
            titles: titles.iter().map(|title| escape(title).into_owned()).collect(),
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a row, and lines below it.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N], notes: Vec<String>) {
        let spelt = |text: &String| escape(text).into_owned();
        self.rows.push(cells.iter().map(spelt).collect());
        self.notes.push(notes.iter().map(spelt).collect());
    }

    /// The table, in lines of at most this many characters if its numbers leave any room.
    pub(crate) fn lines(&self, columns: usize) -> Vec<String> {
        let titles: Vec<String> = self.titles.iter().map(|title| title.trim().to_owned()).collect();
        let widths: Vec<usize> = (0..titles.len())
            .map(|at| {
                let cells = self.rows.iter().chain([&titles]).filter_map(|row| row.get(at));
                let widest = cells.map(|cell| width(cell)).max().unwrap_or(0);
                let is_name = self.titles.get(at).is_some_and(|title| !title.starts_with(' '));
                // A column of names leaves room for the others.
                if is_name { widest.min(columns / 4) } else { widest }
            })
            .collect();
        let mut lines = vec![self.line(&titles, &widths, columns)];
        for (row, notes) in self.rows.iter().zip(&self.notes) {
            lines.push(self.line(row, &widths, columns));
            lines.extend(notes.iter().flat_map(|note| wrapped("      ", note, columns)));
        }
        lines
    }

    fn line(&self, cells: &[String], widths: &[usize], columns: usize) -> String {
        let mut line = String::new();
        let last = cells.len().saturating_sub(1);
        for (at, ((cell, wide), title)) in cells.iter().zip(widths).zip(&self.titles).enumerate() {
            if at > 0 {
                line.push_str(&" ".repeat(GAP));
            }
            let room =
                if at == last { columns.saturating_sub(width(&line)).max(12) } else { *wide };
            let cell = cut(cell, room);
            let padding = " ".repeat(wide.saturating_sub(width(&cell)));
            if title.starts_with(' ') {
                line.push_str(&(padding + &cell));
            } else {
                line.push_str(&(cell + &padding));
            }
        }
        line.trim_end().to_owned()
    }
}

/// A text of at most this many characters. A longer text loses its middle; more is kept of its end,
/// which distinguishes procedures of one type.
pub(crate) fn cut(text: &str, most: usize) -> String {
    let length = width(text);
    if length <= most || most < 3 {
        return text.to_owned();
    }
    let head = (most - 1) / 3;
    let tail = most - 1 - head;
    text.chars().take(head).chain(['…']).chain(text.chars().skip(length - tail)).collect()
}

/// The text in lines of at most this many characters: the first after a word, the others below its
/// text. A word that is longer than a line is not broken.
pub(crate) fn wrapped(word: &str, text: &str, columns: usize) -> Vec<String> {
    let indent = width(word);
    let mut lines = Vec::new();
    let mut line = word.to_owned();
    let mut is_empty = true;
    for part in escape(text).split(' ') {
        if !is_empty && width(&line) + 1 + width(part) > columns {
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(part);
        is_empty = false;
    }
    lines.push(line);
    lines
}

pub(crate) fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_to_the_right_and_the_last_column_is_cut() {
        let mut table = Table::new(&["service", " cores", "procedure"]);
        let long = "a".repeat(20) + "::tail";
        table.row(["web".into(), "1".into(), long.clone()], vec!["below it".into()]);
        table.row(["x\x1b".into(), "12".into(), "f".into()], Vec::new());
        assert_eq!(
            table.lines(32),
            [
                "service  cores  procedure",
                "web          1  aaaaa…aaaa::tail",
                "      below it",
                "x\\x1b       12  f",
            ]
        );
        assert!(table.lines(80).iter().any(|line| line.ends_with(&long)));
    }

    #[test]
    fn texts_are_broken_between_words() {
        assert_eq!(wrapped("word  ", "one two three", 14), ["word  one two", "      three"]);
        assert_eq!(wrapped("  ", "0123456789", 5), ["  0123456789"]);
    }
}

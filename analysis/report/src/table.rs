//! Columns of text.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::iter::repeat_n;

use super::escape;
use names::shorten::shorten;

/// Between columns.
const GAP: usize = 2;

/// Columns that can be spared are left out until those of names have so many characters.
const ROOM: usize = 30;
/// The same, of names with source lines behind them.
const ROOM_OF_LINES: usize = 48;
/// Columns of names are not cut to less than this, however narrow the terminal is.
const MIN_NAMES: usize = 8;
/// Length of the suffix that distinguishes two names that would otherwise be shown alike.
const DIFFERENCE: usize = 12;

/// How a text is to look.
#[derive(Copy, Clone, Debug)]
pub struct Style {
    /// Characters in a line. Names are cut so that rows have no more, where that is possible.
    pub columns: usize,
    /// Names in full length, however wide lines are, with what compilers appended to them.
    pub full_names: bool,
    /// Lines beside tables are broken at [`Style::columns`].
    pub wrap: bool,
    /// For a terminal that shows colours.
    pub colour: bool,
    /// All lines of heads and all notes, also those that change nothing of what to do next.
    pub verbose: bool,
}

/// From this share of samples on a row is hot, or warm.
const HOT: f64 = 0.1;
const WARM: f64 = 0.01;

/// A colour (ECMA-48, "Select Graphic Rendition").
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Colour {
    /// Bold red: much time, or more than before.
    Hot,
    /// Yellow.
    Warm,
    /// Green: less than before.
    Less,
    /// Faint: lines about other lines.
    Faint,
}

impl Colour {
    /// The colour of a share of samples; none if the share is small.
    pub(super) fn of_share(share: f64) -> Option<Self> {
        match share {
            hot if hot >= HOT => Some(Self::Hot),
            warm if warm >= WARM => Some(Self::Warm),
            _ => None,
        }
    }

    /// The text in the colour, if colours are shown.
    pub(super) fn paint(this: Option<Self>, text: &str, style: &Style) -> String {
        let code = match this.filter(|_| style.colour) {
            None => return text.to_owned(),
            Some(Self::Hot) => "1;31",
            Some(Self::Warm) => "33",
            Some(Self::Less) => "32",
            Some(Self::Faint) => "2",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// A table: column titles, perhaps titles of groups of columns, and rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    columns: Vec<Column>,
    rows: Vec<(Vec<Cell>, Option<Colour>)>,
    /// Whether names have source lines behind them, which tell apart what looks alike.
    of_lines: bool,
}

/// Cuts the texts of a column that do not fit, to this many characters.
type Cut = fn(&str, usize) -> String;

#[derive(Clone, Debug)]
struct Column {
    title: String,
    right: bool,
    /// Left out where names have no room beside it.
    spared: bool,
    group: String,
    /// How it is cut, and its part of the room where all such columns want more than there is.
    cut: Option<(Cut, usize)>,
}

/// A cell, without what a terminal would take for a command.
#[derive(Clone, Debug, Default)]
pub(super) struct Cell {
    text: String,
    /// Behind it, and never cut.
    tail: String,
    /// Instead of the tail where the row would look like another.
    apart: String,
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text, ..Self::default() }
    }
}

impl Cell {
    /// A name as others have it.
    pub(super) fn name(name: &str) -> Self {
        escape(name).into_owned().into()
    }

    /// The same, followed by more text.
    pub(super) fn tail(self, tail: String) -> Self {
        Self { tail, ..self }
    }

    /// The same, with a suffix that distinguishes it from others.
    pub(super) fn apart(self, apart: String) -> Self {
        Self { apart, ..self }
    }

    fn whole(&self) -> String {
        format!("{}{}", self.text, self.tail)
    }

    fn cut(&self, cut: Cut, most: usize, tail: &str) -> String {
        format!("{}{tail}", cut(&self.text, most.saturating_sub(width(tail))))
    }
}

impl Table {
    /// Adds a column of numbers, to the right.
    pub(super) fn number(&mut self, title: &str, group: &str) {
        self.columns.push(Column {
            title: title.to_owned(),
            right: true,
            spared: false,
            group: group.to_owned(),
            cut: None,
        });
    }

    /// Has the last column left out where names have no room beside it; of several the last first.
    pub(super) fn spared(&mut self) {
        self.columns.iter_mut().last().into_iter().for_each(|column| column.spared = true);
    }

    /// Marks the table as one whose names end in a source line (`main app.py:14`). Names then get
    /// more room, and rows of the same name need nothing else to tell them apart.
    pub(super) fn of_lines(&mut self) {
        self.of_lines = true;
    }

    /// Adds a column of words, to the left.
    pub(super) fn words(&mut self, title: &str) {
        self.column(title, None);
    }

    /// Adds a column of procedures' names, which are cut.
    pub(super) fn procedures(&mut self, title: &str) {
        self.column(title, Some((names::shorten::fit, 2)));
    }

    /// Adds a column of other names, which lose their middle.
    pub(super) fn names(&mut self, title: &str) {
        self.column(title, Some((shorten, 1)));
    }

    /// Adds a column of paths, which lose the directories that they begin with.
    pub(super) fn paths(&mut self, title: &str) {
        self.column(title, Some((last_part, 1)));
    }

    /// Adds a column of texts, which lose their end.
    pub(super) fn texts(&mut self, title: &str) {
        self.column(title, Some((cut, 2)));
    }

    fn column(&mut self, title: &str, cut: Option<(Cut, usize)>) {
        self.columns.push(Column {
            title: title.to_owned(),
            right: false,
            spared: false,
            group: String::new(),
            cut,
        });
    }

    /// Adds a row; cells that are missing at its end are empty.
    pub(super) fn row<C: Into<Cell>>(&mut self, cells: Vec<C>) {
        self.coloured(cells, None);
    }

    /// Adds a row whose numbers, up to the first other column, have a colour.
    pub(super) fn coloured<C: Into<Cell>>(&mut self, cells: Vec<C>, colour: Option<Colour>) {
        self.rows.push((cells.into_iter().map(Into::into).collect(), colour));
    }

    /// Writes it, all columns as wide as their widest cell or the style lets them be.
    pub(super) fn write(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        if let Some(spared) = self.spared_column(style) {
            let mut left = self.clone();
            left.columns.remove(spared);
            left.rows
                .iter_mut()
                .filter(|(row, _)| spared < row.len())
                .for_each(|(row, _)| drop(row.remove(spared)));
            return left.write(style, out);
        }
        let mut widths = self.widths(style);
        let shown = self.shown(&widths);
        for (at, (column, width)) in
            self.columns.iter().zip(&mut widths).enumerate().filter(|(_, of)| of.0.cut.is_some())
        {
            // A cut text may be shorter than necessary.
            let cells = shown.iter().filter_map(|row| row.get(at)).map(|cell| self::width(cell));
            *width = cells.chain([self::width(&column.title)]).max().unwrap_or(0);
        }
        if self.columns.iter().any(|column| !column.group.is_empty()) {
            writeln!(out, "{}", self.groups(&widths).trim_end())?;
        }
        let titles: Vec<String> = self.columns.iter().map(|column| column.title.clone()).collect();
        writeln!(out, "{}", self.line(&titles, &widths, |numbers| numbers))?;
        for (cells, (_, colour)) in shown.iter().zip(&self.rows) {
            writeln!(
                out,
                "{}",
                self.line(cells, &widths, |numbers| Colour::paint(*colour, &numbers, style))
            )?;
        }
        Ok(())
    }

    /// The column to leave out, if names have too little room.
    fn spared_column(&self, style: &Style) -> Option<usize> {
        let (whole, wanted) = self.natural();
        let cut = |at: &usize| self.columns.get(*at).is_some_and(|column| column.cut.is_some());
        let names: usize = (0..whole.len()).filter(cut).filter_map(|at| whole.get(at)).sum();
        let room = (style.columns + GAP).saturating_sub(wanted - names);
        let spared = self.columns.iter().rposition(|column| column.spared);
        let most = if self.of_lines { ROOM_OF_LINES } else { ROOM };
        spared.filter(|_| !style.full_names && room < names.min(most))
    }

    /// Columns as wide as their widest cell, and how wide lines are then, with a gap behind.
    fn natural(&self) -> (Vec<usize>, usize) {
        let mut widths: Vec<usize> =
            self.columns.iter().map(|column| width(&column.title)).collect();
        for (row, _) in &self.rows {
            for (widest, cell) in widths.iter_mut().zip(row) {
                *widest = (*widest).max(width(&cell.whole()));
            }
        }
        let whole = widths.iter().map(|width| width + GAP).sum();
        (widths, whole)
    }

    /// Columns with cut names share the width that the other columns leave, each up to its need.
    fn widths(&self, style: &Style) -> Vec<usize> {
        let (mut widths, whole) = self.natural();
        if style.full_names {
            return widths;
        }
        let mut cut: Vec<(usize, usize)> = self
            .columns
            .iter()
            .enumerate()
            .filter_map(|(at, column)| Some((at, column.cut?.1)))
            .collect();
        let wanted: usize = cut.iter().filter_map(|(at, _)| widths.get(*at)).sum();
        let mut room = (style.columns + GAP).saturating_sub(whole - wanted);
        // The column that needs the least of its part comes first; it leaves the rest to the
        // others.
        cut.sort_by_key(|(at, part)| widths.get(*at).map_or(0, |wanted| wanted * 12 / part));
        let mut parts: usize = cut.iter().map(|(_, part)| part).sum();
        for (at, part) in cut {
            if let Some(width) = widths.get_mut(at) {
                let least = MIN_NAMES.min(*width);
                *width = (*width).min(room * part / parts.max(1)).max(least);
                room = room.saturating_sub(*width);
                parts -= part;
            }
        }
        widths
    }

    /// The cells of all rows, cut; where rows would look the same, with what tells them apart.
    fn shown(&self, widths: &[usize]) -> Vec<Vec<String>> {
        let cells = |row: &[Cell], apart: Option<&str>| -> Vec<String> {
            let mut apart = apart;
            let cell = |((cell, column), most): ((&Cell, &Column), &usize)| match column.cut {
                Some((cut, _)) => {
                    let apart = apart.take().filter(|apart| width(apart) + MIN_NAMES <= *most);
                    cell.cut(cut, *most, apart.unwrap_or(&cell.tail))
                }
                _ => cell.whole(),
            };
            row.iter().zip(&self.columns).zip(widths).map(cell).collect()
        };
        let mut shown: Vec<Vec<String>> =
            self.rows.iter().map(|(row, _)| cells(row, None)).collect();
        if self.of_lines {
            return shown;
        }
        // A column that is not a number, such as an id or an address, may already distinguish the
        // rows.
        let name = |row: &[String]| -> Vec<String> {
            row.iter()
                .zip(&self.columns)
                .filter(|(_, column)| !column.right)
                .map(|(cell, _)| cell.clone())
                .collect()
        };
        let mut same: BTreeMap<Vec<String>, Vec<usize>> = BTreeMap::new();
        for (at, row) in shown.iter().enumerate() {
            same.entry(name(row)).or_default().push(at);
        }
        for alike in same.values().filter(|alike| alike.len() > 1) {
            let first = |at: usize| {
                let mut cells = self.rows.get(at)?.0.iter().zip(&self.columns);
                cells.find(|(_, column)| column.cut.is_some()).map(|(cell, _)| cell)
            };
            let whole: Vec<&str> =
                alike.iter().filter_map(|at| first(*at)).map(|cell| cell.text.as_str()).collect();
            for at in alike {
                let Some((cell, (row, _))) = first(*at).zip(self.rows.get(*at)) else { continue };
                let apart = if cell.apart.is_empty() {
                    difference(&cell.text, &whole)
                } else {
                    cell.apart.clone()
                };
                if let Some(line) = shown.get_mut(*at).filter(|_| !apart.is_empty()) {
                    *line = cells(row, Some(&apart));
                }
            }
        }
        shown
    }

    /// A line; `paint` colours its numbers.
    fn line(
        &self,
        cells: &[String],
        widths: &[usize],
        paint: impl FnOnce(String) -> String,
    ) -> String {
        let (mut numbers, mut line, mut in_numbers) = (String::new(), String::new(), true);
        for ((column, width), cell) in self.columns.iter().zip(widths).zip(cells) {
            in_numbers &= column.right;
            if !(numbers.is_empty() && line.is_empty()) {
                let to = if in_numbers { &mut numbers } else { &mut line };
                to.extend(repeat_n(' ', GAP));
            }
            let to = if in_numbers { &mut numbers } else { &mut line };
            let padding = repeat_n(' ', width.saturating_sub(self::width(cell)));
            if column.right {
                to.extend(padding);
                to.push_str(cell);
            } else {
                to.push_str(cell);
                to.extend(padding);
            }
        }
        let line = line.trim_end();
        if line.is_empty() {
            numbers.truncate(numbers.trim_end().len());
        }
        if numbers.is_empty() { line.to_owned() } else { format!("{}{line}", paint(numbers)) }
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

/// A text of at most this many characters: its end is left out.
pub(super) fn cut(text: &str, most: usize) -> String {
    if width(text) <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// A path of at most this many characters: of directories those that it begins with are left out.
fn last_part(path: &str, most: usize) -> String {
    let fits = |rest: &&str| width(rest) < most;
    let rests = path.match_indices('/').filter_map(|(at, _)| path.get(at..));
    match rests.filter(|_| width(path) > most).find(fits) {
        Some(rest) => format!("…{rest}"),
        None => shorten(path, most),
    }
}

/// Where a name is not as the others that are shown like it: ` …long, 2…`.
pub(super) fn difference(name: &str, others: &[&str]) -> String {
    let common = |other: &&str| name.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
    let Some(from) = others.iter().filter(|other| **other != name).map(common).min() else {
        return String::new();
    };
    let before = name.get(..name.floor_char_boundary(from)).unwrap_or_default();
    let word = before
        .rfind(|c: char| !c.is_alphanumeric() && c != '_')
        .map_or(0, |at| name.ceil_char_boundary(at + 1));
    let shown: String = name.get(word..).unwrap_or_default().chars().take(DIFFERENCE).collect();
    format!(" …{shown}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const STYLE: Style =
        Style { columns: 120, full_names: false, wrap: false, colour: false, verbose: true };

    fn styled(table: &Table, style: &Style) -> String {
        let mut out = Vec::new();
        table.write(style, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn written(table: &Table) -> String {
        styled(table, &STYLE)
    }

    fn of_names(names: &[(&str, &str)]) -> Table {
        let mut table = Table::default();
        table.number("n", "");
        table.procedures("procedure");
        table.names("image");
        for (procedure, image) in names {
            table.row(vec!["1".to_owned().into(), Cell::name(procedure), Cell::name(image)]);
        }
        table
    }

    /// Rows were as wide as their names, or 120, whatever the terminal: at 80 columns each wrapped.
    #[test]
    fn rows_fit_the_terminal() {
        let long = "std::map<int, std::string>::insert_or_assign(int const&, std::string const&)";
        let table = of_names(&[(long, "libsomething-or-other.so.6.0.30"), ("main", "a.out")]);
        for columns in [40, 60, 80, 100, 180] {
            let text = styled(&table, &Style { columns, ..STYLE });
            assert!(text.lines().all(|line| width(line) <= columns), "{columns}: {text}");
            assert!(text.contains("insert_or_assign"), "{columns}: {text}");
        }
        for style in
            [Style { columns: 180, ..STYLE }, Style { columns: 40, full_names: true, ..STYLE }]
        {
            assert!(
                styled(&table, &style)
                    .contains(&format!("{long}  libsomething-or-other.so.6.0.30"))
            );
        }
    }

    /// Two procedures of one image were shown as one name.
    #[test]
    fn names_that_would_be_one_keep_what_tells_them_apart() {
        let [one, two] = ["int", "long"]
            .map(|of| format!("std::vector<{of}, std::allocator<{of}> >::push_back({of}&&)"));
        let table = of_names(&[(&one, "a"), (&two, "a"), (&two, "b")]);
        let text = styled(&table, &Style { columns: 60, ..STYLE });
        let expected = "n  procedure                                           image\n\
                        1  std::vector<…>::push_back(…) …int, std::al          a\n\
                        1  std::vector<…>::push_back(…) …long, std::a          a\n\
                        1  std::vector<…>::push_back(…)                        b\n";
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&text), words(expected), "{text}");
        assert!(text.lines().all(|line| width(line) <= 60), "{text}");
    }

    #[test]
    fn columns_are_left_out_where_names_have_no_room() {
        let mut table = Table::default();
        for title in ["samples", "mean", "deviation"] {
            table.number(title, "");
            table.spared();
        }
        table.procedures("procedure");
        table.row(vec!["1".to_owned(), "2".to_owned(), "3".to_owned(), "a::".repeat(20)]);
        let titles = |columns| {
            let text = styled(&table, &Style { columns, ..STYLE });
            text.lines().next().unwrap().split_whitespace().count()
        };
        assert_eq!([60, 50, 40].map(titles), [4, 3, 2]);
        assert!(
            styled(&table, &Style { columns: 40, full_names: true, ..STYLE }).contains("deviation")
        );
    }

    #[test]
    fn numbers_of_a_row_have_its_colour() {
        let mut table = Table::default();
        table.number("n", "");
        table.words("name");
        table.coloured(vec!["10".to_owned(), "a".to_owned()], Colour::of_share(0.5));
        table.coloured(vec!["2".to_owned(), "b".to_owned()], Colour::of_share(0.001));
        assert_eq!(written(&table), " n  name\n10  a\n 2  b\n");
        let colours = Style { colour: true, ..STYLE };
        assert_eq!(styled(&table, &colours), " n  name\n\x1b[1;31m10\x1b[0m  a\n 2  b\n");
    }

    #[test]
    fn paths_keep_their_end() {
        assert_eq!(last_part("/usr/lib/x86_64-linux-gnu/libc.so.6", 20), "…/libc.so.6");
        assert_eq!(last_part("/usr/lib/libc.so.6", 18), "/usr/lib/libc.so.6");
        assert_eq!(last_part("/usr/lib/libc.so.6", 17), "…/lib/libc.so.6");
        assert_eq!(last_part("/usr/lib/a-long-name.so.6", 10), "/us…e.so.6");
    }

    #[test]
    fn columns_are_as_wide_as_need_be() {
        let mut table = Table::default();
        table.number("n", "");
        table.words("name");
        table.row(vec!["10".to_owned(), "a".into()]);
        table.row(vec!["1,000".to_owned(), "größe".into()]);
        table.row(vec!["1".to_owned()]);
        assert_eq!(written(&table), "    n  name\n   10  a\n1,000  größe\n    1\n");
    }

    #[test]
    fn groups_span_their_columns() {
        let mut table = Table::default();
        table.number("samples", "cycles");
        table.number("%", "cycles");
        table.number("samples", "imiss");
        table.words("name");
        table.row(vec!["1".to_owned(), "50.00".into(), "2".into(), "f".into()]);
        assert_eq!(
            written(&table),
            "--- cycles ---   imiss \nsamples      %  samples  name\n      1  50.00        2  f\n"
                .replace(" imiss \n", " imiss\n")
        );
    }
}

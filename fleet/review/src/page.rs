//! The review as one HTML file, which needs no server and no network: the crate `face` has its
//! script, of the same parts as the page of `dcpi html`.
//!
//! Procedures are columns of numbers beside a list of names, each name once, and trends are digits
//! in one text: 20,000 rows of 26 weeks are a few megabytes, and the browser makes few objects.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::escape::escape;
use crate::report::{Report, TREND_WEEKS, TopRow, percent_encoded, shell_word};
use crate::{json, table, text};

/// Characters of a name; the middle of longer ones is left out.
const NAME_MAX: usize = 400;
/// Bytes of words for commands of names that are shown otherwise than they are. Beyond it the page
/// has no command for such a row: hosts that make long names may not make the page long.
const WORDS_BYTES_MAX: usize = 512 * 1024;
/// Digits of a trend.
const DIGITS: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";
/// The largest number of two digits: a trend's largest week.
const TREND_MAX: f64 = 4095.0;

/// All of the page's data except for the rows of procedures.
#[derive(Serialize)]
struct Page {
    /// How much of the fleet it is of: words and lines.
    coverage: Vec<(&'static str, String)>,
    /// Each name of the columns once.
    names: Vec<String>,
    /// Words for a shell of names that are shown otherwise than they are, by what is shown; None:
    /// there is no room for it.
    words: BTreeMap<String, Option<String>>,
    top: Columns,
    /// Samples that the ledger does not account for, as text: scripts have no such integers.
    difference: String,
    /// The other parts of the report.
    report: Value,
}

/// The rows of procedures, by column. Names are numbers in the list of names.
#[derive(Default, Serialize)]
struct Columns {
    service: Vec<usize>,
    image: Vec<usize>,
    procedure: Vec<usize>,
    /// -1: no owner.
    owner: Vec<i64>,
    core_hours: Vec<f64>,
    hosts: Vec<u64>,
    money: Vec<Option<f64>>,
    /// Weeks of each trend.
    weeks: usize,
    /// The core-hours that the value 4095 in the row's trend stands for.
    most: Vec<f64>,
    /// Two digits for each week of each row: 0 stands for no samples.
    trend: String,
}

/// Writes the page. The page's policy recognises its own script by `nonce`, which must not be
/// guessable by anyone who can choose names.
///
/// # Errors
/// Returns errors of writing the output.
pub fn write(report: &Report, nonce: &str, out: &mut dyn Write) -> io::Result<()> {
    let json = json::compact(&page(report)?)?.into_bytes();
    let page = face::Page {
        subject: face::Subject::Fleet,
        title: escape(&format!("Fleet review {}", report.week)).into(),
        is_live: false,
        note: None,
        db: String::new(),
        selection: Vec::new(),
        of_threads: Vec::new(),
        images: Vec::new(),
        sets: None,
        version: env!("CARGO_PKG_VERSION"),
        terms: Vec::new(),
        reports: vec![face::Report { words: vec!["review".to_owned()], more: Vec::new(), json }],
    };
    face::write(&page, nonce, out)
}

fn page(report: &Report) -> io::Result<Page> {
    let mut names = Names { is_link: report.drill.starts_with('/'), ..Names::default() };
    let top = columns(&report.top, &mut names);
    let others = Report { top: Vec::new(), drill: String::new(), ..report.clone() };
    let mut others = serde_json::to_value(&others).map_err(io::Error::from)?;
    names.show_all(&mut others);
    // The command is the site's own text, and is shown whole.
    if let Value::Object(parts) = &mut others {
        parts.insert("drill".to_owned(), escape(&report.drill).into());
    }
    Ok(Page {
        coverage: text::coverage(report)
            .into_iter()
            .map(|(word, says)| (word, names.show(&says)))
            .collect(),
        names: names.list,
        words: names.words,
        top,
        difference: report.ledger.difference().to_string(),
        report: others,
    })
}

fn columns(rows: &[TopRow], names: &mut Names) -> Columns {
    let mut columns = Columns { weeks: TREND_WEEKS, ..Columns::default() };
    for row in rows {
        columns.service.push(names.number(&row.service));
        columns.image.push(names.number(&row.image));
        columns.procedure.push(names.number(&row.procedure));
        let owner = row.owner.as_deref().and_then(|owner| i64::try_from(names.number(owner)).ok());
        columns.owner.push(owner.unwrap_or(-1));
        columns.core_hours.push(brief(row.core_hours));
        columns.hosts.push(row.hosts);
        columns.money.push(row.money.map(brief));
        let weeks = || row.trend.iter().copied().flatten().filter(|hours| hours.is_finite());
        let most = weeks().fold(0.0, f64::max);
        columns.most.push(brief(most));
        // The week of the report is the last one, however many there are.
        let known = row.trend.iter().rev().take(TREND_WEEKS).rev();
        let unknown = TREND_WEEKS.saturating_sub(row.trend.len());
        for week in std::iter::repeat_n(&None, unknown).chain(known) {
            // Samples, however few, are not none.
            let part = week
                .filter(|_| most > 0.0)
                .map_or(0.0, |hours| (hours / most * TREND_MAX).round().clamp(1.0, TREND_MAX));
            let part = part as usize;
            let digit = |of: usize| char::from(DIGITS.get(of).copied().unwrap_or(b'0'));
            columns.trend.extend([digit(part / DIGITS.len()), digit(part % DIGITS.len())]);
        }
    }
    columns
}

/// Five digits: more than the page shows.
fn brief(number: f64) -> f64 {
    format!("{number:.4e}").parse().unwrap_or(0.0)
}

/// Names as the page shows them: nothing invisible in them, and not without end.
#[derive(Default)]
struct Names {
    list: Vec<String>,
    numbers: BTreeMap<String, usize>,
    /// The displayed form of names that are not shown as they are.
    shown: BTreeMap<String, String>,
    /// All that is shown instead of another name.
    taken: BTreeSet<String>,
    words: BTreeMap<String, Option<String>>,
    words_bytes: usize,
    /// Whether commands are links.
    is_link: bool,
}

impl Names {
    /// The number of a name in the list.
    fn number(&mut self, name: &str) -> usize {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let shown = self.show(name);
        self.numbers.insert(name.to_owned(), self.list.len());
        self.list.push(shown);
        self.list.len() - 1
    }

    fn show(&mut self, name: &str) -> String {
        let shown = table::cut(&escape(name), NAME_MAX);
        if shown == name {
            return shown;
        }
        if let Some(shown) = self.shown.get(name) {
            return shown.clone();
        }
        // Two long names may differ in their middle only.
        let mut apart = shown.clone();
        let mut others = 1;
        while !self.taken.insert(apart.clone()) {
            others += 1;
            apart = format!("{shown} [{others}]");
        }
        let word = if self.is_link { percent_encoded(name) } else { shell_word(name) };
        self.words_bytes = self.words_bytes.saturating_add(word.len());
        let word = Some(word).filter(|_| self.words_bytes <= WORDS_BYTES_MAX);
        self.words.insert(apart.clone(), word);
        self.shown.insert(name.to_owned(), apart.clone());
        apart
    }

    /// Every text in a value as it is shown.
    fn show_all(&mut self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.show(text),
            Value::Array(values) => values.iter_mut().for_each(|value| self.show_all(value)),
            Value::Object(entries) => {
                let mut shown = Map::new();
                for (key, mut value) in std::mem::take(entries) {
                    self.show_all(&mut value);
                    shown.insert(self.show(&key), value);
                }
                *entries = shown;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trends_have_two_digits_a_week_and_this_week_last() {
        let row = |trend: &[Option<f64>]| TopRow { trend: trend.to_vec(), ..TopRow::default() };
        let rows = [
            row(&[Some(1.0), None, Some(4.0)]),
            row(&[Some(9.0); TREND_WEEKS + 3]),
            row(&[]),
            row(&[Some(1e-9), Some(f64::NAN), Some(1e9)]),
        ];
        let columns = columns(&rows, &mut Names::default());
        let trend = columns.trend.as_bytes().chunks(2 * TREND_WEEKS);
        let trends: Vec<_> =
            trend.map(|digits| String::from_utf8(digits.to_vec()).unwrap()).collect();
        let [zeros, short] = [TREND_WEEKS - 3, TREND_WEEKS].map(|weeks| "00".repeat(weeks));
        assert_eq!(
            trends,
            [zeros.clone() + "G000__", "__".repeat(TREND_WEEKS), short, zeros + "0100__"]
        );
        assert_eq!(columns.most, [4.0, 9.0, 0.0, 1e9]);
    }

    #[test]
    fn names_that_are_cut_stay_apart_and_keep_their_commands() {
        let mut names = Names::default();
        let long = |middle: &str| format!("{}{middle}{}", "a".repeat(2_000), "b".repeat(2_000));
        let [one, two] = [long("1"), long("2")].map(|name| names.show(&name));
        assert_ne!(one, two);
        assert_eq!(names.show(&long("1")), one);
        assert_eq!(names.words[&one], Some(long("1")));
        assert_eq!(names.words[&two], Some(long("2")));
        assert_eq!(names.show("plain(int)"), "plain(int)");
        for at in 0..WORDS_BYTES_MAX / 4_000 {
            names.show(&long(&format!("more {at}")));
        }
        let bytes: usize = names.words.values().flatten().map(String::len).sum();
        assert!(bytes <= WORDS_BYTES_MAX && names.words.values().any(Option::is_none));
    }
}

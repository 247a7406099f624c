//! Loops of a procedure as plain data, as text and as JSON.

use std::io::{self, Write};

use estimate::TripCount;
use serde::Serialize;

use super::Style;
use super::costs::{digits, in_digits, word};
use super::quantity::{percent, thousands};
use super::text;

/// A loop.
#[derive(Clone, Debug, Default)]
pub struct LoopRow {
    /// First byte of its header, where it is entered.
    pub header: u64,
    /// 1 for a loop in no other.
    pub depth: u32,
    /// Samples of its blocks, those of inner loops too.
    pub samples: f64,
    /// How often its header ran for one entry of the loop, as estimated; none where nobody is known
    /// to enter it.
    pub rounds: Option<f64>,
    /// How sure it is how often the header ran.
    pub sure: estimate::Confidence,
    /// What its test says, where samples tell how many rounds were left.
    pub test: Option<TripCount>,
}

/// Fewer samples than this part of the procedure's are not shown as text, nor more loops than that.
const SHOWN_MIN: f64 = 0.01;
const SHOWN_MAX: usize = 20;

/// Those that took time, of a procedure with so many samples: each in a line, and what its test
/// says in another.
pub(super) fn write(
    loops: &[LoopRow],
    samples: f64,
    style: &Style,
    out: &mut dyn Write,
) -> io::Result<()> {
    for (number, (line, test)) in lines(loops, samples).enumerate() {
        if number == 0 {
            writeln!(out)?;
        }
        text::line(style, out, 12, &line)?;
        if let Some(test) = test {
            text::line(style, out, 15, &format!("{:>12} {test}", ""))?;
        }
    }
    Ok(())
}

/// The lines of [`write`], without the margin.
pub(super) fn lines(
    loops: &[LoopRow],
    samples: f64,
) -> impl Iterator<Item = (String, Option<String>)> {
    let part = move |row: &LoopRow| row.samples / samples.max(1.0);
    let shown = loops.iter().filter(move |row| part(row) >= SHOWN_MIN).take(SHOWN_MAX);
    shown.map(move |row| {
        let LoopRow { header, depth, rounds, sure, .. } = row;
        let deep = if *depth > 1 {
            format!(", in {} other{}", depth - 1, if *depth > 2 { "s" } else { "" })
        } else {
            String::new()
        };
        let rounds = rounds.map_or("nobody is known to enter it".to_owned(), |rounds| {
            format!("about {} rounds for one entry ({})", about(rounds), word(*sure))
        });
        let line = format!("loop {header:#x}{deep}: {} % of samples, {rounds}", percent(part(row)));
        let test = row.test.as_ref().map(|test| {
            let TripCount { quantiles, only_exit, single_test_entries, constant, .. } = test;
            let [few, half, most] = quantiles.map(|(low, high)| range(low as f64, high as f64));
            let limit = if *only_exit { "" } else { ", unless something else ends it" };
            let of = if *single_test_entries { "entries that come to it twice" } else { "entries" };
            let seen = thousands(test.samples);
            let said = if *constant {
                format!("{few} rounds for all {of}, in {seen} samples{limit}")
            } else {
                let (low, high) = test.range();
                let mean = range(low, high);
                format!(
                    "{mean} rounds in the mean, in {seen} samples{limit}: a tenth of {of} at most {few}, half {half}, nine tenths {most}"
                )
            };
            format!("its test at {:#x} says {said}", test.test.0)
        });
        (line, test)
    })
}

/// With the two digits that are worth telling.
fn about(rounds: f64) -> String {
    if rounds < 10.0 { decimal(rounds) } else { thousands(in_digits(rounds, 2)) }
}

/// From one number to another, with three digits: of classes that are an eighth wide.
fn range(low: f64, high: f64) -> String {
    let end =
        |rounds: f64| if rounds < 10.0 { decimal(rounds) } else { thousands(in_digits(rounds, 3)) };
    let (low, high) = (end(low), end(high));
    if low == high { low } else { format!("{low}–{high}") }
}

/// With a decimal, unless it is a whole number.
fn decimal(rounds: f64) -> String {
    if rounds.fract() == 0.0 { format!("{rounds:.0}") } else { format!("{rounds:.1}") }
}

/// A loop in JSON.
#[derive(Serialize)]
pub(super) struct Loop {
    header: String,
    depth: u32,
    samples: f64,
    rounds: Option<f64>,
    confidence: &'static str,
    test: Option<Test>,
}

#[derive(Serialize)]
struct Test {
    address: String,
    samples: u64,
    rounds: f64,
    rounds_low: f64,
    rounds_high: f64,
    spread: f64,
    /// Of each quantile the class that it is in.
    rounds_10_low: u64,
    rounds_10: u64,
    rounds_50_low: u64,
    rounds_50: u64,
    rounds_90_low: u64,
    rounds_90: u64,
    alike: bool,
    only_exit: bool,
    /// Entries that make one round are not among these.
    without_once: bool,
}

/// As they are written.
pub(super) fn json(row: &LoopRow) -> Loop {
    Loop {
        header: format!("{:#x}", row.header),
        depth: row.depth,
        samples: digits(row.samples),
        rounds: row.rounds.map(digits),
        confidence: word(row.sure),
        test: row.test.as_ref().map(|test| {
            let [
                (rounds_10_low, rounds_10),
                (rounds_50_low, rounds_50),
                (rounds_90_low, rounds_90),
            ] = test.quantiles;
            let (low, high) = test.range();
            Test {
                address: format!("{:#x}", test.test.0),
                samples: test.samples,
                rounds: digits(test.mean()),
                rounds_low: digits(low),
                rounds_high: digits(high),
                spread: digits(test.log_sd),
                rounds_10_low,
                rounds_10,
                rounds_50_low,
                rounds_50,
                rounds_90_low,
                rounds_90,
                alike: test.constant,
                only_exit: test.only_exit,
                without_once: test.single_test_entries,
            }
        }),
    }
}

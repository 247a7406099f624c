//! Loops of a procedure as plain data, as text and as JSON.

use std::io::{self, Write};

use estimate::TripCount;

use super::Style;
use super::costs::{in_digits, word};
use super::fields::{Address, Approximate};
use super::quantity::{percent, thousands};
use super::text;
use super::why::WhyAlternative;
use verdict::Certainty;

/// Smallest part of the procedure's samples that a loop needs to be shown in text.
const SHOWN_MIN: f64 = 0.01;
/// Most loops that are shown in text.
const SHOWN_MAX: usize = 20;

/// Writes the loops that took time in a procedure with `samples`: each in a line, and the rounds by
/// its test in another.
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

/// The lines of [`write`], without their margin.
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
        let rounds = rounds.map_or("no edge is known to enter the loop".to_owned(), |rounds| {
            format!("about {} rounds for one entry ({})", about(rounds), word(*sure))
        });
        let time = row.round_ns.map_or(String::new(), |RoundNs { value, low, high, .. }| {
            let [value, low, high] = [value, low, high].map(ns);
            format!(", a round takes {value} ns ({low}–{high})")
        });
        let samples = percent(part(row));
        let why = row.why.as_ref().map_or(String::new(), |why| {
            let word = Certainty::of(why.mechanism, why.probability).word();
            format!("; why: {} [{word}]", why.mechanism)
        });
        let line = format!("loop {header:#x}{deep}: {samples} % of samples{time}, {rounds}{why}");
        // Where another exit ends the loop, its test is not seen to end it as often as it would.
        let told = row.trips.as_ref().filter(|test| test.only_exit || test.constant);
        let test = told.map(|test| {
            let TripCount { quantiles, only_exit, single_test_entries, constant, .. } = test;
            let [few, half, most] = quantiles.map(|(low, high)| range(low as f64, high as f64));
            let limit = if *only_exit { "" } else { ", unless another exit ends the loop" };
            let of = if *single_test_entries { "entries that reach the test twice" } else { "entries" };
            let seen = thousands(test.samples);
            let said = if *constant {
                format!("{few} rounds for all {of}, by {seen} samples{limit}")
            } else {
                let (low, high) = test.interval;
                let mean = range(low, high);
                format!(
                    "{mean} rounds in the mean, by {seen} samples{limit}; of {of}, 10 % have at most {few}, 50 % at most {half}, 90 % at most {most}"
                )
            };
            format!("its test at {:#x} says {said}", test.test.0)
        });
        (line, test)
    })
}

/// Rounds with two digits.
fn about(rounds: f64) -> String {
    if rounds < 10.0 { decimal(rounds) } else { thousands(in_digits(rounds, 2)) }
}

/// A range of rounds with three digits: the classes of rounds are an eighth wide.
fn range(low: f64, high: f64) -> String {
    let end =
        |rounds: f64| if rounds < 10.0 { decimal(rounds) } else { thousands(in_digits(rounds, 3)) };
    let (low, high) = (end(low), end(high));
    if low == high { low } else { format!("{low}–{high}") }
}

/// A time with three digits.
fn ns(ns: f64) -> String {
    match ns {
        ..10.0 => format!("{ns:.2}"),
        ..100.0 => format!("{ns:.1}"),
        _ => thousands(in_digits(ns, 3)),
    }
}

/// A number with one decimal, unless it is whole.
fn decimal(rounds: f64) -> String {
    if rounds.fract() == 0.0 { format!("{rounds:.0}") } else { format!("{rounds:.1}") }
}

crate::fields! {
    /// A loop.
    #[derive(Clone, Debug, Default)]
    pub struct LoopRow {
        /// first address of the loop's header
        pub header: u64 as Address;
        /// depth of nesting; 1: in no other loop
        pub depth: u32;
        pub samples: f64 as Approximate, "samples";
        /// ns of one round, calls included, by pairs of samples; `null`: not known
        pub round_ns: Option<RoundNs>;
        /// what takes its time beyond the best case, as `dcpi why` says; `null`: too few samples,
        /// or told of the loops in it
        pub why: Option<WhyAlternative>;
        /// rounds for one entry; `null`: not known
        pub rounds: Option<f64> as Option<Approximate>;
        /// confidence in the rounds
        pub sure (text): estimate::Confidence;
        /// as of `frequency`
        confidence: &'static str = |it| word(it.sure);
        /// rounds by the loop's test, where registers at samples tell how many rounds were left
        pub trips (text): Option<TripCount>;
        /// the branch whose registers tell the rounds; `null` where no branch does
        test: Option<Test> = |it| it.trips.as_ref().map(Test::of);
    }

    /// Time of one round of a loop.
    #[derive(Clone, Copy, Debug)]
    pub struct RoundNs {
        pub value: f64 as Approximate;
        pub low: f64 as Approximate;
        pub high: f64 as Approximate;
        /// pairs of samples of one thread whose registers tell the rounds in between
        pub pairs: u64;
    }

    /// A test of a loop.
    #[derive(Debug)]
    pub struct Test {
        /// the branch whose registers tell the rounds
        address: Address;
        /// snapshots of registers
        samples: u64, "samples";
        /// mean of the rounds for one entry
        rounds: f64 as Approximate;
        /// lower end of that mean, at 95 % confidence
        rounds_low: f64 as Approximate;
        /// upper end of that mean
        rounds_high: f64 as Approximate;
        /// standard deviation of that mean's logarithm
        spread: f64 as Approximate;
        /// 10th percentile of the rounds, at least
        rounds_10_low: u64;
        /// 10th percentile, at most
        rounds_10: u64;
        /// median, at least
        rounds_50_low: u64;
        /// median, at most
        rounds_50: u64;
        /// 90th percentile, at least
        rounds_90_low: u64;
        /// 90th percentile, at most
        rounds_90: u64;
        /// true: all entries make the same number of rounds, as far as samples tell
        alike: bool;
        /// true: only this test ends the loop
        only_exit: bool;
        /// true: entries with one round are not counted here
        without_once: bool;
    }
}

impl Test {
    fn of(test: &TripCount) -> Self {
        let [(rounds_10_low, rounds_10), (rounds_50_low, rounds_50), (rounds_90_low, rounds_90)] =
            test.quantiles;
        let (low, high) = test.interval;
        Self {
            address: Address(test.test.0),
            samples: test.samples,
            rounds: test.mean(),
            rounds_low: low,
            rounds_high: high,
            spread: test.spread(),
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
    }
}

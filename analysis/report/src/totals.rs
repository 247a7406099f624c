//! What two sets took in all, and the verdict on it.

use super::fields::{Bound, Fraction};
use super::quantity::{counted, plain, thousands};
use super::sets::SetsReport;
use compare::Set;
use stats::significance::Measure;
use stats::tally::Tally;
use stats::totals::{ErrorSource, Ratio, Side, ratio};

/// The totals of two sets.
#[derive(Debug)]
pub struct Totals {
    /// The mean total of each set's runs or epochs, in the event's unit; of stretches of time that
    /// of a second.
    pub means: [f64; 2],
    /// Runs or epochs of each set.
    pub parts: [usize; 2],
    /// The second mean divided by the first; none where a set has no samples, or shares are
    /// compared.
    pub ratio: Option<Ratio>,
}

/// The verdict on the second set of two.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Less,
    More,
    NoDifference,
    /// Each set is one run: the spread between runs is not known, and may be the difference.
    OneRun,
    /// Shares, or stretches of time.
    NotSameWork,
    Empty,
}

crate::fields! {
    /// What the sets took in all.
    #[derive(Debug)]
    pub struct TotalsJson<'a> {
        /// unit of `a` and `b`: `ns`, `cycles`, `count`
        unit: &'a str;
        /// mean total of the runs or epochs before; of a stretch of time that of a second
        a: f64 as Fraction, "`unit`";
        /// mean total of the runs or epochs after
        b: f64 as Fraction, "`unit`";
        /// runs or epochs before and after, or parts of stretches of time
        parts: [usize; 2];
        /// whether each of them is one run of a command; an epoch of dcpid may have any number
        runs: bool;
        /// `b` divided by `a`; `null`: shares are compared
        ratio: Option<RatioJson>;
        /// `faster`, `slower` (of events that do not count time: `fewer`, `more`),
        /// `no_difference_shown`, `cannot_tell` or `none`
        verdict: &'static str;
        /// reason of `cannot_tell` and `none`: `one_run`, `not_same_work` or `no_samples`
        why: Option<&'static str>;
    }

    /// A ratio of totals, with its interval.
    #[derive(Debug)]
    pub struct RatioJson {
        value: Fraction;
        /// lower end of the interval
        low: Bound;
        /// upper end of the interval
        high: Bound;
        /// error that the interval allows for: `runs` (which includes sampling), `sampling` or
        /// `none` (exact counts)
        error: &'static str;
    }
}

impl Totals {
    /// The totals of the first two sets.
    pub fn of(sets: &SetsReport) -> Self {
        let [a, b] = [0, 1].map(|at| {
            let parts = sets.sets.get(at).map_or(&[][..], |set| &set.parts);
            parts.iter().map(|part| part.counted).collect::<Vec<Tally>>()
        });
        let ratio = match sets.measure {
            Measure::Share => None,
            Measure::Amount => ratio(&a, &b, sets.is_exact(), sets.confidence),
            Measure::Rate => by_second(sets, [&a, &b]),
        };
        let mean = |at: usize, runs: &[Tally]| {
            let sum: f64 = runs.iter().map(|run| run.occurrences).sum();
            let set = sets.sets.get(at).filter(|set| set.time().is_some());
            sum / set.map_or(runs.len() as f64, Set::seconds).max(1.0)
        };
        Self { means: [mean(0, &a), mean(1, &b)], parts: [a.len(), b.len()], ratio }
    }

    fn verdict(&self, sets: &SetsReport) -> Verdict {
        match &self.ratio {
            _ if sets.measure != Measure::Amount => Verdict::NotSameWork,
            None => Verdict::Empty,
            // With the spread between runs the interval would be wider, and hold 1 as well.
            Some(ratio) if ratio.side() == Side::Neither => Verdict::NoDifference,
            Some(ratio) if ratio.error == ErrorSource::Sampling => Verdict::OneRun,
            Some(ratio) if ratio.side() == Side::Less => Verdict::Less,
            Some(_) => Verdict::More,
        }
    }

    /// Lines of the head: a word and the text behind it.
    pub(super) fn lines(&self, sets: &SetsReport) -> [(&'static str, String); 2] {
        let part = if are_runs(sets) { "run" } else { "epoch" };
        let [a, b] = self.means.map(|mean| amount(sets, mean));
        let mut total = format!("{a} → {b}");
        let is_timed = sets.sets.iter().any(|set| set.time().is_some());
        if is_timed {
            total.push_str(" per second");
        } else if self.parts != [1, 1] {
            total.push_str(&format!(" per {part}"));
        }
        if sets.restricted {
            total.push_str(" in the chosen images");
        }
        if let Some(Ratio { value, low, high, error }) = self.ratio {
            total.push_str(&format!(", ratio {value:.3}"));
            if error != ErrorSource::Exact {
                let sure = plain(sets.confidence.percent());
                total.push_str(&format!(", {low:.3}–{high:.3} at {sure} % confidence"));
            }
        }
        let [less, more] = if is_time(sets) { ["faster", "slower"] } else { ["fewer", "more"] };
        let is_labelled = sets.sets.iter().all(|set| set.whose.label.is_some());
        let verdict = match self.verdict(sets) {
            Verdict::Less => format!("{less}{}", self.by_parts(part)),
            Verdict::More => format!("{more}{}", self.by_parts(part)),
            Verdict::NoDifference => format!("no difference shown{}", self.by_parts(part)),
            Verdict::OneRun => self.by_samples(),
            Verdict::NotSameWork if is_timed => {
                format!("{}; their work may have differed, too", self.by_samples())
            }
            Verdict::NotSameWork if is_labelled => {
                "none: shares are compared, as of sets that did different work".to_owned()
            }
            Verdict::NotSameWork => {
                "none: the sets may have done different work; if they did the same: --amounts"
                    .to_owned()
            }
            Verdict::Empty => "cannot tell: a set has no samples".to_owned(),
        };
        [("total", total), ("verdict", verdict)]
    }

    /// What samples show, where the spread between runs is not known: a note says that.
    fn by_samples(&self) -> String {
        let Some(ratio) = self.ratio else { return "none: a set has no samples".to_owned() };
        let Ratio { low, high, .. } = ratio;
        let times = format!("{low:.2} to {high:.2} times");
        match ratio.side() {
            Side::Less => format!("less by samples: {times}"),
            Side::More => format!("more by samples: {times}"),
            Side::Neither => format!("no difference shown by samples: {times}"),
        }
    }

    /// The runs that a verdict is by.
    fn by_parts(&self, part: &str) -> String {
        let [a, b] = self.parts;
        match self.ratio.map(|ratio| ratio.error) {
            Some(ErrorSource::Runs) => {
                let alike = if a.min(b) == 1 { ", taken to vary alike" } else { "" };
                format!(", by {} before and {b} after{alike}", counted(a as u64, part))
            }
            Some(ErrorSource::Sampling) => ": sampling error alone explains it".to_owned(),
            Some(ErrorSource::Exact) | None => String::new(),
        }
    }

    pub(super) fn json<'a>(&self, sets: &'a SetsReport) -> TotalsJson<'a> {
        let [less, more] = if is_time(sets) { ["faster", "slower"] } else { ["fewer", "more"] };
        let (verdict, why) = match self.verdict(sets) {
            Verdict::Less => (less, None),
            Verdict::More => (more, None),
            Verdict::NoDifference => ("no_difference_shown", None),
            Verdict::OneRun => ("cannot_tell", Some("one_run")),
            Verdict::Empty => ("cannot_tell", Some("no_samples")),
            Verdict::NotSameWork => ("none", Some("not_same_work")),
        };
        let ratio = self.ratio.map(|Ratio { value, low, high, error }| RatioJson {
            value: Fraction(value),
            low: Bound(low),
            high: Bound(high),
            error: match error {
                ErrorSource::Runs => "runs",
                ErrorSource::Sampling => "sampling",
                ErrorSource::Exact => "none",
            },
        });
        let [a, b] = self.means;
        let (unit, runs) = (unit(sets), are_runs(sets));
        TotalsJson { unit, a, b, parts: self.parts, runs, ratio, verdict, why }
    }
}

/// The ratio of two stretches of time, each by its second: a part of a stretch is no run, so the
/// sampling error alone is known.
fn by_second(sets: &SetsReport, both: [&[Tally]; 2]) -> Option<Ratio> {
    let [a, b] = both.map(|parts| parts.iter().copied().sum::<Tally>());
    let ratio = ratio(&[a], &[b], sets.is_exact(), sets.confidence)?;
    let [first, second] = sets.sets.as_slice() else { return None };
    let by = first.seconds() / second.seconds();
    Some(Ratio { value: ratio.value * by, low: ratio.low * by, high: ratio.high * by, ..ratio })
}

fn unit(sets: &SetsReport) -> &str {
    let first = sets.sets.iter().flat_map(|set| &set.parts).next();
    first.map_or("", |part| &part.event.unit)
}

/// Whether less of the event is less time.
pub(super) fn is_time(sets: &SetsReport) -> bool {
    ["ns", "cycles"].contains(&unit(sets))
}

pub(super) fn are_runs(sets: &SetsReport) -> bool {
    sets.sets.iter().all(compare::Set::is_of_recordings)
}

/// A number of occurrences with its unit: of time with four digits.
fn amount(sets: &SetsReport, value: f64) -> String {
    match unit(sets) {
        "ns" => {
            let (number, unit) = match value {
                ns if ns < 999.95e3 => (ns / 1e3, "µs"),
                ns if ns < 999.95e6 => (ns / 1e6, "ms"),
                ns => (ns / 1e9, "s"),
            };
            match number {
                small if small < 9.9995 => format!("{small:.3} {unit}"),
                small if small < 99.995 => format!("{small:.2} {unit}"),
                small if small < 999.95 => format!("{small:.1} {unit}"),
                large => format!("{} {unit}", thousands(large.round() as u64)),
            }
        }
        "cycles" => format!("{} cycles", thousands(value.round() as u64)),
        _ if sets.is_exact() => counted(value.round() as u64, sets.noun()),
        _ => counted(value.round() as u64, "event"),
    }
}

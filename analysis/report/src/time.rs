//! `dcpi time` as plain data, as text, JSON and CSV.

use std::io::{self, Write};

use measure::Interval;
use measure::kbest::Best;
use measure::layouts::{Comparison, Verdict};
use stats::Confidence;

use super::fields::{Finite, Shown};
use super::quantity::{counted, plain};
use super::table::{Cell, Table};
use super::text::{head, note};
use super::{Report, Style};

/// Most notes of a report: each has one cause.
const NOTES_MAX: usize = 12;

/// Which time decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// CPU time, because it was asked for.
    CpuAsked,
    /// Wall-clock time, because it was asked for.
    WallAsked,
    /// CPU time, because the commands do nothing but compute.
    CpuOnly,
    /// Wall-clock time, because a command waits for something, or computes in several threads.
    Waits,
}

impl Clock {
    /// Whether CPU time decides.
    pub const fn is_cpu(self) -> bool {
        matches!(self, Self::CpuAsked | Self::CpuOnly)
    }

    const fn name(is_cpu: bool) -> &'static str {
        if is_cpu { "CPU time" } else { "wall-clock time" }
    }

    const fn why(self) -> &'static str {
        match self {
            Self::CpuAsked | Self::WallAsked => "as asked",
            Self::CpuOnly => {
                "since all commands do is compute in one thread: waiting for a CPU is not theirs"
            }
            Self::Waits => "since a command waits for more than a CPU, or has several threads",
        }
    }
}

crate::fields! {
    /// CSV has a row per run, in the order of their starts. Ends of intervals are null of one
    /// layout.
    #[derive(Debug)]
    pub struct TimeReport {
        /// A, and B where there are two
        pub commands (text): Vec<Timed>;
        /// which time decides, and why
        pub clock (text): Clock;
        /// B against A by the time that decides, where there are two
        pub comparison (text): Option<Comparison>;
        /// the same by the other time
        pub by_other (text): Option<Comparison>;
        /// `faster`, `slower`, `not distinguishable` or `too few layouts`; null of one command
        verdict: Option<&'static str>
            = |it| it.comparison.as_ref().map(|of| word(of.verdict));
        /// the same in words
        says: String = Self::verdict;
        /// layouts that are missing, of `too few layouts`; else null
        more_layouts: Option<u32> = |it| more(it.comparison.as_ref()?.verdict);
        /// change of the time from A to B, as a part of A's: negative where B is faster
        change: Option<Interval> = |it| it.comparison.as_ref().map(|of| of.change), "share";
        /// the time that decides: `cpu` or `wall`
        by: &'static str = |it| if it.clock.is_cpu() { "cpu" } else { "wall" };
        /// by the other time
        other: Option<OtherJson> = |it| it.by_other.as_ref().map(OtherJson::of);
        /// how a layout's runs become one number
        estimator: Option<&'static str>
            = |it| it.comparison.as_ref().map(|of| of.estimator.words());
        /// standard deviation of the change between layouts; null of one layout
        layouts_sd: Option<Finite>
            = |it| it.comparison.as_ref().map(|of| Finite(of.layouts_sd)), "share";
        /// standard deviation of the difference of two runs within a layout; null of one run each
        runs_sd: Option<Finite>
            = |it| it.comparison.as_ref().map(|of| Finite(of.runs_sd)), "share";
        /// number of layouts
        pub layouts: usize;
        /// what differs between layouts
        pub drawn: String;
        /// the change of `--effect`, 0 to 1
        pub effect: f64, "share";
        pub confidence: Confidence;
        /// when the last run ended (RFC 3339, UTC)
        pub ended: String;
        /// model of the processor
        pub cpu: String;
        /// 1,000 rounds of a fixed loop between the runs: tells whether another measurement had the
        /// same clock; null without any
        pub loop_ns: Option<f64>, "ns";
        /// the command A
        a: Option<&Timed> = |it| it.commands.first();
        /// the same of B
        b: Option<&Timed> = |it| it.commands.get(1);
        pub runs (rows): Vec<RunRow>;
        /// what was seen of the machine
        pub notes: Vec<String>;
    }

    /// The verdict by the other time.
    #[derive(Debug)]
    pub struct OtherJson {
        /// by the other time
        verdict: &'static str;
        /// by the other time
        change: Interval, "share";
    }

    /// K-best.
    #[derive(Debug)]
    pub struct BestJson {
        /// K-best: fastest of at most 20 runs
        value: f64, "s";
        /// whether 3 of them lie within 0.1 %; else K-best has no answer
        converged: bool;
        /// runs that it looked at
        measurements: usize;
    }

    /// A command, timed.
    #[derive(Debug)]
    pub struct Timed {
        /// as a shell takes it
        pub command: String;
        /// CPU time of a run: mean of the layouts' medians
        pub cpu_s: Times, "s";
        /// wall-clock time of a run: mean of the layouts' medians
        pub wall_s: Times, "s";
        /// part of the wall-clock time in which it was ready and no CPU was free
        pub delayed: f64, "share";
        /// runs at the begin that are left out
        pub warm_up: usize;
        /// runs whose exit code is not 0
        pub failed: usize;
        /// one call of the procedure of `--function`; null without it
        pub function: Option<FunctionTime>;
    }

    /// One kind of time over the runs without warm-up, in seconds.
    #[derive(Clone, Copy, Debug, Default)]
    pub struct Times {
        /// the mean of the layouts' medians
        pub layouts (flat): Interval as super::fields::Interval<Finite>;
        /// mean of all runs
        pub mean: f64;
        /// median of all runs
        pub median: f64;
        /// fastest run
        pub fastest: f64;
        /// K-best of the runs in their order
        pub kbest: Option<Best> as Option<BestJson>;
    }

    /// Time of one call of a procedure.
    #[derive(Clone, Debug)]
    pub struct FunctionTime {
        /// procedure of `--function`
        pub procedure: String;
        /// time of a call itself
        pub ns: Interval, "ns";
        /// the procedure's part of the CPU time of a run, 0 to 1
        pub share: f64, "share";
        /// calls in a run
        pub calls: f64;
        /// samples in the procedure, of all recordings
        pub samples: u64, "samples";
    }

    /// One run.
    #[derive(Clone, Debug)]
    pub struct RunRow {
        /// number of the layout, from 0
        pub layout: usize => "layout";
        /// number of the pair of runs in its layout, from 0
        pub pair: usize => "pair";
        /// `A` or `B`
        pub command: usize as Letter => "command";
        /// wall-clock time
        pub wall_s: f64, "s" => "wall_s";
        /// CPU time in user code
        pub user_s: f64, "s" => "user_s";
        /// CPU time in the kernel
        pub system_s: f64, "s" => "system_s";
        /// time in which the first thread was ready and no CPU was free
        pub delayed_s: f64, "s" => "delayed_s";
        /// bytes that the environment has more
        pub padding: usize, "bytes" => "padding";
        /// true: left out as warm-up
        pub warm_up: bool => "warm_up";
        /// exit code; null where a signal ended it
        pub code: Option<i32> => "code";
    }
}

/// The letter of a command, by its number.
type Letter = &'static str;

impl Shown<&usize> for Letter {
    fn shown(of: &usize) -> Self {
        letter(*of)
    }
}

impl RunRow {
    /// CPU time, s.
    pub fn cpu_s(&self) -> f64 {
        self.user_s + self.system_s
    }
}

/// Letter of a command.
fn letter(index: usize) -> &'static str {
    if index == 0 { "A" } else { "B" }
}

impl TimeReport {
    /// The answer, in words.
    pub fn verdict(&self) -> String {
        let percent = plain(self.confidence.percent());
        let Some(comparison) = &self.comparison else {
            let Some(timed) = self.commands.first() else { return "nothing was measured".into() };
            let times = if self.clock.is_cpu() { &timed.cpu_s } else { &timed.wall_s };
            let name = Clock::name(self.clock.is_cpu());
            return format!("A takes {} of {name}", with_interval(times.layouts, &percent));
        };
        says(comparison, &percent, self.effect)
    }

    fn table(&self) -> Table {
        let mut table = Table::default();
        table.words("");
        for title in ["mean of layouts", "low–high", "mean", "median", "fastest", "K-best"] {
            table.number(title, "");
        }
        for (index, timed) in self.commands.iter().enumerate() {
            for (name, times) in [("CPU", timed.cpu_s), ("wall", timed.wall_s)] {
                let Times { layouts, mean, median, fastest, kbest } = times;
                let mut cells = vec![format!("{} {name}", letter(index))];
                cells.extend([amount(layouts.value), between(layouts)]);
                cells.extend([mean, median, fastest].map(amount));
                cells.push(kbest.map_or_else(String::new, |best| match best.converged {
                    true => amount(best.value),
                    false => "no 3 agree".to_owned(),
                }));
                table.row(cells.into_iter().map(Cell::from).collect());
            }
        }
        table
    }

    /// The meaning of the table's last columns, and other remarks.
    fn notes_of_table(&self) -> Vec<String> {
        let of_all = self.commands.iter().flat_map(|timed| [timed.cpu_s.kbest, timed.wall_s.kbest]);
        let disagree = of_all.flatten().any(|best| !best.converged);
        let none = "; no 3 agree: of the first runs no 3 of the fastest do, so K-best has no \
                    answer, and the fastest run may be a disturbed one";
        let mut notes = vec![format!(
            "low–high: of the mean of layouts, {} % confidence; K-best: the fastest of 20 runs at \
             most of which 3 lie within 0.1 %{}",
            plain(self.confidence.percent()),
            if disagree { none } else { "" }
        )];
        for (index, timed) in self.commands.iter().enumerate() {
            let Some(function) = &timed.function else { continue };
            notes.push(format!(
                "{}: a call of {} takes {} itself: {} of the CPU time of a run, by {}, over {}",
                letter(index),
                function.procedure,
                ns_within(function.ns),
                percent(function.share),
                counted(function.samples, "sample"),
                counted(function.calls.round() as u64, "call"),
            ));
        }
        notes
    }
}

/// A verdict in words.
fn says(comparison: &Comparison, percent: &str, effect: f64) -> String {
    let Interval { value, low, high } = comparison.change;
    let by = |share: f64| format!("{:.1}", share.abs() * 100.0);
    // Both verdicts that use it are of intervals that hold 0.
    let held = || format!("B is between {} % faster and {} % slower", by(low), by(high));
    match comparison.verdict {
        Verdict::Faster => {
            let (value, low, high) = (by(value), by(high), by(low));
            format!("B is {value} % faster than A ({percent} %: {low} to {high} %)")
        }
        Verdict::Slower => {
            let (value, low, high) = (by(value), by(low), by(high));
            format!("B is {value} % slower than A ({percent} %: {low} to {high} %)")
        }
        Verdict::NotDistinguishable => {
            format!("A and B are not distinguishable: {} ({percent} %)", held())
        }
        Verdict::TooFewLayouts { more } => {
            let seen = match low.is_finite() && high.is_finite() {
                true => format!("; so far {} ({percent} %)", held()),
                false => String::new(),
            };
            let more = counted(u64::from(more), "more layout");
            format!(
                "too few layouts: {more} would show {} % in four of five cases{seen}",
                plain(effect * 100.0)
            )
        }
    }
}

/// A share in percent, to the digit that says something.
fn percent(share: f64) -> String {
    match share * 100.0 {
        of if of < 0.1 => format!("{of:.2} %"),
        of => format!("{of:.1} %"),
    }
}

/// A unit in which a time has one to four digits before the point: its factor, name, and digits
/// after the point.
fn unit(seconds: f64) -> (f64, &'static str, usize) {
    let (factor, name) = match seconds.abs() {
        of if of >= 1.0 => (1.0, "s"),
        of if of >= 1e-3 => (1e3, "ms"),
        _ => (1e6, "µs"),
    };
    (factor, name, if seconds.abs() * factor >= 100.0 { 1 } else { 3 })
}

/// A time with its unit.
fn amount(seconds: f64) -> String {
    let (factor, unit, digits) = unit(seconds);
    format!("{:.digits$} {unit}", seconds * factor)
}

/// ns with their interval, to the digit in which the interval's half lies.
fn ns_within(Interval { value, low, high }: Interval) -> String {
    if !high.is_finite() {
        return format!("about {} ns (of one layout, which has no interval)", digits_of(value, 2));
    }
    let reach = ((high - low) / 2.0).max(value * 1e-6).max(1e-6);
    let place = reach.log10().floor();
    // Beyond the point; before it, zeros stand for digits that say nothing.
    let digits = (-place).clamp(0.0, 6.0) as usize;
    let step = 10_f64.powf(place.max(0.0));
    let [value, low, high] = [value, low, high].map(|number| {
        format!("{:.digits$}", if place > 0.0 { (number / step).round() * step } else { number })
    });
    format!("{value} ns ({low} to {high})")
}

/// A number with this many significant digits.
fn digits_of(number: f64, digits: usize) -> String {
    let place = number.max(f64::MIN_POSITIVE).log10().floor() - (digits as f64 - 1.0);
    let step = 10_f64.powf(place);
    let after = (-place).clamp(0.0, 6.0) as usize;
    format!("{:.after$}", (number / step).round() * step)
}

fn between(Interval { value, low, high }: Interval) -> String {
    let (factor, unit, digits) = unit(value);
    if !high.is_finite() {
        return "needs 2 layouts".to_owned();
    }
    format!("{:.digits$}–{:.digits$} {unit}", low * factor, high * factor)
}

fn with_interval(of: Interval, percent: &str) -> String {
    match of.high.is_finite() {
        true => {
            format!("{} ({percent} %: {} to {})", amount(of.value), amount(of.low), amount(of.high))
        }
        false => format!("{} (of one layout, which has no interval)", amount(of.value)),
    }
}

impl TimeReport {
    /// The lines of the head that only `-v` shows: runs, clock, spread.
    fn details(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        let (runs, layouts) = (self.runs.len() as u64, self.layouts as u64);
        let drawn = &self.drawn;
        let (runs, layouts) = (counted(runs, "run"), counted(layouts, "layout"));
        head(style, out, "runs", &format!("{runs} in {layouts}: {drawn}"))?;
        let by = Clock::name(self.clock.is_cpu());
        head(style, out, "by", &format!("{by}, {}", self.clock.why()))?;
        if let Some(other) = &self.by_other {
            let name = Clock::name(!self.clock.is_cpu());
            let percent = plain(self.confidence.percent());
            let says = says(other, &percent, self.effect);
            head(style, out, "", &format!("by {name}: {says}"))?;
        }
        if let Some(of) = &self.comparison {
            let within = match of.runs_sd.is_finite() {
                true => format!(", of two runs in a layout {}", percent(of.runs_sd)),
                false => String::new(),
            };
            let how = of.estimator.words();
            let between = match of.layouts_sd.is_finite() {
                true => format!(
                    "the difference has a standard deviation of {} between layouts",
                    percent(of.layouts_sd)
                ),
                false => "one layout tells nothing of others".to_owned(),
            };
            let says = format!("{between}{within}; a layout's is that of the {how}");
            head(style, out, "spread", &says)?;
        }
        Ok(())
    }
}

impl Report for TimeReport {
    const NAME: &'static str = "time";
    type Fields<'a> = &'a Self;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        note(style, out, &self.verdict())?;
        writeln!(out)?;
        for (index, timed) in self.commands.iter().enumerate() {
            head(style, out, letter(index), &super::escape(&timed.command))?;
        }
        if style.verbose {
            self.details(style, out)?;
        }
        writeln!(out)?;
        self.table().write(style, out)?;
        writeln!(out)?;
        self.notes_of_table().iter().try_for_each(|line| note(style, out, line))?;
        self.notes.iter().take(NOTES_MAX).try_for_each(|line| note(style, out, line))
    }

    fn json(&self) -> &Self {
        self
    }
}

const fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Faster => "faster",
        Verdict::Slower => "slower",
        Verdict::NotDistinguishable => "not distinguishable",
        Verdict::TooFewLayouts { .. } => "too few layouts",
    }
}

const fn more(verdict: Verdict) -> Option<u32> {
    match verdict {
        Verdict::TooFewLayouts { more } => Some(more),
        _ => None,
    }
}

impl OtherJson {
    fn of(of: &Comparison) -> Self {
        Self { verdict: word(of.verdict), change: of.change }
    }
}

impl Shown<&Best> for BestJson {
    fn shown(of: &Best) -> Self {
        let Best { value, converged, measurements } = *of;
        Self { value, converged, measurements }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(value: f64, reach: f64) -> String {
        ns_within(Interval { value, low: value - reach, high: value + reach })
    }

    /// A time that was 6 % wrong was printed to a hundredth of a nanosecond.
    #[test]
    fn a_time_has_the_digits_that_its_interval_allows() {
        assert_eq!(within(12.3456, 0.34), "12.3 ns (12.0 to 12.7)");
        assert_eq!(within(12.3456, 3.4), "12 ns (9 to 16)");
        assert_eq!(within(1234.56, 34.0), "1230 ns (1200 to 1270)");
        assert_eq!(within(1.23456, 0.0034), "1.235 ns (1.231 to 1.238)");
        let unknown = Interval { value: 1234.5, low: 0.0, high: f64::INFINITY };
        assert_eq!(ns_within(unknown), "about 1200 ns (of one layout, which has no interval)");
        assert_eq!(within(5.0, 0.0), "5.000000 ns (5.000000 to 5.000000)");
    }

    #[test]
    fn k_best_without_an_answer_says_so_in_words() {
        let best = |converged| Some(Best { value: 0.5, converged, measurements: 20 });
        let times = |converged| Times { kbest: best(converged), ..Times::default() };
        let report = |converged| TimeReport {
            commands: vec![Timed {
                command: "a".into(),
                cpu_s: times(converged),
                wall_s: times(converged),
                delayed: 0.0,
                warm_up: 0,
                failed: 0,
                function: None,
            }],
            layouts: 2,
            drawn: "nothing".into(),
            clock: Clock::CpuOnly,
            comparison: None,
            by_other: None,
            effect: 0.02,
            confidence: Confidence::from_percent(95.0).unwrap(),
            ended: "2026-11-05T10:15:00Z".into(),
            cpu: "a processor".into(),
            loop_ns: None,
            runs: Vec::new(),
            notes: Vec::new(),
        };
        let text = |report: TimeReport| {
            let style = Style {
                columns: 100,
                full_names: false,
                wrap: false,
                colour: false,
                verbose: true,
            };
            let mut out = Vec::new();
            report.text(&style, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let none = text(report(false));
        assert!(none.contains("no 3 agree") && !none.contains('?'), "{none}");
        let some = text(report(true));
        assert!(some.contains("500.0 ms") && !some.contains("agree"), "{some}");
    }
}

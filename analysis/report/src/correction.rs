//! `dcpi trace --correct` as plain data, as text, JSON and CSV: times without what tracing cost.

use std::io::{self, Write};

use measure::models::{Range, WIDTH_MAX};
use serde::Serializer;

use super::fields::{Cells, Shape, Shaped, Shown};
use super::quantity::{counted, plain, thousands};
use super::table::{Cell, Colour, Table};
use super::text::{detail, head, line, note};
use super::trace::ShownRows;
use super::{Report, Style};

/// Rows of a text, unless others are asked for; JSON and CSV have all.
const ROWS_MAX: usize = 40;

/// A time as measured, and without what tracing cost, ns.
#[derive(Clone, Copy, Debug, Default)]
pub struct CorrectedTime {
    /// As measured.
    pub measured_ns: f64,
    /// Without the events, with its interval (95 %).
    pub corrected_ns: Range,
    /// Content other than known events; None if there is none.
    pub unbounded: Option<Unbounded>,
}

/// Why a corrected time has no bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unbounded {
    /// Events are in it whose cost nothing says.
    CostUnknown,
    /// Calls were left out of the trace, and cost time as well.
    CallsLeftOut,
}

/// The use that is made of runs without events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InSituSays {
    /// Costs are in-vitro costs times this factor.
    Taken,
    /// This factor is less exact than that of other programs, which is taken.
    LessExact,
    /// This factor is not plausible, and that of other programs is taken.
    Contradict,
}

crate::fields! {
    /// The report of `dcpi trace --correct FILE`. CSV has a row per name and kind.
    #[derive(Debug, Default)]
    pub struct CorrectionReport {
        /// the trace
        pub file: String;
        /// as a shell takes it; empty where it is not known
        pub command: String;
        /// whether the correction holds, in words
        verdict: String = Self::verdict;
        /// from the first event to the last
        pub elapsed_ns: CorrectedTime as TimeJson, "ns";
        /// the same of the time on CPUs, summed over all threads; null without switches (`--sched`)
        pub on_cpu_ns: Option<CorrectedTime> as Option<TimeJson>, "ns";
        /// threads that have events
        pub threads: u64;
        /// true: all events have a known cost, and high over low is at most 1.3
        holds: bool = |it| it.total().1.holds();
        /// "cost unknown", "calls left out" (by `--sample`), "all is cost", "too wide"; null where
        /// it holds
        why_not: Option<&'static str> = |it| it.total().1.why();
        /// events whose cost was taken off
        pub events: u64;
        /// that cost, of all of them
        pub cost_ns: f64, "ns";
        /// measured over corrected time
        pub slowdown: f64;
        /// standard deviation of an event's cost between places, over its mean
        pub relative_spread: f64, "share";
        /// `relative_spread` times (`slowdown` - 1): standard deviation of the corrected time
        pub error: f64, "share";
        pub costs: Vec<CostRow>;
        /// costs in this program over those in vitro; null without any, and where the traced run
        /// has no event that costs time, or lost some, or has some of unknown cost
        pub in_situ: Option<InSituCosts>;
        pub rows (rows): Vec<CorrectionRow>;
        /// how many of them are shown
        pub shown (text): ShownRows;
        /// remarks
        pub notes: Vec<String>;
    }

    /// A time.
    #[derive(Debug)]
    pub struct TimeJson {
        /// as traced
        measured: f64;
        /// without what tracing cost
        value: f64;
        /// lower end of its interval (95 %); null where `why_not` is another than "too wide", as
        /// all ends are
        low: Option<f64>;
        /// upper end
        high: Option<f64>;
    }

    /// A cost.
    #[derive(Debug)]
    pub struct CostRow {
        /// kind of event, and of which places
        pub of: String;
        /// of an event, with the interval of the mean at another place
        pub ns (text): Range;
        /// cost of one
        value_ns: f64 = |it| it.ns.value, "ns";
        /// lower end of the interval of the mean at another place (95 %)
        low_ns: f64 = |it| it.ns.low, "ns";
        /// upper end
        high_ns: f64 = |it| it.ns.high, "ns";
        /// how the cost was measured
        pub how: String;
    }

    /// Costs in this program.
    #[derive(Clone, Copy, Debug)]
    pub struct InSituCosts {
        /// runs without events (`--in-situ`)
        pub runs: u64;
        /// cost of an event in this program over that in vitro, with its interval
        pub factor (text): Range;
        /// cost of an event in this program over that in vitro
        value: f64 = |it| it.factor.value;
        /// lower end of its interval (95 %)
        low: f64 = |it| it.factor.low;
        /// upper end
        high: f64 = |it| it.factor.high;
        /// "taken": `costs` are those, and the total is that of the runs; "less_exact": costs as in
        /// other programs lie within the interval and are taken; "contradict": no event costs that,
        /// the runs did other work, and costs as in other programs are taken
        pub says: InSituSays;
    }

    /// The calls of a name.
    #[derive(Debug)]
    pub struct CorrectionRow {
        /// procedure or other thing
        pub name: String => "name";
        /// kind of event that begins a call
        pub kind: &'static str => "kind";
        /// calls
        pub calls: u64 => "calls";
        /// their time, with all that they called, summed over threads: CPU time where `on_cpu_ns`
        /// is there, else waits included
        pub time_ns: CorrectedTime as TimeJson, "ns"
            => "measured" | "value" | "low" | "high";
        /// as `holds`, of the events in these calls
        holds: bool = |it| it.time_ns.holds() => "holds";
        /// as `why_not`
        why_not: Option<&'static str> = |it| it.time_ns.why() => "why_not";
    }
}

impl InSituCosts {
    fn words(self) -> String {
        let Self { runs, factor, says } = self;
        let times = format!(
            "{} ({}–{}) times the costs in vitro, by {runs} runs without events",
            ratio(factor.value),
            ratio(factor.low),
            ratio(factor.high)
        );
        match says {
            InSituSays::Taken => times,
            InSituSays::LessExact => {
                format!("{times}; costs as in other programs are more exact, and taken")
            }
            InSituSays::Contradict => format!(
                "{times}, which cannot be: these did other work, and costs as in other programs \
                 are taken; see that each run does the same"
            ),
        }
    }
}

impl CorrectedTime {
    /// Whether the cost of every event in the time is known, and the interval of the corrected time
    /// is narrow: its high end over its low end is at most [`WIDTH_MAX`].
    fn holds(&self) -> bool {
        self.why().is_none()
    }

    /// Why it does not hold, in a word.
    fn why(&self) -> Option<&'static str> {
        match self.unbounded {
            Some(Unbounded::CostUnknown) => Some("cost unknown"),
            Some(Unbounded::CallsLeftOut) => Some("calls left out"),
            None if self.corrected_ns.value <= 0.0 && self.measured_ns > 0.0 => Some("all is cost"),
            None if self.corrected_ns.is_narrow() => None,
            None => Some("too wide"),
        }
    }

    /// Its ends: what does not hold has none.
    fn ends(&self) -> String {
        let Range { low, high, .. } = self.corrected_ns;
        match self.holds() {
            true => format!("{}–{}", time(low), time(high)),
            // The upper end of a wide interval is still a bound; unknown costs leave none.
            false if self.unbounded.is_none() => format!("at most {}", time(high)),
            false => "no bound".to_owned(),
        }
    }
}

impl CorrectionReport {
    fn total(&self) -> (String, CorrectedTime) {
        match self.on_cpu_ns {
            Some(time) if self.threads > 1 => {
                (format!("time on CPUs, summed over {} threads,", self.threads), time)
            }
            Some(time) => ("time on CPUs".to_owned(), time),
            None => ("time from begin to end, waits included,".to_owned(), self.elapsed_ns),
        }
    }

    fn verdict(&self) -> String {
        let (what, total) = self.total();
        let traced = time(total.measured_ns);
        let times = format!(
            "{what} without tracing {} ({}), as traced {traced}",
            time(total.corrected_ns.value),
            total.ends(),
        );
        let no = format!("{what} as traced {traced}: the correction does not hold");
        match total.unbounded {
            Some(Unbounded::CostUnknown) => {
                format!("{no}, the cost of some events is not known; name it with --calibration")
            }
            Some(Unbounded::CallsLeftOut) => format!(
                "{no}, calls that --sample left out of the trace cost time as well; trace without \
                 --sample"
            ),
            None if total.holds() => format!("{times}: the correction holds"),
            None => format!(
                "{no}, high/low is {}, above {WIDTH_MAX}; trace fewer events",
                ratio(total.corrected_ns.width())
            ),
        }
    }

    /// Why corrected times are not to be relied on, for those who do not see the report.
    pub fn doubt(&self) -> Option<String> {
        (!self.total().1.holds()).then(|| self.verdict())
    }

    /// The unit that each row sums up.
    fn of_rows(&self) -> String {
        let time = if self.on_cpu_ns.is_some() { "CPU time" } else { "time, waits included" };
        match self.threads {
            0 | 1 => format!("{time}, with all that was called"),
            threads => format!("{time}, with all that was called, summed over {threads} threads"),
        }
    }

    fn table(&self, shown: usize) -> Table {
        let mut table = Table::default();
        let group = if self.on_cpu_ns.is_some() { "CPU time" } else { "time" };
        for (title, group) in [
            ("calls", ""),
            ("traced", group),
            ("corrected", group),
            ("low–high", group),
            ("a call", ""),
        ] {
            table.number(title, group);
        }
        table.words("holds");
        table.procedures("name");
        for row in self.rows.iter().take(shown) {
            let value = row.time_ns.corrected_ns.value;
            let held = |ns: f64| if row.time_ns.holds() { time(ns) } else { "-".to_owned() };
            let cells = vec![
                thousands(row.calls),
                time(row.time_ns.measured_ns),
                held(value),
                row.time_ns.ends(),
                held(value / row.calls.max(1) as f64),
                row.time_ns.why().map_or_else(|| "yes".to_owned(), |why| format!("no, {why}")),
                row.name.clone(),
            ];
            let colour = (!row.time_ns.holds()).then_some(Colour::Faint);
            table.coloured(cells.into_iter().map(Cell::from).collect(), colour);
        }
        table
    }
}

/// A time with three or four digits.
fn time(ns: f64) -> String {
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "us")];
    let found = units.into_iter().find(|(unit, _)| ns >= *unit);
    let (unit, name) = found.unwrap_or((1.0, "ns"));
    let value = ns / unit;
    let digits = if value >= 100.0 || unit == 1.0 { 0 } else { 2 };
    format!("{value:.digits$} {name}")
}

fn ratio(width: f64) -> String {
    if width.is_finite() { format!("{width:.2}") } else { "infinite".to_owned() }
}

impl Report for CorrectionReport {
    const NAME: &'static str = "correction";
    type Fields<'a> = &'a Self;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        line(style, out, 0, &super::escape(&self.verdict()))?;
        if style.verbose {
            writeln!(out)?;
        }
        detail(style, out, "trace", &self.file)?;
        if !self.command.is_empty() {
            detail(style, out, "command", &self.command)?;
        }
        let holds = self.total().1.holds();
        let mut events = format!(
            "{}, which cost {} together",
            counted(self.events, "event"),
            time(self.cost_ns)
        );
        if holds {
            events += &format!("; traced it took {} times its time", ratio(self.slowdown));
        }
        detail(style, out, "events", &events)?;
        let error = format!(
            "± {} % by the rule, (spread of an event's cost / its cost) x (traced / raw - 1)",
            plain((self.error * 1000.0).round() / 10.0)
        );
        // The total was measured in runs without events, so the error of costs is not in it.
        let is_of_runs = self.in_situ.is_some_and(|of| of.says == InSituSays::Taken);
        if holds && !is_of_runs {
            detail(style, out, "error", &error)?;
        }
        for cost in &self.costs {
            let Range { low, value, high } = cost.ns;
            let says = format!("{value:.0} ns ({low:.0}–{high:.0}), {}: {}", cost.how, cost.of);
            detail(style, out, "cost", &says)?;
        }
        if let Some(of) = self.in_situ {
            detail(style, out, "in situ", &of.words())?;
        }
        let (shown, more) = self.shown.in_text(self.rows.len(), ROWS_MAX, "name");
        if !self.rows.is_empty() {
            head(style, out, "rows", &self.of_rows())?;
            writeln!(out)?;
            self.table(shown).write(style, out)?;
        }
        if !self.notes.is_empty() || more.is_some() {
            writeln!(out)?;
        }
        more.iter().try_for_each(|more| note(style, out, more))?;
        self.notes.iter().try_for_each(|text| note(style, out, text))
    }

    fn json(&self) -> &Self {
        self
    }
}

impl Shown<&CorrectedTime> for TimeJson {
    fn shown(time: &CorrectedTime) -> Self {
        let Range { low, value, high } = time.corrected_ns;
        let bound = |ns: f64| Some(ns).filter(|_| time.unbounded.is_none());
        Self { measured: time.measured_ns, value, low: bound(low), high: bound(high) }
    }
}

impl Shaped for InSituSays {
    fn shape() -> Shape {
        Shape::Word(&["taken", "less_exact", "contradict"])
    }

    fn json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(match self {
            Self::Taken => "taken",
            Self::LessExact => "less_exact",
            Self::Contradict => "contradict",
        })
    }

    fn cells(&self, _: &[&'static str], _: Option<&str>, _: &mut Cells) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(low: f64) -> CorrectionReport {
        let corrected_ns = Range { low, value: 4e8, high: 4.2e8 };
        let elapsed = CorrectedTime { measured_ns: 1.2e9, corrected_ns, unbounded: None };
        let row = CorrectionRow {
            name: "luaH_get".to_owned(),
            kind: "enter",
            calls: 70_000,
            time_ns: CorrectedTime {
                measured_ns: 2e8,
                corrected_ns: Range::exact(3.5e6),
                unbounded: None,
            },
        };
        let costs = vec![CostRow {
            of: "enter".to_owned(),
            ns: Range { low: 900.0, value: 1000.0, high: 1100.0 },
            how: "in vitro".to_owned(),
        }];
        CorrectionReport {
            file: "a.trace".to_owned(),
            elapsed_ns: elapsed,
            events: 140_000,
            cost_ns: 8e8,
            slowdown: 3.0,
            relative_spread: 0.05,
            error: 0.1,
            costs,
            rows: vec![row],
            ..CorrectionReport::default()
        }
    }

    #[test]
    fn it_says_first_whether_the_correction_holds() {
        let style =
            Style { columns: 100, full_names: false, wrap: false, colour: false, verbose: true };
        let text = |report: &CorrectionReport| {
            let mut out = Vec::new();
            report.text(&style, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let said = text(&report(3.8e8));
        assert!(
            said.starts_with(
                "time from begin to end, waits included, without tracing 400 ms (380 ms–420 ms), \
                 as traced 1.20 s: the correction holds\n"
            ),
            "{said}"
        );
        assert!(said.contains("± 10 % by the rule"), "{said}");
        assert!(said.contains("70,000  200 ms    3.50 ms"), "{said}");
        let said = text(&report(3e8));
        assert!(said.contains("does not hold, high/low is 1.40, above 1.3; trace fewer"), "{said}");
        let start = "time from begin to end, waits included, as traced 1.20 s: the correction does";
        assert!(said.starts_with(start), "{said}");
        let mut unknown = report(3.8e8);
        unknown.elapsed_ns.unbounded = Some(Unbounded::CostUnknown);
        unknown.rows[0].time_ns.unbounded = Some(Unbounded::CostUnknown);
        let said = text(&unknown);
        assert!(!said.contains("by the rule"), "{said}");
        assert!(said.starts_with(start) && said.contains("name it with --calibration"), "{said}");
        assert!(said.contains("no bound       -  no, cost unknown"), "{said}");
        let mut summed = report(3.8e8);
        (summed.on_cpu_ns, summed.threads) = (Some(summed.elapsed_ns), 3);
        let said = text(&summed);
        assert!(said.starts_with("time on CPUs, summed over 3 threads, without tracing"), "{said}");
        assert!(said.contains("CPU time, with all that was called, summed over 3"), "{said}");
        let said = text(&report(0.0));
        assert!(said.contains("high/low is infinite"), "{said}");
    }

    #[test]
    fn runs_without_events_are_told_and_whether_costs_are_theirs() {
        let style =
            Style { columns: 100, full_names: false, wrap: false, colour: false, verbose: true };
        let factor = Range { low: 1.05, value: 1.125, high: 1.2 };
        let of = |says: InSituSays| {
            let in_situ = Some(InSituCosts { runs: 6, factor, says });
            let mut out = Vec::new();
            CorrectionReport { in_situ, ..report(3.8e8) }.text(&style, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let said = of(InSituSays::Taken);
        assert!(said.contains("1.12 (1.05–1.20) times the costs in vitro, by 6 runs"), "{said}");
        assert!(!said.contains("other programs"), "{said}");
        assert!(of(InSituSays::LessExact).contains("are more exact, and taken"));
        assert!(of(InSituSays::Contradict).contains("which cannot be: these did other work"));
    }

    #[test]
    fn json_and_csv_have_the_same() {
        let json = serde_json::to_value(report(3.8e8)).unwrap();
        assert_eq!(json["elapsed_ns"]["low"], 3.8e8);
        assert_eq!(json["holds"], true);
        assert_eq!(json["rows"][0]["time_ns"]["measured"], 2e8);
        let mut out = Vec::new();
        report(3.8e8).csv(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.ends_with("luaH_get,enter,70000,200000000,3500000,3500000,3500000,true,\n"));
        let mut unknown = report(3.8e8);
        unknown.rows[0].time_ns.unbounded = Some(Unbounded::CostUnknown);
        let json = serde_json::to_value(&unknown).unwrap();
        assert_eq!(json["rows"][0]["time_ns"]["low"], serde_json::Value::Null);
        assert_eq!(json["rows"][0]["why_not"], "cost unknown");
        let mut out = Vec::new();
        unknown.csv(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.ends_with("200000000,3500000,,,false,cost unknown\n"), "{text}");
    }
}

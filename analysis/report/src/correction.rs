//! `dcpi trace --correct` as plain data, as text, JSON and CSV: times without what tracing cost.

use std::io::{self, Write};

use measure::models::{Range, WIDTH_MAX};
use serde::Serialize;

use super::csv::record;
use super::quantity::{counted, plain, thousands};
use super::table::{Cell, Colour, Table};
use super::text::{head, line, note};
use super::{Report, Style};
use query::problem::Problem;

/// Rows of a text, at most; JSON and CSV have all.
const ROWS_MAX: usize = 40;

/// `dcpi trace --correct`.
#[derive(Debug, Default)]
pub struct CorrectionReport {
    /// The trace's file.
    pub file: String,
    /// The command, as a shell takes it; empty where it is not known.
    pub command: String,
    /// From the first event to the last one.
    pub elapsed: CorrectedTime,
    /// Time of all threads on CPUs; None where the trace has no switches.
    pub on_cpu: Option<CorrectedTime>,
    /// Events whose cost was taken off.
    pub events: u64,
    /// That cost, ns.
    pub cost_ns: f64,
    /// Measured over corrected time, on CPUs where that is known.
    pub slowdown: f64,
    /// Standard deviation of an event's cost between places, over its mean.
    pub relative_spread: f64,
    /// Standard deviation of the total by the rule, over the total.
    pub error: f64,
    /// What events cost.
    pub costs: Vec<CostRow>,
    /// Calls by name.
    pub rows: Vec<CorrectionRow>,
    /// What a reader should know, a sentence each.
    pub notes: Vec<String>,
}

/// A time as measured, and without what tracing cost, ns.
#[derive(Clone, Copy, Debug, Default)]
pub struct CorrectedTime {
    /// As measured.
    pub measured_ns: f64,
    /// Without the events, with its interval (95 %).
    pub corrected_ns: Range,
}

/// The calls of a name.
#[derive(Debug)]
pub struct CorrectionRow {
    /// The name.
    pub name: String,
    /// Kind of the event that begins a call.
    pub kind: &'static str,
    /// Calls.
    pub calls: u64,
    /// Their time, with all that they called.
    pub time: CorrectedTime,
}

/// The cost of a kind of event.
#[derive(Debug)]
pub struct CostRow {
    /// The kind of event, and of which places.
    pub of: String,
    /// ns of an event, with the interval of the mean at another place.
    pub ns: Range,
    /// How it was measured.
    pub how: String,
}

impl CorrectedTime {
    /// Whether the interval is narrow enough to decide something on it.
    fn holds(&self) -> bool {
        self.corrected_ns.is_narrow()
    }
}

impl CorrectionReport {
    fn total(&self) -> (&'static str, CorrectedTime) {
        match self.on_cpu {
            Some(time) => ("time on CPUs", time),
            None => ("time", self.elapsed),
        }
    }

    fn verdict(&self) -> String {
        let (what, total) = self.total();
        let Range { low, value, high } = total.corrected_ns;
        let times = format!(
            "{what} without tracing {} ({}–{}), as traced {}",
            time(value),
            time(low),
            time(high),
            time(total.measured_ns)
        );
        match total.holds() {
            true => format!("{times}: the correction holds"),
            false => format!(
                "{times}: the correction does not hold, high/low is {}, above {WIDTH_MAX}; trace \
                 fewer events",
                ratio(total.corrected_ns.width())
            ),
        }
    }

    fn table(&self) -> Table {
        let mut table = Table::default();
        for (title, group) in [
            ("calls", ""),
            ("traced", "time"),
            ("corrected", "time"),
            ("low–high", "time"),
            ("a call", ""),
        ] {
            table.number(title, group);
        }
        table.words("holds");
        table.procedures("name");
        for row in self.rows.iter().take(ROWS_MAX) {
            let Range { low, value, high } = row.time.corrected_ns;
            let holds = row.time.holds();
            let cells = vec![
                thousands(row.calls),
                time(row.time.measured_ns),
                time(value),
                format!("{}–{}", time(low), time(high)),
                time(value / row.calls.max(1) as f64),
                if holds { "yes" } else { "no" }.to_owned(),
                row.name.clone(),
            ];
            let colour = (!holds).then_some(Colour::Faint);
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

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        line(style, out, 0, &super::escape(&self.verdict()))?;
        writeln!(out)?;
        head(style, out, "trace", &self.file)?;
        if !self.command.is_empty() {
            head(style, out, "command", &self.command)?;
        }
        let events = format!(
            "{}, which cost {} together: {} times the time without them",
            counted(self.events, "event"),
            time(self.cost_ns),
            ratio(self.slowdown)
        );
        head(style, out, "events", &events)?;
        let error = format!(
            "± {} % by the rule, (spread of an event's cost / its cost) x (traced / raw - 1)",
            plain((self.error * 1000.0).round() / 10.0)
        );
        head(style, out, "error", &error)?;
        for cost in &self.costs {
            let Range { low, value, high } = cost.ns;
            let says = format!("{value:.0} ns ({low:.0}–{high:.0}), {}: {}", cost.how, cost.of);
            head(style, out, "cost", &says)?;
        }
        if !self.rows.is_empty() {
            writeln!(out)?;
            self.table().write(style, out)?;
        }
        if !self.notes.is_empty() {
            writeln!(out)?;
        }
        self.notes.iter().try_for_each(|text| note(style, out, text))
    }

    fn json(&self) -> impl Serialize + '_ {
        Json {
            file: &self.file,
            command: &self.command,
            verdict: self.verdict(),
            elapsed_ns: Time::of(self.elapsed),
            on_cpu_ns: self.on_cpu.map(Time::of),
            holds: self.total().1.holds(),
            events: self.events,
            cost_ns: self.cost_ns,
            slowdown: self.slowdown,
            relative_spread: self.relative_spread,
            error: self.error,
            costs: self
                .costs
                .iter()
                .map(|row| Cost {
                    of: &row.of,
                    value_ns: row.ns.value,
                    low_ns: row.ns.low,
                    high_ns: row.ns.high,
                    how: &row.how,
                })
                .collect(),
            rows: self
                .rows
                .iter()
                .map(|row| Row {
                    name: &row.name,
                    kind: row.kind,
                    calls: row.calls,
                    time_ns: Time::of(row.time),
                    holds: row.time.holds(),
                })
                .collect(),
            notes: &self.notes,
        }
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let titles = ["name", "kind", "calls", "measured", "value", "low", "high", "holds"];
        record(out, &titles.map(str::to_owned))?;
        for row in &self.rows {
            let Range { low, value, high } = row.time.corrected_ns;
            let numbers = [row.time.measured_ns, value, low, high].map(|ns| ns.to_string());
            let mut cells = vec![row.name.clone(), row.kind.to_owned(), row.calls.to_string()];
            cells.extend(numbers);
            cells.push(row.time.holds().to_string());
            record(out, &cells)?;
        }
        Ok(())
    }

    fn problems(&self) -> &[Problem] {
        &[]
    }
}

#[derive(Serialize)]
struct Json<'a> {
    file: &'a str,
    command: &'a str,
    verdict: String,
    elapsed_ns: Time,
    on_cpu_ns: Option<Time>,
    holds: bool,
    events: u64,
    cost_ns: f64,
    slowdown: f64,
    relative_spread: f64,
    error: f64,
    costs: Vec<Cost<'a>>,
    rows: Vec<Row<'a>>,
    notes: &'a [String],
}

#[derive(Serialize)]
struct Time {
    measured: f64,
    value: f64,
    low: f64,
    high: f64,
}

impl Time {
    fn of(CorrectedTime { measured_ns, corrected_ns }: CorrectedTime) -> Self {
        let Range { low, value, high } = corrected_ns;
        Self { measured: measured_ns, value, low, high }
    }
}

#[derive(Serialize)]
struct Cost<'a> {
    of: &'a str,
    value_ns: f64,
    low_ns: f64,
    high_ns: f64,
    how: &'a str,
}

#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    kind: &'static str,
    calls: u64,
    time_ns: Time,
    holds: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(low: f64) -> CorrectionReport {
        let corrected_ns = Range { low, value: 4e8, high: 4.2e8 };
        let elapsed = CorrectedTime { measured_ns: 1.2e9, corrected_ns };
        let row = CorrectionRow {
            name: "luaH_get".to_owned(),
            kind: "enter",
            calls: 70_000,
            time: CorrectedTime { measured_ns: 2e8, corrected_ns: Range::exact(3.5e6) },
        };
        let costs = vec![CostRow {
            of: "enter".to_owned(),
            ns: Range { low: 900.0, value: 1000.0, high: 1100.0 },
            how: "in vitro".to_owned(),
        }];
        CorrectionReport {
            file: "a.trace".to_owned(),
            elapsed,
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
        let style = Style { columns: 100, full_names: false, wrap: false, colour: false };
        let text = |report: &CorrectionReport| {
            let mut out = Vec::new();
            report.text(&style, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let said = text(&report(3.8e8));
        assert!(
            said.starts_with(
                "time without tracing 400 ms (380 ms–420 ms), as traced 1.20 s: the correction \
                 holds\n"
            ),
            "{said}"
        );
        assert!(said.contains("± 10 % by the rule"), "{said}");
        assert!(said.contains("70,000  200 ms    3.50 ms"), "{said}");
        let said = text(&report(3e8));
        assert!(said.contains("does not hold, high/low is 1.40, above 1.3; trace fewer"), "{said}");
        let said = text(&report(0.0));
        assert!(said.contains("high/low is infinite"), "{said}");
    }

    #[test]
    fn json_and_csv_have_the_same() {
        let json = serde_json::to_value(report(3.8e8).json()).unwrap();
        assert_eq!(json["elapsed_ns"]["low"], 3.8e8);
        assert_eq!(json["holds"], true);
        assert_eq!(json["rows"][0]["time_ns"]["measured"], 2e8);
        let mut out = Vec::new();
        report(3.8e8).csv(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.ends_with("luaH_get,enter,70000,200000000,3500000,3500000,3500000,true\r\n"));
    }
}

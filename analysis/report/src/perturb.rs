//! `dcpi perturb` as plain data, as text, JSON and CSV.

use std::io::{self, Write};

use measure::Interval;

use super::quantity::{counted, percent, plain};
use super::table::{Cell, Colour, Table};
use super::text::{detail, head, line, note};
use super::{Report, Style};

crate::fields! {
    /// The amount of a metric: part of the time, or occurrences of the event in a run.
    #[derive(Clone, Copy, Debug, Default)]
    pub struct Moved {
        /// without the observer
        pub baseline: f64, "unit";
        /// with it
        pub observed: f64, "unit";
        /// the difference, with its interval (95 %)
        pub change: Interval, "unit";
        /// true: beyond chance, and of times by 2 % of all time or more
        pub moved: bool;
    }

    /// A correlation.
    #[derive(Debug)]
    pub struct Relation {
        /// the metric whose correlation with this one changed most; absent: itself
        pub with (maybe): Option<String>;
        /// correlation without the observer, mean of runs
        pub baseline: f64;
        /// its standard deviation between runs
        pub spread: f64;
        /// correlation with the observer
        pub observed: f64;
        /// their distance, in standard deviations
        pub deviations: f64;
        /// probability of such a distance by chance, corrected for the number of comparisons
        pub chance: f64, "share";
        /// true: `chance` is at most half of `level`
        pub changed: bool;
    }

    /// Items that an observer may collect together.
    #[derive(Debug)]
    pub struct Group {
        /// what to collect together (`--split`)
        pub items: Vec<String>;
        /// true: perturbs even alone
        pub perturbed: bool;
    }

    /// Comparisons of a command with itself.
    #[derive(Clone, Copy, Debug)]
    pub struct FalseAlarms {
        /// comparisons of the command with itself
        pub trials: u32;
        /// comparisons that found a perturbation
        pub flagged: u32;
        /// runs that they are drawn from
        pub pool: u32;
    }

    /// A correlation is Spearman's, -1 to 1. `chance` is the probability of such a difference where
    /// there is none, corrected for the number of comparisons (Holm). A change counts where it is
    /// at most half of `level`.
    #[derive(Debug, Default)]
    pub struct PerturbReport {
        /// as a shell takes it
        pub command: String;
        /// what observed it
        pub observer: String;
        /// runs without the observer
        pub baselines: u32;
        /// runs with it
        pub runs: u32;
        /// records of a run
        pub records: usize;
        /// CPU time of a record that was asked for
        pub interval_ns: u64, "ns";
        /// CPU time of a run without the observer
        pub cpu_s: f64, "s";
        pub slowdown: Slowdown;
        /// true: one of the two following is
        perturbed: bool = |it| it.relations_changed || it.shares_changed;
        /// true: the observer changed how metrics move together
        pub relations_changed: bool;
        /// true: it moved a share of the time
        pub shares_changed: bool;
        /// comparisons that were made
        pub comparisons: usize;
        /// probability of finding a perturbation where there is none: half for relations, half for
        /// amounts
        pub level: f64, "share";
        pub metrics (rows): Vec<MetricRow>;
        pub groups: Vec<Group>;
        /// null without `--false-alarms`
        pub false_alarms: Option<FalseAlarms>;
        /// what was found, in words
        verdict: String = Self::verdict;
        /// what a reader should know
        pub notes: Vec<String>;
    }

    /// Times with the observer over those without.
    #[derive(Debug, Default)]
    pub struct Slowdown {
        /// CPU time with the observer over that without, with its interval (95 %)
        pub cpu: Interval;
        /// the same of the time from start to end
        pub wall: Interval;
    }

    /// A metric.
    #[derive(Debug)]
    pub struct MetricRow {
        /// procedure, image (in brackets) or event
        pub name: String => "metric";
        /// whether it is a part of the time
        pub is_time (text): bool;
        /// `share` of the time, or `count` of events in a run
        unit: &'static str = |it| if it.is_time { "share" } else { "count" };
        pub amount: Moved => "baseline" | "observed" | "" | "moved";
        /// the correlation with another metric that changed most; null where there is none
        pub inner: Option<Relation> => "inner_with" | "inner_baseline" | "inner_spread"
            | "inner_observed" | "" | "inner_chance";
        /// number of correlations that changed
        pub inner_changed: usize;
        /// correlation with itself in other runs without the observer; null where there is none
        pub outer: Option<Relation> => "" | "outer_baseline" | "outer_spread"
            | "outer_observed" | "" | "outer_chance";
        /// true: it moves otherwise, and is not to be believed
        pub perturbed: bool => "perturbed";
        /// true: nothing could be compared
        pub unknown: bool;
    }
}

/// Smallest slowdown with which the verdict begins.
const SLOWER_MIN: f64 = 1.1;
/// Names of metrics in a sentence at most.
const NAMED: usize = 6;

impl PerturbReport {
    /// The verdict, in words.
    fn verdict(&self) -> String {
        if let Some(FalseAlarms { trials, flagged, pool }) = self.false_alarms {
            return format!(
                "{flagged} of {trials} comparisons of the command with itself found a \
                 perturbation, drawn from {pool} runs; {} % were to be expected",
                plain(self.level * 100.0)
            );
        }
        let named = |is: fn(&MetricRow) -> bool| {
            let of = self.metrics.iter().filter(|of| is(of));
            of.map(|metric| metric.name.as_str()).collect::<Vec<_>>()
        };
        let slower = format!(
            "with {} the command takes {:.2} times its CPU time",
            self.observer, self.slowdown.cpu.value
        );
        let all = self.metrics.len();
        let moved = self.moves(1).unwrap_or_default();
        match (self.relations_changed, self.shares_changed) {
            (false, false) => {
                let of = match named(|of| !of.unknown).len() {
                    1 => "the one metric keeps its share of time and moves".to_owned(),
                    n => format!("each of {n} metrics keeps its share of time and moves"),
                };
                let events: Vec<String> = self
                    .metrics
                    .iter()
                    .filter(|of| of.amount.moved)
                    .map(|of| {
                        let [from, to] =
                            [of.amount.baseline, of.amount.observed].map(|of| plain(of.round()));
                        format!("; {} from {from} to {to} a run", of.name)
                    })
                    .collect();
                let calm = self.calm();
                format!("{calm}: {slower}, and {of} as it does without{}", events.concat())
            }
            (false, true) => format!(
                "perturbed: {slower}, and {} of {all} metrics have another share of it: {moved}; \
                 how metrics move did not change",
                named(|of| of.is_time && of.amount.moved).len()
            ),
            (true, _) => {
                let others = named(|of| of.perturbed);
                let rest = match named(|of| !of.perturbed && !of.unknown && !of.amount.moved) {
                    none if none.is_empty() => "no metric is to be believed".to_owned(),
                    some => format!("believe {}", list(&some)),
                };
                let moved = match self.shares_changed {
                    true => format!("; {moved}"),
                    false => "; shares of time are kept".to_owned(),
                };
                format!(
                    "perturbed: {slower}, and {} of {all} metrics moved otherwise: do not believe \
                     {}; {rest}{moved}",
                    others.len(),
                    list(&others)
                )
            }
        }
    }

    /// The verdict on a command whose shares and relations are what they are without an observer.
    fn calm(&self) -> &'static str {
        match self.slowdown.cpu.low > SLOWER_MIN {
            true => "slower, and otherwise not perturbed",
            false => "not perturbed",
        }
    }

    fn slower(&self) -> String {
        let times = |of: Interval| format!("{:.3} times ({:.3}–{:.3})", of.value, of.low, of.high);
        format!(
            "{} the CPU time, {} the time from start to end",
            times(self.slowdown.cpu),
            times(self.slowdown.wall)
        )
    }

    /// The shares that moved most, in words: `names` of them.
    fn moves(&self, names: usize) -> Option<String> {
        let moved = self.metrics.iter().filter(|metric| metric.amount.moved && metric.is_time);
        let mut moved: Vec<&MetricRow> = moved.collect();
        let by = |row: &MetricRow| -row.amount.change.value.abs();
        moved.sort_by(|a, b| by(a).total_cmp(&by(b)));
        let words: Vec<String> = moved
            .iter()
            .take(names)
            .map(|row| {
                let [from, to] = [row.amount.baseline, row.amount.observed].map(percent);
                format!("{} from {from} to {to} %", row.name)
            })
            .collect();
        (!words.is_empty()).then(|| words.join(", "))
    }

    fn table(&self) -> Table {
        let mut table = Table::default();
        table.words("metric");
        table.number("without", "amount");
        table.number("with", "amount");
        table.number("without", "inner");
        table.number("±", "inner");
        table.number("with", "inner");
        table.number("without", "outer");
        table.number("±", "outer");
        table.number("with", "outer");
        table.words("believe");
        table.words("inner: beside");
        for metric in &self.metrics {
            let amount = |of: f64| match metric.is_time {
                true => format!("{} %", percent(of)),
                false => plain(of.round()),
            };
            let mut cells = vec![
                metric.name.clone(),
                amount(metric.amount.baseline),
                amount(metric.amount.observed),
            ];
            for relation in [&metric.inner, &metric.outer] {
                match relation {
                    Some(of) => cells.extend(
                        [of.baseline, of.spread, of.observed].map(|value| format!("{value:.2}")),
                    ),
                    None => cells.extend(["-", "-", "-"].map(str::to_owned)),
                }
            }
            let believe = match (metric.perturbed, metric.amount.moved, metric.unknown) {
                (true, ..) => "no",
                (_, true, _) => "not its amount",
                (.., true) => "?",
                _ => "yes",
            };
            cells.push(believe.to_owned());
            let beside = metric.inner.as_ref().and_then(|of| of.with.clone());
            cells.push(beside.unwrap_or_default());
            let colour = metric.perturbed.then_some(Colour::Hot);
            table.coloured(cells.into_iter().map(Cell::from).collect(), colour);
        }
        table
    }
}

/// `a, b and 3 more`.
fn list(names: &[&str]) -> String {
    let shown = names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(NAMED) {
        Some(more) if more > 0 => format!("{shown} and {more} more"),
        _ => shown,
    }
}

impl Report for PerturbReport {
    const NAME: &'static str = "perturb";
    type Fields<'a> = &'a Self;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        line(style, out, 0, &super::escape(&self.verdict()))?;
        if style.verbose {
            writeln!(out)?;
        }
        detail(style, out, "command", &self.command)?;
        if self.false_alarms.is_some() {
            return self.notes.iter().try_for_each(|text| note(style, out, text));
        }
        detail(style, out, "observer", &self.observer)?;
        let runs = format!(
            "{} without it and {} with it in turns; {} of {:.1} ms of CPU time in each",
            self.baselines,
            self.runs,
            counted(self.records as u64, "record"),
            self.cpu_s * 1e3 / self.records.max(1) as f64,
        );
        head(style, out, "runs", &runs)?;
        detail(style, out, "slowdown", &self.slower())?;
        if let Some(moves) = self.moves(NAMED) {
            detail(style, out, "time moved", &moves)?;
        }
        writeln!(out)?;
        self.table().write(style, out)?;
        writeln!(out)?;
        let what = format!(
            "inner: rank correlation with the metric in the last column, whose change is the \
             largest; outer: with itself in runs without the observer; ±: standard deviation \
             between such runs; {} comparisons; believe ?: the metric does not vary within a run",
            self.comparisons
        );
        note(style, out, &what)?;
        if !self.groups.is_empty() {
            writeln!(out)?;
            let runs = counted(self.groups.len() as u64, "run");
            note(style, out, &format!("collect in {runs} what perturbs together:"))?;
            for group in &self.groups {
                let still = if group.perturbed { " (perturbs even alone)" } else { "" };
                note(style, out, &format!("  {}{still}", group.items.join(", ")))?;
            }
        }
        self.notes.iter().try_for_each(|text| note(style, out, text))
    }

    fn json(&self) -> &Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relation(with: Option<&str>, observed: f64, chance: f64) -> Relation {
        Relation {
            with: with.map(str::to_owned),
            baseline: 0.77,
            spread: 0.05,
            observed,
            deviations: (observed - 0.77) / 0.05,
            chance,
            changed: chance <= 0.01,
        }
    }

    fn metric(name: &str, perturbed: bool) -> MetricRow {
        let (observed, chance) = if perturbed { (0.49, 1e-6) } else { (0.76, 1.0) };
        MetricRow {
            name: name.to_owned(),
            is_time: name != "page-faults",
            amount: Moved {
                baseline: 0.021,
                observed: 0.169,
                change: Interval { low: 0.14, value: 0.148, high: 0.15 },
                moved: perturbed,
            },
            inner: Some(relation(Some("auxsort"), observed, chance)),
            inner_changed: usize::from(perturbed),
            outer: (name != "page-faults").then(|| relation(None, observed, chance)),
            perturbed,
            unknown: false,
        }
    }

    fn report(perturbed: bool) -> PerturbReport {
        PerturbReport {
            command: "lua sort.lua".to_owned(),
            observer: "uftrace record".to_owned(),
            baselines: 14,
            runs: 4,
            records: 57,
            interval_ns: 10_000_000,
            cpu_s: 0.6,
            slowdown: Slowdown {
                cpu: Interval { low: 4.6, value: 4.7, high: 4.8 },
                wall: Interval::exact(5.0),
            },
            relations_changed: perturbed,
            shares_changed: perturbed,
            comparisons: 5,
            level: 0.01,
            metrics: vec![metric("index2value", perturbed), metric("page-faults", false)],
            ..PerturbReport::default()
        }
    }

    fn text(report: &PerturbReport) -> String {
        let style =
            Style { columns: 100, full_names: false, wrap: false, colour: false, verbose: true };
        let mut out = Vec::new();
        report.text(&style, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_verdict_comes_first_and_says_what_to_believe() {
        let said = text(&report(true));
        let first = said.lines().next().unwrap();
        assert_eq!(
            first,
            "perturbed: with uftrace record the command takes 4.70 times its CPU time, and 1 of 2 \
             metrics moved otherwise: do not believe index2value; believe page-faults; index2value \
             from 2.10 to 16.90 %"
        );
        assert!(said.contains("time moved  index2value from 2.10 to 16.90 %"), "{said}");
        assert!(said.contains("4.700 times (4.600–4.800) the CPU time"), "{said}");
        let calm = report(false);
        let said = text(&calm);
        assert!(
            said.starts_with(
                "slower, and otherwise not perturbed: with uftrace record the command takes 4.70 \
                 times its CPU time, and each of 2 metrics keeps its share of time and moves"
            ),
            "{said}"
        );
        assert!(!said.contains("time moved"));
        let said = text(&PerturbReport {
            slowdown: Slowdown { cpu: Interval::exact(1.01), ..calm.slowdown },
            ..calm
        });
        assert!(said.starts_with("not perturbed: with uftrace record the"), "{said}");
    }

    /// As with an observer that probes one procedure that is called at all times.
    #[test]
    fn shares_that_changed_are_a_perturbation() {
        let mut of = report(false);
        of.shares_changed = true;
        of.metrics[0].amount.moved = true;
        let said = text(&of);
        assert!(
            said.starts_with(
                "perturbed: with uftrace record the command takes 4.70 times its CPU time, and 1 \
                 of 2 metrics have another share of it: index2value from 2.10 to 16.90 %; how"
            ),
            "{said}"
        );
        assert!(said.contains("not its amount"), "{said}");
        let json = serde_json::to_value(of.json()).unwrap();
        assert_eq!(json["perturbed"], true);
        assert_eq!(json["relations_changed"], false);
    }

    #[test]
    fn groups_and_false_alarms_are_told() {
        let group = |item: &str, perturbed| Group { items: vec![item.to_owned()], perturbed };
        let groups = vec![group("a", false), group("b", true)];
        let said = text(&PerturbReport { groups, ..report(true) });
        assert!(said.contains("  b (perturbs even alone)"), "{said}");
        let false_alarms = Some(FalseAlarms { trials: 100, flagged: 2, pool: 54 });
        let said = text(&PerturbReport { false_alarms, ..report(false) });
        assert!(said.starts_with("2 of 100 comparisons of the command with itself"), "{said}");
        assert!(said.contains("1 % were to be expected"), "{said}");
    }

    #[test]
    fn csv_has_as_many_cells_in_each_line() {
        let mut out = Vec::new();
        report(true).csv(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.lines().all(|line| line.matches(',').count() == 13), "{text}");
        let json = serde_json::to_value(report(true).json()).unwrap();
        assert_eq!(json["metrics"][0]["inner"]["with"], "auxsort");
        assert_eq!(json["slowdown"]["cpu"]["value"], 4.7);
        assert!(json["metrics"][1]["outer"].is_null());
    }
}

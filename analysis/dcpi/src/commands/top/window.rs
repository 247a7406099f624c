//! The samples of the last seconds and those since the start, and the rows that are shown of them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use wire::Counts;

use super::calls::{Calls, Process, Ran, Times};
use super::history::{self, History};
use super::names::{Answer, Label, Named};
use query::load::sum;
use report::{TopReport, TopRow};
use stats::tally::Tally;
use stats::{Confidence, wilson};

/// Seconds of a nanosecond.
const NS: f64 = 1e-9;
/// Most rows kept since the start; further rows are summed up as `[others]`.
const ROWS_MAX: usize = 50_000;

/// The samples of one answer of dcpid.
#[derive(Clone, Debug, Default)]
struct Step {
    span: Duration,
    /// By event.
    lost: Vec<u64>,
    named: Named,
    /// Call stacks by event.
    calls: Vec<Calls>,
}

/// Samples of the last seconds, and since the start.
#[derive(Debug)]
pub(super) struct Window {
    span: Duration,
    recent: VecDeque<Step>,
    all: Step,
    pub(super) events: Vec<String>,
    /// Of each event the time between two samples in seconds; none of what is no time.
    periods_s: Vec<Option<f64>>,
    /// The last minutes of the first event.
    history: History,
}

/// What a row is.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum View {
    #[default]
    Procedures,
    Images,
    Commands,
    Processes,
}

#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Samples,
    Procedure,
    /// By image, in it the most samples first.
    Image,
    /// By the time with all that was called.
    Inclusive,
}

/// The choices of the user: which samples are shown, and in which order.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    pub(super) event: usize,
    pub(super) view: View,
    /// Only samples of this command and, unless it is 0, process.
    pub(super) inside: Option<Process>,
    pub(super) sort: Sort,
    /// Show samples since the start, instead of those of the last seconds.
    pub(super) all: bool,
    pub(super) idle: bool,
    /// Only rows whose image or procedure contains this text, in upper or lower case.
    pub(super) filter: String,
}

impl Window {
    /// The last `span`.
    pub(super) fn new(span: Duration) -> Self {
        Self {
            span,
            recent: VecDeque::new(),
            all: Step::default(),
            events: Vec::new(),
            periods_s: Vec::new(),
            history: History::default(),
        }
    }

    /// Adds an answer whose samples have names.
    pub(super) fn add(&mut self, counts: &Counts, answer: impl Into<Answer>) {
        let Answer { named, calls } = answer.into();
        let events: Vec<String> = counts.events.iter().map(|event| event.name.clone()).collect();
        if events != self.events {
            // Another dcpid: its events differ, so the counts so far cannot be added to its own.
            *self = Self { events, ..Self::new(self.span) };
        }
        let lost: Vec<u64> =
            counts.events.iter().map(|event| sum(event.lost.values().copied())).collect();
        let period_s =
            |event: &wire::EventCounts| (event.unit == "ns").then_some(event.period as f64 * NS);
        self.periods_s = counts.events.iter().map(period_s).collect();
        let step = Step { calls, span: Duration::from_millis(counts.since_ms), lost, named };
        self.all.span = self.all.span.saturating_add(step.span);
        add(&mut self.all.lost, &step.lost);
        for (label, counts) in &step.named {
            let room = self.all.named.len() < ROWS_MAX || self.all.named.contains_key(label);
            let label = if room { label.clone() } else { Arc::new(others()) };
            add(self.all.named.entry(label).or_default(), counts);
        }
        self.all.calls.resize_with(step.calls.len().max(self.all.calls.len()), Calls::default);
        for (sum, calls) in self.all.calls.iter_mut().zip(&step.calls) {
            sum.add(calls, ROWS_MAX);
        }
        self.remember(&step);
        self.recent.push_back(step);
        // The oldest goes when those after it fill the window.
        while self.recent.iter().skip(1).map(|step| step.span).sum::<Duration>() >= self.span {
            self.recent.pop_front();
        }
    }

    /// Adds an answer's rows to the history.
    fn remember(&mut self, step: &Step) {
        let span = step.span;
        let alone = Self {
            recent: VecDeque::from([step.clone()]),
            events: self.events.clone(),
            periods_s: self.periods_s.clone(),
            ..Self::new(span)
        };
        let views = [View::Procedures, View::Images, View::Commands, View::Processes];
        let rows = |view| {
            let wanted = Wanted { view, ..Wanted::default() };
            alone.rows(&wanted, Confidence::default()).rows
        };
        self.history.add(span, views.into_iter().map(rows));
    }

    pub(super) fn clear(&mut self) {
        *self = Self {
            events: std::mem::take(&mut self.events),
            periods_s: std::mem::take(&mut self.periods_s),
            ..Self::new(self.span)
        };
    }

    /// The call stacks that are shown, of the event that is shown.
    pub(super) fn calls(&self, wanted: &Wanted) -> Calls {
        if wanted.all {
            return self.all.calls.get(wanted.event).cloned().unwrap_or_default();
        }
        let mut sum = Calls::default();
        for calls in self.recent.iter().filter_map(|step| step.calls.get(wanted.event)) {
            sum.add(calls, usize::MAX);
        }
        sum
    }

    /// Seconds of the event's unit; none of what is no time.
    pub(super) fn unit_s(&self, wanted: &Wanted) -> Option<f64> {
        self.periods_s.get(wanted.event).copied().flatten().map(|_| NS)
    }

    /// Rows of procedures or images, from samples; times with calls are from stacks. Times are in
    /// the event's unit.
    fn rows_of_samples<'a>(
        &self,
        sums: &'a BTreeMap<Arc<Label>, Vec<u64>>,
        calls: &'a Calls,
        wanted: &Wanted,
        (counted, confidence): (u64, Confidence),
    ) -> Vec<TopRow> {
        let count = |counts: &Vec<u64>| counts.get(wanted.event).copied().unwrap_or(0);
        let mut rows: HashMap<(&str, &str), Tally> = HashMap::new();
        let mut add = |label: &'a Label, part: Tally| {
            // Samples in no image have a row of their own.
            let whole = wanted.view == View::Images && !label.image.is_empty();
            let procedure = if whole { "" } else { label.procedure.as_str() };
            *rows.entry((label.image.as_str(), procedure)).or_default() += part;
        };
        for (label, counts) in sums.iter().filter(|(label, _)| wanted.idle || !label.idle) {
            let samples = count(counts);
            match calls.loops.get(label) {
                Some(ran) => divide(label, samples, ran, &mut add),
                None => add(label, Tally::of(samples, 1.0)),
            }
        }
        let inclusive = match wanted.view {
            View::Procedures => calls.rows(|_| true),
            _ => BTreeMap::new(),
        };
        let inclusive: HashMap<(&str, &str), u64> = inclusive
            .into_iter()
            .filter(|(label, _)| wanted.idle || !label.idle)
            .map(|(of, times)| ((of.image.as_str(), of.procedure.as_str()), times.inclusive))
            .collect();
        for key in inclusive.keys() {
            rows.entry(*key).or_default();
        }
        let all = Tally::of(counted, 1.0);
        let row = |((image, procedure), part): ((&str, &str), Tally)| TopRow {
            image: image.to_owned(),
            procedure: procedure.to_owned(),
            samples: part.samples,
            share: stats::share(part, all, confidence),
            inclusive_s: inclusive.get(&(image, procedure)).map(|weight| *weight as f64),
            ..TopRow::default()
        };
        rows.into_iter().map(row).collect()
    }

    /// Makes seconds of times, where the event counts time, and adds CPUs.
    fn add_times(&self, rows: &mut [TopRow], of_calls: bool, wanted: &Wanted, span_s: f64) {
        let period_s = self.periods_s.get(wanted.event).copied().flatten();
        for row in rows {
            let own = match of_calls {
                true => period_s.and(row.seconds).map(|time| time * NS),
                false => period_s.map(|period_s| row.samples as f64 * period_s),
            };
            row.seconds = own;
            row.inclusive_s = period_s.and(row.inclusive_s).map(|time| time * NS);
            row.cpus = own.filter(|_| span_s > 0.0).map(|own| own / span_s);
        }
    }

    pub(super) fn report(&self, wanted: &Wanted, confidence: Confidence) -> TopReport {
        let mut report = self.rows(wanted, confidence);
        // Procedures inside of a process have no history of their own.
        if wanted.event == 0 && wanted.inside.is_none() {
            let bars = self.history.bars();
            report.rows.iter_mut().for_each(|row| row.history = history::text(&bars, row));
        }
        report
    }

    /// The report without the last minutes.
    fn rows(&self, wanted: &Wanted, confidence: Confidence) -> TopReport {
        let mut sums: BTreeMap<Arc<Label>, Vec<u64>> = BTreeMap::new();
        let (span, lost) = if wanted.all {
            sums.clone_from(&self.all.named);
            (self.all.span, self.all.lost.clone())
        } else {
            for (label, counts) in self.recent.iter().flat_map(|step| &step.named) {
                add(sums.entry(label.clone()).or_default(), counts);
            }
            let mut lost = Vec::new();
            self.recent.iter().for_each(|step| add(&mut lost, &step.lost));
            (self.recent.iter().map(|step| step.span).sum(), lost)
        };
        let count = |counts: &Vec<u64>| counts.get(wanted.event).copied().unwrap_or(0);
        let total = sum(sums.values().map(count));
        let idle =
            sum(sums.iter().filter(|(label, _)| label.idle).map(|(_, counts)| count(counts)));
        let counted = if wanted.idle { total } else { total.saturating_sub(idle) };
        let calls = self.calls(wanted);
        let of_calls =
            wanted.inside.is_some() || matches!(wanted.view, View::Commands | View::Processes);
        let (counted, mut rows) = match of_calls {
            true => rows_of_calls(&calls, wanted, confidence),
            false => (counted, self.rows_of_samples(&sums, &calls, wanted, (counted, confidence))),
        };
        self.add_times(&mut rows, of_calls, wanted, span.as_secs_f64());
        let filter = wanted.filter.to_lowercase();
        let fits = |name: &str| name.to_lowercase().contains(&filter);
        rows.retain(|row| {
            (row.samples > 0 || row.inclusive_s.is_some_and(|s| s > 0.0))
                && (fits(&row.image) || fits(&row.procedure) || fits(&row.command))
        });
        sort(&mut rows, wanted.sort);
        let event = self.events.get(wanted.event).cloned().unwrap_or_default();
        TopReport {
            event,
            span_s: span.as_secs_f64(),
            total,
            idle,
            counted,
            lost: count(&lost),
            confidence,
            with_idle: wanted.idle,
            of_stacks: of_calls,
            rows,
            problems: Vec::new(),
        }
    }
}

/// Rows of commands, of processes, or of the procedures of one of these, and the number of stacks
/// that shares are of. Times are in the event's unit.
fn rows_of_calls(calls: &Calls, wanted: &Wanted, confidence: Confidence) -> (u64, Vec<TopRow>) {
    let sum_of = |rows: &BTreeMap<Arc<Label>, Times>| {
        let mut all = Times::default();
        rows.values().for_each(|times| all.add(*times));
        Times { inclusive: all.own, ..all }
    };
    let row = |times: Times| TopRow {
        samples: times.stacks,
        seconds: Some(times.own as f64),
        inclusive_s: Some(times.inclusive as f64),
        ..TopRow::default()
    };
    let mut rows: Vec<TopRow> = Vec::new();
    if let Some(inside) = &wanted.inside {
        let of = calls.rows(|process| is_in(process, inside));
        rows.extend(of.into_iter().map(|(label, times)| {
            let (image, procedure) = (label.image.clone(), label.procedure.clone());
            TopRow { image, procedure, ..row(times) }
        }));
    } else {
        let mut sums: BTreeMap<(&str, u32), Times> = BTreeMap::new();
        for ((command, pid), of) in &calls.processes {
            let pid = if wanted.view == View::Processes { *pid } else { 0 };
            sums.entry((command, pid)).or_default().add(sum_of(of));
        }
        rows.extend(sums.into_iter().map(|((command, pid), times)| TopRow {
            command: command.to_owned(),
            pid: (pid > 0).then_some(pid),
            ..row(times)
        }));
    }
    let all = sum(rows.iter().map(|row| row.samples));
    rows.iter_mut().for_each(|row| row.share = wilson(row.samples, all, confidence));
    (all, rows)
}

/// Divides the samples of a procedure that runs script functions among these, in the proportion of
/// the stacks that end in it; the rest stays its own. `add` gets each part.
fn divide<'a>(
    label: &'a Label,
    samples: u64,
    ran: &'a Ran,
    add: &mut impl FnMut(&'a Label, Tally),
) {
    let (mut due, mut left) = (0.0, samples);
    let part = |some: u64, weight: u64| {
        let share = weight as f64 / ran.all.own.max(1) as f64;
        let variance = stats::tally::share_variance(share.min(1.0), ran.all.stacks as f64);
        let divided = samples as f64 * samples as f64 * variance;
        Tally { divided, ..Tally::of(some, 1.0) }
    };
    for (function, weight) in &ran.functions {
        // What is rounded off at one function counts at the next.
        due += samples as f64 * *weight as f64 / ran.all.own.max(1) as f64;
        let some = ((due - (samples - left) as f64).round() as u64).min(left);
        left -= some;
        add(function, part(some, *weight));
    }
    let named: u64 = sum(ran.functions.values().copied());
    add(label, part(left, ran.all.own.saturating_sub(named)));
}

/// Whether a process is the one, or of the command.
pub(super) fn is_in(process: &Process, inside: &Process) -> bool {
    process.0 == inside.0 && (inside.1 == 0 || inside.1 == process.1)
}

fn sort(rows: &mut [TopRow], by: Sort) {
    rows.sort_by(|a, b| {
        let name =
            |row: &TopRow| (row.procedure.clone(), row.image.clone(), row.command.clone(), row.pid);
        let most = Reverse(a.samples).cmp(&Reverse(b.samples)).then_with(|| name(a).cmp(&name(b)));
        let inclusive = |row: &TopRow| row.inclusive_s.unwrap_or(0.0);
        match by {
            Sort::Samples => most,
            Sort::Procedure => name(a).cmp(&name(b)),
            Sort::Image => a.image.cmp(&b.image).then(most),
            Sort::Inclusive => inclusive(b).total_cmp(&inclusive(a)).then(most),
        }
    });
}

fn others() -> Label {
    Label { procedure: "[others]".to_owned(), ..Label::default() }
}

fn add(sums: &mut Vec<u64>, counts: &[u64]) {
    sums.resize(sums.len().max(counts.len()), 0);
    sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum = sum.saturating_add(*count));
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use wire::EventCounts;

    pub(crate) fn named(rows: &[(&str, &str, u64)]) -> Named {
        let label = |image: &str, procedure: &str| Label {
            image: image.to_owned(),
            procedure: procedure.to_owned(),
            idle: image == "[idle]",
        };
        rows.iter()
            .map(|(image, procedure, n)| (Arc::new(label(image, procedure)), vec![*n]))
            .collect()
    }

    pub(crate) fn counts(since_ms: u64) -> Counts {
        let event = EventCounts {
            name: "cycles".into(),
            lost: [("spill_full".to_owned(), 1)].into(),
            ..EventCounts::default()
        };
        Counts { since_ms, events: vec![event], ..Counts::default() }
    }

    fn rows(window: &Window, wanted: &Wanted) -> String {
        let report = window.report(wanted, Confidence::from_percent(95.0).unwrap());
        let row = |row: &TopRow| {
            format!(
                "{}/{} {} {:.0}%",
                row.image,
                row.procedure,
                row.samples,
                100.0 * row.share.value
            )
        };
        let rows: Vec<_> = report.rows.iter().map(row).collect();
        format!(
            "{} of {} in {:?}: {}",
            report.counted,
            report.total,
            Duration::from_secs_f64(report.span_s),
            rows.join(", ")
        )
    }

    /// 60 of 80 stacks of the loop are of `f`, 16 of `g`, and 4 of no function.
    #[test]
    fn samples_of_a_loop_are_divided_and_are_as_sure_as_their_stacks() {
        let label = |name: &str| {
            let (image, procedure) = ("a".to_owned(), name.to_owned());
            Arc::new(Label { image, procedure, idle: false })
        };
        let all = super::super::calls::Times { stacks: 80, own: 80, inclusive: 80 };
        let functions = [(label("f"), 60), (label("g"), 16)].into();
        let loops = [(label("loop"), Ran { all, functions })].into();
        let calls = vec![Calls { loops, ..Calls::default() }];
        let mut window = Window::new(Duration::from_secs(4));
        let named = named(&[("a", "loop", 802), ("a", "other", 198)]);
        window.add(&counts(2000), Answer { named, calls });
        assert_eq!(
            rows(&window, &Wanted::default()),
            "1000 of 1000 in 2s: a/f 602 60%, a/other 198 20%, a/g 160 16%, a/loop 40 4%"
        );
        let report = window.report(&Wanted::default(), Confidence::from_percent(95.0).unwrap());
        let width = |row: &TopRow| row.share.high - row.share.low;
        // Times 1.96 the deviation of 60 of 80 stacks, 4.8 %, times 0.8; of 198 of 1000 samples.
        assert!((0.13..0.18).contains(&width(&report.rows[0])), "{:?}", report.rows[0]);
        assert!((0.04..0.06).contains(&width(&report.rows[1])), "{:?}", report.rows[1]);
    }

    #[test]
    fn a_window_slides_and_the_begin_is_kept() {
        let mut window = Window::new(Duration::from_secs(4));
        window.add(&counts(0), Named::new());
        window.add(&counts(2000), named(&[("a", "old", 10)]));
        window.add(&counts(2000), named(&[("a", "new", 6), ("[idle]", "wait", 90)]));
        let wanted = Wanted::default();
        assert_eq!(rows(&window, &wanted), "16 of 106 in 4s: a/old 10 62%, a/new 6 38%");
        window.add(&counts(2000), named(&[("b", "new", 2), ("", "[unresolved: x]", 2)]));
        assert_eq!(
            rows(&window, &wanted),
            "10 of 100 in 4s: a/new 6 60%, /[unresolved: x] 2 20%, b/new 2 20%"
        );
        let all = Wanted { all: true, view: View::Images, sort: Sort::Image, ..Wanted::default() };
        assert_eq!(
            rows(&window, &all),
            "20 of 110 in 6s: /[unresolved: x] 2 10%, a/ 16 80%, b/ 2 10%"
        );
        let idle =
            Wanted { idle: true, filter: "W".into(), sort: Sort::Procedure, ..Wanted::default() };
        assert_eq!(
            rows(&window, &idle),
            "100 of 100 in 4s: a/new 6 6%, b/new 2 2%, [idle]/wait 90 90%"
        );
        window.clear();
        assert_eq!(rows(&window, &all), "0 of 0 in 0ns: ");
    }

    #[test]
    fn lost_samples_are_those_of_the_event_that_is_shown() {
        let mut window = Window::new(Duration::from_secs(4));
        let mut two = counts(2000);
        let lost = [("spill_full".to_owned(), 40), ("ring_full".to_owned(), 2)].into();
        two.events.push(EventCounts { name: "imiss".into(), lost, ..EventCounts::default() });
        for _ in 0..3 {
            window.add(&two, Named::new());
        }
        let lost = |event, all| {
            let wanted = Wanted { event, all, ..Wanted::default() };
            window.report(&wanted, Confidence::from_percent(95.0).unwrap()).lost
        };
        assert_eq!([lost(0, false), lost(1, false), lost(0, true), lost(1, true)], [2, 84, 3, 126]);
    }

    #[test]
    fn another_daemon_begins_anew() {
        let mut window = Window::new(Duration::from_secs(4));
        window.add(&counts(1000), named(&[("a", "old", 10)]));
        let mut other = counts(1000);
        other.events[0].name = "cpu-clock".into();
        window.add(&other, named(&[("a", "new", u64::MAX), ("b", "new", u64::MAX)]));
        assert!(
            rows(&window, &Wanted::default())
                .starts_with("18446744073709551615 of 18446744073709551615 in 1s")
        );
    }

    #[test]
    fn rows_since_the_begin_have_an_end() {
        let mut window = Window::new(Duration::from_secs(1));
        for at in 0..ROWS_MAX + 5 {
            window.add(&counts(1000), named(&[("a", &at.to_string(), 1)]));
        }
        let report = window.report(
            &Wanted { all: true, ..Wanted::default() },
            Confidence::from_percent(95.0).unwrap(),
        );
        assert_eq!(
            (report.rows.len(), report.rows[0].procedure.as_str()),
            (ROWS_MAX + 1, "[others]")
        );
        assert_eq!(report.rows[0].samples, 5);
    }
}

//! The samples of the last seconds and those since the start, and the rows that are shown of them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use wire::Counts;

use super::names::{Label, Named};
use query::load::sum;
use report::{TopReport, TopRow};
use stats::{Confidence, wilson};

/// Most rows kept since the start; further rows are summed up as `[others]`.
const ROWS_MAX: usize = 50_000;

/// The samples of one answer of dcpid.
#[derive(Clone, Debug, Default)]
struct Step {
    span: Duration,
    /// By event.
    lost: Vec<u64>,
    named: Named,
}

/// Samples of the last seconds, and since the start.
#[derive(Debug)]
pub(super) struct Window {
    span: Duration,
    recent: VecDeque<Step>,
    all: Step,
    pub(super) events: Vec<String>,
}

#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Samples,
    Procedure,
    /// By image, in it the most samples first.
    Image,
}

/// The choices of the user: which samples are shown, and in which order.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    pub(super) event: usize,
    pub(super) by_image: bool,
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
        Self { span, recent: VecDeque::new(), all: Step::default(), events: Vec::new() }
    }

    /// Adds an answer whose samples have names.
    pub(super) fn add(&mut self, counts: &Counts, named: Named) {
        let events: Vec<String> = counts.events.iter().map(|event| event.name.clone()).collect();
        if events != self.events {
            // Another dcpid: its events differ, so the counts so far cannot be added to its own.
            *self = Self { events, ..Self::new(self.span) };
        }
        let lost: Vec<u64> =
            counts.events.iter().map(|event| sum(event.lost.values().copied())).collect();
        let step = Step { span: Duration::from_millis(counts.since_ms), lost, named };
        self.all.span = self.all.span.saturating_add(step.span);
        add(&mut self.all.lost, &step.lost);
        for (label, counts) in &step.named {
            let room = self.all.named.len() < ROWS_MAX || self.all.named.contains_key(label);
            let label = if room { label.clone() } else { Arc::new(others()) };
            add(self.all.named.entry(label).or_default(), counts);
        }
        self.recent.push_back(step);
        // The oldest goes when those after it fill the window.
        while self.recent.iter().skip(1).map(|step| step.span).sum::<Duration>() >= self.span {
            self.recent.pop_front();
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self { events: std::mem::take(&mut self.events), ..Self::new(self.span) };
    }

    pub(super) fn report(&self, wanted: &Wanted, confidence: Confidence) -> TopReport {
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
        let mut rows: HashMap<(&str, &str), u64> = HashMap::new();
        for (label, counts) in sums.iter().filter(|(label, _)| wanted.idle || !label.idle) {
            // Samples in no image have a row of their own.
            let whole = wanted.by_image && !label.image.is_empty();
            let procedure = if whole { "" } else { label.procedure.as_str() };
            let row = rows.entry((label.image.as_str(), procedure)).or_default();
            *row = row.saturating_add(count(counts));
        }
        let filter = wanted.filter.to_lowercase();
        let fits = |name: &str| name.to_lowercase().contains(&filter);
        let shown = rows
            .into_iter()
            .filter(|((image, procedure), n)| *n > 0 && (fits(image) || fits(procedure)));
        let row = |((image, procedure), samples): ((&str, &str), u64)| TopRow {
            image: image.to_owned(),
            procedure: procedure.to_owned(),
            samples,
            share: wilson(samples, counted, confidence),
        };
        let mut rows: Vec<TopRow> = shown.map(row).collect();
        rows.sort_by(|a, b| {
            let name = |row: &TopRow| (row.procedure.clone(), row.image.clone());
            let most =
                Reverse(a.samples).cmp(&Reverse(b.samples)).then_with(|| name(a).cmp(&name(b)));
            match wanted.sort {
                Sort::Samples => most,
                Sort::Procedure => name(a).cmp(&name(b)),
                Sort::Image => a.image.cmp(&b.image).then(most),
            }
        });
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
            rows,
            problems: Vec::new(),
        }
    }
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
        let all = Wanted { all: true, by_image: true, sort: Sort::Image, ..Wanted::default() };
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

//! `dcpi whatcg` as plain data, as text, JSON and CSV.

use std::collections::BTreeMap;
use std::io::{self, Write};

use verdict::{Certainty, Class, Mechanism};

use super::calc::ModelJson;
use super::fields::Part;
use super::json::{Event, Head, ProblemEntry};
use super::quantity::{counted, percent, thousands};
use super::table::{Colour, Table};
use super::text::{self, explained_head, note, problem_lines};
use super::why::{MechanismName, WhyFinding};
use super::{EventColumn, Model, Report, Selection, Style};
use query::problem::Problem;

crate::fields! {
    /// What the selected time was spent on: the findings of `dcpi why`, by mechanism. CSV has a row
    /// per cause.
    #[derive(Debug)]
    pub struct WhatcgReport {
        pub selection (flat): Selection as Head<'_>;
        pub events: Vec<EventColumn> as Vec<Event<'_>>;
        pub machine (flat): Model as ModelJson;
        /// procedures that were explained
        pub procedures: u64;
        /// samples of time in the report
        pub samples: u64, "samples";
        /// samples among these in procedures that were explained
        pub explained: u64, "samples";
        /// the findings
        pub findings (text): Vec<WhyFinding>;
        /// what the time was spent on, the largest part first
        causes (rows): Vec<CauseRow> = |it| causes(&it.findings);
        pub problems: Vec<Problem> as Vec<ProblemEntry<'_>>;
    }

    /// What a part of the time was spent on.
    #[derive(Debug)]
    pub struct CauseRow {
        mechanism (text): Mechanism;
        /// a mechanism of `dcpi why`; `at_limit`: what the instructions need in the best case
        name: MechanismName = |it| MechanismName::of(it.mechanism) => "name";
        class: &'static str = |it| it.mechanism.class().name() => "class";
        /// part of the selected time, likeliest; these add up to 1
        share: Part => "share";
        /// the same at least: what findings of a probability of 0.95 give
        low: Part => "low";
        /// the same at most
        high: Part => "high";
    }
}

/// The note where causes have nothing or all of the time of findings.
const OPEN: &str = "where the cycles of a round or call are not known, the whole time of a finding \
                    is given to the causes that dcpi why tells, by their probabilities";

/// Parts of the time: likeliest, least, most.
#[derive(Clone, Copy, Debug, Default)]
struct Parts([f64; 3]);

impl Parts {
    fn add(&mut self, parts: [f64; 3]) {
        self.0.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
    }
}

/// Whether all of a finding's time is spent on its mechanism, and not what could be gained alone.
fn takes_all(mechanism: Mechanism) -> bool {
    matches!(mechanism.class(), Class::Kernel | Class::Waiting | Class::Runtime)
        || mechanism == Mechanism::Unknown
}

/// Whether how much of the finding's time its mechanism takes is not known at all.
fn is_open(found: &WhyFinding) -> bool {
    !takes_all(found.mechanism) && found.mechanism != Mechanism::AtLimit && found.is_open()
}

/// What the time was spent on.
fn causes(findings: &[WhyFinding]) -> Vec<CauseRow> {
    let mut sums: BTreeMap<Mechanism, Parts> = BTreeMap::new();
    let mut add = |mechanism, parts| sums.entry(mechanism).or_default().add(parts);
    for found in findings {
        let all = found.share.value;
        let gain = match takes_all(found.mechanism) {
            true => [all; 3],
            // Of nothing known the verdict's mechanism has all, so that causes rank as in dcpi why.
            false if is_open(found) => [all, 0.0, all],
            false => [found.gain.value, found.gain.low, found.gain.high].map(|gain| gain.min(all)),
        };
        let [value, low, high] = gain;
        add(Mechanism::AtLimit, [all - value, all - high, all - low]);
        let probability =
            if found.mechanism == Mechanism::Unknown { 1.0 } else { found.probability };
        let is_certain = Certainty::of(found.mechanism, probability) == Certainty::Certain;
        let least = if is_certain { low } else { 0.0 };
        add(found.mechanism, [value * probability, least, high]);
        let mut rest = 1.0 - probability;
        for other in &found.alternatives {
            let part = other.probability.min(rest);
            rest -= part;
            add(other.mechanism, [value * part, 0.0, high]);
        }
        add(Mechanism::Unknown, [value * rest, 0.0, if rest > 0.0 { high } else { 0.0 }]);
    }
    let told: f64 = findings.iter().map(|found| found.share.value).sum();
    add(Mechanism::Unknown, [(1.0 - told).max(0.0); 3]);
    let row = |(mechanism, Parts(parts)): (Mechanism, Parts)| {
        let [share, low, high] = parts.map(|part| Part(part.clamp(0.0, 1.0)));
        CauseRow { mechanism, share, low, high }
    };
    let mut rows: Vec<CauseRow> = sums.into_iter().map(row).collect();
    rows.retain(|row| row.high.0 > 0.0);
    rows.sort_by(|a, b| b.share.0.total_cmp(&a.share.0).then(b.high.0.total_cmp(&a.high.0)));
    rows
}

impl Report for WhatcgReport {
    const NAME: &'static str = "whatcg";
    type Fields<'a> = &'a Self;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        let part = percent(self.explained as f64 / self.samples.max(1) as f64);
        let (explained, all) = (thousands(self.explained), counted(self.samples, "sample"));
        let of = format!(
            "{} with {explained} of {all} ({part} %)",
            counted(self.procedures, "procedure")
        );
        explained_head((&self.selection, &self.machine), &of, style, out)?;
        writeln!(out)?;
        let mut table = Table::default();
        table.number("%", "");
        table.number("at least", "");
        table.number("at most", "");
        table.texts("spent on");
        for CauseRow { mechanism, share, low, high } in causes(&self.findings) {
            let what = match mechanism {
                Mechanism::AtLimit => "what the instructions need at best".to_owned(),
                other => other.to_string(),
            };
            let cells = vec![percent(share.0), percent(low.0), percent(high.0), what];
            table.coloured(cells, Colour::of_share(share.0));
        }
        table.write(style, out)?;
        let open = self.findings.iter().any(is_open).then(|| OPEN.to_owned());
        let problems = problem_lines(text::told(&self.problems, style));
        let notes: Vec<String> = open.into_iter().chain(problems).collect();
        if !notes.is_empty() {
            writeln!(out)?;
        }
        notes.iter().try_for_each(|line| note(style, out, line))
    }

    fn json(&self) -> &Self {
        self
    }

    fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WhyAlternative;
    use stats::Share;

    fn finding(mechanism: Mechanism, share: f64, gain: [f64; 3], probability: f64) -> WhyFinding {
        let [value, low, high] = gain;
        WhyFinding {
            share: Share { value: share, low: share, high: share },
            gain: Share { value, low, high },
            image: None,
            image_id: None,
            is_one_of_builds: false,
            build_before: None,
            procedure: None,
            address: None,
            source: None,
            mechanism,
            probability,
            evidence: Vec::new(),
            alternatives: Vec::new(),
        }
    }

    /// Half of what nothing was known of went to the instructions' needs, which came first.
    #[test]
    fn causes_rank_by_verdicts_where_ranges_tell_nothing() {
        let findings = [
            finding(Mechanism::LoadFromL3, 0.69, [0.35, 0.0, 0.69], 0.78),
            finding(Mechanism::DependencyChain, 0.05, [0.01, 0.0, 0.045], 0.5),
        ];
        let rows = causes(&findings);
        let first = rows.first().unwrap();
        assert_eq!(
            (first.mechanism, first.low.0, first.high.0),
            (Mechanism::LoadFromL3, 0.0, 0.69)
        );
        assert!((first.share.0 - 0.69 * 0.78).abs() < 1e-9, "{rows:?}");
        let sum: f64 = rows.iter().map(|row| row.share.0).sum();
        assert!((sum - 1.0).abs() < 1e-9, "{rows:?}");
    }

    #[test]
    fn parts_add_up_to_all_time() {
        let other = WhyAlternative { mechanism: Mechanism::PageWalk, probability: 0.1 };
        let findings = [
            WhyFinding {
                alternatives: vec![other],
                ..finding(Mechanism::LoadFromMemory, 0.5, [0.4, 0.3, 0.5], 0.8)
            },
            finding(Mechanism::BranchMispredict, 0.2, [0.1, 0.05, 0.15], 0.96),
            finding(Mechanism::KernelCopy, 0.1, [0.09, 0.0, 0.1], 0.8),
        ];
        let rows = causes(&findings);
        let sum: f64 = rows.iter().map(|row| row.share.0).sum();
        assert!((sum - 1.0).abs() < 1e-9, "{rows:?}");
        let of = |mechanism| rows.iter().find(|row| row.mechanism == mechanism).unwrap();
        let parts = |mechanism| [of(mechanism).share.0, of(mechanism).low.0, of(mechanism).high.0];
        let is = |mechanism, expected: [f64; 3]| {
            let told = parts(mechanism);
            assert!(told.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9), "{told:?}");
        };
        is(Mechanism::LoadFromMemory, [0.32, 0.0, 0.5]);
        is(Mechanism::PageWalk, [0.04, 0.0, 0.5]);
        is(Mechanism::BranchMispredict, [0.096, 0.05, 0.15]);
        is(Mechanism::KernelCopy, [0.08, 0.0, 0.1]);
        is(Mechanism::AtLimit, [0.2, 0.05, 0.35]);
        assert!(rows.iter().all(|row| row.low.0 <= row.share.0 && row.share.0 <= row.high.0));
    }
}

//! `dcpi why` as plain data, as text and as JSON.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write};

use image::ImageId;
use stats::Share;
use verdict::{Certainty, Evidence, Mechanism};

use super::builds::{brief_id, two_builds};
use super::calc::ModelJson;
use super::fields::{Address, Approximate, Fraction};
use super::json::{Event, Head, ProblemEntry};
use super::quantity::counted;
use super::text::{self, brief, head, line, machine, note, problem_lines, selection};
use super::{EventColumn, Model, Report, Seen, Selection, Style};
use names::shorten::fit;
use query::problem::Problem;
use query::scope::ScopeChoice;

crate::fields! {
    /// Why the selected time was taken. Shares are of all selected time.
    #[derive(Debug)]
    pub struct WhyReport {
        pub selection (flat): Selection as Head<'_>;
        pub events: Vec<EventColumn> as Vec<Event<'_>>;
        pub machine (flat): Model as ModelJson;
        /// samples of the selected time
        pub samples: u64, "samples";
        /// what takes the time, what could be gained most first
        pub findings (rows): Vec<WhyFinding>;
        /// share of the time that no finding of a known mechanism explains
        pub unexplained: Share;
        /// of `--try`: the command with one thing changed
        pub experiments: Vec<WhyExperiment>;
        /// when images were seen, which tells the older of two builds
        pub seen (text): Seen;
        /// findings beyond `-n`
        pub omitted (text): usize;
        pub problems: Vec<Problem> as Vec<ProblemEntry<'_>>;
    }

    /// A piece of code, or of the kernel's work, that takes time, and why.
    #[derive(Clone, Debug)]
    pub struct WhyFinding {
        /// share of the time that it takes
        pub share: Share, "share" => "share" | "share_low" | "share_high";
        /// share of the time that would be gained without the mechanism
        pub gain: Share, "share" => "gain" | "gain_low" | "gain_high";
        /// name of the image; absent: of the whole selection
        pub image (maybe): Option<String> => "image";
        /// its build, where the finding is of one
        pub image_id (maybe): Option<ImageId> => "image_id";
        /// whether another build of the image has samples
        pub is_one_of_builds (text): bool;
        /// name of the procedure
        pub procedure (maybe): Option<String> => "procedure";
        /// the same loop in the build before, where it makes more or fewer rounds than their
        /// intervals leave open
        pub build_before (maybe): Option<WhyBuildBefore>;
        /// the instruction that takes the time, or the first one of the loop
        pub address (maybe): Option<u64> as Option<Address> => "address";
        /// its place in the source
        pub source (maybe): Option<WhySource>;
        /// class of the mechanism
        class: &'static str = |it| it.mechanism.class().name();
        /// what takes the time
        pub mechanism: Mechanism as MechanismName => "mechanism";
        /// `certain`: a probability of at least 0.95; `likely`: of at least 0.75; `possible`; or
        /// `unknown`
        certainty: &'static str = |it| it.certainty().word();
        /// probability that the mechanism takes most of the time that could be gained
        pub probability: f64 as Fraction => "probability";
        /// what the verdict rests on
        pub evidence: Vec<WhyEvidence>;
        /// what to try
        advice: Vec<String> = |it| it.advice();
        /// other mechanisms, the likeliest first
        pub alternatives: Vec<WhyAlternative>;
    }

    /// A loop in two builds.
    #[derive(Clone, Debug)]
    pub struct WhyBuildBefore {
        /// the build before
        pub image_id: ImageId;
        /// rounds of the loop each time that it is entered
        pub rounds: Share, "rounds";
        /// the same in the build before
        pub rounds_before: Share, "rounds";
    }

    /// The command with one thing changed, timed as `dcpi time` does.
    #[derive(Clone, Debug)]
    pub struct WhyExperiment {
        /// `huge pages`, `one CPU` or `layouts`
        pub name: &'static str;
        /// what was changed
        pub what: String;
        /// change of the time, as a part of it: negative where it falls; of layouts, that of the
        /// fastest; absent where it was not tried, or layouts differ by no more than chance
        pub change (maybe): Option<f64> as Option<Approximate>;
        /// its confidence interval; of layouts, the fastest and the slowest
        pub low (maybe): Option<f64> as Option<Approximate>;
        /// of the same
        pub high (maybe): Option<f64> as Option<Approximate>;
        /// the result in words
        pub says: String;
    }

    /// A place in the source.
    #[derive(Clone, Debug)]
    pub struct WhySource {
        pub file: String;
        pub line: u32;
    }

    /// What a verdict rests on.
    #[derive(Clone, Debug)]
    pub struct WhyEvidence {
        /// `time`, `limit`, `addresses`, `pages`, `branches`, `code`, `samples`
        pub kind: &'static str;
        /// in words
        pub text: String;
        /// the number in them
        pub value (maybe): Option<f64> as Option<Approximate>;
        /// its unit
        pub unit (maybe): Option<&'static str>;
    }

    /// A mechanism that may take the time.
    #[derive(Clone, Debug)]
    pub struct WhyAlternative {
        class: &'static str = |it| it.mechanism.class().name();
        pub mechanism: Mechanism as MechanismName;
        pub probability: f64 as Fraction;
    }
}

/// The name of a mechanism, for programs.
#[derive(Debug)]
pub struct MechanismName(&'static str);

impl MechanismName {
    pub(super) fn of(mechanism: Mechanism) -> Self {
        Self(mechanism.name())
    }
}

impl super::fields::Shaped for MechanismName {
    fn shape() -> super::fields::Shape {
        super::fields::Shape::Scalar("string")
    }

    fn json<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        serde::Serialize::serialize(self.0, to)
    }

    fn cells(&self, titles: &[&'static str], key: Option<&str>, row: &mut super::fields::Cells) {
        row.push(titles, key, self.0);
    }
}

impl<'a> super::fields::Shown<&'a Mechanism> for MechanismName {
    fn shown(of: &'a Mechanism) -> Self {
        Self(of.name())
    }
}

impl From<Evidence> for WhyEvidence {
    fn from(evidence: Evidence) -> Self {
        let Evidence { kind, text, value, unit } = evidence;
        Self { kind, text, value, unit }
    }
}

impl WhyBuildBefore {
    fn has_more_rounds(&self) -> bool {
        self.rounds.low > self.rounds_before.high
    }
}

impl fmt::Display for WhyBuildBefore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let about = |Share { value, low, high }: Share| {
            let [value, low, high] = [value, low, high].map(rounds);
            format!("{value} ({low} to {high})")
        };
        let [own, before] = [self.rounds, self.rounds_before].map(about);
        let build = brief_id(&self.image_id);
        write!(
            f,
            "rounds of the loop each time it is entered: about {own}; in build {build} {before}"
        )
    }
}

/// A number of rounds: below ten with a decimal, which tells 1 from 2.
fn rounds(rounds: f64) -> String {
    if rounds < 9.95 { format!("{rounds:.1}") } else { format!("{rounds:.0}") }
}

impl WhyFinding {
    pub(super) fn certainty(&self) -> Certainty {
        Certainty::of(self.mechanism, self.probability)
    }

    fn advice(&self) -> Vec<String> {
        let more = self.build_before.as_ref().filter(|before| before.has_more_rounds());
        let more = more.map(|before| {
            let before = brief_id(&before.image_id);
            format!("look at why the loop makes more rounds than in build {before}")
        });
        let evidence = self.evidence.iter().map(|one| (one.kind, one.value));
        let usual = self.mechanism.advice_beside(evidence).map(str::to_owned);
        more.into_iter().chain(usual).collect()
    }

    /// Whether nothing is known of what could be gained: from nothing to all of the finding's time.
    pub(super) fn is_open(&self) -> bool {
        self.gain.low < TOLD && self.gain.high >= OPEN * self.share.value
    }

    /// What could be gained, where that is known.
    fn to_gain(&self) -> Option<String> {
        let Share { value, low, high } = self.gain;
        if high <= 0.0 || self.mechanism == Mechanism::Unknown || self.is_open() {
            return None;
        }
        let [about, least, most] = [value, low, high].map(percent);
        Some(match (value < TOLD, low < TOLD) {
            (true, _) => format!("at most {most} of the time"),
            (false, true) => format!("{about} of the time (at most {most})"),
            (false, false) => format!("{about} of the time ({least} to {most})"),
        })
    }

    /// The cause in one line, with its place and what to try first.
    pub fn line(&self) -> String {
        let is_somewhere = !matches!(self.mechanism, Mechanism::AtLimit | Mechanism::Unknown);
        let source = self.source.as_ref().filter(|_| is_somewhere).map(|source| {
            format!(" at {}:{}", source.file.rsplit('/').next().unwrap_or_default(), source.line)
        });
        let tried = self.advice().first().map(|advice| format!("; try: {advice}"));
        let [source, tried] = [source, tried].map(Option::unwrap_or_default);
        format!("{}{source} [{}]{tried}", self.mechanism, self.certainty().word())
    }

    /// What tells its build apart from others.
    fn build(&self) -> String {
        let id = self.image_id.filter(|_| self.is_one_of_builds);
        id.map(|id| format!(", build {}", brief_id(&id))).unwrap_or_default()
    }

    /// What takes the time, in words.
    fn subject(&self) -> String {
        let place = match (&self.source, self.address) {
            (Some(source), _) => {
                let file = source.file.rsplit('/').next().unwrap_or(&source.file);
                format!(" at {file}:{}", source.line)
            }
            (None, Some(address)) if self.procedure.is_some() => format!(" at {address:#x}"),
            _ => String::new(),
        };
        match (&self.procedure, &self.image) {
            (Some(procedure), Some(image)) => {
                format!("{} ({image}{}){place}", fit(procedure, NAME_MAX), self.build())
            }
            (None, Some(image)) => format!("{image}{}", self.build()),
            _ => "the whole selection".to_owned(),
        }
    }
}

/// Characters of a procedure's name in the text.
const NAME_MAX: usize = 60;

/// Part of a finding's share from which on an upper limit of the gain says nothing.
const OPEN: f64 = 0.99;
/// A share below this is shown as 0.0 %.
const TOLD: f64 = 0.0005;

/// A share as a percentage of two digits.
fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    match percent {
        9.5.. => format!("{percent:.0} %"),
        _ => format!("{percent:.1} %"),
    }
}

impl WhyReport {
    /// How to compare two builds of one image, where findings are of several.
    fn builds(&self, out: &mut dyn Write) -> io::Result<()> {
        let of_builds = || self.findings.iter().filter(|found| found.is_one_of_builds);
        let Some(first) = of_builds().next() else { return Ok(()) };
        let is_it = |found: &&WhyFinding| found.image == first.image;
        let ids: BTreeSet<ImageId> =
            of_builds().filter(is_it).filter_map(|found| found.image_id).collect();
        let name = first.image.as_deref().unwrap_or_default();
        let says = two_builds(name, (&self.seen, &self.selection), |id| ids.contains(id));
        // A command that is broken into lines is none.
        says.map_or(Ok(()), |says| writeln!(out, "{says}"))
    }
}

impl Report for WhyReport {
    const NAME: &'static str = "why";
    type Fields<'a> = &'a Self;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        let samples = counted(self.samples, "sample");
        if style.verbose {
            selection(&self.selection, style, out)?;
            machine(style, out, &self.machine)?;
            head(style, out, "time", &samples)?;
        } else {
            let subject = format!("{samples} of time");
            brief(&subject, &self.selection, &ScopeChoice::default(), style, out)?;
        }
        for finding in &self.findings {
            writeln!(out)?;
            let share = percent(finding.share.value);
            let word = finding.certainty().word();
            let subject = finding.subject();
            line(style, out, 4, &format!("{share} of the time: {subject}  [{word}]"))?;
            line(style, out, 6, &format!("    {}", finding.mechanism))?;
            for evidence in &finding.evidence {
                line(style, out, 6, &format!("    {}", evidence.text))?;
            }
            if let Some(gain) = finding.to_gain() {
                line(style, out, 6, &format!("    to gain: {gain}"))?;
            }
            for advice in finding.advice() {
                line(style, out, 6, &format!("    try: {advice}"))?;
            }
            let others = finding.alternatives.iter().map(|other| other.mechanism.to_string());
            let others: Vec<String> = others.collect();
            if !others.is_empty() {
                line(style, out, 6, &format!("    other explanations: {}", others.join("; ")))?;
            }
        }
        for WhyExperiment { name, what, says, .. } in &self.experiments {
            writeln!(out)?;
            line(style, out, 4, &format!("tried {name}: {says}"))?;
            line(style, out, 6, &format!("    {what}"))?;
        }
        writeln!(out)?;
        let Share { value, .. } = self.unexplained;
        note(style, out, &format!("not explained: {} of the time", percent(value)))?;
        if self.omitted > 0 {
            let more = counted(self.omitted as u64, "more finding");
            note(style, out, &format!("{more} (-n 0 shows all)"))?;
        }
        self.builds(out)?;
        problem_lines(text::told(&self.problems, style))
            .iter()
            .try_for_each(|line| note(style, out, line))
    }

    fn json(&self) -> &Self {
        self
    }

    fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

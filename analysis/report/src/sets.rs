//! The common part of reports that compare sets of samples, and `dcpi stats`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use image::ImageId;
use profiledb::{EpochId, Stretch};

use super::epochs::EventTotal;
use super::fields::{Fraction, Shown};
use super::json::{OmittedRows, Only, ProblemEntry, by_name, joined, problems};
use super::quantity::{counted, moment, percent, period, plain, thousands};
use super::table::{Cell, Colour, Table};
use super::text::{detail, head, note, problem_lines, some_of};
use super::{Report, Style, Suffixes};
use compare::{Comparison, LeftOut, Set, Subject};
use query::load::sum;
use query::problem::Problem;
use stats::Confidence;
use stats::significance::{Measure, Typical};

/// Most sets with a line of their own in the head.
const SETS_SHOWN: usize = 12;
/// Most rows of a text report without `-n`.
const TEXT_ROWS: usize = 40;
/// Most names in a line.
const NAMED: usize = 5;

/// Sets of samples that were compared.
#[derive(Debug)]
pub struct SetsReport {
    /// The sets.
    pub sets: Vec<Set>,
    /// Occurrences of the event that one sample of the numbers stands for.
    pub weight: f64,
    /// Whether shares or samples were compared.
    pub measure: Measure,
    /// Variation of rows where nothing changed.
    pub typical: Typical,
    /// The confidence of intervals, and of all marks together.
    pub confidence: Confidence,
    /// Whether a row is an image.
    pub by_image: bool,
    /// Whether shares are of the samples of chosen images only.
    pub restricted: bool,
    /// Most rows that are shown.
    pub most: usize,
    /// Rows that had too few samples.
    pub folded: Folded,
    /// Images of several builds.
    pub rebuilt: BTreeSet<String>,
    /// Epochs with too few samples to be compared.
    pub left_out: Vec<LeftOut>,
    /// Missing or doubtful data: the notes of the report.
    pub problems: Vec<Problem>,
}

crate::fields! {
    /// Rows that had too few samples.
    #[derive(Clone, Debug, Default)]
    pub struct Folded {
        /// rows with too few samples
        pub rows: usize;
        /// samples in these rows, by set
        pub samples: Vec<u64>, "samples";
        /// number of samples that a row needs
        pub min_samples: u64, "samples";
    }
}

/// `dcpi stats`.
#[derive(Debug)]
pub struct StatsReport {
    /// The sets.
    pub sets: SetsReport,
    /// The rows, those that vary most first.
    pub rows: Vec<StatsRow>,
}

crate::fields! {
    /// A procedure or image over several sets.
    #[derive(Clone, Debug)]
    pub struct StatsRow {
        /// the procedure or image
        pub subject (flat): Subject as SubjectJson<'_>;
        /// ids of all builds
        pub image_ids: BTreeSet<ImageId>;
        /// largest value minus the smallest, divided by the sum
        pub range: f64 as Fraction => "range";
        /// sum over the sets
        pub sum: f64 as Fraction, "`measure`" => "sum";
        /// share of the sum over all rows
        pub share: f64 as Fraction, "share" => "share";
        /// number of sets
        pub n: usize => "n";
        /// mean over the sets
        pub mean: f64 as Fraction, "`measure`" => "mean";
        /// standard deviation of a sample (N - 1)
        pub stddev: f64 as Fraction, "`measure`" => "stddev";
        /// standard deviation that sampling alone would cause
        pub stddev_by_sampling: f64 as Fraction, "`measure`" => "stddev_by_sampling";
        /// smallest value
        pub min: f64 as Fraction, "`measure`" => "min";
        /// largest value
        pub max: f64 as Fraction, "`measure`" => "max";
        /// value of each set
        pub values: Vec<f64> as Vec<Fraction>, "`measure`";
        /// samples in all sets
        pub samples: u64, "samples";
        /// probability of at least this variation if nothing differs
        pub p: f64 as Fraction => "p";
        /// that probability, corrected for the number of rows (Holm)
        pub p_corrected: f64 as Fraction => "p_corrected";
        /// true: the row is marked
        pub significant: bool => "significant";
    }
}

impl SetsReport {
    /// The common part of a report on this table.
    pub fn of(
        table: compare::Table,
        measure: Measure,
        typical: Typical,
        folded: Folded,
        (args, is_text): (&Comparison, bool),
    ) -> Self {
        let most = match args.rows {
            Some(0) => usize::MAX,
            Some(n) => n,
            None if is_text => TEXT_ROWS,
            None => usize::MAX,
        };
        Self {
            weight: table.weight(),
            measure,
            typical,
            confidence: args.confidence,
            by_image: args.by_image,
            restricted: !args.source.images.is_empty(),
            most,
            folded,
            sets: table.sets,
            rebuilt: table.rebuilt,
            left_out: table.left_out,
            problems: table.problems,
        }
    }

    /// Whether the event is counted exactly: nothing is due to chance then.
    pub(super) fn is_exact(&self) -> bool {
        compare::is_exact(&self.sets)
    }

    /// The noun for the counted things.
    pub(super) fn noun(&self) -> &'static str {
        let first = self.sets.iter().flat_map(|set| &set.parts).next();
        first.map_or("sample", |part| part.event.noun())
    }

    /// The head without `-v`: the event, and the names of the sets.
    fn brief(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        let first = self.sets.iter().flat_map(|set| &set.parts).next();
        let event = first.map_or("", |part| &part.event.name);
        let names: Vec<&str> = self.sets.iter().map(|set| set.name.as_str()).collect();
        for (word, says) in [("event", event), ("sets", &some_of(&names))] {
            head(style, out, word, says)?;
        }
        Ok(())
    }

    pub(super) fn text_head(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        let databases: BTreeSet<&str> =
            self.sets.iter().flat_map(|set| &set.dbs).map(String::as_str).collect();
        if let ([db], 1) = (Vec::from_iter(databases.iter().copied()).as_slice(), databases.len()) {
            detail(style, out, "database", db)?;
        }
        for (at, set) in self.sets.iter().enumerate().take(SETS_SHOWN) {
            let samples = sum(set.parts.iter().map(|part| part.counted.samples));
            let mut says = format!("{}: {}", set.name, counted(samples, self.noun()));
            match set.parts.as_slice() {
                parts if let Some(time) = set.time() => says.push_str(&in_time(time, parts.len())),
                [part] if part.epoch.epoch.as_str() == set.name => {}
                [part] => says.push_str(&format!(" of {}", part.epoch.epoch)),
                parts => {
                    let what = if set.is_of_recordings() { "run" } else { "epoch" };
                    says.push_str(&format!(" of {}", counted(parts.len() as u64, what)));
                }
            }
            if set.whose.label.as_ref().is_some_and(|label| !set.name.contains(label.as_str())) {
                says.push_str(&format!(", {}", set.whose.shown()));
            }
            // A set of several databases has their names in its own.
            if let ([db], true) = (set.dbs.as_slice(), databases.len() > 1) {
                says.push_str(&format!(", {db}"));
            }
            head(style, out, &format!("set {}", at + 1), &says)?;
        }
        if self.sets.len() > SETS_SHOWN {
            head(style, out, "", &format!("and {} more", self.sets.len() - SETS_SHOWN))?;
        }
        let first = self.sets.iter().flat_map(|set| &set.parts).next();
        let (name, unit) = first.map_or(("", ""), |part| (&part.event.name, &part.event.unit));
        let each = period(self.weight.round() as u64, unit);
        let nouns = format!("{}s", self.noun());
        let what = match self.measure {
            Measure::Share if self.restricted => {
                format!("shares of the {nouns} of the chosen images")
            }
            Measure::Share => format!("shares of the {nouns} counted"),
            Measure::Amount if self.is_exact() => format!("{nouns}, counted exactly"),
            Measure::Amount if self.sets.iter().all(|set| set.weighs(self.weight)) => {
                format!("samples, one every {each}")
            }
            Measure::Amount => format!("samples, scaled to one every {each}"),
            Measure::Rate if self.is_exact() => format!("{nouns} a second, counted exactly"),
            Measure::Rate => format!("samples a second of one host, one every {each} per CPU"),
        };
        head(style, out, "event", &format!("{name}: {what}"))?;
        if self.is_exact() {
            return Ok(());
        }
        let sure = plain(self.confidence.percent());
        head(
            style,
            out,
            "marks",
            &format!(
                "* where the sets differ by more than chance, at {sure} % confidence for all marks together"
            ),
        )
    }

    /// The notes below the table of `rows`, of which `marked` have a mark.
    pub(super) fn notes(&self, rows: usize, marked: usize, verbose: bool) -> Vec<String> {
        let what = if self.by_image { "image" } else { "procedure" };
        let more = |number: u64| counted(number, &format!("more {what}"));
        let mut notes = Vec::new();
        let left = rows.saturating_sub(self.most);
        if left > 0 {
            notes.push(format!("{} (-n 0 shows all)", more(left as u64)));
        }
        let marks = match self.is_exact() {
            true => "changed",
            false => "marked (*: by more than chance)",
        };
        let mut fate = format!("{marked} of {} {marks}", counted(rows as u64, what));
        if self.folded.rows > 0 {
            let samples = counted(sum(self.folded.samples.iter().copied()), self.noun());
            let folded = thousands(self.folded.rows as u64);
            fate.push_str(&format!(
                "; {folded} more, with fewer than {}, left out: {samples}",
                counted(self.folded.min_samples, self.noun())
            ));
        }
        notes.push(fate);
        notes.extend(self.left_out_note());
        if self.typical != Typical::default() {
            let (times, by) = (self.typical.factor.sqrt(), percent(self.typical.cv2.sqrt()));
            // Of a factor that is written as 1.0, only what grows with the rows is left.
            let spread = match times < 1.05 {
                true => String::new(),
                false => format!("{times:.1} times the standard deviation of sampling, and "),
            };
            notes.push(format!(
                "rows differ between measurements without a change of the program: typically by {spread}{by} % of a row's size; a * means more than that"
            ));
        }
        if !self.rebuilt.is_empty() {
            let names: Vec<&str> = self.rebuilt.iter().take(NAMED).map(String::as_str).collect();
            let more = self.rebuilt.len().saturating_sub(NAMED);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            notes.push(format!(
                "different builds of an image, compared as one image: {}{more}",
                names.join(", ")
            ));
        }
        // Images without names are rows that say so.
        let about_images = self.problems.iter().filter(|problem| problem.image().is_some()).count();
        notes.extend(problem_lines(
            self.problems.iter().filter(|problem| problem.image().is_none()),
        ));
        if verbose {
            let of_images = self.problems.iter().filter(|problem| problem.image().is_some());
            notes.extend(of_images.map(ToString::to_string));
        } else if about_images > 0 {
            let images = counted(about_images as u64, "note");
            notes.push(format!(
                "{images} on images whose procedures are not known or not from their files: -v"
            ));
        }
        notes
    }

    /// The note on epochs that are left out.
    fn left_out_note(&self) -> Option<String> {
        let samples = self.left_out.iter().map(|epoch| epoch.counted).max()?;
        let few = match samples {
            0 => "without samples".to_owned(),
            _ => format!("with fewer than {} samples", compare::EACH_MIN_SAMPLES),
        };
        let what = if self.left_out.len() == 1 { "epoch" } else { "epochs" };
        let names: Vec<&str> =
            self.left_out.iter().take(NAMED).map(|epoch| epoch.epoch.as_str()).collect();
        let more = self.left_out.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        Some(format!("left out: {} {what} {few}: {}{more}", self.left_out.len(), names.join(", ")))
    }

    /// Adds the rows' names to their numbers, and writes all.
    pub(super) fn write(
        &self,
        mut table: Table,
        rows: Vec<(Vec<String>, Option<Colour>, &Subject)>,
        style: &Style,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        if !self.by_image {
            table.procedures("procedure");
        }
        if rows.iter().any(|(.., subject)| subject.path.is_some()) {
            table.paths("image");
        } else {
            table.names("image");
        }
        fn names(subject: &Subject) -> (&str, &str) {
            let image = subject.path.as_ref().or(subject.image.as_ref());
            (image.map_or("", String::as_str), subject.procedure.as_deref().unwrap_or_default())
        }
        let suffixes = Suffixes::of(rows.iter().map(|(.., subject)| names(subject)));
        for (cells, colour, subject) in rows {
            let (image, procedure) = names(subject);
            let procedure = Cell::name(suffixes.shown(image, procedure, style.full_names));
            let mut cells: Vec<Cell> = cells.into_iter().map(Cell::from).collect();
            if self.by_image && subject.image.is_none() {
                cells.push(procedure);
            } else {
                cells.extend((!self.by_image).then_some(procedure));
                cells.push(Cell::name(image));
            }
            table.coloured(cells, colour);
        }
        table.write(style, out)
    }

    pub(super) fn json(&self) -> SetsJson<'_> {
        let parts = || self.sets.iter().flat_map(|set| &set.parts);
        let mut epochs: Vec<&EpochId> = parts().map(|part| &part.epoch.epoch).collect();
        epochs.sort();
        epochs.dedup();
        let hosts: BTreeSet<&str> = parts().map(|part| part.epoch.host.as_str()).collect();
        let event = parts().next().map(|part| EventTotal {
            name: &part.event.name,
            period: part.event.period,
            unit: &part.event.unit,
            total: sum(parts().map(|part| part.event.total())),
        });
        SetsJson {
            db: self.sets.iter().flat_map(|set| &set.dbs).next().map_or("", |db| db),
            epochs,
            hosts: hosts.into_iter().collect(),
            events: event.into_iter().collect(),
            sets: &self.sets,
            measure: match self.measure {
                Measure::Share => "share",
                Measure::Amount => "samples",
                Measure::Rate => "samples_per_s",
            },
            sample: self.weight,
            confidence: self.confidence,
            typical_spread: TypicalJson { factor: self.typical.factor, cv2: self.typical.cv2 },
            folded: &self.folded,
            rebuilt: &self.rebuilt,
            left_out: &self.left_out,
            problems: problems(&self.problems),
        }
    }
}

crate::fields! {
    /// Sets that are compared.
    #[derive(Debug)]
    pub struct SetsJson<'a> {
        db: &'a str;
        epochs: Vec<&'a EpochId>;
        hosts: Vec<&'a str>;
        events: Vec<EventTotal<'a>>;
        sets: &'a Vec<Set> as Vec<SetJson<'_>>;
        /// `samples`, `samples_per_s` or `share`
        measure: &'static str;
        /// number of the event's units that one sample in the rows stands for
        sample: f64 as Fraction, "event's unit";
        confidence: Confidence;
        typical_spread: TypicalJson;
        folded: &'a Folded;
        /// images of different builds that are taken for the same
        rebuilt: &'a BTreeSet<String>;
        left_out: &'a Vec<LeftOut> as Vec<LeftOutJson<'_>>;
        problems: Vec<ProblemEntry<'a>>;
    }

    /// An epoch that is not compared, with the samples that shares would be of.
    #[derive(Debug)]
    pub struct LeftOutJson<'a> {
        /// host of an epoch that has too few samples to be compared
        host: &'a str;
        /// the epoch
        epoch: &'a EpochId;
        /// samples of that epoch
        counted: u64, "samples";
    }

    /// A set.
    #[derive(Debug)]
    pub struct SetJson<'a> {
        /// as typed; with `--each` the epoch's label or name
        name: &'a str;
        /// its database, the first of several
        db: &'a str;
        /// all of its databases
        dbs: &'a Vec<String>;
        /// its epochs
        epochs: Vec<&'a EpochId>;
        /// the host of each
        hosts: Vec<&'a str>;
        only (maybe): Only;
        /// samples of the set, taken and not lost
        total: u64, "samples";
        /// samples that shares are computed from
        counted: u64, "samples";
        /// samples of unknown code
        unresolved: BTreeMap<&'a str, u64>, "samples";
        /// samples in no profile, of the whole machine
        lost: BTreeMap<&'a str, u64>, "samples";
    }

    /// Variation of rows where nothing changed.
    #[derive(Debug)]
    pub struct TypicalJson {
        /// variance of rows where nothing changed, divided by the variance of sampling
        factor: f64 as Fraction;
        /// square of the coefficient of variation of large rows
        cv2: f64 as Fraction;
    }

    /// The keys that name a row.
    #[derive(Debug)]
    pub struct SubjectJson<'a> {
        /// name; absent in a table of images
        procedure (maybe): Option<&'a str> => "procedure";
        /// name; `null`: unknown code
        image: Option<&'a str> => "image";
        /// where a set has several files of that name
        path (maybe): Option<&'a str> => "path";
    }

    /// Numbers of a row are what `measure` says: samples, samples a second, or shares of each set's
    /// `counted`.
    #[derive(Debug)]
    pub struct StatsJson<'a> {
        sets (flat): SetsJson<'a>;
        rows (rows): &'a [StatsRow];
        omitted: OmittedRows;
    }
}

/// The time that a set is of, and its parts.
fn in_time(Stretch { since_unix_s, until_unix_s }: Stretch, parts: usize) -> String {
    let (since, until) = (moment(since_unix_s), moment(until_unix_s));
    match parts {
        1 => format!(", {since} to {until} UTC"),
        parts => format!(", {since} to {until} UTC in {parts} parts"),
    }
}

/// A number of samples a second.
pub(super) fn rate(value: f64) -> String {
    match value {
        small if small < 99.95 => format!("{small:.1}"),
        large => thousands(large.round() as u64),
    }
}

impl<'a> Shown<&'a LeftOut> for LeftOutJson<'a> {
    fn shown(of: &'a LeftOut) -> Self {
        Self { host: &of.host, epoch: &of.epoch, counted: of.counted }
    }
}

impl<'a> Shown<&'a Set> for SetJson<'a> {
    fn shown(set: &'a Set) -> Self {
        Self {
            name: &set.name,
            db: set.dbs.first().map_or("", |db| db),
            dbs: &set.dbs,
            epochs: set.parts.iter().map(|part| &part.epoch.epoch).collect(),
            hosts: set.parts.iter().map(|part| part.epoch.host.as_str()).collect(),
            only: Only::shown(&set.whose),
            total: sum(set.parts.iter().map(|part| part.event.total())),
            counted: sum(set.parts.iter().map(|part| part.counted.samples)),
            unresolved: joined(set.parts.iter().map(|part| part.event.unresolved_samples())),
            lost: joined(set.parts.iter().map(|part| by_name(&part.event.ledger.lost))),
        }
    }
}

impl<'a> Shown<&'a Subject> for SubjectJson<'a> {
    fn shown(of: &'a Subject) -> Self {
        Self {
            procedure: of.procedure.as_deref(),
            image: of.image.as_deref(),
            path: of.path.as_deref(),
        }
    }
}

impl StatsReport {
    fn shown(&self) -> &[StatsRow] {
        self.rows.get(..self.sets.most).unwrap_or(&self.rows)
    }
}

impl Report for StatsReport {
    const NAME: &'static str = "stats";
    type Fields<'a> = StatsJson<'a>;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        match style.verbose {
            true => self.sets.text_head(style, out)?,
            false => self.sets.brief(style, out)?,
        }
        writeln!(out)?;
        let mut table = Table::default();
        let is_exact = self.sets.is_exact();
        let titles = ["range %", "sum", "sum %", "N", "mean", "std-dev", "by chance", "min", "max"];
        for title in titles.into_iter().filter(|title| !is_exact || *title != "by chance") {
            table.number(title, "");
            if ["sum %", "N", "min", "max"].contains(&title) {
                table.spared();
            }
        }
        if !is_exact {
            table.words("");
        }
        let number = |value: f64| match self.sets.measure {
            Measure::Share => percent(value),
            Measure::Amount => thousands(value.round() as u64),
            Measure::Rate => rate(value),
        };
        let row = |row: &StatsRow| {
            let mut cells =
                vec![percent(row.range), number(row.sum), percent(row.share), row.n.to_string()];
            cells.extend([row.mean, row.stddev].map(number));
            cells.extend((!is_exact).then(|| number(row.stddev_by_sampling)));
            cells.extend([row.min, row.max].map(number));
            cells.extend((!is_exact).then(|| if row.significant { "*" } else { "" }.to_owned()));
            cells
        };
        let rows = self.shown().iter().map(|shown| (row(shown), None, &shown.subject)).collect();
        self.sets.write(table, rows, style, out)?;
        writeln!(out)?;
        let marked = self.rows.iter().filter(|row| row.significant).count();
        self.sets
            .notes(self.rows.len(), marked, style.verbose)
            .iter()
            .try_for_each(|line| note(style, out, line))
    }

    fn json(&self) -> StatsJson<'_> {
        let omitted = OmittedRows { rows: self.rows.len() - self.shown().len() };
        StatsJson { sets: self.sets.json(), rows: self.shown(), omitted }
    }

    fn problems(&self) -> &[Problem] {
        &self.sets.problems
    }
}

//! Reports as plain data, and their three forms: text, JSON and CSV. This crate reads no database
//! and computes no share.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io::{self, Write};

use image::{ImageId, ImageKind};
use model::Language;
use profiledb::{Covered, EpochId, EpochMeta, Stretch};

use code::skid::Skid;
use fields::Fields;
use names::shorten::{Suffixes, fit as fit_procedure};
use query::load::EventSamples;
use query::problem::Problem;
use query::scope::{Dimension, Part, ScopeChoice};
use stats::tally::Tally;
use stats::{Confidence, Occurrences, Share};

mod builds;
mod calc;
mod correction;
mod costs;
mod count;
mod coverage;
mod csv;
mod diff;
mod doctor;
mod epochs;
mod escape;
pub mod fields;
mod fields_page;
pub mod flame;
pub mod flow;
mod heads;
mod hottest;
mod images;
mod json;
mod landed;
mod listing;
mod listing_text;
mod loops;
mod lost;
mod machine;
mod neighbours;
mod out_edges;
mod perturb;
mod quantity;
mod schema;
mod sets;
mod stacks;
mod stalls;
mod table;
mod text;
mod time;
mod timeline;
mod top;
mod topcounts;
mod topstalls;
mod totals;
mod trace;
pub mod trace_events;
mod tree;
mod truth;
mod whatcg;
mod why;

pub use builds::brief_id;
pub use calc::{BlockRow, CalcReport, EdgeRow, Found, InstructionCost, Model, Runs};
pub use correction::{
    CorrectedTime, CorrectionReport, CorrectionRow, CostRow, InSituCosts, InSituSays, Unbounded,
};
pub use costs::Costs;
pub use count::{CountReport, CountRow};
pub use csv::record;
pub use diff::{DiffReport, DiffRow};
pub use doctor::{DoctorCheck, DoctorReport};
pub use escape::{Spelt, escape};
pub use fields_page::page_of_fields;
pub use images::{ImageRow, ImagesReport};
pub use json::OmittedRows;
pub use landed::LANDED;
pub use listing::{ListReport, View};
pub use loops::{LoopRow, RoundNs};
pub use lost::{LostBlock, LostReport, LostRow};
pub use machine::MachineReport;
pub use neighbours::{
    CalleesReport, CallersReport, Inclusive, NeighbourRow, Neighbours, NeighboursReport,
};
pub use perturb::{FalseAlarms, Group, MetricRow, Moved, PerturbReport, Relation, Slowdown};
pub use quantity::{bytes, counted, percent, thousands};
pub use schema::Schema;
pub use sets::{Folded, SetsReport, StatsReport, StatsRow};
pub use stacks::{Callee, OfStacks, StackEvent, lent_callers};
pub use table::Style;
pub use time::{Clock, FunctionTime, RunRow, TimeReport, Timed, Times};
pub use timeline::{TimelineReport, TimelineRow};
pub use top::{TopReport, TopRow};
pub use topcounts::{FewSamples, InstructionRow, Sort, TopcountsReport};
pub use topstalls::{StallRow, TopstallsReport};
pub use totals::Totals;
pub use trace::{ShownRows, TraceLost, TraceReport, TraceRow, TraceSampled, TraceThread};
pub use tree::{OmittedCalls, TreeReport, TreeRow, TreeThread};
pub use truth::{TruthReport, TruthRow};
pub use whatcg::WhatcgReport;
pub use why::{
    WhyAlternative, WhyBuildBefore, WhyEvidence, WhyExperiment, WhyFinding, WhyReport, WhySource,
};

/// A report that can be written.
pub trait Report {
    /// The report's command, which names the schema of its JSON: `dcpi.NAME`.
    const NAME: &'static str;
    /// The schema's version: one more whenever a field goes away or changes its meaning. New fields
    /// do not change it.
    const VERSION: u32 = 1;

    /// The fields of its JSON and CSV.
    type Fields<'a>: Fields
    where
        Self: 'a;

    /// Writes the report as text.
    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()>;

    /// The report as JSON.
    fn json(&self) -> Self::Fields<'_>;

    /// Writes the report as CSV (RFC 4180): a line of titles, and rows.
    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        fields::write(self, out)
    }

    /// The titles of CSV, where these are not all in the order of the fields.
    fn columns(&self) -> Option<Vec<&'static str>> {
        None
    }

    /// The list whose elements are the rows of CSV, where there are several.
    fn list_of_rows(&self) -> &'static str {
        ""
    }

    /// The names that stand for `EVENT` or `WHAT` in titles of CSV, in order.
    fn keys(&self, _word: &str) -> Vec<String> {
        Vec::new()
    }

    /// A title of CSV as it is shown, where a name stands in the place of `A` or `B`.
    fn title(&self, title: &'static str) -> String {
        title.to_owned()
    }

    /// Missing or doubtful data: the notes of the report.
    fn problems(&self) -> &[Problem] {
        &[]
    }
}

/// Database, epochs and hosts that were read.
#[derive(Clone, Debug)]
pub struct Selection {
    /// The database's directory, as typed.
    pub db: String,
    /// The descriptions of the epochs, by host and time.
    pub epochs: Vec<EpochMeta>,
}

impl Selection {
    /// The hosts, each once.
    pub fn hosts(&self) -> Vec<&str> {
        let mut hosts: Vec<&str> = self.epochs.iter().map(|epoch| epoch.host.as_str()).collect();
        hosts.dedup();
        hosts
    }

    /// The stretch of time that was read, where only a part was asked for.
    pub fn covered(&self) -> Option<Covered> {
        let each = || self.epochs.iter().filter_map(|epoch| epoch.covered);
        let since_unix_s = each().map(|covered| covered.stretch.since_unix_s).min()?;
        let until_unix_s = each().map(|covered| covered.stretch.until_unix_s).max()?;
        let slice_s = each().map(|covered| covered.slice_s).max()?;
        Some(Covered { stretch: Stretch { since_unix_s, until_unix_s }, slice_s })
    }

    /// The names of the epochs, each once, in order of time.
    pub fn epoch_ids(&self) -> Vec<&EpochId> {
        let mut ids: Vec<&EpochId> = self.epochs.iter().map(|epoch| &epoch.epoch).collect();
        ids.sort();
        ids.dedup();
        ids
    }
}

/// An event of a profile.
#[derive(Clone, Debug)]
pub struct EventColumn {
    /// The event.
    pub event: EventSamples,
    /// Samples of the idle loop.
    pub idle: u64,
    /// The samples that shares are of.
    pub counted: Tally,
    /// Occurrences of the event in all; None if it never had a counter.
    pub occurrences: Option<Occurrences>,
    /// Samples of unknown code among these, by reason, with their share.
    pub unresolved: Vec<(String, Tally, Share)>,
}

/// Factor between periods from which on numbers of samples mislead.
const UNEVEN: f64 = 1.2;

impl EventColumn {
    /// Whether samples stand for times so different that their numbers say less than the times do.
    pub fn is_uneven(&self) -> bool {
        let weights = || self.event.weights.iter().filter(|(taken, _)| *taken > 0);
        let weights = || weights().filter_map(|(_, weight)| *weight);
        let least = weights().fold(f64::INFINITY, f64::min);
        weights().fold(0.0, f64::max) > UNEVEN * least
    }

    /// What a reader of numbers of samples must know where their period changed.
    fn one_period(&self) -> Option<String> {
        let (weight, unit) = (self.event.weight, &self.event.unit);
        let is_told = self.is_uneven() && !self.event.is_exact();
        is_told.then(|| {
            let each = match unit.as_str() {
                "ns" => format!("{:.2} ms", weight / 1e6),
                unit => format!("{:.0} {unit}", weight),
            };
            format!("note: the sampling period changed: samples are counted as if of {each} each")
        })
    }

    /// The counted samples as a number of samples of equal weight, [`EventSamples::weight`].
    pub fn equal(&self) -> u64 {
        self.event.equal(self.counted)
    }

    /// The time that samples stand for, in seconds; None of an event that counts no time.
    pub fn seconds(&self, of: Tally) -> Option<f64> {
        let is_time = self.event.unit == "ns" && !self.event.is_exact();
        is_time.then(|| of.occurrences / timeline::SECOND_NS)
    }
}

/// The subject of a row of `dcpi prof`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// A procedure.
    Procedure,
    /// A function: a procedure, or what is inlined into it.
    Function,
    /// A source line.
    Line,
    /// An image.
    Image,
    /// Labels, units, processes, commands or threads: a value of each dimension.
    Scope(&'static [Dimension]),
}

/// `dcpi prof`.
#[derive(Debug)]
pub struct ProfReport {
    /// Database, epochs and hosts that were read.
    pub selection: Selection,
    /// The events, in order of columns.
    pub events: Vec<EventColumn>,
    /// The event that rows are sorted by, as index of `events`.
    pub sort: usize,
    /// The confidence of all intervals.
    pub confidence: Confidence,
    /// The subject of a row.
    pub by: By,
    /// Whether rows count call stacks in the place of samples.
    pub of_stacks: bool,
    /// Whether rows have the time of procedures with all that they called, and are sorted by it.
    pub with_calls: bool,
    /// Label, unit or process whose samples these are; all, if none is chosen.
    pub whose: ScopeChoice,
    /// Whether shares are of the samples of chosen images only.
    pub restricted: bool,
    /// The event whose samples are moved back by their skid to the lines that took the time.
    pub skid: Option<(String, Skid)>,
    /// Whether rows and shares include the idle loop.
    pub with_idle: bool,
    /// The rows, those with the most samples of the sort event first.
    pub rows: Vec<Row>,
    /// When images were seen, which tells the older of two builds.
    pub seen: Seen,
    /// Rows that are not shown: all have fewer samples of the sort event.
    pub omitted: Omitted,
    /// Missing or doubtful data: the notes of the report.
    pub problems: Vec<Problem>,
}

/// When images of files had samples.
pub type Seen = BTreeMap<ImageId, query::seen::Seen>;

/// Rows that are not shown.
#[derive(Clone, Debug, Default)]
pub struct Omitted {
    /// Number of rows.
    pub rows: usize,
    /// Their samples by event.
    pub counts: Vec<Tally>,
    /// Their share of the sort event's samples: `0..=1`.
    pub share: f64,
}

/// A procedure, line or image, or parts of a scope, with its samples.
#[derive(Clone, Debug)]
pub struct Row {
    /// The procedure.
    pub procedure: Option<ProcedureName>,
    /// The source line, where rows are lines and it is known.
    pub line: Option<LineName>,
    /// The image of a procedure or row.
    pub image: Option<ImageName>,
    /// The language of a function, or of a source file, that an interpreter ran: the samples are a
    /// part of the interpreter's.
    pub language: Option<Language>,
    /// Label, unit, command, process or thread: one of each dimension of [`By::Scope`].
    pub parts: Vec<Part>,
    /// Samples by event.
    pub counts: Vec<Tally>,
    /// Share of [`EventColumn::counted`], by event.
    pub shares: Vec<Share>,
    /// Share of [`EventColumn::counted`] that a procedure has with all that it called, by event;
    /// None of an event without stacks. Empty unless it was asked for.
    pub inclusive: Vec<Option<Share>>,
    /// Share of this and all rows above, of the sort event: `0..=1`.
    pub cumulative: f64,
    /// Of a text: procedures that only lead to this one and have no row of their own, the outermost
    /// first.
    pub above: Vec<String>,
}

/// The name of a procedure, or of samples that have none.
#[derive(Clone, Debug)]
pub struct ProcedureName {
    /// Its name, or in brackets why there is none.
    pub name: String,
    /// Its first byte: in a file its address as `nm` shows it, else its offset in the image.
    pub address: Option<u64>,
    /// Another procedure of the image has the same name.
    pub ambiguous: bool,
    /// Another procedure of the image has the same name except for what compilers appended to it.
    pub needs_suffix: bool,
    /// Whether it is a function that is inlined into procedures, and has no code of its own there.
    pub inlined: bool,
}

/// A source line.
#[derive(Clone, Debug)]
pub struct LineName {
    /// Its file, as named in the debug information.
    pub file: String,
    /// Its number, from 1; none for code of no line in particular.
    pub line: Option<u32>,
}

/// An image.
#[derive(Clone, Debug)]
pub struct ImageName {
    /// Its id.
    pub id: ImageId,
    /// The kind of the image.
    pub kind: ImageKind,
    /// Its name.
    pub name: String,
    /// Its path, escaped as in the database; empty if it has none.
    pub path: String,
    /// Another image has the same name.
    pub ambiguous: bool,
}

/// `dcpi epochs`.
#[derive(Debug)]
pub struct EpochsReport {
    /// Database, epochs and hosts that were read.
    pub selection: Selection,
    /// The epochs, in the order of the selection.
    pub rows: Vec<EpochRow>,
    /// The code stores of hosts that have one.
    pub code_stores: Vec<CodeStoreRow>,
    /// Missing or doubtful data: the notes of the report.
    pub problems: Vec<Problem>,
}

fields! {
    /// The code store of a host, which all its epochs share.
    #[derive(Clone, Debug)]
    pub struct CodeStoreRow {
        /// the host whose epochs share this code
        pub host: String;
        /// number of images with kept code
        pub images: usize;
        /// bytes of the files of that code
        pub size_bytes: u64, "bytes";
    }
}

/// An epoch.
#[derive(Clone, Debug)]
pub struct EpochRow {
    /// The epoch's description.
    pub meta: EpochMeta,
    /// Number of later epochs of the host: 0 for the latest.
    pub back: usize,
    /// Labels of runs that have samples of their own, in order.
    pub run_labels: Vec<String>,
    /// Number of images with samples; none if the epoch cannot be read.
    pub images: Option<usize>,
    /// Size of its files in bytes; none if the epoch cannot be read.
    pub size_bytes: Option<u64>,
}

/// Seconds an epoch has lasted, until its last merge if it is open.
pub fn duration_s(epoch: &EpochMeta) -> u64 {
    epoch.ended_unix_s.unwrap_or(epoch.updated_unix_s).saturating_sub(epoch.started_unix_s)
}

impl ProfReport {
    /// The reasons of unresolved samples, those with the most samples of the sort event first.
    pub fn unresolved_reasons(&self) -> Vec<&str> {
        let mut reasons: Vec<(f64, &str)> = Vec::new();
        for (at, column) in self.events.iter().enumerate() {
            for (reason, _, share) in &column.unresolved {
                let share = if at == self.sort { share.value } else { 0.0 };
                match reasons.iter_mut().find(|(_, known)| known == reason) {
                    Some((sum, _)) => *sum += share,
                    None => reasons.push((share, reason)),
                }
            }
        }
        reasons.sort_by(|(a, first), (b, second)| b.total_cmp(a).then(first.cmp(second)));
        reasons.into_iter().map(|(_, reason)| reason).collect()
    }
}

impl Report for ProfReport {
    const NAME: &'static str = "prof";
    type Fields<'a> = json::Prof<'a>;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        text::prof(self, style, out)
    }

    fn json(&self) -> Self::Fields<'_> {
        json::prof(self)
    }

    fn columns(&self) -> Option<Vec<&'static str>> {
        Some(json::prof_columns(self))
    }

    fn keys(&self, word: &str) -> Vec<String> {
        match word {
            "EVENT" => json::event_keys(&self.events),
            _ => self.whose.asked().into_iter().map(|(of, _)| of.name().to_owned()).collect(),
        }
    }

    fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl Report for EpochsReport {
    const NAME: &'static str = "epochs";
    type Fields<'a> = epochs::Epochs<'a>;

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        text::epochs(self, style, out)
    }

    fn json(&self) -> Self::Fields<'_> {
        epochs::epochs(self)
    }

    fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

//! What reports of call stacks have in common: the event's stacks, and the names of procedures.

use std::io;
use std::io::Write;

use serde::Serialize;

use super::json::rounded;
use super::quantity::{counted, nanoseconds, percent, plain, thousands};
use super::table::Table;
use super::text::{head, selection};
use super::{EventColumn, ImageName, Selection, Style};
use query::scope::ScopeChoice;
use stats::{Confidence, Share};

/// The stacks of an event.
#[derive(Clone, Debug)]
pub struct StackEvent {
    /// The event's name.
    pub name: String,
    /// The unit of its times.
    pub unit: String,
    /// Its time, of all stacks and of samples without stacks.
    pub total: f64,
    /// Number of its stacks.
    pub stacks: u64,
    /// Share of the stacks, by weight, that reach the first frame of their thread.
    pub whole: f64,
    /// Whether samples tell how long procedures took themselves, or else the weights of stacks.
    pub is_sampled: bool,
    /// Whether numbers of calls, all counted, stand in the place of stacks.
    pub is_counted: bool,
}

/// What a report of stacks is of.
#[derive(Clone, Debug)]
pub struct OfStacks {
    /// Database, epochs and hosts that were read.
    pub selection: Selection,
    /// The event.
    pub event: StackEvent,
    /// Label, unit or process whose stacks these are; all, if none is chosen.
    pub whose: ScopeChoice,
    /// The confidence of all intervals.
    pub confidence: Confidence,
}

/// A procedure, or what stands in the place of one.
#[derive(Clone, Debug)]
pub struct Callee {
    /// Its name, or words in brackets.
    pub name: String,
    /// Its first byte, as in [`super::ProcedureName`].
    pub address: Option<u64>,
    /// The image of a procedure.
    pub image: Option<ImageName>,
}

impl OfStacks {
    /// The first lines of a text.
    pub(super) fn head(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        selection(&self.selection, style, out)?;
        let StackEvent { name, unit, total, stacks, whole, is_sampled, is_counted } = &self.event;
        let total = amount(*total, unit);
        if *is_counted {
            let calls = counted(*stacks, "call");
            head(style, out, "event", &format!("{name}: {total}, {calls}, counted exactly"))?;
            let how = "the time of a procedure is divided among its callers by their calls";
            head(style, out, "", how)?;
            return self.only(style, out);
        }
        let (stacks, whole) = (counted(*stacks, "stack"), percent(*whole));
        head(style, out, "event", &format!("{name}: {total}, {stacks}, {whole} % of them whole"))?;
        if *is_sampled {
            let how = "samples tell how long a procedure took, and stacks who called it";
            head(style, out, "", how)?;
        }
        self.only(style, out)
    }

    fn only(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        if self.whose.is_all() {
            return Ok(());
        }
        let what = if self.event.is_counted { "executions" } else { "stacks" };
        head(style, out, "only", &format!("{what} {}", self.whose.shown()))
    }

    /// What shares are of, as a line of the head.
    pub(super) fn shares(&self, of: &str, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        if self.event.is_counted {
            return head(style, out, "shares", &format!("of {of}"));
        }
        let sure = plain(self.confidence.percent());
        head(style, out, "shares", &format!("of {of}; intervals of {sure} % confidence"))
    }

    pub(super) fn json(&self) -> HeadJson<'_> {
        let StackEvent { name, unit, total, stacks, whole, is_sampled, is_counted } = &self.event;
        HeadJson {
            db: &self.selection.db,
            epochs: self.selection.epoch_ids(),
            hosts: self.selection.hosts(),
            time: super::json::time(&self.selection),
            event: EventJson {
                name,
                unit,
                total: total.round() as u64,
                stacks: *stacks,
                whole: rounded(*whole),
                sampled: *is_sampled,
                counted: *is_counted,
            },
            confidence: self.confidence.percent(),
            only: self.whose.parts().iter().map(super::json::part).collect(),
        }
    }
}

#[derive(Serialize)]
pub(super) struct HeadJson<'a> {
    db: &'a str,
    epochs: Vec<&'a profiledb::EpochId>,
    hosts: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<super::json::Time>,
    event: EventJson<'a>,
    confidence: f64,
    #[serde(skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    only: std::collections::BTreeMap<&'static str, serde_json::Value>,
}

#[derive(Serialize)]
struct EventJson<'a> {
    name: &'a str,
    unit: &'a str,
    total: u64,
    stacks: u64,
    whole: f64,
    sampled: bool,
    counted: bool,
}

/// The keys of a procedure.
#[derive(Serialize)]
pub(super) struct CalleeJson<'a> {
    procedure: &'a str,
    image: Option<&'a str>,
    image_id: Option<String>,
    address: Option<String>,
}

impl Callee {
    pub(super) fn json(&self) -> CalleeJson<'_> {
        CalleeJson {
            procedure: &self.name,
            image: self.image.as_ref().map(|image| image.name.as_str()),
            image_id: self.image.as_ref().map(|image| image.id.to_string()),
            address: self.address.map(|address| format!("{address:#x}")),
        }
    }

    /// Cells of CSV: procedure, image, its id, address.
    pub(super) fn cells(&self) -> [String; 4] {
        let image = self.image.as_ref();
        [
            self.name.clone(),
            image.map(|image| image.name.clone()).unwrap_or_default(),
            image.map(|image| image.id.to_string()).unwrap_or_default(),
            self.address.map(|address| format!("{address:#x}")).unwrap_or_default(),
        ]
    }
}

/// A time, or a number of events: `1.2 s`, `12,345 cycles`.
pub(super) fn amount(value: f64, unit: &str) -> String {
    // The cast saturates.
    let whole = value.round() as u64;
    match unit {
        "ns" => nanoseconds(whole),
        "count" => thousands(whole),
        unit => format!("{} {unit}", thousands(whole)),
    }
}

pub(super) fn interval(share: Share) -> String {
    format!("{}–{}", percent(share.low), percent(share.high))
}

/// Titles of the columns of a procedure's time with all that it called.
pub(super) fn inclusive_titles(table: &mut Table, group: &str, single: bool) {
    table.number("with calls %", group);
    table.number(if single { "low–high" } else { "±" }, group);
}

/// The cells of these columns.
pub(super) fn inclusive_cells(share: Option<&Share>, single: bool) -> [String; 2] {
    match share {
        Some(share) if single => [percent(share.value), interval(*share)],
        Some(share) => [percent(share.value), percent(share.reach())],
        None => ["?".to_owned(), String::new()],
    }
}

/// An event that has stacks and no samples, which have no period: its head.
pub(super) fn stacks_only(column: &EventColumn) -> Option<String> {
    let (event, counted) = (&column.event, column.counted);
    let stacks = super::counted(counted.samples, "stack");
    let time = amount(counted.occurrences, &event.unit);
    (event.period == 0 && counted.samples > 0).then(|| format!("{}: {stacks}, {time}", event.name))
}

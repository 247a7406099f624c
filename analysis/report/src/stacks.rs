//! What reports of call stacks have in common: the event's stacks, and the names of procedures.

use std::io;
use std::io::Write;

use image::ImageId;

use super::fields::{Address, Fraction, Shown, Whole};
use super::json::{Head, Only};
use super::quantity::{counted, nanoseconds, percent, plain, thousands};
use super::table::Table;
use super::text::{detail, head, selection};
use super::{EventColumn, ImageName, Selection, Style, heads};
use names::procedures::SourceLine;
use query::problem::INLINED;
use query::scope::ScopeChoice;
use stats::{Confidence, Share};

crate::fields! {
    /// The stacks of an event.
    #[derive(Clone, Debug)]
    pub struct StackEvent {
        /// the event
        pub name: String;
        /// of its times: `ns`, `cycles`, `count`
        pub unit: String;
        /// of all stacks, and of samples without stacks
        pub total: f64 as Whole, "event's unit";
        /// number of call stacks
        pub stacks: u64;
        /// of the stacks, by their time: those that reach the thread's first frame
        pub whole: f64 as Fraction, "share";
        /// of the time: procedures without a stack of their own, whose callers are estimated from
        /// stacks of the same image
        pub lent: f64 as Fraction, "share";
        /// true: samples tell how long procedures took themselves; false: the stacks do
        pub sampled: bool;
        /// true: exact counts and numbers of calls stand in the place of stacks
        pub counted: bool;
    }
}

/// For programs the name of what stands above procedures without a stack.
const NO_STACK: &str = "[no stack]";

/// The subject of a report on stacks.
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
    /// Whether it is a function that is inlined into a procedure, and has no code of its own there.
    pub inlined: bool,
    /// The line of it, where rows are lines.
    pub line: Option<SourceLine>,
}

impl Callee {
    /// What is no code, by its name.
    pub fn nobody(name: &str) -> Self {
        Self { name: name.to_owned(), address: None, image: None, inlined: false, line: None }
    }

    /// The name in a text.
    pub(super) fn shown(&self) -> &str {
        if self.name == NO_STACK { "[callers unknown]" } else { &self.name }
    }

    /// What follows the name in a text.
    pub(super) fn tail(&self) -> String {
        let place = self.line.as_ref().map(|SourceLine { file, line }| {
            format!(" {}:{line}", file.rsplit('/').next().unwrap_or(file))
        });
        place.unwrap_or_default() + &inlined_tail(self.inlined)
    }

    /// Name and image, for a head.
    pub(super) fn whole(&self) -> String {
        let image = self.image.as_ref().map(|image| format!(" of {}", image.name));
        format!("{}{}{}", self.shown(), self.tail(), image.unwrap_or_default())
    }
}

/// What follows the name of a function in a text, if it is inlined.
pub(super) fn inlined_tail(inlined: bool) -> String {
    if inlined { INLINED.to_owned() } else { String::new() }
}

/// The note on procedures with samples and without a stack, if they have one percent of the time.
pub fn lent_callers(share: f64) -> Option<String> {
    (share >= 0.01).then(|| {
        let share = percent(share);
        format!(
            "{share} % of it is of procedures of which no stack was taken: their callers are \
             estimated from stacks of the same image"
        )
    })
}

impl OfStacks {
    /// The first lines of a text, about a procedure or about all.
    pub(super) fn head(
        &self,
        subject: Option<String>,
        style: &Style,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        if !style.verbose {
            return self.brief(subject, style, out);
        }
        selection(&self.selection, style, out)?;
        let StackEvent { name, unit, total, stacks, whole, lent, sampled, counted: is_counted } =
            &self.event;
        let total = amount(*total, unit);
        if *is_counted {
            let calls = counted(*stacks, "call");
            head(style, out, "event", &format!("{name}: {total}, {calls}, counted exactly"))?;
            let how = "the time of a procedure is divided among its callers by their calls";
            detail(style, out, "", how)?;
            return self.only(style, out);
        }
        let (stacks, whole) = (counted(*stacks, "stack"), percent(*whole));
        head(style, out, "event", &format!("{name}: {total}, {stacks}, {whole} % of them whole"))?;
        if *sampled {
            let how = "samples tell how long a procedure took, and stacks who called it";
            detail(style, out, "", how)?;
        }
        if let Some(lent) = lent_callers(*lent) {
            detail(style, out, "", &lent)?;
        }
        self.only(style, out)
    }

    /// The head without `-v`.
    fn brief(&self, subject: Option<String>, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        let StackEvent { name, unit, total, stacks, whole, counted: is_counted, .. } = &self.event;
        let subject = subject.unwrap_or_else(|| {
            let total = amount(*total, unit);
            match is_counted {
                true => format!("{total} of {name} in {}", counted(*stacks, "call")),
                false => {
                    let (stacks, whole) = (counted(*stacks, "stack"), percent(*whole));
                    format!("{total} of {name}; {stacks}, {whole} % of them whole")
                }
            }
        });
        heads::brief(&subject, &self.selection, &self.whose, style, out)
    }

    fn only(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        if self.whose.is_all() {
            return Ok(());
        }
        let what = if self.event.counted { "executions" } else { "stacks" };
        head(style, out, "only", &format!("{what} {}", self.whose.shown()))
    }

    /// The line in the header that names the total of all shares.
    pub(super) fn shares(&self, of: &str, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        if self.event.counted {
            return detail(style, out, "shares", &format!("of {of}"));
        }
        let sure = plain(self.confidence.percent());
        detail(style, out, "shares", &format!("of {of}; intervals of {sure} % confidence"))
    }
}

impl<'a> Shown<&'a OfStacks> for HeadJson<'a> {
    fn shown(of: &'a OfStacks) -> Self {
        Self {
            head: Head::shown(&of.selection),
            event: &of.event,
            confidence: of.confidence,
            only: Only::shown(&of.whose),
        }
    }
}

crate::fields! {
    /// The first keys of a report of stacks.
    #[derive(Debug)]
    pub struct HeadJson<'a> {
        head (flat): Head<'a>;
        event: &'a StackEvent;
        confidence: Confidence;
        only (maybe): Only;
    }

    /// The keys of a procedure.
    #[derive(Debug)]
    pub struct CalleeJson<'a> {
        /// name, or words in brackets ([Who called it?](callers.md))
        procedure: &'a str => "procedure";
        /// name; `null`: no code
        image: Option<&'a str> => "image";
        /// id, as of `dcpi prof`
        image_id: Option<ImageId> => "image_id";
        /// the procedure's begin
        address: Option<Address> => "address";
        /// true: a function that is inlined into a procedure, and has no code of its own there
        inlined: bool => "inlined";
        /// source file (`tree --lines`)
        file (maybe): Option<&'a str> => "file";
        /// source line (`tree --lines`)
        line (maybe): Option<u32> => "line";
    }
}

impl<'a> Shown<&'a Callee> for CalleeJson<'a> {
    fn shown(of: &'a Callee) -> Self {
        Self {
            procedure: &of.name,
            image: of.image.as_ref().map(|image| image.name.as_str()),
            image_id: of.image.as_ref().map(|image| image.id),
            address: of.address.map(Address),
            inlined: of.inlined,
            file: of.line.as_ref().map(|line| &*line.file),
            line: of.line.as_ref().map(|line| line.line),
        }
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
pub(super) fn inclusive_titles(table: &mut Table, group: &str, single: bool, is_exact: bool) {
    table.number("with calls %", group);
    if is_exact {
        return;
    }
    table.number(if single { "low–high" } else { "±" }, group);
    table.spared();
}

/// The cells of these columns.
pub(super) fn inclusive_cells(share: Option<&Share>, single: bool) -> [String; 2] {
    match share {
        Some(share) if single => [percent(share.value), interval(*share)],
        Some(share) => [percent(share.value), percent(share.reach())],
        None => ["?".to_owned(), String::new()],
    }
}

/// The nouns of several exact events, without adjacent repetitions.
pub(super) fn nouns(events: &[EventColumn]) -> String {
    let mut nouns: Vec<String> = events.iter().map(|one| one.event.nouns()).collect();
    nouns.dedup();
    nouns.join(" and ")
}

/// An event that has stacks and no samples, which have no period: its head.
pub(super) fn stacks_only(column: &EventColumn) -> Option<String> {
    let (event, counted) = (&column.event, column.counted);
    let stacks = super::counted(counted.samples, "stack");
    let time = amount(counted.occurrences, &event.unit);
    (event.period == 0 && counted.samples > 0).then(|| format!("{}: {stacks}, {time}", event.name))
}

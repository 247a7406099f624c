//! Reports for programs. The keys and their order are an interface: add to them, change nothing.

use std::collections::{BTreeMap, BTreeSet};

use model::Language;
use profiledb::{Covered, EpochId, Stretch};
use serde::Serializer;
use serde_json::Value;

use super::fields::{Address, Cells, Fraction, InOrder, SchemaName, Shape, Shaped, Shares, Shown};

use super::{By, EventColumn, ImageName, ProfReport, Row, Selection};
use query::problem::Problem;
use query::scope::{Dimension, Part, ScopeChoice};
use stats::Confidence;
use stats::tally;

/// A share to eight decimals: finer than any sample, and the same on every machine.
pub(super) fn rounded(share: f64) -> f64 {
    (share * 1e8).round() / 1e8
}

/// Label, unit or process whose samples a report covers.
#[derive(Debug)]
pub struct Only(BTreeMap<&'static str, Value>);

impl Shown<&ScopeChoice> for Only {
    fn shown(whose: &ScopeChoice) -> Self {
        Self(whose.parts().iter().map(part).collect())
    }
}

impl Shaped for Only {
    const MEANING: &'static str =
        "the label, unit or process that was asked for; absent: the report is of all samples";

    fn shape() -> Shape {
        Shape::Map("WHAT", Box::new(Shape::Any))
    }

    fn is_absent(&self) -> bool {
        self.0.is_empty()
    }

    fn json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.json(to)
    }

    fn cells(&self, _: &[&'static str], _: Option<&str>, _: &mut Cells) {}
}

/// The parts of a scope, by the name of the dimension; null where samples are not kept apart by it.
fn parts(parts: &[Part]) -> Parts {
    let mut by_name: BTreeMap<&str, Value> = parts.iter().map(part).collect();
    let mut of = |dimension: Dimension| by_name.remove(dimension.name());
    Parts {
        attribute: of(Dimension::Attribute),
        command: of(Dimension::Command),
        container: of(Dimension::Container),
        label: of(Dimension::Label),
        namespace: of(Dimension::Namespace),
        pid: of(Dimension::Pid),
        pod: of(Dimension::Pod),
        thread: of(Dimension::Thread),
        unit: of(Dimension::Unit),
    }
}

crate::fields! {
    /// What many reports have.
    #[derive(Debug)]
    pub struct EveryReport<'a> {
        schema: SchemaName;
        head (flat): Head<'a>;
        events: Vec<Event<'a>>;
        confidence: Confidence;
        only (maybe): Only;
        problems: Vec<ProblemEntry<'a>>;
    }

    /// Shares are of `events[].counted`. Samples of unknown code are rows with `[unresolved:
    /// REASON]` for a name.
    #[derive(Debug)]
    pub struct Prof<'a> {
        head (flat): Head<'a>;
        events: Vec<Event<'a>>;
        /// the event that rows are sorted by
        sorted_by: &'a str;
        confidence: Confidence;
        only (maybe): Only;
        /// what a row is: `line`, `label`, `unit`, `container`, `pod`, `namespace`, `pid`,
        /// `command`, `thread`, `attribute`; absent: a procedure, function or image
        by (maybe): Option<&'static str>;
        /// with `--lines`: the event whose samples were moved back by their skid to the lines that
        /// took the time; as in `dcpi list`, some stay where they landed
        skid_moved (maybe): Option<&'a str>;
        rows (rows): Vec<ProfRow<'a>>;
        omitted: Omitted<'a>;
        /// samples of unknown code, of all events
        unresolved: BTreeMap<&'a str, u64>, "samples";
        /// samples in no profile, of all events
        lost: BTreeMap<&'a str, u64>, "samples";
        problems: Vec<ProblemEntry<'a>>;
    }

    /// The stretch of time that was read, where a part was asked for.
    #[derive(Debug)]
    pub struct Time {
        /// begin of the time that was read, with `--since` or `--until`
        since_unix_s: u64, "s";
        /// its end
        until_unix_s: u64, "s";
        /// length of the longest slice in it: the time that was read may begin earlier and end
        /// later than was asked, by at most this
        slice_s: u64, "s";
    }

    /// What was read: the first keys of a report.
    #[derive(Debug)]
    pub struct Head<'a> {
        /// the database's directory
        db: &'a str;
        /// epochs that were read
        epochs: Vec<&'a EpochId>;
        /// hosts of these epochs
        hosts: Vec<&'a str>;
        time (maybe): Option<Time>;
    }

    /// The first keys of a report of one procedure.
    #[derive(Debug)]
    pub struct OfProcedure<'a> {
        head (flat): Head<'a>;
        events: Vec<Event<'a>>;
        confidence: Confidence;
        only (maybe): Only;
        /// name
        image: &'a str;
        /// id
        image_id: String;
        /// path
        path: &'a str;
        /// name
        procedure: &'a str;
        /// other names of the procedure; absent: none
        aliases (maybe): &'a [String];
    }

    /// An event.
    #[derive(Debug)]
    pub struct Event<'a> {
        /// the event, as perf calls it
        name: &'a str;
        /// mean distance of two samples; of several periods the mean over the samples
        period: u64, "event's unit";
        /// what the period counts
        unit: &'a str;
        /// samples taken and not lost; with `--label`, `--unit` or `--pid`: of the selected
        /// processes
        total: u64, "samples";
        /// samples taken and not lost, of the whole machine
        machine_total: u64, "samples";
        /// samples that shares are computed from
        counted: u64, "samples";
        /// what these stand for, each by the period that it was taken with
        amount: f64 as Fraction, "`unit`";
        /// samples in the idle loop
        idle: u64, "samples";
        /// samples of unknown code, by reason
        unresolved: BTreeMap<&'a str, u64>, "samples";
        /// samples taken, but in no profile, by reason; of the whole machine
        lost: &'a BTreeMap<String, u64>, "samples";
        /// samples that the event's count and period imply, of the whole machine; 0: not known
        implied_samples: u64, "samples";
        /// what a reader should know
        notes: Vec<String>;
        /// time in which the event should have counted, of all CPUs; 0: not known
        enabled_ns: u64, "ns";
        /// time in which the event did count
        running_ns: u64, "ns";
        /// `enabled_ns` divided by `running_ns`, 1 when not known; `null`: the event never counted
        scale: Option<Fraction>;
        /// occurrences in all; `count` is `null` when the event never counted
        count: Option<Count>, "event's unit";
    }

    /// Occurrences of an event.
    #[derive(Debug)]
    pub struct Count {
        value: u64;
        /// lower end of its interval
        low: u64;
        /// upper end of its interval
        high: u64;
    }

    /// A procedure, line, image or scope.
    #[derive(Debug)]
    pub struct ProfRow<'a> {
        /// name; absent where rows are no procedures
        procedure (maybe): Option<&'a str> => "procedure";
        /// source file (`--lines`)
        file (maybe): Option<&'a str> => "file";
        /// source line (`--lines`)
        line (maybe): Option<u32> => "line";
        /// name
        image (maybe): Option<&'a str> => "image";
        /// id: build id (behind it `-pHASH`: of the program headers; `-uUSER`: this user can
        /// write the file), or a hash
        image_id (maybe): Option<String> => "image_id";
        /// the procedure's begin
        address (maybe): Option<Address> => "address";
        /// true: a function that is inlined into a procedure, and has no code of its own there;
        /// absent: rows are not functions
        inlined (maybe): Option<bool> => "inlined";
        /// the image's path (`-i`)
        path (maybe): Option<&'a str> => "path";
        /// `file`, `kernel`, `module`, `vdso`, `bpf`, `jit`, `idle`; `unresolved`: unknown code
        kind (maybe): Option<&'static str>;
        /// `python`, `javascript`, `java`, `ruby`, `php`, `lua`, `perl`, `erlang`, `dotnet`: an
        /// interpreter ran it; its samples are estimated from call stacks
        language (maybe): Option<&'static str> => "language";
        part (flat): Parts;
        counts: InOrder<&'a str, u64>, "samples" => "EVENT";
        share: Shares<'a>, "share" => "EVENT_share" | "EVENT_low" | "EVENT_high";
        /// time of `sorted_by`, whichever event that is; absent: it counts no time
        seconds (maybe): Option<f64>, "s" => "seconds";
        /// of the procedure with all that it called (`--inclusive`); absent: the event has no call
        /// stacks
        inclusive (maybe): Option<Shares<'a>>, "share"
            => "EVENT_inclusive" | "EVENT_inclusive_low" | "EVENT_inclusive_high";
        /// share of this row and all rows above, of `sorted_by`
        cumulative: Fraction, "share" => "cumulative";
        /// the label, unit, process, command or thread that was asked for
        only (csv): InOrder<&'a str, String> => "only_WHAT";
    }

    /// The subject of a row with `--by`.
    #[derive(Debug)]
    pub struct Parts {
        /// with `--by-attribute`: `KEY=VALUE`; `null`: the thread had none
        attribute (maybe): Option<Value> => "attribute";
        /// with `--by command` or `--by thread`; `null`: not kept apart
        command (maybe): Option<Value> => "command";
        /// with `--by container`: name and image; `null`: none
        container (maybe): Option<Value> => "container";
        /// with `--by label`; `null`: none
        label (maybe): Option<Value> => "label";
        /// with `--by namespace`; `null`: none
        namespace (maybe): Option<Value> => "namespace";
        /// with `--by pid` or `--by thread`; `null`: not kept apart
        pid (maybe): Option<Value> => "pid";
        /// with `--by pod`: `NAMESPACE/POD`; `null`: none
        pod (maybe): Option<Value> => "pod";
        /// with `--by thread`; `null`: not kept apart
        thread (maybe): Option<Value> => "thread";
        /// with `--by unit`; `null`: none
        unit (maybe): Option<Value> => "unit";
    }

    /// Rows that were left out.
    #[derive(Debug)]
    pub struct Omitted<'a> {
        /// rows that were left out
        rows: usize;
        /// samples in these rows
        counts: InOrder<&'a str, u64>, "samples";
    }

    /// Rows that were left out.
    #[derive(Debug)]
    pub struct OmittedRows {
        /// rows that were left out
        pub rows: usize;
    }

    /// Missing or doubtful data.
    #[derive(Debug)]
    pub struct ProblemEntry<'a> {
        /// kind of problem: one word
        kind: &'static str;
        /// true: part of the report is missing (exit code 1)
        serious: bool;
        /// the image that the problem is about; absent: none
        image (maybe): Option<&'a str>;
        /// id of that image
        image_id (maybe): Option<String>;
        /// text for people
        message: String;
    }
}

impl<'a> Shown<&'a Selection> for Head<'a> {
    fn shown(selection: &'a Selection) -> Self {
        let time = selection.covered().map(|Covered { stretch, slice_s }| {
            let Stretch { since_unix_s, until_unix_s } = stretch;
            Time { since_unix_s, until_unix_s, slice_s }
        });
        let (epochs, hosts) = (selection.epoch_ids(), selection.hosts());
        Self { db: &selection.db, epochs, hosts, time }
    }
}

impl<'a> OfProcedure<'a> {
    pub(super) fn of(
        selection: &'a Selection,
        (events, confidence, whose): (&'a [EventColumn], Confidence, &'a ScopeChoice),
        (image, procedure, aliases): (&'a ImageName, &'a str, &'a [String]),
    ) -> Self {
        Self {
            head: Head::shown(selection),
            events: events.iter().map(Event::shown).collect(),
            confidence,
            only: Only::shown(whose),
            image: &image.name,
            image_id: image.id.to_string(),
            path: &image.path,
            procedure,
            aliases,
        }
    }
}

/// Values by event, in the order of the columns.
pub(super) fn by_event<T>(
    events: &[EventColumn],
    values: impl IntoIterator<Item = T>,
) -> InOrder<&str, T> {
    InOrder(events.iter().map(|column| column.event.name.as_str()).zip(values).collect())
}

/// The names that stand for `EVENT` in titles of CSV.
pub(super) fn event_keys(events: &[EventColumn]) -> Vec<String> {
    events.iter().map(|column| column.event.name.clone()).collect()
}

pub(super) fn prof(report: &ProfReport) -> Prof<'_> {
    let ledgers = || report.events.iter().map(|column| &column.event);
    Prof {
        head: Head::shown(&report.selection),
        events: report.events.iter().map(Event::shown).collect(),
        sorted_by: report.events.get(report.sort).map_or("", |column| &column.event.name),
        confidence: report.confidence,
        only: Only::shown(&report.whose),
        by: match report.by {
            By::Scope(dimensions) => dimensions.first().map(|of| of.name()),
            By::Line => Some("line"),
            By::Procedure | By::Function | By::Image => None,
        },
        skid_moved: report
            .skid
            .as_ref()
            .filter(|(_, skid)| skid.instructions() > 0)
            .map(|(event, _)| event.as_str()),
        rows: report.rows.iter().map(|row| prof_row(report, row)).collect(),
        omitted: Omitted {
            rows: report.omitted.rows,
            counts: by_event(&report.events, tally::samples(&report.omitted.counts)),
        },
        unresolved: joined(ledgers().map(|event| event.unresolved_samples())),
        lost: joined(ledgers().map(|event| by_name(&event.ledger.lost))),
        problems: problems(&report.problems),
    }
}

/// Titles of the columns of an event in CSV.
pub(super) const EVENT_TITLES: [&str; 4] = ["EVENT", "EVENT_share", "EVENT_low", "EVENT_high"];

pub(super) fn prof_columns(report: &ProfReport) -> Vec<&'static str> {
    let mut titles = match report.by {
        By::Procedure => vec!["procedure", "image", "image_id", "address", "language"],
        By::Function => vec!["procedure", "image", "image_id", "address", "inlined", "language"],
        By::Line => vec!["procedure", "file", "line", "image", "image_id"],
        By::Image => vec!["image", "image_id", "path"],
        By::Scope(dimensions) => dimensions.iter().map(|of| of.name()).collect(),
    };
    titles.extend(EVENT_TITLES);
    if report.with_calls {
        titles.extend(["EVENT_inclusive", "EVENT_inclusive_low", "EVENT_inclusive_high"]);
    }
    titles.extend(["cumulative", "seconds", "only_WHAT"]);
    titles
}

impl<'a> Shown<&'a EventColumn> for Event<'a> {
    fn shown(column: &'a EventColumn) -> Self {
        let event = &column.event;
        Event {
            name: &event.name,
            period: event.period,
            unit: &event.unit,
            total: event.total(),
            machine_total: event.machine_total(),
            counted: column.counted.samples,
            amount: column.counted.occurrences,
            idle: column.idle,
            unresolved: event.unresolved_samples(),
            lost: &event.ledger.lost,
            implied_samples: event.ledger.implied,
            notes: super::coverage::missed(&event.ledger)
                .into_iter()
                .chain(event.notes.iter().cloned())
                .collect(),
            enabled_ns: event.ledger.enabled_ns,
            running_ns: event.ledger.running_ns,
            scale: event.scale().map(Fraction),
            count: column.occurrences.map(|count| Count {
                value: count.value.round() as u64,
                low: count.low.floor() as u64,
                high: count.high.ceil() as u64,
            }),
        }
    }
}

fn prof_row<'a>(report: &'a ProfReport, row: &'a Row) -> ProfRow<'a> {
    let image = row.image.as_ref();
    let inclusive = report.with_calls.then(|| {
        let names = report.events.iter().map(|column| column.event.name.as_str());
        let of = |(name, share): (&'a str, &Option<stats::Share>)| Some((name, *share.as_ref()?));
        InOrder(names.zip(&row.inclusive).filter_map(of).collect())
    });
    let asked = report.whose.asked().into_iter();
    ProfRow {
        procedure: row.procedure.as_ref().map(|procedure| procedure.name.as_str()),
        file: row.line.as_ref().map(|line| line.file.as_str()),
        line: row.line.as_ref().and_then(|line| line.line),
        image: image.map(|image| image.name.as_str()),
        image_id: image.map(|image| image.id.to_string()),
        address: row.procedure.as_ref().and_then(|procedure| procedure.address).map(Address),
        inlined: row.procedure.as_ref().filter(|_| report.by == By::Function).map(|of| of.inlined),
        path: image.filter(|_| report.by == By::Image).map(|image| image.path.as_str()),
        kind: image.map(|image| image.kind.as_str()),
        language: row.language.map(Language::name),
        part: parts(&row.parts),
        counts: by_event(&report.events, tally::samples(&row.counts)),
        share: by_event(&report.events, row.shares.iter().copied()),
        seconds: report
            .events
            .get(report.sort)
            .zip(row.counts.get(report.sort))
            .and_then(|(column, count)| column.seconds(*count)),
        inclusive,
        cumulative: Fraction(row.cumulative),
        only: InOrder(asked.map(|(dimension, value)| (dimension.name(), value)).collect()),
    }
}

/// Its name and its value.
pub(super) fn part(part: &Part) -> (&'static str, Value) {
    let value = match part {
        Part::Pid(pid) => pid.map(Value::from),
        named => named.value().map(Value::from),
    };
    (part.dimension().name(), value.unwrap_or(Value::Null))
}

/// The reasons of all events, summed.
/// Samples by reason, to be joined.
pub(super) fn by_name(reasons: &BTreeMap<String, u64>) -> BTreeMap<&str, u64> {
    reasons.iter().map(|(reason, samples)| (reason.as_str(), *samples)).collect()
}

pub(super) fn joined<'a>(
    maps: impl Iterator<Item = BTreeMap<&'a str, u64>>,
) -> BTreeMap<&'a str, u64> {
    let mut joined: BTreeMap<&str, u64> = BTreeMap::new();
    for (reason, samples) in maps.flatten() {
        let sum = joined.entry(reason).or_default();
        *sum = sum.saturating_add(samples);
    }
    joined
}

impl<'a> Shown<&'a Vec<Problem>> for Vec<ProblemEntry<'a>> {
    fn shown(problems: &'a Vec<Problem>) -> Self {
        self::problems(problems)
    }
}

pub(super) fn problems(problems: &[Problem]) -> Vec<ProblemEntry<'_>> {
    let entry = |problem| {
        let problem: &Problem = problem;
        let image = problem.image();
        ProblemEntry {
            kind: problem.kind(),
            serious: problem.is_serious(),
            image: image.map(|(name, _)| name),
            image_id: image.map(|(_, id)| id.to_string()),
            message: problem.to_string(),
        }
    };
    let mut told = BTreeSet::new();
    // The parts of a report may meet the same damage.
    let mut is_new = |entry: &ProblemEntry<'_>| {
        told.insert((entry.kind, entry.image_id.clone(), entry.message.clone()))
    };
    problems.iter().map(entry).filter(|entry| is_new(entry)).collect()
}

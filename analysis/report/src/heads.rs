//! Heads of text reports: what the numbers are of.

use std::collections::BTreeSet;
use std::io::{self, Write};

use profiledb::EpochMeta;

use super::coverage::{missed, part_of_time};
use super::quantity::{counted, duration, moment, percent, period};
use super::stacks::{amount, stacks_only};
use super::table::{cut, width};
use super::text::{NAMED, ratio};
use super::timeline::covered;
use super::{EventColumn, Model, Selection, Style, duration_s, escape};
use query::load::sum;
use query::scope::ScopeChoice;

/// Width of the first word of a line of the head.
const HEAD: usize = 10;

/// Indentation of the second and later lines of a note on a terminal, in columns.
const NOTE: usize = 4;

pub(super) fn head(style: &Style, out: &mut dyn Write, word: &str, says: &str) -> io::Result<()> {
    line(style, out, HEAD + 2, &format!("{word:HEAD$}  {}", escape(says)))
}

/// A line of the head that only `-v` shows: it says how the numbers came about, which is the same
/// in most reports of a database.
pub(super) fn detail(style: &Style, out: &mut dyn Write, word: &str, says: &str) -> io::Result<()> {
    if style.verbose { head(style, out, word, says) } else { Ok(()) }
}

/// The processor whose model cycles are told with: without `-v` only where it is assumed, since the
/// numbers may then be another processor's.
pub(super) fn machine(style: &Style, out: &mut dyn Write, model: &Model) -> io::Result<()> {
    if style.verbose || model.assumed {
        head(style, out, "machine", &model.shown())?;
    }
    Ok(())
}

/// The head of a report on explained procedures: `of` says what part of the samples these have.
pub(super) fn explained_head(
    (whence, model): (&Selection, &Model),
    of: &str,
    style: &Style,
    out: &mut dyn Write,
) -> io::Result<()> {
    if !style.verbose {
        return brief(&format!("explained: {of}"), whence, &ScopeChoice::default(), style, out);
    }
    selection(whence, style, out)?;
    machine(style, out, model)?;
    head(style, out, "explained", of)
}

/// A note below a table.
pub(super) fn note(style: &Style, out: &mut dyn Write, says: &str) -> io::Result<()> {
    line(style, out, NOTE, &escape(says))
}

/// A line of text, wrapped where it is wider than the terminal, with all but its first part
/// indented. With `-v`, files and pipes get the whole line: programs search for its words.
pub(super) fn line(
    style: &Style,
    out: &mut dyn Write,
    indent: usize,
    text: &str,
) -> io::Result<()> {
    if !style.wrap {
        return writeln!(out, "{text}");
    }
    let (mut rest, mut before, mut least) = (text, 0, indent);
    loop {
        let room = style.columns.saturating_sub(before);
        let mut breaks = rest
            .match_indices(' ')
            .map(|(at, _)| at)
            .filter(|at| width(rest.get(..*at).unwrap_or_default()) >= least);
        let first = breaks.clone().next();
        let fitting = breaks.rfind(|at| width(rest.get(..*at).unwrap_or_default()) <= room);
        let (shown, left) = match fitting.or(first).filter(|_| width(rest) > room) {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        writeln!(out, "{:before$}{}", "", shown.trim_end())?;
        if left.trim().is_empty() {
            return Ok(());
        }
        (rest, before, least) = (left.trim_start(), indent, 1);
    }
}

/// The head of a report without `-v`: its subject, and where and when that was recorded. It is one
/// line if both fit, else two, whose ends are left out where they do not fit.
pub(super) fn brief(
    subject: &str,
    selection: &Selection,
    whose: &ScopeChoice,
    style: &Style,
    out: &mut dyn Write,
) -> io::Result<()> {
    let lines = brief_lines(subject, selection, whose, style);
    lines.iter().try_for_each(|line| writeln!(out, "{line}"))
}

/// The lines of [`brief`].
pub(super) fn brief_lines(
    subject: &str,
    selection: &Selection,
    whose: &ScopeChoice,
    style: &Style,
) -> Vec<String> {
    let (subject, mut recorded) = (escape(subject), escape(&recorded(selection)).into_owned());
    if !whose.is_all() {
        recorded = format!("samples {} only; {recorded}", escape(&whose.shown()));
    }
    let whole = format!("{subject}; {recorded}");
    if width(&whole) <= style.columns {
        return vec![whole];
    }
    let most = if style.full_names { usize::MAX } else { style.columns };
    vec![cut(&subject, most), cut(&recorded, most)]
}

/// For a head: the number of samples of each event, the time that they stand for, and the share of
/// the idle loop where reports leave that out.
pub(super) fn counts(events: &[EventColumn], with_idle: bool) -> String {
    let count = |column: &EventColumn| {
        let idle = match column.idle > 0 && !with_idle {
            true => {
                format!(" ({} % idle left out)", percent(ratio(column.idle, column.event.total())))
            }
            false => String::new(),
        };
        let event = &column.event;
        stacks_only(column).unwrap_or_else(|| {
            let nouns = counted(column.counted.samples, event.noun());
            let time = column.seconds(column.counted).map_or(String::new(), |_| {
                format!(", {} of CPU time", amount(column.counted.occurrences, "ns"))
            });
            format!("{nouns} of {}{time}{idle}", event.name)
        })
    };
    events.iter().map(count).collect::<Vec<_>>().join(", ")
}

pub(super) fn selection(
    selection: &Selection,
    style: &Style,
    out: &mut dyn Write,
) -> io::Result<()> {
    if !style.verbose {
        return head(style, out, "from", &recorded(selection));
    }
    head(style, out, "database", &selection.db)?;
    let hosts = selection.hosts();
    head(style, out, if hosts.len() == 1 { "host" } else { "hosts" }, &some_of(&hosts))?;
    match selection.epochs.as_slice() {
        [epoch] => head(style, out, "epoch", &format!("{}: {}", epoch.epoch, span(epoch)))?,
        several => head(style, out, "epochs", &together(several))?,
    }
    covered(selection).map_or(Ok(()), |time| head(style, out, "time", &time))?;
    let mut labels: Vec<&str> =
        selection.epochs.iter().filter_map(|epoch| epoch.label.as_deref()).collect();
    labels.sort_unstable();
    labels.dedup();
    match labels.as_slice() {
        [] => Ok(()),
        [label] => head(style, out, "label", label),
        labels => head(style, out, "labels", &some_of(labels)),
    }
}

/// Host, time and label, in a few words.
pub(super) fn recorded(selection: &Selection) -> String {
    let time = match selection.epochs.as_slice() {
        [epoch] => {
            let lasted = duration(duration_s(epoch));
            format!("{} UTC, {lasted}", moment(epoch.started_unix_s))
        }
        several => format!("epochs {}", together(several)),
    };
    let labels: BTreeSet<&str> =
        selection.epochs.iter().filter_map(|epoch| epoch.label.as_deref()).collect();
    let labels: Vec<&str> = labels.into_iter().collect();
    let label = match labels.as_slice() {
        [] => String::new(),
        [label] => format!(", label {label}"),
        several => format!(", labels {}", some_of(several)),
    };
    let part = covered(selection).map_or(String::new(), |time| format!(", {time}"));
    format!("{}, {time}{label}{part}", some_of(&selection.hosts()))
}

/// `3: a, b, c`, or the one.
pub(super) fn some_of(names: &[&str]) -> String {
    let shown = names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    match names.len() {
        1 => shown,
        n if n > NAMED => format!("{n}: {shown} and {} more", n - NAMED),
        n => format!("{n}: {shown}"),
    }
}

fn span(epoch: &EpochMeta) -> String {
    let (start, lasted) = (moment(epoch.started_unix_s), duration_s(epoch));
    let end = moment(epoch.started_unix_s.saturating_add(lasted));
    // The database does not record whether a daemon still adds to the epoch.
    let last = if epoch.ended_unix_s.is_none() { " (last merge)" } else { "" };
    format!("{start} to {end} UTC{last}, {}", duration(lasted))
}

fn together(epochs: &[EpochMeta]) -> String {
    let start = epochs.iter().map(|epoch| epoch.started_unix_s).min().unwrap_or(0);
    let end = epochs
        .iter()
        .map(|epoch| epoch.started_unix_s.saturating_add(duration_s(epoch)))
        .max()
        .unwrap_or(0);
    let lasted = duration(sum(epochs.iter().map(duration_s)));
    format!("{}: {} to {} UTC, {lasted} in sum", epochs.len(), moment(start), moment(end))
}

/// An event's samples and period, and its notes.
pub(super) fn event_head(
    column: &EventColumn,
    with_idle: bool,
    style: &Style,
    out: &mut dyn Write,
) -> io::Result<()> {
    let event = &column.event;
    if let Some(says) = stacks_only(column) {
        return head(style, out, "event", &says);
    }
    let every = || format!("one every {}", period(event.period, &event.unit));
    let how = if event.is_exact() { "counted exactly".to_owned() } else { every() };
    let mut says = format!("{}: {}, {how}", event.name, counted(event.total(), event.noun()));
    if column.idle > 0 && !with_idle {
        let of_all = ratio(column.idle, event.total());
        says.push_str(&format!(
            "; {} % idle, left out below (--idle includes them)",
            percent(of_all)
        ));
    }
    head(style, out, "event", &says)?;
    if let Some(part) = part_of_time(column) {
        detail(style, out, "", &part)?;
    }
    if let Some(missed) = missed(&event.ledger) {
        detail(style, out, "", &format!("note: {missed}"))?;
    }
    for note in &event.notes {
        detail(style, out, "", &format!("note: {note}"))?;
    }
    Ok(())
}

//! Text reports: a head that says what the numbers are of, a table, and notes below it.

use std::collections::BTreeSet;
use std::io::{self, Write};

use super::builds::{DIFF, brief_id, builds};
pub(super) use super::heads::{
    brief, brief_lines, counts, detail, event_head, explained_head, head, line, machine, note,
    selection, some_of,
};
pub(super) use super::landed::{LANDED, landed};
use super::quantity::{bytes, counted, duration, percent, plain, thousands};
use super::stacks::{amount, inclusive_cells, inclusive_titles, inlined_tail, nouns};
use super::table::{Cell, Colour, Table, cut};
use super::tree::chain;
use super::{
    By, CodeStoreRow, EpochsReport, EventColumn, ImageName, LineName, ProcedureName, ProfReport,
    Row, Style, duration_s, escape,
};
use model::{Language, OFF_CPU, RUNNABLE};
use profiledb::EpochMeta;
use query::load::{USERTIME, sum};
use query::problem::Problem;
use stats::Share;
use stats::tally::Tally;

/// Names of hosts, labels or images in one line.
pub(super) const NAMED: usize = 5;
/// Smallest share of samples, of any event, for which a note explains a reason for unresolved
/// samples.
const MEANING_SHARE: f64 = 0.001;

pub(super) fn prof(report: &ProfReport, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    if !style.verbose {
        return brief_prof(report, style, out);
    }
    prof_head(report, style, out)?;
    writeln!(out)?;
    prof_table(report, style).write(style, out)?;
    let notes = prof_notes(report, style.verbose);
    if !notes.is_empty() {
        writeln!(out)?;
    }
    notes.iter().try_for_each(|line| note(style, out, line))
}

/// Most lines beside the rows of a profile, up to which a blank line is among them.
const BESIDE: usize = 5;

/// A profile without `-v`: notes are a line each, cut where they are wider.
fn brief_prof(report: &ProfReport, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let counts = counts(&report.events, report.with_idle);
    let head = brief_lines(&counts, &report.selection, &report.whose, style);
    head.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    let notes = prof_notes(report, false);
    let titles = if report.events.len() > 1 { 2 } else { 1 };
    if head.len() + titles + notes.len() < BESIDE {
        writeln!(out)?;
    }
    prof_table(report, style).write(style, out)?;
    let most = if style.full_names || report.rows.is_empty() { usize::MAX } else { style.columns };
    // A command that is cut or broken is none.
    notes.iter().try_for_each(|line| match line.contains(DIFF) {
        true => writeln!(out, "{line}"),
        false => note(style, out, &cut(line, most)),
    })
}

fn prof_head(report: &ProfReport, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    selection(&report.selection, style, out)?;
    report.events.iter().try_for_each(|column| event_head(column, report.with_idle, style, out))?;
    if !report.whose.is_all() {
        head(style, out, "only", &format!("samples {}", report.whose.shown()))?;
    }
    let all: Vec<String> =
        report.events.iter().map(|column| thousands(column.counted.samples)).collect();
    let is_exact = report.events.iter().all(|column| column.event.is_exact());
    let noun = match report.events.as_slice() {
        _ if report.of_stacks => "call stacks, by weight".to_owned(),
        [one] if one.counted.samples == 1 => one.event.noun().to_owned(),
        [one] => one.event.nouns(),
        events if is_exact => nouns(events),
        _ => "samples".to_owned(),
    };
    let whose = match (report.restricted, report.whose.is_all()) {
        (true, true) => "of the chosen images",
        (true, false) => "of the chosen images among these",
        (false, true) => "counted",
        (false, false) => "of these",
    };
    if report.by == By::Line {
        let skid = report.skid.as_ref().map(|(event, skid)| (event.as_str(), *skid));
        detail(style, out, "samples", &landed(skid, 0))?;
    } else if report.by == By::Function && !report.with_calls {
        detail(style, out, "samples", LANDED)?;
    }
    let sure = match is_exact {
        true => String::new(),
        false => format!("; intervals of {} % confidence", plain(report.confidence.percent())),
    };
    detail(style, out, "shares", &format!("of {} {noun} {whose}{sure}", all.join(" and ")))
}

pub(super) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// The table with procedures, or images, and samples of unknown code.
fn prof_table(report: &ProfReport, style: &Style) -> Table {
    let mut table = Table::default();
    let single = report.events.len() == 1;
    for (at, column) in report.events.iter().enumerate() {
        let group = if single { "" } else { &column.event.name };
        let is_exact = column.event.is_exact();
        let title = if report.of_stacks { "stacks".into() } else { column.event.nouns() };
        if !is_uneven(report, style) {
            table.number(&title, group);
        }
        if is_timed(report) {
            table.number("time", group);
            // Without numbers of samples it is the only amount.
            if !is_uneven(report, style) {
                table.spared();
            }
        }
        if elapsed_ns(report).is_some() {
            table.number("CPU %", group);
            table.spared();
        }
        table.number("%", group);
        if !is_exact {
            table.number(if single { "low–high" } else { "±" }, group);
            if report.with_calls {
                table.spared();
            }
        }
        if report.with_calls {
            inclusive_titles(&mut table, group, single, is_exact);
        } else if at == report.sort {
            table.number("cum %", group);
        }
    }
    if matches!(report.by, By::Procedure | By::Function | By::Line) {
        table.procedures("procedure");
    }
    match report.by {
        By::Procedure | By::Function => table.names("image"),
        By::Line => ["source", "image"].into_iter().for_each(|title| table.names(title)),
        By::Image => table.paths("image"),
        By::Scope(dimensions) => dimensions.iter().for_each(|of| table.names(of.name())),
    }
    for row in &report.rows {
        let numbers = row_numbers(report, row).into_iter();
        let mut cells: Vec<Cell> =
            numbers.skip(usize::from(is_uneven(report, style))).map(Cell::from).collect();
        cells.extend(row.procedure.as_ref().map(|name| procedure(name, &row.above, style)));
        cells.extend((report.by == By::Line).then(|| source_line(row, style)));
        cells.extend(subject(report, row));
        cells.extend(row.parts.iter().map(|part| Cell::name(&part.shown())));
        table.coloured(
            cells,
            row.shares.get(report.sort).and_then(|share| Colour::of_share(share.value)),
        );
    }
    table
}

fn row_numbers(report: &ProfReport, row: &Row) -> Vec<String> {
    let mut cells = Vec::new();
    for (at, (count, share)) in row.counts.iter().zip(&row.shares).enumerate() {
        let is_exact = report.events.get(at).is_some_and(|column| column.event.is_exact());
        let intervals = usize::from(!is_exact);
        cells.push(thousands(count.samples));
        cells.extend(is_timed(report).then(|| amount(count.occurrences, "ns")));
        cells.extend(elapsed_ns(report).map(|elapsed| percent(count.occurrences / elapsed)));
        cells.extend(share_cells(report, share).into_iter().take(1 + intervals));
        if report.with_calls {
            let share = row.inclusive.get(at).and_then(Option::as_ref);
            let calls = inclusive_cells(share, report.events.len() == 1);
            cells.extend(calls.into_iter().take(1 + intervals));
        } else if at == report.sort {
            cells.push(percent(row.cumulative));
        }
    }
    cells
}

/// Whether samples stand for times so different that their numbers say less than the times do.
fn is_uneven(report: &ProfReport, style: &Style) -> bool {
    let [column] = report.events.as_slice() else { return false };
    is_timed(report) && !style.verbose && !report.of_stacks && column.is_uneven()
}

/// Whether rows have the time of an event's samples. The shares of several events need the room.
fn is_timed(report: &ProfReport) -> bool {
    matches!(report.events.as_slice(), [column] if column.seconds(column.counted).is_some())
}

/// Whether rows have the time of running code alone.
fn runs(report: &ProfReport) -> bool {
    let [column] = report.events.as_slice() else { return false };
    is_timed(report) && ![USERTIME, OFF_CPU, RUNNABLE].contains(&column.event.name.as_str())
}

/// The time in which the samples were taken, for their share of one CPU: of running code only, as
/// any number of threads wait at a time.
fn elapsed_ns(report: &ProfReport) -> Option<f64> {
    let seconds = |epoch: &EpochMeta| match epoch.covered {
        Some(covered) => covered.stretch.until_unix_s.saturating_sub(covered.stretch.since_unix_s),
        None => duration_s(epoch),
    };
    let elapsed_s: u64 = report.selection.epochs.iter().map(seconds).sum();
    // Whole seconds tell nothing of a shorter time, and times with calls need the room.
    (runs(report) && elapsed_s >= 5 && !report.with_calls).then_some(elapsed_s as f64 * 1e9)
}

/// Share and interval: its ends where there is room, else the distance of the farther end.
fn share_cells(report: &ProfReport, share: &Share) -> [String; 2] {
    let interval = if report.events.len() == 1 {
        format!("{}–{}", percent(share.low), percent(share.high))
    } else {
        percent(share.reach())
    };
    [percent(share.value), interval]
}

/// A procedure, with its address where another procedure has the same name or would be shown with
/// the same text.
fn procedure(procedure: &ProcedureName, above: &[String], style: &Style) -> Cell {
    let with_suffix = procedure.needs_suffix || style.full_names;
    let name = if with_suffix { &procedure.name } else { image::without_suffix(&procedure.name) };
    let at = procedure.address.map(|at| format!(" [{at:#x}]")).unwrap_or_default();
    let tail = if procedure.ambiguous { at.clone() } else { String::new() };
    if !above.is_empty() {
        let brief = |name: &str| names::shorten::brief(image::without_suffix(name));
        let name = chain(above.iter().map(|name| brief(name)).collect(), brief(name));
        return Cell::name(&name).tail(inlined_tail(procedure.inlined) + &tail).apart(at);
    }
    Cell::name(name).tail(inlined_tail(procedure.inlined) + &tail).apart(at)
}

/// A row's source file and line. The file is shown without its directories, unless names are asked
/// for in full length.
fn source_line(row: &Row, style: &Style) -> Cell {
    let Some(LineName { file, line }) = &row.line else {
        return Cell::default();
    };
    let file = if style.full_names { file } else { file.rsplit('/').next().unwrap_or(file) };
    Cell::name(file).tail(line.map_or_else(|| ":?".to_owned(), |number| format!(":{number}")))
}

/// The image of a row, or of its procedure.
fn subject(report: &ProfReport, row: &Row) -> Option<Cell> {
    let language = row.language.map(|of| format!(" [{}]", of.name())).unwrap_or_default();
    Some(match row.image.as_ref()? {
        image if report.by == By::Image && image.kind == image::ImageKind::File => {
            let path = if image.path.is_empty() { &image.name } else { &image.path };
            Cell::name(path).tail(image_id(image) + &language)
        }
        image => Cell::name(&image.name).tail(image_id(image) + &language),
    })
}

/// An image's name, with its id where another has the same.
pub(super) fn image_cell(image: &ImageName) -> Cell {
    Cell::name(&image.name).tail(image_id(image))
}

/// What tells the builds of an image apart, where there are several: its id in brackets.
pub(super) fn image_id(image: &ImageName) -> String {
    if image.ambiguous { format!(" ({})", brief_id(&image.id)) } else { String::new() }
}

/// Why the table of an undamaged database is empty, and the next step.
const NO_SAMPLES: &str = "no samples yet: dcpid has merged none into this epoch; dcpictl flush makes dcpid write its \
    counts; --epoch -1 selects the epoch before";

/// Why a table is empty: damage, if there is some, else missing samples.
pub(super) fn no_samples(problems: &[Problem]) -> Vec<String> {
    let mut lines = problem_lines(problems.iter().filter(|problem| problem.is_serious()));
    lines.push(if lines.is_empty() {
        NO_SAMPLES.to_owned()
    } else {
        "the files that could be read have no samples".to_owned()
    });
    lines
}

/// Smallest share of lost samples, and of those without a name, that is worth a note without `-v`.
const NOTED_SHARE: f64 = 0.05;

/// What is not known of functions that compilers inlined ([`prof_notes`]): they keep for few
/// instructions whose they are.
const OF_INLINED: &str =
    "note: own times of Java and JavaScript may have those of functions inlined there";

fn prof_notes(report: &ProfReport, verbose: bool) -> Vec<String> {
    let is_empty = report.rows.is_empty() && report.omitted.rows == 0;
    let mut notes = if is_empty { no_samples(&report.problems) } else { Vec::new() };
    if report.omitted.rows > 0 {
        let what = match report.by {
            By::Procedure | By::Function => "procedure",
            By::Line => "source line",
            By::Image => "image",
            By::Scope(dimensions) => dimensions.first().map_or("scope", |of| of.name()),
        };
        let rows = counted(report.omitted.rows as u64, &format!("more {what}"));
        let of = report.events.get(report.sort).map(|column| column.event.nouns());
        let (of, share) = (of.unwrap_or_default(), percent(report.omitted.share));
        notes.push(format!("{rows} with {share} % of the {of} (-n 0 shows all)"));
    }
    notes.extend(builds(report));
    notes.extend(chains(report));
    notes.extend(counted_otherwise(report));
    let is_compiled = |row: &&Row| {
        let of = [Language::Java, Language::JavaScript];
        row.language.is_some_and(|language| of.contains(&language))
    };
    let compiled = report.rows.iter().filter(is_compiled);
    let share = |row: &Row| row.shares.get(report.sort).map_or(0.0, |share| share.value);
    if !report.with_calls && compiled.map(share).sum::<f64>() >= NOTED_SHARE {
        notes.push(OF_INLINED.to_owned());
    }
    let least = if verbose { MEANING_SHARE } else { NOTED_SHARE };
    let reasons = report.unresolved_reasons().into_iter();
    notes.extend(reasons.filter_map(|reason| meaning(report, reason, least)));
    let is_noted = |column: &&EventColumn| {
        verbose || ratio(column.event.lost(), column.event.ledger.taken) >= NOTED_SHARE
    };
    let noted = report.events.iter().filter(is_noted);
    notes.extend(noted.filter_map(|column| lost(report, column)));
    let more = problems(report, if verbose { 0.0 } else { NOTED_SHARE })
        .into_iter()
        .filter(|line| !notes.contains(line));
    let more: Vec<String> = more.collect();
    notes.extend(more);
    notes
}

/// How many procedures have no row of their own, as they only lead to others.
fn chains(report: &ProfReport) -> Option<String> {
    let folded: usize = report.rows.iter().map(|row| row.above.len()).sum();
    let folded = thousands(folded as u64);
    (folded != "0").then(|| {
        format!("calls that start a program are in the row of what follows: {folded} (-v)")
    })
}

/// Why the times of a report by command or unit are not those of other reports.
fn counted_otherwise(report: &ProfReport) -> Option<String> {
    let By::Scope(_) = report.by else { return None };
    match report.of_stacks {
        true if runs(report) => {
            let stacks = report.events.first().map_or(0, |column| column.counted.samples);
            let stacks = counted(stacks, "call stack");
            Some(format!("estimated from {stacks}; --by unit and -i count all samples"))
        }
        true => None,
        false => Some("these times have those of libraries; -i has each image apart".to_owned()),
    }
}

/// The meaning of a reason for unresolved samples, if its share of samples is large enough.
fn meaning(report: &ProfReport, reason: &str, least: f64) -> Option<String> {
    let shares = report.events.iter().flat_map(|column| &column.unresolved);
    let matters =
        |(known, _, share): &(String, Tally, Share)| known == reason && share.value >= least;
    let text = model::meaning(reason).filter(|_| shares.clone().any(matters))?;
    Some(format!("{}: {text}", reason.replace('_', " ")))
}

fn lost(report: &ProfReport, column: &EventColumn) -> Option<String> {
    let lost = column.event.lost();
    let reasons: Vec<String> = column
        .event
        .ledger
        .lost
        .iter()
        .filter(|(_, samples)| **samples > 0)
        .map(|(reason, samples)| format!("{} {}", thousands(*samples), reason.replace('_', " ")))
        .collect();
    let of =
        if report.events.len() > 1 { format!(" of {}", column.event.name) } else { String::new() };
    let share = percent(ratio(lost, column.event.ledger.taken));
    (lost > 0).then(|| {
        format!(
            "lost: {}{of}, {share} % of those taken ({})",
            counted(lost, "sample"),
            reasons.join(", ")
        )
    })
}

/// Serious problems, each in a line, and images without names in one line for each next step.
fn problems(report: &ProfReport, least: f64) -> Vec<String> {
    let all = report.events.get(report.sort).map_or(0, |column| column.counted.samples);
    let samples = |counts: &[u64]| counts.get(report.sort).copied().unwrap_or(0);
    let mut lines = Vec::new();
    let mut nameless = Vec::new();
    let mut stripped = Vec::new();
    let mut kept = Vec::new();
    let mut without_lines = Vec::new();
    for problem in &report.problems {
        match problem {
            Problem::NoProcedures { image, counts, why, .. } => {
                nameless.push((samples(counts), format!("{image} ({})", why.short())));
            }
            Problem::Stripped { image, counts, .. } => {
                stripped.push((samples(counts), image.clone()))
            }
            Problem::NoLines { image, counts, .. } => {
                without_lines.push((samples(counts), image.clone()))
            }
            Problem::FromCodeStore { image, counts, why, .. } => {
                kept.push((samples(counts), format!("{image} ({})", why.short())));
            }
            problem if problem.is_serious() || least == 0.0 => {
                push_new(&mut lines, problem_line(problem))
            }
            _ => {}
        }
    }
    let worth = |images: Vec<(u64, String)>| {
        let samples = sum(images.iter().map(|(samples, _)| *samples));
        if ratio(samples, all) < least { Vec::new() } else { images }
    };
    // Names from the code that dcpid kept are right: a reader has nothing to do.
    let kept = if least > 0.0 { Vec::new() } else { kept };
    let install = "install debug symbols, see --debug-root";
    for (images, what, next) in [
        (kept, "have names from the code that dcpid kept", "see dcpid --code-store"),
        (worth(nameless), "have no procedure", "--format json has the reasons"),
        (worth(stripped), "are in procedures without a name", install),
        (worth(without_lines), "have no source lines", install),
    ] {
        lines.extend(group(images, all, (what, next), least > 0.0));
    }
    lines
}

pub(super) fn problem_line(problem: &Problem) -> String {
    let word = if problem.is_serious() { "problem" } else { "note" };
    format!("{word}: {problem}")
}

/// The problems that are told: without `-v` not that names are from the code that dcpid kept, since
/// these are right.
pub(super) fn told<'a>(
    problems: &'a [Problem],
    style: &Style,
) -> impl Iterator<Item = &'a Problem> {
    let is_verbose = style.verbose;
    problems.iter().filter(move |of| is_verbose || !matches!(of, Problem::FromCodeStore { .. }))
}

/// Problems, each in a line and each once: several parts of a report may meet the same damage.
pub(super) fn problem_lines<'a>(problems: impl IntoIterator<Item = &'a Problem>) -> Vec<String> {
    let mut lines = Vec::new();
    problems.into_iter().for_each(|problem| push_new(&mut lines, problem_line(problem)));
    lines
}

/// Problems, in a line for each kind: the first of the kind, and how many others there are.
pub(super) fn lines_by_kind<'a>(problems: impl IntoIterator<Item = &'a Problem>) -> Vec<String> {
    let mut kinds: Vec<(&str, Vec<String>)> = Vec::new();
    for problem in problems {
        let line = problem_line(problem);
        match kinds.iter_mut().find(|(kind, _)| *kind == problem.kind()) {
            Some((_, lines)) => push_new(lines, line),
            None => kinds.push((problem.kind(), vec![line])),
        }
    }
    let line = |(_, lines): (&str, Vec<String>)| {
        let more = lines.len().saturating_sub(1);
        let first = lines.into_iter().next().unwrap_or_default();
        if more == 0 { first } else { format!("{first} (and {more} more notes like this)") }
    };
    kinds.into_iter().map(line).collect()
}

fn push_new(lines: &mut Vec<String>, line: String) {
    if !lines.contains(&line) {
        lines.push(line);
    }
}

/// One line for images with the same problem, those with the the most samples first: the share of
/// samples, `what` is wrong with them, the images, and the next step.
fn group(
    mut images: Vec<(u64, String)>,
    all: u64,
    (what, next): (&str, &str),
    is_brief: bool,
) -> Option<String> {
    images.retain(|(samples, _)| *samples > 0);
    if images.is_empty() {
        return None;
    }
    images.sort_by(|(a, first), (b, second)| b.cmp(a).then(first.cmp(second)));
    let share = percent(ratio(sum(images.iter().map(|(samples, _)| *samples)), all));
    let named: Vec<&str> = images.iter().take(NAMED).map(|(_, name)| name.as_str()).collect();
    let more = images.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let of = counted(images.len() as u64, "image");
    if is_brief {
        return Some(format!("note: {share} % of the samples {what} (-v): {}", named.join(", ")));
    }
    Some(format!(
        "note: {share} % of the samples {what}, in {of}: {}{more}; {next}",
        named.join(", ")
    ))
}

pub(super) fn epochs(report: &EpochsReport, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    detail(style, out, "database", &report.selection.db)?;
    let hosts: BTreeSet<&str> = report.rows.iter().map(|row| row.meta.host.as_str()).collect();
    let one_host = hosts.first().filter(|_| hosts.len() == 1);
    one_host.iter().try_for_each(|host| head(style, out, "host", host))?;
    writeln!(out)?;
    let mut table = Table::default();
    for title in ["samples", "unresolved %", "lost %", "--epoch", "lasted", "size", "images"] {
        table.number(title, "");
        if ["unresolved %", "lasted", "size", "images"].contains(&title) {
            table.spared();
        }
    }
    table.words("epoch");
    let with_host = one_host.is_none();
    if with_host {
        table.names("host");
    }
    table.names("event");
    table.texts("label");
    let any_runs = report.rows.iter().any(|row| !row.run_labels.is_empty());
    if any_runs {
        table.names("labelled runs");
    }
    for row in &report.rows {
        epoch_rows(row, (with_host, any_runs), &mut table);
    }
    table.write(style, out)?;
    if !report.problems.is_empty() || !report.code_stores.is_empty() {
        writeln!(out)?;
    }
    for CodeStoreRow { host, images, size_bytes } in &report.code_stores {
        let (host, size) = (escape(host), bytes(*size_bytes));
        let images = counted(*images as u64, "image");
        note(
            style,
            out,
            &format!(
                "code kept beside the epochs of {host}: {images}, {size} (dcpid --code-store)"
            ),
        )?;
    }
    problem_lines(&report.problems).iter().try_for_each(|line| note(style, out, line))
}

/// A row for each event of the epoch; only the first has the values of the epoch as a whole.
fn epoch_rows(row: &super::EpochRow, (with_host, with_runs): (bool, bool), table: &mut Table) {
    let meta = &row.meta;
    let lasted = duration(duration_s(meta));
    let back = if row.back == 0 { "latest".to_owned() } else { format!("-{}", row.back) };
    let unknown = || "?".to_owned();
    let mut of_epoch = vec![
        back,
        lasted,
        row.size_bytes.map_or_else(unknown, bytes),
        row.images.map_or_else(unknown, |images| thousands(images as u64)),
        meta.epoch.to_string(),
    ];
    if with_host {
        of_epoch.push(meta.host.clone());
    }
    let mut label = meta.label.clone().unwrap_or_default();
    let runs: Vec<&str> = row.run_labels.iter().map(String::as_str).collect();
    let mut runs = if runs.is_empty() { String::new() } else { some_of(&runs) };
    for event in &meta.events {
        let ledger = meta.ledgers.sum(&event.name);
        let lost = sum(ledger.lost.values().copied());
        let unresolved = sum(ledger.unresolved.values().copied());
        let samples = ledger.taken.saturating_sub(lost);
        let mut cells = vec![
            thousands(samples),
            percent(ratio(unresolved, samples)),
            percent(ratio(lost, ledger.taken)),
        ];
        cells.extend(of_epoch.iter().map(|cell| escape(cell).into_owned()));
        cells.push(escape(&event.name).into_owned());
        cells.push(escape(&std::mem::take(&mut label)).into_owned());
        if with_runs {
            cells.push(escape(&std::mem::take(&mut runs)).into_owned());
        }
        table.row(cells);
        of_epoch.iter_mut().for_each(String::clear);
    }
}

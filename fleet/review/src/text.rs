//! The review in a terminal: first how much of the fleet it is of, then what changed, then what
//! takes the time.

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::Report;
use crate::quantity::{amount, change, counted, day, percent, signed, thousands};
use crate::report::{ChangeKind, ChangeRow, Estimate, Ledger, SeenRow};
use crate::table::{Table, wrapped};

/// Names of hosts, or reasons, in one line.
const NAMED: usize = 5;
/// Characters of a build's id that are shown to distinguish builds of one image.
const BUILD: usize = 12;

/// The name of code without a symbol.
const NO_SYMBOL: &str = "(no symbol)";

/// How much is shown.
#[derive(Copy, Clone, Debug)]
pub struct Style {
    /// Characters of a line, from 80 on.
    pub columns: usize,
    /// Rows of a table, from 1 on.
    pub rows: usize,
}

/// Writes the review.
///
/// # Errors
/// Returns errors of writing the output.
pub fn write(report: &Report, style: Style, out: &mut dyn Write) -> io::Result<()> {
    let page = Text { report, style };
    let parts: [(&str, Vec<String>); 11] = [
        ("", page.head()),
        ("Changed between builds, on the same hosts in this week", page.changes(&report.changed)),
        ("Changed from the week before", page.changes(&report.between_weeks)),
        ("Appeared and went away", page.seen()),
        ("Accepted findings", page.findings()),
        ("Procedures with the most time", page.top()),
        ("Services", page.services()),
        ("The fleet's tax", page.tax()),
        ("Machines", page.machines()),
        ("Several builds at once", page.skew()),
        ("Hosts unlike their fellows", page.unlike()),
    ];
    for (title, lines) in parts.iter().filter(|(_, lines)| !lines.is_empty()) {
        if !title.is_empty() {
            writeln!(out, "\n{title}")?;
        }
        lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    }
    Ok(())
}

struct Text<'a> {
    report: &'a Report,
    style: Style,
}

impl Text<'_> {
    fn head(&self) -> Vec<String> {
        let report = self.report;
        let mut lines =
            vec![format!("Fleet review of week {}, event {}", report.week, report.event)];
        let mut say = |word: &str, says: &str| {
            lines.extend(wrapped(&format!("{word:10}  "), says, self.style.columns));
        };
        for (word, says) in coverage(report) {
            say(word, &says);
        }
        let fleet = &report.fleet;
        let mut says = format!(
            "{} core-hours in procedures, {} of {} CPUs busy in the mean",
            amount(fleet.core_hours),
            amount(fleet.busy_cores),
            thousands(fleet.cpus)
        );
        if let Some(relative) = fleet.change {
            says.push_str(&format!(", {} % from the week before", change(relative)));
        }
        if let (Some(money), Some(currency)) = (fleet.money, &report.currency) {
            says.push_str(&format!("; {} {currency} a week", amount(money)));
        }
        say("fleet", &says);
        lines
    }

    /// The title of columns of money.
    fn currency(&self) -> String {
        format!(" {}", self.report.currency.as_deref().unwrap_or_default())
    }

    fn rows<'a, T>(&self, all: &'a [T]) -> &'a [T] {
        all.get(..self.style.rows).unwrap_or(all)
    }

    /// The table's lines, and how many rows are left out.
    fn finish(&self, table: &Table, all: usize) -> Vec<String> {
        if all == 0 {
            return Vec::new();
        }
        let mut lines = table.lines(self.style.columns);
        if let Some(left) = all.checked_sub(self.style.rows).filter(|left| *left > 0) {
            lines.push(format!("{} more", thousands(left as u64)));
        }
        lines
    }

    fn changes(&self, rows: &[ChangeRow]) -> Vec<String> {
        let titles = [
            " cores",
            &self.currency(),
            " change %",
            "95 % interval",
            " hosts",
            "owner",
            "procedure",
        ];
        let mut table = Table::new(&titles);
        for row in self.rows(rows) {
            let subject = whole_or(&row.procedure);
            table.row(
                [
                    signed(row.cores),
                    row.money.map(signed).unwrap_or_default(),
                    change(row.change.value),
                    interval(&row.change),
                    thousands(row.hosts),
                    row.owner.clone().unwrap_or_default(),
                    format!("{}: {subject}", row.service),
                ],
                change_notes(row),
            );
        }
        self.finish(&table, rows.len())
    }

    fn seen(&self) -> Vec<String> {
        let report = self.report;
        let lists = [("new", &report.new), ("gone", &report.gone), ("seldom", &report.seldom)];
        let all = lists.iter().map(|(_, rows)| rows.len()).sum();
        let rows: Vec<(&str, &SeenRow)> =
            lists.iter().flat_map(|(what, rows)| rows.iter().map(|row| (*what, row))).collect();
        let mut table =
            Table::new(&["", " core-h", &self.currency(), " hosts", "owner", "procedure"]);
        for (what, row) in self.rows(&rows) {
            table.row(
                [
                    (*what).to_owned(),
                    amount(row.core_hours),
                    row.money.map(amount).unwrap_or_default(),
                    thousands(row.hosts),
                    row.owner.clone().unwrap_or_default(),
                    named(&row.service, &row.image, &row.procedure),
                ],
                Vec::new(),
            );
        }
        self.finish(&table, all)
    }

    fn findings(&self) -> Vec<String> {
        let rows = &self.report.findings;
        let mut table = Table::new(&["id", " promised", " got", "95 % interval", "state", "what"]);
        for row in self.rows(rows) {
            let last = row.got.last();
            let interval = |got: &crate::report::GotWeek| {
                format!("{} to {} ({})", signed(got.low), signed(got.high), got.week)
            };
            table.row(
                [
                    row.id.clone(),
                    amount(row.promised_cores),
                    last.map(|got| amount(got.value)).unwrap_or_default(),
                    last.map(interval).unwrap_or_default(),
                    row.state.name().to_owned(),
                    row.what.clone(),
                ],
                vec![named(&row.service, &row.image, &row.procedure)],
            );
        }
        self.finish(&table, rows.len())
    }

    fn top(&self) -> Vec<String> {
        let rows = &self.report.top;
        let money = self.currency();
        let mut table =
            Table::new(&[" core-h", " %", &money, " week %", " hosts", "owner", "procedure"]);
        for row in self.rows(rows) {
            let week = match row.trend.as_slice() {
                [.., Some(before), Some(now)] if *before > 0.0 => change(now / before - 1.0),
                _ => String::new(),
            };
            table.row(
                [
                    amount(row.core_hours),
                    percent(row.share),
                    row.money.map(amount).unwrap_or_default(),
                    week,
                    thousands(row.hosts),
                    row.owner.clone().unwrap_or_default(),
                    format!(
                        "{}: {}: {}",
                        row.service,
                        row.image,
                        if row.procedure.is_empty() { NO_SYMBOL } else { &row.procedure }
                    ),
                ],
                Vec::new(),
            );
        }
        let mut lines = self.finish(&table, rows.len());
        if let Some(row) = rows.first() {
            let command = self.report.drill_command(&row.service, &row.image, &row.procedure);
            if !command.is_empty() {
                lines.extend([
                    "To the instructions of the first:".to_owned(),
                    format!("  {command}"),
                ]);
            }
        }
        lines
    }

    fn services(&self) -> Vec<String> {
        let rows = &self.report.services;
        let money = self.currency();
        let mut table =
            Table::new(&[" core-h", " %", &money, " week %", " hosts", "owner", "service"]);
        for row in self.rows(rows) {
            table.row(
                [
                    amount(row.core_hours),
                    percent(row.share),
                    row.money.map(amount).unwrap_or_default(),
                    row.change.map(change).unwrap_or_default(),
                    thousands(row.hosts),
                    row.owner.clone().unwrap_or_default(),
                    row.service.clone(),
                ],
                Vec::new(),
            );
        }
        self.finish(&table, rows.len())
    }

    fn tax(&self) -> Vec<String> {
        let rows = &self.report.tax;
        let mut table = Table::new(&[" core-h", " %", &self.currency(), "kind"]);
        for row in rows {
            let money = row.money.map(amount).unwrap_or_default();
            table.row(
                [amount(row.core_hours), percent(row.share), money, row.kind.clone()],
                Vec::new(),
            );
        }
        if rows.is_empty() { Vec::new() } else { table.lines(self.style.columns) }
    }

    fn machines(&self) -> Vec<String> {
        let rows = &self.report.machines;
        let mut table = Table::new(&[" core-h", " busy %", " hosts", " CPUs", "type"]);
        for row in self.rows(rows) {
            table.row(
                [
                    amount(row.core_hours),
                    percent(row.busy),
                    thousands(row.hosts),
                    thousands(row.cpus),
                    row.machine.clone(),
                ],
                Vec::new(),
            );
        }
        self.finish(&table, rows.len())
    }

    fn skew(&self) -> Vec<String> {
        let rows = &self.report.skew;
        let mut table = Table::new(&["service", " builds", "image"]);
        for row in self.rows(rows) {
            let build = |build: &crate::report::BuildRow| {
                let why = build.not_judged.as_ref();
                format!(
                    "{} % {}, {}, seen {} to {}{}",
                    percent(build.share),
                    brief(&build.build),
                    counted(build.hosts, "host"),
                    day(build.first_s),
                    day(build.last_s),
                    why.map_or_else(String::new, |why| format!("; not judged: {why}"))
                )
            };
            let mut notes: Vec<String> = row.builds.iter().take(NAMED).map(build).collect();
            if let Some(left) = row.builds.len().checked_sub(NAMED).filter(|left| *left > 0) {
                notes.push(format!("{left} more"));
            }
            table.row(
                [row.service.clone(), thousands(row.builds.len() as u64), row.image.clone()],
                notes,
            );
        }
        self.finish(&table, rows.len())
    }

    fn unlike(&self) -> Vec<String> {
        let rows = &self.report.unlike;
        let mut table =
            Table::new(&[" unlike %", " expected %", "host", "service", "most by procedure"]);
        for row in self.rows(rows) {
            table.row(
                [
                    percent(row.distance),
                    percent(row.expected),
                    row.host.clone(),
                    row.service.clone(),
                    row.procedure.clone(),
                ],
                Vec::new(),
            );
        }
        self.finish(&table, rows.len())
    }
}

/// How much of the fleet a review is of, in lines with a word each: hosts, and what became of the
/// samples.
pub(crate) fn coverage(report: &Report) -> Vec<(&'static str, String)> {
    let hosts = &report.hosts;
    let mut says = format!("{} of {} heard", thousands(hosts.heard), thousands(hosts.expected));
    if !hosts.silent.is_empty() {
        says.push_str(&format!("; {} silent: {}", hosts.silent.len(), some_of(&hosts.silent)));
    }
    let mut lines = vec![("hosts", says)];
    if !hosts.half.is_empty() {
        let half: Vec<String> = (hosts.half.iter())
            .map(|half| format!("{} ({} %)", half.host, percent(half.covered)))
            .collect();
        let says = format!("{} covered less than half of the week: {}", half.len(), some_of(&half));
        lines.push(("", says));
    }
    if !hosts.clocks.is_empty() {
        let ahead: Vec<String> = (hosts.clocks.iter())
            .map(|clock| format!("{} ({} s)", clock.host, thousands(clock.ahead_s)))
            .collect();
        lines.push(("", format!("{} with clocks ahead: {}", ahead.len(), some_of(&ahead))));
    }
    lines.extend(
        ledger(&report.ledger)
            .into_iter()
            .enumerate()
            .map(|(at, says)| (if at == 0 { "samples" } else { "" }, says)),
    );
    lines
}

fn ledger(ledger: &Ledger) -> Vec<String> {
    let share = |samples: u64| match ledger.taken {
        0 => percent(0.0),
        taken => percent(samples as f64 / taken as f64),
    };
    let mut lines = vec![format!(
        "{} taken: {} % in procedures, {} % idle, {} % unresolved, {} % lost; {}",
        thousands(ledger.taken),
        share(ledger.facts),
        share(ledger.idle),
        share(ledger.unresolved()),
        share(ledger.lost()),
        match ledger.difference() {
            0 => "all accounted for".to_owned(),
            // A mistake of the store's: the review is then of other samples than were taken.
            other => format!("NOT accounted for: {other}"),
        }
    )];
    for (what, by_reason) in [("unresolved", &ledger.unresolved), ("lost", &ledger.lost)] {
        let reasons = by_size(by_reason);
        if !reasons.is_empty() {
            let reasons: Vec<String> = (reasons.iter())
                .map(|(reason, samples)| format!("{reason} {} %", share(*samples)))
                .collect();
            lines.push(format!("{what}: {}", some_of(&reasons)));
        }
    }
    lines
}

fn by_size(by_reason: &BTreeMap<String, u64>) -> Vec<(&str, u64)> {
    let mut reasons: Vec<(&str, u64)> = (by_reason.iter())
        .map(|(reason, samples)| (reason.as_str(), *samples))
        .filter(|(_, samples)| *samples > 0)
        .collect();
    reasons.sort_by_key(|(_, samples)| std::cmp::Reverse(*samples));
    reasons
}

/// The subject of a change, and reasons that make it less certain.
fn change_notes(row: &ChangeRow) -> Vec<String> {
    let mut of = row.image.clone();
    if row.kind == ChangeKind::Build {
        of.push_str(&format!(", {} to {}", brief(&row.build_old), brief(&row.build_new)));
    }
    of.push_str(&format!("; q {}", amount(row.q)));
    // Above half, the day explains as much as the build.
    if row.kind == ChangeKind::Build && row.same_day > 0.5 {
        of.push_str(&format!("; {} % of hosts changed on one day", percent(row.same_day)));
    }
    let mut notes = vec![of];
    notes.extend(row.accepted.iter().map(|why| format!("accepted: {why}")));
    if !row.moved_with.is_empty() {
        notes.push(format!("perhaps moved from or to: {}", some_of(&row.moved_with)));
    }
    notes
}

fn interval(change_of: &Estimate) -> String {
    format!("{} to {}", change(change_of.low), change(change_of.high))
}

fn named(service: &str, image: &str, procedure: &str) -> String {
    format!("{service}: {image}: {}", whole_or(procedure))
}

fn whole_or(procedure: &str) -> &str {
    if procedure.is_empty() { "(whole image)" } else { procedure }
}

fn brief(build: &str) -> String {
    build.chars().take(BUILD).collect()
}

/// `a, b, c and 7 more`.
fn some_of(names: &[String]) -> String {
    let shown = names.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(NAMED).filter(|left| *left > 0) {
        Some(left) => format!("{shown} and {} more", thousands(left as u64)),
        None => shown,
    }
}

//! `dcpi list` as text.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::ops::Range;

use image::{Frame, ImageKind, without_suffix};

use super::costs::{self, TITLES, TITLES_ABOVE};
use super::heads;
use super::landed::landed;
use super::quantity::{counted, percent, period, plain, thousands};
use super::stacks::nouns;
use super::table::{Colour, cut, width};
use super::text::{self, detail, head, note, problem_lines, ratio, selection};
use super::{EventColumn, ListReport, Style, View, escape, fit_procedure};
use annotate::listing::{ListedInstruction, SourceLine};
use query::DEFAULT_DB;
use query::error::quoted;
use stats::Share;

/// Most source lines without samples that are shown between two lines with samples; more are
/// replaced by an ellipsis.
const GAP_LINES: u32 = 12;
/// Source lines shown around the first and the last of a function.
const AROUND: u32 = 2;
/// Most source files in the head.
const FILES: usize = 5;
/// Most other names of the procedure in the head.
const ALIASES: usize = 8;
/// Space after a column.
const GAP: &str = "  ";
/// Spaces that a tab is worth.
const TAB: &str = "    ";
/// Columns that can be spared are left out until instructions have so many characters.
const ROOM: usize = 40;
/// Least characters of a line's text, however wide the numbers are.
const TEXT_MIN: usize = 20;
/// Characters of a line of the head before its text.
const HEAD_LEFT: usize = 12;
/// Most characters of a called procedure's name.
const TARGET_MAX: usize = 60;

pub(super) fn list(report: &ListReport, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    match style.verbose {
        true => list_head(report, style, out)?,
        false => list_brief(report, style, out)?,
    }
    writeln!(out)?;
    let mut body = Body { report, style, rows: Vec::new(), files: file_names(report) };
    match report.view {
        View::Source => body.sources(),
        View::Instructions | View::Both => body.instructions(),
    }
    body.write(out)?;
    if report.listing.counts.iter().all(|count| *count == 0) {
        let db = Some(&report.selection.db).filter(|db| *db != DEFAULT_DB);
        let db = db.map(|db| format!(" --db {}", quoted(db))).unwrap_or_default();
        let (none, others) = match report.is_exact() {
            true => ("was not executed", "executed procedures"),
            false => ("has no samples", "procedures with samples"),
        };
        let image = &report.image.name;
        let next = format!("the procedure {none}; {others}: dcpi prof{db} {image}");
        writeln!(out)?;
        note(style, out, &next)?;
    } else if !report.problems.is_empty() {
        writeln!(out)?;
    }
    if let Some(why) = costs_not_known(report).filter(|_| !style.verbose) {
        note(style, out, &format!("note: cycles are {why}"))?;
    }
    if let Some(of_period) = report.events.iter().find_map(EventColumn::one_period) {
        note(style, out, &of_period)?;
    }
    problem_lines(text::told(&report.problems, style))
        .iter()
        .try_for_each(|line| note(style, out, line))
}

/// Why there are no cycles, where they were asked for.
fn costs_not_known(report: &ListReport) -> Option<String> {
    match report.costs.as_ref()? {
        Ok(costs) => costs::not_known(costs.scale).map(str::to_owned),
        Err(why) => Some(format!("not known: {why}")),
    }
}

/// The head without `-v`: procedure and samples in a line, the recording in another.
fn list_brief(report: &ListReport, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let samples = report.events.iter().map(|column| here(column, report.image.kind));
    let samples = samples.collect::<Vec<_>>().join(", ");
    let listing = &report.listing;
    let name = match report.stacks {
        Some(_) => listing.procedure.clone(),
        None => of_procedure(&listing.procedure, listing.addresses.clone(), width(&samples), style),
    };
    heads::brief(&format!("{name}: {samples}"), &report.selection, &report.whose, style, out)
}

fn list_head(report: &ListReport, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    selection(&report.selection, style, out)?;
    let listing = &report.listing;
    let (start, end) = (listing.addresses.start, listing.addresses.end);
    match report.stacks {
        Some(_) => head(style, out, "function", &escape(&listing.procedure))?,
        None => {
            let procedure = of_procedure(&listing.procedure, start..end, 0, style);
            head(style, out, "procedure", &procedure)?;
        }
    }
    also(&report.aliases, style, out)?;
    let path = if report.image.path.is_empty() { &report.image.name } else { &report.image.path };
    detail(style, out, "image", &format!("{path}, {}", report.image.id))?;
    let files: BTreeSet<&str> = frames(report).filter_map(|frame| frame.file.as_deref()).collect();
    for (at, file) in files.iter().take(FILES).enumerate() {
        detail(style, out, if at == 0 { "source" } else { "" }, file)?;
    }
    if files.len() > FILES {
        head(style, out, "", &format!("and {} more", files.len() - FILES))?;
    }
    if !report.whose.is_all() {
        let noun = if report.is_exact() { "counts" } else { "samples" };
        head(style, out, "only", &format!("{noun} {}", report.whose.shown()))?;
    }
    for column in &report.events {
        head(style, out, "event", &event(column, report.image.kind))?;
    }
    counted_and_shares(report, style, out)?;
    match &report.costs {
        Some(Ok(costs)) => costs.text(style, out),
        Some(Err(why)) => head(style, out, "cycles", &format!("not known: {why}")),
        None => Ok(()),
    }
}

/// Where samples are, and what shares are of. Exact counts have neither skid nor intervals.
fn counted_and_shares(report: &ListReport, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    if report.is_exact() {
        let nouns = nouns(&report.events);
        return detail(style, out, "shares", &format!("of the procedure's {nouns}"));
    }
    let sure = plain(report.confidence.percent());
    if let Some(stacks) = report.stacks {
        let text = format!(
            "a part of the interpreter's, in the proportion of call stacks: {} here",
            thousands(stacks)
        );
        head(style, out, "samples", &text)?;
        return detail(
            style,
            out,
            "shares",
            &format!("of these samples; ± of {sure} % confidence"),
        );
    }
    let given = report.skid.as_ref().is_some_and(|(_, skid)| skid.instructions() > 0);
    let shown = landed(
        report.skid.as_ref().map(|(event, skid)| (event.as_str(), *skid)),
        report.listing.kept,
    );
    head(
        style,
        out,
        "samples",
        &format!("{shown}{}", if given { "; --raw moves none" } else { "" }),
    )?;
    detail(style, out, "shares", &format!("of the procedure's samples; ± of {sure} % confidence"))
}

/// A procedure's name and addresses, for a line of the head with so many other characters.
pub(super) fn of_procedure(
    name: &str,
    addresses: Range<u64>,
    others: usize,
    style: &Style,
) -> String {
    let at = format!(" [{:#x}..{:#x}]", addresses.start, addresses.end);
    let room = if style.full_names {
        usize::MAX
    } else {
        style.columns.saturating_sub(HEAD_LEFT + width(&at) + others)
    };
    // The suffix stays: the address range is of this clone only.
    format!("{}{at}", fit_procedure(name, room.max(TEXT_MIN)))
}

/// Other names of a procedure.
pub(super) fn also(aliases: &[String], style: &Style, out: &mut dyn Write) -> io::Result<()> {
    if aliases.is_empty() {
        return Ok(());
    }
    let shown: Vec<&str> = aliases.iter().take(ALIASES).map(String::as_str).collect();
    let more = aliases.len().saturating_sub(ALIASES);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    head(style, out, "also", &format!("{}{more}", shown.join(", ")))
}

/// An event's samples in the procedure, and their share of all samples, in a few words.
fn here(column: &EventColumn, kind: ImageKind) -> String {
    let (here, all, _) = parts(column, kind);
    let (shown, name) = (counted(here, column.event.noun()), &column.event.name);
    format!("{shown} of {name}, {} %", percent(ratio(here, all)))
}

/// An event's samples in the procedure, all of its samples, and those of the idle loop. As in
/// `dcpi prof`, samples of the idle loop do not count, unless the procedure is the idle loop's.
fn parts(column: &EventColumn, kind: ImageKind) -> (u64, u64, u64) {
    let idle = if kind == ImageKind::Idle { 0 } else { column.idle };
    let all = column.event.equal(column.event.taken).saturating_sub(idle);
    (column.equal(), all, idle)
}

/// An event's samples in the procedure, and their share of all samples.
fn event(column: &EventColumn, kind: ImageKind) -> String {
    let event = &column.event;
    let (here, all, idle) = parts(column, kind);
    let how = match event.is_exact() {
        true => "counted exactly".to_owned(),
        false => format!("one every {}", period(event.period, &event.unit)),
    };
    format!(
        "{}: {} here, {} % of {}{}, {how}",
        event.name,
        counted(here, event.noun()),
        percent(ratio(here, all)),
        thousands(all),
        if idle > 0 { " that are not idle" } else { "" },
    )
}

fn frames(report: &ListReport) -> impl Iterator<Item = &Frame> {
    report.listing.instructions.iter().filter_map(|instruction| instruction.frames.first())
}

/// The names of source files: without directories, unless two files would have the same name.
fn file_names(report: &ListReport) -> BTreeMap<String, String> {
    let all = report.listing.instructions.iter().flat_map(|instruction| &instruction.frames);
    let files: BTreeSet<&str> = all.filter_map(|frame| frame.file.as_deref()).collect();
    let last = |file: &str| file.rsplit('/').next().unwrap_or(file).to_owned();
    let mut same: BTreeMap<String, usize> = BTreeMap::new();
    files.iter().for_each(|file| *same.entry(last(file)).or_default() += 1);
    let name = |file: &&str| {
        let short = last(file);
        let name = if same.get(&short).is_some_and(|files| *files > 1) {
            (*file).to_owned()
        } else {
            short
        };
        ((*file).to_owned(), name)
    };
    files.iter().map(name).collect()
}

/// The lines below the head.
struct Body<'a> {
    report: &'a ListReport,
    style: &'a Style,
    rows: Vec<Row>,
    files: BTreeMap<String, String>,
}

/// A line: an instruction or source line with its numbers, or a heading.
struct Row {
    /// Samples, share and half the interval's width, of each event; empty without samples. Exact
    /// events have no interval.
    numbers: Vec<[String; 3]>,
    /// Executions, cycles and causes of stalls; empty where they are not shown.
    costs: [String; TITLES.len()],
    /// Share of the first event's samples, from 0 to 1.
    share: f64,
    text: String,
    heading: bool,
}

impl Body<'_> {
    fn add(
        &mut self,
        counts: &[u64],
        shares: &[Share],
        costs: [String; TITLES.len()],
        text: String,
    ) {
        let columns = counts.iter().zip(shares).zip(&self.report.events);
        let numbers = columns.map(|((count, share), column)| {
            let interval = |is_exact| if is_exact { String::new() } else { percent(share.reach()) };
            match count {
                0 => Default::default(),
                count => {
                    let interval = interval(column.event.is_exact());
                    [thousands(*count), percent(share.value), interval]
                }
            }
        });
        let share = shares.first().map_or(0.0, |share| share.value);
        self.rows.push(Row { numbers: numbers.collect(), costs, share, text, heading: false });
    }

    fn heading(&mut self, text: String) {
        self.rows.push(Row {
            numbers: Vec::new(),
            costs: Default::default(),
            share: 0.0,
            text,
            heading: true,
        });
    }

    /// Instructions, and the source line before the first of each run of instructions of one line.
    fn instructions(&mut self) {
        let report = self.report;
        let targets = report.listing.jump_targets();
        let digits = format!("{:x}", report.listing.addresses.end).len();
        let mut before: &[Frame] = &[];
        let mut next = None;
        for (instruction, shares) in report.listing.instructions.iter().zip(&report.shares) {
            if report.view == View::Both && !same_lines(before, &instruction.frames) {
                let heading = self.place(&instruction.frames);
                self.heading(heading);
                before = &instruction.frames;
            }
            // Only blocks that --hot leaves out are missing between two instructions.
            if report.is_hot && next.is_some_and(|next| next != instruction.address) {
                self.heading("…".to_owned());
            }
            next = Some(instruction.address.saturating_add(instruction.len));
            let mark = if targets.contains(&instruction.address) { '>' } else { ' ' };
            let indent = if report.view == View::Both { "  " } else { "" };
            let text = self.instruction(instruction);
            let costs = report
                .known_costs()
                .map(|costs| costs.cells(instruction.address))
                .unwrap_or_default();
            if let Some(causes) = report.known_costs().and_then(|of| of.causes(instruction.address))
            {
                self.heading(format!("stalled: {causes}"));
            }
            let text = format!("{indent}{mark} {:>digits$x}  {text}", instruction.address);
            self.add(&instruction.counts, shares, costs, text);
        }
    }

    fn instruction(&self, instruction: &ListedInstruction) -> String {
        let mut text = escape(&instruction.text).into_owned();
        match (&instruction.target_name, instruction.target) {
            (Some(name), _) if self.style.full_names => {
                text.push_str(&format!(" <{}>", escape(name)))
            }
            (Some(name), _) => text.push_str(&format!(
                " <{}>",
                escape(&fit_procedure(without_suffix(name), TARGET_MAX))
            )),
            (None, Some(target)) if self.report.listing.addresses.contains(&target) => {
                text.push_str(if target > instruction.address { " ↓" } else { " ↑" });
            }
            _ => {}
        }
        text
    }

    /// A source line and its text, and the calls by which it is here: `helper.h:7  x += y;
    /// [helper, inlined at main.c:12]`.
    fn place(&self, frames: &[Frame]) -> String {
        let Some((innermost, outer)) = frames.split_first() else {
            return "no source line".to_owned();
        };
        let mut text = self.location(innermost);
        if let Some(line) = self.report.text_of(innermost) {
            text.push_str("  ");
            text.push_str(&escape(line.trim().replace('\t', TAB).as_str()));
        }
        let function =
            |frame: &Frame| escape(frame.function.as_deref().unwrap_or("?")).into_owned();
        if let Some((procedure, calls)) = outer.split_last() {
            text.push_str(&format!("  [{}, inlined at", function(innermost)));
            calls.iter().for_each(|call| {
                text.push_str(&format!(" {} of {},", self.location(call), function(call)))
            });
            text.push_str(&format!(" {}]", self.location(procedure)));
        }
        text
    }

    fn location(&self, frame: &Frame) -> String {
        let file =
            frame.file.as_deref().map(|file| self.files.get(file).map_or(file, String::as_str));
        let file = escape(file.unwrap_or("?")).into_owned();
        frame.line.map_or_else(|| format!("{file}:?"), |line| format!("{file}:{line}"))
    }

    /// Source lines by function and file, those of the procedure first.
    fn sources(&mut self) {
        let lines = self.report.lines();
        let of_one = |a: &SourceLine, b: &SourceLine| {
            (a.inlined, &a.place.function, &a.place.file)
                == (b.inlined, &b.place.function, &b.place.file)
        };
        for lines in lines.chunk_by(of_one) {
            let Some(first) = lines.first() else {
                continue;
            };
            let function = escape(first.place.function.as_deref().unwrap_or("?")).into_owned();
            let file = escape(first.place.file.as_deref().unwrap_or("no source file")).into_owned();
            let inlined = if first.inlined { ", inlined here" } else { "" };
            self.heading(format!("{function} ({file}){inlined}"));
            self.source_lines(lines);
        }
    }

    fn source_lines(&mut self, lines: &[SourceLine]) {
        let first = lines.iter().find_map(|line| line.place.line);
        let mut next = first.map_or(1, |line| line.saturating_sub(AROUND).max(1));
        let digits =
            lines.iter().filter_map(|line| line.place.line).max().unwrap_or(1).to_string().len();
        for line in lines {
            if let Some(number) = line.place.line {
                self.between(&line.place, next..number, digits);
                next = number.saturating_add(1);
            }
            let number =
                line.place.line.map_or_else(|| "?".to_owned(), |number| number.to_string());
            let text = self.report.text_of(&line.place).unwrap_or_default();
            let shares = self.report.shares_of(&line.counts);
            self.add(
                &line.counts,
                &shares,
                Default::default(),
                format!("{number:>digits$}  {}", escape(&text.replace('\t', TAB))),
            );
        }
        if let Some(last) = lines.last().filter(|line| line.place.line.is_some()) {
            self.between(&last.place, next..next.saturating_add(AROUND), digits);
        }
    }

    /// Lines without code, where they are few.
    fn between(&mut self, like: &Frame, lines: std::ops::Range<u32>, digits: usize) {
        if lines.end.saturating_sub(lines.start) > GAP_LINES {
            return self.add(&[], &[], Default::default(), format!("{:>digits$}", "…"));
        }
        for number in lines {
            let place = Frame { line: Some(number), ..like.clone() };
            if let Some(text) = self.report.text_of(&place) {
                self.add(
                    &[],
                    &[],
                    Default::default(),
                    format!("{number:>digits$}  {}", escape(&text.replace('\t', TAB))),
                );
            }
        }
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let events = self.report.events.len();
        let titles: Vec<[String; 3]> = self.report.events.iter().map(titles).collect();
        let least = |[count, _, interval]: &[String; 3]| match interval.is_empty() {
            true => [width(count), 5, 0],
            false => [width(count), 5, 4],
        };
        let mut widths: Vec<[usize; 3]> = titles.iter().map(least).collect();
        for row in &self.rows {
            for (widths, cells) in widths.iter_mut().zip(&row.numbers) {
                widths
                    .iter_mut()
                    .zip(cells)
                    .for_each(|(widest, cell)| *widest = (*widest).max(width(cell)));
            }
        }
        let mut costs = self.costs_widths();
        self.spare(&mut widths, &mut costs);
        let cost_cells = |cells: &[String; TITLES.len()]| {
            costs.map_or_else(String::new, |widths| right(cells, &widths))
        };
        if events > 1 {
            let names = self.report.events.iter().zip(&widths).map(|(column, widths)| {
                let wide = shown_width(widths) - GAP.len();
                format!("{:-^wide$}", format!(" {} ", escape(&column.event.name)))
            });
            writeln!(out, "{}", names.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        // Source lines and causes begin below the titles of costs, which they have none of.
        let indent: usize = widths.iter().map(|widths| shown_width(widths)).sum();
        let above = cost_cells(&TITLES_ABOVE.map(str::to_owned));
        if !above.trim().is_empty() {
            writeln!(out, "{}{}", " ".repeat(indent), above.trim_end())?;
        }
        let titles =
            format!("{}{}", numbers(&titles, &widths), cost_cells(&TITLES.map(str::to_owned)));
        writeln!(out, "{}", titles.trim_end())?;
        let left = indent + costs.map_or(0, |widths| shown_width(&widths));
        for row in &self.rows {
            let room = match self.style.full_names {
                true => usize::MAX,
                false => {
                    let before = if row.heading { indent } else { left };
                    self.style.columns.saturating_sub(before).max(TEXT_MIN)
                }
            };
            let text = cut(&row.text, room);
            let line = if row.heading {
                format!(
                    "{}{}",
                    " ".repeat(indent),
                    Colour::paint(Some(Colour::Faint), &text, self.style)
                )
            } else {
                let cells = Colour::paint(
                    Colour::of_share(row.share),
                    &numbers(&row.numbers, &widths),
                    self.style,
                );
                format!("{cells}{}{text}", cost_cells(&row.costs))
            };
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

impl Body<'_> {
    /// The widths of the columns of costs; none where they are not shown. Columns without any
    /// number have the width 0, which hides them.
    fn costs_widths(&self) -> Option<[usize; TITLES.len()]> {
        self.report.known_costs()?;
        let mut widths = [0; TITLES.len()];
        for row in &self.rows {
            let cells = widths.iter_mut().zip(&row.costs);
            cells.for_each(|(widest, cell)| *widest = (*widest).max(width(cell)));
        }
        let titles = TITLES.iter().zip(TITLES_ABOVE);
        for (widest, (title, above)) in widths.iter_mut().zip(titles) {
            if *widest > 0 {
                *widest = (*widest).max(width(title)).max(width(above));
            }
        }
        Some(widths)
    }

    /// Hides columns, by the width 0, until instructions have the room that the longest of them
    /// needs, or [`ROOM`]: intervals first, then confidence.
    fn spare(&self, widths: &mut [[usize; 3]], costs: &mut Option<[usize; TITLES.len()]>) {
        if self.style.full_names {
            return;
        }
        let instructions = self.rows.iter().filter(|row| !row.heading);
        let wanted = instructions.map(|row| width(&row.text)).max().unwrap_or(0).min(ROOM);
        let fits = |widths: &[[usize; 3]], costs: &Option<[usize; TITLES.len()]>| {
            let left: usize = widths.iter().map(|widths| shown_width(widths)).sum();
            let left = left + costs.map_or(0, |widths| shown_width(&widths));
            left + wanted <= self.style.columns
        };
        if !fits(widths, costs) {
            widths.iter_mut().for_each(|[_, _, interval]| *interval = 0);
        }
        if !fits(widths, costs)
            && let Some([_, confidence, ..]) = costs
        {
            *confidence = 0;
        }
    }
}

/// Whether two instructions come from the same lines, columns aside.
fn same_lines(a: &[Frame], b: &[Frame]) -> bool {
    let place = |frame: &Frame| (frame.function.clone(), frame.file.clone(), frame.line);
    !a.is_empty() && a.iter().map(place).eq(b.iter().map(place))
}

/// The numbers of a row, event after event; a row without numbers is as wide.
fn numbers(cells: &[[String; 3]], widths: &[[usize; 3]]) -> String {
    let mut line = String::new();
    for (at, widths) in widths.iter().enumerate() {
        let none = Default::default();
        line.push_str(&right(cells.get(at).unwrap_or(&none), widths));
    }
    line
}

/// The titles of an event's columns; that of the interval is empty where there is none.
fn titles(column: &EventColumn) -> [String; 3] {
    let interval = if column.event.is_exact() { "" } else { "±" };
    [column.event.nouns(), "%".to_owned(), interval.to_owned()]
}

/// Widths of columns in characters, with the gap after each; columns of width 0 are not shown.
fn shown_width(widths: &[usize]) -> usize {
    widths.iter().filter(|width| **width > 0).map(|width| width + GAP.len()).sum()
}

/// Cells side by side, each to the right.
fn right<const N: usize>(cells: &[String; N], widths: &[usize; N]) -> String {
    let mut line = String::new();
    for (cell, width) in cells.iter().zip(widths).filter(|(_, width)| **width > 0) {
        line.push_str(&" ".repeat(width.saturating_sub(self::width(cell))));
        line.push_str(cell);
        line.push_str(GAP);
    }
    line
}

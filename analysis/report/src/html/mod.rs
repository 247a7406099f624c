//! A report as one HTML file.
//!
//! All that comes from a profile is in one block of JSON, which the script turns into text nodes:
//! no name is ever parsed as HTML. The page's own policy allows its own script and style only, and
//! no connection.

use std::collections::BTreeMap;
use std::io::{self, Write};

use code::skid::Skid;
use image::{ImageId, ImageKind, without_suffix};
use serde::Serialize;

use super::flame::{self, Flame, FlameJson};
use super::json::rounded;
use super::landed::landed;
use super::{Costs, ProfReport, Row, costs, escape, table, text};
use annotate::listing::{ListedInstruction, Listing};
use names::shorten::brief;
use stats::tally::Tally;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");
const BODY: &str = include_str!("body.html");
/// Characters of a name; the middle of longer ones is left out.
const NAME_MAX: usize = 600;
/// Most instructions of a listing: of a longer one, only those near samples are shown.
const LISTED_MAX: usize = 3000;
/// Instructions shown on either side of one with samples, in a listing that is too long.
const NEAR: usize = 12;

/// Tables of images and procedures with listings.
#[derive(Debug)]
pub struct HtmlReport {
    /// Procedures.
    pub procedures: ProfReport,
    /// Images.
    pub images: ProfReport,
    /// Listings by the number of the procedure's row, with executions, cycles and stalls where they
    /// are known.
    pub listings: BTreeMap<usize, (Listing, Option<Costs>)>,
    /// Flame graphs, where there are call stacks.
    pub flames: Vec<Flame>,
    /// Skid that the listings correct; none: samples are where the processor reported them.
    pub skid: Option<(String, Skid)>,
}

#[derive(Serialize)]
struct Page<'a> {
    head: Vec<String>,
    notes: Vec<String>,
    confidence: f64,
    events: Vec<Event>,
    images: Vec<ImageRow>,
    procedures: Vec<ProcedureRow>,
    omitted: Omitted,
    listings: BTreeMap<usize, Listed>,
    /// Titles of the columns of executions, cycles and stalls.
    costs: [&'static str; costs::TITLES.len()],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    flames: Vec<FlameJson<'a>>,
}

#[derive(Serialize)]
struct Event {
    name: String,
    counted: u64,
}

/// Rows that are not in the page, and their samples by event.
#[derive(Serialize)]
struct Omitted {
    images: usize,
    procedures: usize,
    counts: Vec<u64>,
}

#[derive(Serialize)]
struct ImageRow {
    name: String,
    path: String,
    /// Number that procedures name it by.
    id: String,
    n: Vec<u64>,
    s: Vec<[f64; 3]>,
}

#[derive(Serialize)]
struct ProcedureRow {
    name: String,
    /// All of the name, where that is more.
    #[serde(skip_serializing_if = "Option::is_none")]
    whole: Option<String>,
    image: String,
    id: String,
    address: String,
    n: Vec<u64>,
    s: Vec<[f64; 3]>,
}

#[derive(Serialize)]
struct Listed {
    range: String,
    notes: Vec<String>,
    /// Its loops, each in a line.
    loops: Vec<String>,
    /// Whether the lines have executions, cycles and stalls.
    costs: bool,
    lines: Vec<Line>,
}

/// Address, instruction, samples, place in the source, and what executions took where that is known
/// ([`Costs::cells`]); or a number of instructions that are left out.
#[derive(Serialize)]
#[serde(untagged)]
enum Line {
    Instruction(String, String, Vec<u64>, String, Vec<String>),
    Gap(usize),
}

/// Writes the page. The page's policy recognises its own script by `nonce`, which must not be
/// guessable by anyone who can choose names.
pub fn write(report: &HtmlReport, nonce: &str, out: &mut dyn Write) -> io::Result<()> {
    let json = serde_json::to_string(&page(report)).map_err(io::Error::from)?;
    // Within a string of JSON these may be spelt otherwise, and elsewhere they do not occur.
    let json = json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
    let hosts = report.procedures.selection.hosts().join(", ");
    let title = draw::escaped(&format!("Where have all the cycles gone? {}", escape(&hosts)));
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; base-uri 'none'; form-action 'none'"
    );
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n<title>{title}</title>\n\
         <style nonce=\"{nonce}\">\n{STYLE}{}{}</style>\n</head>\n<body>\n{BODY}\
         <script type=\"application/json\" id=\"data\">{json}</script>\n\
         <script nonce=\"{nonce}\">\n{}{SCRIPT}</script>\n</body>\n</html>\n",
        flame::STYLE,
        flame::colours(true),
        flame::SCRIPT,
    )
}

fn page(report: &HtmlReport) -> Page<'_> {
    let procedures = &report.procedures;
    let events = procedures.events.iter();
    let brief = brief_names(&procedures.rows);
    let rows =
        procedures.rows.iter().zip(brief).map(|(row, brief)| procedure_row(procedures, row, brief));
    Page {
        head: text::head_lines(procedures),
        notes: text::note_lines(procedures),
        confidence: procedures.confidence.percent(),
        events: events
            .map(|column| Event { name: name(&column.event.name), counted: column.equal() })
            .collect(),
        images: report.images.rows.iter().map(|row| image_row(procedures, row)).collect(),
        procedures: rows.collect(),
        omitted: Omitted {
            images: report.images.omitted.rows,
            procedures: procedures.omitted.rows,
            counts: equal(procedures, &procedures.omitted.counts),
        },
        listings: report
            .listings
            .iter()
            .map(|(row, listing)| (*row, listed(listing, report.skid.as_ref())))
            .collect(),
        costs: costs::TITLES,
        flames: report.flames.iter().map(Flame::json).collect(),
    }
}

/// A name as it is shown: nothing invisible in it, and not without end.
fn name(name: &str) -> String {
    super::shorten(&escape(name), NAME_MAX)
}

fn shares(row: &Row) -> Vec<[f64; 3]> {
    row.shares
        .iter()
        .map(|share| [rounded(share.value), rounded(share.low), rounded(share.high)])
        .collect()
}

/// As many samples as stand for what these do, each for as much: what the page adds up and divides.
fn equal(report: &ProfReport, counts: &[Tally]) -> Vec<u64> {
    report.events.iter().zip(counts).map(|(column, count)| column.event.equal(*count)).collect()
}

fn image_row(report: &ProfReport, row: &Row) -> ImageRow {
    let image = row.image.as_ref();
    ImageRow {
        name: image.map(|image| name(&image.name)).unwrap_or_default(),
        path: image.map(|image| name(&image.path)).unwrap_or_default(),
        id: image.map(|image| image.id.to_string()).unwrap_or_default(),
        n: equal(report, &row.counts),
        s: shares(row),
    }
}

/// The procedures' names without parameters and template arguments, but where two of an image would
/// be one; those with what tells them apart, in as little room as it takes.
fn brief_names(rows: &[Row]) -> Vec<String> {
    let image = |row: &Row| row.image.as_ref().map(|image| image.id);
    let is_generated =
        |row: &Row| row.image.as_ref().is_some_and(|image| image.kind == ImageKind::Jit);
    let brief = |row: &Row| match &row.procedure {
        // Names of generated code are no C++; a place in a file may stand in parentheses there.
        Some(procedure) if is_generated(row) => procedure.name.clone(),
        Some(procedure) if procedure.needs_suffix => brief(&procedure.name),
        Some(procedure) => brief(without_suffix(&procedure.name)),
        None => String::new(),
    };
    let shown: Vec<String> = rows.iter().map(brief).collect();
    let mut same: BTreeMap<(Option<ImageId>, &str), Vec<&str>> = BTreeMap::new();
    for (row, brief) in rows.iter().zip(&shown) {
        let whole = row.procedure.as_ref().map_or("", |procedure| &procedure.name);
        same.entry((image(row), brief)).or_default().push(whole);
    }
    let apart = |(row, brief): (&Row, &String)| {
        let others = same.get(&(image(row), brief.as_str())).filter(|names| names.len() > 1)?;
        let procedure = row.procedure.as_ref()?;
        let difference = table::difference(&procedure.name, others);
        let address = procedure.address.map(|at| format!(" [{at:#x}]")).unwrap_or_default();
        Some(format!("{brief}{}", if difference.is_empty() { address } else { difference }))
    };
    rows.iter().zip(&shown).map(|of| name(&apart(of).unwrap_or_else(|| of.1.clone()))).collect()
}

fn procedure_row(report: &ProfReport, row: &Row, brief: String) -> ProcedureRow {
    let (image, procedure) = (row.image.as_ref(), row.procedure.as_ref());
    let address = procedure.and_then(|procedure| procedure.address);
    ProcedureRow {
        whole: procedure.map(|procedure| name(&procedure.name)).filter(|whole| *whole != brief),
        name: brief,
        image: image.map(|image| name(&image.name)).unwrap_or_default(),
        id: image.map(|image| image.id.to_string()).unwrap_or_default(),
        address: address.map(|address| format!("{address:#x}")).unwrap_or_default(),
        n: equal(report, &row.counts),
        s: shares(row),
    }
}

fn listed((listing, costs): &(Listing, Option<Costs>), skid: Option<&(String, Skid)>) -> Listed {
    let shown = shown(&listing.instructions);
    let mut lines = Vec::new();
    let mut gap = 0;
    for (instruction, shown) in listing.instructions.iter().zip(shown) {
        if !shown {
            gap += 1;
            continue;
        }
        if gap > 0 {
            lines.push(Line::Gap(std::mem::take(&mut gap)));
        }
        let address = format!("{:x}", instruction.address);
        let (text, counts, place) =
            (name(&instruction.text), instruction.counts.clone(), place(instruction));
        let costs = costs.iter().flat_map(|costs| costs.cells(instruction.address)).collect();
        lines.push(Line::Instruction(address, text, counts, place, costs));
    }
    if gap > 0 {
        lines.push(Line::Gap(gap));
    }
    let skid = skid.filter(|_| listing.isa.is_some()).map(|(event, skid)| (event.as_str(), *skid));
    let shown = format!("samples {}", landed(skid, listing.kept));
    let problems = listing.problems.iter().map(|problem| name(&problem.to_string()));
    Listed {
        range: format!("{:#x}–{:#x}", listing.addresses.start, listing.addresses.end),
        notes: std::iter::once(shown)
            .chain(costs.iter().flat_map(Costs::notes))
            .chain(problems)
            .collect(),
        loops: costs.as_ref().map(Costs::loops).unwrap_or_default(),
        costs: costs.is_some(),
        lines,
    }
}

/// Which instructions are shown: all, or, where that is too long, those near samples.
fn shown(instructions: &[ListedInstruction]) -> Vec<bool> {
    if instructions.len() <= LISTED_MAX {
        return vec![true; instructions.len()];
    }
    let mut shown = vec![false; instructions.len()];
    let mut order: Vec<usize> = (0..instructions.len()).collect();
    let samples = |at: &usize| {
        instructions
            .get(*at)
            .map_or(0, |instruction| query::load::sum(instruction.counts.iter().copied()))
    };
    order.retain(|at| samples(at) > 0);
    order.sort_by_key(|at| std::cmp::Reverse(samples(at)));
    let mut left = LISTED_MAX;
    for at in order {
        let near = at.saturating_sub(NEAR)..(at + NEAR + 1).min(instructions.len());
        for is_shown in shown.get_mut(near).unwrap_or_default() {
            if left > 0 && !*is_shown {
                *is_shown = true;
                left -= 1;
            }
        }
    }
    shown
}

/// `file:line`, of the innermost inlined call, with the call's name.
fn place(instruction: &ListedInstruction) -> String {
    let Some(frame) = instruction.frames.first() else { return String::new() };
    let file = frame.file.as_deref().map(|path| path.rsplit('/').next().unwrap_or(path));
    let line = frame.line.map(|line| format!(":{line}")).unwrap_or_default();
    let inlined = frame.function.as_deref().filter(|_| instruction.frames.len() > 1);
    let inlined = inlined.map(|function| format!(" {function}")).unwrap_or_default();
    file.map(|file| name(&format!("{file}{line}{inlined}"))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::ImageOffset;

    fn instruction(at: u64, count: u64) -> ListedInstruction {
        ListedInstruction {
            address: at,
            offset: ImageOffset(at),
            len: 1,
            text: "nop".into(),
            target: None,
            bars: false,
            target_name: None,
            counts: vec![count],
            frames: Vec::new(),
        }
    }

    #[test]
    fn a_listing_that_is_too_long_keeps_what_is_near_samples() {
        let few: Vec<_> = (0..5).map(|at| instruction(at, 0)).collect();
        assert_eq!(shown(&few), [true; 5]);
        let hot = [0, 40, 9_999];
        let many: Vec<_> =
            (0..10_000).map(|at| instruction(at, u64::from(hot.contains(&at)))).collect();
        let kept: Vec<usize> = shown(&many)
            .iter()
            .enumerate()
            .filter(|(_, shown)| **shown)
            .map(|(at, _)| at)
            .collect();
        let expected: Vec<usize> = (0..=12).chain(28..=52).chain(9_987..10_000).collect();
        assert_eq!(kept, expected);
        let all: Vec<_> = (0..10_000).map(|at| instruction(at, 1)).collect();
        assert_eq!(shown(&all).iter().filter(|shown| **shown).count(), LISTED_MAX);
    }

    #[test]
    fn the_page_is_its_own_and_asks_nobody() {
        for part in [STYLE, SCRIPT, BODY, flame::STYLE, flame::SCRIPT, &flame::colours(true)] {
            for word in [
                "http:",
                "https:",
                "//cdn",
                "@import",
                "url(",
                "innerHTML",
                "eval(",
                "onclick",
                "style=",
            ] {
                assert!(!part.contains(word), "{word}");
            }
        }
        assert!(!SCRIPT.contains("</script") && !STYLE.contains("</style"));
    }
}

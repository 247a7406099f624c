//! `dcpi html`: reports as one file for a browser.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde_json::Value;

use super::Outcome;
use super::costs::OnMachine;
use super::page::{self, Runner, Selection};
use crate::destination::Destination;
use crate::options::{Chosen, OfThreads, RowLimit};
use face::{Page, Report};
use query::error::AnalysisError;
use query::progress;
use query::select::EpochChoice;
use stats::Confidence;

/// Most rows of the table of procedures.
const ROWS_MAX: usize = 100_000;
/// Most listings in a page: each may take some hundred KiB.
const LISTINGS_MAX: usize = 500;
/// Most procedures of a comparison that are listed on both sides.
const SIDES_MAX: usize = 12;
/// Procedures that took more time after, of which both sides have their causes.
const GROWN: usize = 3;
/// Most instructions of a listing: of a longer one, only those near samples are in the page.
const LISTED_MAX: usize = 600;
/// Instructions kept on either side of one with samples, in a listing that is too long.
const NEAR: usize = 12;
/// Findings of `dcpi why`, as `app/facts.ts` asks for them.
const WHY: [&str; 2] = ["why", "-n40"];
/// Smallest share of all time of a call in trees of calls, as in `app/facts.ts`.
const TREE_MIN: &str = "--min=0.02%";
/// The same of a tree for each thread, of which there may be thousands.
const THREADS_MIN: &str = "--min=0.1%";

/// `dcpi html`.
#[derive(Debug, Args)]
#[command(
    after_help = NOTES,
    mut_arg("rows", |rows| rows.default_value("2000").help("At most N procedures, 0 for 100000"))
)]
pub struct Html {
    /// Only these images in the tables of procedures and images: name, path, or id (may be cut
    /// short); shares are of their samples
    #[arg(value_name = "IMAGE", value_parser = NonEmptyStringValueParser::new())]
    pub images: Vec<String>,
    /// The file to write; - for standard output
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    pub file: PathBuf,
    #[command(flatten)]
    pub max: RowLimit,
    /// List the instructions of the N procedures with the most samples, at most 500
    #[arg(long, value_name = "N", default_value = "40")]
    pub listings: usize,
    /// Instructions in the syntax of Intel's manuals, destination first [default: AT&T's syntax]
    #[arg(long)]
    pub intel: bool,
    /// Executions, cycles and causes of stalls of each instruction in the listings (takes a minute
    /// for large images)
    #[arg(long)]
    pub why: bool,
    /// Also compare sets, as dcpi diff does: given twice, the first with the second; given once,
    /// this set of epochs, time or database with the selection that the page is of
    #[arg(long = "diff", value_name = "SET", allow_hyphen_values = true)]
    pub diff: Vec<String>,
    /// What the file is about, for its readers: shown in its head, at most 500 characters
    #[arg(long, value_name = "TEXT", value_parser = parse_note)]
    pub note: Option<String>,
    /// Include the samples of the idle loop in rows and shares
    #[arg(long)]
    pub idle: bool,
    /// Confidence of the intervals, in percent
    #[arg(
        long,
        value_name = "PERCENT",
        default_value = "95",
        value_parser = crate::options::parse_confidence
    )]
    pub confidence: Confidence,
    #[command(flatten)]
    pub on: OnMachine,
    #[command(flatten)]
    pub chosen: Chosen,
    #[command(flatten)]
    pub threads: OfThreads,
}

const NOTES: &str = "\
The file needs no other file and no network, so it can be kept and sent. It opens with what dcpi \
why says, beside a flame graph. It shows names of procedures, disassembled code and, with debug \
information, source lines. Its parts are reports of other commands; each view has the line that \
prints it. A field in its head restricts all views to one program, image, service, container or \
process, as far as the file's reports tell these apart. With --command, --thread or --tid the \
reports are those of call stacks, without listings. dcpi serve shows the same page, live.

Exit codes: those of dcpi prof.";

/// Most characters of a note: more would push what the page shows out of sight.
pub(crate) const NOTE_MAX: usize = 500;

fn parse_note(text: &str) -> Result<String, String> {
    let length = text.chars().count();
    if length > NOTE_MAX {
        return Err(format!("has {length} characters, and a note has at most {NOTE_MAX}"));
    }
    Ok(text.trim().to_owned())
}

pub(crate) fn run(
    args: &Html,
    runner: Runner,
    out: &mut dyn Write,
) -> Result<Outcome, AnalysisError> {
    let selection = Selection::of(&args.chosen, &args.threads)?;
    args.check_sets()?;
    if args.why && !selection.of_threads.is_empty() {
        let message = "--why explains samples, which are kept of all threads together".to_owned();
        return Err(AnalysisError::Usage { message, help: "dcpi html --help".to_owned() });
    }
    let mut reports = Reports { args, runner, selection, done: Vec::new(), aside: Vec::new() };
    reports.all()?;
    let Reports { selection, done, mut aside, .. } = reports;
    aside.dedup();
    let page = Page {
        subject: face::Subject::Profile,
        title: "dcpi".to_owned(),
        is_live: false,
        note: args.note.clone(),
        db: args.chosen.source.db().display().to_string(),
        selection: selection.words,
        of_threads: selection.of_threads,
        images: args.images.clone(),
        sets: args.sets(),
        version: env!("CARGO_PKG_VERSION"),
        terms: super::explain::terms(),
        reports: done,
    };
    let destination = Destination::from_argument(&args.file);
    destination.write(out, |out| Ok(face::write(&page, &page::nonce(), out)?))?;
    let sound = aside.is_empty();
    if destination == Destination::Stdout {
        return Ok(Outcome { sound, aside, code: None });
    }
    writeln!(out, "{}: open it in a browser", report::escape(&args.file.display().to_string()))?;
    Ok(Outcome { sound, aside, code: None })
}

impl Html {
    /// The sets that are compared, if any.
    fn sets(&self) -> Option<(String, String)> {
        let before = self.diff.first()?;
        let after = self.diff.get(1).cloned();
        let after = after.unwrap_or_else(|| self.chosen.epoch.to_string());
        Some((marked(before), marked(&after)))
    }

    /// Refuses sets of which it is not clear what they are compared with: the page's selection has
    /// no image, label and so on that the other set names.
    fn check_sets(&self) -> Result<(), AnalysisError> {
        let usage = |message: String| {
            Err(AnalysisError::Usage { message, help: "dcpi html --help".to_owned() })
        };
        if self.diff.len() > 2 {
            return usage("--diff is given more than twice: two sets are compared".to_owned());
        }
        let [before] = self.diff.as_slice() else { return Ok(()) };
        let set: compare::SetChoice = match before.parse() {
            Ok(set) => set,
            Err(why) => return usage(format!("the set {before:?} of --diff {why}")),
        };
        let page = &self.chosen.source.scope;
        let is_more = |of_set: &Option<String>, of_page: &Option<String>| {
            of_set.is_some() && of_page.is_none()
        };
        let is_part = is_more(&set.label, &page.label)
            || is_more(&set.unit, &page.unit)
            || is_more(&set.container, &page.container)
            || is_more(&set.pod, &page.pod)
            || is_more(&set.namespace, &page.namespace)
            || set.pid.is_some() && page.pid.is_none()
            || !set.images.is_empty() && self.images.is_empty();
        if is_part {
            return usage(format!(
                "--diff {before} is a part of the samples; name what it is compared with by a \
                 second --diff SET"
            ));
        }
        Ok(())
    }
}

/// The reports of a page, in the making.
struct Reports<'a> {
    args: &'a Html,
    runner: Runner,
    selection: Selection,
    done: Vec<Report>,
    /// Serious problems, in words.
    aside: Vec<String>,
}

impl Reports<'_> {
    /// Makes all reports. One that the database has nothing for, such as a tree without call
    /// stacks, is left out: the page says so where it would be.
    fn all(&mut self) -> Result<(), AnalysisError> {
        let of_threads = !self.selection.of_threads.is_empty();
        let rows = self.args.max.of(ROWS_MAX).to_string();
        let images = [&["--".to_owned()], self.args.images.as_slice()].concat();
        let images = if self.args.images.is_empty() { &[][..] } else { images.as_slice() };
        let prof = if of_threads {
            let prof = self.make(&["prof", "--inclusive"], &["-n", &rows], images)?;
            let more = self.selection.words.clone();
            self.done.push(Report { words: words(&["prof", "-i"]), more, json: prof.clone() });
            prof
        } else {
            let by_image = self.make(&["prof", "-i"], &[], images)?;
            self.pin(&by_image);
            // The page says since when each build of a program ran.
            self.try_to_make(&["images"]);
            match self.make(&["prof", "--inclusive"], &["-n", &rows], images) {
                Ok(prof) => prof,
                Err(_) => self.make(&["prof"], &["-n", &rows], images)?,
            }
        };
        let prof: Value = serde_json::from_slice(&prof).map_err(AnalysisError::Json)?;
        self.try_to_make(&["epochs"]);
        // It explains samples, which are kept of all threads together.
        if !of_threads {
            // It takes one image, and no `--` before it.
            let one = Some(self.args.images.as_slice()).filter(|images| images.len() == 1);
            let _ = self.make(&WHY, &[], one.unwrap_or_default());
        }
        let mut events: Vec<&str> = names(&prof);
        let running = events.iter().copied().find(|event| !is_wait(event));
        events.extend(WAITS.into_iter().filter(|wait| !names(&prof).contains(wait)));
        for event in events {
            self.try_to_make(&["tree", TREE_MIN, &format!("--event={event}")]);
        }
        if let Some(event) = running {
            let event = format!("--event={event}");
            self.try_to_make(&["tree", THREADS_MIN, &event, "--by-thread"]);
            for by in ["command", "pid", "thread", "unit", "container", "pod", "namespace", "label"]
            {
                self.try_to_make(&["prof", &format!("--by={by}"), &event]);
            }
            for by in ["image", "procedure", "command", "unit"] {
                let by = format!("--by={by}");
                self.try_to_make(&["timeline", &by, &event, "--slices=240", "-n40"]);
            }
            if !of_threads {
                self.listings(&prof, event.trim_start_matches("--event="));
            }
        }
        if let Some((before, after)) = self.args.sets() {
            // What the page is of is the default of both sets. Sets of times choose their epochs,
            // unless some were asked for.
            let images = self.args.images.iter().map(|image| format!("--image={image}"));
            let is_pinned = self.args.chosen.epoch == EpochChoice::back(0);
            let of_page = self.selection.words.iter();
            let of_page = of_page.filter(|word| !is_pinned || !word.starts_with("--epoch="));
            let more: Vec<String> = of_page.cloned().chain(images).collect();
            let more: Vec<&str> = more.iter().map(String::as_str).collect();
            let diff = self.make(&["diff", &before, &after], &more, &[])?;
            if !of_threads {
                self.sides(&diff, [&before, &after]);
            }
        }
        Ok(())
    }

    /// Names the epoch that the page is of in the commands that it shows: "latest" is another one
    /// when they are typed.
    fn pin(&mut self, by_image: &[u8]) {
        let report: Value = serde_json::from_slice(by_image).unwrap_or_default();
        let epochs: Vec<&str> = array(&report, "epochs").filter_map(Value::as_str).collect();
        let is_said = |word: &String| {
            ["--epoch=", "--since=", "--until="].iter().any(|option| word.starts_with(option))
        };
        let ([epoch], 1) = (epochs.as_slice(), array(&report, "hosts").count()) else { return };
        if self.selection.words.iter().any(is_said) {
            return;
        }
        let option = format!("--epoch={epoch}");
        self.done.iter_mut().for_each(|report| report.more.insert(0, option.clone()));
        self.selection.words.insert(0, option);
    }

    /// Listings of the procedures that changed most, before and after.
    fn sides(&mut self, diff: &[u8], sets: [&str; 2]) {
        let diff: Value = serde_json::from_slice(diff).unwrap_or_default();
        self.causes_of_sides(&diff, sets);
        let text = |row: &Value, name: &str| Some(row.get(name)?.as_str()?.to_owned());
        let changed: Vec<(String, String)> = rows(&diff)
            .take(SIDES_MAX.min(self.args.listings))
            .filter_map(|row| Some((text(row, "image")?, text(row, "procedure")?)))
            .collect();
        let why = if self.args.why { &["--why"][..] } else { &[] };
        let stage = progress::stage("making listings of changes", changed.len() as u64);
        for (image, procedure) in changed {
            stage.advance(1);
            for set in sets {
                let Some((options, of_set)) = page::of_set(set) else { continue };
                let image = of_set.unwrap_or_else(|| image.clone());
                let mut key = vec!["list", image.as_str(), procedure.as_str()];
                key.extend(options.iter().map(String::as_str));
                self.try_to_make(&[key.as_slice(), why].concat());
            }
        }
    }

    /// Causes on both sides of what took more time after, for the procedures that changed most, as
    /// `app/views/sides.tsx` asks for them.
    fn causes_of_sides(&mut self, diff: &Value, sets: [&str; 2]) {
        let grew = |row: &&Value| {
            row.get("significant").and_then(Value::as_bool) == Some(true)
                && row.get("change").and_then(Value::as_f64).is_some_and(|change| change > 0.0)
        };
        let change = |row: &Value| row.get("change").and_then(Value::as_f64).unwrap_or_default();
        let mut grown: Vec<&Value> = rows(diff).filter(grew).collect();
        grown.sort_by(|a, b| change(b).total_cmp(&change(a)));
        let mut keys: Vec<Vec<String>> = Vec::new();
        for row in grown.into_iter().take(GROWN) {
            for set in sets {
                let Some((options, of_set)) = page::of_set(set) else { continue };
                let image = of_set.as_deref().or_else(|| row.get("image")?.as_str());
                let mut key = words(&WHY);
                key.extend(image.map(str::to_owned));
                key.extend(options);
                if !keys.contains(&key) {
                    keys.push(key);
                }
            }
        }
        for key in keys {
            self.try_to_make(&key.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }

    /// Makes a report if the database has something for it.
    fn try_to_make(&mut self, key: &[&str]) {
        // What is missing, and how to get it, is said by the command that the page shows.
        let _ = self.make(key, &[], &[]);
    }

    /// Makes the report that the script asks for by `key`. `more` are options that the script does
    /// not know, and `last` arguments that end the line.
    fn make(
        &mut self,
        key: &[&str],
        more: &[&str],
        last: &[String],
    ) -> Result<Vec<u8>, AnalysisError> {
        let command = key.first().copied().unwrap_or_default();
        let mut line = words(key);
        line.extend(words(more));
        line.extend(self.look(command));
        if !["epochs", "diff"].contains(&command) {
            line.extend(page::without(&self.selection.words, key));
        }
        if ["prof", "tree", "timeline"].contains(&command) && !key.contains(&"-i") {
            line.extend(self.selection.of_threads.iter().cloned());
        }
        line.extend(last.iter().cloned());
        self.make_as(words(key), line)
    }

    fn make_as(
        &mut self,
        key: Vec<String>,
        line: impl IntoIterator<Item = String>,
    ) -> Result<Vec<u8>, AnalysisError> {
        // The arguments behind `--` come after the database and the format.
        let mut line: Vec<String> = line.into_iter().collect();
        let more = line.get(key.len()..).unwrap_or_default().to_vec();
        let last = line.iter().position(|word| word == "--").unwrap_or(line.len());
        let last = line.split_off(last);
        let (json, outcome) = page::json(self.runner, line, last, self.args.chosen.source.db())?;
        if !outcome.sound {
            self.aside.extend(serious(&json));
        }
        let json = if key.first().is_some_and(|word| word == "list") { cut(json) } else { json };
        self.done.push(Report { words: key, more, json: json.clone() });
        Ok(json)
    }

    /// The options of a command that say how samples are seen.
    fn look(&self, command: &str) -> Vec<String> {
        let args = self.args;
        let mut words = Vec::new();
        let takes = |commands: &[&str]| commands.contains(&command);
        if args.idle && takes(&["prof", "tree", "timeline"]) {
            words.push("--idle".to_owned());
        }
        if takes(&["prof", "tree", "timeline", "list"]) {
            words.push(format!("--confidence={}", args.confidence.percent()));
        }
        if takes(&["prof", "tree", "timeline", "list", "why"]) {
            let root = |root: &PathBuf| format!("--debug-root={}", root.display());
            words.extend(args.on.debug_root.iter().map(root));
        }
        if takes(&["list", "why"]) {
            words.extend(args.on.machine.iter().map(|name| format!("--machine={name}")));
            let file = |file: &PathBuf| format!("--latencies={}", file.display());
            words.extend(args.on.latencies.iter().map(file));
        }
        if args.intel && command == "list" {
            words.push("--intel".to_owned());
        }
        words
    }

    /// The listings of the procedures with the most samples of `event`.
    fn listings(&mut self, prof: &Value, event: &str) {
        let mut hot: Vec<(f64, &str, &str)> = rows(prof)
            .filter_map(|row| {
                let is_inlined = row.get("inlined").and_then(Value::as_bool).unwrap_or(false);
                let share = row.get("share")?.get(event)?.get("value")?.as_f64()?;
                let place = (share, row.get("image_id")?.as_str()?, row.get("address")?.as_str()?);
                (share > 0.0 && !is_inlined).then_some(place)
            })
            .collect();
        hot.sort_by(|a, b| b.0.total_cmp(&a.0));
        hot.truncate(self.args.listings.min(LISTINGS_MAX));
        let stage = progress::stage("making listings", hot.len() as u64);
        let why = if self.args.why { &["--why"][..] } else { &[] };
        for (_, image, address) in hot {
            stage.advance(1);
            self.try_to_make(&[&["list", image, address], why].concat());
        }
    }
}

/// Events of call stacks that have no samples of running code.
const WAITS: [&str; 2] = [model::OFF_CPU, model::RUNNABLE];

fn is_wait(event: &str) -> bool {
    WAITS.contains(&event)
}

fn words(of: &[&str]) -> Vec<String> {
    of.iter().map(|word| (*word).to_owned()).collect()
}

/// A set of epochs that begins with a dash, as the parser takes it.
fn marked(set: &str) -> String {
    if set.starts_with('-') { format!("@{set}") } else { set.to_owned() }
}

fn array<'a>(report: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    report.get(name).and_then(Value::as_array).into_iter().flatten()
}

fn rows(report: &Value) -> impl Iterator<Item = &Value> {
    array(report, "rows")
}

fn names(report: &Value) -> Vec<&str> {
    array(report, "events").filter_map(|event| event.get("name")?.as_str()).collect()
}

/// A listing without the instructions far from samples, where it is long; the page shows the gaps.
fn cut(json: Vec<u8>) -> Vec<u8> {
    let Ok(mut listing) = serde_json::from_slice::<Value>(&json) else { return json };
    let all = listing.get_mut("instructions").and_then(Value::as_array_mut);
    let Some(all) = all else { return json };
    if all.len() <= LISTED_MAX {
        return json;
    }
    let samples = |one: &Value| -> u64 {
        let counts = one.get("counts").and_then(Value::as_object);
        counts.into_iter().flat_map(|counts| counts.values()).filter_map(Value::as_u64).sum()
    };
    let kept = near(&all.iter().map(samples).collect::<Vec<_>>());
    let mut kept = kept.into_iter();
    all.retain(|_| kept.next().unwrap_or(false));
    serde_json::to_vec(&listing).unwrap_or(json)
}

/// Which instructions are kept: those near samples, around the most samples first.
fn near(samples: &[u64]) -> Vec<bool> {
    let mut kept = vec![false; samples.len()];
    let mut order: Vec<(usize, u64)> =
        samples.iter().copied().enumerate().filter(|(_, samples)| *samples > 0).collect();
    order.sort_by_key(|(_, samples)| std::cmp::Reverse(*samples));
    let mut left = LISTED_MAX;
    for (at, _) in order {
        let near = at.saturating_sub(NEAR)..(at + NEAR + 1).min(samples.len());
        for is_kept in kept.get_mut(near).unwrap_or_default() {
            if left > 0 && !*is_kept {
                *is_kept = true;
                left -= 1;
            }
        }
    }
    kept
}

/// The serious problems of a report, in words.
fn serious(json: &[u8]) -> Vec<String> {
    let report: Value = serde_json::from_slice(json).unwrap_or_default();
    let serious = |problem: &&Value| problem.get("serious").and_then(Value::as_bool) == Some(true);
    let problems = array(&report, "problems").filter(serious);
    problems.filter_map(|problem| Some(problem.get("message")?.as_str()?.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_that_is_too_long_keeps_what_is_near_samples() {
        let mut samples = vec![0; 10_000];
        for (at, hot) in [0, 40, 9_999].into_iter().enumerate() {
            samples[hot] = 1 + at as u64;
        }
        let kept = near(&samples);
        let kept: Vec<usize> =
            kept.iter().enumerate().filter(|(_, kept)| **kept).map(|(at, _)| at).collect();
        let expected: Vec<usize> = (0..=12).chain(28..=52).chain(9_987..10_000).collect();
        assert_eq!(kept, expected);
        assert_eq!(near(&[1; 10_000]).iter().filter(|kept| **kept).count(), LISTED_MAX);
    }
}

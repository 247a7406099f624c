//! `dcpi list` of a source file whose functions an interpreter ran: its lines with samples.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, UNIX_EPOCH};

use image::{Frame, ImageId, ImageOffset, OnBehalf};
use model::{Language, SourcePlace};

use super::list::{List, columns};
use annotate::listing::{ListedInstruction, Listing};
use names::interpreted::{self, Sure};
use names::procedures::{self, Place, Places, Rows};
use names::sources::Sources;
use profiledb::ImageRecord;
use query::error::AnalysisError;
use query::load::{ImageSamples, Question, Samples};
use query::problem::Problem;
use query::select;
use report::{ImageName, ListReport, Selection, View};
use stats::tally::Weighed;

/// The listing of a source file, or of a function of it; `refused` says why the image is not listed
/// as code, and is the error where it is no source file with samples either.
pub(super) fn report(
    args: &List,
    question: &Question,
    refused: AnalysisError,
) -> Result<ListReport, AnalysisError> {
    let mut samples = Question { images: Vec::new(), ..question.clone() }.samples()?;
    let places = args.on.places();
    interpreted::divide(&mut samples, &places, Sure::Lines);
    let mut problems = std::mem::take(&mut samples.problems);
    let is_source = |image: &&ImageSamples| samples.interpreted.contains_key(&image.record.id);
    let files: Vec<&ImageSamples> = samples.images.iter().filter(is_source).collect();
    let records = files.iter().map(|image| &image.record);
    let Ok(wanted) = select::images(&question.images, records) else { return Err(refused) };
    let files: Vec<&ImageSamples> =
        files.into_iter().filter(|image| wanted.contains(&image.record.id)).collect();
    let lines: Vec<Vec<Line>> =
        files.iter().map(|file| lines(&samples, file, &places, &mut problems)).collect();
    let known = lines.iter().flatten().map(|line| line.function.as_str());
    let functions = functions(args, &known.collect())?;
    let is_meant = |line: &Line| functions.as_ref().is_none_or(|of| of.contains(&line.function));
    let mut all = files.iter().zip(lines);
    let found = all.find(|(_, lines)| lines.iter().any(is_meant)).ok_or(refused)?;
    let (file, lines) = (*found.0, found.1.into_iter().filter(is_meant).collect::<Vec<_>>());
    let stacks = samples.interpreted.get(&file.record.id).map(|of| &of.stacks);
    let stacks = lines.iter().filter_map(|line| stacks?.get(&line.at)).sum();
    let sources = Sources::below(args.source_dir.clone(), on_behalf(&file.record, &samples));
    let seen = UNIX_EPOCH.checked_add(Duration::from_secs(file.record.first_seen_unix_s));
    let listing = listing(args, &file.record, lines, samples.events.len());
    let epochs = samples.epochs.iter().map(|epoch| epoch.meta().clone()).collect();
    let mut report = ListReport {
        selection: Selection { db: samples.db.root().display().to_string(), epochs },
        events: columns(&samples, &listing.counts, args.confidence),
        confidence: args.confidence,
        whose: samples.whose.clone(),
        image: image_name(&file.record),
        aliases: Vec::new(),
        shares: Vec::new(),
        listing,
        skid: None,
        costs: args.why.then(|| Err("an interpreter ran these lines".to_owned())),
        view: View::Source,
        is_hot: false,
        stacks: Some(stacks),
        debug_file: None,
        sources: sources.built(seen),
        problems,
    };
    report.look_at_sources();
    Ok(report)
}

/// A line of a function, with its samples by event.
struct Line {
    at: ImageOffset,
    function: String,
    counts: Vec<u64>,
}

fn lines(
    samples: &Samples,
    file: &ImageSamples,
    places: &Places,
    problems: &mut Vec<Problem>,
) -> Vec<Line> {
    let offsets = file.offsets();
    let (located, found) = procedures::locate(samples, file, (&offsets, Rows::Procedures), places);
    problems.extend(found);
    let count = |profile: &Weighed, at: ImageOffset| profile.equal().get(at);
    let of = |(at, located): (ImageOffset, procedures::Located)| Line {
        at,
        function: Place::name(&located.place),
        counts: file.profiles.iter().map(|profile| count(profile, at)).collect(),
    };
    offsets.into_iter().zip(located).map(of).collect()
}

/// The functions that are meant; None: all. A name without its class means that of every class.
///
/// # Errors
/// [`AnalysisError::NoProcedure`] where there is none.
fn functions(
    args: &List,
    known: &BTreeSet<&str>,
) -> Result<Option<BTreeSet<String>>, AnalysisError> {
    let Some(asked) = &args.procedure else { return Ok(None) };
    let is_last = |name: &&&str| name.rsplit(['.', ':', '#']).next() == Some(asked.as_str());
    let whole = known.iter().filter(|name| **name == asked);
    let last = known.iter().filter(is_last);
    let part = known.iter().filter(|name| name.contains(asked.as_str()));
    for found in [whole.collect::<Vec<_>>(), last.collect(), part.collect()] {
        if !found.is_empty() {
            return Ok(Some(found.into_iter().map(|name| (*name).to_owned()).collect()));
        }
    }
    let (asked, image, why) = (asked.clone(), args.image.clone(), String::new());
    Err(AnalysisError::NoProcedure { asked, image, why })
}

fn listing(args: &List, record: &ImageRecord, lines: Vec<Line>, events: usize) -> Listing {
    let file = if record.path.is_empty() { &record.name } else { &record.path };
    let mut counts = vec![0_u64; events];
    for line in &lines {
        counts.iter_mut().zip(&line.counts).for_each(|(sum, count)| *sum += count);
    }
    let instruction = |line: Line| {
        let number = SourcePlace::of(line.at).line;
        let frame = Frame {
            function: Some(line.function),
            file: Some(file.clone()),
            line: Some(number).filter(|number| *number > 0),
            ..Frame::default()
        };
        ListedInstruction {
            address: line.at.0,
            offset: line.at,
            len: 0,
            text: String::new(),
            target: None,
            bars: false,
            target_name: None,
            counts: line.counts,
            frames: vec![frame],
        }
    };
    Listing {
        image: record.name.clone(),
        id: record.id,
        procedure: args.procedure.clone().unwrap_or_else(|| record.name.clone()),
        addresses: 0..0,
        offsets: ImageOffset(0)..ImageOffset(0),
        isa: None,
        instructions: lines.into_iter().map(instruction).collect(),
        counts,
        kept: 0,
        problems: Vec::new(),
    }
}

/// On whose behalf a source file is read: a process named it, so its user must be able to read the
/// file. The user is a part of the image's id; it is looked for in that of the file's owner.
fn on_behalf(record: &ImageRecord, samples: &Samples) -> OnBehalf {
    let path = record.real_path();
    let language = samples.language(&record.id).map_or("", Language::name);
    let is_of = |whose: &str| ImageId::from_name(&path.to_string_lossy(), whose) == record.id;
    if is_of(language) {
        return OnBehalf::of_owner(Some(0));
    }
    let owner = std::fs::metadata(&path).ok().map(|metadata| metadata.uid());
    let owner = owner.filter(|owner| is_of(&format!("{language} of user {owner}")));
    OnBehalf::of_owner(owner)
}

fn image_name(record: &ImageRecord) -> ImageName {
    let (name, path) = (record.name.clone(), record.path.clone());
    ImageName { id: record.id, kind: record.kind, name, path, ambiguous: false }
}

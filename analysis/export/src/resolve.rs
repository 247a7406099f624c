//! Names for the places of samples: the first step of every format.

use std::collections::{BTreeMap, BTreeSet};

use code::skid::Skid;
use image::{Frame, ImageId, ImageKind, ImageOffset, Vaddr};
use model::SourcePlace;
use profiledb::Scope;

use super::executed::Executed;
use super::stacks::{self, ByEvent};
use super::{Event, Image, Place, Procedure, Resolved};
use names::interpreted;
use names::procedures::{self, Known, Needed, Places};
use query::load::{self, EventSamples, ImageSamples, Samples};
use query::problem::Problem;
use query::unresolved;
use report::LANDED;

/// Amount of information on each place.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Addresses only.
    Addresses,
    /// Procedures.
    Procedures,
    /// Procedures, source lines and inlined calls.
    Lines,
    /// Procedures, and places in the form of compilers' profiles.
    Sites,
}

/// The level of detail to resolve.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Amount of information on each place.
    pub detail: Detail,
    /// Whether executions are estimated.
    pub executed: bool,
    /// Whether samples of the idle loop are included.
    pub idle: bool,
    /// Whether all images of all scopes were asked for, so that samples of unknown code belong to
    /// the selection.
    pub everything: bool,
    /// The places of debug files.
    pub places: Places,
    /// Call stacks, for formats that have a place for them.
    pub stacks: ByEvent,
}

/// Names the places of samples. `problems` gets the places that have no name.
pub fn resolve(samples: &Samples, wanted: &Wanted, problems: &mut Vec<Problem>) -> Resolved {
    let counts = |image: &&ImageSamples| {
        image.wanted && (wanted.idle || !wanted.everything || !image.is_idle())
    };
    let mut chosen: Vec<&ImageSamples> = samples.images.iter().filter(counts).collect();
    let framed = stacks::offsets(&wanted.stacks);
    let ends: BTreeSet<ImageId> = chosen.iter().map(|image| image.record.id).collect();
    let missing = framed.keys().filter(|id| !ends.contains(id)).copied().collect();
    let described = samples.described(&missing, problems);
    chosen.extend(&described);
    let mut scopes: Vec<Scope> =
        chosen.iter().flat_map(|image| image.by_scope.keys().cloned()).collect();
    scopes.sort();
    scopes.dedup();
    let mut images = Vec::with_capacity(chosen.len());
    for (image, found) in procedures::each_image(&chosen, |image| {
        let frames = framed.get(&image.record.id);
        resolve_image(samples, (image, frames), &scopes, wanted)
    }) {
        images.push(image);
        problems.extend(found);
    }
    images.sort_by_cached_key(|image| {
        (std::cmp::Reverse(image.samples(0)), image.name.clone(), image.id)
    });
    let nobodys = unresolved::nobodys(wanted.everything, samples);
    let events = samples.events.iter().enumerate().map(|(at, event)| {
        let idle = samples.total(at, |image| image.is_idle() && !counts(&image)).samples;
        let here = load::sum(images.iter().map(|image| image.samples(at)));
        let nobodys =
            nobodys.iter().filter_map(|(reason, tallies)| Some((reason, tallies.get(at)?)));
        let nobodys = nobodys.map(|(reason, tally)| (reason.clone(), event.equal(*tally)));
        resolve_event(event, (here, idle), nobodys.filter(|(_, samples)| *samples > 0).collect())
    });
    let metas = || samples.epochs.iter().map(profiledb::Epoch::meta);
    let mut hosts: Vec<String> = metas().map(|meta| meta.host.clone()).collect();
    hosts.dedup();
    let mut epochs: Vec<String> = metas().map(|meta| meta.epoch.to_string()).collect();
    epochs.sort();
    epochs.dedup();
    let mut resolved = Resolved {
        events: events.collect(),
        images,
        scopes,
        hosts,
        epochs,
        started_unix_s: metas().map(|meta| meta.started_unix_s).min().unwrap_or(0),
        ended_unix_s: metas()
            .map(|meta| meta.ended_unix_s.unwrap_or(meta.updated_unix_s))
            .max()
            .unwrap_or(0),
        landed: landed(samples),
        stacks: stacks::Stacks::default(),
    };
    if !wanted.stacks.is_empty() {
        // An image without samples of its own may end a stack of time off the CPU.
        let is_end = |image: &Image| {
            (wanted.everything && image.kind != ImageKind::Idle) || ends.contains(&image.id)
        };
        stacks::divide(&mut resolved, &wanted.stacks, |event| samples.unit(event), is_end);
        if wanted.detail != Detail::Addresses {
            let loops = interpreted::loops(&samples.epochs, problems);
            stacks::without_loops(&mut resolved, &loops);
        }
    }
    if wanted.detail == Detail::Addresses {
        for image in &mut resolved.images {
            image.procedures.clear();
            image.places.iter_mut().for_each(|place| place.procedure = None);
        }
    }
    resolved
}

/// Skid of the samples, in words: exports do not correct it.
fn landed(samples: &Samples) -> String {
    let named = |(event, skid): (usize, Skid)| Some((&samples.events.get(event)?.name, skid));
    match samples.skid().and_then(named) {
        Some((event, skid)) if skid.instructions() == 0 => {
            format!("samples of {event} are at the instruction that took the time")
        }
        Some((event, skid)) => {
            format!(
                "samples of {event} are where the processor reported them, {skid} the one that took the time"
            )
        }
        None => format!("samples {LANDED}"),
    }
}

fn resolve_event(
    event: &EventSamples,
    (samples, idle): (u64, u64),
    unresolved: Vec<(String, u64)>,
) -> Event {
    let scale = event.scale().unwrap_or(1.0);
    let mut notes = event.notes.clone();
    if scale > 1.0 {
        notes.push(format!(
            "counted {:.1} % of the time; occurrences are scaled to all of it",
            100.0 / scale
        ));
    }
    Event {
        name: event.name.clone(),
        unit: event.unit.clone(),
        period: event.period,
        weight: event.weight,
        samples,
        idle,
        unresolved,
        lost: event.lost(),
        notes,
    }
}

/// Samples of a place: by scope and event.
type Counts = BTreeMap<usize, Vec<u64>>;

fn resolve_image(
    samples: &Samples,
    (image, frames): (&ImageSamples, Option<&BTreeSet<ImageOffset>>),
    scopes: &[Scope],
    wanted: &Wanted,
) -> (Image, Vec<Problem>) {
    let mut problems = Vec::new();
    let mut resolved = Image {
        id: image.record.id,
        kind: image.record.kind,
        name: image.record.name.clone(),
        path: image.record.path.clone(),
        segments: Vec::new(),
        procedures: Vec::new(),
        nameless: "[unknown]".to_owned(),
        places: places(&counts(image, frames, scopes)),
        executed: None,
    };
    if let Some(reason) = image.unresolved() {
        resolved.nameless = unresolved::name(reason);
        resolved.path.clear();
        return (resolved, problems);
    }
    match procedures::known(samples, image, &wanted.places, Needed::All, &mut problems) {
        Ok(known) => {
            name_places(&mut resolved, (samples, image), &known, wanted, &mut problems);
        }
        Err(why) => {
            resolved.nameless = format!("[no procedures: {}]", why.short());
            let (image, id, counts) =
                (image.record.name.clone(), image.record.id, image.sample_totals());
            problems.push(Problem::NoProcedures { image, id, counts, why });
        }
    }
    if wanted.detail == Detail::Addresses {
        problems.retain(Problem::is_serious);
    }
    (resolved, problems)
}

/// Samples by place; places of frames may have none.
fn counts(
    image: &ImageSamples,
    frames: Option<&BTreeSet<ImageOffset>>,
    scopes: &[Scope],
) -> BTreeMap<u64, Counts> {
    let mut by_offset: BTreeMap<u64, Counts> =
        frames.into_iter().flatten().map(|offset| (offset.0, Counts::new())).collect();
    for (scope, profiles) in &image.by_scope {
        let Ok(scope) = scopes.binary_search(scope) else { continue };
        for (event, profile) in profiles.iter().enumerate() {
            for (offset, samples) in profile.equal().iter() {
                let counts = by_offset.entry(offset.0).or_default().entry(scope);
                if let Some(count) =
                    counts.or_insert_with(|| vec![0; profiles.len()]).get_mut(event)
                {
                    *count = samples;
                }
            }
        }
    }
    by_offset
}

fn places(counts: &BTreeMap<u64, Counts>) -> Vec<Place> {
    let place = |(offset, counts): (&u64, &Counts)| Place {
        offset: *offset,
        address: *offset,
        procedure: None,
        frames: Vec::new(),
        sites: Vec::new(),
        counts: counts.iter().map(|(scope, counts)| (*scope, counts.clone())).collect(),
    };
    counts.iter().map(place).collect()
}

/// The line of a source file that an interpreter ran: the only files that have procedures, and no
/// id but their name.
fn of_source(image: &ImageSamples, known: &Known, place: &Place) -> Vec<Frame> {
    let at = ImageOffset(place.offset);
    let Some(function) = known.procedures.find(at) else { return Vec::new() };
    let path = &image.record.path;
    let file = if path.is_empty() { &image.record.name } else { path };
    let line = Some(SourcePlace::of(at).line).filter(|line| *line > 0);
    let (function, file) = (Some(function.name().to_owned()), Some(file.clone()));
    vec![Frame { function, file, line, ..Frame::default() }]
}

fn name_places(
    to: &mut Image,
    (samples, image): (&Samples, &ImageSamples),
    known: &Known,
    wanted: &Wanted,
    problems: &mut Vec<Problem>,
) {
    let mut index: BTreeMap<ImageOffset, usize> = BTreeMap::new();
    for place in &mut to.places {
        place.address = known.address(ImageOffset(place.offset));
        let Some(procedure) = known.procedures.find(ImageOffset(place.offset)) else { continue };
        let at = *index.entry(procedure.start).or_insert_with(|| {
            to.procedures.push(Procedure {
                name: procedure.name().to_owned(),
                raw: procedure.raw_name().to_owned(),
                address: known.address(procedure.start),
                size: procedure.size_bytes(),
            });
            to.procedures.len() - 1
        });
        place.procedure = Some(at);
    }
    // Other tools know generated code by its addresses, and not all of it may be kept.
    let is_generated = image.record.kind == ImageKind::Jit;
    let Some(binary) = known.binary.as_ref().filter(|_| !is_generated) else {
        if wanted.detail == Detail::Lines && image.record.id.is_name() && !is_generated {
            to.places.iter_mut().for_each(|place| place.frames = of_source(image, known, place));
        }
        return;
    };
    let segments = binary.layout().segments().iter().filter(|segment| segment.executable);
    to.segments = segments.copied().collect();
    // Formats with room for it are of the first event: only where that counts time do its samples
    // report executions. Counted ones need no event of time.
    let time = samples.time().ok().filter(|(event, _)| *event == 0);
    let counted = samples.executed().map(|event| (event, Skid::default()));
    let time = counted.or(time).filter(|_| wanted.executed);
    if matches!(wanted.detail, Detail::Addresses | Detail::Procedures) {
        to.executed = time.and_then(|time| Executed::of(samples, image, known, time, problems));
        return;
    }
    let Some(info) = known.debug_info(image, &wanted.places, problems) else { return };
    if wanted.detail == Detail::Lines {
        let Some(lines) = procedures::lines(&info, image, problems) else { return };
        to.places.iter_mut().for_each(|place| place.frames = lines.frames(Vaddr(place.address)));
        if let Some(why) = lines.cut() {
            problems.push(Problem::LinesCut {
                image: image.record.name.clone(),
                id: image.record.id,
                why,
            });
        }
        return;
    }
    match info.sites() {
        Ok(sites) => {
            to.executed = time.and_then(|time| Executed::of(samples, image, known, time, problems));
            to.places.iter_mut().for_each(|place| place.sites = sites.at(Vaddr(place.address)));
            to.executed.iter_mut().for_each(|executed| executed.locate(&sites));
        }
        Err(error) => problems.push(procedures::no_lines(image, Some(error.to_string()))),
    }
}

//! From offsets in images to source lines: for reports whose rows are lines.
//!
//! A sample belongs to the innermost function that is inlined where it was taken. Where a line is
//! not known the procedure stands for it, so no sample is left out.

use std::collections::BTreeMap;

use image::{Frame, ImageOffset};
use model::SourcePlace;

use crate::procedures::{self, Known, Needed, Places, Rows};
use query::load::{ImageSamples, Samples};
use query::problem::Problem;
use query::unresolved;
use stats::tally::{Tally, Weighed};

/// The samples of an image, by source line.
#[derive(Debug)]
pub struct ByLine {
    /// Lines with samples, each once.
    pub rows: Vec<LineSamples>,
    /// Missing or doubtful names.
    pub problems: Vec<Problem>,
}

/// A source line with samples.
#[derive(Debug)]
pub struct LineSamples {
    /// Function, file and line. Without a file: the procedure, or in brackets why there is none.
    pub place: Frame,
    /// Samples by event.
    pub counts: Vec<Tally>,
}

/// The offsets of instructions whose samples are another instruction's, and the offset of that.
pub type Moves = BTreeMap<ImageOffset, ImageOffset>;

/// The event whose samples are moved, and where in an image they are moved.
pub type Back<'a> = (usize, &'a (dyn Fn(&ImageSamples, &Known) -> Moves + Sync));

/// The samples of each image by source line, in the order of `images`.
pub fn attribute(
    samples: &Samples,
    images: &[&ImageSamples],
    places: &Places,
    back: Option<Back<'_>>,
) -> Vec<ByLine> {
    procedures::each_image(images, |image| attribute_image(samples, image, places, back))
}

fn attribute_image(
    samples: &Samples,
    image: &ImageSamples,
    places: &Places,
    back: Option<Back<'_>>,
) -> ByLine {
    let mut problems = Vec::new();
    if let Some(reason) = image.unresolved() {
        let place = Frame { function: Some(unresolved::name(reason)), ..Frame::default() };
        return ByLine { rows: vec![LineSamples { place, counts: image.totals() }], problems };
    }
    if samples.interpreted.contains_key(&image.record.id) {
        let rows = of_source(samples, image, places, &mut problems);
        return ByLine { rows, problems };
    }
    match procedures::known(samples, image, places, Needed::At(&image.offsets()), &mut problems) {
        Ok(known) => {
            let rows = count(image, &known, (places, back), &mut problems);
            ByLine { rows, problems }
        }
        Err(why) => {
            let function = Some(format!("[no procedures: {}]", why.short()));
            let row = LineSamples {
                place: Frame { function, ..Frame::default() },
                counts: image.totals(),
            };
            let (image, id, counts) =
                (image.record.name.clone(), image.record.id, image.sample_totals());
            problems.push(Problem::NoProcedures { image, id, counts, why });
            ByLine { rows: vec![row], problems }
        }
    }
}

/// Lines of functions that an interpreter ran.
fn of_source(
    samples: &Samples,
    image: &ImageSamples,
    places: &Places,
    problems: &mut Vec<Problem>,
) -> Vec<LineSamples> {
    let offsets = image.offsets();
    let (located, found) = procedures::locate(samples, image, (&offsets, Rows::Procedures), places);
    problems.extend(found);
    let file = image.record.path_or_name();
    let of = |(offset, located): (ImageOffset, procedures::Located)| {
        let line = SourcePlace::of(offset).line;
        let place = Frame {
            function: Some(located.place.name()),
            file: Some(file.to_owned()),
            line: Some(line).filter(|line| *line > 0),
            ..Frame::default()
        };
        let at = offset..ImageOffset(offset.0.saturating_add(1));
        let count = |profile: &Weighed| {
            profile.within(at.clone()).next().map(|(_, tally)| tally).unwrap_or_default()
        };
        LineSamples { place, counts: image.profiles.iter().map(count).collect() }
    };
    offsets.iter().copied().zip(located).map(of).collect()
}

fn count(
    image: &ImageSamples,
    known: &Known,
    (places, back): (&Places, Option<Back<'_>>),
    problems: &mut Vec<Problem>,
) -> Vec<LineSamples> {
    let moves = back.map(|(event, of)| (event, of(image, known)));
    let info = known.debug_info(image, places, problems);
    let lines = info.as_ref().and_then(|info| procedures::lines(info, image, problems));
    let mut rows: BTreeMap<Frame, Vec<Tally>> = BTreeMap::new();
    let events = image.profiles.len();
    for (event, profile) in image.profiles.iter().enumerate() {
        let moves = moves.as_ref().filter(|(of, _)| *of == event).map(|(_, moves)| moves);
        for (offset, samples) in profile.iter() {
            let offset = moves.and_then(|moves| moves.get(&offset)).copied().unwrap_or(offset);
            let vaddr = known
                .binary
                .as_ref()
                .and_then(|binary| binary.layout().file_offset_to_vaddr(offset));
            let frames = lines
                .as_ref()
                .zip(vaddr)
                .map(|(lines, vaddr)| lines.frames(vaddr))
                .unwrap_or_default();
            let mut place = Frame { column: None, ..frames.into_iter().next().unwrap_or_default() };
            if place.function.is_none() {
                let procedure = known.procedures.find(offset);
                place.function = Some(
                    procedure
                        .map_or_else(|| "[unknown]".to_owned(), |found| found.name().to_owned()),
                );
            }
            let counts = rows.entry(place).or_insert_with(|| vec![Tally::default(); events]);
            if let Some(count) = counts.get_mut(event) {
                *count += samples;
            }
        }
    }
    if let Some(why) = lines.as_ref().and_then(image::Lines::cut) {
        problems.push(Problem::LinesCut {
            image: image.record.name.clone(),
            id: image.record.id,
            why,
        });
    }
    rows.into_iter().map(|(place, counts)| LineSamples { place, counts }).collect()
}

//! From frames to procedures: the subjects of reports, each with its number.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use image::{ImageId, ImageKind, ImageOffset};
use model::{Cut, Frame, Stacks, Thread, Wait};
use names::procedures::{self, Located, Place, Places, Rows, SourceLine};
use profiledb::ImageRecord;
use query::load::{ImageSamples, Samples};
use query::problem::Problem;
use query::unresolved;
use stats::tally::Tally;

use crate::contexts::SubjectId;

/// A procedure, or what stands in the place of one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A procedure, or other code, of an image: index of [`Subjects::images`].
    Code {
        /// The image.
        image: usize,
        /// The procedure's name, or in brackets why there is none.
        name: String,
        /// Its first byte, as in [`Place::Procedure`].
        address: Option<u64>,
        /// The line, where subjects are lines: each line of a procedure is a subject then.
        line: Option<SourceLine>,
    },
    /// A function that is inlined into procedures of an image: index of [`Subjects::images`]. It
    /// is one function, wherever it is inlined.
    Inlined {
        /// The image.
        image: usize,
        /// The function's name.
        name: Arc<str>,
        /// As of [`Subject::Code`].
        line: Option<SourceLine>,
    },
    /// Frames that are not known.
    Cut(Cut),
    /// The reason why a thread did not run.
    Wait(Wait),
    /// A thread: the root of its stacks, where they are kept apart.
    Thread(Thread),
    /// A label or attribute, `KEY=VALUE`, that a program had set for its thread at the sample: the
    /// root of the stacks with it, where a report keeps these apart.
    Attribute(String),
    /// Stands above procedures with samples and without a stack.
    NoStack,
    /// Samples of unknown code that no image stands for, by reason.
    Unresolved(String),
}

/// An image with frames or samples.
#[derive(Clone, Debug)]
pub struct ImageRow {
    /// Its description.
    pub record: ImageRecord,
    /// Whether another image here has its name.
    pub ambiguous: bool,
}

/// The places of a procedure where the same functions are inlined, or what stands for one place.
#[derive(Debug)]
struct Spot {
    /// The procedure, and the functions inlined there, the outermost first.
    path: Box<[SubjectId]>,
    /// Samples by event.
    counts: Vec<Tally>,
}

/// The subjects of stacks and samples.
#[derive(Debug, Default)]
pub struct Subjects {
    all: Vec<Subject>,
    numbers: HashMap<Subject, SubjectId>,
    of_frame: HashMap<Frame, usize>,
    /// Samples by event, of each subject itself.
    counts: Vec<Vec<Tally>>,
    spots: Vec<Spot>,
    numbers_of_spots: HashMap<Box<[SubjectId]>, usize>,
    images: Vec<ImageRow>,
    events: usize,
}

impl Subjects {
    /// The subjects of the frames of `stacks` and of the samples of the images that `counts`
    /// accepts; of samples that no image stands for, too, if all images and processes are
    /// asked for. Inlined functions are subjects if `rows` says so.
    pub fn of<'a>(
        samples: &Samples,
        stacks: impl IntoIterator<Item = &'a Stacks>,
        counts: impl Fn(&ImageSamples) -> bool,
        (rows, places): (Rows, &Places),
        problems: &mut Vec<Problem>,
    ) -> Self {
        let mut subjects = Self { events: samples.events.len(), ..Self::default() };
        let mut offsets: BTreeMap<ImageId, BTreeSet<ImageOffset>> = BTreeMap::new();
        for frame in stacks.into_iter().flat_map(Stacks::distinct_frames) {
            match frame {
                Frame::Code(image, offset) => {
                    offsets.entry(*image).or_default().insert(*offset);
                }
                Frame::Cut(cut) => subjects.frame(*frame, Subject::Cut(*cut)),
                Frame::Wait(wait) => subjects.frame(*frame, Subject::Wait(*wait)),
            }
        }
        let counted: Vec<&ImageSamples> =
            samples.images.iter().filter(|image| counts(image)).collect();
        let known: BTreeSet<ImageId> = counted.iter().map(|image| image.record.id).collect();
        let missing: BTreeSet<ImageId> =
            offsets.keys().filter(|id| !known.contains(id)).copied().collect();
        let described = samples.described(&missing, problems);
        let images: Vec<&ImageSamples> = counted.into_iter().chain(&described).collect();
        let located = procedures::each_image(&images, |image| {
            let mut offsets = offsets.get(&image.record.id).cloned().unwrap_or_default();
            offsets.extend(image.offsets());
            let offsets: Vec<ImageOffset> = offsets.into_iter().collect();
            let mut problems = Vec::new();
            let places = locate(samples, image, (&offsets, rows), places, &mut problems);
            (offsets.into_iter().zip(places).collect::<Vec<_>>(), problems)
        });
        for (image, (located, found)) in images.iter().zip(located) {
            problems.extend(found);
            subjects.add_image(image, located);
        }
        subjects.mark_ambiguous();
        subjects
    }

    /// Adds samples that no image stands for: by reason, the samples of each event.
    pub fn add_unresolved(&mut self, reasons: Vec<(String, Vec<Tally>)>) {
        for (reason, tallies) in reasons {
            let subject = self.number(Subject::Unresolved(reason));
            let spot = self.spot([subject].into());
            for (event, tally) in tallies.into_iter().enumerate() {
                self.count(spot, event, tally);
            }
        }
    }

    fn add_image(&mut self, image: &ImageSamples, located: Vec<(ImageOffset, Located)>) {
        let number = self.images.len();
        self.images.push(ImageRow { record: image.record.clone(), ambiguous: false });
        // Compilers make a procedure again and again, at other addresses each time: it is still
        // one.
        let is_generated = image.record.kind == ImageKind::Jit;
        let mut first: HashMap<String, u64> = HashMap::new();
        let mut of_offset: HashMap<ImageOffset, usize> = HashMap::new();
        for (offset, Located { place, inlined, lines, .. }) in located {
            let (name, mut address) = (place.name(), place.address());
            if let Some(address) = address.as_mut().filter(|_| is_generated) {
                *address = *first.entry(name.clone()).or_insert(*address);
            }
            let mut lines = lines.into_iter();
            let line = lines.next().flatten();
            let mut path = vec![self.number(Subject::Code { image: number, name, address, line })];
            path.extend(inlined.into_iter().map(|name| {
                let line = lines.next().flatten();
                self.number(Subject::Inlined { image: number, name, line })
            }));
            let spot = self.spot(path.into());
            of_offset.insert(offset, spot);
            self.of_frame.insert(Frame::Code(image.record.id, offset), spot);
        }
        for (event, profile) in image.profiles.iter().enumerate() {
            for (offset, tally) in profile.iter() {
                if let Some(spot) = of_offset.get(&offset) {
                    self.count(*spot, event, tally);
                }
            }
        }
    }

    fn spot(&mut self, path: Box<[SubjectId]>) -> usize {
        let next = self.spots.len();
        let spot = *self.numbers_of_spots.entry(path.clone()).or_insert(next);
        if spot == next {
            self.spots.push(Spot { path, counts: vec![Tally::default(); self.events] });
        }
        spot
    }

    /// Adds samples of a spot, which are its innermost subject's own.
    fn count(&mut self, spot: usize, event: usize, tally: Tally) {
        let Some(Spot { path, counts }) = self.spots.get_mut(spot) else { return };
        let own = path.last().and_then(|subject| self.counts.get_mut(*subject as usize));
        for counts in [Some(counts), own].into_iter().flatten() {
            counts.iter_mut().skip(event).take(1).for_each(|count| *count += tally);
        }
    }

    fn mark_ambiguous(&mut self) {
        let mut same: HashMap<String, usize> = HashMap::new();
        for image in self.images.iter().filter(|image| image.record.kind != ImageKind::Unresolved) {
            *same.entry(image.record.name.clone()).or_default() += 1;
        }
        for image in &mut self.images {
            image.ambiguous = image.record.kind != ImageKind::Unresolved
                && same.get(&image.record.name).is_some_and(|images| *images > 1);
        }
    }

    fn frame(&mut self, frame: Frame, subject: Subject) {
        let number = self.number(subject);
        let spot = self.spot([number].into());
        self.of_frame.insert(frame, spot);
    }

    /// The number of a subject, which is made if it is new.
    pub fn number(&mut self, subject: Subject) -> SubjectId {
        if let Some(number) = self.numbers.get(&subject) {
            return *number;
        }
        let number = self.all.len() as SubjectId;
        self.all.push(subject.clone());
        self.counts.push(vec![Tally::default(); self.events]);
        self.numbers.insert(subject, number);
        number
    }

    /// Forgets all samples: stacks alone are left.
    pub(crate) fn forget_samples(&mut self) {
        self.events = 0;
        self.counts.iter_mut().for_each(Vec::clear);
        self.spots.iter_mut().for_each(|spot| spot.counts.clear());
    }

    /// The subjects of a frame: the procedure, and the functions inlined there, the outermost
    /// first. Empty for a frame of no stack.
    pub fn of_frame(&self, frame: &Frame) -> &[SubjectId] {
        let spot = self.of_frame.get(frame).and_then(|spot| self.spots.get(*spot));
        spot.map_or(&[], |spot| &spot.path)
    }

    /// Whether each subject is an inlined function, in the order of their numbers.
    pub(crate) fn are_inlined(&self) -> Arc<[bool]> {
        self.all.iter().map(|subject| matches!(subject, Subject::Inlined { .. })).collect()
    }

    /// A subject by its number.
    pub fn get(&self, number: SubjectId) -> Option<&Subject> {
        self.all.get(number as usize)
    }

    /// All subjects with the samples of each itself by event, in the order of their numbers.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Subject, &[Tally])> + '_ {
        self.all.iter().zip(self.counts.iter().map(Vec::as_slice))
    }

    /// The samples of an event: for each procedure, and what functions are inlined in it, the
    /// outermost first.
    pub fn times(&self, event: usize) -> impl Iterator<Item = (&[SubjectId], Tally)> + '_ {
        let of_event = move |spot: &Spot| spot.counts.get(event).copied().unwrap_or_default();
        self.spots.iter().map(move |spot| (&*spot.path, of_event(spot)))
    }

    /// Number of subjects.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// True when there is no subject.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The images.
    pub fn images(&self) -> &[ImageRow] {
        &self.images
    }

    /// The image of a subject that is code.
    pub fn image(&self, subject: &Subject) -> Option<&ImageRow> {
        match subject {
            Subject::Code { image, .. } | Subject::Inlined { image, .. } => self.images.get(*image),
            _ => None,
        }
    }
}

impl Subject {
    /// The name: a procedure's, or words in brackets.
    pub fn name(&self) -> String {
        match self {
            Self::Code { name, .. } => name.clone(),
            Self::Inlined { name, .. } => name.to_string(),
            Self::Cut(cut) => format!("[{}]", cut.name()),
            Self::Wait(wait) => format!("[{}]", wait.name()),
            Self::Thread(thread) => thread_name(thread),
            Self::Attribute(pair) => pair.clone(),
            Self::NoStack => "[no stack]".to_owned(),
            Self::Unresolved(reason) => unresolved::name(reason),
        }
    }

    /// The line that it is, where subjects are lines.
    pub const fn line(&self) -> Option<&SourceLine> {
        match self {
            Self::Code { line, .. } | Self::Inlined { line, .. } => line.as_ref(),
            _ => None,
        }
    }

    /// The address of a procedure's first byte.
    pub const fn address(&self) -> Option<u64> {
        match self {
            Self::Code { address, .. } => *address,
            _ => None,
        }
    }
}

/// Command, thread and their numbers: `python3 [812] worker [815]`.
fn thread_name(thread: &Thread) -> String {
    let number = |number: u32| if number == 0 { String::new() } else { format!(" [{number}]") };
    let mut name = format!("{}{}", thread.command, number(thread.pid));
    if thread.name != thread.command || thread.tid != thread.pid {
        name.push_str(&format!(" {}{}", thread.name, number(thread.tid)));
    }
    name.trim_end().to_owned()
}

fn locate(
    samples: &Samples,
    image: &ImageSamples,
    (offsets, rows): (&[ImageOffset], Rows),
    places: &Places,
    problems: &mut Vec<Problem>,
) -> Vec<Located> {
    if let Some(reason) = image.unresolved() {
        let at = |offset: &ImageOffset| Located {
            place: Place::Unresolved(reason.to_owned()),
            inlined: [].into(),
            lines: [].into(),
            into: 0,
            address: offset.0,
        };
        return offsets.iter().map(at).collect();
    }
    let (located, found) = procedures::locate(samples, image, (offsets, rows), places);
    problems.extend(found);
    located
}

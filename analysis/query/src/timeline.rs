//! The samples of one event by columns of time, each a slice of the database or several.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use image::ImageId;
use model::Stacks;
use profiledb::{Database, Epoch, Stretch};

use crate::error::AnalysisError;
use crate::load::{self, Asked, ImageSamples, Question, Samples};
use crate::problem::Problem;
use crate::scope::ScopeChoice;
use crate::select;
use crate::stacks::{check_scope, of_epochs, without_stacks};

/// Loads samples of some images, or of all: of no images.
pub type Load<'a> = dyn Fn(&[String]) -> Result<Samples, AnalysisError> + 'a;

/// Loads the samples of the images asked for, the second argument, by [`Load`], and may change
/// them.
pub type Prepare<'a> = dyn Fn(&Load<'_>, &[String]) -> Result<Samples, AnalysisError> + 'a;

/// The subject of a timeline.
#[derive(Clone, Copy)]
pub enum Of<'a> {
    /// Samples by place, those of each column loaded so.
    Samples(&'a Prepare<'a>),
    /// Call stacks, which have threads.
    Stacks {
        /// The name of the sum of the parts.
        name: Option<&'a str>,
        /// Events that are added up, where the epochs have them; none: the one event.
        parts: &'a [String],
    },
}

/// One event over time.
#[derive(Debug)]
pub struct Timeline {
    /// The stretches of time of the columns, in order.
    pub columns: Vec<Stretch>,
    /// The name of the event.
    pub event: String,
    /// Unit of the event.
    pub unit: String,
    /// The samples. In the place of events there are columns: the counts of an image are by column.
    /// None where call stacks were asked for.
    pub samples: Samples,
    /// The call stacks by column, where they were asked for: those of the event, or of all parts of
    /// [`Of::Stacks`].
    pub stacks: Vec<Stacks>,
    /// The weight of the samples in columns without call stacks, by column; their threads are
    /// unknown. None if stacks of some threads were requested.
    pub without_stacks: Vec<f64>,
    /// Seconds of each column for which there are counts, the longest of any host.
    pub covered_s: Vec<u64>,
}

impl Question {
    /// Reads one event, by default the first, in at most this many columns of time. One host whose
    /// slices are as few has a column for each; else columns are of equal length, and have the
    /// slices whose middle is theirs.
    pub fn timeline(&self, columns_max: usize, of: Of<'_>) -> Result<Timeline, AnalysisError> {
        let (db, chosen) = select::open(&self.db, &self.epochs)?;
        let mut problems = Vec::new();
        let epochs = load::open(&db, &chosen, &mut problems)?;
        let slices: Vec<Vec<Stretch>> = epochs.iter().map(Epoch::slices).collect();
        let columns = columns(&epochs, &slices, columns_max);
        let asked = self.asked();
        let whose = load::opening_scope(&epochs, &asked, &mut problems);
        let (event, unit) = match of {
            Of::Stacks { name: Some(name), .. } => (name.to_owned(), "ns".to_owned()),
            _ => self.one_event(&epochs)?,
        };
        let parts: Vec<Vec<(usize, Epoch)>> =
            columns.iter().map(|column| within(&epochs, &slices, *column)).collect();
        let longest = |parts: &Vec<(usize, Epoch)>| {
            parts.iter().map(|(_, part)| lasted_s(part)).max().unwrap_or(0)
        };
        let covered_s = parts.iter().map(longest).collect();
        let mut sums = Sums { images: BTreeMap::new(), events: Vec::new() };
        let (mut stacks, mut without_stacks) = (Vec::new(), Vec::new());
        let found = match of {
            Of::Samples(prepare) => {
                let asked = (&asked, prepare);
                sums.read((&db, parts), (&epochs, &event), asked, &whose, &mut problems)
            }
            Of::Stacks { parts: events, .. } => {
                let events = if events.is_empty() { vec![event.clone()] } else { events.to_vec() };
                check_scope(&epochs, &whose, &mut problems)
                    .and_then(|()| by_column(parts, &events, &whose, &mut problems))
                    .map(|found| (stacks, without_stacks) = found.into_iter().unzip())
            }
        };
        found.map_err(|error| whose.hinted(error, &db, &chosen))?;
        problems = once(problems);
        let samples = sums.samples(db, epochs, whose, problems);
        Ok(Timeline { columns, event, unit, samples, stacks, without_stacks, covered_s })
    }

    /// The event that is asked for, else the first that is sampled, with its unit. Events that only
    /// have call stacks are times.
    fn one_event(&self, epochs: &[Epoch]) -> Result<(String, String), AnalysisError> {
        let described: Vec<_> = epochs.iter().flat_map(|epoch| &epoch.meta().events).collect();
        let mut known: Vec<String> = described.iter().map(|event| event.name.clone()).collect();
        known.extend(epochs.iter().flat_map(Epoch::stacks_keys).map(|key| key.event));
        let asked = self.events.first().or(known.first()).cloned().unwrap_or_default();
        if self.events.len() > 1 {
            return Err(AnalysisError::Refused(
                "name one event; dcpi timeline shows one".to_owned(),
            ));
        }
        let Some(event) = select::event(&asked, &known).cloned() else {
            known.sort();
            known.dedup();
            return Err(load::no_samples(&asked, epochs, known));
        };
        let unit = described.iter().find(|known| known.name == event);
        let unit = unit.map_or("ns".to_owned(), |known| known.unit.clone());
        Ok((event, unit))
    }
}

/// The call stacks of some events together, by column, and what the samples of columns without
/// stacks stand for. An event that some column has need not be in all.
fn by_column(
    parts: Vec<Vec<(usize, Epoch)>>,
    events: &[String],
    whose: &ScopeChoice,
    problems: &mut Vec<Problem>,
) -> Result<Vec<(Stacks, f64)>, AnalysisError> {
    let mut columns = Vec::with_capacity(parts.len());
    for parts in parts {
        let only: Vec<Epoch> = parts.into_iter().map(|(_, part)| part).collect();
        let (mut sum, mut without) = (Stacks::new(), 0.0);
        for event in events {
            if !whose.is_by_thread() {
                without += without_stacks(&only, event, whose, problems);
            }
            match of_epochs(&only, std::slice::from_ref(event), whose, problems) {
                Ok(found) => found.values().for_each(|stacks| sum.merge(stacks)),
                Err(AnalysisError::NoEvent { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        columns.push((sum, without));
    }
    Ok(columns)
}

/// Drops repeated problems: loading each column reports the same ones.
fn once(problems: Vec<Problem>) -> Vec<Problem> {
    let mut seen = std::collections::BTreeSet::new();
    problems.into_iter().filter(|problem| seen.insert(problem.to_string())).collect()
}

fn lasted_s(part: &Epoch) -> u64 {
    let time = part.meta().covered.map(|covered| covered.stretch);
    time.map_or(0, |time| time.until_unix_s.saturating_sub(time.since_unix_s))
}

/// The columns of time.
fn columns(epochs: &[Epoch], slices: &[Vec<Stretch>], columns_max: usize) -> Vec<Stretch> {
    let mut hosts: Vec<&str> = epochs.iter().map(|epoch| epoch.meta().host.as_str()).collect();
    hosts.dedup();
    let mut all: Vec<Stretch> = slices.iter().flatten().copied().collect();
    all.sort_unstable();
    let follow = all.windows(2).all(|two| match two {
        [first, second] => first.until_unix_s <= second.since_unix_s,
        _ => true,
    });
    if hosts.len() == 1 && all.len() <= columns_max && follow {
        return all;
    }
    let begin = all.iter().map(|slice| slice.since_unix_s).min().unwrap_or(0);
    let end = all.iter().map(|slice| slice.until_unix_s).max().unwrap_or(0);
    let length = end.saturating_sub(begin).div_ceil(columns_max.max(1) as u64).max(1);
    let count = end.saturating_sub(begin).div_ceil(length);
    (0..count)
        .map(|at| {
            let since_unix_s = begin + at * length;
            Stretch { since_unix_s, until_unix_s: since_unix_s + length }
        })
        .collect()
}

/// The parts of epochs that have their middle in a column, each with the epoch's place.
fn within(epochs: &[Epoch], slices: &[Vec<Stretch>], column: Stretch) -> Vec<(usize, Epoch)> {
    let is_of = |slice: &&Stretch| {
        let middle = slice.since_unix_s.midpoint(slice.until_unix_s);
        (column.since_unix_s..column.until_unix_s.max(column.since_unix_s + 1)).contains(&middle)
    };
    let part = |(epoch, slices): (&Epoch, &Vec<Stretch>)| {
        let first = slices.iter().find(is_of)?;
        let last = slices.iter().rfind(is_of)?;
        let (since_unix_s, until_unix_s) = (first.since_unix_s, last.until_unix_s);
        // A slice of no time is a moment, and no stretch that ends there has it.
        let until_unix_s = until_unix_s.max(since_unix_s + 1);
        epoch.during(Stretch { since_unix_s, until_unix_s })
    };
    let parts = epochs.iter().zip(slices).map(part).enumerate();
    parts.filter_map(|(at, part)| Some((at, part?))).collect()
}

/// Samples of columns put side by side.
struct Sums {
    images: BTreeMap<ImageId, ImageSamples>,
    events: Vec<load::EventSamples>,
}

impl Sums {
    /// Reads the samples of an event, column by column.
    fn read(
        &mut self,
        (db, columns): (&Database, Vec<Vec<(usize, Epoch)>>),
        (epochs, event): (&[Epoch], &String),
        (asked, prepare): (&Asked<'_>, &Prepare<'_>),
        whose: &ScopeChoice,
        problems: &mut Vec<Problem>,
    ) -> Result<(), AnalysisError> {
        if !epochs.iter().flat_map(|epoch| &epoch.meta().events).any(|e| e.name == *event) {
            return Err(AnalysisError::StacksOnly { event: event.clone() });
        }
        let asked = Asked { events: std::slice::from_ref(event), whose, all: true, ..*asked };
        let (count, mut refused) = (columns.len(), None);
        for (at, parts) in columns.into_iter().enumerate().filter(|(_, of)| !of.is_empty()) {
            let (of, only): (Vec<usize>, Vec<Epoch>) = parts.into_iter().unzip();
            let met = RefCell::new(Vec::new());
            let load = |images: &[String]| {
                let asked = Asked { images, ..asked };
                load::sums_of(db, only.clone(), &asked, &mut met.borrow_mut())
            };
            let samples = prepare(&load, asked.images);
            problems.append(&mut met.borrow_mut());
            match samples {
                Ok(mut samples) => {
                    problems.append(&mut samples.problems);
                    self.add(samples, (at, count), &of);
                }
                // A label or image that has no samples in this column may have some in another.
                Err(error) => refused = Some(error),
            }
        }
        match refused.filter(|_| self.images.is_empty()) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Adds the samples of a column; `epochs` are its epochs' indices among all epochs.
    fn add(&mut self, samples: Samples, (column, columns): (usize, usize), epochs: &[usize]) {
        self.events.extend(samples.events.into_iter().next());
        for image in samples.images {
            let sum = self.images.entry(image.record.id).or_insert_with(|| ImageSamples {
                wanted: image.wanted,
                ..ImageSamples::none(&image.record, columns)
            });
            for at in image.epochs.iter().filter_map(|at| epochs.get(*at)) {
                sum.meet(&image.record, *at);
            }
            let (mine, theirs) = (sum.profiles.get_mut(column), image.profiles.into_iter().next());
            if let (Some(mine), Some(theirs)) = (mine, theirs) {
                *mine = theirs;
            }
            for (scope, tallies) in image.scopes {
                let of_scope =
                    sum.scopes.entry(scope).or_insert_with(|| vec![Default::default(); columns]);
                if let (Some(mine), Some(theirs)) = (of_scope.get_mut(column), tallies.first()) {
                    *mine += *theirs;
                }
            }
        }
    }

    fn samples(
        self,
        db: Database,
        epochs: Vec<Epoch>,
        whose: ScopeChoice,
        problems: Vec<Problem>,
    ) -> Samples {
        let images = self.images.into_values().collect();
        let (interpreted, loops) = (BTreeMap::new(), BTreeSet::new());
        Samples { db, epochs, events: self.events, images, whose, interpreted, loops, problems }
    }
}

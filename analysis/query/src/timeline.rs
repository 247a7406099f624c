//! The samples of one event by columns of time, each a slice of the database or several.

use std::collections::BTreeMap;

use image::ImageId;
use model::Stacks;
use profiledb::{Database, Epoch, Stretch};

use crate::error::AnalysisError;
use crate::load::{self, Asked, ImageSamples, Question, Samples};
use crate::problem::Problem;
use crate::select;
use crate::stacks::of_epochs;

/// Samples of one event over time.
#[derive(Debug)]
pub struct Timeline {
    /// The stretches of time of the columns, in order.
    pub columns: Vec<Stretch>,
    /// The name of the event.
    pub event: String,
    /// Unit of the event.
    pub unit: String,
    /// The samples. In the place of events there are columns: the counts of an image are by column.
    pub samples: Samples,
    /// The event's call stacks by column.
    pub stacks: Vec<Stacks>,
    /// Seconds of each column for which there are counts, the longest of any host.
    pub covered_s: Vec<u64>,
}

impl Question {
    /// Reads the samples of one event, by default the first, in at most this many columns of time.
    /// One host whose slices are as few has a column for each; else columns are of equal length,
    /// and have the slices whose middle is theirs.
    ///
    /// # Errors
    /// Those of [`Question::samples`].
    pub fn timeline(&self, columns_max: usize) -> Result<Timeline, AnalysisError> {
        let (db, chosen) = select::open(&self.db, &self.epochs)?;
        let mut problems = Vec::new();
        let epochs = load::open(&db, &chosen, &mut problems)?;
        let slices: Vec<Vec<Stretch>> = epochs.iter().map(Epoch::slices).collect();
        let columns = columns(&epochs, &slices, columns_max);
        let asked = self.asked();
        let whose = load::opening_scope(&epochs, &asked, &mut problems);
        let (event, unit) = self.one_event(&epochs)?;
        // Off-CPU time is no event that is sampled by place.
        let is_sampled = !whose.needs_stacks()
            && epochs.iter().flat_map(|e| &e.meta().events).any(|e| e.name == event);
        let events = [event.clone()];
        let asked = Asked { events: &events, whose: &whose, all: true, ..asked };
        let mut sums = Sums { images: BTreeMap::new(), events: Vec::new() };
        let (mut stacks, mut covered_s, mut refused) = (Vec::new(), Vec::new(), None);
        for (at, column) in columns.iter().enumerate() {
            let parts = within(&epochs, &slices, *column);
            covered_s.push(parts.iter().map(|(_, part)| lasted_s(part)).max().unwrap_or(0));
            let only: Vec<Epoch> = parts.iter().map(|(_, part)| part.clone()).collect();
            stacks.push(match of_epochs(&only, &events, &whose, &mut problems) {
                Ok(mut found) => found.remove(&event).unwrap_or_default(),
                // An event that some column has need not be in all.
                Err(AnalysisError::NoEvent { .. }) => Stacks::new(),
                Err(error) => return Err(error),
            });
            if !is_sampled || only.is_empty() {
                continue;
            }
            let of: Vec<usize> = parts.iter().map(|(epoch, _)| *epoch).collect();
            match load::sums_of(&db, only, &asked, &mut problems) {
                Ok(samples) => sums.add(samples, (at, columns.len()), &of),
                // A label or image that has no samples in this column may have some in another.
                Err(error) => refused = Some(error),
            }
        }
        let of_stacks = whose.is_by_thread() && !stacks.iter().all(Stacks::is_empty);
        let is_nothing = sums.images.is_empty() && !of_stacks;
        if let Some(error) = refused.filter(|_| is_nothing) {
            return Err(whose.hinted(error, &db, &chosen));
        }
        problems = once(problems);
        let samples = sums.samples(db, epochs, whose, problems);
        Ok(Timeline { columns, event, unit, samples, stacks, covered_s })
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
            return Err(AnalysisError::NoEvent { asked, known });
        };
        let unit = described.iter().find(|known| known.name == event);
        let unit = unit.map_or("ns".to_owned(), |known| known.unit.clone());
        Ok((event, unit))
    }
}

/// Each problem once: each column meets it again.
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
    /// Adds the samples of a column, whose epochs are these of all.
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
        whose: crate::scope::ScopeChoice,
        problems: Vec<Problem>,
    ) -> Samples {
        let images = self.images.into_values().collect();
        Samples { db, epochs, events: self.events, images, whose, problems }
    }
}

//! The rows of a table of sets: samples by procedure or image, in each part of each set.

use std::collections::{BTreeMap, BTreeSet};

use image::{ImageId, ImageKind};
use names::procedures::{self, Place, Places};
use query::load::{ImageSamples, Samples};
use query::problem::Problem;
use query::scope::ScopeChoice;
use query::unresolved;
use stats::tally::{self, Tally, Weighed};

use super::Comparison;
use super::renamed::{Renamed, name};
use super::table::{Read, Subject};

type Rows = BTreeMap<Subject, (BTreeSet<ImageId>, Vec<Tally>)>;

pub(super) fn rows(reads: &[Read], args: &Comparison, problems: &mut Vec<Problem>) -> Rows {
    let places = Places::with_debug_roots(args.debug_roots.clone());
    let programs = Programs::of(reads, args);
    let mut rows = Rows::new();
    for joined in joined(reads, args) {
        let images: Vec<&ImageSamples> = joined.images.iter().collect();
        if args.by_image {
            for image in images {
                add(&mut rows, programs.subject(image, None), image, &image.totals());
            }
            continue;
        }
        let found = procedures::attribute(&joined, &images, procedures::Rows::Procedures, &places);
        for (image, by_procedure) in images.iter().zip(found) {
            problems.extend(by_procedure.problems);
            for counted in by_procedure.rows {
                let name = programs.procedure(image, counted.place);
                add(&mut rows, programs.subject(image, Some(name)), image, &counted.counts);
            }
        }
    }
    rows
}

fn add(rows: &mut Rows, subject: Subject, image: &ImageSamples, counts: &[Tally]) {
    let none = || (BTreeSet::new(), vec![Tally::default(); counts.len()]);
    let (builds, samples) = rows.entry(subject).or_insert_with(none);
    if image.unresolved().is_none() {
        builds.insert(image.record.id);
    }
    tally::add_all(samples, counts);
}

/// The samples of each database together, so that procedures are looked for once: a column of
/// counts for each part of all sets, where otherwise there is one for each event.
fn joined(reads: &[Read], args: &Comparison) -> Vec<Samples> {
    let mut of_databases: Vec<(Samples, BTreeMap<ImageId, ImageSamples>)> = Vec::new();
    for (column, read) in reads.iter().enumerate() {
        let at =
            of_databases.iter().position(|(known, _)| known.db.root() == read.samples.db.root());
        let at = at.unwrap_or_else(|| {
            let (db, none) = (read.samples.db.clone(), BTreeMap::new());
            let empty = Samples {
                db,
                epochs: Vec::new(),
                events: Vec::new(),
                images: Vec::new(),
                whose: ScopeChoice::default(),
                interpreted: BTreeMap::new(),
                loops: BTreeSet::new(),
                problems: Vec::new(),
            };
            of_databases.push((empty, none));
            of_databases.len() - 1
        });
        let Some((samples, images)) = of_databases.get_mut(at) else {
            continue;
        };
        let first = samples.epochs.len();
        samples.epochs.extend(read.samples.epochs.iter().cloned());
        for image in read.images(args) {
            let known = images.entry(image.record.id).or_insert_with(|| ImageSamples {
                record: image.record.clone(),
                paths: Vec::new(),
                wanted: true,
                profiles: vec![Weighed::default(); reads.len()],
                scopes: BTreeMap::new(),
                by_scope: BTreeMap::new(),
                epochs: Vec::new(),
            });
            known.epochs.extend(image.epochs.iter().map(|epoch| epoch + first));
            let new: Vec<_> =
                image.paths.iter().filter(|path| !known.paths.contains(path)).cloned().collect();
            known.paths.extend(new);
            if let (Some(slot), Some(profile)) =
                (known.profiles.get_mut(column), image.profiles.first())
            {
                slot.merge(profile);
            }
        }
    }
    let finish = |(samples, images): (Samples, BTreeMap<_, _>)| Samples {
        images: images.into_values().collect(),
        ..samples
    };
    of_databases.into_iter().map(finish).collect()
}

/// Names of images that need a path or an address to be told apart.
struct Programs<'a> {
    /// Images that are taken for others.
    renamed: &'a [Renamed],
    /// Names that a set has several files of.
    ambiguous: BTreeSet<String>,
    /// Names of several builds: addresses of one mean nothing in another.
    several: BTreeSet<String>,
}

impl<'a> Programs<'a> {
    fn of(reads: &[Read], args: &'a Comparison) -> Self {
        let mut paths: BTreeMap<(usize, String), BTreeSet<&str>> = BTreeMap::new();
        let mut builds: BTreeMap<String, BTreeSet<ImageId>> = BTreeMap::new();
        for read in reads {
            for image in read.images(args) {
                let name = name(image, &args.renamed);
                // Only for files: other images have their name as path.
                if image.record.kind == ImageKind::File {
                    paths.entry((read.set, name.clone())).or_default().insert(&image.record.path);
                }
                builds.entry(name).or_default().insert(image.record.id);
            }
        }
        let ambiguous = paths
            .into_iter()
            .filter(|(_, paths)| paths.len() > 1)
            .map(|((_, name), _)| name)
            .collect();
        let several =
            builds.into_iter().filter(|(_, ids)| ids.len() > 1).map(|(name, _)| name).collect();
        Self { renamed: &args.renamed, ambiguous, several }
    }

    fn subject(&self, image: &ImageSamples, procedure: Option<String>) -> Subject {
        let name = name(image, self.renamed);
        let path = self.ambiguous.contains(&name).then(|| image.record.path.clone());
        Subject { image: Some(name), path, procedure }
    }

    fn procedure(&self, image: &ImageSamples, place: Place) -> String {
        match place {
            Place::Procedure { name: known, address } => {
                let nameless = known == format!("{address:#x}")
                    && self.several.contains(&name(image, self.renamed));
                if nameless { "[procedures without name]".to_owned() } else { known }
            }
            // The reason may be another for each build.
            Place::NoProcedures(_) => "[no procedures]".to_owned(),
            place => place.name(),
        }
    }
}

/// Names of images that are of one build in one set, and of another in another. Code made at run
/// time is always.
pub(super) fn rebuilt(reads: &[Read], args: &Comparison) -> BTreeSet<String> {
    let mut builds: BTreeMap<String, BTreeMap<usize, BTreeSet<ImageId>>> = BTreeMap::new();
    for read in reads {
        // Unknown code of a program has the program's name, and is no build of it.
        let lasting = |image: &&ImageSamples| {
            !matches!(image.record.kind, ImageKind::Jit | ImageKind::Unresolved) && !image.is_idle()
        };
        for image in read.samples.images.iter().filter(lasting) {
            builds
                .entry(name(image, &args.renamed))
                .or_default()
                .entry(read.set)
                .or_default()
                .insert(image.record.id);
        }
    }
    let differ = |of_sets: &BTreeMap<usize, BTreeSet<ImageId>>| {
        let mut builds = of_sets.values();
        let first = builds.next();
        builds.any(|other| Some(other) != first)
    };
    builds.into_iter().filter(|(_, of_sets)| differ(of_sets)).map(|(name, _)| name).collect()
}

/// Samples of unknown code of no program that is known, where they are counted: a row for each
/// reason.
pub(super) fn add_unresolved(reads: &[Read], rows: &mut Rows) {
    for (column, read) in reads.iter().enumerate() {
        for (reason, tallies) in unresolved::nobodys(read.everything, &read.samples) {
            let procedure = Some(unresolved::name(&reason));
            let subject = Subject { image: None, path: None, procedure };
            let none = || (BTreeSet::new(), vec![Tally::default(); reads.len()]);
            let (_, counts) = rows.entry(subject).or_insert_with(none);
            counts
                .iter_mut()
                .skip(column)
                .take(1)
                .zip(tallies)
                .for_each(|(count, tally)| *count += tally);
        }
    }
}

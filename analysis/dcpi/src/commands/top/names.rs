//! Names of offsets in images, for images that are running.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use image::{ImageId, ImageKind, ImageOffset};
use profiledb::ImageRecord;
use wire::{Counts, ImageCounts};

use super::calls::Calls;
use super::listing::{self, Line};

use names::procedures::{Known, Needed, Places, in_files};
use query::load::ImageSamples;

/// Procedures kept in memory: those of the images that had samples last.
const PROCEDURES_MAX: usize = 1_000_000;
const IMAGES_MAX: usize = 4096;
/// Places of an image whose samples a listing has.
const PLACES_MAX: usize = 65_536;
/// Names kept of an image that is not a file.
const SYMBOLS_MAX: usize = 65_536;

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Label {
    pub(super) image: String,
    /// The procedure's name, or in brackets why there is none.
    pub(super) procedure: String,
    /// Whether the row is of the idle loop.
    pub(super) idle: bool,
}

/// Samples by event of each label.
pub(super) type Named = BTreeMap<Arc<Label>, Vec<u64>>;

/// An answer of dcpid, with names.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    pub(super) named: Named,
    /// Call stacks by event.
    pub(super) calls: Vec<Calls>,
}

impl From<Named> for Answer {
    fn from(named: Named) -> Self {
        Self { named, calls: Vec::new() }
    }
}

/// The images that had samples so far, with their names and procedures.
#[derive(Debug)]
pub(super) struct Names {
    places: Places,
    images: HashMap<String, Met>,
    /// Number of answers so far, used to record when an image was last used.
    now: u64,
}

/// An image.
#[derive(Debug)]
struct Met {
    name: String,
    idle: bool,
    /// Procedures of a file, or why it has none. `None`: not looked for yet, or evicted.
    known: Option<Result<Known, &'static str>>,
    /// Procedures of an image that is not a file, by start, end and name.
    symbols: BTreeMap<u64, (u64, String)>,
    /// The file, for its listings.
    file: Option<ImageSamples>,
    /// Samples of the first event since `dcpi top` started, by offset in the image; at most
    /// [`PLACES_MAX`] offsets.
    places: BTreeMap<u64, u64>,
    used: u64,
}

impl Names {
    pub(super) fn new(debug_roots: Vec<PathBuf>) -> Self {
        Self { places: Places::with_debug_roots(debug_roots), images: HashMap::new(), now: 0 }
    }

    /// Names an answer: samples and call stacks.
    pub(super) fn answer(&mut self, counts: &Counts) -> Answer {
        let named = self.name(counts);
        let of_image = |id: &String| self.images.get(id);
        let calls = counts.stacks.iter().map(|stacks| {
            let images: Vec<Option<&Met>> = stacks.images.iter().map(of_image).collect();
            let mut labels: HashMap<(u32, u64), Arc<Label>> = HashMap::new();
            let mut same: HashMap<Label, Arc<Label>> = HashMap::new();
            Calls::of(stacks, |(number, offset)| {
                let label = || {
                    let id = stacks.images.get(number as usize).cloned().unwrap_or_default();
                    let label = match images.get(number as usize).copied().flatten() {
                        Some(met) => met.label(offset),
                        None if id.starts_with('[') => Label { procedure: id, ..Label::default() },
                        None => Label { procedure: "[unknown]".to_owned(), ..Label::default() },
                    };
                    same.entry(label).or_insert_with_key(|label| Arc::new(label.clone())).clone()
                };
                labels.entry((number, offset)).or_insert_with(label).clone()
            })
        });
        Answer { calls: calls.collect(), named }
    }

    /// The listing of a procedure; empty where its code is in no file.
    pub(super) fn listing(&self, of: &Label) -> Vec<Line> {
        let met = self.images.values().filter(|met| met.name == of.image);
        let mut found = met.filter_map(|met| {
            let (file, known) = (met.file.as_ref()?, met.known.as_ref()?.as_ref().ok()?);
            let procedure = known.procedures.iter().find(|one| one.name() == of.procedure)?;
            let samples = |from, to| met.places.range(from..to).map(|(_, samples)| samples).sum();
            Some(listing::of((file, known), procedure, &self.places, samples))
        });
        found.next().unwrap_or_default()
    }

    /// Names the samples of an answer. Samples of unknown code are named by their reason.
    pub(super) fn name(&mut self, counts: &Counts) -> Named {
        self.now += 1;
        let events = counts.events.len();
        let mut named = Named::new();
        for image in &counts.images {
            self.name_image(image, events, &mut named);
        }
        for (event, of) in counts.events.iter().enumerate() {
            for (reason, samples) in &of.unresolved {
                let procedure = format!("[unresolved: {}]", reason.replace('_', " "));
                add(&mut named, Label { procedure, ..Label::default() }, event, *samples, events);
            }
        }
        if counts.beyond > 0 {
            let procedure = "[more addresses than dcpid sends at once]".to_owned();
            add(&mut named, Label { procedure, ..Label::default() }, 0, counts.beyond, events);
        }
        self.forget();
        named
    }

    fn name_image(&mut self, counts: &ImageCounts, events: usize, named: &mut Named) {
        let met = self.images.entry(counts.id.clone()).or_insert_with(|| Met::new(counts));
        met.used = self.now;
        for (start, end, name) in &counts.symbols {
            if met.symbols.len() < SYMBOLS_MAX {
                met.symbols.insert(*start, (*end, name.clone()));
            }
        }
        if counts.kind == ImageKind::File.as_str() && met.known.is_none() {
            let file = file(counts);
            let known = file.as_ref().map_err(|why| *why).and_then(|file| {
                in_files(file, &self.places, Needed::All).map_err(|why| why.short())
            });
            (met.known, met.file) = (Some(known), file.ok());
        }
        for (event, places) in counts.places.iter().enumerate().take(events) {
            for (offset, samples) in places {
                let label = met.label(*offset);
                let has_room = met.places.len() < PLACES_MAX || met.places.contains_key(offset);
                if event == 0 && has_room {
                    let sum = met.places.entry(*offset).or_default();
                    *sum = sum.saturating_add(*samples);
                }
                add(named, label, event, *samples, events);
            }
        }
    }

    /// Drops the procedures and images that were unused for the longest time, beyond the limits.
    fn forget(&mut self) {
        let size = |met: &Met| {
            met.known
                .as_ref()
                .and_then(|known| known.as_ref().ok())
                .map_or(0, |k| k.procedures.len())
        };
        let mut all: usize = self.images.values().map(size).sum();
        let mut by_age: Vec<(u64, String)> =
            self.images.iter().map(|(id, met)| (met.used, id.clone())).collect();
        by_age.sort();
        for (_, id) in by_age {
            if all <= PROCEDURES_MAX && self.images.len() <= IMAGES_MAX {
                return;
            }
            if let Some(met) = self.images.remove(&id) {
                all -= size(&met);
            }
        }
    }
}

impl Met {
    fn new(counts: &ImageCounts) -> Self {
        let idle = counts.kind == ImageKind::Idle.as_str();
        Self {
            name: counts.name.clone(),
            idle,
            known: None,
            symbols: BTreeMap::new(),
            file: None,
            places: BTreeMap::new(),
            used: 0,
        }
    }

    fn label(&self, offset: u64) -> Label {
        Label { image: self.name.clone(), procedure: self.procedure(offset), idle: self.idle }
    }

    fn procedure(&self, offset: u64) -> String {
        if let Some((_, (end, name))) = self.symbols.range(..=offset).next_back()
            && offset < *end
        {
            return name.clone();
        }
        match &self.known {
            Some(Ok(known)) => known
                .procedures
                .find(ImageOffset(offset))
                .map_or("[unknown]", |p| p.name())
                .to_owned(),
            Some(Err(why)) => format!("[no procedures: {why}]"),
            None => "[unknown]".to_owned(),
        }
    }
}

fn add(named: &mut Named, label: Label, event: usize, samples: u64, events: usize) {
    let counts = named.entry(Arc::new(label)).or_insert_with(|| vec![0; events]);
    if let Some(count) = counts.get_mut(event) {
        *count = count.saturating_add(samples);
    }
}

/// A file that is running.
fn file(counts: &ImageCounts) -> Result<ImageSamples, &'static str> {
    let id: ImageId = counts.id.parse().map_err(|_| "unknown id")?;
    let record = ImageRecord {
        id,
        kind: ImageKind::File,
        name: counts.name.clone(),
        path: counts.path.clone(),
        size_bytes: None,
        first_seen_unix_s: 0,
        last_seen_unix_s: 0,
    };
    let paths = if counts.path.is_empty() { Vec::new() } else { vec![record.real_path()] };
    let (profiles, scopes, epochs) = (Vec::new(), BTreeMap::new(), Vec::new());
    Ok(ImageSamples {
        record,
        paths,
        wanted: true,
        profiles,
        scopes,
        by_scope: BTreeMap::new(),
        epochs,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::EventCounts;

    fn image(id: &str, kind: ImageKind, path: &str, offsets: &[u64]) -> ImageCounts {
        ImageCounts {
            id: id.to_owned(),
            kind: kind.as_str().to_owned(),
            name: id.to_owned(),
            path: path.to_owned(),
            places: vec![offsets.iter().map(|offset| (*offset, 2)).collect()],
            symbols: vec![(0, 16, "f".to_owned()), (32, 48, "g".to_owned())],
        }
    }

    #[test]
    fn what_has_no_file_is_named_by_the_daemon_and_what_has_none_says_why() {
        let event = EventCounts {
            unresolved: BTreeMap::from([("no_mapping".to_owned(), 5)]),
            ..EventCounts::default()
        };
        let mut gone = image("x", ImageKind::File, "/does/not/exist", &[3]);
        gone.symbols.clear();
        gone.id = ImageId::from_name("x", "").to_string();
        let images = vec![
            image("[kernel]", ImageKind::Kernel, "", &[1, 15, 16, 40, u64::MAX]),
            image("[idle]", ImageKind::Idle, "", &[4]),
            gone,
        ];
        let mut names = Names::new(Vec::new());
        let counts =
            Counts { since_ms: 1, events: vec![event], images, beyond: 7, ..Counts::default() };
        let named = names.name(&counts);
        let rows: Vec<_> = named
            .iter()
            .map(|(label, counts)| {
                (label.image.as_str(), label.procedure.as_str(), label.idle, counts[0])
            })
            .collect();
        assert_eq!(
            rows,
            [
                ("", "[more addresses than dcpid sends at once]", false, 7),
                ("", "[unresolved: no mapping]", false, 5),
                ("[idle]", "f", true, 2),
                ("[kernel]", "[unknown]", false, 4),
                ("[kernel]", "f", false, 4),
                ("[kernel]", "g", false, 2),
                ("x", "[no procedures: file gone]", false, 2),
            ]
        );
    }

    #[test]
    fn images_are_forgotten_beyond_the_limit_the_oldest_first() {
        let mut names = Names::new(Vec::new());
        for at in 0..IMAGES_MAX + 3 {
            let images = vec![image(&format!("{at}"), ImageKind::Bpf, "", &[1])];
            let _ = names.name(&Counts {
                since_ms: 1,
                events: vec![EventCounts::default()],
                images,
                ..Counts::default()
            });
        }
        assert_eq!(names.images.len(), IMAGES_MAX);
        assert!(!names.images.contains_key("2") && names.images.contains_key("3"));
    }
}

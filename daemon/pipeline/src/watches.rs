//! Counts for clients that watch (`dcpi top`): for each watch the samples since its last question,
//! kept beside the counts that wait for the disk.
//!
//! Without a watch this costs nothing. A watch without questions for a while is forgotten.

use events::PlannedEvent;
use image::{ImageId, ImageOffset};
use model::{Frame, INTERPRETED, Language, Ledger, Profile, Stacks};
use pending::Pending;
use profiledb::{Delta, ImageRecord, Symbol};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use wire::{Counts, EventCounts, ImageCounts, StackCounts};

/// Most watches at once: each adds counting to every drain and memory for its places.
const WATCHES_MAX: usize = 8;
/// Most watches of one user, so that one user cannot take all.
const OF_A_USER_MAX: usize = 4;
/// Most distinct places of a watch between two questions: a reply has about 25 bytes for each.
const PLACES_MAX: usize = 65_536;
/// Most frames of an event's call stacks between two questions: a reply has about 20 bytes for
/// each, and the lightest contexts are joined beyond.
const FRAMES_MAX: usize = 65_536;
/// Time without a question after which a watch is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(30);

/// The watches there are.
#[derive(Debug, Default)]
pub struct Watches {
    watches: Vec<Watch>,
}

#[derive(Debug)]
struct Watch {
    /// User of the watch, and the number that its client chose.
    token: (u32, u64),
    asked: Instant,
    recent: Recent,
}

/// Samples since the last question.
#[derive(Debug, Default)]
struct Recent {
    /// Samples by image and by event number.
    profiles: BTreeMap<ImageId, BTreeMap<usize, Profile>>,
    records: BTreeMap<ImageId, ImageRecord>,
    symbols: BTreeMap<ImageId, BTreeMap<u64, Symbol>>,
    ledgers: BTreeMap<usize, Ledger>,
    /// Periods of samples by event number, as text.
    periods: BTreeMap<String, u64>,
    places: usize,
    beyond: u64,
    /// Call stacks by event number.
    stacks: BTreeMap<usize, Stacks>,
    /// Places of interpreters' loops and of compiled scripts.
    loops: BTreeSet<(ImageId, ImageOffset)>,
}

impl Watches {
    /// Whether there is a watch.
    pub fn any(&mut self, now: Instant) -> bool {
        self.watches.retain(|watch| now.saturating_duration_since(watch.asked) < FORGOTTEN);
        !self.watches.is_empty()
    }

    /// Adds the counts of a drain to all watches.
    pub fn note(&mut self, drained: &Pending) {
        let names: Vec<String> = (0..drained.events()).map(|number| number.to_string()).collect();
        let delta = drained.delta(&names, 0);
        self.watches.iter_mut().for_each(|watch| watch.recent.add(&delta));
    }

    /// The samples since the last question of the user's client that chose this number. A new
    /// number begins a watch.
    ///
    /// # Errors
    /// One line, when there are too many watches.
    pub fn ask(
        &mut self,
        token: (u32, u64),
        events: &[PlannedEvent],
        now: Instant,
    ) -> Result<Counts, String> {
        if let Some(watch) = self.watches.iter_mut().find(|watch| watch.token == token) {
            let since = now.saturating_duration_since(watch.asked);
            watch.asked = now;
            return Ok(std::mem::take(&mut watch.recent).counts(events, since));
        }
        let of_user = self.watches.iter().filter(|watch| watch.token.0 == token.0).count();
        if of_user >= OF_A_USER_MAX || self.watches.len() >= WATCHES_MAX {
            let watching = self.watches.len();
            return Err(format!(
                "{watching} clients watch the counts already, {of_user} of them yours; end one (dcpi top)"
            ));
        }
        self.watches.push(Watch { token, asked: now, recent: Recent::default() });
        Ok(Recent::default().counts(events, Duration::ZERO))
    }
}

impl Recent {
    fn add(&mut self, delta: &Delta) {
        // Samples of two periods do not add up, so samples before the change are dropped.
        let sampled = delta.ledgers.iter().filter(|(_, _, ledger)| ledger.taken > 0);
        let periods: BTreeMap<String, u64> =
            sampled.map(|(event, period, _)| (event.to_owned(), period)).collect();
        if periods
            .iter()
            .any(|(event, period)| self.periods.get(event).is_some_and(|known| known != period))
        {
            *self = Self::default();
        }
        self.periods.extend(periods);
        for (key, counts) in &delta.profiles {
            if let (true, model::Counts::Values(values)) = (key.measure == INTERPRETED, counts) {
                let places = values.iter().filter_map(|(value, _)| Language::of(value));
                let places = places.map(|(offset, _)| (key.image, offset));
                let room = FRAMES_MAX.saturating_sub(self.loops.len());
                self.loops.extend(places.take(room));
            }
            let (Ok(event), model::Counts::Places(profile)) = (key.name().parse::<usize>(), counts)
            else {
                continue;
            };
            // Samples of unknown code are counted by reason.
            if key.image.is_unresolved() {
                continue;
            }
            let mine = self.profiles.entry(key.image).or_default().entry(event).or_default();
            for (offset, samples) in profile.iter() {
                let is_new = mine.get(offset) == 0;
                if is_new && self.places >= PLACES_MAX {
                    self.beyond += samples;
                } else {
                    self.places += usize::from(is_new);
                    mine.add(offset, samples);
                }
            }
        }
        for (key, stacks) in &delta.stacks {
            // Waits are no event that is sampled.
            if let Ok(event) = key.event.parse::<usize>() {
                let mine = self.stacks.entry(event).or_default();
                mine.merge(stacks);
                if mine.len() > FRAMES_MAX {
                    *mine = std::mem::take(mine).bounded(FRAMES_MAX);
                }
            }
        }
        self.records.extend(delta.images.iter().map(|(id, record)| (*id, record.clone())));
        for (id, symbols) in &delta.symbols {
            let named = symbols.iter().map(|symbol| (symbol.start, symbol.clone()));
            self.symbols.entry(*id).or_default().extend(named);
        }
        for (event, _, ledger) in delta.ledgers.iter() {
            if let Ok(event) = event.parse() {
                self.ledgers.entry(event).or_default().add(ledger);
            }
        }
    }

    fn counts(mut self, events: &[PlannedEvent], since: Duration) -> Counts {
        let mut of_events = Vec::with_capacity(events.len());
        for (number, plan) in events.iter().enumerate() {
            let ledger = self.ledgers.remove(&number).unwrap_or_default();
            of_events.push(EventCounts {
                name: plan.event.name.clone(),
                unit: plan.event.unit.to_string(),
                period: plan.period,
                taken: ledger.taken,
                unresolved: ledger.unresolved,
                lost: ledger.lost,
            });
        }
        let mut images = Vec::with_capacity(self.profiles.len());
        for (id, record) in &self.records {
            let places = |event| -> Vec<(u64, u64)> {
                let profile = self.profiles.get(id).and_then(|profiles| profiles.get(&event));
                profile
                    .map(|profile| profile.iter().map(|(offset, n)| (offset.0, n)).collect())
                    .unwrap_or_default()
            };
            let symbols = self.symbols.remove(id).unwrap_or_default();
            images.push(ImageCounts {
                id: id.to_string(),
                kind: record.kind.as_str().to_owned(),
                name: record.name.clone(),
                path: record.path.clone(),
                places: (0..events.len()).map(places).collect(),
                symbols: symbols
                    .into_values()
                    .map(|symbol| (symbol.start, symbol.end, symbol.name))
                    .collect(),
            });
        }
        let since_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let of = |stacks| self::stacks(stacks, &self.loops);
        let stacks = (0..events.len())
            .map(|event| self.stacks.get(&event).map_or_else(StackCounts::default, of));
        let stacks = stacks.collect();
        Counts { since_ms, events: of_events, images, beyond: self.beyond, stacks }
    }
}

/// Call stacks for the client.
fn stacks(of: &Stacks, loops: &BTreeSet<(ImageId, ImageOffset)>) -> StackCounts {
    let mut counts = StackCounts::default();
    let mut images: BTreeMap<String, u32> = BTreeMap::new();
    let mut processes: BTreeMap<(String, u32), u32> = BTreeMap::new();
    let mut frames: Vec<Frame> = Vec::new();
    for (node, (caller, frame)) in (0_u32..).zip(of.nodes()) {
        let called = caller.and_then(|caller| frames.get(caller as usize).copied());
        if let (Frame::Code(id, offset), Some(Frame::Code(file, _))) = (frame, called)
            && file.is_name()
            && loops.contains(&(id, offset))
        {
            counts.loops.push(node);
        }
        frames.push(frame);
        let (image, offset) = match frame {
            Frame::Code(id, offset) => (id.to_string(), offset.0),
            Frame::Cut(cut) => (format!("[{}]", cut.name()), 0),
            Frame::Wait(wait) => (format!("[{}]", wait.name()), 0),
        };
        let next = images.len() as u32;
        let number = *images.entry(image).or_insert_with_key(|image| {
            counts.images.push(image.clone());
            next
        });
        counts.frames.push((caller.map_or(0, |caller| caller + 1), number, offset));
    }
    for (node, thread, value) in of.values() {
        let process = (thread.command.clone(), thread.pid);
        let next = processes.len() as u32;
        let number = *processes.entry(process).or_insert_with_key(|process| {
            counts.processes.push(process.clone());
            next
        });
        counts.times.push((node, number, value.stacks, value.weight));
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_spaces::mapped_files::Image;
    use events::EventSpec;
    use image::ImageKind;
    use model::Unresolved;
    use std::sync::Arc;

    fn drained(places: impl Iterator<Item = (u64, u64)>) -> Pending {
        let id = ImageId::from_name("a", "");
        let (name, path) = ("a".to_owned(), "/a".to_owned());
        let image = Arc::new(Image {
            id,
            kind: ImageKind::Kernel,
            name,
            path,
            size_bytes: None,
            procedures: None,
        });
        let mut pending = Pending::new([1]);
        pending.count(&image, 0, None, places.map(|(offset, n)| (ImageOffset(offset), n)));
        pending.name(&id, 0..16, "f");
        pending.unresolve(0, Unresolved::Anonymous, 2, None);
        pending
    }

    fn events() -> Vec<PlannedEvent> {
        vec![EventSpec::parse("cpu-clock").unwrap().plan(1)]
    }

    #[test]
    fn each_watch_is_told_what_came_since_it_asked() {
        let (mut watches, start) = (Watches::default(), Instant::now());
        assert!(!watches.any(start));
        assert_eq!(watches.ask((0, 7), &events(), start).unwrap().images, []);
        watches.note(&drained([(1, 3)].into_iter()));
        assert_eq!(
            watches.ask((0, 8), &events(), start).unwrap().images,
            [],
            "the second watch begins here"
        );
        watches.note(&drained([(1, 1), (2, 5)].into_iter()));
        let first = watches.ask((0, 7), &events(), start + Duration::from_secs(2)).unwrap();
        assert_eq!((first.since_ms, first.beyond), (2000, 0));
        assert_eq!(first.images[0].places, [vec![(1, 4), (2, 5)]]);
        assert_eq!(first.images[0].symbols, [(0, 16, "f".to_owned())]);
        assert_eq!(first.events[0].unresolved.values().sum::<u64>(), 4);
        let second = watches.ask((0, 8), &events(), start).unwrap();
        assert_eq!(second.images[0].places, [vec![(1, 1), (2, 5)]]);
        assert_eq!(watches.ask((0, 7), &events(), start).unwrap().images, [], "told once");
    }

    #[test]
    fn watches_and_their_places_have_an_end() {
        let (mut watches, start) = (Watches::default(), Instant::now());
        for token in 0..OF_A_USER_MAX as u64 {
            watches.ask((0, token), &events(), start).unwrap();
        }
        assert!(
            watches
                .ask((0, 99), &events(), start)
                .unwrap_err()
                .contains("4 of them yours; end one")
        );
        for token in 0..(WATCHES_MAX - OF_A_USER_MAX) as u64 {
            watches.ask((1000, token), &events(), start).unwrap();
        }
        assert!(
            watches
                .ask((7, 99), &events(), start)
                .unwrap_err()
                .contains("8 clients watch the counts already, 0")
        );
        watches.note(&drained((0..PLACES_MAX as u64 + 3).map(|offset| (offset, 2))));
        watches.note(&drained([(0, 1)].into_iter()));
        let counts = watches.ask((0, 0), &events(), start).unwrap();
        assert_eq!((counts.beyond, counts.images[0].places[0].len()), (6, PLACES_MAX));
        assert_eq!(counts.images[0].places[0][0], (0, 3), "known places still count");
        assert!(watches.any(start + FORGOTTEN / 2));
        assert!(!watches.any(start + FORGOTTEN), "forgotten");
        assert!(watches.ask((0, 99), &events(), start + FORGOTTEN).is_ok());
    }
}

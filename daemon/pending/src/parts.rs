//! The waiting counts, in as many parts as the database needs.

use super::{Pending, PendingImage, Run, Series, Waiting, Whose};
use crate::ledger::Account;
use model::Unresolved;
use profiledb::Symbol;
use std::collections::{BTreeMap, VecDeque};

/// Bytes that the images and profiles of one part of a merge take in its segment's directory, at
/// most: half of what a reader accepts (`segment::MAX_DIRECTORY_BYTES`), because scopes take up to
/// a quarter.
const PART_DIRECTORY_BYTES: usize = 2 << 20;
/// Of these an image takes its id, and a profile the numbers of its section, each at its longest.
const IMAGE_BYTES: usize = 48;
const PROFILE_BYTES: usize = 48;
/// Bytes of names and paths in a part, at most: as JSON, in which a byte may become two, they are
/// in memory once more.
const PART_TEXT_BYTES: usize = 32 << 20;

impl Pending {
    /// The waiting counts in at least one part, and in as many as the database needs, because a
    /// segment's directory is limited. Each part is complete, with its own share of the account, so
    /// a crash between two parts loses only the remaining parts. The first part has the counts that
    /// belong to no profile.
    pub fn parts(mut self) -> VecDeque<Self> {
        let text = |waiting: &PendingImage| waiting.image.name.len() + waiting.image.path.len();
        let texts: usize = self.images.values().map(text).sum();
        let directory = self.images.len() * IMAGE_BYTES + self.profiles.len() * PROFILE_BYTES;
        let text_bytes = texts.saturating_add(self.names_bytes);
        if directory <= PART_DIRECTORY_BYTES && text_bytes <= PART_TEXT_BYTES {
            return VecDeque::from([self]);
        }
        let mut profiles: Vec<_> = std::mem::take(&mut self.profiles).into_iter().collect();
        // An image's profiles are adjacent, and mostly in one part.
        profiles.sort_by_key(|((image, ..), _)| *image);
        let mut parts = VecDeque::new();
        let (mut part, mut bytes) = (self.part(), (0, 0));
        for (whose, counts) in profiles {
            let image = whose.0;
            let Some(waiting) = self.images.get(&image) else { continue };
            let names = self.symbols.get(&image).into_iter().flat_map(BTreeMap::values);
            let names: usize = names.map(|symbol| symbol.name.len() + size_of::<Symbol>()).sum();
            let mut more = (PROFILE_BYTES, 0);
            if !part.images.contains_key(&image) {
                more = (PROFILE_BYTES + IMAGE_BYTES, text(waiting) + names);
            }
            let full =
                bytes.0 + more.0 > PART_DIRECTORY_BYTES || bytes.1 + more.1 > PART_TEXT_BYTES;
            if full && !part.profiles.is_empty() {
                parts.push_back(std::mem::replace(&mut part, self.part()));
                (bytes, more) = ((0, 0), (PROFILE_BYTES + IMAGE_BYTES, text(waiting) + names));
            }
            bytes = (bytes.0 + more.0, bytes.1 + more.1);
            part.charge(&waiting.image, waiting.payer);
            if let Some(symbols) = self.symbols.remove(&image) {
                part.symbols.insert(image, symbols);
            }
            self.move_account(&mut part, &whose, &counts);
            part.profiles.insert(whose, counts);
        }
        // The rest of the accounts belongs to no profile.
        for (mine, theirs) in part.runs.iter_mut().zip(std::mem::take(&mut self.runs)) {
            mine.account.add(&theirs.account);
        }
        part.changes = self.changes;
        for id in self.stacks.images() {
            if let Some(waiting) = self.images.get(&id) {
                part.charge(&waiting.image, waiting.payer);
            }
        }
        part.stacks = self.stacks;
        part.symbols.extend(self.symbols);
        parts.push_front(part);
        parts
    }

    /// Nothing yet, of the same events and periods.
    fn part(&self) -> Self {
        let empty = |run: &Run| Run { account: Account::default(), ..run.clone() };
        let runs = self.runs.iter().map(empty).collect();
        Self { runs, now: self.now.clone(), ..Self::new([]) }
    }

    /// Moves the samples of a profile from this account to that of a part.
    fn move_account(&mut self, part: &mut Self, (image, series, _): &Whose, counts: &Waiting) {
        let Series::Run(run) = *series else { return };
        let (Some(mine), Some(theirs)) = (self.runs.get_mut(run), part.runs.get_mut(run)) else {
            return;
        };
        let (mine, theirs) = (&mut mine.account, &mut theirs.account);
        let samples = counts.total();
        if image.is_unresolved() {
            let waiting = part.images.get(image);
            let is_reason = |reason: &&Unresolved| {
                waiting.is_some_and(|waiting| waiting.image.path == reason.name())
            };
            let reason = Unresolved::ALL.iter().find(is_reason);
            let Some(left) = reason.and_then(|reason| mine.unresolved.get_mut(reason)) else {
                return;
            };
            *left = left.saturating_sub(samples);
            reason.inspect(|reason| theirs.unresolve(**reason, samples));
        } else {
            mine.resolved = mine.resolved.saturating_sub(samples);
            theirs.resolved += samples;
        }
        mine.taken = mine.taken.saturating_sub(samples);
        theirs.taken += samples;
    }
}

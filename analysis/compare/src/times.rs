//! Sets of samples of stretches of time: which slices are theirs, and parts of them of like length.

use std::collections::BTreeMap;

use image::ImageId;
use profiledb::{Database, Epoch, EpochId, ImageRecord, Stretch};

use super::table::Opened;
use query::error::AnalysisError;
use query::load;
use query::problem::Problem;
use query::seen::Seen;
use query::select;
use query::times::rfc3339;

/// Most parts of a set on one host. More cost a reading each; with fewer, the spread between parts
/// is known less well.
const PARTS_MAX: u64 = 60;

/// Gives two sets that are of one image each, the second of which was seen only after the first,
/// the times of these images: shares of the one beside shares of the other would tell of each
/// procedure how the rest of its program changed. The times as they are typed in sets; None where
/// the sets are not of that kind, or name a time.
pub(super) fn give_own(opened: &mut [Vec<Opened>]) -> Result<Option<[String; 2]>, AnalysisError> {
    let [before, after] = opened else { return Ok(None) };
    let ([before], [after]) = (before.as_mut_slice(), after.as_mut_slice()) else {
        return Ok(None);
    };
    let is_build = |(question, ..): &Opened| {
        let is_labelled = question.whose.label.is_some();
        question.images.len() == 1 && question.epochs.stretch.is_none() && !is_labelled
    };
    let is_same_place = before.0.db == after.0.db && before.2 == after.2;
    if !(is_build(before) && is_build(after) && is_same_place) {
        return Ok(None);
    }
    let Some([old, new]) = seen(before)?.zip(seen(after)?).map(<[Seen; 2]>::from) else {
        return Ok(None);
    };
    if !old.is_before(&new) {
        return Ok(None);
    }
    before.0.epochs.stretch = Some(old.stretch);
    after.0.epochs.stretch = Some(new.stretch);
    let typed = |word: &str, at: u64| format!(",{word}:{}", rfc3339(at));
    Ok(Some([typed("until", old.stretch.until_unix_s), typed("since", new.stretch.since_unix_s)]))
}

/// When the image of a question was seen; None where that is several images, or none.
fn seen((question, db, epochs): &Opened) -> Result<Option<Seen>, AnalysisError> {
    let mut records: BTreeMap<ImageId, ImageRecord> = BTreeMap::new();
    let mut slices: Vec<Stretch> = Vec::new();
    for epoch in load::open(db, epochs, &mut Vec::new())? {
        slices.extend(epoch.slices());
        for (id, record) in epoch.images()? {
            let known = records.entry(id).or_insert_with(|| record.clone());
            known.first_seen_unix_s = known.first_seen_unix_s.min(record.first_seen_unix_s);
            known.last_seen_unix_s = known.last_seen_unix_s.max(record.last_seen_unix_s);
        }
    }
    slices.sort_unstable_by_key(|slice| slice.until_unix_s);
    // An image without samples is refused when the set is read.
    let Ok(meant) = select::images(&question.images, records.values()) else { return Ok(None) };
    let mut meant = meant.iter().filter_map(|id| records.get(id));
    let one = meant.next().filter(|_| meant.next().is_none());
    Ok(one.map(|record| Seen::of(record, &slices)))
}

/// An epoch of a set, with the slices of it that are the set's.
pub(super) struct Timed {
    pub(super) epoch: Epoch,
    slices: Vec<Stretch>,
}

/// The slices of a set in these epochs: of a stretch of time those whose middle is in it, so that
/// sets of times that follow one another have no slice in common; where there are none, those that
/// it overlaps.
pub(super) fn timed(
    db: &Database,
    epochs: &[(String, EpochId)],
    stretch: Option<Stretch>,
    problems: &mut Vec<Problem>,
) -> Result<Vec<Timed>, AnalysisError> {
    let opened = load::open(db, epochs, problems)?.into_iter();
    let mut all: Vec<Timed> = opened.map(|epoch| Timed { slices: epoch.slices(), epoch }).collect();
    let Some(stretch) = stretch else { return Ok(all) };
    let is_of = |slice: &Stretch| {
        let middle = slice.since_unix_s.midpoint(slice.until_unix_s);
        (stretch.since_unix_s..stretch.until_unix_s).contains(&middle)
    };
    if all.iter().any(|timed| timed.slices.iter().any(is_of)) {
        all.iter_mut().for_each(|timed| timed.slices.retain(is_of));
    }
    Ok(all)
}

/// The time from the first of these slices to the last; None where there are none.
fn whole(timed: &[Timed]) -> Option<Stretch> {
    let slices = || timed.iter().flat_map(|timed| &timed.slices);
    let since_unix_s = slices().map(|slice| slice.since_unix_s).min()?;
    let until_unix_s = slices().map(|slice| slice.until_unix_s).max()?;
    Some(Stretch { since_unix_s, until_unix_s })
}

/// The length of parts, in seconds, of sets that are compared: that of the shortest set, or longer
/// where another would have too many. So the parts of the longer one show how much such parts vary.
pub(super) fn part_s(sets: &[&[Timed]]) -> u64 {
    let of = |timed: &&[Timed]| whole(timed).map(|all| all.until_unix_s - all.since_unix_s);
    let lengths: Vec<u64> = sets.iter().filter_map(of).collect();
    let (shortest, longest) = (lengths.iter().min(), lengths.iter().max());
    let least = longest.map_or(1, |longest| longest.div_ceil(PARTS_MAX));
    shortest.map_or(1, |shortest| (*shortest).max(least)).max(1)
}

/// The parts of a set, of about this many seconds each.
pub(super) fn parts(timed: &[Timed], part_s: u64) -> Vec<Epoch> {
    let Some(all) = whole(timed) else { return Vec::new() };
    let length = all.until_unix_s - all.since_unix_s;
    // Parts of equal length: a rest would be a part of less time than the others.
    let count = ((length as f64 / part_s as f64).round() as u64).max(1);
    let number = |slice: &Stretch| {
        let middle = slice.since_unix_s.midpoint(slice.until_unix_s) - all.since_unix_s;
        middle.saturating_mul(count) / length.max(1)
    };
    let mut parts = Vec::new();
    for Timed { epoch, slices } in timed {
        for of_part in slices.chunk_by(|a, b| number(a) == number(b)) {
            let (Some(first), Some(last)) = (of_part.first(), of_part.last()) else { continue };
            let (since_unix_s, until_unix_s) = (first.since_unix_s, last.until_unix_s);
            parts.extend(epoch.during(Stretch { since_unix_s, until_unix_s }));
        }
    }
    parts
}

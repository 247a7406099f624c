//! Sets of samples of stretches of time: which slices are theirs, and parts of them of like length.

use profiledb::{Database, Epoch, EpochId, Stretch};

use query::error::AnalysisError;
use query::load;
use query::problem::Problem;

/// Most parts of a set on one host. More cost a reading each; with fewer, the spread between parts
/// is known less well.
const PARTS_MAX: u64 = 60;

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

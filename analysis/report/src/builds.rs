//! Builds of one image, and how to compare them.

use std::collections::BTreeSet;

use image::ImageId;
use query::DEFAULT_DB;
use query::error::quoted;
use query::times::rfc3339;

use super::{ImageName, ProfReport, Seen, Selection};

/// The first digits of an id, which tell builds apart but for a chance of 2^-32; of ids that begin
/// with a word more.
pub fn brief_id(id: &image::ImageId) -> String {
    let short = id.short();
    let first = short.split('-').next().unwrap_or_default();
    let is_hash = first.len() >= 8 && first.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hash { first.to_owned() } else { short }
}

/// The command that compares.
pub(super) const DIFF: &str = "dcpi diff";

/// How to compare two builds of one file, where rows are of several.
pub(super) fn builds(report: &ProfReport) -> Option<String> {
    let images = || report.rows.iter().filter_map(|row| row.image.as_ref());
    let of_files =
        || images().filter(|image| image.ambiguous && image.kind == image::ImageKind::File);
    let first = of_files().next()?;
    let is_of_it = |image: &&ImageName| image.path == first.path;
    let ids: BTreeSet<ImageId> = of_files().filter(is_of_it).map(|image| image.id).collect();
    two_builds(&first.name, (&report.seen, &report.selection), |id| ids.contains(id))
}

/// How to compare two builds of an image, the one that was seen first before the other: without an
/// overlap, each in its own time, which makes changes of the time by second.
pub(super) fn two_builds(
    name: &str,
    (seen, selection): (&Seen, &Selection),
    is_it: impl Fn(&ImageId) -> bool,
) -> Option<String> {
    let mut builds: Vec<_> = seen.iter().filter(|(id, _)| is_it(id)).collect();
    builds.sort_by_key(|(_, times)| **times);
    let [.., (old, seen_old), (new, seen_new)] = builds.as_slice() else { return None };
    let [old, new] = [old, new].map(|id| brief_id(id));
    let [until, since] = match seen_old.is_before(seen_new) {
        true => {
            let at = (seen_old.stretch.until_unix_s, seen_new.stretch.since_unix_s);
            [("until", at.0), ("since", at.1)].map(|(word, at)| format!(",{word}:{}", rfc3339(at)))
        }
        false => Default::default(),
    };
    let epochs = match selection.epochs.as_slice() {
        [first, .., last] => format!(" --epoch {}..{}", first.epoch, last.epoch),
        [one] if one.ended_unix_s.is_some() => format!(" --epoch {}", one.epoch),
        _ => String::new(),
    };
    let db = Some(selection.db.as_str()).filter(|db| *db != DEFAULT_DB);
    let db = db.map(|db| format!(" --db {}", quoted(db))).unwrap_or_default();
    let which = match builds.len() {
        2 => format!("two builds of {name}"),
        several => format!("{several} builds of {name}, the last two"),
    };
    Some(format!("{which}: {DIFF} image:{old}{until} image:{new}{since}{epochs}{db}"))
}

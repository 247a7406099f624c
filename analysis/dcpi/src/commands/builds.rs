//! Builds of one program that a command cannot take together.

use std::collections::BTreeSet;

use image::ImageId;
use profiledb::ImageRecord;
use query::error::quoted;
use query::times::rfc3339;
use report::brief_id;

/// What to type instead, where the procedures of a name are those of builds of one program.
pub(super) fn apart<'a>(
    asked: &str,
    images: impl Iterator<Item = &'a ImageRecord> + Clone,
) -> Option<String> {
    let first = images.clone().next()?;
    let ids: BTreeSet<ImageId> = images.clone().map(|image| image.id).collect();
    let number = images.clone().count();
    if ids.len() != number || images.clone().any(|image| image.path != first.path) {
        return None;
    }
    let each = images.map(|image| {
        let [since, until] = [image.first_seen_unix_s, image.last_seen_unix_s].map(rfc3339);
        format!("{} {} ({since} to {until})", brief_id(&image.id), quoted(asked))
    });
    let each: Vec<String> = each.collect();
    Some(format!(
        "{asked:?} is in {number} builds of {}, whose call stacks are apart; put the id of one \
         before it: {}",
        first.name,
        each.join(", or ")
    ))
}
